"""Calls inside calls of one task: in every order of interruptions each is cancelled once and booked once, and the
cancellations are not confused with each other."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.containment.gates import TOOL, gate_with, settle, started, unlimited
from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import CALL_TIMEOUT, InFlightCall, Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.shield.decision import Decision

NAMES = ("outer", "middle", "inner")
TIMED_OUT = ("timeout", CALL_TIMEOUT)
SOON = 1 / 256
"""Seconds between two interruptions, well within the grace."""


@dataclass
class Work:
    """Work at the bottom of nested calls: waits, and cleans up for as long as the test likes when it is cancelled."""

    cancelled: int = 0
    cleaned: bool = False
    cleaning: asyncio.Event = field(default_factory=asyncio.Event)
    swallows: bool = False

    async def __call__(self, ticket: Ticket) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            try:
                await self.cleaning.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            self.cleaned = True
            if not self.swallows:
                raise
        return "swallowed"


@dataclass
class Nest:
    """Calls inside each other, each with a time-out of its own."""

    gate: ExecutionContext
    work: Callable[[Ticket], Awaitable[Any]]
    timeouts: dict[str, float]
    outcomes: dict[str, Outcome[Any]] = field(default_factory=dict[str, Outcome[Any]])

    async def call(self, depth: int = 0) -> Outcome[Any]:
        """Make the call at this depth, and inside it those below."""
        name = list(self.timeouts)[depth]

        async def go_on(ticket: Ticket) -> Any:
            if depth + 1 == len(self.timeouts):
                return await self.work(ticket)
            return await self.call(depth + 1)

        request = CallRequest("tool", name, timeout=self.timeouts[name])
        self.outcomes[name] = await self.gate.acall(request, go_on)
        return self.outcomes[name]

    def under_way(self, name: str) -> InFlightCall:
        """Return the call of this name, which is under way."""
        return next(call for call in self.gate.in_flight if call.node.name == name)

    def nodes(self) -> dict[str, tuple[str, str | None]]:
        """Return how each call was booked."""
        return {each.operation_name: (each.status, each.stop_reason) for each in self.gate.get_snapshot().nodes}


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.mark.spec("FR-150")
async def test_an_inner_call_whose_time_ends_while_the_outer_one_is_stopped_is_not_cancelled_again(
    clock: TestClock,
) -> None:
    work = Work()
    nest = Nest(gate_with(clock), work, {"outer": 1, "inner": 1 + SOON})
    task = await started(nest.call())
    clock.advance(1)
    await settle()
    clock.advance(SOON)
    await settle()
    assert (work.cancelled, task.done()) == (1, False)
    work.cleaning.set()
    outcome = await task
    assert (outcome.decision, outcome.stop_reason) == (Decision.RETRY, CALL_TIMEOUT)
    assert (work.cancelled, work.cleaned) == (1, True)
    assert nest.nodes() == {"outer": ("timeout", CALL_TIMEOUT), "inner": ("timeout", CALL_TIMEOUT)}
    assert task.cancelling() == 0


@pytest.mark.parametrize("order", list(permutations(NAMES)), ids="-".join)
async def test_three_calls_in_one_another_may_time_out_at_once(clock: TestClock, order: tuple[str, ...]) -> None:
    work = Work()
    nest = Nest(gate_with(clock), work, dict.fromkeys(NAMES, 10))
    task = await started(nest.call())
    for name in order:
        nest.under_way(name).interrupt(CALL_TIMEOUT)
    await settle()
    work.cleaning.set()
    outcome = await task
    assert (outcome.decision, outcome.stop_reason) == (Decision.RETRY, CALL_TIMEOUT)
    assert (work.cancelled, work.cleaned, task.cancelling()) == (1, True, 0)
    assert nest.nodes() == dict.fromkeys(NAMES, TIMED_OUT)


@pytest.mark.parametrize(
    ("order", "others"),
    [
        ("outer middle inner", {}),
        ("outer inner middle", {}),
        ("middle outer inner", {}),
        ("middle inner outer", {}),
        ("inner outer middle", {"middle": ("aborted", None)}),  # it was over before its time
        ("inner middle outer", {"outer": ("ok", None)}),
    ],
)
async def test_three_calls_in_one_another_may_time_out_one_after_the_other(
    clock: TestClock, order: str, others: dict[str, tuple[str, str | None]]
) -> None:
    work = Work()
    nest = Nest(gate_with(clock), work, {name: 1 + SOON * order.split().index(name) for name in NAMES})
    task = await started(nest.call())
    clock.advance(1)
    await settle()
    for _ in range(2):
        clock.advance(SOON)
        await settle()
    work.cleaning.set()
    outcome = await task
    expected = {**dict.fromkeys(NAMES, TIMED_OUT), **others}
    assert outcome.stop_reason == expected["outer"][1]
    assert task.cancelling() == 0
    await settle()
    assert nest.nodes() == expected


@pytest.mark.parametrize("first", ["outer", "inner"])
async def test_an_abort_below_and_a_time_out_above_end_in_their_own_outcomes(clock: TestClock, first: str) -> None:
    gate = gate_with(clock)
    child = gate.child(unlimited())
    work = Work()

    async def outer(ticket: Ticket) -> Outcome[str]:
        return await child.acall(CallRequest("llm", "inner"), work)

    task = await started(gate.acall(CallRequest("tool", "outer", timeout=1), outer))
    if first == "inner":
        child.abort("enough")
        await settle()
    clock.advance(1)
    await settle()
    child.abort("enough")
    await settle()
    work.cleaning.set()
    outcome = await task
    assert (outcome.decision, outcome.stop_reason) == (Decision.RETRY, CALL_TIMEOUT)
    assert (work.cancelled, task.cancelling()) == (1, 0)
    inner = child.get_snapshot().nodes[-1]
    assert (inner.status, inner.stop_reason) == ("aborted", "aborted")
    assert gate.stop is None
    gate.close()


async def test_a_whole_chain_is_aborted_from_another_thread_step_by_step(clock: TestClock) -> None:
    gate = gate_with(clock)
    child = gate.child(unlimited())
    work = Work()

    async def outer(ticket: Ticket) -> Outcome[str]:
        return await child.acall(CallRequest("llm", "inner"), work)

    task = await started(gate.acall(CallRequest("tool", "outer"), outer))
    for context in (gate, child):
        thread = threading.Thread(target=context.abort, args=("enough",))
        thread.start()
        thread.join()
        await settle()
    work.cleaning.set()
    outcome = await task
    assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "aborted")
    assert (work.cancelled, work.cleaned, task.cancelling()) == (1, True, 0)
    assert child.get_snapshot().nodes[-1].stop_reason == "aborted"
    gate.close()


async def test_a_childs_deadline_right_after_its_parents_ends_both_by_their_deadlines(clock: TestClock) -> None:
    gate = gate_with(clock, deadline=f"{1}s")
    child = gate.child(unlimited(deadline="1s"))
    work = Work()

    async def outer(ticket: Ticket) -> Outcome[str]:
        clock.advance(SOON)  # the inner call's timer is set for the same instant, but later
        return await child.acall(CallRequest("llm", "inner"), work)

    task = await started(gate.acall(CallRequest("child", "outer"), outer))
    clock.advance(1)
    await settle()
    work.cleaning.set()
    outcome = await task
    assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "timeout")
    assert gate.stop is not None
    assert task.cancelling() == 0
    assert child.get_snapshot().nodes[-1].stop_reason == "timeout"
    gate.close()


async def test_an_inner_call_that_swallows_what_was_meant_for_the_outer_one_has_an_outcome_of_its_own(
    clock: TestClock,
) -> None:
    nest = Nest(gate_with(clock), Work(swallows=True), {"outer": 1, "inner": 1 + SOON})
    work = nest.work
    assert isinstance(work, Work)
    task = await started(nest.call())
    clock.advance(1)
    await settle()
    clock.advance(SOON)
    await settle()
    work.cleaning.set()
    outcome = await task
    assert (outcome.decision, outcome.stop_reason) == (Decision.RETRY, CALL_TIMEOUT)
    assert nest.outcomes["inner"].stop_reason == CALL_TIMEOUT
    assert task.cancelling() == 0


@pytest.mark.parametrize("when", ["before", "between", "after", "at once"])
async def test_a_cancellation_from_elsewhere_passes_through_nested_calls_that_time_out(
    clock: TestClock, when: str
) -> None:
    nest = Nest(gate_with(clock), Work(), {"outer": 1, "inner": 1 + SOON})

    async def caller() -> tuple[bool, int]:
        try:
            await nest.call()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            return True, task.cancelling()
        return False, 0

    task = asyncio.ensure_future(caller())
    await settle()
    if when == "before":
        task.cancel()
        await settle()
    clock.advance(1)
    if when == "between":
        await settle()
        task.cancel()
    if when == "at once":
        task.cancel()
    await settle()
    clock.advance(SOON)
    await settle()
    if when == "after":
        task.cancel()
    assert isinstance(nest.work, Work)
    nest.work.cleaning.set()
    assert await task == (True, 1)
    await settle()
    assert all(status in ("timeout", "aborted") for status, _ in nest.nodes().values())


async def test_a_time_out_inside_the_work_is_the_works_own_while_the_call_is_stopped_too(clock: TestClock) -> None:
    gate = gate_with(clock)
    timer = asyncio.timeout(None)
    seen: list[str] = []

    async def work(ticket: Ticket) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                async with timer:
                    await asyncio.Event().wait()
            except TimeoutError:
                seen.append("timed out")

    task = await started(gate.acall(CallRequest("tool", timeout=1), work))
    clock.advance(1)
    await settle()
    timer.reschedule(asyncio.get_running_loop().time())
    outcome = await task
    assert (outcome.decision, outcome.stop_reason) == (Decision.RETRY, CALL_TIMEOUT)
    assert (seen, task.cancelling()) == (["timed out"], 0)


async def test_a_call_made_while_cleaning_up_has_a_time_out_of_its_own(clock: TestClock) -> None:
    gate = gate_with(clock)
    ends: list[Outcome[str]] = []
    goodbye = Work()

    async def work(ticket: Ticket) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(await gate.acall(CallRequest("tool", "goodbye", timeout=SOON), goodbye))

    task = await started(gate.acall(CallRequest("tool", timeout=1), work))
    clock.advance(1)
    await settle()
    clock.advance(SOON)
    await settle()
    goodbye.cleaning.set()
    outcome = await task
    assert outcome.stop_reason == CALL_TIMEOUT
    assert [end.stop_reason for end in ends] == [CALL_TIMEOUT]
    assert (goodbye.cancelled, goodbye.cleaned, task.cancelling()) == (1, True, 0)


async def ignore_twice(seen: list[str], ticket: Ticket) -> None:
    """Note each of two cancellations, and end after the second."""
    for word in ("first", "second"):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(word)


async def test_a_call_inside_work_that_was_left_behind_is_stopped_where_it_runs_and_not_in_the_callers_task(
    clock: TestClock,
) -> None:
    gate = gate_with(clock)
    seen: list[str] = []
    stubborn = partial(ignore_twice, seen)
    nest = Nest(gate, stubborn, {"outer": 1, "inner": 5})
    go_on = asyncio.Event()

    async def caller() -> str | None:
        outcome = await nest.call()
        await go_on.wait()
        return outcome.stop_reason

    task = asyncio.ensure_future(caller())
    await settle()
    clock.advance(1)
    await settle()
    clock.advance(1)
    await settle()
    assert (seen, "outer" in nest.outcomes) == (["first"], True)
    clock.advance(4)
    await settle()
    assert seen == ["first", "second"]
    assert (task.cancelling(), task.done()) == (0, False)
    go_on.set()
    assert await task == CALL_TIMEOUT
    assert nest.outcomes["inner"].stop_reason == CALL_TIMEOUT


async def test_a_call_that_was_stopped_before_it_was_left_behind_takes_nothing_from_the_callers_task(
    clock: TestClock,
) -> None:
    gate = gate_with(clock)
    over = asyncio.Event()

    async def stubborn(ticket: Ticket) -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    async def work(ticket: Ticket) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.acall(CallRequest("tool", "goodbye", timeout=SOON), stubborn)

    task = await started(gate.acall(CallRequest("tool", timeout=1), work))
    clock.advance(1)
    await settle()
    clock.advance(SOON)
    await settle()
    clock.advance(0.0125)  # the outer grace is over, the inner one is not
    outcome = await task
    assert (outcome.stop_reason, task.cancelling()) == (CALL_TIMEOUT, 0)
    over.set()
    await settle()
    assert {node.status for node in gate.get_snapshot().nodes} == {"timeout"}


async def test_work_that_is_left_behind_while_its_context_closes_hears_of_it(clock: TestClock) -> None:
    gate = gate_with(clock)
    seen: list[str] = []
    stubborn = partial(ignore_twice, seen)
    task = await started(gate.acall(CallRequest("tool", timeout=1), stubborn))
    clock.advance(1)
    await settle()
    clock.advance(1)
    await task
    gate.close()  # the task of what was left behind has not taken its first step
    await settle()
    assert seen == ["first", "second"]


# --- what asyncio remembers of the task in which work was begun -------------------------------------------------------


@asynccontextmanager
async def within(timer: asyncio.Timeout) -> AsyncGenerator[None]:
    async with timer:
        yield


async def under_a_timer(timer: asyncio.Timeout, failed: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    async with timer:
        await work()


async def under_a_timer_of_its_own(
    timer: asyncio.Timeout, failed: asyncio.Event, work: Callable[[], Awaitable[None]]
) -> None:
    async with within(timer):
        await work()


async def on_a_stack(timer: asyncio.Timeout, failed: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(timer)
        await work()


async def in_a_generator(timer: asyncio.Timeout, failed: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    async def items() -> AsyncGenerator[None]:
        async with timer:
            await work()
            yield

    async for _ in items():
        pass


async def in_a_group(timer: asyncio.Timeout, failed: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    async def fails() -> None:
        await failed.wait()
        raise ValueError("no luck")

    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        await work()


@pytest.mark.parametrize("kind", [under_a_timer, under_a_timer_of_its_own, on_a_stack, in_a_generator, in_a_group])
async def test_time_outs_and_groups_inside_work_that_was_left_behind_cancel_that_work_and_not_its_caller(
    clock: TestClock, kind: Callable[..., Awaitable[None]]
) -> None:
    gate = gate_with(clock)
    seen: list[str] = []
    go_on, failed = asyncio.Event(), asyncio.Event()

    async def caller() -> str | None:
        async with asyncio.timeout(None), asyncio.TaskGroup() as ours:
            timer = asyncio.timeout(None)

            async def work(ticket: Ticket) -> None:
                assert ours is not None  # work knows a group of its caller, and is not inside of it
                await kind(timer, failed, lambda: ignore_twice(seen, ticket))

            outcome = await gate.acall(CallRequest("tool", timeout=1), work)
            failed.set()
            if kind is not in_a_group:
                timer.reschedule(0)
            await go_on.wait()
        return outcome.stop_reason

    task = asyncio.ensure_future(caller())
    await settle()
    clock.advance(1)
    await settle()
    clock.advance(1)
    await settle()
    assert seen == ["first", "second"]
    assert (task.cancelling(), task.done()) == (0, False)
    go_on.set()
    assert await task == CALL_TIMEOUT


@pytest.mark.parametrize("kind", [under_a_timer, in_a_group])
async def test_a_time_out_inside_work_that_ignores_it_is_not_taken_for_a_cancellation_from_elsewhere(
    clock: TestClock, kind: Callable[..., Awaitable[None]]
) -> None:
    gate = gate_with(clock)
    timer = asyncio.timeout(None)
    failed, over, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    async def caller() -> str | None:
        outcome = await gate.acall(CallRequest("tool", timeout=1), lambda _: kind(timer, failed, stubborn))
        await go_on.wait()
        return outcome.stop_reason

    task = asyncio.ensure_future(caller())
    await settle()
    clock.advance(1)
    await settle()
    failed.set()
    if kind is under_a_timer:
        timer.reschedule(0)
    await settle()
    clock.advance(1)
    await settle()
    seen = (task.cancelling(), task.done())
    over.set()
    go_on.set()
    assert seen == (0, False)
    assert await task == CALL_TIMEOUT


# --- whatever happens, in whatever order ------------------------------------------------------------------------------

EVENTS = st.sampled_from(["outer", "middle", "inner", "elsewhere", "step", "steps", "grace"])


@pytest.mark.spec("FR-150")
@given(
    events=st.lists(EVENTS, max_size=12),
    cleaning=st.lists(st.integers(0, 6) | st.just(400), min_size=3, max_size=3),
    swallows=st.lists(st.booleans(), min_size=3, max_size=3),
    reason=st.sampled_from(["call_timeout", "aborted", "closed"]),
)
def test_whatever_interrupts_nested_calls_each_is_booked_and_only_a_cancellation_from_elsewhere_is_raised(
    events: list[str], cleaning: list[int], swallows: list[bool], reason: Any
) -> None:
    asyncio.run(check_interrupted(events, cleaning, swallows, reason))


async def check_interrupted(events: list[str], cleaning: list[int], swallows: list[bool], reason: Any) -> None:
    """Interrupt three nested calls as the events say; check what comes of it."""
    clock = TestClock()
    gate = gate_with(clock)
    finished = asyncio.Event()

    async def level(depth: int, ticket: Ticket) -> Any:
        try:
            if depth == len(NAMES) - 1:
                return await finished.wait()
            request = CallRequest("tool", NAMES[depth + 1], timeout=1000)
            return await gate.acall(request, lambda ticket: level(depth + 1, ticket))
        except asyncio.CancelledError:
            for _ in range(cleaning[depth]):
                await asyncio.sleep(0)
            if not swallows[depth]:
                raise
            return "swallowed"

    task = await started(gate.acall(CallRequest("tool", NAMES[0], timeout=1000), lambda ticket: level(0, ticket)))
    asked = 0
    for event in events:
        if event in NAMES:
            for call in gate.in_flight:
                if call.node.name == event:
                    call.interrupt(reason)
        elif event == "elsewhere":
            asked += task.cancel()
        elif event == "grace":
            clock.advance(0.02)
        else:
            for _ in range(1 if event == "step" else 8):
                await asyncio.sleep(0)
    await settle()
    for _ in range(4):
        clock.advance(0.02)
        await settle()
        if task.done():
            break
    at_end = gate.get_snapshot().nodes if task.done() else ()
    finished.set()
    for _ in range(4):
        await settle()
        clock.advance(0.02)
    for _ in range(70):
        await settle()
    assert task.done()
    if asked == 0:
        assert not task.cancelled()
        assert task.exception() is None
        assert task.cancelling() == 0
    else:
        # Work may swallow a cancellation that came before anything of ours was under way; it is counted all the same.
        assert task.cancelling() == asked
    interrupted = {*events} & {*NAMES} if "elsewhere" not in events else set[str]()
    assert all(node.end_ts is not None for node in at_end if node.operation_name in interrupted)
    assert all(node.end_ts is not None for node in gate.get_snapshot().nodes)
    assert gate.account.reserved == [0] * 7
    gate.close()


# --- real time --------------------------------------------------------------------------------------------------------


async def server() -> None:
    """Answer never; take a moment to close the connection."""
    try:
        await asyncio.sleep(30)
    finally:
        await asyncio.sleep(0.004)


async def test_nested_time_outs_a_few_milliseconds_apart_are_never_taken_for_somebody_elses() -> None:
    async def once(gap: int) -> str:
        with ExecutionContext(unlimited(), clock=SYSTEM_CLOCK) as gate:

            async def inner() -> Any:
                return await gate.acall_llm(server, WrapOptions("inner", timeout_ms=30 + gap))

            outcome = await gate.acall_tool(inner, WrapOptions("outer", timeout_ms=30))
            assert all(node.end_ts is not None for node in gate.get_snapshot().nodes)
            return "stopped" if outcome.stop_reason == CALL_TIMEOUT else str(outcome.decision)

    ends = await asyncio.gather(*(once(round_ % 10) for round_ in range(50)), return_exceptions=True)
    assert Counter(map(str, ends)) == {"stopped": 50}


async def test_an_abort_from_a_thread_ends_nested_calls_as_aborted() -> None:
    async def once() -> str | None:
        with ExecutionContext(unlimited()) as gate:
            child = gate.child(unlimited())

            async def inner(ticket: Ticket) -> Any:
                return await child.acall(TOOL, lambda ticket: server())

            task = await started(gate.acall(TOOL, inner))
            threading.Thread(target=gate.abort, args=("enough",)).start()
            return (await task).stop_reason

    ends = await asyncio.gather(*(once() for _ in range(50)), return_exceptions=True)
    assert Counter(map(str, ends)) == {"aborted": 50}


if sys.version_info >= (3, 12):

    async def test_an_abort_in_the_first_step_of_an_eager_task_cancels_only_the_call_around_it() -> None:
        # that step is taken while the task of the call is in a step of its own: a cancellation would come too late
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        with gate_with(SYSTEM_CLOCK) as gate:

            async def abort() -> None:
                gate.abort("enough")

            async def work(ticket: Ticket) -> str:
                await asyncio.sleep(0)
                await asyncio.create_task(abort())
                return "done"

            ended = await gate.acall(TOOL, work)
            await asyncio.sleep(0.001)
        assert ended.value == "done"
