"""The turn loop as a pure state machine: its states, signals and commands, and the table of its transitions.

The driver sends signals to the machine; the machine returns commands that the driver executes. Both are plain values.
`TABLE` shows the whole loop on one screen: the machine looks up every step there and refuses a step that is not in it.
The diagram in the docs is generated from it. The machine only appends to the end of the transcript, or begins a new
segment of it. It does no I/O and knows no clock, no provider and no money. Limits reach it as `Stopped` signals; the
only limit that it counts itself is turns. Signals and commands are msgspec structs, because every turn makes several
and structs are cheap to build.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, cast

import msgspec

from watchkeeper.core.errors import Stop
from watchkeeper.core.messages import AssistantMessage, Message, Part, ToolCall, ToolMessage, Transcript, UserMessage
from watchkeeper.core.meters import METERS
from watchkeeper.core.model import STATES, CompletionState, CompletionStatus, FinishReason, ModelReply
from watchkeeper.core.quantities import counted
from watchkeeper.core.secrets import redacted


class Started(msgspec.Struct, frozen=True):
    """The prompt is in the transcript; the loop may begin."""


class Replied(msgspec.Struct, frozen=True):
    """The model answered."""

    reply: ModelReply


class Compacted(msgspec.Struct, frozen=True):
    """The conversation was summarised; it continues in a new segment that begins with ``messages``."""

    messages: tuple[Message, ...]


class ToolsDone(msgspec.Struct, frozen=True):
    """Every call has its result, in the order of the calls.

    Attributes:
        results: One for each call.
        stop: Set if the gate stopped the work meanwhile.
        images: The images that the tools returned, with what says so; they follow the results as one message.
    """

    results: tuple[ToolMessage, ...]
    stop: Stop | None = None
    images: tuple[Part, ...] = ()


class Observed(msgspec.Struct, frozen=True):
    """The observers are done; ``text`` is their message to the agent, ``stop`` ends the work if it ignored them."""

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
    """The gate, a provider or the caller ended the work; the command was not, or not fully, executed.

    Attributes:
        stop: What ended it.
        text: What the model had said so far in the turn that was cut off by it.
    """

    stop: Stop
    text: str = ""


Signal = Started | Replied | Compacted | ToolsDone | Observed | Parsed | Unparsable | Checked | Stopped


class AskModel(msgspec.Struct, frozen=True):
    """Ask for one reply to the transcript; ``landing``: the last reply, without tools, paid from the landing hold."""

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
        output: The typed answer if the work was completed, else None.
        stop: What ended the run early, else None.
        partial: The partial answer of a stopped run: a typed value if the text fits, else the text, else None.
        text: The last text the model gave.
        verdict: The completion checker's last verdict; ``unchecked`` if it gave none.
        explanation: The checker's explanation of that verdict.
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
    Row(_S.CALLING, Stopped, (_S.ENDED,), "a hard stop while tools ran, or a call waits for an answer"),
    Row(_S.CHECKING, Stopped, (_S.ENDED,), "the limit came while the answer was checked"),
    Row(_S.LANDING, Replied, (_S.HANDING_OVER, _S.ENDED), "the last turn: what the agent hands over"),
    Row(_S.LANDING, Stopped, (_S.ENDED,), "no room, or no time, for landing"),
    Row(_S.HANDING_OVER, Parsed, (_S.ENDED,), "a typed partial result"),
    Row(_S.HANDING_OVER, Unparsable, (_S.ENDED,), "a partial result as text"),
)


@cache
def allowed(state: State, signal: type[Signal]) -> frozenset[State]:
    """Return the states that ``signal`` may lead to from ``state``; empty if it cannot happen there."""
    return frozenset(to for row in TABLE if row.state is state and row.signal is signal for to in row.leads_to)


CEILING_STOPS: Final = frozenset(meter.reason for meter in METERS)
"""Stops that say that a ceiling on money or on a count was reached."""

LANDABLE: Final = CEILING_STOPS | {"timeout", "context_full", "interrupted", "escalated", "store_failed"}
"""Stops after which the agent may take a last turn to hand over its partial work."""

EMPTY_NOTICE: Final = "Your last reply was empty. Call a tool, or give your final answer now."
CUT_NOTICE: Final = (
    "Your last reply was cut off at the output limit. Give your final answer again, shorter and complete."
)
ENDED_NOTICE: Final = "Your last reply ended before it was complete. Give your final answer again, complete."

SAID_CHARS: Final = 300
"""How much of a checker's explanation the sentence of a stop contains; the run's result contains all of it."""


class LoopRules(msgspec.Struct, frozen=True):
    """What the loop must know about a run.

    Attributes:
        max_turns: Model turns, the landing turn included; None for no ceiling.
        lands: Whether a last turn may be taken when a limit stops the work.
        lands_when_full: Whether a last turn may also be taken when the context is full.
        compacts: Whether a full context is summarised, so that the work can continue.
        observes: Whether observers look after every turn of tool calls.
        checks: Whether a completion checker is asked.
        repairs: How often the agent may be asked again after an answer that does not fit, was cut or is empty.
        completion_rounds: How often the verdict "incomplete" may send the agent back to work.
        closed: Whether work that could not be verified stops the run, instead of ending it as done.
    """

    max_turns: int | None = None
    lands: bool = True
    lands_when_full: bool = True
    compacts: bool = False
    observes: bool = False
    checks: bool = False
    repairs: int = 1
    completion_rounds: int = 3
    closed: bool = False


QUOTED_CHARS: Final = 2_000
"""Characters of what a model or a provider said that a message repeats; the record has all of it."""


def as_said(text: str) -> str:
    """Return what a model or a provider said, for a message: at most `QUOTED_CHARS` characters of it.

    Credentials are replaced first, so that the cut leaves no part of one.
    """
    return text if len(text) <= QUOTED_CHARS else f"{redacted(text)[:QUOTED_CHARS]} [...]"


class TurnMachine:
    """One run's loop: `handle` a signal, get the next command.

    Attributes:
        transcript: The conversation; during the run only this class appends to it or begins a new segment.
        state: Where the loop is.
        turns: Replies so far, the landing turn included; the driver sets it where those on record do not count.
        notices: What the newest step told the agent: a repair request, a checker's objection, the landing notice.
    """

    def __init__(self, rules: LoopRules, transcript: Transcript) -> None:
        """Begin before the first turn; the prompt's messages are in the transcript already."""
        self._rules = rules
        self.transcript = transcript
        self.state = State.READY
        self.turns = 0
        self.notices: list[str] = []
        self._repairs = 0
        self._incomplete = 0
        self._compacted_at: int | None = None
        self._stop: Stop | None = None
        self._text = ""
        self._begun = ""
        self._output: Any = None
        self._verdict: CompletionState = "unchecked"
        self._explanation = ""

    def handle(self, signal: Signal) -> Command:
        """Take one step.

        Raises:
            RuntimeError: If the signal is not allowed in this state, which is a bug in the driver.
        """
        led_to = allowed(self.state, type(signal))
        if not led_to:
            raise RuntimeError(f"{type(signal).__name__} cannot happen while the loop is {self.state.value}")
        self.notices = []
        command = self._step(signal)
        if self.state not in led_to:
            raise RuntimeError(f"{type(signal).__name__} led to {self.state.value!r}, which the table does not allow")
        return command

    def _step(self, signal: Signal) -> Command:
        match signal:
            case Started():
                return self._ask()
            case Replied():
                return self._replied(signal)
            case ToolsDone():
                return self._tools_done(signal)
            case Compacted():
                return self._compacted(signal)
            case Observed():
                return self._observed(signal)
            case Parsed():
                return self._parsed(signal)
            case Unparsable():
                return self._unparsable(signal)
            case Checked():
                return self._checked(signal)
            case Stopped():
                return self._stopped(signal)

    def _replied(self, signal: Replied) -> Command:
        reply, landing = signal.reply, self.state is State.LANDING
        self.turns += 1
        said, self._begun = self._begun + reply.message.text, ""
        self._text = said if said.strip() else self._text
        kept = kept_message(reply.message, reply.finish, landing=landing)
        if kept is not None:
            self.transcript.append(kept)
        if landing:
            return self._handed_over(reply, kept)
        if reply.finish == "refusal":
            said = as_said(reply.refusal or reply.message.text or "no reason given")
            return self._end_stopped(Stop("refused", "provider", f"The model refused: {said}"))
        if kept is None and not said.strip():
            stop = Stop("empty_answer", "loop", "The model answered with nothing, twice in a row.")
            return self._ask_again(EMPTY_NOTICE, stop)
        if kept is not None and kept.tool_calls:
            self._repairs = 0
            return self._go(State.CALLING, RunTools(kept.tool_calls))
        if reply.finish == "paused":
            self._begun = said
            return self._ask()
        if reply.finish == "length":
            stop = Stop("output_invalid", "loop", "The final answer was cut off at the output limit, twice in a row.")
            return self._ask_again(CUT_NOTICE, stop)
        if reply.finish in ("unknown", "tool_calls"):
            why = f"for a reason that is not known ({as_said(reply.ended_by) or 'none was given'})"
            if reply.finish == "tool_calls":
                why = "with tool calls as the reason, but has none"
            stop = Stop(
                "output_invalid", "loop", f"The final answer ended {why}, twice in a row; it may be incomplete."
            )
            return self._ask_again(ENDED_NOTICE, stop)
        return self._go(State.READING, ReadAnswer(said))

    def _tools_done(self, signal: ToolsDone) -> Command:
        for message in signal.results:
            self.transcript.append(message)
        if signal.images:
            self.transcript.append(UserMessage(signal.images))
        if signal.stop is not None:
            return self._land(signal.stop)
        return self._go(State.OBSERVING, Observe()) if self._rules.observes else self._ask()

    def _observed(self, signal: Observed) -> Command:
        if signal.text:
            self.transcript.append(UserMessage.of(signal.text))
        return self._ask() if signal.stop is None else self._land(signal.stop)

    def _parsed(self, signal: Parsed) -> Command:
        self._output = signal.output
        if self.state is State.HANDING_OVER:
            return self._end(self._stop, signal.output)
        if self._rules.checks:
            return self._go(State.CHECKING, CheckDone(signal.output))
        return self._end(None)

    def _unparsable(self, signal: Unparsable) -> Command:
        if self.state is State.HANDING_OVER:
            return self._end(self._stop, self._text or None)
        stop = Stop("output_invalid", "loop", f"The final answer does not fit the output type: {signal.problem}")
        return self._ask_again(signal.problem, stop)

    def _checked(self, signal: Checked) -> Command:
        self._verdict, self._explanation = STATES[signal.status], signal.explanation
        if signal.status == "unverified" and self._rules.closed:
            return self._end_stopped(Stop("unverified", "checker", f"Nobody could verify the work: {self._said()}"))
        if signal.status != "incomplete":
            return self._end(None)
        self._incomplete += 1
        if self._incomplete > self._rules.completion_rounds:
            often = "" if self._incomplete == 1 else f" {self._incomplete} times, last"
            said = f"The work was found incomplete{often}: {self._said()}"
            return self._end_stopped(Stop("incomplete", "checker", said))
        self._repairs = 0
        self._tell(f"The work is not complete yet: {signal.explanation}\n\nGo on.")
        return self._ask()

    def _compacted(self, signal: Compacted) -> Command:
        self._compacted_at = self.turns
        self.transcript.begin_segment(signal.messages)
        return self._ask()

    def _stopped(self, signal: Stopped) -> Command:
        if signal.text:
            self.transcript.append(AssistantMessage(text=signal.text))
            if self.state is not State.LANDING or not self._text:  # a cut hand-over replaces nothing
                self._text = signal.text
        if self.state is State.ASKING and self._may_compact(signal.stop):
            return self._go(State.COMPACTING, Compact(signal.stop))
        if self.state in (State.ASKING, State.COMPACTING):
            return self._land(signal.stop)
        if self.state is State.CHECKING:
            self._verdict, self._explanation = STATES["unverified"], not_checked(signal.stop)
        return self._end_stopped(self._stop or signal.stop)

    def _ask(self) -> Command:
        limit = self._rules.max_turns
        kept_back = 1 if self._rules.lands and limit is not None and limit > 1 else 0
        if limit is not None and self.turns >= limit - kept_back:
            turns = counted(limit, "turn")
            said = f"The run reached its limit of {turns}."
            return self._land(Stop("turn_limit_exceeded", "loop", said, "max_turns", turns))
        return self._go(State.ASKING, AskModel())

    def _ask_again(self, notice: str, stop: Stop) -> Command:
        if self._repairs >= self._rules.repairs:
            return self._end_stopped(stop)
        self._repairs += 1
        self._tell(notice)
        return self._ask()

    def _may_compact(self, stop: Stop) -> bool:
        """Whether a summary may help; it does not if no turn succeeded since the last summary."""
        return self._rules.compacts and stop.reason == "context_full" and self.turns != self._compacted_at

    def _land(self, stop: Stop) -> Command:
        """Take the last turn if the stop permits it and the model has said something before."""
        limit = self._rules.max_turns
        room = (self.turns > 0 or bool(self._text)) and (limit is None or self.turns < limit)
        wanted = self._rules.lands and (self._rules.lands_when_full or stop.reason != "context_full")
        if not (wanted and room and stop.reason in LANDABLE):
            return self._end_stopped(stop)
        self._stop = stop
        self._tell(landing_notice(stop))
        return self._go(State.LANDING, AskModel(landing=True))

    def _handed_over(self, reply: ModelReply, kept: AssistantMessage | None) -> Command:
        if kept is None or reply.finish == "refusal":
            return self._end_stopped(cast("Stop", self._stop))
        return self._go(State.HANDING_OVER, ReadAnswer(kept.text))

    def _end_stopped(self, stop: Stop) -> Command:
        return self._end(stop, self._output if self._output is not None else self._text or None)

    def _end(self, stop: Stop | None, partial: Any = None) -> Command:
        output = self._output if stop is None else None
        return self._go(State.ENDED, End(output, stop, partial, self._text, self._verdict, self._explanation))

    def _tell(self, notice: str) -> None:
        self._begun = ""
        self.transcript.append(UserMessage.of(notice))
        self.notices.append(notice)

    def _said(self) -> str:
        said = " ".join(self._explanation.split())
        return said if len(said) <= SAID_CHARS else f"{said[: SAID_CHARS - 1]}…"

    def _go(self, state: State, command: Command) -> Command:
        self.state = state
        return command


def kept_message(message: AssistantMessage, finish: FinishReason, *, landing: bool) -> AssistantMessage | None:
    """Return the part of a reply that enters the transcript, or None if nothing does.

    Providers refuse empty messages and tool calls without results. So only the text of a landing reply or a refusal is
    kept. A paused reply is kept whole: it may have no text, but what the provider wants back.
    """
    if not landing and finish == "paused" and message.provider_data is not None:
        return message
    if not landing and finish != "refusal" and message.tool_calls:
        return message
    if not message.text.strip():
        return None
    if not message.tool_calls:
        return message
    return AssistantMessage(text=message.text, reasoning=message.reasoning)


def not_checked(stop: Stop) -> str:
    """Return why an answer has no verdict if the work was stopped before the checker gave one."""
    return f"the run ended before the answer was checked: {stop.message}"


def landing_notice(stop: Stop) -> str:
    """Return the message that tells the agent that this is its last turn."""
    return (
        f"{stop.message} This is your last turn and no tool can be called any more. "
        "Hand over what you have: give your final answer now, with what is done and what is still open."
    )


def mermaid() -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    names = {state: state.value.replace(" ", "_") for state in State}
    lines = ["stateDiagram-v2", f"    [*] --> {names[_S.READY]}"]
    edges = {f"    {names[row.state]} --> {names[to]}: {row.signal.__name__}" for row in TABLE for to in row.leads_to}
    return "\n".join([*lines, *sorted(edges), f"    {names[_S.ENDED]} --> [*]"])
