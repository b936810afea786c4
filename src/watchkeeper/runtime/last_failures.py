"""Whether the last calls of a run failed, one after the other: a limit may have been reached only because they did."""

from __future__ import annotations

from typing import Final

from watchkeeper.core.text import one_line

FAILED: Final = frozenset(("failed", "invalid", "unknown_tool", "crashed", "timeout"))
"""Outcomes of calls after which a limit may have been reached only because they failed."""

WHY: Final = 120
"""Characters of why they failed."""


class LastFailures:
    """Follows the tool calls of a run in order; of all of them it keeps the name, the number and the last error."""

    def __init__(self) -> None:
        """Begin with no call."""
        self._name = self._said = ""
        self._count = 0

    def add(self, name: str, outcome: str, said: str) -> None:
        """Take in a call: its tool, its outcome, and what the model was shown of it."""
        if outcome not in FAILED:
            self._count = 0
        else:
            self._count = self._count + 1 if name == self._name else 1
            self._name, self._said = name, said

    def in_words(self) -> str:
        """Say which tool failed at each of the last calls; empty unless it did so more than once."""
        if self._count < 2:
            return ""
        why = one_line(self._said.removeprefix(f"{self._name} failed: "), WHY)
        return f"Its last {self._count} calls of {one_line(self._name, WHY)} failed{f': {why}' if why else '.'}"
