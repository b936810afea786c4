"""A prompt with every value in its place: what a run sends first, and never changes afterwards.

Made once per run by `Prompt.render`. Messages are the transcript's first; tools are those of the enabled sections, in
document order, each once.
"""

from __future__ import annotations

from typing import Generic

import msgspec

from watchkeeper.core.deadline import Deadline
from watchkeeper.core.messages import Message, SystemMessage, UserMessage
from watchkeeper.core.model import OutputSchema
from watchkeeper.prompt.output import OutputT
from watchkeeper.tools.tool import Tool


class RenderedPrompt(msgspec.Struct, Generic[OutputT], frozen=True):
    """What one evaluation of a prompt starts from (seed: deadlines, "Rendered Prompt Metadata").

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
