"""The engine of oversight: who is asked when, what reaches the agent, what follows; and that no observer ends a run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.kit import Call, Calls, Report, Say, ScriptedModel, events, play
from tests.oversight.support import (
    ALWAYS,
    PATIENCE,
    Watcher,
    asked_at,
    delivered,
    look,
    looks,
    told,
    watched,
)
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.clock import TestClock
from watchkeeper.core.messages import Message, ToolMessage, UserMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.observers.acknowledge import answer_advice
from watchkeeper.prompt.advice import Assessment, Feedback, Severity
from watchkeeper.prompt.observer import (
    Escalation,
    FeedbackContext,
    FeedbackProviderConfig,
    ObserverConfig,
    ObserverContext,
    ObserverTrigger,
)
from watchkeeper.runtime.advice_events import AdviceAcknowledged, EscalationTaken, ObserversRan
from watchkeeper.runtime.events import ModelSwitched
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Append
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.tool import tool


@dataclass(frozen=True)
class AsyncWatcher:
    """The same on the loop."""

    look: Callable[[ObserverContext], Any]
    name: str = "Async"

    async def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        return True

    async def observe(self, session: Session, *, context: ObserverContext) -> Any:
        return await self.look(context)


@dataclass(frozen=True)
class Judge:
    """A feedback provider."""

    name: str = "Judge"

    def should_run(self, *, context: ObserverContext) -> bool:
        return context.tool_call_count > 1

    def provide(self, *, context: ObserverContext) -> Feedback:
        return Feedback(self.name, "well done")


# --- triggers ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("TO-007")
@pytest.mark.parametrize(
    ("trigger", "script", "expected"),
    [
        (ObserverTrigger(on_every_call=True), looks(3), [1, 2, 3]),
        (ObserverTrigger(every_n_calls=2), looks(5), [2, 4]),
        (ObserverTrigger(after_consecutive_errors=2), [*looks(2, "fail")[:2], *looks(2)], [2]),
        (ObserverTrigger(after_consecutive_errors=2), looks(4, "fail"), [2, 3, 4]),
        (ObserverTrigger(every_n_calls=3, after_consecutive_errors=2), [*looks(2, "fail")[:2], *looks(4)], [2, 5]),
        (ObserverTrigger(every_n_calls=2), [Calls((Call("look", {"a": 1}), Call("look", {"a": 2}))), *looks(1)], [2]),
    ],
)
async def test_a_source_is_asked_when_one_of_its_conditions_holds(
    trigger: ObserverTrigger, script: list[Any], expected: list[int]
) -> None:
    result = await play(watched(ObserverConfig(Watcher(), trigger)), script)
    assert result.output is not None
    assert asked_at(result) == expected


@pytest.mark.spec("TO-007")
async def test_time_passes_between_two_looks() -> None:
    clock = TestClock()

    @tool
    def work(seconds: int) -> str:
        """Work."""
        clock.advance(seconds)
        return "done"

    template = watched(ObserverConfig(Watcher(), ObserverTrigger(every_n_seconds=60)), tools=(work,))
    script = [*(Call("work", {"seconds": seconds}) for seconds in (1, 50, 9, 1, 70)), Say(Report(0))]
    result = await play(template, script, clock=clock)
    assert asked_at(result) == [1, 4, 5]


@pytest.mark.spec("FR-135")
async def test_each_share_of_a_limit_fires_once() -> None:
    trigger = ObserverTrigger(at_limit_share=(0.5, 0.8))
    result = await play(watched(ObserverConfig(Watcher(), trigger)), looks(9), Limits(deadline=None, max_tool_calls=10))
    assert asked_at(result) == [5, 8]


@pytest.mark.spec("FR-135")
async def test_a_share_fires_for_every_limit_that_comes_to_it() -> None:
    trigger = ObserverTrigger(at_limit_share=0.5)
    limits = Limits(max_tool_calls=20, max_turns=12, deadline=None)
    result = await play(watched(ObserverConfig(Watcher(), trigger)), looks(11), limits)
    assert asked_at(result) == [6, 10]


@pytest.mark.spec("FR-135")
async def test_a_file_that_appears_fires_once_each_time() -> None:
    files = MemoryFilesystem()

    @tool
    def write(name: str) -> str:
        """Write a file, or remove them."""
        if name:
            files.write_text(name, "x")
        else:
            files.delete("alarm.txt")
        return "ok"

    template = watched(ObserverConfig(Watcher(), ObserverTrigger(when_file_exists="alarm.txt")), tools=(write,))
    names = ["a.txt", "alarm.txt", "b.txt", "", "alarm.txt"]
    script = [*(Call("write", {"name": name}) for name in names), Say(Report(0))]
    result = await play(template, script, filesystem=files)
    assert asked_at(result) == [2, 5]


@pytest.mark.spec("TO-007")
async def test_cadences_are_each_sources_own() -> None:
    often = ObserverConfig(Watcher(name="Often"), ObserverTrigger(every_n_calls=1))
    seldom = ObserverConfig(Watcher(name="Seldom"), ObserverTrigger(every_n_calls=3))
    result = await play(watched(often, seldom), looks(4))
    spoke = [(ran.call_index, [each.source for each in ran.runs]) for ran in events(result, ObserversRan)]
    assert spoke == [(1, ["Often"]), (2, ["Often"]), (3, ["Often", "Seldom"]), (4, ["Often"])]


@pytest.mark.spec("TO-001")
async def test_whoever_declines_or_has_nothing_to_say_leaves_no_trace() -> None:
    result = await play(watched(Watcher(wanted=False), Watcher(lambda context: None, "Silent")), looks(3))
    assert not events(result, ObserversRan)
    assert not told(result)


# --- delivery ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("TO-010")
async def test_advice_is_appended_after_the_results_and_before_the_next_model_call() -> None:
    model = ScriptedModel(looks(2))
    seen: list[list[Message]] = []

    class Recording(ScriptedModel):
        async def turn(self, request: ModelRequest) -> Any:
            seen.append(list(request.transcript))
            return await model.turn(request)

    result = await play(watched(Watcher()), Recording([]))
    assert [type(message) for message in seen[1]][-2:] == [ToolMessage, UserMessage]
    assert "### Watcher [info]\n\nseen 1" in seen[1][-1].text
    # Earlier messages are never touched.
    assert seen[2][: len(seen[1])] == seen[1]
    assert [(each.told, each.call_index, each.turn) for each in delivered(result)] == [
        (("Watcher",), 1, 2),
        (("Watcher",), 2, 3),
    ]


@pytest.mark.spec("NE-018", "TO-005", "TO-009")
async def test_several_sources_make_one_block_in_the_order_of_the_template() -> None:
    template = watched(Watcher(), feedback_providers=[FeedbackProviderConfig(Judge(), ALWAYS)])
    result = await play(template, looks(2))
    assert told(result)[1].count("## Trajectory Assessment") == 1
    assert told(result)[1].index("### Watcher") < told(result)[1].index("### Judge [info]\n\nwell done")
    assert [advice.summary for advice in result.session[Assessment].all()] == ["seen 1", "seen 2"]
    assert [(advice.summary, advice.call_index) for advice in result.session[Feedback].all()] == [("well done", 2)]
    assert all(advice.timestamp is not None for advice in result.session[Assessment].all())


@pytest.mark.spec("TO-018")
async def test_an_observer_reads_what_others_said_after_the_same_call() -> None:
    heard: list[list[str]] = []

    def listen(context: ObserverContext) -> None:
        heard.append([advice.summary for advice in context.assessments])

    await play(watched(Watcher(), Watcher(listen, "Listener")), looks(2))
    assert heard == [["seen 1"], ["seen 2"]]


@pytest.mark.spec("TO-006")
async def test_the_context_knows_budget_trend_task_and_files() -> None:
    seen: list[Any] = []
    grades: list[Severity] = ["info", "caution", "warning"]

    def assess(context: ObserverContext) -> Assessment:
        seen.append((context.budget.tool_calls_used, context.trend("Watcher"), context.task, context.filesystem))
        return Assessment("anything", "x", severity=grades[context.tool_call_count - 1])

    result = await play(watched(Watcher(assess)), looks(3), filesystem=MemoryFilesystem())
    assert [(calls, trend) for calls, trend, _, _ in seen] == [(1, "steady"), (2, "steady"), (3, "rising")]
    assert "Look." in seen[0][2]
    assert seen[0][3] is not None
    # Advice goes under the name of the source.
    assert {advice.observer_name for advice in result.session[Assessment].all()} == {"Watcher"}


async def test_a_feedback_provider_sees_the_prompt_that_the_agent_got() -> None:
    seen: list[Any] = []

    class Reads(Judge):
        def provide(self, *, context: ObserverContext) -> Feedback:
            assert isinstance(context, FeedbackContext)
            seen.append(context.prompt)
            return Feedback(self.name, "read")

    await play(watched(feedback_providers=[FeedbackProviderConfig(Reads(), ALWAYS)]), looks(2))
    (prompt,) = seen
    assert "Look." in prompt.text
    assert "look" in [each.name for each in prompt.tools]
    assert FeedbackContext(Session()).prompt is None


@pytest.mark.spec("TO-006", "NE-018")
async def test_a_feedback_provider_counts_from_what_a_provider_said_too() -> None:
    seen: list[Any] = []

    class Counts(Judge):
        def provide(self, *, context: ObserverContext) -> Feedback:
            last, said = context.last_assessment, context.last_feedback
            seen.append((last and last.summary, said and said.summary, context.tool_calls_since_last_assessment()))
            return Feedback(self.name, f"feedback {context.tool_call_count}")

    every = ObserverTrigger(every_n_calls=2)
    providers = [FeedbackProviderConfig(Counts(), every)]
    await play(watched(feedback_providers=providers), looks(6))
    assert seen == [(None, None, 2), ("feedback 2", "feedback 2", 2), ("feedback 4", "feedback 4", 2)]
    seen.clear()
    third = ObserverConfig(Watcher(), ObserverTrigger(every_n_calls=3))
    await play(watched(third, feedback_providers=providers), looks(4))
    assert seen == [(None, None, 2), ("seen 3", "feedback 2", 1)]


async def test_a_plain_observer_that_raises_leaves_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    def broken(context: ObserverContext) -> Any:
        raise ValueError("no such metric")

    result = await play(watched(Watcher(broken)), looks(1))
    assert result.ok
    (line,) = [said for said in caplog.messages if "observer." in said]
    assert all(part in line for part in ("observer.failed", "Watcher", "ValueError: no such metric", "after_call=1"))


async def test_tool_calls_are_observed_whatever_else_listens_to_them() -> None:
    @dataclass(frozen=True)
    class Count:
        calls: int

    session = Session()
    session[Count].register(ToolInvoked, lambda view, event: Append(Count(len(view))))
    result = await play(watched(Watcher()), looks(2), session=session)
    assert asked_at(result) == [1, 2]
    assert len(session[Count].all()) == 2
    own = Session()
    own[ToolInvoked].register(ToolInvoked, lambda view, event: Append(event))
    assert asked_at(await play(watched(Watcher()), looks(2), session=own)) == [1, 2]


# --- what observers do wrong ------------------------------------------------------------------------------------------


def boom(context: ObserverContext) -> Any:
    raise ValueError("no idea")


async def never(context: ObserverContext) -> Any:
    return Assessment("x", "y")


@pytest.mark.spec("TO-011")
@pytest.mark.parametrize(
    ("watcher", "said"),
    [
        (Watcher(boom), "ValueError: no idea"),
        (Watcher(lambda context: "fine"), r"observe() must return Assessment or None, not 'fine'"),
        (Watcher(lambda context: Feedback("x", "y")), "must return Assessment or None"),
        (Watcher(never), "must return Assessment or None"),
        (AsyncWatcher(boom), "ValueError: no idea"),
    ],
)
async def test_an_observer_that_fails_is_recorded_and_the_run_goes_on(watcher: Any, said: str) -> None:
    result = await play(watched(watcher, Watcher(name="Other")), looks(1))
    first, other = events(result, ObserversRan)[0].runs
    assert first.outcome == "failed"
    assert said in (first.error or "")
    assert (other.source, other.outcome) == ("Other", "advised")
    assert result.output == Report(1)


async def test_should_run_that_returns_a_coroutine_is_told_what_to_do() -> None:
    class Odd(Watcher):
        def should_run(self, session: Session, *, context: ObserverContext) -> Any:
            async def later() -> bool:
                return True

            return later()

    result = await play(watched(Odd()), looks(1))
    assert "declare it `async def`" in (events(result, ObserversRan)[0].runs[0].error or "")


@pytest.mark.spec("TO-011")
async def test_an_observer_that_hangs_is_left_behind_and_off_and_the_others_are_asked() -> None:
    release, begun = threading.Event(), threading.Event()
    asked: list[int] = []

    def hang(context: ObserverContext) -> Any:
        asked.append(context.tool_call_count)
        begun.set()
        release.wait(PATIENCE)
        return Assessment("x", "too late")

    clock = TestClock()
    template = watched(
        Watcher(name="First"), ObserverConfig(Watcher(hang, "Hangs"), ALWAYS, time_limit="5s"), Watcher(name="Last")
    )
    running = asyncio.create_task(play(template, looks(2), clock=clock))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    clock.advance(4.9)
    await asyncio.sleep(0)
    assert not running.done()
    clock.advance(0.2)
    result = await running
    release.set()
    first, second = events(result, ObserversRan)
    assert [(ran.source, ran.outcome) for ran in first.runs] == [
        ("First", "advised"),
        ("Hangs", "overran"),
        ("Last", "advised"),
    ]
    assert "took longer than 5s and is off for the rest of the run" in (first.runs[1].error or "")
    assert [ran.source for ran in second.runs] == ["First", "Last"]
    assert asked == [1]
    assert result.output == Report(2)


async def test_an_async_observer_that_hangs_is_off_too() -> None:
    clock = TestClock()

    async def hang(context: ObserverContext) -> Any:
        await clock.sleep(3600)

    result = await play(watched(ObserverConfig(AsyncWatcher(hang), ALWAYS, time_limit="5s")), looks(2), clock=clock)
    assert [[ran.outcome for ran in each.runs] for each in events(result, ObserversRan)] == [["overran"]]
    assert result.output == Report(2)


async def test_the_deadline_is_not_waited_past_for_an_observer() -> None:
    release, begun = threading.Event(), threading.Event()

    def hang(context: ObserverContext) -> Any:
        begun.set()
        release.wait(PATIENCE)

    clock = TestClock()
    template = watched(ObserverConfig(Watcher(hang), ALWAYS, time_limit="1h"), Watcher(name="Next"))
    running = asyncio.create_task(play(template, looks(3), Limits(deadline="10m"), clock=clock))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    clock.advance(timedelta(minutes=11))
    result = await running
    release.set()
    assert result.stop is not None
    assert result.stop.reason == "timeout"


# --- consequences -----------------------------------------------------------------------------------------------------


def grave(context: ObserverContext) -> Assessment:
    return Assessment("Watcher", "stop it", severity="warning")


@pytest.mark.spec("FR-136")
async def test_advice_that_is_not_heeded_stops_the_run_with_a_last_turn() -> None:
    config = ObserverConfig(Watcher(grave), ALWAYS, escalate=Escalation(after=3))
    result = await play(watched(config), [*looks(3)[:3], Say(Report(3, "handed over"))])
    assert result.stop is not None
    assert (result.stop.reason, result.stop.source) == ("escalated", "observer")
    assert "Watcher spoke 3 times in a row" in result.stop.message
    assert result.partial == Report(3, "handed over")
    assert [taken.action for taken in events(result, EscalationTaken)] == ["stop"]


async def test_milder_advice_or_silence_begins_the_count_anew() -> None:
    def sometimes(context: ObserverContext) -> Assessment | None:
        return None if context.tool_call_count % 3 == 0 else grave(context)

    config = ObserverConfig(Watcher(sometimes), ALWAYS, escalate=Escalation(after=3))
    assert (await play(watched(config), looks(9))).output == Report(9)


async def test_milder_advice_alone_begins_the_count_anew() -> None:
    def sometimes(context: ObserverContext) -> Assessment:
        return Assessment("watcher", "fine") if context.tool_call_count % 3 == 0 else grave(context)

    config = ObserverConfig(Watcher(sometimes), ALWAYS, escalate=Escalation(after=3))
    assert (await play(watched(config), looks(9))).output == Report(9)


@pytest.mark.spec("FR-136")
async def test_the_users_function_is_called_with_the_advice() -> None:
    heard: list[str] = []
    config = ObserverConfig(
        Watcher(grave),
        ALWAYS,
        escalate=Escalation(after=2, action="call", call=lambda advice: heard.append(advice.summary)),
    )
    result = await play(watched(config), looks(4))
    assert heard == ["stop it", "stop it"]
    assert [taken.detail.endswith("the call was made") for taken in events(result, EscalationTaken)] == [True, True]


async def test_an_async_function_is_awaited_and_one_that_fails_is_recorded() -> None:
    heard: list[str] = []

    async def later(advice: Any) -> None:
        await asyncio.sleep(0)
        heard.append(advice.summary)

    def fails(advice: Any) -> None:
        raise OSError("no mail")

    for call, said in ((later, "the call was made"), (fails, "the call failed: OSError: no mail")):
        config = ObserverConfig(Watcher(grave), ALWAYS, escalate=Escalation(after=1, action="call", call=call))
        result = await play(watched(config), looks(1))
        assert said in events(result, EscalationTaken)[0].detail
        assert result.output == Report(1)
    assert heard == ["stop it"]


@pytest.mark.spec("FR-136")
async def test_another_model_takes_over() -> None:
    other = ScriptedModel([Say(Report(7))], name="other")
    config = ObserverConfig(Watcher(grave), ALWAYS, escalate=Escalation(after=2, action="switch_model", model=other))
    result = await play(watched(config), looks(5))
    assert result.output == Report(7)
    assert [(each.to_model, each.reason) for each in events(result, ModelSwitched)] == [("scripted:other", "escalated")]
    assert "the run goes on with scripted:other" in events(result, EscalationTaken)[0].detail


async def test_where_the_other_model_is_in_use_already_the_run_goes_on() -> None:
    other = ScriptedModel([*looks(2)[:2], Say(Report(7))], name="other")
    config = ObserverConfig(Watcher(grave), ALWAYS, escalate=Escalation(after=1, action="switch_model", model=other))
    result = await play(watched(config), looks(5))
    assert result.output == Report(7)
    assert "cannot take over" in events(result, EscalationTaken)[1].detail


# --- answers ----------------------------------------------------------------------------------------------------------


def answered(source: str = "Watcher", for_calls: int = 2) -> Call:
    """Answer advice."""
    return Call(
        "answer_advice", {"source": source, "action": "dismiss", "reason": "it is a poll", "for_calls": for_calls}
    )


async def test_an_answer_quiets_its_source_for_so_many_calls() -> None:
    template = watched(Watcher(), tools=(look, answer_advice))
    result = await play(template, [*looks(1)[:1], answered(), *looks(4)])
    (answer,) = events(result, AdviceAcknowledged)
    assert (answer.source, answer.action, answer.for_calls, answer.call_index) == ("Watcher", "dismiss", 2, 2)
    assert asked_at(result) == [1, 5, 6]


@pytest.mark.spec("TO-019")
async def test_warnings_about_hard_limits_cannot_be_quieted() -> None:
    @dataclass(frozen=True)
    class Limited(Watcher):
        about_limits = True

    def about(context: ObserverContext) -> Assessment:
        return Assessment(
            "x", f"left {context.tool_call_count}", severity="warning" if context.tool_call_count > 3 else "info"
        )

    template = watched(Limited(about), tools=(look, answer_advice))
    result = await play(template, [*looks(1)[:1], answered(for_calls=50), *looks(3)])
    assert [each.call_index for each in delivered(result)] == [1, 4, 5]


async def test_nobody_can_be_answered_who_said_nothing() -> None:
    template = watched(Watcher(), tools=(look, answer_advice))
    result = await play(template, [*looks(1)[:1], answered("Ghost"), *looks(1)])
    assert not events(result, AdviceAcknowledged)
    assert "nobody called 'Ghost' has said anything; sources: Watcher" in events(result, ToolInvoked)[1].rendered_output


# --- the log ----------------------------------------------------------------------------------------------------------


async def test_a_session_goes_on_with_what_its_log_says() -> None:
    config = ObserverConfig(Watcher(grave), ObserverTrigger(every_n_calls=3), escalate=Escalation(after=2))
    session = Session()
    first = await play(watched(config), looks(4), session=session)
    assert asked_at(first) == [3]
    second = await play(watched(config), [*looks(2)[:2], Say(Report(0))], session=session)
    assert asked_at(second) == [3, 6]
    assert second.stop is not None
    assert second.stop.reason == "escalated"


@pytest.mark.spec("TO-005")
async def test_a_rollback_takes_back_what_observers_said() -> None:
    session = Session()
    before = session.snapshot()
    config = ObserverConfig(Watcher(), ObserverTrigger(every_n_calls=2))

    @tool
    def back() -> str:
        """Go back."""
        session.rollback(before)
        return "back"

    template = watched(config, tools=(look, back))
    result = await play(template, [*looks(3)[:3], Call("back"), *looks(2)], session=session)
    assert result.output == Report(2)
    assert asked_at(result) == [2, 2]
    assert len(session[Assessment].all()) == 1
