"""An agent that is watched: observers that say what a function says, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.kit import Call, Report, Say, events
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import (
    ObserverConfig,
    ObserverContext,
    ObserverTrigger,
)
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.session.session import Session
from watchkeeper.tools.tool import Tool, tool
from watchkeeper.tools.values import ToolResult

ALWAYS = ObserverTrigger(on_every_call=True)


PATIENCE = 30.0


Look = Callable[[ObserverContext], Any]


@dataclass(frozen=True)
class Watcher:
    """Says what a function tells it to say."""

    look: Look = lambda context: Assessment("Watcher", f"seen {context.tool_call_count}")
    name: str = "Watcher"
    wanted: bool = True

    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        return self.wanted

    def observe(self, session: Session, *, context: ObserverContext) -> Any:
        return self.look(context)


@tool
def look(a: int = 0) -> str:
    """Look."""
    return f"saw {a}"


@tool
def fail(a: int = 0) -> ToolResult[str]:
    """Fail."""
    return ToolResult.error("no")


def watched(*observers: Any, tools: tuple[Tool, ...] = (look, fail), **fields: Any) -> PromptTemplate[Report]:
    """Return an agent with these observers; those without a configuration look at every call."""
    configs = [each if isinstance(each, ObserverConfig) else ObserverConfig(each, ALWAYS) for each in observers]
    sections = [MarkdownSection(title="Task", key="task", template="Look.", tools=tools)]
    return PromptTemplate[Report](ns="t", key="watched", sections=sections, observers=configs, **fields)


def looks(count: int, name: str = "look") -> list[Any]:
    """Return a script with so many tool calls, one a turn, and an answer."""
    return [*(Call(name, {"a": number}) for number in range(count)), Say(Report(count))]


def asked_at(result: Any) -> list[int]:
    """Return the calls after which somebody spoke or failed."""
    return [ran.call_index for ran in events(result, ObserversRan)]


def delivered(result: Any) -> list[ObserversRan]:
    """Return the looks after which the agent was told something."""
    return [ran for ran in events(result, ObserversRan) if ran.told]


def told(result: Any) -> list[str]:
    """Return what was appended for the agent."""
    return [ran.text for ran in delivered(result)]
