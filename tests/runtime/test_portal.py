"""The synchronous door to the loop: errors, context, interrupts, forks."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading

import pytest

from watchkeeper.core.errors import WatchkeeperError
from watchkeeper.runtime.portal import Portal, wait_on

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


def test_the_third_ctrl_c_is_raised_at_once() -> None:
    count = 0

    def interrupt(name: str) -> None:
        nonlocal count
        count += 1
        threading.Thread(target=press_ctrl_c).start()

    async def wait() -> None:
        threading.Thread(target=press_ctrl_c).start()
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        Portal().call(wait(), "x", interrupt)
    assert count == 2


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
