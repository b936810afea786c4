"""Writes a run's log to its store while the run goes on, and decides what follows when the store fails.

A write that fails is tried again for 60 s, with everything that came since. If the store still fails then, the run ends
as `store_failed` or goes on without its record, whichever was chosen; both are logged and put on the session's log at
once, and the result says so. Nothing is dropped: unwritten events stay in memory and are tried again, at the latest
when the run ends. A run waits for a write only at its end, and shortly after its first event: code of the user that
holds the loop later can no longer keep the run off the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from watchkeeper.app.listener import DRAIN_SECONDS, Listener
from watchkeeper.app.options import OnStoreFailure
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import Stop, StoreError
from watchkeeper.core.text import error_text, logger
from watchkeeper.core.workers import run_in_worker
from watchkeeper.runtime.events import StoreFailed
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.store.run_store import RunStore

STORE_SECONDS: Final = 60.0
"""How long a failed write is tried again, in seconds of the run's clock, before the failure has consequences."""

FIRST_WAIT: Final = 0.25
LONGEST_WAIT: Final = 5.0
"""Seconds between two attempts: twice as long each time, at most the second."""

FIRST_SECONDS: Final = 1.0
"""How long a run waits for the write of its first event, in real seconds; it then goes on in any case."""

HURRIED_SECONDS: Final = 2.0
"""How long the end of an interrupted run waits for a store that fails; real seconds, because a kill may follow."""

Item = tuple[UUID, Envelope]


class Recorder:
    """Writes a run's events to its store; created on the loop; any thread may add events."""

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
        self._listener: Listener[Item] = Listener("store", self._write)
        self._unwritten: list[Item] = []
        self._error: StoreError | None = None
        self._failing_since = 0.0
        self._tried_at = 0.0
        self._given_up = self._ending = self._hurried = False
        self._awake: asyncio.Future[None] | None = None
        self._on_failure: Callable[[StoreError], None] | None = None

    def put(self, item: Item) -> None:
        """Queue one envelope with the id of its run; returns at once."""
        self._listener.put(item)

    def attach(self, gate: ExecutionContext, session: Session) -> None:
        """Set what a store failure affects: ``gate`` is landed, and ``session`` gets the event."""

        def failed(error: StoreError) -> None:
            session.dispatch(StoreFailed(str(error), self._choice, self._clock.now()))
            if self._choice == "stop" and not self._ending:
                gate.land(store_failed(str(error)))

        self._on_failure = failed

    async def begun(self) -> None:
        """Wait, for a limited time, until what was queued is written: the beginning of the run."""
        await self._listener.drained(FIRST_SECONDS)

    def hurry(self) -> None:
        """Wait no longer for a store that fails: the run was interrupted."""
        self._hurried = True
        self._wake()

    async def settled(self) -> str:
        """Wait until everything is written or cannot be; return what is not on record and why, or an empty text."""
        self._ending = True
        self._wake()
        while not await self._listener.drained(seconds := self._patience()):
            if self._patience() <= seconds:
                self._give_up(self._error or StoreError(f"a write to {self._store.path} does not end"))
                break
        else:
            if self._unwritten:
                await self._attempt()
        return "" if self._error is None else f"Not everything is stored: {self._error}"

    def _patience(self) -> float:
        """Return the real seconds for which the end of the run waits."""
        if self._error is None:
            return DRAIN_SECONDS
        return HURRIED_SECONDS if self._hurried else STORE_SECONDS + DRAIN_SECONDS

    async def close(self) -> None:
        """Write what came after the end."""
        self._hurried = self._ending = True
        await self._listener.close()

    async def _write(self, batch: Sequence[Item]) -> None:
        """Write a batch, after what could not be written before."""
        self._unwritten.extend(batch)
        now = self._clock.monotonic()
        if self._given_up and not self._ending and now - self._tried_at < LONGEST_WAIT:
            return
        wait = FIRST_WAIT
        while not await self._attempt() and not self._given_up:
            left = self._failing_since + STORE_SECONDS - self._clock.monotonic()
            if left <= 0 or self._store.closed or (self._hurried and self._ending):
                self._give_up(self._error)
                return
            await self._pause(min(wait, left))
            wait = min(2 * wait, LONGEST_WAIT)

    async def _attempt(self) -> bool:
        """Try once to write everything that is not written; return whether it is."""
        self._tried_at = self._clock.monotonic()
        try:
            await run_in_worker(self._store.append, tuple(self._unwritten), must_run=True)
        except Exception as error:
            self._note(error)
            return False
        if self._error is not None:
            logger().warning("store.recovered", written=len(self._unwritten))
        self._unwritten.clear()
        self._error, self._given_up = None, False
        return True

    def _note(self, error: Exception) -> None:
        """Remember why the last write failed; the first of several failures is logged."""
        if self._error is None:
            self._failing_since = self._tried_at
            logger().warning("store.failing", error=str(error), tried_for_seconds=STORE_SECONDS)
        self._error = error if isinstance(error, StoreError) else StoreError(f"{self._store.path}: {error_text(error)}")

    def _give_up(self, error: StoreError | None) -> None:
        if error is None or self._given_up:
            return
        self._given_up, self._error = True, error
        logger().warning("store.failed", error=str(error), undelivered=len(self._unwritten), then=self._choice)
        if self._on_failure is not None:
            self._on_failure(error)

    async def _pause(self, seconds: float) -> None:
        """Wait on the run's clock; at the end of the run a test's clock moves on with it."""
        awake = self._awake = asyncio.get_running_loop().create_future()
        if self._ending:
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
