"""What a tool returns and what a model sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from watchkeeper.session.tagging import dump, load
from watchkeeper.tools.result import ToolResult


@dataclass(frozen=True)
class Found:
    title: str


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ToolResult.ok(Found("a"), "one found"), "one found"),
        (ToolResult.ok(Found("a")), '{"title":"a"}'),
        (ToolResult.ok("plain"), "plain"),
        (ToolResult.ok([1, None]), "[1,null]"),
        (ToolResult.ok(0), "0"),
        (ToolResult.ok(""), ""),
        (ToolResult.ok(), "done"),
        (ToolResult.error("no such thing"), "no such thing"),
        (ToolResult.error(""), "failed"),
        (ToolResult.error("", Found("a")), '{"title":"a"}'),
        (ToolResult.ok(1j), "1j"),
    ],
)
def test_a_model_sees_the_message_or_else_the_value(result: ToolResult[Any], text: str) -> None:
    assert result.render() == text


@pytest.mark.spec("FR-020")
def test_success_and_failure_are_told_apart() -> None:
    assert (ToolResult.ok(1).success, ToolResult.error("x").success) == (True, False)
    assert ToolResult.error("x", 5).value == 5


def test_a_result_comes_back_from_the_log_as_it_was() -> None:
    result = ToolResult.ok(Found("a"), "one")
    assert load(dump(result)) == result
