"""What models cost: the user's own prices first, then the list of genai-prices, looked up when first needed.

A local model is free by declaration. The cost of a model without a known price is None, never 0; under a cost ceiling
such a model is refused before its first request. A ceiling must hold for the provider's bill, so if the list has
several rates (by hour, for reasoning, for caches that live longer), the highest rate that may apply counts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import UnpricedModelError
from watchkeeper.accounting.limits import AccountLimit, Limits
from watchkeeper.core.model import ModelSettings, extra_fields
from watchkeeper.core.usage import FREE, RATES, ModelPrice, Rate, dearer, dearer_rate

if TYPE_CHECKING:
    from watchkeeper.contained_sdk.calls import PriceOf
    from watchkeeper.contained_sdk.reading import SentRequest
    from watchkeeper.core.model import Model

NANOS: Final = 1_000_000_000
HALF_HOURS: Final = 48
"""Prices that change with the hour, or at a date, are looked at over the next day."""

ALIASES: Final[Mapping[str, str]] = {
    "azure_ai": "azure",
    "bedrock": "aws",
    "bedrock_converse": "aws",
    "cohere_chat": "cohere",
    "fireworks_ai": "fireworks",
    "gemini": "google",
    "moonshot": "moonshotai",
    "together_ai": "together",
    "vertex_ai": "google",
    "voyage": "voyageai",
    "xai": "x-ai",
}
"""LiteLLM's names of providers that have another name in the list."""

FOR_AN_HOUR: Final = ("'ttl': '1h'", '"ttl": "1h"')
"""How fields of a request, and JSON in them, ask for caches that live for an hour."""

ANYWHERE: Final = (None, "global", "not_available")
"""Places of inference (``inference_geo``) that cost nothing more. The list does not have what the others cost."""

Prices = Mapping[str, ModelPrice]
"""The user's own prices, by ``provider:model`` or by the model's name alone."""


def price_of(
    model: Model,
    prices: Prices | None = None,
    settings: ModelSettings = ModelSettings(),
    clock: Clock = SYSTEM_CLOCK,
) -> ModelPrice | None:
    """Return what a model charges: given, declared free, or listed; None if it is not known.

    Args:
        model: The model that answers. A model that says ``cache = "1h"`` pays for caches of that life.
        prices: The caller's own prices; they win.
        settings: Its settings; ``extra`` may choose a more expensive service tier, or caches that live for an hour.
        clock: Tells which of the listed prices are in force.
    """
    extra = extra_fields(settings)
    long_cache = getattr(model, "cache", None) == "1h" or any(asked in repr(extra) for asked in FOR_AN_HOUR)
    own = own_price(prices or {}, model.provider, model.name, long_cache=long_cache)
    if own is not None:
        return own
    if model.free:
        return FREE
    wishes = {name: value for name, value in extra.items() if isinstance(value, str)}
    return listed_price(model.provider, model.name, wishes, long_cache=long_cache, clock=clock)


def own_price(prices: Prices, provider: str, name: str, *, long_cache: bool) -> ModelPrice | None:
    """Return the price that the caller gives for a model, by ``provider:model`` or else by its name.

    If it does not say what Anthropic takes for writing to a cache, that is 1.25 times the input's rate, or twice where
    caches live for an hour (https://platform.claude.com/docs/en/build-with-claude/prompt-caching).
    """
    own = prices.get(f"{provider}:{name}") or prices.get(name)
    if own is None or own.cache_write is not None or provider != "anthropic":
        return own
    return replace(own, cache_write=_raised(own.input, 200 if long_cache else 125))


def listed_price(
    provider: str,
    name: str,
    wishes: Mapping[str, str] | None = None,
    *,
    long_cache: bool = False,
    replies: bool = True,
    kinds: Iterable[str] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> ModelPrice | None:
    """Return the price that genai-prices lists, or None if it is not installed or does not know the model.

    Args:
        provider: Provider name, ours or LiteLLM's. One that only resembles a listed name is unknown.
        name: The model's name, with or without LiteLLM's prefix.
        wishes: Fields of the request that may choose another price, such as ``service_tier``.
        long_cache: Whether caches are asked to live for an hour.
        replies: Whether it answers in tokens; embeddings do not, and have no price for them.
        kinds: What it is given besides text ("audio", "image", "video"). Where such a part has a rate of its own, all
            of the input is charged at the dearest rate.
        clock: Tells which of the prices are in force.
    """
    try:
        from genai_prices import data_snapshot
    except ImportError:
        return None
    snapshot = data_snapshot.get_snapshot()
    wanted = ALIASES.get(provider, provider)
    known = next((each for each in snapshot.providers if each.id == wanted), None)
    if known is None:
        return None
    try:
        _, info = snapshot.find_provider_model(name.removeprefix(f"{provider}/"), known, None, None)
        now = clock.now()
        moments = [now + timedelta(minutes=30) * number for number in range(HALF_HOURS + 1)]
        listed = [info.get_prices(moment, dict(wishes or {})) for moment in moments]
    except LookupError:
        return None
    different: dict[str, Any] = {repr(each): each for each in listed}
    if "audio" in kinds and "audio" in name and any(each.input_audio_mtok is None for each in different.values()):
        return None  # sound costs such a model many times what text costs, and the list does not say how much
    price = _dearest(_translated(each, long_cache, replies, kinds) for each in different.values())
    if price is None or (wishes or {}).get("inference_geo") in ANYWHERE:
        return price
    # What must be done in one place costs 1.1 times as much at Anthropic
    # (https://platform.claude.com/docs/en/build-with-claude/data-residency).
    raised: dict[str, Any] = {name: _raised(rate, 110) for name in RATES if (rate := getattr(price, name)) is not None}
    return replace(price, **raised)


def _raised(rate: Rate, percent: int) -> Rate:
    """Return this part of a rate, rounded up."""
    return Rate(-(-rate.base * percent // 100), tuple((start, -(-more * percent // 100)) for start, more in rate.tiers))


def _translated(listed: Any, long_cache: bool, replies: bool, kinds: Iterable[str]) -> ModelPrice | None:
    """Translate one list of prices per million tokens; None if the model is not priced by tokens."""
    fresh, output, cached = _rate(listed.input_mtok), _rate(listed.output_mtok), _rate(listed.cache_read_mtok)
    if not replies:
        output = output or Rate(0)
    if fresh is None or output is None:
        return None
    for kind in kinds:
        if (rate := _rate(getattr(listed, f"input_{kind}_mtok", None))) is not None:
            fresh, read = dearer_rate(fresh, rate), _rate(getattr(listed, f"cache_{kind}_read_mtok", None))
            cached = None if cached is None or read is None else dearer_rate(cached, read)
    for kind in ("image", "video"):  # models that draw do so unasked
        output = dearer_rate(output, _rate(getattr(listed, f"output_{kind}_mtok", None)) or output)
    thinking = _rate(listed.output_reasoning_mtok)
    kept = _rate(listed.cache_write_mtok)
    if long_cache:
        kept = _rate(listed.cache_write_1h_mtok) or kept
    per_thousand = listed.requests_kcount
    return ModelPrice(
        input=fresh,
        output=output if thinking is None else dearer_rate(output, thinking),
        cached=cached,
        cache_write=kept,
        request=0 if per_thousand is None else _nanos(Decimal(per_thousand) / 1000),
        source="genai-prices",
    )


def _dearest(candidates: Iterator[ModelPrice | None]) -> ModelPrice | None:
    """Return a price with the highest rate of each kind; None if one of the prices is unknown."""
    prices = list(candidates)
    dearest = prices[0]
    for price in prices[1:]:
        if dearest is None or price is None:
            return None
        dearest = dearer(dearest, price)
    return dearest


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
        UnpricedModelError: With the ways out.
    """
    account = limits.account_limit
    of_account = isinstance(account, AccountLimit) and account.nanos is not None
    if price is None and (of_account or limits.max_cost_nanos is not None):
        name = f"{model.provider}:{model.name}"
        field = "max_cost_usd" if limits.max_cost_nanos is not None else "account_limit"
        install = (
            ""
            if importlib.util.find_spec("genai_prices")
            else "install the price list: pip install 'watchkeeper[prices]'; "
        )
        raise UnpricedModelError(
            f"{field} is set, but nobody knows what {name} costs, so the ceiling could not be kept. "
            f"Give its price: prices={{{name!r}: ModelPrice.per_million(input_usd, output_usd)}}, or "
            f'"{name}" = {{ input = ..., output = ... }} under [tool.watchkeeper.prices] in pyproject.toml; '
            f"{install}or lift {field}"
        )


def lookup(prices: Prices, clock: Clock, outer: PriceOf | None = None) -> PriceOf:
    """Return a function that looks up prices, each once: the block's own, those of the enclosing scope, or the list.

    Args:
        prices: The block's own, or the run's.
        clock: Tells which of the listed prices are in force.
        outer: What looks up prices around it; a price of the block's own cannot be below the one that holds there,
            because what is spent counts in both.
    """
    known: dict[tuple[Any, ...], ModelPrice | None] = {}

    def price_of(provider: str, model: str, sent: SentRequest) -> ModelPrice | None:
        own = own_price(prices, provider, model, long_cache=sent.long_cache)
        above = None if outer is None else outer(provider, model, sent)
        if own is not None:
            return own if above is None else dearer(own, above)
        if outer is not None:
            return above
        options: dict[str, Any] = {"long_cache": sent.long_cache, "replies": sent.wire.replies, "kinds": sent.kinds}
        question = (provider, model, *sorted(sent.wishes.items()), *options.values())
        if question not in known:
            known[question] = listed_price(provider, model, sent.wishes, **options, clock=clock)
        return known[question]

    return price_of
