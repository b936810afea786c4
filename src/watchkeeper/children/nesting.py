"""How runs stand inside each other: how deep that may go, and which run a session belongs to.

Judges count among judges, subagents among subagents. What counts is where code runs, not what it was handed: a tool or
an observer of a child that holds on to the session of the run above it stands as deep as the child does. Whoever
stands above decides how deep it may go; nobody below can raise that.

Several runs may write to one session, inside each other or side by side. Code that runs inside one of them finds that
one at the session, whichever began last and whichever ends first, so that what it starts is counted there. A run that
is over is not found any more, and nothing of it stays with the session.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Final, TypeVar, cast
from uuid import UUID

from watchkeeper.core.errors import NestingDepthError
from watchkeeper.runtime.events import ChildKind
from watchkeeper.runtime.plan import RunScope
from watchkeeper.session.session import Session

T = TypeVar("T")
Depths = Mapping[str, int]
Attached = tuple[tuple[UUID, object], ...]

JUDGING: Final = ("evaluation", "verdict", "summary")

_innermost: Final[ContextVar[RunScope | None]] = ContextVar("watchkeeper_innermost_child", default=None)
"""The scope of the innermost child that this code runs in."""

_runs_around: Final[ContextVar[tuple[UUID, ...]]] = ContextVar("watchkeeper_runs_around", default=())
"""The runs inside which this code runs, the outermost first; ids, so that what outlives them keeps nothing alive."""

_lock: Final = threading.Lock()


def family_of(kind: ChildKind) -> str:
    """Return which children count together for the depth limit: judges nest in judges, subagents in subagents."""
    return "evaluation" if kind in JUDGING else kind


def depths_below(kind: ChildKind, most: int, scope: RunScope) -> tuple[Depths, Depths]:
    """Return, for a child that is started below the run of ``scope``, how many stand above it and are it, and how many
    may.

    Args:
        kind: The child's kind.
        most: How many of its family may stand inside each other.
        scope: Its parent's.

    Raises:
        NestingDepthError: If it would be one too many; it names the depth and what to change.
    """
    family, (depths, deepest) = family_of(kind), _around(scope)
    above, most = depths.get(family, 0), min(most, deepest.get(family, most))
    if above >= most:
        what = "subagents" if kind == "subagent" else "nested evaluations"
        option = "max_depth" if kind == "subagent" else "max_nesting_depth"
        raise NestingDepthError(
            f"{what} may stand at most {most} deep here, and {above} stand{'s' if above == 1 else ''} above this"
            f" one; nothing was started (raise {option} to allow more)"
        )
    return {**depths, family: above + 1}, {**deepest, family: most}


def inside_child(scope: RunScope) -> AbstractContextManager[None]:
    """Let what runs in this block count as inside the child of ``scope``."""
    return _set_in_block(_innermost, scope)


def _around(scope: RunScope) -> tuple[Depths, Depths]:
    """Return depths and bounds as they are for code that runs here and holds the run of ``scope``."""
    inside = _innermost.get()
    if inside is None or inside is scope or inside.run_context.trace_id != scope.run_context.trace_id:
        return scope.depths, scope.deepest
    depths = {name: max(scope.depths.get(name, 0), depth) for name, depth in inside.depths.items()}
    return {**scope.depths, **depths}, {**scope.deepest, **inside.deepest}


@contextmanager
def attached(session: Session, run_id: UUID, run: object) -> Generator[None]:
    """Let a run be found at a session while the block runs.

    Args:
        session: The session, or a branch of it.
        run_id: The run that writes to it; what runs in the block is inside of it.
        run: What is to be found.
    """
    origin, entry = session.origin, (run_id, run)
    with _lock:
        origin.host = (*_attached_to(origin), entry)
    try:
        with _set_in_block(_runs_around, (*_runs_around.get(), run_id)):
            yield
    finally:
        with _lock:
            origin.host = tuple([each for each in _attached_to(origin) if each is not entry]) or None


def run_at(session: Session) -> object | None:
    """Return what is found at a session, or at a branch of it; None if no run writes to it.

    Where several do, it is that of the run inside which this code runs, else of the one that began last.
    """
    runs = _attached_to(session.origin)
    if len(runs) > 1:
        runs = tuple([each for each in runs if is_inside(each[0])]) or runs
    return runs[-1][1] if runs else None


def is_inside(run_id: UUID) -> bool:
    """Return whether this code was started by a run, which may be over by now."""
    return run_id in _runs_around.get()


def _attached_to(origin: Session) -> Attached:
    return cast("Attached", origin.host or ())


@contextmanager
def _set_in_block(variable: ContextVar[T], value: T) -> Generator[None]:
    mark = variable.set(value)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine closed by the collector: its context is not here to be restored
            variable.reset(mark)
