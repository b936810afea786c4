"""Code inside a run that wants more than is its own: of the verdict's share, of a budget, of time."""

from __future__ import annotations

from tests.judging.support import question
from tests.runtime.support import Call, ScriptedModel
from watchkeeper.app.run import arun
from watchkeeper.core.limits import Limits, Verdict
from watchkeeper.core.stop import Stop
from watchkeeper.prompt.completion import TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.child import ChildTask, children_of
from watchkeeper.runtime.child_events import ChildKind
from watchkeeper.session.session import Session
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
