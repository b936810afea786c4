"""Requests from outside for a run's end: the first one lands it, the second one stops it hard.

Always called on the loop's thread. Whoever sends SIGTERM kills soon after, and sends no second one; so a landing that
takes longer than `TERM_SECONDS` is stopped hard, to leave time for the result, the record and the notification.
"""

from __future__ import annotations

from typing import Final

from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, Timer
from watchkeeper.core.stop import Stop

CTRL_C: Final = "SIGINT"

TERM_SECONDS: Final = 7.0
"""How long a run may take to land after SIGTERM. Containers are killed 10 s after it unless told otherwise."""


class Interrupts:
    """Counts interrupts and passes them to the gate of the run in progress."""

    __slots__ = ("_abort", "_clock", "_gate", "_landing", "_timer")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        """Nothing was interrupted yet; ``clock`` measures how long landing may take, by default in real seconds."""
        self._clock = clock
        self._landing: Stop | None = None
        self._abort: str | None = None
        self._gate: ExecutionContext | None = None
        self._timer: Timer | None = None

    def over(self, gate: ExecutionContext) -> Interrupts:
        """Pass interrupts to ``gate`` from now on, also one that came before; to be used with ``with``."""
        self._gate = gate
        self._pass_on()
        return self

    def __enter__(self) -> None:
        """`over` has done it."""

    def __exit__(self, *_: object) -> None:
        """Pass interrupts on no more."""
        self._gate = None
        if self._timer is not None:
            self._timer.cancel()

    def interrupt(self, name: str = CTRL_C) -> None:
        """Take one signal, given its name."""
        if self._landing is not None:
            self._stop_hard("interrupted twice")
            return
        by = "" if name == CTRL_C else f" by {name}"
        self._landing = Stop("interrupted", "caller", f"The run was interrupted{by}.")
        if name == "SIGTERM":
            when = self._clock.monotonic() + TERM_SECONDS
            self._timer = self._clock.call_at(
                when, lambda: self._stop_hard(f"it had not landed {TERM_SECONDS:g} s after {name}")
            )
        self._pass_on()

    def _stop_hard(self, why: str) -> None:
        self._abort = self._abort or why
        self._pass_on()

    def _pass_on(self) -> None:
        if self._gate is None:
            return
        if self._abort is not None:
            self._gate.abort(self._abort)
        elif self._landing is not None:
            self._gate.land(self._landing)
