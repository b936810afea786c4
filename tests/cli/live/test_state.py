"""What the live view knows of a run: the same as its result says at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from watchkeeper import Agent, Limits, ModelPrice, Tool, tool
from watchkeeper.cli.live.state import Follower, View
from watchkeeper.core.clock import TestClock
from watchkeeper.models import Call, Say, ScriptedModel
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import ObserverConfig, ObserverContext, ObserverTrigger
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session


def as_it_is(moment: datetime) -> datetime:
    return moment


class Watched:
    """A follower, and what it saw after each event."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.follower = Follower(self.clock, as_it_is)
        self.views: list[View] = []
        self.advised = threading.Event()

    @property
    def options(self) -> dict[str, Any]:
        return {"on_record": self.take, "on_open": self.follower.opened, "clock": self.clock, "store": None}

    def take(self, run_id: UUID, envelope: Envelope) -> None:
        self.follower.take(run_id, envelope.event)
        view = self.follower.seen()
        if view is not None:
            self.views.append(view)
            if view.advice is not None:
                self.advised.set()


class Grumbler:
    """An observer that always warns."""

    name = "Grumbler"

    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        return True

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment:
        return Assessment("Grumbler", "It goes badly.", severity="warning")


def agent_of(steps: Callable[[Any], Any] | list[Any], clock: TestClock, *tools: Tool, **more: Any) -> Agent[str]:
    @tool
    def look(path: str) -> str:
        """Look at a path, for ten seconds."""
        clock.advance(10)
        return path

    limits = Limits(deadline="10m", max_steps=20, max_total_tokens=50_000)
    model = ScriptedModel(steps)
    return Agent(model, "Be brief.", str, tools=[look, *tools], limits=limits, name="brief", **more)


def test_of_one_run_it_knows_limits_step_advice_and_end() -> None:
    watched = Watched()
    seen: list[View] = []

    @tool
    def peek() -> str:
        """Look at the view while a tool is under way."""
        assert watched.advised.wait(60)
        watched.clock.advance(3)
        view = watched.follower.seen()
        assert view is not None
        seen.append(view)
        return "peeked"

    steps = [*(Call("look", {"path": str(number)}) for number in range(4)), Call("peek", {}), Say("done")]
    observer = ObserverConfig(Grumbler(), ObserverTrigger(on_every_call=True))
    agent = agent_of(steps, watched.clock, peek, observers=[observer])
    result = agent.run("Go", **watched.options)
    (view,) = seen
    (call,) = view.under_way
    assert (call.what, call.seconds) == ("tool", 3.0)
    assert "peek" in call.name
    assert view.end is not None
    assert view.end[0] == "steps"
    assert view.advice is not None
    assert (view.advice.source, view.advice.severity) == ("Grumbler", "warning")
    last = watched.views[-1]
    assert (last.ended, last.under_way, last.end, last.items) == ("done", (), None, None)
    used = {gauge.limit: gauge.used for gauge in last.gauges}
    assert used["max_steps"] == result.usage.steps
    assert used["max_total_tokens"] == result.usage.tokens.total
    assert used["max_turns"] == result.turns
    assert last.cost_nanos == result.usage.cost_nanos
    assert all(gauge.reserved == 0 for gauge in last.gauges)


def test_below_five_calls_no_end_is_projected() -> None:
    watched = Watched()
    agent_of([Call("look", {"path": "a"}), Say("done")], watched.clock).run("Go", **watched.options)
    assert watched.views
    assert all(view.end is None for view in watched.views)


def test_of_many_items_it_counts_what_is_done_failed_and_left() -> None:
    watched = Watched()

    def answer(request: Any) -> Any:
        return Say("") if any("bad" in str(each) for each in request.transcript) else Say("good")

    agent = agent_of(answer, watched.clock)
    many = agent.run_many(["good 1", "bad 2", "good 3"], concurrency=1, **watched.options)
    counts = [(each.items.done, each.items.failed, each.items.left) for each in watched.views if each.items is not None]
    assert counts[0] == (0, 0, 3)
    assert counts[-1] == (len(many.done), len(many.not_done), 0) == (2, 1, 0)
    under_way = {each.name for view in watched.views for each in view.under_way}
    assert under_way == {"good 1", "bad 2", "good 3"}
    assert watched.views[-1].ended == "2 of 3 done"


def test_after_fresh_limits_the_cost_is_that_of_all_attempts_and_gauges_are_those_of_the_limits(tmp_path: Path) -> None:
    options: Any = {"store": tmp_path / "store", "prices": {"scripted": ModelPrice.per_million(10, 30)}}
    watched = Watched()
    agent = agent_of(lambda request: Call("look") if request.tool_choice != "none" else Say("so far"), watched.clock)
    agent = replace(agent, limits=Limits(max_turns=3, max_cost_usd=1))
    first = agent.run("go", **options)
    again = agent.resume(str(first.run_id), fresh_limits=True, **{**watched.options, **options})
    last = watched.views[-1]
    assert last.cost_nanos == again.usage.cost_nanos == 2 * (first.usage.cost_nanos or 0)
    assert [gauge.used for gauge in last.gauges if gauge.column == "cost_nanos"] == [first.usage.cost_nanos]


def test_before_the_run_begins_there_is_nothing_to_see() -> None:
    assert Watched().follower.seen() is None


def test_events_cost_the_run_no_more_than_a_note() -> None:
    """A follower only notes: nothing is drawn, and no figure is read, before somebody looks."""
    watched = Watched()
    taken: list[bool] = []

    def take(run_id: UUID, envelope: Envelope) -> None:
        watched.follower.take(run_id, envelope.event)
        taken.append(watched.follower.changed)

    options: dict[str, Any] = {**watched.options, "on_record": take}
    agent_of([Say("done")], watched.clock).run("Go", **options)
    assert taken[0]
    assert watched.views == []
