"""The state table of the turn loop: where it can be, what can happen there, where that leads.

The table is data, so that a reader sees the whole loop on one screen; `turn_machine` looks every step up here and
refuses what is not in it, and the diagram in the docs is generated from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from watchkeeper.kernel.signals import (
    Checked,
    Compacted,
    Observed,
    Parsed,
    Replied,
    Signal,
    Started,
    Stopped,
    ToolsDone,
    Unparsable,
)


class State(StrEnum):
    """Where the loop is: what it is waiting for."""

    READY = "ready"
    ASKING = "asking"
    COMPACTING = "compacting"
    CALLING = "calling"
    OBSERVING = "observing"
    READING = "reading"
    CHECKING = "checking"
    LANDING = "landing"
    HANDING_OVER = "handing over"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: in ``state``, ``signal`` leads to one of ``leads_to``."""

    state: State
    signal: type[Signal]
    leads_to: tuple[State, ...]
    note: str


_S = State

TABLE: Final[tuple[Row, ...]] = (
    Row(_S.READY, Started, (_S.ASKING,), "the first turn"),
    Row(_S.ASKING, Replied, (_S.CALLING,), "the reply asks for tools"),
    Row(_S.ASKING, Replied, (_S.READING,), "the reply is a final answer"),
    Row(_S.ASKING, Replied, (_S.ASKING, _S.LANDING), "the reply is empty or was cut: ask once more"),
    Row(_S.ASKING, Replied, (_S.ENDED,), "the reply is a refusal, or empty or cut again"),
    Row(_S.CALLING, ToolsDone, (_S.ASKING, _S.OBSERVING), "the results are appended; observers look if there are any"),
    Row(_S.CALLING, ToolsDone, (_S.LANDING, _S.ENDED), "a limit stopped the work, or no turn is left"),
    Row(_S.OBSERVING, Observed, (_S.ASKING,), "what they say is appended"),
    Row(_S.OBSERVING, Observed, (_S.LANDING, _S.ENDED), "advice that was not heeded ends the work, or no turn is left"),
    Row(_S.READING, Parsed, (_S.CHECKING, _S.ENDED), "the answer fits; it is checked if there is a checker"),
    Row(_S.READING, Unparsable, (_S.ASKING, _S.LANDING), "one repair round: the problem is appended"),
    Row(_S.READING, Unparsable, (_S.ENDED,), "the repaired answer does not fit either"),
    Row(_S.CHECKING, Checked, (_S.ENDED,), "verified, unverified, or rejected once too often"),
    Row(_S.CHECKING, Checked, (_S.ASKING, _S.LANDING), "rejected: the feedback is appended"),
    Row(_S.ASKING, Stopped, (_S.LANDING, _S.ENDED), "a limit: land if there is something to hand over"),
    Row(_S.ASKING, Stopped, (_S.COMPACTING,), "the context is full: a summary is to begin a new segment"),
    Row(_S.COMPACTING, Compacted, (_S.ASKING,), "the new segment goes on where the old one ended"),
    Row(_S.COMPACTING, Stopped, (_S.LANDING, _S.ENDED), "no summary, or a limit came while it was made"),
    Row(_S.CALLING, Stopped, (_S.ENDED,), "a hard stop while tools ran"),
    Row(_S.CHECKING, Stopped, (_S.ENDED,), "the limit came while the answer was checked"),
    Row(_S.LANDING, Replied, (_S.HANDING_OVER, _S.ENDED), "the last turn: what the agent hands over"),
    Row(_S.LANDING, Stopped, (_S.ENDED,), "no room, or no time, for landing"),
    Row(_S.HANDING_OVER, Parsed, (_S.ENDED,), "a typed partial result"),
    Row(_S.HANDING_OVER, Unparsable, (_S.ENDED,), "a partial result as text"),
)


def allowed(state: State, signal: type[Signal]) -> frozenset[State]:
    """Return the states that ``signal`` may lead to from ``state``; empty if it cannot happen there."""
    return frozenset(to for row in TABLE if row.state is state and row.signal is signal for to in row.leads_to)


ALLOWED: Final = {(row.state, row.signal): allowed(row.state, row.signal) for row in TABLE}


def mermaid() -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    names = {state: state.value.replace(" ", "_") for state in State}
    lines = ["stateDiagram-v2", f"    [*] --> {names[_S.READY]}"]
    edges = {f"    {names[row.state]} --> {names[to]}: {row.signal.__name__}" for row in TABLE for to in row.leads_to}
    return "\n".join([*lines, *sorted(edges), f"    {names[_S.ENDED]} --> [*]"])
