"""Windows of calls and tokens: they admit exactly their size, refused calls give back, old entries expire."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.core.usage import TokenUsage
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.usage_hooks import (
    BudgetWindowHook,
    SlidingWindow,
    TokenRateHook,
    at_share,
    checked_share,
    tokens_told_by,
)

HALT, DEGRADE, QUEUE = Decision.HALT, Decision.DEGRADE, Decision.QUEUE


def call(tokens_in: int | None = None, tokens_out: int | None = None, **fields: Any) -> ToolCallContext:
    return ToolCallContext("request", tokens_in=tokens_in, tokens_out=tokens_out, **fields)


def used(tokens: int) -> dict[str, Any]:
    return {"usage": {"total_tokens": tokens}}


# --- the window -------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("seconds", [None, 10])
def test_nothing_is_kept_of_a_call_that_takes_nothing(seconds: float | None) -> None:
    window = SlidingWindow(seconds, TestClock())
    ctx = call()
    held = sys.getrefcount(ctx)
    window.take(ctx, 0)
    assert sys.getrefcount(ctx) == held
    window.settle(ctx, 5)
    assert window.slide() == 5


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


# --- so many calls ----------------------------------------------------------------------------------------------------


def ask(hook: BudgetWindowHook, times: int = 1) -> list[Decision | None]:
    return [hook.before_llm_call(ToolCallContext("request")) for _ in range(times)]


@pytest.mark.spec("EC-036")
def test_calls_pass_then_degrade_then_halt() -> None:
    hook = BudgetWindowHook(10, clock=TestClock())
    assert ask(hook, 12) == [None] * 8 + [DEGRADE] * 2 + [HALT] * 2


def test_a_place_is_free_again_once_it_is_a_whole_window_old() -> None:
    clock = TestClock()
    hook = BudgetWindowHook(2, 60, 1, clock=clock)
    ask(hook)
    clock.advance(30)
    assert ask(hook, 2) == [None, HALT]
    clock.advance(29.5)
    assert ask(hook) == [HALT]
    clock.advance(0.5)
    assert ask(hook, 2) == [None, HALT]
    assert hook.calls == 2


def test_a_refused_call_takes_no_place() -> None:
    clock = TestClock()
    hook = BudgetWindowHook(1, 60, clock=clock)
    ask(hook)
    clock.advance(59)
    assert ask(hook, 100) == [HALT] * 100
    clock.advance(1)
    assert ask(hook) == [None]


@pytest.mark.spec("EC-036")
def test_a_fixed_ceiling_never_opens_again() -> None:
    clock = TestClock()
    hook = BudgetWindowHook("2", None, clock=clock)
    assert ask(hook, 3) == [None, None, HALT]
    clock.advance(1e7)
    assert ask(hook) == [HALT]
    assert hook.explain(ToolCallContext("request")) == "2 of 2 calls were let through in all."


def test_a_released_place_is_free_at_once_and_only_once() -> None:
    hook = BudgetWindowHook(2, 60, 1, clock=TestClock())
    first, second, third = (ToolCallContext("request") for _ in range(3))
    assert hook.before_llm_call(first) is None
    assert hook.before_llm_call(second) is None
    hook.release(first)
    hook.release(first)
    assert hook.before_llm_call(third) is None
    assert hook.before_llm_call(first) is HALT


def test_a_degraded_call_has_a_place_and_can_give_it_back() -> None:
    hook = BudgetWindowHook(2, 60, 0.5, clock=TestClock())
    ask(hook)
    ctx = ToolCallContext("request")
    assert hook.before_llm_call(ctx) is DEGRADE
    assert hook.calls == 2
    hook.release(ctx)
    assert hook.calls == 1


def test_releasing_a_refused_call_frees_no_other_place_of_its_context() -> None:
    hook = BudgetWindowHook(1, 60, clock=TestClock())
    ctx = ToolCallContext("request")
    assert hook.before_llm_call(ctx) is None
    assert hook.before_llm_call(ctx) is HALT
    hook.release(ctx)
    assert hook.calls == 1


def test_tool_calls_can_be_counted_too() -> None:
    hook = BudgetWindowHook(1, clock=TestClock())
    assert hook.before_tool_call(ToolCallContext("request")) is None
    assert hook.before_tool_call(ToolCallContext("request")) is HALT
    assert hook.stop_reason == "provider_rate_limit"
    assert hook.explain(ToolCallContext("request")) == "1 of 1 calls were let through in the last 1m."


@pytest.mark.spec("EC-036")
def test_threads_get_exactly_the_places_there_are() -> None:
    hook = BudgetWindowHook(500, None, 1)
    let_through: list[int] = []
    barrier = threading.Barrier(64)

    def many() -> None:
        barrier.wait()
        passed = 0
        for turn in range(40):
            ctx = ToolCallContext("request")
            if hook.before_llm_call(ctx) is None:
                if turn % 4 == 3:
                    hook.release(ctx)
                else:
                    passed += 1
        let_through.append(passed)

    threads = [threading.Thread(target=many) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rest = ask(hook, 501)
    assert sum(let_through) + rest.count(None) == hook.calls == 500


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_calls", value) for value in (0, -1, 1.5, float("nan"), True, "many", 2**63)),
        *(("window_seconds", value) for value in (0, -1, float("nan"), float("inf"), 1e12, "soon", True)),
        *(("degrade_threshold", value) for value in (0, -0.5, 1.5, float("nan"), "x")),
    ],
)
def test_what_makes_no_sense_is_refused_with_field_and_value(field: str, value: Any) -> None:
    values: dict[str, Any] = {"max_calls": 10, field: value}
    with pytest.raises(LimitsError, match=f"{field}=") as caught:
        BudgetWindowHook(**values)
    assert repr(value) in str(caught.value)


# --- so many tokens ---------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_and_takes_nothing() -> None:
    hook = TokenRateHook(100, clock=TestClock())
    assert hook.before_llm_call(call(40, 20)) is None
    assert hook.before_llm_call(call(41)) is HALT
    assert hook.before_llm_call(call(40)) is None
    assert hook.before_llm_call(call()) is HALT
    assert hook.tokens == 100


@pytest.mark.spec("EC-037")
def test_what_was_used_takes_the_place_of_the_estimate() -> None:
    hook = TokenRateHook(100, clock=TestClock())
    ctx = call(80, 20)
    assert hook.before_llm_call(ctx) is None
    hook.after_llm_call(ctx, used(30))
    assert hook.tokens == 30
    hook.release(ctx)
    assert hook.tokens == 30


def test_a_call_without_an_estimate_is_counted_afterwards() -> None:
    hook = TokenRateHook("1k", clock=TestClock())
    ctx = call()
    assert hook.before_llm_call(ctx) is None
    hook.after_llm_call(ctx, used(1_500))
    assert hook.before_llm_call(call()) is HALT
    assert hook.tokens == 1_500


def test_tokens_count_from_the_end_of_their_call_for_one_window() -> None:
    clock = TestClock()
    hook = TokenRateHook(100, "1m", clock=clock)
    ctx = call(50)
    hook.before_llm_call(ctx)
    clock.advance(50)
    hook.after_llm_call(ctx, used(100))
    clock.advance(59)
    assert hook.before_llm_call(call(1)) is HALT
    clock.advance(1)
    assert hook.before_llm_call(call(1)) is None


def test_a_call_longer_than_the_window_is_counted_when_it_ends() -> None:
    clock = TestClock()
    hook = TokenRateHook(100, 60, clock=clock)
    ctx = call(50)
    hook.before_llm_call(ctx)
    clock.advance(90)
    hook.after_llm_call(ctx, used(70))
    assert hook.tokens == 70


def test_what_nobody_knows_stays_counted_as_estimated() -> None:
    hook = TokenRateHook(100, clock=TestClock())
    ctx = call(40)
    hook.before_llm_call(ctx)
    hook.after_llm_call(ctx, "an answer")
    assert hook.tokens == 40


def test_a_gate_tells_afterwards_what_it_settled() -> None:
    facts = {"chain_id": "c"}
    hook = TokenRateHook(100, clock=TestClock())
    hook.before_llm_call(call(80, 10, number=7, metadata=facts))
    hook.after_llm_call(call(20, 5, number=7, metadata=facts), "an answer")
    assert hook.tokens == 25
    hook.after_llm_call(call(number=7, metadata=facts), "an answer")
    assert hook.tokens == 25


def test_a_released_call_gives_its_estimate_back() -> None:
    hook = TokenRateHook(100, clock=TestClock())
    ctx = call(100)
    hook.before_llm_call(ctx)
    hook.release(ctx)
    assert hook.tokens == 0


def test_a_full_window_can_mean_waiting_but_never_for_what_cannot_fit() -> None:
    clock = TestClock()
    hook = TokenRateHook(100, 60, when_full=QUEUE, clock=clock)
    assert hook.before_llm_call(call(100)) is None
    assert hook.before_llm_call(call(60)) is QUEUE
    assert hook.before_llm_call(call(101)) is HALT
    clock.advance(60)
    assert hook.before_llm_call(call(60)) is None


def test_calls_degrade_from_the_threshold_on() -> None:
    hook = TokenRateHook(100, degrade_threshold=0.5, clock=TestClock())
    assert hook.before_llm_call(call(50)) is None
    assert hook.before_llm_call(call(10)) is DEGRADE
    assert hook.tokens == 60


def test_a_fixed_ceiling_of_tokens_never_opens_again() -> None:
    clock = TestClock()
    hook = TokenRateHook(100, None, clock=clock)
    hook.before_llm_call(call(100))
    clock.advance(1e6)
    assert hook.before_llm_call(call(1)) is HALT
    assert hook.explain(call(1)) == "100 of 100 tokens were used in all; the call may need 1."
    assert hook.explain(call()) == "100 of 100 tokens were used in all."
    assert hook.stop_reason == "provider_rate_limit"


def test_the_caller_can_say_what_a_response_has_used() -> None:
    hook = TokenRateHook(100, tokens_of=len, clock=TestClock())
    ctx = call()
    hook.before_llm_call(ctx)
    hook.after_llm_call(ctx, "twelve chars")
    assert hook.tokens == 12


def test_a_count_below_zero_is_refused() -> None:
    hook = TokenRateHook(100, tokens_of=lambda response: -1, clock=TestClock())
    with pytest.raises(ConfigurationError, match="tokens_of=-1"):
        hook.after_llm_call(call(), "answer")


@pytest.mark.spec("EC-037")
def test_threads_together_never_take_more_than_there_is() -> None:
    hook = TokenRateHook(1_000, None)
    passed: list[int] = []

    def many() -> None:
        mine = [hook.before_llm_call(call(7)) for _ in range(40)]
        passed.append(mine.count(None))

    threads = [threading.Thread(target=many) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(passed) == 142
    assert hook.tokens == 994


@pytest.mark.parametrize(
    ("response", "tokens"),
    [
        (SimpleNamespace(usage=TokenUsage(10, 5, cached_tokens=3)), 15),
        (SimpleNamespace(usage=SimpleNamespace(prompt_tokens=10, completion_tokens=5, total_tokens=15)), 15),
        (SimpleNamespace(usage=SimpleNamespace(input_tokens=10, output_tokens=5, total_tokens=15)), 15),
        (
            SimpleNamespace(
                usage=SimpleNamespace(
                    input_tokens=10, output_tokens=5, cache_read_input_tokens=100, cache_creation_input_tokens=None
                )
            ),
            115,
        ),
        ({"usage": {"prompt_tokens": 10, "completion_tokens": 5}}, 15),
        ({"usage": {"output_tokens": 5}}, 5),
        ({"usage": None}, None),
        ({"usage": {"total_tokens": -3}}, None),
        ({"usage": {"total_tokens": True}}, None),
        (SimpleNamespace(), None),
        ("text", None),
        (None, None),
    ],
)
def test_responses_tell_their_tokens(response: object, tokens: int | None) -> None:
    assert tokens_told_by(response) == tokens


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_tokens", value) for value in (0, -1, 1.5, float("nan"), "many")),
        *(("window_seconds", value) for value in (0, -1, float("nan"), float("inf"), "soon")),
        *(("degrade_threshold", value) for value in (0, 1.5, float("nan"))),
        *(("when_full", value) for value in (Decision.DEGRADE, Decision.ALLOW, "stop", None)),
        ("tokens_of", 5),
    ],
)
def test_token_settings_that_make_no_sense_are_refused_with_field_and_value(field: str, value: Any) -> None:
    values: dict[str, Any] = {"max_tokens": 10, field: value}
    with pytest.raises(ConfigurationError, match=f"{field}=") as caught:
        TokenRateHook(**values)
    assert repr(value) in str(caught.value)
