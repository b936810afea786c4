"""One incident, replayed twice: as it was written, and contained; what each really ran and cost stands side by side.

The figures are the provider's. The contained run has to end by a stop of the gate, within its ceiling, and the gate
must have counted what the provider did.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.incidents.provider import MorningError, Provider
from watchkeeper.containment.execution_context import ExecutionContext


@dataclass(frozen=True, slots=True)
class Replay:
    """An incident.

    Attributes:
        name: What it is called.
        provider: Makes a fresh provider.
        before: The program, as it was written.
        after: The same program inside a context; returns the context.
        ceiling: The ceiling that is to hold, in words.
        max_executions: The same as a number of executions, if it is one.
        max_usd: The same in dollars.
    """

    name: str
    provider: Callable[[], Provider]
    before: Callable[[Provider], None]
    after: Callable[[Provider], ExecutionContext]
    ceiling: str
    max_executions: int | None
    max_usd: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a replay came to: real executions and dollars, before and after, and the stop of the contained run."""

    name: str
    ceiling: str
    executions_before: int
    usd_before: float
    executions_after: int
    usd_after: float
    stop_reason: str


def compare(replay: Replay) -> Comparison:
    """Replay an incident both ways.

    Raises:
        AssertionError: If the contained run was not stopped, exceeded its ceiling, or was not counted exactly.
    """
    naive, contained = replay.provider(), replay.provider()
    with suppress(MorningError):
        replay.before(naive)
    context = replay.after(contained)
    seen = context.get_snapshot()
    reason = seen.abort_reason
    if reason is None:
        raise AssertionError(f"{replay.name}: nothing stopped it")
    if replay.max_executions is not None and contained.executions > replay.max_executions:
        raise AssertionError(f"{replay.name}: {contained.executions} executions, {replay.max_executions} were allowed")
    if round(contained.usd, 9) > replay.max_usd:
        raise AssertionError(f"{replay.name}: ${contained.usd} spent, ${replay.max_usd} were allowed")
    if (seen.step_count, round(seen.cost_usd_accumulated, 6)) != (contained.executions, round(contained.usd, 6)):
        raise AssertionError(f"{replay.name}: the gate counted {seen.step_count} and ${seen.cost_usd_accumulated}")
    return Comparison(
        replay.name,
        replay.ceiling,
        naive.executions,
        naive.usd,
        contained.executions,
        contained.usd,
        reason,
    )
