"""Waiting for the user's code, with a bound on every wait.

For the user's code other than model calls and tool calls: observers, checkers, callbacks, and resources to close. No
wait here is unbounded. A CancelledError without a cancellation request is a failure of the code that raised it and does
not end the run.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable
from typing import Any, Final, NoReturn, TypeVar, cast

from watchkeeper.accounting.ledger import is_inherited
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import set_timer
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.text import CrashError, logger
from watchkeeper.core.workers import call_in_loop, is_crash

T = TypeVar("T")

CLOSE_SECONDS: Final = 10.0
"""How long the end of a run waits for something to be closed; seconds of real time, not of the injected clock."""

BOOKING_SECONDS: Final = 0.1
"""How long the gate may take to interrupt and book a call before the code is cancelled; in real seconds."""

LOOKS: Final = 50
"""How many times within `BOOKING_SECONDS` to check whether the calls are booked."""


class RunOverError(Exception):
    """The run was over before the awaited work was done."""


class StrayCancellationError(Exception):
    """Code raised CancelledError although its task had not been cancelled."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("it raised CancelledError, though nobody had cancelled it")


def is_cancelled() -> bool:
    """Return whether cancellation of the current task was requested."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def raise_failure(error: BaseException, task: asyncio.Task[Any] | None) -> NoReturn:
    """Raise the error of the user's code: the error itself, or for a stray cancellation or a crash the exception that
    reports it.

    Args:
        error: What was raised.
        task: The task in which the code was called.
    """
    if isinstance(error, asyncio.CancelledError):
        if not is_cancelled():
            raise StrayCancellationError from error
    elif not isinstance(error, Exception) and is_crash(error, task):
        raise CrashError(error) from error
    raise error


async def done_by(
    work: asyncio.Future[Any], until: float, clock: Clock, token: CancellationToken | None = None
) -> bool:
    """Wait for a future until an instant comes or a token is cancelled; return whether it is done.

    Args:
        work: What to wait for; it is neither cancelled nor read.
        until: Monotonic instant; infinity for none.
        clock: The clock of that instant.
        token: Its cancellation, from any thread, ends the wait.
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    timer = None if until == math.inf else set_timer(clock, until, end)
    forget = None if token is None else token.on_cancel(lambda _: call_in_loop(loop, end))
    try:
        await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if forget is not None:
            forget()
        if timer is not None:
            timer.cancel()
    return work.done()


def over_at(gate: ExecutionContext, clock: Clock) -> float:
    """Return the monotonic instant at which the gate's work is over; infinity if it never is."""
    deadline = gate.work_deadline
    return math.inf if deadline is None else deadline.instant(clock)


async def within(gate: ExecutionContext, work: Awaitable[T], clock: Clock, until: float = math.inf) -> T:
    """Return what ``work`` returns, unless the gate's work or the instant ``until`` is over before.

    Code that ignores its cancellation is abandoned; a run never hangs in it.

    Args:
        gate: The gate whose deadline and cancellation apply.
        work: The awaitable to wait for.
        clock: For the deadline.
        until: Monotonic instant at which the work's own time is over.

    Raises:
        RunOverError: If the deadline or ``until`` came, or the run was aborted, first.
        StrayCancellationError: If the work was cancelled by other code.
    """
    task = asyncio.ensure_future(work)
    try:
        in_time = await done_by(task, min(until, over_at(gate, clock)), clock, gate.cancellation)
        if not in_time and clock.monotonic() < until:  # the gate must first book its in-flight calls
            await asyncio.wait({task}, timeout=BOOKING_SECONDS)
    finally:
        if not task.done():
            task.cancel()
    if not in_time:
        task.add_done_callback(_forget_result)
        raise RunOverError("the run was over before this had ended")
    if task.cancelled():
        raise StrayCancellationError
    return task.result()


async def booked(gate: ExecutionContext) -> None:
    """At the end of a run, end what was left behind, and wait at most `BOOKING_SECONDS` until its calls are booked.

    A plain tool or observer that overran may still wait for a judge or a run that it started. What that spends belongs
    to the run, so it has to be in the run's result.
    """
    if is_over(gate):
        return
    gate.close()
    for _ in range(LOOKS):
        await asyncio.sleep(BOOKING_SECONDS / LOOKS)
        if is_over(gate):
            return


def block_until_booked(gate: ExecutionContext) -> None:
    """Do the same in plain code, for a gate that is closed."""
    never = threading.Event()
    for _ in range(LOOKS):
        if is_over(gate):
            return
        SYSTEM_CLOCK.wait(never, BOOKING_SECONDS / LOOKS)


def is_over(gate: ExecutionContext) -> bool:
    """Return whether no call is under way at a gate or below; one that was abandoned is booked.

    In a forked process nothing is under way at the gates of its parent process.
    """
    if is_inherited(gate.account):
        return True
    left = (call for call in gate.in_flight if call.abandoned_thread is None and call.abandoned_task is None)
    return gate.is_booked and next(left, None) is None


def _forget_result(task: asyncio.Future[Any]) -> None:
    """Read what a late task has raised, so that asyncio does not report it as never retrieved."""
    if not task.cancelled():
        task.exception()


async def closed(what: str, closing: Awaitable[object]) -> None:
    """Wait up to `CLOSE_SECONDS` until something is closed; a failure or a timeout is logged and does not change the
    result.
    """
    task = asyncio.ensure_future(closing)
    await asyncio.wait({task}, timeout=CLOSE_SECONDS)
    if not task.done():
        task.cancel()
        logger().warning("close.late", what=what, waited_seconds=CLOSE_SECONDS)
        return
    error: BaseException | None = StrayCancellationError() if task.cancelled() else task.exception()
    if error is not None:
        logger().warning("close.failed", what=what, error="; ".join(_reasons(error)))


def _reasons(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return [reason for part in group.exceptions for reason in _reasons(part)]
    return [f"{type(error).__name__}: {error}"]
