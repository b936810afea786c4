"""The protocol of those who evaluate prompts."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError
from decimal import Decimal
from typing import Any

import pytest

from watchkeeper.adapters.scripted import ScriptedModel
from watchkeeper.blocks.contained import contained
from watchkeeper.children.nested_adapter import RunAdapter
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.usage import TokenUsage
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.evaluation import EvaluateOptions, NestedAdapter, PromptResponse
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate, ProviderAdapter


def test_a_response_holds_the_answer_and_what_it_took() -> None:
    response = PromptResponse("support/triage", 3, "three", TokenUsage(5, 6), Decimal("0.01"))
    assert (response.output, response.text, response.usage.total, response.cost) == (3, "three", 11, Decimal("0.01"))
    name = "text"
    with pytest.raises(FrozenInstanceError):
        setattr(response, name, "other")


@pytest.mark.spec("DL-001")
@pytest.mark.parametrize("evaluator", [ProviderAdapter, NestedAdapter, Adapter, RunAdapter])
def test_both_ways_to_evaluate_take_the_same_arguments(evaluator: Any) -> None:
    """All but the prompt and its params go by keyword, with the names of the specification."""
    sync, later = inspect.signature(evaluator.evaluate), inspect.signature(evaluator.evaluate_async)
    assert sync == later
    assert {name: item.kind.description for name, item in sync.parameters.items() if name != "self"} == {
        "prompt": "positional or keyword",
        "params": "variadic positional",
        "options": "variadic keyword",
    }
    assert sync.parameters["options"].annotation == "Unpack[EvaluateOptions]"
    assert EvaluateOptions.__required_keys__ == frozenset()
    assert set(EvaluateOptions.__annotations__) == {
        "session",
        "bus",
        "deadline",
        "budget",
        "budget_tracker",
        "run_context",
        "parse_output",
    }


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_keyword_that_evaluate_does_not_take_is_named(way: str) -> None:
    adapter: Any = Adapter(ScriptedModel([]))
    question = Prompt(PromptTemplate[str](ns="t", key="ask", sections=[MarkdownSection("Ask", "ask", "Ask.")]))

    async def evaluate() -> Any:
        if way == "sync":
            return adapter.evaluate(question, time_limit=3)
        return await adapter.evaluate_async(question, time_limit=3)

    with pytest.raises(TypeError, match=r"unexpected keyword argument 'time_limit'; it takes session, bus, deadline"):
        await evaluate()


# --- causes ----------------------------------------------------------------------------------------------------------

QUESTION = Prompt(PromptTemplate[str](ns="t", key="ask", sections=[MarkdownSection("Ask", "ask", "Ask.")]))


def refused(cause: Exception | None = None) -> ProviderError:
    error = ProviderError("who", fault="auth", provider="openai")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("cause", [None, OSError("no route")], ids=["without", "with"])
async def test_an_error_of_the_provider_is_never_its_own_cause(cause: Exception | None) -> None:
    error = refused(cause)
    with pytest.raises(ProviderError) as caught:
        await Adapter(ScriptedModel([error])).evaluate_async(QUESTION)
    assert caught.value is error
    assert error.__cause__ is cause


async def test_it_leaves_a_contained_block_as_it_is() -> None:
    error = refused()
    with pytest.raises(ProviderError) as caught:
        async with contained(max_steps=3):
            await Adapter(ScriptedModel([error])).evaluate_async(QUESTION)
    assert caught.value is error


def test_causes_in_a_circle_end_a_contained_block_like_any_other() -> None:
    first, second = LookupError("first"), LookupError("second")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(LookupError) as caught, contained(max_steps=3):
        raise first
    assert caught.value is first
