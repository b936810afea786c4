"""What events made of a slice is small on record, and rebuilds it without its reducers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.session.samples import Commanded, Plan, obey
from watchkeeper.core.ids import SYSTEM_IDS, root_run_context
from watchkeeper.runtime.events import RunStarted
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Replace, SliceChange, SliceView, change_between
from watchkeeper.store.items import Item
from watchkeeper.store.run_store import RunStore

ITEMS = tuple(Plan(f"step {number}") for number in range(12))


@dataclass(frozen=True)
class Noted:
    """An event with a number."""

    number: int


def stored_size(tmp_path: Path, reducer: Any, count: int) -> tuple[Session, list[int]]:
    """Record events that a reducer folds into one slice; return the session as read back, and bytes for each event."""
    session, run_id, sizes = Session(), uuid4(), list[int]()
    session[Plan].register(Noted, reducer)
    with RunStore(tmp_path / "runs") as store:
        context = root_run_context(SYSTEM_IDS.uuid(), SYSTEM_IDS)
        at = datetime(2026, 11, 21, tzinfo=UTC)
        session.dispatch(RunStarted(context, "ns/key", "scripted:m", "turns 3", None, at))
        store.append([Item(run_id, session.log[0])])
        (file,) = (store.path / "runs").iterdir()
        for number in range(count):
            before = file.stat().st_size
            session.dispatch(Noted(number))
            store.append([Item(run_id, session.log[number + 1])])
            sizes.append(file.stat().st_size - before)
        envelopes: list[Envelope] = [event.envelope() for event in store.events(str(run_id))]
    rebuilt = Session.restored(envelopes, session.session_id)
    assert rebuilt[Plan].all() == session[Plan].all()
    return rebuilt, sizes


def appended(view: SliceView[Plan], noted: Noted) -> Replace[Plan]:
    """Add one item, by a new tuple of all of them."""
    return Replace((*view, Plan(f"step {noted.number}")))


def windowed(view: SliceView[Plan], noted: Noted) -> Replace[Plan]:
    """Keep the newest fifty."""
    return Replace((*tuple(view)[-49:], Plan(f"step {noted.number}")))


def ticked_off(view: SliceView[Plan], noted: Noted) -> Replace[Plan]:
    """Replace one in the middle of sixty."""
    items = [*view]
    if len(items) < 60:
        return Replace((*items, Plan(f"step {noted.number}")))
    items[noted.number % 60] = Plan(f"done {noted.number}")
    return Replace(items)


def removed(view: SliceView[Plan], noted: Noted) -> Replace[Plan]:
    """Remove one of sixty, or add one."""
    items = [*view]
    return Replace(items[:30] + items[31:] if len(items) == 60 else (*items, Plan(f"step {noted.number}")))


@pytest.mark.parametrize("reducer", [appended, windowed, ticked_off, removed])
def test_an_event_that_changes_little_of_a_large_slice_is_small_on_record(tmp_path: Path, reducer: Any) -> None:
    _, sizes = stored_size(tmp_path, reducer, 120)
    assert max(sizes) < min(sizes) + 100


def test_items_that_are_all_new_are_on_record_as_a_whole(tmp_path: Path) -> None:
    def renewed(view: SliceView[Plan], noted: Noted) -> Replace[Plan]:
        return Replace([Plan(f"{noted.number}.{place}") for place in range(len(view) + 1)])

    rebuilt, sizes = stored_size(tmp_path, renewed, 20)
    assert sizes[-1] > 3 * sizes[0]
    assert len(rebuilt[Plan].all()) == 20


@given(st.lists(st.lists(st.sampled_from(ITEMS), max_size=16), max_size=8))
def test_whatever_is_kept_the_slice_is_rebuilt(contents: list[list[Plan]]) -> None:
    session = Session()
    session[Plan].register(Commanded, obey)
    for content in contents:
        session.dispatch(Commanded("replace", tuple(content)))
        assert session[Plan].all() == tuple(content)
    assert Session.restored(session.whole_log(), session.session_id)[Plan].all() == session[Plan].all()


def test_a_change_says_only_what_is_new() -> None:
    a, b, c, new = ITEMS[0], ITEMS[1], ITEMS[2], Plan("new")
    assert change_between(Plan, (a, b), (a, b, new)) == SliceChange(Plan, "extend", [new])
    assert change_between(Plan, (a, b), (a, b)) == SliceChange(Plan, "extend", [])
    assert change_between(Plan, (a, b), ()) == SliceChange(Plan, "replace", ())
    middle = change_between(Plan, (a, a, a, b, c, c, c), (a, a, a, new, c, c, c))
    assert (middle.op, middle.items) == ("splice", [new])
    assert change_between(Plan, (a, b, c), (c, b, a)) == SliceChange(Plan, "replace", (c, b, a))
