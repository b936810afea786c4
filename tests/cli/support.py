"""Runs the command line on agents in files of their own: in this process, or in processes of their own."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zlib import crc32

import pytest

from tests.cli.warm import command_of
from watchkeeper.cli import entry

ROOT = Path(__file__).parents[2]

AGENT = '''
"""An agent with one tool and a script."""

from dataclasses import dataclass

from watchkeeper import Agent, Limits, MarkdownSection, Prompt, PromptTemplate, ToolContext, tool
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel


@dataclass(frozen=True)
class Inbox:
    folder: str
    limit: int = 3


@dataclass(frozen=True)
class Report:
    summary: str
    count: int


@tool
def look(path: str) -> str:
    """Look at a path."""
    print("the tool speaks")
    return f"looked at {path}"


@tool
def keep(text: str, *, context: ToolContext) -> str:
    """Write a file."""
    context.filesystem.write_text("kept.txt", text)
    return "kept"


task = MarkdownSection(title="Task", key="task", template="Look into ${folder}, at most ${limit}.", tools=(look, keep))
triage = PromptTemplate[Report](ns="tests", key="triage", params=(Inbox,), sections=(task,))
bound = Prompt(triage).bind(Inbox("bound", 5))
last_words = Say({"summary": "all [bold]well[/bold]", "count": 2})
SCRIPT = [Call("look", {"path": "a"}), last_words]
agent = Agent(
    ScriptedModel([Say("done")]), "Be brief.", str, limits=Limits(max_steps=9, max_turns=9), name="brief"
)
number = 3


def report(result):
    return f"reported {type(result).__name__}"


def silent(result):
    print("silent", result.ok)


def broken(result):
    raise ValueError("cannot report")
'''


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs commands in a folder of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._patch = patch
        self._captured = captured

    def write(self, text: str = AGENT, name: str = "triage.py") -> Path:
        """Write an agent's file."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def __call__(self, *arguments: str | Path) -> Said:
        """Run one command to its end."""
        self._patch.setattr(sys, "argv", ["watchkeeper", *map(str, arguments)])
        self._patch.setattr("typer.main.get_command", command_of)
        with pytest.raises(SystemExit) as ended:
            entry.main()
        said = self._captured.readouterr()
        code: Any = ended.value.code
        return Said(code, said.out, said.err)

    def run(self, *arguments: str | Path, target: str = "triage.py:triage", model: str = "scripted") -> Said:
        """Run the agent with its script."""
        return self("run", target, "--model", model, *arguments)

    def refused(self, *arguments: str | Path, target: str = "triage.py:triage", model: str = "scripted") -> str:
        """Run the agent, expect a refusal in one line, and return that line."""
        said = self.run(*arguments, target=target, model=model)
        assert said.code == 2
        assert said.out == ""
        (line,) = said.err.splitlines()
        assert line.startswith("error: ")
        return line


class Process:
    """A command in a process of its own; what `subprocess.Popen` calls the same is the same here."""

    def __init__(self, control: socket.socket, pid: int, stdin: IO[str] | None, stdout: IO[str] | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._control = control

    def poll(self) -> int | None:
        """Return the exit code if the process has ended."""
        if self.returncode is None and select.select([self._control], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        """Wait for the end; return the exit code, or a negative signal."""
        if self.returncode is None:
            self._control.settimeout(timeout)
            self.returncode = int(self._control.recv(64))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def said(self) -> str:
        """Wait for the end; return all that is still to be read."""
        assert self.stdout is not None
        text = self.stdout.read()
        self.wait()
        return text


class Processes:
    """Starts commands in copies of one process that has imported the command line already."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.warm", str(theirs.fileno())], cwd=ROOT, pass_fds=[theirs.fileno()]
            )
        self._latest: Process | None = None

    def start(
        self, folder: Path, *arguments: str, stdin: int = -1, stdout: int = -1, stderr: int = -1, nohup: bool = False
    ) -> Process:
        """Start a command; streams that are not given are pipes, one for both outputs.

        There is one command at a time: the one before is killed.
        """
        self.end_latest()
        ours_in = ours_out = None
        opened: list[int] = []
        if stdin < 0:
            stdin, writer = os.pipe()
            opened.append(stdin)
            ours_in = open(writer, "w")  # noqa: SIM115
        if stdout < 0 or stderr < 0:
            reader, writer = os.pipe()
            opened.append(writer)
            ours_out = open(reader)  # noqa: SIM115
            stdout, stderr = (writer if stream < 0 else stream for stream in (stdout, stderr))
        environ = dict(os.environ)
        order = {"folder": str(folder), "environ": environ, "arguments": arguments, "nohup": nohup}
        socket.send_fds(self._control, [json.dumps(order).encode()], [stdin, stdout, stderr])
        for stream in opened:
            os.close(stream)
        self._control.settimeout(60)
        self._latest = Process(self._control, int(self._control.recv(64)), ours_in, ours_out)
        return self._latest

    def end_latest(self) -> None:
        """Kill the latest command if it still runs, and let go of its streams."""
        process, self._latest = self._latest, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()

    def close(self) -> None:
        """End the process that is copied."""
        self.end_latest()
        self._control.close()
        self._server.wait(60)


def sealed(head: bytes) -> bytes:
    """Return a line with its checksum, given what is before that: what a program of somebody else might write."""
    return head + b',"crc":"%08x"}\n' % crc32(head)


def rewritten(line: bytes, old: str, new: str) -> bytes:
    """Return a line in which something is replaced, with a checksum that fits."""
    changed = re.sub(old.encode(), new.encode(), line[: line.rindex(b',"crc"')], count=1)
    assert changed != line[: line.rindex(b',"crc"')]
    return sealed(changed)


def damage(file: Path, tag: str, harm: Callable[[bytes], bytes]) -> None:
    """Damage the line of an event."""
    lines = file.read_bytes().splitlines(keepends=True)
    place = next(place for place, line in enumerate(lines) if f'"tag":"{tag}"'.encode() in line)
    lines[place] = harm(lines[place])
    file.write_bytes(b"".join(lines))
