"""How a call ends: it is charged, settled at the ledger and recorded, and breaker and hooks are told.

Every call that has begun is settled and its node closed exactly once, however it ended. Only then are breaker and
hooks told, and only then are exceptions raised that must not be swallowed. Money that was spent is
always charged: what a hook says about it concerns the calls that follow.

An abandoned call is charged at once with all that was reserved for it, so that no call waits for it and no cost is
forgotten. When its late result comes, the charge is corrected and the result is kept on the call's node; that needs
the ledger and the node, never the context, which may be closed and gone by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from watchkeeper.accounting.account import COST, INPUT_TOKENS, OUTPUT_TOKENS, RETRIES, retries_left, stop_of
from watchkeeper.accounting.call_request import CLOSED_UNDER_WAY, Charge, KINDS, NO_TOKENS, expired, presumed_charge
from watchkeeper.accounting.ledger import Ledger
from watchkeeper.containment.calls import ContextCalls
from watchkeeper.containment.guards import GuardedCall, stop_by_hook
from watchkeeper.containment.in_flight import CURRENT_CALL, InFlightCall, Interruption, Meter
from watchkeeper.containment.record import Outcome
from watchkeeper.containment.record import Ending, NodeStatus
from watchkeeper.core.clock import Clock, running_loop
from watchkeeper.core.errors import Stop
from watchkeeper.accounting.stack import with_room
from watchkeeper.core.text import error_text, logger, shown
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.usage import NOTHING_PRESUMED, TokenUsage
from watchkeeper.core.workers import running_task
from watchkeeper.shield.decision import Decision


def finish(
    calls: ContextCalls, call: InFlightCall, value: Any, error: BaseException | None, meter: Meter[Any] | None
) -> Outcome[Any]:
    """Settle and record a call whose work has ended; raise what must not be swallowed."""
    cancelled, reached = call.cancelled, call.cancelled or call.outer_cancelled
    foreign = call.disarm()
    if call.left is not None:
        return finish_left(calls, call, call.left, value, error, meter, foreign=foreign)
    now = calls.clock.monotonic()
    reason = call.interrupted
    if reason is None:
        reason = call.overrun if now >= call.expires_at else None
    elif reason in ("aborted", "closed") and not reached:
        reason = None  # it ended by itself before the interruption reached it
    overrun = reason in ("deadline", "call_timeout")
    if foreign and (error is None or isinstance(error, Exception)):
        error = asyncio.CancelledError()
    elif cancelled and not foreign and isinstance(error, asyncio.CancelledError):
        error = timed_out(call) if overrun else None
    charge, broken = measure(call, value, error, meter)
    if broken is not None and not isinstance(broken, Exception):
        error, broken = broken, None
    if error is not None and not isinstance(error, Exception):
        stop_reason = "timeout" if reason == "deadline" else reason
        record(calls, call, charge, "timeout" if overrun else "aborted", stop_reason, error, now)
        raise error
    if overrun and error is None:
        error = timed_out(call)
    if reason is not None or error is not None:
        return conclude(calls, call, value, error, charge, reason, now)
    record(calls, call, charge, "ok", None, broken, now)
    event = call.guarded.answered(value) if call.guarded is not None else None
    if event is None:
        return Outcome(Decision.ALLOW, value, broken, None, None, call.node)
    mark(call, event.event_type, "halted")
    calls.incidents.record(event)
    return Outcome(event.decision, value, broken, event.event_type, stop_by_hook(event), call.node)


def never_began(calls: ContextCalls, call: InFlightCall) -> Outcome[Any]:
    """Settle a call whose work was not begun when its time was over, or its context was ended: it cost nothing."""
    call.begun = False
    call.disarm()
    reason = call.interrupted or call.overrun
    error = timed_out(call) if reason in ("deadline", "call_timeout") else None
    outcome = conclude(calls, call, None, error, Charge(), reason, calls.clock.monotonic())
    if call.node.ending is not None and error is None:
        call.node.ending = replace(call.node.ending, error=f"{named(call)} was never begun")
    return replace(outcome, admitted=False)


def abandon(calls: ContextCalls, call: InFlightCall, meter: Meter[Any] | None) -> tuple[Outcome[Any], LateResult]:
    """Abandon a call that did not stop in time; return its outcome, and the receiver of its late result."""
    if call.left is not None:  # `book_left` has booked it
        late = LateResult(call, call.left, meter, calls.ledger, calls.clock, lambda: None)
        return left_outcome(calls, call, None, None), late
    if call.node.ending is not None:  # its loop was closed, its context has booked it, and the collector closes it now
        raise GeneratorExit
    number, reason = call.node.number, call.interrupted
    charge = presumed_charge(*reserved_amounts(call))
    late = LateResult(call, charge, meter, calls.ledger, calls.clock, partial(calls.in_flight.pop, number, None))
    error = timed_out(call) if reason in ("deadline", "call_timeout") else None
    outcome = conclude(calls, call, None, error, charge, reason, calls.clock.monotonic())
    calls.in_flight[number] = call
    return outcome, late


def recover(calls: ContextCalls, call: object) -> None:
    """Book a call that an exception tore out of the gate's own code.

    A signal handler may raise at any point, and the stack may end there. What the call cost is not known, so it is
    presumed to have cost what is reserved for it. One about which hooks were being asked never begins, and what is
    reserved for it is released.
    """
    with_room(book_torn, calls, call)


def book_torn(calls: ContextCalls, call: object) -> None:
    """Book it; see `recover`."""
    if isinstance(call, GuardedCall):
        calls.give_back(call.demand)
    if not isinstance(call, InFlightCall):
        return
    if CURRENT_CALL.get() is call:
        CURRENT_CALL.set(call.outer)
    if call.node.ending is None:
        book_presumed(calls, call)
    elif call.abandoned_task is None and call.abandoned_thread is None:
        calls.in_flight.pop(call.node.number, None)


def book_presumed(calls: ContextCalls, call: InFlightCall) -> None:
    """Book a call that will never be settled by the code that made it."""
    call.disarm()
    is_booked = call.demand.may_fail and not call.demand.is_held  # only its node was left to be closed
    charge = Charge() if is_booked else presumed_charge(*reserved_amounts(call))
    record(calls, call, charge, "aborted", "aborted", None, calls.clock.monotonic())


def book_stranded(calls: ContextCalls) -> None:
    """Book the calls of a closed context whose loop was closed under them."""
    for call in list(calls.in_flight.values()):
        if call.is_stranded:
            call.abandoned_task = call.task  # when the collector closes its coroutine, it is not settled once more
            book_presumed(calls, call)


def book_left(calls: ContextCalls) -> None:
    """Book the calls of a closed context that wait on the running loop, which its end cannot wait for.

    They were interrupted, and end when the loop runs again; until then they are presumed to have cost what is reserved.
    """
    loop, task = running_loop(), running_task()
    for call in list(calls.in_flight.values()):
        waits_here = call.task is not None and call.task is not task and call.task.get_loop() is loop
        if waits_here and call.node.ending is None:
            call.left = presumed_charge(*reserved_amounts(call))
            stop = stop_of(calls.account) or CLOSED_UNDER_WAY
            record(calls, call, call.left, "aborted", stop.reason, None, calls.clock.monotonic())


def finish_left(
    calls: ContextCalls,
    call: InFlightCall,
    booked: Charge,
    value: Any,
    error: BaseException | None,
    meter: Meter[Any] | None,
    *,
    foreign: bool,
) -> Outcome[Any]:
    """Correct what `book_left` has booked, now that the call has ended; raise what must not be swallowed."""
    LateResult(call, booked, meter, calls.ledger, calls.clock, lambda: None).arrive(value, error)
    if foreign:
        raise asyncio.CancelledError
    if error is not None and not isinstance(error, Exception | asyncio.CancelledError):
        raise error
    return left_outcome(calls, call, value, error if isinstance(error, Exception) else None)


def left_outcome(calls: ContextCalls, call: InFlightCall, value: Any, error: Exception | None) -> Outcome[Any]:
    """Return the outcome of a call that `book_left` has booked."""
    stop = stop_of(calls.account) or CLOSED_UNDER_WAY
    return Outcome(Decision.HALT, value, error, stop.reason, stop, call.node)


def conclude(
    calls: ContextCalls,
    call: InFlightCall,
    value: Any,
    error: Exception | None,
    charge: Charge,
    reason: Interruption | None,
    now: float,
) -> Outcome[Any]:
    """Settle and record a call that failed, overran or was stopped; only the end of all time is latched."""
    account, request, landing = calls.account, call.request, call.demand.landing
    if reason == "deadline":
        over = calls.time_is_over(landing=landing, now=now)
        record(calls, call, charge, "timeout", "timeout", error, now)
        if over.latched:
            calls.report_stop(expired(account, landing=landing))
        calls.look_at_time()
        return Outcome(Decision.HALT, value, error, over.stop.reason, over.stop, call.node)
    if reason in ("aborted", "closed"):
        stop = (stop_of(account) if reason == "aborted" else None) or CLOSED_UNDER_WAY
        record(calls, call, charge, "aborted", stop.reason, error, now)
        return Outcome(Decision.HALT, value, error, stop.reason, stop, call.node)
    record(calls, call, charge, "timeout" if reason else "error", reason, error, now)
    event = call.guarded.failed(error) if call.guarded is not None and error is not None and call.begun else None
    if event is not None:
        calls.incidents.record(event)
    exhausted = request.max_retries is not None and calls.repeated.exhausted(request)
    if exhausted or (call.demand.may_fail and not retries_left(account)):
        said = f"{named(call, capital=True)} failed and no retry is left: {said_by(call)}"
        stop = Stop("provider_error", "gate", said, "max_retries")
        mark(call, stop.reason)
        calls.incidents.report(stop)
        return Outcome(Decision.HALT, value, error, stop.reason, stop, call.node)
    if event is None:
        if reason is not None and error is not None and call.demand.may_fail:
            calls.incidents.report_overrun(reason, said_by(call))
        return Outcome(Decision.RETRY, value, error, reason, None, call.node)
    by_hook = stop_by_hook(event)
    said = event.event_type if by_hook is not None else reason or event.event_type
    mark(call, said)
    return Outcome(event.decision, value, error, said, by_hook, call.node)


def said_by(call: InFlightCall) -> str:
    """Return the text of the error that a call was recorded with; the code of the error's class runs only once."""
    ending = call.node.ending
    return error_text(None) if ending is None or ending.error is None else ending.error


def record(
    calls: ContextCalls,
    call: InFlightCall,
    charge: Charge,
    status: NodeStatus,
    stop_reason: str | None,
    error: BaseException | None,
    now: float,
) -> None:
    """Settle a call at the ledger, close its node, and report it to breaker and hooks; a hook may stop later calls."""
    demand, node, guarded = call.demand, call.node, call.guarded
    failed = status in ("error", "timeout")
    calls.ledger.settle(demand, charge, failed, now)
    if call.request.max_retries is not None:
        calls.repeated.record(call.request, failed=failed)
    retries = demand.wants[RETRIES] if failed or not demand.may_fail else 0
    raised = None if error is None else error_text(error)
    node.ending = Ending(now, status, charge.cost_nanos, charge.tokens, retries, stop_reason, raised, None)
    calls.in_flight.pop(node.number, None)
    witness = calls.incidents.witness
    if witness is not None:
        witness.call_ended(call.request, node, charge)
    if call.tracer is not None:
        call.tracer.ended(call, charge)
    if guarded is None:
        return
    if not call.begun:
        guarded.release()
        return
    said = guarded.settle(charge, error, succeeded=status == "ok", failed=failed and stop_reason != "timeout")
    if said is None:
        return
    event, account = said
    calls.incidents.record(event)
    stop, landing = stop_by_hook(event), demand.landing and account is calls.account
    if stop and calls.ledger.latch(account, stop, account.stops_work_only(landing=landing), calls.clock.monotonic()):
        calls.report_stop(stop)


def mark(call: InFlightCall, stop_reason: str, status: NodeStatus | None = None) -> None:
    """Write on the node of a call that has ended what was decided about it."""
    ending = call.node.ending
    if ending is not None:
        call.node.ending = replace(ending, stop_reason=stop_reason, status=status or ending.status)


# --- charges ----------------------------------------------------------------------------------------------------------


def measure(
    call: InFlightCall, value: Any, error: BaseException | None, meter: Meter[Any] | None
) -> tuple[Charge, BaseException | None]:
    """Return what a call cost, and what its meter raised, if it did; then all that was reserved is the charge."""
    if not call.begun:
        return Charge(), None
    if meter is None:
        tokens, cost = reserved_amounts(call)
        if call.charged_nanos is None:
            return Charge(tokens, cost, reported=NO_TOKENS), None
        return Charge(tokens, call.charged_nanos, reported=None if tokens is NO_TOKENS else NO_TOKENS), None
    try:
        return meter(value, error, call), None
    except BaseException as raised:  # the caller raises it again, once the call is settled
        logger().error("meter.failed", operation=call.node.name, error=shown(raised))
        return presumed_charge(*reserved_amounts(call)), raised


def reserved_amounts(call: InFlightCall) -> tuple[TokenUsage, int]:
    """Return the most that a call may have cost: what was reserved for it, or what it has reported if that is more."""
    amounts = dict(call.demand.reserved)
    tokens_in, tokens_out = amounts.get(INPUT_TOKENS, 0), amounts.get(OUTPUT_TOKENS, 0)
    tokens = TokenUsage(tokens_in, tokens_out) if tokens_in or tokens_out else NO_TOKENS
    return tokens, max(amounts.get(COST, 0), call.charged_nanos or 0)


class LateResult(msgspec.Struct, eq=False):
    """Waits, without a context, for the result of one abandoned call.

    Attributes:
        call: The call.
        booked: What was charged for it when it was abandoned.
        meter: Says what it cost.
        ledger: The ledger at which the charge is corrected.
        clock: The source of time.
        forget: Called at the end: the call is no longer under way in any sense.
    """

    call: InFlightCall
    booked: Charge
    meter: Meter[Any] | None
    ledger: Ledger
    clock: Clock
    forget: Callable[[], object]

    def arrive(self, value: Any, error: BaseException | None) -> None:
        """Take in the result, or the error, whenever it comes."""
        call, now = self.call, self.clock.monotonic()
        call.end_late()
        ending = call.node.ending
        charge, broken = replace(self.booked, presumed=NOTHING_PRESUMED), None
        if self.meter is not None or call.charged_nanos is not None:
            charge, broken = measure(call, value, error, self.meter)
            if broken is not None:  # nothing is reserved any more that could be charged
                charge = self.booked
        self.ledger.correct(call.demand, self.booked, charge, now)
        if ending is not None:
            said = shown(error) if error is not None else ending.error
            call.node.ending = replace(
                ending, cost_nanos=charge.cost_nanos, tokens=charge.tokens, error=said, late_result=value
            )
        self.forget()
        if broken is not None and not isinstance(broken, Exception):
            raise broken

    def finished(self, task: asyncio.Task[Any]) -> None:
        """Take in the result or error of work that went on in a task of its own."""
        if task.cancelled():
            self.arrive(None, asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.arrive(None, error)
        else:
            self.arrive(task.result(), None)


# --- sentences --------------------------------------------------------------------------------------------------------


def timed_out(call: InFlightCall) -> TimeoutError:
    """Say which time was over for a call."""
    if call.overrun == "deadline":
        said = "was stopped at the deadline" if call.begun else "had not begun at the deadline, and never will"
        return TimeoutError(f"{named(call)} {said}")
    took = format_duration(call.timeout or 0.0)
    said = f"did not finish within {took}" if call.begun else f"had not begun within {took}, and never will"
    return TimeoutError(f"{named(call)} {said}")


def named(call: InFlightCall, *, capital: bool = False) -> str:
    """Return what to call a call in a sentence, or at its beginning."""
    return call.node.name or f"{'A' if capital else 'a'} {KINDS[call.node.kind]}"
