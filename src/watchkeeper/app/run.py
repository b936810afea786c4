"""`run`, `arun`, `run_many` and `arun_many`: they check the input, open what a run needs, run it, and close it.

`run` and `run_many` block; `arun` and `arun_many` run on the caller's loop. A stop is a result: all of them return it,
and raise only for input that cannot work (before anything is spent) or with ``raise_on_stop``.

Each item of `run_many` is a run of its own: fresh session, own turns, own log. All items use one gate, so the
ceilings hold for all of them together. There is one result per item, in order; if an item fails, the others go on; when
a limit ends everything, the items that were not done are marked as not done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar, Unpack, cast
from uuid import UUID

from watchkeeper.accounting.account import account_above
from watchkeeper.accounting.call_request import subject
from watchkeeper.accounting.ledger import Ledger
from watchkeeper.app.options import ManyOptions, OnStoreFailure, RunOptions, check_arguments, options_for_run
from watchkeeper.app.recording import store_failed
from watchkeeper.app.surroundings import Interrupts, Surroundings, open_surroundings
from watchkeeper.children.child import going_on
from watchkeeper.children.inside import Surrounding, refuse_own_account, surrounding
from watchkeeper.containment.enclosing import refuse_own
from watchkeeper.containment.execution_context import Around, ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError, RunStoppedError, Stop
from watchkeeper.core.ids import SYSTEM_IDS, IdSource, RunContext, derive_child_run_context
from watchkeeper.accounting.limits import UNLIMITED, DefaultRetries, Limits, Verdict
from watchkeeper.core.meters import BY_FIELD
from watchkeeper.core.model import Model
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.text import clipped, error_text
from watchkeeper.core.usage import ModelPrice, Usage
from watchkeeper.core.workers import is_crash
from watchkeeper.loop.resume import Resumed, digests_of_template, time_left
from watchkeeper.loop.resume_many import ResumedMany, begun_again, digest_of_item
from watchkeeper.asking.retry import CIRCUIT_OPEN
from watchkeeper.loop.run import execute, in_force, refuse_to_park
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import ItemEnded, ManyEnded, ManyStarted, ModelReplied, RunOpened
from watchkeeper.runtime.file_record import of_items
from watchkeeper.runtime.parking import Park, park_of, parked_stop
from watchkeeper.runtime.plan import RunPlan, RunScope, plan_for
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.runtime.result import ManyResult, RunResult, broken_off
from watchkeeper.runtime.user_code import closed
from watchkeeper.session.session import Session
from watchkeeper.session.tagging import check
from watchkeeper.shield.decision import ChainMetadata
from watchkeeper.disk.sqlite import DEFAULT
from watchkeeper.tools.resources import Resources

OutputT = TypeVar("OutputT")
ResultT = TypeVar("ResultT", bound="RunResult[Any] | ManyResult[Any]")

PER_ITEM: Final = replace(UNLIMITED, max_retries=DefaultRetries.EACH)
"""The limits of one item beside the ceilings over all: the default retries and the turns, unless the caller gives
others."""

OUTAGE: Final = 600.0
"""Seconds without an answer, all items together, after which a provider counts as permanently down."""

CEILINGS_OVER_ALL: Final = frozenset(("deadline", "account_limit", *BY_FIELD)) - {"max_turns"}
"""The limits that can hold for all items together; a stop can also name something else, such as the context window."""

CONCURRENCY: Final = 4
LABEL_CHARS: Final = 200
"""A longer label is cut."""


def run(
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
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
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
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
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
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
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
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

    prompt: Prompt[OutputT] | PromptTemplate[OutputT]
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
        around = surrounding(apart="parent" in options)
        gate = around.gate
        if gate is not None:
            ledger = options.get("ledger", DEFAULT)
            own = None if isinstance(ledger, str) and ledger == DEFAULT else cast("Ledger", ledger)
            refuse_own(gate.clock, options.get("clock", SYSTEM_CLOCK), gate.ledger, own)
            refuse_own_account(self.limits.account, around)
        clock = options.get("clock", SYSTEM_CLOCK) if gate is None else gate.clock
        session = self.session or Session(clock=clock, ids=self.ids)
        resumed = self.resumed
        context = around.run_context(session.session_id, self.ids)
        if resumed is not None and not (isinstance(resumed, Resumed) and resumed.forked):
            context = resumed.run_context
        late = 0.0 if called_at is None else clock.monotonic() - called_at
        limits = in_force(self.limits, session, clock, late)
        start = _Start(around, clock, session, context, limits, resumed)
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

    async def _opened(self, start: _Start, prompt: Prompt[OutputT]) -> RunResult[OutputT] | ManyResult[OutputT]:
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
            if record is not None:
                record.attach(gate, session)
            unwatch = around.watch(session, context.run_id)
            opened = _Opened(prompt, options, resources, around, gate, start)
            try:
                with self.interrupts.over(gate, None if record is None else record.hurry):
                    with gate:
                        model = around.models.first.label
                        run = partial(_run, opened) if self.items is None else _Items(self.items, opened).work
                        work = cast("Callable[[], Awaitable[RunResult[OutputT] | ManyResult[OutputT]]]", run)
                        whole = opened.scope(session, gate, context)
                        with going_on(whole):
                            result = await start.around.recorded(whole, prompt.template.name, model, work)
                    if record is not None:
                        session.flush()  # another thread may be forwarding the last events now
                        result = recorded(result, await record.settled(), options.get("on_store_failure", "stop"))
                    return result
            finally:
                unwatch()
                if not resources.end_unused():
                    await closed("the run's resources", resources.aclose())

    def _refused(self, start: _Start, prompt: Prompt[OutputT], stop: Stop) -> RunResult[OutputT] | ManyResult[OutputT]:
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
        items = tuple(replace(begun, item=one_line(label(item)), usage=Usage()) for item in self.items)
        return ManyResult(start.context.run_id, items, stop, start.usage, start.limits, timedelta(0))


@dataclass(frozen=True, slots=True)
class _Start:
    """What is known of a run before anything is opened for it.

    Attributes:
        around: The run, block or context in which the run is started.
        clock: The source of time.
        session: The session whose log gets the run's events.
        context: The identifiers of the run.
        limits: The limits in force.
        resumed: What an earlier process has put on record of the run, or None for a new one.
        gates: The gate of the run, once it is open.
    """

    around: Surrounding
    clock: Clock
    session: Session
    context: RunContext
    limits: Limits
    resumed: Resumed | ResumedMany | None = None
    gates: list[ExecutionContext] = field(default_factory=list[ExecutionContext])

    @property
    def usage(self) -> Usage:
        """What was used so far."""
        return self.gates[0].usage if self.gates else Usage()


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


@dataclass(frozen=True, slots=True)
class _Opened(Generic[OutputT]):
    """What is open during one call of a public function: its gate, its session, models, store and listeners."""

    prompt: Prompt[OutputT]
    options: ManyOptions
    resources: Resources
    around: Surroundings
    gate: ExecutionContext
    start: _Start

    def begun(self) -> None:
        """Put the start of the run into the store, if it has one."""
        if self.around.record is not None:
            self.around.record.begun()

    def plan(self, prompt: Prompt[OutputT], gate: ExecutionContext) -> RunPlan[OutputT]:
        """Render a prompt, once, and return the plan of its run."""
        models = self.around.models
        return plan_for(
            prompt,
            prompt.render(deadline=gate.deadline, output_in_prompt=models.output_in_prompt),
            models.first,
            on_context_full=self.options.get("on_context_full", "land"),
            on_delta=self.around.on_delta,
            fallback=models.fallback,
            cheaper=models.cheaper,
            escalations=models.escalations,
            child_models=models.children,
            park=self.park,
        )

    @property
    def park(self) -> Park | None:
        """How the run parks where a person is to be asked; a resumed run does so as before unless told otherwise."""
        resumed, chosen = self.start.resumed, self.options.get("on_ask")
        if chosen is None:
            return None if resumed is None else resumed.opened.park
        return park_of(chosen)

    def scope(
        self,
        session: Session,
        gate: ExecutionContext,
        context: RunContext,
        parent_run_id: UUID | None = None,
        item: str | None = None,
        item_index: int | None = None,
    ) -> RunScope:
        """Return the scope of a run."""
        around = self.start.around
        return RunScope(
            session=session,
            gate=gate,
            run_context=context,
            clock=self.start.clock,
            ids=self.options.get("ids", SYSTEM_IDS),
            rng=self.options.get("rng", SYSTEM_IDS.random),
            resources=self.resources,
            filesystem=self.options.get("filesystem"),
            parent_run_id=parent_run_id or around.parent_run_id,
            item=item,
            depths=around.depths,
            deepest=around.deepest,
            watch=partial(self.around.watch, child=True),
            price_of=partial(_price_for_sdk, self),
            apart=around.apart,
            waits_out=item is not None and self.options.get("breakers") is None,
            durable=self.around.durable,
            item_index=item_index,
        )


def _price_for_sdk(opened: _Opened[Any], provider: str, model: str, sent: Any) -> ModelPrice | None:
    """Return the price of a model that the run's code calls through a provider's own SDK."""
    from watchkeeper.app.prices import lookup

    return lookup(opened.options.get("prices") or {}, opened.start.clock)(provider, model, sent)


async def _run(opened: _Opened[OutputT]) -> RunResult[OutputT]:
    start = opened.start
    plan = opened.plan(opened.prompt, opened.gate)
    scope = opened.scope(start.session, opened.gate, start.context)
    resumed = cast("Resumed | None", start.resumed)
    return await execute(plan, scope, resumed=resumed, opened=partial(_to_go_on, opened))


def _to_go_on(opened: _Opened[Any], why: str = "") -> dict[str, Any]:
    """Return what another process needs to go on with the run, as fields of `RunOpened`; ``why`` it could not."""
    prompt, options = opened.prompt, opened.options
    params, variables = tuple(prompt.params.values()), dict(prompt.variables)
    try:
        check((params, variables))
    except CodecError as error:
        params, variables, why = (), {}, f"its parameters cannot be stored: {error}"
    origin = options.get("origin", {})
    return {"origin": origin, "params": params, "variables": variables, "not_resumable": why}


def over_all(limits: Limits) -> Limits:
    """Return the limits over many items: without a last turn, which each item has, and without the default retries."""
    lifted: Any = {"max_retries": None} if isinstance(limits.max_retries, DefaultRetries) else {}
    return replace(limits, landing=None, **lifted)


class _Items(Generic[OutputT]):
    """The items in progress: each worker takes the next one until none is left or the whole is stopped."""

    def __init__(self, items: tuple[Any, ...], opened: _Opened[OutputT]) -> None:
        options = opened.options
        self.items = items
        self.opened = opened
        self.gate = opened.gate
        self.clock = opened.start.clock
        self.ids = options.get("ids", SYSTEM_IDS)
        self.owner = asyncio.current_task()
        label = options.get("label", str)
        self.labels = tuple(one_line(label(item)) for item in items)
        self.resumed = resumed = cast("ResumedMany | None", opened.start.resumed)
        self.results: list[RunResult[OutputT] | None] = [None] * len(items)
        if resumed is not None:
            self.results = [resumed.kept.get(index) for index in range(len(items))]
        self.redo = tuple(range(len(items))) if resumed is None else resumed.redo
        self.next = iter(self.redo)
        self.began = self.clock.now()
        self.answered_at = self.clock.monotonic()
        self.concurrency = options.get("concurrency", CONCURRENCY if resumed is None else resumed.concurrency)
        limits, each = opened.start.limits, options.get("each") or PER_ITEM
        side_by_side = max(min(self.concurrency, len(items)), 1)
        self.each = replace(
            each,
            landing=limits.landing,
            max_turns=limits.max_turns if each.max_turns is None else each.max_turns,
            verdict=shared_out(limits.verdict, side_by_side),
        )
        account_above(in_force(self.each, opened.start.session, self.clock), self.gate.account)  # or raise, before all

    async def work(self) -> ManyResult[OutputT]:
        """Run every item, and record on the parent's log how the work began and ended."""
        opened, began = self.opened, self.clock.monotonic()
        if self.resumed is not None:
            limits, now = opened.start.limits, self.clock.now()
            again = begun_again(self.resumed, self.gate, limits, self.labels, self._digests(), now)
            opened.start.session.dispatch(again)
            began -= self.resumed.worked_seconds
        else:
            self._announce()
        try:
            opened.begun()
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.concurrency, len(self.redo))):
                    group.create_task(self._worker())
            stop = self._stop()
            await self._mark_rest(stop)
        except BaseException as error:
            self._close(broken_off(error), began)
            raise
        ended = self._close(stop, began)
        results = tuple(result for result in self.results if result is not None)
        took = timedelta(milliseconds=ended.duration_ms)
        return ManyResult(ended.run_id, results, stop, ended.usage, self.gate.limits, took)

    def _announce(self) -> None:
        """Record the start, and what another process needs to go on."""
        opened, start, models = self.opened, self.opened.start, self.opened.around.models
        facts = _to_go_on(opened, of_items(opened.options.get("filesystem")))
        refuse_to_park(opened.park, facts["not_resumable"])
        start.session.dispatch(
            ManyStarted(
                run_context=start.context,
                prompt_name=opened.prompt.template.name,
                model=models.first.label,
                limits=self.gate.limits.describe(),
                items=self.labels,
                concurrency=self.concurrency,
                started_at=self.clock.now(),
                fallback=tuple(each.label for each in models.fallback),
                parent_run_id=start.around.parent_run_id,
                apart=start.around.apart,
                limit_values=self.gate.limits,
            )
        )
        if opened.around.durable is not None:
            start.session.dispatch(self._run_opened(facts))

    async def _mark_rest(self, stop: Stop | None) -> None:
        """Mark the items that were not started. They may be many thousands, and the loop has other work too."""
        for index, result in enumerate(self.results):
            if result is None:
                self.results[index] = self._not_started(index, stop)
                await asyncio.sleep(0)

    def _close(self, stop: Stop | None, began: float) -> ManyEnded:
        """Record the end of the whole."""
        ended = ManyEnded(
            run_id=self.opened.start.context.run_id,
            stop=stop,
            done=sum(result is not None and result.ok for result in self.results),
            items=len(self.results),
            usage=self.gate.usage,
            duration_ms=timedelta(seconds=self.clock.monotonic() - began).total_seconds() * 1000,
            ended_at=self.clock.now(),
        )
        self.opened.start.session.dispatch(ended)
        return ended

    def _digests(self) -> dict[str, str]:
        models = self.opened.around.models
        return digests_of_template(self.opened.prompt.template, (models.first, *models.fallback))

    def _run_opened(self, facts: dict[str, Any]) -> RunOpened:
        return RunOpened(
            run_id=self.opened.start.context.run_id,
            digests=self._digests(),
            created_at=self.clock.now(),
            items=tuple(map(digest_of_item, self.items)),
            limit_values=self.opened.start.limits,
            park=self.opened.park,
            **facts,
        )

    def _stop(self) -> Stop | None:
        """Return what ended the work over all items, if any item was left undone."""
        stop = self.gate.stop or self.gate.work_stop
        undone = any(result is None or not result.ok for result in self.results)
        if stop is not None:
            return stop if undone else None
        ended = (result for result in self.results if result is not None)
        asked = [(each.name, each.call_id) for result in ended for each in result.waiting]
        return parked_stop(asked) if asked else None

    def _ends_the_whole(self, stop: Stop) -> bool:
        """Whether a limit that ended one item was a ceiling over all: one that the item did not have itself."""
        if stop.limit not in CEILINGS_OVER_ALL:
            return False
        own, whole = getattr(self.each, stop.limit, None), getattr(self.gate.limits, stop.limit, None)
        if own is None or whole is None:
            return own is None
        if stop.limit == "deadline":
            return self.gate.deadline is not None and self.gate.deadline.expired(self.clock)
        return bool(whole <= own)

    def _stop_of_all(self, stop: Stop) -> Stop | None:
        """Return what ends the work over all items because of how one of them ended, or None."""
        if self._ends_the_whole(stop):
            return self.gate.stop or self.gate.work_stop or (self._late() if stop.limit == "deadline" else stop)
        silence = self.clock.monotonic() - self.answered_at
        if silence < OUTAGE or (stop.source != "provider" and stop.reason != CIRCUIT_OPEN):
            return None
        return replace(stop, message=f"No answer for {format_duration(silence)}, for any item. {stop.message}")

    def _late(self) -> Stop:
        """Say that the time of the whole is over; what ended an item names the time that was left when it began."""
        account, end = self.gate.account, self.gate.deadline
        who, total = "The whole run", "" if end is None else format_duration(end.at - self.began)
        if (owner := account.ends_with) is not None:
            who, total = subject(owner, account), format_duration(owner.whole_seconds)
        said = f"{who} reached its deadline of {total}; what is left is for last turns and verdicts."
        return Stop("timeout", "gate", said, "deadline", total)

    async def _worker(self) -> None:
        for index in self.next:
            if self.gate.stop is not None or self.gate.work_stop is not None:
                return
            result = await self._item(index)
            self.results[index] = result
            if result.turns:
                self.answered_at = self.clock.monotonic()
            stop = None if result.stop is None else self._stop_of_all(result.stop)
            if stop is not None:
                self.gate.land(stop)
            self._ended(index, result, result.run_id)
            await asyncio.sleep(0)  # it may have ended without waiting for anything: refused by a hook, or not bound

    async def _item(self, index: int) -> RunResult[OutputT]:
        """Run one item in a session and under a gate of its own."""
        opened, label = self.opened, self.labels[index]
        going_on = None if self.resumed is None else self.resumed.going_on.get(index)
        limits, spent, resumed = self.each, None, None
        if going_on is None:
            session, context = self._session_of_item()
        else:
            log, resumed = going_on
            limits, spent, context = time_left(limits, resumed.worked_seconds), resumed.spent, resumed.run_context
            session = opened.start.session.child(session_id=context.session_id, earlier=log)
        unwatch = opened.around.watch(session, context.run_id)
        forget = session.dispatcher.subscribe(ModelReplied, self._answered)
        task = asyncio.current_task()
        try:
            with self.gate.child(limits, label, carve=False, on_event=session.dispatch, spent=spent) as gate:
                item = self.items[index]
                bound = opened.prompt.bind(*(item if isinstance(item, tuple) else (item,)))
                scope = opened.scope(session, gate, context, opened.start.context.run_id, label, index)
                plan = opened.plan(bound, gate)
                more = partial(_to_go_on, opened, of_items(scope.filesystem))
                return await execute(plan, scope, resumed=resumed, opened=more)
        except BaseException as error:
            if task is not None and self.owner is not None and not self.owner.cancelling():
                while task.cancelling():  # by the item's own code: a caller that ends the job cancels all items
                    task.uncancel()
            if not is_crash(error, task):
                raise
            stop = Stop("error", "loop", f"The item failed: {error_text(error)}")
            return self._without_run(index, stop, session, context, error)
        finally:
            forget()
            unwatch()

    def _answered(self, _: ModelReplied) -> None:
        self.answered_at = self.clock.monotonic()

    def _session_of_item(self) -> tuple[Session, RunContext]:
        session = Session(parent=self.opened.start.session, clock=self.clock, ids=self.ids)
        return session, derive_child_run_context(self.opened.start.context, session.session_id, self.ids)

    def _not_started(self, index: int, stop: Stop | None) -> RunResult[OutputT]:
        if index not in self.redo:
            left = Stop("error", "caller", "It was left as it was: other items were asked for.")
            return self._without_run(index, left, *self._session_of_item(), None)
        why = stop or Stop("error", "loop", "The item was not started.")
        said = replace(why, message=f"Not started: {why.message}")
        result = self._without_run(index, said, *self._session_of_item(), None)
        self._ended(index, result, None)
        return result

    def _without_run(
        self, index: int, stop: Stop, session: Session, context: RunContext, error: BaseException | None
    ) -> RunResult[OutputT]:
        """Return the result of an item whose loop never ran, or could not go on."""
        return RunResult(
            stop=stop,
            run_id=context.run_id,
            prompt_name=self.opened.prompt.template.name,
            model=self.opened.around.models.first.label,
            limits=self.each,
            started_at=self.clock.now(),
            session=session,
            error=error,
            item=self.labels[index],
        )

    def _ended(self, index: int, result: RunResult[Any], run_id: UUID | None) -> None:
        said, now = result.sentence(), self.clock.now()
        ended = ItemEnded(index, self.labels[index], run_id, said, result.stop, now, result.completion)
        self.opened.start.session.dispatch(ended)


def shared_out(verdict: Verdict | None, count: int) -> Verdict | None:
    """Return what each of several items reserves of the common ceilings, so that together they reserve no more."""
    return verdict if verdict is None or count == 1 else replace(verdict, share=verdict.share / count)


def one_line(label: object) -> str:
    """Return a label as one line of limited length."""
    return clipped(" ".join(str(label).split()), LABEL_CHARS)


def listed(items: Iterable[Any]) -> tuple[Any, ...]:
    """Return the items.

    Raises:
        ConfigurationError: If they are a text, a mapping, or not iterable.
    """
    check_arguments({"items": items})
    return tuple(items)
