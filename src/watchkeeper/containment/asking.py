"""Waiting for hooks that block: a person who is asked, a server that decides.

They are asked on a worker thread; a running loop goes on meanwhile. Nobody waits beyond the hooks' own time, the end
of the call's phase, or an abort. An answer that comes after that is dropped, and what it counted is given back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from watchkeeper.containment.call import Outcome
from watchkeeper.containment.flight import Flight, set_timer
from watchkeeper.containment.guards import Entry
from watchkeeper.containment.passage import Passage
from watchkeeper.containment.safety_event import SafetyEvent
from watchkeeper.core.clock import Clock
from watchkeeper.core.workers import BlockingCall, run_in_worker


async def ask_aside(passage: Passage, entry: Entry, clock: Clock) -> Flight | Outcome[Any]:
    """Ask without blocking the running loop; return the call, or its refusal."""
    loop = asyncio.get_running_loop()
    asking: asyncio.Task[SafetyEvent | None] = loop.create_task(run_in_worker(entry.review, on_late=entry.came_late))

    def give_up(_: str) -> None:
        with suppress(RuntimeError):  # a loop that was closed has nobody left who waits
            loop.call_soon_threadsafe(asking.cancel)

    timer = set_timer(clock, entry.answer_by, lambda: give_up(""))
    unlink = passage.cancellation.on_cancel(give_up)
    try:
        await asyncio.wait((asking,))
        event = None if asking.cancelled() else asking.result()
    except BaseException:
        asking.cancel()
        passage.turn_back(entry)
        raise
    finally:
        unlink()
        timer.cancel()
    return passage.let_in(entry, event, answered=not asking.cancelled())


def block_for_answer(passage: Passage, entry: Entry, clock: Clock) -> Flight | Outcome[Any]:
    """Ask and block this thread; return the call, or its refusal."""
    asking = BlockingCall(entry.review)
    unlink = passage.cancellation.on_cancel(lambda _: asking.wake())
    try:
        asking.wait(entry.answer_by - clock.monotonic(), clock)
        left = asking.leave()
        event = None if left else asking.result()
    except BaseException:
        if asking.leave():
            asking.when_late(entry.came_late)
        passage.turn_back(entry)
        raise
    finally:
        unlink()
    if left:
        asking.when_late(entry.came_late)
    return passage.let_in(entry, event, answered=not left)
