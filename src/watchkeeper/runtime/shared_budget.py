"""One gate behind every `BudgetTracker`, so that evaluations that share a tracker also share its ceilings.

Two evaluations that run at once each see what the other holds: the tracker's budget bounds them together, exactly.
Those of an `Adapter` stand below that gate. One inside a run stands below the run's, so what it may draw is set aside
here until it is over. The gate lives as long as its tracker.
"""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Final

from watchkeeper.accounting.call_request import CallRequest, Charge
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Meter, Ticket, set_timer
from watchkeeper.core.budget import BudgetTracker
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import Stop
from watchkeeper.core.ids import IdSource
from watchkeeper.core.limits import Limits, tighten
from watchkeeper.core.usage import Usage


class Drawers:
    """Who draws from a tracker without standing below its gate.

    Attributes:
        claims: How many have set something aside.
        gates: The gates whose figures are added when they close.
        waiting: Tell those who wait until somebody gives something back.
    """

    __slots__ = ("claims", "gates", "waiting")

    def __init__(self) -> None:
        """Start with nobody."""
        self.claims = 0
        self.gates: list[ExecutionContext] = []
        self.waiting: list[Callable[[], None]] = []


_gates: Final[weakref.WeakKeyDictionary[BudgetTracker, ExecutionContext]] = weakref.WeakKeyDictionary()
_drawers: Final[weakref.WeakKeyDictionary[BudgetTracker, Drawers]] = weakref.WeakKeyDictionary()

_lock: Final = threading.Lock()

SAFETY_NET: Final = Limits().ceiling("max_total_tokens")


def gate_of(tracker: BudgetTracker, clock: Clock, ids: IdSource) -> ExecutionContext:
    """Return the gate that bounds everything evaluated with ``tracker``; it is made at the first use.

    Raises:
        BudgetExceededError: If the tracker's budget is used up.
    """
    left = tracker.remaining()
    with _lock:
        gate = _gates.get(tracker)
        if gate is None:
            limits = replace(left.as_limits(), landing=None)
            gate = _gates[tracker] = ExecutionContext(limits, clock=clock, ids=ids)
        return gate


def is_drawn_from(tracker: BudgetTracker, gate: ExecutionContext) -> bool:
    """Return whether what passes a gate is counted in a tracker anyway: by the tracker's gate, or by a run above."""
    with _lock:
        own = _gates.get(tracker)
        drawers = _drawers.get(tracker)
        drawing = [] if drawers is None else list(drawers.gates)
    return (own is not None and gate.stands_below(own)) or any(gate.stands_below(each) for each in drawing)


class Part:
    """What one evaluation may draw.

    Attributes:
        limits: Its ceilings.
        stop: Why there is nothing to draw; None if there is.
    """

    __slots__ = ("_claim", "_tracker", "limits", "stop")

    def __init__(
        self,
        limits: Limits,
        stop: Stop | None = None,
        tracker: BudgetTracker | None = None,
        claim: ExecutionContext | None = None,
    ) -> None:
        """Draw from ``tracker`` what ``claim`` has set aside there; from nothing but a gate if there are none."""
        self.limits = limits
        self.stop = stop
        self._tracker = tracker
        self._claim = claim

    @contextmanager
    def drawn_by(self, gate: ExecutionContext) -> Generator[None]:
        """Add to the tracker, once, what passes a gate in this block."""
        tracker, claim = self._tracker, self._claim
        if tracker is None or claim is None:
            yield
            return
        drawers = _drawers_of(tracker)
        with _lock:
            drawers.gates.append(gate)
        try:
            yield
        finally:
            usage = gate.usage
            claim.call(CallRequest(kind="child"), _done, _charging(usage))
            tracker.add(usage)
            with _lock:
                drawers.gates.remove(gate)


@asynccontextmanager
async def part_of(
    tracker: BudgetTracker | None, above: ExecutionContext, limits: Limits, clock: Clock, ids: IdSource
) -> AsyncGenerator[Part]:
    """Set aside what an evaluation may draw from a tracker, and give back what it did not use.

    Evaluations in different runs so hold the tracker's ceilings together. Where others hold all that is left, this one
    waits until they give some back, at most to its deadline.

    Args:
        tracker: The budget, or None.
        above: The gate below which it will run; if that counts in the tracker anyway, nothing is set aside.
        limits: The evaluation's own ceilings.
        clock: Where time comes from.
        ids: Where identifiers come from.

    Raises:
        BudgetExceededError: If the tracker's budget is used up.
    """
    if tracker is None or is_drawn_from(tracker, above):
        yield Part(limits)
        return
    own, drawers = gate_of(tracker, clock, ids), _drawers_of(tracker)
    whole = tighten(replace(limits, deadline=limits.start(clock)), tracker.remaining().as_limits(), clock)
    ends = whole.start(clock)
    total = whole.ceiling("max_total_tokens")
    if total is not None and total == SAFETY_NET:  # what carving takes for no wish at all
        whole = replace(whole, max_total_tokens=total - 1)
    until = math.inf if ends is None else ends.instant(clock)
    while (claim := _claimed(own, drawers, whole)).stop is not None:
        claim.close()
        if not await _given_back(drawers, until, clock):
            yield Part(whole, claim.stop)
            return
    try:
        with claim:
            yield Part(tighten(whole, replace(claim.limits, deadline=None), clock), None, tracker, claim)
    finally:
        with _lock:
            drawers.claims -= 1
            waiting = tuple(drawers.waiting)
        for wake in waiting:
            wake()


def _drawers_of(tracker: BudgetTracker) -> Drawers:
    with _lock:
        return _drawers.setdefault(tracker, Drawers())


def _claimed(own: ExecutionContext, drawers: Drawers, whole: Limits) -> ExecutionContext:
    """Set aside what there is; what is returned is stopped from the start if there is nothing."""
    wish = replace(whole, deadline=None, landing=None, verdict=None)
    with _lock:
        claim = own.child(wish)
        if claim.stop is None:
            drawers.claims += 1
    return claim


async def _given_back(drawers: Drawers, until: float, clock: Clock) -> bool:
    """Wait until somebody has given something back; return False if there is nobody, or it took too long."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # a loop that was closed has nobody left to wake
            loop.call_soon_threadsafe(woken.set)

    with _lock:
        if not drawers.claims:
            return False
        drawers.waiting.append(wake)
    timer = None if until == math.inf else set_timer(clock, until, wake)
    try:
        await woken.wait()
    finally:
        if timer is not None:
            timer.cancel()
        with _lock:
            drawers.waiting.remove(wake)
    return clock.monotonic() < until


def _done(_: Ticket) -> None:
    """Do nothing: it was done elsewhere."""


def _charging(usage: Usage) -> Meter[None]:
    charge = Charge(usage.tokens, usage.cost_nanos)

    def meter(_: None, error: BaseException | None, ticket: Ticket) -> Charge:
        return charge

    return meter
