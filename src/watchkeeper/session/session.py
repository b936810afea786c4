"""A session: one log, the slices that are a fold of it, and a place among other sessions.

Every change is an event: recorded once, in one critical section with what it does to the slices, told to subscribers
afterwards in the order of the log. Reading, snapshots, branches and children cost the same however long the log is. A
session is safe under threads; its values are not copied, so they must not be changed. Parent and child share what the
child began with and never what is written afterwards; a closed session is only read.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, NoReturn, TypeVar
from uuid import UUID

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


class SliceAccessor(Generic[T]):
    """``session[T]``: one slice of a session, to read and to edit; always as it is now.

    Reading takes no lock and copies nothing. Each edit is recorded on the log. Items of a slice are instances of its
    type; treat them as frozen, because snapshots and branches share them.
    """

    __slots__ = ("_journal", "_slice_type")

    def __init__(self, journal: Journal, slice_type: type[T]) -> None:
        """Look at the slice of ``slice_type``."""
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
        """Put the items in the place of all others.

        Raises:
            SessionError: If an item is of another type or cannot be stored.
        """
        self._journal.record(SliceEdited(self._slice_type, "seed", items))

    def append(self, item: T) -> None:
        """Add an item at the tail.

        Raises:
            SessionError: If the item is of another type or cannot be stored.
        """
        self._journal.record(SliceEdited(self._slice_type, "append", (item,)))

    def clear(self) -> None:
        """Remove every item."""
        self._journal.record(SliceEdited(self._slice_type, "clear"))

    def register(self, event_type: type[E], reducer: Reducer[T, E]) -> None:
        """Let ``reducer(slice, event)`` decide what events of exactly this type do to the slice.

        As soon as a reducer is registered for an event type, in whatever slice, such events are no longer kept in
        their own slice by themselves; register `append_event` there to keep them. Registering the same reducer again
        changes nothing.

        Raises:
            SessionError: If the reducer is no plain function, or this is a branch: what a branch registers would be
                gone when its writes are repeated.
        """
        refuse_in_reducer("register reducers")
        self._journal.register(self._slice_type, event_type, reducer)

    def keep(self) -> None:
        """See to it that events of the slice's own type are kept in it, whatever else listens to them.

        Raises:
            SessionError: If a reducer is needed for it, and this is a branch.
        """
        if not self._journal.keeps(self._slice_type):
            self.register(self._slice_type, append_event)


class Session:
    """The log and the state of one run (docs/specification.md).

    Attributes:
        session_id: Its identity.
        log: Everything that happened in it, live.
        dispatcher: Who is told about it.
        clock: Where the time of its events comes from.
    """

    __slots__ = (
        "__weakref__",
        "_above",
        "_children",
        "_host",
        "_ids",
        "_journal",
        "_own",
        "clock",
        "dispatcher",
        "log",
        "session_id",
    )

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
            parent: The session that started this one; it knows its children without keeping them alive.
            session_id: Its identity; a fresh one by default.
            dispatcher: Who is told about events; one of its own by default.
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
        self._children = _Children()
        self._journal = Journal(clock, self.dispatcher)
        self.log = EventLog(self._journal.read_log)
        if self._above is not None:
            self._above._children.add(self)

    def _stand_in_for(self, base: Session, journal: Journal, dispatcher: Dispatcher) -> None:
        """Begin as another session in another light, in the place of ``__init__``."""
        self._journal = journal
        self.clock = base.clock
        self.dispatcher = dispatcher
        self.session_id = base.session_id
        self._above = base._above
        self.log = EventLog(journal.read_log)

    @property
    def parent(self) -> Session | None:
        """The session that started it, live and to be read only, or None (docs/specification.md, nested execution).

        It is equal to that session, and not the same.
        """
        return None if self._above is None else SessionView(self._above)

    @property
    def host(self) -> object | None:
        """What the runs that write to it have for those that start others below them, or None between runs."""
        return self._itself()._host

    @host.setter
    def host(self, host: object | None) -> None:
        self._itself()._host = host

    def _itself(self) -> Session:
        return self.origin

    @property
    def origin(self) -> Session:
        """The session that a branch is a branch of, however deep; a session that is no branch is its own."""
        return self

    @property
    def children(self) -> tuple[Session, ...]:
        """The sessions it started that are not closed and that somebody still holds, oldest first; to be read only."""
        return tuple([SessionView(child) for child in self._started()])

    def _started(self) -> tuple[Session, ...]:
        return self._children.alive()

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

        All reducers are computed before anything changes. An event type for which no reducer is registered, in
        whatever slice, is kept in its own slice, ``session[type(event)]``; once there is one, reducers alone decide.
        When another thread is telling subscribers at that moment, it tells them about this event too.

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
        if isinstance(event, RolledBack) and event.snapshot is not None and self.origin is self:
            self._restore(event.snapshot.children)
        return envelope

    def _restore(self, snapshots: tuple[Snapshot, ...]) -> None:
        known = {snapshot.session_id: snapshot for snapshot in snapshots}
        for child in self._started() if known else ():
            if child.session_id in known:
                with suppress(SessionError):  # it was closed a moment ago
                    child.rollback(known[child.session_id])

    def snapshot(self, *, cascade: bool = False) -> Snapshot:
        """Return the present state as a value; nothing is copied.

        Args:
            cascade: Take those of its children along, of theirs, and so on. Each is consistent by itself; what is
                written meanwhile to one session may be in its snapshot and not in that of another.
        """
        taken = self._journal.snapshot(self.session_id)
        if not cascade:
            return taken
        return replace(taken, children=tuple(child.snapshot(cascade=True) for child in self._started()))

    def rollback(self, snapshot: Snapshot) -> None:
        """Make the slices what they were in a snapshot, of this session or of another; the log keeps everything.

        If the snapshot has children, those of them that are still children of this session are rolled back too, each
        by itself; the others are passed over. A branch leaves the children alone: they are not part of it.

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
        """Wait until subscribers were told of everything recorded so far; call it before unsubscribing one for good.

        Telling is usually done when `dispatch` returns; not if another thread dispatched at the same moment and is
        telling for both.

        Args:
            timeout_s: Seconds to wait at most for a subscriber that another thread is in.

        Returns:
            Whether everything is told; False also inside a subscriber, which would wait for itself.
        """
        return self._journal.flush(timeout_s)

    def branch(self) -> Branch:
        """Return a transaction: it sees this moment's state and its own writes; nobody else sees them until it merges.

        Nothing is copied. `Branch.merge` repeats the writes here, `Branch.discard` forgets them.
        """
        return Branch(self)

    def child(
        self,
        snapshot: Snapshot | None = None,
        *,
        session_id: UUID | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> Session:
        """Return a session below this one; whatever is written to one of them never reaches the other.

        It has this session's reducers, as they are now, and a dispatcher of its own. From a branch, it is a child of
        the branch's session. The slices are shared, not copied: O(1), however much there is. Whoever starts a child
        closes it with `close` (docs/specification.md, subagents).

        Args:
            snapshot: The state to begin with, which its log notes with `StateInherited`; empty slices by default.
            session_id: Its identity; a fresh one by default.
            clock: Where the time of its events comes from; this session's clock by default.
            ids: Where its identity comes from; where this session's came from by default.

        Raises:
            SessionError: If this session was closed, or a reducer asks.
        """
        refuse_in_reducer("start a child")
        parent = self.origin
        parent._journal.refuse_if_ended()
        child = Session(
            session_id=session_id, clock=self.clock if clock is None else clock, ids=parent._ids if ids is None else ids
        )
        child._journal.inherit(self._journal, snapshot)
        child._above = parent
        parent._children.add(child)
        return child

    def close(self) -> None:
        """End the session: it can still be read, any write raises, and its parent no longer lists it.

        Its subscribers are let go once they were told of everything; those of a dispatcher that was given to it stay
        with that dispatcher. Its own children stay as they are. Closing it again changes nothing.

        Raises:
            SessionError: If a reducer closes it, or this is a branch.
        """
        refuse_in_reducer("close a session")
        if self._above is not None:
            self._above._children.remove(self)
        why = f"session {self.session_id} was closed; it can still be read, but nothing can be written to it any more"
        self._journal.close(why, self._own)

    def __repr__(self) -> str:
        """Show the identity and the length of the log."""
        return f"{type(self).__name__}({self.session_id}, {len(self.log)} events)"


class _Children:
    """Sessions that are known, not kept alive; forgetting the dead costs nothing that counts."""

    __slots__ = ("_lock", "_most", "_references")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._references: dict[int, weakref.ref[Session]] = {}
        self._most = 8

    def add(self, session: Session) -> None:
        with self._lock:
            self._references.pop(id(session), None)  # one that is dead, whose place in memory this one has
            self._references[id(session)] = weakref.ref(session)
            if len(self._references) > self._most:
                self._references = {key: known for key, known in self._references.items() if known() is not None}
                self._most = 2 * len(self._references) + 8

    def remove(self, session: Session) -> None:
        with self._lock:
            self._references.pop(id(session), None)

    def alive(self) -> tuple[Session, ...]:
        sessions = [reference() for reference in self._references.copy().values()]
        return tuple(session for session in sessions if session is not None)


class Branch(Session):
    """A session's state with writes of its own that nobody else sees, until they are merged or discarded.

    It has its session's identity, parent and children. Its log is its session's log at the start and then its own
    events, whose numbers are provisional. An event whose reducer failed changed nothing here and is not repeated.
    After the end reading is still possible, any write raises: a thread that was given up can do no harm.
    """

    __slots__ = ("_base",)

    def __init__(self, base: Session) -> None:
        """Begin with what ``base``, a session or another branch, holds now."""
        self._base = base
        self._stand_in_for(base, base._journal.branch(), base.dispatcher)

    def _started(self) -> tuple[Session, ...]:
        return self._base._started()

    @property
    def origin(self) -> Session:
        """The session that this is a branch of, however deep."""
        return self._base.origin

    def close(self) -> NoReturn:
        """Raise: a branch ends with `merge` or `discard`, and its session is closed by whoever started it.

        Raises:
            SessionError: Always.
        """
        raise SessionError("a branch ends with merge() or discard(); close the session that it is a branch of")

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until the subscribers of its session were told of everything recorded there."""
        return self._base.flush(timeout_s)

    def merge(self) -> None:
        """Repeat the writes on the session, in one critical section, as if they were dispatched there now.

        Reducers run again on what the session holds by then; subscribers are told afterwards. The branch has ended.

        Raises:
            ReducerError: If a reducer fails; then nothing of the branch is applied or recorded, and it has not ended.
            SessionError: If it has ended before.
        """
        self._journal.merge_into(self._base._journal)

    def discard(self) -> None:
        """Forget the writes and end the branch; doing so again changes nothing.

        Raises:
            SessionError: If it was merged: that cannot be undone.
        """
        self._journal.discard()


class SessionView(Session):
    """A live, read-only view of a session, for its parent and its children."""

    __slots__ = ("_base",)

    def __init__(self, base: Session) -> None:
        """Show ``base``."""
        why = f"session {base.session_id} can be read from below or above, but nothing can be written to it from there"
        self._base = base
        self._stand_in_for(base, ReadOnlyJournal(base._journal, why), RefusingDispatcher(why))

    def _started(self) -> tuple[Session, ...]:
        return self._base._started()

    def child(self, snapshot: Snapshot | None = None, **options: Any) -> Session:
        """Return a session below the one that is seen, as its own `child` does."""
        return self._base.child(snapshot, **options)

    def close(self) -> NoReturn:
        """Raise: who started it closes it.

        Raises:
            SessionError: Always.
        """
        raise SessionError(f"session {self.session_id} is closed by whoever started it")

    def _itself(self) -> Session:
        return self._base

    def __eq__(self, other: object) -> bool:
        """Whether both are the same session, seen or itself."""
        return isinstance(other, Session) and other._itself() is self._base

    def __hash__(self) -> int:
        """Return the hash of the session."""
        return hash(self._base)


def iter_sessions_bottom_up(session: Session) -> Iterator[Session]:
    """Yield every session below ``session``, children before their parents, and at last itself."""
    for child in session.children:
        yield from iter_sessions_bottom_up(child)
    yield session.origin
