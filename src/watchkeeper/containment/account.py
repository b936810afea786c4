"""The figures of one context: its ceilings, what is settled, what is reserved, what stopped it.

Accounts form a parent chain: whatever an account uses is counted in it and in every account above it, so a parent's
ceilings bound all its descendants together. What an account has carved from those above it is set aside there as a
claim; inside it reservations go no further up, and what is settled turns from claimed into spent. An account is plain
data; the ledger changes it, under one lock per tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from operator import attrgetter
from typing import Final

from watchkeeper.core.account_limit import Period
from watchkeeper.core.limits import Limits
from watchkeeper.core.stop import Stop

# What is counted, as places in the lists below. The first seven can have a ceiling; they stand in the order in which
# admission looks at them.
COST, TOTAL_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, STEPS, TOOL_CALLS, RETRIES = range(7)
CACHED_TOKENS, CACHE_WRITE_TOKENS, REASONING_TOKENS, MODEL_CALLS = range(7, 11)

CEILINGS: Final = (
    "max_cost_nanos",
    "max_total_tokens",
    "max_input_tokens",
    "max_output_tokens",
    "max_steps",
    "max_tool_calls",
    "max_retries",
)
"""Field of `Limits` for each count that can have a ceiling."""

ceilings_of: Final = attrgetter(*CEILINGS)
"""Returns the ceilings of limits, in that order."""

NOTHING: Final[tuple[int, ...]] = (0, 0, 0, 0, 0, 0, 0)


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
        self.settled = [0] * 11
        self.reserved = [0] * 7
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
        paths: tuple[tuple[Account, ...], ...] = ((self,),) * 7
        if len(self.chain) > 1:
            parent = self.chain[1]
            carved = tuple(Claim(self, count, parent.paths[count]) for count in counts)
            claims = (*carved, *parent.claims)
            paths = tuple((self,) if count in counts else (self, *parent.paths[count]) for count in range(7))
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
