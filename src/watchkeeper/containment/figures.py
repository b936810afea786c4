"""What an account says to the outside: usage and budget status. Reading only."""

from __future__ import annotations

from watchkeeper.containment.account import (
    CACHE_WRITE_TOKENS,
    CACHED_TOKENS,
    COST,
    INPUT_TOKENS,
    MODEL_CALLS,
    OUTPUT_TOKENS,
    REASONING_TOKENS,
    RETRIES,
    STEPS,
    TOOL_CALLS,
    TOTAL_TOKENS,
    Account,
)
from watchkeeper.core.budget import BudgetStatus
from watchkeeper.core.deadline import Deadline
from watchkeeper.core.stop import Stop
from watchkeeper.core.usage import TokenUsage, Usage


def usage_of(account: Account) -> Usage:
    """Return what an account and all below it have used."""
    settled = account.settled.copy()
    return Usage(
        tokens=TokenUsage(
            settled[INPUT_TOKENS],
            settled[OUTPUT_TOKENS],
            settled[CACHED_TOKENS],
            settled[CACHE_WRITE_TOKENS],
            settled[REASONING_TOKENS],
        ),
        cost_nanos=None if account.unpriced else settled[COST],
        model_calls=settled[MODEL_CALLS],
        tool_calls=settled[TOOL_CALLS],
        steps=settled[STEPS],
        retries=retries_of(account),
    )


def retries_of(account: Account) -> int:
    """Return the retries spent; a last failure that found none left spends none."""
    ceiling = account.tops[RETRIES]
    spent = account.settled[RETRIES]
    return spent if ceiling is None else min(spent, ceiling)


def budget_status_of(
    account: Account, deadline: Deadline | None, now: float, turns_used: int | None = None
) -> BudgetStatus:
    """Return the account's own ceilings beside what was used; of turns only if it is said how many were taken."""
    tops, settled = account.tops, account.settled
    # By place, each ceiling before its use: it is made for every tool call, and names cost five times as much.
    return BudgetStatus(
        deadline,
        now - account.opened_at,
        None if deadline is None else max(account.deadline_at - now, 0.0),
        tops[TOTAL_TOKENS],
        settled[TOTAL_TOKENS],
        tops[TOOL_CALLS],
        settled[TOOL_CALLS],
        tops[COST],
        None if account.unpriced else settled[COST],
        tops[STEPS],
        settled[STEPS],
        tops[INPUT_TOKENS],
        settled[INPUT_TOKENS],
        tops[OUTPUT_TOKENS],
        settled[OUTPUT_TOKENS],
        tops[RETRIES],
        retries_of(account),
        None if turns_used is None else account.limits.ceiling("max_turns"),
        turns_used or 0,
    )


def stop_of(account: Account) -> Stop | None:
    """Return what ended everything here, found here or above."""
    return next((level.stop for level in account.chain if level.stop is not None), None)


def work_stop_of(account: Account) -> Stop | None:
    """Return what ended the work here, found here or above; a stop of everything ends the work too.

    The end of the work above does not concern what is kept for a verdict.
    """
    stops = ((None if level in account.past else level.work_stop) or level.stop for level in account.chain)
    return next((stop for stop in stops if stop is not None), None)


def retries_left(account: Account) -> bool:
    """Return whether another failure in this chain would still find a retry."""
    rows = (row for row in (*account.ceilings, *account.beyond) if row[0] == RETRIES)
    return all(level.settled[RETRIES] < ceiling for _, ceiling, level in rows)


def spent_share(account: Account) -> float | None:
    """Return which share of its cost ceiling is spent, of the tightest one in its chain; None without one."""
    share: float | None = None
    for count, ceiling, level in (*account.ceilings, *account.beyond):
        if count == COST:
            share = max(share or 0.0, level.settled[COST] / ceiling)
    return share
