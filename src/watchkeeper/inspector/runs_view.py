"""The screen Runs: one sentence on how it went, whose counts filter, and a row for each task.

A task is a run without a parent, or each item of a run over many. All figures come from rows of the index and what it
keeps of each run's own calls: no log is read. Costs of the rows add up to the total.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from watchkeeper.core.quantities import counted, format_duration, format_money
from watchkeeper.core.secrets import redacted
from watchkeeper.core.text import one_line
from watchkeeper.inspector.gauges import Small, small_gauges
from watchkeeper.inspector.look_first import Hint, Reason, Share, hints, reasons, shares
from watchkeeper.inspector.status import Status, status_of
from watchkeeper.inspector.wording import name_of
from watchkeeper.prompt.advice import SEVERITIES
from watchkeeper.store.activity import Activity
from watchkeeper.store.run_index import StoredRun, with_superseded
from watchkeeper.store.run_store import RunStore

WORST_FIRST = ("failed", "lost", "stopped", "waiting", "unverified", "running", "superseded", "done")
RANKS: Final = {kind: rank for rank, kind in enumerate(WORST_FIRST)}


NO_ACTIVITIES: Final[Mapping[str, Activity]] = {}


class Advice(msgspec.Struct, frozen=True, gc=False):
    """The worst that observers have said of a run: how bad, and who."""

    severity: str
    source: str


class Batch(msgspec.Struct, frozen=True, gc=False):
    """A run over many items: its id, what it is called, and how many of its items never began."""

    run_id: str
    name: str
    not_begun: int = 0


class Row(msgspec.Struct, frozen=True, gc=False):
    """One task of the list; texts are as they are to be shown, ``batch`` is the id of the run over many of an item."""

    run_id: str
    prompt: str
    item: str | None
    model: str
    started_at: datetime | None
    seconds: float | None
    took: str
    cost_nanos: int | None
    tokens: int | None
    status: Status
    verdict: str
    advice: Advice | None
    gauges: tuple[Small, ...]
    batch: str = ""


class Count(msgspec.Struct, frozen=True):
    """How many tasks ended in one way."""

    status: Status
    runs: int


class RunsView(msgspec.Struct, frozen=True):
    """What the screen Runs shows.

    Attributes:
        store: The folder of the store.
        sentence: How it went, in one sentence.
        counts: How many tasks ended in which way, other than done; the worst first.
        not_begun: Items that never began.
        batches: The runs over many that rows belong to.
        cost: Of all rows together, in words.
        cost_nanos: The same as a number, as far as costs are known.
        tokens: Tokens of all rows together.
        retries: Calls that repeated a failed one.
        first: What to look at first.
        reasons: Why tasks ended short of their work.
        prompts: What the tasks of each prompt came to.
        rows: The tasks, the worst first, and of those of one kind the newest.
    """

    store: str
    sentence: str
    counts: tuple[Count, ...]
    not_begun: int
    batches: tuple[Batch, ...]
    cost: str
    cost_nanos: int
    tokens: int
    retries: int
    first: tuple[Hint, ...]
    reasons: tuple[Reason, ...]
    prompts: tuple[Share, ...]
    rows: tuple[Row, ...]


def runs_view(store: RunStore) -> RunsView:
    """Return what the screen Runs shows of a store."""
    everything, activities = store.everything()
    return runs_view_of(one_line(str(store.path)), everything, activities)


def runs_view_of(
    name: str, everything: Iterable[StoredRun], activities: Mapping[str, Activity] = NO_ACTIVITIES
) -> RunsView:
    """Return what the screen Runs shows of runs.

    Args:
        name: That of their store.
        everything: The runs.
        activities: By id, what they did themselves.
    """
    tasks, batches = tasks_of(everything)
    not_begun = sum(missing for _, missing in batches.values())
    known = [(run, status_of(run)) for run in tasks]
    ranked = sorted(known, key=lambda each: each[0].started_at, reverse=True)
    made = (
        row_of(run, activities.get(run.run_id), status, batches.get(run.parent_id or "", (None, 0))[0])
        for run, status in ranked
    )
    rows = sorted(made, key=lambda row: RANKS[row.status.kind])
    ended = [(run, status) for run, status in known if status.kind != "superseded"]
    told = [row for row in rows if row.status.kind != "superseded"]
    cost_nanos = sum(row.cost_nanos or 0 for row in rows)
    unpriced = sum(run.ended_at is not None and run.cost_nanos is None for run in tasks)
    cost = format_money(cost_nanos) + (f" and {counted(unpriced, 'unknown cost')}" if unpriced else "")
    return RunsView(
        store=name,
        sentence=_sentence(told, not_begun),
        counts=tuple(_counts(told)),
        not_begun=not_begun,
        batches=tuple(Batch(run.run_id, shown(name_of(run)), missing) for run, missing in batches.values()),
        cost=cost,
        cost_nanos=cost_nanos,
        tokens=sum(row.tokens or 0 for row in rows),
        retries=sum(int((run.usage or {}).get("retries", 0)) for run in tasks),
        first=hints(ended, activities),
        reasons=reasons(ended),
        prompts=shares(ended),
        rows=tuple(rows),
    )


Batches = Mapping[str, tuple[StoredRun, int]]
"""Runs over many items by their ids, each with the number of its items that never began."""


def tasks_of(everything: Iterable[StoredRun]) -> tuple[list[StoredRun], Batches]:
    """Return the tasks among all runs of a store in the order they began, and the runs over many that items are of."""
    tops, items = list[StoredRun](), dict[str, list[StoredRun]]()
    for run in everything:
        if run.parent_id is None:
            tops.append(run)
        elif run.item is not None:
            items.setdefault(run.parent_id, []).append(run)
    found, batches = list[StoredRun](), dict[str, tuple[StoredRun, int]]()
    for run in tops:
        own = with_superseded(items.get(run.run_id, ()))
        if run.items is None:
            found.append(run)
            continue
        found += own or [run]
        missing = 0 if run.running or not own else run.items - len({each.item_index for each in own})
        batches[run.run_id] = run, missing
    return found, batches


def row_of(
    run: StoredRun, activity: Activity | None = None, status: Status | None = None, above: StoredRun | None = None
) -> Row:
    """Return the row of a stored run.

    Args:
        run: The run.
        activity: What it did itself, if that is known.
        status: What became of it, if that is known.
        above: The run that it is right below, if that is known.
    """
    many = above if run.item is not None else None
    return Row(
        run_id=run.run_id,
        prompt=shown(run.prompt),
        item=None if run.item is None else shown(run.item),
        model=shown(run.model),
        started_at=None if run.damage is not None else run.started_at,
        seconds=run.seconds,
        took="" if run.seconds is None else format_duration(run.seconds),
        cost_nanos=run.cost_nanos,
        tokens=run.tokens,
        status=status or status_of(run),
        verdict=run.completion or "",
        advice=None if activity is None or not activity.advised else _worst(activity),
        gauges=small_gauges(run, many),
        batch="" if many is None else many.run_id,
    )


def _worst(activity: Activity) -> Advice | None:
    """Return the worst that was said of a run, and by whom; None if nothing was."""
    for severity in reversed(SEVERITIES):
        for source, said in activity.advised.items():
            if said.severities.get(severity):
                return Advice(severity, shown(source))
    return None


def shown(text: str) -> str:
    """Return a foreign text as one line without credentials or control characters."""
    return one_line(redacted(text))


def _counts(rows: Iterable[Row]) -> list[Count]:
    found: dict[Status, int] = {}
    for row in rows:
        found[row.status] = found.get(row.status, 0) + 1
    return [Count(status, runs) for status, runs in found.items()]


def _sentence(rows: list[Row], not_begun: int) -> str:
    """Say how many tasks did their work; those that no checker looked at are no less done."""
    count = len(rows) + not_begun
    if not count:
        return "No runs yet"
    done = [row.status.key for row in rows if row.status.kind == "done"]
    verified = all(key == "verified" for key in done)
    return f"{len(done):,} of {count:,} done" + (" and verified" if done and verified else "")
