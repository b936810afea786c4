"""When to try a failed model call again.

Only faults that may pass are tried again, after the provider's own retry-after or an exponential wait with jitter;
tenacity computes and counts, the injected clock waits, the injected generator jitters. Every attempt is admitted by
the gate like any other call, so retries can never multiply; a wait that would outlast the deadline is not begun.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.containment.in_flight import Meter, Outcome, Work
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import ConfigurationError, ProviderError, Stop, StopReason
from watchkeeper.core.model import ModelReply
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.workers import said_by
from watchkeeper.runtime.plan import RunScope
from watchkeeper.shield.decision import Decision

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


# --- patience -------------------------------------------------------------------------------------------------------
# Asking the gate again where a hook said RETRY or QUEUE.
#
# Nothing was sent and nothing is reserved while a call waits. RETRY is asked again a few times after waits that grow;
# QUEUE is asked again until the hook decides otherwise or the time of the call's phase is over, and then once more, so
# that the gate says what is over. Whoever aborts or lands the run ends the wait. As for failures (`backoff`), tenacity
# computes and counts.

WAITING: Final = frozenset({Decision.RETRY, Decision.QUEUE})
"""What a hook says about a call that may be let through later."""


async def asked_again(
    scope: RunScope, request: CallRequest, work: Work[T], meter: Meter[T], refused: Outcome[T]
) -> Outcome[T]:
    """Ask for admission until it is granted or refused for good; return what came of it.

    Args:
        scope: What the run works within.
        request: What is asked, the same every time.
        work: What runs if the call is admitted.
        meter: Says what it cost.
        refused: What the gate said the first time: not admitted, RETRY or QUEUE.
    """
    from tenacity import AsyncRetrying, retry_if_result

    repeats = 0

    async def asked() -> Outcome[T]:
        first = retrying.statistics["attempt_number"] == 1
        return refused if first else await scope.gate.acall(request, work, meter)

    def gives_up(state: RetryCallState) -> bool:
        nonlocal repeats
        repeats += _said(state).decision is Decision.RETRY
        left = _seconds_left(scope, request)
        return repeats >= MAX_ATTEMPTS or (state.attempt_number > 1 and left is not None and left <= 0)

    waits = Backoff(scope.clock, scope.rng, scope.gate.cancellation, lambda: _seconds_left(scope, request))
    retrying = AsyncRetrying(
        sleep=waits.pause,
        wait=waits.growing,
        stop=gives_up,
        retry=retry_if_result(lambda outcome: not outcome.admitted and outcome.decision in WAITING),
        retry_error_callback=_said,
    )
    return await retrying(asked)


def _said(state: RetryCallState) -> Outcome[Any]:
    if state.outcome is None:
        raise RuntimeError("a retry was decided before the gate was asked")
    outcome: Outcome[Any] = state.outcome.result()
    return outcome


def _seconds_left(scope: RunScope, request: CallRequest) -> float | None:
    landing = request.phase == "landing"
    if (scope.gate.stop if landing else scope.gate.work_stop) is not None:
        return 0.0
    deadline = scope.gate.deadline if landing else scope.gate.work_deadline
    return None if deadline is None else deadline.remaining(scope.clock).total_seconds()


def held_back(outcome: Outcome[Any]) -> str:
    """Say why a call was not let through for which a hook gave no stop."""
    return f"a hook said {outcome.decision} ({outcome.stop_reason or 'no reason given'})"


# --- failures -------------------------------------------------------------------------------------------------------
# What it means for a run that a model did not answer: the work is over, or another model may.
#
# `WorkStoppedError` ends the work whoever would be asked; `UnansweredError` passes the turn on to the next model of the
# run. Nothing here records or decides: errors and outcomes go in, what is to be raised comes out.

DEGRADED: Final = "degraded"
"""Why a run goes on with the cheaper model: a hook said so."""

CIRCUIT_OPEN: Final = "circuit_open"
"""Why a model is passed over: its breaker lets nothing through."""

UNASKED: Final = frozenset({DEGRADED, CIRCUIT_OPEN})
"""Reasons for which a model was not even asked."""

OWN_FAULTS: Final = frozenset({"context_full", "bad_request"})
"""Faults of the request: another model would answer it with the same."""


class WorkStoppedError(Exception):
    """The gate, or a provider for good, ended the work; carries the stop to the driver."""

    def __init__(self, stop: Stop, error: BaseException | None = None) -> None:
        """Keep the stop and the error behind it."""
        super().__init__(stop.message)
        self.stop = stop
        self.error = error


class UnansweredError(Exception):
    """The model in use does not answer; another may.

    Attributes:
        reason: The provider's fault, ``circuit_open`` or ``degraded``.
        stop: What ends the run if no other model takes over.
        error: The exception behind it, if there is one.
    """

    def __init__(self, reason: str, stop: Stop, error: BaseException | None = None) -> None:
        """Keep why."""
        super().__init__(stop.message)
        self.reason = reason
        self.stop = stop
        self.error = error


def may_pass_on(error: BaseException | None) -> TypeGuard[ProviderError]:
    """Return whether another model may answer after this error."""
    return isinstance(error, ProviderError) and error.fault not in OWN_FAULTS


def not_let_through(outcome: Outcome[ModelReply]) -> BaseException:
    """Return what is raised for a call that was not admitted."""
    stop = outcome.stop
    if stop is not None and stop.reason == CIRCUIT_OPEN:
        return UnansweredError(CIRCUIT_OPEN, stop)
    if stop is not None:
        return WorkStoppedError(stop, outcome.error)
    said = f"The model may not be asked: {held_back(outcome)}."
    if outcome.decision is Decision.DEGRADE:
        return UnansweredError(DEGRADED, Stop("policy_halt", "hook", said))
    return WorkStoppedError(Stop("policy_halt", "hook", said))


def refusal(reply: ModelReply, provider: str) -> ProviderError:
    """Return the error for a reply that refuses, where another model may answer."""
    said = reply.refusal or reply.message.text or "no reason given"
    return ProviderError(f"the model refused: {said}", fault="refused", provider=provider, billed=True)


def passed_on(error: BaseException, nothing_to_lose: bool) -> BaseException:
    """Return what is raised for a failed attempt: a bug in an adapter ends the work, it never loses what was done.

    What is wrong with the configuration shows in the first turn, where there is nothing to lose yet.
    """
    if isinstance(error, ProviderError) or (nothing_to_lose and isinstance(error, ConfigurationError)):
        return error
    said = f"The model failed unexpectedly: {said_by(error)}"
    return WorkStoppedError(Stop("error", "provider", said), error)


def is_outage(error: BaseException) -> bool:
    """Return whether an error says that a provider is down, and not that it was asked for something wrong."""
    return not isinstance(error, ProviderError) or error.fault not in {*OWN_FAULTS, "refused"}


def provider_stop(error: ProviderError) -> Stop:
    """Translate a provider's failure, after all retries, into a stop."""
    reasons: dict[str, StopReason] = {
        "rate_limit": "provider_rate_limit",
        "context_full": "context_full",
        "refused": "refused",
    }
    waited = f" (asked to wait {format_duration(error.retry_after)})" if error.retry_after else ""
    return Stop(reasons.get(error.fault, "provider_error"), "provider", f"The provider failed: {error}{waited}")
