"""What the screen Runs points at before its table: causes that several runs share, then single losses; why runs ended
short; cost and tokens by prompt.

The rules are few and said to the reader: failures that cluster in time at one provider (at most `APART` between two of
them); prompts of which at least a quarter, and at least two runs, were stopped by one limit; records that are damaged;
runs without an end. All follows from rows of the index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

import msgspec

from watchkeeper.core.meters import BY_FIELD
from watchkeeper.core.quantities import counted, format_duration, format_money
from watchkeeper.core.secrets import redacted
from watchkeeper.core.text import one_line
from watchkeeper.inspector.gauges import use_of
from watchkeeper.inspector.status import Status, status_of
from watchkeeper.store.states import Kind
from watchkeeper.store.activity import Activity
from watchkeeper.store.ceilings import SECONDS
from watchkeeper.store.run_index import StoredRun

APART: Final = timedelta(minutes=30)
SHARE: Final = 0.25
LEAST: Final = 2
MOST_HINTS: Final = 6
MOST_ROWS: Final = 8
ALONE: Final = 3
"""Up to so many runs without an end are told one by one."""

AT_PROVIDER: Final = frozenset({"circuit_open", "provider_error", "provider_rate_limit", "retry_budget_exceeded"})
"""Reasons of stops that are a provider's."""

SHORT: Final[tuple[Kind, ...]] = ("failed", "lost", "stopped", "waiting")
"""Kinds of ends that are short of the work."""


class Hint(msgspec.Struct, frozen=True):
    """One thing to look at first.

    Attributes:
        key: What its runs are filtered by.
        kind: Which shape and colour it has.
        title: What it is.
        since: When it began, if it lies in a span of time.
        until: When it ended, if it lies in a span of time.
        detail: More about it.
        run_ids: The runs.
    """

    key: str
    kind: Kind
    title: str
    since: datetime | None
    until: datetime | None
    detail: str
    run_ids: tuple[str, ...]


class Reason(msgspec.Struct, frozen=True):
    """Why several runs ended short: how many, of which prompts, and what went into them."""

    status: Status
    runs: int
    prompts: str
    spent: str


class Share(msgspec.Struct, frozen=True):
    """What the runs of one prompt came to; an empty name stands for all others together."""

    prompt: str
    done: int
    runs: int
    cost_nanos: int
    cost: str
    tokens: int


Ended = Sequence[tuple[StoredRun, Status]]
"""Tasks with what became of them, without those that were begun anew later."""


def hints(ended: Ended, activities: Mapping[str, Activity]) -> tuple[Hint, ...]:
    """Return what to look at first, the causes that more runs share first."""
    shared = [*_at_providers(ended, activities), *_at_limits(ended)]
    shared.sort(key=lambda hint: -len(hint.run_ids))
    return (*shared, *_damaged(ended), *_without_end(ended))[:MOST_HINTS]


def reasons(ended: Ended) -> tuple[Reason, ...]:
    """Return why runs ended short of their work, the most frequent reason of each kind first."""
    found: dict[Status, list[StoredRun]] = {}
    for run, status in ended:
        if status.kind in SHORT:
            found.setdefault(status, []).append(run)
    ranked = sorted(found.items(), key=lambda each: -len(each[1]))
    return tuple(
        Reason(status, len(runs), _names(run.prompt for run in runs), _spent(runs))
        for status, runs in ranked[:MOST_ROWS]
    )


def shares(ended: Ended) -> tuple[Share, ...]:
    """Return what the runs of each prompt came to, the dearest first."""
    found: dict[str, list[tuple[StoredRun, Status]]] = {}
    for run, status in ended:
        found.setdefault(run.prompt, []).append((run, status))
    ranked = sorted(found.items(), key=lambda each: -sum(run.cost_nanos or 0 for run, _ in each[1]))
    if len(ranked) > MOST_ROWS:
        rest = [each for _, runs in ranked[MOST_ROWS - 1 :] for each in runs]
        ranked = [*ranked[: MOST_ROWS - 1], ("", rest)]
    return tuple(_share(_shown(name), runs) for name, runs in ranked)


def _share(name: str, runs: Ended) -> Share:
    nanos = sum(run.cost_nanos or 0 for run, _ in runs)
    done = sum(status.kind == "done" for _, status in runs)
    return Share(name, done, len(runs), nanos, format_money(nanos), sum(run.tokens or 0 for run, _ in runs))


def _at_providers(ended: Ended, activities: Mapping[str, Activity]) -> Iterator[Hint]:
    """Yield failures of one provider that follow each other closely."""
    failed: dict[str, list[StoredRun]] = {}
    for run, status in ended:
        if status.key in AT_PROVIDER and run.ended_at is not None:
            failed.setdefault(run.model.partition(":")[0], []).append(run)
    for provider, runs in failed.items():
        for cluster in _clusters(sorted(runs, key=_end)):
            if len(cluster) < LEAST:
                continue
            calls = sum(sum(activities[run.run_id].faults.values()) for run in cluster if run.run_id in activities)
            ends = Counter(status_of(run).words.removeprefix("Stopped: ") for run in cluster)
            why = ", ".join(f"{times:,} {words}" for words, times in ends.most_common())
            yield Hint(
                key=f"{_shown(provider)} {_end(cluster[0]):%Y-%m-%dT%H:%MZ}",
                kind="stopped",
                title=f"{_shown(provider)} failed {counted(len(cluster), 'run')}",
                since=_end(cluster[0]),
                until=_end(cluster[-1]),
                detail=f"{why}; {counted(calls, 'model call')} failed in them.",
                run_ids=tuple(run.run_id for run in cluster),
            )


def _end(run: StoredRun) -> datetime:
    return run.ended_at or run.started_at


def _clusters(runs: Sequence[StoredRun]) -> Iterator[list[StoredRun]]:
    """Yield runs that ended at most `APART` after each other together."""
    found = [runs[0]]
    for before, run in pairwise(runs):
        if _end(run) - _end(before) > APART:
            yield found
            found = []
        found.append(run)
    yield found


def _at_limits(ended: Ended) -> Iterator[Hint]:
    """Yield prompts of which many runs were stopped by one limit."""
    prompts: dict[str, list[StoredRun]] = {}
    hits: dict[tuple[str, str], list[StoredRun]] = {}
    for run, status in ended:
        prompts.setdefault(run.prompt, []).append(run)
        if status.kind == "stopped" and run.stop is not None and run.stop.get("limit"):
            hits.setdefault((run.prompt, str(run.stop["limit"])), []).append(run)
    for (prompt, limit), runs in hits.items():
        among = prompts[prompt]
        if len(runs) >= LEAST and len(runs) >= SHARE * len(among):
            by = status_of(runs[0]).words.removeprefix("Stopped: ")
            yield Hint(
                key=f"{_shown(prompt)} {_shown(limit)}",
                kind="stopped",
                title=f"{_shown(prompt)}: {len(runs):,} of {len(among):,} stopped by {by}",
                since=None,
                until=None,
                detail=_others(among, limit),
                run_ids=tuple(run.run_id for run in runs),
            )


def _others(runs: Iterable[StoredRun], limit: str) -> str:
    """Say what those runs of a prompt used of a limit that were not stopped; empty if none was or nobody knows."""
    field = SECONDS if limit == "deadline" else limit
    if field not in AMOUNTS:
        return ""
    write = AMOUNTS[field]
    ended = [run for run in runs if run.stop is None and run.ended_at]
    amounts = [amount for run in ended if (amount := use_of(run).used[field]) is not None]
    if not amounts:
        return "None of its runs came to its end."
    unit = f" {BY_FIELD[field].units}" if field in BY_FIELD and field != "max_cost_usd" else ""
    most = {ceilings[field] for run in runs if field in (ceilings := run.ceilings or {})}
    of = f" of {write(most.pop())}" if len(most) == 1 else ""
    return f"Those that came to their end used {write(min(amounts))} to {write(max(amounts))}{of}{unit}."


AMOUNTS: Final[Mapping[str, Callable[[float], str]]] = {
    "max_cost_usd": lambda amount: format_money(int(amount)),
    **dict.fromkeys(("max_total_tokens", "max_steps", "max_turns"), lambda amount: f"{int(amount):,}"),
    SECONDS: format_duration,
}
"""By the field of a limit, how what a run used of it is written."""


def _damaged(ended: Ended) -> Iterator[Hint]:
    runs = [run for run, status in ended if status.key == "damaged"]
    if runs:
        title = f"{counted(len(runs), 'record')} cannot be read"
        detail = "'watchkeeper store check' says where the damage is."
        yield Hint("damaged", "failed", title, None, None, detail, tuple(run.run_id for run in runs))


def _without_end(ended: Ended) -> Iterator[Hint]:
    """Yield runs whose process ended before they did."""
    runs = [run for run, status in ended if status.kind == "lost"]
    if len(runs) > ALONE:
        title = f"{len(runs):,} runs have no end: their processes ended before"
        detail = f"{sum(run.is_resumable for run in runs):,} of them can be resumed."
        yield Hint("interrupted", "lost", title, None, None, detail, tuple(run.run_id for run in runs))
        return
    for run in runs:
        name = _shown(f"{run.prompt} {run.item or ''}")
        why = f": {_shown(run.not_resumable)}" if run.not_resumable else ""
        again = f"'watchkeeper resume {run.run_id[:8]}' goes on with it."
        detail = again if run.is_resumable else f"It cannot be resumed{why}."
        title = f"{name}: its process ended before it did"
        yield Hint(run.run_id[:8], "lost", title, None, None, detail, (run.run_id,))


def _names(prompts: Iterable[str]) -> str:
    """Return the names of prompts, those with most runs first, at most three."""
    ranked = [_shown(name.rpartition("/")[2]) for name, _ in Counter(prompts).most_common()]
    return ", ".join(ranked[:3]) + (f" and {len(ranked) - 3} more" if len(ranked) > 3 else "")


def _spent(runs: Iterable[StoredRun]) -> str:
    known = [run.cost_nanos for run in runs if run.cost_nanos is not None]
    return format_money(sum(known)) if known else "unknown"


def _shown(text: str) -> str:
    return one_line(redacted(text))
