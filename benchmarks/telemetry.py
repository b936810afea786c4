"""What telemetry costs, in µs of CPU per node: when it is off, and when spans go to a batch processor.

Off, a call at the gate tests whether there is a tracer, and a run puts its place in the trace in force. The first is
bounded from above by a tracer that does nothing, whose three methods are called besides; the second is measured alone.
Both together may cost 3 µs per node. What spans cost when they are made has no target: it is far below what any model
call takes. Run with ``python -m benchmarks.telemetry``; exits 1 if the target is missed.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.step import LIMITS, Fake
from watchkeeper.accounting.call_request import CallRequest, Charge
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.run import arun
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.containment.tracing import TracedCall
from watchkeeper.core.trace.place import Place, at
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.telemetry import Telemetry
from watchkeeper.tools.tool import tool

MOST = 3.0
BATCH, BATCHES = 500, 41
TURNS = 500
PLENTY = Limits(max_cost_usd=10**6, max_total_tokens=10**12, max_steps=10**9, max_retries=10**6)
CALL = CallRequest("tool", "look")


class Nothing:
    """A tracer that does nothing."""

    def enter(self, call: TracedCall) -> Any:
        return None

    def leave(self, entered: Any) -> None:
        return None

    def ended(self, call: TracedCall, charge: Charge) -> None:
        return None

    def following(self, run: Any, plan: Any) -> AbstractContextManager[None]:
        return nullcontext()


class Dropped(SpanExporter):
    """Drops what it gets."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def at_once(ticket: Ticket) -> int:
    return 1


def free(value: object, error: BaseException | None, ticket: Ticket) -> Charge:
    return Charge()


async def batch_of(work: Callable[[], Awaitable[object]]) -> float:
    start = time.process_time_ns()
    for _ in range(BATCH):
        await work()
    return (time.process_time_ns() - start) / BATCH / 1000


async def hook() -> float:
    """Return what a tracer that does nothing costs a call: the batches of both take turns, so that drift is in both."""
    plain, traced = ExecutionContext(PLENTY), ExecutionContext(PLENTY)
    traced.trace(Nothing())
    pairs: list[tuple[float, float]] = []
    for _ in range(BATCHES):
        bare = await batch_of(lambda: plain.acall(CALL, at_once, free))
        pairs.append((bare, await batch_of(lambda: traced.acall(CALL, at_once, free))))
    plain.close()
    traced.close()
    bare, hooked = (statistics.quantiles(list(figures))[0] for figures in zip(*pairs, strict=True))
    print(f"  {'a call at the gate without a tracer':<58} {bare:8.2f} µs")
    added: float = hooked - bare
    return max(added, 0.0)


def place() -> float:
    """Return what it costs to put the place of a run in force, once for each run."""
    figures: list[float] = []
    for _ in range(BATCHES):
        start = time.process_time_ns()
        for _ in range(BATCH):
            with at(Place("a" * 32, "b" * 16, "run")):
                pass
        figures.append((time.process_time_ns() - start) / BATCH / 1000)
    return statistics.quantiles(figures)[0]


async def run_of(telemetry: Telemetry | None) -> float:
    """Return µs of CPU per node of a run: a model call or a tool call."""
    section = MarkdownSection(title="Task", key="task", template="Look.", tools=(look,))
    template = PromptTemplate[str](ns="bench", key="look", sections=[section])
    gc.collect()
    start = time.process_time_ns()
    result = await arun(template, model=Fake(TURNS, look.name), limits=LIMITS, store=None, telemetry=telemetry)
    took = time.process_time_ns() - start
    assert result.ok, result.sentence()
    return took / result.usage.steps / 1000


async def measure() -> int:
    """Print the figures; return 1 if the target is missed."""
    print("off, µs of CPU per node")
    off = await hook() + place()
    print(f"  {'at most added by telemetry that is off':<58} {off:8.2f} µs   (at most {MOST:g})")
    print(f"a run of {TURNS} turns with a tool, µs of CPU per node")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Dropped()))
    telemetry = Telemetry(provider, MeterProvider(shutdown_on_exit=False))
    without = min([await run_of(None) for _ in range(7)])
    with_spans = min([await run_of(telemetry) for _ in range(7)])
    provider.shutdown()
    print(f"  {'without telemetry':<58} {without:8.2f} µs")
    print(f"  {'with spans and metrics, exported to nothing':<58} {with_spans:8.2f} µs")
    if off > MOST:
        print(f"missed: {off:.2f} µs per node")
    return int(off > MOST)


if __name__ == "__main__":
    sys.exit(asyncio.run(measure()))
