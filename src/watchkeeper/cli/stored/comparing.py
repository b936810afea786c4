"""``watchkeeper compare``: where two stored runs part, and what differs between them."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console

from watchkeeper.cli.console import CUT, print_table, put
from watchkeeper.cli.stored.listing import SHORT_ID, state_in_words
from watchkeeper.core.quantities import counted, format_duration, format_money
from watchkeeper.core.secrets import redacted
from watchkeeper.core.text import one_line
from watchkeeper.store.comparison import Comparison, Step
from watchkeeper.store.run_index import StoredRun

Pair = tuple[StoredRun, StoredRun]
BEFORE: Final = 30
"""How many characters before the first difference of two texts are shown."""


def as_data(runs: Pair, found: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON-able data; the rows are those of ``runs --json``."""

    def step(one: Step | None) -> dict[str, Any] | None:
        return None if one is None else {"seq": one.seq, "what": one.what, "said": one.said}

    first = None if found.first is None else [step(one) for one in found.first]
    tools = {name: list(made) for name, made in found.tools.items()}
    return {
        "runs": [run.as_data() for run in runs],
        "same_steps": found.same,
        "first_difference": first,
        "tools": tools,
    }


def print_compared(console: Console, runs: Pair, found: Comparison) -> None:
    """Print the first difference, then a table of what differs."""
    names = [run.run_id[:SHORT_ID] for run in runs]
    if found.first is None:
        put(console, f"all {counted(found.same, 'step')} are the same")
    else:
        after = f"after {counted(found.same, 'equal step')}" if found.same else "at the first step"
        put(console, ("first difference", "bold"), f" {after}")
        for name, step, said in zip(names, found.first, _texts(*found.first), strict=True):
            if step is None:
                put(console, (f"  {name}  ", "dim"), "has no further step")
            else:
                put(
                    console, (f"  {name}  ", "dim"), f"event {step.seq:,}, ", (one_line(step.what), "bold"), f"  {said}"
                )
    rows = [row for row in _rows(runs, found) if row[1] != row[2]]
    put(console)
    if rows:
        print_table(console, ("", *names), rows)
    else:
        put(console, "prompt, model, limits, state, verdict, turns, calls, tokens, cost and time are the same")


def _texts(one: Step | None, other: Step | None) -> tuple[str, str]:
    """Return what two steps say, each as one line that shows where they differ."""
    texts = [one_line(redacted(step.said)) if step is not None else "" for step in (one, other)]
    differs = (at for at, (left, right) in enumerate(zip(*texts, strict=False)) if left != right)
    alike = one is not None and other is not None and one.what == other.what
    same = next(differs, min(map(len, texts))) if alike else 0
    begin = max(0, same - BEFORE)
    first, second = (("…" if begin else "") + one_line(text[begin:], CUT) for text in texts)
    return first, second


def _rows(runs: Pair, found: Comparison) -> list[tuple[str, str, str]]:
    def row(name: str, *cells: str) -> tuple[str, str, str]:
        return name, cells[0], cells[1]

    return [
        row("prompt", *(one_line(run.prompt) for run in runs)),
        row("model", *(one_line(run.model) for run in runs)),
        row("limits", *(one_line(run.limits) for run in runs)),
        row("state", *(state_in_words(run)[0] for run in runs)),
        row("verdict", *(run.completion or "" for run in runs)),
        row("turns", *(_number(run.turns) for run in runs)),
        *(row(f"calls of {one_line(name, CUT)}", *map(_number, made)) for name, made in found.tools.items()),
        row("tokens", *(_number(run.tokens) for run in runs)),
        row("cost", *("" if run.ended_at is None else format_money(run.cost_nanos) for run in runs)),
        row("took", *("" if run.seconds is None else format_duration(run.seconds) for run in runs)),
    ]


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
