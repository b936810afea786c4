"""The state of a run after one of its events: its slices as JSON, and what that event has changed.

It follows from the changes that reducers made, which are on record beside the events. The slices that only repeat the
log (every event is kept in a slice of its own type) are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, Literal, cast

import msgspec

from watchkeeper.core.errors import StoreError
from watchkeeper.store.plain_json import UNREADABLE
from watchkeeper.inspector.runs_view import shown
from watchkeeper.inspector.story import safe
from watchkeeper.store.plain_json import untyped
from watchkeeper.store.run_store import RunStore, StoredEvent

MOST_ITEMS: Final = 200
"""How many items of a slice are shown; of more, the last ones."""

MOST_COMPARED: Final = 2_000
"""Longer slices are not compared item by item: all items of them count as new."""

ITEM_CHARS: Final = 4_096
"""How much of one item is shown."""

Slices = dict[str, tuple[str, ...]]
"""By the name of a slice's type, its items as JSON."""

Sign = Literal["", "+", "-"]


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of a slice; its sign says whether the event has added or removed it."""

    text: str
    sign: Sign = ""


class SliceState(msgspec.Struct, frozen=True):
    """One slice.

    Attributes:
        name: The type of its items.
        count: How many it has.
        left_out: How many of them are not shown.
        changed: Whether the event has changed it.
        items: Its last items, and those that the event has removed.
    """

    name: str
    count: int
    left_out: int
    changed: bool
    items: tuple[Item, ...]


class StateView(msgspec.Struct, frozen=True):
    """The state after an event.

    Attributes:
        at: Number of the last event that changed the state, up to the one that was asked for; 0 for none.
        cause: The type of that event.
        slices: The slices, those that it has changed first.
        unknown: Why part of the state is not on this record; empty if all of it is.
    """

    at: int
    cause: str
    slices: tuple[SliceState, ...]
    unknown: str


def state_view(store: RunStore, run_id: str, at: int) -> StateView:
    """Return the state of a run after one of its events.

    Args:
        store: The runs.
        run_id: Id of the run.
        at: Number of the event.

    Raises:
        StoreError: If its record cannot be read so far.
    """
    fold = StateFold()
    for event in store.events(run_id, past=True):
        if event.seq > at:
            break
        fold.add(event)
    if not fold.read:
        raise StoreError(f"the run {run_id} has no event {at}")
    return fold.view()


class StateFold:
    """Applies recorded changes, event by event.

    Attributes:
        slices: The slices now.
        before: The slices before the last event that changed them.
        at: Number of that event; 0 for none.
        cause: Its type.
        read: How many events were read.
        unknown: Why part of the state is not on this record.
    """

    def __init__(self) -> None:
        """Begin without state."""
        self.slices: Slices = {}
        self.before: Slices = {}
        self.at = 0
        self.cause = ""
        self.read = 0
        self.unknown = ""
        self._past: dict[int, Slices] = {0: {}}

    def add(self, event: StoredEvent) -> None:
        """Apply what one event has changed."""
        self.read += 1
        then = self.slices
        try:
            then = self._after(event)
        except UNREADABLE:
            self.unknown = f"what event {event.seq} has changed cannot be read"
        if then is not self.slices:
            self.before, self.slices, self.at, self.cause = self.slices, then, event.seq, event.tag
        self._past[event.seq] = self.slices

    def view(self) -> StateView:
        """Return the state now, with what the last event that changed it has changed."""
        names = dict.fromkeys([*self.slices, *self.before])
        states = [_slice(name, self.before.get(name, ()), self.slices.get(name, ())) for name in names]
        states.sort(key=lambda state: not state.changed)
        return StateView(self.at, self.cause, tuple(states), self.unknown)

    def _after(self, event: StoredEvent) -> Slices:
        if event.changes is not None:
            then = dict(self.slices)
            for change in cast("Sequence[Mapping[str, Any]]", untyped(event.changes)):
                name = _name(change["slice_type"])
                then[name] = _applied(change, then.get(name, ()))
            return then
        if event.tag == "session_reset":
            return {}
        if event.tag == "slice_edited":
            return self._edited(event.untyped())
        if event.tag == "rolled_back":
            fields = event.untyped()
            if fields.get("snapshot") is None:
                return self._past[int(fields["seq"])]
            self.unknown = f"event {event.seq} brought back a state that is not of this record"
        return self.slices

    def _edited(self, fields: Mapping[str, Any]) -> Slices:
        name, items = _name(fields["slice_type"]), _texts(fields.get("items") or ())
        edit = fields["edit"]
        kept = self.slices.get(name, ()) if edit == "append" else ()
        return {**self.slices, name: kept + (() if edit == "clear" else items)}


def _applied(change: Mapping[str, Any], before: tuple[str, ...]) -> tuple[str, ...]:
    """Return the items of a slice after one change; see `session.slices.SliceChange`."""
    items, op = _texts(change.get("items") or ()), change["op"]
    if op == "extend":
        return before + items
    if op == "replace":
        return items
    kept: list[int] = list(change.get("kept") or ())
    found, place = list[str](), 0
    for number in range(0, len(kept), 3):
        new, start, stop = kept[number : number + 3]
        found += items[place : place + new]
        found += before[start:stop]
        place += new
    return (*found, *items[place:])


def _texts(items: Iterable[Any]) -> tuple[str, ...]:
    return tuple(json.dumps(item, ensure_ascii=False) for item in items)


def _name(kind: Any) -> str:
    """Return the name of a slice's type, as a tag or as a mapping that holds one."""
    held: Any = next(iter(cast("Mapping[str, Any]", kind).values()), "") if isinstance(kind, Mapping) else kind
    return str(held).rpartition(":")[2]


def _slice(name: str, before: tuple[str, ...], now: tuple[str, ...]) -> SliceState:
    changed = before is not now and before != now
    items = _compared(before, now) if changed else [Item(text) for text in now[-MOST_ITEMS:]]
    left_out = max(0, len(now) - sum(item.sign != "-" for item in items[-MOST_ITEMS:]))
    told = tuple(Item(safe(item.text, ITEM_CHARS), item.sign) for item in items[-MOST_ITEMS:])
    return SliceState(shown(name), len(now), left_out, changed, told)


def _compared(before: tuple[str, ...], now: tuple[str, ...]) -> list[Item]:
    """Return the items of both, with a sign where they differ."""
    same = 0
    while same < min(len(before), len(now)) and before[same] == now[same]:
        same += 1
    items = [Item(text) for text in now[:same]]
    old, new = before[same:], now[same:]
    if max(len(old), len(new)) > MOST_COMPARED:
        return [*items, *(Item(text, "-") for text in old), *(Item(text, "+") for text in new)]
    for op, old_from, old_to, new_from, new_to in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if op == "equal":
            items += [Item(text) for text in new[new_from:new_to]]
        else:
            items += [Item(text, "-") for text in old[old_from:old_to]]
            items += [Item(text, "+") for text in new[new_from:new_to]]
    return items
