"""What holds for every remote adapter, with its real SDK, against a server that speaks the provider's format."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.adapters.remote import (
    ANTHROPIC,
    CHAT,
    LITELLM,
    LOOKUP,
    REMOTES,
    REPORT,
    RESPONSES,
    Remote,
    ask,
    conversation,
    request,
)
from tests.kit import collect_garbage
from watchkeeper.adapters.endpoint import allow_remote
from watchkeeper.core.errors import ConfigurationError, MissingExtraError, MissingKeyError, ProviderError, ThrottleError
from watchkeeper.core.messages import (
    AssistantMessage,
    ImagePart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from watchkeeper.core.model import Model, ModelSettings, OutputSchema
from watchkeeper.core.usage import TokenUsage
from watchkeeper.models import model_from
from watchkeeper.testing.wire import Fault, FaultKind, Reply, call, say

every_remote = pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: remote.name)
# LiteLLM writes the bytes itself; what the loop sees of it is the same.
notes = pytest.mark.filterwarnings("ignore::UserWarning:pydantic", "ignore::DeprecationWarning:litellm")
every_model = pytest.mark.parametrize(
    "remote", [*REMOTES, pytest.param(LITELLM, marks=notes)], ids=lambda remote: remote.name
)
whole_or_streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

CALLS = (ToolCall("call_1", "lookup", '{"word":"owl"}'), ToolCall("call_2", "lookup", '{"word":"elk","limit":2}'))


@every_remote
@whole_or_streamed
async def test_an_answer_in_text(remote: Remote, stream: bool) -> None:
    reply, body = await ask(remote, [say("Good morning, watch.")], stream=stream)
    assert reply.message == AssistantMessage(text="Good morning, watch.")
    assert reply.finish == "stop"
    assert reply.model.startswith(("gpt-5-mini-", "claude-sonnet-5"))
    assert reply.response_id.endswith("1")
    assert body.get("stream", False) is stream


@every_model
async def test_text_is_passed_on_as_it_arrives(remote: Remote) -> None:
    heard: list[str] = []
    reply, _ = await ask(remote, [say("One, two, three, four.")], stream=True, on_delta=heard.append)
    assert len(heard) > 1
    assert "".join(heard) == reply.message.text == "One, two, three, four."


@pytest.mark.spec("FR-065")
@every_model
@whole_or_streamed
async def test_parallel_tool_calls(remote: Remote, stream: bool) -> None:
    reply, body = await ask(remote, [Reply(text="Looking.", calls=CALLS)], stream=stream, tools=(LOOKUP,))
    assert reply.message.text == "Looking."
    assert reply.message.tool_calls == CALLS
    assert reply.finish == "tool_calls"
    assert len(body["tools"]) == 1


@every_model
@whole_or_streamed
async def test_a_call_without_arguments(remote: Remote, stream: bool) -> None:
    reply, _ = await ask(remote, [call("lookup", {})], stream=stream, tools=(LOOKUP,))
    assert reply.message.tool_calls == (ToolCall("call_1", "lookup", "{}"),)


@pytest.mark.spec("FR-066")
@every_model
@whole_or_streamed
async def test_usage_counts_the_cached_as_input_and_the_reasoning_as_output(remote: Remote, stream: bool) -> None:
    usage = TokenUsage(input_tokens=120, output_tokens=30, cached_tokens=100, reasoning_tokens=20)
    reply, _ = await ask(remote, [say("Yes.", usage=usage)], stream=stream)
    assert reply.usage == usage


@pytest.mark.spec("FR-066")
@every_remote
@whole_or_streamed
async def test_a_refusal(remote: Remote, stream: bool) -> None:
    reply, _ = await ask(remote, [Reply(refusal="I cannot help with that.")], stream=stream)
    assert (reply.finish, reply.refusal, reply.message.text) == ("refusal", "I cannot help with that.", "")


@pytest.mark.spec("FR-066")
@every_model
@whole_or_streamed
async def test_an_answer_cut_by_its_cap(remote: Remote, stream: bool) -> None:
    reply, _ = await ask(remote, [say("It was a dark and", cut=True)], stream=stream, max_output_tokens=5)
    assert (reply.finish, reply.message.text) == ("length", "It was a dark and")


@every_model
@whole_or_streamed
async def test_an_answer_that_a_filter_ended_is_a_refusal(remote: Remote, stream: bool) -> None:
    reply, _ = await ask(remote, [say("It was", filtered=True)], stream=stream)
    assert reply.finish == "refusal"


@every_remote
@whole_or_streamed
async def test_an_answer_with_nothing(remote: Remote, stream: bool) -> None:
    reply, _ = await ask(remote, [Reply()], stream=stream)
    assert (reply.message, reply.finish) == (AssistantMessage(), "stop")


@pytest.mark.spec("FR-056", "FR-057", "FR-058")
@every_model
@whole_or_streamed
async def test_a_whole_conversation_is_accepted(remote: Remote, stream: bool) -> None:
    """The fakes refuse what the providers refuse: calls without results, empty blocks, changed reasoning."""
    script = [
        Reply(text="Looking.", calls=CALLS, reasoning="Two words to look up."),
        call("lookup", {"word": "auk"}, call_id="call_3"),
        Reply(),
        say("Done."),
    ]
    transcript = conversation()
    async with remote.fake(script) as fake:
        model = remote.model(fake.base_url)
        ids = iter(("call_1", "call_2", "call_3"))
        for results in (2, 1, 0):
            reply = await model.turn(request(transcript, stream=stream, tools=(LOOKUP,)))
            transcript.append(reply.message)
            for _ in range(results):
                transcript.append(ToolMessage(next(ids), "lookup", "a bird", is_error=results == 1))
            if results != 2:
                transcript.append(UserMessage.of("Go on."))
        last = await model.turn(request(transcript, stream=stream, tools=(LOOKUP,)))
        await model.close()
        fake.script.assert_complete()
    assert last.message.text == "Done."


@every_model
async def test_a_foreign_conversation_is_translated(remote: Remote) -> None:
    """What another provider kept in a message is ignored; its text and calls count."""
    transcript = conversation(
        SystemMessage("Be brief."),
        UserMessage.of("Look up owl."),
        AssistantMessage("Looking.", CALLS[:1], provider_data={"encoding": "elsewhere", "items": [1]}),
        ToolMessage("call_1", "lookup", ""),
        AssistantMessage("A bird.", provider_data="unreadable"),
        UserMessage.of("And elk?"),
    )
    reply, _ = await ask(remote, [say("A deer.")], transcript=transcript, tools=(LOOKUP,))
    assert reply.message.text == "A deer."


@every_remote
async def test_the_bytes_of_the_past_never_change(remote: Remote) -> None:
    transcript = conversation()
    async with remote.fake(lambda number, _: call("lookup", {"word": "owl"}, call_id=f"call_{number}")) as fake:
        model = remote.model(fake.base_url)
        for number in range(4):
            reply = await model.turn(request(transcript, tools=(LOOKUP,)))
            transcript.append(reply.message)
            transcript.append(ToolMessage(f"call_{number}", "lookup", "a bird"))
        await model.close()
        bodies = [_without_marks(request.json()) for request in fake.requests]
    key = "input" if remote is RESPONSES else "messages"
    for earlier, later in itertools.pairwise(bodies):
        assert later[key][: len(earlier[key])] == earlier[key]
        assert {**later, key: None} == {**earlier, key: None}


def _without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key: _without_marks(item) for key, item in fields.items() if key != "cache_control"}
    return list(map(_without_marks, cast("Any", value))) if isinstance(value, list) else value


@every_remote
async def test_each_message_is_encoded_once(remote: Remote) -> None:
    transcript = conversation()
    async with remote.fake(lambda number, _: say("Yes.")) as fake:
        model = remote.model(fake.base_url)
        await model.turn(request(transcript))
        encodings = transcript.encoded(model.encoding)
        before = list(encodings)
        transcript.append(AssistantMessage("Yes."))
        transcript.append(UserMessage.of("Really?"))
        await model.turn(request(transcript))
        await model.close()
    assert all(now is then for now, then in zip(encodings, before, strict=False))
    assert len(encodings) == len(transcript)


@every_remote
async def test_images_by_bytes_and_by_address(remote: Remote) -> None:
    message = UserMessage(
        (TextPart("What is this?"), ImagePart.from_bytes(b"png"), ImagePart(url="https://example.org/owl.png"))
    )
    reply, body = await ask(remote, [say("An owl.")], transcript=conversation(message))
    assert reply.message.text == "An owl."
    assert "cG5n" in str(body)
    assert "https://example.org/owl.png" in str(body)


@every_remote
async def test_broken_text_is_sent_readable(remote: Remote) -> None:
    """Files and processes leave halves of surrogate pairs in text, which JSON cannot carry."""
    reply, body = await ask(remote, [say("Yes.")], transcript=conversation(UserMessage.of("caf\udce9")))
    assert reply.message.text == "Yes."
    assert "caf\ufffd" in str(body)


@every_model
async def test_arguments_that_the_model_broke_go_back_visible(remote: Remote) -> None:
    transcript = conversation(
        UserMessage.of("Look up owl."),
        AssistantMessage("", (ToolCall("call_1", "lookup", '{"word": "ow'),)),
        ToolMessage("call_1", "lookup", "arguments are not JSON", is_error=True),
    )
    _, body = await ask(remote, [say("Sorry.")], transcript=transcript, tools=(LOOKUP,))
    assert '{"word": "ow' in str(body).replace('\\"', '"')


@every_model
async def test_tools_stay_in_the_request_when_they_may_not_be_used(remote: Remote) -> None:
    _, body = await ask(remote, [say("Done.")], tools=(LOOKUP,), tool_choice="none")
    assert len(body["tools"]) == 1
    assert body["tool_choice"] in ("none", {"type": "none"})


@every_model
async def test_a_turn_can_demand_a_call(remote: Remote) -> None:
    _, body = await ask(remote, [call("lookup", {"word": "owl"})], tools=(LOOKUP,), tool_choice="required")
    assert body["tool_choice"] in ("required", {"type": "any"})


@every_model
async def test_one_call_at_a_time(remote: Remote) -> None:
    settings = ModelSettings(parallel_tool_calls=False)
    _, body = await ask(remote, [say("Done.")], tools=(LOOKUP,), settings=settings)
    assert body.get("parallel_tool_calls") is False or body["tool_choice"]["disable_parallel_tool_use"] is True


@every_model
async def test_no_tools_no_tool_fields(remote: Remote) -> None:
    _, body = await ask(remote, [say("Done.")], settings=ModelSettings(parallel_tool_calls=True))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & body.keys()


@pytest.mark.spec("FR-052")
@every_remote
async def test_settings_are_passed_on(remote: Remote) -> None:
    settings = ModelSettings(temperature=0.5, top_p=0.9, extra={"metadata": {"user_id": "7"}})
    _, body = await ask(remote, [say("Done.")], settings=settings, max_output_tokens=77)
    assert (body["temperature"], body["top_p"], body["metadata"]) == (0.5, 0.9, {"user_id": "7"})
    assert 77 in (body.get("max_tokens"), body.get("max_output_tokens"))


@every_model
async def test_extra_cannot_replace_the_conversation(remote: Remote) -> None:
    key = "input" if remote is RESPONSES else "messages"
    with pytest.raises(ConfigurationError, match=f"cannot set {key}"):
        await ask(remote, [], settings=ModelSettings(extra={key: []}))


@every_model
async def test_extra_may_add_tools(remote: Remote) -> None:
    """So a provider's own tools can be named; the agent keeps its own."""
    hosted = {"type": "web_search", "name": "web_search"}
    settings = ModelSettings(extra={"tools": [hosted]})
    _, body = await ask(remote, [say("Done.")], tools=(LOOKUP,), settings=settings)
    assert "lookup" in str(body["tools"][0])
    assert body["tools"][1:] == [hosted]
    _, body = await ask(remote, [say("Done.")], settings=settings)
    assert len(body["tools"]) == 1
    assert hosted == {"type": "web_search", "name": "web_search"}


@every_model
@pytest.mark.parametrize(
    "tools",
    [[{"name": "lookup"}], [{"type": "function", "function": {"name": "lookup"}}], {"name": "web_search"}, ["search"]],
)
async def test_extra_tools_that_take_the_place_of_the_agents_are_refused(remote: Remote, tools: Any) -> None:
    with pytest.raises(ConfigurationError, match="give the agent's tools to the agent"):
        await ask(remote, [], tools=(LOOKUP,), settings=ModelSettings(extra={"tools": tools}))


@every_remote
async def test_settings_that_are_no_json_are_named(remote: Remote) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written as JSON"):
        await ask(remote, [], settings=ModelSettings(extra={"user": object()}))


@pytest.mark.spec("FR-065")
@every_model
@whole_or_streamed
async def test_a_typed_answer_is_asked_for_natively(remote: Remote, stream: bool) -> None:
    """The fake checks the schema as the provider would; a field with a default is required there, with a note."""
    reply, body = await ask(remote, [say('{"title":"Owl","count":3}')], stream=stream, output=REPORT)
    assert reply.message.text == '{"title":"Owl","count":3}'
    assert "default: 3" in str(body)
    assert "'required': ['title', 'count']" in str(body)


@every_remote
async def test_a_schema_outside_the_enforced_subset_is_still_shown(remote: Remote) -> None:
    anything = OutputSchema("Anything", {"type": "object", "additionalProperties": {"type": "string"}})
    _, body = await ask(remote, [say("{}")], output=anything)
    assert "additionalProperties" in str(body)
    assert "'strict': True" not in str(body)


@every_remote
async def test_a_schema_is_left_to_the_prompt_where_the_server_knows_none(remote: Remote) -> None:
    async with remote.fake([say("{}")]) as fake:
        model = remote.model(fake.base_url, native_output=False)
        await model.turn(request(output=REPORT))
        await model.close()
        assert "Report" not in str(fake.bodies()[0])
    assert model.native_output is False


ERRORS: list[tuple[FaultKind, str, int]] = [
    ("overloaded", "overloaded", 0),
    ("auth", "auth", 401),
    ("quota", "auth", 0),
    ("context_full", "context_full", 400),
    ("bad_request", "bad_request", 400),
    ("blocked", "refused", 400),
    ("server", "server", 500),
]


@pytest.mark.spec("FR-067")
@every_model
@whole_or_streamed
@pytest.mark.parametrize(("kind", "fault", "status"), ERRORS)
async def test_an_error_becomes_its_fault(
    remote: Remote, stream: bool, kind: FaultKind, fault: str, status: int
) -> None:
    with pytest.raises(ProviderError) as caught:
        await ask(remote, [Fault(kind)], stream=stream)
    assert caught.value.fault == fault
    assert caught.value.billed is False
    assert caught.value.provider == ("anthropic" if remote is ANTHROPIC else "openai")
    assert caught.value.provider in caught.value.message
    assert caught.value.provider_payload["request_id"] == "req_error"
    if status:
        assert caught.value.status == status


WAITS: list[tuple[dict[str, str], float | None]] = [
    ({"retry-after": "20"}, 20.0),
    ({"retry-after": "1.5"}, 1.5),
    ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
    ({"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT", "date": "Sat, 21 Nov 2026 10:00:00 GMT"}, 30.0),
    ({"retry-after": "soon"}, None),
    ({}, None),
]


@pytest.mark.spec("FR-067")
@every_model
@pytest.mark.parametrize(("headers", "seconds"), WAITS)
async def test_a_rate_limit_says_how_long_to_wait(
    remote: Remote, headers: dict[str, str], seconds: float | None
) -> None:
    with pytest.raises(ThrottleError) as caught:
        await ask(remote, [Fault("rate_limit", headers)])
    assert (caught.value.retry_after, caught.value.status, caught.value.retryable) == (seconds, 429, True)


@every_remote
async def test_an_overloaded_provider_may_say_how_long_too(remote: Remote) -> None:
    with pytest.raises(ProviderError) as caught:
        await ask(remote, [Fault("overloaded", {"retry-after": "7"})])
    assert (caught.value.fault, caught.value.retry_after) == ("overloaded", 7.0)


@pytest.mark.spec("FR-064")
@every_model
async def test_nothing_is_sent_twice(remote: Remote) -> None:
    """Attempts are the gate's to count, so the SDK's own retries are off."""
    async with remote.fake([Fault("overloaded"), say("late")]) as fake:
        model = remote.model(fake.base_url)
        with pytest.raises(ProviderError):
            await model.turn(request())
        await model.close()
        assert len(fake.requests) == 1


@every_remote
@pytest.mark.parametrize("kind", ["rate_limit", "server"])
async def test_an_error_within_a_stream_may_cost(remote: Remote, kind: FaultKind) -> None:
    with pytest.raises(ProviderError) as caught:
        await ask(remote, [Fault(kind, midway=True)], stream=True)
    assert caught.value.fault == kind
    assert caught.value.billed is True
    assert isinstance(caught.value, ThrottleError) is (kind == "rate_limit")


@pytest.mark.parametrize("remote", [CHAT, ANTHROPIC], ids=lambda remote: remote.name)
async def test_a_provider_can_be_overloaded_within_a_stream(remote: Remote) -> None:
    with pytest.raises(ProviderError) as caught:
        await ask(remote, [Fault("overloaded", midway=True)], stream=True)
    assert (caught.value.fault, caught.value.billed) == ("overloaded", True)


@every_remote
@whole_or_streamed
async def test_a_broken_connection(remote: Remote, stream: bool) -> None:
    with pytest.raises(ProviderError, match="broke off") as caught:
        await ask(remote, [Fault("broken")], stream=stream)
    assert (caught.value.fault, caught.value.billed, caught.value.retryable) == ("broken_stream", True, True)


@pytest.mark.spec("FR-067")
@every_remote
async def test_a_stream_that_ends_too_early(remote: Remote) -> None:
    with pytest.raises(ProviderError, match="incomplete") as caught:
        await ask(remote, [Fault("unfinished")], stream=True)
    assert (caught.value.fault, caught.value.billed) == ("broken_stream", True)


@every_remote
@whole_or_streamed
async def test_an_answer_that_is_no_json(remote: Remote, stream: bool) -> None:
    with pytest.raises(ProviderError) as caught:
        await ask(remote, [Fault("garbage")], stream=stream)
    # Anthropic's SDK passes over events that it does not know; then the stream ends too early.
    assert caught.value.fault in ("malformed_reply", "broken_stream")
    assert caught.value.retryable


@pytest.mark.spec("DL-004")
@every_remote
@whole_or_streamed
async def test_a_provider_that_does_not_answer_in_time(remote: Remote, stream: bool) -> None:
    with pytest.raises(ProviderError, match="in time") as caught:
        await ask(remote, [Fault("hang")], stream=stream, timeout=0.5)
    assert (caught.value.fault, caught.value.billed) == ("timeout", True)


@every_remote
@whole_or_streamed
async def test_nobody_there(remote: Remote, stream: bool) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    model = remote.model(url)
    with pytest.raises(ProviderError, match="cannot connect") as caught:
        await model.turn(request(stream=stream))
    await model.close()
    assert (caught.value.fault, caught.value.billed) == ("connection", False)
    assert url in caught.value.message


@every_remote
async def test_no_time_left(remote: Remote) -> None:
    with pytest.raises(ProviderError) as caught:
        await ask(remote, [Fault("hang")], timeout=0.0)
    assert caught.value.fault in ("timeout", "connection")


@every_remote
async def test_a_wrong_address(remote: Remote) -> None:
    async with remote.fake([]) as fake:
        model = remote.model(f"{fake.url}/elsewhere")
        with pytest.raises(ProviderError) as caught:
            await model.turn(request())
        await model.close()
    assert (caught.value.fault, caught.value.status) == ("not_found", 404)


@every_remote
@whole_or_streamed
async def test_cancelling_drops_the_request(remote: Remote, stream: bool) -> None:
    async with remote.fake([Fault("hang"), say("again")]) as fake:
        model = remote.model(fake.base_url)
        task = asyncio.create_task(model.turn(request(stream=stream)))
        await fake.until(lambda: bool(fake.requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.until(lambda: not fake.open_connections)
        assert (await model.turn(request())).message.text == "again"
        await model.close()


@every_remote
async def test_a_connection_is_used_again(remote: Remote) -> None:
    async with remote.fake(lambda number, _: say("Yes.")) as fake:
        model = remote.model(fake.base_url)
        for stream in (False, True, False, True):
            await model.turn(request(stream=stream))
        await model.close()
        assert fake.connections == 1


@every_remote
async def test_closing_twice_is_harmless_and_the_model_stays_usable(remote: Remote) -> None:
    async with remote.fake(lambda number, _: say("Yes.")) as fake:
        model = remote.model(fake.base_url)
        await model.turn(request())
        await model.close()
        await model.close()
        assert (await model.turn(request())).message.text == "Yes."
        await model.close()


@every_remote
def test_one_model_serves_several_loops_and_leaves_nothing_open(remote: Remote) -> None:
    with remote.fake(lambda number, _: say("Yes.")) as fake:
        model = remote.model(fake.base_url)
        for _ in range(2):
            assert asyncio.run(model.turn(request())).message.text == "Yes."
        assert fake.connections == 2
        del model
        collect_garbage()


@pytest.mark.spec("FR-069")
@every_model
async def test_real_providers_can_be_blocked(remote: Remote) -> None:
    model = remote.model("https://api.example.com/v1")
    before = allow_remote(False)
    try:
        with pytest.raises(ConfigurationError, match="blocked here"):
            await model.turn(request())
        async with remote.fake([say("Local.")]) as fake:
            near = remote.model(fake.base_url)
            assert (await near.turn(request())).message.text == "Local."
            await near.close()
    finally:
        allow_remote(before)
    await model.close()


@every_remote
def test_the_model_says_what_it_is(remote: Remote) -> None:
    model = remote.model("http://127.0.0.1:1", context_window=1000, max_output_tokens=100)
    assert isinstance(model, Model)
    assert (model.context_window, model.max_output_tokens, model.native_output, model.free) == (1000, 100, True, False)
    assert model.provider in ("openai", "anthropic")
    assert model.name in ("gpt-5-mini", "claude-sonnet-5")


@every_remote
async def test_headers_are_sent(remote: Remote) -> None:
    async with remote.fake([say("Yes.")]) as fake:
        model = remote.model(fake.base_url, headers={"x-team": "watch"})
        await model.turn(request())
        await model.close()
        assert fake.requests[0].headers["x-team"] == "watch"
        assert fake.requests[0].headers["content-type"] == "application/json"


@pytest.mark.spec("FR-102")
@every_remote
def test_a_missing_key_is_named_before_any_request(remote: Remote) -> None:
    kind: Callable[..., object] = remote.model("http://127.0.0.1:1").__class__
    with pytest.raises(MissingKeyError, match=r"_API_KEY or pass api_key"):
        kind("some-model")


@every_remote
@pytest.mark.parametrize("missing", ["sdk", "aiohttp"])
def test_a_missing_package_is_named_with_its_extra(
    remote: Remote, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Callable[..., object] = remote.model("http://127.0.0.1:1").__class__
    extra = "anthropic" if remote is ANTHROPIC else "openai"
    gone = extra if missing == "sdk" else "aiohttp"
    found = importlib.util.find_spec

    def find_spec(name: str) -> object:
        return None if name == gone else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(MissingExtraError, match=rf"pip install 'watchkeeper\[{extra}\]'"):
        kind("some-model", api_key="test")


async def test_a_key_is_found_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from watchkeeper.adapters.openai_chat import OpenAIChatModel

    async with CHAT.fake([say("Yes.")]) as fake:
        monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        model = OpenAIChatModel("gpt-5-mini")
        await model.turn(request())
        await model.close()
        assert fake.requests[0].headers["authorization"] == "Bearer from-environment"


async def test_a_server_of_ones_own_needs_no_key() -> None:
    from watchkeeper.adapters.openai_chat import OpenAIChatModel

    async with CHAT.fake([say("Yes.")]) as fake:
        model = OpenAIChatModel("any", base_url=fake.base_url)
        assert (await model.turn(request())).message.text == "Yes."
        await model.close()


@every_model
@pytest.mark.parametrize("url", ["localhost:8080", "ftp://host", "http://", "http://host:port/v1"])
def test_an_address_that_is_none_is_refused(remote: Remote, url: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address"):
        remote.model(url)


@every_model
@pytest.mark.parametrize("url", ["http://ann:p/ss-wordless@host/v1", "ann:p-ss-wordless@host/v1"])
def test_the_password_of_an_address_that_is_none_is_not_quoted(remote: Remote, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'\[redacted\]@host/v1' is no address") as caught:
        remote.model(url)
    assert "wordless" not in str(caught.value)


@every_model
@pytest.mark.parametrize("info", ["ann:pass-wordless", "token-wordless", "ann:p%40ss-wordless", ":pass-wordless"])
async def test_a_password_in_an_address_is_refused_with_what_to_write(remote: Remote, info: str) -> None:
    """It would fail at every request, because the SDK sends a key too."""
    async with remote.fake([say("Yes.")]) as fake:
        url = fake.base_url.replace("://", f"://{info}@")
        with pytest.raises(ConfigurationError, match="Authorization") as caught:
            remote.model(url)
        assert "wordless" not in str(caught.value)
        model = remote.model(fake.base_url, headers={"Authorization": "Basic YW5uOndvcmQ="})
        assert (await model.turn(request())).message.text == "Yes."
        await model.close()
        assert fake.requests[0].headers["authorization"] == "Basic YW5uOndvcmQ="


@pytest.mark.parametrize("way", ["OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "model string"])
def test_a_password_in_an_address_is_refused_wherever_the_address_is_from(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "http://ann:pass-wordless@localhost:1/v1"
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{name}_API_KEY", "test-12345678")
    if way != "model string":
        monkeypatch.setenv(way, address)
    text = {"OPENAI_BASE_URL": "openai:m", "ANTHROPIC_BASE_URL": "anthropic:m"}.get(way, f"{address}#m")
    with pytest.raises(ConfigurationError, match=r"'\[redacted\]@localhost:1/v1' has a user name") as caught:
        model_from(text)
    assert "wordless" not in str(caught.value)


@every_model
@pytest.mark.parametrize("letter", ["\n", "\N{NO-BREAK SPACE}", "é"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_quoted(remote: Remote, letter: str) -> None:
    made = remote.model("http://localhost:1/v1")
    with pytest.raises(ConfigurationError, match="its character 13 of 13 is a line break") as caught:
        type(made)(made.name, api_key=f"sk-abcdefghi{letter}", base_url="http://localhost:1/v1")
    assert "abcdefghi" not in str(caught.value)


def test_nothing_heavy_is_imported_before_a_model_is_made() -> None:
    names = ("openai_chat", "openai_responses", "anthropic", "litellm")
    code = "import sys\n" + "".join(f"import watchkeeper.adapters.{name}\n" for name in names)
    heavy = "{'openai', 'anthropic', 'litellm', 'aiohttp', 'httpx', 'httpx2', 'pydantic'}"
    code += f"assert not {heavy} & sys.modules.keys(), {heavy} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
