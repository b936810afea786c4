"""Runs on disk: every event of every run, written while it happens, readable while it is written.

A writer appends envelopes in batches, one transaction each; what is committed survives a crash of the process. A
reader gets rows and JSON, never live objects, so that it can show runs of programs it cannot import. An event that
cannot be written leaves a note in its place, and the others go on.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote
from uuid import UUID

from watchkeeper.core.codec import CodecError, encode
from watchkeeper.core.errors import StoreError
from watchkeeper.core.logs import logger
from watchkeeper.core.type_tags import tag_of
from watchkeeper.core.usage import Usage
from watchkeeper.runtime.events import ManyEnded, ManyStarted, RunEnded, RunStarted
from watchkeeper.session.log import Envelope
from watchkeeper.session.tagging import dump, load

if TYPE_CHECKING:
    import sqlite3

# --- schema ---------------------------------------------------------------------------------------------------------
# The tables of the run store, and how a file of them is found and opened.
#
# One SQLite file in WAL mode, so that readers see a run as it goes and never hold it up. A file that another program or
# another version wrote is refused and left as it is. Opening for reading changes nothing on disk.

APPLICATION_ID: Final = 0x574B5052
"""What SQLite keeps in the file's head to say whose it is: ``WKPR``."""

SCHEMA_VERSION: Final = 1
BUSY_SECONDS: Final = 30.0
"""How long a write waits for other processes that write to the same file."""

ATTEMPTS: Final = 50
"""How often a file is tried to be put into WAL mode, while others make it too."""

NO_STORE: Final = frozenset({"none", "off"})
DEFAULT: Final = "default"
VARIABLE: Final = "WATCHKEEPER_STORE"

TABLES: Final = (
    """
    CREATE TABLE runs (
        run_id TEXT PRIMARY KEY,
        parent_id TEXT,
        prompt TEXT NOT NULL,
        model TEXT NOT NULL,
        item TEXT,
        items INTEGER,
        limits TEXT NOT NULL,
        started_at TEXT NOT NULL,
        ended_at TEXT,
        stop TEXT,
        done INTEGER,
        tokens INTEGER,
        cost_nanos INTEGER,
        steps INTEGER,
        duration_ms REAL
    )
    """,
    "CREATE INDEX runs_by_start ON runs (started_at)",
    "CREATE INDEX runs_by_parent ON runs (parent_id)",
    """
    CREATE TABLE events (
        run_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        at TEXT NOT NULL,
        tag TEXT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (run_id, seq)
    ) WITHOUT ROWID
    """,
    f"PRAGMA application_id={APPLICATION_ID}",
    f"PRAGMA user_version={SCHEMA_VERSION}",
)


def store_path(where: Path | str | None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the file that ``where`` means: a path, ``none`` for no store, or ``default`` for the user's own.

    The user's own is what ``WATCHKEEPER_STORE`` names (which may be ``none``), else a file in the user's data folder.
    """
    if where == DEFAULT:
        where = (os.environ if environ is None else environ).get(VARIABLE) or DEFAULT
    if where is None or (isinstance(where, str) and where.strip().lower() in NO_STORE):
        return None
    if where != DEFAULT:
        return Path(where).expanduser()
    from platformdirs import user_data_path

    return user_data_path("watchkeeper", appauthor=False) / "runs.sqlite3"


def connect(path: Path) -> sqlite3.Connection:
    """Open the file for reading and writing, and make it if it is missing.

    Raises:
        StoreError: If it cannot be opened or written, is not a store, or was written by another version.
    """
    import sqlite3

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise _unusable(path, error) from error
    try:
        _make(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise _unusable(path, error) from error
    except StoreError:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open the file for reading only; also where the file or its folder cannot be written.

    Raises:
        StoreError: If there is no such file, it is not a store, or was written by another version.
    """
    import sqlite3

    if not path.is_file():
        raise StoreError(f"there is no store {path} yet; 'watchkeeper run' makes it, or name another one with --store")
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        try:
            return _read_only(address, path)
        except sqlite3.OperationalError:
            # A file in WAL mode in a folder that cannot be written opens only as one that nobody changes.
            return _read_only(f"{address}&immutable=1", path)
    except sqlite3.Error as error:
        raise StoreError(f"the store {path} cannot be read: {error}; name another file (--store)") from error


def _read_only(address: str, path: Path) -> sqlite3.Connection:
    import sqlite3

    connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        if not _is_store(connection, path):
            raise StoreError(f"{path} is an empty file, not a store; name another one with --store")
    except (sqlite3.Error, StoreError):
        connection.close()
        raise
    return connection


def _make(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables, unless they are there; the write shows now, not in the middle of a run, that it is possible."""
    _is_store(connection, path)
    share(connection)
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    if not _is_store(connection, path):
        for statement in TABLES:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")


def share(connection: sqlite3.Connection) -> None:
    """Put the file into WAL mode.

    SQLite does not wait for others when it changes the mode, so several processes that make a file at once would fail
    each other; it does wait for an exclusive transaction, after which the next attempt has the file to itself.
    """
    import sqlite3

    for attempt in range(ATTEMPTS):
        try:
            if connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",):
                return
        except sqlite3.OperationalError:
            if attempt == ATTEMPTS - 1:
                raise
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")


def _is_store(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the tables are there; False for an empty file.

    Raises:
        StoreError: If the file is somebody else's.
    """
    queries = ("SELECT count(*) FROM sqlite_master", "PRAGMA application_id", "PRAGMA user_version")
    inside = connection.in_transaction
    if not inside:
        connection.execute("BEGIN")  # one look at all three: somebody may be making the file right now
    try:
        tables, owner, version = (connection.execute(query).fetchone()[0] for query in queries)
    finally:
        if not inside:
            connection.execute("ROLLBACK")
    if not (owner or version or tables):
        return False
    if owner != APPLICATION_ID:
        raise StoreError(f"{path} is a SQLite file of another program; name another file")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the store {path} has schema version {version}, this Watchkeeper writes version {SCHEMA_VERSION}; "
            "name another file, or use the Watchkeeper that wrote it"
        )
    return True


def _unusable(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"the store {path} cannot be used: {error}; name another file (store=..., --store, {VARIABLE}), "
        "or run without one (store=None, --store none)"
    )


UNWRITABLE: Final = "$unwritable"
PAGE: Final = 500

# Columns in the order of `StoredRun`, which is that of the table; the last has the event that says how it ended.
_RUNS: Final = (
    "SELECT runs.*, CASE WHEN ended_at IS NOT NULL THEN (SELECT body FROM events WHERE "
    "events.run_id = runs.run_id AND tag IN ('run_ended', 'many_ended') ORDER BY seq DESC LIMIT 1) END FROM runs "
)
_NEWEST: Final = f"{_RUNS}WHERE parent_id IS NULL ORDER BY started_at DESC, rowid DESC LIMIT ?"
_CHILDREN: Final = f"{_RUNS}WHERE parent_id = ? ORDER BY started_at, rowid"
_BY_PREFIX: Final = f"{_RUNS}WHERE run_id >= ?1 AND run_id < ?1 || 'g' ORDER BY run_id LIMIT 4"
_EVENTS: Final = "SELECT seq, at, tag, body FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"
_BEGIN: Final = (
    "INSERT OR IGNORE INTO runs (run_id, parent_id, prompt, model, item, items, limits, started_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_END: Final = (
    "UPDATE runs SET ended_at=?, stop=?, done=?, tokens=?, cost_nanos=?, steps=?, duration_ms=? WHERE run_id=?"
)


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
        verdict: The completion checker's last word, once it ended; None for a run over many items.
        turns: Model turns, once it ended; None for a run over many items.
        usage: Everything it used, its children included, as JSON-able data, once it ended.
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
    verdict: str | None
    turns: int | None
    usage: dict[str, Any] | None

    @property
    def tool_calls(self) -> int | None:
        """Admitted tool calls, once it ended."""
        return None if self.usage is None else self.usage.get("tool_calls")


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
            CodecError: If a type in it is not known here, or the event could not be written.
        """
        if UNWRITABLE in self.body:
            raise CodecError(f"event {self.seq} ({self.tag}) could not be written: {self.body[UNWRITABLE]}")
        return load(self.body)


class RunStore:
    """A SQLite file of runs; safe to use from several threads, and from several processes at once.

    Attributes:
        path: The file.
        failure: The first write that failed, if one did.
    """

    def __init__(self, path: Path | str | None = None, *, read_only: bool = False) -> None:
        """Open the file at ``path``, or the user's own, making it if it is missing.

        Args:
            path: Where the file is.
            read_only: Change nothing on disk, and refuse a file that is missing.

        Raises:
            StoreError: If it cannot be opened or, unless ``read_only``, written.
        """
        found = store_path("default" if path is None else Path(path))
        if found is None:
            raise StoreError("WATCHKEEPER_STORE says that there is no store; name a file")
        self.path = found
        self.failure: StoreError | None = None
        self._lock = threading.Lock()
        self._connection = connect_to_read(found) if read_only else connect(found)

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, batch: Sequence[tuple[UUID, Envelope]]) -> None:
        """Write a batch of envelopes, each with the id of its run, in one transaction.

        An envelope that is there already stays as it is.

        Raises:
            StoreError: If they cannot be written; none of them is.
        """
        rows = [(str(run_id), item.seq, item.at.isoformat(), *_written(item.seq, item.event)) for run_id, item in batch]
        try:
            with self._transaction(f"{len(rows)} events could not be written to"):
                self._connection.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?)", rows)
                for run_id, item in batch:
                    self._keep_header(str(run_id), item.event)
        except StoreError as error:
            self.failure = self.failure or error
            raise

    def _keep_header(self, run_id: str, event: Any) -> None:
        """Keep the row of a run current with the events that begin and end it."""
        match event:
            case RunStarted(parent_run_id=parent_run_id, item=item):
                self._begin(run_id, event, str(parent_run_id) if parent_run_id else None, item, None)
            case ManyStarted(items=items):
                self._begin(run_id, event, None, None, len(items))
            case RunEnded():
                self._end(run_id, event, event.usage, None)
            case ManyEnded(done=done):
                self._end(run_id, event, event.usage, done)
            case _:
                pass

    def _begin(
        self, run_id: str, event: RunStarted | ManyStarted, parent: str | None, item: str | None, items: int | None
    ) -> None:
        label = None if item is None else _writable(item)
        names = (_writable(event.prompt_name), _writable(event.model))
        row = (run_id, parent, *names, label, items, event.limits, event.started_at.isoformat())
        self._connection.execute(_BEGIN, row)

    def _end(self, run_id: str, event: RunEnded | ManyEnded, usage: Usage, done: int | None) -> None:
        stop = encode(dump(event.stop)).decode() if event.stop else None
        figures = (usage.tokens.total, usage.cost_nanos, usage.steps, event.duration_ms)
        self._connection.execute(_END, (event.ended_at.isoformat(), stop, done, *figures, run_id))

    @contextmanager
    def _transaction(self, what: str) -> Generator[None]:
        with self._used(what):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _used(self, what: str) -> Generator[None]:
        """Keep other threads out, and say what failed."""
        import sqlite3

        with self._lock:
            try:
                yield
            except (sqlite3.Error, OverflowError) as error:
                raise StoreError(f"{what} {self.path}: {error}") from error

    # -- reading --------------------------------------------------------------------------------------------------

    def runs(self, limit: int = 50) -> tuple[StoredRun, ...]:
        """Return the newest runs that have no parent, newest first."""
        return self._select(_NEWEST, limit)

    def children(self, run_id: str) -> tuple[StoredRun, ...]:
        """Return the runs below a run, in the order they began: the items of a run over many, subagents, judges."""
        return self._select(_CHILDREN, run_id)

    def find(self, prefix: str) -> StoredRun:
        """Return the one run whose id begins with ``prefix``.

        Raises:
            StoreError: If there is none, or more than one.
        """
        wanted = prefix.strip().lower()
        found = self._select(_BY_PREFIX, wanted) if wanted else ()
        if len(found) == 1:
            return found[0]
        if not found:
            raise StoreError(f"{self.path} has no run whose id begins with {prefix!r}; 'watchkeeper runs' lists them")
        several = ", ".join(run.run_id for run in found[:3]) + (" ..." if len(found) > 3 else "")
        raise StoreError(f"{self.path} has more than one run whose id begins with {prefix!r}: {several}")

    def events(self, run_id: str, after: int = 0) -> Iterator[StoredEvent]:
        """Yield a run's events in order, those with a sequence number above ``after``.

        Called again with the last number it yielded, it goes on with what has come since.
        """
        while True:
            with self._used("events cannot be read from"):
                rows = self._connection.execute(_EVENTS, (run_id, after, PAGE)).fetchall()
            for seq, at, tag, body in rows:
                yield StoredEvent(seq, datetime.fromisoformat(at), tag, json.loads(body))
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _select(self, query: str, value: str | int) -> tuple[StoredRun, ...]:
        with self._used("runs cannot be read from"):
            return tuple(_stored_run(row) for row in self._connection.execute(query, (value,)))


def _written(seq: int, event: object) -> tuple[str, str]:
    """Return an event's tag and JSON, or a note: one value must not cost the record of a night."""
    tag = tag_of(type(event))
    try:
        return tag, encode(dump(event)).decode()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        logger().warning("event.unwritable", seq=seq, event_type=tag, error=said)
        return tag, json.dumps({UNWRITABLE: said})


def _writable(text: str) -> str:
    """Return text that UTF-8 can hold: names of files may hold what it cannot."""
    return text.encode("utf-8", "backslashreplace").decode()


def _stored_run(row: Sequence[Any]) -> StoredRun:
    values = list(row)
    values[7] = datetime.fromisoformat(values[7])
    values[8] = datetime.fromisoformat(values[8]) if values[8] else None
    values[9] = json.loads(values[9]) if values[9] else None
    end: dict[str, Any] = json.loads(values.pop() or "{}")
    return StoredRun(*values, *(end.get(name) for name in ("verdict", "turns", "usage")))
