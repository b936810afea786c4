"""One block of contained code: what holds in it, and what is put back, closed and said where it ends.

A block is found by a context variable while it is open. Where a refusal or its deadline ended it, it ends as a
RunStoppedError with what was spent; whatever else leaves it, leaves it as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Token
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from watchkeeper.adapters.contained_calls import ACTIVE, CallStopped, Containment, PriceOf
from watchkeeper.app.prices import Prices, listed_price
from watchkeeper.containment.call import CallRequest
from watchkeeper.containment.circuit_breaker import CircuitBreaker, CircuitBreakers
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.flight import set_timer
from watchkeeper.containment.ledger import Ledger
from watchkeeper.containment.pipeline import ShieldPipeline
from watchkeeper.containment.safety_event import SafetyEvent
from watchkeeper.containment.snapshot import ContextSnapshot
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import ConfigurationError, RunStoppedError
from watchkeeper.core.limits import Limits
from watchkeeper.core.price import ModelPrice

if TYPE_CHECKING:
    from watchkeeper.store.sqlite_ledger import SqliteLedger


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for a block, and who is asked and told."""

    limits: Limits
    pipeline: ShieldPipeline | None
    circuit_breaker: CircuitBreaker | CircuitBreakers | None
    prices: Prices
    max_part_tokens: int | None
    ledger: Ledger | Path | str
    on_event: Callable[[SafetyEvent], object] | None
    clock: Clock


class Block:
    """One entry: its context, and what is put back when it ends.

    Attributes:
        context: The gate of the calls made inside; a child of the block around it.
    """

    def __init__(self, terms: Terms) -> None:
        """Open the context and put it in force."""
        outer = ACTIVE.get()
        self._ledger = None if outer is not None else own_ledger(terms)
        try:
            self.context = open_context(terms, outer, self._ledger)
        except BaseException:
            self._shut_ledger()
            raise
        bounded = is_bounded(terms.limits)
        fallback = None if terms.pipeline is None else terms.pipeline.fallback_model
        block = Containment(
            self.context, lookup(terms, None), bounded, terms.max_part_tokens, fallback, clock=terms.clock
        )
        if outer is not None:
            block = replace(
                block,
                price_of=lookup(terms, outer.price_of),
                bounded=bounded or outer.bounded,
                max_part_tokens=terms.max_part_tokens or outer.max_part_tokens,
                fallback_model=fallback or outer.fallback_model,
                counted=outer.counted,
                clock=outer.clock,
            )
        self._clock = block.clock
        self._mark: Token[Containment | None] = ACTIVE.set(block)
        self._guard: Guard | None = None

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Let the deadline, and an abort, interrupt a task."""
        self._guard = Guard(self.context, task, self._clock)

    def leave(self, error: BaseException | None) -> None:
        """Put back what was in force, close the context, and say what ended the block.

        Raises:
            RunStoppedError: If a stop ended it; ``result`` is the snapshot of what was spent.
            ConfigurationError: If a call inside could not be contained.
        """
        with suppress(ValueError):  # closed from elsewhere, for example by the collector: nothing is in force here
            ACTIVE.reset(self._mark)
        interrupted = self._guard is not None and self._guard.end(error)
        context = self.context
        refused = refusal_behind(error)
        stop = context.stop if interrupted else None
        if refused is not None:
            stop = refused.stop
        elif isinstance(error, RunStoppedError) and self._is_ours(error.result):
            stop = error.stop
        context.close()
        self._shut_ledger()
        if refused is not None and refused.error is not None:
            raise refused.error from refused
        if stop is not None:
            raise RunStoppedError(stop.message, stop=stop, result=context.get_snapshot()) from error

    def _shut_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.shutdown()

    def _is_ours(self, result: object) -> bool:
        """Return whether a block inside this one has stopped; then this one ends by the same stop."""
        return isinstance(result, ContextSnapshot) and result.chain_id == self.context.get_snapshot().chain_id


class Guard:
    """Cancels the task of an async block once its time is over, or it is aborted."""

    def __init__(self, context: ExecutionContext, task: asyncio.Task[Any], clock: Clock) -> None:
        """Begin to watch over the running task."""
        self._task = task
        self._loop = task.get_loop()
        self._context = context
        self._others = task.cancelling()
        self._struck = False
        deadline = context.deadline
        self._timer = set_timer(clock, deadline.instant(clock), self._strike) if deadline is not None else None
        self._forget: Callable[[], None] | None = context.cancellation.on_cancel(self._aborted)

    def _aborted(self, reason: str) -> None:
        self._loop.call_soon_threadsafe(self._strike)

    def _strike(self) -> None:
        if not self._struck and self._forget is not None:
            self._struck = True
            self._task.cancel()

    def end(self, error: BaseException | None) -> bool:
        """Stop watching; return whether it was this that ended the block."""
        forget, self._forget = self._forget, None
        if forget is not None:
            forget()
        if self._timer is not None:
            self._timer.cancel()
        if not self._struck:
            return False
        others = self._task.uncancel() > self._others
        if others or not isinstance(error, asyncio.CancelledError):
            return False
        if self._context.stop is None:  # nothing asked since the time was over: asking latches the stop
            self._context.call(CallRequest("tool", "the contained block"), lambda ticket: None)
        return True


def own_ledger(terms: Terms) -> SqliteLedger | None:
    """Open the ledger that a block opens for itself: in the file that is named, or the user's own for an account.

    Raises:
        StoreError: If it cannot be written.
    """
    where = terms.ledger
    if not isinstance(where, str | Path) or (where == "default" and terms.limits.account is None):
        return None
    from watchkeeper.store.sqlite_ledger import SqliteLedger

    return SqliteLedger(where, clock=terms.clock)


def is_bounded(limits: Limits) -> bool:
    """Return whether a ceiling on money or tokens holds."""
    own = (limits.max_cost_nanos, limits.max_total_tokens, limits.max_input_tokens, limits.max_output_tokens)
    return limits.account is not None or any(ceiling is not None for ceiling in own)


def open_context(terms: Terms, outer: Containment | None, ledger: SqliteLedger | None) -> ExecutionContext:
    """Open the context of a block: a child of the one around it, if there is one.

    Raises:
        ConfigurationError: For hooks or a ledger of its own inside another block.
    """
    if outer is None:
        return ExecutionContext(
            terms.limits,
            terms.pipeline,
            circuit_breaker=terms.circuit_breaker,
            ledger=ledger if ledger is not None or isinstance(terms.ledger, str | Path) else terms.ledger,
            clock=terms.clock,
            on_event=terms.on_event,
        )
    if terms.pipeline is not None or terms.circuit_breaker is not None or terms.ledger != "default":
        raise ConfigurationError(
            "a contained block inside another one has the hooks, the circuit breaker and the ledger of the outer one; "
            "say pipeline=..., circuit_breaker=... and ledger=... there"
        )
    return outer.context.child(terms.limits, carve=False, on_event=terms.on_event)


def lookup(terms: Terms, outer: PriceOf | None) -> PriceOf:
    """Return what looks up prices: the block's own, those of the block around it, or the list; each once."""
    known: dict[tuple[Any, ...], ModelPrice | None] = {}

    def price_of(
        provider: str, model: str, wishes: Mapping[str, str], *, long_cache: bool, replies: bool
    ) -> ModelPrice | None:
        for key in (f"{provider}:{model}", model):
            if key in terms.prices:
                return terms.prices[key]
        if outer is not None:
            return outer(provider, model, wishes, long_cache=long_cache, replies=replies)
        question = (provider, model, *sorted(wishes.items()), long_cache, replies)
        if question not in known:
            known[question] = listed_price(
                provider, model, wishes, long_cache=long_cache, replies=replies, clock=terms.clock
            )
        return known[question]

    return price_of


def refusal_behind(error: BaseException | None) -> CallStopped | None:
    """Return the refusal that an error comes from, if it does; what an inner block has reported already is its own."""
    if isinstance(error, CallStopped):
        return error
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return next((found for part in group.exceptions if (found := refusal_behind(part))), None)
    if not isinstance(error, Exception) or isinstance(error, RunStoppedError):
        return None
    return refusal_behind(error.__cause__ or (None if error.__suppress_context__ else error.__context__))
