"""Asking the gate again where a hook said RETRY or QUEUE.

Nothing was sent and nothing is reserved while a call waits. RETRY is asked again a few times after waits that grow;
QUEUE is asked again until the hook decides otherwise or the time of the call's phase is over, and then once more, so
that the gate says what is over. Whoever aborts or lands the run ends the wait.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from watchkeeper.containment.call import CallRequest, Meter, Outcome, Work
from watchkeeper.containment.decision import Decision
from watchkeeper.runtime.backoff import FIRST_WAIT, LONGEST_WAIT, MAX_ATTEMPTS, Backoff
from watchkeeper.runtime.plan import RunHome

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

    def seconds_left() -> float | None:
        return _seconds_left(home, request)

    waits = Backoff(home.clock, home.rng, home.gate.cancellation, seconds_left)
    outcome, wait, retries = refused, FIRST_WAIT, 1
    while not outcome.admitted and outcome.decision in WAITING:
        if outcome.decision is Decision.RETRY:
            if retries >= MAX_ATTEMPTS:
                return outcome
            retries += 1
        await waits.pause(wait * (0.5 + home.rng.random() / 2))
        outcome = await home.gate.acall(request, work, meter)
        left = seconds_left()
        if left is not None and left <= 0:
            return outcome
        wait = min(wait * 2, LONGEST_WAIT)
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
