"""Whether the agent goes round in circles: the same calls with the same results, over and over.

It looks at results too: polling a job whose state changes, or reading page after page, brings something new each time
and is no stall; times of day, measured seconds and addresses in a result are nothing new. Four patterns count, each
over the newest calls only: one call repeated, two calls in turn (A-B-A-B), one call that fails the same way whatever is
done in between, and a window in which nothing is new.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from watchkeeper.observers.evidence import check_count, check_name, check_share, cite, shorten
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import on_loop
from watchkeeper.prompt.observer_context import ObserverContext
from watchkeeper.prompt.trajectory import KEPT_CALLS, CallDigest
from watchkeeper.session.session import Session
from watchkeeper.tools.invoked import ToolInvoked

PASSING: Final = re.compile(
    r"(?<!\d)(?:\d{4}-\d\d-\d\d[T ])?\d\d?:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|(?<!\d)\d+(?:\.\d+)? ?(?:ms|µs|us|ns)\b|(?<!\d)\d+\.\d+ ?s(?:ec(?:ond)?s?)?\b|0x[0-9a-f]+"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    re.IGNORECASE,
)
"""What differs between two looks at the same thing. Whole seconds stay: they may count down to something."""

COMPARED_CHARS: Final = 4000
"""Longer results are equal only if they are so letter by letter."""

COMPARED_CALLS: Final = 6
"""So many of the newest calls that are equal are read for whether they brought the same but for times."""

MEMORY: Final = 24
"""So many calls before a window are what something new is measured against."""

LONGEST: Final = 50
"""So far back a repetition is counted."""


class Found(NamedTuple):
    """A pattern: its category, what to say of it, the calls that it means, and how grave it is."""

    category: str
    said: str
    indices: Sequence[int]
    severity: Severity


@dataclass(frozen=True, slots=True)
class StallDetector:
    """Tells the agent that it repeats itself.

    Attributes:
        repeats: So many equal calls with equal results in a row are a stall; a job may be asked after less often.
        rounds: So many rounds of two calls in turn, with equal results, are thrashing.
        fruitless: So many equal failures of one call are a stall even if other calls came between them.
        window: How many of the newest calls must bring something new.
        novelty: The least share of calls in a window that must be new: as call, or by what came of it.
        name: Its name.
    """

    repeats: int = 4
    rounds: int = 4
    fruitless: int = 5
    window: int = 10
    novelty: float = 0.1
    name: str = "Stall"

    def __post_init__(self) -> None:
        """Refuse thresholds that would call every run a stall."""
        check_count("StallDetector", "repeats", self.repeats, 2, KEPT_CALLS)
        check_count("StallDetector", "rounds", self.rounds, 2, KEPT_CALLS // 2)
        check_count("StallDetector", "fruitless", self.fruitless, 2, KEPT_CALLS // 3)
        check_count("StallDetector", "window", self.window, 4, KEPT_CALLS)
        check_share("StallDetector", "novelty", self.novelty)
        check_name("StallDetector", self.name)

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether the newest call was made before: where it was not, no pattern ends with it."""
        trajectory = context.trajectory
        if self.novelty * self.window > 1:  # one new call among them may be too few
            return trajectory.count >= min(self.repeats, 2 * self.rounds, self.fruitless, self.window)
        return 0 < trajectory.repeats_after <= max(MEMORY, 3 * self.fruitless)

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Look for the patterns, the plainest first; nothing is said if there is none."""
        calls: Sequence[ToolInvoked] = session[ToolInvoked].all()
        most = max(LONGEST, self.window + MEMORY, 2 * self.rounds, 3 * self.fruitless, self.repeats)
        recent = context.trajectory.recent(most)
        if not recent:
            return None
        look = Look(recent, calls)
        found = self._repeated(look) or self._thrashing(look) or self._fruitless(look) or self._nothing_new(look)
        if found is None:
            return None
        return Assessment(
            self.name,
            f"You seem to be going in circles: {found.said}.",
            (Observation(found.category, f"{found.said}.", cite(calls, found.indices)),),
            (
                "What you have seen will not change by asking again: use it, or try something else.",
                "If you are waiting for something, do other work meanwhile and look again later.",
                "If you cannot get further, say what is missing and finish with what you have.",
            ),
            found.severity,
        )

    def _repeated(self, look: Look) -> Found | None:
        recent = look.recent
        same = 1
        while same < len(recent) and look.alike(recent[-1 - same], recent[-1]):
            same += 1
        if same < self.repeats:
            return None
        times = f"{same}" if same < len(recent) or same < LONGEST else f"at least {same}"
        said = f"{shorten(recent[-1].name)} was called {times} times in a row with the same arguments and result"
        return Found("loop", said, look.indices(-same), "warning" if same >= 2 * self.repeats else "caution")

    def _thrashing(self, look: Look) -> Found | None:
        recent = look.recent
        span = 2
        if len(recent) < 2 * self.rounds or recent[-1].action == recent[-2].action:
            return None
        while span < len(recent) and look.alike(recent[-1 - span], recent[1 - span]):
            span += 1
        rounds = span // 2
        if rounds < self.rounds:
            return None
        one, other = shorten(recent[-2].name), shorten(recent[-1].name)
        said = f"{one} and {other} were called in turn, {rounds} times, with the same results"
        severity: Severity = "warning" if rounds >= 2 * self.rounds else "caution"
        return Found("thrashing", said, look.indices(-2 * rounds), severity)

    def _fruitless(self, look: Look) -> Found | None:
        last = look.recent[-1]
        if last.success:
            return None
        same: list[int] = []
        for call in look.recent[-3 * self.fruitless :]:
            if call.action == last.action:
                same = [*same, call.index] if look.alike(call, last) else []
        if len(same) < self.fruitless:
            return None
        said = f"{shorten(last.name)} failed {len(same)} times in the same way, whatever you did in between"
        return Found("stall", said, same, "caution")

    def _nothing_new(self, look: Look) -> Found | None:
        recent = look.recent
        if len(recent) < self.window:
            return None
        new, enough = 0, self.novelty * self.window
        for back in range(1, self.window + 1):
            new += not look.was_seen(len(recent) - back)
            if new >= enough:
                return None
        newest = recent[-self.window :]
        action, times = Counter(call.action for call in newest).most_common(1)[0]
        most = [call for call in newest if call.action == action]
        how_many = "nothing" if new == 0 else f"only {new}"
        said = (
            f"{how_many} of what the last {self.window} calls brought was new;"
            f" {shorten(most[0].name)} alone was called {times} times with the same arguments"
        )
        return Found("stall", said, [call.index for call in most], "caution")


class Look:
    """One look at the newest calls: which of them are alike. Results are read only where calls are equal."""

    __slots__ = ("_calls", "_results", "recent")

    def __init__(self, recent: Sequence[CallDigest], calls: Sequence[ToolInvoked]) -> None:
        """Take the newest calls, the oldest of them first, and every call of the session."""
        self.recent = recent
        self._calls = calls
        self._results: dict[int, Sequence[str] | None] = {}

    def alike(self, one: CallDigest, other: CallDigest) -> bool:
        """Return whether two calls are the same, and brought the same but for times and addresses."""
        if one.kind == other.kind:
            return True
        if one.action != other.action:
            return False
        mine, theirs = self._words(one.index), self._words(other.index)
        return mine is not None and theirs is not None and same_but_for_times(mine, theirs)

    def was_seen(self, place: int) -> bool:
        """Return whether a call, by its place among the newest, is like one of those before it."""
        call = self.recent[place]
        before = self.recent[max(place - MEMORY, 0) : place]
        equal = [earlier for earlier in before if earlier.action == call.action]
        if any(earlier.kind == call.kind for earlier in equal):
            return True
        return any(self.alike(earlier, call) for earlier in equal[-COMPARED_CALLS:])

    def indices(self, first: int) -> Sequence[int]:
        """Return the numbers of the newest calls from a place on."""
        return [call.index for call in self.recent[first:]]

    def _words(self, index: int) -> Sequence[str] | None:
        """Return what a call brought, word by word; None if that is too long."""
        if index not in self._results:
            text = self._calls[index - 1].rendered_output
            self._results[index] = text.split() if len(text) <= COMPARED_CHARS else None
        return self._results[index]


def same_but_for_times(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two results, word by word, differ in nothing but what passes: times of day, measured seconds.

    Args:
        one: The words of a result.
        other: The words of another.
    """
    if len(one) != len(other):
        return False
    for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        if mine == theirs:
            continue
        # A unit may stand apart from its number: ``12 ms``.
        both = (" ".join(words[place : place + 2]) for words in (one, other))
        mine, theirs = (PASSING.sub("~", text) for text in both)
        if mine != theirs:
            return False
    return True
