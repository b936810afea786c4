"""A signal that work should stop (docs/specification.md, execution context).

Cancelling a parent cancels its children; cancelling twice keeps the first reason. Callbacks run once, on the thread
that cancels; if a callback raises, the error is logged and the other callbacks still run. A parent holds its children
by weak references, so a long run does not collect tokens; a child holds its parent, or it would not be reached any more
once the token between it and the one that is cancelled was collected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any
from weakref import ref

from watchkeeper.core.text import logger


class Bell(threading.Event):
    """An event that may be set at any moment, also by a signal handler that interrupts its own `wait` or `set`.

    The lock of a plain event is not reentrant: a handler that sets the event while its thread holds that lock waits for
    ever. Here no method holds a lock: a waiting thread acquires a lock that `set` releases, and releases it again at
    once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_rung = False
        self._turn = threading.Lock()
        self._turn.acquire()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_rung

    def set(self) -> None:
        """Wake the waiting thread; no effect if it is set already."""
        self._is_rung = True
        with suppress(RuntimeError):  # released before
            self._turn.release()

    def clear(self) -> None:
        """Let `wait` block again; only for the one thread that waits."""
        self._is_rung = False
        self._turn.acquire(blocking=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set or the time in seconds is over; return whether it is set."""
        seconds = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        if not self._is_rung and self._turn.acquire(timeout=seconds):
            with suppress(RuntimeError):
                self._turn.release()
        return self._is_rung


class CancellationToken:
    """A flag with a reason, children and callbacks; safe under threads."""

    __slots__ = ("__weakref__", "_callbacks", "_children", "_event", "_lock", "_parent", "_reason")

    def __init__(self, parent: CancellationToken | None = None) -> None:
        # A token and all tokens below it share one lock; reentrant: a finaliser may cancel a token while it is held.
        self._lock: AbstractContextManager[Any] = threading.RLock() if parent is None else parent._lock
        self._event: Bell | None = None
        self._reason: str | None = None
        self._callbacks: dict[object, Callable[[str], None]] = {}
        self._children: set[ref[CancellationToken]] | None = None
        self._parent = parent
        if parent is not None:
            parent._adopt(self)

    @property
    def is_cancelled(self) -> bool:
        """Whether the token was cancelled."""
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """The first reason given, or None."""
        return self._reason

    def child(self) -> CancellationToken:
        """Return a token that is cancelled with this one."""
        return CancellationToken(self)

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancel this token and its children; the first reason stays."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks, self._callbacks = list(self._callbacks.values()), {}
            # Copied to a list first: the garbage collector may remove children from the set during the loop.
            children = [child() for child in list(self._children or ())]
            if self._event is not None:
                self._event.set()
        for callback in callbacks:
            try:
                callback(reason)
            except Exception as error:
                logger().error("cancellation.callback_failed", callback=repr(callback), error=repr(error))
        for token in children:
            if token is not None:
                token.cancel(reason)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until cancelled or until the time is over; return whether it is cancelled.

        For sync tools that poll or sleep: ``if token.wait(5): return``.
        """
        with self._lock:
            if self._reason is not None:
                return True
            if self._event is None:
                self._event = Bell()
        return self._event.wait(timeout_s)

    def on_cancel(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call back with the reason when cancelled (at once if it already is); return a function that forgets it."""
        with self._lock:
            if self._reason is None:
                key = object()
                self._callbacks[key] = callback
                return lambda: self._forget(key)
        callback(self._reason)
        return lambda: None

    def _forget(self, key: object) -> None:
        with self._lock:
            self._callbacks.pop(key, None)

    def _adopt(self, token: CancellationToken) -> None:
        with self._lock:
            if self._reason is None:
                if self._children is None:
                    self._children = set()
                self._children.add(ref(token, self._children.discard))
                return
        token.cancel(self._reason)
