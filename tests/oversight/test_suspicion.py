"""Suspicion: the agent does not hear it; it asks the judges, which are asked on a clock too, both within a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit import Call, Report, Say, events, play
from tests.oversight.support import ALWAYS, Watcher, delivered, looks, told, watched
from watchkeeper.accounting.budget import Budget
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import ScriptedModel
from watchkeeper.core.errors import ObserverError
from watchkeeper.judging import LLMTrajectoryFeedback, TrajectoryAssessment
from watchkeeper.loop.run import Adapter
from watchkeeper.observers import (
    Assessment,
    Escalation,
    Feedback,
    FeedbackContext,
    FeedbackProviderConfig,
    ObserverConfig,
    ObserverContext,
    ObserverTrigger,
    RecordAssessment,
    SuspicionRules,
)
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.runtime.events import ChildEnded
from watchkeeper.session.session import Session

MANY = Limits(max_tool_calls=None, max_steps=None, max_turns=None, max_total_tokens=None, deadline=None, landing=None)


def suspects(*calls: int) -> Watcher:
    """Return an observer that suspects something after these calls."""

    def say(context: ObserverContext) -> Assessment | None:
        count = context.tool_call_count
        return Assessment("Rules", f"odd at {count}", severity="suspicion") if count in calls else None

    return Watcher(say, "Rules")


@dataclass(frozen=True)
class Judge:
    """Notes when it is asked, and of what; says what it is told to say."""

    asked: list[Any]
    say: Callable[[int], Feedback | None] = lambda count: Feedback("Judge", f"fine at {count}")
    name: str = "Judge"

    def should_run(self, *, context: FeedbackContext) -> bool:
        return True

    def provide(self, *, context: FeedbackContext) -> Feedback | None:
        self.asked.append((context.tool_call_count, *(each.summary for each in context.suspicions)))
        return self.say(context.tool_call_count)


def judged(judge: Any, *observers: Any, **trigger: Any) -> PromptTemplate[Report]:
    given = ObserverTrigger(on_suspicion=True, **trigger)
    return watched(*observers, feedback_providers=[FeedbackProviderConfig(judge, given)])


async def test_the_agent_does_not_hear_a_suspicion_and_the_log_has_it() -> None:
    result = await play(watched(suspects(2, 3)), looks(4))
    assert told(result) == []
    assert [ran.runs[0].advice.summary for ran in events(result, ObserversRan) if ran.runs[0].advice] == [
        "odd at 2",
        "odd at 3",
    ]
    assert result.session[Assessment].all() == ()


async def test_a_suspicion_asks_the_judge_after_the_same_call_and_its_answer_is_told() -> None:
    asked: list[Any] = []
    judge = Judge(asked, lambda count: Feedback("Judge", "You repeat yourself.", severity="caution"))
    result = await play(judged(judge, suspects(3)), looks(6))
    assert asked == [(3, "odd at 3")]
    (only,) = delivered(result)
    assert (only.call_index, only.told, "You repeat yourself." in only.text, "odd" in only.text) == (
        3,
        ("Judge",),
        True,
        False,
    )


async def test_without_a_suspicion_and_a_clock_the_judge_is_not_asked() -> None:
    asked: list[Any] = []
    await play(judged(Judge(asked), suspects()), looks(40), limits=MANY)
    assert asked == []


async def test_the_judge_is_asked_on_a_clock_too_which_begins_anew_with_every_question() -> None:
    asked: list[Any] = []
    await play(judged(Judge(asked), suspects(30), every_n_calls=20), looks(60), limits=MANY)
    assert asked == [(20,), (30, "odd at 30"), (50,)]


@pytest.mark.parametrize("speaks", [False, True])
async def test_on_average_there_is_one_question_in_fifteen_calls_at_most(speaks: bool) -> None:
    asked: list[Any] = []
    judge = Judge(asked) if speaks else Judge(asked, lambda count: None)
    await play(judged(judge, suspects(*range(1, 200)), every_n_calls=1), looks(150), limits=MANY)
    assert [count for count, *_ in asked] == [1, 16, 31, 46, 61, 76, 91, 106, 121, 136]


async def test_saved_questions_may_be_asked_later_but_not_at_once() -> None:
    asked: list[Any] = []
    await play(judged(Judge(asked), suspects(*range(60, 90))), looks(90), limits=MANY)
    assert [count for count, *_ in asked] == [60, 70, 80, 90]


async def test_the_bound_is_a_setting_also_of_other_triggers() -> None:
    asked: list[Any] = []
    await play(judged(Judge(asked), suspects(*range(1, 20)), at_most_one_in=4), looks(12))
    assert [count for count, *_ in asked] == [1, 5, 9]
    asked.clear()
    trigger = ObserverTrigger(on_every_call=True, at_most_one_in=5)
    await play(watched(feedback_providers=[FeedbackProviderConfig(Judge(asked), trigger)]), looks(12))
    assert [count for count, *_ in asked] == [1, 6, 11]
    with pytest.raises(ObserverError, match="at_most_one_in=0 must be a whole number of at least 1"):
        ObserverTrigger(on_suspicion=True, at_most_one_in=0)
    with pytest.raises(ObserverError, match="without a condition never fires"):
        ObserverTrigger(at_most_one_in=15)


async def test_a_suspicion_that_found_no_question_left_is_asked_about_later() -> None:
    asked: list[Any] = []
    await play(judged(Judge(asked), suspects(2, 5)), looks(20), limits=MANY)
    assert asked == [(2, "odd at 2"), (16, "odd at 5")]


async def test_bound_and_suspicion_go_on_in_a_session_that_is_continued() -> None:
    asked: list[Any] = []
    template = judged(Judge(asked), suspects(2, 5))
    first = await play(template, looks(8))
    await play(template, looks(12), session=first.session)
    assert asked == [(2, "odd at 2"), (16, "odd at 5")]


async def test_a_suspicion_is_no_advice_for_observers_that_read_others_and_for_escalation() -> None:
    heard: list[int] = []
    listener = Watcher(lambda context: heard.append(len(context.assessments)), "Listener")
    config = ObserverConfig(suspects(1, 2, 3), ALWAYS, escalate=Escalation(after=1, severity="info"))
    result = await play(watched(config, listener), looks(4))
    assert result.ok
    assert heard == [0, 0, 0, 0]
    with pytest.raises(ObserverError, match="must be one of info, caution, warning"):
        Escalation(severity="suspicion")


def test_a_suspicion_of_a_loop_of_ones_own_is_not_in_the_context() -> None:
    session = Session()
    session.dispatch(RecordAssessment(Assessment("Rules", "odd", severity="suspicion")))
    assert session[Assessment].latest() is None


# --- from the rules to a model ----------------------------------------------------------------------------------------

STUCK = TrajectoryAssessment("It reads the same again.", "stuck", "Read another page.")


async def play_with_model(**details: Any) -> tuple[Any, ScriptedModel]:
    """Let an agent read one page again and again, watched by the rules and by a model of its own as the judge."""
    judge = ScriptedModel([Say(STUCK)] * 9, name="judge")
    feedback = LLMTrajectoryFeedback(Adapter(judge), min_calls=1, **details)
    template = judged(feedback, SuspicionRules(), every_n_calls=20)
    return await play(template, [*[Call("look", {"a": 1})] * 32, Say(Report(0))], limits=MANY), judge


async def test_rules_suspect_a_stall_and_the_models_answer_is_told() -> None:
    result, judge = await play_with_model()
    assert [said.call_index for said in result.session[Feedback].all()] == [3, 16, 31]
    assert "The work is stuck: It reads the same again." in told(result)[0]
    assert len(judge.requests) == 3
    assert result.usage.tokens.total > sum(ended.usage.tokens.total for ended in events(result, ChildEnded)) > 0


async def test_what_all_its_questions_cost_is_bounded() -> None:
    result, judge = await play_with_model(most=Budget(max_total_tokens=9_000))
    all_asked = len(judge.requests)
    spent = sum(ended.usage.tokens.total for ended in events(result, ChildEnded))
    assert all_asked == 3
    some, judge = await play_with_model(most=Budget(max_total_tokens=spent * 2 // 3))
    assert len(judge.requests) < all_asked
    assert some.ok


async def test_the_judge_may_be_shown_what_is_suspected() -> None:
    text = "Is it in trouble? ${recent_actions} Suspected: ${suspicion}"
    own = PromptTemplate[TrajectoryAssessment](ns="t", key="own", sections=[MarkdownSection("Q", "q", text)])
    _, judge = await play_with_model(evaluation_prompt=Prompt(own))
    asked = judge.requests[0].transcript[0].text
    assert "Suspected: 2 of the last 4 calls failed or brought nothing new." in asked
