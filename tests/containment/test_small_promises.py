"""What a chain shows and takes: refusals, overruns, views, metadata, retries, charges that come too late."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.containment.gates import AfterItBegan, until_other_thread
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import CALL_TIMEOUT, Ticket
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.shield.decision import ChainMetadata, Decision, SafetyEvent
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.shield.usage_hooks import BudgetWindowHook

PLENTY = ExecutionConfig(max_cost_usd=1, max_steps=100, max_retries_total=5, timeout_ms=0)


def types(events: Any) -> list[str]:
    return [event.event_type for event in events]


@pytest.mark.spec("EC-003", "EC-029")
def test_a_stop_is_one_event_and_every_refusal_is_counted() -> None:
    with ExecutionContext(ExecutionConfig(1, 2, 5, 0)) as ctx:
        for _ in range(7):
            ctx.wrap_tool_call(lambda: None)
        seen = ctx.get_snapshot()
    assert (types(seen.events), seen.calls_refused) == (["step_limit_exceeded"], 5)
    assert [node.status for node in seen.nodes] == ["ok"] * 2 + ["halted"] * 5


@pytest.mark.spec("EC-008")
async def test_a_call_that_overruns_its_own_time_out_is_an_event() -> None:
    clock, told = TestClock(), list[SafetyEvent]()
    with ExecutionContext(PLENTY, clock=clock, on_event=told.append) as ctx:

        async def slow() -> None:
            await clock.sleep(3600)

        outcome = await ctx.acall_tool(slow, WrapOptions("archive", timeout_ms=50))
        assert (outcome.decision, outcome.stop_reason) == (Decision.RETRY, CALL_TIMEOUT)
        assert (types(told), told[0].decision, told[0].hook) == ([CALL_TIMEOUT], Decision.RETRY, "ExecutionContext")
        assert "archive did not finish" in told[0].reason
        assert types(ctx.get_snapshot().events) == [CALL_TIMEOUT]


@pytest.mark.spec("EC-008")
async def test_options_of_a_call_never_lift_the_limits_of_the_chain() -> None:
    clock = TestClock()
    with ExecutionContext(ExecutionConfig(1, 100, 1, timeout_ms=1000), clock=clock) as ctx:

        def fail() -> None:
            raise ConnectionError("down")

        generous = WrapOptions("ask", timeout_ms=60_000, retry_policy_override=50)
        assert ctx.call_llm(fail, generous).decision is Decision.HALT

        async def timeout(ticket: Ticket) -> float | None:
            return ticket.timeout

    with ExecutionContext(ExecutionConfig(1, 100, 1, timeout_ms=1000), clock=clock) as ctx:
        assert (await ctx.acall_llm(timeout, generous)).value == 1.0


@pytest.mark.spec("EC-027", "EC-036")
def test_the_event_of_a_full_window_names_its_hook() -> None:
    shield = ShieldPipeline(pre_dispatch=BudgetWindowHook(1, degrade_threshold=1.0))
    with ExecutionContext(PLENTY, shield) as ctx:
        ctx.wrap_llm_call(lambda: None)
        assert ctx.wrap_llm_call(lambda: None) is Decision.HALT
        event = ctx.get_snapshot().events[0]
    assert (event.event_type, event.hook) == ("provider_rate_limit", "BudgetWindowHook")


@pytest.mark.spec("EC-020")
def test_views_of_a_snapshot_can_be_added_copied_and_compared() -> None:
    with ExecutionContext(PLENTY) as ctx:
        for _ in range(3):
            ctx.wrap_tool_call(lambda: None)
        nodes, again = ctx.get_snapshot().nodes, ctx.get_snapshot().nodes
    both: Any = nodes
    assert nodes == again
    assert both == list(nodes)
    assert both == tuple(nodes)
    one = [1]
    assert both + one == [*nodes, 1]
    assert one + both == [1, *nodes]
    assert both + again == [*nodes, *nodes]
    mine = both.copy()
    mine.clear()
    assert len(nodes) == 3


@pytest.mark.spec("EC-006")
@pytest.mark.parametrize("ids", [(None, None), ("", "chain"), ("request", None), (1, "chain")])
def test_a_chain_without_ids_is_refused(ids: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigurationError, match="_id="):
        ChainMetadata(*ids)


@pytest.mark.spec("EC-006")
def test_tags_cannot_be_changed() -> None:
    given = {"env": "prod"}
    metadata = ChainMetadata("request", "chain", tags=given)
    given["env"] = "forged"
    assert metadata.tags == {"env": "prod"}
    with pytest.raises(TypeError):
        metadata.tags["env"] = "forged"  # type: ignore[index]
    with pytest.raises(ConfigurationError, match="tags"):
        ChainMetadata("request", "chain", tags=["prod"])  # type: ignore[arg-type]


@pytest.mark.spec("EC-001")
async def test_few_retries_stop_no_call_that_succeeds() -> None:
    running, most = 0, 0

    async def healthy() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return "fine"

    with ExecutionContext(ExecutionConfig(1, 100, 2, 0)) as ctx:
        outcomes = await asyncio.gather(*(ctx.acall_tool(healthy) for _ in range(16)))
        assert {outcome.decision for outcome in outcomes} == {Decision.ALLOW}
        assert ctx.get_snapshot().retries_used == 0
    assert most == 2  # all of them could fail, and two failures are allowed


@pytest.mark.spec("EC-018")
def test_a_charge_after_the_end_of_the_call_is_refused() -> None:
    tickets: list[Ticket] = []

    def keep(ticket: Ticket) -> None:
        tickets.append(ticket)

    with ExecutionContext(PLENTY) as ctx:
        ctx.call_llm(keep, WrapOptions("ask", cost_estimate_hint=0.1))
        with pytest.raises(ConfigurationError, match="ask is over"):
            tickets[0].charge(0.5)
        assert ctx.get_snapshot().cost_usd_accumulated == 0.1


@pytest.mark.spec("EC-018")
def test_work_that_the_gate_has_let_go_of_may_charge_until_it_ends() -> None:
    clock, go_on = AfterItBegan(), threading.Event()
    tickets: list[Ticket] = []

    def slow(ticket: Ticket) -> str:
        tickets.append(ticket)
        clock.begun.set()
        go_on.wait(30)
        ticket.charge(0.25)
        return "late"

    with ExecutionContext(PLENTY, clock=clock) as ctx:
        slow_call = WrapOptions("ask", cost_estimate_hint=0.1, timeout_ms=10)
        assert ctx.wrap_llm_call(slow, slow_call) is Decision.RETRY
        assert ctx.get_snapshot().cost_usd_accumulated == 0.1
        go_on.set()
        until_other_thread(lambda: ctx.get_snapshot().nodes[0].late_result == "late")
        assert ctx.get_snapshot().cost_usd_accumulated == 0.25
        with pytest.raises(ConfigurationError, match="over"):
            tickets[0].charge(0.5)
