"""Public usage, for type checkers: mypy and pyright (strict) must infer what stands here, and refuse nothing.

Nothing in this file runs; `assert_type` is checked by the checkers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, assert_type

from watchkeeper.core.deadline import Deadline
from watchkeeper.core.limits import Limits
from watchkeeper.prompt.adapter import PromptResponse, ProviderAdapter
from watchkeeper.prompt.completion import (
    FileOutputChecker,
    PredicateChecker,
    TaskCompletionContext,
    TaskCompletionResult,
)
from watchkeeper.prompt.output import parse_output
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.registry import PromptRegistry
from watchkeeper.prompt.rendered import RenderedPrompt
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.result import ToolResult
from watchkeeper.tools.tool import Tool, tool


@dataclass(frozen=True)
class Inbox:
    folder: str
    urgent: bool = False


@dataclass(frozen=True)
class Report:
    total: int


@tool
def look(params: Inbox, *, context: ToolContext) -> ToolResult[str]:
    """Look into a folder."""
    return ToolResult.ok(f"{params.folder} {context.call_id}")


@tool(timeout="30s", retries=2, parallel_safe=True)
async def look_later(folder: str, depth: int = 1) -> str:
    """Look into a folder, slowly."""
    return folder * depth


def is_urgent(inbox: Inbox) -> bool:
    return inbox.urgent


def tools_are_tools() -> None:
    assert_type(look, Tool)
    assert_type(look_later, Tool)


def a_template_fixes_the_type_of_the_answer() -> None:
    section = MarkdownSection(
        title="Task",
        key="task",
        template="Triage ${folder}.",
        tools=[look, look_later],
        children=[MarkdownSection("Rush", "rush", "Hurry.", enabled=is_urgent)],
    )
    typed = PromptTemplate[Report](ns="support", key="triage", sections=[section], params=[Inbox])
    assert_type(typed, PromptTemplate[Report])
    assert_type(typed.output_type, type[Report])
    assert_type(Prompt(typed), Prompt[Report])
    assert_type(Prompt(typed).bind(Inbox("x")).with_variables(folder="y"), Prompt[Report])
    assert_type(Prompt(typed).render(), RenderedPrompt[Report])
    assert_type(Prompt(typed).render(deadline=datetime.now(UTC)).deadline, Deadline | None)

    lists = PromptTemplate[list[Report]](ns="support", key="many", sections=(section,))
    assert_type(Prompt(lists).render().output_type, type[list[Report]])

    by_argument = PromptTemplate(ns="support", key="triage", sections=[section], output_type=Report)
    assert_type(by_argument, PromptTemplate[Report])

    plain = PromptTemplate(ns="support", key="plain", sections=[section])
    assert_type(plain, PromptTemplate[str])
    assert_type(Prompt(plain).output_type, type[str])


def an_adapter_answers_in_that_type(adapter: ProviderAdapter, prompt: Prompt[Report]) -> None:
    response = adapter.evaluate(prompt, Inbox("x"), deadline=datetime.now(UTC))
    assert_type(response, PromptResponse[Report])
    assert_type(response.output, Report | None)
    assert_type(response.cost, Decimal | None)


async def an_adapter_answers_later(adapter: ProviderAdapter, prompt: Prompt[list[Report]]) -> None:
    assert_type(await adapter.evaluate_async(prompt), PromptResponse[list[Report]])


def text_becomes_a_value(text: str) -> None:
    assert_type(parse_output(text, Report), Report)
    assert_type(parse_output(text, list[Report]), list[Report])
    assert_type(parse_output(text, str), str)


class Checker:
    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        return TaskCompletionResult.ok(str(context.tentative_output))


async def is_done(context: TaskCompletionContext) -> bool:
    return context.filesystem is not None


def every_kind_of_checker_fits(section: MarkdownSection) -> None:
    for checker in (FileOutputChecker(["report.md"]), PredicateChecker(is_done, "it is done"), Checker()):
        PromptTemplate[Report](ns="a", key="b", sections=[section], task_completion_checker=checker)


def a_registry_forgets_types(registry: PromptRegistry, template: PromptTemplate[Report]) -> None:
    registry.register(template)
    assert_type(registry.get("support", "triage"), Prompt[Any])


def limits_take_friendly_forms() -> None:
    Limits(deadline="30m", max_cost_usd="$2", max_total_tokens="500k", max_turns=200)
    Limits(deadline=datetime.now(UTC), max_cost_usd=Decimal("0.5"), max_steps=None)
