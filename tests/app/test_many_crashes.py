"""What one item raises, or does to its own task, ends that item; the job goes on, unless somebody ends the job."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.kit import JUDGE, Slow
from watchkeeper.adapters.scripted import Call, ScriptedModel
from watchkeeper.app.run import arun_many, run_many
from watchkeeper.children.child import ChildTask, children_of
from watchkeeper.core.limits import Limits
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.workers import BreakOut
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.result import ManyResult
from watchkeeper.runtime.result import transcript_of as real_transcript_of
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.tool import Tool, tool


class Panic(BaseException):
    """Stands for what a Rust extension raises."""


@dataclass(frozen=True)
class Item:
    """What one run is about."""

    number: int


ITEMS = [Item(number) for number in range(6)]
BAD = 2


def template(*tools: Tool) -> PromptTemplate[str]:
    """Return an agent with these tools."""
    section = MarkdownSection("Task", "task", "Do item ${number}.", tools=tools)
    return PromptTemplate[str](ns="tests", key="many", params=(Item,), sections=[section])


def script(request: ModelRequest) -> Any:
    """Call the tool once where the item is the bad one."""
    opening: Any = request.transcript[0]
    bad = f"item {BAD}." in str(opening.text) and len(request.transcript) == 1
    return Call("look") if bad else "done"


def broken(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]) -> None:
    """Let the loop itself fail for the bad item."""
    count = iter(range(len(ITEMS)))

    def transcript_of(log: Any) -> Any:
        if next(count) == BAD:
            fail()
        return real_transcript_of(log)

    monkeypatch.setattr("watchkeeper.loop.run.transcript_of", transcript_of)


def many(model: Any = None, *tools: Tool, **options: Any) -> ManyResult[str]:
    """Run all items, one after the other."""
    given: dict[str, Any] = {"store": None, "concurrency": 1, **options}
    return run_many(template(*tools), ITEMS, model=model or ScriptedModel(script), **given)


@pytest.mark.spec("FR-151")
@pytest.mark.parametrize(
    "error",
    [Panic("rust"), BaseExceptionGroup("rust", [Panic()]), asyncio.CancelledError("rust")],
    ids=lambda error: type(error).__name__,
)
def test_whatever_leaves_one_item_is_its_failure(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail() -> None:
        raise error

    broken(monkeypatch, fail)
    ends = many()
    assert [result.ok for result in ends.results] == [number != BAD for number in range(6)]
    stop = ends.results[BAD].stop
    assert stop is not None
    assert (stop.reason, stop.message) == ("error", f"The item failed: {type(error).__name__}: {error}")
    assert ends.results[BAD].error is error
    assert ends.stop is None


async def test_what_passes_everybody_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def fail() -> None:
        seen.append(True)
        raise BreakOut("block")

    broken(monkeypatch, fail)
    with pytest.raises(BaseExceptionGroup) as raised:
        await arun_many(template(), ITEMS, model=ScriptedModel(script), store=None, concurrency=1)
    assert raised.group_contains(BreakOut)
    assert seen == [True]


def test_a_tool_that_cancels_the_task_it_runs_in_costs_its_own_item_only() -> None:
    @tool
    async def look() -> str:
        """Look."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "unseen"

    ends = many(None, look)
    assert [result.ok for result in ends.results] == [number != BAD for number in range(6)]


async def test_cancelling_the_job_is_raised() -> None:
    begun = asyncio.Event()

    class Hanging(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            begun.set()
            await asyncio.Event().wait()
            return await super().turn(request)

    task = asyncio.ensure_future(arun_many(template(), ITEMS, model=Hanging(script), store=None))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_tools_and_their_children_that_time_out_together_lose_no_item() -> None:
    @tool(timeout=timedelta(milliseconds=40))
    async def look(*, context: ToolContext) -> str:
        """Ask a judge."""
        children = children_of(context.session)
        assert children is not None
        limits = Limits(deadline=timedelta(milliseconds=43), landing=None)
        child = await children.start(ChildTask(Prompt(JUDGE), "evaluation", limits))
        return child.result.sentence()

    def asks(request: ModelRequest) -> Any:
        return Call("look") if len(request.transcript) == 1 else "done"

    items = [Item(number) for number in range(50)]
    ends = run_many(template(look), items, model=Slow(asks), store=None, concurrency=25)
    assert Counter(result.sentence().split(":")[0] for result in ends.results) == {"Done": 50}
