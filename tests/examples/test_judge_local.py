"""The bundled model as agent and as judge: an agent that stops early is sent back, and then finishes.

Only that the agent stops early is staged: its first answer is a promise. Everything after it the model says, and the
judge's words, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from watchkeeper import Limits, MarkdownSection, PromptTemplate, RunResult, run
from watchkeeper.core.messages import AssistantMessage
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import TokenUsage
from watchkeeper.judging import LLMCompletionVerifier, NestedExecutionConfig
from watchkeeper.local.model import LocalModel
from watchkeeper.runtime.events import ChildEnded, CompletionChecked

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMISE = "I will list the fruits for you in a moment."


@dataclass
class Hasty:
    """A model that first only promises, and then is another model."""

    rest: LocalModel
    promised: bool = False

    def __getattr__(self, name: str) -> Any:
        """Say of itself what the other says."""
        return getattr(self.rest, name)

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Promise once."""
        if self.promised:
            return await self.rest.turn(request)
        self.promised = True
        return ModelReply(AssistantMessage(PROMISE), TokenUsage(50, 10), "stop", self.rest.name)

    async def close(self) -> None:
        """Close the other."""
        await self.rest.close()


def verdicts(result: RunResult[str]) -> list[CompletionChecked]:
    return [each.event for each in result.session.log if isinstance(each.event, CompletionChecked)]


@pytest.mark.spec("NE-024")
def test_an_agent_that_stops_early_is_sent_back_by_the_local_judge_and_then_finishes() -> None:
    task = MarkdownSection("Task", "task", "List three fruits, one on each line. Answer with the list only.")
    template = PromptTemplate[str](
        ns="examples",
        key="fruits",
        sections=(task,),
        task_completion_checker=LLMCompletionVerifier(),
        nested_execution_config=NestedExecutionConfig(max_nested_duration="9m"),
    )
    model: Any = Hasty(LocalModel())
    try:
        result = run(template, model=model, limits=Limits(deadline="20m", max_total_tokens=50_000), store=None)
    finally:
        asyncio.run(model.close())

    said = verdicts(result)
    judged = [each.event for each in result.session.log if isinstance(each.event, ChildEnded)]
    assert said[0].verdict == "rejected", said
    assert result.ok, result.sentence()
    assert result.output is not None
    assert result.output != PROMISE
    assert len(result.output.split()) >= 3
    assert (said[-1].verdict, result.completion) == ("verified", "verified"), said
    assert [each.kind for each in judged] == ["verdict"] * len(said)
    assert all(each.usage.model_calls >= 1 for each in judged)
    assert result.cost == 0
