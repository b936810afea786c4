"""How the blocking functions run async code: on one event loop on a daemon thread.

It works where a loop is already running (notebooks, async frameworks), because the caller's loop is never used. There
is one such loop per process, started at first use. A call on the loop's own thread would wait for itself, so it raises
an error that names the async function to use instead.

While it waits it takes the signals that ask for the end of the work: Ctrl-C, and for a program that says so, TERM and
HUP. It takes those whose handler is Python's own for Ctrl-C (``signal.default_int_handler``) or an `EndRequests`. Every
other handler is the program's own and is kept, and ignored signals stay ignored. Only the main thread can set handlers,
so handlers are set only there, and all are restored.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any, Final, TypeVar

from watchkeeper.core.clock import running_loop
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import WatchkeeperError
from watchkeeper.core.forks import in_forked
from watchkeeper.runtime.watchdog import Watchdog

T = TypeVar("T")


ENDING: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What asks for the end, where the system has it: Windows knows no SIGHUP."""

AGAIN_SECONDS: Final = 1.0
"""A TERM or HUP that comes sooner after another request says the same once more. ``timeout`` sends TERM to the process
and to its group, a login that ends sends TERM and HUP, a terminal that closes HUP twice."""


class EndRequests:
    """The requests for the end so far, and a signal handler that takes one.

    Attributes:
        signals: The signals that counted, in order.
        noted: How many requests are only noted when no run takes them; one more is a KeyboardInterrupt.
        ending: Whether a run took the requests and is over, in a program with work left (``noted``). From then on
            a request interrupts only work that allows it (`broken_off_by`).
    """

    def __init__(self, noted: int = 0, clock: Clock = SYSTEM_CLOCK) -> None:
        """Start without a request."""
        self.signals: list[int] = []
        self.noted = noted
        self.ending = False
        self._clock = clock
        self._last = 0.0
        self._unheard: list[int] = []
        self._may_break_off = False
        self._raised = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal while no run does.

        Raises:
            KeyboardInterrupt: Unless it is only noted. A key that is held down, or a storm of signals, is one request
                here: a second exception would break off what deals with the first.
        """
        storm = bool(self.signals) and self._clock.monotonic() - self._last < AGAIN_SECONDS
        if not self.take(number):
            return
        ignored = storm and (self.ending or self._raised)
        if len(self.signals) > self.noted and not ignored and (self._may_break_off or not self.ending):
            self._raised, self._may_break_off = True, False
            raise KeyboardInterrupt
        self._unheard.append(number)

    def broken_off_by(self, work: Callable[[], T]) -> T:
        """Do a part of the end that a new request may break off.

        Raises:
            KeyboardInterrupt: If one did. One that comes within a second of another is the same request.
        """
        try:
            self._may_break_off = True
            return work()
        finally:
            self._may_break_off = False

    def unheard(self) -> tuple[int, ...]:
        """Return, once, the requests that were only noted."""
        unheard, self._unheard = tuple(self._unheard), []
        return unheard

    def take(self, number: int) -> bool:
        """Count a signal and return True, unless it only repeats a request.

        Every Ctrl-C counts: a person presses it. HUP counts only as the first request, because it means that the
        terminal is closed, so a second HUP is no new request of a person.
        """
        now = self._clock.monotonic()
        if self.signals and number != signal.SIGINT:
            repeats = now - self._last < AGAIN_SECONDS
            if repeats or number != signal.SIGTERM:
                return False
        self._last = now
        self.signals.append(number)
        return True


@contextmanager
def handled_by(
    handler: Callable[[int, FrameType | None], Any],
    replaced: Callable[[int, Any], bool],
    stays: Callable[[], bool] = bool,
) -> Generator[None]:
    """Set a handler while the block runs; elsewhere than on the main thread nothing is set.

    Args:
        handler: The handler to set.
        replaced: Whether to set it, given the signal and the handler that it has.
        stays: Whether to leave it set at the end of the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    before = {number: present for number, present in before.items() if replaced(number, present)}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        if stays():
            atexit.register(ignore, tuple(before))  # the interpreter's own end would put back what ends the process
        else:
            for number, present in before.items():
                signal.signal(number, present)


def ignore(numbers: tuple[int, ...]) -> None:
    """Ignore signals from now on, for the rest of the process.

    A signal that came just before is ignored too; Python would print an error about it.
    """
    shown = sys.unraisablehook

    def show(unraisable: sys.UnraisableHookArgs) -> None:
        if not (isinstance(unraisable.exc_value, OSError) and "race condition" in str(unraisable.exc_value)):
            shown(unraisable)

    sys.unraisablehook = show
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def heeding(requests: EndRequests, *, to_the_end: bool = False) -> AbstractContextManager[None]:
    """Take every signal that asks for the end and would end the process, while the block runs.

    For a program of its own, such as the command line. What is ignored (``nohup``, a shell's background) stays so.

    Args:
        requests: Takes them.
        to_the_end: Whether it goes on to take them after the block if any came, because the process ends now.
    """
    return handled_by(
        requests,
        lambda number, present: present in (signal.SIG_DFL, signal.default_int_handler),
        lambda: to_the_end and bool(requests.signals),
    )


def is_heeded(number: int, present: Any) -> bool:
    """Return whether a run may take a signal, given the handler that it has."""
    return present is signal.default_int_handler or isinstance(present, EndRequests)


def requests_of_program() -> EndRequests:
    """Return where the program counts the requests for its end; new ones if it does not, or not on this thread."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            present = signal.getsignal(number)
            if isinstance(present, EndRequests):
                return present
    return EndRequests()


PASSED_ON: Final = 2
"""How many requests for the end the work is told of. After one more it has a second to come to its end, is cancelled,
and has another second; then the wait is over, so that nothing can hold the terminal for ever."""

LAST_SECONDS: Final = 1.0
"""The length of that second."""

LOOK_UP_SECONDS: Final = 0.2
"""How often a waiting thread looks up. A signal that comes in the moment before it falls asleep does not wake it."""


class Portal:
    """Runs coroutines on a background loop and waits for them."""

    def __init__(self, last_seconds: float = LAST_SECONDS) -> None:
        """Start nothing yet; ``last_seconds`` is how long work may take to end after the third request."""
        self._last_seconds = last_seconds
        self.forget()

    def call(
        self,
        work: Coroutine[Any, Any, T],
        twin: str,
        on_interrupt: Callable[[str], None] | None = None,
    ) -> T:
        """Run a coroutine to its end on the portal's loop.

        Args:
            work: What to run; it sees the caller's context variables.
            twin: Name of the async function to call instead, for the error.
            on_interrupt: Called on the loop, with the signal's name, for the first two requests for the end (Ctrl-C,
                and what `watchkeeper.runtime.portal` says); waiting then goes on. Without it the work is cancelled,
                and after the third request if it does not end within a second.

        Raises:
            WatchkeeperError: If called on the portal's own thread.
            KeyboardInterrupt: After a request that cancelled the work.
            BaseException: Whatever the work raises, or a signal handler while this waits; the work is then cancelled.
        """
        if self._thread is threading.current_thread():
            work.close()
            raise WatchkeeperError(f"this is the loop's own thread, which must not wait for itself; await {twin}(...)")
        loop = self._running()
        done = threading.Event()
        started: list[asyncio.Task[T]] = []
        context = contextvars.copy_context()

        def start() -> None:
            task = loop.create_task(work, context=context)
            started.append(task)
            task.add_done_callback(lambda _: done.set())

        def cancel(_: str = "") -> None:
            for task in started:
                task.cancel()

        with _passing_on(on_interrupt or cancel, loop) as interrupts:
            try:
                loop.call_soon_threadsafe(start)
                self._wait(done, interrupts, cancel)
            except BaseException:  # a Ctrl-C, or what a program's own signal handler raises
                loop.call_soon_threadsafe(cancel)
                raise
        if interrupts and on_interrupt is None:
            raise KeyboardInterrupt
        return started[0].result()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine on the portal's loop; its thread must not wait for it. Cancelling ends the work."""
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def _wait(self, done: threading.Event, interrupts: list[int], cancel: Callable[[], None]) -> None:
        """Wait for the end of the work.

        Raises:
            KeyboardInterrupt: If it was asked to end three times and did not, or had to be cancelled.
        """
        while not done.wait(LOOK_UP_SECONDS):
            self._watchdog.look(self._running(), self._thread)
            if len(interrupts) <= PASSED_ON:
                continue
            if not done.wait(self._last_seconds):
                self._running().call_soon_threadsafe(cancel)
                done.wait(self._last_seconds)
                raise KeyboardInterrupt
            return

    def forget(self) -> None:
        """Start a new loop at the next call: a forked process does not have the loop's thread."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._watchdog = Watchdog()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="watchkeeper-loop", daemon=True)
                self._thread.start()
            return self._loop


def wait_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], twin: str) -> T:
    """Run a coroutine on a loop that runs on another thread, and wait for it; it sees the caller's context variables.

    Args:
        loop: The loop that runs the coroutine.
        work: The coroutine.
        twin: Name of the async function to call instead, for the error.

    Raises:
        WatchkeeperError: If called on the loop's own thread, or the loop is closed.
        BaseException: Whatever the work raises; if the wait is broken off, the work is cancelled.
    """
    if running_loop() is loop:
        work.close()
        raise WatchkeeperError(f"this is the loop's own thread, which must not wait for itself; await {twin}(...)")
    try:
        waiting = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError as error:
        work.close()
        raise WatchkeeperError("the loop of the run is closed, because the run is over; nothing was started") from error
    try:
        return waiting.result()
    except BaseException:
        waiting.cancel()
        raise


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop for as long as the process lives.

    asyncio raises a task's SystemExit or KeyboardInterrupt out of the loop, and also in the code that awaits the task.
    That exception must end neither the other runs nor later ones, so the loop is started again.
    """
    while True:
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


@contextmanager
def _passing_on(on_interrupt: Callable[[str], None], loop: asyncio.AbstractEventLoop) -> Generator[list[int]]:
    """Turn the first requests for the end into calls on the loop while the block runs; yield the signals that came.

    A handler does it, because an exception could be raised between any two lines, also while an earlier one is handled.
    Earlier requests that were only noted are passed on first.
    """
    requests = requests_of_program()
    came: list[int] = []

    def pass_on(number: int) -> None:
        came.append(number)
        if len(came) <= PASSED_ON:
            loop.call_soon_threadsafe(on_interrupt, signal.Signals(number).name)

    def handle(number: int, frame: FrameType | None) -> None:
        if requests.take(number):
            pass_on(number)

    with handled_by(handle, is_heeded):
        for number in requests.unheard():
            pass_on(number)
        try:
            yield came
        finally:
            requests.ending = requests.noted > 0


PORTAL: Final = Portal()

in_forked(PORTAL.forget)
