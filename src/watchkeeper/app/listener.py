"""Hands events to somebody who must not slow the run down: a user's callback, or the store.

Events are queued in order and delivered in batches, by one delivery at a time: sync callables on a worker thread, so
that user code never runs on the loop's thread, async ones on the loop. A listener that raises is reported once and
gets nothing more; the run goes on. At the end everything queued is delivered, within a stated time.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar, cast

from watchkeeper.core.logs import logger
from watchkeeper.core.workers import run_in_worker

T = TypeVar("T")
Deliver = Callable[[Sequence[T]], None] | Callable[[Sequence[T]], Awaitable[None]]

DRAIN_SECONDS: Final = 10.0
"""How long the end of a run waits for a slow listener."""


class Listener(Generic[T]):
    """A queue in front of one delivery function; made and closed on the loop, fed from any thread."""

    def __init__(self, name: str, deliver: Deliver[T]) -> None:
        """Deliver with ``deliver``; ``name`` stands in reports of failures."""
        self._name = name
        self._deliver = deliver
        self._is_async = inspect.iscoroutinefunction(deliver)
        self._loop = asyncio.get_running_loop()
        self._queue: list[T] = []
        self._task: asyncio.Task[None] | None = None
        self.failure: Exception | None = None

    def put(self, item: T) -> None:
        """Queue one item; returns at once."""
        if self.failure is not None:
            return
        self._queue.append(item)
        if self._task is None:
            try:
                on_loop = asyncio.get_running_loop() is self._loop
            except RuntimeError:
                on_loop = False
            if on_loop:
                self._start()
            else:
                self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._task is None and self._queue:
            self._task = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._queue and self.failure is None:
                batch, self._queue = self._queue, []
                if self._is_async:
                    await cast("Awaitable[None]", self._deliver(batch))
                else:
                    await run_in_worker(self._deliver, batch)
        except Exception as error:
            self.failure = error
            logger().warning("listener.failed", listener=self._name, error=f"{type(error).__name__}: {error}")
        finally:
            self._task = None

    async def close(self) -> None:
        """Deliver what is queued; a listener that takes too long is left behind, and that is logged."""
        self._start()
        task = self._task
        if task is None:
            return
        _, late = await asyncio.wait({task}, timeout=DRAIN_SECONDS)
        if late:
            logger().warning("listener.late", listener=self._name, undelivered=len(self._queue))


def one_by_one(handler: Callable[[Any], Any]) -> Deliver[Any]:
    """Turn a handler of single events, sync or async, into a delivery of batches."""
    if inspect.iscoroutinefunction(handler):

        async def deliver_async(batch: Sequence[Any]) -> None:
            for item in batch:
                await handler(item)

        return deliver_async

    def deliver(batch: Sequence[Any]) -> None:
        for item in batch:
            handler(item)

    return deliver
