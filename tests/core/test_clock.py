"""The system's clock, the clock for tests, and deadlines."""

from __future__ import annotations

import asyncio
import gc
import operator
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.clock import SYSTEM_CLOCK, Deadline, TestClock, earliest
from watchkeeper.core.errors import LimitsError


class TestSystemClock:
    def test_now_is_aware_and_in_utc(self) -> None:
        assert SYSTEM_CLOCK.now().tzinfo is UTC

    async def test_sleep_waits_and_never_goes_back(self) -> None:
        began = SYSTEM_CLOCK.monotonic()
        await SYSTEM_CLOCK.sleep(-1)
        await SYSTEM_CLOCK.sleep(0.01)
        assert SYSTEM_CLOCK.monotonic() - began >= 0.009

    async def test_timers_fire_on_the_loop_soon_if_they_are_past(self) -> None:
        fired = asyncio.Event()
        SYSTEM_CLOCK.call_at(SYSTEM_CLOCK.monotonic() - 5, fired.set)
        assert not fired.is_set()
        await fired.wait()
        later = asyncio.Event()
        SYSTEM_CLOCK.call_at(SYSTEM_CLOCK.monotonic() + 0.01, later.set)
        await later.wait()

    async def test_a_cancelled_timer_does_not_fire(self) -> None:
        fired: list[int] = []
        SYSTEM_CLOCK.call_at(SYSTEM_CLOCK.monotonic(), lambda: fired.append(1)).cancel()
        await SYSTEM_CLOCK.sleep(0.005)
        assert fired == []

    def test_a_thread_waits_for_an_event_or_for_the_time(self) -> None:
        began = SYSTEM_CLOCK.monotonic()
        SYSTEM_CLOCK.wait(threading.Event(), -1)
        SYSTEM_CLOCK.wait(threading.Event(), 0.01)
        assert SYSTEM_CLOCK.monotonic() - began >= 0.009
        happened = threading.Event()
        happened.set()
        SYSTEM_CLOCK.wait(happened, 3600)
        SYSTEM_CLOCK.wait(happened, None)


class TestTheTestClock:
    def test_it_stands_still_until_it_is_moved(self) -> None:
        clock = TestClock(datetime(2026, 3, 1, tzinfo=timezone(timedelta(hours=2))))
        assert clock.now() == datetime(2026, 2, 28, 22, tzinfo=UTC)
        assert clock.now().tzinfo is UTC
        clock.advance(90)
        clock.advance(timedelta(minutes=1))
        assert clock.monotonic() == 150
        assert clock.now() == datetime(2026, 2, 28, 22, 2, 30, tzinfo=UTC)

    @pytest.mark.parametrize("by", [-1, timedelta(seconds=-1), float("nan")])
    def test_time_cannot_go_back(self, by: float | timedelta) -> None:
        with pytest.raises(ValueError, match="time cannot go back"):
            TestClock().advance(by)

    async def test_timers_fire_in_order_each_at_its_own_time(self) -> None:
        clock = TestClock()
        fired: list[tuple[str, float]] = []
        clock.call_at(5, lambda: fired.append(("late", clock.monotonic())))
        clock.call_at(2, lambda: fired.append(("early", clock.monotonic())))
        clock.call_at(2, lambda: fired.append(("second", clock.monotonic())))
        clock.advance(1)
        assert fired == []
        clock.advance(10)
        assert fired == [("early", 2), ("second", 2), ("late", 5)]
        assert clock.monotonic() == 11

    async def test_a_timer_that_is_past_fires_soon_but_not_inside_the_call(self) -> None:
        clock = TestClock()
        clock.advance(10)
        fired: list[int] = []
        timer = clock.call_at(10, lambda: fired.append(1))
        assert fired == []
        await asyncio.sleep(0)
        assert fired == [1]
        timer.cancel()

    async def test_a_cancelled_timer_does_not_fire(self) -> None:
        clock = TestClock()
        fired: list[int] = []
        clock.call_at(1, lambda: fired.append(1)).cancel()
        clock.call_at(0, lambda: fired.append(2)).cancel()
        clock.advance(2)
        await asyncio.sleep(0)
        assert fired == []

    async def test_a_timer_may_move_time_further(self) -> None:
        clock = TestClock()
        clock.call_at(1, lambda: clock.advance(5))
        clock.advance(2)
        assert clock.monotonic() == 6

    @pytest.mark.spec("FR-002")
    async def test_sleeping_jumps(self) -> None:
        clock = TestClock()
        await clock.sleep(3600)
        assert clock.monotonic() == 3600

    @pytest.mark.parametrize("seconds", [0, -1])
    async def test_sleeping_for_nothing_lets_others_run_and_moves_nothing(self, seconds: float) -> None:
        clock = TestClock()
        ran: list[int] = []
        asyncio.get_running_loop().call_soon(ran.append, 1)
        await clock.sleep(seconds)
        assert ran == [1]
        assert clock.monotonic() == 0

    async def test_the_earliest_sleeper_wakes_first_and_others_get_to_run(self) -> None:
        clock = TestClock()
        seen: list[tuple[str, float]] = []

        async def nap(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            seen.append((name, clock.monotonic()))

        async def work() -> None:
            for _ in range(10):
                await asyncio.sleep(0)
            seen.append(("work", clock.monotonic()))

        await asyncio.gather(nap("long", 100), nap("short", 1), nap("middle", 50), work())
        assert seen == [("work", 0), ("short", 1), ("middle", 50), ("long", 100)]

    async def test_a_deadline_fires_before_a_later_wake_up_but_does_not_make_time_jump(self) -> None:
        clock = TestClock()
        fired: list[float] = []
        clock.call_at(10, lambda: fired.append(clock.monotonic()))
        for _ in range(100):
            await asyncio.sleep(0)
        assert fired == []
        await clock.sleep(30)
        assert fired == [10]

    async def test_a_cancelled_sleeper_leaves_nothing_behind(self) -> None:
        clock = TestClock()
        sleeper = asyncio.ensure_future(clock.sleep(1000))
        await asyncio.sleep(0)
        sleeper.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeper
        await clock.sleep(1)
        assert clock.monotonic() == 1

    async def test_advancing_from_a_thread_fires_on_the_loop_of_the_timer(self) -> None:
        clock = TestClock()
        fired = asyncio.Event()
        threads: list[int] = []

        def note() -> None:
            threads.append(threading.get_ident())
            fired.set()

        clock.call_at(5, note)
        thread = threading.Thread(target=clock.advance, args=(6,))
        thread.start()
        await asyncio.wait_for(fired.wait(), 30)
        thread.join()
        assert threads == [threading.get_ident()]

    def test_a_waiting_thread_goes_on_once_time_has_passed(self) -> None:
        clock = TestClock()
        waits = threading.Event()

        class Awaited(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waits.set()
                return super().wait(timeout)

        thread = threading.Thread(target=clock.wait, args=(Awaited(), 10))
        thread.start()
        assert waits.wait(30)
        clock.advance(9)
        thread.join(0.02)
        assert thread.is_alive()
        clock.advance(1)
        thread.join(30)
        assert not thread.is_alive()

    @pytest.mark.parametrize("seconds", [None, 10])
    def test_a_waiting_thread_goes_on_when_the_event_happens(self, seconds: float | None) -> None:
        clock = TestClock()
        happened = threading.Event()
        thread = threading.Thread(target=clock.wait, args=(happened, seconds))
        thread.start()
        happened.set()
        thread.join(30)
        assert not thread.is_alive()
        assert clock.monotonic() == 0

    def test_no_time_left_is_no_wait(self) -> None:
        clock, event = TestClock(), threading.Event()
        clock.wait(event, 0)
        assert event.is_set()
        assert clock.monotonic() == 0

    def test_a_timer_of_a_closed_loop_is_forgotten(self) -> None:
        clock = TestClock()

        async def leave() -> None:
            clock.call_at(5, lambda: None)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave())
        loop.close()
        clock.advance(10)
        assert clock.monotonic() == 10
        gc.collect()

    @pytest.mark.spec("FR-002")
    @given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=8))
    def test_every_sleeper_wakes_at_its_own_time_in_order(self, naps: list[float]) -> None:
        clock = TestClock()
        woken: list[tuple[float, float]] = []

        async def nap(seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append((seconds, clock.monotonic()))

        async def everybody() -> None:
            await asyncio.gather(*(nap(seconds) for seconds in naps))

        asyncio.run(everybody())
        assert [seconds for seconds, _ in woken] == sorted(naps)
        assert all(seconds == at for seconds, at in woken)


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
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), "outside the years 1 to 9999"),
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
def test_a_deadline_compares_with_aware_datetimes_whichever_stands_first() -> None:
    later = NOW + timedelta(minutes=5)
    deadline = Deadline(later)
    assert deadline == later
    assert later == deadline
    assert hash(deadline) == hash(later)
    assert deadline > NOW
    assert deadline >= later
    assert NOW < deadline  # noqa: SIM300  # the datetime stands first
    assert later >= deadline
    assert not deadline < NOW
    assert deadline != NOW
    assert max(NOW, later, NOW) == deadline


@pytest.mark.spec("FR-003")
def test_the_difference_of_deadlines_and_moments_is_a_length() -> None:
    later = NOW + timedelta(minutes=5)
    deadline = Deadline(later)
    assert (deadline - NOW).total_seconds() == 300
    assert NOW - deadline == -timedelta(minutes=5)
    assert deadline - Deadline(NOW) == timedelta(minutes=5)
    assert later.astimezone(ZoneInfo("Asia/Tokyo")) - deadline == timedelta(0)


@pytest.mark.parametrize(
    "use",
    [operator.lt, operator.le, operator.gt, operator.ge, operator.sub],
)
def test_a_deadline_and_a_moment_without_a_time_zone_say_what_to_write(use: Callable[[Any, Any], object]) -> None:
    with pytest.raises(LimitsError, match=r"has no time zone; write datetime\.now\(UTC\)"):
        use(Deadline(NOW), datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(LimitsError, match=r"has no time zone; write datetime\.now\(UTC\)"):
        use(datetime(2026, 1, 1), Deadline(NOW))  # noqa: DTZ001
    assert Deadline(NOW) != datetime(2026, 1, 1)  # noqa: DTZ001


def test_a_deadline_does_not_compare_with_other_things() -> None:
    deadline: Any = Deadline(NOW)
    assert deadline != "12:00"
    with pytest.raises(TypeError):
        _ = deadline < 5
    with pytest.raises(TypeError):
        _ = deadline - 5
    with pytest.raises(TypeError):
        _ = 5 - deadline


@pytest.mark.spec("FR-003")
@given(st.lists(st.none() | st.datetimes(timezones=st.just(UTC)).map(Deadline), max_size=5))
def test_the_earliest_is_never_later_than_any(deadlines: list[Deadline | None]) -> None:
    found = earliest(*deadlines)
    given = [deadline for deadline in deadlines if deadline is not None]
    assert (found is None) == (not given)
    assert found is None or (found in given and all(found <= deadline for deadline in given))
