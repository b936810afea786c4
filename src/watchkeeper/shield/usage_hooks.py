"""Hooks that decide by usage: two limit calls or tokens within a sliding window, one asks for a cheaper model.

When a hook is asked about a call, it takes the call's amount from a window under one lock, so that concurrent threads
never take more than the limit. A refused call takes nothing, and a call that does not run gives its amount back
(`release`). Time is monotonic; an amount no longer counts once its age reaches the window's length. Every operation
takes the same short time, no matter how many amounts the window holds.

`ModelDowngradeHook` only says when to go on with a cheaper model; the code that makes the calls switches to the hook's
``fallback_model``. A call that already goes to that model always passes, so that the switch works and no call is
degraded twice.
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
from watchkeeper.core.quantities import (
    CountLike,
    DurationLike,
    count,
    duration,
    format_duration,
    is_share,
    is_text,
    is_whole,
)
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.pipeline import PreDispatchHook, methods_of

TokensOf = Callable[[Any], int | None]
"""Returns how many tokens a response has used; None if the response does not say."""


class _WindowHook:
    """Takes an amount from a window for every call, as long as there is room.

    Attributes:
        stop_reason: The stop reason of its HALT.
    """

    stop_reason: ClassVar[StopReason] = "provider_rate_limit"

    __slots__ = ("_degrade_at", "_lock", "_most", "_when_full", "_window")

    def __init__(
        self,
        most: int,
        window_seconds: DurationLike | None,
        degrade_threshold: float,
        clock: Clock,
    ) -> None:
        """Start with an empty window."""
        self._most = most
        self._degrade_at = at_share(degrade_threshold, most, "degrade_threshold")
        self._when_full = Decision.HALT
        self._window = SlidingWindow(window_seconds, clock)
        self._lock = threading.Lock()

    @property
    def _taken(self) -> int:
        with self._lock:
            return self._window.slide()

    def _take(self, ctx: ToolCallContext, amount: int) -> Decision | None:
        """Take an amount for a call: None if there is room, DEGRADE from the threshold on; without room take nothing.

        Without room the decision is ``when_full``, or HALT for an amount above the whole limit. An amount of 0 passes
        as long as anything is left.
        """
        with self._lock:
            taken = self._window.slide()
            if taken >= self._most or taken + amount > self._most:
                self._window.disown(ctx)
                return Decision.HALT if amount > self._most else self._when_full
            self._window.take(ctx, amount)
        return Decision.DEGRADE if taken >= self._degrade_at else None

    def release(self, ctx: ToolCallContext) -> None:
        """Give back what was taken for a call that did not run; do nothing if nothing was taken."""
        with self._lock:
            self._window.give_back(ctx)


class BudgetWindowHook(_WindowHook):
    """Limits the calls within a sliding window, and asks for a cheaper model shortly before the limit.

    Specified in docs/specification.md (execution-context).

    Args:
        max_calls: Calls that may begin within the window; further ones are HALT.
        window_seconds: The window's length, in seconds or as text such as "1m"; it slides. None for a fixed
            ceiling: ``max_calls`` in the whole life of this hook.
        degrade_threshold: Share of ``max_calls``, above 0 and at most 1; once it is taken, calls are DEGRADE. 1: no
            call is DEGRADE.
        clock: The source of time.

    Raises:
        LimitsError: If a value has the wrong type or is out of range.
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
        """Take a place for a call: None if there is room, DEGRADE from the threshold on; HALT, if it is full."""
        return self._take(ctx, 1)

    before_tool_call = before_llm_call

    def explain(self, ctx: ToolCallContext) -> str:
        """Say how full the window is."""
        return f"{self.calls:,} of {self._most:,} calls were let through {self._window}."


class TokenRateHook(_WindowHook):
    """Stops calls, or lets them wait, once the tokens of a window are used up.

    Before a call, its estimate is taken; after it, the actual usage replaces the estimate and counts from that moment.
    If the usage is unknown, the estimate stays. A call without an estimate passes as long as any tokens are left.

    Args:
        max_tokens: Tokens, input and output together, that may be used within the window.
        window_seconds: The window's length, in seconds or as text such as "1m"; it slides. None for a fixed ceiling.
        when_full: QUEUE to let calls wait until there is room, or HALT. A call above the whole limit is always HALT.
        degrade_threshold: Share of ``max_tokens``, above 0 and at most 1; once it is used, calls are DEGRADE. 1: no
            call is DEGRADE.
        tokens_of: Returns how many tokens a response has used. Without it the ``usage`` of the response is read, which
            responses of Watchkeeper's models and of the OpenAI and Anthropic SDKs have.
        clock: The source of time.

    Raises:
        ConfigurationError: If a value has the wrong type or is out of range.
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
        """Number of tokens that count now: what was used, and estimates of calls that began within the window."""
        return self._taken

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        """Take a call's estimate: None if there is room, DEGRADE from the threshold on; else ``when_full`` or HALT."""
        return self._take(ctx, _tokens_in(ctx) or 0)

    def after_llm_call(self, ctx: ToolCallContext, response: object) -> None:
        """Count the actual usage of a call instead of its estimate."""
        tokens = self._tokens_of(response)
        if tokens is None and ctx.number:  # after a call, the gate gives the settled usage
            tokens = _tokens_in(ctx)
        if tokens is None:
            return
        tokens = count(tokens, "tokens_of", zero=True)
        with self._lock:
            self._window.slide()
            self._window.settle(ctx, tokens)

    def explain(self, ctx: ToolCallContext) -> str:
        """Say how full the window is, and how many tokens the call may need."""
        needed = _tokens_in(ctx)
        wish = "" if needed is None else f"; the call may need {needed:,}"
        return f"{self.tokens:,} of {self._most:,} tokens were used {self._window}{wish}."


def _tokens_in(ctx: ToolCallContext) -> int | None:
    if ctx.tokens_in is None and ctx.tokens_out is None:
        return None
    return (ctx.tokens_in or 0) + (ctx.tokens_out or 0)


def tokens_told_by(response: object) -> int | None:
    """Return how many tokens a response reports, input and output together; None if it reports none.

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
    return number if is_whole(number, 0) else None


class ModelDowngradeHook:
    """Asks for a cheaper model once a share of the money is spent, or when another hook does not allow a call.

    Args:
        model: The cheaper model.
        at_cost_share: Share of the cost ceiling, above 0 and at most 1; once it is spent, calls are DEGRADE. None to
            decide by ``when`` alone.
        when: Another hook, which is asked only about calls of other models: any decision but ALLOW becomes DEGRADE.

    Attributes:
        fallback_model: The cheaper model.
        blocks_for: Seconds that ``when`` may take, if it declares them.

    Raises:
        ConfigurationError: If a value is invalid, or if both ``at_cost_share`` and ``when`` are None.
    """

    __slots__ = ("_at_cost_share", "_when", "fallback_model")

    def __init__(
        self,
        model: str,
        at_cost_share: float | None = 0.8,
        when: PreDispatchHook | None = None,
    ) -> None:
        """Check and store the settings."""
        if not is_text(model):
            raise ConfigurationError(f"model={model!r} names no model; write for example 'openai:gpt-5-mini'")
        self.fallback_model = model
        if at_cost_share is None and when is None:
            raise ConfigurationError("at_cost_share=None and when=None leave nothing to decide by; give one of them")
        self._at_cost_share = None if at_cost_share is None else checked_share(at_cost_share, "at_cost_share")
        if when is not None:
            methods_of("when", when, "before_llm_call")
        self._when = when

    @property
    def blocks_for(self) -> DurationLike | None:
        """Seconds that the other hook may take, if it declares them; it is then asked on a worker thread."""
        seconds: DurationLike | None = getattr(self._when, "blocks_for", None)
        return seconds

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        """Return DEGRADE for a call of another model once a condition holds, else None."""
        if self._is_cheaper(ctx):
            return None
        if self._is_spent(ctx):
            return Decision.DEGRADE
        said = None if self._when is None else self._when.before_llm_call(ctx)
        return None if said is None or said is Decision.ALLOW else Decision.DEGRADE

    def after_llm_call(self, ctx: ToolCallContext, response: object) -> None:
        """Pass the response to the other hook, if it has ``after_llm_call``."""
        after = getattr(self._when, "after_llm_call", None)
        if after is not None and not self._is_cheaper(ctx):
            after(ctx, response)

    def release(self, ctx: ToolCallContext) -> None:
        """Tell the other hook that a call did not run, if it has ``release``."""
        release = getattr(self._when, "release", None)
        if release is not None:
            release(ctx)

    def explain(self, ctx: ToolCallContext) -> str:
        """Say why the cheaper model is to be used."""
        why = f"{type(self._when).__name__} holds dearer calls back"
        if self._is_spent(ctx):
            why = f"At least {self._at_cost_share:.0%} of the money is spent"
        return f"{why}; go on with {self.fallback_model}."

    def _is_spent(self, ctx: ToolCallContext) -> bool:
        at = self._at_cost_share
        return at is not None and ctx.cost_share is not None and ctx.cost_share >= at

    def _is_cheaper(self, ctx: ToolCallContext) -> bool:
        return ctx.degraded or (ctx.model is not None and _same(ctx.model, self.fallback_model))


def _same(one: str, other: str) -> bool:
    """Return whether two names mean the same model; one of them may be without the provider."""
    return one == other or one.endswith(f":{other}") or other.endswith(f":{one}")


class SlidingWindow:
    """The amounts taken in the last ``window_seconds``, or since the beginning; the caller holds a lock.

    Args:
        window_seconds: Its length; None for the whole life.
        clock: The source of time.

    Attributes:
        total: The sum of what it holds, as of the last `slide`.

    Raises:
        LimitsError: If the length is not a duration.
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
        """Remove the amounts that no longer count; return the total."""
        if self._taken:
            now = self._clock.monotonic()
            while self._taken and self._taken[0].until <= now:
                self._forget(self._taken.popleft())
        return self.total

    def take(self, ctx: ToolCallContext, amount: int) -> None:
        """Take an amount for a call."""
        if not amount:  # nothing to keep, and nothing to give back: also not what was taken before
            self.disown(ctx)
            return
        owner, ground = owner_of(ctx), ctx.metadata if ctx.number else ctx
        until = math.inf if self._seconds is None else self._clock.monotonic() + self._seconds
        taken = self._owned[owner] = Taken(amount, owner, until, ground)
        if self._seconds is not None:
            self._taken.append(taken)
        self.total += amount

    def settle(self, ctx: ToolCallContext, amount: int) -> None:
        """Replace the amount of a call by another one, which counts from now on and cannot be given back."""
        self.give_back(ctx)
        self.take(ctx, amount)
        self.disown(ctx)

    def disown(self, ctx: ToolCallContext) -> None:
        """Forget that an amount belongs to a call, so that it cannot be given back."""
        self._owned.pop(owner_of(ctx), None)

    def give_back(self, ctx: ToolCallContext) -> None:
        """Give back the amount last taken for a call, once; do nothing if the call holds none."""
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
        amount: Calls or tokens; 0 once it was given back.
        owner: The call that it was taken for, as returned by `owner_of`.
        until: Monotonic time, in seconds, from which on it no longer counts.
        ground: The object whose ``id`` is part of the owner; kept alive so that no other object gets the same ``id``.
    """

    amount: int
    owner: Hashable
    until: float
    ground: object


def owner_of(ctx: ToolCallContext) -> Hashable:
    """Return a key for a call: the same before and after the call, and different for any two calls.

    At a gate a call has a number, and all calls of a chain share one metadata mapping, which no other chain has.
    Outside of a gate the key is the identity of the context.
    """
    return (id(ctx.metadata), ctx.number) if ctx.number else id(ctx)


def at_share(share: float, whole: int, field: str) -> int:
    """Return a share of a whole as a number, rounded up.

    Raises:
        LimitsError: If the share is not above 0 and at most 1.
    """
    return math.ceil(Decimal(str(checked_share(share, field))) * whole)


def checked_share(share: object, field: str) -> float:
    """Return a share that is above 0 and at most 1.

    Raises:
        LimitsError: For any other value.
    """
    if not is_share(share, whole=True):
        raise LimitsError(f"{field}={share!r} must be more than 0 and at most 1; write for example 0.8")
    return share
