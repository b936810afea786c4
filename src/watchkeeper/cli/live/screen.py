"""Where the live view stands on a terminal: below everything that is printed, drawn anew a few times a second.

The cursor always waits on a free line above the view. So whatever writes to the terminal without asking (a program that
a tool starts, a log handler that has kept the stream) writes into that line and pushes the view down; nothing is lost.
What Python code prints through ``sys.stdout`` and ``sys.stderr`` is passed on as it is, while the view is away.
`rich.live` cannot do that: it leaves the cursor inside its view, and lays out anew what others have printed.

One thread draws; it waits on the clock, not on the run. The view is away while a line above is not finished and while a
person is asked something. A terminal that cannot be written any more ends the view and nothing else.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Final, TextIO, cast
from uuid import UUID

from watchkeeper.app.options import RunOptions
from watchkeeper.cli.console import UNPRINTABLE, PlainConsole, error_console, row_of
from watchkeeper.cli.live.drawing import ASCII, BLOCKS, lines_of
from watchkeeper.cli.live.state import Follower, View
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.forks import in_forked
from watchkeeper.core.text import logger
from watchkeeper.session.log import Envelope
from watchkeeper.shield.attention import ATTENTION

EVERY_SECONDS: Final = 0.25
"""How often it is looked whether there is something new to draw."""

AGAIN_SECONDS: Final = 0.1
"""What was drawn is shown again behind a printed line, unless this was done less than so long ago."""

IDLE_ROUNDS: Final = 4
"""After so many of them it is drawn anew even if nothing was noted, because time goes on."""

SPARE_ROWS: Final = 3
"""Rows of the terminal that are left free: that of the cursor, and some of what was printed."""

OnRecord = Callable[[UUID, Envelope], None]
Shown = AbstractContextManager[None]

BELOW: Final = "\r\n\x1b[J"
"""Goes to the line below and erases from there to the end of the screen."""


class Passing:
    """Stands in the place of a standard stream: passes on what is written, exactly, while the view is away."""

    def __init__(self, screen: Screen, stream: TextIO) -> None:
        """Pass on to a stream."""
        self._screen = screen
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text above the view."""
        with self._screen.away(text):
            return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts above the view."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Screen:
    """The place of the live view on one terminal."""

    def __init__(self, console: PlainConsole, follower: Follower, clock: Clock) -> None:
        """Prepare to draw what a follower sees.

        Args:
            console: Prints to the terminal.
            follower: Knows what there is to see.
            clock: Says when to draw.
        """
        self._console = console
        self._follower = follower
        self._clock = clock
        self._stream = console.file
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._latest: list[str] = []
        self._drawn = self._mid_line = False
        self._drawn_at = 0.0
        self._asking = 0
        self._failed = False
        encoding = str(getattr(self._stream, "encoding", "") or "").lower().replace("-", "")
        self._signs = BLOCKS if encoding.startswith("utf") else ASCII
        self._colours = console.color_system is not None and not console.no_color
        SCREENS.add(self)

    @contextmanager
    def shown(self) -> Generator[None]:
        """Show the view while the block runs; what it showed last stays."""
        kept = sys.stdout, sys.stderr
        passing = Passing(self, cast("TextIO", self._stream))
        self._console.file = cast("TextIO", passing)
        sys.stdout = cast("TextIO", passing) if sys.stdout is self._stream else sys.stdout
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr = cast("TextIO", Passing(self, sys.stderr))
        told = ATTENTION.tell(self._asked)
        drawing = threading.Thread(target=self._draw_on, name="watchkeeper-live", daemon=True)
        drawing.start()
        try:
            yield
        finally:
            self._over.set()
            drawing.join(1.0)
            told()
            sys.stdout, sys.stderr = kept
            self._console.file = self._stream
            self._leave()

    @contextmanager
    def away(self, text: str) -> Generator[None]:
        """Take the view away while the block writes a text; a line that it does not finish keeps the view away."""
        with self._lock:
            self._erase()
            try:
                yield
            finally:
                if text:
                    self._mid_line = not text.endswith("\n")
                now = self._clock.monotonic()
                if self._may_draw and now - self._drawn_at >= AGAIN_SECONDS:
                    self._show(now)

    def _asked(self, begins: bool) -> None:
        """Take note that a person is asked something, or is not any more."""
        with self._lock:
            self._asking += 1 if begins else -1
            self._erase()
            self._mid_line = False

    def _draw_on(self) -> None:
        """Draw until the end, when something was noted, and once a second."""
        rounds = 0
        while not self._over.is_set():
            self._clock.wait(self._over, EVERY_SECONDS)
            rounds += 1
            if self._over.is_set() or not (self._follower.changed or rounds >= IDLE_ROUNDS or not self._drawn):
                continue
            rounds = 0
            with self._lock:
                if self._may_draw:
                    self._latest = self._rows()
                    self._show(self._clock.monotonic())

    @property
    def _may_draw(self) -> bool:
        return not (self._mid_line or self._asking or self._over.is_set()) and self._is_ours

    @property
    def _is_ours(self) -> bool:
        """Whether the process is in the foreground of the terminal; the cursor belongs to another one otherwise."""
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except (AttributeError, OSError, ValueError):  # it is no terminal that controls processes
            return True

    def _show(self, now: float) -> None:
        """Draw what was laid out last, and go back to the line above it."""
        if self._latest:
            text = "\r\n".join(self._latest)
            self._write(f"{BELOW}{text}\r\x1b[{len(self._latest)}A")
            self._drawn, self._drawn_at = True, now

    def _rows(self) -> list[str]:
        """Return the rows to draw now; whatever goes wrong ends the view, not the run."""
        try:
            view = self._follower.seen()
            return [] if view is None else self._laid_out(view)
        except Exception as error:
            self._failed = True
            self._over.set()
            logger().warning("live.failed", error=f"{type(error).__name__}: {error}")
            return []

    def _laid_out(self, view: View) -> list[str]:
        width, height = self._console.size
        lines = lines_of(view, width - 1, self._signs)[: max(height - SPARE_ROWS, 0)]
        return [row_of(line, width - 1, colours=self._colours) for line in lines]

    def _erase(self) -> None:
        if self._drawn and self._is_ours:
            self._write(f"{BELOW}\x1b[1A")
            self._drawn = False

    def _leave(self) -> None:
        """Take the view away and print what it shows at the end, as plain lines."""
        with self._lock:
            self._erase()
            rows = [] if self._failed else self._rows()
            if rows:
                self._write("\n" * (1 + self._mid_line) + "\n".join(rows) + "\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except UNPRINTABLE:  # the terminal is gone
            self._failed = True
            self._over.set()

    def forget(self) -> None:
        """Draw no more, and wait for nobody: a forked process has neither the thread nor what held the lock."""
        self._lock, self._over = threading.RLock(), threading.Event()
        self._over.set()
        self._drawn = False


SCREENS: Final[weakref.WeakSet[Screen]] = weakref.WeakSet()


def _forget_all() -> None:
    for screen in list(SCREENS):
        with suppress(Exception):
            screen.forget()


in_forked(_forget_all)


def may_be_live(console: PlainConsole) -> bool:
    """Return whether a console stands on a terminal that can move its cursor."""
    return console.is_terminal and not console.is_dumb_terminal and not console.legacy_windows


def live(console: PlainConsole, out: TextIO | None, lines: OnRecord | None) -> tuple[RunOptions, Shown]:
    """Return the options by which a run is followed, and what shows it while it goes on.

    The view stands where the lines are printed; if that is no terminal, on standard error. Where standard output is for
    a program and yet a terminal, there is none.

    Args:
        console: Prints the lines.
        out: Standard output.
        lines: Prints the run's events; None for nothing.
    """
    options: RunOptions = {} if lines is None else {"on_record": lines}
    if not may_be_live(console):
        console = error_console()
    elsewhere = console.file is not out
    if not may_be_live(console) or (elsewhere and out is not None and not out.closed and out.isatty()):
        return options, nullcontext()
    follower = Follower(SYSTEM_CLOCK)

    def take(run_id: UUID, envelope: Envelope) -> None:
        follower.take(run_id, envelope.event)
        if lines is not None:
            lines(run_id, envelope)

    return {"on_record": take, "on_open": follower.opened}, Screen(console, follower, SYSTEM_CLOCK).shown()
