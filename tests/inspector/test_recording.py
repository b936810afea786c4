"""A recording reads on where it had stopped, and says the same whether it read at once or piece by piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.inspector.support import fill_many
from tests.inspector.written import Written, write_night
from tests.store.older import older_store_of
from watchkeeper.accounting.limits import Limits
from watchkeeper.cli.report import line_of
from watchkeeper.inspector.calls import Node, Stretch
from watchkeeper.inspector.recording import Place, Recording
from watchkeeper.inspector.run_view import in_order, run_head, run_view
from watchkeeper.runtime.events import RunResumed
from watchkeeper.store.older_store import import_runs
from watchkeeper.store.run_store import RunStore


def by_name(recording: Recording) -> dict[str, Node]:
    """Return the newest node of each name."""
    return {node.name: node for node in recording.nodes.listed}


def followed(store: RunStore, run: Written) -> Recording:
    """Return the recording of a run, read as far as it goes."""
    recording = Recording(store, store.find(str(run.run_id)), line_of)
    assert recording.advance(1000)
    return recording


@pytest.mark.parametrize("piece", [1, 3, 50])
def test_pieces_make_the_same_calls_and_entries_as_the_whole(tmp_path: Path, piece: int) -> None:
    with RunStore(tmp_path / "s") as store:
        run = write_night(store)
        recording = Recording(store, store.find(str(run.run_id)), line_of)
        place, nodes, entries = Place(), dict[int, Node](), list[int]()
        whole = False
        while not whole:
            whole = recording.advance(piece)
            changed, new, place = recording.told(place)
            nodes |= {node.number: node for node in changed}
            entries += [entry.seq for entry in new]
        view = run_view(store, str(run.run_id), line_of)
    assert tuple(in_order(nodes.values())) == view.nodes
    assert entries == [*range(1, len(entries) + 1)]
    assert run_head(recording, whole=True).focus == view.focus


def test_a_call_under_way_has_no_end_and_holds_its_worst_case(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = Written(store, Limits(max_cost_usd=1, max_total_tokens=50_000, max_steps=9))
        run.model()
        run.begin("llm", "scripted:scripted")
        run.flush()
        recording = followed(store, run)
        head = run_head(recording, whole=True)
        *_, last = recording.nodes.listed
        assert (last.end, last.worst and last.worst.input_tokens) == (None, 4_000)
        gauges = {gauge.key: gauge for gauge in head.gauges}
        cost = gauges["max_cost_usd"]
        assert (cost.used, cost.held, cost.left) == (3_000_000, 24_000_000, 1_000_000_000 - 27_000_000)
        assert (gauges["max_steps"].used, gauges["max_steps"].held) == (1, 1)
        assert gauges["max_total_tokens"].used == 1_020
        assert head.run.status.kind == "running"
        assert gauges["seconds"].used is not None


def test_what_comes_later_replaces_the_open_call(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = Written(store, Limits())
        run.model()
        run.flush()
        recording = followed(store, run)
        _, _, place = recording.told(Place())
        run.tool(2.0)
        run.flush()
        assert recording.advance(1000)
        nodes, entries, _ = recording.told(place)
        assert [(node.name, node.parent, node.end and node.end - node.begin) for node in nodes] == [("search", 0, 2000)]
        assert [entry.tag for entry in entries] == ["tool_invoked"]


def test_a_run_below_has_its_calls_while_it_goes_on_and_the_rest_of_its_use_at_its_end(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = Written(store, Limits())
        run.model()
        below = run.child()
        below.model()
        run.flush()
        below.flush()
        recording = followed(store, run)
        nodes = by_name(recording)
        child = nodes["ledger/lookup"]
        assert (child.kind, child.end, child.parent, child.depth) == ("child", None, 0, 1)
        assert [node.depth for node in recording.nodes.listed if node.run_id == str(below.run_id)] == [2]
        below.usage += below.usage  # a call that is not on its record
        run.child_ended(below)
        run.end()
        assert recording.advance(1000)
        child = by_name(recording)["ledger/lookup"]
        assert child.end == 10_000
        assert (child.used.cost_nanos, child.used.steps) == (3_000_000, 2)
        head = run_head(recording, whole=True)
        assert (head.unlisted_nanos, head.run.cost_nanos) == (0, recording.nodes.total.cost_nanos)


def test_markers_have_a_letter_for_each_kind(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = write_night(store)
        recording = followed(store, run)
    letters = Counter(entry.marker for entry in recording.story.entries if entry.marker)
    assert letters == {"A": 3, "S": 1, "V": 2, "R": 2}


def test_items_of_a_run_over_many_stand_below_it(tmp_path: Path) -> None:
    many = fill_many(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = run_view(store, many, line_of)
    assert [(node.kind, node.name, node.end is not None) for node in view.nodes] == [
        *[("child", f"Letter(name='{name}')", True) for name in ("first", "second", "third")]
    ]


def test_a_store_of_version_0_1_has_calls_with_their_times_but_not_what_they_asked_for(tmp_path: Path) -> None:
    with RunStore(tmp_path / "new") as store:
        run = write_night(store)
        now = run_view(store, str(run.run_id), line_of)
        older = older_store_of(store, tmp_path / "runs.db")
    RunStore(tmp_path / "s").close()
    import_runs(older, tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = run_view(store, str(run.run_id), line_of)
    assert (view.damage, view.unlisted_nanos, view.run.cost_nanos) == ("", 0, run.usage.cost_nanos)
    assert {node.worst for node in view.nodes} == {None}

    def told(nodes: Iterable[Node]) -> set[tuple[object, ...]]:
        known = (node for node in nodes if not (node.kind == "model" and node.failed))  # they do not say how long
        return {(node.kind, node.name, node.begin, node.end, node.used.cost_nanos) for node in known}

    assert told(view.nodes) == told(now.nodes)


def test_a_record_with_a_gap_is_shown_up_to_it(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = write_night(store)
    (file,) = (tmp_path / "s" / "runs").glob(f"{run.run_id}.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if b'"seq":9,' not in line))
    with RunStore(tmp_path / "s", read_only=True) as store:
        view = run_view(store, str(run.run_id), line_of)
    assert "events before 10 are missing" in view.damage
    assert view.story[-1].seq == 8


def test_between_two_processes_the_time_does_not_count(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = Written(store, Limits())
        run.model(4.0)
        run.wait(600)
        used = run.usage
        run.event(RunResumed(run.run_id, 3, "", Limits(), None, used, (), 5.0, run.now))
        run.model(2.0)
        run.flush()
        recording = followed(store, run)
        assert recording.nodes.stretches == [Stretch(0.0, 4_000.0, 0.0), Stretch(604_000.0, None, 5.0)]
        assert recording.use(run.now).used["seconds"] == 7.0
