"""The corpus of trajectories: what agents did, call by call, and what a person says of it.

Every ``*.json`` beside this module holds a list of them, one call a line: ``[tool, arguments, result, succeeded]``.
`TUNING` was there when the detectors' thresholds were chosen; `HELD_OUT` was written afterwards and changed nothing;
`RECORDED` are real runs of the inbox example (`record`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from watchkeeper.core.budget import BudgetStatus
from watchkeeper.observers.drift import DriftDetector
from watchkeeper.observers.error_cascade import ErrorCascadeDetector
from watchkeeper.observers.stall import StallDetector
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer_context import ObserverContext
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session
from watchkeeper.tools.invoked import ToolInvoked
from watchkeeper.tools.result import ToolResult

FOLDER: Final = Path(__file__).parent
BEGAN: Final = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)

Label = Literal["stalled", "cascading", "drifting", "healthy"]
Detector = StallDetector | ErrorCascadeDetector | DriftDetector

DETECTORS: Final[dict[Label, Detector]] = {
    "stalled": StallDetector(),
    "cascading": ErrorCascadeDetector(),
    "drifting": DriftDetector(),
}
"""Who is to find what; every one with the thresholds that it ships with."""


class TracedCall(msgspec.Struct, frozen=True, array_like=True):
    """One tool call: the tool, its arguments, what the model was shown, and whether it succeeded."""

    tool: str
    arguments: Any
    result: str
    success: bool = True


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """One trajectory.

    Attributes:
        name: Says what happens in it.
        labels: What a person says of it; ``healthy`` stands alone.
        task: What the agent was told.
        calls: What it did.
        since: Number of the first call that belongs to the trouble; a detector that speaks before raises a false alarm.
        origin: How it came about.
    """

    name: str
    labels: tuple[Label, ...]
    task: str
    calls: tuple[TracedCall, ...]
    since: int = 1
    origin: str = "written"


def load(name: str) -> list[Trace]:
    """Return the trajectories of a file."""
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=list[Trace])


def written(traces: Iterable[Trace]) -> str:
    """Return trajectories as they stand in a file: one call a line."""
    texts: list[str] = []
    for trace in traces:
        fields: dict[str, Any] = msgspec.to_builtins(trace)
        calls = ",\n".join(f"  {json.dumps(call, ensure_ascii=False)}" for call in fields.pop("calls"))
        texts.append(f'{json.dumps(fields, ensure_ascii=False)[:-1]}, "calls": [\n{calls}\n]}}')
    return "[\n" + ",\n".join(texts) + "\n]\n"


def event_of(call: TracedCall, number: int) -> ToolInvoked:
    """Return a call as the event that a run records."""
    result: Any = ToolResult.ok(call.result, call.result) if call.success else ToolResult[Any].error(call.result)
    return ToolInvoked(
        prompt_name="corpus/agent",
        adapter="corpus",
        name=call.tool,
        params=call.arguments,
        result=result,
        session_id=None,
        created_at=BEGAN + timedelta(seconds=7 * number),
        usage=None,
        rendered_output=call.result,
        call_id=f"c{number}",
        event_id=UUID(int=number),
        outcome="ok" if call.success else "failed",
    )


def replay(trace: Trace, detector: Detector) -> Iterator[tuple[int, Assessment]]:
    """Ask a detector after every call; yield the number of each call after which it spoke, and what it said."""
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, BudgetStatus(), trajectory, task=trace.task)
    for number, call in enumerate(trace.calls, 1):
        event = event_of(call, number)
        session.dispatch(event)
        trajectory.add(event)
        if detector.should_run(session, context=context):
            said = detector.observe(session, context=context)
            if said is not None:
                yield number, said
