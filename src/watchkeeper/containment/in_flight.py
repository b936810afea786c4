"""A call under way, as the gate keeps it: its ticket, its demand, and how it is interrupted.

Async work runs in the task of whoever called, step by step (`fly`). It is interrupted by cancelling that task, and the
cancellation is taken back once the work has ended; cancellations that come from elsewhere pass through untouched. Calls
nest within one task: work that was cancelled for a call around it has been told, and is not cancelled again for its
own. Work that does not end within `GRACE_SECONDS` of being interrupted is left behind, with the calls that it is in: it
goes on in a task of its own and its result is late. Nothing here admits, charges or records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from contextvars import Context, ContextVar, Token
from inspect import CORO_CREATED, getcoroutinestate
from types import CoroutineType, coroutine
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from watchkeeper.accounting.account import (
    Account,
)
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import CallRequest, Charge, Dollars, nanos
from watchkeeper.accounting.refusals import KINDS
from watchkeeper.containment.guards import Entry
from watchkeeper.containment.record import Node
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import Clock, Timer
from watchkeeper.core.errors import Stop
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.text import error_text
from watchkeeper.core.workers import BlockingCall
from watchkeeper.shield.decision import Decision

T = TypeVar("T")


CALL_TIMEOUT: Final = "call_timeout"
"""Stop reason of a call that overran its own time-out; nothing is latched."""


class Ticket:
    """What the work is given: what it may use, and the signal to stop.

    Attributes:
        max_output_tokens: Output cap that was granted; at most what was wished for.
        timeout: Seconds left for the call when it was admitted, or None.
        charged_nanos: What the work said it cost, by `charge`; None if it said nothing.
    """

    __slots__ = ("_parent_token", "_token", "charged_nanos", "max_output_tokens", "node", "timeout")

    node: Node
    max_output_tokens: int
    timeout: float | None
    charged_nanos: int | None
    _parent_token: CancellationToken
    _token: CancellationToken | None

    @property
    def node_id(self) -> str:
        """The id of the call's node."""
        return self.node.node_id

    @property
    def cancellation(self) -> CancellationToken:
        """Cancelled when the call's time is over or its context is aborted or closed."""
        if self._token is None:
            self._token = self._parent_token.child()
        return self._token

    def charge(self, usd: Dollars) -> None:
        """Say what the work costs, in dollars; several charges add up, and take the place of the hint."""
        self.charged_nanos = (self.charged_nanos or 0) + nanos(usd, "charge")


class Outcome(msgspec.Struct, Generic[T], frozen=True):
    """What came of a call.

    Attributes:
        decision: ALLOW if it ran and returned, RETRY if it failed and may be repeated, HALT if it was refused or
            stopped; or whatever a hook said about it.
        value: What the work returned; also if it came too late, as long as it came before the gate let go.
        error: What the work raised, or a TimeoutError for a call that overran.
        stop_reason: The reason behind a HALT, the type of the event behind what a hook said, or `CALL_TIMEOUT`.
        stop: The stop behind a HALT or a QUARANTINE; None for failures and time-outs of the call alone.
        admitted: Whether the work was begun.
        node: The gate's own record of the call.
    """

    decision: Decision
    value: T | None = None
    error: BaseException | None = None
    stop_reason: str | None = None
    stop: Stop | None = None
    node: Node | None = None
    admitted: bool = True

    @property
    def node_id(self) -> str | None:
        """The id of the admitted call, or None if it was refused."""
        return self.node.node_id if self.node is not None and self.admitted else None


Work = Callable[[Ticket], Awaitable[T]]


Meter = Callable[[T | None, BaseException | None, Ticket], Charge]


def no_retry_left(flight: Flight, error: BaseException | None) -> Stop:
    """Say that a failure was the last that the chain could bear."""
    name = flight.node.name or f"A {KINDS[flight.node.kind]}"
    return Stop("provider_error", "gate", f"{name} failed and no retry is left: {error_text(error)}", "max_retries")


def overran(flight: Flight) -> TimeoutError:
    """Say which time was over for a call."""
    if flight.overrun == "deadline":
        return TimeoutError(f"{named(flight)} was stopped at the deadline")
    return TimeoutError(f"{named(flight)} did not finish within {format_duration(flight.timeout or 0.0)}")


def named(flight: Flight) -> str:
    """Return what to call a call."""
    return flight.node.name or f"a {KINDS[flight.node.kind]}"


# --- stepping -------------------------------------------------------------------------------------------------------
# Coroutines that are run step by step, and may change the task that runs them.
#
# A coroutine that was begun in one task can go on in another, from whatever it waits for. It knows nothing of calls.


async def go_on(work: Coroutine[Any, Any, T], waited: Any) -> T:
    """Run work that was begun elsewhere to its end; ``waited`` is what it waits for."""
    return await _rest(work, waited)


@coroutine
def _rest(work: Coroutine[Any, Any, T], waited: Any) -> Generator[Any, Any, T]:
    """Run left-behind work to its end, in whatever task runs this."""
    try:
        while True:
            if waited is not None:
                waited._asyncio_future_blocking = True
            try:
                sent = yield waited
            except GeneratorExit:
                work.close()
                raise
            except BaseException as thrown:
                waited = work.throw(thrown)
            else:
                waited = work.send(sent)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]


def as_coroutine(work: Awaitable[T]) -> Coroutine[Any, Any, T]:
    """Return work as a coroutine that can be run step by step."""
    if isinstance(work, CoroutineType):
        return work  # pyright: ignore[reportUnknownVariableType]  # isinstance forgets what it yields
    return _awaiting(work)


async def _awaiting(work: Awaitable[T]) -> T:
    return await work


GRACE_SECONDS: Final = 0.015
"""How long interrupted work may take to clean up before it is left behind."""

NEVER: Final = float("inf")

Interruption = Literal["deadline", "call_timeout", "aborted", "closed"]


class LeftBehindError(Exception):
    """The work did not end within its grace; its result will be late."""


class Flight(Ticket):
    """One call under way.

    Attributes:
        demand: What it holds at the ledger.
        request: What was asked for.
        expires_at: Monotonic instant at which its time is over; infinity if it never is.
        overrun: What it means if that comes: the deadline of its phase, or the call's own time-out.
        interrupted: Why it was interrupted, if it was; the first reason stays.
        struck: Whether the task was cancelled for it.
        told: Whether the task was cancelled, while it was under way, for a call around it.
        left: The task in which work that was left behind goes on.
        task: The task that runs its work, once it has waited for something.
        outer: The call inside which it was made.
        inner: The call that its work is waiting in, in the same task.
        entry: How it came past the guards, if there are any.
        wake: Makes a thread that waits for the work look up.
        thread: The worker's call in which work that was left behind goes on.
    """

    __slots__ = (
        "_loop",
        "_others",
        "_owes",
        "_timer",
        "demand",
        "done",
        "entry",
        "expires_at",
        "inner",
        "interrupted",
        "left",
        "outer",
        "overrun",
        "request",
        "struck",
        "task",
        "thread",
        "told",
        "wake",
    )

    def __init__(
        self, node: Node, outer: Flight | None, demand: Demand, request: CallRequest, token: CancellationToken
    ) -> None:
        """Begin a call that has been admitted."""
        self.node = node
        self.max_output_tokens = demand.granted
        self.timeout = None
        self.charged_nanos = None
        self._parent_token = token
        self._token = None
        self.request = request
        self.outer = outer
        self.entry: Entry | None = None
        self.demand = demand
        self.expires_at = NEVER
        self.overrun: Interruption = "deadline"
        self.interrupted: Interruption | None = None
        self.struck = self.told = self.done = False
        self.inner: Flight | None = None
        self.left: asyncio.Task[Any] | None = None
        self.wake: Callable[[], None] | None = None
        self.thread: BlockingCall[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: Timer | None = None

    @property
    def cancellation(self) -> CancellationToken:
        """Cancelled when the call's time is over or its context is aborted or closed."""
        token = super().cancellation
        if self.interrupted is not None:
            token.cancel(self._parent_token.reason or self.interrupted)
        return token

    def may_fail(self, account: Account) -> Demand | None:
        """Return what the nearest call holds, this one or around it, that may fail in the same tree as an account."""
        flight: Flight | None = self
        while flight is not None:
            demand = flight.demand
            if demand.may_fail and demand.account.chain[-1] is account.chain[-1]:
                return demand
            flight = flight.outer
        return None

    def holding(self) -> tuple[Demand, ...]:
        """Return what this call and those around it hold."""
        demands: list[Demand] = []
        flight: Flight | None = self
        while flight is not None:
            demands.append(flight.demand)
            flight = flight.outer
        return tuple(demands)

    def guarded(self) -> Entry | None:
        """Return how this call, or the nearest around it that was guarded, came past the guards."""
        flight: Flight | None = self
        while flight is not None and flight.entry is None:
            flight = flight.outer
        return None if flight is None else flight.entry

    def interrupt(self, reason: Interruption) -> None:
        """Stop the work as soon as it can be stopped; from any thread, any number of times."""
        if self.done:
            return
        if self.interrupted is None:
            self.interrupted = reason
        if self.wake is not None:
            self.wake()
        loop = self._loop
        if loop is not None and running_loop() is loop:
            self._strike()
        elif loop is not None:
            with suppress(RuntimeError):  # a loop that was closed runs nothing that could be interrupted
                loop.call_soon_threadsafe(self._strike)
        if self._token is not None:
            self._token.cancel(self._parent_token.reason or self.interrupted)

    def arm(self, clock: Clock) -> None:
        """Make the running task interruptible; called when the work first waits for something."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "the gate's async calls run in an asyncio task"
        self.task = task
        self._others = task.cancelling()
        self._owes = False
        self._loop = loop
        outer = self.outer
        if outer is not None and (outer._loop is None or outer.task is task):  # it may have yet to be armed
            outer.inner = self
        if self.expires_at != NEVER:
            self._timer = set_timer(clock, self.expires_at, self._expire)
        if self.interrupted is not None:
            loop.call_soon(self._strike)

    def disarm(self) -> bool:
        """End the flight; take back our own cancellation; return whether somebody else's is pending."""
        self.done = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        outer = self.outer
        if outer is not None and outer.inner is self:
            outer.inner = None
        if not self.struck:
            return False
        if not self._owes:
            return self.told
        self._owes = False
        return self.task.uncancel() > self._others or self.told

    def waits_in(self) -> Iterator[Flight]:
        """Return the calls that its work is waiting in, in the same task, the next one first."""
        flight = self.inner
        while flight is not None and flight.task is self.task:
            inner = flight.inner
            yield flight
            flight = inner

    def leave(self, work: Coroutine[Any, Any, Any], waited: Any) -> None:
        """Let the work, and the calls that it is waiting in, go on in a task of its own."""
        self.left = asyncio.get_running_loop().create_task(go_on(work, waited))
        for flight in list(self.waits_in()):
            flight._move(self.left)

    def _move(self, task: asyncio.Task[Any]) -> None:
        """Go on in another task: the old one has nothing to do with this call any more."""
        if self._owes:
            self._owes = False
            self.task.uncancel()
        self.task = task
        self._others = 0
        self.told = self.told and self.interrupted is not None  # what comes later has yet to be told

    def let_go(self) -> None:
        """Cancel work that was left behind, once more and for good; from any thread."""
        if self.left is None:
            return
        loop = self.left.get_loop()
        with suppress(RuntimeError):  # a loop that was closed runs nothing that could be cancelled
            if running_loop() is loop:
                loop.call_soon(self.left.cancel)  # not before its first step: it would never see the work
            else:
                loop.call_soon_threadsafe(self.left.cancel)

    def _expire(self) -> None:
        self.interrupt(self.overrun)

    def _strike(self) -> None:
        """Cancel the task, on its own loop; never in the middle of one of its own steps, nor before the first."""
        if self.done or self.struck or self.told or self._loop is None:
            return
        if asyncio.current_task(self._loop) is self.task or is_new(self.task):
            self._loop.call_soon(self._strike)
            return
        self.struck = self._owes = True
        for flight in self.waits_in():
            flight.told = True
        self.task.cancel()


CURRENT: Final[ContextVar[Flight | None]] = ContextVar("watchkeeper_call", default=None)
"""The call inside which the running code was called; parent of the calls it makes."""


def step_out(mark: Token[Flight | None]) -> None:
    """Make the call around this one the current one again."""
    try:  # noqa: SIM105  # on the path of every call
        CURRENT.reset(mark)
    except ValueError:  # a coroutine closed by the collector: its context is not here to be restored
        pass


def is_new(task: asyncio.Task[Any]) -> bool:
    """Return whether a task has yet to take its first step."""
    coro = task.get_coro()
    return isinstance(coro, CoroutineType) and getcoroutinestate(coro) == CORO_CREATED


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def set_timer(clock: Clock, when: float, callback: Callable[[], None]) -> Timer:
    """Call back at an instant; the timer sees none of the caller's context variables.

    asyncio keeps a cancelled timer, with the context in which it was set, until its time would have come. It must not
    keep the call alive so long.
    """
    return Context().run(clock.call_at, when, callback)


@coroutine
def fly(flight: Flight, work: Coroutine[Any, Any, T], waited: Any, clock: Clock) -> Generator[Any, Any, T]:
    """Run work to its end from where it first waits.

    Args:
        flight: The call.
        work: The coroutine, begun.
        waited: What it waits for.
        clock: For the call's timer.

    Raises:
        LeftBehindError: If it was interrupted and did not end in time.
        BaseException: Whatever the work raises.
    """
    flight.arm(clock)
    try:
        while not flight.struck:
            try:
                sent = yield waited
            except GeneratorExit:
                work.close()
                raise
            except LeftBehindError:
                waited = _let_go_below(flight, work, waited)
                if flight.interrupted is not None:
                    flight.leave(work, waited)
                    raise
            except BaseException as thrown:
                waited = work.throw(thrown)
            else:
                waited = work.send(sent)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]
    return (yield from _see_out(flight, work, waited, clock))


def _let_go_below(flight: Flight, work: Coroutine[Any, Any, Any], waited: Any) -> Any:
    """Leave behind, innermost first, what was interrupted with a call that is about to be left: it is booked now."""
    rode = any(call.told and not call.struck and call.interrupted is not None for call in flight.waits_in())
    return work.throw(LeftBehindError()) if rode else waited


def _see_out(flight: Flight, work: Coroutine[Any, Any, T], waited: Any, clock: Clock) -> Generator[Any, Any, T]:
    """Give interrupted work its grace, then leave it behind.

    The task waits for a future of ours rather than for the work's own, so that it can turn away without cancelling what
    the work waits for. A cancellation that comes meanwhile may be the work's own (a time-out in it, a call it is in):
    the work gets it, and if it was nobody's in there, it is passed on without waiting for the rest of the grace.
    """
    loop = asyncio.get_running_loop()
    over = False
    pause: asyncio.Future[None] | None = None

    def resume(_: object = None) -> None:
        if pause is not None and not pause.done():
            pause.set_result(None)

    def end_grace() -> None:
        nonlocal over
        over = True
        resume()

    timer = set_timer(clock, clock.monotonic() + GRACE_SECONDS, end_grace)
    try:
        while True:
            if over and (waited is None or not waited.done()):
                flight.leave(work, _let_go_below(flight, work, waited))
                raise LeftBehindError
            try:
                if waited is None:
                    yield
                else:
                    pause = loop.create_future()
                    waited._asyncio_future_blocking = False
                    waited.add_done_callback(resume)
                    yield from pause
            except GeneratorExit:
                work.close()
                raise
            except BaseException as thrown:
                pending = flight.task.cancelling()
                leaves = flight.told or isinstance(thrown, LeftBehindError)
                if not leaves:
                    if waited is not None:
                        waited.cancel()
                    waited = work.throw(thrown)
                own = flight.task.cancelling() < pending or any(call.struck for call in flight.waits_in())
                if leaves or not own:
                    flight.leave(work, _let_go_below(flight, work, waited))
                    raise
                continue
            if waited is None or waited.done():
                waited = work.send(None)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]
    finally:
        timer.cancel()


# --- blocking -------------------------------------------------------------------------------------------------------
# Running plain callables: here if nothing can interrupt them, on a worker thread if their time is bounded.
#
# A thread cannot be killed. A callable that overruns, or whose context is aborted, is left behind: the call returns at
# once, the callable can see on its ticket that it should stop, and its result is late.


def run_blocking(flight: Flight, fn: Callable[[], T], clock: Clock) -> T:
    """Run ``fn`` to its end, or to the end of its time.

    Raises:
        LeftBehindError: If it went on without us; the flight's ``thread`` has it.
        BaseException: Whatever it raises.
    """
    if flight.expires_at == NEVER:
        return fn()
    call = BlockingCall(fn)
    flight.wake = call.wake
    try:
        if flight.interrupted is None:
            call.wait(flight.expires_at - clock.monotonic(), clock)
    except BaseException:
        if call.leave():
            flight.interrupt("aborted")
            flight.thread = call
        raise
    if not call.leave():
        return call.result()
    flight.interrupt(flight.overrun)
    flight.thread = call
    raise LeftBehindError


class UnrunCoroutineError(TypeError):
    """A plain call was given work that only makes a coroutine."""


def refuse_coroutine(value: object, fn: Callable[..., object]) -> None:
    """Refuse a result that is a coroutine nobody has run.

    Raises:
        UnrunCoroutineError: If it is one.
    """
    if isinstance(value, CoroutineType):
        value.close()
        raise UnrunCoroutineError(f"{fn!r} returned a coroutine; await its async twin: acall_llm or acall_tool")
