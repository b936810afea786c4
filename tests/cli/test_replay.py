"""`watchkeeper replay`: the exit code says whether the agent of today differs, and ``--fork`` goes on as a new run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.support import CommandLine, damage, rewritten
from watchkeeper.store.run_store import store_path

AGENT = '''
from watchkeeper import Agent, tool
from watchkeeper.models import Call, Say, ScriptedModel


@tool
def put(number: {type}) -> str:
    """Put."""
    print("put")
    return f"put {{number}}"


def script(request):
    done = sum(message.role == "tool" for message in request.transcript)
    return Call("put", {{"number": done}}) if done < 3 else Say("done")


agent = Agent(ScriptedModel(script), "Work.", str, tools=[put])
'''


def recorded(cli: CommandLine) -> str:
    """Run the agent, and return the id of the run."""
    cli.write(AGENT.format(type="int"), "agent.py")
    assert cli("run", "agent.py:agent", "-p", "task=go", "--quiet").code == 0
    return str(json.loads(cli("runs", "--json").out)[0]["run_id"])


def recorded_in(cli: CommandLine) -> tuple[str, Path]:
    """Run the agent; return the id of the run and its file."""
    run_id, store = recorded(cli), store_path("default")
    assert store is not None
    return run_id, store / "runs" / f"{run_id}.jsonl"


def test_the_exit_code_says_whether_something_differs(cli: CommandLine) -> None:
    run_id = recorded(cli)
    same = cli("replay", run_id[:8])
    assert same.code == 0, same.err
    assert "No difference up to event" in same.out
    assert "put" not in same.out
    del sys.modules["agent"]
    cli.write(AGENT.format(type="float"), "agent.py")
    other = cli("replay", run_id)
    assert other.code == 1
    said = "asks for put(number=1.0) where the record has put(number=1)"
    assert said in " ".join(other.out.split())
    found = json.loads(cli("replay", run_id, "--json").out)
    assert found["ok"] is False
    assert [each["kind"] for each in found["differences"]] == ["tools", "call", "call", "call"]


@pytest.mark.parametrize(
    ("tag", "old", "new"),
    [
        ("run_opened", '"params":\\[', '"params":null,"was":['),
        ("run_opened", '"each":\\[[^]]*\\]', '"each":7'),
        ("run_opened", '"params":\\[\\](?=,"variables")', '"params":{"$type":"tuple","items":[1]}'),
        ("prompt_rendered", '"messages":{"\\$type":"tuple","items":\\[.*?\\]}', '"messages":"hello"'),
    ],
)
def test_values_of_other_types_under_a_right_checksum_are_said_in_one_line(
    cli: CommandLine, tag: str, old: str, new: str
) -> None:
    run_id, path = recorded_in(cli)
    damage(path, tag, lambda line: rewritten(line, old, new))
    for command in ("replay", "resume"):
        said = cli(command, run_id)
        assert said.code == 2
        assert said.err.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in said.err


OF_REPLIES = '"slice_type":{"$type":"type","value":"model_replied"}'
CHANGE = f'{{"$type":"watchkeeper:slice_change",{OF_REPLIES},"op":"extend","items":[1]}}'
NESTED: dict[str, tuple[str, str, str]] = {
    "a text of the prompt": ("prompt_rendered", '(?<="\\$type":"watchkeeper:system_message","text":)"[^"]*"', "null"),
    "the parts of a message": ("prompt_rendered", '(?<="parts":){.*?\\]}', "7"),
    "a part": ("prompt_rendered", '(?<="\\$type":"tuple","items":\\[){[^{}]*}(?=\\]})', '{"a":1}'),
    "a text of a part": ("prompt_rendered", '(?<="\\$type":"watchkeeper:text_part","text":)"[^"]*"', "true"),
    "calls of tools": ("model_replied", '"tool_calls":\\[', '"tool_calls":7,"was":['),
    "what the model said": (
        "model_replied",
        '"message":{',
        '"message":{"$type":"watchkeeper:text_part","text":3},"was":{',
    ),
    "what a tool got": ("tool_invoked", '"call_id":"[^"]*"', '"call_id":{"$type":"tuple","items":[]}'),
    "what a slice became": ("model_replied", '"body":{', '"changes":[{"$type":"tuple","items":[1]}],"body":{'),
    "an item of a slice": ("model_replied", '"body":{', f'"changes":[{CHANGE}],"body":{{'),
}


@pytest.mark.parametrize(("tag", "old", "new"), NESTED.values(), ids=NESTED)
def test_a_value_of_another_type_inside_of_a_value_is_said_in_one_line(
    cli: CommandLine, tag: str, old: str, new: str
) -> None:
    run_id, path = recorded_in(cli)
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(keepends=True) if b"run_ended" not in line))
    damage(path, tag, lambda line: rewritten(line, old, new))
    for command in ("replay", "resume"):
        said = cli(command, run_id)
        assert said.code in (1, 2)
        assert "cannot be read" in said.out + said.err
        assert "Traceback" not in said.out + said.err
        assert tag in said.out + said.err


def test_a_fork_is_a_new_run_and_says_of_which(cli: CommandLine) -> None:
    run_id = recorded(cli)
    events = [json.loads(line) for line in cli("show", run_id, "--json").out.splitlines()]
    at = next(each["seq"] for each in events if each["tag"] == "tool_invoked")
    said = cli("replay", run_id, "--fork", str(at), "--max-turns", "9")
    assert said.code == 0
    assert f"forked from the run {run_id} after its event {at}; files are not set back to that time" in " ".join(
        said.out.split()
    )
    newest, oldest = json.loads(cli("runs", "--json").out)
    assert oldest["run_id"] == run_id
    assert newest["usage"]["tool_calls"] == 2
    assert f"forked from the run {run_id} after its event {at}" in cli("show", newest["run_id"]).out


def test_limits_belong_to_a_fork(cli: CommandLine) -> None:
    run_id = recorded(cli)
    said = cli("replay", run_id, "--max-turns", "9")
    assert (said.code, said.err) == (2, "error: --max-turns needs --fork SEQ\n")
    said = cli("replay", run_id, "--fork", "999")
    assert said.code == 2
    assert "cannot be forked at event 999" in said.err
