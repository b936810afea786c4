"""What the gate admits, in which order, what it keeps back for landing, and what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.containment.gates import (
    MODEL,
    TOOL,
    Held,
    answer,
    charged,
    costing,
    dollars,
    fail,
    gate_with,
    settle,
    started,
    unlimited,
)
from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
from watchkeeper.accounting.limits import Landing, Limits
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock, Timer
from watchkeeper.core.errors import ConfigurationError, Stop, UnpricedModelError
from watchkeeper.core.usage import TokenUsage, Usage
from watchkeeper.shield.decision import KEPT_EVENTS, Decision, SafetyEvent


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


def reply(max_output: int, *, least: int = 1, tokens_in: int = 0, **fields: Any) -> CallRequest:
    """A model call of $0.01 per output token."""
    estimate = Estimate(tokens_in, max_output, least, 0, dollars(0.01))
    return CallRequest("llm", "think", estimate, **fields)


def nothing_spent(value: Any, error: BaseException | None, ticket: Ticket) -> Charge:
    return Charge()


# --- one call ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("EC-019")
async def test_an_admitted_call_runs_once_and_its_result_and_node_are_in_the_outcome(clock: TestClock) -> None:
    gate = gate_with(clock)
    outcome = await gate.acall(CallRequest("tool", "look"), answer)
    assert (outcome.decision, outcome.value, outcome.error, outcome.stop) == (Decision.ALLOW, "done", None, None)
    (node,) = gate.get_snapshot().nodes
    assert outcome.node_id == node.node_id
    assert (node.kind, node.operation_name, node.status, node.parent_id) == ("tool", "look", "ok", None)
    assert node.start_ts == clock.now()
    assert gate.usage == Usage(tool_calls=1, steps=1)


async def test_work_may_be_any_awaitable(clock: TestClock) -> None:
    gate = gate_with(clock)
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_result(7)
    assert (await gate.acall(TOOL, lambda ticket: future)).value == 7


async def test_a_failure_is_returned_and_may_be_repeated_for_one_retry(clock: TestClock) -> None:
    gate = gate_with(clock, max_retries=1)
    outcome = await gate.acall(MODEL, fail, charged(0.01))
    assert outcome.decision is Decision.RETRY
    assert isinstance(outcome.error, ValueError)
    assert gate.usage.retries == 0
    again = CallRequest("llm", retry=True)
    assert (await gate.acall(again, answer)).decision is Decision.ALLOW
    assert gate.usage.retries == 1
    refused = await gate.acall(again, answer)
    assert (refused.decision, refused.stop_reason) == (Decision.HALT, "retry_budget_exceeded")
    node = gate.get_snapshot().nodes[0]
    assert (node.status, node.error, node.cost_usd) == ("error", "ValueError: no luck", 0.01)


async def test_work_that_raises_before_it_returns_a_coroutine_is_a_failure(clock: TestClock) -> None:
    gate = gate_with(clock)

    def broken(ticket: Ticket) -> Any:
        raise ValueError("not even begun")

    assert (await gate.acall(TOOL, broken)).decision is Decision.RETRY


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(2), GeneratorExit()])
async def test_what_is_not_an_exception_is_raised_once_the_node_is_closed(
    clock: TestClock, raised: BaseException
) -> None:
    gate = gate_with(clock)

    async def work(ticket: Ticket) -> None:
        raise raised

    with pytest.raises(type(raised)):
        await gate.acall(TOOL, work, charged(0.1))
    (node,) = gate.get_snapshot().nodes
    assert (node.status, node.cost_usd, node.end_ts) == ("aborted", 0.1, clock.now())


async def test_without_a_meter_all_that_was_reserved_is_charged(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)
    await gate.acall(reply(20, tokens_in=5), answer)
    assert gate.usage.tokens == TokenUsage(5, 20)
    assert gate.usage.cost_nanos == dollars(0.20)


async def test_a_meter_that_raises_loses_nothing(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)

    def broken(value: Any, error: BaseException | None, ticket: Ticket) -> Charge:
        raise ZeroDivisionError("per token")

    outcome = await gate.acall(reply(20), answer, broken)
    assert (outcome.decision, outcome.value) == (Decision.ALLOW, "done")
    assert isinstance(outcome.error, ZeroDivisionError)
    assert gate.usage.cost_nanos == dollars(0.20)
    assert gate.get_snapshot().nodes[0].error == "ZeroDivisionError: per token"


async def test_an_unknown_cost_stays_unknown_and_an_unpriced_call_is_refused_under_a_cost_ceiling(
    clock: TestClock,
) -> None:
    unpriced = CallRequest("llm", "think", Estimate(known_cost=False))
    free = gate_with(clock)
    await free.acall(unpriced, answer, lambda value, error, ticket: Charge(cost_nanos=None))
    assert free.usage.cost_nanos is None
    assert free.budget_status().cost_usd is None
    priced = gate_with(clock, max_cost_usd=1)
    for gate in (priced, priced.child(unlimited())):
        with pytest.raises(UnpricedModelError, match="think"):
            await gate.acall(unpriced, answer)
    assert priced.get_snapshot().step_count == 0


# --- the order of admission -------------------------------------------------------------------------------------------

EVERYTHING_OVER = [
    ("aborted", "aborted"),
    ("deadline", "timeout"),
    ("max_cost_usd", "budget_exceeded"),
    ("max_total_tokens", "token_limit_exceeded"),
    ("max_steps", "step_limit_exceeded"),
    ("max_tool_calls", "tool_call_limit_exceeded"),
    ("max_retries", "retry_budget_exceeded"),
]


@pytest.mark.spec("EC-031")
@pytest.mark.parametrize("first", range(len(EVERYTHING_OVER)))
async def test_of_several_reasons_to_refuse_the_first_in_the_stated_order_is_given(
    clock: TestClock, first: int
) -> None:
    over = [name for name, _ in EVERYTHING_OVER[first:]]
    ceilings = {
        "deadline": timedelta(seconds=1),
        "max_cost_usd": 1,
        "max_total_tokens": 100,
        "max_steps": 1,
        "max_tool_calls": 1,
        "max_retries": 1,
    }
    gate = gate_with(clock, **{name: ceiling for name, ceiling in ceilings.items() if name in over})
    spend = Charge(TokenUsage(50, 50), dollars(1))
    # A second call under way makes the steps, tool calls and retries full too, before anything latches.
    request = CallRequest("tool", retry=True)
    await gate.acall(request, answer, lambda value, error, ticket: spend)
    if "aborted" in over:
        gate.abort("enough")
    if "deadline" in over:
        clock.advance(1)
    outcome = await gate.acall(request, answer)
    assert outcome.stop_reason == EVERYTHING_OVER[first][1]
    assert outcome.stop is not None
    if first > 0:
        assert outcome.stop.limit == EVERYTHING_OVER[first][0]


@pytest.mark.spec("EC-021")
@pytest.mark.parametrize(
    ("ceilings", "charge", "limit", "sentence"),
    [
        (
            {"max_cost_usd": 2},
            Charge(cost_nanos=dollars(2)),
            "max_cost_usd",
            "cost ceiling of $2.00 in 1 tool call.",
        ),
        ({"max_input_tokens": 10}, Charge(TokenUsage(10, 0)), "max_input_tokens", "of 10 input tokens in 1 tool call."),
        ({"max_output_tokens": 1}, Charge(TokenUsage(0, 2)), "max_output_tokens", "of 1 output token in 1 tool call."),
        ({"max_steps": 1}, Charge(), "max_steps", "its ceiling of 1 step."),
        ({"max_tool_calls": 1}, Charge(), "max_tool_calls", "its ceiling of 1 tool call."),
    ],
)
async def test_a_stop_names_its_limit_and_says_it_in_one_sentence(
    clock: TestClock, ceilings: dict[str, Any], charge: Charge, limit: str, sentence: str
) -> None:
    gate = gate_with(clock, **ceilings)
    await gate.acall(TOOL, answer, lambda value, error, ticket: charge)
    stop = (await gate.acall(TOOL, answer)).stop
    assert stop is not None
    assert stop.limit == limit
    assert stop.message == f"The run reached {sentence}" or stop.message.endswith(sentence)
    assert gate.stop is stop


@pytest.mark.spec("FR-146")
async def test_a_stop_says_how_much_was_used_if_the_ceiling_was_not_quite_reached(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=2)
    await gate.acall(costing(1.98), answer)
    stop = (await gate.acall(costing(0.05), answer)).stop
    assert stop is not None
    said = "The run has $0.02 left of its cost ceiling of $2.00 after $1.98 in 1 model call; the next call could"
    assert stop.message == f"{said} need up to $0.05."


@pytest.mark.spec("FR-030")
async def test_a_stop_latches_even_for_a_call_that_would_fit(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)
    await gate.acall(costing(0.9), answer)
    assert (await gate.acall(costing(0.2), answer)).stop_reason == "budget_exceeded"
    assert (await gate.acall(costing(0.05), answer)).stop_reason == "budget_exceeded"
    assert gate.usage.steps == 1
    assert len(gate.get_snapshot().events) == 1


@pytest.mark.spec("EC-003")
async def test_steps_count_failures_and_model_calls_do_not_count_as_tool_calls(clock: TestClock) -> None:
    gate = gate_with(clock, max_steps=3, max_tool_calls=1)
    await gate.acall(TOOL, fail)
    assert (await gate.acall(MODEL, answer)).decision is Decision.ALLOW
    assert (await gate.acall(CallRequest("child"), answer)).decision is Decision.ALLOW
    assert (await gate.acall(MODEL, answer)).stop_reason == "step_limit_exceeded"
    assert gate.usage == Usage(model_calls=1, tool_calls=1, steps=3)


@pytest.mark.spec("EC-002")
async def test_a_spent_ceiling_refuses_calls_that_cost_nothing_too(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)
    await gate.acall(MODEL, answer, charged(1.5))
    assert (await gate.acall(TOOL, answer)).stop_reason == "budget_exceeded"
    assert gate.usage.cost_nanos == dollars(1.5)


# --- clamping and waiting ---------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-029")
async def test_the_output_cap_is_clamped_to_what_is_affordable(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1, max_output_tokens=90)
    granted: list[int] = []

    async def work(ticket: Ticket) -> None:
        granted.append(ticket.max_output_tokens)

    await gate.acall(reply(500), work, charged(0.70, tokens_out=70))
    await gate.acall(reply(500), work, charged(0.15, tokens_out=15))
    await gate.acall(reply(500), work, charged(0.0))
    assert granted == [90, 20, 5]
    refused = await gate.acall(reply(500, least=6), work)
    assert refused.stop_reason == "token_limit_exceeded"


async def test_the_least_output_comes_from_the_limits_unless_the_estimate_says_it(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1, min_output_tokens=50)
    await gate.acall(reply(60), answer)
    assert (await gate.acall(reply(60, least=0), answer)).stop_reason == "budget_exceeded"
    other = gate_with(clock, max_cost_usd=1, min_output_tokens=50)
    await other.acall(reply(60), answer)
    assert (await other.acall(reply(60, least=40), answer)).decision is Decision.ALLOW
    small = gate_with(clock, max_cost_usd=1, min_output_tokens=500)
    assert (await small.acall(reply(60, least=0), answer)).decision is Decision.ALLOW


@pytest.mark.spec("FR-029")
async def test_a_call_that_others_leave_too_little_for_waits_and_never_latches(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)
    held = Held()
    first = await started(gate.acall(costing(0.8), held, charged(0.1)))
    second = await started(gate.acall(costing(0.5), answer, charged(0.5)))
    assert not second.done()
    assert gate.stop is None
    held.let_go.set()
    assert (await first).decision is Decision.ALLOW
    assert (await second).decision is Decision.ALLOW
    assert gate.usage.cost_nanos == dollars(0.6)


async def test_waiting_calls_go_on_in_the_order_in_which_they_came(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)
    held, order = Held(), list[int]()

    def numbered(number: int) -> Any:
        async def work(ticket: Ticket) -> None:
            order.append(number)
            await asyncio.sleep(0)

        return work

    first = await started(gate.acall(costing(0.9), held, nothing_spent))
    others = [await started(gate.acall(costing(0.9), numbered(n), nothing_spent)) for n in range(5)]
    held.let_go.set()
    await asyncio.gather(first, *others)
    assert order == [0, 1, 2, 3, 4]


async def test_a_waiting_call_is_refused_once_what_is_settled_leaves_too_little(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)
    held = Held()
    first = await started(gate.acall(costing(0.8), held, charged(0.8)))
    second = await started(gate.acall(costing(0.5), answer))
    held.let_go.set()
    await first
    outcome = await second
    assert (outcome.decision, outcome.stop_reason, outcome.node_id) == (Decision.HALT, "budget_exceeded", None)
    assert gate.stop == outcome.stop


async def test_a_waiting_call_waits_at_most_to_its_deadline(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)
    child = gate.child(unlimited(deadline="5s"))
    held = Held()
    first = await started(gate.acall(costing(0.8), held))
    second = await started(child.acall(costing(0.5), answer))
    clock.advance(5)
    assert (await second).stop_reason == "timeout"
    assert gate.stop is None
    held.let_go.set()
    await first


class HastyClock(TestClock):
    """A clock whose timers ring a moment too early the first time, as a machine's may."""

    hasty = True

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        early = 1e-9 if self.hasty else 0.0
        self.hasty = False
        return super().call_at(when - early, callback)


async def test_a_timer_that_rings_too_early_does_not_make_a_waiting_call_miss_its_deadline() -> None:
    clock = HastyClock()
    clock.hasty = False
    gate = gate_with(clock, max_cost_usd=1)
    child = gate.child(unlimited(deadline="5s"))
    held = Held()
    first = await started(gate.acall(costing(0.8), held))
    clock.hasty = True
    second = await started(child.acall(costing(0.5), answer))
    clock.advance(5 - 1e-9)
    await settle()
    assert not second.done()
    clock.advance(1e-9)
    assert (await second).stop_reason == "timeout"
    held.let_go.set()
    await first


async def test_aborting_or_cancelling_ends_the_wait_and_leaves_nothing_in_the_queue(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)
    held = Held()
    first = await started(gate.acall(costing(0.8), held, nothing_spent))
    cancelled = await started(gate.acall(costing(0.5), answer))
    third = await started(gate.acall(costing(0.5), answer))
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert gate.usage.steps == 1
    held.let_go.set()
    assert (await third).decision is Decision.ALLOW
    await first
    again = Held()
    first = await started(gate.acall(costing(0.4), again))
    waiting = await started(gate.acall(costing(0.3), answer))
    gate.abort("enough")
    assert (await waiting).stop_reason == "aborted"
    assert (await first).stop_reason == "aborted"


async def test_tool_calls_that_cost_nothing_never_wait(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)
    held = Held()
    first = await started(gate.acall(reply(1000), held, nothing_spent))
    assert (await gate.acall(TOOL, answer)).decision is Decision.ALLOW
    held.let_go.set()
    await first


async def test_a_call_inside_a_call_that_holds_everything_is_refused_rather_than_waiting_for_itself(
    clock: TestClock,
) -> None:
    gate = gate_with(clock, max_cost_usd=1)

    async def outer(ticket: Ticket) -> Any:
        return await gate.acall(costing(0.6), answer)

    outcome = await gate.acall(costing(0.5), outer, charged(0.1))
    inner = outcome.value
    assert inner is not None
    assert (inner.decision, inner.stop_reason) == (Decision.HALT, "budget_exceeded")
    assert gate.stop is None
    assert (await gate.acall(costing(0.6), answer)).decision is Decision.ALLOW


async def test_two_calls_that_wait_inside_each_others_way_do_not_hang(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)

    async def outer(ticket: Ticket) -> Any:
        await asyncio.sleep(0)
        return await gate.acall(costing(0.4), answer, charged(0.1))

    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*(gate.acall(costing(0.5), outer, charged(0.1)) for _ in range(2)))
    decisions = sorted(outcome.value.decision for outcome in outcomes if outcome.value)
    assert decisions == [Decision.ALLOW, Decision.HALT]


# --- landing ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-046")
async def test_work_stops_early_enough_for_the_landing_turn_which_then_passes(clock: TestClock) -> None:
    gate = ExecutionContext(unlimited(max_cost_usd=1, landing=Landing()), clock=clock)
    landing = Estimate(0, 20, 1, 0, dollars(0.01))
    assert (await gate.acall(reply(50, landing=landing), answer)).decision is Decision.ALLOW
    granted: list[int] = []

    async def work(ticket: Ticket) -> None:
        granted.append(ticket.max_output_tokens)

    await gate.acall(reply(50, landing=landing), work, charged(0.29))
    assert granted == [30]  # 1.00 - 0.50 - 0.20
    refused = await gate.acall(reply(50, least=2, landing=landing), work)
    assert (refused.stop_reason, refused.stop) == ("budget_exceeded", gate.work_stop)
    assert gate.stop is None
    assert gate.work_stop is not None
    assert "$0.20 kept for its last turn" in gate.work_stop.message
    assert (await gate.acall(TOOL, answer)).decision is Decision.HALT
    last = await gate.acall(reply(20, phase="landing"), work, charged(0.20))
    assert last.decision is Decision.ALLOW
    assert granted == [30, 20]
    assert gate.usage.cost_nanos == dollars(0.99)
    second = await gate.acall(reply(20, least=2, phase="landing"), work)
    assert second.stop_reason == "budget_exceeded"
    assert gate.stop is not None
    assert "kept" not in gate.stop.message


async def test_one_step_is_kept_for_landing(clock: TestClock) -> None:
    gate = ExecutionContext(unlimited(max_steps=2, landing=Landing()), clock=clock)
    assert (await gate.acall(TOOL, answer)).decision is Decision.ALLOW
    assert (await gate.acall(TOOL, answer)).stop_reason == "step_limit_exceeded"
    assert (await gate.acall(CallRequest("llm", phase="landing"), answer)).decision is Decision.ALLOW
    assert (await gate.acall(CallRequest("llm", phase="landing"), answer)).stop_reason == "step_limit_exceeded"
    assert gate.get_snapshot().abort_reason == "step_limit_exceeded"


async def test_a_single_step_is_for_work(clock: TestClock) -> None:
    gate = ExecutionContext(unlimited(max_steps=1, landing=Landing()), clock=clock)
    assert (await gate.acall(TOOL, answer)).decision is Decision.ALLOW
    assert (await gate.acall(CallRequest("llm", phase="landing"), answer)).decision is Decision.HALT


async def test_landing_follows_tool_calls_and_the_callers_wish(clock: TestClock) -> None:
    gate = ExecutionContext(unlimited(max_tool_calls=1, landing=Landing()), clock=clock)
    await gate.acall(TOOL, answer)
    assert (await gate.acall(TOOL, answer)).stop_reason == "tool_call_limit_exceeded"
    assert (await gate.acall(MODEL, answer)).stop_reason == "tool_call_limit_exceeded"
    assert (await gate.acall(CallRequest("llm", phase="landing"), answer)).decision is Decision.ALLOW
    wished = Stop("interrupted", "caller", "Somebody pressed Ctrl-C.")
    other = ExecutionContext(Limits(), clock=clock)
    held = Held()
    task = await started(other.acall(TOOL, held))
    other.land(wished)
    other.land(Stop("turn_limit_exceeded", "loop", "Too late to matter."))
    assert (await other.acall(MODEL, answer)).stop is wished
    held.let_go.set()
    assert (await task).decision is Decision.ALLOW
    assert (await other.acall(CallRequest("llm", phase="landing"), answer)).decision is Decision.ALLOW
    assert other.stop is None
    assert other.work_stop is wished
    assert [event.event_type for event in other.get_snapshot().events] == ["interrupted"]


async def test_closing_gives_back_what_was_kept_for_landing(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1, max_steps=5)
    child = root.child(unlimited(landing=Landing()))
    await child.acall(reply(10, landing=Estimate(0, 80, 1, 0, dollars(0.01))), answer)
    other = root.child(unlimited())
    waiting = await started(other.acall(costing(0.5), answer))
    assert not waiting.done()
    child.close()
    assert (await waiting).decision is Decision.ALLOW
    assert root.account.reserved == [0] * 7


# --- children ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("NE-030")
async def test_a_childs_spending_counts_in_every_context_above_it(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    child = root.child(unlimited(max_cost_usd=0.5), "item 1")
    grandchild = child.child(unlimited(max_steps=1))
    await grandchild.acall(MODEL, answer, charged(0.3, 10, 5))
    await child.acall(TOOL, answer, charged(0.1))
    assert grandchild.usage == Usage(TokenUsage(10, 5), dollars(0.3), model_calls=1, steps=1)
    assert child.usage == root.usage == Usage(TokenUsage(10, 5), dollars(0.4), 1, 1, 2)
    assert (await grandchild.acall(TOOL, answer)).stop_reason == "step_limit_exceeded"
    stopped = await child.acall(costing(0.2), answer)
    assert stopped.stop is not None
    said = "The run 'item 1' has $0.10 left of its cost ceiling of $0.50 after $0.40 in 1 model call, 1 tool call; "
    assert stopped.stop.message == f"{said}the next call could need up to $0.20."
    assert root.stop is None
    assert (await root.acall(costing(0.6), answer)).decision is Decision.ALLOW


async def test_five_siblings_are_bounded_together_by_their_parent(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    children = [root.child(unlimited(max_cost_usd=0.9), carve=False) for _ in range(5)]
    for child in children:
        await child.acall(costing(0.3), answer)
    assert root.usage.cost_nanos == dollars(0.9)
    assert [child.stop is None for child in children] == [True, True, True, False, False]
    stop = children[3].stop
    assert stop is not None
    said = (
        "The whole run has $0.10 left of its cost ceiling of $1.00 after $0.90 in 3 model calls; the next call could "
    )
    assert stop.message == f"{said}need up to $0.30."


async def test_a_stop_above_stops_below(clock: TestClock) -> None:
    root = gate_with(clock, max_steps=1)
    child = root.child(unlimited())
    await root.acall(TOOL, answer)
    await root.acall(TOOL, answer)
    outcome = await child.acall(TOOL, answer)
    assert outcome.stop is root.stop
    assert child.stop is root.stop
    assert child.work_stop is root.stop


async def test_a_child_may_land_after_the_work_above_was_stopped(clock: TestClock) -> None:
    root = ExecutionContext(Limits(), clock=clock)
    child = root.child(Limits())
    root.land(Stop("interrupted", "caller", "Ctrl-C"))
    assert (await child.acall(MODEL, answer)).stop_reason == "interrupted"
    assert (await child.acall(CallRequest("llm", phase="landing"), answer)).decision is Decision.ALLOW


async def test_a_call_never_waits_for_what_is_kept_for_landing_above_it(clock: TestClock) -> None:
    """The context above cannot land before the call below it has ended: what it keeps counts as spent."""
    parent = ExecutionContext(unlimited(max_cost_usd=1, landing=Landing()), clock=clock)
    await parent.acall(reply(1, landing=Estimate(0, 40, 1, 0, dollars(0.01))), answer)
    child = parent.child(unlimited())
    grandchild = child.child(unlimited())
    async with asyncio.timeout(10):
        assert (await child.acall(costing(0.5), answer)).decision is Decision.ALLOW
        for gate in (child, grandchild):
            assert (await gate.acall(costing(0.2), answer)).stop_reason == "budget_exceeded"
            assert gate.stop is not None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
async def test_siblings_that_all_keep_something_for_landing_do_not_wait_for_each_other_for_ever(
    clock: TestClock, order: tuple[int, ...]
) -> None:
    root = gate_with(clock, max_cost_usd=1)
    landing = Estimate(0, 30, 1, 0, dollars(0.01))
    children = [root.child(unlimited(landing=Landing()), f"item {n}") for n in range(3)]
    for child in children:
        await child.acall(reply(1, landing=landing), answer)
    children = [children[place] for place in order]
    async with asyncio.timeout(10):
        first = await started(children[0].acall(costing(0.5, landing=landing), answer))
        second = await started(children[1].acall(costing(0.5, landing=landing), answer))
        assert not first.done()
        assert not second.done()
        third = await started(children[2].acall(costing(0.5, landing=landing), answer))
        refused = await third  # the youngest gives way; it may land with what it kept, and latches nothing
        assert refused.stop_reason == "budget_exceeded"
        assert refused.stop is not None
        assert "hold the rest" in refused.stop.message
        assert children[2].work_stop is None
        last = await children[2].acall(reply(30, phase="landing"), answer, charged(0.0))
        assert last.decision is Decision.ALLOW
        children[2].close()
        assert (await second).decision is Decision.HALT  # what came back was not enough for either
        children[1].close()
        assert (await first).decision is Decision.ALLOW
    assert root.usage.cost_nanos == dollars(0.53)


async def test_events_of_children_reach_the_listener_once(clock: TestClock) -> None:
    heard: list[SafetyEvent] = []
    root = ExecutionContext(unlimited(max_steps=5), clock=clock, on_event=heard.append)
    child = root.child(unlimited(max_steps=1))
    for _ in range(3):
        await child.acall(TOOL, answer)
    assert [event.event_type for event in heard] == ["step_limit_exceeded"]
    assert child.get_snapshot().events == root.get_snapshot().events == tuple(heard)


# --- what there is to see ---------------------------------------------------------------------------------------------


@pytest.mark.spec("EC-016", "EC-020")
async def test_calls_under_way_are_visible_and_a_snapshot_never_changes(clock: TestClock) -> None:
    gate = gate_with(clock)
    held = Held()
    task = await started(gate.acall(CallRequest("llm", "think"), held))
    early = gate.get_snapshot()
    clock.advance(2)
    held.let_go.set()
    await task
    assert (early.nodes[0].status, early.nodes[0].end_ts) == ("running", None)
    late = gate.get_snapshot()
    assert late.nodes[0].status == "ok"
    assert late.nodes[0].end_ts == late.nodes[0].start_ts + timedelta(seconds=2)
    assert late.elapsed_ms == 2000


@pytest.mark.spec("EC-019")
async def test_calls_know_the_call_inside_which_they_were_made(clock: TestClock) -> None:
    gate = gate_with(clock)
    child = gate.child(unlimited())

    async def outer(ticket: Ticket) -> None:
        await asyncio.gather(gate.acall(TOOL, answer), child.acall(TOOL, answer))
        await asyncio.to_thread(gate.call_tool, lambda: None)

    outcome = await gate.acall(CallRequest("child", "run"), outer)
    assert [node.parent_id for node in gate.get_snapshot().nodes] == [None, outcome.node_id, outcome.node_id]
    assert [node.parent_id for node in child.get_snapshot().nodes] == [outcome.node_id]


@pytest.mark.spec("TO-025")
async def test_the_budget_status_shows_ceilings_beside_what_was_used(clock: TestClock) -> None:
    most = {"max_steps": 40, "max_input_tokens": 500, "max_output_tokens": 600, "max_retries": 7, "max_turns": 9}
    gate = gate_with(clock, max_cost_usd="2.50", max_total_tokens=1000, max_tool_calls=3, **most)
    await gate.acall(TOOL, answer, charged(0.5, 10, 20))
    status = gate.budget_status()
    assert status == BudgetStatus(
        max_tokens=1000,
        max_steps=40,
        max_input_tokens=500,
        input_tokens_used=10,
        max_output_tokens=600,
        output_tokens_used=20,
        max_retries=7,
        tokens_used=30,
        max_tool_calls=3,
        tool_calls_used=1,
        steps_used=1,
        max_cost_nanos=2_500_000_000,
        cost_nanos=500_000_000,
    )
    assert status.remaining_cost_usd == 2


async def test_the_budget_status_speaks_of_turns_only_to_who_says_how_many_were_taken(clock: TestClock) -> None:
    gate = gate_with(clock, max_turns=9)
    assert (gate.budget_status().max_turns, gate.budget_status().shares) == (None, {})
    assert (gate.budget_status(0).max_turns, gate.budget_status(0).shares) == (9, {"max_turns": 0.0})
    assert gate.budget_status(turns_used=3).counts == [("max_turns", 3, 9)]
    assert gate_with(clock).budget_status(3).counts == []


async def test_a_listener_that_raises_changes_nothing(clock: TestClock) -> None:
    def broken(event: SafetyEvent) -> None:
        raise RuntimeError("deaf")

    gate = ExecutionContext(unlimited(max_steps=1), clock=clock, on_event=broken)
    await gate.acall(TOOL, answer)
    assert (await gate.acall(TOOL, answer)).stop_reason == "step_limit_exceeded"
    assert len(gate.get_snapshot().events) == 1


@pytest.mark.spec("EC-015")
async def test_a_callers_own_events_stand_beside_the_gates(clock: TestClock) -> None:
    gate = gate_with(clock)
    event = SafetyEvent("custom", Decision.DEGRADE, "mine", "hook", ts=clock.now())
    gate.record_event(event)
    gate.abort("enough")
    assert [item.event_type for item in gate.get_snapshot().events] == ["custom", "aborted"]
    ours = gate.get_snapshot().events[1]
    assert (ours.hook, ours.request_id) == ("ExecutionContext", gate.get_snapshot().request_id)
    assert ours.metadata["chain_id"] == gate.get_snapshot().chain_id


def test_what_bounds_nothing_and_what_is_no_event_is_refused_by_value() -> None:
    with pytest.raises(ConfigurationError, match="'max_steps': 1} bounds no context; write Limits"):
        ExecutionContext({"max_steps": 1})  # type: ignore[arg-type]
    with ExecutionContext(unlimited()) as ctx:
        with pytest.raises(ConfigurationError, match="5 bounds no context"):
            ctx.child(5)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="'oops' must be a SafetyEvent"):
            ctx.record_event("oops")  # type: ignore[arg-type]
        assert ctx.get_snapshot().events == ()


def test_the_events_of_a_snapshot_are_shared_and_never_change() -> None:
    with ExecutionContext(unlimited()) as ctx:
        for name in ("one", "two"):
            ctx.record_event(SafetyEvent(name, Decision.HALT, "mine", "hook"))
        early = ctx.get_snapshot().events
        ctx.record_event(SafetyEvent("three", Decision.HALT, "mine", "hook"))
        late = ctx.get_snapshot().events
    assert [event.event_type for event in early] == ["one", "two"]
    assert (early[-1], early[:5]) == (late[1], tuple(late)[:2])
    assert (len(late), late == list(late), late == early, late == object()) == (3, True, False, False)
    assert "event_type='three'" in repr(late)
    with pytest.raises(IndexError, match="index 2 of 2 items"):
        _ = early[2]
    with pytest.raises(IndexError):
        _ = early[-3]


@pytest.mark.spec("EC-029")
def test_the_newest_events_are_kept_and_every_stop_of_the_chain_and_the_rest_is_counted() -> None:
    with ExecutionContext(unlimited(max_steps=1)) as ctx, ctx.child(unlimited()) as child:
        assert [ctx.call_tool(lambda: 1).admitted for _ in range(2)] == [True, False]
        for number in range(3 * KEPT_EVENTS):
            child.record_event(SafetyEvent(str(number), Decision.HALT, "mine", "hook"))
        child.abort("enough")
        for snapshot in (ctx.get_snapshot(), child.get_snapshot()):
            types = [event.event_type for event in snapshot.events]
            rest = [name for name in types if name.isdecimal()]
            assert KEPT_EVENTS <= len(rest) < 2 * KEPT_EVENTS
            assert rest == [str(number) for number in range(3 * KEPT_EVENTS - len(rest), 3 * KEPT_EVENTS)]
            assert snapshot.events_dropped == 3 * KEPT_EVENTS - len(rest)
            assert types[-1] == "aborted"
        assert ctx.get_snapshot().events[0].event_type == "step_limit_exceeded"


def test_stops_of_children_are_kept_like_other_events_so_that_their_number_is_bounded() -> None:
    listed = 2 * KEPT_EVENTS + 5
    with ExecutionContext(unlimited()) as ctx:
        for _ in range(listed):
            with ctx.child(unlimited()) as child:
                child.abort("enough")
        snapshot = ctx.get_snapshot()
    assert KEPT_EVENTS <= len(snapshot.events) < 2 * KEPT_EVENTS
    assert len(snapshot.events) + snapshot.events_dropped == listed


def test_a_callers_event_happens_now_unless_it_says_when_and_its_time_is_held_in_utc() -> None:
    before = SYSTEM_CLOCK.now()
    event = SafetyEvent("custom", Decision.HALT, "mine", "hook", "request-1")
    assert before <= event.ts <= SYSTEM_CLOCK.now()
    assert event.request_id == "request-1"
    there = datetime(2026, 1, 30, 12, tzinfo=timezone(timedelta(hours=2)))
    assert SafetyEvent("custom", Decision.HALT, "mine", "hook", ts=there).ts.isoformat() == "2026-01-30T10:00:00+00:00"
    with pytest.raises(ConfigurationError, match="has no time zone"):
        SafetyEvent("custom", Decision.HALT, "mine", "hook", ts=there.replace(tzinfo=None))


async def test_a_call_that_left_its_context_late_does_not_disturb_later_ones(clock: TestClock) -> None:
    gate = gate_with(clock)
    tasks: list[asyncio.Task[Any]] = []

    async def outer(ticket: Ticket) -> None:
        async def later() -> Any:
            await settle()
            return await gate.acall(TOOL, answer)

        tasks.append(asyncio.create_task(later()))

    await gate.acall(TOOL, outer)
    assert (await tasks[0]).decision is Decision.ALLOW
