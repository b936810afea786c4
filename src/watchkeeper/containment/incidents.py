"""The incidents of one context: its stops and what others report to it. None is ever merged, and no stop is dropped.

Of what stops one call, and of what others report, the newest are kept, so that a loop that runs against an open breaker
all night fills no memory. What was dropped is counted.

What happens in a child is on the record of every context above it too, exactly once; what comes from above (the abort
of a whole tree) is on the record of each context that it ends, and goes up no more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, cast, overload

from watchkeeper.containment.config import ChainMetadata
from watchkeeper.containment.decision import Decision
from watchkeeper.containment.safety_event import SafetyEvent
from watchkeeper.containment.wording import shown
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.logs import logger
from watchkeeper.core.stop import Stop

Listener = Callable[[SafetyEvent], object]

KEPT_EVENTS: Final = 10_000
"""How many of its newest events a record keeps at least, besides the stops of its chain."""


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
