"""Whether the budget will last: which limit ends the run first at the present rate, and when.

The rate is that of the whole run so far, of all that is counted but retries, which come in bursts. It says nothing
before enough is used to judge, nothing once a limit is used up, and nothing while every other limit lasts until the
deadline. Its warnings speak of hard limits, so nothing can quiet them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Final

from watchkeeper.core.quantities import format_money
from watchkeeper.observers.evidence import check_count, check_name, check_share, line_of
from watchkeeper.observers.resources import format_remaining, percent, plural
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import on_loop
from watchkeeper.prompt.observer_context import ObserverContext
from watchkeeper.session.session import Session
from watchkeeper.tools.invoked import ToolInvoked

WORDS: Final = {
    "max_total_tokens": ("the token budget", "token"),
    "max_input_tokens": ("the input token budget", "input token"),
    "max_output_tokens": ("the output token budget", "output token"),
    "max_cost_usd": ("the cost budget", ""),
    "max_tool_calls": ("the tool calls", "tool call"),
    "max_steps": ("the steps", "step"),
    "max_turns": ("the turns", "turn"),
}
"""What is projected and what it counts, by the limit's name."""

REMEDIES: Final = {
    "max_tool_calls": "Get more out of each call",
    "max_steps": "Get more out of each call",
    "max_turns": "Do more in each turn",
}
"""What stretches a limit, by its name; what is measured and not counted lasts if each step takes less of it."""

MADE_AT: Final = attrgetter("created_at")


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
        """Refuse a name that is none, and thresholds that make no sense."""
        check_name("PaceEstimator", self.name)
        check_share("PaceEstimator", "least_used", self.least_used)
        check_share("PaceEstimator", "warning_share", self.warning_share)
        check_count("PaceEstimator", "least_calls", self.least_calls)

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
        if not self.least_used <= share < 1:
            return None
        used, most = next((used, most) for name, used, most in budget.counts if name == first)
        elapsed, calls = budget.elapsed_seconds, budget.tool_calls_used
        lasts = elapsed * (most - used) / used
        more = calls * (most - used) // used
        about = f"about {plural(more, 'more tool call')}" if more else "less than one more tool call"
        said = f"At the present rate {WORDS[first][0]} will be used up in about {_about(lasts)} ({about})"
        severity: Severity = "info"
        if budget.remaining_seconds is not None:
            if lasts >= budget.remaining_seconds:
                return None
            said += f", before the deadline in {_about(budget.remaining_seconds)}"
            whole = elapsed + budget.remaining_seconds
            severity = "warning" if elapsed + lasts < self.warning_share * whole else "caution"
        rate = f"{_figures(first, used, most)} used in {_about(elapsed)} with {plural(calls, 'tool call')}"
        observed = Observation("pace", rate, _cited(context))
        return Assessment(self.name, f"{said}.", (observed,), _suggestions(first, severity), severity)


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


def _figures(name: str, used: int, most: int) -> str:
    """Return what is used of a limit, in the words of the one who reads it."""
    unit = WORDS[name][1]
    of = f"{used:,} of {plural(most, unit)}" if unit else f"{format_money(used)} of {format_money(most)}"
    return f"{of} ({percent(used, most)})"


def _suggestions(name: str, severity: Severity) -> tuple[str, ...]:
    if severity == "info":
        return ()
    remedy = REMEDIES.get(name, "Do less per step")
    return (f"{remedy}, or drop what matters least, so that the budget lasts.",)


def _cited(context: ObserverContext) -> str | None:
    """Return the calls that the rate is of, which are those of this run: the first and the newest of them."""
    calls = context.session[ToolInvoked].all()
    first, last = 1, len(calls)
    if context.now is not None:  # an earlier run of the session has a rate of its own
        began = context.now - timedelta(seconds=context.budget.elapsed_seconds)
        first = bisect_right(calls, began, key=MADE_AT) + 1
    lines = [line_of(calls[index - 1], index) for index in sorted({first, last}) if first <= index <= last]
    if last - first > 1:
        lines.insert(1, f"... {last - first - 1:,} more ...")
    return "\n".join(lines) or None
