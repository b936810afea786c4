"""The run record of a contained block: what is in the store while it goes on, and after it."""

# ruff: noqa: PT012, SIM117 -- a block that is ended is what is tested, and blocks nest as they are used

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, OpenAI

from tests.kit import Call, FullDisk, ScriptedModel
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.agent import Agent
from watchkeeper.blocks.block_record import PassingLog
from watchkeeper.blocks.contained import contained
from watchkeeper.children.innermost import innermost_run
from watchkeeper.contained_sdk.calls import CallStopped
from watchkeeper.contained_sdk.http import contained_async_http_client, contained_http_client
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.errors import ConfigurationError, RunStoppedError, StoreError
from watchkeeper.shield.decision import SafetyEvent
from watchkeeper.store.cancelling import cancel
from watchkeeper.store.plain_json import untyped
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import Fault
from watchkeeper.tools.tool import tool

MESSAGES: Any = [{"role": "user", "content": "Hello."}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def ask(client: OpenAI) -> None:
    client.chat.completions.create(model="gpt-5-mini", messages=MESSAGES)


def rows(path: Path) -> tuple[StoredRun, ...]:
    """Return the runs that have no parent, the newest first."""
    with RunStore(path, read_only=True) as store:
        return store.runs()


def below(path: Path, run: StoredRun) -> tuple[StoredRun, ...]:
    with RunStore(path, read_only=True) as store:
        return store.children(run.run_id)


def log(path: Path, run: StoredRun) -> list[tuple[str, Any]]:
    with RunStore(path, read_only=True) as store:
        return [(event.tag, untyped(event.body)) for event in store.events(run.run_id)]


def tags(path: Path, run: StoredRun) -> list[str]:
    return [tag for tag, _ in log(path, run)]


# --- one block --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-182")
def test_a_block_leaves_a_row_and_an_event_for_each_call(client: OpenAI, path: Path) -> None:
    with contained(max_cost_usd=1, store=path) as gate:
        ask(client)
        ask(client)
    (run,) = rows(path)
    assert run.run_id == gate.metadata.chain_id
    assert (run.prompt.partition(":")[0], run.model, run.is_block) == ("test_block_record.py", "contained", True)
    assert run.ended_at is not None
    assert (run.stop, run.tokens, run.steps) == (None, 30, 2)
    assert run.cost_nanos == gate.usage.cost_nanos
    assert "cost $1.00" in run.limits
    assert run.sentence().startswith("Done: 2 model calls, 0 tool calls, 30 tokens, $0.000025, ")
    assert tags(path, run) == ["run_started", "call_ended", "call_ended", "run_ended"]
    call = log(path, run)[1][1]
    assert (call["provider"], call["name"], call["kind"], call["status"]) == ("openai", "gpt-5-mini", "llm", "ok")
    assert (call["usage"]["input_tokens"], call["usage"]["output_tokens"], call["cost_nanos"]) == (10, 5, 12_500)
    assert call["duration_ms"] > 0


def test_the_row_is_there_while_the_block_is_open(client: OpenAI, path: Path) -> None:
    with contained(store=path):
        ask(client)
        written = threading.Event()
        for _ in range(2_000):
            if any("call_ended" in tags(path, run) for run in rows(path)):
                break
            written.wait(0.005)
        (run,) = rows(path)
        assert run.ended_at is None
        assert "call_ended" in tags(path, run)
    assert rows(path)[0].ended_at is not None


def test_a_stop_is_in_the_row_and_refused_calls_are_in_the_log(client: OpenAI, path: Path) -> None:
    with pytest.raises(RunStoppedError) as caught:
        with contained(max_steps=1, store=path):
            while True:
                ask(client)
    (run,) = rows(path)
    assert run.run_id == caught.value.result.chain_id
    assert run.stop is not None
    assert (run.stop["reason"], run.stop["limit"]) == ("step_limit_exceeded", "max_steps")
    assert tags(path, run) == ["run_started", "call_ended", "call_ended", "safety_event", "run_ended"]
    refused = log(path, run)[2][1]
    assert (refused["status"], refused["stop_reason"]) == ("halted", "step_limit_exceeded")


def test_an_error_of_the_code_and_of_the_provider_are_on_record(path: Path) -> None:
    with FakeOpenAI(lambda number, body: Fault("bad_request", message="no such thing")) as server:
        with OpenAI(api_key="k", base_url=server.base_url, http_client=contained_http_client()) as client:
            with pytest.raises(APIStatusError):
                with contained(store=path):
                    ask(client)
    (run,) = rows(path)
    assert run.stop is not None
    assert run.stop["reason"] == "error"
    call = log(path, run)[1][1]
    assert call["status"] == "error"
    assert "no such thing" in call["error"]


def test_a_key_is_on_record_nowhere(server: FakeOpenAI, path: Path) -> None:
    secret = "sk-proj-0123456789abcdefghijklmn"
    with OpenAI(api_key=secret, base_url=server.base_url, http_client=contained_http_client()) as client:
        with pytest.raises(ValueError, match=secret):
            with contained(store=path):
                ask(client)
                raise ValueError(f"the key {secret} was not taken")
    stored = json.dumps([run.as_data() for run in rows(path)]) + json.dumps(log(path, rows(path)[0]))
    assert "was not taken" in stored
    assert secret not in stored


def test_calls_at_the_blocks_own_gate_are_on_record(path: Path) -> None:
    with contained(store=path) as gate:
        gate.call_tool(lambda: 1)
        with ExecutionContext(Limits()) as inner:
            inner.call_tool(lambda: 2)
    assert tags(path, rows(path)[0]).count("call_ended") == 2


def test_a_block_without_a_call_says_so_in_its_record(path: Path) -> None:
    with contained(store=path):
        pass
    (run,) = rows(path)
    assert [body["event_type"] for tag, body in log(path, run) if tag == "safety_event"] == ["no_call_seen"]


# --- how it is called -------------------------------------------------------------------------------------------------


def test_a_function_names_its_blocks(client: OpenAI, path: Path) -> None:
    @contained(store=path)
    def greet() -> None:
        ask(client)

    @contained(store=path, name="nightly job")
    def other() -> None:
        ask(client)

    greet()
    greet()
    other()
    assert [run.prompt.rpartition(".")[2] for run in rows(path)] == ["nightly job", "greet", "greet"]


async def test_an_async_block_is_called_by_its_line_also_on_a_stack(path: Path) -> None:
    async with contained(store=path):
        pass
    with ExitStack() as stack:
        stack.enter_context(contained(store=path))
    assert {run.prompt.partition(":")[0] for run in rows(path)} == {"test_block_record.py"}


# --- where it is written ----------------------------------------------------------------------------------------------


def test_without_a_named_store_it_is_the_users_own(client: OpenAI, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHKEEPER_STORE", str(path))
    with contained():
        ask(client)
    assert len(rows(path)) == 1
    monkeypatch.setenv("WATCHKEEPER_STORE", "none")
    with contained():
        ask(client)
    assert len(rows(path)) == 1


def test_none_leaves_no_record(client: OpenAI, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHKEEPER_STORE", str(path))
    with contained(store=None):
        ask(client)
    assert not path.exists()


def test_an_open_store_is_used_and_stays_open(client: OpenAI, path: Path) -> None:
    with RunStore(path) as store:
        for _ in range(2):
            with contained(store=store):
                ask(client)
        assert not store.closed
        assert len(store.runs()) == 2


def test_a_store_that_cannot_be_opened_refuses_the_block(client: OpenAI, server: FakeOpenAI, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no store")
    with pytest.raises(StoreError, match="store=None"):
        with contained(store=tmp_path / "notes"):
            ask(client)
    assert not server.requests
    ask(client)  # no block is left open
    assert len(server.requests) == 1


@pytest.mark.parametrize("wrong", [{"store": 7}, {"on_store_failure": "wait"}, {"name": 3}])
def test_a_wrong_value_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        contained(**wrong)


# --- blocks, runs and threads inside ----------------------------------------------------------------------------------


def test_a_block_inside_a_block_is_its_child(client: OpenAI, path: Path) -> None:
    with contained(store=path):
        ask(client)
        with contained(max_steps=5, name="inner"):
            ask(client)
        with contained(store=None):
            ask(client)
    (outer,) = rows(path)
    (inner,) = below(path, outer)
    assert (inner.prompt, inner.model, inner.steps, outer.steps) == ("inner", "contained", 1, 3)
    # What leaves no record of its own is told by the block around it.
    assert tags(path, outer) == [
        *("run_started", "call_ended", "child_started", "child_ended", "call_ended", "run_ended")
    ]
    ended = next(body for tag, body in log(path, outer) if tag == "child_ended")
    assert (ended["kind"], ended["run_id"], ended["stop"]) == ("block", inner.run_id, None)
    assert ended["said"].startswith("Done: 1 model call, ")


def test_a_block_that_stands_apart_has_no_parent(client: OpenAI, path: Path) -> None:
    with contained(store=path):
        with contained(store=path, parent=None):
            ask(client)
    apart, outer = rows(path)
    assert log(path, apart)[0][1]["apart"] is True
    assert tags(path, outer) == ["run_started", "safety_event", "run_ended"]


def test_runs_inside_a_block_are_its_children(client: OpenAI, path: Path) -> None:
    with contained(store=path):
        ask(client)
        Agent(ScriptedModel(["done"]), "Work.", str).run("a task")
        Agent(ScriptedModel(["one", "two"]), "Work.", str).run_many(["1", "2"], concurrency=1)
    (outer,) = rows(path)
    run, many = below(path, outer)
    assert (run.items, run.completion, many.items, many.items_done) == (None, "unchecked", 2, 2)
    assert outer.usage is not None
    assert outer.usage["model_calls"] == 4
    assert [tag for tag in tags(path, outer) if tag == "call_ended"] == ["call_ended"]  # the runs tell of theirs
    assert "model_replied" in tags(path, run)


def test_a_block_inside_a_run_is_its_child_and_names_the_tool_call(client: OpenAI, path: Path) -> None:
    @tool
    def look() -> str:
        """Look."""
        with contained(max_steps=3, name="in a tool"):
            ask(client)
        return "seen"

    result = Agent(ScriptedModel([Call("look"), "done"]), "Work.", str, tools=[look]).run("a task", store=path)
    assert result.ok
    (outer,) = rows(path)
    (block,) = below(path, outer)
    assert (block.prompt, block.steps) == ("in a tool", 1)
    assert tags(path, block) == ["run_started", "call_ended", "run_ended"]
    started = next(body for tag, body in log(path, outer) if tag == "child_started")
    invoked = next(body for tag, body in log(path, outer) if tag == "tool_invoked")
    assert started["kind"] == "block"
    assert started["call_id"] == invoked["call_id"]


def test_threads_with_and_without_the_context_are_on_record(client: OpenAI, path: Path) -> None:
    with contained(store=path):
        copied = contextvars.copy_context()
        threads = [threading.Thread(target=copied.copy().run, args=(ask, client)) for _ in range(4)]
        threads.append(threading.Thread(target=ask, args=(client,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (run,) = rows(path)
    with RunStore(path, read_only=True) as store:
        assert [event.seq for event in store.events(run.run_id)] == list(range(1, 8))
    assert tags(path, run).count("call_ended") == 5


async def test_async_blocks_side_by_side(server: FakeOpenAI, path: Path) -> None:
    async with AsyncOpenAI(api_key="k", base_url=server.base_url, http_client=contained_async_http_client()) as client:

        @contained(store=path)
        async def one(times: int) -> None:
            for _ in range(times):
                await client.chat.completions.create(model="gpt-5-mini", messages=MESSAGES)

        await asyncio.gather(one(1), one(2), one(3))
    assert sorted(run.steps or 0 for run in rows(path)) == [1, 2, 3]
    assert all(run.stop is None and not below(path, run) for run in rows(path))


async def test_a_cancelled_block_says_so(path: Path) -> None:
    entered = asyncio.Event()

    async def wait() -> None:
        async with contained(store=path):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (run,) = rows(path)
    assert run.stop is not None
    assert run.stop["reason"] == "aborted"


def test_a_plain_block_on_the_loop_of_a_run_does_not_wait_for_itself(client: OpenAI, path: Path) -> None:
    @tool
    async def look() -> str:
        """Look."""
        with contained(store=path, parent=None):
            ask(client)
        return "seen"

    assert Agent(ScriptedModel([Call("look"), "done"]), "Work.", str, tools=[look]).run("a task", store=None).ok
    assert [run.steps for run in rows(path)] == [1]


# --- a killed process, a fork -----------------------------------------------------------------------------------------

KILLED = """
import os, pathlib, sys, time
from watchkeeper import contained
with contained(store=sys.argv[1], name="killed") as gate:
    gate.call_tool(lambda: 1)
    runs = pathlib.Path(sys.argv[1], "runs")
    while not any(b"call_ended" in file.read_bytes() for file in runs.iterdir()):
        time.sleep(0.005)
    os.kill(os.getpid(), 9)
"""


def test_the_record_of_a_killed_process_is_there_and_says_that_it_has_not_ended(path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode == -9
    (run,) = rows(path)
    assert (run.prompt, run.ended_at) == ("killed", None)
    assert run.sentence() == "Interrupted: its process ended before the run did."
    assert tags(path, run) == ["run_started", "call_ended"]
    with RunStore(path) as store:
        cancelled = cancel(store, run.run_id, by="cleo")
    assert (cancelled.stop and cancelled.stop["reason"], cancelled.steps) == ("cancelled", 1)


FORKED = """
import os, sys
from watchkeeper import contained
with contained(store=sys.argv[1], name="parent") as gate:
    gate.call_tool(lambda: 1)
    child = os.fork()
    if child == 0:
        with contained(store=sys.argv[1], name="child", parent=None) as own:
            own.call_tool(lambda: 1)
    else:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_records_its_own_blocks_only(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, str(path)], check=False, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert {run.prompt: tags(path, run) for run in rows(path)} == {
        "parent": ["run_started", "call_ended", "run_ended"],
        "child": ["run_started", "call_ended", "run_ended"],
    }


# --- a store that fails -----------------------------------------------------------------------------------------------


@pytest.fixture
def full(path: Path) -> Iterator[RunStore]:
    """Return a store of which every write fails."""
    with FullDisk(path) as store:
        store.failures = math.inf
        yield store


def let_time_pass(clock: TestClock, until: threading.Event) -> None:
    for _ in range(2_000):
        if until.wait(0.01):
            return
        clock.advance(1)
    raise AssertionError("nobody has noticed that the store fails")


def test_a_store_that_fails_for_a_minute_ends_the_block(full: RunStore) -> None:
    clock, told = TestClock(), list[SafetyEvent]()
    failed = threading.Event()

    def listen(event: SafetyEvent) -> None:
        told.append(event)
        failed.set()

    with pytest.raises(RunStoppedError, match="disk is full") as caught:
        with contained(store=full, clock=clock, timeout="10h", on_event=listen) as gate:
            gate.call_tool(lambda: 1)
            let_time_pass(clock, failed)
            assert gate.call_tool(lambda: 2).stop_reason == "store_failed"
    assert caught.value.stop.reason == "store_failed"
    assert told[0].event_type == "store_failed"


def test_a_block_may_go_on_without_its_record(full: RunStore) -> None:
    clock, told = TestClock(), list[SafetyEvent]()
    with contained(store=full, clock=clock, on_store_failure="go_on", on_event=told.append) as gate:
        assert gate.call_tool(lambda: 1).value == 1
    assert [event.event_type for event in told] == ["store_failed"]
    assert "disk is full" in told[0].reason


async def test_an_async_block_says_at_its_end_that_its_record_failed(full: RunStore) -> None:
    with pytest.raises(RunStoppedError, match="disk is full"):
        async with contained(store=full, clock=TestClock()) as gate:
            gate.call_tool(lambda: 1)


def test_an_error_of_the_code_passes_a_store_that_fails(full: RunStore) -> None:
    with pytest.raises(ZeroDivisionError):
        with contained(store=full, clock=TestClock()) as gate:
            gate.call_tool(lambda: 1)
            raise ZeroDivisionError


# --- what it holds ----------------------------------------------------------------------------------------------------


def test_the_log_of_a_block_keeps_nothing() -> None:
    passing, heard = PassingLog(SYSTEM_CLOCK), list[int]()
    passing.dispatcher.subscribe_all(lambda envelope: heard.append(envelope.seq))
    event = SafetyEvent("note", "ALLOW", "x" * 100, "test")  # type: ignore[arg-type]
    for _ in range(100):
        passing.dispatch(event)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1_000):
            passing.dispatch(event)
        heard_now = heard[-1]
        heard.clear()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
    assert heard_now == 1_100
    assert len(passing.log) == 0


def test_recorded_blocks_that_generators_hold_open_may_be_left_in_any_order(tmp_path: Path) -> None:
    def held(name: str) -> Iterator[object]:
        with contained(store=tmp_path / "runs.db", name=name) as gate:
            yield gate

    first, second = held("first"), held("second")
    for generator in (first, second):
        next(generator)
    for generator in (first, second):
        assert next(generator, None) is None
    assert innermost_run() is None


def test_a_recorded_block_is_no_run_whose_code_failed_by_a_refusal(client: OpenAI, path: Path) -> None:
    with contained(store=path), ExecutionContext(Limits(max_steps=1)):
        ask(client)
        with pytest.raises(CallStopped) as refused:
            ask(client)
    assert not refused.value.is_local
