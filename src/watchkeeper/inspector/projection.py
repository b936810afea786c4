"""When limits will be used up if a run goes on as it did: a band between two rates.

One edge is the mean rate of the whole run, the other that of its last fifth. Of a run whose calls differ by chance
alone both are nearly the same, and the true end lies beside them more often than between them. So each edge is moved
outwards by what chance does: calls differ, those that were and those that are still to come, and the last one may be
one more or one less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from watchkeeper.core.meters import BY_FIELD
from watchkeeper.inspector.calls import Node
from watchkeeper.store.ceilings import SECONDS

LEAST_CALLS: Final = 5
"""Calls before which nothing is projected: a mean of fewer says nothing."""

LAST_SHARE: Final = 5
"""The later rate is that of the last fifth."""

LIKELY: Final = 1.64
"""How many standard deviations have nine of ten values between them; a run that changes as it goes needs the tenth."""


class Projection(msgspec.Struct, frozen=True):
    """When one limit is used up; times in milliseconds after the start.

    Attributes:
        key: The limit's field.
        early: If it goes on at the higher rate.
        late: At the lower rate; None for never.
        likely: At the mean rate of the whole run.
    """

    key: str
    early: float
    late: float | None
    likely: float


def projections(
    ceilings: Mapping[str, float], nodes: Iterable[Node], now: float, since: float = 0.0, worked: float | None = None
) -> tuple[Projection, ...]:
    """Return when each limit will be used up, the first one first; nothing below five calls.

    Retries are not projected: failures come in bursts. The time is certain, so its band has no width.

    Args:
        ceilings: The limits in force, as in `StoredRun.ceilings`.
        nodes: The calls.
        now: The moment, in milliseconds after the start.
        since: The moment from which on use counts.
        worked: Seconds for which the run has worked; all of the time if None, as of a run that was never resumed.
    """
    calls = [(node.end, node.used.by_field()) for node in nodes if node.end is not None and node.end >= since]
    calls = sorted((each for each in calls if each[1]["max_steps"]), key=lambda each: each[0])
    length = now - since
    if len(calls) < LEAST_CALLS or length <= 0:
        return ()
    found: list[Projection] = []
    for key, ceiling in ceilings.items():
        if key == SECONDS:
            end = now + max(0.0, ceiling * 1000 - (now if worked is None else worked * 1000))
            found.append(Projection(key, end, end, end))
        elif not BY_FIELD[key].occasional:
            band = _band(ceiling, [(end - since, amounts[key]) for end, amounts in calls], length)
            if band is not None:
                early, late, likely = band
                found.append(Projection(key, now + early, None if late is None else now + late, now + likely))
    return tuple(sorted(found, key=lambda each: each.likely))


def _band(
    ceiling: float, calls: Sequence[tuple[float, int]], length: float
) -> tuple[float, float | None, float] | None:
    """Return in how many milliseconds a limit is used up: early, late (None for never), likely; None without use.

    Args:
        ceiling: The limit.
        calls: When each call ended, and what it had used, sorted.
        length: For how long that was.
    """
    used = sum(amount for _, amount in calls)
    if not used:
        return None
    mean, last = used / length, sum(amount for end, amount in calls if end > length * (1 - 1 / LAST_SHARE))
    rates = sorted((mean, last * LAST_SHARE / length))
    left = max(0.0, ceiling - used)
    ahead = max(1.0, left * len(calls) / used)
    spread = LIKELY * _unevenness(calls, mean) * math.sqrt(1 / len(calls) + 1 / ahead)
    one = length / len(calls)
    early = max(0.0, left / (rates[1] * (1 + spread)) - one)
    late = None if not rates[0] else left * (1 + spread) / rates[0] + one
    return early, late, left / mean


def _unevenness(calls: Sequence[tuple[float, int]], mean: float) -> float:
    """Return by what share of a usual call a call deviates from a steady rate."""
    before, squares = 0.0, 0.0
    for end, amount in calls:
        squares += (amount - mean * (end - before)) ** 2
        before = end
    usual = sum(amount for _, amount in calls) / len(calls)
    return math.sqrt(squares / len(calls)) / usual
