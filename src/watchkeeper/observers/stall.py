"""Whether the agent goes round in circles: the same calls with the same results, over and over.

It looks at results too: polling a job whose state changes, or reading page after page, brings something new each time
and is no stall. Three patterns count, each over the newest calls only: one call repeated, two calls in turn (A-B-A-B),
and a window in which hardly anything is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.evidence import check_count, check_share, cite
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer_context import ObserverContext
from watchkeeper.prompt.trajectory import CallDigest
from watchkeeper.session.session import Session
from watchkeeper.tools.invoked import ToolInvoked


@dataclass(frozen=True, slots=True)
class StallDetector:
    """Tells the agent that it repeats itself.

    Attributes:
        repeats: So many equal calls with equal results in a row are a stall.
        rounds: So many rounds of two calls in turn, with equal results, are thrashing.
        window: How many of the newest calls must bring something new.
        novelty: The least share of calls in a window that must be new, as call or by result.
        name: Its name.
    """

    repeats: int = 3
    rounds: int = 3
    window: int = 12
    novelty: float = 0.3
    name: str = "Stall"

    def __post_init__(self) -> None:
        """Refuse thresholds that would call every run a stall."""
        check_count("StallDetector", "repeats", self.repeats, 2)
        check_count("StallDetector", "rounds", self.rounds, 2)
        check_count("StallDetector", "window", self.window, 4)
        check_share("StallDetector", "novelty", self.novelty)
        if not self.name.strip():
            raise ObserverError("StallDetector(name='') must have a name")

    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether there are calls enough to judge."""
        return context.trajectory.count >= min(self.repeats, 2 * self.rounds, self.window)

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Look for the three patterns, the plainest first; nothing is said if there is none."""
        recent = context.trajectory.recent(max(self.window, 2 * self.rounds, 4 * self.repeats))
        found = self._repeated(recent) or self._thrashing(recent) or self._low_novelty(recent)
        if found is None:
            return None
        kind, said, indices, severity = found
        calls: Sequence[ToolInvoked] = session[ToolInvoked].all()
        return Assessment(
            self.name,
            f"You seem to be going in circles: {said}.",
            (Observation(kind, said[0].upper() + said[1:] + ".", cite(calls, indices)),),
            (
                "What you have seen will not change by asking again: use it, or try something else.",
                "If you cannot get further, say what is missing and finish with what you have.",
            ),
            severity,
        )

    def _repeated(self, recent: Sequence[CallDigest]) -> tuple[str, str, list[int], Severity] | None:
        last = recent[-1]
        same: list[int] = []
        for call in reversed(recent):
            if call.kind != last.kind:
                break
            same.insert(0, call.index)
        if len(same) < self.repeats:
            return None
        said = f"{last.name} was called {len(same)} times in a row with the same arguments and the same result"
        return "loop", said, same, "warning" if len(same) >= 2 * self.repeats else "caution"

    def _thrashing(self, recent: Sequence[CallDigest]) -> tuple[str, str, list[int], Severity] | None:
        span = 2 * self.rounds
        if len(recent) < span or recent[-1].kind == recent[-2].kind or recent[-1].kind != recent[-3].kind:
            return None
        newest = recent[-span:]
        if any(call.kind != newest[place % 2].kind for place, call in enumerate(newest)):
            return None
        said = f"{newest[0].name} and {newest[1].name} were called in turn {self.rounds} times, with the same results"
        return "thrashing", said, [call.index for call in newest], "warning"

    def _low_novelty(self, recent: Sequence[CallDigest]) -> tuple[str, str, list[int], Severity] | None:
        newest = recent[-self.window :]
        if len(newest) < self.window:
            return None
        kinds = [call.kind for call in newest]
        new = len(set(kinds))
        if new > self.novelty * self.window:
            return None
        common, times = Counter(kinds).most_common(1)[0]
        back = [call for call in newest if call.kind == common]
        said = (
            f"of the last {self.window} calls only {new} were different; {back[0].name} alone came back {times} times"
        )
        return "stall", said, [call.index for call in back], "caution"
