"""What is known of a span that is open: one of a run, or of a call.

A run's span begins and ends with the run. A call's begins and ends at the gate; if the call is one of the loop, it is
closed when the run's log tells how the call ended, because that event has what the span says of the reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from watchkeeper.accounting.call_request import NO_TOKENS, CallRequest, Charge
from watchkeeper.containment.tracing import TracedCall
from watchkeeper.core.clock import Clock
from watchkeeper.core.model import ModelSettings
from watchkeeper.core.trace.place import Place
from watchkeeper.core.usage import NANOS_PER_USD, TokenUsage, Usage
from watchkeeper.runtime.plan import RunPlan, RunScope
from watchkeeper.telemetry import names
from watchkeeper.telemetry.instruments import Instruments
from watchkeeper.telemetry.values import IN_PROCESS, nanoseconds, present, provider_name, text
from watchkeeper.tools.tool import Tool

FAILED: Final = frozenset({"error", "timeout", "aborted", "halted"})
"""Statuses of a call whose span is an error."""

LOST: Final = "aborted"
"""The status of a span whose end is not told."""


@dataclass(slots=True, eq=False)
class OpenSpan:
    """A span that is open.

    Attributes:
        operation: The operation of the conventions that it is for.
        span: The span.
        began: When it began.
        attributes: What was set on it so far.
    """

    operation: str
    span: trace.Span
    began: datetime
    attributes: dict[str, Any]

    @property
    def context(self) -> contexts.Context:
        """A context in which the span is current."""
        return trace.set_span_in_context(self.span, contexts.Context())

    def put(self, attributes: dict[str, Any]) -> None:
        """Set the attributes that have a value."""
        given = present(attributes)
        self.attributes.update(given)
        self.span.set_attributes(given)

    def put_content(self, content: dict[str, str]) -> None:
        """Set content, whose size is bounded by what made it."""
        self.span.set_attributes(content)

    def fail(self, error_type: str, said: str) -> None:
        """Mark it as an error."""
        self.put({names.ERROR_TYPE: error_type})
        self.span.set_status(Status(StatusCode.ERROR, text(said)))

    def close(self, at: datetime, instruments: Instruments, tokens: dict[str, int]) -> None:
        """End it, and record its metrics; ``tokens``: those that a provider reported for it, by type."""
        seconds = (at - self.began).total_seconds()
        instruments.measure(self.operation, seconds, self.attributes, self.context, tokens)
        self.span.end(nanoseconds(at))


@dataclass(slots=True, eq=False, kw_only=True)
class RunSpan(OpenSpan):
    """The span of a run.

    Attributes:
        scope: The scope of the run.
        plan: Its plan; None for a run over many items.
        tracer: Makes spans.
        begun: Whether its log tells that it began; else it was refused, and has no span.
        ended: Whether its span is closed.
        calls: Its calls whose spans are open, by number.
        children: What is known of children whose spans have not begun, by the ids of their runs.
    """

    scope: RunScope
    plan: RunPlan[Any] | None
    tracer: trace.Tracer
    begun: bool = False
    ended: bool = False
    calls: dict[int, CallSpan] = field(default_factory=dict[int, "CallSpan"])
    children: dict[UUID, dict[str, Any]] = field(default_factory=dict[UUID, dict[str, Any]])

    @property
    def clock(self) -> Clock:
        """The clock of the run."""
        return self.scope.clock

    def tool(self, name: str) -> Tool | None:
        """Return the tool of this name that its prompt offers."""
        tools = () if self.plan is None else self.plan.prompt.tools
        return next((tool for tool in tools if tool.name == name), None)

    def settings(self, label: str) -> ModelSettings | None:
        """Return how one of its models is asked, given its label."""
        models = () if self.plan is None else self.plan.models
        return next((model.settings for model in models if model.label == label), None)


@dataclass(slots=True, eq=False, kw_only=True)
class CallSpan(OpenSpan):
    """The span of a call.

    Attributes:
        call: The call at the gate.
        run: The span of the run in which it is made; None outside of runs.
        charge: What was charged, once it has ended.
        ended_at: When its work had ended.
    """

    call: TracedCall
    run: RunSpan | None
    charge: Charge | None = None
    ended_at: datetime | None = None

    def settle(self) -> dict[str, int]:
        """Say what the call was charged; return the tokens that its provider reported, by type."""
        charge, ending = self.charge or Charge(), self.call.node.ending
        if ending is None:
            return {}
        tokens, cost = charge.tokens, charge.cost_nanos
        reported = charge.reported
        if ending.tokens != tokens or ending.cost_nanos != cost:  # its true figures came after its end
            tokens, cost, reported = ending.tokens, ending.cost_nanos, None
        certain = tokens if reported is None else reported
        self.put(usage_attributes(certain) if self.operation == names.CHAT else {})
        assumed_in = tokens.input_tokens - certain.input_tokens
        assumed_out = tokens.output_tokens - certain.output_tokens
        is_hint = not self.call.request.on_log and not charge.presumed.calls
        amount = None if cost is None or (not cost and self.operation != names.CHAT) else cost / NANOS_PER_USD
        if reported is None:
            self.put({names.COST: amount})
        elif is_hint:
            figures = (names.HINT_INPUT, assumed_in), (names.HINT_OUTPUT, assumed_out), (names.HINT_COST, amount)
            self.put({name: figure or None for name, figure in figures})
        else:
            self.put({names.PRESUMED_INPUT: assumed_in, names.PRESUMED_OUTPUT: assumed_out})
            self.put({names.PRESUMED_COST: amount})
        self.put({names.STATUS: ending.status})
        if self.operation != names.CHAT or certain == NO_TOKENS:
            return {}
        return {"input": certain.input_tokens, "output": certain.output_tokens}

    def finish(self, instruments: Instruments) -> None:
        """Close it, with what the gate knows."""
        ending, tokens = self.call.node.ending, self.settle()
        status = LOST if ending is None else ending.status
        if status in FAILED and names.ERROR_TYPE not in self.attributes:
            reason = None if ending is None else ending.stop_reason
            said = None if ending is None else ending.error
            self.fail(reason or error_type_of(said) or status, said or reason or status)
        at = self.ended_at or (self.run.clock.now() if self.run is not None else self.began)
        self.close(at, instruments, tokens)


def error_type_of(said: str | None) -> str | None:
    """Return the name of an error's class from its text."""
    head = (said or "").partition(":")[0]
    return head if head.isidentifier() else None


def usage_attributes(tokens: TokenUsage) -> dict[str, Any]:
    """Return what a provider reported, as the conventions name it."""
    if tokens == NO_TOKENS:
        return {}
    return {
        names.INPUT_TOKENS: tokens.input_tokens,
        names.OUTPUT_TOKENS: tokens.output_tokens,
        names.CACHE_READ: tokens.cached_tokens or None,
        names.CACHE_WRITE: tokens.cache_write_tokens or None,
        names.CACHE_CREATION: tokens.cache_write_tokens or None,
        names.REASONING: tokens.reasoning_tokens or None,
    }


def total_attributes(usage: Usage) -> dict[str, Any]:
    """Return what a run and all below it have used; never under the names of single calls."""
    presumed = usage.presumed
    figures: dict[str, Any] = {
        "input_tokens": usage.tokens.input_tokens,
        "output_tokens": usage.tokens.output_tokens,
        "cost_usd": None if usage.cost_nanos is None else usage.cost_nanos / NANOS_PER_USD,
        "model_calls": usage.model_calls,
        "tool_calls": usage.tool_calls,
        "steps": usage.steps,
        "retries": usage.retries,
        "presumed_calls": presumed.calls or None,
        "presumed_tokens": presumed.tokens.total or None,
    }
    return {f"{names.TOTAL}{name}": figure for name, figure in figures.items()}


# --- what a span begins with ------------------------------------------------------------------------------------------


def call_begins(call: TracedCall, run: RunSpan | None) -> tuple[str, str, SpanKind, dict[str, Any]]:
    """Return the operation of a call, the name of its span, its kind and its first attributes."""
    request = call.request
    first: dict[str, Any] = {names.NODE_ID: call.node.node_id, names.CALL_ATTEMPT: 2 if request.retry else None}
    if run is not None:
        first |= {names.RUN_ID: str(run.scope.run_context.run_id)}
    if request.kind == "llm":
        return _model_call(call, run, first)
    tool = None if run is None or not request.on_log else run.tool(request.operation_name)
    first |= {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL_NAME: request.operation_name,
        names.TOOL_TYPE: "function",
        names.TOOL_CALL_ID: request.call_id,
        names.TOOL_DESCRIPTION: None if tool is None else tool.spec.description,
        names.AGENT_NAME: None if run is None else run.attributes.get(names.AGENT_NAME),
        names.KIND: names.KINDS[names.EXECUTE_TOOL],
    }
    return names.EXECUTE_TOOL, _named(names.EXECUTE_TOOL, request.operation_name), SpanKind.INTERNAL, first


def _model_call(
    call: TracedCall, run: RunSpan | None, first: dict[str, Any]
) -> tuple[str, str, SpanKind, dict[str, Any]]:
    request = call.request
    provider, model = model_of(request)
    settings = None if run is None else run.settings(request.model)
    first |= {
        names.OPERATION: names.CHAT,
        names.PROVIDER: provider_name(provider),
        names.REQUEST_MODEL: model,
        names.MAX_TOKENS: call.max_output_tokens or None,
        names.CONVERSATION: None if run is None else str(run.scope.run_context.session_id),
        names.LANDING: request.phase == "landing" or None,
        names.KIND: names.KINDS[names.CHAT],
    }
    if settings is not None:
        first |= {names.TEMPERATURE: settings.temperature, names.TOP_P: settings.top_p, names.SEED: settings.seed}
        first |= {names.STREAM: True if run is not None and run.plan is not None and run.plan.on_delta else None}
    kind = SpanKind.INTERNAL if provider in IN_PROCESS else SpanKind.CLIENT
    return names.CHAT, _named(names.CHAT, model), kind, first


def model_of(request: CallRequest) -> tuple[str, str]:
    """Return provider and model of a model call."""
    if request.on_log:
        return request.model.partition(":")[0], request.operation_name
    return request.provider or "unknown", request.model or request.operation_name


def _named(operation: str, name: str) -> str:
    return f"{operation} {text(name, 200)}" if name else operation


def span_name(operation: str, name: str) -> str:
    """Return the name of a span."""
    return _named(operation, name)


def place_of(span: trace.Span, run_id: str) -> Place:
    """Return a span as the place of the code that runs in it."""
    found = span.get_span_context()
    return Place(f"{found.trace_id:032x}", f"{found.span_id:016x}", run_id, int(found.trace_flags))
