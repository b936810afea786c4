"""Accounts across runs: what is written is read exactly, what makes no sense is refused by field and value."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import LimitsError
from watchkeeper.core.limits import AccountLimit, Limits, account_name, period_days, tighten


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("$20/day", AccountLimit("day", nanos=20_000_000_000)),
        ("$300 per month", AccountLimit("month", nanos=300_000_000_000)),
        ("0.5 USD a Day", AccountLimit("day", nanos=500_000_000)),
        (" 1,000 / month ", AccountLimit("month", nanos=1_000_000_000_000)),
        ("500k tokens/day", AccountLimit("day", tokens=500_000)),
        ("1 token per month", AccountLimit("month", tokens=1)),
    ],
)
def test_amounts_for_a_period_are_read_exactly(text: str, limit: AccountLimit) -> None:
    assert AccountLimit.parse(text, "account_limit") == limit
    assert AccountLimit.parse(limit, "account_limit") is limit


@given(st.sampled_from(["day", "month"]), st.integers(min_value=1, max_value=2**62))
def test_tokens_are_written_as_they_are_read(period: Any, tokens: int) -> None:
    limit = AccountLimit(period, tokens=tokens)
    assert AccountLimit.parse(str(limit), "account_limit") == limit


def test_money_is_written_as_it_is_read() -> None:
    assert str(AccountLimit.parse("$1,234.5/month", "account_limit")) == "$1,234.50/month"


@pytest.mark.parametrize(
    "text",
    ["", "$20", "/day", "$20/week", "20 apples/day", "$-1/day", "$0/day", "0 tokens/day", "$20day", 20, None, b""],
)
def test_what_is_no_amount_for_a_period_is_refused_by_field_and_value(text: Any) -> None:
    with pytest.raises(LimitsError, match="account_limit="):
        AccountLimit.parse(text, "account_limit")


@pytest.mark.parametrize("name", ["team-a", "a", "nightly@acme/jobs.v2", "x" * 100])
def test_plain_names_are_taken(name: str) -> None:
    assert account_name(name, "account") == name


@pytest.mark.parametrize("name", ["", " ", "team a", "-a", "a/", "x" * 101, "team\n", "équipe", 7, None])
def test_other_names_are_refused_by_field_and_value(name: Any) -> None:
    with pytest.raises(LimitsError, match="account="):
        account_name(name, "account")


@given(st.datetimes(timezones=st.just(UTC)), st.sampled_from(["day", "month"]))
def test_a_moment_lies_in_its_own_period_and_the_next_day_begins_another(moment: datetime, period: Any) -> None:
    if moment.year == 9999:
        return
    first, last = period_days(period, moment)
    assert first <= moment.date() <= last
    assert (last - first).days == (0 if period == "day" else (last.day - 1))
    after = datetime.combine(last + timedelta(days=1), moment.timetz())
    assert period_days(period, after)[0] == last + timedelta(days=1)


def test_days_are_those_of_utc() -> None:
    late_in_new_york = datetime(2026, 1, 31, 20, tzinfo=timezone(timedelta(hours=-5)))
    assert period_days("month", late_in_new_york) == (date(2026, 2, 1), date(2026, 2, 28))


class TestInLimits:
    @pytest.mark.spec("FR-129")
    def test_account_and_limit_are_read_and_described(self) -> None:
        limits = Limits(
            deadline=None,
            max_total_tokens=None,
            max_turns=None,
            max_retries=None,
            account="team-a",
            account_limit="$20/day",
        )
        assert limits.account_limit == AccountLimit("day", nanos=20_000_000_000)
        assert limits.describe() == "account team-a $20.00/day"
        assert hash(limits) == hash(
            tighten(limits, Limits(None, None, None, max_turns=None, max_retries=None), TestClock())
        )

    def test_one_without_the_other_is_refused(self) -> None:
        with pytest.raises(LimitsError, match=r"account='team-a' needs an account_limit, for example"):
            Limits(account="team-a")
        with pytest.raises(LimitsError, match=r"account_limit='\$2/day' needs an account"):
            Limits(account_limit="$2/day")

    def test_bad_text_names_field_and_value(self) -> None:
        with pytest.raises(LimitsError, match="account_limit='20'"):
            Limits(account="team-a", account_limit="20")
        with pytest.raises(LimitsError, match="account='team a'"):
            Limits(account="team a", account_limit="$20/day")
