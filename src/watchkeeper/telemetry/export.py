"""Sends telemetry to a collector by OTLP, as the standard ``OTEL_*`` variables say; for the command line.

Everything is sent from threads beside the run, which never waits for them. At the end what is left is sent in a bounded
time; what could not be sent is counted, and told in one sentence. The messages of OpenTelemetry's own loggers are kept
out of the terminal: the last one is the reason in that sentence.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from opentelemetry import _logs, metrics, trace
from opentelemetry._logs import NoOpLoggerProvider
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, ConsoleLogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.util.re import parse_env_headers
from requests import PreparedRequest, RequestException, Response, Session
from requests.exceptions import ConnectionError, ProxyError, ReadTimeout, SSLError
from urllib3.exceptions import ProtocolError

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.quantities import counted
from watchkeeper.core.secrets import hold, hold_headers, hold_url, redacted
from watchkeeper.core.text import one_line
from watchkeeper.core.workers import BlockingCall
from watchkeeper.telemetry.telemetry import Telemetry

FLUSH_SECONDS: Final = 3.0
"""How long the end waits until what is left is sent, all signals together."""

UNITS: Final = {"traces": "span", "metrics": "metrics", "logs": "log record"}
SIGNALS: Final = tuple(UNITS)
EXPORTERS: Final = ("otlp", "console", "none")
PROTOCOL: Final = "http/protobuf"
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
USUAL_ENDPOINT: Final = "http://localhost:4318"
SCHEMES: Final = ("http", "https")
LONGEST_REASON: Final = 200

MOST_ANSWER_BYTES: Final = 16 * 1024
ANSWER_SECONDS: Final = 10.0
"""How much of a collector's answer is read, and how long; OpenTelemetry reads it to its end, in memory."""

PROVIDED: Final = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_"
"""Variables that begin so and end with ``CREDENTIAL_PROVIDER`` name code that provides an exporter's session."""


class Target(NamedTuple):
    """Where a signal goes.

    Attributes:
        address: Scheme and host; the rest may hold a key.
        variable: The variable that names it, or would.
    """

    address: str
    variable: str


HERE: Final = Target("standard error", "")
"""Of a signal that is not sent by OTLP."""


class Tally:
    """Counts what was to be sent of one signal, and what was sent.

    Attributes:
        unanswered: Why the last request got no answer, and what to do, in words; empty if it got one.
    """

    def __init__(self, unit: str, target: Target) -> None:
        """Begin with nothing; ``unit`` is what is counted, in the singular, and ``target`` where it goes."""
        self.unit = unit
        self.target = target
        self.made = self.sent = 0
        self.is_failing = False
        self.unanswered = ""

    def note(self, count: int, result: Any) -> Any:
        """Take note of the result of an export, and return it."""
        self.is_failing = getattr(result, "name", "") != "SUCCESS"
        if not self.is_failing:
            self.sent += count
        return result

    @property
    def lost(self) -> str:
        """What was not sent, in words; empty if all was."""
        if self.unit == "metrics":
            return "the metrics" if self.is_failing else ""
        left = self.made - self.sent
        return counted(left, self.unit) if left > 0 else ""


class _CountSpans(SpanProcessor):
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def on_end(self, span: ReadableSpan) -> None:
        """Count a span that is to be sent."""
        if span.context is not None and span.context.trace_flags.sampled:
            self._tally.made += 1


class _CountRecords(LogRecordProcessor):
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def on_emit(self, log_record: Any) -> None:
        """Count a record."""
        self._tally.made += 1

    def shutdown(self) -> None:
        """Do nothing."""

    def force_flush(self, timeout_millis: int = 0) -> bool:
        """Do nothing."""
        return True


def counting(exporter: Any, tally: Tally) -> Any:
    """Return an exporter whose results are counted."""
    export = exporter.export

    def counted_export(batch: Any, *args: Any, **more: Any) -> Any:
        count = len(cast("Sequence[object]", batch)) if isinstance(batch, list | tuple) else 1
        return tally.note(count, export(batch, *args, **more))

    exporter.export = counted_export
    return exporter


class Reasons(logging.Handler):
    """Keeps the last message of OpenTelemetry's loggers, in place of printing it."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message, unless it only says that there is an end."""
        said = record.getMessage()
        if "shutdown" not in said.lower():
            self.last = redacted(said)


class _Sending(Session):
    """Sends one signal, and reads only the beginning of an answer."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally
        self.hooks["response"].append(beginning_of)

    def send(self, request: PreparedRequest, **more: Any) -> Response:
        """Send a request, and take note of why nothing answered; while it is under way, what was noted before holds."""
        try:
            answer = super().send(request, **more)
        except RequestException as error:
            self._tally.unanswered = silence_of(error, self._tally.target.variable)
            raise
        self._tally.unanswered = ""
        return answer


def silence_of(error: RequestException, variable: str) -> str:
    """Return why a request got no answer, and what to do, in words; empty if another error says more."""
    yours = f"set {variable} to the address of yours"
    if isinstance(error, ReadTimeout):
        return f"it took the connection and gave no answer, so look at the collector, or {yours}"
    if isinstance(error, SSLError):
        return f"no secure connection to it could be made, so set OTEL_EXPORTER_OTLP_CERTIFICATE, or {yours}"
    if isinstance(error, ProxyError):
        return f"the proxy of HTTP_PROXY or HTTPS_PROXY passed nothing on, so name the host in NO_PROXY, or {yours}"
    if not isinstance(error, ConnectionError):
        return ""
    if error.args and isinstance(error.args[0], ProtocolError):
        return f"what answers there speaks no OTLP over HTTP, whose usual port is 4318, so {yours}"
    return f"nothing answered there, so start a collector, or {yours}"


def session_for(tally: Tally, environ: Mapping[str, str]) -> Session | None:
    """Return a session for the exporter of a signal; None if the environment names code that provides it."""
    if any(name.startswith(PROVIDED) and name.endswith("CREDENTIAL_PROVIDER") for name in environ):
        return None
    return _Sending(tally)


def beginning_of(response: Response, *args: object, **more: object) -> Response:
    """Return a response with as much of its body as a collector may need to say why it refuses.

    Raises:
        RequestException: If it is a redirect: the data went nowhere.
    """
    with response:
        if response.is_redirect:
            raise RequestException(f"the collector answered {response.status_code}, a redirect, which is not followed")
        body, until = bytearray(), SYSTEM_CLOCK.monotonic() + ANSWER_SECONDS
        for byte in response.iter_content(1):  # more at once would be waited for
            body += byte
            if len(body) >= MOST_ANSWER_BYTES or SYSTEM_CLOCK.monotonic() > until:
                break
        short = Response()
        for name in ("status_code", "reason", "headers", "url", "request", "encoding", "elapsed"):
            setattr(short, name, getattr(response, name))
        short.raw = BytesIO(body)
        return short


class Export:
    """Telemetry on its way to a collector.

    Attributes:
        telemetry: Makes it.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Begin to send.

        Args:
            environ: The environment, with the variables of OpenTelemetry.

        Raises:
            ConfigurationError: If they ask for what there is not here.
        """
        kinds = {signal: exporter_of(environ, signal) for signal in SIGNALS}
        hold_credentials(environ)
        self._reasons = Reasons()
        theirs = logging.getLogger("opentelemetry")
        theirs.addHandler(self._reasons)
        theirs.propagate = False
        sent = [signal for signal in SIGNALS if kinds[signal] == "otlp"]
        for signal in sent:
            refuse_headers(environ, signal)
        targets = {signal: target_of(environ, signal) if signal in sent else HERE for signal in SIGNALS}
        self._tallies = [Tally(unit, targets[signal]) for signal, unit in UNITS.items()]
        self._environ = environ
        self._flushes: list[tuple[Tally, Callable[[], object]]] = []
        self._ends: list[Callable[[], object]] = []
        named = environ.get("OTEL_SERVICE_NAME") or f"{SERVICE_NAME}=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({} if named else {SERVICE_NAME: "watchkeeper"})
        try:
            tracers, meters = self._tracers(kinds["traces"], resource), self._meters(kinds["metrics"], resource)
            self.telemetry = Telemetry(tracers, meters, self._loggers(kinds["logs"], resource))
        except (RuntimeError, ValueError) as error:  # a name or a number of a variable that the SDK refuses
            raise ConfigurationError(f"the export of telemetry: {one_line(str(error), LONGEST_REASON)}") from error
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # what the agent's own code traces
            trace.set_tracer_provider(tracers)

    def _exporter(self, kind: str, tally: Tally, otlp: Callable[..., Any], console: Callable[..., Any]) -> Any:
        made = otlp(session=session_for(tally, self._environ)) if kind == "otlp" else console(out=sys.stderr)
        return counting(made, tally)

    def _tracers(self, kind: str, resource: Resource) -> trace.TracerProvider:
        if kind == "none":
            return trace.NoOpTracerProvider()
        tally = self._tallies[0]
        exporter = self._exporter(kind, tally, OTLPSpanExporter, ConsoleSpanExporter)
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(_CountSpans(tally))
        provider.add_span_processor(BatchSpanProcessor(exporter))
        self._flushes.append((tally, provider.force_flush))
        self._ends += [exporter.shutdown, provider.shutdown]
        return provider

    def _meters(self, kind: str, resource: Resource) -> metrics.MeterProvider:
        if kind == "none":
            return NoOpMeterProvider()
        tally = self._tallies[1]
        exporter = self._exporter(kind, tally, OTLPMetricExporter, ConsoleMetricExporter)
        provider = MeterProvider([PeriodicExportingMetricReader(exporter)], resource, shutdown_on_exit=False)
        self._flushes.append((tally, provider.force_flush))
        self._ends += [exporter.shutdown, provider.shutdown]
        return provider

    def _loggers(self, kind: str, resource: Resource) -> _logs.LoggerProvider:
        if kind == "none":
            return NoOpLoggerProvider()
        tally = self._tallies[2]
        exporter = self._exporter(kind, tally, OTLPLogExporter, ConsoleLogRecordExporter)
        provider = LoggerProvider(resource, shutdown_on_exit=False)
        provider.add_log_record_processor(_CountRecords(tally))
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        self._flushes.append((tally, provider.force_flush))
        self._ends += [exporter.shutdown, provider.shutdown]
        return provider

    def finish(self) -> str:
        """Send what is left, in a bounded time; return what was not sent, and why, in one line; empty if all was."""
        began, seconds = SYSTEM_CLOCK.monotonic(), FLUSH_SECONDS
        for tally, sending in [(tally, BlockingCall(flush)) for tally, flush in self._flushes]:
            sending.wait(max(seconds - (SYSTEM_CLOCK.monotonic() - began), 0.0), SYSTEM_CLOCK)
            tally.is_failing |= sending.leave()
        failed = [tally for tally in self._tallies if tally.lost]
        for end in self._ends:  # what still tries gives up; beside us, because a connection may hang
            BlockingCall(end)
        if not failed:
            return ""
        unanswered = next((tally.unanswered for tally in failed if tally.unanswered), "")
        reason = unanswered or one_line(self._reasons.last, LONGEST_REASON) or f"no answer within {seconds:g} s"
        where = dict.fromkeys(tally.target.address for tally in failed)
        return f"not exported to {listed([*where])}: {listed([tally.lost for tally in failed])}; {reason}"


def listed(words: Sequence[str]) -> str:
    """Return words with commas and an and."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def hold_credentials(environ: Mapping[str, str]) -> None:
    """Register the values of headers and the credentials of addresses, of all signals, as the variables name them.

    Values are percent-encoded there; what is sent, and what a collector may repeat, is decoded.
    """
    for signal in ("", *(f"{signal.upper()}_" for signal in SIGNALS)):
        hold_url(environ.get(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT"))
        for part in environ.get(f"OTEL_EXPORTER_OTLP_{signal}HEADERS", "").split(","):
            name, _, value = part.partition("=")
            hold_headers({unquote(name).strip(): unquote(value).strip()})
            hold(value.strip(), unquote(value).strip())


def refuse_headers(environ: Mapping[str, str], signal: str) -> None:
    """Refuse headers of a signal that OpenTelemetry would leave out, or that no request can have.

    Raises:
        ConfigurationError: If there is one; it is not repeated, because it may be a key.
    """
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_HEADERS"
    variable = own if environ.get(own) else "OTEL_EXPORTER_OTLP_HEADERS"
    for number, part in enumerate(environ.get(variable, "").split(","), 1):
        if not part.strip():
            continue
        fields = [text for pair in parse_env_headers(part, liberal=True).items() for text in pair]
        if not fields or not all(text.isprintable() and text.isascii() for text in fields):
            raise ConfigurationError(
                f"part {number} of {variable} is no header that can be sent; "
                "write NAME=VALUE, with commas between and other characters as %XX"
            )


def target_of(environ: Mapping[str, str], signal: str) -> Target:
    """Return where a signal goes by OTLP.

    Raises:
        ConfigurationError: If that is no address; it is not repeated, because it may hold a key.
    """
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
    variable = own if environ.get(own) else ENDPOINT
    url = environ.get(variable) or USUAL_ENDPOINT
    with suppress(ValueError):
        parts = urlsplit(url)
        good = parts.scheme in SCHEMES and parts.hostname and parts.port != 0
        if good and " " not in url and url.isprintable():
            return Target(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", variable)
    raise ConfigurationError(f"{variable} is no address that can be sent to; write for example {USUAL_ENDPOINT}")


def exporter_of(environ: Mapping[str, str], signal: str) -> str:
    """Return where a signal goes: ``otlp``, ``console`` or ``none``.

    Raises:
        ConfigurationError: If the variables name another exporter, or another protocol.
    """
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    chosen = environ.get(variable, "").strip().lower() or "otlp"
    if chosen not in EXPORTERS:
        raise ConfigurationError(f"{variable}={environ[variable]!r} must be otlp, console or none")
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
    name = own if environ.get(own) else "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = environ.get(name, "").strip().lower() or PROTOCOL
    if chosen == "otlp" and protocol != PROTOCOL:
        raise ConfigurationError(
            f"{name}={environ[name]!r} is not supported here: set it to {PROTOCOL}, whose usual port is 4318"
        )
    return chosen
