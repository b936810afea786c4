"""Which run a session belongs to at the moment: what is found where somebody wants to start a child of it.

Several runs may write to one session, inside each other or side by side. Code that runs inside one of them finds that
one, whichever began last and whichever ends first, so that what it starts is counted there. A run that is over is not
found any more, and nothing of it stays with the session.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final, cast
from uuid import UUID

from watchkeeper.session.session import Session

Hosts = tuple[tuple[UUID, object], ...]

_lock: Final = threading.Lock()

_around: Final[ContextVar[tuple[UUID, ...]]] = ContextVar("watchkeeper_runs_around", default=())
"""The runs inside which this code runs, the outermost first; ids, so that what outlives them keeps nothing alive."""


@contextmanager
def hosting(session: Session, run_id: UUID, host: object) -> Generator[None]:
    """Let ``host`` be found at a session while the block runs.

    Args:
        session: The session, or a branch of it.
        run_id: The run that writes to it; what runs in the block is inside of it.
        host: What is to be found.
    """
    origin, entry = session.origin, (run_id, host)
    with _lock:
        origin.host = (*_hosts(origin), entry)
    mark = _around.set((*_around.get(), run_id))
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine closed by the collector: its context is not here to be restored
            _around.reset(mark)
        with _lock:
            origin.host = tuple([each for each in _hosts(origin) if each is not entry]) or None


def host_of(session: Session) -> object | None:
    """Return what is found at a session, or at a branch of it; None if no run writes to it.

    Where several do, it is that of the run inside which this code runs, else of the one that began last.
    """
    hosts = _hosts(session.origin)
    if len(hosts) > 1:
        hosts = tuple([each for each in hosts if is_inside(each[0])]) or hosts
    return hosts[-1][1] if hosts else None


def is_inside(run_id: UUID) -> bool:
    """Return whether this code was started by a run, which may be over by now."""
    return run_id in _around.get()


def _hosts(origin: Session) -> Hosts:
    return cast("Hosts", origin.host or ())
