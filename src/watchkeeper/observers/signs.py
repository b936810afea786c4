"""What may tell of trouble in the newest calls, as numbers: the signs that `SuspicionRules` weighs.

Each sign is general: none knows a kind of work, a tool or a wording. Most are shares of the newest calls.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import msgspec

from watchkeeper.observers.progress import Progress
from watchkeeper.observers.questions import DEEPEST
from watchkeeper.observers.reading import Reading
from watchkeeper.observers.stall import CEILING, StallDetector

WORD: Final = re.compile(r"[^\W_]{2,}")
TEXT_CHARS: Final = 160
"""Longer texts among the arguments are what the agent writes, not what it works on; they are not read."""

TEXTS: Final = 50
"""How many texts of one call's arguments are read."""

KNOWN: Final = 20_000
"""The number of words that are remembered, the newest ones."""

FEW: Final = 4
SOME: Final = 8
LATELY: Final = 12
"""How many of the newest calls the signs look at."""

MUCH_NEW: Final = 24
NEW_IN_A_CALL: Final = 6
"""More new words, in `SOME` calls and in one, say no more."""

WAITING: Final = StallDetector()
"""Its thresholds say what is waiting, and when its score is full."""

SIGNS: Final = (
    "bad in 2", "bad in 4", "stall", "failed in 4", "failed in 8", "one cause", "red in 8", "asked again in 8",
    "outside in 4", "outside in 8", "inside in 4", "new names in 8", "new names rise", "early", "nothing asked in 8",
    "new in results",
)  # fmt: skip
"""The signs in their order: calls that failed or brought nothing, the score of `StallDetector`, failures, failures like
the newest one, results that say that something failed, questions asked before, calls outside and inside of the task as
`DriftDetector` reads them, words in arguments that neither task nor calls had, whether these become more, the first
calls, questions without a new word, and the share of results that is new."""


class Noted(NamedTuple):
    """What is remembered of one call."""

    index: int
    bad: bool
    failed: bool
    red: bool
    again: bool
    asks_nothing: bool
    new_names: int
    new_share: float
    side: str


class Signs:
    """The signs of one trajectory: a fold over its calls."""

    __slots__ = ("_failed", "_known", "_named", "_newest", "_progress", "_score", "_sides", "_task")

    def __init__(self, task: str) -> None:
        """Begin before the first call."""
        self._progress = Progress(WAITING.apart, WAITING.looks, WAITING.patience)
        self._task = words_of(task)
        self._known: dict[str, None] = {}
        self._newest: deque[Noted] = deque(maxlen=SOME)
        self._failed: deque[Reading] = deque(maxlen=LATELY)
        self._sides: deque[str] = deque(maxlen=FEW)
        self._named = 0
        self._score = 0.0

    @property
    def newest(self) -> Sequence[Noted]:
        """The newest calls, the oldest first."""
        return self._newest

    def add(self, call: Reading, params: Any, side: str) -> Sequence[float]:
        """Take in one more call; return the signs after it, in the order of `SIGNS`.

        Args:
            call: Its reading.
            params: Its arguments.
            side: Where it worked: "in", "linked", "out", or "" if that cannot be told.
        """
        known = self._progress
        items = [item not in known.shown and item not in call.echo for item in (*call.items, *call.numbers)]
        share = min(sum(items) / (len(items) or 1), 1.0)
        terms = call.literals | call.words
        again, asks_nothing = call.action in known.threads, all(term in known.asked for term in terms)
        weight = known.judge(call).weight
        full = WAITING.repeats - 1.0
        self._score = min(max(self._score + weight, 0.0), CEILING * full)
        failed = call.outcome in ("failed", "doubtful")
        if failed:
            self._failed.append(call)
        if side:
            self._sides.append(side)
        if len(self._newest) >= FEW and (left := self._newest[-FEW]).index > 1:
            self._named += min(left.new_names, NEW_IN_A_CALL)
        bad = weight > 0 or call.outcome == "failed"
        new = self._new_names(words_in(params))
        self._newest.append(Noted(call.index, bad, failed, call.is_red, again, asks_nothing, new, share, side))
        return self._signs(call.index, self._score / full)

    def _signs(self, index: int, score: float) -> Sequence[float]:
        some = list(self._newest)
        few = some[-FEW:]
        return (
            sum(each.bad for each in some[-2:]) / 2,
            sum(each.bad for each in few) / FEW,
            score,
            sum(each.failed for each in few) / FEW,
            sum(each.failed for each in some) / SOME,
            self._of_one_cause(index) / FEW,
            sum(each.red for each in some) / SOME,
            sum(each.again for each in some) / SOME,
            sum(side == "out" for side in self._sides) / FEW,
            sum(each.side == "out" for each in some) / SOME,
            sum(each.side == "in" for each in few) / FEW,
            2 * min(sum(each.new_names for each in some), MUCH_NEW) / MUCH_NEW,
            self._rise(index, few),
            max(SOME - index, 0) / SOME,
            sum(each.asks_nothing for each in some) / SOME,
            sum(each.new_share for each in few) / len(few),
        )

    def _of_one_cause(self, index: int) -> int:
        """Return how many of the failures lately, at most `FEW`, are like the newest one, itself included."""
        failed = [call for call in self._failed if call.index > index - LATELY]
        if not failed:
            return 0
        last = failed[-1]
        cause = last.failure
        alike = (
            last.doing == call.doing
            or (cause.group and cause.group == call.failure.group)
            or cause.words & call.failure.words
            for call in failed
        )
        return min(sum(map(bool, alike)), FEW)

    def _rise(self, index: int, few: Sequence[Noted]) -> float:
        """Return how many more new names a call has lately than before, from -1 to 1."""
        before = index - FEW - 1  # without the first call, all of whose names are new
        if before < 3:
            return 0.0
        lately = sum(min(each.new_names, NEW_IN_A_CALL) for each in few) / FEW
        return max(-1.0, min(1.0, (lately - self._named / before) / 3))

    def _new_names(self, words: frozenset[str]) -> int:
        """Return how many of a call's words neither the task nor a call named; remember all of them."""
        new = sum(word not in self._known and word not in self._task for word in words)
        for word in words:
            self._known.pop(word, None)
            self._known[word] = None
        for word in list(islice(self._known, max(len(self._known) - KNOWN, 0))):
            del self._known[word]
        return new


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
