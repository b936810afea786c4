"""Hooks and breakers around the calls of a context: what they are told, what they refuse, and that nothing is lost."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.containment.gates import Held, costing, dollars, settle, started, unlimited, until_other_thread
from tests.kit import left_of
from watchkeeper.accounting.account import STEPS
from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.accounting.limits import Landing, Limits
from watchkeeper.containment.calls import check_leaving
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, EgressRefusedError, Stop
from watchkeeper.core.usage import TokenUsage
from watchkeeper.shield.circuit_breaker import CircuitBreaker, CircuitBreakers, CircuitState
from watchkeeper.shield.decision import ChainMetadata, Decision, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline

META = ChainMetadata(
    "req-1",
    "chain-1",
    "acme",
    "ml",
    "summariser",
    user_id="user-42",
    model="big",
    tags={"env": "prod", "team": "forged"},
)
SETTINGS = ExecutionConfig(max_cost_usd=10.0, max_steps=100, max_retries_total=3, timeout_ms=0)
HINT = WrapOptions("ask", cost_estimate_hint=0.25)


class Hook:
    """Says what the test wants, at each of the six places, and remembers what it was asked."""

    def __init__(self, **said: Any) -> None:
        self.said = said
        self.asked: list[tuple[str, ToolCallContext, tuple[Any, ...]]] = []
        self.released: list[ToolCallContext] = []

    def _answer(self, method: str, ctx: ToolCallContext, *facts: Any) -> Any:
        self.asked.append((method, ctx, facts))
        said = self.said.get(method)
        return said(ctx) if callable(said) else said

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        return self._answer("before_llm_call", ctx)  # type: ignore[no-any-return]

    def after_llm_call(self, ctx: ToolCallContext, response: Any) -> Decision | None:
        return self._answer("after_llm_call", ctx, response)  # type: ignore[no-any-return]

    def before_tool_call(self, ctx: ToolCallContext) -> Decision | None:
        return self._answer("before_tool_call", ctx)  # type: ignore[no-any-return]

    def before_egress(self, ctx: ToolCallContext, url: str, method: str) -> Decision | None:
        return self._answer("before_egress", ctx, url, method)  # type: ignore[no-any-return]

    def on_error(self, ctx: ToolCallContext, err: BaseException) -> Decision | None:
        return self._answer("on_error", ctx, err)  # type: ignore[no-any-return]

    def before_charge(self, ctx: ToolCallContext, cost_usd: float) -> Decision | None:
        return self._answer("before_charge", ctx, cost_usd)  # type: ignore[no-any-return]

    def release(self, ctx: ToolCallContext) -> None:
        self.released.append(ctx)

    @property
    def methods(self) -> list[str]:
        return [method for method, *_ in self.asked]


class Asks(Hook):
    """A hook that may block."""

    blocks_for = 5.0


def shield(hook: Hook, **options: Any) -> ShieldPipeline:
    return ShieldPipeline(pre_dispatch=hook, egress=hook, retry=hook, budget=hook, tool_dispatch=hook, **options)


def waits_for(answer: threading.Event) -> Callable[[ToolCallContext], None]:
    """What a hook says that waits for a person."""

    def wait(asked: ToolCallContext) -> None:
        answer.wait(30)

    return wait


def fail() -> None:
    raise ValueError("no luck")


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until a thread has made a condition true."""
    while not condition():  # noqa: ASYNC110  # a thread sets no event of this loop
        await asyncio.sleep(0)


def nothing_is_lost(ctx: ExecutionContext, steps: int, nanos: int = 0) -> None:
    """The account holds no reservation, and has counted exactly what ran."""
    account = ctx.account
    assert list(account.reserved) == [0] * len(account.reserved)
    assert (account.settled[STEPS], account.settled[0]) == (steps, nanos)


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


# --- what hooks are told ----------------------------------------------------------------------------------------------


@pytest.mark.spec("EC-035")
def test_a_hook_is_told_whose_call_it_is_and_what_it_may_cost() -> None:
    hook = Hook()
    with ExecutionContext(SETTINGS, shield(hook), META) as ctx:
        ctx.call_llm(lambda: "answer", WrapOptions("ask", 0.25, provider="openai"), cost_of=lambda _: 0.125)
        ctx.call_tool(lambda: "found", WrapOptions("look", model="small", degraded=True))
    assert hook.methods == [
        "before_llm_call",
        "before_charge",
        "after_llm_call",
        "before_tool_call",
        "before_charge",
    ]
    before = hook.asked[0][1]
    assert (before.request_id, before.user_id, before.session_id) == ("req-1", "user-42", None)
    assert (before.tool_name, before.model, before.endpoint, before.kind) == ("ask", "big", "openai", "llm")
    assert (before.tokens_in, before.tokens_out, before.cost_usd) == (None, None, 0.25)
    facts = {"chain_id": "chain-1", "org_id": "acme", "team": "ml", "service": "summariser", "env": "prod"}
    assert dict(before.metadata) == facts
    _, charged, (cost,) = hook.asked[1]
    assert (charged.cost_usd, cost, charged.number) == (0.125, 0.125, before.number)
    assert hook.asked[2][2] == ("answer",)
    tool = hook.asked[3][1]
    assert (tool.tool_name, tool.model, tool.kind, tool.degraded) == ("look", "small", "tool", True)
    assert tool.number != before.number
    assert hook.released == []


@pytest.mark.spec("EC-035")
async def test_a_hook_sees_the_tokens_that_were_granted_and_then_those_that_were_used() -> None:
    hook = Hook()
    with ExecutionContext(unlimited(max_output_tokens=500), shield(hook)) as ctx:

        async def think(ticket: Ticket) -> str:
            return "thought"

        def unpriced(value: Any, error: BaseException | None, ticket: Ticket) -> Charge:
            return Charge(TokenUsage(90, 30), None)

        request = CallRequest("llm", "think", Estimate(100, 1000, 10), model="big")
        await ctx.acall(request, think, unpriced)
    before, after = hook.asked[0][1], hook.asked[2][1]
    assert (before.tokens_in, before.tokens_out, before.model) == (100, 500, "big")
    assert (after.tokens_in, after.tokens_out, after.cost_usd) == (90, 30, None)
    assert hook.asked[1][2] == (0.0,)


def test_child_runs_are_not_asked_about_but_the_calls_in_them_are() -> None:
    hook = Hook()
    with ExecutionContext(SETTINGS, shield(hook), circuit_breaker=CircuitBreaker()) as ctx:

        def run(ticket: Ticket) -> Decision:
            with ctx.child(unlimited()) as child:
                return child.wrap_tool_call(lambda: None)

        assert ctx.call(CallRequest("child", "helper"), run).value is Decision.ALLOW
    assert hook.methods == ["before_tool_call", "before_charge"]


# --- what hooks refuse ------------------------------------------------------------------------------------------------


@pytest.mark.spec("EC-030", "EC-034", "FR-032")
@pytest.mark.parametrize("said", [Decision.RETRY, Decision.HALT, Decision.DEGRADE, Decision.QUARANTINE, Decision.QUEUE])
@pytest.mark.parametrize("kind", ["llm", "tool"])
async def test_a_refusal_is_forwarded_recorded_and_gives_everything_back(kind: str, said: Decision) -> None:
    hook = Hook(before_llm_call=said, before_tool_call=said)
    with ExecutionContext(SETTINGS, shield(hook)) as ctx:
        run = ctx.call_llm if kind == "llm" else ctx.call_tool
        arun = ctx.acall_llm if kind == "llm" else ctx.acall_tool
        outcomes = [run(lambda: pytest.fail("it ran"), HINT), await arun(Held(), HINT)]
        for outcome in outcomes:
            assert (outcome.decision, outcome.value, outcome.admitted, outcome.node_id) == (said, None, False, None)
            assert outcome.stop_reason == f"policy_{said.lower()}"
            assert (outcome.stop is not None) == (said in (Decision.HALT, Decision.QUARANTINE))
        assert hook.released == [asked for _, asked, _ in hook.asked]
        nothing_is_lost(ctx, steps=0)
        assert ctx.stop is None
        hook.said.clear()
        assert run(lambda: "ran", HINT).value == "ran"
        snapshot = ctx.get_snapshot()
    assert [(event.decision, event.hook) for event in snapshot.events] == [(said, "Hook")] * 2
    assert [node.status for node in snapshot.nodes] == ["halted", "halted", "ok"]


def test_the_pipeline_is_not_asked_about_a_call_that_the_limits_refuse() -> None:
    hook = Hook()
    with ExecutionContext(ExecutionConfig(1.0, 1, 1, 0), shield(hook)) as ctx:
        ctx.wrap_llm_call(lambda: None)
        hook.asked.clear()
        assert ctx.wrap_llm_call(lambda: None) is Decision.HALT
    assert hook.asked == []


def test_a_degraded_call_passes_a_hook_that_asks_for_it() -> None:
    with ExecutionContext(SETTINGS, shield(Hook(before_llm_call=Decision.DEGRADE))) as ctx:
        assert ctx.wrap_llm_call(lambda: None) is Decision.DEGRADE
        assert ctx.wrap_llm_call(lambda: None, WrapOptions(degraded=True)) is Decision.ALLOW


def test_the_landing_hold_and_the_retry_come_back_when_a_call_is_turned_back() -> None:
    hook = Hook(before_llm_call=Decision.HALT)
    with ExecutionContext(Limits(max_cost_usd=1, max_retries=1, max_steps=5, landing=Landing()), shield(hook)) as ctx:
        account = ctx.account
        before = (list(account.reserved), list(account.settled), account.landing_hold)
        request = costing(0.25, landing=Estimate(input_nanos=dollars(0.5)), retry=True, spends_retry_on_error=True)
        assert ctx.call(request, lambda _: None).decision is Decision.HALT
        assert (list(account.reserved), list(account.settled), account.landing_hold) == before


@pytest.mark.spec("EC-034")
def test_the_chain_log_mirrors_this_chains_events_of_a_shared_pipeline_and_no_others() -> None:
    pipeline = shield(Hook(before_llm_call=Decision.HALT))
    heard: list[Any] = []
    one = ExecutionContext(SETTINGS, pipeline, META, on_event=heard.append)
    other = ExecutionContext(SETTINGS, pipeline)
    one.wrap_llm_call(lambda: None)
    other.wrap_llm_call(lambda: None)
    with one.child(unlimited()) as child:
        child.wrap_llm_call(lambda: None)
    assert len(pipeline.get_events()) == 3
    first, _, third = pipeline.get_events()
    assert list(one.get_snapshot().events) == heard == [first, third]  # a child's events are its parent's too
    assert len(other.get_snapshot().events) == 1
    one.close()
    other.close()


# --- after the call ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("EC-034")
@pytest.mark.parametrize("said", [Decision.HALT, Decision.QUARANTINE])
def test_money_is_charged_whatever_a_hook_says_and_its_halt_stops_what_follows(said: Decision) -> None:
    hook = Hook(before_charge=said)
    with ExecutionContext(SETTINGS, shield(hook)) as ctx:
        outcome = ctx.call_llm(lambda: "paid for", HINT)
        assert (outcome.decision, outcome.value) == (Decision.ALLOW, "paid for")
        refused = ctx.call_tool(lambda: pytest.fail("it ran"))
        reason = "budget_exceeded" if said is Decision.HALT else "policy_quarantine"
        assert (refused.decision, refused.stop_reason, refused.admitted) == (Decision.HALT, reason, False)
        nothing_is_lost(ctx, steps=1, nanos=dollars(0.25))
        snapshot = ctx.get_snapshot()
    assert snapshot.abort_reason == reason
    assert [event.hook for event in snapshot.events] == ["Hook", "ExecutionContext"]
    assert ctx.snapshot_at_stop is not None


def test_what_a_hook_says_about_a_cost_inside_stops_the_context_that_has_the_hook() -> None:
    halts = shield(Hook(before_charge=Decision.HALT))
    with ExecutionContext(SETTINGS, halts) as outer, ExecutionContext(SETTINGS) as inner:
        beside = outer.child(Limits())
        assert inner.wrap_llm_call(lambda: None, HINT) is Decision.ALLOW
        for each in (inner, beside, outer):
            assert each.call_llm(lambda: pytest.fail("it ran")).stop_reason == "budget_exceeded"
    with ExecutionContext(SETTINGS) as outer:
        with ExecutionContext(SETTINGS, halts) as inner:
            assert [inner.wrap_llm_call(lambda: None, HINT) for _ in range(2)] == [Decision.ALLOW, Decision.HALT]
        assert outer.wrap_llm_call(lambda: None, HINT) is Decision.ALLOW


def test_what_else_a_hook_says_about_a_cost_is_recorded_only() -> None:
    with ExecutionContext(SETTINGS, shield(Hook(before_charge=Decision.DEGRADE))) as ctx:
        assert [ctx.wrap_llm_call(lambda: None) for _ in range(2)] == [Decision.ALLOW] * 2
        assert [event.event_type for event in ctx.get_snapshot().events] == ["policy_degrade"] * 2


def test_a_failure_that_cost_something_is_told_too_and_one_that_did_not_is_not() -> None:
    hook = Hook()
    with ExecutionContext(SETTINGS, shield(hook)) as ctx:
        ctx.call_llm(fail, HINT)
        ctx.call_llm(fail)
    assert hook.methods == ["before_llm_call", "before_charge", "on_error", "before_llm_call", "on_error"]


def test_a_hook_may_keep_an_answer_from_being_used_and_it_is_paid_for() -> None:
    hook = Hook(after_llm_call=Decision.QUARANTINE)
    with ExecutionContext(SETTINGS, shield(hook)) as ctx:
        outcome = ctx.call_llm(lambda: "poison", HINT)
        assert (outcome.decision, outcome.value, outcome.admitted) == (Decision.QUARANTINE, "poison", True)
        assert outcome.stop is not None
        nothing_is_lost(ctx, steps=1, nanos=dollars(0.25))
        assert ctx.stop is None
        assert ctx.call_tool(lambda: "tools have no answer to be asked about").decision is Decision.ALLOW
        (node, _) = ctx.get_snapshot().nodes
    assert (node.status, node.stop_reason, node.cost_usd) == ("halted", "policy_quarantine", 0.25)


@pytest.mark.spec("EC-030")
@pytest.mark.parametrize(
    ("said", "decision", "reason"),
    [
        (None, Decision.RETRY, None),
        (Decision.ALLOW, Decision.RETRY, None),
        (Decision.RETRY, Decision.RETRY, "policy_retry"),
        (Decision.QUEUE, Decision.QUEUE, "policy_queue"),
        (Decision.DEGRADE, Decision.DEGRADE, "policy_degrade"),
        (Decision.QUARANTINE, Decision.QUARANTINE, "policy_quarantine"),
        (Decision.HALT, Decision.HALT, "provider_error"),
    ],
)
def test_what_a_hook_says_about_a_failure_is_forwarded(said: Any, decision: Decision, reason: str | None) -> None:
    hook = Hook(on_error=said)
    with ExecutionContext(SETTINGS, shield(hook)) as ctx:
        outcome = ctx.call_llm(fail)
        assert (outcome.decision, outcome.stop_reason) == (decision, reason)
        assert isinstance(outcome.error, ValueError)
        assert hook.asked[-1][2] == (outcome.error,)
        assert ctx.stop is None
        assert ctx.get_snapshot().retries_used == 1


def test_with_a_pipeline_and_no_retry_hook_a_failure_means_halt_unless_the_policy_says_otherwise() -> None:
    with ExecutionContext(SETTINGS, ShieldPipeline()) as ctx:
        assert ctx.wrap_llm_call(fail) is Decision.HALT
        assert ctx.wrap_llm_call(lambda: None) is Decision.ALLOW
    with ExecutionContext(SETTINGS, ShieldPipeline(on_error_policy=Decision.RETRY)) as ctx:
        decisions = [ctx.wrap_llm_call(fail) for _ in range(5)]
        assert decisions == [Decision.RETRY, Decision.RETRY, Decision.HALT, Decision.HALT, Decision.HALT]


def test_the_failure_that_spends_the_last_retry_is_final_whatever_the_hook_says() -> None:
    hook = Hook(on_error=Decision.RETRY)
    with ExecutionContext(ExecutionConfig(1.0, 10, 1, 0), shield(hook)) as ctx:
        outcome = ctx.call_llm(fail)
        assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "provider_error")
        assert [event.event_type for event in ctx.get_snapshot().events] == ["policy_retry", "provider_error"]
        assert ctx.get_snapshot().abort_reason == "provider_error"


async def test_a_call_that_overran_its_own_time_is_a_failure_that_hooks_are_asked_about(clock: TestClock) -> None:
    hook = Hook(on_error=Decision.RETRY)
    with ExecutionContext(SETTINGS, shield(hook), clock=clock) as ctx:
        task = await started(ctx.acall_llm(Held(), WrapOptions("slow", timeout_ms=1000)))
        clock.advance(1)
        outcome = await task
        assert (outcome.decision, outcome.stop_reason) == (Decision.RETRY, "call_timeout")
        assert isinstance(hook.asked[-1][2][0], TimeoutError)


# --- requests to the outside ------------------------------------------------------------------------------------------


def test_a_request_is_checked_inside_a_call_and_outside_of_any() -> None:
    def careful(asked: ToolCallContext) -> Decision | None:
        return Decision.HALT if asked.endpoint == "https://evil" else None

    hook = Hook(before_egress=careful)
    with ExecutionContext(SETTINGS, shield(hook), META) as ctx:
        assert ctx.check_egress("https://good") is Decision.ALLOW
        inside = ctx.call_tool(lambda: ctx.check_egress("https://evil", "POST"), WrapOptions("fetch")).value
        assert inside is Decision.HALT
        outside, asked = [asked for method, asked, _ in hook.asked if method == "before_egress"]
        assert (outside.tool_name, outside.kind, outside.metadata["org_id"]) == (None, "egress", "acme")
        assert (asked.tool_name, asked.kind) == ("fetch", "egress")
        assert [event.event_type for event in ctx.get_snapshot().events] == ["policy_halt"]
        ctx.abort("enough")
        assert ctx.check_egress("https://good") is Decision.HALT
    with pytest.raises(ConfigurationError):
        ctx.check_egress("https://good")


def test_hooks_are_asked_about_requests_inside_and_not_about_those_of_what_stands_apart() -> None:
    def send() -> None:
        check_leaving("https://example.com/x", "POST")

    def work() -> list[bool]:
        with ExecutionContext(SETTINGS) as inner, ExecutionContext(SETTINGS, parent=None) as apart:
            return [isinstance(each.call_tool(send).error, EgressRefusedError) for each in (inner, apart)]

    with ExecutionContext(SETTINGS, shield(Hook(before_egress=Decision.HALT))) as ctx:
        assert ctx.call_tool(work).value == [True, False]


def test_without_a_pipeline_every_request_may_leave() -> None:
    with ExecutionContext(SETTINGS) as ctx:
        assert ctx.check_egress("https://anywhere") is Decision.ALLOW
    with ExecutionContext(SETTINGS, circuit_breaker=CircuitBreaker()) as ctx:
        assert ctx.check_egress("https://anywhere") is Decision.ALLOW


# --- breakers ---------------------------------------------------------------------------------------------------------


def open_breaker(clock: TestClock, **settings: Any) -> CircuitBreaker:
    breaker = CircuitBreaker(1, 60.0, clock=clock, **settings)
    breaker.record_failure()
    return breaker


@pytest.mark.spec("EC-023")
def test_failures_open_the_breaker_and_it_refuses_without_spending_anything(clock: TestClock) -> None:
    breaker, hook = CircuitBreaker(2, clock=clock), Hook()
    with ExecutionContext(SETTINGS, shield(hook), circuit_breaker=breaker) as ctx:
        for _ in range(2):
            ctx.wrap_llm_call(fail)
        outcome = ctx.call_tool(lambda: pytest.fail("it ran"), HINT)
        assert (outcome.decision, outcome.stop_reason, outcome.admitted) == (Decision.HALT, "circuit_open", False)
        assert outcome.stop is not None
        nothing_is_lost(ctx, steps=2)
        assert hook.released == [hook.asked[-1][1]]
        event = ctx.get_snapshot().events[-1]
        assert (event.event_type, event.hook) == ("circuit_open", "ExecutionContext")
        assert ctx.get_snapshot().abort_reason == "circuit_open"
        assert ctx.stop is None


@pytest.mark.spec("EC-041")
def test_a_breaker_is_shared_between_chains(clock: TestClock) -> None:
    breaker = CircuitBreaker(2, clock=clock)
    for _ in range(2):
        with ExecutionContext(SETTINGS, circuit_breaker=breaker) as ctx:
            ctx.wrap_llm_call(fail)
    with ExecutionContext(SETTINGS, circuit_breaker=breaker) as ctx:
        assert ctx.wrap_llm_call(lambda: None) is Decision.HALT


@pytest.mark.spec("EC-041")
def test_breakers_by_provider_hold_for_calls_that_name_one(clock: TestClock) -> None:
    breakers = CircuitBreakers(1, clock=clock)
    openai, anthropic = WrapOptions(provider="openai"), WrapOptions(provider="anthropic")
    with ExecutionContext(SETTINGS, circuit_breaker=breakers) as ctx:
        ctx.wrap_llm_call(fail, openai)
        decisions = [ctx.wrap_llm_call(lambda: None, options) for options in (openai, anthropic, None)]
    assert decisions == [Decision.HALT, Decision.ALLOW, Decision.ALLOW]


def test_a_success_closes_the_breaker_again(clock: TestClock) -> None:
    breaker = open_breaker(clock)
    with ExecutionContext(SETTINGS, circuit_breaker=breaker) as ctx:
        assert ctx.wrap_llm_call(lambda: None) is Decision.HALT
        clock.advance(60)
        assert ctx.wrap_llm_call(lambda: None) is Decision.ALLOW
    assert breaker.state is CircuitState.CLOSED


def test_a_call_inside_the_probe_is_part_of_it(clock: TestClock) -> None:
    breaker = open_breaker(clock)
    clock.advance(60)
    with ExecutionContext(SETTINGS, circuit_breaker=breaker) as ctx:

        def probe() -> list[Decision]:
            with ctx.child(unlimited()) as child:
                request = CallRequest("child", "helper")
                inner = ctx.call(request, lambda _: child.wrap_llm_call(lambda: None)).value
                return [ctx.wrap_llm_call(lambda: None), *filter(None, [inner])]

        assert ctx.call_tool(probe).value == [Decision.ALLOW, Decision.ALLOW]
        assert str(breaker.state) == "CLOSED"


def test_a_call_inside_a_call_from_before_the_outage_is_refused(clock: TestClock) -> None:
    breaker = CircuitBreaker(1, clock=clock)
    with ExecutionContext(SETTINGS, circuit_breaker=breaker) as ctx:
        outcome = ctx.call_tool(lambda: (ctx.wrap_llm_call(fail), ctx.wrap_llm_call(lambda: None)))
        assert outcome.value == (Decision.RETRY, Decision.HALT)
    assert breaker.state is CircuitState.OPEN  # the success of the call around it began before


@pytest.mark.spec("EC-041", "FR-032")
@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize(
    ("how", "state"),
    [
        ("aborted", "HALF_OPEN"),
        ("closed", "HALF_OPEN"),
        ("cancelled", "HALF_OPEN"),
        ("deadline", "HALF_OPEN"),  # the end of the chain's time is nobody's failure
        ("timeout", "OPEN"),  # the end of the call's own time is
    ],
)
async def test_the_probes_place_comes_back_on_every_path_out(
    how: str, state: str, stubborn: bool, clock: TestClock
) -> None:
    breaker = open_breaker(clock)
    clock.advance(60)
    held = Held()

    async def work(ticket: Ticket) -> Any:
        if (
            not stubborn or how == "cancelled"
        ):  # a task that ignores its own cancellation goes on whatever the gate does
            return await held(ticket)
        while not held.let_go.is_set():
            try:
                return await held(ticket)
            except asyncio.CancelledError:
                continue

    options = WrapOptions("probe", timeout_ms=1000 if how == "timeout" else None)
    ctx = ExecutionContext(ExecutionConfig(1.0, 10, 3, 5_000), circuit_breaker=breaker, clock=clock)
    task = await started(ctx.acall_llm(work, options))
    assert breaker.acquire() is None
    if how in ("aborted", "closed"):
        ctx.abort("enough") if how == "aborted" else ctx.close()
    elif how == "cancelled":
        task.cancel()
    else:
        clock.advance(5 if how == "deadline" else 1)
    await settle()
    clock.advance(0.1)  # the grace of work that does not stop
    await asyncio.gather(task, return_exceptions=True)
    assert str(breaker.state) == state
    clock.advance(60)
    permit = breaker.acquire()
    assert permit is not None
    held.let_go.set()
    await settle()
    assert permit.holds_probe  # a late result of the first probe says nothing any more
    ctx.close()


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(), GeneratorExit()], ids=repr)
def test_what_must_not_be_swallowed_loses_no_place_and_no_money(raised: BaseException, clock: TestClock) -> None:
    breaker = open_breaker(clock)
    clock.advance(60)

    def work() -> None:
        raise raised

    with ExecutionContext(SETTINGS, shield(Hook()), circuit_breaker=breaker) as ctx:
        with pytest.raises(type(raised)):
            ctx.wrap_llm_call(work, HINT)
        nothing_is_lost(ctx, steps=1, nanos=dollars(0.25))
        assert ctx.wrap_llm_call(lambda: None) is Decision.ALLOW


def test_a_sync_probe_that_is_left_behind_gives_its_place_back(clock: TestClock) -> None:
    breaker = open_breaker(clock)
    clock.advance(60)
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(30)

    ctx = ExecutionContext(ExecutionConfig(1.0, 10, 3, 5_000), circuit_breaker=breaker, clock=clock)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(ctx.call_llm(work)))
    thread.start()
    begun.wait(30)
    ctx.abort("enough")
    thread.join(30)
    assert results[0].stop_reason == "aborted"
    assert breaker.acquire() is not None
    go_on.set()
    ctx.close()


# --- hooks that are broken --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["before_llm_call", "before_charge", "after_llm_call", "on_error"])
@pytest.mark.parametrize("raised", [RuntimeError("broken"), KeyboardInterrupt()], ids=repr)
def test_a_hook_that_raises_loses_nothing(method: str, raised: BaseException, clock: TestClock) -> None:
    def broken(ctx: ToolCallContext) -> Decision:
        raise raised

    breaker = CircuitBreaker(5, clock=clock)
    ran: list[int] = []

    def work() -> None:
        ran.append(1)
        if method == "on_error":
            fail()

    with ExecutionContext(SETTINGS, shield(Hook(**{method: broken})), circuit_breaker=breaker) as ctx:
        if isinstance(raised, Exception):
            outcome = ctx.call_llm(work, HINT)
            allowed = method == "before_charge"
            assert outcome.decision is (Decision.ALLOW if allowed else Decision.HALT)
            assert ctx.get_snapshot().events[0].event_type == "hook_failed"
        else:
            with pytest.raises(KeyboardInterrupt):
                ctx.call_llm(work, HINT)
        nothing_is_lost(ctx, steps=len(ran), nanos=len(ran) * dollars(0.25))
        assert (ran == []) == (method == "before_llm_call")
        assert "running" not in [node.status for node in ctx.get_snapshot().nodes]


@pytest.mark.parametrize("method", ["before_llm_call", "before_charge", "after_llm_call", "on_error"])
@pytest.mark.parametrize("kind", [Hook, Asks])
def test_a_hook_that_calls_the_gate_that_asks_it_is_refused(method: str, kind: type[Hook]) -> None:
    def again(asked: ToolCallContext) -> Decision:
        return ctx.wrap_llm_call(lambda: None)

    with ExecutionContext(SETTINGS, shield(kind(**{method: again}))) as ctx:
        outcome = ctx.call_llm(fail if method == "on_error" else lambda: None)
        assert outcome.decision is (Decision.ALLOW if method == "before_charge" else Decision.HALT)
        assert "a context of its own" in ctx.get_snapshot().events[0].reason
        nothing_is_lost(ctx, steps=int(method != "before_llm_call"))


def test_a_hook_may_use_a_context_of_its_own() -> None:
    judge = ExecutionContext(SETTINGS, ShieldPipeline())

    def ask(asked: ToolCallContext) -> Decision:
        return judge.wrap_llm_call(lambda: None)

    with ExecutionContext(SETTINGS, shield(Hook(before_llm_call=ask))) as ctx:
        assert ctx.wrap_llm_call(lambda: None) is Decision.ALLOW
    judge.close()


async def test_what_a_hook_started_is_asked_about_once_the_hook_has_answered() -> None:
    answered, seen = asyncio.Event(), list[asyncio.Task[Any]]()

    async def work() -> None:
        pass

    async def later() -> list[Decision]:
        await answered.wait()
        with ExecutionContext(SETTINGS) as inner:
            return [(await each.acall_tool(work)).decision for each in (inner, ctx)]

    def start(asked: ToolCallContext) -> None:
        seen.append(asyncio.ensure_future(later()))

    hook = Hook(before_llm_call=start, before_tool_call=Decision.HALT)
    with ExecutionContext(SETTINGS, shield(hook)) as ctx:
        await ctx.acall_llm(work)
        answered.set()
        assert await seen[0] == [Decision.HALT, Decision.HALT]


def test_a_meter_that_must_not_be_swallowed_loses_nothing(clock: TestClock) -> None:
    def interrupt(value: Any, error: BaseException | None, ticket: Ticket) -> Charge:
        raise KeyboardInterrupt

    with ExecutionContext(unlimited(max_cost_usd=1), clock=clock) as ctx:
        with pytest.raises(KeyboardInterrupt):
            ctx.call(costing(0.25), lambda _: None, interrupt)
        nothing_is_lost(ctx, steps=1, nanos=dollars(0.25))
        assert ctx.get_snapshot().nodes[0].status == "aborted"


def test_an_error_that_cannot_say_what_it_is_is_still_settled() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

        __repr__ = __str__

    def work() -> None:
        raise MuteError

    with ExecutionContext(ExecutionConfig(1.0, 10, 1, 0)) as ctx:
        assert ctx.wrap_llm_call(work, HINT) is Decision.HALT
        nothing_is_lost(ctx, steps=1, nanos=dollars(0.25))
        assert "MuteError" in (ctx.get_snapshot().nodes[0].error or "")


def test_hooks_that_take_so_long_that_the_time_is_over_do_not_let_the_call_begin(clock: TestClock) -> None:
    def slow(asked: ToolCallContext) -> None:
        clock.advance(5)

    hook = Hook(before_llm_call=slow)
    ctx = ExecutionContext(ExecutionConfig(1.0, 10, 3, 5_000), shield(hook, clock=clock), clock=clock)
    outcome = ctx.call_llm(lambda: pytest.fail("it ran"), HINT)
    assert (outcome.decision, outcome.stop_reason, outcome.admitted) == (Decision.HALT, "timeout", False)
    assert ctx.stop is not None
    nothing_is_lost(ctx, steps=0)
    assert len(hook.released) == 1
    ctx.close()


@pytest.mark.parametrize("how", ["abort", "close"])
def test_a_context_that_is_stopped_by_a_hook_does_not_let_the_call_begin(how: str) -> None:
    def stop(asked: ToolCallContext) -> None:
        ctx.abort("by the hook") if how == "abort" else ctx.close()

    ctx = ExecutionContext(SETTINGS, shield(Hook(before_llm_call=stop)))
    outcome = ctx.call_llm(lambda: pytest.fail("it ran"), HINT)
    assert (outcome.decision, outcome.stop_reason, outcome.admitted) == (Decision.HALT, "aborted", False)
    nothing_is_lost(ctx, steps=0)
    ctx.close()


def test_a_call_does_not_begin_if_the_work_ends_while_hooks_are_asked_about_it() -> None:
    def land(asked: ToolCallContext) -> None:
        ctx.land(Stop("interrupted", "caller", "Enough."))

    with ExecutionContext(Limits(), shield(Hook(before_tool_call=land))) as ctx:
        outcome = ctx.call_tool(lambda: pytest.fail("it ran"))
        assert (outcome.decision, outcome.stop_reason, outcome.admitted) == (Decision.HALT, "interrupted", False)
        assert ctx.usage.steps == 0


@pytest.mark.parametrize("kind", [Hook, Asks])
def test_a_call_does_not_begin_if_the_one_around_it_overruns_while_hooks_are_asked_about_it(
    kind: type[Hook], clock: TestClock
) -> None:
    over, seen = threading.Event(), list[Outcome[Any]]()

    def think(asked: ToolCallContext) -> None:
        if asked.tool_name == "inner":
            clock.advance(1)
            over.wait(30)

    def work() -> None:
        seen.append(ctx.call_tool(lambda: pytest.fail("it ran"), WrapOptions("inner")))

    with ExecutionContext(SETTINGS, shield(kind(before_tool_call=think), clock=clock), clock=clock) as ctx:
        assert ctx.call_tool(work, WrapOptions("outer", timeout_ms=1_000)).stop_reason == "call_timeout"
        over.set()
        until_other_thread(lambda: bool(seen))
        assert (seen[0].decision, seen[0].admitted) == (Decision.HALT, False)
        assert ctx.usage.steps == 1


# --- hooks that block -------------------------------------------------------------------------------------------------


async def test_a_hook_that_blocks_is_asked_beside_the_running_loop() -> None:
    asked, answer = threading.Event(), threading.Event()

    def person(ctx: ToolCallContext) -> None:
        asked.set()
        answer.wait(30)

    with ExecutionContext(SETTINGS, shield(Asks(before_tool_call=person))) as ctx:

        async def work() -> str:
            return "ran"

        task = asyncio.ensure_future(ctx.acall_tool(work))
        await until(asked.is_set)
        assert (await ctx.acall_llm(work)).value == "ran"  # nobody blocks the loop, nor other calls
        answer.set()
        assert (await task).value == "ran"
        assert ctx.call_tool(lambda: "ran").value == "ran"


def test_a_call_that_waited_for_its_turn_is_asked_about_afterwards() -> None:
    pipeline, ledger = shield(Asks(before_tool_call=Decision.QUEUE)), MemoryLedger()
    with ExecutionContext(ExecutionConfig(1.0, 10, 3, 0), pipeline, ledger=ledger) as ctx:
        begun, go_on, results = threading.Event(), threading.Event(), list[Any]()

        def first() -> None:
            begun.set()
            go_on.wait(30)

        big = WrapOptions(cost_estimate_hint=0.8)
        one = threading.Thread(target=lambda: ctx.call_llm(first, big, cost_of=lambda _: 0))
        one.start()
        begun.wait(30)
        two = threading.Thread(target=lambda: results.append(ctx.wrap_tool_call(lambda: None, big)))
        two.start()
        until_other_thread(lambda: bool(ledger.waiting))
        go_on.set()
        one.join(30)
        two.join(30)
        assert results == [Decision.QUEUE]
        nothing_is_lost(ctx, steps=1)


@pytest.mark.spec("EC-034")
async def test_an_answer_that_does_not_come_in_time_is_a_no_and_what_it_counted_comes_back(clock: TestClock) -> None:
    answer = threading.Event()
    hook = Asks(before_tool_call=waits_for(answer))
    with ExecutionContext(SETTINGS, shield(hook, clock=clock), clock=clock) as ctx:
        task = asyncio.ensure_future(ctx.acall_tool(Held(), HINT))
        await until(lambda: hook.asked)
        clock.advance(15)
        outcome = await task
        assert (outcome.decision, outcome.stop_reason, outcome.admitted) == (Decision.HALT, "hook_failed", False)
        assert "did not answer in time" in ctx.get_snapshot().events[0].reason
        nothing_is_lost(ctx, steps=0)
        assert len(hook.released) == 1
        answer.set()
        until_other_thread(lambda: len(hook.released) == 2)


@pytest.mark.parametrize("how", ["abort", "deadline", "cancel", "close"])
async def test_nobody_waits_for_an_answer_beyond_the_end_of_the_call(how: str, clock: TestClock) -> None:
    answer = threading.Event()
    hook = Asks(before_tool_call=waits_for(answer))
    config = ExecutionConfig(1.0, 10, 3, 2_000)
    ctx = ExecutionContext(config, shield(hook, clock=clock), clock=clock)
    task = asyncio.ensure_future(ctx.acall_tool(Held(), HINT))
    await until(lambda: hook.asked)
    if how == "cancel":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        {"abort": lambda: ctx.abort("enough"), "deadline": lambda: clock.advance(2), "close": ctx.close}[how]()
        outcome = await task
        assert (outcome.stop_reason, outcome.admitted) == ("timeout" if how == "deadline" else "aborted", False)
    nothing_is_lost(ctx, steps=0)
    answer.set()
    until_other_thread(lambda: len(hook.released) == 2)
    ctx.close()


def time_reaches(clock: TestClock, seconds: float) -> bool:
    """Move time to the next timer, if somebody has set one; return whether that is far enough."""
    clock.jump()
    return clock.monotonic() >= seconds


@pytest.mark.parametrize("how", ["abort", "deadline", "time"])
def test_a_thread_does_not_wait_for_an_answer_beyond_the_end_of_the_call(how: str, clock: TestClock) -> None:
    answer = threading.Event()
    hook = Asks(before_tool_call=waits_for(answer))
    config = ExecutionConfig(1.0, 10, 3, 60_000 if how == "time" else 2_000)
    ctx = ExecutionContext(config, shield(hook, clock=clock), clock=clock)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(ctx.call_tool(lambda: pytest.fail("it ran"), HINT)))
    thread.start()
    until_other_thread(lambda: bool(hook.asked))
    if how == "abort":
        ctx.abort("enough")
    else:
        until_other_thread(lambda: time_reaches(clock, 5 if how == "time" else 2))
    thread.join(30)
    reason = {"abort": "aborted", "deadline": "timeout", "time": "hook_failed"}[how]
    assert (results[0].decision, results[0].stop_reason) == (Decision.HALT, reason)
    nothing_is_lost(ctx, steps=0)
    answer.set()
    until_other_thread(lambda: len(hook.released) == 2)
    ctx.close()


def test_what_a_blocking_hook_must_not_swallow_is_raised_where_the_call_was_made() -> None:
    def interrupt(ctx: ToolCallContext) -> None:
        raise KeyboardInterrupt

    with ExecutionContext(SETTINGS, shield(Asks(before_tool_call=interrupt))) as ctx:
        with pytest.raises(KeyboardInterrupt):
            ctx.call_tool(lambda: pytest.fail("it ran"), HINT)
        nothing_is_lost(ctx, steps=0)


# --- a caller who holds only a pipeline -------------------------------------------------------------------------------


@pytest.mark.spec("EC-042")
def test_an_implicit_context_lets_one_call_past_the_pipeline() -> None:
    hook = Hook()
    with ExecutionContext.for_one_call(shield(hook), META) as ctx:
        assert ctx.call_llm(lambda: "answer").value == "answer"
        assert ctx.wrap_llm_call(lambda: None) is Decision.HALT
    assert hook.methods == ["before_llm_call", "before_charge", "after_llm_call"]
    with ExecutionContext.for_one_call(shield(Hook(before_llm_call=Decision.QUEUE))) as ctx:
        assert ctx.wrap_llm_call(lambda: None) is Decision.QUEUE


def test_a_guarded_context_leaves_nothing_behind() -> None:
    breaker, pipeline = CircuitBreaker(), shield(Hook())

    def use() -> weakref.ref[ExecutionContext]:
        with ExecutionContext(SETTINGS, pipeline, circuit_breaker=breaker) as ctx:
            ctx.call_llm(lambda: None, HINT)
            return weakref.ref(ctx)

    assert left_of([use()]) == 0
