"""The table of all incidents, as it is printed and as it stands in the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.incidents import fan_out, ping_pong, recursive_bill, retry_storm, self_correction, tool_cascade
from benchmarks.incidents.replay import Comparison, Replay, compare

REPLAYS: Final[tuple[Replay, ...]] = (
    self_correction.REPLAY,
    recursive_bill.REPLAY,
    retry_storm.REPLAY,
    ping_pong.REPLAY,
    tool_cascade.REPLAY,
    fan_out.REPLAY,
)
HEAD: Final = ("incident", "before: calls", "before: cost", "ceiling", "after: calls", "after: cost", "stopped by")


def comparisons() -> list[Comparison]:
    """Replay every incident both ways."""
    return [compare(replay) for replay in REPLAYS]


def table(rows: Sequence[Comparison]) -> list[str]:
    """Return the lines of a Markdown table with every incident, before and after."""
    cells = [HEAD, *(written(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def written(row: Comparison) -> tuple[str, ...]:
    """Return the cells of one incident."""
    return (
        row.name,
        f"{row.executions_before:,}",
        f"${row.usd_before:,.2f}",
        row.ceiling,
        f"{row.executions_after:,}",
        f"${row.usd_after:,.2f}",
        f"`{row.stop_reason}`",
    )
