"""Alarms: callbacks at an instant of a clock, for code that has no running asyncio loop.

One thread for the whole process waits for the earliest alarm. The thread ends when no alarms are left. What is due is
called on another thread, one callback after the other; if that makes no progress because a callback blocks, more
threads help. A cancelled alarm stays in the heap, without its callback, until enough of them are there to be swept.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LINGER_SECONDS: Final = 0.25  # how long the thread stays without alarms: a program that sets them one by one keeps it
LONGEST_WAIT: Final = 86_400.0
STALLED_SECONDS: Final = 0.02  # without progress of those who call what is due, before twice as many are added
SWEPT: Final = 64  # cancelled entries below which the heap is not swept


@dataclass(slots=True, eq=False)
class Alarm:
    """A pending callback, until it is called or cancelled."""

    _alarms: Alarms
    callback: Callable[[], object] | None

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
        self._due: deque[Callable[[], object]] = deque()
        self._live = self._threads = 0
        self._took_at = self._wakes_at = 0.0
        self._is_watched = False

    @property
    def pending(self) -> int:
        """Number of alarms that were neither called nor cancelled."""
        return self._live

    def set(self, when: float, callback: Callable[[], object]) -> Alarm:
        """Call back, on another thread, once the clock reaches an instant."""
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
            if not self._live and self._wakes_at > self._monotonic() + LINGER_SECONDS:
                self._changed.notify()

    def _watch(self) -> None:
        """Have all callbacks called that are due, until there is nothing to wait for."""
        while threads := self._wait():
            for _ in range(threads):
                if not start(self._call_due, "watchkeeper-alarm"):
                    self._call_due()

    def _call_due(self) -> None:
        """Call what is due, in order, until nothing is left."""
        while self._due:
            with self._lock:
                callback, self._took_at = self._due.popleft() if self._due else bool, self._monotonic()
            callback()

    def _wait(self) -> int:
        """Wait until threads are needed that call what is due; return how many, 0 after a while without alarms."""
        with self._lock:
            nothing_new = False
            while True:
                now = self._monotonic()
                is_first = not self._due
                self._take(now)
                if self._due and (is_first or now >= self._took_at + STALLED_SECONDS):
                    self._threads, self._took_at = 1 if is_first else min(2 * self._threads, len(self._due)), now
                    return self._threads
                if nothing_new and not self._live and not self._due:
                    self._is_watched = False
                    return 0
                seconds = LONGEST_WAIT if nothing_new else LINGER_SECONDS
                if self._heap:
                    seconds = min(seconds, self._heap[0][0] - now)
                if self._due:
                    seconds = min(seconds, self._took_at + STALLED_SECONDS - now)
                self._wakes_at = now + seconds
                nothing_new = not self._changed.wait(seconds)

    def _take(self, now: float) -> None:
        """Remove due and cancelled alarms from the top of the heap; the due callbacks wait for a thread."""
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].callback is None):
            alarm = heapq.heappop(self._heap)[2]
            if alarm.callback is not None:
                self._live -= 1
                self._due.append(alarm.callback)
                alarm.callback = None


def start(target: Callable[[], object], name: str) -> bool:
    """Start a daemon thread; return False if no thread can be started, for example while the interpreter exits."""
    try:
        threading.Thread(target=target, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True
