"""Functions and commands that run in a process of their own, which can be killed with all that it started.

From top to bottom: the call of an isolated tool, the parent's end of its process, and a command of this machine. A call
that has ended leaves no process alive and no descriptor open. The code that runs in the process is in `guard`,
which watches over it, and in `worker`, which runs the function.
"""

from __future__ import annotations

import asyncio
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, TypeVar, cast

import msgspec

from watchkeeper.core import codec
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ToolProcessError, ToolValidationError
from watchkeeper.core.ids import SYSTEM_IDS
from watchkeeper.core.text import bounded_traceback, logger
from watchkeeper.core.workers import WORKERS, Job, call_in_loop
from watchkeeper.session.tagging import dump, load
from watchkeeper.tools.isolation.guard import KILL, TERMINATE
from watchkeeper.tools.isolation.sweep import Lost, environment, sweep
from watchkeeper.tools.isolation.worker import MAX_RESULT_BYTES, Order, Reference, Reply, framed, refuse_while_importing
from watchkeeper.tools.values import MOST_RESULT_VALUES, NothingDoneError, ToolResult

T = TypeVar("T")


_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)

_NO_MARKS: Final = bytes(set(range(256)) - set(b",[{"))

MOST_MARKS: Final = 8 * MOST_RESULT_VALUES
"""Most commas and brackets in a reply, outside of texts; no form takes more for one value."""

KILL_GRACE_SECONDS: Final = 2.0
"""Default of the seconds between TERM and KILL."""


class NothingDoneThereError(ToolProcessError, NothingDoneError):
    """The function of an isolated tool raised `NothingDoneError`, or was never called."""


class Isolation(msgspec.Struct, frozen=True):
    """How a tool's function runs in a process of its own.

    Attributes:
        reference: Where that process finds the function.
        spreads: Whether each argument is a parameter of its own.
        kill_grace: Seconds between TERM and KILL.
    """

    reference: Reference
    spreads: bool
    kill_grace: float = KILL_GRACE_SECONDS


class ProcessCall:
    """One call in a process of its own.

    `call` returns what the function returned, or raises; `read` returns what a reader makes of the process's end.
    `stop` sends TERM; so does cancelling them, which returns at once. `gone` then waits until the whole process group
    is dead; after the grace, KILL is sent. The caller must always await `gone`: after it no side effect of the call can
    happen any more. Cancelling `gone` ends the grace, not the wait.
    """

    def __init__(self, isolation: Isolation) -> None:
        """Start nothing yet."""
        self._isolation = isolation
        self._pipes: ProcessPipes | None = None
        self._over = asyncio.Event()
        self._dead = asyncio.Event()  # set before what the process sent is read, which may take long

    async def call(self, params: Any) -> ToolResult[Any]:
        """Start the process and return what the function returned; once.

        Raises:
            ToolValidationError: If the function raised it.
            ToolProcessError: If the function raised something else, or the process ended without a result.
            ConfigurationError: If this process only imports a module to find a tool in it.
            CancelledError: If it was cancelled; the process may still live for its grace.
        """
        return await self.read(params, result_of)

    async def read(self, params: Any, reader: Callable[[ProcessEnd], T]) -> T:
        """Start the process and return what ``reader`` makes of its end, on a worker thread; once.

        Raises:
            ToolProcessError: If the process could not be started.
            ConfigurationError: If this process only imports a module to find a tool in it.
            CancelledError: If it was cancelled; the process may still live for its grace.
        """
        refuse_while_importing()
        try:
            order = codec.encode(Order(self._isolation.reference, self._isolation.spreads, dump(params)))
        except CodecError as error:
            raise NothingDoneThereError(f"its arguments cannot be sent to its process: {error}") from error
        loop = asyncio.get_running_loop()
        self._pipes = ProcessPipes(order, self._isolation.kill_grace)
        dead = partial(call_in_loop, loop, self._dead.set)
        job: Job[T] = Job(
            partial(_run_and_read, self._pipes, reader, dead), lambda _: call_in_loop(loop, self._over.set)
        )
        WORKERS.run(job)
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            if job.withdraw():  # no process was started, and none will be
                self._dead.set()
            self._pipes.end(TERMINATE)
            raise
        return job.result()

    def stop(self) -> None:
        """End the process: TERM now, KILL after the grace; does nothing if there is no process."""
        if self._pipes is not None:
            self._pipes.end(TERMINATE)

    async def gone(self) -> None:
        """Wait until no process of the call is alive; returns at once if the call never began.

        Raises:
            CancelledError: If this was cancelled meanwhile; all processes were then killed at once and are dead.
        """
        if self._pipes is None:
            return
        self._pipes.end(TERMINATE)
        cancelled: asyncio.CancelledError | None = None
        while not self._dead.is_set():
            try:
                await self._dead.wait()
            except asyncio.CancelledError as error:
                self._pipes.end(KILL)
                cancelled = error
        if cancelled is not None:
            raise cancelled


def _run_and_read(pipes: ProcessPipes, reader: Callable[[ProcessEnd], T], dead: Callable[[], object]) -> T:
    """Run the process and read what it sent; on a worker thread, because both may take long."""
    try:
        ended = pipes.run()
    except OSError as error:
        raise ToolProcessError(f"its process could not be started: {error}") from error
    finally:
        dead()
    return reader(ended)


async def call_isolated(isolation: Isolation, params: Any) -> ToolResult[Any]:
    """Call a tool's function in a process of its own and return when that is dead; see `ProcessCall`."""
    process = ProcessCall(isolation)
    try:
        return await process.call(params)
    finally:
        await process.gone()


def result_of(ended: ProcessEnd) -> ToolResult[Any]:
    """Return the result that a process sent.

    Raises:
        ToolValidationError, ToolProcessError: If the function raised the first, or there is no result.
    """
    if ended.flooded:
        raise ToolProcessError(f"its process sent more than the {MAX_RESULT_BYTES:,} bytes that may leave it")
    if ended.reply is None:
        said = f". Its output ended with:\n{ended.output}" if ended.output else ""
        raise ToolProcessError(f"its process {_ending(ended.status)} before it returned a result{said}")
    try:
        _check_size(ended.reply)
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
    failure = NothingDoneThereError if reply.kind == "nothing_done" else ToolProcessError
    raise failure(reply.said, bounded_traceback(reply.traceback))


def _marks(part: bytes) -> int:
    return len(part.translate(None, _NO_MARKS))


def _check_size(reply: bytes) -> None:
    """Refuse a reply of too many values before it is decoded, which would hold up all threads of this process.

    The worker refuses such results, but the function may have written the reply by itself.

    Raises:
        ToolProcessError: If it has more.
    """
    if _marks(reply) <= MOST_MARKS:
        return
    texts = (reply.count(b'"') - reply.count(b"\\")) // 2  # at least as many; most values have a mark for themselves
    marks = end = 0
    for text in _TEXT.finditer(reply) if texts <= MOST_MARKS else ():
        marks += _marks(reply[end : text.start()])
        end = text.end()
        if marks > MOST_MARKS:
            break
    if texts > MOST_MARKS or marks + _marks(reply[end:]) > MOST_MARKS:
        raise ToolProcessError(f"its process sent more than {MOST_RESULT_VALUES:,} values; write them to a file")


def _ending(status: int | None) -> str:
    """Return in words how a process ended, from its exit status."""
    if status is None:
        return "was lost"
    if status >= 0:
        return f"ended with exit code {status}"
    hint = " (perhaps the system ran out of memory)" if -status == signal.SIGKILL else ""
    return f"was killed by {signal_name(status)}{hint}"


def signal_name(status: int) -> str:
    """Return the name of the signal that ended a process, from its status, the negative number of the signal."""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


KEPT_OUTPUT_BYTES: Final = 4096
"""How much of the end of the child's output is kept."""

CHUNK_BYTES: Final = 1 << 20

PATIENCE_SECONDS: Final = 5.0
"""How long after the grace the guard may take until everything is dead; after that the guard counts as dead itself."""

GUARD_FILE: Final = str(Path(__file__).with_name("guard.py"))


class ProcessEnd(msgspec.Struct, frozen=True):
    """How the process of a call ended.

    Attributes:
        reply: What the worker sent, or None if it sent nothing whole.
        status: Its exit code, or the negative number of the signal that killed it; None if unknown.
        output: The end of what it printed.
        flooded: Whether it sent more bytes than a reply may have.
    """

    reply: bytes | None
    status: int | None
    output: str
    flooded: bool = False


class ProcessPipes:
    """One guard with its worker, from its start to its death: starts it, feeds it, drains its pipes, sees it dead.

    It blocks, so it runs on a worker thread; `end` reaches it from any other. Whatever the child closes,
    floods, forks or ignores, it blocks for no longer than the grace and a little. When `run` returns, guard, worker and
    all that they started are dead and reaped, and every descriptor is closed.
    """

    def __init__(self, order: bytes, grace: float) -> None:
        """Start nothing yet.

        Args:
            order: The bytes that tell the worker which function to call.
            grace: Seconds between TERM and KILL.
        """
        self._grace = grace
        self._unsent = memoryview(framed(b"\0".join(_import_path())) + framed(order))
        self._lock = threading.Lock()
        self._wake: int | None = None
        self._request: bytes = b""
        self._sent_request: bytes = b""
        self._give_up_at: float | None = None
        self._result = bytearray()
        self._output = bytearray()
        self._lines = bytearray()
        self._mark = SYSTEM_IDS.uuid().hex
        self._guard = 0

    def end(self, request: bytes) -> None:
        """End the call, from any thread, any number of times.

        Args:
            request: `TERMINATE` for TERM now and KILL after the grace, or `KILL` for KILL at once.
        """
        with self._lock:
            if self._request != KILL:
                self._request = request
            if self._wake is not None:
                with suppress(BlockingIOError):
                    os.write(self._wake, b"!")

    def run(self) -> ProcessEnd:
        """Start the process and return when it is over and dead.

        Raises:
            OSError: If it cannot be started.
        """
        woken, wake = os.pipe()
        try:
            os.set_blocking(wake, False)
            os.set_blocking(woken, False)
            with self._lock:
                self._wake = wake
                if self._request:
                    return ProcessEnd(None, None, "")
            return self._run(woken)
        finally:
            with self._lock:
                self._wake = None
            os.close(woken)
            os.close(wake)

    def _run(self, woken: int) -> ProcessEnd:
        with ExitStack() as stack:
            receiving, sending = os.pipe()
            stack.callback(os.close, receiving)
            try:
                guard = stack.enter_context(start_guard(sending, self._grace, self._mark))
            finally:
                os.close(sending)
            self._guard = guard.pid
            pipes = [cast("IO[bytes]", pipe) for pipe in (guard.stdin, guard.stdout, guard.stderr)]
            lifeline, lines, output = (pipe.fileno() for pipe in pipes)
            sources = {lines: self._lines, receiving: self._result, output: self._output}
            self._serve(lifeline, sources, woken)
            self._reap_guard(guard)
            for source, kept in sources.items():
                self._drain(source, kept)
        ended = self._numbers_from_guard().get("ended")
        status = None if ended is None else os.waitstatus_to_exitcode(ended)
        flooded = len(self._result) > MAX_RESULT_BYTES + 8
        printed = self._output.decode("utf-8", "replace").strip()
        return ProcessEnd(None if flooded else unframed(self._result), status, printed, flooded)

    def _serve(self, lifeline: int, sources: dict[int, bytearray], woken: int) -> None:
        """Feed and drain the pipes until the guard ends or its time is over."""
        with selectors.DefaultSelector() as selector:
            for descriptor in (lifeline, *sources):
                os.set_blocking(descriptor, False)
            selector.register(lifeline, selectors.EVENT_WRITE)
            for source in (*sources, woken):
                selector.register(source, selectors.EVENT_READ)
            guard_lives = True
            while guard_lives and self._time_left() != 0:
                for key, _ in selector.select(self._time_left()):
                    if key.fd == lifeline:
                        if not self._send_some(lifeline):
                            selector.unregister(lifeline)
                    elif key.fd == woken:
                        os.read(woken, 64)
                    elif not self._receive(key.fd, sources[key.fd]):
                        selector.unregister(key.fd)
                        guard_lives = guard_lives and sources[key.fd] is not self._lines
                if self._take_up_request() and lifeline not in selector.get_map():
                    selector.register(lifeline, selectors.EVENT_WRITE)

    def _send_some(self, lifeline: int) -> bool:
        """Send some more of the order; return whether there is more."""
        try:
            self._unsent = self._unsent[os.write(lifeline, self._unsent) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:  # it has ended; its status is read elsewhere
            self._unsent = memoryview(b"")
        return bool(self._unsent)

    def _take_up_request(self) -> bool:
        """Append a new request for the guard to the unsent bytes; return whether there was one."""
        request = self._request
        if request == self._sent_request:
            return False
        self._sent_request = request
        with suppress(ProcessLookupError, PermissionError):  # what runs below it may have stopped it
            os.kill(self._guard, signal.SIGCONT)
        self._unsent = memoryview(bytes(self._unsent) + request)
        self._give_up_at = SYSTEM_CLOCK.monotonic() + PATIENCE_SECONDS
        if request == TERMINATE:
            self._give_up_at += self._grace
        return True

    def _time_left(self) -> float | None:
        return None if self._give_up_at is None else max(self._give_up_at - SYSTEM_CLOCK.monotonic(), 0.0)

    def _receive(self, source: int, kept: bytearray) -> bool:
        """Read the bytes that are available; return False at the end of the pipe."""
        try:
            part = os.read(source, CHUNK_BYTES)
        except BlockingIOError:
            return True
        if kept is not self._result or len(kept) < MAX_RESULT_BYTES + 8:
            kept += part
        if kept is self._output:
            del kept[:-KEPT_OUTPUT_BYTES]
        return bool(part)

    def _drain(self, source: int, kept: bytearray) -> None:
        """Read what was written before everything died, but wait for nothing."""
        before = -1
        while before != len(kept):
            before = len(kept)
            self._receive(source, kept)

    def _reap_guard(self, guard: subprocess.Popen[bytes]) -> None:
        """Reap the guard; if it died or hangs, kill the processes that it had to kill."""
        numbers = self._numbers_from_guard()
        if "ended" not in numbers:
            sweep(Lost(guard.pid, numbers.get("group"), self._mark))
            logger().warning("process.guard_lost", guard=guard.pid, group=numbers.get("group"))
        guard.wait()

    def _numbers_from_guard(self) -> dict[str, int]:
        """Return the numbers that the guard gave, by the names under which it gave them."""
        lines = [line.partition(" ") for line in self._lines.decode("ascii", "replace").splitlines()]
        return {name: int(number) for name, _, number in lines if number.isdecimal()}


def _import_path() -> Iterator[bytes]:
    """Yield the entries of `sys.path`; what is no text, such as a `Path`, is left out, as every import does."""
    for entry in sys.path:
        if isinstance(cast("object", entry), str):
            with suppress(UnicodeEncodeError):
                yield os.fsencode(entry)


def start_guard(sending: int, grace: float, mark: str) -> subprocess.Popen[bytes]:
    """Start the guard in a session of its own; it inherits the environment and the working directory.

    Args:
        sending: Where the worker is to write its result.
        grace: Seconds between TERM and KILL.
        mark: Id of the call, by which its processes are found if the guard is lost.
    """
    if not sys.executable or getattr(sys, "frozen", False):  # a frozen program would start itself
        raise OSError(f"this program's Python cannot be started again: sys.executable={sys.executable!r}")
    return subprocess.Popen(
        [sys.executable, "-P", GUARD_FILE, str(sending), str(os.getpid()), str(grace)],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(sending,),
        start_new_session=True,
        env=environment(mark),
    )


def unframed(data: bytearray) -> bytes | None:
    """Return the message in what was received, or None if part of it is missing."""
    size = int.from_bytes(data[:8])
    return bytes(data[8:]) if len(data) >= 8 and len(data) == size + 8 else None


BECOME: Final = Reference("watchkeeper.tools.isolation.worker", "become")


class CommandEnd(msgspec.Struct, frozen=True):
    """How a command ended.

    Attributes:
        status: Its exit code, or the negative number of the signal that ended it; None if unknown.
        output: The end of what it printed, on both streams.
        problem: Why it could not be started, or empty.
        timed_out: Whether it ran into its timeout; it was then ended, even if it ignored TERM.
    """

    status: int | None
    output: str
    problem: str = ""
    timed_out: bool = False


async def run_command(arguments: tuple[str, ...], folder: Path, seconds: float, clock: Clock) -> CommandEnd:
    """Run a command and return how it ended, after all its processes are dead.

    The command has its own process group under a guard. TERM is sent to the whole group at the timeout, when the
    waiting task is cancelled, and when the command itself has ended. KILL follows after the grace, or at once if this
    process dies. Processes that it leaves running, also in the background or in another group, are ended too. It has
    this process's environment and rights, no input, and no terminal.

    Args:
        arguments: The program, found on the PATH or, with a slash in it, from the folder; then its arguments.
        folder: The working folder of the command.
        seconds: How long it may take before it is ended.
        clock: Measures this time.

    Raises:
        ToolProcessError: If this program's Python, which watches over it, could not be started.
        CancelledError: If this was cancelled; everything is dead by then.
    """
    process = ProcessCall(Isolation(BECOME, spreads=True, kill_grace=KILL_GRACE_SECONDS))
    timed_out = False

    def expire() -> None:
        nonlocal timed_out
        timed_out = True
        process.stop()

    timer = clock.call_at(clock.monotonic() + seconds, expire)
    try:
        end = await process.read({"arguments": list(arguments), "folder": str(folder)}, lambda end: end)
    finally:
        timer.cancel()
        await process.gone()
    if end.reply is None:
        return CommandEnd(end.status, end.output, timed_out=timed_out)
    # A command that runs is in the place of what could reply: a reply says why it could not be started.
    return CommandEnd(None, end.output, result_of(end).message, timed_out)
