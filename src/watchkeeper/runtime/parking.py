"""Parked runs: what is on record of a tool call about which a person is asked, and of the answer.

A run parks only if its caller chose so, or a tool did for calls of which nobody knows whether they had their effect.
The question and the answer are events of the run's log, bound to the call and to the hash of its arguments: an answer
about other arguments counts for nothing. This module decides what an answer means, and what a resumed run does with a
call that had begun or was asked about; it asks nobody and runs nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from getpass import getuser
from pathlib import Path
from hashlib import sha256
from typing import Any, Final, Literal, get_args
from uuid import UUID

import msgspec

from watchkeeper.core.errors import ConfigurationError, Stop
from watchkeeper.core.messages import ToolCall
from watchkeeper.core.quantities import DurationLike, counted, duration
from watchkeeper.core.text import clipped, one_line
from watchkeeper.core.type_tags import own_value
from watchkeeper.runtime.file_record import Unfinished
from watchkeeper.session.log import event
from watchkeeper.tools.context import Answer, ToolInvoked, ToolOutcome

OnExpiry = Literal["deny", "allow"]
EXPIRY_CHOICES: Final[tuple[str, ...]] = get_args(OnExpiry)
ASK_CHOICES: Final = ("deny", "park")

PARKED: Final = "parked"
"""The reason of the stop of a run that waits for answers."""

NAME_CHARS: Final = 60
"""Characters of a name or an id of a call in a message."""

SHORT_DIGEST: Final = 12
"""Characters of a hash that are shown to a person."""

NAMED: Final = 3
"""How many of the calls that wait the stop of a parked run names."""


@own_value("park")
@dataclass(frozen=True, slots=True)
class Park:
    """What happens to a tool call about which a person is to be asked when nobody is there: the run parks.

    Args:
        expires: How long the question waits for its answer ("3d", a timedelta, seconds); None for as long as it takes.
        then: What holds after that: ``deny`` (the agent is told that nobody answered) or ``allow``.

    Raises:
        ConfigurationError: If a value has the wrong type or is out of range.
    """

    expires: DurationLike | None = None
    then: OnExpiry = "deny"

    def __post_init__(self) -> None:
        """Read the length of time, and check the choice."""
        if self.expires is not None:
            object.__setattr__(self, "expires", duration(self.expires, "expires"))
        if self.then not in EXPIRY_CHOICES:
            raise ConfigurationError(f"then={self.then!r} must be {' or '.join(map(repr, EXPIRY_CHOICES))}")

    def expiry(self, now: datetime) -> datetime | None:
        """Return when a question that is asked now expires; None for never."""
        return now + self.expires if isinstance(self.expires, timedelta) else None


def park_of(on_ask: Park | Literal["deny", "park"]) -> Park | None:
    """Return how a run parks, from the option of its caller; None if what nobody answers is denied."""
    return on_ask if isinstance(on_ask, Park) else Park() if on_ask == "park" else None


@event("call_parked")
class CallParked(msgspec.Struct, frozen=True):
    """A tool call waits for the answer of a person; it has not begun, or nobody knows whether it had its effect.

    Attributes:
        question_id: Identifies the question; its answer names it.
        kind: ``hook``: a hook asks; ``tool``: the tool itself asks; ``unknown``: the process ended while the call ran.
        call_id: The provider's id of the call.
        name: Name of the tool.
        arguments: As the model wrote them.
        digest: Their hash.
        asked_by: Name of the hook, or of the tool.
        question: What is asked, in a sentence.
        expires: When the question expires, or None.
        then: What holds after that.
        created_at: The time of the event.
        node_id: The admitted call at the gate whose tool asked; empty if none was admitted.
    """

    question_id: UUID
    kind: Literal["hook", "tool", "unknown"]
    call_id: str
    name: str
    arguments: str
    digest: str
    asked_by: str
    question: str
    expires: datetime | None
    then: OnExpiry
    created_at: datetime
    node_id: str = ""

    @property
    def named(self) -> str:
        """Name and id of the call, in one line."""
        return f"{one_line(self.name, NAME_CHARS)} ({one_line(self.call_id, NAME_CHARS)})"

    def expired(self, now: datetime) -> bool:
        """Return whether it is too late for an answer."""
        return self.expires is not None and now >= self.expires

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return {**data, "question_id": str(self.question_id)}


@event("call_answered")
class CallAnswered(msgspec.Struct, frozen=True):
    """A person has answered the question about a parked call.

    Attributes:
        question_id: The question.
        call_id: The provider's id of the call.
        digest: Hash of the arguments that the answer is about.
        allowed: Whether the call may run; of a call whose effect is unknown, whether it is to run again.
        by: Who answered.
        why: What that person said about it; may be empty.
        created_at: The time of the event.
    """

    question_id: UUID
    call_id: str
    digest: str
    allowed: bool
    by: str
    why: str
    created_at: datetime


EXPIRED: Final = "nobody, in time"
"""Who decided if a question expired."""


class Parked(msgspec.Struct, frozen=True):
    """A parked call of a run that goes on.

    Attributes:
        question: What was asked.
        answer: The answer, if there is one.
    """

    question: CallParked
    answer: CallAnswered | None = None

    def fits(self, call: ToolCall) -> bool:
        """Return whether question and answer are about this very call with these arguments."""
        digest = digest_of(call.arguments)
        return self.question.digest == digest and (self.answer is None or self.answer.digest == digest)

    def ruling(self, now: datetime) -> Answer | None:
        """Return what holds now; None as long as nobody has answered."""
        if self.answer is not None:
            return Answer(self.answer.allowed, self.answer.by, self.answer.why)
        return Answer(self.question.then == "allow", EXPIRED) if self.question.expired(now) else None


def digest_of(arguments: str) -> str:
    """Return the hash of a call's arguments, as the model wrote them."""
    return sha256(arguments.encode("utf-8", "surrogatepass")).hexdigest()


def waiting(events: Iterable[object]) -> tuple[CallParked, ...]:
    """Return the questions without an answer among the events of a run; expired ones are among them.

    Args:
        events: Its events, in order; a text stands for a call that has its result, and is the id of that call.
    """
    found: dict[str, CallParked] = {}
    for each in events:
        match each:
            case CallParked():
                found[each.call_id] = each
            case CallAnswered() if each.call_id in found and found[each.call_id].question_id == each.question_id:
                del found[each.call_id]
            case ToolInvoked(call_id=str(call_id)) | str(call_id):
                found.pop(call_id, None)
            case _:
                pass
    return tuple(found.values())


def this_user() -> str:
    """Return the name of this process's user, or its number where it has no name, as in many containers."""
    try:
        return getuser()
    except (ImportError, KeyError, OSError):
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "an unknown user"


def answer_to(
    question: CallParked,
    run_id: str,
    now: datetime,
    *,
    allowed: bool,
    by: str | None = None,
    why: str = "",
    digest: str = "",
) -> CallAnswered:
    """Return the answer to a question.

    Args:
        question: The question.
        run_id: Its run, for messages.
        now: The time.
        allowed: Whether the call may run.
        by: Who answers; the user of this process by default.
        why: The reason; the agent is told if the call is denied.
        digest: The beginning of the hash of the arguments that the person has seen; empty for those on record.

    Raises:
        ConfigurationError: If it is too late, about other arguments, or of nobody.
    """
    who = this_user() if by is None else by.strip()
    name = f"the question about {question.named} of the run {run_id}"
    if not who:
        raise ConfigurationError("by='' names nobody; say who gives the answer")
    if question.expired(now):
        raise ConfigurationError(f"{name} expired at {question.expires:%Y-%m-%d %H:%M:%S} UTC; resume the run")
    if not question.digest.startswith(digest.strip().lower()):
        seen = question.digest[:SHORT_DIGEST]
        raise ConfigurationError(f"{name} is about arguments with the hash {seen}, not {digest!r}; look at them again")
    return CallAnswered(question.question_id, question.call_id, question.digest, allowed, who, why.strip(), now)


def no_question(events: Sequence[object], call_id: str | None) -> str:
    """Say why a call of a run does not wait for an answer, to follow the run's name; empty if no call of it does."""
    found = [each.named for each in waiting(events)]
    for each in reversed(events):
        if isinstance(each, CallAnswered) and (each.call_id == call_id or (call_id is None and not found)):
            word = "approved" if each.allowed else "denied"
            return f"has its answer: the call {one_line(each.call_id, NAME_CHARS)} was {word} already, by {each.by}"
    return f"has no call {call_id!r} that waits for an answer; these wait: {', '.join(found)}" if found else ""


def parked_stop(calls: Sequence[tuple[str, str]]) -> Stop:
    """Return the stop of a run that waits for answers, given name and id of each call that it waits for."""
    shown = calls[:NAMED]
    named = ", ".join(f"{clipped(name, NAME_CHARS)} ({clipped(call_id, NAME_CHARS)})" for name, call_id in shown)
    more = f" and {len(calls) - NAMED} more" if len(calls) > NAMED else ""
    verb = "waits" if len(calls) == 1 else "wait"
    return Stop(PARKED, "loop", f"{counted(len(calls), 'tool call')} {verb} for an answer: {named}{more}.")


# --- calls of a run that goes on --------------------------------------------------------------------------------------

UNKNOWN: Final = (
    "It is not known whether {} had its effect: the process ended while it ran. Look before you call it again."
)
"""What the model is told of a call that was under way when the process ended, if it may not simply run again."""

NOT_RUN: Final = "not run: "
"""How the text begins for a call that was not run because the run was stopped; such a call counts as no denial."""

HIDDEN: Final = "{} was not run: its arguments held a secret, which is not on record. Call it again."
"""What the model is told of a call that cannot be made because of what its arguments were."""


class Earlier(msgspec.Struct, frozen=True):
    """What is on record of the calls of a reply, if the run was interrupted or parked while they ran.

    Attributes:
        done: By call id, the last attempt of those that have a result.
        begun: By call id, how many attempts of those without a result had begun.
        parked: By call id, the questions that were asked about those without a result, in order.
        waits: Ids of those that have not begun again since the last question.
        unfinished: By call id, those whose tool had succeeded and whose files were being written.
        hidden: Ids of the calls whose arguments held a secret, which is not on record: they cannot be made again.
    """

    done: Mapping[str, ToolInvoked] = msgspec.field(default_factory=dict[str, ToolInvoked])
    begun: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
    parked: Mapping[str, Sequence[Parked]] = msgspec.field(default_factory=dict[str, Sequence[Parked]])
    waits: frozenset[str] = frozenset()
    unfinished: Mapping[str, Unfinished] = msgspec.field(default_factory=dict[str, Unfinished])
    hidden: frozenset[str] = frozenset()

    def asked_about(self, call: ToolCall) -> Sequence[Parked]:
        """Return the questions that were asked about this very call with these arguments, in order."""
        return [each for each in self.parked.get(call.call_id, ()) if each.fits(call)]

    def has_question(self, question: CallParked) -> bool:
        """Return whether a question is on record."""
        before = self.parked.get(question.call_id, ())
        return any(each.question.question_id == question.question_id for each in before)


NOT_BEGUN: Final = Earlier()


class AnswersOfCall(msgspec.Struct, frozen=True):
    """What persons have said about a call that runs after its run was parked.

    Attributes:
        approved_by: Who allowed it to begin, or None.
        of_tool: The answers to the tool's own questions, by question.
    """

    approved_by: str | None = None
    of_tool: Mapping[str, Answer] = msgspec.field(default_factory=dict[str, Answer])


NO_ANSWERS: Final = AnswersOfCall()


def answers_among(asked: Iterable[Parked], now: datetime) -> AnswersOfCall:
    """Return the answers to the questions about a call."""
    ruled = [(each.question, answer) for each in asked if (answer := each.ruling(now)) is not None]
    approvals = [answer.by for question, answer in ruled if question.kind != "tool" and answer.allowed]
    of_tool = {question.question: answer for question, answer in ruled if question.kind == "tool"}
    return AnswersOfCall(approvals[-1] if approvals else None, of_tool)


def refusal_of(question: CallParked, answer: Answer) -> tuple[ToolOutcome, str]:
    """Return outcome and text for a call that a person has denied, or whose question has expired."""
    why = f": {answer.why}" if answer.why else "."
    if question.kind == "unknown":
        asked = f"{answer.by} was asked whether it is to run again, and said no"
        return "unknown", f"{UNKNOWN.format(question.name)} {asked}{why}"
    who = "nobody has answered in time" if answer.by == EXPIRED else f"{answer.by} has denied it"
    return "denied", f"{question.name} was not run, and nothing was changed: {who}{why}"


def is_denial(outcome: str, text: str) -> bool:
    """Return whether a call was denied by a hook or a person, and not because the run was stopped."""
    return outcome == "denied" and not text.startswith(NOT_RUN)


def refuse_waiting(run_id: object, questions: Iterable[CallParked], now: datetime, store: Path) -> None:
    """Refuse to go on with a parked run while a question has neither an answer nor expired.

    Raises:
        ConfigurationError: Naming the calls that wait, and what to do.
    """
    calls = [(each.name, each.call_id) for each in questions if not each.expired(now)]
    if calls:
        said = parked_stop(calls).message.rstrip(".")
        raise ConfigurationError(
            f"the run {run_id} is parked: {said}; 'watchkeeper pending --store {shlex.quote(str(store))}' lists what to"
            " approve or deny"
        )
