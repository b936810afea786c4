"""The log is read live, in order, and cannot be written to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.session.samples import Step
from watchkeeper.core.codec import encode
from watchkeeper.session.log import Envelope, EventLog
from watchkeeper.session.session import Session
from watchkeeper.session.tagging import dump, load


def session_of(count: int) -> Session:
    session = Session()
    for number in range(count):
        session.dispatch(Step(number))
    return session


def test_a_log_grows_with_its_session() -> None:
    session = Session()
    log = session.log
    assert len(log) == 0
    session.dispatch(Step(0))
    assert [envelope.event for envelope in log] == [Step(0)]
    assert isinstance(log, Sequence)


@pytest.mark.spec("FR-010")
def test_since_returns_what_is_new() -> None:
    session = session_of(100)
    newest = session.log[-1].seq
    assert session.log.since(newest) == ()
    session.dispatch(Step(100))
    assert [envelope.seq for envelope in session.log.since(newest)] == [101]
    assert [envelope.seq for envelope in session.log.since(0)] == list(range(1, 102))
    assert session.log.since(-5) == session.log.since(0)
    assert session.log.since(1000) == ()


def test_positions_and_parts() -> None:
    log = session_of(5).log
    assert log[0].seq == 1
    assert [envelope.seq for envelope in log[1:3]] == [2, 3]
    with pytest.raises(IndexError):
        log[5]


def test_an_iteration_sees_the_log_as_it_was_when_it_began() -> None:
    session = session_of(3)
    seen: list[int] = []
    for envelope in session.log:
        session.dispatch(Step(9))
        seen.append(envelope.seq)
    assert seen == [1, 2, 3]
    assert len(session.log) == 6


@pytest.mark.spec("FR-010")
def test_a_log_has_nothing_to_write_with() -> None:
    assert not {name for name in dir(EventLog) if name in {"append", "extend", "insert", "clear", "__setitem__"}}


def test_an_envelope_comes_back_from_typed_json() -> None:
    envelope = session_of(1).log[0]
    back = load(dump(envelope))
    assert isinstance(back, Envelope)
    assert back == envelope
    assert b'"$type":"envelope"' in encode(dump(envelope))
