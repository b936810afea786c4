"""The protocol of those who evaluate prompts."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError
from decimal import Decimal

import pytest

from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.adapter import PromptResponse, ProviderAdapter


def test_a_response_holds_the_answer_and_what_it_took() -> None:
    response = PromptResponse("support/triage", 3, "three", TokenUsage(5, 6), Decimal("0.01"))
    assert (response.output, response.text, response.usage.total, response.cost) == (3, "three", 11, Decimal("0.01"))
    name = "text"
    with pytest.raises(FrozenInstanceError):
        setattr(response, name, "other")


@pytest.mark.spec("DL-001")
def test_both_ways_to_evaluate_take_the_same_arguments() -> None:
    """All but the prompt and its params go by keyword, with the names of the seeds."""
    sync = inspect.signature(ProviderAdapter.evaluate)
    assert sync == inspect.signature(ProviderAdapter.evaluate_async)
    assert {name: item.default for name, item in sync.parameters.items() if item.kind is item.KEYWORD_ONLY} == {
        "session": None,
        "bus": None,
        "deadline": None,
        "budget": None,
        "budget_tracker": None,
        "run_context": None,
        "parse_output": True,
    }
