"""Limits of a run as gauges: what is used, what is held for calls under way, what is left.

A row of the list has four small ones, from the columns of the index alone: there are as many as rows times four, so
they hold no more than the list draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from watchkeeper.core.meters import TOLD, LimitMeter
from watchkeeper.core.quantities import format_duration, format_money
from watchkeeper.store.ceilings import SECONDS
from watchkeeper.store.run_index import StoredRun

Ceilings = Mapping[str, float]
"""By name of a limit's field, its ceiling: nano-dollars, a count, or seconds."""

NAMES: Final[Mapping[str, str]] = {"max_cost_usd": "Cost", "max_total_tokens": "Tokens", SECONDS: "Time"}


class Gauge(msgspec.Struct, frozen=True):
    """One limit; used, held and left add up to it unless more was used than it allows.

    Attributes:
        key: The limit's field.
        name: What it is called.
        used: What is used; None if nobody knows, as after a crash.
        presumed: The part of that which is a worst case, because nobody knows what it came to.
        held: What is reserved for calls under way.
        left: What is left; None if that is not known, or there is no limit.
        limit: The limit; None without one.
        said: The same in words, by name.
        reached: Whether it ended the run.
    """

    key: str
    name: str
    used: float | None
    presumed: float
    held: float
    left: float | None
    limit: float | None
    said: dict[str, str]
    reached: bool = False


class Use(msgspec.Struct):
    """What a run has used: by a limit's field, in the units of its ceiling."""

    used: dict[str, float | None] = {}
    presumed: dict[str, float] = {}
    held: dict[str, float] = {}


def use_of(run: StoredRun) -> Use:
    """Return what a run has used by its record that its limits count; nothing is known of one that has not ended."""
    usage, earlier = run.usage, run.earlier or {}
    before: Mapping[str, Any] = earlier.get("usage") or {}
    use = Use({SECONDS: _less(run.seconds, earlier.get("seconds"))})
    for meter in TOLD:
        use.used[meter.field] = _less(_used(meter, usage), _used(meter, before))
        lost = _less(_used(meter, (usage or {}).get("presumed")), _used(meter, before.get("presumed")))
        if lost:
            use.presumed[meter.field] = lost
    use.used["max_turns"] = _less(run.turns, earlier.get("turns"))
    return use


def _less(value: float | None, part: float | None) -> float | None:
    return None if value is None else value - (part or 0)


def _used(meter: LimitMeter, usage: Any) -> float | None:
    """Return what a meter has counted; tokens stand in a mapping of their own."""
    if not isinstance(usage, Mapping):
        return None
    counts = cast("Mapping[str, Any]", usage)
    tokens: Mapping[str, Any] = counts.get("tokens") or {}
    if meter.usage == "tokens.total":
        return int(tokens.get("input_tokens", 0)) + int(tokens.get("output_tokens", 0))
    found = (tokens if meter.usage.startswith("tokens.") else counts).get(meter.column)
    return found if isinstance(found, int) else None


def gauges_of(ceilings: Ceilings, use: Use, reached: str | None = None) -> tuple[Gauge, ...]:
    """Return a gauge for every limit that is set, in the order in which limits are told, then the time."""
    fields = [(meter.field, meter.units.capitalize()) for meter in TOLD] + [(SECONDS, "Time")]
    return tuple(
        gauge(field, NAMES.get(field, name), ceilings, use, reached) for field, name in fields if field in ceilings
    )


def gauge(field: str, name: str, ceilings: Ceilings, use: Use, reached: str | None) -> Gauge:
    """Return the gauge of one limit."""
    used, limit = use.used.get(field), ceilings.get(field)
    held, presumed = use.held.get(field, 0), use.presumed.get(field, 0)
    left = None if used is None or limit is None else max(0, limit - used - held)
    amounts = {"used": used, "presumed": presumed, "held": held, "left": left, "limit": limit}
    words = {key: _words(field, value) for key, value in amounts.items()}
    if limit is None:
        words["limit"] = "no limit"
    hit = reached is not None and (reached == field or (reached == "deadline" and field == SECONDS))
    return Gauge(field, name, used, presumed, held, left, limit, words, hit)


def _words(field: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    if field == SECONDS:
        return format_duration(value)
    meter = next(each for each in TOLD if each.field == field)
    return meter.figure(int(value))


# --- the four bars of a row ------------------------------------------------------------------------------------------


class Small(msgspec.Struct, frozen=True, gc=False):
    """One bar of a row.

    Attributes:
        used: How far it reaches, from 0 to 1; None without a limit, or if nobody knows.
        words: What is used, in words.
        limit: The limit in words; empty without one.
        above: Without one, the limit over all items, of an item that has one above it.
        reached: Whether it ended the run.
    """

    used: float | None
    words: str
    limit: str
    above: str = ""
    reached: bool = False


NO_CEILINGS: Final[Mapping[str, float]] = {}


def small_gauges(run: StoredRun, over_items: StoredRun | None = None) -> tuple[Small, ...]:
    """Return the bars of a stored run; of an item, with the run over all items that is above it."""
    reached = None if run.stop is None else run.stop.get("limit")
    ceilings = run.ceilings or NO_CEILINGS
    above = NO_CEILINGS if over_items is None else over_items.ceilings or NO_CEILINGS
    limits = ceilings, above
    used = use_of(run).used if run.earlier else _columns(run)
    return (
        _small("max_cost_usd", used["max_cost_usd"], limits, reached, _money),
        _small("max_total_tokens", used["max_total_tokens"], limits, reached, _short_count),
        _small("max_steps", used["max_steps"], limits, reached, _short_count),
        _small(SECONDS, used[SECONDS], limits, reached, format_duration),
    )


def _columns(run: StoredRun) -> Mapping[str, float | None]:
    """Return the same as `use_of` for a run all of whose use its limits count; there are many of them."""
    used = {"max_cost_usd": run.cost_nanos, "max_total_tokens": run.tokens, "max_steps": run.steps}
    return {**used, SECONDS: run.seconds}


def _small(
    field: str,
    used: float | None,
    limits: tuple[Mapping[str, float], Mapping[str, float]],
    reached: Any,
    write: Callable[[float], str],
) -> Small:
    limit, above = (each.get(field) for each in limits)
    share = None if used is None or not limit else min(1.0, round(used / limit, 3))
    hit = reached == field or (reached == "deadline" and field == SECONDS)
    own, outer = ("" if each is None else _limit(each, write) for each in (limit, above))
    return Small(share, "unknown" if used is None else write(used), own, "" if own else outer, hit)


@lru_cache(256)
def _limit(amount: float, write: Callable[[float], str]) -> str:
    """Write a limit; thousands of runs have the same."""
    return write(amount)


def _money(amount: float) -> str:
    return format_money(int(amount))


def _short_count(amount: float) -> str:
    """Write a count in little room; digits that are not shown are cut, so that it never looks like its limit."""
    count = int(amount)
    if count < 10_000:
        return f"{count:,}"
    return f"{count // 1000:,}k" if count < 1_000_000 else f"{count // 10_000 / 100:g}M"
