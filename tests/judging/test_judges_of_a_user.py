"""A feedback provider and a completion checker that a user writes with `NestedEvaluator`.

They are the examples of the document on nested execution (docs/specification.md, NE), with three corrections: files are
always read-only, the verifier's deadline derives from the run's, and a check that was skipped is `unverified`, not ok.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.kit import Call, Say, ScriptedModel, events
from watchkeeper.accounting.budget import Budget
from watchkeeper.app.run import arun
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import BudgetExceededError, DeadlineExceededError
from watchkeeper.judging import NestedEvaluator, NestedExecutionConfig, NestedExecutionContext, derive_nested_deadline
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.advice import Feedback
from watchkeeper.prompt.completion import TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.observer import FeedbackContext, FeedbackProviderConfig, FeedbackTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate, ProviderAdapter
from watchkeeper.runtime.events import ChildStarted
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.tool import tool

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrajectoryAssessment:
    summary: str
    good: bool


@dataclass(frozen=True)
class CompletionVerdict:
    complete: bool
    explanation: str


@dataclass(frozen=True)
class LLMTrajectoryFeedback:
    """Feedback provider using LLM to evaluate agent trajectory."""

    adapter: ProviderAdapter
    evaluation_prompt: Prompt[TrajectoryAssessment]

    @property
    def name(self) -> str:
        return "LLMTrajectoryFeedback"

    def should_run(self, *, context: FeedbackContext) -> bool:
        return context.tool_call_count >= 5

    def provide(self, *, context: FeedbackContext) -> Feedback:
        nested_ctx = NestedExecutionContext(
            parent_session=context.session,
            deadline=derive_nested_deadline(context.deadline, clock=context.session.clock),
            budget=Budget(max_total_tokens=500),
        )
        prompt = self.evaluation_prompt.with_variables(
            recent_actions=", ".join(call.name for call in context.recent_tool_calls(10)),
            current_plan="none",
        )
        evaluator = NestedEvaluator(self.adapter, prompt=prompt, context=nested_ctx)
        result = evaluator.evaluate()
        if result.success and result.output:
            severity: Any = "info" if result.output.good else "caution"
            return Feedback(provider_name=self.name, summary=result.output.summary, severity=severity)
        return Feedback(provider_name=self.name, summary="Trajectory assessment unavailable", severity="info")


class LLMCompletionVerifier:
    """Verify task completion using LLM judgment."""

    def __init__(self, verification_prompt: Prompt[CompletionVerdict], *, share_budget: bool = True) -> None:
        self._prompt = verification_prompt
        self._share_budget = share_budget

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        if context.adapter is None:
            return TaskCompletionResult.unverified("No adapter for verification")
        overrides = {Filesystem: context.filesystem} if context.filesystem else {}
        nested_ctx = NestedExecutionContext(
            parent_session=context.session,
            deadline=derive_nested_deadline(context.deadline, timedelta(seconds=15), clock=context.session.clock),
            budget=None if self._share_budget else Budget(max_total_tokens=500),
            resource_overrides=overrides,
        )
        prompt = self._prompt.with_variables(
            task_description=context.task,
            tentative_output=context.tentative_output,
            stop_reason=context.stop_reason,
        )
        evaluator = NestedEvaluator(context.adapter, prompt=prompt, context=nested_ctx)
        try:
            result = evaluator.evaluate()
            if result.success and result.output:
                verdict = result.output
                if verdict.complete:
                    return TaskCompletionResult.ok(verdict.explanation)
                return TaskCompletionResult.incomplete(verdict.explanation)
        except (DeadlineExceededError, BudgetExceededError):
            return TaskCompletionResult.unverified("Verification skipped (resource limit)")
        return TaskCompletionResult.unverified("Verification inconclusive")


ASSESS = PromptTemplate[TrajectoryAssessment](
    ns="nested",
    key="trajectory",
    sections=(MarkdownSection(title="", key="task", template="Assess: ${recent_actions}. Plan: ${current_plan}."),),
)
VERIFY = PromptTemplate[CompletionVerdict](
    ns="nested",
    key="completion",
    sections=(
        MarkdownSection(
            title="",
            key="task",
            template="Task: ${task_description} Output: ${tentative_output} Stopped because: ${stop_reason}",
        ),
    ),
)


@tool
def step() -> str:
    """Take a step."""
    return "taken"


def agent(judge: ProviderAdapter, **verifier: Any) -> PromptTemplate[str]:
    return PromptTemplate[str](
        ns="nested",
        key="agent",
        sections=(MarkdownSection(title="", key="task", template="Take steps.", tools=(step,)),),
        feedback_providers=(
            FeedbackProviderConfig(
                provider=LLMTrajectoryFeedback(adapter=judge, evaluation_prompt=Prompt(ASSESS)),
                trigger=FeedbackTrigger(every_n_calls=5),
            ),
        ),
        task_completion_checker=LLMCompletionVerifier(Prompt(VERIFY), **verifier),
        nested_execution_config=NestedExecutionConfig(max_nested_duration=timedelta(seconds=15)),
    )


@pytest.mark.spec("NE-023", "NE-024")
async def test_the_examples_run_as_they_are_written() -> None:
    judge = ScriptedModel([Say(TrajectoryAssessment("Five steps, none too many.", True))], name="judge")
    verdicts = [Say(CompletionVerdict(False, "One step more.")), Say(CompletionVerdict(True, "All steps taken."))]
    model = ScriptedModel([*[Call("step")] * 5, "Done?", verdicts[0], Call("step"), "Done.", verdicts[1]])
    result = await arun(
        agent(Adapter(judge)), model=model, clock=TestClock(), store=None, filesystem=MemoryFilesystem({"a": b"a"})
    )
    assert (result.output, result.completion, result.completion_note) == ("Done.", "verified", "All steps taken.")
    said = result.session[Feedback].latest()
    assert said is not None
    assert said.summary == "Five steps, none too many."
    started = events(result, ChildStarted)
    assert [each.prompt_name for each in started] == ["nested/trajectory", "nested/completion", "nested/completion"]
    assert "total tokens 500" in started[0].limits
    asked = model.requests[6].transcript[0].text
    assert "Output: Done? Stopped because: stop" in asked
    judge.assert_complete()


async def test_the_recovery_patterns_leave_the_run_unharmed() -> None:
    nonsense = ScriptedModel(["nonsense"] * 2, name="judge")
    poor = agent(Adapter(nonsense), share_budget=False)
    big = ScriptedModel([*[Call("step")] * 5, "Done. " * 400])
    result = await arun(poor, model=big, clock=TestClock(), store=None)
    assert (result.stop, result.completion) == (None, "unverified")
    assert result.completion_note == "Verification skipped (resource limit)"
    said = result.session[Feedback].latest()
    assert said is not None
    assert said.summary == "Trajectory assessment unavailable"
