"""The incidents of one context: its stops and what others report to it. None is ever dropped or merged."""

from __future__ import annotations

from collections.abc import Callable

from watchkeeper.containment.config import ChainMetadata
from watchkeeper.containment.decision import Decision
from watchkeeper.containment.safety_event import SafetyEvent
from watchkeeper.containment.wording import shown
from watchkeeper.core.clock import Clock
from watchkeeper.core.logs import logger
from watchkeeper.core.stop import Stop

Listener = Callable[[SafetyEvent], object]


class Incidents:
    """An append-only list of safety events, and whoever listens to it."""

    __slots__ = ("_clock", "events", "listener", "metadata")

    def __init__(self, metadata: ChainMetadata, clock: Clock, listener: Listener | None) -> None:
        """Start without events."""
        self.metadata = metadata
        self.listener = listener
        self.events: list[SafetyEvent] = []
        self._clock = clock

    def record(self, event: SafetyEvent) -> None:
        """Append an event and tell the listener, whose failure is reported and changes nothing."""
        self.events.append(event)
        if self.listener is None:
            return
        try:
            self.listener(event)
        except Exception as error:
            logger().error("safety_event.unheard", event_type=event.event_type, error=shown(error))

    def report(self, stop: Stop) -> None:
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
            )
        )
