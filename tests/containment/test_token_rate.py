"""Tokens are counted as estimated before a call and as used after it; nothing beyond the window's share enters."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.usage import TokenUsage
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.windows import TokenRateHook, tokens_told_by

HALT, DEGRADE, QUEUE = Decision.HALT, Decision.DEGRADE, Decision.QUEUE


def call(tokens_in: int | None = None, tokens_out: int | None = None, **fields: Any) -> ToolCallContext:
    return ToolCallContext("request", tokens_in=tokens_in, tokens_out=tokens_out, **fields)


def used(tokens: int) -> dict[str, Any]:
    return {"usage": {"total_tokens": tokens}}


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


def test_a_fixed_ceiling_never_opens_again() -> None:
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
def test_what_makes_no_sense_is_refused_with_field_and_value(field: str, value: Any) -> None:
    values: dict[str, Any] = {"max_tokens": 10, field: value}
    with pytest.raises(ConfigurationError, match=f"{field}=") as caught:
        TokenRateHook(**values)
    assert repr(value) in str(caught.value)
