"""Fit the weights by which `SuspicionRules` weighs the signs of trouble, or say what they are worth on work of others.

A logistic regression for each trouble, in plain Python: was there, at this call, a stall (a cascade, drift) that began
within ten calls? Fitted on the generated parts that the detectors were tuned on, and on no others, by Newton's method
with a penalty on the squares of the weights, which keeps them small where authors do not agree.

Usage: ``python -m scripts.fit_suspicion`` writes ``observers/suspicion_weights.py``. With ``--cross`` it writes
nothing: it fits on all authors but one, and prints how much of the trouble in the work of that one is reached.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.corpus.corpus import DETECTORS, PARTS, REACHED_WITHIN, UNSEEN, event_of, generated, reach
from tests.corpus.trace import Label, Trace
from watchkeeper.observers import suspicion
from watchkeeper.observers.drift.detector import follower_of
from watchkeeper.observers.reading import readings_of
from watchkeeper.observers.signs import SIGNS, Signs
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session

WEIGHTS: Final = Path(suspicion.__file__).with_name("suspicion_weights.py")
SEEN: Final = [part for part in PARTS if part not in UNSEEN]
PENALTY: Final = 100.0
STEPS: Final = 6

Rows = list[tuple[Sequence[float], Mapping[Label, bool]]]
Fitted = dict[str, tuple[float, ...]]


class Part(NamedTuple):
    """What one author wrote: trajectories of each kind, and the signs after each call."""

    traces: Sequence[Trace]
    rows: Rows


def signs_of(trace: Trace) -> Iterator[tuple[Sequence[float], Mapping[Label, bool]]]:
    """Yield the signs after each call of a trajectory, and which trouble began within the last ten calls."""
    session, trajectory, signs = Session(), Trajectory(), Signs(trace.task)
    context = ObserverContext(session, trajectory=trajectory, task=trace.task)
    for number, call in enumerate(trace.calls, 1):
        session.dispatch(event := event_of(call, number))
        trajectory.add(event)
        sides = {each.number: each.side for each in follower_of(suspicion.WATCHED, context).calls}
        reading = readings_of(context).since(number - 1)[-1]
        begun: dict[Label, bool] = {
            label: label in trace.since and 0 <= number - trace.since[label] < REACHED_WITHIN for label in DETECTORS
        }
        yield signs.add(reading, event.params, sides.get(number, "")), begun


def read(part: str) -> Part:
    """Return the trajectories of a part, and the signs in them."""
    traces = [trace for each in generated(part).values() for trace in each]
    return Part(traces, [row for trace in traces for row in signs_of(trace)])


def fit(rows: Rows) -> Fitted:
    """Return for each trouble the base and the weight of each sign."""
    return {label: tuple(_newton(rows, label)) for label in DETECTORS}


def _newton(rows: Rows, label: Label) -> list[float]:
    """Maximise the likelihood less the penalty; the base has no penalty."""
    size = len(SIGNS) + 1
    weights = [0.0] * size
    for _ in range(STEPS):
        slope = [-PENALTY * weight if place else 0.0 for place, weight in enumerate(weights)]
        curve = [[PENALTY * (row == column > 0) for column in range(size)] for row in range(size)]
        for signs, begun in rows:
            each = [(place, sign) for place, sign in enumerate((1.0, *signs)) if sign]
            chance = 1 / (1 + math.exp(-sum(weights[place] * sign for place, sign in each)))
            error, spread = begun[label] - chance, chance * (1 - chance)
            for from_here, (at, sign) in enumerate(each):
                slope[at] += error * sign
                row, share = curve[at], spread * sign
                for place, other in each[from_here:]:
                    row[place] += share * other
        for at in range(size):
            for place in range(at):
                curve[at][place] = curve[place][at]
        weights = [weight + step for weight, step in zip(weights, _solved(curve, slope), strict=True)]
    return weights


def _solved(matrix: list[list[float]], values: Sequence[float]) -> list[float]:
    """Return what a matrix takes to the values, by elimination."""
    rows = [[*row, value] for row, value in zip(matrix, values, strict=True)]
    for at in range(len(rows)):
        best = max(range(at, len(rows)), key=lambda place: abs(rows[place][at]))
        rows[at], rows[best] = rows[best], rows[at]
        for place, row in enumerate(rows):
            if place != at and row[at]:
                factor = row[at] / rows[at][at]
                rows[place] = [mine - factor * other for mine, other in zip(row, rows[at], strict=True)]
    return [row[-1] / row[at] for at, row in enumerate(rows)]


def written(fitted: Fitted) -> str:
    """Return the module that holds the weights."""
    lines = [
        '"""The weights of the signs of trouble, by trouble: a base, and one for each of `SIGNS`.',
        "",
        "Written by ``python -m scripts.fit_suspicion``; not to be changed by hand.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final",
        "",
        "WEIGHTS: Final[dict[str, tuple[float, ...]]] = {",
    ]
    for label, weights in fitted.items():
        lines += [f'    "{label}": (', f"        {weights[0]:.2f},  # base"]
        lines += [f"        {weight:.2f},  # {sign}" for sign, weight in zip(SIGNS, weights[1:], strict=True)]
        lines.append("    ),")
    return "\n".join([*lines, "}", ""])


def cross(parts: Mapping[str, Part]) -> None:
    """Print what is reached in each author's work with weights that were fitted on the others'."""
    for name, part in parts.items():
        fitted = fit([row for other, each in parts.items() if other != name for row in each.rows])
        suspicion.WEIGHTS.clear()
        suspicion.WEIGHTS.update(fitted)
        found = reach(part.traces)
        share = sum(found.reached.values()) / sum(found.labelled.values())
        each = ", ".join(f"{label} {found.reached[label]} of {count}" for label, count in found.labelled.items())
        print(
            f"{name}: {share:.3f} reached ({each}), one question in {found.calls / found.asked:.1f} calls", flush=True
        )


def main() -> int:
    """Write the weights, or print what they are worth on the work of others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cross", action="store_true", help="fit on all authors but one and score on that one")
    asked = parser.parse_args()
    parts = {name: read(name) for name in SEEN}
    if asked.cross:
        cross(parts)
    else:
        WEIGHTS.write_text(written(fit([row for part in parts.values() for row in part.rows])), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
