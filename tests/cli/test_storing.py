"""``watchkeeper store``: each command says in a line what it did, and what is damaged ends with exit code 2."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.support import CommandLine
from tests.store.older import older_store_of
from watchkeeper.store.run_store import RunStore

FOLDER = ("-p", "folder=inbox")


@pytest.fixture
def run_id(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the agent once, into the folder ``runs``; return the id of the run."""
    monkeypatch.setenv("WATCHKEEPER_STORE", "runs")
    return str(json.loads(cli.run(*FOLDER, "--json").out)["run_id"])


def test_check_says_what_is_damaged(cli: CommandLine, run_id: str) -> None:
    said = cli("store", "check")
    assert (said.code, said.out, said.err) == (0, "nothing is damaged in the 1 file of runs\n", "")
    file = cli.folder / "runs" / "runs" / f"{run_id}.jsonl"
    with file.open("ab") as tail:
        tail.write(b'{"seq":')
    said = cli("store", "check")
    assert said.code == 0
    assert said.out.splitlines()[0] == (
        f"left     {run_id}.jsonl: its process died while it wrote the last 7 bytes (7 bytes)"
    )
    file.write_bytes(file.read_bytes().replace(b"scripted", b"Scripted", 1))
    said = cli("store", "check")
    assert said.code == 2
    (line,) = said.out.splitlines()
    assert re.fullmatch(rf"damaged  {run_id}.jsonl: the line at byte \d+ is damaged", line)
    assert said.err == "error: runs: 1 of 1 file cannot be read whole; other runs can be read\n"


def test_compact_says_what_it_removed(cli: CommandLine, run_id: str) -> None:
    assert cli("store", "compact").out == "removed 0 bytes from 0 files of runs\n"
    with (cli.folder / "runs" / "runs" / f"{run_id}.jsonl").open("ab") as tail:
        tail.write(b'{"seq":')
    said = cli("store", "compact")
    assert (said.code, said.out.splitlines()[-1]) == (0, "removed 7 bytes from 1 file of runs")
    assert cli("store", "check").out.startswith("nothing is damaged")


def test_prune_deletes_what_is_old_and_says_how_much(cli: CommandLine, run_id: str) -> None:
    kept = cli("store", "prune", "--older", "30d")
    assert (kept.code, kept.out) == (0, "deleted 0 runs, 0 bytes, from runs\n")
    size = os.stat(cli.folder / "runs" / "runs" / f"{run_id}.jsonl").st_size
    would = cli("store", "prune", "--older", "1ms", "--dry-run")
    assert would.out == f"would delete 1 run, {size / 1000:.1f} kB, from runs\n"
    assert cli("show", run_id).code == 0
    assert cli("store", "prune", "--older", "1ms").out == f"deleted 1 run, {size / 1000:.1f} kB, from runs\n"
    assert cli("runs").out == "no runs in runs\n"
    assert "'30' names no unit; write '30h' for hours" in cli("store", "prune", "--older", "30").err
    refused = cli("store", "prune", "--older", "soon")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "--older='soon' is not a duration" in refused.err
    assert cli("store", "prune").code == 2


def test_reindex_makes_the_index_anew(cli: CommandLine, run_id: str) -> None:
    (cli.folder / "runs" / "index.sqlite3").write_bytes(b"x" * 5000)
    assert run_id[:8] in cli("runs").out
    said = cli("store", "reindex")
    assert (said.code, said.out) == (0, "indexed 1 file of runs\n")
    assert run_id[:8] in cli("runs").out


@pytest.mark.parametrize("command", ["check", "compact", "reindex"])
def test_there_must_be_a_store(cli: CommandLine, command: str) -> None:
    said = cli("store", command, "--store", "nowhere")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: there is no store nowhere yet")
    assert not (cli.folder / "nowhere").exists()


@pytest.fixture
def older(cli: CommandLine, run_id: str) -> Path:
    """Return a store of version 0.1 with the run; it is named where a store may be named."""
    with RunStore("runs", read_only=True) as store:
        return older_store_of(store, Path("old.sqlite3"))


def test_an_older_store_is_told_and_brought_in(cli: CommandLine, older: Path, run_id: str) -> None:
    hint = "old.sqlite3 is a store of version 0.1, and its runs are not here yet: watchkeeper store import old.sqlite3"
    for command in (("runs",), ("show", run_id)):
        said = cli(*command, "--store", "old.sqlite3")
        assert (said.code, said.out) == (2, "")
        assert said.err == f"error: there is no store old.store yet; {hint}\n"
    second = json.loads(cli.run(*FOLDER, "--json", "--store", "old.sqlite3").out)["run_id"]
    for named in ("old.sqlite3", "old.store"):
        said = cli("runs", "--store", named)
        assert said.code == 0
        assert second[:8] in said.out
        assert run_id[:8] not in said.out
        assert said.err == f"{hint}\n"
    done = cli("store", "import", "old.sqlite3")
    assert (done.code, done.out) == (0, "brought 1 run into old.store; old.sqlite3 stays as it is\n")
    again = cli("store", "import", "old.sqlite3")
    assert again.out == "brought 0 runs into old.store; 1 was there already; old.sqlite3 stays as it is\n"
    said = cli("runs", "--store", "old.sqlite3")
    assert said.err == ""
    assert {run_id[:8], second[:8]} <= {line.split()[0] for line in said.out.splitlines()}
    assert cli("show", run_id, "--store", "old.sqlite3").out == cli("show", run_id).out
    resumed = cli("resume", run_id, "--store", "old.sqlite3")
    assert resumed.code == 2


def test_what_is_missing_in_an_older_store_is_said(cli: CommandLine, older: Path, run_id: str) -> None:
    with closing(sqlite3.connect(older)) as connection:
        connection.execute("DELETE FROM events WHERE seq BETWEEN 4 AND 6")
        connection.commit()
    done = cli("store", "import", "old.sqlite3", "--store", "other")
    assert done.code == 0
    assert done.out.splitlines()[0] == f"missing  {run_id}: events 4 to 6 are not in the older store"
    shown = cli("show", run_id, "--store", "other")
    assert shown.code == 0
    assert "! missing  events 4 to 6 are missing in the record" in shown.out
    assert shown.out.splitlines()[-1] == cli("show", run_id, "--store", "runs").out.splitlines()[-1]
    assert cli("store", "check", "--store", "other").code == 0


def test_an_older_store_is_brought_into_another_folder(cli: CommandLine, older: Path, run_id: str) -> None:
    done = cli("store", "import", "old.sqlite3", "--store", "other")
    assert done.out == "brought 1 run into other; old.sqlite3 stays as it is\n"
    assert run_id[:8] in cli("runs", "--store", "other").out


@pytest.mark.parametrize("file", ["missing.sqlite3", "triage.py", "."])
def test_what_is_no_older_store_is_refused_in_one_line(cli: CommandLine, file: str) -> None:
    said = cli("store", "import", file)
    assert (said.code, said.out) == (2, "")
    assert said.err == f"error: {file} is not the file of a store of version 0.1\n"
    assert list(cli.folder.iterdir()) == [cli.folder / "triage.py"]
