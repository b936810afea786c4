"""Where the driver writes: the session's log, with failures of the user's reducers kept from ending the run.

A reducer that raises on an event of the runtime is a bug of the user's that must be seen and must not cost a night's
work: the event is recorded by the session all the same, and the failure is an event of its own.
"""

from __future__ import annotations

from typing import Any

from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import ReducerError
from watchkeeper.runtime.events import ReducerFailed
from watchkeeper.session.session import Session


class Recorder:
    """Dispatches the runtime's own events."""

    __slots__ = ("_clock", "session")

    def __init__(self, session: Session, clock: Clock) -> None:
        """Write to ``session``."""
        self.session = session
        self._clock = clock

    def record(self, event: Any) -> None:
        """Dispatch an event; a failing reducer is recorded beside it."""
        try:
            self.session.dispatch(event)
        except ReducerError as error:
            failed = ReducerFailed(type(event).__name__, str(error), self._clock.now())
            if not isinstance(event, ReducerFailed):
                self.record(failed)
