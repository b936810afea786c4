"""Whether a call may run: `decide`, the one place where that is settled.

It is pure: it reads a demand, the figures of the accounts that would pay, and the time, and changes nothing. The
ledger calls it inside the critical section in which it also reserves, so no two calls can ever pass on the same
money. The order is fixed: aborted (or stopped before), time, cost, tokens, steps, tool calls, retries. What was
carved from above is decided below; the ceilings above are looked at last, for the case that more was spent than held.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from watchkeeper.containment.account import NOTHING, RETRIES, Account
from watchkeeper.containment.covering import lender_of
from watchkeeper.containment.demand import Demand
from watchkeeper.core.stop import Stop


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """It may run, with at most so many output tokens."""

    output_tokens: int


class Stopped(msgspec.Struct, frozen=True):
    """It may not: this stop was latched before."""

    stop: Stop


class Expired(msgspec.Struct, frozen=True):
    """It may not: the time is over."""


class Exhausted(NamedTuple):
    """It may not: what is settled, and what is kept for the end, leaves less than the least it needs."""

    limit: int
    ceiling: int
    account: Account
    need: int = 0
    left: int = 0


class Waits(NamedTuple):
    """Not yet: it fits under this ceiling once other calls give back what they hold."""

    limit: int
    ceiling: int
    account: Account


Ruling = Admitted | Stopped | Expired | Exhausted | Waits


def decide(demand: Demand, now: float) -> Ruling:
    """Decide whether a call is admitted.

    Args:
        demand: What the call wants, and whose account pays.
        now: Monotonic seconds.

    Returns:
        Admitted with the output tokens it may have (fewer than wished for where that is what is affordable), Waits if
        only reservations of others stand in the way, or the reason for refusing it.
    """
    account, landing = demand.account, demand.landing

    # 1. aborted, or stopped by what was found before; a landing turn passes a stop of work, a verdict that of others
    for level in account.chain:
        stop = level.barred if landing else level.barred or level.work_stop
        if stop is not None and (level.barred is not None or level not in account.past):
            return Stopped(stop)

    # 2. time
    if now >= (account.deadline_at - account.kept_seconds if landing else account.work_until):
        return Expired()

    # 3. cost, tokens, steps, tool calls, retries: the rows of `account.ceilings` stand in this order
    concerns, wants, prices, output = demand.concerns, demand.wants, demand.per_output, demand.most
    hold = account.hold
    held = NOTHING if landing else hold if demand.hold is None else demand.hold
    lender = lender_of(demand) if demand.inside is not None else None
    waits: Waits | None = None
    for count, ceiling, level in account.ceilings:
        if not concerns[count]:
            continue
        want, price = wants[count], prices[count]
        if count == RETRIES and demand.may_fail:
            ceiling = ceiling or 1  # none allowed: the first failure is final, but a first call may run
            want = 0 if lender is not None and level in lender.account.paths[RETRIES] else 1
        growth = held[count] - hold[count]
        left = ceiling - level.settled[count]
        free = left - level.reserved[count] - growth
        if left > 0 and (want + price * output <= free or (want == 0 and price == 0 and growth <= 0)):
            continue
        least = want + price * demand.least
        if left <= 0 or least > left - firm_hold(demand, held, level, count):
            return Exhausted(count, ceiling, level, least, left - firm_hold(demand, held, level, count))
        if least <= free:
            output = (free - want) // price
        else:
            waits = waits or Waits(count, ceiling, level)
    if account.beyond:
        output, overspent = clamp_beyond(demand, held, output)
        if overspent is not None:
            return overspent
    return waits or Admitted(output)


def clamp_beyond(demand: Demand, held: tuple[int, ...], output: int) -> tuple[int, Exhausted | None]:
    """Look at the ceilings above what was carved, and return the output that they leave.

    What was carved is set aside under them, so they can only stand in the way once something below them has spent more
    than was reserved for it; what calls beside it hold there does not matter.
    """
    concerns, wants, prices = demand.concerns, demand.wants, demand.per_output
    for count, ceiling, level in demand.account.beyond:
        want, price = wants[count], prices[count]
        if not concerns[count]:
            continue
        if count == RETRIES and demand.may_fail:
            ceiling = ceiling or 1
        left = ceiling - level.settled[count]
        if left > 0 and want == 0 and price == 0:
            continue
        free = left - firm_hold(demand, held, level, count)
        if left <= 0 or want + price * demand.least > free:
            return output, Exhausted(count, ceiling, level, want + price * demand.least, free)
        if want + price * output > free:
            output = (free - want) // price
    return output, None


def firm_hold(demand: Demand, held: tuple[int, ...], level: Account, count: int) -> int:
    """Return what is kept at ``level`` for the landing and the verdict of the caller and of those above it.

    It counts as spent: waiting for it would be waiting for oneself.
    """
    kept, speaks = 0, False
    for account in demand.account.chain:
        kept += held[count] if account is demand.account else account.hold[count]
        kept += 0 if speaks else account.kept[count]
        speaks = account.speaks
        if account is level:
            break
    return kept
