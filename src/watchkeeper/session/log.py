"""The log: everything that happened, in order, each event once.

An `Envelope` gives an event its place and time. `EventLog` is how a session's log is read, live: it cannot be written
to, because only a session's one critical section appends. Sequence numbers start at 1 and have no gaps, so the number
of the newest event is the length of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, overload

import msgspec

from watchkeeper.session.registry import event
from watchkeeper.session.slices import SliceView


@event("envelope")
class Envelope(msgspec.Struct, frozen=True):
    """One event on a log.

    A msgspec struct, because there is one for every event and making it costs next to nothing.

    Attributes:
        seq: Its place; 1 for the first.
        at: When it was recorded, in UTC.
        event: What happened.
    """

    seq: int
    at: datetime
    event: Any


class EventLog(Sequence[Envelope]):
    """A session's log as it grows; safe to read while others dispatch."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], SliceView[Envelope]]) -> None:
        """Read the log through ``read``, which returns it as it is now."""
        self._read = read

    def __len__(self) -> int:
        """Return the number of events so far, which is the newest event's ``seq``."""
        return len(self._read())

    @overload
    def __getitem__(self, index: int) -> Envelope: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Envelope, ...]: ...
    def __getitem__(self, index: int | slice) -> Envelope | tuple[Envelope, ...]:
        """Return one envelope by position (``seq - 1``), or a tuple of several."""
        return self._read()[index]

    def __iter__(self) -> Iterator[Envelope]:
        """Iterate over what is on the log now."""
        return iter(self._read())

    def since(self, seq: int) -> tuple[Envelope, ...]:
        """Return what was recorded after the event ``seq``; everything for 0. Costs only what it returns."""
        return self._read()[max(seq, 0) :]
