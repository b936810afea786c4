"""Fallback between real adapters and local fake servers: the requests that arrive are those that the gate admitted."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Report, agent, events
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.anthropic import AnthropicModel
from watchkeeper.adapters.openai_chat import OpenAIChatModel
from watchkeeper.adapters.openai_responses import OpenAIResponsesModel
from watchkeeper.app.run import arun
from watchkeeper.asking.retry import MAX_ATTEMPTS
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.model import Model
from watchkeeper.core.usage import ModelPrice
from watchkeeper.local import server as local_server
from watchkeeper.local.model import LocalModel
from watchkeeper.runtime.events import ModelFailed, ModelReplied, ModelSwitched, TextDelta
from watchkeeper.runtime.result import RunResult
from watchkeeper.shield.circuit_breaker import CircuitBreakers, CircuitState
from watchkeeper.testing.fake_anthropic import FakeAnthropic
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import Fault, Step, call, say
from watchkeeper.tools.tool import tool

ANSWER = '{"total": 1, "note": ""}'
PRICES = {
    "gpt-5-mini": ModelPrice.per_million("0.25", 2),
    "claude-sonnet-5": ModelPrice.per_million(3, 15, "0.30", "3.75"),
    "backup": ModelPrice.per_million(1, 1),
}
Fake = FakeOpenAI | FakeAnthropic
FAKE_ENGINE = Path(__file__).parents[1] / "local" / "fake_engine.py"


@tool
async def step() -> str:
    """Take a step."""
    return "ok"


def chat(url: str) -> Model:
    return OpenAIChatModel("gpt-5-mini", api_key="test", base_url=url)


def responses(url: str) -> Model:
    return OpenAIResponsesModel("gpt-5-mini", api_key="test", base_url=url)


def claude(url: str) -> Model:
    return AnthropicModel("claude-sonnet-5", api_key="test", base_url=url)


def backup(url: str) -> Model:
    return OpenAIChatModel("backup", base_url=url, provider="openai-compatible", native_output=False)


async def play(models: list[Model], limits: Limits = Limits(), **options: Any) -> RunResult[Report]:
    given: dict[str, Any] = {"clock": TestClock(), "store": None, "prices": PRICES, **options}
    try:
        return await arun(agent(step), model=models[0], fallback=models[1:], limits=limits, **given)
    finally:
        for model in models:
            await model.close()


def admitted(result: RunResult[Any]) -> int:
    """Return how many model calls the gate admitted: all steps that were no tool calls."""
    return result.usage.steps - result.usage.tool_calls


def attempts(result: RunResult[Any]) -> int:
    return len(events(result, ModelReplied)) + len(events(result, ModelFailed))


@pytest.mark.spec("FR-120")
@pytest.mark.parametrize("first", [chat, responses])
@pytest.mark.parametrize("kind", ["overloaded", "server", "quota", "rate_limit", "broken"])
async def test_openai_is_down_and_anthropic_and_then_a_server_of_ones_own_go_on(
    first: Callable[[str], Model], kind: Any
) -> None:
    """The conversation crosses two borders; each fake refuses what the real provider refuses."""
    outage = [Fault(kind)] * MAX_ATTEMPTS
    async with (
        FakeOpenAI([call("step", {}), *outage]) as one,
        FakeAnthropic([call("step", {}, "toolu_1", reasoning="hm"), Fault("auth")]) as two,
        FakeOpenAI([call("step", {}, "call_9"), say(ANSWER)]) as three,
    ):
        fakes: list[Fake] = [one, two, three]
        models = [first(one.base_url), claude(two.base_url), backup(three.base_url)]
        result = await play(models, Limits(max_cost_usd=5))
        wire = sum(len(fake.requests) for fake in fakes)
        assert [fake.errors for fake in fakes] == [[], [], []]
        assert result.output == Report(1), result.sentence()
        assert wire == admitted(result) == attempts(result)
        assert [each.to_model for each in events(result, ModelSwitched)] == [
            "anthropic:claude-sonnet-5",
            "openai-compatible:backup",
        ]
        last = three.bodies()[-1]
        roles = [message["role"] for message in last["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant", "tool"]
        assert "Answer format" in str(last["messages"][0]["content"])
        assert "response_format" not in last
    assert result.answered_by == ("openai:gpt-5-mini", "anthropic:claude-sonnet-5", "openai-compatible:backup")


@pytest.mark.spec("FR-121")
async def test_openai_then_anthropic_then_the_local_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is a fake; the adapter, its process and the conversation are not."""
    monkeypatch.setattr(local_server, "ENGINE", FAKE_ENGINE)
    monkeypatch.setattr(local_server, "ENGINE_PACKAGES", ("openai", "aiohttp"))
    asked, file = tmp_path / "requests", tmp_path / "model.gguf"
    answer = json.dumps({"action": "final_answer", "answer": json.loads(ANSWER)})
    file.write_bytes(b"GGUF" + json.dumps({"requests": str(asked), "replies": [answer]}).encode())
    async with (
        FakeOpenAI([call("step", {}), Fault("auth")]) as one,
        FakeAnthropic([call("step", {}, "toolu_1", reasoning="hm"), Fault("auth")]) as two,
    ):
        models = [chat(one.base_url), claude(two.base_url), LocalModel(file, context_window=4096)]
        result = await play(models, Limits(max_cost_usd=1), clock=SYSTEM_CLOCK)
        assert result.output == Report(1), result.sentence()
        assert len(one.requests) + len(two.requests) + 1 == admitted(result) == attempts(result)
    (body,) = [json.loads(line) for line in asked.read_text().splitlines()]
    assert str(body["messages"]).count("Result of step") == 2
    assert result.answered_by[-1].startswith("local:")


async def test_anthropic_is_overloaded_and_openai_goes_on() -> None:
    async with (
        FakeAnthropic([call("step", {}, "toolu_1", reasoning="hm"), *[Fault("overloaded")] * MAX_ATTEMPTS]) as one,
        FakeOpenAI([say(ANSWER)]) as two,
    ):
        result = await play([claude(one.base_url), chat(two.base_url)])
        assert result.output == Report(1)
        assert len(one.requests) + len(two.requests) == admitted(result) == attempts(result)
        assert "hm" not in str(two.bodies()[0])


async def test_a_stream_that_breaks_goes_on_with_another_model() -> None:
    heard: list[str] = []

    def hear(event: Any) -> None:
        if isinstance(event, TextDelta):
            heard.append(event.text)

    broken = [Fault("overloaded", midway=True)] * MAX_ATTEMPTS
    async with FakeOpenAI(broken) as one, FakeAnthropic([say(ANSWER)]) as two:
        result = await play([chat(one.base_url), claude(two.base_url)], on_event=hear)
        assert result.output == Report(1)
        assert "".join(heard).endswith(ANSWER)
        assert len(one.requests) + len(two.requests) == admitted(result)


@pytest.mark.parametrize("cents", [1, 2, 5, 20])
async def test_the_ceiling_holds_on_the_bill_across_the_switch(cents: int) -> None:
    """Broken answers may be billed, so their worst case is charged; the dearer model gets what is left."""
    ceiling = Decimal(cents) / 100

    def cheap(number: int, body: Any) -> Step:
        return call("step", {}) if number < 3 else Fault("broken")

    def dear(number: int, body: Any) -> Step:
        return say(ANSWER) if body["tool_choice"]["type"] == "none" else call("step", {})

    async with FakeOpenAI(cheap) as one, FakeAnthropic(dear) as two:
        limits = Limits(max_cost_usd=ceiling, max_turns=20)
        result = await play([chat(one.base_url), claude(two.base_url)], limits)
        assert result.cost is not None
        assert result.cost <= ceiling
        assert len(one.requests) + len(two.requests) == admitted(result) == attempts(result)


async def test_an_open_breaker_sends_nothing_to_a_provider_that_is_down() -> None:
    breakers = CircuitBreakers(failure_threshold=2, clock=TestClock())
    async with FakeOpenAI([Fault("overloaded")] * 3) as one, FakeAnthropic([say(ANSWER)] * 2) as two:
        first = await play([chat(one.base_url), claude(two.base_url)], breakers=breakers)
        again = await play([chat(one.base_url), claude(two.base_url)], breakers=breakers)
        assert (first.output, again.output) == (Report(1), Report(1))
        assert len(one.requests) == 2
        assert (admitted(first), admitted(again)) == (3, 1)
        assert again.usage.retries == 0
    assert breakers.of("openai").state is CircuitState.OPEN
    assert breakers.of("anthropic").state is CircuitState.CLOSED


async def test_nobody_answers_at_a_dead_address_and_the_next_one_does() -> None:
    async with FakeOpenAI([say(ANSWER)]) as two:
        result = await play([chat("http://127.0.0.1:9/v1"), backup(two.base_url)])
    assert result.output == Report(1)
    assert [each.reason for each in events(result, ModelSwitched)] == ["connection"]
