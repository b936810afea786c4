"""How full each limit of a run is at one moment, and which one ends the run first at its mean rate.

The figures come from the gate, from any thread and without a lock, so reading them costs the run nothing. Of each limit
what is used, reserved and left adds up to the limit. Of time, what is reserved is kept for a last turn and a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from watchkeeper.accounting.account import PRESUMED_COST, PRESUMED_INPUT, PRESUMED_OUTPUT, Account
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.meters import BY_FIELD, COLUMNS, METERS, SHARED, TOLD
from watchkeeper.core.quantities import format_duration, format_money

DEADLINE: Final = "deadline"
ACCOUNT_LIMIT: Final = "account_limit"

LEAST_CALLS: Final = 5
"""Calls before which no end is projected: a mean of fewer says nothing."""

PRESUMED: Final[Mapping[str, tuple[int, ...]]] = {
    "cost_nanos": (PRESUMED_COST,),
    "total_tokens": (PRESUMED_INPUT, PRESUMED_OUTPUT),
    "input_tokens": (PRESUMED_INPUT,),
    "output_tokens": (PRESUMED_OUTPUT,),
}
"""By column, where an account counts the part of it that is presumed."""


class Gauge(msgspec.Struct, frozen=True):
    """One limit at one moment.

    Attributes:
        limit: Its name in `Limits`; ``account_limit`` for that of an account that several runs share.
        used: What is used, in its unit: nano-dollars of money, milliseconds of time.
        most: The limit.
        reserved: What calls under way and the last turn may still use.
        presumed: The part of what is used that is a worst case, because nobody knows the true figure.
        column: What is counted: a column of `core.meters`, or ``time``.
    """

    limit: str
    used: int
    most: int
    reserved: int = 0
    presumed: int = 0
    column: str = ""

    @property
    def left(self) -> int:
        """What is neither used nor reserved."""
        return max(self.most - self.used - self.reserved, 0)

    @property
    def name(self) -> str:
        """What people call it: ``tokens``, ``money``, ``time``."""
        return "account" if self.limit == ACCOUNT_LIMIT else named(self.column)

    def figure(self, number: int) -> str:
        """Write an amount of it without a unit, except for money and time."""
        if self.column == "time":
            return format_duration(number / 1000)
        return format_money(number) if self.column == "cost_nanos" else f"{number:,}"

    @property
    def share(self) -> float:
        """What share of the limit is used."""
        return self.used / self.most if self.most else 1.0


NAMES: Final[Mapping[str, str]] = {
    meter.column: "money" if meter.measures == "money" else meter.units for meter in METERS
}
"""What people call what is counted, by column."""


def named(column: str) -> str:
    """Return what people call what is counted in a column."""
    return NAMES.get(column, column)


def gauges_of(gate: ExecutionContext, turns: int | None = None) -> tuple[Gauge, ...]:
    """Return a gauge for every limit that is set, in the order in which limits are told.

    Retries are told from the first one on, and money is left out while nobody knows what was spent.

    Args:
        gate: The gate of the run.
        turns: Model turns taken, which only the loop counts; None to say nothing of turns.
    """
    account, gauges = gate.account, list[Gauge]()
    if account.deadline is not None:
        gauges.append(_time(account, gate.elapsed_seconds))
    for meter in TOLD:
        if not meter.shared:
            most = account.limits.ceiling(meter.ceiling)
            if most is not None and turns is not None:
                gauges.append(Gauge(meter.field, turns, most, column=meter.column))
            continue
        count = SHARED.index(meter)
        most, used = account.tops[count], account.settled[count]
        unknown = account.unpriced and meter.measures == "money"
        if most is not None and not unknown and (used or not meter.occasional):
            gauges.append(_counted(account, count, most, meter.field))
    return (*gauges, *_shared(account))


def _counted(account: Account, count: int, most: int, name: str) -> Gauge:
    """Return the gauge of what an account counts, as it stands there."""
    column, settled = COLUMNS[count], account.settled
    used, reserved = settled[count], account.reserved[count]
    presumed = sum(settled[each] for each in PRESUMED.get(column, ()))
    return Gauge(name, used, most, max(min(reserved, most - used), 0), min(presumed, used), column)


def _time(account: Account, elapsed: float) -> Gauge:
    """Return the gauge of the deadline: what is kept for the end counts as reserved."""
    whole, used = round(account.whole_seconds * 1000), round(elapsed * 1000)
    kept = round((account.deadline_at - account.work_until) * 1000)
    used = min(used, whole)
    return Gauge(DEADLINE, used, whole, min(kept, whole - used), column="time")


def _shared(account: Account) -> Iterator[Gauge]:
    """Yield the gauge of the account that several runs share, if there is one."""
    for level in account.chain[1:]:
        if level.period is not None:
            for count, most in enumerate(level.tops):
                if most is not None:
                    yield _counted(level, count, most, ACCOUNT_LIMIT)


class End(msgspec.Struct, frozen=True):
    """Which limit ends the run first, if it goes on as it did.

    Attributes:
        limit: Name of the limit.
        column: What it counts, as in `Gauge`.
        seconds: From now.
    """

    limit: str
    column: str
    seconds: float


def projected_end(before: Sequence[Gauge], now: Sequence[Gauge], calls: int, elapsed: float) -> End | None:
    """Return which limit is used up first at the mean rate of the whole run; None below five calls, or without limits.

    Retries are not projected, because failures come in bursts; nor is an account that other runs draw on, too.

    Args:
        before: The gauges when the run began; a resumed one has used something then.
        now: The gauges now.
        calls: How many calls it made from then to now.
        elapsed: Seconds from then to now.
    """
    if calls < LEAST_CALLS:
        return None
    began = {gauge.limit: gauge.used for gauge in before}
    ends: list[End] = []
    for gauge in now:
        if gauge.limit == DEADLINE:
            ends.append(End(gauge.limit, gauge.column, (gauge.most - gauge.used) / 1000))
            continue
        meter = BY_FIELD.get(gauge.limit)
        used = gauge.used - began.get(gauge.limit, 0)
        if meter is not None and not meter.occasional and used > 0:
            ends.append(End(gauge.limit, gauge.column, elapsed * max(gauge.most - gauge.used, 0) / used))
    return min(ends, key=lambda end: end.seconds, default=None)
