"""The metrics of the GenAI conventions, and the events that are sent as log records too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import _logs, metrics
from opentelemetry.context import Context

from watchkeeper.telemetry import names

METRIC_ATTRIBUTES: Final = (
    names.OPERATION,
    names.PROVIDER,
    names.REQUEST_MODEL,
    names.RESPONSE_MODEL,
    names.TOOL_NAME,
    names.TOOL_TYPE,
    names.AGENT_NAME,
    names.WORKFLOW_NAME,
    names.ERROR_TYPE,
)
"""Attributes of a span that its metrics have too: few values each, so that no series is made for every run."""

BY_OPERATION: Final[Mapping[str, frozenset[str]]] = {
    names.CHAT: frozenset(METRIC_ATTRIBUTES[:4] + METRIC_ATTRIBUTES[8:]),
    names.EXECUTE_TOOL: frozenset((names.TOOL_NAME, names.TOOL_TYPE, names.ERROR_TYPE)),
    names.INVOKE_AGENT: frozenset((names.AGENT_NAME, names.REQUEST_MODEL, names.ERROR_TYPE)),
    names.INVOKE_WORKFLOW: frozenset((names.WORKFLOW_NAME, names.ERROR_TYPE)),
}


class Instruments:
    """The histograms of one meter, and a logger for events."""

    def __init__(self, meter: metrics.Meter, logger: _logs.Logger) -> None:
        """Create the instruments."""
        self._logger = logger

        def seconds(name: str, said: str, bounds: tuple[float, ...]) -> metrics.Histogram:
            return meter.create_histogram(name, "s", said, explicit_bucket_boundaries_advisory=bounds)

        self._durations = {
            names.CHAT: seconds(names.OPERATION_DURATION, "Duration of a model call.", names.DURATION_BOUNDS),
            names.EXECUTE_TOOL: seconds(names.TOOL_DURATION, "Duration of a tool call.", names.DURATION_BOUNDS),
            names.INVOKE_AGENT: seconds(names.AGENT_DURATION, "Duration of a run.", names.AGENT_BOUNDS),
            names.INVOKE_WORKFLOW: seconds(
                names.WORKFLOW_DURATION, "Duration of a run over many items.", names.WORKFLOW_BOUNDS
            ),
        }
        self._tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            "{token}",
            "Tokens of a model call, as its provider reported them.",
            explicit_bucket_boundaries_advisory=names.TOKEN_BOUNDS,
        )

    def measure(
        self, operation: str, seconds: float, attributes: Mapping[str, Any], context: Context, tokens: Mapping[str, int]
    ) -> None:
        """Record how long an operation took, and the tokens that its provider reported.

        Args:
            operation: ``chat``, ``execute_tool``, ``invoke_agent`` or ``invoke_workflow``.
            seconds: From its start to its end.
            attributes: Those of its span.
            context: Has its span, to which the backend can link the value.
            tokens: Numbers of tokens by type, ``input`` or ``output``.
        """
        known = BY_OPERATION[operation]
        own = {name: value for name, value in attributes.items() if name in known}
        self._durations[operation].record(max(seconds, 0.0), own, context)
        for kind, count in tokens.items():
            self._tokens.record(count, {**own, names.TOKEN_TYPE: kind}, context)

    def log(self, name: str, at: int, attributes: Mapping[str, Any], context: Context) -> None:
        """Send an event as a log record under the span of a context."""
        self._logger.emit(timestamp=at, context=context, attributes=attributes, event_name=name)
