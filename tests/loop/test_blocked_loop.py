"""An async tool that blocks the shared loop is named, and the others end with their own deadline."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from watchkeeper import Adapter, Limits, MarkdownSection, Prompt, PromptTemplate, run, run_many, tool
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import DeadlineExceededError, PromptEvaluationError
from watchkeeper.models import Call, ScriptedModel
from watchkeeper.runtime import watchdog


def ask(*tools: Any) -> Prompt[str]:
    section = MarkdownSection("Task", "task", "Go.", tools=tools)
    return Prompt(PromptTemplate[str](ns="demo", key="blocked", sections=(section,)))


@contextmanager
def told_of_blocking(by: str) -> Generator[threading.Event]:
    """Yield what is set when the log tells that this blocks the loop; on a busy machine, others may seem to."""
    told = threading.Event()

    class Listens(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if f"event='loop.blocked' by='{by}'" in record.getMessage():
                told.set()

    listener, log = Listens(), logging.getLogger("watchkeeper")
    log.addHandler(listener)
    try:
        yield told
    finally:
        log.removeHandler(listener)


def test_the_tool_that_blocks_the_loop_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "BLOCKED_SECONDS", 0.1)

    @tool
    async def naps() -> str:
        """Block."""
        return f"told={told.wait(20)}"

    with told_of_blocking("naps") as told:
        result = run(ask(naps), model=ScriptedModel([Call("naps"), "done"]))
    assert result.stop is None
    lines = [record.getMessage() for record in caplog.records if "by='naps'" in record.getMessage()]
    assert len(lines) == 2
    assert "event='loop.blocked' by='naps'" in lines[0]
    assert "test_blocked_loop.py" in lines[0]
    assert " in naps'" in lines[0]
    assert "remedy='every other run waits for it; write the tool as def" in lines[0]
    assert "event='loop.free' was_blocked_by='naps'" in lines[1]


def test_nothing_is_said_of_tools_where_something_else_blocks_the_loop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "BLOCKED_SECONDS", 0.1)
    with told_of_blocking("code outside of any call") as told:
        template = PromptTemplate[str](ns="demo", key="label", sections=(MarkdownSection("Task", "task", "Go."),))
        done = run_many(template, [()], model=ScriptedModel(["done"]), label=lambda item: f"told={told.wait(20)}")
    assert done.ok
    line = next(record.getMessage() for record in caplog.records if "loop.blocked" in record.getMessage())
    assert "by='code outside of any call'" in line
    assert "asyncio.to_thread" in line
    assert "tool" not in line.partition("remedy=")[2]


@contextmanager
def told_of_call(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> Generator[threading.Event]:
    """Yield what is set when a thread has handed its work to a loop."""
    handed, hand = threading.Event(), loop.call_soon_threadsafe

    def call_soon_threadsafe(*work: Any, **more: Any) -> Any:
        handle = hand(*work, **more)
        if threading.current_thread() is thread:
            handed.set()
        return handle

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", call_soon_threadsafe)
        yield handed


def while_blocked(other: Callable[[TestClock, datetime], Any]) -> Any:
    """Start a run on another thread while a tool blocks the loop; the other's deadline passes meanwhile."""
    ends: list[Any] = []

    @tool
    async def blocks() -> str:
        """Block until the other was called and its time is over."""
        clock = TestClock()
        deadline = clock.now() + timedelta(seconds=2)

        def start() -> None:
            try:
                ends.append(other(clock, deadline))
            except Exception as error:  # the test looks at it
                ends.append(error)

        threads.append(threading.Thread(target=start))
        with told_of_call(asyncio.get_running_loop(), threads[0]) as handed:
            threads[0].start()
            handed.wait(30)
        clock.advance(6)
        return "blocked"

    threads: list[threading.Thread] = []
    run(ask(blocks), model=ScriptedModel([Call("blocks"), "done"]))
    threads[0].join()
    return ends[0]


@pytest.mark.spec("DL-010")
def test_an_evaluation_that_begins_late_ends_with_its_deadline() -> None:
    model = ScriptedModel(["late"])
    error = while_blocked(lambda clock, at: Adapter(model, clock=clock).evaluate(ask(), deadline=at))
    assert isinstance(error, DeadlineExceededError)
    assert (error.phase, error.stop and error.stop.reason) == ("deadline", "timeout")
    assert model.requests == []


def test_a_run_that_begins_late_ends_with_its_deadline() -> None:
    result = while_blocked(
        lambda clock, at: run(ask(), model=ScriptedModel(["late"]), clock=clock, parent=None, limits=Limits(at))
    )
    assert result.stop.reason == "timeout"


def test_a_deadline_that_was_over_at_the_call_is_refused_as_before() -> None:
    clock = TestClock()
    over = clock.now() - timedelta(seconds=1)
    with pytest.raises(PromptEvaluationError, match="is not in the future") as caught:
        Adapter(ScriptedModel([]), clock=clock).evaluate(ask(), deadline=over)
    assert caught.value.phase == "preflight"
    with pytest.raises(ValueError, match="is over already"):
        run(ask(), model=ScriptedModel([]), clock=clock, limits=Limits(over))
