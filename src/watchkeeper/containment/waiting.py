"""Waiting for one's turn: a call that fits only once others have given back what they hold.

It waits until it is told to ask again, its phase is over, or its context is aborted or closed; it holds nothing while
it waits. Calls are asked in the order in which they came, but one that fits may pass one that does not. The ledger
makes sure that somebody is always told if nobody else could give anything back.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

from watchkeeper.containment.call import CallRequest, Outcome
from watchkeeper.containment.flight import NEVER, Flight, running_loop, set_timer
from watchkeeper.containment.guards import Entry
from watchkeeper.containment.ledger import Waiter
from watchkeeper.containment.passage import Passage
from watchkeeper.core.clock import Clock, Timer


async def wait_turn(
    passage: Passage, request: CallRequest, waiter: Waiter, clock: Clock
) -> Flight | Outcome[Any] | Entry:
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
    until = passage.phase_ends(request)
    unlink = passage.cancellation.on_cancel(notify)
    try:
        while (entered := passage.ask_again(request, waiter)) is None:
            if timer is None and until != NEVER:
                timer = set_timer(clock, until, ring)  # again, if it rang a moment too early
            await woken.wait()
            woken.clear()
        return entered
    finally:
        unlink()
        if timer is not None:
            timer.cancel()
        passage.give_up(waiter)


def block_for_turn(
    passage: Passage, request: CallRequest, waiter: Waiter, clock: Clock
) -> Flight | Outcome[Any] | Entry:
    """Block this thread until the call is admitted or refused.

    The thread of a running loop is never blocked: whoever holds what is wanted may need that very loop to give it back.
    There the call is refused if it does not fit now.
    """
    waiter.last_chance = running_loop() is not None
    woken = threading.Event()
    waiter.notify = woken.set
    until = passage.phase_ends(request)
    unlink = passage.cancellation.on_cancel(lambda _: woken.set())
    try:
        while (entered := passage.ask_again(request, waiter)) is None:
            clock.wait(woken, None if until == NEVER else until - clock.monotonic())
            woken.clear()
        return entered
    finally:
        unlink()
        passage.give_up(waiter)
