"""Interrupts: the first one lands the run, the second one stops it hard, whenever they come; SIGTERM leaves seconds.

What signals do to a whole process is tested with the command line.
"""

from __future__ import annotations

import asyncio

import pytest

from watchkeeper.app.surroundings import TERM_SECONDS, Interrupts
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock
from watchkeeper.core.limits import Limits


@pytest.mark.spec("FR-084")
def test_the_first_interrupt_ends_the_work_and_lets_it_land() -> None:
    interrupts = Interrupts()
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        interrupts.interrupt()
        assert gate.work_stop is not None
        assert gate.work_stop.reason == "interrupted"
        assert gate.stop is None


@pytest.mark.spec("FR-084")
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


@pytest.mark.parametrize(
    ("name", "said"),
    [("SIGINT", "The run was interrupted."), ("SIGHUP", "The run was interrupted by SIGHUP.")],
)
def test_a_stop_names_the_signal_but_for_ctrl_c(name: str, said: str) -> None:
    interrupts = Interrupts()
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        interrupts.interrupt(name)
        assert gate.work_stop is not None
        assert gate.work_stop.message == said


@pytest.mark.spec("FR-148")
@pytest.mark.parametrize("before_the_run", [False, True])
async def test_after_sigterm_a_landing_that_takes_too_long_is_stopped_hard(before_the_run: bool) -> None:
    clock = TestClock()
    interrupts = Interrupts(clock)
    if before_the_run:
        interrupts.interrupt("SIGTERM")
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        if not before_the_run:
            interrupts.interrupt("SIGTERM")
        assert gate.work_stop is not None
        assert gate.work_stop.message == "The run was interrupted by SIGTERM."
        clock.advance(TERM_SECONDS - 0.1)
        assert gate.stop is None
        clock.advance(0.1)
        assert gate.stop is not None
        assert gate.stop.reason == "aborted"
        assert "it had not landed 7 s after SIGTERM" in gate.stop.message


async def test_the_seconds_after_sigterm_may_pass_before_the_run_begins() -> None:
    clock = TestClock()
    interrupts = Interrupts(clock)
    interrupts.interrupt("SIGTERM")
    clock.advance(TERM_SECONDS)
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        assert gate.stop is not None


async def test_a_run_that_lands_in_time_leaves_no_timer() -> None:
    clock = TestClock()
    interrupts = Interrupts(clock)
    with ExecutionContext(Limits()) as gate:
        with interrupts.over(gate):
            interrupts.interrupt("SIGTERM")
        clock.advance(TERM_SECONDS)
        await asyncio.sleep(0)
        assert gate.stop is None
