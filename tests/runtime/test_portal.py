"""The blocking functions and their event loop: errors, context, interrupts, forks."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import WatchkeeperError
from watchkeeper.runtime.portal import AGAIN_SECONDS, EndRequests, Portal, heeding, ignore, requests_of_program, wait_on

COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


async def colour() -> str:
    return COLOUR.get()


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_work_sees_the_callers_context_variables_and_cannot_change_them() -> None:
    async def change() -> str:
        before = COLOUR.get()
        COLOUR.set("red")
        return before

    token = COLOUR.set("blue")
    portal = Portal()
    assert portal.call(change(), "x") == "blue"
    assert portal.call(colour(), "x") == "blue"
    COLOUR.reset(token)


def test_an_error_of_the_work_is_raised_where_it_was_called() -> None:
    async def fail() -> None:
        raise LookupError("not there")

    with pytest.raises(LookupError, match="not there"):
        Portal().call(fail(), "x")


def test_the_loops_own_thread_is_refused_and_told_what_to_await() -> None:
    portal = Portal()

    async def nested() -> None:
        portal.call(colour(), "arun")

    with pytest.raises(WatchkeeperError, match=r"await arun\(\.\.\.\)"):
        portal.call(nested(), "x")


def test_ctrl_c_cancels_work_that_nobody_lands_and_is_raised() -> None:
    ended = threading.Event()

    async def wait() -> None:
        try:
            threading.Thread(target=press_ctrl_c).start()
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        Portal().call(wait(), "x")
    assert ended.is_set()


@pytest.mark.spec("FR-084")
def test_the_first_two_ctrl_c_are_passed_on_and_the_work_may_end_by_itself() -> None:
    interrupts: list[str] = []
    enough = asyncio.Event()

    def interrupt(name: str) -> None:
        interrupts.append(f"{name} on {threading.current_thread().name}")
        enough.set() if len(interrupts) == 2 else threading.Thread(target=press_ctrl_c).start()

    async def wait() -> str:
        threading.Thread(target=press_ctrl_c).start()
        await enough.wait()
        return "landed"

    assert Portal().call(wait(), "x", interrupt) == "landed"
    assert interrupts == ["SIGINT on watchkeeper-loop"] * 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_third_ctrl_c_is_raised_when_the_work_does_not_end() -> None:
    count = 0

    def interrupt(name: str) -> None:
        nonlocal count
        count += 1
        threading.Thread(target=press_ctrl_c).start()

    async def wait() -> None:
        threading.Thread(target=press_ctrl_c).start()
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        Portal(last_seconds=0.01).call(wait(), "x", interrupt)
    assert count == 2


@pytest.mark.spec("FR-084")
def test_work_that_was_told_to_stop_comes_to_its_end_however_many_signals_come() -> None:
    told: list[str] = []
    third = threading.Event()

    class Requests(EndRequests):
        def take(self, number: int) -> bool:
            third.set() if len(self.signals) == 2 else None
            return super().take(number)

    requests = Requests(noted=1)

    def interrupt(name: str) -> None:
        told.append(name)
        threading.Thread(target=press_ctrl_c).start()

    async def wait() -> str:
        threading.Thread(target=press_ctrl_c).start()
        await asyncio.to_thread(third.wait, 60)
        return "its end is on record"

    with heeding(requests):
        assert Portal(last_seconds=60).call(wait(), "x", interrupt) == "its end is on record"
        signal.raise_signal(INT)  # the tail of the storm
        requests.broken_off_by(lambda: signal.raise_signal(INT))
    assert told == ["SIGINT"] * 2


def test_after_a_run_a_new_request_breaks_off_only_what_says_so() -> None:
    clock = TestClock()
    requests = EndRequests(noted=1, clock=clock)
    with heeding(requests):
        Portal().call(colour(), "x", lambda name: None)
        requests.broken_off_by(lambda: signal.raise_signal(INT))  # the first one is noted
        clock.advance(AGAIN_SECONDS)
        signal.raise_signal(INT)
        clock.advance(AGAIN_SECONDS)
        with pytest.raises(KeyboardInterrupt):
            requests.broken_off_by(lambda: signal.raise_signal(INT))


def test_a_storm_before_a_run_is_one_keyboard_interrupt() -> None:
    requests = EndRequests(clock=TestClock())
    with heeding(requests):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(INT)
        for _ in range(40):
            signal.raise_signal(INT)


def test_what_ends_with_the_process_heeds_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[object] = []

    def register(work: object, *given: object) -> None:
        at_exit.append(work)

    monkeypatch.setattr("atexit.register", register)
    requests = EndRequests(noted=1)
    with heeding(requests, to_the_end=True):
        signal.raise_signal(TERM)
    heard = {number: signal.getsignal(number) for number in (INT, TERM, HUP)}
    signal.signal(INT, signal.default_int_handler)
    signal.signal(TERM, signal.SIG_DFL)
    signal.signal(HUP, signal.SIG_DFL)
    assert set(heard.values()) == {requests}
    assert at_exit == [ignore]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_an_exit_out_of_the_work_reaches_the_caller_and_leaves_the_loop_running(error: BaseException) -> None:
    portal = Portal()

    async def inner() -> None:
        raise error

    async def leave() -> None:
        await asyncio.gather(inner(), asyncio.sleep(0))

    with pytest.raises(type(error)):
        portal.call(leave(), "x")
    assert portal.call(colour(), "x") == "none"


def test_what_a_programs_own_signal_handler_raises_cancels_the_work() -> None:
    ended = threading.Event()

    def exit_at_once(number: int, frame: object) -> None:
        raise SystemExit(0)

    async def wait() -> None:
        try:
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM)).start()
            await asyncio.Event().wait()
        finally:
            ended.set()

    before = signal.signal(signal.SIGTERM, exit_at_once)
    try:
        with pytest.raises(SystemExit):
            Portal().call(wait(), "x")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.wait(10)


def test_a_programs_own_handler_is_kept() -> None:
    heard: list[int] = []
    answered = threading.Event()

    def handle(number: int, frame: object) -> None:
        heard.append(number)
        answered.set()

    async def wait() -> bool:
        threading.Thread(target=press_ctrl_c).start()
        return await asyncio.to_thread(answered.wait, 10)

    before = signal.signal(signal.SIGINT, handle)
    try:
        assert Portal().call(wait(), "x", lambda name: None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_a_forked_process_starts_a_loop_of_its_own() -> None:
    portal = Portal()
    assert portal.call(colour(), "x") == "none"
    portal.forget()
    assert portal.call(colour(), "x") == "none"


def test_nobody_can_wait_on_a_loop_that_is_closed() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(WatchkeeperError, match="the loop of the run is closed"):
        wait_on(loop, colour(), "x")


# --- Signals that ask for the end: which count, who takes them, and that everything is put back ---


pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs SIGHUP")

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", 1)


@pytest.fixture(autouse=True)
def handlers(terminal_signals: None) -> Iterator[None]:
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
