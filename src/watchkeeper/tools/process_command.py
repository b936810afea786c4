"""What the process of a command does first: it turns into the command.

It runs in a worker process of its own, which nothing outlives, and only returns if the command cannot be started. No
shell has a part in it: the first word names the program, the others are its arguments as they are.
"""

from __future__ import annotations

import os
import signal
from typing import Final

from watchkeeper.tools.result import ToolResult

IGNORED_BY_PYTHON: Final = ("SIGPIPE", "SIGXFSZ")
"""Signals that Python ignores and other programs do not expect to be ignored."""


def become(arguments: list[str], folder: str) -> ToolResult[None]:
    """Go to the folder and turn into the command; return only the reason why that is impossible."""
    try:
        os.chdir(folder)
    except OSError as error:
        return ToolResult.error(f"the folder {folder!r} cannot be entered: {error.strerror}")
    for name in IGNORED_BY_PYTHON:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(arguments[0], arguments)
    except OSError as error:
        return ToolResult.error(f"{arguments[0]!r} cannot be started: {error.strerror}")
