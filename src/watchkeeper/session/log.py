"""The log: everything that happened, in order, each event once; and who is told about it.

An `Envelope` gives an event its place and time. `EventLog` is how a session's log is read, live: it cannot be written
to, because only a session's one critical section appends. Sequence numbers start at 1 and have no gaps, so the number
of the newest event is the length of the log. This layer knows no concrete event but the session's own.
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
from watchkeeper.session.slices import SliceView, Snapshot

T = TypeVar("T")
E = TypeVar("E")


def event(tag: str) -> Callable[[type[T]], type[T]]:
    """Register a class as an event type under a stable tag; write it above ``@dataclass``.

    An event is any value whose type has a typed JSON form, usually a frozen dataclass that stands beside its noun. The
    tag is what a stored log holds, so the class may be renamed and moved; a type without one gets ``module:Qualname``.

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

    A msgspec struct, because there is one for every event and making it costs next to nothing.

    Attributes:
        seq: Its place; 1 for the first.
        at: When it was recorded, in UTC.
        event: What happened.
    """

    seq: int
    at: datetime
    event: Any


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
        """Return one event by its place, from 0 on, or a tuple of several."""
        return self._read()[index]

    def __iter__(self) -> Iterator[Envelope]:
        """Iterate over what is on the log now."""
        return iter(self._read())

    def since(self, seq: int) -> tuple[Envelope, ...]:
        """Return what was recorded after the event ``seq``; everything for 0. Costs only what it returns."""
        return self._read()[max(seq, 0) :]

    def __repr__(self) -> str:
        """Show how much it holds."""
        return f"EventLog({len(self)} events)"


# What a session records about itself, so that its log alone explains its state. These events are made by the session's
# own methods; dispatching one does what the method does. No reducer listens to them.


@event("slice_edited")
@dataclass(frozen=True, slots=True)
class SliceEdited:
    """A slice was edited directly.

    Attributes:
        slice_type: Which slice.
        edit: ``seed`` put the items in the place of all others, ``append`` added them, ``clear`` removed everything.
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
        session_id: Whose snapshot it was.
        seq: The position of that session's log.
        snapshot: The state itself, if this log does not tell it: it is another session's, a branch's, or was read from
            JSON. Without its children, whose own logs tell theirs.
    """

    session_id: UUID
    seq: int
    snapshot: Snapshot | None = None


@event("state_inherited")
@dataclass(frozen=True, slots=True)
class StateInherited:
    """A child session began with the state of another session, whose log has the events of that state.

    Attributes:
        session_id: Whose snapshot it was.
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
    critical section, on the thread of whoever is publishing at that moment. A subscriber may dispatch: what it
    dispatches is published after the envelope at hand. A subscriber that raises is reported and changes nothing for
    anybody else.
    """

    def subscribe(self, event_type: type[E], handler: Callable[[E], object]) -> Unsubscribe:
        """Call ``handler(event)`` for each event of the type or of a subclass; return a function that ends it."""
        ...

    def subscribe_all(self, handler: Callable[[Envelope], object]) -> Unsubscribe:
        """Call ``handler(envelope)`` for every event; return a function that ends it."""
        ...

    def publish(self, envelope: Envelope) -> None:
        """Tell everybody concerned; must not raise because a subscriber did."""
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
            SessionError: If the handler is a coroutine function, which nobody would await, or the session was closed.
        """
        return self._add(_Subscription(event_type, handler))

    def subscribe_all(self, handler: Callable[[Envelope], object]) -> Unsubscribe:
        """Call ``handler(envelope)`` for every event; return a function that ends it.

        Raises:
            SessionError: If the handler is a coroutine function, which nobody would await, or the session was closed.
        """
        return self._add(_Subscription(None, handler))

    @property
    def is_idle(self) -> bool:
        """Whether nobody is subscribed."""
        return not self._subscriptions

    def publish(self, envelope: Envelope) -> None:
        """Tell everybody concerned; a subscriber that raises is reported in the log of the process."""
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
        """Let go of every subscriber and take no more."""
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
    """Takes no subscribers, and says why."""

    __slots__ = ("_why",)

    def __init__(self, why: str) -> None:
        """Say ``why`` to whoever subscribes."""
        super().__init__()
        self._why = why

    def _add(self, subscription: _Subscription) -> NoReturn:
        raise SessionError(self._why)


def name_of(function: Callable[..., Any]) -> str:
    """Return how a function is called in a message."""
    return getattr(function, "__qualname__", None) or repr(function)


def report(happened: str, function: Callable[..., Any], envelope: Envelope, error: Exception) -> None:
    """Write a log line about code of the user's that raised on an event."""
    event: object = envelope.event
    logger().error(
        happened, function=name_of(function), event_type=tag_of(type(event)), seq=envelope.seq, exc_info=error
    )
