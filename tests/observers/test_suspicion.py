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


def test_two_of_four_calls_that_bring_nothing_are_suspect_with_the_calls_as_evidence() -> None:
    calls = [read(1), read(2), read(1, at=12), read(3), read(2, at=20)]
    (said,) = suspected(calls)
    assert (said.severity, said.call_index) == ("suspicion", 5)
    assert said.summary == "2 of the last 4 calls failed or brought nothing new."
    assert said.observations[0].category == "unfruitful"
    assert said.observations[0].evidence == "#3 read(chapter=1)\n#5 read(chapter=2)"


def test_two_of_four_calls_that_fail_are_suspect_whatever_their_names() -> None:
    calls = [
        read(1),
        read(2, "permission denied: vol2", success=False),
        read(3),
        read(4, "no such host", success=False),
    ]
    assert [said.call_index for said in suspected(calls)] == [4]


def test_waiting_is_not_suspect() -> None:
    polls = [TracedCall("status", {"job": 7}, "queued", True, 60.0 * number) for number in range(9)]
    assert suspected(polls) == []


def test_many_new_names_in_a_few_calls_are_suspect_once_in_a_while() -> None:
    def far(number: int) -> TracedCall:
        where = {"path": f"billing/vendor{number}/notes{number}"}
        return TracedCall("open", where, f"page of vendor{number}", True, 5.0 * number)

    calls = [*(read(number) for number in range(1, 6)), *map(far, range(100, 125))]
    found = suspected(calls)
    assert {said.observations[0].category for said in found} == {"new_ground"}
    at = [said.call_index for said in found]
    assert at[0] == 11
    assert all(later - earlier >= 11 for earlier, later in pairwise(at))


def test_two_of_four_calls_that_touch_other_things_than_the_task_names_are_suspect() -> None:
    def report(number: int) -> TracedCall:
        return TracedCall(
            "open", {"report": f"{'Chapter' if number < 9 else 'invoice'} {number}"}, f"page {number} of it"
        )

    (said,) = suspected([report(number) for number in range(1, 12)])
    assert (said.observations[0].category, said.call_index) == ("outside", 10)
    assert said.summary == "2 of the last 4 comparable calls touched nothing that the task names."


def test_what_the_agent_writes_is_no_new_ground() -> None:
    def write(number: int) -> TracedCall:
        text = " ".join(f"word{number}of{place}" for place in range(40))
        return TracedCall("write", {"chapter": number, "text": text}, "ok", True, 5.0 * number)

    assert suspected([write(number) for number in range(1, 20)]) == []


def test_a_suspicion_within_a_turn_of_several_calls_is_raised_after_it() -> None:
    calls = [read(1), read(1, at=1), read(1, at=2), *(read(number) for number in range(2, 5))]
    assert [said.call_index for said in suspected(calls, turn=3)] == [3]
    assert [said.call_index for said in suspected(calls, turn=6)] == [6]


@pytest.mark.parametrize(
    "fields",
    [{"window": 0}, {"unfruitful": 5}, {"outside": 5}, {"ground": 0}, {"new_words": 0}, {"apart": 0}, {"name": ""}],
)
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
    assert questions(trace) == [3, 16, 31]
