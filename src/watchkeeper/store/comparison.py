"""Two stored runs step by step: where they part, and which steps of one stand beside which of the other.

A step is what a run was told, said or did: its prompt, an answer of the model, an attempt at a tool call with its
result, a message of the runtime, a verdict. Two steps are the same if their contents are; times, ids, tokens and cost
do not count. A failed attempt at a model call is no step, because it was tried again or ended the run. Runs below the
two are not compared.

Steps are aligned by their kind, their name and what was asked; those left over between two that fit, by kind and name.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from typing import Any, Final, Literal

from watchkeeper.store.plain_json import UNREADABLE, said_in, untyped
from watchkeeper.store.run_store import StoredEvent

MOST_EDITS: Final = 2_000
"""Runs with more steps that only one of them has are not aligned: time and memory grow with the square of it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a run.

    Attributes:
        seq: Number of its event.
        what: What it is in a word, or the tool's name.
        said: Its content, all of it.
        name: The tools that an answer of the model calls; empty for other steps.
        asked: What was asked for: arguments, the prompt.
    """

    seq: int
    what: str
    said: str
    name: str = ""
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two runs have in common.

    Attributes:
        same: How many steps are the same from the beginning on.
        first: The first step of each that differs, None for a run that has no further step; None if none differs.
        tools: By tool, how many attempts at it either run made.
    """

    same: int
    first: tuple[Step | None, Step | None] | None
    tools: Mapping[str, tuple[int, int]]


Relation = Literal["same", "content", "asked", "one", "other"]
"""How two steps that stand side by side are to each other: the same, with another content, with other arguments, or
there is a step in one of the runs only."""

Pair = tuple[int | None, int | None, Relation]
"""Numbers of two steps that stand side by side, from 0."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which steps of two runs stand side by side.

    Attributes:
        pairs: In order.
        whole: Whether all was aligned; False if the two have so little in common that only their beginning is.
    """

    pairs: Sequence[Pair]
    whole: bool


def compared(events: Iterator[StoredEvent], others: Iterator[StoredEvent]) -> Comparison:
    """Compare two runs by their events.

    Raises:
        StoreError: At an event that is damaged.
    """
    same, first = 0, None
    tools: dict[str, list[int]] = {}
    for pair in zip_longest(_counted(events, tools, 0), _counted(others, tools, 1)):
        if first is not None:
            continue  # the rest is only counted
        one, other = pair
        if one is not None and other is not None and (one.what, one.said) == (other.what, other.said):
            same += 1
        else:
            first = pair
    return Comparison(same, first, {name: (made[0], made[1]) for name, made in sorted(tools.items())})


def _counted(events: Iterator[StoredEvent], tools: dict[str, list[int]], which: int) -> Iterator[Step]:
    for event in events:
        step = step_of(event)
        if step is None:
            continue
        if event.tag == "tool_invoked":
            tools.setdefault(step.what, [0, 0])[which] += 1
        yield step


def step_of(event: StoredEvent) -> Step | None:
    """Return the step that an event is, or None."""
    read = STEPS.get(event.tag)
    if read is None:
        return None
    try:
        what, said, name, asked = read(untyped(event.body))
    except UNREADABLE:
        what, said, name, asked = event.tag, _json(event.body), "", ""  # another version wrote it
    return Step(event.seq, what, said, name, asked)


def aligned(steps: Sequence[Step], others: Sequence[Step]) -> Alignment:
    """Align the steps of two runs."""
    asked = [(step.what, step.name, step.asked) for step in steps]
    others_asked = [(step.what, step.name, step.asked) for step in others]
    matches = _matches(asked, others_asked)
    whole = matches is not None
    if matches is None:
        both = enumerate(zip(asked, others_asked, strict=False))
        matches = [(at, at) for at, _ in takewhile(lambda each: each[1][0] == each[1][1], both)]
    found: list[Pair] = []
    at = beside = 0
    for one, other in matches:
        found += _between(steps, others, range(at, one), range(beside, other))
        alike = (steps[one].what, steps[one].said) == (others[other].what, others[other].said)
        found.append((one, other, "same" if alike else "content"))
        at, beside = one + 1, other + 1
    found += _between(steps, others, range(at, len(steps)), range(beside, len(others)))
    return Alignment(found, whole)


def _between(steps: Sequence[Step], others: Sequence[Step], left: range, right: range) -> Iterator[Pair]:
    """Yield the steps between two that fit: side by side if kind and name are the same, else one after the other."""
    names = [(steps[at].what, steps[at].name) for at in left]
    matches = _matches(names, [(others[at].what, others[at].name) for at in right]) or []
    at = beside = 0
    for one, other in (*matches, (len(left), len(right))):
        for each in left[at:one]:
            yield each, None, "one"
        for each in right[beside:other]:
            yield None, each, "other"
        if one < len(left) and other < len(right):
            yield left[one], right[other], "asked"
        at, beside = one + 1, other + 1


def _matches(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int]] | None:
    """Return the places of what two sequences have in common, so that the least is left over; None beyond `MOST_EDITS`.

    The greedy algorithm of E. Myers, "An O(ND) difference algorithm and its variations" (1986).
    """
    most = min(len(one) + len(other), MOST_EDITS)
    middle = most + 1
    reached = array("i", bytes(4 * (2 * middle + 1)))  # by diagonal, how far the best path with so many edits comes
    trail: list[array[int]] = []
    for edits in range(most + 1):
        trail.append(reached[middle - edits - 1 : middle + edits + 2])
        for diagonal in range(-edits, edits + 1, 2):
            here = middle + diagonal
            down = diagonal == -edits or (diagonal != edits and reached[here - 1] < reached[here + 1])
            at = reached[here + 1] if down else reached[here - 1] + 1
            while at < len(one) and at - diagonal < len(other) and one[at] == other[at - diagonal]:
                at += 1
            reached[here] = at
            if at >= len(one) and at - diagonal >= len(other):
                return _walked_back(trail, len(one), len(other))
    return None


def _walked_back(trail: Sequence[array[int]], at: int, beside: int) -> list[tuple[int, int]]:
    """Return the matches on the best path, from its end at these places back to the beginning."""
    found: list[tuple[int, int]] = []
    for edits in range(len(trail) - 1, -1, -1):
        reached, diagonal = trail[edits], at - beside
        here = edits + 1 + diagonal
        down = diagonal == -edits or (diagonal != edits and reached[here - 1] < reached[here + 1])
        before = reached[here + 1] if down else reached[here - 1]
        beside_before = before - (diagonal + 1 if down else diagonal - 1)
        while at > before and beside > beside_before:
            if edits and (at, beside) == ((before, beside_before + 1) if down else (before + 1, beside_before)):
                break  # the edit itself
            at, beside = at - 1, beside - 1
            found.append((at, beside))
        if edits:
            at, beside = before, beside_before
    return found[::-1]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


Parts = tuple[str, str, str, str]
"""Of a step: what it is, its content, its name, what was asked."""


def _prompt(body: Mapping[str, Any]) -> Parts:
    tools = ", ".join(map(str, body["tool_names"]))
    texts = [said_in(message, _json) for message in body["messages"]]
    said = "\n\n".join([*texts, f"tools: {tools}"])
    return "prompt", said, "", said


def _answer(body: Mapping[str, Any]) -> Parts:
    message = body["message"]
    calls = [f"{call['name']} {call['arguments']}" for call in message["tool_calls"]]
    said = "\n".join([*([str(message["text"])] if message["text"] else []), *calls])
    return "model", said, ", ".join(str(call["name"]) for call in message["tool_calls"]), "\n".join(calls)


def _tool(body: Mapping[str, Any]) -> Parts:
    given = body["params"] if isinstance(body["params"], str) else _json(body["params"])
    failed = "" if body["outcome"] == "ok" else f"{body['outcome']}: "
    return str(body["name"]), f"{given} → {failed}{body['rendered_output']}", "", given


STEPS: Final[Mapping[str, Callable[[Mapping[str, Any]], Parts]]] = {
    "prompt_rendered": _prompt,
    "model_replied": _answer,
    "tool_invoked": _tool,
    "notice_appended": lambda body: ("told the agent", str(body["text"]), "", ""),
    "completion_checked": lambda body: ("verdict", f"{body['verdict']}: {body['explanation']}", "", ""),
}
"""What a step is, by the tag of its event."""
