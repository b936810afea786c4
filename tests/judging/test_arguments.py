"""What is given to a judge is checked where it is given, before any work is done or paid for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit import ScriptedModel, question
from watchkeeper.accounting.budget import Budget
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.judging import (
    COMPLETION,
    LLMCompletionVerifier,
    LLMTrajectoryFeedback,
    NestedEvaluator,
    NestedExecutionContext,
)
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.template import Prompt
from watchkeeper.session.session import Session

CONTEXT = NestedExecutionContext(Session(), budget=Budget(max_total_tokens=8_000))


class Later:
    """Evaluates, but only asynchronously."""

    async def evaluate_async(self, prompt: Any, **options: Any) -> Any:
        """Nothing."""


def evaluator(adapter: Any) -> Any:
    return NestedEvaluator(adapter, prompt=question(), context=CONTEXT)


def verifier(adapter: Any) -> Any:
    return LLMCompletionVerifier(adapter=adapter)


def feedback(adapter: Any) -> Any:
    return LLMTrajectoryFeedback(adapter)


def test_a_single_evaluation_makes_no_model_of_a_name() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'openai:x' can evaluate nothing; give Adapter\(.*from\('openai:x'\)"
    ):
        evaluator("openai:x")


@pytest.mark.parametrize("take", [evaluator, verifier, feedback])
def test_somebody_who_cannot_be_asked_is_refused_at_once(take: Any) -> None:
    with pytest.raises(ConfigurationError, match="can evaluate nothing"):
        take(1)
    with pytest.raises(ConfigurationError, match=r"is a model; give Adapter\(model\)"):
        take(ScriptedModel([]))
    for adapter in (Adapter(ScriptedModel([])), Later()):
        assert take(adapter).adapter is adapter


def test_a_template_is_no_prompt_yet() -> None:
    template: Any = COMPLETION
    words = r"prompt must be a Prompt, not PromptTemplate; give Prompt\(template\)"
    with pytest.raises(ConfigurationError, match=words):
        NestedEvaluator(Adapter(ScriptedModel([])), prompt=template, context=CONTEXT)
    with pytest.raises(ConfigurationError, match=f"verification_{words}"):
        LLMCompletionVerifier(template)
    with pytest.raises(ConfigurationError, match=f"evaluation_{words}"):
        LLMTrajectoryFeedback(evaluation_prompt=template)
    assert LLMCompletionVerifier(Prompt(COMPLETION)).verification_prompt.template is COMPLETION


@pytest.mark.parametrize("make", [LLMCompletionVerifier, LLMTrajectoryFeedback])
def test_a_budget_that_is_none_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"budget=500 must be a Budget, for example Budget\("):
        make(budget=500)


def test_a_tracker_that_is_none_is_refused() -> None:
    tracker: Any = 500
    with pytest.raises(ConfigurationError, match=r"budget_tracker=500 must be BudgetTracker\("):
        evaluator(Adapter(ScriptedModel([]))).evaluate(budget_tracker=tracker)
