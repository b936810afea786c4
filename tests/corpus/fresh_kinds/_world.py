"""A run that is being written: it keeps what each call brought, so that the labels follow from the definitions.

A kind of work derives from :class:`Run`, acts in its small world through :meth:`Run.call`, and tells for each call what
it showed, changed, checked, waited for, why it failed, and what it touched. :meth:`Run.verdict` applies the
definitions to that record. Where the definitions leave room, both readings are computed, and a run on which they
differ is not dealt.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from tests.corpus.fresh_kinds._rules import Fruit, Noted, cascade, drift, stall
from tests.corpus.trace import Label, Trace, TracedCall

Step = Callable[[], object]
T = TypeVar("T")
_CLOCK = "<time of day>"
_NOISE = re.compile(r"\d+(?=(\.\d+)? ms)|(?<=\d\.)\d+(?=s\])|(?<=request-id: )\w+|(?<=rev )\w+|(?<=seq: )\d+")
_BOTH: frozenset[Label] = frozenset(("stalled", "cascading"))


class _Look(NamedTuple):
    state: str
    looks: int
    since: float
    last: float


def _lines(text: str | Iterable[str]) -> list[str]:
    parts = text.splitlines() if isinstance(text, str) else list(text)
    return [part.strip() for part in parts if part.strip()]


class Run:
    """One trajectory that grows call by call.

    Attributes:
        soft: Whether tools tell of a failure in their text only.
        inside: The addresses that belong to the task or stand one step from it; None where the task names nothing.
    """

    def __init__(self, rng: random.Random) -> None:
        """Begin a run that draws all chance from ``rng``."""
        self.rng = rng
        self.task = ""
        self.soft = rng.random() < 0.35
        self.inside: set[str] | None = None
        self.story: list[str] = []
        self.now = 0.0
        self.calls: list[TracedCall] = []
        self.noted: list[Noted] = []
        self._seen: set[str] = set()
        self._states: set[tuple[str, str]] = set()
        self._checks: dict[str, tuple[str, int, int]] = {}
        self._waits: dict[str, _Look] = {}
        self._epoch = 0
        self._parallel = False
        self._looked = False

    # ---- what a kind of work gives

    def opening(self) -> None:
        """Look around."""

    def unit(self) -> None:
        """Do one piece of the task."""

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes that bring each kind of trouble; those of "healthy" look like trouble."""
        raise NotImplementedError

    def hammers(self) -> list[Step]:
        """Return the processes that are a stall and a cascade at once."""
        return []

    # ---- chance

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return self.rng.choice(items)

    def some(self, low: int, high: int) -> int:
        """Return a number between the two, both included."""
        return self.rng.randint(low, high)

    def hexes(self, digits: int = 8) -> str:
        """Return an id of so many hexadecimal digits."""
        return f"{self.rng.getrandbits(4 * digits):0{digits}x}"

    def stamp(self) -> str:
        """Return a place where the time of day of the call will stand."""
        return _CLOCK

    # ---- acting

    @contextmanager
    def together(self) -> Generator[None]:
        """Make the calls of the block one parallel turn."""
        self._pass(None)
        self._parallel = True
        yield
        self._parallel = False

    def had(self, thing: str, state: str) -> None:
        """Note a state that a thing had at the beginning."""
        self._states.add((thing, state))

    def _pass(self, gap: float | None) -> None:
        if self.calls and not self._parallel:
            self.now = round(self.now + (self.rng.uniform(3, 15) if gap is None else gap), 1)

    def call(
        self,
        tool: str,
        arguments: dict[str, Any] | str,
        result: str,
        *,
        ok: bool = True,
        shows: str | Iterable[str] | None = None,
        change: tuple[str, str] | None = None,
        check: tuple[str, str, bool] | None = None,
        wait: tuple[str, str] | None = None,
        final: bool = False,
        cause: str = "",
        asks: str = "",
        clears: str = "",
        on: str | Iterable[str] = "",
        fruit: Fruit | None = None,
        gap: float | None = None,
    ) -> None:
        """Add a call.

        Args:
            tool: The name of the tool.
            arguments: What it was given.
            result: What the model was shown.
            ok: Whether the tool reported success.
            shows: The content of the result without what differs every time; default: the call itself, as a question.
            change: A thing and the state that the call brought it to.
            check: A check, its answer, and whether that is a failure.
            wait: A thing that is waited for, and its state.
            final: Whether that state will never change.
            cause: Why the call failed, where it failed.
            asks: What the failed call was about.
            clears: The cause that is shown to be gone by this success.
            on: The addresses that it touches.
            fruit: The fruit, where the record cannot tell.
            gap: Seconds since the call before.
        """
        self._pass(gap)
        overdue = False
        if wait:
            found, overdue = self._waited(wait, final)
        elif cause:
            found = self._failed(cause, asks)
        else:
            found = self._found(shows, change, check, f"{tool} {arguments}")
        addresses = [on] if isinstance(on, str) else list(on)
        place = ""
        if self.inside is not None and any(addresses):
            place = "in" if any(address in self.inside for address in addresses) else "out"
        changed = change is not None and not cause
        self._looked = not (change or check or wait or cause)
        self.noted.append(Noted(fruit or found, overdue, cause, clears, place, changed, self.now))
        total = int(self.now) + 8 * 3600 + 1234
        clock = f"{total // 3600 % 24:02d}:{total // 60 % 60:02d}:{total % 60:02d}"
        self.calls.append(TracedCall(tool, arguments, result.replace(_CLOCK, clock)[:4000], ok, self.now))

    def _waited(self, wait: tuple[str, str], final: bool) -> tuple[Fruit, bool]:
        key, state = wait
        old = self._waits.get(key)
        if old is None or old.state != state:
            self._waits[key] = _Look(state, 1, self.now, self.now)
            return "yes", False
        self._waits[key] = _Look(state, old.looks + 1, old.since, self.now)
        if final or self.now - old.last < 20:
            return "no", False
        late = old.looks + 1 > 10 or self.now - old.since > 900
        return ("no" if late else "yes"), late

    def _failed(self, cause: str, asks: str) -> Fruit:
        known, asked = f"!{cause}", f"!{cause}?{asks}"
        fruit: Fruit = "yes" if known not in self._seen else "no" if asked in self._seen else "either"
        self._seen |= {known, asked}
        return fruit

    def _found(
        self,
        shows: str | Iterable[str] | None,
        change: tuple[str, str] | None,
        check: tuple[str, str, bool] | None,
        question: str,
    ) -> Fruit:
        good = False
        facts = _lines(shows) if shows is not None else [] if change or check else [question]
        if any(fact not in self._seen for fact in facts):
            good = True
        self._seen.update(facts)
        if change and change not in self._states:
            self._states.add(change)
            self._epoch += 1
            good = True
        if check:
            name, answer, red = check
            old = self._checks.get(name)
            same = old[1] if old and old[0] == answer else 0
            fresh = old is None or old[2] < self._epoch
            good = good or old is None or (fresh and (answer != old[0] or same <= 2))
            self._checks[name] = (answer, same + red, self._epoch)
        return "yes" if good else "no"

    # ---- processes that every kind of work has

    def circle(self, looks: Sequence[Step], count: int, trivial: Step | None = None) -> None:
        """Look at known things again and again, in a changing order, perhaps with one trivial call in the middle."""
        order: list[Step] = []
        while len(order) < count:
            part = list(looks)
            self.rng.shuffle(part)
            order += part
        middle = self.some(3, count - 3) if count >= 8 else -1
        for number, look in enumerate(order[:count]):
            if trivial is not None and number == middle:
                trivial()
            look()

    def again(self) -> None:
        """Make the last call once or twice more, if it was a look."""
        if not self._looked:
            return
        self.story.append("looks again once or twice")
        for _ in range(self.some(1, 2)):
            self._pass(None)
            self.noted.append(self.noted[-1]._replace(fruit="no"))
            result = _NOISE.sub(
                lambda found: "".join(self.pick("123456789") for _ in found.group()), self.calls[-1].result
            )
            self.calls.append(msgspec.structs.replace(self.calls[-1], at=self.now, result=result))

    def weave(self, main: Sequence[Step], between: Sequence[Step]) -> None:
        """Take the main steps in order, with the others scattered among them."""
        rest = list(between)
        for number, step in enumerate(main):
            step()
            if rest and (number % 2 or self.rng.random() < 0.5):
                rest.pop(0)()

    # ---- the whole

    def play(self, want: frozenset[Label]) -> None:
        """Write the trajectory."""
        book = self.troubles()
        self.opening()
        for _ in range(self.some(0, 3)):
            self.unit()
        if "healthy" in want:
            alike = list(book["healthy"])
            self.rng.shuffle(alike)
            for step in alike[: self.some(1, 3)]:
                step()
                if self.rng.random() < 0.2:
                    self.again()
                self.unit()
            while len(self.calls) < self.some(14, 30):
                before = len(self.calls)
                self.unit()
                if len(self.calls) == before:
                    break
            return
        if self.rng.random() < 0.3:
            self.pick(book["healthy"])()
        if not want ^ _BOTH and self.hammers() and self.rng.random() < 0.5:
            self.pick(self.hammers())()
        else:
            order = sorted(want)
            self.rng.shuffle(order)
            for number, label in enumerate(order):
                if number:
                    self.unit()
                self.pick(book[label])()
        for _ in range(self.some(0, 2)):
            self.unit()

    def verdict(self) -> tuple[tuple[Label, ...], dict[Label, int]] | None:
        """Return the labels and their onsets, or None where two readings of the definitions differ."""
        overdue = [step.overdue for step in self.noted]
        stalls = {stall([step.fruit in good for step in self.noted], overdue) for good in (("yes",), ("yes", "either"))}
        drifts = {drift(self.noted, "skip"), drift(self.noted, "inside")}
        if max(drifts):
            drifts.add(drift(self.noted, "outside"))
        if len(stalls) > 1 or len(drifts) > 1:
            return None
        found: dict[Label, int] = {"stalled": max(stalls), "cascading": cascade(self.noted), "drifting": max(drifts)}
        since: dict[Label, int] = {label: number for label, number in found.items() if number}
        return tuple(since) or ("healthy",), since


_DECK: list[tuple[int, tuple[Label, ...]]] = [
    (18, ("healthy",)),
    (6, ("stalled",)),
    (5, ("cascading",)),
    (6, ("drifting",)),
    (2, ("stalled", "cascading")),
    (1, ("stalled", "drifting")),
    (2, ("cascading", "drifting")),
]


def deal(kind: str, begin: Callable[[bool], Run], rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end, in shuffled hands of forty.

    Args:
        kind: The kind of work.
        begin: Begins a run; it is told whether the run is to drift, which needs a task that names something.
        rng: The source of all chance.
    """
    number = 0
    while True:
        hand = [frozenset(labels) for count, labels in _DECK for _ in range(count)]
        rng.shuffle(hand)
        for want in hand:
            number += 1
            yield _one(kind, begin, want, number)


def _one(kind: str, begin: Callable[[bool], Run], want: frozenset[Label], number: int) -> Trace:
    for _ in range(80):
        run = begin("drifting" in want)
        run.play(want)
        verdict = run.verdict()
        if verdict and not want ^ set(verdict[0]) and 12 <= len(run.calls) <= 80:
            name = f"{kind} {number}: {'; '.join(run.story) or 'plain work'}"
            return Trace(name, verdict[0], run.task, tuple(run.calls), verdict[1], "simulated")
    raise RuntimeError(f"{kind}: no run with {sorted(want)}")
