"""Puts on a run's record what its code spends beside the calls of its loop, so that a resumed run counts it.

A tool, an observer, a checker or a hook may open an `ExecutionContext`, start a run without a record of its own, or
send a request through the gate. The run's gate counts all of it, and tells a `Witness`. Each call that can cost
something is on disk before it begins, with its worst case (`CallBegun`), and each call when it ends (`CallEnded`). What
has a record of its own in the same store (a run, a subagent, a judge, a block) puts its calls there.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal, Protocol, runtime_checkable
from uuid import UUID

from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import NO_TOKENS, CallRequest, Charge
from watchkeeper.accounting.ledger import presumed_of
from watchkeeper.children.innermost import outermost_inside
from watchkeeper.containment.record import Node, Witness
from watchkeeper.core.usage import NOTHING_PRESUMED, Usage
from watchkeeper.runtime.events import CallBegun, CallEnded
from watchkeeper.runtime.plan import Durable, RunScope
from watchkeeper.shield.decision import SafetyEvent


@runtime_checkable
class Records(Witness, Protocol):
    """A witness that puts what is spent on a record."""

    @property
    def spending(self) -> Spending | None:
        """What does so for it; None if nothing does."""
        ...


class Spending:
    """Records what the code of one run, or of one block, spends."""

    def __init__(self, scope: RunScope, durable: Durable, above: Witness | None) -> None:
        """Begin to record.

        Args:
            scope: The scope of the run.
            durable: Where its record goes.
            above: Who was told until now: the run or block around, whose record has to have all of it if that goes
                elsewhere.
        """
        self._scope = scope
        self._run_id = scope.run_context.run_id
        self._durable = durable
        around = above.spending if isinstance(above, Records) else None
        self._above = None if around is None or around._durable is durable else around
        self._is_over = False

    @property
    def spending(self) -> Spending:
        """Itself."""
        return self

    def call_begins(self, node: Node, demand: Demand) -> None:
        """Put a call on disk before it begins, if it can cost something."""
        if self._above is not None:
            self._above.call_begins(node, demand)
        request = demand.request
        if not self._records(request):
            return
        worst = presumed_of(demand)
        if request.kind == "llm" or worst.presumed.calls:
            self._write_ahead(node, demand, worst)

    def call_costs(self, node: Node, demand: Demand, nanos: int) -> None:
        """Put on disk that a call under way costs more than was on disk when it began."""
        if self._above is not None:
            self._above.call_costs(node, demand, nanos)
        if not self._records(demand.request):
            return
        worst = presumed_of(demand)
        if worst.cost_nanos is not None and nanos > worst.cost_nanos:
            self._write_ahead(node, demand, Usage(worst.tokens, nanos))

    def call_ended(self, request: CallRequest, node: Node, charge: Charge | None) -> None:
        """Record a call that is over; a refused one has used nothing."""
        if self._above is not None:
            self._above.call_ended(request, node, charge)
        if charge is not None and self._records(request):
            self._scope.record(ended_call(self._scope, request, node, charge, outermost_inside(self._run_id)))

    def incident_found(self, event: SafetyEvent) -> None:
        """Leave it to the gate's listener, which records it."""

    def end(self) -> None:
        """Record nothing more: the end of the run says what it has used."""
        self._is_over = True

    def _records(self, request: CallRequest) -> bool:
        """Return whether a call is to be recorded here: not that of a child, nor one whose caller records it."""
        return not (request.recorder is self._durable or self._is_over or request.kind == "child")

    def _write_ahead(self, node: Node, demand: Demand, worst: Usage) -> None:
        self._durable.write_ahead(
            self._run_id, begun_call(self._scope, node, demand, worst, outermost_inside(self._run_id))
        )


@contextmanager
def spending_on_record(scope: RunScope) -> Generator[None]:
    """Put on record what the code of a run spends while the block runs, if the run has a record."""
    if scope.durable is None:
        yield
        return
    before = scope.gate.tell(None)
    spending = Spending(scope, scope.durable, before)
    scope.gate.tell(spending)
    try:
        yield
    finally:
        spending.end()
        scope.gate.tell(before)


def begun_call(scope: RunScope, node: Node, demand: Demand, worst: Usage, run_id: UUID) -> CallBegun:
    """Return the event that a call of the user's code begins.

    Args:
        scope: The run or block on whose record it is.
        node: The call.
        demand: What is reserved for it.
        worst: The most that it can use.
        run_id: The run or block whose code makes it.
    """
    request = demand.request
    kind: Literal["llm", "tool"] = "llm" if request.kind == "llm" else "tool"
    name, attempt = request.model or request.operation_name, 2 if request.retry else 1
    now, nanos = scope.clock.now(), worst.cost_nanos
    return CallBegun(kind, name, 0, attempt, node.node_id, "", worst.tokens, nanos, now, run_id)


def ended_call(
    scope: RunScope, request: CallRequest, node: Node, charge: Charge | None, run_id: UUID | None
) -> CallEnded:
    """Return the event that a call of the user's code has ended, or was refused (without a charge)."""
    ending = node.ending
    assert ending is not None
    return CallEnded(
        kind=request.kind,
        name=request.model or request.operation_name,
        provider=request.provider,
        status=ending.status,
        usage=ending.tokens or NO_TOKENS,
        cost_nanos=ending.cost_nanos,
        duration_ms=(ending.at - node.began) * 1000,
        stop_reason=ending.stop_reason,
        error=ending.error,
        node_id=node.node_id,
        created_at=scope.clock.now(),
        run_id=run_id,
        presumed=NOTHING_PRESUMED if charge is None else charge.presumed,
        retries=ending.retries,
        admitted=charge is not None,
    )
