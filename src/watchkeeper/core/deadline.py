"""A moment at which work must be over.

`Deadline` holds an aware wall time, because that is what people and other machines understand; whoever enforces it
turns it once into a monotonic instant, so that a changed system clock cannot stretch a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import LimitsError, PromptEvaluationError
from watchkeeper.core.quantities import DurationLike, duration


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """An aware moment.

    Attributes:
        at: The moment; it must carry a time zone, and is held in UTC.
    """

    at: datetime

    def __post_init__(self) -> None:
        """Refuse what is no moment; normalise to UTC, because two moments of one zone compare by its clocks' faces.

        Raises:
            LimitsError: If it is not a datetime or has no time zone.
        """
        object.__setattr__(self, "at", _in_utc(self.at))

    @classmethod
    def after(cls, length: DurationLike, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Return the deadline that lies ``length`` from now."""
        return cls(clock.now() + duration(length, "deadline"))

    def remaining(self, clock: Clock = SYSTEM_CLOCK) -> timedelta:
        """Return the time left; negative once it is over."""
        return self.at - clock.now()

    def expired(self, clock: Clock = SYSTEM_CLOCK) -> bool:
        """Return whether the moment has come."""
        return clock.now() >= self.at

    def instant(self, clock: Clock = SYSTEM_CLOCK) -> float:
        """Return the same moment on the clock's monotonic scale."""
        return clock.monotonic() + self.remaining(clock).total_seconds()


def _in_utc(at: object) -> datetime:
    if not isinstance(at, datetime):
        raise LimitsError(f"deadline {at!r} is not a datetime; for a length write Deadline.after('30m')")
    if at.tzinfo is UTC:
        return at
    if at.utcoffset() is None:
        raise LimitsError(f"deadline {at!r} has no time zone; write datetime.now(UTC) + timedelta(...)")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise LimitsError(f"deadline {at!r} lies beyond the calendar in UTC") from None


DeadlineLike = Deadline | datetime | timedelta | str


def earliest(*deadlines: Deadline | None) -> Deadline | None:
    """Return the tightest of the deadlines that are set, or None."""
    given = [deadline for deadline in deadlines if deadline is not None]
    return min(given) if given else None


def checked_deadline(value: Deadline | datetime | None, clock: Clock) -> Deadline | None:
    """Check a deadline that a caller handed to ``evaluate`` (seed: deadlines, "API Changes").

    Raises:
        PromptEvaluationError: With phase ``preflight`` if it is naive, past, or within the current second.
    """
    if value is None:
        return None
    try:
        deadline = value if isinstance(value, Deadline) else Deadline(value)
    except LimitsError as error:
        raise PromptEvaluationError(
            str(error), phase="preflight", provider_payload={"deadline": _written(value)}
        ) from error
    now = clock.now()
    if deadline.at.replace(microsecond=0) <= now.replace(microsecond=0):
        written = deadline.at.isoformat()
        raise PromptEvaluationError(
            f"deadline {written} is not in the future (now {now.isoformat()}); give at least the next second",
            phase="preflight",
            provider_payload={"deadline": written},
        )
    return deadline


def _written(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
