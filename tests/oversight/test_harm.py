"""Unusual conditions for oversight: texts, errors, subagents, rollbacks, clocks that are set back, ends of runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.kit import Call, Panic, Report, Say, ScriptedModel, collect_garbage, events, play
from tests.oversight.support import ALWAYS, Watcher, looks, told, watched
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Calls
from watchkeeper.core.clock import TestClock
from watchkeeper.core.model import ModelRequest
from watchkeeper.core.workers import BreakOut
from watchkeeper.observers.acknowledge import answer_section
from watchkeeper.observers.cascade import ErrorCascadeDetector
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.completion import EXPLANATION_CHARS, TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.observer import Escalation, ObserverConfig, ObserverContext, ObserverTrigger, on_loop
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.advice_events import AdviceAcknowledged, EscalationTaken, ObserversRan
from watchkeeper.session.session import Session
from watchkeeper.subagents.payloads import PromptRegistry
from watchkeeper.subagents.section import PromptSubagentToolsSection
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.tool import tool

ODD = "caf\udce9.txt"


def grave(context: ObserverContext) -> Assessment:
    """Say the gravest."""
    return Assessment("x", f"seen {context.tool_call_count}", severity="warning")


def outcomes(result: Any) -> list[str]:
    """Return what came of each source that was asked."""
    return [ran.outcome for each in events(result, ObserversRan) for ran in each.runs]


# --- odd text ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-139")
async def test_a_file_name_that_is_no_text_ends_no_run() -> None:
    @tool
    def read(path: str) -> str:
        """Read."""
        raise FileNotFoundError(f"no such file: {ODD}")

    config = ObserverConfig(ErrorCascadeDetector(), ObserverTrigger(after_consecutive_errors=3))
    script = [*(Call("read", {"path": "a"}) for _ in range(4)), Say(Report(4))]
    result = await play(watched(config, tools=(read,)), script)
    assert result.output == Report(4)
    assert "caf?.txt" in told(result)[0]


async def test_what_a_checker_explains_is_bounded_and_can_be_sent() -> None:
    rounds = iter([TaskCompletionResult.incomplete(ODD + "x" * 10**6), TaskCompletionResult.ok()])

    class Wordy:
        def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
            return next(rounds)

    model = ScriptedModel([Say(Report(1)), Say(Report(2))])
    result = await play(watched(task_completion_checker=Wordy()), model)
    assert result.output == Report(2)
    explained = model.requests[1].transcript[2].text
    assert "caf?.txt" in explained
    assert f"[cut: {10**6 + len(ODD) - EXPLANATION_CHARS:,} more characters]" in explained


async def test_a_prompt_with_odd_file_names_is_run() -> None:
    sections = [MarkdownSection(title="Task", key="task", template=f"Read {ODD}.")]
    template = PromptTemplate[Report](ns="t", key="odd", sections=sections)
    assert (await play(template, [Say(Report(0))])).output == Report(0)


# --- odd errors -------------------------------------------------------------------------------------------------------


class Unreadable(Exception):
    """Cannot even say what went wrong."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class OnLoop(Watcher):
    """Is asked on the loop."""

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        return True

    @on_loop
    def observe(self, session: Session, *, context: ObserverContext) -> Any:
        return self.look(context)


class Async(Watcher):
    """Is awaited."""

    async def observe(self, session: Session, *, context: ObserverContext) -> Any:
        return self.look(context)


@pytest.mark.spec("FR-139")
@pytest.mark.parametrize("kind", [Watcher, OnLoop, Async])
@pytest.mark.parametrize("error", [Panic, GeneratorExit, Unreadable])
async def test_whatever_an_observer_raises_the_run_goes_on(
    kind: Callable[..., Watcher], error: type[BaseException]
) -> None:
    def raising(context: ObserverContext) -> Any:
        raise error("panicked")

    result = await play(watched(kind(raising)), looks(2))
    assert result.output == Report(2)
    assert outcomes(result) == ["failed", "failed"]
    assert (events(result, ObserversRan)[0].runs[0].error or "").startswith(error.__name__)


@pytest.mark.parametrize("kind", [Watcher, OnLoop, Async])
@pytest.mark.parametrize("error", [BreakOut("block"), BaseExceptionGroup("several", [BreakOut("block")])])
async def test_what_has_to_get_past_everybody_gets_past_observers(
    kind: Callable[..., Watcher], error: BaseException
) -> None:
    def raising(context: ObserverContext) -> Any:
        raise error

    with pytest.raises(type(error)):
        await play(watched(kind(raising)), looks(1))


@pytest.mark.parametrize("error", [Panic, Unreadable, ValueError])
async def test_whatever_an_escalation_calls_raises_the_run_goes_on(error: type[BaseException]) -> None:
    def call(advice: Any) -> None:
        raise error("E" * 10**6)

    config = ObserverConfig(Watcher(grave), ALWAYS, escalate=Escalation(after=1, action="call", call=call))
    result = await play(watched(config), looks(1))
    assert result.output == Report(1)
    (taken,) = events(result, EscalationTaken)
    assert f"the call failed: {error.__name__}" in taken.detail
    assert len(taken.detail) < 1000


async def test_the_newest_advice_is_escalated_however_many_speak_besides() -> None:
    heard: list[str] = []
    escalate = Escalation(after=1, action="call", call=lambda advice: heard.append(advice.source))
    first = ObserverConfig(Watcher(grave, "First"), ALWAYS, escalate=escalate)
    await play(watched(first, *(Watcher(name=f"Other {number}") for number in range(25))), looks(1))
    assert heard == ["First"]


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [OnLoop, Async])
async def test_one_that_stands_still_on_the_loop_is_off_once_it_has_come_back(kind: Callable[..., Watcher]) -> None:
    clock, asked = TestClock(), list[int]()

    def slow(context: ObserverContext) -> Assessment:
        asked.append(context.tool_call_count)
        clock.advance(6)
        return Assessment("x", "too late")

    config = ObserverConfig(kind(slow), ALWAYS, time_limit="5s")
    result = await play(watched(config), looks(3), clock=clock)
    assert outcomes(result) == ["overran"]
    assert asked == [1]
    assert told(result) == []


async def test_who_is_off_stays_off_after_a_rollback() -> None:
    clock, asked = TestClock(), list[str]()
    session = Session(clock=clock)
    before = session.snapshot()

    def slow(context: ObserverContext) -> None:
        asked.append("slow")
        clock.advance(6)

    def back(context: ObserverContext) -> None:
        asked.append("back")
        if len(asked) == 2:
            session.rollback(before)

    configs = (
        ObserverConfig(Async(slow, "Slow"), ALWAYS, time_limit="5s"),
        ObserverConfig(Async(back, "Back"), ALWAYS),
    )
    await play(watched(*configs), looks(3), clock=clock, session=session)
    assert asked == ["slow", "back", "back", "back"]


class PutBack(TestClock):
    """A clock whose time of day can be put back; its monotonic time goes on."""

    back = timedelta()

    def now(self) -> datetime:
        return super().now() - self.back


async def test_a_clock_that_is_put_back_does_not_silence_an_observer() -> None:
    clock, asked = PutBack(), list[int]()

    def note(context: ObserverContext) -> Assessment:
        asked.append(context.tool_call_count)
        return Assessment("x", "y")

    @tool
    def wait(a: int = 0) -> str:
        """Wait."""
        clock.advance(20)
        if a == 1:
            clock.back = timedelta(hours=6)
        return "waited"

    config = ObserverConfig(Watcher(note), ObserverTrigger(every_n_seconds=60))
    await play(watched(config, tools=(wait,)), looks(9, "wait"), clock=clock)
    assert asked == [1, 2, 5, 8]


@pytest.mark.spec("FR-139")
async def test_once_the_deadline_has_come_nobody_is_asked_and_nothing_is_told() -> None:
    clock, asked = TestClock(), list[str]()

    def late(context: ObserverContext) -> Assessment:
        asked.append("late")
        clock.advance(3600)
        return Assessment("x", "seen")

    def noted(context: ObserverContext) -> None:
        asked.append("noted")

    configs = (
        ObserverConfig(OnLoop(late, "Late"), ALWAYS, time_limit="2h"),
        OnLoop(noted, "Loop"),
        Async(noted, "Async"),
        Watcher(noted, "Thread"),
    )
    result = await play(watched(*configs), looks(3), Limits(deadline="10m", landing=None), clock=clock)
    assert result.stop is not None
    assert result.stop.reason == "timeout"
    assert asked == ["late"]
    assert outcomes(result) == ["advised"]
    assert told(result) == []


async def test_a_late_async_observer_leaves_no_complaint_behind(caplog: pytest.LogCaptureFixture) -> None:
    clock = TestClock()

    async def rude(context: ObserverContext) -> None:
        try:
            await clock.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        raise ValueError("late")

    class Rude(Async):
        async def observe(self, session: Session, *, context: ObserverContext) -> Any:
            await rude(context)

    collect_garbage()  # what earlier tests left behind may complain
    caplog.clear()
    with caplog.at_level(logging.ERROR, "asyncio"):
        result = await play(watched(ObserverConfig(Rude(), ALWAYS, time_limit="5s")), looks(1), clock=clock)
        for _ in range(3):
            await asyncio.sleep(0)
        collect_garbage()
    assert outcomes(result) == ["overran"]
    assert "never retrieved" not in caplog.text


# --- files, answers, subagents ----------------------------------------------------------------------------------------


async def test_a_file_that_appears_while_its_source_is_quiet_is_told_afterwards() -> None:
    files, asked = MemoryFilesystem(), list[int]()

    def note(context: ObserverContext) -> Assessment:
        asked.append(context.tool_call_count)
        return Assessment("x", "it is there")

    @tool
    def act(a: int = 0) -> str:
        """Write the file in the third call."""
        if a == 3:
            files.write_text("alarm.txt", "!")
        return "done"

    class Early(Watcher):
        def should_run(self, session: Session, *, context: ObserverContext) -> bool:
            return context.tool_call_count == 1 or files.exists("alarm.txt")

    trigger = ObserverTrigger(when_file_exists="alarm.txt", after_consecutive_errors=1)
    answer = Call("answer_advice", {"source": "Watcher", "action": "dismiss", "reason": "no", "for_calls": 4})
    broken = Call("act", {"a": "no number"})
    script = [broken, answer, *(Call("act", {"a": number}) for number in range(2, 9)), Say(Report(0))]
    template = watched(ObserverConfig(Early(note), trigger), tools=(act, *answer_section().tools))
    await play(template, script, filesystem=files)
    assert asked == [1, 7]


async def test_a_folder_is_no_file() -> None:
    files = MemoryFilesystem()
    files.make_dirs("alarm.txt")
    config = ObserverConfig(Watcher(), ObserverTrigger(when_file_exists="alarm.txt"))
    assert told(await play(watched(config), looks(2), filesystem=files)) == []


async def test_a_source_that_spoke_long_ago_can_be_answered() -> None:
    class Once(Watcher):
        def should_run(self, session: Session, *, context: ObserverContext) -> bool:
            return context.tool_call_count == 1

    once = ObserverConfig(Once(name="Early"), ALWAYS)
    answer = Call("answer_advice", {"source": "Early", "action": "dismiss", "reason": "seen"})
    template = watched(once, Watcher(name="Chatty"), tools=(*watched().tools, *answer_section().tools))
    result = await play(template, [*looks(60)[:-1], answer, Say(Report(0))])
    assert [each.source for each in events(result, AdviceAcknowledged)] == ["Early"]


@pytest.mark.spec("FR-139")
async def test_a_subagent_answers_for_its_own_calls_and_advice_only() -> None:
    heard: list[tuple[int, int]] = []

    def warn(context: ObserverContext) -> Assessment:
        heard.append((context.tool_call_count, context.trajectory.count))
        return grave(context)

    @tool
    def look(a: int = 0) -> str:
        """Look."""
        return f"saw {a}"

    config = ObserverConfig(Watcher(warn), ALWAYS, escalate=Escalation(after=3, action="stop"))
    below = PromptTemplate[str](
        ns="t", key="below", sections=[MarkdownSection("Part", "part", "Do a part.", tools=(look,))], observers=[config]
    )
    dispatch = PromptSubagentToolsSection(PromptRegistry(below))
    above = PromptTemplate[str](
        ns="t",
        key="above",
        sections=[MarkdownSection("Whole", "whole", "Do it.", tools=(look,)), dispatch],
        observers=[config],
    )
    start = Call(
        "dispatch_subagent", {"mode": "ad_hoc", "prompt_ns": "t", "prompt_key": "below", "instructions": "Go on."}
    )
    mine = iter([Call("look", {"a": 1}), Calls((Call("look", {"a": 2}), Call("look", {"a": 3}))), start, Say("done")])
    theirs = iter([Call("look", {"a": 4}), Call("look", {"a": 5}), Say("found")])

    def model(request: ModelRequest) -> Any:
        return next(mine if any(spec.name == "dispatch_subagent" for spec in request.tools) else theirs)

    result = await play(above, ScriptedModel(model))
    assert heard[:2] == [(1, 1), (3, 3)]
    assert heard[2:4] == [(1, 1), (2, 2)]
    assert result.stop is not None  # the parent's own third warning; its subagent had two of its own
    assert result.stop.reason == "escalated"
    dispatched = result.session[ToolInvoked].all()[3]
    assert dispatched.outcome == "ok"
    assert "found" in dispatched.rendered_output
