"""Moments at which work must be over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.clock import SYSTEM_CLOCK, Deadline, TestClock, checked_deadline, earliest
from watchkeeper.core.errors import LimitsError, PromptEvaluationError

NOW = datetime(2026, 5, 1, 12, 0, 0, 250_000, tzinfo=UTC)


@pytest.mark.spec("FR-003")
def test_a_deadline_is_held_in_utc() -> None:
    local = datetime(2026, 5, 1, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    assert Deadline(local).at == local
    assert Deadline(local).at.tzinfo is UTC


def test_moments_around_the_end_of_summer_time_keep_their_order() -> None:
    """In one zone Python compares what the clocks show, and 02:30 comes twice that night."""
    zone = ZoneInfo("Europe/Berlin")
    first = Deadline(datetime(2026, 10, 25, 2, 50, fold=0, tzinfo=zone))
    second = Deadline(datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=zone))
    assert first < second
    assert second.at - first.at == timedelta(minutes=20)


@pytest.mark.spec("DL-017")
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (NOW.replace(tzinfo=None), "has no time zone; write"),
        ("30m", r"is not a datetime; for a length write Deadline\.after\('30m'\)"),
        (None, "is not a datetime"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), "beyond the calendar"),
    ],
)
def test_what_is_no_moment_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(LimitsError, match=problem):
        Deadline(given)


def test_time_left_is_counted_on_the_given_clock() -> None:
    clock = TestClock(NOW)
    deadline = Deadline.after("10s", clock)
    assert deadline.remaining(clock) == timedelta(seconds=10)
    assert deadline.instant(clock) == pytest.approx(10)
    clock.advance(4)
    assert deadline.remaining(clock) == timedelta(seconds=6)
    assert deadline.instant(clock) == pytest.approx(10)
    assert not deadline.expired(clock)
    clock.advance(6)
    assert deadline.expired(clock)
    clock.advance(1)
    assert deadline.remaining(clock) == timedelta(seconds=-1)


def test_the_system_clock_is_the_default() -> None:
    deadline = Deadline.after(60)
    assert not deadline.expired()
    assert timedelta(seconds=50) < deadline.remaining() <= timedelta(seconds=60)
    assert deadline.instant() <= SYSTEM_CLOCK.monotonic() + 60


def test_a_length_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(LimitsError, match="deadline='soon' is not a duration"):
        Deadline.after("soon")


def test_the_earliest_of_those_that_are_set() -> None:
    near, far = Deadline(NOW), Deadline(NOW + timedelta(hours=1))
    assert earliest(far, None, near) == near
    assert earliest(None, far) == far
    assert earliest(None, None) is None
    assert earliest() is None


@pytest.mark.spec("FR-003")
@given(st.lists(st.none() | st.datetimes(timezones=st.just(UTC)).map(Deadline), max_size=5))
def test_the_earliest_is_never_later_than_any(deadlines: list[Deadline | None]) -> None:
    found = earliest(*deadlines)
    given = [deadline for deadline in deadlines if deadline is not None]
    assert (found is None) == (not given)
    assert found is None or (found in given and all(found <= deadline for deadline in given))


class TestCheckedDeadline:
    """What a caller of `evaluate` hands over is checked eagerly (seed: deadlines)."""

    @pytest.mark.spec("DL-003")
    def test_none_means_no_deadline(self) -> None:
        assert checked_deadline(None, TestClock(NOW)) is None

    def test_a_moment_from_the_next_second_on_is_accepted(self) -> None:
        at = NOW.replace(second=1, microsecond=0)
        assert checked_deadline(at, TestClock(NOW)) == Deadline(at)
        assert checked_deadline(Deadline(at), TestClock(NOW)) == Deadline(at)

    @pytest.mark.spec("DL-002")
    @pytest.mark.parametrize(
        "at",
        [
            NOW - timedelta(days=1),
            NOW - timedelta(microseconds=1),
            NOW,
            NOW + timedelta(milliseconds=1),
            NOW.replace(microsecond=999_999),
            NOW.astimezone(timezone(timedelta(hours=-7))),
        ],
    )
    def test_past_or_within_the_current_second_is_refused_before_anything_is_sent(self, at: datetime) -> None:
        with pytest.raises(PromptEvaluationError, match=r"is not in the future \(now 2026-05-01T12:00:00") as caught:
            checked_deadline(at, TestClock(NOW))
        assert caught.value.phase == "preflight"
        assert caught.value.provider_payload == {"deadline": at.astimezone(UTC).isoformat()}

    @pytest.mark.spec("DL-002")
    def test_a_naive_moment_is_refused(self) -> None:
        with pytest.raises(PromptEvaluationError, match="has no time zone") as caught:
            checked_deadline(NOW.replace(year=2027, tzinfo=None), TestClock(NOW))
        assert caught.value.phase == "preflight"
        assert caught.value.provider_payload == {"deadline": "2027-05-01T12:00:00.250000"}

    @pytest.mark.spec("DL-017")
    def test_something_else_is_refused_in_the_same_way(self) -> None:
        wrong: Any = "30m"
        with pytest.raises(PromptEvaluationError, match="is not a datetime") as caught:
            checked_deadline(wrong, TestClock(NOW))
        assert caught.value.phase == "preflight"
        assert caught.value.provider_payload == {"deadline": "30m"}
