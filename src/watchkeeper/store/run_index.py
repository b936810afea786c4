"""What is known of every run of a store without reading its log: one row for each, kept in an index beside the logs.

A row follows from the first and the last events of a run's file alone. So does the index, an SQLite file: whoever reads
brings it up to date first, by the sizes and times of the files; no run reads or writes it. If it is lost, locked,
damaged or cannot be written, it is made anew, in memory if need be.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import msgspec

from watchkeeper.core.text import logger
from watchkeeper.core.type_tags import tag_of
from watchkeeper.runtime.events import ManyStarted, RunOpened, RunResumed, RunStarted
from watchkeeper.runtime.file_record import FilesNotOnRecord
from watchkeeper.runtime.result import end_in_words, items_done, run_as_data, spent
from watchkeeper.session.tagging import MARK, PLAIN_TAGS
from watchkeeper.store.run_file import ENDINGS, PRIVATE_FILE, SUFFIX, is_owned, is_whole, last_lines, read_lines
from watchkeeper.disk.sqlite import is_locked, with_side_files

if TYPE_CHECKING:
    import sqlite3

RUNS: Final = "runs"
"""The folder of the files; a run below others has its root's id before its own in its name."""

BLOCK: Final = "contained"
"""In place of the model: what a block calls is known at its end only. No model's name is without its provider."""

MOST: Final = 2**63 - 1
"""A larger number is whole in the event and capped to this in the run's row."""

HOLDERS: Final = frozenset({"type", *PLAIN_TAGS})
"""Tags of the standard library's types, which hold one thing."""

MAPPINGS: Final = frozenset({"dict", "mapping_proxy", "ordered_dict", "counter", "defaultdict"})

UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors that damaged data can raise."""

UNKNOWN: Final = datetime.min.replace(tzinfo=UTC)
"""Start time of a run whose row cannot be read."""

BEGINNINGS: Final = frozenset({tag_of(RunStarted), tag_of(ManyStarted)})
"""Tags of a run's first event; its number is not 1 where the run continues a session."""

GOES_ON: Final = tag_of(RunResumed)
"""Tag of the event after which a run that has ended goes on."""

NOT_BEGUN: Final = "the event of its beginning is missing"
"""Why a run cannot be read whose process died before it had begun; such a run is not listed."""

SAY_WHETHER: Final = tuple(f'"tag":"{tag_of(kind)}"'.encode() for kind in (RunOpened, FilesNotOnRecord))
"""How lines are found that may say that their run cannot be resumed."""

HEAD_BYTES: Final = 120
"""How far into a line its tag may be."""

HEAD_LINES: Final = 50
"""How many lines of a file are searched for the first event of its run."""

TAIL_LINES: Final = 200
"""How many lines of a file, from its end, are searched for the last event of its run."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One stored run.

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
        denied: Tool calls that a hook or a person has denied, once it ended.
        damage: Why its file cannot be read; None for an intact one. Of a damaged run only the id is certain.
        running: Whether a living process works on it.
        not_resumable: Why its files or parameters let no other process go on with it; known of one that has not ended.
        item_index: The number of its item, from 0, if it is one of many.
        superseded: Whether the item was begun anew by a later run; known only among the children of a run.
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
    denied: int = 0
    damage: str | None = None
    running: bool = False
    not_resumable: str = ""
    item_index: int | None = None
    superseded: bool = False

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
            if self.running:
                return "It is still running."
            why = f" It cannot be resumed: {self.not_resumable}." if self.not_resumable else ""
            return f"Interrupted: its process ended before the run did.{why}"
        calls = self.usage.get("model_calls") if self.is_block and self.usage is not None else None
        used = (self.tool_calls or 0, self.tokens or 0, self.cost_nanos)
        took = spent(self.turns, *used, self.seconds, calls, denied=self.denied)
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


def stored_run(path: Path) -> StoredRun:
    """Return a run from its file; a file that cannot be read gives a run that says so."""
    root, _, run_id = path.name.removesuffix(SUFFIX).rpartition(".")
    try:
        with open(path, "rb") as file:
            run = _folded(run_id, _beginning(file), _ending(file))
            return run if run.ended_at is not None else replace(run, not_resumable=_not_resumable(file))
    except (OSError, *UNREADABLE) as error:
        return StoredRun(
            run_id=run_id,
            parent_id=root or None,
            prompt="",
            model="",
            item=None,
            items=None,
            limits="",
            started_at=UNKNOWN,
            **cast("Any", NOT_ENDED),
            damage=str(error),
        )


def _beginning(file: BinaryIO) -> dict[str, Any]:
    """Return the first event of a file's run.

    Raises:
        ValueError: If there is none.
    """
    own = (line for _, line in read_lines(file) if not line.past)
    for line in islice(own, HEAD_LINES):
        if line.tag in BEGINNINGS:
            return as_fields(untyped(json.loads(bytes(line.body))))
    raise ValueError(NOT_BEGUN)


def _ending(file: BinaryIO) -> dict[str, Any] | None:
    """Return the last event of a file's run; None if it has not ended, or was taken over since."""
    for line in islice(last_lines(file), TAIL_LINES):
        if line.tag in ENDINGS and not line.past:
            return as_fields(untyped(json.loads(bytes(line.body))))
        if line.owner is not None or line.tag == GOES_ON:
            return None
    return None


def _not_resumable(file: BinaryIO) -> str:
    """Return why no other process can go on with a file's run; empty if one can."""
    file.seek(0)
    for raw in file:
        head = raw[:HEAD_BYTES]
        if any(tag in head for tag in SAY_WHETHER) and is_whole(raw):
            body = as_fields(untyped(json.loads(raw)["body"]))
            if body.get("not_resumable") or "why" in body:
                return as_text(body.get("not_resumable") or f"what {body['name']} changed is not stored: {body['why']}")
    return ""


def _folded(run_id: str, began: Mapping[str, Any], end: Mapping[str, Any] | None) -> StoredRun:
    """Return a run from its first and its last event; a value of the wrong type is an error."""
    labels, usage = began.get("items"), None
    ended: dict[str, Any] = {}
    if end is not None:
        usage = as_fields(end["usage"])
        tokens, stop, done = as_fields(usage["tokens"]), end["stop"], end.get("done")
        if stop is not None:
            as_text(as_fields(stop)["reason"], stop["message"])
        total = whole(tokens["input_tokens"]) + whole(tokens["output_tokens"])
        took, verdict, turns = end["duration_ms"], end.get("verdict"), end.get("turns")
        ended = {
            "ended_at": moment(end["ended_at"]),
            "stop": stop,
            "items_done": None if done is None else whole(done),
            "tokens": min(total, MOST),
            "cost_nanos": None if usage["cost_nanos"] is None else min(whole(usage["cost_nanos"]), MOST),
            "steps": whole(usage["steps"]),
            "duration_ms": float(took),
            "completion": None if verdict is None else as_text(verdict),
            "turns": None if turns is None else whole(turns),
            "usage": usage,
            "denied": whole(end.get("denied", 0)),
        }
    parent, item = began.get("parent_run_id"), began.get("item")
    return StoredRun(
        run_id=run_id,
        parent_id=None if parent is None else as_text(parent),
        prompt=as_text(began["prompt_name"]),
        model=as_text(began["model"]),
        item=None if item is None else as_text(item),
        items=None if labels is None else len(labels),
        limits=as_text(began["limits"]),
        started_at=moment(began["started_at"]),
        item_index=None if (index := began.get("item_index")) is None else whole(index),
        **cast("Any", {**NOT_ENDED, **ended}),
    )


NOT_ENDED: Final[Mapping[str, None]] = dict.fromkeys(
    ("ended_at", "stop", "items_done", "tokens", "cost_nanos", "steps", "duration_ms", "completion", "turns", "usage")
)


def whole(value: object) -> int:
    """Return a value that must be a whole number."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def moment(text: str) -> datetime:
    """Return a time, which is written with its zone."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"the time {text} has no zone")
    return found


def as_text(*values: object) -> str:
    """Return the last of several values, all of which must be text; what UTF-8 cannot hold is written as escapes."""
    text = ""
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is no text")
        text = value
    return text.encode("utf-8", "backslashreplace").decode()


def as_fields(data: object) -> dict[str, Any]:
    """Return data that must be an object of JSON."""
    if not isinstance(data, dict):
        raise TypeError(f"{data!r} is no object of JSON")
    return cast("dict[str, Any]", data)


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


# --- the index ------------------------------------------------------------------------------------------------------

NAME: Final = "index.sqlite3"
VERSION: Final = 3
"""Version of the tables; an index of another version is made anew."""

BUSY_SECONDS: Final = 0.5
"""How long to wait for another process that brings the index up to date; after that this one makes its own."""

TABLES: Final = (
    """
    CREATE TABLE runs (
        name TEXT PRIMARY KEY, run_id TEXT NOT NULL, parent_id TEXT, started_at TEXT NOT NULL,
        size INTEGER NOT NULL, changed INTEGER NOT NULL, row TEXT NOT NULL
    )
    """,
    "CREATE INDEX runs_by_start ON runs (parent_id, started_at)",
    "CREATE INDEX runs_by_id ON runs (run_id)",
    f"PRAGMA user_version={VERSION}",
)

_KNOWN: Final = "SELECT name, size, changed FROM runs"
_ALL: Final = "SELECT name, row FROM runs ORDER BY started_at, changed LIMIT ?"
_NEWEST: Final = "SELECT name, row FROM runs WHERE parent_id IS NULL ORDER BY started_at DESC, changed DESC LIMIT ?"
_CHILDREN: Final = "SELECT name, row FROM runs WHERE parent_id = ? ORDER BY started_at, changed"
_BY_PREFIX: Final = "SELECT name, row FROM runs WHERE run_id >= ?1 AND run_id < ?1 || 'g' ORDER BY run_id LIMIT 4"


class RunIndex:
    """The index of a folder of runs; for one thread at a time."""

    def __init__(self, store: Path) -> None:
        """Index the runs of the store in this folder; nothing is opened before it is asked."""
        self._store = store
        self._connection: sqlite3.Connection | None = None

    def newest(self, limit: int) -> tuple[StoredRun, ...]:
        """Return the newest runs without a parent, newest first."""
        return self._select(_NEWEST, limit)

    def stopped_by(self, reason: str) -> tuple[StoredRun, ...]:
        """Return all runs but those over many that a stop of this reason has ended, in the order they began."""
        found = (self._read(name, row) for name, row in self._rows(_ALL, -1) if f'"{reason}"' in row)
        return tuple(run for run in found if run.items is None and run.stop and run.stop["reason"] == reason)

    def children(self, run_id: str) -> tuple[StoredRun, ...]:
        """Return the runs directly below a run, in the order in which they began."""
        runs = self._select(_CHILDREN, run_id)
        newest = {run.item_index: run.run_id for run in runs}
        later = [run.item_index is not None and newest[run.item_index] != run.run_id for run in runs]
        return tuple(replace(run, superseded=True) if old else run for run, old in zip(runs, later, strict=True))

    def beginning_with(self, prefix: str) -> tuple[StoredRun, ...]:
        """Return up to four runs whose ids begin with a prefix."""
        return self._select(_BY_PREFIX, prefix)

    def path_of(self, run_id: str) -> Path | None:
        """Return the file of a run, or None if there is none."""
        found = self._rows("SELECT name, row FROM runs WHERE run_id = ?", run_id)
        return self._store / RUNS / found[0][0] if found else None

    def everything(self) -> tuple[tuple[str, StoredRun], ...]:
        """Return every run with the name of its file."""
        return tuple((name, self._read(name, row)) for name, row in self._rows(_ALL, -1))

    def renew(self) -> int:
        """Make the index anew from the files, and return how many there are.

        Raises:
            OSError: If it cannot be written, or other processes bring it up to date just now.
        """
        import sqlite3

        self.close()
        path = self._store / NAME
        try:
            try:
                self._connection = _opened(path, anew=True)
            except sqlite3.DatabaseError as error:
                if is_locked(error):
                    raise
                for name in with_side_files(path):  # it is damaged
                    Path(name).unlink(missing_ok=True)
                self._connection = _opened(path, anew=True)
            self._refresh(self._connection)
            (count,) = self._connection.execute("SELECT count(*) FROM runs").fetchone()
        except sqlite3.Error as error:
            raise OSError(f"{path}: {error}") from error
        return int(count)

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _select(self, query: str, value: str | int) -> tuple[StoredRun, ...]:
        return tuple(self._read(name, row) for name, row in self._rows(query, value))

    def _read(self, name: str, row: str) -> StoredRun:
        run = msgspec.json.decode(row, type=StoredRun)
        if run.ended_at is None and run.damage is None:
            return replace(run, running=is_owned(self._store / RUNS / name))
        return run

    def _rows(self, query: str, value: str | int) -> list[tuple[str, str]]:
        import sqlite3

        try:
            return self._asked(query, value)
        except sqlite3.Error as error:  # locked, damaged, or it cannot be written: the files alone are the truth
            logger().info("store.index_unusable", error=str(error))
            self.close()
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._connection = _with_tables(connection)
            return self._asked(query, value)

    def _asked(self, query: str, value: str | int) -> list[tuple[str, str]]:
        connection = self._connection = self._connection or _opened(self._store / NAME)
        self._refresh(connection)
        return connection.execute(query, (value,)).fetchall()

    def _refresh(self, connection: sqlite3.Connection) -> None:
        """Bring the rows up to date with the files."""
        known = {name: (size, changed) for name, size, changed in connection.execute(_KNOWN)}
        rows: list[tuple[Any, ...]] = []
        with os.scandir(self._store / RUNS) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    with suppress(FileNotFoundError):  # it was removed just now
                        at = entry.stat()
                        if known.pop(entry.name, None) != (at.st_size, at.st_mtime_ns):
                            rows.append(_row(Path(entry.path), at.st_size, at.st_mtime_ns))
        if rows or known:
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.executemany("DELETE FROM runs WHERE name = ?", [(name,) for name in known])
                connection.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise


def _row(path: Path, size: int, changed: int) -> tuple[Any, ...]:
    run = stored_run(path)
    began = run.started_at.astimezone(UTC).isoformat()
    parent = "" if run.damage == NOT_BEGUN else run.parent_id
    return (path.name, run.run_id, parent, began, size, changed, msgspec.json.encode(run).decode())


def _opened(path: Path, *, anew: bool = False) -> sqlite3.Connection:
    """Open an index; one of another version is emptied, and any if it is made anew."""
    import sqlite3

    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, PRIVATE_FILE))
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")  # what is lost with the machine is made anew
        return _with_tables(connection, anew=anew)
    except BaseException:
        connection.close()
        raise


def _with_tables(connection: sqlite3.Connection, *, anew: bool = False) -> sqlite3.Connection:
    connection.execute("BEGIN IMMEDIATE")
    if anew or connection.execute("PRAGMA user_version").fetchone() != (VERSION,):
        connection.execute("DROP TABLE IF EXISTS runs")
        for statement in TABLES:
            connection.execute(statement)
    connection.execute("COMMIT")
    return connection
