"""Threads for code that blocks, and what counts as a crash of the user's code."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import weakref
from functools import partial
from typing import Any

import pytest

from watchkeeper.core import workers
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.text import CrashError
from watchkeeper.core.workers import (
    WORKERS,
    BlockingCall,
    BreakOut,
    Job,
    WorkerPool,
    call_in_loop,
    is_crash,
    run_in_worker,
)

PATIENCE = 30.0


def until(condition: Any) -> None:
    """Wait until another thread has made a condition true."""
    tick = threading.Event()
    for _ in range(6000):
        if condition():
            return
        tick.wait(0.005)
    raise AssertionError("it never happened")


async def test_a_callable_runs_on_another_thread_with_its_arguments() -> None:
    assert await run_in_worker(threading.get_ident) != threading.get_ident()
    assert await run_in_worker(divmod, 7, 2) == (3, 1)


async def test_what_it_raises_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        await run_in_worker(divmod, 7, 0)
    with pytest.raises(RuntimeError, match=r"^it raised StopIteration$"):
        await run_in_worker(next, iter(()))


async def test_a_job_cannot_close_the_coroutine_that_waits_for_it() -> None:
    go_on = threading.Event()

    def work() -> None:
        go_on.wait(10)
        raise GeneratorExit("enough")

    waiting = asyncio.ensure_future(run_in_worker(work))
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(CrashError, match="GeneratorExit: enough"):
        await waiting


async def test_context_variables_are_copied_and_changes_do_not_come_back() -> None:
    name = contextvars.ContextVar("name", default="none")
    name.set("mine")

    def work() -> str:
        seen = name.get()
        name.set("changed")
        return seen

    assert await run_in_worker(work) == "mine"
    assert name.get() == "mine"


async def test_threads_are_reused_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, threads = WorkerPool(), set[int]()
    monkeypatch.setattr(workers, "WORKERS", pool)
    for _ in range(50):
        threads.add(await run_in_worker(threading.get_ident))
        until(lambda: pool.idle == 1)  # it answers a moment before it can be asked again
    assert len(threads) == 1


async def test_as_many_run_at_once_as_are_asked_for() -> None:
    barrier = threading.Barrier(20)
    places = await asyncio.gather(*(run_in_worker(barrier.wait, PATIENCE) for _ in range(20)))
    assert sorted(places) == list(range(20))


async def test_cancelling_returns_at_once_and_the_late_result_goes_where_it_was_wished() -> None:
    begun, go_on, arrived = threading.Event(), threading.Event(), threading.Event()
    late: list[Any] = []

    def work() -> str:
        begun.set()
        go_on.wait(PATIENCE)
        return "late"

    def on_late(value: str | None, error: BaseException | None) -> None:
        late.append((value, error))
        arrived.set()

    task = asyncio.create_task(run_in_worker(work, on_late=on_late))
    await run_in_worker(begun.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert late == []
    go_on.set()
    await run_in_worker(arrived.wait, PATIENCE)
    assert late == [("late", None)]


async def test_a_late_result_that_nobody_wished_for_is_forgotten() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    task = asyncio.create_task(run_in_worker(work))
    await run_in_worker(begun.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()


async def test_a_result_that_is_there_but_not_yet_delivered_when_the_wait_is_cancelled_is_late_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late: list[Any] = []
    on_its_way = threading.Event()
    loop = asyncio.get_running_loop()
    deliver = loop.call_soon_threadsafe

    def call_soon_threadsafe(*args: Any, **kwargs: Any) -> Any:
        handle = deliver(*args, **kwargs)
        on_its_way.set()
        return handle

    monkeypatch.setattr(loop, "call_soon_threadsafe", call_soon_threadsafe)
    begin = threading.Event()

    def work() -> str:
        begin.wait(PATIENCE)
        return "just in time"

    task = asyncio.create_task(run_in_worker(work, on_late=lambda value, _: late.append(value)))
    await asyncio.sleep(0)  # it stands still for a moment, then waits as one does
    begin.set()
    on_its_way.wait(PATIENCE)  # on the loop's own thread, so that nothing is delivered meanwhile
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert late == ["just in time"]


async def test_a_job_that_is_done_at_once_does_not_go_through_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "BRIEF_SECONDS", PATIENCE)

    def announce(*_: object) -> None:
        pytest.fail("it was announced")

    monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", announce)
    assert await run_in_worker(lambda: "at once") == "at once"
    with pytest.raises(ValueError, match="at once too"):
        await run_in_worker(raise_, ValueError("at once too"))


def raise_(error: Exception) -> None:
    raise error


def test_a_result_for_a_loop_that_was_closed_meanwhile_harms_nobody() -> None:
    begun, go_on, finished = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    loop = asyncio.new_event_loop()
    coroutine = run_in_worker(work, on_late=lambda value, error: finished.set())
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0))
    begun.wait(PATIENCE)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    go_on.set()
    assert finished.wait(PATIENCE)


def test_a_loop_that_closes_under_a_waiting_call_loses_the_result_quietly() -> None:
    begun, go_on = threading.Event(), threading.Event()
    left: list[Any] = []

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    async def start() -> None:
        left.append(run_in_worker(work))
        left[0].send(None)

    asyncio.run(start())
    begun.wait(PATIENCE)
    idle = WORKERS.idle
    go_on.set()
    until(lambda: WORKERS.idle > idle)
    left[0].close()


def test_a_plain_thread_waits_as_long_as_it_likes() -> None:
    go_on = threading.Event()
    call = BlockingCall(lambda: go_on.wait(PATIENCE))
    call.wait(0.0, SYSTEM_CLOCK)
    go_on.set()
    call.wait(None, SYSTEM_CLOCK)
    assert not call.leave()
    assert call.result() is True


def test_a_plain_thread_gets_what_was_raised() -> None:
    call = BlockingCall(lambda: 1 / 0)
    call.wait(PATIENCE, SYSTEM_CLOCK)
    assert not call.leave()
    with pytest.raises(ZeroDivisionError):
        call.result()


@pytest.mark.parametrize("first", ["result", "wish"])
def test_a_call_that_was_left_gives_its_result_once_whichever_comes_first(first: str) -> None:
    begun, go_on, arrived = threading.Event(), threading.Event(), threading.Event()
    late: list[Any] = []

    def work() -> bool:
        begun.set()
        return go_on.wait(PATIENCE)

    def on_late(value: Any, error: BaseException | None) -> None:
        late.append((value, error))
        arrived.set()

    before = WORKERS.idle
    call = BlockingCall(work)
    assert begun.wait(PATIENCE)
    call.wait(0.0, SYSTEM_CLOCK)
    assert call.leave()
    assert not call.never_begins
    if first == "wish":
        call.when_late(on_late)
        go_on.set()
    else:
        go_on.set()
        until(lambda: WORKERS.idle >= max(before, 1))
        call.when_late(on_late)
    assert arrived.wait(PATIENCE)
    assert late == [(True, None)]


def test_what_is_left_before_it_began_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job[Any]] = []
    begun: list[str] = []

    class Busy:
        run = staticmethod(jobs.append)

    monkeypatch.setattr(workers, "WORKERS", Busy)
    call = BlockingCall(lambda: begun.append("it"))
    assert call.leave()
    assert call.leave()
    assert call.never_begins
    call.when_late(lambda value, error: begun.append("late"))
    jobs[0].run()
    assert begun == []


def test_a_job_is_begun_or_withdrawn_but_never_both() -> None:
    for _ in range(200):
        begun: list[int] = []
        job: Job[None] = Job(partial(begun.append, 1), lambda job: None)
        start = threading.Barrier(2)

        def begin(job: Job[Any] = job, start: threading.Barrier = start) -> None:
            start.wait(PATIENCE)
            job.run()

        thread = threading.Thread(target=begin)
        thread.start()
        start.wait(PATIENCE)
        withdrawn = job.withdraw()
        thread.join(PATIENCE)
        assert begun == ([] if withdrawn else [1])


def test_waking_lets_the_waiting_thread_look_up() -> None:
    go_on = threading.Event()
    call = BlockingCall(lambda: go_on.wait(PATIENCE))
    threading.Thread(target=call.wake).start()
    call.wait(PATIENCE, SYSTEM_CLOCK)
    assert call.leave()
    go_on.set()


def test_a_test_clock_ends_the_wait_when_time_is_moved() -> None:
    clock, go_on = TestClock(), threading.Event()

    def work() -> None:
        while not go_on.wait(0.005):  # once more, if the other thread began to wait only now
            clock.advance(10)

    call = BlockingCall(work)
    call.wait(10, clock)
    assert call.leave()
    go_on.set()
    over = threading.Event()
    clock.wait(over, 0)
    assert over.is_set()
    clock.wait(over, None)


def test_an_idle_thread_ends_after_a_while() -> None:
    pool = WorkerPool(idle_seconds=0.01)
    done = threading.Event()
    pool.run(Job(lambda: None, lambda job: done.set()))
    assert done.wait(PATIENCE)
    until(lambda: pool.idle == 0)
    again = threading.Event()
    pool.run(Job(lambda: None, lambda job: again.set()))
    assert again.wait(PATIENCE)


def test_a_worker_that_was_picked_while_it_wanted_to_end_still_does_its_job() -> None:
    """Jobs that come just as threads end are never lost."""
    pool = WorkerPool(idle_seconds=0.0005)
    done = threading.Semaphore(0)
    pause = threading.Event()
    for number in range(300):
        pool.run(Job(lambda: None, lambda job: done.release()))
        assert done.acquire(timeout=PATIENCE)
        pause.wait(0.0004 if number % 2 else 0.0006)


def test_a_worker_keeps_nothing_of_its_last_job() -> None:
    class Thing:
        pass

    pool = WorkerPool()
    thing = Thing()
    gone = weakref.ref(thing)
    done = threading.Event()

    def work(thing: Thing = thing) -> None:
        assert thing is not None

    pool.run(Job(work, lambda job: done.set()))
    assert done.wait(PATIENCE)
    del thing, work
    until(lambda: gone() is None)


def test_a_job_runs_once() -> None:
    job = Job(lambda: 1, lambda job: None)
    job.run()
    assert job.result() == 1
    with pytest.raises(RuntimeError, match="once"):
        job.run()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    script = (
        "import os, sys, threading\n"
        "from watchkeeper.core.clock import SYSTEM_CLOCK\n"
        "from watchkeeper.core.workers import BlockingCall, WORKERS\n"
        "def ask():\n"
        "    call = BlockingCall(lambda: 7)\n"
        "    call.wait(20, SYSTEM_CLOCK)\n"
        "    return 0 if not call.leave() and call.result() == 7 else 1\n"
        "assert ask() == 0\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(ask())\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=60, check=False).returncode == 0


def test_a_thread_that_never_ends_does_not_keep_the_interpreter_from_exiting() -> None:
    script = (
        "import threading\n"
        "from watchkeeper.core.clock import SYSTEM_CLOCK\n"
        "from watchkeeper.core.workers import BlockingCall\n"
        "BlockingCall(threading.Event().wait).wait(0.0, SYSTEM_CLOCK)\n"
        "print('bye')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, check=True, capture_output=True, text=True)
    assert ended.stdout == "bye\n"


class Panic(BaseException):
    """Stands for what a Rust extension raises."""


@pytest.mark.parametrize(
    ("error", "crash"),
    [
        (ValueError("x"), True),
        (Panic("x"), True),
        (GeneratorExit(), False),
        (BaseExceptionGroup("many", [Panic()]), True),
        (BaseExceptionGroup("many", [Panic(), BaseExceptionGroup("more", [KeyboardInterrupt()])]), False),
        (KeyboardInterrupt(), False),
        (SystemExit(1), False),
        (BreakOut(), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
async def test_what_is_a_crash_in_a_task(error: BaseException, crash: bool) -> None:
    here = asyncio.current_task()
    elsewhere = asyncio.ensure_future(asyncio.sleep(0))
    assert is_crash(error, elsewhere) is crash
    assert is_crash(error, here) is (crash or isinstance(error, GeneratorExit))
    await elsewhere


def test_what_is_a_crash_on_a_thread() -> None:
    assert is_crash(GeneratorExit(), None)
    assert is_crash(asyncio.CancelledError(), None)
    assert not is_crash(KeyboardInterrupt(), None)


async def test_a_cancellation_is_a_crash_if_nobody_asked_for_it() -> None:
    seen: list[Any] = []

    async def work() -> None:
        task = asyncio.current_task()
        seen.append(is_crash(asyncio.CancelledError(), task))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            seen.append(is_crash(error, task))

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    await task
    assert seen == [True, False]


async def test_a_coroutine_that_is_closed_without_a_loop_has_not_crashed() -> None:
    task = asyncio.current_task()
    assert await asyncio.to_thread(is_crash, GeneratorExit(), task) is False


async def test_a_call_into_a_loop_comes_from_any_thread_and_a_closed_loop_is_harmless() -> None:
    called = asyncio.Event()
    await asyncio.to_thread(call_in_loop, asyncio.get_running_loop(), called.set)
    await asyncio.wait_for(called.wait(), PATIENCE)
    closed = asyncio.new_event_loop()
    closed.close()
    call_in_loop(closed, called.clear)
    assert called.is_set()
