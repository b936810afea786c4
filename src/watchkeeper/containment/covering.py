"""The retry that a call sets aside in case it fails also serves the calls inside it: one of them at a time.

A failure inside a call usually is the failure of the call, so calls inside each other need one retry, not one each. But
calls that run side by side inside a call can all fail, so only one of them is covered; the others set aside their own.
A call that ends before the one that it covers leaves it the retry. All of it happens in the ledger's critical section.
"""

from __future__ import annotations

from watchkeeper.containment.account import RETRIES
from watchkeeper.containment.demand import Demand


def lender_of(demand: Demand) -> Demand | None:
    """Return the call around this one whose retry covers it now, if there is one and it covers no other."""
    around = demand.inside
    while around is not None and not around.covers:
        around = around.inside
    return None if around is None or around.borrower is not None else around


def set_retry_aside(demand: Demand) -> None:
    """Reserve a retry for a call that may fail, at every account at which the call around it does not cover it."""
    lender = lender_of(demand)
    path = demand.account.paths[RETRIES]
    covered = () if lender is None else tuple(level for level in path if level in lender.account.paths[RETRIES])
    if lender is not None and covered:  # not by a retry outside of what its context has carved
        lender.borrower, demand.lender, demand.covered = demand, lender, covered
    demand.covers = True
    for level in path:
        level.reserved[RETRIES] += level not in demand.covered


def give_retry_back(demand: Demand) -> None:
    """Give back the retry of a call that has ended, or leave it to the call inside it that goes on."""
    lender, borrower = demand.lender, demand.borrower
    demand.covers, demand.lender, demand.borrower = False, None, None
    for level in demand.account.paths[RETRIES]:
        if level in demand.covered:
            continue
        if borrower is not None and level in borrower.covered:
            borrower.covered = tuple(other for other in borrower.covered if other is not level)
        else:
            level.reserved[RETRIES] -= 1
    demand.covered = ()
    if borrower is not None:
        borrower.lender = lender if borrower.covered else None
    if lender is not None:
        lender.borrower = borrower if borrower is not None and borrower.covered else None
