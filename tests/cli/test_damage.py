"""What is broken in the files of runs and accounts is said in one line that names the file; the rest stays readable."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.support import CommandLine, damage, rewritten, sealed
from tests.kit import ScriptedModel, agent
from watchkeeper.app.run import run
from watchkeeper.core.errors import StoreError
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.store import run_file
from watchkeeper.store.run_store import RunStore


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Return a store of two runs, and their ids, the older one first."""
    path = tmp_path_factory.mktemp("stored") / "runs"
    answer = json.dumps({"total": 1, "note": ""})
    older, newer = (run(agent(), model=ScriptedModel([answer]), store=path).run_id for _ in range(2))
    return path, str(older), str(newer)


@pytest.fixture
def two(cli: CommandLine, stored: tuple[Path, str, str]) -> tuple[str, str]:
    """Put the store where the command line finds it; return the ids of its runs, the older one first."""
    path, older, newer = stored
    shutil.copytree(path, cli.folder / "runs")
    return older, newer


def change(path: Path, statement: str, *values: object) -> None:
    """Damage a ledger."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement, values)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


ENDS: dict[str, Callable[[bytes], bytes]] = {
    "stop without a message": lambda line: rewritten(line, '"stop":null', '"stop":{"reason":"x"}'),
    "stop of another kind": lambda line: rewritten(line, '"stop":null', '"stop":[1]'),
    "end": lambda line: rewritten(line, '"ended_at":"[^"]*"', '"ended_at":"yesterday"'),
    "a text for a number": lambda line: rewritten(line, '"input_tokens":[0-9]+', '"input_tokens":"many"'),
    "usage": lambda line: rewritten(line, '"usage":{', '"usage":3,"was":{'),
    "no object": lambda line: rewritten(line, '"body":{.*}', '"body":[]'),
}


@pytest.mark.parametrize("harm", ENDS.values(), ids=ENDS)
def test_a_damaged_run_costs_no_other_run(
    cli: CommandLine, two: tuple[str, str], harm: Callable[[bytes], bytes]
) -> None:
    older, newer = two
    damage(cli.folder / "runs" / "runs" / f"{newer}.jsonl", "run_ended", harm)
    listed = cli("runs", "--store", "runs")
    assert listed.code == 2
    by_id = {line.split()[0]: line for line in listed.out.splitlines()[1:-1]}
    assert set(by_id) == {newer[:8], older[:8]}
    assert "damaged" in by_id[newer[:8]]
    assert "done" in by_id[older[:8]]
    (said,) = listed.err.splitlines()
    assert said.startswith("error: runs: the run ")
    assert said.endswith("other runs can be read")
    assert any(each.get("damage") for each in json.loads(cli("runs", "--json", "--store", "runs").out))
    assert cli("show", older, "--store", "runs").code == 0
    shown = cli("show", newer, "--store", "runs")
    assert (shown.code, shown.out) == (2, "")
    assert len(shown.err.splitlines()) == 1


STRANGERS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "link to itself": lambda path: path.symlink_to(path),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link without end": lambda path: path.symlink_to("/dev/zero"),
    "no line": lambda path: path.write_bytes(bytes(900_000)),
}
OTHERS = "00000000-1111-4222-8333-444444444444"


@pytest.mark.parametrize("make", STRANGERS.values(), ids=STRANGERS)
def test_what_is_no_record_costs_no_run(
    cli: CommandLine, two: tuple[str, str], make: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = two
    monkeypatch.setattr(run_file, "MOST_LINE", 600_000)
    make(cli.folder / "runs" / "runs" / f"{OTHERS}.jsonl")
    listed = cli("runs", "--store", "runs")
    assert {line.split()[0] for line in listed.out.splitlines()[1:-1]} == {OTHERS[:8], newer[:8], older[:8]}
    for command in ("show", "tail"):
        assert cli(command, older, "--store", "runs").code == 0
        assert cli(command, OTHERS, "--store", "runs").err.startswith("error: runs: the run 00000000")
    assert cli("compare", older, newer, "--store", "runs").code == 0
    assert cli("report", "--store", "runs").code == 0
    assert OTHERS in cli("store", "check", "--store", "runs").out
    cli("store", "compact", "--store", "runs")
    assert cli("store", "prune", "--older", "0.001s", "--store", "runs").out.startswith("deleted 2 runs")


@pytest.mark.skipif(os.name == "nt", reason="Windows lets few users make links")
def test_no_link_leads_out_of_the_store(cli: CommandLine, two: tuple[str, str]) -> None:
    runs = cli.folder / "runs" / "runs"
    torn = cli.folder / "torn.jsonl"
    torn.write_bytes((runs / f"{two[0]}.jsonl").read_bytes() + b'{"torn')
    before = torn.read_bytes()
    (runs / f"{OTHERS}.jsonl").symlink_to(torn)
    index = cli.folder / "runs" / "index.sqlite3"
    index.unlink(missing_ok=True)
    other = cli.folder / "other.db"
    change(other, "CREATE TABLE runs (mine)")
    index.symlink_to(other)
    assert cli("runs", "--store", "runs").code == 2
    cli("store", "compact", "--store", "runs")
    assert torn.read_bytes() == before
    with closing(sqlite3.connect(other)) as connection:
        assert connection.execute("SELECT count(*), name FROM pragma_table_info('runs')").fetchone() == (1, "mine")


@pytest.mark.parametrize(
    ("tag", "field", "value"),
    [
        ("run_started", '"started_at":"[^"]*"', '"started_at":"0001-01-01T00:00:00+14:00"'),
        ("run_ended", '"tool_calls":[0-9]+', '"tool_calls":[]'),
        ("run_ended", '"retries":[0-9]+', '"retries":"many"'),
    ],
)
def test_a_value_that_no_run_has_costs_no_other_run(
    cli: CommandLine, two: tuple[str, str], tag: str, field: str, value: str
) -> None:
    older, newer = two
    damage(cli.folder / "runs" / "runs" / f"{newer}.jsonl", tag, lambda line: rewritten(line, field, value))
    assert "damaged" in cli("runs", "--store", "runs").out
    assert cli("report", "--store", "runs").code == 0
    assert cli("show", older, "--store", "runs").code == 0
    assert cli("show", newer, "--store", "runs").err.startswith("error: runs: the run ")


EVENTS: dict[str, Callable[[bytes], bytes]] = {
    "json": lambda line: sealed(b"{" + line[: line.rindex(b',"crc"')]),
    "no object": lambda line: rewritten(line, '"body":{.*}', '"body":3'),
    "time": lambda line: rewritten(line, '"at":"[^"]*"', '"at":"noon"'),
    "tag": lambda line: rewritten(line, '"tag":"[^"]*"', '"tag":3'),
    "no text": lambda line: line.replace(b"model", b"\xff\xfe", 1),
    "flipped": lambda line: line.replace(b"model", b"nodel", 1),
    "deep": lambda line: rewritten(line, '"body":{.*}', f'"body":{"[" * 100_000}'),
    "missing": lambda _: b"",
}


@pytest.mark.parametrize("harm", EVENTS.values(), ids=EVENTS)
def test_a_damaged_event_is_said_after_what_can_be_shown(
    cli: CommandLine, two: tuple[str, str], harm: Callable[[bytes], bytes]
) -> None:
    older, newer = two
    damage(cli.folder / "runs" / "runs" / f"{newer}.jsonl", "model_replied", harm)
    assert cli("runs", "--store", "runs").code == 0
    for more in ((), ("--json",)):
        shown = cli("show", newer, "--store", "runs", *more)
        assert shown.code == 2
        (said,) = shown.err.splitlines()
        assert said.startswith(f"error: runs: the run {newer} cannot be read any further: ")
        assert cli("show", older, "--store", "runs", *more).code == 0
    with RunStore(cli.folder / "runs", read_only=True) as store, pytest.raises(StoreError, match=newer):
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


UNUSABLE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "damaged": (lambda line: line.replace(b'"version"', b'"noisrev"'), "the line at byte 0 is damaged"),
    "newer": (lambda line: rewritten(line, '"version":1', '"version":2'), "a newer Watchkeeper wrote it"),
}


@pytest.mark.parametrize(("harm", "why"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_job_is_not_given_an_interrupted_run_whose_file_this_version_cannot_go_on_with(
    cli: CommandLine, two: tuple[str, str], harm: Callable[[bytes], bytes], why: str
) -> None:
    for run_id in two:
        file = cli.folder / "runs" / "runs" / f"{run_id}.jsonl"
        owner, *lines = (line for line in file.read_bytes().splitlines(keepends=True) if b'"run_ended"' not in line)
        file.write_bytes(b"".join([harm(owner) if run_id == two[0] else owner, *lines]))
    assert cli("runs", "--interrupted", "--store", "runs").out == f"{two[1]}\n"
    by_id = {line.split()[0]: line for line in cli("runs", "--store", "runs").out.splitlines()[1:]}
    assert ("damaged" if "line" in why else "process died, not resumable") in by_id[two[0][:8]]
    assert "not resumable" not in by_id[two[1][:8]]
    said = cli("show", two[0], "--store", "runs")
    assert why in said.out + said.err
    assert cli("resume", two[0], "--quiet", "--store", "runs").code == 2
