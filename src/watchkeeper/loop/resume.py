"""Going on with a run that was interrupted: the turn machine is fed with the answers that are on record.

`Recorded` walks the log of the run. For each command of the machine it gives the answer that the log has; the first
command without one is executed, and everything after it. Nothing that has a result is done again: no model is asked, no
tool is called, nothing is charged, nothing is recorded twice. A tool call that had begun and has no result is run again
only if its tool is declared read-only or idempotent; otherwise the agent is told that nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, Self
from uuid import UUID

import msgspec

from watchkeeper.accounting.limits import Limits
from watchkeeper.children.child import BegunChild
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.codec import encode
from watchkeeper.core.errors import ConfigurationError, Stop
from watchkeeper.core.ids import RunContext
from watchkeeper.core.messages import ToolCall, Transcript
from watchkeeper.core.model import STATES, CompletionStatus, ModelReply
from watchkeeper.core.secrets import REDACTED
from watchkeeper.core.usage import Usage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.kernel.turn_machine import (
    AskModel,
    CheckDone,
    Checked,
    Command,
    Compact,
    Compacted,
    Observe,
    Observed,
    Replied,
    RunTools,
    Signal,
    Stopped,
    ToolsDone,
)
from watchkeeper.loop.tool_calls import recalled
from watchkeeper.prompt.evaluation import PromptRendered
from watchkeeper.prompt.output import output_schema
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.runtime.tracing import in_new_trace
from watchkeeper.runtime.events import (
    CallBegun,
    ChildEnded,
    ChildStarted,
    CompletionChecked,
    ContextCompacted,
    ModelFailed,
    ModelReplied,
    ModelSwitched,
    NoticeAppended,
    RunEnded,
    RunOpened,
    RunResumed,
    RunStarted,
    WorkStopped,
)
from watchkeeper.runtime.file_record import Unfinished
from watchkeeper.runtime.parking import PARKED, CallAnswered, CallParked, Earlier, Parked, is_denial, waiting
from watchkeeper.runtime.plan import PricedModel, RunPlan
from watchkeeper.runtime.result import NOTHING_USED, RunResult, as_continued, result_of, segment_of, transcript_of
from watchkeeper.runtime.used_before import NOTHING_BEFORE, UsedBefore
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.session.tagging import dump
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import image_parts

STEPS = (ModelReplied, ToolInvoked, ObserversRan, CompletionChecked, ContextCompacted, WorkStopped)
"""Events that answer a command of the machine."""

OF_LOOP: Final = (*STEPS, CallBegun, CallParked, ModelFailed, ModelSwitched)
"""The events by which a record answers the loop."""

STATUSES: Final[Mapping[str, CompletionStatus]] = {state: status for status, state in STATES.items()}

Below = Callable[[ChildStarted], BegunChild | None]
"""Takes over a child that had begun below a run; None if there is nothing to go on with."""


class Recorded:
    """What is on record of one run, as answers to the commands of its loop.

    Attributes:
        started: The run's first event.
        first: Its place on the log.
        opening: The conversation as it was before the first model call; the loop continues it.
        after: Number of the last event that counts.
        opened: What the run was made of.
        earlier_turns: How many replies are from before the run was forked, or went on with fresh limits; they do not
            count.
        turns: How many count.
        switched_to: ``provider:name`` of the model that took over for the newest turn; None if none did.
        failed: How the model had failed for the turn that is to be asked for, if it was to be asked once more.
        denied: How many of its tool calls a hook or a person has denied.
        waiting: The questions that nobody has answered yet.
        unfinished: The tool calls whose tool had succeeded and whose files were being written, by their id.
    """

    def __init__(
        self, log: Sequence[Envelope], below: Below | None = None, *, whole: bool = False, forks: bool = False
    ) -> None:
        """Read the log of the session up to the interruption; the newest run on it is the one to go on with.

        A run that was forked from another begins with what that one has on record. The runs below that one are not its
        own, and what a person was asked about a call there, and has answered, is not about the call of the new run.

        Args:
            log: The whole log.
            below: Takes over a child; None if no child can go on.
            whole: Whether the run's end belongs to it, if it has ended.
            forks: Whether a new run goes on from here.

        Raises:
            ConfigurationError: If there is no such run, it is done, or its process died before anything was on record.
        """
        first = next((place for place in range(len(log) - 1, -1, -1) if isinstance(log[place].event, RunStarted)), None)
        if first is None:
            raise ConfigurationError("there is no run on this log")
        self.started: RunStarted = log[first].event
        while log[first].event.forked_from is not None:
            first = next(place for place in range(first - 1, -1, -1) if isinstance(log[place].event, RunStarted))
        self.first = first
        continued = as_continued(log[first:])
        self.log = continued if whole else without_end(continued)
        rendered = next((place for place, each in enumerate(self.log) if isinstance(each.event, PromptRendered)), 0)
        self.opening: Transcript = transcript_of(log[: first + rendered + 1])
        self.after = self.log[-1].seq
        events = [envelope.event for envelope in self.log]
        self.opened = _opening(events, self.started.run_context.run_id)
        others = self.after if forks else self.started.forked_at
        self.count_after(
            max(others, *(each.after for each in events if isinstance(each, RunResumed) and each.is_fresh), 0)
        )
        self._below = below
        own = [each.event for each in self.log if each.seq > others]
        self.denied = sum(
            isinstance(each, ToolInvoked) and is_denial(each.outcome, each.rendered_output) for each in own
        )
        self._children = _subagents(own)
        self._closed = {event.run_id for event in own if isinstance(event, ChildEnded)}
        self._notices = [event.text for event in events if isinstance(event, NoticeAppended)]
        found = [each for each in self.log if isinstance(each.event, OF_LOOP) and _is_of_loop(each.event)]
        steps = [each for each in found if each.seq > others or not isinstance(each.event, CallParked)]
        self._steps: list[Any] = [each.event for each in steps]
        self._numbers = [each.seq for each in steps]
        answers = (each.event for each in log[first:] if isinstance(each.event, CallAnswered))
        self._answers = {answer.question_id: answer for answer in answers}
        self.waiting = waiting((*self._steps, *self._answers.values()))
        self._place = 0
        self.switched_to: str | None = None
        self.failed: ModelFailed | None = None
        self._others = others
        self.unfinished: Mapping[str, Unfinished] = {}

    def count_after(self, seq: int) -> None:
        """Count the turns after an event alone."""
        replies = [each.seq for each in self.log if isinstance(each.event, ModelReplied)]
        self.earlier_turns = sum(each <= seq for each in replies)
        self.turns = len(replies) - self.earlier_turns

    def has_notice(self, text: str) -> bool:
        """Whether the next notice to the agent is on record already."""
        if self._notices and self._notices[0] == text:
            del self._notices[0]
            return True
        return False

    async def instead(self, command: Command) -> Signal | None:
        """Return what takes the place of executing a command that has no answer; None if it is to be executed."""
        return None

    async def child(self, call_id: str, ordinal: int) -> BegunChild | None:
        """Return the child that an earlier process has begun for a tool call, once; None if there is none."""
        started = self._children.pop((call_id, ordinal), None)
        if started is None or self._below is None:
            return None
        begun = await run_in_worker(self._below, started)
        return begun and begun._replace(is_closed=started.run_context.run_id in self._closed)

    def answer(self, command: Command) -> Signal | None:
        """Return what the log says about a command of the loop; None if it is to be executed now."""
        match command:
            case AskModel():
                return self._asked()
            case RunTools(calls=calls):
                return self._called(calls)
            case Observe():
                return self._observed()
            case CheckDone():
                event = self._next(CompletionChecked)
                stopped = self._stopped("checking")
                if event is None or stopped is not None:
                    return stopped
                return Checked(STATUSES[event.verdict], event.explanation)
            case Compact():
                return self._compacted()
            case _:
                return None

    def earlier(self, calls: Sequence[ToolCall]) -> Earlier:
        """Return what is on record of the calls of a reply that were not all answered."""
        wanted = {call.call_id for call in calls}
        done: dict[str, ToolInvoked] = {}
        begun: dict[str, int] = {}
        parked: dict[str, list[Parked]] = {}
        waits: set[str] = set()
        for event in self._steps[self._place :]:
            if isinstance(event, ToolInvoked) and event.call_id in wanted:
                done[event.call_id] = event
                begun.pop(event.call_id, None)
            elif isinstance(event, CallBegun) and event.call_id in wanted:
                begun[event.call_id] = event.attempt
                done.pop(event.call_id, None)  # a further attempt had begun; what the one before gave is no answer
                waits.discard(event.call_id)
            elif isinstance(event, CallParked) and event.call_id in wanted:
                question = Parked(event, self._answers.get(event.question_id))
                parked.setdefault(event.call_id, []).append(question)
                waits.add(event.call_id)
                if event.kind == "tool":  # what it had done until it asked was dropped
                    begun.pop(event.call_id, None)
        self._place = len(self._steps)
        left = {each: self.unfinished[each] for each in wanted & self.unfinished.keys()}
        replies = [event for event in self._steps if isinstance(event, ModelReplied)]
        recorded = {call.call_id for reply in replies for call in reply.message.tool_calls}
        hidden = {call.call_id for call in calls if REDACTED in call.arguments} & recorded
        return Earlier(done, begun, parked, frozenset(waits), left, frozenset(hidden))

    def _next(self, *kinds: type[Any]) -> Any | None:
        """Take the next answer if it is of one of these types."""
        place = self._place
        while place < len(self._steps) and not isinstance(self._steps[place], STEPS):
            place += 1
        if place < len(self._steps) and isinstance(self._steps[place], kinds):
            self._place = place + 1
            return self._steps[place]
        return None

    def _stopped(self, *steps: str) -> Stopped | None:
        """Take the next answer if it says that one of these steps was stopped."""
        place = self._place
        event = self._next(WorkStopped)
        if event is not None and event.step not in steps:  # the next step was
            self._place, event = place, None
        return None if event is None else Stopped(event.stop, event.text)

    def _asked(self) -> Signal | None:
        begun = self._place
        event = self._next(ModelReplied)
        asked = self._steps[begun : self._place if event is not None else len(self._steps)]
        switches = [each.to_model for each in asked if isinstance(each, ModelSwitched)]
        self.switched_to = switches[-1] if switches else None
        self.failed = self._failed() if event is None else None
        if event is None:
            return self._stopped("asking", "landing")
        reply = ModelReply(event.message, event.usage, event.finish, event.model, refusal=event.refusal)
        return Replied(reply)

    def _failed(self) -> ModelFailed | None:
        """Take the failure with which the record ends, if the process died before the call was repeated."""
        if self._place == len(self._steps):
            return None
        last, number = self._steps[-1], self._numbers[-1]
        if not isinstance(last, ModelFailed) or last.retry_in is None or number <= self._others:
            return None
        self._place = len(self._steps)
        return last

    def _called(self, calls: Sequence[ToolCall]) -> Signal | None:
        """Return the results of all calls of a reply; None if one of them has none."""
        place = end = self._place
        done = dict[str, ToolInvoked]()
        while place < len(self._steps) and not isinstance(
            self._steps[place], ModelReplied | ObserversRan | WorkStopped
        ):
            event = self._steps[place]
            place += 1
            if isinstance(event, ToolInvoked) and event.call_id is not None:
                done[event.call_id] = event
                end = place
            elif isinstance(event, CallBegun):
                done.pop(event.call_id, None)
        if any(call.call_id not in done for call in calls):
            return None
        self._place = end  # what follows belongs to the next step, as a model that took over
        answers = [(call, *recalled(call, done[call.call_id])) for call in calls]
        images = tuple(part for call, _, shown in answers for part in image_parts(call.name, shown))
        stopped = self._stopped("calling")
        return ToolsDone(tuple(message for _, message, _ in answers), None if stopped is None else stopped.stop, images)

    def _observed(self) -> Signal | None:
        event, answers = self._next(ObserversRan), (*STEPS, CallBegun)
        if event is None and not any(isinstance(each, answers) for each in self._steps[self._place :]):
            return None  # nothing follows: it is not known whether they were asked
        stopped = self._stopped("observing")
        return Observed("" if event is None else event.text, None if stopped is None else stopped.stop)

    def _compacted(self) -> Signal | None:
        event = self._next(ContextCompacted)
        if event is None:
            return self._stopped("compacting")
        return Compacted(segment_of(list(self.opening), event.opening, event.summary, event.kept))


def _opening(events: Sequence[Any], run_id: UUID) -> RunOpened:
    """Return how a run was opened last.

    Raises:
        ConfigurationError: If that is not on record.
    """
    opened = next((event for event in reversed(events) if isinstance(event, RunOpened)), None)
    if opened is None:
        why = "its process died before anything was done"
        if any(isinstance(event, STEPS) for event in events):
            why = "version 0.1 recorded it, without what that needs"
        raise ConfigurationError(f"the run {run_id} cannot be resumed: {why}; start a new run")
    return opened


def _subagents(events: Iterable[object]) -> dict[tuple[str, int], ChildStarted]:
    """Return the subagents that were begun, by the tool call that asked for each and its number among those."""
    begun = (each for each in events if isinstance(each, ChildStarted) and each.kind == "subagent")
    return {(each.call_id, each.ordinal): each for each in begun if each.call_id is not None}


FINAL: Final = frozenset({"refused", "incomplete", "output_invalid", "empty_answer", "unverified"})
"""Stops that are the outcome of the work itself: the same would come again."""


def without_end(log: Sequence[Envelope]) -> Sequence[Envelope]:
    """Return the events of a run without its end, its last turn, and what stopped it.

    Raises:
        ConfigurationError: If it was not stopped by a limit or a fault.
    """
    kept = list(log)
    last = next((each.event for each in reversed(kept) if isinstance(each.event, RunEnded)), None)
    if last is None:
        return kept
    if last.stop is None or last.stop.reason in FINAL:
        said = "is done" if last.stop is None else f"has come to its outcome: {last.stop.message}"
        raise ConfigurationError(f"the run {last.run_id} {said}; continue its session in a new run instead")
    while kept and not _counts(kept[-1].event):
        kept.pop()
    return kept


def _is_of_loop(event: object) -> bool:
    """Whether an event is of the loop: not a call of the user's code; nor that it parked, for its calls go on."""
    if isinstance(event, CallBegun):
        return event.run_id is None
    return not (isinstance(event, WorkStopped) and event.stop.reason == PARKED)


def _counts(event: object) -> bool:
    """Whether an event near the end of a stopped run is work, and not a part of its last turn."""
    if isinstance(event, ModelReplied):
        return not event.landing
    if isinstance(event, CallBegun):
        return event.kind == "tool" and event.run_id is None  # nobody knows whether it had its effect
    if isinstance(event, ChildStarted | ChildEnded):  # of a run that was cancelled: its call has no result
        return event.kind == "subagent"
    kinds = ToolInvoked | CallParked | PromptRendered | RunOpened | ContextCompacted | RunStarted | RunResumed
    return isinstance(event, kinds)


class GoesOn(msgspec.Struct, frozen=True):
    """What a run that was interrupted goes on with; `Resumed` and `loop.resume_many.ResumedMany` have more.

    Attributes:
        run_context: The identifiers of the run.
        after: Number of the last event that counts.
        opened: What it was made of.
        spent: What it had used that counts, with the worst case of the calls that were under way.
        worked_seconds: How long it had worked, as far as that counts.
        unknown: Ids of the tool calls of which nobody knows whether they had an effect.
        below: What is part of ``spent``, by run, of runs below it whose end is not on its log.
        accept_changes: Whether prompt, tools and models may differ from those on record.
        exhausted: The stop of the limit at which the run ended, if that limit is no higher now: then it has ended.
        earlier: What it had used before its limits were fresh, which counts no more.
    """

    run_context: RunContext
    after: int
    opened: RunOpened
    spent: Usage
    worked_seconds: float
    unknown: tuple[str, ...] = ()
    below: tuple[tuple[UUID, Usage], ...] = ()
    accept_changes: bool = False
    exhausted: Stop | None = None
    earlier: UsedBefore = NOTHING_BEFORE

    def with_fresh_limits(self, turns: int = 0) -> Self:
        """Return it so that what the run has used, in so many turns, counts no more."""
        used = UsedBefore(self.spent, turns, self.worked_seconds)
        return msgspec.structs.replace(self, spent=Usage(), worked_seconds=0.0, earlier=self.earlier + used)

    def changes(self, digests: Mapping[str, str]) -> tuple[str, ...]:
        """Return what differs from the record, in the order in which the digests are named.

        Raises:
            ConfigurationError: If something differs, and that is not accepted.
        """
        before = self.opened.digests
        changed = tuple(name for name, digest in digests.items() if before.get(name, digest) != digest)
        if changed and not self.accept_changes:
            raise ConfigurationError(
                f"the run {self.opened.run_id} cannot go on as it was: its {' and '.join(changed)} changed since it"
                " began; undo that, or accept it (accept_changes=True, --accept-changes)"
            )
        return changed

    def event(
        self,
        gate: ExecutionContext,
        limits: Limits,
        digests: Mapping[str, str],
        now: datetime,
        items: Iterable[str] = (),
        item: str | None = None,
    ) -> RunResumed:
        """Return the event that the run goes on.

        Args:
            gate: Its gate.
            limits: Its limits.
            digests: Of what it is made of now.
            now: The time.
            items: The labels of the items that are done now, of a run over many.
            item: Its label, if it is an item itself.

        Raises:
            ConfigurationError: If it is made of other things than it was, and that is not accepted.
        """
        return RunResumed(
            run_id=self.run_context.run_id,
            after=self.after,
            limits=gate.limits.describe(),
            limit_values=limits,
            deadline=None if gate.deadline is None else gate.deadline.at,
            spent=self.spent,
            unknown=self.unknown,
            worked_seconds=self.worked_seconds,
            created_at=now,
            changes=self.changes(digests),
            below=self.below,
            items=tuple(items),
            item=item,
            earlier=self.earlier,
            run_context=self.run_context,
        )

    def renewed(self, fresh: RunContext) -> Self:
        """Return the same with the trace and the span of fresh identifiers: a run that goes on begins a trace."""
        return msgspec.structs.replace(self, run_context=in_new_trace(self.run_context, fresh))


class Resumed(GoesOn, frozen=True, kw_only=True):
    """What a run of one agent goes on with.

    Attributes:
        recorded: The answers that are on record.
        forked: Whether a new run goes on from there, with limits of its own, in the place of the one on record.
    """

    recorded: Recorded
    forked: bool = False

    @classmethod
    def of(cls, recorded: Recorded, spent: Usage = NOTHING_USED, worked_seconds: float = 0.0, **more: Any) -> Resumed:
        """Return what a run goes on with by its record."""
        context, opened = recorded.started.run_context, recorded.opened
        return cls(context, recorded.after, opened, spent, worked_seconds, recorded=recorded, **more)

    def with_fresh_limits(self, turns: int = 0) -> Self:
        fresh = super().with_fresh_limits(turns + self.recorded.turns)
        self.recorded.count_after(self.recorded.after)
        return fresh


def digests_of(plan: RunPlan[Any]) -> dict[str, str]:
    """Return digests of what a run is made of, by which a change is noticed."""
    prompt = plan.prompt
    return _digests(
        messages=[dump(message) for message in prompt.messages],
        tools=[[tool.name, tool.description, tool.schema] for tool in prompt.tools],
        output=None if prompt.output is None else prompt.output.schema,
        models=[each.label for each in plan.models],
    )


def digests_of_template(template: PromptTemplate[Any], models: Iterable[PricedModel]) -> dict[str, str]:
    """Return digests of what all items of a run over many are made of, by which a change is noticed."""
    sections = [*template.walk()]
    output = output_schema(template.output_type)
    return _digests(
        messages=[[section.title, section.template] for section in sections],
        tools=[[tool.name, tool.description, tool.schema] for section in sections for tool in section.tools],
        output=None if output is None else output.schema,
        models=[each.label for each in models],
    )


def _digests(**parts: Any) -> dict[str, str]:
    return {name: sha256(encode(part)).hexdigest()[:16] for name, part in parts.items()}


def answered_by(log: Iterable[Envelope], first: str) -> tuple[str, ...]:
    """Return which models answered in a run by its log, in the order of their first answers; ``first`` began."""
    in_use, answered = first, dict[str, None]()
    for envelope in log:
        match envelope.event:
            case ModelSwitched(to_model=label):
                in_use = label
            case ModelReplied():
                answered[in_use] = None
            case _:
                pass
    return tuple(answered)


def result_on_record(log: Sequence[Envelope], session: Session) -> RunResult[Any] | None:
    """Return the result of a run that has ended by its log; None if it has not, or went on afterwards.

    Args:
        log: The whole log; the newest run on it is meant.
        session: Its session, rebuilt.
    """
    first = max(place for place, each in enumerate(log) if isinstance(each.event, RunStarted))
    started, ended, limits, note = log[first].event, None, None, ""
    for envelope in log[first:]:
        match envelope.event:
            case RunResumed(limit_values=values):
                ended, limits = None, values
            case RunEnded():
                ended = envelope.event
            case CompletionChecked(explanation=said):
                note = said
            case _:
                pass
    if ended is None:
        return None
    return result_of(
        started,
        ended,
        limits=limits or started.limit_values or Limits(),
        session=session,
        completion_note=note,
        answered_by=answered_by(log[first:], started.model),
    )
