"""What may be used under an account in a day or a month, over all runs: "$20/day", "$300 a month", "500k tokens/day".

Days and months are those of UTC. Read once, where limits are made; text that makes no sense is a `LimitsError` that
names the field and the value. Which runs have used how much is the ledger's matter, not that of this value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final, Literal

from watchkeeper.core.errors import LimitsError
from watchkeeper.core.quantities import count, format_money, money
from watchkeeper.core.usage import NANOS_PER_USD

Period = Literal["day", "month"]

_PERIOD: Final = re.compile(r"(.+?)\s*(?:/|\ba\b|\bper\b)\s*(day|month)", re.IGNORECASE | re.ASCII)
_TOKENS: Final = re.compile(r"(.+?)\s*tokens?", re.IGNORECASE | re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@/-]{0,98}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class AccountLimit:
    """A ceiling for each day or each month: of money, or of tokens.

    Attributes:
        period: ``day`` or ``month``, in UTC.
        nanos: Nano-dollars for each period; None if tokens are limited.
        tokens: Input and output tokens for each period; None if money is limited.
    """

    period: Period
    nanos: int | None = None
    tokens: int | None = None

    @classmethod
    def parse(cls, given: object, field: str) -> AccountLimit:
        """Read a text such as "$20/day", "$300 per month" or "500k tokens/day"; a value stays as it is.

        Args:
            given: The text.
            field: Name for the error message.

        Raises:
            LimitsError: If it is no such text, or its amount makes no sense.
        """
        if isinstance(given, AccountLimit):
            return given
        match = _PERIOD.fullmatch(given.strip()) if isinstance(given, str) else None
        if match is None:
            raise LimitsError(
                f"{field}={given!r} is not an amount for a period; write for example '$20/day', '$300/month' or "
                "'500k tokens/day'"
            )
        amount, period = match[1], _period(match[2])
        tokens = _TOKENS.fullmatch(amount)
        if tokens is not None:
            return cls(period, tokens=count(tokens[1], field))
        return cls(period, nanos=money(amount, field))

    def __str__(self) -> str:
        """Write it as it is read: ``$20.00/day``, ``500,000 tokens/month``."""
        amount = f"{self.tokens:,} tokens" if self.nanos is None else format_money(self.nanos)
        return f"{amount}/{self.period}"

    @property
    def dollars(self) -> Decimal | None:
        """The money of each period, in dollars."""
        return None if self.nanos is None else Decimal(self.nanos) / NANOS_PER_USD

    def days(self, moment: datetime) -> tuple[date, date]:
        """Return the first and the last day of the period in which a moment lies; see `period_days`."""
        return period_days(self.period, moment)


def period_days(period: Period, moment: datetime) -> tuple[date, date]:
    """Return the first and the last day, in UTC, of the period in which an aware moment lies."""
    today = moment.astimezone(UTC).date()
    if period == "day":
        return today, today
    first = today.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1) - timedelta(days=1)


def account_name(given: object, field: str) -> str:
    """Return the name of an account.

    Raises:
        LimitsError: If it is not 1 to 100 letters, digits, and ``. _ @ / -`` between them.
    """
    if isinstance(given, str) and _NAME.fullmatch(given):
        return given
    raise LimitsError(
        f"{field}={given!r} is not a name; write 1 to 100 letters and digits, with any of . _ @ / - between them, such "
        "as 'team-a'"
    )


def _period(text: str) -> Period:
    return "day" if text.lower() == "day" else "month"
