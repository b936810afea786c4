"""One call at the gate: the request, the most that it may cost, the gate's verdict, and its real cost.

An estimate must be a true upper bound: a ceiling holds as exactly as the estimates do. Money is whole nano-dollars.
Most are made once per call, so they are msgspec structs: frozen, and ten times cheaper to build than a dataclass.

The sentences of a stop are part of the interface: they say whose limit was reached, what was used, what is kept for the
end, and what the call could have needed. Nothing here decides or changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any, Final, Literal, NamedTuple

import msgspec

from watchkeeper.accounting.account import MODEL_CALLS, RETRIES, STEPS, TOOL_CALLS, Account
from watchkeeper.core.errors import LimitsError, Stop
from watchkeeper.core.meters import SHARED
from watchkeeper.core.quantities import counted, format_duration
from watchkeeper.core.usage import NANOS_PER_USD, NOTHING_PRESUMED, Presumed, TokenUsage

NodeKind = Literal["llm", "tool", "child"]

KINDS: Final[Mapping[NodeKind, str]] = {"llm": "model call", "tool": "tool call", "child": "child run"}
"""What people call the kinds of calls."""

NO_TOKENS: Final = TokenUsage()


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """The worst case of a call.

    Attributes:
        input_tokens: The most input it can have.
        max_output_tokens: The requested output cap; the gate may grant less.
        min_output_tokens: The smallest useful output cap; 0 takes ``Limits.min_output_tokens``.
        input_nanos: Maximum cost of its input and of everything else that does not depend on the output cap.
        output_nanos_per_token: The most that one output token can cost, rounded up.
        known_cost: False if there is no price; the gate then refuses wherever a cost ceiling holds.
        is_hint: Whether the cost is a guess and not an upper bound: if it does not fit, only this call is refused, and
            no stop is latched while the spent amount is below the ceiling.
    """

    input_tokens: int = 0
    max_output_tokens: int = 0
    min_output_tokens: int = 0
    input_nanos: int = 0
    output_nanos_per_token: int = 0
    known_cost: bool = True
    is_hint: bool = False

    def nanos(self, output_tokens: int) -> int:
        """Return the most that the call can cost with this output cap, in nano-dollars."""
        return self.input_nanos + self.output_nanos_per_token * output_tokens


class Charge(msgspec.Struct, frozen=True):
    """What a call really cost.

    Attributes:
        tokens: As the provider reported them.
        cost_nanos: Cost in nano-dollars, or None if the price is unknown.
        presumed: The part of it that is presumed, because the true figures are unknown.
        reported: The tokens that were reported, if others are charged: by a hint, or a bound; None if the same are.
    """

    tokens: TokenUsage = NO_TOKENS
    cost_nanos: int | None = 0
    presumed: Presumed = NOTHING_PRESUMED
    reported: TokenUsage | None = None


def presumed_charge(tokens: TokenUsage, cost_nanos: int | None) -> Charge:
    """Return the charge of a call whose true cost is unknown: its worst case, so that a ceiling holds."""
    return Charge(tokens, cost_nanos, Presumed(1, tokens, cost_nanos), NO_TOKENS)


Dollars = Decimal | str | float
LARGEST: Final = 1_000_000_000
"""The most that one call may be said to cost: many of them must fit into the 64 bits of a ledger's file."""


def nanos(usd: Dollars, field: str) -> int:
    """Return an amount in nano-dollars, rounded up; 0 is an amount too.

    Raises:
        LimitsError: If it is not a finite amount of at least 0 and at most a billion dollars, or text with
            other digits than 0 to 9.
    """
    if isinstance(usd, float | int) and not isinstance(usd, bool):
        if 0 <= usd <= LARGEST:
            return math.ceil(round(usd * NANOS_PER_USD, 3))
    else:
        try:
            amount = Decimal(usd)
        except (InvalidOperation, TypeError, ValueError):
            amount = Decimal("NaN")
        is_plain = not isinstance(usd, bool) and (not isinstance(usd, str) or usd.isascii())
        if is_plain and amount.is_finite() and 0 <= amount <= LARGEST:
            return int((amount * NANOS_PER_USD).to_integral_value(rounding=ROUND_CEILING))
    raise LimitsError(f"{field}={usd!r} must be a finite number of dollars, 0 or more, at most ${LARGEST:,}")


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
        provider: The provider called; key of its circuit breaker if each provider has one.
        degraded: Whether it is the cheaper call already; a hook that says DEGRADE lets it pass.
        arguments: What hooks are told about the arguments of a tool; None for nothing.
        call_id: The provider's id of a tool call; the record of what is started in it names it.
        approved_by: Who has approved this very call, for which its run was parked; None if nobody was asked.
        recorder: Where its caller itself puts it on record, its beginning and its end; None if the caller does not.
        on_log: Whether its end is an event of its run's log, as for the calls of the loop.
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
    call_id: str | None = None
    approved_by: str | None = None
    recorder: Any = None
    on_log: bool = False


class EstimatedRequest(CallRequest, frozen=True):
    """A model call whose true worst case may be too much for a small budget of a nested evaluation.

    Attributes:
        likely: What it will probably cost, by an estimate of its input. Only the account of an isolated nested budget
            admits it by that; every account above reserves the worst case.
    """

    likely: Estimate = NO_ESTIMATE


# --- what is answered -------------------------------------------------------------------------------------------------


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The call may run, with at most ``output_tokens`` output tokens."""

    output_tokens: int


class Stopped(msgspec.Struct, frozen=True):
    """The call may not run: this stop was latched before."""

    stop: Stop


class Expired(msgspec.Struct, frozen=True):
    """The call may not run: the time is over."""


class Exhausted(NamedTuple):
    """The call may not run: what is settled and what is kept for the end leave less than its minimum need."""

    limit: int
    ceiling: int
    account: Account
    need: int = 0
    left: int = 0


class Waits(NamedTuple):
    """The call must wait: it fits under this ceiling once other calls release their reservations."""

    limit: int
    ceiling: int
    account: Account


class Locked(msgspec.Struct, frozen=True):
    """The call must wait: nothing can be decided now, because others hold the ledger for a moment."""


Ruling = Admitted | Stopped | Expired | Exhausted | Waits


CLOSED_UNDER_WAY: Final = Stop("aborted", "gate", "The context was closed while the call was under way.")


def exhausted(verdict: Exhausted | Waits, caller: Account, *, landing: bool) -> Stop:
    """Say that a ceiling, of a context or of a shared account, leaves too little for the smallest useful call."""
    count, ceiling, account = verdict[:3]
    meter = SHARED[count]
    field = meter.field
    used = account.settled[count]
    if count == RETRIES:
        ceiling = account.tops[RETRIES] or 0
        used = min(used, ceiling)
    value = meter.amount(ceiling)
    shared = account.period is not None
    whose, kind = subject(account, caller), "cost " if meter.measures == "money" else ""
    if shared:
        field, value = "account_limit", str(account.limits.account_limit)
        whose, kind = f"The account {account.name!r}", ""
    left, need = (verdict.left, verdict.need) if isinstance(verdict, Exhausted) and not meter.is_counted else (0, 0)
    too_little = 0 < left < need
    said = f"{whose} has {meter.amount(left)} left of" if too_little else f"{whose} reached"
    said += f" its {kind}ceiling of {value}"
    if used < ceiling:
        said += f" after {meter.amount(used)}"
    if count not in (STEPS, TOOL_CALLS) and not shared:
        said += f" in {made(account)}"
    if isinstance(verdict, Waits):
        said += "; others hold the rest"
    else:
        said += "" if shared else kept_back(count, account, caller, landing=landing)
        said += f"; the next call could need up to {meter.amount(need)}" if too_little else ""
    if account.renews_on is not None:
        said += f"; the {account.period} ends at {account.renews_on.isoformat()} 00:00 UTC"
    return Stop(meter.reason, "gate", f"{said}.", field, value)


def kept_back(count: int, account: Account, caller: Account, *, landing: bool) -> str:
    """Say how much is kept for landing turns, also of runs below, and for a verdict, unless the call is one of them."""
    levels = caller.chain[: caller.chain.index(account) + 1] if account in caller.chain else (account,)
    hold = sum(level.landing_hold[count] for level in levels if level is not caller or not landing)
    whose = "its" if account.landing_hold[count] == hold else "the"
    judges = any(level.for_verdict and level.chain[1] is account for level in caller.chain)
    kept = 0 if judges else account.verdict_hold[count]
    amount = SHARED[count].amount
    parts = [f"{amount(hold)} kept for {whose} last turn"] if hold else []
    parts += [f"{amount(kept)} kept for its verdict"] if kept else []
    return "".join(f"; {part}" for part in parts)


def made(account: Account) -> str:
    """Say which calls an account has admitted: model calls, tool calls and child runs."""
    models, tools = account.settled[MODEL_CALLS], account.settled[TOOL_CALLS]
    below = account.settled[STEPS] - models - tools
    kinds = ((models, KINDS["llm"]), (tools, KINDS["tool"]), (below, KINDS["child"]))
    return ", ".join(counted(number, kind) for number, kind in kinds if number > 0) or "0 calls"


def expired(account: Account, *, landing: bool) -> Stop:
    """Say that the time is over: the work's, or (for a landing turn) all of it."""
    took = account.deadline_at - account.opened_at
    whole = max(account.whole_seconds, took, 0.0)
    owner = account.ends_with or account
    total = format_duration(whole if owner is account else owner.whole_seconds)
    said = f"{subject(owner, account)} reached its deadline of {total}"
    if whole - took >= 1:
        said += f" by the wall clock, which went ahead by {format_duration(whole - took)}"
    kept = account.kept_seconds if landing else account.deadline_at - account.work_until
    parts = (account.has_landing and not landing, "its last turn"), (account.keeps_verdict, "its verdict")
    whom = " and ".join(name for holds, name in parts if holds)
    if owner is not account:
        between = account.chain[: account.chain.index(owner)]
        above = (level.parent for level in between if not level.for_verdict)
        kept += sum(level.deadline_at - level.work_until for level in above if level is not None)
        whom = "last turns and verdicts"
    if kept > 0:
        said += f"; the last {format_duration(kept)} are kept for {whom}"
    return Stop("timeout", "gate", f"{said}.", "deadline", total)


def aborted(reason: str) -> Stop:
    """Say that the caller aborted, with the reason that the caller gave."""
    return Stop("aborted", "caller", f"The run was aborted: {reason}")


def subject(account: Account, caller: Account) -> str:
    """Return the name of the run that the limit belongs to, for a message."""
    if account.name:
        return f"The run {account.name!r}"
    return "The run" if account is caller else "The whole run"
