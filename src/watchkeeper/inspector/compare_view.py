"""The screen Compare: what differs between two runs, and their steps side by side, up to the first divergence and on.

The steps are those of `store.comparison`, as ``watchkeeper compare`` has them. Of each only the beginning is kept, and
a digest of the whole, so that two long runs can be compared in little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec

from watchkeeper.core.errors import StoreError
from watchkeeper.core.quantities import counted, format_duration, format_money
from watchkeeper.core.secrets import redacted
from watchkeeper.core.text import clipped, one_line, printable
from watchkeeper.inspector.runs_view import Row, row_of, shown
from watchkeeper.inspector.status import status_of
from watchkeeper.store.comparison import Relation, Step, aligned, step_of
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore, StoredEvent

MOST_STEPS: Final = 10_000
"""Further steps of a run are counted and not shown."""

LINE_CHARS: Final = 200
FORK_CHARS: Final = 2_000
"""How much of a step is shown in its row, and where the runs part."""

KINDS: Final[Mapping[str, Literal["prompt", "model", "tool", "told", "verdict"]]] = {
    "prompt_rendered": "prompt",
    "model_replied": "model",
    "tool_invoked": "tool",
    "notice_appended": "told",
    "completion_checked": "verdict",
}


class Cell(msgspec.Struct, frozen=True):
    """One step in its row.

    Attributes:
        seq: Number of its event.
        kind: What it is.
        name: The tool, or the turn with the tools that it asked for.
        detail: Arguments, or what was said, as one line.
        failed: Whether it did not do its work.
        after: How long after the start of its run, in words.
        took: How long it took, in words.
        cost: What it cost, in words; empty for nothing.
    """

    seq: int
    kind: Literal["prompt", "model", "tool", "told", "verdict"]
    name: str
    detail: str
    failed: bool
    after: str
    took: str
    cost: str


class Side(msgspec.Struct, frozen=True):
    """One run where the two part: what it did, and its words."""

    did: str
    words: str


class Beside(msgspec.Struct, frozen=True):
    """Two steps side by side; None where a run has none."""

    relation: Relation
    one: Cell | None
    other: Cell | None


class Fact(msgspec.Struct, frozen=True):
    """One line of the table of differences; the difference is that of the second run to the first."""

    name: str
    one: str
    other: str
    difference: str = ""
    share: str = ""


class CompareView(msgspec.Struct, frozen=True):
    """What the screen Compare shows.

    Attributes:
        runs: Both rows of the list.
        sentence: Where they part and how each ended.
        facts: What differs, and the usual figures.
        steps: Side by side.
        first: Which of them is the first divergence; None without one.
        fork: What each run did there, or None.
        notes: What the comparison does not have.
    """

    runs: tuple[Row, Row]
    sentence: str
    facts: tuple[Fact, ...]
    steps: tuple[Beside, ...]
    first: int | None
    fork: tuple[Side, Side] | None
    notes: tuple[str, ...]


class Steps:
    """The steps of one run, as far as they are shown.

    Attributes:
        cells: What is shown of each.
        keys: What each is compared by; digests are in the place of long texts.
        tools: By tool, how many attempts it made.
        note: What is missing, in words; empty if nothing is.
    """

    def __init__(self, store: RunStore, run: StoredRun) -> None:
        """Read the steps of a run."""
        self.cells: list[Cell] = []
        self.keys: list[Step] = []
        self.tools: dict[str, int] = {}
        self._words: list[str] = []
        self.note = ""
        left = 0
        try:
            for event in store.events(run.run_id):
                step = step_of(event)
                if step is None:
                    continue
                if event.tag == "tool_invoked":
                    self.tools[step.what] = self.tools.get(step.what, 0) + 1
                if len(self.cells) == MOST_STEPS:
                    left += 1
                    continue
                self.keys.append(Step(step.seq, step.what, _digest(step.said), step.name, _digest(step.asked)))
                self.cells.append(_cell(step, event, run))
                self._words.append(_words(step.said))
        except StoreError as error:
            self.note = shown(str(error))
        if left:
            self.note = f"{counted(left, 'further step')} of {run.run_id[:8]} are not shown."

    def side(self, at: int) -> Side:
        """Return what the run did in a step, and its words."""
        if at >= len(self.cells):
            return Side("has no further step", "")
        cell, step = self.cells[at], self.keys[at]
        if cell.kind == "model":
            return Side(f"asked for {shown(step.name)}" if step.name else "answered", self._words[at])
        did = {"prompt": "was asked", "told": "was told", "verdict": "was checked", "tool": f"called {cell.name}"}
        return Side(did[cell.kind], self._words[at])


def compare_view(store: RunStore, one: str, other: str) -> CompareView:
    """Return what the screen Compare shows of two runs.

    Raises:
        StoreError: If one of them is not there, or its file cannot be read.
    """
    runs = store.find(one), store.find(other)
    left, right = Steps(store, runs[0]), Steps(store, runs[1])
    found = aligned(left.keys, right.keys)
    first = next((at for at, (_, _, relation) in enumerate(found.pairs) if relation != "same"), None)
    # Until there both have the same number of steps.
    fork = None if first is None else (left.side(first), right.side(first))
    notes = [note for note in (left.note, right.note) if note]
    if not found.whole:
        notes.append("The two have too little in common: only their beginning is aligned.")
    return CompareView(
        runs=(row_of(runs[0]), row_of(runs[1])),
        sentence=_sentence(runs, len(found.pairs) if first is None else first, fork),
        facts=tuple(_facts(runs, left.tools, right.tools)),
        steps=tuple(
            Beside(relation, None if at is None else left.cells[at], None if beside is None else right.cells[beside])
            for at, beside, relation in found.pairs
        ),
        first=first,
        fork=fork,
        notes=tuple(notes),
    )


def _sentence(runs: tuple[StoredRun, StoredRun], same: int, fork: tuple[Side, Side] | None) -> str:
    ends = "; ".join(f"{name} {_end(run)}" for name, run in zip("AB", runs, strict=True))
    if fork is None:
        return f"All {counted(same, 'step')} are the same. {ends}."
    begin = f"The same for {counted(same, 'step')}. Then" if same else "They differ from the first step on:"
    return f"{begin} A {fork[0].did}, and B {fork[1].did}. {ends}."


def _end(run: StoredRun) -> str:
    words = status_of(run).words
    words = words[0].lower() + words[1:]
    cost = "" if run.ended_at is None else f" at {format_money(run.cost_nanos)}"
    return f"was {words.replace('stopped: ', 'stopped by ')}{cost}" if run.stop else f"is {words}{cost}"


def _facts(runs: tuple[StoredRun, StoredRun], tools: Mapping[str, int], others: Mapping[str, int]) -> Iterator[Fact]:
    """Yield what may differ; the usual figures always, the rest only if it does."""
    for name, get in TEXTS.items():
        one, other = (shown(get(run)) for run in runs)
        if one != other:
            yield Fact(name, one, other)
    for name, value, words in FIGURES:
        yield _figure(name, value(runs[0]), value(runs[1]), words)
    for name in sorted(tools.keys() | others.keys()):
        if tools.get(name, 0) != others.get(name, 0):
            yield _figure(f"calls of {shown(name)}", tools.get(name, 0), others.get(name, 0), _count)


def _figure(name: str, one: float | None, other: float | None, words: Callable[[Any], str]) -> Fact:
    said = ["unknown" if value is None else words(value) for value in (one, other)]
    if one is None or other is None or one == other:
        return Fact(name, said[0], said[1])
    sign = "+" if other > one else "\N{MINUS SIGN}"
    share = f"{sign}{abs(other - one) / one:.0%}" if one else ""
    return Fact(name, said[0], said[1], f"{sign}{words(abs(other - one))}", share)


def _count(value: float) -> str:
    return f"{int(value):,}"


TEXTS: Final[Mapping[str, Callable[[StoredRun], str]]] = {
    "prompt": lambda run: run.prompt,
    "item": lambda run: run.item or "none",
    "model": lambda run: run.model,
    "limits": lambda run: run.limits,
}

FIGURES: Final[tuple[tuple[str, Callable[[StoredRun], float | None], Callable[[Any], str]], ...]] = (
    ("cost", lambda run: run.cost_nanos, format_money),
    ("tokens", lambda run: run.tokens, _count),
    ("steps", lambda run: run.steps, _count),
    ("turns", lambda run: run.turns, _count),
    ("retries", lambda run: (run.usage or {}).get("retries"), _count),
    ("time", lambda run: run.seconds, format_duration),
)
"""Figures that are always shown: the name, the value and how it is written."""


def _digest(text: str) -> str:
    """Return a text, or in the place of a long one something that only the same text gives."""
    return text if len(text) <= LINE_CHARS else sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _cell(step: Step, event: StoredEvent, run: StoredRun) -> Cell:
    fields = event.untyped()
    took, cost, failed = fields.get("duration_ms"), fields.get("cost_nanos"), False
    name, detail = step.what, step.said
    kind = KINDS[event.tag]
    if kind == "model":
        name, detail = f"turn {fields.get('turn')}", f"→ {step.asked}" if step.asked else step.said
    elif kind == "tool":
        detail, failed = step.asked, fields.get("outcome") != "ok"
    elif kind == "verdict":
        failed = fields.get("verdict") == "rejected"
    return Cell(
        seq=event.seq,
        kind=kind,
        name=shown(name),
        detail=one_line(redacted(detail), LINE_CHARS),
        failed=failed,
        after=f"+{format_duration(max(0.0, (event.at - run.started_at).total_seconds()))}",
        took=format_duration(took / 1000) if isinstance(took, int | float) else "",
        cost=format_money(cost) if isinstance(cost, int) and cost else "",
    )


def _words(said: str) -> str:
    """Return what was said in a step, for where two runs part."""
    return printable(clipped(redacted(said), FORK_CHARS)).strip()
