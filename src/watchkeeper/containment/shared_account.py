"""The account that several runs share: `Limits(account="team-a", account_limit="$20/day")` puts it above the root.

It has the ceiling of the account and none other, and a key by which a ledger on disk knows it in every process. It
takes no part in deadlines, landing or stops: what it refuses ends the run that asked, not the account.
"""

from __future__ import annotations

from typing import Final

from watchkeeper.containment.account import Account
from watchkeeper.containment.ledger import Ledger, MemoryLedger
from watchkeeper.core.account_limit import AccountLimit
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.limits import Limits

PREFIX: Final = "account:"
"""Begins the keys of such accounts, so that no chain is taken for one by chance."""


def shared_key(name: str) -> str:
    """Return the key by which a ledger knows the account of this name."""
    return PREFIX + name


def account_above(limits: Limits, parent: Account | None, ledger: Ledger) -> Account | None:
    """Return what stands above a new context: its parent, or the account that its limits name.

    Args:
        limits: The context's own ceilings.
        parent: The account of the context that it is a child of, or None for a root.
        ledger: Where the figures are kept.

    Raises:
        ConfigurationError: If the ledger forgets when the process ends, or a child names another account than its root.
    """
    if limits.account is None:
        return parent
    if parent is not None:
        if any(level.period is not None and level.name == limits.account for level in parent.chain):
            return parent
        raise ConfigurationError(
            f"account={limits.account!r} is named for a part of a run; name it in the limits of the whole run"
        )
    if isinstance(ledger, MemoryLedger):
        raise ConfigurationError(
            f"account={limits.account!r} needs a ledger that remembers other runs, for example"
            " ledger=SqliteLedger('ledger.sqlite3')"
        )
    return shared_account(limits)


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
