"""The record of one context: a node for every call, its incidents, and snapshots of both.

Nodes are in the order in which calls were decided, incidents in the order in which they were found; calls under way
are visible. What a reader gets never changes: a snapshot shares what is done and keeps its own view of what is not, so
taking one costs the same at ten nodes and at a hundred thousand. Memory is bounded: the newest nodes and incidents are
kept, besides calls under way and the context's own stops, and what was dropped is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec.structs import astuple

from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import CallRequest, Charge, Exhausted, NodeKind
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import ConfigurationError, Stop
from watchkeeper.core.text import logger, shown
from watchkeeper.core.usage import NANOS_PER_USD, TokenUsage, Usage
from watchkeeper.session.slices import SequenceView
from watchkeeper.shield.decision import KEPT_EVENTS, ChainMetadata, Decision, SafetyEvent

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

NodeStatus = Literal["running", "ok", "halted", "aborted", "timeout", "error"]

KEPT_NODES: Final = 100_000
"""How many of its newest nodes a record keeps at least, besides those of calls under way."""


class FrozenView(SequenceView[T_co]):
    """A sequence of a fixed length whose items are looked up, or written out, when they are read."""

    __slots__ = ("_brief", "_length", "_look_up", "_what")

    def __init__(self, length: int, look_up: Callable[[int], T_co], what: str, *, brief: bool = False) -> None:
        """View ``length`` items.

        Args:
            length: Number of items.
            look_up: Returns one by its index.
            what: Names one of them in errors.
            brief: Whether its `repr` only counts the items, because writing them all out would take long.
        """
        self._length = length
        self._look_up = look_up
        self._what = what
        self._brief = brief

    def __len__(self) -> int:
        """Return the number of items."""
        return self._length

    def _item(self, place: int) -> T_co:
        return self._look_up(place)

    def __add__(self, other: Iterable[Any]) -> list[Any]:
        """Return a list of these items and those of another iterable."""
        return [*self, *other]

    def __radd__(self, other: Iterable[Any]) -> list[Any]:
        """Return a list of another iterable's items and these."""
        return [*other, *self]

    def copy(self) -> list[T_co]:
        """Return the items as a list of the caller's own."""
        return list(self)

    def __repr__(self) -> str:
        """Show the items, or how many there are."""
        return f"<{self._length} {self._what}s>" if self._brief else repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the items themselves, so that a worker process can hand a snapshot to the process that started it."""
        return _view_of, (tuple(self), self._what, self._brief)


def _view_of(items: tuple[T_co, ...], what: str, brief: bool) -> FrozenView[T_co]:
    """Make the view that was pickled."""
    return FrozenView(len(items), items.__getitem__, what, brief=brief)


# --- nodes ------------------------------------------------------------------------------------------------------------


class Ending(msgspec.Struct, frozen=True):
    """How a call ended; replaced as a whole, so a reader never sees half of one."""

    at: float
    status: NodeStatus
    cost_nanos: int | None
    tokens: TokenUsage
    retries: int
    stop_reason: str | None
    error: str | None
    late_result: Any


_LAST_GROUP: Final = 0xFFFF_FFFF_FFFF


@lru_cache(maxsize=64)
def _begin_of_id(number: int) -> str:
    """Write out all of a UUID but its last group: it is the same for all nodes of a tree."""
    digits = f"{number:020x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:]}"


class Node(msgspec.Struct, eq=False):
    """The gate's own record of one call: what is fixed when it begins, and its ending, once there is one.

    Attributes:
        number: The integer of its UUID.
        parent: The call inside which it was made.
        kind: Model call, tool call or child run.
        name: Label of the call.
        began: Monotonic instant at which it was decided.
        ending: How it ended; None while it is under way.
    """

    number: int
    parent: Node | None
    kind: NodeKind
    name: str
    began: float
    ending: Ending | None = None

    @property
    def node_id(self) -> str:
        """The node's UUID, formatted only when it is read."""
        return f"{_begin_of_id(self.number >> 48)}-{self.number & _LAST_GROUP:012x}"

    def __repr__(self) -> str:
        """Return kind, name and status."""
        return f"<Node {self.kind} {self.name!r} {self.ending.status if self.ending else 'running'}>"


class Outcome(msgspec.Struct, Generic[T], frozen=True):
    """How a call at the gate ended.

    Attributes:
        decision: ALLOW if it ran and returned, RETRY if it failed and may be repeated, HALT if it was refused or
            stopped; or the decision of a hook about it.
        value: What the work returned; also if it returned too late, but before the gate abandoned it.
        error: What the work raised, or a TimeoutError for a call that overran.
        stop_reason: The reason behind a HALT, the type of the event behind what a hook said, or ``call_timeout``.
        stop: The stop behind a HALT or a QUARANTINE; None for failures and time-outs of the call alone.
        node: The gate's own record of the call.
        admitted: Whether the work was begun.
        refusal: What the hook said that refused it, or None.
    """

    decision: Decision
    value: T | None = None
    error: BaseException | None = None
    stop_reason: str | None = None
    stop: Stop | None = None
    node: Node | None = None
    admitted: bool = True
    refusal: SafetyEvent | None = None

    @property
    def node_id(self) -> str | None:
        """The id of the admitted call, or None if it was refused."""
        return self.node.node_id if self.node is not None and self.admitted else None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One call, as a reader sees it.

    Attributes:
        node_id: UUID of the call.
        parent_id: The call inside which it was made, or None.
        kind: Model call, tool call or child run.
        operation_name: Label of the call.
        start_ts: When it was decided, in UTC.
        end_ts: When it ended, or None while it is under way.
        status: ``running`` while it is under way; ``halted`` if it was refused.
        cost_usd: What it cost, 0.0 if that is not known.
        retries_used: Retries it spent.
        usage: Its tokens, or None while it is under way.
        stop_reason: Why it was refused or stopped.
        error: What it raised, as text.
        late_result: What it returned after the gate had abandoned it.
    """

    node_id: str
    parent_id: str | None
    kind: NodeKind
    operation_name: str
    start_ts: datetime
    end_ts: datetime | None
    status: NodeStatus
    cost_usd: float
    retries_used: int
    usage: TokenUsage | None = None
    stop_reason: str | None = None
    error: str | None = None
    late_result: Any = None


def record_of(node: Node, ending: Ending | None, wall_time: Callable[[float], datetime]) -> NodeRecord:
    """Write a node out with the given ending."""
    parent_id = node.parent.node_id if node.parent else None
    begun = (node.node_id, parent_id, node.kind, node.name, wall_time(node.began))
    if ending is None:
        return NodeRecord(*begun, None, "running", 0.0, 0)
    at, status, cost_nanos, tokens, retries, stop_reason, error, late_result = astuple(ending)
    cost_usd = (cost_nanos or 0) / NANOS_PER_USD
    return NodeRecord(*begun, wall_time(at), status, cost_usd, retries, tokens, stop_reason, error, late_result)


class NodeStore:
    """The nodes of one context.

    Attributes:
        newer: The newest nodes. Code that appends here calls `rotate` once there are ``kept`` of them; a method that
            does both would cost every call.
        kept: Minimum number of newest nodes that are kept.
        dropped: Number of items that are no longer kept.
        refused: How many of all were of calls that were refused.
    """

    __slots__ = ("_instant", "_lock", "_older", "_wall", "dropped", "kept", "newer", "refused")

    def __init__(self, clock: Clock, kept: int = KEPT_NODES) -> None:
        """Start empty; wall times, for display only, count from now."""
        self._lock = threading.RLock()
        self._older: list[Node] = []
        self.newer: list[Node] = []
        self.kept = kept
        self.dropped = self.refused = 0
        self._instant, self._wall = clock.monotonic(), clock.now()

    def add_refused(self, node: Node) -> None:
        """Append the node of a call that was refused."""
        self.refused += 1  # no thread can come in between
        self.add(node)

    def add(self, node: Node) -> None:
        """Append a node."""
        newer = self.newer
        newer.append(node)
        if len(newer) >= self.kept:
            self.rotate(newer)

    def rotate(self, full: list[Node]) -> None:
        """Drop the older nodes, and let the full list of newer ones take their place; once for each list."""
        with self._lock:
            if self.newer is full:
                self.dropped += len(self._older)
                self._older, self.newer = full, []

    @property
    def newest(self) -> Node | None:
        """The node that was added last."""
        newer = self.newer or self._older
        return newer[-1] if newer else None

    def view(self, unfinished: Iterable[Node]) -> FrozenView[NodeRecord]:
        """Return the nodes as they are now.

        Args:
            unfinished: Yields the nodes that may still change: under way, or abandoned before their result came.
        """
        with self._lock:
            older, newer = self._older, self.newer
            length = len(newer)  # before the calls under way are looked at: what begins in between is not in the view
            running = tuple(unfinished)
            endings = {node.number: node.ending for node in running}
            early: tuple[Node, ...] = ()
            if self.dropped and running:
                early = tuple(node for node in running if node.number < older[0].number)
        first, second = len(early), len(early) + len(older)

        def look_up(place: int) -> NodeRecord:
            node = early[place] if place < first else older[place - first] if place < second else newer[place - second]
            return record_of(node, endings.get(node.number, node.ending), self._wall_time)

        return FrozenView(second + length, look_up, "node", brief=True)

    def _wall_time(self, instant: float) -> datetime:
        return self._wall + timedelta(seconds=instant - self._instant)


# --- incidents and snapshots ------------------------------------------------------------------------------------------
# What happens in a child is on the record of every context above it too, exactly once. What comes from above (the abort
# of a whole tree) is on the record of each context that it ends, and is reported no further up.

Listener = Callable[[SafetyEvent], object]


class Witness(Protocol):
    """Is told of all that happens at a context, on the thread on which it happens; must not wait for long.

    Only `call_begins` may raise: then the call does not begin.
    """

    def call_begins(self, node: Node, demand: Demand) -> None:
        """Take note of a call that was admitted, and of what is reserved for it, before anything is sent or done."""
        ...

    def call_costs(self, node: Node, demand: Demand, nanos: int) -> None:
        """Take note of what the work of a call says that it costs so far."""
        ...

    def call_ended(self, request: CallRequest, node: Node, charge: Charge | None) -> None:
        """Take note of a call that has ended, with its charge, or was refused (None); its node tells how."""
        ...

    def incident_found(self, event: SafetyEvent) -> None:
        """Take note of an incident."""
        ...


class Incidents:
    """An append-only list of safety events, and its listener.

    Attributes:
        metadata: Names and ids of the chain and its owner.
        listener: Told of every event, once.
        witness: Told of every event and of every call, here and in the contexts that are opened below; or None.
        events: The events, including those of the contexts below.
        dropped: Number of items that are no longer kept.
        ended: Whether the context was aborted or closed, and with it all below.
    """

    __slots__ = (
        *("_above", "_clock", "_lasting", "_lock", "dropped", "ended", "events", "listener", "metadata"),
        "witness",
    )

    def __init__(
        self, metadata: ChainMetadata, clock: Clock, listener: Listener | None, above: Incidents | None = None
    ) -> None:
        """Start without events, under the record of the context above."""
        self.metadata = metadata
        self.listener = listener
        self.witness: Witness | None = None if above is None else above.witness
        self.events: list[SafetyEvent] = []
        self.dropped = 0
        self.ended = False
        self._lasting: set[int] = set()
        self._lock = threading.RLock()  # a context that is collected reports, also in here
        self._above = above
        self._clock = clock

    def view(self) -> FrozenView[SafetyEvent]:
        """Return the events as they are now; that takes the same short time for any number of them."""
        events = self.events
        return FrozenView(len(events), events.__getitem__, "event")

    @property
    def parent_id(self) -> str | None:
        """The chain around this one, or None."""
        above = self._above
        while above is not None and above.metadata.chain_id == self.metadata.chain_id:
            above = above._above
        return None if above is None else above.metadata.chain_id

    @property
    def ended_above(self) -> bool:
        """Whether a context above was aborted or closed."""
        above = self._above
        return above is not None and (above.ended or above.ended_above)

    def record(self, event: SafetyEvent, *, lasting: bool = False, from_above: bool = False) -> None:
        """Append an event here and above, and tell the listener, whose failure is reported and changes nothing.

        Args:
            event: The safety event.
            lasting: Whether this record always keeps it; the records above treat it like any other event.
            from_above: Whether it came from above, where it is on record already.

        Raises:
            ConfigurationError: If it is no SafetyEvent.
        """
        if not isinstance(event, SafetyEvent):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ConfigurationError(f"{event!r} must be a SafetyEvent")
        level: Incidents | None = self
        while level is not None:
            level._append(
                event, lasting and level is self
            )  # a context may have any number of children that are stopped
            level = None if from_above else level._above
        above = self._above if from_above else None
        if self.witness is not None and (above is None or self.witness is not above.witness):
            self.witness.incident_found(event)
        if above is not None and self.listener is above.listener:
            return
        if self.listener is None:
            return
        try:
            self.listener(event)
        except Exception as error:
            logger().error("safety_event.unheard", event_type=event.event_type, error=shown(error))

    def _append(self, event: SafetyEvent, lasting: bool) -> None:
        """Append an event to this very record."""
        with self._lock:
            if lasting:
                self._lasting.add(id(event))
            self.events.append(event)
            if len(self.events) - len(self._lasting) == 2 * KEPT_EVENTS:
                self._thin_out()

    def _thin_out(self) -> None:
        """Forget the older half of what need not last; what is appended meanwhile stays too."""
        kept: list[SafetyEvent] = []
        dropped = 0
        for event in self.events:
            if dropped < KEPT_EVENTS and id(event) not in self._lasting:
                dropped += 1
            else:
                kept.append(event)
        self.events = kept
        self.dropped += dropped

    def report_overrun(self, event_type: str, reason: str) -> None:
        """Record that one call overran its own time-out; it may be repeated."""
        metadata = self.metadata
        facts = {"chain_id": metadata.chain_id, "limit": "timeout_ms", "source": "gate"}
        event = SafetyEvent(
            event_type, Decision.RETRY, reason, "ExecutionContext", metadata.request_id, self._clock.now(), facts
        )
        self.record(event)

    def report(
        self, stop: Stop, short: Exhausted | None = None, *, lasting: bool = False, from_above: bool = False
    ) -> None:
        """Record a stop of the gate, with what the refused call had asked for and what was left for it."""
        metadata = self.metadata
        facts: dict[str, Any] = {"chain_id": metadata.chain_id, "limit": stop.limit, "value": stop.value}
        facts["source"] = stop.source
        if short is not None:
            facts |= {"asked": short.need, "left": max(0, short.left)}
        self.record(
            SafetyEvent(
                event_type=stop.reason,
                decision=Decision.HALT,
                reason=stop.message,
                hook="ExecutionContext",
                ts=self._clock.now(),
                request_id=metadata.request_id,
                metadata={name: fact for name, fact in facts.items() if fact is not None},
            ),
            lasting=lasting,
            from_above=from_above,
        )


@dataclass(frozen=True, slots=True)
class ContextSnapshot:
    """An immutable snapshot of a chain: its calls, its events, its usage and its stop.

    Attributes:
        chain_id: The chain.
        request_id: The request it serves.
        step_count: Admitted calls, children's included.
        cost_usd_accumulated: Dollars spent where prices are known, children's included.
        retries_used: Retries spent.
        aborted: Whether `abort` was called on it or above it; closing is not aborting.
        abort_reason: The stop reason that ended it (of any kind, not only an abort), or None.
        elapsed_ms: Milliseconds since it was opened.
        nodes: Its calls, oldest first; those under way have no end yet.
        events: Its incidents, oldest first.
        nodes_dropped: Nodes that are no longer kept.
        events_dropped: Incidents that are no longer kept; its own stops always are.
        usage: Everything it and its children used.
        stop: What ended it, or what ended its work, in full.
        parent_id: The chain around it, in which it counts, too; None for an outermost one.
        apart: Whether it was made inside another context but is independent of it (``parent=None``).
        calls_refused: Its calls that were refused. A stop is one event, however many calls it refuses.
    """

    chain_id: str
    request_id: str
    step_count: int
    cost_usd_accumulated: float
    retries_used: int
    aborted: bool
    abort_reason: str | None
    elapsed_ms: float
    nodes: Sequence[NodeRecord]
    events: Sequence[SafetyEvent]
    nodes_dropped: int
    events_dropped: int
    usage: Usage
    stop: Stop | None
    parent_id: str | None = None
    apart: bool = False
    calls_refused: int = 0
