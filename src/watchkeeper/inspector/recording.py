"""A run's record as the page follows it: calls and story, read on from where the reading had stopped.

The files of the run and of the runs below it are read a piece at a time, so that a page shows something before a long
record was read, and goes on while the run does. A reader of the recording holds a place in it: what came after that
place is what it has to be told. Nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from threading import Lock
from typing import Final

import msgspec

from watchkeeper.core.errors import StoreError
from watchkeeper.inspector.calls import Node, Nodes, RunCalls
from watchkeeper.inspector.gauges import Use
from watchkeeper.inspector.runs_view import shown
from watchkeeper.inspector.story import Entry, Story, Tells
from watchkeeper.inspector.wording import run_above
from watchkeeper.store.run_file import MISSING
from watchkeeper.store.run_index import BEGINNINGS, StoredRun
from watchkeeper.store.run_store import RunStore

DEEPEST: Final = 20
"""How many runs below each other are opened."""

GAPS: Final = BEGINNINGS | {MISSING}
"""Events before which numbers may be left out."""


class Place(msgspec.Struct, frozen=True):
    """Up to where a reader was told: how many changes of nodes, and how many entries."""

    nodes: int = 0
    entries: int = 0


class Recording:
    """What is on record of one run, as far as it was read.

    Attributes:
        run: Its row, as of the last reading.
        above: The run that it is right below, or None.
        below: The runs right below it.
        nodes: Its calls and those of the runs below it.
        story: What happened.
        damage: Why its record ends early; empty if it does not.
    """

    def __init__(self, store: RunStore, run: StoredRun, tells: Tells, *, whole: bool = False) -> None:
        """Begin at the beginning of a run's record.

        Args:
            store: The store that has it.
            run: The run.
            tells: Returns the line of an event in words, given its tag and JSON.
            whole: Whether entries have their whole texts.
        """
        self.run = run
        self.above = run_above(store, run)
        self.below: tuple[StoredRun, ...] = ()
        self.nodes = Nodes(run.started_at)
        self.story = Story(run, tells, whole=whole)
        self.damage = ""
        self._store = store
        self._calls = RunCalls(run.run_id, self.nodes)
        self._found: set[str] = set()
        self._positions: dict[int, int] = {}
        self._reading: Iterator[None] | None = None
        self._lock = Lock()

    def advance(self, events: int) -> bool:
        """Read on, at most so many events; return whether the end of the record was met."""
        with self._lock:
            if self._reading is None:
                self.run = self._store.find(self.run.run_id)
                self.story.ended(self.run)
                self._reading = self._pass()
            for _ in islice(self._reading, events):
                events -= 1
            if events > 0:
                self._reading = None
            return self._reading is None

    def _pass(self) -> Iterator[None]:
        try:
            yield from self._read(self._calls, 0)
        except StoreError as error:
            self.damage = shown(str(error))
        self.below = self._store.children(self.run.run_id)
        for run in self.below:  # items, and runs that the log does not name
            named = run.run_id in self._calls.below and run.run_id not in self._found
            if named or (run.superseded and run.ended_at is None):
                continue
            self._found.add(run.run_id)
            if run.item is None and run.run_id in self._calls.below:
                yield from self._read_below(self._calls.below[run.run_id], 1)
            self._calls.add_found(run)
            if run.item is None:
                yield from self._read_below(self._calls.below[run.run_id], 1)

    def _read(self, calls: RunCalls, depth: int) -> Iterator[None]:
        """Read on in the file of one run, and in those of the runs below it; one that ends is read to its end first."""
        for behind, event in self._store.events_from(calls.run_id, calls.position, calls=True):
            if depth == 0:
                self._positions.setdefault(event.seq, calls.position)
            calls.position = behind
            if event.seq > calls.last + 1 and calls.last and event.tag not in GAPS:
                raise StoreError(
                    f"the run {calls.run_id} cannot be read any further: events before {event.seq} are missing"
                )
            fields = event.untyped()
            if event.tag == "child_ended" and (child := calls.below.get(str(fields.get("run_id")))) is not None:
                yield from self._read_below(child, depth + 1)
            calls.add(event, fields)
            if depth == 0:
                self.story.add(event, fields)
            yield
        for child in tuple(calls.below.values()):
            if child.node is not None and self.nodes.listed[child.node].end is None:
                yield from self._read_below(child, depth + 1)

    def _read_below(self, calls: RunCalls, depth: int) -> Iterator[None]:
        if depth > DEEPEST:
            return
        try:
            yield from self._read(calls, depth)
        except StoreError:
            return  # what its own run says of it is shown

    def told(self, place: Place) -> tuple[list[Node], list[Entry], Place]:
        """Return what came after a place, each node as it is now, and the place behind it."""
        with self._lock:
            changed, entries = self.nodes.changed, self.story.entries
            numbers = dict.fromkeys(changed[place.nodes :])
            nodes = [self.nodes.listed[number] for number in numbers]
            return nodes, entries[place.entries :], Place(len(changed), len(entries))

    def position(self, seq: int) -> int:
        """Return a position in the run's file before one of its events; 0 if it was not read yet."""
        return self._positions.get(seq, 0)

    def use(self, now: datetime) -> Use:
        """Return what the run has used by what was read; of one that has not ended."""
        elapsed: float | None = None
        if self.run.running:
            last = self.nodes.stretches[-1]
            elapsed = last.worked + max(0.0, self.nodes.after(now) - last.begin) / 1000
        return self.nodes.use(elapsed)
