"""A signal handler may raise at any point of the gate's own code, and a loop may be closed under a call.

A profiler function raises where a signal handler may: when a function begins, and when a built-in one has returned.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from types import FrameType

import pytest

from tests.kit import collect_garbage
from watchkeeper import Limits
from watchkeeper.containment import ExecutionContext, WrapOptions
from watchkeeper.containment.in_flight import CURRENT_CALL
from watchkeeper.core.clock import SYSTEM_CLOCK

HINT = WrapOptions("ask", cost_estimate_hint=0.01)
OWN = ("/watchkeeper/containment/calls.py", "/watchkeeper/containment/settlement.py", "/execution_context.py")


def interrupt_at(place: int) -> Callable[[FrameType, str, object], None]:
    """Return a profiler function that raises at one of the gate's points, once."""
    passed = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal passed
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith(OWN):
            passed += 1
            if passed == place:
                raise KeyboardInterrupt

    return profile


def run_once(root: ExecutionContext, place: int, *, in_loop: bool) -> bool:
    """Make one call below a root, interrupted at a place; check what must hold; return whether it was interrupted."""
    ran = 0

    def work() -> None:
        nonlocal ran
        ran += 1

    async def async_work() -> None:
        work()

    interrupted = False
    with root.child(Limits(max_cost_usd="0.1", landing=None, deadline=None)) as gate:
        before = sys.getprofile()
        try:
            if in_loop:
                made = gate.acall_llm(async_work, HINT)
                sys.setprofile(interrupt_at(place))
                made.send(None)
            else:
                sys.setprofile(interrupt_at(place))
                gate.call_llm(work, HINT)
        except StopIteration:
            pass
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.setprofile(before)
        assert CURRENT_CALL.get() is None
    assert gate.usage.cost_nanos in (ran * 10**7, 10**7), place
    assert all(node.status != "running" for node in gate.get_snapshot().nodes), place
    assert (gate.is_booked, gate.in_flight) == (True, ()), place
    return interrupted


@pytest.fixture
def no_collector() -> Generator[None]:
    """Keep the collector from closing another test's coroutine here, which would take the interrupt."""
    collect_garbage()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("in_loop", [False, True])
def test_a_call_that_an_interrupt_tears_apart_is_booked_or_released(in_loop: bool) -> None:
    with ExecutionContext(Limits(max_cost_usd=10, landing=None, deadline=None)) as root:
        place = 1
        while run_once(root, place, in_loop=in_loop):
            place += 1
        assert place > 15
        assert root.is_booked
        assert all(reserved == 0 for reserved in root.account.reserved)
        assert str(root.call_tool(lambda: 1).decision) == "ALLOW"


def left_under_way(gate: ExecutionContext, fn: Callable[[], object]) -> None:
    """Begin a call on a loop that is stopped and closed while the call is pending."""
    loop = asyncio.new_event_loop()

    async def wait_for_ever() -> None:
        fn()
        loop.call_soon(loop.stop)
        await loop.create_future()

    async def make() -> None:
        await gate.acall_llm(wait_for_ever, HINT)

    task = loop.create_task(make())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.run_forever()
    loop.close()


def test_a_call_whose_loop_was_closed_is_presumed_when_its_context_closes() -> None:
    with ExecutionContext(Limits(max_cost_usd="0.02", landing=None, deadline=None)) as root:
        gate = root.child(Limits(landing=None, deadline=None), carve=False)
        left_under_way(gate, lambda: None)
        assert not root.is_booked
        gate.close()
        assert (gate.usage.cost_nanos, gate.usage.presumed.calls, gate.in_flight) == (10**7, 1, ())
        assert [node.status for node in gate.get_snapshot().nodes] == ["aborted"]
        collect_garbage()  # closes the coroutine
        assert (root.usage.cost_nanos, root.usage.presumed.calls, root.is_booked) == (10**7, 1, True)


def test_a_call_that_waits_on_a_closed_loop_holds_up_no_other() -> None:
    loop = asyncio.new_event_loop()
    limits = Limits(max_cost_usd="0.01", landing=None, deadline=None)
    with ExecutionContext(limits) as root:
        first = root.child(Limits(landing=None, deadline=None), carve=False)
        left_under_way(first, lambda: None)
        task = loop.create_task(root.acall_llm(asyncio.Event().wait, HINT))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.call_soon(loop.call_soon, loop.stop)
        loop.run_forever()
        loop.close()
        first.close()
        began = SYSTEM_CLOCK.monotonic()
        refused = root.call_llm(lambda: 1, HINT)
        assert refused.stop_reason == "budget_exceeded"
        assert SYSTEM_CLOCK.monotonic() - began < 5


# --- the end of the stack ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_call_at_which_the_stack_ends_holds_nothing_afterwards(
    is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that calls itself through the gate without end, with room for one frame more each time."""
    # What is finalised there may find no stack, either; the hook of pytest would find none to write that down.
    monkeypatch.setattr(sys, "unraisablehook", list[object]().append)
    options = WrapOptions("deeper", cost_estimate_hint=0.001)
    frames, limit = len(inspect.stack(0)), sys.getrecursionlimit()
    for room in range(80, 120):
        gate, begun = ExecutionContext(Limits(max_cost_usd=1, deadline=None, landing=None)), 0

        async def adeeper(gate: ExecutionContext = gate) -> None:
            nonlocal begun
            begun += 1
            await gate.acall_llm(adeeper, options)

        def deeper(gate: ExecutionContext = gate) -> None:
            nonlocal begun
            begun += 1
            gate.call_llm(deeper, options)

        sys.setrecursionlimit(frames + room)
        try:
            with suppress(RecursionError):
                await adeeper() if is_async else deeper()
        finally:
            sys.setrecursionlimit(limit)
        with gate:
            assert (any(gate.account.reserved), gate.in_flight) == (False, ())
            assert gate.usage.cost_nanos is not None
            assert gate.usage.cost_nanos >= (begun - 1) * 1_000_000
