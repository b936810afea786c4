"""How a call waits before it begins: for others to give back what they hold, or for hooks that block.

For its turn it waits until the ledger notifies it to ask again, its phase is over, or its context is aborted or closed;
it holds nothing while it waits. Calls are asked in the order in which they came, but one that fits may pass one that
does not. Hooks that block (a person who is asked, a server that decides) are asked on a worker thread; nobody waits
beyond their own time, the end of the call's phase, or an abort. An answer that comes after that is dropped, and what it
counted is given back.

Each wait exists twice: on a running loop, which goes on meanwhile, and blocking this thread.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.accounting.ledger import Waiter
from watchkeeper.containment.calls import ContextCalls
from watchkeeper.containment.guards import GuardedCall
from watchkeeper.containment.in_flight import NEVER, InFlightCall, Outcome, running_loop, set_timer
from watchkeeper.core.clock import Clock, Timer
from watchkeeper.core.workers import BlockingCall, run_in_worker
from watchkeeper.shield.decision import SafetyEvent


async def wait_for_turn(
    calls: ContextCalls, request: CallRequest, waiter: Waiter, clock: Clock
) -> InFlightCall | Outcome[Any] | GuardedCall:
    """Wait on the running loop until the call is admitted or refused."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def notify(_: object = None) -> None:
        with suppress(RuntimeError):  # a loop that was closed has nobody left to wake
            loop.call_soon_threadsafe(woken.set)

    timer: Timer | None = None

    def ring() -> None:
        nonlocal timer
        timer = None
        woken.set()

    waiter.notify = notify
    until = calls.phase_ends(request)
    unlink = calls.cancellation.on_cancel(notify)
    try:
        while (admitted := calls.admit_waiting(request, waiter)) is None:
            if timer is None and until != NEVER:
                timer = set_timer(clock, until, ring)  # again, if it rang a moment too early
            await woken.wait()
            woken.clear()
        return admitted
    finally:
        unlink()
        if timer is not None:
            timer.cancel()
        calls.withdraw(waiter)


def block_for_turn(
    calls: ContextCalls, request: CallRequest, waiter: Waiter, clock: Clock
) -> InFlightCall | Outcome[Any] | GuardedCall:
    """Block this thread until the call is admitted or refused.

    The thread of a running loop is never blocked: whoever holds what is wanted may need that very loop to give it back.
    There the call is refused if it does not fit now.
    """
    waiter.last_chance = running_loop() is not None
    woken = threading.Event()
    waiter.notify = woken.set
    until = calls.phase_ends(request)
    unlink = calls.cancellation.on_cancel(lambda _: woken.set())
    try:
        while (admitted := calls.admit_waiting(request, waiter)) is None:
            clock.wait(woken, None if until == NEVER else until - clock.monotonic())
            woken.clear()
        return admitted
    finally:
        unlink()
        calls.withdraw(waiter)


async def ask_hooks(calls: ContextCalls, guarded: GuardedCall, clock: Clock) -> InFlightCall | Outcome[Any]:
    """Ask without blocking the running loop; return the call, or its refusal."""
    loop = asyncio.get_running_loop()
    asking: asyncio.Task[SafetyEvent | None] = loop.create_task(
        run_in_worker(guarded.review, on_late=guarded.answered_late)
    )

    def give_up(_: str) -> None:
        with suppress(RuntimeError):  # a loop that was closed has nobody left who waits
            loop.call_soon_threadsafe(asking.cancel)

    timer = set_timer(clock, guarded.answer_by, lambda: give_up(""))
    unlink = calls.cancellation.on_cancel(give_up)
    try:
        await asyncio.wait((asking,))
        event = None if asking.cancelled() else asking.result()
    except BaseException:
        asking.cancel()
        calls.refund(guarded)
        raise
    finally:
        unlink()
        timer.cancel()
    return calls.begin_guarded(guarded, event, answered=not asking.cancelled())


def block_for_hooks(calls: ContextCalls, guarded: GuardedCall, clock: Clock) -> InFlightCall | Outcome[Any]:
    """Ask and block this thread; return the call, or its refusal."""
    asking = BlockingCall(guarded.review)
    unlink = calls.cancellation.on_cancel(lambda _: asking.wake())
    try:
        asking.wait(guarded.answer_by - clock.monotonic(), clock)
        left = asking.leave()
        event = None if left else asking.result()
    except BaseException:
        if asking.leave():
            asking.when_late(guarded.answered_late)
        calls.refund(guarded)
        raise
    finally:
        unlink()
    if left:
        asking.when_late(guarded.answered_late)
    return calls.begin_guarded(guarded, event, answered=not left)
