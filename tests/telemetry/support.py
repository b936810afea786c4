"""A `Telemetry` whose spans, metrics and log records stay in memory, and what is asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from watchkeeper.telemetry import Telemetry, names

LEAVES = (names.CHAT, names.EXECUTE_TOOL)


@dataclass
class Kept:
    """Keeps what is exported."""

    sampler: Sampler | None = None
    spans_out: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    logs_out: InMemoryLogRecordExporter = field(default_factory=InMemoryLogRecordExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        self.provider = TracerProvider(sampler=self.sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.spans_out))
        self.logs = LoggerProvider(shutdown_on_exit=False)
        self.logs.add_log_record_processor(SimpleLogRecordProcessor(self.logs_out))
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(self.provider, self.meters, self.logs)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans that have ended, in the order of their ends."""
        return self.spans_out.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        """Return the one span with a name."""
        [found] = [span for span in self.spans if span.name == name]
        return found

    def of(self, operation: str) -> list[ReadableSpan]:
        """Return the spans of an operation."""
        return [span for span in self.spans if attributes(span).get(names.OPERATION) == operation]

    @property
    def leaves(self) -> list[ReadableSpan]:
        """The spans of calls."""
        return [span for span in self.spans if attributes(span).get(names.OPERATION) in LEAVES]

    @property
    def points(self) -> dict[str, list[Any]]:
        """The data points of each metric."""
        data = self.reader.get_metrics_data()
        found = (
            []
            if data is None
            else [
                metric
                for resource in data.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            ]
        )
        return {metric.name: list(metric.data.data_points) for metric in found}

    @property
    def records(self) -> list[Any]:
        """The log records."""
        return [each.log_record for each in self.logs_out.get_finished_logs()]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[str, str]:
    """Return the trace and the span id."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def parent_id(span: ReadableSpan) -> str | None:
    """Return the id of the span above."""
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def is_below(span: ReadableSpan, above: ReadableSpan) -> bool:
    """Return whether a span stands directly below another one."""
    return parent_id(span) == ids(above)[1] and ids(span)[0] == ids(above)[0]


def events_of(span: ReadableSpan, name: str) -> list[dict[str, Any]]:
    """Return the attributes of the events of a span that have a name."""
    return [dict(event.attributes or {}) for event in span.events if event.name == name]


def total(spans: Sequence[ReadableSpan], *wanted: str) -> float:
    """Return the sum of attributes over spans."""
    return sum(float(attributes(span).get(name, 0)) for span in spans for name in wanted)
