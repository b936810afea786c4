"""Time as a port: wall time, monotonic time, sleeping, timers, and the deadlines that are measured with them.

Nothing else in Watchkeeper calls ``time``, ``datetime.now`` or ``asyncio.sleep``. `TestClock` moves only when
a test advances it or code sleeps on it: sleeping jumps, so tests of hours take milliseconds (the idea is from trio's
mock clock). Timers fire in order when time passes them, never by real time, and never inside the call that sets them.
"""

from __future__ import annotations

import asyncio
import bisect
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

from watchkeeper.core.alarms import Alarms
from watchkeeper.core.errors import LimitsError, PromptEvaluationError
from watchkeeper.core.quantities import DurationLike, duration
from watchkeeper.core.type_tags import own_value


class Timer(Protocol):
    """A pending callback."""

    def cancel(self) -> None:
        """Forget the callback; harmless if it ran already."""
        ...


class Clock(Protocol):
    """The source of time: wall time, monotonic time, sleeping and timers."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait on the running loop."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back on the running asyncio loop once `monotonic` reaches ``when`` (soon, if it is past)."""
        ...

    def alarm(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back once `monotonic` reaches ``when``, on no particular thread and without any loop."""
        ...

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        """Block this thread until ``event`` is set or ``seconds`` have passed; None waits without a limit."""
        ...


ALARMS: Final = Alarms(time.monotonic)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ALARMS.forget_thread)


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    # The functions themselves, without a method around them: every step calls each of them about eight times.
    monotonic = staticmethod(time.monotonic)
    now = staticmethod(partial(datetime.now, UTC))
    alarm = staticmethod(ALARMS.set)

    async def sleep(self, seconds: float) -> None:
        """Wait on the running loop."""
        await asyncio.sleep(max(seconds, 0.0))

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back on the running loop once ``when`` is reached."""
        loop = asyncio.get_running_loop()
        remaining = when - time.monotonic()
        return loop.call_later(remaining, callback) if remaining > 0 else loop.call_soon(callback)

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        """Block this thread until ``event`` is set or the time has passed."""
        event.wait(None if seconds is None else max(seconds, 0.0))


SYSTEM_CLOCK: Final[Clock] = SystemClock()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the asyncio loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_ROUNDS: Final = 20
"""Loop turns for which a sleeper lets others run before it moves the clock: one for each await in a chain of awaits."""


@dataclass(slots=True, eq=False)
class _TestTimer:
    callback: Callable[[], None] | None
    loop: asyncio.AbstractEventLoop | None

    def cancel(self) -> None:
        self.callback = None

    def fire(self) -> None:
        if self.loop is None or self.loop is running_loop():
            self._call()
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._call)

    def _call(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


async def _settles(event: asyncio.Event) -> bool:
    """Let everything that is ready run; return early, and True, once the event is set."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)
        if event.is_set():
            return True
    return False


class TestClock:
    """A clock for tests: it moves only when `advance` is called or code sleeps on it.

    When a coroutine sleeps, the clock lets everything else that is ready run first and then jumps to the earliest
    wake-up. Timers (deadlines) do not make it jump: they fire when time is moved past them. The clock does not wait for
    threads and sockets: a test that needs them to finish before time passes must await them and then advance.
    """

    __test__ = False

    def __init__(self, start: datetime | None = None) -> None:
        self._start = (start or datetime(2026, 1, 1, tzinfo=UTC)).astimezone(UTC)
        self._elapsed = 0.0
        self._timers: list[tuple[float, int, _TestTimer]] = []
        self._wake_ups: list[float] = []
        self._order = itertools.count()
        self._lock = threading.RLock()

    def now(self) -> datetime:
        """Return the test's wall time."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the seconds that have passed on this clock since its start."""
        return self._elapsed

    def advance(self, by: float | timedelta) -> None:
        """Move time forward, in seconds or by a timedelta, and fire in order every timer that is reached.

        Raises:
            ValueError: If ``by`` is negative.
        """
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if not seconds >= 0:
            raise ValueError(f"time cannot go back: advance({by!r})")
        self._move_to(self._elapsed + seconds)

    async def sleep(self, seconds: float) -> None:
        """Jump to the earliest sleeper's wake-up once everything else that is ready has run."""
        woken = asyncio.Event()
        wake_at = self._elapsed + max(seconds, 0.0)
        timer = self.call_at(wake_at, woken.set)
        with self._lock:
            bisect.insort(self._wake_ups, wake_at)
        try:
            while not await _settles(woken):
                self._move_to(self._next_event())
        finally:
            timer.cancel()
            with self._lock:
                self._wake_ups.remove(wake_at)

    def _next_event(self) -> float:
        """Return when the next sleeper wakes or the next timer fires, whichever is earlier: its work runs first."""
        with self._lock:
            while self._timers and self._timers[0][2].callback is None:
                heapq.heappop(self._timers)
            return min(self._wake_ups[0], self._timers[0][0]) if self._timers else self._wake_ups[0]

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Remember a callback; it runs on the running loop when time passes ``when`` (soon, if it is past)."""
        loop = asyncio.get_running_loop()
        timer = _TestTimer(callback, loop)
        if when <= self._elapsed:
            loop.call_soon(timer.fire)
            return timer
        with self._lock:
            heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def alarm(self, when: float, callback: Callable[[], None]) -> Timer:
        """Remember a callback; it is called by the code that moves time past ``when``, on that thread."""
        timer = _TestTimer(callback, None)
        with self._lock:
            heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        """Block this thread until ``event`` is set; the clock sets it once the test has moved time by ``seconds``."""
        if seconds is None:
            event.wait()
            return
        timer = _TestTimer(event.set, None)
        with self._lock:
            when = self._elapsed + seconds
            heapq.heappush(self._timers, (when, next(self._order), timer))
        if seconds <= 0:
            event.set()
        event.wait()
        timer.cancel()

    def _move_to(self, target: float) -> None:
        while True:
            with self._lock:
                if not self._timers or self._timers[0][0] > target:
                    self._elapsed = max(self._elapsed, target)
                    return
                when, _, timer = heapq.heappop(self._timers)
                self._elapsed = max(self._elapsed, when)
            timer.fire()


@own_value("deadline")
@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A moment at which work must be over.

    It is an aware wall time, because people and other machines understand that. The code that enforces it converts it
    once to a monotonic instant, so that a changed system clock cannot extend a run.

    Attributes:
        at: The moment; it must carry a time zone, and is held in UTC.
    """

    at: datetime

    def __post_init__(self) -> None:
        """Check the value and convert it to UTC, because Python compares two times of one zone by local wall time.

        Raises:
            LimitsError: If it is not a datetime or has no time zone.
        """
        object.__setattr__(self, "at", _in_utc(self.at))

    @classmethod
    def after(cls, length: DurationLike, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Return the deadline that is ``length`` from now."""
        return cls(clock.now() + duration(length, "deadline"))

    def remaining(self, clock: Clock = SYSTEM_CLOCK) -> timedelta:
        """Return the time left; negative once it is over."""
        return self.at - clock.now()

    def expired(self, clock: Clock = SYSTEM_CLOCK) -> bool:
        """Return whether the moment has come."""
        return clock.now() >= self.at

    def instant(self, clock: Clock = SYSTEM_CLOCK) -> float:
        """Return the same moment on the clock's monotonic scale."""
        return clock.monotonic() + self.remaining(clock).total_seconds()


def _in_utc(at: object) -> datetime:
    if not isinstance(at, datetime):
        raise LimitsError(f"deadline {at!r} is not a datetime; for a length write Deadline.after('30m')")
    if at.tzinfo is UTC:
        return at
    if at.utcoffset() is None:
        raise LimitsError(f"deadline {at!r} has no time zone; write datetime.now(UTC) + timedelta(...)")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise LimitsError(f"deadline {at!r} is outside the years 1 to 9999 in UTC; give a nearer one") from None


DeadlineLike = Deadline | datetime | timedelta | str


def earliest(*deadlines: Deadline | None) -> Deadline | None:
    """Return the earliest of the deadlines that are not None, or None."""
    given = [deadline for deadline in deadlines if deadline is not None]
    return min(given) if given else None


def checked_deadline(value: Deadline | datetime | None, clock: Clock) -> Deadline | None:
    """Check a deadline that a caller handed to ``evaluate`` (docs/specification.md, deadlines).

    Raises:
        PromptEvaluationError: With phase ``preflight`` if it is naive, past, or within the current second.
    """
    if value is None:
        return None
    try:
        deadline = value if isinstance(value, Deadline) else Deadline(value)
    except LimitsError as error:
        raise PromptEvaluationError(
            str(error), phase="preflight", provider_payload={"deadline": _written(value)}
        ) from error
    now = clock.now()
    if deadline.at.replace(microsecond=0) <= now.replace(microsecond=0):
        written = deadline.at.isoformat()
        raise PromptEvaluationError(
            f"deadline {written} is not in the future (now {now.isoformat()}); give at least the next second",
            phase="preflight",
            provider_payload={"deadline": written},
        )
    return deadline


def _written(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
