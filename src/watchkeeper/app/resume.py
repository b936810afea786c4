"""`resume`: goes on with a run whose process has died, from what is on record of it.

The run keeps its id, its log and its limits; what was used before counts. Completed model calls and tool calls are not
repeated (`loop/resume`). Everything that cannot be stored (the code, clients, secrets, resources) comes from the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar, Unpack, cast

from watchkeeper.accounting.limits import Limits
from watchkeeper.app.options import RunOptions, check_arguments, options_for_run
from watchkeeper.app.run import Request
from watchkeeper.app.surroundings import open_store
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError, SessionError
from watchkeeper.core.model import Model
from watchkeeper.core.usage import Usage
from watchkeeper.loop.resume import Recorded, Resumed, spent_of, worked_seconds
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.store.run_store import RunStore, StoredEvent
from watchkeeper.store.sqlite import DEFAULT

OutputT = TypeVar("OutputT")


def resume(
    run_id: str,
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    *,
    model: Model | str,
    limits: Limits | None = None,
    prepare: Callable[[Session], object] | None = None,
    **options: Unpack[RunOptions],
) -> RunResult[OutputT]:
    """Go on with a run that was interrupted, to its end, and return how it ended.

    Args:
        run_id: Its id, or the beginning of it.
        prompt: The prompt of the run; its messages are those on record.
        model: The model that answers from here on.
        limits: New limits over all attempts together; those on record by default.
        prepare: Registers the reducers that the session of the run had.
        options: See `RunOptions`; ``store`` is the store of the run.

    Raises:
        ConfigurationError: If the run cannot go on with what is given; nothing was spent or changed.
        StoreError: If the run is not in the store, is running, or cannot be read.
    """
    check_arguments({"prompt": prompt, "model": model})
    given = options_for_run(options)
    store = open_store(given.get("store", DEFAULT))
    if store is None:
        raise ConfigurationError("there is no store (store=None), so there is no run to go on with")
    try:
        session, resumed = taken_over(store, run_id, prepare, given.get("clock", SYSTEM_CLOCK))
        if limits is None:
            limits = resumed.recorded.started.limit_values or Limits()
        request = Request(
            prompt,
            model,
            without(limits, resumed.worked_seconds),
            {**given, "store": store},
            session,
            resumed=resumed,
        )
        return cast("RunResult[OutputT]", request.wait("aresume"))
    finally:
        if store is not given.get("store"):
            store.close()


def taken_over(
    store: RunStore, run_id: str, prepare: Callable[[Session], object] | None, clock: Clock
) -> tuple[Session, Resumed]:
    """Take a run over from the process that has died, and rebuild its session.

    Raises:
        ConfigurationError: If it has ended, or cannot be rebuilt.
        StoreError: If it is not there, is running, or cannot be read.
    """
    run = store.find(run_id)
    if run.ended_at is not None:
        raise ConfigurationError(f"the run {run.run_id} has ended: {run.sentence()}")
    if run.items is not None or run.is_block:
        raise ConfigurationError(f"the run {run.run_id} is no run of one agent, and only such a run can be resumed yet")
    store.take_over(run.run_id)
    envelopes = [loaded(event) for event in store.events(run.run_id)]
    recorded = Recorded(envelopes)
    context = recorded.started.run_context
    try:
        session = Session.restored(envelopes, context.session_id, prepare=prepare, clock=clock)
    except SessionError as error:
        raise ConfigurationError(f"the run {run.run_id} cannot be resumed: {error}") from error
    spent, unknown = spent_of(recorded.log, Usage())
    return session, Resumed(recorded, spent, unknown, worked_seconds(recorded.log))


def loaded(event: StoredEvent) -> Envelope:
    """Return a stored event as it was on the log.

    Raises:
        ConfigurationError: If it cannot be read here.
    """
    try:
        return Envelope(event.seq, event.at, event.load())
    except CodecError as error:
        raise ConfigurationError(f"event {event.seq} ({event.tag}) cannot be read here: {error}") from error


def without(limits: Limits, worked: float) -> Limits:
    """Return limits whose length of time is what is left of it; a deadline that is a moment stays."""
    if not isinstance(limits.deadline, timedelta):
        return limits
    return replace(limits, deadline=max(limits.deadline - timedelta(seconds=worked), timedelta(0)))
