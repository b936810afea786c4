"""The file of a ledger: its tables, and the statements that read and change them.

One SQLite file in WAL mode. ``settled`` holds what was used, by account and (for accounts across runs) by UTC day;
``reserved`` what each holder has reserved; ``holders`` when the lease of each holder ends; ``calls`` the worst case of
each call whose truth is not known yet; ``openings`` the days on which the file was opened. ``settled`` and ``reserved``
have a column for every count in `core.meters`; an older file is brought to this version when it is opened. Every read
and change is inside one transaction that keeps other writers out. Nothing here decides about calls. A file of another
program or a newer version is refused and not changed.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

from watchkeeper.accounting.account import (
    COST,
    INPUT_TOKENS,
    MODEL_CALLS,
    OUTPUT_TOKENS,
    PREFIX,
    PRESUMED_CALLS,
    PRESUMED_COST,
    PRESUMED_INPUT,
    PRESUMED_OUTPUT,
    STEPS,
    TOTAL_TOKENS,
    presumed_in,
    shared_key,
)
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import StoreError
from watchkeeper.accounting.limits import Period, period_days
from watchkeeper.core.meters import COLUMNS, SHARED
from watchkeeper.core.usage import NOTHING_PRESUMED, Presumed, TokenUsage
from watchkeeper.disk.liveness import ProcessMark, is_dead, own_mark
from watchkeeper.disk.sqlite import (
    RECOVER,
    Identity,
    Schema,
    chosen_file,
    connect,
    failing_as,
    identities,
    is_locked,
    refuse_second_name,
    replaced,
)

VARIABLE: Final = "WATCHKEEPER_LEDGER"
FORGET_LOCK_SECONDS: Final = 1.0
"""After so long without an attempt, a file that is locked again counts as locked only since then."""
SAVE_SECONDS: Final = 0.5
"""How long to wait for others who find at the same moment that a side file is gone."""
KEEP_SECONDS: Final = 400 * 86_400.0
"""Figures without an addition for this time may be deleted when the file is opened."""
ATTESTED_SECONDS: Final = 30 * 86_400.0
"""At most so much of the time between two openings counts for that: a wrong clock makes it seem long."""
SEEN_DAYS: Final = 30
"""Number of other days since then on which the file must have been opened: one wrong clock reading deletes nothing."""

RESERVED: Final = tuple(meter.column for meter in SHARED)
"""The counts that can be reserved: the first of `COLUMNS`, which are in the order of `Account.settled`."""


def _numbers(columns: Iterable[str]) -> dict[str, str]:
    # An INTEGER that overflows becomes a REAL in SQLite; a ledger must fail rather than round.
    return {name: f"INTEGER NOT NULL DEFAULT 0 CHECK (typeof({name}) = 'integer')" for name in columns}


def _columns(definitions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {definition}" for name, definition in definitions.items())


NUMBERS: Final = {"settled": _numbers(COLUMNS), "reserved": _numbers(RESERVED)}

HOLDERS: Final = """
    CREATE TABLE holders (
        holder TEXT PRIMARY KEY,
        process INTEGER NOT NULL,
        started TEXT NOT NULL,
        machine TEXT NOT NULL,
        renewed_at REAL NOT NULL,
        lease_seconds REAL NOT NULL
    ) WITHOUT ROWID
    """

CALLS: Final = """
    CREATE TABLE calls (
        id TEXT NOT NULL,
        name TEXT NOT NULL,
        holder TEXT NOT NULL,
        day TEXT NOT NULL,
        operation TEXT NOT NULL,
        cost_nanos INTEGER NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        unpriced INTEGER NOT NULL,
        state TEXT NOT NULL,
        since REAL NOT NULL,
        PRIMARY KEY (id, name)
    ) WITHOUT ROWID
    """

OPENINGS: Final = "CREATE TABLE openings (day TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID"

SCHEMA: Final = Schema(
    noun="ledger",
    application_id=0x574B4C47,  # WKLG
    version=2,
    page_bytes=1024,
    other_file=f"name another file (ledger=..., {VARIABLE})",
    columns=NUMBERS,
    tables=(
        f"""
        CREATE TABLE settled (
            name TEXT NOT NULL,
            day TEXT NOT NULL,
            {_columns(NUMBERS["settled"])},
            unpriced INTEGER NOT NULL,
            used_at REAL NOT NULL,
            PRIMARY KEY (name, day)
        ) WITHOUT ROWID
        """,
        f"""
        CREATE TABLE reserved (
            name TEXT NOT NULL,
            holder TEXT NOT NULL,
            {_columns(NUMBERS["reserved"])},
            moving INTEGER NOT NULL,
            PRIMARY KEY (name, holder)
        ) WITHOUT ROWID
        """,
        HOLDERS,
        CALLS,
        OPENINGS,
    ),
    steps={
        # Reservations of a holder of version 1 are released: its single calls are not recorded.
        1: ("DROP TABLE holders", "DELETE FROM reserved", HOLDERS, CALLS, OPENINGS),
    },
)

_USED: Final = ", ".join(COLUMNS)
_KEPT: Final = ", ".join(RESERVED)
_ADDED: Final = ", ".join(f"{name} = {name} + excluded.{name}" for name in COLUMNS)
_MARKS: Final = ", ".join("?" * (len(COLUMNS) + 4))
_SETTLED: Final = f"SELECT {_USED}, unpriced FROM settled WHERE name = ? AND day BETWEEN ? AND ?"  # noqa: S608
_RESERVED: Final = f"SELECT {_KEPT}, moving FROM reserved WHERE name = ? AND holder <> ?"  # noqa: S608
_BOOK: Final = f"""
    INSERT INTO settled (name, day, {_USED}, unpriced, used_at) VALUES ({_MARKS})
    ON CONFLICT (name, day) DO UPDATE
    SET {_ADDED}, unpriced = max(unpriced, excluded.unpriced), used_at = max(used_at, excluded.used_at)
    """  # noqa: S608
_HOLD: Final = f"""
    INSERT OR REPLACE INTO reserved (name, holder, {_KEPT}, moving) VALUES ({", ".join("?" * (len(RESERVED) + 3))})
    """  # noqa: S608
_CALL: Final = "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_NEW_CALL: Final = _CALL.replace("REPLACE", "IGNORE")


State = Literal["running", "lost", "left", "corrected"]
"""State of a call: ``running``; ``lost`` because its holder's lease ended; ``left`` by a process that continues; or
``corrected`` by hand. Nothing is booked for a running call; for the others their amounts are booked."""


class CallRow(NamedTuple):
    """A call whose real charge is not known, under one name: its worst case, or the booking until the charge is known.

    Attributes:
        id: The id of the call, the same as in the log and in snapshots.
        name: The account.
        holder: Id of the holder that made the call.
        day: The day for which it counts; empty for an account without days.
        operation: A label for people.
        cost_nanos: Money.
        input_tokens: Input.
        output_tokens: Output.
        unpriced: Whether its price is not known.
        state: Its state.
        since: Wall time at which this state became known, in seconds since 1970.
    """

    id: str
    name: str
    holder: str
    day: str
    operation: str
    cost_nanos: int
    input_tokens: int
    output_tokens: int
    unpriced: bool
    state: State
    since: float

    def booked(self) -> list[int]:
        """Return what is booked for it, by count."""
        if self.state == "running":
            return [0] * len(COLUMNS)
        return figures(self.cost_nanos, self.input_tokens, self.output_tokens, presumed=self.state != "corrected")


def figures(cost_nanos: int, input_tokens: int, output_tokens: int, *, presumed: bool) -> list[int]:
    """Return by count what a call books."""
    counts = [0] * len(COLUMNS)
    counts[COST], counts[TOTAL_TOKENS] = cost_nanos, input_tokens + output_tokens
    counts[INPUT_TOKENS], counts[OUTPUT_TOKENS] = input_tokens, output_tokens
    if presumed:
        counts[PRESUMED_CALLS], counts[PRESUMED_COST] = 1, cost_nanos
        counts[PRESUMED_INPUT], counts[PRESUMED_OUTPUT] = input_tokens, output_tokens
    return counts


class Held(NamedTuple):
    """What other holders have reserved at an account, by count, and how much of it will be released as calls end."""

    amounts: tuple[int, ...]
    moving: tuple[int, ...]


NONE_HELD: Final = Held((0,) * len(RESERVED), (0,) * len(RESERVED))


class LockSeen(NamedTuple):
    """Since when others have held the file locked, and when that was last seen, in real monotonic seconds."""

    since: float
    last: float


class LedgerFile:
    """One connection to the file of a ledger; its owner keeps other threads out.

    Attributes:
        path: The file.
    """

    __slots__ = ("_busy_seconds", "_connection", "_found", "_identity", "_locked", "_openings", "path")

    def __init__(self, path: Path, busy_seconds: float) -> None:
        """Remember where the file is; it is opened when it is first used.

        Args:
            path: The file.
            busy_seconds: How long to wait for other processes that write to it.
        """
        self.path = path
        self._busy_seconds = busy_seconds
        self._connection: sqlite3.Connection | None = None
        self._openings = 0
        self._locked: LockSeen | None = None
        self._identity: Identity = None
        self._found: tuple[Identity, ...] = ()

    def begin(self) -> None:
        """Begin a transaction that keeps all other writers out.

        Raises:
            sqlite3.Error: If the file cannot be used, or is held by others for too long.
            StoreError: If it is no ledger, of another version, has two names, or was deleted or replaced in use.
        """
        try:
            self._begin()
        except sqlite3.OperationalError as error:
            if is_locked(error):
                self._found_locked()
            raise
        # A process that writes into a deleted file shares its figures with no other, so a ceiling could be spent twice.
        found = identities(self.path)
        if found != self._found:
            if self._found or self._identity not in (None, found[0]):
                if found[0] == self._identity and {*found} <= {*self._found, None}:  # nobody has made one anew yet
                    self._save()
                raise replaced(self.path, itself=found[0] != self._identity)
            self._found, self._identity = found, found[0]

    def _begin(self) -> None:
        """Open the file if need be, and begin a transaction."""
        if self._connection is None:
            if self._identity is not None and self._identity != identities(self.path)[0]:
                raise replaced(self.path, itself=True)
            refuse_second_name(self.path)
            self._connection = connect(self.path, SCHEMA, 0.0 if self._locked else self._busy_seconds)
            self._found = ()
            self._openings += 1
        self._used.execute("BEGIN IMMEDIATE")
        if self._locked is not None:
            self._locked = None
            self._wait_for_others(self._busy_seconds)

    def _save(self) -> None:
        """Copy into the file itself what is only in its side files: one is gone, and SQLite would begin a new one."""
        self.rollback()
        self._wait_for_others(SAVE_SECONDS)
        self._used.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _found_locked(self) -> None:
        """Note that others hold the file: until an attempt succeeds, none of them waits."""
        now, before = SYSTEM_CLOCK.monotonic(), self._locked
        if before is None or now - before.last > FORGET_LOCK_SECONDS:
            before = LockSeen(now - self._busy_seconds, now)
        self._locked = before._replace(last=now)
        self._wait_for_others(0.0)

    def _wait_for_others(self, seconds: float) -> None:
        if self._connection is not None:
            self._connection.execute(f"PRAGMA busy_timeout={seconds * 1000:.0f}")

    @property
    def locked_seconds(self) -> float:
        """For how long others have held the file locked at every attempt; real seconds, like those of SQLite."""
        return 0.0 if self._locked is None else SYSTEM_CLOCK.monotonic() - self._locked.since

    def commit(self) -> None:
        """Commit the transaction."""
        self._used.execute("COMMIT")

    def rollback(self) -> bool:
        """Undo the changes of the transaction, and return whether there was one.

        If that fails, the connection is closed; the next transaction opens another.
        """
        if self._connection is None or not self._connection.in_transaction:
            return False
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()
        return True

    def close(self) -> None:
        """Close the file; it is opened again if it is used again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- inside a transaction -----------------------------------------------------------------------------------------

    def version(self) -> tuple[int, int]:
        """Return a version that changes when other processes have changed the file, or when it is opened again."""
        (version,) = self._used.execute("PRAGMA data_version").fetchone()
        return self._openings, version

    def settled(self, name: str, first: str = "", last: str = "") -> tuple[list[int], bool]:
        """Return what was used under a name from one day to another, and whether some of it has no known price."""
        total, unpriced = [0] * len(COLUMNS), False
        for row in self._used.execute(_SETTLED, (name, first, last)):
            total = [one + other for one, other in zip(total, row, strict=False)]
            unpriced = unpriced or bool(row[-1])
        return total, unpriced

    def names(self) -> list[str]:
        """Return all names that have figures, sorted."""
        query = "SELECT name FROM settled UNION SELECT name FROM reserved ORDER BY name"
        return [name for (name,) in self._used.execute(query)]

    def reserved(self, name: str, but: str) -> Held:
        """Return what all holders but one have reserved under a name."""
        rows = self._used.execute(_RESERVED, (name, but)).fetchall()
        if not rows:
            return NONE_HELD
        amounts = tuple(sum(row[count] for row in rows) for count in range(len(RESERVED)))
        moving = tuple(sum(row[count] for row in rows if row[-1] >> count & 1) for count in range(len(RESERVED)))
        return Held(amounts, moving)

    def add_used(self, name: str, day: str, change: Sequence[int], unpriced: bool, now: float) -> None:
        """Add to what was used."""
        self._used.execute(_BOOK, (name, day, *change, int(unpriced), now))

    def reserve(self, name: str, holder: str, amounts: Sequence[int], moving: int) -> None:
        """Write what a holder has reserved under a name."""
        if any(amounts):
            self._used.execute(_HOLD, (name, holder, *amounts, moving))
        else:
            self._used.execute("DELETE FROM reserved WHERE name = ? AND holder = ?", (name, holder))

    # --- leases -------------------------------------------------------------------------------------------------------
    # Instants of leases are monotonic: they count from the boot, the same for all processes, and no change of the wall
    # clock moves them.

    def renew(self, holder: str, instant: float, lease_seconds: float) -> None:
        """Renew the lease of a holder."""
        row = (holder, *own_mark(), instant, lease_seconds)
        self._used.execute("INSERT OR REPLACE INTO holders VALUES (?, ?, ?, ?, ?, ?)", row)

    def has_lease(self, holder: str) -> bool:
        """Return whether a holder still has its lease and its reservations."""
        found = self._used.execute("SELECT 1 FROM holders WHERE holder = ?", (holder,)).fetchone()
        return found is not None

    def release_all(self, holder: str, now: float) -> None:
        """Release all reservations of a holder, presume the worst case of its calls, and delete the holder."""
        for row in self._calls("holder = ? AND state = 'running'", holder):
            self._put(row._replace(state="lost", since=now), row.booked())
        self._used.execute("DELETE FROM reserved WHERE holder = ?", (holder,))
        self._used.execute("DELETE FROM holders WHERE holder = ?", (holder,))

    def release_expired(self, instant: float, now: float, but: str, *, ask_for_dead: bool = True) -> float:
        """Release the reservations of every holder whose lease has ended, except one.

        A lease that seems to begin in the future was renewed before a reboot, so its process has ended.

        Args:
            instant: The monotonic instant.
            now: The wall time, in seconds since 1970.
            but: The holder who asks.
            ask_for_dead: Whether to ask the machine if a process is dead; that takes some microseconds for each.

        Returns:
            The instant at which the next lease ends unless it is renewed; infinity if no other holder has a lease.
        """
        next_end = math.inf
        for holder, *mark, renewed_at, lease in self._used.execute("SELECT * FROM holders").fetchall():
            if holder != but and (
                not 0 <= instant - renewed_at < lease or (ask_for_dead and is_dead(ProcessMark(*mark)))
            ):
                self.release_all(holder, now)
            elif holder != but:
                next_end = min(next_end, renewed_at + lease)
        return next_end

    # --- calls whose real charge is not known -------------------------------------------------------------------------

    def begin_call(self, row: CallRow) -> None:
        """Note the worst case of a call that begins, or what was booked for one that was left behind.

        What is known of that call already stays: a person may have said what it came to.
        """
        self._used.execute(_NEW_CALL, row)

    def end_call(self, call: str, name: str) -> CallRow | None:
        """Delete a call whose real charge is now known; return its row if something was booked for it here."""
        ended = self._used.execute("DELETE FROM calls WHERE id = ? AND name = ? AND state = 'running'", (call, name))
        if ended.rowcount:
            return None
        for row in self._calls("id = ? AND name = ?", call, name):
            self._used.execute("DELETE FROM calls WHERE id = ? AND name = ?", (call, name))
            return row
        return None

    def revive(self, holder: str) -> None:
        """Undo the presumed bookings of a holder that seemed to be dead: its calls are still running."""
        for row in self._calls("holder = ? AND state = 'lost'", holder):
            self._put(row._replace(state="running"), row.booked())

    def presumed(self, name: str) -> list[CallRow]:
        """Return the calls under a name whose worst case is presumed, oldest first."""
        rows = self._calls("name = ? AND state IN ('lost', 'left')", name)
        return sorted(rows, key=lambda row: (row.since, row.id))

    def unsettled(self) -> list[CallRow]:
        """Return the calls that can be corrected by hand, also once more."""
        return self._calls("state <> 'running'")

    def correct(self, call: str, cost_nanos: int, tokens: TokenUsage | None) -> list[CallRow]:
        """Book the real charge of a call by hand, instead of the presumed one; return its former rows."""
        before = self._calls("id = ? AND state <> 'running'", call)
        for row in before:
            now = row._replace(state="corrected", cost_nanos=cost_nanos)
            if tokens is not None:
                now = now._replace(input_tokens=tokens.input_tokens, output_tokens=tokens.output_tokens)
            self._put(now, row.booked())
        return before

    def _put(self, row: CallRow, booked: Sequence[int]) -> None:
        """Replace a call's row, and what is booked for it."""
        change = [new - old for new, old in zip(row.booked(), booked, strict=True)]
        self._used.execute(_CALL, row)
        self.add_used(row.name, row.day, change, row.unpriced and row.state != "running", row.since)

    def _calls(self, condition: str, *values: str) -> list[CallRow]:
        rows = self._used.execute(f"SELECT * FROM calls WHERE {condition}", values)  # noqa: S608
        return [CallRow(*row) for row in rows.fetchall()]

    def forget(self, now: datetime) -> None:
        """Record that the file is opened today, and delete figures that were not added to for a long time.

        A single clock reading may be wrong. So figures are deleted only if the file was also opened on many days since
        the last addition, and of the time between two openings only some weeks count; else they stay.
        """
        today, instant = now.date().isoformat(), now.timestamp()
        self._used.execute("INSERT OR IGNORE INTO openings VALUES (?, ?)", (today, instant))
        openings = self._used.execute("SELECT at FROM openings WHERE at <= ? ORDER BY at DESC", (instant,))
        old = long_ago(instant, (at for (at,) in openings.fetchall()))
        query = "SELECT count(*) FROM openings WHERE at BETWEEN ? AND ?"
        (seen,) = self._used.execute(query, (old, instant)).fetchone()
        if seen > SEEN_DAYS:
            for table, column in (("settled", "used_at"), ("calls", "since"), ("openings", "at")):
                self._used.execute(f"DELETE FROM {table} WHERE {column} < ?", (old,))  # noqa: S608

    @property
    def _used(self) -> sqlite3.Connection:
        assert self._connection is not None, "outside a transaction"
        return self._connection


def long_ago(instant: float, openings: Iterable[float]) -> float:
    """Return the instant since which figures are kept: `KEEP_SECONDS` before another, by what the openings attest.

    Args:
        instant: The other instant.
        openings: The instants of openings up to it, the latest first.
    """
    left = KEEP_SECONDS
    for opened in openings:
        counted = min(instant - opened, ATTESTED_SECONDS)
        if counted >= left:
            return instant - left
        left, instant = left - counted, opened
    return -math.inf


def ledger_path(where: Path | str, environ: Mapping[str, str] | None = None) -> Path:
    """Return the file that ``where`` means: a path, or ``default`` for the user's own.

    The user's own is what ``WATCHKEEPER_LEDGER`` names, else a file in the user's data folder, beside that of the runs.
    """
    found = chosen_file(where, VARIABLE, "ledger.sqlite3", frozenset(), environ)
    if found is None:
        raise TypeError("the place of a ledger must be a path or 'default', not None")
    return found


def ledger_failures(path: Path) -> AbstractContextManager[None]:
    """Turn errors of a ledger's file into a StoreError that says what happens now."""
    return failing_as(f"the ledger {path} cannot be used", "; calls that it counts are refused until it can")


# --- ledger report --------------------------------------------------------------------------------------------------
# What accounts across runs have used, for people: the present day, the present month, and what is held right now.

BUSY_SECONDS: Final = 10.0
NOBODY: Final = ""


@dataclass(frozen=True, slots=True)
class Used:
    """What was used in one period.

    Attributes:
        cost_nanos: Money; None if something that was used has no known price.
        tokens: Input and output tokens.
        model_calls: Calls of models.
        steps: Calls of any kind.
        presumed: The part of tokens and money that is presumed, because the real charge is not known.
    """

    cost_nanos: int | None
    tokens: int
    model_calls: int
    steps: int
    presumed: Presumed = NOTHING_PRESUMED


@dataclass(frozen=True, slots=True)
class PresumedCall:
    """A call whose worst case is presumed, because its real charge is not known.

    Attributes:
        id: Its id, the same as in the log of the run and in snapshots.
        operation: Name of the called operation.
        day: The day (UTC) for which it counts; empty for a chain, which has no days.
        cost_nanos: The most that it can have cost; None if its price is not known.
        tokens: The most that it can have used.
        since: Since when this is presumed, in UTC.
        reason: ``lost`` if its process or lease ended, or ``left`` if it was abandoned without an answer.
    """

    id: str
    operation: str
    day: str
    cost_nanos: int | None
    tokens: TokenUsage
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class AccountReport:
    """The figures of one account.

    Attributes:
        name: Its name.
        day: What was used today, in UTC.
        month: What was used this month.
        held_nanos: Money that calls under way, in all processes, have set aside.
        held_tokens: Tokens that these calls have set aside.
        presumed: The calls whose real charge is not known, oldest first; see `settle_by_hand`.
    """

    name: str
    day: Used
    month: Used
    held_nanos: int
    held_tokens: int
    presumed: tuple[PresumedCall, ...] = ()


def account_reports(path: Path, name: str | None = None, clock: Clock = SYSTEM_CLOCK) -> tuple[AccountReport, ...]:
    """Return the figures of an account, or of all accounts in the file.

    Args:
        path: The ledger's file.
        name: Of one account; None for all.
        clock: Says what day it is.

    Raises:
        StoreError: If there is no such file, it cannot be read, or it has no such account.
    """
    with _transaction(path, clock) as file:
        known = [key.removeprefix(PREFIX) for key in file.names() if key.startswith(PREFIX)]
        if name is not None and name not in known:
            raise StoreError(f"{path} has no account {name!r}; accounts: {', '.join(known) or 'none'}")
        return tuple(_report_of(file, each, clock.now()) for each in known if name in (None, each))


def settle_by_hand(
    path: Path, call: str, cost_nanos: int, tokens: TokenUsage | None = None, clock: Clock = SYSTEM_CLOCK
) -> tuple[PresumedCall, ...]:
    """Book the real charge of a call from the provider's bill, instead of the presumed one.

    If the process that made the call later learns the real charge, that replaces the charge booked by hand.

    Args:
        path: The ledger's file.
        call: The id of the call; its beginning is enough if no other call has it.
        cost_nanos: Its cost in nano-dollars.
        tokens: Tokens that it used; None keeps the presumed tokens.
        clock: Says which leases are over.

    Returns:
        What was booked for it before, for each account or chain in which it counts.

    Raises:
        StoreError: If there is no such ledger, it cannot be used, or it presumes nothing for such a call.
    """
    with _transaction(path, clock) as file:
        ids = {row.id for row in file.unsettled() if row.id.startswith(call.strip().lower())}
        if len(ids) != 1 or not call.strip():
            what = "several calls whose ids begin with" if ids and call.strip() else "no presumed call"
            raise StoreError(f"the ledger {path} has {what} {call!r}; 'watchkeeper account' lists them")
        return tuple(_presumed_call(row) for row in file.correct(ids.pop(), cost_nanos, tokens))


@contextmanager
def _transaction(path: Path, clock: Clock) -> Generator[LedgerFile]:
    """Open a ledger for one transaction, after releasing the reservations of processes that have ended."""
    if not path.is_file():
        raise StoreError(f"there is no ledger {path} yet; the first run under an account makes it")
    file = LedgerFile(path, BUSY_SECONDS)
    try:
        with ledger_failures(path):
            file.begin()
            file.release_expired(clock.monotonic(), clock.now().timestamp(), NOBODY)
            yield file
            file.commit()
    except (TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"the ledger {path} cannot be read ({error}){RECOVER}") from error
    finally:
        file.rollback()
        file.close()


def _presumed_call(row: CallRow) -> PresumedCall:
    """Return the row of a presumed call as a value for people."""
    return PresumedCall(
        id=row.id,
        operation=row.operation,
        day=row.day,
        cost_nanos=None if row.unpriced else row.cost_nanos,
        tokens=TokenUsage(row.input_tokens, row.output_tokens),
        since=datetime.fromtimestamp(row.since, UTC),
        reason=row.state,
    )


def _report_of(file: LedgerFile, name: str, now: datetime) -> AccountReport:
    """Return the figures of one account, inside a transaction."""
    key = shared_key(name)

    def used_in(period: Period) -> Used:
        first, last = period_days(period, now)
        settled, unpriced = file.settled(key, first.isoformat(), last.isoformat())
        cost = None if unpriced else settled[COST]
        presumed = presumed_in(settled, unpriced=unpriced)
        return Used(cost, settled[TOTAL_TOKENS], settled[MODEL_CALLS], settled[STEPS], presumed)

    held = file.reserved(key, NOBODY).amounts
    calls = tuple(_presumed_call(row) for row in file.presumed(key))
    return AccountReport(name, used_in("day"), used_in("month"), held[COST], held[TOTAL_TOKENS], calls)
