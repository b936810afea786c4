"""What the gate reports when it stops something (seed: execution-context, sections 2 and 7).

One event per stop, never dropped. The gate's own events carry ``hook="ExecutionContext"`` and the stop reason as
their type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from watchkeeper.containment.decision import Decision
from watchkeeper.session.registry import event


@event("safety_event")
@dataclass(frozen=True, slots=True)
class SafetyEvent:
    """An incident.

    Attributes:
        event_type: What happened; one of the stop reasons for stops of the gate.
        decision: What was decided about it.
        reason: One sentence for a person.
        hook: Who decided.
        request_id: The request it belongs to, if known.
        ts: When, in UTC.
        metadata: Facts: the chain, the limit and its value.
    """

    event_type: str
    decision: Decision
    reason: str
    hook: str
    ts: datetime
    request_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
