"""Whether the agent drifts from its task: compares what its newest calls touch with what the task names.

Inside is what the task names, what bears its name, and what is one step away: named in what an inside thing contains,
or by a check that failed. What is neither is outside only where it can be compared: another thing beside those that
are inside, another value of an argument that named things of the task before, another number of what the task counts,
a result without the task's name where all such results bore it. The detector speaks if among the newest calls that
touch such things most are outside, or several change outside things, and if the work was inside before: a task whose
things it cannot tell is not watched.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, cast

import msgspec

from watchkeeper.core.errors import ObserverError
from watchkeeper.core.quantities import is_text
from watchkeeper.observers.evidence import CallByCall, check_settings, cite, shorten
from watchkeeper.observers.drift.home import (
    ASIDE,
    BESIDE,
    CHECKS,
    LINKED,
    OTHER_ID,
    SIBLING,
    STRONG,
    UNKNOWN,
    WEAK,
    Home,
    Thing,
    grade,
    home_of,
    parts_of,
    pieces,
    pieces_of,
    place,
    singular,
    touched,
)
from watchkeeper.observers.reading import Reading, readings_of
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import KEPT_CALLS
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked

Side = Literal["in", "linked", "out", ""]

TEXTS: Final = 24
"""How many results of calls that worked inside are remembered, of each kind."""

TEXT_CHARS: Final = 4_000
ROLES: Final = 64
FOLDERS: Final = 512
NEAR_CHARS: Final = 80
"""How far before a file's name the name of its folder stands, where something names the file."""

FIRST_CALLS: Final = 20
"""The most calls that `DriftDetector.first` may name."""

SHORT_TASK: Final = 9
"""A task of at most so many words that names a ticket is told by what is found under it."""

TICKET_CHARS: Final = 1_500
ACCOMPANIES: Final = 3
"""A value that stood in so many calls inside does not tell these from others."""

MOMENT: Final = re.compile(r"\d{4}-\d\d|\d\d?:\d\d(?!\d)")
YEAR: Final = re.compile(r"(?:19|20)\d\d(?:-\d\d){0,2}")
NOTHING: Final = re.compile(
    r"(?i)\b(?:no|not|none|nothing|0) (?:\w+ )?(?:found|results?|hits?|match\w*|rows?|items?|such|exist\w*|available)\b"
)
FAILS: Final = re.compile(r"fail|error|broken|mismatch|violation|expected|invalid|traceback|line \d")


@dataclass(slots=True)
class Role:
    """What was seen of one argument, or of one kind of things.

    Attributes:
        inside: How many calls touched something of it that is inside.
        strong: Whether something of it is named by itself, and not only by a word.
        others: Some of what else was touched.
        compared: Whether most of what was touched was inside at some time, so that something else is outside.
        beside: How often each value stood in a call that worked inside.
    """

    inside: int = 0
    strong: bool = False
    others: set[str] = field(default_factory=set[str])
    compared: bool = False
    beside: Counter[str] = field(default_factory=Counter[str])

    def touch(self, value: str, found: int) -> None:
        """Count one more thing of it."""
        if found > UNKNOWN:
            self.inside += 1
            self.strong = self.strong or found == STRONG
        elif len(self.others) < ROLES:
            self.others.add(value)
        least, times = (1, 2) if self.strong else (3, 4)
        self.compared = self.compared or self.inside >= max(least, times * len(self.others))


class Judged(NamedTuple):
    """One call that touches something.

    Attributes:
        number: Its number in the session, from 1.
        side: Where it worked.
        changes: Whether it changed something.
        where: What it touched outside.
        worst: How surely that is outside.
    """

    number: int
    side: Side
    changes: bool
    where: str
    worst: int


class Strayed(msgspec.Struct, frozen=True):
    """Drift, as it stood after one call: its number, and the calls among the newest ones that worked outside."""

    index: int
    calls: Sequence[Judged]


class Follower:
    """What is known of one trajectory: a fold over its calls."""

    def __init__(self, rules: DriftDetector, task: str) -> None:
        """Begin before the first call."""
        self.rules = rules
        self.task = task
        self.home: Home = home_of(tuple(rules.paths), task)
        self.is_ticket = bool(self.home.numbers and not self.home.places and len(task.split()) <= SHORT_TASK)
        self.count = 0
        self.roles: dict[str, Role] = {}
        self.inner: dict[tuple[str, ...], set[str]] = {}
        self.named: set[tuple[str, ...]] = set()
        self.stems: set[str] = set()
        self.strange: set[str] = set()
        self.texts: deque[str] = deque(maxlen=TEXTS)
        self.lists: deque[str] = deque(maxlen=TEXTS)
        self.markers: dict[str, Counter[str]] = {}
        self.calls: deque[Judged] = deque(maxlen=max(rules.window, 8))
        self.sides = Counter[Side]()
        self.found: deque[Strayed] = deque(maxlen=rules.window)

    def follow(self, context: ObserverContext) -> None:
        """Judge the calls that are new."""
        for reading in readings_of(context).since(self.count):
            self.add(reading)
        self.count = context.trajectory.count

    def add(self, reading: Reading) -> None:
        """Judge one more call."""
        if self.home.everywhere:
            return
        things = touched(reading.given)
        side, where, worst = self._side(things, reading)
        changes = _changes(things, reading)
        if side == "out" and not changes and _brings_nothing(reading):
            return
        if side == "in" or (reading.is_red and not things):
            self._learn(reading, things)
        if not side:
            return
        self.calls.append(Judged(reading.index, side, changes, where, worst))
        self.sides[side] += side != "out" or changes or reading.index > self.rules.first
        if side == "out" and (strayed := self._strayed()):
            self.found.append(Strayed(reading.index, strayed))

    # --- one call -----------------------------------------------------------------------------------------------------

    def _side(self, things: Sequence[Thing], reading: Reading) -> tuple[Side, str, int]:
        """Return where a call worked, what it touched outside, and how surely that is outside.

        What the task names makes a call one inside, whatever else it touches; so does a word of it, but not against a
        thing beside what is named. A value that stands in most calls inside says nothing against another id.
        """
        best = worst = fresh = UNKNOWN
        where, linked = "", False
        for thing in things:
            found = self._path(thing) if thing.role in ("path", "url") else self._value(thing)
            known = self.roles.get(thing.role)
            common = known is not None and known.beside[thing.parts[0]] >= ACCOMPANIES
            best, fresh = max(best, found), fresh if common else max(fresh, found)
            if found < worst:
                worst, where = found, "/".join(thing.parts)
            linked = linked or (found == LINKED and not (common and thing.parts[0].isalpha()))
        if best < WEAK and worst > BESIDE:
            shown = self._by_result(things, reading)
            best, worst = max(best, shown), min(worst, shown)
            where = where or "".join("/".join(thing.parts) for thing in things[:1])
        if best == STRONG and (worst > OTHER_ID or fresh == STRONG):
            side: Side = "in"
        elif worst <= BESIDE:
            side = "out"
        elif best >= WEAK:
            side = "in"
        else:
            side = "linked" if linked else "out" if worst < UNKNOWN else ""
        if side == "in":
            for thing in things:
                known = self.roles.get(thing.role)
                if known is not None and (thing.parts[0] in known.beside or len(known.beside) < ROLES):
                    known.beside[thing.parts[0]] += 1
        return side, where, worst

    def _role(self, name: str) -> Role | None:
        known = self.roles.get(name)
        if known is None and len(self.roles) < ROLES:
            known = self.roles[name] = Role()
        return known

    def _value(self, thing: Thing) -> int:
        """Return where the value of an argument is."""
        role, parts = thing.role, thing.parts
        if self.home.given is not None or MOMENT.match(parts[0]):
            return UNKNOWN
        grades = [grade(self.home, part, role) for part in parts]
        found, least = max(grades), min(grades)
        known = self._role(role) if role else None
        if known is None:
            return min(max(found, UNKNOWN), WEAK)
        is_short = parts[0].isdigit() and len(parts[0]) < 4
        if found <= UNKNOWN and self._is_one_linked(parts):
            found = LINKED
        if not is_short and least > SIBLING:
            known.touch(parts[0], UNKNOWN if found == LINKED and parts[0].isalpha() else found)
        if found > UNKNOWN:
            return found
        if least <= SIBLING:
            return least
        return UNKNOWN if is_short or not known.compared else BESIDE if known.strong else ASIDE

    def _is_one_linked(self, parts: Sequence[str]) -> bool:
        """Return whether something inside names a value, or a code that is a part of it."""
        codes = [part for part in parts[1:] if len(part) > 3 and not part.isalpha()]
        return any(map(self._is_linked, map(str.lower, (parts[0], *codes))))

    def _path(self, thing: Thing) -> int:
        """Return where a path or an address on the web is: by its parts, by the tree of those inside, or by a link."""
        parts = tuple(map(str.lower, thing.parts))
        if self.home.given is not None:
            return place(self.home, parts)
        grades = [grade(self.home, part, parts[at - 1] if at else "") for at, part in enumerate(thing.parts)]
        if any(parts[-len(named) :] == named for named in self.home.places):
            grades[-1] = STRONG
        if thing.role == "url":  # names of collections name no things
            grades[:-1] = [
                min(found, UNKNOWN) if part.isalpha() else found
                for found, part in zip(grades, parts[:-1], strict=False)
            ]
        hit = next((at for at, found in enumerate(grades) if found > UNKNOWN), len(parts))
        away = next(
            (at for at, part in enumerate(parts) if part not in self.inner.get(parts[:at], (part,))), len(parts)
        )
        beside = away < len(parts) and parts[:away] in self.named
        own = pieces_of(thing.parts)
        is_check = not own.isdisjoint(CHECKS)
        if hit < len(parts) and min(grades[:hit], default=UNKNOWN) > SIBLING:
            if away < hit and beside and not is_check:
                return LINKED
            self._note(thing, parts, hit, max(grades))
            return max(grades)
        if is_check and not own.isdisjoint(self.stems):
            return WEAK
        if min(grades) <= SIBLING:
            return min(grades)
        above = (away == len(parts) and parts in self.inner) or any(
            own[: len(parts)] == parts for own in self.home.places
        )
        if above or self._is_linked(*parts[-2:]):
            return LINKED
        if not beside and not CHECKS.isdisjoint(pieces_of(parts[:-1])) and own.isdisjoint(self.strange):
            return UNKNOWN  # a test of something that is not known yet
        return self._elsewhere(thing, parts, away, beside)

    def _note(self, thing: Thing, parts: tuple[str, ...], hit: int, found: int) -> None:
        """Take in a path that is inside, down to the part that the task names."""
        if len(self.inner) < FOLDERS:
            for at in range(hit + 1):
                self.inner.setdefault(parts[:at], set()).add(parts[at])
            self.named.add(parts[:hit])
        if len(self.stems) < FOLDERS:
            self.stems |= pieces(thing.parts[-1]) - CHECKS
        known = self._role(thing.role)
        if known is not None:
            known.touch("", found)

    def _elsewhere(self, thing: Thing, parts: tuple[str, ...], away: int, beside: bool) -> int:
        """Return how surely a path that nothing leads to is outside.

        Where the work is spread over several folders, another one is no sign; of addresses on the web only what stands
        beside a thing of the task is compared.
        """
        if len(self.strange) < FOLDERS:
            self.strange |= pieces(thing.parts[-1]) - CHECKS
        known = self._role(thing.role)
        if known is None:
            return UNKNOWN
        if not any(own[:-1] == parts[:-1] for own in self.home.places):
            known.touch("/".join(parts[:-1]), UNKNOWN)
        if away == len(parts) or len(parts) == 1 or not known.compared:
            return UNKNOWN
        if beside:
            return BESIDE
        if thing.role == "url" or len(self.inner[parts[:away]] - CHECKS) > 1 + known.strong:
            return UNKNOWN
        return BESIDE if known.strong else ASIDE

    def _is_linked(self, *parts: str) -> bool:
        """Return whether what was read of the task's things names a thing, with the folder that it is in.

        Codes are also looked for in lists: whoever looks for the task's things in a list gets no others, while names
        in lists are those of siblings.
        """
        name = singular(parts[-1])
        is_code = len(name) > 3 and sum(map(str.isdigit, name)) > 1 and YEAR.fullmatch(name) is None
        if len(name) < 3 or (name.isdigit() and not is_code):
            return False
        for text in (*self.texts, *self.lists) if is_code else self.texts:
            at = text.find(name)
            while at >= 0:
                end = at + len(name)
                after = text[end : end + 1]
                is_word = not text[at - 1 : at].isalnum() and (after == "s" or not after.isalnum())
                if is_word and (len(parts) == 1 or is_code or parts[0] in text[max(at - NEAR_CHARS, 0) : at]):
                    return True
                at = text.find(name, end)
        return False

    def _by_result(self, things: Sequence[Thing], reading: Reading) -> int:
        """Return whether a result bears the task's name, or lacks one that results of such calls bore before."""
        if len(reading.items) < 3 or reading.is_no or reading.outcome == "failed" or self.home.given is not None:
            return UNKNOWN
        shape = " ".join((reading.name, *sorted({thing.role for thing in things})))
        if shape not in self.markers and len(self.markers) >= ROLES:
            return UNKNOWN
        seen = self.markers.setdefault(shape, Counter())
        had = [word for word, count in seen.items() if word and count > 2 and count >= 0.8 * seen[""]]
        if had and (reading.items.isdisjoint(had) or not self.home.names.intersection(had) <= reading.items):
            return ASIDE
        bears = reading.items & (self.home.words | self.home.names)
        seen.update((*bears, ""))
        return WEAK if had or bears & self.home.names else UNKNOWN

    def _learn(self, reading: Reading, things: Sequence[Thing]) -> None:
        """Remember what an inside thing contains; of a list only what names codes, and what a failed check names."""
        result = reading.invoked.rendered_output
        text = result[:TEXT_CHARS].lower()
        if self.is_ticket and things:
            self.is_ticket = False
            self.home = home_of((), f"{self.task}\n{result[:TICKET_CHARS]}")
        if len(text) < 6 or text in self.texts or text in self.lists:
            return
        paths = [thing for thing in things if thing.role == "path"]
        if not all(thing.leaf for thing in paths) or (not paths and (text.count("\n") > 6 or text.count("{") > 3)):
            self.lists.append(text)
            text = "\n".join(row for row in text.split("\n") if FAILS.search(row)) if reading.is_red else ""
        if text:
            self.texts.append(text)

    # --- the window ---------------------------------------------------------------------------------------------------

    def _strayed(self) -> Sequence[Judged]:
        """Return those of the newest calls that are outside; none if they are too few.

        Looks at one thing alone are none, unless it is another number of what the task counts: an agent waits for a
        job, or reads a long page.
        """
        rules = self.rules
        newest = list(self.calls)[-rules.window :]
        out = [call for call in newest if call.side == "out" and (call.changes or call.number > rules.first)]
        early = sum(call.side == "out" for call in newest) - len(out)
        changed = sum(call.changes for call in out) >= rules.changes
        if not changed and len(out) + early / 2 < rules.outside * rules.window:
            return ()
        if len({call.where for call in out}) < 2 and any(call.worst > SIBLING for call in out):
            return ()
        inside = self.sides["in"] + self.sides["linked"]
        least = 1 if any(role.strong for role in self.roles.values()) else 3
        understood = self.home.given is not None or (inside >= least and 2 * inside >= self.sides["out"])
        return out if understood else ()


def _changes(things: Sequence[Thing], reading: Reading) -> bool:
    """Whether a call changed something: by its arguments, or by an answer that says no more than that it was done."""
    if reading.clear or (reading.state != 0 and reading.size <= 8) or any(thing.written for thing in things):
        return True
    is_short = reading.size <= 2 and reading.echo.issuperset(reading.numbers)
    return is_short and not reading.is_no and reading.outcome != "failed"


def _brings_nothing(reading: Reading) -> bool:
    """Whether a look failed or found nothing, so that it touched nothing."""
    return reading.outcome == "failed" or NOTHING.search(reading.invoked.rendered_output[:200]) is not None


@dataclass(frozen=True, slots=True)
class DriftDetector(CallByCall[Strayed]):
    """Tells the agent that it works on things outside of its task.

    Attributes:
        paths: The task's folders and files, also as globs such as ``src/auth/**``; then only paths and addresses on the
            web are compared. Empty finds what the task's text names.
        window: The number of the newest calls that touch something comparable.
        outside: The share of them that touch only things outside the task and are drift.
        changes: How many of them that change things outside the task are drift.
        first: The number of the first calls of a run that may look around; a look outside among them counts half.
        name: Its name.
    """

    paths: Sequence[str] = ()
    window: int = 8
    outside: float = 0.6
    changes: int = 3
    first: int = 10
    name: str = "Drift"

    def __post_init__(self) -> None:
        """Refuse thresholds out of range, and copy the paths.

        Raises:
            ObserverError: Naming the field and its value.
        """
        if not isinstance(cast("object", self.paths), list | tuple | set | frozenset):
            raise ObserverError(f"DriftDetector(paths={self.paths!r}) must be a list of paths")
        for path in self.paths:
            if not is_text(path):
                raise ObserverError(f"DriftDetector(paths={self.paths!r}) must be a list of paths; {path!r} is no path")
            if not any(part.strip(" *~.") for part in parts_of(path)):
                raise ObserverError(
                    f"DriftDetector(paths=...): {shorten(repr(path))} names no folder and no file, so nothing could lie"
                    " outside of it; give folders or files, such as 'src/parser', or leave paths out to take them from"
                    " the task"
                )
        object.__setattr__(self, "paths", tuple(self.paths))
        check_settings(self, "outside", window=(3, KEPT_CALLS), first=(1, FIRST_CALLS), changes=(1, None))

    def _assessment(self, found: Sequence[Strayed], session: Session, context: ObserverContext) -> Assessment:
        """Report how many calls worked outside of the task, and where, as it stood after the newest of them."""
        strayed = found[-1].calls
        severity: Severity = "warning" if len(strayed) == self.window else "caution"
        where = ", ".join(shorten(place) for place, _ in Counter(call.where for call in strayed).most_common(3))
        named = ", ".join(shorten(name) for name in follower_of(self, context).home.shown[:3])
        said = f"{len(strayed)} of the last {self.window} calls that touch such things worked elsewhere, on {where}"
        evidence = cite(session[ToolInvoked].all(), [call.number for call in strayed])
        return Assessment(
            self.name,
            f"Your task names {named}; {said}.",
            (Observation("drift", f"{len(strayed)} calls outside the task", evidence),),
            ("Go back to the task, or say why this work is needed for it.",),
            severity,
        )

    def _since(self, context: ObserverContext) -> Sequence[Strayed]:
        found = follower_of(self, context).found
        since = context.trajectory.count - context.trajectory.unseen_by(self.name)
        return [each for each in found if each.index > since]


def follower_of(rules: DriftDetector, context: ObserverContext) -> Follower:
    """Return what is known of a run's newest calls by the rules of a detector."""
    kept = context.trajectory.fold(rules, lambda: Follower(rules, context.task))
    if kept.count != context.trajectory.count:
        kept.follow(context)
    return kept
