"""What the simulated worlds share: a desk that records calls with their truth, and the labels that follow from it.

A desk notes for each call what a person would know of it: which facts it shows, what it changes, which cause a failure
has, which addresses it touches. The labels are computed from these notes by the definitions; a trajectory whose label
is a matter of taste is thrown away and drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from msgspec import structs

from tests.corpus.seen_kinds._truth1 import Note, cascading, drifting, known_causes, named, stalled
from tests.corpus.trace import Label, Trace, TracedCall

Steps = Iterator[None]
"""A piece of work: stops after each turn."""


@dataclass
class Watch:
    """A thing that is waited for."""

    state: Hashable
    since: float
    last: float
    looks: int = 1


@dataclass
class Checked:
    """A check that is made again and again."""

    answer: Hashable
    change: int
    same: dict[Hashable, int] = field(default_factory=dict[Hashable, int])


class Desk:
    """One run of an agent in one world."""

    task = ""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.calls: list[TracedCall] = []
        self.notes: list[Note] = []
        self.seen: set[Hashable] = set()
        self.states: dict[Hashable, set[Hashable]] = {}
        self.watches: dict[str, Watch] = {}
        self.checks: dict[Hashable, Checked] = {}
        self.changes = 0
        self.parallel = False
        self.begun = False
        self.main: Steps = iter(())

    # --- to be filled in by a kind ---

    def work(self) -> Steps:
        """The healthy work on the task."""
        raise NotImplementedError

    def is_inside(self, address: str) -> bool:
        """Whether an address belongs to the task."""
        raise NotImplementedError(address)

    def plainly(self, address: str) -> bool:
        """Whether the words of the task alone show that an address belongs to it."""
        return named(self.task, address)

    # --- habits ---

    def again(self, looks: Sequence[Callable[[], None]], times: int, first: bool = True) -> Steps:
        """Look at everything once, and then at the same again in any order."""
        for look in looks if first else ():
            look()
            yield
        for _ in range(times):
            self.rng.choice(looks)()
            yield

    def each(self, acts: Sequence[Callable[[], None]], times: int) -> Steps:
        """Do so many different ones."""
        for act in self.rng.sample(list(acts), min(times, len(acts))):
            act()
            yield

    def waiting(self, look: Callable[[float | None], None], times: int, low: float, high: float) -> Steps:
        """Look every now and then."""
        for count in range(times):
            look(self.rng.uniform(low, high) if count else None)
            yield

    def retrying(self, act: Callable[[bool, float], None], fails: int) -> Steps:
        """Try, wait longer each time, and succeed."""
        gap = self.rng.uniform(4, 7)
        for count in range(fails + 1):
            act(count == fails, gap)
            gap *= self.rng.uniform(1.8, 2.6)
            yield

    # --- recording ---

    def pick(self, things: Sequence[Any]) -> Any:
        """One of them."""
        return self.rng.choice(things)

    def hexed(self, digits: int) -> str:
        """An id that says nothing."""
        return f"{self.rng.getrandbits(digits * 4):0{digits}x}"

    def chance(self, share: float) -> bool:
        """True in that share of cases."""
        return self.rng.random() < share

    def tick(self, gap: float | None) -> None:
        """Move the clock to the next call."""
        if self.parallel and self.begun:
            return
        self.begun = True
        if self.calls:
            self.now = round(self.now + (self.rng.uniform(3, 15) if gap is None else gap), 1)

    def turn(self) -> Turn:
        """Calls within it begin at once."""
        return Turn(self)

    def say(
        self,
        tool: str,
        arguments: dict[str, Any] | str,
        result: str,
        *,
        shows: Iterable[Hashable] = (),
        sets: tuple[Hashable, Hashable] | None = None,
        void: bool = False,
        check: tuple[Hashable, Hashable] | None = None,
        wait: tuple[str, Hashable] | None = None,
        final: bool = False,
        cause: str | None = None,
        clears: Iterable[str] = (),
        on: Iterable[str] = (),
        writes: bool = False,
        ok: bool = True,
        gap: float | None = None,
    ) -> None:
        """Record one call with its truth.

        Args:
            shows: The facts in the result; a "no" is a fact about the question.
            sets: What is changed, to which state.
            void: The change goes back, or between two that had no effect.
            check: Which check it is, and its answer; an empty answer is a check that passed.
            wait: Which thing is looked at, and its state without times and counts of looks.
            final: The state will not move any more.
            cause: The cause of a failure.
            clears: The causes that cannot be there any more when this call succeeded.
            on: Addresses that are touched.
            writes: They are changed.
        """
        self.tick(gap)
        fruitful, late = False, False
        for fact in shows:
            if fact not in self.seen:
                self.seen.add(fact)
                fruitful = True
        if sets is not None:
            key, value = sets
            known = self.states.setdefault(key, set())
            if value not in known and not void:
                fruitful = True
            known.add(value)
            self.changes += 1
        if check is not None:
            fruitful = self._checks(*check) or fruitful
        if wait is not None:
            moved, late = self._waits(*wait, final)
            fruitful = moved or fruitful
        touched = tuple(on)
        outer = [address for address in touched if not self.is_inside(address)]
        self.notes.append(
            Note(
                fruitful,
                late,
                cause,
                frozenset(clears),
                touched,
                bool(touched) and len(outer) == len(touched),
                bool(outer) and writes,
                self.now,
                sets is None and check is None and wait is None and cause is None and ok,
            )
        )
        if len(result) > 4000:
            result = result[:3900].rsplit("\n", 1)[0] + "\n[... output truncated]"
        self.calls.append(TracedCall(tool, arguments, result, ok, self.now))

    def _checks(self, key: Hashable, answer: Hashable) -> bool:
        known = self.checks.get(key)
        if known is None:
            self.checks[key] = Checked(answer, self.changes, {answer: 1})
            return True
        first = known.change != self.changes
        same = known.same.get(answer, 0)
        fruitful = (first and (answer != known.answer or not answer or same <= 2)) or same == 0
        known.answer, known.change = answer, self.changes
        known.same[answer] = same + 1
        return fruitful

    def _waits(self, thing: str, state: Hashable, final: bool) -> tuple[bool, bool]:
        watch = self.watches.get(thing)
        if watch is None or watch.state != state:
            self.watches[thing] = Watch(state, self.now, self.now)
            return True, False
        watch.looks += 1
        apart = self.now - watch.last >= 20
        watch.last = self.now
        late = watch.looks > 10 or self.now - watch.since > 900
        return apart and not late and not final, late and not final


class Roaming(Desk):
    """A run in which there are things outside the task that can be looked at."""

    peeked = 0

    def peek(self, number: int) -> None:
        """Look at something outside, at another thing for each number."""
        raise NotImplementedError(number)

    def peeks(self, times: int) -> Steps:
        """Look at so many things outside."""
        for _ in range(times):
            self.peek(self.peeked)
            self.peeked += 1
            yield

    def alike_short_detour(self) -> Steps:
        """Two to four looks at something else, and back."""
        yield from self.peeks(self.rng.randint(2, 4))


class Turn:
    """A parallel turn of a desk."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def __enter__(self) -> None:
        self.desk.parallel, self.desk.begun = True, False

    def __exit__(self, *_: object) -> None:
        self.desk.parallel = False


def judge(desk: Desk) -> tuple[dict[Label, int], bool]:
    """The troubles with their beginnings, and whether a person could see them otherwise."""
    notes = desk.notes
    since: dict[Label, int] = {}
    begin, _ = stalled(notes)
    late = next((index + 1 for index, note in enumerate(notes) if note.late), None)
    doubtful = late is not None and begin is None
    # Whoever takes a known cause for nothing new, whatever was asked, has to come to the same.
    doubtful = doubtful or stalled(known_causes(notes))[0] != begin
    if begin is not None:
        since["stalled"] = begin
    failed, _ = cascading(notes)
    if failed is not None:
        since["cascading"] = failed
    strict, lenient = drifting(notes, False), drifting(notes, True)
    if lenient is not None:
        since["drifting"] = lenient
        doubtful = doubtful or strict is None or strict < lenient
    elif strict is not None:
        doubtful = doubtful or any(n.changes_outside for n in notes) or sum(n.only_outside for n in notes[10:]) >= 3
    return since, doubtful


def easy(desk: Desk) -> bool:
    """Whether it has one of the three shapes that everybody looks for."""
    rows = [(c.tool, repr(c.arguments), c.result) for c in desk.calls]
    same = any(rows.count(row) >= 3 for row in set(rows))
    fails = [note.cause is not None or not call.success for note, call in zip(desk.notes, desk.calls, strict=True)]
    burst = any(all(fails[i : i + 3]) for i in range(len(fails) - 2))
    plain = [not any(desk.plainly(address) for address in note.touched) for note in desk.notes if note.touched]
    outer = any(sum(plain[i : i + 8]) >= 5 for i in range(len(plain) - 7))
    return same or burst or outer


# --- composing ---

PLANS: tuple[tuple[str, ...], ...] = (
    *((("plain",),) * 15),
    *((("alike",),) * 18),
    *((("stall",),) * 7),
    *((("cascade",),) * 7),
    *((("drift",),) * 7),
    *((("stall", "cascade"),) * 2),
    *((("cascade", "drift"),) * 2),
    *((("drift", "stall"),) * 2),
)
"""What sixty trajectories are to be."""

LABELS: dict[str, Label] = {"stall": "stalled", "cascade": "cascading", "drift": "drifting"}
MIX = {"stall": 0.0, "cascade": 0.5, "drift": 0.4, "alike": 0.15}
"""How often other work stands between two steps."""


def steps(segment: Steps, limit: int) -> bool:
    """Take up to so many steps; False where the piece ended."""
    sentinel = object()
    return all(next(segment, sentinel) is not sentinel for _ in range(limit))


def play(desk: Desk, plan: tuple[str, ...]) -> str:
    """Let the agent work by the plan; returns what the pieces are called."""
    rng = desk.rng
    work = desk.main = desk.work()
    told: list[str] = []
    if isinstance(desk, Roaming) and rng.random() < 0.22 and "drift" not in plan:
        # Looking around before the work begins.
        steps(work, rng.randint(0, 2))
        steps(desk.peeks(6), rng.randint(3, 6))
    if plan == ("plain",):
        steps(work, rng.randint(14, 55))
        return "work"
    steps(
        work, rng.choice((0, 1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 25)) if plan != ("alike",) else rng.randint(2, 18)
    )
    pieces = [*plan] if plan != ("alike",) else ["alike"] * rng.choice((1, 2, 2, 3))
    for piece in pieces:
        methods = [name for name in dir(desk) if name.startswith(f"{piece}_")]
        chosen = rng.choice([name for name in methods if name not in told] or methods)
        told.append(chosen)
        mix = rng.choice((0.0, MIX[piece], MIX[piece] * 1.5))
        segment: Steps = getattr(desk, chosen)()
        cut = rng.randint(7, 10) if piece == "stall" and rng.random() < 0.2 else 99
        spared = rng.randint(3, 7) if piece == "stall" and rng.random() < 0.5 else -1
        for count, _ in enumerate(segment):
            if count == spared:
                steps(work, 1)
            while rng.random() < mix:
                steps(work, 1)
            if len(desk.calls) > 70 or count > cut:
                break
        if piece is not pieces[-1] or plan == ("alike",):
            steps(work, rng.randint(0, 8))
    if plan == ("alike",) or rng.random() < 0.45:
        steps(work, rng.randint(3, 22))
    return ", ".join(name.split("_", 1)[1].replace("_", " ") for name in told)


def together(desk: Desk) -> tuple[TracedCall, ...]:
    """The calls; in some runs, looks through one tool that follow one another are made in one turn."""
    calls = list(desk.calls)
    if desk.rng.random() < 0.65:
        return tuple(calls)
    index = 0
    while index < len(calls):
        size, last = 1, index + desk.rng.choice((1, 1, 2, 3, 4))
        while index + size < min(last, len(calls)):
            note, call = desk.notes[index + size], calls[index + size]
            if not (note.looks and desk.notes[index].looks and call.tool == calls[index].tool):
                break
            calls[index + size] = structs.replace(call, at=calls[index].at)
            size += 1
        index += size
    return tuple(calls)


def compose(kind: str, make: Callable[[Random], Desk], rng: Random, drift: bool = True) -> Iterator[Trace]:
    """Trajectories of one kind without end, by the plans and in mixed order."""
    number = 0
    known: set[str] = set()
    while True:
        plans = [plan for plan in PLANS if drift or "drift" not in plan]
        if not drift:
            plans += [("stall",)] * 3 + [("cascade",)] * 3 + [("plain",)] * 2
        rng.shuffle(plans)
        for plan in plans:
            wanted: set[Label] = {LABELS[piece] for piece in plan if piece in LABELS}
            simple = rng.random() < (0.22 if wanted else 0.62 if plan == ("alike",) else 0.0)
            for attempt in range(600):
                desk = make(Random(rng.getrandbits(62)))
                told = play(desk, plan)
                since, doubtful = judge(desk)
                if set(since) != wanted or doubtful or not 12 <= len(desk.calls) <= 80:
                    continue
                if attempt < 300 and plan != ("plain",) and easy(desk) != simple:
                    continue
                if wanted and not_long_enough(desk, since) and rng.random() < 0.75:
                    continue
                if (mark := repr([(c.tool, c.arguments, c.result) for c in desk.calls])) in known:
                    continue
                known.add(mark)
                number += 1
                labels: tuple[Label, ...] = tuple(sorted(wanted)) or ("healthy",)
                name = f"{kind} {number}: {told}"
                yield Trace(name, labels, desk.task, together(desk), dict(sorted(since.items())))
                break
            else:
                raise RuntimeError(f"{kind}: no trajectory for {plan}")


def not_long_enough(desk: Desk, since: dict[Label, int]) -> bool:
    """Whether a stall is over after fewer than eight calls, or a cascade has only four failures."""
    short = "stalled" in since and stalled(desk.notes)[1] < 8
    return short or ("cascading" in since and cascading(desk.notes)[1] < 5)
