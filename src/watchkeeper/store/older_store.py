"""Brings in the runs of a store of version 0.1, which was one SQLite file; that file stays as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import msgspec

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import StoreError
from watchkeeper.disk.liveness import own_mark
from watchkeeper.session.log import event
from watchkeeper.store.run_file import (
    MISSING,
    PRIVATE_FILE,
    SUFFIX,
    EventLine,
    Owner,
    event_line,
    opened,
    owner_line,
    reading,
)
from watchkeeper.store.plain_json import UNREADABLE
from watchkeeper.store.run_index import BEGINNINGS, RUNS
from watchkeeper.store.run_store import FOLDER_SUFFIX, is_old_store
from watchkeeper.disk.sqlite import Schema, connect_to_read, failing_as
from watchkeeper.store.upkeep import PART

if TYPE_CHECKING:
    import sqlite3

SCHEMA: Final = Schema(
    noun="store",
    application_id=0x574B5052,  # WKPR
    version=1,
    other_file="name another file",
    tables=(),
)

BUSY_SECONDS: Final = 30.0

NOTED: Final = "imported"
"""The file of a store that names the older stores whose runs it has: path and time of change, a line for each."""

_RUNS: Final = "SELECT run_id, parent_id FROM runs ORDER BY started_at, rowid"
_EVENTS: Final = "SELECT seq, at, tag, body FROM events WHERE run_id = ? ORDER BY seq"


@event("events_missing")  # MISSING
@dataclass(frozen=True, slots=True)
class EventsMissing:
    """Events of a run are missing in the older store; this stands in their place, with the number of the last one.

    Attributes:
        first: The number of the first one.
        last: The number of the last one.
    """

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of an import.

    Attributes:
        runs: How many runs were brought in, those below others included.
        there: How many were there already.
        missing: Which events are missing in a run that was brought in, in words, by its id.
        unreadable: Why each run could not be brought in that cannot be read, by its id.
    """

    runs: int
    there: int
    unreadable: Mapping[str, str]
    missing: Mapping[str, str]


def import_runs(file: Path, store: Path) -> Imported:
    """Write the runs of an older store into the folder of a store, under the same ids.

    Args:
        file: The older store; it is opened for reading only.
        store: The folder, which exists.

    Raises:
        StoreError: If the older store cannot be read, or the folder cannot be written.
    """
    if not file.is_file():
        raise StoreError(f"there is no file {file}")
    runs = there = 0
    unreadable: dict[str, str] = {}
    missing: dict[str, str] = {}
    with failing_as(f"{file} cannot be brought into {store}"):
        with closing(connect_to_read(file, SCHEMA, BUSY_SECONDS)) as older:
            older.text_factory = bytes
            parents: dict[str, str | None] = {}
            for run_id, parent in older.execute(_RUNS):
                try:
                    parents[_id(run_id)] = parent and _id(parent)
                except UNREADABLE as error:
                    unreadable[repr(run_id)] = f"it has no id, or none of what is above it: {error}"
            known = _ids_in(store)
            for run_id in parents:
                if run_id in known:
                    there += 1
                    continue
                try:
                    gaps: list[EventsMissing] = []
                    _write(store / RUNS / _name(run_id, parents), _lines(older, run_id, gaps))
                    runs += 1
                    if gaps:
                        missing[run_id] = ", ".join(f"{gap.first:,} to {gap.last:,}" for gap in gaps)
                except UNREADABLE as error:
                    unreadable[run_id] = str(error)
        with os.fdopen(opened(store / NOTED, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as noted:
            noted.write(f"{_note(file)}\n".encode("utf-8", "surrogateescape"))
    return Imported(runs, there, unreadable, missing)


def older_store(named: Path, store: Path) -> Path | None:
    """Return a store of version 0.1 whose runs are not in a store yet; None if there is none.

    Args:
        named: What was named as the store.
        store: The folder that is meant; an older store beside it with the same name counts, too.
    """
    beside = [store.with_suffix(".sqlite3")] if store.suffix == FOLDER_SUFFIX else []
    for file in dict.fromkeys((named, *beside)):
        if is_old_store(file):
            with suppress(OSError), reading(store / NOTED) as noted:
                if _note(file).encode("utf-8", "surrogateescape") in noted.read().splitlines():
                    continue
            return file
    return None


def _note(file: Path) -> str:
    return f"{file.resolve()} {file.stat().st_mtime_ns}"


def _id(value: Any) -> str:
    """Return the id of a run; it becomes the name of a file."""
    return str(UUID(value.decode()))


def _ids_in(store: Path) -> set[str]:
    return {name.removesuffix(SUFFIX).rpartition(".")[2] for name in os.listdir(store / RUNS)}


def _name(run_id: str, parents: Mapping[str, str | None]) -> str:
    """Return the name of a run's file: with the id of the run above all others, if it is below one."""
    top, passed = run_id, {run_id}
    while (above := parents[top]) is not None and above in parents and above not in passed:
        passed.add(above)
        top = above
    return f"{run_id}{SUFFIX}" if top == run_id else f"{top}.{run_id}{SUFFIX}"


def _lines(older: sqlite3.Connection, run_id: str, gaps: list[EventsMissing]) -> Iterator[bytes]:
    """Yield the lines of a run, and note where events are missing.

    Raises:
        ValueError: At an event that cannot be read.
    """
    mark, now = own_mark(), SYSTEM_CLOCK.now().isoformat()
    yield owner_line(Owner(1, (mark.process, mark.started, mark.machine), now))
    before = 0
    for seq, at, tag, body in older.execute(_EVENTS, (run_id,)):
        try:
            if type(seq) is not int or not isinstance(msgspec.json.decode(body), dict):
                raise TypeError("it is no object with a number")
            when = datetime.fromisoformat(at.decode("ascii")).isoformat()
            if seq != before + 1 and (before or tag.decode() not in BEGINNINGS):
                gaps.append(EventsMissing(before + 1, seq - 1))
                yield event_line(EventLine(seq - 1, when, MISSING, gaps[-1]))
            before = seq
            as_it_is = msgspec.Raw(msgspec.json.format(cast("bytes", body), indent=-1))
            yield event_line(EventLine(seq, when, tag.decode(), as_it_is))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"event {seq}: {error}") from error


def _write(path: Path, lines: Iterator[bytes]) -> None:
    """Write a file that is there as a whole or not at all."""
    part = path.with_name(f"{path.name}{PART}")
    with os.fdopen(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, PRIVATE_FILE), "wb") as file:
        try:
            file.writelines(lines)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    os.replace(part, path)
