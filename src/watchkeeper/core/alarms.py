"""Alarms: callbacks at an instant of a clock, for code that has no running asyncio loop.

One thread for the whole process waits for the earliest alarm. The thread ends when no alarms are left. It runs no
callback itself: each callback gets its own thread, so a callback that blocks delays no other. A cancelled alarm stays
in the heap, without its callback, until the heap holds enough cancelled alarms to be swept.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Final

LINGER_SECONDS: Final = 0.25
"""Seconds that the thread stays without alarms; a program that sets alarms one by one keeps the same thread."""

LONGEST_WAIT: Final = 86_400.0

SWEPT: Final = 64
"""The number of cancelled entries below which the heap is not swept."""


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
        """Start without alarms; ``monotonic`` returns the current time in seconds."""
        self._monotonic = monotonic
        self._order = itertools.count()
        self.forget_thread()

    def forget_thread(self) -> None:
        """Reset to no alarms and no thread; also called in a forked process, which has none of its parent's threads."""
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
        """Call all callbacks that are due, until there is nothing to wait for."""
        while (due := self._next_due()) is not None:
            for callback in due:
                if not start(callback, "watchkeeper-alarm"):
                    callback()

    def _next_due(self) -> list[Callable[[], object]] | None:
        """Wait for the next callbacks that are due; return None after a while without alarms."""
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
        """Remove due and cancelled alarms from the top of the heap; return the due callbacks in order."""
        due: list[Callable[[], object]] = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].callback is None):
            alarm = heapq.heappop(self._heap)[2]
            callback, alarm.callback = alarm.callback, None
            if callback is not None:
                self._live -= 1
                due.append(callback)
        return due


def start(target: Callable[[], object], name: str) -> bool:
    """Start a daemon thread; return False if no thread can be started, for example while the interpreter exits."""
    try:
        threading.Thread(target=target, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True
