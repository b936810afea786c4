"""Going on with a run over many items: which results stand, which items go on, and which are begun anew.

An item that was interrupted goes on from its own record; one that failed is begun anew, as a new run. An item is known
by its number, and the newest of its runs counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, Literal, get_args
from uuid import UUID

from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.codec import CodecError, encode
from watchkeeper.core.errors import ConfigurationError, Stop
from watchkeeper.loop.reopen import Reader, RunRow, newest
from watchkeeper.loop.resume import GoesOn, Resumed, result_on_record
from watchkeeper.loop.used import earlier_of, worked_seconds
from watchkeeper.runtime.events import ManyEnded, ManyStarted, RunOpened, RunResumed
from watchkeeper.runtime.parking import refuse_waiting
from watchkeeper.runtime.result import GO_ON, ManyResult, RunResult
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.session.tagging import dump

Only = Literal["failed", "unstarted"]
ONLY: Final[tuple[str, ...]] = get_args(Only)


class ResumedMany(GoesOn, frozen=True, kw_only=True):
    """What a run over many items goes on with.

    Attributes:
        concurrency: How many items ran at once.
        kept: By index, the results that stand.
        going_on: By index, log and record of the items that were interrupted.
        redo: The indexes of the items that are done now, in order.
        ended: By index, how the items had ended whose results do not stand.
        take_over: Takes the run of an item that goes on from the process that has died.
    """

    take_over: Callable[[UUID], None]
    concurrency: int
    kept: Mapping[int, RunResult[Any]]
    going_on: Mapping[int, tuple[Sequence[Envelope], Resumed]]
    redo: tuple[int, ...]
    ended: Mapping[int, RunResult[Any]]

    def as_it_ended(
        self,
        stop: Stop,
        gate: ExecutionContext,
        digests: Mapping[str, str],
        never_begun: Callable[[int], RunResult[Any]],
    ) -> ManyResult[Any]:
        """Return how a run ended that would stop at the same limit again; nothing is recorded.

        Raises:
            ConfigurationError: If it is made of other things than it was, and that is not accepted.
        """
        self.changes(digests)
        known = {**self.ended, **self.kept}
        results = (known[index] if index in known else never_begun(index) for index in range(len(self.opened.items)))
        used, took = gate.usage + self.earlier.usage, timedelta(seconds=self.worked_seconds + self.earlier.seconds)
        run_id = self.run_context.run_id
        return ManyResult(run_id, tuple(results), stop, used, gate.limits, took, earlier=self.earlier)


def end_of_many(log: Sequence[Envelope]) -> ManyEnded | None:
    """Return the event with which a run over many items has ended; None if it has not, or went on afterwards."""
    kinds = ManyEnded | RunResumed | ManyStarted
    last = next((each.event for each in reversed(log) if isinstance(each.event, kinds)), None)
    return last if isinstance(last, ManyEnded) else None


def digest_of_item(item: object) -> str:
    """Return a digest of an item; an empty text if it has no typed JSON form."""
    try:
        return sha256(encode(dump(item))).hexdigest()[:16]
    except CodecError:
        return ""


def many_taken_over(
    reader: Reader,
    run_id: UUID,
    rows: Sequence[RunRow],
    items: Sequence[tuple[str, Any]],
    only: Only | None,
    now: datetime,
) -> tuple[Sequence[Envelope], ResumedMany]:
    """Take a run over many items over from the process that has died.

    An item that was interrupted is taken over when it goes on, because each holds an open file from then on.

    Args:
        reader: Reads the store.
        run_id: Id of the run.
        rows: The runs of its items, in the order they began.
        items: The items as they are given now, with their labels.
        only: Which items are to be done now.
        now: The time, by which questions of parked items expire.

    Raises:
        ConfigurationError: If it was made of other items, cannot be rebuilt, or only waits for answers.
        StoreError: If it is not there, is running, or cannot be read.
    """
    reader.take_over(run_id)  # before it is read: its process may be writing still
    log = reader.session_log(run_id)
    own = newest(log)
    started: ManyStarted = own[0].event
    opened = next((each.event for each in own if isinstance(each.event, RunOpened)), None)
    if opened is None:
        raise ConfigurationError(f"the process of the run {run_id} died before anything was done; start a new run")
    if opened.not_resumable:
        raise ConfigurationError(f"the run {run_id} cannot be resumed: {opened.not_resumable}")
    refuse_other_items(started, opened, items)
    kept, ended, going_on, redo = sorted_out(reader, rows, len(items), only, now)
    if not redo:
        waiting = (question for result in kept.values() for question in result.waiting)
        refuse_waiting(run_id, waiting, now, reader.store.path)
    spent = reader.used_by_items(own, rows)
    worked = worked_seconds(own, reader.last_of(UUID(row.run_id) for row in rows))
    return log, ResumedMany(
        started.run_context,
        log[-1].seq,
        opened,
        spent,
        worked,
        accept_changes=reader.accept_changes,
        earlier=earlier_of(each.event for each in own),
        take_over=reader.take_over,
        concurrency=started.concurrency,
        kept=kept,
        going_on=going_on,
        redo=redo,
        ended=ended,
    )


def sorted_out(
    reader: Reader, rows: Sequence[RunRow], items: int, only: Only | None, now: datetime
) -> tuple[
    Mapping[int, RunResult[Any]],
    Mapping[int, RunResult[Any]],
    Mapping[int, tuple[Sequence[Envelope], Resumed]],
    tuple[int, ...],
]:
    """Return which results stand and which do not, which items go on, and which are done now.

    The newest run of an item counts. An item that is parked stands while one of its questions has neither an answer nor
    expired.
    """
    kept: dict[int, RunResult[Any]] = {}
    ended: dict[int, RunResult[Any]] = {}
    going_on: dict[int, tuple[Sequence[Envelope], Resumed]] = {}
    redo: list[int] = []
    by_index = {row.item_index: UUID(row.run_id) for row in rows if not row.superseded}
    for index in range(items):
        run_id = by_index.get(index)
        log = [] if run_id is None else reader.session_log(run_id)
        result = result_of_item(log)
        stop = None if result is None else result.stop
        failed = stop is not None and stop.reason not in GO_ON
        waits = result is not None and not all(question.expired(now) for question in result.waiting)
        if result is not None and (stop is None or waits or (failed and only == "unstarted")):
            kept[index] = result
            continue
        if result is not None:
            ended[index] = result
        if only is None or (only == "failed") == failed:
            redo.append(index)
            if run_id is not None and not failed and any(isinstance(each.event, RunOpened) for each in log):
                going_on[index] = log, reader.resumed(run_id)
    return kept, ended, going_on, tuple(redo)


def result_of_item(log: Sequence[Envelope]) -> RunResult[Any] | None:
    """Return the result of an item by its log; None if it has not ended."""
    if not log:
        return None
    session = Session.restored(log, newest(log)[0].event.run_context.session_id)
    session.close()
    return result_on_record(log, session)


def refuse_other_items(started: ManyStarted, opened: RunOpened, items: Sequence[tuple[str, Any]]) -> None:
    """Refuse items that are not those of the run.

    Raises:
        ConfigurationError: Naming the first one that differs.
    """
    run_id, before = started.run_context.run_id, started.items
    for index, (label, item) in enumerate(items[: len(before)]):
        digest = opened.items[index]
        if label != before[index] or (digest and digest != digest_of_item(item)):
            said = f"was {before[index]!r} and is {label!r}" if label != before[index] else f"{label!r} has changed"
            raise ConfigurationError(
                f"the run {run_id} needs the items that it began with: item {index + 1} {said}; start a new run for"
                " others"
            )
    if len(items) != len(before):
        more = items[len(before)][0] if len(items) > len(before) else before[len(items)]
        what = "is new" if len(items) > len(before) else "is missing"
        raise ConfigurationError(
            f"the run {run_id} had {len(before):,} items, and {len(items):,} are given: {more!r} {what}; start a new"
            " run for others"
        )
