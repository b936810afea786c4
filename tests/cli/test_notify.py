"""``--notify-on``: a command or an address is told while a run goes on; what cannot work is refused in one line."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.app.hooks import Hook
from tests.cli.support import AGENT, CommandLine

FOLDER = ("-p", "folder=inbox")
NOTE = """
import json, os, sys
with open("told.jsonl", "a") as told:
    print(json.dumps([os.environ["WATCHKEEPER_NOTICE"], json.load(sys.stdin)]), file=told)
"""
COMMAND = shlex.join([sys.executable, "-c", NOTE])


def told(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    lines = (folder / "told.jsonl").read_text(encoding="utf-8").splitlines()
    return [(kind, notice) for kind, notice in map(json.loads, lines)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--notify-on", "warning"),
            "--notify-on needs somebody to tell: --notify COMMAND, or --notify https://host/path",
        ),
        (
            ("--notify", "true", "--notify-on", "warnings"),
            "--notify-on: 'warnings' is none of warning, parked, failed, end,",
        ),
        (("--notify", "true", "--notify-on", "0%"), "--notify-on: '0%' must be from 1% to 100%"),
        (("--notify", "true", "--notify-on", "end,130%"), "--notify-on: '130%' must be from 1% to 100%"),
        (("--notify", "true", "--notify-on", ""), "--notify-on: '' must be any of"),
        (("--notify", "ftp://example.org/x"), "--notify: ftp://example.org is no address that can be sent to"),
        (("--notify", "https://\x1b[2J/x"), "is no address that can be sent to"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_spent(
    cli: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    assert said in cli.refused(*arguments, *FOLDER)


def test_a_command_is_told_of_a_limit_of_the_failure_and_of_the_end(cli: CommandLine) -> None:
    kinds = ("--notify", COMMAND, "--notify-on", "50%,failed,end")
    said = cli.run("--max-turns", "1", "--json", *kinds, *FOLDER)
    assert said.code == 1
    result = json.loads(said.out)
    notices = told(cli.folder)
    assert sorted(kind for kind, _ in notices) == ["50%", "end", "failed"]
    assert notices[-1] == ("end", result)
    assert {notice["run_id"] for _, notice in notices} == {result["run_id"]}
    shown = cli("show", result["run_id"]).out
    assert f"told  {sys.executable} (failed): The run was stopped." in shown.replace("\n    ", " ")


def test_an_address_is_told_and_is_nowhere_on_record(cli: CommandLine) -> None:
    with Hook() as hook:
        said = cli.run("--notify", hook.url, "--notify-on", "failed,end", "--max-turns", "1", *FOLDER)
    assert said.code == 1
    assert [each["notice"] for each in hook.got] == ["failed", "end"]
    assert hook.got[1]["text"].startswith(f"watchkeeper, run {hook.got[1]['run_id']}, end: The run reached its limit")
    (run,) = json.loads(cli("runs", "--json").out)
    assert "secret-path" not in said.out + cli("show", run["run_id"], "--json").out


def test_without_kinds_only_the_end_is_told(cli: CommandLine) -> None:
    cli.run("--max-turns", "1", "--notify", COMMAND, *FOLDER)
    assert [kind for kind, _ in told(cli.folder)] == ["end"]


def test_without_end_among_the_kinds_the_end_is_not_told(cli: CommandLine) -> None:
    with Hook() as hook:
        cli.run("--notify", hook.url, "--notify-on", "failed", *FOLDER)
    assert hook.got == []


def test_the_file_of_the_settings_says_both(cli: CommandLine) -> None:
    (cli.folder / "pyproject.toml").write_text(
        f"[tool.watchkeeper]\nnotify = {json.dumps(COMMAND)}\nnotify_on = 'failed, end'\n", encoding="utf-8"
    )
    cli.run("--max-turns", "1", *FOLDER)
    assert [kind for kind, _ in told(cli.folder)] == ["failed", "end"]
    (cli.folder / "told.jsonl").unlink()
    cli.run("--notify", "none", *FOLDER)
    assert not (cli.folder / "told.jsonl").exists()


def test_an_item_that_fails_is_named(cli: CommandLine) -> None:
    cli.write(
        AGENT + "\n\ndef SCRIPT(request):\n    return Say('') if 'bad' in str([*request.transcript]) else last_words\n"
    )
    for name in ("a.txt", "bad.txt"):
        (cli.folder / name).touch()
    said = cli.run("--each", "*.txt", "--notify", COMMAND, "--notify-on", "failed")
    assert said.code == 3
    ((kind, notice),) = told(cli.folder)
    assert (kind, notice["item"]) == ("failed", "bad.txt")


def test_a_notice_that_fails_is_printed_and_changes_nothing_else(cli: CommandLine) -> None:
    failing = shlex.join([sys.executable, "-c", "raise SystemExit(7)"])
    said = cli.run("--notify", failing, "--notify-on", "50%,end", "--max-turns", "3", *FOLDER)
    assert said.code == 0
    assert f"! not told  {sys.executable} (50%): exit code 7" in said.out
    assert said.out.splitlines()[-1] == f"--notify {sys.executable}: exit code 7"


def test_a_resumed_run_tells_whom_it_told_before_or_asks_for_the_address_again(cli: CommandLine) -> None:
    stopped = ("--max-turns", "1", "--json", "-p", "task=Go")
    with Hook() as hook:
        run_id = json.loads(cli.run("--notify", hook.url, *stopped, target="triage.py:agent").out)["run_id"]
        said = cli("resume", run_id, "--max-turns", "5")
        assert said.code == 2
        assert "the address that was told about the run is not on record, because it may hold a key" in said.err
        assert cli("replay", run_id).code == 0  # which tells nobody
        assert cli("resume", run_id, "--max-turns", "5", "--notify", hook.url).code == 0
        assert [each["ok"] for each in hook.got] == [False, True]
    second = json.loads(cli.run("--notify", COMMAND, *stopped, target="triage.py:agent").out)
    assert cli("resume", second["run_id"], "--max-turns", "5").code == 0
    assert [notice["ok"] for _, notice in told(cli.folder)] == [False, True]
