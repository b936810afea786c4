"""Runs on disk: every event of every run, written while it happens, readable while it is written.

A writer appends envelopes in batches, one transaction each; what is committed survives a crash of the process. A
reader gets rows and JSON, never live objects, so that it can show runs of programs it cannot import.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

from watchkeeper.core.errors import StoreError
from watchkeeper.core.tagging import dump, load
from watchkeeper.core.usage import Usage
from watchkeeper.runtime.events import ManyEnded, ManyStarted, RunEnded, RunStarted
from watchkeeper.session.log import Envelope
from watchkeeper.session.registry import event_tag
from watchkeeper.store.schema import connect, default_path

_NEWEST: Final = "SELECT * FROM runs WHERE parent_id IS NULL ORDER BY started_at DESC LIMIT ?"
_CHILDREN: Final = "SELECT * FROM runs WHERE parent_id = ? ORDER BY started_at"
_BY_PREFIX: Final = "SELECT * FROM runs WHERE substr(run_id, 1, length(?1)) = ?1 LIMIT 3"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One run, as the store knows it: a row of the table ``runs``.

    Attributes:
        run_id: Its id.
        parent_id: The run over many items that it belongs to, or None.
        prompt: ``ns/key`` of its prompt.
        model: ``provider:name``.
        item: Which item it is, if it is one of many.
        items: How many items it has, if it is a run over many.
        limits: The limits that were in force, in words.
        started_at: When it began.
        ended_at: When it ended; None while it runs, or if its process died.
        stop: Why it ended early, as JSON-able data, or None.
        done: Items that were completed, of a run over many.
        tokens: Tokens used, once it ended.
        cost_nanos: Cost in nano-dollars, once it ended; None if unknown.
        steps: Admitted calls, once it ended.
        duration_ms: How long it took, once it ended.
    """

    run_id: str
    parent_id: str | None
    prompt: str
    model: str
    item: str | None
    items: int | None
    limits: str
    started_at: datetime
    ended_at: datetime | None
    stop: dict[str, Any] | None
    done: int | None
    tokens: int | None
    cost_nanos: int | None
    steps: int | None
    duration_ms: float | None


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One event, as the store knows it: its tag and its JSON."""

    seq: int
    at: datetime
    tag: str
    body: dict[str, Any]

    def load(self) -> Any:
        """Return the event as a value; its type must have been imported.

        Raises:
            CodecError: If a type in it is not known here.
        """
        return load(self.body)


class RunStore:
    """A SQLite file of runs; safe to use from several threads, and from several processes at once."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the file at ``path``, or the user's own.

        Raises:
            StoreError: If it cannot be written.
        """
        self.path = path or default_path()
        self._lock = threading.Lock()
        self._connection = connect(self.path)

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        with self._lock:
            self._connection.close()

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, batch: Sequence[tuple[UUID, Envelope]]) -> None:
        """Write a batch of envelopes, each with the id of its run, in one transaction.

        Raises:
            StoreError: If they cannot be written; none of them is.
        """
        rows = [
            (str(run_id), item.seq, item.at.isoformat(), event_tag(type(item.event)), json.dumps(dump(item.event)))
            for run_id, item in batch
        ]
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?)", rows)
                for run_id, item in batch:
                    self._keep_header(str(run_id), item.event)
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise StoreError(f"{len(rows)} events could not be written to {self.path}: {error}") from error

    def _keep_header(self, run_id: str, event: Any) -> None:
        """Keep the row of a run current with the events that begin and end it."""
        match event:
            case RunStarted(parent_run_id=parent_run_id):
                parent = str(parent_run_id) if parent_run_id else None
                self._begin(run_id, parent, event, item=event.item, items=None)
            case ManyStarted():
                self._begin(run_id, None, event, item=None, items=len(event.items))
            case RunEnded(usage=usage):
                self._end(run_id, event, usage, done=None)
            case ManyEnded(usage=usage, done=done):
                self._end(run_id, event, usage, done=done)
            case _:
                pass

    def _begin(
        self, run_id: str, parent: str | None, event: RunStarted | ManyStarted, item: str | None, items: int | None
    ) -> None:
        self._connection.execute(
            "INSERT OR IGNORE INTO runs (run_id, parent_id, prompt, model, item, items, limits, started_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (run_id, parent, event.prompt_name, event.model, item, items, event.limits, event.started_at.isoformat()),
        )

    def _end(self, run_id: str, event: RunEnded | ManyEnded, usage: Usage, done: int | None) -> None:
        stop = json.dumps(dump(event.stop)) if event.stop else None
        self._connection.execute(
            "UPDATE runs SET ended_at=?, stop=?, done=?, tokens=?, cost_nanos=?, steps=?, duration_ms=? WHERE run_id=?",
            (
                event.ended_at.isoformat(),
                stop,
                done,
                usage.tokens.total,
                usage.cost_nanos,
                usage.steps,
                event.duration_ms,
                run_id,
            ),
        )

    # -- reading --------------------------------------------------------------------------------------------------

    def runs(self, limit: int = 50) -> tuple[StoredRun, ...]:
        """Return the newest runs that have no parent, newest first."""
        return self._select(_NEWEST, limit)

    def children(self, run_id: str) -> tuple[StoredRun, ...]:
        """Return the item runs of a run over many, in the order they began."""
        return self._select(_CHILDREN, run_id)

    def find(self, prefix: str) -> StoredRun:
        """Return the one run whose id begins with ``prefix``.

        Raises:
            StoreError: If there is none, or more than one.
        """
        found = self._select(_BY_PREFIX, prefix) if prefix else ()
        if len(found) != 1:
            what = "no run" if not found else "more than one run"
            raise StoreError(f"{self.path} has {what} whose id begins with {prefix!r}; 'watchkeeper runs' lists them")
        return found[0]

    def events(self, run_id: str, after: int = -1) -> Iterator[StoredEvent]:
        """Yield a run's events in order, those with a sequence number above ``after``."""
        while True:
            with self._lock:
                rows = self._connection.execute(
                    "SELECT seq, at, tag, body FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT 500",
                    (run_id, after),
                ).fetchall()
            for seq, at, tag, body in rows:
                yield StoredEvent(seq, datetime.fromisoformat(at), tag, json.loads(body))
            if len(rows) < 500:
                return
            after = rows[-1][0]

    def _select(self, query: str, value: str | int) -> tuple[StoredRun, ...]:
        with self._lock:
            return tuple(_stored_run(row) for row in self._connection.execute(query, (value,)))


def _stored_run(row: tuple[Any, ...]) -> StoredRun:
    values = list(row)
    values[7] = datetime.fromisoformat(values[7])
    values[8] = datetime.fromisoformat(values[8]) if values[8] else None
    values[9] = cast("dict[str, Any]", json.loads(values[9])) if values[9] else None
    return StoredRun(*values)
