"""The event of one attempt at one tool call.

Every attempt is recorded exactly once, whatever became of it: a success, a failure that the tool reported, arguments
that did not fit, a crash, a timeout, a refusal. What observers, usage and the inspector know about tools is a fold of
these events.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from watchkeeper.core.usage import TokenUsage
from watchkeeper.session.registry import event

ToolOutcome = Literal[
    "ok",
    "failed",
    "invalid",
    "unknown_tool",
    "crashed",
    "timeout",
    "deadline",
    "denied",
    "skipped",
    "cancelled",
]
"""How an attempt ended; only ``ok`` is a success."""


@event("tool_invoked")
class ToolInvoked(msgspec.Struct, frozen=True):
    """One attempt at one tool call (seed: trajectory-observers, "ToolInvoked").

    A msgspec struct, because every call makes one and its fifteen fields cost a dataclass microseconds.

    Attributes:
        prompt_name: ``ns/key`` of the prompt, or the name it was given.
        adapter: Name of the adapter that the model was reached through.
        name: Tool name as the model wrote it.
        params: The decoded arguments; the text as the model wrote it if they did not fit.
        result: The `ToolResult`.
        session_id: Session of the run.
        created_at: When the attempt ended.
        usage: Tokens of the model reply that asked for the call, if the provider told.
        rendered_output: What the model was shown.
        call_id: The provider's id of the call.
        event_id: Unique to this event.
        outcome: How the attempt ended.
        duration_ms: Milliseconds from admission to the end; 0 if the tool was not called.
        attempt: 1 for the first attempt at this call.
        node_id: The attempt's node in the gate's records, if it was admitted.
    """

    prompt_name: str
    adapter: str
    name: str
    params: Any
    result: Any
    session_id: UUID | None
    created_at: datetime
    usage: TokenUsage | None
    rendered_output: str
    call_id: str | None
    event_id: UUID
    outcome: ToolOutcome = "ok"
    duration_ms: float = 0.0
    attempt: int = 1
    node_id: str | None = None

    @property
    def success(self) -> bool:
        """Whether the tool did what it was asked."""
        return is_success(self)


def is_success(invoked: ToolInvoked) -> bool:
    """Return whether the attempt succeeded; a result without a flag counts by the outcome alone."""
    return invoked.outcome == "ok" and bool(getattr(invoked.result, "success", True))


def error_message(invoked: ToolInvoked) -> str | None:
    """Return what went wrong, or None for a success or a result that carries no message."""
    if is_success(invoked):
        return None
    message = getattr(invoked.result, "message", None)
    return message if isinstance(message, str) else None
