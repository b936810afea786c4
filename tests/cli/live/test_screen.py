"""The live view on a real terminal: it stands below what is printed, loses nothing of it, and ends cleanly."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.live.terminal import OnTerminal, Seen
from watchkeeper.cli.console import PlainConsole, make_console
from watchkeeper.cli.live.screen import Screen, may_be_live
from watchkeeper.cli.live.state import Follower, View
from watchkeeper.core.clock import SYSTEM_CLOCK

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="needs a pseudo terminal"),
    pytest.mark.usefixtures("terminal_signals"),
]

AGENT = '''
import os
import subprocess
from dataclasses import dataclass

from watchkeeper import Agent, Limits, tool
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.containment import ShieldPipeline, ToolPermissionHook


@tool
def talk(words: str) -> str:
    """Print in every way there is, then wait."""
    print("PRINTED", words)
    print("in ", end="", flush=True)
    print("parts")
    os.write(1, b"WRITTEN\\n")
    subprocess.run(["echo", "ECHOED"])
    with open("gate") as gate:
        return gate.read()


@tool
def wipe(path: str) -> str:
    """Do something that a person is asked about."""
    return "wiped"


def broken(result):
    raise ValueError("cannot report")


def SCRIPT(request):
    made = "Tool" in type(request.transcript[len(request.transcript) - 1]).__name__
    if request.tool_choice == "none" or made:
        return Say("this is what I have")
    return Call(request.tools[0].name, {request.tools[0].name == "talk" and "words" or "path": "x"})


limits = Limits(max_steps=20, max_cost_usd=1)
talker = Agent(ScriptedModel(SCRIPT), "Talk.", str, tools=[talk], limits=limits, name="talker")
wiper = Agent(
    ScriptedModel(SCRIPT), "Wipe.", str, tools=[wipe], limits=limits, name="wiper",
    shield=ShieldPipeline(tool_dispatch=ToolPermissionHook(ask=["wipe"], timeout="60s")),
)
'''

Start = Callable[..., OnTerminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    os.mkfifo(tmp_path / "gate")
    made: list[OnTerminal] = []

    def run(name: str, *more: str, columns: int = 80, out: str = "", **environ: str) -> OnTerminal:
        order = ("run", f"agent.py:{name}", "-p", "task=Go", "--store", "runs.db", *more)
        made.append(OnTerminal(tmp_path, *order, columns=columns, out=out, **environ))
        return made[-1]

    yield run
    for each in made:
        each.close()


def live(screen: str) -> bool:
    return any(line.startswith("now ") for line in screen.splitlines())


def test_the_view_stands_below_all_that_is_printed_and_nothing_is_lost(start: Start, tmp_path: Path) -> None:
    running = start("talker")
    screen = running.until(lambda seen: "ECHOED" in seen and live(seen))
    lines = screen.splitlines()
    for said in ("PRINTED x", "in parts", "WRITTEN", "ECHOED"):
        assert any(line.startswith(said) for line in lines), screen
    head = max(number for number, line in enumerate(lines) if line.startswith("agents/talker with scripted"))
    assert [line.split()[0] for line in lines[head + 1 :]] == ["time", "tokens", "money", "steps", "turns", "now"]
    (tmp_path / "gate").write_text("go")
    code, screen = running.end()
    assert code == 0
    assert screen.count("ended: done") == 1
    assert len([line for line in screen.splitlines() if line.startswith("steps ")]) == 1  # no frame is left behind
    assert not live(screen)
    assert screen.index("ended: done") < screen.index("this is what I have") < screen.index("Done: 2 turns")
    for said in ("PRINTED x", "in parts", "WRITTEN", "ECHOED"):
        assert said in screen


def test_ctrl_c_ends_the_view_cleanly(start: Start, tmp_path: Path) -> None:
    running = start("talker")
    running.until(live)
    running.type("\x03")
    running.until(lambda seen: "interrupted once more, it stops at once." in seen.replace("\n    ", " "))
    (tmp_path / "gate").write_text("go")
    code, screen = running.end()
    assert code == 130
    assert not live(screen)
    assert "ended: interrupted" in screen
    assert screen.index("ended: interrupted") < screen.rindex("The run was interrupted")


def test_a_question_to_a_person_has_the_terminal_for_itself(start: Start) -> None:
    running = start("wiper")
    screen = running.until(lambda seen: "[y]es, [a]lways, [N]o:" in seen)
    assert not live(screen)
    running.type("yes\n")
    code, screen = running.end()
    assert code == 0
    assert "wiped" in screen
    assert "ended: done" in screen


def test_without_colour_only_the_cursor_is_moved(start: Start, tmp_path: Path) -> None:
    running = start("talker", columns=60, NO_COLOR="1")
    screen = running.until(lambda seen: "ECHOED" in seen and live(seen))
    assert all(len(line) < 60 for line in screen.splitlines())
    assert not re.search(rb"\x1b\[[0-9;]*m", running.raw)
    (tmp_path / "gate").write_text("go")
    assert running.end()[0] == 0


@pytest.mark.parametrize("more", [("--quiet",), ("--json",)])
def test_there_is_no_view_where_nothing_else_is_to_be_printed(
    start: Start, tmp_path: Path, more: tuple[str, ...]
) -> None:
    running = start("talker", *more)
    running.until(lambda seen: "ECHOED" in seen)
    (tmp_path / "gate").write_text("go")
    code, _ = running.end()
    assert code == 0
    assert b"\x1b[J" not in running.raw


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_the_view_is_on_standard_error_if_the_output_goes_into_a_file(
    start: Start, tmp_path: Path, more: tuple[str, ...]
) -> None:
    running = start("talker", *more, out="said")
    running.until(live)
    (tmp_path / "gate").write_text("go")
    code, screen = running.end()
    assert (code, live(screen)) == (0, False)
    assert "ended: done" in screen
    said = (tmp_path / "said").read_text(encoding="utf-8")
    assert "\x1b" not in said
    if more:
        assert json.loads(said.replace("WRITTEN\n", "").replace("ECHOED\n", ""))["ok"]
    else:
        assert "Done: 2 turns" in said


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(start: Start, tmp_path: Path) -> None:
    running = start("talker", TERM="dumb")
    running.until(lambda seen: "ECHOED" in seen)
    (tmp_path / "gate").write_text("go")
    assert running.end()[0] == 0
    assert b"\x1b[J" not in running.raw


def test_what_after_returns_comes_after_the_view(start: Start, tmp_path: Path) -> None:
    running = start("talker", "--after", "broken")
    running.until(live)
    (tmp_path / "gate").write_text("go")
    code, screen = running.end()
    assert code == 1
    assert not live(screen)
    assert screen.index("ended: done") < screen.index("--after failed: ValueError: cannot report")


class Lost(io.StringIO):
    """A terminal that is gone."""

    encoding = "utf-8"
    asked = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.asked += 1
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_ends_the_view_and_nothing_else() -> None:
    class Seeing(Follower):
        def seen(self) -> View:
            return View("ns/key", "scripted:m", 1.0, 0, SYSTEM_CLOCK.now())

    lost = Lost()
    with Screen(PlainConsole(file=lost, force_terminal=True), Seeing(SYSTEM_CLOCK), SYSTEM_CLOCK).shown():
        pass
    assert lost.asked


def test_a_view_that_fails_is_reported_once_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Follower):
        def seen(self) -> None:
            raise KeyError("what")

    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=True)
    with Screen(console, Broken(SYSTEM_CLOCK), SYSTEM_CLOCK).shown():
        console.file.write("a line\n")
    assert [record.getMessage() for record in caplog.records if "live.failed" in record.getMessage()]
    assert out.getvalue() == "a line\n"


def test_a_pipe_has_no_view() -> None:
    assert not may_be_live(make_console(io.StringIO()))


def test_the_terminal_of_these_tests_moves_as_a_real_one() -> None:
    seen = Seen()
    seen.feed("one\r\n\r\n\x1b[Jview\r\nmore\r\x1b[2Atwo\r\n")
    assert seen.text == "one\ntwo\nview\nmore"
