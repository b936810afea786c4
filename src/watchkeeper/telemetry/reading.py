"""How the events of a run's log become spans: attributes, events and the ends of the spans of the run and its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from watchkeeper.accounting.limits import DefaultRetries, Limits
from watchkeeper.core.codec import to_builtins
from watchkeeper.core.errors import Stop
from watchkeeper.core.ids import RunContext
from watchkeeper.core.meters import METERS
from watchkeeper.core.type_tags import tag_of
from watchkeeper.core.usage import Usage
from watchkeeper.prompt.advice import Advice, Feedback
from watchkeeper.prompt.evaluation import PromptDeadlineAssigned
from watchkeeper.runtime.advice_events import EscalationTaken, ObserversRan
from watchkeeper.runtime.events import (
    RECORDED,
    ChildStarted,
    CompletionChecked,
    ContextCompacted,
    ManyEnded,
    ManyStarted,
    ModelFailed,
    ModelReplied,
    ModelSwitched,
    RunEnded,
    RunResumed,
    RunStarted,
    StoreFailed,
    WorkStopped,
)
from watchkeeper.runtime.parking import CallAnswered, CallParked
from watchkeeper.runtime.result import transcript_of
from watchkeeper.session.log import Envelope, RolledBack, SessionReset, SliceEdited, StateInherited
from watchkeeper.shield.decision import SafetyEvent
from watchkeeper.telemetry import names
from watchkeeper.telemetry.instruments import Instruments
from watchkeeper.telemetry.spans import CallSpan, OpenSpan, RunSpan, span_name, total_attributes
from watchkeeper.telemetry.values import (
    IN_EVENTS,
    ON_SPANS,
    answer,
    captured,
    definitions,
    document,
    instructions,
    nanoseconds,
    present,
    transcript,
)
from watchkeeper.tools.context import ToolInvoked, error_message

BLOCK: Final = "block"
HEX: Final = 16

VALUES: Final[Mapping[str, float]] = {"verified": 1.0, "rejected": 0.0}
"""The score of a verdict; one that could not be given has none."""


class Reader:
    """Reads the log of one run."""

    def __init__(self, run: RunSpan, runs: Mapping[str, RunSpan], instruments: Instruments) -> None:
        """Begin with nothing read.

        Args:
            run: The span of the run.
            runs: The spans of all runs that go on, by id.
            instruments: The metrics and the log.
        """
        self._run = run
        self._runs = runs
        self._instruments = instruments
        self._takes: Mapping[type, Callable[[Any, datetime], object]] = {
            RunStarted: self._started,
            ManyStarted: self._many_started,
            RunResumed: self._resumed,
            PromptDeadlineAssigned: self._deadline,
            ModelReplied: self._replied,
            ModelFailed: self._model_failed,
            ToolInvoked: self._invoked,
            ChildStarted: self._child_started,
            ObserversRan: self._observed,
            CompletionChecked: self._checked,
            SafetyEvent: self._incident,
            RunEnded: self._ended,
            ManyEnded: self._many_ended,
        }

    def take(self, envelope: Envelope) -> None:
        """Take one event."""
        event: object = envelope.event
        kind = type(event)
        known = self._takes.get(kind)
        if known is not None:
            known(event, envelope.at)
        elif kind in TOLD:
            self._tell(f"{names.EVENT}{tag_of(kind)}", TOLD[kind](event), envelope.at)
        elif kind not in RECORDED:
            self._tell(
                names.STATE,
                {"watchkeeper.state.event": tag_of(kind), "watchkeeper.state.seq": envelope.seq},
                envelope.at,
            )

    def close(self) -> None:
        """Close what the log has not told the end of; the span of a run that never began is dropped."""
        run = self._run
        if run.ended or not run.begun:
            return
        run.fail("cancelled", "The run was broken off.")
        self._close(run.clock.now())

    # --- beginnings ---------------------------------------------------------------------------------------------------

    def _started(self, event: RunStarted, at: datetime) -> None:
        run = self._run
        provider, _, model = event.model.partition(":")
        is_block = event.model == BLOCK
        operation = names.INVOKE_WORKFLOW if is_block else names.INVOKE_AGENT
        self._begun(operation, event.prompt_name, event.limits, event.limit_values, event.deadline)
        run.put(
            {
                names.AGENT_NAME: None if is_block else event.prompt_name,
                names.PROVIDER: None,
                names.REQUEST_MODEL: None if is_block else model or provider,
                names.ITEM: event.item,
                "watchkeeper.run.forked_from": None if event.forked_from is None else str(event.forked_from),
            }
        )

    def _many_started(self, event: ManyStarted, at: datetime) -> None:
        limits = event.limit_values
        deadline = self._run.scope.gate.deadline
        self._begun(
            names.INVOKE_WORKFLOW, event.prompt_name, event.limits, limits, None if deadline is None else deadline.at
        )
        self._run.put({names.ITEMS: len(event.items)})

    def _begun(self, operation: str, name: str, limits: str, values: Limits | None, deadline: datetime | None) -> None:
        run = self._run
        run.begun, run.operation = True, operation
        run.span.update_name(span_name(operation, name))
        run.put({names.OPERATION: operation, names.KIND: names.KINDS[operation], names.LIMITS: limits})
        run.put({names.WORKFLOW_NAME: name if operation == names.INVOKE_WORKFLOW else None})
        run.put({names.DEADLINE: None if deadline is None else deadline.isoformat()})
        run.put({} if values is None else limit_attributes(values))

    def _resumed(self, event: RunResumed, at: datetime) -> None:
        """Link the run to the trace in which it was interrupted."""
        run, name = self._run, ""
        earlier: RunContext | None = None
        for envelope in run.scope.session.log:
            known = envelope.event
            if isinstance(known, RunStarted | ManyStarted) and known.run_context.run_id == event.run_id:
                earlier, name = known.run_context, known.prompt_name
            elif isinstance(known, RunResumed) and known is not event and known.run_id == event.run_id:
                earlier = known.run_context or earlier
        is_many = run.plan is None
        operation = names.INVOKE_WORKFLOW if is_many else names.INVOKE_AGENT
        self._begun(operation, name, event.limits, event.limit_values, event.deadline)
        run.put({names.AGENT_NAME: None if is_many else name, names.ITEM: event.item})
        self._tell(f"{names.EVENT}run_resumed", {"watchkeeper.run.resumed_after": event.after}, at)
        link = None if earlier is None else span_context_of(earlier)
        if link is not None:
            run.span.add_link(link, {"watchkeeper.link": "resumes"})

    def _deadline(self, event: PromptDeadlineAssigned, at: datetime) -> None:
        self._run.put({names.DEADLINE: event.deadline.isoformat()})

    def _child_started(self, event: ChildStarted, at: datetime) -> None:
        """Say on the span of a child what it is for: its own log does not tell."""
        child = self._runs.get(str(event.run_context.run_id))
        facts = {names.CHILD_KIND: event.kind, names.DEPTH: event.depth}
        if child is not None:
            child.put(facts)
        else:
            self._run.children[event.run_context.run_id] = facts

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, node_id: str | None) -> CallSpan | None:
        """Return the open span of a call, which is then closed by the caller; None if there is none."""
        return None if not node_id else self._run.calls.pop(UUID(node_id).int, None)

    def _replied(self, event: ModelReplied, at: datetime) -> None:
        call = self._call(event.node_id)
        if call is None:
            return
        call.put(
            {
                names.RESPONSE_MODEL: event.model,
                names.RESPONSE_ID: event.response_id,
                names.TURN: event.turn,
            }
        )
        call.put({names.FINISH_REASONS: [event.finish]})
        where = captured()
        try:
            if where:
                content = self._content(event)
                call.put_content(content if where in ON_SPANS else {})
                if where in IN_EVENTS:
                    self._instruments.log(names.DETAILS, nanoseconds(at), {**call.attributes, **content}, call.context)
        finally:  # content is what others wrote: if it cannot be told, the call is
            call.finish(self._instruments)

    def _content(self, event: ModelReplied) -> dict[str, str]:
        plan = self._run.plan
        messages = list(transcript_of(self._run.scope.session.log))
        before = next((place for place, each in enumerate(messages) if each is event.message), len(messages))
        found = {
            names.SYSTEM_INSTRUCTIONS: instructions(messages),
            names.INPUT_MESSAGES: transcript([each for each in messages[:before] if each.role != "system"]),
            names.OUTPUT_MESSAGES: answer(event.message, event.finish),
            names.TOOL_DEFINITIONS: None if plan is None else definitions(plan.prompt.tools),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _model_failed(self, event: ModelFailed, at: datetime) -> None:
        call = self._call(event.node_id)
        if call is None:
            return
        call.put({names.TURN: event.turn, names.CALL_ATTEMPT: event.attempt})
        call.fail(event.fault, event.error)
        if not call.call.is_settled:  # it goes on somewhere, and what it really costs may come before the run's end
            self._run.calls[call.call.node.number] = call
            return
        call.finish(self._instruments)

    def _invoked(self, event: ToolInvoked, at: datetime) -> None:
        call = self._call(event.node_id)
        facts: dict[str, Any] = {names.CALL_ATTEMPT: event.attempt, names.OUTCOME: event.outcome}
        wrong = error_message(event)
        if wrong is None and not event.success:
            wrong = event.outcome
        error_type = event.outcome if event.outcome != "ok" else "tool_error"
        if call is None:
            self._never_began(event, at, facts, error_type, wrong)
            return
        call.put(facts)
        if wrong is not None:
            call.fail(error_type, wrong)
        try:
            if captured() in ON_SPANS:
                content = {
                    names.TOOL_ARGUMENTS: document(arguments_of(event)),
                    names.TOOL_RESULT: document(event.rendered_output),
                }
                call.put_content(content)
        finally:
            if call.call.is_settled:
                call.finish(self._instruments)
            else:
                self._run.calls[call.call.node.number] = call

    def _never_began(
        self, event: ToolInvoked, at: datetime, facts: dict[str, Any], error_type: str, wrong: str | None
    ) -> None:
        """Show a call that the model asked for and that was refused before the gate began it."""
        if event.node_id is not None:  # its span was closed before
            return
        first = {
            **facts,
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: event.name,
            names.TOOL_CALL_ID: event.call_id,
            names.TOOL_TYPE: "function",
            names.KIND: names.KINDS[names.EXECUTE_TOOL],
            names.RUN_ID: str(self._run.scope.run_context.run_id),
        }
        tracer = self._run.tracer
        name, began = span_name(names.EXECUTE_TOOL, event.name), nanoseconds(at)
        span = tracer.start_span(name, self._run.context, SpanKind.INTERNAL, present(first), start_time=began)
        refused = OpenSpan(names.EXECUTE_TOOL, span, at, present(first))
        refused.fail(error_type, wrong or event.outcome)
        span.end(began)

    # --- what is said of the work -------------------------------------------------------------------------------------

    def _observed(self, event: ObserversRan, at: datetime) -> None:
        for ran in event.runs:
            facts: dict[str, Any] = {
                "watchkeeper.assessment.source": ran.source,
                "watchkeeper.assessment.outcome": ran.outcome,
                "watchkeeper.assessment.error": ran.error,
                "watchkeeper.assessment.call_index": event.call_index,
                "watchkeeper.assessment.told": ran.source in event.told,
            }
            if ran.advice is not None:
                facts["watchkeeper.assessment.severity"] = ran.advice.severity
                facts["watchkeeper.assessment.summary"] = ran.advice.summary
            self._tell(names.ASSESSMENT, facts, at)
            if isinstance(ran.advice, Feedback):
                self._evaluated(ran.advice, at)

    def _evaluated(self, advice: Advice, at: datetime) -> None:
        self._evaluation(advice.source, advice.severity, None, advice.summary, at)

    def _checked(self, event: CompletionChecked, at: datetime) -> None:
        self._evaluation("completion", event.verdict, VALUES.get(event.verdict), event.explanation, at)

    def _evaluation(self, name: str, label: str, value: float | None, why: str, at: datetime) -> None:
        """Send the result of an evaluation of the run: as a log record, and on the span for those that refuse logs."""
        facts = {
            names.EVALUATION_NAME: name,
            names.EVALUATION_LABEL: label,
            names.EVALUATION_VALUE: value,
            names.EVALUATION_EXPLANATION: why,
        }
        self._tell(names.EVALUATION, facts, at)
        self._instruments.log(names.EVALUATION, nanoseconds(at), present(facts), self._run.context)

    def _incident(self, event: SafetyEvent, at: datetime) -> None:
        facts: dict[str, Any] = {
            "type": event.event_type,
            "decision": str(event.decision),
            "reason": event.reason,
            "hook": event.hook,
            "tool": event.metadata.get("tool_name"),
        }
        self._tell(names.SAFETY_EVENT, {f"{names.SAFETY_EVENT}.{name}": fact for name, fact in facts.items()}, at)

    def _tell(self, name: str, facts: Mapping[str, Any], at: datetime) -> None:
        self._run.span.add_event(name, present(facts), nanoseconds(at))

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _ended(self, event: RunEnded, at: datetime) -> None:
        run = self._run
        if event.run_id != run.scope.run_context.run_id:
            return
        run.put({names.COMPLETION: event.verdict, names.TURNS: event.turns, names.REMAINING: event.remaining_seconds})
        self._ends(event.stop, event.usage, at)

    def _many_ended(self, event: ManyEnded, at: datetime) -> None:
        self._run.put({names.ITEMS: event.items, names.ITEMS_DONE: event.done})
        self._ends(event.stop, event.usage, at)

    def _ends(self, stop: Stop | None, usage: Usage, at: datetime) -> None:
        run = self._run
        run.put(total_attributes(usage))
        if stop is not None:
            run.put(stop_attributes(stop))
            if stop.reason != "parked":
                run.fail(stop.reason, stop.message)
        self._close(at)

    def _close(self, at: datetime) -> None:
        run = self._run
        run.ended = True
        while run.calls:
            run.calls.popitem()[1].finish(self._instruments)
        run.close(at, self._instruments, {})


# --- attributes -------------------------------------------------------------------------------------------------------


def limit_attributes(limits: Limits) -> dict[str, Any]:
    """Return the limits that hold, by the names of their fields."""
    found: dict[str, Any] = {}
    for meter in METERS:
        value = getattr(limits, meter.field)
        if value is not None and not isinstance(value, DefaultRetries):
            found[f"{names.LIMIT}{meter.field}"] = float(value) if meter.measures == "money" else int(value)
    if limits.account is not None:
        found[f"{names.LIMIT}account"] = limits.account
    return found


def stop_attributes(stop: Stop) -> dict[str, Any]:
    """Return why something was stopped."""
    return {
        names.STOP_REASON: stop.reason,
        names.STOP_SOURCE: stop.source,
        names.STOP_MESSAGE: stop.message,
        names.STOP_LIMIT: stop.limit,
        names.STOP_VALUE: stop.value,
    }


def arguments_of(event: ToolInvoked) -> Any:
    """Return the arguments of a tool call as JSON-able data."""
    return event.params if isinstance(event.params, str) else to_builtins(event.params)


def span_context_of(context: RunContext) -> SpanContext | None:
    """Return the span of a run of another process; None if it had none."""
    if context.trace_id is None or context.span_id is None:
        return None
    ids = int(context.trace_id, HEX), int(context.span_id, HEX)
    return SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _switched(event: ModelSwitched) -> dict[str, Any]:
    return {
        "watchkeeper.model.from": event.from_model,
        "watchkeeper.model.to": event.to_model,
        "watchkeeper.model.reason": event.reason,
    }


def _compacted(event: ContextCompacted) -> dict[str, Any]:
    return {
        "watchkeeper.context.segment": event.segment,
        "watchkeeper.context.tokens_before": event.tokens_before,
        "watchkeeper.context.tokens_after": event.tokens_after,
        "watchkeeper.context.left_out": event.left_out,
    }


TOLD: Final[Mapping[type, Callable[[Any], Mapping[str, Any]]]] = {
    ModelSwitched: _switched,
    ContextCompacted: _compacted,
    WorkStopped: lambda event: {"watchkeeper.step": event.step, **stop_attributes(event.stop)},
    EscalationTaken: lambda event: {
        "watchkeeper.assessment.source": event.source,
        "watchkeeper.escalation.action": event.action,
        "watchkeeper.escalation.detail": event.detail,
    },
    StoreFailed: lambda event: {"watchkeeper.store.error": event.error, "watchkeeper.store.then": event.then},
    CallParked: lambda event: {names.TOOL_NAME: event.name, "watchkeeper.question": event.question},
    CallAnswered: lambda event: {},
    RolledBack: lambda event: {"watchkeeper.state.seq": event.seq},
    StateInherited: lambda event: {"watchkeeper.state.seq": event.seq},
    SessionReset: lambda event: {},
    SliceEdited: lambda event: {
        "watchkeeper.state.slice": event.slice_type.__name__,
        "watchkeeper.state.edit": event.edit,
    },
}
"""Events of the log that are events of the run's span, and what is told of each."""
