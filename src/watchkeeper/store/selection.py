"""Which of the stored runs are wanted, in which order, and what they come to together.

Plain functions over rows of the index (`StoredRun`): no log is read. A run's figures include those of the runs below
it, so runs without a parent add up, and so do the runs directly below one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.states import state_of

ORDERS: Final[Mapping[str, Callable[[StoredRun], float]]] = {
    "started": lambda run: run.started_at.timestamp() if run.damage is None else 0.0,
    "cost": lambda run: run.cost_nanos or 0,
    "tokens": lambda run: run.tokens or 0,
    "took": lambda run: run.seconds or 0.0,
}
"""What runs can be sorted by, the newest or the largest first."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which runs are wanted; by default all.

    Attributes:
        failed: Only those that did not do their work; see `State.has_failed`.
        stopped: Only those that ended early, for whatever reason.
        since: Only those that began at this time or later; one whose start cannot be read is taken.
        prompt: Only those whose prompt's name contains this; upper and lower case are the same.
        model: Only those whose model's name, or provider, contains this.
    """

    failed: bool = False
    stopped: bool = False
    since: datetime | None = None
    prompt: str = ""
    model: str = ""

    def takes(self, run: StoredRun) -> bool:
        """Return whether a run is wanted."""
        return (
            (not self.failed or state_of(run).has_failed)
            and (not self.stopped or run.stop is not None)
            and (self.since is None or run.damage is not None or run.started_at >= self.since)
            and self.prompt.lower() in run.prompt.lower()
            and self.model.lower() in run.model.lower()
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """What runs come to together.

    Attributes:
        runs: How many there are.
        done: How many did their work.
        failed: How many did not.
        parked: How many wait for a person.
        running: How many go on.
        tokens: Tokens of those that have ended.
        cost_nanos: Cost of those that have ended, as far as it is known, in nano-dollars.
        unpriced: How many have ended whose cost is not known.
        seconds: How long they took, one after the other.
        open: How many have not ended, whose figures are in none of these.
    """

    runs: int
    done: int
    failed: int
    parked: int
    running: int
    tokens: int
    cost_nanos: int
    unpriced: int
    seconds: float
    open: int


def totals_of(runs: Iterable[StoredRun]) -> Totals:
    """Add runs up; one that was begun anew later is counted in its figures only."""
    count = failed = parked = running = tokens = cost = unpriced = unended = 0
    seconds = 0.0
    for run in runs:
        if not run.superseded:
            count += 1
            state = state_of(run)
            failed += state.has_failed
            parked += state.kind == "waiting"
            running += state.kind == "running"
        if run.ended_at is not None:
            tokens += run.tokens or 0
            cost += run.cost_nanos or 0
            unpriced += run.cost_nanos is None
            seconds += run.seconds or 0.0
        else:
            unended += 1
    done = count - failed - parked - running
    return Totals(count, done, failed, parked, running, tokens, cost, unpriced, seconds, unended)
