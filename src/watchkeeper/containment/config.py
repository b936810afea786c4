"""What the seed execution-context calls its configuration: chain limits, chain metadata, options of one call.

All of it is checked at construction; what makes no sense is a `LimitsError` (a ValueError) that names field and value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from watchkeeper.containment.dollars import nanos
from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.core.limits import Limits
from watchkeeper.core.quantities import count, money

LONGEST_MS: Final = 10 * 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class ExecutionConfig:
    """Hard limits of one chain (seed: execution-context, section 4).

    Attributes:
        max_cost_usd: Dollars the chain may spend.
        max_steps: Calls it may make, also failing ones.
        max_retries_total: Failures it may have; 0 means that the first failure is final. Every call under way sets one
            aside in case it fails, so no more than that (but always one) run at once; others wait their turn.
        timeout_ms: Milliseconds it may take; 0 for as long as it likes.
    """

    max_cost_usd: float
    max_steps: int
    max_retries_total: int
    timeout_ms: int

    def __post_init__(self) -> None:
        """Refuse what makes no sense; hold counts that were written as text as numbers."""
        put = object.__setattr__
        money(self.max_cost_usd, "max_cost_usd")
        put(self, "max_steps", count(self.max_steps, "max_steps"))
        put(self, "max_retries_total", count(self.max_retries_total, "max_retries_total", zero=True))
        put(self, "timeout_ms", milliseconds(self.timeout_ms, "timeout_ms"))

    def as_limits(self) -> Limits:
        """Return limits with these ceilings and none other, and a hard stop at each."""
        return Limits(
            deadline=timedelta(milliseconds=self.timeout_ms) if self.timeout_ms else None,
            max_cost_usd=self.max_cost_usd,
            max_total_tokens=None,
            max_steps=self.max_steps,
            max_retries=self.max_retries_total,
            max_turns=None,
            landing=None,
        )


@dataclass(frozen=True, slots=True)
class ChainMetadata:
    """Who a chain belongs to (seed: execution-context, section 4).

    Attributes:
        request_id: The request it serves.
        chain_id: The agent run, job or user action.
        org_id: Organisation.
        team: Team or cost centre.
        service: Service or agent.
        user_id: End user, if known.
        model: Primary model, if known.
        tags: Any further labels.
    """

    request_id: str
    chain_id: str
    org_id: str = ""
    team: str = ""
    service: str = ""
    user_id: str | None = None
    model: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class WrapOptions:
    """Options of one call (seed: execution-context, section 4).

    Attributes:
        operation_name: A label for people.
        cost_estimate_hint: Dollars it is expected to cost: reserved before, and charged unless the call says better.
        timeout_ms: Milliseconds this call may take, within what the chain has left; None or 0 for no time-out of
            its own.
        retry_policy_override: How often an operation of this name may fail and be repeated; None for as often as the
            chain allows.
        model: Model that is asked, for hooks; the chain's by default.
        provider: Whom the call goes to; key of the circuit breaker where there is one for each.
        degraded: Whether it is the cheaper call already; a hook that says DEGRADE lets it pass.
        arguments: What a tool is called with, for hooks, and for people whom they ask; None for nothing.
    """

    operation_name: str = ""
    cost_estimate_hint: float = 0.0
    timeout_ms: int | None = None
    retry_policy_override: int | None = None
    model: str = ""
    provider: str = ""
    degraded: bool = False
    arguments: Any = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense; hold counts that were written as text as numbers."""
        put = object.__setattr__
        nanos(self.cost_estimate_hint, "cost_estimate_hint")
        if self.timeout_ms is not None:
            put(self, "timeout_ms", milliseconds(self.timeout_ms, "timeout_ms"))
        if self.retry_policy_override is not None:
            retries = count(self.retry_policy_override, "retry_policy_override", zero=True)
            put(self, "retry_policy_override", retries)


def limits_of(config: ExecutionConfig | Limits) -> Limits:
    """Return a context's configuration as limits.

    Raises:
        ConfigurationError: If it is something else.
    """
    if isinstance(config, ExecutionConfig):
        return config.as_limits()
    if not isinstance(config, Limits):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ConfigurationError(f"{config!r} bounds no context; write Limits(...) or ExecutionConfig(...)")
    return config


def milliseconds(value: int, field: str) -> int:
    """Return a whole number of milliseconds from 0 to ten years.

    Raises:
        LimitsError: If it is anything else.
    """
    number = count(value, field, zero=True)
    if number > LONGEST_MS:
        raise LimitsError(f"{field}={value!r} must be at most ten years, {LONGEST_MS}")
    return number
