"""Identifiers and randomness from an injected source."""

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

from watchkeeper.core.ids import SYSTEM_IDS, RandomIds


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
