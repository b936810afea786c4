"""What was not begun when its time was over, or its context was ended, never begins, costs nothing, and says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.containment.gates import costing, dollars, settle, started, unlimited
from tests.kit import Call, Report, Say, agent, events, play
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import Admitted
from watchkeeper.accounting.ledger import Grant, MemoryLedger, Waiter
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import CALL_TIMEOUT, Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core import workers
from watchkeeper.core.clock import TestClock
from watchkeeper.core.workers import Job
from watchkeeper.shield.circuit_breaker import CircuitBreaker
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.isolation import call as isolation
from watchkeeper.tools.tool import Tool, tool

CONFIG = ExecutionConfig(max_cost_usd=1, max_steps=10, max_retries_total=5, timeout_ms=1000)
HINT = WrapOptions("work", cost_estimate_hint=0.4)


class BusyPool:
    """Workers that are all busy: it takes jobs, and begins them when the test lets it, after the time has passed."""

    def __init__(self, clock: TestClock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self.jobs: list[Job[Any]] = []

    def run(self, job: Job[Any]) -> None:
        self.jobs.append(job)
        self.clock.advance(self.seconds)

    def release(self) -> None:
        while self.jobs:
            self.jobs.pop(0).run()


class LatePool(BusyPool):
    """Workers that begin each job after the time has passed, before whoever waits for it looks up."""

    def run(self, job: Job[Any]) -> None:
        super().run(job)
        self.release()


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


def busy(monkeypatch: pytest.MonkeyPatch, clock: TestClock, seconds: float, pool: type[BusyPool]) -> BusyPool:
    made = pool(clock, seconds)
    monkeypatch.setattr(workers, "WORKERS", made)
    monkeypatch.setattr(isolation, "WORKERS", made)
    return made


def is_free(gate: ExecutionContext) -> bool:
    return gate.account.reserved == [0] * 7


@pytest.mark.spec("EC-004", "EC-018", "EC-019")
@pytest.mark.parametrize("pool", [BusyPool, LatePool])
@pytest.mark.parametrize(
    ("options", "decision", "reason"),
    [
        (HINT, Decision.HALT, "timeout"),
        (WrapOptions("work", cost_estimate_hint=0.4, timeout_ms=10), Decision.RETRY, CALL_TIMEOUT),
    ],
)
def test_a_function_that_was_not_begun_in_time_never_begins(
    monkeypatch: pytest.MonkeyPatch,
    clock: TestClock,
    pool: type[BusyPool],
    options: WrapOptions,
    decision: Decision,
    reason: str,
) -> None:
    waiting = busy(monkeypatch, clock, 0.01 if options.timeout_ms else 1, pool)
    gate, begun, metered = ExecutionContext(CONFIG, clock=clock), list[str](), list[Any]()

    def cost_of(value: object) -> float:
        metered.append(value)
        return 0.3

    outcome = gate.call_llm(lambda: begun.append("first"), options, cost_of=cost_of)
    waiting.release()
    assert (begun, metered) == ([], [])
    assert (outcome.decision, outcome.stop_reason, outcome.admitted) == (decision, reason, False)
    node = gate.get_snapshot().nodes[0]
    assert (node.status, node.cost_usd, gate.usage.cost_nanos) == ("timeout", 0.0, 0)
    assert "had not begun" in (node.error or "")
    assert "never will" in (node.error or "")
    assert is_free(gate)


def test_hooks_and_breaker_count_nothing_for_what_never_began(
    monkeypatch: pytest.MonkeyPatch, clock: TestClock
) -> None:
    released: list[ToolCallContext] = []

    class Window:
        def before_llm_call(self, ctx: ToolCallContext) -> None:
            return None

        def release(self, ctx: ToolCallContext) -> None:
            released.append(ctx)

        def on_error(self, ctx: ToolCallContext, err: BaseException) -> Decision | None:
            raise AssertionError("it did not fail, it never began")

    hook, breaker = Window(), CircuitBreaker(1, clock=clock)
    gate = ExecutionContext(
        CONFIG, ShieldPipeline(pre_dispatch=hook, retry=hook, clock=clock), circuit_breaker=breaker, clock=clock
    )
    waiting = busy(monkeypatch, clock, 0.01, BusyPool)
    assert gate.wrap_llm_call(lambda: None, WrapOptions("work", timeout_ms=10)) is Decision.RETRY
    waiting.release()
    assert len(released) == 1
    assert breaker.state == "CLOSED"


def test_a_hook_that_was_not_asked_in_time_is_never_asked(monkeypatch: pytest.MonkeyPatch, clock: TestClock) -> None:
    asked: list[ToolCallContext] = []

    class Person:
        blocks_for = "5s"

        def before_tool_call(self, ctx: ToolCallContext) -> Decision:
            asked.append(ctx)
            return Decision.ALLOW

    gate = ExecutionContext(CONFIG, ShieldPipeline(tool_dispatch=Person(), clock=clock), clock=clock)
    waiting = busy(monkeypatch, clock, 1, BusyPool)
    assert gate.wrap_tool_call(lambda: asked.clear()) is Decision.HALT
    waiting.release()
    assert asked == []
    assert is_free(gate)


class EndingLedger(MemoryLedger):
    """Ends the context at the moment at which a call is admitted, before its work begins."""

    end: Callable[[], None] | None = None

    def admit(self, demand: Demand, now: float, waiter: Waiter | None = None) -> Grant:
        grant = super().admit(demand, now, waiter)
        if isinstance(grant, Admitted) and self.end is not None:
            self.end()
        return grant


@pytest.mark.parametrize("end", ["abort", "close"])
async def test_a_context_that_ends_while_a_call_is_admitted_begins_nothing(clock: TestClock, end: str) -> None:
    begun: list[str] = []

    async def work(ticket: Ticket) -> None:
        begun.append("async")

    for plain in (False, True):
        ledger = EndingLedger()
        gate = ExecutionContext(unlimited(max_cost_usd=1), ledger=ledger, clock=clock)
        ledger.end = (lambda gate=gate: gate.abort("enough")) if end == "abort" else gate.close
        request = costing(0.4)
        outcome: Outcome[Any]
        if plain:
            outcome = gate.call(request, lambda ticket: begun.append("plain"))
        else:
            outcome = await gate.acall(request, work)
        assert (outcome.decision, outcome.stop_reason, outcome.admitted) == (Decision.HALT, "aborted", False)
        node = gate.get_snapshot().nodes[0]
        assert (node.status, node.cost_usd) == ("aborted", 0.0)
        assert "never begun" in (node.error or "")
        assert is_free(gate)
    assert begun == []


def test_what_a_function_spent_that_had_begun_is_still_charged(
    monkeypatch: pytest.MonkeyPatch, clock: TestClock
) -> None:
    class BegunPool(BusyPool):
        def run(self, job: Job[Any]) -> None:
            self.jobs.append(job)
            self.release()

    busy(monkeypatch, clock, 0, BegunPool)
    gate = ExecutionContext(CONFIG, clock=clock)
    outcome = gate.call_llm(lambda: clock.advance(2), HINT)
    assert (outcome.stop_reason, outcome.admitted) == ("timeout", True)
    assert gate.usage.cost_nanos == dollars(0.4)


# --- in runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [BusyPool, LatePool])
async def test_a_tool_that_was_not_begun_in_time_never_begins(
    monkeypatch: pytest.MonkeyPatch, clock: TestClock, pool: type[BusyPool]
) -> None:
    begun: list[str] = []

    @tool(timeout="3s")
    def work() -> str:
        """Work."""
        begun.append("it")
        return "done"

    waiting = busy(monkeypatch, clock, 3, pool)
    result = await play(agent(work), [Call("work"), Say(Report(0))], clock=clock)
    waiting.release()
    assert [invoked.outcome for invoked in events(result, ToolInvoked)] == ["timeout"]
    assert begun == []


async def test_an_isolated_tool_whose_process_was_not_started_in_time_never_starts(
    monkeypatch: pytest.MonkeyPatch, clock: TestClock
) -> None:
    started: list[object] = []

    def start(*given: object) -> None:
        started.append(given)

    monkeypatch.setattr(isolation, "start_guard", start)
    work: Tool = tool(isolation="process", timeout="3s", name="work")(do_nothing)
    waiting = busy(monkeypatch, clock, 3, BusyPool)
    result = await play(agent(work), [Call("work"), Say(Report(0))], clock=clock)
    waiting.release()
    await settle()
    assert [invoked.outcome for invoked in events(result, ToolInvoked)] == ["timeout"]
    assert started == []


def do_nothing() -> str:
    """Do nothing, in a process of its own."""
    return "done"


async def test_what_is_closed_when_its_time_is_over_is_closed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, clock: TestClock
) -> None:
    waiting, ended = busy(monkeypatch, clock, 0, BusyPool), list[str]()
    for must_run in (False, True):
        end = partial(ended.append, str(must_run))
        task = asyncio.ensure_future(workers.run_in_worker(end, must_run=must_run))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    waiting.release()
    assert ended == ["True"]


# --- calls inside a call whose time is over ---------------------------------------------------------------------------


async def test_a_call_is_not_begun_inside_one_that_overran_its_time(clock: TestClock) -> None:
    gate, begun, said = ExecutionContext(CONFIG, clock=clock), list[str](), list[Outcome[None]]()
    go_on = asyncio.Event()

    async def inner() -> None:
        begun.append("inner")

    async def in_the_background() -> None:
        await go_on.wait()
        said.append(await gate.acall_tool(inner))

    async def outer() -> None:
        task = asyncio.ensure_future(in_the_background())
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(task)
        said.append(await gate.acall_tool(inner))

    call = await started(gate.acall_tool(outer, WrapOptions("outer", timeout_ms=100)))
    for seconds in (0.1, 0.02):  # its time, and its grace
        clock.advance(seconds)
        await settle()
    outcome = await call
    assert outcome.decision is Decision.RETRY
    go_on.set()
    await settle()
    assert begun == []
    refused = (Decision.HALT, False, "aborted")
    assert [(each.decision, each.admitted, each.stop_reason) for each in said] == [refused] * 2
    assert str(said[0].stop) == "The time of outer, inside which the call was made, is over."
    assert gate.usage.steps == 1
    assert gate.wrap_tool_call(lambda: None) is Decision.ALLOW


def test_a_plain_call_is_not_begun_inside_one_that_overran_its_time(clock: TestClock) -> None:
    gate, begun = ExecutionContext(CONFIG, clock=clock), list[str]()
    left, ended = threading.Event(), threading.Event()

    def outer() -> Decision:
        clock.advance(0.2)
        left.wait(30)
        try:
            with ExecutionContext(CONFIG, parent=None) as apart:
                assert apart.wrap_tool_call(lambda: begun.append("apart")) is Decision.ALLOW
            return gate.wrap_tool_call(lambda: begun.append("inner"))
        finally:
            ended.set()

    assert gate.wrap_tool_call(outer, WrapOptions("outer", timeout_ms=100)) is Decision.RETRY
    left.set()
    assert ended.wait(30)
    assert begun == ["apart"]
