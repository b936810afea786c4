"""`run`, `arun`, `run_many` and `arun_many`: they check the input, open what a run needs, run it, and close it.

`run` and `run_many` block; `arun` and `arun_many` run on the caller's loop. A stop is a result: all of them return it,
and raise only for input that cannot work (before anything is spent) or with ``raise_on_stop``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar, Unpack, cast

from watchkeeper.accounting.ledger import Ledger
from watchkeeper.app.items import Items, as_label
from watchkeeper.app.opened import Opened, Start, to_go_on
from watchkeeper.app.options import ManyOptions, OnStoreFailure, RunOptions, check_arguments, options_for_run
from watchkeeper.app.recording import store_failed
from watchkeeper.app.surroundings import Interrupts, open_surroundings
from watchkeeper.children.innermost import going_on, session_here
from watchkeeper.children.inside import refuse_own_account, surrounding
from watchkeeper.containment.enclosing import refuse_own
from watchkeeper.containment.execution_context import Around, ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError, RunStoppedError, Stop
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.accounting.limits import Limits, over_all
from watchkeeper.core.model import Model
from watchkeeper.core.usage import Usage
from watchkeeper.loop.resume import Resumed
from watchkeeper.loop.resume_many import ResumedMany
from watchkeeper.loop.run import execute, in_force
from watchkeeper.prompt.template import AnyPrompt, Prompt, PromptTemplate
from watchkeeper.runtime.parking import park_of
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.runtime.result import ManyResult, RunResult
from watchkeeper.runtime.tracing import traced
from watchkeeper.runtime.user_code import closed
from watchkeeper.session.session import Session
from watchkeeper.shield.decision import ChainMetadata
from watchkeeper.disk.sqlite import DEFAULT
from watchkeeper.tools.resources import Resources

OutputT = TypeVar("OutputT")
ResultT = TypeVar("ResultT", bound="RunResult[Any] | ManyResult[Any]")


def run(
    prompt: AnyPrompt[OutputT],
    *,
    model: Model | str,
    limits: Limits = Limits(),
    session: Session | None = None,
    **options: Unpack[RunOptions],
) -> RunResult[OutputT]:
    """Run an agent to its end and return how it ended; see `arun` for the arguments.

    Ctrl-C lands the run: it takes a last turn and hands over what it has. A second one stops it hard.
    """
    request = Request(prompt, model, limits, options_for_run(options), session)
    return cast("RunResult[OutputT]", request.wait("arun"))


async def arun(
    prompt: AnyPrompt[OutputT],
    *,
    model: Model | str,
    limits: Limits = Limits(),
    session: Session | None = None,
    **options: Unpack[RunOptions],
) -> RunResult[OutputT]:
    """Run an agent to its end and return how it ended.

    Args:
        prompt: A bound prompt, or a template without placeholders.
        model: The model that answers: a `Model`, or a string such as ``openai:gpt-5-mini`` or ``local``.
        limits: The limits of the run, its children included.
        session: An earlier session to continue: its slices, its log, its conversation.
        options: See `RunOptions`.

    Raises:
        ConfigurationError: If something the caller wrote cannot work; nothing was spent.
        StoreError: If the store cannot be written; nothing was spent.
        RunStoppedError: Only with ``raise_on_stop``.
    """
    request = Request(prompt, model, limits, options_for_run(options), session)
    return cast("RunResult[OutputT]", await request.carry_out())


def run_many(
    prompt: AnyPrompt[OutputT],
    items: Iterable[Any],
    *,
    model: Model | str,
    limits: Limits = Limits(),
    **options: Unpack[ManyOptions],
) -> ManyResult[OutputT]:
    """Run an agent over many items and return one result for each; see `arun_many` for the arguments."""
    request = Request(prompt, model, limits, options_for_run(options, ManyOptions), items=listed(items))
    return cast("ManyResult[OutputT]", request.wait("arun_many"))


async def arun_many(
    prompt: AnyPrompt[OutputT],
    items: Iterable[Any],
    *,
    model: Model | str,
    limits: Limits = Limits(),
    **options: Unpack[ManyOptions],
) -> ManyResult[OutputT]:
    """Run an agent over many items and return one result for each.

    Args:
        prompt: The prompt to which each item is bound.
        items: One dataclass value per run, or a tuple of several to bind together.
        model: The model that answers.
        limits: Ceilings over all items together; ``max_turns`` holds for each item.
        options: See `ManyOptions` and `RunOptions`.

    Raises:
        ConfigurationError: If something the caller wrote cannot work; nothing was spent.
        StoreError: If the store cannot be written; nothing was spent.
        RunStoppedError: Only with ``raise_on_stop``, if the run over all items was stopped.
    """
    request = Request(prompt, model, limits, options_for_run(options, ManyOptions), items=listed(items))
    return cast("ManyResult[OutputT]", await request.carry_out())


@dataclass(frozen=True, slots=True)
class Request(Generic[OutputT]):
    """What the caller asked for, before anything is opened."""

    prompt: AnyPrompt[OutputT]
    model: Model | str
    limits: Limits
    options: ManyOptions
    session: Session | None = None
    items: tuple[Any, ...] | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)
    resumed: Resumed | ResumedMany | None = None

    def wait(self, twin: str) -> RunResult[OutputT] | ManyResult[OutputT]:
        """Do it on the shared loop, which may be late to begin, and wait for the end."""
        gate = surrounding(apart="parent" in self.options).gate
        clock = self.options.get("clock", SYSTEM_CLOCK) if gate is None else gate.clock
        return PORTAL.call(self.carry_out(clock.monotonic()), twin, self.interrupts.interrupt)

    async def carry_out(self, called_at: float | None = None) -> RunResult[OutputT] | ManyResult[OutputT]:
        """Do the requested work inside the enclosing scope, and return how it ended.

        Args:
            called_at: When the caller called, if that was on another thread; the loop may be late.
        """
        check_arguments({"prompt": self.prompt, "model": self.model, "limits": self.limits, "session": self.session})
        options = self.options
        around = surrounding(apart="parent" in options, traceparent=options.get("traceparent"))
        gate = around.gate
        if gate is not None:
            ledger = options.get("ledger", DEFAULT)
            own = None if isinstance(ledger, str) and ledger == DEFAULT else cast("Ledger", ledger)
            refuse_own(gate.clock, options.get("clock", SYSTEM_CLOCK), gate.ledger, own)
            refuse_own_account(self.limits.account, around)
        clock = options.get("clock", SYSTEM_CLOCK) if gate is None else gate.clock
        session = session_here(self.session) if self.session is not None else Session(clock=clock, ids=self.ids)
        resumed = self.resumed
        context = around.run_context(session.session_id, self.ids)
        if resumed is not None and not (isinstance(resumed, Resumed) and resumed.forked):
            resumed = resumed.renewed(context)
            context = resumed.run_context
        late = 0.0 if called_at is None else clock.monotonic() - called_at
        limits = in_force(self.limits, session, clock, late)
        start = Start(around, clock, session, context, limits, resumed)
        prompt = Prompt(self.prompt) if isinstance(self.prompt, PromptTemplate) else self.prompt
        ended = await around.passed(prompt.template.name, partial(self._opened, start, prompt))
        result = self._refused(start, prompt, ended) if isinstance(ended, Stop) else ended
        if result.stop is not None and options.get("raise_on_stop"):
            error = result.error if isinstance(result, RunResult) else None
            raise RunStoppedError(result.sentence(), stop=result.stop, result=result) from error
        return result

    @property
    def ids(self) -> IdSource:
        """Where identifiers come from."""
        return self.options.get("ids", SYSTEM_IDS)

    async def _opened(self, start: Start, prompt: Prompt[OutputT]) -> RunResult[OutputT] | ManyResult[OutputT]:
        """Open what a run needs, do the work, and close everything again, also after an error.

        The gate of a run over many items has no last turn; every item has one instead, inside the same ceilings.
        """
        options, limits, session, context = self.options, start.limits, start.session, start.context
        async with AsyncExitStack() as stack:
            many, template = self.items is not None, prompt.template
            around = await open_surroundings(stack, template, self.model, limits, options, start.around, many=many)
            if around.durable is None and park_of(options.get("on_ask", "deny")) is not None:
                raise ConfigurationError("on_ask='park' needs a store, because a parked run goes on from its record")
            place: Around = {"parent": None} if start.around.gate is None else {}
            if start.resumed is not None:
                place["spent"] = start.resumed.spent
            gate = ExecutionContext(
                over_all(limits) if many else limits,
                options.get("shield"),
                ChainMetadata(str(context.request_id), str(context.run_id)),
                circuit_breaker=around.breakers,
                ledger=around.ledger,
                clock=start.clock,
                ids=self.ids,
                on_event=session.dispatch,
                **place,
            )
            start.gates.append(gate)
            resources = options.get("resources") or Resources()
            record = around.record
            around.opened(gate, session)
            unwatch = around.watch(session, context.run_id)
            opened = Opened(prompt, options, resources, around, gate, start)
            try:
                with self.interrupts.over(gate, None if record is None else record.hurry):
                    with gate:
                        model = around.models.first.label
                        run = partial(_run, opened) if self.items is None else Items(self.items, opened).work
                        work = cast("Callable[[], Awaitable[RunResult[OutputT] | ManyResult[OutputT]]]", run)
                        whole = opened.scope(session, gate, context)
                        with going_on(whole), traced(whole):
                            result = await start.around.recorded(whole, prompt.template.name, model, work)
                    if record is not None:
                        session.flush()  # another thread may be forwarding the last events now
                        result = recorded(result, await record.settled(), options.get("on_store_failure", "stop"))
                    return await around.told(result)
            finally:
                unwatch()
                if not resources.end_unused():
                    await closed("the run's resources", resources.aclose())

    def _refused(self, start: Start, prompt: Prompt[OutputT], stop: Stop) -> RunResult[OutputT] | ManyResult[OutputT]:
        """Return the result of a run that the outer gate refused to start, or ended without a result."""
        model = self.model if isinstance(self.model, str) else f"{self.model.provider}:{self.model.name}"
        begun: RunResult[OutputT] = RunResult(
            stop=stop,
            run_id=start.context.run_id,
            prompt_name=prompt.template.name,
            model=model,
            limits=start.limits,
            started_at=start.clock.now(),
            session=start.session,
            usage=start.usage,
        )
        if self.items is None:
            return begun
        label = self.options.get("label", str)
        items = tuple(replace(begun, item=as_label(label(item)), usage=Usage()) for item in self.items)
        return ManyResult(start.context.run_id, items, stop, start.usage, start.limits, timedelta(0))


def recorded(result: ResultT, not_stored: str, choice: OnStoreFailure) -> ResultT:
    """Return the result with what is not on record; that stops a run, unless it may go on without its record."""
    if not not_stored:
        return result
    result = replace(result, not_stored=not_stored)
    if choice == "go_on" or result.stop is not None:
        return result
    stop = store_failed(not_stored)
    if isinstance(result, ManyResult):
        return replace(result, stop=stop)
    partial = result.partial if result.output is None else result.output
    return replace(result, stop=stop, output=None, partial=partial)


async def _run(opened: Opened[OutputT]) -> RunResult[OutputT]:
    start = opened.start
    plan = opened.plan(opened.prompt, opened.gate)
    scope = opened.scope(start.session, opened.gate, start.context)
    resumed = cast("Resumed | None", start.resumed)
    return await execute(plan, scope, resumed=resumed, opened=partial(to_go_on, opened))


def listed(items: Iterable[Any]) -> tuple[Any, ...]:
    """Return the items.

    Raises:
        ConfigurationError: If they are a text, a mapping, or not iterable.
    """
    check_arguments({"items": items})
    return tuple(items)
