"""The methods `wrap_*` and `call_*`, their async versions, their options, and the examples of the specification."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any

import pytest

from tests.containment.gates import Held, dollars, started, until_other_thread
from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.accounting.limits import Limits
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import LimitsError
from watchkeeper.shield.decision import ChainMetadata, Decision, SafetyEvent, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline


def config(**changes: Any) -> ExecutionConfig:
    values: dict[str, Any] = {"max_cost_usd": 1.0, "max_steps": 10, "max_retries_total": 3, "timeout_ms": 0}
    return ExecutionConfig(**{**values, **changes})


def fail() -> None:
    raise ValueError("no luck")


@pytest.mark.spec("EC-006", "EC-011")
def test_the_specifications_first_example_runs() -> None:
    settings = ExecutionConfig(max_cost_usd=0.50, max_steps=10, max_retries_total=3, timeout_ms=15_000)
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
    with ExecutionContext(config=settings, metadata=meta) as ctx:
        decision = ctx.wrap_llm_call(
            fn=lambda: "a summary", options=WrapOptions(operation_name="summarise", cost_estimate_hint=0.02)
        )
    snap = ctx.get_snapshot()
    assert decision is Decision.ALLOW
    assert (snap.chain_id, snap.request_id) == ("chain-001", "req-001")
    assert f"Total cost: ${snap.cost_usd_accumulated:.4f}, steps: {snap.step_count}" == "Total cost: $0.0200, steps: 1"


@pytest.mark.spec("EC-024", "EC-043")
def test_the_specifications_second_example_stops_at_the_step_limit() -> None:
    ctx = ExecutionContext(ExecutionConfig(max_cost_usd=2.00, max_steps=20, max_retries_total=5, timeout_ms=60_000))
    done: list[int] = []
    try:
        for step in range(100):
            decision = ctx.wrap_llm_call(
                fn=lambda: done.append(step),  # noqa: B023  # called at once, as in the specification
                options=WrapOptions(operation_name=f"agent_step_{step}"),
            )
            if decision == Decision.HALT:
                break
    finally:
        snap = ctx.get_snapshot()
        ctx.close()
    assert done == list(range(20))
    assert snap.step_count == 20
    assert snap.events[-1].event_type == "step_limit_exceeded"
    assert snap.nodes[-1].status == "halted"


@pytest.mark.spec("EC-012", "EC-013")
def test_a_result_and_an_error_are_in_the_outcome_and_nothing_runs_twice() -> None:
    runs: list[str] = []
    with ExecutionContext(config()) as ctx:

        def work() -> str:
            runs.append("ran")
            return "result"

        assert ctx.call_llm(work).value == "result"
        failed = ctx.call_tool(fail)
    assert runs == ["ran"]
    assert failed.decision is Decision.RETRY
    assert isinstance(failed.error, ValueError)


@pytest.mark.spec("EC-001", "EC-022", "EC-028")
def test_failures_spend_retries_and_steps_and_the_last_one_is_final() -> None:
    with ExecutionContext(config()) as ctx:
        decisions = [ctx.wrap_llm_call(fail, WrapOptions("ask")) for _ in range(5)]
        snapshot = ctx.get_snapshot()
    assert decisions == [Decision.RETRY, Decision.RETRY, Decision.HALT, Decision.HALT, Decision.HALT]
    assert (snapshot.step_count, snapshot.retries_used) == (3, 3)
    assert [node.stop_reason for node in snapshot.nodes] == [
        None,
        None,
        "provider_error",
        "retry_budget_exceeded",
        "retry_budget_exceeded",
    ]
    assert [node.retries_used for node in snapshot.nodes] == [1, 1, 1, 0, 0]
    assert [event.event_type for event in snapshot.events] == ["provider_error", "retry_budget_exceeded"]
    assert snapshot.abort_reason == "retry_budget_exceeded"


def test_a_call_that_succeeds_has_used_no_retry() -> None:
    with ExecutionContext(config()) as ctx:
        assert ctx.wrap_tool_call(lambda: "fine") is Decision.ALLOW
        assert [node.retries_used for node in ctx.get_snapshot().nodes] == [0]


@pytest.mark.parametrize("usd", [1.2e-9, "0.0000000012", Decimal("0.0000000012")])
def test_a_cost_in_dollars_is_rounded_up_to_whole_nano_dollars(usd: Any) -> None:
    with ExecutionContext(config()) as ctx:
        ctx.call_tool(lambda: "fine", cost_of=lambda _: usd)
        assert ctx.usage.cost_nanos == 2


def test_hooks_are_told_the_spent_share_of_the_fullest_cost_ceiling() -> None:
    shares: list[float | None] = []

    class Seen:
        def before_llm_call(self, ctx: ToolCallContext) -> None:
            shares.append(ctx.cost_share)

    with ExecutionContext(config(max_cost_usd=1.0), ShieldPipeline(pre_dispatch=Seen())) as ctx:
        child = ctx.child(config(max_cost_usd=0.1).as_limits())
        for _ in range(2):
            child.call_llm(lambda: "fine", cost_of=lambda _: 0.05)
    assert shares == [0.0, 0.5]


def test_no_retries_means_that_the_first_failure_is_final_not_that_nothing_may_run() -> None:
    with ExecutionContext(config(max_retries_total=0)) as ctx:
        assert ctx.wrap_llm_call(lambda: None) is Decision.ALLOW
        assert ctx.wrap_llm_call(lambda: None) is Decision.ALLOW
        assert ctx.wrap_llm_call(fail) is Decision.HALT
        assert ctx.wrap_llm_call(lambda: None) is Decision.HALT
        assert ctx.get_snapshot().retries_used == 0


@pytest.mark.spec("EC-012")
def test_nested_calls_do_not_lack_the_retry_that_the_call_around_them_has_set_aside() -> None:
    with ExecutionContext(config(max_retries_total=1)) as ctx:
        child_limits = config(max_retries_total=1).as_limits()

        def middle() -> Decision:
            with ctx.child(child_limits) as child:
                return child.wrap_tool_call(lambda: None)

        outcome = ctx.call_llm(lambda: (ctx.wrap_tool_call(lambda: None), middle()))
        assert outcome.value == (Decision.ALLOW, Decision.ALLOW)
        inner = ctx.call_llm(lambda: ctx.wrap_tool_call(fail))
        assert inner.value is Decision.HALT
        assert ctx.wrap_llm_call(lambda: None) is Decision.HALT


@pytest.mark.spec("EC-018")
def test_a_hint_is_charged_unless_the_call_says_better() -> None:
    hint = WrapOptions(cost_estimate_hint=0.10)
    with ExecutionContext(config()) as ctx:
        ctx.call_llm(lambda: "x", hint)
        assert ctx.usage.cost_nanos == dollars(0.10)
        ctx.call_llm(lambda: 0.02, hint, cost_of=lambda value: value)
        assert ctx.usage.cost_nanos == dollars(0.12)

        def work(ticket: Ticket) -> None:
            ticket.charge("0.01")
            ticket.charge(Decimal("0.02"))

        ctx.call_llm(work, hint)
        assert ctx.usage.cost_nanos == dollars(0.15)
        ctx.call_llm(fail, hint, cost_of=lambda value: 0)
        assert ctx.usage.cost_nanos == dollars(0.25)

        def spend_and_fail(ticket: Ticket) -> None:
            ticket.charge(0.01)
            raise ValueError

        ctx.call_llm(spend_and_fail, hint, cost_of=lambda value: 0)
        assert ctx.usage.cost_nanos == dollars(0.26)
        assert [round(node.cost_usd, 2) for node in ctx.get_snapshot().nodes] == [0.10, 0.02, 0.03, 0.10, 0.01]


def test_a_cost_that_makes_no_sense_is_reported_and_the_hint_is_charged() -> None:
    with ExecutionContext(config()) as ctx:
        outcome = ctx.call_llm(lambda: "x", WrapOptions(cost_estimate_hint=0.10), cost_of=lambda value: float("nan"))
        assert (outcome.decision, outcome.value) == (Decision.ALLOW, "x")
        assert isinstance(outcome.error, LimitsError)
        assert ctx.usage.cost_nanos == dollars(0.10)


@pytest.mark.spec("EC-018")
def test_money_spent_beyond_the_hint_is_charged_and_stops_what_follows() -> None:
    with ExecutionContext(config()) as ctx:
        ctx.call_llm(lambda: 1.5, cost_of=lambda value: value)
        assert ctx.usage.cost_nanos == dollars(1.5)
        outcome = ctx.call_llm(lambda: "never")
        assert (outcome.decision, outcome.value, outcome.stop_reason) == (Decision.HALT, None, "budget_exceeded")


@pytest.mark.spec("EC-002", "EC-018")
def test_a_hint_that_is_too_large_refuses_its_call_only() -> None:
    told: list[SafetyEvent] = []
    with ExecutionContext(ExecutionConfig(0.10, 10, 5, 0), on_event=told.append) as ctx:
        for _ in range(2):
            refused = ctx.call_llm(lambda: "never", WrapOptions("big", cost_estimate_hint=0.2))
            assert (refused.decision, refused.stop_reason, refused.admitted) == (
                Decision.HALT,
                "budget_exceeded",
                False,
            )
            assert ctx.get_snapshot().abort_reason == "budget_exceeded"
            assert ctx.stop is None
        assert ctx.call_llm(lambda: "runs", WrapOptions("small", cost_estimate_hint=0.05)).value == "runs"
        assert ctx.get_snapshot().abort_reason is None
        assert [event.event_type for event in told] == ["budget_exceeded"] * 2
        assert ctx.wrap_llm_call(lambda: "all of it", WrapOptions(cost_estimate_hint=0.05)) is Decision.ALLOW
        last = ctx.call_llm(lambda: "never", WrapOptions(cost_estimate_hint=0.05))
        assert last.stop == ctx.stop  # only what was spent ends the chain
        assert [event.event_type for event in told] == ["budget_exceeded"] * 3
        assert ctx.wrap_tool_call(lambda: "never") is Decision.HALT


def test_a_hint_that_is_too_large_in_a_child_leaves_child_and_parent_open() -> None:
    with ExecutionContext(ExecutionConfig(0.10, 10, 5, 0)) as ctx:
        for carve in (False, True):
            with ctx.child(Limits(max_cost_usd="0.05", landing=None), carve=carve) as child:
                assert child.wrap_llm_call(lambda: 1, WrapOptions(cost_estimate_hint=0.08)) is Decision.HALT
                assert child.wrap_llm_call(lambda: 1, WrapOptions(cost_estimate_hint=0.01)) is Decision.ALLOW
        assert ctx.stop is None


def test_hints_add_up_exactly() -> None:
    with ExecutionContext(config(max_cost_usd=0.7)) as ctx:
        decisions = [ctx.wrap_llm_call(lambda: None, WrapOptions(cost_estimate_hint=0.07)) for _ in range(11)]
    assert decisions == [Decision.ALLOW] * 10 + [Decision.HALT]


@pytest.mark.spec("EC-014")
async def test_async_work_goes_through_the_async_twins() -> None:
    async def think(ticket: Ticket) -> str:
        ticket.charge(0.03)
        return ticket.node_id

    async def look() -> str:
        return "found"

    with ExecutionContext(config()) as ctx:
        outcome = await ctx.acall_llm(think, WrapOptions("think"))
        assert outcome.value == outcome.node_id
        assert (await ctx.acall_tool(look)).value == "found"
        snapshot = ctx.get_snapshot()
    assert [(node.kind, node.operation_name) for node in snapshot.nodes] == [("llm", "think"), ("tool", "")]
    assert snapshot.cost_usd_accumulated == 0.03


@pytest.mark.spec("EC-011")
async def test_a_coroutine_handed_to_a_plain_call_is_refused() -> None:
    async def work() -> None:
        raise AssertionError("it must not run")

    with ExecutionContext(config()) as ctx:
        with pytest.raises(TypeError, match="acall_llm"):
            ctx.wrap_llm_call(work)
        assert ctx.get_snapshot().step_count == 0
        with pytest.raises(TypeError, match="acall_llm"):
            ctx.call_llm(lambda: work())  # only calling it shows what it is
        assert ctx.get_snapshot().nodes[0].status == "error"


def test_the_ticket_goes_only_to_callables_that_need_an_argument() -> None:
    class Work:
        def __call__(self, ticket: Ticket) -> str:
            return ticket.node.kind

        def bare(self) -> str:
            return "bare"

        def given(self, ticket: Ticket) -> str:
            return ticket.node.name

    one = Work()
    with ExecutionContext(config()) as ctx:
        assert ctx.call_llm(one).value == "llm"
        assert ctx.call_llm(one.bare).value == "bare"
        assert ctx.call_llm(one.given, WrapOptions("named")).value == "named"

        def optional(number: int = 1) -> int:
            return number

        assert ctx.call_llm(optional).value == 1
        assert ctx.call_llm(str).value == ""
        assert ctx.call_llm(lambda *args, **kwargs: (args, kwargs)).value == ((), {})
        assert ctx.call_llm(threading.get_ident).value == threading.get_ident()


def test_counts_that_are_written_as_text_are_held_as_numbers() -> None:
    text: Any = {"max_steps": "1k", "max_retries_total": "2", "timeout_ms": "0"}
    assert ExecutionConfig(max_cost_usd=1, **text) == ExecutionConfig(1, 1000, 2, 0)
    assert ExecutionConfig(max_cost_usd=1, **text).as_limits().deadline is None
    options: Any = {"timeout_ms": "2k", "retry_policy_override": "1"}
    assert WrapOptions("ask", **options) == WrapOptions("ask", timeout_ms=2000, retry_policy_override=1)
    with ExecutionContext(config()) as ctx:
        assert ctx.wrap_llm_call(lambda: 1, WrapOptions("ask", **options)) is Decision.ALLOW


def test_a_call_without_a_name_is_named_by_its_kind() -> None:
    with ExecutionContext(config(max_retries_total=0)) as ctx:
        outcome = ctx.call_llm(fail)
    assert str(outcome.stop).startswith("A model call failed and no retry is left: ")
    with ExecutionContext(config()) as ctx:
        outcome = ctx.call_tool(fail, WrapOptions(retry_policy_override=0))
        refused = ctx.call_tool(fail, WrapOptions(retry_policy_override=0))
    assert str(outcome.stop).startswith("A tool call failed and no retry is left: ")
    assert str(refused.stop) == "A tool call without a name has failed too often in a row: 0 retries are allowed."


@pytest.mark.spec("EC-008")
def test_an_operation_with_a_retry_policy_of_its_own_may_fail_only_so_often_in_a_row() -> None:
    once = WrapOptions("flaky", retry_policy_override=1)
    with ExecutionContext(config(max_retries_total=10, max_steps=100)) as ctx:
        assert ctx.wrap_tool_call(fail, once) is Decision.RETRY
        assert ctx.wrap_tool_call(lambda: None, once) is Decision.ALLOW
        assert ctx.wrap_tool_call(fail, once) is Decision.RETRY
        last = ctx.call_tool(fail, once)
        assert (last.decision, last.stop_reason) == (Decision.HALT, "provider_error")
        refused = ctx.call_tool(lambda: None, once)
        assert (refused.decision, refused.stop_reason, refused.node_id) == (
            Decision.HALT,
            "retry_budget_exceeded",
            None,
        )
        assert refused.stop is not None
        assert "1 retry is allowed" in refused.stop.message
        assert ctx.wrap_llm_call(lambda: None, once) is Decision.ALLOW
        assert ctx.wrap_tool_call(lambda: None) is Decision.ALLOW
        assert ctx.stop is None
        never = WrapOptions("never again", retry_policy_override=0)
        assert ctx.wrap_tool_call(fail, never) is Decision.HALT


def test_an_operations_own_policy_cannot_exceed_the_chains() -> None:
    often = WrapOptions("flaky", retry_policy_override=100)
    with ExecutionContext(config(max_retries_total=2)) as ctx:
        assert [ctx.wrap_tool_call(fail, often) for _ in range(3)] == [Decision.RETRY, Decision.HALT, Decision.HALT]


def test_a_failure_in_a_thread_with_a_time_bound_spends_a_retry_too() -> None:
    with ExecutionContext(config(timeout_ms=60_000), clock=TestClock()) as ctx:
        outcome = ctx.call_llm(fail)
        assert outcome.decision is Decision.RETRY
        assert ctx.get_snapshot().retries_used == 1

        def stop_iteration() -> None:
            raise StopIteration

        assert isinstance(ctx.call_llm(stop_iteration).error, RuntimeError)


def test_calls_that_wait_on_threads_are_admitted_when_others_settle() -> None:
    clock = TestClock()
    hint = WrapOptions(cost_estimate_hint=0.8)
    begun, go_on = threading.Event(), threading.Event()
    results: list[Any] = []

    def first() -> None:
        begun.set()
        go_on.wait(30)

    ledger = MemoryLedger()
    with ExecutionContext(config(timeout_ms=60_000), ledger=ledger, clock=clock) as ctx:
        one = threading.Thread(target=lambda: results.append(ctx.call_llm(first, hint, cost_of=lambda _: 0.1)))
        one.start()
        begun.wait(30)
        two = threading.Thread(target=lambda: results.append(ctx.call_llm(lambda: "second", hint)))
        two.start()
        until_other_thread(lambda: bool(ledger.waiting))
        go_on.set()
        one.join(30)
        two.join(30)
    assert [outcome.decision for outcome in results] == [Decision.ALLOW, Decision.ALLOW]


def test_a_thread_that_waits_is_released_at_the_deadline() -> None:
    clock = TestClock()
    hint = WrapOptions(cost_estimate_hint=0.8)
    results: list[Any] = []
    ledger = MemoryLedger()
    with ExecutionContext(config(), ledger=ledger, clock=clock) as root:
        ctx = root.child(config(timeout_ms=5_000).as_limits(), carve=False)

        def first() -> None:
            waiter = threading.Thread(target=lambda: results.append(ctx.call_llm(lambda: "second", hint)))
            waiter.start()
            until_other_thread(lambda: bool(ledger.waiting))
            clock.advance(5)
            waiter.join(30)

        root.call_llm(first, hint)
    assert results[0].stop_reason == "timeout"


async def test_a_plain_call_never_blocks_a_running_loop_to_wait_for_others() -> None:
    hint = WrapOptions(cost_estimate_hint=0.8)
    with ExecutionContext(config()) as ctx:
        held = Held()
        task = await started(ctx.acall_llm(held, hint))
        outcome = ctx.call_llm(lambda: "never", hint)
        assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "budget_exceeded")
        assert ctx.stop is None
        assert ctx.call_llm(lambda: "fits", WrapOptions(cost_estimate_hint=0.1)).value == "fits"
        held.let_go.set()
        assert (await task).decision is Decision.ALLOW


@pytest.mark.spec("EC-007")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_cost_usd", 0),
        ("max_cost_usd", -1),
        ("max_cost_usd", float("nan")),
        ("max_cost_usd", float("inf")),
        ("max_cost_usd", 1e300),
        ("max_steps", 0),
        ("max_steps", -5),
        ("max_steps", 2.5),
        ("max_retries_total", -1),
        ("timeout_ms", -1),
        ("timeout_ms", 10**15),
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name_and_value(field: str, value: Any) -> None:
    with pytest.raises(LimitsError, match=field):
        config(**{field: value})


@pytest.mark.spec("EC-008")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cost_estimate_hint", -0.01),
        ("cost_estimate_hint", float("nan")),
        ("cost_estimate_hint", float("inf")),
        ("cost_estimate_hint", True),
        ("cost_estimate_hint", "much"),
        ("timeout_ms", -1),
        ("retry_policy_override", -1),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name_and_value(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        WrapOptions(**{field: value})


def test_charges_that_make_no_sense_are_refused() -> None:
    def work(ticket: Ticket) -> None:
        ticket.charge(-1)

    with ExecutionContext(config()) as ctx:
        assert isinstance(ctx.call_llm(work).error, LimitsError)
        assert ctx.usage.cost_nanos == 0


@pytest.mark.spec("EC-006", "EC-029")
def test_metadata_defaults_to_fresh_ids_and_reaches_the_events() -> None:
    first, second = ExecutionContext(config()), ExecutionContext(config())
    assert first.get_snapshot().chain_id != second.get_snapshot().chain_id
    assert first.get_snapshot().request_id
