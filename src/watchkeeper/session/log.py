"""The log: every event of a session, in order, each once; and the dispatcher that delivers events to subscribers.

An `Envelope` gives an event its place and time. `EventLog` is a live, read-only view of a session's log; only the
session's critical section appends to the log. Sequence numbers start at 1 and have no gaps, so the number
of the newest event is the length of the log. This layer knows no concrete events except the session's own.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NoReturn, Protocol, TypeVar, overload
from uuid import UUID

import msgspec

from watchkeeper.core.codec import is_pydantic
from watchkeeper.core.errors import ConfigurationError, SessionError
from watchkeeper.core.text import logger
from watchkeeper.core.type_tags import stored_as, tag_of
from watchkeeper.session.slices import SliceChange, SliceView, Snapshot

T = TypeVar("T")
E = TypeVar("E")


def event(tag: str) -> Callable[[type[T]], type[T]]:
    """Register a class as an event type under a stable tag; write it above ``@dataclass``.

    An event is any value whose type has a typed JSON form, usually a frozen dataclass in the module of its topic. The
    stored log holds the tag, so the class may be renamed and moved; a type without a tag gets ``module:Qualname``.

    Args:
        tag: A plain name in snake case, such as ``ticket_filed``.

    Raises:
        ConfigurationError: If the tag belongs to another type, or the class has no fields to record.
    """

    def register(type_: type[T]) -> type[T]:
        fields = "__dataclass_fields__" in type_.__dict__ or hasattr(type_, "__struct_fields__")
        if not (fields or is_pydantic(type_)):
            raise ConfigurationError(
                f"{type_.__name__} has no fields to record: write @event({tag!r}) above @dataclass(frozen=True),"
                " or above a pydantic model or msgspec struct"
            )
        return stored_as(tag)(type_)

    return register


@event("envelope")
class Envelope(msgspec.Struct, frozen=True):
    """One event on a log.

    A msgspec struct, because there is one for every event and creating it is cheap.

    Attributes:
        seq: Its position on the log; 1 for the first.
        at: When it was recorded, in UTC.
        event: The event itself.
        changes: What reducers made of it; None where none was registered for it, so that it is in the slice of its own
            type, and for the events that a session records about itself.
    """

    seq: int
    at: datetime
    event: Any
    changes: tuple[SliceChange, ...] | None = None


class EventLog(Sequence[Envelope]):
    """A session's log as it grows; safe to read while others dispatch. Slicing gives a tuple."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], SliceView[Envelope]]) -> None:
        """Read the log through ``read``, which returns it as it is now."""
        self._read = read

    def __len__(self) -> int:
        """Return the number of events so far, which is the newest event's ``seq``."""
        return len(self._read())

    @overload
    def __getitem__(self, index: int) -> Envelope: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Envelope, ...]: ...
    def __getitem__(self, index: int | slice) -> Envelope | tuple[Envelope, ...]:
        """Return one event by its index (from 0), or a tuple for a slice."""
        return self._read()[index]

    def __iter__(self) -> Iterator[Envelope]:
        """Iterate over the events that are on the log now."""
        return iter(self._read())

    def since(self, seq: int) -> tuple[Envelope, ...]:
        """Return the events after number ``seq``; 0 returns all. The cost depends only on the result's length."""
        return self._read()[max(seq, 0) :]

    def __repr__(self) -> str:
        """Show how much it holds."""
        return f"EventLog({len(self)} events)"


# Events that a session records about itself, so that its log alone explains its state. The session's own methods create
# them; dispatching one has the same effect as the method. No reducer can be registered for them.


@event("slice_edited")
@dataclass(frozen=True, slots=True)
class SliceEdited:
    """A slice was edited directly.

    Attributes:
        slice_type: The type of the slice's items.
        edit: ``seed`` replaced all other items, ``append`` added them, ``clear`` removed everything.
        items: The items, none for ``clear``.
    """

    slice_type: type
    edit: Literal["seed", "append", "clear"]
    items: tuple[Any, ...] = ()


@event("rolled_back")
@dataclass(frozen=True, slots=True)
class RolledBack:
    """The slices became what they were in a snapshot.

    Attributes:
        session_id: The session of the snapshot.
        seq: The position of that session's log.
        snapshot: The state itself, if it does not follow from this log: it is another session's, a branch's, or was
            read from JSON. Without its children, because their own logs record theirs.
    """

    session_id: UUID
    seq: int
    snapshot: Snapshot | None = None


@event("state_inherited")
@dataclass(frozen=True, slots=True)
class StateInherited:
    """A child session began with the state of another session, whose log has the events of that state.

    Attributes:
        session_id: The session of the snapshot.
        seq: The position of that session's log.
    """

    session_id: UUID
    seq: int


@event("session_reset")
@dataclass(frozen=True, slots=True)
class SessionReset:
    """Every slice became empty."""


BUILT_IN: Final[frozenset[type]] = frozenset({SliceEdited, RolledBack, StateInherited, SessionReset})


Unsubscribe = Callable[[], None]


class Dispatcher(Protocol):
    """Delivers events to their subscribers; docs/specification.md calls it the event bus.

    A session publishes each envelope exactly once, in the order of ``seq``, after the event is recorded and outside its
    critical section, on the thread that is publishing at that moment. A subscriber may dispatch: the new event
    is published after the current envelope. If a subscriber raises, the error is logged, and the other subscribers are
    still called.
    """

    def subscribe(self, event_type: type[E], handler: Callable[[E], object]) -> Unsubscribe:
        """Call ``handler(event)`` for each event of the type or of a subclass; return a function that ends it."""
        ...

    def subscribe_all(self, handler: Callable[[Envelope], object]) -> Unsubscribe:
        """Call ``handler(envelope)`` for every event; return a function that ends it."""
        ...

    def publish(self, envelope: Envelope) -> None:
        """Call every matching subscriber; must not raise an Exception that a subscriber raised."""
        ...


EventBus = Dispatcher


class _Subscription(msgspec.Struct, frozen=True, eq=False):
    event_type: type | None
    handler: Callable[[Any], object]


class InProcessDispatcher:
    """Calls subscribers one after the other, in the order in which they subscribed, on the publishing thread."""

    __slots__ = ("_closed", "_concerned", "_lock", "_subscriptions")

    def __init__(self) -> None:
        """Start without subscribers."""
        self._lock = threading.Lock()
        self._closed = False
        self._subscriptions: tuple[_Subscription, ...] = ()
        self._concerned: dict[type, tuple[_Subscription, ...]] = {}

    def subscribe(self, event_type: type[E], handler: Callable[[E], object]) -> Unsubscribe:
        """Call ``handler(event)`` for each event of the type or of a subclass; return a function that ends it.

        Raises:
            SessionError: If the handler is a coroutine function, which would not be awaited, or the session was closed.
        """
        return self._add(_Subscription(event_type, handler))

    def subscribe_all(self, handler: Callable[[Envelope], object]) -> Unsubscribe:
        """Call ``handler(envelope)`` for every event; return a function that ends it.

        Raises:
            SessionError: If the handler is a coroutine function, which would not be awaited, or the session was closed.
        """
        return self._add(_Subscription(None, handler))

    @property
    def is_idle(self) -> bool:
        """Whether there are no subscribers."""
        return not self._subscriptions

    def publish(self, envelope: Envelope) -> None:
        """Call every matching subscriber; an Exception of a subscriber is written to the log of the process."""
        if not self._subscriptions:
            return
        event: object = envelope.event
        event_type = type(event)
        concerned = self._concerned.get(event_type)
        if concerned is None:
            concerned = self._find(event_type)
        interrupt: BaseException | None = None
        for subscription in concerned:
            try:
                subscription.handler(envelope if subscription.event_type is None else event)
            except Exception as error:
                report("subscriber.failed", subscription.handler, envelope, error)
            except BaseException as error:
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt

    def close(self) -> None:
        """Remove every subscriber and refuse new ones."""
        with self._lock:
            self._closed = True
            self._subscriptions = ()
            self._concerned = {}

    def _find(self, event_type: type) -> tuple[_Subscription, ...]:
        with self._lock:
            concerned = tuple(
                subscription
                for subscription in self._subscriptions
                if subscription.event_type is None or issubclass(event_type, subscription.event_type)
            )
            self._concerned[event_type] = concerned
        return concerned

    def _add(self, subscription: _Subscription) -> Unsubscribe:
        if inspect.iscoroutinefunction(subscription.handler):
            raise SessionError(
                f"subscriber {name_of(subscription.handler)} is a coroutine function; subscribe a plain function"
                " (it may start a task)"
            )
        with self._lock:
            if self._closed:
                raise SessionError(
                    f"subscriber {name_of(subscription.handler)} came too late: the session was closed, and nothing"
                    " more will happen in it; read its log"
                )
            self._subscriptions = (*self._subscriptions, subscription)
            self._concerned = {}
        return lambda: self._remove(subscription)

    def _remove(self, subscription: _Subscription) -> None:
        with self._lock:
            self._subscriptions = tuple(other for other in self._subscriptions if other is not subscription)
            self._concerned = {}


class RefusingDispatcher(InProcessDispatcher):
    """Refuses every subscriber with a SessionError that says why."""

    __slots__ = ("_why",)

    def __init__(self, why: str) -> None:
        """Refuse with the message ``why``."""
        super().__init__()
        self._why = why

    def _add(self, subscription: _Subscription) -> NoReturn:
        raise SessionError(self._why)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function for messages."""
    return getattr(function, "__qualname__", None) or repr(function)


def report(happened: str, function: Callable[..., Any], envelope: Envelope, error: Exception) -> None:
    """Write a log line about user code that raised an error on an event."""
    event: object = envelope.event
    logger().error(
        happened, function=name_of(function), event_type=tag_of(type(event)), seq=envelope.seq, exc_info=error
    )
