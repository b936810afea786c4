"""Limits hold exactly, however many threads and tasks race for them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.containment.gates import charged, costing, dollars, gate_with, race, unlimited
from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.usage import TokenUsage
from watchkeeper.shield.decision import Decision


class Count:
    """Counts executions under threads."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self) -> int:
        with self._lock:
            self.value += 1
            return self.value


def until_halt(call: Callable[[], Decision]) -> None:
    while call() is not Decision.HALT:
        pass


@pytest.mark.spec("EC-003", "FR-028")
@pytest.mark.parametrize("steps", [1, 500])
def test_sixty_four_threads_execute_exactly_as_many_calls_as_there_are_steps(steps: int) -> None:
    executed = Count()
    config = ExecutionConfig(max_cost_usd=1000, max_steps=steps, max_retries_total=1000, timeout_ms=0)
    with ExecutionContext(config) as context:
        race(lambda _: until_halt(lambda: context.wrap_llm_call(executed.add)))
        snapshot = context.get_snapshot()
    assert executed.value == steps
    assert snapshot.step_count == steps
    assert snapshot.abort_reason == "step_limit_exceeded"
    assert [event.event_type for event in snapshot.events] == ["step_limit_exceeded"]


@pytest.mark.spec("EC-001")
def test_failures_never_exceed_the_retries_even_if_all_threads_fail_at_once() -> None:
    executed = Count()
    config = ExecutionConfig(max_cost_usd=1000, max_steps=100_000, max_retries_total=10, timeout_ms=0)

    def fail() -> None:
        executed.add()
        raise ValueError("flaky")

    with ExecutionContext(config) as context:
        race(lambda _: until_halt(lambda: context.wrap_llm_call(fail)))
        snapshot = context.get_snapshot()
    assert executed.value == 10
    assert snapshot.retries_used == 10


def test_repeated_calls_never_exceed_the_retries() -> None:
    executed = Count()
    context = gate_with(SYSTEM_CLOCK, max_retries=10)
    race(lambda _: until_halt(lambda: context.call(CallRequest("tool", retry=True), lambda _: executed.add()).decision))
    assert executed.value == 10
    assert context.usage.retries == 10
    context.close()


@pytest.mark.spec("EC-002")
@pytest.mark.parametrize("children", [False, True])
@pytest.mark.parametrize("seeds", [range(start, start + 250) for start in range(0, 1000, 250)])
async def test_a_cost_ceiling_is_never_exceeded_by_a_cent_in_any_interleaving(seeds: range, children: bool) -> None:
    for seed in seeds:
        await interleave(seed, children=children)


async def interleave(seed: int, *, children: bool) -> None:
    """Race calls with known worst cases under $5.00; whatever is spent is at most what was reserved for it."""
    rng = random.Random(seed)
    spent = 0
    root = gate_with(SYSTEM_CLOCK, max_cost_usd=5, max_total_tokens=rng.choice([None, 20_000]))
    shares = [unlimited(max_cost_usd=rng.choice([None, 1, 4.999])) for _ in range(4)]
    gates = [root.child(share, carve=False) for share in shares] if children else [root]

    async def agent(gate: ExecutionContext) -> None:
        for _ in range(30):
            estimate = Estimate(rng.randrange(200), 400, rng.randrange(1, 100), rng.randrange(10**8), 10**6)
            outcome = await gate.acall(CallRequest("llm", estimate=estimate), work, meter_of(estimate))
            if outcome.decision is Decision.HALT:
                return

    async def work(ticket: Ticket) -> int:
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        if rng.random() < 0.1:
            raise ValueError("flaky")
        return ticket.max_output_tokens

    def meter_of(estimate: Estimate) -> Callable[[int | None, BaseException | None, Ticket], Charge]:
        def meter(value: int | None, error: BaseException | None, ticket: Ticket) -> Charge:
            nonlocal spent
            output = rng.randint(0, ticket.max_output_tokens)
            nanos = rng.choice([estimate.nanos(ticket.max_output_tokens), rng.randint(0, estimate.nanos(output))])
            spent += nanos
            return Charge(TokenUsage(estimate.input_tokens, output), nanos)

        return meter

    async with asyncio.timeout(30):
        await asyncio.gather(*(agent(rng.choice(gates)) for _ in range(8)))
    assert spent <= dollars(5)
    assert root.usage.cost_nanos == spent
    ceiling = root.limits.ceiling("max_total_tokens")
    assert ceiling is None or root.usage.tokens.total <= ceiling
    root.close()


@pytest.mark.parametrize("children", [False, True])
def test_threads_never_overspend_and_all_of_them_come_home(children: bool) -> None:
    """Sync calls that have to wait for each other's reservations are woken, admitted or refused; none is forgotten."""
    root = gate_with(SYSTEM_CLOCK, max_cost_usd=5)
    gates = [root.child(unlimited(max_cost_usd=4), carve=False) for _ in range(4)] if children else [root]

    def agent(number: int) -> None:
        rng = random.Random(number)
        gate = gates[number % len(gates)]
        while True:
            worst, real = 0.40, rng.choice([0.0, 0.05, 0.40])
            if gate.call(costing(worst), lambda _: None, charged(real)).decision is Decision.HALT:
                return

    race(agent, 32)
    spent = root.usage.cost_nanos
    assert spent is not None
    assert dollars(5) - dollars(0.40) < spent <= dollars(5)
    assert root.get_snapshot().step_count == root.usage.model_calls
    root.close()


def test_threads_and_a_time_out_keep_the_steps_exact() -> None:
    """Calls on worker threads are admitted like all others."""
    executed = Count()
    config = ExecutionConfig(max_cost_usd=1000, max_steps=100, max_retries_total=1000, timeout_ms=60_000)
    with ExecutionContext(config) as context:
        race(lambda _: until_halt(lambda: context.wrap_tool_call(executed.add)), 16)
    assert executed.value == 100


async def test_tasks_and_threads_share_one_ceiling() -> None:
    gate = gate_with(SYSTEM_CLOCK, max_steps=200)
    executed = Count()

    async def task() -> None:
        async def work(ticket: Ticket) -> None:
            executed.add()
            await asyncio.sleep(0)

        while (await gate.acall(CallRequest("tool"), work)).decision is Decision.ALLOW:
            pass

    def thread() -> None:
        until_halt(lambda: gate.call(CallRequest("tool"), lambda _: executed.add()).decision)

    await asyncio.gather(*(task() for _ in range(8)), *(asyncio.to_thread(thread) for _ in range(8)))
    assert executed.value == 200
    gate.close()


def test_an_abort_during_a_race_lets_nothing_start_afterwards() -> None:
    gate = gate_with(SYSTEM_CLOCK)
    running, after = Count(), Count()
    aborted = threading.Event()

    def work() -> None:
        if aborted.is_set():
            after.add()
        if running.add() == 200:
            gate.abort("enough")
            aborted.set()

    race(lambda _: until_halt(lambda: gate.call_tool(work).decision), 16)
    # What was admitted before the abort may still have begun after it; nothing was admitted later.
    assert after.value < 16
    assert gate.stop is not None
    assert gate.stop.reason == "aborted"
    gate.close()


async def test_gathered_calls_of_one_context_wait_for_each_other_and_all_end() -> None:
    gate = gate_with(SYSTEM_CLOCK, max_cost_usd=1)

    async def answer(ticket: Ticket) -> None:
        await asyncio.sleep(0)

    outcomes: list[Outcome[Any]] = await asyncio.gather(
        *(gate.acall(costing(0.30), answer, charged(0.05)) for _ in range(50))
    )
    allowed = [outcome for outcome in outcomes if outcome.decision is Decision.ALLOW]
    assert len(allowed) == 15  # 15 * 0.05 = 0.75 leaves 0.25, which is less than the next worst case
    assert gate.usage.cost_nanos == dollars(0.75)
    gate.close()


def test_wrapped_calls_with_hints_stay_under_the_ceiling() -> None:
    executed = Count()
    config = ExecutionConfig(max_cost_usd=5.00, max_steps=10_000, max_retries_total=1000, timeout_ms=0)
    options = WrapOptions(cost_estimate_hint=0.07)
    with ExecutionContext(config) as context:
        race(lambda _: until_halt(lambda: context.wrap_llm_call(executed.add, options)))
        assert executed.value == 71  # 71 * 0.07 = 4.97
        assert context.usage.cost_nanos == dollars(4.97)
