"""Whether the budget will last: which limit ends the run first at the present rate, and when.

The rate is that of the whole run so far. It says nothing before enough is used to judge, and nothing while every limit
but the deadline lasts until the deadline. Its warnings speak of hard limits, so nothing can quiet them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.evidence import check_count, check_share
from watchkeeper.observers.resources import format_remaining
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer_context import ObserverContext
from watchkeeper.session.session import Session

WORDS: Final = {
    "max_total_tokens": "the token budget",
    "max_cost_usd": "the cost budget",
    "max_tool_calls": "the tool calls",
    "max_steps": "the steps",
}


@dataclass(frozen=True, slots=True)
class PaceEstimator:
    """Tells the agent which limit it will run into first, and when.

    Attributes:
        least_used: The share of a limit that must be used before its rate says anything.
        least_calls: So many tool calls must have been made before.
        warning_share: It warns if the run would end before this share of its time; else it cautions.
        name: Its name.
    """

    least_used: float = 0.1
    least_calls: int = 5
    warning_share: float = 0.6
    name: str = "Pace"

    about_limits = True

    def __post_init__(self) -> None:
        """Refuse thresholds that make no sense."""
        check_share("PaceEstimator", "least_used", self.least_used)
        check_share("PaceEstimator", "warning_share", self.warning_share)
        check_count("PaceEstimator", "least_calls", self.least_calls)
        if not self.name.strip():
            raise ObserverError("PaceEstimator(name='') must have a name")

    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether there is enough to judge."""
        return context.trajectory.count >= self.least_calls and context.budget.elapsed_seconds > 0

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Project every limit; speak of the one that comes first."""
        budget = context.budget
        elapsed = budget.elapsed_seconds
        lasting = {
            name: elapsed * (1 - share) / share
            for name, share in budget.shares.items()
            if name in WORDS and share >= self.least_used
        }
        if not lasting:
            return None
        first = min(lasting, key=lambda name: lasting[name])
        seconds = lasting[first]
        whole = None if budget.remaining_seconds is None else elapsed + budget.remaining_seconds
        if whole is not None and elapsed + seconds >= whole:
            return None
        share = budget.shares[first]
        severity: Severity = "info"
        if whole is not None:
            severity = "warning" if elapsed + seconds < self.warning_share * whole else "caution"
        said = f"At the present rate {WORDS[first]} will be used up in about {format_remaining(max(seconds, 1.0))}"
        if whole is not None and budget.remaining_seconds is not None:
            said += f", before the deadline in {format_remaining(budget.remaining_seconds)}"
        used = f"{share:.0%} used in {format_remaining(max(elapsed, 1.0))}, {context.trajectory.count} tool calls"
        return Assessment(
            self.name,
            f"{said}.",
            (Observation("pace", f"{first}: {used}"),),
            () if severity == "info" else ("Do less per step, or drop what matters least, so that the budget lasts.",),
            severity,
        )
