"""What the incidents have in common: a provider that counts what it really ran, and the night in which nobody looks.

The provider knows nothing of the gate: its figures are what a bill would say. A naive program that has no end of its
own goes on until somebody comes in at eight in the morning; every call takes its time on a clock that only calls move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from watchkeeper.core.clock import TestClock

NIGHT_SECONDS: Final = 8 * 3600
INPUT_PRICE, OUTPUT_PRICE = 3.00, 15.00
"""Dollars for a million tokens."""


class MorningError(Exception):
    """Somebody came in and pulled the plug."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the provider answers: a text, and what it billed for it, in dollars."""

    text: str
    usd: float


class Provider:
    """A model, or a paid tool, that counts every execution.

    Attributes:
        executions: How often it really ran.
        usd: What it billed, in dollars.
    """

    def __init__(self, answer: Callable[[str], str], seconds: float = 20.0) -> None:
        """Answer with ``answer``, each time after so many seconds."""
        self._answer = answer
        self._seconds = seconds
        self._clock = TestClock()
        self.executions = 0
        self.usd = 0.0

    def ask(self, prompt: str, input_tokens: int, output_tokens: int) -> Reply:
        """Run once, bill it, and let time pass.

        Raises:
            MorningError: Once the night is over.
            ConnectionError: If that is what it answers with; what it read is billed all the same.
        """
        if self._clock.monotonic() >= NIGHT_SECONDS:
            raise MorningError
        usd = price(input_tokens, output_tokens)
        self.executions += 1
        self.usd += usd
        self._clock.advance(self._seconds)
        return Reply(self._answer(prompt), usd)


def price(input_tokens: int, output_tokens: int) -> float:
    """Return what a call costs, in dollars."""
    return (input_tokens * INPUT_PRICE + output_tokens * OUTPUT_PRICE) / 1_000_000
