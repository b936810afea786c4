"""Amounts within a window: they expire to the moment; what is given back is given back once, and to the right call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import LimitsError
from watchkeeper.shield.decision import ToolCallContext
from watchkeeper.shield.windows import SlidingWindow, at_share, checked_share


def call(**fields: Any) -> ToolCallContext:
    return ToolCallContext("request", **fields)


def test_an_amount_counts_until_it_is_a_whole_window_old() -> None:
    clock = TestClock()
    window = SlidingWindow(10, clock)
    window.take(call(), 3)
    clock.advance(9.999)
    assert window.slide() == 3
    clock.advance(0.001)
    assert window.slide() == 0


def test_without_a_window_nothing_expires_and_much_is_kept_in_one_figure() -> None:
    clock = TestClock()
    window = SlidingWindow(None, clock)
    ctx = call()
    window.take(ctx, 3)
    window.take(call(), 4)
    clock.advance(1e6)
    assert window.slide() == 7
    window.give_back(ctx)
    assert window.slide() == 4
    assert str(window) == "in all"


def test_a_call_gives_back_its_newest_amount_once() -> None:
    window = SlidingWindow("1m", TestClock())
    ctx = call()
    window.take(ctx, 1)
    window.take(ctx, 10)
    window.give_back(ctx)
    window.give_back(ctx)
    assert window.slide() == 1
    assert str(window) == "in the last 1m"


def test_what_was_disowned_stays_taken() -> None:
    window = SlidingWindow(60, TestClock())
    ctx = call()
    window.take(ctx, 5)
    window.disown(ctx)
    window.give_back(ctx)
    assert window.slide() == 5


def test_what_has_expired_is_not_given_back_again() -> None:
    clock = TestClock()
    window = SlidingWindow(1, clock)
    ctx = call()
    window.take(ctx, 5)
    clock.advance(1)
    window.slide()
    window.take(call(), 2)
    window.give_back(ctx)
    assert window.slide() == 2


def test_an_older_amount_of_the_same_call_expires_by_itself() -> None:
    clock = TestClock()
    window = SlidingWindow(1, clock)
    ctx = call()
    window.take(ctx, 5)
    clock.advance(0.5)
    window.take(ctx, 7)
    clock.advance(0.5)
    assert window.slide() == 7
    window.give_back(ctx)
    assert window.slide() == 0


def test_a_context_at_the_address_of_one_that_is_gone_owns_nothing_of_it() -> None:
    window = SlidingWindow(60, TestClock())
    for _ in range(100):
        window.take(call(), 1)
        window.give_back(call())
    assert window.slide() == 100


def test_numbered_calls_are_known_by_their_number_within_one_chain() -> None:
    facts, others = {"chain_id": "c"}, {"chain_id": "c"}
    window = SlidingWindow(60, TestClock())
    window.take(call(number=1, metadata=facts), 5)
    window.give_back(call(number=1, metadata=others))
    window.give_back(call(number=2, metadata=facts))
    assert window.slide() == 5
    window.give_back(call(number=1, metadata=facts, tokens_in=9))
    assert window.slide() == 0


def test_a_settled_amount_takes_the_place_of_what_was_held_from_then_on() -> None:
    clock = TestClock()
    window = SlidingWindow(10, clock)
    ctx = call()
    window.take(ctx, 100)
    clock.advance(8)
    window.settle(ctx, 30)
    window.give_back(ctx)
    clock.advance(8)
    assert window.slide() == 30
    clock.advance(2)
    assert window.slide() == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(0, 5), st.integers(0, 9)),
            st.tuples(st.just("back"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("settle"), st.integers(0, 5), st.integers(0, 9)),
            st.tuples(st.just("pass"), st.just(0), st.integers(0, 7)),
        ),
        max_size=60,
    )
)
def test_the_total_is_the_sum_of_what_a_plain_list_would_hold(steps: list[tuple[str, int, int]]) -> None:
    clock = TestClock()
    window = SlidingWindow(10, clock)
    calls = [call() for _ in range(6)]
    model: list[list[Any]] = []  # owner or None, amount, moment

    def back(owner: int) -> None:
        mine = [row for row in model if row[0] == owner and row[2] + 10 > clock.monotonic()]
        if mine:
            model.remove(mine[-1])
        for row in model:
            row[0] = None if row[0] == owner else row[0]

    for step, owner, amount in steps:
        if step == "pass":
            clock.advance(amount)
        elif step == "take":
            for row in model:
                row[0] = None if row[0] == owner else row[0]
            model.append([owner, amount, clock.monotonic()])
            window.take(calls[owner], amount)
        elif step == "settle":
            window.slide()
            back(owner)
            model.append([None, amount, clock.monotonic()])
            window.settle(calls[owner], amount)
        else:
            window.slide()
            back(owner)
            window.give_back(calls[owner])
        assert window.slide() == sum(row[1] for row in model if row[2] + 10 > clock.monotonic())


def test_a_share_is_rounded_up_by_its_decimal_value() -> None:
    assert at_share(0.8, 10, "share") == 8
    assert at_share(0.28, 100, "share") == 28
    assert at_share(0.8, 1, "share") == 1
    assert at_share(1, 7, "share") == 7


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan"), float("inf"), True, "0.8", None])
def test_what_is_no_share_is_refused_by_name_and_value(share: Any) -> None:
    with pytest.raises(LimitsError, match=rf"degrade_threshold={share!r}"):
        checked_share(share, "degrade_threshold")
