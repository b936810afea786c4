"""One call at the gate: what is asked for, the most that it may cost, and what it did cost.

An estimate must be a true upper bound: a ceiling holds as exactly as the estimates do. Money is whole nano-dollars. All
are made once per call, so they are msgspec structs: frozen, and ten times cheaper to build than a dataclass.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any, Final, Literal, TypeVar

import msgspec

from watchkeeper.core.errors import LimitsError
from watchkeeper.core.usage import NANOS_PER_USD, TokenUsage

T = TypeVar("T")


NodeKind = Literal["llm", "tool", "child"]


NO_TOKENS: Final = TokenUsage()


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """The worst case of a call.

    Attributes:
        input_tokens: The most input it can have.
        max_output_tokens: The output cap that is wished for; the gate may grant less.
        min_output_tokens: The least output worth asking for; 0 takes ``Limits.min_output_tokens``.
        input_nanos: The most that its input, and whatever else does not depend on the output cap, can cost.
        output_nanos_per_token: The most that one output token can cost, rounded up.
        known_cost: False if there is no price; the gate then refuses wherever a cost ceiling holds.
    """

    input_tokens: int = 0
    max_output_tokens: int = 0
    min_output_tokens: int = 0
    input_nanos: int = 0
    output_nanos_per_token: int = 0
    known_cost: bool = True

    def nanos(self, output_tokens: int) -> int:
        """Return the most that the call can cost with this output cap, in nano-dollars."""
        return self.input_nanos + self.output_nanos_per_token * output_tokens


class Charge(msgspec.Struct, frozen=True):
    """What a call really cost.

    Attributes:
        tokens: As the provider reported them.
        cost_nanos: Money, or None if nobody knows the price.
    """

    tokens: TokenUsage = NO_TOKENS
    cost_nanos: int | None = 0


Dollars = Decimal | str | float
LARGEST: Final = 10_000_000_000


def nanos(usd: Dollars, field: str) -> int:
    """Return an amount in nano-dollars, rounded up; 0 is an amount too.

    Raises:
        LimitsError: If it is not a finite amount of at least 0 and at most ten billion dollars.
    """
    if isinstance(usd, float | int) and not isinstance(usd, bool):
        if 0 <= usd <= LARGEST:
            return math.ceil(round(usd * NANOS_PER_USD, 3))
    else:
        try:
            amount = Decimal(usd)
        except (InvalidOperation, TypeError, ValueError):
            amount = Decimal("NaN")
        if amount.is_finite() and 0 <= amount <= LARGEST and not isinstance(usd, bool):
            return int((amount * NANOS_PER_USD).to_integral_value(rounding=ROUND_CEILING))
    raise LimitsError(f"{field}={usd!r} must be a finite number of dollars, 0 or more")


NO_ESTIMATE: Final = Estimate()


class CallRequest(msgspec.Struct, frozen=True):
    """What is asked of the gate.

    Attributes:
        kind: A model call, a tool call, or a child run.
        operation_name: A label for people.
        estimate: The worst case, reserved before the call.
        timeout: Seconds that this call may take from its admission on, or None for as long as its phase has.
        retry: Whether the call repeats a failed one; it then spends one retry.
        phase: ``landing`` for the last turn, which may pass a stop of work.
        landing: What a landing turn would need after this call; kept back for it from now on.
        spends_retry_on_error: Whether a failure spends a retry; one is reserved for it.
        max_retries: How often in a row an operation of this name may be repeated; None for as often as
            the chain allows.
        model: What hooks are told about the model.
        provider: Whom it goes to; key of the circuit breaker where there is one for each.
        degraded: Whether it is the cheaper call already; a hook that says DEGRADE lets it pass.
        arguments: What hooks are told about the arguments of a tool; None for nothing.
    """

    kind: NodeKind
    operation_name: str = ""
    estimate: Estimate = NO_ESTIMATE
    timeout: float | None = None
    retry: bool = False
    phase: Literal["work", "landing"] = "work"
    landing: Estimate | None = None
    spends_retry_on_error: bool = False
    max_retries: int | None = None
    model: str = ""
    provider: str = ""
    degraded: bool = False
    arguments: Any = None
