"""Small helpers for the tests of the gate: contexts on a test clock, calls with exact costs, work that can be held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
from watchkeeper.accounting.limits import Limits
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core.clock import Clock, TestClock
from watchkeeper.core.usage import NANOS_PER_USD, TokenUsage

TOOL = CallRequest("tool", "look")
MODEL = CallRequest("llm", "think")


def unlimited(**ceilings: Any) -> Limits:
    """Limits with these ceilings and none other, and a hard stop at each."""
    lifted: dict[str, Any] = {
        "deadline": None,
        "max_total_tokens": None,
        "max_retries": None,
        "max_turns": None,
        "landing": None,
    }
    return Limits(**{**lifted, **ceilings})


def gate_with(clock: Clock, **ceilings: Any) -> ExecutionContext:
    """A context with these ceilings and none other, and a hard stop at each."""
    return ExecutionContext(unlimited(**ceilings), clock=clock)


def dollars(amount: float) -> int:
    """Dollars as nano-dollars."""
    return round(amount * NANOS_PER_USD)


def costing(amount: float, **fields: Any) -> CallRequest:
    """A model call whose worst case is exactly this many dollars."""
    return CallRequest("llm", estimate=Estimate(input_nanos=dollars(amount)), **fields)


def charged(amount: float, tokens_in: int = 0, tokens_out: int = 0) -> Callable[[Any, Any, Ticket], Charge]:
    """A meter that always says the same."""
    charge = Charge(TokenUsage(tokens_in, tokens_out), dollars(amount))
    return lambda value, error, ticket: charge


async def answer(ticket: Ticket) -> str:
    """Work that is done at once."""
    return "done"


async def fail(ticket: Ticket) -> str:
    """Work that fails at once."""
    raise ValueError("no luck")


class Held:
    """Async work that waits until the test lets it go on."""

    def __init__(self, value: Any = "held") -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.value = value
        self.tickets: list[Ticket] = []

    async def __call__(self, ticket: Ticket) -> Any:
        self.tickets.append(ticket)
        self.begun.set()
        await self.let_go.wait()
        return self.value


class AfterItBegan(TestClock):
    """A clock on which the time of a plain call is over when its work says that it has begun, and never before."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        """Let the time pass, once the work has begun."""
        assert self.begun.wait(60)
        self.advance(seconds or 0.0)


async def started(coroutine: Awaitable[Outcome[Any]]) -> asyncio.Task[Outcome[Any]]:
    """Start a call and let everything run that can."""
    task = asyncio.ensure_future(coroutine)
    await settle()
    return task


async def settle() -> None:
    """Let everything run that is ready."""
    for _ in range(20):
        await asyncio.sleep(0)


def until_other_thread(condition: Callable[[], bool]) -> None:
    """Wait until another thread has made a condition true, looking again and again."""
    tick = threading.Event()
    for _ in range(6000):
        if condition():
            return
        tick.wait(0.005)
    raise AssertionError("it never happened")


def race(work: Callable[[int], object], threads: int = 64) -> None:
    """Run ``work`` on many threads that start together; re-raise what any of them raised."""
    barrier = threading.Barrier(threads)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
