"""Prices: where they come from, that they equal the list, and that an unknown price never counts as free."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from genai_prices import Usage as ListedUsage
from genai_prices import data_snapshot
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import ScriptedModel
from watchkeeper.app.prices import ALIASES, check_priced, listed_price, price_of
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import UnpricedModelError
from watchkeeper.core.model import ModelSettings
from watchkeeper.core.usage import FREE, ModelPrice, TokenUsage

KNOWN = [
    ("openai", "gpt-5-mini"),
    ("anthropic", "claude-sonnet-4-5"),
    ("gemini", "gemini/gemini-2.5-pro"),
    ("perplexity", "perplexity/sonar"),
    ("openrouter", "openrouter/anthropic/claude-sonnet-4.5"),
]


HOUR = ModelSettings(extra={"cache_control": {"type": "ephemeral", "ttl": "1h"}})


def model(provider: str, name: str, *, free: bool = False) -> ScriptedModel:
    """Return a model of that name."""
    return ScriptedModel([], provider=provider, name=name, free=free)


def rates(price: ModelPrice | None) -> list[int]:
    """Return what a million tokens of each kind cost, in nano-dollars."""
    assert price is not None
    million = 1_000_000
    usages = (
        TokenUsage(input_tokens=million),
        TokenUsage(output_tokens=million),
        TokenUsage(input_tokens=million, cached_tokens=million),
        TokenUsage(input_tokens=million, cache_write_tokens=million),
    )
    return [price.cost(usage) for usage in usages]


@pytest.mark.spec("FR-070")
@given(
    known=st.sampled_from(KNOWN),
    sizes=st.lists(st.integers(0, 400_000), min_size=3, max_size=3),
    output=st.integers(0, 100_000),
)
def test_a_listed_price_charges_what_the_list_says(known: tuple[str, str], sizes: list[int], output: int) -> None:
    provider, name = known
    fresh, cached, written = sizes
    price = listed_price(provider, name)
    assert price is not None
    if price.cache_write is None:
        written = 0
    if price.cached is None:
        cached = 0
    total = fresh + cached + written
    snapshot = data_snapshot.get_snapshot()
    plain = name.removeprefix(f"{provider}/")
    owner = snapshot.find_provider(None, ALIASES.get(provider, provider), None)
    _, info = snapshot.find_provider_model(plain, owner, None, None)
    usage = ListedUsage(input_tokens=total, cache_read_tokens=cached, cache_write_tokens=written, output_tokens=output)
    theirs: Decimal = info.calc_price(usage, owner, genai_request_timestamp=datetime.now(UTC)).total_price
    ours = price.cost(TokenUsage(total, output, cached, written))
    assert 0 <= ours - theirs * 1_000_000_000 < 1


@pytest.mark.spec("FR-070")
def test_the_callers_price_wins_by_full_name_then_by_name() -> None:
    mine, other = ModelPrice.per_million(1, 2), ModelPrice.per_million(3, 4)
    known = model("openai", "gpt-5-mini")
    assert price_of(known, {"openai:gpt-5-mini": mine, "gpt-5-mini": other}) is mine
    assert price_of(known, {"gpt-5-mini": other}) is other
    assert price_of(model("x", "local", free=True), {"local": mine}) is mine


@pytest.mark.spec("FR-072")
def test_a_model_that_is_free_by_declaration_costs_nothing() -> None:
    assert price_of(model("local", "anything", free=True)) is FREE


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        ("openai", "no-such-model"),
        ("openai-compatible", "gpt-5"),
        ("my-openai-proxy", "gpt-5"),
        ("ollama", "ollama/llama3"),
        ("scripted", "gpt-5"),
    ],
)
def test_a_model_or_provider_that_only_resembles_a_listed_one_has_no_price(provider: str, name: str) -> None:
    assert price_of(model(provider, name)) is None


def test_a_model_that_is_not_priced_by_tokens_has_no_price() -> None:
    assert listed_price("openai", "whisper-1") is None


def test_parts_that_are_no_text_are_charged_at_the_dearest_rate_of_what_is_sent() -> None:
    plain, image, sound = (
        rates(listed_price("google", "gemini-2.5-flash", kinds=k)) for k in ("", ["image"], ["audio"])
    )
    assert image == plain  # it has no rate of its own
    assert sound[1] == plain[1]
    assert all(dear > 2 * cheap for dear, cheap in zip(sound[::2], plain[::2], strict=True))


def test_without_the_list_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert price_of(model("openai", "gpt-5-mini")) is None


def test_a_dearer_service_tier_is_charged_as_such() -> None:
    known = model("openai", "gpt-5")
    plain = rates(price_of(known))
    dear = rates(price_of(known, settings=ModelSettings(extra={"service_tier": "priority", "other": 3})))
    assert dear[0] > plain[0]
    assert dear[1] > plain[1]


def test_caches_that_live_for_an_hour_are_charged_as_such() -> None:
    @dataclass
    class LongCaches:
        name: str = "claude-sonnet-4-5"
        provider: str = "anthropic"
        free: bool = False
        cache: str = "1h"

    plain = rates(price_of(model("anthropic", "claude-sonnet-4-5")))
    long: Any = LongCaches()
    assert rates(price_of(long))[3] > plain[3]
    assert rates(price_of(long))[:3] == plain[:3]


@pytest.mark.parametrize(
    "extra",
    [
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
        {"extra_body": {"cache_control_injection_points": [{"control": {"ttl": "1h"}}]}},
    ],
)
def test_caches_for_an_hour_that_the_settings_ask_for_are_charged_as_such(extra: dict[str, Any]) -> None:
    known = model("anthropic", "claude-sonnet-4-5")
    assert rates(price_of(known, settings=ModelSettings(extra=extra))) == rates(
        listed_price("anthropic", known.name, long_cache=True)
    )
    short = ModelSettings(extra={"cache_control": {"type": "ephemeral", "ttl": "5m"}})
    assert price_of(known, settings=short) == price_of(known)


def test_work_that_must_be_done_in_one_place_costs_a_tenth_more() -> None:
    known = model("anthropic", "claude-opus-5")
    usage = TokenUsage(1_000_000, 1_000_000, 300_000, 400_000)

    def cost(**wishes: str) -> int:
        price = price_of(known, settings=ModelSettings(extra=wishes))
        assert price is not None
        return price.cost(usage)

    assert cost(inference_geo="us") * 10 == cost() * 11
    assert cost(inference_geo="global") == cost()
    assert cost(inference_geo="us", speed="fast") * 10 == cost(speed="fast") * 11


def test_models_that_draw_are_charged_at_the_rate_of_images() -> None:
    price = listed_price("google", "gemini-2.5-flash-image")
    assert price is not None
    assert price.cost(TokenUsage(0, 1_000_000)) == 30_000_000_000


@pytest.mark.parametrize(("settings", "percent"), [(ModelSettings(), 125), (HOUR, 200)])
def test_an_own_price_without_one_for_writing_to_anthropics_cache_gets_theirs(
    settings: ModelSettings, percent: int
) -> None:
    """What the error about a missing price suggests has no such rate, but the cache is on unless it is turned off."""
    mine, full = ModelPrice.per_million(4, 20), ModelPrice.per_million(4, 20, 1, 3)
    new = model("anthropic", "claude-new")
    found = price_of(new, {"claude-new": mine}, settings)
    assert found is not None
    assert found.cost(TokenUsage(1_000_000, 0, 0, 1_000_000)) == 4_000_000_000 * percent // 100
    assert found.worst_input(1_000_000) == 4_000_000_000 * percent // 100
    assert found.cost(TokenUsage(1_000_000, 1_000_000)) == 24_000_000_000
    assert price_of(new, {"claude-new": full}, settings) is full


def listing(*prices: tuple[str | None, dict[str, Any]]) -> data_snapshot.DataSnapshot:
    """Return a list with one model whose prices depend on the hour (``HH-HH``) or on a date."""
    from genai_prices import types

    def constraint(when: str | None) -> Any:
        if when is None:
            return None
        if len(when) == 10:
            return types.StartDateConstraint(datetime.fromisoformat(when).date())
        begin, end = (datetime.fromisoformat(f"2026-01-01T{hour}:00+00:00").timetz() for hour in when.split("-"))
        return types.TimeOfDateConstraint(begin, end)

    conditional = [
        types.ConditionalPrice(constraint=constraint(when), prices=types.ModelPrice(**rate)) for when, rate in prices
    ]
    info = types.ModelInfo(id="m", match=types.ClauseEquals("m"), prices=conditional)
    owner = types.Provider(id="p", name="P", api_pattern="p", pricing_urls=[], models=[info])
    return data_snapshot.DataSnapshot(providers=[owner], from_auto_update=False)


def flat(usd: str, **more: str) -> dict[str, Any]:
    """Return one price for input and output, and more for whatever is named."""
    return {"input_mtok": Decimal(usd), "output_mtok": Decimal(usd)} | {
        name: Decimal(value) for name, value in more.items()
    }


def priced(monkeypatch: pytest.MonkeyPatch, snapshot: data_snapshot.DataSnapshot, now: str) -> ModelPrice | None:
    """Look the model up in a list of our own."""
    monkeypatch.setattr(data_snapshot, "get_snapshot", lambda: snapshot)
    start = datetime.fromisoformat(now)
    clock = TestClock(start=start)
    assert clock.now() - start < timedelta(seconds=1)
    return listed_price("p", "m", clock=clock)


def test_where_the_hour_decides_the_dearest_rate_of_the_next_day_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = listing((None, flat("1", cache_read_mtok="0.5")), ("08-20", flat("2")))
    price = priced(monkeypatch, snapshot, "2026-11-21T23:00:00+00:00")
    assert rates(price) == [2_000_000_000] * 4


def test_where_the_dearest_hour_has_no_rate_by_tokens_the_price_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = listing((None, flat("1")), ("08-20", {"input_mtok": Decimal(2)}))
    assert priced(monkeypatch, snapshot, "2026-11-21T23:00:00+00:00") is None


@pytest.mark.parametrize(("now", "usd"), [("2026-11-29T10:00:00+00:00", 1), ("2026-11-30T10:00:00+00:00", 3)])
def test_a_price_that_rises_within_a_day_counts_already(now: str, usd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = listing((None, flat("1")), ("2026-12-01", flat("3")))
    assert rates(priced(monkeypatch, snapshot, now))[0] == usd * 1_000_000_000


def test_reasoning_that_costs_more_than_output_is_the_rate_of_output(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = listing((None, flat("2", output_reasoning_mtok="5")))
    assert rates(priced(monkeypatch, snapshot, "2026-11-21T10:00:00+00:00"))[:2] == [2_000_000_000, 5_000_000_000]


def test_a_model_without_any_price_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert priced(monkeypatch, listing(), "2026-11-21T10:00:00+00:00") is None


def test_tiers_of_two_prices_join_to_the_dearer_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from genai_prices.types import Tier, TieredPrices

    def tiered(base: str, start: int, above: str) -> dict[str, Any]:
        return {"input_mtok": TieredPrices(Decimal(base), [Tier(start, Decimal(above))]), "output_mtok": Decimal(1)}

    snapshot = listing((None, tiered("1", 100, "9")), ("08-20", tiered("2", 300, "4")))
    price = priced(monkeypatch, snapshot, "2026-11-21T10:00:00+00:00")
    assert price is not None
    sizes = {100: 2, 101: 9, 300: 9, 301: 9}
    assert {size: price.input.at(size) // 1_000_000_000 for size in sizes} == sizes


@pytest.mark.spec("FR-071")
def test_a_ceiling_over_a_model_without_a_price_is_refused_with_the_ways_out() -> None:
    unknown = model("openai", "mine")
    with pytest.raises(UnpricedModelError) as caught:
        check_priced(unknown, None, Limits(max_cost_usd=1))
    for part in ("openai:mine", "prices=", "[tool.watchkeeper.prices]", "lift max_cost_usd"):
        assert part in str(caught.value)
    assert "pip install" not in str(caught.value)
    check_priced(unknown, None, Limits())
    check_priced(unknown, FREE, Limits(max_cost_usd=1))


def test_the_price_list_is_recommended_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(_: str) -> None:
        """Nothing is installed."""

    monkeypatch.setattr("importlib.util.find_spec", find_nothing)
    with pytest.raises(
        UnpricedModelError, match=r"install the price list: pip install 'watchkeeper\[prices\]'; or lift"
    ):
        check_priced(model("openai", "mine"), None, Limits(max_cost_usd=1))
