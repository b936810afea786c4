"""What models cost: the user's own prices first, then the list of genai-prices, looked up when first needed.

A local model is free by declaration. A model nobody knows the price of costs None, never 0, and is refused before its
first request wherever a cost ceiling is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import UnpricedModelError
from watchkeeper.core.limits import Limits
from watchkeeper.core.price import FREE, ModelPrice, Rate

if TYPE_CHECKING:
    from watchkeeper.core.model import Model

NANOS: Final = 1_000_000_000

Prices = Mapping[str, ModelPrice]
"""The user's own prices, by ``provider:model`` or by the model's name alone."""


def price_of(model: Model, prices: Prices | None = None) -> ModelPrice | None:
    """Return what a model charges: given, declared free, or listed; None if nobody knows."""
    for key in (f"{model.provider}:{model.name}", model.name):
        if prices is not None and key in prices:
            return prices[key]
    if model.free:
        return FREE
    return listed_price(model.provider, model.name)


def listed_price(provider: str, name: str, clock: Clock = SYSTEM_CLOCK) -> ModelPrice | None:
    """Return the price that genai-prices lists, or None if it is not installed or does not know the model."""
    try:
        from genai_prices import data_snapshot
    except ImportError:
        return None
    try:
        _, info = data_snapshot.get_snapshot().find_provider_model(name, None, provider, None)
    except LookupError:
        return None
    listed = info.get_prices(clock.now())
    fresh, output = _rate(listed.input_mtok), _rate(listed.output_mtok)
    if fresh is None or output is None:
        return None
    per_thousand = getattr(listed, "requests_kcount", None)
    return ModelPrice(
        input=fresh,
        output=output,
        cached=_rate(listed.cache_read_mtok),
        cache_write=_rate(listed.cache_write_mtok),
        request=int(Decimal(per_thousand) * NANOS / 1000) if per_thousand is not None else 0,
        source="genai-prices",
    )


def _rate(listed: Any) -> Rate | None:
    """Translate a price per million tokens, flat or tiered; a tier applies to the whole call, as in `Rate`."""
    if listed is None:
        return None
    if isinstance(listed, Decimal):
        return Rate(_nanos(listed))
    return Rate(_nanos(listed.base), tuple((tier.start, _nanos(tier.price)) for tier in listed.tiers))


def _nanos(usd: Decimal) -> int:
    return int((usd * NANOS).to_integral_value(rounding="ROUND_CEILING"))


def check_priced(model: Model, price: ModelPrice | None, limits: Limits) -> None:
    """Refuse a cost ceiling over a model without a price.

    Raises:
        UnpricedModelError: With the three ways out.
    """
    if price is None and limits.max_cost_nanos is not None:
        name = f"{model.provider}:{model.name}"
        raise UnpricedModelError(
            f"max_cost_usd is set, but nobody knows what {name} costs, so the ceiling could not be kept. "
            f"Give its price: prices={{{name!r}: ModelPrice.per_million(input_usd, output_usd)}}; "
            "install the price list: pip install 'watchkeeper[prices]'; or lift max_cost_usd"
        )
