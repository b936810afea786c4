"""A cascading snapshot holds a whole family, and a rollback to it brings back those that are still there."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.session.samples import Counted, Plan, Step, Total, in_threads, session_with_reducers
from watchkeeper.core.errors import SnapshotError
from watchkeeper.session.log import RolledBack
from watchkeeper.session.session import Session, iter_sessions_bottom_up
from watchkeeper.session.slices import SNAPSHOT_VERSION, SliceView, Snapshot
from watchkeeper.session.tagging import check, dump, load


def family() -> tuple[Session, Session, Session, Session]:
    """Return a session, its two children and the child of the first, each with a plan that names it."""
    root = session_with_reducers()
    left, right = root.child(), root.child()
    under = left.child()
    for name, session in zip(("root", "left", "right", "under"), (root, left, right, under), strict=True):
        session[Plan].append(Plan(name))
    return root, left, right, under


def plans(*sessions: Session) -> list[Plan | None]:
    """Return the newest plan of each."""
    return [session[Plan].latest() for session in sessions]


def count(snapshot: Snapshot) -> int:
    """Return how many snapshots there are in one."""
    return 1 + sum(map(count, snapshot.children))


# --- taking one -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("NE-034")
def test_a_cascading_snapshot_holds_the_whole_family() -> None:
    root, left, right, under = family()
    snapshot = root.snapshot(cascade=True)
    assert snapshot == replace(root.snapshot(), created_at=snapshot.created_at, children=snapshot.children)
    assert [child.session_id for child in snapshot.children] == [left.session_id, right.session_id]
    assert [child.session_id for child in snapshot.children[0].children] == [under.session_id]
    assert snapshot.children[0].children[0][Plan] == [Plan("under")]
    assert snapshot.children[1].children == ()


def test_without_being_asked_a_snapshot_is_of_one_session() -> None:
    assert family()[0].snapshot().children == ()


def test_sessions_that_are_closed_are_not_in_it() -> None:
    root, left, right, under = family()
    left.close()
    assert [child.session_id for child in root.snapshot(cascade=True).children] == [right.session_id]
    assert [child.session_id for child in left.snapshot(cascade=True).children] == [under.session_id]


def test_a_branch_has_the_children_of_its_session() -> None:
    root, left, right, _ = family()
    snapshot = root.branch().snapshot(cascade=True)
    assert [child.session_id for child in snapshot.children] == [left.session_id, right.session_id]


def test_a_cascading_snapshot_shares_every_slice() -> None:
    root, left, _, under = family()
    snapshot = root.snapshot(cascade=True)
    assert snapshot.children[0][Plan] is left[Plan].all()
    assert snapshot.children[0].children[0][Plan] is under[Plan].all()


@pytest.mark.spec("NE-034")
def test_each_session_is_consistent_in_a_snapshot_taken_while_all_of_them_work() -> None:
    root = session_with_reducers()
    children = [root.child() for _ in range(3)]
    done = threading.Event()
    taken: list[Snapshot] = []

    def work(number: int) -> None:
        if number == 4:
            while not done.is_set() or not taken:
                taken.append(root.snapshot(cascade=True))
            return
        session = [root, *children][number]
        for _ in range(300):
            session.dispatch(Counted(1))
        done.set()

    in_threads(5, work)
    for snapshot in taken:
        assert [child.session_id for child in snapshot.children] == [child.session_id for child in children]
        for one in (snapshot, *snapshot.children):
            total = one[Total].latest()
            assert (total.value if total else 0) == one.seq


# --- going back to one ------------------------------------------------------------------------------------------------


def test_a_rollback_brings_the_family_back() -> None:
    root, left, right, under = family()
    snapshot = root.snapshot(cascade=True)
    for session in (root, left, right, under):
        session[Plan].append(Plan("later"))
    root.rollback(snapshot)
    assert plans(root, left, right, under) == [Plan("root"), Plan("left"), Plan("right"), Plan("under")]
    assert [session.log[-1].event for session in (root, left, under)] == [
        RolledBack(session.session_id, 1) for session in (root, left, under)
    ]


def test_a_rollback_to_a_snapshot_of_one_session_leaves_the_children_alone() -> None:
    root, left, _, _ = family()
    snapshot = root.snapshot()
    left[Plan].append(Plan("later"))
    root.rollback(snapshot)
    assert plans(left) == [Plan("later")]


def test_those_that_are_gone_closed_or_new_are_passed_over() -> None:
    root, left, right, under = family()
    snapshot = root.snapshot(cascade=True)
    for session in (root, left, right, under):
        session[Plan].append(Plan("later"))
    left.close()
    new = root.child()
    new[Plan].append(Plan("new"))
    forgotten = right.session_id
    del right
    root.rollback(snapshot)
    assert plans(root, left, under, new) == [Plan("root"), Plan("later"), Plan("later"), Plan("new")]
    assert forgotten not in {child.session_id for child in root.children}


def test_a_child_that_is_closed_meanwhile_is_passed_over() -> None:
    """Here by a subscriber of its elder sister, between the look at the list and the rollback."""
    root, left, right, under = family()
    snapshot = root.snapshot(cascade=True)
    for session in (root, left, right, under):
        session[Plan].append(Plan("later"))
    left.dispatcher.subscribe(RolledBack, lambda event: right.close())
    root.rollback(snapshot)
    assert plans(root, left, right, under) == [Plan("root"), Plan("left"), Plan("later"), Plan("under")]


def test_dispatching_the_event_does_what_the_method_does() -> None:
    root, left, _, _ = family()
    snapshot = root.snapshot(cascade=True)
    left[Plan].append(Plan("later"))
    root.dispatch(RolledBack(root.session_id, snapshot.seq, snapshot))
    assert plans(left) == [Plan("left")]


def test_a_foreign_state_is_on_each_log_once() -> None:
    """What was read from JSON is on the log of the session that it is of, and not on its parent's as well."""
    root, left, _, under = family()
    stored = Snapshot.from_json(root.snapshot(cascade=True).to_json())
    root.rollback(stored)
    assert root.log[-1].event.snapshot == replace(stored, children=())
    assert left.log[-1].event.snapshot == replace(stored.children[0], children=())
    assert under.log[-1].event.snapshot == stored.children[0].children[0]


def test_a_branch_leaves_the_children_alone_also_when_it_is_merged() -> None:
    root, left, _, _ = family()
    snapshot = root.snapshot(cascade=True)
    for session in (root, left):
        session[Plan].append(Plan("later"))
    branch = root.branch()
    branch.rollback(snapshot)
    assert plans(branch, root, left) == [Plan("root"), Plan("later"), Plan("later")]
    branch.merge()
    assert plans(root, left) == [Plan("root"), Plan("later")]


def test_a_child_begins_with_the_state_alone_whatever_the_snapshot_has_below() -> None:
    root, *_ = family()
    child = root.child(root.snapshot(cascade=True))
    assert plans(child) == [Plan("root")]
    assert child.children == ()


def test_going_back_and_forth_ten_thousand_times_leaves_nothing_behind() -> None:
    session = Session()
    session.dispatch(Step(1))
    for _ in range(10_000):
        session.rollback(session.snapshot())
    assert session[Step].all() == [Step(1)]
    assert repr(session.snapshot().slices).count("mappingproxy") == 1


class Families(RuleBasedStateMachine):
    """A random family against a model: per session the list of its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Session()
        self.open: list[Session] = [self.root]
        self.model: dict[Session, list[int]] = {self.root: []}
        self.below: dict[Session, list[Session]] = {self.root: []}
        self.closed: list[Session] = []
        self.taken: list[tuple[Session, Snapshot, dict[Session, list[int]]]] = []

    def pick(self, data: st.DataObject) -> Session:
        return data.draw(st.sampled_from(self.open))

    @rule(data=st.data(), inherit=st.booleans())
    def start(self, data: st.DataObject, inherit: bool) -> None:
        parent = self.pick(data)
        child = parent.child(parent.snapshot() if inherit else None)
        self.open.append(child)
        self.model[child] = self.model[parent][:] if inherit else []
        self.below[child] = []
        self.below[parent].append(child)

    @rule(data=st.data(), number=st.integers(0, 99))
    def write(self, data: st.DataObject, number: int) -> None:
        session = self.pick(data)
        session.dispatch(Step(number))
        self.model[session].append(number)

    @precondition(lambda self: len(self.open) > 1)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(self.open[1:]))
        session.close()
        self.open.remove(session)
        self.closed.append(session)
        for children in self.below.values():
            if session in children:
                children.remove(session)

    @rule(data=st.data(), stored=st.booleans())
    def take(self, data: st.DataObject, stored: bool) -> None:
        session = self.pick(data)
        snapshot = session.snapshot(cascade=True)
        if stored:
            text = snapshot.to_json()
            assert Snapshot.from_json(text) == snapshot
            snapshot = Snapshot.from_json(text)
        family = list(iter_sessions_bottom_up(session))
        assert count(snapshot) == len(family)
        self.taken.append((session, snapshot, {member: self.model[member][:] for member in family}))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        session, snapshot, then = data.draw(st.sampled_from(self.taken))
        if session in self.closed:
            return
        session.rollback(snapshot)
        self.expect_back(session, then)

    def expect_back(self, session: Session, then: dict[Session, list[int]]) -> None:
        self.model[session] = then[session][:]
        for child in self.below[session]:
            if child in then:
                self.expect_back(child, then)

    @invariant()
    def every_session_holds_what_the_model_says(self) -> None:
        for session, numbers in self.model.items():
            assert [step.number for step in session[Step].all()] == numbers
            assert list(session.children) == self.below[session]


TestFamilies = pytest.mark.no_cover(pytest.mark.spec("NE-034")(Families.TestCase))
TestFamilies.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


# --- JSON -------------------------------------------------------------------------------------------------------------

trees: st.SearchStrategy[Any] = st.recursive(
    st.lists(st.text(max_size=3), max_size=3).map(lambda texts: (texts, [])),
    lambda inner: st.tuples(st.lists(st.text(max_size=3), max_size=3), st.lists(inner, max_size=3)),
    max_leaves=8,
)


def grown(tree: tuple[list[str], list[Any]], session: Session, kept: list[Session]) -> Session:
    """Write the texts of a tree into a session and its children; ``kept`` holds them."""
    texts, below = tree
    session[Plan].seed(*map(Plan, texts))
    for inner in below:
        kept.append(session.child())
        grown(inner, kept[-1], kept)
    return session


@pytest.mark.spec("NE-034")
@given(trees)
def test_json_brings_a_whole_family_back_equal(tree: tuple[list[str], list[Any]]) -> None:
    kept: list[Session] = []
    snapshot = grown(tree, Session(), kept).snapshot(cascade=True)
    text = snapshot.to_json()
    back = Snapshot.from_json(text)
    assert back == snapshot
    assert back.to_json() == text
    assert hash(back) == hash(snapshot)
    assert count(back) == 1 + len(kept)
    assert load(dump(RolledBack(back.session_id, back.seq, back))).snapshot == snapshot


def test_a_snapshot_without_children_is_written_and_read_as_before() -> None:
    session = Session()
    session.dispatch(Step(1))
    data = json.loads(session.snapshot().to_json())
    assert "children" not in data
    assert data["version"] == SNAPSHOT_VERSION
    assert Snapshot.from_json(json.dumps(data)).children == ()


@pytest.mark.parametrize(
    ("children", "message"),
    [
        ([1], "the snapshot's children hold a int: 1"),
        (5, "the snapshot cannot be read"),
        ([{"$type": "snapshot"}], "the snapshot cannot be read"),
        ([{"$type": "snapshot", "version": 99}], "has version 99"),
    ],
)
def test_children_that_are_no_snapshots_are_refused(children: Any, message: str) -> None:
    data = json.loads(Session().snapshot().to_json())
    with pytest.raises(SnapshotError, match=message):
        Snapshot.from_json(json.dumps({**data, "children": children}))


def test_a_check_does_not_look_into_the_children() -> None:
    """Rolling back and handing a snapshot on cost the same however much is in it."""

    class Untouched(SliceView[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("somebody walked a snapshot")

    inner = replace(Session().snapshot(), slices={Step: Untouched()})
    outer = replace(Session().snapshot(), slices={Step: Untouched()}, children=(inner,))
    check(RolledBack(outer.session_id, 1, outer))
    session = Session()
    session.child(outer).rollback(outer)
