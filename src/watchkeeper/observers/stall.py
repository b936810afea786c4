"""An observer of an agent that makes no progress: it repeats itself.

`StallDetector` compares calls with their results. Polling a job whose state changes, or reading page after page, brings
something new each time, so it is no stall. Times of day, measured seconds and addresses in a result are never new.
It knows four patterns: one call repeated; two calls in turn (A-B-A-B); one call that fails in the same way, whatever is
done in between; and a window in which nothing is new. A turn may have several calls, so every call since the last look
is examined as if it were the newest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from watchkeeper.observers.evidence import check_settings, cite, shorten
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import ObserverContext, on_loop
from watchkeeper.prompt.trajectory import KEPT_CALLS, CallDigest
from watchkeeper.runtime.events import AdviceAcknowledged
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked

PASSING: Final = re.compile(
    r"[0-9](?<![0-9][0-9])(?:"
    r"(?:[0-9]{3}-[0-9]{2}-[0-9]{2}[Tt ][0-9])?[0-9]?:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:[Zz]|[+-][0-9]{2}:?[0-9]{2})?"
    r"|[0-9]*(?:\.[0-9]+)? ?(?i:ms|µs|us|ns)\b|[0-9]*\.[0-9]+ ?(?i:s(?:ec(?:ond)?s?)?)\b|(?<=0)[xX][0-9a-fA-F]+)"
)
"""What differs between two looks at the same thing: times, durations, addresses. Whole seconds are not among them: they
may be a countdown. The pattern begins with a digit, so that text without digits is skipped fast."""

WITHIN_ID: Final = re.compile(r"-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-")
ID: Final = re.compile(rf"[0-9a-fA-F]{{8}}{WITHIN_ID.pattern}[0-9a-fA-F]{{12}}")

COMPARED_CHARS: Final = 4000
"""Longer results are compared as they are, times included."""

COMPARED_CALLS: Final = 6
"""The number of earlier calls with the same arguments with whose results a result is compared, times left out."""

EDGE: Final = 200
"""A first or last line longer than this is not compared on the event loop."""

MEMORY: Final = 24
"""A call is new if it differs from this number of calls before it."""

LONGEST: Final = 50
"""The longest repetition that is counted, in calls."""

LOOKED_BACK: Final = 20
"""The number of calls since the last look that are examined, the newest ones."""

ANSWERS: Final = 10
"""The number of the agent's newest answers to advice that are read."""

REMEMBERED: Final = 512
"""Size of the caches by result."""


class Found(NamedTuple):
    """A pattern that was found: its category, its description, the numbers of its calls, and its severity."""

    category: str
    said: str
    indices: Sequence[int]
    severity: Severity


@dataclass(frozen=True, slots=True)
class StallDetector:
    """Tells the agent that it repeats itself.

    Attributes:
        repeats: How many equal calls with equal results in a row are a stall.
        rounds: How many rounds of two calls in turn, with equal results, are a stall.
        fruitless: How many equal failures of one call are a stall, even with other calls between them.
        window: Among how many of the newest calls something must be new.
        novelty: The least share of calls in a window that must be new: in their arguments, or in their results.
        name: Its name.
    """

    repeats: int = 4
    rounds: int = 4
    fruitless: int = 5
    window: int = 10
    novelty: float = 0.1
    name: str = "Stall"

    def __post_init__(self) -> None:
        """Refuse thresholds that every run would reach.

        Raises:
            ObserverError: Naming the field and its value.
        """
        most = KEPT_CALLS
        counts = {"repeats": (2, most), "rounds": (2, most // 2), "fruitless": (2, most // 3), "window": (4, most)}
        check_settings(self, "novelty", **counts)

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether, by arguments and the edges of results alone, a pattern may end with a call since the last look."""
        return any(True for _ in self._patterns(session, context, at_edges=True))

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Return the most severe pattern that ended since the last look; of equally severe ones the newest."""
        best: tuple[int, Found] | None = None
        for index, found in self._patterns(session, context):
            if best is None or (found.severity, best[1].severity) == ("warning", "caution"):
                best = index, found
        count, calls = context.trajectory.count, session[ToolInvoked].all()
        return None if best is None else self._assessment(best[1], best[0], count, calls)

    def _patterns(
        self, session: Session, context: ObserverContext, *, at_edges: bool = False
    ) -> Iterator[tuple[int, Found]]:
        """Yield the pattern that ends with each call since the last look, the newest first, with the call's number.

        With ``at_edges`` results are compared by their first and last lines only, and patterns that the agent was told
        of before are yielded too.
        """
        trajectory = context.trajectory
        new = min(trajectory.unseen_by(self.name), LOOKED_BACK)
        told = self._told(session, trajectory.count - new) if new > 1 and not at_edges else 0
        recent = trajectory.recent(self._reach + new)
        for end in range(len(recent), max(len(recent) - new, 0), -1):
            index = recent[end - 1].index
            if index <= told and index != trajectory.count:
                return
            if self._may_end(recent, end - 1):
                look = Look(recent[max(end - self._reach, 0) : end], session[ToolInvoked].all(), at_edges=at_edges)
                found = self._ending(look)
                if found is not None:
                    yield index, found

    @property
    def _reach(self) -> int:
        """The largest number of calls that a pattern may have."""
        return max(LONGEST, self.window + MEMORY, 2 * self.rounds, 3 * self.fruitless, self.repeats)

    def _may_end(self, recent: Sequence[CallDigest], place: int) -> bool:
        """Return whether a pattern may end with a call, by the arguments of the calls alone, which is fast."""
        call, there = recent[place], place + 1
        if there >= self.window and self._may_be_nothing_new(recent, place):
            return True
        if not call.repeats_after:
            return False
        action, rounds = call.action, 2 * self.rounds
        if there >= self.repeats and all(recent[place - back].action == action for back in range(1, self.repeats)):
            return True
        if there >= rounds and all(
            recent[place - back].action == recent[place - back + 2].action for back in range(2, rounds)
        ):
            return True
        tries = recent[max(there - 3 * self.fruitless, 0) : there]
        return not call.success and sum(each.action == action for each in tries) >= self.fruitless

    def _may_be_nothing_new(self, recent: Sequence[CallDigest], place: int) -> bool:
        places = range(place, place - self.window, -1)
        return self._new_among(0 < recent[each].repeats_after <= MEMORY for each in places) is not None

    def _new_among(self, seen_before: Iterable[bool]) -> int | None:
        """Return how many of a window's calls are new; None if enough of them are."""
        new, enough = 0, self.novelty * self.window
        for seen in seen_before:
            new += not seen
            if new >= enough:
                return None
        return new

    def _told(self, session: Session, since: int) -> int:
        """Return the last call up to which the agent was told or asked not to be told, ``since`` or a later one."""
        for assessment in reversed(session[Assessment].all()):
            if assessment.call_index <= since:
                break
            if assessment.observer_name == self.name:
                since = assessment.call_index
        for answer in session[AdviceAcknowledged].all()[-ANSWERS:]:
            if answer.source == self.name:
                since = max(since, answer.call_index + answer.for_calls)
        return since

    def _ending(self, look: Look) -> Found | None:
        """Return the pattern that ends with the last call of a look, the simplest first."""
        return self._repeated(look) or self._thrashing(look) or self._fruitless(look) or self._nothing_new(look)

    def _assessment(self, found: Found, last: int, count: int, calls: Sequence[ToolInvoked]) -> Assessment:
        """Return the assessment of a pattern that ended with call number ``last`` of ``count``."""
        doing, until = ("be going", "") if last == count else ("have gone", f", up to call #{last}")
        said = f"{found.said}{until}."
        return Assessment(
            self.name,
            f"You seem to {doing} in circles: {said}",
            (Observation(found.category, said, cite(calls, found.indices)),),
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
        new = self._new_among(look.was_seen(len(recent) - back) for back in range(1, self.window + 1))
        if new is None:
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


@dataclass(slots=True, eq=False)
class Look:
    """Some consecutive calls, and which of them are alike. Results are compared only where the arguments are equal.

    Attributes:
        recent: The calls, the oldest first.
        calls: Every call of the session.
        at_edges: Whether only the first and last line of a result is read; different calls may then seem alike.
    """

    recent: Sequence[CallDigest]
    calls: Sequence[ToolInvoked]
    at_edges: bool = False
    _edges: dict[int, int | None] = field(default_factory=dict[int, "int | None"], init=False)

    def alike(self, one: CallDigest, other: CallDigest) -> bool:
        """Return whether two calls have equal arguments, and equal results but for times and addresses."""
        if one.kind == other.kind:
            return True
        if one.action != other.action:
            return False
        edges = self._edges_of(one)
        if edges is None or edges != self._edges_of(other):
            return False
        return self.at_edges or what_lasts(self._result(one)) == what_lasts(self._result(other))

    def was_seen(self, place: int) -> bool:
        """Return whether the call at a place is like one of those before it."""
        call = self.recent[place]
        before = self.recent[max(place - MEMORY, 0) : place]
        equal = [earlier for earlier in before if earlier.action == call.action]
        if call.kind in [earlier.kind for earlier in equal]:
            return True
        return any(self.alike(earlier, call) for earlier in equal[-COMPARED_CALLS:])

    def indices(self, first: int) -> Sequence[int]:
        """Return the numbers of the calls from a place to the end."""
        return [call.index for call in self.recent[first:]]

    def _edges_of(self, call: CallDigest) -> int | None:
        """Return a hash of the first and last line of a call's result; None if the result is long."""
        index = call.index
        if index not in self._edges:
            result = self._result(call)
            self._edges[index] = edges_of(result) if len(result) <= COMPARED_CHARS else None
        return self._edges[index]

    def _result(self, call: CallDigest) -> str:
        return self.calls[call.index - 1].rendered_output


@lru_cache(maxsize=REMEMBERED)
def what_lasts(result: str) -> int:
    """Return a hash of a result without times and addresses."""
    return hash(_lasting(result))


@lru_cache(maxsize=REMEMBERED)
def edges_of(result: str) -> int:
    """Return a hash of the first and the last line of a result, if they are short, without times and addresses.

    This is fast, and what differs between two results is mostly in these lines.
    """
    text = result.strip()
    first = text[: EDGE + 1].partition("\n")[0]
    last = text[-EDGE - 1 :].rpartition("\n")[2]
    return hash(tuple(_lasting(line) for line in (first, last) if len(line) <= EDGE))


def _lasting(text: str) -> str:
    text = " ".join(text.split())  # there may be spaces between a number and its unit
    if WITHIN_ID.search(text):
        text = ID.sub("~", text)
    return PASSING.sub("~", text)
