"""The protocol of those who evaluate prompts."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError
from decimal import Decimal
from typing import Any

import pytest

from watchkeeper.adapters.scripted import ScriptedModel
from watchkeeper.children.nested_adapter import RunAdapter
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
