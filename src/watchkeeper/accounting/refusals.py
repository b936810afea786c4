"""Verdicts on a call, and the stops that follow from them: reason, limit, value, and the sentence for a person.

The sentences are part of the interface: they say whose limit was reached, what was used, what is kept for the end, and
what the call could have needed. Nothing here decides or changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from watchkeeper.accounting.account import RETRIES, STEPS, Account
from watchkeeper.accounting.call_request import NodeKind
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


KINDS: Final[Mapping[NodeKind, str]] = {"llm": "model call", "tool": "tool call", "child": "child run"}
"""What people call the kinds of calls."""


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
        said = (
            f"{subject(account, caller)} reached its {'cost ' if meter.measures == 'money' else ''}ceiling of {value}"
        )
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


CLOSED_UNDER_WAY: Final = Stop("aborted", "gate", "The context was closed while the call was under way.")
