"""Feedback by a model on how a run is going (seed: nested-execution, "Feedback Provider with Nested Adapter").

It asks about the latest tool calls, under a small budget that is set aside from what the run has left, and tells the
agent what came of it. It is advice: if the evaluation fails, the run goes on without it and its record says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from watchkeeper.core.budget import Budget
from watchkeeper.core.errors import ConfigurationError, NestedEvaluationError, ObserverError
from watchkeeper.core.quantities import DurationLike, duration
from watchkeeper.judging.arguments import check_adapter, check_budget, check_prompt
from watchkeeper.judging.evaluator import NestedEvaluator
from watchkeeper.judging.showing import TASK_CHARS, cut, shown_calls
from watchkeeper.judging.templates import TRAJECTORY, TrajectoryAssessment
from watchkeeper.prompt.adapter import ProviderAdapter
from watchkeeper.prompt.advice import Feedback, Observation, Severity
from watchkeeper.prompt.observer_context import FeedbackContext
from watchkeeper.prompt.prompt import Prompt

JUDGE_BUDGET: Final = Budget(max_total_tokens=8_000)
"""What one look of a judge may spend: of what is reserved before a call, a byte counts as a token."""

ASSESS: Final = Prompt(TRAJECTORY)
"""What is asked by default."""

SEVERITY: Final[Mapping[str, Severity]] = {"on_track": "info", "stuck": "caution", "off_track": "warning"}
"""How grave each status of an assessment is."""


@dataclass(frozen=True, slots=True)
class LLMTrajectoryFeedback:
    """Has a model assess the latest actions of an agent, and tells the agent (seed: nested-execution).

    Attributes:
        adapter: Whom to ask: an `Adapter` around a cheap model, for example; None for the run's own model.
        evaluation_prompt: What to ask; its answers are `TrajectoryAssessment`. Where it has these placeholders, they
            are filled with ``task_description``, ``recent_actions`` and ``tool_call_count``.
        budget: What one look may spend, set aside from what the run has left; None for what the template's
            `NestedExecutionConfig` says.
        max_duration: How long one look may take; as that configuration says by default.
        min_calls: It stays silent before so many tool calls.
        recent_calls: So many of the latest calls are shown.
        name: Its name among the sources of a template.
    """

    adapter: ProviderAdapter | None = None
    evaluation_prompt: Prompt[TrajectoryAssessment] = ASSESS
    budget: Budget | None = JUDGE_BUDGET
    max_duration: DurationLike | None = None
    min_calls: int = 5
    recent_calls: int = 10
    name: str = "LLMTrajectoryFeedback"

    def __post_init__(self) -> None:
        """Refuse what could not be asked.

        Raises:
            ObserverError: For numbers below one, or a prompt whose answers are no assessments.
            ConfigurationError: For somebody who cannot be asked, a budget that is none, or what is no prompt.
            LimitsError: For a duration that cannot be.
        """
        for name in ("min_calls", "recent_calls"):
            if getattr(self, name) < 1:
                raise ObserverError(f"{name}={getattr(self, name)!r} must be at least 1")
        if self.max_duration is not None:
            duration(self.max_duration, "max_duration")
        if self.adapter is not None:
            check_adapter(self.adapter)
        check_budget(self.budget)
        check_prompt(self.evaluation_prompt, "evaluation_prompt")
        answers: Any = self.evaluation_prompt.output_type
        if not (isinstance(answers, type) and issubclass(answers, TrajectoryAssessment)):
            raise ObserverError(f"evaluation_prompt must ask for a TrajectoryAssessment, not for {answers!r}")

    def should_run(self, *, context: FeedbackContext) -> bool:
        """Whether there is enough to look at."""
        return context.tool_call_count >= self.min_calls

    async def provide(self, *, context: FeedbackContext) -> Feedback:
        """Ask, and return what the agent is to be told.

        Raises:
            ConfigurationError: If there is nobody to ask.
            NestedEvaluationError: If the evaluation failed; the run goes on without it.
            PromptEvaluationError: If time or budget were over.
        """
        adapter = self.adapter or context.adapter
        if adapter is None:
            raise ConfigurationError(f"{self.name} has nobody to ask: give adapter=, or use it in a run")
        evaluator = NestedEvaluator(
            adapter,
            prompt=filled(self.evaluation_prompt, self._values(context)),
            context=context.create_nested_context(budget=self.budget, max_duration=self.max_duration),
        )
        result = await evaluator.evaluate_async()
        if result.output is None:
            raise result.error or NestedEvaluationError("the evaluation ended without an assessment", kind="output")
        return self._feedback(result.output)

    def _values(self, context: FeedbackContext) -> Mapping[str, Any]:
        return {
            "task_description": cut(context.task, TASK_CHARS),
            "recent_actions": shown_calls(context.recent_tool_calls(self.recent_calls)),
            "tool_call_count": context.tool_call_count,
        }

    def _feedback(self, said: TrajectoryAssessment) -> Feedback:
        words = said.status.replace("_", " ")
        reason = said.reason.strip()
        return Feedback(
            provider_name=self.name,
            summary=f"The work is {words}{f': {reason}' if reason else '.'}",
            observations=(Observation("trajectory", f"judged {words}"),),
            suggestions=(said.suggestion.strip(),) if said.suggestion.strip() else (),
            severity=SEVERITY[said.status],
        )


def filled(prompt: Prompt[Any], values: Mapping[str, Any]) -> Prompt[Any]:
    """Return a prompt in which those values that it has a place for stand in their places."""
    wanted = prompt.template.placeholders
    return prompt.with_variables(**{name: value for name, value in values.items() if name in wanted})
