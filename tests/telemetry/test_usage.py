"""What calls used is told once: over their spans, reported, presumed and hinted amounts are what the ledger has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit import Call, Report, Say, ScriptedModel, agent, play, step
from tests.telemetry.support import Kept, attributes, total
from watchkeeper import ExecutionContext, Limits, ModelPrice, TokenUsage, Usage, tool
from watchkeeper.app.run import arun
from watchkeeper.containment import Ticket, WrapOptions
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.telemetry import names

PRICE = ModelPrice.per_million(3, 15)
PRICES = {"scripted:scripted": PRICE}


def script(*steps: Any) -> ScriptedModel:
    return ScriptedModel(steps, free=False)


def check(kept: Kept, usage: Usage) -> None:
    """Compare the spans of calls with the ledger."""
    leaves = kept.leaves
    reported = total(leaves, names.INPUT_TOKENS), total(leaves, names.OUTPUT_TOKENS)
    assumed_in = total(leaves, names.PRESUMED_INPUT, names.HINT_INPUT)
    assumed_out = total(leaves, names.PRESUMED_OUTPUT, names.HINT_OUTPUT)
    cost = total(leaves, names.COST, names.PRESUMED_COST, names.HINT_COST)
    assert reported[0] + assumed_in == usage.tokens.input_tokens
    assert reported[1] + assumed_out == usage.tokens.output_tokens
    assert usage.cost_nanos is None or round(cost * NANOS_PER_USD) == usage.cost_nanos
    for span in kept.of(names.INVOKE_AGENT):
        assert names.INPUT_TOKENS not in attributes(span)
    points = kept.points.get(names.TOKEN_USAGE, [])
    metric = {
        kind: sum(p.sum for p in points if p.attributes[names.TOKEN_TYPE] == kind) for kind in ("input", "output")
    }
    assert (metric["input"], metric["output"]) == reported


async def test_what_providers_report(kept: Kept) -> None:
    model = script(Call("step"), Say(Report(1), TokenUsage(200, 30, 50, 20, 5)))
    result = await play(agent(step), model, prices=PRICES, telemetry=kept.telemetry)
    check(kept, result.usage)
    last = attributes(kept.of(names.CHAT)[-1])
    assert last[names.CACHE_READ] == 50
    assert last[names.CACHE_WRITE] == last[names.CACHE_CREATION] == 20
    assert last[names.REASONING] == 5


async def test_a_failed_call_that_may_be_billed_is_presumed(kept: Kept) -> None:
    lost = ProviderError("the stream broke", fault="server", provider="scripted", billed=True)
    result = await play(agent(), script(lost, Say(Report(1))), prices=PRICES, telemetry=kept.telemetry)
    check(kept, result.usage)
    assert result.usage.presumed.calls == 1
    failed = attributes(kept.of(names.CHAT)[0])
    assert names.INPUT_TOKENS not in failed
    assert failed[names.PRESUMED_INPUT] > 0
    assert failed[names.PRESUMED_COST] > 0


@pytest.mark.parametrize("said", [TokenUsage(-5, 3), TokenUsage(0, 7), TokenUsage()])
async def test_a_report_that_cannot_be_true_is_not_told_as_one(kept: Kept, said: TokenUsage) -> None:
    result = await play(agent(), script(Say(Report(1), said)), prices=PRICES, telemetry=kept.telemetry)
    check(kept, result.usage)
    chat = attributes(kept.of(names.CHAT)[0])
    assert chat.get(names.INPUT_TOKENS, 0) == 0
    assert chat.get(names.OUTPUT_TOKENS, 0) == (7 if said.output_tokens == 7 else 0)


async def test_calls_of_a_tools_own_code(kept: Kept) -> None:
    def charged(ticket: Ticket) -> None:
        ticket.charge(0.01)

    @tool
    def spend() -> str:
        """Spend by a hint, by a report, and by a function of the result."""
        with ExecutionContext(Limits(max_cost_usd=1)) as context:
            context.call_llm(lambda: "hint", WrapOptions(operation_name="hinted", cost_estimate_hint=0.02))
            context.call_llm(charged, WrapOptions(operation_name="charged"))
            context.call_tool(lambda: 0.03, WrapOptions(operation_name="counted"), cost_of=lambda cost: cost)
            context.call_tool(lambda: 1 / 0, WrapOptions(operation_name="broken", cost_estimate_hint=0.005))
        return "spent"

    model = script(Call("spend"), Say(Report(1)))
    result = await play(agent(spend), model, prices=PRICES, telemetry=kept.telemetry)
    check(kept, result.usage)
    assert attributes(kept.named("chat hinted"))[names.HINT_COST] == 0.02
    assert attributes(kept.named("chat charged"))[names.COST] == 0.01
    assert attributes(kept.named("execute_tool counted"))[names.COST] == 0.03
    broken = attributes(kept.named("execute_tool broken"))
    assert (broken[names.HINT_COST], broken[names.ERROR_TYPE]) == (0.005, "ZeroDivisionError")


async def test_children_are_counted_once(kept: Kept) -> None:
    @tool
    async def delegate() -> str:
        """Start a run."""
        inner = script(Call("step"), Say(Report(2)))
        return (await arun(agent(step), model=inner, prices=PRICES, store=None)).sentence()

    model = script(Call("delegate"), Say(Report(1)))
    result = await play(agent(delegate), model, prices=PRICES, telemetry=kept.telemetry)
    check(kept, result.usage)
    inner, outer = kept.of(names.INVOKE_AGENT)
    assert attributes(inner)[f"{names.TOTAL}input_tokens"] == 200
    assert attributes(outer)[f"{names.TOTAL}input_tokens"] == 400 == result.usage.tokens.input_tokens


async def test_an_abandoned_call_is_presumed(kept: Kept) -> None:
    """A model that ignores its cancellation is charged its worst case when the run ends without it."""
    clock = TestClock()
    answered, cancelled = asyncio.Event(), asyncio.Event()

    class Stubborn(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            try:
                await clock.sleep(120)
            except asyncio.CancelledError:
                cancelled.set()
                await answered.wait()
            return await super().turn(request)

    model = Stubborn([Say(Report(1))], free=False)
    limits = Limits(deadline="1m", landing=None)
    running = asyncio.create_task(play(agent(), model, limits, prices=PRICES, clock=clock, telemetry=kept.telemetry))
    await cancelled.wait()
    clock.advance(1)
    result = await running
    assert result.usage.presumed.calls == 1
    check(kept, result.usage)
    [chat] = kept.of(names.CHAT)
    assert attributes(chat)[names.PRESUMED_OUTPUT] == 16_384
    answered.set()
    await asyncio.sleep(0)


async def test_what_comes_late_replaces_what_was_presumed(kept: Kept) -> None:
    clock = TestClock()
    released = asyncio.Event()

    async def late(ticket: Ticket) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await released.wait()
        ticket.charge(0.01)
        return "late"

    @tool
    async def ask() -> str:
        """Make a call that is abandoned, and wait until its result is there after all."""
        with ExecutionContext(Limits(max_cost_usd=1)) as context:
            options = WrapOptions(operation_name="late", cost_estimate_hint=0.05, timeout_ms=1000)
            asking = asyncio.create_task(context.acall_llm(late, options))
            await clock.sleep(2)
            await clock.sleep(2)
            assert (await asking).stop_reason == "call_timeout"
            released.set()
            await clock.sleep(1)
        return ""

    model = script(Call("ask"), Say(Report(1)))
    result = await play(agent(ask), model, prices=PRICES, clock=clock, telemetry=kept.telemetry)
    check(kept, result.usage)
    found = attributes(kept.named("chat late"))
    assert (found[names.COST], found[names.ERROR_TYPE]) == (0.01, "call_timeout")
