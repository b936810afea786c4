"""A collector on the loopback that takes traces, metrics and logs by OTLP over HTTP, or does not."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TAKES: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


@dataclass
class Collector:
    """What came in, by path.

    Attributes:
        status: What is answered.
        reason: What it says beside the status.
        location: Where a redirect leads; empty for none.
        talk: What it says in the body of each answer.
        unheard: How often that was not read to its end.
        answers: Cleared, requests wait until it is set.
    """

    url: str
    status: int = 200
    reason: str | None = None
    location: str = ""
    talk: bytes = b""
    unheard: int = 0
    answers: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    came: threading.Condition = field(default_factory=threading.Condition)

    def take(self, path: str, body: bytes) -> None:
        """Keep a request."""
        with self.came:
            self.requests.append((path, TAKES[path].FromString(body)))
            self.came.notify_all()

    def wait_for_span(self, name: str, seconds: float = 30) -> None:
        """Wait until a span has come in."""
        with self.came:
            assert self.came.wait_for(lambda: name in [span.name for span in self.spans], seconds)

    @property
    def spans(self) -> list[Any]:
        """All spans."""
        found = [each for path, each in self.requests if path == "/v1/traces"]
        scopes = [scope for each in found for resource in each.resource_spans for scope in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    @property
    def services(self) -> set[str]:
        """The names of the services whose spans came in."""
        found = [each for path, each in self.requests if path == "/v1/traces"]
        pairs = [pair for each in found for resource in each.resource_spans for pair in resource.resource.attributes]
        return {pair.value.string_value for pair in pairs if pair.key == "service.name"}

    @property
    def metrics(self) -> set[str]:
        """The names of all metrics."""
        found = [each for path, each in self.requests if path == "/v1/metrics"]
        scopes = [scope for each in found for resource in each.resource_metrics for scope in resource.scope_metrics]
        return {metric.name for scope in scopes for metric in scope.metrics}

    @property
    def events(self) -> list[Any]:
        """All log records."""
        found = [each for path, each in self.requests if path == "/v1/logs"]
        scopes = [scope for each in found for resource in each.resource_logs for scope in resource.scope_logs]
        return [record for scope in scopes for record in scope.log_records]


@contextmanager
def collecting(status: int = 200, *, answers: bool = True) -> Generator[Collector]:
    """Collect while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.answers.wait()
            collector.take(self.path, body)
            self.send_response(collector.status, collector.reason)
            self.send_header("Content-Length", str(len(collector.talk)))
            if collector.location:
                self.send_header("Location", f"{collector.location}{self.path}")
            self.end_headers()
            try:
                self.wfile.write(collector.talk)
            except OSError:
                with collector.came:
                    collector.unheard += 1
                    collector.came.notify_all()

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_port}", status)
    if answers:
        collector.answers.set()
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    serving.start()
    try:
        yield collector
    finally:
        collector.answers.set()
        server.shutdown()
        serving.join()
        server.server_close()


def values_of(span: Any) -> dict[str, Any]:
    """Return the attributes of a span."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
