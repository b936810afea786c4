"""The gate: every call of a run passes it, and it keeps the run within its limits.

It is useful by itself, around any framework or none: open an `ExecutionContext` and make your calls through it. The
names below are imported when they are first used.
"""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.accounting.budget import BudgetStatus as BudgetStatus
    from watchkeeper.accounting.call_request import CallRequest as CallRequest, Charge as Charge, Estimate as Estimate
    from watchkeeper.accounting.call_request import NodeKind as NodeKind
    from watchkeeper.accounting.ledger import Ledger as Ledger, MemoryLedger as MemoryLedger
    from watchkeeper.accounting.limits import AccountLimit as AccountLimit, Verdict as Verdict
    from watchkeeper.containment.config import ExecutionConfig as ExecutionConfig, WrapOptions as WrapOptions
    from watchkeeper.containment.execution_context import ExecutionContext as ExecutionContext
    from watchkeeper.containment.in_flight import Ticket as Ticket
    from watchkeeper.containment.record import ContextSnapshot as ContextSnapshot, NodeRecord as NodeRecord
    from watchkeeper.containment.record import Outcome as Outcome
    from watchkeeper.core.cancellation import CancellationToken as CancellationToken
    from watchkeeper.shield.circuit_breaker import CircuitBreaker as CircuitBreaker, CircuitBreakers as CircuitBreakers
    from watchkeeper.shield.circuit_breaker import CircuitState as CircuitState, PolicyContext as PolicyContext
    from watchkeeper.shield.circuit_breaker import PolicyDecision as PolicyDecision
    from watchkeeper.shield.decision import ChainMetadata as ChainMetadata, Decision as Decision
    from watchkeeper.shield.decision import SafetyEvent as SafetyEvent, ToolCallContext as ToolCallContext
    from watchkeeper.shield.egress import EgressAllowList as EgressAllowList
    from watchkeeper.shield.pipeline import BudgetBoundaryHook as BudgetBoundaryHook
    from watchkeeper.shield.pipeline import EgressBoundaryHook as EgressBoundaryHook, PreDispatchHook as PreDispatchHook
    from watchkeeper.shield.pipeline import ReleasingHook as ReleasingHook, ResponseHook as ResponseHook
    from watchkeeper.shield.pipeline import RetryBoundaryHook as RetryBoundaryHook, ShieldPipeline as ShieldPipeline
    from watchkeeper.shield.pipeline import ToolDispatchHook as ToolDispatchHook
    from watchkeeper.shield.tool_permission import ToolPermissionHook as ToolPermissionHook
    from watchkeeper.shield.usage_hooks import BudgetWindowHook as BudgetWindowHook
    from watchkeeper.shield.usage_hooks import ModelDowngradeHook as ModelDowngradeHook, TokenRateHook as TokenRateHook
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "accounting.budget": "BudgetStatus",
            "accounting.call_request": "CallRequest Charge Estimate NodeKind",
            "accounting.ledger": "Ledger MemoryLedger",
            "accounting.limits": "AccountLimit Verdict",
            "containment.config": "ExecutionConfig WrapOptions",
            "containment.execution_context": "ExecutionContext",
            "containment.in_flight": "Ticket",
            "containment.record": "ContextSnapshot NodeRecord Outcome",
            "core.cancellation": "CancellationToken",
            "shield.circuit_breaker": "CircuitBreaker CircuitBreakers CircuitState PolicyContext PolicyDecision",
            "shield.decision": "ChainMetadata Decision SafetyEvent ToolCallContext",
            "shield.egress": "EgressAllowList",
            "shield.pipeline": (
                "BudgetBoundaryHook EgressBoundaryHook PreDispatchHook ReleasingHook ResponseHook RetryBoundaryHook "
                "ShieldPipeline ToolDispatchHook"
            ),
            "shield.tool_permission": "ToolPermissionHook",
            "shield.usage_hooks": "BudgetWindowHook ModelDowngradeHook TokenRateHook",
        },
    )
