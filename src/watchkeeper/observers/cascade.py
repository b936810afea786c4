"""An observer of an agent whose tool calls keep failing for one cause.

A failure stays open until what failed succeeds; other calls that succeed do not close it. Two open failures have one
cause if they are of one class (rights, quota, disk, network, a lock ...), name the same thing, or say nearly the same.
The detector compares the newest failure with the open ones before it, `REACH` calls back, and speaks of `failures` with
one cause. Retries of one action that wait longer each time are given more patience.

What failed, and what it says, is read by `failures`, once for each call. All state is computed from the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from watchkeeper.observers.actions import Asked, asked, has_changed
from watchkeeper.observers.evidence import check_settings, line_of, shorten, told_up_to
from watchkeeper.observers.failures import Failure, failure, reading
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import ObserverContext, on_loop
from watchkeeper.prompt.trajectory import CallDigest
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked, error_message

REACH: Final = 100
"""How many calls before the newest failure may belong to its cascade."""

LOOKED_BACK: Final = 20
"""The number of calls since the last look that are examined, the newest ones."""

PATIENT: Final = 5
"""So many retries of one action that wait longer each time are no cascade."""

LONG_WAIT: Final = 10.0
"""Seconds that the last of them waited at least."""

GROWTH: Final = 1.3
APART: Final = 20.0
"""Where the calls are not quite the same, each gap must be longer by this factor, and the last so many seconds long."""

LOOKS: Final = 10
"""So many looks at least `APART` for a thing that is not there wait for it."""

CITED: Final = 3
"""How many of the first and of the last failures are cited."""

OF_ONE_THING: Final = frozenset(("missing", "conflict", "dependency"))
"""Classes of which two failures have one cause only if they name the same thing: four missing files are four causes."""

WEAK: Final = frozenset(("", "missing", "conflict", "interface"))
"""Classes that say little of the cause: the same action on the same target has one cause, whichever of them it is. Made
again after something was changed, it is a check, whose red result is no failure."""

NEAR: Final = ({"login", "rights"}, {"disk", "quota"})
"""Classes that one tool may take for each other."""

OF_A_TARGET: Final = OF_ONE_THING | {"rights"}
"""Classes of which a success closes only failures with the same target."""

SPECIFIC: Final = frozenset("0123456789-_./:@")
"""What a name has that is more than a word; failures of any kind that name one such thing have one cause."""

NAMES: Final = {
    "tool": "no such tool",
    "dependency": "something that is needed is not installed",
    "disk": "no space is left",
    "login": "whoever asks is not let in",
    "rights": "a right is missing",
    "quota": "a quota or rate limit is used up",
    "lock": "something is locked",
    "network": "something cannot be reached",
    "conflict": "something is already there",
    "missing": "something is not there",
    "interface": "the call does not have the form that is expected",
}


@dataclass(frozen=True, slots=True)
class ErrorCascadeDetector:
    """Tells the agent that its calls keep failing for one cause, whatever succeeds in between.

    Attributes:
        failures: How many open failures of one cause are a cascade.
        severe: The number of failures from which the severity is ``warning``; twice ``failures`` by default.
        likeness: The share of words that two messages have in common if they say the same.
        name: Its name.
    """

    failures: int = 4
    severe: int | None = None
    likeness: float = 0.5
    name: str = "Errors"

    def __post_init__(self) -> None:
        """Refuse thresholds out of range.

        Raises:
            ObserverError: Naming the field and its value.
        """
        check_settings(self, "likeness", failures=(2, REACH))
        if self.severe is not None:
            check_settings(self, severe=(self.failures, None))

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether a call since the last look failed, and enough calls before it."""
        trajectory = context.trajectory
        new = min(trajectory.unseen_by(self.name), LOOKED_BACK)
        recent = trajectory.recent(REACH + new)
        calls: Sequence[ToolInvoked] = session[ToolInvoked].all()
        if not any(_failed(call, calls) for call in recent[len(recent) - new :]):
            return False
        open_ones = (call for call in reversed(recent) if _failed(call, calls))
        return sum(1 for _ in islice(open_ones, self.failures)) >= self.failures

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Describe the cascade that the newest failure since the last look belongs to."""
        trajectory = context.trajectory
        calls: Sequence[ToolInvoked] = session[ToolInvoked].all()
        new = min(trajectory.unseen_by(self.name), LOOKED_BACK)
        told = told_up_to(session, self.name, trajectory.count - new) if new > 1 else 0
        recent = trajectory.recent(REACH + new)
        for end in range(len(recent), max(len(recent) - new, 0), -1):
            index = recent[end - 1].index
            if index <= told and index != trajectory.count:
                return None
            if _failed(recent[end - 1], calls):
                group = self._one_cause(recent, end - 1, calls)
                if len(group) >= self.failures and not _is_patient(group, calls):
                    return self._assessment(group, calls)
        return None

    def _one_cause(
        self, recent: Sequence[CallDigest], place: int, calls: Sequence[ToolInvoked]
    ) -> Sequence[CallDigest]:
        """Return the open failures that have one cause with that at a place, the oldest first, itself the last."""
        newest = failure(recent[place], calls[recent[place].index - 1])
        done = Done()
        for call in recent[place + 1 :]:
            done.note(call, calls)
        group = [recent[place]] if done.leaves(newest, newest) else []
        changed = False
        for call in reversed(recent[max(place - REACH, 0) : place]):
            if not group:
                break
            if _failed(call, calls):
                earlier = failure(call, calls[call.index - 1])
                if changed and newest.group in WEAK and newest.same_as(earlier):
                    continue  # a check, made again after a change
                same = alike(newest, earlier, self.likeness) or (not changed and _of_one_target(newest, earlier))
                if same and done.leaves(newest, earlier):
                    group.append(call)
            else:
                done.note(call, calls)
                changed = changed or has_changed(call, calls[call.index - 1])
        return group[::-1]

    def _assessment(self, group: Sequence[CallDigest], calls: Sequence[ToolInvoked]) -> Assessment:
        count, newest = len(group), calls[group[-1].index - 1]
        example = shorten(_message(newest), 120)
        kind = failure(group[-1], newest).group
        why = f" ({NAMES[kind]})" if kind else ""
        said = f"{count:,} calls failed for what seems to be one cause{why}"
        severe = 2 * self.failures if self.severe is None else self.severe
        severity: Severity = "warning" if count >= severe else "caution"
        return Assessment(
            self.name,
            f"{said}, and none of them succeeded since call #{group[0].index}; the last: {example}",
            (Observation("error_cascade", f"{said}.", "\n".join(_cited(group, calls))),),
            (
                "Stop and find out why before you call again; the same call will fail the same way.",
                "Check your assumptions about names, paths and arguments, or take another way.",
                "If you cannot remove the cause, say what is missing and go on without it.",
            ),
            severity,
        )


class Done:
    """What succeeded since a failure: by action, the things that each call named."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        """Begin with nothing."""
        self._calls: dict[str, list[Asked]] = {}

    def note(self, call: CallDigest, calls: Sequence[ToolInvoked]) -> None:
        """Note a call, if it succeeded."""
        invoked = calls[call.index - 1]
        if reading(call, invoked).outcome == "succeeded":
            done = asked(call, invoked)
            self._calls.setdefault(done.action, []).append(done)

    def leaves(self, one: Failure, other: Failure) -> bool:
        """Return whether nothing succeeded since the earlier of two failures that needs the same thing.

        One of their actions does, with the same things. Where they asked for different ones, it does with any; only
        a right, or a thing that is missing, is not there for one thing because it is for another. Where both messages
        quote a part of what was asked, only calls with that part count.
        """
        if not self._calls:
            return True
        calls = [call for action in {one.action, other.action} for call in self._calls.get(action, ())]
        if parts := one.parts & other.parts:
            calls = [call for call in calls if parts & call.words]
        if not calls:
            return True
        done = [call.things for call in calls]
        if one.group in OF_A_TARGET:
            return not any(_most(one.asked, things) or _most(other.asked, things) for things in done)
        common = one.asked & other.asked
        return bool(common) and not any(_most(common, things) for things in done)


def _most(wanted: frozenset[str], things: frozenset[str]) -> bool:
    return 2 * len(wanted & things) > len(wanted) or wanted == things


def alike(one: Failure, other: Failure, likeness: float) -> bool:
    """Return whether two failures seem to have one cause.

    Args:
        one: A failure.
        other: Another.
        likeness: The share of words that two messages have in common if they say the same.
    """
    same_action = one.action == other.action
    names_the_same = any(not SPECIFIC.isdisjoint(thing) for thing in one.told & other.told)
    weak = (one.group in WEAK) + (other.group in WEAK)
    if same_action and ((weak and names_the_same) or (weak == 2 and _of_one_thing(one, other))):
        return True
    if one.codes & other.codes:
        return one.group not in OF_ONE_THING or _of_one_thing(one, other)
    if one.group and other.group and one.group != other.group:
        return same_action and {one.group, other.group} in NEAR
    if one.group == other.group != "":
        if one.group in OF_ONE_THING:
            return _of_one_thing(one, other)
        return one.group != "interface" or same_action
    if names_the_same:
        return True
    says_the_same = _share(one.words, other.words) >= likeness
    if same_action:
        return says_the_same
    return says_the_same and len(one.words & other.words) > 2


def _of_one_target(one: Failure, other: Failure) -> bool:
    return one.action == other.action and _of_one_thing(one, other)


def _of_one_thing(one: Failure, other: Failure) -> bool:
    mine, others = one.told or one.asked, other.told or other.asked
    if not mine and not others:
        return one.action == other.action
    return 2 * len(mine & others) >= min(len(mine), len(others)) > 0


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard index of two sets of words, 0.0 to 1.0; two empty sets are equal."""
    return len(one & other) / len(one | other) if one or other else 1.0


def _failed(call: CallDigest, calls: Sequence[ToolInvoked]) -> bool:
    return reading(call, calls[call.index - 1]).outcome == "failed"


def _message(invoked: ToolInvoked) -> str:
    return error_message(invoked) or invoked.rendered_output or invoked.outcome


def _is_patient(group: Sequence[CallDigest], calls: Sequence[ToolInvoked]) -> bool:
    """Return whether failures are few retries, each after a longer wait, or looks for a thing that is awaited."""
    first, *others = (failure(call, calls[call.index - 1]) for call in group)
    gaps = [(later.at - call.at).total_seconds() for call, later in pairwise(group)]
    same = all(other.same_as(first) for other in others)
    if same and first.group == "missing" and min(gaps) >= APART:
        return len(group) <= LOOKS
    words = {asked(call, calls[call.index - 1]).words for call in group}  # one: only a number differs, as of a host
    if len(group) > PATIENT or any(other.action != first.action for other in others):
        return False
    if len(words) > 1 and any(first.asked - other.asked for other in others):
        return False
    growth = 1.0 if same else GROWTH
    grows = all(before * growth < after for before, after in pairwise(gaps))
    return grows and gaps[-1] >= (LONG_WAIT if same else APART)


def _cited(group: Sequence[CallDigest], calls: Sequence[ToolInvoked]) -> Iterator[str]:
    """Yield a line for each of the first and the last failures, with what it said."""
    left_out = len(group) - 2 * CITED
    for place, call in enumerate(group):
        if left_out > 0 and CITED <= place < CITED + left_out:
            if place == CITED:
                yield f"... {left_out:,} more ..."
            continue
        invoked = calls[call.index - 1]
        yield f"{line_of(invoked, call.index)} → {shorten(_message(invoked), 120)}"
