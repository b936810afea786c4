"""Progress: lines that say whose they are."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from watchkeeper.cli.console import make_console
from watchkeeper.cli.event_lines import HINT, Progress
from watchkeeper.core.ids import SYSTEM_IDS, RunContext, derive_child_run_context, root_run_context
from watchkeeper.core.usage import Usage
from watchkeeper.runtime.events import (
    ChildEnded,
    ChildStarted,
    ItemEnded,
    ManyStarted,
    NoticeAppended,
    RunEnded,
    RunStarted,
)
from watchkeeper.session.log import Envelope, SliceEdited
from watchkeeper.shield.decision import Decision, SafetyEvent

AT = datetime(2026, 11, 21, tzinfo=UTC)
CONTEXT = root_run_context(SYSTEM_IDS.uuid(), SYSTEM_IDS)


def printed(*happened: tuple[UUID, Any]) -> list[str]:
    """Return the lines printed for some events."""
    out = io.StringIO()
    progress = Progress(make_console(out))
    for run_id, event in happened:
        progress(run_id, Envelope(1, AT, event))
    return out.getvalue().splitlines()


def many(concurrency: int, *items: str) -> ManyStarted:
    """Return the beginning of a run over many."""
    return ManyStarted(CONTEXT, "n/k", "m", "turns 3", items, concurrency, AT)


def begun(item: str | None = None) -> RunStarted:
    """Return the beginning of a run."""
    return RunStarted(CONTEXT, "n/k", "m", "turns 3", None, AT, item)


def test_a_single_run_has_a_head_and_its_lines_under_it() -> None:
    run_id = uuid4()
    lines = printed((run_id, begun()), (run_id, NoticeAppended("now", AT)))
    assert lines == ["n/k with m", "limits: turns 3", "  → told the agent  now"]


def test_the_head_names_who_takes_over() -> None:
    one = RunStarted(CONTEXT, "n/k", "m", "turns 3", None, AT, fallback=("a:b", "c:d"))
    many = ManyStarted(CONTEXT, "n/k", "m", "turns 3", ("x",), 1, AT, fallback=("a:b",))
    assert printed((uuid4(), one))[0] == "n/k with m, or else a:b, c:d"
    assert printed((uuid4(), many))[0] == "n/k over 1 item with m, or else a:b"


def dispatched(context: RunContext, depth: int = 1) -> ChildStarted:
    """Return the beginning of a child."""
    return ChildStarted(context, CONTEXT.run_id, "subagent", "n/child", "m", depth, "turns 2", "call-1", AT)


def returned(context: RunContext) -> ChildEnded:
    """Return the end of a child."""
    return ChildEnded(
        context.run_id, CONTEXT.run_id, "subagent", "n/child", None, "unchecked", Usage(), 1.0, "Done: 1 turn.", AT
    )


@pytest.mark.spec("FR-168")
def test_what_a_child_does_stands_further_in_between_its_beginning_and_its_end() -> None:
    root = CONTEXT.run_id
    child = derive_child_run_context(CONTEXT, SYSTEM_IDS.uuid())
    grandchild = derive_child_run_context(child, SYSTEM_IDS.uuid())
    lines = printed(
        (root, begun()),
        (root, dispatched(child)),
        (child.run_id, begun()),
        (child.run_id, NoticeAppended("below", AT)),
        (child.run_id, dispatched(grandchild, 2)),
        (grandchild.run_id, NoticeAppended("deeper", AT)),
        (child.run_id, returned(grandchild)),
        (root, returned(child)),
    )
    assert lines[2:] == [
        f"  ↳ dispatched  n/child with m, run {str(child.run_id)[:8]}; limits: turns 2",
        "      → told the agent  below",
        f"      ↳ dispatched  n/child with m, run {str(grandchild.run_id)[:8]}; limits: turns 2",
        "          → told the agent  deeper",
        "      ✓ n/child  Done: 1 turn.",
        "  ✓ n/child  Done: 1 turn.",
    ]


def test_items_that_interleave_are_told_apart() -> None:
    whole, one, two = uuid4(), uuid4(), uuid4()
    lines = printed(
        (whole, many(2, "a.txt", "long name.txt")),
        (one, begun("a.txt")),
        (two, begun("long name.txt")),
        (two, NoticeAppended("two", AT)),
        (one, NoticeAppended("one", AT)),
        (one, RunEnded(one, None, None, None, "", "unchecked", Usage(), 1.0, None, AT)),
        (whole, ItemEnded(0, "a.txt", one, "Done.", None, AT)),
        (whole, ItemEnded(1, "c.txt", None, "Not started.", None, AT)),
    )
    assert lines[2:] == [
        "long name.txt  → told the agent  two",
        "a.txt          → told the agent  one",
        "✓ a.txt  Done.",
    ]


def test_edits_of_slices_are_for_the_store_alone() -> None:
    assert printed((uuid4(), SliceEdited(str, "append", ("x",)))) == []


def test_items_one_after_the_other_have_a_head_each() -> None:
    whole, one = uuid4(), uuid4()
    lines = printed((whole, many(1, "a.txt")), (one, begun("a.txt")), (one, NoticeAppended("one", AT)))
    assert lines[2:] == ["▸ a.txt", "  → told the agent  one"]


def test_the_first_ctrl_c_is_answered_with_what_the_second_does() -> None:
    stopped = SafetyEvent("interrupted", Decision.HALT, "The run was interrupted.", "gate", ts=AT)
    (line,) = printed((uuid4(), stopped))
    assert line == f"  ■ interrupted  The run was interrupted. {HINT}"


def test_an_over_long_or_hostile_label_stays_one_short_line() -> None:
    whole, one = uuid4(), uuid4()
    label = "x" * 80 + "\x1b[2J"
    lines = printed((whole, many(2, label)), (one, begun(label)), (one, NoticeAppended("one", AT)))
    assert lines[2] == f"{'x' * 27}…  → told the agent  one"
