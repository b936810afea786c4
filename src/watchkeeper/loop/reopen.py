"""Reads the runs of a store to go on with them: what they had done, used and begun, and the runs below them.

A run is taken over from the process that has died only once all of it was read; nothing here writes an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol
from uuid import UUID

from watchkeeper.accounting.limits import Limits
from watchkeeper.children.child import BegunChild
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.usage import Usage
from watchkeeper.loop.resume import Recorded, Resumed, result_on_record, spent_of, time_left, worked_seconds
from watchkeeper.runtime.events import CallBegun, ChildStarted, ManyStarted, RunEnded, RunOpened, RunResumed, RunStarted
from watchkeeper.runtime.file_record import FilesChanged, FilesOnRecord
from watchkeeper.runtime.parking import CallAnswered
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


class Runs(Protocol):
    """The store of the runs; see `store.run_store.RunStore`."""

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
    """

    def __init__(self, store: Runs, filesystem: Filesystem | None = None, *, accept_changes: bool = False) -> None:
        """Read from a store."""
        self.store = store
        self.filesystem = filesystem
        self.accept_changes = accept_changes
        self._logs: dict[UUID, list[Envelope]] = {}
        self._files: dict[UUID, FilesOnRecord] = {}

    def log(self, run_id: UUID) -> list[Envelope]:
        """Return all events of the session of a run, and the beginnings of calls; none if the run is not there."""
        if run_id not in self._logs:
            on_record = self.store.events(str(run_id), past=True, calls=True)
            self._logs[run_id] = [loaded(event) for event in on_record]
        return self._logs[run_id]

    def session_log(self, run_id: UUID) -> list[Envelope]:
        """Return all events of the session of a run, from which it is rebuilt."""
        return [each for each in self.log(run_id) if not isinstance(each.event, CallBegun)]

    def files(self, run_id: UUID) -> FilesOnRecord:
        """Return what is on record of the files of a run."""
        if run_id not in self._files:
            log = (each.event for each in self.session_log(run_id))
            self._files[run_id] = FilesOnRecord(self.store.files(str(run_id)), log)
        return self._files[run_id]

    def take_over(self, run_id: UUID) -> None:
        """Take a run over from the process that has died.

        Raises:
            ConfigurationError: If it has more events than were read.
            StoreError: If it is running.
        """
        if self.store.take_over(str(run_id)) != len(self.session_log(run_id)):
            raise ConfigurationError(f"the run {run_id} went on while it was read; try again")

    def resumed(self, run_id: UUID) -> Resumed:
        """Return what a run goes on with.

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
            files.check(self.filesystem)
        except ConfigurationError as error:
            raise ConfigurationError(f"the run {run_id} cannot be resumed: {error}") from error
        recorded.unfinished = files.unfinished
        uncounted = len(files.unfinished.keys() - {*spent.unknown})  # some tools begin without a line
        usage = spent.usage + Usage(tool_calls=uncounted, steps=uncounted)
        unknown = tuple(call_id for call_id in spent.unknown if call_id not in files.unfinished)
        return Resumed(recorded, usage, unknown, worked, spent.below, self.accept_changes)

    def used_by(self, run_id: UUID) -> Usage:
        """Return what a run has used, those below it included."""
        log = newest(self.log(run_id))
        ended = end_of(log)
        if ended is not None:
            return ended.usage
        usage = spent_of(log, self.used_by).usage
        if any(isinstance(each.event, ManyStarted) for each in log):
            usage = sum((self.used_by(UUID(item.run_id)) for item in self.store.children(str(run_id))), usage)
        return usage

    def last_of(self, run_ids: Iterable[UUID]) -> datetime | None:
        """Return when the last event of some runs, and of those below them that had no end, was recorded."""
        lasts: list[datetime] = []
        for run_id in run_ids:
            log = newest(self.log(run_id))
            below = self.last_of(run for run, _ in spent_of(log, self.used_by).below)
            lasts += [each.at for each in reversed(log) if not isinstance(each.event, CallAnswered)][:1]
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
        child = BegunChild(started.run_context, session_log, limits, Usage(), None, result, False)
        if end_of(log) is not None:
            return child
        resumed = self.resumed(run_id)
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


def loaded(event: OnRecord) -> Envelope:
    """Return a stored event as it was on the log.

    Raises:
        ConfigurationError: If it cannot be read here.
    """
    try:
        return event.envelope()
    except CodecError as error:
        raise ConfigurationError(f"event {event.seq} ({event.tag}) cannot be read here: {error}") from error
