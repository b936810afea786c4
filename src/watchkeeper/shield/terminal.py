"""Asks a person at the terminal; when the question is withdrawn, it ends and closes the terminal.

The terminal is the one that controls the process, also if standard input is a file or a pipe. It is asked only if the
process is in its foreground: a process in the background would be stopped by reading. What is shown is escaped, because
a model may have written it. Input that was typed before the question does not answer it.
"""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from typing import Final

from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.secrets import redacted
from watchkeeper.core.text import fold_points, printable
from watchkeeper.shield.tool_permission import Questioner

CONTROLLING: Final = "/dev/tty"
"""The device of the terminal that controls the process."""

WIDTH: Final = 80
"""Columns of a terminal that does not say how many it has."""

MARGIN: Final = "    "
"""Before every further part of a line that is folded."""


class Terminal(Questioner):
    """A terminal at which a person may answer.

    Args:
        path: The terminal's device; by default the one that controls the process.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str = CONTROLLING) -> None:
        """Open nothing yet."""
        self._path = path

    def ask(self, question: str, withdrawn: CancellationToken) -> str | None:
        """Show a question and wait for a line.

        Args:
            question: What to show; lines of it are kept, other control characters escaped.
            withdrawn: Cancelled when the answer is no longer needed.

        Returns:
            The line; None if there is no terminal, the input ended, or the question was withdrawn.
        """
        terminal = _opened(self._path)
        if terminal is None:
            return None
        woken, waker = os.pipe()
        lock = threading.Lock()
        over = False

        def wake(_: str) -> None:
            with lock:
                if not over:
                    os.write(waker, b"\n")

        forget = withdrawn.on_cancel(wake)
        try:
            return _answered(terminal, question, woken)
        finally:
            forget()
            with lock:
                over = True
                for descriptor in (terminal, woken, waker):
                    os.close(descriptor)


def laid_out(question: str, width: int) -> str:
    """Return a question with its lines folded, so that none of them can imitate another one.

    Args:
        question: The question; its own line breaks are kept.
        width: Columns of the terminal.
    """
    lines: list[str] = []
    for line in printable(redacted(question)).split("\n"):
        points = [0, *fold_points(line, width, len(MARGIN)), len(line)]
        lines.append(f"\n{MARGIN}".join(line[begin:end] for begin, end in pairwise(points)))
    return "\n".join(lines)


def _opened(path: str) -> int | None:
    """Open a terminal for a question; None if there is none, or another process has it."""
    try:
        terminal = os.open(path, os.O_RDWR | getattr(os, "O_NOCTTY", 0))
    except OSError:
        return None
    if os.isatty(terminal) and _in_foreground(terminal):
        return terminal
    os.close(terminal)
    return None


def _in_foreground(terminal: int) -> bool:
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # not the terminal that controls this process: it may be read at any time
        return True


def _width(terminal: int) -> int:
    try:
        return os.get_terminal_size(terminal).columns or WIDTH
    except OSError:
        return WIDTH


def _answered(terminal: int, question: str, woken: int) -> str | None:
    import select
    import termios

    termios.tcflush(terminal, termios.TCIFLUSH)
    _show(terminal, laid_out(question, _width(terminal)))
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([terminal, woken], [], [])
        if woken in ready:
            _show(terminal, "\n")
            return None
        more = os.read(terminal, 1024)
        if not more:  # end of input
            return None
        line += more
    return line.decode("utf-8", "replace")


def _show(terminal: int, text: str) -> None:
    rest = text.encode("utf-8", "replace")
    while rest:
        rest = rest[os.write(terminal, rest) :]
