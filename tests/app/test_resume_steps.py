"""Resuming behind the less usual steps: a summary, a model that took over, a further attempt, a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit import Report, always_down, down, events, named
from tests.loop.test_compaction import Reader, reader_agent
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.app.resume import resume
from watchkeeper.app.run import run
from watchkeeper.core.clock import TestClock
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.runtime.events import ContextCompacted
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import tool

TURNS = Limits(max_turns=40)


def file_of(store: Path, run_id: object) -> Path:
    """Return the file of a run."""
    return store / "runs" / f"{run_id}.jsonl"


def lines_of(store: Path, run_id: object) -> list[bytes]:
    """Return the lines of a run."""
    return file_of(store, run_id).read_bytes().splitlines(keepends=True)


def behind(lines: list[bytes], tag: str) -> int:
    """Return how many lines there are up to the first event of a type."""
    return next(place for place, line in enumerate(lines) if f'"tag":"{tag}"'.encode() in line) + 1


def test_a_run_goes_on_from_every_line_around_a_summary(tmp_path: Path) -> None:
    options: Any = {"on_context_full": "compact", "store": tmp_path / "store"}
    whole = run(reader_agent(), model=Reader(14).model(), limits=TURNS, clock=TestClock(), **options)
    assert whole.output == Report(14)
    lines = lines_of(tmp_path / "store", whole.run_id)
    for count in range(behind(lines, "work_stopped"), len(lines)):
        file_of(tmp_path / "store", whole.run_id).write_bytes(b"".join(lines[:count]))
        reader = Reader(14)
        reader.read = sum(b'"tag":"tool_invoked"' in line for line in lines[:count])
        unknown = b'"begun":{"kind":"tool"' in lines[count - 1]
        result = resume(str(whole.run_id), reader_agent(), model=reader.model(), clock=TestClock(), **options)
        assert result.ok, (count, result.sentence())
        assert unknown or result.output == Report(14)
        assert events(result, ContextCompacted)


def test_the_model_that_took_over_stays_in_use(tmp_path: Path) -> None:
    def step(request: ModelRequest) -> Any:
        done = sum(isinstance(message, ToolMessage) for message in request.transcript)
        return Call("look", {"number": done}) if done < 4 else Say("finished")

    @tool(read_only=True)
    def look(number: int) -> str:
        """Look."""
        return f"saw {number}"

    def agent(first: ScriptedModel) -> Agent[str]:
        return Agent(first, "Work.", str, tools=[look], limits=TURNS)

    def down_later(request: ModelRequest) -> Any:
        return step(request) if len(request.transcript) < 4 else down()

    options: Any = {"fallback": [named("second", step)], "store": tmp_path / "store"}
    whole = agent(named("first", down_later)).run("go", clock=TestClock(), **options)
    assert whole.answered_by == ("of-first:first", "of-second:second")
    lines = lines_of(tmp_path / "store", whole.run_id)
    switched = behind(lines, "model_switched")
    replied = switched + behind(lines[switched:], "model_replied")
    for count in range(replied, len(lines)):
        file_of(tmp_path / "store", whole.run_id).write_bytes(b"".join(lines[:count]))
        first = always_down("first")
        result = agent(first).resume(str(whole.run_id), clock=TestClock(), **options)
        assert result.ok
        assert not first.requests, f"the model that had failed was asked again behind line {count}"
        assert result.answered_by == whole.answered_by


def test_a_further_attempt_that_was_under_way_is_unknown_and_not_failed(tmp_path: Path) -> None:
    tries: list[int] = []

    @tool(retries=1, parallel_safe=True)
    def send(number: int) -> str:
        """Send."""
        tries.append(number)
        if tries.count(number) == 1:
            raise RuntimeError("busy")
        return "sent"

    def step(request: ModelRequest) -> Any:
        if any(isinstance(message, ToolMessage) for message in request.transcript):
            return Say("finished")
        return Calls((Call("send", {"number": 1}), Call("send", {"number": 2})))

    agent = Agent(ScriptedModel(step), "Work.", str, tools=[send], limits=TURNS)
    whole = agent.run("go", store=tmp_path / "store")
    assert [(each.outcome, each.attempt) for each in events(whole, ToolInvoked)].count(("ok", 2)) == 2
    lines = lines_of(tmp_path / "store", whole.run_id)
    second = [
        place + 1 for place, line in enumerate(lines) if b'"begun":{"kind":"tool"' in line and b'"attempt":2' in line
    ]
    file_of(tmp_path / "store", whole.run_id).write_bytes(b"".join(lines[: second[-1]]))
    tries.clear()
    result = agent.resume(str(whole.run_id), store=tmp_path / "store")
    assert not tries
    assert [(each.outcome, each.attempt) for each in events(result, ToolInvoked)[-2:]] == [("unknown", 2)] * 2
