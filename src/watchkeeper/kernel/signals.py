"""What the driver tells the turn machine. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watchkeeper.core.completion import CompletionStatus
from watchkeeper.core.messages import Message, ToolMessage
from watchkeeper.core.model import ModelReply
from watchkeeper.core.stop import Stop


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is in the transcript; the loop may begin."""


@dataclass(frozen=True, slots=True)
class Replied:
    """The model answered."""

    reply: ModelReply


@dataclass(frozen=True, slots=True)
class Compacted:
    """The conversation is summarised, and goes on in a new segment.

    Attributes:
        messages: What the new segment begins with.
    """

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class ToolsDone:
    """Every call has its result.

    Attributes:
        results: One message per call, in the order of the calls.
        stop: Set if the gate stopped the work while the tools ran.
    """

    results: tuple[ToolMessage, ...]
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """The observers have looked.

    Attributes:
        text: What the agent is told, or empty.
        stop: Set if advice that was not heeded ends the work.
    """

    text: str = ""
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """The final text fits the output type."""

    output: Any


@dataclass(frozen=True, slots=True)
class Unparsable:
    """The final text does not fit; ``problem`` is worded for the model."""

    problem: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The completion checker gave its verdict."""

    status: CompletionStatus
    explanation: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The gate, a provider or the caller ended the work; the command was not, or not fully, executed."""

    stop: Stop


Signal = Started | Replied | Compacted | ToolsDone | Observed | Parsed | Unparsable | Checked | Stopped
