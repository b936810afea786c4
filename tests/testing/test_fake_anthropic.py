"""The fake of Anthropic, read by Anthropic's own SDK with strict validation: its formats are the real ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message

from watchkeeper.core.messages import ToolCall
from watchkeeper.core.usage import TokenUsage
from watchkeeper.testing.fake_anthropic import FakeAnthropic, check_messages
from watchkeeper.testing.wire import Fault, FaultKind, Reply, Script, say

HELLO: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
FULL = Reply(
    text="Looking.",
    reasoning="Hm, owl.",
    calls=(ToolCall("toolu_1", "lookup", '{"word":"owl"}'), ToolCall("toolu_2", "lookup", "{}")),
    usage=TokenUsage(input_tokens=50, output_tokens=9, cached_tokens=20, cache_write_tokens=10, reasoning_tokens=3),
)


@asynccontextmanager
async def client_of(script: Script, api_key: str = "test", **fields: Any) -> AsyncGenerator[AsyncAnthropic]:
    async with (
        FakeAnthropic(script, **fields) as fake,
        AsyncAnthropic(
            api_key=api_key, base_url=fake.base_url, max_retries=0, _strict_response_validation=True
        ) as client,
    ):
        yield client


async def create(client: AsyncAnthropic) -> Message:
    return await client.messages.create(model="claude-sonnet-5", max_tokens=100, messages=HELLO)


async def test_a_message_fits_the_sdks_types() -> None:
    async with client_of([FULL, Reply(refusal="No."), say("It was", cut=True)]) as client:
        message, refused, cut = [await create(client) for _ in range(3)]
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.stop_reason == "tool_use"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (20, 20)
    assert message.usage.cache_creation_input_tokens == 10
    assert refused.stop_details is not None
    assert (refused.stop_reason, refused.stop_details.explanation) == ("refusal", "No.")
    assert cut.stop_reason == "max_tokens"


@pytest.mark.spec("FR-068")
async def test_a_stream_of_events_adds_up_in_the_sdk() -> None:
    async with (
        client_of([FULL]) as client,
        client.messages.stream(model="claude-sonnet-5", max_tokens=100, messages=HELLO) as stream,
    ):
        texts = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    assert "".join(texts) == "Looking."
    whole = [block.model_dump(exclude_none=True) for block in message.content]
    assert whole[0] == {"type": "thinking", "thinking": "Hm, owl.", "signature": "signed:1"}
    assert [block["input"] for block in whole if block["type"] == "tool_use"] == [{"word": "owl"}, {}]
    assert message.usage.output_tokens == 9


ERRORS: list[tuple[FaultKind, type[anthropic.APIStatusError]]] = [
    ("rate_limit", anthropic.RateLimitError),
    ("auth", anthropic.AuthenticationError),
    ("context_full", anthropic.BadRequestError),
    ("bad_request", anthropic.BadRequestError),
    ("blocked", anthropic.BadRequestError),
    ("server", anthropic.InternalServerError),
    ("overloaded", anthropic.APIStatusError),
    ("quota", anthropic.APIStatusError),
]


@pytest.mark.parametrize(("kind", "error"), ERRORS)
async def test_errors_are_those_of_the_sdk(kind: FaultKind, error: type[anthropic.APIStatusError]) -> None:
    async with client_of([Fault(kind, message="so it is")]) as client:
        with pytest.raises(error, match="so it is") as caught:
            await create(client)
    assert caught.value.request_id == "req_error"


async def test_keys_are_asked_for() -> None:
    async with client_of([], api_key="wrong", key="right") as client:
        with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
            await create(client)


async def test_other_requests_are_refused() -> None:
    async with client_of([]) as client:
        with pytest.raises(anthropic.NotFoundError):
            await client.models.list()
        with pytest.raises(anthropic.BadRequestError, match="not valid JSON"):
            await client.post("/v1/messages", content=b"{", cast_to=object)
        with pytest.raises(anthropic.BadRequestError, match="anthropic-version"):
            await client.post(
                "/v1/messages", body={}, cast_to=object, options={"headers": {"anthropic-version": anthropic.Omit()}}
            )


async def test_a_script_that_runs_out_says_so() -> None:
    async with client_of([]) as client:
        with pytest.raises(anthropic.InternalServerError, match="no answer for request 1"):
            await create(client)


async def test_changed_thinking_is_refused() -> None:
    async with client_of([say("Yes.", reasoning="Hm."), say("No.")]) as client:
        first = await create(client)
        blocks: list[Any] = [block.model_dump(exclude_none=True) for block in first.content]
        blocks[0]["thinking"] = "Ha."
        with pytest.raises(anthropic.BadRequestError, match="Invalid `signature` in `thinking` block"):
            await client.messages.create(
                model="m", max_tokens=9, messages=[*HELLO, {"role": "assistant", "content": blocks}, *HELLO]
            )


def use(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": call_id} for call_id in ids]}


def results(*ids: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id} for call_id in ids]}


def marks(count: int) -> dict[str, Any]:
    block = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    return {"role": "user", "content": [block] * count}


REFUSED: list[tuple[list[Any], str]] = [
    ([], "at least one message"),
    ([{"role": "user", "content": []}], "non-empty content"),
    ([{"role": "user", "content": " "}], "non-whitespace text"),
    ([*HELLO, use("a", "b"), results("a")], "without `tool_result` blocks immediately after: b"),
    ([*HELLO, use("a")], "without `tool_result` blocks immediately after: a"),
    ([results("a")], "unexpected `tool_use_id`"),
    ([marks(5)], "Found 5"),
]


@pytest.mark.parametrize(("messages", "problem"), REFUSED)
def test_conversations_that_the_provider_refuses(messages: list[Any], problem: str) -> None:
    assert problem in (check_messages({"model": "m", "max_tokens": 9, "messages": messages}) or "")


def test_fields_that_must_be_there() -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [marks(4)]}
    assert check_messages(body) is None
    for name in body:
        assert check_messages({key: value for key, value in body.items() if key != name}) == f"{name}: Field required"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "object"}, "must be explicitly set to false"),
        (
            {
                "type": "object",
                "additionalProperties": False,
                "properties": {"a": {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 1}]}}},
            },
            "For 'integer' type, property 'minimum' is not supported",
        ),
    ],
)
def test_schemas_that_the_provider_refuses(schema: dict[str, Any], problem: str) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": HELLO, "output_config": {"format": {"schema": schema}}}
    assert problem in (check_messages(body) or "")
