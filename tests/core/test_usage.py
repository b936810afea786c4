"""Usage is added up exactly, and its cost is never computed too low."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.usage import ModelPrice, Presumed, Rate, TokenUsage, Usage

counts = st.integers(min_value=0, max_value=10**12)
tokens = st.builds(TokenUsage, counts, counts, counts, counts, counts)
presumed = st.builds(Presumed, counts, tokens, st.none() | counts)
usages = st.builds(Usage, tokens, st.none() | counts, counts, counts, counts, counts, presumed)


@pytest.mark.spec("NE-012")
def test_the_total_is_input_and_output() -> None:
    assert TokenUsage(input_tokens=7, output_tokens=5, cached_tokens=3, reasoning_tokens=2).total == 12


@given(usages, usages, usages)
def test_sums_do_not_depend_on_order(one: Usage, two: Usage, three: Usage) -> None:
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert one + Usage() == one


@given(usages, usages)
def test_every_figure_is_added(one: Usage, two: Usage) -> None:
    both = one + two
    assert both.tokens.total == one.tokens.total + two.tokens.total
    assert both.tokens.cached_tokens == one.tokens.cached_tokens + two.tokens.cached_tokens
    assert both.steps == one.steps + two.steps
    assert both.model_calls == one.model_calls + two.model_calls
    assert both.presumed.calls == one.presumed.calls + two.presumed.calls
    assert both.presumed.tokens == one.presumed.tokens + two.presumed.tokens


@pytest.mark.spec("FR-004")
@given(usages)
def test_an_unknown_cost_stays_unknown_and_is_never_zero(usage: Usage) -> None:
    assert (usage + Usage(cost_nanos=None)).cost_nanos is None
    assert (usage + Usage(cost_nanos=None)).cost is None


def test_the_cost_is_exact_dollars() -> None:
    assert Presumed(1, cost_nanos=1).cost == Decimal("0.000000001")
    assert Usage(cost_nanos=1).cost == Decimal("0.000000001")
    assert (Usage(cost_nanos=100_000_000) + Usage(cost_nanos=200_000_000)).cost == Decimal("0.3")


@pytest.mark.parametrize("base", [-1, 1.5, "1", True, None, Decimal(1)])
def test_a_rate_is_a_whole_number_of_nano_dollars(base: Any) -> None:
    with pytest.raises(ConfigurationError, match="must hold whole nano-dollars per million tokens"):
        Rate(base)
    with pytest.raises(ConfigurationError, match=r"per_million\(input_usd, output_usd\) takes dollars"):
        Rate(1, ((200_000, base),))


@pytest.mark.parametrize("name", ["input", "output", "cached", "cache_write"])
def test_a_price_is_made_of_rates(name: str) -> None:
    rates: dict[str, Any] = {"input": Rate(1), "output": Rate(2), name: Decimal("1.25")}
    with pytest.raises(ConfigurationError, match=rf"ModelPrice\({name}=Decimal\('1.25'\)\) must be a Rate"):
        ModelPrice(**rates)


def test_what_is_read_and_written_costs_something() -> None:
    rates: dict[str, Any] = {"input": Rate(1), "output": None}
    with pytest.raises(ConfigurationError, match="output=None"):
        ModelPrice(**rates)


@pytest.mark.parametrize("dollars", ["abc", "", "-1", float("nan"), float("inf"), None])
def test_dollars_must_be_dollars(dollars: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be 0 or more dollars per million tokens"):
        ModelPrice.per_million(dollars, 1)


def test_fractions_of_a_nano_dollar_are_rounded_up() -> None:
    assert ModelPrice.per_million("0.0000000001", 1).input == Rate(1)


def test_a_cost_below_a_nano_dollar_is_rounded_up() -> None:
    price = ModelPrice(Rate(1), Rate(1))
    assert price.cost(TokenUsage(input_tokens=1)) == 1
    assert price.cost(TokenUsage(input_tokens=1_000_001)) == 2
    assert (price.worst_input(1), price.worst_output_token(1)) == (1, 1)


def test_the_worst_input_is_charged_at_the_dearest_of_its_rates() -> None:
    price = ModelPrice(Rate(2_000_000), Rate(0), cached=Rate(1_000_000), cache_write=Rate(5_000_000))
    assert price.worst_input(10) == 50
