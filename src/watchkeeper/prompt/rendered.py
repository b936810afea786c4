"""A rendered prompt: the first messages of a run, which never change afterwards.

Made once per run by `Prompt.render`. Messages are the transcript's first; tools are those of the enabled sections, in
document order, each once. The events of a prompt, which tell its deadline, its messages and what came of it, stand here
too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic
from uuid import UUID

import msgspec

from watchkeeper.core.clock import Deadline
from watchkeeper.core.messages import Message, SystemMessage, UserMessage
from watchkeeper.core.model import OutputSchema
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.output import OutputT
from watchkeeper.session.log import event
from watchkeeper.tools.tool import Tool


class RenderedPrompt(msgspec.Struct, Generic[OutputT], frozen=True):
    """What one evaluation of a prompt starts from.

    Attributes:
        ns: Namespace of the prompt.
        key: Key of the prompt within its namespace.
        name: The prompt's name in logs and events.
        messages: The system message, if there is one, and one user message.
        tools: Tools on offer.
        output_type: The type of the final answer; ``str`` for plain text.
        output: The answer's schema, or None for plain text.
        deadline: The moment at which the evaluation must be over, or None.
    """

    ns: str
    key: str
    name: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    output_type: type[OutputT]
    output: OutputSchema | None = None
    deadline: Deadline | None = None

    @property
    def text(self) -> str:
        """All text of all messages, as a person would read it."""
        return "\n\n".join(
            message.text for message in self.messages if isinstance(message, SystemMessage | UserMessage)
        )


@event("prompt_deadline_assigned")
class PromptDeadlineAssigned(msgspec.Struct, frozen=True):
    """An evaluation has a deadline.

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
    """An evaluation ended with an answer.

    Attributes:
        prompt_name: Which prompt.
        adapter: Who evaluated it.
        output: The typed answer, or None if it was not parsed.
        text: The model's final text.
        usage: Tokens of the whole evaluation.
        session_id: Which session.
        created_at: When.
        remaining_seconds: Time left to the deadline, or None without one.
    """

    prompt_name: str
    adapter: str
    output: Any
    text: str
    usage: TokenUsage
    session_id: UUID
    created_at: datetime
    remaining_seconds: float | None = None
