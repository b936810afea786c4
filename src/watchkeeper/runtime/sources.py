"""What the engine remembers of one observer or feedback provider: a fold of the log, never a state of its own.

When it last spoke, how gravely, what of it the agent has not been told yet, until when it is to be quiet, whether it is
off. All of it can be made from the session's slices at any time, and is, after a rollback or when a session goes on.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from watchkeeper.core.budget import BudgetStatus
from watchkeeper.prompt.advice import SEVERITIES, Advice, Severity
from watchkeeper.prompt.observer import ObserverConfig, ObserverTrigger, SourceConfig, is_on_loop
from watchkeeper.prompt.observer_context import TREND_SPAN
from watchkeeper.runtime.events import AdviceAcknowledged, EscalationTaken, ObserversRan, SourceRan
from watchkeeper.tools.invoked import ToolInvoked

OF_ONE_CALL: Final[tuple[type[Any], ...]] = (AdviceAcknowledged, ObserversRan, EscalationTaken)
"""What the log has of one call, in this order."""

KEPT: Final[tuple[type[Any], ...]] = (ToolInvoked, *OF_ONE_CALL)
"""The slices that the engine's memory is a fold of: what one run did, and was told."""

KEPT_SEVERITIES: Final = 10 * TREND_SPAN


class Source:
    """One source of advice.

    Attributes:
        config: As the template declares it.
        name: Its name.
        limit_seconds: What one look may take.
        is_observer: Whether it has the observer's face.
        is_async: Whether a method of its own is ``async def``.
        asks_on_loop: Whether its ``should_run`` is marked to be asked on the loop.
        speaks_on_loop: Whether both its methods are.
        should_run: The user's method.
        speak: The user's method: ``observe`` or ``provide``.
        about_limits: Whether it speaks of hard limits; its warnings are then never held back.
        off: Whether it overran its time and is not asked any more.
        spoke_at_call: Tool calls when it last spoke or failed; 0 before.
        spoke_at: When that was, or None.
        marks: How many shares of limits, of those that it is to be asked at, were passed then.
        file_seen: Whether the awaited file was there when it was last looked for.
        severities: Of its newest advice, the oldest first.
        waiting: Advice that the agent has not been told yet.
        quiet_until: Tool call up to which it is to be quiet.
        grave: Pieces of advice in a row that count for its escalation.
    """

    __slots__ = (
        "about_limits",
        "asks_on_loop",
        "config",
        "file_seen",
        "grave",
        "is_async",
        "is_observer",
        "limit_seconds",
        "marks",
        "name",
        "off",
        "quiet_until",
        "severities",
        "should_run",
        "speak",
        "speaks_on_loop",
        "spoke_at",
        "spoke_at_call",
        "trigger",
        "waiting",
    )

    def __init__(self, config: SourceConfig) -> None:
        """Remember nothing yet."""
        self.config = config
        self.name = config.name
        self.trigger: ObserverTrigger = config.trigger
        self.limit_seconds = config.limit_seconds
        self.is_observer = isinstance(config, ObserverConfig)
        self.should_run: Callable[..., Any] = config.source.should_run
        self.speak: Callable[..., Any] = config.source.observe if self.is_observer else config.source.provide
        self.is_async = any(inspect.iscoroutinefunction(method) for method in (self.should_run, self.speak))
        self.asks_on_loop = is_on_loop(self.should_run)
        self.speaks_on_loop = self.asks_on_loop and is_on_loop(self.speak)
        self.about_limits = bool(getattr(config.source, "about_limits", False))
        self.file_seen = False
        self.off = False
        self.severities: deque[Severity] = deque(maxlen=KEPT_SEVERITIES)
        self.forget()

    def forget(self) -> None:
        """Go back to the beginning, to follow another log; who is off stays off for the rest of the run."""
        self.spoke_at_call = 0
        self.spoke_at: datetime | None = None
        self.marks = 0
        self.severities.clear()
        self.waiting: Advice | None = None
        self.quiet_until = 0
        self.grave = 0

    def begin_run(self) -> None:
        """Forget what held for an earlier run only."""
        self.off = False
        self.marks = 0

    def passed(self, budget: BudgetStatus) -> int:
        """Return how many shares of its trigger are passed, each counted for every limit that has passed it."""
        shares = self.trigger.shares
        return sum(used >= each for used in budget.shares.values() for each in shares) if shares else 0

    def is_quiet(self, call_index: int) -> bool:
        """Return whether the agent asked it to be quiet; one that speaks of hard limits still looks."""
        return call_index <= self.quiet_until and not self.about_limits

    def follow(self, ran: SourceRan, call_index: int, at: datetime) -> None:
        """Take in what came of asking it; one that failed waits for its cadence as one that spoke does."""
        if ran.outcome == "overran":
            self.off = True
        if ran.outcome == "silent":
            self.grave = 0
            return
        self.spoke_at_call, self.spoke_at = call_index, at
        self.marks = ran.marks
        advice = ran.advice
        if advice is None:
            return
        self.severities.append(advice.severity)
        if call_index <= self.quiet_until and not self._holds_back_nothing(advice):
            return  # the agent is not told, so it cannot be said not to heed it
        self.waiting = advice
        escalate = self.config.escalate
        if escalate is not None:
            graver = SEVERITIES.index(advice.severity) >= SEVERITIES.index(escalate.severity)
            self.grave = self.grave + 1 if graver else 0

    def answered(self, answer: AdviceAcknowledged) -> None:
        """Take in that the agent answered it."""
        self.quiet_until = answer.call_index + answer.for_calls
        self.grave = 0
        if self.waiting is not None and not self._holds_back_nothing(self.waiting):
            self.waiting = None

    def deliver(self, call_index: int) -> Advice | None:
        """Return what the agent is told now, once; what is too old, or not wanted, is dropped."""
        advice, self.waiting = self.waiting, None
        if advice is None or advice.is_stale(call_index, self.config.max_age_calls):
            return None
        return None if call_index <= self.quiet_until and not self._holds_back_nothing(advice) else advice

    def _holds_back_nothing(self, advice: Advice) -> bool:
        return self.about_limits and advice.severity == "warning"
