"""How an event changes slices.

Reducers are pure functions of a slice and an event: while one runs, its thread may neither dispatch nor read any
session. All reducers of an event are computed before anything changes; if one fails, nothing changes. Several reducers
of one slice run in the order of registration, each on the result of the one before. If no slice has a reducer for an
event type, its events are kept in the slice of that type; as soon as one is registered, only reducers decide.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ReducerError, SessionError
from watchkeeper.core.text import error_text
from watchkeeper.session.log import BUILT_IN, RolledBack, SliceEdited, StateInherited, name_of
from watchkeeper.session.slices import Append, Clear, Extend, Op, Reducer, Replace, SliceChange, SliceSplice, SliceView
from watchkeeper.session.slices import change_between
from watchkeeper.session.tagging import check

Slices = Mapping[type, SliceView[Any]]
"""Every slice that is not empty, by its type; the mapping is never changed, only replaced."""

EMPTY: Final[SliceView[Any]] = SliceView()

BY_DEFAULT: Final[dict[type, tuple[tuple[type, Reducer[Any, Any]], ...]]] = {}
"""Events of Watchkeeper that change a slice of another type, until a reducer is registered for them."""


class _Reduction(threading.local):
    running = False


_reduction = _Reduction()


def refuse_in_reducer(what: str) -> None:
    """Raise if this thread is running a reducer.

    Raises:
        SessionError: If a reducer is running.
    """
    if _reduction.running:
        raise SessionError(f"a reducer may not {what}: it must decide from the slice and the event alone")


class Reducers:
    """The reducers of a session and of its branches."""

    __slots__ = ("_by_event", "_lock")

    def __init__(self) -> None:
        """Start without reducers."""
        self._lock = threading.Lock()
        self._by_event: dict[type, tuple[tuple[type, Reducer[Any, Any]], ...]] = {}

    def copy(self) -> Reducers:
        """Return an independent copy: later registrations on one do not change the other. O(1)."""
        copied = Reducers()
        copied._by_event = self._by_event
        return copied

    def register(self, slice_type: type, event_type: type, reducer: Reducer[Any, Any]) -> None:
        """Let a reducer decide what events of exactly this type do to a slice; registering twice changes nothing.

        Raises:
            SessionError: If the reducer cannot be called, is a coroutine function, or the event is the session's own.
        """
        given: Any = reducer
        if not callable(given) or inspect.iscoroutinefunction(given):
            raise SessionError(f"a reducer must be a plain function of (slice, event), got {given!r}")
        given = event_type
        if not isinstance(given, type):
            raise SessionError(f"register an event's class, got {given!r}")
        if event_type in BUILT_IN:
            raise SessionError(f"{event_type.__name__} is the session's own record; no reducer can listen to it")
        with self._lock:
            known = self._by_event.get(event_type, ())
            if (slice_type, reducer) not in known:
                self._by_event = {**self._by_event, event_type: (*known, (slice_type, reducer))}

    def keep(self, event_type: type) -> bool:
        """Return whether events of a type reach the slice of that type: by a reducer, or because none is registered."""
        registered = self._by_event.get(event_type)
        return registered is None or any(slice_type is event_type for slice_type, _ in registered)

    def reduce(self, slices: Slices, event: object, owner: object) -> tuple[Slices, tuple[SliceChange, ...] | None]:
        """Return the slices after an event, and what its reducers changed; None if it has none.

        Raises:
            ReducerError: If a reducer raised or returned an invalid result.
            SessionError: If the event is an edit that does not fit its slice.
        """
        event_type = type(event)
        registered = self._by_event.get(event_type)
        if registered is None:
            registered = BY_DEFAULT.get(event_type)
        if registered is None:
            if event_type in BUILT_IN:
                return _built_in(slices, event, owner), None
            return {**slices, event_type: slices.get(event_type, EMPTY).appended(event, owner)}, None
        changed, changes = dict(slices), list[SliceChange]()
        _reduction.running = True
        try:
            for slice_type, reducer in registered:
                change = _reduced(changed.get(slice_type, EMPTY), slice_type, reducer, event)
                apply(changed, change, owner)
                changes.append(change)
        finally:
            _reduction.running = False
        return changed, tuple(changes)


def apply(slices: dict[type, SliceView[Any]], change: SliceChange, owner: object) -> None:
    """Make a change in a mapping of slices."""
    before = slices.get(change.slice_type, EMPTY)
    if change.op == "extend":
        after = before.extended(change.items, owner)
    else:
        items = change.result(list(before)) if isinstance(change, SliceSplice) else change.items
        after = EMPTY.extended(items, owner)
    _put(slices, change.slice_type, after)


def _put(slices: dict[type, SliceView[Any]], slice_type: type, view: SliceView[Any]) -> None:
    """Store a slice, or remove it if it is empty, so that equal states have equal mappings."""
    if len(view):
        slices[slice_type] = view
    else:
        slices.pop(slice_type, None)


def _reduced(view: SliceView[Any], slice_type: type, reducer: Reducer[Any, Any], event: Any) -> SliceChange:
    try:
        op: Op[Any] = reducer(view, event)
        if isinstance(op, Append):
            return SliceChange(slice_type, "extend", (_fitting(op.item, slice_type, event),))
        if isinstance(op, Extend):
            return SliceChange(slice_type, "extend", _all_fitting(op.items, slice_type, event))
        if isinstance(op, Replace):
            return change_between(slice_type, list(view), _all_fitting(op.items, slice_type, event))
        if isinstance(op, Clear):  # pyright: ignore[reportUnnecessaryIsInstance]
            return SliceChange(slice_type, "replace")
        raise TypeError(f"it returned {type(op).__name__}; return Append, Extend, Replace or Clear")
    except Exception as error:
        raise ReducerError(
            f"reducer {name_of(reducer)} of slice {slice_type.__name__} failed on {type(event).__name__}:"
            f" {error_text(error)}; no slice changed"
        ) from error


def _fitting(item: Any, slice_type: type, event: Any) -> Any:
    if not isinstance(item, slice_type):
        raise SessionError(
            f"session[{slice_type.__name__}] holds {slice_type.__name__}, not {type(item).__name__} ({item!r})"
        )
    if item is not event:
        check_serialisable(item)
    return item


def _all_fitting(items: Iterable[Any], slice_type: type, event: Any) -> list[Any]:
    return [_fitting(item, slice_type, event) for item in items]


def check_serialisable(value: Any) -> None:
    """Refuse a value that no snapshot could hold.

    Raises:
        SessionError: If it cannot be stored; the message names the place and the type.
    """
    try:
        check(value)
    except CodecError as error:
        raise SessionError(f"a session keeps only what can be stored: {error}") from error


def _built_in(slices: Slices, event: Any, owner: object) -> Slices:
    if isinstance(event, SliceEdited):
        return _edited(slices, event, owner)
    if isinstance(event, RolledBack):
        raise SessionError("a RolledBack event without its snapshot does nothing; call session.rollback(snapshot)")
    if isinstance(event, StateInherited):
        raise SessionError("only a child begins with the state of another session; call session.child(snapshot)")
    return {}


def _edited(slices: Slices, edit: SliceEdited, owner: object) -> Slices:
    for item in edit.items:
        _fitting(item, edit.slice_type, item)
    before = slices.get(edit.slice_type, EMPTY) if edit.edit == "append" else EMPTY
    changed = dict(slices)
    _put(changed, edit.slice_type, before.extended(edit.items, owner))
    return changed
