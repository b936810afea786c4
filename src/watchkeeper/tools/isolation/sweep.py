"""Ends the processes of a call whose guard is lost: an isolated tool stopped, killed or starved the guard.

A guard adopts the orphans of its worker in any group or session, also while the guard is stopped. So every process
below it in the process tree belongs to the call. If the guard is dead, the processes of the call are found by its
session, the worker's group and a mark in the environment, which processes inherit. All are stopped before any is
killed, so that none can fork meanwhile. Only Linux provides these data; elsewhere only the two groups are killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Set
from contextlib import suppress
from typing import Final

import msgspec

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.trace.place import VARIABLE, traceparent_here

MARK: Final = "_WATCHKEEPER_CALL"
"""Environment variable that holds the ids of the isolated call that a process belongs to, the outermost first."""

SWEEP_SECONDS: Final = 5.0
"""Longest time of a sweep: a process that cannot be killed hangs in the system."""

LOOK_SECONDS: Final = 0.02
"""How long the end of one process is waited for before the next is killed."""

DEAD: Final = ("Z", "X")
"""States of processes that are over and only not yet reaped."""


class Lost(msgspec.Struct, frozen=True):
    """A call whose guard no longer does its work.

    Attributes:
        guard: The guard's process id; the guard is not yet reaped, so the id cannot belong to another process.
        group: The worker's group, if the guard told it.
        mark: The call's id in the environment.
    """

    guard: int
    group: int | None
    mark: str


class _Process(msgspec.Struct, frozen=True):
    number: int
    began: int
    state: str
    parent: int
    group: int
    session: int


def environment(mark: str) -> dict[str, str]:
    """Return this process's environment with the mark of a call, after those of the calls that it is part of.

    It also names the place in the trace, for what the call starts.
    """
    here = traceparent_here()
    traced = {} if here is None else {VARIABLE: here}
    return {**os.environ, **traced, MARK: "/".join(filter(None, (os.environ.get(MARK), mark)))}


def sweep(lost: Lost) -> None:
    """Kill everything of a call, its guard last; return when it is dead."""
    if sys.platform == "linux":
        over_at = SYSTEM_CLOCK.monotonic() + SWEEP_SECONDS
        stopped: set[tuple[int, int]] = set()
        while (found := _members(lost, stopped)) and SYSTEM_CLOCK.monotonic() < over_at:
            fresh = [each for each in found if (each.number, each.began) not in stopped]
            for each in fresh or found:
                _signal(each, signal.SIGSTOP if fresh else signal.SIGKILL)
            stopped.update((each.number, each.began) for each in fresh)
    for group in (lost.group, lost.guard):
        with suppress(ProcessLookupError, PermissionError):
            if group is not None:
                os.killpg(group, signal.SIGKILL)


def _members(lost: Lost, known: Set[tuple[int, int]]) -> list[_Process]:
    """Return the processes of a call that are alive, without its guard.

    Args:
        lost: The call.
        known: Numbers and beginnings of those that were found before. When their guard dies, the system gives them
            another parent, so perhaps nothing shows any more that they belong to the call.
    """
    everything = {number: found for number in _numbers() if (found := _look(number)) is not None}
    members: dict[int, _Process] = {}
    for process in everything.values():
        if process.number == lost.guard or process.state in DEAD:
            continue
        above: _Process | None = process
        while above is not None and above.number != lost.guard and above.number not in members:
            above = everything.get(above.parent)
        if above is not None or (process.number, process.began) in known or _belongs(lost, process):
            members[process.number] = process
    return list(members.values())


def _belongs(lost: Lost, process: _Process) -> bool:
    """Return whether a process that is not below the guard is part of its call all the same."""
    if process.session == lost.guard or process.group == lost.group:
        return True
    try:
        with open(f"/proc/{process.number}/environ", "rb") as listing:
            variables = listing.read().split(b"\0")
    except OSError:
        return False
    marks = [each for each in variables if each.startswith(MARK.encode() + b"=")]
    return any(lost.mark.encode() in each.partition(b"=")[2].split(b"/") for each in marks)


def _signal(process: _Process, number: signal.Signals) -> None:
    """Signal a process, unless its id now belongs to another one; after KILL, wait a moment for its end."""
    try:
        handle = os.pidfd_open(process.number)
    except OSError:
        return
    try:
        now = _look(process.number)
        if now is not None and now.began == process.began:
            with suppress(OSError):
                signal.pidfd_send_signal(handle, number)
            if number == signal.SIGKILL:
                ended = select.poll()  # select.select refuses the high descriptors of a program with many
                ended.register(handle, select.POLLIN)
                ended.poll(LOOK_SECONDS * 1000)
    finally:
        os.close(handle)


def _numbers() -> list[int]:
    with os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]


def _look(number: int) -> _Process | None:
    try:
        with open(f"/proc/{number}/stat", "rb") as listing:
            fields = listing.read().rpartition(b")")[2].split()  # the name before may hold anything
    except OSError:
        return None
    return _Process(number, int(fields[19]), fields[0].decode(), *map(int, fields[1:4]))
