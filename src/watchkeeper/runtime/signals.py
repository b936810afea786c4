"""Signals that ask for the end of the work: Ctrl-C, and for a program that says so, TERM and HUP.

A run takes those signals whose handler is Python's own for Ctrl-C (``signal.default_int_handler``) or an `EndRequests`.
Every other handler is the program's own and stays, and what is ignored stays ignored: a run takes nothing over. Only
the main thread can set handlers, so only there anything is set, and all is put back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Final

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock

ENDING: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What asks for the end, where the system has it: Windows knows no SIGHUP."""

AGAIN_SECONDS: Final = 1.0
"""A TERM or HUP that comes sooner after another request says the same once more. ``timeout`` sends TERM to the process
and to its group, a login that ends sends TERM and HUP, a terminal that closes HUP twice."""


class EndRequests:
    """The requests for the end so far, and a signal handler that takes one.

    Attributes:
        signals: The signals that counted, in order.
        noted: How many requests are only noted when no run takes them; one more is a KeyboardInterrupt.
    """

    def __init__(self, noted: int = 0, clock: Clock = SYSTEM_CLOCK) -> None:
        """Start without a request."""
        self.signals: list[int] = []
        self.noted = noted
        self._clock = clock
        self._last = 0.0
        self._unheard: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal while no run does.

        Raises:
            KeyboardInterrupt: Unless it is only noted.
        """
        if not self.take(number):
            return
        if len(self.signals) > self.noted:
            raise KeyboardInterrupt
        self._unheard.append(number)

    def unheard(self) -> tuple[int, ...]:
        """Return, once, the requests that were only noted."""
        unheard, self._unheard = tuple(self._unheard), []
        return unheard

    def take(self, number: int) -> bool:
        """Count a signal and return True, unless it only repeats a request.

        Every Ctrl-C counts: a person presses it. HUP counts only as the first, because nobody is there any more who
        could mean it twice.
        """
        now = self._clock.monotonic()
        if self.signals and number != signal.SIGINT:
            repeats = now - self._last < AGAIN_SECONDS
            if repeats or number != signal.SIGTERM:
                return False
        self._last = now
        self.signals.append(number)
        return True


@contextmanager
def handled_by(
    handler: Callable[[int, FrameType | None], Any], replaced: Callable[[int, Any], bool]
) -> Generator[None]:
    """Set a handler while the block runs; elsewhere than on the main thread nothing is set.

    Args:
        handler: What to set.
        replaced: Whether to set it, given the signal and the handler that it has.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    before = {number: present for number, present in before.items() if replaced(number, present)}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, present in before.items():
            signal.signal(number, present)


def heeding(requests: EndRequests) -> AbstractContextManager[None]:
    """Take every signal that asks for the end and would end the process, while the block runs.

    For a program of its own, such as the command line. What is ignored (``nohup``, a shell's background) stays so.
    """
    return handled_by(requests, lambda number, present: present in (signal.SIG_DFL, signal.default_int_handler))


def is_heeded(number: int, present: Any) -> bool:
    """Return whether a run may take a signal, given the handler that it has."""
    return present is signal.default_int_handler or isinstance(present, EndRequests)


def requests_of_program() -> EndRequests:
    """Return where the program counts the requests for its end; new ones if it does not, or not on this thread."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            present = signal.getsignal(number)
            if isinstance(present, EndRequests):
                return present
    return EndRequests()
