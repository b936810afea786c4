"""What only the adapter over LiteLLM does, with the real package; the rest stands in `test_every_remote`."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.adapters.remote import LOOKUP, REPORT, conversation, ignore, request
from watchkeeper.adapters.endpoint import allow_remote
from watchkeeper.adapters.litellm import LiteLLMModel
from watchkeeper.core.errors import ConfigurationError, MissingKeyError, ProviderError
from watchkeeper.core.messages import ToolCall, ToolMessage
from watchkeeper.core.model import Model, ModelSettings
from watchkeeper.core.usage import TokenUsage
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import Fault, Reply, Script, call, say

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


async def test_a_provider_that_does_not_answer_in_time() -> None:
    async with serving([Fault("hang")]) as (_, model):
        with pytest.raises(ProviderError) as caught:
            await model.turn(request(timeout=0.05))
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


async def test_extra_cannot_bring_retries_back() -> None:
    async with serving([]) as (_, model):
        with pytest.raises(ConfigurationError, match="num_retries"):
            await model.turn(request(settings=ModelSettings(extra={"num_retries": 3})))


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
