"""The engine of oversight: who is due after a tool call, what they said, what the agent is told, what follows.

It is asked once after the tool results of every turn and before the next model call. It never rewrites what was said:
advice is appended, per source the newest that is fresh and was not yet delivered, several sources as one block. All
it knows is on the log; the folds here only spare reading it again. A run without observers has no engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from watchkeeper.core.budget import BudgetStatus
from watchkeeper.core.stop import Stop
from watchkeeper.core.workers import run_in_worker
from watchkeeper.kernel.signals import Observed
from watchkeeper.prompt.advice import Advice, Assessment, Feedback, Severity, render_block
from watchkeeper.prompt.observer import Escalation
from watchkeeper.prompt.observer_context import FeedbackContext, ObserverContext
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.runtime.asking import Round, ask_all
from watchkeeper.runtime.bounded import within
from watchkeeper.runtime.events import AdviceAcknowledged, AdviceDelivered, EscalationTaken, ObserversRan
from watchkeeper.runtime.plan import RunHome, RunPlan
from watchkeeper.runtime.recorder import Recorder
from watchkeeper.runtime.sources import Source
from watchkeeper.session.slices import Extend, SliceView
from watchkeeper.tools.invoked import ToolInvoked


class Oversight:
    """The sources of one run."""

    def __init__(
        self, plan: RunPlan[Any], home: RunHome, recorder: Recorder, switch_model: Callable[[str, int], str | None]
    ) -> None:
        """Begin with what the session's log says of earlier looks.

        Args:
            plan: Whose sources.
            home: Where the run lives.
            recorder: Where to write.
            switch_model: Goes on with the model of a source's escalation; returns its label, or None if it cannot.
        """
        self._home = home
        self._recorder = recorder
        self._switch_model = switch_model
        self._sources = [Source(config) for config in plan.sources]
        self._by_name = {source.name: source for source in self._sources}
        self._task = "\n\n".join(message.text for message in plan.prompt.messages)
        self._trajectory = Trajectory()
        self._followed = Followed()
        session = home.session
        session[Assessment].register(ObserversRan, keep_assessments)
        session[Feedback].register(ObserversRan, keep_feedback)
        for kept in (ToolInvoked, ObserversRan, AdviceAcknowledged, AdviceDelivered):
            session[kept].keep()
        self._trajectory.follow(home.session[ToolInvoked].all())

    async def look(self, turn: int) -> Observed:
        """Ask who is due, and say what the agent is told before model turn ``turn``."""
        home = self._home
        self._follow_log()
        if not self._trajectory.follow(home.session[ToolInvoked].all()):
            return Observed()
        call_index = self._trajectory.count
        budget = home.gate.budget_status()
        share = max(budget.shares.values(), default=0.0)
        now = home.clock.now()
        due = [source for source in self._sources if await self._is_due(source, share, now)]
        if due:
            runs = await ask_all(due, self._round(budget, share, now), home.gate, home.clock)
            if runs:
                self._recorder.record(ObserversRan(call_index, tuple(runs), now))
                self._follow_log()
        text = self._deliver(call_index, turn, now)
        return Observed(text, await self._escalate(call_index, turn))

    async def _is_due(self, source: Source, share: float, now: datetime) -> bool:
        """Whether a condition of its trigger holds (seed: trajectory-observers, "_should_trigger")."""
        trigger, trajectory = source.trigger, self._trajectory
        if source.off or source.is_quiet(trajectory.count):
            return False
        appeared = trigger.when_file_exists is not None and await self._appeared(source, trigger.when_file_exists)
        if trigger.on_every_call or appeared:
            return True
        every, errors, seconds = trigger.every_n_calls, trigger.after_consecutive_errors, trigger.every_n_seconds
        if every is not None and trajectory.count - source.spoke_at_call >= every:
            return True
        if errors is not None and trajectory.errors_in_a_row >= errors:
            return True
        if seconds is not None and (source.spoke_at is None or (now - source.spoke_at).total_seconds() >= seconds):
            return True
        return any(source.share < each <= share for each in trigger.shares)

    async def _appeared(self, source: Source, path: str) -> bool:
        files = self._home.filesystem
        there = files is not None and await run_in_worker(files.exists, path)
        appeared = there and not source.file_seen
        source.file_seen = there
        return appeared

    def _round(self, budget: BudgetStatus, share: float, now: datetime) -> Round:
        home = self._home
        said: list[Advice] = []
        severities: dict[str, Sequence[Severity]] = {source.name: source.severities for source in self._sources}
        files = home.filesystem.read_only_view() if home.filesystem is not None else None
        parts = (
            home.session,
            budget,
            self._trajectory,
            now,
            said,
            severities,
            self._task,
            files,
            home.gate.work_deadline,
            home.run_context,
        )
        observer, feedback = ObserverContext(*parts), FeedbackContext(*parts)
        return Round(observer, feedback, said, self._trajectory.count, now, share)

    def _deliver(self, call_index: int, turn: int, now: datetime) -> str:
        """Return the block that is appended now, and note on the log what is in it."""
        told = [(source, advice) for source in self._sources if (advice := source.deliverable(call_index)) is not None]
        if not told:
            return ""
        for source, _ in told:
            source.waiting = None
        names = tuple(source.name for source, _ in told)
        self._recorder.record(AdviceDelivered(names, call_index, turn, now))
        return render_block([advice for _, advice in told], call_index)

    # --- consequences -------------------------------------------------------------------------------------------------

    async def _escalate(self, call_index: int, turn: int) -> Stop | None:
        """Do what follows where advice was not heeded; return the stop if that is what follows."""
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
            self._recorder.record(
                EscalationTaken(source.name, escalate.action, detail, call_index, self._home.clock.now())
            )
        return stop

    async def _call(self, escalate: Escalation, source: Source) -> str:
        """Call the user's function; what becomes of it is recorded and changes nothing."""
        slice_type = Assessment if source.is_observer else Feedback
        said = [advice for advice in self._home.session[slice_type].all()[-20:] if advice.source == source.name]
        call = escalate.call
        if call is None or not said:
            return "there was nothing to call"
        until = self._home.clock.monotonic() + source.limit_seconds
        try:
            await within(self._home.gate, _called(call, said[-1]), self._home.clock, until)
        except Exception as error:
            return f"the call failed: {type(error).__name__}: {error}"
        return "the call was made"

    # --- the log ------------------------------------------------------------------------------------------------------

    def _follow_log(self) -> None:
        """Bring the sources up to date with the log; after a rollback, from its beginning."""
        session, followed = self._home.session, self._followed
        runs, answers, told = (
            session[ObserversRan].all(),
            session[AdviceAcknowledged].all(),
            session[AdviceDelivered].all(),
        )
        if not followed.leads_to(runs, answers, told):
            for source in self._sources:
                source.forget()
            followed.begin()
        for ran in runs[followed.runs :]:
            for each in ran.runs:
                if each.source in self._by_name:
                    self._by_name[each.source].follow(each)
        for answer in answers[followed.answers :]:
            if answer.source in self._by_name:
                self._by_name[answer.source].answered(answer)
        for block in told[followed.told :]:
            for name in block.sources:
                advised = self._by_name.get(name)
                waiting = None if advised is None else advised.waiting
                if advised is not None and waiting is not None and waiting.call_index <= block.call_index:
                    advised.waiting = None
        followed.reached(runs, answers, told)


class Followed:
    """Up to where the log is followed, and how to tell that it is still the same log."""

    __slots__ = ("_last", "answers", "runs", "told")

    def __init__(self) -> None:
        """Follow from the beginning."""
        self.begin()

    def begin(self) -> None:
        """Follow from the beginning."""
        self.runs = self.answers = self.told = 0
        self._last: tuple[Any, ...] = (None, None, None)

    def leads_to(self, *views: SliceView[Any]) -> bool:
        """Return whether these slices continue what was followed."""
        known = (self.runs, self.answers, self.told)
        return all(
            count <= len(view) and (count == 0 or view[count - 1] is last)
            for count, view, last in zip(known, views, self._last, strict=True)
        )

    def reached(self, *views: SliceView[Any]) -> None:
        """Remember that these are followed to their ends."""
        self.runs, self.answers, self.told = (len(view) for view in views)
        self._last = tuple(view[-1] if len(view) else None for view in views)


async def _called(call: Callable[[Advice], Any], advice: Advice) -> None:
    """Call a sync function on a worker thread and an async one here."""
    returned: Any = await run_in_worker(call, advice)
    if isinstance(returned, Awaitable):
        await returned


def keep_assessments(view: SliceView[Assessment], event: ObserversRan) -> Extend[Assessment]:
    """Keep what observers said (seed: trajectory-observers, "State Management")."""
    return Extend(tuple(ran.advice for ran in event.runs if isinstance(ran.advice, Assessment)))


def keep_feedback(view: SliceView[Feedback], event: ObserversRan) -> Extend[Feedback]:
    """Keep what feedback providers said."""
    return Extend(tuple(ran.advice for ran in event.runs if isinstance(ran.advice, Feedback)))
