"""``watchkeeper pending``, ``approve`` and ``deny``: a parked run on the command line, from its question to its end."""

from __future__ import annotations

import getpass
import json
import shlex
import sys

import pytest

from tests.cli.support import CommandLine, Said
from watchkeeper.store.run_store import RunStore

LETTERS = '''
"""An agent that writes two letters at once; nobody is there to allow them."""

from watchkeeper import Agent, tool
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.shield import ShieldPipeline, ToolPermissionHook


@tool
def send(to: str) -> str:
    """Send a letter."""
    with open("sent.txt", "a") as file:
        file.write(f"{to}\\\\n")
    return "sent"


def step(request):
    if any(message.role == "tool" for message in request.transcript):
        return Say("all is said")
    return Calls((Call("send", {"to": "ann"}), Call("send", {"to": "bob\\x1b[2J"})))


def nobody(call):
    return None


shield = ShieldPipeline(tool_dispatch=ToolPermissionHook(ask=["send"], ask_with=nobody))
agent = Agent(ScriptedModel(step), "Write.", tools=[send], shield=shield)
'''


@pytest.fixture
def letters(cli: CommandLine) -> CommandLine:
    """Return a command line with that agent."""
    cli.write(LETTERS.replace("\\\\n", "\\n"), "letters.py")
    return cli


def started(cli: CommandLine, *more: str) -> tuple[Said, str]:
    """Start the run that parks; return what it said and its id."""
    said = cli("run", "letters.py:agent", "-p", "task=go", "--store", "s", *more)
    with RunStore(cli.folder / "s", read_only=True) as store:
        (run,) = store.runs()
    return said, run.run_id


def sent(cli: CommandLine) -> list[str]:
    """Return to whom letters were sent."""
    file = cli.folder / "sent.txt"
    return file.read_text().split("\n")[:-1] if file.exists() else []


def test_a_run_is_parked_listed_answered_and_resumed(letters: CommandLine) -> None:
    said, run_id = started(letters, "--on-ask", "park")
    assert said.code == 4
    assert "2 tool calls wait for an answer: send (call-1), send (call-2); " in said.out
    assert '‖ parked  send (call-1) {"to":"ann"}: ToolPermissionHook asks: May send run?' in said.out
    assert "policy halt" not in said.out + letters("show", run_id, "--store", "s").out
    assert "policy halt" not in letters("tail", run_id, "--store", "s").out
    assert "parked" in letters("runs", "--store", "s").out
    listed = letters("pending", "--store", "s")
    assert listed.code == 0
    for part in (
        f"{run_id[:8]}  agents/agent: send (call-1)",
        "ToolPermissionHook asks: May send run?",
        '│ {"to":"ann"}',
        "it waits as long as it takes",
    ):
        assert part in listed.out
    assert "\x1b" not in listed.out
    both = json.loads(letters("pending", "--store", "s", "--json").out)
    assert [(each["run_id"], each["call_id"]) for each in both] == [(run_id, "call-1"), (run_id, "call-2")]
    assert both[0]["arguments"] == '{"to":"ann"}'
    hash_ = both[0]["digest"][:12]
    assert f"hash of the arguments: {hash_}" in listed.out
    approved = letters("approve", run_id[:8], "call-1", "--hash", hash_, "--store", "s")
    assert approved.out == f"approved: send (call-1); go on with: watchkeeper resume {run_id[:8]} --store s\n"
    waits = letters("resume", run_id[:8], "--store", "s")
    assert (waits.code, sent(letters)) == (2, [])
    assert "is parked: 1 tool call waits for an answer: send (call-2)" in waits.err
    assert f"'watchkeeper pending --store {letters.folder / 's'}' lists what to approve or deny" in waits.err
    done = letters("deny", run_id, "call-2", "--why", "Not him.", "--by", "cleo", "--resume", "--store", "s")
    assert (done.code, sent(letters)) == (0, ["ann"])
    assert done.out.startswith("denied: send (call-2)\n")  # no command to type: the run goes on
    assert "2 turns, 1 tool call, 1 denied, " in done.out
    shown = letters("show", run_id, "--store", "s").out
    assert f"← approved  call-1 by {getpass.getuser()}" in shown
    assert "← denied  call-2 by cleo: Not him." in shown
    assert letters("pending", "--store", "s").out == "nothing waits for an answer in s\n"


def test_a_command_to_type_names_the_store_unless_it_finds_it_by_itself(
    letters: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is typed where the first one was typed, whatever folder the run goes on in."""
    said, run_id = started(letters, "--on-ask", "park")
    assert said.out.splitlines()[-2:] == [
        "approve or deny what waits: watchkeeper pending --store s",
        f"look further: watchkeeper show {run_id[:8]} --store s",
    ]
    (letters.folder / "elsewhere").mkdir()
    monkeypatch.chdir(letters.folder / "elsewhere")
    said = letters("approve", run_id, "call-1", "--store", "../s")
    assert said.out == f"approved: send (call-1); go on with: watchkeeper resume {run_id[:8]} --store ../s\n"
    monkeypatch.setenv("WATCHKEEPER_STORE", "../s")
    said = letters("deny", run_id, "call-2")
    assert said.out == f"denied: send (call-2); go on with: watchkeeper resume {run_id[:8]}\n"
    said = letters("resume", run_id)
    assert said.out.splitlines()[-1] == f"look further: watchkeeper show {run_id[:8]}"


def test_the_command_of_notify_gets_what_is_asked(letters: CommandLine) -> None:
    keep = shlex.join([sys.executable, "-c", "import sys; open('told.json', 'w').write(sys.stdin.read())"])
    said, run_id = started(letters, "--on-ask", "park", "--json", "--notify", keep)
    assert said.code == 4
    told = json.loads((letters.folder / "told.json").read_text())
    assert told == json.loads(said.out)
    assert (told["run_id"], told["ok"], told["stop"]["reason"]) == (run_id, False, "parked")
    assert [(each["name"], each["question"]) for each in told["waiting"]] == [("send", "May send run?")] * 2


def test_the_settings_say_what_happens(letters: CommandLine) -> None:
    (letters.folder / "pyproject.toml").write_text('[tool.watchkeeper]\non_ask = "park"\nask_expires = "3d"\n')
    said, _ = started(letters)
    assert said.code == 4
    assert "denied after " in letters("pending", "--store", "s").out


def test_what_has_expired_names_the_command_that_goes_on(letters: CommandLine) -> None:
    _, run_id = started(letters, "--on-ask", "park", "--ask-expires", "1ms")
    expired = letters("pending", "--store", "s").out
    assert f"expired, so it counts as denied: watchkeeper resume {run_id[:8]} --store s\n" in expired


def test_without_a_choice_nobody_means_no(letters: CommandLine) -> None:
    said, _ = started(letters)
    assert (said.code, sent(letters)) == (0, [])
    assert "0 tool calls, 2 denied, " in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--on-ask", "wait"), "--on-ask: 'wait' must be deny or park"),
        (("--ask-expires", "3d"), "--ask-expires needs on_ask 'park' (--on-ask park)"),
        (("--on-ask", "park", "--ask-expires", "soon"), "--ask-expires: expires='soon'"),
        (("--on-ask", "park", "--on-expiry", "ask"), "--on-expiry: 'ask' must be deny or allow"),
        (("--on-ask", "park", "--store", "none"), "on_ask='park' needs a store"),
    ],
)
def test_an_option_that_cannot_work_is_refused_in_one_line(
    letters: CommandLine, arguments: tuple[str, ...], message: str
) -> None:
    said = letters("run", "letters.py:agent", "-p", "task=go", *arguments)
    assert said.code == 2
    (line,) = said.err.splitlines()
    assert message in line


def test_an_answer_that_nobody_waits_for_is_refused_in_one_line(letters: CommandLine) -> None:
    _, run_id = started(letters, "--on-ask", "park")
    for arguments, message in (
        (("approve", "feed"), "no run whose id begins with 'feed'"),
        (("approve", run_id), "more than one call waits for an answer"),
        (
            ("deny", run_id, "call-7"),
            "has no call 'call-7' that waits for an answer; these wait: send (call-1), send (call-2)",
        ),
        (("approve", run_id, "call-1", "--hash", "beef"), "not 'beef'"),
        (("approve", run_id, "call-1", "--by", " "), "names nobody"),
    ):
        said = letters(*arguments, "--store", "s")
        assert said.code == 2
        (line,) = said.err.splitlines()
        assert message in line
    letters("approve", run_id, "call-1", "--store", "s")
    assert "was approved already, by" in letters("deny", run_id, "call-1", "--store", "s").err
    assert "there is no store" in letters("approve", run_id, "--store", "t").err
    assert not (letters.folder / "t").exists()


def test_a_failed_item_of_a_run_that_waits_is_among_what_failed(letters: CommandLine) -> None:
    dead = 'def step(request):\n    if "dead" in str(request.transcript[-1]):\n        raise ConnectionError("no line")'
    path = letters.folder / "letters.py"
    path.write_text(path.read_text(encoding="utf-8").replace("def step(request):", dead), encoding="utf-8")
    (letters.folder / "names.txt").write_text("go\ndead\n", encoding="utf-8")
    letters("run", "letters.py:agent", "--each", "lines:names.txt", "--store", "s", "--on-ask", "park", "-q")
    out = letters("runs", "--store", "s", "--failed").out
    assert "0 of 2 done: parked" in out
    (run,) = [line.split()[0] for line in out.splitlines() if "parked" in line and "×2" in line]
    below = letters("runs", "--store", "s", "--failed", "--parent", run).out
    assert "names.txt:2" in below
    assert "names.txt:1" not in below
    assert letters("runs", "--store", "s", "--failed", "--prompt", "other").out == "no run in s matches, of 1 run\n"
