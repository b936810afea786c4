"""Which limit ends the run first at the present rate, and when; silence where there is nothing to say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.core.errors import ObserverError
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.observers.resources import PaceEstimator
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import ToolResult

PACE = PaceEstimator()


def asked(elapsed: float = 600.0, calls: int = 20, **budget: Any) -> tuple[bool, Assessment | None]:
    """Return whether it wants to look, and what it says."""
    session = Session()
    status = BudgetStatus(elapsed_seconds=elapsed, tool_calls_used=calls, **budget)
    context = ObserverContext(session, budget=status)
    return PACE.should_run(session, context=context), PACE.observe(session, context=context)


def said(elapsed: float = 600.0, calls: int = 20, **budget: Any) -> Assessment | None:
    """Return what it says."""
    return asked(elapsed, calls, **budget)[1]


@pytest.mark.spec("TO-016")
def test_the_limit_that_comes_first_is_named_with_when() -> None:
    assessment = said(remaining_seconds=3000.0, max_tokens=1000, tokens_used=400, max_steps=100, steps_used=50)
    assert assessment is not None
    assert assessment.summary == (
        "At the present rate the steps will be used up in about 10 minutes (about 20 more tool calls),"
        " before the deadline in 50 minutes."
    )
    assert assessment.severity == "warning"
    assert assessment.observations[0].description == "50 of 100 steps (50%) used in 10 minutes with 20 tool calls"
    assert assessment.suggestions == (
        "Get more out of each call, or drop what matters least, so that the budget lasts.",
    )


@pytest.mark.spec("TO-016")
@pytest.mark.parametrize(
    ("budget", "summary", "evidence", "suggestion"),
    [
        (
            {"max_turns": 80_000, "turns_used": 40_000},
            "the turns",
            "40,000 of 80,000 turns (50%)",
            "Do more in each turn",
        ),
        (
            {"max_input_tokens": 1_000, "input_tokens_used": 500},
            "the input token budget",
            "500 of 1,000 input tokens (50%)",
            "Do less per step",
        ),
        (
            {"max_output_tokens": 1_000, "output_tokens_used": 500},
            "the output token budget",
            "500 of 1,000 output tokens (50%)",
            "Do less per step",
        ),
        ({"max_tool_calls": 40}, "the tool calls", "20 of 40 tool calls (50%)", "Get more out of each call"),
        (
            {"max_cost_nanos": 2 * NANOS_PER_USD, "cost_nanos": NANOS_PER_USD},
            "the cost budget",
            "$1.00 of $2.00 (50%)",
            "Do less per step",
        ),
    ],
    ids=["turns", "input tokens", "output tokens", "tool calls", "money"],
)
def test_every_limit_is_projected_in_words(
    budget: dict[str, Any], summary: str, evidence: str, suggestion: str
) -> None:
    assessment = said(remaining_seconds=3000.0, **budget)
    assert assessment is not None
    assert assessment.summary.startswith(
        f"At the present rate {summary} will be used up in about 10 minutes (about 20 "
    )
    assert assessment.observations[0].description == f"{evidence} used in 10 minutes with 20 tool calls"
    assert assessment.suggestions == (f"{suggestion}, or drop what matters least, so that the budget lasts.",)
    assert "max_" not in assessment.render()


def test_the_turns_come_before_the_calls_where_more_of_them_is_used() -> None:
    assessment = said(calls=19, max_tool_calls=40, max_turns=20, turns_used=18)
    assert assessment is not None
    assert assessment.summary.startswith(
        "At the present rate the turns will be used up in about 1 minute (about 2 more"
    )


def test_of_a_limit_that_is_nearly_used_up_it_says_so_and_no_more() -> None:
    assessment = said(calls=80_000, max_tokens=10**9, tokens_used=10**9 - 1)
    assert assessment is not None
    assert "used up in about 1 second (less than one more tool call)." in assessment.summary
    assert "(99%) used in 10 minutes with 80,000 tool calls" in assessment.observations[0].description


def test_the_calls_that_are_left_are_counted_exactly() -> None:
    assessment = said(calls=19, max_tool_calls=20)
    assert assessment is not None
    assert "(about 1 more tool call)" in assessment.summary


def test_retries_are_not_projected() -> None:
    assert said(max_retries=20, retries_used=10) is None


def invoked(number: int, at: datetime) -> ToolInvoked:
    """Return a call."""
    params = {"query": f"number {number} {'x' * 500}"}
    return ToolInvoked(
        "t/t", "scripted", "search", params, ToolResult.ok(""), None, at, None, "", None, UUID(int=number)
    )


@pytest.mark.spec("TO-016")
@pytest.mark.parametrize(
    ("earlier", "calls", "lines"),
    [
        (0, 1, ["#1 search(query='number 1 "]),
        (0, 2, ["#1 search(query='number 1 ", "#2 search(query='number 2 "]),
        (0, 1500, ["#1 search(query='number 1 ", "... 1,498 more ...", "#1500 search(query='number 1500 "]),
        (3, 3, ["#4 search(query='number 4 ", "... 1 more ...", "#6 search(query='number 6 "]),
        (3, 0, []),
        (0, 0, []),
    ],
)
def test_it_cites_the_calls_that_the_rate_is_of_which_are_those_of_this_run(
    earlier: int, calls: int, lines: list[str]
) -> None:
    now, session = datetime(2026, 11, 21, tzinfo=UTC), Session()
    begun = now - timedelta(seconds=600)
    session[ToolInvoked].keep()
    for number in range(1, earlier + 1):
        session.dispatch(invoked(number, begun - timedelta(seconds=earlier - number)))
    for number in range(earlier + 1, earlier + calls + 1):
        session.dispatch(invoked(number, begun + timedelta(seconds=600 / calls * (number - earlier))))
    status = BudgetStatus(elapsed_seconds=600.0, tool_calls_used=20, max_tool_calls=40)
    assessment = PACE.observe(session, context=ObserverContext(session, budget=status, now=now))
    assert assessment is not None
    evidence = (assessment.observations[0].evidence or "").splitlines()
    assert [line[: len(expected)] for line, expected in zip(evidence, lines, strict=True)] == lines
    assert all(len(line) < 100 for line in evidence)


def test_it_cautions_where_most_of_the_time_is_used() -> None:
    assessment = said(remaining_seconds=600.0, max_tokens=1000, tokens_used=600)
    assert assessment is not None
    assert assessment.severity == "caution"


def test_without_a_deadline_it_informs() -> None:
    assessment = said(max_cost_nanos=2 * NANOS_PER_USD, cost_nanos=NANOS_PER_USD, calls=1)
    assert assessment is not None
    assert assessment.severity == "info"
    assert assessment.suggestions == ()
    expected = "At the present rate the cost budget will be used up in about 10 minutes (about 1 more tool call)."
    assert assessment.summary == expected


@pytest.mark.spec("TO-016")
@pytest.mark.parametrize(
    "budget",
    [
        {},
        {"remaining_seconds": 60.0},
        {"max_tokens": 1000, "tokens_used": 50},
        {"max_tokens": 1000, "tokens_used": 1000},
        {"max_tokens": 1000, "tokens_used": 1200},
        {"max_cost_nanos": 2 * NANOS_PER_USD, "cost_nanos": None},
        {"remaining_seconds": 600.0, "max_tokens": 1000, "tokens_used": 500},
        {"remaining_seconds": 0.0, "max_tokens": 1000, "tokens_used": 900},
    ],
    ids=["no limit", "time alone", "hardly begun", "used up", "more than used up", "no price", "lasts", "time over"],
)
def test_it_is_silent_where_there_is_nothing_to_say(budget: dict[str, Any]) -> None:
    assert said(**budget) is None


def test_it_waits_until_there_is_enough_to_judge() -> None:
    assert asked(calls=4, max_tool_calls=10)[0] is False
    assert asked(calls=5, max_tool_calls=10)[0] is True
    assert asked(elapsed=0.0, max_tool_calls=100)[0] is False


@pytest.mark.spec("TO-016")
@given(
    elapsed=st.floats(0.001, 1e7),
    left=st.none() | st.floats(0, 1e7),
    used=st.integers(0, 10**6),
    calls=st.integers(1, 10**6),
)
def test_whatever_the_figures_it_names_the_limit_of_which_most_is_used(
    elapsed: float, left: float | None, used: int, calls: int
) -> None:
    budget = {"max_tokens": 10**6, "tokens_used": used, "max_tool_calls": 2 * 10**6}
    assessment = said(elapsed, calls, remaining_seconds=left, **budget)
    if assessment is not None:
        first = "the token budget" if used / 10**6 >= calls / (2 * 10**6) else "the tool calls"
        assert f"At the present rate {first} will be used up in about" in assessment.summary
        assert assessment.severity == "info" if left is None else assessment.severity != "info"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"least_used": 0}, "least_used=0"),
        ({"warning_share": 1}, "warning_share=1"),
        ({"least_calls": 0}, "least_calls=0"),
        ({"name": "   "}, r"PaceEstimator\(name='   '\) must have a name"),
        ({"name": None}, r"PaceEstimator\(name=None\) must have a name"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ObserverError, match=expected):
        PaceEstimator(**fields)
