"""Models that take over: when, which, how often, at whose price, and what the log and the result say of it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit import (
    Call,
    Report,
    Say,
    ScriptedModel,
    agent,
    always_down,
    down,
    events,
    named,
    play,
    reason,
    step,
    switches,
)
from watchkeeper.accounting.limits import Limits
from watchkeeper.asking.models import ModelLine, services_of
from watchkeeper.asking.retry import MAX_ATTEMPTS
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, ProviderFault, ThrottleError
from watchkeeper.core.messages import AssistantMessage, ToolCall, ToolMessage, Transcript
from watchkeeper.core.model import ModelReply, ModelRequest, ModelSettings
from watchkeeper.core.usage import ModelPrice, TokenUsage
from watchkeeper.prompt.template import Prompt
from watchkeeper.runtime.events import ModelFailed, ModelReplied, RunStarted, TextDelta
from watchkeeper.runtime.plan import PricedModel, RunPlan
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline

DONE = Say(Report(1))
SWITCHING: list[ProviderFault] = [
    "rate_limit",
    "overloaded",
    "auth",
    "refused",
    "connection",
    "timeout",
    "broken_stream",
    "server",
]


# --- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-120")
@pytest.mark.parametrize("fault", SWITCHING)
async def test_the_next_model_answers_when_the_first_one_is_down_or_refuses(fault: ProviderFault) -> None:
    first, second = always_down("one", fault), named("two", [DONE])
    result = await play(agent(), first, fallback=[second])
    assert result.output == Report(1)
    assert switches(result) == [(1, "of-one:one", "of-two:two", fault)]
    assert len(first.requests) == (MAX_ATTEMPTS if down(fault).retryable else 1)
    assert (result.model, result.answered_by) == ("of-one:one", ("of-two:two",))


@pytest.mark.parametrize("fault", ["context_full", "bad_request"])
async def test_what_is_wrong_with_the_request_is_not_asked_of_another(fault: ProviderFault) -> None:
    second = named("two", [DONE])
    result = await play(agent(), named("one", [down(fault)]), fallback=[second])
    assert reason(result) == ("context_full" if fault == "context_full" else "provider_error")
    assert second.requests == []
    assert result.answered_by == ()


@pytest.mark.parametrize("fault", ["context_full", "bad_request"])
async def test_what_a_model_that_took_over_cannot_take_is_asked_of_the_next(fault: ProviderFault) -> None:
    """For example an image that it cannot read: the request was fine for the one before."""
    result = await play(
        agent(), always_down("one", "auth"), fallback=[always_down("two", fault), named("three", [DONE])]
    )
    assert result.output == Report(1)
    assert [to for _, _, to, _ in switches(result)] == ["of-two:two", "of-three:three"]


async def test_the_first_failure_of_a_turn_is_what_the_run_stops_with() -> None:
    result = await play(agent(), always_down("one", "auth"), fallback=[always_down("two", "context_full")])
    assert reason(result) == "provider_error"
    assert result.stop is not None
    assert "it is auth" in result.stop.message


async def test_work_that_is_over_while_a_model_is_down_lands_with_another() -> None:
    """The failure is billed, and its cost is the last that a hook bears: nobody is asked to work, one to hand over."""

    class Last:
        def before_charge(self, ctx: ToolCallContext, cost_usd: float) -> Decision | None:
            return Decision.HALT if cost_usd > 0.001 else None

    broken = down("auth", billed=True)
    first = named("one", [Call("step"), broken, down("auth")], free=False)
    result = await play(
        agent(step),
        first,
        fallback=[named("two", [Say(Report(2))])],
        shield=ShieldPipeline(budget=Last()),
        prices={"one": ModelPrice.per_million(1, 1)},
    )
    assert (reason(result), result.partial) == ("budget_exceeded", Report(2))
    assert [replied.landing for replied in events(result, ModelReplied)] == [False, True]
    assert switches(result) == [(2, "of-one:one", "of-two:two", "auth")]


async def test_a_failure_names_who_was_asked() -> None:
    result = await play(agent(), always_down("one", "auth"), fallback=[named("two", [DONE])])
    assert [failed.model for failed in events(result, ModelFailed)] == ["of-one:one"]


async def test_a_reply_that_refuses_is_asked_of_the_next_and_paid_for_all_the_same() -> None:
    refusing = named("one", [Say("I would rather not.", finish="refusal")], free=False)
    second = named("two", [DONE], free=False)
    prices = {"one": ModelPrice.per_million(1, 1), "two": ModelPrice.per_million(1, 1)}
    result = await play(agent(), refusing, fallback=[second], prices=prices)
    assert result.output == Report(1)
    assert [failed.fault for failed in events(result, ModelFailed)] == ["refused"]
    assert result.usage.tokens.total == 240
    assert result.cost == Decimal("0.00024")


async def test_a_refusal_with_nobody_left_ends_the_run_as_ever() -> None:
    refusing = named("two", [Say("No.", finish="refusal")])
    result = await play(agent(), always_down("one", "auth"), fallback=[refusing])
    assert reason(result) == "refused"


async def test_a_bug_in_an_adapter_is_not_an_outage() -> None:
    second = named("two", [DONE])
    result = await play(agent(), named("one", [RuntimeError("a bug")]), fallback=[second])
    assert reason(result) == "error"
    assert second.requests == []


async def test_what_is_wrong_with_a_fallback_when_it_is_asked_is_a_stop_and_loses_nothing() -> None:
    result = await play(
        agent(), always_down("one", "auth"), fallback=[named("two", [ConfigurationError("no such thing")])]
    )
    assert reason(result) == "error"


async def test_a_wait_that_is_too_long_is_not_waited_for_when_another_can_answer() -> None:
    clock = TestClock()
    throttled = named("one", [ThrottleError("slow down", provider="p", retry_after=300)])
    result = await play(agent(), throttled, fallback=[named("two", [DONE])], clock=clock)
    assert switches(result) == [(1, "of-one:one", "of-two:two", "rate_limit")]
    assert result.duration.total_seconds() == 0


async def test_a_wait_is_waited_for_when_nobody_else_can_answer() -> None:
    throttled = named("one", [ThrottleError("slow down", provider="p", retry_after=300), DONE])
    result = await play(agent(), throttled)
    assert result.duration.total_seconds() == 300


async def test_a_switch_needs_no_retry_and_latches_none() -> None:
    """With one retry left to spend, the first model gets it; the next one is asked all the same."""
    first = always_down("one")
    result = await play(agent(), first, Limits(max_retries=1), fallback=[named("two", [DONE])])
    assert result.output == Report(1)
    assert len(first.requests) == 2
    assert result.usage.retries == 1


async def test_without_any_retry_the_next_model_is_asked_at_once() -> None:
    first = always_down("one")
    result = await play(agent(), first, Limits(max_retries=0), fallback=[named("two", [DONE])])
    assert result.output == Report(1)
    assert len(first.requests) == 1


# --- which, and how often --------------------------------------------------------------------------------------------


async def test_the_run_stays_with_the_one_that_took_over() -> None:
    first = named("one", [Call("step"), *[down()] * MAX_ATTEMPTS])
    second = named("two", [Call("step"), Call("step"), DONE])
    result = await play(agent(step), first, fallback=[second])
    assert result.output == Report(1)
    assert switches(result) == [(2, "of-one:one", "of-two:two", "overloaded")]
    assert [replied.model for replied in events(result, ModelReplied)] == ["one", "two", "two", "two"]
    assert result.answered_by == ("of-one:one", "of-two:two")


async def test_each_model_is_tried_once_in_a_turn_and_then_the_run_stops() -> None:
    models = [always_down(name, "auth") for name in ("one", "two", "three")]
    result = await play(agent(), models[0], fallback=models[1:])
    assert reason(result) == "provider_error"
    assert [len(each.requests) for each in models] == [1, 1, 1]
    assert [(a, b) for _, a, b, _ in switches(result)] == [
        ("of-one:one", "of-two:two"),
        ("of-two:two", "of-three:three"),
    ]
    assert result.stop is not None
    assert result.stop.message.endswith("no other model of the run could take over.")


async def test_in_a_later_turn_the_first_model_may_take_over_from_the_second() -> None:
    first = named("one", [down("auth"), DONE])
    second = named("two", [Call("step"), down("auth")])
    result = await play(agent(step), first, fallback=[second])
    assert result.output == Report(1)
    assert [(turn, a, b) for turn, a, b, _ in switches(result)] == [
        (1, "of-one:one", "of-two:two"),
        (2, "of-two:two", "of-one:one"),
    ]


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=6))
async def test_a_turn_asks_every_model_at_most_once_and_always_ends(ups: list[list[bool]]) -> None:
    """Whatever is up or down in whichever turn: the run goes on exactly as long as one of three answers."""
    turn = 0
    asked: list[tuple[int, int]] = []

    def script(number: int) -> Any:
        def answer(request: ModelRequest) -> Any:
            nonlocal turn
            asked.append((turn, number))
            if not ups[turn][number]:
                return down("auth")
            turn += 1
            return DONE if turn == len(ups) else Call("step")

        return answer

    models = [ScriptedModel(script(number), name=f"m{number}", provider=f"p{number}") for number in range(3)]
    result = await play(agent(step), models[0], fallback=models[1:])
    assert len(set(asked)) == len(asked)
    dark = next((number for number, up in enumerate(ups) if not any(up)), None)
    assert result.ok is (dark is None)
    assert result.turns == (len(ups) if dark is None else dark)


async def test_a_model_whose_context_is_too_small_is_passed_over() -> None:
    large = TokenUsage(90_000, 100)
    first = named("one", [ModelReply(AssistantMessage("", (ToolCall("c", "step", "{}"),)), large), down("auth")])
    small, fitting = named("small", [DONE], context_window=8_000), named("two", [DONE], context_window=200_000)
    result = await play(agent(step), first, fallback=[small, fitting])
    assert result.output == Report(1)
    assert small.requests == []


async def test_a_first_turn_is_judged_by_its_bytes() -> None:
    small = named("small", [DONE], context_window=64)
    result = await play(agent(), always_down("one", "auth"), fallback=[small])
    assert reason(result) == "provider_error"
    assert small.requests == []


async def test_a_full_context_of_the_one_in_use_lands_with_it() -> None:
    turns = [
        ModelReply(AssistantMessage("", (ToolCall("c", "step", "{}"),)), TokenUsage(7_900, 10), "tool_calls"),
        DONE,
    ]
    second = named("two", turns, context_window=8_000)
    result = await play(agent(step), always_down("one", "auth"), fallback=[second])
    assert (reason(result), result.partial) == ("context_full", Report(1))


async def test_the_last_turn_may_be_taken_by_another_model() -> None:
    first = named("one", [Call("step"), down("auth")])
    result = await play(agent(step), first, Limits(max_turns=2), fallback=[named("two", [DONE])])
    assert (reason(result), result.partial) == ("turn_limit_exceeded", Report(1))
    assert [replied.landing for replied in events(result, ModelReplied)] == [False, True]


def test_a_model_beside_the_line_gives_its_place_back_to_it() -> None:
    """The one that an escalation went on with may be replaced by the first one, the cheaper one may not."""
    one, two, other = named("one", []), named("two", []), PricedModel(named("other", []), None)
    first, fallback = PricedModel(one, None), (PricedModel(two, None),)
    prompt = Prompt(agent()).render()
    gate = ExecutionContext(Limits())
    escalated = ModelLine(RunPlan(prompt, first, fallback=fallback, escalations={"x": other}), gate, Transcript())
    degraded = ModelLine(RunPlan(prompt, first, fallback=fallback, cheaper=other), gate, Transcript())
    gate.close()
    found: list[str] = []
    for line in (escalated, degraded):
        beside = line.named(other.model)
        assert beside is not None
        line.take_over(beside)
        line.begin_turn()
        taking_over = line.find(lambda _: True)
        assert taking_over is not None
        found.append(taking_over.label)
    assert found == ["of-one:one", "of-two:two"]


# --- what it is asked ------------------------------------------------------------------------------------------------


async def test_the_conversation_goes_on_as_it_stands_with_caps_and_settings_of_the_new_model() -> None:
    first = named("one", [Call("step"), down("auth")], provider="here", max_output_tokens=9_000)
    second = named("two", [DONE], provider="there", max_output_tokens=500)
    settings = ModelSettings(max_output_tokens=4_000, temperature=0.5, extra={"service_tier": "flex"})
    await play(agent(step), first, fallback=[second], settings=settings)
    (asked,) = second.requests
    assert asked.max_output_tokens == 500
    assert asked.settings == ModelSettings(max_output_tokens=4_000, temperature=0.5)
    assert first.requests[0].max_output_tokens == 4_000
    assert first.requests[0].settings == settings
    assert [message.role for message in asked.transcript][:4] == ["user", "assistant", "tool", "assistant"]
    assert isinstance(asked.transcript[2], ToolMessage)


async def test_settings_of_a_provider_go_to_all_its_models() -> None:
    first, second = named("one", [down("auth")], provider="p"), named("two", [DONE], provider="p")
    settings = ModelSettings(extra={"service_tier": "flex"})
    await play(agent(), first, fallback=[second], settings=settings)
    assert second.requests[0].settings is settings


@pytest.mark.parametrize(("native", "backup"), [(True, False), (False, True), (True, True), (False, False)])
async def test_the_answers_form_reaches_models_of_both_kinds(native: bool, backup: bool) -> None:
    first = named("one", [down("auth")], native_output=native)
    second = named("two", [DONE], native_output=backup)
    await play(agent(), first, fallback=[second])
    in_prompt = "# Answer format" in second.requests[0].transcript[0].text
    assert in_prompt is not (native and backup)
    assert [first.requests[0].output is not None, second.requests[0].output is not None] == [native, backup]


async def test_text_streams_from_whoever_answers() -> None:
    said: list[str] = []

    def hear(event: Any) -> None:
        if isinstance(event, TextDelta):
            said.append(event.text)

    await play(agent(), always_down("one", "auth"), fallback=[named("two", [DONE])], on_event=hear)
    assert "".join(said) == '{"total":1,"note":""}'


async def test_the_log_names_the_line_before_anything_happens() -> None:
    result = await play(agent(), named("one", [DONE]), fallback=[named("two", []), named("three", [])])
    (started,) = events(result, RunStarted)
    assert started.fallback == ("of-two:two", "of-three:three")
    assert switches(result) == []
    assert result.answered_by == ("of-one:one",)


# --- money -----------------------------------------------------------------------------------------------------------

CHEAP, DEAR = ModelPrice.per_million(1, 2), ModelPrice.per_million(50, 400)
PRICES = {"one": CHEAP, "two": DEAR}


async def test_every_attempt_is_charged_at_the_price_of_the_model_that_made_it() -> None:
    first = named("one", [Call("step"), down("auth")], free=False)
    second = named("two", [DONE], free=False)
    result = await play(agent(step), first, Limits(max_cost_usd=5), fallback=[second], prices=PRICES)
    assert [replied.cost_nanos for replied in events(result, ModelReplied)] == [140_000, 13_000_000]
    assert result.cost == Decimal("0.01314")


async def test_a_dearer_model_gets_the_cap_that_is_left_to_afford() -> None:
    second = named("two", [DONE], free=False)
    limits = Limits(max_cost_usd="0.5", landing=None)
    await play(agent(), always_down("one", "auth", free=False), limits, fallback=[second], prices=PRICES)
    assert 256 <= second.requests[0].max_output_tokens < 1_250  # $0.50 buys 1,250 tokens at $400 a million


async def test_a_model_that_the_ceiling_cannot_pay_is_passed_over() -> None:
    dear, cheap = named("two", [DONE], free=False), named("three", [DONE], free=False)
    prices = {**PRICES, "three": CHEAP}
    limits = Limits(max_cost_usd="0.1", landing=None)
    result = await play(agent(), always_down("one", "auth", free=False), limits, fallback=[dear, cheap], prices=prices)
    assert result.output == Report(1)
    assert dear.requests == []
    assert switches(result) == [(1, "of-one:one", "of-three:three", "auth")]


@pytest.mark.spec("FR-120")
@given(
    faults=st.lists(st.sampled_from([None, "overloaded", "auth", "broken_stream"]), min_size=1, max_size=24),
    cents=st.integers(min_value=1, max_value=60),
    tokens=st.integers(min_value=1, max_value=400),
)
async def test_no_ceiling_is_exceeded_across_switches(faults: list[Any], cents: int, tokens: int) -> None:
    """Failures that are billed, models of very different prices: what is charged stays within the ceiling."""
    outages = iter(faults)
    sent = 0

    def answer(request: ModelRequest) -> Any:
        nonlocal sent
        sent += 1
        fault = next(outages, None)
        if fault is not None:
            return down(fault, billed=fault == "broken_stream")
        usage = TokenUsage(tokens, min(tokens, request.max_output_tokens))
        if request.tool_choice == "none":
            return Say(Report(2), usage)
        return ModelReply(AssistantMessage("", (ToolCall("c", "step", "{}"),)), usage, "tool_calls")

    models = [ScriptedModel(answer, name=name, provider=name, free=False) for name in ("one", "two")]
    limits = Limits(max_cost_usd=Decimal(cents) / 100, max_turns=8)
    result = await play(agent(step), models[0], limits, fallback=models[1:], prices=PRICES)
    assert result.cost is not None
    assert result.cost <= Decimal(cents) / 100
    replies, failures = events(result, ModelReplied), events(result, ModelFailed)
    assert sent == len(replies) + len(failures)
    assert result.usage.steps == sent + result.usage.tool_calls


# --- which breaker ---------------------------------------------------------------------------------------------------


def test_a_breaker_watches_a_provider_and_models_of_one_provider_each_by_itself() -> None:
    line = [
        PricedModel(named("a", [], provider="x"), None),
        PricedModel(named("b", [], provider="y"), None),
        PricedModel(named("c", [], provider="y"), None),
        PricedModel(named("c", [], provider="y"), None),
    ]
    assert services_of(line) == ("x", "y:b", "y:c", "y:c (4)")
