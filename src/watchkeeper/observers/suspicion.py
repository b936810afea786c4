"""An observer that suspects trouble by a score, so that a judge is asked; the agent never hears it.

`SuspicionRules` is right far less often than a detector: it is to miss little, and a judge says what is true. After
every call the signs of trouble (`signs`) are weighed, once each for a stall, an error cascade and drift; the weights
are fitted (`suspicion_weights`). Questions are bounded, so it suspects where the score is high. The score that it takes
is highest just after a suspicion and falls with every call, faster if questions were saved; at the end of a long
interval one is due on any account.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from watchkeeper.core.errors import ObserverError
from watchkeeper.core.quantities import is_number
from watchkeeper.observers.drift.detector import DriftDetector, follower_of
from watchkeeper.observers.evidence import check_settings, cite
from watchkeeper.observers.reading import readings_of
from watchkeeper.observers.signs import SOME, Noted, Signs
from watchkeeper.observers.suspicion_weights import WEIGHTS
from watchkeeper.prompt.advice import SUSPICION, Assessment, Observation
from watchkeeper.prompt.observer import ObserverContext, on_loop
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked

FOUND: Final = 8
"""The number of suspicions that are remembered, the newest ones."""

URGE: Final = 0.7
"""How fast the needed score falls with each question that was saved, as an exponent."""

SAVED: Final = 2.0
"""So many saved questions count at most."""

NEW_GROUND: Final = 11
HOME: Final = 2
ASTRAY: Final = 0.2
"""So many new names in the newest calls, of which at most so many touch something of the task, add so much to the
score: a logistic regression knows no "and"."""

WATCHED: Final = DriftDetector()
"""Its thresholds do not matter here: what it knows of each call is asked for."""


class Suspected(NamedTuple):
    """A suspicion, as it stood after one of the calls."""

    after: int
    category: str
    said: str
    indices: Sequence[int]


class Suspicions:
    """The suspicions of one trajectory: a fold over its calls."""

    __slots__ = ("_raised", "_rules", "_signs", "count", "found", "last")

    def __init__(self, rules: SuspicionRules, task: str) -> None:
        """Begin before the first call."""
        self._rules = rules
        self._signs = Signs(task)
        self._raised = self.count = self.last = 0
        self.found: deque[Suspected] = deque(maxlen=FOUND)

    def follow(self, context: ObserverContext) -> None:
        """Read the calls that are new."""
        calls = context.session[ToolInvoked].all()
        sides = {call.number: call.side for call in follower_of(WATCHED, context).calls}
        for call in readings_of(context).since(self.count):
            signs = self._signs.add(call, calls[call.index - 1].params, sides.get(call.index, ""))
            chances = chances_of(signs)
            astray = ASTRAY * _is_astray(self._signs.newest)
            if self._is_due(call.index, sum(chances.values()) + astray):
                self._raised, self.last = self._raised + 1, call.index
                self.found.append(_described(call.index, chances, self._signs.newest))
        self.count = context.trajectory.count

    def _is_due(self, index: int, score: float) -> bool:
        """Return whether a score after a call is worth one of the questions that may be asked."""
        rules = self._rules
        since, apart = index - self.last, max(2 * rules.one_in // 3, 1)
        if self._raised and (self._raised * rules.one_in >= index or since < apart):
            return False
        saved = min(index / rules.one_in - self._raised, SAVED)
        needed = rules.least * (1 - since / rules.at_latest) * math.exp(-URGE * saved)
        return score * min(since / apart, 1.0) >= needed


def chances_of(signs: Sequence[float]) -> dict[str, float]:
    """Return the chances that a stall, a cascade, drift began within the last ten calls, by the signs after them."""
    chances: dict[str, float] = {}
    for trouble, (base, *weights) in WEIGHTS.items():
        chances[trouble] = 1 / (
            1 + math.exp(-base - sum(weight * sign for weight, sign in zip(weights, signs, strict=True)))
        )
    return chances


def _is_astray(newest: Sequence[Noted]) -> bool:
    """Return whether the newest calls name much that is new, and hardly anything of the task."""
    names = sum(each.new_names for each in newest)
    return names >= NEW_GROUND and sum(each.side == "in" for each in newest) <= HOME


def _described(index: int, chances: dict[str, float], newest: Sequence[Noted]) -> Suspected:
    """Return a suspicion in words, with the calls that speak for it."""
    bad = [each.index for each in newest if each.bad]
    outside = [each.index for each in newest if each.side == "out"]
    strays = chances["drifting"] >= max(chances["stalled"], chances["cascading"])
    last = f"of the last {SOME} calls"
    if bad and not (strays and outside):
        return Suspected(index, "unfruitful", f"{len(bad)} {last} failed or brought nothing new", bad)
    if outside:
        return Suspected(index, "outside", f"{len(outside)} {last} touched nothing that the task names", outside)
    if names := sum(each.new_names for each in newest):
        named = [each.index for each in newest if each.new_names]
        said = f"the last {SOME} calls name {names} things that neither task nor calls had named"
        return Suspected(index, "new_ground", said, named)
    return Suspected(index, "interval", "nothing was suspected for long", [each.index for each in newest])


@dataclass(frozen=True, slots=True)
class SuspicionRules:
    """Suspects that an agent may be in trouble; judges with ``ObserverTrigger(on_suspicion=True)`` are then asked.

    Let it look at every call. The agent is never told what it suspects.

    Attributes:
        least: The score that a suspicion takes if none was saved; the score is the sum of three chances, that a stall,
            an error cascade or drift began within the last ten calls, and a little more where the calls name much that
            is new and hardly anything of the task. Above 0.
        one_in: It suspects at most once in so many calls on average, and not twice within two thirds of them.
        at_latest: So many calls after its last suspicion it suspects on any account.
        name: Its name.
    """

    least: float = 0.5
    one_in: int = 15
    at_latest: int = 40
    name: str = "Suspicion"

    def __post_init__(self) -> None:
        """Refuse thresholds out of range.

        Raises:
            ObserverError: Naming the field and its value.
        """
        check_settings(self, one_in=(1, None), at_latest=(1, None))
        value: object = self.least
        if not is_number(value) or value <= 0:
            raise ObserverError(f"SuspicionRules(least={value!r}) must be a number above 0")

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
