"""Notices that the shared loop is blocked, and says by what.

An async tool that calls blocking code, such as ``time.sleep``, stops every run of the shared loop for as long: their
time-outs and deadlines come late. The threads that wait for their runs look up a few times a second anyway
(`runtime.portal`). They ask the loop for a sign of life, and write one line to the log when it is overdue. Nothing is
done in a step, and a loop that nobody waits for is not watched. The loop is never interrupted.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType
from typing import Final

from watchkeeper.containment.in_flight import InFlightCall
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.text import logger

BLOCKED_SECONDS: Final = 1.0
"""How long a loop owes a sign of life before it counts as blocked."""

OURS: Final = str(Path(__file__).parents[1])
LIBRARY: Final = sysconfig.get_path("stdlib")


class Watchdog:
    """Watches one loop."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        """Ask nothing yet."""
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._blocked_by: str | None = None

    def look(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread | None) -> None:
        """Ask for a sign of life, or tell that it is overdue; from any thread but the loop's."""
        now = self._clock.monotonic()
        with self._lock:
            if self._asked_at is None:
                self._asked_at = now
                loop.call_soon_threadsafe(self._alive)
                return
            late = now - self._asked_at
            if late < BLOCKED_SECONDS or self._blocked_by is not None:
                return
            frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # public, in spite of its name
            frame = None if thread is None else frames.get(thread.ident or 0)
            self._blocked_by, where = blocking(frame)
        logger().warning(
            "loop.blocked",
            by=self._blocked_by,
            at=where,
            blocked_seconds=round(late, 1),
            remedy="every other run waits for it; write the tool as def, not async def, or await what it waits for",
        )

    def _alive(self) -> None:
        """Note that the loop is not blocked; called on the loop."""
        with self._lock:
            asked_at, blocked_by, self._asked_at, self._blocked_by = self._asked_at, self._blocked_by, None, None
        if blocked_by is not None and asked_at is not None:
            took = self._clock.monotonic() - asked_at
            logger().warning("loop.free", was_blocked_by=blocked_by, blocked_seconds=round(took, 1))


def blocking(frame: FrameType | None) -> tuple[str, str]:
    """Return what runs in a thread: the innermost call of a gate, by its name, and the line of the caller's own code.

    Args:
        frame: The innermost frame of the thread, or None if it has ended.
    """
    name, where = "", ""
    while frame is not None and not (name and where):
        code = frame.f_code
        if not where and not code.co_filename.startswith((OURS, LIBRARY, "<frozen")):
            where = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        if not name and code.co_filename.startswith(OURS):
            calls = (value for value in frame.f_locals.values() if isinstance(value, InFlightCall))
            name = next((call.node.name or call.node.kind for call in calls), "")
        frame = frame.f_back
    return name or "code outside of any call", where or "unknown"
