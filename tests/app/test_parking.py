"""Parked runs: a call about which a person is to be asked waits on record for its answer, and runs once."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.kit import events
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.core import secrets
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, StoreError, ToolDefinitionError
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.runtime import file_record
from watchkeeper.runtime.events import ModelReplied, RunResumed
from watchkeeper.runtime.parking import CallAnswered, CallParked, Park
from watchkeeper.runtime.result import RunResult
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.shield.tool_permission import ToolPermissionHook
from watchkeeper.store.answers import answer, pending
from watchkeeper.store.cancelling import cancel
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.tool import OnUnknown, tool

HOUR = Limits(deadline="1h", max_turns=40)


def nobody(_: ToolCallContext) -> None:
    """Answer nothing, as a process without a terminal does."""


def hook(ask: str = "send", ask_with: Callable[[ToolCallContext], object] = nobody) -> ShieldPipeline:
    """Return a pipeline that asks about a tool."""
    return ShieldPipeline(tool_dispatch=ToolPermissionHook(ask=[ask], ask_with=ask_with))


@dataclass
class World:
    """What the tools of an agent do: it looks and sends at once, sends twice, then it is done."""

    sent: list[int] = field(default_factory=list[int])
    looked: list[int] = field(default_factory=list[int])

    def agent(self, on_unknown: OnUnknown = "tell", **more: Any) -> Agent[str]:
        """Return the agent; what nobody answers parks its runs."""

        @tool(read_only=True, parallel_safe=True)
        def look(number: int) -> str:
            """Look."""
            self.looked.append(number)
            return f"saw {number}"

        @tool(on_unknown=on_unknown)
        def send(number: int) -> str:
            """Send."""
            self.sent.append(number)
            return f"sent {number}"

        more.setdefault("shield", hook())
        return Agent(ScriptedModel(self.step), "Work.", tools=[look, send], limits=HOUR, **more)

    def step(self, request: ModelRequest) -> Say | Call | Calls:
        """Return what the model says: it follows from the conversation alone."""
        match sum(isinstance(message, ToolMessage) for message in request.transcript):
            case 0:
                return Calls((Call("look", {"number": 1}), Call("send", {"number": 1}), Call("look", {"number": 2})))
            case 3:
                return Calls((Call("send", {"number": 2}), Call("send", {"number": 3})))
            case _:
                return Say("finished")


def say(store: Path, run_id: object, call_id: str | None = None, *, allowed: bool = True, **more: Any) -> str:
    """Answer a question as Ann; return the id of the call."""
    with RunStore(store) as opened:
        more.setdefault("by", "ann")
        return answer(opened, str(run_id), call_id, allowed=allowed, **more).question.call_id


def file_of(store: Path) -> Path:
    """Return the file of the only run of a store."""
    (file,) = (store / "runs").iterdir()
    return file


def invoked(result: RunResult[Any]) -> list[tuple[str, str]]:
    """Return outcome and text of every tool call."""
    return [(each.outcome, each.rendered_output) for each in events(result, ToolInvoked)]


def test_a_run_parks_and_goes_on_once_it_is_answered(tmp_path: Path) -> None:
    world, store = World(), tmp_path / "store"
    agent = world.agent()
    parked = agent.run("go", store=store, on_ask="park")
    assert parked.stop is not None
    assert (parked.stop.reason, parked.ok) == ("parked", False)
    assert parked.stop.message == "1 tool call waits for an answer: send (call-2)."
    assert (world.looked, world.sent) == ([1, 2], []), "the siblings of the call finish"
    assert len(events(parked, ModelReplied)) == 1, "there is no last turn"
    (question,) = parked.waiting
    assert (question.name, question.arguments, question.asked_by) == ("send", '{"number":1}', "ToolPermissionHook")
    assert parked.as_data()["waiting"][0]["call_id"] == "call-2"
    with RunStore(store) as opened:
        assert [each.question for each in pending(opened)] == [question]
        assert opened.runs()[0].sentence().startswith("1 tool call waits for an answer: send (call-2); ")
    before = file_of(store).read_bytes()
    with pytest.raises(
        ConfigurationError, match=r"is parked: 1 tool call waits for an answer: send \(call-2\); 'watchkeeper pending"
    ):
        agent.resume(str(parked.run_id), store=store)
    assert file_of(store).read_bytes() == before
    say(store, parked.run_id)
    again = agent.resume(str(parked.run_id), store=store)
    assert again.stop is not None
    assert again.stop.message == "2 tool calls wait for an answer: send (call-4), send (call-5).", "on_ask is on record"
    assert (world.looked, world.sent) == ([1, 2], [1])
    say(store, parked.run_id, "call-4")
    say(store, parked.run_id, "call-5", allowed=False, why="Not today.")
    done = agent.resume(str(parked.run_id), store=store)
    assert (done.output, world.looked, world.sent) == ("finished", [1, 2], [1, 2])
    assert invoked(done)[-1] == ("denied", "send was not run, and nothing was changed: ann has denied it: Not today.")
    assert "4 tool calls, 1 denied, " in done.sentence()
    assert done.denied == done.as_data()["denied"] == 1
    with RunStore(store) as opened:
        assert pending(opened) == ()
        assert "4 tool calls, 1 denied, " in opened.runs()[0].sentence()
    allowed = World().agent(shield=hook(ask_with=lambda ctx: "3" not in str(ctx.arguments))).run("go", store=None)
    assert done.usage == allowed.usage, "what waits costs nothing"
    assert allowed.denied == 1


def test_without_the_option_what_nobody_answers_is_denied_and_counted(tmp_path: Path) -> None:
    world = World()
    result = world.agent().run("go", store=tmp_path / "store")
    assert (result.ok, result.denied, world.sent) == (True, 3, [])
    assert "2 tool calls, 3 denied, " in result.sentence()


def test_an_answer_at_once_parks_nothing(tmp_path: Path) -> None:
    world = World()
    result = world.agent(shield=hook(ask_with=lambda _: "yes")).run("go", store=tmp_path / "store", on_ask="park")
    assert (result.ok, world.sent) == (True, [1, 2, 3])
    world = World()
    result = world.agent(shield=hook(ask_with=lambda _: "no")).run("go", store=tmp_path / "store", on_ask="park")
    assert (result.ok, result.denied, world.sent) == (True, 3, [])


@pytest.mark.parametrize(("then", "sent"), [("deny", []), ("allow", [1])])
def test_a_question_expires_and_the_setting_says_what_then_holds(then: Any, sent: list[int], tmp_path: Path) -> None:
    world, store, clock = World(), tmp_path / "store", TestClock()
    agent = world.agent()
    parked = agent.run("go", store=store, on_ask=Park("3h", then), clock=clock)
    clock.advance(timedelta(hours=3).total_seconds() - 1)
    with pytest.raises(ConfigurationError, match="is parked"):
        agent.resume(str(parked.run_id), store=store, clock=clock)
    clock.advance(2)
    with pytest.raises(ConfigurationError, match=r"about send \(call-2\) of the run .* expired at .* UTC; resume"):
        say(store, parked.run_id, clock=clock)
    later = agent.resume(str(parked.run_id), store=store, on_ask="deny", clock=clock)
    assert (later.ok, world.sent) == (True, sent), "the time in which it was parked is not counted"
    if then == "deny":
        said = "send was not run, and nothing was changed: nobody has answered in time."
        assert ("denied", said) in invoked(later)


@pytest.mark.parametrize("many", [False, True])
def test_a_cancelled_parked_run_goes_on_without_the_time_in_which_it_waited(tmp_path: Path, many: bool) -> None:
    world, clock, store = World(), TestClock(), tmp_path / "store"
    agent = world.agent()
    options: dict[str, Any] = {"store": store, "clock": clock}
    parked: Any = (
        agent.run_many(["go"], on_ask="park", **options) if many else agent.run("go", on_ask="park", **options)
    )
    clock.advance(5000)
    with RunStore(store) as opened:
        run = cancel(opened, str(parked.run_id), by="ann", clock=clock)
        assert (run.stop and run.stop["reason"], pending(opened)) == ("cancelled", ())
    clock.advance(5000)
    again: Any
    if many:
        again = agent.resume_many(str(parked.run_id), ["go"], on_ask="deny", **options).results[0]
    else:
        again = agent.resume(str(parked.run_id), on_ask="deny", **options)
    assert (again.ok, world.sent) == (True, []), "the deadline of an hour is not over"
    assert "ann has denied it: the run was cancelled" in str(invoked(again))


def test_a_parked_run_that_has_gone_on_meanwhile_keeps_its_end(tmp_path: Path) -> None:
    agent, store = World().agent(), tmp_path / "store"
    parked = agent.run("go", store=store, on_ask="park")

    class Late(RunStore):
        """Another process goes on with the run just before it is cancelled."""

        def visited(self, run_id: str) -> Any:
            assert agent.resume(run_id, store=store, on_ask="deny").ok
            return super().visited(run_id)

    with RunStore(store) as opened:
        for question in parked.waiting:
            answer(opened, str(parked.run_id), question.call_id, allowed=True, by="ann")
    with Late(store) as opened:
        assert cancel(opened, str(parked.run_id), by="eve").stop is None


def test_one_damaged_record_does_not_hide_what_other_runs_ask(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = tmp_path / "store"
    first, second = (World().agent().run("go", store=store, on_ask="park") for _ in range(2))
    (file,) = store.glob(f"runs/{first.run_id}.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"call_parked"', b'"call_parkeX"'))
    with RunStore(store) as opened:
        assert {each.run.run_id for each in pending(opened)} == {str(second.run_id)}
    assert f"{first.run_id} cannot be read" in caplog.text


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs users with numbers")
def test_a_user_without_a_name_can_answer_and_cancel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in many containers."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError("uid not found")))
    store = tmp_path / "store"
    answered, cancelled = (World().agent().run("go", store=store, on_ask="park") for _ in range(2))
    with RunStore(store) as opened:
        answer(opened, str(answered.run_id), allowed=True)
        by = [event.body["by"] for event in opened.events(str(answered.run_id)) if event.tag == "call_answered"]
        assert by == [f"user {os.getuid()}"]
        assert f"cancelled by {by[0]}" in cancel(opened, str(cancelled.run_id)).sentence()


def test_parked_time_does_not_count_and_the_deadline_still_holds(tmp_path: Path) -> None:
    clock, store = TestClock(), tmp_path / "store"
    world = World()
    agent = world.agent()
    parked = agent.run("go", store=store, on_ask="park", clock=clock)
    clock.advance(5000)
    say(store, parked.run_id, clock=clock)
    clock.advance(5000)
    again = agent.resume(str(parked.run_id), store=store, on_ask="deny", clock=clock)
    assert again.ok
    assert again.duration < timedelta(minutes=1)


def test_an_answer_holds_for_these_arguments_alone(tmp_path: Path) -> None:
    world, store = World(), tmp_path / "store"
    agent = world.agent()
    parked = agent.run("go", store=store, on_ask="park")
    (question,) = parked.waiting
    with pytest.raises(ConfigurationError, match=f"arguments with the hash {question.digest[:12]}, not 'beef'"):
        say(store, parked.run_id, digest="beef")
    with RunStore(store) as opened, opened.visited(str(parked.run_id)) as add:
        now = question.created_at
        add(
            CallAnswered(
                question.question_id, question.call_id, "0" * 64, allowed=True, by="eve", why="", created_at=now
            )
        )
    again = agent.resume(str(parked.run_id), store=store)
    assert again.stop is not None
    assert (again.stop.reason, world.sent) == ("parked", []), "it is asked about anew"
    assert len(events(again, CallParked)) == 2
    assert say(store, parked.run_id, digest=question.digest[:8]) == "call-2"
    agent.resume(str(parked.run_id), store=store)
    assert world.sent == [1]


def test_an_answer_that_nobody_waits_for_is_refused_in_one_line(tmp_path: Path) -> None:
    world, store = World(), tmp_path / "store"
    agent = world.agent()
    parked = agent.run("go", store=store, on_ask="park")
    run_id = str(parked.run_id)
    for wrong, match in (
        (
            (run_id, "call-1"),
            rf"the run {run_id} has no call 'call-1' that waits for an answer; these wait: send \(call-2\)",
        ),
        (("feed",), "no run whose id begins with 'feed'"),
    ):
        with pytest.raises((ConfigurationError, StoreError), match=match):
            say(store, *wrong)
    with pytest.raises(ConfigurationError, match="by='' names nobody"):
        say(store, run_id, by=" ")
    with RunStore(store) as owner:
        owner.take_over(run_id)
        with pytest.raises(StoreError, match=f"the run {run_id} is running"):
            say(store, run_id)
    say(store, run_id, allowed=False)
    with pytest.raises(
        ConfigurationError, match=f"{run_id} has its answer: the call call-2 was denied already, by ann"
    ):
        say(store, run_id, "call-2")
    agent.resume(run_id, store=store)
    with pytest.raises(ConfigurationError, match=r"more than one call waits .*send \(call-4\) of .*; name the call"):
        say(store, run_id)
    done = World().agent(shield=hook("nothing")).run("go", store=store)
    with pytest.raises(ConfigurationError, match=f"the run {done.run_id} waits for no answer: Done"):
        say(store, done.run_id)


def test_a_run_that_could_not_go_on_does_not_park(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, files = World().agent(), MemoryFilesystem()
    files.write_text("notes.md", "too much to be on record")
    monkeypatch.setattr(file_record, "MOST_BYTES", 10)
    with pytest.raises(ConfigurationError, match="needs a store"):
        agent.run("go", store=None, on_ask="park")
    with pytest.raises(ConfigurationError, match="cannot park, because it cannot be resumed: its MemoryFilesystem"):
        agent.run("go", store=tmp_path / "store", on_ask="park", filesystem=files)
    with pytest.raises(ConfigurationError, match=r"on_ask='wait' must be 'deny', 'park', or Park\("):
        agent.run("go", store=tmp_path / "store", on_ask="wait")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="then='maybe' must be 'deny' or 'allow'"):
        Park(then="maybe")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="expires=0 must be more than 0"):
        Park(0)


def test_a_hook_of_ones_own_asks_and_its_no_counts_for_nothing_after_a_yes(tmp_path: Path) -> None:
    asked: list[str | None] = []

    class Large:
        """Asks about large numbers."""

        def before_tool_call(self, ctx: ToolCallContext) -> Decision | None:
            """Object to them."""
            asked.append(ctx.approved_by)
            return Decision.HALT if ctx.tool_name == "send" and "2" in str(ctx.arguments) else None

        def question(self, ctx: ToolCallContext) -> str:
            """Say what a person is to be asked."""
            return f"Is {ctx.arguments} too large?"

    world, store = World(), tmp_path / "store"
    agent = world.agent(shield=ShieldPipeline(tool_dispatch=Large()))
    parked = agent.run("go", store=store, on_ask="park")
    (question,) = parked.waiting
    assert (question.asked_by, question.question) == ("Large", 'Is {"number":2} too large?')
    assert world.sent == [1, 3]
    say(store, parked.run_id)
    assert agent.resume(str(parked.run_id), store=store).ok
    assert world.sent == [1, 3, 2]
    assert asked[-1] == "ann"


# --- calls of which nobody knows --------------------------------------------------------------------------------------


def died_in_call(store: Path, name: str, folder: Path) -> Path:
    """Write a store whose run ends behind the beginning of the first call of a tool, as a kill leaves it."""
    lines = list[bytes]()
    for line in file_of(store).read_bytes().splitlines(keepends=True):
        lines.append(line)
        if line.startswith(b'{"begun":') and f'"name":"{name}"'.encode() in line:
            break
    RunStore(folder).close()
    (folder / "runs" / file_of(store).name).write_bytes(b"".join(lines))
    return folder


@pytest.mark.parametrize("allowed", [True, False])
def test_an_unknown_call_parks_if_its_tool_says_so(allowed: bool, tmp_path: Path) -> None:
    agent = World().agent("park", shield=None)
    first = agent.run("go", store=tmp_path / "whole")
    store = died_in_call(tmp_path / "whole", "send", tmp_path / "died")
    world = World()
    parked = world.agent("park", shield=None).resume(str(first.run_id), store=store)
    assert parked.stop is not None
    assert (parked.stop.reason, world.sent) == ("parked", [])
    (question,) = parked.waiting
    assert (question.kind, question.call_id, question.expires) == ("unknown", "call-2", None)
    assert question.question.endswith("Is it to run again?")
    say(store, first.run_id, allowed=allowed, why="I looked")
    done = world.agent("park", shield=None).resume(str(first.run_id), store=store)
    assert done.ok
    assert world.sent == ([1, 2, 3] if allowed else [2, 3])
    outcome, said = next(
        (each.outcome, each.rendered_output) for each in events(done, ToolInvoked) if each.call_id == "call-2"
    )
    assert outcome == ("ok" if allowed else "unknown")
    assert said.endswith("sent 1" if allowed else "ann was asked whether it is to run again, and said no: I looked")


def test_an_unknown_call_whose_arguments_held_a_secret_is_not_asked_about(tmp_path: Path) -> None:
    secrets.hold("pw-of-the-mail-account-67890", passing=True)
    used = list[str]()

    @tool(on_unknown="park")
    def log_in(password: str) -> str:
        """Log in."""
        used.append(password)
        return "fine"

    def step(request: ModelRequest) -> Say | Call:
        said = [message.text for message in request.transcript if isinstance(message, ToolMessage)]
        return Say("finished") if said else Call("log_in", {"password": "pw-of-the-mail-account-67890"})

    agent = Agent(ScriptedModel(step), "Work.", str, tools=[log_in], limits=HOUR)
    whole = agent.run("go", store=tmp_path / "whole")
    store = died_in_call(tmp_path / "whole", "log_in", tmp_path / "died")
    result = agent.resume(str(whole.run_id), store=store)
    assert (result.ok, used) == (True, ["pw-of-the-mail-account-67890"]), "nobody can allow what cannot be made again"
    assert [outcome for outcome, _ in invoked(result)] == ["unknown"]


def test_a_tool_that_may_run_again_is_never_unknown() -> None:
    with pytest.raises(ToolDefinitionError, match="on_unknown='park' has no meaning for a tool that is read-only"):

        @tool(idempotent=True, on_unknown="park")
        def put() -> str:
            """Put."""
            return ""

    with pytest.raises(ToolDefinitionError, match="on_unknown='ask' must be 'tell' or 'park'"):

        @tool(on_unknown="ask")  # type: ignore[call-overload, untyped-decorator]
        def send() -> str:
            """Send."""
            return ""


# --- tools that ask ---------------------------------------------------------------------------------------------------


def asking_agent(done: list[str]) -> Agent[str]:
    """Return an agent whose tool asks twice."""

    @tool
    def pay(amount: int, context: ToolContext) -> str:
        """Pay."""
        if amount > 100:
            done.append(f"asks as attempt {context.attempt}")
            if not context.ask(f"Pay ${amount}?"):
                return "not paid"
            by = context.ask("From the reserve?")
            done.append(f"{by.by}: {by.why}")
        done.append(f"paid {amount}")
        return f"paid {amount}"

    def step(request: ModelRequest) -> Say | Calls:
        asked = any(isinstance(message, ToolMessage) for message in request.transcript)
        return Say("finished") if asked else Calls((Call("pay", {"amount": 500}), Call("pay", {"amount": 5})))

    return Agent(ScriptedModel(step), "Pay.", tools=[pay], limits=Limits(max_retries=0))


def test_a_tool_asks_and_runs_again_from_its_beginning(tmp_path: Path) -> None:
    done, store = list[str](), tmp_path / "store"
    agent = asking_agent(done)
    parked = agent.run("go", store=store, on_ask="park")
    (question,) = parked.waiting
    assert (question.kind, question.asked_by, question.question) == ("tool", "pay", "Pay $500?")
    assert done == ["asks as attempt 1", "paid 5"]
    say(store, parked.run_id)
    again = agent.resume(str(parked.run_id), store=store)
    assert [each.question for each in again.waiting] == ["From the reserve?"]
    say(store, parked.run_id, why="if need be")
    result = agent.resume(str(parked.run_id), store=store)
    assert result.ok
    assert done[-2:] == ["ann: if need be", "paid 500"]
    assert invoked(result) == [("ok", "paid 5"), ("ok", "paid 500")]
    assert result.usage.tool_calls == 4, "each time that it ran counts"


def test_a_tool_is_told_no_and_decides_itself(tmp_path: Path) -> None:
    done, store = list[str](), tmp_path / "store"
    agent = asking_agent(done)
    parked = agent.run("go", store=store, on_ask="park")
    say(store, parked.run_id, allowed=False)
    assert ("ok", "not paid") in invoked(agent.resume(str(parked.run_id), store=store))
    denied = agent.run("go", store=None)
    assert ("ok", "not paid") in invoked(denied), "where a run does not park, the answer is no"


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_tool_that_asks_is_not_tried_again_before_there_is_an_answer(idempotent: bool, tmp_path: Path) -> None:
    attempts, store = list[int](), tmp_path / "store"

    @tool(retries=2, idempotent=idempotent)
    def pay(context: ToolContext) -> str:
        """Pay."""
        attempts.append(context.attempt)
        return "paid" if context.ask("Pay?") else "not paid"

    def step(request: ModelRequest) -> Say | Call:
        return Say("finished") if isinstance([*request.transcript][-1], ToolMessage) else Call("pay", {})

    agent = Agent(ScriptedModel(step), "Pay.", tools=[pay], limits=HOUR)
    parked = agent.run("go", store=store, on_ask="park")
    assert (attempts, invoked(parked), parked.usage.retries) == ([1], [], 0)
    say(store, parked.run_id)
    result = agent.resume(str(parked.run_id), store=store)
    assert (attempts, invoked(result)) == ([1, 1], [("ok", "paid")])


# --- deaths -----------------------------------------------------------------------------------------------------------


@dataclass
class Whole:
    """The lines of a run that parked three times, and how it ended."""

    lines: list[bytes]
    result: RunResult[str]


def to_the_end(agent: Agent[str], run_id: str, store: Path) -> RunResult[str]:
    """Go on with a run until it is done; every question is answered, that about the third letter with no."""
    for _ in range(4):
        with RunStore(store) as opened:
            for each in pending(opened):
                allowed = '"number":3' not in each.question.arguments
                answer(opened, run_id, each.question.call_id, allowed=allowed, by="ann")
        result = agent.resume(run_id, store=store)
        if result.ok:
            return result
    raise AssertionError("it parks again and again")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    store = tmp_path_factory.mktemp("whole") / "store"
    agent = World().agent()
    run_id = str(agent.run("go", store=store, on_ask="park").run_id)
    result = to_the_end(agent, run_id, store)
    return Whole(file_of(store).read_bytes().splitlines(keepends=True), result)


def test_a_run_that_parks_goes_on_from_every_line(whole: Whole, tmp_path: Path) -> None:
    run_id = str(whole.result.run_id)
    beginning = next(place for place, line in enumerate(whole.lines) if b'"tag":"run_opened"' in line) + 1
    for count in range(beginning, len(whole.lines)):
        world, store = World(), tmp_path / str(count)
        RunStore(store).close()
        torn = whole.lines[count][: len(whole.lines[count]) // 2]
        (store / "runs" / f"{run_id}.jsonl").write_bytes(b"".join(whole.lines[:count]) + torn)
        before = [line.startswith(b'{"begun":') and b'"kind":"tool"' in line for line in whole.lines[:count]]
        result = to_the_end(world.agent(), run_id, store)
        assert result.output == "finished"
        calls = events(result, ToolInvoked)
        assert len({each.call_id for each in calls}) == len(calls) == 5, "each call has one result"
        unknown = [each for each in calls if each.outcome == "unknown"]
        assert len(unknown) <= 1
        assert len(world.sent) + sum(before) == 2, f"a letter was sent twice or never after a death behind line {count}"
        assert [each.outcome for each in calls if each.params == {"number": 3}] == ["denied"]
        assert (result.denied, 3 in world.sent) == (1, False)
        asked = [each.question_id for each in events(result, CallParked)]
        assert len(asked) == len(set(asked))
        assert result.usage.tokens.total - result.usage.presumed.tokens.total == whole.result.usage.tokens.total


def test_nothing_is_asked_twice(whole: Whole) -> None:
    assert len(events(whole.result, CallParked)) == 3
    assert len(events(whole.result, CallAnswered)) == 3
    assert [each.spent.tool_calls for each in events(whole.result, RunResumed)] == [2, 3]


# --- many -------------------------------------------------------------------------------------------------------------


def test_items_park_alone(tmp_path: Path) -> None:
    sent, store = list[str](), tmp_path / "store"

    @tool
    def send(to: str) -> str:
        """Send."""
        sent.append(to)
        return "sent"

    def step(request: ModelRequest) -> Say | Call:
        if any(isinstance(message, ToolMessage) for message in request.transcript):
            return Say("finished")
        task = "".join(message.text for message in request.transcript if message.role == "user")
        return Call("send", {"to": "boss" if "boss" in task else "ann"})

    class Boss(ToolPermissionHook):
        """Asks about letters to the boss."""

    def about_boss(ctx: ToolCallContext) -> object:
        return None if "boss" in str(ctx.arguments) else "yes"

    shield = ShieldPipeline(tool_dispatch=Boss(ask=["send"], ask_with=about_boss))
    agent = Agent(ScriptedModel(step), "Write.", tools=[send], shield=shield)
    many = agent.run_many(["to ann", "to boss", "to ann again"], store=store, on_ask="park")
    assert many.stop is not None
    assert (many.stop.reason, len(many.done), sent) == ("parked", 2, ["ann", "ann"])
    (parked,) = many.not_done
    assert [each.name for each in parked.waiting] == ["send"]
    with RunStore(store) as opened:
        (found,) = pending(opened)
        assert (found.run.run_id, found.run.item) == (str(parked.run_id), "to boss")
        row = opened.find(str(many.run_id))
        assert row.stop is not None
        assert row.stop["reason"] == "parked"
    with pytest.raises(ConfigurationError, match="is parked: 1 tool call waits for an answer: send"):
        agent.resume_many(str(many.run_id), ["to ann", "to boss", "to ann again"], store=store)
    say(store, many.run_id)
    with RunStore(store) as opened:
        assert pending(opened) == ()
    again = agent.resume_many(str(many.run_id), ["to ann", "to boss", "to ann again"], store=store)
    assert (again.stop, sent) == (None, ["ann", "ann", "boss"])
    assert [each.run_id for each in again] == [each.run_id for each in many]


def test_any_number_of_parked_items_goes_on_with_few_open_files(tmp_path: Path) -> None:
    tasks, store = [f"letter {number}" for number in range(40)], tmp_path / "store"

    def step(request: ModelRequest) -> Say | Call:
        return Say("sent") if isinstance([*request.transcript][-1], ToolMessage) else Call("send", {"number": 1})

    world = World()
    agent = replace(world.agent(), model=ScriptedModel(step))
    many = agent.run_many(tasks, store=store, on_ask="park")
    for each in many:
        say(store, each.run_id)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 30, hard))
    try:
        again = agent.resume_many(str(many.run_id), tasks, store=store)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert again.ok, again.sentence()
    assert len(world.sent) == len(tasks)


def test_items_that_share_files_that_end_with_the_process_cannot_park(tmp_path: Path) -> None:
    files, world = MemoryFilesystem(), World()
    with pytest.raises(ConfigurationError, match=r"cannot park, .*: its items share a MemoryFilesystem"):
        world.agent().run_many(["a", "b"], store=tmp_path / "store", on_ask="park", filesystem=files)
    assert world.sent == []
