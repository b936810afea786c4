"""What the user's code raises, and what of it is that code's own failure.

Libraries raise more than Exceptions: a panic in a Rust extension, for one, is a plain BaseException. Whatever ends
neither the program, nor the task, nor a block of ours, is a crash of the code that raised it, and costs nobody else's
work.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast


class BreakOut(BaseException):
    """Something of ours that has to get past every layer that retries or records what failed."""


class CrashError(Exception):
    """The user's code raised something that is no Exception; the message names it."""

    def __init__(self, error: BaseException) -> None:
        """Say what it was."""
        super().__init__(said_by(error))


PASSING: Final = (SystemExit, KeyboardInterrupt, BreakOut)
"""What ends the program, or a block of ours, whoever raised it."""


def said_by(error: BaseException) -> str:
    """Return an error's type and message, whatever its own methods do."""
    kind = type(error).__name__
    if isinstance(error, CrashError):
        return str(error)
    try:
        return f"{kind}: {error}" if str(error) else kind
    except Exception as worse:
        return f"{kind}, whose message cannot be read: {type(worse).__name__}"


def has_passing(error: BaseException) -> bool:
    """Return whether an error, or one in its group, passes everybody."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return any(has_passing(part) for part in group.exceptions)
    return isinstance(error, PASSING)


def is_crash(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether what was raised is a failure of the code that raised it.

    Args:
        error: What was raised.
        task: The task in which the code was called; None for code that has run on a thread.

    Returns:
        False for what passes everybody, for a cancellation that somebody asked for, and for a coroutine that is being
        closed.
    """
    if isinstance(error, Exception):
        return True
    if has_passing(error):
        return False
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() == 0
    return not isinstance(error, GeneratorExit) or task is running_task()


def running_task() -> asyncio.Task[Any] | None:
    """Return the task that runs in this thread, or None."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
