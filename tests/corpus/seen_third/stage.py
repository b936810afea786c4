"""What the kinds of this package share: a recorder of calls, and the labels that follow from what it is told.

Each call is recorded with what a reader needs in order to label it: whether it is fruitful, whether it touches things
outside the task, what a failure was caused by. `stalled_since`, `cascading_since` and `drifting_since` apply the
definitions of the docs to that. A shape (a method ``drift_*``, ``stall_*``, ``cascade_*`` or ``healthy_*``) plays one
whole trajectory; where chance made it miss its label, it is played anew.
"""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final, TypeVar, cast

from tests.corpus.trace import Label, Trace, TracedCall

T = TypeVar("T")

CYCLE: Final[Mapping[str, int]] = {"drift": 12, "stall": 6, "cascade": 5, "healthy": 15}
"""How many trajectories of each sort are in one round of a kind."""

LABELS: Final[Mapping[str, Label]] = {
    "drift": "drifting",
    "stall": "stalled",
    "cascade": "cascading",
    "healthy": "healthy",
}

UNSTEADY: Final = re.compile(r"\b\d\d:\d\d(:\d\d)?\b|\b(?=\d*[a-f])[0-9a-f]{8,}\b|\b\d+(\.\d+)? ?m?s\b")

ENVELOPES: Final = ("plain", "plain", "plain", "time", "took", "exit", "request", "tags")
"""What tools put around their results; it differs at every call by itself, and says nothing."""

REASONS: Final = ("Check the state", "Continue", "Next one", "Look closer", "As planned", "Verify", "Get details")

GIVEN = (
    "Ana Bo Chidi Dora Emre Farah Goran Hilde Ines Jun Kofi Lena Marek Nadia Olu Petra Quim Rosa Sven Tariq Uma Vera"
)
FAMILY = "Abara Brandt Costa Dlamini Ek Ferrari Grabow Hoang Ito Jansen Kaya Lund Moreau Novak Okoye Petit Rossi Silva"


@dataclass(frozen=True, slots=True)
class Step:
    """A call with what its label depends on.

    Attributes:
        new: Whether it is fruitful, waiting apart.
        out: Whether all it touches is outside the task; None if it touches nothing.
        change: Whether it changes what it touches.
        cause: What a failed call failed by; empty for a call that is no failure by the definitions.
        needs: The cause that a success of this call shows to be gone.
        wait: What it waits for, if it looks at a state that may move.
    """

    call: TracedCall
    new: bool
    out: bool | None
    change: bool
    cause: str
    needs: str
    wait: str


def stalled_since(steps: Sequence[Step]) -> int | None:
    """Return the number of the call at which a stall begins."""
    fruitful: list[bool] = []
    looks: dict[str, tuple[int, float, float]] = {}
    begins: list[int] = []
    for number, step in enumerate(steps, 1):
        at, counts = step.call.at, step.new
        if step.wait:
            seen, began, last = looks.get(step.wait, (0, at, at))
            if step.new or not seen:
                seen, began, counts = 0, at, True
            elif at - last >= 20:
                counts = seen < 10 and at - began <= 900
                if not counts:
                    begins.append(number)
            looks[step.wait] = (seen + 1, began, at)
        fruitful.append(counts)
    begins += [first + 1 for first in range(len(steps)) if _lasts(fruitful[first:])]
    return min(begins, default=None)


def _lasts(fruitful: Sequence[bool]) -> bool:
    """Whether a stall begins with the first of these calls."""
    fruits = 0
    for number, counts in enumerate(fruitful):
        fruits += counts
        if fruits > 1 or fruitful[0]:
            return False
        if number >= 5 and not counts:
            return True
    return False


def cascading_since(steps: Sequence[Step]) -> int | None:
    """Return the number of the call at which an error cascade begins."""
    runs: dict[str, list[int]] = {}
    begins: list[int] = []
    for number, step in enumerate(steps, 1):
        if step.cause:
            runs.setdefault(step.cause, []).append(number)
        elif step.needs:
            run = runs.pop(step.needs, [])
            times = [steps[each - 1].call.at for each in [*run, number]]
            gaps = [after - before for before, after in pairwise(times)]
            patient = len(run) <= 5 and all(a < b for a, b in pairwise(gaps))
            if len(run) >= 4 and not patient:
                begins.append(run[0])
    begins += [run[0] for run in runs.values() if len(run) >= 4]
    return min(begins, default=None)


def drifting_since(steps: Sequence[Step], around: bool | None = None) -> int | None:
    """Return the number of the call at which a drift begins.

    Args:
        steps: The calls.
        around: What a look outside within the first ten calls counts as: True for outside, False for inside, None for
            a call that touches nothing.
    """
    touching: list[tuple[int, bool, bool]] = []
    for number, step in enumerate(steps, 1):
        out = around if step.out and not step.change and number <= 10 else step.out
        if out is not None:
            touching.append((number, out, out and step.change))
    for end in range(8, len(touching) + 1):
        eight = touching[end - 8 : end]
        if sum(out for _, out, _ in eight) >= 5 or sum(changed for *_, changed in eight) >= 3:
            return next(number for number, out, _ in eight if out)
    return None


class Stage:
    """One trajectory while it is played; subclasses are the kinds of work."""

    kind: ClassVar[str] = ""
    styles: ClassVar[Sequence[str]] = ("json", "csv", "table", "log", "yaml")
    paces: ClassVar[Sequence[float]] = (2.0, 5.0, 9.0)
    memo: ClassVar[Sequence[str]] = ()
    """Names of tools for notes, if the agent has any."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.steps: list[Step] = []
        self.task = ""
        self.bare = False
        self.is_early = False
        self.pace = rng.choice(self.paces)
        self.style = rng.choice(self.styles)
        self.envelope = rng.choice(ENVELOPES)
        self.gives_reasons = rng.random() < 0.15
        self.seen: set[str] = set()
        self.clock0 = rng.randint(0, 86000)
        self.at = round(rng.uniform(0, 4), 1)
        self.setup()

    def setup(self) -> None:
        """Invent what this trajectory is about, and say the task."""

    def step(self) -> None:
        """Do one fruitful piece of the task's work."""

    # --- chance ---

    def pick(self, *choices: T) -> T:
        """Return one of these."""
        return self.rng.choice(choices)

    def n(self, low: int, high: int) -> int:
        """Return a whole number in a range."""
        return self.rng.randint(low, high)

    def x(self, low: float, high: float, digits: int = 1) -> float:
        """Return a number in a range."""
        return round(self.rng.uniform(low, high), digits)

    def chance(self, share: float) -> bool:
        """Return True that often."""
        return self.rng.random() < share

    def times(self, low: int, high: int) -> range:
        """Return the numbers of some repetitions."""
        return range(self.n(low, high))

    def some(self, choices: Sequence[T], low: int, high: int | None = None) -> list[T]:
        """Return a few of these, each once, in random order."""
        return self.rng.sample(list(choices), min(len(choices), self.n(low, high or low)))

    def hex(self, digits: int = 8) -> str:
        """Return an id."""
        return "".join(self.rng.choices("0123456789abcdef", k=digits))

    def person(self) -> str:
        """Return a name."""
        return f"{self.pick(*GIVEN.split())} {self.pick(*FAMILY.split())}"

    def day(self) -> str:
        """Return a date."""
        return f"2026-{self.n(1, 12):02}-{self.n(1, 28):02}"

    def time(self) -> str:
        """Return the time of day of the next call."""
        now = int(self.clock0 + self.at) % 86400
        return f"{now // 3600:02}:{now // 60 % 60:02}:{now % 60:02}"

    # --- texts ---

    def show(self, rows: Sequence[Mapping[str, Any]], style: str = "") -> str:
        """Return rows in the style of this trajectory's tools."""
        style = style or self.style
        if not rows:
            return {"json": "[]", "html": "<p>No entries</p>"}.get(style, "(0 rows)")
        heads = list(rows[0])
        if style == "json":
            return json.dumps(list(rows), ensure_ascii=False)
        if style == "csv":
            return "\n".join([",".join(heads), *(",".join(str(row[h]) for h in heads) for row in rows)])
        if style == "log":
            return "\n".join(" ".join(f"{head}={value}" for head, value in row.items()) for row in rows)
        if style == "yaml":
            return "\n".join("- " + "\n  ".join(f"{head}: {value}" for head, value in row.items()) for row in rows)
        if style == "html":
            cells = ("".join(f"<td>{html.escape(str(value))}</td>" for value in row.values()) for row in rows)
            return "<table><tr>" + "</tr><tr>".join(cells) + "</tr></table>"
        widths = [max(len(str(row[head])) for row in [*rows, {h: h for h in heads}]) for head in heads]
        lines = [[str(row[head]) for head in heads] for row in rows]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in [heads, *lines]
        )

    def one(self, **fields: Any) -> str:
        """Return one record in the style of this trajectory's tools."""
        if self.style == "json":
            return json.dumps(fields, ensure_ascii=False)
        return self.show([fields])

    def wrapped(self, text: str, ok: bool) -> str:
        """Return a result as this trajectory's tools give it."""
        return {
            "plain": text,
            "time": f"[{self.time()}] {text}",
            "took": f"{text}\n({self.n(3, 4000)} ms)",
            "exit": f"exit code: {0 if ok else 1}\nwall time: {self.x(0, 9, 2)} s\noutput:\n{text}",
            "request": f"{text}\nrequest-id: {self.hex(16)}",
            "tags": f"<result>\n{text}\n</result>",
        }[self.envelope]

    # --- recording ---

    def call(
        self,
        tool: str,
        args: Any,
        result: str,
        *,
        ok: bool = True,
        out: bool | None = False,
        change: bool = False,
        new: bool | None = None,
        cause: str = "",
        needs: str = "",
        wait: str = "",
        gap: float | None = None,
    ) -> None:
        """Record a call; see `Step`.

        Args:
            ok: Whether the tool reports success.
            new: None if it is to be told from the result.
            gap: Seconds since the call before; None for the pace of this trajectory, below 20 seconds.
        """
        if self.steps:
            usual = 0.0 if self.chance(0.03) else min(18.5, self.pace * self.rng.uniform(0.4, 2.0))
            self.at += usual if gap is None else gap
        text = UNSTEADY.sub("~", result)
        new = (change or text not in self.seen) if new is None else new
        self.seen.add(text)
        if self.gives_reasons and isinstance(args, dict):
            args = {**cast("dict[str, Any]", args), "reason": self.pick(*REASONS)}
        made = TracedCall(tool, args, self.wrapped(result, ok), ok, round(self.at, 1))
        self.steps.append(Step(made, new, out, change, cause, needs or cause, wait))

    def note(self, text: str) -> None:
        """Write a note, if the agent has a tool for it."""
        if self.memo:
            self.call(self.memo[0], {"text": text}, self.pick("noted", "ok", "saved"), out=None, new=True)

    def work(self, low: int, high: int | None = None) -> None:
        """Work at the task for so many steps."""
        for _ in self.times(low, high or low):
            self.step()

    def lead(self) -> None:
        """Work at the task for a while; unless the trouble is early, so long that the beginning is over."""
        self.work(*((2, 7) if self.is_early else (9, 22)))

    def now_and_then(self, share: float = 0.15) -> None:
        """Come back to the task for one step, that often."""
        if self.chance(share):
            self.step()

    def gradually(self, outside: Callable[[], None], low: int, high: int) -> None:
        """Leave the task gradually: outside steps become more frequent, until there are no others."""
        steps = self.n(low, high)
        for number in range(steps):
            if self.chance(1.4 * number / steps):
                outside()
            else:
                self.step()

    def tail(self) -> None:
        """Go on with the task for a while, or stop here."""
        if self.chance(0.4):
            self.work(1, 5)

    def since(self) -> Mapping[Label, int | None]:
        """Return by label where its trouble begins."""
        ways = [drifting_since(self.steps, around) for around in (None, False)]
        return {
            "stalled": stalled_since(self.steps),
            "cascading": cascading_since(self.steps),
            "drifting": None if self.bare else ways[0],
        }

    def is_clear(self) -> bool:
        """Whether every reading of the rule about looks at the beginning gives the same label."""
        return self.bare or len({drifting_since(self.steps, around) for around in (None, False)}) == 1

    # --- shapes that every kind has, made of its own ---

    def play(self, sort: str) -> None:
        """Play a shape of this kind's own."""
        own = [name for name in shapes(type(self), sort) if not hasattr(Stage, name)]
        getattr(self, self.pick(*own))()

    def trouble_at(self, label: Label) -> int:
        """Return how many steps are before a trouble; all, if there is none."""
        at = self.since()[label]
        return len(self.steps) if at is None else at - 1

    def drift_late(self) -> None:
        """A whole healthy piece of work comes first."""
        self.play("healthy")
        self.play("drift")

    def drift_early(self) -> None:
        """The beginning is not over when it begins; looks at the beginning do not count."""
        self.is_early = True
        self.play("drift")

    def stall_late(self) -> None:
        """A whole healthy piece of work comes first."""
        self.play("healthy")
        self.play("stall")

    def cascade_late(self) -> None:
        """A whole healthy piece of work comes first."""
        self.play("healthy")
        self.play("cascade")

    def healthy_long(self) -> None:
        """Two healthy pieces of work."""
        self.play("healthy")
        self.play("healthy")

    def healthy_short_excursion(self) -> None:
        """What might become a drift ends after a few calls."""
        self.play("drift")
        outside = [number for number, step in enumerate(self.steps) if step.out]
        changes = [number for number in outside if self.steps[number].change]
        last = min([outside[min(self.n(1, 3), len(outside) - 1)], *changes[2:3]])
        del self.steps[last + (last not in changes[2:3]) :]
        self.work(7, 16)

    def healthy_short_repetition(self) -> None:
        """What might become a stall ends after a few calls."""
        self.play("stall")
        before = self.trouble_at("stalled")
        waits = bool(self.steps[before].wait) if before < len(self.steps) else False
        del self.steps[before + (-self.n(1, 4) if waits else self.n(1, 4)) :]
        self.work(6, 16)

    def healthy_short_trouble(self) -> None:
        """What might become a cascade is left, or over, after two or three failures."""
        self.play("cascade")
        failed = [number for number, step in enumerate(self.steps) if step.cause]
        del self.steps[failed[self.n(1, 2)] + 1 :]
        self.work(6, 16)


def shapes(stage: type[Stage], sort: str) -> list[str]:
    """Return the names of a kind's shapes of one sort."""
    return [name for name in dir(stage) if name.startswith(f"{sort}_")]


def played(stage: type[Stage], shape: str, rng: random.Random, number: int, tries: int = 30) -> Trace:
    """Play a shape until it has its label.

    Raises:
        ValueError: It never had.
    """
    wanted = LABELS[shape.split("_")[0]]
    since: dict[Label, int] = {}
    for _ in range(tries):
        scene = stage(rng)
        getattr(scene, shape)()
        if wanted != "healthy" and rng.random() < 0.3:
            scene.work(1, 6)
        since = {label: at for label, at in scene.since().items() if at is not None}
        labels: tuple[Label, ...] = tuple(since) or ("healthy",)
        if wanted in labels and scene.is_clear():
            calls = tuple(step.call for step in scene.steps)
            name = f"{stage.kind} {number}: {shape.replace('_', ' ')}"
            return Trace(name, labels, scene.task, calls, since, "generated")
    raise ValueError(f"{stage.kind}: {shape} is to be {wanted}, but came out as {since or 'healthy'} {tries} times")


def endless(stage: type[Stage], rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of a kind without end; each round has the numbers of `CYCLE`, in random order."""
    decks: dict[str, list[str]] = {sort: [] for sort in CYCLE}
    number = 0
    while True:
        for sort in rng.sample(list(CYCLE), counts=list(CYCLE.values()), k=sum(CYCLE.values())):
            if not decks[sort]:
                decks[sort] = shapes(stage, sort)
                rng.shuffle(decks[sort])
            number += 1
            yield played(stage, decks[sort].pop(), rng, number)
