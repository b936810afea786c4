"""Watches over the process of one isolated tool call, from a process of its own.

Started as a file, with nothing but the standard library, so that it is there at once. It forks the worker into a group
of its own and ends only when the worker and everything the worker started are dead. TERM goes to the group when the
parent says so or the worker has ended, KILL after the grace; KILL is sent at once if the parent is gone. Code in the
worker cannot prevent this, even if it blocks the interpreter.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

TERMINATE: Final = b"T"
"""What the parent writes to end the call: TERM, and KILL after the grace."""

KILL: Final = b"K"
"""What the parent writes to end the call without grace."""

WORKER_FAILED: Final = 70
"""Exit code of a worker that could not even say what was wrong."""

CHUNK_BYTES: Final = 1 << 20

LOOK_SECONDS: Final = 0.5
"""How often it looks whether the parent is still there: another process may hold the parent's end of the pipe."""

STEP_SECONDS: Final = 0.02
"""How often it looks for processes that are no children of its own while it waits for their end."""

SET_CHILD_SUBREAPER: Final = 36
"""prctl(2) of Linux: processes whose own parent has died become children of this one."""

# The Clock would bring asyncio along, which takes longer to import than everything else here.
_monotonic = time.monotonic  # noqa: TID251


def main(arguments: list[str]) -> None:
    """Read what is to be done, fork the worker, and watch it to its end.

    Args:
        arguments: Descriptor for the worker's result, the parent's process id, the grace in seconds.
    """
    result_fd, parent, grace = int(arguments[0]), int(arguments[1]), float(arguments[2])
    # What the parent ignores or blocks is inherited, and would keep the call alive or its end unseen.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    path, order = read_frame(0), read_frame(0)
    if path is None or order is None:
        return  # the parent ended before it had said what to do
    worker = os.fork()
    if worker == 0:
        become_worker(os.fsdecode(path).split("\0"), order, result_fd)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends last
    os.close(result_fd)
    with suppress(OSError):
        os.setpgid(worker, worker)
    tell(f"group {worker}")
    adopt_orphans()
    guard = Guard(worker, parent, grace)
    guard.watch(0)
    tell(f"ended {guard.status}")


def read_frame(descriptor: int) -> bytes | None:
    """Return one message, sent as its length in eight bytes and its text; None if the pipe ends too early."""
    length = read_exactly(descriptor, 8)
    return None if length is None else read_exactly(descriptor, int.from_bytes(length))


def read_exactly(descriptor: int, size: int) -> bytes | None:
    """Return exactly ``size`` bytes, or None if the pipe ends before."""
    data = bytearray()
    while len(data) < size:
        part = os.read(descriptor, min(size - len(data), CHUNK_BYTES))
        if not part:
            return None
        data += part
    return bytes(data)


def tell(line: str) -> None:
    """Write a line for the parent; it may be gone."""
    with suppress(OSError):
        os.write(1, f"{line}\n".encode())


def adopt_orphans() -> None:
    """Become the parent of processes whose own parent below the worker died, also outside the group (Linux only)."""
    if sys.platform != "linux":
        return
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def become_worker(path: list[str], order: bytes, result_fd: int) -> None:
    """Turn this forked process into the worker: a group of its own, no input, one captured output; never returns."""
    try:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        os.set_inheritable(result_fd, False)
        sys.path[:] = path
        from watchkeeper.tools.isolation.worker import work

        work(order, result_fd)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(WORKER_FAILED)


class Guard:
    """Ends a worker and all that it started.

    Attributes:
        worker: Its process id, which is also the id of its group.
        status: Its wait status, once it has ended.
    """

    def __init__(self, worker: int, parent: int, grace: float) -> None:
        """Watch nothing yet."""
        self.worker = worker
        self.status = 0
        self._parent = parent
        self._grace = grace
        self._kill_at: float | None = None
        self._ended = False

    def watch(self, lifeline: int) -> None:
        """Return when everything is dead.

        Args:
            lifeline: Pipe on which the parent writes what to do; its end is the parent's.
        """
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        watched = [woken, lifeline]
        while not self._reaped():
            if self._ended:
                self._stop(self._grace)
            ready = select.select(watched, [], [], self._pause())[0]
            if woken in ready:
                os.read(woken, 512)
            if lifeline in ready and not self._heard(os.read(lifeline, 1)):
                watched.remove(lifeline)
            if os.getppid() != self._parent:
                self._stop(0.0)
            self._kill_if_due()
        signal.set_wakeup_fd(-1)
        os.close(woken)
        os.close(wake)

    def _heard(self, word: bytes) -> bool:
        """Do what the parent says; return whether it is still there."""
        self._stop(self._grace if word == TERMINATE else 0.0)
        return bool(word)

    def _reaped(self) -> bool:
        """Reap the children that have ended; return whether no process is left, here and in the group."""
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return not group_lives(self.worker)
            if child == 0:
                return False
            if child == self.worker:
                self.status, self._ended = status, True

    def _pause(self) -> float:
        if self._kill_at is None:
            return LOOK_SECONDS
        return min(max(self._kill_at - _monotonic(), 0.0), STEP_SECONDS)

    def _stop(self, grace: float) -> None:
        """Send TERM, the first time; let KILL come after the grace, or earlier if it is due earlier."""
        kill_at = _monotonic() + grace
        if self._kill_at is None:
            self._signal(signal.SIGTERM)
            self._kill_at = kill_at
        self._kill_at = min(self._kill_at, kill_at)

    def _kill_if_due(self) -> None:
        """Kill the processes that are left; repeatedly, because a process that dies may leave children."""
        now = _monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)
            self._kill_at = now + STEP_SECONDS

    def _signal(self, number: int) -> None:
        send(os.killpg, self.worker, number)
        for child in children():
            send(os.kill, child, number)


def send(kill: Callable[[int, int], None], target: int, number: int) -> bool:
    """Send a signal; return False if there is no process that can receive it."""
    try:
        kill(target, number)
    except (ProcessLookupError, PermissionError):  # macOS refuses where a group has only dead members
        return False
    return True


def group_lives(group: int) -> bool:
    """Return whether a process group has a member."""
    return send(os.killpg, group, 0)


def children() -> list[int]:
    """Return the ids of this process's children; nothing if the system does not list them."""
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children", encoding="ascii") as listing:
            return [int(child) for child in listing.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    main(sys.argv[1:])
