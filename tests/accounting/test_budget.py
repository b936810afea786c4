"""Ceilings, the tracker that shares them, and the view of both."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.accounting.budget import Budget, BudgetStatus, BudgetTracker
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import BudgetExceededError, LimitsError
from watchkeeper.core.meters import BY_FIELD
from watchkeeper.core.usage import NANOS_PER_USD, TokenUsage, Usage

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.spec("NE-010")
def test_budget_parses_friendly_forms() -> None:
    budget = Budget(deadline=NOON, max_total_tokens="50k", max_tool_calls=3, max_cost_usd="$2")
    assert budget.deadline == Deadline(NOON)
    assert (budget.max_total_tokens, budget.max_tokens, budget.max_tool_calls) == (50_000, 50_000, 3)


def test_budget_without_ceilings_has_none() -> None:
    budget = Budget()
    assert (budget.max_tokens, budget.deadline) == (None, None)


@pytest.mark.spec("TO-025")
def test_max_tokens_is_another_name_of_the_ceiling_of_all_tokens() -> None:
    budget = Budget(deadline=NOON, max_tokens="50k", max_tool_calls=100)
    assert budget == Budget(NOON, 50_000, max_tool_calls=100)
    assert budget.max_tokens == budget.max_total_tokens == 50_000
    assert replace(budget, max_tool_calls=5) == Budget(NOON, 50_000, max_tool_calls=5)
    with pytest.raises(LimitsError, match="two names of one ceiling; give one of them"):
        Budget(max_tokens=1, max_total_tokens=1)
    with pytest.raises(LimitsError, match="max_tokens=-1"):
        Budget(max_tokens=-1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_total_tokens", 0), ("max_input_tokens", -1), ("max_output_tokens", "many"), ("max_cost_usd", 0)],
)
def test_budget_names_the_field_that_makes_no_sense(field: str, value: Any) -> None:
    with pytest.raises(LimitsError, match=field):
        Budget(**{field: value})


def test_budget_refuses_a_naive_deadline() -> None:
    with pytest.raises(LimitsError, match="time zone"):
        Budget(deadline=NOON.replace(tzinfo=None))


def test_budget_as_limits_has_these_ceilings_and_none_other() -> None:
    limits = Budget(deadline=NOON, max_total_tokens=10, max_cost_usd=1).as_limits()
    assert (limits.deadline, limits.max_total_tokens, limits.max_cost_nanos) == (Deadline(NOON), 10, 1_000_000_000)
    assert (limits.max_retries, limits.max_turns, limits.max_steps) == (None, None, None)


def test_tracker_adds_what_was_used() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=100), Usage(tool_calls=1))
    tracker.add(Usage(TokenUsage(3, 4), cost_nanos=5, tool_calls=2))
    assert tracker.usage == Usage(TokenUsage(3, 4), cost_nanos=5, tool_calls=3)
    assert BudgetTracker(Budget()).usage == Usage()


@pytest.mark.spec("FR-004")
def test_tracker_is_exact_under_threads() -> None:
    tracker = BudgetTracker(Budget())

    def spend() -> None:
        for _ in range(200):
            tracker.add(Usage(TokenUsage(1, 1), cost_nanos=1, steps=1))

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tracker.usage == Usage(TokenUsage(1600, 1600), cost_nanos=1600, steps=1600)


def test_tracker_says_what_is_left() -> None:
    budget = Budget(
        deadline=NOON,
        max_total_tokens=100,
        max_input_tokens=60,
        max_output_tokens=50,
        max_tool_calls=3,
        max_cost_usd=2,
    )
    used = Usage(TokenUsage(30, 20), cost_nanos=500_000_000, tool_calls=1)
    left = BudgetTracker(budget, used).remaining()
    assert left == Budget(NOON, 50, 30, 30, 2, Decimal("1.5"))
    assert BudgetTracker(Budget()).remaining() == Budget()


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (Budget(max_total_tokens=50), "max_total_tokens, 50 of 50"),
        (Budget(max_input_tokens=29), "max_input_tokens, 30 of 29"),
        (Budget(max_output_tokens=20), "max_output_tokens, 20 of 20"),
        (Budget(max_tool_calls=1), "max_tool_calls, 1 of 1"),
        (Budget(max_cost_usd="0.50"), r"max_cost_usd, \$0\.50 of \$0\.50"),
    ],
)
def test_tracker_whose_budget_is_used_up_says_which_ceiling(budget: Budget, message: str) -> None:
    used = Usage(TokenUsage(30, 20), cost_nanos=500_000_000, tool_calls=1)
    with pytest.raises(BudgetExceededError, match=f"the shared budget is used up: {message}"):
        BudgetTracker(budget, used).remaining()


def test_status_without_ceilings_leaves_nothing_to_count_down() -> None:
    status = BudgetStatus()
    assert (status.remaining_tokens, status.remaining_tool_calls, status.remaining_cost_usd) == (None, None, None)
    assert (status.remaining_seconds, status.cost_usd) == (None, Decimal(0))


def test_of_a_ceiling_of_nothing_all_is_used() -> None:
    status = BudgetStatus(max_tokens=0, max_tool_calls=0, max_cost_nanos=0, max_steps=0)
    assert set(status.shares.values()) == {1.0}


EVERY_LIMIT: dict[str, Any] = {
    "max_total_tokens": {"max_tokens": 1000, "tokens_used": 500},
    "max_input_tokens": {"max_input_tokens": 1000, "input_tokens_used": 500},
    "max_output_tokens": {"max_output_tokens": 1000, "output_tokens_used": 500},
    "max_cost_usd": {"max_cost_nanos": 1000, "cost_nanos": 500},
    "max_tool_calls": {"max_tool_calls": 1000, "tool_calls_used": 500},
    "max_steps": {"max_steps": 1000, "steps_used": 500},
    "max_turns": {"max_turns": 1000, "turns_used": 500},
    "max_retries": {"max_retries": 1000, "retries_used": 500},
}


@pytest.mark.parametrize("name", EVERY_LIMIT)
def test_every_limit_has_its_share_under_its_own_name(name: str) -> None:
    status = BudgetStatus(**EVERY_LIMIT[name])
    assert status.shares == {name: 0.5}
    assert status.counts == [(name, 500, 1000)]
    assert hasattr(Limits(), name)


def test_the_time_has_its_share_and_is_no_count() -> None:
    status = BudgetStatus(elapsed_seconds=30.0, remaining_seconds=90.0)
    assert (status.shares, status.counts) == ({"deadline": 0.25}, [])
    assert BudgetStatus(remaining_seconds=0.0).shares == {"deadline": 1.0}


def test_every_numeric_limit_is_among_the_counts() -> None:
    fields = {key: value for each in EVERY_LIMIT.values() for key, value in each.items()}
    assert {name for name, _, _ in BudgetStatus(**fields).counts} == BY_FIELD.keys()


def test_retries_count_from_the_first_one_on() -> None:
    assert BudgetStatus(max_retries=20).shares == {}
    assert BudgetStatus(max_retries=0).shares == {}
    assert BudgetStatus(max_retries=20, retries_used=1).shares == {"max_retries": 0.05}


def test_status_of_an_unknown_cost_does_not_know_what_remains() -> None:
    assert BudgetStatus(max_cost_nanos=2 * NANOS_PER_USD, cost_nanos=None).remaining_cost_usd is None


@pytest.mark.spec("TO-025")
def test_status_says_what_remains() -> None:
    status = BudgetStatus(
        deadline=Deadline(NOON + timedelta(hours=1)),
        elapsed_seconds=5.0,
        remaining_seconds=3595.0,
        max_tokens=100,
        tokens_used=40,
        max_tool_calls=3,
        tool_calls_used=1,
        max_cost_nanos=2_000_000_000,
        cost_nanos=500_000_000,
    )
    assert (status.remaining_tokens, status.remaining_tool_calls, status.remaining_steps) == (60, 2, None)
    assert status.remaining_cost_usd == Decimal("1.50")


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_what_remains_is_never_negative_and_never_more_than_the_ceiling(ceiling: int, used: int) -> None:
    status = BudgetStatus(
        max_tokens=ceiling,
        tokens_used=used,
        max_tool_calls=ceiling,
        tool_calls_used=used,
        max_cost_nanos=ceiling,
        cost_nanos=used,
        max_steps=ceiling,
        steps_used=used,
    )
    left = max(ceiling - used, 0)
    assert (status.remaining_tokens, status.remaining_tool_calls, status.remaining_steps) == (left, left, left)
    assert status.remaining_cost_usd == Decimal(left) / NANOS_PER_USD
