"""What is on a run's log of observers and feedback providers: that they were asked, and what came of their advice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from watchkeeper.prompt.advice import Assessment, Feedback
from watchkeeper.session.log import event

SourceOutcome = Literal["advised", "silent", "failed", "overran"]
"""The outcome of asking an observer or feedback provider."""


@event("source_ran")
@dataclass(frozen=True, slots=True)
class SourceRan:
    """One observer or feedback provider was asked, with the outcome.

    Attributes:
        source: Its name.
        outcome: ``advised``; ``silent``, after advice that counted for an escalation or for what is told again, or if
            its questions are bounded; ``failed``; or ``overran`` its time limit: it is then off for the rest of the
            run.
        advice: The advice of the source, or None.
        error: What it raised, or how long it took.
        marks: How many shares of its ``at_limit_share`` were passed at that moment, each counted for every limit.
    """

    source: str
    outcome: SourceOutcome
    advice: Assessment | Feedback | None = None
    error: str | None = None
    marks: int = 0


@event("observers_ran")
@dataclass(frozen=True, slots=True)
class ObserversRan:
    """Observers were asked after a tool call: at least one spoke or failed, or the agent was told something.

    Attributes:
        call_index: Tool calls so far.
        runs: Those that spoke or failed, in the order in which they were asked.
        created_at: The time of the event.
        told: Names of the sources whose advice was appended to the conversation, in the order of the template.
        text: What was appended: one block, as the agent is shown it; empty if nothing was.
        turn: The model turn before which it was appended; 0 if nothing was. If the run ended before that turn, a later
            run of the session reads it.
    """

    call_index: int
    runs: tuple[SourceRan, ...]
    created_at: datetime
    told: tuple[str, ...] = ()
    text: str = ""
    turn: int = 0


@event("advice_acknowledged")
@dataclass(frozen=True, slots=True)
class AdviceAcknowledged:
    """The agent answered advice; its source is then silent for some calls, except for warnings about limits.

    Attributes:
        source: Name of the observer or feedback provider that gave the advice.
        action: ``acknowledge`` (seen, dealt with) or ``dismiss`` (does not apply).
        for_calls: Number of tool calls for which the source is silent.
        call_index: Tool calls so far, the answer included.
        reason: Why, in the agent's words.
    """

    source: str
    action: Literal["acknowledge", "dismiss"]
    for_calls: int
    call_index: int
    reason: str = ""


@event("escalation_taken")
@dataclass(frozen=True, slots=True)
class EscalationTaken:
    """Advice was not followed, and the configured escalation was carried out.

    Attributes:
        source: Name of the observer or feedback provider that gave the advice.
        action: ``stop``, ``switch_model`` or ``call``.
        detail: What was done, in a sentence.
        call_index: Tool calls so far.
        created_at: The time of the event.
    """

    source: str
    action: str
    detail: str
    call_index: int
    created_at: datetime
