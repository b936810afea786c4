"""The state of a chain at one moment (seed: execution-context, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.containment.nodes import NodeRecord
from watchkeeper.containment.safety_event import SafetyEvent
from watchkeeper.core.stop import Stop
from watchkeeper.core.usage import Usage


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
