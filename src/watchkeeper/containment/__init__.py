"""The gate: every call of a run passes it, and nothing a run does can exceed what it was given.

It is useful by itself, around any framework or none: open an `ExecutionContext` and make your calls through it. The
names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watchkeeper.core.lazy_names import imported_when_used

if TYPE_CHECKING:
    from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
    from watchkeeper.accounting.ledger import Ledger, MemoryLedger
    from watchkeeper.containment.execution_context import ExecutionContext
    from watchkeeper.containment.in_flight import Outcome, Ticket
    from watchkeeper.containment.record import ContextSnapshot, NodeRecord
    from watchkeeper.containment.seed_calls import ExecutionConfig, WrapOptions
    from watchkeeper.core.cancellation import CancellationToken
    from watchkeeper.shield.circuit_breaker import (
        CircuitBreaker,
        CircuitBreakers,
        CircuitState,
        PolicyContext,
        PolicyDecision,
    )
    from watchkeeper.shield.decision import ChainMetadata, Decision, SafetyEvent, ToolCallContext
    from watchkeeper.shield.egress import EgressAllowList
    from watchkeeper.shield.model_downgrade import ModelDowngradeHook
    from watchkeeper.shield.pipeline import (
        BudgetBoundaryHook,
        EgressBoundaryHook,
        PreDispatchHook,
        ReleasingHook,
        ResponseHook,
        RetryBoundaryHook,
        ShieldPipeline,
        ToolDispatchHook,
    )
    from watchkeeper.shield.tool_permission import ToolPermissionHook
    from watchkeeper.shield.windows import BudgetWindowHook, TokenRateHook

_HOMES: Final = {
    "BudgetBoundaryHook": "watchkeeper.shield.pipeline",
    "BudgetWindowHook": "watchkeeper.shield.windows",
    "CallRequest": "watchkeeper.accounting.call_request",
    "CancellationToken": "watchkeeper.core.cancellation",
    "ChainMetadata": "watchkeeper.shield.decision",
    "Charge": "watchkeeper.accounting.call_request",
    "CircuitBreaker": "watchkeeper.shield.circuit_breaker",
    "CircuitBreakers": "watchkeeper.shield.circuit_breaker",
    "CircuitState": "watchkeeper.shield.circuit_breaker",
    "ContextSnapshot": "watchkeeper.containment.record",
    "Decision": "watchkeeper.shield.decision",
    "EgressAllowList": "watchkeeper.shield.egress",
    "EgressBoundaryHook": "watchkeeper.shield.pipeline",
    "Estimate": "watchkeeper.accounting.call_request",
    "ExecutionConfig": "watchkeeper.containment.seed_calls",
    "ExecutionContext": "watchkeeper.containment.execution_context",
    "Ledger": "watchkeeper.accounting.ledger",
    "MemoryLedger": "watchkeeper.accounting.ledger",
    "ModelDowngradeHook": "watchkeeper.shield.model_downgrade",
    "NodeRecord": "watchkeeper.containment.record",
    "Outcome": "watchkeeper.containment.in_flight",
    "PolicyContext": "watchkeeper.shield.circuit_breaker",
    "PolicyDecision": "watchkeeper.shield.circuit_breaker",
    "PreDispatchHook": "watchkeeper.shield.pipeline",
    "ReleasingHook": "watchkeeper.shield.pipeline",
    "ResponseHook": "watchkeeper.shield.pipeline",
    "RetryBoundaryHook": "watchkeeper.shield.pipeline",
    "SafetyEvent": "watchkeeper.shield.decision",
    "ShieldPipeline": "watchkeeper.shield.pipeline",
    "Ticket": "watchkeeper.containment.in_flight",
    "TokenRateHook": "watchkeeper.shield.windows",
    "ToolCallContext": "watchkeeper.shield.decision",
    "ToolDispatchHook": "watchkeeper.shield.pipeline",
    "ToolPermissionHook": "watchkeeper.shield.tool_permission",
    "WrapOptions": "watchkeeper.containment.seed_calls",
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

__getattr__ = imported_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
