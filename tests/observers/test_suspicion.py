"""What the rules of suspicion suspect, and how much of all trouble they and a clock bring before a judge."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.corpus.corpus import BY_HAND, event_of, load, questions, reach
from tests.corpus.trace import Trace, TracedCall
from watchkeeper.core.errors import ObserverError
from watchkeeper.observers import Assessment, ObserverContext, ObserverTrigger, SuspicionRules
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session

TASK = "Read the chapters of the report."


def suspected(calls: list[TracedCall], turn: int = 1) -> list[Assessment]:
    """Return what the rules suspect, asked after every turn of so many calls."""
    rules, session, trajectory = SuspicionRules(), Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory, task=TASK)
    found: list[Assessment] = []
    for number, call in enumerate(calls, 1):
        event = event_of(call, number)
        session.dispatch(event)
        trajectory.add(event)
        if number % turn == 0 and rules.should_run(session, context=context):
            said = rules.observe(session, context=context)
            assert said is not None
            found.append(said.stamped(rules.name, number, event.created_at))
    return found


def read(chapter: int, result: str | None = None, *, success: bool = True, at: float | None = None) -> TracedCall:
    said = f"chapter {chapter} tells of topic{chapter} and place{chapter}" if result is None else result
    return TracedCall("read", {"chapter": chapter}, said, success, 5.0 * chapter if at is None else at)


def test_work_that_brings_something_new_is_not_suspect() -> None:
    assert suspected([read(number) for number in range(1, 8)]) == []


def test_calls_that_bring_nothing_are_suspect_with_the_calls_as_evidence() -> None:
    calls = [read(1), read(2), *(read(1 + number % 2, at=12.0 + number) for number in range(6))]
    said, *_ = suspected(calls)
    assert said.severity == "suspicion"
    assert said.observations[0].category == "unfruitful"
    assert said.observations[0].evidence.startswith("#3 read(chapter=1)")
    assert "of the last 8 calls failed or brought nothing new." in said.summary


def test_calls_that_fail_are_suspect_whatever_their_names() -> None:
    calls = [read(1), *(read(number, f"permission denied: vol{number}", success=False) for number in range(2, 8))]
    assert suspected(calls)
    assert suspected(calls)[0].observations[0].category == "unfruitful"


def test_waiting_is_hardly_suspect() -> None:
    polls = [TracedCall("status", {"job": 7}, "queued", True, 60.0 * number) for number in range(9)]
    assert suspected(polls) == []


def test_work_outside_is_suspect_sooner_than_work_inside() -> None:
    def report(number: int, last: int) -> TracedCall:
        return TracedCall(
            "open", {"report": f"{'Chapter' if number < last else 'invoice'} {number}"}, f"page {number} of it"
        )

    strays = [said.call_index for said in suspected([report(number, 9) for number in range(1, 25)])]
    stays = [said.call_index for said in suspected([report(number, 99) for number in range(1, 25)])]
    assert strays
    assert strays[0] < min(stays, default=99)


def test_questions_are_bounded_and_come_at_the_latest_after_an_interval() -> None:
    troubled = [read(1, at=float(number)) for number in range(200)]
    at = [said.call_index for said in suspected(troubled)]
    assert len(at) <= 1 + 200 // 15
    assert all(later - earlier >= 10 for earlier, later in pairwise(at))
    healthy = [said.call_index for said in suspected([read(number) for number in range(1, 200)])]
    assert all(later - earlier <= 40 for earlier, later in pairwise((0, *healthy)))
    assert len(healthy) < len(at)


def test_what_the_agent_writes_is_no_new_ground() -> None:
    def write(number: int) -> TracedCall:
        text = " ".join(f"word{number}of{place}" for place in range(40))
        return TracedCall("write", {"chapter": number, "text": text}, "ok", True, 5.0 * number)

    assert suspected([write(number) for number in range(1, 15)]) == []


def test_a_suspicion_within_a_turn_of_several_calls_is_raised_after_it() -> None:
    calls = [*(read(1, at=float(number)) for number in range(7)), *(read(number) for number in range(2, 6))]
    (alone,) = suspected(calls)
    assert alone.call_index < 7
    assert [said.call_index for said in suspected(calls[:8], turn=8)] == [8]


@pytest.mark.parametrize("fields", [{"least": 0}, {"least": "x"}, {"one_in": 0}, {"at_latest": 0}, {"name": ""}])
def test_thresholds_that_cannot_work_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ObserverError, match=next(iter(fields))):
        SuspicionRules(**fields)


def test_arguments_of_any_shape_are_read() -> None:
    odd: list[Any] = [None, "text", 5, [1, {"a": None}], {"deep": [{"er": "x" * 500}]}, True]
    found = suspected([TracedCall("tool", each, f"result {json.dumps(each)}") for each in odd])
    deepest: Any = []
    for _ in range(30):
        deepest = [deepest, {"a": 1}]
    found += suspected([TracedCall("tool", {"deep": deepest}, "result")] * 3)
    assert {said.severity for said in found} <= {"suspicion"}


def test_most_trouble_of_the_trajectories_made_by_hand_is_reached_with_one_question_in_fifteen_calls() -> None:
    found = reach([trace for name in BY_HAND for trace in load(name)])
    assert sum(found.reached.values()) >= 0.9 * sum(found.labelled.values())
    assert found.calls >= 15 * found.asked
    assert found.precision == 1.0
    assert found.recall >= 0.9


def test_a_clock_alone_reaches_less() -> None:
    traces = [trace for name in BY_HAND for trace in load(name)]
    clock = reach(traces, ObserverTrigger(every_n_calls=15, at_most_one_in=15))
    assert sum(clock.reached.values()) < 0.6 * sum(clock.labelled.values())


def test_questions_are_asked_as_in_a_run() -> None:
    trace = Trace("x", ("stalled",), TASK, tuple(read(1, at=5.0 * number) for number in range(40)), {"stalled": 2})
    assert questions(trace) == [6, 16, 31]
