"""Ceilings as the seeds name them, and a tracker that parents and children share.

`Budget` is ceilings only, immutable. What was used is `Usage`. `BudgetTracker` holds both together, is safe under
threads, and may be handed from a parent to a child so that both draw from one budget.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.core.deadline import Deadline
from watchkeeper.core.limits import Limits
from watchkeeper.core.quantities import CountLike, MoneyLike, count, money
from watchkeeper.core.usage import Usage


@dataclass(frozen=True, slots=True)
class Budget:
    """Ceilings of an evaluation (seeds: nested-execution, trajectory-observers).

    Attributes:
        deadline: The moment at which it must be over.
        max_total_tokens: Input and output tokens together.
        max_input_tokens: Input tokens.
        max_output_tokens: Output tokens.
        max_tool_calls: Admitted tool calls.
        max_cost_usd: Dollars.
    """

    deadline: Deadline | datetime | None = None
    max_total_tokens: CountLike | None = None
    max_input_tokens: CountLike | None = None
    max_output_tokens: CountLike | None = None
    max_tool_calls: CountLike | None = None
    max_cost_usd: MoneyLike | None = None

    def __post_init__(self) -> None:
        """Parse friendly forms and refuse what makes no sense."""
        if isinstance(self.deadline, datetime):
            object.__setattr__(self, "deadline", Deadline(self.deadline))
        for name in ("max_total_tokens", "max_input_tokens", "max_output_tokens", "max_tool_calls"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, count(value, name))
        if self.max_cost_usd is not None:
            money(self.max_cost_usd, "max_cost_usd")

    @property
    def max_tokens(self) -> int | None:
        """The total token ceiling, under the name that the observers' seed gives it."""
        return None if self.max_total_tokens is None else int(self.max_total_tokens)

    def as_limits(self) -> Limits:
        """Return limits with these ceilings and none other."""
        return Limits(
            deadline=self.deadline,
            max_cost_usd=self.max_cost_usd,
            max_total_tokens=self.max_total_tokens,
            max_input_tokens=self.max_input_tokens,
            max_output_tokens=self.max_output_tokens,
            max_tool_calls=self.max_tool_calls,
            max_retries=None,
            max_turns=None,
        )


class BudgetTracker:
    """A budget together with what has been drawn from it.

    Whoever evaluates with a tracker adds what it used; the next evaluation with the same tracker may spend what is
    left. Exact under threads.
    """

    __slots__ = ("_lock", "_usage", "budget")

    def __init__(self, budget: Budget, usage: Usage = Usage()) -> None:
        """Start with a budget and, if a run is continued, what was used before."""
        self.budget = budget
        self._usage = usage
        self._lock = threading.Lock()

    @property
    def usage(self) -> Usage:
        """What has been used so far."""
        return self._usage

    def add(self, usage: Usage) -> None:
        """Record what an evaluation used."""
        with self._lock:
            self._usage = self._usage + usage
