"""What is on record of tool calls that had begun or were asked about, and what that means for them on a resume.

Only decisions: `tool_calls` runs the calls and records them. A call about which a person was asked goes on by the
answer, if that is about these very arguments. A call that had begun and has no result does not run again by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import ToolCall
from watchkeeper.runtime.file_record import Unfinished
from watchkeeper.runtime.parking import EXPIRED, CallParked, Parked, parked_stop
from watchkeeper.tools.context import Answer, ToolInvoked, ToolOutcome

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
        hidden: Ids of the calls that had not begun and whose arguments held a secret, which is not on record.
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


def refuse_waiting(run_id: object, questions: Iterable[CallParked], now: datetime) -> None:
    """Refuse to go on with a parked run while a question has neither an answer nor expired.

    Raises:
        ConfigurationError: Naming the calls that wait, and what to do.
    """
    calls = [(each.name, each.call_id) for each in questions if not each.expired(now)]
    if calls:
        said = parked_stop(calls).message.rstrip(".")
        raise ConfigurationError(
            f"the run {run_id} is parked: {said}; answer with 'watchkeeper approve' or 'watchkeeper deny'"
        )
