"""Which run the running code is inside of: a context variable, and the runs of this process that go on.

Tasks and worker threads see what was in force where they were started. Code may outlive the run that it is inside of,
so nothing here keeps a run alive.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple
from uuid import UUID
from weakref import ReferenceType, ref

from watchkeeper.containment.enclosing import without
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.forks import ModuleLock, in_forked
from watchkeeper.runtime.plan import RunScope
from watchkeeper.session.session import Session

Depths = Mapping[str, int]


class Inside(NamedTuple):
    """A run, or a contained block that is recorded, that code runs in.

    A task, a timer or a socket's callback may keep the context variables of a run long after its end, so this holds no
    model and no session of it.

    Attributes:
        scope: Its scope, held weakly.
        run_id: Its id.
        trace_id: Its trace.
        depths: Its nesting depth by family.
        deepest: The maximum depth by family.
        around: What was entered before it and is not left yet; None if nothing was.
        is_run: Whether it is a run.
    """

    scope: ReferenceType[RunScope]
    run_id: UUID
    trace_id: str | None
    depths: Depths
    deepest: Depths
    around: Inside | None
    is_run: bool


INNERMOST: Final[ContextVar[Inside | None]] = ContextVar("watchkeeper_innermost_run", default=None)
"""The scope of the innermost run, or recorded contained block, that this code runs in."""

_going_on: Final[dict[UUID, RunScope]] = {}
"""The scopes of all runs of this process that go on, by their ids."""

_lock: Final = ModuleLock()


def _forget() -> None:
    """Forget all runs in a forked process, because none of them continues there."""
    INNERMOST.set(None)
    _going_on.clear()


in_forked(_forget)


@contextmanager
def inside_scope(scope: RunScope, *, is_run: bool = True) -> Generator[None]:
    """Make a run, or a contained block that is recorded, the innermost one for the code in a ``with`` block.

    Blocks that generators hold open may be left in any order; what was entered later stays in force.
    """
    run = scope.run_context
    around = INNERMOST.get()
    INNERMOST.set(Inside(ref(scope), run.run_id, run.trace_id, scope.depths, scope.deepest, around, is_run))
    try:
        yield
    finally:
        INNERMOST.set(without(INNERMOST.get(), lambda each: each.scope() is scope))


def innermost_run() -> RunScope | None:
    """Return the scope of the innermost run, or recorded contained block, that this code runs in.

    Returns:
        None outside of all, and in code that outlives it, once nothing holds the scope any more.
    """
    inside = INNERMOST.get()
    return None if inside is None else inside.scope()


def is_inside_run() -> bool:
    """Return whether this code was started by a run, in a contained block or not."""
    return any(_runs_here())


def outermost_inside(run_id: UUID) -> UUID:
    """Return the outermost run or block inside a run that this code runs in; the run itself if there is none."""
    found, inside = run_id, INNERMOST.get()
    while inside is not None:
        if inside.run_id == run_id:
            return found
        found, inside = inside.run_id, inside.around
    return run_id


def is_inside(run_id: UUID) -> bool:
    """Return whether this code was started by a run, which may be over by now."""
    return any(inside.run_id == run_id for inside in _runs_here())


def _runs_here() -> Iterator[Inside]:
    inside = INNERMOST.get()
    while inside is not None:
        if inside.is_run:
            yield inside
        inside = inside.around


def session_here(given: Session) -> Session:
    """Return the session for a run that is started here with a session: one below it, with its state and a log of its
    own, if it is that of a run in which this code runs; for a log tells of one run at a time.
    """
    around = (_going_on.get(inside.run_id) for inside in _runs_here())
    if any(scope is not None and scope.session.origin is given.origin for scope in around):
        return given.child(given.snapshot())
    return given


def run_below(gate: ExecutionContext) -> RunScope | None:
    """Return the scope of a run that goes on under a gate, also in another thread; None if there is none."""
    with _lock:
        going_on = tuple(_going_on.values())
    return next((scope for scope in going_on if scope.gate.stands_below(gate)), None)


def run_of(gate: ExecutionContext) -> RunScope | None:
    """Return the scope of the run that goes on with this gate; None if it is no run's.

    A run's listeners are told of its first events before its own code begins, so they know its gate only.
    """
    with _lock:
        found = tuple(_going_on.values())
    return next((scope for scope in found if scope.gate is gate), None)


@contextmanager
def going_on(scope: RunScope) -> Generator[None]:
    """Register a run while the block runs, so that it can be found by its gate."""
    with _lock:
        _going_on[scope.run_context.run_id] = scope
    try:
        yield
    finally:
        with _lock:
            _going_on.pop(scope.run_context.run_id, None)
