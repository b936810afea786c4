"""The definitions of a stall, a cascade and drift, applied to the record of a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Fruit = Literal["yes", "no", "either"]


class Noted(NamedTuple):
    """What one call brought: its fruit, the cause of its failure, the cause it clears, where and when it was."""

    fruit: Fruit
    overdue: bool
    cause: str
    clears: str
    place: str
    changed: bool
    at: float


def stall(fruitful: Sequence[bool], overdue: Sequence[bool]) -> int:
    """Return the number of the first call of the first stall, or 0."""
    for first, good in enumerate(fruitful):
        if overdue[first]:
            return first + 1
        if good:
            continue
        spent, last = 0, first
        for place in range(first, len(fruitful)):
            spent += fruitful[place]
            if spent > 1:
                break
            if not fruitful[place]:
                last = place
        if last - first >= 5:
            return first + 1
    return 0


def cascade(noted: Sequence[Noted]) -> int:
    """Return the number of the first failure of the first cascade, or 0."""
    failed: dict[str, list[int]] = {}
    found: list[int] = []
    for number, step in enumerate(noted, 1):
        if step.cause:
            failed.setdefault(step.cause, []).append(number)
        elif step.clears and (old := failed.pop(step.clears, None)):
            times = [noted[place - 1].at for place in (*old, number)]
            waits = [after - before for before, after in pairwise(times)]
            patient = len(old) <= 5 and all(after > before for before, after in pairwise(waits))
            found += old[:1] if len(old) >= 4 and not patient else []
    return min([*found, *(old[0] for old in failed.values() if len(old) >= 4)], default=0)


def drift(noted: Sequence[Noted], early: Literal["skip", "inside", "outside"]) -> int:
    """Return the number of the first outside call of the first drift, or 0."""
    touched: list[tuple[int, bool, bool]] = []
    for number, step in enumerate(noted, 1):
        if not step.place:
            continue
        outside = step.place == "out"
        if outside and number <= 10 and not step.changed and early != "outside":
            if early == "inside":
                touched.append((number, False, False))
            continue
        touched.append((number, outside, outside and step.changed))
    for begin in range(max(1, len(touched) - 7)):
        window = touched[begin : begin + 8]
        strays = [number for number, outside, _ in window if outside]
        if len(strays) >= 5 or sum(changed for _, _, changed in window) >= 3:
            return strays[0]
    return 0
