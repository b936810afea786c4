"""Misbehaving observers: none ends a run, floods a conversation or runs longer than its time."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tests.kit import Call, Calls, Report, Say, ScriptedModel, events, left_of, play
from tests.oversight.support import ALWAYS, PATIENCE, Watcher, delivered, look, looks, watched
from watchkeeper import Adapter, Prompt, Session
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, FilesystemError
from watchkeeper.oversight.engine import Oversight
from watchkeeper.prompt.advice import MOST_ITEMS, Assessment, Feedback, Observation
from watchkeeper.prompt.observer import (
    Escalation,
    FeedbackContext,
    FeedbackProviderConfig,
    ObserverConfig,
    ObserverContext,
    ObserverTrigger,
)
from watchkeeper.prompt.trajectory import digest
from watchkeeper.runtime.advice_events import AdviceAcknowledged, EscalationTaken, ObserversRan, SourceRan
from watchkeeper.session.slices import SliceView
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.tool import tool
from watchkeeper.tools.values import ToolResult

AT = datetime(2026, 11, 21, tzinfo=UTC)


@tool
async def look_later(a: int = 0) -> str:
    """Look later."""
    await asyncio.sleep(0)
    return f"saw {a}"


def rounds(result: Any) -> list[list[tuple[str, str]]]:
    """Return what came of each round."""
    return [[(ran.source, ran.outcome) for ran in each.runs] for each in events(result, ObserversRan)]


# --- what they return -------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-153")
@pytest.mark.parametrize(
    "said",
    [
        lambda: Assessment("x", "y" * 5_000_000),
        lambda: Assessment("x", "y", suggestions=("s" * 5_000_000,) * 500),
        lambda: Assessment("x", "y", (Observation("c" * 10_000, "d" * 5_000_000, "e" * 5_000_000),) * 500),
    ],
)
async def test_megabytes_are_shortened_with_a_note(said: Callable[[], Assessment]) -> None:
    result = await play(watched(Watcher(lambda context: said())), looks(1))
    (notice,) = delivered(result)
    assert len(notice.text) < 7_000 * MOST_ITEMS
    assert "more characters]" in notice.text
    assert result.output == Report(1)


@pytest.mark.spec("TO-002")
@pytest.mark.parametrize(
    "said",
    [
        lambda: Assessment("x", "y", ("not an observation",)),  # type: ignore[arg-type]
        lambda: Assessment("x", "y", suggestions="one text"),  # type: ignore[arg-type]
        lambda: Assessment("x", "y", suggestions=(1,)),  # type: ignore[arg-type]
        lambda: Assessment("x", 7),  # type: ignore[arg-type]
        lambda: Assessment(7, "y"),  # type: ignore[arg-type]
        lambda: Assessment("x", "y", (Observation("c", "d", b"e"),)),  # type: ignore[arg-type]
        lambda: Assessment("x", "y", severity="grave"),  # type: ignore[arg-type]
        lambda: "z" * 5_000_000,
    ],
)
async def test_what_could_not_be_rendered_is_refused_where_it_is_made(said: Callable[[], Any]) -> None:
    result = await play(watched(Watcher(lambda context: said())), looks(1))
    assert rounds(result) == [[("Watcher", "failed")]]
    assert len(events(result, ObserversRan)[0].runs[0].error or "") < 600
    assert result.output == Report(1)


async def test_a_users_own_kind_of_assessment_is_kept_as_an_assessment() -> None:
    @dataclass(frozen=True)
    class Mine(Assessment):
        extra: Any = None

    result = await play(watched(Watcher(lambda context: Mine("x", "y", extra=threading.Lock()))), looks(1))
    assert [type(advice) for advice in result.session[Assessment].all()] == [Assessment]


# --- what they raise --------------------------------------------------------------------------------------------------


class Unspeakable(Exception):
    """Cannot even be written."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.spec("TO-011")
@pytest.mark.parametrize("error", [asyncio.CancelledError(), Unspeakable(), StopIteration(), TimeoutError("mine")])
async def test_whatever_is_raised_is_recorded_and_the_run_goes_on(error: BaseException) -> None:
    def fail(context: ObserverContext) -> Any:
        raise error

    result = await play(watched(Watcher(fail), Watcher(lambda context: Assessment("x", "y"), "Other")), looks(1))
    assert rounds(result) == [[("Watcher", "failed"), ("Other", "advised")]]
    assert type(error).__name__ in (events(result, ObserversRan)[0].runs[0].error or "")
    assert result.output == Report(1)


async def test_one_that_wants_to_end_the_program_may() -> None:
    def leave(context: ObserverContext) -> Any:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await play(watched(Watcher(leave)), looks(1))


async def test_one_that_fails_is_asked_again_at_its_cadence_and_not_at_every_call() -> None:
    def fail(context: ObserverContext) -> Any:
        raise ValueError("always")

    result = await play(watched(ObserverConfig(Watcher(fail), ObserverTrigger(every_n_calls=3))), looks(9))
    assert [ran.call_index for ran in events(result, ObserversRan)] == [3, 6, 9]


# --- what they do -----------------------------------------------------------------------------------------------------


async def test_one_that_writes_to_the_session_is_no_danger_to_the_run() -> None:
    @dataclass(frozen=True)
    class Seen:
        calls: int

    def write(context: ObserverContext) -> Assessment:
        context.session.dispatch(Seen(context.tool_call_count))
        return Assessment("x", "y")

    result = await play(watched(Watcher(write)), looks(3))
    assert [seen.calls for seen in result.session[Seen].all()] == [1, 2, 3]
    assert rounds(result) == [[("Watcher", "advised")]] * 3


async def test_one_that_resets_the_session_is_survived() -> None:
    def reset(context: ObserverContext) -> Assessment:
        context.session.reset()
        return Assessment("x", "y")

    result = await play(watched(Watcher(reset)), looks(3))
    assert result.output == Report(3)
    assert len(delivered(result)) == 3


async def test_one_that_makes_up_tool_calls_does_not_keep_the_engine_busy() -> None:
    def invent(context: ObserverContext) -> Assessment:
        latest = context.session[ToolInvoked].latest()
        context.session.dispatch(latest)
        return Assessment("x", "y")

    result = await play(watched(Watcher(invent)), looks(3))
    assert result.output == Report(3)
    assert len(events(result, ObserversRan)) == 3


async def test_one_that_empties_what_it_is_given_harms_those_behind_it_and_not_the_run() -> None:
    def spoil(context: ObserverContext) -> Assessment:
        given: Any = context
        with pytest.raises(AttributeError):
            given.budget = None
        given.advice.clear()
        given.severities.clear()
        return Assessment("x", "y")

    result = await play(watched(Watcher(lambda context: Assessment("x", "a"), "First"), Watcher(spoil)), looks(2))
    assert rounds(result) == [[("First", "advised"), ("Watcher", "advised")]] * 2
    assert len(result.session[Assessment].all()) == 4


async def test_what_one_says_that_was_left_behind_is_lost() -> None:
    clock, release, begun, over = TestClock(), threading.Event(), threading.Event(), threading.Event()
    heard: list[list[str]] = []

    def hang(context: ObserverContext) -> Assessment:
        begun.set()
        release.wait(PATIENCE)
        over.set()
        return Assessment("x", "late")

    def listen(context: ObserverContext) -> None:
        release.set()
        over.wait(PATIENCE)
        heard.append([advice.summary for advice in context.assessments])

    template = watched(ObserverConfig(Watcher(hang, "Hangs"), ALWAYS, time_limit="5s"), Watcher(listen, "Listener"))
    running = asyncio.create_task(play(template, looks(1), clock=clock))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    clock.advance(6)
    result = await running
    assert heard == [[]]
    assert rounds(result) == [[("Hangs", "overran")]]


async def test_after_the_run_was_cancelled_no_further_observer_is_asked() -> None:
    release, begun, done = threading.Event(), threading.Event(), threading.Event()
    asked: list[str] = []

    def wait(context: ObserverContext) -> None:
        begun.set()
        release.wait(PATIENCE)
        done.set()

    template = watched(Watcher(wait, "First"), Watcher(lambda context: asked.append("Second"), "Second"))
    running = asyncio.create_task(play(template, looks(1)))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    release.set()
    assert await asyncio.to_thread(done.wait, PATIENCE)
    await asyncio.to_thread(lambda: None)
    assert asked == []


async def test_the_plain_half_of_an_async_observer_does_not_run_on_the_loop() -> None:
    loops = threading.get_ident()
    threads: list[int] = []

    class Half:
        name = "Half"

        def should_run(self, session: Session, *, context: ObserverContext) -> bool:
            threads.append(threading.get_ident())
            return True

        async def observe(self, session: Session, *, context: ObserverContext) -> Assessment:
            assert threading.get_ident() == loops
            return Assessment("x", "y")

    class Cancelled(Half):
        name = "Cancelled"

        def should_run(self, session: Session, *, context: ObserverContext) -> bool:
            raise asyncio.CancelledError

    result = await play(watched(Half(), Cancelled()), looks(1))
    assert rounds(result) == [[("Half", "advised"), ("Cancelled", "failed")]]
    assert loops not in threads


async def test_an_async_observer_that_has_nothing_to_say_leaves_no_trace() -> None:
    class Silent:
        name = "Silent"

        async def should_run(self, session: Session, *, context: ObserverContext) -> bool:
            return context.tool_call_count > 1

        async def observe(self, session: Session, *, context: ObserverContext) -> None:
            return None

    assert rounds(await play(watched(Silent()), looks(3))) == []


async def test_the_session_may_be_used_from_another_thread_meanwhile() -> None:
    @dataclass(frozen=True)
    class Note:
        number: int

    session, stop = Session(), threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set() and number < 5_000:
            session.dispatch(Note(number))
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    result = await play(watched(Watcher(lambda context: Assessment("x", "y"))), looks(30), session=session)
    stop.set()
    await asyncio.to_thread(thread.join, PATIENCE)
    assert [advice.call_index for advice in result.session[Assessment].all()] == list(range(1, 31))


# --- files, reducers, tools, adapters ---------------------------------------------------------------------------------


class Broken(MemoryFilesystem):
    """Cannot say whether a file is there."""

    def kind(self, path: str) -> Any:
        raise FilesystemError("the disk is gone")

    def read_only_view(self) -> Any:
        return self


@pytest.mark.spec("FR-135")
async def test_a_file_that_cannot_be_looked_for_is_reported_once() -> None:
    waits = ObserverConfig(Watcher(lambda context: None, "Waits"), ObserverTrigger(when_file_exists="a.txt"))
    template = watched(waits, Watcher(lambda context: Assessment("x", "y")))
    result = await play(template, looks(3), filesystem=Broken())
    assert rounds(result)[0] == [("Waits", "failed"), ("Watcher", "advised")]
    assert rounds(result)[1:] == [[("Watcher", "advised")]] * 2
    assert "when_file_exists: FilesystemError: the disk is gone" in (
        events(result, ObserversRan)[0].runs[0].error or ""
    )


async def test_without_files_an_awaited_file_never_appears() -> None:
    waits = ObserverConfig(Watcher(lambda context: Assessment("x", "y")), ObserverTrigger(when_file_exists="a.txt"))
    assert rounds(await play(watched(waits), looks(2))) == []


async def test_a_reducer_of_the_users_that_fails_costs_no_advice() -> None:
    session = Session()

    @dataclass(frozen=True)
    class Count:
        number: int

    def fails(view: SliceView[Count], event: ObserversRan) -> Any:
        raise ValueError("mine")

    session[Count].register(ObserversRan, fails)
    said = Watcher(lambda context: Assessment("x", f"y {context.tool_call_count}"))
    result = await play(watched(said), looks(2), session=session)
    assert len(delivered(result)) == 2
    assert result.output == Report(2)


@pytest.mark.spec("TO-011")
async def test_tools_that_run_side_by_side_are_looked_at_once_all_are_done() -> None:
    seen: list[int] = []
    watcher = Watcher(lambda context: seen.append(context.tool_call_count))
    template = watched(watcher, tools=(look, look_later))
    both = Calls(tuple(Call("look_later", {"a": number}) for number in range(5)))
    await play(template, [both, both, Say(Report(1))])
    assert seen == [5, 10]


@pytest.mark.spec("FR-136")
async def test_a_call_that_escalation_makes_is_not_waited_for_forever() -> None:
    clock, release, begun = TestClock(), threading.Event(), threading.Event()

    def hang(advice: Any) -> None:
        begun.set()
        release.wait(PATIENCE)

    def grave(context: ObserverContext) -> Assessment:
        return Assessment("x", "y", severity="warning")

    for limits, passed, said in (
        (Limits(deadline="1h"), 6, "took longer than 5s"),
        (Limits(deadline="2s", landing=None), 3, "the run was over before the call had ended"),
    ):
        begun.clear()
        escalate = Escalation(1, action="call", call=hang)
        config = ObserverConfig(Watcher(grave), ALWAYS, time_limit="5s", escalate=escalate)
        running = asyncio.create_task(play(watched(config), looks(1), limits, clock=clock))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        clock.advance(passed)
        result = await running
        assert said in events(result, EscalationTaken)[0].detail
    release.set()


async def test_an_adapter_has_observers_too() -> None:
    model = ScriptedModel(looks(2))
    session = Session()
    prompt = Prompt(watched(Watcher(lambda context: Assessment("x", "y"))))
    response = await Adapter(model).evaluate_async(prompt, session=session)
    assert response.output == Report(2)
    assert [advice.call_index for advice in session[Assessment].all()] == [1, 2]


async def test_an_adapter_has_no_other_model_to_escalate_to_and_says_so() -> None:
    escalate = Escalation(1, action="switch_model", model=ScriptedModel([]))
    template = watched(ObserverConfig(Watcher(lambda context: None), ALWAYS, escalate=escalate))
    with pytest.raises(ConfigurationError, match="the advice of 'Watcher' cannot escalate"):
        await Adapter(ScriptedModel(looks(1))).evaluate_async(Prompt(template))


@pytest.mark.spec("NE-018")
async def test_what_failed_for_a_provider_is_recorded_as_for_an_observer() -> None:
    class Judge:
        name = "Judge"

        async def should_run(self, *, context: FeedbackContext) -> bool:
            return True

        async def provide(self, *, context: FeedbackContext) -> Any:
            return Assessment("x", "y") if context.tool_call_count == 1 else Feedback("x", "y")

    template = watched(feedback_providers=[FeedbackProviderConfig(Judge(), ALWAYS)])
    result = await play(template, looks(2))
    assert rounds(result) == [[("Judge", "failed")], [("Judge", "advised")]]
    assert "provide() must return Feedback or None" in (events(result, ObserversRan)[0].runs[0].error or "")


def unheard(session: Session, at: int = 1) -> None:
    """Leave a session as a run does that was broken off before it could deliver what was said."""
    advice = Assessment("Watcher", "old", timestamp=session.clock.now(), call_index=at)
    session.dispatch(ObserversRan(at, (SourceRan("Watcher", "advised", advice),), session.clock.now()))


@pytest.mark.spec("TO-004")
@pytest.mark.parametrize(("calls", "told"), [(3, ["old"]), (4, [])])
async def test_what_was_not_delivered_is_told_by_the_next_run_unless_it_is_too_old(calls: int, told: list[str]) -> None:
    session = Session()
    unheard(session)
    seldom = ObserverTrigger(every_n_calls=100)
    template = watched(ObserverConfig(Watcher(lambda context: None), seldom, max_age_calls=2))
    many = Calls(tuple(Call("look", {"a": number}) for number in range(calls)))
    result = await play(template, [many, *looks(2)], session=session)
    assert [notice.text.rpartition("\n")[2] for notice in delivered(result)] == told


async def test_what_was_answered_before_it_was_delivered_is_not_told() -> None:
    session = Session()
    unheard(session)
    session.dispatch(AdviceAcknowledged("Watcher", "dismiss", 5, 1))
    result = await play(watched(Watcher(lambda context: None)), looks(8), session=session)
    assert not delivered(result)


async def test_a_later_run_of_the_session_has_limits_and_observers_of_its_own() -> None:
    clock, release, begun = TestClock(), threading.Event(), threading.Event()

    def hang(context: ObserverContext) -> Assessment:
        if not begun.is_set():
            begun.set()
            release.wait(PATIENCE)
        return Assessment("x", "y")

    shares = ObserverTrigger(at_limit_share=(0.5, 0.8))
    template = watched(
        ObserverConfig(Watcher(hang, "Hangs"), ALWAYS, time_limit="5s"),
        ObserverConfig(Watcher(lambda context: Assessment("x", "y"), "Shares"), shares),
    )
    limits = Limits(deadline=None, max_tool_calls=10)
    running = asyncio.create_task(play(template, looks(8), limits, clock=clock))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    clock.advance(6)
    first = await running
    release.set()
    session = first.session
    before = session.snapshot()
    assert rounds(first) == [[("Hangs", "overran")], [("Shares", "advised")], [("Shares", "advised")]]

    await play(template, looks(8), limits, clock=clock, session=session)
    later = [(ran.call_index, [each.source for each in ran.runs]) for ran in session[ObserversRan].all()[3:]]
    assert [index for index, sources in later if "Shares" in sources] == [13, 16]
    assert [index for index, sources in later if "Hangs" in sources] == list(range(9, 17))
    session.rollback(before)
    assert len(session[ObserversRan].all()) == 3


async def test_nothing_of_the_engine_is_alive_after_the_run() -> None:
    engines: weakref.WeakSet[Oversight] = weakref.WeakSet()

    def note(context: ObserverContext) -> Assessment:
        engines.update(each for each in gc.get_objects() if isinstance(each, Oversight))
        return Assessment("x", "y")

    others = {id(each) for each in gc.get_objects() if isinstance(each, Oversight)}
    result = await play(watched(Watcher(note)), looks(3))
    assert result.output == Report(3)
    assert left_of(weakref.ref(each) for each in engines if id(each) not in others) == 0


def test_arguments_that_have_no_json_are_digested_all_the_same() -> None:
    params = {object: 1}
    invoked = ToolInvoked(
        "n/k", "a", "look", params, ToolResult.ok(1, "1"), None, AT, None, "1", "c", UUID(int=1), "ok"
    )
    assert digest(invoked, 1).kind == digest(invoked, 2).kind
