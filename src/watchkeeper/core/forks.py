"""What a forked process must do first, and locks of modules that are free there.

A forked process has only the thread that forked. A lock that another thread held at that moment would stay locked there
for ever. What else a forked process must forget is said where it is kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def in_forked(act: Callable[[], object]) -> None:
    """Have ``act`` called in each process that is forked from this one; it is remembered for good."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
        os.register_at_fork(after_in_child=act)


class ModuleLock:
    """A reentrant lock for ``with``, for a module's own registers; an instance is never garbage-collected."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        """Let it be free, here and in each forked process."""
        self._renew()
        in_forked(self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()
