"""Waiting for the user's code no longer than the run may last: for what is neither a model call nor a tool call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import Clock

T = TypeVar("T")


class RunOverError(Exception):
    """The run was over before what it waited for."""


async def within(gate: ExecutionContext, work: Awaitable[T], clock: Clock) -> T:
    """Return what ``work`` returns, unless the gate's work is over before.

    Code that ignores its cancellation is left behind; a run never hangs in it.

    Raises:
        RunOverError: If the deadline came, or the run was aborted, first.
    """
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    def end_from_anywhere(_: str) -> None:
        loop.call_soon_threadsafe(end)

    task = asyncio.ensure_future(work)
    deadline = gate.work_deadline
    timer = clock.call_at(deadline.instant(clock), end) if deadline else None
    forget = gate.cancellation.on_cancel(end_from_anywhere)
    try:
        await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        forget()
        if timer is not None:
            timer.cancel()
        if not task.done():
            task.cancel()
    if not task.done():
        raise RunOverError("the run was over before this had ended")
    return task.result()
