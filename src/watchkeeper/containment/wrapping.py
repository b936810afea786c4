"""From the seed's options to the gate's own terms: requests, callables with or without a ticket, meters.

Money in dollars becomes whole nano-dollars here, rounded up.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, TypeVar

from watchkeeper.containment.blocking import UnrunCoroutineError
from watchkeeper.containment.call import NO_ESTIMATE, CallRequest, Meter, Ticket
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.dollars import Dollars, nanos
from watchkeeper.containment.estimate import Charge, Estimate
from watchkeeper.containment.nodes import NodeKind

T = TypeVar("T")

CostOf = Callable[[T], Dollars]
"""Says what a call cost, in dollars, from its result."""

NO_OPTIONS: Final = WrapOptions()


def wrapped(kind: NodeKind, options: WrapOptions | None) -> CallRequest:
    """Return what a call with the seed's options asks of the gate: every failure spends a retry."""
    options = options or NO_OPTIONS
    hint = options.cost_estimate_hint
    return CallRequest(
        kind,
        options.operation_name,
        Estimate(input_nanos=nanos(hint, "cost_estimate_hint")) if hint else NO_ESTIMATE,
        options.timeout_ms / 1000 if options.timeout_ms else None,
        spends_retry_on_error=True,
        max_retries=options.retry_policy_override,
        model=options.model,
        provider=options.provider,
        degraded=options.degraded,
        arguments=options.arguments,
    )


def metered(cost_of: CostOf[T] | None, options: WrapOptions | None) -> Meter[T] | None:
    """Return the meter for a call whose result says what it cost; what failed is charged as it said, or as hinted."""
    if cost_of is None:
        return None
    hint = nanos((options or NO_OPTIONS).cost_estimate_hint, "cost_estimate_hint")

    def meter(value: T | None, error: BaseException | None, ticket: Ticket) -> Charge:
        if error is None:
            return Charge(cost_nanos=nanos(cost_of(value), "cost_of"))  # type: ignore[arg-type]
        return Charge(cost_nanos=hint if ticket.charged_nanos is None else ticket.charged_nanos)

    return meter


def plain(fn: Callable[..., T]) -> Callable[[Ticket], T]:
    """Return a plain callable as one that takes the ticket.

    Raises:
        UnrunCoroutineError: If it is a coroutine function.
    """
    if inspect.iscoroutinefunction(fn):
        raise UnrunCoroutineError(f"{fn!r} is a coroutine function; await its async twin: acall_llm or acall_tool")
    return with_ticket(fn)


def with_ticket(fn: Callable[..., T]) -> Callable[[Ticket], T]:
    """Return ``fn`` as a callable that takes the ticket; it sees it only if it has a parameter that it needs."""
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
