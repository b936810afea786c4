"""Runs on disk: every event of every run, written while it happens, readable while it is written.

A store is a folder. Each run has a file of its own in it (`run_file`), which is the truth: what is appended there
survives a crash of the process. What lists and finds runs is an index that follows from the files (`run_index`); no
run depends on it. A reader gets rows and JSON, never live objects, so that it can show runs of programs that it cannot
import. If an event cannot be written, a note is written in its place. Reading changes no run.
"""

from __future__ import annotations

import json
import os
import shlex
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TypeVar
from uuid import UUID

import msgspec

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import StoreError
from watchkeeper.core.text import is_storable
from watchkeeper.core.type_tags import tag_of
from watchkeeper.runtime.file_record import FilesChanged, files_of_json
from watchkeeper.runtime.events import CallBegun, ManyEnded, ManyStarted, RunEnded, RunStarted
from watchkeeper.session.event_json import read_changes, read_event, read_own
from watchkeeper.session.log import Envelope
from watchkeeper.session.tagging import MARK
from watchkeeper.disk.liveness import own_mark
from watchkeeper.store.activity import Activity, activity_of
from watchkeeper.store.items import UNWRITABLE, Item, UnwrittenError, by_run_of, effect_line, line_of
from watchkeeper.disk.power import Durability, all_at_once, check_durability, store_to_disk
from watchkeeper.store.run_file import (
    MISSING,
    SUFFIX,
    DamagedLineError,
    Line,
    Mark,
    Owner,
    RunFile,
    is_owned,
    last_owner,
    opened,
    read_lines,
    reading,
)
from watchkeeper.store.plain_json import UNREADABLE, as_fields, moment, untyped
from watchkeeper.store.run_index import BEGINNINGS, RUNS, RunIndex, StoredRun
from watchkeeper.disk.sqlite import DEFAULT, chosen_file, make_folders, register

T = TypeVar("T")

VARIABLE: Final = "WATCHKEEPER_STORE"
_MARK: Final = MARK.encode()
_ANY: Final = msgspec.json.Decoder()
NO_STORE: Final = frozenset({"none", "off"})

MARKER: Final = "watchkeeper-store"
"""The file by which a folder is known as a store; it holds the version of the layout."""

VERSION: Final = "1"
MARKER_BYTES: Final = 100
"""How much of that file is read."""

FOLDER_SUFFIX: Final = ".store"
OLD_MAGIC: Final = b"SQLite format 3\x00"
OLD_PROGRAMS: Final = frozenset((b"WKPR", bytes(4)))
"""How a store of version 0.1 begins, which was one file, and what it has at byte 68: zeros until SQLite gets to it."""

ENDS: Final = frozenset({RunEnded, ManyEnded})


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """One stored event.

    Attributes:
        seq: Its number on the log.
        at: When it was recorded.
        tag: Its type.
        body: The event as typed JSON.
        changes: What reducers made of it, as typed JSON; None if none was registered for it.
        more: Whether the next event belongs to it, as what a tool wrote belongs to its result.
        names_types: Whether names of types may stand in the body.
    """

    seq: int
    at: datetime
    tag: str
    body: dict[str, Any]
    changes: list[Any] | None = None
    more: bool = False
    names_types: bool = True

    def untyped(self) -> dict[str, Any]:
        """Return the body without the names of types in it."""
        return untyped(self.body) if self.names_types else self.body

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
        changes = None if self.changes is None else read_changes(self.changes)
        return Envelope(self.seq, self.at, self.load(), changes)

    def own(self) -> Envelope:
        """Return the event with None for values of types that are not ours, and without what reducers made of it.

        Raises:
            CodecError: If its own type is not known here, or the event could not be written.
        """
        if UNWRITABLE in self.body:
            raise CodecError(f"event {self.seq} ({self.tag}) could not be written: {self.body[UNWRITABLE]}")
        read = read_own if self.names_types else read_event
        return Envelope(self.seq, self.at, read(self.tag, self.body))


class RunStore:
    """A folder of runs; safe to use from several threads, and from several processes at once.

    Attributes:
        path: The folder.
        failure: The first write that failed, if one did.
        first_run: The first run whose beginning was written through this object, or that it took over, or None.
        closed: Whether it was closed; no write works any more.
        heeds_signals: Whether this process ends its runs when a signal asks for that; the command line sets it.
        durability: What a write survives: the end of the process, or with ``power`` that of the machine, too.
    """

    def __init__(
        self, path: Path | str | None = None, *, read_only: bool = False, durability: Durability = "process"
    ) -> None:
        """Open the folder at ``path``, or the user's own, making it if it is missing.

        Args:
            path: The path of the folder; for the file of an older store, the folder beside it.
            read_only: Refuse a folder that is missing, and refuse to write runs.
            durability: With ``power``, what writes returns only once the disk has it, which may take long.

        Raises:
            ConfigurationError: For another durability.
            StoreError: If it cannot be opened or, unless ``read_only``, written.
        """
        check_durability(durability)
        found = store_path(DEFAULT if path is None else Path(path))
        if found is None:
            raise StoreError(f"{VARIABLE} says that there is no store; name a folder")
        self.path = found
        self._folder = found.absolute()  # the program may change its working folder
        self.failure: StoreError | None = None
        self.first_run: UUID | None = None
        self.closed = False
        self.heeds_signals = False
        self.durability: Durability = durability
        self._read_only = read_only
        self._lock = threading.Lock()
        self._files: dict[int, RunFile] = {}  # by the number of the run's id: Python hashes it faster
        self._names: dict[UUID, str] = {}
        self._index = RunIndex(self._folder)
        if read_only:
            _check_there(found)
        else:
            _make(found, durability)
        register(self)

    def close(self) -> None:
        """Give up the files; a second call does nothing."""
        with self._lock:
            self.closed = True
            self._close_files()

    def _close_files(self, *, at_once: bool = False) -> None:
        for file in self._files.values():
            file.close(at_once=at_once)
        self._files.clear()
        self._index.close()

    def before_fork(self) -> None:
        """Keep other threads out during a fork."""
        self._lock.acquire()
        self._index.close()

    def after_fork(self, *, child: bool) -> None:
        """Go on; a forked process gives up the files, which stay those of the process that has begun their runs."""
        if child:
            self._close_files(at_once=True)
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing --------------------------------------------------------------------------------------------------

    def has_begun(self, run_id: UUID) -> bool:
        """Whether the file of a run is open: its beginning was written here, and its end was not."""
        return run_id.int in self._files

    def append(self, batch: Sequence[Item]) -> None:
        """Write a batch of envelopes; one write for each run, and one that fails costs no other run its record.

        An envelope that is there already stays as it is. With the durability ``power`` this waits for the disk; writes
        of other threads go on meanwhile.

        Raises:
            UnwrittenError: If those of some runs cannot be written; of each run all are, or none.
        """
        by_run = by_run_of(batch)
        failures: dict[UUID, OSError | StoreError] = {}
        syncs: list[tuple[UUID, RunFile, Mark]] = []
        with self._lock:
            for run_id, items in by_run:
                try:
                    self._append(run_id, items)
                except (OSError, StoreError) as error:
                    failures[run_id] = error
            if self.durability == "power":
                written = ((run_id, self._files.get(run_id.int)) for run_id, _ in by_run)
                syncs = [(run_id, file, file.begin_sync()) for run_id, file in written if file and not file.is_synced]
        if syncs:
            failures |= self._sync(syncs)
        if self.first_run is None:
            begun = (item.run_id for item in batch if _begins(item) is not None)
            self.first_run = next((run_id for run_id in begun if run_id not in failures), None)
        if failures:
            cause = next(iter(failures.values()))
            count = sum(item.run_id in failures for item in batch)
            why = f"{count} events could not be written to {self.path}: {cause}"
            failure = UnwrittenError(why if isinstance(cause, OSError) else str(cause), frozenset(failures))
            self.failure = self.failure or failure
            raise failure from cause

    def _append(self, run_id: UUID, items: Sequence[Item]) -> None:
        if self.closed or self._read_only:
            raise OSError("it was closed" if self.closed else "it was opened for reading only")
        known = self._files.get(run_id.int)
        file = known or self._opened(run_id, items)
        last, ended, lines = file.last_seq, False, list[bytes]()
        for item in items:
            what = item.envelope
            if isinstance(what, Envelope):
                if what.seq > last:
                    lines.append(line_of(what, item.more, item.past))
                    last = what.seq
                    ended = ended or type(what.event) in ENDS
                elif last == file.last_seq:
                    lines.clear()  # what is before it is there, too: the batch is written again
            else:
                lines.append(effect_line(what))
        if lines:
            file.write(b"".join(lines), last=ended)
            file.last_seq = last
        if ended and self.durability == "power":
            file.ended = True  # closed once it is synced
        elif ended or not (known or lines):  # or it has ended before, and all of this is there
            self._files.pop(run_id.int).close()

    def _sync(self, syncs: Sequence[tuple[UUID, RunFile, Mark]]) -> dict[UUID, OSError]:
        """Wait until the disk has what was written; return the runs of which it may lack something, and why."""
        ends = all_at_once([file.sync for _, file, _ in syncs])
        failures = dict[UUID, OSError]()
        with self._lock:
            for (run_id, file, mark), end in zip(syncs, ends, strict=True):
                try:
                    file.end_sync(mark, end)
                except OSError as error:
                    failures[run_id] = error
            for number, file in tuple(self._files.items()):
                if file.ended and file.is_synced:
                    self._files.pop(number).close()
        return failures

    def _opened(self, run_id: UUID, items: Sequence[Item]) -> RunFile:
        """Take the file of a run that is written for the first time, or again after its end."""
        name = self._names.get(run_id)
        if name is None:
            begun = [event for item in items if (event := _begins(item)) is not None and not item.past]
            above = self._names.get(begun[-1].parent_run_id) if begun and begun[-1].parent_run_id else None
            name = self._names[run_id] = str(run_id) if above is None else f"{above.partition('.')[0]}.{run_id}"
        path = self._folder / RUNS / f"{name}{SUFFIX}"
        try:
            first = items[0].envelope
            at = first.at if isinstance(first, Envelope) else first.created_at
            durable = self.durability == "power"
            file = RunFile(path, own_mark(), at.isoformat(), durable=durable, heeds=self.heeds_signals)
        except DamagedLineError as error:
            raise OSError(f"{path.name}: {error}") from error
        self._files[run_id.int] = file
        return file

    def take_over(self, run_id: str) -> int:
        """Take the file of a run from the process that worked on it and has ended; return the number of its last event.

        Raises:
            StoreError: If there is no such run, or a living process works on it.
        """
        with self._used(f"the run {run_id} cannot be taken over in"):
            file = self._taken(run_id)
            self._names[UUID(run_id)] = file.path.name.removesuffix(SUFFIX)
            self._files[UUID(run_id).int] = file
            self.first_run = self.first_run or UUID(run_id)
            return file.last_seq

    def _taken(self, run_id: str, *, visits: bool = False) -> RunFile:
        path = self._index.path_of(run_id)
        if path is None:
            raise OSError("it is not there")
        try:
            if is_owned(path):
                raise BlockingIOError
            now, power = SYSTEM_CLOCK.now().isoformat(), self.durability == "power"
            heeds = self.heeds_signals
            return RunFile(path, own_mark(), now, take_over=True, visits=visits, durable=power, heeds=heeds)
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
                file.write(line_of(envelope))
                file.last_seq += 1
                if self.durability == "power":
                    mark, (end,) = file.begin_sync(), all_at_once([file.sync])
                    file.end_sync(mark, end)

        try:
            yield add
        finally:
            file.close()

    def give_up(self, prefix: str) -> None:
        """Give up the run whose id begins with ``prefix`` and those below it, if taken over and not written since."""
        with self._lock:
            for number, file in tuple(self._files.items()):
                if file.untouched and file.path.name.startswith(prefix.strip().lower()):
                    self._files.pop(number).close()

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

    def everything(self) -> tuple[tuple[StoredRun, ...], Mapping[str, Activity]]:
        """Return every run in the order they began, and by id what those that are over did themselves.

        A run below one that has ended is over, also if its process died and it was begun anew: its cost is part of the
        other's.
        """
        with self._used("runs cannot be read from"):
            runs, did = self._index.everything(), self._index.activities()
        ended = {run.run_id for _, run in runs if run.ended_at is not None}
        for name, run in runs:
            if run.run_id not in did and run.parent_id in ended and not run.running:
                did[run.run_id] = activity_of(self.path / RUNS / name)
        return tuple(run for _, run in runs), did

    def owner(self, run_id: str) -> Owner | None:
        """Return which process works on a run; None if none does, or it is not on record yet which one."""
        with self._used("runs cannot be read from"):
            path = self._index.path_of(run_id)
        return None if path is None or not is_owned(path) else last_owner(path)

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
            found = self._index.beginning_with(wanted) if wanted and is_storable(wanted) else ()
        if len(found) == 1:
            self.check(found)
            return found[0]
        if not found:
            listed = f"'watchkeeper runs --store {shlex.quote(str(self.path))}' lists them"
            raise StoreError(f"{self.path} has no run whose id begins with {prefix!r}; {listed}")
        several = ", ".join(run.run_id for run in found[:3]) + (" ..." if len(found) > 3 else "")
        said = f"{self.path} has more than one run whose id begins with {prefix!r}: {several}"
        raise StoreError(f"{said}; write more of the id")

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

        def wanted(file: BinaryIO) -> Iterator[StoredEvent]:
            lines = event_lines(file, calls=calls)
            return (event_of(line) for line in lines if line.seq > after and (past or not line.past))

        return self._read(run_id, "events", f"the run {run_id} cannot be read any further", wanted)

    def events_from(self, run_id: str, position: int, *, calls: bool = False) -> Iterator[tuple[int, StoredEvent]]:
        """Yield a run's events from a position in its file on, each with the position behind it.

        Args:
            run_id: Id of the run.
            position: 0 for the beginning, or one that was returned.
            calls: Whether to yield also the beginnings of calls (`CallBegun`), with the number 0.

        Raises:
            StoreError: At an event that is damaged.
        """

        def wanted(file: BinaryIO) -> Iterator[tuple[int, StoredEvent]]:
            for behind, line in read_lines(file, position):
                if not (line.files or line.past) and line.owner is None and (calls or not line.begun):
                    yield behind, event_of(line)

        return self._read(run_id, "events", f"the run {run_id} cannot be read any further", wanted)

    def is_owned(self, run_id: str) -> bool:
        """Return whether a living process works on a run; False if that cannot be known."""
        with self._used("runs cannot be read from"):
            path = self._index.path_of(run_id)
        return path is not None and is_owned(path)

    def files(self, run_id: str) -> Iterator[FilesChanged]:
        """Yield what a run has on record of the files that its tools were about to change, in order.

        Raises:
            StoreError: If it cannot be read.
        """

        def wanted(file: BinaryIO) -> Iterator[FilesChanged]:
            return (files_of_json(line.files) for _, line in read_lines(file) if line.files)

        return self._read(run_id, "files", f"the files of the run {run_id} cannot be read", wanted)

    def _read(self, run_id: str, what: str, damaged: str, wanted: Callable[[BinaryIO], Iterator[T]]) -> Iterator[T]:
        """Yield what ``wanted`` reads in a run's file, nothing if there is no such run.

        Args:
            run_id: Id of the run.
            what: What is read, for the error of a store that cannot be used.
            damaged: What to say of a file that cannot be read.
            wanted: Reads the open file.
        """
        with self._used(f"{what} cannot be read from"):
            path = self._index.path_of(run_id)
        if path is None:
            return
        try:
            with reading(path) as file:
                yield from wanted(file)
        except (OSError, *UNREADABLE) as error:
            raise self._damaged(f"{damaged}: {error}") from error

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
        if line.seq != before + 1 and (before or line.tag not in BEGINNINGS) and line.tag != MISSING:
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
            call = as_fields(_json(bytes(line.begun)))
            return StoredEvent(line.seq, moment(call["created_at"]), tag_of(CallBegun), call)
        text = bytes(line.body)
        body, at = as_fields(_json(text)), moment(line.at)
        changes = _json(bytes(line.changes)) if line.changes else None
        return StoredEvent(line.seq, at, line.tag, body, changes, line.more, _MARK in text)
    except UNREADABLE as error:
        raise DamagedLineError(f"event {line.seq} cannot be read ({error})") from error


def _json(data: bytes) -> Any:
    """Return what JSON says; the fast reader refuses some of what Python writes: lone surrogates, infinite numbers."""
    try:
        return _ANY.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


def _begins(item: Item) -> RunStarted | ManyStarted | None:
    """Return the event with which a run begins, if an item holds it."""
    event: object = item.envelope.event if isinstance(item.envelope, Envelope) else None
    return event if isinstance(event, RunStarted | ManyStarted) else None


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
        raise StoreError(f"there is no store {path} yet; a run makes it ('watchkeeper run'), or name another folder")
    try:
        with reading(path / MARKER) as file:
            version = file.read(MARKER_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is not the folder of a store; name another one") from error
    if version != VERSION:
        raise StoreError(
            f"the store {path} has the layout {version!r}, this Watchkeeper writes {VERSION}; name another folder, or"
            " use the Watchkeeper that wrote it"
        )


def _make(path: Path, durability: Durability = "process") -> None:
    """Make the folder of a store, for this user alone, unless it is there already; others may make it just now, too.

    Raises:
        StoreError: If that is not possible, or something else has that name.
    """
    advice = f"name another folder (store=..., --store, {VARIABLE}), or run without one (store=None, --store none)"
    made = [folder for folder in (path, *path.parents) if not folder.exists()] if durability == "power" else []
    try:
        if not (path / MARKER).exists():
            if path.is_file():
                raise StoreError(f"{path} is a file and is not a store; {advice}")
            if path.is_dir() and _holds_other_things(path):
                raise StoreError(f"the folder {path} holds other things and is not a store; {advice}")
            make_folders(path / RUNS)
            new = path / f"{MARKER}.{os.getpid()}.{threading.get_ident()}"
            with os.fdopen(opened(new, os.O_WRONLY | os.O_CREAT), "wb") as file:
                file.write(f"{VERSION}\n".encode())
            os.replace(new, path / MARKER)  # whoever opens the store meanwhile finds all of it or nothing
        if not os.access(path / RUNS, os.W_OK):
            raise PermissionError(f"{path / RUNS} cannot be written")
        if durability == "power":
            store_to_disk(path, (RUNS, MARKER), made)
    except OSError as error:
        raise StoreError(f"the store {path} cannot be used: {error}; {advice}") from error
    _check_there(path)


def _holds_other_things(path: Path) -> bool:
    """Return whether a folder is neither a store nor what a process leaves that makes one, or that died over it."""
    for name in os.listdir(path):
        is_part = name.startswith(f"{MARKER}.") or (name == RUNS and not os.listdir(path / RUNS))
        if not is_part:  # perhaps a run in a store that was finished meanwhile: its marker came before
            return not (path / MARKER).exists()
    return False
