"""How good the three detectors are and what they cost, on the corpus of labelled trajectories.

For each part of the corpus: precision and recall with their 95 % intervals, the median delay in calls, and beside each
detector the simplest rule for the same trouble. Then how often the detectors first speak in healthy work, and the CPU
time per call that all three take together. Then what a judge would be asked about, by suspicion (`SuspicionRules`) and
on a clock together: how many troubles are reached within ten calls of their beginning, with how many questions, and how
good a judge is that answers rightly. Of the unseen parts only totals are printed.
Run with ``python -m benchmarks.oversight``; exits 1 if a target is missed on an unseen part.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from tests.corpus.corpus import (
    BY_HAND,
    DETECTORS,
    PARTS,
    UNSEEN,
    first_words,
    generated,
    load,
    reach,
    replay_all,
    scores,
    table,
)
from tests.corpus.trace import Label, Trace

TARGETS: Final[Mapping[Label, tuple[float, float]]] = {
    "stalled": (0.90, 0.75),
    "cascading": (0.90, 0.90),
    "drifting": (0.95, 0.90),
}
"""Least precision and recall on kinds of work that nobody tuned to."""

MOST_DELAY: Final = 4
"""Most calls from the beginning of a trouble until the median detector speaks."""

MOST_FIRST_WORDS: Final = 2.0
"""Most first words in 1,000 calls of healthy work."""

LEAST_REACHED: Final = 0.95
"""Least share of troubles that a judge is asked about within their first ten calls."""

LEAST_CALLS_A_QUESTION: Final = 15
"""Least calls for each question to a judge, on average."""

MOST_MICROSECONDS: Final = 150.0
"""Most CPU time per call for all three detectors, in µs."""


def cost(traces: Sequence[Trace]) -> float:
    """Return the CPU time per call of all three detectors in µs: of a replay with them, less one without."""
    calls = sum(len(trace.calls) for trace in traces)

    def once(detectors: Mapping[Label, object]) -> float:
        gc.collect()
        began = time.process_time()
        for trace in traces:
            for _ in replay_all(trace, detectors):  # type: ignore[arg-type]
                pass
        return time.process_time() - began

    each = [once(DETECTORS) - once({}) for _ in range(3)]
    return min(each) / calls * 1e6


def reached(part: str, traces: Sequence[Trace]) -> list[str]:
    """Print what suspicion and clock reach together; return the targets that are missed."""
    found = reach(traces)
    share = sum(found.reached.values()) / sum(found.labelled.values())
    each = ", ".join(f"{label} {found.reached[label]} of {count}" for label, count in found.labelled.items() if count)
    print(
        f"{part}: suspicion and clock reach {share:.2f} of all trouble within ten calls ({each}), with one question in"
        f" {found.calls / found.asked:.1f} calls; a judge that answers rightly has precision {found.precision:.2f} at"
        f" recall {found.recall:.2f}"
    )
    missed: list[str] = []
    if share < LEAST_REACHED:
        missed.append(f"{share:.2f} of all trouble is reached within ten calls, target {LEAST_REACHED:g}")
    if found.calls < LEAST_CALLS_A_QUESTION * found.asked:
        missed.append(f"one question in {found.calls / found.asked:.1f} calls, target {LEAST_CALLS_A_QUESTION}")
    return missed


def main() -> int:
    """Print the figures; return 1 if a target is missed on an unseen part."""
    parts = {"by hand": [trace for name in BY_HAND for trace in load(name)]}
    parts |= {part: [trace for traces in generated(part).values() for trace in traces] for part in PARTS}
    print(table(parts, baselines=True))
    missed: list[str] = []
    for part, traces in parts.items():
        healthy = [trace for trace in traces if trace.labels == ("healthy",)]
        calls = sum(len(trace.calls) for trace in healthy)
        words = sum(len(first_words(trace)) for trace in healthy)
        rate = 1000 * words / calls if calls else 0.0
        spent = cost(traces) if traces else 0.0
        print(
            f"{part}: {len(traces)} trajectories, {len(healthy)} of them healthy with {calls:,} calls;"
            f" {words} first words ({rate:.1f} in 1,000 calls); {spent:.0f} µs a call for all three"
        )
        short = reached(part, traces) if traces else []
        if part not in UNSEEN or not traces:
            continue
        missed += short
        if rate > MOST_FIRST_WORDS:
            missed.append(f"{part}: {rate:.1f} first words in 1,000 healthy calls, target {MOST_FIRST_WORDS:g}")
        if spent > MOST_MICROSECONDS:
            missed.append(f"{part}: {spent:.0f} µs a call, target {MOST_MICROSECONDS:g}")
        for label, each in scores(traces).items():
            precision, recall = TARGETS[label]
            delay = sorted(each.delays)[len(each.delays) // 2] if each.delays else 0
            if each.precision < precision or each.recall < recall or delay > MOST_DELAY:
                missed.append(
                    f"{part}, {label}: {each.precision:.2f} / {each.recall:.2f}, median delay {delay};"
                    f" target {precision:.2f} / {recall:.2f}, {MOST_DELAY}"
                )
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
