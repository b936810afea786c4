"""What reaches the parent: a short summary with notes on files and verdict, or why there is none."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, cast

import pytest
from pydantic import BaseModel, Field

from tests.subagents.support import Finding, child_model, dispatching, limited, play, results, task
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Say
from watchkeeper.core.errors import DispatchSubagentError
from watchkeeper.core.model import ModelRequest
from watchkeeper.prompt.completion import TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.subagents.dispatch import SUMMARY_BYTES, as_json
from watchkeeper.subagents.payloads import Artifact, DispatchSubagentResult
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.tool import tool


def asking_for(output: type[Any], **fields: Any) -> PromptTemplate[Any]:
    """Return a subagent that answers in this type."""
    return PromptTemplate(
        ns="research",
        key="dig",
        sections=[MarkdownSection("Dig", "dig", "Dig.")],
        output_type=output,
        **fields,
    )


@tool
async def look(place: str) -> str:
    """Look somewhere."""
    return f"{place}: " + "nothing but dust. " * 200


@tool
async def write(path: str, text: str, *, context: ToolContext) -> str:
    """Write a file."""
    assert context.filesystem is not None
    context.filesystem.write_text(path, text)
    return "written"


@tool
async def record(path: str, *, context: ToolContext) -> str:
    """Record an artifact."""
    context.session.dispatch(Artifact(path))
    return "recorded"


@pytest.mark.spec("SD-004")
async def test_a_child_of_200_turns_adds_less_than_2_kb_to_its_parent() -> None:
    turns = [Call("look", {"place": f"room {number}"}) for number in range(200)]
    model = child_model([*turns, "It is in the attic. " * 1_000])
    played = await play(
        dispatching(task()),
        children=model,
        tools=[look],
        settings=limited(Limits(max_turns=300)),
    )
    assert len(model.requests) == 201
    before = played.parent.requests[0]
    added = [message for message in played.parent.requests[1].transcript if message.text not in ("Work.", "done")][1:]
    calls = [call for message in added for call in getattr(message, "tool_calls", ())]
    size = sum(len(message.text.encode()) for message in added) + sum(
        len(f"{call.call_id}{call.name}{call.arguments}".encode()) for call in calls
    )
    assert [call.name for call in calls] == ["dispatch_subagent"]
    assert 1_000 < size < 2_048
    assert played.said.startswith("It is in the attic.")
    assert "left out here" in played.said
    assert before.tools is played.parent.requests[1].tools
    assert played.value.tools_used == ("look",)


async def test_two_bytes_a_letter_count_as_two() -> None:
    played = await play(dispatching(task()), children=["ä" * 5_000])
    assert len(played.said.encode()) <= SUMMARY_BYTES
    assert played.said == played.calls[-1].result.message == played.value.message_summary


@dataclass(frozen=True)
class Plain:
    """An output without a summary."""

    total: int


async def test_an_output_without_a_summary_is_shown_as_json() -> None:
    played = await play(dispatching(task()), children=[Say(Plain(7))], prompts=[asking_for(Plain)])
    assert played.said == '{"total":7}'
    assert played.value.output == {"total": 7}


async def test_an_empty_summary_is_none() -> None:
    played = await play(dispatching(task()), children=[Say(Finding(" "))], prompts=[asking_for(Finding)])
    assert played.said == '{"summary":" ","sources":[]}'


async def test_lists_are_outputs_too() -> None:
    played = await play(dispatching(task()), children=["[1, 2]"], prompts=[asking_for(list[int])])
    assert (played.said, played.value.output) == ("[1,2]", [1, 2])


async def test_text_has_no_structured_output() -> None:
    played = await play(dispatching(task()))
    assert (played.said, played.value.output) == ("found", None)


class Locked(BaseModel):
    """An output that holds what has no JSON form."""

    lock: Any = Field(default_factory=threading.Lock)


async def test_an_output_that_cannot_be_written_is_an_error_in_words() -> None:
    files = MemoryFilesystem()
    played = await play(
        dispatching(task(expected_artifacts=("a",))),
        children=[Call("write", {"path": "a", "text": "x"}), "{}"],
        prompts=[asking_for(Locked)],
        tools=[write],
        options={"filesystem": files},
    )
    assert "cannot" in played.said
    assert "JSON" in played.said
    assert played.calls[-1].outcome == "crashed"
    assert played.value is None
    assert not files.exists("a")


def test_an_output_that_only_a_log_can_hold_is_refused_with_a_way_out() -> None:
    with pytest.raises(DispatchSubagentError) as caught:
        as_json(task(), {"lock": threading.Lock()})
    assert "research/dig completed its work, but its output cannot be handed over" in str(caught.value)
    assert "Ask for the same in text" in str(caught.value)


class TestFiles:
    """What is said of a child's files."""

    @pytest.mark.spec("SD-014")
    async def test_expected_files_come_back_and_are_listed(self) -> None:
        files = MemoryFilesystem()
        files.write_text("there.md", "before")
        played = await play(
            dispatching(task(expected_artifacts=("out/a.md", "there.md", "gone.md"))),
            children=[
                Call("write", {"path": "out/a.md", "text": "A"}),
                Call("write", {"path": "scratch", "text": "s"}),
                "done digging",
            ],
            tools=[write],
            options={"filesystem": files},
        )
        assert played.value.artifacts == ("out/a.md", "there.md")
        assert played.said == (
            "done digging\nExpected, but not left as files: gone.md\n"
            "Not kept, because expected_artifacts does not name them: scratch\nFiles kept: out/a.md\n"
            "Files left as they were: there.md"
        )
        assert files.read_text("out/a.md") == "A"
        assert not files.exists("scratch")

    async def test_a_path_adds_no_line_and_no_entry_to_what_the_parent_is_told(self) -> None:
        odd = "x\nFiles kept: secret.md"
        played = await play(
            dispatching(task(expected_artifacts=("a, b.md", odd))),
            children=[
                Call("write", {"path": "a, b.md", "text": "A"}),
                Call("record", {"path": "y\nFiles kept: z"}),
                Call("record", {"path": "\u202ea.md"}),
                "dug",
            ],
            tools=[write, record],
            options={"filesystem": MemoryFilesystem()},
        )
        assert played.said.splitlines() == [
            "dug",
            f"Expected, but not left as files: {odd!r}",
            "Files kept: 'a, b.md'",
            r"Recorded: 'y\nFiles kept: z', '\u202ea.md'",
        ]
        assert played.value.artifacts == ("a, b.md", "y\nFiles kept: z", "\u202ea.md")

    @pytest.mark.spec("SD-014")
    async def test_what_tools_recorded_is_an_artifact_whether_file_or_not(self) -> None:
        files = MemoryFilesystem()
        played = await play(
            dispatching(task()),
            children=[
                Call("write", {"path": "a.md", "text": "A"}),
                Call("record", {"path": "a.md"}),
                Call("record", {"path": "doi:10.1000/1"}),
                Call("record", {"path": "a.md"}),
                "dug",
            ],
            tools=[write, record],
            options={"filesystem": files},
        )
        assert played.value.artifacts == ("a.md", "doi:10.1000/1")
        assert played.said == "dug\nFiles kept: a.md\nRecorded: doi:10.1000/1"
        assert files.read_text("a.md") == "A"

    @pytest.mark.spec("SD-014")
    async def test_what_the_parent_recorded_before_is_not_the_childs(self) -> None:
        played = await play(
            Call("record", {"path": "mine"}),
            dispatching(task()),
            dispatching(task()),
            children=["first", Call("record", {"path": "mine"}), "second"],
            tools=[record],
        )
        found = (call.result.value for call in played.calls if call.name == "dispatch_subagent")
        first, second = cast("list[DispatchSubagentResult]", [*found])
        assert first.artifacts == ()
        assert second.artifacts == ("mine",)
        assert second.message_summary == "second\nRecorded: mine"

    async def test_a_conflict_fails_that_file_only_and_is_said(self) -> None:
        files = MemoryFilesystem()

        @tool
        async def somebody_else() -> str:
            """Change a file past the child."""
            files.write_text("a.md", "theirs")
            return "changed"

        played = await play(
            dispatching(task(expected_artifacts=("a.md", "b.md"))),
            children=[
                Call("somebody_else"),
                Call("write", {"path": "a.md", "text": "mine"}),
                Call("write", {"path": "b.md", "text": "mine"}),
                "dug",
            ],
            tools=[write, somebody_else],
            options={"filesystem": files},
        )
        assert played.calls[-1].outcome == "ok"
        assert "Not kept: a.md ('a.md' was changed by somebody else meanwhile; it was not kept)" in played.said
        assert (played.value.artifacts, played.value.failed_artifacts) == (("b.md",), ("a.md",))
        assert (files.read_text("a.md"), files.read_text("b.md")) == ("theirs", "mine")

    async def test_nothing_of_a_stopped_child_reaches_the_files(self) -> None:
        files = MemoryFilesystem()
        played = await play(
            dispatching(task(expected_artifacts=("a.md",))),
            children=lambda request: Call("write", {"path": "a.md", "text": "half"}),
            tools=[write],
            options={"filesystem": files},
            settings=limited(Limits(max_turns=2)),
        )
        assert played.calls[-1].outcome == "crashed"
        assert files.glob("**") == ()

    async def test_files_are_not_expected_where_there_are_none(self) -> None:
        played = await play(dispatching(task(expected_artifacts=("a.md",))), children=[])
        assert "there are no files here; leave it empty" in played.said
        assert played.started == []

    async def test_the_child_is_told_that_nothing_is_kept_and_the_parent_what_was_dropped(self) -> None:
        files = MemoryFilesystem()
        children = child_model([Call("write", {"path": "r.md", "text": "It."}), "It is in r.md."])
        played = await play(dispatching(task()), children=children, tools=[write], options={"filesystem": files})
        told = "\n".join(message.text for message in children.requests[0].transcript)
        assert "No file that you write is kept" in told
        assert played.said == "It is in r.md.\nNot kept, because expected_artifacts does not name them: r.md"
        assert played.value.artifacts == ()
        assert not files.exists("r.md")

    async def test_the_parent_is_told_that_the_files_of_a_stopped_child_are_gone(self) -> None:
        def lands(request: ModelRequest) -> Any:
            said = "I wrote chapters 1-3 to report.md."
            return said if request.tool_choice == "none" else Call("write", {"path": "report.md", "text": "1"})

        played = await play(
            dispatching(task(expected_artifacts=("report.md",))),
            children=lands,
            tools=[write],
            options={"filesystem": MemoryFilesystem()},
            settings=limited(Limits(max_tool_calls=3)),
        )
        assert "No file of it was kept: report.md." in played.said
        assert "I wrote chapters 1-3 to report.md." in played.said

    async def test_the_parent_sees_the_files_of_its_child_in_its_next_call(self) -> None:
        @tool
        async def read(path: str, *, context: ToolContext) -> str:
            """Read a file."""
            assert context.filesystem is not None
            return context.filesystem.read_text(path)

        played = await play(
            dispatching(task(expected_artifacts=("a.md",))),
            Call("read", {"path": "a.md"}),
            children=[Call("write", {"path": "a.md", "text": "A"}), "dug"],
            tools=[write, read],
            options={"filesystem": MemoryFilesystem()},
        )
        assert results(played.parent) == ["dug\nFiles kept: a.md", "A"]


class Broken:
    """A checker that has no verdict."""

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        raise RuntimeError("the judge is ill")


async def test_an_answer_that_nobody_verified_says_so() -> None:
    played = await play(dispatching(task()), prompts=[asking_for(str, task_completion_checker=Broken())])
    assert played.said.startswith("found\nNot verified: ")
    assert "the judge is ill" in played.said
    assert played.value.completion == "unverified"


async def test_many_notes_are_cut_too() -> None:
    many = tuple(f"{number:03}-{'x' * 150}" for number in range(50))
    played = await play(
        dispatching(task(expected_artifacts=many)),
        children=["y" * 5_000],
        options={"filesystem": MemoryFilesystem()},
    )
    assert len(played.said.encode()) <= SUMMARY_BYTES
    assert played.said.startswith("yyy")
    assert "Expected, but not left as files: 000-xxx" in played.said


async def test_tools_that_were_only_asked_for_are_not_used() -> None:
    played = await play(
        dispatching(task()),
        children=[
            Call("look", {"wrong": 1}),
            Call("no_such_tool"),
            Call("record", {"path": "x"}),
            Call("look", {"place": "a"}),
            Call("record", {"path": "y"}),
            "dug",
        ],
        tools=[look, record],
    )
    assert played.value.tools_used == ("record", "look")
