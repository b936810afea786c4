"""What one call asks of the accounts, in the terms that admission decides in.

Built once per call from its request; afterwards it is the record of what was reserved for the call, so that exactly
that is given back.
"""

from __future__ import annotations

from typing import Final

from watchkeeper.containment.account import (
    COST,
    INPUT_TOKENS,
    MODEL_CALLS,
    NOTHING,
    OUTPUT_TOKENS,
    RETRIES,
    STEPS,
    TOOL_CALLS,
    TOTAL_TOKENS,
    Account,
)
from watchkeeper.containment.call import CallRequest
from watchkeeper.containment.estimate import Estimate

SPENDABLE: Final = (COST, TOTAL_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS)


class Demand:
    """A call's wants.

    Attributes:
        account: Who pays.
        concerns: By count, whether that limit concerns the call at all.
        wants: By count, what the call takes whatever its output.
        per_output: By count, what each output token adds.
        most: Output tokens wished for.
        least: Output tokens below which the call is not worth sending.
        counts: What is settled with one each by being admitted.
        sets_aside: What is reserved until the call is settled.
        hold: What the landing turn will need after this call, by count; None leaves the hold as it is.
        landing: Whether this is the landing turn itself, which uses up the hold.
        may_fail: Whether a failure of the call spends one retry (one is then set aside for it).
        granted: Output tokens granted; set by the ledger.
        reserved: ``(count, amount)`` of what is set aside; empty before admission and after settlement.
    """

    __slots__ = (
        "account",
        "concerns",
        "counts",
        "granted",
        "hold",
        "landing",
        "least",
        "may_fail",
        "most",
        "per_output",
        "reserved",
        "sets_aside",
        "wants",
    )

    def __init__(self, account: Account, request: CallRequest, *, covered: bool = False) -> None:
        """Translate a request.

        Args:
            account: Who pays.
            request: The call.
            covered: Whether a call around this one has already set aside a retry for a failure.
        """
        estimate = request.estimate
        most = estimate.max_output_tokens
        tokens_in = estimate.input_tokens
        shape = SHAPES[request.kind, request.retry, request.spends_retry_on_error, covered]
        self.account = account
        self.concerns, self.counts, self.sets_aside, retries = shape
        tool = 1 if request.kind == "tool" else 0
        self.wants = (estimate.input_nanos, tokens_in, tokens_in, 0, 1, tool, retries)
        self.per_output = (estimate.output_nanos_per_token, 1, 0, 1, 0, 0, 0) if most else NOTHING
        self.most = most
        self.least = min(estimate.min_output_tokens or account.limits.min_output_tokens, most)
        self.landing = request.phase == "landing"
        self.hold = None if request.landing is None else landing_hold(account, request.landing)
        self.may_fail = request.spends_retry_on_error
        self.granted = 0
        self.reserved: tuple[tuple[int, int], ...] = ()


Shape = tuple[tuple[bool, ...], tuple[int, ...], tuple[int, ...], int]


def shape(kind: str, retry: bool, may_fail: bool, covered: bool) -> Shape:
    """Return what depends only on the kind of a call: limits that concern it, counts, what it sets aside, retries."""
    concerns = (True, True, True, True, True, kind == "tool", retry or may_fail)
    counts = [STEPS]
    if kind == "llm":
        counts.append(MODEL_CALLS)
    if kind == "tool":
        counts.append(TOOL_CALLS)
    if retry and not may_fail:
        counts.append(RETRIES)
    reserves_retry = may_fail and not covered
    sets_aside = (*SPENDABLE, RETRIES) if reserves_retry else SPENDABLE
    return concerns, tuple(counts), sets_aside, int(reserves_retry or (retry and not may_fail))


FLAGS: Final = (False, True)
SHAPES: Final[dict[tuple[str, bool, bool, bool], Shape]] = {
    (kind, retry, may_fail, covered): shape(kind, retry, may_fail, covered)
    for kind in ("llm", "tool", "child")
    for retry in FLAGS
    for may_fail in FLAGS
    for covered in FLAGS
}


def landing_hold(account: Account, estimate: Estimate) -> tuple[int, ...]:
    """Return what to keep back for a landing turn with this worst case; the step that is kept for it stays."""
    tokens_in, tokens_out = estimate.input_tokens, estimate.max_output_tokens
    cost = estimate.nanos(tokens_out)
    return (cost, tokens_in + tokens_out, tokens_in, tokens_out, account.hold[STEPS], 0, 0)


def held_after(demand: Demand) -> tuple[int, ...]:
    """Return what the context will hold for its landing turn once the call is admitted."""
    if demand.landing:
        return NOTHING
    return demand.account.hold if demand.hold is None else demand.hold
