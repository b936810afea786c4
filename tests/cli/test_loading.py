"""Finding an agent: every miss is one clear line, and what the agent's own file raises is shown where it was raised."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.support import AGENT, CommandLine
from watchkeeper.app.agent import Agent
from watchkeeper.cli.loading import AgentFileError, labels_of, load, load_module, matching_files
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.limits import Limits
from watchkeeper.prompt.template import Prompt, PromptTemplate

THERE = "it has triage.py:triage, triage.py:bound, triage.py:agent"


@pytest.mark.spec("FR-077")
@pytest.mark.parametrize(("name", "kind"), [("triage", PromptTemplate), ("bound", Prompt), ("agent", Agent)])
def test_a_template_a_prompt_and_an_agent_can_be_run(cli: CommandLine, name: str, kind: type) -> None:
    loaded = load(f"triage.py:{name}")
    assert isinstance(loaded.target, kind)
    assert isinstance(loaded.prompt, Prompt)
    assert loaded.limits == (Limits(max_steps=9, max_turns=9) if name == "agent" else Limits())


def test_an_agents_instructions_are_bound(cli: CommandLine) -> None:
    assert load("triage.py:agent").prompt.variables == {"instructions": "Be brief."}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("triage.py", f"'triage.py' does not say which agent: {THERE}"),
        ("triage.py:", "must be FILE:NAME, for example triage.py:triage"),
        (":triage", "must be FILE:NAME"),
        ("triage", "must be FILE:NAME"),
        ("", "must be FILE:NAME"),
        ("nowhere.py:triage", "there is no file nowhere.py"),
        (".:triage", ". is a folder, not a file"),
        ("notes.txt:triage", "notes.txt is not a Python file: its name must end in .py"),
        ("triage.py:other", f"triage.py has no 'other': {THERE}"),
        ("triage.py:number", f"triage.py:number is a int, not a PromptTemplate, Prompt or Agent: {THERE}"),
        ("empty.py:x", "empty.py has no 'x': it has no PromptTemplate, Prompt or Agent"),
    ],
)
def test_a_target_that_is_not_there_is_refused_in_one_line(cli: CommandLine, target: str, message: str) -> None:
    (cli.folder / "notes.txt").write_text("x", encoding="utf-8")
    (cli.folder / "empty.py").touch()
    assert message in cli.refused(target=target)


@pytest.mark.parametrize(
    ("text", "place", "last"),
    [
        ("def fail():\n    return 1 / 0\n\n\nfail()\n", "in fail", "ZeroDivisionError: division by zero"),
        ("import no_such_module_here\n", "line 1", "No module named 'no_such_module_here'"),
        ("def broken(:\n", "def broken(:", "SyntaxError"),
    ],
)
def test_an_exception_of_the_agents_own_file_shows_its_traceback(
    cli: CommandLine, text: str, place: str, last: str
) -> None:
    cli.write(text, "mine.py")
    said = cli.run(target="mine.py:x")
    assert said.code == 2
    assert said.out == ""
    assert place in said.err
    assert "importlib" not in said.err
    assert "watchkeeper" not in said.err.partition("error: ")[0]
    assert said.err.splitlines()[-1].startswith("error: mine.py cannot be imported: ")
    assert last in said.err


def test_a_definition_that_cannot_work_is_one_line_with_its_place(cli: CommandLine) -> None:
    section = 'MarkdownSection(title="T", key="t", template="x")'
    text = f'from watchkeeper import *\n\nbad = PromptTemplate(ns="a", key="b", sections=[{section}, {section}])\n'
    cli.write(text, "mine.py")
    line = cli.refused(target="mine.py:bad")
    assert (
        line == "error: mine.py, line 3: prompt 'a/b': two sections have the key 't'; keys must be unique in a prompt"
    )


def test_a_file_that_cannot_be_imported_leaves_nothing_behind(cli: CommandLine) -> None:
    cli.write("1 / 0", "mine.py")
    path = list(sys.path)
    with pytest.raises(AgentFileError):
        load_module(Path("mine.py"))
    assert "mine" not in sys.modules
    assert sys.path == path


@pytest.mark.parametrize(("file", "name"), [("json.py", "agent_json"), ("watchkeeper.py", "agent_watchkeeper")])
def test_a_file_never_takes_the_place_of_a_module(cli: CommandLine, file: str, name: str) -> None:
    cli.write("x = 1", file)
    before = sys.modules[file[:-3]]
    assert load_module(Path(file)).__name__ == name
    assert sys.modules[file[:-3]] is before


def test_a_file_finds_its_neighbours_and_keeps_its_name(cli: CommandLine) -> None:
    folder = cli.folder / "agents"
    folder.mkdir()
    (folder / "neighbour_of_mine.py").write_text("value = 7", encoding="utf-8")
    (folder / "my_own_agent.py").write_text("from neighbour_of_mine import value", encoding="utf-8")
    module = load_module(Path("agents/my_own_agent.py"))
    assert (module.value, module.__name__) == (7, "my_own_agent")
    (folder / "my-own.py").write_text("x = 1", encoding="utf-8")
    assert load_module(Path("agents/my-own.py")).__name__ == "agent_my-own"


def test_files_are_found_by_pattern_sorted_and_only_files(cli: CommandLine) -> None:
    for name in ("b.txt", "a.txt", "c.txt", "deep/a.txt"):
        (cli.folder / "inbox" / name).parent.mkdir(parents=True, exist_ok=True)
        (cli.folder / "inbox" / name).touch()
    found = matching_files("inbox/*", None)
    assert [path.name for path in found] == ["a.txt", "b.txt", "c.txt"]
    assert labels_of(found) == ["a.txt", "b.txt", "c.txt"]
    assert matching_files("inbox/*", 2) == found[:2]
    deep = matching_files("inbox/**/a.txt", None)
    assert labels_of(deep) == [str(Path("inbox/a.txt")), str(Path("inbox/deep/a.txt"))]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("inbox/*.md", "--each 'inbox/*.md': no file matches"),
        ("nowhere/*.md", "--each 'nowhere/*.md': there is no folder nowhere"),
        ("nowhere/**/*.md", "there is no folder nowhere"),
        ("inbox/missing.txt", "no file matches"),
        ("inbox/*/deeper/*.txt", "no file matches"),
        ("inbox/", "is a folder; name its files, for example inbox/*"),
    ],
)
def test_a_pattern_that_matches_nothing_says_why(cli: CommandLine, pattern: str, message: str) -> None:
    (cli.folder / "inbox").mkdir()
    with pytest.raises(ConfigurationError) as caught:
        matching_files(pattern, None)
    assert message in str(caught.value)


def test_a_function_of_the_agents_file_is_found(cli: CommandLine) -> None:
    cli.write(AGENT)
    loaded = load("triage.py:triage")
    assert loaded.function("report", "--after")(3) == "reported int"
