"""Public usage, for type checkers: mypy and pyright (strict) must infer what stands here, and refuse nothing.

Nothing in this file runs; `assert_type` is checked by the checkers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, assert_type

from watchkeeper import (
    Adapter,
    Agent,
    Deadline,
    ExecutionContext,
    FileOutputChecker,
    Landing,
    Limits,
    ManyResult,
    MarkdownSection,
    Model,
    PredicateChecker,
    Prompt,
    PromptTemplate,
    RunResult,
    Session,
    Stop,
    TaskCompletionResult,
    Tool,
    ToolContext,
    ToolInvoked,
    ToolResult,
    Usage,
    arun,
    arun_many,
    contained,
    run,
    run_many,
    tool,
)
from watchkeeper.judging import CommandChecker, CompositeChecker, TaskCompletionChecker, TaskCompletionContext
from watchkeeper.prompt import PromptResponse, ProviderAdapter, RenderedPrompt, parse_output
from watchkeeper.subagents import PromptRegistry


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


@tool(timeout="30s", retries=2, parallel_safe=True, read_only=True)
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
    files, done = FileOutputChecker(["report.md"], on_error="closed"), PredicateChecker(is_done, "it is done")
    tests = CommandChecker(["pytest", "-q"], cwd=Path("sub"), timeout=timedelta(minutes=1))
    every: list[TaskCompletionChecker] = [files, done, tests, Checker()]
    for checker in (*every, CompositeChecker(every), CompositeChecker([CompositeChecker([done]), Checker()], "any")):
        PromptTemplate[Report](
            ns="a", key="b", sections=[section], task_completion_checker=checker, completion_rounds=5
        )


def a_verdict_is_one_of_four_words(result: RunResult[Report]) -> None:
    assert_type(result.completion, Literal["verified", "rejected", "unverified", "unchecked"])


def a_registry_forgets_types(registry: PromptRegistry, template: PromptTemplate[Report]) -> None:
    registry.register(template)
    assert_type(registry.get("support", "triage"), Prompt[Any])


def limits_take_friendly_forms() -> None:
    Limits(deadline="30m", max_cost_usd="$2", max_total_tokens="500k", max_turns=200)
    Limits(deadline=datetime.now(UTC), max_cost_usd=Decimal("0.5"), max_steps=None, landing=Landing(512))
    Limits(deadline=Deadline.after("1h"), max_total_tokens=None, landing=None)


def a_run_answers_in_the_type_of_its_prompt(prompt: Prompt[Report], template: PromptTemplate[Report]) -> None:
    result = run(prompt, model="openai:gpt-5-mini", limits=Limits(max_cost_usd=2))
    assert_type(result, RunResult[Report])
    assert_type(result.output, Report | None)
    assert_type(result.partial, Report | str | None)
    assert_type(result.stop, Stop | None)
    assert_type(result.usage, Usage)
    assert_type(result.cost, Decimal | None)
    assert_type(run(template, model="local", fallback=("openai:gpt-5-mini",), breakers=None), RunResult[Report])
    assert_type(result.answered_by, tuple[str, ...])


async def so_does_an_async_one(prompt: Prompt[Report], model: Model) -> None:
    assert_type(await arun(prompt, model=model, session=Session()), RunResult[Report])
    assert_type(await arun_many(prompt, [Inbox("a"), Inbox("b")], model=model), ManyResult[Report])


def a_run_over_many_items_has_one_result_for_each(prompt: Prompt[Report]) -> None:
    many = run_many(prompt, [Inbox("a"), Inbox("b")], model="local", concurrency=2)
    assert_type(many, ManyResult[Report])
    assert_type(many.results[0].output, Report | None)


def an_agent_answers_in_its_output_type() -> None:
    agent = Agent(model="local", instructions="Be brief.", output_type=Report, tools=(look,))
    assert_type(agent, Agent[Report])
    assert_type(agent.run("Count."), RunResult[Report])
    assert_type(agent.run("Count.", session=Session(), store=None), RunResult[Report])
    assert_type(agent.run_many(["Count."]), ManyResult[Report])
    assert_type(agent.run_many(["Count."]).unwrap(), tuple[Report, ...])


def an_agent_answers_in_text_by_default() -> None:
    agent = Agent("local", "Be brief.")
    assert_type(agent, Agent[str])
    assert_type(agent.run("Count.").output, str | None)


def the_runtimes_adapter_fits_the_protocol(model: Model) -> ProviderAdapter:
    return Adapter(model)


def a_session_gives_back_what_went_in(session: Session) -> None:
    assert_type(session[ToolInvoked].latest(), ToolInvoked | None)
    assert_type(session[Report].where(lambda report: report.total > 1), tuple[Report, ...])


@contained(max_cost_usd="$1", max_steps=20, timeout="5m")
def improve(text: str, times: int = 1) -> Report:
    return Report(len(text) * times)


@contained(limits=Limits(max_steps=20))
async def improve_later(text: str) -> Report:
    return Report(len(text))


async def containment() -> None:
    assert_type(improve("a", times=2), Report)
    assert_type(await improve_later("a"), Report)
    with contained(max_cost_usd=None) as gate:
        assert_type(gate, ExecutionContext)
    async with contained() as gate:
        assert_type(gate.usage, Usage)
