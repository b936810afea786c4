"""What only the adapter over LiteLLM does, with the real package; the rest stands in `test_every_remote`."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from tests.adapters.remote import LOOKUP, REPORT, conversation, ignore, request
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.endpoint import allow_remote
from watchkeeper.adapters.litellm import LiteLLMModel
from watchkeeper.adapters.litellm_requests import one_exchange
from watchkeeper.containment import ExecutionContext, ShieldPipeline
from watchkeeper.core.errors import ConfigurationError, EgressRefusedError, MissingKeyError, ProviderError
from watchkeeper.core.messages import ToolCall, ToolMessage
from watchkeeper.core.model import Model, ModelSettings
from watchkeeper.core.usage import TokenUsage
from watchkeeper.shield.decision import Decision
from watchkeeper.testing.fake_anthropic import FakeAnthropic
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import EVENT_STREAM, Fault, Reply, Script, WireReply, WireServer, call, say

NAME = "openai/gpt-5-mini"

# LiteLLM's and pydantic's notes to each other; what leaks stays an error.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@asynccontextmanager
async def serving(script: Script) -> AsyncGenerator[tuple[FakeOpenAI, LiteLLMModel]]:
    async with FakeOpenAI(script) as fake:
        model = LiteLLMModel(NAME, api_key="test", base_url=fake.base_url)
        try:
            yield fake, model
        finally:
            await model.close()


@pytest.mark.spec("FR-059")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_conversation_with_calls(stream: bool) -> None:
    usage = TokenUsage(input_tokens=100, output_tokens=9, cached_tokens=60, reasoning_tokens=4)
    made = (ToolCall("call_1", "lookup", '{"word":"owl"}'), ToolCall("call_2", "lookup", '{"word":"elk"}'))
    transcript = conversation()
    async with serving([Reply(text="Looking.", calls=made), say("Done.", usage=usage)]) as (fake, model):
        first = await model.turn(request(transcript, tools=(LOOKUP,), stream=stream))
        transcript.append(first.message)
        for made_call in made:
            transcript.append(ToolMessage(made_call.call_id, "lookup", "an animal"))
        last = await model.turn(request(transcript, tools=(LOOKUP,), stream=stream))
        fake.script.assert_complete()
    assert (first.message.text, first.message.tool_calls, first.finish) == ("Looking.", made, "tool_calls")
    assert (last.message.text, last.finish, last.usage) == ("Done.", "stop", usage)
    assert last.response_id


async def test_an_address_that_litellm_finds_itself_is_the_one_that_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeOpenAI([say("An owl.")]) as fake:
        monkeypatch.setenv("LLAMAFILE_API_BASE", fake.base_url)
        model = LiteLLMModel("llamafile/owl")
        assert model.address == fake.base_url
        assert (await model.turn(request())).message.text == "An owl."
        await model.close()


async def test_settings_and_schema_are_passed_on() -> None:
    async with serving([say("{}")]) as (fake, model):
        settings = ModelSettings(temperature=1.0, effort="low", extra={"user": "seven"})
        await model.turn(request(settings=settings, output=REPORT, max_output_tokens=77, timeout=30.0))
        (body,) = fake.bodies()
    assert body["model"] == "gpt-5-mini"
    assert body["response_format"]["json_schema"]["strict"] is True
    assert (body["reasoning_effort"], body["user"]) == ("low", "seven")
    assert 77 in (body.get("max_tokens"), body.get("max_completion_tokens"))


@pytest.mark.parametrize("name", ["v0/v0-1.0-md", "morph/morph-v3-fast"])
async def test_the_cap_is_sent_where_litellm_would_drop_it(name: str) -> None:
    async with FakeOpenAI([say("An owl.")]) as fake:
        model = LiteLLMModel(name, api_key="test", base_url=fake.base_url)
        await model.turn(request(max_output_tokens=77))
        await model.close()
        (body,) = fake.bodies()
    assert body["max_tokens"] == 77


# LiteLLM sends the requests of the first two through OpenAI's SDK and drops the number of retries, those of the others
# through clients of its own.
SENT_BY = ["zai/glm-5", "sambanova/DeepSeek-V3.1", "groq/openai/gpt-oss-120b", "deepseek/deepseek-chat"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fault", ["broken", "server", "overloaded", "rate_limit"])
@pytest.mark.parametrize("name", SENT_BY)
async def test_a_call_that_fails_is_one_request(name: str, fault: Any, stream: bool) -> None:
    async with FakeOpenAI(lambda number, body: Fault(fault)) as fake:
        model = LiteLLMModel(name, api_key="test", base_url=fake.base_url)
        with pytest.raises(ProviderError) as caught:
            await model.turn(request(stream=stream))
        await model.close()
        assert len(fake.requests) == 1
    assert caught.value.billed is (fault == "broken")


@pytest.mark.parametrize("name", [*SENT_BY, "anthropic/claude-haiku-4-5", "gemini/gemini-2.5-flash", "xai/grok-4"])
async def test_a_connection_that_is_reset_is_not_tried_again_in_the_same_call(name: str) -> None:
    requests: list[bytes] = []

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.read(1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        model = LiteLLMModel(name, api_key="test", base_url=f"http://127.0.0.1:{port}")
        with pytest.raises(ProviderError) as caught:
            await model.turn(request())
        await model.close()
    assert (len(requests), caught.value.fault, caught.value.billed) == (1, "connection", True)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", [NAME, "anthropic/claude-haiku-4-5", "gemini/gemini-2.5-flash", "groq/llama-3"])
async def test_a_redirect_gets_neither_key_nor_conversation(name: str, stream: bool) -> None:
    async with WireServer(lambda sent: WireReply()) as other:
        away = WireReply(307, {"location": f"{other.url}/elsewhere"})
        async with WireServer(lambda sent: away) as server:
            model = LiteLLMModel(name, api_key="test", base_url=server.url)
            with pytest.raises(ProviderError, match=r"a redirect to .*/elsewhere, which is not followed") as caught:
                await model.turn(request(stream=stream))
            await model.close()
        assert (len(server.requests), other.requests) == (1, [])
    assert (caught.value.fault, caught.value.billed) == ("bad_request", False)


@pytest.mark.parametrize(("sent_before", "error"), [(False, EgressRefusedError), (True, ProviderError)])
async def test_another_host_than_the_models_is_asked_at_the_egress_hooks(sent_before: bool, error: type) -> None:
    """If something was sent before, it may be on the bill: the refusal is then no error that says that nothing was."""

    class OnlyOne:
        def before_egress(self, ctx: Any, url: str, method: str) -> Decision:
            return Decision.ALLOW if url.startswith("http://127.0.0.1:1/") else Decision.HALT

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(lambda sent: httpx.Response(200))) as client:
            with one_exchange("http://127.0.0.1:1/v1", "litellm"):
                if sent_before:
                    await client.post("http://127.0.0.1:1/v1/first")
                with pytest.raises(EgressRefusedError):  # LiteLLM may do without
                    await client.get("http://127.0.0.1:2/v1/models")
                await client.post("http://127.0.0.1:2/v1/messages")

    LiteLLMModel(NAME, api_key="test")
    with ExecutionContext(Limits(), pipeline=ShieldPipeline(egress=OnlyOne())) as gate:
        outcome = await gate.acall_llm(ask)
    assert type(outcome.error) is error
    assert "OnlyOne said HALT" in str(outcome.error)


async def test_a_second_request_after_an_answer_is_refused_and_the_first_is_paid_for() -> None:
    async def ask_twice() -> None:
        with one_exchange("http://127.0.0.1/v1", "litellm"):
            await client.post("http://127.0.0.1/v1")
            await client.post("http://127.0.0.1/v1")

    LiteLLMModel(NAME, api_key="test")
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda sent: httpx.Response(200))) as client:
        with pytest.raises(ProviderError, match="second request") as caught:
            await ask_twice()
        assert caught.value.billed
        assert (await client.post("http://127.0.0.1/v1")).status_code == 200


async def test_a_listener_may_send_what_it_likes() -> None:
    def tell(text: str) -> None:
        with httpx.Client(transport=httpx.MockTransport(lambda sent: httpx.Response(200))) as client:
            heard.extend(client.post("http://127.0.0.1/heard").status_code for _ in range(2))

    heard: list[int] = []
    async with serving([say("An owl.")]) as (_, model):
        reply = await model.turn(request(on_delta=tell))
    assert (reply.message.text, set(heard)) == ("An owl.", {200})


@pytest.mark.parametrize("name", [NAME, "deepseek/deepseek-chat", "hosted_vllm/owl"])
async def test_what_litellm_guesses_in_a_stream_without_counts_is_not_taken_for_the_providers(name: str) -> None:
    chunk: dict[str, Any] = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "owl"}
    said: dict[str, Any] = {**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "An owl."}}]}
    end: dict[str, Any] = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    parts = [b"data: " + msgspec.json.encode(each) + b"\n\n" for each in (said, end)]
    stream = WireReply(parts=[*parts, b"data: [DONE]\n\n"], content_type=EVENT_STREAM)
    async with WireServer(lambda sent: stream) as server:
        model = LiteLLMModel(name, api_key="test", base_url=server.url)
        reply = await model.turn(request(stream=True))
        await model.close()
    assert (reply.message.text, reply.usage) == ("An owl.", TokenUsage())


def test_no_tokenizer_is_fetched_to_guess_the_tokens_of_a_stream() -> None:
    """LiteLLM would do so on the event loop, which then waits for the network."""
    LiteLLMModel("groq/llama-3-70b", api_key="test")
    assert sys.modules["litellm"].disable_hf_tokenizer_download is True


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", [NAME, "groq/owl"])
async def test_closing_a_model_leaves_the_calls_of_others_alone(name: str, stream: bool) -> None:
    async with FakeOpenAI([say("An owl.", delay=0.2), say("An elk.")]) as fake:
        one, other = (LiteLLMModel(name, api_key=key, base_url=fake.base_url) for key in ("one", "other"))
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(other.turn(request(stream=stream)))
            await fake.until(lambda: bool(fake.requests))
            await one.close()
        await one.close()
        again = await other.turn(request(stream=stream))
        await other.close()
    assert (asked.result().message.text, again.message.text) == ("An owl.", "An elk.")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_what_other_interfaces_count_is_kept(stream: bool) -> None:
    async with FakeAnthropic([say("An owl.", usage=TokenUsage(input_tokens=100, output_tokens=9))]) as fake:
        model = LiteLLMModel("anthropic/claude-haiku-4-5", api_key="test", base_url=fake.base_url)
        reply = await model.turn(request(stream=stream))
        await model.close()
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (100, 9)


@pytest.mark.parametrize(
    ("setting", "value"), [("model_fallbacks", ["openai/dear"]), ("model_alias_map", {NAME: "openai/dear"})]
)
async def test_a_setting_of_litellm_that_lets_another_model_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: object
) -> None:
    async with serving([]) as (server, model):
        monkeypatch.setattr(sys.modules["litellm"], setting, value)
        with pytest.raises(ConfigurationError, match=rf"litellm\.{setting} .*fallback="):
            await model.turn(request())
        assert server.requests == []


async def test_a_provider_that_does_not_answer_in_time() -> None:
    async with serving([Fault("hang")]) as (_, model):
        with pytest.raises(ProviderError) as caught:
            await model.turn(request(timeout=0.5))
    assert (caught.value.fault, caught.value.billed) == ("timeout", True)


async def test_nobody_there() -> None:
    async with FakeOpenAI([]) as fake:
        url = fake.base_url
    model = LiteLLMModel(NAME, api_key="test", base_url=url)
    with pytest.raises(ProviderError) as caught:
        await model.turn(request())
    await model.close()
    assert caught.value.retryable


async def test_a_stream_that_breaks() -> None:
    async with serving([Fault("broken")]) as (_, model):
        with pytest.raises(ProviderError) as caught:
            await model.turn(request(stream=True))
    assert caught.value.retryable


async def test_real_providers_can_be_blocked() -> None:
    model = LiteLLMModel(NAME, api_key="test")
    before = allow_remote(False)
    try:
        with pytest.raises(ConfigurationError, match="blocked here"):
            await model.turn(request(on_delta=ignore))
    finally:
        allow_remote(before)


def test_the_model_says_what_it_is() -> None:
    model = LiteLLMModel("anthropic/claude-sonnet-4-5", api_key="test")
    assert isinstance(model, Model)
    assert (model.provider, model.native_output, model.free) == ("anthropic", True, False)
    assert (model.context_window or 0) > 100_000
    unknown = LiteLLMModel("openai/in-house", base_url="http://localhost:1", native_output=True, context_window=99)
    assert (unknown.context_window, unknown.max_output_tokens, unknown.native_output) == (99, None, True)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(MissingKeyError, match=r"set GEMINI_API_KEY|set GOOGLE_API_KEY"):
        LiteLLMModel("gemini/gemini-2.5-flash")


def test_a_provider_whose_requests_cannot_be_guarded_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="write openai/ in place of aiohttp_openai/"):
        LiteLLMModel("aiohttp_openai/gpt-5-mini", api_key="test", base_url="http://127.0.0.1:9/v1")


def test_a_provider_that_nobody_knows() -> None:
    with pytest.raises(ConfigurationError, match="provider/model"):
        LiteLLMModel("in-house-model", api_key="test")


def test_the_price_list_is_not_fetched_and_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "no")
    LiteLLMModel(NAME, api_key="test")
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "no"
    monkeypatch.delenv("LITELLM_LOCAL_MODEL_COST_MAP")
    LiteLLMModel(NAME, api_key="test")
    assert "LITELLM_LOCAL_MODEL_COST_MAP" not in os.environ


@pytest.mark.parametrize(
    "extra",
    [
        {"num_retries": 3},
        {"additional_drop_params": ["max_tokens"]},
        {"base_url": "http://elsewhere.example/v1"},
        {"context_window_fallback_dict": {NAME: "openai/dear"}},
        {"model_list": [{"model_name": NAME, "litellm_params": {"model": "openai/dear"}}]},
        {"deployment_id": "dear"},
        {"api_base": "http://elsewhere.example/v1"},
        {"extra_body": {"max_tokens": 900_000}},
        {"extra_body": {"n": 5}},
    ],
)
async def test_extra_cannot_bring_back_what_the_adapter_decides(extra: dict[str, Any]) -> None:
    """That is: its retries, another server, another cap, several answers."""
    async with serving([]) as (server, model):
        with pytest.raises(ConfigurationError, match="cannot set"):
            await model.turn(request(settings=ModelSettings(extra=extra)))
        assert server.requests == []


def test_what_litellm_cannot_say_about_a_model_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise RuntimeError("the list is torn")

    LiteLLMModel(NAME, api_key="test")  # imports the package without its price download
    monkeypatch.setattr(sys.modules["litellm"], "get_model_info", broken)
    with pytest.raises(RuntimeError, match="torn"):
        LiteLLMModel(NAME, api_key="test")


async def test_a_call_that_the_model_wrote_badly_stays_as_it_is() -> None:
    async with serving([call("lookup", '{"word": ow')]) as (_, model):
        reply = await model.turn(request(tools=(LOOKUP,)))
    assert reply.message.tool_calls[0].arguments == '{"word": ow'
