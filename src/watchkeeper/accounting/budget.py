"""The ceilings of an evaluation, a tracker that several evaluations share, and what is left at one moment.

`Budget` is ceilings only, immutable; what was used is `Usage`. `BudgetTracker` holds both together, is safe under
threads, and may be handed from a parent to a child so that both draw from one budget. `BudgetStatus` is a snapshot of
both, for a tool, an observer or a person. Nothing here enforces anything: that is the gate's work, on `Limits`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from operator import attrgetter
from typing import Any, Final

import msgspec

from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import BudgetExceededError
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.meters import BY_FIELD, TOLD, LimitMeter
from watchkeeper.core.quantities import CountLike, MoneyLike, count, money
from watchkeeper.core.type_tags import own_value
from watchkeeper.core.usage import Usage, dollars


@own_value("budget")
@dataclass(frozen=True, slots=True)
class Budget:
    """Ceilings of an evaluation (docs/specification.md, nested execution and trajectory observers).

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
        for meter in _BUDGETED:
            value = getattr(self, meter.field)
            if value is not None and meter.measures == "money":
                money(value, meter.field)
            elif value is not None:
                object.__setattr__(self, meter.field, count(value, meter.field))

    @property
    def max_tokens(self) -> int | None:
        """The total token ceiling, under the name that observers use."""
        return None if self.max_total_tokens is None else int(self.max_total_tokens)

    def as_limits(self) -> Limits:
        """Return limits with these ceilings and none other."""
        ceilings: dict[str, Any] = {name: getattr(self, name, None) for name in BY_FIELD}
        return Limits(deadline=self.deadline, **ceilings)


_BUDGETED: Final = tuple(meter for meter in TOLD if meter.field in Budget.__slots__)
"""The meters that a `Budget` has a ceiling for."""


@own_value("budget_status")
class BudgetStatus(msgspec.Struct, frozen=True, dict=True):
    """What may be spent and what was spent, at one moment (docs/specification.md, trajectory observers).

    A ceiling of None is no ceiling; then what remains is None too. What remains is never negative.

    Attributes:
        deadline: The moment at which the run must be over.
        elapsed_seconds: Time since the run began.
        remaining_seconds: Time left to the deadline, measured on the monotonic clock; None without a deadline.
        max_tokens: Ceiling of input and output tokens together.
        tokens_used: Input and output tokens used.
        max_tool_calls: Ceiling of admitted tool calls.
        tool_calls_used: Admitted tool calls.
        max_cost_nanos: Ceiling in nano-dollars.
        cost_nanos: Nano-dollars spent; None if something that was used has no known price.
        max_steps: Ceiling of admitted calls of any kind.
        steps_used: Admitted calls of any kind.
        max_input_tokens: Ceiling of input tokens.
        input_tokens_used: Input tokens used.
        max_output_tokens: Ceiling of output tokens.
        output_tokens_used: Output tokens used.
        max_retries: Ceiling of calls that repeat a failed one.
        retries_used: Calls that repeated a failed one.
        max_turns: Ceiling of model turns; None also where nobody said how many there were.
        turns_used: Model turns taken.
        others: Limits that have no fields here, as in ``counts``.
    """

    deadline: Deadline | None = None
    elapsed_seconds: float = 0.0
    remaining_seconds: float | None = None
    max_tokens: int | None = None
    tokens_used: int = 0
    max_tool_calls: int | None = None
    tool_calls_used: int = 0
    max_cost_nanos: int | None = None
    cost_nanos: int | None = 0
    max_steps: int | None = None
    steps_used: int = 0
    max_input_tokens: int | None = None
    input_tokens_used: int = 0
    max_output_tokens: int | None = None
    output_tokens_used: int = 0
    max_retries: int | None = None
    retries_used: int = 0
    max_turns: int | None = None
    turns_used: int = 0
    others: tuple[tuple[str, int, int], ...] = ()

    @cached_property
    def counts(self) -> Sequence[tuple[str, int, int]]:
        """Name in `Limits`, what is used and the ceiling, of every limit that holds but the deadline.

        Money is in nano-dollars, and is missing while nobody knows what was spent. Retries are told from the first one
        on: where nothing fails, nobody need think of them.
        """
        rows = zip(SHOWN, _ceilings_of(self), _uses_of(self), strict=True)
        counts = [(meter.field, used, most) for meter, most, used in rows if is_told(meter, used, most)]
        return [*counts, *self.others]

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """What share of each limit is used, from 0 on, by the limit's name in `Limits`."""
        used: dict[str, float] = {}
        if self.remaining_seconds is not None:
            whole = self.elapsed_seconds + self.remaining_seconds
            used["deadline"] = self.elapsed_seconds / whole if whole > 0 else 1.0
        for name, amount, most in self.counts:
            used[name] = amount / most if most else 1.0
        return used

    @property
    def remaining_steps(self) -> int | None:
        """Calls of any kind left under the ceiling."""
        return _left(self.max_steps, self.steps_used)

    @property
    def remaining_tokens(self) -> int | None:
        """Tokens left under the ceiling."""
        return _left(self.max_tokens, self.tokens_used)

    @property
    def remaining_tool_calls(self) -> int | None:
        """Tool calls left under the ceiling."""
        return _left(self.max_tool_calls, self.tool_calls_used)

    @property
    def max_cost_usd(self) -> Decimal | None:
        """Ceiling in dollars."""
        return dollars(self.max_cost_nanos)

    @property
    def cost_usd(self) -> Decimal | None:
        """Dollars spent; None if something that was used has no known price."""
        return dollars(self.cost_nanos)

    @property
    def remaining_cost_usd(self) -> Decimal | None:
        """Dollars left under the ceiling; None also if the cost so far is unknown."""
        return dollars(_left(self.max_cost_nanos, self.cost_nanos))


def _left(most: int | None, used: int | None) -> int | None:
    return None if most is None or used is None else max(most - used, 0)


SHOWN: Final = tuple(meter for meter in TOLD if meter.status[0] in BudgetStatus.__struct_fields__)
"""The meters that have fields of their own in `BudgetStatus`."""

_ceilings_of: Final = attrgetter(*(meter.status[0] for meter in SHOWN))
_uses_of: Final = attrgetter(*(meter.status[1] for meter in SHOWN))


def is_told(meter: LimitMeter, used: int | None, most: int | None) -> bool:
    """Return whether a report of the budget names a limit: it is in force, and its use is known."""
    return most is not None and used is not None and bool(used or not meter.occasional)


class BudgetTracker:
    """A budget together with what has been used of it.

    Each evaluation with a tracker adds its usage; the next evaluation with the same tracker may spend the rest. Exact
    under threads.
    """

    __slots__ = ("__weakref__", "_lock", "_usage", "budget")

    def __init__(self, budget: Budget, usage: Usage | None = None) -> None:
        self.budget = budget
        self._usage = usage or Usage()
        self._lock = threading.Lock()

    @property
    def usage(self) -> Usage:
        """What has been used so far."""
        return self._usage

    def add(self, usage: Usage) -> None:
        """Record what an evaluation used; an evaluation that begins later may spend what that leaves."""
        with self._lock:
            self._usage = self._usage + usage

    def remaining(self) -> Budget:
        """Return the budget that is left.

        Raises:
            BudgetExceededError: If one of its ceilings is used up.
        """
        used, limits = self._usage, self.budget.as_limits()
        left: dict[str, Any] = {}
        for meter in _BUDGETED:
            most = limits.ceiling(meter.ceiling)
            if most is None:
                continue
            spent: int = attrgetter(meter.usage)(used) or 0
            if spent >= most:
                raise BudgetExceededError(
                    f"the shared budget is used up: {meter.field}, {meter.figure(spent)} of {meter.figure(most)};"
                    " give a tracker with a larger budget"
                )
            left[meter.field] = dollars(most - spent) if meter.measures == "money" else most - spent
        return Budget(self.budget.deadline, **left)
