"""The figures of one context: its ceilings, what is settled, what is reserved, what stopped it.

Accounts form a parent chain: whatever an account uses is counted in it and in every account above it, so a parent's
ceilings bound all its descendants together. What an account has carved from those above it is set aside there as a
claim; inside it reservations go no further up, and what is settled turns from claimed into spent. An account is plain
data; the ledger changes it, under one lock per tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from operator import attrgetter
from typing import Final, NamedTuple

from watchkeeper.core.budget import BudgetStatus, is_told
from watchkeeper.core.clock import Clock, Deadline
from watchkeeper.core.errors import Stop
from watchkeeper.core.limits import Limits, Period
from watchkeeper.core.meters import COLUMNS, SHARED
from watchkeeper.core.usage import TokenUsage, Usage

# What is counted, as indexes of the lists below: the columns of the table of meters. Those that can have a ceiling come
# first; admission checks them in this order.
COST, TOTAL_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, STEPS, TOOL_CALLS, RETRIES = map(
    COLUMNS.index, ("cost_nanos", "total_tokens", "input_tokens", "output_tokens", "steps", "tool_calls", "retries")
)
CACHED_TOKENS, CACHE_WRITE_TOKENS, REASONING_TOKENS, MODEL_CALLS = map(
    COLUMNS.index, ("cached_tokens", "cache_write_tokens", "reasoning_tokens", "model_calls")
)

LIMITED: Final = len(SHARED)
"""How many of them can have a ceiling."""

CEILINGS: Final = tuple(meter.ceiling for meter in SHARED)
"""Attribute of `Limits` for each count that can have a ceiling."""

ceilings_of: Final = attrgetter(*CEILINGS)
"""Returns the ceilings of limits, in that order."""

NOTHING: Final[tuple[int, ...]] = (0,) * LIMITED

OTHERS: Final = tuple((count, meter) for count, meter in enumerate(SHARED) if meter.status is None)
"""The meters that have no fields of their own in `BudgetStatus`."""


class Claim:
    """What one account has carved of one count from those above it, and may still use.

    Attributes:
        account: Who has carved it.
        count: Of what.
        outer: Where it is set aside: the accounts above, up to the next one that has carved the same count itself.
        amount: How much of it is set aside now.
    """

    __slots__ = ("account", "amount", "count", "outer")

    def __init__(self, account: Account, count: int, outer: tuple[Account, ...]) -> None:
        """Claim nothing yet."""
        self.account = account
        self.count = count
        self.outer = outer
        self.amount = 0


Row = tuple[int, int, "Account"]
"""``(count, ceiling, account)``."""


class Account:
    """One context's figures.

    Attributes:
        chain: This account and all above it, innermost first.
        key: What a ledger that several processes share knows it by; None for an account of this process alone.
        period: Whether it begins anew with every day or month (UTC); None for an account that never does.
        renews_on: The day on which it does next; set by the ledger that keeps it.
        tops: Its own ceilings by count, as they are in force: what was carved, where that is less than what was wished.
        carves: Whether its ceilings are to be carved from what is left above when it is opened.
        speaks: Whether it is what its parent keeps for a verdict.
        past: The accounts above whose end of work does not concern it: those above what is kept for a verdict.
        carved: Its own claims.
        claims: Its own claims and those of all above it, innermost first.
        paths: By count, the accounts at which its reservations are held: up to the one that has carved the count.
        ceilings: A row for every ceiling on those paths, in the order of admission, innermost account first: what
            admission goes through.
        beyond: A row for every ceiling further up: what was carved there is sure, unless more was spent than reserved.
        settled: What was used, by count.
        reserved: What calls under way, landing holds and claims, of this account and all below it, may still use.
        hold: The part of ``reserved`` that waits for this context's own landing turn.
        kept: The part of ``reserved`` that waits for this context's verdict.
        keeps: Whether a verdict may still be spoken when all else is over here.
        unpriced: Whether something was used whose price nobody knows.
        lands: Whether this context has a landing turn to protect.
        stop: What ended everything here, if something did.
        barred: Why nothing is admitted here any more: that stop, or that it was closed.
        work_stop: What ended the work; a landing turn may still pass.
        deadline_at: Monotonic instant at which everything is over; infinity without a deadline.
        work_until: Monotonic instant at which the work is over and landing begins.
        kept_seconds: How much of the time before ``deadline_at`` is the verdict's alone.
        opened_at: Monotonic instant at which it was opened.
    """

    __slots__ = (
        "__weakref__",
        "barred",
        "beyond",
        "carved",
        "carves",
        "ceilings",
        "chain",
        "claims",
        "deadline_at",
        "hold",
        "keeps",
        "kept",
        "kept_seconds",
        "key",
        "lands",
        "limits",
        "name",
        "opened_at",
        "past",
        "paths",
        "period",
        "renews_on",
        "reserved",
        "settled",
        "speaks",
        "stop",
        "tops",
        "unpriced",
        "work_stop",
        "work_until",
    )

    def __init__(
        self,
        limits: Limits,
        parent: Account | None = None,
        name: str = "",
        *,
        key: str | None = None,
        period: Period | None = None,
        carves: bool = False,
        speaks: bool = False,
    ) -> None:
        """Set up an account with ceilings of its own under ``parent``; the ledger opens it."""
        self.limits = limits
        self.name = name
        self.key = key
        self.period: Period | None = period
        self.renews_on: date | None = None
        self.chain: tuple[Account, ...] = (self, *(parent.chain if parent else ()))
        self.tops: list[int | None] = [*ceilings_of(limits)]
        self.carves = carves
        self.speaks = speaks
        self.past: tuple[Account, ...] = () if parent is None else parent.chain if speaks else parent.past
        self.settled = [0] * len(COLUMNS)
        self.reserved = [0] * LIMITED
        self.hold: tuple[int, ...] = NOTHING
        self.kept: tuple[int, ...] = NOTHING
        self.keeps = False
        self.unpriced = False
        self.lands = limits.landing is not None
        self.stop: Stop | None = None
        self.barred: Stop | None = None
        self.work_stop: Stop | None = None
        self.deadline_at = math.inf
        self.work_until = math.inf
        self.kept_seconds = 0.0
        self.opened_at = 0.0
        self.carve(())

    def carve(self, counts: Sequence[int]) -> None:
        """Lay out anew where reservations are held and which ceilings bind them, now that these counts are carved."""
        carved: tuple[Claim, ...] = ()
        claims: tuple[Claim, ...] = ()
        paths: tuple[tuple[Account, ...], ...] = ((self,),) * LIMITED
        if len(self.chain) > 1:
            parent = self.chain[1]
            carved = tuple(Claim(self, count, parent.paths[count]) for count in counts)
            claims = (*carved, *parent.claims)
            paths = tuple((self,) if count in counts else (self, *parent.paths[count]) for count in range(LIMITED))
        self.carved: tuple[Claim, ...] = carved
        self.claims: tuple[Claim, ...] = claims
        self.paths: tuple[tuple[Account, ...], ...] = paths
        self.ceilings = rows(self.paths)
        self.beyond = rows([self.chain[len(path) :] for path in self.paths]) if self.claims else ()

    def goes_on(self, *, landing: bool) -> bool:
        """Return whether something may still run here once the work is over, or a landing turn."""
        return self.keeps or (self.lands and not landing)

    def has_ceiling(self, count: int) -> bool:
        """Return whether this account or one above it limits ``count``."""
        return any(level.tops[count] is not None for level in self.chain)


def rows(paths: Sequence[tuple[Account, ...]]) -> tuple[Row, ...]:
    """Return a row for every ceiling on the path of each count."""
    return tuple(
        [
            (count, top, account)
            for count, path in enumerate(paths)
            for account in path
            if (top := account.tops[count]) is not None
        ]
    )


# --- figures --------------------------------------------------------------------------------------------------------
# What an account says to the outside: usage and budget status. Reading only.


def usage_of(account: Account) -> Usage:
    """Return what an account and all below it have used."""
    settled = account.settled.copy()
    return Usage(
        tokens=TokenUsage(
            settled[INPUT_TOKENS],
            settled[OUTPUT_TOKENS],
            settled[CACHED_TOKENS],
            settled[CACHE_WRITE_TOKENS],
            settled[REASONING_TOKENS],
        ),
        cost_nanos=None if account.unpriced else settled[COST],
        model_calls=settled[MODEL_CALLS],
        tool_calls=settled[TOOL_CALLS],
        steps=settled[STEPS],
        retries=retries_of(account),
    )


def retries_of(account: Account) -> int:
    """Return the retries spent; a last failure that found none left spends none."""
    ceiling = account.tops[RETRIES]
    spent = account.settled[RETRIES]
    return spent if ceiling is None else min(spent, ceiling)


def budget_status_of(
    account: Account, deadline: Deadline | None, now: float, turns_used: int | None = None
) -> BudgetStatus:
    """Return the account's own ceilings beside what was used; of turns only if it is said how many were taken."""
    tops, settled = account.tops, account.settled
    # By place, each ceiling before its use: it is made for every tool call, and names cost five times as much.
    return BudgetStatus(
        deadline,
        now - account.opened_at,
        None if deadline is None else max(account.deadline_at - now, 0.0),
        tops[TOTAL_TOKENS],
        settled[TOTAL_TOKENS],
        tops[TOOL_CALLS],
        settled[TOOL_CALLS],
        tops[COST],
        None if account.unpriced else settled[COST],
        tops[STEPS],
        settled[STEPS],
        tops[INPUT_TOKENS],
        settled[INPUT_TOKENS],
        tops[OUTPUT_TOKENS],
        settled[OUTPUT_TOKENS],
        tops[RETRIES],
        retries_of(account),
        None if turns_used is None else account.limits.ceiling("max_turns"),
        turns_used or 0,
        tuple(others(account)) if OTHERS else (),
    )


def others(account: Account) -> Iterator[tuple[str, int, int]]:
    """Yield the limits that have no fields of their own in `BudgetStatus`: field of `Limits`, use, ceiling."""
    for count, meter in OTHERS:
        most, used = account.tops[count], account.settled[count]
        if most is not None and is_told(meter, used, most):
            yield meter.field, used, most


def stop_of(account: Account) -> Stop | None:
    """Return what ended everything here, found here or above."""
    return next((level.stop for level in account.chain if level.stop is not None), None)


def work_stop_of(account: Account) -> Stop | None:
    """Return what ended the work here, found here or above; a stop of everything ends the work too.

    The end of the work above does not concern what is kept for a verdict.
    """
    stops = ((None if level in account.past else level.work_stop) or level.stop for level in account.chain)
    return next((stop for stop in stops if stop is not None), None)


def retries_left(account: Account) -> bool:
    """Return whether another failure in this chain would still find a retry."""
    rows = (row for row in (*account.ceilings, *account.beyond) if row[0] == RETRIES)
    return all(level.settled[RETRIES] < ceiling for _, ceiling, level in rows)


def spent_share(account: Account) -> float | None:
    """Return which share of its cost ceiling is spent, of the tightest one in its chain; None without one."""
    share: float | None = None
    for count, ceiling, level in (*account.ceilings, *account.beyond):
        if count == COST:
            share = max(share or 0.0, level.settled[COST] / ceiling)
    return share


# --- phases ---------------------------------------------------------------------------------------------------------
# When the work of a context is over, and when everything is.
#
# Both instants are fixed once, when it is opened, on the monotonic clock: a system clock that is changed later neither
# stretches nor cuts a run. What is below ends with the work of what is above.


class Phases(NamedTuple):
    """The ends of a context as wall times, for people: of everything, and of the work; None without a deadline."""

    deadline: Deadline | None
    work_deadline: Deadline | None


def start_time(account: Account, parent: tuple[Account, Phases] | None, clock: Clock) -> Phases:
    """Open an account in time: fix its own ends, or the end of the parent's work if that is earlier.

    For one that speaks its parent's verdict, it is the end of everything there.

    Args:
        account: Its instants are set.
        parent: The account of the context above, and its ends.
        clock: Where time comes from.
    """
    limits = account.limits
    now = account.opened_at = clock.monotonic()
    deadline = limits.start(clock)
    if isinstance(limits.deadline, timedelta):
        account.deadline_at = now + limits.deadline.total_seconds()
    elif deadline is not None:
        account.deadline_at = deadline.instant(clock)
    if parent is not None:
        above, ends = parent
        end, wall = (above.deadline_at, ends.deadline) if account.speaks else (above.work_until, ends.work_deadline)
        if end < account.deadline_at:
            account.deadline_at, deadline = end, wall
    account.work_until, work_deadline = account.deadline_at, deadline
    if limits.landing is not None and deadline is not None:
        kept = limits.landing.seconds(max(account.deadline_at - now, 0.0))
        account.work_until -= kept
        work_deadline = Deadline(deadline.at - timedelta(seconds=kept))
    return Phases(deadline, work_deadline)


def keep_time(account: Account, deadline: Deadline | None) -> Deadline | None:
    """Keep time for a verdict before the end of everything; return the end of the work, which comes earlier by it.

    What is kept for a landing turn and for the verdict is together never more than half of the time: where it would
    be, both give way in proportion.
    """
    verdict, whole = account.limits.verdict, account.deadline_at - account.opened_at
    if verdict is None or deadline is None:
        return deadline
    seconds, landing = verdict.seconds(whole), account.deadline_at - account.work_until
    shrunk = min(1.0, max(whole, 0.0) / 2 / (seconds + landing)) if seconds else 1.0
    account.kept_seconds = seconds * shrunk
    account.work_until = account.deadline_at - (seconds + landing) * shrunk
    return Deadline(deadline.at - timedelta(seconds=account.deadline_at - account.work_until))
