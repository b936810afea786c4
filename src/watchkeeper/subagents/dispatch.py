"""Dispatching: turns a task that a model wrote into a child run, and the end of that run into a tool result.

`Dispatch.run` takes one task through all steps. The child starts from the parent's state at that moment, works with the
parent's tools, and has a session, limits and files of its own. It hands back a summary, its output and its artifacts;
nothing else reaches the parent, and everything that the child opened is closed, however it ends. The part that enters
the parent's transcript is limited in bytes; the child's log is complete.

Limits: the limits in the settings are the child's ceilings, and it gets at most what its parent has left. Without any,
the children of a call get a share of what the parent has left of every ceiling and of its time, so that the parent can
always go on. Those that run at once get equal parts of it, and what one of them has not used is there for the next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from inspect import iscoroutinefunction
from math import ceil
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from watchkeeper.children.child import Children, ChildTask, children_of
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.codec import CodecError, display, encode
from watchkeeper.core.errors import (
    ConfigurationError,
    DispatchSubagentError,
    ProviderError,
    StopReason,
    ToolValidationError,
)
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.meters import SHARED, LimitMeter
from watchkeeper.core.model import Model
from watchkeeper.core.quantities import is_share, is_whole
from watchkeeper.core.text import error_text, logger, one_line, one_name
from watchkeeper.core.usage import NANOS_PER_USD, Usage
from watchkeeper.kernel.turn_machine import CEILING_STOPS
from watchkeeper.asking.compaction import shortened
from watchkeeper.prompt.template import Prompt
from watchkeeper.runtime.plan import PricedModel
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Snapshot
from watchkeeper.subagents.payloads import (
    Artifact,
    DispatchSubagent,
    DispatchSubagentResult,
    DispatchSubagents,
    DispatchSubagentsResult,
    PromptRegistry,
    SubagentOutcome,
    check_version,
    checked,
    checked_count,
    prompt_of,
)
from watchkeeper.subagents.workspace import ChildFiles, HandedOver, Workspace, told
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.values import ToolResult
from watchkeeper.tools.tool import Tool

SUMMARY_BYTES: Final = 1_536
"""How much one child adds to its parent's transcript at most, as UTF-8."""

NOTES_BYTES: Final = 512
"""The part of it that notes about files and verdict may take."""

SAME_AGAIN: Final = "This will not change: do not send the same task again."
MAY_PASS: Final = "This may pass: the same task may work later."
SEND_FEWER: Final = "A subagent gets more if fewer are sent in one call."
ADVICE: Final = "Change the task, or do the work yourself."
USE_IT: Final = "If that is enough, use it. Else change the task, or do the work yourself."


NO_SHARED_CEILINGS: Final[dict[str, Any]] = dict.fromkeys(
    ("account", "account_limit", *(meter.field for meter in SHARED))
)
LEAST_SECONDS: Final = 0.001

PASSING: Final[frozenset[StopReason]] = frozenset({"provider_rate_limit", "retry_budget_exceeded", "circuit_open"})
"""What may be over later: only calls that may succeed later are tried again."""

CEILINGS: Final = (frozenset(meter.reason for meter in SHARED) - PASSING) | {"timeout"}
"""Ceilings of which the children of one call may have got a part only."""

LASTING: Final = CEILINGS | (CEILING_STOPS - PASSING) | {"context_full", "refused"}
"""What the same task would meet again."""

ANSWERS: Final = (ToolValidationError, DispatchSubagentError)
"""Errors whose messages are written for the model."""

NOT_STARTED: Final = (*ANSWERS, ConfigurationError)
"""Errors of a child that did not begin, and so has used nothing."""

CANCELLED: Final = "The subagent was cancelled before its work was done."


@dataclass(frozen=True, slots=True)
class SubagentSettings:
    """What the children of one prompt get; None means the value for all children of the section.

    Attributes:
        model: The model that answers, or its name.
        limits: Their ceilings, each.
        hydrate: Called on a worker thread with a child's session, before the child runs; the session holds the parent's
            state, and the function may derive more state from it.
        description: What the subagent is good for; shown to the parent's model.
    """

    model: Model | str | None = None
    limits: Limits | None = None
    hydrate: Callable[[Session], object] | None = None
    description: str = ""

    def __post_init__(self) -> None:
        """Refuse invalid values.

        Raises:
            ConfigurationError: Naming the field and the value.
        """
        for name, kind, wanted in (
            ("model", Model | str | None, "a model or its name, for example 'openai:gpt-5-mini'"),
            ("limits", Limits | None, "Limits, for example Limits(max_cost_usd=1)"),
            ("description", str, "text, for example 'Finds sources.'"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ConfigurationError(f"{name}={value!r} of a subagent must be {wanted}")
        hydrate = cast("object", self.hydrate)
        if hydrate is not None and not (callable(hydrate) and not is_async(hydrate)):
            raise ConfigurationError(
                f"hydrate={self.hydrate!r} must be a function that takes the child's session, and not async: it is"
                " called on a worker thread"
            )

    def over(self, other: SubagentSettings) -> SubagentSettings:
        """Return these settings; each one that is None here is taken from ``other``."""
        return SubagentSettings(
            other.model if self.model is None else self.model,
            other.limits if self.limits is None else self.limits,
            other.hydrate if self.hydrate is None else self.hydrate,
            self.description or other.description,
        )


@dataclass(slots=True)
class Part:
    """The limits of one child, and what it has used once it is over."""

    limits: Limits
    used: Usage | None = None


class CallShare:
    """What the children of one call get together: equal parts for those that run at once.

    What a child does not use goes back, so that later children of the call get it.
    """

    __slots__ = ("_at_once", "_free", "_limits", "_running")

    def __init__(self, limits: Limits, at_once: int) -> None:
        """Start with the part of each of ``at_once`` children, and nobody running."""
        self._limits = limits
        self._at_once = at_once
        self._running = 0
        parts = {meter: limits.ceiling(meter.ceiling) for meter in SHARED}
        self._free = {meter: part * at_once for meter, part in parts.items() if part is not None}

    @contextmanager
    def part(self) -> Generator[Part]:
        """Yield the part of a child that starts now; if it is broken off midway, all of it counts as used."""
        divisor = max(self._at_once - self._running, 1)
        given = {meter: max(free // divisor, 1) for meter, free in self._free.items()}
        changes: dict[str, Any] = {
            meter.field: Decimal(amount) / NANOS_PER_USD if meter.measures == "money" else amount
            for meter, amount in given.items()
        }
        part = Part(replace(self._limits, **changes))
        self._running += 1
        for meter, amount in given.items():
            self._free[meter] -= amount
        try:
            yield part
        finally:
            self._running -= 1
            if part.used is not None:
                for meter, amount in given.items():
                    self._free[meter] += max(amount - used_of(meter, part.used, amount), 0)


def used_of(meter: LimitMeter, usage: Usage, most: int) -> int:
    """Return what was used under a limit; ``most`` if that is not known, or `Usage` has no such count."""
    try:
        used: int | None = attrgetter(meter.usage)(usage)
    except AttributeError:
        return most
    return most if used is None else used


@dataclass(frozen=True, slots=True)
class Calling:
    """One call of a dispatch tool.

    Attributes:
        context: The context of the tool call.
        children: What starts child runs below the run.
        workspace: The files of the call.
        share: What its children without limits of their own get.
        alone: Whether it has one task only.
    """

    context: ToolContext
    children: Children
    workspace: Workspace
    share: CallShare
    alone: bool


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """The two tools of a section, and how they dispatch.

    Attributes:
        registry: The prompts that may be dispatched.
        session: The session with whose state children start; that of the run by default.
        every: The settings of all children.
        settings: The settings of the children of one prompt, by ``ns/key``.
        share: How much of what the parent has left the children of a call get, where no limits are given.
        max_depth: How many subagents may be nested.
        max_parallel: How many of one call run at once.
        cascade: Whether the snapshot includes the sessions below.
    """

    registry: PromptRegistry
    session: Session | None
    every: SubagentSettings
    settings: Mapping[str, SubagentSettings]
    share: float
    max_depth: int
    max_parallel: int
    cascade: bool

    def of(self, prompt: Prompt[Any]) -> SubagentSettings:
        """Return what the children of a prompt get."""
        own = self.settings.get(f"{prompt.ns}/{prompt.key}")
        return self.every if own is None else own.over(self.every)

    async def one(self, params: DispatchSubagent, *, context: ToolContext) -> ToolResult[DispatchSubagentResult]:
        """Run one task.

        Raises:
            ToolValidationError: If the task is invalid: bad text, unknown or disabled prompt, another snapshot version.
            DispatchSubagentError: If the child was stopped, or could not run.
        """
        result = await self.run(params, self._calling(context, 1))
        return ToolResult.ok(result, result.message_summary)

    async def several(self, params: DispatchSubagents, *, context: ToolContext) -> ToolResult[DispatchSubagentsResult]:
        """Run several tasks side by side; each has its own outcome, independent of the others.

        Raises:
            ToolValidationError: If there are no tasks, or too many.
        """
        count = checked_count(params)
        calling = self._calling(context, count)
        slots = asyncio.Semaphore(self.max_parallel)
        outcomes = [SubagentOutcome(error=CANCELLED)] * count

        async def run(place: int, task: DispatchSubagent) -> None:
            async with slots:
                try:
                    outcomes[place] = SubagentOutcome(await self.run(task, calling, place))
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

    async def run(self, task: DispatchSubagent, calling: Calling, place: int = 0) -> DispatchSubagentResult:
        """Take one task, at its place among those of the call, from validation to its result.

        A child that an earlier process has begun goes on; one that has ended there is not run again.

        Raises:
            ToolValidationError: If the task is invalid; nothing was started.
            DispatchSubagentError: If the child was stopped, or could not run.
        """
        task = checked(task)
        prompt = prompt_of(task, self.registry)
        snapshot = (self.session or calling.context.session).snapshot(cascade=self.cascade)
        check_version(task, snapshot)
        if task.expected_artifacts and calling.workspace.base is None:
            raise ToolValidationError(
                "expected_artifacts names files, but there are no files here; leave it empty, and ask for what you need"
                " in the subagent's answer"
            )
        files = await calling.workspace.handled(calling.workspace.open, task.expected_artifacts)
        name = f"{task.prompt_ns}/{task.prompt_key}"
        try:
            limits = self.of(prompt).limits
            own = nullcontext(Part(limits)) if limits is not None else calling.share.part()
            with own as part:
                try:
                    child = self._child(task, prompt, snapshot, files, calling, part.limits)
                    run = await calling.children.start(replace(child, ordinal=place))
                except NOT_STARTED:
                    part.used = Usage()
                    raise
                part.used = run.result.usage
            if run.result.stop is not None or run.result.output is None:
                dropped = await calling.workspace.handled(files.dropped)
                shares = not calling.alone and run.result.limits != limits
                raise failure(name, run.result, dropped, shares=shares) from run.result.error
            return await calling.workspace.handled(collected, task, run.result, snapshot, files)
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
        rounds, at_once = ceil(count / self.max_parallel), min(count, self.max_parallel)
        part = allotted(children.family.scope.gate, context.remaining_seconds, self.share, at_once, rounds)
        return Calling(context, children, Workspace(context.filesystem), CallShare(part, at_once), count == 1)

    def _child(
        self,
        task: DispatchSubagent,
        prompt: Prompt[Any],
        snapshot: Snapshot,
        files: ChildFiles,
        calling: Calling,
        limits: Limits,
    ) -> ChildTask[Any]:
        settings, family = self.of(prompt), calling.children.family
        bound, messages = told(prompt, task, snapshot, has_files=files.overlay is not None)
        return ChildTask(
            prompt=bound,
            kind="subagent",
            limits=limits,
            model=None if settings.model is None else priced(settings.model, calling.children),
            snapshot=snapshot,
            hydrate=None if settings.hydrate is None else partial(hydrated, settings.hydrate),
            filesystem=files.overlay,
            resources=family.scope.resources.for_run(),
            tools=self._tools(prompt, calling.children),
            messages=tuple(messages),
            max_depth=self.max_depth,
            call_id=calling.context.call_id,
        )

    def _tools(self, prompt: Prompt[Any], children: Children) -> tuple[Tool, ...]:
        """Return what a child is offered of its parent's tools: all, but the dispatch tools only if it may dispatch."""
        home, most = children.family.scope, self.max_depth
        may_dispatch = home.depths.get("subagent", 0) + 1 < min(most, home.deepest.get("subagent", most))
        own = {tool.name for tool in prompt.template.tools if dispatches(tool)}
        return tuple(
            tool for tool in children.family.tools if not dispatches(tool) or (may_dispatch and tool.name not in own)
        )


def allotted(gate: ExecutionContext, seconds: float | None, share: float, children: int, rounds: int) -> Limits:
    """Return the limits of each of the children of one call.

    Args:
        gate: The parent's.
        seconds: Time that the call has left, or None if nothing bounds it.
        share: How much of what is left the children get together.
        children: Number of children.
        rounds: How many of them follow each other in time, at most.
    """
    numerator, denominator = share.as_integer_ratio()
    changes = dict(NO_SHARED_CEILINGS)
    for name, left in gate.left().items():
        # If nothing is left, the parent's own stop reports it; a share rounded down to 0 must not cause a stop.
        amount = max(left * numerator // (denominator * children), 1) if left else None
        if name == "max_cost_nanos":
            changes["max_cost_usd"] = None if amount is None else Decimal(amount) / NANOS_PER_USD
        else:
            changes[name] = amount
    deadline = None if seconds is None else timedelta(seconds=max(seconds * share / rounds, LEAST_SECONDS))
    return replace(gate.limits, deadline=deadline, **changes)


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
            f" the prompts before the section is made, and put the section into the template of the run. {SAME_AGAIN}"
        )
    return found


def label_of(model: Model | str) -> str:
    """Return how a run knows a model: by its string, or as ``provider:name``."""
    return model if isinstance(model, str) else f"{model.provider}:{model.name}"


def is_async(function: Callable[..., object]) -> bool:
    """Return whether calling it gives a coroutine, also for an object whose ``__call__`` is async."""
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


def hydrated(hydrate: Callable[[Session], object], session: Session) -> None:
    """Let a function derive more state in a child's session; a failure is logged too, because no model can mend it.

    Raises:
        ToolValidationError: If it fails; the child does not run.
    """
    try:
        made = hydrate(session)
        if isinstance(made, Coroutine):
            made.close()
            raise ConfigurationError("hydrate returned a coroutine, which nothing awaits: give one that is not async")
    except Exception as error:
        why = error_text(error)
        logger().warning("subagent.not_prepared", hydrate=repr(hydrate), error=why)
        said = f"The subagent's state could not be prepared from the snapshot, so it was not started: {why}"
        if isinstance(error, ConfigurationError):
            said = f"{said.rstrip('.')}. {SAME_AGAIN}"
        raise ToolValidationError(said) from error


def _told(number: int, task: DispatchSubagent, outcome: SubagentOutcome) -> str:
    said = outcome.error if outcome.result is None else outcome.result.message_summary
    return f"## {number}. {task.prompt_ns}/{task.prompt_key}: {'done' if outcome.ok else 'failed'}\n{said}"


def collected(
    task: DispatchSubagent, result: RunResult[Any], snapshot: Snapshot, files: ChildFiles
) -> DispatchSubagentResult:
    """Return the result of a child that completed its work, and hand its artifacts over to the parent.

    Raises:
        DispatchSubagentError: If its structured output has no JSON form; then none of its files is handed over.
    """
    output = None if isinstance(result.output, str) else as_json(task, result.output)
    recorded = recorded_artifacts(result, snapshot)
    wanted = dict.fromkeys((*task.expected_artifacts, *recorded))
    handed = files.hand_over(wanted)
    dropped = files.dropped((*handed.kept, *handed.unchanged, *handed.failed))
    said_of_files = _notes(task, result, recorded, handed, dropped)
    notes = shortened("\n".join(said_of_files), NOTES_BYTES)
    said = shortened(_said(result, output), SUMMARY_BYTES - len(notes.encode()) - 1 if notes else SUMMARY_BYTES)
    there = {*handed.kept, *handed.unchanged, *recorded} - handed.failed.keys()
    return DispatchSubagentResult(
        prompt_ns=task.prompt_ns,
        prompt_key=task.prompt_key,
        message_summary=f"{said}\n{notes}" if notes else said,
        artifacts=tuple(path for path in wanted if path in there),
        tools_used=tools_used(result),
        output=output,
        plan_step_id=task.plan_step_id,
        run_id=result.run_id,
        completion=result.completion,
        failed_artifacts=tuple(handed.failed),
    )


def outlook(result: RunResult[Any], *, shares: bool) -> str:
    """Return whether the same task would end in the same way again, in a sentence; nothing where nobody can know.

    Args:
        result: The result of the child.
        shares: Whether the child had to share its limits with other tasks of the same call.
    """
    reason = None if result.stop is None else result.stop.reason
    if shares and reason in CEILINGS:
        return SEND_FEWER
    if isinstance(result.error, ProviderError):
        return MAY_PASS if result.error.retryable else SAME_AGAIN
    return SAME_AGAIN if reason in LASTING else MAY_PASS if reason in PASSING else ""


def failure(
    name: str, result: RunResult[Any], dropped: Iterable[str] = (), *, shares: bool = False
) -> DispatchSubagentError:
    """Return the error of a child that was stopped: why, by which limit, what it had, and what the parent can do.

    Args:
        name: ``ns/key`` of its prompt.
        result: The result of the child.
        dropped: The files that the child had written; a stopped child hands over no files.
        shares: Whether the child had to share its limits with other tasks of the same call.
    """
    stop = result.stop
    why = "it has no output" if stop is None else stop.message.rstrip(".")
    limit = f" (limit: {stop.limit})" if stop is not None and stop.limit and stop.limit not in why else ""
    text = f"The subagent {name} was stopped before its work was done: {why}{limit}."
    lost = _listed(dropped)
    if lost:
        text = shortened(f"{text} No file of it was kept: {lost}.", SUMMARY_BYTES // 2)
    said, again = (
        display(result.text if result.partial is None else result.partial).strip(),
        outlook(result, shares=shares),
    )
    if not said:
        advice = f"{again} {ADVICE}".strip()
        return DispatchSubagentError(f"{shortened(text, SUMMARY_BYTES - len(advice) - 1)} {advice}")
    text = " ".join(filter(None, (shortened(text, SUMMARY_BYTES // 2), again, "It handed over:")))
    room = SUMMARY_BYTES - len(text.encode()) - len(USE_IT) - 2
    return DispatchSubagentError(f"{text}\n{shortened(said, room)}\n{USE_IT}")


def broken(name: str, error: BaseException) -> DispatchSubagentError:
    """Return the error of a child that could not be started, or that was broken off.

    A configuration that refuses the child, such as the maximum depth, does not change while the run goes on.
    """
    said = str(error).rstrip(".") or type(error).__name__
    text = f"The subagent {name} did not run to its end: {said}."
    if not isinstance(error, ConfigurationError):
        return DispatchSubagentError(shortened(text, SUMMARY_BYTES))
    advice = f"{SAME_AGAIN} {ADVICE}"
    return DispatchSubagentError(f"{shortened(text, SUMMARY_BYTES - len(advice) - 1)} {advice}")


def tools_used(result: RunResult[Any]) -> tuple[str, ...]:
    """Return the names of the tools that a child really called, in the order of first use."""
    calls = (envelope.event for envelope in result.session.log if isinstance(envelope.event, ToolInvoked))
    return tuple(dict.fromkeys(call.name for call in calls if call.node_id is not None))


def recorded_artifacts(result: RunResult[Any], snapshot: Snapshot) -> tuple[str, ...]:
    """Return the paths that tools or reducers recorded as artifacts in a child's session, each once."""
    items = result.session[Artifact].all()
    if not items:
        return ()
    found = Counter(items)
    found.subtract(snapshot[Artifact])
    return tuple(artifact.path for artifact, count in found.items() if count > 0)


def as_json(task: DispatchSubagent, output: Any) -> Any:
    """Return an output as JSON values.

    Raises:
        DispatchSubagentError: If it has no JSON form.
    """
    try:
        return msgspec.json.decode(encode(output))
    except (CodecError, msgspec.DecodeError) as error:
        raise DispatchSubagentError(
            f"The subagent {task.prompt_ns}/{task.prompt_key} completed its work, but its output cannot be handed over:"
            f" {error}. Ask for the same in text, or dispatch another subagent."
        ) from error


def _said(result: RunResult[Any], output: Any) -> str:
    """Return a child's last answer: its text, the summary in its output, or the output as JSON."""
    if output is None:
        return str(result.output or result.text).strip() or "Done; it said nothing."
    summary = cast("dict[str, Any]", output).get("summary") if isinstance(output, dict) else None
    return summary.strip() if isinstance(summary, str) and summary.strip() else display(output)


def _notes(
    task: DispatchSubagent, result: RunResult[Any], recorded: Iterable[str], handed: HandedOver, dropped: Iterable[str]
) -> Iterable[str]:
    if handed.failed:
        yield "Not kept: " + "; ".join(f"{one_name(path)} ({one_line(why)})" for path, why in handed.failed.items())
    absent = [path for path in handed.absent if path in task.expected_artifacts and path not in recorded]
    if absent:
        yield f"Expected, but not left as files: {_listed(absent)}"
    lost = tuple(dropped)
    if lost:
        yield f"Not kept, because expected_artifacts does not name them: {_listed(lost)}"
    if result.completion == "unverified":
        yield f"Not verified: {' '.join(result.completion_note.split()) or 'no reason given'}"
    if handed.kept:
        yield f"Files kept: {_listed(handed.kept)}"
    if handed.unchanged:
        yield f"Files left as they were: {_listed(handed.unchanged)}"
    others = [path for path in handed.absent if path in recorded]
    if others:
        yield f"Recorded: {_listed(others)}"


def _listed(paths: Iterable[str]) -> str:
    return ", ".join(map(one_name, paths))


def check_share(share: object) -> float:
    """Return the share of what is left that children get.

    Raises:
        ConfigurationError: If it is no share, or leaves the parent nothing.
    """
    if not is_share(share):
        raise ConfigurationError(f"share={share!r} must lie between 0 and 1, so that the parent keeps something")
    return float(share)


def check_least_one(value: object, name: str) -> int:
    """Return a count.

    Raises:
        ConfigurationError: If it is none, or below one.
    """
    if not is_whole(value, 1):
        raise ConfigurationError(f"{name}={value!r} must be a whole number, at least 1")
    return value
