"""The record of calls: bounded, shared between snapshots, and immutable for its readers."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.containment.gates import TOOL, Held, answer, gate_with, settle, started
from watchkeeper.containment import WrapOptions
from watchkeeper.containment.record import Ending, FrozenView, Node, NodeRecord, NodeStore
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import RunStoppedError
from watchkeeper.core.usage import TokenUsage


def ended(number: int) -> Node:
    node = Node(number, None, "tool", f"n{number}", 0.0)
    node.ending = Ending(1.0, "ok", 0, TokenUsage(), 0, None, None, None)
    return node


def names(view: FrozenView[NodeRecord]) -> list[str]:
    return [record.operation_name for record in view]


async def test_ids_are_uuids_unique_in_the_whole_tree() -> None:
    gate = gate_with(TestClock())
    child = gate.child(gate.limits)
    ids = [(await one.acall(TOOL, answer)).node_id for one in (gate, child, gate, child)]
    assert len(set(ids)) == 4
    assert all(UUID(str(node_id)).version == 4 for node_id in ids)
    other = await gate_with(TestClock()).acall(TOOL, answer)
    assert other.node_id not in ids


@pytest.mark.spec("EC-019")
def test_the_newest_nodes_are_kept_and_what_was_dropped_is_counted() -> None:
    store = NodeStore(TestClock(), kept=10)
    for number in range(35):
        store.add(ended(number))
    view = store.view([])
    assert store.dropped == 20
    assert names(view) == [f"n{number}" for number in range(20, 35)]


def test_a_node_that_is_still_under_way_is_never_dropped() -> None:
    store = NodeStore(TestClock(), kept=10)
    root = Node(0, None, "child", "run", 0.0)
    store.add(root)
    for number in range(1, 35):
        store.add(ended(number))
    view = store.view([root])
    assert names(view)[:2] == ["run", "n20"]
    assert view[0].status == "running"
    assert len(view) == 16


@pytest.mark.spec("EC-016", "FR-031")
def test_a_snapshot_shares_the_nodes_and_stays_as_it_was() -> None:
    store = NodeStore(TestClock(), kept=10)
    for number in range(5):
        store.add(ended(number))
    running = Node(5, None, "llm", "n5", 0.0)
    store.add(running)
    view = store.view([running])
    for number in range(6, 40):
        store.add(ended(number))
    running.ending = Ending(2.0, "ok", 0, TokenUsage(), 0, None, None, None)
    assert names(view) == [f"n{number}" for number in range(6)]
    assert view[5].status == "running"
    assert view[5].end_ts is None


def test_a_call_that_begins_while_a_view_is_taken_is_not_in_it() -> None:
    store = NodeStore(TestClock())
    store.add(ended(0))

    def under_way() -> Iterator[Node]:
        store.add(Node(1, None, "llm", "n1", 0.0))  # as another thread does at this moment
        yield from ()

    assert names(store.view(under_way())) == ["n0"]


def test_a_view_is_a_sequence() -> None:
    store = NodeStore(TestClock())
    for number in range(4):
        store.add(ended(number))
    view = store.view([])
    assert len(view) == 4
    assert view[-1] == view[3]
    assert [record.operation_name for record in view[1:3]] == ["n1", "n2"]
    assert view == list(view)
    assert view == store.view([])
    assert view != list(view)[:3]
    assert view != "nodes"
    assert (view == 4) is False
    assert repr(view) == "<4 nodes>"
    with pytest.raises(IndexError, match="index 4 of 4 items"):
        view[4]
    with pytest.raises(dataclasses.FrozenInstanceError):
        view[0].status = "error"  # type: ignore[misc]
    assert isinstance(view[0], NodeRecord)


async def test_the_gates_own_record_reads_well() -> None:
    gate = gate_with(TestClock())
    held = Held()
    task = await started(gate.acall(TOOL, held))
    assert repr(held.tickets[0].node) == "<Node tool 'look' running>"
    held.let_go.set()
    await settle()
    assert repr((await task).node) == "<Node tool 'look' ok>"


def test_a_snapshot_and_the_error_that_carries_it_can_be_pickled() -> None:
    with gate_with(TestClock(), max_steps=1) as gate:
        gate.call_tool(lambda: 1, WrapOptions("search"))
        refused = gate.call_tool(lambda: 2)
        snapshot = gate.get_snapshot()
    assert refused.stop is not None
    error = RunStoppedError(refused.stop.message, stop=refused.stop, result=snapshot)
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert (str(again), again.stop, again.result) == (str(error), error.stop, snapshot)
        assert repr(again.result.nodes) == "<2 nodes>"
        assert [node.operation_name for node in again.result.nodes] == ["search", ""]
