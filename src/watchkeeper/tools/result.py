"""What a tool returns.

A result is a value: success or not, the typed value for programs, and a message for the model. A failed result is a
result like any other: the model sees it and decides what to do. It is never an exception, and it spends no retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from watchkeeper.core.codec import display
from watchkeeper.core.type_tags import own_value

T = TypeVar("T")
V = TypeVar("V")


@own_value("tool_result")
@dataclass(frozen=True, slots=True)
class ToolResult(Generic[T]):
    """The outcome of one tool call.

    Attributes:
        success: Whether the tool did what it was asked.
        value: What it produced, for programs; None if it failed or produced nothing.
        message: What the model is told; if empty, it is shown the value.
    """

    success: bool
    value: T | None
    message: str

    @overload
    @staticmethod
    def ok(*, message: str = "") -> ToolResult[Any]: ...
    @overload
    @staticmethod
    def ok(value: V, message: str = "") -> ToolResult[V]: ...
    @staticmethod
    def ok(value: Any = None, message: str = "") -> ToolResult[Any]:
        """Return a success.

        Args:
            value: What the tool produced.
            message: What the model is told; without one it is shown the value.
        """
        return ToolResult(True, value, message)

    @overload
    @staticmethod
    def error(message: str) -> ToolResult[Any]: ...
    @overload
    @staticmethod
    def error(message: str, value: V) -> ToolResult[V]: ...
    @staticmethod
    def error(message: str, value: Any = None) -> ToolResult[Any]:
        """Return a failure.

        Args:
            message: What went wrong and what the model may do about it.
            value: Something to keep beside the message, for programs.
        """
        return ToolResult(False, value, message)

    def render(self) -> str:
        """Return what the model sees: the message if there is one, else the value as text or JSON."""
        if self.message:
            return self.message
        if self.value is None:
            return "done" if self.success else "failed"
        return display(self.value)
