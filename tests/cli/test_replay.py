"""`watchkeeper replay`: the exit code says whether the agent of today differs, and ``--fork`` goes on as a new run."""

from __future__ import annotations

import json
import sys

from tests.cli.support import CommandLine

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


def test_a_fork_is_a_new_run_and_says_of_which(cli: CommandLine) -> None:
    run_id = recorded(cli)
    events = [json.loads(line) for line in cli("show", run_id, "--json").out.splitlines()]
    at = next(each["seq"] for each in events if each["tag"] == "tool_invoked")
    assert cli("replay", run_id, "--fork", str(at), "--max-turns", "9", "--quiet").code == 0
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
