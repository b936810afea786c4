"""The calls of a stored run that have begun and have no end on record, in words.

They are those with which `resume` reckons: the fold is that of `loop.used`. Like a story, they are read from events one
after the other, also where the code of the agent cannot be imported. If an event on which they depend cannot be read,
nothing is said of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

from watchkeeper.cli.console import Part
from watchkeeper.cli.report import ARGUMENTS_CUT
from watchkeeper.core.codec import CodecError
from watchkeeper.core.quantities import counted, format_money
from watchkeeper.core.text import one_line
from watchkeeper.core.type_tags import tag_of
from watchkeeper.loop.used import Tally, UnderWay
from watchkeeper.runtime.events import (
    CallBegun,
    CallEnded,
    ModelFailed,
    ModelReplied,
    RunEnded,
    RunResumed,
    RunStarted,
)
from watchkeeper.runtime.parking import CallParked
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore, StoredEvent
from watchkeeper.tools.context import ToolInvoked

STARTED: Final = tag_of(RunStarted)
RESUMED: Final = tag_of(RunResumed)
BEGUN: Final = tag_of(CallBegun)
REPLIED: Final = tag_of(ModelReplied)
ENDED: Final = tag_of(RunEnded)
OVER: Final = frozenset({REPLIED, *map(tag_of, (CallEnded, CallParked, ModelFailed, ToolInvoked))})
"""Events that say of a call that it is over."""

CUT_OFF: Final = frozenset({"aborted", "cancelled", "interrupted"})
"""Stops that may leave calls without an end."""


class CallsUnderWay:
    """Follows the events of one run, in order, and the beginnings of its calls.

    Of a run of any length it keeps those events alone on which it depends what is under way now, and reads them only
    when somebody wants to know.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._started: list[StoredEvent] = []
        self._events: list[StoredEvent] = []
        self._open: set[str] = set()

    def add(self, event: StoredEvent) -> None:
        """Take in one event."""
        tag = event.tag
        if tag in OVER:
            self._open.discard(str(event.body.get("node_id")))  # of any kind in a damaged record
            if tag == REPLIED and not self._open:
                self._events = [event]  # it has the arguments of the calls to come
            elif self._open:
                self._events.append(event)
            else:
                self._events = [each for each in self._events if each.tag == REPLIED][-1:]
        elif tag in (STARTED, RESUMED):
            self._started = [event] if tag == STARTED else self._started
            self._events = []
            self._open.clear()
        elif tag == BEGUN:
            self._events.append(event)
            self._open.add(str(event.body.get("node_id")))
        elif tag == ENDED:
            self._events.append(event)

    def __iter__(self) -> Iterator[UnderWay]:
        """Yield the calls that have begun and have no end after the events so far."""
        if not self._open:
            return
        tally = Tally()
        try:
            for event in (*self._started, *self._events):
                tally.add(event.own().event)
        except CodecError:
            return
        yield from tally.under_way


def under_way_in(store: RunStore, runs: Iterable[StoredRun]) -> Iterator[tuple[StoredRun, str]]:
    """Yield the calls of runs that have begun and have no end, each in words with its run; ends in peace have none."""
    for run in runs:
        if run.ended_at is None or (run.stop is not None and run.stop["reason"] in CUT_OFF):
            found = CallsUnderWay()
            for event in store.events(run.run_id, calls=True):
                found.add(event)
            for words in words_of(store, run, found):
                yield run, words


def words_of(store: RunStore, run: StoredRun, calls: CallsUnderWay) -> Iterator[str]:
    """Yield each call in words, with what is known of its outcome."""
    found = list(calls)
    committing = _committing(store, run) if found else frozenset[str]()
    for begun in found:
        yield in_words(begun, going_on=run.running, committing=begun.call.node_id in committing)


def _committing(store: RunStore, run: StoredRun) -> frozenset[str]:
    """Return the nodes of the calls whose tool had succeeded, so that only its files were still to be written."""
    lines = (line for line in store.files(run.run_id) if line.event_id is not None)
    return frozenset(str(json.loads(bytes(line.invoked)).get("node_id")) for line in lines)


def in_words(begun: UnderWay, *, going_on: bool = False, committing: bool = False) -> str:
    """Return one call in words.

    Args:
        begun: The call.
        going_on: Whether a process works on its run, so that it may end yet.
        committing: Whether its tool had succeeded and its files were being written.
    """
    call = begun.call
    is_own = call.run_id is None
    what = "model" if call.kind == "llm" else "tool" if is_own else "call"
    given = f"({_given(begun.arguments)})" if what == "tool" else ""
    said = f"{what} {one_line(call.name, ARGUMENTS_CUT)}{given}, begun {call.created_at:%H:%M:%S}"
    if going_on:
        return said
    if committing:
        return f"{said}; it had succeeded, and resume finishes writing its files"
    if call.kind == "tool":
        return f"{said}, its outcome is unknown"
    cost = "" if call.worst_nanos is None else f", {format_money(call.worst_nanos)}"
    return f"{said}; its worst case counts: {counted(call.worst.total, 'token')}{cost}"


def _given(arguments: str) -> str:
    """Return the arguments of a call as a reader of Python writes them; text that is no JSON object as it is."""
    try:
        fields: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return one_line(arguments, ARGUMENTS_CUT)
    given = cast("dict[str, Any]", fields).items()
    return one_line(
        ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given), ARGUMENTS_CUT
    )


def parts_of_call(words: str, run: StoredRun | None = None) -> Sequence[Part]:
    """Return the parts of the line of a call that has begun and has no end; of a run below, with its name."""
    name = "" if run is None else f"{one_line(run.item or run.prompt, ARGUMENTS_CUT)}: "
    return ("?", "yellow"), " ", ("under way:", "bold"), " ", (name, "dim"), words
