"""Oversight from end to end: advice that is followed saves a run; advice survives rollback, continuation and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Call, Report, Say, ScriptedModel, events, play
from watchkeeper import Session, Snapshot
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Step
from watchkeeper.app.run import arun, arun_many
from watchkeeper.core.clock import TestClock
from watchkeeper.core.messages import UserMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.observers.acknowledge import answer_section
from watchkeeper.observers.cascade import ErrorCascadeDetector
from watchkeeper.observers.drift import DriftDetector
from watchkeeper.observers.resources import PaceEstimator, ResourceObserver
from watchkeeper.observers.stall import StallDetector
from watchkeeper.prompt.advice import Assessment, Feedback
from watchkeeper.prompt.observer import (
    Escalation,
    FeedbackContext,
    FeedbackProviderConfig,
    ObserverConfig,
    ObserverTrigger,
)
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.advice_events import AdviceAcknowledged, EscalationTaken, ObserversRan
from watchkeeper.runtime.events import NoticeAppended
from watchkeeper.runtime.result import transcript_of
from watchkeeper.session.tagging import dump, load
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.tool import tool

ALWAYS = ObserverTrigger(on_every_call=True)
OVERSIGHT = (AdviceAcknowledged, EscalationTaken, ObserversRan)


@tool
def search(query: str) -> str:
    """Search the archive."""
    return "nothing found"


@dataclass(frozen=True)
class Judge:
    """A feedback provider."""

    name: str = "Judge"

    def should_run(self, *, context: FeedbackContext) -> bool:
        return context.tool_call_count == 2

    def provide(self, *, context: FeedbackContext) -> Feedback:
        return Feedback(self.name, "Half of it is done.")


def searcher(*observers: ObserverConfig, **fields: Any) -> PromptTemplate[Report]:
    """Return an agent that searches."""
    sections = [
        MarkdownSection(title="Task", key="task", template="Find the invoice.", tools=(search,)),
        answer_section(),
    ]
    return PromptTemplate[Report](ns="t", key="searcher", sections=sections, observers=observers, **fields)


def stubborn(request: ModelRequest) -> Step:
    """Search the same again and again; obey an assessment that calls it a stall."""
    if request.tool_choice == "none":
        return Say(Report(0, "ran out"))
    newest = request.transcript[-1]
    if isinstance(newest, UserMessage) and "### Stall [" in newest.text:
        return Say(Report(1, "there is none"))
    return Call("search", {"query": "invoice"})


@pytest.mark.spec("TO-010")
async def test_a_looping_agent_that_is_told_finishes_and_one_that_is_not_burns_its_budget() -> None:
    limits = Limits(deadline=None, max_tool_calls=40)
    told = await play(searcher(ObserverConfig(StallDetector(), ALWAYS)), ScriptedModel(stubborn), limits)
    left_alone = await play(searcher(), ScriptedModel(stubborn), limits)

    assert told.stop is None
    assert told.output == Report(1, "there is none")
    assert told.usage.tool_calls < 10
    (assessment,) = told.session[Assessment].all()
    assert (assessment.observer_name, assessment.call_index) == ("Stall", told.usage.tool_calls)
    assert "search(query=" in (assessment.observations[0].evidence or "")

    assert left_alone.stop is not None
    assert left_alone.stop.reason == "tool_call_limit_exceeded"
    assert left_alone.usage.tool_calls == 40
    assert left_alone.partial == Report(0, "ran out")
    assert left_alone.usage.tokens.total > 5 * told.usage.tokens.total


def everything() -> PromptTemplate[Report]:
    """Return an agent under every kind of source."""
    return searcher(
        ObserverConfig(ResourceObserver(), ALWAYS, escalate=Escalation(after=4, severity="info", action="stop")),
        ObserverConfig(StallDetector(), ALWAYS),
        ObserverConfig(PaceEstimator(), ALWAYS),
        ObserverConfig(ErrorCascadeDetector(), ALWAYS),
        ObserverConfig(DriftDetector(), ALWAYS),
        feedback_providers=[FeedbackProviderConfig(Judge(), ALWAYS)],
    )


async def everything_happened(**options: Any) -> Any:
    """Run it so that each event of oversight happens."""
    answer = Call("answer_advice", {"source": "Judge", "action": "dismiss", "reason": "No.", "for_calls": 5})
    script = [*[Call("search", {"query": "invoice"})] * 3, answer, *[Call("search", {"query": "invoice"})] * 3]
    limits = Limits(deadline="1h", max_cost_usd=5, max_tool_calls=40, max_steps=90)
    return await play(everything(), [*script, Say(Report(2))], limits, **options)


@pytest.mark.spec("FR-137")
async def test_every_event_of_oversight_comes_back_from_its_json() -> None:
    result = await everything_happened()
    happened = [envelope.event for envelope in result.session.log]
    for kind in OVERSIGHT:
        assert any(isinstance(event, kind) for event in happened), kind
    for event in happened:
        assert load(dump(event)) == event


@pytest.mark.spec("TO-026", "FR-137")
async def test_every_event_of_oversight_comes_back_from_the_store(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with RunStore(path) as store:
        result = await everything_happened(store=store)
    with RunStore(path) as store:
        kept = [stored.load() for stored in store.events(str(result.run_id))]
    said = [event for event in kept if isinstance(event, OVERSIGHT)]
    assert said == [envelope.event for envelope in result.session.log if isinstance(envelope.event, OVERSIGHT)]


@pytest.mark.spec("TO-026")
async def test_all_of_it_survives_a_snapshot_in_json() -> None:
    session = (await everything_happened()).session
    restored = Session()
    restored.rollback(Snapshot.from_json(session.snapshot().to_json()))
    for slice_type in (*OVERSIGHT, Assessment, Feedback):
        assert tuple(restored[slice_type].all()) == tuple(session[slice_type].all()), slice_type
        assert len(restored[slice_type].all()) > 0


def every(calls: int, **fields: Any) -> ObserverConfig:
    """Return an observer that says what is left every so many calls."""
    return ObserverConfig(ResourceObserver(), ObserverTrigger(every_n_calls=calls), **fields)


@pytest.mark.spec("TO-026")
async def test_cadence_and_quiet_go_on_in_a_session_made_of_a_snapshot() -> None:
    first = await play(searcher(every(3)), [*[Call("search", {"query": "a"})] * 4, Say(Report(1))])
    restored = Session()
    restored.rollback(Snapshot.from_json(first.session.snapshot().to_json()))
    second = await play(searcher(every(3)), [*[Call("search", {"query": "b"})] * 3, Say(Report(1))], session=restored)
    assert [ran.call_index for ran in events(second, ObserversRan)] == [6]
    assert [advice.call_index for advice in restored[Assessment].all()] == [3, 6]


async def test_a_row_of_advice_that_an_answer_or_an_escalation_ended_is_not_resumed() -> None:
    heard: list[str] = []
    escalate = Escalation(3, "info", "call", call=lambda advice: heard.append(advice.summary))
    looks = [Call("search", {"query": "a"})] * 2
    answer = Call("answer_advice", {"source": "Resources", "action": "acknowledge", "reason": "Yes.", "for_calls": 1})
    template = searcher(every(1, escalate=escalate))
    first = await play(template, [*looks, answer, Say(Report(1))])  # two, then none counts any more
    second = await play(template, [*looks, Say(Report(1))], session=first.session)
    assert not heard
    third = await play(template, [*looks, Say(Report(1))], session=second.session)
    assert len(heard) == 1
    await play(template, [*looks[:1], Say(Report(1))], session=third.session)
    assert len(heard) == 1


@pytest.mark.spec("FR-136")
async def test_silence_ends_a_row_of_grave_advice_also_after_a_rollback() -> None:
    @dataclass(frozen=True)
    class Sometimes:
        name: str = "Sometimes"

        def should_run(self, session: Session, *, context: Any) -> bool:
            return bool(context.tool_call_count != 2)

        def observe(self, session: Session, *, context: Any) -> Assessment:
            return Assessment(self.name, "Stop it.", severity="warning")

    template = searcher(ObserverConfig(Sometimes(), ALWAYS, escalate=Escalation(after=2)))
    first = await play(template, [*[Call("search", {"query": "a"})] * 3, Say(Report(1))])
    assert first.output == Report(1)
    restored = Session()
    restored.rollback(first.session.snapshot())
    second = await play(template, [Call("search", {"query": "a"}), Say(Report(1))], session=restored)
    assert second.stop is not None
    outcomes = [(ran.call_index, ran.runs[0].outcome) for ran in first.session[ObserversRan].all()]
    assert outcomes == [(1, "advised"), (2, "silent"), (3, "advised")]


async def test_items_side_by_side_share_observers_and_nothing_else() -> None:
    template = searcher(ObserverConfig(StallDetector(), ALWAYS), every(2))

    @dataclass(frozen=True)
    class Item:
        number: int

    result = await arun_many(
        template, [Item(number) for number in range(6)], model=ScriptedModel(stubborn), concurrency=6, store=None
    )
    assert len(result.results) == 6
    for each in result.results:
        assert each.output == Report(1, "there is none")
        calls = each.usage.tool_calls
        assert [advice.call_index for advice in each.session[Assessment].all() if advice.source == "Stall"] == [calls]


async def test_the_conversation_of_a_later_run_has_the_advice_in_it() -> None:
    first = await play(searcher(every(1)), [Call("search", {"query": "a"}), Say(Report(1))])
    seen: list[str] = []

    def answer(request: ModelRequest) -> Any:
        seen.extend(message.text for message in request.transcript)
        return Say(Report(2))

    await play(searcher(every(1)), ScriptedModel(answer), session=first.session)
    (notice,) = events(first, ObserversRan)
    assert seen.count(notice.text) == 1
    assert notice.told == ("Resources",)
    assert not events(first, NoticeAppended)  # the block is on the log once
    assert [message.text for message in transcript_of(first.session.log)].count(notice.text) == 1


async def test_a_run_without_observers_has_nothing_of_oversight_on_its_log() -> None:
    model = ScriptedModel([Call("search", {"query": "a"}), Say(Report(1))])
    result = await arun(searcher(), model=model, clock=TestClock(), store=None)
    assert not any(isinstance(envelope.event, OVERSIGHT) for envelope in result.session.log)
    assert not result.session[Assessment].all()


@pytest.mark.parametrize("calls", [1, 7, 450])
async def test_however_many_calls_each_is_observed_once(calls: int) -> None:
    script = [*[Call("search", {"query": str(number)}) for number in range(calls)], Say(Report(1))]
    result = await play(searcher(every(1)), script, Limits(deadline=None, max_turns=None))
    assert [advice.call_index for advice in result.session[Assessment].all()] == list(range(1, calls + 1))
