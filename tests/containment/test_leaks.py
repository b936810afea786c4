"""A context that is closed leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from functools import partial
from typing import Any

import pytest

from tests.containment.gates import (
    TOOL,
    Held,
    answer,
    costing,
    gate_with,
    settle,
    started,
    unlimited,
    until_other_thread,
)
from tests.kit import collect_garbage
from watchkeeper.accounting.account import STEPS
from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.accounting.limits import Landing, Limits
from watchkeeper.containment.config import ExecutionConfig
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import CURRENT_CALL, Ticket
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.workers import WORKERS
from watchkeeper.shield.circuit_breaker import CircuitBreakers, CircuitState
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline


def timers_now() -> int:
    """As ``timers``, once what earlier tests left for the collector is gone: it may run while something is counted."""
    collect_garbage()
    return timers()


def timers() -> int:
    """Timers that somebody holds and nobody has cancelled."""
    return sum(isinstance(each, asyncio.TimerHandle) and not each.cancelled() for each in gc.get_objects())


@pytest.mark.no_cover
@pytest.mark.spec("EC-010")
async def test_ten_thousand_contexts_with_hour_long_time_outs_leave_nothing_behind() -> None:
    async def work(ticket: Ticket) -> None:
        await asyncio.sleep(0)

    threads, before = threading.active_count(), (timers_now(), len(asyncio.all_tasks()))
    contexts: list[weakref.ref[ExecutionContext]] = []
    tickets: list[weakref.ref[Any]] = []
    gc.disable()  # what is left must go by itself, not by the collector
    try:
        for number in range(10_000):
            with ExecutionContext(Limits(deadline="1h")) as context, context.child(Limits()) as child:
                if number % 100 == 0:
                    contexts.append(weakref.ref(context))
                    contexts.append(weakref.ref(child))
                    tickets.append(weakref.ref(context.cancellation))
                    await context.acall(CallRequest("child", timeout=3600), work)
                    await child.acall(TOOL, answer)
            del context, child
        left = sum(ref() is not None for ref in contexts + tickets)
    finally:
        gc.enable()
    assert left == 0
    assert (timers(), len(asyncio.all_tasks())) == before
    until_other_thread(lambda: threading.active_count() <= threads)  # the one that told the time ends by itself
    assert CURRENT_CALL.get() is None


class Window:
    """A hook that counts the calls under it and forgets those that did not run, as the shipped ones do."""

    def __init__(self) -> None:
        self.seen = 0

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        self.seen += 1
        return Decision.HALT if ctx.tool_name == "refused" else None

    def before_tool_call(self, ctx: ToolCallContext) -> None:
        self.seen += 1

    def on_error(self, ctx: ToolCallContext, err: BaseException) -> None:
        self.seen += 1


@pytest.mark.no_cover
async def test_ten_thousand_contexts_with_hooks_a_breaker_and_children_leave_nothing_behind() -> None:
    """What they share, pipeline and breaker, outlives them and keeps none of them."""
    hook = Window()
    pipeline = ShieldPipeline(pre_dispatch=hook, tool_dispatch=hook, retry=hook)
    breakers = CircuitBreakers(failure_threshold=3, recovery_timeout="1h")
    ask = CallRequest("llm", provider="provider")

    async def flaky(ticket: Ticket) -> None:
        await asyncio.sleep(0)
        raise ConnectionError("down")

    async def nested(below: ExecutionContext, ticket: Ticket) -> None:
        await below.acall(ask, answer)
        await below.acall(CallRequest("tool", spends_retry_on_error=True), flaky)

    threads, before = threading.active_count(), (timers_now(), len(asyncio.all_tasks()))
    gone: list[weakref.ref[Any]] = []
    accounts: list[weakref.ref[Any]] = []
    gc.disable()  # what is left must go by itself, not by the collector
    try:
        for number in range(10_000):
            limits = Limits(deadline="1h", max_cost_usd=1)
            context = ExecutionContext(limits, pipeline, circuit_breaker=breakers)
            with context, context.child(Limits()) as child:
                if number % 100 == 0:
                    gone.extend(weakref.ref(kept) for kept in (context, child, context.cancellation))
                    accounts.append(weakref.ref(context.account))
                    await context.acall(CallRequest("llm", "refused"), answer)
                    await context.acall(
                        CallRequest("llm", "nested", spends_retry_on_error=True), partial(nested, child)
                    )
                    if number % 1000 == 0:
                        await child.acall(CallRequest("llm", provider="down"), flaky)
            del context, child
        left = sum(ref() is not None for ref in gone)
    finally:
        gc.enable()
    assert left == 0
    collect_garbage()  # an account is the first of its own chain: it takes the collector
    assert sum(ref() is not None for ref in accounts) == 0
    assert (timers(), len(asyncio.all_tasks())) == before
    until_other_thread(lambda: threading.active_count() <= threads)  # the one that told the time ends by itself
    assert CURRENT_CALL.get() is None
    assert breakers.states() == {"provider": CircuitState.CLOSED, "down": CircuitState.OPEN}
    assert hook.seen > 400


@pytest.mark.no_cover
def test_ten_thousand_contexts_with_time_bounded_sync_calls_leave_no_threads_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WORKERS, "idle_seconds", 0.1)
    before = threading.active_count()
    for number in range(10_000):
        with ExecutionContext(ExecutionConfig(1, 10, 3, timeout_ms=3_600_000)) as context:
            if number % 10 == 0:
                context.wrap_tool_call(lambda: None)
    until_other_thread(lambda: threading.active_count() <= before)  # idle workers end by themselves
    assert CURRENT_CALL.get() is None


async def test_a_waiting_call_that_was_cancelled_leaves_nothing_behind() -> None:
    gate = gate_with(SYSTEM_CLOCK, max_cost_usd=1, deadline="1h")
    held = Held()
    before = timers_now()
    first = await started(gate.acall(costing(0.9), held))
    waiting = [await started(gate.acall(costing(0.9), answer)) for _ in range(100)]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    held.let_go.set()
    await first
    assert timers() == before
    assert isinstance(gate.ledger, MemoryLedger)
    assert gate.ledger.is_idle
    assert gate.account.reserved == [0] * 7
    gate.close()


async def test_closing_lets_go_of_work_that_was_left_behind() -> None:
    clock = TestClock()
    gate = gate_with(clock)
    finish = asyncio.Event()

    async def stubborn(ticket: Ticket) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await finish.wait()

    task = await started(gate.acall(CallRequest("tool", timeout=1), stubborn))
    clock.advance(1)
    await settle()
    clock.advance(1)
    await task
    assert len(asyncio.all_tasks()) == 2
    gate.close()
    await settle()
    assert len(asyncio.all_tasks()) == 1
    gone = weakref.ref(gate)
    del gate, task
    collect_garbage()
    assert gone() is None


async def test_a_context_that_nobody_closed_is_collected_and_gives_back_what_it_holds() -> None:
    root = gate_with(SYSTEM_CLOCK, deadline="1h", max_steps=10)
    child = root.child(unlimited(landing=Landing()))
    await child.acall(TOOL, answer)
    account = root.account
    assert account.reserved[STEPS] == 1
    gone = [weakref.ref(root), weakref.ref(child)]
    del root
    assert (await child.acall(TOOL, answer)).decision is Decision.ALLOW  # a child keeps what it depends on
    del child
    collect_garbage()
    assert [ref for ref in gone if ref() is not None] == []
    assert account.reserved == [0] * 7
