"""The real engine with the bundled model: `make verify` only."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.core.errors import ProviderError
from watchkeeper.core.messages import SystemMessage, ToolMessage, Transcript, UserMessage
from watchkeeper.core.model import ModelReply, ModelRequest, OutputSchema, ToolSpec
from watchkeeper.core.usage import TokenUsage
from watchkeeper.local.engine import SLOTS
from watchkeeper.local.files import BUNDLED_MODEL, bundled_model_file
from watchkeeper.local.model import LocalModel
from watchkeeper.local.server import SERVERS, EngineOptions, LocalServer, default_threads

pytestmark = pytest.mark.model

LOOKUP = ToolSpec(
    "lookup_customer",
    "Find a customer's number by name.",
    {"type": "object", "properties": {"name": {"type": "string", "description": "Full name"}}, "required": ["name"]},
)
WEATHER = ToolSpec(
    "get_weather",
    "Tell the weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
OUTPUT = OutputSchema(
    "Found",
    {
        "type": "object",
        "properties": {"customer": {"type": "string"}, "number": {"type": "integer"}},
        "required": ["customer", "number"],
    },
)
STORY = "Write all the numbers from 1 to 400 as words, one after the other. Leave none out."
LONG = OutputSchema(
    "Numbers",
    {
        "type": "object",
        "properties": {"numbers": {"type": "array", "items": {"enum": ["one more"]}, "minItems": 300, "maxItems": 400}},
        "required": ["numbers"],
    },
)
"""An answer that takes a minute whatever the model thinks of it: it may not end it before."""


def long_turn(model: LocalModel, text: str) -> asyncio.Task[ModelReply]:
    """Begin a turn that is not over within seconds."""
    return asyncio.create_task(model.turn(ask(text, output=LONG, max_output_tokens=1000)))


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    made = LocalModel()
    yield made
    asyncio.run(made.close())


def ask(text: str, **fields: Any) -> ModelRequest:
    return ModelRequest(Transcript([SystemMessage("Be brief."), UserMessage.of(text)]), **fields)


async def test_a_completion_says_who_answered_and_what_it_used(model: LocalModel) -> None:
    request = ask("What is the capital of Norway?", max_output_tokens=40)
    reply = await model.turn(request)
    assert "Oslo" in reply.message.text
    assert (reply.finish, reply.model) == ("stop", BUNDLED_MODEL.name)
    assert 10 < reply.usage.input_tokens < 60
    assert 0 < reply.usage.output_tokens <= 40


async def test_a_growing_transcript_costs_what_is_new(model: LocalModel) -> None:
    request = ask("Name three rivers of Europe. " + "They should be long. " * 30, max_output_tokens=60)
    first = await model.turn(request)
    request.transcript.append(first.message)
    request.transcript.append(UserMessage.of("And one of Africa."))
    second = await model.turn(request)
    known = first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.cached_tokens >= known - 4
    assert second.usage.input_tokens - second.usage.cached_tokens < 30


async def test_two_conversations_at_once_keep_their_caches(model: LocalModel) -> None:
    rules = "You are brief. " + "Every rule counts. " * 40
    talks = [Transcript([SystemMessage(rules), UserMessage.of(f"Hi, I am {name}.")]) for name in ("Ann", "Bo")]

    async def turn(talk: Transcript) -> TokenUsage:
        reply = await model.turn(ModelRequest(talk, max_output_tokens=12))
        talk.append(reply.message)
        talk.append(UserMessage.of("Go on."))
        return reply.usage

    before = await asyncio.gather(*map(turn, talks))
    after = await asyncio.gather(*map(turn, talks))
    for first, second in zip(before, after, strict=True):
        assert second.cached_tokens >= first.total - 4


@pytest.mark.spec("FR-060")
async def test_a_tool_is_chosen_and_its_result_becomes_a_typed_answer(model: LocalModel) -> None:
    request = ask("Find the number of the customer Dorothea Lindqvist.", tools=(LOOKUP, WEATHER), output=OUTPUT)
    first = await model.turn(request)
    (call,) = first.message.tool_calls
    assert call.name == "lookup_customer"
    assert json.loads(call.arguments) == {"name": "Dorothea Lindqvist"}
    assert "\n" not in first.message.provider_data["content"]
    request.transcript.append(first.message)
    request.transcript.append(ToolMessage(call.call_id, call.name, '{"name": "Dorothea Lindqvist", "number": 4711}'))
    second = await model.turn(request)
    assert json.loads(second.message.text) == {"customer": "Dorothea Lindqvist", "number": 4711}


async def test_the_text_streams(model: LocalModel) -> None:
    deltas: list[str] = []
    reply = await model.turn(ask("Count from one to five in words.", on_delta=deltas.append, max_output_tokens=60))
    assert "".join(deltas) == reply.message.text
    assert len(deltas) > 3
    assert reply.usage.output_tokens > 3


@pytest.mark.parametrize("prompt", [STORY, STORY + " Leave none out." * 400], ids=["reply", "prompt"])
async def test_cancelling_frees_the_engine(model: LocalModel, prompt: str) -> None:
    """A dropped turn, whether it was reading or writing, lets the next one answer before a turn beside it is over."""
    await model.turn(ask("Hi", max_output_tokens=4))
    dropped, beside = (long_turn(model, f"{prompt} {number}") for number in range(SLOTS))
    await asyncio.sleep(1)
    dropped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dropped
    following = asyncio.create_task(model.turn(ask("Hi", max_output_tokens=4)))
    await asyncio.wait({following, beside}, return_when=asyncio.FIRST_COMPLETED)
    assert following.done()
    assert not beside.done()
    beside.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beside
    assert (await following).message.text


async def test_a_killed_engine_is_a_fault_and_the_next_turn_has_a_new_one(model: LocalModel) -> None:
    await model.turn(ask("Hi", max_output_tokens=4))
    server = SERVERS.acquire(EngineOptions(str(bundled_model_file()), model.name, 8192, default_threads()))
    address = server.address()
    assert address is not None, "the model does not use the engine that is shared"
    turn = long_turn(model, STORY)
    await asyncio.sleep(1)
    os.kill(address.pid, signal.SIGKILL)
    with pytest.raises(ProviderError, match="the local engine was killed") as caught:
        await turn
    assert caught.value.retryable
    assert (await model.turn(ask("Hi", max_output_tokens=4))).message.text
    SERVERS.release(server)


async def test_a_full_context_is_told(model: LocalModel) -> None:
    with pytest.raises(ProviderError) as caught:
        await model.turn(ask("word " * 9000))
    assert caught.value.fault == "context_full"


SCHEMAS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": 8000},
    {"type": "string", "pattern": r"^[A-Z]{2}-\d{1,4}$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uri", "minLength": 3},
    {"type": "integer", "minimum": 3, "maximum": 7},
    {"type": "integer", "exclusiveMinimum": 0},
    {"type": ["number", "null"]},
    {"enum": ["a", 1, None]},
    {"type": "array", "items": {"type": "string"}, "maxItems": 500},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
    {"oneOf": [{"const": "x"}, {"type": "boolean"}], "discriminator": {"propertyName": "x"}},
    {"allOf": [{"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}]},
    {"not": {"type": "string"}},
    {},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
async def test_the_engine_accepts_what_the_schemas_are_mapped_to(model: LocalModel, schema: dict[str, Any]) -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}
    parameters = {"type": "object", "properties": {"value": schema}, "required": ["value"], "$defs": {"Node": node}}
    tool = ToolSpec("keep", "Keep a value.", parameters)
    reply = await model.turn(ask("Keep some value.", tools=(tool,), tool_choice="required", max_output_tokens=48))
    if reply.finish == "tool_calls":
        assert set(json.loads(reply.message.tool_calls[0].arguments)) == {"value"}
    else:
        assert reply.finish == "length"


async def test_a_broken_file_is_told_with_the_engines_words(tmp_path: Path) -> None:
    with bundled_model_file().open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(100_000))
    model = LocalModel(tmp_path / "cut.gguf")
    with pytest.raises(ProviderError, match=r"ended with code 1 .*failed to read") as caught:
        await model.turn(ask("Hi"))
    assert caught.value.fault == "bad_request"
    await model.close()


def test_the_engine_ends_when_its_input_closes(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchkeeper.local.server.STOP_SECONDS", 120)
    options = EngineOptions(str(bundled_model_file()), "m", 512, default_threads())
    server = LocalServer(options)
    address = server.ensure()
    server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(address.pid, 0)
    assert server.log is not None
    assert not server.log.exists(), "it ended by itself, for one that was killed leaves its log"
    assert capfd.readouterr() == ("", "")
