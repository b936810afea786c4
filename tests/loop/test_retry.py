"""Retries of model calls: what is tried again, how long it waits, and what ends the waiting."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ProviderError
from watchkeeper.loop.retry import MAX_ATTEMPTS, Backoff

DOWN = ProviderError("down", fault="server", status=500)


def backoff(clock: TestClock, token: CancellationToken | None = None, left: float | None = None) -> Backoff:
    return Backoff(clock, random.Random(1), token or CancellationToken(), lambda: left)


def ignore(error: ProviderError, number: int, retry_in: float | None) -> None:
    """Take no notice."""


async def every(
    policy: Backoff, attempt: Callable[[int], Awaitable[int]], on_failure: Callable[..., None] = ignore
) -> int:
    """Make the first attempt as the loop does, and leave the others to the policy."""
    try:
        return await attempt(1)
    except ProviderError as error:
        return await policy.again(error, attempt, on_failure)


async def test_a_success_needs_no_further_attempt() -> None:
    numbers: list[int] = []

    async def attempt(number: int) -> int:
        numbers.append(number)
        if number == 2:
            return number
        raise DOWN

    assert await every(backoff(TestClock()), attempt) == 2
    assert numbers == [1, 2]


async def test_attempts_are_numbered_and_end_after_the_last() -> None:
    numbers: list[int] = []
    failures: list[tuple[int, bool]] = []

    async def attempt(number: int) -> int:
        numbers.append(number)
        raise DOWN

    def failed(_: ProviderError, number: int, retry_in: float | None) -> None:
        failures.append((number, retry_in is not None))

    with pytest.raises(ProviderError):
        await every(backoff(TestClock()), attempt, failed)
    assert numbers == list(range(1, MAX_ATTEMPTS + 1))
    assert failures == [(number, number < MAX_ATTEMPTS) for number in numbers]


async def test_waits_grow_and_are_spread_at_random_over_the_upper_half() -> None:
    waits: list[float | None] = []

    async def attempt(number: int) -> int:
        raise DOWN

    def failed(_: ProviderError, number: int, retry_in: float | None) -> None:
        waits.append(retry_in)

    with pytest.raises(ProviderError):
        await every(backoff(TestClock()), attempt, failed)
    assert waits.pop() is None
    for wait, most in zip(waits, (0.5, 1, 2, 4), strict=True):
        assert wait is not None
        assert most / 2 <= wait < most


async def test_a_fault_that_cannot_pass_is_not_tried_again() -> None:
    numbers: list[int] = []

    async def attempt(number: int) -> int:
        numbers.append(number)
        raise ProviderError("who", fault="auth")

    with pytest.raises(ProviderError):
        await every(backoff(TestClock()), attempt)
    assert numbers == [1]


async def test_an_error_that_is_no_providers_passes_through_on_a_later_attempt_too() -> None:
    async def attempt(number: int) -> int:
        if number == 1:
            raise DOWN
        raise KeyError("bug")

    with pytest.raises(KeyError):
        await every(backoff(TestClock()), attempt)


async def test_cancelling_the_run_ends_a_wait_at_once_and_for_good() -> None:
    clock, token = TestClock(), CancellationToken()
    numbers: list[int] = []

    async def attempt(number: int) -> int:
        numbers.append(number)
        raise ProviderError("later", fault="rate_limit", retry_after=3600)

    def failed(_: ProviderError, number: int, retry_in: float | None) -> None:
        if retry_in is not None:
            asyncio.get_running_loop().call_soon(token.cancel, "aborted")

    with pytest.raises(ProviderError):
        await every(backoff(clock, token), attempt, failed)
    assert numbers == [1, 2]  # the second is the gate's to refuse
    assert clock.monotonic() < 3600


async def test_no_wait_is_begun_that_the_time_left_does_not_cover() -> None:
    clock = TestClock()

    async def attempt(number: int) -> int:
        raise ProviderError("later", fault="rate_limit", retry_after=10)

    with pytest.raises(ProviderError):
        await every(backoff(clock, left=10), attempt)
    assert clock.monotonic() == 0


async def test_a_retry_after_of_nothing_waits_for_nothing() -> None:
    clock = TestClock()

    async def attempt(number: int) -> int:
        if number == 1:
            raise ProviderError("now", fault="rate_limit", retry_after=-1)
        return number

    assert await every(backoff(clock), attempt) == 2
    assert clock.monotonic() == 0


async def test_a_wait_ends_when_the_time_for_work_does() -> None:
    clock = TestClock()
    began = clock.monotonic()

    def left() -> float:
        return 600.0 if clock.monotonic() - began < 10 else 0.0

    await Backoff(clock, random.Random(0), CancellationToken(), left).pause(300.0)
    assert 10 <= clock.monotonic() - began < 11
