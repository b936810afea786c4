"""What is known of every run of a store without reading its log: one row for each, kept in an index beside the logs.

A row follows from a run's file alone: from its first and its last events, of a run that has not ended from what says
that it cannot be resumed, and of one that has ended from what it did (`activity`). The index is an SQLite file: whoever
reads brings it up to date first, by the sizes and times of the files; no run reads or writes it. Damage that changes
neither is not noticed here. If the index is lost or damaged, it is made anew; while it is locked or cannot be written,
a reader makes one of its own in memory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar, cast

import msgspec

from watchkeeper.core.text import is_storable, logger
from watchkeeper.core.type_tags import tag_of
from watchkeeper.runtime.events import ManyStarted, RunOpened, RunResumed, RunStarted
from watchkeeper.runtime.file_record import FilesNotOnRecord
from watchkeeper.runtime.result import GO_ON, end_in_words, items_done, run_as_data, spent
from watchkeeper.core.codec import CodecError
from watchkeeper.disk.liveness import is_dead
from watchkeeper.store.activity import ACTIVITY, Activity, activity_of, written
from watchkeeper.store.ceilings import InForce, in_force
from watchkeeper.store.plain_json import UNREADABLE, as_fields, as_text, moment, untyped, whole
from watchkeeper.store.run_file import ENDINGS, PRIVATE_FILE, SUFFIX, VERSION as LINES, Line
from watchkeeper.store.run_file import is_owned, is_whole, last_lines, last_owner, raw_lines, read_lines, reading
from watchkeeper.disk.sqlite import is_locked, with_side_files
from watchkeeper.runtime.used_before import with_all_used

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import sqlite3

Row = TypeVar("Row")

RUNS: Final = "runs"
"""The folder of the files; a run below others has its root's id before its own in its name."""

BLOCK: Final = "contained"
"""In place of the model: what a block calls is known at its end only. No model's name is without its provider."""

MOST: Final = 2**63 - 1
"""A larger number is whole in the event and capped to this in the run's row."""

COUNTS: Final = frozenset({"tool_calls", "model_calls", "retries"})
"""What a list or a report reads of the usage of a run that has ended, beside what has a column of its own."""

UNKNOWN: Final = datetime.min.replace(tzinfo=UTC)
"""Start time of a run whose row cannot be read."""

MANY: Final = tag_of(ManyStarted)
BEGINNINGS: Final = frozenset({tag_of(RunStarted), MANY})
"""Tags of a run's first event; its number is not 1 where the run continues a session."""

GOES_ON: Final = tag_of(RunResumed)
"""Tag of the event after which a run that has ended goes on."""

RESUMED: Final = f'"tag":"{GOES_ON}"'.encode()
"""What stands in the line of that event."""

NOT_BEGUN: Final = "the event of its beginning is missing"
"""Why a run cannot be read whose process died before it had begun; such a run is not listed."""

SAY_WHETHER: Final = re.compile(f'"tag":"({tag_of(RunOpened)}|{tag_of(FilesNotOnRecord)})"'.encode())
"""How lines are found that may say that their run cannot be resumed."""

OWNS: Final = b'{"owner":'
"""How a line begins that says which process, of which version, writes from there on."""

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
        limits: Its limits in words, those with which it went on last.
        started_at: When it began.
        ended_at: When it ended; None while it runs, or if its process died.
        stop: Why it ended early, as JSON-able data, or None.
        items_done: Items that were completed, of a run over many.
        tokens: Tokens used in all attempts, once it ended.
        cost_nanos: Cost of all attempts in nano-dollars, once it ended; None if unknown.
        steps: Admitted calls in all attempts, once it ended.
        duration_ms: How long all attempts took, once it ended.
        completion: The completion checker's last word, once it ended; None for a run over many items.
        turns: Model turns, once it ended; None for a run over many items.
        usage: Everything it used in all attempts, its children included, as JSON-able data, once it ended.
        denied: Tool calls that a hook or a person has denied, once it ended.
        damage: Why its file cannot be read; None for an intact one. Of a damaged run only the id is certain.
        running: Whether a living process works on it.
        process: Id of that process, if it is on record.
        not_resumable: Why no other process can go on with it: its files, its parameters, damage or a newer version;
            known of one that has not ended.
        item_index: The number of its item, from 0, if it is one of many.
        superseded: Whether the item was begun anew by a later run; known only among the children of a run.
        ceilings: The same as numbers (`in_force`); None if its file cannot be read.
        earlier: The part of usage, turns and seconds that its limits do not count, because it is from before they were
            fresh, as JSON-able data; None if they never were, or it has not ended.
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
    process: int | None = None
    not_resumable: str = ""
    item_index: int | None = None
    superseded: bool = False
    ceilings: dict[str, float] | None = None
    earlier: dict[str, Any] | None = None

    @property
    def tool_calls(self) -> int | None:
        """Admitted tool calls, once it ended."""
        return None if self.usage is None else self.usage.get("tool_calls")

    @property
    def presumed_tokens(self) -> int:
        """The part of its tokens that is a worst case, as far as it is on record."""
        return sum(_presumed_counts(self.usage or {}))

    @property
    def seconds(self) -> float | None:
        """How long it took, once it ended."""
        return None if self.duration_ms is None else self.duration_ms / 1000

    @property
    def is_block(self) -> bool:
        """Whether it is a contained block instead of a run."""
        return self.model == BLOCK

    @property
    def is_resumable(self) -> bool:
        """Whether its process has ended before it, and another one may go on with it."""
        over = self.ended_at is not None or self.running or self.damage is not None
        return not over and not self.not_resumable and not self.is_block

    def sentence(self, note: str = "") -> str:
        """Return how it ended, in the words of its result; ``note`` is what its completion checker said last."""
        if self.damage is not None:
            return f"Damaged in the store: {self.damage}."
        if self.ended_at is None:
            if self.running:
                return "It is still running" + (f" in process {self.process}." if self.process else ".")
            why = f" It cannot be resumed: {self.not_resumable}." if self.not_resumable else ""
            return f"Interrupted: its process ended before the run did.{why}"
        calls = self.usage.get("model_calls") if self.is_block and self.usage is not None else None
        used = (self.tool_calls or 0, self.tokens or 0, self.cost_nanos)
        took = spent(self.turns, *used, self.seconds, calls, denied=self.denied, presumed=self.presumed_tokens)
        stop = None if self.stop is None else str(self.stop["message"])
        done = "" if self.items is None else items_done(self.items_done, self.items)
        return end_in_words(took, stop, self.completion, note, done=done)

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON-able data, with the keys that a result has for the same things.

        What is not known before the end is None until then; ``items`` and ``items_done`` are None except for a run
        over many. Only a run whose row is damaged has the key ``damage``, and only one that went on with fresh limits
        the key ``earlier``.
        """
        ended = self.ended_at is not None
        facts = {name: getattr(self, name) for name in self.__slots__}
        if self.earlier is None:
            del facts["earlier"]
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
    run_id = path.name.removesuffix(SUFFIX).rpartition(".")[2]
    try:
        with reading(path) as file:
            began = _beginning(file)
            run = _folded(run_id, began, _limits(began, _going_on(file)), _ending(file))
            return run if run.ended_at is not None else replace(run, not_resumable=_not_resumable(file))
    except (OSError, *UNREADABLE) as error:
        return _unreadable(path, error)


def _unreadable(path: Path, error: Exception) -> StoredRun:
    """Return the run of a file that cannot be read."""
    root, _, run_id = path.name.removesuffix(SUFFIX).rpartition(".")
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
        damage=as_text(str(error)),
    )


def _beginning(file: BinaryIO) -> Line:
    """Return the line of the first event of a file's run.

    Raises:
        ValueError: If there is none.
    """
    own = (line for _, line in read_lines(file) if not line.past)
    for line in islice(own, HEAD_LINES):
        if line.tag in BEGINNINGS:
            return line
    raise ValueError(NOT_BEGUN)


def _ending(file: BinaryIO) -> dict[str, Any] | None:
    """Return the last event of a file's run; None if it has not ended, or was taken over since."""
    for line in islice(last_lines(file), TAIL_LINES):
        if line.tag in ENDINGS and not line.past:
            return _fields(line)
        if line.owner is not None or line.tag == GOES_ON:
            return None
    return None


def _going_on(file: BinaryIO) -> Line | None:
    """Return the line of the event with which a file's run went on last; None if it never did."""
    resumed = (line for line in last_lines(file, (RESUMED,)) if line.tag == GOES_ON and not line.past)
    return next(resumed, None)


def _limits(began: Line, resumed: Line | None) -> InForce:
    """Return the limits of a run; in words only if their values cannot be read."""
    try:
        return in_force(began, resumed, many=began.tag == MANY)
    except (CodecError, *UNREADABLE):
        return InForce(as_text(_fields(resumed or began)["limits"]), {})


def _fields(line: Line) -> dict[str, Any]:
    return as_fields(untyped(json.loads(bytes(line.body))))


def _not_resumable(file: BinaryIO) -> str:
    """Return why no process of this version can go on with a file's run; empty if one can."""
    file.seek(0)
    position, damaged = 0, ""
    for raw in raw_lines(file):
        if not raw.endswith(b"\n"):
            break  # still being written, or what a crash left behind
        if not is_whole(raw):
            damaged = damaged or f"the line at byte {position:,} is damaged"
        elif damaged:
            return damaged
        elif why := _says_not_resumable(raw):
            return why
        position += len(raw)
    return ""


def _says_not_resumable(raw: bytes) -> str:
    """Return why a file with this whole line cannot be gone on with, or an empty text."""
    if raw.startswith(OWNS):
        owner = as_fields(untyped(json.loads(raw)["owner"]))
        return "a newer Watchkeeper wrote it; go on with that one" if owner.get("version", LINES) > LINES else ""
    if SAY_WHETHER.search(raw, 0, HEAD_BYTES):
        body = as_fields(untyped(json.loads(raw)["body"]))
        if body.get("not_resumable") or "why" in body:
            return as_text(body.get("not_resumable") or f"what {body['name']} changed is not stored: {body['why']}")
    return ""


def _presumed_counts(usage: Mapping[str, Any]) -> list[int]:
    """Return the input and output tokens of a usage that are a worst case, if it has some."""
    tokens = as_fields(as_fields(usage.get("presumed") or {}).get("tokens") or {})
    return [whole(tokens.get(name, 0)) for name in ("input_tokens", "output_tokens")]


def _folded(run_id: str, beginning: Line, limits: InForce, end: Mapping[str, Any] | None) -> StoredRun:
    """Return a run from its first event, its limits and its last event; a value of the wrong type is an error."""
    began = _fields(beginning)
    labels, usage = began.get("items"), None
    ended: dict[str, Any] = {}
    if end is not None:
        end = with_all_used(end)
        usage = as_fields(end["usage"])
        tokens, stop, done = as_fields(usage["tokens"]), end["stop"], end.get("done")
        if stop is not None:
            as_text(as_fields(stop)["reason"], stop["message"])
            stop = {name: as_text(each) if isinstance(each, str) else each for name, each in stop.items()}
        for count in COUNTS & usage.keys():
            whole(usage[count])
        _presumed_counts(usage)
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
            "earlier": end.get("earlier"),
        }
    parent, item = began.get("parent_run_id"), began.get("item")
    return StoredRun(
        run_id=run_id,
        parent_id=None if parent is None else as_text(parent),
        prompt=as_text(began["prompt_name"]),
        model=as_text(began["model"]),
        item=None if item is None else as_text(item),
        items=None if labels is None else len(labels),
        limits=limits.words,
        started_at=moment(began["started_at"]),
        item_index=None if (index := began.get("item_index")) is None else whole(index),
        ceilings=limits.ceilings,
        **cast("Any", {**NOT_ENDED, **ended}),
    )


NOT_ENDED: Final[Mapping[str, None]] = dict.fromkeys(
    ("ended_at", "stop", "items_done", "tokens", "cost_nanos", "steps", "duration_ms", "completion", "turns", "usage")
)


# --- the index ------------------------------------------------------------------------------------------------------

NAME: Final = "index.sqlite3"
DAMAGED: Final = (1, 11, 26)
"""SQLite's codes for other tables (SQLITE_ERROR), a damaged file (SQLITE_CORRUPT), and no database (SQLITE_NOTADB)."""

VERSION: Final = 8
"""Version of the tables; an index of another version is made anew."""

BUSY_SECONDS: Final = 0.5
"""How long to wait for another process that brings the index up to date; after that this one makes its own."""

TABLES: Final = (
    """
    CREATE TABLE runs (
        name TEXT PRIMARY KEY, run_id TEXT NOT NULL, parent_id TEXT, started_at TEXT NOT NULL,
        size INTEGER NOT NULL, changed INTEGER NOT NULL, row TEXT NOT NULL,
        activity TEXT
    )
    """,
    "CREATE INDEX runs_by_start ON runs (parent_id, started_at)",
    "CREATE INDEX runs_by_id ON runs (run_id)",
    f"PRAGMA user_version={VERSION}",
)

_ACTIVITIES: Final = "SELECT run_id, activity FROM runs WHERE activity IS NOT NULL"
_RUN: Final = msgspec.json.Decoder(StoredRun)

_KNOWN: Final = "SELECT name, size, changed FROM runs"
_ALL: Final = "SELECT name, row FROM runs ORDER BY started_at, changed"
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
        return self._select(_NEWEST, min(limit, MOST))

    def stopped_by(self, reason: str) -> tuple[StoredRun, ...]:
        """Return all runs but those over many that a stop of this reason has ended, in the order they began."""
        found = (run for _, run in self._runs(_ALL))
        return tuple(run for run in found if run.items is None and run.stop and run.stop["reason"] == reason)

    def children(self, run_id: str) -> tuple[StoredRun, ...]:
        """Return the runs directly below a run, in the order in which they began."""
        return with_superseded(self._select(_CHILDREN, run_id))

    def beginning_with(self, prefix: str) -> tuple[StoredRun, ...]:
        """Return up to four runs whose ids begin with a prefix."""
        return self._select(_BY_PREFIX, prefix)

    def path_of(self, run_id: str) -> Path | None:
        """Return the file of a run, or None if there is none."""
        for is_known in (True, False):  # the name of a file never changes
            found = self._runs("SELECT name, row FROM runs WHERE run_id = ?", run_id, refreshed=not is_known)
            path = self._store / RUNS / found[0][0] if found else None
            if path is not None and path.exists():
                return path
        return None

    def everything(self) -> tuple[tuple[str, StoredRun], ...]:
        """Return every run with the name of its file."""
        return tuple((name, self._with_owner(name, run)) for name, run in self._runs(_ALL))

    def activities(self) -> dict[str, Activity]:
        """Return what every run that has ended did itself, by its id, as of when the index was read last."""
        return dict(self._rows(_ACTIVITIES, (), ACTIVITY.decode, refreshed=False))

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
        return tuple(self._with_owner(name, run) for name, run in self._runs(query, value))

    def _with_owner(self, name: str, run: StoredRun) -> StoredRun:
        if run.ended_at is None and run.damage is None:
            path = self._store / RUNS / name
            running = is_owned(path)
            owner = last_owner(path) if running else None
            known = owner is not None and not is_dead(owner.mark)  # what takes a run over says so a moment later
            return replace(run, running=running, process=owner.mark.process if owner and known else None)
        return run

    def _runs(self, query: str, *values: str | int, refreshed: bool = True) -> list[tuple[str, StoredRun]]:
        return self._rows(query, values, _RUN.decode, refreshed=refreshed)

    def _rows(
        self, query: str, values: tuple[str | int, ...], decode: Callable[[str], Row], *, refreshed: bool
    ) -> list[tuple[str, Row]]:
        import sqlite3

        try:
            return self._asked(query, values, decode, refreshed=refreshed)
        except (sqlite3.Error, *UNREADABLE) as error:  # the files alone are the truth
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # SQLite does not notice every damage
            if code & 0xFF in DAMAGED and self._replaced(error):
                with suppress(sqlite3.Error, *UNREADABLE):
                    return self._asked(query, values, decode, refreshed=True)
            self._use_memory(error)
            return self._asked(query, values, decode, refreshed=True)

    def _use_memory(self, error: Exception) -> None:
        """Go on with an index in memory, because the file is locked or cannot be written."""
        import sqlite3

        logger().info("store.index_unusable", error=str(error))
        self.close()
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection = _with_tables(connection)

    def _replaced(self, error: Exception) -> bool:
        """Make a damaged file anew, unless that is not possible or another process does it; return whether it works.

        Whether it is damaged is looked at once more, under a lock: another process may have made it anew just now.
        """
        import sqlite3

        self.close()
        path = self._store / NAME
        try:
            with _locked(self._store / RUNS):
                try:
                    self._connection = _checked(path)
                except (sqlite3.DatabaseError, *UNREADABLE) as damage:
                    if isinstance(damage, sqlite3.Error) and is_locked(damage):
                        return False
                    for name in reversed(with_side_files(path)):
                        Path(name).unlink(missing_ok=True)
                    self._connection = _opened(path)
        except (OSError, sqlite3.Error):
            return False
        logger().info("store.index_replaced", error=str(error))
        return True

    def _asked(
        self, query: str, values: tuple[str | int, ...], decode: Callable[[str], Row], *, refreshed: bool
    ) -> list[tuple[str, Row]]:
        connection = self._connection = self._connection or _opened(self._store / NAME)
        if refreshed:
            self._refresh(connection)
        return [(name, decode(row)) for name, row in connection.execute(query, values).fetchall()]

    def _refresh(self, connection: sqlite3.Connection) -> None:
        """Bring the rows up to date with the files."""
        known = {name: (size, changed) for name, size, changed in connection.execute(_KNOWN)}
        rows: list[tuple[Any, ...]] = []
        with os.scandir(self._store / RUNS) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and is_storable(entry.name):
                    with suppress(FileNotFoundError):  # it was removed just now
                        at = entry.stat(follow_symlinks=False)
                        if known.pop(entry.name, None) != (at.st_size, at.st_mtime_ns):
                            rows.append(_row(Path(entry.path), at.st_size, at.st_mtime_ns))
        if rows or known:
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.executemany("DELETE FROM runs WHERE name = ?", [(name,) for name in known])
                connection.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise


def with_superseded(runs: Sequence[StoredRun]) -> tuple[StoredRun, ...]:
    """Return the runs directly below a run, in the order they began; items that were begun anew later say so.

    The clock may have been set back since one of them began. Only a run that failed, or that cannot go on, is followed
    by another one of its item; so one that stands is the newest, whatever the times say.
    """
    newest: dict[int | None, StoredRun] = {}
    for run in runs:
        known = newest.get(run.item_index)
        if known is None or _stands(run) or not _stands(known):
            newest[run.item_index] = run
    later = [run.item_index is not None and newest[run.item_index] is not run for run in runs]
    return tuple(replace(run, superseded=True) if old else run for run, old in zip(runs, later, strict=True))


def _stands(run: StoredRun) -> bool:
    """Return whether an item is not begun anew after this run of it: it is done, works, or goes on."""
    if run.ended_at is None:
        return run.running or run.is_resumable
    return run.stop is None or str(run.stop.get("reason")) in GO_ON


def _row(path: Path, size: int, changed: int) -> tuple[Any, ...]:
    run = stored_run(path)
    try:
        row = msgspec.json.encode(run).decode()
    except (OverflowError, *UNREADABLE) as error:  # one run must not keep the others from being listed
        run = _unreadable(path, error)
        row = msgspec.json.encode(run).decode()
    began = run.started_at.astimezone(UTC).isoformat()
    parent = "" if run.damage == NOT_BEGUN else run.parent_id
    did = None if run.ended_at is None else written(activity_of(path))
    return (path.name, run.run_id, parent, began, size, changed, row, did)


def _opened(path: Path, *, anew: bool = False) -> sqlite3.Connection:
    """Open an index; one of another version is emptied, and any if it is made anew."""
    import sqlite3

    if path.is_symlink():
        raise sqlite3.DatabaseError(f"{path} is a symbolic link")  # to a database of others, perhaps
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


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Keep others out who do the same; not by the file itself, because SQLite would lose its own locks on it.

    Raises:
        OSError: If another process is in.
    """
    if fcntl is None:
        yield
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _checked(path: Path) -> sqlite3.Connection:
    """Open an index all of which can be read."""
    import sqlite3

    connection = _opened(path)
    try:
        (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok":
            raise sqlite3.DatabaseError(said)
        for _, row in connection.execute(_ALL):
            msgspec.json.decode(row, type=StoredRun)
        for _, did in connection.execute(_ACTIVITIES):
            ACTIVITY.decode(did)
    except BaseException:
        connection.close()
        raise
    return connection


def _with_tables(connection: sqlite3.Connection, *, anew: bool = False) -> sqlite3.Connection:
    connection.execute("BEGIN IMMEDIATE")
    if anew or connection.execute("PRAGMA user_version").fetchone() != (VERSION,):
        connection.execute("DROP TABLE IF EXISTS runs")
        for statement in TABLES:
            connection.execute(statement)
    connection.execute("COMMIT")
    return connection
