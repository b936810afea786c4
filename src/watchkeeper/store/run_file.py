"""The record of one run on disk: an append-only file of JSON lines with checksums, written by one process at a time.

A line is an event (``seq``, ``at``, ``tag``, ``body``), or says that a call begins (``begun``), which files are about
to change (``files``), or which process owns the file from there on (``owner``). A line with ``"more": true`` belongs
together with the next one: a group is on record as a whole or not at all. What a crash leaves behind the last whole
line is ignored by readers and cut off by the next owner. A `write` that succeeded survives the death of the process;
only after `sync` does it survive that of the machine. Owning is a lock of the operating system on the open file
(flock), which ends with the process, so a dead owner is told from a slow one. Where there is no such lock, the last
owner is asked for by its mark.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast
from zlib import crc32

import msgspec

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import StoreError
from watchkeeper.disk.liveness import ProcessMark, is_alive
from watchkeeper.disk.power import folder_to_disk, to_disk

try:
    import fcntl
except ImportError:  # Windows: there, the line of the last owner says which process it was, and `liveness` if it runs
    fcntl = None  # type: ignore[assignment]

VERSION: Final = 1
"""Version of the lines; a file with a higher one is refused."""

ENDINGS: Final = frozenset({"run_ended", "many_ended"})
"""Tags of a run's last event."""

MISSING: Final = "events_missing"
"""Tag of the event that takes the place of others, and has the number of the last of them; see `older_store`."""

OWNED: Final = b'{"owner":'
ENDED: Final = tuple(f'"tag":"{tag}"'.encode() for tag in sorted(ENDINGS))
"""What a line begins with that names an owner, and what is in one that holds a run's last event."""

SUFFIX: Final = ".jsonl"
LOG_SUFFIX: Final = ".log"
"""How the name of the file ends that has what a detached run prints; it stands beside the record, and goes with it."""

PRIVATE_FILE: Final = 0o600

CHECKED: Final = b',"crc":"%08x"}\n'
TAIL: Final = len(CHECKED % 0)
"""How many bytes the checksum and what follows it take at the end of every line."""

LOOK_EVERY: Final = 0.02
"""A write looks first whether the file was deleted or shortened, unless one has looked in the last so many seconds."""

CHUNK: Final = 1 << 18

MOST_LINE: Final = 1 << 29
"""Bytes of the longest line; nothing longer is written, and no reader looks for the end of one in a damaged file."""

FILE_ONLY: Final[int] = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Opens no link, which would lead out of the store, and waits for nobody, as a pipe would."""

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
        heeds: Whether the process ends its run when a signal asks for that, as the command line does; False for a
            program of the user's own, which may do something else then.
    """

    epoch: int
    process: tuple[int, str, str]
    at: str
    version: int = VERSION
    heeds: bool = False

    @property
    def mark(self) -> ProcessMark:
        """The identity of the process."""
        return ProcessMark(*self.process)


class Line(msgspec.Struct, frozen=True):
    """One line of a file as read: an event, the beginning of a call, changes of files, or an owner.

    Attributes:
        seq: The event's number on its log; 0 for what is none.
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


class EventLine(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The line of an event as written: the fields of `Line`, with a body that is encoded together with the others."""

    seq: int
    at: datetime | str
    tag: str
    body: object
    changes: msgspec.Raw | None = None
    more: bool = False
    past: bool = False


def event_line(event: EventLine) -> bytes:
    """Return the line of an event.

    Raises:
        TypeError: If something in its body has no JSON form; also ValueError and RecursionError.
    """
    return _sealed(_ENCODER.encode(event)[:-1])


def begun_line(call: object) -> bytes:
    """Return the line that says that a call begins."""
    return _sealed(b'{"begun":' + _ENCODER.encode(call))


def files_line(changes: object) -> bytes:
    """Return the line that says which files are about to change."""
    return _sealed(b'{"files":' + _ENCODER.encode(changes))


def owner_line(owner: Owner) -> bytes:
    """Return the line that says which process writes from here on."""
    return _sealed(OWNED + _ENCODER.encode(owner))


def opened(path: Path, how: int = os.O_RDONLY) -> int:
    """Open a file of a store, and nothing else that has its name.

    Raises:
        OSError: If it cannot be opened, or is a link, a pipe, a device or a folder.
    """
    try:
        file = os.open(path, how | FILE_ONLY, PRIVATE_FILE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "this is a symbolic link, which is not followed", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "this is no file", str(path))
    return file


def reading(path: Path) -> BinaryIO:
    """Open a file of a store for reading; see `opened`."""
    return cast("BinaryIO", os.fdopen(opened(path), "rb"))


def raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, whole or not.

    Raises:
        DamagedLineError: At a line that is longer than any that is written.
    """
    try:
        while raw := file.readline(MOST_LINE):
            if len(raw) == MOST_LINE:
                raise DamagedLineError(f"it has a line of more than {MOST_LINE:,} bytes")
            yield raw
    except MemoryError:
        raise DamagedLineError("it has a line for which there is not enough memory") from None


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
    for raw in raw_lines(file):
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
        if not group and not line.more:  # nearly every one
            yield position, line
            continue
        group.append((position, line))
        if not line.more:
            yield from group
            group.clear()


def last_lines(file: BinaryIO, wanted: Sequence[bytes] = (b"",)) -> Iterator[Line]:
    """Yield whole lines from the end of a file backwards; what a crash left behind them is passed over.

    Args:
        file: The file, open for reading.
        wanted: Parts of a file in which none of these bytes stand are passed over.
    """
    end = file.seek(0, os.SEEK_END)
    rest, chunk = b"", CHUNK
    while end > 0 and chunk <= MOST_LINE:
        begin = max(0, end - chunk)
        file.seek(begin)
        data = file.read(end - begin) + rest
        *lines, rest_of_last = data.split(b"\n", -1 if any(each in data for each in wanted) else 1)
        if begin:
            # A line of many megabytes is not joined chunk by chunk.
            chunk = CHUNK if len(lines) > 1 or (lines and rest_of_last) else 2 * chunk
            rest = lines.pop(0) + b"\n" if lines else rest_of_last
        end = begin
        for raw in reversed(lines):
            if is_whole(raw + b"\n"):
                with contextlib.suppress(msgspec.DecodeError, RecursionError):
                    yield _LINE.decode(raw)


class Mark(NamedTuple):
    """A place in a file that this process owns.

    Attributes:
        size: Bytes before it.
        last_seq: Number of the last event before it.
        head: The line of a new owner, if it is not written yet.
        failed_syncs: How many syncs have failed before.
    """

    size: int
    last_seq: int
    head: bytes
    failed_syncs: int = 0


class RunFile:
    """A file that this process owns and appends to.

    Attributes:
        path: The file.
        epoch: How often the run was begun or taken over.
        last_seq: The number of the newest event in it.
        ended: Whether it is to be closed once it is synced.
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
        heeds: bool = False,
    ) -> None:
        """Take a file, and make it if a run begins with it.

        Args:
            path: The file; its folder must exist, and it too if it is taken over.
            mark: The identity of this process.
            at: The time, in ISO format.
            take_over: Whether to take it from a process that has ended.
            visits: Whether to hold it without becoming its owner.
            durable: Whether it will be synced; what is in it already is on the disk when this returns.
            heeds: See `Owner`.

        Raises:
            OSError: If it cannot be opened, or another process owns it (BlockingIOError).
            StoreError: If a newer version wrote it, or another process and it is not to be taken over.
            DamagedLineError: If it is damaged.
        """
        self.path = path
        self._head = b""
        self._syncing = self._failed_syncs = 0
        self._unlisted, self._closing, self.ended = durable, False, False
        self._torn = False
        self._look_at = 0.0
        self._file = opened(path, os.O_RDWR | os.O_APPEND | (0 if take_over else os.O_CREAT))
        try:
            _lock(self._file)
            self._size, self.last_seq, owner = self._end_of_record()
            if durable and self._size:
                to_disk(self._file)
            self.epoch = 0 if owner is None else owner.epoch
            if not visits and (take_over or owner is None or owner.mark != mark):
                if owner is not None and not take_over:
                    raise StoreError(f"{path} belongs to process {owner.process[0]}, which began this run")
                self.epoch += 1
                process = (mark.process, mark.started, mark.machine)
                self._head = owner_line(Owner(self.epoch, process, at, heeds=heeds))
            self._synced = Mark(self._size, self.last_seq, self._head)
        except BaseException:
            self.close()
            raise

    def _end_of_record(self) -> tuple[int, int, Owner | None]:
        """Cut off what a crash left behind the last whole group; return the size, the last event and the last owner."""
        size = os.fstat(self._file).st_size
        whole = seq = 0
        owner: Owner | None = None
        if size:
            with reading(self.path) as file:
                for position, line in read_lines(file):
                    whole, seq, owner = position, line.seq or seq, line.owner or owner
        if owner is not None and owner.version > VERSION:
            raise StoreError(f"{self.path} was written by a newer Watchkeeper; go on with that one")
        if whole < size:
            os.ftruncate(self._file, whole)
        return whole, seq, owner

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Append whole lines, behind the one of a new owner; they are on record when this returns.

        A file that was deleted or shortened is noticed within `LOOK_EVERY`, and when the last lines are written.

        Raises:
            OSError: If they cannot be written, or the file was deleted or shortened; nothing is on record then.
        """
        now = SYSTEM_CLOCK.monotonic()
        if last or self._torn or now >= self._look_at:
            self._look()
            self._look_at = now + LOOK_EVERY
        data = self._head + data
        self._torn = True
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
        self._head, self._torn = b"", False

    def begin_sync(self) -> Mark:
        """Return up to where the next `sync` reaches; the file stays open until `end_sync`."""
        self._syncing += 1
        return Mark(self._size, self.last_seq, self._head, self._failed_syncs)

    def sync(self) -> None:
        """Return once the disk has what was written; it may take long, and other threads may write meanwhile.

        Raises:
            OSError: If that is not certain.
        """
        if self._unlisted:
            folder_to_disk(self.path.parent)
        to_disk(self._file)

    def end_sync(self, mark: Mark, failure: OSError | None) -> None:
        """Take note of how a sync has ended; if it failed, what the disk may lack is taken back, to be written anew.

        Trying to sync the same once more would say that all is well, although the disk does not have it.

        Raises:
            OSError: If the disk may not have what was written up to the mark.
        """
        self._syncing -= 1
        if failure is None and mark.failed_syncs != self._failed_syncs:
            failure = OSError(errno.EIO, "what was written before it did not reach the disk")
        elif failure is None:
            self._unlisted = False
            self._synced = max(self._synced, mark)
        else:
            self._failed_syncs += 1
            self._size, self.last_seq, self._head, _ = self._synced
            self.ended = False
            with contextlib.suppress(OSError):  # the next write, or the next owner, cuts off what this cannot
                os.ftruncate(self._file, self._size)
        if self._closing:
            self.close()
        if failure is not None:
            raise failure

    @property
    def is_synced(self) -> bool:
        """Whether the disk has all that was written."""
        return self._synced.size == self._size

    def _look(self) -> None:
        """Refuse a file that was deleted or shortened; cut off what a failed write has left in it."""
        at = os.fstat(self._file)
        if not at.st_nlink:
            raise OSError("the file was deleted while it was open; what follows would be lost")
        if at.st_size < self._size:
            raise OSError("the file was shortened while it was open; part of the record is lost")
        if at.st_size > self._size:
            os.ftruncate(self._file, self._size)

    @property
    def untouched(self) -> bool:
        """Whether nothing was written since it was taken over, and so the record does not show that."""
        return bool(self._head)

    def close(self, *, at_once: bool = False) -> None:
        """Give the file up, after a sync that is under way unless ``at_once``; a second call does nothing."""
        self._closing = True
        if self._syncing and not at_once:
            return
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
    file = opened(path, os.O_RDWR)
    try:
        free = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(file)


def last_owner(path: Path) -> Owner | None:
    """Return the process that took a file last, if it has not put the end of the run on record since."""
    try:
        with reading(path) as file:
            for line in last_lines(file, (OWNED, *ENDED)):
                if line.owner is not None:
                    return line.owner
                if line.tag in ENDINGS and not line.past:
                    return None
    except OSError:
        pass
    return None


def is_owned(path: Path) -> bool:
    """Return whether a living process owns a file; False if that cannot be known."""
    if fcntl is None:
        owner = last_owner(path)
        return owner is not None and is_alive(owner.mark)
    try:
        file = opened(path)
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
