"""What may refuse a call beside its limits: hooks, the pipeline that asks them, and circuit breakers.

They need no gate: a pipeline can be asked by any code. The names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watchkeeper.core.lazy_names import imported_when_used

if TYPE_CHECKING:
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
    from watchkeeper.shield.tool_permission import Questioner, ToolPermissionHook
    from watchkeeper.shield.windows import BudgetWindowHook, TokenRateHook

_NAMES: Final = {
    "watchkeeper.shield.circuit_breaker": (
        "CircuitBreaker",
        "CircuitBreakers",
        "CircuitState",
        "PolicyContext",
        "PolicyDecision",
    ),
    "watchkeeper.shield.decision": ("ChainMetadata", "Decision", "SafetyEvent", "ToolCallContext"),
    "watchkeeper.shield.egress": ("EgressAllowList",),
    "watchkeeper.shield.model_downgrade": ("ModelDowngradeHook",),
    "watchkeeper.shield.pipeline": (
        "BudgetBoundaryHook",
        "EgressBoundaryHook",
        "PreDispatchHook",
        "ReleasingHook",
        "ResponseHook",
        "RetryBoundaryHook",
        "ShieldPipeline",
        "ToolDispatchHook",
    ),
    "watchkeeper.shield.tool_permission": ("Questioner", "ToolPermissionHook"),
    "watchkeeper.shield.windows": ("BudgetWindowHook", "TokenRateHook"),
}

__all__ = [
    "BudgetBoundaryHook",
    "BudgetWindowHook",
    "ChainMetadata",
    "CircuitBreaker",
    "CircuitBreakers",
    "CircuitState",
    "Decision",
    "EgressAllowList",
    "EgressBoundaryHook",
    "ModelDowngradeHook",
    "PolicyContext",
    "PolicyDecision",
    "PreDispatchHook",
    "Questioner",
    "ReleasingHook",
    "ResponseHook",
    "RetryBoundaryHook",
    "SafetyEvent",
    "ShieldPipeline",
    "TokenRateHook",
    "ToolCallContext",
    "ToolDispatchHook",
    "ToolPermissionHook",
]

__getattr__ = imported_when_used(__name__, {name: module for module, names in _NAMES.items() for name in names})


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
