"""Running plain callables: here if nothing can interrupt them, on a worker thread if their time is bounded.

A thread cannot be killed. A callable that overruns, or whose context is aborted, is left behind: the call returns at
once, the callable can see on its ticket that it should stop, and its result is late.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import TypeVar

from watchkeeper.containment.flight import NEVER, Flight, LeftBehindError
from watchkeeper.core.clock import Clock
from watchkeeper.core.workers import BlockingCall

T = TypeVar("T")


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
