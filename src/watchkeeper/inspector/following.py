"""Tells a page of a run's record piece by piece and then of what comes, as Server-Sent Events.

Each message has an id that says up to where the page was told. A page whose connection broke comes back with the last
one (``Last-Event-ID``) and is told the rest; if the recording is another one since, it is told to begin anew. A run
that does not go on ends the stream with the event ``over``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from itertools import count
from threading import Lock
from typing import Final

import msgspec
from starlette.concurrency import run_in_threadpool

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import StoreError
from watchkeeper.inspector.calls import Node
from watchkeeper.inspector.recording import Place, Recording
from watchkeeper.inspector.run_view import RunHead, run_head
from watchkeeper.inspector.story import Entry, Tells
from watchkeeper.store.run_store import RunStore

FIRST: Final = 200
"""How many events are read before the first message: those that a page has room for."""

PIECE: Final = 2_000
"""How many events are read before each later one."""

POLL_SECONDS: Final = 0.5
QUIET_POLLS: Final = 30
"""After so many looks without anything new a line is sent that says nothing, so that a dead connection is noticed."""

KEPT: Final = 4
"""How many recordings are kept for pages that come back."""


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message.

    Attributes:
        nodes: Calls that are new, or are otherwise than they were.
        entries: What happened since.
        head: The head, where the record was read to its end.
        anew: Whether what was told before is to be forgotten.
    """

    nodes: list[Node] = []
    entries: list[Entry] = []
    head: RunHead | None = None
    anew: bool = False


class Recordings:
    """The recordings of the runs that were looked at last, each with a number that no other has."""

    def __init__(self, store: RunStore, tells: Tells) -> None:
        """Keep recordings of a store.

        Args:
            store: The runs.
            tells: Returns the line of an event in words, given its tag and JSON.
        """
        self._store = store
        self._tells = tells
        self._kept: OrderedDict[str, tuple[Recording, int]] = OrderedDict()
        self._numbers = count(1)
        self._lock = Lock()

    def of(self, run_id: str) -> tuple[Recording, int]:
        """Return the recording of a run and its number.

        Raises:
            StoreError: If there is no such run.
        """
        run = self._store.find(run_id)
        with self._lock:
            found = self._kept.pop(run.run_id, None)
            if found is None or found[0].run.started_at != run.started_at:
                found = Recording(self._store, run, self._tells), next(self._numbers)
            self._kept[run.run_id] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found


async def follow(
    recordings: Recordings, run_id: str, last_id: str = "", clock: Clock = SYSTEM_CLOCK
) -> AsyncIterator[bytes]:
    """Yield messages until the run does not go on.

    Args:
        recordings: What was read so far.
        run_id: The run.
        last_id: The id of the last message that the page has got; empty for none.
        clock: Waits between looks.
    """
    try:
        async for message in _told(recordings, run_id, last_id, clock):
            yield message
    except StoreError:
        pass  # it was removed; what it was is still on the page
    yield b"event: over\ndata: {}\n\n"


async def _told(recordings: Recordings, run_id: str, last_id: str, clock: Clock) -> AsyncIterator[bytes]:
    recording, number = await run_in_threadpool(recordings.of, run_id)
    place, known = _place_of(last_id, number), None
    anew, events, quiet = place is None, FIRST, 0
    place = place or Place()
    while True:
        whole = await run_in_threadpool(recording.advance, events)
        nodes, entries, then = recording.told(place)
        news = bool(nodes or entries or anew) or (whole and recording.run != known)
        if news:
            piece = await run_in_threadpool(_encoded, recording, nodes, entries, whole=whole, anew=anew)
            yield b"id: %d-%d-%d\ndata: %s\n\n" % (number, then.nodes, then.entries, piece)
            place, anew, quiet = then, False, 0
        if whole:
            if not recording.run.running:
                return
            known = recording.run
            quiet += 1
            if quiet % QUIET_POLLS == 0:
                yield b": quiet\n\n"
            await clock.sleep(POLL_SECONDS)
        events = PIECE


def _encoded(recording: Recording, nodes: list[Node], entries: list[Entry], *, whole: bool, anew: bool) -> bytes:
    head = run_head(recording, whole=True) if whole else None
    return msgspec.json.encode(Piece(nodes, entries, head, anew))


def _place_of(last_id: str, number: int) -> Place | None:
    """Return the place that the id of a message says; None if it is of another recording."""
    if not last_id:
        return Place()
    try:
        of, nodes, entries = map(int, last_id.split("-"))
    except ValueError:
        return None
    return Place(nodes, entries) if of == number else None
