"""After fresh limits every figure is that of all attempts, all sums agree, and gauges show what the limits count."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest

from tests.app.test_resume_below import World as Below
from tests.app.written import Written, written
from tests.cli.support import CommandLine
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.core.usage import NANOS_PER_USD, ModelPrice, TokenUsage
from watchkeeper.inspector.gauges import gauges_of, use_of
from watchkeeper.store.cancelling import cancel
from watchkeeper.store.figures import figures_of
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.tool import tool

PRICE: Final = ModelPrice.per_million(10, 30)
A_CALL: Final = PRICE.cost(TokenUsage(100, 20))
LIMITS: Final = Limits(deadline=None, max_turns=3, max_total_tokens=100_000, max_cost_usd=1)
WIDE: Final = replace(LIMITS, max_turns=30)


class World:
    """An agent that looks eight times, and how often its model was asked."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.asked = 0
        self.looked: list[int] = []

    def agent(self) -> Agent[str]:
        @tool
        def look(number: int) -> str:
            """Look."""
            self.looked.append(number)
            return f"saw {number}"

        def step(request: ModelRequest) -> Any:
            self.asked += 1
            done = sum(isinstance(message, ToolMessage) for message in request.transcript)
            return Call("look", {"number": done}) if request.tool_choice != "none" and done < 8 else Say("so far")

        return Agent(ScriptedModel(step), "Look.", str, tools=[look], limits=LIMITS)

    def run(self) -> Any:
        return self.agent().run("go", store=self.store, prices={"scripted": PRICE})

    def resume(self, run_id: str, **options: Any) -> Any:
        return self.agent().resume(run_id, store=self.store, prices={"scripted": PRICE}, **options)


def figures(cli: CommandLine, store: Path, run_id: str) -> tuple[int, int, float]:
    """Return cost, tokens and seconds of a run, once every command has said the same."""
    with RunStore(store, read_only=True) as opened:
        run = opened.find(run_id)
    (row,) = json.loads(cli("runs", "--json", "--store", store).out)
    report = json.loads(cli("report", "--json", "--store", store).out)
    (prompt,) = report["prompts"]
    cost = {Decimal(each["cost_usd"]) for each in (row, report["totals"], prompt, *report["models"])}
    assert cost == {Decimal(run.cost_nanos or 0) / NANOS_PER_USD}
    assert row["usage"]["cost_nanos"] == run.cost_nanos
    tokens = sum(model["input_tokens"] + model["output_tokens"] for model in report["models"])
    assert row["tokens"] == report["totals"]["tokens"] == tokens == run.tokens
    assert sum(model["calls"] for model in report["models"]) == row["usage"]["model_calls"]
    took = run.seconds or 0.0
    assert report["totals"]["seconds"] == took
    assert row["duration_seconds"] == round(took, 3)
    shown = cli("show", run_id, "--store", store).out.splitlines()
    assert shown[-1] == " ".join(run.sentence().split())
    return run.cost_nanos or 0, run.tokens or 0, took


def counted(store: Path, run_id: str) -> dict[str, float | None]:
    """Return what the gauges of a run say is used."""
    with RunStore(store, read_only=True) as opened:
        run = opened.find(run_id)
    return {gauge.key: gauge.used for gauge in gauges_of({**(run.ceilings or {}), "max_turns": 3}, use_of(run))}


def test_every_figure_is_that_of_all_attempts(tmp_path: Path, cli: CommandLine) -> None:
    world = World(tmp_path / "store")
    first = world.run()
    run_id = str(first.run_id)
    assert (first.stop.reason, first.turns) == ("turn_limit_exceeded", 3)
    assert figures(cli, world.store, run_id)[0] == world.asked * A_CALL == first.usage.cost_nanos
    asked, seconds = world.asked, first.duration.total_seconds()
    for _ in range(2):
        stopped = world.resume(run_id, fresh_limits=True)
        used = world.asked - asked
        assert figures(cli, world.store, run_id)[0] == world.asked * A_CALL == stopped.usage.cost_nanos
        assert stopped.earlier.usage.cost_nanos == asked * A_CALL
        assert stopped.duration.total_seconds() > seconds
        assert counted(world.store, run_id) == {
            "max_cost_usd": used * A_CALL,
            "max_total_tokens": used * 120,
            "max_turns": 3,
            "max_retries": 0,
        }
        assert (stopped.turns, stopped.usage.tool_calls) == (len(world.looked) + 1, len(world.looked))
        same = world.resume(run_id)
        assert (same.usage, same.turns, same.earlier) == (stopped.usage, stopped.turns, stopped.earlier)
        asked, seconds = world.asked, stopped.duration.total_seconds()
    done = world.resume(run_id, limits=WIDE)
    assert done.ok
    assert figures(cli, world.store, run_id)[0] == world.asked * A_CALL == done.usage.cost_nanos
    assert world.looked == [*range(8)]
    data = done.as_data()
    (row,) = json.loads(cli("runs", "--json", "--store", world.store).out)
    assert row["earlier"] == data["earlier"]
    assert [row[name] for name in ("usage", "turns", "cost_usd")] == [
        data[each] for each in ("usage", "turns", "cost_usd")
    ]
    assert data["sentence"] in cli("show", run_id, "--store", world.store).out


def test_a_run_whose_limits_were_never_fresh_has_nothing_earlier(tmp_path: Path, cli: CommandLine) -> None:
    world = World(tmp_path / "store")
    stopped = world.run()
    done = world.resume(str(stopped.run_id), limits=WIDE)
    (row,) = json.loads(cli("runs", "--json", "--store", world.store).out)
    assert "earlier" not in row
    assert "earlier" not in done.as_data()
    assert counted(world.store, str(stopped.run_id))["max_cost_usd"] == world.asked * A_CALL == done.usage.cost_nanos


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, str]:
    """The lines of a run that was stopped, and went on with fresh limits, and its id."""
    world = World(tmp_path_factory.mktemp("attempts") / "store")
    with written() as lines:
        run_id = str(world.run().run_id)
        world.resume(run_id, fresh_limits=True)
    return lines, run_id


@pytest.mark.parametrize("options", [{}, {"fresh_limits": True}], ids=["resumed", "fresh"])
def test_the_sums_agree_wherever_the_process_died_and_count_every_call(
    attempts: tuple[Written, str], tmp_path: Path, cli: CommandLine, options: dict[str, Any]
) -> None:
    lines, run_id = attempts
    for count in range(lines.place("run_opened") + 1, len(lines.lines), 3 if options else 2):
        world = World(lines.cut(count, tmp_path / "store"))
        replies, begun = len(lines.with_tag("model_replied", count)), len(lines.begun("llm", count))
        is_dead = json.loads(cli("runs", "--json", "--store", world.store).out)[0]["ended_at"] is None
        if is_dead and not options:
            assert cli("cancel", run_id, "--store", world.store).code == 0
            cost, tokens, _ = figures(cli, world.store, run_id)
            assert cost >= replies * A_CALL
            assert (cost > replies * A_CALL) == (begun > replies)
            assert tokens >= replies * 120
        result = world.resume(run_id, limits=WIDE, **options)
        assert result.ok
        cost, _, _ = figures(cli, world.store, run_id)
        assert cost == result.usage.cost_nanos
        assert cost >= (replies + world.asked) * A_CALL
        assert (cost == (replies + world.asked) * A_CALL) == (begun == replies)
        assert result.usage.model_calls == begun + world.asked


def test_the_figures_of_many_items_are_those_of_all_attempts(tmp_path: Path, cli: CommandLine) -> None:
    world = World(tmp_path / "store")
    items = ["a", "b", "c", "d"]
    limits = Limits(deadline=None, max_tool_calls=10)
    options: Any = {"store": world.store, "prices": {"scripted": PRICE}, "concurrency": 1, "each": WIDE}

    def agent() -> Agent[str]:
        return replace(world.agent(), limits=limits)

    first = agent().run_many(items, **options)
    run_id = str(first.run_id)
    assert first.stop is not None
    again = first
    for attempt in range(3):
        asked = world.asked
        again = agent().resume_many(run_id, items, fresh_limits=True, **options)
        (row,) = json.loads(cli("runs", "--json", "--store", world.store).out)
        report = json.loads(cli("report", "--json", "--store", world.store).out)
        below = json.loads(cli("runs", "--json", "--parent", run_id, "--store", world.store).out)
        spent = Decimal(world.asked * A_CALL) / NANOS_PER_USD
        costs = [Decimal(each["cost_usd"]) for each in (row, report["totals"], *report["models"])]
        assert costs == [spent] * 3, attempt
        assert sum(Decimal(each["cost_usd"]) for each in below) == spent == again.cost
        assert counted(world.store, run_id)["max_tool_calls"] == again.usage.tool_calls - again.earlier.usage.tool_calls
        assert again.earlier.usage.cost_nanos == asked * A_CALL
    assert again.ok


@pytest.mark.parametrize("options", [{}, {"fresh_limits": True}], ids=["resumed", "fresh"])
def test_the_sums_agree_with_subagents_summaries_and_judges_that_were_under_way(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    below = Below()
    given: Any = {"prices": {"one": PRICE, "two": PRICE}}
    with written() as lines:
        run_id = str(below.agent().run("go", store=tmp_path / "whole", **given, **below.options()).run_id)
    for count in range(lines.place("run_opened") + 1, len(lines.lines), 7):
        store, below = lines.cut(count, tmp_path / "store"), Below()
        if options:
            with RunStore(store) as opened:
                cancel(opened, run_id, by="cleo")
        result = below.agent().resume(run_id, store=store, **given, **below.options(), **options)
        with RunStore(store, read_only=True) as opened:
            everything, activities = opened.everything()
            run = opened.find(run_id)
        summed = figures_of([run], everything, activities)
        models = summed.activity.models.values()
        assert sum(use.cost_nanos for use in models) == summed.totals.cost_nanos == run.cost_nanos, count
        assert sum(use.calls for use in models) == result.usage.model_calls, count
        assert result.usage.cost_nanos == run.cost_nanos
