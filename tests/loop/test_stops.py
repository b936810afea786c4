"""Runs that reach a limit: deadlines, budgets, steps, retries, aborts; nothing hangs, and every stop is a result."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.kit import Call, Calls, Report, Say, ScriptedModel, agent, events, outcomes, play, reason, step, tool_texts
from watchkeeper.accounting.limits import Landing, Limits
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import LimitsError, ProviderError, ThrottleError, UnpricedModelError
from watchkeeper.core.ids import RandomIds
from watchkeeper.core.messages import ImagePart
from watchkeeper.core.model import ModelReply, ModelRequest, ModelSettings
from watchkeeper.core.usage import ModelPrice, TokenUsage
from watchkeeper.prompt.completion import TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.evaluation import PromptDeadlineAssigned
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.events import ModelFailed, ModelReplied, RunEnded
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.tool import tool

ONE_HOUR = 3600.0
PRICES = {"scripted": ModelPrice.per_million(1, 10)}


# --- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("DL-016")
async def test_tools_and_prompt_get_the_deadline_and_the_log_says_what_was_left() -> None:
    clock = TestClock()
    seen: list[Any] = []

    @tool
    def look(*, context: ToolContext) -> str:
        """Look at the time."""
        seen.append((context.deadline, context.remaining_seconds))
        return "seen"

    result = await play(agent(look), [Call("look"), Say(Report(0))], Limits(deadline="1h"), clock=clock)
    end = clock.now() + timedelta(hours=1)
    (deadline, remaining), assigned = seen[0], events(result, PromptDeadlineAssigned)[0]
    assert deadline.at == end - timedelta(seconds=60)  # the last minute is kept for landing
    assert remaining == ONE_HOUR - 60
    assert assigned.deadline == end
    assert events(result, RunEnded)[0].remaining_seconds == ONE_HOUR


async def test_without_landing_tools_may_use_all_the_time_there_is() -> None:
    clock = TestClock()
    seen: list[Any] = []

    @tool
    def look(*, context: ToolContext) -> str:
        """Look at the time."""
        seen.append(context.deadline)
        return "seen"

    await play(agent(look), [Call("look"), Say(Report(0))], Limits(deadline="1h", landing=None), clock=clock)
    assert seen[0].at == clock.now() + timedelta(hours=1)


@pytest.mark.spec("DL-020")
async def test_a_run_without_a_deadline_has_none_anywhere() -> None:
    seen: list[Any] = []

    @tool
    def look(*, context: ToolContext) -> str:
        """Look at the time."""
        seen.append((context.deadline, context.remaining_seconds))
        return "seen"

    result = await play(agent(look), [Call("look"), Say(Report(0))], Limits(deadline=None))
    assert seen == [(None, None)]
    assert not events(result, PromptDeadlineAssigned)
    assert events(result, RunEnded)[0].remaining_seconds is None


@pytest.mark.spec("DL-012")
async def test_a_tool_in_flight_is_cancelled_at_the_deadline_and_the_run_lands() -> None:
    clock = TestClock()
    cancelled: list[str] = []

    @tool
    async def hang() -> str:
        """Wait for a day."""
        try:
            await clock.sleep(86_400)
        except asyncio.CancelledError:
            cancelled.append("hang")
            raise
        return "never"

    model = ScriptedModel([Call("hang"), Say(Report(1))])
    result = await play(agent(hang), model, Limits(deadline="1h"), clock=clock)
    assert cancelled == ["hang"]
    assert outcomes(result) == [("hang", "deadline")]
    assert tool_texts(model) == ["deadline exceeded. It may have had an effect all the same."]
    assert reason(result) == "timeout"
    assert result.partial == Report(1)
    assert result.duration <= timedelta(hours=1)


@pytest.mark.spec("DL-012")
async def test_a_model_in_flight_is_cancelled_at_the_deadline_and_its_worst_case_is_charged() -> None:
    clock = TestClock()

    class Slow(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            await clock.sleep(86_400)
            return await super().turn(request)

    limits = Limits(deadline="1h", landing=None, max_cost_usd=1)
    result = await play(agent(), Slow([Say(Report(1))], free=False), limits, clock=clock, prices=PRICES)
    assert reason(result) == "timeout"
    assert result.cost is not None
    assert Decimal(0) < result.cost <= 1
    (cut_off,) = events(result, ModelFailed)
    assert (cut_off.fault, cut_off.retry_in, bool(cut_off.node_id)) == ("timeout", None, True)


@pytest.mark.spec("DL-011")
async def test_calls_behind_the_deadline_are_answered_without_being_run() -> None:
    clock = TestClock()
    ran: list[str] = []

    @tool
    async def slow() -> str:
        """Take two hours."""
        await clock.sleep(7200)
        return "late"

    @tool
    def record() -> str:
        """Leave a trace."""
        ran.append("record")
        return "done"

    model = ScriptedModel([Calls((Call("slow"), Call("record"))), Say(Report(1))])
    result = await play(agent(slow, record), model, Limits(deadline="1h"), clock=clock)
    assert outcomes(result) == [("slow", "deadline"), ("record", "skipped")]
    begun, never = tool_texts(model)
    assert begun == "deadline exceeded. It may have had an effect all the same."
    assert never == "deadline exceeded"  # it had no effect: it was not run
    assert ran == []


@pytest.mark.spec("DL-012")
async def test_a_sync_tool_that_hangs_does_not_hang_the_run() -> None:
    """The run returns at its deadline; the thread goes on alone, and what it writes then is refused."""
    begun, release, over = threading.Event(), threading.Event(), threading.Event()
    late: list[str] = []
    clock = TestClock()

    @tool
    def hang(*, context: ToolContext) -> str:
        """Wait for the end of the test."""
        begun.set()
        release.wait(60)
        try:
            context.session[Report].append(Report(1))
        except Exception as error:
            late.append(type(error).__name__)
        over.set()
        return "late"

    limits = Limits(deadline="1m", landing=None)
    running = asyncio.create_task(play(agent(hang), [Call("hang")], limits, clock=clock))
    assert await asyncio.to_thread(begun.wait, 60)
    clock.advance(60)
    result = await running
    assert outcomes(result) == [("hang", "deadline")]
    assert reason(result) == "timeout"
    release.set()
    assert await asyncio.to_thread(over.wait, 60)
    assert late == ["SessionError"]
    assert result.session[Report].latest() is None


@pytest.mark.spec("FR-021")
async def test_a_tools_own_time_out_ends_that_call_alone() -> None:
    clock = TestClock()

    @tool(timeout="10s")
    async def hang() -> str:
        """Wait for a day."""
        await clock.sleep(86_400)
        return "never"

    model = ScriptedModel([Call("hang"), Say(Report(1))])
    result = await play(agent(hang), model, Limits(deadline=None), clock=clock)
    assert outcomes(result) == [("hang", "timeout")]
    assert tool_texts(model) == [
        "hang did not finish within 10s and was stopped. It may have had an effect all the same."
    ]
    assert result.ok


async def test_a_checker_that_hangs_is_bounded_by_the_deadline_and_the_answer_is_kept() -> None:
    clock = TestClock()

    class Hangs:
        async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
            await clock.sleep(86_400)
            return TaskCompletionResult.ok()

    result = await play(agent(checker=Hangs()), [Say(Report(7))], Limits(deadline="1h"), clock=clock)
    assert reason(result) == "timeout"
    assert result.partial == Report(7)


async def test_a_deadline_that_is_over_is_refused_before_anything_is_spent() -> None:
    model = ScriptedModel([Say(Report(1))])
    past = TestClock().now() - timedelta(minutes=1)
    with pytest.raises(LimitsError, match="is over already"):
        await play(agent(), model, Limits(deadline=past))
    assert model.requests == []


# --- money and tokens -------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-073")
async def test_a_cost_ceiling_is_never_exceeded_and_what_was_spent_is_in_the_result() -> None:
    class Greedy(ScriptedModel):
        """Uses every token it was granted."""

        async def turn(self, request: ModelRequest) -> ModelReply:
            reply = await super().turn(request)
            usage = TokenUsage(input_tokens=200, output_tokens=request.max_output_tokens)
            return ModelReply(reply.message, usage, reply.finish)

    limits = Limits(max_cost_usd="0.05")
    settings = ModelSettings(max_output_tokens=1000)
    result = await play(agent(step), Greedy([Call("step")] * 50, free=False), limits, prices=PRICES, settings=settings)
    assert reason(result) == "budget_exceeded"
    assert result.cost is not None
    assert Decimal("0.03") < result.cost <= Decimal("0.05")
    assert "$0.05" in result.sentence()


@pytest.mark.spec("FR-046")
async def test_the_landing_turn_is_paid_from_what_was_kept_back() -> None:
    limits = Limits(max_total_tokens=9_000)
    model = ScriptedModel(lambda request: Say(Report(9)) if request.tool_choice == "none" else Call("step"))
    result = await play(agent(step), model, limits, settings=ModelSettings(max_output_tokens=500))
    assert reason(result) == "token_limit_exceeded"
    assert result.partial == Report(9)
    assert events(result, ModelReplied)[-1].landing
    assert result.usage.tokens.total <= 9_000


async def test_a_small_budget_still_buys_a_first_turn() -> None:
    result = await play(agent(), [Say(Report(1))], Limits(max_total_tokens=1_200))
    assert result.output == Report(1)


@pytest.mark.parametrize("tokens", range(700, 4_000, 300))
@pytest.mark.parametrize("field", ["max_total_tokens", "max_output_tokens", "max_input_tokens", "max_cost_usd"])
async def test_no_ceiling_is_too_small_for_both_turns_and_yet_buys_none(field: str, tokens: int) -> None:
    ceiling = Decimal(tokens) / 100_000 if field == "max_cost_usd" else tokens
    limits = Limits(**{field: ceiling})  # type: ignore[arg-type]
    assert (await play(agent(), [Say(Report(1))], limits, prices=PRICES)).output == Report(1)


@pytest.mark.spec("FR-071")
async def test_a_cost_ceiling_over_an_unpriced_model_is_refused_before_the_first_request() -> None:
    model = ScriptedModel([Say(Report(1))], free=False, name="nobody-knows")
    with pytest.raises(UnpricedModelError, match=r"prices=\{'scripted:nobody-knows'"):
        await play(agent(), model, Limits(max_cost_usd=1))
    assert model.requests == []


@pytest.mark.spec("FR-073")
async def test_without_a_ceiling_an_unknown_price_costs_none_never_zero() -> None:
    result = await play(agent(), ScriptedModel([Say(Report(1))], free=False, name="nobody-knows"))
    assert result.cost is None
    assert "cost unknown" in result.sentence()


async def test_an_image_without_a_bound_is_refused_under_a_token_ceiling() -> None:
    image = ImagePart(url="https://example.com/a.png")
    sections = [MarkdownSection(title="T", key="t", template="Look.", images=(image,))]
    template = PromptTemplate(ns="tests", key="image", sections=sections)
    with pytest.raises(Exception, match="max_tokens"):
        await play(template, ["fine"], Limits(max_total_tokens=1000))
    free = Limits(max_total_tokens=None)
    assert (await play(template, ["fine"], free)).output == "fine"


# --- steps, calls, retries --------------------------------------------------------------------------------------------


async def test_max_steps_counts_model_and_tool_calls_and_keeps_one_for_landing() -> None:
    model = ScriptedModel(lambda request: Say(Report(9)) if request.tool_choice == "none" else Call("step"))
    result = await play(agent(step), model, Limits(max_steps=6))
    assert reason(result) == "step_limit_exceeded"
    assert result.usage.steps == 6
    assert result.partial == Report(9)


async def test_the_tool_call_limit_answers_the_calls_it_refuses() -> None:
    model = ScriptedModel([Calls((Call("step"), Call("step"), Call("step"))), Say(Report(2))])
    result = await play(agent(step), model, Limits(max_tool_calls=2))
    assert outcomes(result) == [("step", "ok"), ("step", "ok"), ("step", "denied")]
    assert reason(result) == "tool_call_limit_exceeded"
    assert result.usage.tool_calls == 2
    assert len(tool_texts(model)) == 3


@pytest.mark.spec("DL-014")
async def test_a_provider_that_fails_is_tried_again_with_its_retry_after() -> None:
    clock = TestClock()
    model = ScriptedModel([ThrottleError("slow down", retry_after=30.0), Say(Report(1))])
    result = await play(agent(), model, clock=clock)
    assert result.output == Report(1)
    assert clock.monotonic() == 30.0
    failed = events(result, ModelFailed)
    assert [(item.attempt, item.fault, item.retry_in) for item in failed] == [(1, "rate_limit", 30.0)]
    assert failed[0].node_id
    assert (result.usage.retries, result.usage.model_calls) == (1, 2)


@pytest.mark.parametrize("seconds", [1e308, math.inf, math.nan, 1e30])
@pytest.mark.parametrize("deadline", ["1m", None])
async def test_a_wait_that_no_calendar_holds_ends_the_run(seconds: float, deadline: str | None) -> None:
    """Providers ask for it in a header, as text."""
    limits = Limits(deadline=deadline, max_retries=0)
    result = await play(agent(), ScriptedModel([ThrottleError("slow down", retry_after=seconds)]), limits)
    assert reason(result) in ("provider_rate_limit", "retry_budget_exceeded")


async def test_waits_grow_and_are_jittered_from_the_injected_source() -> None:
    def fail() -> list[Any]:
        return [ProviderError("down", fault="overloaded", status=503)] * 4 + [Say(Report(1))]

    waits: list[list[float | None]] = []
    for seed in (1, 1, 2):
        rng = RandomIds().random.__class__(seed)
        result = await play(agent(), fail(), rng=rng)
        waits.append([item.retry_in for item in events(result, ModelFailed)])
    assert waits[0] == waits[1] != waits[2]
    for number, wait in enumerate(waits[0]):
        assert wait is not None
        assert 0.25 * 2**number <= wait <= 0.5 * 2**number


async def test_a_provider_that_stays_down_ends_the_run_after_its_attempts() -> None:
    model = ScriptedModel([ProviderError("down", fault="server", status=500)] * 9)
    result = await play(agent(), model)
    assert reason(result) == "provider_error"
    assert len(model.requests) == result.usage.model_calls == 5
    assert [item.retry_in is None for item in events(result, ModelFailed)] == [False] * 4 + [True]


async def test_the_chains_retry_budget_ends_retries_for_good() -> None:
    model = ScriptedModel([ProviderError("down", fault="server", status=500)] * 9)
    result = await play(agent(), model, Limits(max_retries=2))
    assert reason(result) == "retry_budget_exceeded"
    assert len(model.requests) == 3
    assert result.usage.retries == 2


async def test_no_retries_means_the_first_failure_is_final() -> None:
    model = ScriptedModel([ProviderError("down", fault="server", status=500)] * 2)
    result = await play(agent(), model, Limits(max_retries=0))
    assert len(model.requests) == 1
    assert result.stop is not None


@pytest.mark.spec("DL-014", "EC-027")
@pytest.mark.parametrize("deadline", ["1h", None])
async def test_a_wait_that_would_outlast_the_deadline_or_an_hour_is_not_begun(deadline: str | None) -> None:
    clock = TestClock()
    model = ScriptedModel([ThrottleError("come back tomorrow", retry_after=86_400.0)])
    result = await play(agent(), model, Limits(deadline=deadline), clock=clock)
    assert reason(result) == "provider_rate_limit"
    assert clock.monotonic() == 0.0
    assert "asked to wait 24h" in result.sentence()


@pytest.mark.spec("FR-163")
async def test_a_full_context_is_landed_or_stopped_as_wished() -> None:
    def talk(request: ModelRequest) -> Any:
        if request.tool_choice == "none":
            return Say(Report(5))
        return Calls((Call("step"),), usage=TokenUsage(100 + 900 * len(request.transcript), 50))

    for wish, partial in (("land", Report(5)), ("stop", None)):
        model = ScriptedModel(talk, context_window=8_000, max_output_tokens=500)
        result = await play(agent(step), model, on_context_full=wish)
        assert reason(result) == "context_full"
        assert result.partial == partial


async def test_a_context_that_the_provider_calls_full_is_a_stop() -> None:
    result = await play(agent(), [ProviderError("too long", fault="context_full", status=400)])
    assert reason(result) == "context_full"


# --- parallel tools ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-021")
async def test_tools_that_may_run_side_by_side_do_and_one_failure_loses_no_other_result() -> None:
    meeting = asyncio.Barrier(3)

    @tool(parallel_safe=True, read_only=True)
    async def meet(name: str) -> str:
        """Wait for the others."""
        await meeting.wait()
        if name == "b":
            raise ValueError("b fails")
        return name

    model = ScriptedModel([Calls(tuple(Call("meet", {"name": name}) for name in "abc")), Say(Report(0))])
    result = await play(agent(meet), model)
    assert outcomes(result) == [("meet", "ok"), ("meet", "crashed"), ("meet", "ok")]
    assert tool_texts(model) == ["a", "meet failed: ValueError: b fails", "c"]


async def test_other_tools_run_one_after_the_other_in_the_order_of_the_calls() -> None:
    running: list[str] = []

    @tool
    async def alone(name: str) -> int:
        """Be alone."""
        running.append(name)
        await asyncio.sleep(0)
        count = len(running)
        running.clear()
        return count

    model = ScriptedModel([Calls(tuple(Call("alone", {"name": name}) for name in "abc")), Say(Report(0))])
    await play(agent(alone), model)
    assert tool_texts(model) == ["1", "1", "1"]


# --- from outside -----------------------------------------------------------------------------------------------------


async def test_cancelling_the_task_of_a_run_is_raised_and_ends_the_tool() -> None:
    started = asyncio.Event()
    ended: list[str] = []

    @tool
    async def hang() -> str:
        """Wait for ever."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hang")
        return "never"

    task = asyncio.ensure_future(play(agent(hang), [Call("hang")]))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["hang"]


@pytest.mark.spec("FR-043")
def test_limits_in_force_stand_in_the_result_and_in_words() -> None:
    limits = Limits(deadline=datetime(2030, 1, 1, tzinfo=UTC), max_cost_usd="2.50", landing=Landing(time_share=0.1))
    assert limits.describe().startswith("deadline 2030-01-01T00:00:00+00:00, cost $2.50")
