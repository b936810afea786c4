"""Several runs on one session: what is started inside one of them is counted there, and nothing of it stays."""

from __future__ import annotations

import asyncio

from tests.kit import Call, ScriptedModel, question
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.run import arun
from watchkeeper.children.child import ChildTask, children_of
from watchkeeper.children.innermost import is_inside
from watchkeeper.loop.run import children_outside_runs
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.plan import PricedModel
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.tool import Tool, tool


def template(offered: Tool) -> PromptTemplate[str]:
    section = MarkdownSection(title="Task", key="task", template="Work.", tools=[offered])
    return PromptTemplate[str](ns="tests", key=offered.name, sections=[section])


async def ask_below(context: ToolContext) -> None:
    children = children_of(context.session)
    assert children is not None
    run = await children.start(ChildTask(question(), "evaluation", Limits(deadline=None)))
    assert run.result.ok


async def test_each_of_two_runs_on_one_session_pays_for_its_own_children_whichever_ends_first() -> None:
    session = Session()
    first_runs, both_run, first_is_over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool
    async def early(*, context: ToolContext) -> str:
        """Ask while both runs go on."""
        first_runs.set()
        await both_run.wait()
        await ask_below(context)
        return "asked"

    @tool
    async def late(*, context: ToolContext) -> str:
        """Ask when the run that began first is over."""
        both_run.set()
        await first_is_over.wait()
        await ask_below(context)
        await ask_below(context)
        return "asked"

    async def first() -> int:
        model = ScriptedModel([Call("early", {}), "fine", "done"])
        result = await arun(template(early), model=model, session=session, store=None)
        first_is_over.set()
        return result.usage.model_calls

    async def second() -> int:
        await first_runs.wait()
        model = ScriptedModel([Call("late", {}), "fine", "fine", "done"])
        result = await arun(template(late), model=model, session=session, store=None)
        return result.usage.model_calls

    assert tuple(await asyncio.gather(first(), second())) == (3, 4)
    assert session.host is None
    assert children_of(session) is None


async def test_code_inside_a_run_finds_that_run_and_others_find_the_newest() -> None:
    session, model = Session(), PricedModel(ScriptedModel([]), None)
    with children_outside_runs(session, model=model) as first, children_outside_runs(session, model=model) as second:
        one, two = (children.family.scope.run_context.run_id for children in (first, second))
        outer, inner = first.attached(), second.attached()
        with outer:
            assert (children_of(session), is_inside(one), is_inside(two)) == (first, True, False)
            with inner:
                assert (children_of(session.branch()), is_inside(two)) == (second, True)
            assert children_of(session) is first
        assert (children_of(session), is_inside(one)) == (None, False)
