"""Child runs: the one way to start a run below another, for subagents, judges, evaluations and summaries.

A child has a session of its own below its parent's, a dispatcher of its own, a gate carved from its parent's (or
sharing what the parent has left), an earlier deadline, and a span of its own in its parent's trace. It is the same loop
over the same gate and the same kind of log. At its end, in every case, its session and its gate are closed, which
returns the unused budget to the parent, and the parent's log has one pair of events that refers to the child's log.

The nesting depth of runs is limited, separately for judges and for subagents. The depth follows from where code runs,
not from the session it uses: a tool or an observer of a child that uses the session of the parent run has the depth of
the child. The outer runs set the limit; an inner run cannot raise it.

Several runs may write to one session, nested or concurrently. Code that runs inside one of them finds that run at the
session, in whatever order the runs begin and end, so that the runs it starts are counted there. A run that is over is
no longer found, and the session keeps no reference to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec
from msgspec import structs

from watchkeeper.accounting.call_request import CallRequest, Charge
from watchkeeper.children.innermost import INNERMOST, Depths, going_on, inside_scope, is_inside
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.accounting.budget import BudgetTracker
from watchkeeper.core.errors import ConfigurationError, NestingDepthError, Stop
from watchkeeper.core.forks import ModuleLock
from watchkeeper.core.ids import RunContext, derive_child_run_context
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.text import is_logged, logger
from watchkeeper.core.messages import Message
from watchkeeper.core.model import CompletionState
from watchkeeper.core.usage import Usage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.prompt.evaluation import NESTED, NestedExecutionConfig
from watchkeeper.prompt.evaluation import RenderedPrompt
from watchkeeper.prompt.template import Prompt
from watchkeeper.runtime.events import RECORDED, ChildEnded, ChildKind, ChildStarted
from watchkeeper.runtime.plan import OnContextFull, PricedModel, RunPlan, RunScope, plan_for, refuse_model_switches
from watchkeeper.runtime.portal import wait_on
from watchkeeper.runtime.result import ManyResult, RunResult, broken_off, log_end
from watchkeeper.runtime.shared_budget import share_of
from watchkeeper.runtime.tracing import in_new_trace
from watchkeeper.runtime.user_code import closed
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Snapshot
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.resources import Resources
from watchkeeper.tools.tool import Tool

OutputT = TypeVar("OutputT")
T = TypeVar("T")

Execute = Callable[..., Awaitable[RunResult[Any]]]
"""Runs a plan in a scope: `loop.run.execute`."""

_lock: Final = ModuleLock()
"""Held while children are registered at a session."""

NO_CHARGE: Final = Charge()


@dataclass(frozen=True, slots=True)
class ChildTask(Generic[OutputT]):
    """What a child run is to do.

    Attributes:
        prompt: What it is, with its values bound.
        kind: The purpose of the child run.
        limits: The child's own ceilings; it gets at most what its parent has left.
        carve: Whether its limits are reserved for it; if not, it shares all that its parent has left.
        model: The model to use; by default the model that the parent uses now.
        snapshot: The state its session starts with; an empty one by default. What says how another run went is not
            part of it.
        hydrate: Called with its session before it runs, on a worker thread, to derive more state from the snapshot, of
            which it sees all.
        filesystem: What its tools may read and write, or None.
        resources: What its tools may ask for; closed with the child.
        tools: Tools it is offered beside those of its prompt.
        messages: What it is told after its prompt.
        max_depth: How deep children of this kind may be nested.
        call_id: The tool call that asked for it, or None.
        ordinal: Which of the children of this call it is, from 0.
        parse_output: Whether its final text is read as the prompt's output type.
        tracker: A budget to which the child's usage is added, unless the usage is counted there already.
        execute: Runs the plan; the loop by default.
    """

    prompt: Prompt[OutputT]
    kind: ChildKind
    limits: Limits
    carve: bool = True
    model: PricedModel | None = None
    snapshot: Snapshot | None = None
    hydrate: Callable[[Session], object] | None = None
    filesystem: Filesystem | None = None
    resources: Resources = field(default_factory=Resources)
    tools: tuple[Tool, ...] = ()
    messages: tuple[Message, ...] = ()
    max_depth: int = 1
    call_id: str | None = None
    ordinal: int = 0
    parse_output: bool = True
    tracker: BudgetTracker | None = None
    execute: Execute | None = None

    @property
    def state(self) -> Snapshot | None:
        """The state its session is made with: for `hydrate` the whole snapshot, else what the child begins with."""
        if self.snapshot is None or self.hydrate is not None:
            return self.snapshot
        kept = {kind: view for kind, view in self.snapshot.slices.items() if kind not in RECORDED}
        return replace(self.snapshot, slices=kept)


@dataclass(frozen=True, slots=True)
class ChildRun(Generic[OutputT]):
    """A child run that is over.

    Attributes:
        result: How it ended and what it had; its session is closed, and can be read.
        run_context: The identifiers of the child run.
    """

    result: RunResult[OutputT]
    run_context: RunContext


class BegunChild(NamedTuple):
    """A child that an earlier process has begun, to go on with; see `loop.resume`.

    Attributes:
        run_context: Its identifiers.
        log: All events of its session.
        limits: The limits that it had, with the time that is left of them.
        spent: What it has used; the gates above have counted it.
        resumed: What the loop goes on with; None if the child has ended.
        result: Given its session, its result if it has ended.
        is_closed: Whether its end is on its parent's log.
        rebuild: Makes its files as they were; raises ConfigurationError if that cannot be done.
    """

    run_context: RunContext
    log: Sequence[Envelope]
    limits: Limits
    spent: Usage
    resumed: Any
    result: Callable[[Session], RunResult[Any] | None]
    is_closed: bool
    rebuild: Callable[[Filesystem | None], None]


class ChildFacts(NamedTuple):
    """What a parent's log says of a child.

    Attributes:
        kind: The purpose of the child run.
        name: ``ns/key`` of its prompt.
        model: ``provider:name`` of its model.
        began: Monotonic instant of its start.
        call_id: The tool call that asked for it, or None.
        ordinal: Which of the children of this call it is, from 0.
        admitted: Whether it passed the gate as a call.
    """

    kind: ChildKind
    name: str
    model: str
    began: float
    call_id: str | None = None
    ordinal: int = 0
    admitted: bool = True


class Family(msgspec.Struct, frozen=True):
    """What the children of one run inherit.

    Attributes:
        scope: The scope of the parent: session, gate, clock, files.
        model: Says which model the parent uses now.
        fallback: The models that take over when that model cannot answer, in order.
        cheaper: The model that takes over where a hook says DEGRADE.
        tools: The parent's tools.
        models: Models that the parent's template names for its children, as it names them.
        nested: What nested evaluations may do.
        verdict_gate: The gate reserved for the verdict, or None.
        on_context_full: What happens when a subagent's context is full.
    """

    scope: RunScope
    model: Callable[[], PricedModel]
    fallback: tuple[PricedModel, ...] = ()
    cheaper: PricedModel | None = None
    tools: tuple[Tool, ...] = ()
    models: Mapping[Any, PricedModel] = msgspec.field(default_factory=dict[Any, PricedModel])
    nested: NestedExecutionConfig = NESTED
    verdict_gate: ExecutionContext | None = None
    on_context_full: OnContextFull = "land"


class Children:
    """Starts the child runs of one run.

    Attributes:
        family: The values that the child runs inherit from the parent.
        at_the_end: Whether the run's answer is being checked; only then may a child use the budget that is reserved for
            the verdict.
        begun: Returns the child that an earlier process has begun for a tool call, given its place among the children
            of the call; None if the run is new.
    """

    __slots__ = ("_execute", "_loop", "at_the_end", "begun", "family")

    def __init__(self, family: Family, execute: Execute) -> None:
        """Start child runs of the run of ``family``; ``execute`` runs each of them on the loop that runs now."""
        self.family = family
        self.at_the_end = False
        self.begun: Callable[[str, int], Awaitable[BegunChild | None]] | None = None
        self._execute = execute
        self._loop = asyncio.get_running_loop()

    def wait_for(self, work: Coroutine[Any, Any, T], twin: str) -> T:
        """Run a coroutine on the run's own loop and wait for it, on any thread but that loop's.

        Raises:
            WatchkeeperError: On the loop's own thread, which must not wait for itself; the error names ``twin``.
            BaseException: Whatever the work raises.
        """
        return wait_on(self._loop, work, twin)

    async def start(self, task: ChildTask[OutputT]) -> ChildRun[OutputT]:
        """Run a child to its end.

        A child that is stopped, also by a limit of its parent, is a result with that stop.

        Raises:
            NestingDepthError: If the child would exceed the maximum depth of its kind.
            ConfigurationError: If its prompt, tools or limits cannot work; nothing was spent.
            CancelledError: If the task is cancelled; the child is over in this case, too.
        """
        parent = self.family.scope
        depths, deepest = depths_below(task.kind, task.max_depth, parent)
        scope = structs.replace(
            parent,
            resources=task.resources,
            filesystem=task.filesystem,
            parent_run_id=parent.run_context.run_id,
            item=None,
            item_index=None,
            depths=depths,
            deepest=deepest,
        )
        begun = None
        if self.begun is not None and task.kind == "subagent" and task.call_id is not None:
            begun = await self.begun(task.call_id, task.ordinal)
        if begun is not None:
            await run_in_worker(begun.rebuild, task.filesystem)
        if begun is not None and begun.resumed is None:
            return self._ended(begun, task, scope)
        run = await self._start_below(self._gate_for(task), task, scope, begun)
        stopped = parent.gate.work_stop is not None and run.result.stop is not None
        slice_ = self._kept()
        if task.kind == "verdict" and stopped and slice_ is not None and run.result.usage.model_calls == 0:
            # The parent's work was stopped meanwhile; the verdict has its own reservation and is tried again with it.
            return await self._start_below(slice_, task, scope)
        return run

    @contextmanager
    def attached(self) -> Generator[None]:
        """Register these children at the run's session while the block runs; code in the block runs inside the run."""
        scope = self.family.scope
        origin = scope.session.origin
        with _lock:
            origin.host = (*_attached_to(origin), self)
        try:
            with going_on(scope), inside_scope(scope):
                yield
        finally:
            with _lock:
                origin.host = tuple([each for each in _attached_to(origin) if each is not self]) or None

    def _gate_for(self, task: ChildTask[Any]) -> ExecutionContext:
        """Return the gate above the child: the parent's, or for a verdict the reserved gate if that has more left."""
        scope, kept = self.family.scope, self._kept()
        if task.kind != "verdict" or kept is None:
            return scope.gate
        left, more, ends = scope.gate.left(), kept.left(), scope.gate.work_deadline
        wanted = task.limits.start(scope.clock)
        longer = ends is not None and (wanted is None or wanted.remaining(scope.clock) > ends.remaining(scope.clock))
        over = scope.gate.work_stop is not None
        return kept if over or longer or any(more.get(name, 0) > left[name] for name in left) else scope.gate

    def _kept(self) -> ExecutionContext | None:
        """Return the gate reserved for the verdict while the answer is checked, else None; only a verdict uses it."""
        return self.family.verdict_gate if self.at_the_end else None

    def _ended(self, begun: BegunChild, task: ChildTask[OutputT], scope: RunScope) -> ChildRun[OutputT]:
        """Return a child that came to its end in an earlier process, as it is on record."""
        context = begun.run_context
        session = scope.session.child(session_id=context.session_id, earlier=begun.log)
        session.close()
        result = cast("RunResult[OutputT]", begun.result(session))
        if not begun.is_closed:
            began = scope.clock.monotonic() - result.duration.total_seconds()
            about = ChildFacts(task.kind, result.prompt_name, result.model, began, task.call_id, task.ordinal)
            child = structs.replace(scope, session=session, run_context=context)
            record_end(self.family.scope, child, about, result, usage=result.usage)
        return ChildRun(result, context)

    async def _start_below(
        self, above: ExecutionContext, task: ChildTask[OutputT], scope: RunScope, begun: BegunChild | None = None
    ) -> ChildRun[OutputT]:
        """Pass the gate and run the child; a refusal is a result, too. Makes the child's session, gate and ids."""
        model = task.model or self.family.model()
        rendered = render_child(task, model)
        name = rendered.name
        task, session, context = _identity(task, scope, begun)
        held: list[RunResult[OutputT]] = []
        usage, refused = Usage(), cast("Stop | None", None)

        async def work(ticket: Ticket) -> None:
            nonlocal usage, refused
            async with share_of(task.tracker, above, task.limits, scope.clock, scope.ids) as share:
                refused = share.stop
                if refused is not None:
                    return
                # isolated: nothing but the child pays from this budget, also no tracker that evaluations share
                isolated = task.carve and task.kind in ("evaluation", "verdict") and share.tracker is None
                opened = above.child(
                    share.limits,
                    name,
                    carve=task.carve,
                    on_event=session.dispatch,
                    by_estimate=isolated,
                    spent=None if begun is None else begun.spent,
                )
                with opened as gate, share.drawn_by(gate):
                    below = structs.replace(scope, session=session, gate=gate, run_context=context)
                    try:
                        with inside_scope(below):
                            held.append(await self._run(task, rendered, model, below, begun))
                    finally:
                        usage = gate.usage

        try:
            outcome = await above.acall(CallRequest(kind="child", operation_name=name), work, no_charge)
            if held:
                return ChildRun(held[0], context)
            stop = outcome.stop or refused
            if stop is None:
                if outcome.error is not None:
                    raise outcome.error
                stop = Stop("policy_halt", "hook", f"{name} was not started: {outcome.stop_reason}.")
            result: RunResult[OutputT] = RunResult(
                stop=stop,
                run_id=context.run_id,
                prompt_name=name,
                model=model.label,
                limits=task.limits,
                started_at=scope.clock.now(),
                session=session,
                usage=usage,
                error=outcome.error,
            )
            return ChildRun(result, context)
        finally:
            session.close()
            if not task.resources.end_unused():
                await closed(f"the resources of {name}", task.resources.aclose())

    async def _run(
        self,
        task: ChildTask[OutputT],
        rendered: RenderedPrompt[OutputT],
        model: PricedModel,
        scope: RunScope,
        begun: BegunChild | None,
    ) -> RunResult[OutputT]:
        """Run the child between the two events on its parent's log."""
        if task.hydrate is not None and begun is None:
            await run_in_worker(task.hydrate, scope.session)
            for kind in scope.session.snapshot().slices:
                if kind in RECORDED:
                    scope.session[kind].clear()
        name, began = rendered.name, scope.clock.monotonic()
        about = ChildFacts(task.kind, name, model.label, began, task.call_id, task.ordinal)
        execute = task.execute or self._execute
        if begun is not None:
            resumed = None if begun.resumed is None else begun.resumed.renewed(scope.run_context)
            execute = partial(self._execute, resumed=resumed)
        else:
            record_start(self.family.scope, scope, about)
            if task.kind == "subagent":
                execute = partial(execute, opened=dict[str, Any])
        unwatch = scope.watch(scope.session, scope.run_context.run_id) if scope.watch is not None else None
        try:
            result = await execute(self._plan(task, rendered, model), scope)
        except BaseException as error:
            record_end(self.family.scope, scope, about, broken_off(error))
            raise
        finally:
            if unwatch is not None:
                unwatch()
        record_end(self.family.scope, scope, about, result)
        return result

    def _plan(
        self, task: ChildTask[OutputT], rendered: RenderedPrompt[OutputT], model: PricedModel
    ) -> RunPlan[OutputT]:
        family, inherits = self.family, task.model is None
        refuse_model_switches(task.prompt.template, "a child", "action='stop' or 'call'")
        return plan_for(
            task.prompt,
            rendered,
            model,
            on_context_full=family.on_context_full if task.kind == "subagent" else "land",
            parse_output=task.parse_output,
            fallback=family.fallback if inherits else (),
            cheaper=family.cheaper if inherits else None,
            child_models=family.models,
        )


def _identity(
    task: ChildTask[OutputT], scope: RunScope, begun: BegunChild | None
) -> tuple[ChildTask[OutputT], Session, RunContext]:
    """Return task, session and identifiers of a child: new ones, or those of a child that had begun."""
    if begun is not None:
        session = scope.session.child(session_id=begun.run_context.session_id, earlier=begun.log)
        fresh = derive_child_run_context(scope.run_context, begun.run_context.session_id, scope.ids)
        return replace(task, limits=begun.limits), session, in_new_trace(begun.run_context, fresh)
    session = scope.session.child(task.state)
    return task, session, derive_child_run_context(scope.run_context, session.session_id, scope.ids)


def record_start(parent: RunScope, child: RunScope, about: ChildFacts) -> None:
    """Write on the parent's log that a child began: an event and a log line, with the ids of both runs."""
    depth, limits = sum(child.depths.values()), child.gate.limits.describe()
    parent.record(
        ChildStarted(
            run_context=child.run_context,
            parent_run_id=parent.run_context.run_id,
            kind=about.kind,
            prompt_name=about.name,
            model=about.model,
            depth=depth,
            limits=limits,
            call_id=about.call_id,
            ordinal=about.ordinal,
            started_at=child.clock.now(),
            limit_values=child.gate.limits,
            admitted=about.admitted,
        )
    )
    if is_logged(logging.INFO):
        ids = _ids(child)
        logger().info("child.started", kind=about.kind, prompt=about.name, depth=depth, limits=limits, **ids)


def record_end(
    parent: RunScope,
    child: RunScope,
    about: ChildFacts,
    ended: RunResult[Any] | ManyResult[Any] | Stop | None,
    said: str = "",
    usage: Usage | None = None,
) -> None:
    """Record on the parent's log how the child ended.

    ``ended`` is the child's result, or the stop that ended it without one. For a contained block, which has no result,
    it is the stop or None, and ``said`` describes the end in words. ``usage`` is all that the child has used, by
    default by its gate and by what it had used before its limits were fresh.
    """
    duration = (child.clock.monotonic() - about.began) * 1000
    if usage is None:
        usage = child.gate.usage + (Usage() if isinstance(ended, Stop | None) else ended.earlier.usage)
    stop: Stop | None
    completion: CompletionState = "unchecked"
    if isinstance(ended, Stop | None):
        stop, said = ended, said or ("" if ended is None else ended.message)
    else:
        stop, said = ended.stop, ended.sentence()
        completion = ended.completion if isinstance(ended, RunResult) else completion
    parent.record(
        ChildEnded(
            run_id=child.run_context.run_id,
            parent_run_id=parent.run_context.run_id,
            kind=about.kind,
            prompt_name=about.name,
            stop=stop,
            completion=completion,
            usage=usage,
            duration_ms=duration,
            said=said,
            ended_at=child.clock.now(),
        )
    )
    ids, seconds = {**_ids(child), "kind": about.kind}, round(duration / 1000, 3)
    log_end("child.ended", ids, about.name, stop, completion, usage, duration_seconds=seconds)


def _ids(child: RunScope) -> dict[str, str]:
    return {"run_id": str(child.run_context.run_id), "parent_run_id": str(child.parent_run_id)}


def children_of(session: Session) -> Children | None:
    """Return what starts children below the run that writes to a session, or to a branch of it; None if none does.

    Where several runs do, the run inside which this code runs is chosen, else the run that began last.
    """
    runs = _attached_to(session.origin)
    if len(runs) > 1:
        runs = tuple([each for each in runs if is_inside(each.family.scope.run_context.run_id)]) or runs
    return runs[-1] if runs else None


def _attached_to(origin: Session) -> tuple[Children, ...]:
    return cast("tuple[Children, ...]", origin.host or ())


def depths_below(kind: ChildKind, most: int, scope: RunScope) -> tuple[Depths, Depths]:
    """Return the depth of a child that is started below the run of ``scope``, itself included, and the maximum depth,
    both by family.

    Args:
        kind: The child's kind.
        most: The maximum nesting depth of its family.
        scope: The scope of the parent.

    Raises:
        NestingDepthError: If the child would exceed the maximum depth; the error names the depth and the option to
            change.
    """
    family = "subagent" if kind == "subagent" else "evaluation"
    depths, deepest = _around(scope)
    above, most = depths.get(family, 0), min(most, deepest.get(family, most))
    if above >= most:
        what = "subagents" if kind == "subagent" else "nested evaluations"
        option = "max_depth" if kind == "subagent" else "max_nesting_depth"
        raise NestingDepthError(
            f"{what} may stand at most {most} deep here, and {above} stand{'s' if above == 1 else ''} above this"
            f" one; nothing was started (raise {option} to allow more)"
        )
    return {**depths, family: above + 1}, {**deepest, family: most}


def _around(scope: RunScope) -> tuple[Depths, Depths]:
    """Return depths and maximum depths for code that runs here and uses the run of ``scope``."""
    inside = INNERMOST.get()
    if inside is None or inside.scope() is scope or inside.trace_id != scope.run_context.trace_id:
        return scope.depths, scope.deepest
    depths = {name: max(scope.depths.get(name, 0), depth) for name, depth in inside.depths.items()}
    return {**scope.depths, **depths}, {**scope.deepest, **inside.deepest}


def render_child(task: ChildTask[OutputT], model: PricedModel) -> RenderedPrompt[OutputT]:
    """Render a child's prompt, with its additional messages and tools.

    Raises:
        ConfigurationError: If an additional tool has the same name as a different tool of the prompt.
    """
    rendered = task.prompt.render(output_in_prompt=task.parse_output and not model.model.native_output)
    if not (task.tools or task.messages):
        return rendered
    own = {tool.name: tool for tool in rendered.tools}
    for tool in task.tools:
        if own.get(tool.name, tool) != tool:
            raise ConfigurationError(
                f"prompt {rendered.name!r} has a tool {tool.name!r} that is another one than its parent's of that name;"
                " rename one: @tool(name=...)"
            )
    offered = {**{tool.name: tool for tool in task.tools}, **own}
    return msgspec.structs.replace(
        rendered, messages=(*rendered.messages, *task.messages), tools=tuple(offered.values())
    )


def no_charge(value: object, error: BaseException | None, ticket: Ticket) -> Charge:
    """Return a charge of 0: a tool costs nothing by itself, and a child's calls are charged where they are made."""
    return NO_CHARGE
