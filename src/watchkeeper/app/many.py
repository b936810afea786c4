"""`run_many`: the same agent over many items, unattended, under one ceiling.

Every item is a run of its own: fresh session, own turns, own log. All of them draw from one gate, so the ceiling holds
over them together. There is one result per item, in order; an item that fails never loses the others; when a limit
ends the whole, what was not done is marked as not done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, Unpack

from watchkeeper.app.checks import check_arguments
from watchkeeper.app.interrupts import Interrupts
from watchkeeper.app.options import RunKeywords, RunOptions, options_for_run
from watchkeeper.app.run import gate_of, home_of, in_force, plan_of, template_of
from watchkeeper.app.surroundings import Surroundings, open_surroundings
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.crashes import is_crash, said_by
from watchkeeper.core.errors import RunStoppedError
from watchkeeper.core.limits import Limits, Verdict
from watchkeeper.core.model import Model
from watchkeeper.core.run_context import RunContext, derive_child_run_context, root_run_context
from watchkeeper.core.stop import Stop
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.bounded import closed
from watchkeeper.runtime.events import ItemEnded, ManyEnded, ManyStarted
from watchkeeper.runtime.plan import Place
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.runtime.result import ManyResult, RunResult, without_output
from watchkeeper.runtime.run import execute
from watchkeeper.session.session import Session

OutputT = TypeVar("OutputT")

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
                place = Place(self.context.run_id, self.labels[index])
                return await execute(plan, home_of(session, gate, context, options, self.around, place))
        except BaseException as error:
            if task is not None and self.owner is not None and not self.owner.cancelling():
                while task.cancelling():  # by the item's own code: whoever wants to end the job cancels all of it
                    task.uncancel()
            if not is_crash(error, task):
                raise
            stop = Stop("error", "loop", f"The item failed: {said_by(error)}")
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
