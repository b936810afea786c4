"""What the gate reports when it stops something (seed: execution-context, sections 2 and 7).

One event per stop, never dropped. The gate's own events carry ``hook="ExecutionContext"`` and the stop reason as
their type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from watchkeeper.containment.decision import Decision
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError
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
        ts: When; held in UTC, now by default.
        metadata: Facts: the chain, the limit and its value.
    """

    event_type: str
    decision: Decision
    reason: str
    hook: str
    request_id: str | None = None
    ts: datetime = field(default_factory=SYSTEM_CLOCK.now)
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        """Refuse a time that could be any.

        Raises:
            ConfigurationError: If it has no time zone.
        """
        if self.ts.tzinfo is UTC:
            return
        if self.ts.utcoffset() is None:
            raise ConfigurationError(f"ts={self.ts!r} has no time zone; write datetime.now(UTC)")
        object.__setattr__(self, "ts", self.ts.astimezone(UTC))
