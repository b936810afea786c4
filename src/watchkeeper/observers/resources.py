"""What is left of every limit, in natural language (seed: trajectory-observers).

Its warnings speak of hard limits, so nothing can quiet them. Texts and thresholds are the seed's; the limits that it
does not have are worded alike. Figures are rounded down: nothing is called used up that is not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Final

from watchkeeper.core.budget import BudgetStatus
from watchkeeper.core.errors import ObserverError
from watchkeeper.core.quantities import counted, format_money
from watchkeeper.observers.evidence import check_count, check_name, check_share, line_of
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import ObserverContext, on_loop
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked

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


# --- pace -----------------------------------------------------------------------------------------------------------
# Whether the budget will last: which limit ends the run first at the present rate, and when.
#
# The rate is that of the whole run so far, of all that is counted but retries, which come in bursts. It says nothing
# before enough is used to judge, nothing once a limit is used up, and nothing while every other limit lasts until the
# deadline. Its warnings speak of hard limits, so nothing can quiet them.

PACE_WORDS: Final = {
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
        said = f"At the present rate {PACE_WORDS[first][0]} will be used up in about {_about(lasts)} ({about})"
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
    for name in PACE_WORDS:
        share = shares.get(name, 0.0)
        if share > most:
            first, most = name, share
    return first, most


def _about(seconds: float) -> str:
    return format_remaining(max(seconds, 1.0))


def _figures(name: str, used: int, most: int) -> str:
    """Return what is used of a limit, in the words of the one who reads it."""
    unit = PACE_WORDS[name][1]
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
