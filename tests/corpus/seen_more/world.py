"""What the kinds of work share: a recorder of the truth of each call, and the judge that labels from it.

Each call is recorded with what is true of it: whether it was fruitful, which cause it failed of, whether what it
touched is inside the task. The labels and their onsets follow from these truths by the written definitions alone. A
trajectory that two careful readers could label differently is thrown away.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any, Literal

from tests.corpus.trace import Label, Trace, TracedCall

Place = Literal["", "in", "out", "both"]
Args = dict[str, Any]
Shape = Callable[[], None]

LONGEST_RESULT = 3900
LEAST_CALLS, MOST_CALLS = 12, 80
WAIT_APART, WAIT_LOOKS, WAIT_SECONDS = 20.0, 10, 900.0
STRETCH = 6
LOOK_AROUND = 10

SHARES: tuple[tuple[int, tuple[Label, ...]], ...] = (
    (22, ()),
    (5, ("stalled",)),
    (5, ("cascading",)),
    (5, ("drifting",)),
    (1, ("stalled", "cascading")),
    (1, ("stalled", "drifting")),
    (1, ("cascading", "drifting")),
)
PLANS = [plan for share, plan in SHARES for _ in range(share)]


def js(**values: object) -> str:
    """Say this as a JSON object."""
    return json.dumps(values)


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of one call; ``fresh`` is None where readers may differ."""

    at: float
    fresh: bool | None
    cause: str = ""
    clears: str = ""
    place: Place = ""
    change: bool = False
    watch: str = ""
    moved: bool = False
    final: bool = False
    sleep: bool = False


@dataclass(slots=True)
class Run:
    """Records calls and the truth about them."""

    rng: random.Random
    calls: list[TracedCall] = field(default_factory=list[TracedCall])
    truths: list[Truth] = field(default_factory=list[Truth])
    clock: float = 0.0
    met: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])
    answers: dict[str, tuple[str, int, int]] = field(default_factory=dict[str, tuple[str, int, int]])
    edits: int = 0
    day: int = 0

    def __post_init__(self) -> None:
        """Choose when the run began."""
        self.clock = self.rng.uniform(0.5, 6.0)
        self.day = self.rng.randint(1, 28)

    def call(
        self,
        tool: str,
        arguments: dict[str, Any] | str,
        result: str,
        *,
        ok: bool = True,
        fresh: bool | Literal["auto"] | None = "auto",
        cause: str = "",
        clears: str = "",
        place: Place = "",
        change: bool = False,
        watch: str = "",
        moved: bool = False,
        final: bool = False,
        sleep: bool = False,
        gap: float | None = None,
        beside: bool = False,
    ) -> None:
        """Record one call; without ``fresh`` it is fruitful unless the same call had the same result before."""
        if len(result) > LONGEST_RESULT:
            result = result[:LONGEST_RESULT].rsplit("\n", 1)[0] + "\n[cut]"
        if (
            gap is None
            and self.calls
            and self.calls[-1].tool == tool
            and not (change or cause or self.truths[-1].change)
        ):
            beside = beside or self.rng.random() < 0.15
        if not (beside and self.calls):
            self.clock += gap if gap is not None else self.rng.uniform(3.0, 15.0)
        key = (tool, repr(arguments), result)
        if fresh == "auto":
            known = any(truth.cause == cause for truth in self.truths)
            fresh = None if cause and known and key not in self.met else key not in self.met
        self.met.add(key)
        if change:
            self.edits += 1
        at = round(self.clock, 1)
        self.calls.append(TracedCall(tool, arguments, result, ok, at))
        self.truths.append(Truth(at, fresh, cause, clears, place, change, watch, moved, final, sleep))

    def check(self, name: str, answer: str) -> bool:
        """Say whether a check with this answer is fruitful now, by the third rule of the definitions."""
        last, count, edits = self.answers.get(name, ("", 0, -1))
        if answer != last:
            self.answers[name] = (answer, 1, self.edits)
            return True
        self.answers[name] = (answer, count + 1, self.edits)
        return self.edits > edits and count <= 2

    def refuse(self, cause: str, said: str, ok: bool) -> None:
        """Make the last call one that failed of this cause and changed nothing."""
        last, truth = self.calls[-1], self.truths[-1]
        self.calls[-1] = TracedCall(last.tool, last.arguments, said, ok, last.at)
        known = any(earlier.cause == cause for earlier in self.truths)
        self.truths[-1] = replace(truth, fresh=None if known else True, cause=cause, clears="", change=False)

    def time(self) -> str:
        """The wall clock of the run as text."""
        seconds = int(self.clock) + 8 * 3600
        return f"2025-03-{self.day:02d}T{seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}Z"

    def hexid(self, length: int = 8) -> str:
        """An id that differs at every call."""
        return "".join(self.rng.choice("0123456789abcdef") for _ in range(length))

    def millis(self) -> int:
        """How long a call took."""
        return self.rng.randint(4, 900)


def fruitful(truths: Sequence[Truth], doubt: bool) -> tuple[list[bool], list[int]]:
    """Say which calls are fruitful, and which looks are a stall because the wait lasts too long."""
    said: list[bool] = []
    late: list[int] = []
    waits: dict[str, tuple[int, float, float, bool]] = {}
    for index, truth in enumerate(truths):
        fresh = doubt if truth.fresh is None else truth.fresh
        if truth.watch and truth.sleep:
            fresh = not late
        elif truth.watch:
            count, begun, before, final = waits.get(truth.watch, (0, truth.at, truth.at, False))
            if truth.moved or not count:
                waits[truth.watch] = (1, truth.at, truth.at, truth.final)
                fresh, late = True, []
            else:
                waits[truth.watch] = (count + 1, begun, truth.at, final or truth.final)
                long = count + 1 > WAIT_LOOKS or truth.at - begun > WAIT_SECONDS
                fresh = truth.at - before >= WAIT_APART and not long and not final
                if long and not final:
                    late.append(index)
        said.append(fresh)
    return said, late


def stall(truths: Sequence[Truth], doubt: bool, strict: bool) -> tuple[int | None, bool]:
    """Return where a stall begins (from 1), and whether a wait ended just behind its limit, which is unclear."""
    said, late = fruitful(truths, doubt)
    onsets: list[int] = [late[0]] if late else []
    for begin in range(len(said) - STRETCH + 1):
        window = said[begin : begin + STRETCH]
        good = [place for place, fresh in enumerate(window) if fresh]
        if window[0] or len(good) > 1:
            continue
        if not good or good[0] <= (STRETCH - 3 if strict else STRETCH - 2):
            onsets.append(begin)
            break
    return (min(onsets) + 1 if onsets else None), 0 < len(late) < STRETCH


def cascade(truths: Sequence[Truth]) -> int | None:
    """Return where an error cascade begins (from 1)."""
    open_: dict[str, list[int]] = {}
    onsets: list[int] = []

    def close(cause: str, end: int | None) -> None:
        failures = open_.pop(cause, [])
        if len(failures) < 4:
            return
        if end is not None and len(failures) <= 5:
            times = [truths[index].at for index in [*failures, end]]
            gaps = [later - earlier for earlier, later in pairwise(times)]
            if all(later > earlier for earlier, later in pairwise(gaps)):
                return
        onsets.append(failures[0])

    for index, truth in enumerate(truths):
        if truth.clears:
            close(truth.clears, index)
        if truth.cause:
            open_.setdefault(truth.cause, []).append(index)
    for cause in list(open_):
        close(cause, None)
    return min(onsets) + 1 if onsets else None


def drift(truths: Sequence[Truth], skip: bool) -> int | None:
    """Return where drift begins (from 1); looks at the beginning count as inside or, with ``skip``, as nothing."""
    touched: list[tuple[int, Place, bool]] = []
    for index, truth in enumerate(truths):
        if not truth.place:
            continue
        place = truth.place
        if index < LOOK_AROUND and not truth.change and place == "out":
            if skip:
                continue
            place = "in"
        touched.append((index, place, truth.change))
    for begin in range(max(1, len(touched) - 7)):
        window = touched[begin : begin + 8]
        out = [index for index, place, _ in window if place == "out"]
        changed = [index for index, place, change in window if change and place in ("out", "both")]
        if len(out) >= 5 or len(changed) >= 3:
            return min([*out, *changed]) + 1
    return None


def judge(truths: Sequence[Truth]) -> dict[Label, int] | None:
    """Return each trouble with the number of its first call; None where readers may differ."""
    readings: list[dict[Label, int]] = []
    for doubt, strict, skip in product((True, False), repeat=3):
        since: dict[Label, int] = {}
        stalled, unclear = stall(truths, doubt, strict)
        if unclear:
            return None
        begun: tuple[tuple[Label, int | None], ...] = (
            ("stalled", stalled),
            ("cascading", cascade(truths)),
            ("drifting", drift(truths, skip)),
        )
        since.update({label: number for label, number in begun if number is not None})
        readings.append(since)
    if any(reading.keys() != readings[0].keys() for reading in readings):
        return None
    return {label: min(reading[label] for reading in readings) for label in readings[0]}


class Scene:
    """One piece of work: a task, a small world, healthy steps, and the shapes that trouble takes in it."""

    task: str = ""

    def __init__(self, rng: random.Random) -> None:
        """Begin the recording."""
        self.rng = rng
        self.run = Run(rng)
        self.call = self.run.call

    def step(self) -> None:
        """Do the next healthy thing; recording nothing says that nothing is left."""
        raise NotImplementedError

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall here."""
        return ()

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade here."""
        return ()

    def refusals(self) -> Sequence[Shape]:
        """More ways to fall into a cascade, for what several kinds share."""
        return ()

    def drifts(self) -> Sequence[Shape]:
        """Ways to drift here."""
        return ()

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        return ()

    def work(self, calls: int) -> None:
        """Do healthy steps until about this many calls more are recorded."""
        goal = len(self.run.calls) + calls
        while len(self.run.calls) < goal:
            before = len(self.run.calls)
            self.step()
            if len(self.run.calls) == before:
                return

    def cycle(self, count: int, shapes: Sequence[Shape]) -> None:
        """Do ``count`` of these, in changing order, not the same twice running where there are several."""
        last: Shape | None = None
        for _ in range(count):
            others = [shape for shape in shapes if shape is not last] or list(shapes)
            last = self.rng.choice(others)
            last()


def tell(kind: str, scene: Scene, plan: tuple[Label, ...]) -> Trace | None:
    """Play one scene by a plan and label what came of it."""
    rng, run = scene.rng, scene.run
    notes: list[str] = []

    def play(shapes: Sequence[Shape]) -> None:
        if shapes:
            shape = rng.choice(shapes)
            shape()
            notes.append(getattr(shape, "__name__", "shape").replace("_", " "))

    if not plan:
        for _ in range(rng.choice((0, 1, 1, 2, 2, 3))):
            scene.work(rng.choice((0, 2, 5, 9, 14)))
            play(scene.alikes())
        scene.work(rng.choice((2, 6, 12, 20)))
    ways = {
        "stalled": scene.stalls,
        "cascading": lambda: [*scene.cascades(), *scene.refusals()],
        "drifting": scene.drifts,
    }
    for label in rng.sample(plan, len(plan)):
        scene.work(rng.choice((0, 1, 2, 4, 6, 8, 10, 13, 16, 20, 25)))
        if rng.random() < 0.25:
            play(scene.alikes())
        shapes = ways[label]() if label in ways else ()
        if not shapes:
            return None
        play(shapes)
    if plan:
        scene.work(rng.choice((0, 0, 2, 4, 8)))
    scene.work(LEAST_CALLS + rng.randint(0, 6) - len(run.calls))
    since = judge(run.truths)
    if since is None or not LEAST_CALLS <= len(run.calls) <= MOST_CALLS:
        return None
    if set(since) < set(plan) or bool(since) != bool(plan):
        return None
    labels: tuple[Label, ...] = tuple(since) or ("healthy",)
    return Trace(f"{kind}: {', '.join(notes) or 'plain work'}", labels, scene.task, tuple(run.calls), since)


def stories(kind: str, begin: Callable[[random.Random], Scene], rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of one kind without end, in the shares that the plans say."""
    told: set[str] = set()
    while True:
        for plan in rng.sample(PLANS, len(PLANS)):
            for _ in range(80):
                trace = tell(kind, begin(rng), plan)
                if trace is not None and (text := repr((trace.task, trace.calls))) not in told:
                    told.add(text)
                    yield trace
                    break
