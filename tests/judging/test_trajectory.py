"""Feedback by a model on how a run is going."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from tests.kit import Call, Say, ScriptedModel, events
from watchkeeper.accounting.budget import Budget
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.run import arun
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, LimitsError, ObserverError, PromptDefinitionError, ProviderError
from watchkeeper.core.model import ModelRequest
from watchkeeper.judging import (
    LLMCompletionVerifier,
    LLMTrajectoryFeedback,
    NestedExecutionConfig,
    TrajectoryAssessment,
)
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.advice import Feedback
from watchkeeper.prompt.observer import FeedbackContext, FeedbackProviderConfig, ObserverTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.runtime.events import ChildEnded, ChildStarted
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.tools.tool import tool

STUCK = TrajectoryAssessment("It searched for the invoice three times.", "stuck", "Look in the folder of May.")


@tool
def search(query: str) -> str:
    """Search the archive."""
    return f"nothing about {query}"


def searcher(provider: LLMTrajectoryFeedback, **details: Any) -> PromptTemplate[str]:
    config = FeedbackProviderConfig(provider, ObserverTrigger(every_n_calls=3))
    section = MarkdownSection(title="Task", key="task", template="Find the invoice of May.", tools=(search,))
    return PromptTemplate[str](ns="t", key="search", sections=(section,), feedback_providers=(config,), **details)


async def play(
    provider: LLMTrajectoryFeedback, judge: Any, limits: Limits = Limits(), **details: Any
) -> tuple[RunResult[str], ScriptedModel]:
    """Search three times, be judged, and answer."""
    steps = [*[Call("search", {"query": "invoice"})] * 3, *judge, "There is none."]
    model = ScriptedModel(steps)
    template = searcher(provider, **details)
    return await arun(template, model=model, limits=limits, clock=TestClock(), store=None), model


@pytest.mark.spec("NE-023")
async def test_the_agent_is_told_what_a_model_thinks_of_its_way() -> None:
    result, model = await play(LLMTrajectoryFeedback(min_calls=3), [_say(STUCK)])
    said = result.session[Feedback].latest()
    assert said is not None
    assert (said.source, said.severity) == ("LLMTrajectoryFeedback", "caution")
    assert said.summary == "The work is stuck: It searched for the invoice three times."
    assert said.suggestions == ("Look in the folder of May.",)
    assert "Look in the folder of May." in model.requests[-1].transcript[-2].text
    assert (result.output, result.usage.model_calls) == ("There is none.", 5)
    started = events(result, ChildStarted)[0]
    assert (started.kind, started.prompt_name) == ("evaluation", "watchkeeper/judging/trajectory")
    assert "total tokens 8,000" in started.limits


async def test_the_judge_is_shown_the_task_and_the_latest_calls_and_has_no_tools() -> None:
    provider = LLMTrajectoryFeedback(min_calls=1, recent_calls=2)
    _, model = await play(provider, [_say(STUCK)])
    asked: ModelRequest = model.requests[3]
    text = asked.transcript[0].text
    assert asked.tools == ()
    assert "Find the invoice of May." in text
    assert text.count('search {"query":"invoice"} -> ok: nothing about invoice') == 2


@pytest.mark.parametrize(
    ("status", "severity", "summary"),
    [("on_track", "info", "The work is on track."), ("off_track", "warning", "The work is off track.")],
)
async def test_every_status_has_its_severity(status: Any, severity: str, summary: str) -> None:
    result, _ = await play(LLMTrajectoryFeedback(min_calls=3), [_say(TrajectoryAssessment("", status, " "))])
    said = result.session[Feedback].latest()
    assert said is not None
    assert (said.severity, said.summary, said.suggestions) == (severity, summary, ())


@pytest.mark.spec("NE-023")
@pytest.mark.parametrize(
    ("judge", "why"),
    [
        ([ProviderError("no such model", fault="auth")], "no such model"),
        (["nonsense"] * 2, "does not fit"),
        (['{"reason": "", "status": "great", "suggestion": ""}'] * 2, "does not fit"),
    ],
    ids=["error", "nonsense", "no-status"],
)
async def test_an_evaluation_that_fails_is_recorded_and_the_run_goes_on_without_it(judge: Any, why: str) -> None:
    result, _ = await play(LLMTrajectoryFeedback(min_calls=3), judge)
    assert result.output == "There is none."
    assert result.session[Feedback].all() == ()
    ran = events(result, ObserversRan)[0].runs[0]
    assert ran.outcome == "failed"
    assert why in str(ran.error)


async def test_it_never_starves_the_work() -> None:
    provider = LLMTrajectoryFeedback(min_calls=3, budget=Budget(max_total_tokens=10))
    result, _ = await play(provider, [])
    assert result.output == "There is none."
    assert "BudgetExceededError" in str(events(result, ObserversRan)[0].runs[0].error)
    ended = events(result, ChildEnded)[0]
    assert ended.usage.model_calls == 0


@pytest.mark.spec("NE-025")
async def test_without_a_budget_of_its_own_it_has_what_the_template_says() -> None:
    config = NestedExecutionConfig(default_nested_budget=Budget(max_total_tokens=6_000), max_nested_duration="15s")
    provider = LLMTrajectoryFeedback(min_calls=3, budget=None)
    result, _ = await play(provider, [_say(STUCK)], nested_execution_config=config)
    limits = events(result, ChildStarted)[0].limits
    assert "total tokens 6,000" in limits
    assert "deadline 2026-01-01T00:00:15" in limits
    provider = LLMTrajectoryFeedback(min_calls=3, max_duration=timedelta(seconds=5))
    result, _ = await play(provider, [_say(STUCK)], nested_execution_config=config)
    assert "deadline 2026-01-01T00:00:05" in events(result, ChildStarted)[0].limits


async def test_a_cheaper_model_may_judge() -> None:
    cheap = ScriptedModel([_say(STUCK)], name="cheap")
    result, _ = await play(LLMTrajectoryFeedback(Adapter(cheap), min_calls=3), [])
    assert events(result, ChildStarted)[0].model == "scripted:cheap"
    assert result.usage.model_calls == 5


@pytest.mark.spec("NE-026")
async def test_an_evaluation_inside_an_evaluation_is_refused() -> None:
    """Nesting that must be refused: the judge's own prompt has a judge."""
    inner = LLMTrajectoryFeedback(min_calls=1, name="inner")
    config = FeedbackProviderConfig(inner, ObserverTrigger(on_every_call=True))
    section = MarkdownSection(title="", key="task", template="Judge ${recent_actions}.", tools=(search,))
    template = PromptTemplate[TrajectoryAssessment](
        ns="t", key="judge", sections=(section,), feedback_providers=(config,)
    )
    outer = LLMTrajectoryFeedback(evaluation_prompt=Prompt(template), min_calls=3)
    allowed = NestedExecutionConfig(allow_nested_tools=True)
    judge = [Call("search", {"query": "more"}), _say(STUCK)]
    recorded: list[Any] = []

    def record(_: UUID, envelope: Envelope) -> None:
        recorded.append(envelope.event)

    model = ScriptedModel([*[Call("search", {"query": "invoice"})] * 3, *judge, "There is none."])
    result = await arun(
        searcher(outer, nested_execution_config=allowed),
        model=model,
        clock=TestClock(),
        store=None,
        on_record=record,
    )
    ran = [
        each for event in recorded if isinstance(event, ObserversRan) for each in event.runs if each.source == "inner"
    ]
    assert "NestingDepthError" in str(ran[0].error)
    assert result.session[Feedback].latest() is not None
    assert len(events(result, ChildStarted)) == 1


def test_it_stays_silent_before_there_is_something_to_see() -> None:
    context = FeedbackContext(Session())
    assert not LLMTrajectoryFeedback().should_run(context=context)


async def test_outside_of_a_run_it_needs_somebody_to_ask() -> None:
    with pytest.raises(ConfigurationError, match="has no adapter: give adapter="):
        await LLMTrajectoryFeedback().provide(context=FeedbackContext(Session()))
    session = Session(clock=TestClock())
    judge = Adapter(ScriptedModel([_say(STUCK)]))
    said = await LLMTrajectoryFeedback(judge).provide(context=FeedbackContext(session))
    assert said.severity == "caution"


def test_what_could_not_be_asked_is_refused() -> None:
    section = MarkdownSection(title="", key="task", template="Go.")
    free = Prompt(PromptTemplate[str](ns="t", key="k", sections=(section,)))
    with pytest.raises(ObserverError, match="must ask for a TrajectoryAssessment"):
        LLMTrajectoryFeedback(evaluation_prompt=free)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ObserverError, match="min_calls=0"):
        LLMTrajectoryFeedback(min_calls=0)
    with pytest.raises(ObserverError, match="recent_calls=0"):
        LLMTrajectoryFeedback(recent_calls=0)
    with pytest.raises(LimitsError, match="max_duration"):
        LLMTrajectoryFeedback(max_duration="-1s")


def test_more_time_than_the_template_allows_is_refused_and_not_cut_off() -> None:
    section = MarkdownSection(title="", key="task", template="Go.")

    def made(max_duration: str, nested: NestedExecutionConfig | None = None) -> PromptTemplate[str]:
        provider = LLMTrajectoryFeedback(max_duration=max_duration)
        config = FeedbackProviderConfig(provider, ObserverTrigger(on_suspicion=True))
        return PromptTemplate[str](
            ns="t", key="k", sections=(section,), feedback_providers=(config,), nested_execution_config=nested
        )

    with pytest.raises(PromptDefinitionError, match=r"max_duration='31s' .* max_nested_duration='30s'"):
        made("31s")
    with pytest.raises(PromptDefinitionError, match="LLMCompletionVerifier"):
        PromptTemplate[str](
            ns="t", key="k", sections=(section,), task_completion_checker=LLMCompletionVerifier(max_duration="1m")
        )
    made("30s")
    made("31s", NestedExecutionConfig(max_nested_duration="31s"))


def asking(template: str) -> Prompt[TrajectoryAssessment]:
    section = MarkdownSection(title="", key="q", template=template)
    return Prompt(PromptTemplate[TrajectoryAssessment](ns="t", key="k", sections=(section,)))


def test_a_placeholder_that_nothing_fills_is_refused_at_construction() -> None:
    with pytest.raises(
        ObserverError, match=r"nothing fills its placeholder \$\{recent_action\}; the judge fills recent"
    ):
        LLMTrajectoryFeedback(evaluation_prompt=asking("${recent_action}"))
    with pytest.raises(ObserverError, match="current_plan needs plan="):
        LLMTrajectoryFeedback(evaluation_prompt=asking("${current_plan}"))
    with pytest.raises(ObserverError, match="plan='Plan' must be the type of a slice"):
        LLMTrajectoryFeedback(plan=cast("Any", "Plan"))
    LLMTrajectoryFeedback(evaluation_prompt=asking("${house_rules}").with_variables(house_rules="None."))


async def test_the_plan_comes_from_a_slice() -> None:
    @dataclass(frozen=True)
    class Plan:
        steps: tuple[str, ...]

    session, judge = Session(clock=TestClock()), ScriptedModel([_say(STUCK), _say(STUCK)])
    feedback = LLMTrajectoryFeedback(Adapter(judge), asking("The plan: ${current_plan}"), plan=Plan)
    await feedback.provide(context=FeedbackContext(session))
    session[Plan].append(Plan(("read", "write")))
    await feedback.provide(context=FeedbackContext(session))
    shown = [request.transcript[0].text.splitlines()[0] for request in judge.requests]
    assert shown == ["The plan: (there is no plan)", 'The plan: {"steps":["read","write"]}']


def _say(assessment: TrajectoryAssessment) -> Any:
    return Say(assessment)
