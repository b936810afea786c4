"""`run` and `arun`: the front door. Everything a run needs is put together here and nowhere else.

`run` blocks; `arun` is the same on the caller's loop. A stop is a result: both return it, and raise only for input
that cannot work (before anything is spent) or if ``raise_on_stop`` asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, Unpack
from uuid import UUID

from watchkeeper.app.options import RunKeywords, RunOptions, check_arguments, options_for_run
from watchkeeper.app.surroundings import Interrupts, Surroundings, open_surroundings
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.budget import Budget
from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import LimitsError, RunStoppedError, Stop
from watchkeeper.core.ids import RunContext, derive_child_run_context, root_run_context
from watchkeeper.core.limits import Limits, Verdict, tighten
from watchkeeper.core.model import Model
from watchkeeper.core.text import error_text
from watchkeeper.core.workers import is_crash
from watchkeeper.loop.run import execute
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import ItemEnded, ManyEnded, ManyStarted
from watchkeeper.runtime.plan import RunPlan, RunScope
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.runtime.result import ManyResult, RunResult, without_output
from watchkeeper.runtime.user_code import closed
from watchkeeper.session.session import Session
from watchkeeper.shield.decision import ChainMetadata
from watchkeeper.tools.resources import Resources

OutputT = TypeVar("OutputT")


def run(
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    *,
    model: Model | str,
    limits: Limits = Limits(),
    session: Session | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult[OutputT]:
    """Run an agent to its end and return how it ended; see `arun` for the arguments.

    Ctrl-C lands the run: it takes a last turn and hands over what it has. A second one stops it hard.
    """
    interrupts = Interrupts()
    work = _run(prompt, model, limits, session, options_for_run(options), interrupts)
    return PORTAL.call(work, "arun", interrupts.interrupt)


async def arun(
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    *,
    model: Model | str,
    limits: Limits = Limits(),
    session: Session | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult[OutputT]:
    """Run an agent to its end and return how it ended.

    Args:
        prompt: What the agent is: a bound prompt, or a template without placeholders.
        model: Who answers: a `Model`, or a string such as ``openai:gpt-5-mini`` or ``local``.
        limits: What it may spend, its children included.
        session: An earlier session to continue with: its slices, its log, its conversation.
        options: See `RunOptions`.

    Raises:
        ConfigurationError: If something the caller wrote cannot work; nothing was spent.
        StoreError: If the store cannot be written; nothing was spent.
        RunStoppedError: Only with ``raise_on_stop``.
    """
    return await _run(prompt, model, limits, session, options_for_run(options), Interrupts())


async def _run(
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    model: Model | str,
    limits: Limits,
    session: Session | None,
    options: RunOptions,
    interrupts: Interrupts,
) -> RunResult[OutputT]:
    check_arguments({"prompt": prompt, "model": model, "limits": limits, "session": session})
    session = session or Session(clock=options.clock, ids=options.ids)
    limits = in_force(limits, session, options)
    async with AsyncExitStack() as stack:
        around = open_surroundings(stack, template_of(prompt), model, limits, options)
        context = root_run_context(session.session_id, options.ids)
        gate = gate_of(limits, session, context, around, options)
        plan = plan_of(prompt, around, gate.deadline, options)
        home = home_of(session, gate, context, options, around)
        unwatch = around.watch(session, context.run_id)
        try:
            with gate, interrupts.over(gate):
                result = await execute(plan, home)
        finally:
            unwatch()
            if not home.resources.end_unused():
                await closed("the run's resources", home.resources.aclose())
    if result.stop is not None and options.raise_on_stop:
        raise RunStoppedError(result.sentence(), stop=result.stop, result=result) from result.error
    return result


def in_force(limits: Limits, session: Session, options: RunOptions) -> Limits:
    """Return the limits, tightened by a `Budget` that was seeded in the session.

    Raises:
        LimitsError: If the deadline is over already.
    """
    budget = session[Budget].latest()
    if budget is not None:
        limits = tighten(limits, budget.as_limits(), options.clock)
    deadline = limits.deadline
    if isinstance(deadline, Deadline) and deadline.expired(options.clock):
        raise LimitsError(f"the deadline {deadline.at.isoformat()} is over already; give a later one or a length")
    return limits


def gate_of(
    limits: Limits, session: Session, context: RunContext, around: Surroundings, options: RunOptions
) -> ExecutionContext:
    """Open the gate of a run: its ceilings, its hooks, its circuit breakers; what it reports carries the run's ids."""
    return ExecutionContext(
        limits,
        options.shield,
        ChainMetadata(str(context.request_id), str(context.run_id)),
        circuit_breaker=around.breakers,
        ledger=around.ledger,
        clock=options.clock,
        ids=options.ids,
        on_event=session.dispatch,
    )


def plan_of(
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    around: Surroundings,
    deadline: Deadline | None,
    options: RunOptions,
) -> RunPlan[OutputT]:
    """Render the prompt, once, and say how it is run."""
    bound = Prompt(prompt) if isinstance(prompt, PromptTemplate) else prompt
    models = around.models
    return RunPlan(
        prompt=bound.render(deadline=deadline, output_in_prompt=models.output_in_prompt),
        model=models.first.model,
        price=models.first.price,
        settings=models.first.settings,
        checker=bound.template.task_completion_checker,
        on_context_full=options.on_context_full,
        on_delta=around.on_delta,
        fallback=models.fallback,
        cheaper=models.cheaper,
        sources=bound.template.sources,
        escalations=models.escalations,
        completion_rounds=bound.template.completion_rounds,
        nested=bound.template.nested_execution_config,
        child_models=models.children,
    )


def template_of(prompt: Prompt[Any] | PromptTemplate[Any]) -> PromptTemplate[Any]:
    """Return the template behind a prompt."""
    return prompt.template if isinstance(prompt, Prompt) else prompt


def home_of(
    session: Session,
    gate: ExecutionContext,
    context: RunContext,
    options: RunOptions,
    around: Surroundings,
    parent_run_id: UUID | None = None,
    item: str | None = None,
) -> RunScope:
    """Say where a run lives."""
    return RunScope(
        session=session,
        gate=gate,
        run_context=context,
        clock=options.clock,
        ids=options.ids,
        rng=options.rng,
        resources=options.resources or Resources(),
        filesystem=options.filesystem,
        parent_run_id=parent_run_id,
        item=item,
        watch=around.watch_child,
    )


# --- many -----------------------------------------------------------------------------------------------------------
# `run_many`: the same agent over many items, unattended, under one ceiling.
#
# Every item is a run of its own: fresh session, own turns, own log. All of them draw from one gate, so the ceiling
# holds
# over them together. There is one result per item, in order; an item that fails never loses the others; when a limit
# ends the whole, what was not done is marked as not done.

PER_ITEM: Final = Limits(deadline=None, max_total_tokens=None, max_retries=None, max_turns=None)
"""What limits one item beside the ceilings over all: nothing but the turns, unless the caller says so."""

LABEL_CHARS: Final = 200
"""A longer label is cut."""


def run_many(
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    items: Iterable[Any],
    *,
    model: Model | str,
    limits: Limits = Limits(),
    each: Limits | None = None,
    concurrency: int = 4,
    label: Callable[[Any], str] = str,
    **options: Unpack[RunKeywords],
) -> ManyResult[OutputT]:
    """Run an agent over many items and return one result for each; see `arun_many` for the arguments."""
    interrupts = Interrupts()
    job = _Job(prompt, listed(items), label, limits, each, options_for_run(options), interrupts)
    return PORTAL.call(job.run(model, concurrency), "arun_many", interrupts.interrupt)


async def arun_many(
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    items: Iterable[Any],
    *,
    model: Model | str,
    limits: Limits = Limits(),
    each: Limits | None = None,
    concurrency: int = 4,
    label: Callable[[Any], str] = str,
    **options: Unpack[RunKeywords],
) -> ManyResult[OutputT]:
    """Run an agent over many items and return one result for each.

    Args:
        prompt: What the agent is; each item is bound to it.
        items: One dataclass value per run, or a tuple of several to bind together.
        model: Who answers.
        limits: Ceilings over all items together; ``max_turns`` holds for each item.
        each: Further limits of every single item; they can only tighten.
        concurrency: How many items run at once.
        label: Names an item in results, logs and progress.
        options: See `RunOptions`.

    Raises:
        ConfigurationError: If something the caller wrote cannot work; nothing was spent.
        StoreError: If the store cannot be written; nothing was spent.
        RunStoppedError: Only with ``raise_on_stop``, if the whole was stopped.
    """
    job = _Job(prompt, listed(items), label, limits, each, options_for_run(options), Interrupts())
    return await job.run(model, concurrency)


@dataclass(frozen=True, slots=True)
class _Job(Generic[OutputT]):
    """A run over many items, before it starts."""

    prompt: Prompt[OutputT] | PromptTemplate[OutputT]
    items: tuple[Any, ...]
    label: Callable[[Any], str]
    limits: Limits
    each: Limits | None
    options: RunOptions
    interrupts: Interrupts

    async def run(self, model: Model | str, concurrency: int) -> ManyResult[OutputT]:
        """Open what all items share, let the crew work, close it again."""
        named = {"prompt": self.prompt, "model": model, "limits": self.limits, "each": self.each}
        check_arguments({**named, "concurrency": concurrency, "label": self.label})
        options = self.options
        session = Session(clock=options.clock, ids=options.ids)
        limits = in_force(self.limits, session, options)
        async with AsyncExitStack() as stack:
            around = open_surroundings(stack, template_of(self.prompt), model, limits, options)
            context = root_run_context(session.session_id, options.ids)
            # The whole has no last turn of its own; every item has one, inside the same ceilings.
            ceilings = replace(limits, landing=None)
            gate = gate_of(ceilings, session, context, around, options)
            unwatch = around.watch(session, context.run_id)
            try:
                with gate, self.interrupts.over(gate):
                    crew = _Crew(self, around, gate, context, session)
                    result = await crew.work(concurrency)
            finally:
                unwatch()
                if options.resources is not None:
                    await closed("the run's resources", options.resources.aclose())
        if result.stop is not None and options.raise_on_stop:
            raise RunStoppedError(result.sentence(), stop=result.stop, result=result)
        return result


class _Crew(Generic[OutputT]):
    """The items in progress: each worker takes the next one until none is left or the whole is stopped."""

    def __init__(
        self,
        job: _Job[OutputT],
        around: Surroundings,
        gate: ExecutionContext,
        context: RunContext,
        session: Session,
    ) -> None:
        self.job = job
        self.around = around
        self.gate = gate
        self.context = context
        self.session = session
        self.clock = job.options.clock
        self.owner: asyncio.Task[Any] | None = None
        self.labels = tuple(one_line(job.label(item)) for item in job.items)
        self.results: list[RunResult[OutputT] | None] = [None] * len(job.items)
        self.next = iter(range(len(job.items)))
        prompt = job.prompt
        self.prompt = Prompt(prompt) if isinstance(prompt, PromptTemplate) else prompt
        self.each = replace(job.each or PER_ITEM, landing=job.limits.landing)
        if self.each.max_turns is None:
            self.each = replace(self.each, max_turns=job.limits.max_turns)

    async def work(self, concurrency: int) -> ManyResult[OutputT]:
        side_by_side = max(min(concurrency, len(self.results)), 1)
        self.each = replace(self.each, verdict=shared_out(self.job.limits.verdict, side_by_side))
        began = self.clock.monotonic()
        self.owner = asyncio.current_task()
        template, models = self.prompt.template, self.around.models
        self.session.dispatch(
            ManyStarted(
                run_context=self.context,
                prompt_name=template.name,
                model=models.first.label,
                limits=self.gate.limits.describe(),
                items=self.labels,
                concurrency=concurrency,
                started_at=self.clock.now(),
                fallback=tuple(each.label for each in models.fallback),
            )
        )
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(self.results))):
                group.create_task(self._worker())
        stop = self._stop()
        results = tuple(result or self._not_started(index, stop) for index, result in enumerate(self.results))
        duration = timedelta(seconds=self.clock.monotonic() - began)
        many = ManyResult(self.context.run_id, results, stop, self.gate.usage, self.gate.limits, duration)
        self.session.dispatch(
            ManyEnded(
                run_id=self.context.run_id,
                stop=stop,
                done=len(many.done),
                items=len(results),
                usage=many.usage,
                duration_ms=duration.total_seconds() * 1000,
                ended_at=self.clock.now(),
            )
        )
        return many

    def _stop(self) -> Stop | None:
        """Return what ended the whole, if anything was left undone for it."""
        stop = self.gate.stop or self.gate.work_stop
        undone = any(result is None or not result.ok for result in self.results)
        return stop if undone else None

    def _ends_the_whole(self, stop: Stop) -> bool:
        """Whether a limit that ended one item was a ceiling over all: one that the item did not have itself."""
        if stop.limit is None or stop.limit == "max_turns":
            return False
        own, whole = getattr(self.each, stop.limit, None), getattr(self.gate.limits, stop.limit, None)
        if own is None or whole is None:
            return own is None
        if stop.limit == "deadline":
            return self.gate.deadline is not None and self.gate.deadline.expired(self.clock)
        return bool(whole <= own)

    async def _worker(self) -> None:
        for index in self.next:
            if self.gate.stop is not None or self.gate.work_stop is not None:
                return
            result = await self._item(index)
            self.results[index] = result
            if result.stop is not None and self._ends_the_whole(result.stop):
                self.gate.land(result.stop)
            self._ended(index, result, result.run_id)

    async def _item(self, index: int) -> RunResult[OutputT]:
        """Run one item in a session and under a gate of its own."""
        options = self.job.options
        session = Session(parent=self.session, clock=options.clock, ids=options.ids)
        context = derive_child_run_context(self.context, session.session_id, options.ids)
        item = self.job.items[index]
        unwatch = self.around.watch(session, context.run_id)
        task = asyncio.current_task()
        try:
            with self.gate.child(self.each, self.labels[index], carve=False, on_event=session.dispatch) as gate:
                plan = plan_of(self.prompt.bind(*_as_params(item)), self.around, gate.deadline, options)
                above, label = self.context.run_id, self.labels[index]
                return await execute(plan, home_of(session, gate, context, options, self.around, above, label))
        except BaseException as error:
            if task is not None and self.owner is not None and not self.owner.cancelling():
                while task.cancelling():  # by the item's own code: whoever wants to end the job cancels all of it
                    task.uncancel()
            if not is_crash(error, task):
                raise
            stop = Stop("error", "loop", f"The item failed: {error_text(error)}")
            return self._without_run(index, stop, session, context, error)
        finally:
            unwatch()

    def _not_started(self, index: int, stop: Stop | None) -> RunResult[OutputT]:
        why = stop or Stop("error", "loop", "The item was not started.")
        session = Session(parent=self.session, clock=self.clock)
        context = derive_child_run_context(self.context, session.session_id, self.job.options.ids)
        said = replace(why, message=f"Not started: {why.message}")
        result = self._without_run(index, said, session, context, None)
        self._ended(index, result, None)
        return result

    def _without_run(
        self, index: int, stop: Stop, session: Session, context: RunContext, error: BaseException | None
    ) -> RunResult[OutputT]:
        """Return the result of an item whose loop never ran, or could not go on."""
        return without_output(
            stop,
            run_id=context.run_id,
            prompt_name=self.prompt.template.name,
            model=self.around.models.first.label,
            limits=self.each,
            session=session,
            error=error,
            item=self.labels[index],
        )

    def _ended(self, index: int, result: RunResult[Any], run_id: Any) -> None:
        self.session.dispatch(
            ItemEnded(
                index,
                self.labels[index],
                run_id,
                result.sentence(),
                result.stop,
                self.clock.now(),
                result.completion,
            )
        )


def shared_out(verdict: Verdict | None, count: int) -> Verdict | None:
    """Return what each of several items keeps back of the common ceilings, so that together they keep no more."""
    return verdict if verdict is None or count == 1 else replace(verdict, share=verdict.share / count)


def one_line(label: object) -> str:
    """Return a label as it can stand in a sentence: one line, and not a whole item that was taken for its own name."""
    text = " ".join(str(label).split())
    return text if len(text) <= LABEL_CHARS else f"{text[: LABEL_CHARS - 1]}…"


def listed(items: Iterable[Any]) -> tuple[Any, ...]:
    """Return the items.

    Raises:
        ConfigurationError: If they are a text, a mapping, or nothing that can be gone through.
    """
    check_arguments({"items": items})
    return tuple(items)


def _as_params(item: Any) -> tuple[Any, ...]:
    """Return what one item binds: itself, or each of several values."""
    return tuple(item) if isinstance(item, tuple) else (item,)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
