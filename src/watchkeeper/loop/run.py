"""One run from start to end: preflight, the prompt's messages, the loop, the result. Every way to run ends here."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypeVar

from watchkeeper.core.messages import Message, SystemMessage, Transcript, UserMessage
from watchkeeper.kernel.states import End
from watchkeeper.loop.driver import Drive, drive
from watchkeeper.prompt.evaluation import PromptDeadlineAssigned, PromptExecuted, PromptRendered
from watchkeeper.runtime.events import Recorder, RunEnded, RunStarted, log_end
from watchkeeper.runtime.plan import RunPlan, RunScope
from watchkeeper.runtime.result import RunResult, broken_off, result_of, transcript_of
from watchkeeper.runtime.user_code import booked
from watchkeeper.tools.process_worker import refuse_while_importing

OutputT = TypeVar("OutputT")


async def execute(plan: RunPlan[OutputT], scope: RunScope, drive: Drive = drive) -> RunResult[OutputT]:
    """Run to the end and return the result; the gate is closed by whoever opened it.

    Args:
        plan: What to do.
        scope: Within what.
        drive: Does it, between the events of its start and its end; the loop.

    Raises:
        ConfigurationError: If the plan cannot work, before anything is spent.
        CancelledError: If the task is cancelled; the run's end is on the log all the same.
    """
    refuse_while_importing()
    clock, gate = scope.clock, scope.gate
    recorder = Recorder(scope.session, clock)
    started_at, began = clock.now(), clock.monotonic()
    earlier = transcript_of(scope.session.log)
    started = _announce(plan, scope, recorder, started_at)
    transcript = _opening(plan, scope, recorder, earlier)
    try:
        ending = await drive(plan, scope, transcript, execute)
        await booked(gate)
    except BaseException as error:
        took = timedelta(seconds=clock.monotonic() - began)
        _close(plan, scope, recorder, End(stop=broken_off(error)), None, took)
        raise
    duration = timedelta(seconds=clock.monotonic() - began)
    end = ending.end
    ended = _close(plan, scope, recorder, end, ending.turns, duration)
    return result_of(
        started,
        ended,
        limits=gate.limits,
        session=scope.session,
        completion_note=end.explanation,
        error=ending.error if end.stop is not None else None,
        answered_by=ending.answered_by,
    )


def _announce(plan: RunPlan[Any], scope: RunScope, recorder: Recorder, started_at: datetime) -> RunStarted:
    gate, clock = scope.gate, scope.clock
    started = RunStarted(
        run_context=scope.run_context,
        prompt_name=plan.prompt.name,
        model=plan.label,
        limits=gate.limits.describe(),
        deadline=gate.deadline.at if gate.deadline else None,
        started_at=started_at,
        item=scope.item,
        parent_run_id=scope.parent_run_id,
        fallback=tuple(each.label for each in plan.fallback),
    )
    recorder.record(started)
    if gate.deadline is not None:
        recorder.record(
            PromptDeadlineAssigned(plan.prompt.name, gate.deadline.at, scope.session.session_id, clock.now())
        )
    return started


def _opening(plan: RunPlan[Any], scope: RunScope, recorder: Recorder, transcript: Transcript) -> Transcript:
    """Add the prompt to an earlier conversation of the session: that is what the run begins with."""
    messages = _continued(plan.prompt.messages, transcript) if len(transcript) else plan.prompt.messages
    for message in messages:
        transcript.append(message)
    recorder.record(
        PromptRendered(
            prompt_name=plan.prompt.name,
            messages=messages,
            tool_names=tuple(tool.name for tool in plan.prompt.tools),
            adapter=plan.model.provider,
            session_id=scope.session.session_id,
            created_at=scope.clock.now(),
        )
    )
    return transcript


def _continued(messages: tuple[Message, ...], earlier: Transcript) -> tuple[Message, ...]:
    """A conversation has one system message, the first; other instructions go on as the user's words."""
    return tuple(
        UserMessage.of(message.text) if isinstance(message, SystemMessage) else message
        for message in messages
        if not (isinstance(message, SystemMessage) and message == earlier[0])
    )


def _close(
    plan: RunPlan[Any],
    scope: RunScope,
    recorder: Recorder,
    end: End,
    turns: int | None,
    duration: timedelta,
) -> RunEnded:
    """Record the end: the prompt's outcome, then the run's, with the time that was left."""
    gate, now = scope.gate, scope.clock.now()
    usage = gate.usage
    remaining = gate.deadline.remaining(scope.clock).total_seconds() if gate.deadline else None
    if end.stop is None:
        recorder.record(
            PromptExecuted(
                prompt_name=plan.prompt.name,
                adapter=plan.model.provider,
                output=end.output,
                text=end.text,
                usage=usage.tokens,
                session_id=scope.session.session_id,
                created_at=now,
                remaining_seconds=remaining,
            )
        )
    ended = RunEnded(
        run_id=scope.run_context.run_id,
        stop=end.stop,
        output=end.output,
        partial=end.partial,
        text=end.text,
        verdict=end.verdict,
        usage=usage,
        duration_ms=duration.total_seconds() * 1000,
        remaining_seconds=remaining,
        ended_at=now,
        turns=turns,
    )
    recorder.record(ended)
    log_end(
        "run.completed" if end.stop is None else "run.stopped",
        {"run_id": str(scope.run_context.run_id)},
        plan.prompt.name,
        end.stop,
        end.verdict,
        usage,
        duration_seconds=round(duration.total_seconds(), 3),
        remaining_seconds=None if remaining is None else round(remaining, 3),
    )
    return ended
