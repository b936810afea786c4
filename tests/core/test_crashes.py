"""What the user's code raises is its own failure, unless it ends the program, the task or a block of ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from watchkeeper.core.text import CrashError, error_text
from watchkeeper.core.workers import BreakOut, is_crash


class Panic(BaseException):
    """Stands for what a Rust extension raises."""


class Mute(BaseException):
    """Cannot say what it is."""

    def __str__(self) -> str:
        """Fail."""
        raise ValueError("mute")


@pytest.mark.parametrize(
    ("error", "crash"),
    [
        (ValueError("x"), True),
        (Panic("x"), True),
        (GeneratorExit(), False),
        (BaseExceptionGroup("many", [Panic()]), True),
        (BaseExceptionGroup("many", [Panic(), BaseExceptionGroup("more", [KeyboardInterrupt()])]), False),
        (KeyboardInterrupt(), False),
        (SystemExit(1), False),
        (BreakOut(), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
async def test_what_is_a_crash_in_a_task(error: BaseException, crash: bool) -> None:
    here = asyncio.current_task()
    elsewhere = asyncio.ensure_future(asyncio.sleep(0))
    assert is_crash(error, elsewhere) is crash
    assert is_crash(error, here) is (crash or isinstance(error, GeneratorExit))
    await elsewhere


def test_what_is_a_crash_on_a_thread() -> None:
    assert is_crash(GeneratorExit(), None)
    assert is_crash(asyncio.CancelledError(), None)
    assert not is_crash(KeyboardInterrupt(), None)


async def test_a_cancellation_is_a_crash_if_nobody_asked_for_it() -> None:
    seen: list[Any] = []

    async def work() -> None:
        task = asyncio.current_task()
        seen.append(is_crash(asyncio.CancelledError(), task))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            seen.append(is_crash(error, task))

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    await task
    assert seen == [True, False]


async def test_a_coroutine_that_is_closed_without_a_loop_has_not_crashed() -> None:
    task = asyncio.current_task()
    assert await asyncio.to_thread(is_crash, GeneratorExit(), task) is False


def test_the_message_says_what_it_was() -> None:
    assert str(CrashError(Panic("rust"))) == "Panic: rust"
    assert error_text(CrashError(Panic("rust"))) == "Panic: rust"
    assert error_text(Panic()) == "Panic"
    assert error_text(Mute()) == "Mute, whose message cannot be read: ValueError"
