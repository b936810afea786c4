"""Children outside of any run: an evaluation that nobody runs around has a gate of its own.

The same way to start a child, with nothing above it but the caller's identifiers and, if there is one, a budget that is
shared with others.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.budget import BudgetTracker
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.core.run_context import RunContext, root_run_context
from watchkeeper.prompt.nested import NESTED, NESTED_LIMITS, NestedExecutionConfig
from watchkeeper.runtime.child import Children, Family
from watchkeeper.runtime.plan import PricedModel, RunHome
from watchkeeper.runtime.run import execute
from watchkeeper.runtime.shared_budget import gate_of
from watchkeeper.session.session import Session


@contextmanager
def standalone(
    session: Session,
    *,
    model: PricedModel,
    run_context: RunContext | None = None,
    nested: NestedExecutionConfig = NESTED,
    tracker: BudgetTracker | None = None,
    ids: IdSource = SYSTEM_IDS,
) -> Generator[Children]:
    """Open a gate and yield what starts children below it; each child has limits of its own.

    Args:
        session: The children's parent; it also gets the events of their starts and ends.
        model: Who answers if a child does not say otherwise.
        run_context: Identifiers of whoever asks; fresh ones by default.
        nested: What nested evaluations may do.
        tracker: A budget that is shared with other evaluations, or None.
        ids: Where identifiers come from.

    Raises:
        BudgetExceededError: If the tracker's budget is used up.
    """
    clock = session.clock
    if tracker is None:
        gate = ExecutionContext(NESTED_LIMITS, clock=clock, ids=ids, on_event=session.dispatch)
    else:
        gate = gate_of(tracker, clock, ids).child(NESTED_LIMITS, carve=False, on_event=session.dispatch)
    context = run_context or root_run_context(session.session_id, ids)
    try:
        with gate:
            home = RunHome(session, gate, context, clock, ids)
            yield Children(Family(home, lambda: model, nested=nested), execute)
    finally:
        if tracker is not None:
            tracker.add(gate.usage)
