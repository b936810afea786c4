"""``watchkeeper run``: every option does what it says, every refusal is one clear line, every end has its exit code."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import AGENT, CommandLine, Processes
from watchkeeper.cli.running import print_json
from watchkeeper.runtime.events import ModelReplied
from watchkeeper.store.items import Item
from watchkeeper.store.run_store import RunStore
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import say

FOLDER = ("-p", "folder=inbox")


def as_json(cli: CommandLine, *arguments: str | Path, target: str = "triage.py:triage", code: int = 0) -> Any:
    """Run with --json and return the result."""
    said = cli.run("--json", *arguments, target=target)
    assert said.code == code, said.err
    return json.loads(said.out)


# --- the end of a run -------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-077")
def test_a_run_says_what_happens_and_ends_with_the_result_and_where_to_look(cli: CommandLine) -> None:
    said = cli.run(*FOLDER)
    assert said.code == 0
    assert said.err == ""
    for part in (
        "tests/triage with scripted:scripted",
        "limits: deadline 1h, total tokens 2,000,000, turns 100, retries 20",
        '● look  {"path": "a"} → looked at a',
        "● model  turn 2: 100 in, 20 out, $0.00",
        '"summary": "all [bold]well[/bold]"',
        "Done: 2 turns, 1 tool call, 240 tokens, $0.00",
        "look further: watchkeeper show ",
    ):
        assert part in said.out
    assert "\x1b" not in said.out


@pytest.mark.spec("FR-079")
def test_json_is_the_result_and_nothing_else(cli: CommandLine) -> None:
    """Whatever the agent's own code prints goes elsewhere."""
    cli.write(AGENT + "\nprint('the file speaks')\n")
    said = cli.run("--json", "--after", "report", *FOLDER)
    assert said.code == 0
    result = json.loads(said.out)
    assert result["ok"] is True
    assert result["output"] == {"summary": "all [bold]well[/bold]", "count": 2}
    assert result["prompt"] == "tests/triage"
    assert result["usage"]["tool_calls"] == 1
    assert result["cost_usd"] == "0"
    assert said.err.splitlines() == ["the file speaks", "the tool speaks", "│ reported RunResult"]


def test_a_run_that_a_limit_ends_says_so_and_exits_with_1(cli: CommandLine) -> None:
    said = cli.run("--max-turns", "1", *FOLDER)
    assert said.code == 1
    assert "turn" in said.out.splitlines()[-2]
    assert as_json(cli, "--max-turns", "1", *FOLDER, code=1)["stop"]["reason"] == "turn_limit_exceeded"


def test_a_partial_result_is_shown_as_such(cli: CommandLine) -> None:
    cli.write(AGENT.replace("SCRIPT = [", "SCRIPT = [Call('look', {'path': 'b'}), 'half a report']\nOLD = ["))
    said = cli.run("--max-turns", "2", *FOLDER)
    assert said.code == 1
    assert "Partial result\n│ half a report\n" in said.out


def test_what_the_checker_said_is_shown(cli: CommandLine) -> None:
    checker = "PredicateChecker(lambda context: True, 'the report is there')"
    text = AGENT.replace("params=(Inbox,)", f"params=(Inbox,), task_completion_checker={checker}")
    cli.write(text.replace("import Agent,", "import PredicateChecker, Agent,"))
    said = cli.run(*FOLDER)
    assert said.code == 0
    assert "  ✓ verified  the report is there\n" in said.out
    assert "Verified: the report is there\n" in said.out
    assert "Done and verified: 2 turns" in said.out


CANNOT_TELL = "FileOutputChecker(['report.md']{})"
WHY = "the run has no filesystem in which files could be looked for"


def unverified(policy: str = "") -> str:
    """Return an agent whose checker cannot tell."""
    text = AGENT.replace("params=(Inbox,)", f"params=(Inbox,), task_completion_checker={CANNOT_TELL.format(policy)}")
    return text.replace("import Agent,", "import FileOutputChecker, Agent,")


@pytest.mark.spec("FR-155")
def test_what_nobody_could_verify_looks_like_no_pass_anywhere(cli: CommandLine) -> None:
    cli.write(unverified())
    said = cli.run(*FOLDER)
    assert said.code == 0
    assert f"  ? unverified  {WHY}\n" in said.out
    assert f"Unverified: {WHY}\n" in said.out
    assert f"Done, but not verified: {WHY} (2 turns, 1 tool call" in said.out
    (row,) = json.loads(cli("runs", "--json").out)
    assert row["completion"] == "unverified"
    assert "done, not verified" in cli("runs").out
    assert cli("show", row["run_id"]).out.splitlines()[-1].startswith(f"Done, but not verified: {WHY} (2 turns, ")


def test_under_a_closed_policy_what_nobody_could_verify_is_a_stop(cli: CommandLine) -> None:
    cli.write(unverified(", on_error='closed'"))
    said = cli.run(*FOLDER)
    assert said.code == 1
    assert f"Nobody could verify the work: {WHY}; it had" in said.out
    assert "  unverified  " in cli("runs").out


def test_items_that_nobody_could_verify_are_marked_and_counted(cli: CommandLine) -> None:
    cli.write(unverified() + "\n\ndef SCRIPT(request):\n    return last_words\n")
    (cli.folder / "inbox").mkdir()
    for name in ("a.txt", "b.txt"):
        (cli.folder / "inbox" / name).touch()
    said = cli.run("--each", "inbox/*.txt")
    assert said.code == 0
    assert "? a.txt  Done, but not verified: " in said.out
    assert "2 of 2 items done, 2 of them not verified: " in said.out
    assert "✓" not in said.out
    assert "done, not verified" in cli("show", json.loads(cli("runs", "--json").out)[0]["run_id"]).out


# --- limits and settings ----------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-078")
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("max_cost", "$0.50", "cost $0.50"),
        ("max_tokens", "5k", "total tokens 5,000"),
        ("max_steps", "7", "steps 7"),
        ("max_turns", "8", "turns 8"),
        ("timeout", "10m", "deadline 10m"),
    ],
)
def test_a_limit_holds_whether_it_is_an_option_a_variable_or_in_the_file(
    cli: CommandLine, option: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said in as_json(cli, f"--{option.replace('_', '-')}", value, *FOLDER)["limits"]
    (cli.folder / "pyproject.toml").write_text(f'[tool.watchkeeper]\n{option} = "{value}"\n', encoding="utf-8")
    assert said in as_json(cli, *FOLDER)["limits"]
    (cli.folder / "pyproject.toml").unlink()
    monkeypatch.setenv(f"WATCHKEEPER_{option.upper()}", value)
    assert said in as_json(cli, *FOLDER)["limits"]


FULL_SCRIPT = """
from watchkeeper.core.errors import ProviderError

SCRIPT = [Call("look", {"path": "a"}), ProviderError("too long", fault="context_full", status=400), last_words]
"""


@pytest.mark.spec("FR-163")
def test_what_a_full_context_means_can_be_chosen(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write(AGENT + FULL_SCRIPT)
    landed = as_json(cli, "--on-context-full", "land", *FOLDER, code=1)
    assert (landed["stop"]["reason"], landed["partial"]["count"]) == ("context_full", 2)
    monkeypatch.setenv("WATCHKEEPER_ON_CONTEXT_FULL", "stop")
    assert as_json(cli, *FOLDER, code=1)["partial"] is None
    compacted = as_json(cli, "--on-context-full", "compact", *FOLDER, code=1)
    assert "it could not be summarised" in compacted["stop"]["message"]
    assert "'shrink' must be compact or land or stop" in cli.refused("--on-context-full", "shrink", *FOLDER)


def test_an_agents_own_limits_are_the_base(cli: CommandLine) -> None:
    said = cli("run", "triage.py:agent", "-p", "task=rest", "--max-turns", "4", "--json")
    assert json.loads(said.out)["limits"] == "deadline 1h, total tokens 2,000,000, steps 9, turns 4, retries 20"


@pytest.mark.spec("FR-078")
def test_an_agents_own_model_answers_unless_another_is_named(cli: CommandLine) -> None:
    said = cli("run", "triage.py:agent", "-p", "task=rest", "--json")
    assert json.loads(said.out)["output"] == "done"
    assert "--model" not in said.err
    cli.write(AGENT.replace("SCRIPT = [", "SCRIPT = [Say('other'),"))
    assert as_json(cli, "-p", "task=rest", target="triage.py:agent")["output"] == "other"


def test_the_model_may_come_from_the_settings(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHKEEPER_MODEL", "scripted")
    assert cli("run", "triage.py:triage", *FOLDER).code == 0


def test_a_price_from_the_file_makes_a_ceiling_possible(cli: CommandLine) -> None:
    price = '[tool.watchkeeper.prices]\n"scripted" = { input = 1000, output = 1000 }\n'
    (cli.folder / "pyproject.toml").write_text(price, encoding="utf-8")
    result = as_json(cli, "--max-cost", "2", *FOLDER)
    assert result["cost_usd"] == "0.24"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--max-cost", "free"], ["--max-cost", "'free'"]),
        (["--max-tokens", "-3"], ["--max-tokens", "'-3'"]),
        (["--max-steps", "0"], ["--max-steps", "'0'"]),
        (["--max-turns", "some"], ["--max-turns", "'some'"]),
        (["--timeout", "soon"], ["--timeout", "'soon'"]),
        (["--first", "1"], ["--first needs --each"]),
        (["--concurrency", "1"], ["--concurrency needs --each"]),
        (["--after", "nothing"], ["--after 'nothing'", "triage.py", "no function"]),
        (["--after", "number"], ["--after 'number'", "no function"]),
        (["--notify", "no-such-program x"], ["no-such-program", "sh -c"]),
        (["--notify", "'open"], ["--notify", "quotation"]),
        (["--notify", " "], ["names no command"]),
        (["--files", "nowhere"], ["nowhere"]),
        (["--store", "."], ["is not a store", "--store none"]),
        (["--each", "nowhere/*.txt"], ["there is no folder nowhere"]),
    ],
)
def test_an_option_that_cannot_work_is_refused_in_one_line(
    cli: CommandLine, arguments: list[str], parts: list[str]
) -> None:
    line = cli.refused(*arguments, *FOLDER)
    assert all(part in line for part in parts), line


@pytest.mark.parametrize("arguments", [["--first", "0"], ["--concurrency", "0"], ["--first", "x"], ["--nothing"]])
def test_what_the_command_line_itself_cannot_read_exits_with_2(cli: CommandLine, arguments: list[str]) -> None:
    assert cli.run("--each", "*", *arguments).code == 2


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("gpt-5", ["'gpt-5'", "openai:NAME"]),
        ("openai:gpt-5", ["OPENAI_API_KEY"]),
        ("anthropic:claude", ["ANTHROPIC_API_KEY"]),
    ],
)
def test_a_model_that_cannot_be_had_is_refused_in_one_line(cli: CommandLine, model: str, parts: list[str]) -> None:
    line = cli.refused(*FOLDER, model=model)
    assert all(part in line for part in parts)


def test_a_model_nobody_knows_the_price_of_is_refused_under_a_ceiling(cli: CommandLine) -> None:
    line = cli.refused("--max-cost", "1", *FOLDER, model="http://127.0.0.1:9/v1#mine")
    assert "openai-compatible:mine" in line
    assert "[tool.watchkeeper.prices]" in line


def test_without_a_model_it_says_where_to_name_one(cli: CommandLine) -> None:
    said = cli("run", "triage.py:triage", *FOLDER)
    assert said.code == 2
    assert "--model, WATCHKEEPER_MODEL" in said.err


@pytest.mark.parametrize("model", ["script", "scriptd", "Scripted", "scripted:x"])
def test_a_model_that_is_nearly_scripted_is_told_so(cli: CommandLine, model: str) -> None:
    said = cli.refused(*FOLDER, model=model)
    assert f"there is no model {model!r}; did you mean 'scripted'? write " in said
    assert said.endswith("or 'scripted' for the fixed replies of the agent's file")


def test_a_script_takes_over_from_no_model(cli: CommandLine) -> None:
    said = cli.refused(*FOLDER, "--fallback", "scripted", model="openai:x")
    assert "--fallback scripted cannot be" in said


def test_a_script_that_is_too_short_charges_nothing_for_the_turn_it_lacks(cli: CommandLine) -> None:
    cli.write(AGENT.replace(", last_words]", "]"))
    result = json.loads(cli.run(*FOLDER, "--json").out)
    assert "the script has 1 step, and turn 2 was asked for; add a step" in result["sentence"]
    assert (result["tokens"], result["usage"]["presumed"]["calls"]) == (120, 0)


def test_the_scripted_model_needs_a_script(cli: CommandLine) -> None:
    cli.write(AGENT.replace("SCRIPT =", "OTHER ="))
    assert "needs a SCRIPT in" in cli.refused(*FOLDER)


@pytest.mark.spec("FR-083")
def test_a_setting_nobody_knows_is_refused(cli: CommandLine) -> None:
    (cli.folder / "pyproject.toml").write_text("[tool.watchkeeper]\nmax_costs = 1\n", encoding="utf-8")
    assert "there is no such setting" in cli.refused(*FOLDER)


# --- over many files --------------------------------------------------------------------------------------------------


def write_messages(folder: Path, count: int = 4) -> None:
    """Write some files to go through."""
    (folder / "inbox").mkdir()
    for number in range(count):
        (folder / "inbox" / f"{number}.txt").write_text("x", encoding="utf-8")


PATIENT = AGENT + "\n\ndef SCRIPT(request):\n    return last_words\n"
EACH = ("--each", "inbox/*.txt")


@pytest.mark.spec("FR-081")
def test_each_runs_once_for_every_file_in_order(cli: CommandLine) -> None:
    cli.write(PATIENT)
    write_messages(cli.folder)
    said = cli.run(*EACH, "-p", "limit=1")
    assert said.code == 0
    assert "tests/triage over 4 items with scripted:scripted" in said.out
    assert '0.txt  ✓  {"summary":"all [bold]well[/bold]","count":2}' in said.out
    assert "4 of 4 items done" in said.out
    results = as_json(cli, *EACH)["results"]
    assert [result["item"] for result in results] == ["0.txt", "1.txt", "2.txt", "3.txt"]
    assert len({result["run_id"] for result in results}) == 4


def test_first_takes_only_the_first(cli: CommandLine) -> None:
    cli.write(PATIENT)
    write_messages(cli.folder)
    assert [result["item"] for result in as_json(cli, *EACH, "--first", "2")["results"]] == ["0.txt", "1.txt"]


@pytest.mark.parametrize("concurrency", ["1", "3"])
def test_concurrency_says_how_many_run_at_once(cli: CommandLine, concurrency: str) -> None:
    """With more than one, every line says whose it is."""
    cli.write(PATIENT)
    write_messages(cli.folder)
    out = cli.run(*EACH, "--concurrency", concurrency).out
    assert ("▸ 0.txt" in out) is (concurrency == "1")
    assert ("0.txt  ● model  turn 1" in out) is (concurrency == "3")


@pytest.mark.spec("FR-081")
def test_one_ceiling_holds_over_all_and_what_is_left_is_marked(cli: CommandLine) -> None:
    cli.write(PATIENT)
    write_messages(cli.folder)
    result = as_json(cli, *EACH, "--max-steps", "2", "--concurrency", "1", code=3)
    assert [item["ok"] for item in result["results"]] == [True, True, False, False]
    out = cli.run(*EACH, "--max-steps", "2", "--concurrency", "1").out
    assert "3.txt  ✗  Not started\n" in out
    assert "2 of 4 items done" in out


FAILING = (
    AGENT
    + """

from watchkeeper.errors import ProviderError


def SCRIPT(request):
    said = request.transcript[0].text
    return ProviderError("bad", fault="bad_request") if BAD in said else last_words
"""
)


@pytest.mark.parametrize(("bad", "code"), [("nowhere", 0), ("/2.txt", 3), ("inbox", 1)], ids=["all", "some", "none"])
def test_the_exit_code_tells_all_items_from_some_and_from_none(cli: CommandLine, bad: str, code: int) -> None:
    cli.write(f"{FAILING}\n\nBAD = {bad!r}\n")
    write_messages(cli.folder)
    assert cli.run(*EACH).code == code


def test_an_agent_may_be_run_over_files_too(cli: CommandLine) -> None:
    cli.write(PATIENT)
    write_messages(cli.folder, 2)
    results = as_json(cli, *EACH, target="triage.py:agent")["results"]
    assert [result["item"] for result in results] == ["0.txt", "1.txt"]


# --- beside the run ---------------------------------------------------------------------------------------------------


def test_after_reports_on_the_result(cli: CommandLine) -> None:
    assert cli.run("--after", "report", *FOLDER).out.splitlines()[-1] == "│ reported RunResult"
    assert cli.run("--after", "silent", *FOLDER).out.splitlines()[-1] == "silent True"


def test_a_report_that_fails_shows_its_traceback_after_the_result(cli: CommandLine) -> None:
    said = cli.run("--after", "broken", *FOLDER)
    assert said.code == 1
    assert "Done: " in said.out
    assert "Traceback" in said.out
    assert said.out.splitlines()[-1] == "--after failed: ValueError: cannot report"


def test_tools_work_in_the_folder_that_is_named(cli: CommandLine) -> None:
    (cli.folder / "desk").mkdir()
    cli.write(AGENT.replace('Call("look", {"path": "a"})', 'Call("keep", {"text": "hello"})'))
    assert cli.run("--files", "desk", *FOLDER).code == 0
    assert (cli.folder / "desk" / "kept.txt").read_text() == "hello"


NOTED = (
    "import json, os, sys; open('noted', 'w').write(json.dumps([json.load(sys.stdin), os.environ['WATCHKEEPER_OK']]))"
)


@pytest.mark.spec("FR-082")
@pytest.mark.parametrize(("arguments", "ok"), [([], True), (["--max-turns", "1"], False)])
def test_notify_gets_the_result_and_whether_all_is_well(cli: CommandLine, arguments: list[str], ok: bool) -> None:
    (cli.folder / "note.py").write_text(NOTED, encoding="utf-8")
    said = cli.run("--notify", f"{sys.executable} note.py", *arguments, *FOLDER)
    assert said.code == (0 if ok else 1)
    data, environment = json.loads((cli.folder / "noted").read_text(encoding="utf-8"))
    assert data["ok"] is ok
    assert environment == str(ok).lower()
    assert data["run_id"][:8] in said.out


@pytest.mark.spec("FR-082")
def test_a_notification_that_fails_is_said_and_changes_nothing_else(cli: CommandLine) -> None:
    said = cli.run("--notify", f"{sys.executable} -c 'raise SystemExit(7)'", *FOLDER)
    assert said.code == 0
    assert said.out.splitlines()[-1].endswith("exit code 7")


def test_a_notification_that_cannot_be_sent_or_takes_too_long_is_said(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = cli.folder / "text"
    text.write_text("x", encoding="utf-8")
    text.chmod(0o755)
    said = cli.run("--notify", str(text), *FOLDER)
    assert said.code == 0
    assert f"--notify {text}: " in said.out.splitlines()[-1]
    monkeypatch.setattr("watchkeeper.cli.running.NOTIFY_SECONDS", 0.01)
    slow = f"{sys.executable} -c 'import threading; threading.Event().wait()'"
    said = cli.run("--json", "--notify", slow, *FOLDER)
    assert said.code == 0
    assert said.err.splitlines()[-1] == f"--notify {sys.executable}: not over after 0.01 s"


@pytest.mark.spec("FR-080")
def test_without_a_store_it_says_so(cli: CommandLine, user_folders: Path) -> None:
    assert cli.run("--store", "none", *FOLDER).out.splitlines()[-1] == "not stored"
    assert list(user_folders.iterdir()) == []


@pytest.mark.spec("FR-080")
def test_where_to_look_names_the_store_only_where_it_must(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    last = cli.run("--store", "my runs.db", *FOLDER).out.splitlines()[-1]
    assert last.endswith("--store 'my runs.db'")
    monkeypatch.setenv("WATCHKEEPER_STORE", "other.db")
    assert "--store" not in cli.run(*FOLDER).out
    assert len(list((cli.folder / "other.db" / "runs").iterdir())) == 1


@pytest.mark.parametrize(
    ("choice", "end"), [("stop", "The run's events cannot be stored: "), ("go_on", "Not everything is stored: ")]
)
def test_a_store_that_fails_in_the_middle_is_said_and_is_no_success(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, choice: str, end: str
) -> None:
    def close_first(store: RunStore, batch: Sequence[Item]) -> None:
        if any(isinstance(getattr(item.envelope, "event", None), ModelReplied) for item in batch):
            store.close()
        append(store, batch)

    append = RunStore.append
    monkeypatch.setattr(RunStore, "append", close_first)
    said = cli.run("--on-store-failure", choice, *FOLDER)
    assert said.code == 1
    assert end in said.out.splitlines()[-2]
    result = json.loads(cli.run("--on-store-failure", choice, "--json", *FOLDER).out)
    assert "could not be written to" in result["not_stored"]
    assert result["ok"] is (choice == "go_on")


def test_no_call_begins_if_the_store_fails_at_the_beginning(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def close_first(store: RunStore, batch: Sequence[Item]) -> None:
        store.close()
        append(store, batch)

    append = RunStore.append
    monkeypatch.setattr(RunStore, "append", close_first)
    said = cli.run(*FOLDER)
    assert said.code == 1
    assert "●" not in said.out
    assert "The run's events cannot be stored: " in said.out.splitlines()[-2]
    went_on = cli.run("--on-store-failure", "go_on", *FOLDER)
    assert went_on.code == 1
    assert "● model" in went_on.out
    assert "Not everything is stored: " in went_on.out.splitlines()[-2]


def test_a_store_that_is_deleted_in_the_middle_is_said_at_once_and_at_the_end(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("watchkeeper.app.recording.STORE_SECONDS", 0.0)
    cli.write(AGENT.replace('print("the tool speaks")', "__import__('shutil').rmtree('runs.db')"))
    said = cli.run("--store", "runs.db", *FOLDER)
    assert said.code == 1
    assert "store.failing" in caplog.text
    assert "the file was deleted while it was open" in said.out.splitlines()[-2]
    assert said.out.splitlines()[-1] == "not stored"
    assert not (cli.folder / "runs.db").exists()


def test_what_a_failing_store_leads_to_has_two_choices(cli: CommandLine) -> None:
    assert "--on-store-failure: 'panic' must be stop or go_on" in cli.refused("--on-store-failure", "panic", *FOLDER)


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="this system has another call")
def test_a_run_waits_for_the_disk_if_that_is_wanted(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "fdatasync", calls.append)
    said = json.loads(cli.run("--json", "--store", "runs", *FOLDER).out)
    assert (said["ok"], calls) == (True, [])
    said = json.loads(cli.run("--json", "--store", "runs", "--durability", "power", *FOLDER).out)
    assert said["ok"]
    assert len(calls) > 3
    calls.clear()
    monkeypatch.setenv("WATCHKEEPER_DURABILITY", "power")
    assert cli.run("--store", "runs", *FOLDER).code == 0
    assert len(calls) > 3
    wrong = "--durability: 'disk' must be process or power"
    assert wrong in cli.refused("--durability", "disk", *FOLDER)


SAYS_A_KEY = """
from watchkeeper import Agent
from watchkeeper.adapters.scripted import ScriptedModel
from watchkeeper.core.secrets import hold

hold("sk-cli-0123456789")
agent = Agent(ScriptedModel(["the key is sk-cli-0123456789"]), "Be brief.", str)
"""


def test_no_key_that_the_process_holds_reaches_json_notify_or_store(cli: CommandLine) -> None:
    (cli.folder / "says.py").write_text(SAYS_A_KEY)
    (cli.folder / "note.py").write_text("import sys; open('told.json', 'w').write(sys.stdin.read())")
    note = ("--notify", f"{sys.executable} note.py", "--store", "runs.db")
    said = cli("run", "says.py:agent", "-p", "task=Go", "--json", *note)
    assert json.loads(said.out)["output"] == "the key is [redacted]"
    assert json.loads((cli.folder / "told.json").read_text())["output"] == "the key is [redacted]"
    assert "sk-cli-0123456789" not in cli("show", json.loads(said.out)["run_id"], "--json", "--store", "runs.db").out


def run_into(processes: Processes, out: int, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the agent with its output going somewhere; return the exit code, and what it said on stderr."""
    command = ("run", "triage.py:triage", "--model", "scripted", *arguments, *FOLDER)
    process = processes.start(folder, *command, stdout=out)
    said = process.said()
    return process.wait(), said


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_reader_that_went_away_costs_the_run_nothing(
    cli: CommandLine, processes: Processes, arguments: list[str]
) -> None:
    (cli.folder / "note.py").write_text(NOTED, encoding="utf-8")
    reader, writer = os.pipe()
    os.close(reader)
    notify = ("--notify", f"{sys.executable} note.py")
    code, said = run_into(processes, writer, cli.folder, *arguments, *notify, "--store", "runs.db")
    os.close(writer)
    assert "Traceback" not in said
    assert code == (1 if arguments else 0)
    assert (cli.folder / "noted").exists()
    with RunStore("runs.db", read_only=True) as store:
        assert store.runs()[0].ended_at is not None


@pytest.mark.skipif(sys.platform != "linux", reason="a device of Linux")
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_result_that_cannot_be_printed_is_said(cli: CommandLine, processes: Processes, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        code, said = run_into(processes, full.fileno(), cli.folder, *arguments, "--store", "runs.db")
    assert code == 1
    assert "error: the result cannot be printed: [Errno 28] No space left on device" in said
    assert "Traceback" not in said


def test_a_result_that_cannot_be_printed_fails_the_command_and_nothing_else() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    assert print_json(Full(), {}) == 1


def test_a_file_that_the_agent_closed_is_said_to_be_closed(capsys: pytest.CaptureFixture[str]) -> None:
    closed = io.StringIO()
    closed.close()
    assert print_json(closed, {}) == 1
    assert "the result cannot be printed: I/O operation on closed file" in capsys.readouterr().err


ODD = "a lone \udcff, \u00e4 and \u2603"
ODD_SCRIPT = f"""

def SCRIPT(request):
    return Say({ODD!a})
"""


@pytest.mark.spec("FR-149")
@pytest.mark.parametrize("encoding", ["ascii:strict", "utf-8:strict", "latin-1:strict"])
@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["human", "json"])
def test_what_the_encoding_of_the_output_cannot_write_loses_nothing(
    cli: CommandLine, processes: Processes, arguments: list[str], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    cli.write(AGENT.replace("PromptTemplate[Report]", "PromptTemplate[str]") + ODD_SCRIPT)
    (cli.folder / "note.py").write_text(NOTED, encoding="utf-8")
    with open("out", "wb") as out:
        notify = ("--notify", f"{sys.executable} note.py")
        assert run_into(processes, out.fileno(), cli.folder, *arguments, *notify, "--store", "none") == (0, "")
    data, _ = json.loads((cli.folder / "noted").read_text(encoding="utf-8"))
    assert data["output"] == ODD
    said = (cli.folder / "out").read_text(encoding=encoding.partition(":")[0])
    if arguments:
        assert json.loads(said)["output"] == ODD
    else:
        assert r"a lone \udcff, " in said


@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
def test_file_names_of_no_encoding_are_items_like_others(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")
    cli.write(PATIENT)
    write_messages(cli.folder, 1)
    name = os.fsdecode(b"\xff.txt")
    try:
        (cli.folder / "inbox" / name).touch()
    except OSError:
        pytest.skip("this file system takes only names of its encoding")
    command = [sys.executable, "-m", "watchkeeper", "run", "triage.py:triage", "--model", "scripted", "--json", *EACH]
    done = subprocess.run(command, cwd=cli.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [result["item"] for result in json.loads(done.stdout)["results"]] == ["0.txt", name]


@pytest.mark.spec("FR-149")
@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
@pytest.mark.parametrize(
    ("arguments", "closed", "code", "said"),
    [
        ([], ">&-", 0, ""),
        (["--json"], ">&-", 1, "error: the result cannot be printed: standard output is closed\n"),
        ([], ">&- 2>&-", 0, ""),
        (["--json"], "<&- >&- 2>&-", 1, ""),
    ],
    ids=["human", "json", "both", "all"],
)
def test_closed_standard_streams_cost_the_end_nothing(
    cli: CommandLine, arguments: list[str], closed: str, code: int, said: str
) -> None:
    (cli.folder / "note.py").write_text(NOTED, encoding="utf-8")
    command = [sys.executable, "-m", "watchkeeper", "run", "triage.py:triage", "--model", "scripted", "--store", "r.db"]
    notify = ("--notify", f"{sys.executable} note.py")
    text = AGENT.replace('    print("the tool speaks")\n', "")
    cli.write(text)
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command, *notify, *arguments, *FOLDER]
    done = subprocess.run(shell, cwd=cli.folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)
    assert (cli.folder / "noted").exists()


LOOKING = [["runs"], ["runs", "--json"], ["show"], ["show", "--json"], ["account"], ["account", "--json"]]


@pytest.mark.spec("FR-149")
@pytest.mark.skipif(sys.platform != "linux", reason="a device of Linux, and a shell")
@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_what_only_prints_says_in_one_line_that_it_could_not(
    cli: CommandLine, processes: Processes, arguments: list[str]
) -> None:
    price = '[tool.watchkeeper.prices]\n"scripted" = { input = 1, output = 1 }\n'
    (cli.folder / "pyproject.toml").write_text(price, encoding="utf-8")
    data = as_json(cli, "--account", "team", "--account-limit", "$5/day", *FOLDER)
    if arguments[0] == "show":
        arguments = [arguments[0], data["run_id"], *arguments[1:]]
    with open("/dev/full", "w") as full:
        process = processes.start(cli.folder, *arguments, stdout=full.fileno())
        assert process.said() == "error: the output cannot be printed: [Errno 28] No space left on device\n"
        assert process.wait() == 1
    reader, writer = os.pipe()
    os.close(reader)
    process = processes.start(cli.folder, *arguments, stdout=writer)
    os.close(writer)
    assert process.said() == ""
    # What a closed stream is to Python is decided before the first import: that takes a process from scratch.
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "watchkeeper", *arguments]
    closed = subprocess.run(shell, cwd=cli.folder, capture_output=True, text=True, check=False)
    assert closed.returncode == 1
    assert closed.stderr == "error: the output cannot be printed: standard output is closed\n"


# --- models that take over -------------------------------------------------------------------------------------------

OUTAGE = """
from watchkeeper.core.errors import ProviderError

SCRIPT = [Call("look", {"path": "a"}), ProviderError("the key is revoked", fault="auth", provider="scripted")]
"""


def test_another_model_takes_over_and_the_report_and_the_log_say_so(cli: CommandLine) -> None:
    cli.write(AGENT + OUTAGE)
    answer = '{"summary": "all well", "count": 2}'
    with FakeOpenAI([say(answer)]) as fake:
        other = f"{fake.base_url}#backup"
        said = cli.run("--fallback", other, *FOLDER)
        assert len(fake.requests) == 1
    assert said.code == 0, said.err
    switched = "⇄ switched  to openai-compatible:backup from scripted:scripted: The provider failed: the key is revoked"
    for part in (
        "tests/triage with scripted:scripted, or else openai-compatible:backup",
        switched,
        "Answered by scripted:scripted, then openai-compatible:backup",
    ):
        assert part in said.out
    (run_id,) = re.findall(r"watchkeeper show (\w+)", said.out)
    shown = cli("show", run_id)
    assert switched in shown.out


def test_json_names_who_answered(cli: CommandLine) -> None:
    cli.write(AGENT + OUTAGE)
    with FakeOpenAI([say('{"summary": "all well", "count": 2}')]) as fake:
        result = as_json(cli, "--fallback", f"{fake.base_url}#backup", *FOLDER)
    assert result["model"] == "scripted:scripted"
    assert result["answered_by"] == ["scripted:scripted", "openai-compatible:backup"]


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (["opnai:gpt-5"], "did you mean 'openai'?"),
        (["openai:gpt-5"], "OPENAI_API_KEY"),
        (["http://127.0.0.1:9/v1#m", "http://127.0.0.1:9/v1#m"], "is named twice"),
        ([""], "there is no model ''"),
    ],
)
def test_a_fallback_that_cannot_work_is_refused_before_anything_happens(
    cli: CommandLine, names: list[str], part: str
) -> None:
    options = [option for name in names for option in ("--fallback", name)]
    assert part in cli.refused(*options, *FOLDER)


def test_a_fallback_without_a_price_is_refused_under_a_cost_ceiling(cli: CommandLine) -> None:
    line = cli.refused("--max-cost", "1", "--fallback", "http://127.0.0.1:9/v1#m", *FOLDER)
    assert "nobody knows what openai-compatible:m costs" in line


GUARDED = """
from watchkeeper import MemoryFilesystem
from watchkeeper.containment import ShieldPipeline, ToolPermissionHook

guarded = Agent(
    ScriptedModel([Call("look", {"path": "a"}), Call("keep", {"text": "b"}), Say("done")]),
    "Be brief.",
    tools=(look, keep),
    shield=ShieldPipeline(tool_dispatch=ToolPermissionHook(deny=["look"])),
    filesystem=MemoryFilesystem(),
)
"""


@pytest.mark.spec("FR-140")
def test_an_agents_own_hooks_and_filesystem_hold_on_the_command_line(cli: CommandLine) -> None:
    cli.write(AGENT + GUARDED)
    said = cli("run", "triage.py:guarded", "-p", "task=rest")
    assert said.code == 0
    assert "The tool 'look' is denied" in said.out
    assert "→ kept" in said.out
    assert not (cli.folder / "kept.txt").exists()


def test_files_named_on_the_command_line_take_the_place_of_the_agents_own(cli: CommandLine) -> None:
    cli.write(AGENT + GUARDED)
    assert cli("run", "triage.py:guarded", "-p", "task=rest", "--files", ".").code == 0
    assert (cli.folder / "kept.txt").read_text() == "b"


KEY = "sk-0123456789-secret"
HOLDING = f'''
from watchkeeper.adapters.openai_chat import OpenAIChatModel

OpenAIChatModel("m", api_key="{KEY}", base_url="http://localhost:1/v1")
last_words = Say({{"summary": "{KEY}", "count": 2}})
SCRIPT = [Call("look", {{"path": "{"x" * 80}{KEY}"}}), last_words]


def report(result):
    return "reported {KEY}"


def broken(result):
    raise ValueError("{KEY}")
'''


@pytest.mark.parametrize("arguments", [(), ("--after", "report"), ("--after", "broken"), ("--json",)], ids=str)
def test_a_credential_of_the_process_is_not_printed(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    cli.write(AGENT.replace('print("the tool speaks")', "pass") + HOLDING)
    said = cli.run("-p", "folder=x", *arguments)
    assert "[redacted]" in said.out
    assert KEY[:10] not in said.out + said.err


def test_a_credential_of_the_process_is_not_printed_for_items(cli: CommandLine) -> None:
    cli.write(AGENT.replace('print("the tool speaks")', "pass") + HOLDING)
    (cli.folder / "a.txt").touch()
    said = cli.run("--each", "*.txt")
    assert KEY[:10] not in said.out + said.err
