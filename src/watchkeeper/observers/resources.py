"""What is left of every limit (`ResourceObserver`), and which limit ends the run first (`PaceEstimator`).

Both report on hard limits, so an agent cannot silence their warnings. Figures are rounded down, so that a limit is not
reported as used up before it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Final

from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.core.errors import ObserverError
from watchkeeper.core.meters import BY_FIELD, TOLD, LimitMeter
from watchkeeper.core.quantities import counted
from watchkeeper.observers.evidence import check_settings, line_of
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


MADE_AT: Final = attrgetter("created_at")


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
        """Refuse an empty name, and thresholds that are out of range or in the wrong order.

        Raises:
            ObserverError: Naming the field and its value.
        """
        check_settings(self, "caution_threshold", "warning_threshold")
        if self.warning_threshold > self.caution_threshold:
            raise ObserverError(
                f"ResourceObserver(warning_threshold={self.warning_threshold!r}) must not exceed"
                f" caution_threshold={self.caution_threshold!r}: the warning comes later, with less left"
            )

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Return True: it is asked whenever its trigger fires."""
        return True

    @on_loop
    def observe(self, session: Session, *, context: ObserverContext) -> Assessment:
        """Report what is left of every limit that is set."""
        said = statements_of(context.budget)
        severity = self._severity(min([left for _, left in said], default=1.0))
        summary = " ".join([statement for statement, _ in said]) or "No resource constraints configured."
        return Assessment(self.name, summary, suggestions=SUGGESTIONS[severity], severity=severity)

    def _severity(self, left: float) -> Severity:
        """Return the severity for the smallest share that is left of a limit."""
        if left <= self.warning_threshold:
            return "warning"
        return "caution" if left <= self.caution_threshold else "info"


def statements_of(budget: BudgetStatus) -> list[tuple[str, float]]:
    """Return, for every limit that is set, a sentence and the share that is left of it."""
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
    meter = BY_FIELD[name]
    left = most - used
    if left <= 0:
        return f"You have exhausted your {meter.unit} budget.", 0.0
    remaining = counted(left, meter.left_unit) if meter.left_unit else meter.amount(left)
    of = used_of(meter, used, most, "allowed " if meter.is_counted else "")
    share = "" if meter.is_counted else f" ({percent(used, most)} of budget)"
    return f"You have {meter.verb} {of}{share}. {remaining} remaining.", left / most


def used_of(meter: LimitMeter, used: int, most: int, before: str = "") -> str:
    """Return what is used of a limit, in its unit: ``3 of 10 tool calls``, ``$0.10 of $1``."""
    most_said = counted(most, f"{before}{meter.unit}", f"{before}{meter.units}") if before else meter.amount(most)
    return f"{meter.figure(used)} of {most_said}"


def percent(used: int, most: int) -> str:
    """Return a share in per cent, rounded down, so that 100% means that nothing is left."""
    return f"{100 * used // most}%"


def format_remaining(seconds: float) -> str:
    """Return a length of time, rounded down, in words: seconds, minutes, hours, days."""
    if seconds < 1:
        return "less than a second"
    if seconds < 60:
        return counted(int(seconds), "second")
    if seconds < 3600:
        return counted(int(seconds / 60), "minute")
    length, unit = (3600, "hour") if seconds < 86_400 else (86_400, "day")
    whole, tenth = divmod(int(10 * seconds / length), 10)
    return f"{whole:,}.{tenth} {unit}s" if tenth else counted(whole, unit)


@dataclass(frozen=True, slots=True)
class PaceEstimator:
    """Tells the agent which limit it will reach first at the present rate, and when.

    The rate is the mean of the whole run so far. With a deadline, it reports only a limit that will be reached before
    the deadline; without one, the severity is always ``info``. Retries are not projected, because failures come in
    bursts.

    Attributes:
        least_used: The share of a limit that must be used before it is projected.
        least_calls: The number of tool calls of this run before the first projection.
        warning_share: The severity is ``warning`` if the limit will be reached before this share of the run's time,
            else ``caution``.
        name: Its name.
    """

    least_used: float = 0.1
    least_calls: int = 5
    warning_share: float = 0.6
    name: str = "Pace"

    about_limits = True

    def __post_init__(self) -> None:
        """Refuse an empty name, and thresholds out of range.

        Raises:
            ObserverError: Naming the field and its value.
        """
        check_settings(self, "least_used", "warning_share", least_calls=(1, None))

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether enough calls were made and enough of a limit is used for a projection."""
        budget = context.budget
        if budget.tool_calls_used < self.least_calls or budget.elapsed_seconds <= 0:
            return False
        return self.least_used <= _first(budget.shares)[1] < 1

    @on_loop
    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Project every limit and report the one that will be reached first."""
        budget = context.budget
        first, share = _first(budget.shares)
        if not self.least_used <= share < 1:
            return None
        used, most = next((used, most) for name, used, most in budget.counts if name == first)
        elapsed, calls = budget.elapsed_seconds, budget.tool_calls_used
        lasts = elapsed * (most - used) / used
        more = calls * (most - used) // used
        about = f"about {counted(more, 'more tool call')}" if more else "less than one more tool call"
        meter = BY_FIELD[first]
        what = meter.units if meter.is_counted else f"{meter.unit} budget"
        said = f"At the present rate the {what} will be used up in about {_about(lasts)} ({about})"
        severity: Severity = "info"
        if budget.remaining_seconds is not None:
            if lasts >= budget.remaining_seconds:
                return None
            said += f", before the deadline in {_about(budget.remaining_seconds)}"
            whole = elapsed + budget.remaining_seconds
            severity = "warning" if elapsed + lasts < self.warning_share * whole else "caution"
        of = f"{used_of(meter, used, most)} ({percent(used, most)})"
        rate = f"{of} used in {_about(elapsed)} with {counted(calls, 'tool call')}"
        advice = f"{meter.remedy}, or drop what matters least, so that the budget lasts."
        suggestions = () if severity == "info" else (advice,)
        return Assessment(self.name, f"{said}.", (Observation("pace", rate, _cited(context)),), suggestions, severity)


def _first(shares: Mapping[str, float]) -> tuple[str, float]:
    """Return the limit that is reached first at the present rate, which is the one most used, and its used share."""
    first, most = "", 0.0
    for meter in TOLD:
        share = 0.0 if meter.occasional else shares.get(meter.field, 0.0)
        if share > most:
            first, most = meter.field, share
    return first, most


def _about(seconds: float) -> str:
    return format_remaining(max(seconds, 1.0))


def _cited(context: ObserverContext) -> str | None:
    """Return the first and the newest call of this run, from which the rate is computed."""
    calls = context.session[ToolInvoked].all()
    first, last = 1, len(calls)
    if context.now is not None:  # an earlier run of the session has a rate of its own
        began = context.now - timedelta(seconds=context.budget.elapsed_seconds)
        first = bisect_right(calls, began, key=MADE_AT) + 1
    lines = [line_of(calls[index - 1], index) for index in sorted({first, last}) if first <= index <= last]
    if last - first > 1:
        lines.insert(1, f"... {last - first - 1:,} more ...")
    return "\n".join(lines) or None
