"""OpenTelemetry for runs: `Telemetry` makes spans, metrics and events of what runs and their calls do.

It subscribes to the log of each run, which tells what happened, and is the tracer of the run's gate, which tells when
the work of a call begins and ends: so the span of a call is current while its work runs, and what the user's own code
traces there stands below it. Spans have the ids that the run's record names, if the provider is that of the SDK.

Nothing here may fail a run, change it or wait: what goes wrong is logged once, and the run goes on without it.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from functools import partial
from importlib.metadata import version
from typing import Any, Final, NamedTuple, cast

from opentelemetry import _logs, metrics, trace
from opentelemetry import context as contexts
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, TraceFlags

from watchkeeper.accounting.call_request import Charge
from watchkeeper.containment.tracing import TracedCall
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.ids import RunContext
from watchkeeper.core.text import error_text, logger
from watchkeeper.core.trace.place import HERE, Place
from watchkeeper.runtime.plan import RunPlan, RunScope
from watchkeeper.session.log import Envelope
from watchkeeper.telemetry import names
from watchkeeper.telemetry.instruments import Instruments
from watchkeeper.telemetry.reading import Reader
from watchkeeper.telemetry.spans import CallSpan, RunSpan, call_begins, place_of
from watchkeeper.telemetry.values import nanoseconds, present

HEX: Final = 16

_RUN: Final[ContextVar[RunSpan | None]] = ContextVar("watchkeeper_run_span", default=None)
"""The run that is traced and that the running code is in."""


class Entered(NamedTuple):
    """What is put back when a call is left."""

    current: Token[contexts.Context]
    here: Token[Place | None]


class GivenIds:
    """An id generator whose next ids can be given: the span of a run has the ids that the run's record names."""

    def __init__(self, usual: Any) -> None:
        """Take the other ids from the usual generator."""
        self._usual = usual
        self._given = threading.local()

    @contextmanager
    def given(self, context: RunContext) -> Generator[None]:
        """Give the ids of a run to the span that is begun in the block, on this thread."""
        self._given.ids = int(context.trace_id or "0", HEX), int(context.span_id or "0", HEX)
        try:
            yield
        finally:
            self._given.ids = None

    def generate_trace_id(self) -> int:
        """Return the trace id that was given, or a random one."""
        ids: tuple[int, int] | None = getattr(self._given, "ids", None)
        return ids[0] if ids is not None and ids[0] else cast("int", self._usual.generate_trace_id())

    def generate_span_id(self) -> int:
        """Return the span id that was given, or a random one."""
        ids: tuple[int, int] | None = getattr(self._given, "ids", None)
        return ids[1] if ids is not None and ids[1] else cast("int", self._usual.generate_span_id())

    def is_trace_id_random(self) -> bool:
        """Return whether trace ids are random as the W3C's flag for it says; ours are."""
        told = getattr(self._usual, "is_trace_id_random", None)  # newer versions of the SDK ask
        return bool(told()) if told is not None else False


class Telemetry:
    """Makes OpenTelemetry spans, metrics and events of runs; one serves any number of runs and threads."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        logger_provider: _logs.LoggerProvider | None = None,
    ) -> None:
        """Send to these providers.

        Args:
            tracer_provider: Where spans go; by default the global provider of the process, as for the other two.
            meter_provider: Where metrics go.
            logger_provider: Where events go that are sent as log records.
        """
        self._given = tracer_provider
        self._meters, self._loggers = meter_provider, logger_provider
        self._provider: trace.TracerProvider | None = None
        self._ids: GivenIds | None = None
        self._lock = threading.Lock()
        self._runs: dict[str, RunSpan] = {}
        self._outside: dict[int, CallSpan] = {}
        self._has_failed = False
        self._set_up()

    def _set_up(self) -> None:
        """Get tracer and instruments of the providers, which the program may set after this was made."""
        provider = self._given or trace.get_tracer_provider()
        if provider is self._provider:
            return
        own = version("watchkeeper")
        tracer: Any = provider.get_tracer(names.SCOPE, own)
        meters, loggers = self._meters or metrics.get_meter_provider(), self._loggers or _logs.get_logger_provider()
        self._ids = None
        if hasattr(tracer, "id_generator"):  # a tracer of the SDK, and our own: each call makes a new one
            self._ids = tracer.id_generator = GivenIds(tracer.id_generator)
        self._tracer: trace.Tracer = tracer
        self._instruments = Instruments(meters.get_meter(names.SCOPE, own), loggers.get_logger(names.SCOPE, own))
        self._provider = provider

    # --- calls: the tracer of the gate --------------------------------------------------------------------------------

    def enter(self, call: TracedCall) -> Entered | None:
        """Begin the span of a call and make it current; a run that is started has one of its own."""
        if call.request.kind == "child":
            return None
        try:
            return self._enter(call, _RUN.get())
        except Exception as error:
            self._failed(error)
            return None

    def _enter(self, call: TracedCall, run: RunSpan | None) -> Entered:
        now = (SYSTEM_CLOCK if run is None else run.clock).now()
        operation, name, kind, first = call_begins(call, run)
        first = present(first)
        span = self._tracer.start_span(name, kind=kind, attributes=first, start_time=nanoseconds(now))
        made = CallSpan(operation, span, now, first, call=call, run=run)
        calls = self._outside if run is None or run.ended else run.calls
        calls[call.node.number] = made
        run_id = "" if run is None else str(run.scope.run_context.run_id)
        return Entered(contexts.attach(trace.set_span_in_context(span)), HERE.set(place_of(span, run_id)))

    def leave(self, entered: Entered) -> None:
        """Make current again what was current before a call."""
        try:
            HERE.reset(entered.here)
        except ValueError:  # a coroutine closed by the collector: its context is not here to be restored
            return
        contexts.detach(entered.current)

    def ended(self, call: TracedCall, charge: Charge) -> None:
        """Take note of how a call ended; close its span, unless the log of its run is to tell more of it."""
        try:
            run = _RUN.get()
            owner = run.calls if run is not None and call.node.number in run.calls else self._owner_of(call)
            made = owner.get(call.node.number)
            if made is None:
                return
            made.charge = charge
            made.ended_at = (SYSTEM_CLOCK if made.run is None else made.run.clock).now()
            awaited = made.run is not None and not made.run.ended and (call.request.on_log or not call.is_settled)
            if not awaited and owner.pop(call.node.number, None) is not None:
                made.finish(self._instruments)
        except Exception as error:
            self._failed(error)

    def _owner_of(self, call: TracedCall) -> dict[int, CallSpan]:
        """Return the calls among which one is that ends in the context of other code than began it."""
        for run in list(self._runs.values()):
            if call.node.number in run.calls:
                return run.calls
        return self._outside

    # --- runs: the subscriber of their logs ---------------------------------------------------------------------------

    @contextmanager
    def following(self, run: RunScope, plan: RunPlan[Any] | None = None) -> Generator[None]:
        """Follow the log of a run while the block runs; its span is current in it."""
        run_id = str(run.run_context.run_id)
        known = self._runs.get(run_id)
        if known is not None:
            known.plan = known.plan or plan
            yield
            return
        span = self._begin(run, plan)
        if span is None:
            yield
            return
        self._runs[run_id] = span
        reader = Reader(span, self._runs, self._instruments)
        unsubscribe = run.session.dispatcher.subscribe_all(partial(self._take, reader))
        current, inside = contexts.attach(trace.set_span_in_context(span.span)), _RUN.set(span)
        try:
            yield
        finally:
            self._runs.pop(run_id, None)
            run.session.flush()  # another thread may be forwarding the last events now
            unsubscribe()
            self._end(reader, current, inside)

    def _end(self, reader: Reader, current: Token[contexts.Context], inside: Token[RunSpan | None]) -> None:
        """Close what is open, and make current again what was current before the run."""
        try:
            reader.close()
        except Exception as error:
            self._failed(error)
        try:
            _RUN.reset(inside)
        except ValueError:  # it was closed by the collector: its context is not here to be restored
            return
        contexts.detach(current)

    def _begin(self, run: RunScope, plan: RunPlan[Any] | None) -> RunSpan | None:
        """Begin the span of a run below the span that is current, or the one that a caller named."""
        try:
            with self._lock:
                self._set_up()
            context, now = run.run_context, run.clock.now()
            operation = names.INVOKE_WORKFLOW if plan is None else names.INVOKE_AGENT
            first = {
                names.OPERATION: operation,
                names.RUN_ID: str(context.run_id),
                names.PARENT_RUN_ID: None if run.parent_run_id is None else str(run.parent_run_id),
                names.ATTEMPT: context.attempt if context.attempt > 1 else None,
                names.CONVERSATION: str(context.session_id),
                names.KIND: names.KINDS[operation],
            }
            attributes = present(first)
            above, links = parent_of(context)
            span = self._start(context, operation, above, links, attributes, nanoseconds(now))
            made = RunSpan(operation, span, now, attributes, scope=run, plan=plan, tracer=self._tracer)
            parent = self._runs.get(str(run.parent_run_id))
            made.put({} if parent is None else parent.children.pop(context.run_id, {}))
            return made
        except Exception as error:
            self._failed(error)
            return None

    def _start(
        self,
        context: RunContext,
        name: str,
        above: contexts.Context,
        links: list[Link],
        attributes: dict[str, Any],
        at: int,
    ) -> trace.Span:
        kind = SpanKind.INTERNAL
        if self._ids is None:
            return self._tracer.start_span(name, above, kind, attributes, links, at)
        with self._ids.given(context):
            return self._tracer.start_span(name, above, kind, attributes, links, at)

    def _take(self, reader: Reader, envelope: Envelope) -> None:
        try:
            reader.take(envelope)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Log what went wrong, once: the run goes on, and may lack spans."""
        if not self._has_failed:
            self._has_failed = True
            logger().error("telemetry.failed", error=error_text(error), exc_info=error)


def parent_of(context: RunContext) -> tuple[contexts.Context, list[Link]]:
    """Return the context below which the span of a run begins, and its links.

    That is the current span, if it is of the same trace; else the one that the run was given. A run that is independent
    of the code around it has a trace of its own, with a link to the span in which it was started.
    """
    current = trace.get_current_span().get_span_context()
    if current.is_valid and f"{current.trace_id:032x}" == context.trace_id:
        return contexts.get_current(), []
    links = [Link(current)] if current.is_valid else []
    bare = contexts.Context()
    if context.parent_span_id is None or context.trace_id is None:
        return bare, links
    here = HERE.get()
    flags = here.flags if here is not None and here.trace_id == context.trace_id else TraceFlags.SAMPLED
    ids = int(context.trace_id, HEX), int(context.parent_span_id, HEX)
    remote = SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(flags))
    return trace.set_span_in_context(NonRecordingSpan(remote), bare), links
