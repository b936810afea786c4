"""Configuration of a chain and of one call, and what they mean to the gate (docs/specification.md, execution-context).

All of it is checked at construction; an invalid value raises a `LimitsError` (a ValueError) that names field and value.
Money in dollars becomes whole nano-dollars here, rounded up.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from types import CoroutineType, FunctionType
from typing import Any, Final, TypeVar

from watchkeeper.accounting.call_request import (
    NO_ESTIMATE,
    NO_TOKENS,
    CallRequest,
    Charge,
    Dollars,
    Estimate,
    NodeKind,
    nanos,
)
from watchkeeper.containment.in_flight import Meter, Ticket
from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.accounting.limits import UNLIMITED, Limits
from watchkeeper.core.quantities import count, money

T = TypeVar("T")


LONGEST_MS: Final = 10 * 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class ExecutionConfig:
    """Hard limits of one chain.

    Attributes:
        max_cost_usd: Dollars the chain may spend.
        max_steps: Calls it may make, also failing ones.
        max_retries_total: Failures it may have; 0 means that the first failure is final. Every call under way sets one
            aside in case it fails, so no more than that (but always one) run at once; others wait their turn.
        timeout_ms: Milliseconds it may take; 0 for no limit.
    """

    max_cost_usd: float
    max_steps: int
    max_retries_total: int
    timeout_ms: int

    def __post_init__(self) -> None:
        """Refuse invalid values; convert counts given as text to numbers."""
        put = object.__setattr__
        money(self.max_cost_usd, "max_cost_usd")
        put(self, "max_steps", count(self.max_steps, "max_steps"))
        put(self, "max_retries_total", count(self.max_retries_total, "max_retries_total", zero=True))
        put(self, "timeout_ms", milliseconds(self.timeout_ms, "timeout_ms"))

    def as_limits(self) -> Limits:
        """Return limits with these ceilings and none other, and a hard stop at each."""
        return replace(
            UNLIMITED,
            deadline=timedelta(milliseconds=self.timeout_ms) if self.timeout_ms else None,
            max_cost_usd=self.max_cost_usd,
            max_steps=self.max_steps,
            max_retries=self.max_retries_total,
            landing=None,
        )


@dataclass(frozen=True, slots=True)
class WrapOptions:
    """Options of one call.

    Attributes:
        operation_name: A label for people.
        cost_estimate_hint: Dollars it is expected to cost: reserved before, and charged unless the call says better. A
            hint that is more than what is left refuses this call only.
        timeout_ms: Milliseconds this call may take, within what the chain has left; None or 0 for no time-out of
            its own.
        retry_policy_override: How often an operation of this name may fail and be repeated; None for as often as the
            chain allows.
        model: Model that is asked, for hooks; the chain's by default.
        provider: The provider called; key of its circuit breaker if each provider has one.
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
        """Refuse invalid values; convert counts given as text to numbers."""
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


# --- calls ------------------------------------------------------------------------------------------------------------

CostOf = Callable[[T], Dollars]
"""Says what a call cost, in dollars, from its result."""

NO_OPTIONS: Final = WrapOptions()


def request_of(kind: NodeKind, options: WrapOptions | None) -> CallRequest:
    """Return what a call with these options asks of the gate: every failure spends a retry."""
    options = options or NO_OPTIONS
    hint = options.cost_estimate_hint
    return CallRequest(
        kind,
        options.operation_name,
        Estimate(input_nanos=nanos(hint, "cost_estimate_hint"), is_hint=True) if hint else NO_ESTIMATE,
        options.timeout_ms / 1000 if options.timeout_ms else None,
        spends_retry_on_error=True,
        max_retries=options.retry_policy_override,
        model=options.model,
        provider=options.provider,
        degraded=options.degraded,
        arguments=options.arguments,
    )


def meter_of(cost_of: CostOf[T] | None, options: WrapOptions | None) -> Meter[T] | None:
    """Return the meter for a call whose result says its cost; a failed call is charged its own charge, or the hint."""
    if cost_of is None:
        return None
    hint = nanos((options or NO_OPTIONS).cost_estimate_hint, "cost_estimate_hint")

    def meter(value: T | None, error: BaseException | None, ticket: Ticket) -> Charge:
        if error is None:
            return Charge(cost_nanos=nanos(cost_of(value), "cost_of"))  # type: ignore[arg-type]
        if ticket.charged_nanos is None:
            return Charge(cost_nanos=hint, reported=NO_TOKENS)
        return Charge(cost_nanos=ticket.charged_nanos)

    return meter


def plain_work(fn: Callable[..., T]) -> Callable[[Ticket], T]:
    """Wrap a plain callable so that it takes the ticket.

    Raises:
        UnrunCoroutineError: If it is a coroutine function.
    """
    if inspect.iscoroutinefunction(fn):
        raise UnrunCoroutineError(f"{fn!r} is a coroutine function; await its async twin: acall_llm or acall_tool")
    return with_ticket(fn)


def with_ticket(fn: Callable[..., T]) -> Callable[[Ticket], T]:
    """Wrap ``fn`` so that it takes the ticket; ``fn`` itself gets the ticket only if it has a required parameter."""
    return fn if needs_argument(fn) else lambda ticket: fn()


def needs_argument(fn: Callable[..., Any]) -> bool:
    """Return whether a callable cannot be called without an argument."""
    if type(fn) is FunctionType:
        return fn.__code__.co_argcount > len(fn.__defaults__ or ())
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some builtins do not tell
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(parameter.default is parameter.empty and parameter.kind in positional for parameter in parameters)


class UnrunCoroutineError(TypeError):
    """A plain call was given work that only makes a coroutine."""


def refuse_coroutine(value: object, fn: Callable[..., object]) -> None:
    """Refuse a result that is a coroutine that was never awaited.

    Raises:
        UnrunCoroutineError: If it is one.
    """
    if isinstance(value, CoroutineType):
        value.close()
        raise UnrunCoroutineError(f"{fn!r} returned a coroutine; await its async twin: acall_llm or acall_tool")
