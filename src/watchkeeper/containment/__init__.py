"""The gate: every call of a run passes it, and nothing a run does can exceed what it was given.

It is useful by itself, around any framework or none: open an `ExecutionContext` and make your calls through it. The
names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watchkeeper.core.lazy_names import imported_when_used

if TYPE_CHECKING:
    from watchkeeper.containment.budget_window import BudgetWindowHook
    from watchkeeper.containment.call import CallRequest, Outcome, Ticket
    from watchkeeper.containment.circuit_breaker import CircuitBreaker, CircuitBreakers, CircuitState
    from watchkeeper.containment.config import ChainMetadata, ExecutionConfig, WrapOptions
    from watchkeeper.containment.decision import Decision
    from watchkeeper.containment.egress import EgressAllowList
    from watchkeeper.containment.estimate import Charge, Estimate
    from watchkeeper.containment.execution_context import ExecutionContext
    from watchkeeper.containment.hooks import (
        BudgetBoundaryHook,
        EgressBoundaryHook,
        PreDispatchHook,
        ReleasingHook,
        ResponseHook,
        RetryBoundaryHook,
        ToolDispatchHook,
    )
    from watchkeeper.containment.ledger import Ledger, MemoryLedger
    from watchkeeper.containment.model_downgrade import ModelDowngradeHook
    from watchkeeper.containment.nodes import NodeRecord
    from watchkeeper.containment.pipeline import ShieldPipeline
    from watchkeeper.containment.policy import PolicyContext, PolicyDecision
    from watchkeeper.containment.safety_event import SafetyEvent
    from watchkeeper.containment.snapshot import ContextSnapshot
    from watchkeeper.containment.token_rate import TokenRateHook
    from watchkeeper.containment.tool_call_context import ToolCallContext
    from watchkeeper.containment.tool_permission import ToolPermissionHook
    from watchkeeper.core.cancellation import CancellationToken

_HOMES: Final = {
    "BudgetBoundaryHook": "watchkeeper.containment.hooks",
    "BudgetWindowHook": "watchkeeper.containment.budget_window",
    "CallRequest": "watchkeeper.containment.call",
    "CancellationToken": "watchkeeper.core.cancellation",
    "ChainMetadata": "watchkeeper.containment.config",
    "Charge": "watchkeeper.containment.estimate",
    "CircuitBreaker": "watchkeeper.containment.circuit_breaker",
    "CircuitBreakers": "watchkeeper.containment.circuit_breaker",
    "CircuitState": "watchkeeper.containment.circuit_breaker",
    "ContextSnapshot": "watchkeeper.containment.snapshot",
    "Decision": "watchkeeper.containment.decision",
    "EgressAllowList": "watchkeeper.containment.egress",
    "EgressBoundaryHook": "watchkeeper.containment.hooks",
    "Estimate": "watchkeeper.containment.estimate",
    "ExecutionConfig": "watchkeeper.containment.config",
    "ExecutionContext": "watchkeeper.containment.execution_context",
    "Ledger": "watchkeeper.containment.ledger",
    "MemoryLedger": "watchkeeper.containment.ledger",
    "ModelDowngradeHook": "watchkeeper.containment.model_downgrade",
    "NodeRecord": "watchkeeper.containment.nodes",
    "Outcome": "watchkeeper.containment.call",
    "PolicyContext": "watchkeeper.containment.policy",
    "PolicyDecision": "watchkeeper.containment.policy",
    "PreDispatchHook": "watchkeeper.containment.hooks",
    "ReleasingHook": "watchkeeper.containment.hooks",
    "ResponseHook": "watchkeeper.containment.hooks",
    "RetryBoundaryHook": "watchkeeper.containment.hooks",
    "SafetyEvent": "watchkeeper.containment.safety_event",
    "ShieldPipeline": "watchkeeper.containment.pipeline",
    "Ticket": "watchkeeper.containment.call",
    "TokenRateHook": "watchkeeper.containment.token_rate",
    "ToolCallContext": "watchkeeper.containment.tool_call_context",
    "ToolDispatchHook": "watchkeeper.containment.hooks",
    "ToolPermissionHook": "watchkeeper.containment.tool_permission",
    "WrapOptions": "watchkeeper.containment.config",
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
