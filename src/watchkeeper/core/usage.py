"""What was used, and what it costs: tokens of a reply, the total of a run, the price of a model.

Values only. Money is integer nano-dollars (1e-9 USD), so that sums are exact; ``None`` means that the cost is not
known, which is never the same as 0. Charges are rounded up to the next nano-dollar, so that rounding never hides
a passed ceiling. Input tokens include the cached ones (providers differ; adapters normalise), output tokens include the
reasoning ones. Rates are nano-dollars per million tokens. Where a price has tiers, the tier that the size of the input
selects applies to the whole call, as providers bill it; a worst case uses the highest rate that the call could reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, Overflow
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.text import clipped, shown
from watchkeeper.core.type_tags import own_value

NANOS_PER_USD: Final = 1_000_000_000

MOST_TOKENS: Final = 100_000_000
"""Upper bound of each token count of one reply: ten times the largest context of any model known in 2026."""


def dollars(nanos: int | None) -> Decimal | None:
    """Return nano-dollars as dollars, exact; None (unknown, or no ceiling) stays None."""
    return None if nanos is None else Decimal(nanos) / NANOS_PER_USD


@own_value("token_usage")
class TokenUsage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one model reply or of many, in provider-neutral terms.

    Attributes:
        input_tokens: All input, cached reads and cache writes included.
        output_tokens: All output, reasoning included.
        cached_tokens: The part of the input that was read from the provider's cache.
        cache_write_tokens: The part of the input that was written to the provider's cache.
        reasoning_tokens: The part of the output that was reasoning.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    @property
    def is_possible(self) -> bool:
        """Whether these counts are possible for one reply.

        Every count is a whole number from 0 to `MOST_TOKENS`, and what was read from the cache and written to it is
        part of the input. Reasoning is not compared with the output: some servers count it separately.
        """
        counts: tuple[object, ...] = astuple(self)
        for count in counts:  # a loop: half the time of `all`
            if type(count) is not int or not 0 <= count <= MOST_TOKENS:
                return False
        return self.cached_tokens + self.cache_write_tokens <= self.input_tokens

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@own_value("presumed")
class Presumed(msgspec.Struct, frozen=True, gc=False):
    """Worst-case spending of admitted calls whose actual spending is not known.

    The call's process was killed, its lease expired, its work was abandoned, or its reply never came. It is part of the
    totals of a `Usage`, never added to them, and the actual spending replaces it when that becomes known.

    Attributes:
        calls: Number of these calls.
        tokens: The most that they can have used.
        cost_nanos: The most that they can have cost in nano-dollars; None if a price is not known.
    """

    calls: int = 0
    tokens: TokenUsage = TokenUsage()
    cost_nanos: int | None = 0

    @property
    def cost(self) -> Decimal | None:
        """Money in US dollars, exact; None if unknown."""
        return dollars(self.cost_nanos)

    def __add__(self, other: Presumed) -> Presumed:
        """Return the sum; an unknown cost on either side stays unknown."""
        return Presumed(
            self.calls + other.calls, self.tokens + other.tokens, _sum_or_none(self.cost_nanos, other.cost_nanos)
        )


NOTHING_PRESUMED: Final = Presumed()

UNREADABLE_USAGE: Final = TokenUsage(-1, -1)
"""Replaces reported counts that are no numbers; `is_possible` is False for it, so the worst case is charged."""


@own_value("usage")
class Usage(msgspec.Struct, frozen=True, gc=False):
    """What a run and all its children have used.

    Attributes:
        tokens: Tokens of every model call, failed ones included where the provider reported them.
        cost_nanos: Money in nano-dollars, or None if the price of any call is not known.
        model_calls: Admitted model calls, failed ones included.
        tool_calls: Admitted tool calls, failed ones included.
        steps: All admitted calls.
        retries: Admitted calls that repeated a failed one.
        presumed: The part of tokens and money that is a worst case, because the actual amount is not known.
    """

    tokens: TokenUsage = TokenUsage()
    cost_nanos: int | None = 0
    model_calls: int = 0
    tool_calls: int = 0
    steps: int = 0
    retries: int = 0
    presumed: Presumed = NOTHING_PRESUMED

    @property
    def cost(self) -> Decimal | None:
        """Money in US dollars, exact; None if unknown."""
        return dollars(self.cost_nanos)

    def __add__(self, other: Usage) -> Usage:
        """Return the sum; an unknown cost on either side stays unknown."""
        counts: Any = {name: getattr(self, name) + getattr(other, name) for name in CALL_COUNTS}
        cost, presumed = _sum_or_none(self.cost_nanos, other.cost_nanos), self.presumed + other.presumed
        return Usage(self.tokens + other.tokens, cost, presumed=presumed, **counts)


CALL_COUNTS: Final = tuple(name for name in Usage.__struct_fields__ if name not in ("tokens", "cost_nanos", "presumed"))
"""The fields of `Usage` that count calls; each bears the name of its column in accounts."""


RATES: Final = ("input", "output", "cached", "cache_write")

_MILLION: Final = 1_000_000
_MOST_RATE_DIGITS: Final = 30
"""Far beyond every price, and far below the exponents that take minutes to write out as whole numbers."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Nano-dollars per million tokens, with higher or lower tiers for large inputs.

    Attributes:
        base: The rate below the first tier.
        tiers: ``(input tokens above which it applies, rate)``, ascending.
    """

    base: int
    tiers: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers that are no rate: negative or not whole."""
        numbers: list[object] = [self.base, *(number for tier in self.tiers for number in tier)]
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise ConfigurationError(
                    f"Rate({self.base!r}, {self.tiers!r}) must hold whole nano-dollars per million tokens, 0 or more;"
                    " ModelPrice.per_million(input_usd, output_usd) takes dollars"
                )

    def at(self, input_tokens: int) -> int:
        """Return the rate for a call with this much input."""
        if not self.tiers:
            return self.base
        rate = self.base
        for start, tier_rate in self.tiers:
            if input_tokens > start:
                rate = tier_rate
        return rate

    def worst(self, input_tokens: int) -> int:
        """Return the highest rate that can apply to a call with at most this much input."""
        if not self.tiers:
            return self.base
        return max((self.base, *(rate for start, rate in self.tiers if input_tokens > start)))


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """Prices of one model.

    Attributes:
        input: Rate of fresh input tokens.
        output: Rate of output tokens, reasoning included.
        cached: Rate of cached input; None means as fresh input.
        cache_write: Rate of writing input to the cache; None means as fresh input.
        request: Nano-dollars per request.
        source: Where the price comes from, for the record.
    """

    input: Rate
    output: Rate
    cached: Rate | None = None
    cache_write: Rate | None = None
    request: int = 0
    source: str = "given"

    def __post_init__(self) -> None:
        """Refuse a value that is no Rate; ``cached`` and ``cache_write`` may also be None."""
        for name in RATES:
            rate: object = getattr(self, name)
            if not isinstance(rate, Rate) and not (rate is None and name in ("cached", "cache_write")):
                raise ConfigurationError(
                    f"ModelPrice({name}={rate!r}) must be a Rate;"
                    " ModelPrice.per_million(input_usd, output_usd) makes a price of dollars"
                )

    @classmethod
    def per_million(
        cls,
        input_usd: Decimal | str | float,
        output_usd: Decimal | str | float,
        cached_usd: Decimal | str | float | None = None,
        cache_write_usd: Decimal | str | float | None = None,
    ) -> ModelPrice:
        """Build a price from dollars per million tokens, as providers print them."""
        return cls(
            input=Rate(_rate(input_usd)),
            output=Rate(_rate(output_usd)),
            cached=None if cached_usd is None else Rate(_rate(cached_usd)),
            cache_write=None if cache_write_usd is None else Rate(_rate(cache_write_usd)),
        )

    def cost(self, usage: TokenUsage) -> int:
        """Return what a call with this usage costs, in nano-dollars, rounded up."""
        size, cached, written = usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens
        fresh = max(size - cached - written, 0)
        total = fresh * self.input.at(size) + usage.output_tokens * self.output.at(size)
        if cached:
            total += cached * (self.cached or self.input).at(size)
        if written:
            total += written * (self.cache_write or self.input).at(size)
        return self.request + _up(total)

    def worst_input(self, input_tokens: int) -> int:
        """Return the most that this much input can cost, in nano-dollars."""
        dearest = self.input.worst(input_tokens)
        for rate in (self.cached, self.cache_write):
            if rate is not None:
                dearest = max(dearest, rate.worst(input_tokens))
        return self.request + _up(input_tokens * dearest)

    def worst_output_token(self, input_tokens: int) -> int:
        """Return the most that one output token can cost with this much input, in nano-dollars, rounded up."""
        return _up(self.output.worst(input_tokens))


def dearer(one: ModelPrice, other: ModelPrice) -> ModelPrice:
    """Return a price in which each rate is the higher one of two prices."""
    pairs = ((name, getattr(one, name) or one.input, getattr(other, name) or other.input) for name in RATES)
    rates: dict[str, Any] = {name: dearer_rate(*pair) for name, *pair in pairs}
    return ModelPrice(**rates, request=max(one.request, other.request), source=one.source)


def dearer_rate(one: Rate, other: Rate) -> Rate:
    """Return a rate that is the higher one of two at every input size."""
    starts = sorted({start for rate in (one, other) for start, _ in rate.tiers})
    tiers = tuple((start, max(one.at(start + 1), other.at(start + 1))) for start in starts)
    return Rate(max(one.base, other.base), tiers)


FREE: Final = ModelPrice(Rate(0), Rate(0), source="free by declaration")


def _sum_or_none(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _up(millionths: int) -> int:
    return -(-millionths // _MILLION)


def _rate(usd_per_million: Decimal | str | float) -> int:
    try:
        rate = Decimal(str(usd_per_million)) * 1_000_000_000
    except (InvalidOperation, Overflow, ValueError):  # an int may have too many digits to be written
        rate = Decimal("NaN")
    if not rate.is_finite() or rate < 0 or rate.adjusted() > _MOST_RATE_DIGITS:
        raise ConfigurationError(
            f"price {clipped(shown(usd_per_million), 80)} must be 0 or more dollars per million tokens, as 1.25"
        )
    return int(rate.to_integral_value(rounding="ROUND_CEILING"))
