"""Budgets that several evaluations share: one gate behind every `BudgetTracker`.

Concurrent evaluations see each other's reservations: the tracker's budget bounds their sum exactly. The gate of an
`Adapter`'s evaluation is a child of the tracker's gate. The gate of an evaluation inside a run is a child of the run's
gate, so the amount it may use is reserved at the tracker's gate until the evaluation is over. All usage is added to the
tracker exactly once. The gate lives as long as its tracker.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from watchkeeper.accounting.call_request import CallRequest, Charge, Waits, exhausted
from watchkeeper.containment import enclosing
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.accounting.budget import BudgetTracker
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import BudgetExceededError, Stop
from watchkeeper.core.forks import ModuleLock
from watchkeeper.core.ids import IdSource
from watchkeeper.core.usage import Usage
from watchkeeper.accounting.limits import Limits, tighten
from watchkeeper.runtime.user_code import done_by
from watchkeeper.session.session import Session


@dataclass(slots=True, eq=False)
class _Shared:
    """The state of one tracker.

    Attributes:
        gate: Bounds everything that is evaluated with the tracker; created at the first use.
        known: The tracker's usage, without what its user has added since then: the gate does not know of that.
        reserved: How many evaluations inside runs have reserved something at the gate.
        drawing: The gates of these evaluations; a gate's usage is added to the tracker when it closes.
        waiting: One token for each waiter; cancelled when a reservation is given back, which ends the wait.
    """

    gate: ExecutionContext
    known: Usage
    reserved: int = 0
    drawing: list[ExecutionContext] = field(default_factory=list[ExecutionContext])
    waiting: list[CancellationToken] = field(default_factory=list[CancellationToken])


_shared: Final[weakref.WeakKeyDictionary[BudgetTracker, _Shared]] = weakref.WeakKeyDictionary()
_lock: Final = ModuleLock()

SAFETY_NET: Final = Limits().ceiling("max_total_tokens")


def behind(tracker: BudgetTracker, clock: Clock, ids: IdSource) -> _Shared:
    """Return the state of a tracker; its gate, which bounds all that is evaluated with it, is made at the first use.

    Raises:
        BudgetExceededError: If the tracker's budget is used up.
    """
    with _lock:
        left, usage, shared = tracker.remaining(), tracker.usage, _shared.get(tracker)
        if shared is None:
            # The gate outlives the run of its first use; usage inside a run is reserved at this gate (`share_of`).
            gate = ExecutionContext(replace(left.as_limits(), landing=None), clock=clock, ids=ids, parent=None)
            shared = _shared[tracker] = _Shared(gate, usage)
        return shared


def _add(tracker: BudgetTracker, usage: Usage) -> None:
    """Add to a tracker what its gate has counted."""
    with _lock:
        tracker.add(usage)
        _shared[tracker].known += usage


def is_drawn_from(tracker: BudgetTracker, gate: ExecutionContext) -> bool:
    """Return whether a tracker already counts a gate's usage: by the tracker's own gate, or by a run above."""
    with _lock:
        shared = _shared.get(tracker)
        above = [] if shared is None else [shared.gate, *shared.drawing]
    return any(gate.stands_below(each) for each in above)


@contextmanager
def gate_outside_runs(
    limits: Limits, tracker: BudgetTracker | None, session: Session, clock: Clock, ids: IdSource
) -> Generator[ExecutionContext]:
    """Open a gate below the tracker's gate, if there is a tracker; the gate's usage is added to the tracker.

    Inside a run or another context the gate is a child of that context and bounded by it, too; the amount it may use is
    then reserved at the tracker's gate.

    Args:
        limits: The ceilings of the gate.
        tracker: A budget that is shared with other evaluations, or None.
        session: The session whose log gets the gate's events.
        clock: The source of time.
        ids: The source of identifiers.

    Raises:
        BudgetExceededError: If the tracker's budget is used up.
    """
    around: ExecutionContext | None = enclosing.current()
    if tracker is None or (around is not None and is_drawn_from(tracker, around)):
        with ExecutionContext(limits, clock=clock, ids=ids, on_event=session.dispatch) as gate:
            yield gate
        return
    shared = behind(tracker, clock, ids)
    if around is not None:
        with _drawn_inside(shared, tracker, limits, clock) as share:
            gate = ExecutionContext(share.limits, clock=clock, ids=ids, on_event=session.dispatch)
            with gate, share.drawn_by(gate):
                yield gate
        return
    if tracker.usage != shared.known:
        limits = _bounded(limits, tracker, clock)
    gate = shared.gate.child(limits, carve=False, on_event=session.dispatch)
    try:
        with gate:
            yield gate
    finally:
        _add(tracker, gate.usage)


@contextmanager
def _drawn_inside(shared: _Shared, tracker: BudgetTracker, limits: Limits, clock: Clock) -> Generator[Share]:
    """Reserve the amount that an evaluation inside another context may use, without waiting for the reservations of
    others.

    Raises:
        BudgetExceededError: If nothing is left.
    """
    whole = _bounded(limits, tracker, clock)
    reservation = _reserve(shared, whole)
    if reservation.stop is not None:
        reservation.close()
        raise BudgetExceededError(reservation.stop.message)
    try:
        with closing(reservation):  # not entered: what runs is inside the gate above it
            yield Share(tighten(whole, replace(reservation.limits, deadline=None), clock), None, tracker, reservation)
    finally:
        _give_back(shared)


def _bounded(limits: Limits, tracker: BudgetTracker, clock: Clock) -> Limits:
    """Return an evaluation's own ceilings, tightened by what is left of the tracker's budget."""
    whole = tighten(replace(limits, deadline=limits.start(clock)), tracker.remaining().as_limits(), clock)
    total = whole.ceiling("max_total_tokens")
    if total is not None and total == SAFETY_NET:  # carving ignores this default value
        whole = replace(whole, max_total_tokens=total - 1)
    return whole


def _give_back(shared: _Shared) -> None:
    """Count a reservation as given back, and wake the waiters."""
    with _lock:
        shared.reserved -= 1
        waiting = tuple(shared.waiting)
    for wait in waiting:
        wait.cancel()


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a tracker's budget that one evaluation may use.

    Attributes:
        limits: The ceilings of the gate.
        stop: Why nothing is available; None if something is.
        tracker: The tracker to which the usage is added; None if the usage is counted there already.
        reservation: Its reservation at the tracker's gate.
    """

    limits: Limits
    stop: Stop | None = None
    tracker: BudgetTracker | None = None
    reservation: ExecutionContext | None = None

    @contextmanager
    def drawn_by(self, gate: ExecutionContext) -> Generator[None]:
        """Add a gate's usage in this block to the tracker, once."""
        tracker, reservation = self.tracker, self.reservation
        if tracker is None or reservation is None:
            yield
            return
        shared = _shared[tracker]
        with _lock:
            shared.drawing.append(gate)
        try:
            yield
        finally:
            usage = gate.usage
            _book(reservation, usage)
            _add(tracker, usage)
            with _lock:
                shared.drawing.remove(gate)


@asynccontextmanager
async def share_of(
    tracker: BudgetTracker | None, above: ExecutionContext, limits: Limits, clock: Clock, ids: IdSource
) -> AsyncGenerator[Share]:
    """Reserve the amount that an evaluation may use of a tracker's budget; give back the unused rest.

    This way evaluations in different runs together stay within the tracker's ceilings. If others have reserved all that
    is left, this one waits until they give some back, at most until its deadline.

    Args:
        tracker: The budget, or None.
        above: The gate below which it will run; if its usage is counted in the tracker already, nothing is reserved.
        limits: The evaluation's own ceilings.
        clock: The source of time.
        ids: The source of identifiers.

    Raises:
        BudgetExceededError: If the tracker's budget is used up.
    """
    if tracker is None or is_drawn_from(tracker, above):
        yield Share(limits)
        return
    shared = behind(tracker, clock, ids)
    whole = _bounded(limits, tracker, clock)
    ends = whole.start(clock)
    until = math.inf if ends is None else ends.instant(clock)
    while (reservation := _reserve(shared, whole)).stop is not None:
        reservation.close()
        if not await _given_back(shared, until, clock):
            yield Share(whole, reservation.stop)
            return
    try:
        with closing(reservation):  # not entered: what runs is inside the gate above it
            drawn = tighten(whole, replace(reservation.limits, deadline=None), clock)
            yield Share(drawn, None, tracker, reservation)
    finally:
        _give_back(shared)


def _book(reservation: ExecutionContext, usage: Usage) -> None:
    """Book at a reservation what was used elsewhere; the calls do nothing, they are counted."""

    def nothing(*_: object) -> Charge:
        return Charge()

    def used(*_: object) -> Charge:
        return Charge(usage.tokens, usage.cost_nanos, usage.presumed)

    for _ in range(usage.tool_calls):  # before the rest: once that is booked, nothing may be left for a call
        reservation.call(CallRequest(kind="tool"), lambda _: None, nothing)
    reservation.call(CallRequest(kind="child"), lambda _: None, used)


def _reserve(shared: _Shared, whole: Limits) -> ExecutionContext:
    """Reserve what is left; if nothing is left, the returned context is stopped from its start.

    A child shares the tool calls of its parent if none are left. A reservation may not: its evaluation is counted
    elsewhere until it is over.
    """
    wish, gate = replace(whole, deadline=None, landing=None, verdict=None), shared.gate
    with _lock:
        reservation = gate.child(wish)
        carved = {claim.count for claim in reservation.account.carved}
        for count, ceiling in enumerate(gate.account.tops):
            if ceiling is not None and count not in carved and reservation.stop is None:
                stop = exhausted(Waits(count, ceiling, gate.account), reservation.account, landing=False)
                gate.ledger.latch(reservation.account, stop, False, gate.clock.monotonic())
        if reservation.stop is None:
            shared.reserved += 1
    return reservation


async def _given_back(shared: _Shared, until: float, clock: Clock) -> bool:
    """Wait until a reservation is given back; return False if there is no reservation, or at the instant ``until``."""
    woken = CancellationToken()
    with _lock:
        if not shared.reserved:
            return False
        shared.waiting.append(woken)
    try:
        await done_by(asyncio.get_running_loop().create_future(), until, clock, woken)
    finally:
        with _lock:
            shared.waiting.remove(woken)
    return clock.monotonic() < until
