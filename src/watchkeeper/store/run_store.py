"""Runs on disk: every event of every run, written while it happens, readable while it is written.

A writer appends envelopes in batches, one transaction each; what is committed survives a crash of the process. A reader
gets rows and JSON, never live objects, so that it can show runs of programs that it cannot import. If an event cannot
be written, a note is written in its place. Opening for reading changes nothing on disk.
"""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast
from uuid import UUID

from watchkeeper.core.codec import CodecError, encode
from watchkeeper.core.errors import StoreError
from watchkeeper.core.secrets import HELD, redacted
from watchkeeper.core.text import logger
from watchkeeper.core.type_tags import tag_of
from watchkeeper.runtime.events import ManyEnded, ManyStarted, RunEnded, RunStarted
from watchkeeper.runtime.result import end_in_words, items_done, run_as_data, spent
from watchkeeper.session.log import Envelope
from watchkeeper.session.tagging import MARK, PLAIN_TAGS, dump, load
from watchkeeper.store.sqlite import (
    DEFAULT,
    RECOVER,
    Identity,
    Schema,
    chosen_file,
    connect,
    connect_to_read,
    failing_as,
    identities,
    register,
)

if TYPE_CHECKING:
    import sqlite3

BLOCK: Final = "contained"
"""In place of the model: what a block calls is known at its end only. No model's name is without its provider."""

VARIABLE: Final = "WATCHKEEPER_STORE"
NO_STORE: Final = frozenset({"none", "off"})
BUSY_SECONDS: Final = 30.0
"""How long the opening of the file waits for other processes that write to it."""

WRITE_SECONDS: Final = 5.0
"""How long one write waits for other processes; the writer of a run's events retries."""

MOST: Final = 2**63 - 1
"""The largest integer of SQLite; a larger number is whole in the event's JSON and capped to this in the run's row."""

SCHEMA: Final = Schema(
    noun="store",
    application_id=0x574B5052,  # WKPR
    version=1,
    other_file="name another file (store=..., --store)",
    tables=(
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
    ),
)

HOLDERS: Final = frozenset({"type", *PLAIN_TAGS})
"""Tags of the standard library's types, which hold one thing."""


MAPPINGS: Final = frozenset({"dict", "mapping_proxy", "ordered_dict", "counter", "defaultdict"})

UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors that a damaged row can raise."""

UNKNOWN: Final = datetime.min.replace(tzinfo=UTC)
"""Start time of a run whose row cannot be read."""

BEGINNINGS: Final = frozenset({tag_of(RunStarted), tag_of(ManyStarted)})
"""Tags of a run's first event; its number is not 1 where the run continues a session."""

KINDS: Final[tuple[Any, ...]] = (
    *(str, str | None, str, str, str | None, int | None, str, str, str | None, str | None),
    *(int | None, int | None, int | None, int | None, float | int | None),
)
"""What the columns of a run hold; SQLite itself does not see to it."""

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
_EVENT: Final = "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?)"
_BEGIN: Final = (
    "INSERT OR IGNORE INTO runs (run_id, parent_id, prompt, model, item, items, limits, started_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_END: Final = (
    "UPDATE runs SET ended_at=?, stop=?, done=?, tokens=?, cost_nanos=?, steps=?, duration_ms=? WHERE run_id=?"
)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One stored run: a row of the table ``runs``.

    Attributes:
        run_id: Its id.
        parent_id: The run over many items that it belongs to, or None.
        prompt: ``ns/key`` of its prompt; the name of a contained block, or its file and line.
        model: ``provider:name``; ``contained`` for a contained block.
        item: Which item it is, if it is one of many.
        items: How many items it has, if it is a run over many.
        limits: The limits that were in force, in words.
        started_at: When it began.
        ended_at: When it ended; None while it runs, or if its process died.
        stop: Why it ended early, as JSON-able data, or None.
        items_done: Items that were completed, of a run over many.
        tokens: Tokens used, once it ended.
        cost_nanos: Cost in nano-dollars, once it ended; None if unknown.
        steps: Admitted calls, once it ended.
        duration_ms: How long it took, once it ended.
        completion: The completion checker's last word, once it ended; None for a run over many items.
        turns: Model turns, once it ended; None for a run over many items.
        usage: Everything it used, its children included, as JSON-able data, once it ended.
        damage: Which part of its row in the file cannot be read; None for an intact row. In a damaged row only the id
            is certain.
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
    items_done: int | None
    tokens: int | None
    cost_nanos: int | None
    steps: int | None
    duration_ms: float | None
    completion: str | None
    turns: int | None
    usage: dict[str, Any] | None
    damage: str | None = None

    @property
    def tool_calls(self) -> int | None:
        """Admitted tool calls, once it ended."""
        return None if self.usage is None else self.usage.get("tool_calls")

    @property
    def seconds(self) -> float | None:
        """How long it took, once it ended."""
        return None if self.duration_ms is None else self.duration_ms / 1000

    @property
    def is_block(self) -> bool:
        """Whether it is a contained block instead of a run."""
        return self.model == BLOCK

    def sentence(self, note: str = "") -> str:
        """Return how it ended, in the words of its result; ``note`` is what its completion checker said last."""
        if self.damage is not None:
            return f"Damaged in the store: {self.damage}."
        if self.ended_at is None:
            return "Not ended: it is still running, or its process died."
        calls = self.usage.get("model_calls") if self.is_block and self.usage is not None else None
        took = spent(self.turns, self.tool_calls or 0, self.tokens or 0, self.cost_nanos, self.seconds, calls)
        stop = None if self.stop is None else str(self.stop["message"])
        done = "" if self.items is None else items_done(self.items_done, self.items)
        return end_in_words(took, stop, self.completion, note, done=done)

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON-able data, with the keys that a result has for the same things.

        What is not known before the end is None until then; ``items`` and ``items_done`` are None except for a run
        over many. Only a run whose row is damaged has the key ``damage``.
        """
        ended = self.ended_at is not None
        facts = {name: getattr(self, name) for name in self.__slots__}
        if self.damage is None:
            del facts["damage"]
        else:
            facts["started_at"] = None
        return run_as_data(
            **facts,
            ok=self.stop is None and self.items_done == self.items if ended else None,
            cost_usd=self.cost_nanos if ended else None,
            duration_seconds=self.seconds,
        )


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One stored event: its tag and its JSON."""

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
        first_run: The first run whose beginning was written through this object, or None.
        closed: Whether it was closed; no write works any more.
    """

    def __init__(self, path: Path | str | None = None, *, read_only: bool = False) -> None:
        """Open the file at ``path``, or the user's own, making it if it is missing.

        Args:
            path: The path of the file.
            read_only: Change nothing on disk, and refuse a file that is missing.

        Raises:
            StoreError: If it cannot be opened or, unless ``read_only``, written.
        """
        found = store_path(DEFAULT if path is None else Path(path))
        if found is None:
            raise StoreError(f"{VARIABLE} says that there is no store; name a file")
        self.path = found
        self._file = found.absolute()  # the program may change its working folder
        self.failure: StoreError | None = None
        self.first_run: UUID | None = None
        self.closed = False
        self._files: tuple[Identity, ...] = ()
        self._lock = threading.Lock()
        self._read_only = read_only
        self._open_file: sqlite3.Connection | None = None
        if read_only and not found.is_file():
            raise StoreError(
                f"there is no store {found} yet; 'watchkeeper run' makes it, or name another one with --store"
            )
        what, advice = f"the store {found} cannot be read", "; name another file (--store)"
        if not read_only:
            what = f"the store {found} cannot be used"
            advice = (
                f"; name another file (store=..., --store, {VARIABLE}), or run without one (store=None, --store none)"
            )
        register(self)
        with self._lock, failing_as(what, advice):
            self._open_file = self._opened()

    def _opened(self) -> sqlite3.Connection:
        """Open the file."""
        if self._read_only:
            connection = connect_to_read(self._file, SCHEMA, BUSY_SECONDS)
        else:
            connection = connect(self._file, SCHEMA, BUSY_SECONDS)
            connection.execute(f"PRAGMA busy_timeout={WRITE_SECONDS * 1000:.0f}")
            self._files = identities(self._file)
        connection.text_factory = text_or_bytes
        return connection

    @property
    def _connection(self) -> sqlite3.Connection:
        """The open file; it was closed if the process was forked."""
        if self._open_file is None:
            if self.closed:
                raise OSError("it was closed")
            self._check_in_place()
            self._open_file = self._opened()
        return self._open_file

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            self.closed = True
            self._close_file()

    def _close_file(self) -> None:
        connection, self._open_file = self._open_file, None
        if connection is not None:
            connection.close()

    def before_fork(self) -> None:
        """Keep other threads out during a fork, and close the file."""
        self._lock.acquire()
        self._close_file()

    def after_fork(self, *, child: bool) -> None:
        """Go on; the file is opened again when it is used."""
        self._lock.release()

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
        headers = [row for run_id, item in batch if (row := _header(str(run_id), item.event)) is not None]
        begun = (run_id for run_id, item in batch if isinstance(item.event, RunStarted | ManyStarted))
        try:
            # The connection commits at the end of the block, or rolls back if anything was raised in it.
            with self._used(f"{len(rows)} events could not be written to"):
                connection = self._connection
                self._check_in_place()
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.executemany(_EVENT, rows)
                    for statement, values in headers:
                        connection.execute(statement, values)
        except StoreError as error:
            self.failure = self.failure or error
            raise
        self.first_run = self.first_run or next(begun, None)

    def _check_in_place(self) -> None:
        """Refuse to write to a file that was deleted: SQLite would continue to write to it, and no reader would see it.

        Raises:
            OSError: If it, or one of its side files, was deleted or replaced by another file.
        """
        found = identities(self._file)
        if self._open_file is None:  # closed before a fork: SQLite makes its side files anew
            found = (found[0], *self._files[1:])
        if not self._files or found == self._files:  # none: opened for reading only
            return
        if found[0] is None:
            raise OSError("the file was deleted while it was open; put it back, or start again with another one")
        if found[0] != self._files[0]:
            raise OSError(f"another file was put in the place of {self.path} while it was open")
        raise OSError("its -wal or -shm file was deleted or replaced while it was open; nothing else can be written")

    @contextmanager
    def _used(self, what: str) -> Generator[None]:
        """Keep other threads out, and turn errors into StoreError."""
        with self._lock, failing_as(f"{what} {self.path}"):
            yield

    # -- reading --------------------------------------------------------------------------------------------------

    def runs(self, limit: int = 50) -> tuple[StoredRun, ...]:
        """Return the newest runs that have no parent, newest first; one whose row is damaged says so itself."""
        return self._select(_NEWEST, limit)

    def children(self, run_id: str) -> tuple[StoredRun, ...]:
        """Return the runs below a run, in the order they began: the items of a run over many, subagents, judges."""
        return self._select(_CHILDREN, run_id)

    def find(self, prefix: str) -> StoredRun:
        """Return the one run whose id begins with ``prefix``.

        Raises:
            StoreError: If there is none, or more than one, or its row is damaged.
        """
        wanted = prefix.strip().lower()
        found = self._select(_BY_PREFIX, wanted) if wanted else ()
        if len(found) == 1:
            self.check(found)
            return found[0]
        if not found:
            raise StoreError(f"{self.path} has no run whose id begins with {prefix!r}; 'watchkeeper runs' lists them")
        several = ", ".join(run.run_id for run in found[:3]) + (" ..." if len(found) > 3 else "")
        raise StoreError(f"{self.path} has more than one run whose id begins with {prefix!r}: {several}")

    def check(self, runs: Iterable[StoredRun]) -> None:
        """Refuse runs whose rows are damaged.

        Raises:
            StoreError: Naming the file, the first such run, and what to do.
        """
        for run in runs:
            if run.damage is not None:
                raise self._damaged(f"the run {run.run_id} cannot be read ({run.damage})")

    def events(self, run_id: str, after: int = 0) -> Iterator[StoredEvent]:
        """Yield a run's events in order, those with a sequence number above ``after``.

        Call it again with the last sequence number to get the events written since.

        Raises:
            StoreError: At an event that is damaged; and at the end, if events of a run that has ended are missing.
        """
        missing, before = "", after
        for event in self._events(run_id, after):
            if not missing and event.seq != before + 1 and (before or event.tag not in BEGINNINGS):
                missing = f"before event {event.seq}"
            before = event.seq
            yield event
        if missing and self._has_ended(run_id):
            raise StoreError(f"{self.path}: events of the run {run_id} are missing {missing}; they were not stored")

    def _has_ended(self, run_id: str) -> bool:
        return any(run.ended_at is not None for run in self._select(_BY_PREFIX, run_id))

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"{self.path}: {what}; other runs can be read{RECOVER}")

    def _events(self, run_id: str, after: int) -> Iterator[StoredEvent]:
        while True:
            with self._used("events cannot be read from"):
                rows = self._connection.execute(_EVENTS, (run_id, after, PAGE)).fetchall()
            for seq, at, tag, body in rows:
                try:
                    event = StoredEvent(seq, _moment(at), as_text(tag), as_fields(json.loads(body)))
                except UNREADABLE as error:
                    raise self._damaged(f"event {seq} of the run {run_id} cannot be read ({error})") from error
                yield event
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _select(self, query: str, value: str | int) -> tuple[StoredRun, ...]:
        with self._used("runs cannot be read from"):
            return tuple(_stored_run(row) for row in self._connection.execute(query, (value,)))


def _written(seq: int, event: object) -> tuple[str, str]:
    """Return an event's tag and JSON; a note in place of the JSON if it cannot be written, so that the others are."""
    tag = tag_of(type(event))
    try:
        return tag, HELD.redacted_json(encode(dump(event)).decode())
    except Exception as error:
        said = redacted(f"{type(error).__name__}: {error}")
        logger().warning("event.unwritable", seq=seq, event_type=tag, error=said)
        return tag, json.dumps({UNWRITABLE: said})


def _header(run_id: str, event: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return the statement and values that update a run's row for its first or last event; None for other events."""
    match event:
        case RunStarted() | ManyStarted():
            item = items = None
            parent = event.parent_run_id and str(event.parent_run_id)
            if isinstance(event, ManyStarted):
                items = len(event.items)
            else:
                item = event.item and _writable(event.item)
            names = (_writable(event.prompt_name), _writable(event.model))
            return _BEGIN, (run_id, parent, *names, item, items, _writable(event.limits), event.started_at.isoformat())
        case RunEnded() | ManyEnded():
            usage = event.usage
            stop = _written(0, event.stop)[1] if event.stop else None
            done = event.done if isinstance(event, ManyEnded) else None
            cost = None if usage.cost_nanos is None else min(usage.cost_nanos, MOST)
            figures = (min(usage.tokens.total, MOST), cost, usage.steps, event.duration_ms)
            return _END, (event.ended_at.isoformat(), stop, done, *figures, run_id)
        case _:
            return None


def _writable(text: str) -> str:
    """Return text for a row: without credentials, and valid as UTF-8, which names of files may not be."""
    return redacted(text.encode("utf-8", "backslashreplace").decode())


def _stored_run(row: Sequence[Any]) -> StoredRun:
    """Return a run from its row and its last event; a damaged row does not affect other runs."""
    try:
        return _whole_run(row)
    except UNREADABLE as error:
        run_id, _, prompt, model = (each if isinstance(each, str) else repr(each) for each in row[:4])
        nothing = (None,) * 10
        return StoredRun(run_id, None, prompt, model, None, None, "", UNKNOWN, *nothing, damage=str(error))


def _whole_run(row: Sequence[Any]) -> StoredRun:
    *values, body = row
    for kind, value in zip(KINDS, values, strict=True):
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} in its row is no {getattr(kind, '__name__', kind)}")
    values[7] = datetime.fromisoformat(values[7])
    values[8] = datetime.fromisoformat(values[8]) if values[8] else None
    if values[9] is not None:
        values[9] = untyped(as_fields(json.loads(values[9])))
        as_text(values[9].get("reason"), values[9].get("message"))
    if values[8] is not None and body is None:
        raise TypeError("the event of its end is missing")
    end = as_fields(json.loads(body or "{}"))
    values += [end.get("verdict"), end.get("turns"), untyped(end.get("usage"))]
    for kind, value in zip((str | None, int | None, dict | None), values[-3:], strict=True):
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} in its last event is no {getattr(kind, '__name__', kind)}")
    return StoredRun(*values)


def _moment(text: str) -> datetime:
    """Return the time of an event, which is written with its zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"the time {text} has no zone")
    return moment


def as_text(*values: object) -> str:
    """Return the last of several values, all of which must be text."""
    text = ""
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is no text")
        text = value
    return text


def as_fields(data: object) -> dict[str, Any]:
    """Return data that must be an object of JSON."""
    if not isinstance(data, dict):
        raise TypeError(f"{data!r} is no object of JSON")
    return cast("dict[str, Any]", data)


def text_or_bytes(raw: bytes) -> str | bytes:
    """Return a text of the file, or its bytes if they are not UTF-8, so that one such text affects no other row."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def untyped(data: Any) -> Any:
    """Return the JSON of a store without the names of types in it."""
    if isinstance(data, list):
        items: list[Any] = cast("Any", data)
        return [untyped(item) for item in items]
    if not isinstance(data, dict):
        return data
    fields: dict[str, Any] = cast("Any", data)
    tag = str(fields.get(MARK, ":"))
    if tag in MAPPINGS and "items" in fields:
        return {str(untyped(key)): untyped(value) for key, value in fields["items"]}
    if tag == "str":
        return b64decode(fields["utf16"]).decode("utf-16-le", "surrogatepass")
    held = next((key for key in ("items", "value") if key in fields), None)
    if tag in HOLDERS and held is not None:
        return untyped(fields[held])
    return {key: untyped(value) for key, value in fields.items() if key != MARK}


def store_path(where: Path | str | None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the file that ``where`` means: a path, ``none`` for no store, or ``default`` for the user's own.

    The user's own is what ``WATCHKEEPER_STORE`` names (which may be ``none``), else a file in the user's data folder.
    """
    return chosen_file(where, VARIABLE, "runs.sqlite3", NO_STORE, environ)
