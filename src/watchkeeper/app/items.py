"""The items of a run over many in progress: each is a run of its own, under the gate that all of them share.

Each item has a session, turns and a log of its own. All use one gate, so the ceilings hold for all of them together.
There is one result per item, in order; if an item fails, the others go on; when a limit ends everything, the items that
were not done are marked as not done.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast
from uuid import UUID

from watchkeeper.accounting.account import account_above
from watchkeeper.accounting.call_request import subject
from watchkeeper.core.errors import Stop
from watchkeeper.core.ids import SYSTEM_IDS, RunContext, derive_child_run_context
from watchkeeper.accounting.limits import UNLIMITED, DefaultRetries, Verdict
from watchkeeper.core.meters import SHARED
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.text import clipped, error_text
from watchkeeper.runtime.used_before import NOTHING_BEFORE
from watchkeeper.core.workers import is_crash, run_in_worker
from watchkeeper.loop.resume import digests_of_template
from watchkeeper.loop.used import time_left
from watchkeeper.loop.resume_many import ResumedMany, digest_of_item
from watchkeeper.app.opened import Opened, to_go_on
from watchkeeper.asking.retry import CIRCUIT_OPEN
from watchkeeper.loop.run import execute, in_force, refuse_to_park
from watchkeeper.runtime.events import ItemEnded, ManyEnded, ManyStarted, ModelReplied, RunOpened
from watchkeeper.runtime.file_record import of_items
from watchkeeper.runtime.parking import parked_stop
from watchkeeper.runtime.result import NOT_STARTED, ManyResult, RunResult, broken_off
from watchkeeper.session.session import Session

OutputT = TypeVar("OutputT")

PER_ITEM: Final = replace(UNLIMITED, max_retries=DefaultRetries.EACH)
"""The limits of one item beside the ceilings over all: the default retries and the turns, unless the caller gives
others."""

OUTAGE: Final = 600.0
"""Seconds without an answer, all items together, after which a provider counts as permanently down."""

CEILINGS_OVER_ALL: Final = frozenset(("deadline", "account_limit", *(meter.field for meter in SHARED)))
"""The limits that can hold for all items together; a stop can also name something else, such as the context window."""

CONCURRENCY: Final = 4
LABEL_CHARS: Final = 200
"""A longer label is cut."""


class Items(Generic[OutputT]):
    """The items in progress: each worker takes the next one until none is left or the whole is stopped."""

    def __init__(self, items: tuple[Any, ...], opened: Opened[OutputT]) -> None:
        options = opened.options
        self.items = items
        self.opened = opened
        self.gate = opened.gate
        self.clock = opened.start.clock
        self.ids = options.get("ids", SYSTEM_IDS)
        self.owner = asyncio.current_task()
        label = options.get("label", str)
        self.labels = tuple(as_label(label(item)) for item in items)
        self.resumed = resumed = cast("ResumedMany | None", opened.start.resumed)
        self.results: list[RunResult[OutputT] | None] = [None] * len(items)
        if resumed is not None:
            self.results = [resumed.kept.get(index) for index in range(len(items))]
        self.redo = tuple(range(len(items))) if resumed is None else resumed.redo
        self.next = iter(self.redo)
        self.began = self.clock.now()
        self.answered_at = self.clock.monotonic()
        self.concurrency = options.get("concurrency", CONCURRENCY if resumed is None else resumed.concurrency)
        limits, each = opened.start.limits, options.get("each") or PER_ITEM
        side_by_side = max(min(self.concurrency, len(items)), 1)
        self.each = replace(
            each,
            landing=limits.landing,
            max_turns=limits.max_turns if each.max_turns is None else each.max_turns,
            verdict=shared_out(limits.verdict, side_by_side),
        )
        account_above(in_force(self.each, opened.start.session, self.clock), self.gate.account)  # or raise, before all

    async def work(self) -> ManyResult[OutputT]:
        """Run every item, and record on the parent's log how the work began and ended."""
        opened, began = self.opened, self.clock.monotonic()
        if self.resumed is not None:
            if (stop := self.resumed.exhausted) is not None:
                never_begun = partial(self._not_started, stop=stop, told=False)
                return self.resumed.as_it_ended(stop, self.gate, self._digests(), never_begun)
            limits, labels = opened.start.limits, [self.labels[index] for index in self.redo]
            again = self.resumed.event(self.gate, limits, self._digests(), self.clock.now(), labels)
            opened.start.session.dispatch(again)
            began -= self.resumed.worked_seconds
        else:
            self._announce()
        try:
            opened.begun()
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.concurrency, len(self.redo))):
                    group.create_task(self._worker())
            stop = self._stop()
            await self._mark_rest(stop)
        except BaseException as error:
            self._close(broken_off(error), began)
            raise
        ended = self._close(stop, began)
        results, earlier = tuple(result for result in self.results if result is not None), ended.earlier
        used, took = ended.usage + earlier.usage, timedelta(milliseconds=ended.duration_ms, seconds=earlier.seconds)
        return ManyResult(ended.run_id, results, stop, used, self.gate.limits, took, earlier=earlier)

    def _announce(self) -> None:
        """Record the start, and what another process needs to go on."""
        opened, start, models = self.opened, self.opened.start, self.opened.around.models
        facts = to_go_on(opened, of_items(opened.options.get("filesystem")))
        refuse_to_park(opened.park, facts["not_resumable"])
        start.session.dispatch(
            ManyStarted(
                run_context=start.context,
                prompt_name=opened.prompt.template.name,
                model=models.first.label,
                limits=self.gate.limits.describe(),
                items=self.labels,
                concurrency=self.concurrency,
                started_at=self.clock.now(),
                fallback=tuple(each.label for each in models.fallback),
                parent_run_id=start.around.parent_run_id,
                apart=start.around.apart,
                limit_values=self.gate.limits,
            )
        )
        if opened.around.durable is not None:
            start.session.dispatch(self._run_opened(facts))

    async def _mark_rest(self, stop: Stop | None) -> None:
        """Mark the items that were not started. They may be many thousands, and the loop has other work too."""
        for index, result in enumerate(self.results):
            if result is None:
                self.results[index] = self._not_started(index, stop)
                await asyncio.sleep(0)

    def _close(self, stop: Stop | None, began: float) -> ManyEnded:
        """Record the end of the whole."""
        ended = ManyEnded(
            run_id=self.opened.start.context.run_id,
            stop=stop,
            done=sum(result is not None and result.ok for result in self.results),
            items=len(self.results),
            usage=self.gate.usage,
            duration_ms=timedelta(seconds=self.clock.monotonic() - began).total_seconds() * 1000,
            ended_at=self.clock.now(),
            earlier=NOTHING_BEFORE if self.resumed is None else self.resumed.earlier,
        )
        self.opened.start.session.dispatch(ended)
        return ended

    def _digests(self) -> dict[str, str]:
        models = self.opened.around.models
        return digests_of_template(self.opened.prompt.template, (models.first, *models.fallback))

    def _run_opened(self, facts: dict[str, Any]) -> RunOpened:
        return RunOpened(
            run_id=self.opened.start.context.run_id,
            digests=self._digests(),
            created_at=self.clock.now(),
            items=tuple(map(digest_of_item, self.items)),
            limit_values=self.opened.start.limits,
            park=self.opened.park,
            **facts,
        )

    def _stop(self) -> Stop | None:
        """Return what ended the work over all items, if any item was left undone."""
        stop = self.gate.stop or self.gate.work_stop
        undone = any(result is None or not result.ok for result in self.results)
        if stop is not None:
            return stop if undone else None
        ended = (result for result in self.results if result is not None)
        asked = [(each.name, each.call_id) for result in ended for each in result.waiting]
        return parked_stop(asked) if asked else None

    def _ends_the_whole(self, stop: Stop) -> bool:
        """Whether a limit that ended one item was a ceiling over all: one that the item did not have itself."""
        if stop.limit not in CEILINGS_OVER_ALL:
            return False
        own, whole = getattr(self.each, stop.limit, None), getattr(self.gate.limits, stop.limit, None)
        if own is None or whole is None:
            return own is None
        if stop.limit == "deadline":
            return self.gate.deadline is not None and self.gate.deadline.expired(self.clock)
        return bool(whole <= own)

    def _stop_of_all(self, stop: Stop) -> Stop | None:
        """Return what ends the work over all items because of how one of them ended, or None."""
        if self._ends_the_whole(stop):
            return self.gate.stop or self.gate.work_stop or (self._late() if stop.limit == "deadline" else stop)
        silence = self.clock.monotonic() - self.answered_at
        if silence < OUTAGE or (stop.source != "provider" and stop.reason != CIRCUIT_OPEN):
            return None
        return replace(stop, message=f"No answer for {format_duration(silence)}, for any item. {stop.message}")

    def _late(self) -> Stop:
        """Say that the time of the whole is over; what ended an item names the time that was left when it began."""
        account, end = self.gate.account, self.gate.deadline
        who, total = "The whole run", "" if end is None else format_duration(end.at - self.began)
        if (owner := account.ends_with) is not None:
            who, total = subject(owner, account), format_duration(owner.whole_seconds)
        said = f"{who} reached its deadline of {total}; what is left is for last turns and verdicts."
        return Stop("timeout", "gate", said, "deadline", total)

    async def _worker(self) -> None:
        for index in self.next:
            if self.gate.stop is not None or self.gate.work_stop is not None:
                return
            result = await self._item(index)
            self.results[index] = result
            if result.turns:
                self.answered_at = self.clock.monotonic()
            stop = None if result.stop is None else self._stop_of_all(result.stop)
            if stop is not None:
                self.gate.land(stop)
            self._ended(index, result, result.run_id)
            await asyncio.sleep(0)  # it may have ended without waiting for anything: refused by a hook, or not bound

    async def _item(self, index: int) -> RunResult[OutputT]:
        """Run one item in a session and under a gate of its own."""
        opened, label = self.opened, self.labels[index]
        going_on = None if self.resumed is None else self.resumed.going_on.get(index)
        limits, spent, resumed = self.each, None, None
        if going_on is None:
            session, context = self._session_of_item()
        else:
            log, resumed = going_on
            fresh = derive_child_run_context(opened.start.context, resumed.run_context.session_id, self.ids)
            resumed = resumed.renewed(fresh)
            limits, spent, context = time_left(limits, resumed.worked_seconds), resumed.spent, resumed.run_context
            session = opened.start.session.child(session_id=context.session_id, earlier=log)
        task, watching = asyncio.current_task(), ExitStack()
        try:
            if self.resumed is not None and resumed is not None:  # before anything of it is queued for the store
                await run_in_worker(self.resumed.take_over, context.run_id)
            watching.callback(opened.around.watch(session, context.run_id))
            watching.callback(session.dispatcher.subscribe(ModelReplied, self._answered))
            with self.gate.child(limits, label, carve=False, on_event=session.dispatch, spent=spent) as gate:
                item = self.items[index]
                bound = opened.prompt.bind(*(item if isinstance(item, tuple) else (item,)))
                scope = opened.scope(session, gate, context, opened.start.context.run_id, label, index)
                plan = opened.plan(bound, gate)
                more = partial(to_go_on, opened, of_items(scope.filesystem))
                return await execute(plan, scope, resumed=resumed, opened=more)
        except BaseException as error:
            if task is not None and self.owner is not None and not self.owner.cancelling():
                while task.cancelling():  # by the item's own code: a caller that ends the job cancels all items
                    task.uncancel()
            if not is_crash(error, task):
                raise
            stop = Stop("error", "loop", f"The item failed: {error_text(error)}")
            return self._without_run(index, stop, session, context, error)
        finally:
            watching.close()

    def _answered(self, _: ModelReplied) -> None:
        self.answered_at = self.clock.monotonic()

    def _session_of_item(self) -> tuple[Session, RunContext]:
        session = Session(parent=self.opened.start.session, clock=self.clock, ids=self.ids)
        return session, derive_child_run_context(self.opened.start.context, session.session_id, self.ids)

    def _not_started(self, index: int, stop: Stop | None, *, told: bool = True) -> RunResult[OutputT]:
        if index not in self.redo:
            left = Stop("error", "caller", "It was left as it was: other items were asked for.")
            return self._without_run(index, left, *self._session_of_item(), None)
        why = stop or Stop("error", "loop", "The item was not started.")
        said = replace(why, message=f"{NOT_STARTED}{why.message}")
        result = self._without_run(index, said, *self._session_of_item(), None)
        if told:
            self._ended(index, result, None)
        return result

    def _without_run(
        self, index: int, stop: Stop, session: Session, context: RunContext, error: BaseException | None
    ) -> RunResult[OutputT]:
        """Return the result of an item whose loop never ran, or could not go on."""
        return RunResult(
            stop=stop,
            run_id=context.run_id,
            prompt_name=self.opened.prompt.template.name,
            model=self.opened.around.models.first.label,
            limits=self.each,
            started_at=self.clock.now(),
            session=session,
            error=error,
            item=self.labels[index],
        )

    def _ended(self, index: int, result: RunResult[Any], run_id: UUID | None) -> None:
        said, now = result.sentence(), self.clock.now()
        ended = ItemEnded(index, self.labels[index], run_id, said, result.stop, now, result.completion)
        self.opened.start.session.dispatch(ended)


def shared_out(verdict: Verdict | None, count: int) -> Verdict | None:
    """Return what each of several items reserves of the common ceilings, so that together they reserve no more."""
    return verdict if verdict is None or count == 1 else replace(verdict, share=verdict.share / count)


def as_label(label: object) -> str:
    """Return a label as one line of limited length."""
    return clipped(" ".join(str(label).split()), LABEL_CHARS)
