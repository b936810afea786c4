"""An observer that suspects trouble by simple rules, so that a judge is asked; the agent never hears it.

`SuspicionRules` is right far less often than a detector: it is to miss little, and a judge says what is true. It has
three rules: several of the newest calls brought nothing new or failed (a stall or an error cascade may begin), some of
the newest calls touched only things outside the task, or they name much that neither the task nor any call before
named, and hardly anything of the task (the agent may have left it).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import msgspec

from watchkeeper.observers.drift.detector import DriftDetector, follower_of
from watchkeeper.observers.evidence import check_settings, cite
from watchkeeper.observers.progress import Progress
from watchkeeper.observers.questions import DEEPEST
from watchkeeper.observers.reading import readings_of
from watchkeeper.observers.stall import StallDetector
from watchkeeper.prompt.advice import SUSPICION, Assessment, Observation
from watchkeeper.prompt.observer import ObserverContext, on_loop
from watchkeeper.prompt.trajectory import KEPT_CALLS
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked

WORD: Final = re.compile(r"[^\W_]{2,}")
TEXT_CHARS: Final = 160
"""Longer texts among the arguments are what the agent writes, not what it works on; they are not read."""

TEXTS: Final = 50
"""How many texts of one call's arguments are read."""

KNOWN: Final = 20_000
"""The number of words that are remembered, the newest ones."""

INSIDE: Final = 3
"""If so many of the newest calls touched things of the task, new words are none that lead away from it."""

WATCHED: Final = DriftDetector()
"""Its thresholds do not matter here: what it knows of each call is asked for."""

WAITING: Final = StallDetector()
"""Its thresholds say what is waiting, which is never suspect."""


class Suspected(NamedTuple):
    """A suspicion, as it stood after one of the calls."""

    after: int
    category: str
    said: str
    indices: Sequence[int]


class Suspicions:
    """The suspicions of one trajectory: a fold over its calls."""

    __slots__ = ("_bad", "_known", "_new", "_progress", "_rules", "_sides", "_task", "count", "found", "last")

    def __init__(self, rules: SuspicionRules, task: str) -> None:
        """Begin before the first call."""
        self._rules = rules
        self._progress = Progress(WAITING.apart, WAITING.looks, WAITING.patience)
        self._task = words_of(task)
        self._known: dict[str, None] = {}
        self._bad: deque[int] = deque(maxlen=rules.window)
        self._new: deque[int] = deque(maxlen=rules.ground)
        self._sides: deque[tuple[int, str]] = deque(maxlen=max(rules.window, rules.ground))
        self.count = self.last = 0
        self.found: deque[Suspected] = deque(maxlen=rules.ground)

    def follow(self, context: ObserverContext) -> None:
        """Read the calls that are new."""
        trajectory = context.trajectory
        calls = context.session[ToolInvoked].all()
        sides = {call.number: call.side for call in follower_of(WATCHED, context).calls}
        for call in readings_of(context).since(self.count):
            side = sides.get(call.index, "")
            if side:
                self._sides.append((call.index, side))
            fruitless = self._progress.judge(call).weight > 0
            self._add(call.index, fruitless or call.outcome == "failed", words_in(calls[call.index - 1].params), side)
        self.count = trajectory.count

    def _add(self, index: int, bad: bool, words: frozenset[str], side: str) -> None:
        rules = self._rules
        new = [word for word in words if word not in self._known and word not in self._task]
        for word in words:
            self._known.pop(word, None)
            self._known[word] = None
        for word in list(islice(self._known, max(len(self._known) - KNOWN, 0))):
            del self._known[word]
        self._new.append(len(new))
        if bad:
            self._bad.append(index)
        recent = [each for each in self._bad if each > index - rules.window]
        if bad and len(recent) >= rules.unfruitful:
            said = f"{len(recent)} of the last {rules.window} calls failed or brought nothing new"
            self._suspect(Suspected(index, "unfruitful", said, recent))
            return
        outside = self._outside()
        if side == "out" and len(outside) >= rules.outside and index - self.last >= 2 * rules.window:
            said = f"{len(outside)} of the last {rules.window} comparable calls touched nothing that the task names"
            self._suspect(Suspected(index, "outside", said, outside))
        elif sum(self._new) >= rules.new_words and not self._is_home(index) and index - self.last >= rules.apart:
            said = f"the last {rules.ground} calls name {sum(self._new)} things that neither task nor calls had named"
            self._suspect(Suspected(index, "new_ground", said, range(max(index - rules.ground, 0) + 1, index + 1)))

    def _outside(self) -> Sequence[int]:
        return [number for number, side in list(self._sides)[-self._rules.window :] if side == "out"]

    def _is_home(self, index: int) -> bool:
        newest = (side for number, side in self._sides if number > index - self._rules.ground)
        return sum(side == "in" for side in newest) >= INSIDE

    def _suspect(self, found: Suspected) -> None:
        self.last = found.after
        self.found.append(found)


@dataclass(frozen=True, slots=True)
class SuspicionRules:
    """Suspects that an agent may be in trouble; judges with ``ObserverTrigger(on_suspicion=True)`` are then asked.

    Let it look at every call. The agent is never told what it suspects.

    Attributes:
        window: The number of the newest calls of which some failed or brought nothing new.
        unfruitful: How many of them are suspect.
        outside: How many of as many calls that touch something comparable touch only things outside the task (as
            `DriftDetector` reads them) and are suspect.
        ground: The number of the newest calls whose arguments are searched for new words; texts of more than 160
            characters are not.
        new_words: How many words that neither the task nor an earlier call has are suspect.
        apart: Calls since its last suspicion before new words are suspect again; for work outside, twice ``window``.
        name: Its name.
    """

    window: int = 4
    unfruitful: int = 2
    outside: int = 2
    ground: int = 8
    new_words: int = 11
    apart: int = 11
    name: str = "Suspicion"

    def __post_init__(self) -> None:
        """Refuse thresholds out of range.

        Raises:
            ObserverError: Naming the field and its value.
        """
        check_settings(self, window=(1, KEPT_CALLS), ground=(1, KEPT_CALLS), new_words=(1, None), apart=(1, None))
        check_settings(self, unfruitful=(1, self.window), outside=(1, self.window))

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether something was suspected after one of the calls since the last look."""
        return self._newest(context) is not None

    @on_loop
    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Return the newest suspicion since the last look."""
        found = self._newest(context)
        if found is None:
            return None
        evidence = cite(session[ToolInvoked].all(), found.indices)
        observed = Observation(found.category, found.said, evidence)
        return Assessment(self.name, f"{found.said}.".capitalize(), (observed,), severity=SUSPICION)

    def _newest(self, context: ObserverContext) -> Suspected | None:
        trajectory = context.trajectory
        kept = trajectory.fold(self, lambda: Suspicions(self, context.task))
        if kept.count != trajectory.count:
            kept.follow(context)
        unseen = trajectory.unseen_by(self.name)
        newest = kept.found[-1] if kept.found else None
        return newest if newest is not None and newest.after > trajectory.count - unseen else None


def words_in(params: Any) -> frozenset[str]:
    """Return the words among a call's arguments, in lower case, without those of long texts."""
    texts = islice(_texts(params), TEXTS)
    return frozenset(word for text in texts if len(text) <= TEXT_CHARS for word in words_of(text))


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text, in lower case."""
    return frozenset(WORD.findall(text.lower()))


def _texts(value: Any, depth: int = 0) -> Iterable[str]:
    """Yield every text and number in a value, depth first, down to `DEEPEST`."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float):
        yield str(value)
    elif depth >= DEEPEST:
        return
    elif isinstance(value, dict):
        for each in cast("dict[str, Any]", value).values():
            yield from _texts(each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in cast("Sequence[Any]", value):
            yield from _texts(each, depth + 1)
    elif value is not None:
        yield from _texts(msgspec.to_builtins(value, enc_hook=repr), depth + 1)
