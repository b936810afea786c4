"""Calls that wait, nest, fail, or are cancelled, aborted or closed: all of them end, and reservations are released."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.containment.gates import dollars, unlimited
from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.accounting.limits import Landing
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.shield.decision import Decision


class World:
    """A tree of contexts under one ceiling, and agents that spend at random from a seed."""

    def __init__(self, seed: int, ceiling: float = 2.0) -> None:
        self.rng = random.Random(seed)
        self.ceiling = ceiling
        self.clock: Clock = SYSTEM_CLOCK
        self.spent = 0
        self.root = ExecutionContext(
            unlimited(max_cost_usd=ceiling, max_steps=self.rng.choice([None, 25])), clock=self.clock
        )
        self.lock = threading.Lock()

    def child(self, parent: ExecutionContext) -> ExecutionContext:
        landing = self.rng.choice([None, Landing()])
        limits = unlimited(
            landing=landing, max_cost_usd=self.rng.choice([None, 0.9]), max_steps=self.rng.choice([None, 5])
        )
        return parent.child(limits, carve=self.rng.random() < 0.5)

    def request(self, **fields: Any) -> CallRequest:
        rng = self.rng
        estimate = Estimate(0, rng.choice([0, 50]), rng.randrange(1, 50), dollars(rng.random() * 0.5), dollars(0.01))
        landing = Estimate(input_nanos=dollars(rng.random() * 0.2)) if rng.random() < 0.5 else None
        return CallRequest("llm", estimate=estimate, landing=landing, **fields)

    def meter(self, request: CallRequest) -> Any:
        def meter(value: Any, error: BaseException | None, ticket: Ticket) -> Charge:
            nanos = self.rng.randint(0, request.estimate.nanos(ticket.max_output_tokens))
            with self.lock:
                self.spent += nanos
            return Charge(cost_nanos=nanos)

        return meter

    def check(self) -> None:
        """Everything that was held came back, and what was spent is what was counted, within the ceiling."""
        assert isinstance(self.root.ledger, MemoryLedger)
        assert self.root.ledger.is_idle
        assert self.root.account.reserved == [0] * 7
        assert self.root.usage.cost_nanos == self.spent <= dollars(self.ceiling)


async def agent(world: World, gate: ExecutionContext, depth: int) -> None:
    """Call until the gate has enough of it, then land and close."""
    rng = world.rng

    async def work(ticket: Ticket) -> Outcome[Any] | None:
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        if rng.random() < 0.1:
            raise ValueError("flaky")
        if depth and rng.random() < 0.4:
            if rng.random() < 0.5:
                inner = world.request()
                return await gate.acall(inner, work, world.meter(inner))
            await agent(world, world.child(gate), depth - 1)
        return None

    with gate:
        for _ in range(12):
            request = world.request()
            outcome = await gate.acall(request, work, world.meter(request))
            if outcome.decision is Decision.HALT:
                break
        last = world.request(phase="landing")
        await gate.acall(last, work, world.meter(last))


@pytest.mark.parametrize("seeds", [range(start, start + 75) for start in range(0, 300, 75)])
async def test_agents_that_nest_land_and_wait_for_each_other_all_come_home(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        async with asyncio.timeout(20):
            await asyncio.gather(*(agent(world, world.child(world.root), 2) for _ in range(5)))
        world.check()
        world.root.close()


def closing(gate: ExecutionContext) -> Callable[[asyncio.Task[None]], None]:
    return lambda _: gate.close()


@pytest.mark.parametrize("seeds", [range(start, start + 75) for start in range(0, 300, 75)])
async def test_agents_that_are_cancelled_aborted_and_closed_at_any_moment_leave_nothing_reserved(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        gates = [world.child(world.root) for _ in range(5)]
        tasks = [asyncio.create_task(agent(world, gate, 2)) for gate in gates]
        for gate, task in zip(gates, tasks, strict=True):
            task.add_done_callback(closing(gate))  # also of an agent cancelled before it began
        async with asyncio.timeout(20):
            for gate, task in zip(gates, tasks, strict=True):
                for _ in range(world.rng.randrange(6)):
                    await asyncio.sleep(0)
                match world.rng.randrange(5):
                    case 0:
                        task.cancel()
                    case 1:
                        gate.close()
                    case 2:
                        gate.abort("enough")
                    case _:
                        pass
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            # An agent whose context was closed under it is told so; nothing else goes wrong.
            assert result is None or isinstance(result, asyncio.CancelledError) or "closed" in str(result)
        await asyncio.sleep(0)
        world.check()
        world.root.close()


def sync_agent(world: World, gate: ExecutionContext, depth: int, rng: random.Random) -> None:
    def work(ticket: Ticket) -> None:
        if rng.random() < 0.1:
            raise ValueError("flaky")
        if depth and rng.random() < 0.4:
            sync_agent(world, world.child(gate), depth - 1, rng)

    with gate:
        for _ in range(12):
            request = world.request()
            if gate.call(request, work, world.meter(request)).decision is Decision.HALT:
                break
        last = world.request(phase="landing")
        gate.call(last, work, world.meter(last))


@pytest.mark.parametrize("seed", range(25))
def test_agents_on_threads_all_come_home(seed: int) -> None:
    world = World(seed)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            sync_agent(world, world.child(world.root), 2, random.Random(seed * 100 + number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a thread hangs"
    assert errors == []
    world.check()
    world.root.close()


def test_the_clock_of_these_tests_is_the_machines_so_that_only_a_missed_wake_up_could_hang_them() -> None:
    assert World(0).clock is SYSTEM_CLOCK
