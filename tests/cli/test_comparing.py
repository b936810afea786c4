"""``compare``: where two stored runs part, and what differs between them."""

from __future__ import annotations

import json

import pytest

from tests.cli.support import AGENT, CommandLine

FOLDER = ("-p", "folder=inbox")
EVIL = "\\x1b[2J\\nall 3 steps are the same"


def ran(cli: CommandLine, *options: str, script: str = "") -> str:
    """Run the agent with a script of its own; return the run's id."""
    cli.write(AGENT + (f"\nSCRIPT = {script}\n" if script else ""))
    return str(json.loads(cli.run("--json", *options, *FOLDER).out)["run_id"])


def test_two_runs_that_did_the_same_have_no_difference(cli: CommandLine) -> None:
    one, other = ran(cli), ran(cli)
    said = cli("compare", one[:8], other).out.splitlines()
    assert said[0] == "all 4 steps are the same"
    found = json.loads(cli("compare", one, other, "--json").out)
    assert (found["same_steps"], found["first_difference"], found["tools"]) == (4, None, {"look": [1, 1]})
    assert [run["run_id"] for run in found["runs"]] == [one, other]


def test_the_first_step_that_differs_is_shown_where_it_differs(cli: CommandLine) -> None:
    long = "x" * 300
    one = ran(cli, script=f'[Call("look", {{"path": "{long}a"}}), last_words]')
    other = ran(cli, script=f'[Call("look", {{"path": "{long}b"}}), Call("look", {{"path": "c"}}), last_words]')
    lines = cli("compare", one, other).out.splitlines()
    assert lines[0] == "first difference after 1 equal step"
    assert lines[1].startswith(f"  {one[:8]}  event ")
    assert lines[1].endswith("model  …" + "x" * 30 + 'a"}')
    assert lines[2].endswith("x" * 30 + 'b"}')
    table = {line.rsplit(None, 2)[0]: line.rsplit(None, 2)[1:] for line in lines[5:]}
    assert table["calls of look"] == ["1", "2"]
    assert (table["turns"], table["tokens"]) == (["2", "3"], ["240", "360"])
    assert "verdict" not in table


def test_prompts_are_compared_as_texts(cli: CommandLine) -> None:
    one = ran(cli)
    other = json.loads(cli.run("--json", "-p", "folder=outbox").out)["run_id"]
    _, first, second, *_ = cli("compare", one, other).out.splitlines()
    assert ("inbox" in first, "outbox" in second) == (True, True)
    assert not set('{"[') & set(first + second)


def test_a_run_that_stopped_earlier_has_no_further_step(cli: CommandLine) -> None:
    one, other = ran(cli), ran(cli, "--max-turns", "1")
    found = json.loads(cli("compare", one, other, "--json").out)
    assert (found["same_steps"], found["first_difference"][0]["what"], found["first_difference"][1]) == (
        3,
        "model",
        None,
    )
    lines = cli("compare", one, other).out.splitlines()
    assert any(line.split()[:1] == ["state"] and "turn limit" in line for line in lines)


def test_what_runs_said_stays_a_part_of_its_line(cli: CommandLine) -> None:
    one = ran(cli)
    other = ran(cli, script=f'[Call("{EVIL}", {{"path": "{EVIL}"}}), last_words]')
    said = cli("compare", one, other).out
    assert "\x1b" not in said
    assert not [line for line in said.splitlines() if line.startswith("all 3 steps")]


@pytest.mark.parametrize("arguments", [("ffff", "ffff"), ("", "")])
def test_a_run_that_is_not_there_is_named(cli: CommandLine, arguments: tuple[str, str]) -> None:
    cli.run(*FOLDER)
    said = cli("compare", *arguments)
    assert (said.code, "has no run whose id begins with" in said.err) == (2, True)
