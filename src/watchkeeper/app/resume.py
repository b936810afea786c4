"""`resume`: goes on with a run whose process has died, from what is on record of it. `fork`: goes on as a new run.

A resumed run keeps its id, its log and its limits; what was used before counts. Completed model calls and tool calls
are not repeated (`loop/resume`). Everything that is not on record (the code, clients, secrets, resources) comes from
the caller. A fork begins with the record of a run up to one of its events, and has an id and limits of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID
from typing import Any, Generic, TypeVar, Unpack, cast

import msgspec

from watchkeeper.accounting.limits import Limits
from watchkeeper.app.options import RunOptions, check_arguments, options_for_run
from watchkeeper.app.run import Request
from watchkeeper.app.surroundings import open_store
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError, LimitsError, SessionError
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.core.model import Model
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.usage import Usage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.loop.parked_calls import refuse_waiting
from watchkeeper.loop.reopen import Reader, loaded
from watchkeeper.loop.resume import Recorded, Resumed, limits_of, time_left
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import RunOpened
from watchkeeper.runtime.parking import PARKED
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.session import Session
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


OWN: frozenset[str] = frozenset(ResumeOptions.__annotations__.keys() - RunOptions.__annotations__.keys())


def resume(
    run_id: str,
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    *,
    model: Model | str,
    **options: Unpack[ResumeOptions],
) -> RunResult[OutputT]:
    """Go on with a run that was interrupted, to its end, and return how it ended; see `aresume` for the arguments."""
    order: _Order[OutputT] = order_of(run_id, prompt, model, options)
    with opened_store(order.options, order.run_id) as store:
        return cast("RunResult[OutputT]", order.request(store).wait("aresume"))


async def aresume(
    run_id: str,
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    *,
    model: Model | str,
    **options: Unpack[ResumeOptions],
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
    order: _Order[OutputT] = order_of(run_id, prompt, model, options)
    with opened_store(order.options, order.run_id) as store:
        request = await run_in_worker(order.request, store)
        return cast("RunResult[OutputT]", await request.carry_out())


def fork(
    run_id: str,
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    *,
    at: int,
    model: Model | str,
    **options: Unpack[ForkOptions],
) -> RunResult[OutputT]:
    """Go on from an event of a run as a new run, to its end, and return how it ended; see `afork` for the arguments."""
    order = order_of(run_id, prompt, model, cast("ResumeOptions", options), at)
    with opened_store(order.options, order.run_id) as store:
        return cast("RunResult[OutputT]", order.request(store).wait("afork"))


async def afork(
    run_id: str,
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    *,
    at: int,
    model: Model | str,
    **options: Unpack[ForkOptions],
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
    order = order_of(run_id, prompt, model, cast("ResumeOptions", options), at)
    with opened_store(order.options, order.run_id) as store:
        request = await run_in_worker(order.request, store)
        return cast("RunResult[OutputT]", await request.carry_out())


@dataclass(frozen=True, slots=True)
class _Order(Generic[OutputT]):
    """What the caller asked for; ``at``: the event from which a new run goes on."""

    run_id: str
    prompt: Prompt[OutputT]
    model: Model | str
    options: RunOptions
    own: ResumeOptions
    at: int | None = None

    def request(self, store: RunStore) -> Request[OutputT]:
        """Take the run over, or fork it, and return the request that goes on with it."""
        own, clock = self.own, self.options.get("clock", SYSTEM_CLOCK)
        if self.at is None:
            accepted = own.get("accept_changes", False)
            reader = Reader(store, self.options.get("filesystem"), accept_changes=accepted)
            session, resumed = taken_over(reader, store, self.run_id, own.get("prepare"), clock)
        else:
            ids = self.options.get("ids", SYSTEM_IDS)
            session, resumed = forked(store, self.run_id, self.at, own.get("prepare"), clock, ids)
        if own.get("fresh_limits", False):
            resumed = msgspec.structs.replace(resumed, spent=Usage(), worked_seconds=0.0)
            resumed.recorded.earlier_turns = resumed.recorded.turns_until(resumed.recorded.after)
        recorded = resumed.recorded
        limits = own.get("limits") or limits_of(each.event for each in recorded.log)
        return Request(
            as_bound(self.prompt, recorded.opened),
            self.model,
            left_of(limits, resumed.worked_seconds),
            cast("Any", {**self.options, "store": store}),
            session,
            resumed=resumed,
        )


@contextmanager
def opened_store(options: RunOptions, run_id: str) -> Generator[RunStore]:
    """Open the store; one that the caller has opened stays open, without the run if it was not gone on with."""
    named = options.get("store", DEFAULT)
    store = open_store(named)
    if store is None:
        raise ConfigurationError("there is no store (store=None), so there is no run to go on with")
    try:
        yield store
    finally:
        store.give_up(run_id)
        if store is not named:
            store.close()


def as_bound(prompt: Prompt[OutputT], opened: RunOpened) -> Prompt[OutputT]:
    """Return a prompt with the values that it lacks, as they are on record."""
    params: dict[type[Any], Any] = {**{type(value): value for value in opened.params}, **prompt.params}
    return replace(prompt, params=params, variables={**opened.variables, **prompt.variables})


def order_of(
    run_id: str,
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    model: Model | str,
    options: ResumeOptions,
    at: int | None = None,
) -> _Order[OutputT]:
    """Check what the caller asked for."""
    check_arguments({"prompt": prompt, "model": model})
    own: Any = {name: value for name, value in options.items() if name in OWN}
    given: Any = {name: value for name, value in options.items() if name not in OWN}
    if own.get("limits") is not None:
        check_arguments({"limits": own["limits"]})
    bound = Prompt(prompt) if isinstance(prompt, PromptTemplate) else prompt
    return _Order(run_id, bound, model, options_for_run(given), own, at)


def taken_over(
    reader: Reader, store: RunStore, run_id: str, prepare: Callable[[Session], object] | None, clock: Clock
) -> tuple[Session, Resumed]:
    """Take a run over from the process that has died, and rebuild its session.

    Raises:
        ConfigurationError: If it has ended, or cannot be rebuilt.
        StoreError: If it is not there, is running, or cannot be read.
    """
    run = store.find(run_id)
    if run.item is not None:
        raise ConfigurationError(f"the run {run.run_id} is an item of the run {run.parent_id}; resume that one")
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
        refuse_waiting(run.run_id, resumed.recorded.waiting, clock.now())
    reader.files(UUID(run.run_id)).rebuild(reader.filesystem)
    return session, resumed


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
    recorded = Recorded(log[:at])
    recorded.earlier_turns = recorded.turns_until(recorded.after)
    envelopes = [each for each in log if each.seq <= recorded.after]
    try:
        session = Session.restored(envelopes, ids.uuid(), prepare=prepare, clock=clock, ids=ids)
    except SessionError as error:
        raise ConfigurationError(f"the run {run.run_id} cannot be forked: {error}") from error
    return session, Resumed(recorded, Usage(), (), 0.0, accept_changes=True, forked=True)


def left_of(limits: Limits, worked: float) -> Limits:
    """Return limits whose length of time is what is left of it; a deadline that is a moment stays.

    Raises:
        LimitsError: If nothing is left of it.
    """
    if isinstance(limits.deadline, timedelta) and limits.deadline <= timedelta(seconds=worked):
        raise LimitsError(
            f"the run has worked for {format_duration(worked)}, and its deadline is {format_duration(limits.deadline)};"
            " to go on, give it a later one (limits=Limits(deadline=...), --deadline)"
        )
    return time_left(limits, worked)
