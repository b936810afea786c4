"""Resuming: a run goes on from every point at which its process can have died, and does nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.kit import events
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.core.errors import ConfigurationError, StoreError
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.prompt.completion import TaskCompletionChecker, TaskCompletionContext, TaskCompletionResult
from watchkeeper.runtime.events import CallBegun, RunResumed
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.log import event
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.tool import tool

ROUNDS = 4
HOUR = Limits(deadline="1h", max_turns=40)


@event("tests.parcel_sent")
@dataclass(frozen=True)
class Sent:
    """Something was sent, on the record of the session."""

    number: int


@dataclass
class World:
    """What the tools of an agent do, and who asked the model."""

    sent: list[int] = field(default_factory=list[int])
    put: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    looked: list[int] = field(default_factory=list[int])
    asked: list[int] = field(default_factory=list[int])
    checked: int = 0

    def agent(self, **more: Any) -> Agent[str]:
        """Return an agent that looks twice at once, sends, and puts, in every round."""

        @tool(read_only=True, parallel_safe=True)
        def look(number: int) -> str:
            """Look."""
            self.looked.append(number)
            return f"saw {number}"

        @tool
        def send(number: int, context: ToolContext) -> str:
            """Send."""
            self.sent.append(number)
            context.session.dispatch(Sent(number))
            return f"sent {number}"

        @tool(idempotent=True)
        def put(number: int, context: ToolContext) -> str:
            """Put."""
            self.put.append((number, context.idempotency_key))
            return f"put {number}"

        return Agent(
            model=ScriptedModel(self.step),
            instructions="Work.",
            tools=[look, send, put],
            limits=HOUR,
            task_completion_checker=Twice(self),
            **more,
        )

    def step(self, request: ModelRequest) -> Say | Call | Calls:
        """Return what the model says: it follows from the conversation alone."""
        done = sum(isinstance(message, ToolMessage) for message in request.transcript)
        self.asked.append(done)
        number, place = divmod(done, 4)
        if number == ROUNDS:
            return Say("finished")
        if place == 0:
            return Calls((Call("look", {"number": number}), Call("look", {"number": number + 100})))
        return Call("send" if place == 2 else "put", {"number": number})


@dataclass
class Twice(TaskCompletionChecker):
    """Sends the agent back to work once."""

    world: World

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Refuse the first time, by what is on record."""
        self.world.checked += 1
        told = any("again" in getattr(each.event, "text", "") for each in context.session.log)
        return TaskCompletionResult.ok("fine") if told else TaskCompletionResult.incomplete("say it again")


def lines_of(store: Path) -> list[bytes]:
    """Return the lines of the only run of a store."""
    (file,) = (store / "runs").iterdir()
    return file.read_bytes().splitlines(keepends=True)


def died_after(lines: list[bytes], count: int, store: Path, torn: bytes = b"") -> str:
    """Write a store whose run has these many lines, and return the id of the run."""
    RunStore(store).close()
    file = store / "runs" / f"{RUNS['whole']}.jsonl"
    file.write_bytes(b"".join(lines[:count]) + torn)
    return RUNS["whole"]


RUNS: dict[str, str] = {}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bytes], RunResult[str]]:
    """Return the lines of a run that nobody disturbed, and how it ended."""
    store = tmp_path_factory.mktemp("whole") / "store"
    result = World().agent().run("go", store=store)
    assert result.ok
    RUNS["whole"] = str(result.run_id)
    return lines_of(store), result


def on_record(store: Path) -> tuple[set[str], set[str]]:
    """Return the ids of the tool calls that have a result, and of those that had begun, before a run was resumed."""
    done, begun = set[str](), set[str]()
    with RunStore(store, read_only=True) as reader:
        for each in reader.events(RUNS["whole"], calls=True):
            event = each.load()
            if isinstance(event, RunResumed):
                break
            if isinstance(event, ToolInvoked):
                done.add(event.call_id or "")
            if isinstance(event, CallBegun):
                begun.add(event.call_id)
    return done, begun


def test_a_run_goes_on_from_every_line_and_does_nothing_twice(
    whole: tuple[list[bytes], RunResult[str]], tmp_path: Path
) -> None:
    lines, undisturbed = whole
    beginning = next(place for place, line in enumerate(lines) if b'"tag":"run_opened"' in line) + 1
    for count in range(beginning, len(lines)):
        world = World()
        run_id = died_after(lines, count, tmp_path / str(count), lines[count][: len(lines[count]) // 2])
        result = world.agent().resume(run_id, store=tmp_path / str(count))
        assert result.ok, (count, result.sentence())
        assert result.output == undisturbed.output
        assert result.run_id == undisturbed.run_id
        done, begun = on_record(tmp_path / str(count))
        repeated = [each for each in events(result, ToolInvoked) if each.outcome == "unknown"]
        assert {each.call_id for each in repeated} == {each for each in begun - done if each}
        invoked = [each.call_id or "" for each in events(result, ToolInvoked)]
        assert sorted(invoked) == sorted({*invoked}), f"a call has two results after a death behind line {count}"
        assert len(world.sent) + len([each for each in done if each]) <= len(invoked)
        numbers = [each.number for each in events(result, Sent)]
        assert numbers == sorted({*numbers})
        assert len(numbers) == ROUNDS - len(repeated)
        extra = result.usage.presumed.calls
        assert extra <= 1
        own = result.usage.tokens.total - result.usage.presumed.tokens.total
        assert own == undisturbed.usage.tokens.total
        assert result.usage.model_calls == undisturbed.usage.model_calls + extra


def test_a_run_of_which_nothing_is_on_record_is_begun_anew(
    whole: tuple[list[bytes], RunResult[str]], tmp_path: Path
) -> None:
    run_id = died_after(whole[0], 3, tmp_path / "store")
    with pytest.raises(ConfigurationError, match="died before anything was done; start a new run"):
        World().agent().resume(run_id, store=tmp_path / "store")


def test_slices_are_rebuilt_without_their_reducers(whole: tuple[list[bytes], RunResult[str]], tmp_path: Path) -> None:
    lines, _ = whole
    run_id = died_after(lines, len(lines) - 3, tmp_path / "store")
    result = World().agent().resume(run_id, store=tmp_path / "store")
    assert [each.number for each in result.session[Sent].all()] == list(range(ROUNDS))


def test_a_done_run_a_running_run_and_none_are_refused(
    whole: tuple[list[bytes], RunResult[str]], tmp_path: Path
) -> None:
    lines, _ = whole
    run_id = died_after(lines, len(lines), tmp_path / "done")
    agent = World().agent()
    with pytest.raises(ConfigurationError, match="is done"):
        agent.resume(run_id, store=tmp_path / "done")
    with pytest.raises(StoreError, match="no run whose id begins with"):
        agent.resume("feed", store=tmp_path / "done")
    died_after(lines, 10, tmp_path / "owned")
    with RunStore(tmp_path / "owned") as owner:
        owner.take_over(run_id)
        with pytest.raises(StoreError, match="is running"):
            agent.resume(run_id, store=tmp_path / "owned")


def test_changed_tools_are_refused_unless_accepted(whole: tuple[list[bytes], RunResult[str]], tmp_path: Path) -> None:
    lines, _ = whole
    run_id = died_after(lines, 12, tmp_path / "store")
    world = World()
    other = world.agent(output_type=str, sections=())

    @tool
    def more() -> str:
        """Do more."""
        return ""

    changed = Agent(
        model=other.model,
        instructions="Work.",
        tools=[*other.tools, more],
        limits=HOUR,
        task_completion_checker=Twice(world),
    )
    with pytest.raises(ConfigurationError, match="its tools changed"):
        changed.resume(run_id, store=tmp_path / "store")
    result = changed.resume(run_id, store=tmp_path / "store", accept_changes=True)
    assert result.ok
    assert events(result, RunResumed)[-1].changes == ("tools",)


def test_a_run_that_a_limit_stopped_goes_on_under_another(tmp_path: Path) -> None:
    world = World()
    agent = world.agent()
    short = Agent(
        model=agent.model,
        instructions="Work.",
        tools=agent.tools,
        limits=Limits(max_turns=4),
        task_completion_checker=Twice(world),
    )
    first = short.run("go", store=tmp_path / "store")
    assert first.stop is not None
    before = list(world.sent)
    again = short.resume(str(first.run_id), store=tmp_path / "store")
    assert again.stop is not None
    assert world.sent == before
    result = short.resume(str(first.run_id), store=tmp_path / "store", limits=HOUR)
    assert result.ok
    assert world.sent == list(range(ROUNDS))
    assert result.usage.tokens.total > first.usage.tokens.total


VICTIM = """
import os, sys
from tests.app.test_resume import World
world = World()
agent = world.agent()
send = next(tool for tool in agent.tools if tool.name == "send").handler
count = 0
plain = world.sent.append
class Deadly(list):
    def append(self, number):
        print(f"sent {number}", flush=True)
        if number == 2:
            os.kill(os.getpid(), 9)
        super().append(number)
world.sent = Deadly()
agent.run("go", store=sys.argv[1])
"""


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    store = tmp_path / "store"
    died = subprocess.run([sys.executable, "-c", VICTIM, str(store)], capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert died.stdout.split("\n")[:3] == ["sent 0", "sent 1", "sent 2"]
    with RunStore(store, read_only=True) as reader:
        (run,) = reader.runs()
    assert (run.ended_at, run.running) == (None, False)
    world = World()
    result = world.agent().resume(run.run_id, store=store)
    assert result.ok
    assert world.sent == [3]
    (unknown,) = [each for each in events(result, ToolInvoked) if each.outcome == "unknown"]
    assert unknown.name == "send"


KILLED_IN_PUT = """
import os, sys
from tests.app.test_resume import World
world = World()
class Deadly(list):
    def append(self, put):
        if len(self) == 2:
            print(put[1], flush=True)
            os.kill(os.getpid(), 9)
        super().append(put)
world.put = Deadly()
world.agent().run("go", store=sys.argv[1])
"""


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_an_idempotent_call_that_a_crash_cut_off_gets_the_same_key_and_the_model_is_not_asked_again(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    died = subprocess.run(
        [sys.executable, "-c", KILLED_IN_PUT, str(store)], capture_output=True, text=True, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    with RunStore(store, read_only=True) as reader:
        (run,) = reader.runs()
    world = World()
    assert world.agent().resume(run.run_id, store=store).ok
    assert world.put[0] == (2, died.stdout.strip())
    assert world.asked[0] == 12, "the reply that asks for the call is on record"
