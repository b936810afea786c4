"""Isolated tools in runs: time-outs, deadlines, aborts and retries end the process before anything else happens.

The processes are real; the time that ends them is the test's, moved on once they have begun.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit import Call, Calls, Report, Say, ScriptedModel, agent, events, outcomes, play, tool_texts
from tests.tools import isolated_functions as functions
from tests.tools.processes import Lives
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.clock import TestClock
from watchkeeper.runtime.events import RunEnded
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import Tool, tool


def isolated(function: Callable[..., Any], **options: Any) -> Tool:
    return tool(isolation="process", kill_grace="50ms", name="work", **options)(function)


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    with closing(Lives(tmp_path / "fifo")) as lives:
        yield lives


async def test_a_value_comes_back_and_the_attempt_is_an_event() -> None:
    model = ScriptedModel([Call("work", {"a": 2}), Say(Report(4))])
    result = await play(agent(isolated(functions.add)), model)
    assert tool_texts(model) == ["4"]
    invoked = events(result, ToolInvoked)[0]
    assert (invoked.outcome, invoked.result.value, invoked.attempt) == ("ok", 4, 1)
    assert invoked.node_id is not None


async def test_what_goes_wrong_is_told_to_the_model() -> None:
    model = ScriptedModel([Call("work", {"text": "not this"}), Say(Report(0))])
    result = await play(agent(isolated(functions.fail)), model)
    assert outcomes(result) == [("work", "crashed")]
    assert tool_texts(model) == ["work failed: ValueError: not this. It may have had an effect all the same."]
    assert events(result, ToolInvoked)[0].traceback.endswith(
        "in fail\n    raise ValueError(text)\nValueError: not this"
    )


async def test_a_reply_with_a_number_that_would_take_minutes_is_a_crash() -> None:
    model = ScriptedModel([Call("work"), Say(Report(0))])
    result = await play(agent(isolated(functions.reply_forged)), model)
    assert outcomes(result) == [("work", "crashed")]
    assert "what its process returned cannot be read: this is not a valid 'fraction'" in tool_texts(model)[0]


async def test_arguments_with_a_number_that_would_take_minutes_are_invalid() -> None:
    @tool
    def pay(amount: Decimal) -> str:
        """Pay."""
        return "paid"

    model = ScriptedModel([Call("pay", {"amount": "1e99999999"}), Say(Report(0))])
    result = await play(agent(pay), model)
    assert outcomes(result) == [("pay", "invalid")]
    assert "exponents end at 6,144" in tool_texts(model)[0]


async def test_a_refusal_for_the_model_is_invalid() -> None:
    model = ScriptedModel([Call("work", {"text": "only digits"}), Say(Report(0))])
    result = await play(agent(isolated(functions.refuse)), model)
    assert outcomes(result) == [("work", "invalid")]
    assert tool_texts(model) == ["only digits"]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_death_is_retried_as_any_crash_if_the_tool_may_run_twice(idempotent: bool) -> None:
    model = ScriptedModel([Call("work", {"code": 3}), Say(Report(0))])
    result = await play(agent(isolated(functions.leave, retries=1, idempotent=idempotent)), model)
    assert outcomes(result) == [("work", "crashed")] * (2 if idempotent else 1)
    (said,) = tool_texts(model)
    assert "ended with exit code 3 before it returned a result" in said
    assert said.endswith("It may have had an effect all the same.") is not idempotent


async def test_a_function_that_says_that_it_did_nothing_is_tried_again() -> None:
    model = ScriptedModel([Call("work", {"text": "busy"}), Say(Report(0))])
    result = await play(agent(isolated(functions.do_nothing, retries=1)), model)
    assert outcomes(result) == [("work", "crashed")] * 2
    assert tool_texts(model) == ["work failed: NothingDoneError: busy. It had no effect."]
    assert "in do_nothing" in events(result, ToolInvoked)[0].traceback


async def test_a_process_that_cannot_import_the_function_is_tried_again() -> None:
    reached = isolated(functions.leave, retries=1)
    assert reached.isolation is not None
    missing = msgspec.structs.replace(reached.isolation.reference, module="no_such_module_is_there", file="")
    lost = replace(reached, isolation=msgspec.structs.replace(reached.isolation, reference=missing))
    model = ScriptedModel([Call("work", {"code": 3}), Say(Report(0))])
    result = await play(agent(lost), model)
    assert outcomes(result) == [("work", "crashed")] * 2
    assert tool_texts(model)[0].startswith("work failed: its process could not import it: ModuleNotFoundError")
    assert tool_texts(model)[0].endswith("It had no effect.")


@pytest.mark.parametrize("function", [functions.wait_stubbornly, functions.wait_for_shell])
async def test_the_tools_own_time_out_ends_the_process_before_the_model_is_asked_again(
    lives: Lives, function: Callable[..., Any]
) -> None:
    clock = TestClock()
    dead: list[bool] = []

    def answer(*_: Any) -> Any:
        dead.append(lives.all_dead())
        return Say(Report(0))

    model = ScriptedModel([Call("work", {"fifo": lives.fifo}), answer])
    running = asyncio.ensure_future(play(agent(isolated(function, timeout="4s")), model, clock=clock))
    await asyncio.to_thread(lives.begun)
    clock.advance(4)
    result = await running
    assert outcomes(result) == [("work", "timeout")]
    said = "work did not finish within 4s and was stopped. It may have had an effect all the same."
    assert tool_texts(model) == [said]
    assert dead == [True]


async def test_a_blocked_loop_does_not_prolong_the_life_of_a_process(lives: Lives) -> None:
    clock = TestClock()
    ended: list[bool] = []

    @tool(parallel_safe=True)
    async def block() -> str:
        """Hold up the loop until the process of the other call has ended."""
        lives.begun()
        clock.advance(5)
        ended.append(lives.ends_within(20))
        return "blocked"

    waiting = isolated(functions.wait, timeout="4s", parallel_safe=True)
    model = ScriptedModel([Calls((Call("work", {"fifo": lives.fifo}), Call("block"))), Say(Report(0))])
    result = await play(agent(waiting, block), model, clock=clock)
    assert ended == [True]
    assert outcomes(result) == [("work", "timeout"), ("block", "ok")]


async def test_a_retry_begins_only_when_the_attempt_before_it_is_dead(lives: Lives) -> None:
    clock = TestClock()
    model = ScriptedModel([Call("work", {"fifo": lives.fifo}), Say(Report(0))])
    running = asyncio.ensure_future(
        play(agent(isolated(functions.wait_stubbornly, timeout="4s", retries=1, read_only=True)), model, clock=clock)
    )
    first = await asyncio.to_thread(lives.begun)
    clock.advance(4)
    second = await asyncio.to_thread(lives.begun)
    assert first != second
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    clock.advance(4)
    assert outcomes(await running) == [("work", "timeout")] * 2
    assert lives.all_dead()


@pytest.mark.spec("FR-022")
async def test_the_deadline_ends_the_process_before_the_run_ends(lives: Lives) -> None:
    clock = TestClock()
    model = ScriptedModel([Call("work", {"fifo": lives.fifo}), Say(Report(0))])
    limits = Limits(deadline="4s", landing=None)
    running = asyncio.ensure_future(play(agent(isolated(functions.wait_for_shell)), model, limits, clock=clock))
    await asyncio.to_thread(lives.begun)
    clock.advance(4)
    result = await running
    assert lives.all_dead()
    assert outcomes(result) == [("work", "deadline")]
    assert result.stop is not None
    assert result.stop.reason == "timeout"


async def test_a_cancelled_run_is_over_when_the_process_is_dead(lives: Lives) -> None:
    model = ScriptedModel([Call("work", {"fifo": lives.fifo}), Say(Report(0))])
    running = asyncio.ensure_future(play(agent(isolated(functions.wait_stubbornly)), model))
    await asyncio.to_thread(lives.begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert lives.all_dead()


async def test_isolated_tools_run_side_by_side_where_they_may(tmp_path: Path) -> None:
    living = [Lives(tmp_path / name) for name in "ab"]
    model = ScriptedModel([Calls(tuple(Call("work", {"fifo": one.fifo}) for one in living)), Say(Report(0))])
    tool_ = isolated(functions.wait, timeout="5s", parallel_safe=True)
    clock = TestClock()
    running = asyncio.ensure_future(play(agent(tool_), model, clock=clock))
    for one in living:
        await asyncio.to_thread(one.begun)
    clock.advance(5)
    assert outcomes(await running) == [("work", "timeout")] * 2
    assert [one.all_dead() for one in living] == [True, True]
    for one in living:
        one.close()


SCRIPT = """
    import os
    from tests.tools import isolated_functions as functions
    from watchkeeper import Agent, Limits, run, tool
    from watchkeeper.adapters.scripted import Call, ScriptedModel
    from watchkeeper.runtime.portal import EndRequests

    def heard(requests, number, take=EndRequests.take):
        taken = take(requests, number)
        os.write(1, b"heard\\n")
        return taken

    EndRequests.take = heard
    work = tool(isolation="process", kill_grace={grace!r})(functions.wait_stubbornly)
    model = ScriptedModel([Call("wait_stubbornly", {{"fifo": {fifo!r}}}), "done"])
    result = Agent(model, "You wait.", str, tools=(work,)).run("Wait.", store=None)
    print(result.stop.reason)
"""


@pytest.mark.spec("FR-022")
@pytest.mark.usefixtures("terminal_signals")
@pytest.mark.parametrize(("interrupts", "grace", "printed"), [(2, "50ms", "aborted\n"), (3, "1h", "")])
def test_a_hard_ctrl_c_ends_the_process_and_a_third_does_not_wait_for_its_grace(
    lives: Lives, interrupts: int, grace: str, printed: str
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT.format(fifo=lives.fifo, grace=grace))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    lives.begun()
    assert parent.stdout is not None
    for _ in range(interrupts):  # two signals at once would be one
        parent.send_signal(signal.SIGINT)
        assert parent.stdout.readline() == "heard\n"
    assert parent.communicate()[0] == printed
    lives.wait_for_the_end()


async def test_the_end_of_a_run_is_recorded_after_the_end_of_its_processes(lives: Lives) -> None:
    clock = TestClock()
    model = ScriptedModel([Call("work", {"fifo": lives.fifo}), Say(Report(0))])
    limits = Limits(deadline="4s", landing=None)
    running = asyncio.ensure_future(play(agent(isolated(functions.wait_stubbornly)), model, limits, clock=clock))
    await asyncio.to_thread(lives.begun)
    clock.advance(4)
    result = await running
    assert lives.all_dead()
    invoked, ended = events(result, ToolInvoked)[0], events(result, RunEnded)[0]
    assert invoked.duration_ms >= 4000
    assert ended.duration_ms >= invoked.duration_ms
