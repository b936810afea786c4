"""Time-outs, deadlines, aborts and closing interrupt what is under way, and nothing that was spent is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.containment.gates import (
    TOOL,
    Held,
    answer,
    charged,
    costing,
    dollars,
    gate_with,
    settle,
    started,
    unlimited,
    until_other_thread,
)
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.accounting.ledger import Grant, MemoryLedger, Waiter
from watchkeeper.accounting.limits import Landing, Limits
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import CALL_TIMEOUT, Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import Deadline, TestClock, Timer
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.usage import NOTHING_PRESUMED, Presumed, TokenUsage
from watchkeeper.shield.decision import Decision


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


# --- async work -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("EC-004", "EC-025")
async def test_async_work_is_cancelled_at_the_deadline_and_the_stop_latches(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")
    held = Held()
    task = await started(gate.acall(TOOL, held, charged(0.5)))
    clock.advance(10)
    outcome = await task
    assert outcome.decision is Decision.HALT
    assert outcome.stop_reason == "timeout"
    assert outcome.stop == gate.stop
    assert isinstance(outcome.error, TimeoutError)
    assert gate.usage.cost_nanos == dollars(0.5)
    assert held.tickets[0].cancellation.is_cancelled
    node = gate.get_snapshot().nodes[0]
    assert (node.status, node.stop_reason, node.cost_usd) == ("timeout", "timeout", 0.5)
    again = await gate.acall(TOOL, answer)
    assert (again.decision, again.stop_reason, again.node_id) == (Decision.HALT, "timeout", None)
    assert gate.get_snapshot().nodes[1].status == "timeout"


class LateAlarms(TestClock):
    """A clock whose alarms have not come yet, as where the thread that gives them waits for its turn."""

    def alarm(self, when: float, callback: Callable[[], None]) -> Timer:
        return self.call_at(float("inf"), callback)


async def test_a_call_at_the_very_moment_of_the_deadline_is_refused_although_its_alarm_is_late() -> None:
    clock = LateAlarms()
    gate = gate_with(clock, deadline=timedelta(seconds=10))
    clock.advance(9.5)
    assert (await gate.acall(TOOL, answer)).admitted
    clock.advance(0.5)
    assert gate.stop is None
    refused = await gate.acall(TOOL, answer)
    assert (refused.admitted, refused.stop_reason) == (False, "timeout")


@pytest.mark.spec("EC-005")
async def test_the_snapshot_is_taken_at_the_stop(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")
    await gate.acall(TOOL, answer)
    before = gate.snapshot_at_stop
    assert before is None
    task = await started(gate.acall(TOOL, Held()))
    clock.advance(10)
    await task
    await gate.acall(TOOL, answer)
    snapshot = gate.snapshot_at_stop
    assert snapshot is not None
    assert (snapshot.abort_reason, snapshot.aborted, snapshot.step_count) == ("timeout", False, 2)
    assert [node.status for node in snapshot.nodes] == ["ok", "timeout"]
    assert [event.event_type for event in snapshot.events] == ["timeout"]


async def test_a_calls_own_time_out_stops_only_that_call(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="1h")
    task = await started(gate.acall(CallRequest("tool", "look", timeout=3), Held()))
    clock.advance(3)
    outcome = await task
    assert (outcome.decision, outcome.stop_reason, outcome.stop) == (Decision.RETRY, CALL_TIMEOUT, None)
    assert isinstance(outcome.error, TimeoutError)
    assert "look" in str(outcome.error)
    assert "3s" in str(outcome.error)
    assert gate.get_snapshot().nodes[0].status == "timeout"
    assert gate.stop is None
    assert (await gate.acall(TOOL, answer)).decision is Decision.ALLOW


async def test_a_call_that_ends_in_time_leaves_no_timer_behind(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="1h")
    held = Held()
    task = await started(gate.acall(CallRequest("tool", timeout=3), held))
    held.let_go.set()
    assert (await task).value == "held"
    clock.advance(10)
    await settle()
    assert (await gate.acall(TOOL, answer)).decision is Decision.ALLOW


async def test_the_ticket_says_how_long_the_call_may_take(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")
    seen: list[float | None] = []

    async def work(ticket: Ticket) -> None:
        seen.append(ticket.timeout)

    await gate.acall(TOOL, work)
    clock.advance(4)
    await gate.acall(TOOL, work)
    await gate.acall(CallRequest("tool", timeout=2), work)
    await gate_with(clock).acall(TOOL, work)
    assert seen == [10, 6, 2, None]


async def test_a_calls_own_time_out_never_outlasts_the_deadline(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")

    async def work(ticket: Ticket) -> float | None:
        return ticket.timeout

    assert (await gate.acall(CallRequest("tool", timeout=60), work)).value == 10


async def test_work_that_cleans_up_when_cancelled_is_waited_for_within_the_grace(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")
    cleaned = False

    async def work(ticket: Ticket) -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    task = await started(gate.acall(TOOL, work))
    clock.advance(10)
    assert (await task).stop_reason == "timeout"
    assert cleaned


async def test_work_that_swallows_its_cancellation_is_left_behind_and_its_late_result_is_charged(
    clock: TestClock,
) -> None:
    gate = gate_with(clock, deadline="10s", max_cost_usd=1)
    finish = asyncio.Event()
    metered: list[Any] = []

    async def stubborn(ticket: Ticket) -> str:
        while not finish.is_set():
            try:
                await finish.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    def meter(value: str | None, error: BaseException | None, ticket: Ticket) -> Any:
        metered.append((value, error))
        return charged(0.2)(value, error, ticket)

    task = await started(gate.acall(costing(0.6), stubborn, meter))
    clock.advance(10)
    await settle()
    assert not task.done()
    clock.advance(1)
    outcome = await task
    assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "timeout")
    assert metered == []
    assert gate.usage.cost_nanos == dollars(0.6)  # all that it may have cost, until the truth is known
    assert gate.usage.presumed == Presumed(1, TokenUsage(), dollars(0.6))  # part of the total, and shown apart
    early = gate.get_snapshot()
    finish.set()
    await settle()
    assert metered == [("at last", None)]
    assert gate.usage.cost_nanos == dollars(0.2)
    assert gate.usage.presumed == NOTHING_PRESUMED
    node = gate.get_snapshot().nodes[0]
    assert (node.status, node.late_result, node.cost_usd) == ("timeout", "at last", 0.2)
    assert (early.nodes[0].late_result, early.nodes[0].cost_usd) == (None, 0.6)


async def test_a_late_error_is_kept_and_charged_too(clock: TestClock) -> None:
    gate = gate_with(clock)
    finish = asyncio.Event()

    async def stubborn(ticket: Ticket) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await finish.wait()
            raise ValueError("too late anyway") from None

    task = await started(gate.acall(costing(0.6, timeout=1), stubborn, charged(0.1)))
    clock.advance(1)
    await settle()
    clock.advance(1)
    assert (await task).stop_reason == CALL_TIMEOUT
    finish.set()
    await settle()
    node = gate.get_snapshot().nodes[0]
    assert node.error is not None
    assert "too late anyway" in node.error
    assert node.cost_usd == 0.1


async def test_work_that_keeps_finding_something_new_to_wait_for_is_left_behind_all_the_same(clock: TestClock) -> None:
    gate = gate_with(clock)
    ready = asyncio.get_running_loop().create_future()
    never = asyncio.Event()

    async def stubborn(ticket: Ticket) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.shield(ready)
            await never.wait()

    task = await started(gate.acall(CallRequest("tool", timeout=1), stubborn))
    clock.advance(1)
    await settle()
    ready.set_result(None)
    clock.advance(1)  # the grace ends just as what it waited for is there
    assert (await task).stop_reason == CALL_TIMEOUT
    await asyncio.to_thread(gate.close)
    await settle()
    assert len(asyncio.all_tasks()) == 1


async def test_work_that_never_waits_for_anything_but_the_next_turn_of_the_loop_cannot_hang_the_run(
    clock: TestClock,
) -> None:
    gate = gate_with(clock)
    stop = False

    async def stubborn(ticket: Ticket) -> str:
        while not stop:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                continue
        return "stopped"

    task = await started(gate.acall(CallRequest("tool", timeout=1), stubborn))
    clock.advance(1)
    await settle()
    clock.advance(1)
    await settle()
    assert (await task).stop_reason == CALL_TIMEOUT
    stop = True
    await settle()
    assert gate.get_snapshot().nodes[0].late_result == "stopped"


async def test_a_result_that_comes_within_the_grace_is_late_but_not_lost(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")

    async def work(ticket: Ticket) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "what I had"
        return "never"

    task = await started(gate.acall(TOOL, work))
    clock.advance(10)
    outcome = await task
    assert (outcome.decision, outcome.value) == (Decision.HALT, "what I had")


async def test_blocking_async_work_that_overruns_is_late_too(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")

    async def work(ticket: Ticket) -> str:
        clock.advance(11)  # as a coroutine that never yields would
        return "late"

    outcome = await gate.acall(TOOL, work)
    assert (outcome.decision, outcome.stop_reason, outcome.value) == (Decision.HALT, "timeout", "late")
    assert isinstance(outcome.error, TimeoutError)
    await settle()
    assert asyncio.current_task() is not None  # nothing of the time-out reaches the caller afterwards


async def test_sleeping_work_is_cancelled_when_the_clock_jumps_past_the_deadline(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")

    async def work(ticket: Ticket) -> None:
        await clock.sleep(100)

    assert (await gate.acall(TOOL, work)).stop_reason == "timeout"


async def test_cancelling_the_caller_settles_the_call_and_is_raised(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="1h")
    seen: list[BaseException | None] = []

    def meter(value: Any, error: BaseException | None, ticket: Ticket) -> Any:
        seen.append(error)
        return charged(0.3)(value, error, ticket)

    task = await started(gate.acall(TOOL, Held(), meter))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(seen) == 1
    assert isinstance(seen[0], asyncio.CancelledError)
    node = gate.get_snapshot().nodes[0]
    assert (node.status, node.cost_usd, node.end_ts is None) == ("aborted", 0.3, False)
    assert gate.stop is None


@pytest.mark.parametrize("error", [None, ValueError("broken off")])
async def test_cancelling_the_caller_is_raised_even_if_the_work_swallows_it(
    clock: TestClock, error: Exception | None
) -> None:
    gate = gate_with(clock, deadline="1h")

    async def stubborn(ticket: Ticket) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if error is not None:
                raise error from None
        return "kept on"

    task = await started(gate.acall(TOOL, stubborn, charged(0.3)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (node,) = gate.get_snapshot().nodes
    assert (node.status, node.cost_usd, gate.stop) == ("aborted", 0.3, None)


async def test_a_cancellation_from_outside_wins_over_a_time_out_at_the_same_moment(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")
    task = await started(gate.acall(TOOL, Held()))
    clock.advance(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.get_snapshot().nodes[0].end_ts is not None


async def test_cancelling_the_caller_while_stubborn_work_has_its_grace_does_not_wait(clock: TestClock) -> None:
    gate = gate_with(clock)
    finish = asyncio.Event()

    async def stubborn(ticket: Ticket) -> str:
        while not finish.is_set():
            try:
                await finish.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    task = await started(gate.acall(CallRequest("tool", timeout=1), stubborn))
    clock.advance(1)
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    finish.set()
    await settle()
    assert gate.get_snapshot().nodes[0].late_result == "late"


async def test_a_cancellation_from_outside_is_raised_even_if_the_work_turned_it_into_an_error_of_its_own(
    clock: TestClock,
) -> None:
    gate = gate_with(clock, deadline="10s")

    async def work(ticket: Ticket) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("connection lost") from None

    task = await started(gate.acall(TOOL, work))
    clock.advance(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    other = gate_with(clock, deadline="10s")
    task = await started(other.acall(TOOL, work))
    clock.advance(10)
    outcome = await task
    assert outcome.stop_reason == "timeout"
    assert isinstance(outcome.error, ValueError)


async def test_a_coroutine_that_is_closed_under_way_is_settled(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="1h", max_cost_usd=1)
    closed: list[bool] = []

    async def work(ticket: Ticket) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def stubborn(ticket: Ticket) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await work(ticket)

    for number, doing in enumerate((work, stubborn), start=1):
        coroutine = gate.acall(costing(0.2, timeout=1), doing, charged(0.1))
        task = await started(coroutine)
        if doing is stubborn:
            clock.advance(1)
            await settle()
        coroutine.close()
        assert closed == [True] * number
        assert gate.usage.cost_nanos == dollars(0.1 * number)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert gate.account.reserved == [0] * 7


async def test_asyncio_time_outs_inside_the_work_are_the_works_own(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="1h")

    async def work(ticket: Ticket) -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    outcome = await gate.acall(TOOL, work)
    assert (outcome.decision, outcome.stop_reason) == (Decision.RETRY, None)
    assert isinstance(outcome.error, TimeoutError)


async def test_an_asyncio_time_out_around_the_call_works(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="1h")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await gate.acall(TOOL, Held())
    assert gate.get_snapshot().nodes[0].status == "aborted"


async def test_nested_calls_with_the_same_deadline_both_time_out(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")
    inner: list[Outcome[Any]] = []

    async def outer(ticket: Ticket) -> None:
        inner.append(await gate.acall(TOOL, Held()))

    task = await started(gate.acall(CallRequest("child", "run"), outer))
    clock.advance(10)
    outcome = await task
    assert outcome.stop_reason == "timeout"
    assert [node.status for node in gate.get_snapshot().nodes] == ["timeout", "timeout"]
    assert (await gate.acall(TOOL, answer)).stop_reason == "timeout"


async def test_an_inner_time_out_leaves_the_outer_call_alone(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")

    async def outer(ticket: Ticket) -> str:
        return str((await gate.acall(CallRequest("tool", timeout=1), Held())).stop_reason)

    task = await started(gate.acall(CallRequest("child"), outer))
    clock.advance(1)
    outcome = await task
    assert (outcome.decision, outcome.value) == (Decision.ALLOW, CALL_TIMEOUT)


async def test_an_outer_time_out_ends_an_inner_call_that_is_left_behind(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")
    never = asyncio.Event()

    async def stubborn(ticket: Ticket) -> str:
        while not never.is_set():
            try:
                await never.wait()
            except asyncio.CancelledError:
                continue
        return "inner"

    async def outer(ticket: Ticket) -> Outcome[str]:
        return await gate.acall(CallRequest("tool", "inner"), stubborn)

    task = await started(gate.acall(CallRequest("child", "outer"), outer))
    clock.advance(10)
    await settle()
    clock.advance(1)
    await settle()
    clock.advance(1)
    outcome = await task
    assert outcome.stop_reason == "timeout"
    never.set()
    await settle()
    assert {node.status for node in gate.get_snapshot().nodes} == {"timeout"}


# --- abort and close --------------------------------------------------------------------------------------------------


@pytest.mark.spec("EC-017", "EC-026", "FR-031")
async def test_abort_cancels_what_is_under_way_and_refuses_the_rest(clock: TestClock) -> None:
    gate = ExecutionContext(Limits(), clock=clock)
    task = await started(gate.acall(TOOL, Held(), charged(0.1)))
    gate.abort("the user left")
    outcome = await task
    assert (outcome.decision, outcome.stop_reason, outcome.error) == (Decision.HALT, "aborted", None)
    landing = await gate.acall(CallRequest("llm", phase="landing"), answer)
    assert (landing.decision, landing.stop_reason) == (Decision.HALT, "aborted")
    snapshot = gate.get_snapshot()
    assert (snapshot.aborted, snapshot.abort_reason) == (True, "aborted")
    assert [node.status for node in snapshot.nodes] == ["aborted", "aborted"]
    assert [event.event_type for event in snapshot.events] == ["aborted"]
    assert "the user left" in snapshot.events[0].reason


async def test_abort_from_another_thread_reaches_the_loop(clock: TestClock) -> None:
    gate = gate_with(clock)
    task = await started(gate.acall(TOOL, Held()))
    await asyncio.to_thread(gate.abort, "from afar")
    assert (await task).stop_reason == "aborted"


async def test_work_that_aborts_its_own_context_and_returns_has_succeeded(clock: TestClock) -> None:
    gate = gate_with(clock)

    async def work(ticket: Ticket) -> str:
        gate.abort("found what I need")
        return "result"

    outcome = await gate.acall(TOOL, work)
    assert (outcome.decision, outcome.value) == (Decision.ALLOW, "result")
    assert (await gate.acall(TOOL, answer)).stop_reason == "aborted"


async def test_work_that_aborts_its_own_context_and_goes_on_is_cancelled(clock: TestClock) -> None:
    gate = gate_with(clock)

    async def work(ticket: Ticket) -> None:
        gate.abort("never mind")
        await asyncio.Event().wait()

    assert (await gate.acall(TOOL, work)).stop_reason == "aborted"


@pytest.mark.spec("EC-029")
async def test_an_abort_after_a_limit_stop_is_still_reported(clock: TestClock) -> None:
    gate = gate_with(clock, max_steps=1)
    for _ in range(2):
        await gate.acall(TOOL, answer)
    gate.abort("and out")
    snapshot = gate.get_snapshot()
    assert (snapshot.abort_reason, snapshot.aborted) == ("step_limit_exceeded", True)
    assert [event.event_type for event in snapshot.events] == ["step_limit_exceeded", "aborted"]


@pytest.mark.spec("EC-017")
async def test_aborting_twice_keeps_the_first_reason(clock: TestClock) -> None:
    gate = gate_with(clock)
    gate.abort("first")
    gate.abort("second")
    assert len(gate.get_snapshot().events) == 1
    assert gate.stop is not None
    assert "first" in gate.stop.message


async def test_abort_reaches_children_and_theirs(clock: TestClock) -> None:
    root = gate_with(clock)
    child = root.child(unlimited())
    grandchild = child.child(unlimited())
    task = await started(grandchild.acall(TOOL, Held()))
    root.abort("all of you")
    assert (await task).stop_reason == "aborted"
    assert child.get_snapshot().aborted
    assert (await child.acall(TOOL, answer)).stop_reason == "aborted"
    assert root.child(unlimited()).stop is not None


@pytest.mark.spec("EC-010")
async def test_closing_is_not_aborting_and_a_closed_context_is_refused_loudly(clock: TestClock) -> None:
    with gate_with(clock) as gate:
        await gate.acall(TOOL, answer)
    gate.close()
    snapshot = gate.get_snapshot()
    assert (snapshot.aborted, snapshot.abort_reason, snapshot.events) == (False, None, ())
    with pytest.raises(ConfigurationError, match="closed"):
        await gate.acall(TOOL, answer)
    with pytest.raises(ConfigurationError, match="closed"):
        gate.child(unlimited())
    with pytest.raises(ConfigurationError, match="closed"):
        gate.wrap_llm_call(lambda: None)
    gate.abort("too late")
    assert not gate.get_snapshot().aborted


async def test_closing_with_work_under_way_cancels_and_settles_it(clock: TestClock) -> None:
    gate = gate_with(clock, max_cost_usd=1)
    child = gate.child(unlimited())
    mine = await started(gate.acall(costing(0.4), Held(), charged(0.3)))
    theirs = await started(child.acall(costing(0.4), Held(), charged(0.2)))
    waiting = await started(gate.acall(costing(0.4), answer))
    gate.close()
    outcomes = await asyncio.gather(mine, theirs, waiting)
    assert [outcome.decision for outcome in outcomes] == [Decision.HALT] * 3
    assert [outcome.stop_reason for outcome in outcomes] == ["aborted"] * 3
    assert gate.usage.cost_nanos == dollars(0.5)
    assert not gate.get_snapshot().aborted
    assert child.get_snapshot().aborted


async def test_a_call_that_is_admitted_while_its_context_is_being_closed_is_interrupted(
    clock: TestClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gate_with(clock)
    admit = MemoryLedger.admit

    def admit_and_close(ledger: MemoryLedger, demand: Demand, now: float, waiter: Waiter | None = None) -> Grant:
        grant = admit(ledger, demand, now, waiter)
        gate.close()
        return grant

    monkeypatch.setattr(MemoryLedger, "admit", admit_and_close)
    outcome = await gate.acall(TOOL, Held())
    assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "aborted")


async def test_a_tools_token_says_why_it_should_stop(clock: TestClock) -> None:
    gate = gate_with(clock, deadline="10s")
    held = [Held(), Held()]
    slow = await started(gate.acall(CallRequest("tool", timeout=1), held[0]))
    tokens = [held[0].tickets[0].cancellation]
    clock.advance(1)
    await slow
    other = await started(gate.acall(TOOL, held[1]))
    tokens.append(held[1].tickets[0].cancellation)
    gate.abort("the user left")
    await other
    assert [token.reason for token in tokens] == ["call_timeout", "the user left"]
    assert held[0].tickets[0].cancellation.reason == "call_timeout"


async def test_abort_never_raises_even_if_the_loop_of_a_call_is_gone(clock: TestClock) -> None:
    gate = gate_with(clock)

    def elsewhere() -> None:
        loop = asyncio.new_event_loop()
        held = Held()
        task = loop.create_task(gate.acall(TOOL, held))
        loop.run_until_complete(held.begun.wait())
        loop.close()
        gate.abort("gone")
        task.get_coro().close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be destroyed

    await asyncio.to_thread(elsewhere)
    assert gate.get_snapshot().nodes[0].status == "aborted"


# --- sync work --------------------------------------------------------------------------------------------------------


def test_sync_work_without_a_time_bound_runs_on_the_callers_thread(clock: TestClock) -> None:
    gate = gate_with(clock)
    assert gate.call_tool(threading.get_ident).value == threading.get_ident()


@pytest.mark.spec("EC-004")
def test_sync_work_that_overruns_is_left_behind_at_the_deadline_and_its_late_result_is_charged(
    clock: TestClock,
) -> None:
    gate = ExecutionContext(ExecutionConfig(10, 10, 10, timeout_ms=200), clock=clock)
    go_on, arrived = threading.Event(), threading.Event()
    tokens: list[CancellationToken] = []

    def slow(ticket: Ticket) -> str:
        tokens.append(ticket.cancellation)
        clock.advance(0.2)
        go_on.wait(30)
        ticket.charge("0.25")
        return "side effect"

    def cost_of(value: str) -> float:
        arrived.set()
        return 0.5

    outcome = gate.call_tool(slow, WrapOptions(cost_estimate_hint=1.0), cost_of=cost_of)
    assert (outcome.decision, outcome.stop_reason, outcome.value) == (Decision.HALT, "timeout", None)
    assert tokens[0].is_cancelled
    assert gate.usage.cost_nanos == dollars(1.0)
    go_on.set()
    assert arrived.wait(30)
    until_other_thread(lambda: gate.get_snapshot().nodes[0].late_result == "side effect")
    assert gate.usage.cost_nanos == dollars(0.5)
    assert gate.get_snapshot().nodes[0].status == "timeout"


def test_abort_returns_from_sync_work_on_a_worker_at_once(clock: TestClock) -> None:
    gate = ExecutionContext(ExecutionConfig(10, 10, 10, timeout_ms=60_000), clock=clock)
    go_on = threading.Event()

    def slow() -> None:
        gate.abort("stop")
        go_on.wait(30)

    outcome = gate.call_llm(slow)
    go_on.set()
    assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "aborted")
    until_other_thread(lambda: not gate.in_flight)


def test_sync_work_in_time_returns_its_value_from_the_worker(clock: TestClock) -> None:
    gate = ExecutionContext(ExecutionConfig(10, 10, 10, timeout_ms=60_000), clock=clock)
    outcome = gate.call_llm(threading.get_ident)
    assert outcome.decision is Decision.ALLOW
    assert outcome.value != threading.get_ident()


@pytest.mark.spec("EC-008")
def test_a_wrapped_calls_own_time_out_may_be_repeated(clock: TestClock) -> None:
    gate = ExecutionContext(ExecutionConfig(10, 10, max_retries_total=2, timeout_ms=0), clock=clock)
    go_on = threading.Event()

    def slow() -> None:
        clock.advance(1)
        go_on.wait(30)

    options = WrapOptions("slow", timeout_ms=1000)
    assert gate.wrap_tool_call(slow, options) is Decision.RETRY
    assert gate.wrap_tool_call(slow, options) is Decision.HALT
    go_on.set()
    assert gate.get_snapshot().retries_used == 2
    assert gate.wrap_tool_call(slow, options) is Decision.HALT
    assert gate.get_snapshot().step_count == 2


def test_an_interrupt_from_the_keyboard_is_raised_once_the_call_is_settled(clock: TestClock) -> None:
    gate = gate_with(clock)

    def interrupted(ticket: Ticket) -> None:
        ticket.charge(0.1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gate.call_llm(interrupted)
    node = gate.get_snapshot().nodes[0]
    assert (node.status, node.cost_usd) == ("aborted", 0.1)
    bounded = gate_with(clock, deadline="1h")
    with pytest.raises(SystemExit):
        bounded.call_llm(lambda: (_ for _ in ()).throw(SystemExit(3)))
    assert bounded.get_snapshot().nodes[0].status == "aborted"


class InterruptedClock(TestClock):
    """A clock on which somebody presses Ctrl-C while a thread waits for work that has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        assert self.begun.wait(30)
        raise KeyboardInterrupt


def test_an_interrupt_while_waiting_for_a_worker_leaves_the_work_behind_and_is_raised() -> None:
    clock = InterruptedClock()
    gate = gate_with(clock, deadline="1h")
    go_on = threading.Event()

    def slow() -> str:
        clock.begun.set()
        go_on.wait(30)
        return "late"

    with pytest.raises(KeyboardInterrupt):
        gate.call_llm(slow, cost_of=lambda value: 0.5)
    go_on.set()
    until_other_thread(lambda: gate.get_snapshot().nodes[0].late_result == "late")
    assert gate.usage.cost_nanos == dollars(0.5)


# --- deadlines of work, of landing, of children -----------------------------------------------------------------------


async def test_work_ends_before_the_deadline_so_that_a_landing_turn_fits(clock: TestClock) -> None:
    gate = ExecutionContext(Limits(deadline="100s", landing=Landing(time_share=0.1)), clock=clock)
    assert gate.deadline == Deadline(datetime(2026, 1, 1, 0, 1, 40, tzinfo=UTC))
    assert gate.work_deadline == Deadline(datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC))
    task = await started(gate.acall(TOOL, Held()))
    clock.advance(90)
    outcome = await task
    assert outcome.stop == gate.work_stop
    assert outcome.stop_reason == "timeout"
    assert gate.stop is None
    landing = CallRequest("llm", phase="landing")
    assert (await gate.acall(landing, answer)).decision is Decision.ALLOW
    task = await started(gate.acall(landing, Held()))
    clock.advance(10)
    assert (await task).stop_reason == "timeout"
    assert gate.stop is not None
    assert gate.stop.reason == "timeout"
    assert [event.event_type for event in gate.get_snapshot().events] == ["timeout", "timeout"]


@pytest.mark.spec("DL-007", "DL-019")
async def test_a_child_has_its_own_deadline_or_the_end_of_its_parents_work_if_that_is_earlier(
    clock: TestClock,
) -> None:
    parent = ExecutionContext(Limits(deadline="100s", landing=Landing(time_share=0.1)), clock=clock)
    assert parent.child(unlimited(deadline="30s")).deadline == Deadline(clock.now() + timedelta(seconds=30))
    late = parent.child(unlimited(deadline="5m"))
    assert late.deadline == parent.work_deadline
    none = parent.child(unlimited())
    assert none.deadline == parent.work_deadline
    task = await started(none.acall(TOOL, Held()))
    clock.advance(90)
    assert (await task).stop_reason == "timeout"


async def test_a_deadline_given_as_a_moment_is_kept_on_the_monotonic_scale(clock: TestClock) -> None:
    gate = gate_with(clock, deadline=clock.now() + timedelta(seconds=5))
    assert gate.budget_status().remaining_seconds == 5
    clock.advance(2)
    status = gate.budget_status()
    assert (status.elapsed_seconds, status.remaining_seconds, status.deadline) == (2, 3, gate.deadline)
    assert gate.elapsed_seconds == 2


async def test_a_deadline_that_is_over_is_simply_a_stop(clock: TestClock) -> None:
    gate = ExecutionContext(Limits(deadline=clock.now() - timedelta(seconds=1)), clock=clock)
    outcome = await gate.acall(TOOL, answer)
    assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "timeout")
    assert outcome.stop is not None
    assert outcome.stop.limit == "deadline"
    assert gate.budget_status().remaining_seconds == 0
