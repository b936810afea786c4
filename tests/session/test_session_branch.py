"""A branch is a transaction: nothing of it is seen until it merges, then all of it at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.session.samples import Broken, Claimed, Counted, Plan, Step, Total, buffers, session_with_reducers
from watchkeeper.core.errors import ReducerError, SessionError
from watchkeeper.session.log import RolledBack
from watchkeeper.session.session import Branch, Session
from watchkeeper.session.slices import WIDTH, append_event


def test_a_branch_sees_the_state_at_its_start_and_its_own_writes() -> None:
    session = session_with_reducers()
    session.dispatch(Counted(1))
    branch = session.branch()
    session.dispatch(Counted(10))
    branch.dispatch(Counted(2))
    assert branch[Total].latest() == Total(3)
    assert session[Total].latest() == Total(11)
    assert len(branch.log) == len(session.log) == 2


def test_a_merge_runs_the_reducers_on_what_the_session_holds_by_then() -> None:
    session = session_with_reducers()
    branch = session.branch()
    branch.dispatch(Counted(2))
    session.dispatch(Counted(10))
    branch.merge()
    assert session[Total].latest() == Total(12)
    assert [envelope.event for envelope in session.log] == [Counted(10), Counted(2)]


def test_subscribers_hear_of_a_branch_when_it_merges_and_once() -> None:
    session, heard = Session(), list[Any]()
    session.dispatcher.subscribe_all(heard.append)
    branch = session.branch()
    branch.dispatch(Step(1))
    branch[Plan].append(Plan("p"))
    assert heard == []
    branch.merge()
    assert heard == list(session.log)
    assert [envelope.seq for envelope in heard] == [1, 2]


def test_a_discarded_branch_leaves_no_trace() -> None:
    session, heard = Session(), list[Any]()
    session.dispatcher.subscribe_all(heard.append)
    branch = session.branch()
    branch.dispatch(Step(1))
    branch.discard()
    branch.discard()
    assert (len(session.log), heard) == (0, [])
    assert branch[Step].latest() == Step(1)


@pytest.mark.parametrize("end", ["merge", "discard"])
def test_after_its_end_a_branch_takes_no_writes(end: str) -> None:
    session = session_with_reducers()
    photo = session.snapshot()
    branch = session.branch()
    getattr(branch, end)()
    for write in (
        lambda: branch.dispatch(Step(1)),
        lambda: branch[Plan].append(Plan("p")),
        lambda: branch[Plan].seed(),
        lambda: branch[Plan].clear(),
        branch.reset,
        lambda: branch.rollback(photo),
        branch.merge,
    ):
        with pytest.raises(SessionError, match=f"this branch was {end}"):
            write()
    assert len(session.log) == 0
    assert branch[Plan].latest() is None


def test_a_merged_branch_cannot_be_discarded() -> None:
    branch = Session().branch()
    branch.merge()
    with pytest.raises(SessionError, match="what it wrote is part of its session and stays"):
        branch.discard()


def test_a_merge_that_fails_applies_nothing_and_may_be_discarded_or_tried_again() -> None:
    session, heard = session_with_reducers(), list[Any]()
    branch = session.branch()
    branch.dispatch(Step(1))
    branch.dispatch(Claimed(7))
    branch.dispatch(Step(2))
    session.dispatch(Claimed(7))
    before = session.snapshot()
    session.dispatcher.subscribe_all(heard.append)
    with pytest.raises(ReducerError, match=r"LookupError: .*7 is taken"):
        branch.merge()
    assert (session.snapshot().slices, len(session.log), heard) == (before.slices, 1, [])
    session[Claimed].clear()
    branch.merge()
    assert session[Step].all() == [Step(1), Step(2)]
    assert len(session.log) == 5


def test_an_event_that_failed_in_the_branch_is_not_repeated() -> None:
    session = session_with_reducers()
    branch = session.branch()
    with pytest.raises(ReducerError):
        branch.dispatch(Broken(1))
    branch.dispatch(Step(5))
    assert [envelope.event for envelope in branch.log] == [Broken(1), Step(5)]
    branch.merge()
    assert [envelope.event for envelope in session.log] == [Step(5)]


def test_a_rollback_inside_a_branch_takes_back_what_its_merge_would_repeat() -> None:
    session = Session()
    branch = session.branch()
    branch.dispatch(Step(1))
    photo = branch.snapshot()
    branch.dispatch(Step(2))
    branch.rollback(photo)
    branch.dispatch(Step(3))
    session.dispatch(Step(9))
    branch.merge()
    assert session[Step].all() == [Step(9), Step(1), Step(3)]
    assert [type(envelope.event) for envelope in session.log] == [Step, Step, Step]


def test_a_rollback_to_before_the_branch_is_repeated_as_a_rollback() -> None:
    session = Session()
    session.dispatch(Step(1))
    photo = session.snapshot()
    session.dispatch(Step(2))
    branch = session.branch()
    branch.rollback(photo)
    assert branch.log[-1].event.snapshot == photo
    branch.dispatch(Step(3))
    branch.merge()
    assert session[Step].all() == [Step(1), Step(3)]
    assert session.log[2].event == RolledBack(session.session_id, 1)


def test_a_branch_of_a_branch_merges_into_it() -> None:
    session = Session()
    outer = session.branch()
    inner = outer.branch()
    inner.dispatch(Step(1))
    assert outer[Step].latest() is None
    inner.merge()
    assert (outer[Step].latest(), session[Step].latest()) == (Step(1), None)
    outer.merge()
    assert session[Step].latest() == Step(1)
    late = outer.branch()
    late.dispatch(Step(2))
    with pytest.raises(SessionError, match="this branch was merged"):
        late.merge()


def test_a_branch_has_the_identity_of_its_session() -> None:
    parent = Session()
    session = Session(parent=parent)
    branch = session.branch().branch()
    child = Session(parent=branch)
    assert (branch.session_id, branch.parent, branch.origin) == (session.session_id, parent, session)
    assert (branch.clock, branch.dispatcher) == (session.clock, session.dispatcher)
    assert child.parent == session
    assert branch.children == session.children == (child,)
    assert session.origin is session
    assert parent.children == (session,)
    assert repr(branch).startswith("Branch(")


def test_a_subscription_made_through_a_branch_is_the_sessions() -> None:
    session, heard = Session(), list[Any]()
    branch = session.branch()
    branch.dispatcher.subscribe(Step, heard.append)
    session.dispatch(Step(1))
    assert heard == [Step(1)]


def test_reducers_are_the_sessions() -> None:
    session = Session()
    branch = session.branch()
    with pytest.raises(SessionError, match="register reducers on the session itself"):
        branch[Step].register(Counted, lambda view, counted: append_event(view, Step(counted.by)))
    session[Step].register(Counted, lambda view, counted: append_event(view, Step(counted.by)))
    branch.dispatch(Counted(4))
    assert branch[Step].latest() == Step(4)


def test_branching_copies_nothing_and_writing_in_one_copies_one_leaf() -> None:
    session = Session()
    for number in range(10_000):
        session.dispatch(Step(number))
    view = session[Step].all()
    branch = session.branch()
    assert branch[Step].all() is view
    branch.dispatch(Step(-1))
    session.dispatch(Step(-2))
    before = buffers(view)
    for changed in (branch[Step].all(), session[Step].all()):
        added = sum(size for key, size in buffers(changed).items() if key not in before)
        assert added < 100 * WIDTH
    assert (branch[Step].latest(), session[Step].latest(), len(view)) == (Step(-1), Step(-2), 10_000)


def test_a_branch_is_a_session_for_whoever_takes_one() -> None:
    branch = Session().branch()
    assert isinstance(branch, Session)
    assert isinstance(branch, Branch)


def test_a_dropped_branch_is_freed_at_once() -> None:
    """One is made for each tool call; none may wait for the garbage collector."""
    import gc
    import weakref

    session = Session()
    gc.disable()
    try:
        branch = session.branch()
        branch.dispatch(Step(1))
        reference = weakref.ref(branch)
        branch.discard()
        del branch
        assert reference() is None
    finally:
        gc.enable()
