"""What the worlds of this folder share: a recorder that keeps book of what each call showed, and the rules for labels.

A world performs calls through `Run.call` and says of each what a person learns from it, what failed and what it
touched. The labels then follow from that book by the definitions; where a fair reader could decide either way,
the trajectory is thrown away.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, cast

from tests.corpus.trace import Label, Trace, TracedCall


@dataclass
class Note:
    """What one call meant."""

    at: float
    fruitful: bool
    doubtful: bool
    cause: str | None
    clears: frozenset[str]
    touch: str
    changes: bool
    overdue: bool


@dataclass
class _Watch:
    progress: str
    last: float
    since: float
    looks: int


@dataclass
class Run:
    """The calls of one trajectory, as they happen."""

    rng: random.Random
    at: float = 0.0
    calls: list[TracedCall] = field(default_factory=list[TracedCall])
    notes: list[Note] = field(default_factory=list[Note])
    known: set[str] = field(default_factory=set[str])
    causes: set[str] = field(default_factory=set[str])
    states: set[str] = field(default_factory=set[str])
    checks: dict[str, tuple[str, int, int]] = field(default_factory=dict[str, tuple[str, int, int]])
    watches: dict[str, _Watch] = field(default_factory=dict[str, _Watch])
    changed: int = 0
    next_gap: float | None = None
    bounded: bool = True

    def __post_init__(self) -> None:
        self.start = datetime(2026, 1, 5, 7, 0, tzinfo=UTC) + timedelta(seconds=self.rng.randrange(20_000_000))

    def hex(self, length: int) -> str:
        """A random id."""
        return "".join(self.rng.choice("0123456789abcdef") for _ in range(length))

    def stamp(self, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
        """The time of the next call."""
        if self.next_gap is None:
            self.next_gap = self.rng.uniform(3, 15)
        return (self.start + timedelta(seconds=self.at + self.next_gap)).strftime(form)

    def pause(self, low: float, high: float) -> None:
        """The next call comes that much later."""
        self.next_gap = self.rng.uniform(low, high)

    def call(
        self,
        tool: str,
        arguments: dict[str, Any] | str,
        result: str,
        *,
        facts: Iterable[str] = (),
        state: str | None = None,
        check: tuple[str, str] | None = None,
        wait: tuple[str, str] | None = None,
        fail: str | None = None,
        ask: str = "",
        clears: Iterable[str] = (),
        touch: str = "",
        changes: bool = False,
        ok: bool | None = None,
        gap: float | None = None,
    ) -> None:
        """Record a call and what it meant.

        Args:
            facts: What the result shows, each in one form whatever the wording.
            state: What a change has made of its target, as "target=state".
            check: A check and its answer; it can be worth repeating after a change.
            wait: A look at something that may move, and how far it is.
            fail: The one thing that would have to be repaired.
            ask: What the failed call asked; a new question with a known cause is doubtful.
            clears: The causes whose thing this call needed and got.
            touch: "in", "out" or "both", for calls that touch things with addresses.
            changes: It changes what it touches.
            ok: What the tool reported, where that differs from whether it failed.
            gap: Seconds since the call before; 0 in a parallel turn.
        """
        if gap is None:
            gap = self.next_gap if self.next_gap is not None else self.rng.uniform(3, 15)
        self.next_gap = None
        if self.calls:
            self.at = round(self.at + gap, 1)
        fruitful, doubtful, overdue = False, False, False
        for fact in facts:
            fruitful = fruitful or fact not in self.known
            self.known.add(fact)
        if state is not None:
            fruitful = fruitful or state not in self.states
            self.states.add(state)
            self.changed += 1
        if check is not None:
            fruitful = self._checked(*check) or fruitful
        if wait is not None:
            moved, overdue = self._watched(*wait)
            fruitful = fruitful or moved
        if fail is not None:
            question = f"{fail}?{ask or tool}"
            fruitful = fruitful or fail not in self.causes
            doubtful = not fruitful and question not in self.known
            self.causes.add(fail)
            self.known.add(question)
        self.calls.append(TracedCall(tool, arguments, result, fail is None if ok is None else ok, self.at))
        self.notes.append(
            Note(
                self.at,
                fruitful,
                doubtful,
                fail,
                frozenset(clears),
                touch if self.bounded else "",
                changes,
                overdue and not fruitful,
            )
        )

    def _checked(self, key: str, answer: str) -> bool:
        before = self.checks.get(key)
        if before is None:
            self.checks[key] = (answer, 1, self.changed)
            return True
        last, times, changed = before
        if answer != last:
            self.checks[key] = (answer, 1, self.changed)
            return True
        self.checks[key] = (answer, times + 1, self.changed)
        return changed != self.changed and times <= 2

    def _watched(self, key: str, progress: str) -> tuple[bool, bool]:
        watch = self.watches.get(key)
        if watch is None or watch.progress != progress:
            self.watches[key] = _Watch(progress, self.at, self.at, 1)
            return True, False
        patient = self.at - watch.last >= 20
        watch.last = self.at
        watch.looks += 1
        over = watch.looks > 10 or self.at - watch.since > 900
        return patient and not over, over


def _stall(fruits: list[bool], after: int) -> int | None:
    for first, fruitful in enumerate(fruits):
        if fruitful:
            continue
        for size in (6, 7):
            part = fruits[first : first + size]
            if len(part) < size or sum(part) > 1:
                continue
            if True not in part or size - 1 - part.index(True) >= after:
                return first + 1
    return None


def _cascade(notes: list[Note]) -> int | None:
    groups: dict[str, list[int]] = {}
    found: list[int] = []
    for number, note in enumerate(notes, 1):
        if note.cause is not None:
            groups.setdefault(note.cause, []).append(number)
        for cause in note.clears:
            group = groups.pop(cause, [])
            times = [notes[n - 1].at for n in (*group, number)]
            gaps = [b - a for a, b in pairwise(times)]
            patient = len(group) <= 5 and all(b > a for a, b in pairwise(gaps))
            if len(group) >= 4 and not patient:
                found.append(group[0])
    found += [group[0] for group in groups.values() if len(group) >= 4]
    return min(found, default=None)


def _drift(notes: list[Note], early: bool) -> int | None:
    row: list[tuple[int, bool, bool]] = []
    for number, note in enumerate(notes, 1):
        outside = note.touch == "out"
        if outside and number <= 10 and not note.changes:
            if early:
                row.append((number, False, False))
        elif note.touch:
            row.append((number, outside, note.touch != "in" and note.changes))
    for first in range(max(1, len(row) - 7)):
        part = row[first : first + 8]
        if sum(o for _, o, _ in part) >= 5 or sum(c for _, _, c in part) >= 3:
            return next(number for number, o, c in part if o or c)
    return None


def judge(notes: list[Note]) -> dict[Label, int] | None:
    """The troubles and where they begin; None where a fair reader could differ."""
    sure = [note.fruitful for note in notes]
    kind = [note.fruitful or note.doubtful for note in notes]
    stalls = {_stall(fruits, after) for fruits in (sure, kind) for after in (1, 2)}
    drifts = {_drift(notes, early) for early in (False, True)}
    if len(stalls) > 1 or len(drifts) > 1:
        return None
    since: dict[Label, int] = {}
    (stall,), (drift,), cascade = stalls, drifts, _cascade(notes)
    if stall is None and any(note.overdue for note in notes):
        return None
    if drift is not None and sum(bool(note.touch) for note in notes) < 8:
        return None
    if stall is not None:
        since["stalled"] = stall
    if cascade is not None:
        since["cascading"] = cascade
    if drift is not None:
        since["drifting"] = drift
    return since


class World:
    """One simulated place of work. Methods named stall_, cascade_, drift_ and alike_ perform one episode each."""

    task = ""
    free_task = "Do what you find useful."
    lenient: bool
    """Its tools say that they succeeded where only their words say that they did not."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.run = Run(rng)
        self._work: Iterator[None] | None = None
        self.brief = False
        self.gather: list[Callable[[], None]] | None = None
        self.lenient = rng.random() < 0.5

    def work(self) -> Iterator[None]:
        """Healthy work, one call at each step."""
        raise NotImplementedError

    def look_around(self) -> None:
        """Some looks at what lies near, at the very beginning."""

    def go(self, low: int, high: int | None = None) -> None:
        """Go on with the work for some calls."""
        if self._work is None:
            self._work = self.work()
        for _ in range(self.rng.randint(low, low if high is None else high)):
            next(self._work, None)

    def stuck(self, looks: Iterable[Callable[[], None]]) -> None:
        """Do what leads nowhere, now and then broken by one call of the work."""
        if self.gather is not None:
            self.gather += looks
            return
        since = self.rng.randint(2, 4)
        for look in list(looks)[: self.rng.randint(3, 4) if self.brief else None]:
            look()
            since -= 1
            if since == 0:
                since = self.rng.randint(7, 10)
                self.go(1 if self.rng.random() < 0.6 else 0)

    def alike_soon_given_up(self) -> None:
        """What could become a stall, left after a few looks."""
        self._briefly("stall_")

    def alike_left_in_time(self) -> None:
        """What could become a cascade, left or repaired after two or three failures."""
        self._briefly("cascade_")

    def stall_two_dead_ends(self) -> None:
        """Two things that lead nowhere, in turns."""
        looks = self._gathered("stall_", 9, 15)
        self.stuck(looks)

    def cascade_two_causes(self) -> None:
        """Two causes of failure, in turns; at least one of them comes up four times."""
        acts = self._gathered("cascade_", 8, 11)
        self.between(acts)

    def mends(self) -> bool:
        """Whether the cause of a cascade is put right at its end."""
        return self.gather is None and self.rng.random() < 0.5

    def _gathered(self, prefix: str, low: int, high: int) -> list[Callable[[], None]]:
        names = [name for name in sorted(dir(self)) if name.startswith(prefix) and "_two_dead" not in name]
        acts: list[Callable[[], None]] = []
        for name in self.rng.sample([name for name in names if name != "cascade_two_causes"], 2):
            self.gather = []
            cast("Callable[[], None]", getattr(self, name))()
            acts += self.gather
        self.gather = None
        self.rng.shuffle(acts)
        return acts[: self.rng.randint(low, high)]

    def _briefly(self, prefix: str) -> None:
        self.brief = True
        names = [name for name in sorted(dir(self)) if name.startswith(prefix) and "_two_" not in name]
        name = self.rng.choice(names)
        cast("Callable[[], None]", getattr(self, name))()
        self.brief = False

    def astray(self, acts: Iterable[Callable[[], None]]) -> None:
        """Do each of these outside the task, with calls on the task's own things between them."""
        for act in acts:
            act()
            for _ in range(self.rng.choice((1, 1, 2))):
                before = len(self.run.notes)
                for _ in range(6):
                    self.go(1)
                    if any(note.touch == "in" for note in self.run.notes[before:]):
                        break

    def between(self, acts: Iterable[Callable[[], None]], share: float = 0.0, most: int = 2) -> None:
        """Do each of these with work between most of them."""
        if self.gather is not None:
            self.gather += acts
            return
        share = share or self.rng.choice((0.1, 0.5, 0.9))
        for act in list(acts)[: self.rng.randint(2, 3) if self.brief else None]:
            act()
            if self.rng.random() < share:
                self.go(1, most)


_PREFIX: dict[str, str] = {"stalled": "stall_", "cascading": "cascade_", "drifting": "drift_", "alike": "alike_"}


def _attempt(
    kind: str, make: Callable[[random.Random], World], rng: random.Random, names: list[str], around: bool, free: bool
) -> Trace | None:
    wanted = [next(label for label, prefix in _PREFIX.items() if name.startswith(prefix)) for name in names]
    expected = {trouble for trouble in wanted if trouble != "alike" and not free}
    world = make(rng)
    if free:
        world.task, world.run.bounded = world.free_task, False
    if around:
        world.look_around()
    before = (3, 5, 8, 11, 14, 18, 22) if "drifting" in wanted[:1] else (0, 1, 3, 5, 8, 11, 14, 18, 22)
    world.go(rng.choice(before) if expected else rng.randint(6, 36))
    for name in names:
        cast("Callable[[], None]", getattr(world, name))()
        world.go(rng.randint(3, 14) if name.startswith("alike_") else rng.choice((0, 0, 2, 5, 9, 14)))
    since = judge(world.run.notes)
    if since is None or set(since) != expected or not 12 <= len(world.run.calls) <= 80:
        return None
    labels = cast("tuple[Label, ...]", tuple(sorted(since)) or ("healthy",))
    title = " then ".join(name.replace("_", " ") for name in names) or "plain work"
    title = title.replace("drift ", "alike free to roam, ") if free else title
    return Trace(f"{kind}: {title}", labels, world.task, tuple(world.run.calls), since)


def _mix(rng: random.Random, one: str) -> tuple[str, ...]:
    if one != "healthy":
        troubles = one.split("+")
        rng.shuffle(troubles)
        return tuple(troubles)
    return rng.choice(((), ("alike",), ("alike",), ("alike", "alike"), ("alike", "alike")))


def produce(kind: str, make: Callable[[random.Random], World], rng: random.Random) -> Iterator[Trace]:
    """Trajectories without end, in sixties of 33 healthy ones and ten of each trouble."""
    number = 0
    singles = ("stalled", "cascading", "drifting")
    decks: dict[str, list[str]] = {}
    while True:
        plan = ["healthy"] * 33 + [one for one in singles for _ in range(8)]
        plan += ["stalled+cascading", "stalled+drifting", "cascading+drifting"]
        rng.shuffle(plan)
        for one in plan:
            wanted, around = _mix(rng, one), rng.random() < 0.25
            free = one == "healthy" and rng.random() < 0.12
            wanted = ("drifting",) if free else wanted
            around = around and "drifting" not in wanted
            trace = None
            while trace is None:
                names = [_deal(decks, make, rng, trouble) for trouble in wanted]
                for _ in range(80):
                    trace = _attempt(kind, make, rng, names, around, free)
                    if trace is not None:
                        number += 1
                        yield Trace(f"{trace.name} #{number}", trace.labels, trace.task, trace.calls, trace.since)
                        break


def _deal(decks: dict[str, list[str]], make: Callable[[random.Random], World], rng: random.Random, trouble: str) -> str:
    deck = decks.setdefault(trouble, [])
    if not deck:
        names = sorted(name for name in dir(make(random.Random(0))) if name.startswith(_PREFIX[trouble]))
        deck += names + [name for name in names if "_reading" not in name]
        rng.shuffle(deck)
    return deck.pop()
