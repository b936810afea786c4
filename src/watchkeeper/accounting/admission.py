"""Whether a call may run: `decide` is the one place where that is decided. Below it: what a refusal says.

It is pure: it reads a demand, the figures of the accounts that would pay, and the time, and changes nothing. A ledger
calls it inside the critical section in which it also reserves, so no two calls can be admitted on the same money. The
order is fixed: aborted or stopped before, time, cost, tokens, steps, tool calls, retries. What was carved from above is
decided below; the ceilings above are checked last, for the case that more was spent than was reserved.

The sentences of a stop are part of the interface: they say whose limit was reached, what was used, what is kept for the
end, and what the call could have needed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from watchkeeper.accounting.account import NOTHING, RETRIES, STEPS, Account
from watchkeeper.accounting.call_request import Demand, lender_of
from watchkeeper.core.errors import Stop
from watchkeeper.core.meters import SHARED
from watchkeeper.core.quantities import counted, format_duration


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

    # 1. aborted or stopped before; a landing turn passes a stop of work here, a verdict one of those above
    for level in account.chain:
        stop = level.barred if landing else level.barred or level.work_stop
        if stop is not None and (level.barred is not None or level not in account.work_ignored):
            return Stopped(stop)

    # 2. time
    if now >= (account.deadline_at - account.kept_seconds if landing else account.work_until):
        return Expired()

    # 3. cost, tokens, steps, tool calls, retries: the rows of `account.ceilings` stand in this order
    concerns, wants, prices, output = demand.concerns, demand.wants, demand.per_output, demand.most
    hold = account.landing_hold
    held = NOTHING if landing else hold if demand.next_hold is None else demand.next_hold
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

    What was carved is reserved under them, so they can only stand in the way once something below them has spent more
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

    It counts as spent: only the caller itself could give it back.
    """
    kept, for_verdict = 0, False
    for account in demand.account.chain:
        kept += held[count] if account is demand.account else account.landing_hold[count]
        kept += 0 if for_verdict else account.verdict_hold[count]
        for_verdict = account.for_verdict
        if account is level:
            break
    return kept


# --- what a refusal says ----------------------------------------------------------------------------------------------

CLOSED_UNDER_WAY: Final = Stop("aborted", "gate", "The context was closed while the call was under way.")


def exhausted(verdict: Exhausted | Waits, caller: Account, *, landing: bool) -> Stop:
    """Say that a ceiling leaves too little for the least call worth sending, of a context or of a shared account."""
    count, ceiling, account = verdict[:3]
    meter = SHARED[count]
    field = meter.field
    used = account.settled[count]
    if count == RETRIES:
        ceiling = account.tops[RETRIES] or 0
        used = min(used, ceiling)
    value = meter.amount(ceiling)
    shared = account.period is not None
    if shared:
        field, value = "account_limit", str(account.limits.account_limit)
        said = f"The account {account.name!r} reached its ceiling of {value}"
    else:
        kind = "cost " if meter.measures == "money" else ""
        said = f"{subject(account, caller)} reached its {kind}ceiling of {value}"
    if used < ceiling:
        said += f" after {meter.amount(used)}"
    if count != STEPS and not shared:
        said += f" in {counted(account.settled[STEPS], 'call')}"
    if isinstance(verdict, Waits):
        said += "; others hold the rest"
    else:
        said += "" if shared else kept_back(count, account, caller, landing=landing)
        if not meter.is_counted and 0 < verdict.left < verdict.need:
            need, left = meter.amount(verdict.need), meter.amount(verdict.left)
            said += f"; the next call could need up to {need}, with {left} left"
    if account.renews_on is not None:
        said += f"; the {account.period} ends at {account.renews_on.isoformat()} 00:00 UTC"
    return Stop(meter.reason, "gate", f"{said}.", field, value)


def kept_back(count: int, account: Account, caller: Account, *, landing: bool) -> str:
    """Say what of a count is kept for a landing turn and for a verdict that are not the caller's own."""
    hold = 0 if landing else account.landing_hold[count]
    judges = any(level.for_verdict and level.chain[1] is account for level in caller.chain)
    kept = 0 if judges else account.verdict_hold[count]
    amount = SHARED[count].amount
    parts = [f"{amount(hold)} kept for its last turn"] if hold else []
    parts += [f"{amount(kept)} kept for its verdict"] if kept else []
    return "".join(f"; {part}" for part in parts)


def expired(account: Account, *, landing: bool) -> Stop:
    """Say that the time is over: the work's, or (for a landing turn) all of it."""
    total = format_duration(max(account.deadline_at - account.opened_at, 0.0))
    said = f"{subject(account, account)} reached its deadline of {total}"
    kept = account.kept_seconds if landing else account.deadline_at - account.work_until
    if kept > 0:
        parts = (account.has_landing and not landing, "its last turn"), (account.keeps_verdict, "its verdict")
        whom = " and ".join(name for holds, name in parts if holds)
        said += f"; the last {format_duration(kept)} are kept for {whom}"
    return Stop("timeout", "gate", f"{said}.", "deadline", total)


def aborted(reason: str) -> Stop:
    """Say that somebody aborted, in his words."""
    return Stop("aborted", "caller", f"The run was aborted: {reason}")


def subject(account: Account, caller: Account) -> str:
    """Name whose limit it is."""
    if account.name:
        return f"The run {account.name!r}"
    return "The run" if account is caller else "The whole run"
