"""Records the end of a run that cannot do so itself: it was told three times to stop, and code in it holds the loop.

What the run had used is what its gate has counted, with the worst case of the calls under way presumed. The turns, and
what single runs below it had used, are read from their stored events.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from watchkeeper.accounting.ledger import usage_if_lost
from watchkeeper.core.errors import Stop
from watchkeeper.core.usage import TokenUsage, Usage
from watchkeeper.runtime.events import ManyEnded, RunEnded
from watchkeeper.session.log import Envelope
from watchkeeper.store.run_index import StoredRun, untyped
from watchkeeper.store.run_store import UNWRITABLE, RunStore

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
    """Record the end of a run after those of the runs below it; return what they used together."""
    usage, turns, last = Usage(), 0, 0
    for event in store.events(run.run_id):
        last, fields = event.seq, untyped(event.body)
        if UNWRITABLE in fields:
            continue
        if event.tag == "model_replied":
            turns += 1
            usage += Usage(TokenUsage(**fields["usage"]), fields["cost_nanos"], model_calls=1, steps=1)
        elif event.tag == "model_failed":
            usage += Usage(model_calls=1, steps=1)
        elif event.tag == "tool_invoked":
            usage += Usage(tool_calls=1, steps=1)
        elif event.tag == "call_ended" and fields["status"] != "halted":
            model = int(fields["kind"] == "llm")
            tokens, cost = TokenUsage(**fields["usage"]), fields["cost_nanos"]
            usage += Usage(tokens, cost, model_calls=model, tool_calls=1 - model, steps=1)
    children = store.children(run.run_id)
    usage = sum((_end(store, child, now) for child in children), usage)
    usage = usage_if_lost(run.run_id) or usage
    if run.ended_at is not None:
        return usage
    stop, took = Stop("aborted", "caller", MESSAGE), (now - run.started_at).total_seconds() * 1000
    ended: Any
    if run.items is None:
        ended = RunEnded(UUID(run.run_id), stop, None, None, "", "unchecked", usage, took, None, now, turns)
    else:
        done = sum(child.ended_at is not None and child.stop is None for child in children)
        ended = ManyEnded(UUID(run.run_id), stop, done, run.items, usage, took, now)
    store.append([(UUID(run.run_id), Envelope(last + 1, now, ended))])
    return usage
