"""Going on with a run that was interrupted: the turn machine is fed with the answers that are on record.

`Recorded` walks the log of the run. For each command of the machine it gives the answer that the log has; the first
command without one is executed, and everything after it. Nothing that has a result is done again: no model is asked, no
tool is called, nothing is charged, nothing is recorded twice. A tool call that had begun and has no result is run again
only if its tool is declared read-only or idempotent; otherwise the agent is told that nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from watchkeeper.accounting.limits import Limits
from watchkeeper.children.child import BegunChild
from watchkeeper.core.codec import encode
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.ids import RunContext
from watchkeeper.core.messages import ToolCall, Transcript
from watchkeeper.core.model import STATES, CompletionStatus, ModelReply
from watchkeeper.core.secrets import REDACTED
from watchkeeper.core.usage import Presumed, TokenUsage, Usage
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
from watchkeeper.loop.parked_calls import Earlier, is_denial
from watchkeeper.loop.tool_calls import recalled
from watchkeeper.prompt.evaluation import PromptRendered
from watchkeeper.prompt.output import output_schema
from watchkeeper.prompt.template import PromptTemplate
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
    ObserversRan,
    RunEnded,
    RunOpened,
    RunResumed,
    RunStarted,
    WorkStopped,
    segment_of,
)
from watchkeeper.runtime.file_record import Unfinished
from watchkeeper.runtime.parking import PARKED, CallAnswered, CallParked, Parked, waiting
from watchkeeper.runtime.plan import PricedModel, RunPlan
from watchkeeper.runtime.result import RunResult, as_continued, result_of, transcript_of
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.session.tagging import dump
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import image_parts

STEPS = (ModelReplied, ToolInvoked, ObserversRan, CompletionChecked, ContextCompacted, WorkStopped)
"""Events that answer a command of the machine."""

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
        switched_to: ``provider:name`` of the model that took over for the newest turn; None if none did.
        denied: How many tool calls a hook or a person has denied.
        waiting: The questions that nobody has answered yet.
        unfinished: The tool calls whose tool had succeeded and whose files were being written, by their id.
    """

    def __init__(self, log: Sequence[Envelope], below: Below | None = None, *, whole: bool = False) -> None:
        """Read the log of the session up to the interruption; the newest run on it is the one to go on with.

        A run that was forked from another begins with what that one has on record.

        Args:
            log: The whole log.
            below: Takes over a child; None if no child can go on.
            whole: Whether the run's end belongs to it, if it has ended.

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
        opened = next((event for event in reversed(events) if isinstance(event, RunOpened)), None)
        if opened is None:
            run_id = self.started.run_context.run_id
            why = "its process died before anything was done"
            if any(isinstance(event, STEPS) for event in events):
                why = "version 0.1 recorded it, without what that needs"
            raise ConfigurationError(f"the run {run_id} cannot be resumed: {why}; start a new run")
        self.opened: RunOpened = opened
        own = 0 if self.started.forked_from is None else self.started.forked_at
        for event in events:
            if isinstance(event, RunResumed) and event.spent == Usage() and not event.worked_seconds:
                own = max(own, event.after)  # it went on with fresh limits
        self.earlier_turns = self.turns_until(own)
        self._below = below
        self._children = {
            (event.call_id, event.ordinal): event
            for event in events
            if isinstance(event, ChildStarted) and event.kind == "subagent" and event.call_id is not None
        }
        self._closed = {event.run_id for event in events if isinstance(event, ChildEnded)}
        self._notices = [event.text for event in events if isinstance(event, NoticeAppended)]
        others = (CallBegun, CallParked, ModelFailed, ModelSwitched)
        steps = [each for each in self.log if isinstance(each.event, (*STEPS, *others)) and not _parks(each.event)]
        self._steps: list[Any] = [each.event for each in steps]
        self._numbers = [each.seq for each in steps]
        answers = (each.event for each in log[first:] if isinstance(each.event, CallAnswered))
        self._answers = {answer.question_id: answer for answer in answers}
        done = [event for event in events if isinstance(event, ToolInvoked)]
        self.denied = sum(is_denial(event.outcome, event.rendered_output) for event in done)
        self.waiting = waiting((*self._steps, *self._answers.values()))
        self._place = 0
        self.switched_to: str | None = None
        self.unfinished: Mapping[str, Unfinished] = {}

    def turns_until(self, seq: int) -> int:
        """Return how many replies are on record up to an event."""
        return sum(isinstance(each.event, ModelReplied) and each.seq <= seq for each in self.log)

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
        hidden = {call.call_id for call in calls if REDACTED in call.arguments} & recorded - begun.keys()
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
        if event is None:
            return self._stopped("asking", "landing")
        reply = ModelReply(event.message, event.usage, event.finish, event.model, refusal=event.refusal)
        return Replied(reply)

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


def _parks(event: object) -> bool:
    """Whether an event says that the run parked: its calls go on, so nothing was stopped."""
    return isinstance(event, WorkStopped) and event.stop.reason == PARKED


def _counts(event: object) -> bool:
    """Whether an event near the end of a stopped run is work, and not a part of its last turn."""
    if isinstance(event, ModelReplied):
        return not event.landing
    if isinstance(event, CallBegun):
        return event.kind == "tool"  # it was broken off, and nobody knows whether it had its effect
    kinds = ToolInvoked | CallParked | PromptRendered | RunOpened | ContextCompacted | RunStarted | RunResumed
    return isinstance(event, kinds)


class Resumed(msgspec.Struct, frozen=True):
    """What a run that was interrupted goes on with.

    Attributes:
        recorded: The answers that are on record.
        spent: What it had used, with the worst case of the calls that were under way.
        unknown: Ids of the tool calls of which nobody knows whether they had an effect.
        worked_seconds: How long it had worked.
        below: What is part of ``spent``, by run, of runs below it whose end is not on its log.
        accept_changes: Whether prompt, tools and models may differ from those on record.
        forked: Whether a new run goes on from there, with limits of its own, in the place of the one on record.
    """

    recorded: Recorded
    spent: Usage
    unknown: tuple[str, ...]
    worked_seconds: float
    below: tuple[tuple[UUID, Usage], ...] = ()
    accept_changes: bool = False
    forked: bool = False

    @property
    def run_context(self) -> RunContext:
        """The identifiers of the run."""
        return self.recorded.started.run_context

    @property
    def opened(self) -> RunOpened:
        """What the run was made of."""
        return self.recorded.opened

    def changes(self, digests: Mapping[str, str]) -> tuple[str, ...]:
        """Return what differs from the record, in the order in which the digests are named.

        Raises:
            ConfigurationError: If something differs, and that is not accepted.
        """
        return changes_of(self.recorded.opened, digests, accepted=self.accept_changes)


def changes_of(opened: RunOpened, digests: Mapping[str, str], *, accepted: bool) -> tuple[str, ...]:
    """Return what a run is made of differently now.

    Raises:
        ConfigurationError: If something differs, and that is not accepted.
    """
    changed = tuple(name for name, digest in digests.items() if opened.digests.get(name, digest) != digest)
    if changed and not accepted:
        raise ConfigurationError(
            f"the run {opened.run_id} cannot go on as it was: its {' and '.join(changed)} changed since it began;"
            " undo that, or accept it (accept_changes=True, --accept-changes)"
        )
    return changed


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


class Spent(NamedTuple):
    """What a run has used by its log.

    Attributes:
        usage: All of it, with the worst case of model calls that had begun and have neither reply nor failure.
        unknown: The tool calls of which nobody knows whether they had an effect.
        below: What is part of it, by run, of runs below it whose end is not on the log.
    """

    usage: Usage
    unknown: tuple[str, ...] = ()
    below: tuple[tuple[UUID, Usage], ...] = ()


def spent_of(log: Iterable[Envelope], used_by: Callable[[UUID], Usage]) -> Spent:
    """Return what a run has used by its log.

    Args:
        log: The events of the run.
        used_by: Returns what a run below it has used whose end is not on this log.
    """
    usage, open_calls, counted, open_runs = Usage(), dict[str, CallBegun](), dict[UUID, Usage](), dict[UUID, None]()
    own: UUID | None = None
    for envelope in log:
        event = envelope.event
        match event:
            case RunStarted():
                usage, open_calls, counted, open_runs = Usage(), {}, {}, {}
                own = event.run_context.run_id
            case RunEnded() if event.run_id == own:  # the gate has counted more than the log shows
                usage, open_calls, open_runs = event.usage, {}, {}
            case RunResumed():
                usage, open_calls, counted = event.spent, {}, {**counted, **dict(event.below)}
            case CallBegun():
                open_calls[event.node_id] = event
            case ModelReplied():
                open_calls.pop(event.node_id, None)
                usage += Usage(event.usage, event.cost_nanos, model_calls=1, steps=1)
            case ModelFailed():
                open_calls.pop(event.node_id or "", None)
                retries = int(event.attempt > 1)
                usage += Usage(event.usage, event.cost_nanos, model_calls=1, steps=1, retries=retries)
            case ToolInvoked() if event.node_id is not None:
                open_calls.pop(event.node_id, None)
                usage += Usage(tool_calls=1, steps=1, retries=int(event.attempt > 1))
            case CallParked() if event.node_id:
                open_calls.pop(event.node_id, None)
                usage += Usage(tool_calls=1, steps=1)
            case ChildStarted():
                open_runs[event.run_context.run_id] = None
                usage += Usage(steps=int(event.kind != "subagent"))  # a subagent that goes on is admitted again
            case ChildEnded():
                usage += Usage(steps=int(event.kind == "subagent" and event.run_id in open_runs))
                open_runs.pop(event.run_id, None)
                usage += beyond(event.usage, counted.get(event.run_id))
                counted[event.run_id] = event.usage
            case _:
                pass
    below = {run_id: used_by(run_id) for run_id in open_runs}
    for run_id, used in below.items():
        usage += beyond(used, counted.get(run_id))
    unknown: list[str] = []
    for begun in open_calls.values():
        if begun.kind == "tool":
            unknown.append(begun.call_id)
            usage += Usage(tool_calls=1, steps=1)
        else:
            presumed = Presumed(1, begun.worst, begun.worst_nanos)
            usage += Usage(begun.worst, begun.worst_nanos, model_calls=1, steps=1, presumed=presumed)
    return Spent(usage, tuple(unknown), tuple(below.items()))


def beyond(used: Usage, counted: Usage | None) -> Usage:
    """Return the part of a run's usage that is not counted yet; a cost that is not known stays so."""
    if counted is None:
        return used
    less: Any = {name: -getattr(counted, name) for name in ("model_calls", "tool_calls", "steps", "retries")}
    presumed = Presumed(
        -counted.presumed.calls, _negative(counted.presumed.tokens), -(counted.presumed.cost_nanos or 0)
    )
    return used + Usage(_negative(counted.tokens), -(counted.cost_nanos or 0), presumed=presumed, **less)


def _negative(tokens: TokenUsage) -> TokenUsage:
    return TokenUsage(*(-count for count in msgspec.structs.astuple(tokens)))


def limits_of(events: Iterable[object]) -> Limits:
    """Return the limits of a run by its events: those with which it went on last, else those with which it began."""
    limits: Limits | None = None
    for event in events:
        match event:
            case RunStarted(limit_values=Limits() as given) | RunOpened(limit_values=Limits() as given):
                limits = given
            case RunResumed():
                limits = event.limit_values
                if isinstance(limits.deadline, timedelta):  # what was left of it then
                    limits = replace(limits, deadline=limits.deadline + timedelta(seconds=event.worked_seconds))
            case _:
                pass
    return limits or Limits()


def worked_seconds(log: Sequence[Envelope], last: datetime | None = None) -> float:
    """Return how long processes have worked on a run: each from its first event to its last.

    An answer about a parked call comes while none works on it, and what a run was forked from does not count.

    Args:
        log: Its events.
        last: The time of the last event of the runs below it that were under way, if there were any.
    """
    worked, began, end = 0.0, log[0].at, log[0].at
    for envelope in log:
        event = envelope.event
        if isinstance(event, CallAnswered):
            continue
        if isinstance(event, RunStarted):
            worked, began = 0.0, envelope.at
        elif isinstance(event, RunResumed):
            worked, began = event.worked_seconds, envelope.at
        end = envelope.at
    end = end if last is None else max(end, last)
    return worked + max((end - began).total_seconds(), 0.0)  # a machine's clock may be set back


def time_left(limits: Limits, worked: float) -> Limits:
    """Return limits whose length of time is what is left of it, at least 1 ms; a deadline that is a moment stays."""
    if not isinstance(limits.deadline, timedelta):
        return limits
    return replace(limits, deadline=max(limits.deadline - timedelta(seconds=worked), timedelta(milliseconds=1)))


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
