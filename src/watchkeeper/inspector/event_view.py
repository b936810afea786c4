"""One event of a run as a page asks for it: its whole text and its record, cut at 64 KB unless all of it is wanted."""

from __future__ import annotations

import json
from typing import Final

import msgspec

from watchkeeper.core.errors import StoreError
from watchkeeper.inspector.story import MOST_CHARS, safe, text_of
from watchkeeper.store.run_store import RunStore, StoredEvent

ALL: Final = 1 << 40
"""More characters than any text has."""


class EventView(msgspec.Struct, frozen=True):
    """One event.

    Attributes:
        seq: Its number.
        at: When it was recorded, in ISO format.
        tag: Its type.
        text: What was said, as far as it is shown.
        size: How many characters that has as a whole.
        raw: The event as JSON, without the names of types, as far as it is shown.
        raw_size: How many characters that has as a whole.
    """

    seq: int
    at: str
    tag: str
    text: str
    size: int
    raw: str
    raw_size: int


def event_view(store: RunStore, run_id: str, seq: int, position: int = 0, *, whole: bool = False) -> EventView:
    """Return one event of a run.

    Args:
        store: The runs.
        run_id: Id of the run.
        seq: Number of the event.
        position: A position in the run's file before the event.
        whole: Whether texts are shown to their end, however long.

    Raises:
        StoreError: If there is no such event, or it cannot be read.
    """
    most = ALL if whole else MOST_CHARS
    for _, event in store.events_from(run_id, position):
        if event.seq == seq:
            return view_of(event, most)
        if event.seq > seq:
            break
    raise StoreError(f"the run {run_id} has no event {seq}")


def view_of(event: StoredEvent, most: int = MOST_CHARS) -> EventView:
    """Return what is shown of an event; ``most`` is how many characters of each of its texts."""
    fields = event.untyped()
    text = text_of(event.tag, fields)
    raw = json.dumps(fields, indent=2, ensure_ascii=False, default=str)
    at = event.at.isoformat()
    return EventView(event.seq, at, event.tag, safe(text, most), len(text), safe(raw, most), len(raw))
