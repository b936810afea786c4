"""The parent's end of one isolated call: starts the guard, feeds it, drains its pipes, sees it dead.

It blocks, so it runs on a worker thread; `stop` and `kill` reach it from any other. Nothing that the child does or
leaves undone can block it for longer than the grace and a little: what it closes, floods, forks or ignores. When `run`
returns, guard, worker and everything they started are dead, reaped, and every descriptor is closed.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.logs import logger
from watchkeeper.tools.process_guard import KILL, TERMINATE
from watchkeeper.tools.process_worker import MAX_RESULT_BYTES

KEPT_OUTPUT_BYTES: Final = 4096
"""How much of the end of the child's output is kept."""

CHUNK_BYTES: Final = 1 << 20

PATIENCE_SECONDS: Final = 5.0
"""How long after the grace the guard may take to see everything dead, before it is taken for dead itself."""

GUARD_FILE: Final = str(Path(__file__).with_name("process_guard.py"))


@dataclass(frozen=True, slots=True)
class Ended:
    """How the process of a call ended.

    Attributes:
        reply: What the worker sent, or None if it sent nothing whole.
        status: Its exit code, or the negative number of the signal that killed it; None if nobody knows.
        output: The end of what it printed.
    """

    reply: bytes | None
    status: int | None
    output: str


class ProcessPipes:
    """One guard with its worker, from its start to its death."""

    def __init__(self, order: bytes, grace: float) -> None:
        """Start nothing yet.

        Args:
            order: What the worker is told.
            grace: Seconds between TERM and KILL.
        """
        self._grace = grace
        self._unsent = memoryview(framed(os.fsencode("\0".join(sys.path))) + framed(order))
        self._lock = threading.Lock()
        self._wake: int | None = None
        self._wish: bytes = b""
        self._told: bytes = b""
        self._give_up_at: float | None = None
        self._result = bytearray()
        self._output = bytearray()
        self._lines = bytearray()

    def stop(self) -> None:
        """End the call: TERM now, KILL after the grace; from any thread, any number of times."""
        self._ask_for(TERMINATE)

    def kill(self) -> None:
        """End the call with KILL at once; from any thread."""
        self._ask_for(KILL)

    def _ask_for(self, wish: bytes) -> None:
        with self._lock:
            if self._wish != KILL:
                self._wish = wish
            if self._wake is not None:
                with suppress(BlockingIOError):
                    os.write(self._wake, b"!")

    def run(self) -> Ended:
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
                if self._wish:
                    return Ended(None, None, "")
            return self._run(woken)
        finally:
            with self._lock:
                self._wake = None
            os.close(woken)
            os.close(wake)

    def _run(self, woken: int) -> Ended:
        receiving, sending = os.pipe()
        try:
            guard = start_guard(sending, self._grace)
        except BaseException:
            os.close(receiving)
            raise
        finally:
            os.close(sending)
        assert guard.stdin is not None, "its pipes were asked for"
        assert guard.stdout is not None, "its pipes were asked for"
        assert guard.stderr is not None, "its pipes were asked for"
        try:
            sources = {
                guard.stdout.fileno(): self._lines,
                receiving: self._result,
                guard.stderr.fileno(): self._output,
            }
            self._serve(guard.stdin.fileno(), sources, woken)
            self._see_dead(guard)
            for source, kept in sources.items():
                self._drain(source, kept)
        finally:
            for pipe in (guard.stdin, guard.stdout, guard.stderr):
                pipe.close()
            os.close(receiving)
        return Ended(whole(self._result), self._status(), self._output.decode("utf-8", "replace").strip())

    def _serve(self, lifeline: int, sources: dict[int, bytearray], woken: int) -> None:
        """Feed and drain until the guard says no more, which it does by ending, or its time is over."""
        with selectors.DefaultSelector() as selector:
            for descriptor in (lifeline, *sources):
                os.set_blocking(descriptor, False)
            feeding = True
            selector.register(lifeline, selectors.EVENT_WRITE)
            for source in (*sources, woken):
                selector.register(source, selectors.EVENT_READ)
            guard_lives = True
            while guard_lives and not self._is_hopeless():
                for key, _ in selector.select(self._time_left()):
                    if key.fd == lifeline:
                        feeding = self._feed(lifeline)
                        if not feeding:
                            selector.unregister(lifeline)
                    elif key.fd == woken:
                        os.read(woken, 64)
                    elif not self._take(key.fd, sources[key.fd]):
                        selector.unregister(key.fd)
                        guard_lives = guard_lives and sources[key.fd] is not self._lines
                if self._heed() and not feeding:
                    feeding = True
                    selector.register(lifeline, selectors.EVENT_WRITE)

    def _feed(self, lifeline: int) -> bool:
        """Send some more of the order; return whether there is more."""
        try:
            self._unsent = self._unsent[os.write(lifeline, self._unsent) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:  # it has ended; what became of it is read elsewhere
            self._unsent = memoryview(b"")
        return bool(self._unsent)

    def _heed(self) -> bool:
        """Take up a new wish, which the guard hears after its order; return whether there is one."""
        wish = self._wish
        if wish == self._told:
            return False
        self._told = wish
        self._unsent = memoryview(bytes(self._unsent) + wish)
        self._give_up_at = SYSTEM_CLOCK.monotonic() + PATIENCE_SECONDS
        if wish == TERMINATE:
            self._give_up_at += self._grace
        return True

    def _time_left(self) -> float | None:
        return None if self._give_up_at is None else max(self._give_up_at - SYSTEM_CLOCK.monotonic(), 0.0)

    def _is_hopeless(self) -> bool:
        left = self._time_left()
        return left is not None and left <= 0

    def _take(self, source: int, kept: bytearray) -> bool:
        """Read what is there; return False at the end of the pipe."""
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
            self._take(source, kept)

    def _see_dead(self, guard: subprocess.Popen[bytes]) -> None:
        """Reap the guard; if it died, or hangs, kill what it was to kill."""
        if self._word("ended") is None:
            for group in (guard.pid, self._word("group")):
                with suppress(ProcessLookupError, PermissionError):
                    if group is not None:
                        os.killpg(group, signal.SIGKILL)
            logger().warning("process.guard_lost", guard=guard.pid, group=self._word("group"))
        guard.wait()

    def _word(self, name: str) -> int | None:
        """Return the number that the guard gave under a name, if it did."""
        for line in self._lines.decode("ascii", "replace").splitlines():
            word, _, number = line.partition(" ")
            if word == name and number.isdecimal():
                return int(number)
        return None

    def _status(self) -> int | None:
        status = self._word("ended")
        return None if status is None else os.waitstatus_to_exitcode(status)


def start_guard(sending: int, grace: float) -> subprocess.Popen[bytes]:
    """Start the guard in a session of its own; it inherits the environment and the working directory.

    Args:
        sending: Where the worker is to write its result.
        grace: Seconds between TERM and KILL.
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
    )


def framed(message: bytes) -> bytes:
    """Return a message with its length in eight bytes before it."""
    return len(message).to_bytes(8) + message


def whole(data: bytearray) -> bytes | None:
    """Return the message in what was received, or None if part of it is missing."""
    size = int.from_bytes(data[:8])
    return bytes(data[8:]) if len(data) >= 8 and len(data) == size + 8 else None
