"""The account that several runs share: `Limits(account="team-a", account_limit="$20/day")` puts it above the root.

It has the ceiling of the account and none other, and a key by which a ledger on disk knows it in every process. It
takes no part in deadlines, landing or stops: what it refuses ends the run that asked, not the account.
"""

from __future__ import annotations

from typing import Final

from watchkeeper.containment.account import Account
from watchkeeper.core.account_limit import AccountLimit
from watchkeeper.core.limits import Limits

PREFIX: Final = "account:"
"""Begins the keys of such accounts, so that no chain is taken for one by chance."""


def shared_key(name: str) -> str:
    """Return the key by which a ledger knows the account of this name."""
    return PREFIX + name


def shared_account(limits: Limits) -> Account | None:
    """Return the account that limits name, or None if they name none."""
    limit = limits.account_limit
    if limits.account is None or not isinstance(limit, AccountLimit):
        return None
    ceilings = Limits(
        deadline=None,
        max_cost_usd=limit.dollars,
        max_total_tokens=limit.tokens,
        max_retries=None,
        max_turns=None,
        min_output_tokens=limits.min_output_tokens,
        landing=None,
        account=limits.account,
        account_limit=limit,
    )
    return Account(ceilings, None, limits.account, key=shared_key(limits.account), period=limit.period)
