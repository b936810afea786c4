"""What accounts across runs have used, for people: the present day, the present month, and what is held right now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from watchkeeper.containment.account import COST, MODEL_CALLS, STEPS, TOTAL_TOKENS
from watchkeeper.containment.shared_account import PREFIX, shared_key
from watchkeeper.core.account_limit import Period, period_days
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import StoreError
from watchkeeper.store.ledger_file import LedgerFile, failures_named

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
        with failures_named(path):
            file.begin()
            now = clock.now()
            file.bury(now.timestamp(), NOBODY)
            known = [key.removeprefix(PREFIX) for key in file.names() if key.startswith(PREFIX)]
            if name is not None and name not in known:
                raise StoreError(f"{path} has no account {name!r}; accounts: {', '.join(known) or 'none'}")
            reports = tuple(report_of(file, each, now) for each in known if name in (None, each))
            file.commit()
            return reports
    finally:
        file.rollback()
        file.close()


def report_of(file: LedgerFile, name: str, now: datetime) -> AccountReport:
    """Return the figures of one account, inside a transaction."""
    held = file.reserved(shared_key(name), NOBODY).amounts
    return AccountReport(
        name, used_in(file, name, "day", now), used_in(file, name, "month", now), held[COST], held[TOTAL_TOKENS]
    )


def used_in(file: LedgerFile, name: str, period: Period, now: datetime) -> Used:
    """Return what was used under an account in a period."""
    first, last = period_days(period, now)
    settled, unpriced = file.settled(shared_key(name), first.isoformat(), last.isoformat())
    return Used(None if unpriced else settled[COST], settled[TOTAL_TOKENS], settled[MODEL_CALLS], settled[STEPS])
