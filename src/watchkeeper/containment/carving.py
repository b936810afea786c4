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

from watchkeeper.containment.account import CEILINGS, COST, STEPS, Account, Claim
from watchkeeper.containment.admission import Waits
from watchkeeper.core.errors import LimitsError
from watchkeeper.core.limits import Limits
from watchkeeper.core.usage import NANOS_PER_USD

SAFETY_NETS: Final = Limits()
"""A ceiling left at its default is a safety net, no wish to have that much set aside."""


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
