"""The specified execution context: its five invariants, its stop reasons, its two examples, its import path."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, get_args

import pytest

import watchkeeper.containment
from tests.containment.gates import Held, started
from watchkeeper.containment import (
    BudgetWindowHook,
    ChainMetadata,
    CircuitBreaker,
    ContextSnapshot,
    Decision,
    ExecutionConfig,
    ExecutionContext,
    Outcome,
    ShieldPipeline,
    WrapOptions,
)
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import StopReason

HINT = WrapOptions("ask", cost_estimate_hint=0.5)


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


def config(**changes: Any) -> ExecutionConfig:
    values: dict[str, Any] = {"max_cost_usd": 1.0, "max_steps": 10, "max_retries_total": 3, "timeout_ms": 0}
    return ExecutionConfig(**{**values, **changes})


def fail() -> None:
    raise ConnectionError("the provider is away")


def never() -> None:
    raise AssertionError("it ran")


# --- section 3: the invariants ----------------------------------------------------------------------------------------


@pytest.mark.spec("EC-001")
def test_invariant_1_once_the_retries_are_used_no_call_of_any_kind_runs() -> None:
    with ExecutionContext(config(max_retries_total=2)) as ctx:
        assert [ctx.wrap_llm_call(fail), ctx.wrap_tool_call(fail)] == [Decision.RETRY, Decision.HALT]
        assert ctx.get_snapshot().retries_used == 2
        for wrap in (ctx.wrap_llm_call, ctx.wrap_tool_call, ctx.wrap_llm_call):
            assert wrap(never) is Decision.HALT


@pytest.mark.spec("EC-002")
def test_invariant_2_once_the_money_is_spent_nothing_runs_and_the_pipeline_is_not_asked() -> None:
    asked: list[str] = []

    class Asked:
        def before_llm_call(self, ctx: Any) -> None:
            asked.append(ctx.tool_name)

    with ExecutionContext(config(), ShieldPipeline(pre_dispatch=Asked())) as ctx:
        assert [ctx.wrap_llm_call(lambda: None, HINT) for _ in range(2)] == [Decision.ALLOW, Decision.ALLOW]
        assert ctx.get_snapshot().cost_usd_accumulated == 1.0
        assert (ctx.wrap_llm_call(never), ctx.wrap_tool_call(never)) == (Decision.HALT, Decision.HALT)
    assert asked == ["ask", "ask"]


@pytest.mark.spec("EC-003")
def test_invariant_3_once_the_steps_are_made_nothing_runs() -> None:
    with ExecutionContext(config(max_steps=2)) as ctx:
        assert [ctx.wrap_llm_call(lambda: None), ctx.wrap_tool_call(fail)] == [Decision.ALLOW, Decision.RETRY]
        assert (ctx.wrap_llm_call(never), ctx.wrap_tool_call(never)) == (Decision.HALT, Decision.HALT)
        assert ctx.get_snapshot().step_count == 2


@pytest.mark.spec("EC-004")
async def test_invariant_4_when_the_time_is_over_everything_under_way_is_told_and_nothing_new_runs(
    clock: TestClock,
) -> None:
    with ExecutionContext(config(timeout_ms=5_000), clock=clock) as ctx:
        held = [Held(), Held()]
        tasks = [await started(ctx.acall_llm(one)) for one in held]
        clock.advance(5)
        assert [outcome.decision for outcome in await asyncio.gather(*tasks)] == [Decision.HALT] * 2
        assert all(one.tickets[0].cancellation.is_cancelled for one in held)
        assert ctx.wrap_llm_call(never) is Decision.HALT


@pytest.mark.spec("EC-005")
@pytest.mark.parametrize("stop", ["steps", "cost", "timeout", "abort"])
def test_invariant_5_before_a_forced_stop_the_state_is_kept(stop: str, clock: TestClock) -> None:
    settings = config(max_steps=1 if stop == "steps" else 10, timeout_ms=5_000 if stop == "timeout" else 0)
    with ExecutionContext(settings, clock=clock) as ctx:
        ctx.call_llm(lambda: None, WrapOptions("kept", cost_estimate_hint=1.0 if stop == "cost" else 0.1))
        assert ctx.get_snapshot().abort_reason is None
        if stop == "abort":
            ctx.abort("enough")
        elif stop == "timeout":
            clock.advance(5)
        ctx.wrap_llm_call(never)
        kept = ctx.snapshot_at_stop
        assert kept is not None
        assert kept.nodes[0].operation_name == "kept"
        assert kept.abort_reason is not None
        assert ctx.get_snapshot().abort_reason == kept.abort_reason


# --- section 6: the stop reasons --------------------------------------------------------------------------------------


def spend(ctx: ExecutionContext, clock: TestClock) -> Outcome[Any]:
    ctx.wrap_llm_call(lambda: None, WrapOptions(cost_estimate_hint=1.0))
    return ctx.call_llm(never)


def fail_too_often(ctx: ExecutionContext, clock: TestClock) -> Outcome[Any]:
    for _ in range(3):
        ctx.wrap_llm_call(fail)
    return ctx.call_llm(never)


def fail_for_the_last_time(ctx: ExecutionContext, clock: TestClock) -> Outcome[Any]:
    for _ in range(2):
        ctx.wrap_llm_call(fail)
    return ctx.call_llm(fail)


def walk_on(ctx: ExecutionContext, clock: TestClock) -> Outcome[Any]:
    for _ in range(10):
        ctx.wrap_tool_call(lambda: None)
    return ctx.call_llm(never)


def let_time_pass(ctx: ExecutionContext, clock: TestClock) -> Outcome[Any]:
    clock.advance(5)
    return ctx.call_llm(never)


def abort(ctx: ExecutionContext, clock: TestClock) -> Outcome[Any]:
    ctx.abort("enough")
    return ctx.call_llm(never)


def call_too_often(ctx: ExecutionContext, clock: TestClock) -> Outcome[Any]:
    for _ in range(5):
        ctx.wrap_llm_call(lambda: None)
    return ctx.call_llm(never)


def call_what_is_down(ctx: ExecutionContext, clock: TestClock) -> Outcome[Any]:
    ctx.wrap_llm_call(fail)
    return ctx.call_llm(never)


Way = Callable[[ExecutionContext, TestClock], Outcome[Any]]


@pytest.mark.spec("EC-021", "EC-022", "EC-023", "EC-024", "EC-025", "EC-026", "EC-028")
@pytest.mark.parametrize(
    ("reason", "way", "options", "latches", "hook", "status"),
    [
        ("budget_exceeded", spend, {}, True, "ExecutionContext", "halted"),
        ("retry_budget_exceeded", fail_too_often, {}, True, "ExecutionContext", "halted"),
        ("circuit_open", call_what_is_down, {"circuit_breaker": 1}, False, "ExecutionContext", "halted"),
        ("step_limit_exceeded", walk_on, {}, True, "ExecutionContext", "halted"),
        ("timeout", let_time_pass, {}, True, "ExecutionContext", "timeout"),
        ("aborted", abort, {}, True, "ExecutionContext", "aborted"),
        ("provider_rate_limit", call_too_often, {"max_calls": 5}, False, "BudgetWindowHook", "halted"),
        ("provider_error", fail_for_the_last_time, {}, False, "ExecutionContext", "error"),
    ],
)
def test_every_stop_reason_is_reached_with_its_decision_its_event_and_its_abort_reason(
    reason: str, way: Way, options: dict[str, int], latches: bool, hook: str, status: str, clock: TestClock
) -> None:
    breaker = CircuitBreaker(options["circuit_breaker"], clock=clock) if "circuit_breaker" in options else None
    window = BudgetWindowHook(options["max_calls"], 60.0, 1.0, clock=clock) if "max_calls" in options else None
    pipeline = ShieldPipeline(pre_dispatch=window) if window else None
    with ExecutionContext(config(timeout_ms=5_000), pipeline, circuit_breaker=breaker, clock=clock) as ctx:
        outcome = way(ctx, clock)
        snapshot = ctx.get_snapshot()
        assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, reason)
        assert outcome.stop is not None
        assert outcome.stop.reason == reason
        event = snapshot.events[-1]
        assert (event.event_type, event.decision, event.hook) == (reason, Decision.HALT, hook)
        assert event.request_id == snapshot.request_id
        assert snapshot.abort_reason == reason
        assert (snapshot.nodes[-1].status, snapshot.nodes[-1].stop_reason) == (status, reason)
        assert snapshot.aborted == (reason == "aborted")
        assert (ctx.stop is not None) == latches
    assert reason in get_args(StopReason)


def test_a_stop_of_one_call_is_no_reason_of_the_chain_once_another_has_run(clock: TestClock) -> None:
    breaker = CircuitBreaker(1, 60.0, clock=clock)
    with ExecutionContext(config(), circuit_breaker=breaker, clock=clock) as ctx:
        assert call_what_is_down(ctx, clock).stop_reason == "circuit_open"
        clock.advance(60)
        assert ctx.wrap_llm_call(lambda: None) is Decision.ALLOW
        assert ctx.get_snapshot().abort_reason is None


# --- section 9: the examples ------------------------------------------------------------------------------------------


@pytest.mark.spec("EC-009", "EC-044")
def test_example_1_a_single_request(capsys: pytest.CaptureFixture[str]) -> None:
    def call_llm(prompt: str) -> str:
        return f"a summary of {prompt}"

    config = ExecutionConfig(
        max_cost_usd=0.50,
        max_steps=10,
        max_retries_total=3,
        timeout_ms=15_000,
    )

    meta = ChainMetadata(
        request_id="req-001",
        chain_id="chain-001",
        org_id="acme",
        team="ml-platform",
        service="summariser",
        user_id="user-42",
        model="gpt-4o",
        tags={"env": "prod"},
    )

    pipeline = ShieldPipeline()  # configure hooks as needed

    with ExecutionContext(config=config, pipeline=pipeline, metadata=meta) as ctx:
        decision = ctx.wrap_llm_call(
            fn=lambda: call_llm(prompt="Summarise this document."),
            options=WrapOptions(operation_name="summarise", cost_estimate_hint=0.02),
        )
        if decision != Decision.ALLOW:
            print(f"Call blocked: {decision}")

    snap = ctx.get_snapshot()
    print(f"Total cost: ${snap.cost_usd_accumulated:.4f}, steps: {snap.step_count}")
    assert capsys.readouterr().out == "Total cost: $0.0200, steps: 1\n"


@pytest.mark.spec("EC-045")
def test_example_2_an_agent_loop_with_a_step_limit(capsys: pytest.CaptureFixture[str]) -> None:
    agent_steps: list[int] = []
    results: list[int] = []
    agent_step, process_result = agent_steps.append, results.append

    config = ExecutionConfig(
        max_cost_usd=2.00,
        max_steps=20,
        max_retries_total=5,
        timeout_ms=60_000,
    )

    ctx = ExecutionContext(config=config)

    try:
        for step in range(100):  # Loop is bounded by ExecutionConfig, not the range
            decision = ctx.wrap_llm_call(
                fn=lambda: agent_step(step),  # noqa: B023  # called at once, as in the specification
                options=WrapOptions(operation_name=f"agent_step_{step}"),
            )
            if decision == Decision.HALT:
                snap = ctx.get_snapshot()
                print(
                    f"Chain halted at step {snap.step_count}: "
                    f"last event={snap.events[-1].event_type if snap.events else 'none'}"
                )
                break
            process_result(step)
    finally:
        snap = ctx.get_snapshot()
        print(f"Final: steps={snap.step_count}, cost=${snap.cost_usd_accumulated:.4f}")
        ctx.close()
    assert capsys.readouterr().out == (
        "Chain halted at step 20: last event=step_limit_exceeded\nFinal: steps=20, cost=$0.0000\n"
    )
    assert agent_steps == results == list(range(20))


# --- section 4: the import path and the signature ---------------------------------------------------------------------


@pytest.mark.spec("EC-009")
def test_the_specifications_signature_is_positional_and_metadata_is_as_it_says() -> None:
    meta = ChainMetadata("req", "chain")
    with ExecutionContext(config(), None, meta) as ctx:
        snapshot = ctx.get_snapshot()
    assert isinstance(snapshot, ContextSnapshot)
    assert (snapshot.request_id, snapshot.chain_id) == ("req", "chain")


def test_the_package_exports_what_it_lists_sorted_and_nothing_heavy_before_it_is_used() -> None:
    package = watchkeeper.containment
    names: list[str] = getattr(package, "__all__")  # noqa: B009  # made when the package is imported
    assert list(names) == sorted(set(names)) == dir(package)
    assert all(getattr(package, name) is not None for name in names)
    assert not hasattr(package, "no_such_name")
    code = "import sys, watchkeeper.containment; print([name for name in sys.modules if 'containment.' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- other ways to be wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wrap_llm_call", "wrap_tool_call", "call_llm", "call_tool"])
def test_a_closed_context_refuses_calls_loudly_and_still_tells_what_happened(name: str) -> None:
    with ExecutionContext(config()) as ctx:
        ctx.wrap_llm_call(lambda: None, HINT)
    with pytest.raises(ValueError, match="closed"):
        getattr(ctx, name)(never)
    with pytest.raises(ValueError, match="closed"):
        ctx.child(config().as_limits())
    ctx.abort("after the end")
    ctx.close()
    assert (ctx.get_snapshot().step_count, ctx.get_snapshot().cost_usd_accumulated) == (1, 0.5)


def test_contexts_that_stand_apart_do_not_know_of_each_other_but_for_who_called_whom() -> None:
    with ExecutionContext(config()) as outer, ExecutionContext(config(max_steps=1), parent=None) as inner:
        outcome = outer.call_tool(lambda: [inner.wrap_llm_call(lambda: None, HINT) for _ in range(2)])
        assert outcome.value == [Decision.ALLOW, Decision.HALT]
        assert (outer.get_snapshot().step_count, outer.get_snapshot().cost_usd_accumulated) == (1, 0.0)
        assert inner.get_snapshot().nodes[0].parent_id == outcome.node_id
        assert outer.stop is None


def test_a_call_inside_a_call_of_the_same_context_is_a_step_of_its_own() -> None:
    with ExecutionContext(config(max_steps=3)) as ctx:
        outcome = ctx.call_tool(lambda: [ctx.wrap_llm_call(lambda: None, HINT) for _ in range(3)])
        assert outcome.value == [Decision.ALLOW, Decision.ALLOW, Decision.HALT]
        assert ctx.get_snapshot().cost_usd_accumulated == 1.0


def test_what_a_callable_spends_beyond_its_hint_is_charged_in_full_and_stops_the_rest() -> None:
    with ExecutionContext(config()) as ctx:
        assert ctx.call_llm(lambda: 3.0, HINT, cost_of=lambda value: value).decision is Decision.ALLOW
        assert ctx.get_snapshot().cost_usd_accumulated == 3.0
        assert ctx.call_llm(never).stop_reason == "budget_exceeded"


def test_one_pipeline_and_one_breaker_hold_for_many_threads_at_once() -> None:
    window = BudgetWindowHook(50, None, 1.0)
    pipeline, breaker = ShieldPipeline(pre_dispatch=window), CircuitBreaker()
    ran: list[int] = []

    def work() -> None:
        with ExecutionContext(config(max_steps=20), pipeline, circuit_breaker=breaker) as ctx:
            for _ in range(20):
                ctx.wrap_llm_call(lambda: ran.append(1))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 50
