"""What chosen runs come to, with all runs below them: how they ended, what they cost, which tools failed.

Plain functions over rows of the index and what it keeps of each run's own calls: no log is read. Cost and tokens by
prompt are those of the chosen runs with everything below them, and add up to the totals; those by model are added up
from the calls of the runs that have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.store.activity import Activity
from watchkeeper.store.run_index import StoredRun, with_superseded
from watchkeeper.store.selection import Totals, totals_of
from watchkeeper.store.states import state_of


@dataclass(frozen=True, slots=True)
class Figures:
    """What chosen runs come to.

    Attributes:
        totals: Of the chosen runs.
        ends: How many runs and items ended in which way: ``done``, the reason of a stop, ``process died``,
            ``running``, ``damaged``, or ``not begun`` for items.
        verdicts: How many of those that have ended had which last word of a completion checker.
        prompts: By the name of a chosen run's prompt, what these runs come to.
        retries: Calls that repeated a failed one.
        activity: What the runs and all below them did, once they had ended.
        not_whole: How many logs could not be read to their end.
    """

    totals: Totals
    ends: Mapping[str, int]
    verdicts: Mapping[str, int]
    prompts: Mapping[str, Totals]
    retries: int
    activity: Activity
    not_whole: int

    def as_data(self) -> dict[str, Any]:
        """Return them as JSON-able data: the totals, and lists of rows, those that matter most first."""
        did = self.activity
        tools = sorted(did.tools.items(), key=lambda each: (-each[1].failed, -each[1].ms, each[0]))
        models = sorted(did.models.items(), key=lambda each: (-each[1].cost_nanos, -each[1].calls, each[0]))
        return {
            "totals": {**_totals(self.totals), "retries": self.retries, "logs_not_whole": self.not_whole},
            "ends": [{"end": end, "runs": times} for end, times in _most(self.ends)],
            "verdicts": [{"verdict": verdict, "runs": times} for verdict, times in _most(self.verdicts)],
            "prompts": [
                {"prompt": name, **_totals(totals)}
                for name, totals in sorted(self.prompts.items(), key=lambda each: (-each[1].cost_nanos, each[0]))
            ],
            "models": [
                {
                    "model": name,
                    "calls": use.calls,
                    "failed": use.failed,
                    "input_tokens": use.input_tokens,
                    "output_tokens": use.output_tokens,
                    "cost_usd": _dollars(use.cost_nanos),
                    "unpriced": use.unpriced,
                    "seconds": round(use.ms / 1000, 6),
                }
                for name, use in models
            ],
            "tools": [
                {
                    "tool": name,
                    "calls": use.calls,
                    "failed": use.failed,
                    "not_run": use.not_run,
                    "retried": use.retried,
                    "seconds": round(use.ms / 1000, 6),
                    "slowest_seconds": round(use.slowest_ms / 1000, 6),
                }
                for name, use in tools
            ],
            "model_failures": [{"fault": fault, "times": times} for fault, times in _most(did.faults)],
            "assessments": [
                {"source": source, "severity": severity, "times": times}
                for source, said in sorted(did.advised.items())
                for severity, times in (
                    *_most(said.severities),
                    *((word, times) for word, times in (("told", said.told), ("failed", said.failed)) if times),
                )
            ],
        }


def _totals(totals: Totals) -> dict[str, Any]:
    return {
        "runs": totals.runs,
        "done": totals.done,
        "not_done": totals.failed,
        "parked": totals.parked,
        "running": totals.running,
        "tokens": totals.tokens,
        "cost_usd": _dollars(totals.cost_nanos),
        "unpriced": totals.unpriced,
        "seconds": totals.seconds,
    }


def _dollars(nanos: int) -> str:
    return f"{(Decimal(nanos) / NANOS_PER_USD).normalize():f}"


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))


def figures_of(
    chosen: Sequence[StoredRun], everything: Iterable[StoredRun], activities: Mapping[str, Activity]
) -> Figures:
    """Return what runs come to.

    Args:
        chosen: The runs.
        everything: All runs of the store, in the order they began.
        activities: By id, what runs did themselves.
    """
    below: dict[str, list[StoredRun]] = {}
    for run in everything:
        if run.parent_id is not None:
            below.setdefault(run.parent_id, []).append(run)
    tops = _without_those_below(chosen, below)
    ends, verdicts = dict[str, int](), dict[str, int]()
    prompts: dict[str, list[StoredRun]] = {}
    for run in tops:
        prompts.setdefault(run.prompt, []).append(run)
        tasks = [run]
        if run.items is not None:
            tasks = [each for each in with_superseded(below.get(run.run_id, ())) if each.item is not None]
            begun = {each.item_index for each in tasks}
            if len(begun) < run.items and not run.running:
                _count(ends, "not begun", run.items - len(begun))
        for task in tasks:
            if not task.superseded:
                state = state_of(task)
                _count(ends, "done" if state.kind in ("done", "unverified") else state.key)
                if task.completion is not None:
                    _count(verdicts, task.completion)
    did, broken = Activity(), 0
    for run_id in _with_below(tops, below):
        own = activities.get(run_id)
        if own is not None:
            did.add(own)
            broken += not own.whole
    retries = sum((run.usage or {}).get("retries", 0) for run in tops)
    by_prompt = {name: totals_of(runs) for name, runs in prompts.items()}
    return Figures(totals_of(tops), ends, verdicts, by_prompt, retries, did, broken)


def _count(counts: dict[str, int], name: str, times: int = 1) -> None:
    counts[name] = counts.get(name, 0) + times


def _without_those_below(
    chosen: Sequence[StoredRun], below: Mapping[str, Sequence[StoredRun]]
) -> tuple[StoredRun, ...]:
    """Return the chosen runs, each once, without those that are below another of them: that has their figures."""
    runs = {run.run_id: run for run in chosen}
    inside: set[str] = set()
    for run in runs.values():
        if run.run_id not in inside:
            inside.update(each for each in _with_below([run], below) if each != run.run_id)
    return tuple(run for run in runs.values() if run.run_id not in inside)


def _with_below(runs: Iterable[StoredRun], below: Mapping[str, Sequence[StoredRun]]) -> dict[str, None]:
    """Return the ids of runs and of all below them, each once."""
    found: dict[str, None] = {}
    waiting = [run.run_id for run in runs]
    while waiting:
        run_id = waiting.pop()
        if run_id not in found:
            found[run_id] = None
            waiting += [each.run_id for each in below.get(run_id, ())]
    return found
