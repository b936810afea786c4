"""Reads the runs of a store to go on with them: what they had done, used and begun, and the runs below them.

A run is taken over before it is read, because its process may write until then. What was read of a run below before
that must be all that it has when it is taken over. Nothing here writes an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from watchkeeper.accounting.limits import Limits
from watchkeeper.children.child import BegunChild
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.usage import Usage
from watchkeeper.loop.resume import Recorded, Resumed, result_on_record
from watchkeeper.loop.used import Spent, at_work, beyond, earlier_of, one_call, spent_of, time_left, worked_seconds
from watchkeeper.runtime.events import (
    CallBegun,
    ChildStarted,
    ManyStarted,
    ModelReplied,
    RunEnded,
    RunOpened,
    RunResumed,
    RunStarted,
)
from watchkeeper.runtime.file_record import FilesChanged, FilesOnRecord
from watchkeeper.session.event_json import is_foreign
from watchkeeper.session.log import Envelope
from watchkeeper.tools.filesystem import Filesystem


class OnRecord(Protocol):
    """A stored event; see `store.run_store.StoredEvent`."""

    @property
    def seq(self) -> int:
        """Its number on the log."""
        ...

    @property
    def tag(self) -> str:
        """Its type."""
        ...

    def envelope(self) -> Envelope:
        """Return the event as it was on the log."""
        ...

    def own(self) -> Envelope:
        """Return the event with None for values of types that are not ours."""
        ...


class RunRow(Protocol):
    """A stored run; see `store.run_index.StoredRun`."""

    @property
    def run_id(self) -> str:
        """Its id."""
        ...

    @property
    def item_index(self) -> int | None:
        """The number of its item, if it is one of many."""
        ...

    @property
    def superseded(self) -> bool:
        """Whether its item was begun anew by a later run."""
        ...


class Runs(Protocol):
    """The store of the runs; see `store.run_store.RunStore`."""

    path: Path

    def events(self, run_id: str, after: int = 0, *, past: bool = False, calls: bool = False) -> Iterator[OnRecord]:
        """Yield a run's events in order."""
        ...

    def files(self, run_id: str) -> Iterator[FilesChanged]:
        """Yield what a run has on record of files."""
        ...

    def children(self, run_id: str) -> Sequence[RunRow]:
        """Return the runs below a run, in the order they began."""
        ...

    def take_over(self, run_id: str) -> int:
        """Take a run from the process that has ended; return the number of its last event."""
        ...


class Reader:
    """Reads the runs of a store, to go on with them; each log is read once.

    Attributes:
        store: The store.
        filesystem: What the tools of the run may read and write from here on, or None.
        accept_changes: Whether a run may go on although it is made of other things now.
        goes_on: Whether a run is to go on. If not, values and events of the agent's own types are not needed, so its
            code need not be imported here.
    """

    def __init__(
        self,
        store: Runs,
        filesystem: Filesystem | None = None,
        *,
        accept_changes: bool = False,
        goes_on: bool = True,
    ) -> None:
        """Read from a store."""
        self.store = store
        self.filesystem = filesystem
        self.accept_changes = accept_changes
        self.goes_on = goes_on
        self._logs: dict[UUID, list[Envelope]] = {}
        self._files: dict[UUID, FilesOnRecord] = {}

    def log(self, run_id: UUID) -> list[Envelope]:
        """Return all events of the session of a run, and the beginnings of calls; none if the run is not there."""
        if run_id not in self._logs:
            on_record = self.store.events(str(run_id), past=True, calls=True)
            if not self.goes_on:
                on_record = (event for event in on_record if not is_foreign(event.tag))
            self._logs[run_id] = [loaded(event, own=not self.goes_on) for event in on_record]
        return self._logs[run_id]

    def session_log(self, run_id: UUID) -> list[Envelope]:
        """Return all events of the session of a run, from which it is rebuilt."""
        return [each for each in self.log(run_id) if not isinstance(each.event, CallBegun)]

    def files(self, run_id: UUID) -> FilesOnRecord:
        """Return what is on record of the files of a run."""
        if run_id not in self._files:
            log = (each.event for each in self.session_log(run_id))
            self._files[run_id] = FilesOnRecord(self.store.files(str(run_id)), log, own=not self.goes_on)
        return self._files[run_id]

    def take_over(self, run_id: UUID) -> None:
        """Take a run over from the process that has died.

        Raises:
            ConfigurationError: If it has more events than were read.
            StoreError: If it is running.
        """
        last, log = self.store.take_over(str(run_id)), self.session_log(run_id)
        if last != (log[-1].seq if log else 0):  # one from an older store may lack events
            raise ConfigurationError(f"the run {run_id} went on while it was read; try again")

    def resumed(self, run_id: UUID, *, is_child: bool = False) -> Resumed:
        """Return what a run goes on with.

        Args:
            run_id: The run.
            is_child: Whether it is below another run, and gets its files from that one later.

        Raises:
            ConfigurationError: If it cannot go on.
        """
        log = self.log(run_id)
        recorded = Recorded(log, self.below)
        if recorded.opened.not_resumable:
            raise ConfigurationError(f"the run {run_id} cannot be resumed: {recorded.opened.not_resumable}")
        own = log[recorded.first :]
        spent = spent_of(own, self.used_by)
        worked = worked_seconds(own, self.last_of(run for run, _ in spent.below))
        try:
            files = self.files(run_id)
            if not is_child:
                files.check(self.filesystem)
        except ConfigurationError as error:
            raise ConfigurationError(f"the run {run_id} cannot be resumed: {error}") from error
        recorded.unfinished = files.unfinished
        usage = spent.usage + self.uncounted(run_id, spent)
        unknown = tuple(call_id for call_id in spent.unknown if call_id not in files.unfinished)
        accepted = self.accept_changes
        more: Any = {"below": spent.below, "earlier": spent.earlier, "accept_changes": accepted}
        return Resumed.of(recorded, usage, worked, unknown=unknown, **more)

    def uncounted(self, run_id: UUID, spent: Spent) -> Usage:
        """Return what a run has used that its log does not tell: the calls during whose commit its process ended.

        Those are in the sum already that a later end of the run, or its going on, has put on record.
        """
        log = newest(self.log(run_id))
        summed = max((each.seq for each in log if isinstance(each.event, RunEnded | RunResumed)), default=0)
        replies = [each.event for each in log if isinstance(each.event, ModelReplied) and each.seq <= summed]
        asked = {call.call_id for reply in replies for call in reply.message.tool_calls}
        calls = len(self.files(run_id).unfinished.keys() - {*spent.unknown} - asked)  # some tools begin without a line
        return sum((one_call("tool") for _ in range(calls)), Usage())

    def used_by(self, run_id: UUID) -> Usage:
        """Return all that a run has used, those below it included."""
        log = newest(self.log(run_id))
        ended = end_of(log)
        if ended is not None:
            return ended.usage + ended.earlier.usage
        if any(isinstance(each.event, ManyStarted) for each in log):
            return self._used_by_all(self.store.children(str(run_id)))
        return spent_of(log, self.used_by).whole

    def used_by_items(self, log: Iterable[Envelope], rows: Iterable[RunRow]) -> Usage:
        """Return what the items of a run over many have used, by its log, since its limits were fresh.

        No time is compared: the clock may be set on or back while the run goes on.
        """
        return beyond(self._used_by_all(rows), earlier_of(each.event for each in log).usage)

    def _used_by_all(self, rows: Iterable[RunRow]) -> Usage:
        return sum((self.used_by(UUID(row.run_id)) for row in rows), Usage())

    def last_of(self, run_ids: Iterable[UUID]) -> datetime | None:
        """Return when the last event of some runs, and of those below them that had no end, was recorded."""
        lasts: list[datetime] = []
        for run_id in run_ids:
            log = newest(self.log(run_id))
            below = self.last_of(run for run, _ in spent_of(log, self.used_by).below)
            lasts += [each.at for each in at_work(log)][-1:]
            lasts += [] if below is None else [below]
        return max(lasts, default=None)

    def below(self, started: ChildStarted) -> BegunChild | None:
        """Take over a child that had begun; None if nothing was done in it, so that it is begun anew.

        Raises:
            ConfigurationError: If it cannot go on.
        """
        run_id = started.run_context.run_id
        log = self.log(run_id)
        if not any(isinstance(each.event, RunOpened) for each in log):
            return None
        limits, session_log = started.limit_values or Limits(), self.session_log(run_id)
        result = partial(result_on_record, session_log)
        rebuild = self.files(run_id).rebuild_below
        child = BegunChild(started.run_context, session_log, limits, Usage(), None, result, False, rebuild)
        if end_of(log) is not None:
            return child
        resumed = self.resumed(run_id, is_child=True)
        self.take_over(run_id)
        limits = time_left(limits, resumed.worked_seconds)
        return child._replace(limits=limits, spent=resumed.spent, resumed=resumed)


def newest(log: Sequence[Envelope]) -> Sequence[Envelope]:
    """Return the part of a session's log that is of its newest run."""
    places = range(len(log) - 1, -1, -1)
    first = next((place for place in places if isinstance(log[place].event, RunStarted | ManyStarted)), 0)
    return log[first:]


def end_of(log: Sequence[Envelope]) -> RunEnded | None:
    """Return the event with which the newest run on a log has ended; None if it has not, or went on afterwards."""
    kinds = RunEnded | RunResumed | RunStarted
    last = next((each.event for each in reversed(log) if isinstance(each.event, kinds)), None)
    return last if isinstance(last, RunEnded) else None


def loaded(event: OnRecord, *, own: bool = False) -> Envelope:
    """Return a stored event as it was on the log; ``own`` leaves out values of types that are not ours.

    Raises:
        ConfigurationError: If it cannot be read here.
    """
    try:
        return event.own() if own else event.envelope()
    except CodecError as error:
        raise ConfigurationError(f"event {event.seq} ({event.tag}) cannot be read here: {error}") from error
