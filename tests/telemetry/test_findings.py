"""What is said of a run: verdicts and feedback as evaluation results, advice, incidents, state, and what it resumes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Call, Report, Say, ScriptedModel, agent, events, play, step
from tests.oversight.support import ALWAYS, Watcher, look, watched
from tests.telemetry.support import Kept, attributes, events_of, ids
from watchkeeper import Agent, Limits, ToolContext, tool
from watchkeeper.core.model import ModelRequest
from watchkeeper.events import RunResumed
from watchkeeper.prompt.advice import Feedback
from watchkeeper.prompt.completion import TaskCompletionChecker, TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.observer import FeedbackContext, FeedbackProviderConfig
from watchkeeper.session.log import event
from watchkeeper.telemetry import names


@dataclass
class Checks(TaskCompletionChecker):
    """Gives verdicts in turn."""

    verdicts: list[TaskCompletionResult]

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Give the next verdict."""
        return self.verdicts.pop(0)


async def test_a_verdict_is_an_evaluation_result(kept: Kept) -> None:
    checker = Checks([TaskCompletionResult.incomplete("half of it"), TaskCompletionResult.ok("all of it")])
    await play(agent(checker=checker), [Say(Report(1)), Say(Report(2))], telemetry=kept.telemetry)
    span = kept.named("invoke_agent tests/agent")
    results = events_of(span, names.EVALUATION)
    assert [(each[names.EVALUATION_LABEL], each[names.EVALUATION_VALUE]) for each in results] == [
        ("rejected", 0.0),
        ("verified", 1.0),
    ]
    assert results[0][names.EVALUATION_EXPLANATION] == "half of it"
    records = [record for record in kept.records if record.event_name == names.EVALUATION]
    assert [dict(record.attributes) for record in records] == results
    assert {f"{record.span_id:016x}" for record in records} == {ids(span)[1]}
    assert attributes(span)[names.COMPLETION] == "verified"


@dataclass(frozen=True)
class Judge:
    """Warns."""

    name: str = "Judge"

    def should_run(self, *, context: FeedbackContext) -> bool:
        """Always."""
        return True

    def provide(self, *, context: FeedbackContext) -> Feedback:
        """Say that it goes wrong."""
        return Feedback("Judge", "it goes in circles", severity="warning")


async def test_advice_is_an_event_and_a_judges_feedback_an_evaluation_too(kept: Kept) -> None:
    template = watched(Watcher(), feedback_providers=[FeedbackProviderConfig(Judge(), ALWAYS)])
    await play(template, [Call(look.name), Say(Report(1))], telemetry=kept.telemetry)
    span = kept.named("invoke_agent t/watched")
    advice = events_of(span, names.ASSESSMENT)
    assert [each["watchkeeper.assessment.source"] for each in advice] == ["Watcher", "Judge"]
    assert advice[1]["watchkeeper.assessment.summary"] == "it goes in circles"
    [result] = events_of(span, names.EVALUATION)
    assert (result[names.EVALUATION_NAME], result[names.EVALUATION_LABEL]) == ("Judge", "warning")


async def test_incidents_limits_and_deadline_are_told(kept: Kept) -> None:
    limits = Limits(deadline="30m", max_cost_usd="0.50", max_turns=2, landing=None)
    await play(agent(step), [Call("step"), Call("step")], limits, telemetry=kept.telemetry)
    span = kept.named("invoke_agent tests/agent")
    said = attributes(span)
    assert (said["watchkeeper.limit.max_turns"], said["watchkeeper.limit.max_cost_usd"]) == (2, 0.5)
    assert said[names.DEADLINE] == "2026-01-01T00:30:00+00:00"
    assert said[names.REMAINING] == 1800.0
    assert said[names.STOP_LIMIT] == "max_turns"


@event("tests.telemetry_noted")
@dataclass(frozen=True)
class Noted:
    """Something of the user's own."""

    secret: str


async def test_the_users_own_events_are_told_by_their_names_alone(kept: Kept) -> None:
    @tool
    def note(*, context: ToolContext) -> str:
        """Note something."""
        context.session.dispatch(Noted("private"))
        return "noted"

    await play(agent(note), [Call("note"), Say(Report(1))], telemetry=kept.telemetry)
    [said] = events_of(kept.named("invoke_agent tests/agent"), names.STATE)
    assert said["watchkeeper.state.event"] == "tests.telemetry_noted"
    assert "private" not in str(said)


def run_file(store: Path) -> Path:
    [file] = (store / "runs").glob("*.jsonl")
    return file


def by_turn(request: ModelRequest) -> Any:
    """Take a step, then answer."""
    return Call("step") if len(request.transcript) < 4 else Say("done")


@pytest.mark.parametrize("traced_before", [True, False])
def test_a_resumed_run_begins_a_trace_and_links_to_the_earlier_one(tmp_path: Path, traced_before: bool) -> None:
    store = tmp_path / "store"
    before, after = Kept(), Kept()
    worker = Agent(ScriptedModel(by_turn), "Work.", str, tools=[step], name="worker")
    given: Any = {"telemetry": before.telemetry} if traced_before else {}
    first = worker.run("go", store=store, **given)
    lines = run_file(store).read_bytes().splitlines(keepends=True)
    end = next(place for place, line in enumerate(lines) if b'"tag":"prompt_executed"' in line)
    run_file(store).write_bytes(b"".join(lines[:end]))  # as if its process had been killed before its end

    result = worker.resume(str(first.run_id), store=store, telemetry=after.telemetry)

    assert result.output == "done"
    [resumed] = events(result, RunResumed)
    span = after.named("invoke_agent agents/worker")
    assert resumed.run_context is not None
    assert ids(span) == (resumed.run_context.trace_id, resumed.run_context.span_id)
    [link] = span.links
    linked = f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}"
    assert linked[0] != ids(span)[0]
    if traced_before:
        assert linked == ids(before.named("invoke_agent agents/worker"))
    assert attributes(span)[names.RUN_ID] == str(first.run_id)
    assert attributes(span)[names.ATTEMPT] == 2
    assert events_of(span, "watchkeeper.run_resumed") != []
