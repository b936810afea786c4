"""How one context's calls come in: admitted, past the guards, or refused; and what stops them.

`admission.decide` says whether a call is admitted, the guards may still turn it back; then everything that was reserved
for it is given back. How calls go out again is in `leaving`. A passage knows nothing of how the work is run (`flight`
for coroutines, `blocking` for threads) and nothing of the context that owns it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from watchkeeper.accounting.account import (
    COST,
    STEPS,
    Account,
    retries_of,
    stop_of,
    usage_of,
    work_stop_of,
)
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import NO_TOKENS, CallRequest
from watchkeeper.accounting.ledger import Ledger, Refused, Waiter
from watchkeeper.accounting.refusals import (
    CLOSED_UNDER_WAY,
    KINDS,
    Admitted,
    Waits,
    aborted,
    exhausted,
    expired,
)
from watchkeeper.containment.guards import Entry, Guards, circuit_open, said_by_hook
from watchkeeper.containment.in_flight import CURRENT, NEVER, Flight, Outcome, running_loop, set_timer
from watchkeeper.containment.record import ContextSnapshot, Ending, Incidents, Node, NodeStatus, NodeStore
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import Clock, Timer
from watchkeeper.core.errors import ConfigurationError, Stop, UnpricedModelError
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.core.workers import BlockingCall, run_in_worker
from watchkeeper.shield.decision import Decision, SafetyEvent

T = TypeVar("T")


def operation_exhausted(request: CallRequest) -> Stop:
    """Say that an operation has been repeated as often as its own policy allows."""
    name, retries = request.operation_name or f"A {KINDS[request.kind]} without a name", request.max_retries
    said = f"{name} has failed too often in a row: {retries} {'retry is' if retries == 1 else 'retries are'} allowed."
    return Stop("retry_budget_exceeded", "gate", said, "retry_policy_override", f"{retries}")


# --- operations -----------------------------------------------------------------------------------------------------
# How often operations with a retry policy of their own have failed (seed: execution-context, WrapOptions).
#
# An operation is known by its kind and name. Only failures in a row count: a success ends the attempt at it.


class Operations:
    """Failures in a row, by operation."""

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


STATUS_OF_REFUSAL: Final[dict[str, NodeStatus]] = {"aborted": "aborted", "timeout": "timeout"}


CALL_STOPS: Final = (
    "circuit_open",
    "provider_rate_limit",
    "provider_error",
    "policy_halt",
    "policy_quarantine",
    "hook_failed",
)
"""Reasons that stop one call and not the chain."""


class Tree(NamedTuple):
    """What all contexts of one tree share."""

    clock: Clock
    ledger: Ledger
    numbers: Iterator[int]
    guards: Guards | None


class Passage:
    """The calls of one context.

    Attributes:
        clock: Where time comes from.
        ledger: Where reservations are kept.
        store: Its nodes.
        flights: Calls under way, and those that were left behind and are not over yet.
        operations: Failures of operations with a retry policy of their own.
        account: Who pays.
        incidents: Where stops are reported.
        cancellation: Cancelled by an abort here or above.
        closed: Whether nothing may enter any more.
        aborted: Whether somebody aborted; closing is not aborting.
        snapshot_at_stop: The state at the moment of the first stop that was latched here.
    """

    __slots__ = (
        "_guards",
        "_numbers",
        "_priced",
        "aborted",
        "account",
        "cancellation",
        "clock",
        "closed",
        "flights",
        "incidents",
        "ledger",
        "operations",
        "snapshot_at_stop",
        "store",
    )

    def __init__(self, tree: Tree, account: Account, cancellation: CancellationToken, incidents: Incidents) -> None:
        """Open for calls."""
        self.clock, self.ledger, self._numbers, self._guards = tree
        self.store = NodeStore(tree.clock)
        self.flights: dict[int, Flight] = {}
        self.operations = Operations()
        self._priced = account.has_ceiling(COST)
        self.account = account
        self.cancellation = cancellation
        self.incidents = incidents
        self.closed = False
        self.aborted = False
        self.snapshot_at_stop: ContextSnapshot | None = None

    def check_open(self) -> None:
        """Raise a ConfigurationError once the context is closed."""
        if self.closed:
            raise ConfigurationError("this ExecutionContext is closed; open a new one, or close it later")

    # --- in -----------------------------------------------------------------------------------------------------------

    def enter(self, request: CallRequest) -> Flight | Outcome[Any] | Waiter | Entry:
        """Ask for admission: return the call, or its refusal, or what it has to wait for.

        That is a Waiter if others hold what it needs, or an Entry if it is admitted and a hook that blocks is to be
        asked.
        """
        if self.closed:
            self.check_open()
        if self._guards is not None:
            self._guards.check_caller()
        if self._priced and not request.estimate.known_cost:
            raise UnpricedModelError(
                f"{request.operation_name or 'the call'} has no known price, but a cost ceiling holds; give a price, or"
                " lift max_cost_usd"
            )
        outer = CURRENT.get()
        now = self.clock.monotonic()
        if request.max_retries is not None and self.operations.exhausted(request):
            return self._refuse(request, Refused(operation_exhausted(request), latched=False), outer, now)
        demand = Demand(self.account, request, outer.may_fail(self.account) if outer else None)
        grant = self.ledger.admit(demand, now)
        if type(grant) is Admitted:
            if self._guards is None:
                return self._begin(request, demand, outer, now)
            return self._pass_guards(self._guards, request, demand, outer, now)
        if type(grant) is Refused:
            return self._refuse(request, grant, outer, now)
        return Waiter(demand, outer.holding() if outer else ())

    def ask_again(self, request: CallRequest, waiter: Waiter) -> Flight | Outcome[Any] | Entry | None:
        """Ask for admission on behalf of a call that waits; None if it has to go on waiting."""
        outer = CURRENT.get()
        now = self.clock.monotonic()
        if self.closed:
            return self._refuse(request, Refused(CLOSED_UNDER_WAY, latched=False), outer, now)
        grant = self.ledger.admit(waiter.demand, now, waiter)
        if type(grant) is Admitted:
            if self._guards is None:
                return self._begin(request, waiter.demand, outer, now)
            return self._pass_guards(self._guards, request, waiter.demand, outer, now)
        if type(grant) is Refused:
            return self._refuse(request, grant, outer, now)
        if waiter.last_chance and isinstance(grant, Waits):
            return self._refuse(
                request,
                Refused(exhausted(grant, self.account, landing=request.phase == "landing"), latched=False),
                outer,
                now,
            )
        return None

    def give_up(self, waiter: Waiter) -> None:
        """Stop waiting; harmless if the call has entered or was refused."""
        self.ledger.withdraw(waiter, self.clock.monotonic())

    def phase_ends(self, request: CallRequest) -> float:
        """Return the instant at which the phase of a call is over."""
        account = self.account
        return account.deadline_at - account.kept_seconds if request.phase == "landing" else account.work_until

    # --- past the guards ----------------------------------------------------------------------------------------------

    def _pass_guards(
        self, guards: Guards, request: CallRequest, demand: Demand, outer: Flight | None, now: float
    ) -> Flight | Outcome[Any] | Entry:
        """Ask pipeline and breaker about a call that is admitted; whatever they refuse gives everything back."""
        if request.kind == "child":
            return self._begin(request, demand, outer, now)
        entry = guards.entry(request, demand, outer.guarded() if outer else None, next(self._numbers))
        seconds = guards.blocks_for(request)
        if seconds is not None:
            entry.answer_by = min(now + seconds, self.phase_ends(request))
            return entry
        try:
            event = entry.review()
        except BaseException:
            self.turn_back(entry)
            raise
        return self.let_in(entry, event)

    def let_in(self, entry: Entry, event: SafetyEvent | None, *, answered: bool = True) -> Flight | Outcome[Any]:
        """Begin a call that was admitted, or refuse it after all.

        Args:
            entry: The call.
            event: What the pipeline said against it, if it did.
            answered: Whether the pipeline answered at all in the time it had.
        """
        request, outer, now = entry.request, CURRENT.get(), self.clock.monotonic()
        late = self._too_late(request, now)
        if late is not None:
            self.turn_back(entry)
            return self._refuse(request, late, outer, now)
        event = event if answered else entry.unanswered()
        if event is not None:
            self.turn_back(entry)
            self.incidents.record(event)
            refused = self._refuse_call(request, event.event_type, outer, now)
            return Outcome(event.decision, None, None, event.event_type, said_by_hook(event), refused, admitted=False)
        breaker = entry.pass_breaker()
        if breaker is not None:
            self.turn_back(entry)
            stop = circuit_open(breaker)
            self.incidents.report(stop)
            return self._refuse(request, Refused(stop, latched=False), outer, now)
        flight = self._begin(request, entry.demand, outer, now)
        flight.entry = entry
        return flight

    def turn_back(self, entry: Entry) -> None:
        """Undo the admission of a call that does not run after all."""
        self.ledger.refund(entry.demand, self.clock.monotonic())
        entry.turn_back()

    def _too_late(self, request: CallRequest, now: float) -> Refused | None:
        """Return why an admitted call may not begin any more, if asking about it took too long."""
        if self.closed:
            return Refused(CLOSED_UNDER_WAY, latched=False)
        if self.cancellation.is_cancelled:
            stop = stop_of(self.account) or aborted(self.cancellation.reason or "")
            return Refused(stop, latched=False)
        if now < self.phase_ends(request):
            return None
        return self.time_is_over(landing=request.phase == "landing", now=now)

    def check_egress(self, url: str, method: str) -> Decision:
        """Ask the hooks about a request to the outside; nothing leaves once everything is stopped."""
        self.check_open()
        if stop_of(self.account) is not None:
            return Decision.HALT
        if self._guards is None:
            return Decision.ALLOW
        inside = CURRENT.get()
        event = self._guards.egress(inside.guarded() if inside else None, url, method)
        if event is None:
            return Decision.ALLOW
        self.incidents.record(event)
        return event.decision

    def _begin(self, request: CallRequest, demand: Demand, outer: Flight | None, now: float) -> Flight:
        """Record an admitted call, and set the time at which it is interrupted."""
        node = Node(next(self._numbers), outer.node if outer else None, request.kind, request.operation_name, now)
        until, timeout = self.phase_ends(request), request.timeout
        own = timeout is not None and now + timeout < until
        if own and timeout is not None:
            until = now + timeout
        flight = Flight(node, outer, demand, request, self.cancellation)
        if until != NEVER:
            flight.timeout = until - now
            flight.expires_at = until
        if own:
            flight.overrun = "call_timeout"
        self.flights[node.number] = flight
        self.store.add(node)
        if self.closed or self.cancellation.is_cancelled:  # since it was admitted
            flight.interrupt("closed" if self.closed else "aborted")
        return flight

    def _refuse(self, request: CallRequest, refused: Refused, outer: Flight | None, now: float) -> Outcome[Any]:
        """Record a call that may not run."""
        stop = refused.stop
        node = self._refuse_call(request, stop.reason, outer, now)
        if refused.latched:
            self.stopped(stop)
        return Outcome(Decision.HALT, None, None, stop.reason, stop, node, admitted=False)

    def _refuse_call(self, request: CallRequest, reason: str, outer: Flight | None, now: float) -> Node:
        """Keep the node of a call that may not run."""
        node = Node(next(self._numbers), outer.node if outer else None, request.kind, request.operation_name, now)
        status = STATUS_OF_REFUSAL.get(reason, "halted")
        node.ending = Ending(now, status, 0, NO_TOKENS, 0, reason, None, None)
        self.store.add(node)
        return node

    # --- stops --------------------------------------------------------------------------------------------------------

    def stopped(self, stop: Stop) -> None:
        """Report a stop that was latched, and keep the state at this moment."""
        self.incidents.report(stop, lasting=True)
        self._keep_snapshot()

    def _keep_snapshot(self) -> None:
        if self.snapshot_at_stop is None:
            self.snapshot_at_stop = self.snapshot()

    def time_is_over(self, *, landing: bool, now: float) -> Refused:
        """Latch the end of the time; return the stop that holds, and whether it was latched by this."""
        account = self.account
        stop = expired(account, landing=landing)
        latched = self.ledger.latch(account, stop, account.goes_on(landing=landing), now)
        return Refused((stop_of(account) if landing else work_stop_of(account)) or stop, latched)

    def land(self, stop: Stop) -> None:
        """End the work; what is under way goes on."""
        if self.ledger.latch(self.account, stop, True, self.clock.monotonic()):
            self.stopped(stop)

    def abort(self, reason: str) -> None:
        """Stop everything; called when the context's token is cancelled."""
        stop = aborted(reason)
        self.aborted = self.incidents.ended = True
        latched = self.ledger.latch(self.account, stop, False, self.clock.monotonic())
        for flight in list(self.flights.values()):
            flight.interrupt("aborted")
        self.incidents.report(stop, lasting=True, from_above=self.incidents.ended_above)
        if latched:
            self._keep_snapshot()

    def close(self) -> None:
        """Let nothing in any more, interrupt what is under way, and give back what is held."""
        self.closed = self.incidents.ended = True
        for flight in list(self.flights.values()):
            flight.interrupt("closed")
            flight.let_go()
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
            nodes=self.store.view([flight.node for flight in list(self.flights.values())]),
            events=self.incidents.view(),
            nodes_dropped=self.store.dropped,
            events_dropped=self.incidents.dropped,
            usage=usage_of(account),
            stop=stop or work_stop_of(account),
        )

    def _last_refusal(self) -> str | None:
        """Return why the last call was stopped, if one call was and not the chain."""
        node = self.store.newest
        reason = node.ending.stop_reason if node is not None and node.ending is not None else None
        return reason if reason in CALL_STOPS else None


# --- waiting --------------------------------------------------------------------------------------------------------
# Waiting for one's turn: a call that fits only once others have given back what they hold.
#
# It waits until it is told to ask again, its phase is over, or its context is aborted or closed; it holds nothing while
# it waits. Calls are asked in the order in which they came, but one that fits may pass one that does not. The ledger
# makes sure that somebody is always told if nobody else could give anything back.


async def wait_turn(
    passage: Passage, request: CallRequest, waiter: Waiter, clock: Clock
) -> Flight | Outcome[Any] | Entry:
    """Wait on the running loop until the call is admitted or refused."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def notify(_: object = None) -> None:
        with suppress(RuntimeError):  # a loop that was closed has nobody left to wake
            loop.call_soon_threadsafe(woken.set)

    timer: Timer | None = None

    def ring() -> None:
        nonlocal timer
        timer = None
        woken.set()

    waiter.notify = notify
    until = passage.phase_ends(request)
    unlink = passage.cancellation.on_cancel(notify)
    try:
        while (entered := passage.ask_again(request, waiter)) is None:
            if timer is None and until != NEVER:
                timer = set_timer(clock, until, ring)  # again, if it rang a moment too early
            await woken.wait()
            woken.clear()
        return entered
    finally:
        unlink()
        if timer is not None:
            timer.cancel()
        passage.give_up(waiter)


def block_for_turn(
    passage: Passage, request: CallRequest, waiter: Waiter, clock: Clock
) -> Flight | Outcome[Any] | Entry:
    """Block this thread until the call is admitted or refused.

    The thread of a running loop is never blocked: whoever holds what is wanted may need that very loop to give it back.
    There the call is refused if it does not fit now.
    """
    waiter.last_chance = running_loop() is not None
    woken = threading.Event()
    waiter.notify = woken.set
    until = passage.phase_ends(request)
    unlink = passage.cancellation.on_cancel(lambda _: woken.set())
    try:
        while (entered := passage.ask_again(request, waiter)) is None:
            clock.wait(woken, None if until == NEVER else until - clock.monotonic())
            woken.clear()
        return entered
    finally:
        unlink()
        passage.give_up(waiter)


# --- asking ---------------------------------------------------------------------------------------------------------
# Waiting for hooks that block: a person who is asked, a server that decides.
#
# They are asked on a worker thread; a running loop goes on meanwhile. Nobody waits beyond the hooks' own time, the end
# of the call's phase, or an abort. An answer that comes after that is dropped, and what it counted is given back.


async def ask_aside(passage: Passage, entry: Entry, clock: Clock) -> Flight | Outcome[Any]:
    """Ask without blocking the running loop; return the call, or its refusal."""
    loop = asyncio.get_running_loop()
    asking: asyncio.Task[SafetyEvent | None] = loop.create_task(run_in_worker(entry.review, on_late=entry.came_late))

    def give_up(_: str) -> None:
        with suppress(RuntimeError):  # a loop that was closed has nobody left who waits
            loop.call_soon_threadsafe(asking.cancel)

    timer = set_timer(clock, entry.answer_by, lambda: give_up(""))
    unlink = passage.cancellation.on_cancel(give_up)
    try:
        await asyncio.wait((asking,))
        event = None if asking.cancelled() else asking.result()
    except BaseException:
        asking.cancel()
        passage.turn_back(entry)
        raise
    finally:
        unlink()
        timer.cancel()
    return passage.let_in(entry, event, answered=not asking.cancelled())


def block_for_answer(passage: Passage, entry: Entry, clock: Clock) -> Flight | Outcome[Any]:
    """Ask and block this thread; return the call, or its refusal."""
    asking = BlockingCall(entry.review)
    unlink = passage.cancellation.on_cancel(lambda _: asking.wake())
    try:
        asking.wait(entry.answer_by - clock.monotonic(), clock)
        left = asking.leave()
        event = None if left else asking.result()
    except BaseException:
        if asking.leave():
            asking.when_late(entry.came_late)
        passage.turn_back(entry)
        raise
    finally:
        unlink()
    if left:
        asking.when_late(entry.came_late)
    return passage.let_in(entry, event, answered=not left)
