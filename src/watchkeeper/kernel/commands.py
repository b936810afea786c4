"""What the turn machine asks the driver to do. Values only; the driver executes them through the gate.

Every turn makes several, so they are msgspec structs: frozen, and much cheaper to build than a dataclass.
"""

from __future__ import annotations

from typing import Any

import msgspec

from watchkeeper.core.completion import CompletionState
from watchkeeper.core.messages import ToolCall
from watchkeeper.core.stop import Stop


class AskModel(msgspec.Struct, frozen=True):
    """Ask for one reply to the transcript as it stands.

    Attributes:
        landing: Whether this is the last turn, paid from what was kept back; tools are then off.
    """

    landing: bool = False


class Compact(msgspec.Struct, frozen=True):
    """Make the conversation shorter: a summary of it is to begin a new segment.

    Attributes:
        stop: What ends the work if that is not possible.
    """

    stop: Stop


class RunTools(msgspec.Struct, frozen=True):
    """Run the calls of one reply; every call gets exactly one result."""

    calls: tuple[ToolCall, ...]


class Observe(msgspec.Struct, frozen=True):
    """Let the observers look at the calls whose results were just appended."""


class ReadAnswer(msgspec.Struct, frozen=True):
    """Turn the final text into the output type."""

    text: str


class CheckDone(msgspec.Struct, frozen=True):
    """Ask the completion checker whether the work is done."""

    output: Any


class End(msgspec.Struct, frozen=True):
    """The run is over.

    Attributes:
        output: The typed answer of work that was completed, else None.
        stop: What ended the run early, else None.
        partial: What a stopped run had: a typed value if it fits, else text, else None.
        text: The last text the model gave.
        verdict: The completion checker's last word; ``unchecked`` if it gave none.
        explanation: What it said.
    """

    output: Any = None
    stop: Stop | None = None
    partial: Any = None
    text: str = ""
    verdict: CompletionState = "unchecked"
    explanation: str = ""


Command = AskModel | Compact | RunTools | Observe | ReadAnswer | CheckDone | End
