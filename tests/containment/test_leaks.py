"""A context that is closed leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

from tests.containment.gates import TOOL, Held, answer, costing, gate_with, settle, started, unlimited
from watchkeeper.containment.account import STEPS
from watchkeeper.containment.call import CallRequest, Ticket
from watchkeeper.containment.config import ExecutionConfig
from watchkeeper.containment.decision import Decision
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.flight import CURRENT
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.limits import Landing, Limits


def timers() -> int:
    """Timers of the running loop that have not been cancelled."""
    loop: Any = asyncio.get_running_loop()
    return sum(not handle.cancelled() for handle in loop._scheduled)


async def test_ten_thousand_contexts_with_hour_long_time_outs_leave_nothing_behind() -> None:
    async def work(ticket: Ticket) -> None:
        await asyncio.sleep(0)

    threads, before = threading.active_count(), (timers(), len(asyncio.all_tasks()))
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
    finally:
        gc.enable()
    assert [ref for ref in contexts + tickets if ref() is not None] == []
    assert (timers(), len(asyncio.all_tasks())) == before
    assert threading.active_count() <= threads  # idle workers of earlier tests may have ended meanwhile
    assert CURRENT.get() is None


def test_ten_thousand_contexts_with_time_bounded_sync_calls_leave_no_threads_behind() -> None:
    before = threading.active_count()
    for number in range(10_000):
        with ExecutionContext(ExecutionConfig(1, 10, 3, timeout_ms=3_600_000)) as context:
            if number % 10 == 0:
                context.wrap_tool_call(lambda: None)
    assert threading.active_count() <= before + 2  # idle workers, which end by themselves
    assert CURRENT.get() is None


async def test_a_waiting_call_that_was_cancelled_leaves_nothing_behind() -> None:
    gate = gate_with(SYSTEM_CLOCK, max_cost_usd=1, deadline="1h")
    held = Held()
    before = timers()
    first = await started(gate.acall(costing(0.9), held))
    waiting = [await started(gate.acall(costing(0.9), answer)) for _ in range(100)]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    held.let_go.set()
    await first
    assert timers() == before
    ledger: Any = gate._tree.ledger  # pyright: ignore[reportPrivateUsage]
    assert (ledger._waiters, ledger._reserving, ledger._holding) == ([], set(), set())
    assert gate._account.reserved == [0] * 7  # pyright: ignore[reportPrivateUsage]
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
    gc.collect()
    assert gone() is None


async def test_a_context_that_nobody_closed_is_collected_and_gives_back_what_it_holds() -> None:
    root = gate_with(SYSTEM_CLOCK, deadline="1h", max_steps=10)
    child = root.child(unlimited(landing=Landing()))
    await child.acall(TOOL, answer)
    account = root._account  # pyright: ignore[reportPrivateUsage]
    assert account.reserved[STEPS] == 1
    gone = [weakref.ref(root), weakref.ref(child)]
    del root
    assert (await child.acall(TOOL, answer)).decision is Decision.ALLOW  # a child keeps what it depends on
    del child
    gc.collect()
    assert [ref for ref in gone if ref() is not None] == []
    assert account.reserved == [0] * 7
