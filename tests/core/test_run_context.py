"""Identifiers that correlate a run, its children and their traces."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from watchkeeper.core.ids import RandomIds, derive_child_run_context, generate_span_id, root_run_context

SESSION = UUID(int=1)
CHILD_SESSION = UUID(int=2)


def ids() -> RandomIds:
    return RandomIds(random.Random(7))


@pytest.mark.spec("NE-014")
def test_a_root_has_a_trace_of_its_own_and_no_parent() -> None:
    root = root_run_context(SESSION, ids())
    assert root.session_id == SESSION
    assert root.trace_id is not None
    assert root.span_id is not None
    assert root.parent_span_id is None
    assert (root.attempt, root.worker_id) == (1, "local")


@pytest.mark.spec("NE-013", "FR-007")
def test_a_child_keeps_the_trace_and_points_to_its_parents_span() -> None:
    source = ids()
    root = root_run_context(SESSION, source)
    child = derive_child_run_context(root, CHILD_SESSION, source)
    assert child.session_id == CHILD_SESSION
    assert (child.trace_id, child.request_id, child.worker_id) == (root.trace_id, root.request_id, root.worker_id)
    assert child.parent_span_id == root.span_id
    assert child.span_id != root.span_id
    assert child.run_id != root.run_id


@pytest.mark.spec("NE-013")
def test_a_child_without_a_parent_has_a_span_but_no_trace() -> None:
    child = derive_child_run_context(None, CHILD_SESSION, ids())
    assert child.worker_id == "nested"
    assert child.trace_id is None
    assert child.parent_span_id is None
    assert child.span_id is not None


def test_everything_random_comes_from_the_given_source() -> None:
    assert root_run_context(SESSION, ids()) == root_run_context(SESSION, ids())
    assert generate_span_id(ids()) == generate_span_id(ids())
    assert generate_span_id() != generate_span_id()
