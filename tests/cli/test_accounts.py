"""``watchkeeper run --account`` counts across runs, and ``watchkeeper account`` shows what was used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import CommandLine
from watchkeeper.store.sqlite_ledger import SqliteLedger


@pytest.mark.spec("FR-129")
def test_runs_under_an_account_are_counted_and_shown(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.watchkeeper]\nledger = "ledger.db"\n', encoding="utf-8")
    under = ("--account", "team-a", "--account-limit", "100k tokens/day", "--store", "none")
    for _ in range(2):
        assert cli.run("-p", "folder=in", *under).code == 0
    shown = cli("account", "--json")
    (report,) = json.loads(shown.out)
    assert report["name"] == "team-a"
    assert report["day"] == report["month"]
    assert report["day"]["model_calls"] == 4
    assert (report["held_nanos"], report["held_tokens"]) == (0, 0)
    table = cli("account", "team-a").out
    assert "team-a" in table
    assert "nothing" in table


def test_an_account_that_nobody_used_is_an_error_that_says_which_there_are(cli: CommandLine, tmp_path: Path) -> None:
    missing = cli("account")
    assert missing.code == 2
    assert "there is no ledger" in missing.err
    under = ("--account", "team-a", "--account-limit", "100k tokens/day", "--store", "none")
    assert cli.run("-p", "folder=in", *under).code == 0
    unknown = cli("account", "team-b")
    assert unknown.code == 2
    assert "has no account 'team-b'; accounts: team-a" in " ".join(unknown.err.split())


def test_a_ledger_without_accounts_says_so(cli: CommandLine, tmp_path: Path) -> None:
    SqliteLedger(tmp_path / "empty.db").shutdown()
    assert "no accounts in" in cli("account", "--ledger", tmp_path / "empty.db").out


def test_a_run_without_an_account_makes_no_ledger(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    monkeypatch.setenv("WATCHKEEPER_LEDGER", str(path))
    assert cli.run("-p", "folder=in", "--store", "none").code == 0
    assert not path.exists()
