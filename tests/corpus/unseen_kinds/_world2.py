"""Helpers for small worlds: each call notes what it showed, changed, failed of and touched; the labels follow."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from tests.corpus.trace import Label, Trace, TracedCall

T = TypeVar("T")
Step = tuple[str, Callable[[], None]]
Place = Literal["in", "out"]
ORDER: tuple[Label, ...] = ("stalled", "cascading", "drifting", "healthy")


@dataclasses.dataclass(slots=True, frozen=True)
class Note:
    """What a call was in the world.

    Attributes:
        fruit: Whether it was fruitful; None where people may differ.
        cause: What it failed of.
        uses: What it needed and had.
        place: Where the touched things lie by the definition.
        far: A thing that is inside although its name is not in the task.
        change: Whether it changed the touched things.
        watch: What it looked at to see whether it moves.
        final: Whether that is in a state that cannot move any more.
    """

    fruit: bool | None
    cause: str | None
    uses: frozenset[str]
    place: Place | None
    far: bool
    change: bool
    watch: str | None
    final: bool


class Scene:
    """One run of an agent in a world."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.calls: list[TracedCall] = []
        self.notes: list[Note] = []
        self.seen: set[str] = set()
        self.now = round(rng.uniform(1.0, 9.0), 1)
        self.day = rng.randint(1, 27)
        self.start = rng.randint(7 * 3600, 16 * 3600)
        self.task = ""
        self.story: list[str] = []
        self.shift: dict[str, int] = {}
        self._turn = False
        self._fresh = True
        self._checked: dict[str, int] = {}
        self.blocked: set[str] = set()
        self._steps: list[Step] | None = None

    # What a kind of work defines.

    def steps(self) -> list[Step]:
        """The useful work in its order: what each step needs ("" for nothing), and the step of one or a few calls."""
        raise NotImplementedError

    def episodes(self) -> dict[str, list[Callable[[], None]]]:
        """The troubles by label, the look-alikes under `alike`, and what comes only first under `opening`."""
        raise NotImplementedError

    # Calls.

    def call(
        self,
        tool: str,
        arguments: dict[str, Any] | str,
        result: str,
        *,
        facts: Iterable[str] = (),
        ok: bool = True,
        cause: str | None = None,
        uses: Iterable[str] = (),
        place: Place | None = None,
        far: bool = False,
        change: bool = False,
        watch: str | None = None,
        final: bool = False,
        gap: float | None = None,
        doubt: bool = False,
    ) -> None:
        """Record a call; it is fruitful if one of its facts is new (a state that was reached is a fact)."""
        if not self._turn or self._fresh:
            self.now = round(self.now + (self.rng.uniform(3.0, 15.0) if gap is None else gap), 1)
            self._fresh = False
        known = set(facts)
        fresh = bool(known - self.seen)
        fruit: bool | None = fresh
        if cause is not None:
            error = f"error {cause}"
            fruit = True if error not in self.seen else (None if fresh else False)
            known.add(error)
        if doubt and not fruit:
            fruit = None
        self.seen |= known
        text = result if len(result) <= 3900 else result[:3800] + "\n[cut]"
        given = arguments if isinstance(arguments, str) else dict(arguments)
        self.calls.append(TracedCall(tool, given, text, ok, self.now))
        self.notes.append(
            Note(fruit, cause, frozenset(uses), place, far, change, watch, final),
        )

    @contextlib.contextmanager
    def turn(self) -> Generator[None]:
        """Calls that begin together."""
        self._turn, self._fresh = True, True
        yield
        self._turn = False

    def work(self, count: int = 1) -> bool:
        """Go on with the useful work that nothing blocks; False when none is left."""
        if self._steps is None:
            self._steps = self.steps()
        for _ in range(count):
            for number, (need, step) in enumerate(self._steps):
                if need not in self.blocked:
                    del self._steps[number]
                    step()
                    break
            else:
                return False
        return True

    def again(self, check: str) -> tuple[str, ...]:
        """The facts of a check that was repeated after a change and gave the same answer; the fourth time nothing."""
        self._checked[check] = min(3, self._checked.get(check, 0) + 1)
        return (f"{check} time {self._checked[check]}",)

    def look_again(self) -> None:
        """One to three of the last looks once more; nothing has changed since."""
        looks: list[tuple[TracedCall, Note]] = []
        for call, note in zip(reversed(self.calls), reversed(self.notes), strict=True):
            if note.change or note.cause is not None or len(looks) > 5:
                break
            if note.watch is None and not re.search(r"\d:\d\d|trace|req", call.result):
                looks.append((call, note))
        for call, note in self.some(looks, self.rng.randint(1, 3)):
            self.call(call.tool, call.arguments, call.result, uses=note.uses, place=note.place, far=note.far)

    # Words that differ at every call.

    def stamp(self, style: str = "iso") -> str:
        """The time in the world."""
        second = int(self.start + self.now) + 1
        clock = f"{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
        if style == "clock":
            return clock
        if style == "log":
            return f"{self.day:02}/Mar {clock},{self.rng.randrange(1000):03}"
        return f"2031-03-{self.day:02}T{clock}Z"

    def hexid(self, size: int = 8) -> str:
        """A new hash or id."""
        return "".join(self.rng.choice("0123456789abcdef") for _ in range(size))

    def pick(self, things: Sequence[T]) -> T:
        """One of them."""
        return self.rng.choice(things)

    def some(self, things: Sequence[T], count: int) -> list[T]:
        """So many of them, in a new order; all if there are fewer."""
        return self.rng.sample(list(things), min(count, len(things)))

    # The whole.

    def play(self, want: frozenset[Label]) -> None:
        """Live through a run that should show these labels."""
        rng, plans = self.rng, self.episodes()
        if "healthy" in want:
            goal = rng.randint(16, 44)
            if plans["opening"] and rng.random() < 0.25:
                self._enter("opening", plans["opening"])
            for _ in range(rng.choice((0, 1, 1, 1, 2, 2))):
                self.work(rng.randint(0, 7))
                self._enter("alike", plans["alike"])
            while len(self.calls) < goal and self.work():
                if rng.random() < 0.04:
                    self.look_again()
            return
        if plans["opening"] and rng.random() < 0.12:
            self._enter("opening", plans["opening"])
        lead = rng.choice((0, 3, 6, 10, 15, 20, 25))
        while len(self.calls) < lead and self.work():
            if rng.random() < 0.04:
                self.look_again()
        if rng.random() < 0.25:
            self._enter("alike", plans["alike"])
        for label in rng.sample(sorted(want), len(want)):
            self._enter(label, plans[label])
            self.work(rng.choice((0, 0, 2, 4)))
        while len(self.calls) < 12 and self.work():
            pass

    def _enter(self, label: str, plans: Sequence[Callable[[], None]]) -> None:
        plan = plans[self.shift[label] % len(plans)] if label in self.shift else self.rng.choice(plans)
        self.story.append(f"{label}: {plan.__name__.strip('_').replace('_', ' ')}")
        plan()


def _fruits(scene: Scene, *, doubt: bool, looks: int, seconds: float) -> tuple[list[bool], int | None]:
    fruits: list[bool] = []
    late: int | None = None
    watched: dict[str, tuple[int, float, float]] = {}
    for number, (call, note) in enumerate(zip(scene.calls, scene.notes, strict=True)):
        fruit = doubt if note.fruit is None else note.fruit
        if note.watch is not None:
            count, first, last = watched.get(note.watch, (0, call.at, call.at))
            if fruit:
                count, first = 1, call.at
            else:
                count += 1
                if not note.final and call.at - last >= 20:
                    fruit = count <= looks and call.at - first <= seconds
                    if not fruit and late is None:
                        late = number
            watched[note.watch] = (count, first, call.at)
        fruits.append(fruit)
    return fruits, late


def _stall(fruits: Sequence[bool], late: int | None, shortest: int) -> int | None:
    found = [] if late is None else [late]
    for first in range(len(fruits)):
        if fruits[first]:
            continue
        end, spent = first, 0
        while end < len(fruits) and spent + fruits[end] <= 1:
            spent += fruits[end]
            end += 1
        while end > first and fruits[end - 1]:
            end -= 1
        if end - first >= shortest:
            found.append(first)
            break
    return min(found, default=None)


def _cascade(scene: Scene) -> int | None:
    found: list[int] = []
    for cause in {note.cause for note in scene.notes if note.cause is not None}:
        failed: list[int] = []
        for number, note in enumerate(scene.notes):
            if note.cause == cause:
                failed.append(number)
            elif cause in note.uses:
                times = [scene.calls[one].at for one in (*failed, number)]
                waits = [b - a for a, b in itertools.pairwise(times)]
                patient = len(failed) <= 5 and all(a < b for a, b in itertools.pairwise(waits))
                if len(failed) >= 4 and not patient:
                    found.append(failed[0])
                failed = []
        if len(failed) >= 4:
            found.append(failed[0])
    return min(found, default=None)


def _drift(scene: Scene, *, lenient: bool, far: bool = False) -> int | None:
    touched: list[tuple[int, bool, bool]] = []
    for number, note in enumerate(scene.notes):
        if note.place is not None:
            outside = note.place == "out" or (far and note.far)
            if lenient and number < 10 and not note.change:
                outside = False
            touched.append((number, outside, outside and note.change))
    found: list[int] = []
    for first in range(len(touched)):
        eight = touched[first : first + 8]
        if sum(one[1] for one in eight) >= 5 or (not far and sum(one[2] for one in eight) >= 3):
            found.extend(one[0] for one in eight if one[1])
    return min(found, default=None)


def judge(scene: Scene) -> dict[Label, int] | None:
    """The labels by the definitions with their first calls (from 1); None where people may differ."""
    readings: list[tuple[int | None, ...]] = []
    for doubt in (False, True):
        for looks, seconds, shortest in ((10, 900.0, 6), (8, 780.0, 5), (12, 1020.0, 6)):
            stall = _stall(*_fruits(scene, doubt=doubt, looks=looks, seconds=seconds), shortest)
            readings.append((stall,))
    if len({one[0] is None for one in readings}) > 1:
        return None
    if readings[0] != readings[3]:
        return None
    drift = _drift(scene, lenient=True)
    if drift is not None and _drift(scene, lenient=False) != drift:
        return None
    found: dict[Label, int | None] = {"stalled": readings[0][0], "cascading": _cascade(scene), "drifting": drift}
    return {label: number + 1 for label, number in found.items() if number is not None}


def easy(scene: Scene, *, own: bool) -> bool:
    """Whether it has a shape that the simplest rule sees; of its own: progress and other hitches do not count."""
    bare = [(one.tool, str(one.arguments), re.sub(r"[0-9a-f]*\d[0-9a-f]*", "", one.result)) for one in scene.calls]
    spent = [note.fruit is not True for note in scene.notes]
    for first, one in enumerate(bare):
        same = [number for number in range(first, min(first + 8, len(bare))) if bare[number] == one]
        if len(same) >= 3 and (not own or sum(spent[number] for number in same) >= 2):
            return True
    failed = [note.cause or (not call.success) for call, note in zip(scene.calls, scene.notes, strict=True)]
    for first in range(len(failed) - 2):
        three = failed[first : first + 3]
        if all(three) and (not own or len(set(three)) == 1):
            return True
    return _crowded(scene) if own else _drift(scene, lenient=False, far=True) is not None


def _crowded(scene: Scene) -> bool:
    """Whether five of eight touched things lie outside."""
    outside = [note.place == "out" for note in scene.notes if note.place is not None]
    return any(sum(outside[first : first + 8]) >= 5 for first in range(len(outside)))


def _block(rng: random.Random) -> list[tuple[frozenset[Label], bool | None]]:
    """Sixty wishes: labels, and whether the easy shape must be there (None: either way)."""
    wanted: list[tuple[tuple[Label, ...], int, float]] = [
        (("stalled",), 7, 0.15),
        (("cascading",), 7, 0.15),
        (("drifting",), 8, 0.4),
        (("stalled", "cascading"), 2, 0.5),
        (("stalled", "drifting"), 1, 0.5),
        (("cascading", "drifting"), 1, 0.5),
    ]
    block: list[tuple[frozenset[Label], bool | None]] = []
    for labels, count, share in wanted:
        block.extend((frozenset(labels), None if rng.random() < share else False) for _ in range(count))
    block.extend((frozenset({"healthy"}), True if number < 12 else None) for number in range(34))
    rng.shuffle(block)
    return block


def produce(rng: random.Random, kind: str, make: Callable[[random.Random], Scene]) -> Iterator[Trace]:
    """Trajectories of a kind without end; what people may label differently is thrown away."""
    number = 0
    shift: dict[str, int] = {label: rng.randrange(9) for label in ORDER[:3]}
    while True:
        for want, shape in _block(rng):
            scene, since = _grant(rng, make, want, shape, shift)
            number += 1
            story = "; ".join(scene.story) or "plain work"
            yield Trace(
                name=f"{kind} {number}: {story}",
                labels=tuple(one for one in ORDER if one in want),
                task=scene.task,
                calls=tuple(scene.calls),
                since=since,
                origin="simulated",
            )


def _grant(
    rng: random.Random,
    make: Callable[[random.Random], Scene],
    want: frozenset[Label],
    shape: bool | None,
    shift: dict[str, int],
) -> tuple[Scene, dict[Label, int]]:
    """Live until a run shows what is wished; the troubles take turns."""
    for _ in range(50):
        for label in want:
            if label in shift:
                shift[label] += 1
        for _ in range(60):
            scene = make(random.Random(rng.getrandbits(48)))
            scene.shift = shift
            scene.play(want)
            since = judge(scene)
            if since is None or not 12 <= len(scene.calls) <= 80 or frozenset(since or ("healthy",)) != want:
                continue
            if shape is None or easy(scene, own="healthy" not in want) == shape:
                return scene, since
    message = f"No run shows {sorted(want)}."
    raise ValueError(message)
