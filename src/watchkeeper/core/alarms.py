"""Alarms: callbacks at an instant of a clock, for whoever has no running loop to wait in.

One thread for the whole process waits for the earliest of them, however many there are. It ends when there are none any
more. It runs no callback itself: each has a thread of its own, so one that blocks holds up no other. An alarm that is
cancelled stays in the heap, without its callback, until enough of them are there to be swept out.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Final

LINGER_SECONDS: Final = 0.25
"""How long the thread stays when there are no alarms; a program that sets one after the other keeps the same thread."""

LONGEST_WAIT: Final = 86_400.0

SWEPT: Final = 64
"""Fewer entries than this are not worth sweeping."""


class Alarm:
    """A pending callback, until it is called or cancelled."""

    __slots__ = ("_alarms", "callback")

    def __init__(self, alarms: Alarms, callback: Callable[[], object]) -> None:
        self._alarms = alarms
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Forget the callback; harmless if it was called already."""
        self._alarms.forget(self)


class Alarms:
    """All alarms of one clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Start without any; ``monotonic`` says what time it is, in seconds."""
        self._monotonic = monotonic
        self._order = itertools.count()
        self.forget_thread()

    def forget_thread(self) -> None:
        """Start afresh, also in a forked process, which has none of its parent's threads."""
        # Reentrant: a finaliser that the collector runs inside a critical section may cancel an alarm.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, Alarm]] = []
        self._live = 0
        self._is_watched = False
        self._wakes_at = 0.0
        self._waits_long = False

    @property
    def pending(self) -> int:
        """Number of alarms that were neither called nor cancelled."""
        return self._live

    @property
    def kept(self) -> int:
        """Number of entries in memory, cancelled ones included."""
        return len(self._heap)

    def set(self, when: float, callback: Callable[[], object]) -> Alarm:
        """Call back, on a thread of its own, once the clock reaches an instant."""
        alarm = Alarm(self, callback)
        with self._lock:
            self._live += 1
            heapq.heappush(self._heap, (when, next(self._order), alarm))
            if not self._is_watched:
                self._is_watched = start(self._watch, "watchkeeper-alarms")
            elif when < self._wakes_at:
                self._changed.notify()
        return alarm

    def forget(self, alarm: Alarm) -> None:
        """Cancel an alarm."""
        with self._lock:
            if alarm.callback is None:
                return
            alarm.callback = None
            self._live -= 1
            if len(self._heap) > SWEPT + 2 * self._live:
                self._heap = [entry for entry in self._heap if entry[2].callback is not None]
                heapq.heapify(self._heap)
            if not self._live and self._waits_long:
                self._changed.notify()

    def _watch(self) -> None:
        """Call back whatever is due, until there is nothing to wait for."""
        while (due := self._next_due()) is not None:
            for callback in due:
                if not start(callback, "watchkeeper-alarm"):
                    callback()

    def _next_due(self) -> list[Callable[[], object]] | None:
        """Wait for what is due next; None once there have been no alarms for a while."""
        with self._lock:
            nothing_new = False
            while True:
                now = self._monotonic()
                if due := self._take(now):
                    return due
                if nothing_new and not self._live:
                    self._is_watched = False
                    return None
                self._waits_long = nothing_new
                seconds = LONGEST_WAIT if nothing_new else LINGER_SECONDS
                if self._heap:
                    seconds = min(seconds, self._heap[0][0] - now)
                self._wakes_at = now + seconds
                nothing_new = not self._changed.wait(seconds)

    def _take(self, now: float) -> list[Callable[[], object]]:
        """Remove what is due, or was cancelled, from the top of the heap; return what is due, in its order."""
        due: list[Callable[[], object]] = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].callback is None):
            alarm = heapq.heappop(self._heap)[2]
            callback, alarm.callback = alarm.callback, None
            if callback is not None:
                self._live -= 1
                due.append(callback)
        return due


def start(target: Callable[[], object], name: str) -> bool:
    """Start a daemonic thread; return False if there can be none, as when the interpreter is about to exit."""
    try:
        threading.Thread(target=target, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True
