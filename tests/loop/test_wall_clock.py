"""A suspend and a step of the wall clock, while a deadline runs: tools, children and budget see the same time left."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from watchkeeper import Adapter, Agent, Limits, MarkdownSection, Prompt, PromptTemplate, ToolContext, run, tool
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import Deadline, TestClock
from watchkeeper.core.errors import DeadlineExceededError
from watchkeeper.models import Call, ScriptedModel
from watchkeeper.session.tagging import dump, load


class SteppedClock(TestClock):
    """A clock whose wall time can be set; a machine that sleeps looks like a step forward."""

    off = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.off


def ask(*tools: Any) -> Prompt[str]:
    section = MarkdownSection("Task", "task", "Go.", tools=tools)
    return Prompt(PromptTemplate[str](ns="demo", key="wall", sections=(section,)))


def stepping(clock: SteppedClock, by: timedelta, seen: list[Any]) -> Any:
    @tool
    async def step(*, context: ToolContext) -> str:
        """Set the wall clock."""
        clock.off += by
        seen.append(context)
        return "stepped"

    @tool
    async def look(*, context: ToolContext) -> str:
        """Look at what is left."""
        assert context.deadline is not None
        assert context.budget is not None
        left = (context.deadline.at - clock.now()).total_seconds()
        seen.append((context.remaining_seconds, context.budget.remaining_seconds, left))
        return "seen"

    return step, look


@pytest.mark.spec("FR-003")
@pytest.mark.parametrize("given", ["datetime", "Deadline"])
def test_a_moment_is_over_when_the_wall_clock_says_so(given: str) -> None:
    clock, seen = SteppedClock(), list[Any]()
    at = clock.now() + timedelta(minutes=10)
    model = ScriptedModel([Call("step"), "done"])
    with pytest.raises(DeadlineExceededError, match="by the wall clock, which went ahead by 2h") as caught:
        Adapter(model, clock=clock).evaluate(
            ask(*stepping(clock, timedelta(hours=2), seen)), deadline=at if given == "datetime" else Deadline(at)
        )
    assert len(model.requests) == 1
    assert caught.value.provider_payload == {"deadline": at.isoformat()}


@pytest.mark.parametrize("hours", [-5, -1 / 60])
@pytest.mark.parametrize("moment", [True, False])
def test_a_step_back_gives_no_time_and_all_see_the_same(hours: float, moment: bool) -> None:
    clock, seen = SteppedClock(), list[Any]()
    script: list[Any] = [Call("step"), Call("look"), "done"]
    prompt = ask(*stepping(clock, timedelta(hours=hours), seen))
    until = clock.now() + timedelta(minutes=2)
    result = run(
        prompt, model=ScriptedModel(script), clock=clock, limits=Limits(until if moment else "2m", landing=None)
    )
    assert result.stop is None
    assert seen[1] == (120.0, 120.0, 120.0)


def test_a_step_forward_changes_nothing_for_a_length() -> None:
    clock, seen = SteppedClock(), list[Any]()
    script: list[Any] = [Call("step"), Call("look"), "done"]
    prompt = ask(*stepping(clock, timedelta(hours=3), seen))
    result = run(prompt, model=ScriptedModel(script), clock=clock, limits=Limits("2h", landing=None))
    assert result.stop is None
    assert seen[1] == (7200.0, 7200.0, 7200.0)


def test_a_small_step_forward_brings_a_moment_nearer_for_all() -> None:
    clock, seen = SteppedClock(), list[Any]()
    script: list[Any] = [Call("step"), Call("look"), "done"]
    prompt = ask(*stepping(clock, timedelta(minutes=1), seen))
    limits = Limits(clock.now() + timedelta(minutes=3), landing=None)
    assert run(prompt, model=ScriptedModel(script), clock=clock, limits=limits).stop is None
    assert seen[1] == (120.0, 120.0, 120.0)


@pytest.mark.parametrize("hours", [3, -5])
def test_a_child_of_a_run_with_a_length_has_the_time_that_the_run_has(hours: int) -> None:
    clock = SteppedClock()
    with ExecutionContext(Limits("2h", landing=None), clock=clock) as gate:
        clock.off = timedelta(hours=hours)
        for own in (None, "3h", "30m"):
            with gate.child(Limits(own, landing=None)) as child:
                assert child.deadline is not None
                assert child.deadline.remaining(clock) == timedelta(minutes=30 if own == "30m" else 120)
                assert child.call_tool(lambda: "in time").value == "in time"


def test_a_nested_evaluation_after_a_step_has_its_time() -> None:
    clock = SteppedClock()
    seen: list[float | None] = []

    @tool
    async def nested(*, context: ToolContext) -> str:
        """Evaluate inside."""
        clock.off = timedelta(hours=3)
        inner = Adapter(ScriptedModel([Call("look"), "inner"]), clock=clock)
        return (await inner.evaluate_async(ask(look), deadline=context.deadline)).text

    @tool
    async def look(*, context: ToolContext) -> str:
        """Look."""
        seen.append(context.remaining_seconds)
        return "seen"

    result = run(
        ask(nested), model=ScriptedModel([Call("nested"), "done"]), clock=clock, limits=Limits("2h", landing=None)
    )
    assert (result.stop, seen) == (None, [7200.0])


async def test_what_is_under_way_is_interrupted_soon_after_a_suspend() -> None:
    clock = SteppedClock()
    with ExecutionContext(Limits(clock.now() + timedelta(minutes=10), landing=None), clock=clock) as gate:
        child = gate.child(Limits("9m", landing=None))
        waiting = [asyncio.ensure_future(each.acall_tool(asyncio.Event().wait)) for each in (gate, child)]
        await asyncio.sleep(0)
        clock.off = timedelta(hours=2)
        clock.advance(5)
        outcomes = await asyncio.gather(*waiting)
        assert [outcome.stop_reason for outcome in outcomes] == ["timeout", "timeout"]
        assert gate.stop is not None
        assert gate.stop.reason == "timeout"
        assert child.stop is not None
        assert child.stop.reason == "timeout"


def test_a_moment_and_a_length_together_hold_both() -> None:
    clock = SteppedClock(datetime(2026, 1, 1, tzinfo=UTC))
    with ExecutionContext(Limits(clock.now() + timedelta(hours=1), landing=None), clock=clock) as gate:
        child = gate.child(Limits("30m", landing=None))
        clock.off = timedelta(minutes=59)
        assert child.call_tool(lambda: 1).value == 1
        assert child.budget_status().remaining_seconds == 60
        clock.off = timedelta(minutes=61)
        assert child.call_tool(lambda: 1).stop_reason == "timeout"


def test_a_stored_deadline_is_the_moment_alone() -> None:
    clock = SteppedClock()
    deadline = Deadline.after("10m", clock)
    read = load(dump(deadline))
    assert read == deadline
    assert (deadline.until, read.until) == (600.0, None)
    clock.off = timedelta(minutes=1)
    assert (deadline.remaining(clock), read.remaining(clock)) == (timedelta(minutes=10), timedelta(minutes=9))


@pytest.mark.spec("FR-003")
@pytest.mark.parametrize("days", [1, -1])
def test_a_clock_that_was_set_while_a_run_worked_does_not_count_when_it_goes_on(tmp_path: Path, days: int) -> None:
    clock, seen = SteppedClock(), list[Any]()
    agent = Agent(
        ScriptedModel([Call("step"), "late", "done"]),
        "Work.",
        str,
        tools=[*stepping(clock, timedelta(days=days), seen)],
        limits=Limits(deadline="1h", max_turns=1),
    )
    first = agent.run("go", store=tmp_path / "store", clock=clock)
    assert first.stop is not None
    clock.advance(60)
    again = agent.resume(
        str(first.run_id), store=tmp_path / "store", clock=clock, limits=Limits(deadline="1h", max_turns=9)
    )
    assert again.ok, again.sentence()
    assert isinstance(again.limits.deadline, timedelta)
    assert timedelta(minutes=58) < again.limits.deadline <= timedelta(hours=1)
