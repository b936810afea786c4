"""A small terminal: what a person sees of the bytes that a program has written to it."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

SEQUENCE: Final = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[\?25[hl]|\x1b\[[\d;]*m")


class Seen:
    """The lines of a screen that is high enough to hold all of them."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        """Take what a program has written."""
        place = 0
        while place < len(text):
            found = SEQUENCE.match(text, place)
            if found is not None:
                self._obey(found[2], int(found[1] or 1) if found[2] else 1)
                place = found.end()
                continue
            self._put(text[place])
            place += 1

    def _obey(self, what: str | None, count: int) -> None:
        if what == "A":
            self.row = max(self.row - count, 0)
        elif what == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]
        elif what not in (None, "m"):
            raise AssertionError(f"an unknown sequence: {what}")

    def _put(self, sign: str) -> None:
        if sign == "\r":
            self.column = 0
        elif sign == "\n":
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append("")
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + sign + line[self.column + 1 :]
            self.column += 1

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(line.rstrip() for line in self.lines)


class OnTerminal:
    """A command on a terminal of its own, with the test at the keyboard."""

    def __init__(self, folder: Path, *arguments: str, columns: int = 80, out: str = "", **environ: str) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.keyboard, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.out = open(folder / out, "wb") if out else None  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "watchkeeper", *arguments],
            cwd=folder,
            env={**plain, "TERM": "xterm-256color", "PYTHONUTF8": "1", **environ},
            stdin=inside,
            stdout=self.out or inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        self.raw = b""

    def until(self, holds: Callable[[str], bool]) -> str:
        """Read until the screen looks so; return it."""
        while not holds(self.screen):
            if not self._read():
                raise AssertionError(f"it ended before that: {self.screen}")
        return self.screen

    def _read(self) -> bool:
        ready, _, _ = select.select([self.keyboard], [], [], 60)
        assert ready, f"nothing more came: {self.screen}"
        try:
            more = os.read(self.keyboard, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += more
        return bool(more)

    @property
    def screen(self) -> str:
        """What a person sees now."""
        seen = Seen()
        seen.feed(self.raw.decode("utf-8", "replace"))
        return seen.text

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self.keyboard, text.encode())

    def end(self) -> tuple[int, str]:
        """Return the exit code and the last screen."""
        while self._read():
            pass
        return self.process.wait(60), self.screen

    def close(self) -> None:
        """End it, if it has not ended."""
        self.process.kill()
        self.process.wait()
        os.close(self.keyboard)
        if self.out is not None:
            self.out.close()
