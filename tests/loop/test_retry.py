"""Retries of model calls: what is tried again, how long it waits, and what ends the waiting."""

from __future__ import annotations

import asyncio
import random

from tests.kit import Report, Say, ScriptedModel, agent, events, play
from watchkeeper.asking.retry import MAX_ATTEMPTS, Backoff
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ProviderError
from watchkeeper.runtime.events import ModelFailed

DOWN = ProviderError("down", fault="server", status=500)


def backoff(clock: TestClock, token: CancellationToken | None = None, left: float | None = None) -> Backoff:
    return Backoff(clock, random.Random(1), token or CancellationToken(), lambda: left)


async def waits_after(policy: Backoff, error: ProviderError) -> list[float | None]:
    """Wait after one failure and the next, as the loop does, until there is not to be another attempt."""
    waits: list[float | None] = []
    while not waits or waits[-1] is not None:
        waits.append(policy.wait_after(error, len(waits) + 1))
        await policy.pause(waits[-1] or 0.0)
    return waits


async def test_a_success_needs_no_further_attempt() -> None:
    model = ScriptedModel([DOWN, Say(Report(1)), "Never asked for."])
    result = await play(agent(), model)
    assert (result.output, len(model.requests)) == (Report(1), 2)


async def test_attempts_are_numbered_and_end_after_the_last() -> None:
    model = ScriptedModel([DOWN] * (MAX_ATTEMPTS + 1))
    result = await play(agent(), model)
    assert not result.ok
    assert len(model.requests) == MAX_ATTEMPTS
    failures = [(failed.attempt, failed.retry_in is not None) for failed in events(result, ModelFailed)]
    assert failures == [(number, number < MAX_ATTEMPTS) for number in range(1, MAX_ATTEMPTS + 1)]


async def test_failures_of_several_kinds_count_together_for_the_most_attempts() -> None:
    unread = ProviderError("what is this", fault="malformed_reply")
    model = ScriptedModel([DOWN, unread, DOWN, DOWN, DOWN, Say(Report(1))])
    result = await play(agent(), model)
    assert not result.ok
    assert len(model.requests) == MAX_ATTEMPTS


async def test_waits_grow_and_are_spread_at_random_over_the_upper_half() -> None:
    waits = await waits_after(backoff(TestClock()), DOWN)
    assert waits.pop() is None
    for wait, most in zip(waits, (0.5, 1, 2, 4), strict=True):
        assert wait is not None
        assert most / 2 <= wait < most


async def test_a_fault_that_cannot_pass_is_not_tried_again() -> None:
    assert await waits_after(backoff(TestClock()), ProviderError("who", fault="auth")) == [None]


async def test_an_error_that_is_no_providers_passes_through_on_a_later_attempt_too() -> None:
    model = ScriptedModel([DOWN, KeyError("bug"), "Never asked for."])
    result = await play(agent(), model)
    assert isinstance(result.error, KeyError)
    assert len(model.requests) == 2


async def test_cancelling_the_run_ends_a_wait_at_once_and_for_good() -> None:
    clock, token = TestClock(), CancellationToken()
    asyncio.get_running_loop().call_soon(token.cancel, "aborted")
    later = ProviderError("later", fault="rate_limit", retry_after=3600)
    assert await waits_after(backoff(clock, token), later) == [3600, None]  # the second attempt is the gate's to refuse
    assert clock.monotonic() < 3600


async def test_no_wait_is_begun_that_the_time_left_does_not_cover() -> None:
    later = ProviderError("later", fault="rate_limit", retry_after=10)
    assert backoff(TestClock(), left=10).wait_after(later, 1) is None


async def test_a_retry_after_of_nothing_waits_for_nothing() -> None:
    clock = TestClock()
    policy = backoff(clock)
    wait = policy.wait_after(ProviderError("now", fault="rate_limit", retry_after=-1), 1)
    assert wait == 0
    await policy.pause(wait)
    assert clock.monotonic() == 0


async def test_a_wait_ends_when_the_time_for_work_does() -> None:
    clock = TestClock()
    began = clock.monotonic()

    def left() -> float:
        return 600.0 if clock.monotonic() - began < 10 else 0.0

    await Backoff(clock, random.Random(0), CancellationToken(), left).pause(300.0)
    assert 10 <= clock.monotonic() - began < 11
