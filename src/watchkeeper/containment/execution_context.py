"""The gate: every model call, tool call and child run passes an `ExecutionContext` (seed: execution-context).

It admits or stops before anything is spent, in one atomic decision; runs the work with its time-out and cancellation;
settles what it really cost, whatever became of it; and records it. A stop latches: after it nothing runs but a landing
turn. Contexts form a tree: a child has ceilings of its own and is bound by those above it. A context that is closed
leaves nothing behind. The decision itself is made in `admission.decide`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from types import CoroutineType, TracebackType
from typing import Any, Final, NamedTuple, TypeVar, cast

from watchkeeper.containment.account import COST, RETRIES, STEPS, Account
from watchkeeper.containment.admission import Admitted, Waits
from watchkeeper.containment.call import CallRequest, Meter, Outcome, Work
from watchkeeper.containment.config import ChainMetadata, ExecutionConfig
from watchkeeper.containment.decision import Decision
from watchkeeper.containment.demand import Demand
from watchkeeper.containment.estimate import NO_TOKENS, Charge
from watchkeeper.containment.figures import (
    budget_status_of,
    charge_at_most,
    retries_left,
    retries_of,
    stop_of,
    usage_of,
    work_stop_of,
)
from watchkeeper.containment.flight import CURRENT, NEVER, Flight, Interruption, LeftBehindError, fly
from watchkeeper.containment.late import LateResult, measure
from watchkeeper.containment.ledger import Ledger, MemoryLedger, Refused, Waiter
from watchkeeper.containment.nodes import Ending, Node, NodeStatus, NodeStore
from watchkeeper.containment.safety_event import SafetyEvent
from watchkeeper.containment.snapshot import ContextSnapshot
from watchkeeper.containment.stops import aborted, exhausted, expired
from watchkeeper.core.budget import BudgetStatus
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.deadline import Deadline
from watchkeeper.core.errors import ConfigurationError, UnpricedModelError
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.core.limits import Limits
from watchkeeper.core.logs import logger
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.stop import Stop
from watchkeeper.core.usage import NANOS_PER_USD, Usage

T = TypeVar("T")

COUNTER_BITS: Final = 48
CLOSED: Final = "this ExecutionContext is closed; open a new one, or close it later"
CLOSED_UNDER_WAY: Final = Stop("aborted", "gate", "The context was closed while the call was under way.")


class ExecutionContext:
    """The gate of one run, chain or request.

    Use it as a context manager, or close it yourself.
    """

    def __init__(
        self,
        config: ExecutionConfig | Limits,
        metadata: ChainMetadata | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
        on_event: Callable[[SafetyEvent], object] | None = None,
    ) -> None:
        """Open a context; its deadline starts to run now.

        Args:
            config: What the chain may spend: the seed's configuration (hard stops) or `Limits` (with landing).
            metadata: Who the chain belongs to; fresh ids if None.
            clock: Where time comes from.
            ids: Where ids come from.
            on_event: Told of every stop, on the thread that found it.
        """
        limits = config.as_limits() if isinstance(config, ExecutionConfig) else config
        self.metadata = metadata or ChainMetadata(str(ids.uuid()), str(ids.uuid()))
        self._clock = clock
        self._ids = ids
        self._on_event = on_event
        self._ledger: Ledger = MemoryLedger()
        self._numbers = itertools.count(ids.uuid().int >> COUNTER_BITS << COUNTER_BITS)
        self._open(limits, None, "")

    _account: Account
    cancellation: CancellationToken
    deadline: Deadline | None
    work_deadline: Deadline | None

    def _open(self, limits: Limits, parent: ExecutionContext | None, name: str) -> None:
        """Set up what a root and a child have in common."""
        clock = self._clock
        self.limits = limits
        self._account = Account(limits, parent._account if parent else None, name)
        self._store = NodeStore(clock)
        self._flights: dict[int, Flight] = {}
        self._events: list[SafetyEvent] = []
        self._closed = False
        self._aborted = False
        self.snapshot_at_stop: ContextSnapshot | None = None
        self.cancellation = CancellationToken(parent.cancellation if parent else None)
        self._start_clocks(parent)
        self._priced = self._account.has_ceiling(COST)
        self._ledger.open(self._account)
        self._unlink = self.cancellation.on_cancel(self._cancelled)

    def _start_clocks(self, parent: ExecutionContext | None) -> None:
        """Fix, once, the instants at which work and everything is over: the own ones, or the parent's if earlier."""
        account, clock, limits = self._account, self._clock, self.limits
        now = account.opened_at = clock.monotonic()
        self.deadline = limits.start(clock)
        if isinstance(limits.deadline, timedelta):
            account.deadline_at = now + limits.deadline.total_seconds()
        elif self.deadline is not None:
            account.deadline_at = self.deadline.instant(clock)
        if parent is not None and parent._account.work_until < account.deadline_at:
            account.deadline_at = parent._account.work_until
            self.deadline = parent.work_deadline
        self.work_deadline = self.deadline
        account.work_until = account.deadline_at
        if limits.landing is not None and self.deadline is not None:
            total = max(account.deadline_at - now, 0.0)
            kept = limits.landing.seconds(total)
            account.work_until -= kept
            self.work_deadline = Deadline(self.deadline.at - timedelta(seconds=kept))

    def child(self, limits: Limits, name: str = "") -> ExecutionContext:
        """Open a context below this one.

        It has ceilings of its own and is bound by all those above it; what it spends counts here too. Stops, aborts and
        the end of work here reach it. Close it, so that what it kept for its landing turn comes back.

        Args:
            limits: Its own ceilings.
            name: A label, used in the sentences of its stops.
        """
        if self._closed:
            raise ConfigurationError(CLOSED)
        child = object.__new__(ExecutionContext)
        child.metadata = self.metadata
        child._clock = self._clock
        child._ids = self._ids
        child._on_event = self._on_event
        child._ledger = self._ledger
        child._numbers = self._numbers
        child._open(limits, self, name)
        return child

    # --- calls --------------------------------------------------------------------------------------------------------

    async def acall(self, request: CallRequest, work: Work[T], meter: Meter[T] | None = None) -> Outcome[T]:
        """Pass an async call through the gate.

        Args:
            request: What is asked.
            work: Run in this very task if the call is admitted; given its ticket.
            meter: Says what the call cost, from its value or its error; called exactly once for every admitted call,
                also a failed or cancelled one. Without one, all that was reserved is charged.

        Returns:
            What came of it. Exceptions of the work are in it; BaseExceptions (a cancelled task) are raised once the
            call is settled.

        Raises:
            ConfigurationError: If the context is closed.
            UnpricedModelError: If the call's price is not known and a cost ceiling holds.
        """
        now = self._clock.monotonic()
        entered = self._enter(request, now)
        if type(entered) is Demand:
            entered = await self._wait(request, entered)
        if type(entered) is Outcome:
            return entered
        flight = cast("Flight", entered)
        value: T | None = None
        error: BaseException | None = None
        mark = CURRENT.set(flight)
        try:
            begun = work(flight)
            running: Coroutine[Any, Any, T] = begun if isinstance(begun, CoroutineType) else _as_coroutine(begun)
            try:
                waited = running.send(None)
            except StopIteration as returned:
                value = returned.value
            else:
                value = await fly(flight, running, waited, self._clock)
        except LeftBehindError:
            return self._leave_behind(flight, meter)
        except BaseException as raised:
            error = raised
        finally:
            CURRENT.reset(mark)
        return self._finish(flight, value, error, meter)

    def _enter(self, request: CallRequest, now: float) -> Flight | Demand | Outcome[Any]:
        """Ask for admission once; return the call, its refusal, or the demand of a call that has to wait."""
        if self._closed:
            raise ConfigurationError(CLOSED)
        estimate = request.estimate
        if self._priced and not estimate.known_cost:
            raise UnpricedModelError(
                f"{request.operation_name or 'the call'} has no known price, but a cost ceiling holds; give a price, or"
                " lift max_cost_usd"
            )
        outer = CURRENT.get()
        demand = Demand(self._account, request, covered=outer is not None and outer.covers_retry())
        grant = self._ledger.admit(demand, now)
        if type(grant) is Admitted:
            return self._begin(request, demand, outer, now)
        if type(grant) is Refused:
            return self._refuse(request, grant, outer, now)
        return demand

    def _begin(self, request: CallRequest, demand: Demand, outer: Flight | None, now: float) -> Flight:
        """Record an admitted call, and set the time at which it is interrupted."""
        node = Node(next(self._numbers), outer.node if outer else None, request.kind, request.operation_name, now)
        account = self._account
        until = account.deadline_at if demand.landing else account.work_until
        overrun = False
        timeout = request.timeout
        if timeout is not None and now + timeout < until:
            until, overrun = now + timeout, True
        flight = Flight(node, outer, demand, None if until == NEVER else until - now, self.cancellation)
        flight.expires_at = until
        if overrun:
            flight.overrun = "call_timeout"
        self._flights[node.number] = flight
        self._store.add(node)
        if self.cancellation.is_cancelled:  # aborted between admission and the line above
            flight.interrupt("closed" if self._closed else "aborted")
        return flight

    def _refuse(self, request: CallRequest, refused: Refused, outer: Flight | None, now: float) -> Outcome[Any]:
        """Record a call that may not run."""
        stop = refused.stop
        status: NodeStatus = STATUS_OF_REFUSAL.get(stop.reason, "halted")
        node = Node(next(self._numbers), outer.node if outer else None, request.kind, request.operation_name, now)
        node.ending = Ending(now, status, 0, NO_TOKENS, 0, stop.reason, None, None)
        self._store.add(node)
        if refused.latched:
            self._stopped(stop)
        return Outcome(Decision.HALT, stop_reason=stop.reason, stop=stop, node=node, admitted=False)

    async def _wait(self, request: CallRequest, demand: Demand) -> Flight | Outcome[Any]:
        """Wait until others have given back enough, or nothing can come back any more, or time is over."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def notify(_: object = None) -> None:
            with suppress(RuntimeError):  # a loop that was closed has nobody left to wake
                loop.call_soon_threadsafe(woken.set)

        outer = CURRENT.get()
        waiter = Waiter(demand, outer.holding() if outer else (), notify)
        until = self._account.deadline_at if demand.landing else self._account.work_until
        timer = self._clock.call_at(until, woken.set) if until != NEVER else None
        unlink = self.cancellation.on_cancel(notify)
        try:
            while True:
                woken.clear()
                entered = self._ask_again(request, demand, waiter, outer)
                if entered is not None:
                    return entered
                await woken.wait()
        finally:
            unlink()
            if timer is not None:
                timer.cancel()
            self._ledger.withdraw(waiter, self._clock.monotonic())

    def _ask_again(
        self, request: CallRequest, demand: Demand, waiter: Waiter, outer: Flight | None
    ) -> Flight | Outcome[Any] | None:
        """Ask for admission on behalf of a call that waits; None if it has to go on waiting."""
        now = self._clock.monotonic()
        if self._closed:
            return self._refuse(request, Refused(CLOSED_UNDER_WAY, latched=False), outer, now)
        grant = self._ledger.admit(demand, now, waiter)
        if type(grant) is Admitted:
            return self._begin(request, demand, outer, now)
        if type(grant) is Refused:
            return self._refuse(request, grant, outer, now)
        if waiter.last_chance:
            stop = exhausted(cast("Waits", grant), self._account)
            return self._refuse(request, Refused(stop, latched=False), outer, now)
        return None

    def _finish(
        self, flight: Flight, value: Any, error: BaseException | None, meter: Meter[Any] | None
    ) -> Outcome[Any]:
        """Settle and record a call whose work has ended; raise what must not be swallowed."""
        struck = flight.struck
        foreign = flight.disarm()
        now = self._clock.monotonic()
        reason = flight.interrupted
        if reason in ("aborted", "closed") and not struck and (error is None or isinstance(error, Exception)):
            reason = None  # it ended by itself before the interruption reached it
        elif reason is None and now >= flight.expires_at:
            reason = flight.overrun
        ours = struck and not foreign and isinstance(error, asyncio.CancelledError)
        if ours:
            error = TimeoutError(said_of_overrun(flight)) if reason in ("deadline", "call_timeout") else None
        charge, broken = measure(flight, value, error, meter)
        if foreign or (error is not None and not isinstance(error, Exception)):
            self._record(flight, charge, "aborted", None, error, now)
            raise error if error is not None else asyncio.CancelledError
        if reason is None and error is None:
            self._record(flight, charge, "ok", None, broken, now)
            return Outcome(Decision.ALLOW, value, broken, node=flight.node)
        return self._conclude(Ended(flight, value, error, charge, reason, now))

    def _leave_behind(self, flight: Flight, meter: Meter[Any] | None) -> Outcome[Any]:
        """Let go of work that did not stop in time; its result will be late."""
        charge = charge_at_most(flight.demand)
        task, number = flight.left, flight.node.number
        late = LateResult(flight, charge, meter, self._ledger, self._clock, lambda: self._flights.pop(number, None))
        foreign = flight.disarm()
        reason = flight.interrupted
        error = TimeoutError(said_of_overrun(flight)) if reason in ("deadline", "call_timeout") else None
        outcome = self._conclude(Ended(flight, None, error, charge, reason, self._clock.monotonic()))
        self._flights[number] = flight
        if task is not None:
            task.add_done_callback(late.finished)
        if foreign:
            raise asyncio.CancelledError
        return outcome

    def _conclude(self, ended: Ended) -> Outcome[Any]:
        """Settle and record a call that failed, overran or was stopped."""
        flight, value, error, charge, reason, now = ended
        account, landing = self._account, flight.demand.landing
        if reason is None or reason == "call_timeout":
            return self._fail(ended)
        if reason == "deadline":
            stop = expired(account, landing=landing)
            latched = self._ledger.latch(account, stop, account.lands and not landing, now)
            self._record(flight, charge, "timeout", stop.reason, error, now)
            if latched:
                self._stopped(stop)
            stop = (stop_of(account) if landing else work_stop_of(account)) or stop
        else:
            stop = (stop_of(account) if reason == "aborted" else None) or CLOSED_UNDER_WAY
            self._record(flight, charge, "aborted", stop.reason, error, now)
        return Outcome(Decision.HALT, value, error, stop.reason, stop, flight.node)

    def _fail(self, ended: Ended) -> Outcome[Any]:
        """Settle and record a call that failed by itself or overran its own time-out; nothing is latched."""
        flight, value, error, charge, reason, now = ended
        status: NodeStatus = "timeout" if reason else "error"
        self._record(flight, charge, status, reason, error, now)
        if not flight.demand.may_fail or retries_left(self._account):
            return Outcome(Decision.RETRY, value, error, reason, None, flight.node)
        stop = Stop("provider_error", "gate", f"{flight.node.name or 'A call'} failed and no retry is left: {error!r}")
        ending = cast("Ending", flight.node.ending)
        flight.node.ending = ending._replace(stop_reason=stop.reason)
        self._report(stop)
        return Outcome(Decision.HALT, value, error, stop.reason, stop, flight.node)

    def _record(
        self,
        flight: Flight,
        charge: Charge,
        status: NodeStatus,
        stop_reason: str | None,
        error: BaseException | None,
        now: float,
    ) -> None:
        """Settle a call at the ledger and close its node."""
        failed = error is not None and status in ("error", "timeout")
        self._ledger.settle(flight.demand, charge, failed, now)
        said = None if error is None else f"{type(error).__name__}: {error}"
        retries = flight.demand.wants[RETRIES] if failed or not flight.demand.may_fail else 0
        node = flight.node
        node.ending = Ending(now, status, charge.cost_nanos, charge.tokens, retries, stop_reason, said, None)
        self._flights.pop(node.number, None)

    # --- stopping -----------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Stop everything here and below, at once and for good; never raises.

        Calls under way are cancelled; later ones are refused, a landing turn too.
        """
        self.cancellation.cancel(reason)

    def land(self, stop: Stop) -> None:
        """End the work by the caller's wish: what is under way goes on, and a landing turn may follow."""
        if self._ledger.latch(self._account, stop, True, self._clock.monotonic()):
            self._stopped(stop)

    def close(self) -> None:
        """Give back whatever the context holds; calling it twice is harmless.

        Calls still under way are cancelled and settled when they end; contexts below it are aborted.
        """
        if self._closed:
            return
        self._closed = True
        self._unlink()
        for flight in list(self._flights.values()):
            flight.interrupt("closed")
            if flight.left is not None:
                flight.left.cancel()
        self.cancellation.cancel("the context around it was closed")
        self._ledger.close(self._account, self._clock.monotonic())

    def __enter__(self) -> ExecutionContext:
        """Return the context."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _cancelled(self, reason: str) -> None:
        """Stop everything: somebody aborted this context or one above it."""
        stop = aborted(reason)
        self._aborted = True
        latched = self._ledger.latch(self._account, stop, False, self._clock.monotonic())
        for flight in list(self._flights.values()):
            flight.interrupt("aborted")
        if latched:
            self._stopped(stop)
        else:
            self._report(stop)

    def _stopped(self, stop: Stop) -> None:
        """Keep what there was at this moment, and report the stop."""
        self._report(stop)
        if self.snapshot_at_stop is None:
            self.snapshot_at_stop = self.get_snapshot()

    def _report(self, stop: Stop) -> None:
        metadata = self.metadata
        facts = {"chain_id": metadata.chain_id, "limit": stop.limit, "value": stop.value, "source": stop.source}
        self.record_event(
            SafetyEvent(
                event_type=stop.reason,
                decision=Decision.HALT,
                reason=stop.message,
                hook="ExecutionContext",
                ts=self._clock.now(),
                request_id=metadata.request_id,
                metadata={key: value for key, value in facts.items() if value is not None},
            )
        )

    def record_event(self, event: SafetyEvent) -> None:
        """Append an incident to the chain's record, and tell ``on_event``."""
        self._events.append(event)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception as error:
            logger().error("safety_event.unheard", event_type=event.event_type, error=repr(error))

    # --- what there is to see -----------------------------------------------------------------------------------------

    @property
    def stop(self) -> Stop | None:
        """What ended everything, found here or above; None while something may still run."""
        return stop_of(self._account)

    @property
    def work_stop(self) -> Stop | None:
        """What ended the work, found here or above; a landing turn may still pass unless `stop` is set too."""
        return work_stop_of(self._account)

    @property
    def usage(self) -> Usage:
        """What this context and those below it have used."""
        return usage_of(self._account)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since it was opened."""
        return self._clock.monotonic() - self._account.opened_at

    def budget_status(self) -> BudgetStatus:
        """Return its own ceilings beside what was used, at this moment."""
        return budget_status_of(self._account, self.deadline, self._clock.monotonic())

    def get_snapshot(self) -> ContextSnapshot:
        """Return the state of the chain at this moment; from any thread, at any time, also after it was closed."""
        account, stop = self._account, self.stop
        settled = account.settled
        return ContextSnapshot(
            chain_id=self.metadata.chain_id,
            request_id=self.metadata.request_id,
            step_count=settled[STEPS],
            cost_usd_accumulated=settled[COST] / NANOS_PER_USD,
            retries_used=retries_of(account),
            aborted=self._aborted,
            abort_reason=None if stop is None else stop.reason,
            elapsed_ms=self.elapsed_seconds * 1000,
            nodes=self._store.view([flight.node for flight in list(self._flights.values())]),
            events=tuple(self._events),
            nodes_dropped=self._store.dropped,
            usage=self.usage,
            stop=stop or self.work_stop,
        )


class Ended(NamedTuple):
    """How the work of a call ended."""

    flight: Flight
    value: Any
    error: Exception | None
    charge: Charge
    reason: Interruption | None
    now: float


STATUS_OF_REFUSAL: Final[dict[str, NodeStatus]] = {"aborted": "aborted", "timeout": "timeout"}


def said_of_overrun(flight: Flight) -> str:
    """Say which time was over for a call."""
    name = flight.node.name or f"the {flight.node.kind} call"
    if flight.overrun == "deadline":
        return f"{name} was stopped at the deadline"
    return f"{name} did not finish within {format_duration(flight.timeout or 0.0)} and was stopped"


async def _as_coroutine(work: Awaitable[T]) -> T:
    return await work
