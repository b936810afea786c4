"""Which of two works is better, asked in both orders."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit import Say, ScriptedModel
from watchkeeper.accounting.budget import Budget
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import BudgetExceededError, NestedEvaluationError
from watchkeeper.core.model import ModelRequest
from watchkeeper.core.usage import TokenUsage
from watchkeeper.judging import Comparison, ComparisonVerdict, NestedExecutionContext, compare
from watchkeeper.loop.run import Adapter
from watchkeeper.session.session import Session


async def ask(script: Any, budget: int = 8_000) -> Comparison:
    context = NestedExecutionContext(Session(clock=TestClock()), budget=Budget(max_total_tokens=budget))
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
    return await compare(Adapter(model), task="Greet.", first="Hello!", second="Go away.", context=context)


def say(better: Any) -> Say:
    return Say(ComparisonVerdict(f"{better} it is.", better))


@pytest.mark.spec("NE-038")
@pytest.mark.parametrize(
    ("straight", "turned", "winner"),
    [
        ("first", "second", "first"),
        ("second", "first", "second"),
        ("tie", "tie", "tie"),
        ("first", "first", "undecided"),
        ("second", "second", "undecided"),
        ("first", "tie", "undecided"),
    ],
)
async def test_a_work_wins_only_if_it_wins_in_both_orders(straight: Any, turned: Any, winner: str) -> None:
    result = await ask([say(straight), say(turned)])
    assert result.winner == winner
    assert result.reasons == (f"{straight} it is.", f"{turned} it is.")
    assert result.usage == TokenUsage(200, 40)


async def test_a_judge_that_prefers_what_it_reads_first_decides_nothing() -> None:
    result = await ask([say("first"), say("first")])
    assert (result.winner, result.said) == ("undecided", ("first", "second"))


async def test_it_asks_in_both_orders() -> None:
    model = ScriptedModel([say("first"), say("second")])
    await ask(model)

    def places(request: ModelRequest) -> bool:
        text = request.transcript[0].text
        return text.index("Hello!") < text.index("Go away.")

    assert [places(request) for request in model.requests] == [True, False]


async def test_a_failure_of_either_is_raised() -> None:
    with pytest.raises(NestedEvaluationError, match="does not fit"):
        await ask([say("first"), "nonsense", "nonsense"])
    with pytest.raises(BudgetExceededError):
        await ask([], budget=10)
