"""The figures of one context: its ceilings, what is settled, what is reserved, what stopped it.

Accounts form a parent chain: whatever an account uses is counted in it and in every account above it, so a parent's
ceilings bound all its descendants together. An account is plain data; the ledger changes it, under one lock per tree.
"""

from __future__ import annotations

import math
from datetime import date
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

NOTHING: Final[tuple[int, ...]] = (0, 0, 0, 0, 0, 0, 0)


class Account:
    """One context's figures.

    Attributes:
        chain: This account and all above it, innermost first.
        key: What a ledger that several processes share knows it by; None for an account of this process alone.
        period: Whether it begins anew with every day or month (UTC); None for an account that never does.
        renews_on: The day on which it does next; set by the ledger that keeps it.
        ceilings: ``(count, ceiling, account)`` for every ceiling in the chain, in the order of admission, innermost
            account first: the rows that admission goes through.
        settled: What was used, by count.
        reserved: What calls under way and landing holds, of this account and all below it, may still use.
        hold: The part of ``reserved`` that waits for this context's own landing turn.
        unpriced: Whether something was used whose price nobody knows.
        lands: Whether this context has a landing turn to protect.
        stop: What ended everything here, if something did.
        work_stop: What ended the work; a landing turn may still pass.
        deadline_at: Monotonic instant at which everything is over; infinity without a deadline.
        work_until: Monotonic instant at which the work is over and landing begins.
        opened_at: Monotonic instant at which it was opened.
    """

    __slots__ = (
        "__weakref__",
        "ceilings",
        "chain",
        "deadline_at",
        "hold",
        "key",
        "lands",
        "limits",
        "name",
        "opened_at",
        "period",
        "renews_on",
        "reserved",
        "settled",
        "stop",
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
    ) -> None:
        """Open an account with ceilings of its own under ``parent``."""
        self.key = key
        self.period: Period | None = period
        self.renews_on: date | None = None
        self.limits = limits
        self.name = name
        self.chain: tuple[Account, ...] = (self, *(parent.chain if parent else ()))
        rows = [
            (count, ceiling, account)
            for count, field in enumerate(CEILINGS)
            for account in self.chain
            if (ceiling := account.limits.ceiling(field)) is not None
        ]
        self.ceilings: tuple[tuple[int, int, Account], ...] = tuple(rows)
        self.settled = [0] * 11
        self.reserved = [0] * 7
        self.hold: tuple[int, ...] = NOTHING
        self.unpriced = False
        self.lands = limits.landing is not None
        self.stop: Stop | None = None
        self.work_stop: Stop | None = None
        self.deadline_at = math.inf
        self.work_until = math.inf
        self.opened_at = 0.0

    def has_ceiling(self, count: int) -> bool:
        """Return whether this account or one above it limits ``count``."""
        return any(row[0] == count for row in self.ceilings)
