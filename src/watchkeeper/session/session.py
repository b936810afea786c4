"""A session: one log, the slices that are a fold of it, and a place among other sessions.

Every change is an event. The event is recorded once, in one critical section with its effect on the slices, and
published to subscribers afterwards, in the order of the log. The cost of reading, snapshots, branches and children does
not depend on the length of the log. A session is thread-safe; its values are not copied, so they must not be changed.
Parent and child share the child's initial state, never later writes; a closed session can only be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, NoReturn, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import SessionError
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.session.journal import Journal, ReadOnlyJournal
from watchkeeper.session.log import (
    Dispatcher,
    Envelope,
    EventLog,
    InProcessDispatcher,
    RefusingDispatcher,
    RolledBack,
    SessionReset,
    SliceEdited,
)
from watchkeeper.session.reducers import EMPTY, refuse_in_reducer
from watchkeeper.session.slices import Reducer, SliceView, Snapshot, append_event

T = TypeVar("T")
E = TypeVar("E")


class Session:
    """The log and the state of one run (docs/specification.md).

    Attributes:
        session_id: Id of the session.
        log: Everything that happened in it, live.
        dispatcher: Delivers its events to subscribers.
        clock: Where the time of its events comes from.
    """

    def __init__(
        self,
        *,
        parent: Session | None = None,
        session_id: UUID | None = None,
        dispatcher: Dispatcher | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
    ) -> None:
        """Start empty.

        Args:
            parent: The session that started this one; it holds its children by weak references only.
            session_id: Id of the new session; a fresh one by default.
            dispatcher: Delivers events to subscribers; a dispatcher of its own by default.
            clock: Where the time of events comes from.
            ids: Where the identity comes from.
        """
        self.clock = clock
        self._own = InProcessDispatcher()
        self.dispatcher: Dispatcher = self._own if dispatcher is None else dispatcher
        self._ids = ids
        self.session_id = ids.uuid() if session_id is None else session_id
        self._above: Session | None = None if parent is None else parent._itself()
        self._host: object | None = None
        self._children: WeakValueDictionary[int, Session] = WeakValueDictionary()
        self._journal = Journal(clock, self.dispatcher)
        self.log = EventLog(self._journal.read_log)
        if self._above is not None:
            self._above._children[id(self)] = self

    @classmethod
    def restored(
        cls,
        envelopes: Iterable[Envelope],
        session_id: UUID,
        *,
        prepare: Callable[[Session], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
    ) -> Session:
        """Return a session with the log of an earlier process and the slices that follow from it.

        Args:
            envelopes: All events of the log, in order.
            session_id: Id of the session.
            prepare: Registers the reducers that the earlier process had.
            clock: Where the time of further events comes from.
            ids: Where identities come from.

        Raises:
            SessionError: If the log is not complete.
        """
        session = cls(session_id=session_id, clock=clock, ids=ids)
        if prepare is not None:
            prepare(session)
        session._journal.restore(envelopes)
        return session

    def whole_log(self) -> Iterator[Envelope]:
        """Yield the log in the form from which `restored` rebuilds the slices."""
        return self._journal.whole_log()

    @property
    def parent(self) -> Session | None:
        """The session that started it, live and to be read only, or None (docs/specification.md, nested execution).

        It is a view: equal to that session, but not the same object.
        """
        return None if self._above is None else SessionView(self._above)

    @property
    def host(self) -> object | None:
        """The object that runs of this session provide to code that starts child runs; None between runs."""
        return self._itself()._host

    @host.setter
    def host(self, host: object | None) -> None:
        self._itself()._host = host

    def _itself(self) -> Session:
        """Return the session behind this branch or view, through any number of levels."""
        return self

    @property
    def origin(self) -> Session:
        """The session behind a branch, through any number of levels; the session itself if it is no branch."""
        return self

    @property
    def children(self) -> tuple[Session, ...]:
        """Read-only views of the sessions it started that are open and still referenced, oldest first."""
        return tuple([SessionView(child) for child in self._started()])

    def _started(self) -> list[Session]:
        known = [reference() for reference in self._itself()._children.valuerefs()]
        return [child for child in known if child is not None]

    def __getitem__(self, slice_type: type[T]) -> SliceAccessor[T]:
        """Return the slice of a type: ``session[Plan].latest()``.

        Raises:
            SessionError: If the key is not a class whose instances a slice can hold.
        """
        given: Any = slice_type
        if not isinstance(given, type) or getattr(given, "_is_protocol", False):
            raise SessionError(f"session[...] takes a concrete class, got {given!r}; write session[Plan]")
        return SliceAccessor(self._journal, slice_type)

    def dispatch(self, event: Any) -> Envelope:
        """Record an event, let the reducers change the slices, then tell the subscribers.

        All reducers are computed before anything changes. If no slice has a reducer for the event
        type, the event is kept in its own slice, ``session[type(event)]``; if one has, only reducers decide.
        If another thread is publishing at that moment, that thread publishes this event too.

        Args:
            event: A value of a class with a typed JSON form, usually a frozen dataclass.

        Returns:
            The event with its place on the log.

        Raises:
            ReducerError: If a reducer failed; the event is on the log and published, no slice changed.
            SessionError: If the event cannot be stored, a reducer dispatches, this session was closed, or this branch
                has ended.
        """
        envelope = self._journal.record(event)
        if isinstance(event, RolledBack) and event.snapshot is not None and self._itself() is self:
            known = {snapshot.session_id: snapshot for snapshot in event.snapshot.children}
            for child in self._started() if known else ():
                if child.session_id in known:
                    with suppress(SessionError):  # it was closed a moment ago
                        child.rollback(known[child.session_id])
        return envelope

    def snapshot(self, *, cascade: bool = False) -> Snapshot:
        """Return the current state as a value; nothing is copied.

        Args:
            cascade: Include snapshots of all sessions below it. Each is consistent by itself; a concurrent write may
                be in the snapshot of one session and missing in that of another.
        """
        taken = self._journal.snapshot(self.session_id)
        if not cascade:
            return taken
        return replace(taken, children=tuple(child.snapshot(cascade=True) for child in self._started()))

    def rollback(self, snapshot: Snapshot) -> None:
        """Make the slices what they were in a snapshot, of this session or of another; the log keeps everything.

        If the snapshot has children, those that are still children of this session are rolled back too, each by
        itself; the others are skipped. A branch does not roll back children: they are not part of it.

        Raises:
            SessionError: If this session was closed or this branch has ended.
        """
        self.dispatch(RolledBack(snapshot.session_id, snapshot.seq, snapshot))

    def reset(self) -> None:
        """Make every slice empty; reducers and the log stay.

        Raises:
            SessionError: If this session was closed or this branch has ended.
        """
        self._journal.record(SessionReset())

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything recorded so far is published; call it before you unsubscribe a subscriber for good.

        Usually an event is published when `dispatch` returns, but not if another thread dispatched at the same moment
        and is publishing for both.

        Args:
            timeout_s: Most seconds to wait for a subscriber that another thread is calling.

        Returns:
            Whether everything is published; also False inside a subscriber, which would wait for itself.
        """
        return self._itself()._journal.flush(timeout_s)

    def branch(self) -> Branch:
        """Return a transaction: it sees the current state and its own writes; others see these writes after the merge.

        Nothing is copied. `Branch.merge` repeats the writes here, `Branch.discard` drops them.
        """
        return Branch(self)

    def child(
        self,
        snapshot: Snapshot | None = None,
        *,
        session_id: UUID | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        earlier: Iterable[Envelope] = (),
    ) -> Session:
        """Return a session below this one; a write to one of them never reaches the other.

        It has this session's current reducers and its own dispatcher. Called on a branch, it returns a child of the
        branch's session. The slices are shared, not copied: O(1) for any size. The caller that starts a child must
        close it with `close` (docs/specification.md, subagents).

        Args:
            snapshot: The state to begin with, which its log notes with `StateInherited`; empty slices by default.
            session_id: Id of the new session; a fresh one by default.
            clock: The source of the time of its events; this session's clock by default.
            ids: The source of its id; this session's IdSource by default.
            earlier: All events of its log, if an earlier process has begun it; its slices follow from them.

        Raises:
            SessionError: If this session was closed, the log is not complete, or a reducer calls this.
        """
        refuse_in_reducer("start a child")
        parent = self._itself()
        parent._journal.refuse_if_ended()
        child = Session(
            session_id=session_id, clock=self.clock if clock is None else clock, ids=parent._ids if ids is None else ids
        )
        child._journal.inherit(parent._journal, snapshot)
        child._journal.restore(earlier)
        child._above = parent
        parent._children[id(child)] = child
        return child

    def close(self) -> None:
        """End the session: it can still be read, any write raises, and its parent no longer lists it.

        Its own dispatcher removes its subscribers once everything is published; a dispatcher passed as an argument
        keeps its subscribers. Its own children stay as they are. Closing it again changes nothing.

        Raises:
            SessionError: If a reducer closes it, or this is a branch.
        """
        refuse_in_reducer("close a session")
        if self._above is not None:
            self._above._children.pop(id(self), None)
        why = f"session {self.session_id} was closed; it can still be read, but nothing can be written to it any more"
        self._journal.close(why, self._own)

    def __repr__(self) -> str:
        """Show the identity and the length of the log."""
        return f"{type(self).__name__}({self.session_id}, {len(self.log)} events)"


class SliceAccessor(Generic[T]):
    """``session[T]``: one slice of a session, to read and to edit; reads return its current state.

    Reading takes no lock and copies nothing. Each edit is recorded on the log; an item of another type, or one that
    cannot be stored, is a SessionError. Treat items as frozen, because snapshots and branches share them.
    """

    __slots__ = ("_journal", "_slice_type")

    def __init__(self, journal: Journal, slice_type: type[T]) -> None:
        """Access the slice of ``slice_type``."""
        self._journal = journal
        self._slice_type = slice_type

    def latest(self) -> T | None:
        """Return the newest item, or None."""
        return self.all().latest()

    def all(self) -> SliceView[T]:
        """Return every item, oldest first, as a value that later events do not change."""
        return self._journal.read().slices.get(self._slice_type, EMPTY)

    def where(self, predicate: Callable[[T], object]) -> tuple[T, ...]:
        """Return the items for which ``predicate`` holds, oldest first."""
        return tuple(item for item in self.all() if predicate(item))

    def seed(self, *items: T) -> None:
        """Replace all items of the slice with these."""
        self._journal.record(SliceEdited(self._slice_type, "seed", items))

    def append(self, item: T) -> None:
        """Add an item at the tail."""
        self._journal.record(SliceEdited(self._slice_type, "append", (item,)))

    def clear(self) -> None:
        """Remove every item."""
        self._journal.record(SliceEdited(self._slice_type, "clear"))

    def register(self, event_type: type[E], reducer: Reducer[T, E]) -> None:
        """Let ``reducer(slice, event)`` decide what events of exactly this type do to the slice.

        As soon as any slice has a reducer for an event type, events of that type are no longer kept in their own slice
        automatically; register `append_event` there to keep them. Registering the same reducer again
        changes nothing.

        Raises:
            SessionError: If the reducer is no plain function, or this is a branch: a branch's reducers would be missing
                when its writes are repeated.
        """
        refuse_in_reducer("register reducers")
        self._journal.register(self._slice_type, event_type, reducer)

    def keep(self) -> None:
        """Make sure that events of the slice's own type are kept in it, even if other reducers handle them.

        Raises:
            SessionError: If this requires a new reducer, and this is a branch.
        """
        if not self._journal.keeps(self._slice_type):
            self.register(self._slice_type, append_event)


class _StandIn(Session):
    """Base of branches and views: another session's identity, parent and children, with its own journal."""

    def __init__(self, base: Session, journal: Journal, dispatcher: Dispatcher) -> None:
        self._base = base
        self._journal = journal
        self.clock = base.clock
        self.dispatcher = dispatcher
        self.session_id = base.session_id
        self._above = base._above
        self.log = EventLog(journal.read_log)

    def _itself(self) -> Session:
        return self._base._itself()


class Branch(_StandIn):
    """A session's state with private writes, until they are merged or discarded.

    It has its session's identity, parent and children. Its log is its session's log at the start, followed by its
    own events, whose numbers are provisional. An event whose reducer failed changed nothing here and is not repeated.
    After its end it can still be read, but any write raises: an abandoned thread can do no harm.
    """

    def __init__(self, base: Session) -> None:
        """Begin with the current state of ``base``, a session or another branch."""
        super().__init__(base, base._journal.branch(), base.dispatcher)

    @property
    def origin(self) -> Session:
        """The session behind this branch, through any number of branches."""
        return self._base.origin

    @property
    def written(self) -> tuple[Any, ...]:
        """The events that `merge` will repeat."""
        return tuple(self._journal.read().writes)

    def close(self) -> NoReturn:
        """Raise: a branch ends with `merge` or `discard`, and its session is closed by the code that started it.

        Raises:
            SessionError: Always.
        """
        raise SessionError("a branch ends with merge() or discard(); close the session that it is a branch of")

    def merge(self) -> None:
        """Repeat the writes on the session, in one critical section, as if they were dispatched there now.

        Reducers run again on the session's current slices; the events are published afterwards. The branch has ended.

        Raises:
            ReducerError: If a reducer fails; then nothing of the branch is applied or recorded, and it has not ended.
            SessionError: If it has ended before.
        """
        self._journal.merge_into(self._base._journal)

    def discard(self) -> None:
        """Drop the writes and end the branch; a second call does nothing.

        Raises:
            SessionError: If it was merged: that cannot be undone.
        """
        self._journal.discard()


class SessionView(_StandIn):
    """A live, read-only view of a session, for its parent and its children."""

    def __init__(self, base: Session) -> None:
        """Show ``base``."""
        why = f"session {base.session_id} can be read from below or above, but nothing can be written to it from there"
        super().__init__(base, ReadOnlyJournal(base._journal, why), RefusingDispatcher(why))
        self._why = why

    @property
    def host(self) -> object | None:
        """What runs of the shown session provide; it cannot be set here."""
        return self._itself().host

    @host.setter
    def host(self, host: object | None) -> None:
        raise SessionError(self._why)

    @staticmethod
    def shown_by(session: Session) -> Session:
        """Return the session or branch that a view shows, for the runtime's own records; any other one as it is."""
        while isinstance(session, SessionView):
            session = session._base
        return session

    def close(self) -> NoReturn:
        """Raise: the code that started the session closes it.

        Raises:
            SessionError: Always.
        """
        raise SessionError(f"session {self.session_id} is closed by whoever started it")

    def __eq__(self, other: object) -> bool:
        """Whether both are the same session, directly or as a view or branch."""
        return isinstance(other, Session) and other._itself() is self._itself()

    def __hash__(self) -> int:
        """Return the hash of the session."""
        return hash(self._itself())


def iter_sessions_bottom_up(session: Session) -> Iterator[Session]:
    """Yield every session below ``session``, children before their parents, and ``session`` last."""
    for child in session.children:
        yield from iter_sessions_bottom_up(child)
    yield session.origin
