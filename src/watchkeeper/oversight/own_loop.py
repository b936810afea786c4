"""Oversight in a loop of your own: ask a prompt's observers after a tool call, and read what the agent is to be told.

For code that runs its own turns and keeps `ToolInvoked` in a session (docs/specification.md, trajectory observers). A
run has all of this built in and more: time limits, threads, damping, escalation, feedback providers. Here the observers
are asked on the caller's thread, one after the other, and nothing interrupts them.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from watchkeeper.accounting.budget import Budget, BudgetStatus
from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import ObserverError
from watchkeeper.core.text import logger
from watchkeeper.oversight.sources import Source, said_of
from watchkeeper.prompt.advice import MAX_AGE_CALLS, Advice, Assessment, RecordAssessment
from watchkeeper.prompt.observer import ObserverConfig, ObserverContext
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked

_followed: WeakKeyDictionary[Session, tuple[Trajectory, ToolInvoked | None]] = WeakKeyDictionary()
"""What was read of a session's calls so far, and the last of them: so that a look reads the new calls only."""


def build_context(session: Session, *, max_age_calls: int = MAX_AGE_CALLS) -> str:
    """Return the newest assessment of a session as markdown for the next model call; '' if there is none or it is old.

    Args:
        session: Keeps the assessments and the tool calls.
        max_age_calls: The most tool calls since it was made.
    """
    newest = session[Assessment].latest()
    if newest is None or newest.is_stale(len(session[ToolInvoked].all()), max_age_calls):
        return ""
    return newest.render()


def on_tool_invoked(event: ToolInvoked, *, session: Session, prompt: Prompt[Any] | PromptTemplate[Any]) -> None:
    """Ask a prompt's observers whose triggers fire after a tool call, and record what they say in the session.

    Each assessment is dispatched as `RecordAssessment`, and so is appended to ``session[Assessment]``. An observer that
    raises is skipped; the log line ``observer.failed`` says why. Of the limits, observers see the deadline and the
    ceiling of tool calls of ``session[Budget]``: what else was used, only a run knows.

    Args:
        event: The call; the session keeps it already (``session.dispatch(event)``).
        session: Keeps the tool calls and the assessments.
        prompt: Whose observers are asked.

    Raises:
        ObserverError: If the session does not keep the call, or for an observer that only a run can ask.
    """
    template = prompt.template if isinstance(prompt, Prompt) else prompt
    trajectory = _trajectory(session)
    if trajectory.count == 0:
        raise ObserverError(f"the session keeps no call yet; dispatch the event of {event.name!r} to it first")
    now, status = session.clock.now(), _status(session, trajectory.count)
    sources = [_source(config, session) for config in template.observers]
    due = [source for source in sources if source.is_due(trajectory, status, now)]
    if not due:
        return
    said: list[Advice] = []
    context = ObserverContext(
        session,
        deadline=status.deadline,
        budget=status,
        trajectory=trajectory,
        now=now,
        advice=said,
        task="\n\n".join(each.text for each in prompt.render().messages) if isinstance(prompt, Prompt) else "",
    )
    for source in due:
        assessment = _asked(source, context)
        if assessment is not None:
            said.append(assessment)
            session.dispatch(RecordAssessment(assessment))


def _asked(source: Source, context: ObserverContext) -> Assessment | None:
    """Ask an observer; return what it says, with its name and the moment."""
    count, now = context.trajectory.count, context.session.clock.now()
    try:
        if not source.should_run(context.session, context=context):
            return None
        said: object = source.speak(context.session, context=context)
        if not isinstance(said, Assessment | None):
            raise TypeError(f"observe() must return Assessment or None, not {type(said).__name__}")
    except Exception as error:
        logger().warning("observer.failed", observer=source.name, error=said_of(error), after_call=count)
        return None
    return None if said is None else said.stamped(source.name, count, now)


def _source(config: ObserverConfig, session: Session) -> Source:
    """Return the state of an observer, as the assessments in the session tell it.

    Raises:
        ObserverError: If only a run can ask it.
    """
    source, trigger = Source(config), config.trigger
    if source.is_async:
        raise ObserverError(f"{config.name!r} is async, so only a run can ask it; make its methods plain")
    if trigger.shares or trigger.when_file_exists is not None:
        raise ObserverError(f"the trigger of {config.name!r} needs a run: only a run knows its limits and its files")
    last = next((each for each in reversed(session[Assessment].all()) if each.observer_name == config.name), None)
    if last is not None:
        source.spoke_at_call, source.spoke_at = last.call_index, last.timestamp
    return source


def _trajectory(session: Session) -> Trajectory:
    """Return the digests of a session's calls; only those that are new are read, unless the session was rolled back."""
    calls = session[ToolInvoked].all()
    trajectory, last = _followed.get(session, (Trajectory(), None))
    if trajectory.count > len(calls) or (trajectory.count and calls[trajectory.count - 1] is not last):
        trajectory = Trajectory()
    if trajectory.count == 0:
        trajectory.begin(calls)
    for call in calls[trajectory.count :]:
        trajectory.add(call)
    _followed[session] = (trajectory, calls.latest())
    return trajectory


def _status(session: Session, calls: int) -> BudgetStatus:
    """Return what is known of the session's budget outside of a run."""
    budget, now = session[Budget].latest() or Budget(), session.clock.now()
    deadline = budget.deadline if isinstance(budget.deadline, Deadline | None) else Deadline(budget.deadline)
    first = next(iter(session[ToolInvoked].all()), None)
    return BudgetStatus(
        deadline,
        elapsed_seconds=0.0 if first is None else max((now - first.created_at).total_seconds(), 0.0),
        remaining_seconds=None if deadline is None else max(deadline.remaining(session.clock).total_seconds(), 0.0),
        max_tool_calls=None if budget.max_tool_calls is None else int(budget.max_tool_calls),
        tool_calls_used=calls,
    )
