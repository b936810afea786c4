"""A parent that dispatches and children that are scripted apart from it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.kit import left_of
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Script, ScriptedModel
from watchkeeper.app.run import arun
from watchkeeper.core.clock import TestClock
from watchkeeper.core.messages import ToolMessage
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import ChildEnded, ChildStarted
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.session import Session
from watchkeeper.subagents.dispatch import SubagentSettings
from watchkeeper.subagents.payloads import DispatchSubagent, DispatchSubagents, PromptRegistry
from watchkeeper.subagents.section import PromptSubagentToolsSection
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import Tool

T = TypeVar("T")

DIG = PromptTemplate[str](ns="research", key="dig", sections=[MarkdownSection("Dig", "dig", "Dig for the answer.")])


@dataclass(frozen=True)
class Note:
    """An item of the user's own in a session."""

    text: str


@dataclass(frozen=True)
class Finding:
    """A structured answer of a child."""

    summary: str
    sources: list[str] = field(default_factory=list[str])


def task(instructions: str = "Find it.", **fields: Any) -> DispatchSubagent:
    """Return a task for `DIG`."""
    values: dict[str, Any] = {"mode": "ad_hoc", "prompt_ns": "research", "prompt_key": "dig", **fields}
    return DispatchSubagent(instructions=instructions, **values)


def limited(limits: Limits) -> dict[str, SubagentSettings]:
    """Return settings that give each child these limits."""
    return {"research/dig": SubagentSettings(limits=limits)}


def dispatching(*tasks: DispatchSubagent) -> Call:
    """Return the call that dispatches one task, or several at once."""
    if len(tasks) == 1:
        return Call("dispatch_subagent", tasks[0])
    return Call("dispatch_subagents", DispatchSubagents(tasks))


def child_model(script: Script, name: str = "child", **details: Any) -> ScriptedModel:
    """Return a model for children, with a name of its own."""
    return ScriptedModel(script, name=name, **details)


class Watched:
    """Sees every child's session, and whether it is still there."""

    def __init__(self) -> None:
        self.sessions: list[weakref.ref[Session]] = []

    def __call__(self, session: Session) -> None:
        self.sessions.append(weakref.ref(session))

    async def alive(self) -> int:
        """Return how many sessions are left, once the loop has done what it was about to do."""
        await asyncio.sleep(0)
        return left_of(self.sessions)


@dataclass
class Played:
    """A parent's run that dispatched.

    Attributes:
        result: How it ended.
        parent: Its model.
    """

    result: RunResult[Any]
    parent: ScriptedModel

    def events(self, type_: type[T]) -> list[T]:
        """Return the events of one type on the parent's log."""
        return [envelope.event for envelope in self.result.session.log if isinstance(envelope.event, type_)]

    @property
    def calls(self) -> list[ToolInvoked]:
        """Every tool call of the parent."""
        return self.events(ToolInvoked)

    @property
    def value(self) -> Any:
        """What the newest tool call returned to programs."""
        return self.calls[-1].result.value

    @property
    def said(self) -> str:
        """What the parent's model was told by the newest tool call."""
        return results(self.parent)[-1]

    @property
    def started(self) -> list[ChildStarted]:
        """The starts of its children."""
        return self.events(ChildStarted)

    @property
    def ended(self) -> list[ChildEnded]:
        """The ends of its children."""
        return self.events(ChildEnded)


def parent_template(
    section: MarkdownSection, tools: Sequence[Tool] = (), *, ns: str = "tests", key: str = "parent"
) -> PromptTemplate[str]:
    """Return an agent that may dispatch."""
    return PromptTemplate[str](
        ns=ns, key=key, sections=[MarkdownSection("Task", "task", "Work.", tools=tools), section]
    )


async def play(
    *steps: Any,
    children: Script | ScriptedModel = ("found",),
    prompts: Iterable[Prompt[Any] | PromptTemplate[Any]] = (DIG,),
    tools: Sequence[Tool] = (),
    limits: Limits = Limits(),
    hydrate: Callable[[Session], object] | None = None,
    options: dict[str, Any] | None = None,
    **section: Any,
) -> Played:
    """Run a parent that takes these steps and then says "done".

    Args:
        steps: What the parent's model does.
        children: The script of all children.
        prompts: What may be dispatched.
        tools: The parent's own.
        limits: The parent's.
        hydrate: Prepares a child's session.
        options: Of the run.
        section: Of the section.
    """
    if "model" not in section:
        section["model"] = children if isinstance(children, ScriptedModel) else child_model(children)
    made = PromptSubagentToolsSection(PromptRegistry(*prompts), hydrate=hydrate, **section)
    parent = ScriptedModel([*steps, "done"])
    given: dict[str, Any] = {"clock": TestClock(), "store": None, **(options or {})}
    result = await arun(parent_template(made, tools), model=parent, limits=limits, **given)
    return Played(result, parent)


def texts(model: ScriptedModel, request: int = 0) -> list[str]:
    """Return the conversation of one request, as it stands now."""
    return [message.text for message in model.requests[request].transcript]


def results(model: ScriptedModel, request: int = -1) -> list[str]:
    """Return what a model was told by tools in the conversation of one request."""
    return [message.text for message in model.requests[request].transcript if isinstance(message, ToolMessage)]


def tool_names(model: ScriptedModel, request: int = 0) -> list[str]:
    """Return the tools that were on offer in one request."""
    return [each.name for each in model.requests[request].tools]
