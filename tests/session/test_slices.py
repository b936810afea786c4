"""Slices grow at the tail and share what they hold; snapshots keep them, in memory and as JSON."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule

from tests.session.samples import Plan, Step, Unstorable, buffers
from watchkeeper.core.codec import encode
from watchkeeper.core.errors import SessionError, SnapshotError
from watchkeeper.core.secrets import hold
from watchkeeper.session.session import Session
from watchkeeper.session.slices import SNAPSHOT_VERSION, WIDTH, Append, SliceView, Snapshot, append_event
from watchkeeper.session.tagging import dump, load

SIZES = [0, 1, 2, WIDTH - 1, WIDTH, WIDTH + 1, WIDTH**2, WIDTH**2 + 1, WIDTH**2 + WIDTH, WIDTH**2 + WIDTH + 1, 9999]


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


TestViews = pytest.mark.no_cover(Views.TestCase)
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


class Mood(enum.Enum):
    CALM = "calm"


class Model(pydantic.BaseModel):
    text: str
    when: datetime


class Struct(msgspec.Struct, frozen=True):
    amount: Decimal
    where: Path


@dataclass(frozen=True, slots=True)
class Record:
    """A value with a field of any type."""

    what: Any
    plan: Plan | None = None


anything = st.recursive(
    st.one_of(
        st.none(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=()), max_size=5),
        st.binary(max_size=5),
        st.datetimes(timezones=st.just(UTC)),
        st.sampled_from(Mood),
        st.builds(Model, text=st.text(max_size=3), when=st.datetimes(timezones=st.just(UTC))),
        st.builds(Struct, amount=st.decimals(allow_nan=False), where=st.just(Path("a"))),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(Record, inner, st.none() | st.builds(Plan, st.text(max_size=3))),
    ),
    max_leaves=6,
)


@pytest.mark.spec("TO-026", "FR-016")
@given(st.lists(st.builds(Record, anything), max_size=4), st.lists(st.text(max_size=4), max_size=3))
def test_json_brings_a_snapshot_back_equal_and_typed(records: list[Record], plans: list[str]) -> None:
    session = Session()
    for record in records:
        session.dispatch(record)
    session[Plan].seed(*map(Plan, plans))
    session[str].seed(*plans)
    snapshot = session.snapshot()
    text = snapshot.to_json()
    back = Snapshot.from_json(text)
    assert back == snapshot
    assert back.to_json() == text
    assert [type(record.what) for record in back[Record]] == [type(record.what) for record in records]
    restored = Session()
    restored.rollback(back)
    assert restored[Record].all() == records


def test_a_snapshot_says_whose_and_when_and_which_position() -> None:
    session = Session()
    session.dispatch(Step(1))
    snapshot = session.snapshot()
    assert (snapshot.session_id, snapshot.seq, snapshot.version) == (session.session_id, 1, SNAPSHOT_VERSION)
    assert snapshot.created_at >= session.log[0].at
    assert snapshot[Step] == [Step(1)]
    assert len(snapshot[Plan]) == 0


def test_a_snapshot_does_not_change_with_its_session() -> None:
    session = Session()
    session.dispatch(Step(1))
    snapshot = session.snapshot()
    session.dispatch(Step(2))
    session[Plan].append(Plan("p"))
    session.reset()
    assert dict(snapshot.slices) == {Step: [Step(1)]}
    assert session.snapshot() != snapshot
    with pytest.raises(TypeError):
        snapshot.slices[Step] = snapshot[Step]  # type: ignore[index]  # pyright: ignore[reportIndexIssue]


def test_snapshots_differ_by_what_they_hold_and_whose_they_are() -> None:
    session = Session()
    snapshot = session.snapshot()
    assert replace(snapshot, origin=None) == snapshot
    assert replace(snapshot, seq=5) != snapshot
    assert replace(snapshot, created_at=snapshot.created_at + timedelta(1)) != snapshot


@pytest.mark.spec("NE-031")
def test_taking_a_snapshot_copies_nothing() -> None:
    session = Session()
    for number in range(1_000):
        session.dispatch(Step(number))
    view = session[Step].all()
    snapshot = session.snapshot()
    assert snapshot[Step] is view
    session.rollback(snapshot)
    assert session[Step].all() is view


@pytest.mark.spec("FR-017")
def test_a_thousand_snapshots_share_structure() -> None:
    session = Session()
    for number in range(10_000):
        session.dispatch(Step(number))
    alone = sum(buffers(session[Step].all()).values())
    snapshots: list[Snapshot] = []
    for number in range(1_000):
        session.dispatch(Step(number))
        snapshots.append(session.snapshot())
    together = sum(buffers(*(snapshot[Step] for snapshot in snapshots)).values())
    assert together < 2.5 * alone
    assert [len(snapshot[Step]) for snapshot in snapshots] == list(range(10_001, 11_001))


# --- what cannot be written or read -----------------------------------------------------------------------------------


@pytest.mark.spec("SD-010", "FR-016")
def test_another_version_is_refused_with_both_numbers() -> None:
    data = json.loads(Session().snapshot().to_json())
    data["version"] = 99
    with pytest.raises(SnapshotError, match=f"has version 99, this Watchkeeper reads version {SNAPSHOT_VERSION}"):
        Snapshot.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this is no snapshot"),
        ("{", "this is no snapshot"),
        ("[]", "expected an object written by"),
        ('{"version": 1}', "expected an object written by"),
        ('{"$type": "uuid", "value": "no"}', "expected an object written by"),
        ('{"$type": "snapshot"}', "the snapshot cannot be read: this is not a valid 'snapshot': KeyError: 'version'"),
        ('{"$type": "snapshot", "version": 1}', "KeyError"),
    ],
)
def test_text_that_is_no_snapshot_is_refused(text: str, message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        Snapshot.from_json(text)


def changed(**changes: Any) -> str:
    session = Session()
    session.dispatch(Step(1))
    return json.dumps({**json.loads(session.snapshot().to_json()), **changes})


def test_types_that_are_not_known_here_are_named() -> None:
    with pytest.raises(SnapshotError, match=r"unknown type tag 'my_agent:Plan': import 'my_agent' before"):
        Snapshot.from_json(changed(slices=[["my_agent:Plan", []]]))
    with pytest.raises(SnapshotError, match="unknown type tag 'gone'"):
        Snapshot.from_json(changed(slices=[["tests.session.samples:Plan", [{"$type": "gone"}]]]))


def test_a_slice_that_holds_something_else_is_refused() -> None:
    with pytest.raises(SnapshotError, match=r"slice 'tests\.session\.samples:Plan' holds a int: 5"):
        Snapshot.from_json(changed(slices=[["tests.session.samples:Plan", [5]]]))
    with pytest.raises(SnapshotError, match="cannot be read"):
        Snapshot.from_json(changed(slices=5))
    with pytest.raises(SnapshotError, match="cannot be read"):
        Snapshot.from_json(changed(session_id="no"))


def test_a_value_that_was_changed_into_something_unwritable_is_named() -> None:
    """A frozen value cannot become so; a list inside one can."""
    session = Session()
    box: list[Any] = []
    session.dispatch(Record(box))
    box.append(Unstorable())
    with pytest.raises(SnapshotError, match=r"cannot be written: Record\.what\[0\]") as caught:
        session.snapshot().to_json()
    assert isinstance(caught.value, SessionError)


def test_a_snapshot_can_be_part_of_an_event() -> None:
    session = Session()
    session.dispatch(Step(1))
    child = Session(parent=session)
    child.rollback(session.snapshot())
    event = child.log[0].event
    assert load(dump(event)) == event


def test_a_snapshot_is_written_without_the_credentials_of_the_process() -> None:
    hold("sk-0123456789-of-slices")
    session = Session()
    session[str].seed("it is sk-0123456789-of-slices")
    text = session.snapshot().to_json()
    assert "sk-0123456789" not in text
    assert Snapshot.from_json(text).to_json() == text
