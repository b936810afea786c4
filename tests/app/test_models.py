"""Model strings, and the models of a run: all are made and priced before anything is spent, and closed at the end."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app import models
from watchkeeper.app import models as models_module
from watchkeeper.app.agent import Agent
from watchkeeper.app.models import PROVIDERS, SERVER_KEY, model_from
from watchkeeper.app.run import run, run_many
from watchkeeper.core.errors import (
    ConfigurationError,
    MissingExtraError,
    MissingKeyError,
    ProviderError,
    UnknownModelError,
    UnpricedModelError,
)
from watchkeeper.core.model import Model, ModelRequest
from watchkeeper.core.usage import ModelPrice
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.events import ManyStarted, ModelSwitched
from watchkeeper.shield.circuit_breaker import CircuitBreakers, CircuitState
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import tool


async def made(text: str) -> tuple[str, str, str]:
    """Return class, provider and name of the model a string makes."""
    model = model_from(text)
    await model.close()
    assert isinstance(model, Model)
    return type(model).__name__, model.provider, model.name


@pytest.mark.spec("FR-062")
@pytest.mark.parametrize(
    ("text", "variable", "expected"),
    [
        ("openai:gpt-5-mini", "OPENAI_API_KEY", ("OpenAIChatModel", "openai", "gpt-5-mini")),
        ("openai-responses:gpt-5", "OPENAI_API_KEY", ("OpenAIResponsesModel", "openai", "gpt-5")),
        ("anthropic:claude-x", "ANTHROPIC_API_KEY", ("AnthropicModel", "anthropic", "claude-x")),
        ("litellm:groq/llama-3.3-70b", "GROQ_API_KEY", ("LiteLLMModel", "groq", "groq/llama-3.3-70b")),
        ("http://localhost:1/v1#m", None, ("OpenAIChatModel", "openai-compatible", "m")),
        ("https://example.invalid/v1#org/m:7b", None, ("OpenAIChatModel", "openai-compatible", "org/m:7b")),
    ],
)
async def test_a_string_makes_its_model(
    text: str, variable: str | None, expected: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "k")
    assert await made(text) == expected


async def test_a_gguf_file_makes_a_local_model(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF" + bytes(64))
    assert await made(f"local:{file}") == ("LocalModel", "local", "tiny")


def test_a_local_model_that_is_not_there_is_refused() -> None:
    pytest.importorskip("xllamacpp")
    with pytest.raises(ConfigurationError, match=r"/no/such/file\.gguf"):
        model_from("local:/no/such/file.gguf")


@pytest.mark.spec("FR-101")
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpt-5-mini", ["'gpt-5-mini'", "openai:NAME"]),
        ("", ["''", "openai:NAME"]),
        ("opnai:gpt-5", ["did you mean 'openai'?"]),
        ("openai:", ["names no model of openai"]),
        ("openai", ["names no model of openai"]),
        ("scripted", ["ScriptedModel([...])"]),
        ("http://localhost:1/v1", ["http://localhost:1/v1#NAME"]),
        ("http://localhost:1/v1#", ["http://localhost:1/v1#NAME"]),
    ],
)
def test_an_unknown_string_is_refused_with_the_forms(text: str, parts: list[str]) -> None:
    with pytest.raises(UnknownModelError) as caught:
        model_from(text)
    assert all(part in str(caught.value) for part in parts)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no address"):
        model_from("http://#m")


@pytest.mark.spec("FR-102")
@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("openai:m", "OPENAI_API_KEY"),
        ("openai-responses:m", "OPENAI_API_KEY"),
        ("anthropic:m", "ANTHROPIC_API_KEY"),
        ("litellm:groq/m", "GROQ_API_KEY"),
    ],
)
def test_a_missing_key_is_refused_by_name(text: str, variable: str) -> None:
    with pytest.raises(MissingKeyError, match=variable):
        model_from(text)


@pytest.mark.spec("FR-103")
@pytest.mark.parametrize(
    ("text", "package", "extra"),
    [
        ("openai:m", "openai", "openai"),
        ("openai-responses:m", "openai", "openai"),
        ("http://localhost:1/v1#m", "openai", "openai"),
        ("anthropic:m", "anthropic", "anthropic"),
        ("litellm:groq/m", "litellm", "litellm"),
        ("local:x.gguf", "xllamacpp", "local"),
    ],
)
def test_a_missing_extra_is_refused_with_the_command(
    text: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def find_others(name: str, package_: str | None = None) -> ModuleSpec | None:
        return None if name == package else find(name, package_)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)
    with pytest.raises(MissingExtraError) as caught:
        model_from(text)
    assert f"pip install 'watchkeeper[{extra}]'" in str(caught.value)


def test_every_provider_is_in_the_help() -> None:
    assert all(f"'{provider}" in models.HELP for provider in PROVIDERS)


@pytest.mark.spec("FR-062")
@pytest.mark.parametrize(("own", "sent"), [(None, "no-key"), ("mine", "mine")])
def test_the_key_of_a_provider_is_never_sent_to_another_address(
    own: str | None, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    if own is not None:
        monkeypatch.setenv(SERVER_KEY, own)

    def keep(name: str, **options: Any) -> None:
        given.update(options, name=name)

    monkeypatch.setattr("watchkeeper.adapters.openai_chat.OpenAIChatModel", keep)
    model_from("http://localhost:1/v1#m")
    assert given == {
        "name": "m",
        "api_key": sent,
        "base_url": "http://localhost:1/v1",
        "provider": "openai-compatible",
    }


# --- the models of a run are all made and priced before anything is spent,  -----------------------------------------

HELLO = PromptTemplate(ns="tests", key="hello", sections=[MarkdownSection(title="T", key="t", template="Say hello.")])


@dataclass(frozen=True)
class Item:
    """What one run of many is about."""

    name: str


EACH = PromptTemplate(
    ns="tests", key="each", params=(Item,), sections=[MarkdownSection(title="T", key="t", template="Greet ${name}.")]
)


class Closing(ScriptedModel):
    """Counts how often it is closed."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1


def down(request: ModelRequest) -> Exception:
    return ProviderError("it is down", fault="auth", provider="p")


def model(name: str, *script: Any, **facts: Any) -> ScriptedModel:
    return ScriptedModel(script, name=name, provider=f"of-{name}", **facts)


def test_a_fallback_named_by_a_string_is_made_asked_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Closing] = {
        name: Closing(["hello"], name=name, provider="made") for name in ("made:one", "made:two")
    }
    monkeypatch.setattr(models_module, "model_from", made.__getitem__)
    result = run(HELLO, model=ScriptedModel(down), fallback=["made:one", "made:two"], store=None)
    assert result.output == "hello"
    assert [each.closed for each in made.values()] == [1, 1]


def test_models_of_the_caller_stay_open() -> None:
    first, second = Closing(down), Closing(["hello"], name="two")
    assert run(HELLO, model=first, fallback=[second], store=None).output == "hello"
    assert (first.closed, second.closed) == (0, 0)


def test_what_was_made_is_closed_when_a_later_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Closing([], name="one", provider="made")

    def make(text: str) -> Model:
        return made if text == "made:one" else model_from(text)

    monkeypatch.setattr(models_module, "model_from", make)
    with pytest.raises(UnknownModelError, match="'nowhere:two'"):
        run(HELLO, model="made:one", fallback=["nowhere:two"], store=None)
    assert made.closed == 1


@pytest.mark.spec("FR-120")
@pytest.mark.parametrize(
    ("fallback", "error", "said"),
    [
        ("openai:gpt-5", ConfigurationError, r"must be a sequence of models; write fallback=\('openai:NAME',\)"),
        (None, ConfigurationError, "fallback=None must be a sequence"),
        ([None], ConfigurationError, "fallback names None, which is neither a model nor the name of one"),
        ([""], UnknownModelError, "there is no model ''"),
        (["opnai:gpt-5"], UnknownModelError, "did you mean 'openai'"),
        (["openai:gpt-5"], MissingKeyError, "OPENAI_API_KEY"),
        (["anthropic:claude-sonnet-5"], MissingKeyError, "ANTHROPIC_API_KEY"),
        (["http://127.0.0.1:9/v1#a"] * 2, ConfigurationError, "http://127.0.0.1:9/v1#a is named twice"),
    ],
)
def test_a_fallback_that_cannot_work_is_refused_before_anything_is_spent(
    fallback: Any, error: type[Exception], said: str
) -> None:
    first = model("one", "hello")
    with pytest.raises(error, match=said):
        run(HELLO, model=first, fallback=fallback, store=None)
    assert first.requests == []


def test_the_same_model_twice_is_refused() -> None:
    first = model("one", "hello")
    with pytest.raises(ConfigurationError, match="of-one:one is named twice in model= and fallback="):
        run(HELLO, model=first, fallback=[first], store=None)


def test_no_fallback_is_none() -> None:
    assert run(HELLO, model=model("one", "hello"), fallback=[], store=None).output == "hello"


def test_every_model_needs_a_price_under_a_cost_ceiling() -> None:
    first, second = model("one", "hello"), model("two", "hello", free=False)
    with pytest.raises(UnpricedModelError, match="of-two:two"):
        run(HELLO, model=first, fallback=[second], limits=Limits(max_cost_usd=1), store=None)
    assert first.requests == []
    prices = {"of-two:two": ModelPrice.per_million(1, 1)}
    assert run(HELLO, model=first, fallback=[second], limits=Limits(max_cost_usd=1), prices=prices, store=None).ok


async def test_servers_at_two_addresses_are_two_models() -> None:
    async with AsyncExitStack() as stack:
        made = models_module.checked_fallback(["http://127.0.0.1:9/v1#a"], "http://127.0.0.1:8/v1#a")
        assert made == ("http://127.0.0.1:9/v1#a",)
        await stack.aclose()


# --- run_many, agents -------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-122")
def test_items_share_breakers_so_that_an_outage_is_found_out_once() -> None:
    def overloaded(request: ModelRequest) -> Exception:
        return ProviderError("it is down", fault="overloaded", provider="p")

    first = ScriptedModel(overloaded, name="one", provider="of-one")
    second = ScriptedModel(lambda _: Say("hello"), name="two", provider="of-two")
    limits = Limits(max_retries=100)
    many = run_many(
        EACH,
        [Item("a"), Item("b"), Item("c")],
        model=first,
        fallback=[second],
        limits=limits,
        concurrency=1,
        breakers=CircuitBreakers(failure_threshold=1),
        store=None,
    )
    assert [result.output for result in many.results] == ["hello"] * 3
    assert len(first.requests) == 1
    switches = [result.session[ModelSwitched].all() for result in many.results]
    assert [[switch.reason for switch in each] for each in switches] == [["circuit_open"]] * 3
    whole = many.results[0].session.parent
    assert whole is not None
    assert [started.fallback for started in whole[ManyStarted].all()] == [("of-two:two",)]


def test_a_hook_is_asked_about_the_calls_of_all_items() -> None:
    class Counting:
        asked = 0

        def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
            self.asked += 1
            return Decision.HALT if self.asked > 2 else None

    hook = Counting()
    many = run_many(
        EACH,
        [Item("a"), Item("b"), Item("c")],
        model=ScriptedModel(lambda _: Say("hello")),
        shield=ShieldPipeline(pre_dispatch=hook),
        concurrency=1,
        store=None,
    )
    assert [result.ok for result in many.results] == [True, True, False]
    assert many.results[2].stop is not None
    assert many.results[2].stop.reason == "policy_halt"
    assert hook.asked == 3


def test_an_agent_takes_them_too() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    class NoTools:
        def before_tool_call(self, ctx: ToolCallContext) -> Decision:
            return Decision.HALT

    breakers = CircuitBreakers(failure_threshold=1)
    second = model("two", Call("look"), "hello")
    agent = Agent(ScriptedModel(down, name="one", provider="of-one"), "Be brief.", str, tools=(look,))
    shield = ShieldPipeline(tool_dispatch=NoTools())
    result = agent.run("Go.", fallback=[second], shield=shield, breakers=breakers, store=None)
    assert result.output == "hello"
    assert result.answered_by == ("of-two:two",)
    assert breakers.of("of-one").state is CircuitState.OPEN
    (invoked,) = result.session[ToolInvoked].all()
    assert invoked.outcome == "denied"


async def test_the_event_loop_goes_on_while_the_sdk_of_a_model_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, seen = threading.Event(), list[bool]()

    def slow(name: str) -> ScriptedModel:
        seen.append(goes_on.wait(30))
        return ScriptedModel(["done"])

    monkeypatch.setattr(models, "PROVIDERS", {"slow": f"{__name__}:slow"})
    monkeypatch.setitem(globals(), "slow", slow)
    asyncio.get_running_loop().call_soon(goes_on.set)
    assert (await Agent("slow:m", "Go.", str).arun("Go.", store=None)).ok
    assert seen == [True]
