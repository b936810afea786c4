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


def start_time(account: Account, parent: tuple[Account, Deadline | None] | None, clock: Clock) -> Phases:
    """Open an account in time: fix its own ends, or the end of the parent's work if that is earlier.

    Args:
        account: Its instants are set.
        parent: The account of the context above, and the end of its work.
        clock: Where time comes from.
    """
    limits = account.limits
    now = account.opened_at = clock.monotonic()
    deadline = limits.start(clock)
    if isinstance(limits.deadline, timedelta):
        account.deadline_at = now + limits.deadline.total_seconds()
    elif deadline is not None:
        account.deadline_at = deadline.instant(clock)
    if parent is not None and parent[0].work_until < account.deadline_at:
        account.deadline_at, deadline = parent[0].work_until, parent[1]
    account.work_until, work_deadline = account.deadline_at, deadline
    if limits.landing is not None and deadline is not None:
        kept = limits.landing.seconds(max(account.deadline_at - now, 0.0))
        account.work_until -= kept
        work_deadline = Deadline(deadline.at - timedelta(seconds=kept))
    return Phases(deadline, work_deadline)
