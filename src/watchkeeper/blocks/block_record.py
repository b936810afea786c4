"""The run record of a contained block: a row in the run store, and an event for each of its calls and incidents.

A block is recorded as a run is: by `RunStarted` and `RunEnded` on a log, which a `Recorder` writes to the store of the
block, or to that of the run or block around it. What is started inside is its child. The log is not kept in memory: of
any number of calls only those are held that are not written yet. The recorder works on a loop of its own, so that
blocks in plain code, and on any loop, have the same one.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final
from uuid import UUID

from msgspec import structs

from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import CLOSED_UNDER_WAY, CallRequest, Charge, presumed_charge
from watchkeeper.accounting.ledger import is_inherited, usage_at_worst
from watchkeeper.app.options import OnStoreFailure, StoreLike
from watchkeeper.app.recording import Recorder
from watchkeeper.children.child import ChildFacts, record_end, record_start
from watchkeeper.children.innermost import innermost_run, inside_scope
from watchkeeper.children.spending import Records, Spending, ended_call
from watchkeeper.children.inside import Surrounding
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.record import Ending, Node
from watchkeeper.containment.settlement import reserved_amounts
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import Stop
from watchkeeper.core.forks import in_forked
from watchkeeper.core.ids import SYSTEM_IDS
from watchkeeper.core.workers import run_in_worker
from watchkeeper.runtime.events import RunEnded, RunStarted
from watchkeeper.runtime.plan import RunScope
from watchkeeper.runtime.portal import Portal
from watchkeeper.runtime.result import end_in_words, spent
from watchkeeper.runtime.user_code import closed
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.shield.decision import SafetyEvent
from watchkeeper.disk.power import Durability
from watchkeeper.store.run_index import BLOCK
from watchkeeper.store.run_store import RunStore
from watchkeeper.disk.sqlite import DEFAULT

RECORDERS: Final = Portal()
"""Where recorders of blocks work; none of the caller's code runs there."""

in_forked(RECORDERS.forget)

OURS: Final = ("watchkeeper.blocks.contained", "watchkeeper.blocks.block_record", "contextlib")
"""Modules between a block and the code that opens it."""


class PassingLog(Session):
    """A session that passes its events on, in order and from any thread, and keeps none of them."""

    def __init__(self, clock: Clock) -> None:
        """Start at number 1."""
        super().__init__(clock=clock)
        self._passing = threading.RLock()  # a finaliser may come in here in the middle
        self._number = 0

    def dispatch(self, event: Any) -> Envelope:
        """Give an event its number and pass it on to the subscribers."""
        with self._passing:
            self._number += 1
            envelope = Envelope(self._number, self.clock.now(), event)
            self.dispatcher.publish(envelope)
        return envelope


@dataclass(frozen=True, slots=True)
class StoreTerms:
    """What `contained` was told about the record.

    Attributes:
        store: The store that gets the record.
        on_failure: What follows a failure of the store.
        durability: What it is to survive; None for what the store does.
        name: Name of the block; empty for the file and line of its code.
    """

    store: RunStore | StoreLike = DEFAULT
    on_failure: OnStoreFailure = "stop"
    durability: Durability | None = None
    name: str = ""

    def followed(self, around: Surrounding) -> Callable[[Session, UUID], Callable[[], None]] | None:
        """Return what forwards events to the store of the run or block around, if the record goes there."""
        unnamed = isinstance(self.store, str) and self.store == DEFAULT
        return around.scope.watch if around.scope is not None and unnamed else None


class OwnStore:
    """A recorder, and the store that it writes to."""

    def __init__(self, store: RunStore, *, shut: bool, clock: Clock, choice: OnStoreFailure) -> None:
        """Start to record; ``shut`` says whether to close the store at the end."""
        self._store = store
        self._shut = shut
        self._process = os.getpid()
        self.recorder: Recorder = RECORDERS.submit(self._begin(clock, choice)).result()

    async def _begin(self, clock: Clock, choice: OnStoreFailure) -> Recorder:
        return Recorder(self._store, clock, choice)

    def watch(self, session: Session, run_id: UUID) -> Callable[[], None]:
        """Write a session's events, given the id of its run; return a function that ends it."""

        def put(envelope: Envelope) -> None:
            if self._process == os.getpid():  # a forked process has not the thread that writes
                self.recorder.put(run_id, envelope)

        forget = session.dispatcher.subscribe_all(put)

        def end() -> None:
            session.flush()  # another thread may be forwarding the last events now
            forget()

        return end

    def finish(self) -> Future[str]:
        """Begin to write what is left, and to close; the future tells what is not on record, or an empty text."""
        if self._process != os.getpid():  # the block's own process records it
            elsewhere: Future[str] = Future()
            elsewhere.set_result("")
            return elsewhere
        return RECORDERS.submit(self._finish())

    async def _finish(self) -> str:
        try:
            return await self.recorder.settled()
        finally:
            await self.recorder.close()
            if self._shut:
                await closed("the store", run_in_worker(self._store.close, must_run=True))


def open_record(
    terms: StoreTerms,
    store: RunStore | None,
    around: Surrounding,
    context: ExecutionContext,
    price_of: Callable[[str, str, Any], Any],
) -> BlockRecord | None:
    """Open the record of a block, and record that it begins; None if it is to leave none.

    Args:
        terms: What the caller said about it.
        store: The store of its own, if it has one; closed with the block unless it is the caller's.
        around: What the block is opened in; its record goes where that of the run or block around it goes, unless a
            store is named.
        context: The gate of the block.
        price_of: Returns the price of a model that the block uses.
    """
    scope, clock, followed = around.scope, context.clock, terms.followed(around)
    if store is None and followed is None:
        return None
    own = None
    if store is not None:
        own = OwnStore(store, shut=store is not terms.store, clock=clock, choice=terms.on_failure)
    session = PassingLog(clock)
    ids = around.run_context(session.session_id, SYSTEM_IDS)
    chain = context.metadata.chain_id
    if around.gate is None or around.gate.metadata.chain_id != chain:  # a block inside another shares its chain
        ids = structs.replace(ids, run_id=UUID(chain))
    own_scope = RunScope(
        session,
        context,
        ids,
        clock,
        SYSTEM_IDS,
        parent_run_id=around.parent_run_id,
        depths=around.depths,
        deepest={} if scope is None else scope.deepest,
        watch=followed if own is None else own.watch,
        durable=None if own is not None or scope is None else scope.durable,
        price_of=price_of,
        apart=around.apart,
    )
    record = BlockRecord(terms.name or place_of_caller(), around, own_scope, own)
    record.begin()
    return record


def place_of_caller() -> str:
    """Return file and line of the code that opens a block."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in OURS:
        frame = frame.f_back
    return "a block" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class BlockRecord:
    """The record of one block; its context tells it of calls and incidents.

    Attributes:
        scope: What the block is for runs that are started in it.
        spending: Puts what is spent in it on the record of the run around; None if there is none.
    """

    def __init__(self, name: str, around: Surrounding, scope: RunScope, own: OwnStore | None) -> None:
        """Keep what the record is about; nothing is recorded yet."""
        context = scope.gate
        self.scope = scope
        self._context = context
        self._above = around.scope
        self._own = own
        self.spending: Spending | None = None
        self._presumed: set[int] = set()  # numbers of calls that its end has put on record already
        self._presuming = threading.RLock()
        self._inside = ExitStack()
        self._unwatch: Callable[[], None] | None = None
        self._about = ChildFacts("block", name, BLOCK, context.clock.monotonic(), around.call_id, admitted=False)
        limits = replace(context.limits, max_turns=None)  # it has no turns
        self._started = RunStarted(
            run_context=scope.run_context,
            prompt_name=name,
            model=BLOCK,
            limits=limits.describe(),
            deadline=None if context.deadline is None else context.deadline.at,
            started_at=context.clock.now(),
            parent_run_id=scope.parent_run_id,
            apart=scope.apart,
            limit_values=limits,
        )

    def begin(self) -> None:
        """Record that the block begins, and what happens in it from now on."""
        scope = self.scope
        if self._own is not None:
            self._own.recorder.attach(self._context, scope.session)
        if scope.watch is not None:
            self._unwatch = scope.watch(scope.session, scope.run_context.run_id)
        if self._above is not None:
            record_start(self._above, scope, self._about)
        scope.record(self._started)
        before = self._context.tell(self)
        if scope.durable is not None:
            self.spending = Spending(scope, scope.durable, before)
        elif isinstance(before, Records):
            self.spending = before.spending
        self._inside.enter_context(inside_scope(scope, is_run=False))

    def call_begins(self, node: Node, demand: Demand) -> None:
        """Put a call of a block inside a run on disk, as the run does with those of its code.

        If the block has a record of its own, the run around has no other way to know of runs and blocks inside.
        """
        if self.spending is not None and (self._own is not None or self._is_innermost()):
            self.spending.call_begins(node, demand)

    def call_costs(self, node: Node, demand: Demand, nanos: int) -> None:
        """Put what such a call costs so far on disk."""
        if self.spending is not None and (self._own is not None or self._is_innermost()):
            self.spending.call_costs(node, demand, nanos)

    def call_ended(self, request: CallRequest, node: Node, charge: Charge | None) -> None:
        """Record a call, unless a run or a block inside records it, or the end of the block has recorded it already."""
        with self._presuming:
            if node.number in self._presumed:
                return
        self._record_call(request, node, charge)

    def _record_call(self, request: CallRequest, node: Node, charge: Charge | None) -> None:
        if self._own is not None and self.spending is not None:
            self.spending.call_ended(request, node, charge)  # the run around has another record
        if request.kind == "child" or not self._is_innermost():
            return  # a run that is started here has its own pair of events
        self.scope.record(ended_call(self.scope, request, node, charge, None))

    def incident_found(self, event: SafetyEvent) -> None:
        """Record an incident, unless a run or a block inside records it."""
        if self._is_innermost():
            self.scope.record(event)

    def _is_innermost(self) -> bool:
        inside = innermost_run()
        return inside is None or inside is self.scope or not inside.gate.stands_below(self._context)

    def leave(self) -> None:
        """Take no more runs for its children: code that comes now runs outside."""
        self._inside.close()

    def _presume_left(self) -> None:
        """Record at their worst case the calls that go on after the block, on threads that nothing can interrupt."""
        if is_inherited(self._context.account):
            return
        now = self._context.clock.monotonic()
        with self._presuming:  # a call that ends meanwhile, in its own thread, is recorded here or there
            left = [(call, *reserved_amounts(call)) for call in self._context.in_flight if call.node.ending is None]
            self._presumed.update(call.node.number for call, _, _ in left)
        for call, tokens, nanos in left:
            ending = Ending(now, "aborted", nanos, tokens, 0, CLOSED_UNDER_WAY.reason, None, None)
            self._record_call(call.request, structs.replace(call.node, ending=ending), presumed_charge(tokens, nanos))

    def end(self, stop: Stop | None) -> Future[str] | None:
        """Record the end, and begin to write what is left; the future tells what is not on record.

        Returns:
            None if what is around it writes the record.
        """
        scope, context = self.scope, self._context
        self._presume_left()
        context.tell(None)
        usage = usage_at_worst(context.account, context.ledger)
        deadline, took = context.deadline, scope.clock.monotonic() - self._about.began
        ended = RunEnded(
            run_id=scope.run_context.run_id,
            stop=stop,
            output=None,
            partial=None,
            text="",
            verdict="unchecked",
            usage=usage,
            duration_ms=took * 1000,
            remaining_seconds=None if deadline is None else deadline.remaining(scope.clock).total_seconds(),
            ended_at=scope.clock.now(),
            run_context=scope.run_context,
        )
        scope.record(ended)
        if self._above is not None:
            used = usage.tokens.total, usage.cost_nanos, took, usage.model_calls
            words = end_in_words(
                spent(None, usage.tool_calls, *used, presumed=usage.presumed.tokens.total),
                None if stop is None else stop.message,
            )
            record_end(self._above, scope, self._about, stop, words)
        if self._unwatch is not None:
            self._unwatch()
        return None if self._own is None else self._own.finish()
