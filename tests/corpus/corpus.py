"""The corpus of trajectories: what agents did, call by call, and what they show by the definitions of the docs.

Five parts are generated, module by module for each kind of work, by simulated worlds that vary spelling, ids, order,
times and noise: ``seen_kinds``, ``seen_more`` and ``seen_third``, which the detectors were tuned on, and
``unseen_kinds`` and ``fresh_kinds``, whose authors had read neither the detectors nor the other parts. ``seen_more`` is
by another author than ``seen_kinds``, ``seen_third`` by one who had read neither. Only totals of the unseen parts are
printed; a trajectory of them that somebody has looked at in order to change a detector moves to a seen part.

Every ``*.json`` beside this module holds trajectories made by hand, one call a line: ``[tool, arguments, result,
succeeded, at]``. ``tuning`` and ``held_out`` were written with the first detectors; ``recorded`` are real runs of the
inbox example (`record`); ``hard`` was written against the detectors, to show their limits.
"""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from tests.corpus.trace import Label, Trace, TracedCall
from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.observers.cascade import ErrorCascadeDetector
from watchkeeper.observers.drift import DriftDetector
from watchkeeper.observers.stall import StallDetector
from watchkeeper.observers.suspicion import SuspicionRules
from watchkeeper.oversight.sources import Source
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import FeedbackContext, FeedbackProviderConfig, ObserverContext, ObserverTrigger
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.runtime.advice_events import SourceRan
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import ToolResult

FOLDER: Final = Path(__file__).parent
BEGAN: Final = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
BY_HAND: Final = ("tuning", "held_out", "recorded")
PARTS: Final = ("seen_kinds", "seen_more", "seen_third", "unseen_kinds", "fresh_kinds")
UNSEEN: Final = PARTS[3:]
"""The parts that nobody tuned to. The second is the younger one: no detector was scored on it while it was written."""

SEED: Final = 20261123
A_KIND: Final = {"seen_kinds": 30, "seen_more": 15, "seen_third": 8, "unseen_kinds": 60, "fresh_kinds": 40}
"""How many trajectories of each kind of work are generated, by part."""

Detector = StallDetector | ErrorCascadeDetector | DriftDetector

DETECTORS: Final[dict[Label, Detector]] = {
    "stalled": StallDetector(),
    "cascading": ErrorCascadeDetector(),
    "drifting": DriftDetector(),
}
"""Who is to find what; every one with the thresholds that it ships with."""


# --- trajectories -----------------------------------------------------------------------------------------------------


def load(name: str) -> list[Trace]:
    """Return the trajectories of a file."""
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=list[Trace])


def generated(part: str, a_kind: int | None = None, seed: int = SEED) -> Mapping[str, list[Trace]]:
    """Return the trajectories of a generated part, by kind of work.

    Args:
        part: One of `PARTS`.
        a_kind: How many of each kind; None for as many as `A_KIND` says.
        seed: Of the generators; each kind has a generator of random numbers of its own.
    """
    package = importlib.import_module(f"tests.corpus.{part}")
    found: dict[str, list[Trace]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        kind = importlib.import_module(f"{package.__name__}.{module.name}")
        if hasattr(kind, "trajectories"):
            rng = random.Random(f"{seed} {module.name}")
            found[module.name] = list(islice(kind.trajectories(rng), a_kind or A_KIND[part]))
    return found


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
        created_at=BEGAN + timedelta(seconds=call.at),
        usage=None,
        rendered_output=call.result,
        call_id=f"c{number}",
        event_id=UUID(int=number),
        outcome="ok" if call.success else "failed",
    )


# --- what detectors say -----------------------------------------------------------------------------------------------


def replay(trace: Trace, detector: Detector, turn: int = 1) -> Iterator[tuple[int, Assessment]]:
    """Ask a detector after every turn; yield the number of each call after which it spoke, and what it said.

    Args:
        trace: What the agent did.
        detector: Whom to ask.
        turn: How many calls the agent makes at a time.
    """
    for number, _, said in replay_all(trace, {"healthy": detector}, turn):
        yield number, said


def replay_all(
    trace: Trace, detectors: Mapping[Label, Detector], turn: int = 1
) -> Iterator[tuple[int, Label, Assessment]]:
    """Ask several detectors after every turn, as `replay` does for one; yield also the label that each stands for."""
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory, task=trace.task)
    for number, call in enumerate(trace.calls, 1):
        event = event_of(call, number)
        session.dispatch(event)
        trajectory.add(event)
        if number % turn and number < len(trace.calls):
            continue
        for label, detector in detectors.items():
            if detector.should_run(session, context=context):
                said = detector.observe(session, context=context)
                if said is not None:
                    yield number, label, said


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


def first_words(trace: Trace, turn: int = 1) -> Mapping[Label, int]:
    """Return the number of the call after which each of the three detectors first spoke, by the label it stands for."""
    first: dict[Label, int] = {}
    for number, label, _ in replay_all(trace, DETECTORS, turn):
        first.setdefault(label, number)
    return first


# --- baselines --------------------------------------------------------------------------------------------------------


PLACE: Final = re.compile(r"[\w.~-]*(?:[/\\][\w.@~-]+)+")


class Plain(NamedTuple):
    """A call as the baselines see it: all that it is, whether it went well, and the paths in its arguments."""

    whole: tuple[str, str, str]
    success: bool
    places: Sequence[str]


def plain(call: TracedCall) -> Plain:
    """Return a call as the baselines see it."""
    ordered, sent = json.dumps(call.arguments, sort_keys=True), json.dumps(call.arguments)
    return Plain((call.tool, ordered, call.result), call.success, PLACE.findall(sent))


def same_three_times(calls: Sequence[Plain], task: str) -> bool:
    """Whether the last three calls are equal, results included."""
    newest = [call.whole for call in calls[-3:]]
    return len(newest) == 3 and len(set(newest)) == 1


def three_failures(calls: Sequence[Plain], task: str) -> bool:
    """Whether the last three calls failed."""
    return len(calls) >= 3 and not any(call.success for call in calls[-3:])


def five_of_eight_outside(calls: Sequence[Plain], task: str) -> bool:
    """Whether five of the last eight calls with paths have only paths in folders that the task does not name."""
    home = {place.replace("\\", "/").rpartition("/")[0] for place in PLACE.findall(task)} - {""}
    with_paths = [call.places for call in calls[-24:] if call.places][-8:]
    if not home or len(with_paths) < 8:
        return False
    return sum(not any(folder in place for place in places for folder in home) for places in with_paths) >= 5


BASELINES: Final[dict[Label, Callable[[Sequence[Plain], str], bool]]] = {
    "stalled": same_three_times,
    "cascading": three_failures,
    "drifting": five_of_eight_outside,
}
"""The simplest rule for each label; a detector that does no better is worth nothing."""


def baseline_words(trace: Trace, turn: int = 1) -> Mapping[Label, int]:
    """Return what `first_words` returns, of the baselines."""
    first: dict[Label, int] = {}
    calls = [plain(call) for call in trace.calls]
    for number in range(1, len(calls) + 1):
        for label, rule in BASELINES.items():
            if label not in first and rule(calls[max(0, number - 24) : number], trace.task):
                first[label] = number
    return first


# --- questions to a judge ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """A judge that only stands in a configuration: `questions` says when it would be asked."""

    name: str = "Judge"

    def should_run(self, *, context: FeedbackContext) -> bool:
        return True

    def provide(self, *, context: FeedbackContext) -> None:
        return None


QUESTIONED: Final = ObserverTrigger(on_suspicion=True, every_n_calls=21)
"""When a judge is asked: as docs/oversight.md recommends it."""

REACHED_WITHIN: Final = 10
"""A trouble is reached if the judge is asked at one of its first so many calls."""


def questions(trace: Trace, trigger: ObserverTrigger = QUESTIONED) -> Sequence[int]:
    """Return the calls after which a judge is asked, by the rules of suspicion and by the clock, as in a run."""
    rules, judge = SuspicionRules(), Source(FeedbackProviderConfig(_Asked(), trigger))
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory, task=trace.task)
    asked: list[int] = []
    for number, call in enumerate(trace.calls, 1):
        event = event_of(call, number)
        session.dispatch(event)
        trajectory.add(event)
        judge.suspected |= rules.should_run(session, context=context)
        if judge.is_due(trajectory, BudgetStatus(), event.created_at):
            asked.append(number)
            judge.follow(SourceRan(judge.name, "silent"), number, event.created_at)
    return asked


@dataclass(frozen=True)
class Reach:
    """What a judge would be asked about on some trajectories, and how good it is if it answers rightly.

    Attributes:
        calls: How many calls the trajectories have.
        asked: How many questions there were.
        labelled: By label, how many troubles there are.
        reached: By label, how many were asked about within their first `REACHED_WITHIN` calls.
        right: How many trajectories with trouble a judge that answers rightly calls troubled at some question.
        wrong: How many it calls troubled that have no trouble, or have it later.
        troubled: How many trajectories have trouble.
    """

    calls: int
    asked: int
    labelled: Mapping[Label, int]
    reached: Mapping[Label, int]
    right: int
    wrong: int
    troubled: int

    @property
    def precision(self) -> float:
        """Share of the trajectories called troubled that are."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        """Share of the troubled trajectories that are called so."""
        return self.right / self.troubled if self.troubled else 1.0


def reach(traces: Sequence[Trace], trigger: ObserverTrigger = QUESTIONED) -> Reach:
    """Count what suspicion and clock together reach."""
    asked = [questions(trace, trigger) for trace in traces]
    pairs = list(zip(traces, asked, strict=True))
    labelled: dict[Label, list[tuple[Trace, Sequence[int]]]]
    labelled = {label: [(trace, at) for trace, at in pairs if label in trace.since] for label in DETECTORS}
    called = [any(number >= begins_at(trace) for number in at) for trace, at in pairs]
    return Reach(
        calls=sum(len(trace.calls) for trace in traces),
        asked=sum(map(len, asked)),
        labelled={label: len(found) for label, found in labelled.items()},
        reached={
            label: sum(any(0 <= number - trace.since[label] < REACHED_WITHIN for number in at) for trace, at in found)
            for label, found in labelled.items()
        },
        right=sum(is_called and bool(trace.since) for trace, is_called in zip(traces, called, strict=True)),
        wrong=sum(is_called and not trace.since for trace, is_called in zip(traces, called, strict=True)),
        troubled=sum(bool(trace.since) for trace in traces),
    )


def begins_at(trace: Trace) -> float:
    """Return the number of the first call of any trouble; infinity if there is none."""
    return min(trace.since.values(), default=math.inf)


# --- scores -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """How a detector did on some trajectories.

    Attributes:
        label: What it is to find.
        looked_at: How many trajectories there were.
        labelled: How many of them show it.
        found: Of how many of those it spoke, and not before there was something to say.
        false_alarms: Names of those of which it spoke for nothing, or too soon.
        missed: Names of those of which it should have spoken and did not.
        healthy: How many trajectories are healthy.
        healthy_calls: How many calls they have.
        healthy_alarms: On how many of those trajectories it spoke.
        delays: Calls from the beginning of the trouble until it spoke.
    """

    label: Label
    looked_at: int
    labelled: int
    found: int
    false_alarms: Sequence[str]
    missed: Sequence[str]
    healthy: int
    healthy_calls: int
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


Words = Callable[[Trace, int], Mapping[Label, int]]
"""Returns the number of the call after which something first speaks of each label."""


def scores(traces: Sequence[Trace], turn: int = 1, words: Words = first_words) -> Mapping[Label, Score]:
    """Ask the detectors about every trajectory, after every turn of so many calls; return a score for each label."""
    spoke = [words(trace, turn) for trace in traces]
    return {label: _score(label, traces, [first.get(label) for first in spoke]) for label in DETECTORS}


def score(label: Label, traces: Sequence[Trace], turn: int = 1) -> Score:
    """Return the score of the detector of one label."""
    firsts = [next((number for number, _ in replay(trace, DETECTORS[label], turn)), None) for trace in traces]
    return _score(label, traces, firsts)


def _score(label: Label, traces: Sequence[Trace], firsts: Sequence[int | None]) -> Score:
    false_alarms: list[str] = []
    missed: list[str] = []
    delays: list[int] = []
    for trace, first in zip(traces, firsts, strict=True):
        since = trace.since.get(label)
        if since is not None and first is not None and first >= since:
            delays.append(first - since + 1)
        elif first is not None:
            false_alarms.append(trace.name)
        elif since is not None:
            missed.append(trace.name)
    healthy = [(trace, first) for trace, first in zip(traces, firsts, strict=True) if trace.labels == ("healthy",)]
    return Score(
        label=label,
        looked_at=len(traces),
        labelled=sum(label in trace.labels for trace in traces),
        found=len(delays),
        false_alarms=false_alarms,
        missed=missed,
        healthy=len(healthy),
        healthy_calls=sum(len(trace.calls) for trace, _ in healthy),
        healthy_alarms=sum(first is not None for _, first in healthy),
        delays=delays,
    )


def interval(right: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    if not of:
        return 0.0, 1.0
    share, spread = right / of, z * z / of
    middle, half = share + spread / 2, z * math.sqrt((share * (1 - share) + spread / 4) / of)
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def table(
    parts: Mapping[str, Sequence[Trace]],
    *,
    baselines: bool = False,
    words: Words = first_words,
    plain: Words | None = None,
) -> str:
    """Return how good the detectors are, as a table in markdown.

    Args:
        parts: Trajectories by the name of their part.
        baselines: Whether each detector has its baseline in the row below.
        words: When the detectors first speak.
        plain: When the baselines do; None to find out.
    """
    lines = [
        "| detector | part | labelled | found | false alarms | precision | recall | calls until found |",
        "|---|---|---|---|---|---|---|---|",
    ]
    done = {part: scores(traces, words=words) for part, traces in parts.items()}
    simple = (
        {part: scores(traces, words=plain or baseline_words) for part, traces in parts.items()} if baselines else {}
    )
    for label, detector in DETECTORS.items():
        for part in parts:
            lines.append(_row(f"`{type(detector).__name__}`", part, done[part][label]))
            if baselines:
                lines.append(_row(BASELINES[label].__name__.replace("_", " "), part, simple[part][label]))
    return "\n".join(lines)


def _row(who: str, part: str, each: Score) -> str:
    precision = _share(each.found, each.alarms)
    recall = _share(each.found, each.labelled)
    calls = f"{median(each.delays):g}" if each.delays else ""
    cells = [who, part.replace("_", " "), each.labelled, each.found, len(each.false_alarms), precision, recall, calls]
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _share(right: int, of: int) -> str:
    if not of:
        return ""
    low, high = interval(right, of)
    return f"{right / of:.2f} ({low:.2f} to {high:.2f})"
