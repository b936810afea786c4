"""The place of a run in its trace: in force for its code, below the caller's span, and new for a run that goes on.

A tracer, if the gate of the run has one, follows the run's log.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import msgspec

from watchkeeper.core.ids import RunContext
from watchkeeper.core.trace.place import HERE, SAMPLED, Place, at
from watchkeeper.runtime.plan import RunPlan, RunScope


@contextmanager
def traced(scope: RunScope, plan: RunPlan[Any] | None = None) -> Generator[None]:
    """Put the place of a run in force while the block runs; the tracer of its gate, if it has one, follows its log."""
    context, tracer, around = scope.run_context, scope.gate.tracer, HERE.get()
    place = around
    if context.trace_id is not None and context.span_id is not None:
        flags = around.flags if around is not None and around.trace_id == context.trace_id else SAMPLED
        place = Place(context.trace_id, context.span_id, str(context.run_id), flags)
    with at(place), nullcontext() if tracer is None else tracer.following(scope, plan):
        yield


def below(context: RunContext, above: Place | None) -> RunContext:
    """Return the identifiers of a run that has no parent, in the trace of a caller's span; None leaves its own."""
    if above is None:
        return context
    return msgspec.structs.replace(context, trace_id=above.trace_id, parent_span_id=above.span_id)


def in_new_trace(earlier: RunContext, fresh: RunContext) -> RunContext:
    """Return the context of a run that goes on in another process: the same run, with trace and span of a fresh one."""
    return msgspec.structs.replace(
        earlier,
        attempt=earlier.attempt + 1,
        trace_id=fresh.trace_id,
        span_id=fresh.span_id,
        parent_span_id=fresh.parent_span_id,
    )
