"""When the store fails: writes are tried again for 60 s; then the run ends, or goes on and says what is not stored."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

from tests.kit import Call, FullDisk, Report, Say, ScriptedModel, agent
from watchkeeper.accounting.call_request import CallRequest, Estimate
from watchkeeper.accounting.limits import UNLIMITED, Limits
from watchkeeper.app.options import OnStoreFailure
from watchkeeper.app.run import arun, run, run_many
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import RunStoppedError, StoreError
from watchkeeper.core.messages import AssistantMessage, ToolCall
from watchkeeper.core.model import ModelReply
from watchkeeper.core.type_tags import tag_of
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.events import NoticeAppended, StoreFailed
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.session import Session
from watchkeeper.shield.decision import SafetyEvent
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.shield.tool_permission import ToolPermissionHook
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.tool import Tool, tool

ANSWER = json.dumps({"total": 1, "note": "done"})
HOUR = Limits(deadline="10h")


class Disk:
    """A store that fails when it is told to, and a run that notices."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "runs"
        self.store = FullDisk(self.path)
        self.clock = TestClock()
        self.landing = threading.Event()
        self.events: list[Any] = []

    def fill(self) -> None:
        """Let every write fail."""
        self.store.failures = math.inf

    def free(self) -> None:
        """Let writes work again."""
        self.store.failures = 0

    def notice(self, event: object) -> None:
        """Listen to the run."""
        self.events.append(event)
        if isinstance(event, SafetyEvent):
            self.landing.set()

    def run(self, script: list[Any], *tools: Tool, choice: OnStoreFailure = "stop", **more: Any) -> RunResult[Report]:
        """Run an agent with this store."""
        options: dict[str, Any] = {"store": self.store, "clock": self.clock, "on_event": self.notice, **more}
        return run(agent(*tools), model=ScriptedModel(script), limits=HOUR, on_store_failure=choice, **options)

    def tags(self, result: RunResult[Any]) -> list[str]:
        """Return the tags of what is stored of a run."""
        with RunStore(self.path, read_only=True) as store:
            return [event.tag for event in store.events(str(result.run_id))]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Return a store that can be made to fail."""
    made = Disk(tmp_path)
    yield made
    made.store.close()


def logged(result: RunResult[Any]) -> list[str]:
    """Return the tags of what is on the log of a run."""
    return [tag_of(type(cast("object", each.event))) for each in result.session.log]


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
    """The last turn is taken although it cannot be put on record; no tool is called any more."""
    called: list[str] = []
    works = named("works", lambda: called.append("works"))
    result = disk.run([Call("breaks"), ANSWER], named("breaks", disk.fill), works)
    assert result.stop is not None
    assert (result.stop.reason, result.stop.source) == ("store_failed", "store")
    assert "disk is full" in result.stop.message
    assert result.partial == Report(1, "done")
    assert "disk is full" in result.not_stored
    assert result.sentence().count("disk is full") == 1
    (failed,) = [event for event in disk.events if isinstance(event, StoreFailed)]
    assert failed.then == "stop"
    assert "run_ended" not in disk.tags(result)
    assert disk.clock.monotonic() >= 60


def test_nothing_is_done_that_could_not_be_put_on_record_before(disk: Disk) -> None:
    """A reply that was on its way when the store failed is there; what it asks for is not done."""
    called: list[str] = []

    def script(request: Any) -> Any:
        disk.fill()
        return Call("works") if not request.transcript[-1].text.startswith("The run's events") else ANSWER

    works = named("works", lambda: called.append("works"))
    options: Any = {"store": disk.store, "clock": disk.clock}
    result = run(agent(works), model=ScriptedModel(script), limits=HOUR, **options)
    assert result.stop is not None
    assert result.stop.reason == "store_failed"
    assert called == []


def test_a_run_may_go_on_without_its_record_and_says_so(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "watchkeeper")
    called: list[str] = []
    breaks, works = named("breaks", disk.fill), named("works", lambda: called.append("works"))
    result = disk.run([Call("breaks"), Call("works"), ANSWER], breaks, works, choice="go_on")
    assert result.output == Report(1, "done")
    assert called == ["works"]
    assert result.not_stored.startswith("Not everything is stored: ")
    assert result.sentence().endswith("disk is full.")
    assert result.as_data()["not_stored"] == result.not_stored
    assert "store.failed" in caplog.text
    assert [event.then for event in disk.events if isinstance(event, StoreFailed)] == ["go_on"]


@pytest.mark.parametrize("by", ["hook", "tool"])
def test_a_run_without_its_record_does_not_park_because_nobody_could_answer(disk: Disk, by: str) -> None:
    @tool(name="asks")
    def asks(*, context: ToolContext) -> bool:
        """Ask."""
        return by == "hook" or bool(context.ask("May it?"))

    hook = ToolPermissionHook(ask=["asks"] if by == "hook" else [], ask_with=lambda _: None)
    options: Any = {"on_ask": "park", "shield": ShieldPipeline(tool_dispatch=hook)}
    result = disk.run(
        [Call("breaks"), Call("asks"), ANSWER], named("breaks", disk.fill), asks, choice="go_on", **options
    )
    assert (result.output, result.waiting, result.denied) == (Report(1, "done"), (), 1)


def test_what_could_not_be_written_is_written_when_that_is_possible_again(disk: Disk) -> None:
    script = [Call("breaks"), Call("mends"), ANSWER]
    result = disk.run(script, named("breaks", disk.fill), named("mends", disk.free), choice="go_on")
    assert (result.ok, result.not_stored) == (True, "")
    tags = disk.tags(result)
    assert (tags[0], tags[-1]) == ("run_started", "run_ended")
    assert "store_failed" in tags
    assert len(tags) == len(result.session.log)


def test_a_failure_that_passes_within_the_minute_costs_nothing(disk: Disk) -> None:
    result = disk.run([Call("breaks"), ANSWER], named("breaks", lambda: setattr(disk.store, "failures", 8)))
    assert (result.ok, result.not_stored) == (True, "")
    assert len(disk.tags(result)) == len(result.session.log)
    assert 10 <= disk.clock.monotonic() < 60


@pytest.mark.parametrize("choice", ["stop", "go_on"])
def test_a_store_that_fails_only_at_the_end_is_no_success_unseen(disk: Disk, choice: OnStoreFailure) -> None:
    """The work is over before the minute is; the end waits for the rest of it."""

    def script(_: Any) -> Any:
        disk.fill()
        return ANSWER

    options: Any = {"store": disk.store, "clock": disk.clock, "on_store_failure": choice}
    result = run(agent(), model=ScriptedModel(script), limits=HOUR, **options)
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
    def delete() -> None:
        (file,) = (disk.path / "runs").iterdir()
        file.unlink()

    result = disk.run([Call("deletes"), ANSWER], named("deletes", delete))
    assert result.stop is not None
    assert result.stop.reason == "store_failed"
    assert "the file was deleted while it was open" in result.not_stored
    assert "the file was deleted while it was open" in result.sentence()


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


@pytest.mark.parametrize("place", ["Recorder.release", "Recorder.put", "Journal.record", "Journal._after"])
def test_finalisers_may_record_while_something_else_is_put_on_record(disk: Disk, place: str) -> None:
    """The collector may call them at any time, also on a thread that is just recording; nothing hangs, nothing is lost.

    A trace function stands for the collector, so that every line of ``place`` is tried; the run is on a thread of its
    own, so that a deadlock fails this test and not all of them.
    """
    session, late, results = Session(), list[str](), list[RunResult[Report]]()
    model = ScriptedModel([Call("works"), ANSWER])

    @tool
    def works(*, context: ToolContext) -> str:
        """Write events, which belong to its result."""
        for number in range(10):
            context.session.dispatch(NoticeAppended(str(number), disk.clock.now()))
        return "done"

    def finalise(frame: FrameType, happening: str, _: object) -> Any:
        if happening == "call":
            return finalise if frame.f_code.co_qualname == place else None
        if happening == "line" and len(late) < 60:
            late.append(f"late {len(late)}")
            session.dispatch(NoticeAppended(late[-1], disk.clock.now()))  # tracing is off meanwhile
        return finalise

    def play() -> None:
        before = sys.gettrace()
        sys.settrace(finalise)
        try:
            running = arun(agent(works), model=model, limits=HOUR, session=session, store=disk.store, clock=disk.clock)
            results.append(asyncio.run(running))
        finally:
            sys.settrace(before)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    thread.join(30)
    (result,) = results
    texts = [each.event.text for each in result.session.log if isinstance(each.event, NoticeAppended)]
    assert (result.ok, bool(late), [text for text in texts if text in late]) == (True, True, late)
    assert disk.tags(result) == logged(result)


def test_names_that_utf_8_cannot_hold_cost_no_record(disk: Disk) -> None:
    """Models of one's own may answer with any id of a call, and code may give its calls any name."""
    called: list[str] = []

    def works() -> str:
        """Ask a model through the gate."""
        with ExecutionContext(Limits()) as gate:
            asked = CallRequest(kind="llm", operation_name="ask \ud800", model="m\ud800", estimate=Estimate(10, 10))
            gate.call(asked, lambda _: called.append("works"))
        return "done"

    asks = AssistantMessage("", (ToolCall("id \ud800", "works", "{}"),))
    result = disk.run([ModelReply(asks, TokenUsage(1, 1), "tool_calls", "m"), ANSWER], tool(works))
    assert (result.stop, result.not_stored, called) == (None, "", ["works"])
    with RunStore(disk.path, read_only=True) as store:
        stored = list(store.events(str(result.run_id), calls=True))
    begun = [(event.body["name"], event.body["call_id"]) for event in stored if event.tag == "call_begun"]
    assert begun[1:3] == [("works", "id ?"), ("m?", "")]


def test_a_run_over_many_items_ends_when_its_store_fails(disk: Disk) -> None:
    breaks = named("breaks", disk.fill)
    template = PromptTemplate[str](
        ns="tests",
        key="items",
        params=(Item,),
        sections=(MarkdownSection(title="Task", key="task", template="Look at ${name}.", tools=(breaks,)),),
    )
    model = ScriptedModel([Call("breaks"), "one", "two", "three"])
    options: Any = {"store": disk.store, "clock": disk.clock, "on_event": disk.notice, "concurrency": 1}
    many = run_many(template, [Item("a"), Item("b"), Item("c")], model=model, limits=HOUR, **options)
    assert many.stop is not None
    assert (many.stop.reason, many.ok) == ("store_failed", False)
    assert "disk is full" in many.not_stored
    assert [result.usage.model_calls for result in many.results][1:] == [0, 0]


@pytest.mark.parametrize("choice", ["stop", "go_on"])
def test_one_run_whose_file_is_gone_costs_no_other_its_record(disk: Disk, choice: OnStoreFailure) -> None:
    """Of the others nothing is tried again either, and the minute is over although they can be written."""

    def asks(request: Any) -> Any:
        last = request.transcript[-1].text
        if (
            any("Look at a" in each.text for each in request.transcript)
            and last != "done"
            and request.tool_choice != "none"
        ):
            return Call("deletes")
        return "seen"

    def delete() -> None:
        with RunStore(disk.path, read_only=True) as store:
            (whole,) = store.runs()
            (first, *_) = store.children(whole.run_id)
        (file,) = (disk.path / "runs").glob(f"*{first.run_id}.jsonl")
        file.unlink()

    template = PromptTemplate[str](
        ns="tests",
        key="items",
        params=(Item,),
        sections=(
            MarkdownSection(title="Task", key="task", template="Look at ${name}.", tools=(named("deletes", delete),)),
        ),
    )
    options: Any = {"store": disk.store, "clock": disk.clock, "concurrency": 1, "on_store_failure": choice}
    given = [Item(name) for name in "abc"]
    many = run_many(template, given, model=ScriptedModel(asks), limits=HOUR, **options)
    assert "the file was deleted while it was open" in many.not_stored
    assert disk.clock.monotonic() >= 60
    gone, *others = many.results
    if choice == "go_on":
        assert [result.output for result in many.results] == ["seen"] * 3
        assert [disk.tags(result) for result in others] == [logged(result) for result in others]
        with RunStore(disk.path, read_only=True) as store:
            assert store.find(str(many.run_id)).ended_at is not None
    else:
        assert many.stop is not None
        assert many.stop.reason == "store_failed"
        with RunStore(disk.path, read_only=True) as store:
            assert store.find(str(many.run_id)).ended_at is not None, "the whole says how it has ended"
    with RunStore(disk.path, read_only=True) as store, pytest.raises(StoreError, match="no run whose id begins"):
        store.find(str(gone.run_id))


def test_the_end_of_an_interrupted_run_does_not_wait_for_the_minute(disk: Disk) -> None:
    """The clock is a test's, which a wait would move."""
    interrupted = lambda: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    breaks = named("breaks", interrupted, lambda: disk.landing.wait(10), disk.fill)
    result = disk.run([Call("breaks"), ANSWER], breaks)
    assert result.stop is not None
    assert result.stop.reason == "interrupted"
    assert "disk is full" in result.not_stored
    assert result.sentence().endswith("disk is full.")
    assert disk.clock.monotonic() < 10
