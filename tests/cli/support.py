"""Runs the command line in this process, on agents in files of their own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.cli import entry

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
