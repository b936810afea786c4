"""How many runs stand inside each other, and the refusal of one too many (seed: nested-execution, "Anti-Patterns").

Judges count among judges, subagents among subagents. What counts is where code runs, not what it was handed: a tool or
an observer of a child that holds on to the session of the run above it stands as deep as the child does. Whoever
stands above decides how deep it may go; nobody below can raise that.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final, cast
from uuid import UUID

from watchkeeper.core.errors import NestingDepthError
from watchkeeper.runtime.events import ChildKind
from watchkeeper.runtime.plan import RunHome
from watchkeeper.session.session import Session

Depths = Mapping[str, int]

JUDGING: Final = ("evaluation", "verdict", "summary")

_innermost: Final[ContextVar[RunHome | None]] = ContextVar("watchkeeper_innermost_child", default=None)
"""Where the innermost child lives that this code runs in."""


def family_of(kind: ChildKind) -> str:
    """Return which children count together for the depth limit: judges nest in judges, subagents in subagents."""
    return "evaluation" if kind in JUDGING else kind


def depths_below(kind: ChildKind, most: int, home: RunHome) -> tuple[Depths, Depths]:
    """Return, for the home of a child that is started below the run at ``home``, how many stand above it and are it,
    and how many may.

    Args:
        kind: The child's kind.
        most: How many of its family may stand inside each other.
        home: Where its parent lives.

    Raises:
        NestingDepthError: If it would be one too many; it names the depth and what to change.
    """
    family, (depths, deepest) = family_of(kind), _around(home)
    above, most = depths.get(family, 0), min(most, deepest.get(family, most))
    if above >= most:
        what = "subagents" if kind == "subagent" else "nested evaluations"
        option = "max_depth" if kind == "subagent" else "max_nesting_depth"
        raise NestingDepthError(
            f"{what} may stand at most {most} deep here, and {above} stand{'s' if above == 1 else ''} above this"
            f" one; nothing was started (raise {option} to allow more)"
        )
    return {**depths, family: above + 1}, {**deepest, family: most}


@contextmanager
def standing_in(home: RunHome) -> Generator[None]:
    """Let what runs in this block count as inside the child at ``home``."""
    mark = _innermost.set(home)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine closed by the collector: its context is not here to be restored
            _innermost.reset(mark)


def _around(home: RunHome) -> tuple[Depths, Depths]:
    """Return depths and bounds as they are for code that runs here and holds the run at ``home``."""
    inside = _innermost.get()
    if inside is None or inside is home or inside.run_context.trace_id != home.run_context.trace_id:
        return home.depths, home.deepest
    depths = {name: max(home.depths.get(name, 0), depth) for name, depth in inside.depths.items()}
    return {**home.depths, **depths}, {**home.deepest, **inside.deepest}


# --- hosting --------------------------------------------------------------------------------------------------------
# Which run a session belongs to at the moment: what is found where somebody wants to start a child of it.
#
# Several runs may write to one session, inside each other or side by side. Code that runs inside one of them finds that
# one, whichever began last and whichever ends first, so that what it starts is counted there. A run that is over is not
# found any more, and nothing of it stays with the session.

Hosts = tuple[tuple[UUID, object], ...]

_lock: Final = threading.Lock()

_hosts_around: Final[ContextVar[tuple[UUID, ...]]] = ContextVar("watchkeeper_runs_around", default=())
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
    mark = _hosts_around.set((*_hosts_around.get(), run_id))
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine closed by the collector: its context is not here to be restored
            _hosts_around.reset(mark)
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
    return run_id in _hosts_around.get()


def _hosts(origin: Session) -> Hosts:
    return cast("Hosts", origin.host or ())
