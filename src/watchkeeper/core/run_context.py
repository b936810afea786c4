"""Who is running: identifiers that correlate a run, its children and their traces (seed: nested-execution)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from watchkeeper.core.ids import SYSTEM_IDS, IdSource


class RunContext(msgspec.Struct, frozen=True, gc=False):
    """Identifiers of one run.

    Attributes:
        run_id: Unique to this run.
        request_id: What the caller asked for; shared by all runs that serve it.
        session_id: The session the run writes to.
        attempt: 1 for the first try of a stored run.
        worker_id: Which worker runs it.
        trace_id: 32 hex digits, shared by a run and its children.
        span_id: 16 hex digits, this run's own.
        parent_span_id: The parent's span, or None at the root.
    """

    run_id: UUID
    request_id: UUID
    session_id: UUID
    attempt: int = 1
    worker_id: str = "local"
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None


def root_run_context(session_id: UUID, ids: IdSource = SYSTEM_IDS) -> RunContext:
    """Return the context of a run that has no parent, with a trace of its own."""
    return RunContext(
        run_id=ids.uuid(),
        request_id=ids.uuid(),
        session_id=session_id,
        trace_id=ids.trace_id(),
        span_id=ids.span_id(),
    )


def derive_child_run_context(
    parent: RunContext | None, child_session_id: UUID, ids: IdSource = SYSTEM_IDS
) -> RunContext:
    """Return the context of a child run: the parent's trace, a fresh run and span (seed: nested-execution)."""
    return RunContext(
        run_id=ids.uuid(),
        request_id=parent.request_id if parent else ids.uuid(),
        session_id=child_session_id,
        attempt=1,
        worker_id=parent.worker_id if parent else "nested",
        trace_id=parent.trace_id if parent else None,
        span_id=generate_span_id(ids),
        parent_span_id=parent.span_id if parent else None,
    )


def generate_span_id(ids: IdSource = SYSTEM_IDS) -> str:
    """Return a fresh span id of 16 hex digits."""
    return ids.span_id()
