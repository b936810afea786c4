"""How many calls may begin within a window of time, or ever.

A place in the window is taken when a call is asked about, under one lock, so that any number of threads together get
exactly as many places as there are. A call that was refused here takes no place, and one that did not run after all
gives its place back (`release`). Time is monotonic; a place is free again once it is a whole window old.
"""

from __future__ import annotations

import threading
from typing import ClassVar

from watchkeeper.containment.decision import Decision
from watchkeeper.containment.sliding_window import SlidingWindow, at_share
from watchkeeper.containment.tool_call_context import ToolCallContext
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.quantities import CountLike, DurationLike, count
from watchkeeper.core.stop import StopReason


class BudgetWindowHook:
    """Halts calls beyond so many in a window, and asks for a cheaper model shortly before (seed: execution-context).

    Args:
        max_calls: Calls that may begin within the window; further ones are HALT.
        window_seconds: The window's length, in seconds or as text such as "1m"; it slides. None for a fixed ceiling: so
            many calls in the whole life of this hook.
        degrade_threshold: Share of ``max_calls``, above 0 and at most 1; once it is taken, calls are DEGRADE. 1 for
            none.
        clock: Where time comes from.

    Attributes:
        stop_reason: What its HALT is called.

    Raises:
        LimitsError: If a value makes no sense.
    """

    stop_reason: ClassVar[StopReason] = "provider_rate_limit"

    __slots__ = ("_degrade_at", "_lock", "_max_calls", "_window")

    def __init__(
        self,
        max_calls: CountLike,
        window_seconds: DurationLike | None = 60.0,
        degrade_threshold: float = 0.8,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Start with an empty window."""
        self._max_calls = count(max_calls, "max_calls")
        self._degrade_at = at_share(degrade_threshold, self._max_calls, "degrade_threshold")
        self._window = SlidingWindow(window_seconds, clock)
        self._lock = threading.Lock()

    @property
    def calls(self) -> int:
        """Number of places that are taken now."""
        with self._lock:
            return self._window.slide()

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        """Take a place for a call: None if there is room, DEGRADE if it becomes scarce; or HALT, and none is taken."""
        with self._lock:
            taken = self._window.slide()
            if taken >= self._max_calls:
                self._window.disown(ctx)
                return Decision.HALT
            self._window.take(ctx, 1)
        return Decision.DEGRADE if taken >= self._degrade_at else None

    before_tool_call = before_llm_call

    def release(self, ctx: ToolCallContext) -> None:
        """Give back the place of a call that did not run after all; harmless if it has none."""
        with self._lock:
            self._window.give_back(ctx)

    def explain(self, ctx: ToolCallContext) -> str:
        """Say how full the window is."""
        return f"{self.calls:,} of {self._max_calls:,} calls were let through {self._window}."
