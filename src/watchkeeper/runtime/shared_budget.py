"""One gate behind every `BudgetTracker`, so that evaluations that share a tracker also share its ceilings.

Two evaluations that run at once each see what the other holds: the tracker's budget bounds them together, exactly.
The gate lives as long as its tracker.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from typing import Final

from watchkeeper.containment.call import CallRequest
from watchkeeper.containment.estimate import Charge
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.budget import BudgetTracker
from watchkeeper.core.clock import Clock
from watchkeeper.core.ids import IdSource
from watchkeeper.core.usage import Usage

_gates: Final[weakref.WeakKeyDictionary[BudgetTracker, ExecutionContext]] = weakref.WeakKeyDictionary()
_lock: Final = threading.Lock()


def gate_of(tracker: BudgetTracker, clock: Clock, ids: IdSource) -> ExecutionContext:
    """Return the gate that bounds everything evaluated with ``tracker``; it is made at the first use.

    Raises:
        BudgetExceededError: If the tracker's budget is used up.
    """
    left = tracker.remaining()
    with _lock:
        gate = _gates.get(tracker)
        if gate is None:
            limits = replace(left.as_limits(), landing=None)
            gate = _gates[tracker] = ExecutionContext(limits, clock=clock, ids=ids)
        return gate


def is_drawn_from(tracker: BudgetTracker, gate: ExecutionContext) -> bool:
    """Return whether what passes a gate is counted in a tracker anyway: the gate stands below the tracker's."""
    with _lock:
        own = _gates.get(tracker)
    return own is not None and gate.stands_below(own)


def draw(tracker: BudgetTracker, usage: Usage) -> None:
    """Add what was used elsewhere to a tracker, and to what its gate knows, so that its ceilings go on to hold."""
    tracker.add(usage)
    with _lock:
        own = _gates.get(tracker)
    if own is not None:
        own.call(CallRequest(kind="child"), lambda _: None, lambda *_: Charge(usage.tokens, usage.cost_nanos))
