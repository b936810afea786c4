"""The models that judges ask: made, priced and refused when the run begins, before anything is spent."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.kit import Call, Say, ScriptedModel, named, play, step
from watchkeeper.accounting.budget import Budget
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.errors import ConfigurationError, UnknownModelError, UnpricedModelError
from watchkeeper.core.usage import ModelPrice
from watchkeeper.judging import CompletionVerdict, LLMCompletionVerifier, LLMTrajectoryFeedback, TrajectoryAssessment
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.completion import CompositeChecker
from watchkeeper.prompt.observer import FeedbackProviderConfig, ObserverTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate

GOOD = CompletionVerdict((), ("from nine to five",), "It is all there.", True, "")
PRICE = ModelPrice.per_million(1, 15)


def judged_by(asked: Any, kind: str) -> PromptTemplate[str]:
    section = MarkdownSection(title="Task", key="task", template="Do it.", tools=(step,))
    if kind == "checker":
        verifier = CompositeChecker((LLMCompletionVerifier(adapter=asked),))
        return PromptTemplate[str]("tests", "judged", sections=[section], task_completion_checker=verifier)
    provider = FeedbackProviderConfig(
        LLMTrajectoryFeedback(adapter=asked, min_calls=1), ObserverTrigger(on_every_call=True)
    )
    return PromptTemplate[str]("tests", "judged", sections=[section], feedback_providers=[provider])


@pytest.mark.parametrize("kind", ["checker", "provider"])
@pytest.mark.parametrize("asked", ["openai:judge-1", "adapter"])
async def test_a_judges_model_is_priced_before_anything_is_spent(
    asked: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = (
        GOOD if kind == "checker" else TrajectoryAssessment(status="on_track", reason="All is well.", suggestion="")
    )
    judge = named("judge-1", lambda _: Say(answer), free=False, provider="openai")

    def made(name: str) -> ScriptedModel:
        return judge

    monkeypatch.setattr("watchkeeper.app.models.model_from", made)
    template = judged_by(Adapter(judge) if asked == "adapter" else asked, kind)
    agent = named("agent", [Call("step"), "I work from nine to five."], free=False)
    prices = {"of-agent:agent": PRICE}
    with pytest.raises(UnpricedModelError, match="openai:judge-1"):
        await play(template, agent, Limits(max_cost_usd=1), prices=prices)
    assert not agent.requests

    result = await play(template, agent, Limits(max_cost_usd=1), prices={**prices, "openai:judge-1": PRICE})
    assert result.ok
    assert result.cost == Decimal("0.0012"), "three calls of 100 and 20 tokens"
    assert len(judge.requests) == 1
    if kind == "checker":
        assert result.completion == "verified"


async def test_what_nobody_can_price_or_make_is_refused_before_anything_is_spent() -> None:
    class Outside:
        name = "outside"

        def evaluate(self, prompt: Any, **options: Any) -> Any:
            raise AssertionError("it was asked")

    outside: Any = Outside()
    agent = ScriptedModel(["done"])
    with pytest.raises(UnpricedModelError, match="Outside of a judge"):
        await play(judged_by(outside, "checker"), agent, Limits(max_cost_usd=1))
    with pytest.raises(UnknownModelError, match="'gpt-5'"):
        await play(judged_by("gpt-5", "checker"), agent)
    own = Adapter(agent)
    with pytest.raises(ConfigurationError, match=r"names the model 'openai:gpt-5', which only run\(\) makes"):
        await own.evaluate_async(Prompt(judged_by("openai:gpt-5", "checker")))
    unpriced = Adapter(named("judge-1", [], free=False))
    with pytest.raises(UnpricedModelError, match="no price for 'of-judge-1:judge-1'"):
        await own.evaluate_async(Prompt(judged_by(unpriced, "checker")), budget=Budget(max_cost_usd=1))
    assert not agent.requests
