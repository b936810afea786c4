"""A guard over a shell, in a process of its own: a guard signals and reaps all children of the process it is in.

Arguments: the shell's command, the grace in seconds, the process id that the guard is to take for its parent's (0: the
real one), seconds between two looks for that parent. Input is the guard's lifeline. It writes one line when the shell
says READY, and one with the shell's exit code when everything is dead.
"""

from __future__ import annotations

import os
import sys

from watchkeeper.tools.isolation import guard as process_guard


def started(command: str) -> int:
    """Start a shell in a group of its own that says on a pipe when it is ready; return its process id."""
    reading, writing = os.pipe()
    worker = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", command.replace("READY", "echo >&9; exec 9>&-")],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, writing, 9)],
        setpgroup=0,
    )
    os.close(writing)
    assert os.read(reading, 1) == b"\n", "the shell did not start"
    os.close(reading)
    return worker


def main(command: str, grace: str, parent: str, look: str) -> None:
    """Start the shell and watch it to its end."""
    process_guard.LOOK_SECONDS = float(look)  # type: ignore[misc]
    process_guard.adopt_orphans()
    worker = started(command)
    print("ready", flush=True)
    guard = process_guard.Guard(worker, int(parent) or os.getppid(), float(grace))
    guard.watch(0)
    assert not process_guard.group_lives(worker)
    print(os.waitstatus_to_exitcode(guard.status), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
