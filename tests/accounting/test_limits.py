"""What a run may spend, and what an account may in a day or a month."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.accounting.limits import AccountLimit, Landing, Limits, Verdict, account_name, period_days, tighten
from watchkeeper.core.clock import Deadline, TestClock
from watchkeeper.core.errors import LimitsError
from watchkeeper.core.meters import METERS

MOMENT = datetime(2026, 1, 1, 6, tzinfo=UTC)
NUMERIC = tuple(meter.field for meter in METERS if meter.measures != "money")

ceilings = st.none() | st.integers(min_value=1, max_value=2**62)
deadlines = st.none() | st.timedeltas(timedelta(seconds=1), timedelta(days=3)) | st.just(Deadline(MOMENT))
limits_of_all_kinds = st.builds(
    Limits,
    deadline=deadlines,
    max_cost_usd=st.none() | st.decimals(Decimal("0.01"), Decimal(1000), places=4),
    **dict.fromkeys(NUMERIC, ceilings),
    landing=st.none() | st.just(Landing()),
)


class TestForms:
    @pytest.mark.spec("FR-005")
    def test_the_defaults_are_safe(self) -> None:
        limits = Limits()
        assert limits.describe() == "deadline 1h, total tokens 2,000,000, turns 100, retries 20"
        assert limits.landing == Landing()
        assert limits.verdict == Verdict(share=0.1, time_share=0.05)

    def test_none_lifts_a_limit(self) -> None:
        lifted = Limits(deadline=None, max_total_tokens=None, max_turns=None, max_retries=None)
        assert lifted.describe() == "none"
        assert lifted.start(TestClock()) is None
        assert all(lifted.ceiling(name) is None for name in (*NUMERIC, "max_cost_nanos"))

    @pytest.mark.spec("FR-005")
    def test_friendly_forms_are_held_exactly(self) -> None:
        written = Limits("30m", "$2", "500k", max_steps="1,000", max_retries=0)
        assert written == Limits(timedelta(minutes=30), Decimal("2.00"), 500_000, max_steps=1000, max_retries=0)
        assert written.deadline == timedelta(minutes=30)
        assert written.max_cost_usd == Decimal(2)
        assert written.ceiling("max_cost_nanos") == 2_000_000_000
        assert written.ceiling("max_total_tokens") == 500_000
        assert hash(written) == hash(Limits("30 minutes", 2, "0.5M", max_steps=1000, max_retries="0"))

    @pytest.mark.parametrize("deadline", [MOMENT, Deadline(MOMENT)])
    def test_a_moment_stays_one(self, deadline: Any) -> None:
        limits = Limits(deadline=deadline)
        assert limits.start(TestClock()) == Deadline(MOMENT)
        assert "deadline 2026-01-01T06:00:00+00:00" in limits.describe()

    def test_a_length_counts_from_the_start(self) -> None:
        clock = TestClock()
        clock.advance(60)
        assert Limits(deadline="1h").start(clock) == Deadline(datetime(2026, 1, 1, 1, 1, tzinfo=UTC))

    def test_every_limit_in_force_is_named(self) -> None:
        limits = Limits("90s", "$0.5", 10_000, 5000, 4000, 30, 40, 0, 7)
        assert limits.describe() == (
            "deadline 1m 30s, cost $0.50, total tokens 10,000, input tokens 5,000, output tokens 4,000, "
            "tool calls 30, steps 40, turns 7, retries 0"
        )

    def test_the_least_reply_and_the_landing_take_friendly_forms_too(self) -> None:
        written: Any = "1k"
        assert Limits(min_output_tokens=written).min_output_tokens == 1000
        assert Landing(max_output_tokens=written).max_output_tokens == 1000


class TestNonsense:
    @pytest.mark.spec("FR-005", "FR-111")
    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ({"deadline": "soon"}, "deadline='soon' is not a duration"),
            ({"deadline": 1800}, "deadline=1800 must be a text like '30m', a timedelta"),
            ({"deadline": True}, "deadline=True must be"),
            ({"deadline": timedelta(0)}, "deadline=.* must be more than 0"),
            ({"deadline": MOMENT.replace(tzinfo=None)}, "has no time zone"),
            ({"max_cost_usd": 0}, "max_cost_usd=0 must be more than"),
            ({"max_cost_usd": "1,50"}, "max_cost_usd='1,50' is not an amount"),
            ({"max_total_tokens": 0}, "max_total_tokens=0 must be at least 1"),
            ({"max_turns": -1}, "max_turns=-1 must be at least 1"),
            ({"max_steps": 1.5}, "max_steps=1.5 is not a whole number"),
            ({"max_retries": -1}, "max_retries=-1 must be 0 or more"),
            ({"min_output_tokens": 0}, "min_output_tokens=0 must be at least 1"),
            ({"landing": True}, r"landing=True must be Landing\(...\) or None"),
            ({"verdict": 0.1}, r"verdict=0.1 must be Verdict\(...\) or None"),
        ],
    )
    def test_the_field_and_the_value_are_named(self, given: dict[str, Any], problem: str) -> None:
        with pytest.raises(LimitsError, match=problem):
            Limits(**given)

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ({"max_output_tokens": 0}, "landing.max_output_tokens=0"),
            ({"time_share": 0.0}, "landing.time_share=0.0 must be more than 0 and less than 0.5"),
            ({"time_share": 0.5}, "landing.time_share=0.5"),
            ({"time_share": "5%"}, "landing.time_share='5%'"),
            ({"time_share": float("nan")}, "landing.time_share=nan"),
        ],
    )
    def test_a_landing_that_leaves_no_work_or_no_landing_is_refused(self, given: dict[str, Any], problem: str) -> None:
        with pytest.raises(LimitsError, match=problem):
            Landing(**given)

    @pytest.mark.spec("FR-160")
    @pytest.mark.parametrize("field", ["share", "time_share"])
    @pytest.mark.parametrize("share", [0.0, 0.5, -0.1, 1, "10%", float("nan"), None], ids=str)
    def test_a_verdict_that_leaves_no_work_or_no_verdict_is_refused(self, field: str, share: Any) -> None:
        with pytest.raises(LimitsError, match=f"verdict.{field}=.* must be more than 0 and less than 0.5"):
            Verdict(**{field: share})


@pytest.mark.parametrize(
    ("total", "kept"), [(3600, 60), (600, 30), (10, 1), (1, 0.5), (0.1, 0.05), (86_400, 60), (0, 0), (-5, 0)]
)
def test_landing_keeps_a_share_of_the_time_between_a_second_and_a_minute(total: float, kept: float) -> None:
    assert Landing().seconds(total) == pytest.approx(kept)
    assert Verdict().seconds(total) == pytest.approx(kept)


class TestTighten:
    @pytest.mark.spec("FR-092")
    @given(limits_of_all_kinds, limits_of_all_kinds)
    def test_every_ceiling_is_the_tighter_of_the_two(self, one: Limits, two: Limits) -> None:
        clock = TestClock()
        both = tighten(one, two, clock)
        for name in (*NUMERIC, "max_cost_nanos"):
            given = [value for value in (one.ceiling(name), two.ceiling(name)) if value is not None]
            assert both.ceiling(name) == (min(given) if given else None)
        starts = [start for start in (one.start(clock), two.start(clock)) if start is not None]
        assert both.start(clock) == (min(starts) if starts else None)

    @given(limits_of_all_kinds, limits_of_all_kinds)
    def test_what_is_no_ceiling_stays_as_in_the_first(self, one: Limits, two: Limits) -> None:
        both = tighten(one, two, TestClock())
        assert both.landing == one.landing
        assert both.min_output_tokens == one.min_output_tokens

    @given(limits_of_all_kinds)
    def test_tightening_by_itself_or_by_nothing_changes_nothing(self, limits: Limits) -> None:
        nothing = Limits(None, max_total_tokens=None, max_retries=None, max_turns=None)
        assert tighten(limits, limits, TestClock()) == limits
        assert tighten(limits, nothing, TestClock()) == limits

    def test_lengths_stay_lengths_so_that_they_count_from_the_start(self) -> None:
        clock = TestClock()
        clock.advance(3000)
        assert tighten(Limits("1h"), Limits("2h"), clock).deadline == timedelta(hours=1)
        assert tighten(Limits("1h"), Limits(None), clock).deadline == timedelta(hours=1)

    def test_a_length_beside_a_moment_counts_from_now(self) -> None:
        clock = TestClock()
        assert tighten(Limits("1h"), Limits(MOMENT), clock).deadline == Deadline.after("1h", clock)
        assert tighten(Limits("9h"), Limits(MOMENT), clock).deadline == Deadline(MOMENT)


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
    [
        "",
        "$20",
        "/day",
        "$20/week",
        "20 apples/day",
        "$-1/day",
        "$0/day",
        "0 tokens/day",
        "$20day",
        "tokens/day",
        "a day",
        20,
        None,
        b"",
    ],
)
def test_what_is_no_amount_for_a_period_is_refused_by_field_and_value(text: Any) -> None:
    with pytest.raises(LimitsError, match="account_limit="):
        AccountLimit.parse(text, "account_limit")


@pytest.mark.parametrize("end", ["x", "x/day", "tokens x/day", "a x"])
def test_an_amount_with_very_many_blanks_is_refused_at_once(end: str) -> None:
    with pytest.raises(LimitsError, match="account_limit="):
        AccountLimit.parse("5" + " " * 1_000_000 + end, "account_limit")  # hours, if each blank is looked at often


def test_an_amount_and_its_period_may_be_far_apart() -> None:
    assert AccountLimit.parse("$5" + " " * 1_000_000 + "a day", "account_limit") == AccountLimit.parse("$5/day", "")


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
