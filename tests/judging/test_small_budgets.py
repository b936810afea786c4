"""Isolated nested budgets of 500 to 1,000 tokens: an estimate admits, and everything above keeps the worst case."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit import ANSWER, Say, ScriptedModel, children, events, inside, question
from watchkeeper.accounting.budget import Budget, BudgetTracker
from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate, EstimatedRequest
from watchkeeper.accounting.limits import Limits
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import BudgetExceededError
from watchkeeper.core.usage import TokenUsage
from watchkeeper.judging import NestedEvaluator, NestedExecutionContext
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.completion import TaskCompletionContext
from watchkeeper.prompt.evaluation import PromptResponse
from watchkeeper.runtime.events import ChildEnded
from watchkeeper.session.session import Session

LONG = question("Judge this. " + "word " * 250)
"""About 1,300 bytes: some 330 tokens."""


async def judge(context: TaskCompletionContext, budget: int | Budget, adapter: Any = None, prompt: Any = LONG) -> Any:
    """Evaluate a prompt inside a run, with a budget of its own."""
    own = budget if isinstance(budget, Budget) else Budget(max_total_tokens=budget)
    asked = adapter or context.adapter
    assert asked is not None
    return await NestedEvaluator(
        asked, prompt=prompt, context=NestedExecutionContext(context.session, budget=own)
    ).evaluate_async()


@pytest.mark.parametrize("budget", [500, 700, 1_000, Budget(max_input_tokens=500, max_total_tokens=900)])
async def test_a_judge_with_a_small_budget_is_asked(budget: int | Budget) -> None:
    async def act(context: TaskCompletionContext) -> Any:
        return await judge(context, budget)

    result, checker = await inside(
        act, [ANSWER, Say("Fine.", usage=TokenUsage(340, 20))], Limits(max_total_tokens=50_000)
    )
    assert checker.said[0].output == "Fine."
    assert result.usage.tokens.total == 120 + 360


async def test_a_small_budget_of_money_works_too() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        return await judge(context, Budget(max_cost_usd="0.003"))

    _, checker = await inside(act, [ANSWER, Say("Fine.", usage=TokenUsage(340, 20))], Limits(max_cost_usd=1))
    assert checker.said[0].output == "Fine."


async def test_what_exceeds_the_budget_is_booked_and_stops_it() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        answer = await judge(context, 600)
        gate = children(context).family.scope.gate
        return answer, gate.left()["max_total_tokens"], gate.is_booked

    script = [ANSWER, Say("Fine.", usage=TokenUsage(1_200, 64))]
    result, checker = await inside(act, script, Limits(max_total_tokens=50_000, landing=None, verdict=None))
    answer, left, booked = checker.said[0]
    assert answer.usage.total == events(result, ChildEnded)[0].usage.tokens.total == 1_264
    assert (left, booked) == (50_000 - 120 - 1_264, True)
    assert result.usage.tokens.total == 1_384


async def test_above_it_the_worst_case_is_reserved_while_it_is_asked() -> None:
    left: list[int] = []

    class Model(ScriptedModel):
        async def turn(self, request: Any) -> Any:
            left.extend(gate.left()["max_total_tokens"] for gate in gates)
            granted.append(request.max_output_tokens)
            return await super().turn(request)

    gates: list[Any] = []
    granted: list[int] = []

    async def act(context: TaskCompletionContext) -> Any:
        gates.append(children(context).family.scope.gate)
        return await judge(context, 600)

    limits = Limits(max_total_tokens=50_000, landing=None, verdict=None)
    await inside(act, Model([ANSWER, "Fine."]), limits)
    prompt = len("".join(message.text for message in LONG.render().messages).encode())
    [free], output = left, granted[1]
    assert 64 <= output <= 600 - 300
    assert free <= 50_000 - 120 - prompt - output


async def test_it_is_refused_where_what_is_above_has_no_room_for_the_worst_case() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        return await judge(context, 600)

    limits = Limits(max_total_tokens=1_400, landing=None, verdict=None)
    result, checker = await inside(act, [ANSWER, "never asked"], limits)
    assert isinstance(checker.raised[0], BudgetExceededError)
    assert result.usage.tokens.total == 120
    stop = events(result, ChildEnded)[0].stop
    assert stop is not None
    assert stop.reason == "token_limit_exceeded"
    assert "1,400 tokens" in stop.message


async def test_one_that_draws_from_a_tracker_keeps_the_worst_case() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=600))

    async def act(context: TaskCompletionContext) -> Any:
        assert context.adapter is not None
        own = NestedExecutionContext(context.session, budget=Budget(max_total_tokens=600))
        return await NestedEvaluator(context.adapter, prompt=LONG, context=own).evaluate_async(budget_tracker=tracker)

    _, checker = await inside(act, [ANSWER, "never asked"], Limits(max_total_tokens=50_000))
    assert isinstance(checker.raised[0], BudgetExceededError)
    assert tracker.usage.tokens.total == 0


async def test_what_the_provider_counted_in_this_run_makes_the_estimate() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        first = await judge(context, 3_000)
        with pytest.raises(BudgetExceededError, match="could need up to"):
            await judge(context, 1_000)
        return first

    dense = Say("Fine.", usage=TokenUsage(1_300, 20))  # a token for each byte, so that 1,000 are too few
    _, checker = await inside(act, [ANSWER, dense, "never asked"], Limits(max_total_tokens=50_000))
    assert checker.said[0].output == "Fine."


async def test_an_adapter_of_the_callers_own_may_have_a_small_budget() -> None:
    class Own:
        async def evaluate_async(self, prompt: Any, **options: Any) -> PromptResponse[str]:
            assert options["budget"].max_total_tokens <= 700
            return PromptResponse("own", "Fine.", "Fine.", TokenUsage(340, 20), None)

    async def act(context: TaskCompletionContext) -> Any:
        return await judge(context, 700, Own())

    _, checker = await inside(act, [ANSWER], Limits(max_total_tokens=50_000))
    assert checker.said[0].output == "Fine."


async def test_outside_of_a_run_a_small_budget_works() -> None:
    context = NestedExecutionContext(Session(clock=TestClock()), budget=Budget(max_total_tokens=600))
    answer = await NestedEvaluator(Adapter(ScriptedModel(["Fine."])), prompt=LONG, context=context).evaluate_async()
    assert answer.output == "Fine."


async def test_in_a_shared_ledger_the_account_keeps_the_worst_case(tmp_path: Path) -> None:
    async def act(context: TaskCompletionContext) -> Any:
        return await judge(context, 600)

    ledger = SqliteLedger(tmp_path / "ledger.sqlite3")
    low = Limits(account="team", account_limit="1400 tokens/day", landing=None, verdict=None)
    _, checker = await inside(act, [ANSWER, "never asked"], low, ledger=ledger)
    assert isinstance(checker.raised[0], BudgetExceededError)
    ledger.shutdown()


@given(st.lists(st.tuples(st.integers(1, 4_000), st.integers(100, 2_000)), max_size=5), st.integers(2_000, 9_000))
def test_no_limit_above_is_ever_exceeded(asked: list[tuple[int, int]], ceiling: int) -> None:
    def respond(request: Any) -> Any:
        text = "".join(getattr(message, "text", "") for message in request.transcript)
        if "Judge" not in text:
            return Say(ANSWER, usage=TokenUsage(10, 20))
        return Say("Fine.", usage=TokenUsage(len(text.encode()), request.max_output_tokens))  # the worst that may be

    async def act(context: TaskCompletionContext) -> Any:
        for size, budget in asked:
            try:
                await judge(context, budget, prompt=question("Judge " + "x" * size))
            except BudgetExceededError:
                continue
        return None

    limits = Limits(max_total_tokens=ceiling, landing=None, verdict=None)
    result, _ = asyncio.run(inside(act, ScriptedModel(respond), limits))
    assert result.usage.tokens.total <= ceiling
    assert result.usage.tokens.total == 30 + sum(each.usage.tokens.total for each in events(result, ChildEnded))


async def test_at_the_gate_a_call_waits_until_there_is_room_above_for_its_worst_case() -> None:
    with ExecutionContext(Limits(max_total_tokens=3_000, landing=None, verdict=None)) as gate:
        own = gate.child(Limits(max_total_tokens=600, landing=None, verdict=None), "own", by_estimate=True)
        held = asyncio.Event()

        async def hold(ticket: Ticket) -> None:
            await held.wait()

        async def work(ticket: Ticket) -> tuple[int, int]:
            return ticket.max_output_tokens, gate.left()["max_total_tokens"]

        def free(*_: object) -> Charge:
            return Charge()

        def used(*_: object) -> Charge:
            return Charge(TokenUsage(700, 20))

        worst, likely = (Estimate(size, max_output_tokens=500, min_output_tokens=50) for size in (1_500, 400))
        request = EstimatedRequest(kind="llm", estimate=worst, likely=likely)
        other = asyncio.ensure_future(gate.acall(CallRequest(kind="llm", estimate=Estimate(2_000)), hold, free))
        await asyncio.sleep(0)
        mine = asyncio.ensure_future(own.acall(request, work, used))
        await asyncio.sleep(0)
        assert not mine.done()
        held.set()
        await other
        assert (await mine).value == (200, 3_000 - 1_500 - 200)
        assert gate.left()["max_total_tokens"] == 3_000 - 720
        refused = await own.acall(request, work, used)
        assert refused.stop is not None
        assert "reached its ceiling of 600 tokens" in refused.stop.message
        own.close()
        assert gate.is_booked
