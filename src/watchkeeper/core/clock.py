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
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, total_ordering
from typing import ClassVar, Final, Protocol

from watchkeeper.core.alarms import Alarms
from watchkeeper.core.errors import LimitsError
from watchkeeper.core.forks import in_forked
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
in_forked(ALARMS.forget_thread)


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
"""Turns of the loop that a sleeper waits before it advances the clock, so that other tasks run first; a chain of
awaits needs one turn for each await."""


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

    def jump(self) -> None:
        """Move time to the next timer or wake-up, for code that waits for something that never comes."""
        with self._lock:
            target = self._next_event() if self._wake_ups else self._next_timer()
        if target is not None:
            self._move_to(max(target, self._elapsed))

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
            timer = self._next_timer()
            return self._wake_ups[0] if timer is None else min(self._wake_ups[0], timer)

    def _next_timer(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

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
@total_ordering
@dataclass(frozen=True, eq=False)
class Deadline:
    """A moment at which work must be over.

    It compares with a datetime and with another deadline, and the difference of two of them is a timedelta, whichever
    stands first. A datetime must carry a time zone; only ``==`` takes one without, and answers False.

    A deadline that was given as a length is measured with the monotonic clock. A deadline that was given as a moment
    is over when either clock reaches it, once it is `bound`. ``until`` and ``wall`` are valid in this
    process only and are never compared or stored.

    Attributes:
        at: The moment, for people and other machines; it must carry a time zone, and is held in UTC.
        until: The monotonic instant at which it is over, or None while it is not bound.
        wall: The earliest moment that was given, or None for a length.
    """

    at: datetime
    until: ClassVar[float | None] = None
    wall: ClassVar[datetime | None] = None

    def __reduce__(self) -> tuple[type[Deadline], tuple[datetime]]:
        return Deadline, (self.at,)

    def __post_init__(self) -> None:
        """Check the value and convert it to UTC, because Python compares two times of one zone by local wall time.

        Raises:
            LimitsError: If it is not a datetime or has no time zone.
        """
        object.__setattr__(self, "at", _in_utc(self.at))

    def __eq__(self, other: object) -> bool:
        """Return whether the other is the same moment."""
        at = other.at if isinstance(other, Deadline) else other
        return self.at == at if isinstance(at, datetime) else NotImplemented

    def __hash__(self) -> int:
        """Return the hash of the moment, which an equal datetime has, too."""
        return hash(self.at)

    def __lt__(self, other: Deadline | datetime) -> bool:
        """Return whether it is before the other.

        Raises:
            LimitsError: If the other is a datetime without a time zone; so do the other comparisons and ``-``.
        """
        at = _moment(other)
        return NotImplemented if at is None else self.at < at

    def __sub__(self, other: Deadline | datetime) -> timedelta:
        """Return the time from the other until it."""
        at = _moment(other)
        return NotImplemented if at is None else self.at - at

    def __rsub__(self, other: datetime) -> timedelta:
        """Return the time from it until the other."""
        at = _moment(other)
        return NotImplemented if at is None else at - self.at

    @classmethod
    def ending(cls, at: datetime, until: float, wall: datetime | None = None) -> Deadline:
        """Return the deadline that is over at a monotonic instant, and at the moment ``wall``; see the attributes."""
        deadline = cls(at)
        object.__setattr__(deadline, "until", until)
        object.__setattr__(deadline, "wall", wall)
        return deadline

    @classmethod
    def after(cls, length: DurationLike, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Return the deadline that is ``length`` from now."""
        left = duration(length, "deadline")
        return cls.ending(clock.now() + left, clock.monotonic() + left.total_seconds())

    def bound(self, clock: Clock) -> Deadline:
        """Return it with its monotonic instant, as from now, if it has none yet."""
        return self if self.until is not None else Deadline.ending(self.at, self.instant(clock), self.at)

    def remaining(self, clock: Clock = SYSTEM_CLOCK) -> timedelta:
        """Return the time left; negative once it is over."""
        if self.until is None:
            return self.at - clock.now()
        left = timedelta(seconds=self.until - clock.monotonic())
        return left if self.wall is None else min(left, self.wall - clock.now())

    def expired(self, clock: Clock = SYSTEM_CLOCK) -> bool:
        """Return whether it is over."""
        return self.remaining(clock) <= timedelta(0)

    def instant(self, clock: Clock = SYSTEM_CLOCK) -> float:
        """Return when it is over on the clock's monotonic scale, as far as is known now."""
        if self.until is not None and self.wall is None:
            return self.until
        return clock.monotonic() + self.remaining(clock).total_seconds()


def _moment(other: object) -> datetime | None:
    """Return the moment that a deadline is compared with, or None if it is of another type."""
    at = other.at if isinstance(other, Deadline) else other
    if isinstance(at, datetime) and at.utcoffset() is None:
        raise LimitsError(f"a Deadline cannot be compared with {at!r}, which has no time zone; write datetime.now(UTC)")
    return at if isinstance(at, datetime) else None


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


def earliest(*deadlines: Deadline | None, clock: Clock = SYSTEM_CLOCK) -> Deadline | None:
    """Return the earliest of the deadlines that are not None, or None; it is over as soon as one of them is."""
    given = [deadline.bound(clock) for deadline in deadlines if deadline is not None]
    if len(given) < 2:
        return given[0] if given else None
    first = min(given, key=lambda each: each.remaining(clock))
    until = min(each.until for each in given if each.until is not None)
    return Deadline.ending(first.at, until, min((each.wall for each in given if each.wall is not None), default=None))
