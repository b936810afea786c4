"""Whether calls get anywhere: a fold over the readings of calls that judges each by what came before.

A call counts for the agent if it brought something that no call had shown, or changed something to a state that it was
not in before, or checked something again that a change may have affected. It counts against the agent if its outcome
was seen before, whatever was asked. Looks that are far apart are waiting, which counts neither way for a while. An
answer that only differs from the one before counts neither way: it stands in stalls as often as in other work.
The state is bounded: what was seen longest ago is forgotten.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from watchkeeper.observers.questions import plain
from watchkeeper.observers.reading import NOUGHT, Reading
from watchkeeper.observers.failures.refusals import CHANGED

REMEMBERED: Final = 20_000
"""The number of words and numbers that are remembered as shown, and of words that were asked for."""

THREADS: Final = 400
"""The number of questions whose answers are remembered."""

FORGETTING: Final = 32
"""After so many calls each, what is remembered is cut to its bounds."""

ANSWERS: Final = 12
"""The number of answers to one question that are remembered."""

TARGETS: Final = 400
STATES: Final = 60
THREAD_ITEMS: Final = 2_000
"""The number of changed things, and of states of one thing, that are remembered."""

SHORT_NO: Final = 25
"""A no in so many words may be worded anew each time."""

QUESTIONS: Final = 40
"""The number of questions whose words are remembered."""

CLOCK: Final = re.compile(r"\d+(?:\.\d+)? ?(?:s|secs?|seconds|m|mins?|minutes|h|hours)")
"""A number that rises by itself: an age."""

NUMBER: Final = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)(?::(\d\d))?")

PAUSE: Final = 0.75
"""A call that begins this share of `apart` after the one before it comes after a pause."""

NEWS: Final = -2.0
SMALL_NEWS: Final = -1.0
NEITHER: Final = 0.0
HALF: Final = 0.5
FRUITLESS: Final = 1.0
OVERDUE: Final = 2.0

MANY: Final = 3
"""So many new words or numbers are news in a result of any length."""

MUCH: Final = 3
"""An answer of so many rows says nothing new if one earlier answer had them all, whatever was asked."""

ROW_KEYS: Final = 5
"""The number of questions that are remembered for a row, less one."""

NEARLY: Final = 4
"""A result with so many rows, of which one is new, is no news if it was asked for in another range."""

LONG_AGO: Final = 30
"""What was shown more calls ago may have been forgotten, so that to look at it again counts neither way."""

A_WHILE: Final = 5
"""What was shown more calls ago, with news since, may be looked at once more."""

PROSE: Final = 4
"""A question of so many words that is answered with an acknowledgement alone is a note to oneself."""

NO_ALIAS: Final[tuple[int, int, frozenset[str]]] = (0, 0, frozenset())

CHECKS: Final = 2
"""So many equal failures of a check, with changes between them, are patience; more are a stall."""


class Judgement(NamedTuple):
    """What one call counts for, and why."""

    weight: float
    why: str


class Row(msgspec.Struct):
    """A row that was shown: in which call first and last, and to which questions, by their names."""

    first: int
    last: int
    keys: tuple[frozenset[str], ...]


class Thread(msgspec.Struct):
    """The looks at one thing, in the same words, and how they were answered.

    Attributes:
        answers: The newest answers: shape and numbers.
        exacts: Fingerprints of the arguments of its newest calls, ranges included.
        items: What its answers have shown.
        last: The number of its newest call.
        at: When its newest call began.
        since: When the present answer was first given.
        looks: How many looks brought the present answer, without a movement.
        checks: How many looks after a change brought the present answer.
        base: By place of a number in the answer: its first value, and when it was shown.
        turns: By place of a number in the answer: how often it changed, and how often it turned.
        said_no: Whether its newest answer was a no, or no more than an acknowledgement.
        went: By place of a number in the answer: 1 if it rose, -1 if it fell, 0 if it went to and fro.
    """

    answers: deque[tuple[int, tuple[str, ...]]]
    exacts: deque[int]
    items: set[str]
    last: int
    at: float
    since: float
    looks: int = 1
    checks: int = 0
    said_no: bool = False
    went: dict[int, int] = {}
    base: dict[int, tuple[float, float]] = {}
    turns: dict[int, tuple[int, int]] = {}


class Progress:
    """What the calls of a trajectory have shown, asked and changed so far."""

    __slots__ = (
        "aliases", "amounts", "apart", "asked", "at", "bases", "changed", "effect", "looks", "newest", "news",
        "noisy", "nos", "patience", "paused", "questions", "rows", "shapes", "shown", "states", "stuck", "targets",
        "threads",
    )  # fmt: skip

    def __init__(self, apart: float, looks: int, patience: float) -> None:
        """Begin before the first call.

        Args:
            apart: Seconds between two looks from which on they are waiting.
            looks: How many looks without movement are waiting.
            patience: For how many seconds without movement looks are waiting.
        """
        self.apart, self.looks, self.patience = apart, looks, patience
        self.shown: dict[str, None] = {}
        self.asked: dict[str, None] = {}
        self.bases: dict[str, None] = {}
        self.noisy: dict[str, None] = {}
        self.shapes: dict[int, int] = {}
        self.rows: dict[int, Row] = {}
        self.threads: dict[int, Thread] = {}
        self.states: dict[int, dict[int, None]] = {}
        self.changed = self.effect = self.news = 0
        self.amounts: dict[int, list[tuple[float, ...]]] = {}
        self.targets: dict[str, int] = {}
        self.stuck = 0
        self.aliases: dict[int, tuple[int, int, frozenset[str]]] = {}
        self.nos: dict[str, None] = {}
        self.at = 0.0
        self.paused = 0
        self.newest: Reading | None = None
        self.questions: deque[frozenset[str]] = deque(maxlen=QUESTIONS)

    def judge(self, call: Reading) -> Judgement:
        """Return what a call counts for, and take it in."""
        if call.at - self.at > PAUSE * self.apart:
            self.paused = call.index
        self.at = call.at
        thread = self.threads.get(call.action) or self._alias(call)
        new = [item for item in call.items if item not in self.shown and item not in call.echo]
        if new and call.is_no and call.size <= SHORT_NO and all(map(str.isalpha, new)):
            thread_is_old = thread is not None and self.changed <= thread.last
            new = [] if thread_is_old or not call.literals - self.asked.keys() else new  # a no, in other words
        if call.state and (call.clear or thread is None or self.changed > thread.last) and not call.is_red:
            judged = self._judge_change(call, thread)
        elif call.clear and call.is_red and not new and self._is_new_state(call):
            judged = Judgement(NEITHER, "failed again")
        elif thread is None:
            judged = self._judge_question(call, new)
        else:
            judged = self._judge_look(call, thread, new)
        self._take_in(call, self.threads.get(call.action))
        self.newest = call
        if judged.weight <= NEWS:
            self.news = call.index
        return judged

    def _alias(self, call: Reading) -> Thread | None:
        """Return the looks at the same names by another tool, if one of them was answered in the same way."""
        action, doing, words = self.aliases.get(hash(call.literals), NO_ALIAS) if call.literals else NO_ALIAS
        other = self.threads.get(action) if doing != call.doing or words >= call.words else None
        if other is None or call.is_no or not any(call.shape == shape for shape, _ in other.answers):
            return None
        return other

    # --- changes ------------------------------------------------------------------------------------------------------

    def _judge_change(self, call: Reading, thread: Thread | None) -> Judgement:
        states = self.states.setdefault(call.target, {})
        seen = call.state in states
        if call.before and not states:
            states[call.before] = None
        states[call.state] = None
        if not seen and call.amount:
            tried = self.amounts.setdefault(hash((call.target, call.likes)), [])
            seen = self.effect < self.changed and _is_between(tried, call.amount)
            tried.append(call.amount)
            del tried[:-STATES]
        if seen:
            return Judgement(FRUITLESS, "undone" if call.before or len(states) > 1 else "repeated")
        self.changed = call.index
        for literal in call.literals:
            self.targets[literal] = call.index
        if self.stuck > CHECKS:
            return Judgement(FRUITLESS, "churn")
        return Judgement(NEWS, "changed")

    def _is_new_state(self, call: Reading) -> bool:
        """Whether a change that failed was not tried before; it is remembered as tried."""
        tried = self.states.setdefault(hash(("tried", call.target)), {})
        is_new = call.exact not in tried
        tried[call.exact] = None
        return is_new

    # --- questions that were not asked before -------------------------------------------------------------------------

    def _judge_question(self, call: Reading, new: list[str]) -> Judgement:
        if new and not self._are_codes(call, thread=None, new=new):
            return self._news(call, new)
        numbers = [number for number in call.numbers if number not in self.shown and number not in call.echo]
        if call.is_no and not call.items - call.echo - CHANGED and self._is_no_again(call):
            return Judgement(FRUITLESS, "no again")
        if call.outcome == "failed" and call.words | call.literals not in self.questions:
            return Judgement(NEITHER, "failed again")
        if call.is_red and not (call.literals | call.words) <= self.asked.keys():
            return Judgement(NEITHER, "failed again")
        if self._are_known(call):
            return self._again(call)
        if (
            len(call.rows) >= MUCH
            and call.rows <= self.rows.keys()
            and len({self.rows[row].first for row in call.rows}) == 1
        ):
            return self._again(call)
        unasked = [literal for literal in call.literals if literal not in self.asked]
        if unasked and not self._asked_otherwise(unasked):
            return Judgement(SMALL_NEWS, "asked something new")
        fresh = sum(row not in self.rows for row in call.rows)
        if fresh >= 2 and fresh * 3 >= len(call.rows):
            return Judgement(SMALL_NEWS, "new rows")
        if not call.rows and numbers and (len(numbers) >= MANY or len(numbers) * 4 >= len(call.numbers)):
            return Judgement(SMALL_NEWS, "new numbers")
        if call.names >= call.literals | call.words and fresh and fresh == len(call.rows):
            return Judgement(SMALL_NEWS, "new rows")
        told = any(
            label not in self.noisy for label, each in zip(call.labels, call.numbers, strict=True) if each in numbers
        )
        if numbers and told and fresh and len(call.rows) < NEARLY:
            return Judgement(SMALL_NEWS, "new numbers")
        words = [word for word in call.words if word not in self.asked]
        if call.shape in self.shapes:
            if call.literals or len(words) * 2 <= len(call.words):
                return Judgement(FRUITLESS, "seen")
            return Judgement(HALF, "seen")
        if call.is_pause:
            return Judgement(NEITHER, "paused")
        if call.is_ack and not call.is_no:
            return Judgement(HALF if len(call.words) >= PROSE and not words else NEITHER, "said nothing")
        if self._is_reworded(call, words):
            return Judgement(HALF, "asked in other words")
        return Judgement(NEITHER, "nothing new")

    def _is_reworded(self, call: Reading, new: list[str]) -> bool:
        """Whether a question has no new word, or has more or fewer words than an earlier one and otherwise the same."""
        if not new:
            return True
        terms = call.words | call.literals
        return len(new) * 2 <= len(call.words) and any(terms < earlier or terms > earlier for earlier in self.questions)

    def _are_known(self, call: Reading) -> bool:
        """Whether every row of a result was shown before, whatever was asked."""
        rows = self.rows
        return bool(call.rows) and all(
            row in rows and any(call.keys <= keys for keys in rows[row].keys) for row in call.rows
        )

    def _again(self, call: Reading) -> Judgement:
        """Return what a call counts for that brought all of an earlier result, asked for in another way."""
        if self.changed > max(self.rows[row].last for row in call.rows) and not call.is_red:
            return Judgement(NEITHER, "still right")
        return Judgement(FRUITLESS, "seen")

    def _is_no_again(self, call: Reading) -> bool:
        """Whether the answer was no for the same names before, in another place or by other means."""
        names = [name for name in call.literals if "/" not in name]
        if not any(name in self.nos for name in names):
            return False
        return all(name in self.nos or name in self.asked for name in names)

    def _asked_otherwise(self, unasked: Iterable[str]) -> bool:
        """Whether paths were asked for before with their folders."""
        return all(each in self.bases for each in unasked)

    def _news(self, call: Reading, new: list[str]) -> Judgement:
        if len(new) >= MANY:
            return Judgement(NEWS, "new")
        return Judgement(SMALL_NEWS, "little new")

    # --- looks at the same thing --------------------------------------------------------------------------------------

    def _judge_look(self, call: Reading, thread: Thread, new: list[str]) -> Judgement:
        if new and not self._are_codes(call, thread, new):
            self._moved(call, thread)
            return self._news(call, new)
        if call.exact not in thread.exacts:
            numbers = [
                number
                for number in call.numbers
                if number not in self.shown and number not in call.echo and not CLOCK.fullmatch(number)
            ]
            fresh = sum(row not in self.rows for row in call.rows)
            if len(numbers) >= MANY or (numbers and 2 * fresh >= len(call.rows) - 1):
                self._moved(call, thread)
                return Judgement(SMALL_NEWS, "new numbers")
            known = (
                fresh <= max(len(call.rows) // 5, 1)
                if len(call.rows) >= NEARLY
                else thread.items.issuperset(call.items) and not fresh
            )
            if not self._changed_since(call, thread) and known:
                thread.looks += 1
                return self._seen(call, thread)
        shape, before = thread.answers[-1]
        changed = self._changed_since(call, thread)
        if not changed and not new and call.is_no and call.size <= SHORT_NO and set(call.numbers) <= set(before):
            thread.looks += 1
            return self._seen(call, thread)
        if call.shape == shape:
            if sorted(call.numbers) == sorted(before) or not self._has_moved(call, thread, before, changed):
                return self._same(call, thread, changed)
            self._moved(call, thread, keep=True)
            return Judgement(NEWS, "moved")
        if thread.said_no and (call.is_no or call.is_ack) and call.size <= SHORT_NO and set(call.numbers) <= NOUGHT:
            return self._same(call, thread, changed)  # the same no, or the same acknowledgement, in other words
        known = any(call.shape == earlier for earlier, _ in thread.answers)
        if changed or not known:
            self._moved(call, thread)
            return Judgement(NEITHER, "answered otherwise")
        if len(before) == len(call.numbers) and self._has_moved(call, thread, before, changed):
            self._moved(call, thread, keep=True)
            return Judgement(SMALL_NEWS, "moved")
        thread.looks += 1
        return self._seen(call, thread)

    def _are_codes(self, call: Reading, thread: Thread | None, new: list[str]) -> bool:
        """Whether all that is new in a look are codes, which may differ every time."""
        if not all(any(map(str.isdigit, item)) for item in new):
            return False
        fresh = sum(row not in self.rows for row in call.rows)
        return (thread is not None and call.exact in thread.exacts) or (
            len(new) < MANY and 3 * fresh <= len(call.rows) + 1
        )

    def _changed_since(self, call: Reading, thread: Thread) -> bool:
        """Whether something was changed since the last look that may change the answer."""
        if self.changed <= thread.last:
            return False
        written = [self.targets[literal] for literal in call.literals if literal in self.targets]
        return not written or max(written) > thread.last

    def _has_moved(self, call: Reading, thread: Thread, before: tuple[str, ...], changed: bool) -> bool:
        """Whether numbers differ as they do in progress or in a measurement, not as in a clock or in noise."""
        if changed:
            thread.went, thread.base = {}, {}
            return True
        if len(before) != len(call.numbers):
            return not (set(before) <= set(call.numbers) or set(call.numbers) <= set(before))  # else a code of digits
        seconds = call.at - thread.at
        steady = False
        for place, (one, other) in enumerate(zip(before, call.numbers, strict=True)):
            label = call.labels[place]
            step = _number(other) - _number(one)
            if one == other or label in self.noisy or (step > 0 and CLOCK.fullmatch(other)):
                continue
            way = 1 if step > 0 else -1
            first, since = thread.base.setdefault(place, (_number(one), thread.at))
            went = thread.went.get(place, way)
            moves, turns = thread.turns.get(place, (0, 0))
            thread.turns[place] = (moves + 1, turns + (went == -way))
            if went == 0:
                thread.went[place] = way
            elif went != way:  # to and fro: if often, it says nothing any more
                if turns and 5 * (turns + 1) >= 2 * moves and label.isalpha():
                    self.noisy[label] = None
                thread.went[place] = 0
            elif not _keeps_pace(step, seconds) and not (
                since < thread.at and _keeps_pace(_number(other) - first, call.at - since)
            ):
                steady = True
                thread.went[place] = way
        return steady

    def _same(self, call: Reading, thread: Thread, changed: bool) -> Judgement:
        thread.looks += 1
        if changed:
            thread.checks += 1
            if not call.is_red:
                return Judgement(NEITHER, "still right")
            self.stuck = max(self.stuck, thread.checks)
            if thread.checks <= CHECKS:
                return Judgement(NEITHER, "checked again")
            return Judgement(FRUITLESS, "still wrong")
        return self._seen(call, thread)

    def _seen(self, call: Reading, thread: Thread) -> Judgement:
        """Return what a look counts for that brought what was known: it may be waiting."""
        if call.is_pause:
            return Judgement(NEITHER, "paused")
        waits = call.at - thread.at >= self.apart and self._had_paused(call, thread)
        if waits and not call.is_final:
            if call.is_ack:
                return Judgement(NEITHER, "waited")
            if thread.looks > self.looks or call.at - thread.since > self.patience:
                return Judgement(OVERDUE, "overdue")
            return Judgement(NEITHER, "waited")
        if call.index - thread.last > LONG_AGO:
            return Judgement(NEITHER, "seen long ago")
        if self.news > thread.last and call.index - thread.last > A_WHILE:
            return Judgement(HALF, "seen")
        return Judgement(HALF if call.is_ack and call.exact not in thread.exacts else FRUITLESS, "seen")

    def _had_paused(self, call: Reading, thread: Thread) -> bool:
        """Whether nothing was done since the last look but to wait, or one thing that has nothing to do with it."""
        since, between = call.index - thread.last, self.newest
        if since == 1 or between is None:
            return True
        if between.doing == call.doing and not (between.literals and call.literals.isdisjoint(between.literals)):
            return call.at - between.at >= self.apart  # the same thing, in another way
        return self.paused > thread.last or (since == 2 and call.literals.isdisjoint(between.literals))

    def _moved(self, call: Reading, thread: Thread, *, keep: bool = False) -> None:
        self.effect = call.index
        thread.since, thread.looks, thread.checks = call.at, 0, 0
        self.stuck = 0
        if not keep:
            thread.went, thread.base = {}, {}
        thread.looks = 1

    # --- memory -------------------------------------------------------------------------------------------------------

    def _take_in(self, call: Reading, thread: Thread | None) -> None:
        if thread is None:
            thread = Thread(deque(maxlen=ANSWERS), deque(maxlen=ANSWERS), set(), call.index, call.at, call.at)
        else:
            del self.threads[call.action]
        self.threads[call.action] = thread
        thread.answers.append((call.shape, call.numbers))
        thread.exacts.append(call.exact)
        thread.last, thread.at = call.index, call.at
        thread.said_no = (call.is_no or call.is_ack) and call.size <= SHORT_NO
        if len(thread.items) < THREAD_ITEMS:
            thread.items.update(call.items)
        if call.literals:
            self.aliases[hash(call.literals)] = (call.action, call.doing, call.words)
        if call.is_no and not call.items - call.echo - CHANGED:
            self.nos.update(dict.fromkeys(call.literals))
        self.shown.update(dict.fromkeys(call.items))
        self.shown.update(dict.fromkeys(call.numbers))
        if len(call.items) >= MANY:
            self.shapes[call.shape] = call.index
        self._take_in_rows(call)
        self.asked.update(dict.fromkeys(call.literals))
        self.bases.update(dict.fromkeys([plain(each.rpartition("/")[2]) for each in call.literals if "/" in each]))
        self.asked.update(dict.fromkeys(call.words))
        if call.words:
            self.questions.append(call.words | call.literals)
        if call.index % FORGETTING == 0:
            self._forget()

    def _forget(self) -> None:
        """Drop what was kept longest where there is too much."""
        kept: dict[Any, Any]
        for kept in (self.shown, self.asked, self.shapes, self.rows, self.bases, self.targets, self.noisy, self.nos):
            _halve(kept, REMEMBERED)
        for kept in (self.threads, self.aliases):
            _halve(kept, THREADS)
        for kept in (self.states, self.amounts):
            _halve(kept, TARGETS)
        for kept in self.states.values():
            _halve(kept, STATES)

    def _take_in_rows(self, call: Reading) -> None:
        for row in call.rows:
            shown = self.rows.get(row)
            if shown is None:
                self.rows[row] = Row(call.index, call.index, (call.keys,))
            else:
                shown.last = call.index
                if call.keys not in shown.keys:
                    shown.keys = (*shown.keys[-ROW_KEYS:], call.keys)


def _halve(kept: dict[Any, Any], most: int) -> None:
    """Drop the oldest half of what is kept if there is more than ``most``."""
    if len(kept) > most:
        for key in list(kept)[: most // 2]:
            del kept[key]


def _number(text: str) -> float:
    found = NUMBER.match(text)
    if found is None:
        return 0.0
    hours, minutes = found.group(1), found.group(2)
    return float(hours) * 60 + float(minutes) if minutes else float(hours.replace(",", ""))


def _is_between(tried: list[tuple[float, ...]], amount: tuple[float, ...]) -> bool:
    """Whether numbers differ from those tried before in one place, and lie between two that were tried there."""
    if len(tried) < MANY - 1:
        return False
    varying = [place for place, each in enumerate(zip(*tried, amount, strict=False)) if len(set(each)) > 1]
    if len(varying) != 1:
        return False
    values = [each[varying[0]] for each in tried]
    return min(values) < amount[varying[0]] < max(values)


def _keeps_pace(step: float, seconds: float) -> bool:
    """Whether a number rose as a clock does: in seconds, milliseconds or minutes."""
    if step <= 0 or seconds <= 0:
        return False
    return any(
        abs(step - seconds * unit) <= max(0.05 * seconds * unit, 1.01 if unit <= 1 else 0) for unit in (1, 1000)
    ) or (seconds >= 50 and abs(step - seconds / 60) <= 1)
