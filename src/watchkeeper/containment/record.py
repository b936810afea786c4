"""The record of calls: one node per call, in the order in which they were decided (seed: execution-context, section 5).

Calls under way are visible. What a reader gets is frozen: a snapshot shares the nodes that are done and keeps its own
view of those that are not, so taking one costs the same at ten nodes and at a hundred thousand. The newest
`KEPT_NODES` to twice as many are kept, and all that are still under way; what was dropped is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, cast, overload

import msgspec

from watchkeeper.accounting.call_request import NodeKind
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import ConfigurationError, Stop
from watchkeeper.core.logs import logger
from watchkeeper.core.text import shown
from watchkeeper.core.usage import NANOS_PER_USD, TokenUsage, Usage
from watchkeeper.shield.decision import KEPT_EVENTS, ChainMetadata, Decision, SafetyEvent

NodeStatus = Literal["running", "ok", "halted", "aborted", "timeout", "error"]

KEPT_NODES: Final = 100_000


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


class Node:
    """The gate's own record of one call: what is fixed when it begins, and its ending, once there is one."""

    __slots__ = ("began", "ending", "kind", "name", "number", "parent")

    def __init__(self, number: int, parent: Node | None, kind: NodeKind, name: str, began: float) -> None:
        """Begin a node; ``number`` is the integer of its UUID."""
        self.number = number
        self.parent = parent
        self.kind: NodeKind = kind
        self.name = name
        self.began = began
        self.ending: Ending | None = None

    @property
    def node_id(self) -> str:
        """The node's UUID, written out only when somebody asks."""
        return f"{_begin_of_id(self.number >> 48)}-{self.number & _LAST_GROUP:012x}"

    def __repr__(self) -> str:
        """Return kind, name and status."""
        return f"<Node {self.kind} {self.name!r} {self.ending.status if self.ending else 'running'}>"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One call, as a reader sees it (seed: execution-context, section 5).

    Attributes:
        node_id: UUID of the call.
        parent_id: The call inside which it was made, or None.
        kind: Model call, tool call or child run.
        operation_name: Its label.
        start_ts: When it was decided, in UTC.
        end_ts: When it ended, or None while it is under way.
        status: ``running`` while it is under way; ``halted`` if it was refused.
        cost_usd: What it cost, 0.0 if that is not known.
        retries_used: Retries it spent.
        usage: Its tokens, or None while it is under way.
        stop_reason: Why it was refused or stopped.
        error: What it raised, as text.
        late_result: What it returned after the gate had let go of it.
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


class Timeline:
    """Turns monotonic instants into wall times, for display only."""

    __slots__ = ("instant", "wall")

    def __init__(self, clock: Clock) -> None:
        """Anchor the two scales to each other, now."""
        self.instant = clock.monotonic()
        self.wall = clock.now()

    def at(self, instant: float) -> datetime:
        """Return the wall time of a monotonic instant."""
        return self.wall + timedelta(seconds=instant - self.instant)


class NodesView(Sequence[NodeRecord]):
    """The nodes as they were at one moment; records are written out when they are read."""

    __slots__ = ("_early", "_endings", "_newer", "_older", "_sizes", "_timeline")

    def __init__(
        self,
        early: tuple[Node, ...],
        segments: tuple[list[Node], list[Node]],
        endings: dict[int, Ending | None],
        timeline: Timeline,
    ) -> None:
        """Look at two segments as long as they are now; ``endings`` are those of nodes that may still change."""
        self._early = early
        self._older, self._newer = segments
        self._sizes = (len(early), len(self._older), len(self._newer))
        self._endings = endings
        self._timeline = timeline

    def __len__(self) -> int:
        """Return the number of nodes."""
        return sum(self._sizes)

    @overload
    def __getitem__(self, index: int) -> NodeRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[NodeRecord, ...]: ...
    def __getitem__(self, index: int | slice) -> NodeRecord | tuple[NodeRecord, ...]:
        """Return one node, or several as a tuple."""
        if isinstance(index, slice):
            return tuple(self._record(place) for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"there are {len(self)} nodes, no node {index}")
        return self._record(place)

    def __eq__(self, other: object) -> bool:
        """Return whether the other holds equal nodes in the same order."""
        if not isinstance(other, Sequence):
            return NotImplemented
        others = cast("Sequence[object]", other)
        return len(self) == len(others) and all(one == two for one, two in zip(self, others, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a view of records that may be unhashable

    def __repr__(self) -> str:
        """Return how many there are."""
        return f"<{len(self)} nodes>"

    def _record(self, place: int) -> NodeRecord:
        early, older, _ = self._sizes
        if place < early:
            node = self._early[place]
        elif place < early + older:
            node = self._older[place - early]
        else:
            node = self._newer[place - early - older]
        ending = self._endings.get(node.number, node.ending)
        return record(node, ending, self._timeline)


def record(node: Node, ending: Ending | None, timeline: Timeline) -> NodeRecord:
    """Write a node out with the given ending."""
    return NodeRecord(
        node_id=node.node_id,
        parent_id=node.parent.node_id if node.parent else None,
        kind=node.kind,
        operation_name=node.name,
        start_ts=timeline.at(node.began),
        end_ts=timeline.at(ending.at) if ending else None,
        status=ending.status if ending else "running",
        cost_usd=(ending.cost_nanos or 0) / NANOS_PER_USD if ending else 0.0,
        retries_used=ending.retries if ending else 0,
        usage=ending.tokens if ending else None,
        stop_reason=ending.stop_reason if ending else None,
        error=ending.error if ending else None,
        late_result=ending.late_result if ending else None,
    )


class NodeStore:
    """The nodes of one context."""

    __slots__ = ("_lock", "_newer", "_older", "dropped", "kept", "timeline")

    def __init__(self, clock: Clock, kept: int = KEPT_NODES) -> None:
        """Start empty; at least the newest ``kept`` nodes stay."""
        self._lock = threading.RLock()
        self._older: list[Node] = []
        self._newer: list[Node] = []
        self.kept = kept
        self.dropped = 0
        self.timeline = Timeline(clock)

    def add(self, node: Node) -> None:
        """Append a node."""
        newer = self._newer
        newer.append(node)
        if len(newer) >= self.kept:
            self._rotate(newer)

    def _rotate(self, full: list[Node]) -> None:
        with self._lock:
            if self._newer is full:
                self.dropped += len(self._older)
                self._older, self._newer = full, []

    @property
    def newest(self) -> Node | None:
        """The node that was added last."""
        newer = self._newer or self._older
        return newer[-1] if newer else None

    def view(self, unfinished: Iterable[Node]) -> NodesView:
        """Return the nodes as they are now.

        Args:
            unfinished: The nodes that may still change: under way, or let go of before their result came.
        """
        with self._lock:
            segments = (self._older, self._newer)
            endings = {node.number: node.ending for node in unfinished}
            early: tuple[Node, ...] = ()
            if self.dropped and endings:
                oldest = self._older[0].number
                early = tuple(node for node in unfinished if node.number < oldest)
            return NodesView(early, segments, endings, self.timeline)


# --- snapshot -------------------------------------------------------------------------------------------------------
# The state of a chain at one moment (seed: execution-context, section 5).


@dataclass(frozen=True, slots=True)
class ContextSnapshot:
    """What a chain had done when it was looked at; it never changes afterwards.

    Attributes:
        chain_id: The chain.
        request_id: The request it serves.
        step_count: Admitted calls, children's included.
        cost_usd_accumulated: Dollars spent where prices are known, children's included.
        retries_used: Retries spent.
        aborted: Whether `abort` was called on it or above it; closing is not aborting.
        abort_reason: The stop reason that ended it, whatever it was, or None.
        elapsed_ms: Milliseconds since it was opened.
        nodes: Its calls, oldest first; those under way have no end yet.
        events: Its incidents, oldest first.
        nodes_dropped: Nodes that are no longer kept.
        events_dropped: Incidents that are no longer kept; a stop of the chain always is.
        usage: Everything it and its children used.
        stop: What ended it, or what ended its work, in full.
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


# --- incidents ------------------------------------------------------------------------------------------------------
# The incidents of one context: its stops and what others report to it. None is ever merged, and no stop is dropped.
#
# Of what stops one call, and of what others report, the newest are kept, so that a loop that runs against an open
# breaker
# all night fills no memory. What was dropped is counted.
#
# What happens in a child is on the record of every context above it too, exactly once; what comes from above (the abort
# of a whole tree) is on the record of each context that it ends, and goes up no more.

Listener = Callable[[SafetyEvent], object]


class EventsView(Sequence[SafetyEvent]):
    """The first so many events of a record that only grows at its end; it never changes and copies nothing."""

    __slots__ = ("_events", "_length")

    def __init__(self, events: list[SafetyEvent]) -> None:
        """Look at a record as long as it is now."""
        self._events = events
        self._length = len(events)

    def __len__(self) -> int:
        """Return the number of events."""
        return self._length

    @overload
    def __getitem__(self, index: int) -> SafetyEvent: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SafetyEvent, ...]: ...
    def __getitem__(self, index: int | slice) -> SafetyEvent | tuple[SafetyEvent, ...]:
        """Return one event, or several as a tuple."""
        if isinstance(index, slice):
            return tuple(self._events[place] for place in range(*index.indices(self._length)))
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(f"there are {self._length} events, no event {index}")
        return self._events[place]

    def __eq__(self, other: object) -> bool:
        """Return whether the other holds equal events in the same order."""
        if not isinstance(other, Sequence):
            return NotImplemented
        others = cast("Sequence[object]", other)
        return len(self) == len(others) and all(one == two for one, two in zip(self, others, strict=True))

    __hash__ = None  # type: ignore[assignment]  # events need not be hashable

    def __repr__(self) -> str:
        """Show the events."""
        return repr(list(self))


class Incidents:
    """An append-only list of safety events, and whoever listens to it.

    Attributes:
        metadata: Who the chain belongs to.
        listener: Told of every event, once.
        events: They themselves, those of the contexts below included.
        dropped: How many are no longer kept.
        ended: Whether the context was aborted or closed, and with it all below.
    """

    __slots__ = ("_above", "_clock", "_lasting", "_lock", "dropped", "ended", "events", "listener", "metadata")

    def __init__(
        self, metadata: ChainMetadata, clock: Clock, listener: Listener | None, above: Incidents | None = None
    ) -> None:
        """Start without events, under the record of the context above."""
        self.metadata = metadata
        self.listener = listener
        self.events: list[SafetyEvent] = []
        self.dropped = 0
        self.ended = False
        self._lasting: set[int] = set()
        self._lock = threading.RLock()  # a context that is collected reports, also in here
        self._above = above
        self._clock = clock

    def view(self) -> EventsView:
        """Return the events as they are now; that takes the same short time for any number of them."""
        return EventsView(self.events)

    @property
    def ended_above(self) -> bool:
        """Whether a context above was aborted or closed."""
        above = self._above
        return above is not None and (above.ended or above.ended_above)

    def record(self, event: SafetyEvent, *, lasting: bool = False, from_above: bool = False) -> None:
        """Append an event here and above, and tell the listener, whose failure is reported and changes nothing.

        Args:
            event: What happened.
            lasting: Whether it is kept for good.
            from_above: Whether it came from above, where it is on record already.

        Raises:
            ConfigurationError: If it is no SafetyEvent.
        """
        if not isinstance(event, SafetyEvent):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ConfigurationError(f"{event!r} is no SafetyEvent")
        level: Incidents | None = self
        while level is not None:
            level._append(event, lasting)
            level = None if from_above else level._above
        if from_above and self._above is not None and self.listener is self._above.listener:
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

    def report(self, stop: Stop, *, lasting: bool = False, from_above: bool = False) -> None:
        """Record a stop of the gate (seed: execution-context, section 6)."""
        metadata = self.metadata
        facts = {"chain_id": metadata.chain_id, "limit": stop.limit, "value": stop.value, "source": stop.source}
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
