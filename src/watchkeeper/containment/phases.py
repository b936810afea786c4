"""When the work of a context is over, and when everything is.

Both instants are fixed once, when it is opened, on the monotonic clock: a system clock that is changed later neither
stretches nor cuts a run. What is below ends with the work of what is above.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from watchkeeper.containment.account import Account
from watchkeeper.core.clock import Clock
from watchkeeper.core.deadline import Deadline


class Phases(NamedTuple):
    """The ends of a context as wall times, for people: of everything, and of the work; None without a deadline."""

    deadline: Deadline | None
    work_deadline: Deadline | None


def start_time(account: Account, parent: tuple[Account, Phases] | None, clock: Clock) -> Phases:
    """Open an account in time: fix its own ends, or the end of the parent's work if that is earlier.

    For one that speaks its parent's verdict, it is the end of everything there.

    Args:
        account: Its instants are set.
        parent: The account of the context above, and its ends.
        clock: Where time comes from.
    """
    limits = account.limits
    now = account.opened_at = clock.monotonic()
    deadline = limits.start(clock)
    if isinstance(limits.deadline, timedelta):
        account.deadline_at = now + limits.deadline.total_seconds()
    elif deadline is not None:
        account.deadline_at = deadline.instant(clock)
    if parent is not None:
        above, ends = parent
        end, wall = (above.deadline_at, ends.deadline) if account.speaks else (above.work_until, ends.work_deadline)
        if end < account.deadline_at:
            account.deadline_at, deadline = end, wall
    account.work_until, work_deadline = account.deadline_at, deadline
    if limits.landing is not None and deadline is not None:
        kept = limits.landing.seconds(max(account.deadline_at - now, 0.0))
        account.work_until -= kept
        work_deadline = Deadline(deadline.at - timedelta(seconds=kept))
    return Phases(deadline, work_deadline)


def keep_time(account: Account, deadline: Deadline | None) -> Deadline | None:
    """Keep time for a verdict before the end of everything; return the end of the work, which comes earlier by it.

    What is kept for a landing turn and for the verdict is together never more than half of the time: where it would
    be, both give way in proportion.
    """
    verdict, whole = account.limits.verdict, account.deadline_at - account.opened_at
    if verdict is None or deadline is None:
        return deadline
    seconds, landing = verdict.seconds(whole), account.deadline_at - account.work_until
    shrunk = min(1.0, max(whole, 0.0) / 2 / (seconds + landing)) if seconds else 1.0
    account.kept_seconds = seconds * shrunk
    account.work_until = account.deadline_at - (seconds + landing) * shrunk
    return Deadline(deadline.at - timedelta(seconds=account.deadline_at - account.work_until))
