"""An observer of an agent whose tool calls keep failing for one cause."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from watchkeeper.observers.evidence import check_settings, cite, shorten
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import ObserverContext, on_loop
from watchkeeper.prompt.trajectory import CallDigest
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked, error_message

WORDS: Final = re.compile(r"[^\W\d_]{2,}")

GROUPED_KINDS: Final = 12
"""The number of kinds of error, the most frequent ones, that are compared with each other."""

GROUPED_CALLS: Final = 50
"""The number of the newest failures that are grouped."""


@dataclass(frozen=True, slots=True)
class ErrorCascadeDetector:
    """Tells the agent that its calls keep failing, and names the group of errors behind it.

    Attributes:
        failures: How many failures in a row are a cascade.
        severe: The number of failures in a row from which the severity is ``warning``; twice ``failures`` by default.
        likeness: The share of words that two messages of one group must have in common.
        name: Its name.
    """

    failures: int = 3
    severe: int | None = None
    likeness: float = 0.5
    name: str = "Errors"

    def __post_init__(self) -> None:
        """Refuse thresholds out of range.

        Raises:
            ObserverError: Naming the field and its value.
        """
        check_settings(self, "likeness", failures=(2, None))
        if self.severe is not None:
            check_settings(self, severe=(self.failures, None))

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether enough calls failed in a row."""
        return context.trajectory.errors_in_a_row >= self.failures

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Group the failures in a row and describe the largest group."""
        trajectory = context.trajectory
        row = trajectory.errors_in_a_row
        if row < self.failures:
            return None
        failed = trajectory.recent(min(row, GROUPED_CALLS))
        group = largest_group(failed, self.likeness)
        calls: Sequence[ToolInvoked] = session[ToolInvoked].all()
        newest = calls[group[-1].index - 1]
        example = shorten(error_message(newest) or newest.outcome, 120)
        times, looked_at = len(group), len(failed)
        among = f"{times} of them" if looked_at == row else f"{times} of the last {looked_at}"
        said = f"{among} failed alike: {example}" if times > 1 else f"each failed differently, the last: {example}"
        described = f"{times} failures of one kind" if times > 1 else f"{looked_at} failures of as many kinds"
        cited = group if times > 1 else failed
        severe = 2 * self.failures if self.severe is None else self.severe
        severity: Severity = "warning" if row >= severe else "caution"
        return Assessment(
            self.name,
            f"The last {row:,} tool calls failed; {said}",
            (Observation("error_cascade", described, cite(calls, [call.index for call in cited], errors=True)),),
            (
                "Stop and find out why before you call again; the same call will fail the same way.",
                "Check your assumptions about names, paths and arguments, or take another way.",
            ),
            severity,
        )


def largest_group(failed: Sequence[CallDigest], likeness: float) -> Sequence[CallDigest]:
    """Return the largest group of failures, the oldest first; of equally large ones, the one with the newest failure.

    Args:
        failed: The failures, the oldest first; at least one.
        likeness: The share of words that two messages of one group have in common.
    """
    kinds = Counter(call.error for call in reversed(failed)).most_common(GROUPED_KINDS)
    words = {kind: frozenset(WORDS.findall(kind)) for kind, _ in kinds}
    best: set[str] = set()
    most = 0
    for kind, _ in kinds:
        alike = {other for other, _ in kinds if other == kind or _share(words[kind], words[other]) >= likeness}
        size = sum(times for other, times in kinds if other in alike)
        if size > most:
            best, most = alike, size
    return [call for call in failed if call.error in best]


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard index of two sets of words, 0.0 to 1.0."""
    return len(one & other) / len(one | other) if one and other else 0.0
