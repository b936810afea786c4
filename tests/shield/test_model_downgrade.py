"""The cheaper model is asked for when it is time, and never of a call that already goes to it."""

from __future__ import annotations

from typing import Any

import pytest

from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.usage_hooks import BudgetWindowHook, ModelDowngradeHook, TokenRateHook

DEGRADE = Decision.DEGRADE


def call(model: str | None = "openai:gpt-5", **fields: Any) -> ToolCallContext:
    return ToolCallContext("request", model=model, **fields)


@pytest.mark.spec("EC-039")
def test_a_call_degrades_once_the_share_is_spent() -> None:
    hook = ModelDowngradeHook("openai:gpt-5-mini", at_cost_share=0.5)
    assert hook.before_llm_call(call(cost_share=0.499)) is None
    assert hook.before_llm_call(call(cost_share=0.5)) is DEGRADE
    assert hook.fallback_model == "openai:gpt-5-mini"
    assert hook.explain(call(cost_share=0.5)) == ("At least 50% of the money is spent; go on with openai:gpt-5-mini.")


def test_without_a_ceiling_no_share_is_ever_spent() -> None:
    assert ModelDowngradeHook("cheap").before_llm_call(call()) is None


@pytest.mark.parametrize("model", ["openai:gpt-5-mini", "gpt-5-mini"])
def test_a_call_to_the_cheaper_model_passes(model: str) -> None:
    assert ModelDowngradeHook("openai:gpt-5-mini").before_llm_call(call(model, cost_share=1.0)) is None


def test_the_cheaper_model_may_be_named_without_its_provider() -> None:
    hook = ModelDowngradeHook("gpt-5-mini")
    assert hook.before_llm_call(call("openai:gpt-5-mini", cost_share=1.0)) is None
    assert hook.before_llm_call(call("openai:big-gpt-5-mini", cost_share=1.0)) is DEGRADE


def test_a_call_that_is_degraded_already_passes_whatever_its_model_is_called() -> None:
    hook = ModelDowngradeHook("openai:gpt-5-mini")
    assert hook.before_llm_call(call("gpt-5-mini-2025", cost_share=1.0, degraded=True)) is None


def test_a_call_of_an_unknown_model_degrades() -> None:
    assert ModelDowngradeHook("cheap").before_llm_call(call(None, cost_share=0.9)) is DEGRADE


def test_another_hook_can_say_when_and_counts_only_dearer_calls() -> None:
    window = BudgetWindowHook(2, 60, 1, clock=TestClock())
    hook = ModelDowngradeHook("cheap", at_cost_share=None, when=window)
    said = [hook.before_llm_call(call(model)) for model in ("dear", "cheap", "dear", "cheap", "dear")]
    assert said == [None, None, None, None, DEGRADE]
    assert window.calls == 2
    assert hook.explain(call()) == "BudgetWindowHook holds dearer calls back; go on with cheap."


def test_what_the_other_hook_counted_is_released_with_the_call() -> None:
    window = BudgetWindowHook(2, 60, 0.5, clock=TestClock())
    hook = ModelDowngradeHook("cheap", when=window)
    ctx = call()
    assert hook.before_llm_call(call()) is None
    assert hook.before_llm_call(ctx) is DEGRADE
    hook.release(ctx)
    assert window.calls == 1


def test_the_other_hook_learns_what_dearer_calls_have_used() -> None:
    rate = TokenRateHook(100, clock=TestClock())
    hook = ModelDowngradeHook("cheap", at_cost_share=None, when=rate)
    dear, cheap = call("dear"), call("cheap")
    for ctx in (dear, cheap):
        assert hook.before_llm_call(ctx) is None
        hook.after_llm_call(ctx, {"usage": {"total_tokens": 100}})
    assert rate.tokens == 100
    assert hook.before_llm_call(call("dear")) is DEGRADE


def test_another_hook_may_know_nothing_of_answers_and_releases() -> None:
    class Plain:
        def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
            return Decision.ALLOW

    hook = ModelDowngradeHook("cheap", when=Plain())
    ctx = call(cost_share=0.1)
    assert hook.before_llm_call(ctx) is None
    hook.after_llm_call(ctx, "answer")
    hook.release(ctx)


class Unawaited:
    async def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        return None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "m", "when": Unawaited()}, "must be a plain function, not async"),
        ({"model": ""}, "model=''"),
        ({"model": "  "}, "model='  '"),
        ({"model": None}, "model=None"),
        ({"model": "m", "at_cost_share": 0}, "at_cost_share=0 "),
        ({"model": "m", "at_cost_share": 1.5}, "at_cost_share=1.5"),
        ({"model": "m", "at_cost_share": float("nan")}, "at_cost_share=nan"),
        ({"model": "m", "at_cost_share": None}, "at_cost_share=None and when=None"),
        ({"model": "m", "when": 5}, "when=5"),
    ],
)
def test_what_makes_no_sense_is_refused_with_field_and_value(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ModelDowngradeHook(**values)
    assert said in str(caught.value)
