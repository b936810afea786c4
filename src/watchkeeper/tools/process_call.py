"""A call of an isolated tool: its function runs in a process that can be killed.

`call` returns what the function returned, or raises; `read` returns what a reader makes of the process's end. `stop`
sends TERM; so does cancelling them, which returns at once. `gone` then waits until the whole process group is dead,
which KILL sees to after the grace. Whoever calls awaits `gone` in any case: after it no side effect of the call can
happen any more. Cancelling `gone` ends the grace, not the wait.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from watchkeeper.core import codec
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ToolProcessError, ToolValidationError
from watchkeeper.core.tagging import dump, load
from watchkeeper.core.workers import WORKERS, Job
from watchkeeper.tools.process_reference import Reference, refuse_while_importing
from watchkeeper.tools.result import ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from watchkeeper.tools.process_pipes import Ended, ProcessPipes

T = TypeVar("T")

KILL_GRACE_SECONDS: Final = 2.0
"""Seconds between TERM and KILL where the tool says nothing else."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """How a tool's function runs in a process of its own.

    Attributes:
        reference: Where that process finds the function.
        kill_grace: Seconds between TERM and KILL.
    """

    reference: Reference
    kill_grace: float = KILL_GRACE_SECONDS


class ProcessCall:
    """One call in a process of its own."""

    def __init__(self, isolation: Isolation, *, spreads: bool) -> None:
        """Start nothing yet.

        Args:
            isolation: What to run, and the grace.
            spreads: Whether each argument is a parameter of its own.
        """
        self._isolation = isolation
        self._spreads = spreads
        self._pipes: ProcessPipes | None = None
        self._over: asyncio.Future[None] | None = None

    async def call(self, params: Any) -> ToolResult[Any]:
        """Start the process and return what the function returned; once.

        Raises:
            ToolValidationError: If the function raised it.
            ToolProcessError: If the function raised something else, or the process ended without a result.
            ConfigurationError: If this process only imports a module to find a tool in it.
            CancelledError: If it was cancelled; the process may still live for its grace.
        """
        return await self.read(params, result_of)

    async def read(self, params: Any, reader: Callable[[Ended], T]) -> T:
        """Start the process and return what ``reader`` makes of its end, on a worker thread; once.

        Raises:
            ToolProcessError: If the process could not be started.
            ConfigurationError: If this process only imports a module to find a tool in it.
            CancelledError: If it was cancelled; the process may still live for its grace.
        """
        from watchkeeper.tools.process_pipes import ProcessPipes
        from watchkeeper.tools.process_worker import Order

        refuse_while_importing()
        try:
            order = codec.encode(Order(self._isolation.reference, self._spreads, dump(params)))
        except CodecError as error:
            raise ToolProcessError(f"its arguments cannot be sent to its process: {error}") from error
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        self._pipes = ProcessPipes(order, self._isolation.kill_grace)
        job: Job[T] = Job(partial(_ran, self._pipes, reader), partial(_announce, loop, self._over))
        WORKERS.run(job)
        try:
            await asyncio.wait((self._over,))
        except asyncio.CancelledError:
            self._pipes.stop()
            raise
        return job.result()

    def stop(self) -> None:
        """End the process: TERM now, KILL after the grace; harmless if there is none."""
        if self._pipes is not None:
            self._pipes.stop()

    async def gone(self) -> None:
        """Wait until nothing of the call is alive; harmless if it never began.

        Raises:
            CancelledError: If this was cancelled meanwhile; what lived was killed at once, and is dead.
        """
        pipes, over = self._pipes, self._over
        if pipes is None or over is None:
            return
        pipes.stop()
        cancelled: asyncio.CancelledError | None = None
        while not over.done():
            try:
                await asyncio.wait((over,))
            except asyncio.CancelledError as error:
                pipes.kill()
                cancelled = error
        if cancelled is not None:
            raise cancelled


def _ran(pipes: ProcessPipes, reader: Callable[[Ended], T]) -> T:
    """Run the process and read what it sent; on a worker thread, because both may take long."""
    try:
        ended = pipes.run()
    except OSError as error:
        raise ToolProcessError(f"its process could not be started: {error}") from error
    return reader(ended)


def _announce(loop: asyncio.AbstractEventLoop, over: asyncio.Future[None], job: Job[Any]) -> None:
    with suppress(RuntimeError):  # the loop was closed under the one who waits
        loop.call_soon_threadsafe(_finish, over)


def _finish(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


async def call_isolated(isolation: Isolation, params: Any, *, spreads: bool) -> ToolResult[Any]:
    """Call a tool's function in a process of its own and return when that is dead; see `ProcessCall`."""
    process = ProcessCall(isolation, spreads=spreads)
    try:
        return await process.call(params)
    finally:
        await process.gone()


def result_of(ended: Ended) -> ToolResult[Any]:
    """Return the result that a process sent.

    Raises:
        ToolValidationError: If the function raised it.
        ToolProcessError: If there is no result.
    """
    from watchkeeper.tools.process_worker import Reply

    if ended.reply is None:
        said = f". Its output ended with:\n{ended.output}" if ended.output else ""
        raise ToolProcessError(f"its process {_ending(ended.status)} before it returned a result{said}")
    try:
        reply = codec.decode(ended.reply, Reply)
        if reply.kind == "returned":
            result = load(reply.result)
            if isinstance(result, ToolResult):
                return result  # pyright: ignore[reportUnknownVariableType]
            raise CodecError(f"it is a {type(result).__name__}")
    except CodecError as error:
        raise ToolProcessError(f"what its process returned cannot be read: {error}") from error
    if reply.kind == "invalid":
        raise ToolValidationError(reply.said)
    raise ToolProcessError(reply.said)


def _ending(status: int | None) -> str:
    """Say how a process ended."""
    if status is None:
        return "was lost"
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (perhaps the system ran out of memory)" if -status == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
