"""A conversation goes on with another provider's model: what one wrote, every other one can be sent."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.remote import ANTHROPIC, CHAT, LOOKUP, REMOTES, RESPONSES, Remote, ask, conversation, request
from watchkeeper.adapters.anthropic import TOOL_USE_ID
from watchkeeper.adapters.endpoint import portable_id
from watchkeeper.adapters.openai_chat import OPENAI_CALL_ID, call_ids_at, message_fields
from watchkeeper.adapters.openai_responses import CALL_ID
from watchkeeper.core.messages import AssistantMessage, SystemMessage, ToolCall, ToolMessage, Transcript, UserMessage
from watchkeeper.local.steps import encode_fragment
from watchkeeper.testing.wire import Reply, say

KIMI_ID = "functions.lookup:0"
LONG_ID = "chatcmpl-tool-" + 64 * "f"
PAIRS = [(old, new) for old in REMOTES for new in REMOTES if old is not new]


def called(call_id: str, arguments: str = '{"word":"owl"}') -> Reply:
    return Reply(text="I look.", calls=(ToolCall(call_id, "lookup", arguments),), reasoning="Which word is it?")


async def turns(remote: Remote, transcript: Transcript, call_id: str) -> None:
    """Let a model ask for a tool, and answer the call."""
    reply, _ = await ask(remote, [called(call_id)], transcript=transcript, tools=(LOOKUP,))
    transcript.append(reply.message)
    for call in reply.message.tool_calls:
        transcript.append(ToolMessage(call.call_id, call.name, "a bird"))


@pytest.mark.spec("FR-121")
@pytest.mark.parametrize(("old", "new"), PAIRS, ids=lambda remote: remote.name)
async def test_the_next_provider_takes_the_conversation_of_the_one_before(old: Remote, new: Remote) -> None:
    """The fakes refuse what the real ones refuse: unanswered calls, foreign reasoning, unknown items."""
    transcript = conversation()
    await turns(old, transcript, "call_1")
    reply, body = await ask(new, [say("Done.")], transcript=transcript, tools=(LOOKUP,))
    assert reply.message.text == "Done."
    assert "Which word is it?" not in str(body)  # reasoning is for the model that wrote it
    assert "I look." in str(body)
    assert "a bird" in str(body)


@pytest.mark.parametrize(("old", "new"), PAIRS, ids=lambda remote: remote.name)
async def test_and_back_again_its_own_reasoning_is_found(old: Remote, new: Remote) -> None:
    """Anthropic's fake knows what it signed, and refuses anything else."""
    transcript = conversation()
    async with old.fake([called("call_1"), say("Done.")]) as fake:
        model = old.model(fake.base_url)
        try:
            reply = await model.turn(request(transcript, tools=(LOOKUP,)))
            transcript.append(reply.message)
            transcript.append(ToolMessage(reply.message.tool_calls[0].call_id, "lookup", "a bird"))
            await turns(new, transcript, "call_2")
            reply = await model.turn(request(transcript, tools=(LOOKUP,)))
        finally:
            await model.close()
        assert reply.message.text == "Done."
        assert str(fake.bodies()[-1]).count("a bird") == 2


@pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: remote.name)
@pytest.mark.parametrize("call_id", [KIMI_ID, LONG_ID])
async def test_a_call_and_its_result_keep_belonging_together_whatever_the_id(remote: Remote, call_id: str) -> None:
    transcript = conversation(
        SystemMessage("Be brief."),
        UserMessage.of("Hello"),
        AssistantMessage("", (ToolCall(call_id, "lookup", "{}"),)),
        ToolMessage(call_id, "lookup", "a bird"),
    )
    reply, _ = await ask(remote, [say("Done.")], transcript=transcript, tools=(LOOKUP,))
    assert reply.message.text == "Done."


async def test_anthropic_gets_ids_of_the_letters_that_it_takes() -> None:
    transcript = conversation(
        UserMessage.of("Hello"),
        AssistantMessage("", (ToolCall(KIMI_ID, "lookup", "{}"),)),
        ToolMessage(KIMI_ID, "lookup", "a bird"),
    )
    _, body = await ask(ANTHROPIC, [say("Done.")], transcript=transcript, tools=(LOOKUP,))
    used = body["messages"][1]["content"][0]["id"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", used)
    assert body["messages"][2]["content"][0]["tool_use_id"] == used


async def test_responses_gets_ids_of_the_length_that_it_takes() -> None:
    transcript = conversation(
        UserMessage.of("Hello"),
        AssistantMessage("", (ToolCall(LONG_ID, "lookup", "{}"),)),
        ToolMessage(LONG_ID, "lookup", "a bird"),
    )
    _, body = await ask(RESPONSES, [say("Done.")], transcript=transcript, tools=(LOOKUP,))
    assert [len(item["call_id"]) <= 64 for item in body["input"][1:]] == [True, True]


def test_openai_gets_ids_of_the_length_that_it_takes_and_other_servers_their_own() -> None:
    said = AssistantMessage("", (ToolCall(LONG_ID, "lookup", "{}"),))
    answer = ToolMessage(LONG_ID, "lookup", "a bird")
    ids = call_ids_at("https://api.openai.com/v1/")
    fields = message_fields(said, "openai_chat:openai:gpt-5", ids)
    assert len(fields["tool_calls"][0]["id"]) <= 40
    assert message_fields(answer, "", ids)["tool_call_id"] == fields["tool_calls"][0]["id"]
    elsewhere = call_ids_at("http://127.0.0.1:8000/v1/")
    assert message_fields(said, "", elsewhere)["tool_calls"][0]["id"] == LONG_ID


@given(st.text(max_size=80), st.text(max_size=80), st.sampled_from([TOOL_USE_ID, OPENAI_CALL_ID, CALL_ID]))
def test_ids_become_acceptable_and_different_ones_stay_different(one: str, other: str, form: re.Pattern[str]) -> None:
    assert form.fullmatch(portable_id(one, form))
    assert (portable_id(one, form) == portable_id(other, form)) is (one == other)
    assert portable_id(portable_id(one, form), form) == portable_id(one, form)


async def test_the_local_model_reads_what_others_wrote() -> None:
    transcript = conversation()
    await turns(CHAT, transcript, "call_1")
    await turns(ANTHROPIC, transcript, "call_2")
    fragments: list[Any] = [encode_fragment(message) for message in transcript]
    assert b'\\"action\\":\\"lookup\\"' in fragments[2]
    assert fragments[3].startswith(b"uResult of lookup")
