"""The fake of OpenAI, read by OpenAI's own SDK with strict validation: its formats are the real ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from watchkeeper.core.messages import ToolCall
from watchkeeper.core.usage import TokenUsage
from watchkeeper.testing.fake_openai import FakeOpenAI, check_chat, check_responses
from watchkeeper.testing.wire import Fault, FaultKind, Reply, Script, call, say

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
FULL = Reply(
    text="Looking.",
    calls=(ToolCall("call_1", "lookup", '{"word":"owl"}'), ToolCall("call_2", "lookup", "{}")),
    usage=TokenUsage(input_tokens=50, output_tokens=9, cached_tokens=20, reasoning_tokens=3),
)


@asynccontextmanager
async def client_of(script: Script, api_key: str = "test", **fields: Any) -> AsyncGenerator[AsyncOpenAI]:
    async with (
        FakeOpenAI(script, **fields) as fake,
        AsyncOpenAI(api_key=api_key, base_url=fake.base_url, max_retries=0, _strict_response_validation=True) as client,
    ):
        yield client


@pytest.mark.spec("FR-068")
async def test_a_chat_completion_fits_the_sdks_types() -> None:
    async with client_of([FULL]) as client:
        completion = await client.chat.completions.create(model="gpt-5-mini", messages=HELLO)
    choice = completion.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Looking.", "tool_calls")
    assert [made.id for made in choice.message.tool_calls or []] == ["call_1", "call_2"]
    assert completion.usage is not None
    assert completion.usage.prompt_tokens_details is not None
    assert (completion.usage.total_tokens, completion.usage.prompt_tokens_details.cached_tokens) == (59, 20)


async def test_a_stream_of_chunks_adds_up_in_the_sdk() -> None:
    async with client_of([FULL, Reply(refusal="No.")]) as client:
        async with client.chat.completions.stream(
            model="gpt-5-mini", messages=HELLO, stream_options={"include_usage": True}
        ) as stream:
            completion = await stream.get_final_completion()
        async with client.chat.completions.stream(model="gpt-5-mini", messages=HELLO) as stream:
            refused = await stream.get_final_completion()
    message = completion.choices[0].message
    assert message.content == "Looking."
    assert [made.function.arguments for made in message.tool_calls or []] == ['{"word":"owl"}', "{}"]
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 9
    assert refused.choices[0].message.refusal == "No."
    assert refused.usage is None


async def test_a_response_fits_the_sdks_types() -> None:
    thinking = Reply(text="Looking.", calls=FULL.calls, reasoning="Hm.", usage=FULL.usage)
    async with client_of([thinking, say("It was", cut=True)]) as client:
        response = await client.responses.create(model="gpt-5-mini", input="Hello")
        cut = await client.responses.create(model="gpt-5-mini", input="Hello")
    assert response.output_text == "Looking."
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 3
    assert cut.incomplete_details is not None
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_a_stream_of_events_adds_up_in_the_sdk() -> None:
    thinking = Reply(text="Looking.", calls=FULL.calls, reasoning="Hm.", refusal="Well.")
    async with (
        client_of([thinking]) as client,
        client.responses.stream(model="gpt-5-mini", input="Hello") as stream,
    ):
        kinds = [event.type async for event in stream]
        response = await stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert response.output_text == "Looking."


ERRORS: list[tuple[FaultKind, type[openai.APIStatusError]]] = [
    ("rate_limit", openai.RateLimitError),
    ("quota", openai.RateLimitError),
    ("overloaded", openai.InternalServerError),
    ("auth", openai.AuthenticationError),
    ("context_full", openai.BadRequestError),
    ("bad_request", openai.BadRequestError),
    ("blocked", openai.BadRequestError),
    ("server", openai.InternalServerError),
]


@pytest.mark.parametrize(("kind", "error"), ERRORS)
async def test_errors_are_those_of_the_sdk(kind: FaultKind, error: type[openai.APIStatusError]) -> None:
    async with client_of([Fault(kind, message="so it is")]) as client:
        with pytest.raises(error, match="so it is") as caught:
            await client.chat.completions.create(model="gpt-5-mini", messages=HELLO)
    assert caught.value.request_id == "req_error"


async def test_keys_are_asked_for() -> None:
    async with client_of([], api_key="wrong", key="right") as client:
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
            await client.chat.completions.create(model="gpt-5-mini", messages=HELLO)


async def test_a_script_that_runs_out_says_so() -> None:
    async with (
        FakeOpenAI([say("Yes.")]) as fake,
        AsyncOpenAI(api_key="t", base_url=fake.base_url, max_retries=0) as client,
    ):
        await client.chat.completions.create(model="gpt-5-mini", messages=HELLO)
        fake.script.assert_complete()
        with pytest.raises(openai.InternalServerError, match="no answer for request 2"):
            await client.chat.completions.create(model="gpt-5-mini", messages=HELLO)
        with pytest.raises(AssertionError, match="1 steps and 2 requests"):
            fake.script.assert_complete()


async def test_a_script_can_be_a_function() -> None:
    def echo(number: int, body: Any) -> Reply:
        return say(f"{number}: {body['messages'][-1]['content']}")

    async with client_of(echo) as client:
        texts = [
            (await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}]))
            .choices[0]
            .message.content
            for text in ("a", "b")
        ]
    assert texts == ["0: a", "1: b"]


async def test_what_is_no_json_and_what_has_no_place_is_refused() -> None:
    async with client_of([]) as client:
        with pytest.raises(openai.NotFoundError, match=r"Invalid URL \(GET /v1/models\)"):
            await client.models.list()
        with pytest.raises(openai.BadRequestError, match="could not parse the JSON body"):
            await client.post("/chat/completions", content=b"{", cast_to=object)


def tool(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "x"}


def asking(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": call_id} for call_id in ids]}


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"messages": HELLO}, "model"),
        ({"model": "m"}, "empty array"),
        ({"model": "m", "messages": [tool("a")]}, "must be a response to a preceeding message"),
        ({"model": "m", "messages": [asking("a", "b"), tool("a")]}, "did not have response messages: b"),
        ({"model": "m", "messages": [asking("a"), *HELLO, tool("a")]}, "did not have response messages: a"),
        ({"model": "m", "messages": [asking("a"), tool("a"), tool("a")]}, "must be a response"),
    ],
)
def test_chats_that_the_provider_refuses(body: dict[str, Any], problem: str) -> None:
    assert problem in (check_chat(body) or "")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "array"}, 'type: "object"'),
        (SCHEMA, "'additionalProperties' is required"),
        ({**SCHEMA, "additionalProperties": False}, "'required' is required"),
        ({"type": "object", "default": {}}, "'default' is not permitted"),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#", "title": "x"}},
                "required": ["a"],
                "additionalProperties": False,
            },
            "$ref cannot have keywords",
        ),
    ],
)
def test_schemas_that_the_provider_refuses(schema: dict[str, Any], problem: str) -> None:
    named = {"name": "x", "strict": True, "schema": schema}
    chat = {"model": "m", "messages": HELLO, "response_format": {"type": "json_schema", "json_schema": named}}
    assert problem in (check_chat(chat) or "")
    response = {"model": "m", "input": HELLO, "text": {"format": {"type": "json_schema", **named}}}
    assert problem in (check_responses(response) or "")
    named["strict"] = False
    assert check_chat(chat) is None


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"input": HELLO}, "'model'"),
        ({"model": "m"}, "'input'"),
        ({"model": "m", "input": [{"type": "function_call_output", "call_id": "a"}]}, "No tool call found"),
        ({"model": "m", "input": [{"type": "function_call", "call_id": "a"}]}, "No tool output found"),
        (
            {"model": "m", "store": False, "input": [{"type": "reasoning", "id": "rs_1"}]},
            "Item with id 'rs_1' not found",
        ),
    ],
)
def test_responses_that_the_provider_refuses(body: dict[str, Any], problem: str) -> None:
    assert problem in (check_responses(body) or "")
    assert check_responses({"model": "m", "input": "Hello"}) is None


async def test_a_broken_call_goes_out_as_it_was_scripted() -> None:
    async with client_of([call("lookup", '{"word": ow')]) as client:
        completion = await client.chat.completions.create(model="gpt-5-mini", messages=HELLO)
    made: Any = (completion.choices[0].message.tool_calls or [])[0]
    assert made.function.arguments == '{"word": ow'


async def test_a_script_that_fails_is_seen() -> None:
    def broken(number: int, body: Any) -> Reply:
        raise KeyError("weather")

    async with (
        FakeOpenAI(broken) as fake,
        AsyncOpenAI(api_key="t", base_url=fake.base_url, max_retries=0) as client,
    ):
        with pytest.raises(openai.InternalServerError, match="weather"):
            await client.chat.completions.create(model="gpt-5-mini", messages=HELLO)
        assert isinstance(fake.errors[0], KeyError)
