"""`resume_many`: goes on with a run over many items; what is done stays done, the rest is done under the old limits.

An item that was interrupted goes on from its own record. One that failed is begun anew, as a new run of the same item;
what its earlier run used stays counted. The caller gives the items again, and they must be the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar, Unpack, cast, get_args
from uuid import UUID

import msgspec

from watchkeeper.accounting.limits import Limits
from watchkeeper.app.options import ManyOptions, check_arguments, options_for_run
from watchkeeper.app.resume import opened_store, with_recorded
from watchkeeper.app.run import Request, listed, one_line
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.model import Model
from watchkeeper.core.usage import Usage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.loop.resume import Resumed, ResumedMany, digest_of_item, result_on_record, time_left, worked_seconds
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import ManyStarted, RunOpened
from watchkeeper.runtime.result import ManyResult, RunResult
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.store.reopen import Reader, newest
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore

OutputT = TypeVar("OutputT")
Only = Literal["failed", "unstarted"]
ONLY: Final[tuple[str, ...]] = get_args(Only)


class ResumeManyOptions(ManyOptions, total=False):
    """The options of `resume_many`: those of `run_many`, and these.

    Attributes:
        limits: New limits for all items and attempts together; those on record by default.
        fresh_limits: Whether what was used before does not count.
        accept_changes: Whether the run may go on although its prompt, tools, answer type or models have changed.
        only: ``failed`` for the items that ended without being done, ``unstarted`` for those that never began or were
            interrupted; None for both.
    """

    limits: Limits | None
    fresh_limits: bool
    accept_changes: bool
    only: Only | None


OWN: Final = frozenset(ResumeManyOptions.__annotations__.keys() - ManyOptions.__annotations__.keys())


def resume_many(
    run_id: str,
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    items: Iterable[Any],
    *,
    model: Model | str,
    **options: Unpack[ResumeManyOptions],
) -> ManyResult[OutputT]:
    """Go on with a run over many items and return one result for each; see `aresume_many` for the arguments."""
    order = _Order.of(run_id, prompt, items, model, options)
    with opened_store(order.options) as store:
        return cast("ManyResult[OutputT]", order.request(store).wait("aresume_many"))


async def aresume_many(
    run_id: str,
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    items: Iterable[Any],
    *,
    model: Model | str,
    **options: Unpack[ResumeManyOptions],
) -> ManyResult[OutputT]:
    """Go on with a run over many items and return one result for each, also for those that were done before.

    Args:
        run_id: Its id, or the beginning of it.
        prompt: The prompt of the run; values that it lacks are those on record.
        items: The items of the run, the same ones in the same order.
        model: The model that answers from here on.
        options: See `ResumeManyOptions`; ``store`` is the store of the run.

    Raises:
        ConfigurationError: If the run is done, the items are others, or it cannot go on with what is given; nothing was
            spent.
        StoreError: If the run is not in the store, is running, or cannot be read.
    """
    order = _Order.of(run_id, prompt, items, model, options)
    with opened_store(order.options) as store:
        request = await run_in_worker(order.request, store)
        return cast("ManyResult[OutputT]", await request.carry_out())


@dataclass(frozen=True, slots=True)
class _Order(Generic[OutputT]):
    """What the caller asked for."""

    run_id: str
    prompt: Prompt[OutputT]
    items: tuple[Any, ...]
    model: Model | str
    options: ManyOptions
    own: ResumeManyOptions

    @classmethod
    def of(
        cls,
        run_id: str,
        prompt: Prompt[OutputT] | PromptTemplate[OutputT],
        items: Iterable[Any],
        model: Model | str,
        options: ResumeManyOptions,
    ) -> _Order[OutputT]:
        check_arguments({"prompt": prompt, "model": model})
        own: Any = {name: value for name, value in options.items() if name in OWN}
        given: Any = {name: value for name, value in options.items() if name not in OWN}
        if own.get("limits") is not None:
            check_arguments({"limits": own["limits"]})
        if own.get("only") not in (None, *ONLY):
            raise ConfigurationError(f"only={own['only']!r} must be {' or '.join(map(repr, ONLY))}, or None")
        bound = Prompt(prompt) if isinstance(prompt, PromptTemplate) else prompt
        return cls(run_id, bound, listed(items), model, options_for_run(given, ManyOptions), own)

    def request(self, store: RunStore) -> Request[OutputT]:
        """Take the run over, and return the request that goes on with it."""
        own, clock = self.own, self.options.get("clock", SYSTEM_CLOCK)
        reader = Reader(store, accept_changes=own.get("accept_changes", False))
        label = self.options.get("label", str)
        labels = [one_line(label(item)) for item in self.items]
        log, resumed = many_taken_over(reader, self.run_id, list(zip(labels, self.items, strict=True)), own.get("only"))
        limits = own.get("limits") or resumed.opened.limit_values or Limits()
        if own.get("fresh_limits", False):
            resumed = msgspec.structs.replace(resumed, spent=Usage(), worked_seconds=0.0)
        return Request(
            with_recorded(self.prompt, resumed.opened),
            self.model,
            time_left(limits, resumed.worked_seconds),
            cast("ManyOptions", {**self.options, "store": store}),
            Session.restored(log, resumed.run_context.session_id, clock=clock),
            items=self.items,
            resumed=resumed,
        )


def many_taken_over(
    reader: Reader, run_id: str, items: Sequence[tuple[str, Any]], only: Only | None
) -> tuple[Sequence[Envelope], ResumedMany]:
    """Take a run over many items over from the process that has died, and its items that were interrupted.

    Args:
        reader: Reads the store.
        run_id: Id of the run, or the beginning of it.
        items: The items as they are given now, with their labels.
        only: Which items are to be done now.

    Raises:
        ConfigurationError: If it is done, was made of other items, or cannot be rebuilt.
        StoreError: If it is not there, is running, or cannot be read.
    """
    run = reader.store.find(run_id)
    if run.items is None:
        raise ConfigurationError(f"the run {run.run_id} is not one over many items; use resume")
    if run.ended_at is not None and run.items_done == run.items:
        raise ConfigurationError(f"the run {run.run_id} is done: {run.sentence()}")
    log = reader.log(UUID(run.run_id))
    own = newest(log)
    started: ManyStarted = own[0].event
    opened = next((each.event for each in own if isinstance(each.event, RunOpened)), None)
    if opened is None:
        raise ConfigurationError(f"the process of the run {run.run_id} died before anything was done; start a new run")
    if opened.not_resumable:
        raise ConfigurationError(f"the run {run.run_id} cannot be resumed: {opened.not_resumable}")
    refuse_other_items(started, opened, items)
    rows = reader.store.children(run.run_id)
    reader.store.check(rows)
    kept, going_on, redo = sorted_out(reader, rows, len(items), only)
    spent = sum((reader.used_by(UUID(row.run_id)) for row in rows), Usage())
    worked = worked_seconds(own, reader.last_of(UUID(row.run_id) for row in rows))
    for each in (UUID(run.run_id), *(item.run_context.run_id for _, item in going_on.values())):
        reader.take_over(each)
    accepted = reader.accept_changes
    context, after, at_once = started.run_context, log[-1].seq, started.concurrency
    return log, ResumedMany(context, after, opened, at_once, kept, going_on, redo, spent, worked, accepted)


def sorted_out(
    reader: Reader, rows: Sequence[StoredRun], items: int, only: Only | None
) -> tuple[Mapping[int, RunResult[Any]], Mapping[int, tuple[Sequence[Envelope], Resumed]], tuple[int, ...]]:
    """Return which results stand, which items go on, and which are done now; the newest run of an item counts."""
    kept: dict[int, RunResult[Any]] = {}
    going_on: dict[int, tuple[Sequence[Envelope], Resumed]] = {}
    redo: list[int] = []
    by_index = {row.item_index: UUID(row.run_id) for row in rows}
    for index in range(items):
        run_id = by_index.get(index)
        log = [] if run_id is None else reader.log(run_id)
        result = result_of_item(log)
        stop = None if result is None else result.stop
        failed = stop is not None and stop.reason not in ("interrupted", "aborted")
        if result is not None and (stop is None or (failed and only == "unstarted")):
            kept[index] = result
        elif only is None or (only == "failed") == failed:
            redo.append(index)
            if run_id is not None and not failed and any(isinstance(each.event, RunOpened) for each in log):
                going_on[index] = log, reader.resumed(run_id)
    return kept, going_on, tuple(redo)


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
