"""Ledgers and `os.fork`: a copy of a process must not use its parent's connection, nor find a lock taken for good.

Before a process is copied all its ledgers are held still; in the copy each goes on as a holder of its own.
"""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import Final, Protocol


class Forked(Protocol):
    """Something that wants to know of forks."""

    def before_fork(self) -> None:
        """Hold still."""
        ...

    def after_fork(self, *, child: bool) -> None:
        """Go on, here or in the copy."""
        ...


LEDGERS: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()
HELD_STILL: Final[list[Forked]] = []
WATCHED: Final[list[bool]] = []


def survive_forks(ledger: Forked) -> None:
    """Tell a ledger of every fork of this process."""
    LEDGERS.add(ledger)
    if not WATCHED and hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
        WATCHED.append(True)
        os.register_at_fork(
            before=before_fork,
            after_in_parent=partial(after_fork, child=False),
            after_in_child=partial(after_fork, child=True),
        )


def before_fork() -> None:
    """Hold all ledgers still."""
    HELD_STILL[:] = LEDGERS
    for ledger in HELD_STILL:
        ledger.before_fork()


def after_fork(*, child: bool) -> None:
    """Let them go on."""
    for ledger in HELD_STILL:
        ledger.after_fork(child=child)
    HELD_STILL.clear()
