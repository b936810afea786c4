"""Ctrl-C: the first one lands the run, the second one stops it hard. Always called on the loop's thread."""

from __future__ import annotations

from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.stop import Stop

LANDING = Stop("interrupted", "caller", "The run was interrupted.")


class Interrupts:
    """Counts interrupts and passes them to the gate of the run in progress."""

    __slots__ = ("_count", "_gate")

    def __init__(self) -> None:
        """Nothing was interrupted yet."""
        self._count = 0
        self._gate: ExecutionContext | None = None

    def over(self, gate: ExecutionContext) -> Interrupts:
        """Pass interrupts to ``gate`` from now on, also one that came before; to be used with ``with``."""
        self._gate = gate
        if self._count:
            self._pass_on(gate)
        return self

    def __enter__(self) -> None:
        """`over` has done it."""

    def __exit__(self, *_: object) -> None:
        """Pass interrupts on no more."""
        self._gate = None

    def interrupt(self) -> None:
        """Take one Ctrl-C."""
        self._count += 1
        if self._gate is not None:
            self._pass_on(self._gate)

    def _pass_on(self, gate: ExecutionContext) -> None:
        if self._count == 1:
            gate.land(LANDING)
        else:
            gate.abort("interrupted twice")
