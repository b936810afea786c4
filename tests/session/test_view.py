"""The session above, as those below it see it: live, equal to it, and to be read only."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from watchkeeper.core.errors import SessionError
from watchkeeper.session.session import Session
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
    gc.collect()
    assert known() == view
    del view
    gc.collect()
    assert known() is None
