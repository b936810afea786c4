"""A call under way: its ticket, what it holds, how it is run, and how it is interrupted.

Async work runs in the task of its caller, step by step (`run_steps`). It is interrupted by cancelling that task,
and the cancellation is taken back (`Task.uncancel`) once the work has ended; cancellations that come from elsewhere
pass through untouched. Calls nest within one task: work whose task was cancelled for a call around it is not cancelled
again for itself. Plain work runs here if nothing can interrupt it, else on a worker thread (`run_blocking`).

Work that does not end within `GRACE_SECONDS` of being interrupted is abandoned, with the calls that it is waiting in:
it goes on in a task, or thread, of its own, and its result is late. Nothing here admits, charges or records.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import Context, ContextVar
from functools import partial
from inspect import CORO_CREATED, CORO_RUNNING, getcoroutinestate
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType, coroutine
from typing import Any, Final, Literal, TypeVar
from weakref import ReferenceType

import msgspec

from watchkeeper.accounting.account import Account
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import CallRequest, Charge, Dollars, nanos
from watchkeeper.containment.guards import GuardedCall
from watchkeeper.containment.record import Node, Witness
from watchkeeper.containment.tracing import Tracer
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import Clock, Timer, running_loop
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.forks import ModuleLock, in_forked
from watchkeeper.core.workers import BlockingCall, call_in_loop

T = TypeVar("T")

CALL_TIMEOUT: Final = "call_timeout"
"""Stop reason of a call that overran its own time-out; nothing is latched."""

TIME_IS_OVER: Final = "timeout"
"""Why tokens are cancelled at the deadline."""

GRACE_SECONDS: Final = 0.015
"""How long interrupted work may take to clean up before it is abandoned."""

NEVER: Final = float("inf")

Interruption = Literal["deadline", "call_timeout", "aborted", "closed"]


CHARGING: Final = ModuleLock()
"""Held while a charge is added, because the work of one call may use several threads."""


class Ticket(msgspec.Struct, eq=False):
    """What the gate gives an admitted call: what it may use, and the signal to stop.

    Attributes:
        node: The gate's own record of the call.
        max_output_tokens: Granted output cap; at most the requested one.
        timeout: Seconds left for the call when it was admitted, or None.
        charged_nanos: The cost that the work reported with `charge`; None if it reported none.
        interrupted: Why the call was interrupted, if it was; the first reason stays.
    """

    node: Node
    max_output_tokens: int
    _parent_token: CancellationToken
    timeout: float | None = None
    charged_nanos: int | None = None
    interrupted: Interruption | None = None
    _token: CancellationToken | None = None
    _is_settled: bool = False

    __repr__ = object.__repr__  # what it holds is long, and no business of a message

    @property
    def node_id(self) -> str:
        """The id of the call's node."""
        return self.node.node_id

    @property
    def is_settled(self) -> bool:
        """Whether the call is over; abandoned work is not over until it ends by itself."""
        return self._is_settled

    @property
    def cancellation(self) -> CancellationToken:
        """Cancelled when the call's time is over or its context is aborted or closed."""
        if self._token is None:
            self._token = self._parent_token.child()
        if self.interrupted is not None:
            self._token.cancel(self._why())
        return self._token

    def _why(self) -> str:
        """Say why the call is interrupted: the reason of its context, if that has ended."""
        return self._parent_token.reason or (TIME_IS_OVER if self.interrupted == "deadline" else f"{self.interrupted}")

    def charge(self, usd: Dollars) -> None:
        """Say what the work costs, in dollars; several charges, from any thread, add up and take the place of the hint.

        Raises:
            LimitsError: If it is no amount.
            ConfigurationError: If the call has been settled. Work that the gate has let go of may charge until it ends.
        """
        if self._is_settled:
            raise ConfigurationError(
                f"{self.node.name or 'the call'} is over, and what it cost is booked; charge before it returns"
            )
        amount = nanos(usd, "charge")
        with CHARGING:
            self.charged_nanos = (self.charged_nanos or 0) + amount


Work = Callable[[Ticket], Awaitable[T]]

Meter = Callable[[T | None, BaseException | None, Ticket], Charge]


class AbandonedError(Exception):
    """The work did not end within its grace; its result will be late."""


class NeverBegunError(Exception):
    """The call was interrupted, or its time was over, before its work had begun; it never begins."""


class InFlightCall(Ticket, eq=False, kw_only=True):
    """One call under way.

    A msgspec struct, because every call makes one and its thirty fields cost a dataclass a microsecond.

    Attributes:
        request: The request that was admitted.
        demand: What is reserved for the call at the ledger.
        outer: The call inside which it was made.
        home: The context that owns the call.
        witness: Is told of it; or None.
        tracer: Makes its span; or None.
        guarded: The call as the guards see it, or None without guards.
        inner: The call that its work is waiting in, in the same task.
        expires_at: Monotonic instant at which its time is over; infinity if it never is.
        overrun: Which limit ``expires_at`` stands for: the deadline of its phase, or the call's own time-out.
        cancelled: Whether its task was cancelled for it.
        outer_cancelled: Whether its task was cancelled, while it was under way, for a call around it.
        begun: Whether its work was begun; False once it is sure that it never will be.
        done: Whether its work has ended.
        task: The task that runs its work, once that has waited for something.
        wake: Wakes a thread that waits for the work.
        abandoned_task: The task in which abandoned work goes on.
        abandoned_thread: The worker's call in which abandoned work goes on.
        left: What was booked for it because its context could not wait for its end; else None.
    """

    request: CallRequest
    demand: Demand
    outer: InFlightCall | None
    home: ReferenceType[Any]
    witness: Witness | None = None
    tracer: Tracer | None = None
    guarded: GuardedCall | None = None
    inner: InFlightCall | None = None
    expires_at: float = NEVER
    overrun: Interruption = "deadline"
    cancelled: bool = False
    outer_cancelled: bool = False
    begun: bool = True
    done: bool = False
    task: asyncio.Task[Any] | None = None
    wake: Callable[[], None] | None = None
    abandoned_task: asyncio.Task[Any] | None = None
    abandoned_thread: BlockingCall[Any] | None = None
    left: Charge | None = None
    _timer: Timer | None = None
    _foreign: int = 0  # cancellations of the task that were pending when it was armed
    _owes_uncancel: bool = False

    def charge(self, usd: Dollars) -> None:
        """Say what the work costs; see `Ticket.charge`."""
        super().charge(usd)
        if self.witness is not None:
            self.witness.call_costs(self.node, self.demand, self.charged_nanos or 0)
        with CHARGING:
            self.demand.told_nanos = self.charged_nanos or 0

    def chain(self) -> Iterator[InFlightCall]:
        """Return this call and those around it, innermost first."""
        call: InFlightCall | None = self
        while call is not None:
            yield call
            call = call.outer

    def may_fail(self, account: Account) -> Demand | None:
        """Return what the nearest call holds, this one or around it, that may fail in the same tree as an account."""
        for call in self.chain():
            if call.demand.may_fail and call.demand.account.chain[-1] is account.chain[-1]:
                return call.demand
        return None

    def overrun_around(self, account: Account) -> InFlightCall | None:
        """Return the nearest call, this one or around it, that ended by its own time-out in the tree of an account.

        Its grace is not over yet while it is under way: what it does in its clean-up may still begin.
        """
        for call in self.chain():
            if call.done and call.interrupted == "call_timeout" and call.demand.account.chain[-1] is account.chain[-1]:
                return call
        return None

    def nearest_guarded(self) -> GuardedCall | None:
        """Return what the guards know of this call, or of the nearest around it in its tree that was guarded."""
        tree = self.demand.account.chain[-1]
        calls = (call for call in self.chain() if call.demand.account.chain[-1] is tree)
        return next((call.guarded for call in calls if call.guarded is not None), None)

    def inner_calls(self) -> Iterator[InFlightCall]:
        """Return the calls that its work is waiting in, in the same task, the next one first."""
        call = self.inner
        while call is not None and call.task is self.task:
            inner = call.inner
            yield call
            call = inner

    @property
    def is_stranded(self) -> bool:
        """Whether its loop was closed while it was under way, so that it can never end."""
        return self.task is not None and self.node.ending is None and self.task.get_loop().is_closed()

    # --- interrupting -------------------------------------------------------------------------------------------------

    def interrupt(self, reason: Interruption) -> None:
        """Stop the work as soon as it can be stopped; from any thread, any number of times."""
        if self.done:
            return
        if self.interrupted is None:
            self.interrupted = reason
        if self.wake is not None:
            self.wake()
        if self.task is not None:
            loop = self.task.get_loop()
            if running_loop() is loop:
                self._cancel_task()
            else:
                call_in_loop(loop, self._cancel_task)
        if self._token is not None:
            self._token.cancel(self._why())

    def _cancel_task(self) -> None:
        """Cancel the task, on its own loop; if the task is running right now or has not begun, do it a moment later."""
        task = self.task
        if self.done or self.cancelled or self.outer_cancelled or task is None:
            return
        if is_new_or_running(task):
            task.get_loop().call_soon(self._cancel_task)
            return
        self.cancelled = self._owes_uncancel = True
        for call in self.inner_calls():
            call.outer_cancelled = True
        task.cancel()

    def arm(self, clock: Clock) -> None:
        """Make the running task interruptible; called when the work first waits for something."""
        task = asyncio.current_task()
        assert task is not None, "the gate's async calls run in an asyncio task"
        self._foreign = task.cancelling()
        self.task = task
        outer = self.outer
        if outer is not None and (outer.task is None or outer.task is task):  # it may have yet to be armed
            outer.inner = self
        if self.expires_at != NEVER:
            self._timer = set_timer(clock, self.expires_at, partial(self.interrupt, self.overrun))
        if self.interrupted is not None:
            task.get_loop().call_soon(self._cancel_task)

    def disarm(self) -> bool:
        """Note that the work has ended; take back our own cancellation; return whether another one is pending.

        A cancellation from elsewhere that the work has swallowed is pending, unless the work took it back itself
        (`asyncio.Task.uncancel`). One that was meant for a call around it is left to that call.
        """
        self.done = True
        if self.abandoned_task is None and self.abandoned_thread is None:
            self._is_settled = True
        if self.task is None:  # the work never waited: nothing could cancel it
            return False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        outer = self.outer
        if outer is not None and outer.inner is self:
            outer.inner = None
        if not self.cancelled:
            return not self.outer_cancelled and self.task.cancelling() > self._foreign
        if not self._owes_uncancel:
            return self.outer_cancelled
        self._owes_uncancel = False
        return self.task.uncancel() > self._foreign or self.outer_cancelled

    def end_late(self) -> None:
        """Note that abandoned work has ended."""
        self._is_settled = True

    # --- abandoning ---------------------------------------------------------------------------------------------------

    def abandon(self, work: Coroutine[Any, Any, Any], waited: Any) -> None:
        """Let the work, and the calls that it is waiting in, go on in a task of its own."""
        self.abandoned_task = asyncio.get_running_loop().create_task(as_coroutine(_run_rest(work, waited)))
        if self.task is not None:
            _take_along(work, self.task, self.abandoned_task)
        for call in list(self.inner_calls()):
            call._move_to(self.abandoned_task)

    def _move_to(self, task: asyncio.Task[Any]) -> None:
        """Go on in another task: the old one has nothing to do with this call any more."""
        if self._owes_uncancel and self.task is not None:
            self._owes_uncancel = False
            self.task.uncancel()
        self.task = task
        self._foreign = 0
        # what interrupts it from now on has to cancel the new task
        self.outer_cancelled = self.outer_cancelled and self.interrupted is not None

    def cancel_abandoned(self) -> None:
        """Cancel abandoned work, once more and for good; from any thread."""
        task = self.abandoned_task
        if task is not None:
            call_in_loop(task.get_loop(), task.cancel)  # not before its first step: it would never see the work


CURRENT_CALL: Final[ContextVar[InFlightCall | None]] = ContextVar("watchkeeper_call", default=None)
"""The call inside which the running code was called; parent of the calls it makes."""

in_forked(partial(CURRENT_CALL.set, None))  # no call of its parent is under way there


def is_new_or_running(task: asyncio.Task[Any]) -> bool:
    """Return whether a task has yet to take its first step, or is taking one.

    A task that runs need not be the current one: the first step of an eager task is taken inside that of another.
    """
    if asyncio.current_task(task.get_loop()) is task:
        return True
    coro = task.get_coro()
    return isinstance(coro, CoroutineType) and getcoroutinestate(coro) in (CORO_CREATED, CORO_RUNNING)


def set_timer(clock: Clock, when: float, callback: Callable[[], None]) -> Timer:
    """Call back at an instant; the timer sees none of the caller's context variables.

    asyncio keeps a cancelled timer, with the context in which it was set, until its time would have come. It must not
    keep the call alive so long.
    """
    return Context().run(clock.call_at, when, callback)


# --- async work -------------------------------------------------------------------------------------------------------


@coroutine
def run_steps(call: InFlightCall, work: Coroutine[Any, Any, T], waited: Any, clock: Clock) -> Generator[Any, Any, T]:
    """Run work to its end from where it first waits.

    Args:
        call: The call.
        work: The coroutine, begun.
        waited: What it waits for.
        clock: For the call's timer.

    Raises:
        AbandonedError: If it was interrupted and did not end in time.
        BaseException: Whatever the work raises.
    """
    call.arm(clock)
    try:
        while not call.cancelled:
            try:
                sent = yield waited
            except GeneratorExit:
                work.close()
                raise
            except AbandonedError:
                waited = _abandon_inner(call, work, waited)
                if call.interrupted is not None:
                    call.abandon(work, waited)
                    raise
            except BaseException as thrown:
                waited = work.throw(thrown)
            else:
                waited = work.send(sent)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]
    return (yield from _run_grace(call, work, waited, clock))


def _abandon_inner(call: InFlightCall, work: Coroutine[Any, Any, Any], waited: Any) -> Any:
    """Abandon, innermost first, the calls inside that were interrupted too, so that they are booked now."""
    abandons = any(
        inner.outer_cancelled and not inner.cancelled and inner.interrupted is not None for inner in call.inner_calls()
    )
    return work.throw(AbandonedError()) if abandons else waited


def _run_grace(call: InFlightCall, work: Coroutine[Any, Any, T], waited: Any, clock: Clock) -> Generator[Any, Any, T]:
    """Give interrupted work its grace, then abandon it.

    The task waits for our own future and not for that of the work, so that it can stop waiting without cancelling what
    the work waits for. A cancellation that comes meanwhile may be the work's own (a time-out in it, a call it is in):
    the work gets it, and if nothing inside the work caused it, it is passed on without the rest of the grace.
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
                call.abandon(work, _abandon_inner(call, work, waited))
                raise AbandonedError
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
                pending = _cancels(call)
                leaves = call.outer_cancelled or isinstance(thrown, AbandonedError)
                if not leaves:
                    if waited is not None:
                        waited.cancel()
                    waited = work.throw(thrown)
                own = _cancels(call) < pending or any(inner.cancelled for inner in call.inner_calls())
                if leaves or not own:
                    call.abandon(work, _abandon_inner(call, work, waited))
                    if not leaves and _cancels(call) < pending:  # of a time-out in the work, which it ignored
                        raise AbandonedError from None
                    raise
                continue
            if waited is None or waited.done():
                waited = work.send(None)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]
    finally:
        timer.cancel()


def _cancels(call: InFlightCall) -> int:
    """Return how many cancellations of its task are pending; abandoned with a call around it, it has another task."""
    return 0 if call.task is None else call.task.cancelling()


@coroutine
def _run_rest(work: Coroutine[Any, Any, T], waited: Any) -> Generator[Any, Any, T]:
    """Run work that was begun in another task to its end; ``waited`` is what it waits for."""
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


def _move_time_out(entered: Any, old: asyncio.Task[Any], new: asyncio.Task[Any]) -> None:
    if entered._task is old:
        entered._task = new
        if entered.expired():  # it has already cancelled the old task; only the work was to be cancelled
            old.uncancel()


def _move_group(entered: Any, old: asyncio.Task[Any], new: asyncio.Task[Any]) -> None:
    if entered._parent_task is old:
        entered._parent_task = new
        if entered._parent_cancel_requested:
            old.uncancel()


MOVES: Final[dict[type, Callable[[Any, asyncio.Task[Any], asyncio.Task[Any]], None]]] = {
    asyncio.Timeout: _move_time_out,
    asyncio.TaskGroup: _move_group,
}
"""By type of async context manager, the function that moves it from the task in which it was entered to a new one."""


def _take_along(work: Coroutine[Any, Any, Any], old: asyncio.Task[Any], new: asyncio.Task[Any]) -> None:
    """Let the timeouts, task groups and blocks that a coroutine has entered cancel its new task, and not the old one.

    They store the task in which they were entered, and asyncio has no call to change it. The context managers that a
    suspended coroutine has entered are on its stack, which only the garbage collector can read: it holds the bound
    method ``__aexit__`` or, from Python 3.14 on, the object and the function.
    """
    suspended: list[Any] = [work]
    while suspended:
        held: list[Any] = gc.get_referents(suspended.pop())
        for each in held:
            owner: Any = each.__self__ if isinstance(each, MethodType) else each
            kind: type[Any] = owner.__class__
            leave = getattr(kind, "__aexit__", None)
            if leave is None:
                suspended += [each] if isinstance(each, CoroutineType | GeneratorType | AsyncGeneratorType) else []
            elif each.__func__ is leave if owner is not each else any(one is leave for one in held):
                if (move := MOVES.get(kind)) is not None:
                    move(owner, old, new)
                inner = getattr(owner, "__dict__", {})  # of `asynccontextmanager`, and of an `AsyncExitStack`
                suspended += [inner.get("gen"), *(way for _, way in inner.get("_exit_callbacks", ()))]


def as_coroutine(work: Awaitable[T]) -> Coroutine[Any, Any, T]:
    """Return work as a coroutine that can be run step by step."""
    if isinstance(work, CoroutineType):
        return work  # pyright: ignore[reportUnknownVariableType]  # isinstance forgets what it yields
    return _awaiting(work)


async def _awaiting(work: Awaitable[T]) -> T:
    return await work


# --- plain work -------------------------------------------------------------------------------------------------------
# A thread cannot be killed. A callable that overruns, or whose context is aborted, is abandoned: the call returns at
# once, the callable can see on its ticket that it should stop, and its result is late. One that had not begun by then
# never begins: the thread that would begin it and the one that leaves it claim it, and only one of them gets it.


def run_blocking(call: InFlightCall, fn: Callable[[], T], clock: Clock) -> T:
    """Run ``fn`` to its end, or to the end of its time.

    Raises:
        NeverBegunError: If it was not begun in time.
        AbandonedError: If it went on without us; the call's ``abandoned_thread`` has it.
        BaseException: Whatever it raises.
    """
    if call.interrupted is not None:
        raise NeverBegunError
    if call.expires_at == NEVER:
        return fn()

    def begin() -> T:
        if call.interrupted is not None or clock.monotonic() >= call.expires_at:
            raise NeverBegunError
        return fn()

    running = BlockingCall(begin)
    call.wake = running.wake
    try:
        if call.interrupted is None:
            running.wait(call.expires_at - clock.monotonic(), clock)
    except BaseException:
        if running.leave():
            call.interrupt("aborted")
            leave_thread(call, running)
        raise
    if not running.leave():
        return running.result()
    call.interrupt(call.overrun)
    leave_thread(call, running)
    raise AbandonedError if call.begun else NeverBegunError


def leave_thread(call: InFlightCall, running: BlockingCall[Any]) -> None:
    """Note whether work that no caller waits for any more goes on, or never begins."""
    call.begun = not running.never_begins
    if call.begun:
        call.abandoned_thread = running
