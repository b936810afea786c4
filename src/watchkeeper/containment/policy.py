"""What a policy is asked and what it answers, apart from any call (contract: containment).

The circuit breaker speaks these terms; so can any policy of your own that you consult beside the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The state a policy decides on.

    Attributes:
        cost_usd: Dollars that were spent, or are about to be.
        step_count: Calls so far.
        entity_id: Whom it concerns: a user, a provider, a tool.
        chain_id: The chain.
        timestamp: When it is asked, aware; None if that does not matter.
        metadata: Anything else.
    """

    cost_usd: float = 0.0
    step_count: int = 0
    entity_id: str = ""
    chain_id: str = ""
    timestamp: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """A policy's answer.

    Attributes:
        allowed: Whether to go on.
        policy_type: Which policy decided.
        reason: One sentence for a person; empty if it is allowed.
        partial_result: What there is already, if the policy knows.
        degradation_action: What to do instead, if it knows.
        fallback_model: The model to take instead, if it knows.
        rate_limit_ms: Milliseconds after which asking again makes sense; 0 if it is unknown or allowed.
    """

    allowed: bool
    policy_type: str
    reason: str = ""
    partial_result: Any = None
    degradation_action: str | None = None
    fallback_model: str | None = None
    rate_limit_ms: int = 0
