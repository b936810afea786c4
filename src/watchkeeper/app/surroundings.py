"""What is opened for a run (models, store, ledger, listeners), and how signals end it from outside.

All of it is opened before the run starts and always closed after it. Everything that can be refused is refused here,
before anything is spent. Events go to the caller's callbacks through a `Listener` and to the store through a
`Recorder`, so that they do not slow down the run. `Interrupts` passes signals on to the gate of the run in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from watchkeeper.accounting.ledger import Ledger
from watchkeeper.runtime.listener import Listener, one_by_one
from watchkeeper.app.models import RunModels, open_models
from watchkeeper.app.options import RunOptions, StoreLike
from watchkeeper.children.inside import Surrounding
from watchkeeper.app.recording import Recorder
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.tracing import Tracer
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, Timer
from watchkeeper.core.errors import ConfigurationError, ProviderError, Stop
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.model import Model
from watchkeeper.core.workers import run_in_worker
from watchkeeper.asking.retry import is_outage
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.events import TextDelta
from watchkeeper.runtime.plan import Durable
from watchkeeper.runtime.result import ManyResult, RunResult
from watchkeeper.runtime.user_code import closed
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.shield.circuit_breaker import CircuitBreakers
from watchkeeper.disk.power import Durability
from watchkeeper.store.run_store import RunStore, store_path
from watchkeeper.disk.sqlite import DEFAULT

if TYPE_CHECKING:
    from watchkeeper.app.telling.notices import Notices
    from watchkeeper.ledgers.sqlite_ledger import SqliteLedger


ResultT = TypeVar("ResultT", bound="RunResult[Any] | ManyResult[Any]")


class Surroundings(msgspec.Struct, frozen=True):
    """The opened things.

    Attributes:
        models: The model in use, the fallback models, the cheaper one.
        breakers: Circuit breakers for providers that are down, or None.
        events: Passes events to the caller's ``on_event``, or None.
        record: Writes envelopes to the store, each with the id of its run; or None.
        records: Passes envelopes to the caller's ``on_record``, each with the id of its run.
        ledger: The ledger of what is spent; None for memory, or for the ledger of the enclosing scope.
        above: Forwards events to the store and the ``on_record`` of the run around, if they go there.
        durable: Where the run waits until its events are on disk, or None without a store.
        on_open: Are told of the run's gate before anything is spent.
        notices: Tells somebody about the run, or None.
        telemetry: Makes spans of the run and its calls; None to leave that to what traces the scope around it.
    """

    models: RunModels
    breakers: CircuitBreakers | None
    events: Listener[tuple[Any]] | None
    record: Recorder | None
    records: tuple[Listener[tuple[UUID, Envelope]], ...]
    ledger: Ledger | None
    above: Callable[[Session, UUID], Callable[[], None]] | None = None
    durable: Durable | None = None
    on_open: tuple[Callable[[ExecutionContext], Any], ...] = ()
    notices: Notices | None = None
    telemetry: Tracer | None = None

    @property
    def on_delta(self) -> Callable[[str], None] | None:
        """Gets text as it arrives; None if there is no listener."""
        events = self.events
        return (lambda text: events.put((TextDelta(text),))) if events is not None else None

    def opened(self, gate: ExecutionContext, session: Session) -> None:
        """Tell all who need the run's gate that it is open."""
        if self.record is not None:
            self.record.attach(gate, session)
        if self.notices is not None:
            self.notices.opened(gate, session)
        if self.telemetry is not None:
            gate.trace(self.telemetry)
        for tell in self.on_open:
            tell(gate)

    async def told(self, result: ResultT) -> ResultT:
        """Return a result that somebody was told of, if that was asked for."""
        if self.notices is not None:
            await self.notices.ended(result)
        return result

    def watch(self, session: Session, run_id: UUID, *, child: bool = False) -> Callable[[], None]:
        """Forward a session's events to the listeners; return a function that ends it.

        Args:
            session: The session whose events are forwarded.
            run_id: Id of the session's run.
            child: Whether it is a child's: ``on_event`` does not get those, because it gets no run id.
        """
        events, subscribe = None if child else self.events, session.dispatcher.subscribe_all
        endings = [] if events is None else [subscribe(lambda envelope: events.put((envelope.event,)))]
        if self.record is not None:
            self.record.begin(session, run_id)
            endings.append(subscribe(partial(self.record.put, run_id)))
        told = (self.notices.events,) if self.notices is not None else ()
        endings += [subscribe(partial(_put_record, records, run_id)) for records in (*self.records, *told)]
        if self.above is not None:
            endings.append(self.above(session, run_id))

        def end() -> None:
            if endings:
                session.flush()  # another thread may be forwarding the last events now
            for ending in endings:
                ending()

        return end


def _put_record(records: Listener[tuple[UUID, Envelope]], run_id: UUID, envelope: Envelope) -> None:
    records.put((run_id, envelope))


async def open_surroundings(
    stack: AsyncExitStack,
    template: PromptTemplate[Any],
    model: Model | str,
    limits: Limits,
    options: RunOptions,
    inside: Surrounding,
    *,
    many: bool = False,
) -> Surroundings:
    """Open what a run of a template needs; ``stack`` closes it.

    Args:
        stack: The exit stack that closes what is opened.
        template: The template.
        model: The model that answers.
        limits: The limits in force.
        options: The caller's.
        inside: The scope in which the run is started: the run uses its ledger, and the store of the outer run unless a
            store is named.
        many: Whether the run is over many items.

    Raises:
        ConfigurationError: For an unknown model, a missing key or extra, or a model without a price.
        StoreError: If the store or the ledger cannot be written.
    """
    models = await open_models(stack, model, limits, options, template)
    record: Recorder | None = None
    records: list[Listener[tuple[UUID, Envelope]]] = []
    parent = inside.scope
    followed = parent.watch if parent is not None and "store" not in options else None
    clock, ids = options.get("clock", SYSTEM_CLOCK), options.get("ids", SYSTEM_IDS)
    ledger = options.get("ledger", DEFAULT) if inside.gate is None else None
    where = options.get("store", DEFAULT) if followed is None else None
    named = NamedFiles(ledger, where, limits, clock, ids, options.get("durability"))
    own, store, is_own = await open_files_beside_loop(named)
    if own is not None:
        stack.push_async_callback(lambda: closed("the ledger", run_in_worker(own.shutdown, must_run=True)))
    if store is not None:
        if is_own:
            stack.push_async_callback(lambda: closed("the store", run_in_worker(store.close, must_run=True)))
        record = Recorder(store, clock, options.get("on_store_failure", "stop"))
        stack.push_async_callback(record.close)
    notices = _open_notices(stack, options, template, clock)
    on_record, on_event = options.get("on_record"), options.get("on_event")
    if on_record is not None:
        records.append(Listener("on_record", one_by_one(on_record)))
    events: Listener[tuple[Any]] | None = None
    if on_event is not None:
        events = Listener("on_event", one_by_one(on_event))
        stack.push_async_callback(events.close)
    for listener in records:
        stack.push_async_callback(listener.close)
    kept = own if ledger is None or isinstance(ledger, str | Path) else ledger
    durable = record if followed is None or parent is None else parent.durable
    breakers = breakers_of(options, many=many)
    told = (options["on_open"],) if "on_open" in options else ()
    listening = events, record, tuple(records)
    return Surroundings(models, breakers, *listening, kept, followed, durable, told, notices, options.get("telemetry"))


def _open_notices(
    stack: AsyncExitStack, options: RunOptions, template: PromptTemplate[Any], clock: Clock
) -> Notices | None:
    """Return what tells somebody about the run, if the caller asks for that; ``stack`` closes it."""
    notify = options.get("notify")
    if notify is None:
        return None
    from watchkeeper.app.telling.notices import Notices  # few runs need it

    notices = Notices(notify, template.name, clock)
    stack.push_async_callback(notices.close)
    return notices


def open_store(where: RunStore | StoreLike, durability: Durability | None = None) -> RunStore | None:
    """Open the store that the caller names; None means none.

    Raises:
        ConfigurationError: If the caller has opened it with another durability.
        StoreError: If it cannot be written.
    """
    if isinstance(where, RunStore) and durability not in (None, where.durability):
        raise ConfigurationError(
            f"durability={durability!r} comes too late for an open store; open it with RunStore(path, durability=...)"
        )
    if where is None or isinstance(where, RunStore):
        return where
    path = store_path(where)
    return None if path is None else RunStore(path, durability=durability or "process")


class NamedFiles(NamedTuple):
    """What names the files of a run or a block.

    Attributes:
        ledger: The ledger, or its file; None for none.
        store: The store, or its file; None for none.
        limits: May name an account, which needs a ledger.
        clock: Where the ledger's time comes from.
        ids: The source of its identifiers.
        durability: What the caller says that the record is to survive.
    """

    ledger: Ledger | Path | str | None
    store: RunStore | StoreLike
    limits: Limits
    clock: Clock
    ids: IdSource = SYSTEM_IDS
    durability: Durability | None = None

    @property
    def ledger_file(self) -> Path | str | None:
        """The file of the ledger: one that is named, or the user's own if the limits name an account."""
        where = self.ledger
        if not isinstance(where, str | Path) or (where == DEFAULT and self.limits.account is None):
            return None
        return where


class Files(NamedTuple):
    """The opened files.

    Attributes:
        ledger: Where what is spent is kept; None for memory, or for a ledger that the caller has opened.
        store: Where the record is written, if it is written at all.
        is_own: Whether the store was opened here.
    """

    ledger: SqliteLedger | None
    store: RunStore | None
    is_own: bool

    def shut(self) -> None:
        """Close what was opened, because it is not needed after all."""
        if self.ledger is not None:
            self.ledger.shutdown()
        if self.store is not None and self.is_own:
            self.store.close()


def open_files(named: NamedFiles) -> Files:
    """Open files.

    Raises:
        StoreError: If one cannot be written.
    """
    ledger: SqliteLedger | None = None
    if named.ledger_file is not None:
        from watchkeeper.ledgers.sqlite_ledger import SqliteLedger

        ledger = SqliteLedger(named.ledger_file, clock=named.clock, ids=named.ids)
    try:
        store = open_store(named.store, named.durability)
    except BaseException:
        Files(ledger, None, False).shut()
        raise
    return Files(ledger, store, store is not named.store)


async def open_files_beside_loop(named: NamedFiles) -> Files:
    """Open files on a worker thread, if there are any: others may hold them locked for seconds."""

    def shut(files: Files | None, error: BaseException | None) -> None:
        if files is not None:
            files.shut()

    if isinstance(named.store, RunStore | None) and named.ledger_file is None:
        return open_files(named)
    return await run_in_worker(open_files, named, on_late=shut)


FAILURES_OF_MANY: Final = 20
RECOVERY_OF_MANY: Final = 10.0
"""Of the breakers of a run over many: one item that always fails does not open them, and what is closed costs little,
because items wait until it is open again."""


def breakers_of(options: RunOptions, *, many: bool) -> CircuitBreakers | None:
    """Return the caller's circuit breakers; by default new ones, if the run is over many items or has fallbacks."""
    given, clock = options.get("breakers"), options.get("clock", SYSTEM_CLOCK)
    if given is not None:
        return given
    if options.get("fallback"):
        return CircuitBreakers(failure_predicate=is_outage, clock=clock)
    return CircuitBreakers(FAILURES_OF_MANY, RECOVERY_OF_MANY, is_passing_outage, clock=clock) if many else None


def is_passing_outage(error: BaseException) -> bool:
    """Return whether an error means that a provider is down, and may be back soon."""
    return is_outage(error) and not (isinstance(error, ProviderError) and not error.retryable)


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
        """Start without interrupts; ``clock`` measures how long landing may take, by default in real seconds."""
        self._clock = clock
        self._landing: Stop | None = None
        self._abort: str | None = None
        self._gate: ExecutionContext | None = None
        self._hurry: Callable[[], None] | None = None
        self._timer: Timer | None = None

    @contextmanager
    def over(self, gate: ExecutionContext, hurry: Callable[[], None] | None = None) -> Generator[None]:
        """Pass interrupts to ``gate`` inside the block, also one that came before; each calls ``hurry``, too."""
        self._gate, self._hurry = gate, hurry
        self._pass_on()
        try:
            yield
        finally:
            self._gate = self._hurry = None
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
        if self._hurry is not None and self._landing is not None:
            self._hurry()
