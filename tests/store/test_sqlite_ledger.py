"""A ledger in a file: all that every ledger does, for several processes, through crashes, pauses and broken files."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from watchkeeper.containment.ledger import Ledger, MemoryLedger
from watchkeeper.store.sqlite_ledger import SqliteLedger
from watchkeeper.testing.ledger_checks import CHECKS
from watchkeeper.testing.shared_ledger_checks import SHARED_CHECKS, JoinLedger


@pytest.fixture
def join(tmp_path: Path) -> Generator[JoinLedger]:
    """Open ledgers on files by name, and shut all of them down in the end."""
    ledgers: list[SqliteLedger] = []

    def joined(name: str) -> Ledger:
        ledgers.append(SqliteLedger(tmp_path / f"{name}.sqlite3"))
        return ledgers[-1]

    yield joined
    for ledger in ledgers:
        ledger.shutdown()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_every_ledger_keeps_the_rules(kind: str, check: Callable[[Ledger], None], join: JoinLedger) -> None:
    check(MemoryLedger() if kind == "memory" else join("ledger"))


@pytest.mark.parametrize("check", SHARED_CHECKS, ids=lambda check: check.__name__)
def test_ledgers_on_one_file_keep_the_rules_together(check: Callable[[JoinLedger], None], join: JoinLedger) -> None:
    check(join)
