"""Carving: what a context gets for itself from what those above it have left, and how it comes back.

What is carved is set aside above as a claim, so that nobody else can take it. While the context is open, its claim is
what it was given less what is settled in it: spending moves up as spent, once, and frees nothing. Once the context is
closed, or stopped for good, its claim is no more than what calls under way in it still hold. Pure arithmetic on
accounts; the ledger calls it inside its critical section.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import inf
from typing import Any, Final, NamedTuple, cast

from watchkeeper.containment.account import (
    CEILINGS,
    COST,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    STEPS,
    TOTAL_TOKENS,
    Account,
    Claim,
)
from watchkeeper.containment.admission import Waits
from watchkeeper.core.errors import LimitsError
from watchkeeper.core.limits import Limits
from watchkeeper.core.usage import NANOS_PER_USD

SAFETY_NETS: Final = Limits()
"""A ceiling left at its default is a safety net, no wish to have that much set aside."""


LEAST_FOR_A_VERDICT: Final = {COST: 0, TOTAL_TOKENS: 4096, INPUT_TOKENS: 3072, OUTPUT_TOKENS: 1024}
"""What is kept even where the share is less, unless that would be more than a quarter of what there is."""


class Left(NamedTuple):
    """What is left of one count, and the ceiling that says so."""

    amount: int
    ceiling: Waits


def left_of(account: Account) -> dict[int, Left]:
    """Return, for every count that an account or one above it limits, what the tightest of those ceilings leaves."""
    found: dict[int, Left] = {}
    inside, beyond = account.ceilings, account.beyond
    for rows, shared in ((inside, True), (beyond, False)):
        for count, ceiling, level in rows:
            free = ceiling - level.settled[count] - (level.reserved[count] if shared else 0)
            if count not in found or free < found[count].amount:
                found[count] = Left(max(free, 0), Waits(count, ceiling, level))
    return found


def wishes_of(account: Account) -> dict[int, int]:
    """Return what a child's own ceilings ask for."""
    return {
        count: top
        for count, top in enumerate(account.tops)
        if top is not None and top != SAFETY_NETS.ceiling(CEILINGS[count])
    }


def kept_of(keeper: Account, left: Mapping[int, Left]) -> dict[int, int]:
    """Return what an account keeps for a verdict, of all counts that its limits or those around it bound.

    A verdict takes a model call inside a child run, so of steps at least two are kept, if that leaves the work some. An
    account that runs share is no part of the run: of what it alone bounds, nothing is kept.
    """
    verdict = keeper.limits.verdict
    if verdict is None:
        return {}
    bounded = {count for count, _, level in (*keeper.ceilings, *keeper.beyond) if level.period is None}
    wishes: dict[int, int] = {}
    for count in bounded & {*LEAST_FOR_A_VERDICT, STEPS}:
        rest = left[count].amount
        share = int(rest * verdict.share)
        least = (2 if rest > 2 else 0) if count == STEPS else min(LEAST_FOR_A_VERDICT[count], rest // 4)
        wishes[count] = max(share, least)
    return {count: wish for count, wish in wishes.items() if wish}


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise a LimitsError unless there are weights and all are finite numbers above zero."""
    if not weights:
        raise LimitsError("there is nobody to split between; give weights by name, for example {'a': 3, 'b': 1}")
    for name, weight in weights.items():
        given = cast("object", weight)
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < inf:
            raise LimitsError(f"the weight of {name!r} is {given!r}; it must be a finite number above zero")


def shares_of(left: Mapping[int, Left], weights: Sequence[float]) -> list[dict[int, int]]:
    """Divide what is left by weight; rounded down, so that the shares together never exceed it."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    return [{count: int(rest.amount * weight / total) for count, rest in left.items()} for weight in exact]


def carve(account: Account, wishes: Mapping[int, int], left: Mapping[int, Left]) -> Waits | None:
    """Give an account what it wishes, at most what is left, as ceilings of its own that are set aside above it.

    Of a count that nothing above limits, and of tool calls and retries of which nothing is left, nothing is carved: the
    account shares what those above it have.

    Returns:
        The ceiling above that leaves nothing of what every call needs: cost, tokens or steps. Then nothing is carved.
    """
    given = {count: min(wish, left[count].amount) for count, wish in wishes.items() if count in left}
    for count, amount in given.items():
        if amount == 0 and count <= STEPS:
            return left[count].ceiling
    carved = [count for count, amount in given.items() if amount]
    for count in carved:
        account.tops[count] = given[count]
    account.limits = limited(account.limits, {count: given[count] for count in carved})
    account.carve(carved)
    return None


def limited(limits: Limits, tops: Mapping[int, int]) -> Limits:
    """Return limits with these ceilings, by count."""
    changes: dict[str, Any] = {}
    for count, top in tops.items():
        if limits.ceiling(CEILINGS[count]) != top:
            field, value = ("max_cost_usd", Decimal(top) / NANOS_PER_USD) if count == COST else (CEILINGS[count], top)
            changes[field] = value
    return replace(limits, **changes) if changes else limits


def update(claim: Claim) -> None:
    """Set aside above what is claimed now: what was carved less what is settled, or what an ended account still needs.

    To be called, innermost claim first, whenever figures of the account have changed.
    """
    account, count = claim.account, claim.count
    amount = max((account.tops[count] or 0) - account.settled[count], 0)
    if account.barred is not None:
        amount = min(amount, account.reserved[count])
    change = amount - claim.amount
    if change:
        claim.amount = amount
        for level in claim.outer:
            level.reserved[count] += change
        if account.speaks:
            keeper = account.chain[1]
            keeper.kept = (*keeper.kept[:count], keeper.kept[count] + change, *keeper.kept[count + 1 :])
