"""What a session costs, in µs of CPU: recording a tool call, reading, snapshots, branches, children; any log length.

An event is a `ToolInvoked` with typed parameters and a typed result. Each figure is the median of batches; "flat" is
the figure on the longest log over that on the shortest, in the same run. For comparison, the way of recording that
copies: a frozen state whose slice is a tuple. Run with ``python -m benchmarks.session``; exits 1 if a target is missed.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from watchkeeper.core.usage import TokenUsage
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Snapshot
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import ToolResult

LENGTHS = (100, 10_000, 100_000)
BATCH, BATCHES = 200, 15
FLAT = 2.0
AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FileTicket:
    """What the tool is given."""

    ticket: str
    category: str
    urgency: int


@dataclass(frozen=True, slots=True)
class Filed:
    """What the tool returns."""

    ticket: str
    path: str
    quotes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """A state that is copied whenever something is added."""

    events: tuple[ToolInvoked, ...] = ()


def invoked(number: int) -> ToolInvoked:
    return ToolInvoked(
        prompt_name="support/triage",
        adapter="openai",
        name="file_ticket",
        params=FileTicket(f"T-{number}", "billing", 2),
        result=ToolResult.ok(Filed(f"T-{number}", f"filed/{number}.json", ("I was charged twice", "please refund"))),
        session_id=UUID(int=1),
        created_at=AT,
        usage=TokenUsage(1200, 60),
        rendered_output='{"ticket": "T-1", "path": "filed/1.json"}',
        call_id=f"call_{number}",
        event_id=UUID(int=number),
        duration_ms=1.5,
        node_id="node",
    )


def grown(length: int) -> Session:
    """Return a session with that many events, each of which its subscriber heard."""
    session = Session()
    session.dispatcher.subscribe(ToolInvoked, lambda _: None)
    for number in range(length):
        session.dispatch(invoked(number))
    return session


def cost(work: Callable[[], object], count: int = BATCH) -> float:
    """Return µs of CPU per call."""
    figures: list[float] = []
    for _ in range(BATCHES):
        start = time.process_time_ns()
        for _ in range(count):
            work()
        figures.append((time.process_time_ns() - start) / count / 1_000)
    return statistics.median(figures)


def newest(session: Session) -> tuple[ToolInvoked, ...]:
    return session[ToolInvoked].all()[-10:]


def copied(state: Copied, event: ToolInvoked) -> Copied:
    return replace(state, events=(*state.events, event))


def transaction(session: Session, event: ToolInvoked) -> None:
    branch = session.branch()
    branch.dispatch(event)
    branch.merge()


def child(session: Session) -> None:
    session.child(session.snapshot()).close()


def table() -> list[tuple[str, float, list[float]]]:
    """Return what is measured, its target in µs, and its cost for each length."""
    rows: dict[str, tuple[float, list[float]]] = {}
    for length in LENGTHS:
        session, event = grown(length), invoked(0)
        state = Copied(tuple(session[ToolInvoked].all()))
        works: list[tuple[str, float, Callable[[], object], int]] = [
            ("snapshot", 5, session.snapshot, BATCH),
            ("latest", 2, session[ToolInvoked].latest, BATCH),
            ("the ten newest", 10, partial(newest, session), BATCH),
            ("branch", 5, session.branch, BATCH),
            ("child, started and closed", 50, partial(child, session), BATCH),
            ("recording a tool call", 10, partial(session.dispatch, event), BATCH),
            ("branch, one write, merge", 30, partial(transaction, session, event), BATCH),
            ("(copying a tuple instead)", float("inf"), partial(copied, state, event), max(2, BATCH * 100 // length)),
        ]
        for name, target, work, count in works:
            rows.setdefault(name, (target, []))[1].append(cost(work, count))
    return [(name, target, figures) for name, (target, figures) in rows.items()]


def run_of_tool_calls() -> tuple[float, float]:
    """Return seconds of CPU for 3,000 tool calls, each a transaction with a snapshot before it, and for its JSON."""
    events = [invoked(number) for number in range(3_000)]
    session = Session()
    start = time.process_time()
    for event in events:
        session.snapshot()
        transaction(session, event)
        session[ToolInvoked].latest()
    recorded = time.process_time()
    snapshot = session.snapshot()
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    return recorded - start, time.process_time() - recorded


def memory_of_snapshots() -> tuple[float, float]:
    """Return KiB that a thousand kept snapshots add, one after each event, and KiB of the references in one state."""
    session, events = grown(10_000), [invoked(number) for number in range(1_000)]
    plain = grown(10_000)
    gc.collect()
    tracemalloc.start()
    for event in events:
        plain.dispatch(event)
    without = tracemalloc.get_traced_memory()[0]
    kept: list[Snapshot] = []
    for event in events:
        session.dispatch(event)
        kept.append(session.snapshot())
    both = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(kept) == 1_000
    return (both - 2 * without) / 1024, 8 * len(session[ToolInvoked].all()) / 1024


def main() -> int:
    missed: list[str] = []
    heads = "".join(f"{length:>10,}" for length in LENGTHS)
    print(f"{'µs of CPU, events on the log:':<32}{heads}{'flat':>8}{'target':>8}")
    rows = table()
    for name, target, figures in rows:
        flat = figures[-1] / figures[0]
        shown = "".join(f"{figure:>10.2f}" for figure in figures)
        print(f"{name:<32}{shown}{flat:>8.2f}{target:>8.0f}")
        if max(figures) > target or (target < float("inf") and flat > FLAT):
            missed.append(name)
    by_name = {name: figures for name, _, figures in rows}
    ratio = by_name["(copying a tuple instead)"][1] / by_name["recording a tool call"][1]
    print(f"at {LENGTHS[1]:,} events a recording costs 1/{ratio:.0f} of copying the slice\n")
    recorded, stored = run_of_tool_calls()
    print(f"3,000 tool calls as transactions with snapshots: {recorded:.3f} s (target 0.3)")
    print(f"their snapshot as JSON, there and back: {stored:.3f} s")
    added, state = memory_of_snapshots()
    print(
        f"a thousand snapshots of {LENGTHS[1]:,} events: {added:.0f} KiB; as copies {1_000 * state:,.0f} KiB,", end=" "
    )
    print(f"{1_000 * state / added:.0f} times as much")
    if recorded > 0.3:
        missed.append("3,000 tool calls")
    if added > 20 * state:
        missed.append("a thousand snapshots")
    print(f"missed: {', '.join(missed)}" if missed else "all targets met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
