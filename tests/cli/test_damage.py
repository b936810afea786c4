"""What is broken in the files of runs and accounts is said in one line that names the file; the rest stays readable."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.support import CommandLine
from tests.kit import ScriptedModel, agent
from watchkeeper.app.run import run
from watchkeeper.core.errors import StoreError
from watchkeeper.store.run_store import RunStore
from watchkeeper.store.sqlite_ledger import SqliteLedger


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Return a store of two runs, and their ids, the older one first."""
    path = tmp_path_factory.mktemp("stored") / "runs.db"
    answer = json.dumps({"total": 1, "note": ""})
    older, newer = (run(agent(), model=ScriptedModel([answer]), store=path).run_id for _ in range(2))
    change(path, "PRAGMA user_version=1")
    return path, str(older), str(newer)


@pytest.fixture
def two(cli: CommandLine, stored: tuple[Path, str, str]) -> tuple[str, str]:
    """Put the store where the command line finds it; return the ids of its runs, the older one first."""
    path, older, newer = stored
    (cli.folder / "runs.db").write_bytes(path.read_bytes())
    return older, newer


def change(path: Path, statement: str, *values: object) -> None:
    """Damage a file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement, values)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


ROWS = {
    "stop": "UPDATE runs SET stop = '{\"reason\": ' WHERE run_id = ?",
    "stop without a message": 'UPDATE runs SET stop = \'{"reason": "x"}\' WHERE run_id = ?',
    "stop of another kind": "UPDATE runs SET stop = '[1]' WHERE run_id = ?",
    "stop of no text": "UPDATE runs SET stop = '' WHERE run_id = ?",
    "begin": "UPDATE runs SET started_at = 'yesterday' WHERE run_id = ?",
    "end": "UPDATE runs SET ended_at = x'ff' WHERE run_id = ?",
    "no text": "UPDATE runs SET prompt = CAST(x'ff41' AS TEXT) WHERE run_id = ?",
    "a text for a number": "UPDATE runs SET tokens = 'many' WHERE run_id = ?",
    "event of the end": "UPDATE events SET body = '{' WHERE run_id = ? AND tag = 'run_ended'",
    "event of the end is missing": "DELETE FROM events WHERE run_id = ? AND tag = 'run_ended'",
    "usage": "UPDATE events SET body = '{\"usage\": 3}' WHERE run_id = ? AND tag = 'run_ended'",
    "deep": f"UPDATE events SET body = '{'[' * 100_000}' WHERE run_id = ? AND tag = 'run_ended'",
}


@pytest.mark.parametrize("statement", ROWS.values(), ids=ROWS)
def test_a_damaged_row_costs_no_other_run(cli: CommandLine, two: tuple[str, str], statement: str) -> None:
    older, newer = two
    change(cli.folder / "runs.db", statement, newer)
    listed = cli("runs", "--store", "runs.db")
    assert listed.code == 2
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == [newer[:8], older[:8]]
    assert "damaged" in listed.out.splitlines()[1]
    assert "done" in listed.out.splitlines()[2]
    (said,) = listed.err.splitlines()
    assert said.startswith("error: runs.db: the run ")
    assert said.endswith("sqlite3 FILE .recover")
    assert json.loads(cli("runs", "--json", "--store", "runs.db").out)[0]["damage"]
    assert cli("show", older, "--store", "runs.db").code == 0
    shown = cli("show", newer, "--store", "runs.db")
    assert (shown.code, shown.out) == (2, "")
    assert len(shown.err.splitlines()) == 1


EVENTS = {
    "json": "UPDATE events SET body = '{' WHERE run_id = ? AND seq = 4",
    "no object": "UPDATE events SET body = '3' WHERE run_id = ? AND seq = 4",
    "time": "UPDATE events SET at = 'noon' WHERE run_id = ? AND seq = 4",
    "tag": "UPDATE events SET tag = x'00' WHERE run_id = ? AND seq = 4",
    "no text": "UPDATE events SET body = CAST(x'ff' AS TEXT) WHERE run_id = ? AND seq = 4",
    "deep": f"UPDATE events SET body = '{'[' * 100_000}' WHERE run_id = ? AND seq = 4",
    "missing": "DELETE FROM events WHERE run_id = ? AND seq = 4",
    "the first is missing": "DELETE FROM events WHERE run_id = ? AND seq = 1",
}


@pytest.mark.parametrize("statement", EVENTS.values(), ids=EVENTS)
def test_a_damaged_event_is_said_after_what_can_be_shown(
    cli: CommandLine, two: tuple[str, str], statement: str
) -> None:
    older, newer = two
    change(cli.folder / "runs.db", statement, newer)
    assert cli("runs", "--store", "runs.db").code == 0
    for more in ((), ("--json",)):
        shown = cli("show", newer, "--store", "runs.db", *more)
        assert shown.code == 2
        (said,) = shown.err.splitlines()
        assert said.startswith("error: runs.db: event")
        assert cli("show", older, "--store", "runs.db", *more).code == 0
    with RunStore(cli.folder / "runs.db", read_only=True) as store, pytest.raises(StoreError, match=newer):
        list(store.events(newer))


def cut(path: Path) -> None:
    """Cut a file in half."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2 // 4096 * 4096)


def scribble(path: Path) -> None:
    """Write over everything but the first page."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x5a" * (path.stat().st_size - 4096))


def age(path: Path) -> None:
    """Let a newer version have written a file."""
    change(path, "PRAGMA user_version=9")


@pytest.mark.parametrize("damage", [cut, scribble, age])
def test_a_damaged_file_is_said_in_one_line(
    cli: CommandLine, two: tuple[str, str], damage: Callable[[Path], None]
) -> None:
    change(cli.folder / "runs.db", "PRAGMA user_version=1")
    damage(cli.folder / "runs.db")
    for command in (("runs",), ("runs", "--json"), ("show", two[0])):
        said = cli(*command, "--store", "runs.db")
        assert said.code == 2
        (line,) = said.err.splitlines()
        assert "runs.db" in line
        assert "sqlite3 FILE .recover" in line or "is damaged" in line or "schema version 9" in line


@pytest.mark.parametrize("damage", [cut, scribble, age])
def test_a_damaged_ledger_is_said_in_one_line(cli: CommandLine, damage: Callable[[Path], None]) -> None:
    ledger = cli.folder / "ledger.db"
    SqliteLedger(ledger).shutdown()
    change(ledger, "PRAGMA user_version=1")
    damage(ledger)
    said = cli("account", "--ledger", "ledger.db")
    assert said.code == 2
    (line,) = said.err.splitlines()
    assert "ledger.db" in line


def test_a_name_in_the_ledger_that_is_no_text_is_said_in_one_line(cli: CommandLine) -> None:
    ledger = cli.folder / "ledger.db"
    SqliteLedger(ledger).shutdown()
    change(ledger, "INSERT INTO settled (name, day, unpriced, used_at) VALUES (x'ff', 'd', 0, 9e9)")
    said = cli("account", "--ledger", "ledger.db")
    assert said.code == 2
    (line,) = said.err.splitlines()
    assert line.startswith("error: the ledger ledger.db cannot be read")
