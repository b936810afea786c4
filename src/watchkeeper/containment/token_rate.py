"""How many tokens may be used within a window of time.

Before a call its estimate is taken, under one lock; after it the truth takes the estimate's place, from that moment on.
A call of which nobody knows how much it used stays counted as estimated, one without an estimate enters as long as
anything is left. What did not run at all is given back (`release`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from watchkeeper.containment.decision import Decision
from watchkeeper.containment.sliding_window import SlidingWindow, at_share
from watchkeeper.containment.tool_call_context import ToolCallContext
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.quantities import CountLike, DurationLike, count
from watchkeeper.core.stop import StopReason

TokensOf = Callable[[Any], int | None]
"""Says how many tokens a response has used; None if it does not tell."""


class TokenRateHook:
    """Halts calls, or lets them wait, once the tokens of a window are used up.

    Args:
        max_tokens: Tokens, input and output together, that may be used within the window.
        window_seconds: The window's length, in seconds or as text such as "1m"; it slides. None for a fixed ceiling.
        when_full: QUEUE for calls that shall wait until there is room, or HALT. A call that could never fit is HALT.
        degrade_threshold: Share of ``max_tokens``, above 0 and at most 1; once it is used, calls are DEGRADE. 1 for
            none.
        tokens_of: Says how many tokens a response has used. Without it a response tells by its ``usage``, as those of
            Watchkeeper's models and of the OpenAI and Anthropic SDKs do.
        clock: Where time comes from.

    Attributes:
        stop_reason: What its HALT is called.

    Raises:
        ConfigurationError: If a value makes no sense.
    """

    stop_reason: ClassVar[StopReason] = "provider_rate_limit"

    __slots__ = ("_degrade_at", "_lock", "_max_tokens", "_tokens_of", "_when_full", "_window")

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
        self._max_tokens = count(max_tokens, "max_tokens")
        self._degrade_at = at_share(degrade_threshold, self._max_tokens, "degrade_threshold")
        if when_full not in (Decision.HALT, Decision.QUEUE):
            raise ConfigurationError(f"when_full={when_full!r} must be Decision.HALT or Decision.QUEUE")
        if tokens_of is not None and not callable(tokens_of):
            raise ConfigurationError(f"tokens_of={tokens_of!r} cannot be called; give a function of the response")
        self._when_full = Decision(when_full)
        self._tokens_of = tokens_of or tokens_told_by
        self._window = SlidingWindow(window_seconds, clock)
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        """Number of tokens that count now, estimates of calls under way included."""
        with self._lock:
            return self._window.slide()

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        """Take what a call is estimated to use: None if there is room, DEGRADE if it becomes scarce; or nothing."""
        estimate = _told(ctx) or 0
        with self._lock:
            used = self._window.slide()
            if used >= self._max_tokens or used + estimate > self._max_tokens:
                self._window.disown(ctx)
                return Decision.HALT if estimate > self._max_tokens else self._when_full
            self._window.take(ctx, estimate)
        return Decision.DEGRADE if used >= self._degrade_at else None

    def after_llm_call(self, ctx: ToolCallContext, response: object) -> None:
        """Count what a call has really used, in the place of its estimate."""
        tokens = self._tokens_of(response)
        if tokens is None and ctx.number:  # a gate says afterwards what it settled
            tokens = _told(ctx)
        if tokens is None:
            return
        tokens = count(tokens, "tokens_of", zero=True)
        with self._lock:
            self._window.slide()
            self._window.settle(ctx, tokens)

    def release(self, ctx: ToolCallContext) -> None:
        """Give back the estimate of a call that did not run after all; harmless if it has none."""
        with self._lock:
            self._window.give_back(ctx)

    def explain(self, ctx: ToolCallContext) -> str:
        """Say how full the window is, and what the call would need."""
        needed = _told(ctx)
        wish = "" if needed is None else f"; the call may need {needed:,}"
        return f"{self.tokens:,} of {self._max_tokens:,} tokens were used {self._window}{wish}."


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


def _told(ctx: ToolCallContext) -> int | None:
    if ctx.tokens_in is None and ctx.tokens_out is None:
        return None
    return (ctx.tokens_in or 0) + (ctx.tokens_out or 0)
