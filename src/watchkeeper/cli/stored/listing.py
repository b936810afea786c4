"""``watchkeeper runs``: stored runs, one line each, and what they come to together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.text import Text

from watchkeeper.cli.console import cut_to_fit, print_table, put, styled
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.quantities import counted, format_duration, format_money, how_long_ago
from watchkeeper.core.text import one_line
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore
from watchkeeper.store.selection import ORDERS, Selection, Totals
from watchkeeper.store.states import Kind, state_of

SHORT_ID: Final = 8
"""Characters of a run's id that are shown to people."""

WIDE: Final = 100
"""From how many columns on a row has the year and the seconds of its start."""

NARROW: Final = 72
"""Below how many columns a row has no model, and not how long the run took."""


STYLES: Final[Mapping[Kind, str]] = {
    "done": "green",
    "unverified": "yellow",
    "stopped": "yellow",
    "waiting": "yellow",
    "failed": "red",
    "lost": "red",
    "running": "cyan",
    "superseded": "dim",
}


def since_time(text: str | None) -> datetime | None:
    """Return when a time like ``12h`` ago was; None for None.

    Raises:
        LimitsError: If that is no length of time.
    """
    return None if text is None else SYSTEM_CLOCK.now() - how_long_ago(text, "--since")


def order_named(name: str) -> str:
    """Return the name of an order, if it is one.

    Raises:
        ConfigurationError: If it is none.
    """
    if name not in ORDERS:
        raise ConfigurationError(f"--sort={name!r} must be one of {', '.join(ORDERS)}")
    return name


def taken(store: RunStore, runs: Iterable[StoredRun], wanted: Selection) -> list[StoredRun]:
    """Return the runs that are wanted; one over many that waits for a person has failed if one of its items has."""

    def has_failed_items(run: StoredRun) -> bool:
        if not wanted.failed or run.items is None or state_of(run).kind != "waiting":
            return False
        return any(state_of(each).has_failed for each in store.children(run.run_id))

    other = replace(wanted, failed=False)
    return [run for run in runs if wanted.takes(run) or (other.takes(run) and has_failed_items(run))]


def nothing_in(where: str, runs: int) -> str:
    """Say that nothing is listed of so many runs."""
    return f"no run in {where} matches, of {counted(runs, 'run')}" if runs else f"no runs in {where}"


def print_runs(console: Console, runs: Sequence[StoredRun]) -> None:
    """Print stored runs, one row each; items of a run over many by their labels.

    In a terminal each row is one line: names are shortened, then cut, the state of a run last.
    """
    items = any(run.item is not None for run in runs)
    wide = console.width >= WIDE
    start = ("started (UTC)", "%Y-%m-%d %H:%M:%S") if wide else ("UTC", "%m-%d %H:%M")
    columns = ("run", start[0], "item" if items else "prompt", "state", "cost", "model", "took")
    rows: list[tuple[Text | str, ...]] = [
        (
            run.run_id[:SHORT_ID],
            "" if run.damage is not None else run.started_at.strftime(start[1]),
            one_line(run.item or "" if items else _prompt(run, wide)),
            styled(state_in_words(run)),
            "" if run.ended_at is None else format_money(run.cost_nanos),
            one_line(run.model if wide else run.model.rpartition(":")[2]),
            "" if run.seconds is None else format_duration(run.seconds),
        )
        for run in runs
    ]
    order = (0, 1, 2, 3, 4) if console.width < NARROW else (0, 1, 2, 5, 3, 4, 6)
    heads, rows = [columns[at] for at in order], [tuple(row[at] for at in order) for row in rows]
    if console.is_terminal:
        names = [at for at, head in enumerate(heads) if head in ("item", "prompt", "model")]
        rows = cut_to_fit(heads, rows, console.width, names, heads.index("state"))
    print_table(console, heads, rows)


def _prompt(run: StoredRun, wide: bool) -> str:
    """Return the name of a run's prompt, without its namespace unless there is room."""
    name = run.prompt if wide else run.prompt.rpartition("/")[2]
    return name if run.items is None else f"{name} ×{run.items}"


def print_totals(console: Console, totals: Totals, shown: int) -> None:
    """Print what runs come to together, ``shown`` of which stand above."""
    of = f"{shown:,} of " if shown < totals.runs else ""
    counts = {
        "done": totals.done,
        "not done": totals.failed,
        "parked": totals.parked,
        "running": totals.running,
    }
    states = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
    cost = format_money(totals.cost_nanos)
    if totals.unpriced:
        cost += f" (the cost of {totals.unpriced:,} is unknown)"
    figures = f"{counted(totals.tokens, 'token')}, {cost}, {format_duration(totals.seconds)}"
    if totals.open:
        figures += f"; {totals.open:,} not counted yet"
    put(console, (f"{of}{counted(totals.runs, 'run')}: {states}; {figures}", "dim"))


def state_in_words(run: StoredRun) -> tuple[str, str]:
    """Return the state of a stored run in a few words, and its style."""
    state = state_of(run)
    if state.kind == "running" and run.process is not None:
        return f"{state.words}, process {run.process}", STYLES[state.kind]
    if state.kind == "lost" and run.not_resumable:
        return f"{state.words}, not resumable", STYLES[state.kind]
    return state.words, STYLES[state.kind]
