"""Subagents whose tools write files go on from every line, and hand over the same files."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_resume_files import MAKERS, Files, content
from tests.app.written import Written, written
from tests.kit import events
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime import file_record
from watchkeeper.runtime.events import RunOpened
from watchkeeper.runtime.file_record import FilesNotOnRecord
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.tool import tool

ROUNDS = 3
CHILD = PromptTemplate[str](
    ns="t", key="child", sections=(MarkdownSection(title="Task", key="task", template="Write page ${instructions}."),)
)


def agent(ran: list[str] | None = None) -> Agent[str]:
    """Return an agent whose two subagents write pages, round by round, and hand them over."""

    @tool(idempotent=True)
    def write(page: str, number: int, *, context: ToolContext) -> str:
        """Write."""
        files = context.filesystem
        assert files is not None
        if ran is not None:
            ran.append(f"{page}{number}")
        if not files.exists(f"{page}.txt"):
            files.write_text(f"{page}.txt", "begun\n")
        files.append_text(f"{page}.txt", f"line {number}\n")
        files.write_bytes(f"{page}/{number}.bin", bytes([number, 255]))
        return f"wrote {number}"

    def step(request: ModelRequest) -> Say | Call:
        done = sum(isinstance(message, ToolMessage) for message in request.transcript)
        page = re.findall(r"Write page (\w)", request.transcript[0].text)
        if page:
            return Say("written") if done == ROUNDS else Call("write", {"page": page[0], "number": done})
        if done == 0:
            return Call("dispatch_subagents", {"tasks": [task("a"), task("b")]})
        return Say("finished") if done == 2 else Call("write", {"page": "a", "number": 9})

    return Agent(ScriptedModel(step), "Work.", str, tools=[write], limits=Limits(max_turns=20), subagents=[CHILD])


def task(page: str) -> dict[str, Any]:
    """Return a subagent's task."""
    artifacts = [f"{page}.txt", *(f"{page}/{number}.bin" for number in range(ROUNDS))]
    names = {"prompt_ns": "t", "prompt_key": "child", "mode": "ad_hoc"}
    return {**names, "instructions": page, "expected_artifacts": artifacts}


def pages_of(files: Files) -> Files:
    """Return what was written."""
    return {path: data for path, data in files.items() if path.startswith(("/a", "/b", "a", "b"))}


@pytest.mark.parametrize("kind", MAKERS)
def test_it_goes_on_from_every_line_and_hands_over_the_same_files(kind: str, tmp_path: Path) -> None:
    files = MAKERS[kind](tmp_path / "whole")
    with written() as lines:
        whole = agent().run("go", store=tmp_path / "store", filesystem=files)
    assert whole.ok, whole.sentence()
    expected = pages_of(content(files))
    assert len(expected) >= 2 + 2 * ROUNDS
    opened = [json.loads(line)["body"]["not_resumable"] for line in lines.with_tag("run_opened", len(lines.lines))]
    assert opened == ["", "", ""]
    for count in range(lines.place("run_opened") + 2, len(lines.lines)):
        again, ran = MAKERS[kind](tmp_path / f"{count}"), list[str]()
        if kind == "host":
            for path, data in committed(lines, count).items():
                again.write_bytes(path, data)
        store = lines.cut(count, tmp_path / "store")
        result = agent(ran).resume(str(whole.run_id), store=store, filesystem=again)
        assert result.ok, (count, result.sentence())
        assert pages_of(content(again)) == expected, count
        done = {
            f"{body['params']['page']}{body['params']['number']}"
            for body in (json.loads(line)["body"] for line in lines.with_tag("tool_invoked", count))
            if body["name"] == "write"
        }
        assert not done & {*ran}, count
        assert len(events(result, ToolInvoked)) == len(events(whole, ToolInvoked))


def committed(lines: Written, count: int) -> Files:
    """Return what the run itself had written to a folder of the host: what is there after its process has died."""
    found: Files = {}
    for name, line in lines.lines[: count - 1]:
        changes = json.loads(line).get("files")
        if changes is None or "." in name.removesuffix(".jsonl") or "event_id" not in changes:
            continue
        for change in changes.get("paths", ()):
            if change.get("kind") == "file":
                data = base64.b64decode(change["data"])
                found[change["path"]] = (found.get(change["path"], b"") if "size" in change else b"") + data
    return found


def is_result(line: bytes) -> bool:
    """Whether a line is the result of a tool call."""
    return b'"tag":"tool_invoked"' in line


def test_a_subagent_whose_files_are_not_stored_cannot_go_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_record, "MOST_BYTES", 5)
    files = MAKERS["host"](tmp_path / "whole")
    with written() as lines:
        whole = agent().run("go", store=tmp_path / "store", filesystem=files)
    (opened,) = events(whole, RunOpened)
    assert opened.not_resumable == ""
    assert not events(whole, FilesNotOnRecord)  # the folder of the host survives
    left_out = lines.place("files_not_on_record")
    count = next(place for place, (_, line) in enumerate(lines.lines) if place > left_out and is_result(line)) + 1
    store = lines.cut(count, tmp_path / "cut")
    result = agent().resume(str(whole.run_id), store=store, filesystem=MAKERS["host"](tmp_path / "again"))
    assert result.ok
    (told,) = [each for each in events(result, ToolInvoked) if each.name == "dispatch_subagents"]
    assert "what write changed in its OverlayFilesystem is not stored" in told.rendered_output
