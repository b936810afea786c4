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
from watchkeeper.store.run_file import PRIVATE_FILE, SUFFIX, Owner, event_line, owner_line
from watchkeeper.store.run_index import RUNS
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


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of an import.

    Attributes:
        runs: How many runs were brought in, those below others included.
        there: How many were there already.
        unreadable: Why each run could not be brought in that cannot be read, by its id.
    """

    runs: int
    there: int
    unreadable: Mapping[str, str]


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
    with failing_as(f"{file} cannot be brought into {store}"):
        with closing(connect_to_read(file, SCHEMA, BUSY_SECONDS)) as older:
            older.text_factory = bytes
            parents = {_id(run_id): parent and _id(parent) for run_id, parent in older.execute(_RUNS)}
            known = _ids_in(store)
            for run_id in parents:
                if run_id in known:
                    there += 1
                    continue
                try:
                    _write(store / RUNS / _name(run_id, parents), _lines(older, run_id))
                    runs += 1
                except (ValueError, TypeError, LookupError) as error:
                    unreadable[run_id] = str(error)
        with (store / NOTED).open("a", encoding="utf-8") as noted:
            noted.write(f"{_note(file)}\n")
    return Imported(runs, there, unreadable)


def older_store(named: Path, store: Path) -> Path | None:
    """Return a store of version 0.1 whose runs are not in a store yet; None if there is none.

    Args:
        named: What was named as the store.
        store: The folder that is meant; an older store beside it with the same name counts, too.
    """
    beside = [store.with_suffix(".sqlite3")] if store.suffix == FOLDER_SUFFIX else []
    for file in dict.fromkeys((named, *beside)):
        if is_old_store(file):
            with suppress(OSError, UnicodeDecodeError):
                if _note(file) in (store / NOTED).read_text("utf-8").splitlines():
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


def _lines(older: sqlite3.Connection, run_id: str) -> Iterator[bytes]:
    """Yield the lines of a run.

    Raises:
        ValueError: At an event that cannot be read.
    """
    mark, now = own_mark(), SYSTEM_CLOCK.now().isoformat()
    yield owner_line(Owner(1, (mark.process, mark.started, mark.machine), now))
    for seq, at, tag, body in older.execute(_EVENTS, (run_id,)):
        try:
            if type(seq) is not int or not isinstance(msgspec.json.decode(body), dict):
                raise TypeError("it is no object with a number")
            when = datetime.fromisoformat(at.decode("ascii")).isoformat()
            yield event_line(seq, when, tag.decode(), msgspec.json.format(cast("bytes", body), indent=-1))
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
