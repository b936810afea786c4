"""Ctrl-C on a real process: the first lands the run, the second stops it hard, the third ends the command itself.

Everything is synchronised by what the process says and by its input; nothing here waits for a time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from watchkeeper.store.run_store import RunStore

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")

AGENT = '''
import asyncio
import os
import threading
from dataclasses import dataclass

from watchkeeper import MarkdownSection, PromptTemplate, tool
from watchkeeper.adapters.scripted import Call, Say


@dataclass(frozen=True)
class Letter:
    path: str


@tool
def wait_for_input(path: str) -> str:
    """Wait on a thread."""
    os.write(1, b"WAITING\\n")
    return os.read(0, len(b"go\\n")).decode().strip()


@tool
async def wait_for_ever(path: str) -> str:
    """Wait on the loop."""
    os.write(1, b"WAITING\\n")
    await asyncio.Event().wait()


@tool
async def block(path: str) -> str:
    """Hold the loop itself, which nothing can interrupt."""
    os.write(1, b"WAITING\\n")
    threading.Event().wait()


def agent(tool):
    task = MarkdownSection(title="Task", key="task", template="Do ${path}.", tools=(tool,))
    return PromptTemplate[str](ns="tests", key=tool.name, params=(Letter,), sections=(task,))


on_thread, on_loop, blocked = agent(wait_for_input), agent(wait_for_ever), agent(block)


def SCRIPT(request):
    if request.tool_choice == "none":
        return Say("this is what I have")
    return Call(request.tools[0].name, {"path": "x"})
'''


class Running:
    """A run in a process of its own, with what it has said so far."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        (folder / "waiting.py").write_text(AGENT, encoding="utf-8")
        command = [sys.executable, "-m", "watchkeeper", "run", f"waiting.py:{name}", "--model", "scripted"]
        self.process = subprocess.Popen(
            [*command, "--store", "runs.db", *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []

    def until(self, word: str, count: int = 1) -> None:
        """Read until so many lines have held a word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            count -= word in line
            if not count:
                return
        raise AssertionError(f"{word!r} never came: {''.join(self.lines)}")

    def press_ctrl_c(self) -> None:
        """Do what a terminal does."""
        self.process.send_signal(signal.SIGINT)

    def say(self, text: str) -> None:
        """Write a line to its input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Return the exit code and everything it said."""
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)
        return self.process.wait(60), "".join(self.lines)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Return what starts a run; what still runs at the end is killed."""
    started: list[Running] = []

    def make(name: str, *arguments: str) -> Running:
        started.append(Running(tmp_path, name, *arguments))
        return started[-1]

    yield make
    for running in started:
        running.process.kill()
        with running.process:
            pass


def test_the_first_ctrl_c_lands_the_run(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start("on_thread", "-p", "path=x")
    running.until("WAITING")
    running.press_ctrl_c()
    running.until("interrupted")
    running.say("go")
    code, said = running.end()
    assert code == 130
    for part in (
        "Ctrl-C again stops it at once",
        "→ go",
        "Partial result\nthis is what I have\n",
        "was interrupted",
    ):
        assert part in said
    assert "Traceback" not in said
    with RunStore(tmp_path / "runs.db", read_only=True) as store:
        (row,) = store.runs()
        assert row.stop is not None
        assert row.stop["reason"] == "interrupted"


@pytest.mark.parametrize("name", ["on_loop", "on_thread"])
def test_the_second_ctrl_c_stops_it_hard(start: Callable[..., Running], tmp_path: Path, name: str) -> None:
    """Also with a tool that holds a thread and never comes back."""
    running = start(name, "-p", "path=x")
    running.until("WAITING")
    running.press_ctrl_c()
    running.until("interrupted")
    running.press_ctrl_c()
    code, said = running.end()
    assert code == 130
    assert "aborted: interrupted twice" in said
    assert "this is what I have" not in said
    assert "Traceback" not in said
    with RunStore(tmp_path / "runs.db", read_only=True) as store:
        (row,) = store.runs()
        assert row.stop is not None
        assert row.stop["reason"] == "aborted"


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_over_many_items_leaves_a_result_for_each(
    start: Callable[..., Running], tmp_path: Path, presses: int
) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).touch()
    running = start("on_thread", "--each", "*.txt", "--concurrency", "2")
    running.until("WAITING", 2)
    running.press_ctrl_c()
    running.until("interrupted")
    if presses == 2:
        running.press_ctrl_c()
    else:
        running.say("go")
        running.say("go")
    code, said = running.end()
    assert code == 130
    assert ("aborted: interrupted twice" in said) is (presses == 2)
    assert ("this is what I have" in said) is False
    assert "0 of 3 items done" in said
    assert [line.split()[0] for line in said.splitlines() if line.startswith(("a.txt  ✗", "b.txt  ✗", "c.txt  ✗"))] == [
        "a.txt",
        "b.txt",
        "c.txt",
    ]
    assert "c.txt  ✗  Not started: " in said


def test_the_third_ctrl_c_ends_the_command_itself(start: Callable[..., Running]) -> None:
    """For code that holds the loop, which nothing else can end."""
    running = start("blocked", "-p", "path=x")
    running.until("WAITING")
    for _ in range(3):
        running.press_ctrl_c()
    while running.process.poll() is None:
        running.press_ctrl_c()
        running.process.stdin.flush() if running.process.stdin else None
    assert running.process.returncode in (130, -signal.SIGINT)


def test_a_run_that_is_killed_leaves_what_it_had_done(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start("on_loop", "-p", "path=x")
    running.until("WAITING")
    running.until("● model")
    with RunStore(tmp_path / "runs.db", read_only=True) as store:
        while not (rows := store.runs()) or "model_replied" not in [each.tag for each in store.events(rows[0].run_id)]:
            assert running.process.poll() is None
    (row,) = rows
    running.process.kill()
    assert running.end()[0] == -signal.SIGKILL
    done = subprocess.run(
        [sys.executable, "-m", "watchkeeper", "show", row.run_id, "--store", "runs.db"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "● model  turn 1" in done.stdout
    assert done.stdout.splitlines()[-1] == "Not ended: it is still running, or its process died."
