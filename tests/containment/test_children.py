"""What children carve is reserved for them, its unused part is returned, and the parent's ceiling always holds."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.containment.gates import TOOL, answer, charged, costing, dollars, gate_with, race, settle, started, unlimited
from watchkeeper.accounting.account import COST, STEPS, Account
from watchkeeper.accounting.call_request import CallRequest, Estimate
from watchkeeper.accounting.limits import Landing, Limits
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import GRACE_SECONDS
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.shield.decision import Decision


def account_of(gate: ExecutionContext) -> Account:
    return gate.account


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.mark.spec("EC-033")
async def test_a_sibling_can_never_take_what_a_child_has_carved(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    first, second = root.child(unlimited(max_cost_usd=0.7), "first"), root.child(unlimited(max_cost_usd=0.7), "second")
    assert (first.limits.max_cost_nanos, second.limits.max_cost_nanos) == (dollars(0.7), dollars(0.3))
    refused = await second.acall(costing(0.5), answer)
    assert refused.stop is not None
    said = (
        "The run 'second' has $0.30 left of its cost ceiling of $0.30 after $0.00 in 0 calls; the next call could need "
    )
    assert refused.stop.message == f"{said}up to $0.50."
    assert (await first.acall(costing(0.7), answer)).decision is Decision.ALLOW
    assert root.usage.cost_nanos == dollars(0.7)


async def test_five_siblings_never_fund_more_than_their_parent(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    for _ in range(5):
        child = root.child(unlimited(max_cost_usd=0.9))
        while (await child.acall(costing(0.1), answer)).decision is Decision.ALLOW:
            pass
    assert root.usage.cost_nanos == dollars(1)


async def test_a_child_of_an_exhausted_parent_is_stopped_from_the_start_in_the_parents_words(clock: TestClock) -> None:
    heard: list[Any] = []
    root = ExecutionContext(unlimited(max_cost_usd=1), clock=clock, on_event=heard.append)
    whole = root.child(unlimited(max_cost_usd=1))
    late = root.child(unlimited(max_cost_usd=0.5), "late")
    assert late.stop is not None
    assert late.stop.message.endswith("cost ceiling of $1.00 after $0.00 in 0 calls; others hold the rest.")
    assert [event.event_type for event in heard] == ["budget_exceeded"]
    assert (await late.acall(TOOL, answer)).stop is late.stop
    assert root.stop is None
    whole.close()
    assert root.child(unlimited(max_cost_usd=0.5)).stop is None


@pytest.mark.spec("EC-033")
async def test_what_a_child_has_carved_is_refused_to_its_parent_until_unused_parts_return_at_close(
    clock: TestClock,
) -> None:
    root = gate_with(clock, max_cost_usd=1, max_steps=10)
    child = root.child(unlimited(max_cost_usd=0.8, max_steps=5))
    await child.acall(costing(0.2), answer, charged(0.1))
    refused = await root.acall(costing(0.5), answer)
    assert (refused.decision, refused.stop_reason, refused.admitted) == (Decision.HALT, "budget_exceeded", False)
    assert root.stop is None
    child.close()
    child.close()
    assert (await root.acall(costing(0.5), answer)).decision is Decision.ALLOW
    assert account_of(root).reserved == [0] * 7


async def test_a_child_that_is_stopped_for_good_gives_back_before_it_is_closed(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    child = root.child(unlimited(max_cost_usd=0.8))
    child.abort("not needed")
    assert account_of(root).reserved[COST] == 0


async def test_inside_reservations_stop_at_the_child_and_settlements_move_up_once(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    child = root.child(unlimited(max_cost_usd=0.8))
    grandchild = child.child(unlimited(max_cost_usd=0.5))
    figures = [account_of(gate) for gate in (root, child, grandchild)]
    assert [one.reserved[COST] for one in figures] == [dollars(0.8), dollars(0.5), 0]
    await grandchild.acall(costing(0.3), answer, charged(0.2))
    assert [one.reserved[COST] for one in figures] == [dollars(0.6), dollars(0.3), 0]
    assert [one.settled[COST] for one in figures] == [dollars(0.2)] * 3
    await child.acall(costing(0.3), answer)
    assert [one.reserved[COST] for one in figures] == [dollars(0.3), dollars(0.3), 0]
    root.close()
    assert [one.reserved for one in figures] == [[0] * 7] * 3


async def test_spending_beyond_hints_is_charged_up_and_stops_the_siblings(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    wild, tame = root.child(unlimited(max_cost_usd=0.4)), root.child(unlimited(max_cost_usd=0.6))
    await wild.acall(costing(0.1), answer, charged(0.9))
    assert root.usage.cost_nanos == dollars(0.9)
    refused = await tame.acall(costing(0.2), answer)
    assert refused.stop is not None
    said = "The whole run has $0.10 left of its cost ceiling of $1.00 after $0.90 in 1 model call; the next call"
    assert refused.stop.message == f"{said} could need up to $0.20."
    wild.close()
    tame.close()
    assert account_of(root).reserved == [0] * 7


async def test_beyond_a_carved_count_an_output_cap_is_clamped_to_what_overspending_left(clock: TestClock) -> None:
    root = gate_with(clock, max_output_tokens=100)
    wild, tame = root.child(unlimited(max_output_tokens=50)), root.child(unlimited(max_output_tokens=50))
    await wild.acall(TOOL, answer, charged(0.0, 0, 70))
    request = CallRequest("llm", estimate=Estimate(max_output_tokens=50, min_output_tokens=10))

    async def cap(ticket: Any) -> int:
        return int(ticket.max_output_tokens)

    assert (await tame.acall(request, cap, charged(0.0))).value == 30


async def test_late_results_after_a_child_was_closed_are_charged_up_once(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    child = root.child(unlimited(max_cost_usd=0.8))
    finish = asyncio.Event()

    async def stubborn(ticket: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await finish.wait()

    task = await started(child.acall(costing(0.5), stubborn, charged(0.2)))
    child.close()
    assert account_of(root).reserved[COST] in (0, dollars(0.5))
    finish.set()
    await task
    assert root.usage.cost_nanos == dollars(0.2)
    assert account_of(root).reserved == [0] * 7


async def test_a_call_that_its_closed_context_did_not_wait_for_may_end_as_late_as_it_likes(clock: TestClock) -> None:
    """Its task gets the outcome when the grace is over; its account, the truth when the work has ended."""
    gate = gate_with(clock, max_cost_usd=1)
    finish = asyncio.Event()

    async def stubborn(ticket: Any) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await finish.wait()
        return "late"

    task = await started(gate.acall(costing(0.5), stubborn, charged(0.2)))
    gate.close()
    gate.book_left()
    assert (gate.usage.cost_nanos, gate.usage.presumed.calls) == (dollars(0.5), 1)
    await settle()
    clock.advance(GRACE_SECONDS)
    outcome = await task
    assert (outcome.decision, outcome.stop_reason, gate.usage.presumed.calls) == (Decision.HALT, "aborted", 1)
    finish.set()
    await settle()
    assert (gate.usage.cost_nanos, gate.usage.presumed.calls, gate.in_flight) == (dollars(0.2), 0, ())
    assert gate.get_snapshot().nodes[0].late_result == "late"


async def test_without_a_ceiling_of_its_own_or_without_carving_a_child_shares(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1, max_steps=3)
    for child in (root.child(unlimited()), root.child(unlimited(max_cost_usd=0.9), carve=False)):
        assert account_of(root).reserved == [0] * 7
        assert (await child.acall(TOOL, answer)).decision is Decision.ALLOW
    assert (await root.acall(TOOL, answer)).decision is Decision.ALLOW


async def test_default_ceilings_carve_nothing() -> None:
    with ExecutionContext(Limits()) as root:
        children = [root.child(Limits()) for _ in range(3)]
        assert [child.stop for child in children] == [None] * 3
        assert account_of(root).reserved == [0] * 7


async def test_tool_calls_and_retries_of_which_nothing_is_left_are_shared(clock: TestClock) -> None:
    root = gate_with(clock, max_tool_calls=1, max_retries=0)
    await root.acall(TOOL, answer)
    child = root.child(unlimited(max_tool_calls=2, max_retries=2))
    assert child.stop is None
    assert (await child.acall(CallRequest("llm"), answer)).decision is Decision.ALLOW
    assert (await child.acall(TOOL, answer)).stop_reason == "tool_call_limit_exceeded"


async def test_a_call_inside_a_wrapped_call_may_use_the_retries_that_its_child_carved(clock: TestClock) -> None:
    root = gate_with(clock, max_retries=3)
    child = root.child(unlimited(max_retries=2))

    async def fails() -> None:
        raise ValueError("no")

    async def outer() -> list[Decision]:
        return [(await child.acall_llm(fails)).decision for _ in range(3)]

    outcome = await root.acall_tool(outer)
    assert outcome.value == [Decision.RETRY, Decision.HALT, Decision.HALT]
    assert (child.usage.retries, root.usage.retries) == (2, 2)
    root.close()
    assert account_of(root).reserved == [0] * 7


async def test_what_a_child_keeps_for_its_last_turn_is_said_of_the_ceiling_above(clock: TestClock) -> None:
    root = ExecutionContext(unlimited(max_steps=3), clock=clock)
    child = root.child(unlimited(landing=Landing()))
    for _ in range(2):
        assert (await child.acall(CallRequest("llm"), answer)).decision is Decision.ALLOW
    stop = (await child.acall(CallRequest("tool"), answer)).stop
    assert stop is not None
    assert stop.message == "The whole run reached its ceiling of 3 steps after 2 steps; 1 step kept for the last turn."


async def test_a_landing_child_keeps_its_step_inside_what_it_carved(clock: TestClock) -> None:
    root = gate_with(clock, max_steps=10)
    child = root.child(unlimited(max_steps=3, landing=Landing()))
    assert (account_of(root).reserved[STEPS], account_of(child).reserved[STEPS]) == (3, 1)
    for _ in range(2):
        assert (await child.acall(TOOL, answer)).decision is Decision.ALLOW
    assert (await child.acall(TOOL, answer)).stop_reason == "step_limit_exceeded"
    assert (await child.acall(CallRequest("llm", phase="landing"), answer)).decision is Decision.ALLOW
    assert account_of(root).reserved[STEPS] == 0


# --- split ------------------------------------------------------------------------------------------------------------


def test_split_divides_all_that_is_left_by_weight(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1, max_steps=9)
    root.call(costing(0.2), lambda _: None)
    shares = root.split({"a": 3, "b": 1})
    assert [share.limits.max_cost_nanos for share in shares.values()] == [dollars(0.6), dollars(0.2)]
    assert [share.limits.max_steps for share in shares.values()] == [6, 2]
    for share in shares.values():
        share.close()
    assert account_of(root).reserved == [0] * 7


def test_a_share_of_nothing_is_stopped_from_the_start(clock: TestClock) -> None:
    root = gate_with(clock, max_steps=3, max_retries=1)
    shares = root.split({"much": 1000, "little": 1})
    assert shares["much"].stop is None
    stop = shares["little"].stop
    assert stop is not None
    assert stop.reason == "step_limit_exceeded"


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, True, "3", None])
def test_weights_that_make_no_sense_are_refused_by_name_and_value(clock: TestClock, weight: Any) -> None:
    root = gate_with(clock, max_steps=3)
    with pytest.raises(LimitsError, match="'b'"):
        root.split({"a": 1, "b": weight})
    with pytest.raises(LimitsError, match="nobody"):
        root.split({})
    assert account_of(root).reserved == [0] * 7
    root.close()
    with pytest.raises(ConfigurationError, match="closed"):
        root.split({"a": 1})


@settings(deadline=None, max_examples=100)
@given(
    nanos=st.integers(1, 10**12),
    steps=st.integers(1, 1000),
    weights=st.lists(st.floats(min_value=1e-300, max_value=1e300), min_size=1, max_size=6),
)
def test_shares_never_exceed_what_is_left(nanos: int, steps: int, weights: list[float]) -> None:
    root = gate_with(SYSTEM_CLOCK, max_cost_usd=f"{nanos / 10**9:.9f}", max_steps=steps)
    shares = root.split({str(number): weight for number, weight in enumerate(weights)})
    account = account_of(root)
    assert account.reserved[COST] <= (account.tops[COST] or 0)
    assert account.reserved[STEPS] <= steps
    for share in shares.values():
        share.close()
    assert account.reserved == [0] * 7
    root.close()


# --- exactness --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("EC-033")
@pytest.mark.parametrize("seed", range(6))
def test_sixty_four_threads_over_children_never_fund_more_than_the_parent_has(seed: int) -> None:
    root = gate_with(SYSTEM_CLOCK, max_cost_usd=1, max_steps=400)
    lock, spent = threading.Lock(), [0]

    def agent(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        limits = unlimited(max_cost_usd=rng.choice([0.01, 0.05, 0.9]), max_steps=rng.choice([None, 3, 50]))
        with root.child(limits) as child:
            with child.child(unlimited(max_cost_usd=0.02)) as grandchild:
                calls(grandchild, rng)
            calls(child, rng)

    def calls(gate: ExecutionContext, rng: random.Random) -> None:
        for _ in range(rng.randrange(1, 8)):
            worst = rng.choice([0.001, 0.01, 0.03])
            real = rng.choice([0.0, worst / 2, worst])
            if gate.call(costing(worst), lambda _: None, charged(real)).admitted:
                with lock:
                    spent[0] += dollars(real)

    race(agent)
    account = account_of(root)
    assert root.usage.cost_nanos == spent[0] <= dollars(1)
    assert account.settled[STEPS] <= 400
    assert account.reserved == [0] * 7
    root.close()


def test_threads_that_split_and_carve_at_once_never_get_more_than_there_is() -> None:
    root = gate_with(SYSTEM_CLOCK, max_cost_usd=1)
    children: list[ExecutionContext] = []

    def take(number: int) -> None:
        if number % 8:
            children.append(root.child(unlimited(max_cost_usd=0.05)))
        else:
            children.extend(root.split({"a": 1, "b": 2}).values())

    race(take)
    carved = sum(child.limits.max_cost_nanos or 0 for child in children if child.stop is None)
    assert carved == account_of(root).reserved[COST] <= dollars(1)
    root.close()


def test_wrapped_calls_in_children_stay_under_the_parents_ceiling() -> None:
    root = gate_with(SYSTEM_CLOCK, max_cost_usd=1, max_retries=10)
    for child in root.split({"a": 1, "b": 1}).values():
        while child.wrap_llm_call(lambda: None, WrapOptions(cost_estimate_hint=0.1)) is Decision.ALLOW:
            pass
    assert root.usage.cost_nanos == dollars(1)
    root.close()


async def test_what_happens_below_is_on_record_above_exactly_once(clock: TestClock) -> None:
    heard: list[str] = []
    root = ExecutionContext(unlimited(max_steps=10), clock=clock, on_event=lambda event: heard.append(event.event_type))
    child = root.child(unlimited(max_steps=2), "child")
    below = child.child(unlimited(max_steps=1), "below")
    await below.acall(costing(0), answer)
    assert (await below.acall(costing(0), answer)).stop_reason == "step_limit_exceeded"
    for context in (below, child, root):
        assert [event.event_type for event in context.get_snapshot().events] == ["step_limit_exceeded"]
    root.abort("enough")
    for context in (below, child, root):
        assert [event.event_type for event in context.get_snapshot().events] == ["step_limit_exceeded", "aborted"]
    assert heard == ["step_limit_exceeded", "aborted"]


async def test_a_child_with_a_listener_of_its_own_hears_an_abort_from_above(clock: TestClock) -> None:
    heard: list[str] = []
    root = ExecutionContext(unlimited(), clock=clock)
    root.child(unlimited(), on_event=lambda event: heard.append(event.event_type))
    child = root.child(unlimited(), on_event=lambda event: heard.append(event.event_type))
    root.abort("enough")
    assert heard == ["aborted"]  # the first was collected, and with it closed
    assert child.get_snapshot().aborted
    assert len(root.get_snapshot().events) == 1


@pytest.mark.parametrize("end", ["aborted", "exhausted"])
def test_below_a_context_that_is_over_nothing_is_carved_again(clock: TestClock, end: str) -> None:
    root = gate_with(clock, max_cost_usd=1)
    first = root.child(unlimited(max_cost_usd=1))
    if end == "aborted":
        first.abort("enough")
    else:
        assert not first.call(costing(2), lambda _: None).admitted
    second = root.child(unlimited(max_cost_usd=1))
    below, shares = first.child(unlimited(max_cost_usd=1)), first.split({"a": 1, "b": 1})
    account = account_of(root)
    assert account.settled[COST] + account.reserved[COST] == dollars(1)
    assert not any(each.call(costing(0), lambda _: None).admitted for each in (below, *shares.values()))
    assert below.stop == first.stop
    assert second.call(costing(0), lambda _: None).admitted
