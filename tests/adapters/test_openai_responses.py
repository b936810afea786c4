"""Responses, used statelessly: what goes back to a reasoning model, and what its failures look like."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.remote import LOOKUP, REPORT, RESPONSES, ask, conversation, ignore, request
from watchkeeper.adapters.openai_responses import Events, OpenAIResponsesModel, Response, read_reply
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.messages import AssistantMessage, ToolCall, ToolMessage
from watchkeeper.core.model import ModelSettings
from watchkeeper.testing.wire import Reply, say


async def test_nothing_is_stored_at_the_provider() -> None:
    _, body = await ask(RESPONSES, [say("Yes.")])
    assert body["store"] is False
    assert "previous_response_id" not in body


@pytest.mark.parametrize(
    ("name", "effort", "asked"),
    [
        ("gpt-5-mini", None, True),
        ("o4-mini", None, True),
        ("gpt-4.1", None, False),
        ("qwen3", None, False),
        ("qwen3", "high", True),
    ],
)
async def test_encrypted_reasoning_is_asked_of_models_that_reason(name: str, effort: Any, asked: bool) -> None:
    async with RESPONSES.fake([say("Yes.")]) as fake:
        model = OpenAIResponsesModel(name, api_key="test", base_url=fake.base_url)
        await model.turn(request(settings=ModelSettings(effort=effort)))
        await model.close()
        body = fake.bodies()[0]
    assert (body.get("include") == ["reasoning.encrypted_content"]) is asked
    assert body.get("reasoning") == ({"effort": effort} if effort else None)


async def test_tools_are_offered_as_they_are() -> None:
    """Enforcing is the default of this interface, and would make optional parameters required."""
    _, body = await ask(RESPONSES, [say("Yes.")], tools=(LOOKUP,))
    assert body["tools"] == [
        {
            "type": "function",
            "name": "lookup",
            "description": "Look a word up.",
            "parameters": LOOKUP.parameters,
            "strict": False,
        }
    ]


async def test_a_typed_answer_is_enforced() -> None:
    _, body = await ask(RESPONSES, [say("{}")], output=REPORT)
    assert (body["text"]["format"]["type"], body["text"]["format"]["strict"]) == ("json_schema", True)


@pytest.mark.spec("FR-057")
@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_goes_back_as_it_came(stream: bool) -> None:
    transcript = conversation()
    first = Reply(text="Looking.", calls=(ToolCall("call_1", "lookup", "{}"),), reasoning="Hm, owl.")
    async with RESPONSES.fake([first, say("A bird.")]) as fake:
        model = RESPONSES.model(fake.base_url)
        reply = await model.turn(request(transcript, tools=(LOOKUP,), stream=stream))
        transcript.append(reply.message)
        transcript.append(ToolMessage("call_1", "lookup", "a bird"))
        await model.turn(request(transcript, tools=(LOOKUP,), stream=stream))
        await model.close()
        sent = fake.bodies()[-1]["input"]
    assert reply.message.reasoning == "Hm, owl."
    assert [item.get("type") for item in sent[2:]] == ["reasoning", "message", "function_call", "function_call_output"]
    assert sent[2]["encrypted_content"] == "encrypted:1"
    assert all(value is not None for item in sent for value in item.values())


async def test_another_model_gets_text_and_calls_only() -> None:
    """Encrypted reasoning can be read by the model that wrote it alone."""
    transcript = conversation()
    async with RESPONSES.fake([say("Yes.", reasoning="Hm."), say("No.")]) as fake:
        model = RESPONSES.model(fake.base_url)
        transcript.append((await model.turn(request(transcript))).message)
        cheaper = OpenAIResponsesModel("gpt-5-nano", api_key="test", base_url=fake.base_url)
        await cheaper.turn(request(transcript))
        await model.close()
        await cheaper.close()
        assert fake.bodies()[-1]["input"][2:] == [{"role": "assistant", "content": "Yes."}]


def test_reasoning_that_cannot_be_resolved_is_left_out() -> None:
    """Without storage an item is known by its encrypted content alone."""
    output: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "content": [{"type": "output_text", "text": "Yes."}]},
    ]
    reply = read_reply(Response(output=output), "openai", "openai_responses:any", 0)
    assert reply.message == AssistantMessage("Yes.")


def test_the_phase_of_a_message_goes_back() -> None:
    message = {"type": "message", "phase": "commentary", "content": [{"type": "output_text", "text": "Well."}]}
    reply = read_reply(Response(output=[message]), "openai", "openai_responses:any", 0)
    assert reply.message.provider_data == {"encoding": "openai_responses:any", "items": [message]}


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ({"code": "server_error", "message": "The model failed."}, "server"),
        ({"code": "rate_limit_exceeded", "message": "Slow down."}, "rate_limit"),
        ({"code": "invalid_prompt", "message": "Not this."}, "refused"),
        (None, "server"),
    ],
)
def test_an_answer_that_failed(error: Any, fault: str) -> None:
    with pytest.raises(ProviderError) as caught:
        read_reply(Response(status="failed", error=error), "openai", "any", 0)
    assert (caught.value.fault, caught.value.billed) == (fault, True)


def test_an_error_event_ends_a_stream() -> None:
    events = Events(ignore, "openai")
    event = {"type": "error", "code": "server_error", "message": "Oh.", "param": None, "sequence_number": 3}
    with pytest.raises(ProviderError, match=r"openai: Oh\."):
        events.feed(event)


def test_items_of_other_kinds_are_passed_over() -> None:
    reply = read_reply(Response(output=[{"type": "web_search_call", "id": "ws_1"}]), "openai", "any", 0)
    assert (reply.message, reply.finish) == (AssistantMessage(), "stop")
    assert reply.usage.total == 0
