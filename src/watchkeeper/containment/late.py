"""Results that come after the gate has let go of a call.

A call that is left behind is booked at once with all that it may cost, so that nobody waits for it and nothing is
forgotten. When its result comes, the truth takes the place of that: the charge is corrected and the result is kept
on the call's node. It needs the ledger and the node, never the context, which may be closed and gone by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from watchkeeper.containment.account import COST, INPUT_TOKENS, OUTPUT_TOKENS
from watchkeeper.containment.call import Meter
from watchkeeper.containment.estimate import NO_TOKENS, Charge
from watchkeeper.containment.flight import Flight
from watchkeeper.containment.ledger import Ledger
from watchkeeper.containment.wording import shown
from watchkeeper.core.clock import Clock
from watchkeeper.core.logs import logger
from watchkeeper.core.usage import TokenUsage


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
