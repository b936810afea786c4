"""The gate: every call of a run passes it, and nothing that a run does can exceed what it was given.

It is useful by itself, around any framework or none: open an `ExecutionContext` and make your calls through it. The
names below are imported when they are first used; those of `watchkeeper.shield` can be imported from here too.
"""

# ruff: noqa: F403, F405

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watchkeeper import shield
from watchkeeper.core.lazy_names import imported_when_used

if TYPE_CHECKING:
    from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
    from watchkeeper.accounting.ledger import Ledger, MemoryLedger
    from watchkeeper.containment.config import ExecutionConfig, WrapOptions
    from watchkeeper.containment.execution_context import ExecutionContext
    from watchkeeper.containment.in_flight import Outcome, Ticket
    from watchkeeper.containment.record import ContextSnapshot, NodeRecord
    from watchkeeper.core.cancellation import CancellationToken
    from watchkeeper.shield import *

_NAMES: Final = {
    "watchkeeper.accounting.call_request": ("CallRequest", "Charge", "Estimate"),
    "watchkeeper.accounting.ledger": ("Ledger", "MemoryLedger"),
    "watchkeeper.containment.config": ("ExecutionConfig", "WrapOptions"),
    "watchkeeper.containment.execution_context": ("ExecutionContext",),
    "watchkeeper.containment.in_flight": ("Outcome", "Ticket"),
    "watchkeeper.containment.record": ("ContextSnapshot", "NodeRecord"),
    "watchkeeper.core.cancellation": ("CancellationToken",),
    "watchkeeper.shield": tuple(shield.__all__),
}

__all__ = [
    "BudgetBoundaryHook",
    "BudgetWindowHook",
    "CallRequest",
    "CancellationToken",
    "ChainMetadata",
    "Charge",
    "CircuitBreaker",
    "CircuitBreakers",
    "CircuitState",
    "ContextSnapshot",
    "Decision",
    "EgressAllowList",
    "EgressBoundaryHook",
    "Estimate",
    "ExecutionConfig",
    "ExecutionContext",
    "Ledger",
    "MemoryLedger",
    "ModelDowngradeHook",
    "NodeRecord",
    "Outcome",
    "PolicyContext",
    "PolicyDecision",
    "PreDispatchHook",
    "ReleasingHook",
    "ResponseHook",
    "RetryBoundaryHook",
    "SafetyEvent",
    "ShieldPipeline",
    "Ticket",
    "TokenRateHook",
    "ToolCallContext",
    "ToolDispatchHook",
    "ToolPermissionHook",
    "WrapOptions",
]

__getattr__ = imported_when_used(__name__, {name: module for module, names in _NAMES.items() for name in names})


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
