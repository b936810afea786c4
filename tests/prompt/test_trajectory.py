"""The fold of tool calls: what is equal, what is an error of one kind; flat, and rebuilt at need."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import (
    KEPT_CALLS,
    Trajectory,
    digest,
    error_kind,
)
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked, ToolOutcome
from watchkeeper.tools.values import ToolResult

AT = datetime(2026, 1, 1, tzinfo=UTC)


def invoked(
    name: str = "look", params: Any = None, said: str = "ok", outcome: ToolOutcome = "ok", number: int = 0
) -> ToolInvoked:
    """Return a tool call."""
    result = ToolResult.ok(said, said) if outcome == "ok" else ToolResult[Any].error(said)
    return ToolInvoked("n/k", "a", name, params or {}, result, None, AT, None, said, "c", UUID(int=number), outcome)


def test_calls_with_equal_arguments_and_results_have_equal_fingerprints() -> None:
    one, same, other = (digest(invoked(params={"a": value}), 1) for value in (1, 1, 2))
    assert one.action == same.action != other.action
    assert one.kind == same.kind
    assert digest(invoked(params={"a": 1}, said="new"), 1).kind != one.kind


def test_arguments_of_every_kind_can_be_compared() -> None:
    class Struct(msgspec.Struct):
        path: str

    @dataclass
    class Plain:
        path: str

    for params in (Struct("a.py"), Plain("a.py"), {"path": "a.py"}, {"path": ["a.py"]}, {"path": ("a.py", 3)}):
        assert digest(invoked(params=params), 1).action == digest(invoked(params=params), 2).action
    assert digest(invoked(params=Struct("a.py")), 1).action != digest(invoked(params=Struct("b.py")), 1).action
    endless: dict[str, Any] = {}
    endless["x"] = endless
    for strange in ("{broken", {"x": object()}, {"x": {1: object()}, 2: "y"}, endless):
        assert digest(invoked(params=strange), 1).name == "look"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("No file 'a.py'", "no file 'b/c.py'", True),
        ("timeout after 30 s", "timeout after 45 s", True),
        ("/tmp/x: permission denied", "/var/y: permission denied", True),
        ("permission denied", "no such file", False),
    ],
)
def test_errors_are_of_one_kind_but_for_names_paths_and_numbers(one: str, other: str, alike: bool) -> None:
    assert (error_kind(one) == error_kind(other)) is alike


def test_failures_in_a_row_are_counted_until_a_success() -> None:
    calls = [invoked(outcome="failed", said="no")] * 3
    trajectory = Trajectory()
    assert trajectory.begin(calls) == 3
    assert (trajectory.count, trajectory.errors_in_a_row) == (3, 3)
    trajectory.add(invoked())
    assert (trajectory.count, trajectory.errors_in_a_row) == (4, 0)
    assert trajectory.latest is not None
    assert trajectory.latest.index == 4
    assert trajectory.recent(2)[0].error == "no"


def test_only_the_newest_are_kept() -> None:
    trajectory = Trajectory()
    assert trajectory.latest is None
    calls = [invoked(number=number) for number in range(KEPT_CALLS + 50)]
    trajectory.begin(calls)
    assert [call.index for call in trajectory.recent(10**6)] == list(range(51, KEPT_CALLS + 51))
    assert not trajectory.recent(0)
    assert not trajectory.recent(-1)


def test_it_knows_how_long_ago_the_newest_call_was_made_before() -> None:
    trajectory = Trajectory()
    seen: list[int] = []
    for name in "abaab":
        trajectory.add(invoked(name))
        seen.append(trajectory.repeats_after)
    assert seen == [0, 0, 2, 1, 3]
    for number in range(3 * KEPT_CALLS):
        trajectory.add(invoked("c", {"n": number}))
    trajectory.add(invoked("b"))
    assert trajectory.repeats_after == 0
    trajectory.begin([invoked("b")])
    assert trajectory.repeats_after == 0
    trajectory.begin([invoked("b", {"path": "x"}), invoked("b", {"path": "x"})])
    assert trajectory.repeats_after == 1


def test_every_call_knows_how_long_ago_it_was_made_before() -> None:
    trajectory = Trajectory()
    trajectory.begin([invoked(name) for name in "abaab"])
    assert [call.repeats_after for call in trajectory.recent(5)] == [0, 0, 2, 1, 3]
    assert digest(invoked(), 7).repeats_after == 0


def test_an_observer_learns_which_calls_it_has_not_looked_at() -> None:
    trajectory = Trajectory()
    assert trajectory.unseen_by("a") == 0
    for _ in range(3):
        trajectory.add(invoked())
    assert (trajectory.unseen_by("a"), trajectory.unseen_by("a"), trajectory.unseen_by("b")) == (3, 3, 3)
    trajectory.add(invoked())
    assert trajectory.unseen_by("a") == 1
    trajectory.add(invoked())
    assert (trajectory.unseen_by("a"), trajectory.unseen_by("b"), trajectory.unseen_by("b")) == (1, 2, 2)
    trajectory.begin([invoked()] * 4)
    assert (trajectory.unseen_by("a"), trajectory.unseen_by("b")) == (4, 4)


@pytest.mark.parametrize("name", ["count", "errors_in_a_row", "repeats_after", "latest", "anything"])
def test_whoever_is_handed_it_cannot_change_it(name: str) -> None:
    trajectory = Trajectory()
    trajectory.add(invoked(params={"path": "a"}))
    with pytest.raises(AttributeError):
        setattr(trajectory, name, 500)
    assert (trajectory.count, trajectory.errors_in_a_row, trajectory.repeats_after) == (1, 0, 0)


def test_it_can_begin_anew_with_what_a_slice_holds() -> None:
    calls = [invoked(number=number) for number in range(10)]
    trajectory = Trajectory()
    trajectory.begin(calls)
    assert trajectory.begin([*calls[:3], invoked(outcome="failed", said="no", number=99)]) == 4
    assert (trajectory.count, trajectory.errors_in_a_row) == (4, 1)
    assert trajectory.begin([invoked(number=number) for number in range(KEPT_CALLS + 5)]) == KEPT_CALLS
    assert trajectory.count == KEPT_CALLS + 5


@pytest.mark.spec("TO-006")
def test_the_context_answers_what_the_specification_asks() -> None:
    session = Session()
    context = ObserverContext(session)
    assert (context.tool_call_count, context.error_rate(5), context.last_assessment) == (0, 0.0, None)
    for number in range(4):
        session.dispatch(invoked(number=number, outcome="failed" if number == 3 else "ok", said="x"))
    assert context.tool_call_count == 4
    assert [call.event_id.int for call in context.recent_tool_calls(2)] == [2, 3]
    assert len(context.recent_tool_calls(100)) == 4
    assert context.recent_tool_calls(0) == ()
    assert context.error_rate(4) == context.error_rate(100) == 0.25
    assert context.tool_calls_since_last_assessment() == 4
    assert context.assessments == ()


@pytest.mark.spec("TO-017")
@pytest.mark.parametrize(
    ("history", "trend"),
    [
        ([], "steady"),
        (["warning"], "steady"),
        (["info", "caution"], "rising"),
        (["warning", "info", "caution"], "falling"),
        (["warning", "warning", "info", "info", "info"], "steady"),
    ],
)
def test_the_trend_is_that_of_the_newest_advice(history: Any, trend: str) -> None:
    assert ObserverContext(Session(), severities={"Stall": history}).trend("Stall") == trend
