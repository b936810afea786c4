"""The observer of an agent that makes no progress.

`StallDetector` keeps a score: a call that brings nothing new counts for a stall, news counts against it (`progress`
says which call is which). It speaks after each fruitless call while the score stands at its threshold. A turn may have
several calls, so every call since the last look is judged by itself, and a stall that was left within the turn is told,
too.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from watchkeeper.core.errors import ObserverError
from watchkeeper.core.quantities import is_number
from watchkeeper.observers.evidence import CallByCall, check_settings, cite, shorten
from watchkeeper.observers.progress import Progress
from watchkeeper.observers.reading import Reading, readings_of
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import KEPT_CALLS
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked

LOOKED_BACK: Final = 20
"""The number of calls since the last look whose stalls are told, the newest ones."""

CEILING: Final = 2.0
"""The score is at most so many times the threshold, so that two pieces of news end any stall."""

CITED: Final = 50
"""The number of fruitless calls that are kept as evidence, the newest ones."""

SAID: Final = {
    "seen": "brought what had been seen before",
    "no again": "asked again what had been answered with no",
    "asked in other words": "asked the same in other words",
    "undone": "changed something back to a state that it was in before",
    "repeated": "repeated a change that was made already",
    "still wrong": "checked again and failed in the same way",
    "churn": "changed what a check kept refusing in the same way",
    "overdue": "waited for something that does not move",
    "said nothing": "brought nothing",
}
"""What is said of the calls of each kind."""

CATEGORIES: Final = {"undone": "thrashing", "overdue": "waiting"}

REPEATED: Final = ("loop", "thrashing")
"""The categories of stalls of one action and of two in turn."""


class Found(msgspec.Struct, frozen=True):
    """A stall, as it stands after one of its calls: what is said of it, its calls, and how grave it is."""

    index: int
    category: str
    said: str
    indices: Sequence[int]
    severity: Severity


class Stalls:
    """The stalls of one trajectory: a fold over the readings of its calls."""

    __slots__ = ("count", "detector", "enough", "found", "fruitless", "progress", "score")

    def __init__(self, detector: StallDetector) -> None:
        """Begin before the first call."""
        self.detector = detector
        self.progress = Progress(detector.apart, detector.looks, detector.patience)
        self.enough = detector.repeats - 1.0
        self.score = 0.0
        self.count = 0
        self.fruitless: deque[tuple[Reading, str]] = deque(maxlen=CITED)
        self.found: deque[Found] = deque(maxlen=LOOKED_BACK)

    def add(self, call: Reading) -> None:
        """Judge one more call."""
        weight, why = self.progress.judge(call)
        self.count = call.index
        most = CEILING * self.enough
        self.score = min(max(self.score + weight, 0.0), most)
        if self.score == 0.0:
            self.fruitless.clear()
        elif weight > 0:
            self.fruitless.append((call, why))
        if weight > 0 and self.score >= self.enough:
            self.found.append(self._found(call.index))

    def _found(self, index: int) -> Found:
        calls = [call for call, _ in self.fruitless]
        why, most = Counter(why for _, why in self.fruitless).most_common(1)[0]
        category = CATEGORIES.get(why, "stall")
        actions = len({call.action for call in calls})
        if category == "stall" and actions <= len(REPEATED):
            category = REPEATED[actions - 1]
        names = " and ".join(shorten(name) for name, _ in Counter(call.name for call in calls).most_common(2))
        they = ": they" if len(calls) == most else f"; {most} of them"
        since = f"since call #{calls[0].index}, {len(calls)} calls, of {names}"
        said = f"{since}, brought nothing new{they} {SAID[why]}"
        severity: Severity = "warning" if self.score >= CEILING * self.enough else "caution"
        return Found(index, category, said, [call.index for call in calls], severity)


@dataclass(frozen=True, slots=True)
class StallDetector(CallByCall[Found]):
    """Tells the agent that its calls get it nowhere.

    Attributes:
        repeats: How many equal calls with equal results in a row are a stall. Of other fruitless calls one less is
            enough, because the first of equal calls is not fruitless. News in between counts as one or two calls less.
        apart: Two looks at one thing that begin at least so many seconds apart are waiting.
        looks: How many such looks without a movement are still waiting.
        patience: For how many seconds without a movement they are still waiting.
        name: Its name.
    """

    repeats: int = 4
    apart: float = 20.0
    looks: int = 10
    patience: float = 900.0
    name: str = "Stall"

    def __post_init__(self) -> None:
        """Refuse thresholds that every run would reach.

        Raises:
            ObserverError: Naming the field and its value.
        """
        check_settings(self, repeats=(3, KEPT_CALLS), looks=(2, None))
        for field in ("apart", "patience"):
            value: object = getattr(self, field)
            if not is_number(value) or value <= 0:
                raise ObserverError(f"StallDetector({field}={value!r}) must be a number of seconds above 0")

    def _since(self, context: ObserverContext) -> Sequence[Found]:
        """Return the stalls that stood after the calls since the last look."""
        trajectory = context.trajectory
        stalls = trajectory.fold(self, lambda: Stalls(self))
        if stalls.count != trajectory.count:
            for call in readings_of(context).since(stalls.count):
                stalls.add(call)
        since = trajectory.count - min(trajectory.unseen_by(self.name), LOOKED_BACK)
        return [each for each in stalls.found if each.index > since]

    def _assessment(self, found: Sequence[Found], session: Session, context: ObserverContext) -> Assessment:
        """Return the assessment of the gravest stall; of equally grave ones the newest."""
        gravest = max(found, key=lambda each: (each.severity == "warning", each.index))
        last = gravest.index
        is_newest = last == context.trajectory.count
        doing, until = ("be going", "") if is_newest else ("have gone", f", up to call #{last}")
        said = f"{gravest.said}{until}."
        return Assessment(
            self.name,
            f"You seem to {doing} in circles: {said}",
            (Observation(gravest.category, said, cite(session[ToolInvoked].all(), gravest.indices)),),
            (
                "What you have seen will not change by asking again: use it, or try something else.",
                "If you are waiting for something, do other work meanwhile and look again later.",
                "If you cannot get further, say what is missing and finish with what you have.",
            ),
            gravest.severity,
        )
