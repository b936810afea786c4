"""Listeners get everything, once and in order, from any thread; a first interrupt lands a run, a second stops it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit import ScriptedModel
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.agent import Agent
from watchkeeper.app.surroundings import TERM_SECONDS, Interrupts
from watchkeeper.blocks.contained import contained
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock, running_loop
from watchkeeper.ledgers import sqlite_ledger
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.runtime.listener import Listener, one_by_one


class Gathered:
    """A delivery that keeps what it gets, and can be held up."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[str] = set()
        self.began = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def __call__(self, batch: Sequence[int]) -> None:
        self.began.set()
        assert self.open.wait(60)
        self.threads.add(threading.current_thread().name)
        self.batches.append(list(batch))

    @property
    def items(self) -> list[int]:
        """Everything that came, in order."""
        return [item for batch in self.batches for item in batch]


async def began(gathered: Gathered) -> None:
    """Wait until a delivery is under way."""
    assert await asyncio.to_thread(gathered.began.wait, 60)


async def test_items_arrive_in_order_on_a_worker_thread() -> None:
    gathered = Gathered()
    listener = Listener("test", gathered)
    for number in range(100):
        listener.put(number)
    await listener.close()
    assert gathered.items == list(range(100))
    assert all(name.startswith("watchkeeper-worker") for name in gathered.threads)


async def test_what_comes_while_a_delivery_is_under_way_is_one_batch() -> None:
    gathered = Gathered()
    gathered.open.clear()
    listener = Listener("test", gathered)
    listener.put(0)
    await began(gathered)
    for number in (1, 2, 3):
        listener.put(number)
    gathered.open.set()
    await listener.close()
    assert gathered.batches == [[0], [1, 2, 3]]


async def test_an_async_delivery_runs_on_the_loop() -> None:
    items: list[tuple[int, str]] = []

    async def deliver(batch: Sequence[int]) -> None:
        await asyncio.sleep(0)
        items.extend((item, threading.current_thread().name) for item in batch)

    listener = Listener("test", deliver)
    listener.put(1)
    listener.put(2)
    await listener.close()
    assert items == [(1, threading.current_thread().name), (2, threading.current_thread().name)]


async def test_nothing_is_lost_whatever_thread_it_comes_from() -> None:
    """Eight threads and the loop put as fast as they can; every thread's items keep their order."""
    gathered = Gathered()
    listener: Listener[int] = Listener("test", gathered)
    many, threads = 2_000, 8

    def put(start: int) -> None:
        for number in range(start, start + many):
            listener.put(number)

    workers = [asyncio.to_thread(put, worker * many) for worker in range(threads)]
    task = asyncio.gather(*workers)
    put(threads * many)
    await task
    await listener.close()
    assert sorted(gathered.items) == list(range((threads + 1) * many))
    for worker in range(threads + 1):
        own = [item for item in gathered.items if item // many == worker]
        assert own == sorted(own)


async def test_an_item_put_from_a_thread_is_delivered_without_anybody_else() -> None:
    """However often a delivery has just ended: the next item wakes it again."""
    arrived = threading.Event()
    listener: Listener[int] = Listener("test", lambda batch: arrived.set())

    def put_and_wait() -> bool:
        for number in range(300):
            arrived.clear()
            listener.put(number)
            if not arrived.wait(60):
                return False
        return True

    assert await asyncio.to_thread(put_and_wait)
    await listener.close()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
async def test_a_listener_that_raises_is_reported_once_and_gets_nothing_more(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Sequence[int]] = []

    def deliver(batch: Sequence[int]) -> None:
        calls.append(batch)
        raise error

    listener = Listener("mine", deliver)
    with caplog.at_level(logging.WARNING, "watchkeeper"):
        listener.put(1)
        await listener.close()
        listener.put(2)
        await listener.close()
    assert calls == [[1]]
    assert listener.failure is error
    assert len(caplog.records) == 1
    assert "listener.failed" in caplog.text
    assert "mine" in caplog.text


async def test_a_plain_handler_that_returns_a_coroutine_is_refused_because_nobody_would_await_it() -> None:
    async def handle(item: int) -> None:
        raise AssertionError

    def hand_on(item: int) -> Any:
        return handle(item)

    listener = Listener("coroutine", one_by_one(hand_on))
    listener.put((1,))
    await listener.close()
    assert "returned a coroutine" in str(listener.failure)


async def test_a_listener_that_raises_a_cancellation_of_its_own_is_reported_and_gets_nothing_more() -> None:
    async def stray(batch: Sequence[int]) -> None:
        raise asyncio.CancelledError

    listener = Listener("stray", stray)
    listener.put(1)
    await listener.close()
    listener.put(2)
    assert isinstance(listener.failure, asyncio.CancelledError)


async def test_a_slow_listener_is_left_behind_and_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    gathered = Gathered()
    gathered.open.clear()
    listener = Listener("slow", gathered, drain_seconds=0.01)
    listener.put(1)
    await began(gathered)
    listener.put(2)
    with caplog.at_level(logging.WARNING, "watchkeeper"):
        await listener.close()
    assert "listener.late" in caplog.text
    assert "undelivered=1" in caplog.text
    gathered.open.set()
    assert await listener.drained(60)
    assert gathered.items == [1, 2]


async def test_closing_delivers_what_another_thread_has_just_put() -> None:
    """Also if the loop has not yet been told of it."""
    gathered = Gathered()
    listener: Listener[int] = Listener("test", gathered)
    thread = threading.Thread(target=listener.put, args=(7,))
    thread.start()
    thread.join()
    await listener.close()
    assert gathered.items == [7]
    await asyncio.sleep(0)
    await listener.close()
    assert gathered.items == [7]


async def test_closing_without_items_does_nothing() -> None:
    gathered = Gathered()
    listener: Listener[int] = Listener("test", gathered)
    await listener.close()
    await listener.close()
    assert gathered.batches == []
    assert listener.failure is None


class AsyncCallable:
    """A handler that is an object with an async call."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    async def __call__(self, *arguments: Any) -> None:
        self.seen.append(arguments)


@pytest.mark.parametrize("kind", ["sync", "async", "async object"])
async def test_a_handler_of_single_events_gets_one_at_a_time(kind: str) -> None:
    seen: list[Any] = []

    async def async_handler(*arguments: Any) -> None:
        seen.append(arguments)

    handlers: dict[str, Callable[..., Any]] = {
        "sync": lambda *arguments: seen.append(arguments),
        "async": async_handler,
        "async object": AsyncCallable(seen),
    }
    listener = Listener("test", one_by_one(handlers[kind]))
    listener.put((1,))
    listener.put((2, "b"))
    await listener.close()
    assert seen == [(1,), (2, "b")]


# --- interrupts: the first one lands the run, the second one stops it hard, -----------------------------------------


@pytest.mark.spec("FR-084")
def test_the_first_interrupt_ends_the_work_and_lets_it_land() -> None:
    interrupts = Interrupts()
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        interrupts.interrupt()
        assert gate.work_stop is not None
        assert gate.work_stop.reason == "interrupted"
        assert gate.stop is None


@pytest.mark.spec("FR-084")
def test_the_second_interrupt_aborts() -> None:
    interrupts = Interrupts()
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        interrupts.interrupt()
        interrupts.interrupt()
        assert gate.stop is not None
        assert gate.stop.reason == "aborted"
        assert "interrupted twice" in gate.stop.message


@pytest.mark.parametrize(("count", "aborted"), [(1, False), (2, True), (3, True)])
def test_an_interrupt_before_the_run_is_not_forgotten(count: int, aborted: bool) -> None:
    interrupts = Interrupts()
    for _ in range(count):
        interrupts.interrupt()
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        assert (gate.stop is not None) is aborted
        assert gate.work_stop is not None


def test_an_interrupt_after_the_run_does_nothing() -> None:
    interrupts = Interrupts()
    with ExecutionContext(Limits()) as gate:
        with interrupts.over(gate):
            pass
        interrupts.interrupt()
        assert gate.work_stop is None


@pytest.mark.parametrize(
    ("name", "said"),
    [("SIGINT", "The run was interrupted."), ("SIGHUP", "The run was interrupted by SIGHUP.")],
)
def test_a_stop_names_the_signal_but_for_ctrl_c(name: str, said: str) -> None:
    interrupts = Interrupts()
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        interrupts.interrupt(name)
        assert gate.work_stop is not None
        assert gate.work_stop.message == said


@pytest.mark.spec("FR-148")
@pytest.mark.parametrize("before_the_run", [False, True])
async def test_after_sigterm_a_landing_that_takes_too_long_is_stopped_hard(before_the_run: bool) -> None:
    clock = TestClock()
    interrupts = Interrupts(clock)
    if before_the_run:
        interrupts.interrupt("SIGTERM")
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        if not before_the_run:
            interrupts.interrupt("SIGTERM")
        assert gate.work_stop is not None
        assert gate.work_stop.message == "The run was interrupted by SIGTERM."
        clock.advance(TERM_SECONDS - 0.1)
        assert gate.stop is None
        clock.advance(0.1)
        assert gate.stop is not None
        assert gate.stop.reason == "aborted"
        assert "it had not landed 7 s after SIGTERM" in gate.stop.message


async def test_the_seconds_after_sigterm_may_pass_before_the_run_begins() -> None:
    clock = TestClock()
    interrupts = Interrupts(clock)
    interrupts.interrupt("SIGTERM")
    clock.advance(TERM_SECONDS)
    with ExecutionContext(Limits()) as gate, interrupts.over(gate):
        assert gate.stop is not None


async def test_a_run_that_lands_in_time_leaves_no_timer() -> None:
    clock = TestClock()
    interrupts = Interrupts(clock)
    with ExecutionContext(Limits()) as gate:
        with interrupts.over(gate):
            interrupts.interrupt("SIGTERM")
        clock.advance(TERM_SECONDS)
        await asyncio.sleep(0)
        assert gate.stop is None


# --- files that others hold locked ------------------------------------------------------------------------------------


@contextmanager
def locked(path: Path) -> Generator[Callable[[], bool]]:
    """Hold a file locked until the running loop goes on; the function tells whether it is free by now."""
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        asyncio.get_running_loop().call_soon(holder.execute, "ROLLBACK")
        yield lambda: not holder.in_transaction


async def test_a_block_waits_for_a_locked_ledger_without_holding_up_the_loop(tmp_path: Path) -> None:
    async with contained(store=None, ledger=tmp_path / "file"):
        pass
    with locked(tmp_path / "file") as is_free:
        async with contained(store=None, ledger=tmp_path / "file"):
            assert is_free()


async def test_a_block_gives_back_its_locked_ledger_without_holding_up_the_loop(tmp_path: Path) -> None:
    async with contained(store=None, ledger=tmp_path / "ledger"):
        waiting = ExitStack()
        is_free = waiting.enter_context(locked(tmp_path / "ledger"))
    with waiting:
        assert is_free()


async def test_a_run_opens_its_ledger_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_on = list[object]()

    class Watched(SqliteLedger):
        def __init__(self, *where: Any, **how: Any) -> None:
            opened_on.append(running_loop())
            super().__init__(*where, **how)

    monkeypatch.setattr(sqlite_ledger, "SqliteLedger", Watched)
    agent: Agent[str] = Agent(ScriptedModel(["An owl."]), "Be brief.", str)
    assert (await agent.arun("Owl?", store=None, ledger=tmp_path / "ledger")).output == "An owl."
    assert opened_on == [None]


async def test_a_block_that_is_cancelled_while_it_opens_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut, made = threading.Event(), threading.Event()

    class Watched(SqliteLedger):
        def __init__(self, *where: Any, **how: Any) -> None:
            super().__init__(*where, **how)
            task.get_loop().call_soon_threadsafe(task.cancel)
            assert made.wait(60)

        def shutdown(self) -> None:
            super().shutdown()
            shut.set()

    async def enter() -> None:
        try:
            async with contained(store=None, ledger=tmp_path / "ledger"):
                pytest.fail("it was entered")
        finally:
            made.set()

    monkeypatch.setattr(sqlite_ledger, "SqliteLedger", Watched)
    task = asyncio.create_task(enter())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(shut.wait, 10)
