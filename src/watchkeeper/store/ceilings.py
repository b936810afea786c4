"""The limits that a stored run has now, in words and as numbers: those with which it went on last, else the first."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from watchkeeper.accounting.limits import Limits, over_all
from watchkeeper.core.meters import METERS
from watchkeeper.loop.used import since_beginning
from watchkeeper.session.tagging import load
from watchkeeper.store.run_file import Line

SECONDS: Final = "seconds"
"""The name of the ceiling of time."""


class InForce(NamedTuple):
    """The limits of a run.

    Attributes:
        words: In words.
        ceilings: As numbers, by the limit's field: nano-dollars for money, a count for anything else, the seconds of
            work under `SECONDS`.
    """

    words: str
    ceilings: dict[str, float]


class _Told(msgspec.Struct):
    """What the event of a run's beginning, or of its going on, says of its limits."""

    limits: str
    limit_values: msgspec.Raw = msgspec.Raw(b"null")
    deadline: datetime | None = None
    started_at: datetime | None = None
    created_at: datetime | None = None
    worked_seconds: float = 0.0


_TOLD: Final = msgspec.json.Decoder(_Told)


def in_force(began: Line, resumed: Line | None, *, many: bool) -> InForce:
    """Return the limits of a run.

    Args:
        began: The line of its beginning.
        resumed: The line of its going on last, if it did.
        many: Whether it is a run over many items.

    Raises:
        CodecError: If its limits cannot be read; also what msgspec raises, TypeError and ValueError.
    """
    told = _TOLD.decode((resumed or began).body)
    limits = _values(bytes(told.limit_values))
    if limits is None:  # written before there were values
        return InForce(told.limits, {})
    limits = since_beginning(limits, told.worked_seconds)
    if many:
        limits = over_all(limits)
    amounts = {meter.field: limits.ceiling(meter.ceiling) for meter in METERS}
    ceilings: dict[str, float] = {field: int(amount) for field, amount in amounts.items() if amount is not None}
    begin = told.started_at if resumed is None else told.created_at
    if told.deadline is not None and begin is not None:
        ceilings[SECONDS] = round((told.deadline - begin).total_seconds() + told.worked_seconds, 3)
    elif isinstance(limits.deadline, timedelta):  # a run over many items begins without the moment
        ceilings[SECONDS] = limits.deadline.total_seconds()
    return InForce(limits.describe(), ceilings)


@lru_cache(maxsize=64)
def _values(data: bytes) -> Limits | None:
    """Return limits from their JSON; cached, because many runs share them and each has them on record."""
    loaded = load(json.loads(data))
    return loaded if isinstance(loaded, Limits) else None
