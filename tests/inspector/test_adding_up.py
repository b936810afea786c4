"""Figures add up, over stores of real runs: calls to the run, rows to the total, gauges to their limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inspector.support import PRICES, fill, fill_many, look, looks, template
from tests.kit import down
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.resume import resume
from watchkeeper.app.run import run
from watchkeeper.blocks.contained import contained
from watchkeeper.cli.report import line_of
from watchkeeper.core.clock import TestClock
from watchkeeper.core.meters import TOLD
from watchkeeper.inspector.calls import NO_AMOUNTS, Amounts
from watchkeeper.inspector.run_view import RunView, run_view
from watchkeeper.inspector.runs_view import runs_view
from watchkeeper.judging import LLMCompletionVerifier
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.store.run_store import RunStore
from watchkeeper.store.selection import totals_of
from watchkeeper.subagents import PromptRegistry, PromptSubagentToolsSection
from watchkeeper.tools.tool import tool

STEP = {"mode": "plan_step", "plan_step_id": "2", "prompt_ns": "tests", "prompt_key": "plain", "instructions": "Look."}


def priced(script: Any) -> ScriptedModel:
    """Return a model that costs something."""
    return ScriptedModel(script, free=False)


def agent(*tools: Any, sections: tuple[Any, ...] = (), **details: Any) -> PromptTemplate[str]:
    """Return an agent with tools."""
    task = MarkdownSection(title="Task", key="task", template="Find the bug.", tools=tools)
    return PromptTemplate[str](ns="tests", key="boss", sections=(task, *sections), **details)


def tried_again(store: Path) -> None:
    """Store a run whose provider failed, billed and not, before it answered."""
    script = [down(), Call("look", {"path": "a"}), down(billed=True), down(), Say("done")]
    run(template(), model=priced(script), prices=PRICES, store=store, clock=TestClock())


def with_subagents(store: Path) -> None:
    """Store a run with subagents, one of which its limits stop."""
    plain = PromptTemplate[str](ns="tests", key="plain", sections=(MarkdownSection("Role", "role", "You search."),))
    section = PromptSubagentToolsSection(PromptRegistry(plain), model=looks("a", "b", "c", "d"))
    tasks = {"tasks": [STEP, {**STEP, "plan_step_id": "3"}]}
    script = [Call("dispatch_subagent", STEP), Call("dispatch_subagents", tasks), Say("done")]
    limits = Limits(max_cost_usd=1, max_steps=14, max_tool_calls=8)
    run(agent(look, sections=(section,)), model=priced(script), prices=PRICES, limits=limits, store=store)


def judged(store: Path) -> None:
    """Store a run whose answer a judge looks at."""
    script = ["a promise", Say('{"met": [], "unmet": []}'), "done", Say("no verdict")]
    run(
        agent(task_completion_checker=LLMCompletionVerifier()),
        model=priced(script),
        prices=PRICES,
        limits=Limits(max_cost_usd=1),
        store=store,
    )


def inside_a_tool(store: Path) -> None:
    """Store a run whose tool starts another run and a block, with and without records of their own."""

    @tool
    def helper(kind: str) -> str:
        """Ask others."""
        if kind == "block":
            with contained(max_steps=5, store=store):
                return str(run(template("inner"), model=looks("a"), prices=PRICES, store=store).output)
        where = store if kind == "stored" else None
        return str(run(template("inner"), model=looks("a"), prices=PRICES, store=where).output)

    script = [Call("helper", {"kind": kind}) for kind in ("stored", "not stored", "block")]
    run(agent(helper), model=priced([*script, Say("done")]), prices=PRICES, store=store)


def side_by_side(store: Path) -> None:
    """Store a run that calls tools side by side until a limit stops it."""
    both = Calls((Call("look", {"path": "a"}), Call("look", {"path": "bad"}), Call("look", {"path": "b"})))
    run(template(), model=priced([both] * 9), prices=PRICES, limits=Limits(max_tool_calls=7), store=store)


def stopped_by_each_limit(store: Path) -> None:
    """Store runs that each numeric limit has stopped."""
    for limits in (
        Limits(max_cost_usd="0.002", min_output_tokens=1, landing=None),
        Limits(max_total_tokens=20_000),
        Limits(max_output_tokens=5_000),
        Limits(max_input_tokens=9_000),
        Limits(max_turns=2),
        Limits(max_steps=4),
    ):
        run(template(), model=looks(*"abcdefghi"), prices=PRICES, limits=limits, store=store)


def resumed(store: Path) -> None:
    """Store a run that goes on with more."""
    first = run(template(), model=looks(*"abcd"), prices=PRICES, limits=Limits(max_steps=4), store=store)
    again = looks("e", "f")
    resume(str(first.run_id), template(), model=again, prices=PRICES, store=store, limits=Limits(max_steps=20))


STORES: tuple[Callable[[Path], Any], ...] = (
    *(fill, fill_many, tried_again, with_subagents, judged, inside_a_tool, side_by_side, stopped_by_each_limit),
    resumed,
)


def used_by(view: RunView, since: float = 0.0) -> Amounts:
    """Return what the calls have used, or those that ended after a moment."""
    total = NO_AMOUNTS
    for node in view.nodes:
        if (node.end or node.begin) >= since:
            total = total.plus(node.used)
    return total


@pytest.mark.parametrize("written", STORES, ids=lambda written: written.__name__)
def test_everything_adds_up(tmp_path: Path, written: Callable[[Path], Any]) -> None:
    store_path = tmp_path / "s"
    written(store_path)
    with RunStore(store_path, read_only=True) as store:
        everything, _ = store.everything()
        for stored in everything:
            view = run_view(store, stored.run_id, line_of)
            assert stored.usage is not None
            assert view.damage == ""
            used, tokens = used_by(view), stored.usage["tokens"]
            assert (used.input_tokens, used.output_tokens) == (tokens["input_tokens"], tokens["output_tokens"])
            assert used.cost_nanos == stored.cost_nanos
            if stored.items is None:
                counted = {name: stored.usage[name] for name in ("steps", "tool_calls", "retries")}
                assert {name: getattr(used, name) for name in counted} == counted
            assert all(node.end is not None and node.end >= node.begin for node in view.nodes)
            for gauge in view.gauges:
                if gauge.used is not None and gauge.limit is not None and gauge.left:
                    assert gauge.used + gauge.held + gauge.left == pytest.approx(gauge.limit)
                meter = next((meter for meter in TOLD if meter.field == gauge.key and meter.shared), None)
                if meter is not None and stored.items is None:
                    assert gauge.used == used_by(view, view.since).by_field()[gauge.key]
        rows, totals = runs_view(store), totals_of(store.runs(-1))
        assert sum(row.cost_nanos or 0 for row in rows.rows) == rows.cost_nanos == totals.cost_nanos


def test_after_fresh_limits_only_what_comes_later_counts_for_them(tmp_path: Path) -> None:
    first = run(template(), model=looks(*"abcd"), prices=PRICES, limits=Limits(max_steps=4), store=tmp_path / "s")
    again = looks("e", "f")
    resume(str(first.run_id), template(), model=again, prices=PRICES, store=tmp_path / "s", fresh_limits=True)
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = run_view(store, str(first.run_id), line_of)
    used, since = used_by(view), used_by(view, view.since)
    assert (used.input_tokens, since.input_tokens) == (600, 300)
    assert since.steps == 4
    assert view.unlisted == ""
