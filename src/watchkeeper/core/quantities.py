"""Amounts that people write: durations, money, counts; and small checks of user input.

"30m", "1h 30m", "90 seconds", timedelta or seconds; "$2", "2.50", Decimal, int or float dollars; "500k", "2M",
500_000. Everything is parsed once, on input, into timedelta, integer nano-dollars or int; an invalid value raises a
LimitsError that names the field and the value. Commas may only separate thousands: "1,5" is refused, not read as 15.
The checks (`is_whole`, `is_number`, `is_share`, `is_text`, `is_listed`) return a bool; the caller writes the message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import timedelta
from decimal import ROUND_DOWN, Decimal
from math import isfinite
from pathlib import Path
from typing import Final, TypeGuard

from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.core.text import shown
from watchkeeper.core.usage import NANOS_PER_USD

DurationLike = timedelta | str | int | float
MoneyLike = Decimal | str | int | float
CountLike = str | int

_SECONDS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION_PART: Final = re.compile(
    r"(\d+(?:\.\d+)?)\s*"
    r"(?:(?P<ms>ms|milliseconds?)|(?P<d>d|days?)|(?P<h>h|hrs?|hours?)|(?P<m>m|mins?|minutes?)|(?P<s>s|secs?|seconds?))"
    r"(?![a-z])",
    re.ASCII,
)
_SECONDS_ALONE: Final = re.compile(r"\d+(\.\d+)?", re.ASCII)
_NUMBER: Final = r"\d+(?:_\d+)*|\d{1,3}(?:,\d{3})+"
_COUNT: Final = re.compile(rf"({_NUMBER})(\.\d+)?\s*([kKmM]?)", re.ASCII)
_SCALE: Final = {"": 1, "k": 1_000, "m": 1_000_000}
_MONEY: Final = re.compile(rf"(?:\$\s*)?({_NUMBER})?(\.\d+)?(?:\s*(?:USD|usd|\$))?", re.ASCII)
_LARGEST_SECONDS: Final = 10 * 365 * 86_400.0
_LARGEST_USD: Final = Decimal(10_000_000_000)
_LARGEST_COUNT: Final = 2**62
_ENDLESS_SECONDS: Final = 1e15
"""Tens of millions of years; a float cannot hold the milliseconds of everything that it can hold as seconds."""


def is_whole(value: object, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Return whether a value is a whole number within these inclusive bounds; True and False do not count."""
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and (least is None or value >= least)
        and (most is None or value <= most)
    )


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite int or float; True and False do not count."""
    return is_whole(value) or (isinstance(value, float) and isfinite(value))


def is_share(value: object, *, whole: bool = False) -> TypeGuard[int | float]:
    """Return whether a value is a number between 0 and 1, both excluded; with ``whole``, 1 counts as a share."""
    return is_number(value) and value > 0 and (value <= 1 if whole else value < 1)


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a text that holds more than whitespace."""
    return isinstance(value, str) and bool(value.strip())


def is_listed(value: object) -> TypeGuard[Iterable[object]]:
    """Return whether a value is an iterable of items; str and bytes do not count."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def duration(value: DurationLike, field: str) -> timedelta:
    """Parse a positive duration; a bare number is seconds.

    Args:
        value: A timedelta, seconds, or text such as "30m", "1h 30m", "90 seconds".
        field: Name for the error message.

    Raises:
        LimitsError: If it is not a duration, not finite, not positive, or longer than ten years.
    """
    seconds = _seconds(value, field)
    if not 0 < seconds <= _LARGEST_SECONDS:
        raise LimitsError(f"{field}={shown(value)} must be more than 0 and at most ten years")
    length = timedelta(seconds=seconds)
    if not length:
        raise LimitsError(f"{field}={shown(value)} is less than a microsecond")
    return length


def how_long_ago(text: str, field: str) -> timedelta:
    """Parse a duration of which nobody means seconds where no unit is named.

    Args:
        text: Text such as "12h" or "30d".
        field: Name for the error message.

    Raises:
        LimitsError: If it has no unit, or is no duration that `duration` takes.
    """
    if _SECONDS_ALONE.fullmatch(text.strip()):
        number = text.strip()
        raise LimitsError(f"{field}={text!r} names no unit; write '{number}h' for hours, or '{number}d' for days")
    return duration(text, field)


def _seconds(value: object, field: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _seconds_of_text(value, field)
    if is_whole(value) or isinstance(value, float):
        return value
    raise LimitsError(f"{field}={shown(value)} is not a duration; write '30m', '90s', a timedelta or seconds")


def _seconds_of_text(text: str, field: str) -> float:
    compact = text.strip().lower()
    if _SECONDS_ALONE.fullmatch(compact):
        return float(compact)
    total, end = 0.0, 0
    for match in _DURATION_PART.finditer(compact):
        if compact[end : match.start()].strip():
            break
        total += float(match[1]) * _SECONDS[str(match.lastgroup)]
        end = match.end()
    if end == 0 or compact[end:].strip():
        raise LimitsError(f"{field}={text!r} is not a duration; write for example '30m', '1h30m' or '90s'")
    return total


def money(value: MoneyLike, field: str) -> int:
    """Parse a positive amount of US dollars into nano-dollars, rounded down (a ceiling never grows by rounding).

    Args:
        value: Dollars as a Decimal, int or float, or text such as "$2", "2.50", "1,000 USD".
        field: Name for the error message.

    Raises:
        LimitsError: If it is not an amount, not finite, not positive, or beyond ten billion dollars.
    """
    dollars = _dollars(value)
    if dollars is None:
        raise LimitsError(f"{field}={shown(value)} is not an amount of money; write for example 2, '2.50' or '$2'")
    if not dollars.is_finite() or dollars <= 0 or dollars > _LARGEST_USD:
        raise LimitsError(f"{field}={shown(value)} must be more than $0 and at most ${_LARGEST_USD:,}")
    nanos = int((dollars * NANOS_PER_USD).to_integral_value(rounding=ROUND_DOWN))
    if nanos == 0:
        raise LimitsError(f"{field}={shown(value)} is less than a nano-dollar")
    return nanos


def _dollars(value: object) -> Decimal | None:
    if isinstance(value, str):
        match = _MONEY.fullmatch(value.strip())
        if match is None or not (match[1] or match[2]):
            return None
        return Decimal(_plain(match[1] or "0") + (match[2] or ""))
    if isinstance(value, bool) or not isinstance(value, Decimal | int | float):
        return None
    return Decimal(value if isinstance(value, int) else str(value))


def _plain(number: str) -> str:
    return number.replace("_", "").replace(",", "")


def count(value: CountLike, field: str, *, zero: bool = False) -> int:
    """Parse a whole number of things: 500_000, "500k", "2M".

    Args:
        value: The number or its text.
        field: Name for the error message.
        zero: Whether 0 is allowed.

    Raises:
        LimitsError: If it is not a whole number, negative, 0 where 0 is not allowed, or more than 2**62.
    """
    number = _whole(value)
    if number is None:
        raise LimitsError(f"{field}={shown(value)} is not a whole number; write for example 500000, '500k' or '2M'")
    if number < 0 or (number == 0 and not zero) or number > _LARGEST_COUNT:
        least = "0 or more" if zero else "at least 1"
        raise LimitsError(f"{field}={shown(value)} must be {least} and at most 2**62")
    return number


def _whole(value: object) -> int | None:
    if isinstance(value, str):
        match = _COUNT.fullmatch(value.strip())
        if match is None:
            return None
        exact = Decimal(_plain(match[1]) + (match[2] or "")) * _SCALE[match[3].lower()]
        return int(exact) if exact == exact.to_integral_value() else None
    return value if is_whole(value) else None


def counted(number: int, one: str, many: str = "") -> str:
    """Write a number of things: ``1 turn``, ``1,000 turns``; ``many`` is the plural, if it is not ``one`` plus s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def format_duration(value: timedelta | float) -> str:
    """Write a duration for people: ``850ms``, ``12.4s``, ``3m 20s``, ``2h 5m``, ``3d 4h``; never negative."""
    seconds = max(value.total_seconds() if isinstance(value, timedelta) else value, 0.0)
    if not seconds < _ENDLESS_SECONDS:  # also what is no number
        return "forever"
    if round(seconds * 1000) < 1000:
        return f"{seconds * 1000:.0f}ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    if round(seconds) < 3600:
        return _pair(round(seconds), 60, "m", "s")
    if round(seconds / 60) < 48 * 60:
        return _pair(round(seconds / 60), 60, "h", "m")
    return _pair(round(seconds / 3600), 24, "d", "h")


def _pair(amount: int, per_large: int, large: str, small: str) -> str:
    whole, rest = divmod(amount, per_large)
    return f"{whole}{large} {rest}{small}" if rest else f"{whole}{large}"


def format_money(nanos: int | None) -> str:
    """Write nano-dollars for people: ``$0.00``, ``$1.25``, ``$0.000312``; ``unknown`` for None; rounded down.

    Digits that are not shown are cut off, so that spending below a ceiling is never shown as equal to the ceiling.
    """
    if nanos is None:
        return "unknown"
    if nanos >= NANOS_PER_USD // 10 or not nanos:
        cents = nanos // (NANOS_PER_USD // 100)
        return f"${cents // 100:,}.{cents % 100:02}"
    if 0 < nanos < 1000:
        return "<$0.000001"
    sign, micros = "-" if nanos < 0 else "", abs(nanos) // 1000
    return f"${sign}{micros // 1_000_000}.{micros % 1_000_000:06}".rstrip("0").ljust(5, "0")


def path_from(where: str | os.PathLike[str]) -> Path:
    """Return a path that a person wrote, with ``~`` for a home folder.

    Raises:
        ConfigurationError: If no file can have that name, or the home folder is of an unknown user.
    """
    if "\0" in os.fspath(where):
        raise ConfigurationError(f"{os.fspath(where)!r} cannot be the name of a file: it has a null character")
    try:
        return Path(where).expanduser()
    except RuntimeError as error:
        raise ConfigurationError(f"{os.fspath(where)!r} names the home folder of nobody: {error}") from error
