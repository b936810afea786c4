"""The record of one run on disk: an append-only file of JSON lines with checksums, written by one process at a time.

A line is an event (``seq``, ``at``, ``tag``, ``body``), or says that a call begins (``begun``), which files are about
to change (``files``), or which process owns the file from there on (``owner``). A line with ``"more": true`` belongs
together with the next one: a group is on record as a whole or not at all. What a crash leaves behind the last whole
line is ignored by readers and cut off by the next owner. A `write` that succeeded survives the death of the process;
only with ``durable`` does it survive that of the machine. Owning is a lock of the operating system on the open file
(flock), which ends with the process, so a dead owner is told from a slow one. Where there is no such lock, the last
owner is asked for by its mark.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

import msgspec

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import StoreError
from watchkeeper.disk.liveness import ProcessMark, is_alive

try:
    import fcntl
except ImportError:  # Windows: there, the line of the last owner says which process it was, and `liveness` if it runs
    fcntl = None  # type: ignore[assignment]

VERSION: Final = 1
"""Version of the lines; a file with a higher one is refused."""

ENDINGS: Final = frozenset({"run_ended", "many_ended"})
"""Tags of a run's last event."""

SUFFIX: Final = ".jsonl"
PRIVATE_FILE: Final = 0o600

CHECKED: Final = b',"crc":"%08x"}\n'
TAIL: Final = len(CHECKED % 0)
"""How many bytes the checksum and what follows it take at the end of every line."""

CHUNK: Final = 1 << 18

LOCK_ATTEMPTS: Final = 5
LOCK_PAUSE: Final = 0.005
"""How often a lock is asked for, and seconds between two attempts: readers have it for microseconds."""


class Owner(msgspec.Struct, frozen=True):
    """Which process writes a run from here on.

    Attributes:
        epoch: 1 for the process that began the run; every process that takes it over adds one.
        process: Its id, start and machine; see `liveness`.
        at: When it took the file, in UTC, in ISO format.
        version: Version of the lines that follow.
    """

    epoch: int
    process: tuple[int, str, str]
    at: str
    version: int = VERSION

    @property
    def mark(self) -> ProcessMark:
        """The identity of the process."""
        return ProcessMark(*self.process)


class Line(msgspec.Struct, frozen=True):
    """One line of a file as read: an event, or an owner.

    Attributes:
        seq: The event's number on its log; 0 for an owner.
        at: When it was recorded, in ISO format.
        tag: The event's type.
        body: The event as typed JSON.
        more: Whether the next line belongs to the same group.
        past: Whether it is an event of the session from before the run, kept so that its state can be rebuilt.
        changes: What reducers made of the event, as typed JSON; empty if none was registered for it.
        begun: The call that begins, as JSON; empty for any other line. It is no event and has no number.
        files: Which files are about to change, as JSON; empty for any other line. It is no event either.
        owner: Which process writes from here on.
    """

    seq: int = 0
    at: str = ""
    tag: str = ""
    body: msgspec.Raw = msgspec.Raw(b"{}")
    more: bool = False
    past: bool = False
    changes: msgspec.Raw = msgspec.Raw(b"")
    begun: msgspec.Raw = msgspec.Raw(b"")
    files: msgspec.Raw = msgspec.Raw(b"")
    owner: Owner | None = None


_LINE: Final = msgspec.json.Decoder(Line)
_ENCODER: Final = msgspec.json.Encoder()


class DamagedLineError(ValueError):
    """A line of a file cannot be read, and whole lines follow it."""


def event_line(
    seq: int, at: str, tag: str, body: bytes, changes: bytes = b"", *, more: bool = False, past: bool = False
) -> bytes:
    """Return the line of an event; see `Line`."""
    head = b'{"seq":%d,"at":"%s","tag":%s,"body":%s' % (seq, at.encode(), _ENCODER.encode(tag), body)
    if changes:
        head += b',"changes":' + changes
    if more:
        head += b',"more":true'
    return _sealed(head + b',"past":true' if past else head)


def begun_line(call: bytes) -> bytes:
    """Return the line that says that a call begins, given the call as JSON."""
    return _sealed(b'{"begun":' + call)


def files_line(changes: bytes) -> bytes:
    """Return the line that says which files are about to change, given that as JSON."""
    return _sealed(b'{"files":' + changes)


def owner_line(owner: Owner) -> bytes:
    """Return the line that says which process writes from here on."""
    return _sealed(b'{"owner":' + _ENCODER.encode(owner))


def _sealed(head: bytes) -> bytes:
    return head + CHECKED % crc32(head)


def is_whole(line: bytes) -> bool:
    """Return whether a line is complete, by its checksum."""
    return line[-TAIL:] == CHECKED % crc32(line[:-TAIL])


def read_lines(file: BinaryIO, start: int = 0) -> Iterator[tuple[int, Line]]:
    """Yield the whole lines of a file, each with the position behind it; groups whose end is missing are left out.

    Args:
        file: The file, open for reading.
        start: Where to begin: 0, or a position that was returned.

    Raises:
        DamagedLineError: At a line that cannot be read although whole lines follow it.
    """
    file.seek(start)
    position, group = start, list[tuple[int, Line]]()
    damaged = ""
    for raw in file:
        if not is_whole(raw):
            damaged = damaged or f"the line at byte {position:,} is damaged"
            position += len(raw)
            continue
        if damaged:
            raise DamagedLineError(damaged)
        try:
            line = _LINE.decode(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise DamagedLineError(f"the line at byte {position:,} cannot be read: {error}") from error
        position += len(raw)
        group.append((position, line))
        if not line.more:
            yield from group
            group.clear()


def last_lines(file: BinaryIO) -> Iterator[Line]:
    """Yield whole lines from the end of a file backwards; what a crash left behind them is passed over."""
    end = file.seek(0, os.SEEK_END)
    rest, chunk = b"", CHUNK
    while end > 0:
        begin = max(0, end - chunk)
        file.seek(begin)
        *lines, rest_of_last = (file.read(end - begin) + rest).split(b"\n")
        if begin and lines:
            rest, chunk = lines.pop(0) + b"\n", CHUNK
        elif begin:
            rest, chunk = rest_of_last, 2 * chunk  # a line of many megabytes is not joined chunk by chunk
        end = begin
        for raw in reversed(lines):
            if is_whole(raw + b"\n"):
                with contextlib.suppress(msgspec.DecodeError, RecursionError):
                    yield _LINE.decode(raw)


class RunFile:
    """A file that this process owns and appends to.

    Attributes:
        path: The file.
        epoch: How often the run was begun or taken over.
        last_seq: The number of the newest event in it.
    """

    def __init__(
        self,
        path: Path,
        mark: ProcessMark,
        at: str,
        *,
        take_over: bool = False,
        visits: bool = False,
        durable: bool = False,
    ) -> None:
        """Take a file, and make it if a run begins with it.

        Args:
            path: The file; its folder must exist, and it too if it is taken over.
            mark: The identity of this process.
            at: The time, in ISO format.
            take_over: Whether to take it from a process that has ended.
            visits: Whether to hold it without becoming its owner.
            durable: Whether a write returns only when the disk has it.

        Raises:
            OSError: If it cannot be opened, or another process owns it (BlockingIOError).
            StoreError: If a newer version wrote it, or another process and it is not to be taken over.
            DamagedLineError: If it is damaged.
        """
        self.path = path
        self._durable = durable
        self._head = b""
        how = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0) | (0 if take_over else os.O_CREAT)
        self._file = os.open(path, how, PRIVATE_FILE)
        try:
            _lock(self._file)
            self._size, self.last_seq, owner = self._end_of_record()
            self.epoch = 0 if owner is None else owner.epoch
            if not visits and (take_over or owner is None or owner.mark != mark):
                if owner is not None and not take_over:
                    raise StoreError(f"{path} belongs to process {owner.process[0]}, which began this run")
                self.epoch += 1
                self._head = owner_line(Owner(self.epoch, (mark.process, mark.started, mark.machine), at))
        except BaseException:
            self.close()
            raise

    def _end_of_record(self) -> tuple[int, int, Owner | None]:
        """Cut off what a crash left behind the last whole group; return the size, the last event and the last owner."""
        size = os.fstat(self._file).st_size
        whole = seq = 0
        owner: Owner | None = None
        if size:
            with open(self.path, "rb") as file:
                for position, line in read_lines(file):
                    whole, seq, owner = position, line.seq or seq, line.owner or owner
        if owner is not None and owner.version > VERSION:
            raise StoreError(f"{self.path} was written by a newer Watchkeeper; go on with that one")
        if whole < size:
            os.ftruncate(self._file, whole)
        return whole, seq, owner

    def write(self, data: bytes) -> None:
        """Append whole lines, behind the one of a new owner; they are on record when this returns.

        Raises:
            OSError: If they cannot be written, or the file was deleted or shortened; nothing is on record then.
        """
        at = os.fstat(self._file)
        if not at.st_nlink:
            raise OSError("the file was deleted while it was open; what follows would be lost")
        if at.st_size < self._size:
            raise OSError("the file was shortened while it was open; part of the record is lost")
        if at.st_size > self._size:  # part of a failed write, which could not be cut off then
            os.ftruncate(self._file, self._size)
        data = self._head + data
        try:
            written = os.write(self._file, data)
            while written < len(data):
                more = os.write(self._file, data[written:])
                if not more:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                written += more
        except OSError:
            with contextlib.suppress(OSError):  # the next write, or the next owner, cuts off what this cannot
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)
        self._head = b""
        if self._durable:
            os.fdatasync(self._file)

    @property
    def untouched(self) -> bool:
        """Whether nothing was written since it was taken over, and so the record does not show that."""
        return bool(self._head)

    def close(self) -> None:
        """Give the file up; a second call does nothing."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _lock(file: int) -> None:
    """Take the lock of a file; one that a reader has for a moment, to see whether the file is owned, is waited for.

    Raises:
        BlockingIOError: If another process keeps it.
    """
    if fcntl is None:
        return
    for _ in range(LOCK_ATTEMPTS - 1):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        SYSTEM_CLOCK.wait(threading.Event(), LOCK_PAUSE)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def held(path: Path) -> Generator[bool]:
    """Yield whether no living process owns a file; none can take it meanwhile.

    Raises:
        OSError: If it cannot be opened.
    """
    if fcntl is None:
        yield not is_owned(path)
        return
    file = os.open(path, os.O_RDWR)
    try:
        free = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(file)


def _last_owner(path: Path) -> ProcessMark | None:
    """Return the process that took a file last, if it has not put the end of the run on record since."""
    try:
        with open(path, "rb") as file:
            for line in last_lines(file):
                if line.owner is not None:
                    return line.owner.mark
                if line.tag in ENDINGS and not line.past:
                    return None
    except OSError:
        pass
    return None


def is_owned(path: Path) -> bool:
    """Return whether a living process owns a file; False if that cannot be known."""
    if fcntl is None:
        mark = _last_owner(path)
        return mark is not None and is_alive(mark)
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False
