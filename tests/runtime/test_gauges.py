"""Gauges: what they read at the gate adds up to each limit, and the end that is projected from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from watchkeeper import Limits
from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate, presumed_charge
from watchkeeper.accounting.limits import UNLIMITED
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock
from watchkeeper.core.usage import TokenUsage
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.runtime.gauges import End, Gauge, gauges_of, projected_end

CLOCK_LIMITS = Limits(deadline="10m", max_cost_usd=2, max_total_tokens=100_000, max_steps=50, max_turns=9)
CALL = CallRequest("llm", "model", Estimate(1_000, 500, input_nanos=1_000_000, output_nanos_per_token=1_000))


def by_limit(gate: ExecutionContext, turns: int | None = None) -> dict[str, Gauge]:
    return {gauge.limit: gauge for gauge in gauges_of(gate, turns)}


def charged(charge: Charge) -> Callable[..., Charge]:
    """Return a meter that always says the same."""

    def meter(value: object, error: object, more: object = None) -> Charge:
        return charge

    return meter


def test_every_limit_that_is_set_has_a_gauge_and_each_adds_up() -> None:
    clock = TestClock()
    with ExecutionContext(CLOCK_LIMITS, clock=clock) as gate:
        clock.advance(60)

        def look(_: object) -> dict[str, Gauge]:
            return by_limit(gate, 3)

        inside = gate.call(CALL, look, charged(Charge(TokenUsage(900, 100), 5_000_000))).value
        assert inside is not None
        after = by_limit(gate, 4)
        assert [*after] == ["deadline", "max_total_tokens", "max_cost_usd", "max_steps", "max_turns"]
        for gauge in (*inside.values(), *after.values()):
            assert gauge.used + gauge.reserved + gauge.left == gauge.most, gauge
        tokens = inside["max_total_tokens"]
        assert (tokens.used, tokens.reserved >= 1_500) == (0, True)
        assert after["max_total_tokens"].used == 1_000
        assert after["max_cost_usd"].used == 5_000_000
        assert (after["deadline"].used, after["deadline"].most) == (60_000, 600_000)
        assert after["deadline"].reserved == 30_000  # for the last turn
        assert (after["max_turns"].used, after["max_steps"].used) == (4, 1)


def test_what_is_presumed_is_part_of_what_is_used() -> None:
    with ExecutionContext(CLOCK_LIMITS, clock=TestClock()) as gate:
        gate.call(CALL, lambda _: None, charged(Charge(TokenUsage(900, 100), 5_000_000)))
        assert by_limit(gate)["max_total_tokens"].presumed == 0
        worst = presumed_charge(TokenUsage(1_000, 500), 6_000_000)
        gate.call(CALL, lambda _: None, charged(worst))
        tokens, money = by_limit(gate)["max_total_tokens"], by_limit(gate)["max_cost_usd"]
        assert (tokens.used, tokens.presumed) == (2_500, 1_500)
        assert (money.used, money.presumed) == (11_000_000, 6_000_000)


def test_what_other_runs_use_of_a_shared_account_counts(tmp_path: Path) -> None:
    limits = Limits(account="team", account_limit="$10/day")
    with SqliteLedger(tmp_path / "ledger") as ledger, ExecutionContext(limits, ledger=ledger) as other:
        other.call(CALL, lambda _: None, charged(Charge(TokenUsage(1, 1), 4_000_000_000)))
        with ExecutionContext(limits, ledger=ledger) as gate:
            shared = by_limit(gate)["account_limit"]
    assert (shared.column, shared.used, shared.most) == ("cost_nanos", 4_000_000_000, 10_000_000_000)


def test_turns_and_retries_are_told_only_where_they_are_known() -> None:
    with ExecutionContext(CLOCK_LIMITS, clock=TestClock()) as gate:
        assert not {"max_turns", "max_retries"} & by_limit(gate).keys()
    with ExecutionContext(UNLIMITED, clock=TestClock()) as gate:
        assert gauges_of(gate, 5) == ()


STARTED = (Gauge("max_total_tokens", 100, 1_000), Gauge("max_steps", 0, 100))
TOKENS = Gauge("max_total_tokens", 200, 1_000, column="total_tokens")
STEPS = Gauge("max_steps", 10, 100, column="steps")
SOON, LATE = (Gauge("deadline", 10_000, end, column="time") for end in (40_000, 4_000_000))


@pytest.mark.parametrize(
    ("now", "calls", "end"),
    [
        ((TOKENS,), 5, End("max_total_tokens", "total_tokens", 80)),
        ((TOKENS,), 4, None),
        ((Gauge("max_total_tokens", 100, 1_000),), 5, None),
        ((Gauge("max_retries", 5, 10),), 5, None),
        ((Gauge("account_limit", 5, 10),), 5, None),
        ((SOON, STEPS), 5, End("deadline", "time", 30)),
        ((LATE, STEPS), 5, End("max_steps", "steps", 90)),
        ((Gauge("max_steps", 120, 100, column="steps"),), 5, End("max_steps", "steps", 0)),
    ],
)
def test_the_end_is_that_of_the_limit_that_is_used_up_first(
    now: tuple[Gauge, ...], calls: int, end: End | None
) -> None:
    assert projected_end(STARTED, now, calls, 10.0) == end
