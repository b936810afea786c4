"""The run's own model as an adapter: every evaluation with it is a child of the run."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.kit import ANSWER, Inside, Report, ScriptedModel, agent, children, events, inside, question
from watchkeeper.accounting.budget import Budget, BudgetTracker
from watchkeeper.accounting.limits import Limits
from watchkeeper.children.nested_adapter import RunAdapter
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import (
    BudgetExceededError,
    ConfigurationError,
    DeadlineExceededError,
    NestingDepthError,
    OutputParseError,
    PromptEvaluationError,
    ThrottleError,
    WatchkeeperError,
)
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.completion import TaskCompletionContext
from watchkeeper.prompt.template import Prompt
from watchkeeper.runtime.events import ChildEnded, ChildStarted
from watchkeeper.tools.tool import tool


def asking(*given: Any, **arguments: Any) -> Any:
    async def act(context: TaskCompletionContext) -> Any:
        adapter = context.adapter
        assert adapter is not None
        return await adapter.evaluate_async(*(given or (question(),)), **arguments)

    return act


async def test_it_evaluates_as_a_child_of_the_run() -> None:
    result, checker = await inside(asking(), [ANSWER, "Fine."])
    response = checker.said[0]
    assert (response.output, response.text, response.prompt_name) == ("Fine.", "Fine.", "tests/question")
    assert response.usage == TokenUsage(100, 20)
    assert response.cost == 0
    assert result.usage.tokens == TokenUsage(200, 40)
    assert events(result, ChildStarted)[0].run_context.parent_span_id is not None


async def test_it_has_the_name_of_the_model_that_the_run_uses() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        adapter = RunAdapter(children(context))
        return adapter.name, adapter.priced.label, adapter.kind

    _, checker = await inside(act, [ANSWER])
    assert checker.said == [("scripted", "scripted:scripted", "evaluation")]


async def test_what_a_checker_asks_is_a_verdict_and_may_use_what_was_kept_for_it() -> None:
    result, _ = await inside(asking(), [ANSWER, "Fine."])
    assert events(result, ChildStarted)[0].kind == "verdict"


async def test_params_are_bound_and_the_answer_need_not_be_read() -> None:
    section = agent().sections[0]
    assert section.key == "task"
    _, checker = await inside(asking(Prompt(agent()), parse_output=False), [ANSWER, "free text"])
    assert (checker.said[0].output, checker.said[0].text) == (None, "free text")
    _, checker = await inside(asking(Prompt(agent()), Report(3)), [ANSWER, '{"total": 2}'])
    assert checker.said[0].output == Report(2)


async def test_from_another_thread_it_waits_for_the_runs_loop() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        adapter = context.adapter
        assert adapter is not None
        return await asyncio.to_thread(adapter.evaluate, question())

    _, checker = await inside(act, [ANSWER, "Fine."])
    assert checker.said[0].output == "Fine."


async def test_on_the_loops_own_thread_it_says_what_to_await() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        adapter = context.adapter
        assert adapter is not None
        return adapter.evaluate(question())

    _, checker = await inside(act, [ANSWER])
    assert isinstance(checker.raised[0], WatchkeeperError)
    assert "await evaluate_async(...)" in str(checker.raised[0])


@pytest.mark.parametrize("name", ["session", "bus", "run_context"])
async def test_what_a_child_has_of_its_own_is_refused(name: str) -> None:
    _, checker = await inside(asking(**{name: object()}), [ANSWER])
    assert isinstance(checker.raised[0], ConfigurationError)
    assert f"has a {name} of its own; leave {name}= out" in str(checker.raised[0])


async def test_a_deadline_that_makes_no_sense_is_refused_in_preflight() -> None:
    _, checker = await inside(asking(deadline=datetime(2020, 1, 1, tzinfo=UTC)), [ANSWER])
    error = checker.raised[0]
    assert isinstance(error, PromptEvaluationError)
    assert error.phase == "preflight"


async def test_tools_are_refused_as_the_template_says() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    result, checker = await inside(asking(question(tools=(look,))), [ANSWER])
    assert "has tools (look)" in str(checker.raised[0])
    assert events(result, ChildStarted) == []


async def test_a_budget_is_set_aside_and_a_tracker_gets_what_was_used_once() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=9_000))
    act = asking(budget=Budget(max_total_tokens=5_000), budget_tracker=tracker)
    result, _ = await inside(act, [ANSWER, "Fine."])
    assert "total tokens 5,000" in events(result, ChildStarted)[0].limits
    assert tracker.usage.tokens == TokenUsage(100, 20)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([ThrottleError("slow down", provider="scripted", retry_after=3_600)], ThrottleError),
        (["no", "no", "no", "no"], OutputParseError),
        ([ValueError("a bug")], PromptEvaluationError),
    ],
    ids=["throttle", "unreadable", "bug"],
)
async def test_its_errors_are_those_of_any_adapter(script: list[Any], kind: type[Exception]) -> None:
    result, checker = await inside(asking(Prompt(agent())), [ANSWER, *script])
    assert isinstance(checker.raised[0], kind)
    assert result.completion == "unverified"
    assert len(events(result, ChildEnded)) == 1


async def test_limits_are_raised_as_such() -> None:
    _, checker = await inside(asking(budget=Budget(max_total_tokens=10)), [ANSWER])
    assert isinstance(checker.raised[0], BudgetExceededError)
    clock = TestClock()

    def slow(_: Any) -> str:
        clock.advance(31)
        return "Too late."

    _, checker = await inside(asking(), ScriptedModel([ANSWER, slow]), Limits(deadline="1h"), clock=clock)
    assert isinstance(checker.raised[0], DeadlineExceededError)


async def test_it_nests_no_deeper_than_the_template_says() -> None:
    raised: list[BaseException] = []

    async def outer(context: TaskCompletionContext) -> Any:
        adapter = context.adapter
        assert adapter is not None

        async def inner(own: TaskCompletionContext) -> Any:
            assert own.adapter is not None
            try:
                return await own.adapter.evaluate_async(question())
            except NestingDepthError as error:
                raised.append(error)
                raise

        return await adapter.evaluate_async(Prompt(agent(checker=Inside(inner))))

    _, checker = await inside(outer, [ANSWER, ANSWER])
    assert len(raised) == 1
    assert checker.said[0].output == Report(1)
