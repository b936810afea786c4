"""What a fake provider is told to answer, in words that are the same for every provider.

A script is a sequence of answers and faults, used up one per request, or a function from the request's number and body
to one of them. The fake servers word it the way their provider does; running out of script is an error they report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from watchkeeper.core.messages import ToolCall
from watchkeeper.core.usage import TokenUsage

SOME_TOKENS: Final = TokenUsage(input_tokens=10, output_tokens=5)

FaultKind = Literal[
    "rate_limit",
    "quota",
    "overloaded",
    "auth",
    "context_full",
    "bad_request",
    "blocked",
    "server",
    "broken",
    "unfinished",
    "hang",
    "garbage",
]


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer.

    Attributes:
        text: Visible text.
        calls: Tool calls.
        reasoning: Visible reasoning.
        refusal: Text of a refusal; the answer then is one.
        cut: True if the output cap ended the answer.
        filtered: True if a content filter ended the answer.
        usage: Tokens to report, in our terms.
        delay: Seconds until the first byte.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    refusal: str = ""
    cut: bool = False
    filtered: bool = False
    usage: TokenUsage = SOME_TOKENS
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure.

    Attributes:
        kind: Which one. ``broken`` cuts the connection in the middle of an answer, ``unfinished`` ends a stream in good
            order but too early, ``garbage`` is not JSON, ``hang`` is silence; the others are errors that the provider
            reports.
        headers: Sent with it, for example ``retry-after``.
        midway: For a streamed answer: report it inside the stream, after the first text.
        message: Replaces the provider's usual words.
    """

    kind: FaultKind
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    midway: bool = False
    message: str = ""


Step = Reply | Fault
Script = Sequence[Step] | Callable[[int, Any], Step]


def say(text: str, **details: Any) -> Reply:
    """Return an answer in text."""
    return Reply(text=text, **details)


def call(name: str, arguments: Mapping[str, Any] | str, call_id: str = "call_1", **details: Any) -> Reply:
    """Return an answer that asks for one tool call; arguments given as text go out as they are."""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return Reply(calls=(ToolCall(call_id, name, text),), **details)


class Scripted:
    """Hands out the steps of a script."""

    def __init__(self, script: Script) -> None:
        """Begin at the first step."""
        self._script = script
        self.used = 0

    def next(self, body: Any) -> Step | None:
        """Return the next step, or None if there is none left."""
        number = self.used
        self.used += 1
        if callable(self._script):
            return self._script(number, body)
        return self._script[number] if number < len(self._script) else None

    def assert_complete(self) -> None:
        """Check that every step of the script was used, and nothing beyond it was asked.

        Raises:
            AssertionError: If not.
        """
        if not callable(self._script) and self.used != len(self._script):
            raise AssertionError(f"the script has {len(self._script)} steps and {self.used} requests came")
