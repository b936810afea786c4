"""The engine of oversight: which sources are due after a tool call, what they said, what the agent is told, and
escalation.

The engine runs once after the tool results of every turn and before the next model call. It never changes earlier
messages: it appends advice, for each source the newest that is not stale and not yet delivered, and joins the advice of
several sources into one block. All its state is on the log; the folds here only avoid reading the log again. A run
without observers has no engine.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from watchkeeper.children.child import Children
from watchkeeper.children.nested_adapter import RunAdapter
from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.core.errors import Stop
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.text import logger
from watchkeeper.core.workers import Patience, has_passing, run_in_worker
from watchkeeper.kernel.turn_machine import Observed
from watchkeeper.oversight.sources import Round, Source, ask_all, said_of
from watchkeeper.prompt.advice import SUSPICION, Advice, Assessment, Feedback, Severity, render_block
from watchkeeper.prompt.observer import Escalation, FeedbackContext
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.runtime.advice_events import AdviceAcknowledged, EscalationTaken, ObserversRan, SourceRan
from watchkeeper.runtime.events import RunStarted
from watchkeeper.runtime.plan import RunPlan, RunScope
from watchkeeper.runtime.user_code import RunOverError, over_at, within
from watchkeeper.session.log import RolledBack, SessionReset, SliceEdited
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Extend, SliceView
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.filesystem import Filesystem

OF_ONE_CALL: Final[tuple[type[Any], ...]] = (AdviceAcknowledged, ObserversRan, EscalationTaken)
"""The events of one tool call, in the order of the log."""

KEPT: Final[tuple[type[Any], ...]] = (ToolInvoked, *OF_ONE_CALL)
"""The slices of which the oversight engine's memory is a fold: what one run did, and what it was told."""

REWRITING: Final = (RolledBack, SessionReset, SliceEdited)
"""Events that change slices in a way that the newest log entries alone cannot reproduce; the state is then rebuilt from
the slices."""


class Oversight:
    """The sources of one run."""

    def __init__(
        self,
        plan: RunPlan[Any],
        scope: RunScope,
        switch_model: Callable[[str, int], str | None],
        children: Children,
    ) -> None:
        """Begin with the state that the session's log has from earlier runs.

        Args:
            plan: The plan of the run; its sources are used.
            scope: The scope of the run: session, gate, clock, files.
            switch_model: Goes on with the model of a source's escalation; returns its label, or None if it cannot.
            children: Starts the runs that a source asks for.
        """
        self._scope = scope
        self._switch_model = switch_model
        self._adapter = RunAdapter(children)
        self._nested = children.family.nested
        self._sources = [Source(config) for config in plan.sources]
        self._files = None if scope.filesystem is None else scope.filesystem.read_only_view()
        self._by_name = {source.name: source for source in self._sources}
        self._awaited = [source for source in self._sources if source.trigger.when_file_exists is not None]
        self._escalating = any(source.config.escalate is not None for source in self._sources)
        self._judges = [source for source in self._sources if source.trigger.on_suspicion]
        self._suspicions: dict[str, Advice] = {}
        self._severities: dict[str, Sequence[Severity]] = {source.name: source.severities for source in self._sources}
        self._prompt = plan.prompt
        self._task = "\n\n".join(message.text for message in plan.prompt.messages)
        self._trajectory = Trajectory()
        self._followed: dict[type[Any], Callable[[Any], None]] = {
            ToolInvoked: self._trajectory.add,
            AdviceAcknowledged: self._answered,
            ObserversRan: self._take_in,
            EscalationTaken: self._escalated,
        }
        self._position = 0
        session = scope.session
        if any(source.is_observer for source in self._sources):
            session[Assessment].register(ObserversRan, keep_assessments)
        if not all(source.is_observer for source in self._sources):
            session[Feedback].register(ObserversRan, keep_feedback)
        for kept in KEPT:
            session[kept].keep()
        self._earlier = earlier_rounds(session, scope.run_context.run_id)
        self._rebuild()

    async def look(self, turn: int, *, again: bool = False) -> Observed:
        """Ask the sources that are due; return what the agent is told before model turn ``turn``.

        Args:
            turn: Number of the model turn.
            again: Whether to ask also if no call was made since: nobody knows whether the sources were asked.
        """
        scope = self._scope
        if not self._follow_log() and not again:
            return Observed()
        call_index = self._trajectory.count
        budget = scope.gate.budget_status(turn - 1)
        now = scope.clock.now()
        appeared, runs = await self._appeared(budget) if self._awaited else ((), [])
        due = [each for each in self._sources if each.is_due(self._trajectory, budget, now) or each in appeared]
        if due:
            runs += await ask_all(due, self._round(budget, now, []))
            if self._judges and self._suspect(runs):
                due = [each for each in self._judges if each not in due and each.is_due(self._trajectory, budget, now)]
                said: list[Advice] = [ran.advice for ran in runs if ran.advice is not None]
                runs += await ask_all(due, self._round(budget, now, said))
            self._follow_log()  # they may have written to the session
        if scope.clock.monotonic() >= over_at(scope.gate, scope.clock):
            turn = 0  # no model turn follows that could read it
        text = self._hear(runs, call_index, turn, now)
        return Observed(text, await self._escalate(call_index, turn) if self._escalating else None)

    def _suspect(self, runs: Sequence[SourceRan]) -> bool:
        """Take in what was suspected; return whether anything was. A judge that is asked clears it."""
        found = False
        for ran in runs:
            if ran.advice is not None and ran.advice.severity == SUSPICION:
                found = True
                self._suspicions[ran.source] = ran.advice
                for judge in self._judges:
                    judge.suspected = True
            elif any(ran.source == judge.name for judge in self._judges):
                self._suspicions.clear()
        return found

    async def _appeared(self, budget: BudgetStatus) -> tuple[Sequence[Source], list[SourceRan]]:
        """Return the sources whose awaited file has appeared since the last look, and one failure for each file that
        cannot be looked for.
        """
        files, gate = self._scope.filesystem, self._scope.gate
        if files is None:
            return (), []
        over = over_at(gate, self._scope.clock)
        paths = [source.trigger.when_file_exists or "" for source in self._awaited]
        try:
            there = await run_in_worker(
                lambda: [_is_there(files, path) for path in paths],
                patience=Patience(lambda: over, self._scope.clock, gate.cancellation),
            )
        except TimeoutError:
            return (), []
        new: list[Source] = []
        failed: list[SourceRan] = []
        for source, is_there in zip(tuple(self._awaited), there, strict=True):
            if isinstance(is_there, str):
                self._awaited.remove(source)
                said = f"when_file_exists: {is_there}"
                failed.append(SourceRan(source.name, "failed", error=said, marks=source.passed(budget)))
                continue
            if is_there and not source.file_seen:
                if source.is_quiet(self._trajectory.count):
                    continue  # it is asked once its quiet time is over, if the file still exists
                if not source.off:
                    new.append(source)
            source.file_seen = is_there
        return new, failed

    def _round(self, budget: BudgetStatus, now: datetime, said: list[Advice]) -> Round:
        scope = self._scope
        context = FeedbackContext(
            session=scope.session,
            budget=budget,
            trajectory=self._trajectory,
            now=now,
            advice=said,
            severities=self._severities,
            task=self._task,
            filesystem=self._files,
            deadline=scope.gate.work_deadline,
            run_context=scope.run_context,
            adapter=self._adapter,
            nested=self._nested,
            prompt=self._prompt,
            suspicions=tuple(self._suspicions.values()),
        )
        over = over_at(scope.gate, scope.clock)
        return Round(context, said, self._trajectory.count, now, scope, over)

    def _hear(self, runs: Sequence[SourceRan], call_index: int, turn: int, now: datetime) -> str:
        """Return the block of advice to append now; record on the log what each source said and what was appended.

        If no turn can read it (``turn`` is 0), nothing is appended: the advice waits for a later run of the session.
        """
        self._suspect(runs)
        for ran in runs:
            self._by_name[ran.source].follow(ran, call_index, now)
            if ran.error is not None:
                logger().warning(f"observer.{ran.outcome}", observer=ran.source, error=ran.error, after_call=call_index)
        waiting = [source for source in self._sources if source.waiting is not None and turn]
        advices = [advice for source in waiting if (advice := source.deliver(call_index)) is not None]
        if not (runs or advices):
            return ""
        if not advices:
            self._record(ObserversRan(call_index, tuple(runs), now))
            return ""
        text = render_block(advices, call_index)
        told = tuple([advice.source for advice in advices])
        self._record(ObserversRan(call_index, tuple(runs), now, told, text, turn))
        return text

    async def _escalate(self, call_index: int, turn: int) -> Stop | None:
        """Carry out escalations for advice that was not followed; return the stop if an escalation stops the run."""
        stop: Stop | None = None
        for source in self._sources:
            escalate = source.config.escalate
            if escalate is None or source.grave < escalate.after:
                continue
            source.grave = 0
            said = f"{source.name} spoke {escalate.after} times in a row with severity {escalate.severity} or graver"
            if escalate.action == "stop":
                stop = stop or Stop("escalated", "observer", f"{said}, and was not heeded.", source.name)
                detail = f"{said}: the run was stopped"
            elif escalate.action == "switch_model":
                model = self._switch_model(source.name, turn)
                detail = f"{said}: " + (
                    f"the run goes on with {model}" if model else "the other model cannot take over"
                )
            else:
                detail = f"{said}: {await self._call(escalate, source)}"
            self._record(EscalationTaken(source.name, escalate.action, detail, call_index, self._scope.clock.now()))
        return stop

    async def _call(self, escalate: Escalation, source: Source) -> str:
        """Call the user's function; return its outcome in words, for the log. It does not affect the run."""
        slice_type = Assessment if source.is_observer else Feedback
        newest = reversed(self._scope.session[slice_type].all())
        said = next((advice for advice in newest if advice.source == source.name), None)
        call = escalate.call
        if call is None or said is None:
            return "there was nothing to call"
        until = self._scope.clock.monotonic() + source.limit_seconds
        try:
            await within(self._scope.gate, _called(call, said), self._scope.clock, until)
        except RunOverError:
            if self._scope.clock.monotonic() < until:
                return "the run was over before the call had ended"
            return f"the call took longer than {format_duration(source.limit_seconds)} and was left behind"
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if has_passing(error):
                raise
            return f"the call failed: {said_of(error)}"
        return "the call was made"

    def _record(self, event: Any) -> None:
        """Record an event; then take in what is new on the log except this event, which is taken in already."""
        self._scope.record(event)
        self._follow_log(event)

    def _follow_log(self, known: object = None) -> int:
        """Take in the new events of the log, except ``known``; return how many of them are tool calls."""
        log = self._scope.session.log
        calls, new = 0, len(log) - self._position
        if new == (known is not None):
            self._position += new
            return calls
        for envelope in log[self._position :]:
            event: object = envelope.event
            kind: type[Any] = type(event)
            take = self._followed.get(kind)
            if take is not None:
                if event is not known:
                    take(event)
                calls += kind is ToolInvoked
            elif isinstance(event, REWRITING) and getattr(event, "slice_type", ToolInvoked) in KEPT:
                return self._rebuild()
            self._position = envelope.seq
        return calls

    def _rebuild(self) -> int:
        """Rebuild the state from what the slices hold now; return how many tool calls were taken in."""
        session = self._scope.session
        off = [source for source in self._sources if source.off]
        for source in self._sources:
            source.forget()
        self._suspicions.clear()
        kept: list[tuple[Any, Callable[[Any], None]]]
        kept = [(event, self._followed[kind]) for kind in OF_ONE_CALL for event in session[kind].all()]
        of_earlier = {id(ran) for ran in session[ObserversRan].all()[: self._earlier]}
        kept = [(event, self._take_in_earlier if id(event) in of_earlier else take) for event, take in kept]
        for event, take in sorted(kept, key=_call_index):  # of one call in the order above, because sorting is stable
            take(event)
        for source in off:
            source.off = True  # a rollback does not end the thread on which this source hangs
        self._position = len(session.log)
        return self._trajectory.begin(session[ToolInvoked].all())

    def _take_in(self, ran: ObserversRan) -> None:
        self._suspect(ran.runs)
        for each in ran.runs:
            for source in self._named(each.source):
                source.follow(each, ran.call_index, ran.created_at)
        for source in self._named(*ran.told):
            source.waiting = None

    def _take_in_earlier(self, ran: ObserversRan) -> None:
        """Take in an earlier run of the session: a new run has new limits, and no source is off at its start."""
        self._take_in(ran)
        for source in self._sources:
            source.begin_run()

    def _answered(self, answer: AdviceAcknowledged) -> None:
        for source in self._named(answer.source):
            source.answered(answer)

    def _escalated(self, taken: EscalationTaken) -> None:
        for source in self._named(taken.source):
            source.grave = 0

    def _named(self, *names: str) -> Sequence[Source]:
        """Return the sources with these names, without those that only an earlier run of the session had."""
        return [self._by_name[name] for name in names if name in self._by_name]


def earlier_rounds(session: Session, run_id: UUID) -> int:
    """Return how many of a session's rounds are of earlier runs: a run may go on that another process has begun."""
    own, log = 0, session.log
    for place in range(len(log) - 1, -1, -1):
        event: object = log[place].event
        if isinstance(event, RunStarted) and event.run_context.run_id == run_id:
            break
        own += isinstance(event, ObserversRan)
    return max(len(session[ObserversRan].all()) - own, 0)


def _call_index(kept: tuple[Any, Callable[[Any], None]]) -> int:
    return int(kept[0].call_index)


def _is_there(files: Filesystem, path: str) -> bool | str:
    """Return whether a file exists, or the error text if that cannot be determined."""
    try:
        return files.is_file(path)
    except Exception as error:
        return said_of(error)


async def _called(call: Callable[[Advice], Any], advice: Advice) -> None:
    """Call a sync function on a worker thread and an async one here."""
    returned: Any = call(advice) if inspect.iscoroutinefunction(call) else await run_in_worker(call, advice)
    if isinstance(returned, Awaitable):
        await returned


def keep_assessments(view: SliceView[Assessment], event: ObserversRan) -> Extend[Assessment]:
    """Keep what observers said."""
    return Extend(tuple([said for said in _advised(event) if isinstance(said, Assessment)]))


def keep_feedback(view: SliceView[Feedback], event: ObserversRan) -> Extend[Feedback]:
    """Keep what feedback providers said."""
    return Extend(tuple([said for said in _advised(event) if isinstance(said, Feedback)]))


def _advised(event: ObserversRan) -> Sequence[Advice]:
    """Return what was said that is no mere suspicion; that is on the log alone."""
    return [ran.advice for ran in event.runs if ran.advice is not None and ran.advice.severity != SUSPICION]
