"""Alarms of the machine's clock: one thread waits for all of them, and ends when there are none."""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import Any

import pytest

from watchkeeper.core import alarms
from watchkeeper.core.alarms import SWEPT, Alarm, Alarms
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock

PATIENCE = 30.0


class Time:
    """An instant that the test moves; nobody is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def watchers() -> int:
    return sum(thread.name == "watchkeeper-alarms" for thread in threading.enumerate())


def test_what_is_due_is_called_once_on_a_thread_of_its_own() -> None:
    called = threading.Event()
    threads: list[int] = []

    def call() -> None:
        threads.append(threading.get_ident())
        called.set()

    alarm = SYSTEM_CLOCK.alarm(SYSTEM_CLOCK.monotonic() + 0.001, call)
    assert called.wait(PATIENCE)
    alarm.cancel()
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


def test_one_that_blocks_holds_up_no_other() -> None:
    clock, go_on, second = Alarms(SYSTEM_CLOCK.monotonic), threading.Event(), threading.Event()
    clock.set(0.0, partial(go_on.wait, PATIENCE))
    clock.set(0.0, second.set)
    assert second.wait(PATIENCE)
    go_on.set()


def test_an_earlier_one_is_not_missed_while_a_later_one_is_waited_for() -> None:
    clock, called = Alarms(SYSTEM_CLOCK.monotonic), threading.Event()
    clock.set(SYSTEM_CLOCK.monotonic() + 3600, called.clear)
    clock.set(SYSTEM_CLOCK.monotonic() + 0.001, called.set)
    assert called.wait(PATIENCE)
    assert clock.pending == 1


class CountedAlarm(Alarm):
    """An alarm that can be referred to weakly."""


def test_what_is_cancelled_is_never_called_and_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Alarm] = weakref.WeakSet()

    def counted(*given: Any) -> Alarm:
        alarm = CountedAlarm(*given)
        alive.add(alarm)
        return alarm

    monkeypatch.setattr(alarms, "Alarm", counted)
    time, called = Time(), list[int]()
    clock = Alarms(time)
    kept = clock.set(1.0, lambda: called.append(0))
    for number in range(10_000):
        alarm = clock.set(3600.0, partial(called.append, number))
        alarm.cancel()
        alarm.cancel()
        if number % 500 == 0:
            assert len(alive) <= SWEPT + 3
    assert clock.pending == 1
    kept.cancel()
    assert clock.pending == 0
    assert called == []


def test_one_thread_serves_all_and_ends_when_there_is_nothing_to_wait_for() -> None:
    before = watchers()
    clock = Alarms(SYSTEM_CLOCK.monotonic)
    pending = [clock.set(SYSTEM_CLOCK.monotonic() + 3600, never) for _ in range(100)]
    assert watchers() <= before + 1
    for alarm in pending:
        alarm.cancel()
    tick = threading.Event()
    for _ in range(6000):
        if watchers() <= before:
            return
        tick.wait(0.005)
    raise AssertionError("the thread goes on")


def never() -> None:
    raise AssertionError("an hour cannot have passed")


def test_where_no_thread_can_be_started_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    class NoThread:
        def __init__(self, *, name: str, **_: object) -> None:
            started.append(name)

        def start(self) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading, "Thread", NoThread)
    Alarms(SYSTEM_CLOCK.monotonic).set(0.0, never).cancel()
    assert started == ["watchkeeper-alarms"]


def test_the_test_clock_calls_whoever_is_due_when_it_is_moved() -> None:
    clock, called = TestClock(), list[str]()
    clock.alarm(2.0, lambda: called.append("second"))
    clock.alarm(1.0, lambda: called.append("first"))
    clock.alarm(1.5, lambda: called.append("never")).cancel()
    clock.advance(1.0)
    assert called == ["first"]
    clock.advance(5.0)
    assert called == ["first", "second"]


def test_thousands_that_are_due_together_share_a_few_threads() -> None:
    time, last, threads = Time(), threading.Event(), set[int]()
    clock = Alarms(time)
    for _ in range(3000):
        clock.set(1.0, lambda: threads.add(threading.get_ident()))
    clock.set(1.0, last.set)
    time.now = 1.0
    clock.set(0.0, last.clear)  # the one that waits looks up
    assert last.wait(PATIENCE)
    assert len(threads) <= 20


def test_many_that_block_hold_up_the_last_one_only_for_a_moment() -> None:
    clock, go_on, last = Alarms(SYSTEM_CLOCK.monotonic), threading.Event(), threading.Event()
    for _ in range(50):
        clock.set(0.0, partial(go_on.wait, PATIENCE))
    clock.set(0.0, last.set)
    assert last.wait(PATIENCE)
    go_on.set()


def test_one_that_raises_does_not_lose_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, last = list[str](), threading.Event()

    def hear(said: threading.ExceptHookArgs) -> None:
        heard.append(str(said.exc_value))

    monkeypatch.setattr(threading, "excepthook", hear)
    clock = Alarms(SYSTEM_CLOCK.monotonic)
    due = SYSTEM_CLOCK.monotonic() + 0.01
    for _ in range(3):
        clock.set(due, never)
    clock.set(due, last.set)
    assert last.wait(PATIENCE)
    assert heard == ["an hour cannot have passed"] * 3
