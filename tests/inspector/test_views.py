"""What the screens show, over stores that real runs have written; figures add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.inspector.support import PRICES, fill, fill_many, looks, template
from watchkeeper import Agent, tool
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.run import run
from watchkeeper.cli.report import line_of
from watchkeeper.containment import ShieldPipeline, ToolPermissionHook
from watchkeeper.core.errors import StoreError
from watchkeeper.inspector.run_view import run_view
from watchkeeper.inspector.runs_view import runs_view, runs_view_of
from watchkeeper.models import Call, ScriptedModel
from watchkeeper.store.run_store import RunStore
from watchkeeper.store.selection import totals_of


def test_the_sentence_counts_what_was_done(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = runs_view(store)
    assert view.sentence == "1 of 2 done"
    assert [(count.status.words, count.runs) for count in view.counts] == [("Stopped: step limit", 1), ("Done", 1)]
    stopped, done = view.rows  # what needs a look is first
    assert (stopped.prompt, stopped.status.kind, done.status.kind) == ("tests/sort", "stopped", "done")
    cost, tokens, steps, time = stopped.gauges
    assert (cost.limit, tokens.limit, steps.limit, time.limit) == ("$1.00", "2M", "3", "1h")
    assert (steps.used, steps.words, steps.reached, cost.reached) == (1.0, "3", True, False)


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    RunStore(tmp_path / "s").close()
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = runs_view(store)
    assert (view.sentence, view.rows, view.cost) == ("No runs yet", (), "$0.00")


def test_rows_add_up_to_the_total_of_all_runs(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    many = fill_many(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        view, totals = runs_view(store), totals_of(store.runs(-1))
        assert sum(row.cost_nanos or 0 for row in view.rows) == view.cost_nanos == totals.cost_nanos
        assert view.tokens == totals.tokens
        assert many not in [row.run_id for row in view.rows]  # its items stand for it
        assert len(view.rows) == sum(count.runs for count in view.counts) == 5


def test_an_item_names_its_batch_and_the_limits_over_all_items(tmp_path: Path) -> None:
    many = fill_many(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = runs_view(store)
        item = run_view(store, view.rows[0].run_id, line_of)
    assert [(each.run_id, each.name, each.not_begun) for each in view.batches] == [(many, "tests/letters ×3", 0)]
    assert {row.batch for row in view.rows} == {many}
    cost, *_ = view.rows[0].gauges
    assert (cost.used, cost.limit, cost.above) == (None, "", "$1.00")
    assert item.above is not None
    assert (item.above.run_id, item.above.words) == (many, "item of tests/letters ×3")
    assert "cost $1.00" in item.above.limits


def test_items_that_never_began_are_named(tmp_path: Path) -> None:
    many = fill_many(tmp_path / "s", steps=1)
    with RunStore(tmp_path / "s", read_only=True) as store:
        view, whole = runs_view(store), run_view(store, many, line_of)
    assert view.not_begun == 1
    assert [(each.run_id, each.not_begun) for each in view.batches] == [(many, 1)]
    assert whole.name == "tests/letters ×3"
    assert "max_turns" not in [gauge.key for gauge in whole.gauges]  # each item has its own
    assert whole.never_began == "1 item never began: Letter(name='third')"


def test_of_a_batch_none_of_whose_items_began_the_batch_has_a_row(tmp_path: Path) -> None:
    many = fill_many(tmp_path / "s", steps=1)
    with RunStore(tmp_path / "s", read_only=True) as store:
        alone = runs_view_of("s", [store.find(many)])
    assert [(row.run_id, row.batch) for row in alone.rows] == [(many, "")]
    assert [(each.name, each.not_begun) for each in alone.batches] == [("tests/letters ×3", 0)]


def test_a_limit_that_was_reached_by_failing_calls_is_said_with_them(tmp_path: Path) -> None:
    @tool
    def send() -> str:
        """Send a mail."""
        raise OSError("no route")

    limits = Limits(max_turns=3, landing=None)
    agent = Agent(ScriptedModel(lambda _: Call("send")), "Write.", str, tools=[send], limits=limits)
    stopped = agent.run("Go", store=tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = run_view(store, str(stopped.run_id), line_of)
    assert view.sentence.startswith("The run reached its limit of 3 turns; it used ")
    assert " Its last 3 calls of send failed: OSError: no route" in view.sentence


@pytest.mark.parametrize("which", [0, 1, 2])
def test_calls_add_up_to_the_run_and_gauges_to_their_limits(tmp_path: Path, which: int) -> None:
    run_id = (*fill(tmp_path / "s"), fill_many(tmp_path / "s"))[which]
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = run_view(store, run_id, line_of)
    assert view.run.cost_nanos
    assert sum(node.cost_nanos or 0 for node in view.nodes) == view.run.cost_nanos
    assert (view.unlisted, view.unlisted_nanos, view.damage) == ("", 0, "")
    assert view.gauges
    for gauge in view.gauges:
        if gauge.used is not None and gauge.limit is not None:
            assert gauge.left is not None
            assert gauge.used + gauge.held + gauge.left == pytest.approx(gauge.limit)


def test_a_stopped_run_opens_on_what_stopped_it(tmp_path: Path) -> None:
    _, stopped = fill(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = run_view(store, stopped[:8], line_of)
        with pytest.raises(StoreError, match="has no run"):
            run_view(store, "ffffffffffff", line_of)
    (stop,) = [entry for entry in view.story if entry.seq == view.focus]
    assert stop.tag == "safety_event"
    assert "ceiling of 3 steps" in stop.detail
    assert "ceiling of 3 steps" in view.sentence
    assert [(node.kind, node.name) for node in view.nodes] == [
        ("model", "turn 1"),
        ("tool", "look"),
        ("gate", "next call refused"),
        ("model", "turn 2, last turn"),
    ]


def test_a_call_for_which_a_run_parks_is_a_question_and_no_refusal(tmp_path: Path) -> None:
    @tool
    def send() -> str:
        """Send a mail."""
        return ""

    shield = ShieldPipeline(tool_dispatch=ToolPermissionHook(ask=["send"], ask_with=lambda _: None))
    agent = Agent(ScriptedModel([Call("send")]), "Write.", str, tools=[send], shield=shield)
    parked = agent.run("Go", store=tmp_path / "s", on_ask="park")
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = run_view(store, str(parked.run_id), line_of)
    assert "policy halt" not in str(view)
    nodes = [(node.kind, node.name, node.note, node.failed) for node in view.nodes]
    assert ("gate", "a person is asked", "May send run?", False) in nodes


def test_hostile_text_has_no_control_characters(tmp_path: Path) -> None:
    done, _ = fill(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = run_view(store, done, line_of)
    shown = [text for entry in view.story for text in (entry.what, entry.detail, entry.text)]
    assert any("\\x1b[2J" in text and "<script>" in text for text in shown)
    assert not any(sign in text for text in shown for sign in "\x1b\x07\u202e")


def test_a_run_whose_record_ends_early_says_so(tmp_path: Path) -> None:
    done, _ = fill(tmp_path / "s")
    (file,) = (tmp_path / "s.store" if (tmp_path / "s.store").exists() else tmp_path / "s").rglob(f"{done}*")
    lines = file.read_bytes().splitlines(keepends=True)
    lines[4] = b'{"half' + lines[4][6:]
    file.write_bytes(b"".join(lines))
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = run_view(store, done, line_of)
    assert "cannot be read any further" in view.damage
    assert json.dumps(view.sentence)


def test_the_gate_s_refusal_says_what_was_asked_for_and_what_was_left(tmp_path: Path) -> None:
    limits = Limits(max_cost_usd="0.001", landing=None)
    result = run(template(), model=looks("a", "b"), prices=PRICES, limits=limits, store=tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = run_view(store, str(result.run_id), line_of)
    (refused,) = [node for node in view.nodes if node.kind == "gate"]
    assert refused.refused_at == "max_cost_usd"
    assert refused.asked is not None
    assert refused.left is not None
    assert refused.asked > refused.left >= 0
