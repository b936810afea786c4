"""An observer of an agent whose tool calls keep failing for one cause.

A failure stays open until what failed succeeds; other calls that succeed do not close it. Two open failures have one
cause if they are of one class (rights, quota, disk, network, a lock ...), name the same thing, or say nearly the same.
The detector compares the newest failure with the open ones before it, `REACH` calls back, and speaks of `failures` with
one cause. Retries of one action that wait longer each time are given more patience.

What failed, and what it says, is read by `failures`, once for each call. All state is computed from the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from watchkeeper.observers.evidence import check_settings, line_of, shorten, told_up_to
from watchkeeper.observers.reading import AMOUNT, Reading, readings_of
from watchkeeper.observers.failures.causes import Failure
from watchkeeper.observers.questions import plain
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import ObserverContext, on_loop
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked, error_message

REACH: Final = 100
"""How many calls before the newest failure may belong to its cascade."""

LOOKED_BACK: Final = 20
"""The number of calls since the last look that are examined, the newest ones."""

USUAL: Final = 0.5
"""Up to this likeness two words in common are enough."""

REFUSALS: Final = 200
"""The number of answers that are remembered as refusals."""

KINDS: Final = 6
"""So many failures of a cause that say something else are compared with an earlier one."""

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

ASKED: Final = frozenset(("", "missing", "conflict"))
"""Classes of what may be the answer to the question whether something is there or free."""

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
        failed = _failures_of(context).failed
        return (
            bool(failed)
            and failed[-1].call.index > trajectory.count - new
            and sum(each.call.index > trajectory.count - REACH - new for each in failed) >= self.failures
        )

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Describe the cascade that the newest failure since the last look belongs to."""
        trajectory = context.trajectory
        new = min(trajectory.unseen_by(self.name), LOOKED_BACK)
        told = told_up_to(session, self.name, trajectory.count - new) if new > 1 else 0
        kept = _failures_of(context)
        for newest in reversed(kept.failed):
            index = newest.call.index
            if index <= trajectory.count - new or (index <= told and index != trajectory.count):
                return None
            group = self._one_cause(newest, kept, context)
            certain = sum(each.certain for each in group)
            if len(group) >= self.failures and certain and not _is_patient(group) and not _only_asks(group):
                return self._assessment(group, session[ToolInvoked].all())
        return None

    def _one_cause(self, newest: Failed, kept: Failures, context: ObserverContext) -> Sequence[Failed]:
        """Return the open failures that have one cause with one of them, the oldest first, itself the last."""
        last = newest.call.index
        calls = readings_of(context).since(last - REACH - 1)
        failed = {each.call.index: each for each in kept.failed}
        kinds = [newest]  # those that say something else
        group: Sequence[Failed] = ()
        for _ in range(2):  # what the first pass found may have a cause in common with what it left
            group = self._alike(newest, calls, failed, kinds)
            if len(kinds) == 1:
                break
        return group

    def _alike(
        self, newest: Failed, calls: Sequence[Reading], failed: Mapping[int, Failed], kinds: list[Failed]
    ) -> Sequence[Failed]:
        """Return the open failures that have one cause with one of some kinds; add the kinds that they are of."""
        last = newest.call.index
        done = Done()
        for call in calls:
            if call.index > last and call.index not in failed:
                done.note(call)
        if not done.leaves(newest, newest):
            return ()
        group = [newest]
        changed = False
        repairs: list[Reading] = []
        for call in reversed([call for call in calls if call.index < last]):
            earlier = failed.get(call.index)
            if earlier is None:
                done.note(call)
                if call.outcome == "succeeded":
                    changed = changed or call.state != 0
                    repairs += [call] if call.state or call.is_ack else []
                continue
            if changed and newest.failure.group in WEAK and newest.same_as(earlier):
                continue  # a check, made again after a change
            for known in kinds:
                same = known is earlier or alike(known, earlier, self.likeness) or _of_one_action(known, earlier)
                if same and done.leaves(known, earlier) and not _is_repaired(earlier, known, repairs):
                    group.append(earlier)
                    if len(kinds) < KINDS and earlier.says not in [each.says for each in kinds]:
                        kinds.append(earlier)
                    break
        return group[::-1]

    def _assessment(self, group: Sequence[Failed], calls: Sequence[ToolInvoked]) -> Assessment:
        count = len(group)
        example = shorten(_message(calls[group[-1].call.index - 1]), 120)
        kind = group[-1].failure.group
        why = f" ({NAMES[kind]})" if kind else ""
        said = f"{count:,} calls failed for what seems to be one cause{why}"
        severe = 2 * self.failures if self.severe is None else self.severe
        severity: Severity = "warning" if count >= severe else "caution"
        return Assessment(
            self.name,
            f"{said}, and none of them succeeded since call #{group[0].call.index}; the last: {example}",
            (Observation("error_cascade", f"{said}.", "\n".join(_cited(group, calls))),),
            (
                "Stop and find out why before you call again; the same call will fail the same way.",
                "Check your assumptions about names, paths and arguments, or take another way.",
                "If you cannot remove the cause, say what is missing and go on without it.",
            ),
            severity,
        )


class Failed(NamedTuple):
    """A failed call, and what is to be known of its failure.

    Attributes:
        call: The call.
        failure: Of what it failed.
        addresses: What it named.
        certain: Whether it failed for certain; else it only may have.
    """

    call: Reading
    failure: Failure
    addresses: frozenset[str]
    certain: bool = True

    @property
    def message_words(self) -> Iterator[str]:
        """The words of what it says, names and numbers included."""
        return map(plain, self.call.message.split())

    @property
    def says(self) -> tuple[int, str, frozenset[str]]:
        """What was done and what the message says, without names and numbers."""
        return self.call.doing, self.failure.group, self.failure.words

    def same_as(self, other: Failed) -> bool:
        """Return whether the same was asked for in the same words."""
        return self.call.doing == other.call.doing and self.call.action == other.call.action


class Failures:
    """The newest failed calls of one trajectory: a fold over its readings.

    A short answer that a tool once reported as a failure is one also where the tool reports a success, before or after.
    """

    __slots__ = ("_others", "_refusals", "count", "failed")

    def __init__(self) -> None:
        """Begin before the first call."""
        self.count = 0
        self.failed: deque[Failed] = deque(maxlen=REACH + LOOKED_BACK)
        self._refusals: dict[int, Failure] = {}
        self._others: deque[Reading] = deque(maxlen=REACH)

    def add(self, call: Reading) -> None:
        """Take in one more call."""
        known = self._refusals.get(call.likeness)
        if call.outcome == "failed":
            self.failed.append(Failed(call, call.failure, call.addresses))
            if not call.success and call.likeness and known is None:
                self._learn(call.likeness, self.failed[-1].failure)
        elif known is not None and call.outcome != "neither":
            self.failed.append(Failed(call, known, call.addresses))
        elif call.outcome == "doubtful":
            self.failed.append(Failed(call, call.failure, call.addresses, certain=False))
        if call.likeness and call.outcome in ("succeeded", "doubtful"):
            self._others.append(call)

    def _learn(self, likeness: int, failure: Failure) -> None:
        self._refusals[likeness] = failure
        if len(self._refusals) > REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        same = {call.index: Failed(call, failure, call.addresses) for call in self._others if call.likeness == likeness}
        if same:
            kept = {each.call.index: each for each in self.failed} | same
            self.failed = deque([kept[index] for index in sorted(kept)], self.failed.maxlen)


def _failures_of(context: ObserverContext) -> Failures:
    """Return the failed calls of a run, whichever detector asks."""
    trajectory = context.trajectory
    kept = trajectory.fold(Failures, Failures)
    if kept.count != trajectory.count:
        for call in readings_of(context).since(kept.count):
            kept.add(call)
        kept.count = trajectory.count
    return kept


class Done:
    """What succeeded since a failure: by action, the things that each call named."""

    __slots__ = ("_calls", "_named")

    def __init__(self) -> None:
        """Begin with nothing."""
        self._calls: dict[int, list[Reading]] = {}
        self._named: dict[int, frozenset[str]] = {}

    def note(self, call: Reading) -> None:
        """Note a call, if it succeeded."""
        if call.outcome == "succeeded":
            self._calls.setdefault(call.doing, []).append(call)

    def leaves(self, one: Failed, other: Failed) -> bool:
        """Return whether nothing succeeded since the earlier of two failures that needs the same thing.

        One of their actions does, with the same things. Where they asked for different ones, it does with any; only
        a right, or a thing that is missing, is not there for one thing because it is for another. Where both messages
        quote a part of what was asked, only calls with that part count.
        """
        if not self._calls:
            return True
        calls = [call for doing in {one.call.doing, other.call.doing} for call in self._calls.get(doing, ())]
        if parts := one.failure.quoted & other.failure.quoted:
            calls = [call for call in calls if parts & call.echo]
        if not calls:
            return True
        self._named |= {call.index: call.addresses for call in calls if call.index not in self._named}
        done = [self._named[call.index] for call in calls]
        mine, others = one.addresses, other.addresses
        if one.failure.group in OF_A_TARGET:
            return not any(_most(mine, things) or _most(others, things) for things in done)
        common = mine & others
        return bool(common) and not any(_most(common, things) for things in done)


def _most(wanted: frozenset[str], things: frozenset[str]) -> bool:
    return 2 * len(wanted & things) > len(wanted) or wanted == things


def alike(one: Failed, other: Failed, likeness: float) -> bool:
    """Return whether two failures seem to have one cause.

    Args:
        one: A failure.
        other: Another.
        likeness: The share of words that two messages have in common if they say the same.
    """
    call, mine = one.call, one.failure
    earlier, others = other.call, other.failure
    same_action = call.doing == earlier.doing
    named = [thing for thing in mine.told & others.told if not SPECIFIC.isdisjoint(thing)]
    weak = (mine.group in WEAK) + (others.group in WEAK)
    if same_action and ((weak and named) or (weak == 2 and _of_one_thing(one, other))):
        return True
    if any(thing not in one.addresses and thing not in other.addresses for thing in named):
        return True
    if mine.codes & others.codes:
        return mine.group not in OF_ONE_THING or _of_one_thing(one, other)
    if mine.group == others.group != "":
        if mine.group in OF_ONE_THING:
            return _of_one_thing(one, other)
        return mine.group != "interface" or same_action or _shares(mine, others, likeness)
    if mine.group and others.group:
        return (same_action and {mine.group, others.group} in NEAR) or _shares(
            mine, others, likeness, 1 if weak == 2 else 2
        )
    if named or _shares(mine, others, likeness):
        return True
    says_the_same = _share(mine.words, others.words) >= likeness
    return says_the_same and (same_action or len(mine.words & others.words) > 2)


def _shares(one: Failure, other: Failure, likeness: float, least: int = 1) -> bool:
    """Return whether two messages have words in common that say something of the cause."""
    common = len(one.says & other.says)
    shorter, longer = sorted((len(one.says), len(other.says)))
    if likeness > USUAL:
        return common >= max(least, likeness * longer)
    return common >= least and (common >= 2 or common >= likeness * shorter)


def _of_one_action(one: Failed, other: Failed) -> bool:
    """Return whether one action failed twice, of which the messages do not say that it was for different causes."""
    if one.call.doing != other.call.doing:
        return False
    mine, others = _without_hosts(one.addresses), _without_hosts(other.addresses)
    if _of_one_thing(one, other) or 2 * len(mine & others) >= max(len(mine), len(others), 1):
        return True
    if {one.failure.group, other.failure.group} & OF_ONE_THING:
        return False
    mine, others = (each.failure.told - each.addresses for each in (one, other))
    return not mine or not others or bool(mine & others)


def _is_repaired(earlier: Failed, later: Failed, done: Sequence[Reading]) -> bool:
    """Return whether something was done between two failures about what only the first of them names.

    Args:
        earlier: A failure.
        later: One after it.
        done: What changed something, or was only acknowledged, after the first.
    """
    mine, others = ({*each.failure.told, *each.failure.words} for each in (earlier, later))
    only = mine - others
    return bool(only) and any(
        call.index < later.call.index and not only.isdisjoint(call.echo)
        for call in done
        if call.doing != later.call.doing
    )


def _of_one_thing(one: Failed, other: Failed) -> bool:
    mine, others = one.failure.told or one.addresses, other.failure.told or other.addresses
    if not mine and not others:
        return one.call.doing == other.call.doing
    mine, others = _without_hosts(mine), _without_hosts(others)
    return 2 * len(mine & others) >= min(len(mine), len(others)) > 0


def _without_hosts(things: frozenset[str]) -> frozenset[str]:
    return frozenset([thing for thing in things if not any(other.startswith(f"{thing}/") for other in things)])


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard index of two sets of words, 0.0 to 1.0; two empty sets are equal."""
    return len(one & other) / len(one | other) if one or other else 1.0


def _message(invoked: ToolInvoked) -> str:
    return error_message(invoked) or invoked.rendered_output or invoked.outcome


def _is_patient(group: Sequence[Failed]) -> bool:
    """Return whether failures are few retries, each after a longer wait, or looks for a thing that is awaited."""
    first, *others = group
    gaps = [later.call.at - each.call.at for each, later in pairwise(group)]
    same = all(other.same_as(first) for other in others)
    awaited = first.failure.group == "missing" or not any(each.call.clear for each in group)
    if same and awaited and min(gaps) >= APART:
        return len(group) <= LOOKS or not any(each.call.clear for each in group)
    if same and _counts_down(group):
        return True
    words = {frozenset(filter(str.isalpha, each.call.echo)) for each in group}  # one: only a number differs
    if len(group) > PATIENT or any(other.call.doing != first.call.doing for other in others):
        return False
    if len(words) > 1 and any(first.addresses - other.addresses for other in others):
        return False
    growth = 1.0 if same else GROWTH
    grows = all(before * growth < after for before, after in pairwise(gaps))
    return grows and gaps[-1] >= (LONG_WAIT if same else APART)


def _only_asks(group: Sequence[Failed]) -> bool:
    """Return whether one look was made at one thing after another, of which each was answered by its name with a no."""
    first, calls = group[0].call, [each.call for each in group]
    if any(call.clear or call.state or call.doing != first.doing for call in calls):
        return False
    if any(each.failure.group not in ASKED for each in group):
        return False
    own = [call.literals - other.literals for call, other in zip(calls, (*calls[1:], first), strict=True)]
    return all(mine and mine & set(each.message_words) for mine, each in zip(own, group, strict=True))


def _counts_down(group: Sequence[Failed]) -> bool:
    """Return whether one action is made step by step: a number of what it says falls each time."""
    numbers = [[_number(text) for text in each.call.numbers] for each in group]
    return any(all(after < before for before, after in pairwise(column)) for column in zip(*numbers, strict=False))


def _number(text: str) -> float:
    found = AMOUNT.match(text)
    return float(found[0]) if found else 0.0


def _cited(group: Sequence[Failed], calls: Sequence[ToolInvoked]) -> Iterator[str]:
    """Yield a line for each of the first and the last failures, with what it said."""
    left_out = len(group) - 2 * CITED
    for place, each in enumerate(group):
        if left_out > 0 and CITED <= place < CITED + left_out:
            if place == CITED:
                yield f"... {left_out:,} more ..."
            continue
        invoked = calls[each.call.index - 1]
        yield f"{line_of(invoked, each.call.index)} → {shorten(_message(invoked), 120)}"
