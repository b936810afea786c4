"""What observers and feedback providers may look at; made anew for every round, and read-only.

Whatever is asked for often is a fold that the runtime keeps up to date (`Trajectory`, the history by source), so no
look costs more at call ten thousand than at call ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from watchkeeper.core.budget import Budget, BudgetStatus
from watchkeeper.core.deadline import Deadline
from watchkeeper.core.quantities import DurationLike
from watchkeeper.core.run_context import RunContext
from watchkeeper.prompt.advice import SEVERITIES, Advice, Assessment, Severity
from watchkeeper.prompt.nested import NESTED, NestedExecutionConfig, NestedExecutionContext, derive_nested_deadline
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.invoked import ToolInvoked, is_success

if TYPE_CHECKING:
    from watchkeeper.prompt.adapter import ProviderAdapter
    from watchkeeper.prompt.rendered import RenderedPrompt

Trend = Literal["rising", "steady", "falling"]

TREND_SPAN: Final = 3
"""How many pieces of advice of one source make a trend."""


class ObserverContext(msgspec.Struct, frozen=True):
    """What an observer may look at (seed: trajectory-observers).

    A msgspec struct, because every round makes one.

    Attributes:
        session: The run's session; read it, do not write to it.
        budget: Limits and what is used of them, at this moment.
        trajectory: The newest tool calls, digested.
        now: This moment, in UTC.
        advice: What other sources said after this same call so far, in the order in which the template declares them.
        severities: By source, the severities of its newest advice, the oldest first.
        task: What the agent was told at the start.
        filesystem: A read-only view of the run's files, or None.
        deadline: When the work must be over, or None.
        run_context: The run's identifiers, or None.
    """

    session: Session
    budget: BudgetStatus = BudgetStatus()
    trajectory: Trajectory = msgspec.field(default_factory=Trajectory)
    now: datetime | None = None
    advice: Sequence[Advice] = ()
    severities: Mapping[str, Sequence[Severity]] = msgspec.field(default_factory=dict[str, Sequence[Severity]])
    task: str = ""
    filesystem: Filesystem | None = None
    deadline: Deadline | None = None
    run_context: RunContext | None = None

    @property
    def last_assessment(self) -> Assessment | None:
        """The newest assessment of any observer."""
        return self.session[Assessment].latest()

    @property
    def assessments(self) -> tuple[Assessment, ...]:
        """What other observers said after this same call: observers compose."""
        return tuple(advice for advice in self.advice if isinstance(advice, Assessment))

    @property
    def tool_call_count(self) -> int:
        """Tool calls so far."""
        return len(self.session[ToolInvoked].all())

    def tool_calls_since_last_assessment(self) -> int:
        """Return the number of tool calls since the newest assessment of any observer."""
        last = self.last_assessment
        return max(self.tool_call_count - (0 if last is None else last.call_index), 0)

    def recent_tool_calls(self, n: int) -> Sequence[ToolInvoked]:
        """Return the newest tool calls, the oldest of them first.

        Args:
            n: How many at most.
        """
        calls = self.session[ToolInvoked].all()
        return calls[max(len(calls) - max(n, 0), 0) :]

    def error_rate(self, window: int) -> float:
        """Return the share of failures among the newest calls; 0.0 if there are none.

        Args:
            window: How many calls to look at.
        """
        recent = self.recent_tool_calls(window)
        return sum(not is_success(call) for call in recent) / len(recent) if recent else 0.0

    def trend(self, name: str) -> Trend:
        """Return whether the newest advice of a source, by its name, grows graver or milder."""
        history = [SEVERITIES.index(severity) for severity in list(self.severities.get(name, ()))[-TREND_SPAN:]]
        if len(history) < 2 or history[0] == history[-1]:
            return "steady"
        return "rising" if history[-1] > history[0] else "falling"


class FeedbackContext(ObserverContext, frozen=True):
    """What a feedback provider may look at (seed: nested-execution): what an observer may, and whom it may ask.

    Attributes:
        adapter: Evaluates prompts with the run's own model, or None outside of a run.
        nested: What nested evaluations may do.
        prompt: The run's prompt as its agent got it: messages, tools, type of the answer; None outside of a run.
    """

    adapter: ProviderAdapter | None = None
    nested: NestedExecutionConfig = NESTED
    prompt: RenderedPrompt[Any] | None = None

    def create_nested_context(
        self, *, budget: Budget | None = None, max_duration: DurationLike | None = None
    ) -> NestedExecutionContext:
        """Return what a nested evaluation is given (seed: nested-execution, "Extending FeedbackContext").

        Args:
            budget: What it may spend, set aside from what the run has left; by default as the template's
                `NestedExecutionConfig` says, so that feedback never starves the work.
            max_duration: How long it may take; as that configuration says by default.
        """
        clock = self.session.clock
        return NestedExecutionContext(
            parent_session=self.session,
            parent_run_context=self.run_context,
            deadline=derive_nested_deadline(self.deadline, max_duration or self.nested.longest, clock=clock),
            budget=budget or self.nested.default_nested_budget,
            resource_overrides={} if self.filesystem is None else {Filesystem: self.filesystem},
            config=self.nested,
        )
