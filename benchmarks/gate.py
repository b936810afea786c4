"""What the gate costs, in µs of CPU per call above the bare work: admitted, refused, on threads; snapshots; overshoot.

"Nodes" is how many calls the context has recorded before: the figures must be flat in it. Overshoot is how long after
its deadline a call returns that would have gone on. Figures are medians of batches, so a busy machine disturbs them
little. Run with ``python -m benchmarks.gate``; exits 1 if a target is missed.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from watchkeeper.containment.call import CallRequest, Ticket
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.estimate import Charge, Estimate
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.limits import Limits
from watchkeeper.core.usage import TokenUsage

NODES = (1_000, 10_000, 100_000)
BATCH, BATCHES = 500, 21
ADMITTED, REFUSED, THREADED, SNAPSHOT, OVERSHOOT_MS = 8.0, 3.0, 60.0, 20.0, 20.0
FLAT = 1.5

TOOL = CallRequest("tool", "look")
PLENTY = Limits(max_cost_usd=10**6, max_total_tokens=10**12, max_steps=10**9, max_retries=10**6)
CHARGE = Charge(TokenUsage(1000, 100), 1_000)
HINT = WrapOptions("ask", cost_estimate_hint=0.000_01)

missed: list[str] = []


async def at_once(ticket: Ticket) -> int:
    return 1


async def after_a_turn(ticket: Ticket) -> int:
    await asyncio.sleep(0)
    return 1


def free(value: object, error: BaseException | None, ticket: Ticket) -> Charge:
    return Charge()


def priced(value: object, error: BaseException | None, ticket: Ticket) -> Charge:
    return CHARGE


def show(what: str, figure: float, target: float | None, unit: str = "µs") -> None:
    """Print a figure, and remember it if it misses its target."""
    goal = "" if target is None else f"   (at most {target:g})"
    if target is not None and figure > target:
        missed.append(what)
        goal += "   MISSED"
    print(f"  {what:<58} {figure:8.2f} {unit}{goal}")


async def cost(work: Callable[[], Awaitable[object]]) -> float:
    """Return µs of CPU per call of async work."""
    figures: list[float] = []
    for _ in range(BATCHES):
        start = time.process_time_ns()
        for _ in range(BATCH):
            await work()
        figures.append((time.process_time_ns() - start) / BATCH / 1000)
    return statistics.median(figures)


def plain_cost(work: Callable[[], object]) -> float:
    """Return µs of CPU, on all threads together, per call of plain work."""
    figures: list[float] = []
    for _ in range(BATCHES):
        start = time.process_time_ns()
        for _ in range(BATCH):
            work()
        figures.append((time.process_time_ns() - start) / BATCH / 1000)
    return statistics.median(figures)


def model_call() -> CallRequest:
    """Return a request as a run builds it anew for every turn."""
    estimate = Estimate(1000, 1000, 256, 100_000, 200)
    return CallRequest("llm", "think", estimate, landing=Estimate(2000, 1000, 256, 200_000, 200))


async def admitted() -> None:
    print("admitted, µs of CPU above the bare work")
    bare = await cost(lambda: at_once(NO_TICKET))
    yielding = await cost(lambda: after_a_turn(NO_TICKET))
    first: dict[str, float] = {}
    for nodes in NODES:
        gate = ExecutionContext(PLENTY)
        for _ in range(nodes):
            await gate.acall(TOOL, at_once, free)
        figures = await by_kind(gate, bare, yielding)
        for name, figure in figures.items():
            target = ADMITTED if "timer" not in name else None
            show(f"{name}, after {nodes:,} nodes", figure, target)
            if figure > FLAT * first.setdefault(name, figure):
                missed.append(f"{name} is not flat")
        gate.close()


async def by_kind(gate: ExecutionContext, bare: float, yielding: float) -> dict[str, float]:
    return {
        "a tool call": await cost(lambda: gate.acall(TOOL, at_once, free)) - bare,
        "a model call: tokens, cost, landing hold": await cost(lambda: gate.acall(model_call(), at_once, priced))
        - bare,
        "a tool call that waits, with a timer": await cost(lambda: gate.acall(TOOL, after_a_turn, free)) - yielding,
    }


async def refused() -> None:
    print("refused")
    gate = ExecutionContext(Limits(max_steps=1, landing=None))
    await gate.acall(TOOL, at_once, free)
    show("a call after the stop has latched", await cost(lambda: gate.acall(TOOL, at_once, free)), REFUSED)
    gate.close()


def plain() -> None:
    print("plain callables")
    with ExecutionContext(Limits(deadline=None, max_cost_usd=10**6, max_retries=10**6, landing=None)) as gate:
        show("without a time bound, on the caller's thread", plain_cost(lambda: gate.call(TOOL, lambda _: 1)), ADMITTED)
        show("the same by the seed's face, with a hint", plain_cost(lambda: gate.wrap_llm_call(lambda: 1, HINT)), None)
    with ExecutionContext(Limits(max_retries=10**6, landing=None)) as gate:
        show("with a time bound, on a worker thread", plain_cost(lambda: gate.call(TOOL, lambda _: 1)), THREADED)


async def snapshots() -> None:
    print("get_snapshot, µs of CPU")
    for nodes in NODES:
        gate = ExecutionContext(PLENTY)
        for _ in range(nodes):
            await gate.acall(TOOL, at_once, free)
        show(f"at {nodes:,} nodes", plain_cost(gate.get_snapshot), SNAPSHOT)
        gate.close()


async def overshoot() -> None:
    print("return after the deadline, ms")

    async def forever(ticket: Ticket) -> None:
        await asyncio.Event().wait()

    late: list[float] = []
    for number in range(300):
        gate = ExecutionContext(Limits(deadline=timedelta(milliseconds=5 + number % 7), landing=None))
        await gate.acall(TOOL, forever, free)
        late.append((gate.elapsed_seconds - 0.005 - number % 7 / 1000) * 1000)
        gate.close()
    report("async work", late)
    late.clear()
    never = threading.Event()
    for number in range(200):
        gate = ExecutionContext(Limits(deadline=timedelta(milliseconds=5 + number % 7), landing=None))
        gate.call(TOOL, lambda _: never.wait(1.0))
        late.append((gate.elapsed_seconds - 0.005 - number % 7 / 1000) * 1000)
        gate.close()
    never.set()
    report("plain work", late)


def report(what: str, late: list[float]) -> None:
    late.sort()
    show(f"{what}, p50", late[len(late) // 2], None, "ms")
    show(f"{what}, p99", late[int(len(late) * 0.99)], OVERSHOOT_MS, "ms")


def threads() -> None:
    print("threads that share one context, calls per second")
    for count in (1, 4, 16):
        with ExecutionContext(Limits(deadline=None, max_steps=20_000, max_retries=None, landing=None)) as gate:

            def work(gate: ExecutionContext = gate) -> None:
                while gate.call(TOOL, lambda _: 1).admitted:
                    pass

            running = [threading.Thread(target=work) for _ in range(count)]
            start = time.perf_counter()
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
            show(f"{count} threads", 20_000 / (time.perf_counter() - start), None, "/s")


class NoTicket(Ticket):
    """Stands in for a ticket where the bare work is measured."""

    def __init__(self) -> None:
        """Hold nothing."""


NO_TICKET = NoTicket()


async def measure() -> None:
    await admitted()
    await refused()
    await snapshots()
    await overshoot()


def main() -> int:
    """Measure, print, and return 1 if a target was missed."""
    gc.freeze()
    asyncio.run(measure())
    plain()
    threads()
    if missed:
        print("missed: " + "; ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
