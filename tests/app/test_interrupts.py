"""Interrupts: the first one lands the run, the second one stops it hard, whenever they come.

What Ctrl-C does to a whole process is tested with the command line.
"""

from __future__ import annotations

import pytest

from watchkeeper.app.interrupts import Interrupts
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.limits import Limits


def test_the_first_interrupt_ends_the_work_and_lets_it_land() -> None:
    interrupts = Interrupts()
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        interrupts.interrupt()
        assert gate.work_stop is not None
        assert gate.work_stop.reason == "interrupted"
        assert gate.stop is None


def test_the_second_interrupt_aborts() -> None:
    interrupts = Interrupts()
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        interrupts.interrupt()
        interrupts.interrupt()
        assert gate.stop is not None
        assert gate.stop.reason == "aborted"
        assert "interrupted twice" in gate.stop.message


@pytest.mark.parametrize(("count", "aborted"), [(1, False), (2, True), (3, True)])
def test_an_interrupt_before_the_run_is_not_forgotten(count: int, aborted: bool) -> None:
    interrupts = Interrupts()
    for _ in range(count):
        interrupts.interrupt()
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        assert (gate.stop is not None) is aborted
        assert gate.work_stop is not None


def test_an_interrupt_after_the_run_does_nothing() -> None:
    interrupts = Interrupts()
    with ExecutionContext(Limits()) as gate:
        with interrupts.over(gate):
            pass
        interrupts.interrupt()
        assert gate.work_stop is None
