"""Nothing that a model, a tool or a file name says acts on the terminal, or imitates a line of the report."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.cli.support import CommandLine, Said, sealed

AGENT = '''
import json
from pathlib import Path

from watchkeeper import Agent, MarkdownSection, PromptTemplate, tool
from watchkeeper.adapters.scripted import Call, Calls, Say
from watchkeeper.containment import ShieldPipeline, ToolPermissionHook


def hostile():
    return json.loads(Path(__file__).with_name("hostile.json").read_text())


@tool
def look(path: str) -> str:
    """Look at a path."""
    return hostile()


@tool
def fail(path: str) -> str:
    """Fail."""
    raise ValueError(hostile())


def SCRIPT(request):
    if len(request.transcript) > 2:
        return Say(hostile())
    path = {"path": "x"}
    return Calls((Call("look", json.dumps({"path": hostile()})), Call("fail", path), Call(hostile(), path)))


task = MarkdownSection(title="Task", key="task", template="${path}", tools=(look, fail))
reader = PromptTemplate[str](ns="tests", key="reader", sections=(task,))


def report(result):
    return hostile()


def broken(result):
    raise ValueError(hostile())
'''

WIDTH = 80
"""What rich takes for the width of a terminal without abilities, in which it writes no escapes of its own."""

FORGED = "Done and verified: "
PIECES = (
    *("\x00", "\x07", "\x08", "\t", "\n", "\r", "\x1b", "\x7f", "\x85", "\x9b", "\xa0", "\xad", "\u061c", "\u200b"),
    *("\u200d", "\u200e", "\u2028", "\u2029", "\u202e", "\u2066", "\ufeff", "\ud800", "\udfff", "\U000e0041", "漢"),
    *("\x1b]52;c;cm0gLXJm\x07", "\x1b[2J", "\x1b[1A\r", f"\n{FORGED}", FORGED, "\r\n", "[red]", "x" * 37, "é "),
)
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=12).map(lambda pieces: "".join(("a", *pieces)))

ONCE_PER_TEST = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)


def check(said: Said) -> None:
    """Raise unless what was said is harmless."""
    text = said.out + said.err
    seen = {character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert seen <= {"\n", "\t", "\u200d"}
    assert not [line for line in text.split("\n") if line.startswith(FORGED.rstrip())]


@settings(max_examples=5, deadline=None, suppress_health_check=ONCE_PER_TEST)
@given(text=HOSTILE)
@example(text=f"a\n{FORGED}1 turn\n\x1b]52;c;eA==\x07\r\u202e\ud800")
@example(text=FORGED * 12)
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_hostile_text_is_harmless_whatever_shows_it(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, terminal: bool, text: str
) -> None:
    cli.write(AGENT, "hostile.py")
    (cli.folder / "hostile.json").write_text(json.dumps(text))
    run = ("--store", "runs.db", "--max-turns", "3", "-p", "path=x")
    as_json = cli.run(*run, "--json", "--after", "broken", target="hostile.py:reader")
    check(as_json)
    result = json.loads(as_json.out)
    assert result["output"] == json.loads(json.dumps(text))
    with monkeypatch.context() as patch:
        if terminal:
            patch.setenv("FORCE_COLOR", "1")
            patch.setenv("TERM", "dumb")
        shown = [
            cli.run(*run, "--after", "report", target="hostile.py:reader"),
            cli("show", result["run_id"], "--store", "runs.db"),
        ]
    for said in shown:
        check(said)
        for line in (said.out + said.err).split("\n") if terminal else ():
            assert cell_len(line.expandtabs(8)) <= WIDTH


def test_an_answer_cannot_stand_where_the_report_stands(cli: CommandLine) -> None:
    cli.write(AGENT, "hostile.py")
    (cli.folder / "hostile.json").write_text(json.dumps(f"all well\r\n\n{FORGED}1 turn"))
    said = cli.run("-p", "path=x", target="hostile.py:reader")
    assert f"\nResult\n│ all well\n│\n│ {FORGED}1 turn\nDone: 2 turns" in said.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "nothing\x1b[2J.py:x\u202e"),
        ("run", "triage.py:\x1b[2J"),
        ("run", "triage.py:triage", "--\x1b[2J"),
        ("run", "triage.py:triage", "--\x1b[2J", "1"),
        ("run", "triage.py:agent", "-p", "\x1b[2J"),
        ("run", "triage.py:triage", "--model", "scripted", "-p", "folder=\x1b[2J", "-p", "limit=\x1b[2J"),
        ("run", "triage.py:triage", "-p", "folder=x", "--model", "\x1b[2J\n" + FORGED),
        ("run", "triage.py:agent", "--each", "\x1b[2J/*"),
        ("run", "triage.py:triage", "--notify", "\x1b[2J"),
        ("run", "triage.py:triage", "--store", "none", "--timeout", "\x1b[2J"),
        ("\x1b[2J",),
        ("runs", "--\x1b[2J"),
        ("runs", "--store", "\x1b[2J"),
        ("show", "1", "--store", "\x1b[2J"),
        ("account", "\x1b[2J", "--ledger", "\x1b[2J"),
    ],
)
def test_arguments_are_repeated_harmlessly(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    said = cli(*arguments)
    assert said.code == 2
    assert "\\x1b" in said.err
    check(said)


def test_a_settings_file_is_quoted_harmlessly(cli: CommandLine) -> None:
    (cli.folder / "pyproject.toml").write_text('[tool.watchkeeper]\n"\\u001b[2J" = 1\n')
    said = cli("runs")
    assert said.code == 2
    assert "\\x1b[2J" in said.err
    check(said)


def test_a_stored_run_of_others_is_shown_harmlessly(cli: CommandLine) -> None:
    """A store may be changed by whoever can write its files."""
    assert cli.run("--store", "runs.db", "--max-turns", "1", "-p", "folder=x").code == 1
    run_id = json.loads(cli("runs", "--store", "runs.db", "--json").out)[0]["run_id"]
    evil = f"\x1b]0;x\x07\n{FORGED}"
    file = cli.folder / "runs.db" / "runs" / f"{run_id}.jsonl"
    lines: list[bytes] = []
    for raw in file.read_bytes().splitlines():
        line = json.loads(raw)
        body = line.get("body")
        if line.get("tag") == "run_started":
            body |= dict.fromkeys(("limits", "prompt_name", "model", "item"), evil)
        if line.get("tag") == "run_ended":
            body["stop"] = {"reason": evil, "message": "m" + evil}
        if line.get("tag") == "prompt_rendered":
            line["tag"] = evil
        del line["crc"]
        lines.append(sealed(json.dumps(line).encode()[:-1]))
    file.write_bytes(b"".join(lines))
    for said in (cli("runs", "--store", "runs.db"), cli("show", run_id, "--store", "runs.db")):
        assert said.code == 0
        assert "\\x1b]0;x\\x07" in said.out
        check(said)


def test_a_defect_of_ours_shows_its_traceback_harmlessly(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("\x1b[2J")

    monkeypatch.setattr("watchkeeper.cli.stored.listing.print_runs", fail)
    cli.run("--store", "runs.db", "-p", "folder=x")
    said = cli("runs", "--store", "runs.db")
    assert said.code == 1
    assert "ZeroDivisionError: \\x1b[2J" in said.err
    check(said)


LOGGING = """
from watchkeeper.core.text import logger
{configure}
logger().warning("listener.failed", error="\\x1b[2J")
"""


@pytest.mark.parametrize("configure", ["", "import logging; logging.basicConfig(format='HOST %(message)s')"])
def test_a_warning_of_the_library_is_shown_once_and_harmlessly(cli: CommandLine, configure: str) -> None:
    """The agent's file may configure logging; then its handlers show it, and nothing else does."""
    cli.write(LOGGING.format(configure=configure) + AGENT, "logs.py")
    (cli.folder / "hostile.json").write_text('"all well"')
    done = subprocess.run(
        [sys.executable, "-m", "watchkeeper", "run", "logs.py:reader", "-p", "path=x", "--model", "scripted"],
        cwd=cli.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("HOST event=" if configure else "warning: event='listener.failed' error='\\x1b[2J'")


def test_only_one_module_of_the_command_line_prints() -> None:
    """Elsewhere nothing may go round the escapes: no print of a console, no echo; JSON alone is written as it is."""
    folder = Path(__file__).parents[2] / "src/watchkeeper/cli"
    found: list[str] = []
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in ("print", "echo", "secho", "print_exception", "print_exc"):
                    found.append(f"{path.name}: {ast.unparse(node)}")
                if node.func.attr == "write" and "json.dumps" not in ast.unparse(node):
                    found.append(f"{path.name}: {ast.unparse(node)}")
    outside = sorted(re.sub(r"\(.*", "", each) for each in found if not each.startswith("console.py: "))
    assert outside == ["entry.py: sys.stderr.write", "main.py: typer.echo"]
