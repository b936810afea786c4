"""Code inside a run that wants more than is its own: of the verdict's share, of a budget, of time."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

from tests.judging.support import question
from tests.runtime.support import Call, ScriptedModel
from tests.subagents.support import DIG, dispatching, parent_template, task
from watchkeeper.app.run import arun
from watchkeeper.children.child import ChildTask, children_of
from watchkeeper.core.errors import Stop
from watchkeeper.core.limits import Limits, Verdict
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.workers import run_in_worker
from watchkeeper.judging.evaluator import NestedEvaluator
from watchkeeper.loop.adapter import Adapter
from watchkeeper.prompt.completion import TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.events import ChildKind, RunEnded
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.session import Session
from watchkeeper.subagents.payloads import PromptRegistry
from watchkeeper.subagents.section import PromptSubagentToolsSection
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.tool import tool


class Judge:
    """Asks a model for the last word."""

    asks_model = True

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        stop = await ask(context.session, "verdict")
        return TaskCompletionResult.ok() if stop is None else TaskCompletionResult.unverified(stop.message)


async def ask(session: Session, kind: ChildKind) -> Stop | None:
    children = children_of(session)
    assert children is not None
    return (await children.start(ChildTask(question(), kind, Limits(deadline=None, landing=None)))).result.stop


async def spent_by_a_tool(kind: ChildKind) -> tuple[int, str]:
    """Return what a tool can have with as many children of this kind as there may be, and how the run stands then."""
    spent: list[int] = []

    @tool
    async def spend(*, context: ToolContext) -> str:
        """Ask until nothing is left."""
        while await ask(context.session, kind) is None:
            pass
        assert context.budget is not None
        spent.append(context.budget.tokens_used)
        return "spent"

    section = MarkdownSection(title="Task", key="task", template="Work.", tools=[spend])
    template = PromptTemplate[str](ns="tests", key="agent", sections=[section], task_completion_checker=Judge())
    model = ScriptedModel([Call("spend", {}), *["fine"] * 500])
    limits = Limits(max_total_tokens=40_000, verdict=Verdict(share=0.3))
    result = await arun(template, model=model, limits=limits, store=None)
    return spent[0], result.completion


async def test_what_is_kept_for_the_verdict_is_not_had_by_calling_oneself_a_verdict() -> None:
    as_verdict, as_evaluation = await spent_by_a_tool("verdict"), await spent_by_a_tool("evaluation")
    assert as_verdict == as_evaluation
    assert as_verdict[1] == "verified"


class Lingering(ScriptedModel):
    """Takes its time to break off: longer than the gate waits for it."""

    async def turn(self, request: ModelRequest) -> ModelReply:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.03)
        return await super().turn(request)


class Asks:
    """Has a model judge that never answers."""

    asks_model = True

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        nested = context.create_nested_context()
        evaluator = NestedEvaluator(Adapter(Lingering([])), prompt=question(), context=nested)
        await evaluator.evaluate_async()
        return TaskCompletionResult.ok()


def booked(result: RunResult[Any]) -> tuple[int, int]:
    """Return how many tokens stand in a result and on its log."""
    ends = [envelope.event for envelope in result.session.log if isinstance(envelope.event, RunEnded)]
    return result.usage.tokens.output_tokens, ends[-1].usage.tokens.output_tokens


async def test_a_judge_that_was_cut_off_is_booked_in_the_result() -> None:
    section = MarkdownSection(title="Task", key="task", template="Work.")
    template = PromptTemplate[str](ns="tests", key="agent", sections=[section], task_completion_checker=Asks())
    limits = Limits(deadline=timedelta(milliseconds=150))
    result = await arun(template, model=ScriptedModel(["done"]), limits=limits, store=None)
    assert result.completion == "unverified"
    assert booked(result) == (20 + 16_384, 20 + 16_384)


async def test_all_of_several_children_that_an_abort_cut_off_are_booked_in_the_result() -> None:
    begun: list[Session] = []
    all_begun = threading.Event()

    def count(child: Session) -> None:
        begun.append(child)
        if len(begun) == 3:
            all_begun.set()

    section = PromptSubagentToolsSection(PromptRegistry(DIG), model=Lingering([], name="child"), hydrate=count)
    model = ScriptedModel([dispatching(task(), task(), task()), "done"])
    running = asyncio.ensure_future(arun(parent_template(section), model=model, store=None))
    await run_in_worker(all_begun.wait, 10)
    await asyncio.sleep(0.02)
    parent = begun[0].parent
    assert parent is not None
    children = children_of(parent)
    assert children is not None
    children.family.scope.gate.abort("enough")
    result = await running
    assert result.stop is not None
    assert result.stop.reason == "aborted"
    assert booked(result) == (20 + 3 * 16_384, 20 + 3 * 16_384)
