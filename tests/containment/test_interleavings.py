"""Limits hold exactly in every interleaving of threads, line by line; each is drawn from a seed and repeats exactly."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from random import Random
from threading import Event
from typing import Any

import pytest

from tests.containment.gates import charged, costing, dollars, gate_with, unlimited
from tests.containment.interleaving import Scheduler, TurnClock, TurnLock
from watchkeeper.accounting import ledger as ledger_module
from watchkeeper.accounting.account import RETRIES
from watchkeeper.accounting.admission import Demand, decide
from watchkeeper.accounting.call_request import Admitted, CallRequest, Charge, Estimate, Ruling
from watchkeeper.accounting.ledger import Grant, MemoryLedger, Waiter
from watchkeeper.accounting.limits import Limits, Verdict
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import Stop
from watchkeeper.shield.circuit_breaker import CircuitBreaker, CircuitState
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.shield.usage_hooks import BudgetWindowHook

AGENTS = 4


@dataclass
class Bill:
    """What really ran and what it really cost."""

    executed: int = 0
    nanos: int = 0


class TwoSteps(MemoryLedger):
    """A ledger as it must not be: it decides first and reserves then."""

    def admit(self, demand: Demand, now: float, waiter: Waiter | None = None) -> Grant:
        """Decide outside of the critical section."""
        verdict = decide(demand, now)
        if not isinstance(verdict, Admitted) or waiter is not None:
            return super().admit(demand, now, waiter)
        with self._lock:
            self._reserve(demand, verdict.output_tokens)
        return verdict


def opened(
    scheduler: Scheduler, config: ExecutionConfig | Limits, kind: type[MemoryLedger] = MemoryLedger
) -> ExecutionContext:
    ledger = kind(lock=TurnLock(scheduler))
    return ExecutionContext(config, ledger=ledger, clock=TurnClock(scheduler))


def check_nothing_is_held(gate: ExecutionContext) -> None:
    assert isinstance(gate.ledger, MemoryLedger)
    assert gate.ledger.is_idle
    assert gate.account.reserved == [0] * 7


def spend(seed: int, kind: type[MemoryLedger] = MemoryLedger) -> tuple[Bill, ExecutionContext]:
    """Race agents with known worst cases under $5.00, on the root and on children of it."""
    scheduler = Scheduler(seed)
    root = opened(scheduler, unlimited(max_cost_usd="5.00", max_retries=3), kind)
    bill = Bill()

    def agent(number: int) -> None:
        rng = Random(seed * AGENTS + number)
        gate = root if number % 2 else root.child(unlimited(max_cost_usd=rng.choice([None, "2.50"])))
        for _ in range(4):
            estimate = Estimate(input_nanos=rng.randrange(dollars(1.8)), max_output_tokens=9, min_output_tokens=2)
            estimate = Estimate(0, 9, 2, estimate.input_nanos, rng.randrange(dollars(0.05)))

            def work(ticket: Ticket, rng: Random = rng) -> int:
                bill.executed += 1
                if rng.random() < 0.15:
                    raise ValueError("flaky")
                return ticket.max_output_tokens

            def meter(value: Any, error: Any, ticket: Ticket, rng: Random = rng, worst: Estimate = estimate) -> Charge:
                most = worst.nanos(ticket.max_output_tokens)
                nanos = rng.choice([most, rng.randint(0, most)])
                bill.nanos += nanos
                return Charge(cost_nanos=nanos)

            request = CallRequest("llm", estimate=estimate, spends_retry_on_error=rng.random() < 0.5)
            if gate.call(request, work, meter).decision is Decision.HALT:
                break
        if gate is not root:
            gate.close()

    scheduler.run([partial(agent, number) for number in range(AGENTS)])
    return bill, root


@pytest.mark.spec("FR-131")
@pytest.mark.parametrize("seeds", [range(start, start + 250) for start in range(0, 1000, 250)])
def test_five_dollars_are_never_exceeded_in_any_interleaving_of_lines(seeds: range) -> None:
    for seed in seeds:
        bill, root = spend(seed)
        assert bill.nanos <= dollars(5), seed
        assert root.usage.cost_nanos == bill.nanos, seed
        assert root.get_snapshot().step_count == bill.executed, seed
        check_nothing_is_held(root)
        root.close()


@pytest.mark.spec("FR-161")
def test_in_no_interleaving_of_lines_the_work_gets_what_is_kept_for_the_verdict() -> None:
    for seed in range(200):
        scheduler = Scheduler(seed)
        root = opened(scheduler, unlimited(max_cost_usd="5.00", max_steps=20, verdict=Verdict(share=0.2)))
        verdict = root.keep_verdict()
        assert verdict is not None
        bill = Bill()

        def agent(number: int, seed: int = seed, root: ExecutionContext = root, bill: Bill = bill) -> None:
            rng = Random(seed * AGENTS + number)
            gate = root if number % 2 else root.child(unlimited(max_cost_usd=rng.choice([None, "2.50", "5.00"])))
            for _ in range(5):
                worst = rng.choice([0.3, 1.0, 2.0])
                real = rng.choice([worst, worst / 2])
                if gate.call(costing(worst), lambda _: None, charged(real)).admitted:
                    bill.nanos += dollars(real)
                    bill.executed += 1
            gate.close() if gate is not root else root.land(Stop("turn_limit_exceeded", "caller", "Enough."))

        scheduler.run([partial(agent, number) for number in range(AGENTS)])
        assert [verdict.call(costing(0.25), lambda _: None).admitted for _ in range(5)] == [True] * 4 + [False], seed
        assert root.usage.cost_nanos == bill.nanos + dollars(1) <= dollars(5), seed
        assert root.usage.steps == bill.executed + 4 <= 20, seed
        root.close()
        check_nothing_is_held(root)


def test_the_interleavings_would_find_a_gate_that_decides_in_one_step_and_reserves_in_another() -> None:
    overspent = 0
    for seed in range(100):
        bill, root = spend(seed, TwoSteps)
        overspent += bill.nanos > dollars(5)
        root.close()
    assert overspent


def test_a_seed_always_gives_the_same_interleaving() -> None:
    assert len({spend(7)[0].nanos for _ in range(3)}) == 1


@pytest.mark.parametrize("steps", [1, 5])
def test_exactly_as_many_calls_run_as_there_are_steps_in_any_interleaving(steps: int) -> None:
    for seed in range(150):
        scheduler = Scheduler(seed)
        gate = opened(scheduler, ExecutionConfig(100, steps, 100, timeout_ms=0))
        bill = Bill()

        def agent(gate: ExecutionContext = gate, bill: Bill = bill) -> None:
            def work() -> None:
                bill.executed += 1

            while gate.wrap_tool_call(work) is not Decision.HALT:
                pass

        scheduler.run([agent] * AGENTS)
        assert (bill.executed, gate.get_snapshot().step_count) == (steps, steps), seed
        assert [event.event_type for event in gate.get_snapshot().events] == ["step_limit_exceeded"], seed
        check_nothing_is_held(gate)
        gate.close()


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_failures_never_exceed_the_retries_in_any_interleaving(retries: int) -> None:
    for seed in range(150):
        scheduler = Scheduler(seed)
        gate = opened(scheduler, ExecutionConfig(100, 100, retries, timeout_ms=0))
        bill = Bill()

        def agent(gate: ExecutionContext = gate, bill: Bill = bill) -> None:
            def fail() -> None:
                bill.executed += 1
                raise ValueError("flaky")

            while gate.wrap_llm_call(fail) is not Decision.HALT:
                pass

        scheduler.run([agent] * AGENTS)
        assert (bill.executed, gate.get_snapshot().retries_used) == (max(retries, 1), retries), seed
        check_nothing_is_held(gate)
        gate.close()


def test_an_abort_between_any_two_lines_lets_no_later_admission_pass() -> None:
    for seed in range(150):
        scheduler = Scheduler(seed)
        gate = opened(scheduler, ExecutionConfig(100, 100, 100, timeout_ms=0))
        late: list[Outcome[None]] = []
        aborted = Event()

        def agent(gate: ExecutionContext = gate, late: list[Outcome[None]] = late, aborted: Event = aborted) -> None:
            while True:
                after = aborted.is_set()
                outcome = gate.call_tool(lambda: None)
                if after:
                    late.append(outcome)
                if outcome.decision is Decision.HALT:
                    return

        def abort(gate: ExecutionContext = gate, aborted: Event = aborted) -> None:
            gate.call_tool(lambda: None)
            gate.abort("enough")
            aborted.set()

        scheduler.run([agent, agent, abort])
        assert [outcome.admitted for outcome in late if outcome.admitted] == [], seed
        assert gate.get_snapshot().abort_reason == "aborted"
        check_nothing_is_held(gate)
        gate.close()


async def test_a_thousand_calls_that_wait_are_not_all_asked_again_for_each_that_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting is quadratic only where figures really change: it must not make a wide fan-out hang its loop."""
    asked = 0

    def counting(demand: Demand, now: float) -> Ruling:
        nonlocal asked
        asked += 1
        return decide(demand, now)

    monkeypatch.setattr(ledger_module, "decide", counting)
    gate = gate_with(SYSTEM_CLOCK, max_cost_usd=1)
    go_on = asyncio.Event()

    async def work(ticket: Ticket) -> None:
        await go_on.wait()

    tasks = [asyncio.create_task(gate.acall(costing(1), work, charged(1))) for _ in range(1000)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert asked < 5 * 1000
    go_on.set()
    outcomes = await asyncio.gather(*tasks)
    assert sum(outcome.admitted for outcome in outcomes) == 1
    assert asked < 12 * 1000
    gate.close()


@pytest.mark.spec("FR-132")
@pytest.mark.parametrize("outlived", [False, True], ids=["inside", "outliving the call around them"])
async def test_calls_side_by_side_inside_a_call_do_not_all_fail_on_its_one_retry(outlived: bool) -> None:
    gate = ExecutionContext(ExecutionConfig(100, 1000, 10, timeout_ms=0))
    bill = Bill()
    tasks: list[asyncio.Task[Outcome[None]]] = []

    async def fail() -> None:
        bill.executed += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise ValueError("flaky")

    async def around() -> None:
        tasks.extend(asyncio.create_task(gate.acall_llm(fail)) for _ in range(50))
        await asyncio.sleep(0)
        if not outlived:
            await asyncio.gather(*tasks)

    await gate.acall_tool(around)
    outcomes = await asyncio.gather(*tasks)
    assert bill.executed == sum(outcome.admitted for outcome in outcomes) == 10
    assert gate.get_snapshot().retries_used == 10
    check_nothing_is_held(gate)
    gate.close()


async def test_a_retry_is_left_to_the_call_inside_that_goes_on_through_every_level() -> None:
    gate = ExecutionContext(ExecutionConfig(100, 1000, 1, timeout_ms=0))
    release = asyncio.Event()
    tasks: list[asyncio.Task[Outcome[None]]] = []

    async def innermost() -> None:
        await release.wait()

    async def middle() -> None:
        tasks.append(asyncio.create_task(gate.acall_llm(innermost)))
        await asyncio.sleep(0)

    async def outer() -> None:
        await gate.acall_tool(middle)

    await gate.acall_tool(outer)
    account = gate.account
    assert account.reserved[RETRIES] == 1
    waiting = asyncio.create_task(gate.acall_llm(innermost))
    await asyncio.sleep(0)
    assert not waiting.done()
    release.set()
    assert [outcome.decision for outcome in await asyncio.gather(*tasks, waiting)] == [Decision.ALLOW] * 2
    check_nothing_is_held(gate)
    gate.close()


class Moody:
    """A hook that refuses some calls in some way, and knows which calls it let pass and which were turned back."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self.passed: set[int] = set()

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        said = self._rng.choice([None, None, None, Decision.HALT, Decision.DEGRADE, Decision.RETRY, Decision.QUEUE])
        if said is None:
            self.passed.add(ctx.number)
        return said

    def release(self, ctx: ToolCallContext) -> None:
        self.passed.discard(ctx.number)


@pytest.mark.spec("FR-131")
def test_hooks_breakers_and_children_lose_nothing_in_any_interleaving() -> None:
    for seed in range(80):
        scheduler = Scheduler(seed)
        clock, bill, moody = TurnClock(scheduler), Bill(), Moody(seed)
        window = BudgetWindowHook(9, None, 1.0, clock=clock)
        breaker = CircuitBreaker(2, 5.0, clock=clock)
        root = ExecutionContext(
            unlimited(max_cost_usd="5.00", max_steps=12, max_retries=6),
            ShieldPipeline(pre_dispatch=[moody, window], clock=clock),
            circuit_breaker=breaker,
            ledger=MemoryLedger(lock=TurnLock(scheduler)),
            clock=clock,
        )

        def agent(
            number: int,
            root: ExecutionContext = root,
            bill: Bill = bill,
            clock: TurnClock = clock,
            seed: int = seed,
        ) -> None:
            rng = Random(seed * AGENTS + number)
            gate = root if number % 2 else root.child(unlimited(max_cost_usd="3.00"))

            def work(depth: int) -> None:
                bill.executed += 1
                if depth and rng.random() < 0.5:
                    gate.call_llm(lambda: work(depth - 1), WrapOptions("inner", cost_estimate_hint=0.3))
                clock.advance(rng.choice([0, 0, 3, 6]))
                if rng.random() < 0.4:
                    raise ConnectionError("flaky")

            for _ in range(6):
                gate.call_llm(lambda: work(2), WrapOptions("outer", cost_estimate_hint=rng.choice([0.2, 0.9, 1.6])))
            if gate is not root:
                gate.close()

        scheduler.run([partial(agent, number) for number in range(AGENTS)])
        snapshot = root.get_snapshot()
        assert bill.executed == snapshot.step_count == len(moody.passed) == window.calls <= 9, seed
        assert root.usage.cost_nanos is not None
        assert root.usage.cost_nanos <= dollars(5), seed
        check_nothing_is_held(root)
        clock.advance(60)
        assert breaker.state is CircuitState.CLOSED or breaker.acquire() is not None, seed
        root.close()
