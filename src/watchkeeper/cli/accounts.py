"""What ``watchkeeper account`` prints: what accounts have used today and this month, and what is held right now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from watchkeeper.app.settings import settings_here, text_from
from watchkeeper.cli.console import make_console, print_table, printing, styled
from watchkeeper.core.quantities import format_money
from watchkeeper.store.ledger_file import ledger_path
from watchkeeper.store.ledger_report import AccountReport, Used, account_reports


def show_accounts(name: str | None, ledger: str | None, *, as_json: bool) -> None:
    """Print the figures of one account, or of all.

    Raises:
        StoreError: If there is no ledger, or no such account.
    """
    path = ledger_path(text_from(settings_here({"ledger": ledger}), "ledger") or "default")
    reports = account_reports(path, name)
    with printing() as out:
        if as_json:
            out.write(json.dumps([asdict(report) for report in reports], indent=2) + "\n")
        elif reports:
            print_accounts(make_console(out), reports)
        else:
            make_console(out).print(f"no accounts in {path}")


def print_accounts(console: Console, reports: Sequence[AccountReport]) -> None:
    """Print a table, one line for each account."""
    rows = [
        (styled((report.name, "bold")), *words(report.day), *words(report.month), held(report)) for report in reports
    ]
    print_table(console, ("account", "today", "tokens", "this month", "tokens", "held"), rows)


def words(used: Used) -> tuple[str, str]:
    """Write the money and the tokens of a period."""
    return format_money(used.cost_nanos), f"{used.tokens:,}"


def held(report: AccountReport) -> str:
    """Write what calls under way have set aside."""
    return format_money(report.held_nanos) if report.held_nanos or report.held_tokens else "nothing"
