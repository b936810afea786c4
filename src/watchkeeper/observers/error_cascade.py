"""Whether calls fail one after the other, and whether they fail for the same reason.

Messages are compared without the names, paths and numbers in which failures of one kind differ. Only failures in a row
count: an agent that fails, changes something and succeeds is working.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.evidence import check_count, cite, shorten
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer_context import ObserverContext
from watchkeeper.session.session import Session
from watchkeeper.tools.invoked import ToolInvoked, error_message


@dataclass(frozen=True, slots=True)
class ErrorCascadeDetector:
    """Tells the agent that its calls keep failing, and names the group of errors behind it.

    Attributes:
        failures: So many in a row are a cascade.
        severe: So many in a row are grave.
        name: Its name.
    """

    failures: int = 3
    severe: int = 6
    name: str = "Errors"

    def __post_init__(self) -> None:
        """Refuse thresholds that make no sense."""
        check_count("ErrorCascadeDetector", "failures", self.failures, 2)
        check_count("ErrorCascadeDetector", "severe", self.severe, self.failures)
        if not self.name.strip():
            raise ObserverError("ErrorCascadeDetector(name='') must have a name")

    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether enough calls failed in a row."""
        return context.trajectory.errors_in_a_row >= self.failures

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment:
        """Group the failures by what they have in common."""
        trajectory = context.trajectory
        row = trajectory.errors_in_a_row
        failed = trajectory.recent(row)
        kind, times = Counter(call.error for call in failed).most_common(1)[0]
        group = [call.index for call in failed if call.error == kind]
        calls: Sequence[ToolInvoked] = session[ToolInvoked].all()
        example = shorten(error_message(calls[group[-1] - 1]) or kind, 120)
        severity: Severity = "warning" if row >= self.severe else "caution"
        said = (
            f"{times} of them failed alike: {example}" if times > 1 else f"each failed differently, the last: {example}"
        )
        return Assessment(
            self.name,
            f"The last {row} tool calls failed; {said}",
            (Observation("error_cascade", f"{times} failures of one kind", cite(calls, group, errors=True)),),
            (
                "Stop and find out why before you call again; the same call will fail the same way.",
                "Check your assumptions about names, paths and arguments, or take another way.",
            ),
            severity,
        )
