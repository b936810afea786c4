"""Sessions know their children without keeping them alive, and are walked from the bottom up."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from tests.session.samples import in_threads
from watchkeeper.session.session import Session, iter_sessions_bottom_up


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
    gc.collect()
    assert root.children == (kept,)


@pytest.mark.spec("NE-003")
def test_a_child_keeps_its_parent_alive() -> None:
    child = Session(parent=Session())
    gc.collect()
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
