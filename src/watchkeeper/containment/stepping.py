"""Coroutines that are run step by step, and may change the task that runs them.

A coroutine that was begun in one task can go on in another, from whatever it waits for. It knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from types import CoroutineType, coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
