"""What is opened for a run (models, store, ledger, listeners), and how signals end it from outside.

All of it is opened before the run starts and always closed after it. Everything that can be refused is refused here,
before anything is spent. Events go to the caller's callbacks and to the store through a `Listener`, so that they do not
slow down the run. `Interrupts` passes signals on to the gate of the run in progress.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast
from uuid import UUID

import msgspec

from watchkeeper.accounting.ledger import Ledger
from watchkeeper.app.models import RunModels, models_of_run
from watchkeeper.app.options import RunOptions, StoreLike
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, Timer
from watchkeeper.core.errors import Stop
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.core.limits import Limits
from watchkeeper.core.text import logger
from watchkeeper.core.model import Model
from watchkeeper.core.workers import run_in_worker
from watchkeeper.loop.retry import is_outage
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.events import TextDelta
from watchkeeper.runtime.user_code import closed
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.shield.circuit_breaker import CircuitBreakers
from watchkeeper.store.run_store import RunStore, store_path
from watchkeeper.store.sqlite import DEFAULT

if TYPE_CHECKING:
    from watchkeeper.store.sqlite_ledger import SqliteLedger

T = TypeVar("T")


class Surroundings(msgspec.Struct, frozen=True):
    """The opened things.

    Attributes:
        models: The model in use, the fallback models, the cheaper one.
        breakers: Circuit breakers for providers that are down, or None.
        events: Where events go for the caller, or None.
        records: Where envelopes go, each with the id of its run: to the store, and to the caller.
        ledger: The ledger of what is spent; None for memory.
    """

    models: RunModels
    breakers: CircuitBreakers | None
    events: Listener[tuple[Any]] | None
    records: tuple[Listener[tuple[UUID, Envelope]], ...]
    ledger: Ledger | None

    @property
    def on_delta(self) -> Callable[[str], None] | None:
        """Gets text as it arrives; None if there is no listener."""
        events = self.events
        return (lambda text: events.put((TextDelta(text),))) if events is not None else None

    def watch(self, session: Session, run_id: UUID, *, child: bool = False) -> Callable[[], None]:
        """Forward a session's events to the listeners; return a function that ends it.

        Args:
            session: Whose events.
            run_id: Its run.
            child: Whether it is a child's: ``on_event`` does not get those, because it gets no run id.
        """
        events, subscribe = None if child else self.events, session.dispatcher.subscribe_all
        endings = [] if events is None else [subscribe(lambda envelope: events.put((envelope.event,)))]
        endings += [subscribe(partial(_put_record, records, run_id)) for records in self.records]

        def end() -> None:
            if endings:
                session.flush()  # another thread may be telling the last events just now
            for ending in endings:
                ending()

        return end


def _put_record(records: Listener[tuple[UUID, Envelope]], run_id: UUID, envelope: Envelope) -> None:
    records.put((run_id, envelope))


def open_surroundings(
    stack: AsyncExitStack, template: PromptTemplate[Any], model: Model | str, limits: Limits, options: RunOptions
) -> Surroundings:
    """Open what a run of a template needs; ``stack`` closes it.

    Raises:
        ConfigurationError: For an unknown model, a missing key or extra, or a model without a price.
        StoreError: If the store or the ledger cannot be written.
    """
    models = models_of_run(stack, model, limits, options, template)
    records: list[Listener[tuple[UUID, Envelope]]] = []
    where = options.get("store", DEFAULT)
    store = open_store(where)
    if store is not None:
        if store is not where:
            stack.push_async_callback(lambda: closed("the store", run_in_worker(store.close, must_run=True)))
        records.append(Listener("store", store.append))
    on_record, on_event = options.get("on_record"), options.get("on_event")
    if on_record is not None:
        records.append(Listener("on_record", one_by_one(on_record)))
    events: Listener[tuple[Any]] | None = None
    if on_event is not None:
        events = Listener("on_event", one_by_one(on_event))
        stack.push_async_callback(events.close)
    for listener in records:
        stack.push_async_callback(listener.close)
    return Surroundings(models, breakers_of(options), events, tuple(records), opened_ledger(stack, limits, options))


def open_store(where: RunStore | StoreLike) -> RunStore | None:
    """Open the store that the caller names; None means none.

    Raises:
        StoreError: If it cannot be written.
    """
    if where is None or isinstance(where, RunStore):
        return where
    path = store_path(where)
    return None if path is None else RunStore(path)


def opened_ledger(stack: AsyncExitStack, limits: Limits, options: RunOptions) -> Ledger | None:
    """Open the ledger that the caller or an account needs; None if memory will do. ``stack`` closes what is opened.

    Raises:
        StoreError: If it cannot be written.
    """
    where = options.get("ledger", DEFAULT)
    if not isinstance(where, str | Path):
        return where
    ledger = own_ledger(where, limits, options.get("clock", SYSTEM_CLOCK), options.get("ids", SYSTEM_IDS))
    if ledger is not None:
        stack.push_async_callback(lambda: closed("the ledger", run_in_worker(ledger.shutdown, must_run=True)))
    return ledger


def own_ledger(
    where: Ledger | Path | str, limits: Limits, clock: Clock, ids: IdSource = SYSTEM_IDS
) -> SqliteLedger | None:
    """Open the ledger in a file that is named, or in the user's own file if the limits name an account; else None.

    Raises:
        StoreError: If it cannot be written.
    """
    if not isinstance(where, str | Path) or (where == DEFAULT and limits.account is None):
        return None
    from watchkeeper.store.sqlite_ledger import SqliteLedger

    return SqliteLedger(where, clock=clock, ids=ids)


def breakers_of(options: RunOptions) -> CircuitBreakers | None:
    """Return the caller's circuit breakers; where another model can take over, new ones by default."""
    breakers = options.get("breakers")
    if breakers is not None or not options.get("fallback"):
        return breakers
    return CircuitBreakers(failure_predicate=is_outage, clock=options.get("clock", SYSTEM_CLOCK))


# --- listeners ------------------------------------------------------------------------------------------------------
# Events are queued in order and delivered in batches, by one delivery at a time: sync callables on a worker thread, so
# that user code never runs on the loop's thread, async ones on the loop. Nothing that was queued is lost, from any
# thread. A listener that raises is reported once and gets nothing more; the run goes on. At the end
# everything queued is delivered, within a stated time.

Deliver = Callable[[Sequence[T]], None] | Callable[[Sequence[T]], Awaitable[None]]

DRAIN_SECONDS: Final = 10.0
"""How long the end of a run waits for a slow listener, in seconds of real time, not of the run's clock."""


class Listener(Generic[T]):
    """A queue in front of one delivery function; made and closed on the loop, fed from any thread."""

    def __init__(self, name: str, deliver: Deliver[T], drain_seconds: float = DRAIN_SECONDS) -> None:
        """Deliver with ``deliver``; ``name`` stands in reports of failures."""
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
        """Take what is queued; None, and asleep again, if nothing is."""
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
                # A SystemExit that left this task would take the whole loop, and with it every run, along.
                if not isinstance(error, Exception | SystemExit):
                    raise
        self._task = None

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.failure = error
            self._queue.clear()
        logger().warning("listener.failed", listener=self._name, error=f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        """Deliver what is queued; a listener that takes too long is left behind, and that is logged."""
        with self._lock:
            waiting = bool(self._queue)
            self._awake = self._awake or waiting
        if waiting:
            self._start()
        if self._task is None:
            return
        _, late = await asyncio.wait({self._task}, timeout=self._drain_seconds)
        if late:
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


# --- interrupts -----------------------------------------------------------------------------------------------------
# Always called on the loop's thread. After SIGTERM a process is usually killed soon, without a second signal. So a
# landing that takes longer than `TERM_SECONDS` is stopped hard, to leave time for the result, the record and the
# notification.

CTRL_C: Final = "SIGINT"

TERM_SECONDS: Final = 7.0
"""How long a run may take to land after SIGTERM. By default containers are killed 10 s after it."""


class Interrupts:
    """Counts interrupts and passes them to the gate of the run in progress."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        """Nothing was interrupted yet; ``clock`` measures how long landing may take, by default in real seconds."""
        self._clock = clock
        self._landing: Stop | None = None
        self._abort: str | None = None
        self._gate: ExecutionContext | None = None
        self._timer: Timer | None = None

    @contextmanager
    def over(self, gate: ExecutionContext) -> Generator[None]:
        """Pass interrupts to ``gate`` inside the block, also one that came before."""
        self._gate = gate
        self._pass_on()
        try:
            yield
        finally:
            self._gate = None
            if self._timer is not None:
                self._timer.cancel()

    def interrupt(self, name: str = CTRL_C) -> None:
        """Take one signal, given its name."""
        if self._landing is not None:
            self._stop_hard("interrupted twice")
            return
        by = "" if name == CTRL_C else f" by {name}"
        self._landing = Stop("interrupted", "caller", f"The run was interrupted{by}.")
        if name == "SIGTERM":
            late = f"it had not landed {TERM_SECONDS:g} s after {name}"
            when = self._clock.monotonic() + TERM_SECONDS
            self._timer = self._clock.call_at(when, partial(self._stop_hard, late))
        self._pass_on()

    def _stop_hard(self, why: str) -> None:
        self._abort = self._abort or why
        self._pass_on()

    def _pass_on(self) -> None:
        if self._gate is not None and self._abort is not None:
            self._gate.abort(self._abort)
        elif self._gate is not None and self._landing is not None:
            self._gate.land(self._landing)
