"""What a block has seen of its calls: those under way, which its end settles, and the last refusal.

A stream that nobody has read to its end, and a call of another thread or task, may still be under way when their block
ends. None of them may go uncharged: the block ends them, and waits a moment until they are charged. Their cost is
decided elsewhere.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import running_loop
from watchkeeper.core.forks import ModuleLock
from watchkeeper.core.workers import BreakOut

LAST_BYTES_SECONDS: Final = 0.2
"""How long the end of a complete answer may take, so that its connection can be used again."""

SETTLE_SECONDS: Final = 1.0
"""How long the end of a stream, or of a block, waits for what is under way to be settled."""


LOCK: Final = ModuleLock()
"""Held while the calls under way of a block change, or are looked at."""


class OpenStream(Protocol):
    """A stream that arrives."""

    @property
    def complete(self) -> bool:
        """Whether its answer has come to its end, if not its connection."""
        ...

    def cut(self) -> None:
        """End it at once, because its block has ended; from any thread."""
        ...


@dataclass(slots=True, eq=False)
class UnderWay:
    """One call that is not settled yet.

    Attributes:
        context: The gate that it has passed.
        loop: The event loop that it needs, or None.
        stream: Its stream, if it has one.
        over: Done once it is settled.
        process: The process that made it; in one that is forked from it, it is not under way.
    """

    context: ExecutionContext
    loop: asyncio.AbstractEventLoop | None
    stream: OpenStream | None
    over: Future[None] = field(default_factory=Future[None])
    process: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True)
class Step:
    """What to wait for, and how long."""

    calls: Sequence[UnderWay]
    seconds: float


class Traffic:
    """The calls under way in a block and in the blocks inside it, and the result of the last request.

    Attributes:
        requests: How many requests came by, also those that are not counted, and those that were refused.
    """

    def __init__(self) -> None:
        """Start with nothing."""
        self.requests = 0
        self._refused: tuple[ExecutionContext, BreakOut] | None = None
        self._calls: set[UnderWay] = set()

    def begin(
        self, context: ExecutionContext, loop: asyncio.AbstractEventLoop | None, stream: OpenStream | None = None
    ) -> UnderWay:
        """Note that a call begins."""
        call = UnderWay(context, loop, stream)
        with LOCK:
            self._calls.add(call)
        return call

    def end(self, call: UnderWay) -> None:
        """Note that it is settled; a second time does nothing."""
        with LOCK:
            if call not in self._calls:
                return
            self._calls.remove(call)
        call.over.set_result(None)

    def pass_by(self) -> None:
        """Note that a request came; what was refused before it did not end the block."""
        with LOCK:
            self.requests += 1
            self._refused = None

    def refuse(self, context: ExecutionContext, refusal: BreakOut) -> None:
        """Note that a request was refused."""
        self._refused = context, refusal

    def take_refusal(self, context: ExecutionContext) -> BreakOut | None:
        """Return the refusal of the last request, if it was one of a context or below it; only once."""
        with LOCK:  # the next request of another thread forgets it
            if self._refused is None or not self._refused[0].stands_below(context):
                return None
            (_, refusal), self._refused = self._refused, None
            return refusal

    def below(self, context: ExecutionContext) -> list[UnderWay]:
        """Return what is under way in a context and below it."""
        with LOCK:
            calls = list(self._calls)
        here = os.getpid()
        return [call for call in calls if call.process == here and call.context.stands_below(context)]

    def settle(self, context: ExecutionContext, close: Callable[[], None]) -> None:
        """End what is under way below a context, close it, and wait a moment until all of it is charged.

        What needs the event loop of the running thread is settled when that loop runs again.
        """
        here = running_loop()
        for step in self._steps(context, close):
            calls = [call.over for call in step.calls if call.loop is None or call.loop is not here]
            if calls:
                concurrent.futures.wait(calls, step.seconds)

    async def asettle(self, context: ExecutionContext, close: Callable[[], None]) -> None:
        """Do the same without blocking the running loop."""
        for step in self._steps(context, close):
            if step.calls:
                await asyncio.wait([asyncio.wrap_future(call.over) for call in step.calls], timeout=step.seconds)

    def _steps(self, context: ExecutionContext, close: Callable[[], None]) -> Iterator[Step]:
        """Close the streams, then the context; after each step the caller waits for the calls that were yielded."""
        streams = [call for call in self.below(context) if call.stream is not None]
        yield Step([call for call in streams if call.stream is not None and call.stream.complete], LAST_BYTES_SECONDS)
        for call in streams:
            if call.stream is not None and not call.over.done():
                call.stream.cut()
        yield Step([call for call in streams if not call.over.done()], SETTLE_SECONDS)
        close()
        yield Step(self.below(context), SETTLE_SECONDS)
