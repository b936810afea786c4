"""Worker threads for code that blocks, and the test whether an error is a crash of the user's code alone (`is_crash`).

Threads are reused daemon threads; a wait for one never exceeds the given time. A job runs with a copy of the caller's
context variables. The waiter may stop waiting at any time: a job that has not begun by then never begins; a job that
has begun runs to its end, and its late result goes to the caller's ``on_late``. A thread that is idle for a while ends;
no thread keeps the interpreter from exiting. Code with thread affinity must not run here: two jobs may run on two
threads.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from watchkeeper.core.cancellation import Bell, CancellationToken
from watchkeeper.core.clock import Clock, Timer
from watchkeeper.core.forks import in_forked
from watchkeeper.core.text import CrashError

T = TypeVar("T")


class BreakOut(BaseException):
    """An exception of Watchkeeper that must pass through every layer that retries or records failures.

    Attributes:
        is_local: Whether the run in which it was raised treats it as a failure of the code that raised it; if not,
            it passes through the run too.
    """

    is_local = False


PASSING: Final = (SystemExit, KeyboardInterrupt, BreakOut)
"""Exceptions that end the program, or one of Watchkeeper's blocks, no matter which code raised them."""


def has_passing(error: BaseException) -> bool:
    """Return whether an error, or one in its group, passes through every layer."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return any(has_passing(part) for part in group.exceptions)
    return isinstance(error, PASSING) and not (isinstance(error, BreakOut) and error.is_local)


def is_crash(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether an error is a failure of the code that raised it only, so that other work can go on.

    Libraries raise more than Exceptions: a panic in a Rust extension, for one, is a plain BaseException.

    Args:
        error: What was raised.
        task: The task in which the code was called; None for code that has run on a thread.

    Returns:
        False for errors that pass through every layer, for a cancellation that was requested, and for a coroutine that
        is being closed.
    """
    if isinstance(error, Exception):
        return True
    if has_passing(error):
        return False
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() == 0
    return not isinstance(error, GeneratorExit) or task is running_task()


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    """Call back on a loop, from any thread; does nothing if the loop is closed, because it has no waiters then."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


def running_task() -> asyncio.Task[Any] | None:
    """Return the task that runs in this thread, or None."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


IDLE_SECONDS: Final = 10.0
"""Seconds that a thread waits for its next job before it ends."""

BRIEF_SECONDS: Final = 50e-6
"""Seconds that a loop blocks for a job that may finish at once; no longer than waking the loop would take."""

OnLate = Callable[[T | None, BaseException | None], object]


class Job(Generic[T]):
    """One callable on a worker thread.

    Attributes:
        value: What it returned.
        error: What it raised.
        withdrawn: Whether it never begins, because its waiter left first.
    """

    __slots__ = ("_claim", "_context", "_fn", "_on_done", "error", "value", "withdrawn")

    def __init__(self, fn: Callable[[], T], on_done: Callable[[Job[T]], object]) -> None:
        self._fn: Callable[[], T] | None = fn
        self._on_done: Callable[[Job[T]], object] | None = on_done
        self._context: Context | None = copy_context()
        self._claim = threading.Lock()  # taken once: by the thread that begins the job, or by the one that withdraws it
        self.withdrawn = False
        self.value: T | None = None
        self.error: BaseException | None = None

    def withdraw(self) -> bool:
        """Withdraw the job if it has not begun, so that it never begins; return whether it is withdrawn."""
        if self._claim.acquire(blocking=False):
            self.withdrawn = True
            self._fn = self._context = self._on_done = None
        return self.withdrawn

    def run(self) -> None:
        """Run it on this thread unless it was withdrawn; keep only its result."""
        claimed = self._claim.acquire(blocking=False)
        fn, context, on_done = self._fn, self._context, self._on_done
        if not claimed and (self.withdrawn or on_done is not None):  # the second case: it is being withdrawn now
            return
        self._fn = self._context = self._on_done = None
        if fn is None or context is None or on_done is None:
            raise RuntimeError("a job runs once")
        try:
            self.value = context.run(fn)
        except StopIteration as error:  # a future cannot carry one
            self.error = RuntimeError("it raised StopIteration")
            self.error.__cause__ = error
        except BaseException as error:
            self.error = error
        on_done(self)

    def result(self) -> T:
        """Return what it returned, or raise what it raised."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class Worker:
    """One thread and its mailbox of one job."""

    __slots__ = ("_job", "_mail", "_pool")

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._job: Job[Any] | None = None
        self._mail = threading.Lock()
        self._mail.acquire()
        threading.Thread(target=self._work, name="watchkeeper-worker", daemon=True).start()

    def give(self, job: Job[Any]) -> None:
        """Hand over a job; only to a worker that is idle."""
        self._job = job
        self._mail.release()

    def _work(self) -> None:
        while True:
            if not self._mail.acquire(timeout=self._pool.idle_seconds):
                if self._pool.retire(self):
                    return
                self._mail.acquire()  # this worker was just picked: its job is about to arrive
            job, self._job = self._job, None
            if job is not None:
                job.run()
                del job
            self._pool.rest(self)


class WorkerPool:
    """Hands jobs to idle threads, the most recently used first, and starts a thread if none is idle."""

    __slots__ = ("_idle", "_lock", "idle_seconds")

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self.idle_seconds = idle_seconds
        self._lock = threading.RLock()
        self._idle: list[Worker] = []

    @property
    def idle(self) -> int:
        """Number of threads that wait for a job."""
        return len(self._idle)

    def run(self, job: Job[Any]) -> None:
        """Run a job on a thread, at once."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        (worker or Worker(self)).give(job)

    def rest(self, worker: Worker) -> None:
        """Take back a worker that is done."""
        with self._lock:
            self._idle.append(worker)

    def retire(self, worker: Worker) -> bool:
        """Remove an idle worker; return False if it has just been picked for a job."""
        with self._lock:
            if worker not in self._idle:
                return False
            self._idle.remove(worker)
            return True

    def forget_threads(self) -> None:
        """Reset in a forked process, which has none of its parent's threads."""
        self._lock = threading.RLock()
        self._idle = []


WORKERS: Final = WorkerPool()
in_forked(WORKERS.forget_threads)


class _Handover(Generic[T]):
    """Decides, once, whether a result arrives before its waiter stops waiting."""

    __slots__ = ("_here", "_late_job", "_lock", "_on_late", "_over", "_parked")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = False
        self._here: threading.Lock | None = None
        self._parked = True
        self._on_late: OnLate[T] | None = None
        self._late_job: Job[T] | None = None

    def expect(self) -> None:
        """Announce, before the job begins, that `comes_at_once` will be called."""
        self._here = threading.Lock()
        self._here.acquire()
        self._parked = False

    def comes_at_once(self) -> bool:
        """Block for `BRIEF_SECONDS`; return whether the result is there. If not, `arrive` must announce it."""
        if self._here is None or self._here.acquire(timeout=BRIEF_SECONDS):
            return True
        with self._lock:
            self._parked = True
            return self._over

    def arrive(self, job: Job[T]) -> bool:
        """Return whether the waiter must be notified of the result; a late result goes to ``on_late`` instead."""
        with self._lock:
            in_time, self._over = not self._over, True
            parked = self._parked
            if not in_time:
                self._late_job = job
        if not in_time and self._on_late is not None:
            self._on_late(job.value, job.error)
        if not parked and self._here is not None:
            self._here.release()
        return in_time and parked

    def leave(self) -> bool:
        """Stop waiting; return False if the result is there already."""
        with self._lock:
            left, self._over = not self._over, True
            return left

    def when_late(self, on_late: OnLate[T]) -> None:
        """Set, after leaving, the callback for the late result; it is called once, now or when the result comes."""
        with self._lock:
            job = self._late_job
            if job is None:
                self._on_late = on_late
        if job is not None:
            on_late(job.value, job.error)


class Patience(msgspec.Struct, frozen=True):
    """How long to wait for a job.

    Attributes:
        until: Returns the monotonic instant at which to stop waiting; called again at that instant, so it may move on.
        clock: The clock of these instants.
        token: The token whose cancellation also ends the wait.
    """

    until: Callable[[], float]
    clock: Clock
    token: CancellationToken


async def run_in_worker(
    fn: Callable[..., T],
    *args: Any,
    on_late: OnLate[T] | None = None,
    patience: Patience | None = None,
    must_run: bool = False,
) -> T:
    """Run a blocking callable on a worker thread and wait for it without blocking the loop for more than a moment.

    Cancelling the wait returns at once. A job that has not begun by then never begins; otherwise it runs to its end.

    Args:
        fn: The callable.
        *args: Its positional arguments.
        on_late: Called with value and error if they come after the wait ended; on the worker's thread, or on the one
            that cancelled if both happened together. Never called if the callable did not begin.
        patience: How long to wait; None waits without a limit.
        must_run: Whether it runs even if the wait has ended: for code that closes, ends or stores something.

    Returns:
        What it returned.

    Raises:
        TimeoutError: If patience ended first.
        BaseException: Whatever the callable raised; a StopIteration as a RuntimeError, a GeneratorExit as a CrashError
            unless it came at once.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T]  # made only if the job is not done at once
    handover: _Handover[T] = _Handover()

    def deliver(job: Job[T]) -> None:
        if future.done():
            return
        if job.error is None:
            future.set_result(job.value)  # type: ignore[arg-type]
        elif isinstance(job.error, GeneratorExit):  # raised unchanged, it would close the coroutines that wait
            future.set_exception(CrashError(job.error))
        else:
            future.set_exception(job.error)

    def done(job: Job[T]) -> None:
        if handover.arrive(job):
            call_in_loop(loop, deliver, job)

    job = Job(partial(fn, *args) if args else fn, done)
    handover.expect()
    WORKERS.run(job)
    try:
        if handover.comes_at_once():
            return job.result()
        future = loop.create_future()
        return await (future if patience is None else _impatiently(future, patience))
    except BaseException as error:
        if error is not job.error and (must_run or not job.withdraw()) and on_late is not None:
            if handover.leave():
                handover.when_late(on_late)
            else:
                on_late(job.value, job.error)
        raise


async def _impatiently(future: asyncio.Future[T], patience: Patience) -> T:
    """Wait for a future until ``patience`` ends; then raise TimeoutError."""
    loop, clock = asyncio.get_running_loop(), patience.clock
    timer: Timer | None = None

    def give_up() -> None:
        if not future.done():
            future.set_exception(TimeoutError("nobody waits for it any longer"))

    def look() -> None:
        nonlocal timer
        until = patience.until()
        if clock.monotonic() >= until:
            give_up()
        elif until != math.inf:
            # In an empty context, because a timer keeps a reference to its context even when it is cancelled.
            timer = Context().run(clock.call_at, until, look)

    def give_up_from_anywhere(_: str) -> None:
        call_in_loop(loop, give_up)

    look()
    forget = patience.token.on_cancel(give_up_from_anywhere)
    try:
        return await future
    finally:
        forget()
        if timer is not None:
            timer.cancel()


class BlockingCall(Generic[T]):
    """A callable on a worker thread that a plain thread waits for, with a time of its own choice."""

    __slots__ = ("_handover", "_job", "_woken")

    def __init__(self, fn: Callable[[], T]) -> None:
        self._woken = Bell()
        self._handover: _Handover[T] = _Handover()
        self._job = Job(fn, self._done)
        WORKERS.run(self._job)

    def _done(self, job: Job[T]) -> None:
        if self._handover.arrive(job):
            self._woken.set()

    def wait(self, seconds: float | None, clock: Clock) -> None:
        """Block until it is done, the time is over, or `wake` is called."""
        clock.wait(self._woken, seconds)

    def wake(self) -> None:
        """Make `wait` return; may be called from any thread."""
        self._woken.set()

    def leave(self) -> bool:
        """Stop waiting; return False if the result is there already. A job that has not begun yet never begins."""
        return self._job.withdraw() or self._handover.leave()

    @property
    def never_begins(self) -> bool:
        """Whether it was left before it began."""
        return self._job.withdrawn

    def when_late(self, on_late: OnLate[T]) -> None:
        """Set, after leaving, the callback for the late result: on the worker's thread, or here if it has already come.

        It is not called for a job that never begins.
        """
        self._handover.when_late(on_late)

    def result(self) -> T:
        """Return what it returned, or raise what it raised; only after `leave` returned False."""
        return self._job.result()
