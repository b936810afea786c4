"""Amounts that people write: durations, money, counts.

"30m", "1h30m", "90s", timedelta or seconds; "$2", "2.50", Decimal, int or float dollars; "500k", "2M", 500_000.
Everything is parsed once, at the border, into timedelta, integer nano-dollars or int; what makes no sense is a
LimitsError that names the field and the value.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import ROUND_DOWN, Decimal, InvalidOperation
from typing import Final

from watchkeeper.core.errors import LimitsError
from watchkeeper.core.usage import NANOS_PER_USD

DurationLike = timedelta | str | int | float
MoneyLike = Decimal | str | int | float
CountLike = str | int

_UNITS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|d|h|m|s)")
_COUNT: Final = re.compile(r"(\d[\d_,]*(?:\.\d+)?)\s*([kKmM]?)")
_LARGEST_SECONDS: Final = 10 * 365 * 86_400.0
_LARGEST_USD: Final = Decimal(10_000_000_000)
_LARGEST_COUNT: Final = 2**62


def duration(value: DurationLike, field: str) -> timedelta:
    """Parse a positive duration; a bare number is seconds.

    Raises:
        LimitsError: If it is not a duration, not finite, not positive, or longer than ten years.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        seconds = _seconds_of_text(value, field)
    elif isinstance(value, bool):
        raise LimitsError(f"{field}={value!r} is not a duration; write '30m', '90s', a timedelta or seconds")
    else:
        seconds = float(value)
    if not math.isfinite(seconds) or seconds <= 0 or seconds > _LARGEST_SECONDS:
        raise LimitsError(f"{field}={value!r} must be more than 0 and at most ten years")
    return timedelta(seconds=seconds)


def _seconds_of_text(text: str, field: str) -> float:
    compact = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", compact):
        return float(compact)
    total, end = 0.0, 0
    for match in _DURATION_PART.finditer(compact):
        if compact[end : match.start()].strip():
            break
        total += float(match[1]) * _UNITS[match[2]]
        end = match.end()
    if end == 0 or compact[end:].strip():
        raise LimitsError(f"{field}={text!r} is not a duration; write for example '30m', '1h30m' or '90s'")
    return total


def money(value: MoneyLike, field: str) -> int:
    """Parse a positive amount of US dollars into nano-dollars, rounded down (a ceiling never grows by rounding).

    Raises:
        LimitsError: If it is not an amount, not finite, not positive, or beyond ten billion dollars.
    """
    try:
        if isinstance(value, bool):
            raise InvalidOperation
        dollars = Decimal(value.strip().removeprefix("$").replace(",", "").replace("_", "")) if isinstance(
            value, str
        ) else Decimal(str(value))
    except InvalidOperation:
        raise LimitsError(f"{field}={value!r} is not an amount of money; write for example 2, '2.50' or '$2'") from None
    if not dollars.is_finite() or dollars <= 0 or dollars > _LARGEST_USD:
        raise LimitsError(f"{field}={value!r} must be more than $0 and at most ${_LARGEST_USD:,}")
    nanos = int((dollars * NANOS_PER_USD).to_integral_value(rounding=ROUND_DOWN))
    if nanos == 0:
        raise LimitsError(f"{field}={value!r} is less than a nano-dollar")
    return nanos


def count(value: CountLike, field: str, *, zero: bool = False) -> int:
    """Parse a whole number of things: 500_000, "500k", "2M".

    Args:
        value: The number or its text.
        field: Name for the error message.
        zero: Whether 0 has a meaning here.

    Raises:
        LimitsError: If it is not a whole number, negative, 0 where that means nothing, or absurdly large.
    """
    number: int | float
    if isinstance(value, str):
        match = _COUNT.fullmatch(value.strip())
        if match is None:
            raise LimitsError(f"{field}={value!r} is not a count; write for example 500000, '500k' or '2M'")
        scale = {"": 1, "k": 1_000, "m": 1_000_000}[match[2].lower()]
        exact = Decimal(match[1].replace("_", "").replace(",", "")) * scale
        if exact != exact.to_integral_value():
            raise LimitsError(f"{field}={value!r} is not a whole number")
        number = int(exact)
    elif isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LimitsError(f"{field}={value!r} must be a whole number")
    else:
        number = value
    if number < 0 or (number == 0 and not zero) or number > _LARGEST_COUNT:
        least = "0 or more" if zero else "at least 1"
        raise LimitsError(f"{field}={value!r} must be {least} and at most 2**62")
    return number


def format_duration(value: timedelta | float) -> str:
    """Write a duration for people: ``850ms``, ``12.4s``, ``3m 20s``, ``2h 5m``."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + "s"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours}h {minutes}m" if minutes else f"{hours}h"
    return f"{minutes}m {rest}s" if rest else f"{minutes}m"


def format_money(nanos: int | None) -> str:
    """Write nano-dollars for people: ``$0.00``, ``$1.25``, ``$0.000312``; ``unknown`` for None."""
    if nanos is None:
        return "unknown"
    dollars = Decimal(nanos) / NANOS_PER_USD
    if nanos == 0 or abs(dollars) >= Decimal("0.10"):
        return f"${dollars:,.2f}"
    return f"${dollars:.6f}".rstrip("0").ljust(5, "0")
