"""`resume`, `resume_many` and `fork`: they go on with a run that is on record.

A resumed run keeps its id, its log and its limits; what was used before counts. Completed model calls and tool calls
are not repeated (`loop/resume`). Everything that is not on record (the code, clients, secrets, resources) comes from
the caller. A fork begins with the record of a run up to one of its events, and has an id and limits of its own. Of a
run over many items the caller gives the items again; what is not done yet is done (`loop/resume_many`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from datetime import timedelta
from uuid import UUID
from typing import Any, Generic, TypeVar, Unpack, cast

import msgspec

from watchkeeper.accounting.limits import Limits
from watchkeeper.app.options import ManyOptions, RunOptions, check_arguments, options_for_run
from watchkeeper.app.items import as_label
from watchkeeper.app.run import Request, listed
from watchkeeper.app.surroundings import open_store
from watchkeeper.children.innermost import is_inside
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError, LimitsError, SessionError
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.core.model import Model
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.workers import run_in_worker
from watchkeeper.loop.reopen import Reader, end_of, loaded
from watchkeeper.loop.resume import Recorded, Resumed
from watchkeeper.loop.used import exhausted_still, limits_of, time_left
from watchkeeper.loop.resume_many import ONLY, Only, ResumedMany, end_of_many, many_taken_over
from watchkeeper.prompt.template import AnyPrompt, Prompt, PromptTemplate
from watchkeeper.runtime.events import RunOpened
from watchkeeper.runtime.parking import PARKED, refuse_waiting
from watchkeeper.runtime.result import ManyResult, RunResult
from watchkeeper.session.session import Session
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore
from watchkeeper.disk.sqlite import DEFAULT

OutputT = TypeVar("OutputT")


class ResumeOptions(RunOptions, total=False):
    """The options of `resume`: those of a run, and these.

    Attributes:
        limits: New limits for all attempts together; those on record by default.
        fresh_limits: Whether what was used before does not count.
        accept_changes: Whether the run may go on although its prompt, tools, answer type or models have changed.
        prepare: Registers the reducers that the session of the run had.
    """

    limits: Limits | None
    fresh_limits: bool
    accept_changes: bool
    prepare: Callable[[Session], object]


class ForkOptions(RunOptions, total=False):
    """The options of `fork`: those of a run, and these.

    Attributes:
        limits: The limits of the new run; those on record by default, as if nothing was used.
        prepare: Registers the reducers that the session of the run had.
    """

    limits: Limits | None
    prepare: Callable[[Session], object]


class ResumeManyOptions(ManyOptions, total=False):
    """The options of `resume_many`: those of `run_many`, and these.

    Attributes:
        limits: New limits for all items and attempts together; those on record by default.
        fresh_limits: Whether what was used before does not count.
        accept_changes: Whether the run may go on although its prompt, tools, answer type or models have changed.
        only: ``failed`` for the items that ended without being done, ``unstarted`` for those that never began or were
            interrupted or parked; None for both.
    """

    limits: Limits | None
    fresh_limits: bool
    accept_changes: bool
    only: Only | None


def resume(
    run_id: str, prompt: AnyPrompt[OutputT], *, model: Model | str, **options: Unpack[ResumeOptions]
) -> RunResult[OutputT]:
    """Go on with a run that was interrupted, to its end, and return how it ended; see `aresume` for the arguments."""
    order = order_of(run_id, prompt, model, options, ResumeOptions)
    return cast("RunResult[OutputT]", order.wait("aresume"))


async def aresume(
    run_id: str, prompt: AnyPrompt[OutputT], *, model: Model | str, **options: Unpack[ResumeOptions]
) -> RunResult[OutputT]:
    """Go on with a run that was interrupted, to its end, and return how it ended.

    Args:
        run_id: Its id, or the beginning of it.
        prompt: The prompt of the run; values that it lacks are those on record.
        model: The model that answers from here on.
        options: See `ResumeOptions`; ``store`` is the store of the run.

    Raises:
        ConfigurationError: If the run has ended, or cannot go on with what is given; nothing was spent.
        StoreError: If the run is not in the store, is running, or cannot be read.
    """
    order = order_of(run_id, prompt, model, options, ResumeOptions)
    return cast("RunResult[OutputT]", await order.carry_out())


def resume_many(
    run_id: str,
    prompt: AnyPrompt[OutputT],
    items: Iterable[Any],
    *,
    model: Model | str,
    **options: Unpack[ResumeManyOptions],
) -> ManyResult[OutputT]:
    """Go on with a run over many items and return one result for each; see `aresume_many` for the arguments."""
    order = order_of(run_id, prompt, model, options, ResumeManyOptions, items=listed(items))
    return cast("ManyResult[OutputT]", order.wait("aresume_many"))


async def aresume_many(
    run_id: str,
    prompt: AnyPrompt[OutputT],
    items: Iterable[Any],
    *,
    model: Model | str,
    **options: Unpack[ResumeManyOptions],
) -> ManyResult[OutputT]:
    """Go on with a run over many items and return one result for each, also for those that were done before.

    An item that was interrupted goes on from its own record. One that failed is begun anew, as a new run of the same
    item; what its earlier run used stays counted.

    Args:
        run_id: Its id, or the beginning of it.
        prompt: The prompt of the run; values that it lacks are those on record.
        items: The items of the run, the same ones in the same order.
        model: The model that answers from here on.
        options: See `ResumeManyOptions`; ``store`` is the store of the run.

    Raises:
        ConfigurationError: If the run is done, the items are others, or it cannot go on with what is given; nothing was
            spent.
        StoreError: If the run is not in the store, is running, or cannot be read.
    """
    order = order_of(run_id, prompt, model, options, ResumeManyOptions, items=listed(items))
    return cast("ManyResult[OutputT]", await order.carry_out())


def fork(
    run_id: str, prompt: AnyPrompt[OutputT], *, at: int, model: Model | str, **options: Unpack[ForkOptions]
) -> RunResult[OutputT]:
    """Go on from an event of a run as a new run, to its end, and return how it ended; see `afork` for the arguments."""
    order = order_of(run_id, prompt, model, options, ForkOptions, at=at)
    return cast("RunResult[OutputT]", order.wait("afork"))


async def afork(
    run_id: str, prompt: AnyPrompt[OutputT], *, at: int, model: Model | str, **options: Unpack[ForkOptions]
) -> RunResult[OutputT]:
    """Go on from an event of a run as a new run, to its end, and return how it ended.

    The new run begins with the conversation and the session as they were at that event; tools, answer type and model
    may differ from those of the run. What the run has used does not count. Its record is not changed.

    Args:
        run_id: Id of the run, or the beginning of it.
        prompt: The prompt of the run; values that it lacks are those on record.
        at: Number of the last event that counts, as `watchkeeper replay` and `show --json` print it.
        model: The model that answers from there on.
        options: See `ForkOptions`; ``store`` is the store of the run, and of the new one.

    Raises:
        ConfigurationError: If there is nothing to go on with at that event.
        StoreError: If the run is not in the store, or cannot be read.
    """
    order = order_of(run_id, prompt, model, options, ForkOptions, at=at)
    return cast("RunResult[OutputT]", await order.carry_out())


@dataclass(frozen=True, slots=True)
class _Order(Generic[OutputT]):
    """What the caller asked for.

    Attributes:
        run_id: Id of the run, or the beginning of it.
        prompt: Its prompt.
        model: The model that answers.
        options: Those of any run.
        own: The others.
        at: The event from which a new run goes on; None to go on with the run itself.
        items: The items of a run over many; None for any other.
    """

    run_id: str
    prompt: AnyPrompt[OutputT]
    model: Model | str
    options: ManyOptions
    own: Mapping[str, Any]
    at: int | None
    items: tuple[Any, ...] | None

    def wait(self, twin: str) -> RunResult[OutputT] | ManyResult[OutputT]:
        """Do it, and wait for the end."""
        with opened_store(self.options, self.run_id) as store:
            return self.request(store).wait(twin)

    async def carry_out(self) -> RunResult[OutputT] | ManyResult[OutputT]:
        """Do it on this loop."""
        with opened_store(self.options, self.run_id) as store:
            request = await run_in_worker(self.request, store)
            return await request.carry_out()

    def request(self, store: RunStore) -> Request[OutputT]:
        """Take the run over, or fork it, and return the request that goes on with it."""
        own, clock = self.own, self.options.get("clock", SYSTEM_CLOCK)
        reader = Reader(store, self.options.get("filesystem"), accept_changes=own.get("accept_changes", False))
        resumed: Resumed | ResumedMany
        if self.items is not None:
            items = [(as_label(self.options.get("label", str)(item)), item) for item in self.items]
            session, resumed = items_taken_over(reader, store, self.run_id, items, own.get("only"), clock)
        elif self.at is None:
            session, resumed = taken_over(reader, store, self.run_id, own.get("prepare"), clock)
        else:
            ids = self.options.get("ids", SYSTEM_IDS)
            session, resumed = forked(store, self.run_id, self.at, own.get("prepare"), clock, ids)
        before = limits_of(each.event for each in session.log)
        limits = own.get("limits") or before
        ended = end_of(session.log) if self.items is None else end_of_many(session.log)
        if own.get("fresh_limits", False):
            resumed = resumed.with_fresh_limits()
        elif self.at is None and ended is not None:
            compacts = self.options.get("on_context_full") == "compact" or own.get("accept_changes", False)
            still = exhausted_still(ended, before, limits, clock.now(), compacts=compacts)
            resumed = msgspec.structs.replace(resumed, exhausted=still)
        return Request(
            as_bound(self.prompt, resumed.opened),
            self.model,
            left_of(limits, resumed.worked_seconds),
            cast("ManyOptions", {**self.options, "store": store}),
            session,
            items=self.items,
            resumed=resumed,
        )


def order_of(
    run_id: str,
    prompt: AnyPrompt[OutputT],
    model: Model | str,
    options: ResumeOptions | ResumeManyOptions | ForkOptions,
    kind: type[Any],
    *,
    at: int | None = None,
    items: tuple[Any, ...] | None = None,
) -> _Order[OutputT]:
    """Check what the caller asked for; ``kind`` is the type of the options."""
    check_arguments({"prompt": prompt, "model": model})
    base = RunOptions if items is None else ManyOptions
    names = kind.__annotations__.keys() - base.__annotations__.keys()
    own: dict[str, Any] = {name: value for name, value in options.items() if name in names}
    given: Any = {name: value for name, value in options.items() if name not in names}
    if own.get("limits") is not None:
        check_arguments({"limits": own["limits"]})
    if own.get("only") not in (None, *ONLY):
        raise ConfigurationError(f"only={own['only']!r} must be {' or '.join(map(repr, ONLY))}, or None")
    return _Order(run_id, prompt, model, options_for_run(given, base), own, at, items)


@contextmanager
def opened_store(options: ManyOptions, run_id: str) -> Generator[RunStore]:
    """Open the store; one that the caller has opened stays open, without the run if it was not gone on with."""
    named = options.get("store", DEFAULT)
    store = open_store(named, options.get("durability"))
    if store is None:
        raise ConfigurationError("there is no store (store=None), so there is no run to go on with")
    try:
        yield store
    finally:
        store.give_up(run_id)
        if store is not named:
            store.close()


def as_bound(prompt: AnyPrompt[OutputT], opened: RunOpened) -> Prompt[OutputT]:
    """Return a prompt with the values that it lacks, as they are on record.

    Raises:
        ConfigurationError: If what is on record are no values of parameters.
    """
    for value in opened.params:
        if not is_dataclass(value) or isinstance(value, type):
            raise ConfigurationError(f"the run {opened.run_id} has a {type(value).__name__} on record as a parameter")
    bound = Prompt(prompt) if isinstance(prompt, PromptTemplate) else prompt
    params: dict[type[Any], Any] = {**{type(value): value for value in opened.params}, **bound.params}
    return replace(bound, params=params, variables={**opened.variables, **bound.variables})


def taken_over(
    reader: Reader, store: RunStore, run_id: str, prepare: Callable[[Session], object] | None, clock: Clock
) -> tuple[Session, Resumed]:
    """Take a run over from the process that has died, and rebuild its session.

    Raises:
        ConfigurationError: If it has ended, or cannot be rebuilt.
        StoreError: If it is not there, is running, or cannot be read.
    """
    run = store.find(run_id)
    refuse_part(store, run)
    if run.items is not None or run.is_block:
        instead = "use resume_many" if run.items is not None else "only a run of an agent can be resumed"
        raise ConfigurationError(f"the run {run.run_id} is no run of one agent; {instead}")
    if run.ended_at is not None and run.stop is None:
        raise ConfigurationError(f"the run {run.run_id} is done: {run.sentence()}")
    reader.take_over(UUID(run.run_id))  # before it is read: its process may be writing still
    envelopes = reader.session_log(UUID(run.run_id))
    resumed = reader.resumed(UUID(run.run_id))
    try:
        session = Session.restored(envelopes, resumed.run_context.session_id, prepare=prepare, clock=clock)
    except SessionError as error:
        raise ConfigurationError(f"the run {run.run_id} cannot be resumed: {error}") from error
    if run.stop is not None and run.stop["reason"] == PARKED:
        refuse_waiting(run.run_id, resumed.recorded.waiting, clock.now(), store.path)
    reader.files(UUID(run.run_id)).rebuild(reader.filesystem)
    return session, resumed


def refuse_part(store: RunStore, run: StoredRun) -> None:
    """Refuse a run below another one, unless this code runs inside that one: the limits above would not hold for it.

    A contained block cannot go on, so a run that is only inside of blocks may.

    Raises:
        ConfigurationError: Naming the run to go on with.
        StoreError: If the run above it is not in the store.
    """
    above, row = "", run
    while row.parent_id is not None and not is_inside(UUID(row.parent_id)):
        row = store.find(row.parent_id)
        above = above if row.is_block else row.run_id
    if above:
        what = "an item" if run.item is not None else "a part"
        raise ConfigurationError(
            f"the run {run.run_id} is {what} of the run {run.parent_id}, whose limits hold for it; resume the run"
            f" {above}, which goes on with what is below it: agent.resume('{above}') or watchkeeper resume {above[:8]}"
        )


def items_taken_over(
    reader: Reader,
    store: RunStore,
    run_id: str,
    items: list[tuple[str, Any]],
    only: Only | None,
    clock: Clock,
) -> tuple[Session, ResumedMany]:
    """Take a run over many items over, given the items with their labels, and rebuild its session.

    Raises:
        ConfigurationError: If it is done, or the items are others, or it cannot be rebuilt.
        StoreError: If it is not there, is running, or cannot be read.
    """
    run = store.find(run_id)
    refuse_part(store, run)
    if run.items is None:
        raise ConfigurationError(f"the run {run.run_id} is not one over many items; use resume")
    if run.ended_at is not None and run.items_done == run.items:
        raise ConfigurationError(f"the run {run.run_id} is done: {run.sentence()}")
    rows = store.children(run.run_id)
    store.check(rows)
    log, resumed = many_taken_over(reader, UUID(run.run_id), rows, items, only, clock.now())
    return Session.restored(log, resumed.run_context.session_id, clock=clock), resumed


def forked(
    store: RunStore,
    run_id: str,
    at: int,
    prepare: Callable[[Session], object] | None,
    clock: Clock,
    ids: IdSource,
) -> tuple[Session, Resumed]:
    """Return a new session with the record of a run up to an event, and what a new run goes on with.

    Raises:
        ConfigurationError: If there is nothing to go on with at that event.
        StoreError: If the run is not there, or cannot be read.
    """
    run = store.find(run_id)
    if run.items is not None or run.is_block:
        raise ConfigurationError(f"the run {run.run_id} is no run of one agent, and only such a run can be forked")
    stored = list(store.events(run.run_id, past=True))
    log = [loaded(event) for event in stored]
    begun = next((each.seq for each in log if isinstance(each.event, RunOpened)), None)
    if begun is None:
        raise ConfigurationError(f"of the run {run.run_id} nothing is on record from which another could go on")
    if not begun <= at <= log[-1].seq:
        raise ConfigurationError(
            f"the run {run.run_id} cannot be forked at event {at}; its events are {begun} to {log[-1].seq}"
        )
    while stored[at - 1].more:  # what a tool wrote, without its result
        at -= 1
    recorded = Recorded(log[:at], forks=True)
    envelopes = [each for each in log if each.seq <= recorded.after]
    try:
        session = Session.restored(envelopes, ids.uuid(), prepare=prepare, clock=clock, ids=ids)
    except SessionError as error:
        raise ConfigurationError(f"the run {run.run_id} cannot be forked: {error}") from error
    return session, Resumed.of(recorded, accept_changes=True, forked=True)


def left_of(limits: Limits, worked: float) -> Limits:
    """Return limits whose length of time is what is left of it; a deadline that is a moment stays.

    Raises:
        LimitsError: If nothing is left of it.
    """
    if isinstance(limits.deadline, timedelta) and limits.deadline <= timedelta(seconds=worked):
        raise LimitsError(
            f"the run has worked for {format_duration(worked)}, and its deadline is {format_duration(limits.deadline)};"
            " to go on, give it a later one (limits=Limits(deadline=...), --timeout)"
        )
    return time_left(limits, worked)
