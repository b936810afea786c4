"""What the children of one prompt get: a model, limits, a function that prepares their state.

Limits that are given are the child's ceilings; it gets at most what its parent has left. If none are given, a call's
children get a share of what the parent has left of every ceiling and of its time, divided equally among them, so that
the parent can always go on after them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.limits import COUNTED, Limits
from watchkeeper.core.model import Model
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.session.session import Session

NO_CEILINGS: Final[dict[str, Any]] = dict.fromkeys(
    name for name in ("max_cost_usd", "max_retries", "account", "account_limit", *COUNTED) if name != "max_turns"
)
LEAST_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class SubagentSettings:
    """What the children of one prompt get; what is None is as for all children of the section.

    Attributes:
        model: Who answers: a model, or the name of one.
        limits: Their ceilings, each.
        hydrate: Called with a child's session, in which the parent's state is, before the child runs, on a worker
            thread; it derives more state from what is there (seed: subagent-dispatch).
        description: What the subagent is good for; shown to the parent's model.
    """

    model: Model | str | None = None
    limits: Limits | None = None
    hydrate: Callable[[Session], object] | None = None
    description: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ConfigurationError: Naming the field and the value.
        """
        for name, kind, example in (
            ("model", Model | str | None, "'openai:gpt-5-mini'"),
            ("limits", Limits | None, "Limits(max_cost_usd=1)"),
            ("description", str, "'Finds sources.'"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ConfigurationError(f"{name}={value!r} of a subagent makes no sense; give for example {example}")
        if self.hydrate is not None and not callable(self.hydrate):
            raise ConfigurationError(f"hydrate={self.hydrate!r} must be a function that takes the child's session")

    def over(self, other: SubagentSettings) -> SubagentSettings:
        """Return these settings, with those of ``other`` in the place of what is None."""
        return SubagentSettings(
            other.model if self.model is None else self.model,
            other.limits if self.limits is None else self.limits,
            other.hydrate if self.hydrate is None else self.hydrate,
            self.description or other.description,
        )


def check_share(share: object) -> float:
    """Return the share of what is left that children get.

    Raises:
        ConfigurationError: If it is no share, or leaves the parent nothing.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise ConfigurationError(f"share={share!r} must lie between 0 and 1, so that the parent keeps something")
    return float(share)


def check_least_one(value: object, name: str) -> int:
    """Return a count.

    Raises:
        ConfigurationError: If it is none, or below one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name}={value!r} must be a whole number, at least 1")
    return value


def allotted(gate: ExecutionContext, seconds: float | None, share: float, children: int, rounds: int) -> Limits:
    """Return the limits of each of the children of one call.

    Args:
        gate: The parent's.
        seconds: Time that the call has left, or None if nothing bounds it.
        share: How much of what is left the children get together.
        children: How many there are.
        rounds: How many of them follow each other in time, at most.
    """
    part = Fraction(share) / children
    changes = dict(NO_CEILINGS)
    for name, left in gate.left().items():
        # Nothing left is the parent's stop to tell; a rounded-down share must not be a stop that nobody meant.
        amount = max(int(left * part), 1) if left else None
        if name == "max_cost_nanos":
            changes["max_cost_usd"] = None if amount is None else Decimal(amount) / NANOS_PER_USD
        else:
            changes[name] = amount
    deadline = None if seconds is None else timedelta(seconds=max(seconds * share / rounds, LEAST_SECONDS))
    return replace(gate.limits, deadline=deadline, **changes)
