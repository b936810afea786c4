"""What a run has used by its record: tokens, money, steps and time; what is under way; whether limits are used up.

The sum over a record equals what the gate had counted, and what was under way when it ends counts with its worst case,
once. A length of time counts while a process works on the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec

from watchkeeper.accounting.admission import COUNTED_CALLS
from watchkeeper.accounting.limits import AccountLimit, Limits, period_days
from watchkeeper.core.errors import Stop
from watchkeeper.core.meters import METERS
from watchkeeper.core.usage import CALL_COUNTS, Presumed, TokenUsage, Usage
from watchkeeper.kernel.turn_machine import CEILING_STOPS
from watchkeeper.runtime.events import (
    CallBegun,
    CallEnded,
    ChildEnded,
    ChildStarted,
    ManyEnded,
    ManyStarted,
    ModelFailed,
    ModelReplied,
    NoticeSent,
    RunEnded,
    RunOpened,
    RunResumed,
    RunStarted,
)
from watchkeeper.runtime.parking import CallAnswered, CallParked
from watchkeeper.runtime.used_before import NOTHING_BEFORE, UsedBefore
from watchkeeper.session.log import Envelope
from watchkeeper.tools.context import ToolInvoked


class UnderWay(NamedTuple):
    """A call that has begun and has no end on record.

    Attributes:
        call: Its beginning.
        arguments: Those of a tool call that the model asked for, as it wrote them; empty for any other call.
    """

    call: CallBegun
    arguments: str = ""


class Spent(NamedTuple):
    """What a run has used by its log.

    Attributes:
        usage: What counts for its limits, with the worst case of model calls that had begun and have neither reply nor
            failure.
        unknown: The tool calls of which nobody knows whether they had an effect.
        below: What is part of it, by run, of runs below it whose end is not on the log.
        earlier: What it had used before its limits were fresh, which counts no more.
    """

    usage: Usage
    unknown: tuple[str, ...] = ()
    below: tuple[tuple[UUID, Usage], ...] = ()
    earlier: UsedBefore = NOTHING_BEFORE

    @property
    def whole(self) -> Usage:
        """Everything that it has used."""
        return self.usage + self.earlier.usage


def spent_of(log: Iterable[Envelope], used_by: Callable[[UUID], Usage]) -> Spent:
    """Return what a run has used by its log.

    The rule: every call that the gate has admitted counts once, as the gate has charged it. A call that had begun and
    has no end on record counts as its worst case, which is presumed. So of a run that went on undisturbed this is what
    its gate has counted, and of an interrupted one at most the worst case of each interrupted call more.

    Args:
        log: The events of the run.
        used_by: Returns what a run below it has used whose end is not on this log.
    """
    tally = Tally()
    for envelope in log:
        tally.add(envelope.event)
    return tally.spent(used_by)


class Tally:
    """Adds up what a run has used, event by event; see `spent_of`."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._own: UUID | None = None
        self._arguments: dict[str, str] = {}
        self._earlier = NOTHING_BEFORE
        self._begin(Usage())

    def _begin(self, usage: Usage) -> None:
        self._usage = usage
        self._open: dict[str, UnderWay] = {}
        self._left: dict[str, UnderWay] = {}
        self._counted: dict[UUID, Usage] = {}
        self._runs: dict[UUID, None] = {}

    def add(self, event: object) -> None:
        """Count one event."""
        match event:
            case RunStarted():
                self._begin(Usage())
                self._own, self._earlier = event.run_context.run_id, NOTHING_BEFORE
            case RunEnded() if event.run_id == self._own:  # what was late is corrected there
                counted, left = self._counted, {**self._left, **self._open}
                self._begin(event.usage)
                self._counted, self._left, self._earlier = counted, left, event.earlier
            case RunResumed():
                counted = {**self._counted, **dict(event.below)}
                runs = self._runs
                self._begin(event.spent)
                self._counted, self._runs, self._earlier = counted, runs, event.earlier
            case CallBegun():
                self._open[event.node_id] = UnderWay(event, self._arguments.get(event.call_id, ""))
            case ModelReplied() | ModelFailed() | ToolInvoked() | CallParked() | CallEnded():
                self._call_ended(event)
            case ChildStarted():
                self._runs[event.run_context.run_id] = None
                if event.admitted and event.kind != "subagent":  # a subagent that goes on is admitted again
                    self._usage += one_call("child")
            case ChildEnded():
                if event.kind == "subagent" and event.run_id in self._runs:
                    self._usage += one_call("child")
                self._runs.pop(event.run_id, None)
                self._usage += beyond(event.usage, self._counted.get(event.run_id))
                self._counted[event.run_id] = event.usage
            case _:
                pass

    def _call_ended(self, event: ModelReplied | ModelFailed | ToolInvoked | CallParked | CallEnded) -> None:
        """Count a call that the gate has settled."""
        if not event.node_id:  # it never passed the gate, or was counted when the run was resumed
            return
        self._left.pop(event.node_id, None)
        begun, used = self._open.pop(event.node_id, None), Usage()
        match event:
            case ModelReplied():
                self._arguments = {call.call_id: call.arguments for call in event.message.tool_calls}
                retry = begun is not None and begun.call.attempt > 1
                used = one_call("llm", retry=retry, tokens=event.usage, cost_nanos=event.cost_nanos)
            case ModelFailed():
                spent: Any = {"tokens": event.usage, "cost_nanos": event.cost_nanos, "presumed": event.presumed}
                used = one_call("llm", retry=event.attempt > 1, **spent)
            case ToolInvoked():
                used = one_call("tool", retry=event.attempt > 1)
            case CallParked():
                used = one_call("tool")
            case CallEnded():
                calls: dict[str, Any] = {"retries": event.retries}
                if event.admitted:
                    calls = {**counts_of("llm" if event.kind == "llm" else "tool", retry=False), **calls}
                used = Usage(event.usage, event.cost_nanos, presumed=event.presumed, **calls)
                if event.run_id is not None and event.run_id in self._runs:  # a run below without a record here
                    self._counted[event.run_id] = self._counted.get(event.run_id, Usage()) + used
        self._usage += used

    @property
    def under_way(self) -> tuple[UnderWay, ...]:
        """The calls that have begun and have no end, also where the run has ended since; none once it goes on."""
        return (*self._left.values(), *self._open.values())

    def spent(self, used_by: Callable[[UUID], Usage]) -> Spent:
        """Return the sum, with the worst case of the calls that have begun and have no end."""
        usage = self._usage
        below = {run_id: self._counted.get(run_id, Usage()) for run_id in self._runs}
        for run_id, counted in below.items():
            used = used_by(run_id)
            if used != Usage():  # it has a record
                usage += beyond(used, counted)
                below[run_id] = used
        for begun, _ in self._open.values():
            retry = begun.attempt > 1
            if begun.kind == "tool" and begun.run_id is None:
                usage += one_call("tool", retry=retry)
                continue
            is_free = begun.worst_nanos == 0 and not begun.worst.total
            presumed = Presumed() if is_free else Presumed(1, begun.worst, begun.worst_nanos)
            worst: Any = {"tokens": begun.worst, "cost_nanos": begun.worst_nanos, "presumed": presumed}
            usage += one_call(begun.kind, retry=retry, **worst)
        tools = (call for call, _ in self.under_way if call.kind == "tool" and call.run_id is None)
        return Spent(usage, tuple(call.call_id for call in tools), tuple(below.items()), self._earlier)


@cache
def counts_of(kind: str, *, retry: bool) -> Mapping[str, Any]:
    """Return what a call that the gate admits adds to the counts of `Usage`, by the table of meters."""
    kinds = {kind, "retry"} if retry else {kind}
    return {name: 1 for name in CALL_COUNTS if not kinds.isdisjoint(COUNTED_CALLS[name])}


def one_call(kind: Literal["llm", "tool", "child"], *, retry: bool = False, **spent: Any) -> Usage:
    """Return the usage of one admitted call; ``spent`` has its other fields."""
    return Usage(**spent, **counts_of(kind, retry=retry))


def beyond(used: Usage, counted: Usage | None) -> Usage:
    """Return the part of a run's usage that is not counted yet; a cost that is not known stays so."""
    if counted is None:
        return used
    less: Any = {name: -getattr(counted, name) for name in CALL_COUNTS}
    presumed = Presumed(
        -counted.presumed.calls, _negative(counted.presumed.tokens), -(counted.presumed.cost_nanos or 0)
    )
    return used + Usage(_negative(counted.tokens), -(counted.cost_nanos or 0), presumed=presumed, **less)


def _negative(tokens: TokenUsage) -> TokenUsage:
    return TokenUsage(*(-count for count in msgspec.structs.astuple(tokens)))


def earlier_of(events: Iterable[object]) -> UsedBefore:
    """Return what a run had used by its events before its limits were fresh."""
    found = NOTHING_BEFORE
    for event in events:
        if isinstance(event, RunResumed):
            found = event.earlier
    return found


def limits_of(events: Iterable[object]) -> Limits:
    """Return the limits of a run by its events: those with which it went on last, else those with which it began."""
    limits: Limits | None = None
    for event in events:
        match event:
            case RunStarted() | ManyStarted() | RunOpened():
                limits = event.limit_values or limits
            case RunResumed():
                limits = since_beginning(event.limit_values, event.worked_seconds)
            case _:
                pass
    return limits or Limits()


def since_beginning(limits: Limits, worked: float) -> Limits:
    """Return the limits with which a run goes on, whose length of time is what is left of it, as those of all of it."""
    if not isinstance(limits.deadline, timedelta):
        return limits
    return replace(limits, deadline=limits.deadline + timedelta(seconds=worked))


def worked_seconds(log: Sequence[Envelope], last: datetime | None = None) -> float:
    """Return how long processes have worked on a run: as measured, or each dead one from its first event to its last.

    What a run was forked from does not count.

    Args:
        log: Its events.
        last: The time of the last event of the runs below it that were under way, if there were any. It does not count
            for a run that has ended: that has measured itself, whatever was done to the clock.
    """
    worked, began, end, over = 0.0, log[0].at, log[0].at, False
    for envelope in at_work(log):
        event = envelope.event
        if isinstance(event, RunStarted):
            worked, began = 0.0, envelope.at
        elif isinstance(event, RunResumed):
            worked, began = event.worked_seconds, envelope.at
        elif isinstance(event, RunEnded | ManyEnded):
            worked, began = event.duration_ms / 1000, envelope.at
        end, over = envelope.at, isinstance(event, RunEnded | ManyEnded)
    end = end if last is None or over else max(end, last)
    return worked + max((end - began).total_seconds(), 0.0)  # a machine's clock may be set back


def at_work(log: Sequence[Envelope]) -> Iterator[Envelope]:
    """Yield the events that processes wrote while they worked on a run.

    Left out is what comes after its end: what persons say of it while none works on it, answers about parked calls and
    that it is cancelled; and notices, which may be late.
    """
    over = False
    for envelope in log:
        match envelope.event:
            case CallAnswered() | NoticeSent():
                continue
            case RunStarted() | RunResumed():
                over = False
            case _ if over:
                continue
            case RunEnded() | ManyEnded():
                over = True
            case _:
                pass
        yield envelope


def exhausted_still(
    ended: RunEnded | ManyEnded, before: Limits, now: Limits, at: datetime, *, compacts: bool
) -> Stop | None:
    """Return the stop of a limit that is no higher now, with how to go on; None if the run may go on.

    What was used counts: the run would stop there again, and only pay for another last turn.

    Args:
        ended: How the run has ended.
        before: The limits that it had then.
        now: The limits that it is to have.
        at: The time; an account begins anew with each day or month.
        compacts: Whether a full context is summarised from here on.
    """
    stop = ended.stop
    if stop is None:
        return None
    how = ""
    if stop.reason == "context_full" and not compacts:
        summary = "with a summary (on_context_full='compact' or --on-context-full compact)"
        how = f"{summary}, or with another model (accept_changes=True or --accept-changes)"
    elif stop.limit == "account_limit" and _still_drawn_on(ended.ended_at, before, now, at):
        how = "once the period is over, or under a higher one (limits=Limits(account_limit=...) or --account-limit)"
    elif stop.reason in CEILINGS and stop.limit in RAISED_BY and _no_higher(stop.limit, before, now):
        option = f" or {RAISED_BY[stop.limit]}" if RAISED_BY[stop.limit] else ""
        how = f"under a higher one (limits=Limits({stop.limit}=...){option})"
        how += " or with what was used not counted (fresh_limits=True or --fresh-limits)"
    return replace(stop, message=f"{stop.message} It goes on {how}.") if how else None


def _still_drawn_on(ended_at: datetime, before: Limits, now: Limits, at: datetime) -> bool:
    """Return whether the account under which a run goes on has the same ceiling, and its day or month is not over."""
    limit = now.account_limit
    if (now.account, limit) != (before.account, before.account_limit) or not isinstance(limit, AccountLimit):
        return False
    return period_days(limit.period, ended_at) == period_days(limit.period, at)


def _no_higher(name: str, before: Limits, now: Limits) -> bool:
    was, is_now = getattr(before, name), getattr(now, name)
    if was is None or is_now is None:
        return False
    return bool(is_now == was or (type(is_now) is type(was) and is_now < was))


CEILINGS: Final = CEILING_STOPS | {"timeout"}
"""Stops of limits that stay used up."""

RAISED_BY: Final = {
    "deadline": "--timeout",
    **{each.field: f"--{(each.setting or each.field).replace('_', '-')}" if each.option else "" for each in METERS},
}
"""The limits by their fields, with the option of the command line that raises each."""


def time_left(limits: Limits, worked: float) -> Limits:
    """Return limits whose length of time is what is left of it, at least 1 ms; a deadline that is a moment stays."""
    if not isinstance(limits.deadline, timedelta):
        return limits
    return replace(limits, deadline=max(limits.deadline - timedelta(seconds=worked), timedelta(milliseconds=1)))
