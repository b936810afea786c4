"""Isolated tools: what crosses, what goes wrong, and that nothing of a call outlives it."""

from __future__ import annotations

import asyncio
import importlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import date
from decimal import Decimal
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Any, cast

import pytest

from tests.kit import collect_garbage
from tests.tools import isolated_functions as functions
from tests.tools.processes import Lives, is_alive
from watchkeeper.core.errors import ToolProcessError, ToolValidationError
from watchkeeper.core.ids import root_run_context
from watchkeeper.session.session import Session
from watchkeeper.tools.context import CallInfo, ToolContext, ToolScope
from watchkeeper.tools.isolation import call as isolation
from watchkeeper.tools.isolation import sweep as sweeping
from watchkeeper.tools.isolation.call import ProcessCall, ProcessEnd, ProcessPipes, result_of, unframed
from watchkeeper.tools.isolation.guard import TERMINATE
from watchkeeper.tools.isolation.worker import MAX_RESULT_BYTES, framed
from watchkeeper.tools.tool import Tool, tool
from watchkeeper.tools.values import ToolResult


def isolated(function: Callable[..., Any], grace: str = "100ms") -> Tool:
    """Return a tool of a function, with a short grace."""
    return tool(isolation="process", kill_grace=grace)(function)


async def called(function: Callable[..., Any], grace: str = "100ms", **arguments: Any) -> ToolResult[Any]:
    """Call a function in a process of its own."""
    session = Session()
    context = ToolContext(CallInfo("call-1", "any"), ToolScope(session, root_run_context(session.session_id)))
    given = next(iter(arguments.values())) if function is functions.file_order else arguments
    return await cast("Awaitable[ToolResult[Any]]", isolated(function, grace).call(given, context))


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this one that is part of no call."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


class TestResults:
    async def test_arguments_and_result_come_across_as_what_they_are(self) -> None:
        order = functions.Order(7, date(2026, 2, 3))
        result = await called(functions.file_order, order=order)
        filed: Any = result.value
        assert filed == functions.Filed(order, Decimal("1.50"), filed.process)
        assert type(filed.order.colour) is functions.Colour
        assert filed.process != os.getpid()

    async def test_plain_parameters_and_defaults_work(self) -> None:
        assert await called(functions.add, a=1) == ToolResult.ok(3)

    async def test_an_async_function_runs_on_a_loop_of_its_own(self) -> None:
        assert await called(functions.add_later, a=1, b=5) == ToolResult.ok(6)

    async def test_environment_and_folder_are_inherited_and_there_is_no_input(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("ISOLATED", "yes")
        monkeypatch.chdir(tmp_path)
        result = await called(functions.surroundings)
        assert result.value == {"folder": str(tmp_path), "variable": "yes", "input": ""}

    async def test_a_failed_result_is_a_result(self) -> None:
        assert await called(functions.give_up, text="no such ticket") == ToolResult.error("no such ticket")

    async def test_twenty_megabytes_come_back_whole(self) -> None:
        result = await called(functions.large, size=20_000_000)
        assert result.value == "y" * 20_000_000

    def test_a_tool_is_still_a_function(self) -> None:
        assert isolated(functions.add)(1, 1) == 2

    def test_any_thread_and_any_loop_will_do(self) -> None:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(asyncio.run(called(functions.add, a=1))))
        thread.start()
        thread.join()
        assert results == [ToolResult.ok(3)]


async def test_what_is_no_text_on_the_import_path_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [Path("/nowhere"), *sys.path, b"/nowhere", "/nowhere/\ud800"])
    assert (await called(functions.add, a=1)).value == 3


class TestFailures:
    async def said(self, function: Callable[..., Any], **arguments: Any) -> str:
        with pytest.raises(ToolProcessError) as caught:
            await called(function, **arguments)
        return str(caught.value)

    async def test_what_it_raises_is_named(self) -> None:
        assert await self.said(functions.fail, text="not this") == "ValueError: not this"

    async def test_an_exception_that_says_too_much_is_cut(self) -> None:
        said = await self.said(functions.fail_at_length, characters=80_000_000)
        assert said.startswith("ValueError: xxx")
        assert said.endswith("x [cut: the first 65,536 of 80,000,012 characters]")

    async def test_a_process_that_sends_too_much_is_told_as_that(self) -> None:
        said = await self.said(functions.flood_reply, size=MAX_RESULT_BYTES + 9)
        assert said == "its process sent more than the 67,108,864 bytes that may leave it"

    async def test_a_refusal_for_the_model_stays_one(self) -> None:
        with pytest.raises(ToolValidationError, match="only digits"):
            await called(functions.refuse, text="only digits")

    async def test_an_exit_is_told_with_its_code(self) -> None:
        assert await self.said(functions.leave, code=3) == (
            "its process ended with exit code 3 before it returned a result"
        )
        assert "exit code 4 " in await self.said(functions.exit_with, code=4)

    @pytest.mark.spec("FR-023")
    async def test_a_crash_is_told_with_the_end_of_the_output(self) -> None:
        said = await self.said(functions.crash)
        assert said.startswith("its process was killed by SIGSEGV before it returned a result. Its output ended with:")
        assert "really" in said

    async def test_a_kill_from_outside_hints_at_memory(self) -> None:
        assert "killed by SIGKILL (perhaps the system ran out of memory)" in await self.said(
            functions.die, number=signal.SIGKILL
        )

    async def test_a_signal_without_a_name_is_told_by_its_number(self) -> None:
        assert "killed by signal 40 " in await self.said(functions.die, number=40)

    async def test_only_the_end_of_much_output_is_kept(self) -> None:
        said = await self.said(functions.flood, size=3_000_000)
        assert said.endswith("the end")
        assert len(said) < isolation.KEPT_OUTPUT_BYTES + 200

    async def test_a_result_that_cannot_be_written_is_told(self) -> None:
        assert "what it returned cannot leave its process" in await self.said(functions.unserialisable)

    @pytest.mark.parametrize(("before", "part"), [("", "[],"), ('["a",', '"b",'), ("", '"\\\\'), ('"', '\\",[')])
    async def test_a_reply_that_the_function_writes_by_itself_is_bounded(self, before: str, part: str) -> None:
        said = await self.said(functions.forge, before=before, part=part, times=8_000_000)
        wanted = "sent more than 500,000 values" if part in ("[],", '"b",') else "cannot be read"
        assert wanted in said

    async def test_an_error_with_half_a_character_is_told_without_it(self) -> None:
        assert await self.said(functions.surrogate) == "ValueError: ?"

    @pytest.mark.spec("FR-023")
    async def test_a_result_of_a_hundred_megabytes_is_refused(self) -> None:
        assert "its result takes 100,000," in await self.said(functions.large, size=100_000_000)

    @pytest.mark.spec("FR-023")
    async def test_a_process_that_closes_its_pipes_returned_nothing(self) -> None:
        assert "exit code 0 before it returned a result" in await self.said(functions.close_everything)

    async def test_a_result_never_lands_in_a_file_that_took_the_pipes_place(self, tmp_path: Path) -> None:
        note = tmp_path / "note"
        assert "before it returned a result" in await self.said(functions.take_the_place, path=str(note))
        assert note.read_bytes() == b""

    async def test_a_module_that_cannot_be_imported_there_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "elsewhere.py"
        path.write_text("def f() -> int:\n    'Do.'\n    return 1\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        function: Any = importlib.import_module("elsewhere").f
        path.write_text("import nothing_of_that_name\n")
        assert "could not import it: ModuleNotFoundError" in await self.said(function)
        path.write_text("f = 3\n")
        assert "is a int there, neither function nor tool" in await self.said(function)
        path.write_text("")
        assert "has no 'f' when it is imported" in await self.said(function)
        monkeypatch.delitem(sys.modules, "elsewhere")

    async def test_a_guard_that_was_killed_takes_the_worker_along(self) -> None:
        assert await self.said(functions.kill_guard) == "its process was lost before it returned a result"

    async def test_a_program_with_many_open_files_ends_what_a_lost_guard_leaves(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
        try:
            with ExitStack() as stack:
                while (file := os.open(os.devnull, os.O_RDONLY)) < 1100:
                    stack.callback(os.close, file)
                stack.callback(os.close, file)
                assert await self.said(functions.kill_guard) == "its process was lost before it returned a result"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    async def test_a_guard_that_ends_before_it_has_heard_its_order_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "guard.py"
        path.write_text("raise SystemExit('no guard')")
        monkeypatch.setattr(isolation, "GUARD_FILE", str(path))
        said = await self.said(functions.fail, text="z" * 5_000_000)
        assert said == "its process was lost before it returned a result. Its output ended with:\nno guard"

    async def test_a_python_that_cannot_be_started_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "")
        assert "could not be started: this program's Python" in await self.said(functions.add, a=1)
        monkeypatch.setattr(sys, "executable", "/nothing/of/that/name")
        monkeypatch.setattr(sys, "frozen", True, raising=False)
        assert "sys.executable='/nothing/of/that/name'" in await self.said(functions.add, a=1)
        monkeypatch.setattr(sys, "frozen", False)
        assert "could not be started: " in await self.said(functions.add, a=1)

    async def test_arguments_that_cannot_be_written_start_nothing(self) -> None:
        process = ProcessCall(cast("Any", isolated(functions.add).isolation))
        with pytest.raises(ToolProcessError, match="cannot be sent"):
            await process.call({"a": threading.Lock()})
        await process.gone()

    def test_a_reply_that_nobody_can_read_is_told(self) -> None:
        for reply in (b"{", b'{"kind":"returned","result":3}', b'{"kind":"returned","result":{"$type":"no:Such"}}'):
            with pytest.raises(ToolProcessError, match="cannot be read"):
                result_of(ProcessEnd(reply, 0, ""))


class TestEnds:
    async def started(self, function: Callable[..., Any], lives: Lives, **more: Any) -> tuple[asyncio.Task[Any], int]:
        task = asyncio.ensure_future(called(function, fifo=lives.fifo, **more))
        reading = asyncio.ensure_future(asyncio.to_thread(lives.begun))
        await asyncio.wait((task, reading), return_when=asyncio.FIRST_COMPLETED)
        if (
            task.done()
            and task.exception() is not None
            and function not in (functions.fork_and_exit, functions.outlive)
        ):
            task.result()
        return task, await reading

    @pytest.mark.spec("FR-022")
    @pytest.mark.parametrize(
        "function",
        [functions.wait, functions.wait_stubbornly, functions.wait_for_shell, functions.hold_interpreter],
    )
    async def test_a_cancelled_call_ends_when_everything_is_dead(
        self, function: Callable[..., Any], lives: Lives
    ) -> None:
        task, process = await self.started(function, lives)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_alive(process)
        lives.wait_for_the_end()
        assert f"{os.path.basename(lives.fifo)}.late" not in os.listdir(os.path.dirname(lives.fifo))

    async def test_term_comes_first_so_that_a_tool_can_clean_up(self, lives: Lives, tmp_path: Path) -> None:
        note = tmp_path / "note"
        task, _ = await self.started(functions.clean_up, lives, note=str(note), grace="60s")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert note.read_text() == "clean"
        lives.wait_for_the_end()

    async def test_a_second_cancellation_ends_the_grace(self, lives: Lives) -> None:
        task, process = await self.started(functions.wait_stubbornly, lives, grace="1h")
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_alive(process)
        lives.wait_for_the_end()

    @pytest.mark.parametrize("own_session", [False, True])
    @pytest.mark.skipif(sys.platform != "linux", reason="a process that leaves the group is found on Linux only")
    async def test_what_a_function_leaves_running_ends_with_the_call(self, lives: Lives, own_session: bool) -> None:
        task, process = await self.started(functions.leave_shell, lives, own_session=own_session)
        assert await task == ToolResult.ok("left")
        assert not is_alive(process)
        lives.wait_for_the_end()

    @pytest.mark.spec("FR-023")
    async def test_a_process_that_forks_and_exits_returned_nothing_and_leaves_nothing(self, lives: Lives) -> None:
        task, process = await self.started(functions.fork_and_exit, lives)
        with pytest.raises(ToolProcessError, match="ended with exit code 0 before"):
            await task
        assert not is_alive(process)
        lives.wait_for_the_end()

    async def test_a_guard_that_was_stopped_is_killed_with_its_worker(
        self, lives: Lives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(isolation, "PATIENCE_SECONDS", 0.1)
        task, _ = await self.started(functions.stop_guard, lives)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        lives.wait_for_the_end()

    @pytest.mark.skipif(sys.platform != "linux", reason="a process that leaves the group is found on Linux only")
    @pytest.mark.parametrize(("number", "again"), [(SIGSTOP, False), (SIGSTOP, True), (SIGKILL, False)])
    async def test_nothing_outlives_a_guard_that_was_stopped_or_killed(
        self,
        lives: Lives,
        bystander: subprocess.Popen[bytes],
        monkeypatch: pytest.MonkeyPatch,
        number: int,
        again: bool,
    ) -> None:
        monkeypatch.setattr(isolation, "PATIENCE_SECONDS", 0.2)
        task, _ = await self.started(functions.outlive, lives, number=number, again=again)
        if number == SIGSTOP:
            task.cancel()
        with pytest.raises(asyncio.CancelledError if number == SIGSTOP else ToolProcessError):
            await task
        assert lives.all_dead()
        assert bystander.poll() is None

    async def test_a_call_that_is_cancelled_before_its_process_is_there_starts_none(self) -> None:
        pipes = ProcessPipes(b"", 1.0)
        pipes.end(TERMINATE)
        assert await asyncio.to_thread(pipes.run) == ProcessEnd(None, None, "")

    async def test_a_call_that_is_cancelled_at_once_leaves_nothing(self, children: Callable[[], set[str]]) -> None:
        task = asyncio.ensure_future(called(functions.add, a=1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert children() == set()

    async def test_a_large_order_is_stopped_while_it_is_sent(self, children: Callable[[], set[str]]) -> None:
        call = ProcessCall(cast("Any", isolated(functions.fail).isolation))
        task = asyncio.ensure_future(call.call({"text": "z" * 50_000_000}))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await call.gone()
        assert children() == set()

    def test_a_loop_that_is_closed_under_a_call_leaves_nothing(self, lives: Lives) -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(called(functions.wait_stubbornly, fifo=lives.fifo))
        loop.run_until_complete(asyncio.sleep(0))
        lives.begun()
        task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        lives.wait_for_the_end()
        cast("Any", task).get_coro().close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

    @pytest.mark.spec("FR-022")
    @pytest.mark.parametrize("function", ["wait_stubbornly", "wait_for_shell", "hold_interpreter"])
    def test_nothing_outlives_a_parent_that_was_killed(self, lives: Lives, function: str) -> None:
        script = f"""
            import asyncio
            from tests.tools import isolated_functions as functions
            from watchkeeper.tools.tool import tool
            made = tool(isolation="process", kill_grace="1h")(functions.{function})
            asyncio.run(made.call({{"fifo": {lives.fifo!r}}}, None))
        """
        parent = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
        lives.begun()
        parent.kill()
        parent.wait()
        lives.wait_for_the_end()


def all_children() -> set[str]:
    """Return the processes that any thread of this one has started and not reaped."""
    found: set[str] = set()
    for thread in Path("/proc/self/task").iterdir():
        found.update((thread / "children").read_text().split())
    return found


@pytest.fixture
def children() -> Callable[[], set[str]]:
    """Return what returns the processes that were started since the test began; other tests keep some of their own."""
    before = all_children()
    return lambda: all_children() - before


@pytest.mark.spec("FR-022")
@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
@pytest.mark.parametrize("rounds", [5, pytest.param(25, marks=pytest.mark.slow)])
async def test_many_calls_leave_no_descriptor_and_no_process(children: Callable[[], set[str]], rounds: int) -> None:
    await called(functions.add, a=1)
    collect_garbage()  # what earlier tests left behind may hold descriptors
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(rounds):
        results = await asyncio.gather(*(called(functions.add, a=number) for number in range(4)))
        assert [result.value for result in results] == [2, 3, 4, 5]
    assert set(os.listdir("/proc/self/fd")) == before
    assert children() == set()


async def test_a_call_is_gone_before_what_it_sent_is_read() -> None:
    """Reading may take long; no side effect of the call can happen meanwhile."""
    reading, read = threading.Event(), threading.Event()

    def read_slowly(end: ProcessEnd) -> ProcessEnd:
        reading.set()
        read.wait()
        return end

    definition = isolated(functions.add).isolation
    assert definition is not None
    process = ProcessCall(definition)
    call = asyncio.ensure_future(process.read({"a": 1}, read_slowly))
    await asyncio.to_thread(reading.wait)
    call.cancel()
    gone = asyncio.ensure_future(process.gone())
    await asyncio.wait((gone, call), timeout=20)
    ended = gone.done()
    read.set()
    await gone
    assert (ended, call.cancelled()) == (True, True)


async def test_a_call_that_never_began_is_gone() -> None:
    await ProcessCall(cast("Any", isolated(functions.add).isolation)).gone()


def test_a_message_is_whole_only_with_its_last_byte() -> None:
    data = bytearray(framed(b"hello"))
    assert unframed(data) == b"hello"
    assert unframed(data[:-1]) is None
    assert unframed(bytearray()) is None


def test_the_names_of_signals_are_told() -> None:
    with pytest.raises(ToolProcessError, match="its process was killed by SIGSEGV before"):
        result_of(ProcessEnd(None, -11, ""))


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found on Linux only")
def test_a_process_that_was_stopped_is_killed_although_it_has_another_parent_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard, left = 5, 10  # numbers that no process has here: all that the system says is replaced
    signals: list[int] = []
    process: Any = vars(sweeping)["_Process"]

    def look(number: int) -> Any:
        if number == guard:
            return process(guard, 3, "Z", 1, guard, guard)
        parent = guard if not signals else 1  # the guard's end came between the two looks
        return process(left, 7, "S", parent, left, left) if SIGKILL not in signals else None

    def take_note(_: object, number: int) -> None:
        signals.append(number)

    def is_of_no_call(*_: object) -> bool:
        return False

    monkeypatch.setattr(sweeping, "_numbers", lambda: [guard, left])
    monkeypatch.setattr(sweeping, "_look", look)
    monkeypatch.setattr(sweeping, "_signal", take_note)
    monkeypatch.setattr(sweeping, "_belongs", is_of_no_call)
    monkeypatch.setattr(os, "killpg", is_of_no_call)
    sweeping.sweep(sweeping.Lost(guard, None, "mark"))
    assert signals == [SIGSTOP, SIGKILL]
