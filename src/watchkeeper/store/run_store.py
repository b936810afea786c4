"""Runs on disk: every event of every run, written while it happens, readable while it is written.

A store is a folder. Each run has a file of its own in it (`run_file`), which is the truth: what is appended there
survives a crash of the process. What lists and finds runs is an index that follows from the files (`run_index`); no
run depends on it. A reader gets rows and JSON, never live objects, so that it can show runs of programs that it cannot
import. If an event cannot be written, a note is written in its place. Reading changes no run.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self, cast
from uuid import UUID

import msgspec

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.codec import CodecError, encode
from watchkeeper.core.errors import StoreError
from watchkeeper.core.secrets import HELD, redacted
from watchkeeper.core.text import logger
from watchkeeper.core.type_tags import tag_of
from watchkeeper.runtime.file_record import FilesChanged
from watchkeeper.runtime.events import CallBegun, ManyEnded, ManyStarted, RunEnded, RunStarted
from watchkeeper.session.event_json import read_event, write_event
from watchkeeper.session.log import Envelope
from watchkeeper.session.tagging import dump, load
from watchkeeper.disk.liveness import own_mark
from watchkeeper.store.run_file import (
    SUFFIX,
    DamagedLineError,
    Line,
    RunFile,
    begun_line,
    event_line,
    files_line,
    is_owned,
    read_lines,
)
from watchkeeper.store.run_index import BEGINNINGS, RUNS, UNREADABLE, RunIndex, StoredRun, as_fields, moment
from watchkeeper.disk.sqlite import DEFAULT, chosen_file, make_folders, register

VARIABLE: Final = "WATCHKEEPER_STORE"
NO_STORE: Final = frozenset({"none", "off"})

MARKER: Final = "watchkeeper-store"
"""The file by which a folder is known as a store; it holds the version of the layout."""

VERSION: Final = "1"
FOLDER_SUFFIX: Final = ".store"
OLD_MAGIC: Final = b"SQLite format 3\x00"
OLD_PROGRAMS: Final = frozenset((b"WKPR", bytes(4)))
"""How a store of version 0.1 begins, which was one file, and what it has at byte 68: zeros until SQLite gets to it."""

UNWRITABLE: Final = "$unwritable"

ENDS: Final = frozenset({RunEnded, ManyEnded})

_ENCODER: Final = msgspec.json.Encoder()
_FILES: Final = msgspec.json.Decoder(FilesChanged)


class Item(NamedTuple):
    """One envelope, or what is about to begin, on its way to the store.

    Attributes:
        run_id: Its run.
        envelope: The event with its number and time; or a call, or changes of files, which are no events of the
            session's log.
        more: Whether the next one of the same run belongs to it: they are on record together or not at all.
        past: Whether it is from before the run.
    """

    run_id: UUID
    envelope: Envelope | CallBegun | FilesChanged
    more: bool = False
    past: bool = False


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One stored event.

    Attributes:
        seq: Its number on the log.
        at: When it was recorded.
        tag: Its type.
        body: The event as typed JSON.
        changes: What reducers made of it, as typed JSON; None if none was registered for it.
        more: Whether the next event belongs to it, as what a tool wrote belongs to its result.
    """

    seq: int
    at: datetime
    tag: str
    body: dict[str, Any]
    changes: list[Any] | None = None
    more: bool = False

    def load(self) -> Any:
        """Return the event as a value; its type must have been imported.

        Raises:
            CodecError: If a type in it is not known here, or the event could not be written.
        """
        if UNWRITABLE in self.body:
            raise CodecError(f"event {self.seq} ({self.tag}) could not be written: {self.body[UNWRITABLE]}")
        return read_event(self.tag, self.body)

    def envelope(self) -> Envelope:
        """Return the event as it was on the log; its types must have been imported.

        Raises:
            CodecError: If a type in it is not known here, or the event could not be written.
        """
        changes = None if self.changes is None else tuple(map(load, self.changes))
        return Envelope(self.seq, self.at, self.load(), changes)


class RunStore:
    """A folder of runs; safe to use from several threads, and from several processes at once.

    Attributes:
        path: The folder.
        failure: The first write that failed, if one did.
        first_run: The first run whose beginning was written through this object, or that it took over, or None.
        closed: Whether it was closed; no write works any more.
    """

    def __init__(self, path: Path | str | None = None, *, read_only: bool = False) -> None:
        """Open the folder at ``path``, or the user's own, making it if it is missing.

        Args:
            path: The path of the folder; for the file of an older store, the folder beside it.
            read_only: Refuse a folder that is missing, and refuse to write runs.

        Raises:
            StoreError: If it cannot be opened or, unless ``read_only``, written.
        """
        found = store_path(DEFAULT if path is None else Path(path))
        if found is None:
            raise StoreError(f"{VARIABLE} says that there is no store; name a folder")
        self.path = found
        self._folder = found.absolute()  # the program may change its working folder
        self.failure: StoreError | None = None
        self.first_run: UUID | None = None
        self.closed = False
        self._read_only = read_only
        self._lock = threading.Lock()
        self._files: dict[UUID, RunFile] = {}
        self._names: dict[UUID, str] = {}
        self._index = RunIndex(self._folder)
        if read_only:
            _check_there(found)
        else:
            _make(found)
        register(self)

    def close(self) -> None:
        """Give up the files; a second call does nothing."""
        with self._lock:
            self.closed = True
            self._close_files()

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._index.close()

    def before_fork(self) -> None:
        """Keep other threads out during a fork."""
        self._lock.acquire()
        self._index.close()

    def after_fork(self, *, child: bool) -> None:
        """Go on; a forked process gives up the files, which stay those of the process that has begun their runs."""
        if child:
            self._close_files()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, batch: Sequence[Item | tuple[UUID, Envelope]]) -> None:
        """Write a batch of envelopes, each with the id of its run; one write for each run.

        An envelope that is there already stays as it is.

        Raises:
            StoreError: If they cannot be written; those of each run all are, or none.
        """
        by_run: dict[UUID, list[Item]] = {}
        items: list[Item] = []
        last = None
        for each in batch:  # the file whose last event is older is written first: a child's end before its parent's
            item = each if isinstance(each, Item) else Item(*each)
            if item.run_id is not last:
                last = item.run_id
                items = by_run.pop(last, [])
                by_run[last] = items
            items.append(item)
        with self._lock:
            try:
                if self.closed or self._read_only:
                    raise OSError("it was closed" if self.closed else "it was opened for reading only")
                for run_id, items in by_run.items():
                    self._append(run_id, items)
            except (OSError, StoreError) as error:
                failure = error
                if isinstance(failure, OSError):
                    failure = StoreError(f"{len(batch)} events could not be written to {self.path}: {error}")
                self.failure = self.failure or failure
                raise failure from error
        if self.first_run is None:
            begun = (each[0] for each in batch if isinstance(getattr(each[1], "event", None), RunStarted | ManyStarted))
            self.first_run = next(begun, None)

    def _append(self, run_id: UUID, items: Sequence[Item]) -> None:
        file = self._files.get(run_id) or self._opened(run_id, items)
        last, ended, lines = file.last_seq, False, list[bytes]()
        for item in items:
            envelope = item.envelope
            if isinstance(envelope, CallBegun):
                lines.append(begun_line(_ENCODER.encode(envelope)))
            elif isinstance(envelope, FilesChanged):
                lines.append(files_line(_ENCODER.encode(envelope)))
            elif envelope.seq > last:
                lines.append(_line(item, envelope))
                last = envelope.seq
                ended = ended or type(envelope.event) in ENDS
        if lines:
            file.write(b"".join(lines))
            file.last_seq = last
        if ended:
            self._files.pop(run_id).close()

    def _opened(self, run_id: UUID, items: Sequence[Item]) -> RunFile:
        """Take the file of a run that is written for the first time, or again after its end."""
        name = self._names.get(run_id)
        if name is None:
            parent = None
            for item in items:
                event: object = item.envelope.event if isinstance(item.envelope, Envelope) else None
                if isinstance(event, RunStarted | ManyStarted) and not item.past:
                    parent = event.parent_run_id
            above = None if parent is None else self._names.get(parent)
            name = self._names[run_id] = str(run_id) if above is None else f"{above.partition('.')[0]}.{run_id}"
        path = self._folder / RUNS / f"{name}{SUFFIX}"
        try:
            first = items[0].envelope
            at = first.at if isinstance(first, Envelope) else first.created_at
            file = RunFile(path, own_mark(), at.isoformat())
        except DamagedLineError as error:
            raise OSError(f"{path.name}: {error}") from error
        self._files[run_id] = file
        return file

    def take_over(self, run_id: str) -> int:
        """Take the file of a run from the process that worked on it and has ended; return the number of its last event.

        Raises:
            StoreError: If there is no such run, or a living process works on it.
        """
        with self._used(f"the run {run_id} cannot be taken over in"):
            file = self._taken(run_id)
            self._names[UUID(run_id)] = file.path.name.removesuffix(SUFFIX)
            self._files[UUID(run_id)] = file
            self.first_run = self.first_run or UUID(run_id)
            return file.last_seq

    def _taken(self, run_id: str, *, visits: bool = False) -> RunFile:
        path = self._index.path_of(run_id)
        if path is None:
            raise OSError("it is not there")
        try:
            if is_owned(path):
                raise BlockingIOError
            return RunFile(path, own_mark(), SYSTEM_CLOCK.now().isoformat(), take_over=True, visits=visits)
        except BlockingIOError as error:
            raise StoreError(f"the run {run_id} is running: a living process works on it") from error
        except DamagedLineError as error:
            raise OSError(str(error)) from error

    @contextmanager
    def visited(self, run_id: str) -> Generator[Callable[[Any], None]]:
        """Keep every process from a run on which none works; yields a function that adds an event to its record.

        Raises:
            StoreError: If there is no such run, a living process works on it, or it cannot be written.
        """
        failed = f"the run {run_id} cannot be written in"
        with self._used(failed):
            if self._read_only:
                raise OSError("it was opened for reading only")
            file = self._taken(run_id, visits=True)

        def add(event: Any) -> None:
            envelope = Envelope(file.last_seq + 1, SYSTEM_CLOCK.now(), event)
            with self._used(failed):
                file.write(_line(Item(UUID(run_id), envelope), envelope))
            file.last_seq += 1

        try:
            yield add
        finally:
            file.close()

    def give_up(self, prefix: str) -> None:
        """Give up the run whose id begins with ``prefix`` and those below it, if taken over and not written since."""
        with self._lock:
            for run_id, file in tuple(self._files.items()):
                if file.untouched and file.path.name.startswith(prefix.strip().lower()):
                    self._files.pop(run_id).close()

    @contextmanager
    def _used(self, what: str) -> Generator[None]:
        """Keep other threads out, refuse a closed store, and turn errors into StoreError."""
        with self._lock:
            try:
                if self.closed:
                    raise OSError("it was closed")
                yield
            except OSError as error:
                raise StoreError(f"{what} {self.path}: {error}") from error

    # -- reading --------------------------------------------------------------------------------------------------

    def runs(self, limit: int = 50) -> tuple[StoredRun, ...]:
        """Return the newest runs that have no parent, newest first; one whose file is damaged says so itself."""
        with self._used("runs cannot be read from"):
            return self._index.newest(limit)

    def children(self, run_id: str) -> tuple[StoredRun, ...]:
        """Return the runs below a run, in the order they began: the items of a run over many, subagents, judges."""
        with self._used("runs cannot be read from"):
            return self._index.children(run_id)

    def stopped_by(self, reason: str) -> tuple[StoredRun, ...]:
        """Return all runs but those over many that a stop of this reason has ended, in the order they began."""
        with self._used("runs cannot be read from"):
            return self._index.stopped_by(reason)

    def find(self, prefix: str) -> StoredRun:
        """Return the one run whose id begins with ``prefix``.

        Raises:
            StoreError: If there is none, or more than one, or its file is damaged.
        """
        wanted = prefix.strip().lower()
        with self._used("runs cannot be read from"):
            found = self._index.beginning_with(wanted) if wanted else ()
        if len(found) == 1:
            self.check(found)
            return found[0]
        if not found:
            raise StoreError(f"{self.path} has no run whose id begins with {prefix!r}; 'watchkeeper runs' lists them")
        several = ", ".join(run.run_id for run in found[:3]) + (" ..." if len(found) > 3 else "")
        raise StoreError(f"{self.path} has more than one run whose id begins with {prefix!r}: {several}")

    def check(self, runs: Iterable[StoredRun]) -> None:
        """Refuse runs whose files are damaged.

        Raises:
            StoreError: Naming the store, the first such run, and what to do.
        """
        for run in runs:
            if run.damage is not None:
                raise self._damaged(f"the run {run.run_id} cannot be read ({run.damage})")

    def events(self, run_id: str, after: int = 0, *, past: bool = False, calls: bool = False) -> Iterator[StoredEvent]:
        """Yield a run's events in order, those with a sequence number above ``after``.

        Call it again with the last sequence number to get the events written since.

        Args:
            run_id: Id of the run.
            after: Number of the last event that is not wanted.
            past: Whether to begin with the events that its session had before the run.
            calls: Whether to yield also the beginnings of calls (`CallBegun`), each with the number of the event before
                it; they are no events of the session.

        Raises:
            StoreError: At an event that is damaged, or before which others are missing.
        """
        with self._used("events cannot be read from"):
            path = self._index.path_of(run_id)
        if path is None:
            return
        try:
            with open(path, "rb") as file:
                for line in event_lines(file, calls=calls):
                    if line.seq > after and (past or not line.past):
                        yield event_of(line)
        except (OSError, *UNREADABLE) as error:
            raise self._damaged(f"the run {run_id} cannot be read any further: {error}") from error

    def files(self, run_id: str) -> Iterator[FilesChanged]:
        """Yield what a run has on record of the files that its tools were about to change, in order.

        Raises:
            StoreError: If it cannot be read.
        """
        with self._used("files cannot be read from"):
            path = self._index.path_of(run_id)
        if path is None:
            return
        try:
            with open(path, "rb") as file:
                for _, line in read_lines(file):
                    if line.files:
                        yield _FILES.decode(line.files)
        except (OSError, msgspec.DecodeError, *UNREADABLE) as error:
            raise self._damaged(f"the files of the run {run_id} cannot be read: {error}") from error

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"{self.path}: {what}; other runs can be read")


def event_lines(file: BinaryIO, *, calls: bool = False) -> Iterator[Line]:
    """Yield the lines of a file that hold events.

    Args:
        file: The file.
        calls: Whether to yield also the beginnings of calls, each with the number of the event before it.

    Raises:
        DamagedLineError: If one is damaged, or others are missing before it.
    """
    before = 0
    for _, line in read_lines(file):
        if line.begun:
            if calls:
                yield msgspec.structs.replace(line, seq=before)
            continue
        if line.owner is not None or line.files:
            continue
        if line.seq != before + 1 and (before or line.tag not in BEGINNINGS):
            raise DamagedLineError(f"events before event {line.seq} are missing")
        before = line.seq
        yield line


def event_of(line: Line) -> StoredEvent:
    """Return the event of a line, or the call that begins.

    Raises:
        DamagedLineError: If it cannot be read.
    """
    try:
        if line.begun:
            call = as_fields(json.loads(bytes(line.begun)))
            return StoredEvent(line.seq, moment(call["created_at"]), tag_of(CallBegun), call)
        changes, body = bytes(line.changes), as_fields(json.loads(bytes(line.body)))
        at = moment(line.at)
        return StoredEvent(line.seq, at, line.tag, body, json.loads(changes) if changes else None, line.more)
    except UNREADABLE as error:
        raise DamagedLineError(f"event {line.seq} cannot be read ({error})") from error


def _line(item: Item, envelope: Envelope) -> bytes:
    """Return an event's line; with a note in place of the event if it cannot be written, so that the others are."""
    seq, at, event = envelope.seq, envelope.at.isoformat(), cast("object", envelope.event)
    tag, changes = tag_of(type(event)), envelope.changes
    changed = ""
    try:
        body = HELD.redacted_json(write_event(event).decode())
        if changes is not None:
            changed = HELD.redacted_json(encode([dump(change) for change in changes]).decode())
    except Exception as error:
        said = redacted(f"{type(error).__name__}: {error}")
        logger().warning("event.unwritable", seq=seq, event_type=tag, error=said)
        body = json.dumps({UNWRITABLE: said})
    return event_line(seq, at, tag, body.encode(), changed.encode(), more=item.more, past=item.past)


def store_path(where: Path | str | None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the folder that ``where`` means: a path, ``none`` for no store, or ``default`` for the user's own.

    The user's own is what ``WATCHKEEPER_STORE`` names (which may be ``none``), else a folder in the user's data folder.
    The file of an older store means the folder beside it, named alike.
    """
    path = chosen_file(where, VARIABLE, f"runs{FOLDER_SUFFIX}", NO_STORE, environ)
    return path.with_suffix(FOLDER_SUFFIX) if path is not None and is_old_store(path) else path


def is_old_store(path: Path) -> bool:
    """Return whether a path is the file of a store of version 0.1, which held all runs."""
    try:
        with open(path, "rb") as file:
            head = file.read(72)
    except OSError:
        return False
    return head.startswith(OLD_MAGIC) and head[68:] in OLD_PROGRAMS


def _check_there(path: Path) -> None:
    """Refuse what is no store.

    Raises:
        StoreError: With what to do.
    """
    if not path.exists():
        raise StoreError(f"there is no store {path} yet; 'watchkeeper run' makes it, or name another one with --store")
    try:
        version = (path / MARKER).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is not the folder of a store; name another one (--store)") from error
    if version != VERSION:
        raise StoreError(
            f"the store {path} has the layout {version!r}, this Watchkeeper writes {VERSION}; name another folder, or"
            " use the Watchkeeper that wrote it"
        )


def _make(path: Path) -> None:
    """Make the folder of a store, for this user alone, unless it is there already.

    Raises:
        StoreError: If that is not possible, or something else has that name.
    """
    advice = f"name another folder (store=..., --store, {VARIABLE}), or run without one (store=None, --store none)"
    try:
        if not (path / MARKER).exists():
            if path.is_dir() and any(path.iterdir()):
                raise StoreError(f"the folder {path} holds other things and is not a store; {advice}")
            make_folders(path / RUNS)
            new = path / f"{MARKER}.{os.getpid()}.{threading.get_ident()}"
            new.write_text(f"{VERSION}\n", "utf-8")
            os.replace(new, path / MARKER)  # whoever opens the store meanwhile finds all of it or nothing
        if not os.access(path / RUNS, os.W_OK):
            raise PermissionError(f"{path / RUNS} cannot be written")
    except OSError as error:
        raise StoreError(f"the store {path} cannot be used: {error}; {advice}") from error
    _check_there(path)
