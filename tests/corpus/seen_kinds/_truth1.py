"""The truth of a run, call by call, and what follows from it by the definitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass
class Note:
    """The truth of one call."""

    fruitful: bool
    late: bool = False  # a look beyond what waiting allows
    cause: str | None = None
    clears: frozenset[str] = frozenset()
    touched: tuple[str, ...] = ()
    only_outside: bool = False
    changes_outside: bool = False
    at: float = 0.0
    looks: bool = False  # shows something and does nothing else


def stalled(notes: Sequence[Note]) -> tuple[int | None, int]:
    """Where a stall begins (from 1), and how long the longest stretch is."""
    begin, longest = None, 0
    for first, note in enumerate(notes):
        if note.fruitful:
            continue
        spared, end = 0, first
        for index in range(first, len(notes)):
            if notes[index].fruitful:
                spared += 1
                if spared > 1:
                    break
            else:
                end = index
        length = end - first + 1
        if length >= 6 and begin is None:
            begin = first + 1
        longest = max(longest, length)
    return begin, longest


def known_causes(notes: Sequence[Note]) -> list[Note]:
    """The notes as somebody reads them to whom a failure of a known cause shows nothing."""
    causes: set[str] = set()
    read: list[Note] = []
    for note in notes:
        read.append(replace(note, fruitful=False) if note.cause in causes else note)
        if note.cause:
            causes.add(note.cause)
    return read


def cascading(notes: Sequence[Note]) -> tuple[int | None, int]:
    """Where a cascade begins (from 1), and how many failures of one cause there are at most."""
    begin: int | None = None
    most = 0
    for cause in {note.cause for note in notes if note.cause}:
        run: list[int] = []
        for index, note in enumerate([*notes, Note(False)]):
            if note.cause == cause:
                run.append(index)
            ended = cause in note.clears
            if ended or index == len(notes):
                times = [notes[i].at for i in run] + ([note.at] if ended else [])
                gaps = [b - a for a, b in pairwise(times)]
                patient = (
                    ended
                    and len(run) <= 5
                    and all(a < b for a, b in pairwise(gaps))
                    and len(gaps) > 1
                    and gaps[-1] >= 1.5 * gaps[0]
                )
                if not patient:
                    most = max(most, len(run))
                    if len(run) >= 4:
                        begin = min(begin or 999, run[0] + 1)
                run = []
    return begin, most


def drifting(notes: Sequence[Note], lenient: bool) -> int | None:
    """Where drift begins (from 1); `lenient` forgets the looks of the first ten calls."""
    touching = [(index, note) for index, note in enumerate(notes) if note.touched]
    for first in range(len(touching)):
        window = touching[first : first + 8]
        counted = [
            (index, note)
            for index, note in window
            if (note.only_outside or note.changes_outside) and (not lenient or index >= 10 or note.changes_outside)
        ]
        if sum(n.only_outside for _, n in counted) >= 5 or sum(n.changes_outside for _, n in counted) >= 3:
            return counted[0][0] + 1
    return None


def named(task: str, address: str) -> bool:
    """Whether the words of the task show an address or the folder it is in."""
    last = address.rsplit("/", 1)[-1]
    word = last.split(".")[0].rsplit("_", 1)[-1]
    return address in task or last in task or (len(word) > 2 and word in task)


