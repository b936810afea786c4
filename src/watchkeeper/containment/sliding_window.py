"""Amounts taken within a window of time, and whose they are.

The oldest are forgotten once they are a whole window old; without a window nothing is. Every operation takes the same
short time, however much the window holds. Not safe under threads by itself: whoever decides by it holds a lock around
question and answer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from decimal import Decimal

import msgspec

from watchkeeper.containment.tool_call_context import ToolCallContext
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import LimitsError
from watchkeeper.core.quantities import DurationLike, duration, format_duration


class Taken(msgspec.Struct, eq=False):
    """One amount.

    Attributes:
        amount: What it counts for; 0 once it was given back.
        owner: The call it was taken for, as `owner_of` knows it.
        until: Monotonic instant from which on it counts no more.
        ground: What the owner's identity rests on, kept so that no other object can come to have it.
    """

    amount: int
    owner: Hashable
    until: float
    ground: object


def owner_of(ctx: ToolCallContext) -> Hashable:
    """Return what is the same for one call before and after it, and different for any two calls.

    At a gate a call has a number, and all calls of a chain share one mapping of metadata, which no other chain has;
    outside of one the very context is all there is.
    """
    return (id(ctx.metadata), ctx.number) if ctx.number else id(ctx)


class SlidingWindow:
    """What was taken in the last so many seconds, or since the beginning.

    Args:
        window_seconds: Its length; None for the whole life.
        clock: Where time comes from.

    Attributes:
        total: The sum of what it holds, as of the last `slide`.

    Raises:
        LimitsError: If the length makes no sense.
    """

    __slots__ = ("_clock", "_owned", "_seconds", "_taken", "total")

    def __init__(self, window_seconds: DurationLike | None, clock: Clock) -> None:
        """Start with nothing taken."""
        self._seconds = None if window_seconds is None else duration(window_seconds, "window_seconds").total_seconds()
        self._clock = clock
        self._taken: deque[Taken] = deque()
        self._owned: dict[Hashable, Taken] = {}
        self.total = 0

    def __str__(self) -> str:
        return "in all" if self._seconds is None else f"in the last {format_duration(self._seconds)}"

    def slide(self) -> int:
        """Forget what is too old; return the total."""
        if self._taken:
            now = self._clock.monotonic()
            while self._taken and self._taken[0].until <= now:
                self._forget(self._taken.popleft())
        return self.total

    def take(self, ctx: ToolCallContext, amount: int) -> None:
        """Take an amount for a call."""
        owner, ground = owner_of(ctx), ctx.metadata if ctx.number else ctx
        until = math.inf if self._seconds is None else self._clock.monotonic() + self._seconds
        taken = self._owned[owner] = Taken(amount, owner, until, ground)
        if self._seconds is not None:
            self._taken.append(taken)
        self.total += amount

    def settle(self, ctx: ToolCallContext, amount: int) -> None:
        """Take another amount instead of what a call holds, from now on and for good."""
        self.give_back(ctx)
        self.take(ctx, amount)
        self.disown(ctx)

    def disown(self, ctx: ToolCallContext) -> None:
        """Let what a call holds stay taken, whatever becomes of the call."""
        self._owned.pop(owner_of(ctx), None)

    def give_back(self, ctx: ToolCallContext) -> None:
        """Give back what was last taken for a call, once; nothing happens if it holds nothing."""
        taken = self._owned.pop(owner_of(ctx), None)
        if taken is None:
            return
        self.total -= taken.amount
        taken.amount = 0
        while self._taken and not self._taken[-1].amount:
            self._taken.pop()

    def _forget(self, taken: Taken) -> None:
        self.total -= taken.amount
        if self._owned.get(taken.owner) is taken:
            del self._owned[taken.owner]


def at_share(share: float, whole: int, field: str) -> int:
    """Return how many make up a share of a whole, rounded up.

    Raises:
        LimitsError: If the share is not above 0 and at most 1.
    """
    return math.ceil(Decimal(str(checked_share(share, field))) * whole)


def checked_share(share: object, field: str) -> float:
    """Return a share that is above 0 and at most 1.

    Raises:
        LimitsError: If it is anything else.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise LimitsError(f"{field}={share!r} must be more than 0 and at most 1; write for example 0.8")
    return share
