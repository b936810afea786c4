"""Dispatching: from a task that a model wrote to a child run, and back (seed: subagent-dispatch, "Execution Flow").

One task is one pass through the seven steps in `Dispatch.run`. The child starts from the parent's state as it is at
that moment, works with the parent's tools in a session, under ceilings and on files of its own, and hands back a
summary, its output and its artifacts. However it ends, nothing else of it reaches the parent, and nothing of it stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any, Final

from watchkeeper.core.errors import DispatchSubagentError, ToolValidationError
from watchkeeper.core.limits import Limits
from watchkeeper.core.model import Model
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.registry import PromptRegistry
from watchkeeper.runtime.child import Children, ChildTask, children_of
from watchkeeper.runtime.plan import PricedModel
from watchkeeper.session.session import Session
from watchkeeper.session.snapshot import Snapshot
from watchkeeper.subagents.handover import told
from watchkeeper.subagents.outcome import broken, collected, failure
from watchkeeper.subagents.payloads import (
    DispatchSubagent,
    DispatchSubagentResult,
    DispatchSubagents,
    DispatchSubagentsResult,
    SubagentOutcome,
)
from watchkeeper.subagents.rules import check_version, checked, checked_count, prompt_of
from watchkeeper.subagents.settings import SubagentSettings, allotted
from watchkeeper.subagents.workspace import ChildFiles, Workspace
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.result import ToolResult
from watchkeeper.tools.tool import Tool

ANSWERS: Final = (ToolValidationError, DispatchSubagentError)
"""What is worded for the model."""

CANCELLED: Final = "The subagent was cancelled before its work was done."


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """How a section dispatches.

    Attributes:
        registry: The prompts that may be dispatched.
        session: Whose state children start from; that of the run by default.
        every: What all children get.
        settings: What those of one prompt get, by ``ns/key``.
        share: How much of what the parent has left the children of a call get, where no limits are given.
        max_depth: How many subagents may stand inside each other.
        max_parallel: How many of one call run at once.
        cascade: Whether the snapshot takes along the sessions below.
    """

    registry: PromptRegistry
    session: Session | None = None
    every: SubagentSettings = field(default_factory=SubagentSettings)
    settings: Mapping[str, SubagentSettings] = field(default_factory=dict[str, SubagentSettings])
    share: float = 0.5
    max_depth: int = 1
    max_parallel: int = 4
    cascade: bool = False

    def of(self, prompt: Prompt[Any]) -> SubagentSettings:
        """Return what the children of a prompt get."""
        own = self.settings.get(f"{prompt.ns}/{prompt.key}")
        return self.every if own is None else own.over(self.every)


@dataclass(frozen=True, slots=True)
class Calling:
    """One call of a dispatch tool.

    Attributes:
        context: What the tool was given.
        children: What starts child runs below the run.
        workspace: The files of the call.
        limits: What each child gets that has none of its own.
    """

    context: ToolContext
    children: Children
    workspace: Workspace
    limits: Limits


class Dispatch:
    """The two tools of a section."""

    __slots__ = ("rules",)

    def __init__(self, rules: DispatchRules) -> None:
        """Dispatch as the rules say."""
        self.rules = rules

    async def one(self, params: DispatchSubagent, *, context: ToolContext) -> ToolResult[DispatchSubagentResult]:
        """Run one task.

        Raises:
            ToolValidationError: If the task cannot be: bad text, unknown or disabled prompt, another snapshot version.
            DispatchSubagentError: If the child was stopped, or could not run.
        """
        result = await self.run(params, self._calling(context, 1))
        return ToolResult.ok(result, result.message_summary)

    async def several(self, params: DispatchSubagents, *, context: ToolContext) -> ToolResult[DispatchSubagentsResult]:
        """Run several tasks side by side; each has an outcome of its own, whatever becomes of the others.

        Raises:
            ToolValidationError: If there are no tasks, or too many.
        """
        count = checked_count(params)
        calling = self._calling(context, count)
        slots = asyncio.Semaphore(self.rules.max_parallel)
        outcomes = [SubagentOutcome(error=CANCELLED)] * count

        async def run(place: int, task: DispatchSubagent) -> None:
            async with slots:
                try:
                    outcomes[place] = SubagentOutcome(await self.run(task, calling))
                except Exception as error:
                    said = error if isinstance(error, ANSWERS) else broken(f"{task.prompt_ns}/{task.prompt_key}", error)
                    outcomes[place] = SubagentOutcome(error=str(said))

        async with asyncio.TaskGroup() as group:
            for place, task in enumerate(params.tasks):
                group.create_task(run(place, task))
        message = "\n\n".join(map(_told, range(1, count + 1), params.tasks, outcomes))
        if not any(outcome.ok for outcome in outcomes):
            return ToolResult.error(message)
        return ToolResult.ok(DispatchSubagentsResult(tuple(outcomes)), message)

    async def run(self, task: DispatchSubagent, calling: Calling) -> DispatchSubagentResult:
        """Take one task from validation to its result.

        Raises:
            ToolValidationError: If the task cannot be; nothing was started.
            DispatchSubagentError: If the child was stopped, or could not run.
        """
        rules, context = self.rules, calling.context
        task = checked(task)
        prompt = prompt_of(task, rules.registry)
        snapshot = (rules.session or context.session).snapshot(cascade=rules.cascade)
        check_version(task, snapshot)
        files = calling.workspace.open(task.expected_artifacts)
        name = f"{task.prompt_ns}/{task.prompt_key}"
        try:
            run = await calling.children.start(self._child(task, prompt, snapshot, files, calling))
            if run.result.stop is not None or run.result.output is None:
                raise failure(name, run.result) from run.result.error
            return collected(task, run.result, snapshot, files)
        except (ToolValidationError, DispatchSubagentError):
            raise
        except Exception as error:
            raise broken(name, error) from error
        finally:
            files.discard()

    def _calling(self, context: ToolContext, count: int) -> Calling:
        children = children_of(context.session)
        if children is None:
            raise DispatchSubagentError("A subagent can only be dispatched within a run; nothing was started.")
        limits = self.rules.every.limits
        if limits is None:
            rounds, gate = ceil(count / self.rules.max_parallel), children.family.home.gate
            limits = allotted(gate, context.remaining_seconds, self.rules.share, count, rounds)
        return Calling(context, children, Workspace(context.filesystem), limits)

    def _child(
        self, task: DispatchSubagent, prompt: Prompt[Any], snapshot: Snapshot, files: ChildFiles, calling: Calling
    ) -> ChildTask[Any]:
        settings, family = self.rules.of(prompt), calling.children.family
        bound, messages = told(prompt, task, snapshot)
        return ChildTask(
            prompt=bound,
            kind="subagent",
            limits=settings.limits or calling.limits,
            model=None if settings.model is None else priced(settings.model, calling.children),
            snapshot=snapshot,
            hydrate=None if settings.hydrate is None else partial(hydrated, settings.hydrate),
            filesystem=files.overlay,
            resources=family.home.resources.for_run(),
            tools=self._tools(prompt, calling.children),
            messages=tuple(messages),
            max_depth=self.rules.max_depth,
            call_id=calling.context.call_id,
        )

    def _tools(self, prompt: Prompt[Any], children: Children) -> tuple[Tool, ...]:
        """Return what a child is offered of its parent's tools: all, but dispatch only where it may dispatch itself."""
        home, most = children.family.home, self.rules.max_depth
        may_dispatch = home.depths.get("subagent", 0) + 1 < min(most, home.deepest.get("subagent", most))
        own = {tool.name for tool in prompt.template.tools if dispatches(tool)}
        return tuple(
            tool for tool in children.family.tools if not dispatches(tool) or (may_dispatch and tool.name not in own)
        )


def dispatches(tool: Tool) -> bool:
    """Return whether a tool is one of a section that dispatches subagents."""
    return isinstance(getattr(tool.handler, "__self__", None), Dispatch)


def priced(model: Model | str, children: Children) -> PricedModel:
    """Return a model that was named for children, as it was made and priced when the run began.

    Raises:
        DispatchSubagentError: If the run does not know it.
    """
    name = label_of(model)
    found = children.family.models.get(name)
    if found is None:
        raise DispatchSubagentError(
            f"The model {name} of this subagent was not made ready when the run began; nothing was started. Register"
            " the prompts before the section is made, and put the section into the template of the run."
        )
    return found


def label_of(model: Model | str) -> str:
    """Return how a run knows a model: by its string, or as ``provider:name``."""
    return model if isinstance(model, str) else f"{model.provider}:{model.name}"


def hydrated(hydrate: Callable[[Session], object], session: Session) -> None:
    """Let a function derive more state in a child's session.

    Raises:
        ToolValidationError: If it fails; the child does not run.
    """
    try:
        hydrate(session)
    except Exception as error:
        raise ToolValidationError(
            f"The subagent's state could not be prepared from the snapshot, so it was not started:"
            f" {type(error).__name__}: {error}"
        ) from error


def _told(number: int, task: DispatchSubagent, outcome: SubagentOutcome) -> str:
    said = outcome.error if outcome.result is None else outcome.result.message_summary
    return f"## {number}. {task.prompt_ns}/{task.prompt_key}: {'done' if outcome.ok else 'failed'}\n{said}"
