"""Events as a store holds them: what is written quickly is read back exactly."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.session.recorded_values import recorded
from watchkeeper.core.codec import CodecError
from watchkeeper.core.messages import AssistantMessage, ToolCall
from watchkeeper.core.type_tags import tag_of
from watchkeeper.core.usage import TokenUsage
from watchkeeper.runtime.events import CallBegun, ModelReplied, NoticeAppended
from watchkeeper.session.event_json import read_event, write_event
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import ToolResult

AT = datetime(2026, 11, 22, 3, 4, 5, 678901, tzinfo=UTC)
ID = UUID(int=7)


@dataclass(frozen=True)
class Ticket:
    """A value of a user's."""

    queue: str
    tags: tuple[str, ...] = ()


def there_and_back(event: Any) -> Any:
    """Write an event and read it."""
    return read_event(tag_of(event.__class__), json.loads(write_event(event)))


def replied(message: AssistantMessage, cost: int | None = 3, took: float = 1.5) -> ModelReplied:
    """Return a reply."""
    return ModelReplied(1, message, "stop", TokenUsage(3, 4), cost, "m", "n", took, False, AT)


def invoked(params: Any, value: Any) -> ToolInvoked:
    """Return a tool call."""
    return ToolInvoked("n/k", "a", "file", params, ToolResult.ok(value), ID, AT, TokenUsage(1, 2), "said", "c", ID)


@pytest.mark.parametrize("event", [each.event for each in recorded()], ids=lambda event: str(type(event).__name__))
def test_every_event_of_a_run_comes_back_as_it_was(event: Any) -> None:
    back = there_and_back(event)
    assert (type(back), back) == (type(event), event)


HARD = {
    "data of the provider": replied(AssistantMessage("x", (ToolCall("a", "b", "{}"),), "", {"signed": (1, b"2")})),
    "a text that UTF-8 cannot hold": replied(AssistantMessage("\ud800")),
    "no end": replied(AssistantMessage("x"), took=math.inf),
    "a huge number": replied(AssistantMessage("x"), cost=10**40),
    "a value of a user's": invoked(Ticket("q", ("a",)), Ticket("r")),
    "values within values": invoked({"a": (1, {2: "b"}), "c": [timedelta(1)]}, {"k": {1, 2}}),
    "a result of other types": replace(invoked({}, 1), result=ToolResult(1, "x", None)),  # type: ignore[arg-type]
    "names of fields": invoked({"$type": "x", "params": 1}, None),
    "a whole number for a time": CallBegun("llm", "m", 1, 1, "n", "", TokenUsage(1), 10**30, AT),
    "control characters": NoticeAppended("a\u2028\x00\n\x1b[31m", AT),
}


@pytest.mark.parametrize("event", HARD.values(), ids=HARD)
def test_what_is_hard_to_write_comes_back_as_it_was(event: Any) -> None:
    back = there_and_back(event)
    assert (type(back), back) == (type(event), event)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@given(params=VALUES, value=VALUES, text=st.text(st.characters()), took=st.floats(allow_nan=False))
def test_whatever_a_tool_gets_and_returns_comes_back_as_it_was(params: Any, value: Any, text: str, took: float) -> None:
    event = ToolInvoked(text, "a", text, params, ToolResult.ok(value), None, AT, None, text, None, ID, "ok", took)
    assert there_and_back(event) == event


@pytest.mark.parametrize(
    "body",
    [{"text": 3, "created_at": "2026-11-22T03:04:05Z"}, {"text": "x", "created_at": "noon"}, {"text": "x", "more": 1}],
)
def test_what_does_not_fit_is_refused_by_name(body: dict[str, Any]) -> None:
    with pytest.raises(CodecError, match="notice_appended"):
        read_event("notice_appended", body)
