"""What may refuse a call, besides its limits: hooks, the pipeline that asks them, circuit breakers."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
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
    from watchkeeper.shield.tool_permission import Questioner as Questioner, ToolPermissionHook as ToolPermissionHook
    from watchkeeper.shield.usage_hooks import BudgetWindowHook as BudgetWindowHook
    from watchkeeper.shield.usage_hooks import ModelDowngradeHook as ModelDowngradeHook, TokenRateHook as TokenRateHook
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "shield.circuit_breaker": "CircuitBreaker CircuitBreakers CircuitState PolicyContext PolicyDecision",
            "shield.decision": "ChainMetadata Decision SafetyEvent ToolCallContext",
            "shield.egress": "EgressAllowList",
            "shield.pipeline": (
                "BudgetBoundaryHook EgressBoundaryHook PreDispatchHook ReleasingHook ResponseHook RetryBoundaryHook "
                "ShieldPipeline ToolDispatchHook"
            ),
            "shield.tool_permission": "Questioner ToolPermissionHook",
            "shield.usage_hooks": "BudgetWindowHook ModelDowngradeHook TokenRateHook",
        },
    )
