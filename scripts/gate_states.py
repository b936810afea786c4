"""The gate's state table, found out by trying: what every kind of call gets from a context in each of its states.

Usage: gate_states.py
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from watchkeeper.accounting.call_request import CallRequest, Estimate
from watchkeeper.accounting.limits import Landing, Limits
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core.errors import ConfigurationError, Stop

LIMITS: Final = Limits(max_cost_usd=1, deadline=None, landing=Landing())
STOP: Final = Stop("turn_limit_exceeded", "caller", "Enough.")
MOST: Final = Estimate(input_nanos=LIMITS.max_cost_nanos or 0)

Attempt = Callable[[ExecutionContext], Awaitable[str]]

STATES: Final[dict[str, Callable[[ExecutionContext], object]]] = {
    "open": lambda gate: None,
    "work stopped": lambda gate: gate.land(STOP),
    "stopped": lambda gate: gate.abort("enough"),
    "closed": lambda gate: gate.close(),
}


def table() -> str:
    """Return the table in Markdown."""
    rows = [f"| {what} | " + " | ".join(asyncio.run(cells(what))) + " |" for what in (*NEW, *BEGUN)]
    head = "| | " + " | ".join(STATES) + " |"
    return "\n".join([head, "|---" * (len(STATES) + 1) + "|", *rows, ""])


async def cells(what: str) -> list[str]:
    """Return what one kind of call gets in each state."""
    return [await cell(what, enter) for enter in STATES.values()]


async def cell(what: str, enter: Callable[[ExecutionContext], object]) -> str:
    """Return what one kind of call gets in one state."""
    with ExecutionContext(LIMITS) as gate:
        if what in NEW:
            enter(gate)
            return await said(NEW[what](gate))
        return await BEGUN[what](gate, enter)


async def said(attempt: Awaitable[str]) -> str:
    """Return how an attempt went."""
    try:
        return await attempt
    except ConfigurationError:
        return "`ConfigurationError`"


def of(outcome: Outcome[None]) -> str:
    """Return an outcome as a cell."""
    return f"`{outcome.decision}`" + (f" {outcome.stop_reason}" if outcome.stop_reason else "")


def new_call(request: CallRequest) -> Attempt:
    """Return the attempt at a call."""

    async def attempt(gate: ExecutionContext) -> str:
        return of(await gate.acall(request, at_once))

    return attempt


async def at_once(ticket: Ticket) -> None:
    """Do nothing."""


async def request_outside(gate: ExecutionContext) -> str:
    """Ask whether a request may leave."""
    return f"`{gate.check_egress('https://example.com')}`"


async def open_child(gate: ExecutionContext) -> str:
    """Open a child and make a call in it."""
    with gate.child(Limits(deadline=None)) as child:
        return "in it: " + of(await child.acall(CallRequest("tool"), at_once))


async def look(gate: ExecutionContext) -> str:
    """Take a snapshot."""
    gate.get_snapshot()
    return "yes"


async def under_way(gate: ExecutionContext, enter: Callable[[ExecutionContext], object]) -> str:
    """Enter the state while a call is under way, then let it end."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(ticket: Ticket) -> None:
        begun.set()
        await go_on.wait()

    call = asyncio.ensure_future(gate.acall(CallRequest("tool"), work))
    await begun.wait()
    enter(gate)
    await asyncio.sleep(0)
    go_on.set()
    return of(await call)


async def waiting(gate: ExecutionContext, enter: Callable[[ExecutionContext], object]) -> str:
    """Enter the state while a call waits for what another holds, then let that one end without having spent it."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(ticket: Ticket) -> None:
        begun.set()
        await go_on.wait()
        ticket.charge(0)

    request = CallRequest("tool", estimate=MOST)
    other = asyncio.ensure_future(gate.acall(request, work))
    await begun.wait()
    call = asyncio.ensure_future(gate.acall(request, at_once))
    await asyncio.sleep(0)
    enter(gate)
    await asyncio.sleep(0)
    go_on.set()
    await other
    return of(await call)


async def judging(gate: ExecutionContext, enter: Callable[[ExecutionContext], object]) -> str:
    """Make a call in what was kept for a verdict before the state was entered."""
    verdict = gate.keep_verdict()
    if verdict is None:
        raise RuntimeError("these limits keep nothing for a verdict")
    with verdict:
        enter(gate)
        return of(await verdict.acall(CallRequest("llm"), at_once))


NEW: Final[dict[str, Attempt]] = {
    "a model call": new_call(CallRequest("llm")),
    "a tool call": new_call(CallRequest("tool")),
    "a child run": new_call(CallRequest("child")),
    "a landing turn": new_call(CallRequest("llm", phase="landing")),
    "a request to the outside": request_outside,
    "`child(...)`": open_child,
    "`get_snapshot()`": look,
}
BEGUN: Final[dict[str, Callable[[ExecutionContext, Callable[[ExecutionContext], object]], Awaitable[str]]]] = {
    "a call that is under way": under_way,
    "a call that waits for others": waiting,
    "a call in what is kept for a verdict": judging,
}

if __name__ == "__main__":
    sys.stdout.write(table())
