"""Anthropic's Messages: turns, cache breakpoints, thinking, and what the interface will not take."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.remote import ANTHROPIC, LOOKUP, REPORT, ask, conversation, ignore, request
from watchkeeper.adapters.anthropic import MESSAGES, AnthropicModel, Events, read_message
from watchkeeper.core.errors import MissingKeyError, ProviderError
from watchkeeper.core.messages import (
    AssistantMessage,
    ImagePart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Transcript,
    UserMessage,
)
from watchkeeper.core.model import ModelSettings, OutputSchema
from watchkeeper.core.usage import TokenUsage
from watchkeeper.testing.wire import Reply, call, say

MARK = {"type": "ephemeral"}


def marked(body: dict[str, Any]) -> list[str]:
    """Return where cache breakpoints stand."""
    places = [f"tools.{index}" for index, tool in enumerate(body.get("tools") or ()) if "cache_control" in tool]
    places += [f"system.{index}" for index, block in enumerate(body.get("system") or ()) if "cache_control" in block]
    for turn, message in enumerate(body["messages"]):
        blocks = enumerate(message["content"])
        places += [f"messages.{turn}.{index}" for index, block in blocks if "cache_control" in block]
    return places


def calls(*ids: str) -> AssistantMessage:
    return AssistantMessage(tool_calls=tuple(ToolCall(call_id, "lookup", "{}") for call_id in ids))


async def sent(*messages: Any, **fields: Any) -> dict[str, Any]:
    _, body = await ask(ANTHROPIC, [say("Yes.")], transcript=Transcript(messages), **fields)
    return body


async def test_results_of_parallel_calls_stand_in_one_turn() -> None:
    body = await sent(
        SystemMessage("Be brief."),
        UserMessage.of("Go."),
        calls("a", "b"),
        ToolMessage("a", "lookup", "one"),
        ToolMessage("b", "lookup", "", is_error=True),
        UserMessage.of("Mind the time."),
    )
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    results = body["messages"][2]["content"]
    assert results[0] == {"type": "tool_result", "tool_use_id": "a", "content": "one"}
    assert results[1] == {"type": "tool_result", "tool_use_id": "b", "content": "(empty)", "is_error": True}
    assert results[2]["text"] == "Mind the time."


async def test_empty_answers_and_empty_text_are_left_out() -> None:
    body = await sent(
        UserMessage((TextPart(" "), ImagePart(data="cG5n"))),
        AssistantMessage(" "),
        UserMessage.of(""),
        calls("a"),
        ToolMessage("a", "lookup", ""),
    )
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in body["messages"][0]["content"]] == ["image", "text"]
    assert "content" not in body["messages"][2]["content"][0]
    assert "system" not in body


async def test_a_conversation_that_begins_with_nothing_said() -> None:
    body = await sent(AssistantMessage(""), UserMessage.of("Hello"))
    assert [message["role"] for message in body["messages"]] == ["user"]


async def test_an_empty_conversation_is_for_the_provider_to_refuse() -> None:
    with pytest.raises(ProviderError, match="at least one message is required"):
        await sent(SystemMessage("Be brief."))


async def test_cache_breakpoints_stand_at_the_system_prompt_and_the_last_two_tails() -> None:
    messages = [
        SystemMessage("Be brief."),
        UserMessage.of("Go."),
        calls("a"),
        ToolMessage("a", "lookup", "one"),
        calls("b", "c"),
        ToolMessage("b", "lookup", "two"),
        ToolMessage("c", "lookup", "three"),
    ]
    assert marked(await sent(*messages[:2], tools=(LOOKUP,))) == ["system.0", "messages.0.0"]
    assert marked(await sent(*messages[:4], tools=(LOOKUP,))) == ["system.0", "messages.0.0", "messages.2.0"]
    assert marked(await sent(*messages, tools=(LOOKUP,))) == ["system.0", "messages.2.0", "messages.4.1"]
    assert (await sent(*messages))["messages"][4]["content"][1]["cache_control"] == MARK


async def test_without_a_system_prompt_the_tools_end_the_first_prefix() -> None:
    assert marked(await sent(UserMessage.of("Go."), tools=(LOOKUP,))) == ["tools.0", "messages.0.0"]


async def test_caches_can_live_longer_or_not_at_all() -> None:
    async with ANTHROPIC.fake([say("Yes."), say("Yes.")]) as fake:
        for cache in ("1h", None):
            model = ANTHROPIC.model(fake.base_url, cache=cache)
            await model.turn(request(tools=(LOOKUP,)))
            await model.close()
        longer, none = fake.bodies()
    assert longer["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert marked(none) == []


async def test_the_cache_is_counted_as_input() -> None:
    usage = TokenUsage(input_tokens=100, output_tokens=9, cached_tokens=60, cache_write_tokens=30, reasoning_tokens=4)
    for stream in (False, True):
        reply, _ = await ask(ANTHROPIC, [say("Yes.", usage=usage)], stream=stream)
        assert reply.usage == usage


@pytest.mark.spec("FR-058")
@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_goes_back_as_it_came(stream: bool) -> None:
    """The fake, like the provider, refuses thinking whose signature does not fit."""
    transcript = conversation()
    first = Reply(text="Looking.", calls=(ToolCall("call_1", "lookup", '{"word":"owl"}'),), reasoning="Hm, owl.")
    async with ANTHROPIC.fake([first, say("A bird.")]) as fake:
        model = ANTHROPIC.model(fake.base_url)
        reply = await model.turn(request(transcript, tools=(LOOKUP,), stream=stream))
        transcript.append(reply.message)
        transcript.append(ToolMessage("call_1", "lookup", "a bird"))
        await model.turn(request(transcript, tools=(LOOKUP,), stream=stream))
        await model.close()
        blocks = fake.bodies()[-1]["messages"][1]["content"]
    assert reply.message.reasoning == "Hm, owl."
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    assert blocks[0] == {"type": "thinking", "thinking": "Hm, owl.", "signature": "signed:1"}
    assert blocks[2]["input"] == {"word": "owl"}


async def test_another_model_gets_no_thinking() -> None:
    transcript = conversation()
    async with ANTHROPIC.fake([say("Yes.", reasoning="Hm."), say("No.")]) as fake:
        model = ANTHROPIC.model(fake.base_url)
        transcript.append((await model.turn(request(transcript))).message)
        transcript.append(UserMessage.of("Really?"))
        cheaper = AnthropicModel("claude-haiku-5-5", api_key="test", base_url=fake.base_url)
        await cheaper.turn(request(transcript))
        await model.close()
        await cheaper.close()
        assert fake.bodies()[-1]["messages"][1]["content"] == [{"type": "text", "text": "Yes."}]


def test_blocks_that_only_the_provider_understands_go_back() -> None:
    blocks = [
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "", "citations": None},
        {"type": "text", "text": "Yes.", "citations": None},
    ]
    reply = read_message({"content": blocks, "stop_reason": "end_turn"}, "anthropic", "anthropic:any", 0)
    assert reply.message.provider_data == {
        "encoding": "anthropic:any",
        "blocks": [{"type": "redacted_thinking", "data": "xyz"}, {"type": "text", "text": "Yes."}],
    }


async def test_effort_lets_the_model_decide_how_much_to_think() -> None:
    settings = ModelSettings(effort="minimal")
    _, body = await ask(ANTHROPIC, [say("Yes.")], settings=settings, output=REPORT)
    assert body["thinking"] == {"type": "adaptive"}
    assert body["output_config"]["effort"] == "low"
    assert body["output_config"]["format"]["type"] == "json_schema"


async def test_thinking_can_be_set_by_hand() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2048}
    _, body = await ask(ANTHROPIC, [say("Yes.")], settings=ModelSettings(extra={"thinking": thinking}))
    assert body["thinking"] == thinking


async def test_long_answers_are_streamed_even_if_nobody_listens() -> None:
    """Whole answers that may take more than ten minutes are refused by the provider, or lost on the way."""
    short, short_body = await ask(ANTHROPIC, [say("Yes.")], max_output_tokens=MESSAGES.longest_whole)
    long, long_body = await ask(ANTHROPIC, [say("Yes.")], max_output_tokens=MESSAGES.longest_whole + 1)
    assert "stream" not in short_body
    assert long_body["stream"] is True
    assert short == long


async def test_the_text_of_long_answers_is_heard_even_if_nobody_listens() -> None:
    heard: list[str] = []
    long = MESSAGES.longest_whole + 1
    whole, _ = await ask(ANTHROPIC, [say("Yes, " * 20)], max_output_tokens=long, on_text=heard.append)
    assert len(heard) > 1
    assert "".join(heard) == whole.message.text
    heard.clear()
    await ask(ANTHROPIC, [say("Yes.")], on_text=heard.append)
    assert heard == []


async def test_a_schema_that_cannot_be_enforced_is_put_into_the_system_prompt() -> None:
    counts = OutputSchema("Counts", {"type": "object", "additionalProperties": {"type": "integer"}})
    _, body = await ask(ANTHROPIC, [say("{}")], output=counts)
    text = body["system"][0]["text"]
    assert text.startswith("Be brief.\n\n")
    assert '"additionalProperties":{"type":"integer"}' in text
    assert "output_config" not in body
    bare = await sent(UserMessage.of("Count."), output=counts)
    assert "fits this JSON Schema" in bare["system"][0]["text"]


async def test_a_choice_of_tools_can_be_set_by_hand() -> None:
    choice = {"type": "tool", "name": "lookup"}
    settings = ModelSettings(extra={"tool_choice": choice})
    _, body = await ask(ANTHROPIC, [call("lookup", {})], tools=(LOOKUP,), settings=settings)
    assert body["tool_choice"] == choice


async def test_a_token_serves_as_well_as_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ANTHROPIC.fake([say("Yes.")]) as fake:
        monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "from-environment")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", fake.base_url)
        model = AnthropicModel("claude-sonnet-5")
        await model.turn(request())
        await model.close()
        assert fake.requests[0].headers["authorization"] == "Bearer from-environment"


def test_a_server_of_ones_own_needs_credentials_too() -> None:
    with pytest.raises(MissingKeyError, match="ANTHROPIC_API_KEY"):
        AnthropicModel("claude-sonnet-5", base_url="http://localhost:1")


def test_a_message_without_content_is_none() -> None:
    with pytest.raises(ProviderError, match="not a message") as caught:
        read_message({"type": "message"}, "anthropic", "any", 0)
    assert caught.value.billed


def test_a_stream_may_hold_what_nobody_knows() -> None:
    heard: list[str] = []
    events = Events(heard.append, "anthropic")
    citation = {"type": "char_location", "cited_text": "owl"}
    for event in (
        {"type": "message_start"},
        {"type": "weather"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Yes."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": citation}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "weather_delta"}},
        {"type": "message_delta"},
        {"type": "message_stop"},
    ):
        events.feed(event)
    message = events.whole()
    assert message["content"] == [{"type": "text", "text": "Yes.", "citations": [citation]}]
    assert read_message(message, "anthropic", "any", 0).message.text == "Yes."
    assert heard == ["Yes."]


def test_a_call_cut_in_the_middle_of_its_arguments_keeps_what_was_written() -> None:
    events = Events(ignore, "anthropic")
    block: dict[str, Any] = {"type": "tool_use", "id": "a", "name": "lookup", "input": {}}
    for event in (
        {"type": "message_start", "message": {"usage": None}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": '{"word": "ow'},
        },
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ):
        events.feed(event)
    reply = read_message(events.whole(), "anthropic", "any", 0)
    assert reply.message.tool_calls == (ToolCall("a", "lookup", '{"word": "ow'),)
    assert (reply.finish, reply.usage.output_tokens) == ("length", 5)
