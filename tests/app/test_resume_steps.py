"""Resuming behind the less usual steps: a summary, a model that took over, a further attempt, a refusal."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Report, always_down, down, events, named
from tests.loop.test_compaction import Reader, read, reader_agent
from watchkeeper.accounting.limits import UNLIMITED, Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.app.resume import resume
from watchkeeper.app.run import run
from watchkeeper.blocks.contained import contained
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core import secrets
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, LimitsError, ProviderError
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.core.usage import TokenUsage
from watchkeeper.runtime.events import ContextCompacted
from watchkeeper.runtime.result import RunResult
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import Tool, tool
from watchkeeper.tools.values import NothingDoneError

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
            raise NothingDoneError("busy")
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


@pytest.mark.parametrize("ends", [True, False])
def test_the_store_lists_a_run_with_the_limits_with_which_it_went_on(tmp_path: Path, ends: bool) -> None:
    stopped = looker(max_turns=2, max_cost_usd="$1").run("go", store=tmp_path / "store", clock=TestClock())
    higher = Limits(deadline="2h", max_cost_usd="$3.5", max_total_tokens=None, max_turns=60)
    looker().resume(str(stopped.run_id), store=tmp_path / "store", limits=higher, clock=TestClock())
    if not ends:
        lines = lines_of(tmp_path / "store", stopped.run_id)
        file_of(tmp_path / "store", stopped.run_id).write_bytes(b"".join(lines[:-3]))
    with RunStore(tmp_path / "store", read_only=True) as store:
        (run,) = store.runs()
    assert (run.ended_at is not None) == ends
    assert run.limits == higher.describe() == "deadline 2h, cost $3.50, turns 60, retries 20"
    assert run.ceilings == {"max_cost_usd": 3_500_000_000, "max_retries": 20, "max_turns": 60, "seconds": 7200.0}


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


@pytest.mark.parametrize("name", ["max_turns", "max_tool_calls", "max_steps", "max_total_tokens", "deadline"])
def test_a_run_whose_limit_is_still_used_up_asks_nobody_again(tmp_path: Path, name: str) -> None:
    clock = TestClock()

    @tool(name="look")
    def slow_look(number: int) -> str:
        """Look for 20 s."""
        clock.advance(20)
        return f"saw {number}"

    def think(request: ModelRequest) -> Any:
        said, used = three_looks(request), TokenUsage(900, 50)
        return Calls((said,), usage=used) if isinstance(said, Call) else Say("finished", usage=used)

    model = ScriptedModel(think)
    values: Any = {"max_turns": 3, "max_tool_calls": 2, "max_steps": 3, "max_total_tokens": 3_000, "deadline": "62s"}
    agent = Agent(model, "Work.", str, tools=[slow_look], limits=Limits(**{name: values[name]}))
    store = tmp_path / "store"
    stopped = agent.run("go", store=store, clock=clock)
    assert stopped.stop is not None
    assert stopped.stop.limit == name
    asked, lines = len(model.requests), lines_of(store, stopped.run_id)
    option = {"max_total_tokens": " or --max-tokens", "deadline": " or --timeout", "max_tool_calls": ""}
    raised = f"(limits=Limits({name}=...){option.get(name, f' or --{name}'.replace('_', '-'))})"
    for _ in range(10):
        again = agent.resume(str(stopped.run_id), store=store, clock=clock)
        assert again.stop is not None
        assert again.stop.message.startswith(stopped.stop.message)
        assert f"It goes on under a higher one {raised} or with what was used not counted" in again.stop.message
        assert (again.usage, again.partial, again.turns) == (stopped.usage, stopped.partial, stopped.turns)
    assert (len(model.requests), lines_of(store, stopped.run_id)) == (asked, lines)
    result = agent.resume(str(stopped.run_id), store=store, clock=clock, limits=Limits())
    assert result.ok
    assert result.output == "finished"


def test_a_run_without_a_retry_left_asks_nobody_again(tmp_path: Path) -> None:
    fails = [ProviderError("down", fault="server", status=500) for _ in range(3)]
    model = ScriptedModel([*fails, Say("finished")])
    agent = Agent(model, "Work.", str, limits=Limits(max_retries=2))
    options: dict[str, Any] = {"store": tmp_path / "store", "clock": TestClock()}
    stopped = agent.run("go", **options)
    assert stopped.stop is not None
    assert (stopped.stop.reason, len(model.requests)) == ("retry_budget_exceeded", 3)
    again = agent.resume(str(stopped.run_id), **options)
    assert again.stop is not None
    assert "It goes on under a higher one (limits=Limits(max_retries=...) or --max-retries)" in again.stop.message
    assert (len(model.requests), again.usage) == (3, stopped.usage)
    assert agent.resume(str(stopped.run_id), limits=Limits(max_retries=3), **options).output == "finished"


def test_a_call_that_is_repeated_after_a_crash_is_a_retry(tmp_path: Path) -> None:
    """The process dies in each wait before a retry, so no process makes one by itself."""
    store, model = tmp_path / "store", ScriptedModel(lambda _: down("server"))
    agent = Agent(model, "Work.", str, limits=Limits(max_retries=2))
    options: dict[str, Any] = {"store": store, "clock": TestClock()}
    run_id = agent.run("go", **options).run_id
    for asked in (1, 2):
        lines = lines_of(store, run_id)
        failures = [place for place, line in enumerate(lines) if b'"tag":"model_failed"' in line]
        file_of(store, run_id).write_bytes(b"".join(lines[: failures[asked - 1] + 1]))
        model.requests.clear()
        result = agent.resume(str(run_id), **options)
        assert result.stop is not None
        assert (result.stop.reason, result.usage.retries) == ("retry_budget_exceeded", 2)
        assert (len(model.requests), result.usage.model_calls) == (3 - asked, 3)


def check_that_nobody_is_asked(
    agent: Agent[Any], model: ScriptedModel, stopped: RunResult[Any], options: dict[str, Any], how: str
) -> None:
    """Resume a stopped run again and again: no model is asked, nothing is charged, and its stop says how to go on."""
    asked = len(model.requests)
    for _ in range(3):
        again = agent.resume(str(stopped.run_id), **options)
        assert again.stop is not None
        assert how in again.stop.message
        assert (len(model.requests), again.usage) == (asked, stopped.usage)


def test_a_run_whose_account_is_drawn_on_asks_nobody_again_until_the_period_is_over(tmp_path: Path) -> None:
    clock = TestClock()
    model = ScriptedModel(lambda request: Say("finished") if clock.now().day != today else Call("look", {"number": 1}))
    today = clock.now().day
    limits = Limits(account="team", account_limit="9k tokens/day", deadline=None)
    agent = Agent(model, "Work.", str, tools=[look], limits=limits)
    options: dict[str, Any] = {"store": tmp_path / "store", "clock": clock, "ledger": tmp_path / "ledger.sqlite3"}
    stopped = agent.run("go", **options)
    assert stopped.stop is not None
    assert stopped.stop.limit == "account_limit"
    check_that_nobody_is_asked(agent, model, stopped, options, "It goes on once the period is over, or under a higher")
    clock.advance(86_400)
    assert agent.resume(str(stopped.run_id), **options).output == "finished"


def test_a_run_whose_context_is_full_asks_nobody_again_unless_it_may_summarise(tmp_path: Path) -> None:
    reader = Reader(pages=12)
    model = reader.model()
    options: dict[str, Any] = {"store": tmp_path / "store"}
    agent = Agent(model, "Read.", Report, tools=[read])
    stopped = agent.run("Read all.", **options)
    assert stopped.stop is not None
    assert stopped.stop.reason == "context_full"
    how = "It goes on with a summary (on_context_full='compact' or --on-context-full"
    check_that_nobody_is_asked(agent, model, stopped, options, how)
    assert agent.resume(str(stopped.run_id), on_context_full="compact", **options).output == Report(12)


def test_limits_that_let_a_stopped_run_go_on(tmp_path: Path) -> None:
    stopped = looker(max_turns=2).run("go", store=tmp_path / "store")
    run_id: Any = str(stopped.run_id)
    lower = looker().resume(run_id, store=tmp_path / "store", limits=Limits(max_turns=1, max_steps=900))
    assert lower.usage == stopped.usage
    fresh = looker().resume(run_id, store=tmp_path / "store", fresh_limits=True)
    assert len(events(fresh, ToolInvoked)) > len(events(lower, ToolInvoked))


def test_a_run_that_a_tool_has_started_is_resumed_by_code_inside_the_run_above_alone(tmp_path: Path) -> None:
    store, below = tmp_path / "store", list[Any]()

    @tool
    def delegate() -> str:
        """Let another agent look, and go on with it once."""
        stopped = looker(max_turns=2).run("go", store=store)
        below.append(stopped)
        below.append(looker().resume(str(stopped.run_id), store=store, limits=Limits(max_turns=3)))
        return "looked"

    model = ScriptedModel([Call("delegate"), Say("done")])
    above = Agent(model, "Delegate.", str, tools=[delegate]).run("go", store=store)
    stopped, again = below
    assert (above.ok, again.run_id) == (True, stopped.run_id)
    assert len(events(again, ToolInvoked)) > len(events(stopped, ToolInvoked))
    with pytest.raises(ConfigurationError, match=f"is a part of the run {above.run_id}, whose limits hold for it"):
        looker().resume(str(stopped.run_id), store=store, limits=TURNS)


def test_a_run_inside_a_block_alone_may_be_resumed(tmp_path: Path) -> None:
    with contained(store=tmp_path / "store"):
        stopped = looker(max_turns=2).run("go", store=tmp_path / "store")
    with RunStore(tmp_path / "store", read_only=True) as store:
        assert store.find(str(stopped.run_id)).parent_id is not None
    result = looker().resume(str(stopped.run_id), store=tmp_path / "store", limits=TURNS)
    assert result.output == "finished"
