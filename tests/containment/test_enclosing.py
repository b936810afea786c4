"""A context that is opened inside another one is a part of it; `parent=None` makes it independent."""

# ruff: noqa: SIM117 -- contexts nest as they are used

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

import pytest

from tests.containment.gates import AfterItBegan
from tests.kit import collect_garbage
from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.accounting.limits import Limits
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.shield.circuit_breaker import CircuitBreaker
from watchkeeper.shield.decision import ChainMetadata, Decision, SafetyEvent, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline

pytestmark = pytest.mark.spec("FR-180")

HINT = WrapOptions("call", 0.25)


def config(cost: float = 1, steps: int = 10, retries: int = 5, timeout_ms: int = 0) -> ExecutionConfig:
    return ExecutionConfig(cost, steps, retries, timeout_ms)


class Hook:
    """Notes what it is asked, and says what it is told to."""

    def __init__(self, says: Decision | None = None) -> None:
        self.says = says
        self.asked: list[str | None] = []
        self.released = 0

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        self.asked.append(ctx.tool_name)
        return self.says

    def release(self, ctx: ToolCallContext) -> None:
        self.released += 1


def test_what_is_spent_inside_counts_around_it_and_the_ceilings_of_both_hold() -> None:
    with ExecutionContext(config(steps=3)) as outer, ExecutionContext(config(cost=0.5)) as inner:
        said = [inner.wrap_llm_call(lambda: None, HINT) for _ in range(3)]
        assert said == [Decision.ALLOW, Decision.ALLOW, Decision.HALT]
        assert outer.wrap_llm_call(lambda: None) is Decision.ALLOW
        assert outer.wrap_llm_call(lambda: None) is Decision.HALT
        assert (outer.get_snapshot().step_count, outer.get_snapshot().cost_usd_accumulated) == (3, 0.5)


def test_nothing_is_set_aside_for_it_so_that_those_beside_it_can_go_on() -> None:
    with ExecutionContext(config()) as outer:
        with ExecutionContext(config()) as one, ExecutionContext(config(), parent=outer) as two:
            assert [each.wrap_llm_call(lambda: None, HINT) for each in (one, two)] == [Decision.ALLOW] * 2
        assert outer.get_snapshot().cost_usd_accumulated == 0.5


def test_it_keeps_the_request_and_its_snapshot_names_the_chain_around_it() -> None:
    metadata = ChainMetadata("request-1", "chain-1", team="ops")
    with ExecutionContext(config(), metadata=metadata) as outer, ExecutionContext(config()) as inner:
        own = inner.metadata
        assert (own.request_id, own.team) == ("request-1", "ops")
        assert own.chain_id != "chain-1"
        assert (inner.get_snapshot().parent_id, inner.get_snapshot().apart) == ("chain-1", False)
        assert (outer.get_snapshot().parent_id, outer.child(Limits()).get_snapshot().parent_id) == (None, None)


def test_its_stops_are_on_the_record_around_it() -> None:
    told: list[SafetyEvent] = []
    with ExecutionContext(config(), on_event=told.append) as outer, ExecutionContext(config(steps=1)) as inner:
        inner.wrap_tool_call(lambda: None)
        inner.wrap_tool_call(lambda: None)
        assert [each.event_type for each in outer.get_snapshot().events] == ["step_limit_exceeded"]
        assert outer.stop is None
    assert len(told) == 1


def test_deadline_and_abort_around_it_reach_it() -> None:
    clock = TestClock()
    with ExecutionContext(config(timeout_ms=1000), clock=clock), ExecutionContext(config(timeout_ms=5000)) as inner:
        clock.advance(1.5)
        assert inner.call_llm(lambda: None).stop_reason == "timeout"
    with ExecutionContext(config()) as outer, ExecutionContext(config()) as inner:
        outer.abort("enough")
        assert inner.call_llm(lambda: None).stop_reason == "aborted"
        assert inner.get_snapshot().aborted


def test_ceilings_at_their_defaults_give_way_to_those_around_it() -> None:
    wide = Limits(deadline="5h", max_total_tokens=9_000_000, max_retries=None)
    with ExecutionContext(wide), ExecutionContext(Limits(max_steps=3)) as inner:
        own = inner.limits
        assert (own.deadline, own.max_total_tokens, own.max_retries, own.max_steps) == (None, None, 20, 3)
        assert inner.deadline is not None


def test_inside_a_call_it_is_a_part_of_the_context_whose_call_it_is() -> None:
    with ExecutionContext(config()) as entered:
        other = ExecutionContext(config(), parent=None)

        def work() -> tuple[str | None, str | None]:
            with ExecutionContext(config()) as inner, ExecutionContext(config()) as innermost:
                return inner.get_snapshot().parent_id, innermost.get_snapshot().parent_id

        found = other.call_tool(work).value
        assert found is not None
        assert found[0] == other.metadata.chain_id
        assert entered.get_snapshot().step_count == 0
        other.close()


def merely_inside(outer: ExecutionContext) -> ExecutionContext:
    return ExecutionContext(config())


def a_child(outer: ExecutionContext) -> ExecutionContext:
    return outer.child(Limits())


def a_part(outer: ExecutionContext) -> ExecutionContext:
    return outer.split({"one": 1})["one"]


@pytest.mark.parametrize("open_below", [merely_inside, a_child, a_part])
def test_a_call_that_overruns_its_time_takes_along_what_was_opened_in_it(
    open_below: Callable[[ExecutionContext], ExecutionContext],
) -> None:
    opened: list[ExecutionContext] = []
    clock, over = AfterItBegan(), threading.Event()

    def work() -> None:
        opened.append(open_below(outer))
        opened[0].cancellation.on_cancel(lambda _: over.set())
        clock.begun.set()
        over.wait(60)

    with ExecutionContext(config(), clock=clock) as outer:
        assert outer.call_tool(work, WrapOptions(timeout_ms=30)).stop_reason == "call_timeout"
        assert over.wait(60)
        assert opened[0].call_llm(lambda: None).stop_reason == "aborted"
        assert outer.stop is None
        opened[0].close()


def aborted(gate: ExecutionContext) -> None:
    gate.abort("enough")


@pytest.mark.parametrize("end", [aborted, ExecutionContext.close])
def test_what_was_opened_in_a_call_is_reached_after_that_call_too(end: Callable[[ExecutionContext], None]) -> None:
    def told(ticket: Ticket) -> bool:
        end(outer)
        return ticket.cancellation.is_cancelled

    with ExecutionContext(config()) as outer:
        opened = outer.call_tool(lambda: ExecutionContext(config())).value
        assert opened is not None
        collect_garbage()
        assert opened.call_tool(told).value is True


@pytest.mark.parametrize("own", [{"ledger": MemoryLedger()}, {"clock": TestClock()}])
def test_a_ledger_or_a_clock_of_its_own_is_refused(own: Any) -> None:
    with ExecutionContext(config()):
        with pytest.raises(ConfigurationError, match=f"leave {next(iter(own))}= out, or pass parent=None"):
            ExecutionContext(config(), **own)
        with ExecutionContext(config(), parent=None, **own) as apart:
            assert apart.get_snapshot().apart


def test_those_around_it_are_no_others() -> None:
    ledger, clock = MemoryLedger(), TestClock()
    with ExecutionContext(config(), ledger=ledger, clock=clock) as outer:
        with ExecutionContext(config(), ledger=ledger, clock=clock) as inner:
            assert inner.get_snapshot().parent_id == outer.metadata.chain_id


def test_an_account_of_its_own_is_refused() -> None:
    with ExecutionContext(config()), pytest.raises(ConfigurationError, match="name it in the limits of the whole run"):
        ExecutionContext(Limits(account="team", account_limit="$1/day"))


# --- hooks and breakers -----------------------------------------------------------------------------------------------


def test_hooks_of_both_are_asked_those_around_it_first() -> None:
    above, own = Hook(), Hook()
    with ExecutionContext(config(), ShieldPipeline(pre_dispatch=above)):
        with ExecutionContext(config(), ShieldPipeline(pre_dispatch=own)) as inner:
            inner.wrap_llm_call(lambda: None)
            above.says = Decision.HALT
            assert inner.wrap_llm_call(lambda: None) is Decision.HALT
            assert (len(above.asked), len(own.asked)) == (2, 1)
            assert (above.released, own.released) == (1, 0)
            above.says, own.says = None, Decision.HALT
            assert inner.wrap_llm_call(lambda: None) is Decision.HALT
            assert (above.released, own.released) == (2, 1)
        assert inner.get_snapshot().step_count == 1


def test_hooks_that_both_have_are_asked_once() -> None:
    hook, breaker = Hook(), CircuitBreaker()
    pipeline = ShieldPipeline(pre_dispatch=hook)
    with ExecutionContext(config(), pipeline, circuit_breaker=breaker):
        with ExecutionContext(config(), pipeline, circuit_breaker=breaker) as inner:
            assert inner.wrap_llm_call(lambda: None) is Decision.ALLOW
    assert len(hook.asked) == 1


def failing() -> None:
    raise ValueError


@pytest.mark.parametrize("which", ["above", "own"])
def test_breakers_of_both_are_asked_and_told(which: str) -> None:
    above, own = CircuitBreaker(failure_threshold=1), CircuitBreaker(failure_threshold=1)
    with ExecutionContext(config(), circuit_breaker=above):
        with ExecutionContext(config(), circuit_breaker=own) as inner:
            inner.wrap_llm_call(failing)
            (own if which == "above" else above).reset()
            assert inner.call_llm(lambda: None).stop_reason == "circuit_open"
            above.reset()
            own.reset()
            assert inner.wrap_llm_call(lambda: None) is Decision.ALLOW
            assert inner.wrap_llm_call(lambda: None) is Decision.ALLOW


def test_a_refusal_by_its_own_breaker_gives_the_permit_of_the_other_back() -> None:
    clock = TestClock()
    above = CircuitBreaker(failure_threshold=1, recovery_timeout=timedelta(seconds=1), clock=clock)
    own = CircuitBreaker(failure_threshold=1, clock=clock)
    with ExecutionContext(config(), circuit_breaker=above, clock=clock) as outer:
        with ExecutionContext(config(), circuit_breaker=own) as inner:
            inner.wrap_llm_call(failing)
            clock.advance(2)
            assert inner.call_llm(lambda: None).stop_reason == "circuit_open"
        assert outer.wrap_llm_call(lambda: None) is Decision.ALLOW  # the one probe is free again


def test_a_hook_may_spend_in_the_chain_that_asks_it_and_is_not_asked_about_itself() -> None:
    class Judge(Hook):
        def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
            super().before_llm_call(ctx)
            with ExecutionContext(config()) as own:
                return own.wrap_llm_call(lambda: None, HINT)

    judge = Judge()
    with ExecutionContext(config(cost=0.5), ShieldPipeline(pre_dispatch=judge)) as ctx:
        assert ctx.wrap_llm_call(lambda: None, HINT) is Decision.ALLOW
        assert ctx.get_snapshot().cost_usd_accumulated == 0.5
        assert len(judge.asked) == 1


def test_a_hook_that_wants_what_the_call_holds_about_which_it_is_asked_does_not_wait_for_it() -> None:
    class Judge(Hook):
        def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
            with ExecutionContext(config()) as own:
                self.asked.append(own.call_llm(lambda: None, HINT).stop_reason)
            return None

    judge = Judge()
    with ExecutionContext(config(cost=0.25), ShieldPipeline(pre_dispatch=judge)) as ctx:
        assert ctx.wrap_llm_call(lambda: None, HINT) is Decision.ALLOW
        assert judge.asked == ["budget_exceeded"]


# --- where code runs --------------------------------------------------------------------------------------------------


def test_a_thread_with_a_copy_of_the_context_is_inside_and_a_bare_one_is_not() -> None:
    found: list[str | None] = []

    def look() -> None:
        with ExecutionContext(config()) as here:
            found.append(here.get_snapshot().parent_id)

    with ExecutionContext(config()) as outer:
        for target in (contextvars.copy_context().run, contextvars.Context().run):
            thread = threading.Thread(target=target, args=(look,))
            thread.start()
            thread.join()
    assert found == [outer.metadata.chain_id, None]


def test_what_began_inside_cannot_be_continued_after_its_end() -> None:
    with ExecutionContext(config(), metadata=ChainMetadata("request", "chain-7")):
        later = contextvars.copy_context()
    with pytest.raises(ConfigurationError, match=r"inside the context chain-7, which is closed by now.*parent=None"):
        later.run(ExecutionContext, config())
    later.run(lambda: ExecutionContext(config(), parent=None).close())


def test_one_after_the_other_is_not_inside() -> None:
    with ExecutionContext(config()):
        pass
    with ExecutionContext(config()) as second:
        assert (second.get_snapshot().parent_id, second.get_snapshot().apart) == (None, False)


async def test_tasks_see_what_was_around_them_when_they_began() -> None:
    async def look() -> str | None:
        await asyncio.sleep(0)
        with ExecutionContext(config()) as here:
            await asyncio.sleep(0)
            return here.get_snapshot().parent_id

    with ExecutionContext(config()) as one:
        inside = asyncio.ensure_future(look())
        await inside
    outside = await asyncio.gather(look(), look())
    assert (inside.result(), *outside) == (one.metadata.chain_id, None, None)


def test_what_outlives_a_context_does_not_keep_it() -> None:
    gc.disable()
    try:
        context = ExecutionContext(config())
        with context:
            later, gone = contextvars.copy_context(), weakref.ref(context)
        del context
        assert gone() is None
        with pytest.raises(ConfigurationError, match="closed by now"):
            later.run(ExecutionContext, config())
    finally:
        gc.enable()


# --- left in another order than entered -------------------------------------------------------------------------------


def held_open(context: ExecutionContext) -> Generator[ExecutionContext]:
    with context:
        yield context


def test_generators_that_are_closed_in_the_order_of_their_start_leave_nothing_in_force() -> None:
    first, second = held_open(ExecutionContext(config())), held_open(ExecutionContext(config()))
    next(first)
    inner = next(second)
    first.close()
    assert inner.is_closed is False
    assert ExecutionContext(config()).get_snapshot().parent_id == inner.metadata.chain_id
    second.close()
    assert ExecutionContext(config()).get_snapshot().parent_id is None


def test_what_was_entered_later_stays_in_force_when_what_was_entered_before_is_left() -> None:
    first, second = ExecutionContext(config()), ExecutionContext(config(), parent=None)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    inside = ExecutionContext(config())
    assert inside.get_snapshot().parent_id == second.metadata.chain_id
    second.__exit__(None, None, None)
    assert ExecutionContext(config()).get_snapshot().parent_id is None


def test_a_context_that_is_entered_twice_is_closed_by_the_first_exit_and_left_by_the_second() -> None:
    gate = ExecutionContext(config())
    with gate:
        with gate:
            assert gate.wrap_tool_call(lambda: None) is Decision.ALLOW
        with pytest.raises(ConfigurationError, match="closed"):
            gate.wrap_tool_call(lambda: None)
    assert ExecutionContext(config()).get_snapshot().parent_id is None
