"""A small agent to run in tests: a template with given tools, a scripted model, a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.run import arun
from watchkeeper.core.clock import TestClock
from watchkeeper.core.limits import Limits
from watchkeeper.core.model import Model, ModelReply, ModelRequest
from watchkeeper.prompt.completion import TaskCompletionChecker
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.result import RunResult
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import Tool

T = TypeVar("T")

__all__ = ["JUDGE", "Call", "Calls", "Report", "Say", "ScriptedModel", "Slow", "agent", "events", "outcomes", "play"]


@dataclass(frozen=True)
class Report:
    """What the agent answers with."""

    total: int
    note: str = ""


def agent(*tools: Tool, checker: TaskCompletionChecker | None = None) -> PromptTemplate[Report]:
    """Return a template with these tools."""
    return PromptTemplate[Report](
        ns="tests",
        key="agent",
        sections=[MarkdownSection(title="Task", key="task", template="Count.", tools=tools)],
        task_completion_checker=checker,
    )


async def play(
    template: PromptTemplate[Any],
    script: Iterable[Any] | Model,
    limits: Limits = Limits(),
    **options: Any,
) -> RunResult[Any]:
    """Run to the end with a test clock and without a store."""
    model = script if isinstance(script, Model) else ScriptedModel(script)
    given: dict[str, Any] = {"clock": TestClock(), "store": None, **options}
    return await arun(template, model=model, limits=limits, **given)


def events(result: RunResult[Any], type_: type[T]) -> list[T]:
    """Return the events of one type, in order."""
    return [envelope.event for envelope in result.session.log if isinstance(envelope.event, type_)]


def outcomes(result: RunResult[Any]) -> list[tuple[str, str]]:
    """Return name and outcome of every tool attempt, in order."""
    return [(invoked.name, invoked.outcome) for invoked in events(result, ToolInvoked)]


class Slow(ScriptedModel):
    """Answers those that have tools; keeps the others waiting, and takes a moment to close the connection."""

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Answer, or wait."""
        if request.tools:
            return await super().turn(request)
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.004)
        raise AssertionError("nobody waits so long")


JUDGE = PromptTemplate[str](ns="tests", key="judge", sections=[MarkdownSection("Judge", "judge", "Judge.")])
