"""The event of one attempt at a tool call."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args
from uuid import UUID

import pytest
from msgspec.structs import replace

from watchkeeper.core.type_tags import tag_of
from watchkeeper.core.usage import TokenUsage
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Snapshot
from watchkeeper.session.tagging import dump, load
from watchkeeper.tools.context import ToolInvoked, ToolOutcome, error_message, is_success
from watchkeeper.tools.result import ToolResult

INVOKED = ToolInvoked(
    prompt_name="support/triage",
    adapter="scripted",
    name="find",
    params={"query": "key"},
    result=ToolResult.ok([1]),
    session_id=UUID(int=1),
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    usage=TokenUsage(3, 4),
    rendered_output="[1]",
    call_id="call-1",
    event_id=UUID(int=2),
)


def test_its_tag_is_stable() -> None:
    assert tag_of(ToolInvoked) == "tool_invoked"


@pytest.mark.spec("TO-020")
def test_it_comes_back_from_a_snapshot_as_it_was() -> None:
    session = Session()
    session.dispatch(INVOKED)
    assert load(dump(INVOKED)) == INVOKED
    snapshot = session.snapshot()
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    assert session[ToolInvoked].latest() == INVOKED


def test_a_success_has_no_error_message() -> None:
    assert INVOKED.success
    assert is_success(INVOKED)
    assert error_message(INVOKED) is None


@pytest.mark.spec("TO-021")
@pytest.mark.parametrize("outcome", [word for word in get_args(ToolOutcome) if word != "ok"])
def test_every_other_outcome_is_a_failure(outcome: Any) -> None:
    failed = replace(INVOKED, outcome=outcome, result=ToolResult.error("it broke"))
    assert not failed.success
    assert error_message(failed) == "it broke"


@pytest.mark.spec("TO-021")
def test_a_result_of_another_kind_counts_by_the_outcome() -> None:
    assert replace(INVOKED, result="text").success
    odd = replace(INVOKED, outcome="crashed", result="text")
    assert (odd.success, error_message(odd)) == (False, None)
    assert not replace(INVOKED, result=ToolResult.error("no")).success
