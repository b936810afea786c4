"""The names of trajectory observers for a loop of one's own: asking after a call, recording, building the context."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.oversight.support import Watcher, watched
from watchkeeper.accounting.budget import Budget
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ObserverError
from watchkeeper.observers import (
    Assessment,
    ObserverConfig,
    ObserverContext,
    ObserverTrigger,
    RecordAssessment,
    ResourceObserver,
    StallDetector,
    build_context,
    on_tool_invoked,
)
from watchkeeper.prompt.template import Prompt
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Clear, Snapshot
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import ToolResult

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def invoked(number: int = 1, said: str = "saw it", *, success: bool = True, at: datetime = NOW) -> ToolInvoked:
    result: Any = ToolResult.ok(said, said) if success else ToolResult[Any].error(said)
    return ToolInvoked("t/own", "own", "look", {"a": 1}, result, None, at, None, said, f"c{number}", UUID(int=number))


def after_calls(session: Session, prompt: Any, calls: int, **details: Any) -> None:
    """Keep so many calls in the session, and ask the observers after each."""
    for number in range(1, calls + 1):
        event = invoked(number, **details)
        session.dispatch(event)
        on_tool_invoked(event, session=session, prompt=prompt)


@pytest.mark.spec("TO-005")
def test_record_assessment_appends_to_the_slice_and_keeps_history() -> None:
    session = Session()
    for summary in ("first", "second"):
        session.dispatch(RecordAssessment(Assessment("Mine", summary, timestamp=NOW)))
    assert [each.summary for each in session[Assessment].all()] == ["first", "second"]
    assert Snapshot.from_json(session.snapshot().to_json())[Assessment] == session[Assessment].all()


def test_a_reducer_of_the_user_decides_alone_what_record_assessment_does() -> None:
    session = Session()
    session[Assessment].register(RecordAssessment, lambda view, event: Clear())
    session.dispatch(RecordAssessment(Assessment("Mine", "first")))
    assert session[Assessment].latest() is None


@pytest.mark.spec("TO-010")
def test_observers_are_asked_after_a_call_and_the_newest_assessment_is_the_context() -> None:
    session = Session(clock=TestClock(NOW))
    prompt = watched(ObserverConfig(Watcher(), ObserverTrigger(every_n_calls=2)))
    after_calls(session, prompt, 5)
    assert [(each.summary, each.call_index) for each in session[Assessment].all()] == [("seen 2", 2), ("seen 4", 4)]
    assert build_context(session) == session[Assessment].all()[-1].render()
    assert "_Generated after tool call #4_" in build_context(session)


def test_the_context_is_empty_without_an_assessment_and_once_it_is_old() -> None:
    session = Session()
    assert build_context(session) == ""
    session.dispatch(RecordAssessment(Assessment("Mine", "look", call_index=1)))
    for number in range(3):
        session.dispatch(invoked(number))
    assert build_context(session, max_age_calls=2) != ""
    assert build_context(session, max_age_calls=1) == ""


def test_a_detector_sees_all_calls_also_after_a_rollback() -> None:
    session = Session(clock=TestClock(NOW))
    prompt = watched(StallDetector())
    after_calls(session, prompt, 3)
    before = session.snapshot()
    after_calls(session, prompt, 2)
    assert {each.observer_name for each in session[Assessment].all()} == {"Stall"}
    session.rollback(before)
    after_calls(session, prompt, 1, said="something new")
    assert session[Assessment].latest() is None


@pytest.mark.spec("TO-025")
def test_the_budget_of_the_session_is_seen() -> None:
    clock = TestClock(NOW)
    session = Session(clock=clock)
    session[Budget].seed(Budget(deadline=NOW + timedelta(minutes=10), max_tokens=1000, max_tool_calls=4))
    clock.advance(60)
    after_calls(session, watched(ResourceObserver()), 1)
    newest = session[Assessment].latest()
    assert newest is not None
    assert newest.summary == (
        "You have 9 minutes remaining before the deadline. You have made 1 of 4 allowed tool calls. 3 calls remaining."
    )
    left: list[float] = []

    def keep(context: ObserverContext) -> None:
        assert context.deadline is not None
        left.append((context.deadline - clock.now()).total_seconds())
        assert "Look." in context.task

    after_calls(session, Prompt(watched(Watcher(keep))), 1)
    assert left == [540.0]


def test_one_that_raises_is_skipped_and_leaves_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    def broken(context: ObserverContext) -> Any:
        raise ValueError("no such metric")

    session = Session()
    after_calls(session, watched(Watcher(broken), Watcher(name="Other"), Watcher(lambda _: 5, "Odd")), 1)
    assert [each.observer_name for each in session[Assessment].all()] == ["Other"]
    said = [line for line in caplog.messages if "observer.failed" in line]
    assert ["ValueError: no such metric" in said[0], "must return Assessment" in said[1]] == [True, True]


def test_what_only_a_run_can_do_is_refused_in_words() -> None:
    class Later(Watcher):
        async def observe(self, session: Session, *, context: ObserverContext) -> Any:
            return None

    session = Session()
    with pytest.raises(ObserverError, match="keeps no call yet; dispatch the event of 'look' to it first"):
        on_tool_invoked(invoked(), session=session, prompt=watched(Watcher()))
    with pytest.raises(ObserverError, match="is async, so only a run can ask it"):
        after_calls(session, watched(Later()), 1)
    shares = ObserverConfig(Watcher(), ObserverTrigger(at_limit_share=0.5))
    with pytest.raises(ObserverError, match="needs a run: only a run knows its limits and its files"):
        after_calls(session, watched(shares), 1)
