"""Watchkeeper's hooks at a gate: they count the calls that run, and their decisions are carried out."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.containment.gates import answer, charged, dollars, unlimited, until_other_thread
from watchkeeper.accounting.call_request import CallRequest, Estimate
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock
from watchkeeper.core.workers import run_in_worker
from watchkeeper.shield.circuit_breaker import CircuitBreaker
from watchkeeper.shield.decision import ChainMetadata, Decision, ToolCallContext
from watchkeeper.shield.egress import EgressAllowList
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.shield.tool_permission import ToolPermissionHook
from watchkeeper.shield.usage_hooks import BudgetWindowHook, ModelDowngradeHook, TokenRateHook

HALT, ALLOW, DEGRADE, QUEUE = Decision.HALT, Decision.ALLOW, Decision.DEGRADE, Decision.QUEUE


def gate(shield: ShieldPipeline, clock: TestClock | None = None, **options: Any) -> ExecutionContext:
    ceilings = options.pop("ceilings", {})
    return ExecutionContext(unlimited(**ceilings), shield, clock=clock or TestClock(), **options)


@pytest.mark.spec("EC-027")
def test_a_full_window_halts_calls_and_not_the_chain() -> None:
    clock = TestClock()
    hook = BudgetWindowHook(2, 60, 1, clock=clock)
    with gate(ShieldPipeline(pre_dispatch=hook), clock) as ctx:
        outcomes = [ctx.call_llm(lambda: "answer") for _ in range(3)]
        assert [outcome.decision for outcome in outcomes] == [ALLOW, ALLOW, HALT]
        assert outcomes[2].stop_reason == "provider_rate_limit"
        assert ctx.get_snapshot().step_count == 2
        assert ctx.get_snapshot().events[-1].reason == "2 of 2 calls were let through in the last 1m."
        clock.advance(60)
        assert ctx.wrap_llm_call(lambda: "answer") is ALLOW


class Objects:
    """Lets no answer be used."""

    def before_llm_call(self, ctx: ToolCallContext) -> None:
        return None

    def after_llm_call(self, ctx: ToolCallContext, response: object) -> Decision:
        return HALT


@pytest.mark.spec("EC-037")
def test_tokens_of_an_answer_count_whoever_objects_to_it() -> None:
    around, inside = TokenRateHook(100), TokenRateHook(100)
    with gate(ShieldPipeline(pre_dispatch=(Objects(), around))) as outer:
        with ExecutionContext(unlimited(), ShieldPipeline(pre_dispatch=inside)) as ctx:
            assert ctx.wrap_llm_call(lambda: {"usage": {"total_tokens": 100}}) is HALT
        assert (around.tokens, inside.tokens) == (100, 100)
        assert outer.call_llm(lambda: pytest.fail("it ran")).stop_reason == "provider_rate_limit"


async def test_a_hook_behind_the_cheaper_model_may_block_beside_the_loop() -> None:
    threads: list[threading.Thread] = []

    class Asks:
        blocks_for = "5s"

        def before_llm_call(self, ctx: ToolCallContext) -> None:
            threads.append(threading.current_thread())

    hook = ModelDowngradeHook("cheap", at_cost_share=None, when=Asks())
    with gate(ShieldPipeline(pre_dispatch=hook)) as ctx:
        assert (await ctx.acall(CallRequest("llm"), answer)).decision is ALLOW
    assert threads != [threading.current_thread()]


@pytest.mark.spec("EC-036")
def test_a_call_that_the_breaker_or_a_later_hook_refuses_takes_no_place() -> None:
    class Later:
        said: Decision | None = HALT

        def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
            return self.said

    window, rate, later = BudgetWindowHook(9, 60, 1), TokenRateHook(100), Later()
    breaker = CircuitBreaker(failure_threshold=1)
    shield = ShieldPipeline(pre_dispatch=(window, rate, later))
    with gate(shield, circuit_breaker=breaker) as ctx:
        request = CallRequest("llm", estimate=Estimate(input_tokens=40))
        assert asyncio.run(ctx.acall(request, answer)).decision is HALT
        assert (window.calls, rate.tokens) == (0, 0)
        later.said = None
        breaker.record_failure()
        assert asyncio.run(ctx.acall(request, answer)).stop_reason == "circuit_open"
        assert (window.calls, rate.tokens) == (0, 0)


def test_a_forwarded_degrade_takes_no_place_and_the_cheaper_call_does() -> None:
    window = BudgetWindowHook(2, 60, 0.5)
    with gate(ShieldPipeline(pre_dispatch=window)) as ctx:
        assert ctx.wrap_llm_call(lambda: "answer") is ALLOW
        for _ in range(5):
            assert ctx.wrap_llm_call(lambda: "answer") is DEGRADE
        assert window.calls == 1
        cheaper = CallRequest("llm", degraded=True)
        assert asyncio.run(ctx.acall(cheaper, answer)).decision is ALLOW
        assert window.calls == 2
        assert asyncio.run(ctx.acall(cheaper, answer)).decision is HALT


def test_chains_with_the_same_names_share_a_window_and_mix_nothing_up() -> None:
    rate = TokenRateHook(100, None)
    shield = ShieldPipeline(pre_dispatch=rate)
    names = ChainMetadata("request", "chain")
    request = CallRequest("llm", estimate=Estimate(input_tokens=40))

    async def both() -> None:
        held = asyncio.Event()

        async def wait(_: object) -> str:
            await held.wait()
            return "done"

        one, two = gate(shield, metadata=names), gate(shield, metadata=names)
        with one, two:
            first = asyncio.ensure_future(one.acall(request, wait, charged(0, 10, 5)))
            second = asyncio.ensure_future(two.acall(request, wait, charged(0, 1, 1)))
            await asyncio.sleep(0)
            assert rate.tokens == 80
            held.set()
            await asyncio.gather(first, second)
            assert rate.tokens == 17

    asyncio.run(both())


def test_tokens_are_counted_from_what_a_call_has_really_used() -> None:
    rate = TokenRateHook(1_000, when_full=QUEUE)
    with gate(ShieldPipeline(pre_dispatch=rate)) as ctx:
        response = SimpleNamespace(usage=SimpleNamespace(total_tokens=1_000))
        assert ctx.call_llm(lambda: response).value is response
        assert ctx.wrap_llm_call(lambda: response) is QUEUE
        assert rate.tokens == 1_000


@pytest.mark.spec("EC-039")
def test_the_cheaper_model_is_asked_for_once_the_share_of_the_money_is_spent() -> None:
    hook = ModelDowngradeHook("openai:cheap", at_cost_share=0.5)
    shield = ShieldPipeline(pre_dispatch=hook)
    assert shield.fallback_model == "openai:cheap"
    with gate(shield, ceilings={"max_cost_usd": 1}) as ctx:

        def ask(model: str) -> Decision:
            request = CallRequest("llm", estimate=Estimate(input_nanos=dollars(0.25)), model=model)
            return asyncio.run(ctx.acall(request, answer, charged(0.25))).decision

        assert [ask("dear"), ask("dear"), ask("dear"), ask("openai:cheap")] == [ALLOW, ALLOW, DEGRADE, ALLOW]
        assert ctx.get_snapshot().cost_usd_accumulated == 0.75


def test_a_child_degrades_when_its_parents_money_is_spent() -> None:
    hook = ModelDowngradeHook("cheap", at_cost_share=0.5)
    with gate(ShieldPipeline(pre_dispatch=hook), ceilings={"max_cost_usd": 1}) as ctx:
        ctx.call_llm(lambda: "answer", WrapOptions(cost_estimate_hint=0.6))
        with ctx.child(unlimited()) as child:
            assert child.wrap_llm_call(lambda: "answer") is DEGRADE


def test_a_denied_tool_does_not_run_and_the_reason_is_told() -> None:
    ran: list[str] = []
    shield = ShieldPipeline(tool_dispatch=ToolPermissionHook(deny=["rm"]))
    with gate(shield) as ctx:
        denied = ctx.call_tool(lambda: ran.append("rm"), WrapOptions("rm"))
        assert ctx.wrap_tool_call(lambda: ran.append("ls"), WrapOptions("ls")) is ALLOW
    assert denied.decision is HALT
    assert denied.stop is not None
    assert "The tool 'rm' is denied (deny='rm')." in denied.stop.message
    assert ran == ["ls"]


async def test_a_question_blocks_its_call_and_not_the_loop() -> None:
    asked, answered = threading.Event(), threading.Event()

    def ask(ctx: ToolCallContext) -> bool:
        asked.set()
        answered.wait()
        return bool(ctx.arguments == "all of it")

    shield = ShieldPipeline(tool_dispatch=ToolPermissionHook(ask=["rm"], ask_with=ask, timeout="1h"))
    with gate(shield) as ctx:
        request = CallRequest("tool", "rm", arguments="all of it")
        waiting = asyncio.ensure_future(ctx.acall(request, answer))
        await run_in_worker(asked.wait)
        assert not waiting.done()
        answered.set()
        assert (await waiting).value == "done"


async def test_an_abort_withdraws_the_question() -> None:
    asked, answered = threading.Event(), threading.Event()

    def ask(ctx: ToolCallContext) -> bool:
        asked.set()
        answered.wait()
        return True

    hook = ToolPermissionHook(ask=["rm"], ask_with=ask, timeout="1h")
    with gate(ShieldPipeline(tool_dispatch=hook)) as ctx:
        waiting = asyncio.ensure_future(ctx.acall(CallRequest("tool", "rm"), answer))
        await run_in_worker(asked.wait)
        ctx.abort("enough")
        assert (await waiting).stop_reason == "aborted"
        until_other_thread(lambda: not hook.pending)
        answered.set()


def test_requests_to_the_outside_are_checked_at_the_gate() -> None:
    shield = ShieldPipeline(egress=EgressAllowList(["api.example.com"], ["POST"]))
    with gate(shield) as ctx:
        assert ctx.check_egress("https://api.example.com/v1", "POST") is ALLOW
        assert ctx.check_egress("https://api.example.com@evil.com/v1", "POST") is HALT
        reason = ctx.get_snapshot().events[-1].reason
    assert reason == "Nothing on the list allows this request to an address that is not plainly written."


def test_who_is_asked_about_a_wrapped_tool_call_is_shown_its_arguments() -> None:
    shown: list[object] = []

    def ask(call: ToolCallContext) -> bool:
        shown.append(call.arguments)
        return True

    shield = ShieldPipeline(tool_dispatch=ToolPermissionHook(ask=["send_*"], ask_with=ask))
    with ExecutionContext(unlimited(), shield) as ctx:
        options = WrapOptions("send_mail", arguments={"to": "ann@example.com"})
        assert ctx.wrap_tool_call(lambda: "sent", options) is Decision.ALLOW
    assert shown == [{"to": "ann@example.com"}]
