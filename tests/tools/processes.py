"""What tests ask of the system about processes."""

from __future__ import annotations

import os
import select
from pathlib import Path


def is_alive(process: int) -> bool:
    """Return whether a process exists."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class Lives:
    """Sees who lives through a fifo that processes hold open, and to which one of them writes its number.

    Attributes:
        fifo: Its path; it is made here.
    """

    def __init__(self, path: Path) -> None:
        self.fifo = str(path)
        os.mkfifo(path)
        self._reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._held: int | None = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # so that its end is the last one's

    def begun(self) -> int:
        """Wait until a process has written its number."""
        text = b""
        while not text.endswith(b"\n"):
            assert select.select([self._reading], [], [], 60)[0], "the process did not come so far"
            text += os.read(self._reading, 64)
        return int(text)

    def all_dead(self) -> bool:
        """Return, without waiting, whether nobody holds the fifo open."""
        self._let_go()
        try:
            return os.read(self._reading, 64) == b""
        except BlockingIOError:
            return False

    def ends_within(self, seconds: float) -> bool:
        """Return whether nobody holds the fifo open any more, at most so many seconds from now."""
        self._let_go()
        return bool(select.select([self._reading], [], [], seconds)[0]) and os.read(self._reading, 64) == b""

    def wait_for_the_end(self) -> None:
        """Wait until nobody holds the fifo open."""
        self._let_go()
        os.set_blocking(self._reading, True)
        while os.read(self._reading, 64):
            pass

    def close(self) -> None:
        """Look no longer."""
        self._let_go()
        os.close(self._reading)

    def _let_go(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None
