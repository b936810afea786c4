"""The file of a ledger: its tables, and the statements that read and change them.

One SQLite file in WAL mode. ``settled`` holds what was used, by account and (for accounts across runs) by UTC day;
``reserved`` what each holder has reserved; ``holders`` when the lease of each holder ends. ``settled`` and ``reserved``
have a column for every count in `core.meters`; an older file gets missing columns when it is opened. Every read and
change is inside one transaction that keeps other writers out. Nothing here decides about calls. A file of another
program or another version is refused and not changed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from watchkeeper.accounting.account import COST, MODEL_CALLS, PREFIX, STEPS, TOTAL_TOKENS, shared_key
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import StoreError
from watchkeeper.core.limits import Period, period_days
from watchkeeper.core.meters import COLUMNS, SHARED
from watchkeeper.store.sqlite import RECOVER, Schema, chosen_file, connect, failing_as

VARIABLE: Final = "WATCHKEEPER_LEDGER"
KEEP_SECONDS: Final = 400 * 86_400.0
"""Figures without an addition for this time are deleted when the file is opened."""

RESERVED: Final = tuple(meter.column for meter in SHARED)
"""What can be reserved: the first of `COLUMNS`, which are in the order of `Account.settled`."""


def _numbers(columns: Iterable[str]) -> dict[str, str]:
    # An INTEGER that overflows becomes a REAL in SQLite; a ledger must fail rather than round.
    return {name: f"INTEGER NOT NULL DEFAULT 0 CHECK (typeof({name}) = 'integer')" for name in columns}


def _columns(definitions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {definition}" for name, definition in definitions.items())


NUMBERS: Final = {"settled": _numbers(COLUMNS), "reserved": _numbers(RESERVED)}

SCHEMA: Final = Schema(
    noun="ledger",
    application_id=0x574B4C47,  # WKLG
    version=1,
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
        """
        CREATE TABLE holders (
            holder TEXT PRIMARY KEY,
            process INTEGER NOT NULL,
            renewed_at REAL NOT NULL,
            lease_seconds REAL NOT NULL
        ) WITHOUT ROWID
        """,
    ),
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
    SET {_ADDED}, unpriced = max(unpriced, excluded.unpriced), used_at = excluded.used_at
    """  # noqa: S608
_HOLD: Final = f"""
    INSERT OR REPLACE INTO reserved (name, holder, {_KEPT}, moving) VALUES ({", ".join("?" * (len(RESERVED) + 3))})
    """  # noqa: S608


class Held(NamedTuple):
    """What other holders have reserved at an account, by count, and how much of it will be released as calls end."""

    amounts: tuple[int, ...]
    moving: tuple[int, ...]


NONE_HELD: Final = Held((0,) * len(RESERVED), (0,) * len(RESERVED))


class LedgerFile:
    """One connection to the file of a ledger; its owner keeps other threads out.

    Attributes:
        path: The file.
    """

    __slots__ = ("_busy_seconds", "_connection", "path")

    def __init__(self, path: Path, busy_seconds: float) -> None:
        """Remember where the file is; it is opened when it is first used.

        Args:
            path: The file.
            busy_seconds: How long to wait for other processes that write to it.
        """
        self.path = path
        self._busy_seconds = busy_seconds
        self._connection: sqlite3.Connection | None = None

    def begin(self) -> None:
        """Begin a transaction that keeps all other writers out.

        Raises:
            sqlite3.Error: If the file cannot be used, or is held by others for too long.
            StoreError: If it is not the file of a ledger, or of another version.
        """
        connection = self._connection
        if connection is None:
            connection = self._connection = connect(self.path, SCHEMA, self._busy_seconds)
        connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit the transaction."""
        self._used.execute("COMMIT")

    def rollback(self) -> None:
        """Undo the changes of the transaction; does nothing outside one.

        If that fails, the connection is closed; the next transaction opens another.
        """
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        """Close the file; it is opened again if it is used again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abandon(self) -> object:
        """Give up the connection without closing it, and return it: after a fork it belongs to the parent."""
        connection, self._connection = self._connection, None
        return connection

    # --- inside a transaction -----------------------------------------------------------------------------------------

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

    def renew(self, holder: str, now: float, lease_seconds: float) -> None:
        """Renew the lease of a holder."""
        row = (holder, os.getpid(), now, lease_seconds)
        self._used.execute("INSERT OR REPLACE INTO holders VALUES (?, ?, ?, ?)", row)

    def release_all(self, holder: str) -> None:
        """Release all reservations of a holder, and forget it."""
        self._used.execute("DELETE FROM reserved WHERE holder = ?", (holder,))
        self._used.execute("DELETE FROM holders WHERE holder = ?", (holder,))

    def release_expired(self, now: float, but: str) -> None:
        """Release the reservations of every holder whose lease is over, except one.

        A lease that seems to begin in the future was renewed before the clock went back; it begins now.
        """
        query = "SELECT holder, renewed_at, lease_seconds FROM holders"
        for holder, renewed_at, lease in self._used.execute(query).fetchall():
            if holder == but:
                continue
            if renewed_at > now:
                self._used.execute("UPDATE holders SET renewed_at = ? WHERE holder = ?", (now, holder))
            elif renewed_at + lease <= now:
                self.release_all(holder)

    def forget(self, before: float) -> None:
        """Delete figures without an addition since a time."""
        self._used.execute("DELETE FROM settled WHERE used_at < ?", (before,))

    @property
    def _used(self) -> sqlite3.Connection:
        assert self._connection is not None, "outside a transaction"
        return self._connection


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
    """

    cost_nanos: int | None
    tokens: int
    model_calls: int
    steps: int


@dataclass(frozen=True, slots=True)
class AccountReport:
    """The figures of one account.

    Attributes:
        name: Its name.
        day: What was used today, in UTC.
        month: What was used this month.
        held_nanos: Money that calls under way, in all processes, have set aside.
        held_tokens: Tokens that they have.
    """

    name: str
    day: Used
    month: Used
    held_nanos: int
    held_tokens: int


def account_reports(path: Path, name: str | None = None, clock: Clock = SYSTEM_CLOCK) -> tuple[AccountReport, ...]:
    """Return the figures of an account, or of all accounts in the file.

    Args:
        path: The ledger's file.
        name: Of one account; None for all.
        clock: Says what day it is.

    Raises:
        StoreError: If there is no such file, it cannot be read, or it has no such account.
    """
    if not path.is_file():
        raise StoreError(f"there is no ledger {path} yet; the first run under an account makes it")
    file = LedgerFile(path, BUSY_SECONDS)
    try:
        with ledger_failures(path):
            file.begin()
            now = clock.now()
            file.release_expired(now.timestamp(), NOBODY)
            known = [key.removeprefix(PREFIX) for key in file.names() if key.startswith(PREFIX)]
            if name is not None and name not in known:
                raise StoreError(f"{path} has no account {name!r}; accounts: {', '.join(known) or 'none'}")
            reports = tuple(_report_of(file, each, now) for each in known if name in (None, each))
            file.commit()
            return reports
    except (TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"the ledger {path} cannot be read ({error}){RECOVER}") from error
    finally:
        file.rollback()
        file.close()


def _report_of(file: LedgerFile, name: str, now: datetime) -> AccountReport:
    """Return the figures of one account, inside a transaction."""
    key = shared_key(name)

    def used_in(period: Period) -> Used:
        first, last = period_days(period, now)
        settled, unpriced = file.settled(key, first.isoformat(), last.isoformat())
        cost = None if unpriced else settled[COST]
        return Used(cost, settled[TOTAL_TOKENS], settled[MODEL_CALLS], settled[STEPS])

    held = file.reserved(key, NOBODY).amounts
    return AccountReport(name, used_in("day"), used_in("month"), held[COST], held[TOTAL_TOKENS])
