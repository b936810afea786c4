"""The models of a run are all made and priced before anything is spent, and what was made is closed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app import models as lineup_module
from watchkeeper.app.agent import Agent
from watchkeeper.app.models import model_from
from watchkeeper.app.run import run, run_many
from watchkeeper.core.errors import (
    ConfigurationError,
    MissingKeyError,
    ProviderError,
    UnknownModelError,
    UnpricedModelError,
)
from watchkeeper.core.limits import Limits
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
    monkeypatch.setattr(lineup_module, "model_from", made.__getitem__)
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

    monkeypatch.setattr(lineup_module, "model_from", make)
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
        made = lineup_module.checked_fallback(["http://127.0.0.1:9/v1#a"], "http://127.0.0.1:8/v1#a")
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
