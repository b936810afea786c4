"""The record of calls: one node per call, in the order in which they were decided (seed: execution-context, section 5).

Calls under way are visible. What a reader gets is frozen: a snapshot shares the nodes that are done and keeps its own
view of those that are not, so taking one costs the same at ten nodes and at a hundred thousand. The newest
`KEPT_NODES` to twice as many are kept, and all that are still under way; what was dropped is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, cast, overload

import msgspec

from watchkeeper.core.clock import Clock
from watchkeeper.core.usage import NANOS_PER_USD, TokenUsage

NodeKind = Literal["llm", "tool", "child"]
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
