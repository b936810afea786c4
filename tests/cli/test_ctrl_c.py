"""Ctrl-C on a real process: the first lands the run, the second stops it hard, the third ends the command itself.

SIGTERM and SIGHUP do the same, and however a run ends, its end takes place: record, result, notification.

Everything is synchronised by what the process says and by its input; nothing here waits for a time.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Process, Processes
from watchkeeper.accounting.limits import Limits
from watchkeeper.cli.broken_off import end_on_record
from watchkeeper.core.errors import Stop
from watchkeeper.core.ids import SYSTEM_IDS, root_run_context
from watchkeeper.core.usage import TokenUsage, Usage
from watchkeeper.runtime.events import ChildStarted, ManyStarted, ModelFailed, RunEnded, RunResumed, RunStarted
from watchkeeper.session.log import Envelope
from watchkeeper.store.items import Item
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="needs SIGINT"), pytest.mark.usefixtures("terminal_signals")]

AT = datetime(2026, 1, 1, tzinfo=UTC)
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
def wait_for_gate(path: str) -> str:
    """Wait on a pipe in the folder."""
    os.write(1, b"WAITING\\n")
    with open("gate") as gate:
        return gate.read()


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
at_gate = agent(wait_for_gate)
quick = PromptTemplate[str](
    ns="tests", key="quick", params=(Letter,), sections=(MarkdownSection(title="Task", key="task", template="${path}"),)
)


def SCRIPT(request):
    if request.tool_choice == "none" or not request.tools:
        return Say("this is what I have")
    return Call(request.tools[0].name, {"path": "x"})
'''


class Running:
    """A run in a process of its own, with what it has said so far."""

    def __init__(self, process: Process) -> None:
        self.process = process
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

    def until_stored(self, tag: str, folder: Path) -> StoredRun:
        """Wait until an event of a kind is in the store; return the run."""
        with RunStore(folder / "runs.db", read_only=True) as store:
            while not (rows := store.runs()) or tag not in [each.tag for each in store.events(rows[0].run_id)]:
                assert self.process.poll() is None
        return rows[0]

    def press_ctrl_c(self) -> None:
        """Do what a terminal does."""
        self.send("SIGINT")

    def send(self, name: str) -> None:
        """Send a signal, given its name."""
        self.process.send_signal(getattr(signal, name))

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
def start(processes: Processes, tmp_path: Path) -> Callable[..., Running]:
    """Return what starts a run."""

    def make(name: str, *arguments: str, text: str = AGENT, nohup: bool = False) -> Running:
        (tmp_path / "waiting.py").write_text(text, encoding="utf-8")
        command = ("run", f"waiting.py:{name}", "--model", "scripted", "--store", "runs.db", *arguments)
        return Running(processes.start(tmp_path, *command, nohup=nohup))

    return make


def test_the_first_ctrl_c_lands_the_run(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start("on_thread", "-p", "path=x")
    running.until("WAITING")
    running.press_ctrl_c()
    running.until("interrupted")
    running.say("go")
    code, said = running.end()
    assert code == 130
    for part in (
        "interrupted once more, it stops at once",
        "→ go",
        "Partial result\n│ this is what I have\n",
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
    assert "c.txt  ✗  Not started\n" in said


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


@pytest.mark.spec("FR-148")
def test_code_that_holds_the_loop_at_once_does_not_keep_the_run_off_the_record(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    running = start("blocked", "-p", "path=x", "--notify", NOTE)
    running.until("WAITING")
    while running.process.poll() is None:  # what comes at once may count as one
        running.press_ctrl_c()
    code, said = running.end()
    assert code == 130
    assert "not recorded" not in said
    assert reason_in(tmp_path) == "aborted"
    assert json.loads((tmp_path / "noted").read_text())["stop"]["reason"] == "aborted"


@pytest.mark.parametrize("over", [("-p", "path=x"), ("--each", "*.txt")], ids=["one", "many"])
def test_a_run_that_is_killed_while_code_holds_the_loop_has_a_row(
    start: Callable[..., Running], tmp_path: Path, over: tuple[str, str]
) -> None:
    (tmp_path / "a.txt").touch()
    running = start("blocked", *over, "--json")
    running.until("WAITING")
    running.send("SIGTERM")
    running.process.kill()
    assert running.end()[0] == -signal.SIGKILL
    with RunStore(tmp_path / "runs.db", read_only=True) as store:
        (row,) = store.runs()
    assert row.ended_at is None


@pytest.mark.spec("FR-148")
@pytest.mark.parametrize(
    ("name", "storm", "codes"),
    [("on_loop", ["SIGINT"], {130}), ("on_thread", ["SIGTERM", "SIGINT", "SIGHUP"], {129, 130, 143})],
)
def test_a_storm_of_signals_leaves_the_end_on_record(
    start: Callable[..., Running], tmp_path: Path, name: str, storm: list[str], codes: set[int]
) -> None:
    """As when a key is held down: the run ends, is stored as ended, and is notified of."""
    running = start(name, "-p", "path=x", "--notify", NOTE)
    running.until("WAITING")
    for each in itertools.cycle(storm):  # what comes at once may count as one: Python looks up now and then
        running.send(each)
        if running.process.poll() is not None:
            break
    ended, said = running.end()
    assert ended in codes  # Python handles signals that came at once in the order of their numbers
    assert "Traceback" not in said
    assert reason_in(tmp_path) == "aborted"
    assert json.loads((tmp_path / "noted").read_text())["stop"]["reason"] == "aborted"


def test_a_run_that_holds_the_loop_is_ended_on_record_too(start: Callable[..., Running], tmp_path: Path) -> None:
    seen = 'while not os.path.exists("seen"):\n        await asyncio.sleep(0)\n    os.write(1, b"HOLDING\\n")\n'
    text = AGENT.replace("threading.Event().wait()", f"{seen}    threading.Event().wait()")
    running = start("blocked", "-p", "path=x", "--notify", NOTE, text=text)
    running.until("● model")
    running.until_stored("model_replied", tmp_path)  # it is written on the loop, a moment after it is said
    (tmp_path / "seen").touch()
    running.until("HOLDING")
    while running.process.poll() is None:
        running.press_ctrl_c()
    code, said = running.end()
    assert code == 130
    assert said.splitlines()[-2].startswith("The run was aborted: it was interrupted three times")
    assert "Traceback" not in said
    assert reason_in(tmp_path) == "aborted"
    data = json.loads((tmp_path / "noted").read_text())
    assert (data["stop"]["reason"], data["turns"], data["usage"]["model_calls"]) == ("aborted", 1, 1)


def test_a_call_under_way_is_presumed_when_its_model_holds_the_loop(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    held = (
        "    if ASKED:\n        print('HOLDING', flush=True)\n        threading.Event().wait()\n    ASKED.append(1)\n"
    )
    text = AGENT.replace("def SCRIPT(request):\n", f"ASKED = []\ndef SCRIPT(request):\n{held}")
    running = start("on_thread", "-p", "path=x", "--notify", NOTE, text=text)
    running.until("● model")
    running.say("go")
    running.until("HOLDING")
    while running.process.poll() is None:
        running.press_ctrl_c()
    code, said = running.end()
    assert code == 130
    assert "the worst case is presumed for the calls that were under way" in said
    used = json.loads((tmp_path / "noted").read_text())["usage"]
    assert (used["model_calls"], used["steps"], used["presumed"]["calls"]) == (2, 3, 1)
    presumed = used["presumed"]["tokens"]
    assert used["tokens"]["input_tokens"] > presumed["input_tokens"] > 0
    assert used["tokens"]["output_tokens"] > presumed["output_tokens"] > 0


def test_a_run_that_is_killed_leaves_what_it_had_done(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start("on_loop", "-p", "path=x")
    running.until("WAITING")
    running.until("● model")
    row = running.until_stored("model_replied", tmp_path)
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
    assert done.stdout.splitlines()[-2] == "Interrupted: its process ended before the run did."


# --- SIGTERM and SIGHUP -----------------------------------------------------------------------------------------------

NOTE = "sh -c 'cat > noted'"


def reason_in(folder: Path) -> str:
    """Return why the one stored run ended; it must have ended."""
    with RunStore(folder / "runs.db", read_only=True) as store:
        (row,) = store.runs()
    assert row.ended_at is not None
    assert row.stop is not None
    return str(row.stop["reason"])


@pytest.mark.spec("FR-148")
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_lands_the_run_and_its_end_takes_place(
    start: Callable[..., Running], tmp_path: Path, name: str, code: int
) -> None:
    """Sent twice at once, as ``timeout`` and terminals do, it still is one request."""
    running = start("on_thread", "-p", "path=x", "--notify", NOTE)
    running.until("WAITING")
    running.send(name)
    running.send(name)
    running.until("interrupted")
    running.say("go")
    ended, said = running.end()
    assert ended == code
    assert "Partial result\n│ this is what I have\n" in said
    assert f"was interrupted by {name}" in said
    assert "Traceback" not in said
    assert reason_in(tmp_path) == "interrupted"
    assert json.loads((tmp_path / "noted").read_text())["partial"] == "this is what I have"


def test_a_second_request_stops_what_sigterm_lands(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start("on_loop", "-p", "path=x", "--notify", NOTE)
    running.until("WAITING")
    running.send("SIGTERM")
    running.until("interrupted")
    running.press_ctrl_c()
    code, said = running.end()
    assert code == 143
    assert "aborted: interrupted twice" in said
    assert "Traceback" not in said
    assert reason_in(tmp_path) == "aborted"
    assert (tmp_path / "noted").exists()


def test_an_ignored_sighup_stays_ignored(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start("on_thread", "-p", "path=x", "--max-turns", "2", nohup=True)
    running.until("WAITING")
    running.send("SIGHUP")
    running.say("go")
    code, said = running.end()
    assert code == 1
    assert "interrupted" not in said
    assert reason_in(tmp_path) == "turn_limit_exceeded"


def test_sigterm_before_the_run_ends_the_command(start: Callable[..., Running], tmp_path: Path) -> None:
    waits = 'import os, threading\nos.write(1, b"LOADING\\n")\nthreading.Event().wait()\n'
    running = start("on_loop", text=waits)
    running.until("LOADING")
    running.send("SIGTERM")
    code, said = running.end()
    assert (code, said) == (143, "LOADING\n")
    assert not (tmp_path / "runs.db").exists()


def test_sigterm_after_the_run_does_not_break_off_its_end(start: Callable[..., Running], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    running = start("quick", "-p", "path=x", "--notify", "sh -c 'echo NOTIFYING; cat gate'")
    running.until("NOTIFYING")
    running.send("SIGTERM")
    (tmp_path / "gate").write_text("released\n")
    code, said = running.end()
    assert code == 0
    assert said.endswith("released\n")


@pytest.mark.spec("FR-148")
def test_a_terminal_that_closes_lands_the_run(tmp_path: Path) -> None:
    """Everything that is printed from then on fails, and costs the run nothing."""
    import fcntl
    import pty
    import termios

    (tmp_path / "waiting.py").write_text(AGENT, encoding="utf-8")
    os.mkfifo(tmp_path / "gate")
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "watchkeeper", "run", "waiting.py:at_gate", "-p", "path=x"]
    process = subprocess.Popen(
        [*command, "--model", "scripted", "--store", "runs.db", "--notify", NOTE],
        cwd=tmp_path,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(inside)
    try:
        said = b""
        while b"WAITING" not in said:
            said += os.read(terminal, 1000)
        os.close(terminal)
        with RunStore(tmp_path / "runs.db", read_only=True) as store:
            while not any("interrupted" in str(each.body) for row in store.runs() for each in store.events(row.run_id)):
                assert process.poll() is None
        (tmp_path / "gate").write_text("released")
        assert (process.wait(60), reason_in(tmp_path)) == (129, "interrupted")
    finally:
        process.kill()
        process.wait()
    assert reason_in(tmp_path) == "interrupted"
    assert json.loads((tmp_path / "noted").read_text())["stop"]["reason"] == "interrupted"


def test_the_end_of_a_run_over_many_counts_the_items_that_were_done(tmp_path: Path) -> None:
    context, ids = root_run_context(SYSTEM_IDS.uuid(), SYSTEM_IDS), [SYSTEM_IDS.uuid() for _ in range(4)]
    events: list[list[Any]] = [[ManyStarted(context, "n/k", "m", "none", ("a", "b", "c"), 2, AT)]]
    for item, stop in (("a", None), ("b", Stop("error", "loop", "no")), ("c", None)):
        events.append([RunStarted(context, "n/k", "m", "none", None, AT, item, ids[0])])
        if item != "c":
            events[-1].append(RunEnded(ids[1], stop, None, None, "", "unchecked", Usage(steps=2), 1.0, None, AT))
    with RunStore(tmp_path / "runs.db") as store:
        for run_id, log in zip(ids, events, strict=True):
            store.append([Item(run_id, Envelope(seq, AT, event)) for seq, event in enumerate(log, 1)])
        row = end_on_record(store, ids[0], AT)
        stops = {child.item: child.stop and child.stop["reason"] for child in store.children(row.run_id)}
    assert (row.items, row.items_done, row.ended_at) == (3, 1, AT)
    assert stops == {"a": None, "b": "error", "c": "aborted"}


def test_the_end_counts_what_failed_calls_were_charged_and_the_time_in_which_a_process_worked(tmp_path: Path) -> None:
    """What a resumed run had used and worked before counts once, and not the night in which nobody worked on it."""
    context, below = (root_run_context(SYSTEM_IDS.uuid(), SYSTEM_IDS) for _ in range(2))
    run_id, later = context.run_id, AT + timedelta(days=1)
    spent = Usage(TokenUsage(1_000, 0), 7, model_calls=1, steps=1)
    resumed = RunResumed(run_id, 1, "none", Limits(), None, spent, (), 5.0, later)
    lost = ModelFailed(1, 1, "timeout", "no answer", None, "node", later, usage=TokenUsage(100, 10), cost_nanos=3)
    child = ChildStarted(below, run_id, "subagent", "n/k", "m", 1, "none", "call", later)
    started = RunStarted(context, "n/k", "m", "none", None, AT)
    times = [AT, AT, *[later] * 3]
    with RunStore(tmp_path / "runs.db") as store:
        log = [started, object(), resumed, lost, child]
        store.append(
            [Item(run_id, Envelope(seq, at, event)) for seq, (at, event) in enumerate(zip(times, log, strict=True), 1)]
        )
        first = RunStarted(below, "n/k", "m", "none", None, later, parent_run_id=run_id)
        store.append([Item(below.run_id, Envelope(seq, later, event)) for seq, event in enumerate((first, lost), 1)])
        row = end_on_record(store, run_id, later + timedelta(seconds=2))
        (child_row,) = store.children(row.run_id)
    assert (row.tokens, row.cost_nanos, row.seconds) == (1_220, 13, 7.0)
    assert (child_row.tokens, child_row.cost_nanos, child_row.seconds) == (110, 3, 2.0)
