"""What a run makes of what hooks and circuit breakers say about its calls."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from tests.kit import (
    Call,
    Calls,
    Report,
    Say,
    ScriptedModel,
    agent,
    always_down,
    down,
    events,
    named,
    outcomes,
    play,
    reason,
    step,
    switches,
)
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.models import models_of_run
from watchkeeper.asking.retry import MAX_ATTEMPTS, is_outage
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, UnpricedModelError
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.usage import ModelPrice
from watchkeeper.runtime.events import ModelFailed, ModelReplied
from watchkeeper.shield.circuit_breaker import CircuitBreakers, CircuitState
from watchkeeper.shield.decision import Decision, SafetyEvent, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.shield.usage_hooks import BudgetWindowHook, ModelDowngradeHook
from watchkeeper.tools.tool import tool

DONE = Say(Report(1))
Said = Decision | None


class Hook:
    """Says what a script has it say, then nothing; remembers what it was asked about."""

    def __init__(self, *script: Said, always: Said = None, fallback_model: str | None = None) -> None:
        self._script = iter(script)
        self._always = always
        self.fallback_model = fallback_model
        self.asked: list[ToolCallContext] = []
        self.released = 0

    def before_llm_call(self, ctx: ToolCallContext) -> Said:
        self.asked.append(ctx)
        return next(self._script, self._always)

    before_tool_call = before_llm_call

    def on_error(self, ctx: ToolCallContext, err: BaseException) -> Said:
        return self.before_llm_call(ctx)

    def before_charge(self, ctx: ToolCallContext, cost_usd: float) -> Said:
        return self.before_llm_call(ctx)

    def release(self, ctx: ToolCallContext) -> None:
        self.released += 1


class AnswerHook:
    """Says something about answers."""

    def __init__(self, *script: Said) -> None:
        self._script = iter(script)

    def before_llm_call(self, ctx: ToolCallContext) -> None:
        return None

    def after_llm_call(self, ctx: ToolCallContext, response: Any) -> Said:
        return next(self._script, None)


def before_models(hook: Any) -> ShieldPipeline:
    return ShieldPipeline(pre_dispatch=hook)


def before_tools(hook: Any) -> ShieldPipeline:
    return ShieldPipeline(tool_dispatch=hook)


# --- model calls -----------------------------------------------------------------------------------------------------


async def test_hooks_see_who_is_asked_and_what_it_may_cost() -> None:
    hook = Hook()
    prices = {"one": ModelPrice.per_million(1, 1)}
    await play(agent(), named("one", [DONE], free=False), shield=before_models(hook), prices=prices)
    (seen,) = hook.asked
    assert (seen.kind, seen.model, seen.endpoint, seen.tool_name) == ("llm", "of-one:one", "of-one", "one")
    assert seen.degraded is False
    assert seen.cost_usd is not None
    assert seen.cost_usd > 0


@pytest.mark.spec("FR-123")
async def test_a_halt_stops_the_run_without_a_last_turn_and_keeps_what_there_was() -> None:
    """A last turn would be one more call that the hook forbids."""
    one = named("one", [Calls((Call("step"),), text="So far: 1.")])
    result = await play(agent(step), one, shield=before_models(Hook(None, Decision.HALT)))
    assert reason(result) == "policy_halt"
    assert result.partial == "So far: 1."
    assert len(one.requests) == 1
    assert result.usage.steps == 2  # the refused call took no step


async def test_a_full_window_stops_the_run_as_a_rate_limit() -> None:
    shield = before_models(BudgetWindowHook(2, degrade_threshold=1))
    result = await play(agent(step), named("one", lambda _: Call("step")), shield=shield)
    assert reason(result) == "provider_rate_limit"
    assert len(events(result, ModelReplied)) == 2


async def test_quarantine_stops_the_run() -> None:
    result = await play(agent(), named("one", []), shield=before_models(Hook(Decision.QUARANTINE)))
    assert reason(result) == "policy_quarantine"


@pytest.mark.spec("FR-123")
async def test_degrade_goes_on_with_the_cheaper_model_for_the_rest_of_the_run() -> None:
    hook = Hook(None, Decision.DEGRADE, Decision.DEGRADE, always=Decision.DEGRADE, fallback_model="small")
    one, small = named("one", [Call("step")]), named("small", [Call("step"), DONE])
    result = await play(agent(step), one, shield=before_models(hook), fallback=[small])
    assert result.output == Report(1)
    assert switches(result) == [(2, "of-one:one", "of-small:small", "degraded")]
    assert result.answered_by == ("of-one:one", "of-small:small")
    assert [seen.degraded for seen in hook.asked] == [False, False, True, True]


async def test_the_cheaper_model_need_not_be_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Small(ScriptedModel):
        async def close(self) -> None:
            closed.append(self.name)

    small = Small([DONE], name="small", provider="of-small")
    monkeypatch.setattr(f"{models_of_run.__module__}.model_from", {"of-small:small": small}.__getitem__)
    hook = Hook(Decision.DEGRADE, fallback_model="of-small:small")
    result = await play(agent(), named("one", []), shield=before_models(hook))
    assert result.output == Report(1)
    assert closed == ["small"]


async def test_the_downgrade_hook_switches_when_its_share_is_spent() -> None:
    """Once half of the fifty cents is spent, calls go to the model that was named."""
    prices = {"one": ModelPrice.per_million(100, 500), "small": ModelPrice.per_million(1, 1)}
    one, small = named("one", lambda _: Call("step"), free=False), named("small", [DONE], free=False)
    shield = before_models(ModelDowngradeHook("of-small:small", at_cost_share=0.5))
    limits = Limits(max_cost_usd="0.5", landing=None)
    result = await play(agent(step), one, limits, shield=shield, fallback=[small], prices=prices)
    assert result.output == Report(1)
    assert switches(result) == [(14, "of-one:one", "of-small:small", "degraded")]
    assert result.cost == Decimal("0.26012")


async def test_degrade_stops_where_no_cheaper_model_is_named() -> None:
    one = named("one", [])
    result = await play(agent(), one, shield=before_models(Hook(Decision.DEGRADE)))
    assert reason(result) == "policy_halt"
    assert one.requests == []


async def test_degrade_stops_where_the_cheaper_model_was_down_in_this_turn() -> None:
    """The other fallback takes over, the hook says DEGRADE again, and the cheaper one is not tried twice."""
    hook = Hook(always=Decision.DEGRADE, fallback_model="small")
    small, other = always_down("small", "auth"), named("other", [DONE])
    result = await play(agent(), named("one", []), shield=before_models(hook), fallback=[other, small])
    assert reason(result) == "provider_error"
    assert len(small.requests) == 1
    assert other.requests == []


async def test_the_cheaper_model_that_is_asked_for_already_is_not_degraded() -> None:
    hook = Hook(always=Decision.DEGRADE, fallback_model="of-one:one")
    result = await play(agent(), named("one", [DONE]), shield=before_models(hook))
    assert result.output == Report(1)
    assert switches(result) == []


async def test_a_cheaper_model_without_a_price_is_refused_before_anything_is_spent() -> None:
    hook = Hook(fallback_model="http://127.0.0.1:9/v1#mine")
    one = named("one", [DONE])
    with pytest.raises(UnpricedModelError, match="mine"):
        await play(agent(), one, Limits(max_cost_usd=1), shield=before_models(hook))
    assert one.requests == []


async def test_an_unknown_cheaper_model_is_refused_before_anything_is_spent() -> None:
    one = named("one", [DONE])
    with pytest.raises(ConfigurationError, match="smal"):
        await play(agent(), one, shield=before_models(Hook(fallback_model="smal")))
    assert one.requests == []


@pytest.mark.spec("FR-123")
async def test_retry_is_asked_again_after_a_wait() -> None:
    hook = Hook(Decision.RETRY, Decision.RETRY)
    result = await play(agent(), named("one", [DONE]), shield=before_models(hook))
    assert result.output == Report(1)
    assert 0.75 <= result.duration.total_seconds() <= 1.5
    assert result.usage.retries == 0
    assert result.usage.steps == 1


async def test_retry_for_ever_ends() -> None:
    hook = Hook(always=Decision.RETRY)
    result = await play(agent(), named("one", []), shield=before_models(hook))
    assert reason(result) == "policy_halt"
    assert len(hook.asked) == MAX_ATTEMPTS


async def test_queue_waits_until_the_hook_lets_it_pass() -> None:
    hook = Hook(*[Decision.QUEUE] * 9)
    result = await play(agent(), named("one", [DONE]), shield=before_models(hook))
    assert result.output == Report(1)
    assert result.duration.total_seconds() > 60


@pytest.mark.spec("FR-123")
async def test_queue_waits_at_most_to_the_deadline() -> None:
    hook = Hook(always=Decision.QUEUE)
    result = await play(agent(), named("one", []), Limits(deadline="10m", landing=None), shield=before_models(hook))
    assert reason(result) == "timeout"
    assert result.duration.total_seconds() == pytest.approx(600, abs=1)


async def test_what_waits_in_the_queue_ends_when_the_run_is_cancelled() -> None:
    hook = Hook(always=Decision.QUEUE)
    run = asyncio.create_task(play(agent(), named("one", []), Limits(deadline=None), shield=before_models(hook)))
    while len(hook.asked) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_a_broken_hook_holds() -> None:
    class Broken:
        def before_llm_call(self, ctx: ToolCallContext) -> None:
            raise ValueError("a bug")

    one = named("one", [])
    result = await play(agent(), one, shield=before_models(Broken()))
    assert reason(result) == "hook_failed"
    assert one.requests == []


# --- answers, failures, costs ----------------------------------------------------------------------------------------


async def test_an_answer_that_a_hook_halts_is_paid_for_and_not_used() -> None:
    one = named("one", [DONE])
    result = await play(agent(), one, shield=before_models(AnswerHook(Decision.HALT)))
    assert reason(result) == "policy_halt"
    assert result.output is None
    assert result.usage.tokens.total == 120


async def test_an_answer_that_a_hook_would_have_again_is_asked_for_again() -> None:
    one = named("one", [Say(Report(0)), DONE])
    result = await play(agent(), one, shield=before_models(AnswerHook(Decision.RETRY)))
    assert result.output == Report(1)
    assert [failed.fault for failed in events(result, ModelFailed)] == ["server"]
    assert result.usage.retries == 1


async def test_an_answer_that_degrades_is_asked_of_the_cheaper_model() -> None:
    hook = AnswerHook(Decision.DEGRADE)
    hook.fallback_model = "small"  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    one, small = named("one", [Say(Report(0))]), named("small", [DONE])
    result = await play(agent(), one, shield=before_models(hook), fallback=[small])
    assert result.output == Report(1)
    assert switches(result) == [(1, "of-one:one", "of-small:small", "degraded")]


async def test_failures_are_tried_again_where_no_retry_hook_says_anything() -> None:
    """The pipeline's own policy for failures is for callers who have no rule of their own."""
    result = await play(agent(), named("one", [down(), DONE]), shield=before_models(Hook()))
    assert result.output == Report(1)
    assert events(result, SafetyEvent) == []


async def test_a_retry_hook_that_halts_ends_the_attempts_with_this_model() -> None:
    one, two = always_down("one"), named("two", [DONE])
    result = await play(agent(), one, shield=ShieldPipeline(retry=Hook(Decision.HALT)), fallback=[two])
    assert result.output == Report(1)
    assert len(one.requests) == 1
    assert switches(result) == [(1, "of-one:one", "of-two:two", "overloaded")]


async def test_a_retry_hook_that_halts_ends_the_run_where_nobody_else_is_left() -> None:
    one = always_down("one")
    result = await play(agent(), one, shield=ShieldPipeline(retry=Hook(Decision.HALT)))
    assert reason(result) == "provider_error"
    assert len(one.requests) == 1
    assert [failed.retry_in for failed in events(result, ModelFailed)] == [None]


async def test_a_retry_hook_that_abstains_leaves_it_to_the_run() -> None:
    result = await play(agent(), named("one", [down(), DONE]), shield=ShieldPipeline(retry=Hook(Decision.RETRY)))
    assert result.output == Report(1)


async def test_a_budget_hook_that_halts_ends_the_work_and_the_run_lands() -> None:
    hook = Hook(Decision.HALT)
    one = named("one", [Call("step"), DONE])
    result = await play(agent(step), one, shield=ShieldPipeline(budget=hook))
    assert (reason(result), result.partial) == ("budget_exceeded", Report(1))
    assert outcomes(result) == [("step", "denied")]


# --- tool calls ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-124")
@pytest.mark.parametrize("said", [Decision.HALT, Decision.QUARANTINE, Decision.DEGRADE])
async def test_a_tool_hook_denies_that_call_only_and_the_model_is_told(said: Decision) -> None:
    one = named("one", [Calls((Call("step"), Call("step"))), DONE])
    result = await play(agent(step), one, shield=before_tools(Hook(said)))
    assert result.output == Report(1)
    assert outcomes(result) == [("step", "denied"), ("step", "ok")]
    first, second = (message for message in one.requests[1].transcript if isinstance(message, ToolMessage))
    assert first.is_error
    assert first.text.startswith("step was not run, and nothing was changed: ")
    assert said in first.text
    assert not second.is_error
    assert result.usage.tool_calls == 1


@pytest.mark.parametrize("said", [Decision.RETRY, Decision.QUEUE])
async def test_a_tool_call_that_waits_runs_later(said: Decision) -> None:
    one = named("one", [Call("step"), DONE])
    result = await play(agent(step), one, shield=before_tools(Hook(said)))
    assert outcomes(result) == [("step", "ok")]
    assert result.duration.total_seconds() > 0


async def test_a_tool_call_that_is_put_off_for_ever_is_denied() -> None:
    one = named("one", [Call("step"), DONE])
    result = await play(agent(step), one, shield=before_tools(Hook(*[Decision.RETRY] * MAX_ATTEMPTS)))
    assert outcomes(result) == [("step", "denied")]
    assert result.output == Report(1)


async def test_a_tool_call_that_waits_ends_at_the_deadline_and_the_run_lands() -> None:
    one = named("one", [Call("step"), DONE])
    hook = Hook(always=Decision.QUEUE)
    result = await play(agent(step), one, Limits(deadline="10m"), shield=before_tools(hook))
    assert (reason(result), result.partial) == ("timeout", Report(1))
    assert outcomes(result) == [("step", "deadline")]


async def test_a_tool_that_a_retry_hook_halts_is_not_repeated_and_the_run_goes_on() -> None:
    ran: list[int] = []

    @tool(retries=3, idempotent=True)
    async def fails() -> str:
        """Fail."""
        ran.append(1)
        raise ValueError("no")

    one = named("one", [Call("fails"), DONE])
    result = await play(agent(fails), one, shield=ShieldPipeline(retry=Hook(Decision.HALT)))
    assert result.output == Report(1)
    assert outcomes(result) == [("fails", "crashed")]
    assert len(ran) == 1


async def test_a_tool_that_fails_is_repeated_where_no_retry_hook_says_anything() -> None:
    @tool(retries=1, idempotent=True)
    async def fails() -> str:
        """Fail."""
        raise ValueError("no")

    one = named("one", [Call("fails"), DONE])
    result = await play(agent(fails), one, shield=before_tools(Hook()))
    assert outcomes(result) == [("fails", "crashed"), ("fails", "crashed")]


# --- circuit breakers ------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-122")
async def test_an_open_breaker_skips_a_model_at_once_without_spending_retries() -> None:
    breakers = CircuitBreakers(failure_threshold=1, clock=TestClock())
    breakers.of("of-one").record_failure()
    one, two = always_down("one"), named("two", [DONE])
    result = await play(agent(), one, fallback=[two], breakers=breakers)
    assert result.output == Report(1)
    assert one.requests == []
    assert switches(result) == [(1, "of-one:one", "of-two:two", "circuit_open")]
    assert (result.usage.retries, result.usage.steps) == (0, 1)


async def test_a_breaker_that_opens_ends_the_retries() -> None:
    breakers = CircuitBreakers(failure_threshold=2, clock=TestClock())
    one = always_down("one")
    result = await play(agent(), one, fallback=[named("two", [DONE])], breakers=breakers)
    assert result.output == Report(1)
    assert len(one.requests) == 2
    assert breakers.of("of-one").state is CircuitState.OPEN


async def test_without_a_fallback_an_open_breaker_stops_the_run() -> None:
    breakers = CircuitBreakers(failure_threshold=1, clock=TestClock())
    one = named("one", [Call("step"), down()])
    result = await play(agent(step), one, breakers=breakers)
    assert reason(result) == "circuit_open"
    assert len(one.requests) == 2


async def test_what_a_provider_said_is_told_rather_than_that_nobody_asked_it() -> None:
    breakers = CircuitBreakers(failure_threshold=1, clock=TestClock())
    breakers.of("of-two").record_failure()
    result = await play(agent(), always_down("one", "auth"), fallback=[named("two", [])], breakers=breakers)
    assert reason(result) == "provider_error"
    assert result.stop is not None
    assert "it is auth" in result.stop.message


async def test_a_run_with_fallbacks_has_breakers_of_its_own() -> None:
    """Five failures in a row open them; the next turn does not ask again."""
    one = named("one", [*[down()] * MAX_ATTEMPTS])
    two = named("two", [Call("step"), down("auth")])
    result = await play(agent(step), one, fallback=[two])
    assert reason(result) == "provider_error"
    assert len(one.requests) == MAX_ATTEMPTS
    assert switches(result) == [(1, "of-one:one", "of-two:two", "overloaded"), (2, "of-two:two", "of-one:one", "auth")]


async def test_tools_pass_the_breakers_of_providers() -> None:
    @tool
    async def fails() -> str:
        """Fail."""
        raise ValueError("no")

    breakers = CircuitBreakers(failure_threshold=1, clock=TestClock())
    result = await play(agent(fails), named("one", [Call("fails"), Call("fails"), DONE]), breakers=breakers)
    assert outcomes(result) == [("fails", "crashed"), ("fails", "crashed")]
    assert dict(breakers.states()) == {"of-one": CircuitState.CLOSED}


@pytest.mark.parametrize(
    ("fault", "outage"),
    [("overloaded", True), ("auth", True), ("bad_request", False), ("context_full", False), ("refused", False)],
)
def test_only_what_a_provider_has_to_answer_for_is_an_outage(fault: Any, outage: bool) -> None:
    assert is_outage(down(fault)) is outage


def test_an_unexpected_error_is_an_outage() -> None:
    assert is_outage(ValueError("no JSON came"))


def test_a_mistake_in_the_code_of_a_model_is_no_outage() -> None:
    assert not is_outage(AttributeError("it has no attribute 'messages'"))
