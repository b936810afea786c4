"""A scheduler of threads that chooses from a seed which of them runs next, line by line of the gate's own code.

Only one thread runs at a time; the baton changes hands at the lines of the modules that decide and count, wherever the
seed says so. The ledger's lock and the clock's waits pass the baton too, so nothing here depends on luck or on time: a
seed that fails once fails always.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

import watchkeeper
from watchkeeper.core.clock import TestClock

PACKAGE: Final = Path(watchkeeper.__file__).parent
TRACED: Final = frozenset(
    str(PACKAGE / name)
    for name in (
        "accounting/account.py",
        "accounting/admission.py",
        "accounting/ledger.py",
        "containment/calls.py",
        "containment/settlement.py",
        "containment/execution_context.py",
        "containment/guards.py",
        "shield/pipeline.py",
    )
)
MISSING: Final = [name for name in TRACED if not Path(name).is_file()]
assert not MISSING, f"the scheduler switches in modules that are not there: {MISSING}"
STUCK: Final = 20_000
"""So many turns in which every thread only waits mean that none will ever go on."""


class Scheduler:
    """Runs threads one at a time, in an order that its seed decides."""

    def __init__(self, seed: int, switching: float = 0.15) -> None:
        """Let the baton change hands at this share of the lines."""
        self.rng = random.Random(seed)
        self.switching = switching
        self.switches = 0
        self._batons: dict[int, threading.Lock] = {}
        self._alive: list[int] = []
        self._waiting: dict[int, Callable[[], bool]] = {}
        self._waits = 0
        self._me = threading.local()
        self.errors: list[BaseException] = []

    def run(self, works: Sequence[Callable[[], object]]) -> None:
        """Run every work on a thread of its own, and re-raise the first error of any."""
        threads = [
            threading.Thread(target=self._run, args=(number, work), daemon=True) for number, work in enumerate(works)
        ]
        self._alive = list(range(len(works)))
        self._batons = {number: threading.Lock() for number in self._alive}
        for baton in self._batons.values():
            baton.acquire()
        gc.disable()  # a finaliser would run at whatever line the collector happens to look
        try:
            for thread in threads:
                thread.start()
            self._batons[self.rng.choice(self._alive)].release()
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive(), "a thread hangs"
        finally:
            gc.enable()
        if self.errors:
            raise self.errors[0]

    def _run(self, number: int, work: Callable[[], object]) -> None:
        self._me.number = number
        self._batons[number].acquire()
        sys.settrace(self._trace)
        try:
            work()
        except BaseException as error:
            self.errors.append(error)
        finally:
            sys.settrace(None)
            self._alive.remove(number)
            if self._alive:
                self._batons[self.rng.choice(self._alive)].release()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in TRACED else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and self.rng.random() < self.switching:
            self.switch(self._alive)
        return self._line

    def switch(self, candidates: Sequence[int]) -> None:
        """Hand the baton to one of these threads, and wait until it comes back.

        A thread that waits for something that is not the case yet would only hand the baton on: that is drawn here, in
        its place, which saves waking it.
        """
        chosen, me = self.rng.choice(candidates), self._me.number
        while chosen in self._waiting and not self._waiting[chosen]():
            chosen = self.rng.choice(self._others(chosen))
        if chosen != me:
            self.switches += 1
            self._batons[chosen].release()
            self._batons[me].acquire()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Let the others run until something is the case."""
        if not ready():
            me = self._me.number
            self._waiting[me] = ready
            try:
                while not ready():
                    self.switch(self._others(me))
            finally:
                del self._waiting[me]
        self._waits = 0

    def _others(self, waiting: int) -> list[int]:
        """Return whom a thread that waits may hand the baton to."""
        self._waits += 1
        others = [number for number in self._alive if number != waiting]
        if not others or self._waits > STUCK:
            raise AssertionError("nobody can go on")
        return others

    @property
    def current(self) -> int | None:
        """The thread that runs, or None outside of all."""
        return getattr(self._me, "number", None)


class TurnLock:
    """A reentrant lock that passes the baton while another thread has it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> Self:
        me = self._scheduler.current
        if self._owner is not me or me is None:
            self._scheduler.wait(lambda: self._depth == 0)
            self._owner = me
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None


class TurnClock(TestClock):
    """A clock that stands still, on which waiting for an event means letting the others run."""

    __test__ = False

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        """Let the others run until the event is set."""
        self._scheduler.wait(event.is_set)
