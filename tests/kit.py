"""What many tests need: a small agent, scripted models, models that fail, checkers that act.

Fixtures stand in `tests/conftest.py`; what one folder needs alone stands in its own ``support.py``.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.run import arun
from watchkeeper.children.child import Children, children_of
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ProviderError, ProviderFault, StoreError
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import Model, ModelReply, ModelRequest
from watchkeeper.prompt.completion import TaskCompletionChecker, TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import ModelSwitched
from watchkeeper.runtime.result import RunResult
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import Tool, tool

T = TypeVar("T")

__all__ = [
    "ANSWER",
    "JUDGE",
    "Call",
    "Calls",
    "FullDisk",
    "Inside",
    "Panic",
    "Report",
    "Say",
    "ScriptedModel",
    "Slow",
    "agent",
    "always_down",
    "busy_seconds",
    "answers",
    "children",
    "collect_garbage",
    "down",
    "events",
    "inside",
    "left_of",
    "named",
    "outcomes",
    "play",
    "question",
    "reason",
    "step",
    "switches",
    "tool_texts",
]


# --- an agent, and what became of it ----------------------------------------------------------------------------------


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


@tool
async def step() -> str:
    """Take a step."""
    return "ok"


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


def reason(result: RunResult[Any]) -> str:
    """Return why a run was stopped."""
    assert result.stop is not None
    return str(result.stop.reason)


def switches(result: RunResult[Any]) -> list[tuple[int, str, str, str]]:
    """Return turn, old model, new model and reason of every switch."""
    return [(each.turn, each.from_model, each.to_model, each.reason) for each in events(result, ModelSwitched)]


def tool_texts(model: ScriptedModel) -> list[str]:
    """Return what the model was told by tools in its last request, in order."""
    return [message.text for message in model.requests[-1].transcript if isinstance(message, ToolMessage)]


# --- models -----------------------------------------------------------------------------------------------------------


def named(name: str, script: Iterable[Any] | Callable[[ModelRequest], Any], **facts: Any) -> ScriptedModel:
    """Return a model ``of-NAME:NAME``."""
    made: Any = script
    return ScriptedModel(made, name=name, provider=facts.pop("provider", f"of-{name}"), **facts)


def down(
    fault: ProviderFault = "overloaded", retry_after: float | None = None, *, billed: bool = False
) -> ProviderError:
    """Return the error of a provider that is down."""
    error = ProviderError(f"it is {fault}", fault=fault, provider="p", billed=billed)
    error.retry_after = retry_after
    return error


def always_down(name: str, fault: ProviderFault = "overloaded", **facts: Any) -> ScriptedModel:
    """Return a model that is down for good."""
    return named(name, lambda _: down(fault), **facts)


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


class Panic(BaseException):
    """Stands for what extensions written in Rust raise: no Exception, and no end of the program."""


# --- inside a run -----------------------------------------------------------------------------------------------------

JUDGE = PromptTemplate[str](ns="tests", key="judge", sections=[MarkdownSection("Judge", "judge", "Judge.")])

ANSWER = '{"total": 1}'


@dataclass
class Inside:
    """A checker that does something else; what it raises it keeps."""

    act: Callable[[TaskCompletionContext], Awaitable[Any]]
    said: list[Any] = field(default_factory=list[Any])
    raised: list[BaseException] = field(default_factory=list[BaseException])
    asks_model: bool = False

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Do it."""
        try:
            self.said.append(await self.act(context))
        except BaseException as error:
            self.raised.append(error)
            raise
        return TaskCompletionResult.ok("done")


async def inside(
    act: Callable[[TaskCompletionContext], Awaitable[Any]],
    script: Iterable[Any] | Any,
    limits: Limits = Limits(),
    *,
    asks_model: bool = False,
    tools: Iterable[Tool] = (),
    **options: Any,
) -> tuple[RunResult[Any], Inside]:
    """Run an agent that answers with the first step of the script; ``act`` happens while its answer is checked."""
    checker = Inside(act, asks_model=asks_model)
    result = await play(agent(*tools, checker=checker), script, limits, **options)
    return result, checker


def answers(_: ModelRequest) -> str:
    """Answer as the agent does, whoever asks."""
    return ANSWER


def children(context: TaskCompletionContext) -> Children:
    """Return what starts children of the run that is going on."""
    found = children_of(context.session)
    assert found is not None
    return found


def question(text: str = "What do you think?", *, key: str = "question", tools: Iterable[Tool] = ()) -> Prompt[str]:
    """Return a prompt that is answered in plain text."""
    section = MarkdownSection(title="Question", key="question", template=text, tools=tuple(tools))
    return Prompt(PromptTemplate[str](ns="tests", key=key, sections=(section,)))


# --- what takes long --------------------------------------------------------------------------------------------------


def busy_seconds(act: Callable[[], object]) -> float:
    """Return for how long an act keeps a processor busy; other threads and the collector do not count."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        began = time.thread_time()
        act()
        return time.thread_time() - began
    finally:
        if was_on:
            gc.enable()


# --- what is left behind ----------------------------------------------------------------------------------------------


def collect_garbage() -> None:
    """Collect what nothing reaches any more.

    `gc.collect` returns without doing anything while another thread, for example that of a fake server, is in the
    middle of a collection. No new one begins here until one has run in this thread.
    """
    here = threading.get_ident()
    ran: set[int] = set()

    def note(phase: str, info: object) -> None:
        if phase == "stop":
            ran.add(threading.get_ident())

    was_on = gc.isenabled()
    gc.disable()
    gc.callbacks.append(note)
    try:
        while here not in ran:
            gc.collect()
    finally:
        gc.callbacks.remove(note)
        if was_on:
            gc.enable()


def left_of(references: Iterable[weakref.ref[Any]]) -> int:
    """Return how many are still there, once other threads have had time to let go of what they were given.

    A worker thread answers a moment before it drops what it has worked with.
    """
    tick, known = threading.Event(), list(references)
    for _ in range(600):
        collect_garbage()
        known = [reference for reference in known if reference() is not None]
        if not known:
            break
        tick.wait(0.05)
    return len(known)


class FullDisk(RunStore):
    """A store that can be made to fail, as a full disk does, and to work again."""

    failures: float = 0

    def append(self, batch: Sequence[Any]) -> None:
        """Write a batch, unless the disk is full."""
        if self.failures > 0:
            self.failures -= 1
            raise StoreError(f"{len(batch)} events could not be written to {self.path}: disk is full")
        super().append(batch)
