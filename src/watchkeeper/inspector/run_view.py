"""The screen A run: how it ended, its limits, its calls, and its story.

The head follows from the row of the index, so it is there at once, however long the record; calls and story follow from
a `Recording`. Costs in the tree add up to the run's: each call has its own, and what a run below has spent that is not
in its own calls stands on its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.meters import METERS
from watchkeeper.core.quantities import format_money
from watchkeeper.inspector.calls import Node, Stretch
from watchkeeper.inspector.gauges import NAMES, Gauge, Use, gauges_of, use_of
from watchkeeper.inspector.projection import Projection, projections
from watchkeeper.inspector.recording import Recording
from watchkeeper.inspector.runs_view import Row, row_of, shown
from watchkeeper.inspector.story import Entry, Tells, safe
from watchkeeper.inspector.wording import name_of, never_began, place_below, sentence_of
from watchkeeper.store.ceilings import SECONDS
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore

AT_ONCE: Final = 100_000
"""How many events are read between two looks whether there are more."""


class Asked(msgspec.Struct, frozen=True):
    """A limit in the order in which the gate asks them, with the kinds of calls that it concerns."""

    key: str
    name: str
    calls: tuple[str, ...]


OF_EACH: Final = frozenset(meter.field for meter in METERS if not meter.shared)
"""Limits that a run over many has for each item, and does not count itself."""

ASKED: Final = tuple(
    Asked(each.field, NAMES.get(each.field, each.units.capitalize()), each.calls) for each in METERS if each.shared
)


class Above(msgspec.Struct, frozen=True):
    """The run that one is right below: its id, what it is to it in words, and for an item the limits over all items."""

    run_id: str
    words: str
    limits: str


class RunHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the head of the screen A run shows; times are in milliseconds after the start.

    Attributes:
        run: The row of the list.
        name: What it is called, unless it is an item.
        above: The run that it is right below, or None.
        sentence: How it ended.
        limits: Its limits in words, for those that have no gauge.
        gauges: Its limits.
        gauges_at: Of when the gauges are.
        asked: The limits that the gate asks after the time, in its order.
        now: Up to when the record goes; of a running run, the present.
        since: From when on use counts: a run that was resumed with fresh limits counts anew.
        stretches: When processes worked on it, which is what its limit of time counts.
        projections: When its limits will be used up, the first one first; empty unless it is running.
        unlisted: What it has spent that no call in the tree stands for, in words; empty if that is nothing.
        unlisted_nanos: The same as a number.
        below: Its items, or runs below it.
        never_began: Its items that never began, in words; empty if there are none.
        focus: Number of the event that stopped it, or None.
        answer: What it has answered.
        damage: Why its record ends early; empty if it does not.
        whole: Whether the record was read to its end.
    """

    run: Row
    name: str
    above: Above | None
    sentence: str
    limits: str
    gauges: tuple[Gauge, ...]
    gauges_at: str
    asked: tuple[Asked, ...] = ASKED
    now: float
    since: float
    stretches: tuple[Stretch, ...]
    projections: tuple[Projection, ...]
    unlisted: str
    unlisted_nanos: int
    below: tuple[Row, ...]
    never_began: str
    focus: int | None
    answer: str
    damage: str
    whole: bool


class RunView(RunHead, frozen=True, kw_only=True):
    """All that the screen shows, in one value.

    Attributes:
        nodes: Its calls in order, each after the one that it is below.
        story: What happened, as far as it says something to a person.
    """

    nodes: tuple[Node, ...]
    story: tuple[Entry, ...]


def run_head(recording: Recording, *, whole: bool, clock: Clock = SYSTEM_CLOCK) -> RunHead:
    """Return the head of a run, as far as its record was read.

    Args:
        recording: What was read.
        whole: Whether that is all.
        clock: The time.
    """
    run, story, nodes = recording.run, recording.story, recording.nodes
    now = clock.now()
    ended = run.ended_at is not None
    use = use_of(run) if ended else recording.use(now) if whole else Use()
    reached = None if run.stop is None else str(run.stop.get("limit") or "")
    listed = nodes.total.cost_nanos or 0
    unlisted = 0 if run.cost_nanos is None or not whole else run.cost_nanos - listed
    last = now if run.running else run.ended_at or story.last
    end = nodes.after(last)
    ceilings = {
        field: most for field, most in (run.ceilings or {}).items() if run.items is None or field not in OF_EACH
    }
    going_on = run.running and whole
    return RunHead(
        run=row_of(run, above=recording.above),
        name=shown(name_of(run)),
        above=_above(recording.above),
        sentence=shown(sentence_of(run, story.explanation, story.calls)),
        limits=shown(run.limits),
        gauges=gauges_of(ceilings, use, reached),
        gauges_at="at the end" if ended else "by what is on record so far",
        now=end,
        since=nodes.since,
        stretches=tuple(nodes.stretches),
        projections=projections(ceilings, nodes.listed, end, nodes.since, use.used.get(SECONDS)) if going_on else (),
        unlisted=format_money(unlisted) if unlisted > 0 else "",
        unlisted_nanos=unlisted,
        below=tuple(row_of(each, above=run) for each in recording.below),
        never_began=shown(never_began(run, story.items, recording.below)) if whole else "",
        focus=story.focus,
        answer=safe(story.answer),
        damage=recording.damage,
        whole=whole,
    )


def _above(run: StoredRun | None) -> Above | None:
    if run is None:
        return None
    return Above(run.run_id, shown(place_below(run)), "" if run.items is None else shown(run.limits))


def run_view(store: RunStore, run_id: str, tells: Tells) -> RunView:
    """Return all that the screen A run shows, with the whole texts.

    Raises:
        StoreError: If there is no such run, or its file cannot be read.
    """
    recording = Recording(store, store.find(run_id), tells, whole=True)
    while not recording.advance(AT_ONCE):
        pass
    head = run_head(recording, whole=True)
    story = tuple(entry for entry in recording.story.entries if entry.what)
    fields = {name: getattr(head, name) for name in RunHead.__struct_fields__}
    return RunView(**fields, nodes=tuple(in_order(recording.nodes.listed)), story=story)


def in_order(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield nodes as a tree is read: each after the one that it is below, and in the order in which they were made."""
    below: dict[int | None, list[Node]] = {}
    for node in nodes:
        below.setdefault(node.parent, []).append(node)
    waiting = below.get(None, [])[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += below.get(node.number, ())[::-1]
