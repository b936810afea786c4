"""Records the end of a run that cannot do so itself: it was told three times to stop, and code in it holds the loop.

What the run had used is what its gate has counted, with the worst case of the calls under way presumed. The turns, the
time, and what single runs below it had used, are read from their stored events, as when a run goes on (`loop/used`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from watchkeeper.accounting.ledger import usage_if_lost
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import Stop
from watchkeeper.core.type_tags import tag_of
from watchkeeper.core.usage import Usage
from watchkeeper.loop.reopen import end_of
from watchkeeper.loop.used import beyond, earlier_of, spent_of, worked_seconds
from watchkeeper.runtime.events import ManyEnded, ModelReplied, RunEnded
from watchkeeper.session.log import Envelope
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.items import Item
from watchkeeper.store.run_store import RunStore, StoredEvent

REPLIED: Final = tag_of(ModelReplied)

MESSAGE: Final = (
    "The run was aborted: it was interrupted three times and did not come to its end; "
    "the worst case is presumed for the calls that were under way."
)


def end_on_record(store: RunStore, run_id: UUID, now: datetime) -> StoredRun:
    """Record the end of a run and of all runs below it, unless it is there already, and return the run as stored.

    Args:
        store: The store in which the run is recorded.
        run_id: Its id; what has not begun there cannot be ended.
        now: The present time, in UTC.

    Raises:
        StoreError: If the run is not there, or its end cannot be written.
    """
    run = store.find(str(run_id))
    if run.ended_at is None:
        _end(store, run, now)
    return store.find(str(run_id))


def _end(store: RunStore, run: StoredRun, now: datetime) -> Usage:
    """Record the end of a run after those of the runs below it; return all that they used together."""
    stored = list(store.events(run.run_id, calls=True))
    log, children = list(_readable(stored)), store.children(run.run_id)
    below = {UUID(child.run_id): _end(store, child, now) for child in children}
    ended = end_of(log)
    if ended is not None:
        return ended.usage + ended.earlier.usage
    earlier = earlier_of(each.event for each in log)
    used = (
        beyond(sum(below.values(), Usage()), earlier.usage)
        if run.items is not None
        else spent_of(log, lambda each: below.get(each, Usage())).usage
    )
    usage = usage_if_lost(run.run_id) or used
    if run.ended_at is not None:
        return usage + earlier.usage
    stop, took = Stop("aborted", "caller", MESSAGE), worked_seconds(log, now) * 1000 if log else 0.0
    end: RunEnded | ManyEnded
    if run.items is None:
        turns = max(sum(event.tag == REPLIED for event in stored) - earlier.turns, 0)
        facts: Any = {"turns": turns, "earlier": earlier}
        end = RunEnded(UUID(run.run_id), stop, None, None, "", "unchecked", usage, took, None, now, **facts)
    else:
        done = sum(child.ended_at is not None and child.stop is None for child in children)
        end = ManyEnded(UUID(run.run_id), stop, done, run.items, usage, took, now, earlier)
    store.append([Item(UUID(run.run_id), Envelope(stored[-1].seq + 1, now, end))])
    return usage + earlier.usage


def _readable(stored: Iterable[StoredEvent]) -> Iterator[Envelope]:
    """Yield the events that can be read here: the end of a run is put on record without the others."""
    for event in stored:
        with suppress(CodecError):
            yield event.envelope()
