"""The end of the stack: code that has to come to its end also where the user's code has used up the stack."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from watchkeeper.core.forks import ModuleLock

ROOM: Final = 100
"""How many more frames such code gets."""

_lock: Final = ModuleLock()
"""Held while the limit is changed: it is one for all threads."""


def check_stack() -> None:
    """Raise RecursionError here rather than in one of the next few calls."""
    _deeper()


def _deeper() -> None:
    len(())


def with_room(fn: Callable[..., object], *args: Any) -> None:
    """Call a function that may be called again; if the stack ends under it, it is called again with a little more.

    Args:
        fn: The function; what it returns is dropped.
        *args: Its arguments.

    Raises:
        BaseException: Whatever it raises.
    """
    try:
        fn(*args)
    except RecursionError:
        with _lock:
            limit = sys.getrecursionlimit()
            sys.setrecursionlimit(limit + ROOM)
            try:
                fn(*args)
            finally:
                sys.setrecursionlimit(limit)
