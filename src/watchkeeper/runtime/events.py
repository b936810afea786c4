"""The events of a run's log, except those that tools, prompts, observers, parking and the gate define.

Together with `PromptRendered` and `ToolInvoked` these events are the whole run: the transcript, the usage and the
ending are folds of them. `TextDelta` alone is not recorded: listeners get it while a reply arrives, which contains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from watchkeeper.accounting.limits import Limits
from watchkeeper.core.errors import Stop
from watchkeeper.core.ids import RunContext
from watchkeeper.core.messages import AssistantMessage
from watchkeeper.core.model import CompletionState, FinishReason
from watchkeeper.core.usage import Presumed, TokenUsage, Usage
from watchkeeper.prompt.advice import Assessment, Feedback, RecordAssessment
from watchkeeper.prompt.evaluation import PromptDeadlineAssigned, PromptExecuted, PromptRendered
from watchkeeper.runtime.file_record import FilesNotOnRecord
from watchkeeper.runtime.advice_events import AdviceAcknowledged, EscalationTaken, ObserversRan, SourceRan
from watchkeeper.runtime.parking import CallAnswered, CallParked, Park
from watchkeeper.runtime.used_before import NOTHING_BEFORE, UsedBefore
from watchkeeper.session.log import RolledBack, SessionReset, SliceEdited, StateInherited, event
from watchkeeper.session.tagging import check_only
from watchkeeper.shield.decision import SafetyEvent
from watchkeeper.tools.context import ToolInvoked


@event("run_started")
class RunStarted(msgspec.Struct, frozen=True):
    """A run began.

    Attributes:
        run_context: The identifiers of the run.
        prompt_name: ``ns/key`` of its prompt.
        model: ``provider:name``.
        limits: The limits in force, in words.
        deadline: The moment at which it must be over, if there is one.
        started_at: The time of the start.
        item: Which item of a run over many this is, if it is one.
        parent_run_id: The run over many that it belongs to, or inside which it was started, if there is one.
        fallback: The models that take over when the model cannot answer, as ``provider:name``, in order.
        apart: Whether it was started inside a run, a block or a context but is independent of it (``parent=None``).
        limit_values: The same limits as values; None in a log that was written before there were any.
        forked_from: Id of the run from whose record it goes on; the log begins with that record. None for any other.
        forked_at: Number of the last event of that record.
        item_index: The number of the item, from 0; an item that was begun anew has several runs.
    """

    run_context: RunContext
    prompt_name: str
    model: str
    limits: str
    deadline: datetime | None
    started_at: datetime
    item: str | None = None
    parent_run_id: UUID | None = None
    fallback: tuple[str, ...] = ()
    apart: bool = False
    limit_values: Limits | None = None
    forked_from: UUID | None = None
    forked_at: int = 0
    item_index: int | None = None


check_only(RunStarted, "run_context", "prompt_name", "model", "limits", "item", "fallback")


@event("model_replied")
class ModelReplied(msgspec.Struct, frozen=True):
    """The model answered one turn.

    Attributes:
        turn: 1 for the first model turn of the run.
        message: The reply, as it is in the transcript.
        finish: Why it stopped.
        usage: Tokens, as the provider reported them.
        cost_nanos: What it cost in nano-dollars; None if unknown.
        model: The model that really answered.
        node_id: The admitted call at the gate.
        duration_ms: From request to reply.
        landing: Whether it was the last turn, after a limit.
        created_at: The time of the event.
        refusal: What the provider says about a refusal; empty for any other reply.
        run_context: The identifiers of the run.
        response_id: The provider's id of the reply, if it gave one.
    """

    turn: int
    message: AssistantMessage
    finish: FinishReason
    usage: TokenUsage
    cost_nanos: int | None
    model: str
    node_id: str
    duration_ms: float
    landing: bool
    created_at: datetime
    refusal: str = ""
    run_context: RunContext | None = None
    response_id: str = ""


check_only(ModelReplied, "message", "finish", "model")


@event("model_failed")
@dataclass(frozen=True, slots=True)
class ModelFailed:
    """An admitted model call failed; a retry is an admitted call of its own.

    Attributes:
        turn: The turn it was made for.
        attempt: 1 for the first.
        fault: The kind of failure.
        error: What the provider said.
        retry_in: Seconds until the next attempt, or None if there is none.
        node_id: The admitted call at the gate.
        created_at: The time of the event.
        model: ``provider:name`` of the one that was asked.
        text: The text that was streamed before a limit or an abort cut the turn off; it stays in the conversation.
        usage: What it was charged: nothing, or its worst case where nobody knows what the provider bills.
        cost_nanos: The same in nano-dollars; None if unknown.
        presumed: The part of it that is a worst case.
    """

    turn: int
    attempt: int
    fault: str
    error: str
    retry_in: float | None
    node_id: str | None
    created_at: datetime
    model: str = ""
    text: str = ""
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost_nanos: int | None = 0
    presumed: Presumed = field(default_factory=Presumed)


@event("call_begun")
class CallBegun(msgspec.Struct, frozen=True):
    """A model call, or a tool call that may change something, begins: it is on record before anything is sent or done.

    It is written to the store, if there is one, and is no event of the session's log. A call that began and has neither
    result nor failure after it, because its process ended, may have had its effect.

    Attributes:
        kind: ``llm`` or ``tool``.
        name: ``provider:name`` of the model, or the name of the tool.
        turn: The model turn it is made for, or that asked for it; 0 if ``run_id`` is given.
        attempt: 1 for the first attempt.
        node_id: The admitted call at the gate, and its reservation at the ledger.
        call_id: The provider's id of a tool call; empty for a model call.
        worst: The most tokens that it may use.
        worst_nanos: The most that it may cost in nano-dollars; None if unknown.
        created_at: The time of the event.
        run_id: The run or block whose code makes it, as in `CallEnded`; None for a call of the run's own loop.
    """

    kind: Literal["llm", "tool"]
    name: str
    turn: int
    attempt: int
    node_id: str
    call_id: str
    worst: TokenUsage
    worst_nanos: int | None
    created_at: datetime
    run_id: UUID | None = None


@event("work_stopped")
class WorkStopped(msgspec.Struct, frozen=True):
    """A step of the loop was stopped; a landing turn may follow.

    Attributes:
        step: What the loop was doing: ``asking``, ``calling``, ``observing``, ``checking`` or ``compacting``.
        stop: Why.
        text: What the model had said in the turn that was cut off.
        created_at: The time of the event.
    """

    step: str
    stop: Stop
    text: str
    created_at: datetime


@event("run_opened")
class RunOpened(msgspec.Struct, frozen=True):
    """What another process needs to go on with a run; recorded only where there is a store.

    Secrets, clients and resources are not on record: the other process has its own.

    Attributes:
        run_id: Id of the run.
        origin: What the command line was told, so that it can start the run again; empty for a run from Python.
        params: The values that the prompt was bound to.
        variables: Its values by placeholder.
        digests: Of what the run was made of: ``messages``, ``tools``, ``output``, ``models``.
        not_resumable: Why no other process can go on with it; empty if one can.
        created_at: The time of the event.
        park: How it parks where a person is to be asked; None if it does not.
        items: A digest of each item of a run over many; empty for an item that has no typed JSON form.
        limit_values: The limits that were given for all items, with their last turns.
    """

    run_id: UUID
    origin: Mapping[str, Any]
    params: tuple[Any, ...]
    variables: Mapping[str, Any]
    digests: Mapping[str, str]
    not_resumable: str
    created_at: datetime
    park: Park | None = None
    items: tuple[str, ...] = ()
    limit_values: Limits | None = None


@event("run_resumed")
class RunResumed(msgspec.Struct, frozen=True):
    """A run that was interrupted or stopped goes on.

    Attributes:
        run_id: Id of the run.
        after: Number of the last event that still counts; the end of a stopped run, and its last turn, do not.
        limits: The limits in force from here on, in words; what was used before counts.
        limit_values: The same as values.
        deadline: The moment at which it must be over, if there is one.
        spent: What it had used that counts, with the worst case of the calls that were under way.
        unknown: Ids of the tool calls of which nobody knows whether they had an effect.
        worked_seconds: How long it had worked, as far as that counts.
        created_at: The time of the event.
        changes: What differed from the record, and was accepted: see `RunOpened.digests`.
        below: What is part of ``spent``, by run, of runs below it whose end was not on record.
        items: Labels of the items that are done now, of a run over many.
        item: Its label, if it is an item itself.
        earlier: What it had used that does not count, because its limits were fresh afterwards.
        run_context: Its identifiers from here on: in a new trace, with a span of their own.
    """

    run_id: UUID
    after: int
    limits: str
    limit_values: Limits
    deadline: datetime | None
    spent: Usage
    unknown: tuple[str, ...]
    worked_seconds: float
    created_at: datetime
    changes: tuple[str, ...] = ()
    below: tuple[tuple[UUID, Usage], ...] = ()
    items: tuple[str, ...] = ()
    item: str | None = None
    earlier: UsedBefore = NOTHING_BEFORE
    run_context: RunContext | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether what was used before does not count from here on."""
        return self.spent == Usage() and not self.worked_seconds


@event("call_ended")
class CallEnded(msgspec.Struct, frozen=True):
    """A call that the code of a contained block, or of a run with a store, made is over; or a block's was refused.

    The code of a run: a tool, an observer, a checker, a hook. The calls of the run's own loop have other events.

    Attributes:
        kind: ``llm`` for a model call; ``tool`` for any other, also a model request whose cost cannot be counted.
        name: The model, or the label of the call.
        provider: Name of the provider that was asked; empty if it is not known.
        status: ``ok``, ``error``, ``timeout``, ``aborted``, or ``halted`` if it was refused.
        usage: Tokens, as they were charged.
        cost_nanos: What was charged in nano-dollars; None if unknown.
        duration_ms: From its admission to its end.
        stop_reason: Why it was refused or stopped, or None.
        error: What it raised, as text, or None.
        node_id: The call at the gate.
        created_at: The time of the event.
        run_id: The run or block whose code made it: this one, or one inside it that is not stored here.
        presumed: The part of the charge that is a worst case.
        retries: How many retries it has spent.
        admitted: Whether the gate let it begin.
    """

    kind: str
    name: str
    provider: str
    status: str
    usage: TokenUsage
    cost_nanos: int | None
    duration_ms: float
    stop_reason: str | None
    error: str | None
    node_id: str
    created_at: datetime
    run_id: UUID | None = None
    presumed: Presumed = Presumed()
    retries: int = 0
    admitted: bool = True


@event("model_switched")
@dataclass(frozen=True, slots=True)
class ModelSwitched:
    """Another model took over, and answers from now on.

    Attributes:
        turn: The turn for which it took over.
        from_model: ``provider:name`` of the model that could not answer, or that a hook rejected.
        to_model: ``provider:name`` of the one that took over.
        reason: The fault of the provider, ``circuit_open``, or ``degraded`` for a hook's wish.
        why: The same in words.
        created_at: The time of the event.
    """

    turn: int
    from_model: str
    to_model: str
    reason: str
    why: str
    created_at: datetime


@event("notice_appended")
@dataclass(frozen=True, slots=True)
class NoticeAppended:
    """The runtime added a message for the model: a repair request, a checker's objection, the landing notice."""

    text: str
    created_at: datetime


@event("notice_sent")
@dataclass(frozen=True, slots=True)
class NoticeSent:
    """A notice about the run was sent to where its caller asked for it, or could not be sent.

    Attributes:
        notice: What for: ``warning``, a share such as ``80%``, ``parked``, ``failed`` or ``end``.
        to: The program, or the scheme and host of the address.
        sentence: What it said.
        error: Why it could not be sent; empty if it was.
        created_at: The time of the event.
    """

    notice: str
    to: str
    sentence: str
    error: str
    created_at: datetime


@event("completion_checked")
@dataclass(frozen=True, slots=True)
class CompletionChecked:
    """An answer was checked, or could not be.

    Attributes:
        verdict: ``verified``; ``rejected``: the agent is sent back, or has been sent back too often; or
            ``unverified``: the checker could not tell, failed, or had given no verdict when the run was over.
        explanation: Why.
        created_at: The time of the event.
    """

    verdict: CompletionState
    explanation: str
    created_at: datetime


@event("reducer_failed")
@dataclass(frozen=True, slots=True)
class ReducerFailed:
    """A reducer of the user raised on an event of the runtime; the event is on the log, no slice changed."""

    event_type: str
    error: str
    created_at: datetime


@event("run_ended")
class RunEnded(msgspec.Struct, frozen=True):
    """A run is over.

    Attributes:
        run_id: Id of the run.
        stop: Why it ended early, or None.
        output: The typed answer, or None.
        partial: What a stopped run had, or None.
        text: The last text the model gave.
        verdict: The completion checker's last word; ``unchecked`` if it gave none.
        usage: Everything it used that counts for its limits, its children included.
        duration_ms: How long it worked, as far as that counts.
        remaining_seconds: Time left to the deadline, or None without one.
        ended_at: The time of the end.
        turns: Model turns of this run alone that count; None where it was broken off, or another version wrote it.
        denied: Tool calls that a hook or a person has denied.
        earlier: What it had used before its limits were fresh.
        run_context: The identifiers of the run.
    """

    run_id: UUID
    stop: Stop | None
    output: Any
    partial: Any
    text: str
    verdict: CompletionState
    usage: Usage
    duration_ms: float
    remaining_seconds: float | None
    ended_at: datetime
    turns: int | None = None
    denied: int = 0
    earlier: UsedBefore = NOTHING_BEFORE
    run_context: RunContext | None = None


check_only(RunEnded, "stop", "output", "partial", "text")


@event("store_failed")
@dataclass(frozen=True, slots=True)
class StoreFailed:
    """Writes of the run's events to the store failed for a minute; the events are kept in memory and tried again.

    Attributes:
        error: Why.
        then: ``stop`` if the run ends for it, ``go_on`` if it goes on without its record.
        created_at: The time of the event.
    """

    error: str
    then: Literal["stop", "go_on"]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that has just arrived; for listeners only, never on the log."""

    text: str


@event("many_started")
@dataclass(frozen=True, slots=True)
class ManyStarted:
    """A run over many items began; each item is a run of its own, with its own log.

    Attributes:
        run_context: Identifiers of the whole.
        prompt_name: ``ns/key`` of the prompt.
        model: ``provider:name``.
        limits: The ceilings over all items, in words.
        items: The items' labels, in order.
        concurrency: How many run at once.
        started_at: The time of the start.
        fallback: The models that take over when the model cannot answer, in order.
        parent_run_id: The run inside which it was started, if there is one.
        apart: Whether it was started inside a run, a block or a context but is independent of it (``parent=None``).
        limit_values: The same limits as values; None in a log that was written before there were any.
    """

    run_context: RunContext
    prompt_name: str
    model: str
    limits: str
    items: tuple[str, ...]
    concurrency: int
    started_at: datetime
    fallback: tuple[str, ...] = ()
    parent_run_id: UUID | None = None
    apart: bool = False
    limit_values: Limits | None = None


@event("item_ended")
@dataclass(frozen=True, slots=True)
class ItemEnded:
    """One item of a run over many is over.

    Attributes:
        index: Number of the item, from 0.
        item: Label of the item.
        run_id: Links to its log; None if it was never started.
        sentence: How it ended.
        stop: What ended it early, or None.
        ended_at: The time of the end.
        verdict: The completion checker's last word on it.
    """

    index: int
    item: str
    run_id: UUID | None
    sentence: str
    stop: Stop | None
    ended_at: datetime
    verdict: CompletionState = "unchecked"


@event("many_ended")
@dataclass(frozen=True, slots=True)
class ManyEnded:
    """A run over many items is over; ``usage``, ``duration_ms`` and ``earlier`` are as those of `RunEnded`."""

    run_id: UUID
    stop: Stop | None
    done: int
    items: int
    usage: Usage
    duration_ms: float
    ended_at: datetime
    earlier: UsedBefore = NOTHING_BEFORE


ChildKind = Literal["subagent", "evaluation", "verdict", "summary", "run", "block"]
"""What a child run is for; ``run``: one that the user's code started; ``block``: a contained block of that code."""


@event("child_started")
@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A run below this one began; its own log has the rest.

    Attributes:
        run_context: The child's identifiers: this run's trace, a span of its own whose parent is this run's.
        parent_run_id: This run.
        kind: The purpose of the child.
        prompt_name: ``ns/key`` of its prompt.
        model: ``provider:name`` of its model.
        depth: Its nesting depth: how many runs are above it.
        limits: The limits it got, in words.
        call_id: The tool call that asked for it, or None.
        started_at: The time of the start.
        limit_values: The same limits as values; None in a log that was written before there were any.
        ordinal: Which of the children of this tool call it is, from 0.
        admitted: Whether it passed the gate as a call, which counts as a step; blocks do not.
    """

    run_context: RunContext
    parent_run_id: UUID
    kind: ChildKind
    prompt_name: str
    model: str
    depth: int
    limits: str
    call_id: str | None
    started_at: datetime
    limit_values: Limits | None = None
    ordinal: int = 0
    admitted: bool = True


check_only(ChildStarted, "run_context", "prompt_name", "model", "limits", "call_id")


@event("child_ended")
@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A run below this one is over.

    Attributes:
        run_id: Id of the child run; the key of its log.
        parent_run_id: This run.
        kind: The purpose of the child.
        prompt_name: ``ns/key`` of its prompt.
        stop: Why it ended early, or None.
        completion: Its checker's verdict, or ``unchecked``.
        usage: Everything it used, the runs below it included; counted in this run's usage too, once.
        duration_ms: From its start to its end.
        said: How it ended, in a sentence.
        ended_at: The time of the end.
    """

    run_id: UUID
    parent_run_id: UUID
    kind: ChildKind
    prompt_name: str
    stop: Stop | None
    completion: str
    usage: Usage
    duration_ms: float
    said: str
    ended_at: datetime


check_only(ChildEnded, "prompt_name", "stop", "completion", "said")


@event("context_compacted")
@dataclass(frozen=True, slots=True)
class ContextCompacted:
    """The context was full; a summary begins a new segment of the conversation, the old one stays on the log.

    Attributes:
        segment: Number of the new segment; the first that is begun this way is 2.
        summary: What the model is told in place of what was left out.
        opening: Places in the old segment of the messages that open the new one: instructions and task.
        kept: How many of the old segment's newest messages are in the new one, after the summary.
        left_out: How many messages the summary replaces.
        tokens_before: Tokens of the old segment, tools included; as the provider counted them, else an estimate.
        tokens_after: An estimate of those of the new one.
        run_id: The child run that made the summary.
        turn: The model turn that reads the new segment first.
        created_at: The time of the event.
    """

    segment: int
    summary: str
    opening: tuple[int, ...]
    kept: int
    left_out: int
    tokens_before: int
    tokens_after: int
    run_id: UUID
    turn: int
    created_at: datetime


DEFINED_ELSEWHERE: Final = (
    *(AdviceAcknowledged, CallAnswered, CallParked, EscalationTaken, FilesNotOnRecord, ObserversRan),
    *(PromptDeadlineAssigned, PromptExecuted, PromptRendered, RecordAssessment, RolledBack, SafetyEvent, SessionReset),
    *(SliceEdited, SourceRan, StateInherited, ToolInvoked),
)
"""Event types of a run's log besides those above: a process that can read those can read the whole log."""

RECORDED: Final = frozenset(
    {each for each in globals().values() if isinstance(each, type) and each.__module__ == __name__}
    | {Assessment, Feedback, *DEFINED_ELSEWHERE}
)
"""The types whose slices say how one run went: a child begins without them, but with what its parent's code keeps."""
