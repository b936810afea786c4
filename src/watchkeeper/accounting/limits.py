"""What a run may spend: `Limits`, and `AccountLimit` for what all runs under an account may spend in a day or a month.

`Limits` is a frozen value, safe by default: one hour, 100 turns, 2,000,000 tokens, 20 retries; None lifts a limit. All
ceilings but ``max_turns`` hold for the whole tree of a run, children included. Text and other friendly forms are parsed
at construction, so the stored values are always exact; an invalid value raises a `LimitsError` that names the field and
the value. Two limits combine by tightening only. These values do not record what was used; the ledger does. Everything
else about each numeric limit is in `core.meters`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar, cast

from watchkeeper.core.clock import Clock, Deadline, DeadlineLike, earliest
from watchkeeper.core.errors import LimitsError
from watchkeeper.core.meters import BY_FIELD, METERS, NO_CEILINGS, TOLD
from watchkeeper.core.text import shown
from watchkeeper.core.quantities import CountLike, MoneyLike, count, duration, format_duration, format_money, money
from watchkeeper.core.type_tags import own_value
from watchkeeper.core.usage import dollars

T = TypeVar("T")

Period = Literal["day", "month"]

_PERIOD: Final = re.compile(r"(?:/|\ba\b|\bper\b)\s*(day|month)\Z", re.IGNORECASE | re.ASCII)
_TOKENS: Final = re.compile(r"tokens?\Z", re.IGNORECASE | re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@/-]{0,98}[A-Za-z0-9])?")


def _check_share(share: object, field: str) -> None:
    if not isinstance(share, float) or not 0 < share < 0.5:
        raise LimitsError(f"{field}={shown(share)} must be more than 0 and less than 0.5")


def _seconds(total: float, share: float) -> float:
    return max(min(max(total * share, 1.0), 60.0, total / 2), 0.0)


@own_value("landing")
@dataclass(frozen=True, slots=True)
class Landing:
    """What is reserved inside the ceilings for the landing turn, in which the agent delivers its results so far.

    Attributes:
        max_output_tokens: Output cap of the landing turn.
        time_share: Share of the run's time kept for landing, between 1 and 60 seconds.
    """

    max_output_tokens: int = 1024
    time_share: float = 0.05

    def __post_init__(self) -> None:
        """Refuse shares that leave nothing for the work or nothing for the landing."""
        object.__setattr__(self, "max_output_tokens", count(self.max_output_tokens, "landing.max_output_tokens"))
        _check_share(self.time_share, "landing.time_share")

    def seconds(self, total: float) -> float:
        """Return how much of ``total`` seconds is kept for landing; at least 0, at most half of ``total``."""
        return _seconds(total, self.time_share)


@own_value("verdict")
@dataclass(frozen=True, slots=True)
class Verdict:
    """What is reserved inside the ceilings so that a judge can still give its verdict after the work has used the rest.

    Attributes:
        share: Share of the money, the tokens and the steps that a run may use.
        time_share: Share of the run's time, between 1 and 60 seconds.
    """

    share: float = 0.1
    time_share: float = 0.05

    def __post_init__(self) -> None:
        """Refuse shares that leave nothing for the work or nothing for the verdict."""
        _check_share(self.share, "verdict.share")
        _check_share(self.time_share, "verdict.time_share")

    def seconds(self, total: float) -> float:
        """Return how much of ``total`` seconds is kept for the verdict; at least 0, at most half of ``total``."""
        return _seconds(total, self.time_share)


@own_value("default_retries")
class DefaultRetries(IntEnum):
    """The 20 retries of a run whose caller named none; they can be told from a 20 that was asked for."""

    EACH = 20
    __repr__ = int.__repr__


@own_value("limits")
@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of a run and everything it starts.

    The constructor accepts friendly forms; the attributes hold exact values.

    Attributes:
        deadline: A length ("30m", timedelta) counted from the start of the run, or a moment (datetime, Deadline).
        max_cost_usd: Dollars; held as an exact Decimal, and as nano-dollars in ``max_cost_nanos``.
        max_total_tokens: Input and output tokens together.
        max_input_tokens: Input tokens, cached ones included.
        max_output_tokens: Output tokens, reasoning included, over the whole run.
        max_tool_calls: Admitted tool calls.
        max_steps: Admitted calls of any kind.
        max_retries: Calls that repeat a failed one; of a run over many the default is for each item, not for all.
        max_turns: Model turns of this run alone; children count their own.
        min_output_tokens: Smallest useful reply; if fewer output tokens are left, the budget counts as exhausted.
        landing: What to reserve for a last turn, or None for a hard stop.
        verdict: What to reserve for a judge's verdict, if the run has a judge, or None to reserve nothing.
        account: An account that this run shares with earlier and concurrent runs, for example "team-a".
        account_limit: What all runs of the account together may use in a day or a month (UTC): "$20/day", "$300/month",
            "500k tokens/day". Give both account and account_limit, or neither.
        max_cost_nanos: The cost ceiling in nano-dollars; follows from ``max_cost_usd``.
    """

    deadline: DeadlineLike | None = timedelta(hours=1)
    max_cost_usd: MoneyLike | None = None
    max_total_tokens: CountLike | None = 2_000_000
    max_input_tokens: CountLike | None = None
    max_output_tokens: CountLike | None = None
    max_tool_calls: CountLike | None = None
    max_steps: CountLike | None = None
    max_retries: CountLike | None = DefaultRetries.EACH
    max_turns: CountLike | None = 100
    min_output_tokens: int = 256
    landing: Landing | None = Landing()
    verdict: Verdict | None = Verdict()
    account: str | None = None
    account_limit: AccountLimit | str | None = None
    max_cost_nanos: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Parse every friendly form; an invalid value raises a LimitsError that names the field and the value."""
        put = object.__setattr__
        put(self, "max_cost_nanos", None)  # a stored value is checked here too, and may be wrong
        put(self, "deadline", _deadline(self.deadline))
        for meter in METERS:
            value = getattr(self, meter.field)
            if value is None:
                continue
            if meter.measures == "money":
                nanos = money(value, meter.field)
                put(self, meter.ceiling, nanos)
                put(self, meter.field, dollars(nanos))
            elif not isinstance(value, DefaultRetries):
                put(self, meter.field, count(value, meter.field, zero=meter.zero))
        put(self, "min_output_tokens", count(self.min_output_tokens, "min_output_tokens"))
        _check_kept(self.landing, self.verdict)
        if self.account is not None or self.account_limit is not None:
            put(self, "account_limit", _account_limit(self.account, self.account_limit))

    def start(self, clock: Clock) -> Deadline | None:
        """Return the moment at which a run that starts now must be over."""
        given = self.deadline
        return Deadline.after(given, clock) if isinstance(given, timedelta) else cast("Deadline | None", given)

    def ceiling(self, name: str) -> int | None:
        """Return a numeric ceiling by its field name (``max_cost_nanos`` for money), or None if there is none."""
        return cast("int | None", getattr(self, name))

    def describe(self) -> str:
        """Return one line that lists the limits in force."""
        return _described(self)


@lru_cache(maxsize=64)
def _described(limits: Limits) -> str:
    """Return the text of `Limits.describe`; cached, because many runs share one Limits and each records it."""
    deadline = limits.deadline
    parts = [f"deadline {format_duration(deadline)}"] if isinstance(deadline, timedelta) else []
    if isinstance(deadline, Deadline):
        parts.append(f"deadline {deadline.at.isoformat(timespec='seconds')}")
    if limits.max_cost_nanos is not None:
        parts.append(f"cost {format_money(limits.max_cost_nanos)}")
    for meter in TOLD:
        value = limits.ceiling(meter.ceiling)
        if value is not None and meter.measures != "money":
            parts.append(f"{meter.field.removeprefix('max_').replace('_', ' ')} {value:,}")
    if limits.account is not None:
        parts.append(f"account {limits.account} {limits.account_limit}")
    return ", ".join(parts) or "none"


def over_all(limits: Limits) -> Limits:
    """Return the limits over many items: without a last turn, which each item has, and without the default retries."""
    lifted: Any = {"max_retries": None} if isinstance(limits.max_retries, DefaultRetries) else {}
    return replace(limits, landing=None, **lifted)


def tighten(limits: Limits, other: Limits, clock: Clock) -> Limits:
    """Return limits in which every ceiling is the tighter of the two; other fields stay as in ``limits``.

    Two lengths, or one length alone, give a length; if the other deadline is a moment, the length counts from now.
    """
    changes: dict[str, Any] = {name: _least(getattr(limits, name), getattr(other, name)) for name in BY_FIELD}
    return replace(limits, deadline=_tighter(limits, other, clock), **changes)


def _tighter(limits: Limits, other: Limits, clock: Clock) -> Deadline | timedelta | None:
    one, two = limits.deadline, other.deadline
    if isinstance(one, timedelta | None) and isinstance(two, timedelta | None):
        return _least(one, two)
    return earliest(limits.start(clock), other.start(clock), clock=clock)


def _least(one: T | None, two: T | None) -> T | None:
    given: list[Any] = [value for value in (one, two) if value is not None]
    return cast("T", min(given)) if given else None


def _check_kept(landing: object, verdict: object) -> None:
    if not isinstance(landing, Landing | None):
        raise LimitsError(f"landing={landing!r} must be Landing(...) or None for a hard stop")
    if not isinstance(verdict, Verdict | None):
        raise LimitsError(f"verdict={verdict!r} must be Verdict(...) or None to keep nothing for a judge")


def _deadline(given: object) -> Deadline | timedelta | None:
    if isinstance(given, str | timedelta):
        return duration(given, "deadline")
    if isinstance(given, datetime):
        return Deadline(given)
    if isinstance(given, Deadline | None):
        return given
    raise LimitsError(f"deadline={shown(given)} must be a text like '30m', a timedelta, a datetime or a Deadline")


@own_value("account_limit")
@dataclass(frozen=True, slots=True)
class AccountLimit:
    """A ceiling of money or of tokens for each day or each month, over all runs under an account.

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
        """Read a text such as "$20/day", "$300 per month" or "500k tokens/day"; return an AccountLimit unchanged.

        Args:
            given: The text or an AccountLimit.
            field: Name for the error message.

        Raises:
            LimitsError: If the text has another form, or its amount is invalid.
        """
        if isinstance(given, AccountLimit):
            return given
        text = given.strip() if isinstance(given, str) else ""
        match = _PERIOD.search(text)  # what is before it may be long: its blanks are looked at once
        amount = text[: match.start()].rstrip() if match is not None else ""
        if match is None or not amount:
            raise LimitsError(
                f"{field}={shown(given)} is not an amount for a period; write for example '$20/day', '$300/month' or "
                "'500k tokens/day'"
            )
        period = cast("Period", match[1].lower())
        tokens = _TOKENS.search(amount)
        if tokens is not None and tokens.start():
            return cls(period, tokens=count(amount[: tokens.start()].rstrip(), field))
        return cls(period, nanos=money(amount, field))

    def __str__(self) -> str:
        """Return text that `parse` can read: ``$20.00/day``, ``500,000 tokens/month``."""
        amount = f"{self.tokens:,} tokens" if self.nanos is None else format_money(self.nanos)
        return f"{amount}/{self.period}"

    @property
    def dollars(self) -> Decimal | None:
        """The money of each period, in dollars."""
        return dollars(self.nanos)


def period_days(period: Period, moment: datetime) -> tuple[date, date]:
    """Return the first and the last day, in UTC, of the period that contains an aware moment."""
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
        f"{field}={shown(given)} is not a name; write 1 to 100 letters and digits, with any of . _ @ / - between them, "
        "such as 'team-a'"
    )


def _account_limit(account: object, limit: object) -> AccountLimit:
    """Return the limit of an account; raise a LimitsError if only one of name and limit is given."""
    if account is None:
        raise LimitsError(f"account_limit={shown(limit)} needs an account, for example account='team-a'")
    name = account_name(account, "account")
    if limit is None:
        raise LimitsError(f"account={name!r} needs an account_limit, for example '$20/day' or '$300/month'")
    return AccountLimit.parse(limit, "account_limit")


UNLIMITED: Final = Limits(deadline=None, **NO_CEILINGS)
"""Limits without a deadline and without any ceiling."""
