"""``session[T]``: one slice of a session, to read and to edit.

Reading takes no lock and copies nothing. Each edit is recorded on the log. Items of a slice are instances of its type;
treat them as frozen, because snapshots and branches share them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from watchkeeper.session.events import SliceEdited
from watchkeeper.session.journal import Journal
from watchkeeper.session.reducers import EMPTY, refuse_in_reducer
from watchkeeper.session.slices import Reducer, SliceView, append_event

T = TypeVar("T")
E = TypeVar("E")


class SliceAccessor(Generic[T]):
    """One slice of a session; always as it is now."""

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
