"""The local adapter against a fake engine, through the real client."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.core.errors import ConfigurationError, MissingExtraError, ProviderError
from watchkeeper.core.messages import SystemMessage, ToolMessage, Transcript, UserMessage
from watchkeeper.core.model import Model, ModelRequest, ModelSettings, OutputSchema, ToolSpec
from watchkeeper.core.usage import TokenUsage
from watchkeeper.local import model as local
from watchkeeper.local import server as local_server
from watchkeeper.local.files import SplitModel
from watchkeeper.local.model import LocalModel

FAKE = Path(__file__).with_name("fake_engine.py")
OUTPUT = OutputSchema("Done", {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]})
LOOKUP = ToolSpec("lookup", "Look up.", {"type": "object", "properties": {"name": {"type": "string"}}})


class Fake:
    """Models with scripted engines, and what the engines were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: list[LocalModel] = []

    def model(self, *replies: Any, **options: Any) -> LocalModel:
        file = self.folder / f"model{len(self.models)}.gguf"
        script = {"requests": str(self.folder / "requests"), "replies": replies}
        file.write_bytes(b"GGUF" + json.dumps(script).encode())
        self.models.append(LocalModel(file, **options))
        return self.models[-1]

    @property
    def requests(self) -> list[dict[str, Any]]:
        file = self.folder / "requests"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
async def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fake]:
    monkeypatch.setattr(local_server, "ENGINE", FAKE)
    monkeypatch.setattr(local_server, "ENGINE_PACKAGES", ("openai", "aiohttp"))
    made = Fake(tmp_path)
    yield made
    for model in made.models:
        await model.close()


def ask(text: str = "Hello", **fields: Any) -> ModelRequest:
    return ModelRequest(Transcript([SystemMessage("Be brief."), UserMessage.of(text)]), **fields)


def ignore(delta: str) -> None:
    """Listen, so that the model streams."""


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process writes."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_it_is_a_model(fake: Fake) -> None:
    model: Model = fake.model(context_window=4096, max_output_tokens=9999)
    assert isinstance(model, Model)
    assert (model.name, model.provider) == ("model0", "local")
    assert model.free
    assert model.native_output
    assert model.context_window == model.max_output_tokens == 4096
    assert not fake.requests


async def test_a_plain_turn(fake: Fake) -> None:
    model = fake.model("Hi!")
    reply = await model.turn(ask(max_output_tokens=99))
    assert reply.message.text == "Hi!"
    assert reply.usage == TokenUsage(input_tokens=20, output_tokens=5, cached_tokens=12)
    assert (reply.model, reply.finish) == ("model0", "stop")
    assert fake.requests == [
        {
            "path": "/v1/chat/completions",
            "connection": "close",
            "model": "model0",
            "max_tokens": 99,
            "temperature": 0.0,
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        }
    ]


@pytest.mark.spec("FR-060")
async def test_a_run_of_tool_and_typed_answer(fake: Fake) -> None:
    model = fake.model(
        '{"action":"lookup","arguments":{"name":"Ann"}}', '{"action":"final_answer","answer":{"ok":true}}'
    )
    request = ask(tools=(LOOKUP,), output=OUTPUT)
    first = await model.turn(request)
    assert first.finish == "tool_calls"
    (call,) = first.message.tool_calls
    assert (call.name, call.arguments) == ("lookup", '{"name":"Ann"}')
    request.transcript.append(first.message)
    request.transcript.append(ToolMessage(call.call_id, "lookup", "found"))
    second = await model.turn(request)
    assert second.message.text == '{"ok":true}'
    before, after = fake.requests
    assert after["messages"][: len(before["messages"])] == before["messages"]
    assert after["messages"][2:] == [
        {"role": "assistant", "content": '{"action":"lookup","arguments":{"name":"Ann"}}'},
        {"role": "user", "content": "Result of lookup:\nfound"},
    ]
    assert before["logit_bias"] == [[7, False], [8, False]]
    assert len(before["response_format"]["json_schema"]["schema"]["anyOf"]) == 2
    assert "tools" not in before
    assert "tool_choice" not in before


async def test_no_tools_are_left_where_none_may_be_used(fake: Fake) -> None:
    model = fake.model('{"action":"final_answer","answer":"Bye"}')
    reply = await model.turn(ask(tools=(LOOKUP,), tool_choice="none"))
    assert reply.message.text == "Bye"
    (sent,) = fake.requests
    assert sent["response_format"]["json_schema"]["schema"]["properties"]["action"] == {"const": "final_answer"}


async def test_text_streams_as_it_arrives(fake: Fake) -> None:
    model = fake.model("Hello there", '{"action":"final_answer","answer":"Hello there"}')
    for tools in ((), (LOOKUP,)):
        deltas: list[str] = []
        reply = await model.turn(ask(tools=tools, on_delta=deltas.append))
        assert reply.message.text == "".join(deltas) == "Hello there"
        assert len(deltas) > 1
        assert reply.usage == TokenUsage(input_tokens=20, output_tokens=5, cached_tokens=12)
    assert all(sent["stream_options"] == {"include_usage": True} for sent in fake.requests)


async def test_settings_are_passed_on(fake: Fake) -> None:
    model = fake.model("x")
    settings = ModelSettings(temperature=0.7, top_p=0.9, seed=3, effort="high", extra={"min_p": 0.1})
    await model.turn(ask(settings=settings))
    (sent,) = fake.requests
    assert (sent["temperature"], sent["top_p"], sent["seed"], sent["min_p"]) == (0.7, 0.9, 3, 0.1)


async def test_settings_that_would_replace_the_adapters_work_are_refused(fake: Fake) -> None:
    model = fake.model()
    with pytest.raises(ConfigurationError, match="cannot set messages"):
        await model.turn(ask(settings=ModelSettings(extra={"messages": []})))


async def test_a_cut_reply_keeps_its_text(fake: Fake) -> None:
    model = fake.model({"text": '{"action":"final_answer","answer":"and so', "finish": "length"})
    reply = await model.turn(ask(tools=(LOOKUP,)))
    assert (reply.message.text, reply.finish) == ("and so", "length")


async def test_a_full_context_is_a_fault_of_its_own(fake: Fake) -> None:
    error = {"code": 400, "message": "request (9000 tokens) exceeds", "type": "exceed_context_size_error"}
    model = fake.model({"status": 400, "error": error})
    with pytest.raises(ProviderError, match="9000 tokens") as caught:
        await model.turn(ask())
    assert caught.value.fault == "context_full"


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_engine_that_dies_is_a_fault_and_the_next_turn_has_a_new_one(fake: Fake, streaming: bool) -> None:
    model = fake.model({"die": True}, "never reached")
    request = ask(on_delta=ignore if streaming else None)
    with pytest.raises(ProviderError, match="the local engine was killed") as caught:
        await model.turn(request)
    assert caught.value.fault == "connection"
    assert caught.value.retryable
    assert not caught.value.billed
    assert "fatal error: out of luck; its log: " in caught.value.message
    # The script begins anew with the new process: its first line lets it die again.
    with pytest.raises(ProviderError, match="was killed"):
        await model.turn(request)


@pytest.mark.parametrize("streaming", [False, True])
async def test_cancelling_a_turn_drops_the_request(fake: Fake, streaming: bool) -> None:
    model = fake.model({"wait": True}, "still here")
    request = ask(on_delta=ignore if streaming else None)
    turn = asyncio.create_task(model.turn(request))
    await until(lambda: bool(fake.requests))
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await until(lambda: {"dropped": True} in fake.requests)
    assert (await model.turn(request)).message.text == "still here"


async def test_a_turn_ends_in_time(fake: Fake) -> None:
    model = fake.model("warm", {"wait": True})
    await model.turn(ask())
    with pytest.raises(ProviderError) as caught:
        await model.turn(ask(timeout=0.2))
    assert caught.value.fault == "timeout"
    assert "ended" not in caught.value.message


async def test_two_models_of_one_file_share_an_engine(fake: Fake) -> None:
    first = fake.model("one", "two", "three")
    second = LocalModel(fake.folder / "model0.gguf")
    assert (await first.turn(ask())).message.text == "one"
    assert (await second.turn(ask())).message.text == "two"
    await second.close()
    assert (await first.turn(ask())).message.text == "three"


async def test_a_closed_model_starts_again_when_it_is_asked(fake: Fake) -> None:
    model = fake.model("one")
    await model.close()
    assert (await model.turn(ask())).message.text == "one"
    await model.close()
    await model.close()
    assert (await model.turn(ask())).message.text == "one"


def test_a_model_serves_one_event_loop_after_another(fake: Fake) -> None:
    model = fake.model("one", "two")

    async def turn() -> str:
        return (await model.turn(ask())).message.text

    assert [asyncio.run(turn()), asyncio.run(turn())] == ["one", "two"]
    asyncio.run(model.close())


async def test_an_engine_that_refuses_its_file_ends_the_turn(fake: Fake) -> None:
    (fake.folder / "bad.gguf").write_bytes(b"GGUF" + json.dumps({"start": "fail"}).encode())
    model = LocalModel(fake.folder / "bad.gguf")
    with pytest.raises(ProviderError, match="not this one") as caught:
        await model.turn(ask())
    assert not caught.value.retryable
    await model.close()


def test_a_missing_engine_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "ENGINE_PACKAGES", ("no_such_engine",))
    with pytest.raises(MissingExtraError, match=r"watchkeeper\[local\]"):
        LocalModel()


def test_a_missing_file_is_told_at_once(fake: Fake) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        LocalModel(fake.folder / "none.gguf")


@pytest.fixture
def no_bundle(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> SplitModel:
    """A bundled model that is not installed."""
    script = b"GGUF" + json.dumps({"requests": str(fake.folder / "requests"), "replies": ["bundled"]}).encode()
    model = SplitModel("tiny", ("tiny-absent",), "1", len(script), hashlib.sha256(script).hexdigest())
    (fake.folder / "part").write_bytes(script)
    monkeypatch.setattr(local, "BUNDLED_MODEL", model)
    return model


def test_a_missing_bundle_is_told_at_once_with_what_to_do(no_bundle: SplitModel) -> None:
    with pytest.raises(ConfigurationError, match="--require-hashes"):
        LocalModel()


async def test_the_bundled_model_is_joined_at_the_first_turn(
    no_bundle: SplitModel, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts(model: SplitModel) -> list[Path]:
        return [fake.folder / "part"]

    monkeypatch.setattr(local, "installed_parts", parts)
    monkeypatch.setattr("watchkeeper.local.files.installed_parts", parts)
    model = LocalModel()
    assert model.name == "tiny"
    reply = await model.turn(ask())
    assert (reply.message.text, reply.model) == ("bundled", "tiny")
    await model.close()


async def test_a_bundle_that_cannot_be_joined_ends_the_turn(
    no_bundle: SplitModel, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(model: SplitModel) -> list[Path]:
        return []

    monkeypatch.setattr(local, "installed_parts", none)
    model = LocalModel()
    with pytest.raises(ProviderError, match="not installed whole") as caught:
        await model.turn(ask())
    assert caught.value.fault == "bad_request"
    await model.close()


def test_importing_the_adapter_starts_and_loads_nothing() -> None:
    import subprocess
    import sys

    code = (
        "import sys, watchkeeper.local.model; "
        "print([name for name in ('openai', 'aiohttp', 'xllamacpp', 'platformdirs') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
