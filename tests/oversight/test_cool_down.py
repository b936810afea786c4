"""How often an agent hears one thing: an unchanged finding is damped, in the delivery and never in the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tests.kit import Call, Report, Say, play
from tests.oversight.support import ALWAYS, Watcher, delivered, look, looks, told, watched
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.errors import ObserverError
from watchkeeper.observers import (
    Assessment,
    ErrorCascadeDetector,
    Escalation,
    Feedback,
    FeedbackProviderConfig,
    ObserverConfig,
    ObserverContext,
    ObserverTrigger,
    ResourceObserver,
    StallDetector,
)
from watchkeeper.observers.acknowledge import answer_advice
from watchkeeper.prompt.advice import Severity
from watchkeeper.tools.tool import tool
from watchkeeper.tools.values import ToolResult

MANY = Limits(max_tool_calls=None, max_steps=None, max_turns=None, max_total_tokens=None, deadline=None, landing=None)


def finds(severity: Callable[[int], Severity] = lambda count: "caution") -> Watcher:
    """Return an observer that finds the same at every call; only the number in its words differs."""

    def say(context: ObserverContext) -> Assessment:
        count = context.tool_call_count
        return Assessment("Watcher", f"{count} calls brought nothing", severity=severity(count))

    return Watcher(say)


def heard_at(result: Any) -> list[int]:
    return [ran.call_index for ran in delivered(result)]


async def test_sixty_identical_polls_are_told_a_few_times_and_all_recorded() -> None:
    polls = [*[Call("look", {"a": 1})] * 60, Say(Report(0))]
    result = await play(watched(StallDetector()), polls, limits=MANY)
    assert len(told(result)) <= 5
    assert len(result.session[Assessment].all()) == 57
    assert sum(len(text) for text in told(result)) < 6_000


async def test_an_unchanged_finding_is_told_after_doubled_gaps() -> None:
    result = await play(watched(finds()), looks(60), limits=MANY)
    assert heard_at(result) == [1, 5, 13, 29]
    assert len(result.session[Assessment].all()) == 60


async def test_of_thousands_of_unchanged_looks_ten_are_told() -> None:
    result = await play(watched(finds(lambda count: "warning")), looks(3_600), limits=MANY)
    assert len(delivered(result)) == 10
    assert len(result.session[Assessment].all()) == 3_600


async def test_what_gets_worse_is_told_at_once_and_each_severity_once() -> None:
    def grade(count: int) -> Severity:
        return "warning" if count in (3, 4, 6, 8) else "caution"

    result = await play(watched(finds(grade)), looks(10), limits=MANY)
    assert heard_at(result) == [1, 3]


async def test_another_finding_is_told_at_once() -> None:
    def say(context: ObserverContext) -> Assessment:
        words = "the disk is full" if context.tool_call_count % 2 else "the login fails"
        return Assessment("Watcher", words, severity="caution")

    result = await play(watched(Watcher(say)), looks(60), limits=MANY)
    assert heard_at(result) == [1, 2, 6, 14, 30]


async def test_what_is_told_for_information_is_unchanged_only_if_its_text_is() -> None:
    counts = Watcher(lambda context: Assessment("Counts", f"{context.tool_call_count} of 9 done"), "Counts")
    fixed = Watcher(lambda context: Assessment("Fixed", "all is well"), "Fixed")
    result = await play(watched(counts, fixed), looks(9), limits=MANY)
    assert [ran.told for ran in delivered(result)].count(("Counts",)) == 7
    assert sum("Fixed" in ran.told for ran in delivered(result)) == 2


async def test_after_ten_silent_calls_the_same_finding_is_new() -> None:
    def say(context: ObserverContext) -> Assessment | None:
        said = Assessment("Watcher", "calls fail", severity="caution")
        return None if 4 <= context.tool_call_count < 14 or context.tool_call_count == 2 else said

    result = await play(watched(Watcher(say)), looks(15), limits=MANY)
    assert heard_at(result) == [1, 14]


async def test_what_a_source_finds_again_after_ten_calls_of_good_news_is_new() -> None:
    def say(context: ObserverContext) -> Assessment:
        count = context.tool_call_count
        stuck = count in (1, 3, 14)
        words, grade = ("stuck", "caution") if stuck else (f"on track at {count}", "info")
        return Assessment("Watcher", words, severity=cast("Severity", grade))

    result = await play(watched(Watcher(say)), looks(15), limits=MANY)
    assert [ran.call_index for ran in delivered(result) if "stuck" in ran.text] == [1, 14]


async def test_failures_of_one_cause_are_damped_whatever_each_of_them_says() -> None:
    @tool
    def fetch(page: str) -> ToolResult[str]:
        """Fetch a page."""
        return ToolResult.error(f"cannot connect to mirror for {page}: connection refused")

    pages = [Call("fetch", {"page": f"{word}.html"}) for word in ("one", "two", "three", "four", "five", "six") * 10]
    result = await play(watched(ErrorCascadeDetector(), tools=(fetch,)), [*pages, Say(Report(0))], limits=MANY)
    assert len(result.session[Assessment].all()) >= 50
    assert len(delivered(result)) <= 5


async def test_every_finding_counts_for_escalation_once_the_first_was_delivered() -> None:
    config = ObserverConfig(finds(), ALWAYS, escalate=Escalation(after=4, severity="caution"))
    result = await play(watched(config), looks(9))
    assert heard_at(result) == [1]
    assert result.stop is not None
    assert (result.stop.reason, len(result.session[Assessment].all())) == ("escalated", 4)


async def test_the_cool_down_is_a_setting() -> None:
    every = await play(watched(ObserverConfig(finds(), ALWAYS, cool_down=0)), looks(9))
    assert heard_at(every) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    rare = await play(watched(ObserverConfig(finds(), ALWAYS, cool_down=2)), looks(9))
    assert heard_at(rare) == [1, 3, 7]
    with pytest.raises(ObserverError, match="cool_down=-1 of 'Watcher' must be a whole number, 0 or more"):
        ObserverConfig(finds(), ALWAYS, cool_down=-1)


async def test_sources_about_limits_follow_their_triggers() -> None:
    every = ObserverConfig(ResourceObserver(), ObserverTrigger(every_n_calls=2))
    result = await play(watched(every), looks(8), limits=Limits(max_tool_calls=100))
    assert heard_at(result) == [2, 4, 6, 8]
    shares = ObserverTrigger(at_limit_share=(0.2, 0.4, 0.6))
    wrap_up = Watcher(lambda context: Assessment("Watcher", "wrap up soon", severity="caution"))
    again = await play(watched(ObserverConfig(wrap_up, shares)), looks(7), limits=Limits(max_tool_calls=10))
    assert heard_at(again) == [2, 4, 6]


async def test_calls_that_the_agent_asked_to_be_quiet_count_as_looks() -> None:
    answer = Call("answer_advice", {"source": "Watcher", "action": "dismiss", "reason": "a poll", "for_calls": 6})
    result = await play(watched(finds(), tools=(look, answer_advice)), [*looks(1)[:1], answer, *looks(9)])
    assert heard_at(result) == [1, 9]


async def test_the_cool_down_goes_on_in_a_session_that_is_continued() -> None:
    first = await play(watched(finds()), looks(3))
    again = await play(watched(finds()), looks(5), session=first.session)
    assert heard_at(first) == [1, 5]
    assert again.session[Assessment].all()[-1].call_index == 8


async def test_feedback_is_damped_in_the_same_way() -> None:
    @dataclass(frozen=True)
    class Judge:
        name: str = "Judge"

        def should_run(self, *, context: ObserverContext) -> bool:
            return True

        def provide(self, *, context: ObserverContext) -> Feedback:
            return Feedback("Judge", "You are stuck.", severity="caution")

    result = await play(watched(feedback_providers=[FeedbackProviderConfig(Judge(), ALWAYS)]), looks(13))
    assert heard_at(result) == [1, 5, 13]
    assert len(result.session[Feedback].all()) == 13
