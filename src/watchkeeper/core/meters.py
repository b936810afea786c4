"""The table of meters: what is known about each limit that is a number.

A meter counts or measures one thing that calls use, such as money, tokens or steps, and holds it against a ceiling.
`METERS` has one row for each. Every part that deals with limits reads this table: validation, the accounts of the
gate, refusals, ledger files, settings, the command line, the budget that tools and observers see. So a new limit that
counts calls is a field of `Limits` and a row here; docs/limits.md says how to write it. The deadline is no meter.

The order of the rows is the order in which admission checks them, and part of the format of ledger files: a new row
goes to the end. This module is data and must never import what uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from watchkeeper.core.errors import StopReason
from watchkeeper.core.quantities import counted, format_money

Calls = Literal["llm", "tool", "child", "retry"]
"""A kind of call at the gate; ``retry`` is any call that repeats a failed one, whatever its kind."""

EVERY_CALL: Final[tuple[Calls, ...]] = ("llm", "tool", "child")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LimitMeter:
    """One limit.

    Attributes:
        field: Its field in `Limits`.
        column: The name of what is used, in accounts and as a column of ledger files.
        reason: The reason of a stop at this limit.
        unit: What is counted, in the singular; ``cost`` for money.
        units: The same in the plural; with an s at the end if empty.
        measures: What it measures: ``money`` or ``tokens``, by a call's estimate and charge; ``calls`` counts calls.
        calls: The kinds of calls that it concerns; a meter that counts calls adds one for each admitted call.
        shared: Whether accounts keep it and children count too; if not, the run's own loop counts.
        zero: Whether a ceiling of 0 has a meaning.
        kept_for_verdict: The least amount to keep for a judge's verdict, of a meter that does not count calls.
        usage: Dotted path of the used amount in `Usage`; the column's name if empty.
        status: The fields of `BudgetStatus` for the ceiling and for the use; if empty, ``field`` and ``column`` with
            ``_used`` appended.
        setting: Name of the setting, from which the environment variable and the option follow; ``field`` if empty.
        option: Help text of the command-line option; empty if there is no such option.
        told: Its sort key in lists of limits for people and models; smaller is earlier.
        verb: The participle for its use, for example ``spent`` or ``taken``.
        left_unit: The noun for what is left, in the singular; ``unit`` if empty.
        left_heading: Its name in a list of remaining amounts; ``units`` if empty.
        remedy: What an agent can do so that it lasts longer.
        occasional: Whether it is used in bursts or not at all: it is shown only after its first use, never projected.
    """

    field: str
    column: str
    reason: StopReason
    unit: str
    units: str = ""
    measures: Literal["money", "tokens", "calls"] = "calls"
    calls: tuple[Calls, ...] = EVERY_CALL
    shared: bool = True
    zero: bool = False
    kept_for_verdict: int = 0
    usage: str = ""
    status: tuple[str, str] = ("", "")
    setting: str = ""
    option: str = ""
    told: int = 100
    verb: str = "used"
    left_unit: str = ""
    left_heading: str = ""
    remedy: str = "Do less per step"
    occasional: bool = False

    def __post_init__(self) -> None:
        """Fill in the names that follow from others."""
        put = object.__setattr__
        put(self, "units", self.units or f"{self.unit}s")
        put(self, "left_heading", self.left_heading or self.units)
        put(self, "usage", self.usage or self.column)
        put(self, "setting", self.setting or self.field)
        if not all(self.status):
            put(self, "status", (self.field, f"{self.column}_used"))

    @property
    def ceiling(self) -> str:
        """The attribute of `Limits` that has the ceiling as a whole number: nano-dollars for money."""
        return "max_cost_nanos" if self.measures == "money" else self.field

    @property
    def is_counted(self) -> bool:
        """Whether it counts calls; if not, an estimate reserves an amount and a charge settles it."""
        return self.measures == "calls"

    def figure(self, number: int) -> str:
        """Write an amount without a unit, except for money: ``$2.00``, ``500,000``."""
        return format_money(number) if self.measures == "money" else f"{number:,}"

    def amount(self, number: int) -> str:
        """Write an amount with its unit: ``$2.00``, ``1 step``, ``500,000 tokens``."""
        return format_money(number) if self.measures == "money" else counted(number, self.unit, self.units)


# fmt: off
METERS: Final = (
    LimitMeter(
        field="max_cost_usd", column="cost_nanos", reason="budget_exceeded", unit="cost", measures="money",
        status=("max_cost_nanos", "cost_nanos"), setting="max_cost", told=4, verb="spent", left_heading="money",
        option="Most dollars for the whole; 'none' lifts a limit.",
    ),
    LimitMeter(
        field="max_total_tokens", column="total_tokens", reason="token_limit_exceeded", unit="token", measures="tokens",
        kept_for_verdict=4096, usage="tokens.total", status=("max_tokens", "tokens_used"), setting="max_tokens", told=1,
        option="Most tokens for the whole, e.g. 500k.",
    ),
    LimitMeter(
        field="max_input_tokens", column="input_tokens", reason="token_limit_exceeded", unit="input token",
        measures="tokens", kept_for_verdict=3072, usage="tokens.input_tokens", told=2,
    ),
    LimitMeter(
        field="max_output_tokens", column="output_tokens", reason="token_limit_exceeded", unit="output token",
        measures="tokens", kept_for_verdict=1024, usage="tokens.output_tokens", told=3,
    ),
    LimitMeter(
        field="max_steps", column="steps", reason="step_limit_exceeded", unit="step", told=6, verb="taken",
        left_heading="calls of any kind", remedy="Get more out of each call",
        option="Most model and tool calls for the whole.",
    ),
    LimitMeter(
        field="max_turns", column="turns", reason="turn_limit_exceeded", unit="turn", shared=False, told=7,
        verb="taken", remedy="Do more in each turn", option="Most model turns of each run.",
    ),
    LimitMeter(
        field="max_tool_calls", column="tool_calls", reason="tool_call_limit_exceeded", unit="tool call",
        calls=("tool",), told=5, verb="made", left_unit="call", remedy="Get more out of each call",
    ),
    LimitMeter(
        field="max_retries", column="retries", reason="retry_budget_exceeded", unit="retry", units="retries",
        calls=("retry",), zero=True, told=8, occasional=True, option="Most retries for the whole; [20 for each run].",
    ),
)
# fmt: on
"""A row for every limit, in the order of admission."""

TOLD: Final = tuple(sorted(METERS, key=lambda meter: meter.told))
"""The same rows in the order in which they are shown to people and models."""

SHARED: Final = tuple(meter for meter in METERS if meter.shared)
"""The rows that accounts keep, in the order of admission."""

BY_FIELD: Final[Mapping[str, LimitMeter]] = {meter.field: meter for meter in METERS}
"""The rows by the field in `Limits`."""

NO_CEILINGS: Final[Mapping[str, Any]] = dict.fromkeys(BY_FIELD)
"""None for every field of `Limits` that is a numeric ceiling."""

UNLIMITED_COUNTS: Final[Mapping[str, tuple[Calls, ...]]] = {
    **dict.fromkeys(("cached_tokens", "cache_write_tokens", "reasoning_tokens"), ()),
    "model_calls": ("llm",),
    **dict.fromkeys(("presumed_calls", "presumed_input_tokens", "presumed_output_tokens", "presumed_cost_nanos"), ()),
}
"""What accounts count beside the meters, without a limit: by column, the calls that add one when they are admitted."""

COLUMNS: Final = tuple(dict.fromkeys([*(meter.column for meter in SHARED), *UNLIMITED_COUNTS]))
"""Everything that accounts count, in the order of their lists: what has a limit, then the rest."""
