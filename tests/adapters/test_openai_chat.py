"""Chat Completions: what is OpenAI's own, and what other servers of this interface do differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tests.adapters.remote import CHAT, LOOKUP, REPORT, ask, conversation, ignore, request
from watchkeeper.adapters.openai_chat import (
    Chunks,
    Completion,
    OpenAIChatModel,
    output_cap_field,
    read_reply,
)
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from watchkeeper.core.model import ModelReply, ModelSettings, OutputSchema
from watchkeeper.core.usage import TokenUsage
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import (
    EVENT_STREAM,
    Reply,
    WireReply,
    WireRequest,
    WireServer,
    call,
    event,
    json_reply,
    say,
)


def completed(message: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": "stop"}], **fields}


async def answered(value: Any) -> ModelReply:
    """Return what the adapter makes of an answer of some other server."""

    def answer(incoming: WireRequest) -> WireReply:
        return json_reply(value)

    async with WireServer(answer) as server:
        model = OpenAIChatModel("some-model", base_url=f"{server.url}/v1", provider="elsewhere")
        try:
            return await model.turn(request(tools=(LOOKUP,)))
        finally:
            await model.close()


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("https://api.openai.com/v1/", "max_completion_tokens"),
        ("https://eu.api.openai.com/v1/", "max_completion_tokens"),
        ("https://team.openai.azure.com/openai/v1/", "max_completion_tokens"),
        ("http://localhost:8080/v1/", "max_tokens"),
        ("https://notopenai.com.example/v1/", "max_tokens"),
    ],
)
def test_the_cap_is_called_as_the_server_knows_it(url: str, field: str) -> None:
    assert output_cap_field(url) == field


async def test_reasoning_models_are_told_the_effort() -> None:
    _, body = await ask(CHAT, [say("Yes.")], settings=ModelSettings(effort="low", seed=7))
    assert (body["reasoning_effort"], body["seed"]) == ("low", 7)


@pytest.mark.spec("FR-056")
async def test_streams_are_asked_for_their_usage() -> None:
    _, body = await ask(CHAT, [say("Yes.")], stream=True)
    assert body["stream_options"] == {"include_usage": True}


async def test_tools_and_typed_answers_are_written_once_for_a_run() -> None:
    tools = (LOOKUP,)
    async with CHAT.fake(lambda number, _: say("{}")) as fake:
        model = CHAT.model(fake.base_url)
        for _ in range(3):
            await model.turn(request(tools=tools, output=REPORT))
        await model.close()
        first, *others = fake.bodies()
    assert all(body == first for body in others)
    assert first["response_format"]["json_schema"]["strict"] is True
    assert first["tools"][0]["function"]["parameters"] == LOOKUP.parameters


async def test_the_name_of_an_answers_type_fits_the_interface() -> None:
    output = OutputSchema("list[Größe, 'x']" * 9, REPORT.schema)
    _, body = await ask(CHAT, [say("{}")], output=output)
    name = body["response_format"]["json_schema"]["name"]
    assert name.startswith("list_Gr__e___x__")
    assert len(name) == 64


async def test_visible_reasoning_goes_back_while_its_calls_are_answered() -> None:
    """Servers of reasoning models want it with their calls, and must not get it with other messages."""
    transcript = conversation()
    script = [Reply(calls=(ToolCall("call_1", "lookup", "{}"),), reasoning="Hm, owl."), say("A bird.", reasoning="Ah.")]
    async with CHAT.fake([*script, say("Bye.")]) as fake:
        model = CHAT.model(fake.base_url)
        first = await model.turn(request(transcript, tools=(LOOKUP,)))
        transcript.append(first.message)
        transcript.append(ToolMessage("call_1", "lookup", "a bird"))
        second = await model.turn(request(transcript, tools=(LOOKUP,), stream=True))
        transcript.append(second.message)
        transcript.append(UserMessage.of("Thanks."))
        await model.turn(request(transcript, tools=(LOOKUP,)))
        await model.close()
        sent = fake.bodies()[-1]["messages"]
    assert (first.message.reasoning, second.message.reasoning) == ("Hm, owl.", "Ah.")
    assert sent[2]["reasoning_content"] == "Hm, owl."
    assert "reasoning_content" not in sent[4]


async def test_what_a_server_ties_to_a_call_goes_back_with_it_and_to_nobody_else() -> None:
    """For example the thought signatures of Gemini's compatible endpoint."""
    extra = {"google": {"thought_signature": "abc"}}
    made = {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
    signed = {**made, "extra_content": extra}
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [signed]}
    reply = await answered(completed(message))
    transcript = conversation()
    transcript.append(reply.message)
    transcript.append(ToolMessage("call_1", "lookup", "a bird"))
    async with FakeOpenAI([say("Yes."), say("Yes.")]) as fake:
        for name, provider in (("some-model", "elsewhere"), ("gpt-5-mini", "openai")):
            model = OpenAIChatModel(name, api_key="test", base_url=fake.base_url, provider=provider)
            await model.turn(request(transcript))
            await model.close()
        again, other = (body["messages"][2] for body in fake.bodies())
    assert again == {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [signed]}
    assert other == {"role": "assistant", "content": None, "tool_calls": [made]}


async def test_calls_without_ids_get_some_of_their_own() -> None:
    calls = [{"function": {"name": "lookup", "arguments": {"word": "owl"}}}, {"id": "", "function": {"name": "lookup"}}]
    reply = await answered(completed({"content": "", "tool_calls": calls}))
    assert reply.message.tool_calls == (
        ToolCall("call_2_0", "lookup", '{"word":"owl"}'),
        ToolCall("call_2_1", "lookup", ""),
    )
    assert reply.finish == "tool_calls"


async def test_content_in_parts() -> None:
    thought: dict[str, Any] = {"type": "thinking", "thinking": []}
    parts = [thought, {"type": "text", "text": "A "}, {"type": "text", "text": "bird."}]
    reply = await answered(completed({"content": parts, "reasoning": "Hm."}))
    assert (reply.message.text, reply.message.reasoning) == ("A bird.", "Hm.")


async def test_an_answer_without_usage_or_names() -> None:
    reply = await answered(completed({"content": "Yes."}))
    assert (reply.usage, reply.model, reply.response_id) == (TokenUsage(), "", "")


async def test_a_reason_to_finish_that_nobody_knows() -> None:
    reply = await answered({"choices": [{"message": {"content": "Yes."}, "finish_reason": "weather"}]})
    assert (reply.finish, reply.ended_by) == ("unknown", "weather")


@pytest.mark.parametrize(
    ("value", "fault", "text"),
    [
        ({"choices": []}, "server", "no choices"),
        ({"error": {"message": "No endpoints found", "code": 502}}, "server", "No endpoints found"),
        ({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, "rate_limit", "slow down"),
        ({"choices": "many"}, "malformed_reply", "not a reply"),
        ([], "malformed_reply", "not a reply"),
    ],
)
async def test_an_answer_that_is_none(value: Any, fault: str, text: str) -> None:
    with pytest.raises(ProviderError, match=text) as caught:
        await answered(value)
    assert (caught.value.fault, caught.value.billed, caught.value.provider) == (fault, True, "elsewhere")


def stream_of(*chunks: dict[str, Any]) -> Completion:
    collected = Chunks(ignore, "elsewhere")
    for chunk in chunks:
        collected.feed(chunk)
    return collected.whole()


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


def test_streamed_calls_without_an_index_are_whole() -> None:
    made = [{"id": f"call_{number}", "function": {"name": "lookup", "arguments": "{}"}} for number in (1, 2)]
    reply = read_reply(stream_of(delta(tool_calls=made), delta("tool_calls")), "elsewhere", "any", 0)
    assert reply.message.tool_calls == (ToolCall("call_1", "lookup", "{}"), ToolCall("call_2", "lookup", "{}"))


def test_streamed_calls_may_come_interleaved() -> None:
    chunks = [
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "two", "arguments": '{"x"'}}]),
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "one", "arguments": None}}]),
        delta(tool_calls=[{"index": 1, "function": {"arguments": ":1}"}}]),
        delta("tool_calls"),
    ]
    reply = read_reply(stream_of(*chunks), "elsewhere", "any", 0)
    assert reply.message.tool_calls == (ToolCall("a", "one", ""), ToolCall("b", "two", '{"x":1}'))


def test_reasoning_details_of_a_stream_go_back() -> None:
    details = [{"type": "reasoning.encrypted", "data": "xyz"}]
    made = [{"index": 0, "id": "a", "function": {"name": "one", "arguments": "{}"}}]
    reply = read_reply(
        stream_of(delta(reasoning_details=details), delta("stop", tool_calls=made)), "elsewhere", "any", 0
    )
    assert reply.message.provider_data["message"] == {"reasoning_details": details}


def test_chunks_that_say_nothing_are_harmless() -> None:
    completion = stream_of({}, {"choices": None}, {"choices": [{"delta": None}]}, delta("stop"))
    assert read_reply(completion, "elsewhere", "any", 0).message == AssistantMessage()


async def test_a_stream_that_makes_no_sense() -> None:
    parts = [event({"choices": [{"delta": {"tool_calls": [{"function": {"name": 7}}]}, "finish_reason": "stop"}]})]
    async with WireServer(lambda sent: WireReply(parts=parts, content_type=EVENT_STREAM)) as server:
        model = OpenAIChatModel("m", base_url=f"{server.url}/v1", provider="elsewhere")
        with pytest.raises(ProviderError, match="elsewhere answered something that is not a reply") as caught:
            await model.turn(request(stream=True))
        await model.close()
    assert (caught.value.fault, caught.value.billed) == ("malformed_reply", True)


def test_details_of_usage_may_be_missing() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": None, "prompt_tokens_details": None}
    completion = msgspec.convert(completed({"content": "Yes."}, usage=usage), Completion)
    assert read_reply(completion, "elsewhere", "any", 0).usage == TokenUsage(input_tokens=3)


async def test_a_refusal_in_a_call_stays_a_refusal() -> None:
    reply, _ = await ask(CHAT, [Reply(refusal="No.", calls=call("lookup", {}).calls)])
    assert reply.finish == "refusal"
