"""Listeners: what happens is queued for them in order, and delivered in batches, one delivery at a time.

Sync functions are called on a worker thread, so that user code never runs on the loop's thread; async ones on the loop.
Nothing that was queued is lost, from any thread. A listener that raises is reported once and gets nothing more; the run
goes on. At the end everything queued is delivered, within a stated time.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar, cast

from watchkeeper.core.text import logger
from watchkeeper.core.workers import run_in_worker

T = TypeVar("T")

Deliver = Callable[[Sequence[T]], None] | Callable[[Sequence[T]], Awaitable[None]]

DRAIN_SECONDS: Final = 10.0
"""How long the end of a run waits for a slow listener, in seconds of real time, not of the run's clock."""


class Listener(Generic[T]):
    """A queue in front of one delivery function; created and closed on the loop; any thread may add items."""

    def __init__(self, name: str, deliver: Deliver[T], drain_seconds: float = DRAIN_SECONDS) -> None:
        """Deliver with ``deliver``; ``name`` is used in reports of failures."""
        self._name = name
        self._deliver = deliver
        self._drain_seconds = drain_seconds
        self._is_async = is_async(deliver)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._queue: list[T] = []
        # True from the moment a delivery is asked for until it has found the queue empty: both under the lock, so that
        # an item is either seen by the delivery under way or asks for the next one.
        self._awake = False
        self._task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None

    def put(self, item: T) -> None:
        """Queue one item; returns at once."""
        with self._lock:
            if self.failure is not None:
                return
            self._queue.append(item)
            if self._awake:
                return
            self._awake = True
        if threading.get_ident() == self._thread:
            self._start()
        else:
            self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._drain())

    def _next(self) -> list[T] | None:
        """Take the queued items; if there are none, return None and mark the listener as idle."""
        with self._lock:
            if not self._queue or self.failure is not None:
                self._awake = False
                return None
            batch, self._queue = self._queue, []
            return batch

    async def _drain(self) -> None:
        while (batch := self._next()) is not None:
            try:
                if self._is_async:
                    await cast("Awaitable[None]", self._deliver(batch))
                else:
                    await run_in_worker(self._deliver, batch, must_run=True)
            except BaseException as error:
                self._fail(error)
                # A SystemExit that left this task would end the whole loop, and with it every run.
                if not isinstance(error, Exception | SystemExit):
                    raise
        self._task = None

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.failure = error
            self._queue.clear()
        logger().warning("listener.failed", listener=self._name, error=f"{type(error).__name__}: {error}")

    async def drained(self, seconds: float) -> bool:
        """Deliver what is queued; return whether that ended within this number of seconds of real time."""
        with self._lock:
            waiting = bool(self._queue)
            self._awake = self._awake or waiting
        if waiting:
            self._start()
        if self._task is None:
            return True
        _, late = await asyncio.wait({self._task}, timeout=seconds)
        return not late

    async def close(self) -> None:
        """Deliver what is queued; a listener that takes too long is abandoned, and that is logged."""
        if not await self.drained(self._drain_seconds):
            logger().warning("listener.late", listener=self._name, undelivered=len(self._queue))


def one_by_one(handler: Callable[..., Any]) -> Deliver[Any]:
    """Turn a handler, sync or async, into a delivery of batches; each item holds the arguments of one call."""
    if is_async(handler):

        async def deliver_async(batch: Sequence[tuple[Any, ...]]) -> None:
            for item in batch:
                await handler(*item)

        return deliver_async

    def deliver(batch: Sequence[tuple[Any, ...]]) -> None:
        for item in batch:
            if inspect.iscoroutine(returned := handler(*item)):
                returned.close()
                raise TypeError(f"{handler!r} returned a coroutine; make it an async function, so that it is awaited")

    return deliver


def is_async(function: Any) -> bool:
    """Return whether calling it gives a coroutine, also for an object whose ``__call__`` is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
