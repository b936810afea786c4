"""Files that are slow, or held by a call that was given up, never hold up the loop, a deadline or a stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.kit import Call, Calls, Report, Say, ScriptedModel, agent, events, outcomes, play, reason, tool_texts
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.errors import FilesystemError, SessionError
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Append, SliceView
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.filesystem import EntryKind
from watchkeeper.tools.filesystems import MemoryFilesystem, OverlayFilesystem
from watchkeeper.tools.tool import Tool, tool

PATIENCE = 60.0


class HeldFilesystem(MemoryFilesystem):
    """Reads and writes of files named "slow" last until they are let go; tests do so at their end."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.wanted = threading.Event()
        self.let_go = threading.Event()
        self.let_go.set()
        self.write_text("slow", "read")
        self.write_text("quick", "read")
        self.let_go.clear()

    def kind(self, path: str) -> EntryKind | None:
        if path == "new":
            self.wanted.set()
        return super().kind(path)

    def _wait(self, path: str) -> None:
        if path == "slow" and not self.let_go.is_set():
            self.begun.set()
            self.let_go.wait(PATIENCE)

    def read_bytes(self, path: str) -> bytes:
        with self.exclusive():
            self._wait(path)
            return super().read_bytes(path)

    def write_bytes(self, path: str, data: bytes) -> None:
        with self.exclusive():
            super().write_bytes(path, data)
            self._wait(path)


@pytest.fixture
def files() -> Iterator[HeldFilesystem]:
    files = HeldFilesystem()
    yield files
    files.let_go.set()


def tools(said: list[str], late: threading.Event) -> tuple[Tool, ...]:
    @tool(timeout="50ms")
    def read(path: str, *, context: ToolContext) -> str:
        """Read a file, and write another."""
        assert context.filesystem is not None
        try:
            text = context.filesystem.read_text(path)
            context.filesystem.write_text("late", text)
            return text
        except FilesystemError as error:
            said.append(str(error))
            raise
        finally:
            late.set()

    @tool
    def write(path: str, *, context: ToolContext) -> str:
        """Write a file."""
        assert context.filesystem is not None
        context.filesystem.write_text(path, "written")
        return "done"

    return read, write


async def then(event: threading.Event, clock: TestClock, seconds: float) -> None:
    """Let time pass once something has happened on another thread."""
    assert await asyncio.to_thread(event.wait, PATIENCE)
    clock.advance(seconds)


class Loop:
    """Counts how often the loop comes round; one that is frozen does not."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        before = SYSTEM_CLOCK.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = SYSTEM_CLOCK.monotonic()
            self.longest, before = max(self.longest, now - before), now


async def test_a_read_that_is_given_up_holds_up_nothing(files: HeldFilesystem) -> None:
    said: list[str] = []
    late = threading.Event()
    model = ScriptedModel([Call("read", {"path": "slow"}), Say(Report(0))])
    loop, clock = Loop(), TestClock()
    watching = asyncio.create_task(loop.watch())
    running = asyncio.create_task(play(agent(*tools(said, late)), model, filesystem=files, clock=clock))
    await then(files.begun, clock, 1)
    result = await running
    watching.cancel()
    assert outcomes(result) == [("read", "timeout")]
    assert not files.let_go.is_set()
    assert loop.longest < PATIENCE / 4
    files.let_go.set()
    assert await asyncio.to_thread(late.wait, PATIENCE)
    assert said == ["these files can no longer be changed: the changes were discarded"]
    assert not files.exists("late")


async def test_what_the_next_tool_changed_waits_off_the_loop_and_no_longer_than_the_deadline(
    files: HeldFilesystem,
) -> None:
    late, clock = threading.Event(), TestClock()
    model = ScriptedModel([Call("read", {"path": "slow"}), Call("write", {"path": "new"}), Say(Report(0))])
    given = (agent(*tools([], late)), model, Limits(deadline="1m"))
    running = asyncio.create_task(play(*given, filesystem=files, clock=clock))
    await then(files.begun, clock, 1)
    await then(files.wanted, clock, 60)
    result = await running
    assert reason(result) == "timeout"
    assert not files.let_go.is_set()
    files.let_go.set()
    assert await asyncio.to_thread(late.wait, PATIENCE)
    assert not files.exists("new")


async def test_a_commit_that_is_given_up_is_put_back(files: HeldFilesystem) -> None:
    model, clock = ScriptedModel([Call("write", {"path": "slow"}), Say(Report(0))]), TestClock()
    given = (agent(*tools([], threading.Event())), model, Limits(deadline="1m"))
    running = asyncio.create_task(play(*given, filesystem=files, clock=clock))
    await then(files.begun, clock, 60)
    result = await running
    assert reason(result) == "timeout"
    invoked = events(result, ToolInvoked)[0]
    assert invoked.outcome == "crashed"
    assert "the work was over before its files were written" in invoked.rendered_output
    files.let_go.set()
    assert await asyncio.to_thread(files.read_text, "slow") == "read"


async def test_files_of_several_calls_are_committed_in_their_order(files: HeldFilesystem) -> None:
    files.let_go.set()
    model = ScriptedModel([Calls((Call("write", {"path": "slow"}), Call("write", {"path": "b"}))), Say(Report(0))])
    await play(agent(*tools([], threading.Event())), model, filesystem=files)
    assert tool_texts(model) == ["done", "done"]
    assert files.read_text("slow") == files.read_text("b") == "written"


@dataclass(frozen=True)
class Noted:
    text: str


async def test_a_reducer_that_is_given_up_holds_up_nothing() -> None:
    begun, let_go, late = threading.Event(), threading.Event(), threading.Event()
    said: list[str] = []

    def reduce(notes: SliceView[Noted], event: Noted) -> Append[Noted]:
        begun.set()
        let_go.wait(PATIENCE)
        return Append(event)

    @tool(timeout="50ms")
    def note(*, context: ToolContext) -> str:
        """Take a note."""
        try:
            context.session.dispatch(Noted("x"))
        except SessionError as error:
            said.append(str(error))
        finally:
            late.set()
        return "noted"

    session = Session()
    session[Noted].register(Noted, reduce)
    clock, script = TestClock(), [Call("note"), Say(Report(0))]
    running = asyncio.create_task(play(agent(note), script, session=session, clock=clock))
    await then(begun, clock, 1)
    result = await running
    assert outcomes(result) == [("note", "timeout")]
    assert not let_go.is_set()
    let_go.set()
    assert await asyncio.to_thread(late.wait, PATIENCE)
    assert "discarded" in said[0]
    assert not session[Noted].all()


READS: list[Callable[[OverlayFilesystem], object]] = [
    lambda files: files.read_text("slow"),
    lambda files: files.glob("**"),
]


@pytest.mark.parametrize("act", READS)
def test_a_discard_waits_for_nobody(files: HeldFilesystem, act: Callable[[OverlayFilesystem], object]) -> None:
    overlay = OverlayFilesystem(files)
    overlay.write_text("new", "x")
    holder = threading.Thread(target=files.read_text, args=("slow",))
    holder.start()
    assert files.begun.wait(PATIENCE)
    reader = threading.Thread(target=act, args=(overlay,))
    reader.start()
    overlay.discard()
    assert not overlay.is_changed
    assert not files.let_go.is_set()
    files.let_go.set()
    for thread in (holder, reader):
        thread.join(PATIENCE)
    with pytest.raises(FilesystemError, match="discarded"):
        overlay.commit()
