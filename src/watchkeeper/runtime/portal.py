"""The synchronous API's door to the loop: one event loop on one daemon thread of its own.

It works where a loop is already running (notebooks, async frameworks), because the caller's loop is never used. A
second loop would be a second copy of everything, so there is one, started at first use. Called on the loop's own
thread it would wait for itself, so there it raises and names the async twin.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from watchkeeper.core.errors import WatchkeeperError

T = TypeVar("T")


class Portal:
    """Runs coroutines on a background loop and waits for them."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(
        self,
        work: Coroutine[Any, Any, T],
        twin: str,
        on_interrupt: Callable[[], None] | None = None,
    ) -> T:
        """Run a coroutine to its end on the portal's loop.

        Args:
            work: What to run; it sees the caller's context variables.
            twin: Name of the async function to call instead, for the error.
            on_interrupt: Called on Ctrl-C, each time; waiting then goes on. Without it the work is cancelled.

        Raises:
            WatchkeeperError: If called on the portal's own thread.
        """
        if self._thread is threading.current_thread():
            work.close()
            raise WatchkeeperError(f"this is the loop's own thread, which must not wait for itself; await {twin}(...)")
        loop = self._running()
        done = threading.Event()
        started: list[asyncio.Task[T]] = []
        context = contextvars.copy_context()

        def start() -> None:
            task = loop.create_task(work, context=context)
            started.append(task)
            task.add_done_callback(lambda _: done.set())

        loop.call_soon_threadsafe(start)
        while not done.is_set():
            try:
                done.wait()
            except KeyboardInterrupt:
                if on_interrupt is None:
                    loop.call_soon_threadsafe(started[0].cancel)
                    done.wait()
                    raise
                loop.call_soon_threadsafe(on_interrupt)
        return started[0].result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="watchkeeper-loop", daemon=True)
                self._thread.start()
            return self._loop


PORTAL: Final = Portal()
