"""Durations, money and counts as people write them."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.errors import LimitsError
from watchkeeper.core.quantities import (
    count,
    counted,
    duration,
    format_duration,
    format_money,
    is_listed,
    is_number,
    is_share,
    is_text,
    is_whole,
    money,
)

NANOS = 1_000_000_000


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("30m", 1800),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("90s", 90),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("2d", 172_800),
        ("45", 45),
        ("0.5", 0.5),
        (" 2 Hours ", 7200),
        ("1 day 2 hrs 3 minutes 4 secs", 93_784),
        ("10 min", 600),
        ("5 milliseconds", 0.005),
        (90, 90),
        (0.5, 0.5),
        (timedelta(minutes=2), 120),
    ],
)
def test_durations_are_read_in_every_friendly_form(written: Any, seconds: float) -> None:
    assert duration(written, "timeout") == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "soon",
        "-5m",
        "5 parsecs",
        "5m later",
        "m",
        "1h x 30m",
        "5mm",
        "1:30",
        "٣m",
        None,
        True,
        [],
        b"30m",
        Decimal(3),
    ],
)
def test_what_is_no_duration_is_named(written: Any) -> None:
    with pytest.raises(LimitsError, match=rf"^timeout={re.escape(repr(written))} is not a duration; write "):
        duration(written, "timeout")


@pytest.mark.parametrize("written", [0, -1, "0s", timedelta(0), timedelta(-1), float("inf"), float("nan"), "11000d"])
def test_durations_lie_between_nothing_and_ten_years(written: Any) -> None:
    with pytest.raises(LimitsError, match="must be more than 0 and at most ten years"):
        duration(written, "deadline")


def test_a_number_too_large_for_a_float_is_refused_like_any_other() -> None:
    with pytest.raises(LimitsError, match="at most ten years"):
        duration(10**400, "deadline")


def test_a_duration_below_what_a_timedelta_can_hold_is_refused() -> None:
    with pytest.raises(LimitsError, match="deadline=1e-09 is less than a microsecond"):
        duration(1e-9, "deadline")


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=3650)))
def test_a_timedelta_stays_what_it_is(length: timedelta) -> None:
    assert abs(duration(length, "x") - length) <= timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("written", "nanos"),
    [
        ("$2", 2 * NANOS),
        ("2.50", 2_500_000_000),
        ("$ 0.25", 250_000_000),
        ("1,000", 1000 * NANOS),
        ("1,234,567.89 USD", 1_234_567_890_000_000),
        ("1_000", 1000 * NANOS),
        (".5", 500_000_000),
        ("3 usd", 3 * NANOS),
        ("3$", 3 * NANOS),
        (2, 2 * NANOS),
        (0.1, 100_000_000),
        (Decimal("0.000000001"), 1),
        (Decimal("1.9999999999"), 1_999_999_999),
    ],
)
def test_money_is_read_exactly_and_rounded_down(written: Any, nanos: int) -> None:
    assert money(written, "max_cost_usd") == nanos


@pytest.mark.parametrize(
    "written", ["", "$", "two", "1,5", "1,50", "12,34,567", "2 EUR", "-1", "1e3", "NaN", None, True, [], "$-2"]
)
def test_what_is_no_amount_is_named(written: Any) -> None:
    """A decimal comma above all: "1,50" must never be read as 150 dollars."""
    with pytest.raises(LimitsError, match=rf"^max_cost_usd={re.escape(repr(written))} is not an amount of money"):
        money(written, "max_cost_usd")


@pytest.mark.parametrize(
    "written", [0, "0.00", -1, Decimal("-0.5"), float("inf"), Decimal("nan"), Decimal("sNaN"), 10**11]
)
def test_money_lies_between_nothing_and_ten_billion(written: Any) -> None:
    with pytest.raises(LimitsError, match=r"must be more than \$0 and at most \$10,000,000,000"):
        money(written, "max_cost_usd")


def test_less_than_a_nano_dollar_is_refused() -> None:
    with pytest.raises(LimitsError, match="is less than a nano-dollar"):
        money("0.0000000001", "max_cost_usd")


@given(st.decimals(min_value=Decimal("0.000000001"), max_value=Decimal(10_000_000_000), allow_nan=False, places=12))
def test_money_never_grows_by_rounding(dollars: Decimal) -> None:
    if dollars < Decimal("0.000000001"):
        return
    nanos = money(dollars, "max_cost_usd")
    assert 0 <= dollars * NANOS - nanos < 1


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (7, 7),
        ("7", 7),
        ("500k", 500_000),
        ("2M", 2_000_000),
        ("1.5 K", 1500),
        ("1,000", 1000),
        ("10_000", 10_000),
        (2**62, 2**62),
    ],
)
def test_counts_are_read_in_every_friendly_form(written: Any, number: int) -> None:
    assert count(written, "max_turns") == number


@pytest.mark.parametrize("written", ["", "many", "1,5k", "1.5", "-3", "5G", 3.0, True, None, "1e3", "0.0001k"])
def test_what_is_no_count_is_named(written: Any) -> None:
    with pytest.raises(LimitsError, match=rf"^max_turns={re.escape(repr(written))} is not a whole number"):
        count(written, "max_turns")


def test_zero_counts_only_where_it_means_something() -> None:
    assert count(0, "max_retries", zero=True) == 0
    with pytest.raises(LimitsError, match=r"max_turns=0 must be at least 1 and at most 2\*\*62"):
        count(0, "max_turns")
    with pytest.raises(LimitsError, match="max_retries=-1 must be 0 or more"):
        count(-1, "max_retries", zero=True)
    with pytest.raises(LimitsError, match="at most"):
        count(2**62 + 1, "max_turns")


@given(st.integers(min_value=1, max_value=2**62))
def test_a_count_survives_being_written_with_separators(number: int) -> None:
    assert count(f"{number:,}", "n") == count(f"{number:_}", "n") == count(str(number), "n") == number


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0ms"),
        (-3, "0ms"),
        (0.0004, "0ms"),
        (0.85, "850ms"),
        (0.9996, "1s"),
        (1, "1s"),
        (10, "10s"),
        (12.44, "12.4s"),
        (59.94, "59.9s"),
        (59.96, "1m"),
        (60, "1m"),
        (200, "3m 20s"),
        (3599.6, "1h"),
        (7199, "2h"),
        (7500, "2h 5m"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (76 * 3600, "3d 4h"),
        (timedelta(hours=1), "1h"),
    ],
)
def test_durations_are_written_for_people(seconds: float | timedelta, written: str) -> None:
    assert format_duration(seconds) == written


@given(st.floats(min_value=0.5, max_value=864_000))
def test_a_written_duration_reads_back_to_nearly_the_same(seconds: float) -> None:
    read = duration(format_duration(seconds), "x").total_seconds()
    half_of_the_last_digit = 0.05 if seconds >= 1 else 0.0005
    assert abs(read - seconds) <= max(half_of_the_last_digit + 1e-9, seconds * 0.025)


@pytest.mark.parametrize(
    ("nanos", "written"),
    [
        (None, "unknown"),
        (0, "$0.00"),
        (1, "<$0.000001"),
        (312_000, "$0.000312"),
        (10_000_000, "$0.01"),
        (12_345_678, "$0.012345"),
        (99_999_999, "$0.099999"),
        (100_000_000, "$0.10"),
        (1_250_000_000, "$1.25"),
        (1_999_999_999, "$1.99"),
        (1_234_567 * NANOS, "$1,234,567.00"),
    ],
)
def test_money_is_written_for_people(nanos: int | None, written: str) -> None:
    assert format_money(nanos) == written


@given(st.integers(min_value=1000, max_value=10**18))
def test_written_money_is_never_more_than_it_is(nanos: int) -> None:
    written = money(format_money(nanos), "x")
    assert written <= nanos < written + max(10_000_000 if nanos >= 100_000_000 else 1000, 1)


@pytest.mark.parametrize(("number", "text"), [(0, "0 turns"), (1, "1 turn"), (2, "2 turns"), (1_000, "1,000 turns")])
def test_one_thing_stands_in_the_singular(number: int, text: str) -> None:
    assert counted(number, "turn") == text
    assert counted(number, "retry", "retries").endswith("retry" if number == 1 else "retries")


@pytest.mark.parametrize(
    ("value", "whole", "number"),
    [
        (0, True, True),
        (-3, True, True),
        (1.5, False, True),
        (True, False, False),
        (False, False, False),
        ("1", False, False),
        (None, False, False),
        (Decimal(1), False, False),
        (float("nan"), False, False),
        (float("inf"), False, False),
        (10**400, True, True),
    ],
)
def test_what_counts_as_a_number(value: object, whole: bool, number: bool) -> None:
    assert (is_whole(value), is_number(value)) == (whole, number)


def test_the_bounds_of_a_whole_number_are_within() -> None:
    assert [is_whole(value, 1, 3) for value in range(5)] == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("value", "is_part", "or_all"),
    [
        (0, False, False),
        (0.001, True, True),
        (1, False, True),
        (1.0, False, True),
        (1.001, False, False),
        (True, False, False),
        (float("nan"), False, False),
        ("0.5", False, False),
    ],
)
def test_what_counts_as_a_share(value: object, is_part: bool, or_all: bool) -> None:
    assert (is_share(value), is_share(value, whole=True)) == (is_part, or_all)


@pytest.mark.parametrize(
    ("value", "text", "listed"),
    [
        ("a", True, False),
        (" \n", False, False),
        ("", False, False),
        (b"a", False, False),
        (["a"], False, True),
        (iter(()), False, True),
        ({"a": 1}, False, True),
        (3, False, False),
        (None, False, False),
    ],
)
def test_what_counts_as_a_text_and_as_a_list(value: object, text: bool, listed: bool) -> None:
    assert (is_text(value), is_listed(value)) == (text, listed)
