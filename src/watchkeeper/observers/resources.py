"""What is left: time, tokens, money, tool calls, steps, in natural language (seed: trajectory-observers).

Its warnings speak of hard limits, so nothing can quiet them. Texts and thresholds are the seed's; money and steps are
worded alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from watchkeeper.core.budget import BudgetStatus
from watchkeeper.core.errors import ObserverError
from watchkeeper.core.quantities import format_money
from watchkeeper.observers.evidence import check_share
from watchkeeper.prompt.advice import Assessment, Severity
from watchkeeper.prompt.observer import on_loop
from watchkeeper.prompt.observer_context import ObserverContext
from watchkeeper.session.session import Session

SUGGESTIONS: Final[dict[Severity, tuple[str, ...]]] = {
    "info": (),
    "caution": ("Be mindful of remaining resources when planning next steps.",),
    "warning": (
        "Prioritize completing the most critical remaining work.",
        "Consider wrapping up with a summary of progress and remaining tasks.",
    ),
}


@dataclass(frozen=True, slots=True)
class ResourceObserver:
    """Reports what is left of each limit.

    Attributes:
        caution_threshold: Share left at which it cautions.
        warning_threshold: Share left at which it warns.
        name: Its name.
    """

    caution_threshold: float = 0.3
    warning_threshold: float = 0.1
    name: str = "Resources"

    about_limits = True

    def __post_init__(self) -> None:
        """Refuse thresholds that make no sense together."""
        check_share("ResourceObserver", "caution_threshold", self.caution_threshold)
        check_share("ResourceObserver", "warning_threshold", self.warning_threshold)
        if self.warning_threshold > self.caution_threshold:
            raise ObserverError(
                f"ResourceObserver(warning_threshold={self.warning_threshold!r}) must not exceed"
                f" caution_threshold={self.caution_threshold!r}: less is left when it warns"
            )

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whenever its trigger fires."""
        return True

    @on_loop
    def observe(self, session: Session, *, context: ObserverContext) -> Assessment:
        """Say what is left of every limit that there is."""
        said = statements_of(context.budget)
        severity = self._severity(min([left for _, left in said], default=1.0))
        summary = " ".join([statement for statement, _ in said]) or "No resource constraints configured."
        return Assessment(self.name, summary, suggestions=SUGGESTIONS[severity], severity=severity)

    def _severity(self, left: float) -> Severity:
        """Grade the share that is left of the limit of which least is left."""
        if left <= self.warning_threshold:
            return "warning"
        return "caution" if left <= self.caution_threshold else "info"


def statements_of(budget: BudgetStatus) -> list[tuple[str, float]]:
    """Return, for every limit that there is, a sentence and the share that is left of it."""
    said: list[tuple[str, float]] = []
    seconds = budget.remaining_seconds
    if seconds is not None:
        said.append(_timed(budget.elapsed_seconds, seconds))
    if budget.max_tokens is not None:
        said.append(_counted(budget.tokens_used, budget.max_tokens))
    if budget.max_cost_nanos is not None and budget.cost_nanos is not None:
        said.append(_spent(budget.cost_nanos, budget.max_cost_nanos))
    if budget.max_tool_calls is not None:
        said.append(_made(budget.tool_calls_used, budget.max_tool_calls))
    if budget.max_steps is not None:
        said.append(_taken(budget.steps_used, budget.max_steps))
    return said


def _timed(elapsed: float, left: float) -> tuple[str, float]:
    if left <= 0:
        return "You have reached the time deadline.", 0.0
    return f"You have {format_remaining(left)} remaining before the deadline.", left / (elapsed + left)


def _spent(used: int, most: int) -> tuple[str, float]:
    left = most - used
    if left <= 0:
        return "You have exhausted your cost budget.", 0.0
    said = f"You have spent {format_money(used)} of {format_money(most)} ({used / most:.0%} of budget)."
    return f"{said} {format_money(left)} remaining.", left / most


def _counted(used: int, most: int) -> tuple[str, float]:
    left = most - used
    if left <= 0:
        return "You have exhausted your token budget.", 0.0
    said = f"You have used {used:,} of {most:,} tokens ({used / most:.0%} of budget). {left:,} tokens remaining."
    return said, left / most


def _made(used: int, most: int) -> tuple[str, float]:
    left = most - used
    if left <= 0:
        return "You have exhausted your tool call budget.", 0.0
    return f"You have made {used} of {most} allowed tool calls. {left} calls remaining.", left / most


def _taken(used: int, most: int) -> tuple[str, float]:
    left = most - used
    if left <= 0:
        return "You have exhausted your step budget.", 0.0
    return f"You have taken {used} of {most} allowed steps. {left} steps remaining.", left / most


def format_remaining(seconds: float) -> str:
    """Return a length of time, rounded down, in the words of the seed: seconds, minutes, hours, days."""
    if seconds < 60:
        return f"{int(seconds)} second{'' if int(seconds) == 1 else 's'}"
    if seconds < 3600:
        minutes = int(seconds / 60)
        return f"{minutes} minute{'' if minutes == 1 else 's'}"
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 24 else f"{hours / 24:.1f} days"
