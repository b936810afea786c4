"""Asking the gate again where a hook said RETRY or QUEUE.

Nothing was sent and nothing is reserved while a call waits. RETRY is asked again a few times after waits that grow;
QUEUE is asked again until the hook decides otherwise or the time of the call's phase is over, and then once more, so
that the gate says what is over. Whoever aborts or lands the run ends the wait. As for failures (`backoff`), tenacity
computes and counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from watchkeeper.containment.call import CallRequest, Meter, Outcome, Work
from watchkeeper.containment.decision import Decision
from watchkeeper.runtime.backoff import MAX_ATTEMPTS, Backoff
from watchkeeper.runtime.plan import RunHome

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")

WAITING: Final = frozenset({Decision.RETRY, Decision.QUEUE})
"""What a hook says about a call that may be let through later."""


async def asked_again(
    home: RunHome, request: CallRequest, work: Work[T], meter: Meter[T], refused: Outcome[T]
) -> Outcome[T]:
    """Ask for admission until it is granted or refused for good; return what came of it.

    Args:
        home: Where the run lives.
        request: What is asked, the same every time.
        work: What runs if the call is admitted.
        meter: Says what it cost.
        refused: What the gate said the first time: not admitted, RETRY or QUEUE.
    """
    from tenacity import AsyncRetrying, retry_if_result

    repeats = 0

    async def asked() -> Outcome[T]:
        first = retrying.statistics["attempt_number"] == 1
        return refused if first else await home.gate.acall(request, work, meter)

    def gives_up(state: RetryCallState) -> bool:
        nonlocal repeats
        repeats += _said(state).decision is Decision.RETRY
        left = _seconds_left(home, request)
        return repeats >= MAX_ATTEMPTS or (state.attempt_number > 1 and left is not None and left <= 0)

    waits = Backoff(home.clock, home.rng, home.gate.cancellation, lambda: _seconds_left(home, request))
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


def _seconds_left(home: RunHome, request: CallRequest) -> float | None:
    landing = request.phase == "landing"
    if (home.gate.stop if landing else home.gate.work_stop) is not None:
        return 0.0
    deadline = home.gate.deadline if landing else home.gate.work_deadline
    return None if deadline is None else deadline.remaining(home.clock).total_seconds()


def held_back(outcome: Outcome[Any]) -> str:
    """Say why a call was not let through for which a hook gave no stop."""
    return f"a hook said {outcome.decision} ({outcome.stop_reason or 'no reason given'})"
