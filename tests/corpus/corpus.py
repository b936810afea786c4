"""The corpus of trajectories: what agents did, call by call, and what a person says of it.

Every ``*.json`` beside this module holds a list of them, one call a line: ``[tool, arguments, result, succeeded]``.
``tuning`` was there when the detectors' thresholds were chosen; ``held_out`` was written afterwards, and
whatever changed a detector moved from it to ``tuning``; ``recorded`` are real runs of the inbox example (`record`);
``hard`` was written against the detectors, to show their limits, and is not counted with the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from watchkeeper.observers.drift import DriftDetector
from watchkeeper.observers.stall import ErrorCascadeDetector, StallDetector
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import ToolResult

COUNTED: Final = ("tuning", "held_out", "recorded")
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


def replay(trace: Trace, detector: Detector, turn: int = 1) -> Iterator[tuple[int, Assessment]]:
    """Ask a detector after every turn; yield the number of each call after which it spoke, and what it said.

    Args:
        trace: What the agent did.
        detector: Whom to ask.
        turn: How many calls the agent makes at a time.
    """
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory, task=trace.task)
    for number, call in enumerate(trace.calls, 1):
        event = event_of(call, number)
        session.dispatch(event)
        trajectory.add(event)
        if number % turn and number < len(trace.calls):
            continue
        if detector.should_run(session, context=context):
            said = detector.observe(session, context=context)
            if said is not None:
                yield number, said


def ask(detector: Detector, calls: Sequence[TracedCall], task: str = "") -> Assessment | None:
    """Return what a detector says after the last of these calls, if after every other it was asked, too."""
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory, task=task)
    for number, call in enumerate(calls, 1):
        session.dispatch(event := event_of(call, number))
        trajectory.add(event)
        trajectory.unseen_by(detector.name)
    return detector.observe(session, context=context)


def ask_once(detector: Detector, calls: Sequence[TracedCall], task: str = "") -> Assessment | None:
    """Return what a detector says that was never asked before, after these calls."""
    trace = Trace("", ("healthy",), task, tuple(calls))
    return next((said for _, said in replay(trace, detector, len(calls))), None)


@dataclass(frozen=True)
class Score:
    """How a detector did on some trajectories.

    Attributes:
        label: What it is to find.
        looked_at: How many trajectories there were.
        labelled: How many of them a person says it of.
        found: Of how many of those it spoke, and not before there was something to say.
        false_alarms: Names of those of which it spoke for nothing, or too soon.
        missed: Names of those of which it should have spoken and did not.
        healthy: How many trajectories are healthy.
        healthy_alarms: On how many of those it spoke.
        delays: Calls from the beginning of the trouble until it spoke.
    """

    label: Label
    looked_at: int
    labelled: int
    found: int
    false_alarms: Sequence[str]
    missed: Sequence[str]
    healthy: int
    healthy_alarms: int
    delays: Sequence[int]

    @property
    def alarms(self) -> int:
        """Of how many trajectories it spoke."""
        return self.found + len(self.false_alarms)

    @property
    def precision(self) -> float:
        """Share of right alarms among all of its alarms; 1.0 if there were none, so that nothing was wrong."""
        return self.found / self.alarms if self.alarms else 1.0

    @property
    def recall(self) -> float:
        """Share of what is labelled that it found; 1.0 if there is nothing."""
        return self.found / self.labelled if self.labelled else 1.0


def score(label: Label, traces: Sequence[Trace], turn: int = 1) -> Score:
    """Ask the detector of a label about every trajectory, after every turn of so many calls."""
    labelled = found = healthy = healthy_alarms = 0
    false_alarms: list[str] = []
    missed: list[str] = []
    delays: list[int] = []
    for trace in traces:
        first = next((number for number, _ in replay(trace, DETECTORS[label], turn)), None)
        wanted = label in trace.labels
        labelled += wanted
        healthy += trace.labels == ("healthy",)
        healthy_alarms += trace.labels == ("healthy",) and first is not None
        if wanted and first is not None and first >= trace.since:
            found += 1
            delays.append(first - trace.since + 1)
        elif first is not None:
            false_alarms.append(trace.name)
        elif wanted:
            missed.append(trace.name)
    return Score(label, len(traces), labelled, found, false_alarms, missed, healthy, healthy_alarms, delays)


def table() -> str:
    """Return how good the detectors are, as a table in markdown."""
    lines = [
        "| detector | trajectories | labelled | found | false alarms | precision | recall | calls until found |",
        "|---|---|---|---|---|---|---|---|",
    ]
    sets = {**{name: load(name) for name in COUNTED}, "all three": [trace for name in COUNTED for trace in load(name)]}
    for label, detector in DETECTORS.items():
        for name, traces in {**sets, "hard": load("hard")}.items():
            each = score(label, traces)
            who = f"`{type(detector).__name__}`, {name.replace('_', ' ')}"
            cells = [who, each.looked_at, each.labelled, each.found, len(each.false_alarms)]
            shares = [f"{each.precision:.2f}" if each.alarms else "", f"{each.recall:.2f}" if each.labelled else ""]
            calls = f"{median(each.delays):g}" if each.delays else ""
            lines.append("| " + " | ".join(str(cell) for cell in [*cells, *shares, calls]) + " |")
    return "\n".join(lines)
