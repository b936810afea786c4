"""What a run needs around it, opened before it starts and closed after it, whatever happens: the model if it was
named by a string, the store, the ledger, the listeners. Everything that can be refused is refused here, before anything
is spent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from watchkeeper.app.lineup import Lineup, lineup, switched_to
from watchkeeper.app.listener import Listener, one_by_one
from watchkeeper.app.options import RunOptions, StoreLike
from watchkeeper.core.limits import Limits
from watchkeeper.core.model import Model
from watchkeeper.core.workers import run_in_worker
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.bounded import closed
from watchkeeper.runtime.events import TextDelta
from watchkeeper.runtime.failures import is_outage
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.store.run_store import RunStore
from watchkeeper.store.schema import store_path

if TYPE_CHECKING:
    from watchkeeper.containment.circuit_breaker import CircuitBreakers
    from watchkeeper.containment.ledger import Ledger


class Surroundings(msgspec.Struct, frozen=True):
    """The opened things.

    Attributes:
        models: Who answers, who takes over, who is the cheaper one.
        breakers: What keeps calls away from providers that are down, or None.
        events: Where events go for the caller, or None.
        records: Where envelopes go, each with the id of its run: to the store, and to the caller.
        ledger: Where what is spent is kept; None for memory.
    """

    models: Lineup
    breakers: CircuitBreakers | None
    events: Listener[tuple[Any]] | None
    records: tuple[Listener[tuple[UUID, Envelope]], ...]
    ledger: Ledger | None

    @property
    def on_delta(self) -> Callable[[str], None] | None:
        """Where text goes as it arrives, or None if nobody listens."""
        events = self.events
        return (lambda text: events.put((TextDelta(text),))) if events is not None else None

    def watch(self, session: Session, run_id: UUID) -> Callable[[], None]:
        """Forward a session's events to the listeners; return a function that ends it."""
        return self._forward(session, run_id, self.events)

    def watch_child(self, session: Session, run_id: UUID) -> Callable[[], None]:
        """Forward a child's events, each with the id of its run; ``on_event``, which is told no id, gets none."""
        return self._forward(session, run_id, None)

    def _forward(self, session: Session, run_id: UUID, events: Listener[tuple[Any]] | None) -> Callable[[], None]:
        if events is None and not self.records:
            return _nothing_to_end
        endings: list[Callable[[], None]] = []
        if events is not None:
            endings.append(session.dispatcher.subscribe_all(lambda envelope: events.put((envelope.event,))))
        for records in self.records:
            put = partial(_put_record, records, run_id)
            endings.append(session.dispatcher.subscribe_all(put))

        def end() -> None:
            session.flush()  # another thread may be telling the last events just now
            for ending in endings:
                ending()

        return end


def open_surroundings(
    stack: AsyncExitStack, template: PromptTemplate[Any], model: Model | str, limits: Limits, options: RunOptions
) -> Surroundings:
    """Open what a run of a template needs; ``stack`` closes it.

    Raises:
        ConfigurationError: For an unknown model, a missing key or extra, or a model without a price.
        StoreError: If the store or the ledger cannot be written.
    """
    models = lineup(stack, model, limits, options, switched_to(template), template.models)
    events: Listener[tuple[Any]] | None = None
    records: list[Listener[tuple[UUID, Envelope]]] = []
    store = open_store(options.store)
    if store is not None:
        if store is not options.store:
            stack.push_async_callback(lambda: closed("the store", run_in_worker(store.close)))
        records.append(Listener("store", store.append))
    if options.on_record is not None:
        records.append(Listener("on_record", one_by_one(options.on_record)))
    if options.on_event is not None:
        events = Listener("on_event", one_by_one(options.on_event))
        stack.push_async_callback(events.close)
    for listener in records:
        stack.push_async_callback(listener.close)
    ledger = opened_ledger(stack, limits, options)
    return Surroundings(models, breakers_of(options), events, tuple(records), ledger)


def opened_ledger(stack: AsyncExitStack, limits: Limits, options: RunOptions) -> Ledger | None:
    """Open the ledger that the caller or an account needs; None if memory will do. ``stack`` closes what is opened.

    Raises:
        StoreError: If it cannot be written.
    """
    where = options.ledger
    if where == "default" and limits.account is None:
        return None
    if not isinstance(where, str | Path):
        return where
    from watchkeeper.store.sqlite_ledger import SqliteLedger

    ledger = SqliteLedger(where, clock=options.clock, ids=options.ids)
    stack.push_async_callback(lambda: closed("the ledger", run_in_worker(ledger.shutdown)))
    return ledger


def breakers_of(options: RunOptions) -> CircuitBreakers | None:
    """Return the caller's circuit breakers; where another model can take over, new ones by default."""
    if options.breakers is not None or not options.fallback:
        return options.breakers
    from watchkeeper.containment.circuit_breaker import CircuitBreakers

    return CircuitBreakers(failure_predicate=is_outage, clock=options.clock)


def _nothing_to_end() -> None:
    """Nobody listens."""


def _put_record(records: Listener[tuple[UUID, Envelope]], run_id: UUID, envelope: Envelope) -> None:
    records.put((run_id, envelope))


def open_store(where: RunStore | StoreLike) -> RunStore | None:
    """Open the store that the caller names; None means none."""
    if where is None or isinstance(where, RunStore):
        return where
    path = store_path(where)
    return None if path is None else RunStore(path)
