"""What the driver tells the turn machine. Values only.

Every turn makes several, so they are msgspec structs: frozen, and much cheaper to build than a dataclass.
"""

from __future__ import annotations

from typing import Any

import msgspec

from watchkeeper.core.completion import CompletionStatus
from watchkeeper.core.messages import Message, ToolMessage
from watchkeeper.core.model import ModelReply
from watchkeeper.core.stop import Stop


class Started(msgspec.Struct, frozen=True):
    """The prompt is in the transcript; the loop may begin."""


class Replied(msgspec.Struct, frozen=True):
    """The model answered."""

    reply: ModelReply


class Compacted(msgspec.Struct, frozen=True):
    """The conversation is summarised, and goes on in a new segment.

    Attributes:
        messages: What the new segment begins with.
    """

    messages: tuple[Message, ...]


class ToolsDone(msgspec.Struct, frozen=True):
    """Every call has its result.

    Attributes:
        results: One message per call, in the order of the calls.
        stop: Set if the gate stopped the work while the tools ran.
    """

    results: tuple[ToolMessage, ...]
    stop: Stop | None = None


class Observed(msgspec.Struct, frozen=True):
    """The observers have looked.

    Attributes:
        text: What the agent is told, or empty.
        stop: Set if advice that was not heeded ends the work.
    """

    text: str = ""
    stop: Stop | None = None


class Parsed(msgspec.Struct, frozen=True):
    """The final text fits the output type."""

    output: Any


class Unparsable(msgspec.Struct, frozen=True):
    """The final text does not fit; ``problem`` is worded for the model."""

    problem: str


class Checked(msgspec.Struct, frozen=True):
    """The completion checker gave its verdict."""

    status: CompletionStatus
    explanation: str


class Stopped(msgspec.Struct, frozen=True):
    """The gate, a provider or the caller ended the work; the command was not, or not fully, executed."""

    stop: Stop


Signal = Started | Replied | Compacted | ToolsDone | Observed | Parsed | Unparsable | Checked | Stopped
