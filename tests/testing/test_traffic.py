"""Recorded traffic: real answers once, then from the file; a changed request fails with what changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, ProviderError
from watchkeeper.core.model import Model, ModelReply, ModelRequest, ModelSettings
from watchkeeper.core.secrets import hold
from watchkeeper.runtime.events import TextDelta
from watchkeeper.runtime.result import RunResult
from watchkeeper.testing.traffic import ChangedRequestError, recorded, same_text
from watchkeeper.tools.tool import Tool, tool


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is fine, token s3cret-key-of-mine"


def played(model: Model, task: str = "Look.", tools: tuple[Tool, ...] = (look,), **more: Any) -> RunResult[str]:
    """Run the agent."""
    return Agent(model, "You look.", str, tools=tools).run(task, clock=TestClock(), store=None, **more)


def script() -> ScriptedModel:
    """Return what stands for a real model."""
    busy = ProviderError("busy", fault="overloaded", provider="scripted")
    return ScriptedModel([Call("look", {"place": "the dam"}), busy, Say("all is fine")])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a recording."""
    hold("s3cret-key-of-mine")
    path = tmp_path / "traffic" / "dam.jsonl"
    with recorded(path, model=script()) as model:
        assert model.recording
        assert played(model).output == "all is fine"
    return path


def test_it_is_recorded_once_and_then_answers_from_the_file(file: Path) -> None:
    before = file.read_bytes()
    for _ in range(2):
        with recorded(file) as model:
            assert (model.recording, model.provider, model.name) == (False, "scripted", "scripted")
            result = played(model)
        assert result.output == "all is fine"
        assert result.usage.retries == 1
    assert file.read_bytes() == before


def test_the_file_is_the_same_each_time_and_without_credentials(file: Path, tmp_path: Path) -> None:
    with recorded(tmp_path / "again.jsonl", model=script()) as model:
        played(model)
    assert (tmp_path / "again.jsonl").read_bytes() == file.read_bytes()
    text = file.read_text()
    assert "s3cret" not in text
    assert "token [redacted]" in text
    assert text.count('"the dam is fine') == 1


def test_a_credential_that_comes_in_pieces_is_not_in_the_file(file: Path, tmp_path: Path) -> None:
    class InPieces(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            hear = request.on_delta or request.on_text
            assert hear is not None
            for piece in ("it is s3cr", "et-key-of", "-mine."):
                hear(piece)
            return await super().turn(msgspec.structs.replace(request, on_delta=None, on_text=None))

    path = tmp_path / "pieces.jsonl"
    heard: list[str] = []

    def listen(event: object) -> None:
        heard.extend([event.text] if isinstance(event, TextDelta) else [])

    with recorded(path, model=InPieces([Say("it is s3cret-key-of-mine.")])) as model:
        assert played(model, tools=(), on_event=listen).ok
    assert '"pieces":["it is [redacted]."]' in path.read_text()
    heard.clear()
    with recorded(path) as model:
        played(model, tools=(), on_event=listen)
    assert heard == ["it is [redacted]."]


def test_many_credentials_in_a_changed_message_fail_as_soon_as_one(file: Path) -> None:
    record = "token [redacted]\n" * 40
    assert same_text("token a-secret-of-mine\n" * 40, record)
    assert same_text("token a\ntoken b\n" * 40, record), "a credential stands for any text"
    assert not same_text("token a-secret-of-mine\n" * 80 + "end", record)


def test_what_a_credential_stood_for_ends_with_its_text() -> None:
    record = '{"role":"tool","content":"token [redacted]!"}'
    assert same_text('{"role":"tool","content":"token a \\"quoted\\" one!"}', record)
    assert not same_text('{"role":"tool","content":"token a","parts":"another!"}', record)


def test_tokens_in_extra_fields_and_keys_that_come_later_are_not_in_the_file(tmp_path: Path) -> None:
    server = {
        "type": "mcp",
        "authorization": "Bearer mcp-token-of-mine",
        "server_url": "https://x/mcp?sig=sig-of-mine-1",
    }
    extra = {"tools": [server], "extra_headers": {"X-Api-Key": "header-key-of-mine"}}
    path = tmp_path / "extra.jsonl"

    def answer(_: ModelRequest) -> Say:
        hold("later-key-of-mine")  # as a tool does that logs in
        return Say("done with later-key-of-mine")

    with recorded(path, model=ScriptedModel(answer)) as model:
        task = "Use mcp-token-of-mine, header-key-of-mine, sig-of-mine-1 and later-key-of-mine."
        assert played(model, task, tools=(), settings=ModelSettings(extra=extra, extra_max_tokens=9)).ok
    text = path.read_text()
    assert "of-mine" not in text
    assert "Use [redacted], [redacted], [redacted] and [redacted]." in text
    with recorded(path) as model:
        played(model, task, tools=(), settings=ModelSettings(extra=extra, extra_max_tokens=9))
    server["server_url"] = "https://y/mcp?sig=sig-of-mine-1"
    with pytest.raises(ChangedRequestError) as failed, recorded(path) as model:
        played(model, task, tools=(), settings=ModelSettings(extra=extra, extra_max_tokens=9))
    assert "of-mine" not in str(failed.value)


def test_a_changed_message_fails_with_a_diff(file: Path) -> None:
    with pytest.raises(ChangedRequestError) as failed, recorded(file) as model:
        played(model, "Look twice.")
    said = str(failed.value)
    assert "request 1 has changed" in said
    assert "WATCHKEEPER_RECORD=1" in said
    changed = [line for line in said.splitlines() if line[:1] in "+-" and "Look" in line]
    assert [line[0] for line in changed] == ["-", "+"]
    assert "twice" not in changed[0]


def test_changed_tools_and_settings_fail_with_a_diff(file: Path) -> None:
    @tool(name="look")
    def other(place: str, far: bool = False) -> str:
        """Look at a place."""
        return f"{place} is fine, token s3cret-key-of-mine"

    with pytest.raises(ChangedRequestError, match=r'\+ +"far"'), recorded(file) as model:
        played(model, tools=(other,))
    with pytest.raises(ChangedRequestError, match=r'\+settings: .*"temperature":0.5'), recorded(file) as model:
        played(model, settings=ModelSettings(temperature=0.5))


def test_a_change_in_the_middle_names_its_request(file: Path) -> None:
    @tool(name="look")
    def broken(place: str) -> str:
        """Look at a place."""
        return f"{place} is broken"

    said = r"request 2 has changed[^$]*\+.*the dam is broken"
    with pytest.raises(ChangedRequestError, match=said), recorded(file) as model:
        assert played(model, tools=(broken,)).ok


def test_requests_that_do_not_come_or_come_in_addition_fail(file: Path) -> None:
    with pytest.raises(ChangedRequestError, match="3 of 3 recorded requests did not come"), recorded(file):
        pass
    said = "all 3 recorded requests were made, and another one came"
    with pytest.raises(ChangedRequestError, match=said), recorded(file) as model:
        assert [played(model).ok for _ in range(2)] == [True, False]


def test_the_environment_records_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHKEEPER_RECORD", "1")
    with recorded(file, model=ScriptedModel([Say("new")])) as model:
        assert model.recording
        played(model)
    with recorded(file, record=False) as model:
        assert played(model).output == "new"


def test_a_block_that_fails_records_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), recorded(tmp_path / "x.jsonl", model=script()) as model:
        assert played(model).turns / 0
    assert not (tmp_path / "x.jsonl").exists()


def test_streams_arrive_in_the_pieces_that_were_recorded(tmp_path: Path) -> None:
    class Streaming(ScriptedModel):
        async def turn(self, request: Any) -> Any:
            reply = await super().turn(type(request)(request.transcript))
            for piece in ("all ", "is ", "fine"):
                request.on_delta(piece)
            return reply

    def heard(model: Model) -> list[str]:
        said: list[Any] = []
        played(model, on_event=said.append)
        return [each.text for each in said if isinstance(each, TextDelta)]

    with recorded(tmp_path / "x.jsonl", model=Streaming([Say("all is fine")])) as model:
        assert heard(model) == ["all ", "is ", "fine"]
    with recorded(tmp_path / "x.jsonl") as model:
        assert heard(model) == ["all ", "is ", "fine"]


def test_side_by_side_requests_may_come_in_any_order(tmp_path: Path) -> None:
    def answer(request: Any) -> Say:
        return Say(request.transcript[1].text.rpartition("/")[2])

    tasks = [f"task/{number}" for number in range(6)]
    with recorded(tmp_path / "x.jsonl", model=ScriptedModel(answer)) as model:
        Agent(model, "Say.", str).run_many(tasks, store=None)
    with recorded(tmp_path / "x.jsonl") as model:
        result = Agent(model, "Say.", str).run_many(tasks[::-1], store=None)
    assert [each.output for each in result.results] == ["5", "4", "3", "2", "1", "0"]


def test_it_works_in_an_async_block(file: Path) -> None:
    async def work() -> str | None:
        async with recorded(file) as model:
            agent = Agent(model, "You look.", str, tools=(look,))
            return (await agent.arun("Look.", clock=TestClock(), store=None)).output

    assert asyncio.run(work()) == "all is fine"


def test_what_cannot_work_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no recording .*; give the model to record"):
        recorded(tmp_path / "none.jsonl")
    with pytest.raises(ConfigurationError, match=r"is to be recorded again; give the model to record"):
        recorded(file, record=True)
    whole = file.read_text()
    for text in ("7", '{"$type":"tuple","items":[]}'):
        file.write_text(whole.replace('"text":"all is fine"', f'"text":{text}'))
        assert file.read_text() != whole
        with pytest.raises(ConfigurationError, match=r"cannot be read: .* record it again with WATCHKEEPER_RECORD=1"):
            recorded(file)
    file.write_text(whole[:-30])
    with pytest.raises(ConfigurationError, match=r"cannot be read: .* record it again with WATCHKEEPER_RECORD=1"):
        recorded(file)
    with pytest.raises(ConfigurationError, match="use it in a block"):
        played(recorded(tmp_path / "none.jsonl", model=script()))
