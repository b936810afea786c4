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
        hold: What the landing turn will need after this call, by count; None leaves the hold as it is.
        landing: Whether this is the landing turn itself, which uses up the hold.
        may_fail: Whether a failure of the call spends one retry; one is then set aside for it, at every account but
            those ``covered``.
        inside: The call around it that may fail, if there is one.
        covers: Whether a retry is set aside for it now; set by the ledger, like all below.
        lender: The call around it whose retry covers it.
        borrower: The call inside it that its retry covers.
        covered: Accounts at which the lender's retry takes the place of one of its own.
        granted: Output tokens granted; set by the ledger.
        reserved: ``(count, amount)`` of what is set aside; empty before admission and after settlement.
        held: What the context held for its landing turn before the call was admitted; set by the ledger.
        day: The day (UTC) on which it was admitted; set by a ledger that keeps days.
    """

    __slots__ = (
        "account",
        "borrower",
        "concerns",
        "counts",
        "covered",
        "covers",
        "day",
        "granted",
        "held",
        "hold",
        "inside",
        "landing",
        "least",
        "lender",
        "may_fail",
        "most",
        "per_output",
        "reserved",
        "wants",
    )

    def __init__(self, account: Account, request: CallRequest, inside: Demand | None = None) -> None:
        """Translate a request of ``account``'s context."""
        estimate = request.estimate
        most, tokens_in = estimate.max_output_tokens, estimate.input_tokens
        self.account = account
        self.may_fail = request.spends_retry_on_error
        self.concerns, self.counts, retries = SHAPES[request.kind, request.retry, self.may_fail]
        self.wants = (estimate.input_nanos, tokens_in, tokens_in, 0, 1, 1, retries)
        self.per_output = (estimate.output_nanos_per_token, 1, 0, 1, 0, 0, 0) if most else NOTHING
        self.most = most
        least = estimate.min_output_tokens or account.limits.min_output_tokens
        self.least = least if least < most else most
        self.landing = request.phase == "landing"
        self.hold = None if request.landing is None else landing_hold(account, request.landing)
        self.inside = inside
        if self.may_fail:  # only then anybody looks at them, and every call is made with care for its nanoseconds
            self.covers = False
            self.lender: Demand | None = None
            self.borrower: Demand | None = None
            self.covered: tuple[Account, ...] = ()
        self.granted = 0
        self.reserved: tuple[tuple[int, int], ...] = ()
        self.held = NOTHING
        self.day = ""


Shape = tuple[tuple[bool, ...], tuple[int, ...], int]


def shape(kind: str, retry: bool, may_fail: bool) -> Shape:
    """Return what depends only on the kind of a call: the limits that concern it, its counts, its retries."""
    concerns = (True, True, True, True, True, kind == "tool", retry or may_fail)
    of_kind = {"llm": (MODEL_CALLS,), "tool": (TOOL_CALLS,)}.get(kind, ())
    of_retry = (RETRIES,) if retry and not may_fail else ()
    return concerns, (STEPS, *of_kind, *of_retry), int(retry or may_fail)


FLAGS: Final = (False, True)
SHAPES: Final[dict[tuple[str, bool, bool], Shape]] = {
    (kind, retry, may_fail): shape(kind, retry, may_fail)
    for kind in ("llm", "tool", "child")
    for retry in FLAGS
    for may_fail in FLAGS
}


def landing_hold(account: Account, estimate: Estimate) -> tuple[int, ...]:
    """Return what to keep back for a landing turn with this worst case; the step that is kept for it stays."""
    tokens_in, tokens_out = estimate.input_tokens, estimate.max_output_tokens
    cost = estimate.nanos(tokens_out)
    return (cost, tokens_in + tokens_out, tokens_in, tokens_out, account.hold[STEPS], 0, 0)
