"""What a child run costs in process, in ms of CPU, and that nothing of it stays.

"Child" is starting a child run from the parent's snapshot, one turn of a scripted model, and closing it; "dispatch" is
the same through `dispatch_subagent`, with its checks, its overlay of files and its result. "Events" is the length of
the parent's log: the figures must be flat in it. Figures are the lower quartile of batches of CPU time. Then 1,000
children one after the other: none of their sessions is left, and the memory of the process stays what it was. Run with
``python -m benchmarks.children``; exits 1 if a target is missed.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import statistics
import sys
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, ScriptedModel, Step
from watchkeeper.app.run import arun
from watchkeeper.children.child import Children, ChildTask, children_of
from watchkeeper.core.messages import UserMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.session.session import Session
from watchkeeper.subagents.payloads import DispatchSubagent, PromptRegistry
from watchkeeper.subagents.section import PromptSubagentToolsSection
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.tool import Tool, tool

EVENTS = (10, 10_000)
BATCH, BATCHES = 20, 15
MANY = 1_000
CHILD_MS, FLAT, GROWTH = 1.5, 1.25, 0.05

LIMITS = Limits(max_total_tokens=10**12, max_steps=10**9, max_tool_calls=10**9, max_cost_usd=10**6, max_turns=10**6)
CHILD_LIMITS = Limits(deadline="1m", max_total_tokens=10_000, max_cost_usd=1)
PROMPT = PromptTemplate[str](
    ns="bench", key="child", sections=[MarkdownSection("Task", "task", "Answer.\n\n${instructions}")]
)
TASK = DispatchSubagent("ad_hoc", "bench", "child", "Answer in one word.")

missed: list[str] = []
figures: dict[tuple[str, int], float] = {}


@dataclass(frozen=True)
class Noted:
    """What fills the parent's log."""

    number: int


def answer(request: ModelRequest) -> Step:
    """Let the parent call its tool once; every other turn is an answer."""
    first = next(message for message in request.transcript if isinstance(message, UserMessage))
    if "Measure." in first.text and len(request.transcript) == 1:
        return Call("measure")
    return "done"


def show(what: str, figure: float, target: float, unit: str) -> None:
    """Print a figure, and remember it if it misses its target."""
    late = figure > target
    if late:
        missed.append(what)
    print(f"  {what:<58} {figure:8.3f} {unit}   (at most {target:g}){'   MISSED' if late else ''}")


async def cpu(work: Callable[[], Awaitable[object]]) -> float:
    """Return ms of CPU per call."""
    found: list[float] = []
    await work()
    for _ in range(BATCHES):
        began = time.process_time()
        for _ in range(BATCH):
            await work()
        found.append((time.process_time() - began) / BATCH * 1e3)
    return statistics.quantiles(found, n=4)[0]


def resident() -> int:
    """Return the memory of the process in KiB: what it has now where the system tells, else the most it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize() // 1024


async def within_run(events: int, body: Callable[[ToolContext], Awaitable[None]]) -> None:
    """Run ``body`` as the tool of an agent whose session has a log of so many events."""
    session = Session()
    for number in range(events):
        session.dispatch(Noted(number))

    @tool(name="measure", description="Measure.")
    async def measure(*, context: ToolContext) -> str:
        await body(context)
        return "measured"

    section = PromptSubagentToolsSection(PromptRegistry(PROMPT), limits=CHILD_LIMITS)
    task = MarkdownSection("Task", "task", "Measure.", tools=(measure,))
    template = PromptTemplate[str](ns="bench", key="parent", sections=[task, section])
    files = MemoryFilesystem()
    result = await arun(
        template, model=ScriptedModel(answer), limits=LIMITS, session=session, store=None, filesystem=files
    )
    if result.stop is not None:
        raise RuntimeError(result.sentence())


def children_here(context: ToolContext) -> Children:
    """Return what starts children of the run that calls the tool."""
    children = children_of(context.session)
    if children is None:
        raise RuntimeError("there is no run")
    return children


def dispatch_tool(children: Children) -> Tool:
    """Return the tool as the run has it."""
    return next(each for each in children.family.tools if each.name == "dispatch_subagent")


async def start_one(children: Children, context: ToolContext) -> weakref.ref[Session]:
    """Start one child from the snapshot, run its one turn, close it; return what shows whether it is gone."""
    task = ChildTask(
        prompt=Prompt(PROMPT).with_variables(instructions="Answer in one word."),
        kind="subagent",
        limits=CHILD_LIMITS,
        snapshot=context.session.snapshot(),
        resources=children.family.scope.resources.for_run(),
    )
    run = await children.start(task)
    if run.result.stop is not None:
        raise RuntimeError(run.result.sentence())
    return weakref.ref(run.result.session)


async def measure_costs(context: ToolContext, events: int) -> None:
    """Measure a child and a dispatch."""
    children = children_here(context)
    dispatch = dispatch_tool(children)
    child = await cpu(lambda: start_one(children, context))
    whole = await cpu(lambda: dispatch.handler(TASK, context=context))
    figures["child", events] = min(child, figures.get(("child", events), child))
    figures["dispatch", events] = min(whole, figures.get(("dispatch", events), whole))


async def measure_leftovers(context: ToolContext) -> None:
    """Start many children, after some to warm up; look for what stays of them."""
    children = children_here(context)
    dispatch = dispatch_tool(children)
    parent = context.session.origin
    for _ in range(MANY // 4):
        await dispatch.handler(TASK, context=context)
    gc.collect()
    before, logged = resident(), len(parent.log)
    sessions = [await start_one(children, context) for _ in range(MANY // 2)]
    for _ in range(MANY // 2):
        await dispatch.handler(TASK, context=context)
    gc.collect()
    alive = sum(session() is not None for session in sessions)
    growth = resident() / before - 1
    show(f"sessions left of {MANY:,} children", alive + len(parent.children), 0, "")
    show(f"events on the parent's log per child, of {MANY:,}", (len(parent.log) - logged) / MANY, 2, "")
    show("growth of resident memory", growth * 100, GROWTH * 100, "%")


def main() -> int:
    """Print the figures; return 1 if one missed its target."""
    print("A child run: start, one scripted turn, close")
    for events in EVENTS * 3:  # in turns, because what else the machine does comes and goes
        gc.collect()

        async def costs(context: ToolContext, events: int = events) -> None:
            await measure_costs(context, events)

        asyncio.run(within_run(events, costs))
    for events in EVENTS:
        for what in ("child", "dispatch"):
            show(f"{what}, parent's log of {events:,} events", figures[what, events], CHILD_MS, "ms")
    for what in ("child", "dispatch"):
        show(f"{what}, long log against short", figures[what, EVENTS[1]] / figures[what, EVENTS[0]], FLAT, "times")
    print(f"{MANY:,} children, one after the other")
    asyncio.run(within_run(10, measure_leftovers))
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
