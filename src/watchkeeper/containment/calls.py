"""Admits or refuses the calls of one context, lets them wait, asks the guards, and stops them.

The ledger says whether a call is admitted, the guards may still refuse it; then everything that was reserved for it is
given back. A call that has begun is in `ContextCalls.in_flight` until it is settled (`settlement`). Nothing here runs
the work of a call (`in_flight`), or knows the context that owns the calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import ReferenceType, ref

from watchkeeper.accounting.account import COST, STEPS, Account, heed_wall, retries_of, stop_of, usage_of, work_stop_of
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import (
    Admitted,
    Charge,
    CLOSED_UNDER_WAY,
    CallRequest,
    Exhausted,
    KINDS,
    NO_TOKENS,
    Waits,
    aborted,
    exhausted,
    expired,
)
from watchkeeper.accounting.ledger import INHERITED, Ledger, Refused, is_inherited, Waiter
from watchkeeper.containment.guards import ASKING, GuardedCall, Guards, open_questions, stop_by_hook
from watchkeeper.containment.in_flight import CURRENT_CALL, GRACE_SECONDS, NEVER, TIME_IS_OVER, InFlightCall, set_timer
from watchkeeper.containment.record import Outcome
from watchkeeper.containment.tracing import Tracer
from watchkeeper.containment.record import ContextSnapshot, Ending, Incidents, Node, NodeStatus, NodeStore
from watchkeeper.core.cancellation import Bell, CancellationToken
from watchkeeper.core.clock import Clock, Timer, running_loop
from watchkeeper.core.errors import ConfigurationError, EgressRefusedError, Stop, UnpricedModelError
from watchkeeper.accounting.stack import with_room
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.core.workers import BlockingCall, Patience, call_in_loop, run_in_worker
from watchkeeper.shield.decision import Decision, SafetyEvent

GLANCE_SECONDS: Final = 5.0
"""How often a context looks at the wall clock between calls, if its deadline was given as a moment."""

STATUS_OF_REFUSAL: Final[dict[str, NodeStatus]] = {"aborted": "aborted", "timeout": "timeout"}

CALL_STOPS: Final = frozenset(
    [
        "circuit_open",
        "provider_rate_limit",
        "provider_error",
        "policy_halt",
        "policy_quarantine",
        "hook_failed",
        "budget_exceeded",
        "retry_budget_exceeded",
    ]
)
"""Reasons that can stop one call and not the chain: the last two if a hint or an operation's own retries cause them."""


class RepeatedFailures:
    """Failures in a row of operations with a retry policy of their own; a success ends the row.

    An operation is known by its kind and name.
    """

    __slots__ = ("_failures", "_lock")

    def __init__(self) -> None:
        """Start without failures."""
        self._failures: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def exhausted(self, request: CallRequest) -> bool:
        """Return whether the operation has been repeated as often as it may be."""
        failures = self._failures.get((request.kind, request.operation_name), 0)
        return request.max_retries is not None and failures > request.max_retries

    def record(self, request: CallRequest, *, failed: bool) -> None:
        """Remember how an attempt went."""
        operation = (request.kind, request.operation_name)
        with self._lock:
            if failed:
                self._failures[operation] = self._failures.get(operation, 0) + 1
            else:
                self._failures.pop(operation, None)


def operation_exhausted(request: CallRequest) -> Stop:
    """Say that an operation has been repeated as often as its own policy allows."""
    name, retries = request.operation_name or f"A {KINDS[request.kind]} without a name", request.max_retries
    said = f"{name} has failed too often in a row: {retries} {'retry is' if retries == 1 else 'retries are'} allowed."
    return Stop("retry_budget_exceeded", "gate", said, "retry_policy_override", f"{retries}")


def begun_too_late(around: InFlightCall) -> Stop:
    """Say that a call would have begun inside one that overran its own time; a run that is started there is aborted."""
    name = around.node.name or f"a {KINDS[around.node.kind]}"
    return Stop("aborted", "gate", f"The time of {name}, inside which the call was made, is over.", "timeout_ms")


class Tree(NamedTuple):
    """What all contexts of one tree share."""

    clock: Clock
    ledger: Ledger
    numbers: Iterator[int]
    guards: Guards | None
    tracer: Tracer | None = None


class ContextCalls:
    """The calls of one context.

    Attributes:
        clock: The source of time.
        ledger: The ledger that keeps the reservations.
        nodes: The record of the calls.
        in_flight: Calls under way, and abandoned ones that are not over yet, by number.
        repeated: Failures of operations with a retry policy of their own.
        account: The account that pays.
        incidents: The list to which stops are reported.
        cancellation: Cancelled by an abort here or above, and when all time is over.
        closed: Whether nothing is admitted any more.
        aborted: Whether the context was aborted; closing is not aborting.
        snapshot_at_stop: The state at the moment of the first stop that was latched here.
        home: The context that owns the calls.
        tracer: Makes the spans of the calls; None without one.
        apart: Whether it was made inside another context, but is independent of it on purpose.
    """

    def __init__(
        self,
        tree: Tree,
        account: Account,
        cancellation: CancellationToken,
        incidents: Incidents,
        home: ReferenceType[Any],
    ) -> None:
        """Begin to admit calls."""
        self.home = home
        self.apart = False
        self.clock, self.ledger, self._numbers, self._guards, self.tracer = tree
        self.nodes = NodeStore(tree.clock)
        self.in_flight: dict[int, InFlightCall] = {}
        self.repeated = RepeatedFailures()
        self._priced = account.has_ceiling(COST)
        self._heeds_wall = account.wall is not None
        self.account = account
        self.cancellation = cancellation
        self.incidents = incidents
        self.closed = self.aborted = False
        self.snapshot_at_stop: ContextSnapshot | None = None
        self._alarm: Timer | None = None

    def check_open(self) -> None:
        """Raise a ConfigurationError once the context is closed, or in a process that inherited it by a fork."""
        if is_inherited(self.account):
            raise ConfigurationError(INHERITED.message)
        if self.closed:
            raise ConfigurationError("this ExecutionContext is closed; make calls before its end, or open a new one")

    # --- admission ----------------------------------------------------------------------------------------------------

    def admit(
        self, request: CallRequest, waiter: Waiter | None = None
    ) -> InFlightCall | Outcome[Any] | Waiter | GuardedCall:
        """Ask for admission: return the call, or its refusal, or what it has to wait for.

        That is a Waiter if others hold what it needs, or a GuardedCall if it is admitted and a hook that blocks is to
        be asked.

        Args:
            request: The request of the caller.
            waiter: The one that was returned before, if the call asks again.
        """
        guards, outer, now = self._guards, CURRENT_CALL.get(), self.clock.monotonic()
        if outer is not None and (overrun := outer.overrun_around(self.account)) is not None and not self.closed:
            return self._refuse(request, Refused(begun_too_late(overrun), latched=False), outer, now)
        if self._heeds_wall:
            heed_wall(self.account, self.clock, now)
        if waiter is not None:
            demand = waiter.demand
            demand.number = next(self._numbers)  # nodes are in the order of their numbers
            if self.closed:
                return self._refuse(request, Refused(CLOSED_UNDER_WAY, latched=False), outer, now)
        else:
            if self.closed:
                self.check_open()
            if guards and ASKING.get() and request.kind != "child" and guards.left_to_ask() is not guards:
                raise ConfigurationError(  # asked about itself, the hook would never end
                    "a hook called the ExecutionContext that asks it; give it a context of its own, by"
                    " `with contained(...)` or `with ExecutionContext(...)` inside the hook"
                )
            if self._priced and not request.estimate.known_cost:
                raise UnpricedModelError(
                    f"{request.operation_name or 'the call'} has no known price, but a cost ceiling holds;"
                    " give a price, or lift max_cost_usd"
                )
            if request.max_retries is not None and self.repeated.exhausted(request):
                refused = Refused(operation_exhausted(request), latched=False, concerns_call=True)
                return self._refuse(request, refused, outer, now)
            inside = outer.may_fail(self.account) if outer else None
            demand = Demand(self.account, request, inside, next(self._numbers))
        try:
            grant = self.ledger.admit(demand, now, waiter)
            if type(grant) is Admitted:
                if guards is None or request.kind == "child":
                    return self._begin(request, demand, outer, now)
                return self._ask_guards(guards, request, demand, outer, now)
        except BaseException:
            self.give_back(demand)
            raise
        if type(grant) is Refused:
            return self._refuse(request, grant, outer, now)
        if waiter is None:
            around = [call.demand for call in outer.chain()] if outer else []
            return Waiter(demand, (*around, *(each.demand for each in open_questions() if each.demand is not None)))
        if not waiter.last_chance or not isinstance(grant, Waits):
            return waiter
        stop = exhausted(grant, self.account, landing=request.phase == "landing")
        return self._refuse(request, Refused(stop, latched=False), outer, now)

    def phase_ends(self, request: CallRequest) -> float:
        """Return the monotonic instant at which the phase of a call is over."""
        return self.account.ends_at(landing=request.phase == "landing")

    def give_back(self, demand: Demand) -> None:
        """Release what an admitted call holds, and end its node, if an exception kept the call from beginning."""
        with_room(self._give_back, demand)

    def _give_back(self, demand: Demand) -> None:
        now, call = self.clock.monotonic(), self.in_flight.get(demand.number)
        if demand.is_held:
            self.ledger.settle(demand, Charge(), False, now)
        if call is not None:
            call.begun = False
            call.node.ending = Ending(now, "aborted", 0, NO_TOKENS, 0, "aborted", "never begun", None)
            self.in_flight.pop(demand.number, None)

    def _begin(self, request: CallRequest, demand: Demand, outer: InFlightCall | None, now: float) -> InFlightCall:
        """Record an admitted call, and set the time at which it is interrupted."""
        node = Node(demand.number, outer.node if outer else None, request.kind, request.operation_name, now)
        witness = self.incidents.witness
        call = InFlightCall(
            node,
            demand.granted,
            self.cancellation,
            request=request,
            demand=demand,
            outer=outer,
            home=self.home,
            witness=witness,
            tracer=self.tracer,
        )
        until = self.phase_ends(request) if demand.landing else self.account.work_until
        timeout = request.timeout
        if timeout is not None and now + timeout < until:
            until = now + timeout
            call.overrun = "call_timeout"
        if until != NEVER:
            call.timeout = until - now
            call.expires_at = until
        self.in_flight[node.number] = call
        nodes = self.nodes.newer
        nodes.append(node)
        if len(nodes) >= self.nodes.kept:
            self.nodes.rotate(nodes)
        if self.closed or self.aborted:  # since it was admitted
            call.interrupt("closed" if self.closed else "aborted")
        if witness is not None:
            witness.call_begins(node, demand)
        return call

    # --- guards -------------------------------------------------------------------------------------------------------

    def _ask_guards(
        self, guards: Guards, request: CallRequest, demand: Demand, outer: InFlightCall | None, now: float
    ) -> InFlightCall | Outcome[Any] | GuardedCall:
        """Ask pipeline and breaker about an admitted call; if they refuse it, its reservation is released."""
        try:
            guarded = guards.guard(request, demand, outer.nearest_guarded() if outer else None, next(self._numbers))
        except BaseException:
            self.ledger.refund(demand, self.clock.monotonic())
            raise
        seconds = guards.blocks_for[request.kind]
        if seconds is not None:
            guarded.answer_by = min(now + seconds, self.phase_ends(request))
            return guarded
        try:
            event = guarded.review()
        except BaseException:
            self.refund(guarded)
            raise
        return self.begin_guarded(guarded, event)

    def begin_guarded(
        self, guarded: GuardedCall, event: SafetyEvent | None, *, answered: bool = True
    ) -> InFlightCall | Outcome[Any]:
        """Begin an admitted call, or refuse it because of a hook, the breaker or the time.

        Args:
            guarded: The call.
            event: The pipeline's refusal, or None.
            answered: Whether the pipeline answered at all in the time it had.
        """
        request, outer, now = guarded.request, CURRENT_CALL.get(), self.clock.monotonic()
        if self._heeds_wall:
            heed_wall(self.account, self.clock, now)
        late = self._too_late(request, outer, now)
        if late is not None:
            self.refund(guarded)
            return self._refuse(request, late, outer, now)
        stop: Stop | None = None
        try:
            event = event if answered else guarded.unanswered()
            if event is None:
                stop = guarded.stop_by_breaker(self.clock)
        except BaseException:
            self.refund(guarded)
            raise
        if event is not None:
            self.refund(guarded)
            self.incidents.record(event)
            node = self._record_refusal(request, event.event_type, outer, now)
            stop = stop_by_hook(event)
            return Outcome(event.decision, None, None, event.event_type, stop, node, admitted=False, refusal=event)
        if stop is not None:
            self.refund(guarded)
            self.incidents.report(stop)
            return self._refuse(request, Refused(stop, latched=False), outer, now)
        try:
            call = self._begin(request, guarded.demand, outer, now)
        except BaseException:
            self.refund(guarded)
            raise
        call.guarded = guarded
        if guarded.guards.asked_about_egress:
            guarded.asks_egress = self.ask_egress
        return call

    def refund(self, guarded: GuardedCall) -> None:
        """Undo the admission of a call that does not run after all."""
        self.ledger.refund(guarded.demand, self.clock.monotonic())
        guarded.release()

    def _too_late(self, request: CallRequest, outer: InFlightCall | None, now: float) -> Refused | None:
        """Return why an admitted call may not begin any more, if something ended while it was asked about."""
        if self.closed:
            return Refused(CLOSED_UNDER_WAY, latched=False)
        if self.aborted:
            stop = stop_of(self.account) or aborted(self.cancellation.reason or "")
            return Refused(stop, latched=False)
        overrun = None if outer is None else outer.overrun_around(self.account)
        if overrun is not None:
            return Refused(begun_too_late(overrun), latched=False)
        landing = request.phase == "landing"
        ended = stop_of(self.account) if landing else work_stop_of(self.account)
        if ended is not None:
            return Refused(ended, latched=False)
        return None if now < self.account.ends_at(landing=landing) else self.time_is_over(landing=landing, now=now)

    def check_egress(self, url: str, method: str) -> Decision:
        """Ask the hooks about a request to the outside; nothing leaves once everything is stopped."""
        self.check_open()
        if stop_of(self.account) is not None:
            return Decision.HALT
        event = self.egress_event(url, method)
        return Decision.ALLOW if event is None else event.decision

    def egress_stop(self, url: str, method: str) -> Stop | None:
        """Return why a request to the outside may not leave; None if it may."""
        stop = stop_of(self.account)
        if stop is not None:
            return stop
        self.check_open()
        event = self.egress_event(url, method)
        return None if event is None else stop_of_egress(event)

    def egress_event(self, url: str, method: str) -> SafetyEvent | None:
        """Ask the hooks about a request of the code that runs here; return their refusal, or None."""
        inside = CURRENT_CALL.get()
        return self.ask_egress(inside.nearest_guarded() if inside else None, url, method)

    def ask_egress(self, inside: GuardedCall | None, url: str, method: str) -> SafetyEvent | None:
        """Ask the hooks about a request made inside a call, or outside of any; record their refusal."""
        guards = None if self._guards is None else self._guards.left_to_ask()
        event = None if guards is None else guards.egress(inside, url, method)
        if event is not None:
            self.incidents.record(event)
        return event

    # --- refusals -----------------------------------------------------------------------------------------------------

    def _refuse(self, request: CallRequest, refused: Refused, outer: InFlightCall | None, now: float) -> Outcome[Any]:
        """Record a refused call and return its outcome."""
        stop = refused.stop
        if stop is INHERITED:
            raise ConfigurationError(stop.message)
        node = self._record_refusal(request, stop.reason, outer, now)
        if refused.latched:
            self.report_stop(stop, refused.short)
            self.look_at_time()
        elif refused.concerns_call:
            self.incidents.report(stop, refused.short)
        return Outcome(Decision.HALT, None, None, stop.reason, stop, node, admitted=False)

    def _record_refusal(self, request: CallRequest, reason: str, outer: InFlightCall | None, now: float) -> Node:
        """Add the node of a refused call to the record."""
        ending = Ending(now, STATUS_OF_REFUSAL.get(reason, "halted"), 0, NO_TOKENS, 0, reason, None, None)
        parent = outer.node if outer else None
        node = Node(next(self._numbers), parent, request.kind, request.operation_name, now, ending)
        self.nodes.add_refused(node)
        witness = self.incidents.witness
        if witness is not None:
            witness.call_ended(request, node, None)
        return node

    # --- stops --------------------------------------------------------------------------------------------------------

    def report_stop(self, stop: Stop, short: Exhausted | None = None) -> None:
        """Report a stop that was latched, and keep the state at this moment."""
        self.incidents.report(stop, short, lasting=True)
        self.snapshot_at_stop = self.snapshot_at_stop or self.snapshot()

    def time_is_over(self, *, landing: bool, now: float) -> Refused:
        """Latch the end of the time; return the stop that holds, and whether it was latched by this."""
        account = self.account
        stop = expired(account, landing=landing)
        latched = self.ledger.latch(account, stop, account.stops_work_only(landing=landing), now)
        return Refused((stop_of(account) if landing else work_stop_of(account)) or stop, latched)

    def watch_time(self, until: float, *, is_late: bool = False) -> None:
        """Set an alarm for the end of the work, or of everything, so that it is noticed also between calls."""
        if self._alarm is not None:
            self._alarm.cancel()
        if until != NEVER:
            if self.account.wall is not None and not is_late:
                until = min(until, self.clock.monotonic() + GLANCE_SECONDS)
            self._alarm = self.clock.alarm(until, partial(_tell_late if is_late else _tell, ref(self)))

    def look_at_time(self) -> None:
        """Latch and report the end of the work, or of everything, once it has come; from any thread, at any time."""
        account, now = self.account, self.clock.monotonic()
        heed_wall(account, self.clock, now)
        if self.closed or now < account.work_until:
            return
        if now < account.deadline_at:
            over = self.time_is_over(landing=False, now=now)
            if over.latched:
                self.report_stop(over.stop)
            return
        stop = expired(account, landing=True)
        told = account.work_stop is not None and account.work_stop.reason == stop.reason
        try:
            if self.ledger.latch(account, stop, False, now) and not told:
                self.report_stop(stop)
        finally:  # also if a listener raises what nobody catches
            self.cancellation.cancel(TIME_IS_OVER)

    def tell_time(self, *, is_late: bool) -> None:
        """Do what is due at the end of the work, or of everything; the clock calls this.

        Calls that are interrupted at this moment come first, within their grace: each is settled before the stop is.
        """
        now = self.clock.monotonic()
        if self.closed:
            return
        self._heed_wall(now)
        if not is_late and any(not call.done and call.expires_at <= now for call in list(self.in_flight.values())):
            self.watch_time(now + 2 * GRACE_SECONDS, is_late=True)
            return
        self.look_at_time()
        if now < self.account.deadline_at:
            self.watch_time(self.account.work_until if now < self.account.work_until else self.account.deadline_at)

    def _heed_wall(self, now: float) -> None:
        """Interrupt what is under way beyond an end that the wall clock has brought nearer."""
        if self.account.wall is None:
            return
        heed_wall(self.account, self.clock, now)
        for call in list(self.in_flight.values()):
            if not call.done and now >= self.phase_ends(call.request) and call.expires_at > now:
                call.expires_at, call.overrun = now, "deadline"
                call.interrupt("deadline")

    def land(self, stop: Stop) -> None:
        """End the work; calls in flight go on."""
        if self.ledger.latch(self.account, stop, True, self.clock.monotonic()):
            self.report_stop(stop)

    def abort(self, reason: str) -> None:
        """Stop everything; called when the context's token is cancelled, by a caller or because the time is over."""
        now = self.clock.monotonic()
        heed_wall(self.account, self.clock, now)
        if reason == TIME_IS_OVER and now >= self.account.deadline_at:
            self.look_at_time()
            return
        stop = aborted(reason)
        self.aborted = self.incidents.ended = True
        latched = self.ledger.latch(self.account, stop, False, self.clock.monotonic())
        for call in list(self.in_flight.values()):
            call.interrupt("aborted")
        self.incidents.report(stop, lasting=True, from_above=self.incidents.ended_above)
        if latched:
            self.snapshot_at_stop = self.snapshot_at_stop or self.snapshot()

    def close(self) -> None:
        """Admit no more calls, interrupt those in flight, and give back their reservations."""
        self.closed = self.incidents.ended = True
        if self._alarm is not None:
            self._alarm.cancel()
        for call in list(self.in_flight.values()):
            call.interrupt("closed")
            call.cancel_abandoned()
        self.cancellation.cancel("the context around it was closed")
        self.ledger.close(self.account, self.clock.monotonic())

    def snapshot(self) -> ContextSnapshot:
        """Return the state at this moment."""
        account, metadata = self.account, self.incidents.metadata
        stop = stop_of(account)
        return ContextSnapshot(
            chain_id=metadata.chain_id,
            request_id=metadata.request_id,
            step_count=account.settled[STEPS],
            cost_usd_accumulated=account.settled[COST] / NANOS_PER_USD,
            retries_used=retries_of(account),
            aborted=self.aborted,
            abort_reason=self._last_refusal() if stop is None else stop.reason,
            elapsed_ms=(self.clock.monotonic() - account.opened_at) * 1000,
            nodes=self.nodes.view(self._running_nodes()),
            events=self.incidents.view(),
            nodes_dropped=self.nodes.dropped,
            events_dropped=self.incidents.dropped,
            usage=usage_of(account),
            stop=stop or work_stop_of(account),
            parent_id=self.incidents.parent_id,
            apart=self.apart,
            calls_refused=self.nodes.refused,
        )

    def _running_nodes(self) -> Iterator[Node]:
        for call in list(self.in_flight.values()):
            yield call.node

    def _last_refusal(self) -> str | None:
        """Return why the last call was stopped, if only that call was stopped and not the chain."""
        node = self.nodes.newest
        reason = node.ending.stop_reason if node is not None and node.ending is not None else None
        return reason if reason in CALL_STOPS and work_stop_of(self.account) is None else None


def stop_of_egress(event: SafetyEvent) -> Stop:
    """Return the stop for a request about which a hook said anything but ALLOW: it is not sent."""
    return stop_by_hook(event) or Stop("policy_halt", "hook", event.reason)


def check_leaving(url: str, method: str) -> None:
    """Ask the hooks about a request of Watchkeeper's own clients before it is sent; each redirect is one of its own.

    Inside a call, the hooks of its context are asked, in whatever function or thread the request is made, as long as
    the thread has the caller's context variables. What sends by other means is not seen here: docs/hooks.md lists it.

    Args:
        url: The address of the request.
        method: The HTTP method of the request.

    Raises:
        EgressRefusedError: If a hook does not allow it.
    """
    inside = CURRENT_CALL.get()
    guarded = None if inside is None else inside.nearest_guarded()
    if guarded is None or guarded.asks_egress is None:
        return
    event = guarded.asks_egress(guarded, url, method)
    if event is not None:
        stop = stop_of_egress(event)
        raise EgressRefusedError(stop.message, reason=stop.reason)


def _tell(found: ref[ContextCalls]) -> None:
    """Tell a context that its time is over, if it still exists: a clock keeps no context alive."""
    calls = found()
    if calls is not None:
        calls.tell_time(is_late=False)


def _tell_late(found: ref[ContextCalls]) -> None:
    """Tell the context once more that its time is over, after the grace of its interrupted calls."""
    calls = found()
    if calls is not None:
        calls.tell_time(is_late=True)


# --- waiting ----------------------------------------------------------------------------------------------------------
# For its turn a call waits until the ledger notifies it to ask again, its phase is over, or its context is aborted or
# closed; it holds nothing meanwhile. Calls are asked in the order in which they came, but one that fits may pass one
# that does not. Hooks that block (a person who is asked, a server that decides) are asked on a worker thread; nobody
# waits beyond their own time, the end of the call's phase, or an abort. An answer that comes later is dropped, and what
# it counted is given back. Each wait exists twice: on a running loop, which goes on meanwhile, and blocking the thread.


async def wait_for_turn(
    calls: ContextCalls, request: CallRequest, waiter: Waiter
) -> InFlightCall | Outcome[Any] | GuardedCall:
    """Wait on the running loop until the call is admitted or refused."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def notify(_: object = None) -> None:
        call_in_loop(loop, woken.set)
        if loop.is_closed():  # nobody asks again: those behind it must not wait for that
            calls.ledger.withdraw(waiter, calls.clock.monotonic())

    waiter.notify = notify
    until = calls.phase_ends(request)
    unlink = calls.cancellation.on_cancel(notify)
    try:
        while isinstance(admitted := calls.admit(request, waiter), Waiter):
            timer = None if until == NEVER else set_timer(calls.clock, until, woken.set)
            try:
                await woken.wait()
            finally:
                if timer is not None:
                    timer.cancel()
            woken.clear()
        return admitted
    finally:
        unlink()
        calls.ledger.withdraw(waiter, calls.clock.monotonic())


def block_for_turn(
    calls: ContextCalls, request: CallRequest, waiter: Waiter
) -> InFlightCall | Outcome[Any] | GuardedCall:
    """Block this thread until the call is admitted or refused.

    The thread of a running loop is never blocked, because the call that holds the reservation may need this loop to
    release it. On such a thread, the call is refused if it does not fit now.
    """
    clock = calls.clock
    waiter.last_chance = running_loop() is not None
    woken = Bell()
    waiter.notify = woken.set
    until = calls.phase_ends(request)
    unlink = calls.cancellation.on_cancel(lambda _: woken.set())
    try:
        while isinstance(admitted := calls.admit(request, waiter), Waiter):
            clock.wait(woken, None if until == NEVER else until - clock.monotonic())
            woken.clear()
        return admitted
    finally:
        unlink()
        calls.ledger.withdraw(waiter, clock.monotonic())


async def ask_hooks(calls: ContextCalls, guarded: GuardedCall) -> InFlightCall | Outcome[Any]:
    """Ask without blocking the running loop; return the call, or its refusal."""
    patience = Patience(lambda: guarded.answer_by, calls.clock, calls.cancellation)
    event, answered = None, True
    try:
        event = await run_in_worker(guarded.review, on_late=guarded.answered_late, patience=patience)
    except TimeoutError:  # a hook that raises one has answered: the pipeline says what that means
        answered = False
    except BaseException:
        calls.refund(guarded)
        raise
    return calls.begin_guarded(guarded, event, answered=answered)


def block_for_hooks(calls: ContextCalls, guarded: GuardedCall) -> InFlightCall | Outcome[Any]:
    """Ask and block this thread; return the call, or its refusal."""
    asking = BlockingCall(guarded.review)
    unlink = calls.cancellation.on_cancel(lambda _: asking.wake())
    try:
        asking.wait(guarded.answer_by - calls.clock.monotonic(), calls.clock)
        left = asking.leave()
        event = None if left else asking.result()
    except BaseException:
        if asking.leave():
            asking.when_late(guarded.answered_late)
        calls.refund(guarded)
        raise
    finally:
        unlink()
    if left:
        asking.when_late(guarded.answered_late)
    return calls.begin_guarded(guarded, event, answered=not left)
