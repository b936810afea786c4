"""Agents carve, split and share in random order: ceilings hold, reservations are returned, and no call hangs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.containment.gates import TOOL, answer, costing, dollars, gate_with, unlimited
from watchkeeper.accounting.call_request import Charge
from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.accounting.limits import Landing
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.shield.decision import Decision


async def test_nobody_waits_for_a_landing_step_inside_what_a_child_has_carved() -> None:
    root = gate_with(SYSTEM_CLOCK, max_steps=10)
    child = root.child(unlimited(max_steps=8, landing=Landing()))
    async with asyncio.timeout(10):
        decisions = [(await root.acall(TOOL, answer)).decision for _ in range(3)]
    assert decisions == [Decision.ALLOW, Decision.ALLOW, Decision.HALT]
    child.close()
    root.close()


class World:
    """A root with ceilings of all kinds, and what really ran and really cost."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.executed = self.spent = 0
        self.root = gate_with(
            SYSTEM_CLOCK,
            max_cost_usd="5.00",
            max_steps=rng.choice([None, 40]),
            max_retries=rng.choice([None, 5]),
            max_tool_calls=rng.choice([None, 20]),
        )

    def children(self, gate: ExecutionContext) -> list[ExecutionContext]:
        rng = self.rng
        if rng.random() < 0.3:
            return list(gate.split({"a": 1, "b": rng.random() + 0.1}).values())
        ceilings: dict[str, Any] = {
            "max_cost_usd": rng.choice([None, "0.50", "2.00", "9.00"]),
            "max_steps": rng.choice([None, None, rng.randrange(1, 10)]),
            "max_retries": rng.choice([None, None, rng.randrange(0, 3)]),
            "landing": rng.choice([None, Landing()]),
        }
        return [gate.child(unlimited(**ceilings), carve=rng.random() < 0.7)]

    async def delegate(self, gate: ExecutionContext, depth: int) -> None:
        """Hand work to children, side by side, and close them when all are done."""
        children = self.children(gate)
        try:
            await asyncio.gather(*(self.agent(child, depth) for child in children))
        finally:
            for child in children:
                child.close()

    async def agent(self, gate: ExecutionContext, depth: int) -> None:
        """Call and delegate at random; an agent whose context was closed under it stops."""
        with suppress(ConfigurationError):
            for _ in range(8):
                if depth and self.rng.random() < 0.35:
                    await self.delegate(gate, depth - 1)
                elif await self.call(gate, depth) is Decision.HALT and self.rng.random() < 0.7:
                    return

    async def call(self, gate: ExecutionContext, depth: int) -> Decision:
        rng = self.rng
        worst = rng.choice([0.02, 0.2, 0.7])
        real = dollars(rng.choice([0, worst, worst / 2]))

        async def work(ticket: Ticket) -> None:
            self.executed += 1
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            if depth and rng.random() < 0.2:
                await self.agent(gate, depth - 1)
            if rng.random() < 0.2:
                raise ConnectionError("flaky")

        def meter(value: None, error: BaseException | None, ticket: Ticket) -> Charge:
            self.spent += real
            return Charge(cost_nanos=real)

        request = costing(worst, spends_retry_on_error=rng.random() < 0.5, retry=rng.random() < 0.1)
        decision = (await gate.acall(request, work, meter)).decision
        if rng.random() < 0.01:
            gate.abort("enough")
        return decision

    def check(self) -> None:
        """The ceilings held, the counts are true, and nothing is set aside any more."""
        steps = self.root.limits.ceiling("max_steps")
        assert self.root.usage.cost_nanos == self.spent <= dollars(5)
        assert self.root.usage.steps == self.executed <= (self.executed if steps is None else steps)
        assert self.root.account.reserved == [0] * 7
        assert isinstance(self.root.ledger, MemoryLedger)
        assert self.root.ledger.is_idle


@pytest.mark.spec("FR-131")
@pytest.mark.parametrize("seeds", [range(start, start + 100) for start in range(0, 300, 100)])
async def test_agents_that_carve_split_and_share_all_come_home(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        tasks = [asyncio.create_task(world.agent(world.root, 2)) for _ in range(4)]
        if seed % 3 == 0:
            for _ in range(world.rng.randrange(12)):
                await asyncio.sleep(0)
            world.rng.choice(tasks).cancel()
        async with asyncio.timeout(20):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results), seed
        world.check()
        world.root.close()
