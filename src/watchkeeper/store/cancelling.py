"""Cancelling a run from outside: its process is asked to end it; where none works on it, it is ended on record.

A signal goes only to the process that owns the run's file, known by its mark, and only if that process has said that it
takes a signal as a request for the end, as the command line does. A program of the user's own is never signalled: only
its author knows what it does then.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError, Stop, StoreError
from watchkeeper.core.quantities import DurationLike, duration
from watchkeeper.disk.liveness import ignores, is_alive, send_signal
from watchkeeper.loop.reopen import Reader, end_of, newest
from watchkeeper.loop.used import earlier_of, spent_of, worked_seconds
from watchkeeper.runtime.events import ChildEnded, ChildStarted, ManyEnded, ModelReplied, RunEnded
from watchkeeper.runtime.parking import PARKED, CallAnswered, is_denial, this_user
from watchkeeper.runtime.result import as_continued
from watchkeeper.session.event_json import read_event
from watchkeeper.store.answers import waiting_in
from watchkeeper.store.run_file import ENDINGS, Owner
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolInvoked

LOOK_SECONDS: Final = 0.1
"""How often it is looked whether the run is over."""

HARD_SECONDS: Final = (1.2, 3.0, 3.0)
"""How long the run has to come to its end after each of the requests that end it hard: the first one lands it, the
second one aborts it, the third one ends a command whose event loop is held by code of a tool. Requests that come within
a second of each other may count as one."""

WHY: Final = "the run was cancelled"
DIED: Final = "The run was cancelled by {} after its process had died."


def cancel(
    store: RunStore,
    run_id: str,
    *,
    hard: bool = False,
    wait: DurationLike | None = None,
    by: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> StoredRun:
    """Ask the process that works on a run to end it, and return the run as it is stored then.

    The first request lands the run, a second one ends it hard, like Ctrl-C. A run on which no process works, because
    its process has died or it is parked, is ended on record with those below it: its calls that wait for an answer are
    denied, and what was under way counts as its worst case.

    Args:
        store: Where the run is.
        run_id: Its id, or the beginning of it.
        hard: Whether to end it hard at once; this waits for its end, for a few seconds.
        wait: How long to wait for the end; None to return when the request is made.
        by: Who cancels a run on which no process works, for its record; the user of this process by default.
        clock: The source of time.

    Raises:
        ConfigurationError: If the run is over, or what works on it must not be signalled; the message says what to do.
        StoreError: If the run is not there.
    """
    seconds = 0.0 if wait is None else duration(wait, "wait").total_seconds()
    run = store.find(run_id)
    if run.parent_id is not None:
        raise ConfigurationError(f"the run {run.run_id} is part of the run {run.parent_id}; cancel that one")
    if _is_open(run) and not run.running:
        who = (this_user() if by is None else by).strip()
        if not who:
            raise ConfigurationError("by='' names nobody; say who cancels the run")
        _end(store, run, who, clock)
        return store.find(run.run_id)
    if not hard:
        _request(store, run)
        return _when_over(store, run.run_id, seconds, clock)
    for number, pause in enumerate(HARD_SECONDS):
        try:
            _request(store, run)
        except ConfigurationError:
            if number == 0 or store.find(run.run_id).running:
                raise
        run = _when_over(store, run.run_id, pause, clock)
        if not run.running:
            return run
    return _when_over(store, run.run_id, seconds, clock)


def _when_over(store: RunStore, run_id: str, seconds: float, clock: Clock) -> StoredRun:
    """Return a run when nothing works on it any more, or this time is over; only then it is read."""
    until = clock.monotonic() + seconds
    while store.is_owned(run_id) and clock.monotonic() < until:
        clock.wait(threading.Event(), LOOK_SECONDS)
    return store.find(run_id)


def _request(store: RunStore, run: StoredRun) -> None:
    """Ask for the end of a run once, like Ctrl-C; where that is ignored, as behind ``&`` in a script, by SIGTERM."""
    if run.ended_at is not None:
        raise ConfigurationError(f"the run {run.run_id} is over: {run.sentence()}")
    owner = store.owner(run.run_id)
    if owner is None or not is_alive(owner.mark) or not owner.heeds:
        raise ConfigurationError(_no_request(store.find(run.run_id), owner))
    process = owner.mark.process
    heard = [number for number in (signal.SIGINT, signal.SIGTERM) if not ignores(process, number)]
    if not heard:
        raise ConfigurationError(f"process {process} of the run {run.run_id} ignores SIGINT and SIGTERM; see kill(1)")
    try:
        send_signal(owner.mark, heard[0])
    except ProcessLookupError:
        pass  # it has ended since
    except PermissionError as error:
        raise ConfigurationError(
            f"process {process} of the run {run.run_id} belongs to another user, who alone can cancel it"
        ) from error
    except OSError as error:
        raise StoreError(f"process {process} of the run {run.run_id} cannot be asked to end it: {error}") from error


def _no_request(run: StoredRun, owner: Owner | None) -> str:
    """Say why nobody can be asked to end a run, and what to do instead."""
    if not run.running:
        return f"the process of the run {run.run_id} has ended just now; to end the run on record, cancel it again"
    if owner is None or run.process is None:
        return f"a process is just taking the run {run.run_id} over; try again in a moment"
    if owner.heeds:
        return (
            f"process {run.process} of the run {run.run_id} cannot be known from here: it works in another container, "
            "or this system does not tell when a process began. "
            f"Where it works, this lands the run: kill -INT {run.process}"
        )
    return (
        f"the run {run.run_id} works inside a program of its own, process {run.process}, which is not signalled from "
        f"here; if run(...) waits in its main thread, this does what Ctrl-C does there: kill -INT {run.process}"
    )


def _is_open(run: StoredRun) -> bool:
    """Return whether a run has not come to an end: its process has died, or it is parked."""
    return run.damage is None and (run.ended_at is None or (run.stop is not None and run.stop["reason"] == PARKED))


def _end(store: RunStore, run: StoredRun, who: str, clock: Clock) -> None:
    """End a run on which no process works on record, after those below it; its calls that wait are denied."""
    with store.visited(run.run_id) as add:
        run = store.find(run.run_id)
        if not _is_open(run):  # it has gone on meanwhile, and ended
            return
        for each in filter(_is_open, store.children(run.run_id)):
            _end(store, each, who, clock)
        for _, question in waiting_in(store, run):
            add(CallAnswered(question.question_id, question.call_id, question.digest, False, who, WHY, clock.now()))
        if run.ended_at is None:
            _give_up(store, run, Stop("cancelled", "caller", DIED.format(who)), clock.now(), add)
            return
        stop = Stop("cancelled", "caller", f"The run was cancelled by {who} while it was parked.")
        last = [event for event in store.events(run.run_id) if event.tag in ENDINGS][-1]
        foreign = dict.fromkeys(last.body.keys() & {"output", "partial"})  # their types may be unknown here
        end = read_event(last.tag, {**last.body, **foreign})
        changed: Any = msgspec.structs.replace if isinstance(end, RunEnded) else replace
        add(changed(end, stop=stop, ended_at=clock.now()))


def _give_up(store: RunStore, run: StoredRun, stop: Stop, now: datetime, add: Callable[[Any], None]) -> None:
    """Add the end of a run whose process has died; what was under way then counts as its worst case, as in a resume."""
    run_id, rows, reader = UUID(run.run_id), store.children(run.run_id), Reader(store, goes_on=False)
    log = newest(reader.log(run_id))
    if run.items is not None:
        took = worked_seconds(log, reader.last_of(UUID(row.run_id) for row in rows)) * 1000
        done = sum(row.ended_at is not None and row.stop is None for row in rows if not row.superseded)
        earlier = earlier_of(each.event for each in log)
        add(ManyEnded(run_id, stop, done, run.items, reader.used_by_items(log, rows), took, now, earlier))
        return
    spent, said = spent_of(log, reader.used_by), {row.run_id: row.sentence() for row in rows}
    took = worked_seconds(log, reader.last_of(below for below, _ in spent.below)) * 1000
    for begun in [each.event for each in log if isinstance(each.event, ChildStarted)]:
        below = begun.run_context.run_id
        if below in dict(spent.below):
            end = end_of(reader.log(below))
            why, verdict, lasted = (stop, "unchecked", 0.0) if end is None else (end.stop, end.verdict, end.duration_ms)
            kind, name, used = begun.kind, begun.prompt_name, dict(spent.below)[below]
            words = said.get(str(below), stop.message)
            add(ChildEnded(below, run_id, kind, name, why, verdict, used, lasted, words, now))
    reader = Reader(store, goes_on=False)  # with the ends of the runs below
    log = newest(reader.log(run_id))
    spent = spent_of(log, reader.used_by)
    usage = spent.usage + reader.uncounted(run_id, spent)
    replies = sum(isinstance(each.event, ModelReplied) for each in as_continued(log))
    turns = max(replies - spent.earlier.turns, 0)
    calls = [each.event for each in log if isinstance(each.event, ToolInvoked)]
    denied = sum(is_denial(call.outcome, call.rendered_output) for call in calls)
    add(RunEnded(run_id, stop, None, None, "", "unchecked", usage, took, None, now, turns, denied, spent.earlier))
