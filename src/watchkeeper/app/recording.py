"""Writes a run's log to its store while the run goes on, and decides what follows when the store fails.

What happens is written every 20 ms. Before something has an effect outside, the run waits at a barrier: what it is
about to do is on disk first. A write that fails is tried again for 60 s, with everything that came since; meanwhile
what needs no barrier goes on. If the store still fails then, the run ends as `store_failed` or goes on without its
record, whichever was chosen; both are logged and put on the session's log at once, and the result says so. Nothing is
dropped: unwritten events stay in memory and are tried again, at the latest when the run ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final
from uuid import UUID

from watchkeeper.app.options import OnStoreFailure
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import Stop, StoreError
from watchkeeper.core.text import error_text, logger
from watchkeeper.runtime.events import CallBegun, StoreFailed
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.store.run_store import Item, RunStore

WRITE_EVERY: Final = 0.02
"""How long an event may wait for the next write, in real seconds, unless a barrier writes it before."""

STORE_SECONDS: Final = 60.0
"""How long a failed write is tried again, in seconds of the run's clock, before the failure has consequences."""

FIRST_WAIT: Final = 0.25
LONGEST_WAIT: Final = 5.0
"""Seconds between two attempts: twice as long each time, at most the second."""

HURRIED_SECONDS: Final = 2.0
"""How long the end of an interrupted run waits for a store that fails; real seconds, because a kill may follow."""

END_SECONDS: Final = 70.0
"""How long the end of any other run waits for a store that fails; real seconds, should the run's clock stand still."""


class Recorder:
    """Writes a run's events to its store, on the loop on which it was created; any thread may add events."""

    def __init__(self, store: RunStore, clock: Clock, choice: OnStoreFailure = "stop") -> None:
        """Write to a store.

        Args:
            store: The store that gets the events.
            clock: Measures the 60 s.
            choice: What follows a failure: ``stop`` ends the run, ``go_on`` continues without the record.
        """
        self._store = store
        self._clock = clock
        self._choice: OnStoreFailure = choice
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._unwritten: list[Item] = []
        self._held: set[UUID] = set()
        self._scheduled = False
        self._error: StoreError | None = None
        self._retrying: asyncio.Task[None] | None = None
        self._given_up = self._ending = self._hurried = False
        self._waiting = 0
        self._awake: asyncio.Future[None] | None = None
        self._on_failure: Callable[[StoreError], None] | None = None

    def put(self, item: tuple[UUID, Envelope]) -> None:
        """Queue one envelope with the id of its run; returns at once."""
        with self._lock:
            self._unwritten.append(Item(*item, more=item[0] in self._held))
            if self._scheduled:
                return
            self._scheduled = True
        if threading.get_ident() == self._thread:
            self._loop.call_later(WRITE_EVERY, self._write_queued)
        else:
            self._loop.call_soon_threadsafe(self._loop.call_later, WRITE_EVERY, self._write_queued)

    def begin(self, session: Session, run_id: UUID) -> None:
        """Queue what the session holds from before the run, so that its state can be rebuilt."""
        with self._lock:
            self._unwritten.extend(Item(run_id, envelope, past=True) for envelope in session.whole_log())

    def attach(self, gate: ExecutionContext, session: Session) -> None:
        """Set what a store failure affects: ``gate`` is landed, and ``session`` gets the event."""

        def failed(error: StoreError) -> None:
            session.dispatch(StoreFailed(str(error), self._choice, self._clock.now()))
            if self._choice == "stop" and not self._ending:
                gate.land(store_failed(str(error)))

        self._on_failure = failed

    async def begin_call(self, run_id: UUID, call: CallBegun) -> None:
        """Put on record that a call begins, and all that was queued before; see `barrier`."""
        with self._lock:
            self._unwritten.append(Item(run_id, call))
        if self._retrying is not None or not self._write():
            await self.barrier()

    def hold(self, run_id: UUID) -> None:
        """Let what a run records from now on belong together: a crash leaves all of it on record, or nothing."""
        self._held.add(run_id)

    def release(self, run_id: UUID) -> None:
        """End what belongs together with the event that was recorded last, just now and on this thread."""
        self._held.discard(run_id)
        with self._lock:
            for place in range(len(self._unwritten) - 1, -1, -1):
                item = self._unwritten[place]
                if item.run_id == run_id:
                    self._unwritten[place] = item._replace(more=False)
                    return

    async def barrier(self) -> None:
        """Return once everything that was queued so far is on disk; wait while a failed write is tried again.

        Raises:
            StoreError: If the store has failed, and the run is not to go on without its record.
        """
        if self._retrying is None and (self._write() or self._given_up):
            error = self._error
        else:
            self._waiting += 1
            self._wake()
            try:
                await asyncio.wait({self._retry()})
            finally:
                self._waiting -= 1
            error = self._error
        if error is not None and self._choice == "stop":
            raise error

    def begun(self) -> None:
        """Write what was queued: the beginning of the run."""
        self._write_queued()

    def hurry(self) -> None:
        """Wait no longer for a store that fails: the run was interrupted."""
        self._hurried = True
        self._wake()

    async def settled(self) -> str:
        """Wait until everything is written or cannot be; return what is not on record and why, or an empty text."""
        self._ending = True
        self._wake()
        if self._retrying is not None or not self._write():
            retrying = self._retry()
            await asyncio.wait({retrying}, timeout=HURRIED_SECONDS if self._hurried else END_SECONDS)
            if not retrying.done():
                self._give_up()
        return "" if self._error is None else f"Not everything is stored: {self._error}"

    async def close(self) -> None:
        """Write what came after the end."""
        self._hurried = self._ending = True
        self._wake()
        if self._retrying is not None:
            await asyncio.wait({self._retrying}, timeout=HURRIED_SECONDS)
        self._write()
        self._on_failure = None  # a last timer of the loop may hold this for a moment, but not the run

    def _write_queued(self) -> None:
        with self._lock:
            self._scheduled = False
        if self._retrying is None and not self._write():
            self._retry()

    def _write(self) -> bool:
        """Try once to write everything that is not written; return whether it is."""
        with self._lock:
            batch = tuple(self._unwritten)
        if not batch:
            return True
        try:
            self._store.append(batch)
        except Exception as error:
            self._note(error)
            return False
        with self._lock:
            del self._unwritten[: len(batch)]
        if self._error is not None:
            logger().warning("store.recovered", written=len(batch))
            self._error, self._given_up = None, False
        return True

    def _note(self, error: Exception) -> None:
        """Remember why the last write failed; the first of several failures is logged."""
        if self._error is None:
            logger().warning("store.failing", error=str(error), tried_for_seconds=STORE_SECONDS)
        self._error = error if isinstance(error, StoreError) else StoreError(f"{self._store.path}: {error_text(error)}")

    def _retry(self) -> asyncio.Task[None]:
        """Try to write again and again, in a task that ends when everything is written or was given up."""
        if self._retrying is None:
            self._retrying = self._loop.create_task(self._try_again())
        return self._retrying

    async def _try_again(self) -> None:
        since, wait = self._clock.monotonic(), FIRST_WAIT
        try:
            while not self._write() and not self._given_up:
                left = since + STORE_SECONDS - self._clock.monotonic()
                if left <= 0 or self._store.closed or (self._hurried and (self._ending or self._waiting)):
                    self._give_up()
                    return
                await self._pause(min(wait, left))
                wait = min(2 * wait, LONGEST_WAIT)
        finally:
            self._retrying = None

    def _give_up(self) -> None:
        error = self._error
        if error is None or self._given_up:
            return
        self._given_up = True
        logger().warning("store.failed", error=str(error), undelivered=len(self._unwritten), then=self._choice)
        if self._on_failure is not None:
            self._on_failure(error)

    async def _pause(self, seconds: float) -> None:
        """Wait on the run's clock; if the run waits too, a test's clock moves on with it."""
        awake = self._awake = asyncio.get_running_loop().create_future()
        if self._ending or self._waiting:
            sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
            end: Callable[[], object] = sleeping.cancel
            sleeping.add_done_callback(lambda _: _set(awake))
        else:
            end = self._clock.call_at(self._clock.monotonic() + seconds, self._wake).cancel
        try:
            await awake
        finally:
            end()

    def _wake(self) -> None:
        """End the wait between two attempts."""
        if self._awake is not None:
            _set(self._awake)


def _set(waited_for: asyncio.Future[None]) -> None:
    if not waited_for.done():
        waited_for.set_result(None)


def store_failed(why: str) -> Stop:
    """Return the stop of a run whose store no longer accepts its events."""
    return Stop("store_failed", "store", f"The run's events cannot be stored: {why}.")
