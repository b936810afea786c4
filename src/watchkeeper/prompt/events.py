"""What the log records about a prompt: its deadline, how it was rendered, what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from watchkeeper.core.messages import Message
from watchkeeper.core.usage import TokenUsage
from watchkeeper.session.registry import event


@event("prompt_deadline_assigned")
class PromptDeadlineAssigned(msgspec.Struct, frozen=True):
    """An evaluation has a deadline (seed: deadlines, "Session State").

    Attributes:
        prompt_name: Which prompt.
        deadline: The moment, normalised to UTC.
        session_id: Which session.
        created_at: When it was assigned.
    """

    prompt_name: str
    deadline: datetime
    session_id: UUID
    created_at: datetime


@event("prompt_rendered")
class PromptRendered(msgspec.Struct, frozen=True):
    """A prompt was rendered; with it a transcript begins.

    Attributes:
        prompt_name: Which prompt.
        messages: The first messages of the transcript.
        tool_names: Tools on offer.
        adapter: Who evaluates it.
        session_id: Which session.
        created_at: When.
    """

    prompt_name: str
    messages: tuple[Message, ...]
    tool_names: tuple[str, ...]
    adapter: str
    session_id: UUID
    created_at: datetime


@event("prompt_executed")
class PromptExecuted(msgspec.Struct, frozen=True):
    """An evaluation came to its end with an answer.

    Attributes:
        prompt_name: Which prompt.
        adapter: Who evaluated it.
        output: The typed answer, or None if it was not parsed.
        text: The model's final text.
        usage: Tokens of the whole evaluation.
        session_id: Which session.
        created_at: When.
        remaining_seconds: Time left to the deadline, or None without one (seed: deadlines, "Observability").
    """

    prompt_name: str
    adapter: str
    output: Any
    text: str
    usage: TokenUsage
    session_id: UUID
    created_at: datetime
    remaining_seconds: float | None = None
