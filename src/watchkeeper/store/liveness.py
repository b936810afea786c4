"""Which processes of this machine are alive: what a process is known by, and whether that one still runs.

A process id is given again after its end, so a process is known by its id and the instant at which it started; ids mean
something only since the last boot and within one PID namespace (a container has its own). Where that cannot be read
(outside Linux, or for a process of another namespace) nothing is ever said to be dead: a lease must tell.
"""

from __future__ import annotations

import os
from functools import cache
from typing import NamedTuple

_STATE, _START = 0, 19
"""Fields of /proc/PID/stat after the command: proc_pid_stat(5) counts them as 3 and 22."""


class ProcessMark(NamedTuple):
    """What a process is known by.

    Attributes:
        process: Its id.
        started: When it started, in clock ticks after the boot; empty if that cannot be known.
        machine: The boot and the PID namespace in which its id means something; empty if that cannot be known.
    """

    process: int
    started: str
    machine: str


def own_mark() -> ProcessMark:
    """Return what this process is known by."""
    process = os.getpid()
    return ProcessMark(process, _start_of(process) or "", _machine())


def is_dead(mark: ProcessMark) -> bool:
    """Return whether a process is over for certain; False where nobody can know."""
    if not mark.started or mark.machine != _machine():
        return False
    return _start_of(mark.process) != mark.started


def _start_of(process: int) -> str | None:
    """Return when a process started; None if there is none, or only what is left of one that was killed."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE] in ("Z", "X") else fields[_START]


@cache
def _machine() -> str:
    """Return the boot and the PID namespace of this process; empty where they cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
