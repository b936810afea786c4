"""Whether the budget will last: which limit ends the run first at the present rate, and when.

The rate is that of the whole run so far. It says nothing before enough is used to judge, nothing once a limit is used
up, and nothing while every other limit lasts until the deadline. Its warnings speak of hard limits, so
nothing can quiet them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.evidence import check_count, check_share
from watchkeeper.observers.resources import format_remaining
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import on_loop
from watchkeeper.prompt.observer_context import ObserverContext
from watchkeeper.session.session import Session

WORDS: Final = {
    "max_total_tokens": "the token budget",
    "max_cost_usd": "the cost budget",
    "max_tool_calls": "the tool calls",
    "max_steps": "the steps",
}
"""What is projected, by the limit's name."""

SUGGESTION: Final = "Do less per step, or drop what matters least, so that the budget lasts."


@dataclass(frozen=True, slots=True)
class PaceEstimator:
    """Tells the agent which limit it will run into first, and when.

    With a deadline it speaks only if a limit comes before it. Without one there is nothing to last until: it then
    informs, and never warns.

    Attributes:
        least_used: The share of a limit that must be used before its rate says anything.
        least_calls: So many tool calls must have been made in this run before.
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

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether there is enough to judge."""
        budget = context.budget
        if budget.tool_calls_used < self.least_calls or budget.elapsed_seconds <= 0:
            return False
        return self.least_used <= _first(budget.shares)[1] < 1

    @on_loop
    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Project every limit; speak of the one that comes first."""
        budget = context.budget
        first, share = _first(budget.shares)
        elapsed, calls = budget.elapsed_seconds, budget.tool_calls_used
        if not self.least_used <= share < 1:
            return None
        lasts = elapsed * (1 - share) / share
        more = int(calls * (1 - share) / share)
        said = f"At the present rate {WORDS[first]} will be used up in about {_about(lasts)}"
        said += f" (about {more} more tool call{'' if more == 1 else 's'})"
        severity: Severity = "info"
        if budget.remaining_seconds is not None:
            if lasts >= budget.remaining_seconds:
                return None
            said += f", before the deadline in {_about(budget.remaining_seconds)}"
            whole = elapsed + budget.remaining_seconds
            severity = "warning" if elapsed + lasts < self.warning_share * whole else "caution"
        evidence = f"{first}: {share:.0%} used in {_about(elapsed)}, {calls} tool calls"
        suggestions = () if severity == "info" else (SUGGESTION,)
        return Assessment(self.name, f"{said}.", (Observation("pace", evidence),), suggestions, severity)


def _first(shares: Mapping[str, float]) -> tuple[str, float]:
    """Return the limit that is used up first at the present rate, which is the one most used, and its share."""
    first, most = "", 0.0
    for name in WORDS:
        share = shares.get(name, 0.0)
        if share > most:
            first, most = name, share
    return first, most


def _about(seconds: float) -> str:
    return format_remaining(max(seconds, 1.0))
