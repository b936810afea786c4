"""Writes a run's log to its store while the run goes on, and decides what follows when the store fails.

What happens is written every 20 ms. Before something has an effect outside, the run waits at a barrier: what it is
about to do is on disk first. A write that fails is tried again for 60 s, with everything that came since; meanwhile
what needs no barrier goes on. If the store still fails then, the run ends as `store_failed` or goes on without its
record, whichever was chosen; both are logged and put on the session's log at once, and the result says so. Nothing is
dropped: unwritten events stay in memory and are tried again, at the latest when the run ends.

A store with the durability ``power`` waits for the disk at every write. It is written to on a worker thread, so that
the loop goes on; all that is queued meanwhile, by all runs, goes into the next write. A write that does not return for
60 s counts as one that has failed for so long.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from watchkeeper.app.options import OnStoreFailure
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import Stop, StoreError
from watchkeeper.core.text import error_text, logger
from watchkeeper.core.workers import BlockingCall, call_in_loop, run_in_worker
from watchkeeper.runtime.events import CallBegun, StoreFailed
from watchkeeper.runtime.file_record import FilesChanged
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.store.items import Item, UnwrittenError
from watchkeeper.store.run_store import RunStore

WRITE_EVERY: Final = 0.02
"""How long an event may wait for the next write, in real seconds, unless a barrier writes it before."""

STORE_SECONDS: Final = 60.0
"""How long a failed write is tried again, in seconds of the run's clock, before the failure has consequences."""

DISK_SECONDS: Final = 60.0
"""How long one write on a worker thread may take, in real seconds; then the store has failed, until it returns."""

FIRST_WAIT: Final = 0.25
LONGEST_WAIT: Final = 5.0
"""Seconds between two attempts: twice as long each time, at most the second."""

HURRIED_SECONDS: Final = 2.0
"""How long the end of an interrupted run waits for a store that fails; real seconds, because a kill may follow."""

END_SECONDS: Final = 70.0
"""How long the end of any other run waits for a store that fails; real seconds, should the run's clock stand still."""


class Group(msgspec.Struct, frozen=True, gc=False):
    """From here on what a run records belongs together, or no longer."""

    run_id: UUID
    begins: bool


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
        self._lock = threading.RLock()
        self._writing = threading.RLock()
        self._arrived: deque[Item | Group] = deque()
        self._unwritten: list[Item] = []
        self._held: dict[UUID, list[Item]] = {}
        self._scheduled = False
        self._beside_loop = store.durability == "power"
        self._written = 0
        self._after_write: asyncio.Future[None] = self._loop.create_future()
        self._error: StoreError | None = None
        self._failing = 0  # how often writes began to fail
        self._retrying: asyncio.Task[None] | None = None
        self._given_up = self._ending = self._hurried = False
        self._waiting = 0
        self._awake: asyncio.Future[None] | None = None
        self._on_failure: Callable[[StoreError], None] | None = None

    def put(self, run_id: UUID, envelope: Envelope) -> None:
        """Queue one envelope with the id of its run; returns at once."""
        self._arrived.append(Item(run_id, envelope))  # no lock: a finaliser may come in here in the middle of anything
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        """Let what is queued be written soon; if two threads do so at once, that is no harm."""
        self._scheduled = True
        if threading.get_ident() == self._thread:
            self._loop.call_later(WRITE_EVERY, self._write_queued)
        else:
            self._loop.call_soon_threadsafe(self._loop.call_later, WRITE_EVERY, self._write_queued)

    def begin(self, session: Session, run_id: UUID) -> None:
        """Queue what the session holds from before the run, so that its state can be rebuilt."""
        self._arrived.extend([Item(run_id, envelope, past=True) for envelope in session.whole_log()])

    def _take_in(self) -> list[Item]:
        """Return what is not written, in order; of what belongs together nothing before its end has come."""
        with self._lock:
            while self._arrived:
                item = self._arrived.popleft()
                if isinstance(item, Group):
                    self._begin_or_end(item)
                elif self._held and item.run_id in self._held and isinstance(item.envelope, Envelope):
                    self._held[item.run_id].append(item)
                else:
                    self._unwritten.append(item)
        return self._unwritten

    def _begin_or_end(self, group: Group) -> None:
        """Hold what a run records from now on, or let what was held be written together."""
        if group.begins:
            self._held.setdefault(group.run_id, [])
        elif held := self._held.pop(group.run_id, None):
            self._unwritten += (replace(each, more=True) for each in held[:-1])
            self._unwritten.append(held[-1])

    def attach(self, gate: ExecutionContext, session: Session) -> None:
        """Set what a store failure affects: ``gate`` is landed, and ``session`` gets the event."""

        def failed(error: StoreError) -> None:
            session.dispatch(StoreFailed(str(error), self._choice, self._clock.now()))
            if self._choice == "stop" and not self._ending:
                gate.land(store_failed(str(error)))

        self._on_failure = failed

    async def begin_call(self, run_id: UUID, call: CallBegun | FilesChanged) -> None:
        """Put on record that a call begins, or what its commit will change, and what was queued; see `barrier`."""
        self._arrived.append(Item(run_id, call))
        if self._retrying is not None or self._beside_loop or not self._write_batch():
            await self.barrier()

    def write_ahead(self, run_id: UUID, call: CallBegun) -> None:
        """Put on record that a call begins which a run's code makes, and what was queued.

        On any thread, without a second attempt, and never for longer than `DISK_SECONDS`.
        """
        item = Item(run_id, call)
        if not self._beside_loop:
            self._write_with(item)
            return
        error = self._error if self._given_up else None
        if error is None:
            writing = BlockingCall(lambda: self._write_with(item))
            writing.wait(DISK_SECONDS, SYSTEM_CLOCK)
            if not writing.leave():
                return writing.result()
            error = self._hangs()
            self._note(error)
            call_in_loop(self._loop, self._give_up)
        else:
            self._arrived.append(item)
        if self._choice == "stop":
            raise error

    def _write_with(self, item: Item) -> None:
        """Write what was queued, and one item behind it if its run has begun."""
        with self._writing:
            queued = self._take_in().copy()
            try:
                if self._store.has_begun(item.run_id) or any(each.run_id == item.run_id for each in queued):
                    self._store.append([*queued, item])
                    self._took(queued)
                    return
            except StoreError as error:
                self._took(queued, error)
                if _is_written(item, error):
                    return
                if self._choice == "stop":
                    raise
        self._arrived.append(item)

    def hold(self, run_id: UUID) -> None:
        """Let what a run records from now on belong together: a crash leaves all of it on record, or nothing."""
        self._arrived.append(Group(run_id, begins=True))

    def release(self, run_id: UUID) -> None:
        """End what belongs together, and queue it."""
        self._arrived.append(Group(run_id, begins=False))
        if not self._scheduled:
            self._schedule()

    async def barrier(self) -> bool:
        """Return once everything that was queued so far is on disk; wait while a failed write is tried again.

        Returns:
            False if it could not be written, and the run goes on without its record.

        Raises:
            StoreError: If the store has failed, and the run is not to go on without its record.
        """
        if not (self._retrying is None and self._write()) and not self._given_up:
            self._waiting += 1
            self._wake()
            try:
                await self._passed(len(self._take_in()) + self._written)  # in this order, see `_took`
            finally:
                self._waiting -= 1
        error = self._error
        if error is not None and self._choice == "stop":
            raise error
        return error is None

    async def _passed(self, wanted: int) -> None:
        """Return once so many of the oldest items are written since the beginning, or the store was given up.

        Without an error all that are written are the oldest ones; with one, those of a run may be written and older
        ones of another not.
        """
        while True:
            retrying = self._retry()
            await asyncio.wait({retrying, self._after_write}, return_when=asyncio.FIRST_COMPLETED)
            if retrying.done() or self._given_up or (self._written >= wanted and self._error is None):
                return

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
                self._is_stuck()
        return "" if self._error is None else f"Not everything is stored: {self._error}"

    async def close(self) -> None:
        """Write what came after the end."""
        self._hurried = self._ending = True
        self._wake()
        if self._retrying is not None:
            await asyncio.wait({self._retrying}, timeout=HURRIED_SECONDS)
        if not self._write() and self._beside_loop:
            await asyncio.wait({self._retry()}, timeout=HURRIED_SECONDS)
        self._on_failure = None  # a last timer of the loop may hold this for a moment, but not the run

    def _write_queued(self) -> None:
        self._scheduled = False
        if self._retrying is None and not self._write():
            self._retry()

    def _write(self) -> bool:
        """Try once to write everything that is not written; return whether it is. Beside the loop, only look."""
        if self._beside_loop:
            return not self._take_in()
        return self._write_batch()

    def _write_batch(self) -> bool:
        """Try once to write what is queued now; return whether it is written."""
        with self._writing:
            batch = self._take_in().copy()
            if not batch:
                return True
            try:
                self._store.append(batch)
            except Exception as error:
                self._took(batch, error)
                return False
            self._took(batch)
            return True

    def _took(self, batch: Sequence[Item], error: Exception | None = None) -> None:
        """Take note that the store has the oldest items; if there was an error, those that it does not concern."""
        left: list[Item] = []
        if error is not None:
            left += (item for item in batch if not _is_written(item, error))
            if left:
                self._note(error)
        self._written += len(batch) - len(left)  # first: who adds up meanwhile may wait for too many, never for too few
        self._unwritten[: len(batch)] = left
        if not left and (batch or error is None) and self._error is not None:
            logger().warning("store.recovered", written=len(batch))
            self._error, self._given_up = None, False

    async def _write_beside(self) -> bool:
        """Write on a worker thread until nothing is left; return whether that worked. Items wait for one write only."""
        while self._take_in():
            stuck = self._loop.call_later(DISK_SECONDS, self._is_stuck)
            try:
                if not await run_in_worker(self._write_batch, must_run=True):
                    return False
            finally:
                stuck.cancel()
            self._let_pass()
        return True

    def _is_stuck(self) -> None:
        """Give the store up while a write is under way that does not return; if it does, all goes on."""
        if not self._take_in():
            return
        if self._error is None:
            self._note(self._hangs())
        self._give_up()
        self._let_pass()

    def _hangs(self) -> StoreError:
        return StoreError(f"{self._store.path}: a write does not return; the disk hangs")

    def _let_pass(self) -> None:
        """Let those who wait for a write see what has become of it."""
        self._after_write, done = self._loop.create_future(), self._after_write
        _set(done)

    def _note(self, error: Exception) -> None:
        """Remember why the last write failed; the first of several failures is logged."""
        if self._error is None:
            self._failing += 1
            logger().warning("store.failing", error=str(error), tried_for_seconds=STORE_SECONDS)
        self._error = error if isinstance(error, StoreError) else StoreError(f"{self._store.path}: {error_text(error)}")

    def _retry(self) -> asyncio.Task[None]:
        """Try to write again and again, in a task that ends when everything is written or was given up."""
        if self._retrying is None:
            self._retrying = self._loop.create_task(self._try_again())
        return self._retrying

    async def _try_again(self) -> None:
        since, wait, failing = self._clock.monotonic(), FIRST_WAIT, self._failing
        try:
            while not (await self._write_beside() if self._beside_loop else self._write()) and not self._given_up:
                if self._failing != failing:
                    since, wait, failing = self._clock.monotonic(), FIRST_WAIT, self._failing
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
        logger().warning("store.failed", error=str(error), undelivered=len(self._take_in()), then=self._choice)
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


def _is_written(item: Item, error: Exception) -> bool:
    """Return whether a batch that has failed with this error has left an item on record."""
    return isinstance(error, UnwrittenError) and item.run_id not in error.runs


def _set(waited_for: asyncio.Future[None]) -> None:
    if not waited_for.done():
        waited_for.set_result(None)


def store_failed(why: str) -> Stop:
    """Return the stop of a run whose store no longer accepts its events."""
    return Stop("store_failed", "store", f"The run's events cannot be stored: {why}.")
