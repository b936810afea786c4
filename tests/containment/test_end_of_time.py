"""When the time of a context is over it says so, whether somebody asks or not, and cancels its token."""

from __future__ import annotations

import gc
import sys
import weakref
from datetime import timedelta
from typing import Any

import pytest

from tests.containment.gates import TOOL, Held, answer, gate_with, started, unlimited
from tests.kit import collect_garbage
from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.accounting.limits import Landing, Limits, Verdict
from watchkeeper.containment.config import ExecutionConfig
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.clock import ALARMS, TestClock
from watchkeeper.shield.decision import Decision, SafetyEvent

PATIENCE = 30.0
BRIEF = ExecutionConfig(max_cost_usd=1, max_steps=10, max_retries_total=5, timeout_ms=20)


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


def types(events: list[SafetyEvent]) -> list[str]:
    return [event.event_type for event in events]


@pytest.mark.spec("EC-004", "EC-005", "EC-025", "EC-029")
def test_an_idle_chain_says_that_its_time_is_over(clock: TestClock) -> None:
    told: list[SafetyEvent] = []
    gate = ExecutionContext(BRIEF, clock=clock, on_event=told.append)
    clock.advance(0.02)
    seen = gate.get_snapshot()
    assert (seen.abort_reason, seen.aborted, types(list(seen.events))) == ("timeout", False, ["timeout"])
    assert (types(told), told[0].decision) == (["timeout"], Decision.HALT)
    assert gate.stop == seen.stop
    assert gate.snapshot_at_stop is not None
    assert (gate.cancellation.is_cancelled, gate.cancellation.reason) == (True, "timeout")
    assert gate.wrap_tool_call(lambda: None) is Decision.HALT
    gate.abort("too late for that")
    assert gate.get_snapshot().abort_reason == "timeout"
    assert types(told) == ["timeout"]


def test_so_does_one_on_the_machines_clock() -> None:
    told: list[SafetyEvent] = []
    with ExecutionContext(BRIEF, on_event=told.append) as gate:
        assert gate.cancellation.wait(PATIENCE)
        assert gate.cancellation.reason == "timeout"
        assert gate.get_snapshot().abort_reason == "timeout"
        assert types(told) == ["timeout"]


@pytest.mark.spec("EC-032")
def test_a_function_that_looks_at_the_contexts_own_token_stops() -> None:
    with ExecutionContext(BRIEF) as gate:
        stopped: list[bool] = []
        assert gate.wrap_tool_call(lambda: stopped.append(gate.cancellation.wait(PATIENCE))) is Decision.HALT
        assert gate.cancellation.is_cancelled


async def test_so_does_async_work_that_holds_the_loop() -> None:
    async def work(ticket: Ticket) -> bool:
        begun.append(ticket)
        return gate.cancellation.wait(PATIENCE)

    begun, timeout_ms = list[Ticket](), 20
    while not begun:  # on a busy machine a short time is over before the work begins
        with ExecutionContext(ExecutionConfig(1, 10, 5, timeout_ms)) as gate:
            outcome = await gate.acall(TOOL, work)
        if begun:
            assert (outcome.value, outcome.stop_reason) == (True, "timeout")
        timeout_ms *= 4


async def test_a_landing_turn_comes_first(clock: TestClock) -> None:
    told: list[SafetyEvent] = []
    limits = Limits(deadline="100s", landing=Landing(time_share=0.1))
    gate = ExecutionContext(limits, clock=clock, on_event=told.append)
    clock.advance(90)
    assert gate.work_stop is not None
    assert (gate.work_stop.reason, gate.stop, gate.cancellation.is_cancelled) == ("timeout", None, False)
    landing = CallRequest("llm", phase="landing")
    assert (await gate.acall(landing, answer)).decision is Decision.ALLOW
    clock.advance(10)
    assert gate.stop is not None
    assert (gate.stop.reason, gate.cancellation.reason) == ("timeout", "timeout")
    assert types(told) == ["timeout"]


async def test_so_does_a_verdict(clock: TestClock) -> None:
    gate = ExecutionContext(unlimited(deadline="100s", max_cost_usd=1, verdict=Verdict()), clock=clock)
    verdict = gate.keep_verdict()
    assert verdict is not None
    kept = gate.account.deadline_at - gate.account.work_until
    assert kept > 0
    clock.advance(100 - kept)
    assert gate.work_stop is not None
    assert not gate.cancellation.is_cancelled
    assert (await verdict.acall(CallRequest("llm"), answer)).decision is Decision.ALLOW
    clock.advance(kept)
    assert (gate.cancellation.reason, verdict.cancellation.reason) == ("timeout", "timeout")
    assert gate.get_snapshot().aborted is verdict.get_snapshot().aborted is False


async def test_it_reaches_what_stands_below(clock: TestClock) -> None:
    told: list[SafetyEvent] = []
    gate = ExecutionContext(BRIEF, clock=clock)
    child = gate.child(Limits(), "below", on_event=told.append)
    held = Held()
    task = await started(child.acall(TOOL, held))
    clock.advance(0.02)
    outcome = await task
    assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "timeout")
    assert held.tickets[0].cancellation.reason == "timeout"
    assert child.cancellation.reason == "timeout"
    seen = child.get_snapshot()
    assert (seen.abort_reason, seen.aborted) == ("timeout", False)
    assert types(told) == ["timeout"]
    late = gate.child(Limits(), "born late")
    assert late.get_snapshot().abort_reason == "timeout"


def test_a_context_that_was_aborted_or_closed_says_nothing_more(clock: TestClock) -> None:
    told: list[SafetyEvent] = []
    aborted = ExecutionContext(BRIEF, clock=clock, on_event=told.append)
    aborted.abort("enough")
    closed = ExecutionContext(BRIEF, clock=clock, on_event=told.append)
    closed.close()
    clock.advance(1)
    assert types(told) == ["aborted"]
    assert closed.get_snapshot().abort_reason is None
    assert aborted.cancellation.reason == "enough"


def test_the_clock_keeps_no_context_alive() -> None:
    collect_garbage()  # what earlier tests left behind has alarms, too
    gc.disable()
    try:
        before = ALARMS.pending
        gates = [ExecutionContext(Limits(deadline="1h")) for _ in range(100)]
        assert ALARMS.pending >= before + 100
        refs = [weakref.ref(gate) for gate in gates]
        gates.clear()
        assert not any(ref() for ref in refs)
        assert ALARMS.pending <= before
    finally:
        gc.enable()


# --- an abort by a signal handler -------------------------------------------------------------------------------------


def test_an_abort_by_a_signal_handler_is_safe_wherever_it_interrupts_a_call() -> None:
    """A trace function stands in for the handler: it, too, runs in the middle of the interrupted thread's code."""

    def work(ticket: Ticket) -> bool:
        return ticket.cancellation.wait(0)

    def interrupt_at(place: int) -> bool:
        gate, lines = ExecutionContext(Limits(deadline="1m", landing=None)), iter(range(10_000))

        def handler(frame: Any, event: str, _: object) -> Any:
            if frame.f_code.co_filename.endswith(("threading.py", "workers.py", "cancellation.py")):
                if event == "line" and next(lines) == place:
                    gate.abort("SIGTERM")
                return handler
            return handler

        before = sys.gettrace()
        sys.settrace(handler)
        try:
            gate.call_tool(work)
        finally:
            sys.settrace(before)
        interrupted = next(lines) > place
        assert (gate.stop is not None and gate.stop.reason == "aborted") == interrupted
        gate.close()
        return interrupted

    assert any(not interrupt_at(place) for place in range(400))


@pytest.mark.parametrize(
    ("own", "landing", "said"),
    [
        (None, None, "The whole run reached its deadline of 40m."),
        ("20m", None, "The whole run reached its deadline of 40m."),
        ("10m", None, "The run 'below' reached its deadline of 10m."),
        ("5m", None, "The run 'below' reached its deadline of 5m."),
        (
            None,
            Landing(),
            "The whole run reached its deadline of 40m; the last 30s are kept for last turns and verdicts.",
        ),
    ],
)
def test_what_ends_with_the_whole_names_the_deadline_of_the_whole(
    clock: TestClock, own: str | None, landing: Landing | None, said: str
) -> None:
    root = gate_with(clock, deadline="40m")
    clock.advance(1800)
    below = root.child(unlimited(deadline=own, landing=landing), "below")
    innermost = below.child(unlimited(deadline=None, landing=None))
    clock.advance(600 if own != "5m" else 300)
    stop = innermost.call(TOOL, lambda _: None).stop
    assert stop is not None
    assert stop.message == said
    assert stop.value == said.partition("deadline of ")[2].partition(";")[0].rstrip(".")


def test_so_does_one_that_ends_at_a_moment(clock: TestClock) -> None:
    root = gate_with(clock, deadline=clock.now() + timedelta(minutes=40), landing=Landing())
    clock.advance(1500)
    below = root.child(unlimited(deadline="1h", landing=None), "below")
    clock.advance(840)
    stop = below.call(TOOL, lambda _: None).stop
    assert stop is not None
    assert stop.message == (
        "The whole run reached its deadline of 40m; the last 1m are kept for last turns and verdicts."
    )
