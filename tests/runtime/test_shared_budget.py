"""A tracker that several runs share: its ceilings hold over all that is drawn from it, and all is added once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.kit import ANSWER, Call, ScriptedModel, inside, question
from watchkeeper.accounting.budget import Budget, BudgetTracker
from watchkeeper.accounting.limits import Limits
from watchkeeper.children.child import ChildTask, children_of
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import BudgetExceededError
from watchkeeper.core.ids import SYSTEM_IDS
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import FREE, TokenUsage, Usage
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.completion import TaskCompletionContext
from watchkeeper.runtime.plan import PricedModel
from watchkeeper.runtime.result import RunResult
from watchkeeper.runtime.shared_budget import behind, share_of
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.tool import tool

BARE = Limits(deadline=None, max_total_tokens=None, max_retries=None, max_turns=None, landing=None)


class Slow(ScriptedModel):
    """Lets the others on before it answers."""

    async def turn(self, request: ModelRequest) -> ModelReply:
        await asyncio.sleep(0.001)
        return await super().turn(request)


def answer(_: ModelRequest) -> str:
    return ANSWER


async def below(session: Session, **details: Any) -> RunResult[Any]:
    children = children_of(session)
    assert children is not None
    return (await children.start(ChildTask(details.pop("prompt", question()), "evaluation", BARE, **details))).result


@pytest.mark.spec("NE-011")
async def test_evaluations_in_runs_side_by_side_never_draw_more_than_there_is() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=1_000))

    async def ask(context: TaskCompletionContext) -> int:
        assert context.adapter is not None
        for asked in range(20):
            try:
                await context.adapter.evaluate_async(question(), budget_tracker=tracker)
            except BudgetExceededError:
                return asked
        return 20

    played = await asyncio.gather(*(inside(ask, Slow(answer), clock=SYSTEM_CLOCK) for _ in range(5)))
    asked = sum(checker.said[0] for _, checker in played)
    assert asked >= 5
    assert tracker.usage.tokens.total == 120 * asked <= 1_000


async def test_what_is_drawn_inside_of_what_is_drawn_is_added_once_and_waits_for_nobody() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=10_000))

    @tool
    async def ask_again(*, context: ToolContext) -> str:
        """Ask with the same tracker."""
        result = await below(context.session, tracker=tracker, max_depth=2)
        return str(result.output)

    async def act(context: TaskCompletionContext) -> Any:
        return await below(context.session, tracker=tracker, max_depth=2, prompt=question(tools=[ask_again]))

    _, checker = await inside(act, [ANSWER, Call("ask_again", {}), "inner", "outer"])
    assert checker.said[0].output == "outer"
    assert tracker.usage.model_calls == 3
    assert tracker.usage == checker.said[0].usage


async def test_one_that_waits_in_vain_is_told_at_its_deadline_and_leaves_nothing_behind() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=500))
    elsewhere = behind(BudgetTracker(Budget(max_total_tokens=1)), SYSTEM_CLOCK, SYSTEM_IDS).gate
    short = Limits(deadline=timedelta(milliseconds=20), max_total_tokens=None, landing=None)
    async with share_of(tracker, elsewhere, BARE, SYSTEM_CLOCK, SYSTEM_IDS) as first:
        assert (first.stop, first.limits.max_total_tokens) == (None, 500)
        async with share_of(tracker, elsewhere, short, SYSTEM_CLOCK, SYSTEM_IDS) as second:
            assert second.stop is not None
            assert second.stop.limit == "max_total_tokens"
        waiting = asyncio.ensure_future(_left(tracker, elsewhere))
        await asyncio.sleep(0)
    assert await waiting == 500
    assert behind(tracker, SYSTEM_CLOCK, SYSTEM_IDS).gate.left()["max_total_tokens"] == 500


async def _left(tracker: BudgetTracker, elsewhere: Any) -> Any:
    async with share_of(tracker, elsewhere, BARE, SYSTEM_CLOCK, SYSTEM_IDS) as part:
        return part.limits.max_total_tokens


async def test_where_nothing_that_was_set_aside_could_come_back_nobody_waits() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=500))
    gate = behind(tracker, SYSTEM_CLOCK, SYSTEM_IDS).gate
    elsewhere = behind(BudgetTracker(Budget(max_total_tokens=1)), SYSTEM_CLOCK, SYSTEM_IDS).gate
    with gate.child(Limits(max_total_tokens=500)):
        async with share_of(tracker, elsewhere, BARE, SYSTEM_CLOCK, SYSTEM_IDS) as part:
            assert part.stop is not None


async def test_a_budget_as_large_as_the_default_ceiling_is_set_aside_as_well() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=2_000_000))
    elsewhere = behind(BudgetTracker(Budget(max_total_tokens=1)), SYSTEM_CLOCK, SYSTEM_IDS).gate
    async with share_of(tracker, elsewhere, BARE, SYSTEM_CLOCK, SYSTEM_IDS) as part:
        left = behind(tracker, SYSTEM_CLOCK, SYSTEM_IDS).gate.left()["max_total_tokens"]
        assert (part.limits.max_total_tokens, left) == (1_999_999, 1)


@tool
async def look() -> str:
    """Look, and let the others on."""
    await asyncio.sleep(0)
    return "seen"


def looks(times: int) -> ScriptedModel:
    """Return a model that looks this often, and then answers."""
    return ScriptedModel(lambda request: Call("look", {}) if len(request.transcript) < 2 * times else ANSWER)


async def test_evaluations_side_by_side_inside_a_context_share_the_tool_calls_of_a_tracker() -> None:
    tracker = BudgetTracker(Budget(max_tool_calls=4))

    async def ask() -> str | None:
        try:
            asked = await Adapter(looks(4)).evaluate_async(question(tools=[look]), budget_tracker=tracker)
        except BudgetExceededError:
            return None
        return asked.text

    with ExecutionContext(BARE):
        first = await asyncio.gather(*(ask() for _ in range(3)))
        after = await ask()
    assert [said is not None for said in (*first, after)].count(True) == 1
    assert tracker.usage.tool_calls == 4


async def test_one_that_waited_gets_the_tool_calls_that_the_others_have_left() -> None:
    tracker = BudgetTracker(Budget(max_tool_calls=4))
    models = [looks(3), looks(9)]

    async def ask(context: TaskCompletionContext) -> Any:
        child = {"prompt": question(tools=[look]), "tracker": tracker, "model": PricedModel(models.pop(0), FREE)}
        result = await below(context.session, **child)
        return result.usage.tool_calls, result.stop and result.stop.limit

    played = await asyncio.gather(*(inside(ask, [ANSWER], clock=SYSTEM_CLOCK) for _ in range(2)))
    assert [checker.said[0] for _, checker in played] == [(3, None), (1, "max_tool_calls")]
    assert tracker.usage.tool_calls == 4


async def test_an_evaluation_may_spend_only_what_is_left_of_what_others_added_to_a_tracker() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=5_000))
    adapter = Adapter(ScriptedModel([ANSWER, ANSWER]))
    await adapter.evaluate_async(question(), budget_tracker=tracker)
    tracker.add(Usage(TokenUsage(4_000, 800)))
    with pytest.raises(BudgetExceededError, match="80 tokens left"):
        await adapter.evaluate_async(question(), budget_tracker=tracker)
    assert tracker.usage.tokens.total == 4_920
