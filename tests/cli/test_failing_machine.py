"""A disk that fails in the middle of a run, and a clock that jumps: the run says why it stops, and goes on later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from watchkeeper.store.upkeep import findings

pytestmark = pytest.mark.skipif(os.name == "nt", reason="it has no limit of a file's size")

LETTERS = '''
import os
import resource
from datetime import timedelta
from pathlib import Path
from watchkeeper import Agent, tool
from watchkeeper.app import recording
from watchkeeper.core.clock import SystemClock
from watchkeeper.models import Call, Say, ScriptedModel

WRONG = os.environ.get("WRONG")
recording.STORE_SECONDS = 0.0
write, truncate, now = os.write, os.ftruncate, SystemClock.now


def fail():
    """Let the machine fail from here on."""
    (file,) = Path("s/runs").iterdir()
    at = file.stat()
    if WRONG == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (at.st_size + 40, resource.RLIM_INFINITY))
    elif WRONG in ("broken", "torn"):
        def refuse(number):
            raise OSError(number, os.strerror(number))
        def fails(descriptor, data):
            if not os.path.samestat(os.fstat(descriptor), at):
                return write(descriptor, data)
            if WRONG == "torn":
                write(descriptor, bytes(data)[:40])
            refuse(28 if WRONG == "torn" else 5)
        os.write = fails
        os.ftruncate = lambda *_: refuse(28)
    elif WRONG in ("on", "back"):
        days = timedelta(days=1 if WRONG == "on" else -1)
        SystemClock.now = lambda *_: now() + days


@tool
def send(number: int) -> str:
    """Send a letter."""
    with open("sent.txt", "a") as file:
        file.write(f"{number}\\n")
    if WRONG and number == 2:
        fail()
    if WRONG in ("on", "back") and number == 3:
        os.kill(os.getpid(), 9)
    return f"letter {number} is sent"


def script(request):
    if request.transcript[-1].text.startswith("The run's events"):
        return Say("I sent what I could")
    done = sum(message.role == "tool" for message in request.transcript)
    return Call("send", {"number": done}) if done < 5 else Say("all letters are sent")


agent = Agent(ScriptedModel(script), "Send the letters.", str, tools=[send])
'''


def command(folder: Path, *arguments: str, wrong: str = "") -> subprocess.CompletedProcess[str]:
    """Call the command line in a process of its own."""
    environment = {**os.environ, "WRONG": wrong, "NO_COLOR": "1"}
    line = [sys.executable, "-m", "watchkeeper", *arguments, "--store", "s"]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """Return the folder of an agent."""
    (tmp_path / "letters.py").write_text(LETTERS)
    return tmp_path


def begun(folder: Path, wrong: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the agent on a machine that fails; return what it said, and the file of the run."""
    said = command(folder, "run", "letters.py:agent", "-p", "task=go", wrong=wrong)
    (file,) = (folder / "s" / "runs").iterdir()
    return said, file


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [("full", "File too large"), ("torn", "No space left on device"), ("broken", "Input/output error")],
)
def test_a_run_whose_disk_fails_says_so_and_goes_on_later(letters: Path, wrong: str, reason: str) -> None:
    said, file = begun(letters, wrong)
    assert said.returncode == 1, said
    last = said.stdout.splitlines()[-2]
    assert "The run's events cannot be stored: " in last
    assert reason in last
    assert file.read_bytes().endswith(b"}\n") == (wrong != "torn"), (
        "part of a line is left only if it cannot be cut off"
    )
    assert [found.damaged for found in findings(letters / "s")] == ([False] if wrong == "torn" else [])
    resumed = command(letters, "resume", file.stem)
    assert resumed.returncode == 0, resumed
    assert "all letters are sent" in resumed.stdout
    assert (letters / "sent.txt").read_text().split() == ["0", "1", "2", "3", "4"]
    assert list(findings(letters / "s")) == []


@pytest.mark.parametrize("wrong", ["on", "back"])
def test_a_run_whose_clock_jumps_goes_on_after_a_crash(letters: Path, wrong: str) -> None:
    said, file = begun(letters, wrong)
    assert said.returncode == -9
    if wrong == "on":  # the day that the clock jumped counts as worked, which is more than the hour that is allowed
        refused = command(letters, "resume", file.stem)
        assert refused.returncode == 2, refused
        assert "has worked for 24h, and its deadline is 1h; to go on, give it a later one" in refused.stderr
        assert "--timeout)" in refused.stderr
    resumed = command(letters, "resume", file.stem, *(("--timeout", "2d") if wrong == "on" else ()))
    assert resumed.returncode == 0, resumed
    assert (letters / "sent.txt").read_text().split() == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("wrong", ["on", "back"])
def test_a_clock_that_jumps_moves_no_deadline_of_a_run_that_goes_on(letters: Path, wrong: str) -> None:
    """A length of time is measured by a clock that nobody can set."""
    (letters / "letters.py").write_text(LETTERS.replace("os.kill(os.getpid(), 9)", "pass"))
    said, _ = begun(letters, wrong)
    assert said.returncode == 0, said
    assert "all letters are sent" in said.stdout
    assert list(findings(letters / "s")) == []
