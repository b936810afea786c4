"""How calls leave a passage: the end of the work, being left behind, and what is told to whom.

Every call that entered is settled at the ledger and its node is closed, exactly once, whatever became of it; only then
are breaker and hooks told, and only then is raised what must not be swallowed. Money that was spent is always charged:
what a hook says about it affects the calls that follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from watchkeeper.accounting.account import COST, INPUT_TOKENS, OUTPUT_TOKENS, RETRIES, retries_left, stop_of
from watchkeeper.accounting.call_request import NO_TOKENS, Charge
from watchkeeper.accounting.ledger import Ledger
from watchkeeper.accounting.refusals import CLOSED_UNDER_WAY, expired
from watchkeeper.containment.call_start import Passage
from watchkeeper.containment.guards import Entry, said_by_hook
from watchkeeper.containment.in_flight import Flight, Interruption, Meter, Outcome, no_retry_left, overran
from watchkeeper.containment.record import Ending, NodeStatus
from watchkeeper.core.clock import Clock
from watchkeeper.core.logs import logger
from watchkeeper.core.text import error_text, shown
from watchkeeper.core.usage import TokenUsage
from watchkeeper.shield.decision import Decision

# --- late -----------------------------------------------------------------------------------------------------------
# Results that come after the gate has let go of a call.
#
# A call that is left behind is booked at once with all that it may cost, so that nobody waits for it and nothing is
# forgotten. When its result comes, the truth takes the place of that: the charge is corrected and the result is kept
# on the call's node. It needs the ledger and the node, never the context, which may be closed and gone by then.


def measure(
    flight: Flight, value: Any, error: BaseException | None, meter: Meter[Any] | None
) -> tuple[Charge, BaseException | None]:
    """Return what a call cost, and what its meter raised, if it did; then all that was reserved is the charge."""
    if meter is None:
        return as_said(flight), None
    try:
        return meter(value, error, flight), None
    except BaseException as raised:  # whoever called raises it again, once the call is settled
        logger().error("meter.failed", operation=flight.node.name, error=shown(raised))
        return all_reserved(flight), raised


def all_reserved(flight: Flight) -> Charge:
    """Return all that was reserved for a call, or what it said it cost if that is more: what it may come to."""
    amounts = dict(flight.demand.reserved)
    tokens_in, tokens_out = amounts.get(INPUT_TOKENS, 0), amounts.get(OUTPUT_TOKENS, 0)
    tokens = TokenUsage(tokens_in, tokens_out) if tokens_in or tokens_out else NO_TOKENS
    return Charge(tokens, max(amounts.get(COST, 0), flight.charged_nanos or 0))


def as_said(flight: Flight) -> Charge:
    """Return what an ended call said it cost, or else all that was reserved for it."""
    charge = all_reserved(flight)
    return charge if flight.charged_nanos is None else Charge(charge.tokens, flight.charged_nanos)


class LateResult:
    """Waits, without a context, for the result of one call that was left behind."""

    __slots__ = ("_booked", "_clock", "_flight", "_forget", "_ledger", "_meter")

    def __init__(
        self,
        flight: Flight,
        booked: Charge,
        meter: Meter[Any] | None,
        ledger: Ledger,
        clock: Clock,
        forget: Callable[[], object],
    ) -> None:
        """Remember what was booked, and what to do when the truth is known.

        Args:
            flight: The call.
            booked: What was charged for it when it was left behind.
            meter: Says what it cost.
            ledger: Where to correct the charge.
            clock: For the node's end.
            forget: Called at the end: the call is no longer under way in any sense.
        """
        self._flight = flight
        self._booked = booked
        self._meter = meter
        self._ledger = ledger
        self._clock = clock
        self._forget = forget

    def arrive(self, value: Any, error: BaseException | None) -> None:
        """Take in the result, or the error, whenever it comes."""
        flight, now = self._flight, self._clock.monotonic()
        ending = flight.node.ending
        charge, broken = self._booked, None
        if self._meter is not None:
            charge, broken = measure(flight, value, error, self._meter)
            self._ledger.correct(flight.demand, self._booked, charge, now)
        if ending is not None:
            said = shown(error) if error is not None else ending.error
            flight.node.ending = replace(
                ending, cost_nanos=charge.cost_nanos, tokens=charge.tokens, error=said, late_result=value
            )
        self._forget()
        if broken is not None and not isinstance(broken, Exception):
            raise broken

    def finished(self, task: asyncio.Task[Any]) -> None:
        """Take in what became of work that went on in a task of its own."""
        if task.cancelled():
            self.arrive(None, asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.arrive(None, error)
        else:
            self.arrive(task.result(), None)


class Ended(NamedTuple):
    """How the work of a call ended."""

    flight: Flight
    value: Any
    error: Exception | None
    charge: Charge
    reason: Interruption | None
    now: float


def finish(
    passage: Passage, flight: Flight, value: Any, error: BaseException | None, meter: Meter[Any] | None
) -> Outcome[Any]:
    """Settle and record a call whose work has ended; raise what must not be swallowed."""
    struck, told = flight.struck, flight.told
    foreign = flight.disarm()
    now = passage.clock.monotonic()
    reason = flight.interrupted
    if reason is None:
        reason = flight.overrun if now >= flight.expires_at else None
    elif reason in ("aborted", "closed") and not (struck or told):
        reason = None  # it ended by itself before the interruption reached it
    overrun = reason in ("deadline", "call_timeout")
    if foreign and (error is None or isinstance(error, Exception)):
        error = asyncio.CancelledError()
    elif struck and not foreign and isinstance(error, asyncio.CancelledError):
        error = overran(flight) if overrun else None
    charge, broken = measure(flight, value, error, meter)
    if broken is not None and not isinstance(broken, Exception):
        error, broken = broken, None
    if error is not None and not isinstance(error, Exception):
        stop_reason = "timeout" if reason == "deadline" else reason
        record(passage, flight, charge, "timeout" if overrun else "aborted", stop_reason, error, now)
        raise error
    if overrun and error is None:
        error = overran(flight)
    if reason is None and error is None:
        record(passage, flight, charge, "ok", None, broken, now)
        event = flight.entry.answered(value) if flight.entry is not None else None
        if event is None:
            return Outcome(Decision.ALLOW, value, broken, None, None, flight.node)
        mark(flight, event.event_type, "halted")
        passage.incidents.record(event)
        return Outcome(event.decision, value, broken, event.event_type, said_by_hook(event), flight.node)
    return conclude(passage, Ended(flight, value, error, charge, reason, now))


def leave_behind(passage: Passage, flight: Flight, meter: Meter[Any] | None) -> tuple[Outcome[Any], LateResult]:
    """Let go of a call that did not stop in time; return what came of it, and what takes in its late result."""
    number, reason = flight.node.number, flight.interrupted
    charge = all_reserved(flight)
    late = LateResult(flight, charge, meter, passage.ledger, passage.clock, partial(passage.flights.pop, number, None))
    error = overran(flight) if reason in ("deadline", "call_timeout") else None
    outcome = conclude(passage, Ended(flight, None, error, charge, reason, passage.clock.monotonic()))
    passage.flights[number] = flight
    return outcome, late


def conclude(passage: Passage, ended: Ended) -> Outcome[Any]:
    """Settle and record a call that failed, overran or was stopped."""
    flight, value, error, charge, reason, now = ended
    if reason is None or reason == "call_timeout":
        return fail(passage, ended)
    account, landing = passage.account, flight.demand.landing
    if reason == "deadline":
        over = passage.time_is_over(landing=landing, now=now)
        record(passage, flight, charge, "timeout", "timeout", error, now)
        if over.latched:
            passage.stopped(expired(account, landing=landing))
        stop = over.stop
    else:
        stop = (stop_of(account) if reason == "aborted" else None) or CLOSED_UNDER_WAY
        record(passage, flight, charge, "aborted", stop.reason, error, now)
    return Outcome(Decision.HALT, value, error, stop.reason, stop, flight.node)


def fail(passage: Passage, ended: Ended) -> Outcome[Any]:
    """Settle and record a call that failed by itself or overran its own time-out; nothing is latched."""
    flight, value, error, charge, reason, now = ended
    record(passage, flight, charge, "timeout" if reason else "error", reason, error, now)
    request = flight.request
    event = flight.entry.failed(error) if flight.entry is not None and error is not None else None
    if event is not None:
        passage.incidents.record(event)
    exhausted = request.max_retries is not None and passage.operations.exhausted(request)
    if not exhausted and (not flight.demand.may_fail or retries_left(passage.account)):
        if event is None:
            return Outcome(Decision.RETRY, value, error, reason, None, flight.node)
        stop = said_by_hook(event)
        said = event.event_type if stop is not None else reason or event.event_type
        mark(flight, said)
        return Outcome(event.decision, value, error, said, stop, flight.node)
    stop = no_retry_left(flight, error)
    mark(flight, stop.reason)
    passage.incidents.report(stop)
    return Outcome(Decision.HALT, value, error, stop.reason, stop, flight.node)


def record(
    passage: Passage,
    flight: Flight,
    charge: Charge,
    status: NodeStatus,
    stop_reason: str | None,
    error: BaseException | None,
    now: float,
) -> None:
    """Settle a call at the ledger and close its node."""
    demand, node = flight.demand, flight.node
    failed = status in ("error", "timeout")
    passage.ledger.settle(demand, charge, failed, now)
    if flight.request.max_retries is not None:
        passage.operations.record(flight.request, failed=failed)
    retries = demand.wants[RETRIES] if failed or not demand.may_fail else 0
    said = None if error is None else error_text(error)
    node.ending = Ending(now, status, charge.cost_nanos, charge.tokens, retries, stop_reason, said, None)
    passage.flights.pop(node.number, None)
    if flight.entry is not None:
        tell_guards(passage, flight.entry, flight, charge, error, failed=failed and stop_reason != "timeout")


def tell_guards(
    passage: Passage, entry: Entry, flight: Flight, charge: Charge, error: BaseException | None, *, failed: bool
) -> None:
    """Tell breaker and hooks what became of a call that is settled; a hook may end what follows."""
    ending = flight.node.ending
    succeeded = ending is not None and ending.status == "ok"
    entry.settle(error, succeeded=succeeded, failed=failed and isinstance(error, Exception))
    event = entry.charged(charge, succeeded=succeeded)
    if event is None:
        return
    passage.incidents.record(event)
    stop = said_by_hook(event)
    account, landing = passage.account, flight.demand.landing
    if stop and passage.ledger.latch(account, stop, account.goes_on(landing=landing), passage.clock.monotonic()):
        passage.stopped(stop)


def mark(flight: Flight, stop_reason: str, status: NodeStatus | None = None) -> None:
    """Write on the node of a call that has ended what was decided about it."""
    ending = flight.node.ending
    if ending is not None:
        flight.node.ending = replace(ending, stop_reason=stop_reason, status=status or ending.status)
