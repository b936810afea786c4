"""``report``: what stored runs come to, and that its figures are those of the runs."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.cli.support import CommandLine
from tests.store.test_run_store import START, file_of, log
from watchkeeper.cli.console import PlainConsole
from watchkeeper.cli.stored.figures import print_figures
from watchkeeper.core.errors import Stop
from watchkeeper.core.ids import SYSTEM_IDS, root_run_context
from watchkeeper.core.messages import AssistantMessage
from watchkeeper.core.usage import TokenUsage, Usage
from watchkeeper.prompt.advice import Assessment
from watchkeeper.runtime.advice_events import ObserversRan, SourceRan
from watchkeeper.runtime.events import ManyEnded, ManyStarted, ModelFailed, ModelReplied, RunEnded, RunStarted
from watchkeeper.store.figures import figures_of
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import ToolResult

GOLDEN = Path(__file__).parent / "golden"
EVIL = "=cmd|' /C calc'!A0\x1b]52;c;x\x07\n2 runs: 2 done"
SMALL = TokenUsage(100, 20)
FOLDER = ("-p", "folder=inbox")


def replied(number: int, model: str = "big", nanos: int | None = 5_000_000) -> ModelReplied:
    """Return an answer."""
    return ModelReplied(number, AssistantMessage("x"), "stop", SMALL, nanos, model, f"n{number}", 1500.0, False, START)


def invoked(name: str, outcome: Any = "ok", took: float = 250.0, attempt: int = 1) -> ToolInvoked:
    """Return an attempt at a tool call."""
    result = ToolResult.ok("x", "x")
    given: tuple[Any, ...] = (name, {}, result, None, START, None, "x", "c", UUID(int=1), outcome, took, attempt)
    return ToolInvoked("ns/key", "fake", *given)


def begun(prompt: str, *, item: int | None = None, parent: UUID | None = None) -> RunStarted:
    """Return the beginning of a run."""
    context = root_run_context(SYSTEM_IDS.uuid(), SYSTEM_IDS)
    label = None if item is None else f"item {item}"
    return RunStarted(context, prompt, "fake:big", "none", None, START, label, parent, item_index=item)


def ended(run_id: UUID, calls: int, nanos: int | None, stop: Any = "", verdict: Any = "unchecked") -> RunEnded:
    """Return the end of a run after some answers."""
    usage = Usage(TokenUsage(100 * calls, 20 * calls), nanos, model_calls=calls, steps=calls, retries=1)
    why = Stop(stop, "ledger", "It was stopped.") if stop else None
    at = START + timedelta(minutes=1)
    return RunEnded(run_id, why, None, None, "", verdict, usage, 60_000.0, None, at)


@pytest.fixture
def night(tmp_path: Path) -> Iterator[RunStore]:
    """Return a store with a night's runs: three alone, one over four items, and one that goes on."""
    alone, cut, odd, many, first, again, second, open_ = (UUID(int=number, version=4) for number in range(1, 9))
    advice = Assessment(observer_name="stall", summary="s", severity="caution")
    ran = ObserversRan(1, (SourceRan("stall", "advised", advice), SourceRan("drift", "failed")), START, ("stall",))
    failed = ModelFailed(2, 1, "rate_limit", "slow down", 1.0, "n9", START, "fake:big")
    given = ("batch/sort", "fake:small", "none", ("item 0", "item 1", "item 2", "item 3"), 2, START)
    together = Usage(TokenUsage(300, 60), 3_000_000, model_calls=3, steps=3, retries=2)
    with RunStore(tmp_path / "night") as store:
        calls = (invoked("search"), invoked("search", "crashed", 9000.0), invoked("search", attempt=2), ran)
        store.append(log(alone, begun("ns/triage"), replied(1), *calls, failed, replied(2), _end(alone, 2)))
        store.append(log(cut, begun("ns/triage"), replied(1), ended(cut, 1, 5_000_000, "budget_exceeded")))
        store.append(log(odd, begun("ns/" + EVIL), replied(1, EVIL, None), invoked(EVIL, "unknown_tool", 0.0)))
        store.append(log(odd, ended(odd, 1, None), first=4))
        store.append(log(many, ManyStarted(root_run_context(SYSTEM_IDS.uuid(), SYSTEM_IDS), *given)))
        for run_id, item, stop in ((first, 0, "timeout"), (again, 0, ""), (second, 1, "")):
            store.append(log(run_id, begun("batch/sort", item=item, parent=many), replied(1, "small", 1_000_000)))
            store.append(log(run_id, ended(run_id, 1, 1_000_000, stop, "unverified"), first=3))
        at = START + timedelta(minutes=3)
        stopped = Stop("budget_exceeded", "ledger", "It was stopped.")
        store.append(log(many, ManyEnded(many, stopped, 2, 4, together, 180_000.0, at), first=2))
        store.append(log(open_, begun("ns/triage"), replied(1)))
        yield store


def _end(run_id: UUID, calls: int) -> RunEnded:
    return ended(run_id, calls, calls * 5_000_000, verdict="verified")


def test_figures_are_those_of_the_runs_and_add_up(night: RunStore) -> None:
    runs, activities = night.everything()
    tops = [run for run in runs if run.parent_id is None]
    figures = figures_of(tops, runs, activities)
    assert dict(figures.ends) == {"done": 4, "budget_exceeded": 1, "not begun": 2, "running": 1}
    assert dict(figures.verdicts) == {"verified": 1, "unchecked": 2, "unverified": 2}
    assert (figures.retries, figures.not_whole) == (5, 0)
    models, totals = figures.activity.models, figures.totals
    assert sum(use.input_tokens + use.output_tokens for use in models.values()) == totals.tokens == 840
    assert sum(use.cost_nanos for use in models.values()) == totals.cost_nanos == 18_000_000
    assert sum(each.cost_nanos for each in figures.prompts.values()) == totals.cost_nanos
    assert sum(each.runs for each in figures.prompts.values()) == totals.runs == 5
    assert (models["fake:big"].calls, models["fake:big"].failed) == (1, 1), "a reply alone names no provider"
    assert (models["big"].calls, models["big"].ms) == (3, 4500.0)
    search = figures.activity.tools["search"]
    assert (search.calls, search.failed, search.retried, search.slowest_ms) == (3, 1, 1, 9000.0)
    assert figures.activity.faults == {"rate_limit": 1}
    stall, drift = figures.activity.advised["stall"], figures.activity.advised["drift"]
    assert (stall.severities, stall.told, drift.failed) == ({"caution": 1}, 1, 1)


def test_a_call_that_was_refused_is_none_that_failed(cli: CommandLine) -> None:
    refused = UUID(int=1, version=4)
    calls = [invoked("send", "denied", 0.0)] * 2 + [invoked("look", took=40.0), invoked("look", "skipped", 0.0)]
    with RunStore(cli.folder / "night") as store:
        store.append(log(refused, begun("ns/triage"), *calls, invoked("look", "crashed", 60.0), ended(refused, 1, 0)))
    said = cli("report", "--store", "night").out
    assert _table(said, "slowest tools") == ["look 2 1 50ms 60ms"]
    assert _table(said, "tools that failed") == ["look 2 1 50ms 60ms"]
    assert _table(said, "tools that were not run") == ["send 2 2", "look 3 1"]
    tools = {row["tool"]: row for row in json.loads(cli("report", "--json", "--store", "night").out)["tools"]}
    assert (tools["send"]["calls"], tools["send"]["failed"], tools["send"]["not_run"]) == (2, 0, 2)


def _table(said: str, head: str) -> list[str]:
    """Return the rows of a table, with one space between cells."""
    lines = said.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(head)) + 1
    end = lines.index("", begin) if "" in lines[begin:] else len(lines)
    return [" ".join(line.split()) for line in lines[begin:end]]


def test_a_run_and_one_below_it_are_counted_once(night: RunStore) -> None:
    runs, activities = night.everything()
    many = next(run for run in runs if run.items is not None)
    items = night.children(many.run_id)
    whole = figures_of([many], runs, activities)
    assert figures_of([*items, many, many], runs, activities) == whole
    assert whole.totals.tokens == 360


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_tables_fit_a_terminal(night: RunStore, width: int) -> None:
    runs, activities = night.everything()
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=True, width=width, color_system=None, soft_wrap=True)
    print_figures(console, figures_of([run for run in runs if run.parent_id is None], runs, activities))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert "\n".join(lines) + "\n" == (GOLDEN / f"report-{width}.txt").read_text("utf-8")


def test_json_and_csv_have_the_same_rows(cli: CommandLine, night: RunStore) -> None:
    data = json.loads(cli("report", "--store", night.path, "--json").out)
    rows = list(csv.DictReader(io.StringIO(cli("report", "--store", night.path, "--csv").out)))
    assert [row["table"] for row in rows] == [
        table for table, value in data.items() for _ in (value if table != "totals" else [value])
    ]
    (triage,) = (row for row in rows if row["name"] == "ns/triage")
    assert (triage["runs"], triage["cost_usd"], triage["tokens"]) == ("3", "0.015", "360")
    assert data["totals"]["cost_usd"] == "0.018"
    (odd,) = (row["tool"] for row in data["tools"] if row["tool"] != "search")
    assert odd == EVIL


def test_a_name_from_outside_is_no_formula_and_no_line(cli: CommandLine, night: RunStore) -> None:
    table, rows = cli("report", "--store", night.path), cli("report", "--store", night.path, "--csv")
    for said in (table.out, rows.out):
        assert "\x1b" not in said
        assert "\x07" not in said
    assert not [line for line in table.out.splitlines()[1:] if line.startswith("2 runs")]
    cells = [cell for row in csv.reader(io.StringIO(rows.out)) for cell in row]
    assert not [cell for cell in cells if cell.startswith("=")]
    assert len([cell for cell in cells if cell.startswith("'=cmd")]) == 2


def test_a_log_that_is_damaged_inside_counts_as_far_as_it_can_be_read(cli: CommandLine, night: RunStore) -> None:
    path = file_of(night, UUID(int=1, version=4))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"x" + lines[3][1:], *lines[4:]]))
    said = cli("report", "--store", night.path).out
    assert "1 log cannot be read whole" in said
    assert "10 runs" not in said
    assert json.loads(cli("report", "--store", night.path, "--json").out)["totals"]["runs"] == 5


def test_events_of_another_kind_are_left_out(tmp_path: Path) -> None:
    run_id = UUID(int=9, version=4)
    huge = ModelReplied(
        1, AssistantMessage("x"), "stop", TokenUsage(2**70, 1), 2**70, "big", "n", float("inf"), False, START
    )
    with RunStore(tmp_path / "s") as store:
        store.append(log(run_id, begun("ns/key"), huge, invoked("look"), ended(run_id, 1, 1)))
        runs, activities = store.everything()
        assert (len(runs), activities[str(run_id)].whole) == (1, False)


def test_names_that_a_model_makes_up_are_bounded(tmp_path: Path) -> None:
    run_id = UUID(int=9, version=4)
    made_up = [invoked(f"tool {number} " + "x" * 500, "unknown_tool") for number in range(300)]
    with RunStore(tmp_path / "s") as store:
        store.append(log(run_id, begun("ns/key"), *made_up, ended(run_id, 1, 1)))
        (did,) = store.everything()[1].values()
    assert len(did.tools) == 201
    assert (did.tools["(others)"].calls, max(map(len, did.tools))) == (100, 100)


def test_runs_are_named_or_chosen(cli: CommandLine) -> None:
    one = json.loads(cli.run("--json", *FOLDER).out)["run_id"]
    cli.run("--max-turns", "1", *FOLDER)

    def runs(*options: str) -> int:
        return int(json.loads(cli("report", "--json", *options).out)["totals"]["runs"])

    assert (runs(), runs(one), runs(one, one), runs("--since", "1h"), runs("--prompt", "other")) == (2, 1, 1, 2, 0)
    assert cli("report", "--prompt", "other").out.startswith("no run in ")
    refused = cli("report", "--json", "--csv")
    assert (refused.code, "exclude each other" in refused.err) == (2, True)


def test_damaged_figures_in_the_index_are_made_anew(night: RunStore) -> None:
    runs, activities = night.everything()
    night.close()
    with closing(sqlite3.connect(night.path / "index.sqlite3")) as connection:
        connection.execute("UPDATE runs SET activity = '{\"models\": 3'")
        connection.commit()
    with RunStore(night.path, read_only=True) as again:
        assert again.everything()[1] == activities
    assert len(activities) == len(runs) - 1, "one has not ended"
