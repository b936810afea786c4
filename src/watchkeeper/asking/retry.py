"""When a failed model call is tried again, and how a run goes on or ends if no model answers.

Only transient faults are retried, after the provider's own retry-after or an exponential wait with jitter. Waits use
the injected clock, jitter uses the injected random generator. Every attempt is admitted by the gate like any other
call, so retries can never multiply; a wait that would outlast the deadline is not begun. Nothing is sent and nothing is
reserved while a call waits.

If a hook said RETRY, the gate is asked again a few times, after increasing waits. If a hook said QUEUE, the gate is
asked until the hook decides otherwise or the time of the call's phase is over, and then once more, so that the gate
gives the reason. An abort or a landing of the run ends the wait.

`WorkStoppedError` ends the work, also if other models are left; `UnansweredError` passes the turn on to the next model.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeGuard, TypeVar

from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.containment.in_flight import Meter, Work
from watchkeeper.containment.record import Outcome
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import EgressRefusedError, ProviderError, Stop, StopReason
from watchkeeper.core.quantities import format_duration
from watchkeeper.runtime.plan import RunScope
from watchkeeper.runtime.user_code import done_by
from watchkeeper.shield.decision import Decision

T = TypeVar("T")
Phase = Literal["work", "landing"]

MAX_ATTEMPTS: Final = 5
FIRST_WAIT: Final = 0.5
FEWER_ATTEMPTS: Final = {"malformed_reply": 2}
"""Maximum attempts for faults that a retry rarely cures and for which each attempt is paid."""

LONGEST_WAIT: Final = 30.0
LONGEST_ASKED: Final = 3600.0
"""The longest wait of a provider, in seconds, that is waited for; without a deadline nothing else ends it."""
LOOK_UP_SECONDS: Final = 0.5
"""Interval at which a wait checks whether the work is over, for example because of a Ctrl-C."""

WAITING: Final = frozenset({Decision.RETRY, Decision.QUEUE})
"""A hook's decisions about a call that may be admitted later."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The retry policy of one run.

    Attributes:
        clock: The clock that waits use.
        rng: The random generator for jitter.
        token: Its cancellation ends a wait.
        seconds_left: Returns the seconds that a wait may last at most; None for no bound.
    """

    clock: Clock
    rng: random.Random
    token: CancellationToken
    seconds_left: Callable[[], float | None]

    def wait_after(self, error: ProviderError, number: int, alike: int = 0) -> float | None:
        """Return the seconds to wait after attempt ``number``, or None if there is not to be another one.

        The wait is what the provider asked for, else a wait that grows with the number of attempts.

        Args:
            error: How the attempt failed.
            number: 1 for the first attempt.
            alike: How many attempts have failed in this way; 0 means all of them.
        """
        if not error.retryable:
            return None
        wait = self.growing(number) if error.retry_after is None else max(error.retry_after, 0.0)
        left = self.seconds_left()
        outlasts = not wait <= LONGEST_ASKED or (left is not None and wait >= left)
        return (
            None
            if number >= MAX_ATTEMPTS
            or (alike or number) >= most_attempts(error)
            or self.token.is_cancelled
            or outlasts
            else wait
        )

    def growing(self, number: int) -> float:
        """Return the seconds to wait after attempt ``number`` without a retry-after: exponential with jitter."""
        doubled = min(number - 1, math.ceil(math.log2(LONGEST_WAIT / FIRST_WAIT)))
        return min(FIRST_WAIT * 2.0**doubled, LONGEST_WAIT) * (0.5 + self.rng.random() / 2)

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the run is cancelled or its work is over."""
        while seconds > 0 and not self.token.is_cancelled:
            left = self.seconds_left()
            if left is not None and left <= 0:
                return
            part = min(seconds, LOOK_UP_SECONDS)
            sleeping = asyncio.ensure_future(self.clock.sleep(part))
            try:
                await done_by(sleeping, math.inf, self.clock, self.token)
            finally:
                sleeping.cancel()
                await asyncio.gather(sleeping, return_exceptions=True)
            seconds -= part


def most_attempts(error: ProviderError) -> int:
    """Return after how many attempts a failure of this kind is final."""
    return FEWER_ATTEMPTS.get(error.fault, MAX_ATTEMPTS)


async def call_through(scope: RunScope, request: CallRequest, work: Work[T], meter: Meter[T]) -> Outcome[T]:
    """Pass the gate with a call; where a hook said RETRY or QUEUE, ask again until it is admitted or refused for good.

    Args:
        scope: The scope of the run: session, gate, clock, files.
        request: The request, the same for every attempt.
        work: What runs if the call is admitted.
        meter: Returns what the call cost.
    """
    gate = scope.gate
    outcome = await gate.acall(request, work, meter)
    if outcome.admitted or not _may_come_later(outcome):
        return outcome

    def left() -> float | None:
        return seconds_left(scope, request.phase)

    waits = Backoff(scope.clock, scope.rng, gate.cancellation, left)
    asked, repeats = 1, 0
    while _may_come_later(outcome):
        repeats += outcome.decision is Decision.RETRY
        seconds = left()
        if repeats >= MAX_ATTEMPTS or (asked > 1 and seconds is not None and seconds <= 0):
            break
        await waits.pause(waits.growing(asked))
        outcome = await gate.acall(request, work, meter)
        asked += 1
    return outcome


def _may_come_later(outcome: Outcome[Any]) -> bool:
    return not outcome.admitted and outcome.decision in WAITING


def seconds_left(scope: RunScope, phase: Phase = "work") -> float | None:
    """Return the seconds that a phase of the run has left; None without a deadline, 0.0 if it is over."""
    gate, landing = scope.gate, phase == "landing"
    if (gate.stop if landing else gate.work_stop) is not None:
        return 0.0
    deadline = gate.deadline if landing else gate.work_deadline
    return None if deadline is None else deadline.remaining(scope.clock).total_seconds()


DEGRADED: Final = "degraded"
"""Why a run goes on with the cheaper model: a hook said so."""

CIRCUIT_OPEN: Final = "circuit_open"
"""Why a model is passed over: its breaker lets nothing through."""

UNASKED: Final = frozenset({DEGRADED, CIRCUIT_OPEN})
"""Reasons of stops before the model was asked."""

OWN_FAULTS: Final = frozenset({"context_full", "bad_request"})
"""Faults of the request itself: another model would fail with the same fault."""


class WorkStoppedError(Exception):
    """The gate, or a provider's final failure, ended the work; carries stop and error to the driver."""

    def __init__(self, stop: Stop, error: BaseException | None = None, text: str = "") -> None:
        """Keep the stop, the error behind it, and what the model had said in the turn that was cut off."""
        super().__init__(stop.message)
        self.stop = stop
        self.error = error
        self.text = text


class UnansweredError(WorkStoppedError):
    """The model in use does not answer; another may. If none takes over, its stop ends the work.

    Attributes:
        reason: The provider's fault, ``circuit_open`` or ``degraded``.
    """

    def __init__(self, reason: str, stop: Stop, error: BaseException | None = None) -> None:
        """Keep the reason beside the stop and the error."""
        super().__init__(stop, error)
        self.reason = reason


def may_pass_on(error: BaseException | None) -> TypeGuard[ProviderError]:
    """Return whether another model may answer after this error."""
    return isinstance(error, ProviderError) and error.fault not in OWN_FAULTS


def held_back(outcome: Outcome[Any]) -> str:
    """Say why a hook did not admit a call, if the hook gave no stop."""
    return f"a hook said {outcome.decision} ({outcome.stop_reason or 'no reason given'})"


MISTAKES: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
)
"""What code raises that is wrong; asking again later would raise the same."""


def is_outage(error: BaseException) -> bool:
    """Return whether an error means that a provider is down.

    It does not if the request was wrong or was refused, or the code of the model makes a mistake.
    """
    if isinstance(error, (EgressRefusedError, *MISTAKES)):
        return False
    return not isinstance(error, ProviderError) or error.fault not in {*OWN_FAULTS, "not_found", "refused"}


def provider_stop(error: ProviderError) -> Stop:
    """Translate a provider's failure, after all retries, into a stop."""
    reasons: dict[str, StopReason] = {
        "rate_limit": "provider_rate_limit",
        "context_full": "context_full",
        "refused": "refused",
    }
    waited = f" (asked to wait {format_duration(error.retry_after)})" if error.retry_after else ""
    return Stop(reasons.get(error.fault, "provider_error"), "provider", f"The provider failed: {error}{waited}")
