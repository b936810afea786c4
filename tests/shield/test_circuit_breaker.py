"""The circuit breaker: when it opens, what it lets through, and that no place is ever lost."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import LimitsError
from watchkeeper.shield.circuit_breaker import CircuitBreaker, CircuitBreakers, CircuitState, Permit, PolicyContext

ERROR = ValueError("no luck")


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


def opened(clock: TestClock, **settings: Any) -> CircuitBreaker:
    """A breaker that has just opened after two failures."""
    breaker = CircuitBreaker(2, 60.0, clock=clock, **settings)
    for _ in range(2):
        fail(breaker)
    assert str(breaker.state) == "OPEN"
    return breaker


def passed(breaker: CircuitBreaker) -> Permit:
    permit = breaker.acquire()
    assert permit is not None
    return permit


def fail(breaker: CircuitBreaker) -> None:
    passed(breaker).failed(ERROR)


def test_failures_in_a_row_open_it_and_a_success_between_them_does_not(clock: TestClock) -> None:
    breaker = CircuitBreaker(3, clock=clock)
    fail(breaker)
    fail(breaker)
    passed(breaker).succeeded()
    fail(breaker)
    fail(breaker)
    assert str(breaker.state) == "CLOSED"
    fail(breaker)
    assert str(breaker.state) == "OPEN"
    assert breaker.acquire() is None


def test_after_the_recovery_time_one_probe_passes_and_its_success_closes_it(clock: TestClock) -> None:
    breaker = opened(clock)
    clock.advance(59)
    assert (breaker.acquire(), breaker.seconds_left) == (None, 1.0)
    clock.advance(1)
    assert (breaker.state, breaker.seconds_left) == (CircuitState.HALF_OPEN, 0.0)
    probe = passed(breaker)
    assert probe.holds_probe
    assert breaker.acquire() is None
    assert "testing" in breaker.explain()
    probe.succeeded()
    assert str(breaker.state) == "CLOSED"
    assert breaker.acquire() is not None


def test_a_failed_probe_opens_it_for_another_recovery_time(clock: TestClock) -> None:
    breaker = opened(clock)
    clock.advance(60)
    fail(breaker)
    assert breaker.acquire() is None
    clock.advance(60)
    assert breaker.acquire() is not None


def test_a_probe_that_is_released_without_a_word_gives_its_place_to_the_next(clock: TestClock) -> None:
    breaker = opened(clock)
    clock.advance(60)
    probe = passed(breaker)
    probe.release()
    probe.release()
    second = passed(breaker)
    probe.release()  # its place is somebody else's by now
    assert breaker.acquire() is None
    assert second.holds_probe
    assert not probe.holds_probe


def test_a_permit_that_is_dropped_gives_its_place_back(clock: TestClock) -> None:
    breaker = opened(clock)
    clock.advance(60)
    probe = passed(breaker)
    assert breaker.acquire() is None
    del probe
    gc.collect()
    assert breaker.acquire() is not None


@pytest.mark.spec("EC-041")
def test_what_a_call_of_an_earlier_generation_reports_is_ignored(clock: TestClock) -> None:
    breaker = CircuitBreaker(2, 60.0, clock=clock)
    good, bad = passed(breaker), passed(breaker)
    fail(breaker)
    fail(breaker)
    good.succeeded()
    assert str(breaker.state) == "OPEN"
    clock.advance(60)
    probe = passed(breaker)
    good.succeeded()
    bad.failed(ERROR)
    bad.release()
    assert str(breaker.state) == "HALF_OPEN"
    assert breaker.acquire() is None
    probe.succeeded()
    bad.failed(ERROR)
    fail(breaker)
    assert str(breaker.state) == "CLOSED"


def test_a_probe_that_was_released_has_no_say_any_more(clock: TestClock) -> None:
    breaker = opened(clock)
    clock.advance(60)
    probe = passed(breaker)
    probe.release()
    probe.succeeded()
    assert str(breaker.state) == "HALF_OPEN"


def test_errors_that_do_not_count_neither_open_nor_close_it(clock: TestClock) -> None:
    breaker = CircuitBreaker(1, failure_predicate=lambda error: isinstance(error, OSError), clock=clock)
    fail(breaker)
    breaker.record_failure(error=ERROR)
    assert str(breaker.state) == "CLOSED"
    breaker.record_failure(error=OSError())
    assert str(breaker.state) == "OPEN"


def test_a_predicate_that_raises_counts_the_error(clock: TestClock) -> None:
    def broken(error: BaseException) -> bool:
        raise RuntimeError

    breaker = CircuitBreaker(1, failure_predicate=broken, clock=clock)
    fail(breaker)
    assert str(breaker.state) == "OPEN"


@pytest.mark.spec("EC-041")
def test_by_itself_it_is_checked_and_told(clock: TestClock) -> None:
    breaker = CircuitBreaker(2, 60.0, name="the mail server", clock=clock)
    for _ in range(2):
        assert breaker.check(PolicyContext(cost_usd=0.1, step_count=1)).allowed
        breaker.record_failure()
    refused = breaker.check()
    assert (refused.allowed, refused.policy_type, refused.rate_limit_ms) == (False, "circuit_breaker", 60_000)
    assert refused.reason == "the mail server failed 2 times in a row; nothing is sent to it for another 1m."
    breaker.record_success()  # of a call that was under way
    breaker.record_failure()
    assert str(breaker.state) == "OPEN"
    clock.advance(60)
    assert breaker.check().allowed
    assert not breaker.check().allowed
    breaker.record_success()
    assert str(breaker.state) == "CLOSED"
    breaker.record_success()
    assert breaker.seconds_left == 0.0


def test_a_probe_that_was_checked_and_never_reported_is_replaced_after_a_while(clock: TestClock) -> None:
    breaker = opened(clock)
    clock.advance(60)
    assert breaker.check().allowed
    assert breaker.seconds_left == 60.0
    clock.advance(60)
    assert breaker.check().allowed
    breaker.record_failure()
    assert str(breaker.state) == "OPEN"


def test_reset_closes_it(clock: TestClock) -> None:
    breaker = opened(clock)
    breaker.reset()
    assert str(breaker.state) == "CLOSED"
    fail(breaker)
    assert str(breaker.state) == "CLOSED"


def test_every_provider_has_a_breaker_of_its_own(clock: TestClock) -> None:
    breakers = CircuitBreakers(1, "30s", clock=clock)
    assert breakers.of("openai") is breakers.of("openai")
    fail(breakers.of("openai"))
    assert breakers.of("anthropic").acquire() is not None
    assert breakers.states() == {"openai": CircuitState.OPEN, "anthropic": CircuitState.CLOSED}
    assert breakers.of("openai").explain().startswith("openai failed 1 time in a row;")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"failure_threshold": 0}, "failure_threshold"),
        ({"failure_threshold": -1}, "failure_threshold"),
        ({"recovery_timeout": 0}, "recovery_timeout"),
        ({"recovery_timeout": float("nan")}, "recovery_timeout"),
        ({"recovery_timeout": float("inf")}, "recovery_timeout"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings: dict[str, Any], field: str) -> None:
    for make in (CircuitBreaker, CircuitBreakers):
        with pytest.raises(LimitsError, match=field):
            make(**settings)


def test_of_many_threads_one_gets_the_probe(clock: TestClock) -> None:
    breaker = opened(clock)
    clock.advance(60)
    start, got = threading.Barrier(16), list[Permit | None]()

    def ask() -> None:
        start.wait()
        got.append(breaker.acquire())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(permit is not None for permit in got) == 1


@pytest.mark.spec("EC-041")
@given(st.lists(st.sampled_from(["ask", "good", "bad", "drop", "wait"]), max_size=60))
def test_whatever_happens_at_most_one_probe_is_out_and_no_place_is_lost(steps: list[str]) -> None:
    clock = TestClock()
    breaker = CircuitBreaker(2, 10.0, clock=clock)
    out: list[Permit] = []
    for step in steps:
        before = len(out)
        if step == "ask":
            state = breaker.state
            probing = any(one.holds_probe for one in out)
            out += filter(None, [breaker.acquire()])
            full = state is CircuitState.OPEN or (state is CircuitState.HALF_OPEN and probing)
            assert len(out) == before + (not full)
        elif step == "wait":
            clock.advance(10)
        elif out:
            permit = out.pop(0)
            if step == "good":
                permit.succeeded()
            elif step == "bad":
                permit.failed(ERROR)
            permit.release()
            del permit
        assert sum(one.holds_probe for one in out) <= 1
    out.clear()
    clock.advance(10)
    assert breaker.acquire() is not None
