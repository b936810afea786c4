"""A run over many items goes on: what is done stays, what was under way goes on, what failed is begun anew."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.app.written import Written, written
from tests.kit import down
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import TokenUsage
from watchkeeper.runtime.result import ManyResult
from watchkeeper.store.cancelling import cancel
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.tool import tool

TASKS = [f"task {number}" for number in range(5)]
USED = TokenUsage(100, 10)


class Patient(ScriptedModel):
    """Lets other items go on while it answers."""

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Answer a little later."""
        await asyncio.sleep(0)
        return await super().turn(request)


@dataclass
class World:
    """What the tools of an agent do, and which tasks fail."""

    fails: frozenset[str] = frozenset()
    sent: list[str] = field(default_factory=list[str])
    asked: int = 0

    def agent(self, **more: Any) -> Agent[str]:
        """Return an agent that sends a letter for each task."""

        @tool
        def send(task: str) -> str:
            """Send."""
            self.sent.append(task)
            return "sent"

        limits = more.pop("limits", Limits(deadline=None))
        return Agent(Patient(self.step), "Work.", str, tools=[send], limits=limits, **more)

    def step(self, request: ModelRequest) -> Any:
        """Return what the model says."""
        self.asked += 1
        task = next(task for task in TASKS if task in request.transcript[1].text)
        done = any(isinstance(message, ToolMessage) for message in request.transcript)
        if task in self.fails and done:
            return down("auth")
        return Say(f"did {task}", usage=USED) if done else Calls((Call("send", {"task": task}),), usage=USED)


def run(world: World, store: Path, **options: Any) -> ManyResult[str]:
    return world.agent().run_many(TASKS, store=store, **options)


def outputs(result: ManyResult[str]) -> list[str | None]:
    return [each.output for each in result]


def sent_before(lines: Written, count: int) -> Counter[str]:
    """Return the tasks whose sending has a result among the first lines."""
    bodies = [json.loads(line)["body"] for line in lines.with_tag("tool_invoked", count)]
    return Counter(body["params"]["task"] for body in bodies)


@pytest.mark.parametrize("cancelled", [False, True])
def test_it_goes_on_from_every_line(cancelled: bool, tmp_path: Path) -> None:
    with written() as lines:
        undisturbed = run(World(), tmp_path / "whole", concurrency=2)
    assert outputs(undisturbed) == [f"did {task}" for task in TASKS]
    run_id = str(undisturbed.run_id)
    for count in range(lines.place("run_opened") + 1, len(lines.lines)):
        store, world = lines.cut(count, tmp_path / "store"), World()
        ended = count >= lines.place("many_ended")
        if cancelled and not ended:
            with RunStore(store) as opened:
                row = cancel(opened, run_id, by="cleo")
                assert (row.stop and row.stop["reason"], row.is_resumable) == ("cancelled", False)
                assert all(each.ended_at is not None for each in opened.children(run_id))
            if row.items_done == len(TASKS):  # nothing is left to do
                continue
        result = world.agent().resume_many(run_id, TASKS, store=store)
        assert result.ok, (count, result.sentence())
        assert outputs(result) == outputs(undisturbed)
        assert [each.item for each in result] == TASKS
        assert result.run_id == undisturbed.run_id
        before = sent_before(lines, count)
        unknown = len(lines.begun("tool", count)) - before.total()
        assert not {*before} & {*world.sent}, count
        assert before.total() + unknown + len(world.sent) == len(TASKS), count
        interrupted = len(lines.begun("llm", count)) - len(lines.with_tag("model_replied", count))
        assert result.usage.presumed.calls == interrupted
        assert result.usage.model_calls == undisturbed.usage.model_calls + interrupted
        settled = result.usage.tokens.total - result.usage.presumed.tokens.total
        assert settled == undisturbed.usage.tokens.total, count
        with RunStore(store, read_only=True) as stored:
            row = stored.find(run_id)
            assert (row.items_done, row.items, row.stop) == (5, 5, None)
            newest = [each for each in stored.children(run_id) if not each.superseded]
            assert sorted(each.item_index for each in newest if each.item_index is not None) == [0, 1, 2, 3, 4]
            assert all(each.ended_at is not None for each in newest)
            for each in newest:
                again = [event.load() for event in stored.events(each.run_id) if event.tag == "run_resumed"]
                assert {told.item for told in again} <= {each.item}


def test_an_item_that_another_process_has_just_now_is_left_to_it(tmp_path: Path) -> None:
    """Nothing is written of it here, not even in a file of another name."""
    with written() as lines:
        run_id = str(run(World(), tmp_path / "whole", concurrency=1).run_id)
    store = lines.cut(lines.place("tool_invoked"), tmp_path / "cut")
    files = {path.name for path in (store / "runs").iterdir()}
    with RunStore(store) as other:
        (item,) = other.children(run_id)
        with other.visited(item.run_id):
            result = World().agent().resume_many(run_id, TASKS, store=store, concurrency=1)
        assert "a living process works on it" in result.results[0].sentence()
        assert outputs(result)[1:] == [f"did {task}" for task in TASKS[1:]]
        assert files < {path.name for path in (store / "runs").iterdir()}
        assert other.find(item.run_id).is_resumable
    result = World().agent().resume_many(run_id, TASKS, store=store)
    assert (result.ok, str(result.results[0].run_id)) == (True, item.run_id)


def test_what_failed_is_begun_anew_and_what_is_done_is_kept(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = run(World(frozenset({"task 1", "task 3"})), store)
    assert [each.ok for each in first] == [True, False, True, False, True]
    world = World()
    result = world.agent().resume_many(str(first.run_id), TASKS, store=store)
    assert result.ok
    assert outputs(result) == [f"did {task}" for task in TASKS]
    assert sorted(world.sent) == ["task 1", "task 3"]
    assert [each.run_id for each in result if each.item not in ("task 1", "task 3")] == [
        each.run_id for each in first.done
    ]
    assert result.results[0].sentence() == first.results[0].sentence()
    assert result.results[0].usage == first.results[0].usage
    assert result.usage.tokens.total == first.usage.tokens.total + sum(
        result.results[index].usage.tokens.total for index in (1, 3)
    )
    with RunStore(store, read_only=True) as stored:
        rows = stored.children(str(result.run_id))
        assert [row.item for row in rows if row.superseded] == ["task 1", "task 3"]
        assert len(rows) == 7
        (row,) = stored.runs()
        assert (row.items_done, row.sentence()) == (5, result.sentence())
    with pytest.raises(ConfigurationError, match="is done: 5 of 5 items done"):
        world.agent().resume_many(str(first.run_id), TASKS, store=store)


def test_only_those_that_failed_or_only_the_others(tmp_path: Path) -> None:
    limits = Limits(deadline=None, max_tool_calls=3)
    world = World(frozenset({"task 1"}))
    agent = world.agent(limits=limits)
    first = agent.run_many(TASKS, store=tmp_path / "store", concurrency=1)
    assert first.stop is not None
    assert [each.ok for each in first] == [True, False, True, False, False]
    world.fails = frozenset()
    again = Limits(deadline=None)
    run_id, store = str(first.run_id), tmp_path / "store"
    others = agent.resume_many(run_id, TASKS, store=store, only="unstarted", limits=again)
    assert [each.ok for each in others] == [True, False, True, False, True]
    assert others.results[1].sentence() == first.results[1].sentence()
    failed = agent.resume_many(run_id, TASKS, store=store, only="failed", limits=again)
    assert failed.ok
    assert failed.usage.tokens.total > others.usage.tokens.total
    with pytest.raises(ConfigurationError, match="only='some' must be 'failed' or 'unstarted', or None"):
        agent.resume_many(run_id, TASKS, store=store, only="some")  # type: ignore[arg-type]


def test_the_old_limits_hold_over_all_attempts_unless_new_ones_are_given(tmp_path: Path) -> None:
    limits = Limits(deadline=None, max_tool_calls=2)
    world = World()
    agent = world.agent(limits=limits)
    first = agent.run_many(TASKS, store=tmp_path / "store", concurrency=1)
    assert first.stop is not None
    run_id, asked = str(first.run_id), world.asked
    recorded = {file: file.read_bytes() for file in (tmp_path / "store" / "runs").iterdir()}
    again = agent.resume_many(run_id, TASKS, store=tmp_path / "store")
    assert again.stop is not None
    assert again.stop.message.startswith(first.stop.message)
    assert "It goes on under a higher one (limits=Limits(max_tool_calls=...)" in again.stop.message
    assert [(each.item, each.output) for each in again] == [(each.item, each.output) for each in first]
    assert again.results[2].run_id == first.results[2].run_id, "it had begun"
    assert (again.usage, again.run_id, again.limits) == (first.usage, first.run_id, first.limits)
    assert (len(world.sent), world.asked) == (2, asked)
    assert {file: file.read_bytes() for file in (tmp_path / "store" / "runs").iterdir()} == recorded
    fresh = agent.resume_many(run_id, TASKS, store=tmp_path / "store", fresh_limits=True)
    assert len(world.sent) == 4
    assert fresh.stop is not None
    third = agent.resume_many(run_id, TASKS, store=tmp_path / "store", limits=replace(limits, max_tool_calls=3))
    assert third.ok, "what was used before the limits were fresh counts no more"


class SetClock(TestClock):
    """A clock whose wall time can be set."""

    off = timedelta(0)

    def now(self) -> datetime:
        """Return the wall time as it is set."""
        return super().now() + self.off


@pytest.mark.parametrize("hours", [-2, 0, 2], ids=["set back", "left alone", "set on"])
def test_what_counts_since_limits_were_fresh_does_not_depend_on_the_wall_clock(tmp_path: Path, hours: int) -> None:
    clock, world = SetClock(), World(frozenset(TASKS[3:]))
    options: dict[str, Any] = {"store": tmp_path / "store", "clock": clock, "concurrency": 1}
    first = run(world, **options)
    step = world.step

    def set_clock(request: ModelRequest) -> Any:
        """Set the clock while an item works, after it is on record that the limits are fresh."""
        clock.off = timedelta(hours=hours)
        return step(request)

    agent = replace(world.agent(), model=Patient(set_clock))
    fresh = agent.resume_many(str(first.run_id), TASKS, fresh_limits=True, **options)
    counted = fresh.usage.steps - fresh.earlier.usage.steps
    assert counted == 6, "two items, each with a model call, a tool call and a model call that fails"
    asked, tight = world.asked, Limits(max_steps=counted + 1, landing=None, deadline=None)
    third = agent.resume_many(str(first.run_id), TASKS, limits=tight, **options)
    assert third.stop is not None
    assert third.stop.reason == "step_limit_exceeded"
    assert (world.asked, third.usage.steps) == (asked + 1, fresh.usage.steps + 1), "one step was left"


@pytest.mark.parametrize("hours", [-2, 2], ids=["set back", "set on"])
def test_what_a_later_run_of_an_item_did_stands_although_the_clock_was_set(tmp_path: Path, hours: int) -> None:
    clock, world = SetClock(), World(frozenset(TASKS[3:]))
    options: dict[str, Any] = {"store": tmp_path / "store", "clock": clock}
    run_id = str(run(world, **options).run_id)
    clock.off, world.fails = timedelta(hours=hours), frozenset(TASKS[4:])
    second = world.agent().resume_many(run_id, TASKS, **options)
    assert outputs(second) == [*(f"did {task}" for task in TASKS[:4]), None]
    world.fails = frozenset()
    third = world.agent().resume_many(run_id, TASKS, **options)
    assert third.results[3].run_id == second.results[3].run_id
    assert Counter(world.sent) == Counter([*TASKS, *TASKS[3:], TASKS[4]]), "task 3 was done the second time"
    with RunStore(tmp_path / "store") as store:
        rows = store.children(run_id)
    assert Counter(row.item for row in rows if not row.superseded) == Counter(TASKS)
    assert all(row.stop is None for row in rows if not row.superseded)


def test_a_run_that_has_ended_worked_as_long_as_it_measured_although_the_clock_was_set_back(tmp_path: Path) -> None:
    clock, world = SetClock(), World(frozenset(TASKS[3:]))
    step = world.step

    def set_clock(request: ModelRequest) -> Any:
        """Set the clock back once an item is done."""
        clock.advance(60)
        clock.off = timedelta(hours=-5 if len(world.sent) > 1 else 0)
        return step(request)

    agent = replace(world.agent(limits=Limits(deadline="1h")), model=Patient(set_clock))
    first = agent.run_many(TASKS, store=tmp_path / "store", clock=clock, concurrency=1)
    assert first.duration == timedelta(minutes=10)
    world.fails = frozenset()
    again = agent.resume_many(str(first.run_id), TASKS, store=tmp_path / "store", clock=clock)
    assert again.ok
    assert again.duration == timedelta(minutes=14)


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([*TASKS[:2], "another", *TASKS[3:]], "item 3 was 'task 2' and is 'another'"),
        (TASKS[:4], "had 5 items, and 4 are given: 'task 4' is missing"),
        ([*TASKS, "task 5"], "had 5 items, and 6 are given: 'task 5' is new"),
    ],
)
def test_other_items_are_refused(tmp_path: Path, tasks: list[str], said: str) -> None:
    world = World(frozenset({"task 1"}))
    first = run(world, tmp_path / "store")
    with pytest.raises(ConfigurationError, match=said):
        world.agent().resume_many(str(first.run_id), tasks, store=tmp_path / "store")


def test_other_tools_are_refused_and_so_is_the_wrong_kind_of_run(tmp_path: Path) -> None:
    world, store = World(frozenset({"task 1"})), tmp_path / "store"
    first = run(world, store)
    asked = world.asked
    other = Agent(Patient(world.step), "Work.", str, limits=Limits(deadline=None))
    with pytest.raises(ConfigurationError, match="its tools changed since it began"):
        other.resume_many(str(first.run_id), TASKS, store=store)
    with pytest.raises(ConfigurationError, match="is no run of one agent; use resume_many"):
        world.agent().resume(str(first.run_id), store=store)
    with pytest.raises(ConfigurationError, match="is an item of the run"):
        world.agent().resume(str(first.results[1].run_id), store=store)
    assert world.asked == asked
