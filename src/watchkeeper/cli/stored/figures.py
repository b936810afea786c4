"""``watchkeeper report``: what stored runs come to, as tables, as JSON, or as CSV for a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, TextIO

from rich.console import Console

from watchkeeper.cli.console import cut_to_fit, print_table, put
from watchkeeper.cli.stored.listing import print_totals
from watchkeeper.core.quantities import counted, format_duration, format_money
from watchkeeper.core.secrets import redacted
from watchkeeper.core.text import one_line, printable
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.store.figures import Figures
from watchkeeper.store.states import words_for

Row = Mapping[str, Any]
ROWS: Final = 10
"""How many rows of a table are printed; --json and --csv have all."""

FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""

FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "seconds": format_duration,
    "slowest_seconds": format_duration,
    "mean_seconds": format_duration,
}

HEADS: Final = {
    "not_done": "not done",
    "not_run": "not run",
    "run": "calls",
    "input_tokens": "input",
    "output_tokens": "output",
    "cost_usd": "cost",
    "seconds": "took",
    "slowest_seconds": "slowest",
    "mean_seconds": "mean",
}

TABLES: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("ends", "end", ("runs",)),
    ("verdicts", "verdict", ("runs",)),
    ("prompts", "prompt", ("runs", "not_done", "tokens", "cost_usd", "seconds")),
    ("models", "model", ("calls", "failed", "input_tokens", "output_tokens", "cost_usd", "seconds")),
    ("model_failures", "fault", ("times",)),
    ("assessments", "source", ("severity", "times")),
)
"""Each table's key in the data, its first column, and the others."""


def print_figures(console: Console, figures: Figures) -> None:
    """Print a table for each kind of figure that there is."""
    data = figures.as_data()
    print_totals(console, figures.totals, figures.totals.runs)
    put(console, (counted(figures.retries, "retry", "retries"), "dim"))
    if figures.not_whole:
        put(console, (f"{counted(figures.not_whole, 'log')} cannot be read whole; their calls are missing", "yellow"))
    for key, name, columns in TABLES:
        rows = data[key]
        if key == "ends":
            rows = [{**row, "end": words_for(row["end"])} for row in rows]
        _print(console, name, name, columns, rows)
    tools = [dict(row) for row in data["tools"]]
    for row in tools:
        row["run"] = row["calls"] - row["not_run"]
    ran = [{**row, "mean_seconds": row["seconds"] / row["run"]} for row in tools if row["run"]]
    columns = ("run", "failed", "mean_seconds", "slowest_seconds")
    _print(console, "slowest tools", "tool", columns, sorted(ran, key=lambda row: -row["mean_seconds"]))
    _print(console, "tools that failed", "tool", columns, [row for row in ran if row["failed"]])
    refused = sorted((row for row in tools if row["not_run"]), key=lambda row: -row["not_run"])
    _print(console, "tools that were not run", "tool", ("calls", "not_run"), refused)


def _print(console: Console, head: str, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Print a table, each row one line, figures at the right."""
    if not rows:
        return
    put(console)
    heads = [HEADS.get(column, column) for column in columns]
    cells = [[_cell(column, row) for column in columns] for row in rows[:ROWS]]
    widths = [max(len(line[at]) for line in (heads, *cells)) for at in range(len(columns))]

    def right(line: Sequence[str]) -> list[str]:
        return [text.rjust(width) for text, width in zip(line, widths, strict=True)]

    table = [(one_line(str(row[name])), *right(line)) for row, line in zip(rows, cells, strict=False)]
    shown = [head, *right(heads)]
    print_table(console, shown, cut_to_fit(shown, table, console.width, [0], 0) if console.is_terminal else table)
    if len(rows) > ROWS:
        put(console, (f"and {len(rows) - ROWS:,} more; --json has all", "dim"))


def _cell(column: str, row: Row) -> str:
    value = row[column]
    if column == "cost_usd":
        known = format_money(int(Decimal(value) * NANOS_PER_USD))
        return f"≥ {known}" if row["unpriced"] else known  # the cost of some calls is not known
    if column in FORMATS:
        return FORMATS[column](value)
    return f"{value:,}" if isinstance(value, int) else one_line(str(value))


def write_csv(out: TextIO, figures: Figures) -> None:
    """Write every row of every table: the table, the name, then the figures that this table has.

    No cell is a formula to a spreadsheet: names come from models and servers.
    """
    data = figures.as_data()
    rows = [("totals", "", data.pop("totals"))]
    for table, listed in data.items():
        rows += [(table, row[next(iter(row))], dict(list(row.items())[1:])) for row in listed]
    columns = list(dict.fromkeys(column for *_, row in rows for column in row))
    written = csv.writer(out, lineterminator="\n")
    written.writerow(["table", "name", *columns])
    for table, name, row in rows:
        written.writerow([table, *map(_harmless, (name, *(row.get(column, "") for column in columns)))])


def _harmless(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(redacted(value))
    return f"'{text}" if text.startswith(FORMULA) else text
