"""Which processes of this machine are alive: how a process is identified, and whether it still runs.

A process id is reused after the process ends, so a process is identified by its id and its start time. Ids are valid
only since the last boot and within one PID namespace (a container has its own). Where these data cannot be read
(outside Linux, or for a process of another namespace) no process is reported dead; only the end of its lease shows it.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

from watchkeeper.core.forks import in_forked

_STATE, _START = 0, 19
"""Fields of /proc/PID/stat after the command: proc_pid_stat(5) counts them as 3 and 22."""


class ProcessMark(NamedTuple):
    """The identity of a process.

    Attributes:
        process: Its id.
        started: When it started, in clock ticks after the boot; empty if that cannot be known.
        machine: The boot and the PID namespace in which its id is valid; empty if that cannot be known.
    """

    process: int
    started: str
    machine: str


def own_mark() -> ProcessMark:
    """Return the identity of this process."""
    process, started = os.getpid(), ""
    with suppress(OSError):
        started = _own_start(process)
    return ProcessMark(process, started, _machine())


def is_dead(mark: ProcessMark) -> bool:
    """Return whether a process has certainly ended; False if that cannot be known."""
    if not mark.started or mark.machine != _machine():
        return False
    try:
        try:
            return _start_of(mark.process) != mark.started
        except FileNotFoundError:
            os.kill(mark.process, 0)  # signals nothing; this user may not be allowed to see the process
            return False
    except OSError as error:  # any other error, as with too many open files, says nothing about the process
        return isinstance(error, ProcessLookupError)


def is_alive(mark: ProcessMark) -> bool:
    """Return whether a process certainly runs; False if that cannot be known."""
    return mark.process > 0 and bool(mark.started) and mark.machine == _machine() and not is_dead(mark)


def send_signal(mark: ProcessMark, number: int) -> None:
    """Send a signal to a process, and to no other that has got its id since.

    Raises:
        ProcessLookupError: If it has ended, or it cannot be known which process it is.
        OSError: If it cannot be sent.
    """
    handle = -1
    if sys.platform == "linux":
        with suppress(OSError):  # without it the id is free only between the look and the signal
            handle = os.pidfd_open(mark.process)
    try:
        if not is_alive(mark):
            raise ProcessLookupError(f"there is no process {mark.process} that is known to be the one")
        if sys.platform == "linux" and handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(mark.process, number)
    finally:
        if handle >= 0:
            os.close(handle)


def ignores(process: int, number: int) -> bool:
    """Return whether a process ignores a signal; False if that cannot be known."""
    with suppress(OSError, ValueError), open(f"/proc/{process}/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _start_of(process: int) -> str:
    """Return when a process started; empty for a zombie.

    Raises:
        OSError: If there is no such process, or its data cannot be read.
    """
    with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return "" if fields[_STATE] in ("Z", "X") else fields[_START]


_own_start: Final = cache(_start_of)
"""For this process alone: another one with the same id may start at any time."""

in_forked(_own_start.cache_clear)


@cache
def _machine() -> str:
    """Return the boot and the PID namespace of this process; empty where they cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
