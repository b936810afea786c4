"""Dollars that somebody says a call costs, as whole nano-dollars."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final

from watchkeeper.core.errors import LimitsError
from watchkeeper.core.usage import NANOS_PER_USD

Dollars = Decimal | str | float
LARGEST: Final = 10_000_000_000


def nanos(usd: Dollars, field: str) -> int:
    """Return an amount in nano-dollars, rounded up; 0 is an amount too.

    Raises:
        LimitsError: If it is not a finite amount of at least 0 and at most ten billion dollars.
    """
    if isinstance(usd, float | int) and not isinstance(usd, bool):
        if 0 <= usd <= LARGEST:
            return math.ceil(round(usd * NANOS_PER_USD, 3))
    else:
        try:
            amount = Decimal(usd)
        except (InvalidOperation, TypeError, ValueError):
            amount = Decimal("NaN")
        if amount.is_finite() and 0 <= amount <= LARGEST and not isinstance(usd, bool):
            return int((amount * NANOS_PER_USD).to_integral_value(rounding=ROUND_CEILING))
    raise LimitsError(f"{field}={usd!r} must be a finite number of dollars, 0 or more")
