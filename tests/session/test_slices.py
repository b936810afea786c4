"""Slice views are values that share structure, whatever is appended to whichever of them by whom."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule

from watchkeeper.core.codec import encode
from watchkeeper.session.slices import WIDTH, Append, SliceView, append_event
from watchkeeper.session.tagging import dump, load

SIZES = [0, 1, 2, WIDTH - 1, WIDTH, WIDTH + 1, WIDTH**2, WIDTH**2 + 1, WIDTH**2 + WIDTH, WIDTH**2 + WIDTH + 1, 9999]


def buffers(*views: SliceView[Any]) -> dict[int, int]:
    """Return the size of every container that views are made of, by identity."""
    found: dict[int, int] = {}
    waiting: list[object] = list(views)
    while waiting:
        thing = waiting.pop()
        if id(thing) not in found and type(thing) in (SliceView, list, tuple):
            found[id(thing)] = sys.getsizeof(thing)
            waiting.extend(gc.get_referents(thing))
    return found


@pytest.mark.parametrize("size", SIZES)
def test_a_view_is_the_sequence_of_its_items(size: int) -> None:
    view = SliceView(range(size))
    items = list(range(size))
    assert len(view) == size
    assert list(view) == items
    assert view == items
    assert list(reversed(view)) == items[::-1]
    assert view.latest() == (items[-1] if items else None)
    assert [view[index] for index in range(0, size, 61)] == items[::61]
    assert [view[-1 - index] for index in range(0, size, 61)] == items[::-1][::61]


def test_a_view_of_hundreds_of_thousands_is_still_exact() -> None:
    size = WIDTH**3 + WIDTH + 1
    view = SliceView(range(size))
    assert all(map(int.__eq__, view, range(size)))
    assert (view[WIDTH**3 - 1], view[WIDTH**3], view[-1]) == (WIDTH**3 - 1, WIDTH**3, size - 1)


@given(st.integers(0, 300), st.slices(300))
def test_slicing_gives_the_tuple_that_a_list_would(size: int, part: slice) -> None:
    assert SliceView(range(size))[part] == tuple(list(range(size))[part])


@given(st.integers(0, 200), st.integers(-300, 300))
def test_an_index_outside_raises(size: int, index: int) -> None:
    view = SliceView(range(size))
    if -size <= index < size:
        assert view[index] == index % size
    else:
        with pytest.raises(IndexError, match=f"index {index} of {size} items"):
            view[index]


def test_views_compare_with_views_tuples_and_lists_by_their_items() -> None:
    view = SliceView("abc")
    assert view == SliceView("abc")
    assert view == ("a", "b", "c")
    assert view == ["a", "b", "c"]
    assert view != SliceView("abd")
    assert view != SliceView("ab")
    assert view != "abc"
    assert "b" in view
    assert view.index("c") == 2
    assert repr(view) == "SliceView(['a', 'b', 'c'])"
    with pytest.raises(TypeError):
        hash(view)


def test_a_view_comes_back_from_typed_json() -> None:
    view = SliceView((1, (2, 3)))
    back = load(dump(view))
    assert isinstance(back, SliceView)
    assert back == view
    assert b"slice_view" in encode(dump(view))


class Views(RuleBasedStateMachine):
    """Any view may be appended to by any owner, at any time; each stays what it was."""

    views = Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        self.owners = [object(), object()]
        self.kept: list[tuple[SliceView[int], list[int]]] = []

    @rule(target=views, size=st.sampled_from([0, 1, WIDTH - 1, WIDTH, 2 * WIDTH, WIDTH**2 - 1]))
    def start(self, size: int) -> SliceView[int]:
        return self.keep(SliceView(range(size)), list(range(size)))

    @rule(target=views, view=views, item=st.integers(), owner=st.integers(0, 1))
    def append(self, view: SliceView[int], item: int, owner: int) -> SliceView[int]:
        return self.keep(view.appended(item, self.owners[owner]), [*view, item])

    @rule(target=views, view=views, count=st.integers(0, 2 * WIDTH), owner=st.integers(0, 1))
    def extend(self, view: SliceView[int], count: int, owner: int) -> SliceView[int]:
        return self.keep(view.extended(range(count), self.owners[owner]), [*view, *range(count)])

    @rule(view=consumes(views))
    def forget(self, view: SliceView[int]) -> None:
        self.check()

    def keep(self, view: SliceView[int], items: list[int]) -> SliceView[int]:
        self.kept.append((view, items))
        return view

    def check(self) -> None:
        for view, items in self.kept:
            assert list(view) == items

    def teardown(self) -> None:
        self.check()


TestViews = Views.TestCase
TestViews.settings = settings(max_examples=40, stateful_step_count=25)


@pytest.mark.spec("FR-017")
def test_appending_to_the_newest_view_of_an_owner_copies_nothing() -> None:
    owner = object()
    view = SliceView[int]().extended(range(WIDTH + 2), owner)
    grown = view.appended(1, owner)
    fresh = set(buffers(grown)) - set(buffers(view))
    assert fresh == {id(grown)}


def test_an_owner_never_writes_into_what_another_owner_extends() -> None:
    """Two owners hold different locks; if they shared a tail, they could both find it free."""
    owner, other = object(), object()
    view = SliceView[int]().extended(range(WIDTH + 2), owner)
    foreign = view.appended(-1, other)
    grown = view.appended(1, owner)
    assert set(buffers(grown)) - set(buffers(view)) == {id(grown)}
    assert (foreign[-1], grown[-1]) == (-1, 1)


@pytest.mark.parametrize("size", [100, 10_000, 100_000])
def test_appending_to_any_other_view_copies_one_leaf_however_long_it_is(size: int) -> None:
    owner, other = object(), object()
    view = SliceView[int]().extended(range(size), owner)
    view.appended(1, owner)  # no longer the newest
    for who in (owner, other):
        grown = view.appended(2, who)
        before = buffers(view)
        added = sum(size for key, size in buffers(grown).items() if key not in before)
        assert added < 100 * WIDTH
        assert grown[-1] == 2


def test_a_full_leaf_costs_one_path_however_long_the_view_is() -> None:
    owner = object()
    view = SliceView[int]().extended(range(200 * WIDTH), owner)
    grown = view.appended(1, owner)
    before = buffers(view)
    added = sum(size for key, size in buffers(grown).items() if key not in before)
    assert added < 4 * 8 * (WIDTH + 16)


def test_a_thousand_views_of_a_long_slice_share_it() -> None:
    owner = object()
    view = SliceView[int]().extended(range(10_000), owner)
    alone = sum(buffers(view).values())
    kept = [view]
    for item in range(1_000):
        view = view.appended(item, owner)
        kept.append(view)
    assert sum(buffers(*kept).values()) < 2.5 * alone


def test_the_default_reducer_appends_the_event() -> None:
    assert append_event(SliceView(), 5) == Append(5)
