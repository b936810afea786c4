"""What is left of every limit, in natural language (seed: trajectory-observers).

Its warnings speak of hard limits, so nothing can quiet them. Texts and thresholds are the seed's; the limits that it
does not have are worded alike. Figures are rounded down: nothing is called used up that is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from watchkeeper.core.budget import BudgetStatus
from watchkeeper.core.errors import ObserverError
from watchkeeper.core.quantities import counted, format_money
from watchkeeper.observers.evidence import check_name, check_share
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


TOKENS: Final = ("max_total_tokens", "max_input_tokens", "max_output_tokens")

WORDS: Final = {
    "max_total_tokens": ("used", "token", "token"),
    "max_input_tokens": ("used", "input token", "input token"),
    "max_output_tokens": ("used", "output token", "output token"),
    "max_cost_usd": ("spent", "cost", ""),
    "max_tool_calls": ("made", "tool call", "call"),
    "max_steps": ("taken", "step", "step"),
    "max_turns": ("taken", "turn", "turn"),
    "max_retries": ("used", "retry", "retry"),
}
"""What is done with each limit, what it counts, and what is left of it, by the limit's name."""


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
        """Refuse a name that is none, and thresholds that make no sense together."""
        check_name("ResourceObserver", self.name)
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
    said += [_counted(name, used, most) for name, used, most in budget.counts]
    return said


def _timed(elapsed: float, left: float) -> tuple[str, float]:
    if left <= 0:
        return "You have reached the time deadline.", 0.0
    return f"You have {format_remaining(left)} remaining before the deadline.", left / (elapsed + left)


def _counted(name: str, used: int, most: int) -> tuple[str, float]:
    verb, noun, left_noun = WORDS[name]
    left = most - used
    if left <= 0:
        return f"You have exhausted your {noun} budget.", 0.0
    if name == "max_cost_usd":
        of, remaining = f"{format_money(used)} of {format_money(most)}", format_money(left)
    else:
        allowed = "" if name in TOKENS else "allowed "
        of, remaining = f"{used:,} of {plural(most, noun, allowed)}", plural(left, left_noun)
    share = f" ({percent(used, most)} of budget)" if name in TOKENS or name == "max_cost_usd" else ""
    return f"You have {verb} {of}{share}. {remaining} remaining.", left / most


def plural(amount: int, noun: str, before: str = "") -> str:
    """Return an amount with its noun: ``1 call``, ``1,000 calls``, ``2 allowed retries``."""
    return counted(amount, f"{before}{noun}", f"{before}{noun[:-1]}ies" if noun.endswith("ry") else "")


def percent(used: int, most: int) -> str:
    """Return a share, rounded down: 100% is said only of what is used up."""
    return f"{100 * used // most}%"


def format_remaining(seconds: float) -> str:
    """Return a length of time, rounded down, in the words of the seed: seconds, minutes, hours, days."""
    if seconds < 1:
        return "less than a second"
    if seconds < 60:
        return plural(int(seconds), "second")
    if seconds < 3600:
        return plural(int(seconds / 60), "minute")
    length, unit = (3600, "hour") if seconds < 86_400 else (86_400, "day")
    whole, tenth = divmod(int(10 * seconds / length), 10)
    return f"{whole:,}.{tenth} {unit}s" if tenth else plural(whole, unit)
