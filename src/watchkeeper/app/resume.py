"""`resume`: goes on with a run whose process has died, from what is on record of it.

The run keeps its id, its log and its limits; what was used before counts. Completed model calls and tool calls are not
repeated (`loop/resume`). What is not on record (the code, clients, secrets, resources) comes from the caller.
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
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError, LimitsError, SessionError
from watchkeeper.core.model import Model
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.usage import Usage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.loop.resume import Recorded, Resumed, limits_of, spent_of, worked_seconds
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import CallBegun
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.store.run_store import RunStore, StoredEvent
from watchkeeper.store.sqlite import DEFAULT

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
    with order.store() as store:
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
    with order.store() as store:
        request = await run_in_worker(order.request, store)
        return cast("RunResult[OutputT]", await request.carry_out())


@dataclass(frozen=True, slots=True)
class _Order(Generic[OutputT]):
    """What the caller asked for."""

    run_id: str
    prompt: Prompt[OutputT]
    model: Model | str
    options: RunOptions
    own: ResumeOptions

    @contextmanager
    def store(self) -> Generator[RunStore]:
        """Open the store; one that the caller has opened stays open, without the run if it was not gone on with."""
        named = self.options.get("store", DEFAULT)
        store = open_store(named)
        if store is None:
            raise ConfigurationError("there is no store (store=None), so there is no run to go on with")
        try:
            yield store
        finally:
            store.give_up(self.run_id)
            if store is not named:
                store.close()

    def request(self, store: RunStore) -> Request[OutputT]:
        """Take the run over, and return the request that goes on with it."""
        own, clock = self.own, self.options.get("clock", SYSTEM_CLOCK)
        session, resumed = taken_over(store, self.run_id, own.get("prepare"), clock)
        resumed = msgspec.structs.replace(resumed, accept_changes=own.get("accept_changes", False))
        if own.get("fresh_limits", False):
            resumed = msgspec.structs.replace(resumed, spent=Usage(), worked_seconds=0.0)
        recorded = resumed.recorded
        limits = own.get("limits") or limits_of(each.event for each in recorded.log)
        prompt, opened = self.prompt, recorded.opened
        params: dict[type[Any], Any] = {**{type(value): value for value in opened.params}, **prompt.params}
        prompt = replace(prompt, params=params, variables={**opened.variables, **prompt.variables})
        return Request(
            prompt,
            self.model,
            without(limits, resumed.worked_seconds),
            cast("Any", {**self.options, "store": store}),
            session,
            resumed=resumed,
        )


def order_of(
    run_id: str, prompt: Prompt[OutputT] | PromptTemplate[OutputT], model: Model | str, options: ResumeOptions
) -> _Order[OutputT]:
    """Check what the caller asked for."""
    check_arguments({"prompt": prompt, "model": model})
    own: Any = {name: value for name, value in options.items() if name in OWN}
    given: Any = {name: value for name, value in options.items() if name not in OWN}
    if own.get("limits") is not None:
        check_arguments({"limits": own["limits"]})
    bound = Prompt(prompt) if isinstance(prompt, PromptTemplate) else prompt
    return _Order(run_id, bound, model, options_for_run(given), own)


def taken_over(
    store: RunStore, run_id: str, prepare: Callable[[Session], object] | None, clock: Clock
) -> tuple[Session, Resumed]:
    """Take a run over from the process that has died, and rebuild its session.

    Raises:
        ConfigurationError: If it has ended, or cannot be rebuilt.
        StoreError: If it is not there, is running, or cannot be read.
    """
    run = store.find(run_id)
    if run.ended_at is not None and run.stop is None:
        raise ConfigurationError(f"the run {run.run_id} is done: {run.sentence()}")
    if run.items is not None or run.is_block:
        raise ConfigurationError(f"the run {run.run_id} is no run of one agent, and only such a run can be resumed")
    store.take_over(run.run_id)  # before it is read: its process may be writing still
    on_record = [loaded(event) for event in store.events(run.run_id, past=True, calls=True)]
    envelopes = [each for each in on_record if not isinstance(each.event, CallBegun)]
    recorded = Recorded(on_record)
    if recorded.opened.not_resumable:
        raise ConfigurationError(f"the run {run.run_id} cannot be resumed: {recorded.opened.not_resumable}")
    try:
        session = Session.restored(envelopes, recorded.started.run_context.session_id, prepare=prepare, clock=clock)
    except SessionError as error:
        raise ConfigurationError(f"the run {run.run_id} cannot be resumed: {error}") from error
    spent, unknown = spent_of(on_record[recorded.first :], lambda child: spent_below(store, child))
    return session, Resumed(recorded, spent, unknown, worked_seconds(envelopes[recorded.first :]))


def spent_below(store: RunStore, run_id: UUID) -> Usage:
    """Return what a run has used that was under way below another one when the process died."""
    log = (loaded(event) for event in store.events(str(run_id), calls=True))
    return spent_of(log, lambda child: spent_below(store, child))[0]


def loaded(event: StoredEvent) -> Envelope:
    """Return a stored event as it was on the log.

    Raises:
        ConfigurationError: If it cannot be read here.
    """
    try:
        return event.envelope()
    except CodecError as error:
        raise ConfigurationError(f"event {event.seq} ({event.tag}) cannot be read here: {error}") from error


def without(limits: Limits, worked: float) -> Limits:
    """Return limits whose length of time is what is left of it; a deadline that is a moment stays.

    Raises:
        LimitsError: If nothing is left of it.
    """
    if not isinstance(limits.deadline, timedelta):
        return limits
    left = limits.deadline - timedelta(seconds=worked)
    if left <= timedelta(0):
        raise LimitsError(
            f"the run has worked for {format_duration(worked)}, and its deadline is {format_duration(limits.deadline)};"
            " to go on, give it a later one (limits=Limits(deadline=...), --deadline)"
        )
    return replace(limits, deadline=left)
