"""Identifiers: their form, repeatable for tests, and inherited by the children of a run."""

from __future__ import annotations

import copy
import os
import pickle
import random
import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.ids import SYSTEM_IDS, RandomIds, derive_child_run_context, generate_span_id, root_run_context


class NoBits(random.Random):
    """A generator whose every bit is 0."""

    def getrandbits(self, k: int, /) -> int:
        return 0


@given(st.integers())
def test_a_seed_gives_the_same_identifiers_every_time(seed: int) -> None:
    one, two = RandomIds(random.Random(seed)), RandomIds(random.Random(seed))
    assert [one.uuid(), one.span_id(), one.trace_id()] == [two.uuid(), two.span_id(), two.trace_id()]


@pytest.mark.spec("NE-014")
@given(st.integers())
def test_identifiers_have_the_shape_that_others_expect(seed: int) -> None:
    ids = RandomIds(random.Random(seed))
    made = ids.uuid()
    assert made.version == 4
    assert made.variant == "specified in RFC 4122"
    assert re.fullmatch("[0-9a-f]{16}", ids.span_id())
    assert re.fullmatch("[0-9a-f]{32}", ids.trace_id())


def test_trace_identifiers_are_never_all_zero() -> None:
    """W3C trace context calls all zeros invalid."""
    assert RandomIds(NoBits()).span_id() == "0" * 15 + "1"
    assert RandomIds(NoBits()).trace_id() == "0" * 31 + "1"


def test_a_uuid_is_like_any_other() -> None:
    made = RandomIds(random.Random(7)).uuid()
    other = UUID(str(made))
    assert made == other
    assert (hash(made), repr(made), made.version, made.is_safe) == (hash(other), repr(other), 4, other.is_safe)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == other


def test_without_a_seed_they_differ() -> None:
    assert len({RandomIds().uuid() for _ in range(50)} | {SYSTEM_IDS.uuid() for _ in range(50)}) == 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_gives_other_identifiers_than_its_parent() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, SYSTEM_IDS.uuid().bytes)
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 16)
    os.close(reader)
    os.close(writer)
    assert theirs != SYSTEM_IDS.uuid().bytes


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
