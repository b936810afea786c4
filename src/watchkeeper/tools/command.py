"""Runs a command of this machine to its end, or to the end of its time, and leaves nothing of it behind.

The command has a process group of its own under a guard: TERM goes to all of it when its time is over, when whoever
waits is cancelled and when the command itself has ended; KILL after the grace, and at once if this process dies. What
the command leaves running, also in the background or in a group of its own, ends with it. It has this process's
environment and rights, no input, and no terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from watchkeeper.core.clock import Clock
from watchkeeper.tools.process_call import Isolation, ProcessCall, result_of
from watchkeeper.tools.process_reference import Reference

if TYPE_CHECKING:
    from watchkeeper.tools.process_pipes import Ended

KILL_GRACE_SECONDS: Final = 2.0
"""Seconds between TERM and KILL."""

BECOME: Final = Reference("watchkeeper.tools.process_command", "become")


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended.

    Attributes:
        status: Its exit code, or the negative number of the signal that ended it; None if nobody knows it.
        output: The end of what it printed, on both streams.
        problem: Why it could not be started, or empty.
        timed_out: Whether its time was over; it was then ended, whatever it made of that.
    """

    status: int | None
    output: str
    problem: str = ""
    timed_out: bool = False


async def run_command(arguments: tuple[str, ...], folder: Path, seconds: float, clock: Clock) -> CommandEnd:
    """Run a command and return how it ended, when nothing of it is alive.

    Args:
        arguments: The program, found on the PATH or, with a slash in it, from the folder; then its arguments.
        folder: Where it runs.
        seconds: How long it may take before it is ended.
        clock: For that.

    Raises:
        ToolProcessError: If this program's Python, which watches over it, could not be started.
        CancelledError: If this was cancelled; everything is dead by then.
    """
    process = ProcessCall(Isolation(BECOME, KILL_GRACE_SECONDS), spreads=True)
    timed_out = False

    def expire() -> None:
        nonlocal timed_out
        timed_out = True
        process.stop()

    timer = clock.call_at(clock.monotonic() + seconds, expire)
    try:
        ended = await process.read({"arguments": list(arguments), "folder": str(folder)}, end_of)
    finally:
        timer.cancel()
        await process.gone()
    return CommandEnd(ended.status, ended.output, ended.problem, timed_out)


def end_of(ended: Ended) -> CommandEnd:
    """Tell a command that has run from one that could not be started, which alone sends a reply."""
    problem = "" if ended.reply is None else result_of(ended).message
    return CommandEnd(None if problem else ended.status, ended.output, problem)
