"""A sliding window over time, and the two hooks that use it: one bounds calls, the other tokens.

An amount is taken when a call is asked about, under one lock, so any number of threads together get exactly as much as
there is. A call that is refused here takes nothing, and one that does not run after all gives its amount back
(`release`). Time is monotonic; an amount counts no longer once it is a whole window old. Every operation takes the same
short time, however much the window holds.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from decimal import Decimal
from typing import Any, ClassVar, cast

import msgspec

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError, LimitsError, StopReason
from watchkeeper.core.quantities import CountLike, DurationLike, count, duration, format_duration, is_share
from watchkeeper.shield.decision import Decision, ToolCallContext

TokensOf = Callable[[Any], int | None]
"""Says how many tokens a response has used; None if it does not tell."""


class _WindowHook:
    """Takes an amount for every call, as long as the window has room for it.

    Attributes:
        stop_reason: What its HALT is called.
    """

    stop_reason: ClassVar[StopReason] = "provider_rate_limit"

    __slots__ = ("_degrade_at", "_lock", "_most", "_when_full", "_window")

    def __init__(
        self,
        most: int,
        window_seconds: DurationLike | None,
        degrade_threshold: float,
        clock: Clock,
        when_full: Decision = Decision.HALT,
    ) -> None:
        """Start with an empty window."""
        self._most = most
        self._degrade_at = at_share(degrade_threshold, most, "degrade_threshold")
        self._when_full = when_full
        self._window = SlidingWindow(window_seconds, clock)
        self._lock = threading.Lock()

    @property
    def _taken(self) -> int:
        with self._lock:
            return self._window.slide()

    def _take(self, ctx: ToolCallContext, amount: int) -> Decision | None:
        """Take an amount for a call: None if there is room, DEGRADE if it becomes scarce; or nothing, if there is none.

        An amount that could never fit is HALT. One of 0 is let in as long as anything is left.
        """
        with self._lock:
            taken = self._window.slide()
            if taken >= self._most or taken + amount > self._most:
                self._window.disown(ctx)
                return Decision.HALT if amount > self._most else self._when_full
            self._window.take(ctx, amount)
        return Decision.DEGRADE if taken >= self._degrade_at else None

    def release(self, ctx: ToolCallContext) -> None:
        """Give back what was taken for a call that did not run after all; harmless if it has taken nothing."""
        with self._lock:
            self._window.give_back(ctx)


class BudgetWindowHook(_WindowHook):
    """Bounds the calls within a sliding window, and asks for a cheaper model shortly before the bound.

    Of docs/specification.md, execution-context.

    Args:
        max_calls: Calls that may begin within the window; further ones are HALT.
        window_seconds: The window's length, in seconds or as text such as "1m"; it slides. None for a fixed ceiling: so
            many calls in the whole life of this hook.
        degrade_threshold: Share of ``max_calls``, above 0 and at most 1; once it is taken, calls are DEGRADE. 1 for
            none.
        clock: Where time comes from.

    Raises:
        LimitsError: If a value makes no sense.
    """

    __slots__ = ()

    def __init__(
        self,
        max_calls: CountLike,
        window_seconds: DurationLike | None = 60.0,
        degrade_threshold: float = 0.8,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Start with an empty window."""
        super().__init__(count(max_calls, "max_calls"), window_seconds, degrade_threshold, clock)

    @property
    def calls(self) -> int:
        """Number of places that are taken now."""
        return self._taken

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        """Take a place for a call: None if there is room, DEGRADE if it becomes scarce; or HALT, and none is taken."""
        return self._take(ctx, 1)

    before_tool_call = before_llm_call

    def explain(self, ctx: ToolCallContext) -> str:
        """Say how full the window is."""
        return f"{self.calls:,} of {self._most:,} calls were let through {self._window}."


class TokenRateHook(_WindowHook):
    """Halts calls, or lets them wait, once the tokens of a window are used up.

    Before a call its estimate is taken; after it what it really used takes the estimate's place, from that moment on. A
    call of which nobody knows how much it used stays counted as estimated; one without an estimate is let in as long as
    anything is left.

    Args:
        max_tokens: Tokens, input and output together, that may be used within the window.
        window_seconds: The window's length, in seconds or as text such as "1m"; it slides. None for a fixed ceiling.
        when_full: QUEUE for calls that shall wait until there is room, or HALT. A call that could never fit is HALT.
        degrade_threshold: Share of ``max_tokens``, above 0 and at most 1; once it is used, calls are DEGRADE. 1 for
            none.
        tokens_of: Says how many tokens a response has used. Without it a response tells by its ``usage``, as those of
            Watchkeeper's models and of the OpenAI and Anthropic SDKs do.
        clock: Where time comes from.

    Raises:
        ConfigurationError: If a value makes no sense.
    """

    __slots__ = ("_tokens_of",)

    def __init__(
        self,
        max_tokens: CountLike,
        window_seconds: DurationLike | None = 60.0,
        *,
        when_full: Decision = Decision.HALT,
        degrade_threshold: float = 1.0,
        tokens_of: TokensOf | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Start with an empty window."""
        super().__init__(count(max_tokens, "max_tokens"), window_seconds, degrade_threshold, clock)
        if when_full not in (Decision.HALT, Decision.QUEUE):
            raise ConfigurationError(f"when_full={when_full!r} must be Decision.HALT or Decision.QUEUE")
        if tokens_of is not None and not callable(tokens_of):
            raise ConfigurationError(f"tokens_of={tokens_of!r} cannot be called; give a function of the response")
        self._when_full = Decision(when_full)
        self._tokens_of = tokens_of or tokens_told_by

    @property
    def tokens(self) -> int:
        """Number of tokens that count now, estimates of calls under way included."""
        return self._taken

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        """Take what a call is estimated to use: None if there is room, DEGRADE if it becomes scarce; or nothing."""
        return self._take(ctx, _tokens_in(ctx) or 0)

    def after_llm_call(self, ctx: ToolCallContext, response: object) -> None:
        """Count what a call has really used, in the place of its estimate."""
        tokens = self._tokens_of(response)
        if tokens is None and ctx.number:  # a gate says afterwards what it settled
            tokens = _tokens_in(ctx)
        if tokens is None:
            return
        tokens = count(tokens, "tokens_of", zero=True)
        with self._lock:
            self._window.slide()
            self._window.settle(ctx, tokens)

    def explain(self, ctx: ToolCallContext) -> str:
        """Say how full the window is, and what the call would need."""
        needed = _tokens_in(ctx)
        wish = "" if needed is None else f"; the call may need {needed:,}"
        return f"{self.tokens:,} of {self._most:,} tokens were used {self._window}{wish}."


def _tokens_in(ctx: ToolCallContext) -> int | None:
    if ctx.tokens_in is None and ctx.tokens_out is None:
        return None
    return (ctx.tokens_in or 0) + (ctx.tokens_out or 0)


def tokens_told_by(response: object) -> int | None:
    """Return how many tokens a response says it has used, input and output together; None if it does not say.

    Args:
        response: An object, or a mapping as in JSON, with a ``usage``.
    """
    usage = _part(response, "usage")
    for name in ("total", "total_tokens"):
        total = _number(usage, name)
        if total is not None:
            return total
    for pair in (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")):
        told = [_number(usage, name) for name in pair]
        if told != [None, None]:
            cached = (_number(usage, name) for name in ("cache_creation_input_tokens", "cache_read_input_tokens"))
            return sum(number or 0 for number in (*told, *cached))
    return None


def _part(whole: object, name: str) -> object:
    if isinstance(whole, Mapping):
        return cast("Mapping[str, object]", whole).get(name)
    return getattr(whole, name, None)


def _number(whole: object, name: str) -> int | None:
    number = _part(whole, name)
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None


class SlidingWindow:
    """What was taken in the last so many seconds, or since the beginning; whoever uses it holds a lock.

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
    if not is_share(share, whole=True):
        raise LimitsError(f"{field}={share!r} must be more than 0 and at most 1; write for example 0.8")
    return share
