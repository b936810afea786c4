"""Resuming behind the less usual steps: a summary, a model that took over, a further attempt, a refusal."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Report, always_down, down, events, named
from tests.loop.test_compaction import Reader, reader_agent
from watchkeeper.accounting.limits import UNLIMITED, Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.app.resume import resume
from watchkeeper.app.run import run
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core import secrets
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.runtime.events import ContextCompacted
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import Tool, tool

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


@tool(read_only=True)
def look(number: int) -> str:
    """Look."""
    return f"saw {number}"


def three_looks(request: ModelRequest) -> Any:
    """Look three times, then end."""
    done = sum(isinstance(message, ToolMessage) for message in request.transcript)
    return Call("look", {"number": done}) if done < 3 else Say("finished")


def looker(*more: Tool, **limits: Any) -> Agent[str]:
    """Return an agent that looks three times."""
    return Agent(ScriptedModel(three_looks), "Work.", str, tools=[look, *more], limits=Limits(**limits))


@tool(read_only=True)
def extra() -> str:
    """Return nothing."""
    return ""


def test_a_resume_that_is_refused_changes_nothing_and_lets_go(tmp_path: Path) -> None:
    stopped = looker(max_turns=2).run("go", store=tmp_path / "store")
    lines = lines_of(tmp_path / "store", stopped.run_id)
    with RunStore(tmp_path / "store") as store:
        with pytest.raises(ConfigurationError, match="its tools changed"):
            looker(extra).resume(str(stopped.run_id), store=store)
        assert lines_of(tmp_path / "store", stopped.run_id) == lines
        (run,) = store.runs()
        assert run.stop is not None
        result = looker(extra).resume(str(stopped.run_id)[:8], store=store, limits=TURNS, accept_changes=True)
        assert result.output == "finished"


def test_a_run_that_goes_on_in_the_same_process_has_not_ended(tmp_path: Path) -> None:
    stopped = looker(max_turns=2).run("go", store=tmp_path / "store")
    result = looker().resume(str(stopped.run_id), store=tmp_path / "store", limits=TURNS)
    assert result.ok
    lines = lines_of(tmp_path / "store", stopped.run_id)
    file_of(tmp_path / "store", stopped.run_id).write_bytes(b"".join(lines[:-3]))
    with RunStore(tmp_path / "store", read_only=True) as store:
        (run,) = store.runs()
    assert run.sentence() == "Interrupted: its process ended before the run did."


def test_what_is_written_until_the_run_is_taken_over_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    @tool
    def send(number: int) -> str:
        """Send."""
        sent.append(number)
        return "sent"

    def step(request: ModelRequest) -> Any:
        done = any(isinstance(message, ToolMessage) for message in request.transcript)
        return Say("finished") if done else Call("send", {"number": 1})

    agent = Agent(ScriptedModel(step), "Work.", str, tools=[send], limits=TURNS)
    whole = agent.run("go", store=tmp_path / "store")
    lines = lines_of(tmp_path / "store", whole.run_id)
    begun = next(place for place, line in enumerate(lines) if b'"begun":{"kind":"tool"' in line)
    file = file_of(tmp_path / "store", whole.run_id)
    file.write_bytes(b"".join(lines[:begun]))
    take_over = RunStore.take_over

    def just_in_time(store: RunStore, run_id: str) -> int:
        file.write_bytes(b"".join(lines[: begun + 1]))  # its process begins the call, and dies
        return take_over(store, run_id)

    monkeypatch.setattr(RunStore, "take_over", just_in_time)
    sent.clear()
    result = agent.resume(str(whole.run_id), store=tmp_path / "store")
    assert sent == []
    assert [each.outcome for each in events(result, ToolInvoked)] == ["unknown"]


def test_a_file_that_is_shortened_while_the_run_writes_to_it_is_noticed(tmp_path: Path) -> None:
    @tool(read_only=True)
    def shorten() -> str:
        """Shorten the record."""
        (file,) = (tmp_path / "store" / "runs").iterdir()
        os.truncate(file, file.stat().st_size // 2)
        return ""

    def step(request: ModelRequest) -> Any:
        done = any(isinstance(message, ToolMessage) for message in request.transcript)
        return Say("finished") if done else Call("shorten", {})

    agent = Agent(ScriptedModel(step), "Work.", str, tools=[shorten], limits=TURNS)
    result = agent.run("go", store=tmp_path / "store", clock=TestClock())
    assert result.stop is not None
    assert result.stop.reason == "store_failed"
    assert "the file was shortened while it was open" in result.not_stored


def test_limits_that_were_set_when_a_run_went_on_stay_its_limits(tmp_path: Path) -> None:
    stopped = looker(max_turns=2, deadline="1h").run("go", store=tmp_path / "store")
    later = Limits(max_turns=40, deadline="3h")
    first = looker().resume(str(stopped.run_id), store=tmp_path / "store", limits=later)
    assert first.ok
    lines = lines_of(tmp_path / "store", stopped.run_id)
    count = behind(lines, "run_resumed") + 2
    file_of(tmp_path / "store", stopped.run_id).write_bytes(b"".join(lines[:count]))
    result = looker().resume(str(stopped.run_id), store=tmp_path / "store")
    assert result.ok, result.sentence()
    assert result.limits.max_turns == 40
    assert isinstance(result.limits.deadline, timedelta)
    assert timedelta(hours=2.9) < result.limits.deadline < timedelta(hours=3)


def test_a_run_that_has_worked_to_its_deadline_says_so(tmp_path: Path) -> None:
    clock = TestClock()

    @tool
    def wait() -> str:
        """Wait for two hours."""
        clock.advance(7200)
        return ""

    agent = Agent(ScriptedModel(lambda _: Call("wait", {})), "Work.", str, tools=[wait], limits=Limits(deadline="1h"))
    stopped = agent.run("go", store=tmp_path / "store", clock=clock)
    assert stopped.stop is not None
    with pytest.raises(LimitsError, match="has worked for 2h, and its deadline is 1h; to go on, give it a later one"):
        agent.resume(str(stopped.run_id), store=tmp_path / "store", clock=clock)


def test_a_call_whose_arguments_held_a_secret_is_not_made_with_what_is_on_record(tmp_path: Path) -> None:
    secrets.hold("pw-of-the-mail-account-12345", passing=True)
    used: list[str] = []

    @tool
    def log_in(password: str) -> str:
        """Log in."""
        used.append(password)
        return "fine"

    def step(request: ModelRequest) -> Any:
        said = [message.text for message in request.transcript if isinstance(message, ToolMessage)]
        return Say("finished") if "fine" in said else Call("log_in", {"password": "pw-of-the-mail-account-12345"})

    agent = Agent(ScriptedModel(step), "Work.", str, tools=[log_in], limits=TURNS)
    whole = agent.run("go", store=tmp_path / "store")
    lines = lines_of(tmp_path / "store", whole.run_id)
    assert b"pw-of-the-mail" not in b"".join(lines)
    file_of(tmp_path / "store", whole.run_id).write_bytes(b"".join(lines[: behind(lines, "model_replied")]))
    used.clear()
    result = agent.resume(str(whole.run_id), store=tmp_path / "store")
    assert used == ["pw-of-the-mail-account-12345"]
    assert [each.outcome for each in events(result, ToolInvoked)] == ["skipped", "ok"]


def test_what_the_code_of_a_tool_had_spent_before_a_stop_counts(tmp_path: Path) -> None:
    @tool
    def act(number: int) -> str:
        """Make three calls of its own."""
        with ExecutionContext(UNLIMITED) as own:
            for _ in range(3):
                own.wrap_tool_call(lambda: None)
        return f"acted {number}"

    def step(request: ModelRequest) -> Any:
        done = sum(isinstance(message, ToolMessage) for message in request.transcript)
        return Call("act", {"number": done}) if done < 3 else Say("finished")

    agent = Agent(ScriptedModel(step), "Work.", str, tools=[act], limits=Limits(max_turns=2))
    stopped = agent.run("go", store=tmp_path / "store")
    assert stopped.usage.tool_calls == 4
    result = agent.resume(str(stopped.run_id), store=tmp_path / "store", limits=TURNS)
    assert result.ok
    assert result.usage.tool_calls == 12


def test_fresh_limits_are_fresh_for_turns_too_and_stay_so(tmp_path: Path) -> None:
    def step(request: ModelRequest) -> Any:
        done = sum(isinstance(message, ToolMessage) for message in request.transcript)
        return Call("look", {"number": done}) if request.tool_choice != "none" and done < 8 else Say("as far as I got")

    @tool(read_only=True)
    def look(number: int) -> str:
        """Look."""
        return f"saw {number}"

    store = tmp_path / "store"
    agent = Agent(ScriptedModel(step), "Look.", str, tools=[look], limits=Limits(max_turns=4))
    run_id = str(agent.run("go", store=store).run_id)

    def looked(result: Any) -> int:
        return len(events(result, ToolInvoked))

    assert looked(agent.resume(run_id, store=store)) == 3
    assert looked(agent.resume(run_id, store=store, fresh_limits=True)) == 6
    assert looked(agent.resume(run_id, store=store)) == 6
    result = agent.resume(run_id, store=store, fresh_limits=True)
    assert (result.ok, looked(result)) == (True, 8)
