"""`resume_many`: goes on with a run over many items; what is done stays done, the rest is done under the old limits.

An item that was interrupted goes on from its own record. One that failed is begun anew, as a new run of the same item;
what its earlier run used stays counted. The caller gives the items again, and they must be the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, Unpack, cast
from uuid import UUID

import msgspec

from watchkeeper.accounting.limits import Limits
from watchkeeper.app.options import ManyOptions, check_arguments, options_for_run
from watchkeeper.app.resume import as_bound, left_of, opened_store
from watchkeeper.app.run import Request, listed, one_line
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.model import Model
from watchkeeper.core.usage import Usage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.loop.reopen import Reader
from watchkeeper.loop.resume import limits_of
from watchkeeper.loop.resume_many import ONLY, Only, many_taken_over
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.result import ManyResult
from watchkeeper.session.session import Session
from watchkeeper.store.run_store import RunStore

OutputT = TypeVar("OutputT")


class ResumeManyOptions(ManyOptions, total=False):
    """The options of `resume_many`: those of `run_many`, and these.

    Attributes:
        limits: New limits for all items and attempts together; those on record by default.
        fresh_limits: Whether what was used before does not count.
        accept_changes: Whether the run may go on although its prompt, tools, answer type or models have changed.
        only: ``failed`` for the items that ended without being done, ``unstarted`` for those that never began or were
            interrupted or parked; None for both.
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
    order: _Order[OutputT] = order_of(run_id, prompt, items, model, options)
    with opened_store(order.options, order.run_id) as store:
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
    order: _Order[OutputT] = order_of(run_id, prompt, items, model, options)
    with opened_store(order.options, order.run_id) as store:
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

    def request(self, store: RunStore) -> Request[OutputT]:
        """Take the run over, and return the request that goes on with it."""
        own, clock = self.own, self.options.get("clock", SYSTEM_CLOCK)
        reader = Reader(store, self.options.get("filesystem"), accept_changes=own.get("accept_changes", False))
        label = self.options.get("label", str)
        labels = [one_line(label(item)) for item in self.items]
        run = store.find(self.run_id)
        if run.items is None:
            raise ConfigurationError(f"the run {run.run_id} is not one over many items; use resume")
        if run.ended_at is not None and run.items_done == run.items:
            raise ConfigurationError(f"the run {run.run_id} is done: {run.sentence()}")
        rows, items = store.children(run.run_id), list(zip(labels, self.items, strict=True))
        store.check(rows)
        log, resumed = many_taken_over(reader, UUID(run.run_id), rows, items, own.get("only"), clock.now())
        limits = own.get("limits") or limits_of(each.event for each in log)
        if own.get("fresh_limits", False):
            resumed = msgspec.structs.replace(resumed, spent=Usage(), worked_seconds=0.0)
        return Request(
            as_bound(self.prompt, resumed.opened),
            self.model,
            left_of(limits, resumed.worked_seconds),
            cast("ManyOptions", {**self.options, "store": store}),
            Session.restored(log, resumed.run_context.session_id, clock=clock),
            items=self.items,
            resumed=resumed,
        )


def order_of(
    run_id: str,
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    items: Iterable[Any],
    model: Model | str,
    options: ResumeManyOptions,
) -> _Order[OutputT]:
    """Check what the caller asked for."""
    check_arguments({"prompt": prompt, "model": model})
    own: Any = {name: value for name, value in options.items() if name in OWN}
    given: Any = {name: value for name, value in options.items() if name not in OWN}
    if own.get("limits") is not None:
        check_arguments({"limits": own["limits"]})
    if own.get("only") not in (None, *ONLY):
        raise ConfigurationError(f"only={own['only']!r} must be {' or '.join(map(repr, ONLY))}, or None")
    bound = Prompt(prompt) if isinstance(prompt, PromptTemplate) else prompt
    return _Order(run_id, bound, listed(items), model, options_for_run(given, ManyOptions), own)
