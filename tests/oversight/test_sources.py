"""Where sources are asked: what is marked for the loop there, the rest in one hand-off, everybody in their order."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest

from tests.kit import Report, events, play
from tests.oversight.support import ALWAYS, Watcher, looks, watched
from watchkeeper.core import workers
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.cascade import ErrorCascadeDetector
from watchkeeper.observers.drift import DriftDetector
from watchkeeper.observers.resources import PaceEstimator, ResourceObserver
from watchkeeper.observers.stall import StallDetector
from watchkeeper.prompt.advice import Assessment, Feedback
from watchkeeper.prompt.observer import (
    FeedbackContext,
    FeedbackProviderConfig,
    ObserverConfig,
    ObserverContext,
    is_on_loop,
    on_loop,
)
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.session.session import Session

Asked = list[tuple[str, str, bool]]
"""Who was asked, by which method, and whether on the loop's thread."""


class Recording:
    """Notes where its methods run."""

    def __init__(self, name: str, asked: Asked, wanted: object = True) -> None:
        self.name = name
        self.asked = asked
        self.wanted = wanted
        self.loop = threading.get_ident()

    def note(self, method: str) -> None:
        self.asked.append((self.name, method, threading.get_ident() == self.loop))

    def should_run(self, session: Session, *, context: ObserverContext) -> Any:
        self.note("should_run")
        return self.wanted

    def observe(self, session: Session, *, context: ObserverContext) -> Any:
        self.note("observe")
        return Assessment(self.name, "after " + (", ".join(each.source for each in context.advice) or "nobody"))


class Glancing(Recording):
    """Decides on the loop."""

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> Any:
        return super().should_run(session, context=context)


class Brief(Glancing):
    """Does all of it on the loop."""

    @on_loop
    def observe(self, session: Session, *, context: ObserverContext) -> Any:
        return super().observe(session, context=context)


class GlancingAsync(Glancing):
    """Decides on the loop, without a task of its own, and speaks in one."""

    async def observe(self, session: Session, *, context: ObserverContext) -> Any:
        return super().observe(session, context=context)


@pytest.fixture
def hand_offs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every hand-off of sources to a thread."""
    made: list[object] = []

    async def counting(fn: Any, *args: Any, **options: Any) -> Any:
        made.append(fn)
        return await workers.run_in_worker(fn, *args, **options)

    monkeypatch.setattr("watchkeeper.oversight.sources.run_in_worker", counting)
    return made


def summaries(result: Any) -> list[str]:
    """Return what was said, in order."""
    return [each.summary for each in result.session[Assessment].all()]


@pytest.mark.spec("FR-138")
async def test_what_is_marked_runs_on_the_loop_and_nothing_else_does(hand_offs: list[object]) -> None:
    asked: Asked = []
    sources = (Brief("Brief", asked), Glancing("Glancing", asked), Recording("Plain", asked))
    result = await play(watched(*sources), looks(1))
    assert asked == [
        ("Brief", "should_run", True),
        ("Brief", "observe", True),
        ("Glancing", "should_run", True),
        ("Glancing", "observe", False),
        ("Plain", "should_run", False),
        ("Plain", "observe", False),
    ]
    assert len(hand_offs) == 1
    assert summaries(result) == ["after nobody", "after Brief", "after Brief, Glancing"]


async def test_whoever_follows_one_on_a_thread_is_asked_there_with_it(hand_offs: list[object]) -> None:
    asked: Asked = []
    result = await play(watched(Recording("Plain", asked), Brief("Brief", asked)), looks(1))
    assert [on_loop for _, _, on_loop in asked] == [False] * 4
    assert len(hand_offs) == 1
    assert summaries(result) == ["after nobody", "after Plain"]


@pytest.mark.spec("FR-138")
async def test_where_all_decline_at_a_glance_no_thread_is_woken(hand_offs: list[object]) -> None:
    asked: Asked = []
    sources = (Glancing("One", asked, False), GlancingAsync("Two", asked, False), Brief("Three", asked, False))
    result = await play(watched(*sources), looks(3))
    assert len(asked) == 9
    assert hand_offs == []
    assert events(result, ObserversRan) == []


async def test_a_glance_decides_for_an_async_source_and_order_is_kept(hand_offs: list[object]) -> None:
    asked: Asked = []
    sources = (GlancingAsync("Async", asked), Recording("Plain", asked), GlancingAsync("Last", asked))
    result = await play(watched(*sources), looks(1))
    assert [(name, method) for name, method, _ in asked] == [
        (name, method) for name in ("Async", "Plain", "Last") for method in ("should_run", "observe")
    ]
    assert {name for name, _, on_loop in asked if on_loop} == {"Async", "Last"}
    assert len(hand_offs) == 1
    assert summaries(result) == ["after nobody", "after Async", "after Async, Plain"]


async def test_an_async_source_that_is_asked_without_a_glance_may_have_a_marked_half() -> None:
    class Later(GlancingAsync):
        async def should_run(self, session: Session, *, context: ObserverContext) -> Any:
            self.note("should_run")
            return True

        @on_loop
        def observe(self, session: Session, *, context: ObserverContext) -> Any:
            self.note("observe")
            return Assessment(self.name, "seen")

    asked: Asked = []
    result = await play(watched(Later("Later", asked)), looks(1))
    assert asked == [("Later", "should_run", True), ("Later", "observe", True)]
    assert summaries(result) == ["seen"]


@pytest.mark.parametrize("error", [ValueError("no idea"), asyncio.CancelledError("odd"), TimeoutError("slow")])
@pytest.mark.parametrize("half", ["should_run", "observe"])
async def test_one_that_raises_on_the_loop_is_recorded_and_the_run_goes_on(error: BaseException, half: str) -> None:
    class Raising(Brief):
        def note(self, method: str) -> None:
            if method == half:
                raise error

    result = await play(watched(Raising("Raises", []), Watcher(name="Other")), looks(1))
    first, other = events(result, ObserversRan)[0].runs
    assert (first.source, first.outcome) == ("Raises", "failed")
    assert type(error).__name__ in (first.error or "")
    assert (other.source, other.outcome) == ("Other", "advised")
    assert result.output == Report(1)


@pytest.mark.spec("FR-138")
@pytest.mark.parametrize(("kind", "half"), [(Brief, "should_run"), (Brief, "observe"), (Glancing, "should_run")])
async def test_one_that_overruns_its_time_on_the_loop_is_off_and_what_it_said_is_lost(
    kind: type[Recording], half: str
) -> None:
    clock = TestClock()

    class Slow(kind):  # type: ignore[valid-type,misc]
        def note(self, method: str) -> None:
            super().note(method)
            if method == half:
                clock.advance(5.1)

    asked: Asked = []
    slow = ObserverConfig(Slow("Slow", asked), ALWAYS, time_limit="5s")
    result = await play(watched(slow, Watcher(name="Other")), looks(2), clock=clock)
    first, second = events(result, ObserversRan)
    assert [(ran.source, ran.outcome) for ran in first.runs] == [("Slow", "overran"), ("Other", "advised")]
    assert "took longer than 5s and is off for the rest of the run" in (first.runs[0].error or "")
    assert [ran.source for ran in second.runs] == ["Other"]
    assert len([each for each in asked if each[1] == "should_run"]) == 1
    assert result.output == Report(2)


async def test_one_that_overran_on_a_thread_after_a_glance_does_not_decide_for_the_next() -> None:
    release, begun = threading.Event(), threading.Event()

    class Hanging(Glancing):
        def observe(self, session: Session, *, context: ObserverContext) -> Any:
            begun.set()
            release.wait(30)

    clock, asked = TestClock(), Asked()
    hanging = ObserverConfig(Hanging("Hangs", asked), ALWAYS, time_limit="5s")
    running = asyncio.create_task(play(watched(hanging, Recording("Next", asked, False)), looks(1), clock=clock))
    assert await asyncio.to_thread(begun.wait, 30)
    clock.advance(5.1)
    result = await running
    release.set()
    assert [(ran.source, ran.outcome) for ran in events(result, ObserversRan)[0].runs] == [("Hangs", "overran")]
    assert [(name, method) for name, method, _ in asked] == [("Hangs", "should_run"), ("Next", "should_run")]


async def test_a_feedback_provider_may_be_marked_too(hand_offs: list[object]) -> None:
    class Judge:
        name = "Judge"

        @on_loop
        def should_run(self, *, context: FeedbackContext) -> bool:
            return True

        @on_loop
        def provide(self, *, context: FeedbackContext) -> Feedback:
            return Feedback(self.name, "well done")

    result = await play(watched(feedback_providers=[FeedbackProviderConfig(Judge(), ALWAYS)]), looks(1))
    assert [each.summary for each in result.session[Feedback].all()] == ["well done"]
    assert hand_offs == []


@pytest.mark.spec("FR-138")
async def test_a_run_in_which_nothing_is_wrong_wakes_no_thread_for_the_observers_that_ship(
    hand_offs: list[object],
) -> None:
    ship = (ResourceObserver(), PaceEstimator(), StallDetector(), ErrorCascadeDetector(), DriftDetector())
    result = await play(watched(*ship), looks(30))
    assert result.output == Report(30)
    assert {ran.source for each in events(result, ObserversRan) for ran in each.runs} == {"Resources"}
    assert hand_offs == []


def test_a_coroutine_function_is_not_marked() -> None:
    with pytest.raises(ObserverError, match=r"means nothing for .*later: it is `async def`"):

        @on_loop
        async def later() -> bool:
            return True


@pytest.mark.parametrize("odd", [5, property(lambda self: True), print])
def test_what_is_no_function_is_not_marked(odd: Any) -> None:
    with pytest.raises(ObserverError, match="@on_loop marks a function in its class"):
        on_loop(odd)


def test_the_mark_is_found_through_static_methods_and_not_through_async_wrappers() -> None:
    class Odd:
        @on_loop
        @staticmethod
        def should_run(session: Session, *, context: ObserverContext) -> bool:
            return True

        @on_loop
        @classmethod
        def observe(cls, session: Session, *, context: ObserverContext) -> None:
            return None

        @functools.wraps(Brief.observe)
        async def later(self) -> None:
            return None

    assert is_on_loop(Odd().should_run)
    assert is_on_loop(Odd().observe)
    assert not is_on_loop(Odd().later)


def test_an_override_is_not_marked_unless_it_says_so() -> None:
    assert is_on_loop(Brief("Brief", []).observe)
    assert not is_on_loop(GlancingAsync("Async", []).observe)
    assert not is_on_loop(Recording("Plain", []).should_run)
