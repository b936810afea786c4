"""When a conversation goes on in a new segment, every adapter sends the new segment and nothing of the old one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.remote import CHAT, LOOKUP, REMOTES, Remote, conversation, request
from watchkeeper.core.messages import AssistantMessage, SystemMessage, ToolCall, ToolMessage, Transcript, UserMessage
from watchkeeper.local.steps import make_plan, request_body
from watchkeeper.runtime.result import segment_of
from watchkeeper.testing.wire import Reply, say


def called(number: int) -> Reply:
    call = ToolCall(f"call_{number}", "lookup", '{"word":"owl"}')
    return Reply(text=f"I look, {number}.", calls=(call,), reasoning=f"Which word is it, {number}?")


def compact(transcript: Transcript, kept: int) -> None:
    transcript.begin_segment(segment_of(list(transcript), (0, 1), "So far: an owl is a bird.", kept))


async def two_segments(remote: Remote, kept: int) -> list[dict[str, Any]]:
    """Return the bodies of a second turn, of one in a new segment, and of one that only ever had that segment."""
    transcript = conversation()
    async with remote.fake([called(1), called(2), say("Done."), say("Done.")]) as fake:
        model = remote.model(fake.base_url)
        tools = (LOOKUP,)
        try:
            for _ in range(2):
                reply = await model.turn(request(transcript, tools=tools))
                transcript.append(reply.message)
                for call in reply.message.tool_calls:
                    transcript.append(ToolMessage(call.call_id, call.name, "a bird"))
            compact(transcript, kept)
            await model.turn(request(transcript, tools=tools))
            await model.turn(request(Transcript(transcript), tools=tools))
        finally:
            await model.close()
        return fake.bodies()[1:]


@pytest.mark.spec("FR-164")
@pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: remote.name)
@pytest.mark.parametrize("kept", [0, 2])
async def test_a_new_segment_is_sent_as_if_it_were_a_conversation_of_its_own(remote: Remote, kept: int) -> None:
    """The fakes refuse results without calls, and reasoning that they did not sign."""
    _, after, fresh = await two_segments(remote, kept)
    said = str(after)
    assert "So far: an owl is a bird." in said
    assert "I look, 1." not in said
    assert ("I look, 2." in said) is (kept == 2)
    assert after == fresh


@pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: remote.name)
async def test_what_every_segment_begins_with_is_sent_alike(remote: Remote) -> None:
    """So that a provider's cache of it stays valid."""
    before, after, _ = await two_segments(remote, 2)
    assert before.get("system") == after.get("system")
    assert before["tools"] == after["tools"]
    if remote is CHAT:
        assert before["messages"][:2] == after["messages"][:2]


def test_the_local_model_is_sent_the_new_segment() -> None:
    transcript = conversation(
        SystemMessage("Be brief."),
        UserMessage.of("Hello"),
        AssistantMessage("", (ToolCall("call_1", "lookup", "{}"),)),
        ToolMessage("call_1", "lookup", "a bird"),
    )
    asked = request(transcript, tools=(LOOKUP,))
    plan = make_plan(asked.tools, asked.output)
    request_body("model", asked, plan, ())
    compact(transcript, 2)
    body = json.loads(request_body("model", asked, plan, ()))
    assert body == json.loads(request_body("model", request(Transcript(transcript), tools=(LOOKUP,)), plan, ()))
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][1]["content"] == "Hello\n\nSo far: an owl is a bird."
