"""A snapshot is a value that shares structure, and JSON text brings it back equal."""

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
from hypothesis import given
from hypothesis import strategies as st

from tests.session.samples import Plan, Step, Unstorable
from tests.session.test_slices import buffers
from watchkeeper.core.errors import SessionError, SnapshotError
from watchkeeper.session.session import Session
from watchkeeper.session.slices import SNAPSHOT_VERSION, Snapshot
from watchkeeper.session.tagging import dump, load


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
        ('{"$type": "snapshot"}', "the snapshot cannot be read: this is no 'snapshot': KeyError: 'version'"),
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
