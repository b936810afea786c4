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
        at: The moment; it must carry a time zone.
    """

    at: datetime

    def __post_init__(self) -> None:
        """Refuse a naive datetime."""
        if self.at.tzinfo is None or self.at.utcoffset() is None:
            raise LimitsError(f"deadline {self.at!r} has no time zone; write datetime.now(UTC) + timedelta(...)")

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
    at = value.at if isinstance(value, Deadline) else value
    if at.tzinfo is None or at.utcoffset() is None:
        raise PromptEvaluationError(
            f"deadline {at!r} has no time zone; write datetime.now(UTC) + timedelta(...)",
            phase="preflight",
            provider_payload={"deadline": at.isoformat()},
        )
    now = clock.now()
    if at <= now or at.astimezone(UTC).replace(microsecond=0) <= now.replace(microsecond=0):
        raise PromptEvaluationError(
            f"deadline {at.isoformat()} is not in the future (now {now.isoformat()}); give at least the next second",
            phase="preflight",
            provider_payload={"deadline": at.isoformat()},
        )
    return Deadline(at)
