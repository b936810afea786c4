"""Sessions seen from below and above: live, read-only, and walked from the bottom."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit import collect_garbage
from tests.session.samples import in_threads
from watchkeeper.core.errors import SessionError
from watchkeeper.session.session import Session, iter_sessions_bottom_up
from watchkeeper.session.slices import Append


@dataclass(frozen=True)
class Note:
    text: str


def seen_from_below() -> tuple[Session, Session, Session]:
    """Return a session, a child of it, and what the child sees of it."""
    session = Session()
    child = session.child()
    parent = child.parent
    assert parent is not None
    return session, child, parent


def test_it_shows_what_the_session_holds_at_the_moment_of_looking() -> None:
    session, _, view = seen_from_below()
    session.dispatch(Note("one"))
    assert view[Note].latest() == Note("one")
    session.dispatch(Note("two"))
    assert list(view[Note].all()) == [Note("one"), Note("two")]
    assert len(view.log) == 2
    assert view.snapshot().slices[Note] == session.snapshot().slices[Note]
    assert (view.session_id, view.clock, view.parent, view.flush()) == (session.session_id, session.clock, None, True)


WRITES: dict[str, Callable[[Session], object]] = {
    "dispatch": lambda view: view.dispatch(Note("mine")),
    "append": lambda view: view[Note].append(Note("mine")),
    "seed": lambda view: view[Note].seed(Note("mine")),
    "clear": lambda view: view[Note].clear(),
    "register": lambda view: view[Note].register(Note, lambda notes, note: Append(note)),
    "rollback": lambda view: view.rollback(view.snapshot()),
    "reset": lambda view: view.reset(),
    "origin": lambda view: view.origin.dispatch(Note("mine")),
    "branch": lambda view: _merged(view),
    "subscribe": lambda view: view.dispatcher.subscribe(Note, print),
    "subscribe to all": lambda view: view.dispatcher.subscribe_all(print),
    "host": lambda view: setattr(view, "host", None),
    "sibling": lambda view: view.children[0].dispatch(Note("mine")),
}


def _merged(view: Session) -> None:
    branch = view.branch()
    branch.dispatch(Note("mine"))
    branch.merge()


@pytest.mark.spec("NE-005")
@pytest.mark.parametrize("write", WRITES)
def test_nothing_can_be_written_to_it_from_below(write: str) -> None:
    session, _, view = seen_from_below()
    session.dispatch(Note("yours"))
    before = len(session.log)
    with pytest.raises(SessionError, match="below or above, but nothing can be written to it from there"):
        WRITES[write](view)
    assert (list(session[Note].all()), len(session.log)) == ([Note("yours")], before)
    assert [len(child.log) for child in session.children] == [0]


@pytest.mark.parametrize("write", [name for name in WRITES if name != "sibling"])
def test_nothing_can_be_written_to_a_child_from_above(write: str) -> None:
    session = Session()
    child = session.child()
    child.dispatch(Note("its own"))
    before = len(child.log)
    (seen,) = session.children
    with pytest.raises(SessionError, match="can be read from below or above"):
        WRITES[write](seen)
    assert (list(seen[Note].all()), len(seen.log)) == ([Note("its own")], before)


def test_it_cannot_be_closed_from_below() -> None:
    session, _, view = seen_from_below()
    with pytest.raises(SessionError, match="closed by whoever started it"):
        view.close()
    session.dispatch(Note("still open"))


def test_it_equals_the_session_that_it_shows() -> None:
    session, _, view = seen_from_below()
    other = Session()
    assert view == session
    assert session == view
    assert view.origin == session
    assert len({view, session}) == 1
    assert view not in (other, "session")
    assert view.children == session.children


def test_a_session_below_what_is_seen_is_a_child_of_the_session_itself() -> None:
    session, _, view = seen_from_below()
    session.dispatch(Note("one"))
    for child in (view.child(view.snapshot()), Session(parent=view)):
        assert child in session.children
        assert child.parent == session
        child.dispatch(Note("own"))
        child.close()
        assert child not in session.children
    assert list(session[Note].all()) == [Note("one")]


def test_what_a_run_left_at_the_session_is_found_through_it() -> None:
    session, _, view = seen_from_below()
    session.host = ("somebody",)
    assert view.host == session.branch().host == ("somebody",)


def test_it_keeps_the_session_alive_and_nothing_else_does() -> None:
    session, child, view = seen_from_below()
    known = weakref.ref(session)
    del session, child
    collect_garbage()
    assert known() == view
    del view
    collect_garbage()
    assert known() is None


@pytest.mark.spec("NE-004", "FR-013")
def test_children_come_before_their_parents_and_the_root_last() -> None:
    root = Session()
    left, right = Session(parent=root), Session(parent=root)
    under = Session(parent=left)
    assert list(iter_sessions_bottom_up(root)) == [under, left, right, root]
    assert list(iter_sessions_bottom_up(left)) == [under, left]
    assert root.children == (left, right)
    assert (under.parent, left.parent, root.parent) == (left, root, None)


def test_a_walk_from_a_branch_is_a_walk_from_its_session() -> None:
    root = Session()
    child = Session(parent=root)
    assert list(iter_sessions_bottom_up(root.branch())) == [child, root]


@pytest.mark.spec("SD-012")
def test_a_child_that_nobody_holds_is_gone() -> None:
    root = Session()
    kept = Session(parent=root)
    Session(parent=root)
    collect_garbage()
    assert root.children == (kept,)


@pytest.mark.spec("NE-003")
def test_a_child_keeps_its_parent_alive() -> None:
    child = Session(parent=Session())
    collect_garbage()
    assert child.parent is not None
    assert child.parent.children == (child,)


@pytest.mark.spec("SD-012")
def test_thousands_of_children_that_are_gone_leave_nothing_behind() -> None:
    root = Session()
    kept: list[Session] = []
    for _ in range(5):
        kept.append(Session(parent=root))
        for _ in range(1_000):
            Session(parent=root)
    assert root.children == tuple(kept)
    inside: list[Any] = gc.get_referents(*gc.get_referents(root))
    assert max(sys.getsizeof(thing) for thing in inside if thing.__class__ is dict) < 1_000


@pytest.mark.spec("FR-013")
def test_children_of_many_threads_are_all_known() -> None:
    root = Session()
    made: list[Session] = []
    in_threads(8, lambda number: made.extend([Session(parent=root) for _ in range(50)]))
    assert set(root.children) == set(made)
    assert len(root.children) == 400


@pytest.mark.spec("NE-003")
def test_events_of_a_child_reach_only_its_own_log() -> None:
    root = Session()
    child = Session(parent=root)
    heard: list[object] = []
    root.dispatcher.subscribe_all(heard.append)
    child.reset()
    assert (len(child.log), len(root.log), heard) == (1, 0, [])


@pytest.mark.spec("NE-004")
def test_a_walk_passes_over_what_is_closed() -> None:
    root = Session()
    left, right = root.child(), root.child()
    under = left.child()
    right.close()
    assert list(iter_sessions_bottom_up(root)) == [under, left, root]
    left.close()
    assert list(iter_sessions_bottom_up(root)) == [root]
    assert list(iter_sessions_bottom_up(left)) == [under, left]
