"""When the store fails: writes are tried again for 60 s; then the run ends, or goes on and says what is not stored."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Call, Report, Say, ScriptedModel, agent
from watchkeeper.accounting.limits import UNLIMITED, Limits
from watchkeeper.app.agent import Agent
from watchkeeper.app.options import OnStoreFailure
from watchkeeper.app.run import run, run_many
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import RunStoppedError
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.events import StoreFailed
from watchkeeper.runtime.result import RunResult
from watchkeeper.shield.decision import SafetyEvent
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.tool import Tool, tool

ANSWER = json.dumps({"total": 1, "note": "done"})
HOUR = Limits(deadline="10h")


class Disk:
    """A store that can be made to fail, as a full disk does, and to work again; time is moved until that is noticed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "runs.db"
        self.clock = TestClock()
        self.failed = threading.Event()
        self.landing = threading.Event()
        self.events: list[Any] = []
        RunStore(self.path).close()

    def execute(self, statement: str) -> None:
        """Change the file from outside."""
        with closing(sqlite3.connect(self.path)) as other:
            other.execute(statement)

    def fill(self) -> None:
        """Let every write fail."""
        self.execute("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(FAIL, 'disk is full'); END")

    def free(self) -> None:
        """Let writes work again."""
        self.execute("DROP TRIGGER full")

    def notice(self, event: object) -> None:
        """Listen to the run."""
        self.events.append(event)
        if isinstance(event, StoreFailed):
            self.failed.set()
        if isinstance(event, SafetyEvent):
            self.landing.set()

    def let_time_pass(self) -> None:
        """Move time on until the run has given the store up."""
        for _ in range(2_000):
            if self.failed.wait(0.01):
                return
            self.clock.advance(1)
        raise AssertionError("nobody has noticed that the store fails")

    def run(self, script: list[Any], *tools: Tool, choice: OnStoreFailure = "stop", **more: Any) -> RunResult[Report]:
        """Run an agent with this store."""
        options: dict[str, Any] = {"store": self.path, "clock": self.clock, "on_event": self.notice, **more}
        return run(agent(*tools), model=ScriptedModel(script), limits=HOUR, on_store_failure=choice, **options)

    def tags(self, result: RunResult[Any]) -> list[str]:
        """Return the tags of what is stored of a run."""
        with RunStore(self.path, read_only=True) as store:
            return [event.tag for event in store.events(str(result.run_id))]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """Return a store that can be made to fail."""
    return Disk(tmp_path)


def named(name: str, *steps: Callable[[], object]) -> Tool:
    """Return a tool that does something to the disk."""

    def act() -> str:
        for step in steps:
            step()
        return "done"

    act.__name__ = act.__qualname__ = name
    act.__doc__ = "Does something."
    return tool(act)


def test_a_store_that_fails_for_a_minute_ends_the_run_with_a_last_turn(disk: Disk) -> None:
    breaks, waits = named("breaks", disk.fill), named("waits", disk.let_time_pass)
    result = disk.run([Call("breaks"), Call("waits"), ANSWER], breaks, waits)
    assert result.stop is not None
    assert (result.stop.reason, result.stop.source) == ("store_failed", "store")
    assert "disk is full" in result.stop.message
    assert result.partial == Report(1, "done")
    assert "disk is full" in result.not_stored
    assert result.sentence().count("disk is full") == 1
    (failed,) = [event for event in disk.events if isinstance(event, StoreFailed)]
    assert failed.then == "stop"
    assert "run_ended" not in disk.tags(result)


def test_a_run_may_go_on_without_its_record_and_says_so(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "watchkeeper")
    breaks, waits = named("breaks", disk.fill), named("waits", disk.let_time_pass)
    result = disk.run([Call("breaks"), Call("waits"), ANSWER], breaks, waits, choice="go_on")
    assert result.output == Report(1, "done")
    assert result.not_stored.startswith("Not everything is stored: ")
    assert result.sentence().endswith("disk is full.")
    assert result.as_data()["not_stored"] == result.not_stored
    assert "store.failed" in caplog.text
    assert [event.then for event in disk.events if isinstance(event, StoreFailed)] == ["go_on"]


def test_what_could_not_be_written_is_written_when_that_is_possible_again(disk: Disk) -> None:
    breaks, waits = named("breaks", disk.fill), named("waits", disk.let_time_pass)
    script = [Call("breaks"), Call("waits"), Call("mends"), ANSWER]
    result = disk.run(script, breaks, waits, named("mends", disk.free), choice="go_on")
    assert (result.ok, result.not_stored) == (True, "")
    tags = disk.tags(result)
    assert (tags[0], tags[-1]) == ("run_started", "run_ended")
    assert "store_failed" in tags
    assert len(tags) == len(result.session.log)


def test_a_failure_that_passes_within_the_minute_costs_nothing(disk: Disk) -> None:
    breaks, mends = named("breaks", disk.fill), named("mends", disk.free)
    result = disk.run([Call("breaks"), Call("mends"), ANSWER], breaks, mends)
    assert (result.ok, result.not_stored) == (True, "")
    assert len(disk.tags(result)) == len(result.session.log)


@pytest.mark.parametrize("choice", ["stop", "go_on"])
def test_a_store_that_fails_only_at_the_end_is_no_success_unseen(disk: Disk, choice: OnStoreFailure) -> None:
    """The work is over before the minute is; the end waits for the rest of it."""
    result = disk.run([Call("breaks"), ANSWER], named("breaks", disk.fill), choice=choice)
    assert "disk is full" in result.not_stored
    assert disk.clock.monotonic() >= 60
    assert isinstance(result.session.log[-1].event, StoreFailed)
    if choice == "go_on":
        assert result.output == Report(1, "done")
    else:
        assert result.stop is not None
        assert (result.stop.reason, result.output, result.partial) == ("store_failed", None, Report(1, "done"))


def test_a_stop_for_the_store_can_be_raised(disk: Disk) -> None:
    with pytest.raises(RunStoppedError, match="cannot be stored"):
        disk.run([Call("breaks"), ANSWER], named("breaks", disk.fill), raise_on_stop=True)


def test_a_file_that_is_deleted_while_the_run_writes_to_it_is_noticed(disk: Disk) -> None:
    result = disk.run([Call("deletes"), ANSWER], named("deletes", disk.path.unlink))
    assert result.stop is not None
    assert result.stop.reason == "store_failed"
    assert "the file was deleted while it was open" in result.not_stored
    assert "the file was deleted while it was open" in result.sentence()


def test_a_side_file_that_is_deleted_while_the_run_writes_is_noticed(disk: Disk) -> None:
    result = disk.run([Call("deletes"), ANSWER], named("deletes", Path(f"{disk.path}-wal").unlink))
    assert result.stop is not None
    assert result.stop.reason == "store_failed"
    assert "its -wal or -shm file was deleted" in result.not_stored


@dataclass(frozen=True)
class Item:
    """What one run is about."""

    name: str


ITEMS = PromptTemplate[str](
    ns="tests", key="items", params=(Item,), sections=(MarkdownSection("Task", "task", "Look at ${name}."),)
)


def test_a_reply_that_claims_2_to_the_63_tokens_costs_no_other_item_its_record(tmp_path: Path) -> None:
    replies: list[Any] = [Say("one", usage=TokenUsage(2**63, 2**63)), "two", "three"]
    options: Any = {"limits": UNLIMITED, "store": tmp_path / "runs.db", "concurrency": 1}
    many = run_many(ITEMS, [Item("a"), Item("b"), Item("c")], model=ScriptedModel(replies), **options)
    assert many.not_stored == ""
    with RunStore(tmp_path / "runs.db", read_only=True) as store:
        (whole,) = store.runs()
        items = store.children(str(many.run_id))
    assert [item.ended_at is not None for item in items] == [True] * 3
    assert whole.items_done == 3
    assert isinstance(whole.tokens, int)
    assert 0 < whole.tokens < 2**63


def test_a_run_over_many_items_ends_when_its_store_fails(disk: Disk) -> None:
    breaks, waits = named("breaks", disk.fill), named("waits", disk.let_time_pass)
    template = PromptTemplate[str](
        ns="tests",
        key="items",
        params=(Item,),
        sections=(MarkdownSection(title="Task", key="task", template="Look at ${name}.", tools=(breaks, waits)),),
    )
    model = ScriptedModel([Call("breaks"), Call("waits"), "one", "two", "three"])
    options: Any = {"store": disk.path, "clock": disk.clock, "on_event": disk.notice, "concurrency": 1}
    many = run_many(template, [Item("a"), Item("b"), Item("c")], model=model, limits=HOUR, **options)
    assert many.stop is not None
    assert (many.stop.reason, many.ok) == ("store_failed", False)
    assert "disk is full" in many.not_stored
    assert [result.usage.model_calls for result in many.results][1:] == [0, 0]


def test_the_end_of_an_interrupted_run_does_not_wait_for_the_minute(disk: Disk) -> None:
    """The clock is a test's, which a wait would move."""
    breaks = named("breaks", disk.fill)
    interrupted = named("interrupted", lambda: os.kill(os.getpid(), signal.SIGINT), lambda: disk.landing.wait(10))
    result = disk.run([Call("breaks"), Call("interrupted"), ANSWER], breaks, interrupted)
    assert result.stop is not None
    assert result.stop.reason == "interrupted"
    assert "disk is full" in result.not_stored
    assert result.sentence().endswith("disk is full.")
    assert disk.clock.monotonic() < 10


async def test_a_run_that_starts_while_its_store_is_locked_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    RunStore(path).close()
    began = time.monotonic()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        task = asyncio.create_task(Agent(ScriptedModel([Say("done")]), "Be brief.", str).arun("Go.", store=path))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        assert time.monotonic() - began < 2.0
    result = await task
    assert (result.output, result.not_stored) == ("done", "")
