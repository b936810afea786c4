"""The turn loop as a table: its states, the signals it can get, and the commands that follow.

Signals are what the driver tells the turn machine, commands what the machine asks the driver to do; both are values
only. `TABLE` shows the whole loop on one screen; `turn_machine` looks every step up there and refuses what is not in
it, and the diagram in the docs is generated from it. Signals and commands are msgspec structs, because every turn makes
several and structs are cheap to build.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from watchkeeper.core.errors import Stop
from watchkeeper.core.messages import Message, ToolCall, ToolMessage
from watchkeeper.core.model import CompletionState, CompletionStatus, ModelReply


class Started(msgspec.Struct, frozen=True):
    """The prompt is in the transcript; the loop may begin."""


class Replied(msgspec.Struct, frozen=True):
    """The model answered."""

    reply: ModelReply


class Compacted(msgspec.Struct, frozen=True):
    """The conversation is summarised, and goes on in a new segment that begins with ``messages``."""

    messages: tuple[Message, ...]


class ToolsDone(msgspec.Struct, frozen=True):
    """Every call has its result, in the order of the calls; ``stop`` is set if the gate stopped the work meanwhile."""

    results: tuple[ToolMessage, ...]
    stop: Stop | None = None


class Observed(msgspec.Struct, frozen=True):
    """The observers have looked; ``text`` is what the agent is told, ``stop`` ends the work if they were not heeded."""

    text: str = ""
    stop: Stop | None = None


class Parsed(msgspec.Struct, frozen=True):
    """The final text fits the output type."""

    output: Any


class Unparsable(msgspec.Struct, frozen=True):
    """The final text does not fit; ``problem`` is worded for the model."""

    problem: str


class Checked(msgspec.Struct, frozen=True):
    """The completion checker gave its verdict."""

    status: CompletionStatus
    explanation: str


class Stopped(msgspec.Struct, frozen=True):
    """The gate, a provider or the caller ended the work; the command was not, or not fully, executed."""

    stop: Stop


Signal = Started | Replied | Compacted | ToolsDone | Observed | Parsed | Unparsable | Checked | Stopped


class AskModel(msgspec.Struct, frozen=True):
    """Ask for one reply to the transcript; ``landing``: the last one, paid from what was kept back, no tools."""

    landing: bool = False


class Compact(msgspec.Struct, frozen=True):
    """Begin a new segment with a summary of the conversation; ``stop`` ends the work if that is not possible."""

    stop: Stop


class RunTools(msgspec.Struct, frozen=True):
    """Run the calls of one reply; every call gets exactly one result."""

    calls: tuple[ToolCall, ...]


class Observe(msgspec.Struct, frozen=True):
    """Let the observers look at the calls whose results were just appended."""


class ReadAnswer(msgspec.Struct, frozen=True):
    """Turn the final text into the output type."""

    text: str


class CheckDone(msgspec.Struct, frozen=True):
    """Ask the completion checker whether the work is done."""

    output: Any


class End(msgspec.Struct, frozen=True):
    """The run is over.

    Attributes:
        output: The typed answer of work that was completed, else None.
        stop: What ended the run early, else None.
        partial: What a stopped run had: a typed value if it fits, else text, else None.
        text: The last text the model gave.
        verdict: The completion checker's last word; ``unchecked`` if it gave none.
        explanation: What it said.
    """

    output: Any = None
    stop: Stop | None = None
    partial: Any = None
    text: str = ""
    verdict: CompletionState = "unchecked"
    explanation: str = ""


Command = AskModel | Compact | RunTools | Observe | ReadAnswer | CheckDone | End


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
