"""A child session shares its parent's state at the start and nothing afterwards; a closed one leaves its parent."""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit import collect_garbage
from tests.session.samples import Counted, Plan, Step, Total, add_up, in_threads, session_with_reducers
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import SessionError
from watchkeeper.core.ids import RandomIds
from watchkeeper.session.log import InProcessDispatcher, SessionReset, SliceEdited, StateInherited
from watchkeeper.session.session import Branch, Session
from watchkeeper.session.slices import Append, Op, SliceView, Snapshot, append_event
from watchkeeper.session.tagging import dump, load


@contextmanager
def no_collector() -> Generator[None]:
    """Let only reference counts free anything, so that a cycle shows."""
    collect_garbage()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --- what a child begins with -----------------------------------------------------------------------------------------


@pytest.mark.spec("SD-010")
def test_a_child_begins_with_the_state_of_a_snapshot() -> None:
    parent = session_with_reducers()
    parent.dispatch(Counted(3))
    parent[Plan].seed(Plan("a"), Plan("b"))
    snapshot = parent.snapshot()
    parent.dispatch(Counted(4))
    child = parent.child(snapshot)
    assert child.snapshot().slices == snapshot.slices
    assert (child[Total].latest(), parent[Total].latest()) == (Total(3), Total(7))
    assert (child.parent, parent.children) == (parent, (child,))
    assert [envelope.event for envelope in child.log] == [StateInherited(parent.session_id, 2)]
    assert child.log[0].seq == 1
    assert len(parent.log) == 3


@pytest.mark.spec("NE-003")
def test_a_child_without_a_snapshot_begins_empty() -> None:
    parent = session_with_reducers()
    parent[Plan].append(Plan("a"))
    child = parent.child()
    assert (len(child.log), dict(child.snapshot().slices)) == (0, {})


def test_a_child_begins_with_what_was_stored_of_another_session() -> None:
    other = Session()
    other[Plan].append(Plan("stored"))
    child = Session().child(Snapshot.from_json(other.snapshot().to_json()))
    assert child[Plan].all() == [Plan("stored")]
    assert child.log[0].event == StateInherited(other.session_id, 1)


@pytest.mark.spec("NE-031")
def test_the_slices_are_shared_and_not_copied() -> None:
    parent = Session()
    for number in range(200):
        parent.dispatch(Step(number))
    snapshot = parent.snapshot()
    child = parent.child(snapshot)
    assert child[Step].all() is snapshot[Step]
    assert child.snapshot().slices is snapshot.slices


class Untouched(Mapping[type, SliceView[Any]]):
    """Slices that nobody may look into."""

    def __getitem__(self, slice_type: type) -> SliceView[Any]:
        raise AssertionError("somebody looked into a snapshot")

    def __iter__(self) -> Iterator[type]:
        raise AssertionError("somebody walked a snapshot")

    def __len__(self) -> int:
        raise AssertionError("somebody counted a snapshot")


def test_nothing_looks_into_a_snapshot_on_the_way_to_a_child() -> None:
    parent = Session()
    child = parent.child(replace(parent.snapshot(), slices=Untouched()))
    with pytest.raises(AssertionError, match="looked into"):
        child[Plan].latest()


def steps_of(work: Callable[[], object]) -> int:
    """Return how many functions are called, of Python or of C, while ``work`` runs."""
    called: list[str] = []
    with no_collector():
        sys.setprofile(lambda frame, kind, function: called.append(kind))
        try:
            work()
        finally:
            sys.setprofile(None)
    return called.count("call") + called.count("c_call")


def start_and_close(parent: Session) -> None:
    """Let a child come and go."""
    parent.child(parent.snapshot()).close()


@pytest.mark.spec("NE-031")
def test_a_child_costs_the_same_however_long_the_log_of_its_parent_is() -> None:
    counted: set[int] = set()
    for length in (10, 10_000):
        parent = session_with_reducers()
        for number in range(length):
            parent.dispatch(Step(number))
            parent.dispatch(Counted(number))
        counted.add(steps_of(partial(start_and_close, parent)))
    assert len(counted) == 1


def test_what_a_child_inherits_is_an_event_that_can_be_stored() -> None:
    event = StateInherited(UUID(int=7), 3)
    assert load(dump(event)) == event
    assert dump(event)["$type"] == "state_inherited"


def test_only_a_child_can_inherit() -> None:
    session = Session()
    with pytest.raises(SessionError, match=r"call session\.child\(snapshot\)"):
        session.dispatch(StateInherited(UUID(int=7), 3))
    with pytest.raises(SessionError, match="StateInherited is the session's own record"):
        session[Plan].register(StateInherited, lambda plans, event: Append(Plan("no")))
    assert len(session.log) == 0


def test_identity_and_time_come_from_the_parent_or_from_what_is_given() -> None:
    clock = TestClock(datetime(2026, 1, 1, tzinfo=UTC))
    parent = Session(clock=clock, ids=RandomIds(random.Random(1)))
    twin = Session(clock=clock, ids=RandomIds(random.Random(1)))
    child = parent.child(parent.snapshot())
    assert (child.clock, child.log[0].at) == (clock, clock.now())
    assert child.session_id == twin.branch().child().session_id
    assert child.child().session_id == twin.child().session_id
    other = TestClock(datetime(2027, 1, 1, tzinfo=UTC))
    named = parent.child(session_id=UUID(int=5), clock=other)
    assert (named.session_id, named.clock) == (UUID(int=5), other)
    drawn = parent.child(ids=RandomIds(random.Random(2)))
    assert drawn.session_id == RandomIds(random.Random(2)).uuid()
    assert drawn.child().session_id != parent.child().session_id


def test_a_child_of_a_branch_is_a_child_of_its_session() -> None:
    session = session_with_reducers()
    branch = session.branch()
    branch.dispatch(Counted(5))
    child = branch.branch().child(branch.snapshot())
    assert (child.parent, child.origin) == (session, child)
    assert (session.children, branch.children) == ((child,), (child,))
    child.dispatch(Counted(1))
    assert (child[Total].latest(), branch[Total].latest(), session[Total].latest()) == (Total(6), Total(5), None)
    branch.discard()
    assert child[Total].latest() == Total(6)


def test_a_reducer_may_not_start_or_close_anything() -> None:
    session = Session()
    tried: list[str] = []

    def meddle(plans: SliceView[Plan], step: Step) -> Op[Plan]:
        for attempt in (session.child, session.close):
            with pytest.raises(SessionError, match="a reducer may not") as caught:
                attempt()
            tried.append(str(caught.value).partition(":")[0])
        return Append(Plan("tried"))

    session[Plan].register(Step, meddle)
    session.dispatch(Step(1))
    assert tried == ["a reducer may not start a child", "a reducer may not close a session"]
    assert session.children == ()


# --- a child has the reducers of its parent, and its own --------------------------------------------------------------


@pytest.mark.spec("SD-013")
def test_reducers_registered_later_stay_where_they_were_registered() -> None:
    parent = Session()
    parent[Total].register(Counted, add_up)
    child = parent.child()
    child[Plan].register(Counted, lambda plans, counted: Append(Plan(f"child {counted.by}")))
    parent[Step].register(Counted, lambda steps, counted: Append(Step(counted.by)))
    for session in (parent, child):
        session.dispatch(Counted(2))
    assert (parent[Total].latest(), parent[Plan].latest(), parent[Step].latest()) == (Total(2), None, Step(2))
    assert (child[Total].latest(), child[Plan].latest(), child[Step].latest()) == (Total(2), Plan("child 2"), None)


@pytest.mark.spec("SD-013")
def test_a_child_can_be_given_derived_state_after_it_began() -> None:
    """SD-013: reducers may be added after the state is there."""
    parent = Session()
    parent.dispatch(Counted(2))
    child = parent.child(parent.snapshot())
    child[Counted].register(Counted, append_event)
    child[Total].register(Counted, add_up)
    child[Total].seed(Total(sum(counted.by for counted in child[Counted].all())))
    child.dispatch(Counted(3))
    assert (child[Total].latest(), parent[Total].latest()) == (Total(5), None)


# --- isolation --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("NE-005")
def test_each_has_its_own_subscribers() -> None:
    parent = Session()
    child = parent.child(parent.snapshot())
    heard: list[tuple[str, Any]] = []
    parent.dispatcher.subscribe(Step, lambda step: heard.append(("parent", step)))
    child.dispatcher.subscribe(Step, lambda step: heard.append(("child", step)))
    child.dispatch(Step(1))
    parent.dispatch(Step(2))
    assert heard == [("child", Step(1)), ("parent", Step(2))]


Write = Step | Counted | SliceEdited | SessionReset
writes: st.SearchStrategy[Write] = st.one_of(
    st.builds(Step, st.integers(0, 9)),
    st.builds(Counted, st.integers(1, 9)),
    st.builds(Plan, st.text(max_size=2)).map(lambda plan: SliceEdited(Plan, "append", (plan,))),
    st.builds(Plan, st.text(max_size=2)).map(lambda plan: SliceEdited(Plan, "seed", (plan, plan))),
    st.just(SliceEdited(Plan, "clear")),
    st.just(SessionReset()),
)


@pytest.mark.spec("NE-005", "SD-011")
@given(st.lists(writes, max_size=80), st.lists(st.tuples(st.booleans(), writes), max_size=80))
def test_neither_ever_sees_what_the_other_writes(before: list[Write], after: list[tuple[bool, Write]]) -> None:
    """Whatever is written where and in which order, each is as if the other did not exist."""
    parent, alone, alone_too = session_with_reducers(), session_with_reducers(), session_with_reducers()
    for write in before:
        for session in (parent, alone, alone_too):
            session.dispatch(write)
    snapshot = parent.snapshot()
    inherited = {kind: tuple(view) for kind, view in snapshot.slices.items()}
    child = parent.child(snapshot)
    for below, write in after:
        (child if below else parent).dispatch(write)
        (alone_too if below else alone).dispatch(write)
    assert parent.snapshot().slices == alone.snapshot().slices
    assert child.snapshot().slices == alone_too.snapshot().slices
    assert [envelope.event for envelope in parent.log] == [envelope.event for envelope in alone.log]
    assert [envelope.event for envelope in child.log[1:]] == [
        envelope.event for envelope in alone_too.log[len(before) :]
    ]
    assert {kind: tuple(view) for kind, view in snapshot.slices.items()} == inherited


@pytest.mark.spec("NE-005")
@pytest.mark.parametrize("already", [0, 63, 64, 65, 130])
def test_threads_that_write_to_a_family_do_not_meet(already: int) -> None:
    parent = session_with_reducers()
    for number in range(already):
        parent.dispatch(Step(-number))
    snapshot = parent.snapshot()
    family = [parent, *(parent.child(snapshot) for _ in range(5))]

    def work(number: int) -> None:
        session = family[number % len(family)]
        for count in range(150):
            session.dispatch(Step(1_000 * number + count))
            session.dispatch(Counted(1))

    in_threads(2 * len(family), work)
    inherited = [Step(-number) for number in range(already)]
    for place, session in enumerate(family):
        mine, theirs = ([1_000 * number + count for count in range(150)] for number in (place, place + len(family)))
        numbers = [step.number for step in session[Step].all()[already:]]
        assert session[Step].all()[:already] == tuple(inherited)
        assert sorted(numbers) == sorted(mine + theirs)
        assert [number for number in numbers if number in mine] == mine
        assert session[Total].latest() == Total(300)
    assert snapshot[Step] == inherited


@pytest.mark.spec("SD-011")
def test_children_can_be_started_and_closed_by_many_threads_while_the_parent_works() -> None:
    parent = session_with_reducers()
    seen: list[tuple[Total | None, Total | None]] = []

    def work(number: int) -> None:
        for _ in range(100):
            parent.dispatch(Counted(1))
            snapshot = parent.snapshot()
            child = parent.child(snapshot)
            child.dispatch(Counted(1_000))
            seen.append((snapshot[Total].latest(), child[Total].latest()))
            child.close()

    in_threads(6, work)
    assert parent[Total].latest() == Total(600)
    assert parent.children == ()
    assert len(seen) == 600
    assert all(one and other and other.value == one.value + 1_000 for one, other in seen)


# --- the end ----------------------------------------------------------------------------------------------------------


def refusals(session: Session, snapshot: Snapshot, branch: Branch) -> dict[str, Callable[[], object]]:
    """Return every way to write to a session."""
    plans = session[Plan]
    return {
        "dispatch": lambda: session.dispatch(Step(2)),
        "rollback": lambda: session.rollback(snapshot),
        "reset": session.reset,
        "append": lambda: plans.append(Plan("late")),
        "seed": lambda: plans.seed(Plan("late")),
        "clear": plans.clear,
        "register": lambda: plans.register(Step, lambda plans, step: Append(Plan("late"))),
        "merge": branch.merge,
        "child": session.child,
        "child of a branch": branch.child,
    }


@pytest.mark.spec("SD-012")
def test_a_closed_session_refuses_every_write_and_says_why() -> None:
    session = Session().child()
    session.dispatch(Step(1))
    branch = session.branch()
    branch.dispatch(Step(2))
    snapshot = session.snapshot()
    ways = refusals(session, snapshot, branch)
    session.close()
    for name, way in ways.items():
        with pytest.raises(SessionError, match=f"session {session.session_id} was closed; it can still be read"):
            way()
        assert (len(session.log), session.snapshot().slices) == (1, snapshot.slices), name


def test_a_closed_session_can_be_read() -> None:
    parent = Session()
    child = parent.child(parent.snapshot())
    child.dispatch(Step(1))
    child.close()
    assert child[Step].latest() == Step(1)
    assert child.snapshot()[Step] == [Step(1)]
    assert Snapshot.from_json(child.snapshot().to_json()) is not None
    assert [envelope.seq for envelope in child.log.since(0)] == [1, 2]
    assert child.branch()[Step].where(lambda step: step.number == 1) == (Step(1),)
    assert (child.parent, child.children, child.flush()) == (parent, (), True)


def test_the_parent_lists_only_children_that_are_open() -> None:
    parent = Session()
    children = [parent.child() for _ in range(20)]
    for child in children[::2]:
        child.close()
    assert parent.children == tuple(children[1::2])
    parent.close()
    assert parent.children == tuple(children[1::2])
    children[1].dispatch(Step(1))


def test_children_are_listed_in_the_order_of_their_start_also_where_one_takes_the_place_of_a_dead_one() -> None:
    parent = Session()
    for _ in range(20):
        dead, elder = parent.child(), parent.child()
        del dead
        younger = parent.child()
        assert parent.children == (elder, younger)
        elder.close()
        younger.close()


def test_closing_twice_is_harmless() -> None:
    parent = Session()
    child = parent.child()
    for _ in range(2):
        child.close()
        parent.close()
    with pytest.raises(SessionError, match="was closed"):
        child.dispatch(Step(1))


def test_a_branch_is_not_closed() -> None:
    session = Session()
    with pytest.raises(SessionError, match=r"a branch ends with merge\(\) or discard\(\)"):
        session.branch().close()
    session.dispatch(Step(1))


def test_an_interrupt_of_a_subscriber_does_not_keep_a_session_open() -> None:
    parent = Session()
    child = parent.child()

    def interrupt(step: Step) -> None:
        if step.number == 1:
            child.dispatch(Step(2))
            child.close()
        raise KeyboardInterrupt(step.number)

    child.dispatcher.subscribe(Step, interrupt)
    with pytest.raises(KeyboardInterrupt, match="1"):
        child.dispatch(Step(1))
    assert (len(child.log), parent.children) == (2, ())
    with pytest.raises(SessionError, match="came too late"):
        child.dispatcher.subscribe_all(print)


class Holder:
    """A subscriber that holds its session: a cycle for as long as it is subscribed."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def hear(self, event: object) -> None:
        """Do nothing."""


@pytest.mark.spec("SD-012")
def test_closing_lets_the_subscribers_go() -> None:
    child = Session().child()
    listener = Holder(child)
    gone = weakref.ref(listener)
    end = child.dispatcher.subscribe(Step, listener.hear)
    with no_collector():
        child.close()
        end()
        del listener, end
        assert gone() is None
    with pytest.raises(SessionError, match="came too late: the session was closed"):
        child.dispatcher.subscribe_all(print)


def test_a_dispatcher_that_was_given_keeps_its_subscribers() -> None:
    bus = InProcessDispatcher()
    heard: list[Any] = []
    bus.subscribe(Step, heard.append)
    one, other = Session(dispatcher=bus), Session(dispatcher=bus)
    one.close()
    other.dispatch(Step(1))
    assert heard == [Step(1)]


def test_subscribers_are_told_of_everything_before_they_are_let_go() -> None:
    """Also if it is a subscriber that closes the session, or if another thread does while one is busy."""
    session = Session()
    heard: list[int] = []

    def end(step: Step) -> None:
        if step.number == 1:
            session.dispatch(Step(2))
            session.close()

    session.dispatcher.subscribe(Step, end)
    session.dispatcher.subscribe(Step, lambda step: heard.append(step.number))
    session.dispatch(Step(1))
    assert heard == [1, 2]

    slow, inside, go_on = Session(), threading.Event(), threading.Event()

    def wait(step: Step) -> None:
        inside.set()
        assert go_on.wait(10)
        heard.append(step.number)

    slow.dispatcher.subscribe(Step, wait)
    thread = threading.Thread(target=slow.dispatch, args=(Step(3),))
    thread.start()
    assert inside.wait(10)
    slow.dispatch(Step(4))
    slow.close()
    go_on.set()
    thread.join()
    assert heard == [1, 2, 3, 4]
    with pytest.raises(SessionError, match="came too late"):
        slow.dispatcher.subscribe_all(print)


@pytest.mark.spec("SD-012")
def test_a_closed_child_that_nobody_holds_is_gone_without_the_collector() -> None:
    parent = session_with_reducers()
    for number in range(100):
        parent.dispatch(Step(number))
    with no_collector():
        child = parent.child(parent.snapshot())
        child.dispatcher.subscribe_all(Holder(child).hear)
        child.dispatch(Counted(1))
        child.branch().discard()
        below = child.child(child.snapshot())
        below.close()
        child.close()
        gone = weakref.ref(child), weakref.ref(below)
        del child, below
        assert [reference() for reference in gone] == [None, None]
    assert parent.children == ()
