"""``observe``: what the detectors would have said in stored runs."""

from __future__ import annotations

import json

import pytest

from tests.cli.support import AGENT, CommandLine, damage, rewritten

FOLDER = ("-p", "folder=inbox")
IN_CIRCLES = AGENT.replace(
    'SCRIPT = [Call("look", {"path": "a"}), last_words]', 'SCRIPT = [Call("look", {"path": "a"})] * 8'
)


@pytest.fixture
def circling(cli: CommandLine) -> CommandLine:
    """A store with one run that looks at the same file eight times."""
    cli.write(IN_CIRCLES)
    cli.run(*FOLDER)
    return cli


def run_id(cli: CommandLine) -> str:
    """Return the id of the newest run in the store."""
    newest: str = json.loads(cli("runs", "--json").out)[0]["run_id"]
    return newest


def test_a_run_in_circles_would_have_been_told_so(circling: CommandLine) -> None:
    head, *lines = circling("observe", run_id(circling)[:8]).out.splitlines()
    assert head.startswith(run_id(circling)[:8])
    assert "times" in head
    assert "Stall" in lines[0]
    assert any("look(path='a')" in line for line in lines)


def test_one_stall_is_told_as_often_as_a_run_would_tell_its_agent(cli: CommandLine) -> None:
    observers = "observers=(ObserverConfig(StallDetector(), ObserverTrigger(on_every_call=True)),)"
    watched = IN_CIRCLES.replace("* 8", "* 40").replace("sections=(task,)", f"sections=(task,), {observers}")
    cli.write("from watchkeeper.observers import ObserverConfig, ObserverTrigger, StallDetector\n" + watched)
    cli.run(*FOLDER)
    events = [json.loads(line) for line in cli("show", run_id(cli), "--json").out.splitlines()]
    told = [each["event"]["call_index"] for each in events if each["tag"] == "observers_ran" and each["event"]["text"]]
    lines = cli("observe", run_id(cli), "--json").out.splitlines()
    assert [json.loads(line)["call"] for line in lines] == told
    assert 1 < len(told) < 8


def test_nothing_is_said_of_a_run_that_gets_on(cli: CommandLine) -> None:
    cli.run(*FOLDER)
    (line,) = cli("observe", run_id(cli)).out.splitlines()
    assert line.endswith("tests/triage: nothing would have been said")


def test_another_threshold_says_it_later(circling: CommandLine) -> None:
    def first_call(*more: str) -> int:
        lines = circling("observe", run_id(circling), "--json", *more).out.splitlines()
        calls: list[int] = [json.loads(line)["call"] for line in lines]
        return min(calls)

    assert first_call("--set", "StallDetector.repeats=7") > first_call()


def test_observing_changes_nothing_in_the_store(circling: CommandLine) -> None:
    before = circling("show", run_id(circling), "--json").out
    circling("observe", run_id(circling))
    assert circling("show", run_id(circling), "--json").out == before


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("StallDetector.repeats", "DETECTOR.FIELD=VALUE"),
        ("Stall.repeats=3", "StallDetector, ErrorCascadeDetector, DriftDetector"),
        ("StallDetector.times=3", "has no field 'times'; it has repeats"),
        ("StallDetector.repeats=many", "'many' is not a whole number"),
        ("StallDetector.repeats=1", "must be a whole number from 3"),
        ("DriftDetector.paths=.", "names no folder"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_to_write(circling: CommandLine, setting: str, said: str) -> None:
    refused = circling("observe", run_id(circling), "--set", setting)
    assert refused.code == 2
    assert said in refused.err


def test_a_run_that_is_not_there_is_refused(circling: CommandLine) -> None:
    refused = circling("observe", "ffffffff")
    assert (refused.code, "no run whose id begins with 'ffffffff'" in refused.err) == (2, True)


def test_a_run_without_calls_says_nothing(cli: CommandLine) -> None:
    assert cli.run("--max-turns", "1", *FOLDER).code == 1
    assert "nothing would have been said" in cli("observe", run_id(cli)).out


@pytest.mark.parametrize(
    ("tag", "old", "new"),
    [
        ("prompt_rendered", '"messages":', '"messages":5,"were":'),
        ("prompt_rendered", '"messages":', '"messages":[{"text": 5}],"were":'),
        ("tool_invoked", '"outcome":', '"outcome":[1],"was":'),
        ("tool_invoked", '"at":"[^"]*"', '"at":"2026-01-01T00:00:00"'),
        ("tool_invoked", '"body":{.*}', '"body":[5]'),
    ],
)
def test_a_damaged_event_is_said_in_one_line(cli: CommandLine, tag: str, old: str, new: str) -> None:
    cli.write(IN_CIRCLES)
    cli.run(*FOLDER, "--store", "runs")
    (file,) = (cli.folder / "runs" / "runs").iterdir()
    damage(file, tag, lambda line: rewritten(line, old, new))
    said = cli("observe", file.stem, "--store", "runs")
    (line,) = said.err.splitlines()
    assert (said.code, said.out) == (2, "")
    assert line.startswith("error: runs: ")
    assert "cannot be read" in line
