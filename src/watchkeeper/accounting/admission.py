"""Whether a call may run: `decide` is the one place where that is decided.

It is pure: it reads a demand, the figures of the accounts that would pay, and the time, and changes nothing. A ledger
calls it inside the critical section in which it also reserves, so no two calls can be admitted on the same money. The
order is fixed: aborted or stopped before, time, cost, tokens, steps, tool calls, retries. What was carved from above is
decided below; the ceilings above are checked last, for the case that more was spent than was reserved.

A `Demand` is a call's request in the terms of the accounts; a ledger notes on it what is reserved for the call. Below
`decide` are the functions for the retry that is reserved for a call that may fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from watchkeeper.accounting.account import COST, NOTHING, RETRIES, SPENDABLE, Account
from watchkeeper.accounting.call_request import (
    Admitted,
    CallRequest,
    EstimatedRequest,
    Exhausted,
    Expired,
    Ruling,
    Stopped,
    Waits,
)
from watchkeeper.core.meters import COLUMNS, EVERY_CALL, SHARED, UNLIMITED_COUNTS

CALLS: Final = slice(len(SPENDABLE), None)
"""The part of figures by count that counts calls."""

NO_CALLS: Final = NOTHING[CALLS]


class Demand:
    """The demand of one call on the accounts; after admission also the record of its reservation.

    Attributes:
        account: The account that pays.
        request: The request of the caller.
        number: The integer of the UUID by which log, snapshot and ledger know the call; 0 until it has one.
        concerns: By count, whether that limit applies to the call.
        wants: By count, what the call takes independently of its output.
        per_output: By count, what each output token adds.
        most: Output tokens requested.
        least: The fewest output tokens that make the call worth sending.
        counts: The counts that admission raises by one each.
        landing: Whether this is the landing turn itself, which uses up the landing hold.
        next_hold: The landing hold that is needed after this call, by count; None leaves it as it is.
        may_fail: Whether a failure of the call spends one retry; one is then reserved for it, at every account but
            those in ``borrowed_at``.
        inside: The enclosing call, if it may fail; else None.
        is_hint: Whether the cost in ``wants`` is only an estimate; set only for calls that may fail.
        has_retry: Whether a retry is reserved for it now; set by the ledger, like all below.
        lender: The enclosing call whose reserved retry covers this call too.
        borrower: The call inside this one that this call's retry covers too.
        borrowed_at: Accounts at which the lender's retry takes the place of one of its own.
        granted: Output tokens granted.
        reserved: ``(count, amount)`` of what is reserved; empty before admission and after settlement.
        held_before: The context's landing hold before the call was admitted.
        day: The day (UTC) on which it was admitted; set by a ledger that keeps days.
        told_nanos: What the call has reported so far that it costs, which may be more than is reserved.
    """

    __slots__ = (
        "account",
        "borrowed_at",
        "borrower",
        "concerns",
        "counts",
        "day",
        "granted",
        "has_retry",
        "held_before",
        "inside",
        "is_hint",
        "landing",
        "least",
        "lender",
        "may_fail",
        "most",
        "next_hold",
        "number",
        "per_output",
        "request",
        "reserved",
        "told_nanos",
        "wants",
    )

    def __init__(self, account: Account, request: CallRequest, inside: Demand | None = None, number: int = 0) -> None:
        """Translate a request of ``account``'s context."""
        estimate, last = request.estimate, request.landing
        most, tokens_in = estimate.max_output_tokens, estimate.input_tokens
        self.account = account
        self.request = request
        self.number = number
        self.may_fail = request.spends_retry_on_error
        self.concerns, self.counts, of_calls = SHAPES[request.kind, request.retry, self.may_fail]
        self.wants = (estimate.input_nanos, tokens_in, tokens_in, 0) + of_calls  # noqa: RUF005 - twice as fast
        self.per_output = (estimate.output_nanos_per_token, 1, 0, 1) + NO_CALLS if most else NOTHING  # noqa: RUF005
        self.most = most
        self.least = min(estimate.min_output_tokens or account.limits.min_output_tokens, most) if most else 0
        self.landing = request.phase == "landing"
        self.next_hold: tuple[int, ...] | None = None
        if last is not None:  # the worst case of the landing turn; the calls that are kept for it stay
            tokens_in, tokens_out = last.input_tokens, last.max_output_tokens
            cost = last.input_nanos + last.output_nanos_per_token * tokens_out
            self.next_hold = (cost, tokens_in + tokens_out, tokens_in, tokens_out) + account.landing_hold[CALLS]
        self.inside = inside
        if self.may_fail:  # read only then, and each attribute costs every call its nanoseconds
            self.is_hint = estimate.is_hint
            self.has_retry = False
            self.lender: Demand | None = None
            self.borrower: Demand | None = None
            self.borrowed_at: tuple[Account, ...] = ()
        self.granted = 0
        self.reserved: Sequence[tuple[int, int]] = ()
        self.held_before = NOTHING
        self.day = ""
        self.told_nanos = 0

    @property
    def is_held(self) -> bool:
        """Whether something is reserved for it now."""
        return bool(self.reserved) or (self.may_fail and self.has_retry)


COUNTED_CALLS: Final = {**UNLIMITED_COUNTS, **{meter.column: meter.calls for meter in SHARED if meter.is_counted}}
"""By column, the calls that count there."""

Shape = tuple[tuple[bool, ...], tuple[int, ...], tuple[int, ...]]


def shape(kind: str, retry: bool, may_fail: bool) -> Shape:
    """Return the limits that apply to a kind of call, the counts that it raises, and the calls that it needs left."""
    wanted = {kind, "retry"} if retry or may_fail else {kind}
    settled = {kind, "retry"} if retry and not may_fail else {kind}
    concerns = tuple(not wanted.isdisjoint(meter.calls) for meter in SHARED)
    counts = tuple(COLUMNS.index(column) for column, calls in COUNTED_CALLS.items() if not settled.isdisjoint(calls))
    return concerns, counts, tuple(int(concerned) for concerned in concerns[CALLS])


SHAPES: Final[dict[tuple[str, bool, bool], Shape]] = {
    (kind, retry, may_fail): shape(kind, retry, may_fail)
    for kind in EVERY_CALL
    for retry in (False, True)
    for may_fail in (False, True)
}


def decide(demand: Demand, now: float) -> Ruling:
    """Decide whether a call is admitted.

    Args:
        demand: What the call wants, and whose account pays.
        now: Monotonic seconds.

    Returns:
        Admitted with the output tokens it may have (fewer than requested if no more is affordable), Waits if
        only reservations of other calls prevent it, or the reason for refusing it.
    """
    account, landing, may_fail = demand.account, demand.landing, demand.may_fail

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
        if may_fail and count == RETRIES:
            ceiling = ceiling or 1  # with a ceiling of 0 retries the first failure is final, but the first call may run
            want = 0 if lender is not None and level in lender.account.paths[RETRIES] else 1
        growth = held[count] - hold[count]
        left = ceiling - level.settled[count]
        free = left - level.reserved[count] - growth
        if left > 0 and (want + price * output <= free or (want == 0 and price == 0 and growth <= 0)):
            continue
        if (
            account.by_estimate
            and level is account
            and 2 * want > free
            and isinstance(demand.request, EstimatedRequest)
        ):
            return decide_by_estimate(demand, demand.request)
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


def decide_by_estimate(demand: Demand, request: EstimatedRequest) -> Ruling:
    """Decide about a model call whose input, at worst, takes more than half of the isolated nested budget that is left.

    Its own account admits it by the estimate. Every account above must have room for the worst case: where the account
    has carved its ceiling, for what the worst case needs beyond what is claimed there. A nested budget keeps nothing
    for a landing turn.
    """
    account, likely = demand.account, request.likely
    tokens_in = likely.input_tokens
    guess = (likely.input_nanos, tokens_in, tokens_in, 0, *demand.wants[CALLS])
    guessed_output = (likely.output_nanos_per_token, *demand.per_output[1:])
    rows = [
        (count, ceiling, level, guess[count], guessed_output[count], 0)
        if level is account
        else (count, ceiling, level, demand.wants[count], demand.per_output[count], 0)
        for count, ceiling, level in account.ceilings
    ]
    for claim in account.carved:
        count = claim.count
        want = demand.wants[count] + account.reserved[count] - claim.amount  # below 0 where the claim covers it
        rows += [
            (count, ceiling, level, want, demand.per_output[count], claim.amount)
            for level in claim.outer
            if (ceiling := level.tops[count]) is not None
        ]
    output, waits = demand.most, None
    for count, ceiling, level, want, price, claimed in rows:
        if not demand.concerns[count]:
            continue
        left = ceiling - level.settled[count]
        free, least = left - level.reserved[count], want + price * demand.least
        firm = left if level is account else left - firm_hold(demand, NOTHING, level, count)
        if (level is account and left <= 0) or least > max(firm - claimed, 0):
            return Exhausted(count, ceiling, level, least + claimed, firm)
        if least > max(free, 0):
            waits = waits or Waits(count, ceiling, level)
        elif price:
            output = min(output, (free - want) // price)
    output, overspent = clamp_beyond(demand, NOTHING, output)
    return overspent or waits or Admitted(output)


def latches(demand: Demand, verdict: Exhausted) -> bool:
    """Return whether too little is left for any further call; a guess that does not fit concerns its own call only."""
    count, ceiling, level = verdict[:3]
    return not (demand.may_fail and demand.is_hint and count == COST and level.settled[COST] < ceiling)


def clamp_beyond(demand: Demand, held: tuple[int, ...], output: int) -> tuple[int, Exhausted | None]:
    """Look at the ceilings above what was carved, and return the output that they leave.

    What was carved is reserved under them, so they only limit the call once something below them has spent more than
    was reserved for it. Reservations of other calls under these ceilings are ignored.
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


def held_again(demand: Demand) -> tuple[int, ...]:
    """Return what may be held for a landing turn again after a call: as much as before it, if there is still room."""
    account = demand.account
    hold = list(demand.held_before)
    for count, ceiling, level in account.ceilings:
        room = ceiling - level.settled[count] - level.reserved[count] + account.landing_hold[count]
        hold[count] = max(min(hold[count], room), 0)
    return tuple(hold)


# --- the retry of a call that may fail --------------------------------------------------------------------------------
# The retry that is reserved for a call in case it fails also serves one of the calls inside it: a failure inside a call
# usually is the failure of the call, so calls inside each other need one retry, not one each. Calls that run side by
# side inside a call can all fail, so only one of them borrows its retry; the others reserve their own. A call that ends
# before the one that borrows from it leaves it the retry.


def lender_of(demand: Demand) -> Demand | None:
    """Return the enclosing call whose reserved retry can cover this call; None if there is none, or it covers one."""
    around = demand.inside
    while around is not None and not around.has_retry:
        around = around.inside
    return None if around is None or around.borrower is not None else around


def reserve_retry(demand: Demand) -> None:
    """Reserve a retry for a call that may fail, at every account at which the call around it does not cover it."""
    lender = lender_of(demand)
    path = demand.account.paths[RETRIES]
    shared = () if lender is None else tuple(level for level in path if level in lender.account.paths[RETRIES])
    if lender is not None and shared:  # not by a retry outside of what its context has carved
        lender.borrower, demand.lender, demand.borrowed_at = demand, lender, shared
    demand.has_retry, levels = True, iter(path)
    try:
        for level in levels:
            level.reserved[RETRIES] += level not in demand.borrowed_at
    except BaseException:  # a signal handler raised between two accounts: the later release covers all of them
        for level in levels:
            level.reserved[RETRIES] += level not in demand.borrowed_at
        raise


def release_retry(demand: Demand) -> None:
    """Give back the retry of a call that has ended, or leave it to the call inside it that goes on."""
    lender, borrower = demand.lender, demand.borrower
    demand.has_retry, demand.lender, demand.borrower = False, None, None
    levels = iter(demand.account.paths[RETRIES])
    try:
        for level in levels:
            if level in demand.borrowed_at:
                continue
            if borrower is not None and level in borrower.borrowed_at:
                borrower.borrowed_at = tuple(other for other in borrower.borrowed_at if other is not level)
            else:
                level.reserved[RETRIES] -= 1
    except BaseException:  # a signal handler raised between two accounts
        lent = demand.borrowed_at if borrower is None else (*demand.borrowed_at, *borrower.borrowed_at)
        for level in levels:
            level.reserved[RETRIES] -= level not in lent
        raise
    demand.borrowed_at = ()
    if borrower is not None:
        borrower.lender = lender if borrower.borrowed_at else None
    if lender is not None:
        lender.borrower = borrower if borrower is not None and borrower.borrowed_at else None
