"""Which limit ends the run first at the present rate, and when; silence where there is nothing to say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.budget import BudgetStatus
from watchkeeper.core.errors import ObserverError
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.observers.pace import PaceEstimator
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer_context import ObserverContext
from watchkeeper.session.session import Session

PACE = PaceEstimator()


def asked(elapsed: float = 600.0, calls: int = 20, **budget: Any) -> tuple[bool, Assessment | None]:
    """Return whether it wants to look, and what it says."""
    session = Session()
    status = BudgetStatus(elapsed_seconds=elapsed, tool_calls_used=calls, **budget)
    context = ObserverContext(session, status)
    return PACE.should_run(session, context=context), PACE.observe(session, context=context)


def said(elapsed: float = 600.0, calls: int = 20, **budget: Any) -> Assessment | None:
    """Return what it says."""
    return asked(elapsed, calls, **budget)[1]


def test_the_limit_that_comes_first_is_named_with_when() -> None:
    assessment = said(remaining_seconds=3000.0, max_tokens=1000, tokens_used=400, max_steps=100, steps_used=50)
    assert assessment is not None
    assert assessment.summary == (
        "At the present rate the steps will be used up in about 10 minutes (about 20 more tool calls),"
        " before the deadline in 50 minutes."
    )
    assert assessment.severity == "warning"
    assert assessment.observations[0].description == "max_steps: 50% used in 10 minutes, 20 tool calls"
    assert assessment.suggestions == ("Do less per step, or drop what matters least, so that the budget lasts.",)


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
        ({"name": " "}, "must have a name"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ObserverError, match=expected):
        PaceEstimator(**fields)
