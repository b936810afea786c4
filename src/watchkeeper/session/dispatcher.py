"""Who is told about events.

A session publishes each envelope exactly once, in the order of ``seq``, after the event is recorded and outside its
critical section, on the thread of whoever is publishing at that moment. A subscriber may dispatch: what it dispatches
is published after the envelope at hand. A subscriber that raises is reported and changes nothing for anybody else.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from watchkeeper.core.errors import SessionError
from watchkeeper.core.logs import logger
from watchkeeper.session.log import Envelope
from watchkeeper.session.registry import event_tag

E = TypeVar("E")

Unsubscribe = Callable[[], None]


class Dispatcher(Protocol):
    """Hands events to those who asked for them (the seeds call it the event bus)."""

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


@dataclass(frozen=True, slots=True, eq=False)
class _Subscription:
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
        happened,
        function=name_of(function),
        event_type=event_tag(type(event)),
        seq=envelope.seq,
        exc_info=error,
    )
