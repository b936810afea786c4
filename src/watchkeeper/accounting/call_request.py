"""One call at the gate: what is asked, the most that it may cost, what that takes of the accounts, what it did cost.

An estimate must be a true upper bound: a ceiling holds as exactly as the estimates do. Money is whole nano-dollars.
Requests and charges are made once per call, so they are msgspec structs: frozen, and ten times cheaper to build than a
dataclass. A `Demand` is the request in the terms of the accounts; a ledger notes on it what is reserved for the call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any, Final, Literal

import msgspec

from watchkeeper.accounting.account import NOTHING, RETRIES, SPENDABLE, Account
from watchkeeper.core.errors import LimitsError
from watchkeeper.core.meters import COLUMNS, EVERY_CALL, SHARED, UNLIMITED_COUNTS
from watchkeeper.core.usage import NANOS_PER_USD, TokenUsage

NodeKind = Literal["llm", "tool", "child"]

KINDS: Final[Mapping[NodeKind, str]] = {"llm": "model call", "tool": "tool call", "child": "child run"}
"""What people call the kinds of calls."""

NO_TOKENS: Final = TokenUsage()


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """The worst case of a call.

    Attributes:
        input_tokens: The most input it can have.
        max_output_tokens: The output cap that is wished for; the gate may grant less.
        min_output_tokens: The least output worth asking for; 0 takes ``Limits.min_output_tokens``.
        input_nanos: The most that its input, and whatever else does not depend on the output cap, can cost.
        output_nanos_per_token: The most that one output token can cost, rounded up.
        known_cost: False if there is no price; the gate then refuses wherever a cost ceiling holds.
    """

    input_tokens: int = 0
    max_output_tokens: int = 0
    min_output_tokens: int = 0
    input_nanos: int = 0
    output_nanos_per_token: int = 0
    known_cost: bool = True

    def nanos(self, output_tokens: int) -> int:
        """Return the most that the call can cost with this output cap, in nano-dollars."""
        return self.input_nanos + self.output_nanos_per_token * output_tokens


class Charge(msgspec.Struct, frozen=True):
    """What a call really cost.

    Attributes:
        tokens: As the provider reported them.
        cost_nanos: Money, or None if nobody knows the price.
    """

    tokens: TokenUsage = NO_TOKENS
    cost_nanos: int | None = 0


Dollars = Decimal | str | float
LARGEST: Final = 10_000_000_000


def nanos(usd: Dollars, field: str) -> int:
    """Return an amount in nano-dollars, rounded up; 0 is an amount too.

    Raises:
        LimitsError: If it is not a finite amount of at least 0 and at most ten billion dollars.
    """
    if isinstance(usd, float | int) and not isinstance(usd, bool):
        if 0 <= usd <= LARGEST:
            return math.ceil(round(usd * NANOS_PER_USD, 3))
    else:
        try:
            amount = Decimal(usd)
        except (InvalidOperation, TypeError, ValueError):
            amount = Decimal("NaN")
        if amount.is_finite() and 0 <= amount <= LARGEST and not isinstance(usd, bool):
            return int((amount * NANOS_PER_USD).to_integral_value(rounding=ROUND_CEILING))
    raise LimitsError(f"{field}={usd!r} must be a finite number of dollars, 0 or more")


NO_ESTIMATE: Final = Estimate()


class CallRequest(msgspec.Struct, frozen=True):
    """What is asked of the gate.

    Attributes:
        kind: A model call, a tool call, or a child run.
        operation_name: A label for people.
        estimate: The worst case, reserved before the call.
        timeout: Seconds that this call may take from its admission on, or None for as long as its phase has.
        retry: Whether the call repeats a failed one; it then spends one retry.
        phase: ``landing`` for the last turn, which may pass a stop of work.
        landing: What a landing turn would need after this call; kept back for it from now on.
        spends_retry_on_error: Whether a failure spends a retry; one is reserved for it.
        max_retries: How often in a row an operation of this name may be repeated; None for as often as
            the chain allows.
        model: What hooks are told about the model.
        provider: Whom it goes to; key of the circuit breaker where there is one for each.
        degraded: Whether it is the cheaper call already; a hook that says DEGRADE lets it pass.
        arguments: What hooks are told about the arguments of a tool; None for nothing.
    """

    kind: NodeKind
    operation_name: str = ""
    estimate: Estimate = NO_ESTIMATE
    timeout: float | None = None
    retry: bool = False
    phase: Literal["work", "landing"] = "work"
    landing: Estimate | None = None
    spends_retry_on_error: bool = False
    max_retries: int | None = None
    model: str = ""
    provider: str = ""
    degraded: bool = False
    arguments: Any = None


# --- what it takes from the accounts ----------------------------------------------------------------------------------

NO_CALLS: Final = NOTHING[len(SPENDABLE) :]


class Demand:
    """What one call asks of the accounts; after admission, the record of what is reserved for it.

    Attributes:
        account: Who pays.
        concerns: By count, whether that limit concerns the call at all.
        wants: By count, what the call takes whatever its output.
        per_output: By count, what each output token adds.
        most: Output tokens wished for.
        least: Output tokens below which the call is not worth sending.
        counts: What is settled with one each by being admitted.
        landing: Whether this is the landing turn itself, which uses up the landing hold.
        next_hold: The landing hold that is needed after this call, by count; None leaves it as it is.
        may_fail: Whether a failure of the call spends one retry; one is then reserved for it, at every account but
            those in ``borrowed_at``.
        inside: The call around it that may fail, if there is one.
        has_retry: Whether a retry is reserved for it now; set by the ledger, like all below.
        lender: The call around it whose retry serves it too.
        borrower: The call inside it that its retry serves too.
        borrowed_at: Accounts at which the lender's retry takes the place of one of its own.
        granted: Output tokens granted.
        reserved: ``(count, amount)`` of what is reserved; empty before admission and after settlement.
        held_before: The context's landing hold before the call was admitted.
        day: The day (UTC) on which it was admitted; set by a ledger that keeps days.
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
        "landing",
        "least",
        "lender",
        "may_fail",
        "most",
        "next_hold",
        "per_output",
        "reserved",
        "wants",
    )

    def __init__(self, account: Account, request: CallRequest, inside: Demand | None = None) -> None:
        """Translate a request of ``account``'s context."""
        estimate, last = request.estimate, request.landing
        most, tokens_in = estimate.max_output_tokens, estimate.input_tokens
        self.account = account
        self.may_fail = request.spends_retry_on_error
        self.concerns, self.counts, of_calls = SHAPES[request.kind, request.retry, self.may_fail]
        self.wants = (estimate.input_nanos, tokens_in, tokens_in, 0) + of_calls  # noqa: RUF005 - twice as fast
        self.per_output = (estimate.output_nanos_per_token, 1, 0, 1) + NO_CALLS if most else NOTHING  # noqa: RUF005
        self.most = most
        least = estimate.min_output_tokens or account.limits.min_output_tokens
        self.least = least if least < most else most
        self.landing = request.phase == "landing"
        self.next_hold: tuple[int, ...] | None = None
        if last is not None:  # the worst case of the landing turn; the calls that are kept for it stay
            tokens_in, tokens_out = last.input_tokens, last.max_output_tokens
            cost = last.input_nanos + last.output_nanos_per_token * tokens_out
            calls = account.landing_hold[len(SPENDABLE) :]
            self.next_hold = (cost, tokens_in + tokens_out, tokens_in, tokens_out, *calls)
        self.inside = inside
        if self.may_fail:  # read only then, and each attribute costs every call its nanoseconds
            self.has_retry = False
            self.lender: Demand | None = None
            self.borrower: Demand | None = None
            self.borrowed_at: tuple[Account, ...] = ()
        self.granted = 0
        self.reserved: tuple[tuple[int, int], ...] = ()
        self.held_before = NOTHING
        self.day = ""


COUNTED_CALLS: Final = {**UNLIMITED_COUNTS, **{meter.column: meter.calls for meter in SHARED if meter.is_counted}}
"""By column, the calls that count there."""

Shape = tuple[tuple[bool, ...], tuple[int, ...], tuple[int, ...]]


def shape(kind: str, retry: bool, may_fail: bool) -> Shape:
    """Return what depends only on the kind of a call: the limits that concern it, what it counts for, what it needs."""
    wanted = {kind, "retry"} if retry or may_fail else {kind}
    settled = {kind, "retry"} if retry and not may_fail else {kind}
    concerns = tuple(not wanted.isdisjoint(meter.calls) for meter in SHARED)
    counts = tuple(COLUMNS.index(column) for column, calls in COUNTED_CALLS.items() if not settled.isdisjoint(calls))
    return concerns, counts, tuple(int(concerned) for concerned in concerns[len(SPENDABLE) :])


SHAPES: Final[dict[tuple[str, bool, bool], Shape]] = {
    (kind, retry, may_fail): shape(kind, retry, may_fail)
    for kind in EVERY_CALL
    for retry in (False, True)
    for may_fail in (False, True)
}


def held_again(demand: Demand) -> tuple[int, ...]:
    """Return the landing hold as it was before a call was admitted, as far as there still is room for it."""
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
    """Return the call around this one whose retry covers it now, if there is one and it covers no other."""
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
    demand.has_retry = True
    for level in path:
        level.reserved[RETRIES] += level not in demand.borrowed_at


def release_retry(demand: Demand) -> None:
    """Give back the retry of a call that has ended, or leave it to the call inside it that goes on."""
    lender, borrower = demand.lender, demand.borrower
    demand.has_retry, demand.lender, demand.borrower = False, None, None
    for level in demand.account.paths[RETRIES]:
        if level in demand.borrowed_at:
            continue
        if borrower is not None and level in borrower.borrowed_at:
            borrower.borrowed_at = tuple(other for other in borrower.borrowed_at if other is not level)
        else:
            level.reserved[RETRIES] -= 1
    demand.borrowed_at = ()
    if borrower is not None:
        borrower.lender = lender if borrower.borrowed_at else None
    if lender is not None:
        lender.borrower = borrower if borrower is not None and borrower.borrowed_at else None
