"""Breakers of the caller's own are asked by their public methods; whatever raises, no reservation is lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.text import CrashError
from watchkeeper.shield.circuit_breaker import CircuitBreaker, CircuitBreakers, PolicyContext, PolicyDecision
from watchkeeper.shield.decision import Decision, SafetyEvent, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline

ONE_RETRY = ExecutionConfig(max_cost_usd=1, max_steps=20, max_retries_total=1, timeout_ms=0)
ASK = WrapOptions("ask", cost_estimate_hint=0.4, provider="one")


def fail() -> None:
    raise ConnectionError("down")


class Told:
    """A breaker with the three methods and nothing else; remembers what it was asked and told."""

    def __init__(self, *, allowed: bool = True) -> None:
        self.allowed = allowed
        self.asked: list[PolicyContext] = []
        self.told: list[str] = []

    def check(self, context: PolicyContext) -> PolicyDecision:
        self.asked.append(context)
        return PolicyDecision(self.allowed, "told", "" if self.allowed else "not now")

    def record_success(self) -> None:
        self.told.append("success")

    def record_failure(self) -> None:
        self.told.append("failure")


def without(method: str) -> Any:
    """Return a breaker that lacks one of the three methods."""
    return type("Half", (Told,), {method: None})()


class Refusing(CircuitBreaker):
    def check(self, context: PolicyContext | None = None) -> PolicyDecision:
        return PolicyDecision(False, "mine", "Not today.")


class Counting(CircuitBreaker):
    """Counts what it is told, and otherwise is like any other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(2, 5.0, **options)
        self.told: list[str] = []

    def record_success(self) -> None:
        self.told.append("success")
        super().record_success()

    def record_failure(self, *, error: BaseException | None = None) -> None:
        self.told.append(type(error).__name__)
        super().record_failure(error=error)


@pytest.mark.spec("EC-023", "EC-041")
def test_a_subclass_that_refuses_refuses() -> None:
    for breaker in (Refusing(), Told(allowed=False)):
        ctx = ExecutionContext(ONE_RETRY, circuit_breaker=breaker)  # type: ignore[arg-type]
        outcome = ctx.call_llm(lambda: "never", ASK)
        assert (outcome.decision, outcome.stop_reason, outcome.admitted) == (Decision.HALT, "circuit_open", False)
        assert outcome.stop is not None
        assert outcome.stop.message in ("Not today.", "not now")
        assert ctx.account.reserved == [0] * 7
        assert ctx.get_snapshot().step_count == 0


@pytest.mark.spec("EC-041")
def test_an_object_with_the_three_methods_is_asked_and_told() -> None:
    breaker = Told()
    with ExecutionContext(ONE_RETRY, circuit_breaker=breaker) as ctx:  # type: ignore[arg-type]
        assert ctx.wrap_llm_call(lambda: 1, ASK) is Decision.ALLOW
        assert ctx.wrap_llm_call(fail, ASK) is not Decision.ALLOW
        asked = breaker.asked[1]
        assert (asked.cost_usd, asked.step_count, asked.entity_id) == (0.4, 2, "one")
        assert asked.chain_id == ctx.get_snapshot().chain_id
    assert breaker.told == ["success", "failure"]


def test_a_subclass_is_told_and_keeps_its_states() -> None:
    clock = TestClock()
    breaker = Counting(clock=clock)
    config = ExecutionConfig(max_cost_usd=100, max_steps=100, max_retries_total=50, timeout_ms=0)
    with ExecutionContext(config, circuit_breaker=breaker, clock=clock) as ctx:
        for _ in range(2):
            ctx.call_llm(fail, ASK)
        assert breaker.state == "OPEN"
        assert ctx.call_llm(lambda: 1, ASK).stop_reason == "circuit_open"
        clock.advance(5)

        def probe() -> str:
            assert ctx.call_tool(lambda: "part of the probe").decision is Decision.ALLOW
            return "back"

        assert ctx.call_llm(probe, ASK).value == "back"
        assert breaker.state == "CLOSED"
        for _ in range(2):
            ctx.call_llm(fail, ASK)
        clock.advance(5)
        with pytest.raises(KeyboardInterrupt):
            ctx.call_llm(lambda: (_ for _ in ()).throw(KeyboardInterrupt()), ASK)
        assert ctx.call_llm(lambda: "the probe's place was given back", ASK).decision is Decision.ALLOW
    assert breaker.told == [*["ConnectionError"] * 2, "success", *["ConnectionError"] * 2, "success"]


def test_one_for_each_provider_may_be_of_its_own_kind_too() -> None:
    class Mine(CircuitBreakers):
        def of(self, provider: str) -> CircuitBreaker:
            return Refusing() if provider == "one" else super().of(provider)

    with ExecutionContext(ONE_RETRY, circuit_breaker=Mine()) as ctx:
        assert ctx.call_llm(lambda: 1, ASK).stop_reason == "circuit_open"
        assert ctx.wrap_llm_call(lambda: 1, WrapOptions(provider="two")) is Decision.ALLOW


@pytest.mark.parametrize("missing", ["check", "record_success", "record_failure"])
def test_one_that_lacks_a_method_is_refused_when_the_context_is_made(missing: str) -> None:
    with pytest.raises(ConfigurationError, match=missing):
        ExecutionContext(ONE_RETRY, circuit_breaker=without(missing))


def test_one_with_an_async_method_is_refused() -> None:
    class Async(Told):
        async def check(self, context: PolicyContext) -> PolicyDecision:  # type: ignore[override]
            return PolicyDecision(True, "never awaited")

    with pytest.raises(ConfigurationError, match="async"):
        ExecutionContext(ONE_RETRY, circuit_breaker=Async())  # type: ignore[arg-type]


def test_an_answer_that_is_none_refuses() -> None:
    breaker = Told()
    breaker.check = lambda context: None  # type: ignore[assignment, return-value]
    with ExecutionContext(ONE_RETRY, circuit_breaker=breaker) as ctx:  # type: ignore[arg-type]
        assert ctx.call_llm(lambda: 1, ASK).stop_reason == "hook_failed"


# --- whatever raises --------------------------------------------------------------------------------------------------


class Raising:
    """A breaker, hooks and a listener, one method of which raises."""

    blocks_for: float | None = None

    def __init__(self, point: str, error: type[BaseException]) -> None:
        self.point = point
        self.error = error

    def at(self, point: str) -> None:
        if point == self.point:
            raise self.error(point)

    def check(self, context: PolicyContext) -> PolicyDecision:
        self.at("check")
        return PolicyDecision(True, "raising")

    def record_success(self) -> None:
        self.at("record_success")

    def record_failure(self, *, error: BaseException | None = None) -> None:
        self.at("record_failure")

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        self.at("before_llm_call")
        return Decision.HALT if self.point in ("release", "explain", "listener") else None

    def after_llm_call(self, ctx: ToolCallContext, response: Any) -> None:
        self.at("after_llm_call")

    def release(self, ctx: ToolCallContext) -> None:
        self.at("release")

    def explain(self, ctx: ToolCallContext) -> str:
        self.at("explain")
        return "because"

    def on_error(self, ctx: ToolCallContext, err: BaseException) -> Decision | None:
        self.at("on_error")
        return Decision.HALT if self.point == "listener" else Decision.RETRY

    def before_charge(self, ctx: ToolCallContext, cost_usd: float) -> None:
        self.at("before_charge")

    def listen(self, event: SafetyEvent) -> None:
        self.at("listener")

    def cost_of(self, value: object) -> float:
        self.at("cost_of")
        return 0.01


POINTS = (
    "check",
    "record_success",
    "record_failure",
    "before_llm_call",
    "after_llm_call",
    "release",
    "explain",
    "on_error",
    "before_charge",
    "listener",
    "cost_of",
)


class Blocking(Raising):
    blocks_for = 5.0


@pytest.mark.parametrize("kind", [Raising, Blocking])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("work", [lambda: "done", fail], ids=["done", "fails"])
async def test_whatever_raises_every_reservation_comes_back(
    point: str, error: type[BaseException], work: Callable[[], Any], kind: type[Raising]
) -> None:
    raising: Any = kind(point, error)
    pipeline = ShieldPipeline(pre_dispatch=raising, retry=raising, budget=raising)

    async def later() -> Any:
        return work()

    ctx = ExecutionContext(ONE_RETRY, pipeline, circuit_breaker=raising, on_event=raising.listen)
    hint = WrapOptions("ask", cost_estimate_hint=0.01)
    for is_async in (False, True, False, True):
        with suppress(KeyboardInterrupt, GeneratorExit, CrashError):  # a RuntimeError is in the outcome
            if is_async:
                await ctx.acall_llm(later, hint, cost_of=raising.cost_of)
            else:
                ctx.call_llm(work, hint, cost_of=raising.cost_of)
        assert ctx.account.reserved == [0] * 7
        assert ctx.in_flight == ()
        assert all(node.status != "running" for node in ctx.get_snapshot().nodes)
    ctx.close()
