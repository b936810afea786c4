"""The critical section of a session: where log and slices change together.

State is one immutable value behind one reference, so readers take no lock and see either all effects of an event or
none. Writers take the lock, compute the next state from the current one and replace the reference. Publishing
happens after the lock is released: recorded envelopes wait in a queue, and one thread at a time empties it, so that
every subscriber sees the order of the log.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import msgspec

from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import ReducerError, SessionError
from watchkeeper.session.log import Dispatcher, Envelope, InProcessDispatcher, RolledBack, StateInherited, report
from watchkeeper.session.reducers import EMPTY, Reducers, Slices, apply, check_serialisable, refuse_in_reducer
from watchkeeper.session.slices import Origin, Reducer, SliceChange, SliceView, Snapshot


class State(msgspec.Struct, frozen=True):
    """The state of a journal.

    A msgspec struct, because every event creates one and it must be cheap.

    Attributes:
        log: Every event.
        slices: The slices that result from the events.
        writes: In a branch, the events that its merge will repeat.
    """

    log: SliceView[Envelope]
    slices: Slices
    writes: SliceView[Any]


EMPTY_STATE: Final = State(EMPTY, {}, EMPTY)

_LOST: Final = "nothing written to it could reach its session any more"
MERGED: Final = f"this branch was merged; {_LOST}"
DISCARDED: Final = f"this branch was discarded; {_LOST}"


class Journal:
    """Records events one at a time; each branch has its own journal until it is merged."""

    def __init__(
        self, clock: Clock, dispatcher: Dispatcher | None, reducers: Reducers | None = None, state: State = EMPTY_STATE
    ) -> None:
        """Tell ``dispatcher`` about every event; without one, this is a branch's journal, which stores its writes."""
        self._clock = clock
        self._dispatcher = dispatcher
        self._reducers = reducers or Reducers()
        self._lock = threading.RLock()  # a finaliser may record an event in the middle of another one
        self._publishing = threading.Lock()
        self._publisher: int | None = None
        self._queue: deque[Envelope | InProcessDispatcher] = deque()
        self._owner = object()
        self._ended: str | None = None
        self._inherited: Slices = {}
        self._state = state

    def restore(self, envelopes: Iterable[Envelope]) -> None:
        """Take in the events of an earlier process; call it before this journal is shared.

        Nothing is published. No reducer is asked: every envelope says what its event changed.

        Raises:
            SessionError: If the log is not complete.
        """
        state, none = self._state, Reducers()
        past: dict[int, Slices] = {0: state.slices}
        for envelope in envelopes:
            event, slices = envelope.event, state.slices
            if envelope.seq != len(state.log) + 1:
                raise SessionError(f"event {len(state.log) + 1} of the session is missing, so it cannot be rebuilt")
            if envelope.changes is not None:
                changed = dict(slices)
                for change in envelope.changes:
                    apply(changed, change, self._owner)
                slices = changed
            elif isinstance(event, RolledBack):
                slices = past[event.seq] if event.snapshot is None else event.snapshot.slices
            else:
                slices, _ = none.reduce(slices, event, self._owner)
            past[envelope.seq] = slices
            state = State(state.log.appended(envelope, self._owner), slices, state.writes)
        self._state = state

    def branch(self) -> Journal:
        """Return a journal that starts with this one's state, stores its own writes and publishes nothing."""
        state = self.read()
        return Journal(self._clock, None, self._reducers, State(state.log, state.slices, EMPTY))

    def inherit(self, parent: Journal, snapshot: Snapshot | None) -> None:
        """Begin with another journal's reducers and a snapshot's slices; call it before this journal is shared.

        No slice is copied or scanned; O(1).
        """
        self._reducers = parent._reducers.copy()
        if snapshot is not None:
            event = StateInherited(snapshot.session_id, snapshot.seq)
            self._inherited = snapshot.slices
            self._state = self._with(EMPTY_STATE, event, snapshot.slices, EMPTY)

    def whole_log(self) -> Iterator[Envelope]:
        """Yield the log with all that is needed to rebuild the slices: also the state that it was begun with."""
        for envelope in self.read_log():
            if isinstance(envelope.event, StateInherited) and envelope.changes is None:
                changes = tuple(SliceChange(kind, "replace", view) for kind, view in self._inherited.items())
                envelope = msgspec.structs.replace(envelope, changes=changes)
            yield envelope

    def read(self) -> State:
        """Return the current state."""
        refuse_in_reducer("read a session")
        return self._state

    def read_log(self) -> SliceView[Envelope]:
        """Return the log as it is now."""
        return self.read().log

    def register(self, slice_type: type, event_type: type, reducer: Reducer[Any, Any]) -> None:
        """Add a reducer; a SessionError on a branch's journal."""
        if self._dispatcher is None:
            raise SessionError("register reducers on the session itself; a branch only repeats events there")
        self.refuse_if_ended()
        self._reducers.register(slice_type, event_type, reducer)

    def keeps(self, event_type: type) -> bool:
        """Return whether events of a type reach the slice of that type."""
        return self._reducers.keep(event_type)

    def snapshot(self, session_id: UUID) -> Snapshot:
        """Return the current slices as a value; O(1)."""
        state = self.read()
        return Snapshot(
            session_id=session_id,
            seq=len(state.log),
            created_at=self._clock.now(),
            slices=state.slices if isinstance(state.slices, MappingProxyType) else MappingProxyType(state.slices),
            origin=Origin(self._owner, state.writes),
        )

    def record(self, event: Any) -> Envelope:
        """Append an event and let it change the slices.

        Raises:
            ReducerError: If a reducer failed; the event is on the log and published, no slice changed.
            SessionError: If the event cannot be stored, or the journal has ended; nothing is recorded.
        """
        refuse_in_reducer("dispatch")
        if isinstance(event, type):
            raise SessionError(f"dispatch an instance, not the class {event.__name__}")
        check_serialisable(event)
        with self._lock:
            while True:
                self.refuse_if_ended()
                before: State = self._state
                failure: ReducerError | None = None
                try:
                    after = self._after(before, event)
                except ReducerError as error:
                    failure, after = error, self._with(before, event, before.slices, before.writes, ())
                envelope = after.log.latest()
                assert envelope is not None, "an event was just appended"
                self.refuse_if_ended()  # a branch may have been discarded while its reducers ran
                is_told = self._dispatcher is not None and not self._is_alone()
                if self._state is before:  # otherwise a finaliser has recorded meanwhile
                    break
            self._state = after
            if is_told:
                self._queue.append(envelope)
        if self._queue:
            self.publish()
        if failure is not None:
            raise failure
        return envelope

    def merge_into(self, target: Journal) -> None:
        """Repeat this branch's writes on ``target`` in one critical section, publish them, and end the branch.

        Raises:
            ReducerError: If a reducer fails on the target's current slices; then nothing is applied or recorded there,
                and the branch stays as it is.
            SessionError: If the branch or its target has ended.
        """
        refuse_in_reducer("merge")
        with self._lock:
            self.refuse_if_ended()
            target._repeat(self._state.writes)
            self._ended = MERGED
        target.publish()

    def discard(self) -> None:
        """End a branch and drop its writes; a second call does nothing, and after a merge it is a SessionError.

        The lock is not taken: an abandoned thread may still hold it while a slow reducer runs.
        """
        if self._ended is MERGED:
            raise SessionError("this branch was merged; what it wrote is part of its session and stays")
        self._ended = DISCARDED

    def close(self, why: str, own: InProcessDispatcher) -> None:
        """Refuse every write from now on with the message ``why``; close ``own`` once everything is published."""
        with self._lock:
            self._ended = why
            self._queue.append(own)
        self.publish()

    def _is_alone(self) -> bool:
        """Whether the journal has no subscribers at this moment and its queue is empty."""
        dispatcher = self._dispatcher
        return type(dispatcher) is InProcessDispatcher and dispatcher.is_idle and not self._queue

    def publish(self) -> None:
        """Publish all queued envelopes to the subscribers, unless another thread is publishing."""
        interrupt: BaseException | None = None
        while self._queue and self._publishing.acquire(blocking=False):
            interrupt = self._publish_waiting() or interrupt
        if interrupt is not None:
            raise interrupt

    def flush(self, timeout_s: float) -> bool:
        """Wait until all recorded events are published; False after ``timeout_s`` seconds or in a subscriber."""
        if self._publisher == threading.get_ident() or not self._publishing.acquire(timeout=timeout_s):
            return False
        interrupt = self._publish_waiting()
        if interrupt is not None:
            raise interrupt
        return True

    def _publish_waiting(self) -> BaseException | None:
        """Empty the queue and release the publishing lock; return an interrupt that a subscriber raised."""
        interrupt: BaseException | None = None
        self._publisher = threading.get_ident()
        try:
            while self._queue:
                waiting = self._queue.popleft()
                try:
                    if not isinstance(waiting, Envelope):
                        waiting.close()
                    elif self._dispatcher is not None:
                        self._dispatcher.publish(waiting)
                except BaseException as error:
                    if isinstance(error, Exception) and isinstance(waiting, Envelope) and self._dispatcher is not None:
                        report("dispatcher.failed", self._dispatcher.publish, waiting, error)
                    else:  # the caller raises it once everything is published
                        interrupt = interrupt or error
        finally:
            self._publisher = None
            self._publishing.release()
        return interrupt

    def _repeat(self, events: SliceView[Any]) -> None:
        with self._lock:
            self.refuse_if_ended()
            while True:
                before = state = self._state
                for event in events:
                    state = self._after(state, event)
                if self._state is before:  # otherwise a finaliser has recorded meanwhile
                    break
            if self._dispatcher is not None:
                self._queue.extend(state.log[len(before.log) :])
            self._state = state

    def _after(self, state: State, event: Any) -> State:
        if isinstance(event, RolledBack) and event.snapshot is not None:
            return self._rolled_back(state, event.snapshot)
        slices, changes = self._reducers.reduce(state.slices, event, self._owner)
        return self._with(state, event, slices, self._written(state, event), changes)

    def _rolled_back(self, state: State, snapshot: Snapshot) -> State:
        """Return the state after a rollback.

        A snapshot of this same journal needs no copy in the log; in a branch, the writes since the snapshot are dropped
        too, so the merge does not repeat them.
        """
        origin = snapshot.origin
        if origin is not None and origin.owner is self._owner:
            return self._with(state, RolledBack(snapshot.session_id, snapshot.seq), snapshot.slices, origin.writes)
        alone = replace(snapshot, children=()) if snapshot.children else snapshot
        event = RolledBack(snapshot.session_id, snapshot.seq, alone)
        return self._with(state, event, snapshot.slices, self._written(state, event))

    def _written(self, state: State, event: Any) -> SliceView[Any]:
        return state.writes if self._dispatcher is not None else state.writes.appended(event, self._owner)

    def _with(
        self,
        state: State,
        event: Any,
        slices: Slices,
        writes: SliceView[Any],
        changes: tuple[SliceChange, ...] | None = None,
    ) -> State:
        envelope = Envelope(len(state.log) + 1, self._clock.now(), event, changes)
        return State(state.log.appended(envelope, self._owner), slices, writes)

    def refuse_if_ended(self) -> None:
        """Raise a SessionError that says how the journal ended, if it has ended."""
        if self._ended is not None:
            raise SessionError(self._ended)


class ReadOnlyJournal(Journal):
    """A live, read-only view of another journal; every write is refused."""

    def __init__(self, base: Journal, why: str) -> None:
        """Show ``base``; a write raises a SessionError with the message ``why``."""
        super().__init__(base._clock, InProcessDispatcher())
        self._base = base
        self._ended = why

    def read(self) -> State:
        """Return the current state of the other journal."""
        return self._base.read()

    def branch(self) -> Journal:
        """Return a branch of the other journal; it cannot be merged through this view."""
        return self._base.branch()

    def snapshot(self, session_id: UUID) -> Snapshot:
        """Return the current slices of the other journal as a value; O(1)."""
        return self._base.snapshot(session_id)
