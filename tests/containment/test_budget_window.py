"""A window has exactly as many places as it has, whoever asks; what does not run takes none."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import LimitsError
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.windows import BudgetWindowHook

HALT, DEGRADE = Decision.HALT, Decision.DEGRADE


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
