"""Brings what was written to the disk itself, so that it survives that the machine loses its power.

A `write` only reaches the memory of the operating system. What waits for the disk may take ten milliseconds and more a
file, so it must never run on an event loop. Several files are synced at once, on worker threads: a disk does several
requests in about the time of one. One `syncfs` for all of them is no alternative: it also waits for whatever other
programs have written to the same file system.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Semaphore
from typing import Any, Final, Literal, get_args

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.workers import WORKERS, Job

Durability = Literal["process", "power"]
"""What a write survives: the death of the process, or also that of the machine."""

DURABILITIES: Final[tuple[str, ...]] = get_args(Durability)

AT_ONCE: Final = 16
"""How many files are synced at the same time."""


def check_durability(value: object) -> None:
    """Refuse what is no durability.

    Raises:
        ConfigurationError: Naming the value and the choices.
    """
    if value not in DURABILITIES:
        raise ConfigurationError(f"durability={value!r} must be {' or '.join(map(repr, DURABILITIES))}")


def to_disk(file: int) -> None:
    """Return once the disk has what was written to an open file.

    Raises:
        OSError: If that is not certain. A second call would not make it certain: the operating system may have dropped
            what it could not write, and reports it once.
    """
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(file)
    else:  # Windows
        os.fsync(file)


def folder_to_disk(path: Path) -> None:
    """Return once the disk has the names of the files in a folder; a system that cannot do that does it by itself.

    Raises:
        OSError: If that is not certain.
    """
    if sys.platform == "win32":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def store_to_disk(path: Path, names: Sequence[str], made: Sequence[Path]) -> None:
    """Return once the disk has an empty store.

    Args:
        path: Its folder.
        names: What is in it.
        made: The folders above it that were made with it.

    Raises:
        OSError: If that is not certain.
    """
    for name in names:
        if (path / name).is_dir():
            folder_to_disk(path / name)
        else:
            with open(path / name, "rb+") as file:
                to_disk(file.fileno())
    for folder in dict.fromkeys((path, path.parent, *(each.parent for each in made))):
        folder_to_disk(folder)


def all_at_once(steps: Sequence[Callable[[], None]]) -> list[OSError | None]:
    """Make several steps, some at a time, and return how each failed, in their order."""
    failures: list[OSError | None] = [None] * len(steps)
    waiting, done = deque(enumerate(steps)), Semaphore(0)

    def work() -> None:
        while waiting:
            try:
                place, step = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                step()
            except OSError as error:
                failures[place] = error
            finally:
                done.release()

    def ignore(_: Job[Any]) -> None:
        """Every step is waited for by itself."""

    for _ in range(min(AT_ONCE, len(steps)) - 1):
        try:
            WORKERS.run(Job(work, ignore))
        except RuntimeError:  # no more threads; this one does the rest
            break
    work()
    for _ in steps:
        done.acquire()
    return failures
