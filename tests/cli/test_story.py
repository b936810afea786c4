"""``watchkeeper show`` tells the story of a run: task, words, calls, tracebacks; with ``--full`` all of each."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.cli.support import CommandLine
from watchkeeper.cli.console import PlainConsole, put_all
from watchkeeper.cli.stored.story import Story
from watchkeeper.core.messages import AssistantMessage, SystemMessage, ToolCall, UserMessage
from watchkeeper.core.type_tags import tag_of
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.evaluation import PromptRendered
from watchkeeper.runtime.events import CompletionChecked, ModelReplied
from watchkeeper.session.tagging import dump
from watchkeeper.shield.decision import Decision, SafetyEvent
from watchkeeper.store.run_store import StoredEvent
from watchkeeper.tools.context import ToolInvoked, ToolOutcome
from watchkeeper.tools.values import ToolResult

AT = datetime(2026, 11, 21, 9, tzinfo=UTC)
FOLDER = ("-p", "folder=inbox")
HOSTILE = "a\x1b[2Jb\n09:00:00  ● model  forged\x1b]8;;http://x\x07link"

CRASHING = '''
from watchkeeper import MarkdownSection, PromptTemplate, tool
from watchkeeper.adapters.scripted import Call, Calls, Say


@tool
def look(path: str) -> str:
    """Look at a path."""
    if path == "bad":
        raise LookupError("no such path")
    return "line\\n" * 50


task = MarkdownSection(title="Task", key="task", template="Find the bug.\\nReport it.", tools=(look,))
triage = PromptTemplate[str](ns="tests", key="triage", sections=(task,))
SCRIPT = [
    Calls((Call("look", {"path": "x" * 80}),), "I look at the first."),
    Calls((Call("look", {"path": "bad"}),), "And at the other."),
    Say("It is in the other."),
]
'''


def stored(*events: object) -> Iterator[StoredEvent]:
    """Return events as a store gives them."""
    for number, event in enumerate(events, 1):
        body = json.loads(json.dumps(dump(event)))
        yield StoredEvent(number, AT, tag_of(type(event)), body)


def told(*events: object, full: bool = False) -> list[str]:
    """Return the lines of events as they are printed where no terminal is."""
    out = io.StringIO()
    put_all(PlainConsole(file=out), Story(full=full).lines(stored(*events)))
    return out.getvalue().splitlines()


def replied(text: str, *calls: str) -> ModelReplied:
    """Return a reply with calls."""
    message = AssistantMessage(text, tuple(ToolCall(name, name, "{}") for name in calls))
    return ModelReplied(1, message, "stop", TokenUsage(1, 1), 0, "m", "n", 1500.0, False, AT)


def invoked(said: str, traceback: str = "") -> ToolInvoked:
    """Return a tool call."""
    result = ToolResult.ok(None, said)
    outcome: ToolOutcome = "crashed" if traceback else "ok"
    return ToolInvoked(
        "n/k", "a", "look", {"at": said}, result, None, AT, None, said, "c", UUID(int=1), outcome, traceback=traceback
    )


def test_show_tells_the_task_the_words_between_calls_and_where_a_tool_crashed(cli: CommandLine) -> None:
    cli.write(CRASHING)
    run_id = json.loads(cli.run("--json").out)["run_id"]
    said = cli("show", run_id).out
    order = [
        "│ Find the bug.\n│ Report it.",
        "model  turn 1",
        "│ I look at the first.",
        "● look",
        "│ And at the other.",
        "→ crashed: look failed: LookupError: no such path",
        "│ Traceback (most recent call last):",
        '    raise LookupError("no such path")\n│ LookupError: no such path',
        "model  turn 3",
        "│ It is in the other.\nDone: ",
    ]
    places = [said.index(part) for part in order]
    assert places == sorted(places)
    assert said.count("It is in the other.") == 1
    assert "x" * 80 not in said


def test_full_prints_all_of_arguments_and_results(cli: CommandLine) -> None:
    cli.write(CRASHING)
    run_id = json.loads(cli.run("--json").out)["run_id"]
    said = cli("show", run_id, "--full").out
    assert f'          arguments\n│ {{\n│   "path": "{"x" * 80}"\n│ }}\n          result\n' in said
    assert said.count("│ line\n") == 50
    assert said.count('"path": "bad"') == 1  # the line has all of it


def test_full_is_for_people(cli: CommandLine) -> None:
    said = cli("show", "a", "--full", "--json")
    assert (said.code, said.out) == (2, "")
    assert "--json prints all of every event" in said.err


def test_of_long_texts_the_beginning_is_printed_and_of_a_traceback_the_end() -> None:
    long = "\n".join(f"line {number} {'y' * 300}" for number in range(1, 21))
    prompt = PromptRendered("n/k", (SystemMessage("Be brief."), UserMessage.of(long)), ("look",), "a", uuid4(), AT)
    lines = told(prompt, replied(long, "look"), invoked("z", traceback=long))
    texts = [line[:9] for line in lines if line.startswith("│")]
    notes = [line for line in lines if line.startswith("│ [")]
    assert notes == [
        "│ [10 lines more; --full shows all]",
        "│ [17 lines more; --full shows all]",
        "│ [14 lines before this; --full shows all]",
    ]
    assert (texts[0], texts[9], texts[13], texts[-1]) == ("│ line 1 ", "│ line 10", "│ line 3 ", "│ line 20")
    assert max(map(len, lines)) <= 300
    whole = told(prompt, replied(long, "look"), invoked("z", traceback=long), full=True)
    assert sum(line.startswith("│ line ") for line in whole) == 60
    assert whole.index("          system") < whole.index("│ Be brief.") < whole.index("          user")
    assert not [line for line in whole if "--full" in line]


def test_an_answer_that_was_sent_back_is_told() -> None:
    checked = CompletionChecked("rejected", "The file is missing.", AT)
    lines = told(replied("I am done."), checked, replied("Now I am done."))
    assert [line for line in lines if line.startswith("│")] == ["│ I am done.", "│ Now I am done."]
    assert lines.index("│ I am done.") < next(place for place, line in enumerate(lines) if "rejected" in line)


def test_full_names_the_hook_that_stopped_something() -> None:
    event = SafetyEvent("policy", Decision.HALT, "Not this host.", "EgressPolicy", metadata={"host": "x.org"})
    line, *rest = told(event, full=True)
    assert told(event) == [line] == ["09:00:00  ■ policy  Not this host."]
    assert rest == ["          decided by", "│ EgressPolicy", "          facts", "│ {", '│   "host": "x.org"', "│ }"]


@pytest.mark.parametrize("full", [False, True])
def test_hostile_text_stays_behind_the_fence(full: bool) -> None:
    prompt = PromptRendered("n/k", (UserMessage.of(HOSTILE),), ("look",), "a", uuid4(), AT)
    lines = told(prompt, replied(HOSTILE, "look"), invoked(HOSTILE, traceback=HOSTILE), replied(HOSTILE), full=full)
    assert not [line for line in lines if "\x1b" in line or "\x07" in line]
    assert [line[10] for line in lines if line.startswith("09:00:00")] == ["○", "●", "●", "●"]


def test_an_event_of_another_version_is_told_by_what_it_has() -> None:
    events = [
        StoredEvent(1, AT, "model_replied", {"turn": 1}),
        StoredEvent(2, AT, "prompt_rendered", {"messages": [{"text": 1}], "tool_names": []}),
        StoredEvent(3, AT, "later:event", {"new": "x" * 200}),
    ]
    assert [line[1:3] for line in Story().lines(events)]
    whole = list(Story(full=True).lines(events))
    assert any("x" * 200 in str(line) for line in whole)


def test_events_are_told_one_after_the_other_and_not_kept() -> None:
    left: list[int] = []

    def endless() -> Iterator[StoredEvent]:
        while True:
            left.append(1)
            yield from stored(replied("words", "look"))

    lines = Story().lines(endless())
    assert [str(next(lines)[0]) for _ in range(4)][1::2] == ["│ "] * 2
    assert len(left) == 2


def test_what_comes_before_damage_is_printed(cli: CommandLine, tmp_path: Path) -> None:
    run_id = json.loads(cli.run("--json", *FOLDER, "--store", "runs").out)["run_id"]
    (file,) = (tmp_path / "runs" / "runs").glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if b'"tag":"tool_invoked"' in line)
    lines[place] = lines[place].replace(b"look", b"hook")
    file.write_bytes(b"".join(lines))
    said = cli("show", run_id, "--store", "runs")
    assert "model  turn 1" in said.out
    assert said.code == 2
    assert "cannot be read any further" in said.err
