"""Bad input: a clear error that names field and value, or a recorded event; no money, slot, permit or step is lost."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.containment.gates import AfterItBegan, dollars, until_other_thread
from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.accounting.limits import Limits
from watchkeeper.containment import (
    CallRequest,
    CircuitBreaker,
    CircuitState,
    Decision,
    ExecutionConfig,
    ExecutionContext,
    Outcome,
    ShieldPipeline,
    Ticket,
    WrapOptions,
)
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.errors import ConfigurationError, LimitsError

T = TypeVar("T")

HINT = WrapOptions("ask", cost_estimate_hint=0.10)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=8),
    st.sampled_from([0, -1, -0.0, math.nan, math.inf, -math.inf, 1e-12, 1e300, 10**30, "NaN", "1e999", b"1", [1]]),
)


def config(**changes: Any) -> ExecutionConfig:
    values: dict[str, Any] = {"max_cost_usd": 1.0, "max_steps": 10, "max_retries_total": 3, "timeout_ms": 0}
    return ExecutionConfig(**{**values, **changes})


def check_nothing_is_lost(ctx: ExecutionContext) -> None:
    """Nothing is under way, nothing is reserved."""
    assert isinstance(ctx.ledger, MemoryLedger)
    assert ctx.ledger.is_idle
    assert ctx.account.reserved == [0] * 7
    assert ctx.in_flight == ()
    assert all(node.end_ts is not None for node in ctx.get_snapshot().nodes)


def made(make: Callable[[], T]) -> tuple[T | None, str]:
    """Return what was made, or what was said against it."""
    try:
        return make(), ""
    except LimitsError as error:
        return None, str(error)


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-134")
@pytest.mark.parametrize("field", ["max_cost_usd", "max_steps", "max_retries_total", "timeout_ms"])
@given(value=NUMBERS)
def test_a_limit_is_sound_or_refused_by_name_and_value(field: str, value: Any) -> None:
    limits, said = made(lambda: config(**{field: value}).as_limits())
    if limits is None:
        assert field in said
        assert repr(value) in said
        return
    with ExecutionContext(limits, clock=TestClock()) as ctx:
        assert ctx.wrap_tool_call(lambda: None) in Decision


@pytest.mark.parametrize("field", ["cost_estimate_hint", "timeout_ms", "retry_policy_override"])
@given(value=NUMBERS)
def test_an_option_is_sound_or_refused_by_name_and_value(field: str, value: Any) -> None:
    if value is None and field != "cost_estimate_hint":
        return
    changed: dict[str, Any] = {field: value}
    options, said = made(lambda: WrapOptions(**changed))
    if options is None:
        assert field in said
        assert repr(value) in said


@given(value=NUMBERS)
def test_a_charge_is_sound_or_refused_and_then_the_hint_is_charged(value: Any) -> None:
    with ExecutionContext(config(max_cost_usd=10**9), clock=TestClock()) as ctx:

        def work(ticket: Ticket) -> None:
            ticket.charge(value)

        outcome = ctx.call_llm(work, HINT)
        if outcome.error is not None:
            assert isinstance(outcome.error, LimitsError)
            assert repr(value) in str(outcome.error)
            assert ctx.usage.cost_nanos == dollars(0.10)
        check_nothing_is_lost(ctx)


@given(value=NUMBERS)
def test_a_cost_of_the_result_is_sound_or_reported_and_then_the_hint_is_charged(value: Any) -> None:
    with ExecutionContext(config(max_cost_usd=10**9), clock=TestClock()) as ctx:
        outcome = ctx.call_llm(lambda: "result", HINT, cost_of=lambda _: value)
        assert (outcome.decision, outcome.value) == (Decision.ALLOW, "result")
        if outcome.error is not None:
            assert ctx.usage.cost_nanos == dollars(0.10)
        check_nothing_is_lost(ctx)


def test_a_hint_that_no_ceiling_could_ever_hold_stops_the_chain_before_anything_runs() -> None:
    with ExecutionContext(config()) as ctx:
        outcome = ctx.call_llm(lambda: "never", WrapOptions(cost_estimate_hint=999_999_999))
        assert (outcome.decision, outcome.stop_reason, outcome.value) == (Decision.HALT, "budget_exceeded", None)
        assert ctx.get_snapshot().step_count == 0
        check_nothing_is_lost(ctx)


# --- callables --------------------------------------------------------------------------------------------------------

BASE = [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit]


class Chain:
    """A chain behind a breaker that is about to let one probe through, and with hooks that abstain."""

    def __init__(self, timeout_ms: int) -> None:
        self.clock = TestClock()
        self.breaker = CircuitBreaker(1, 10.0, clock=self.clock)
        self.breaker.record_failure()
        self.clock.advance(11)
        assert self.breaker.state is CircuitState.HALF_OPEN
        clock = self.clock if not timeout_ms else SYSTEM_CLOCK
        self.pipeline = ShieldPipeline(pre_dispatch=Abstains(), tool_dispatch=Abstains(), budget=Abstains())
        self.ctx = ExecutionContext(
            config(timeout_ms=timeout_ms), self.pipeline, circuit_breaker=self.breaker, clock=clock
        )


class Abstains:
    def before_llm_call(self, ctx: Any) -> None: ...

    def before_tool_call(self, ctx: Any) -> None: ...

    def before_charge(self, ctx: Any, cost_usd: float) -> None: ...


@pytest.mark.spec("FR-134")
@pytest.mark.parametrize("timeout_ms", [0, 60_000], ids=["here", "on a worker"])
@pytest.mark.parametrize("kind", BASE)
def test_what_must_not_be_swallowed_is_raised_and_nothing_is_lost(kind: type[BaseException], timeout_ms: int) -> None:
    chain = Chain(timeout_ms)

    def work() -> None:
        raise kind

    with chain.ctx as ctx:
        with pytest.raises(kind):
            ctx.call_llm(work, HINT)
        check_nothing_is_lost(ctx)
        assert ctx.usage.cost_nanos == dollars(0.10)
        assert [node.status for node in ctx.get_snapshot().nodes] == ["aborted"]
        assert ctx.call_llm(lambda: "probe").value == "probe"  # its place at the breaker came back
        assert chain.breaker.state is CircuitState.CLOSED


@pytest.mark.parametrize("yields", [0, 1])
@pytest.mark.parametrize("kind", BASE)
async def test_what_async_work_must_not_swallow_is_raised_and_nothing_is_lost(
    kind: type[BaseException], yields: int
) -> None:
    chain = Chain(0)
    context = chain.ctx

    async def work() -> None:
        for _ in range(yields):
            await asyncio.sleep(0)
        raise kind

    async def probe() -> str:
        return "probe"

    raised: BaseException | None = None
    try:
        await context.acall_llm(work, HINT)
    except BaseException as error:  # the loop must not see it: it would stop
        raised = error
    assert isinstance(raised, kind)
    check_nothing_is_lost(context)
    assert (await context.acall_llm(probe)).value == "probe"
    assert chain.breaker.state is CircuitState.CLOSED
    context.close()


@pytest.mark.parametrize("kind", BASE)
def test_a_meter_that_is_interrupted_loses_nothing(kind: type[BaseException]) -> None:
    def cost_of(value: str) -> float:
        raise kind

    with ExecutionContext(config()) as ctx:
        with pytest.raises(kind):
            ctx.call_llm(lambda: "result", HINT, cost_of=cost_of)
        check_nothing_is_lost(ctx)
        assert ctx.usage.cost_nanos == dollars(0.10)


class UnspeakableError(Exception):
    """An error that cannot even say what it is."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("timeout_ms", [0, 60_000], ids=["here", "on a worker"])
def test_an_error_without_words_is_a_failure_like_any_other(retries: int, timeout_ms: int) -> None:
    def work() -> None:
        raise UnspeakableError

    with ExecutionContext(config(max_retries_total=retries, timeout_ms=timeout_ms)) as ctx:
        outcome = ctx.call_llm(work, HINT)
        assert isinstance(outcome.error, UnspeakableError)
        assert outcome.decision is (Decision.RETRY if retries else Decision.HALT)
        check_nothing_is_lost(ctx)


@pytest.mark.parametrize("timeout_ms", [0, 60_000], ids=["here", "on a worker"])
def test_a_coroutine_function_is_refused_and_a_coroutine_is_closed(timeout_ms: int) -> None:
    async def work() -> None:
        raise AssertionError("it must not run")

    with ExecutionContext(config(timeout_ms=timeout_ms)) as ctx:
        with pytest.raises(TypeError, match="acall_llm"):
            ctx.call_llm(work, HINT)
        assert ctx.get_snapshot().step_count == 0
        with pytest.raises(TypeError, match="acall_llm"):
            ctx.call_llm(lambda: work(), HINT)
        check_nothing_is_lost(ctx)


async def test_async_work_that_is_not_awaitable_is_a_failure() -> None:
    not_async: Any = lambda: 5  # noqa: E731
    with ExecutionContext(config()) as ctx:
        outcome = await ctx.acall_llm(not_async, HINT)
        assert isinstance(outcome.error, TypeError)
        check_nothing_is_lost(ctx)


def test_a_callable_that_calls_back_is_counted_and_never_waits_for_itself() -> None:
    inner: list[Outcome[str]] = []
    with ExecutionContext(config(max_steps=3)) as ctx:

        def work() -> str:
            inner.append(ctx.call_tool(lambda: "inside", WrapOptions("inner", cost_estimate_hint=0.5)))
            inner.append(ctx.call_tool(lambda: "inside", WrapOptions("inner", cost_estimate_hint=0.05)))
            inner.append(ctx.call_tool(lambda: "inside"))
            return "done"

        assert ctx.call_llm(work, WrapOptions("outer", cost_estimate_hint=0.60)).value == "done"
        snapshot = ctx.get_snapshot()
    assert [outcome.stop_reason for outcome in inner] == ["budget_exceeded", None, None]
    assert snapshot.step_count == 3
    outer = next(node for node in snapshot.nodes if node.operation_name == "outer")
    assert {node.parent_id for node in snapshot.nodes if node.operation_name != "outer"} == {outer.node_id}
    check_nothing_is_lost(ctx)


def test_what_is_spent_beyond_the_reservation_is_charged_and_stops_what_follows_only() -> None:
    with ExecutionContext(config()) as ctx:

        def work(ticket: Ticket) -> str:
            ticket.charge(0.7)
            ticket.charge(0.7)
            return "done"

        assert ctx.call_llm(work, HINT).value == "done"
        assert ctx.usage.cost_nanos == dollars(1.4)
        assert ctx.call_llm(lambda: "never").stop_reason == "budget_exceeded"
        check_nothing_is_lost(ctx)


# --- hooks ------------------------------------------------------------------------------------------------------------


class WithoutWords:
    """An answer that is no Decision, and cannot be shown or closed."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def close(self) -> None:
        raise RuntimeError("no end")


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def answer(*_: object) -> Any:
        raise error

    return answer


def answering(said: Any) -> Callable[..., Any]:
    return lambda *_: said


BROKEN = [
    raising(ValueError),
    raising(UnspeakableError),
    answering("HALT"),
    answering(True),
    answering(0),
    answering(WithoutWords()),
]


def hook(**methods: Callable[..., Any]) -> Any:
    return type("Hook", (), {name: staticmethod(method) for name, method in methods.items()})()


@pytest.mark.spec("FR-134")
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("kind", ["llm", "tool"])
def test_a_broken_hook_halts_its_call_and_everything_comes_back(broken: Callable[..., Any], kind: str) -> None:
    pipeline = ShieldPipeline(pre_dispatch=hook(before_llm_call=broken), tool_dispatch=hook(before_tool_call=broken))
    with ExecutionContext(config(), pipeline) as ctx:
        call = ctx.call_llm if kind == "llm" else ctx.call_tool
        outcome = call(lambda: "never", HINT)
        assert (outcome.decision, outcome.stop_reason, outcome.admitted) == (Decision.HALT, "hook_failed", False)
        assert [event.event_type for event in ctx.get_snapshot().events] == ["hook_failed"]
        assert (ctx.get_snapshot().step_count, ctx.usage.cost_nanos) == (0, 0)
        check_nothing_is_lost(ctx)


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("method", ["before_charge", "after_llm_call", "on_error"])
def test_a_hook_that_breaks_after_the_call_loses_neither_result_nor_money(
    broken: Callable[..., Any], method: str
) -> None:
    slot = {"before_charge": "budget", "after_llm_call": "pre_dispatch", "on_error": "retry"}[method]
    methods = {method: broken, "before_llm_call": answering(None)}
    shield: dict[str, Any] = {slot: hook(**methods)}
    failure = ConnectionError("down")

    def work() -> str:
        if method == "on_error":
            raise failure
        return "result"

    with ExecutionContext(config(), ShieldPipeline(**shield)) as ctx:
        outcome = ctx.call_llm(work, HINT)
        assert outcome.admitted
        assert outcome.error is failure if method == "on_error" else outcome.value == "result"
        assert "hook_failed" in [event.event_type for event in ctx.get_snapshot().events]
        assert ctx.usage.cost_nanos == dollars(0.10)
        check_nothing_is_lost(ctx)


@pytest.mark.parametrize("method", ["before_llm_call", "before_charge", "after_llm_call", "on_error"])
@pytest.mark.parametrize("kind", BASE)
def test_an_interrupt_inside_a_hook_is_raised_and_nothing_is_lost(kind: type[BaseException], method: str) -> None:
    slots = {"before_charge": "budget", "on_error": "retry"}
    shield: dict[str, Any] = {
        slots.get(method, "pre_dispatch"): hook(**{"before_llm_call": answering(None), method: raising(kind)})
    }

    def work() -> str:
        if method == "on_error":
            raise ConnectionError("down")
        return "result"

    breaker = CircuitBreaker()
    with ExecutionContext(config(), ShieldPipeline(**shield), circuit_breaker=breaker) as ctx:
        with pytest.raises(kind):
            ctx.call_llm(work, HINT)
        check_nothing_is_lost(ctx)
        assert ctx.usage.cost_nanos == (0 if method == "before_llm_call" else dollars(0.10))


def test_a_hook_that_blocks_beyond_its_time_counts_as_halt() -> None:
    clock = TestClock()

    def takes_a_minute(ctx: object) -> None:
        clock.advance(60)

    pipeline = ShieldPipeline(pre_dispatch=hook(before_llm_call=takes_a_minute), hook_timeout="2s", clock=clock)
    with ExecutionContext(config(), pipeline, clock=clock) as ctx:
        outcome = ctx.call_llm(lambda: "never", HINT)
        assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "hook_failed")
        check_nothing_is_lost(ctx)


def test_a_hook_that_says_that_it_blocks_is_left_at_the_deadline() -> None:
    never = threading.Event()

    def blocks(ctx: object) -> None:
        never.wait(60)

    blocking = hook(before_tool_call=blocks)
    blocking.blocks_for = 60.0
    with ExecutionContext(config(timeout_ms=30), ShieldPipeline(tool_dispatch=blocking)) as ctx:
        outcome = ctx.call_tool(lambda: "never", HINT)
        assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "timeout")
        assert ctx.elapsed_seconds < 30
        assert (ctx.get_snapshot().step_count, ctx.usage.cost_nanos) == (0, 0)
        check_nothing_is_lost(ctx)
    never.set()


# --- contexts ---------------------------------------------------------------------------------------------------------


async def test_a_closed_context_refuses_every_call_loudly_and_still_tells_what_happened() -> None:
    ctx = ExecutionContext(config())
    ctx.wrap_llm_call(lambda: None, HINT)
    ctx.close()
    ctx.close()

    async def work() -> None:
        raise AssertionError("it must not run")

    calls: list[Callable[[], object]] = [
        lambda: ctx.wrap_llm_call(lambda: None),
        lambda: ctx.wrap_tool_call(lambda: None),
        lambda: ctx.call(CallRequest("tool"), lambda _: None),
        lambda: ctx.child(Limits()),
        lambda: ctx.check_egress("https://example.org", "GET"),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="closed"):
            call()
    with pytest.raises(ConfigurationError, match="closed"):
        await ctx.acall_llm(work)
    ctx.abort("too late")
    snapshot = ctx.get_snapshot()
    assert (snapshot.step_count, snapshot.aborted, snapshot.cost_usd_accumulated) == (1, False, 0.10)
    check_nothing_is_lost(ctx)


@pytest.mark.spec("FR-134")
def test_contexts_that_stand_apart_count_each_what_passes_it_and_stop_by_themselves() -> None:
    apart = ExecutionContext(config(max_retries_total=0), parent=None)
    with ExecutionContext(config(max_steps=2)) as outer, apart as inner:

        def work() -> Outcome[str]:
            return inner.call_tool(lambda: "inside", HINT)

        first = outer.call_llm(work, HINT)
        assert first.value is not None
        assert first.value.value == "inside"
        inner.call_tool(raising(ValueError))
        last = outer.call_llm(work, HINT)
        assert last.decision is Decision.ALLOW
        assert last.value is not None
        assert last.value.decision is Decision.HALT
        assert outer.stop is None
        assert (outer.get_snapshot().step_count, inner.get_snapshot().step_count) == (2, 2)
        check_nothing_is_lost(outer)
        check_nothing_is_lost(inner)


def test_a_late_result_of_bad_work_is_recorded_and_nothing_is_lost() -> None:
    clock, go_on = AfterItBegan(), threading.Event()

    def work() -> None:
        clock.begun.set()
        go_on.wait(60)
        raise UnspeakableError

    with ExecutionContext(config(), clock=clock) as ctx:
        outcome = ctx.call_tool(work, WrapOptions("slow", cost_estimate_hint=0.2, timeout_ms=20))
        assert outcome.stop_reason == "call_timeout"
        go_on.set()
        until_other_thread(lambda: ctx.in_flight == ())
        assert ctx.usage.cost_nanos == dollars(0.2)
        check_nothing_is_lost(ctx)


def test_a_keyword_that_does_not_exist_is_refused_by_name() -> None:
    misspelt: dict[str, Any] = {"parnet": None}
    with pytest.raises(TypeError, match="unexpected keyword argument 'parnet'"):
        ExecutionContext(config(), **misspelt)
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_steps'; limits belong to its config"):
        ExecutionContext(config(), parent=None, max_steps=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_a_parent_that_is_no_context_is_refused() -> None:
    parent: Any = "the other one"
    with pytest.raises(ConfigurationError, match="parent='the other one' is neither an ExecutionContext nor None"):
        ExecutionContext(config(), parent=parent)


def test_charges_that_several_threads_make_at_once_all_count() -> None:
    ticket: Any = None

    class Slow(float):
        """An amount that another thread charges, too, while this one is read."""

        def __mul__(self, other: Any) -> Any:
            racer = threading.Thread(target=ticket.charge, args=(0.2,))
            racer.start()
            racer.join()
            return float(self) * other

    with ExecutionContext(config(), clock=TestClock()) as ctx:

        def work(given: Ticket) -> None:
            nonlocal ticket
            ticket = given
            ticket.charge(Slow(0.1))

        assert ctx.wrap_llm_call(work, HINT) is Decision.ALLOW
        assert ctx.usage.cost_nanos == dollars(0.30)
