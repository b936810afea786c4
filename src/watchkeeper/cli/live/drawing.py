"""How the live view looks: a pure function from a `View` and a width to lines, each with its styles.

A line never says more than fits: figures get shorter first, then what matters least is left out, and what is still too
long is cut by whoever prints it. Nothing depends on colour alone: each part of a bar has a sign of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from watchkeeper.cli.console import CUT, Part
from watchkeeper.cli.live.state import UnderWay, View
from watchkeeper.core.quantities import counted, format_duration, format_money
from watchkeeper.core.text import clipped, one_line
from watchkeeper.runtime.gauges import Gauge, named

BARS: Final = (10, 30)
"""The fewest and the most columns of a bar."""

NAME_CUT: Final = 40
"""Characters of the name of one thing that goes on."""

HIGH, FULL = 0.7, 0.9
"""From which share on a gauge is yellow, and red."""

SEVERITY_STYLES: Final = {"info": "dim", "caution": "yellow", "warning": "red"}


@dataclass(frozen=True, slots=True)
class Signs:
    """The parts of a bar, one character each."""

    used: str
    presumed: str
    reserved: str
    left: str


BLOCKS: Final = Signs("█", "▓", "▒", "░")
ASCII: Final = Signs("#", "?", "+", ".")
"""For terminals that cannot show blocks."""


def lines_of(view: View, width: int, signs: Signs = BLOCKS) -> list[list[Part]]:
    """Return the lines of the live view.

    Args:
        view: What there is to see.
        width: Columns of the terminal.
        signs: What bars are made of.
    """
    labels = ["now", "ends", *(["items"] if view.items else []), *(["advice"] if view.advice else [])]
    names = [gauge.name for gauge in view.gauges]
    label = max(map(len, [*labels, *names])) + 2
    lines = [_head(view, width)]
    if view.items is not None:
        lines.append([_labelled("items", label), *_items(view)])
    least, most = BARS
    bar = min(max((width - label) // 4, least), most)
    lines += [
        [_labelled(name, label), *_gauge(gauge, bar, width - label - bar - 7, signs)]
        for name, gauge in zip(names, view.gauges, strict=True)
    ]
    if not view.ended:
        lines.append([_labelled("now", label), _going_on(view.under_way)])
        if view.end is not None:
            lines.append([_labelled("ends", label), _ending(*view.end, view.now)])
    if view.advice is not None:
        said = view.advice
        style = SEVERITY_STYLES.get(said.severity, "")
        summary = one_line(said.summary, 2 * CUT)
        lines.append(
            [_labelled("advice", label), (f"{one_line(said.source)} [{said.severity}]", style), f": {summary}"]
        )
    return lines


def _labelled(label: str, width: int) -> Part:
    return (label.ljust(width), "dim")


def _head(view: View, width: int) -> list[Part]:
    """Return the first line: name and model, as much of them as fits, then how it stands, how long and how much."""
    cost = "cost unknown" if view.cost_nanos is None else format_money(view.cost_nanos)
    figures = f"{_length(view.elapsed)}, {cost}"
    ended = f"ended: {view.ended}, " if view.ended else ""
    model = f" with {one_line(view.model)}" if view.model else ""
    room = max(width - len(ended) - len(figures) - 2, 8)
    name = one_line(view.name)
    said = clipped(name, room) if len(name) >= room - 6 else name + clipped(model, room - len(name))
    style = "green" if view.ended == "done" else "yellow"
    return [(said, "bold"), "  ", *([(ended, style)] if ended else []), figures]


def _items(view: View) -> list[Part]:
    items = view.items
    assert items is not None
    failed: Part = (f"{items.failed:,} failed", "red") if items.failed else "0 failed"
    return [f"{items.done:,} done, ", failed, f", {items.left:,} left of {items.total:,}"]


def _going_on(under_way: Sequence[UnderWay]) -> str:
    """Say what goes on, the oldest first, since when."""
    if not under_way:
        return "between calls"
    said = [
        " ".join(part for part in (each.what, one_line(each.name, NAME_CUT), f"for {_length(each.seconds)}") if part)
        for each in under_way
    ]
    shown = said[:3]
    more = len(said) - len(shown)
    return ", ".join(shown) + (f" and {counted(more, 'other')}" if more else "")


def _ending(column: str, at: datetime, now: datetime) -> str:
    """Say which limit ends the run first, and when."""
    return f"{named(column)} first, at about {_at(at, now)}"


def _at(moment: datetime, now: datetime) -> str:
    """Write a moment as people do: the time of day, with the day if that is another one."""
    if moment.date() == now.date():
        return f"{moment:%H:%M}"
    return f"{moment:%a %H:%M}" if moment - now < timedelta(days=6) else f"{moment:%Y-%m-%d}"


def _length(seconds: float) -> str:
    """Write a length of time in whole seconds, so that it does not flicker."""
    return f"{int(max(seconds, 0.0))}s" if seconds < 60 else format_duration(int(seconds))


# --- gauges -----------------------------------------------------------------------------------------------------------


def _gauge(gauge: Gauge, bar: int, room: int, signs: Signs) -> list[Part]:
    """Return bar, share and figures of a limit, the longest figures that fit."""
    style = "red" if gauge.share >= FULL else "yellow" if gauge.share >= HIGH else "green"
    used, presumed, reserved, left = _cells(gauge, bar)
    filled = signs.used * used + signs.presumed * presumed
    rest: list[Part] = [(signs.reserved * reserved, "cyan"), (signs.left * left, "dim")]
    percent = f"{int(100 * gauge.share):3}%"
    figures = next((said for said in _figures(gauge) if len(said) <= room), "")
    return [(filled, style), *rest, f" {percent}  {figures}"]


def _cells(gauge: Gauge, bar: int) -> tuple[int, int, int, int]:
    """Divide a bar: used, presumed, reserved, left; what there is has a column at least."""
    most = max(gauge.most, 1)
    used = min(gauge.used, most)
    taken = min(-(-used * bar // most), bar - 1 if used < most else bar)
    presumed = min(-(-gauge.presumed * bar // most), taken)
    reserved = min(-(-gauge.reserved * bar // most), bar - taken)
    return taken - presumed, presumed, reserved, bar - taken - reserved


def _figures(gauge: Gauge) -> Iterator[str]:
    """Yield the figures of a limit, from all that there is to say to what matters most."""
    full = _writer(gauge.column)
    yield _all_figures(gauge, full)
    write = _short if full is _plain else full
    yield _all_figures(gauge, write)
    used, most, left = write(gauge.used), write(gauge.most), write(gauge.left)
    if gauge.reserved:
        yield f"{used} of {most}, {write(gauge.reserved)} reserved, {left} left"
    yield f"{used} of {most}, {left} left"
    yield f"{used} of {most}"
    yield used


def _all_figures(gauge: Gauge, write: Callable[[int], str]) -> str:
    presumed = f" ({write(gauge.presumed)} presumed)" if gauge.presumed else ""
    reserved = f", {write(gauge.reserved)} reserved" if gauge.reserved else ""
    return f"{write(gauge.used)} of {write(gauge.most)}{presumed}{reserved}, {write(gauge.left)} left"


def _writer(column: str) -> Callable[[int], str]:
    """Return what writes the figures of a limit."""
    if column == "time":
        return lambda milliseconds: _length(milliseconds / 1000)
    return format_money if column == "cost_nanos" else _plain


def _plain(number: int) -> str:
    return f"{number:,}"


def _short(number: int) -> str:
    """Write a number in three digits and a letter, rounded down: ``999``, ``61.2k``, ``2M``."""
    for unit, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= unit:
            digits = 0 if number >= 100 * unit else 1 if number >= 10 * unit else 2
            shown = number * 10**digits // unit / 10**digits
            return f"{shown:.{digits}f}".removesuffix(".00").removesuffix(".0") + letter
    return str(number)
