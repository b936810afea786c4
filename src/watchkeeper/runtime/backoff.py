"""When to try a failed model call again.

Only faults that may pass are tried again, after the provider's own retry-after or an exponential wait with jitter;
tenacity computes and counts, the injected clock waits, the injected generator jitters. Every attempt is admitted by
the gate like any other call, so retries can never multiply; a wait that would outlast the deadline is not begun.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import ProviderError

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")

MAX_ATTEMPTS: Final = 5
FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 30.0
LOOK_UP_SECONDS: Final = 0.5
"""How often a wait looks whether the work is over, for example because of a Ctrl-C."""


class Backoff:
    """The retry policy of one run's model calls."""

    __slots__ = ("_clock", "_rng", "_seconds_left", "_token")

    def __init__(
        self, clock: Clock, rng: random.Random, token: CancellationToken, seconds_left: Callable[[], float | None]
    ) -> None:
        """Wait on ``clock``, jitter with ``rng``, wake when ``token`` is cancelled, never outlast ``seconds_left``."""
        self._clock = clock
        self._rng = rng
        self._token = token
        self._seconds_left = seconds_left

    async def run(
        self,
        attempt: Callable[[int], Awaitable[T]],
        on_failure: Callable[[ProviderError, int, float | None], None],
        worth: Callable[[float], bool] = lambda _: True,
    ) -> T:
        """Attempt until it succeeds, or until another attempt makes no sense; arguments and errors as in `again`."""
        try:
            return await attempt(1)
        except ProviderError as error:
            return await self.again(error, attempt, on_failure, worth)

    async def again(
        self,
        first: ProviderError,
        attempt: Callable[[int], Awaitable[T]],
        on_failure: Callable[[ProviderError, int, float | None], None],
        worth: Callable[[float], bool] = lambda _: True,
    ) -> T:
        """Go on after a first attempt that failed.

        Args:
            first: How it failed.
            attempt: Makes attempt number n (from 1).
            on_failure: Told of every failure: the error, its attempt, and the seconds until the next one or None.
            worth: Asked whether another attempt after so many seconds is worth it, where nothing here forbids it.

        Raises:
            ProviderError: The last one.
        """
        # Imported here, because most runs never need it.
        from tenacity import AsyncRetrying, retry_if_exception

        async def numbered() -> T:
            number = retrying.statistics["attempt_number"]
            if number == 1:
                raise first
            return await attempt(number)

        def failed(state: RetryCallState) -> None:
            on_failure(_error_of(state), state.attempt_number, state.upcoming_sleep)

        retrying = AsyncRetrying(
            sleep=self.pause,
            wait=self._wait,
            stop=lambda state: self._gives_up(state) or not worth(state.upcoming_sleep),
            retry=retry_if_exception(lambda error: isinstance(error, ProviderError) and error.retryable),
            before_sleep=failed,
            reraise=True,
        )
        try:
            return await retrying(numbered)
        except ProviderError as error:
            on_failure(error, retrying.statistics["attempt_number"], None)
            raise

    def _wait(self, state: RetryCallState) -> float:
        """Return the seconds to wait: what the provider asked for, else exponential with jitter."""
        asked = _error_of(state).retry_after
        return self.growing(state) if asked is None else max(asked, 0.0)

    def growing(self, state: RetryCallState) -> float:
        """Return the seconds to wait where nobody asked for any: exponential with jitter."""
        from tenacity import wait_exponential

        return wait_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT)(state) * (0.5 + self._rng.random() / 2)

    def _gives_up(self, state: RetryCallState) -> bool:
        left = self._seconds_left()
        outlasts = left is not None and state.upcoming_sleep >= left
        return state.attempt_number >= MAX_ATTEMPTS or self._token.is_cancelled or outlasts

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the run is cancelled or its work is over."""
        while seconds > 0 and not self._token.is_cancelled and self._time_left():
            part = min(seconds, LOOK_UP_SECONDS)
            await self._sleep(part)
            seconds -= part

    def _time_left(self) -> bool:
        left = self._seconds_left()
        return left is None or left > 0

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but wake when the run is cancelled."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake(_: str) -> None:
            loop.call_soon_threadsafe(woken.set)

        forget = self._token.on_cancel(wake)
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        waking = asyncio.ensure_future(woken.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            forget()
            for task in (sleeping, waking):
                task.cancel()
            await asyncio.gather(sleeping, waking, return_exceptions=True)


def _error_of(state: RetryCallState) -> ProviderError:
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, ProviderError):
        raise RuntimeError(f"a retry was decided without a provider error: {error!r}")
    return error
