"""Signals that ask for the end: which count, who takes them, and that everything is put back."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from watchkeeper.core.clock import TestClock
from watchkeeper.runtime.portal import AGAIN_SECONDS, EndRequests, Portal, heeding, requests_of_program

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs SIGHUP")

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", 1)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """See to it that every handler is put back."""
    before = {number: signal.getsignal(number) for number in (INT, TERM, HUP)}
    yield
    assert {number: signal.getsignal(number) for number in (INT, TERM, HUP)} == before


@pytest.mark.parametrize(
    ("came", "counted"),
    [
        ([INT, INT, INT], [INT, INT, INT]),
        ([TERM, TERM], [TERM]),
        ([HUP, TERM], [HUP]),
        ([TERM, HUP], [TERM]),
        ([INT, TERM], [INT]),
        ([TERM, INT], [TERM, INT]),
    ],
)
def test_what_comes_at_once_is_one_request_unless_a_person_presses_it(came: list[int], counted: list[int]) -> None:
    requests = EndRequests(clock=TestClock())
    for number in came:
        requests.take(number)
    assert requests.signals == counted


@pytest.mark.parametrize(
    ("came", "counted"),
    [([TERM, TERM], [TERM, TERM]), ([HUP, TERM], [HUP, TERM]), ([HUP, HUP], [HUP]), ([INT, HUP], [INT])],
)
def test_a_later_sigterm_is_a_second_request_and_a_later_sighup_is_none(came: list[int], counted: list[int]) -> None:
    clock = TestClock()
    requests = EndRequests(clock=clock)
    for number in came:
        requests.take(number)
        clock.advance(AGAIN_SECONDS)
    assert requests.signals == counted


def test_without_a_run_a_request_is_a_keyboard_interrupt_unless_it_is_only_noted() -> None:
    requests = EndRequests(noted=1)
    with heeding(requests):
        signal.raise_signal(TERM)
        assert requests.unheard() == (TERM,)
        assert requests.unheard() == ()
        signal.raise_signal(HUP)  # the same once more
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(INT)
    assert requests.signals == [TERM, INT]


def test_what_is_ignored_or_has_a_handler_of_its_own_stays_so() -> None:
    heard: list[int] = []
    before = signal.signal(HUP, signal.SIG_IGN), signal.signal(TERM, lambda number, frame: heard.append(number))
    try:
        requests = EndRequests()
        with heeding(requests):
            signal.raise_signal(HUP)
            signal.raise_signal(TERM)
    finally:
        signal.signal(HUP, before[0])
        signal.signal(TERM, before[1])
    assert heard == [TERM]
    assert requests.signals == []


def test_elsewhere_than_on_the_main_thread_nothing_is_set() -> None:
    found: list[bool] = []

    def look() -> None:
        with heeding(EndRequests()):
            found.append(signal.getsignal(TERM) is signal.SIG_DFL)

    requests = EndRequests()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [True]
    with heeding(requests):
        assert requests_of_program() is requests
        others: list[EndRequests] = []
        thread = threading.Thread(target=lambda: others.append(requests_of_program()))
        thread.start()
        thread.join()
        assert others[0] is not requests


def test_a_run_takes_the_signals_that_the_program_heeds() -> None:
    names: list[str] = []
    ended = asyncio.Event()

    def interrupt(name: str) -> None:
        names.append(name)
        ended.set()

    async def wait() -> str:
        threading.Thread(target=os.kill, args=(os.getpid(), TERM)).start()
        await ended.wait()
        return "landed"

    requests = EndRequests()
    with heeding(requests):
        assert Portal().call(wait(), "x", interrupt) == "landed"
    assert names == ["SIGTERM"]
    assert requests.signals == [TERM]


def test_python_s_own_handler_of_ctrl_c_makes_any_signal_mean_the_same() -> None:
    async def wait() -> None:
        threading.Thread(target=os.kill, args=(os.getpid(), TERM)).start()
        await asyncio.Event().wait()

    before = signal.signal(TERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Portal().call(wait(), "x")
    finally:
        signal.signal(TERM, before)


def test_a_request_that_was_only_noted_reaches_the_next_run_and_no_later_one() -> None:
    names: list[str] = []

    async def look() -> list[str]:
        await asyncio.sleep(0)
        return list(names)

    requests = EndRequests(noted=1)
    with heeding(requests):
        signal.raise_signal(HUP)
        portal = Portal()
        portal.call(look(), "x", names.append)
        assert portal.call(look(), "x", names.append) == ["SIGHUP"]
