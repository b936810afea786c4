"""``contained(...)``: limits for a function or block that calls a provider's own SDK.

Inside, calls of clients made with `contained_sdk.http` are counted, priced and stopped. If a refusal or the deadline
ended a block, it raises RunStoppedError with the reason and what was spent, also in place of any Exception that leaves
a stopped block; other errors pass unchanged. Each call of a decorated function, and each entry of a block, is a chain
of its own; for a block inside another the limits of both hold. A block is found by a context variable while it is open.
Nothing here knows HTTP.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar, Unpack, cast

from watchkeeper.accounting.ledger import Ledger
from watchkeeper.blocks.block_record import StoreTerms, open_record
from watchkeeper.app.options import OnStoreFailure, StoreLike, check_arguments, check_keywords, renamed
from watchkeeper.app.prices import Prices, lookup
from watchkeeper.runtime.listener import is_async
from watchkeeper.app.recording import store_failed
from watchkeeper.app.surroundings import Files, NamedFiles, open_files, open_files_beside_loop
from watchkeeper.children.inside import Surrounding, surrounding
from watchkeeper.contained_sdk.calls import BLOCKS, CallStopped, Containment, Uncounted, in_force
from watchkeeper.containment import enclosing
from watchkeeper.containment.execution_context import Around, ExecutionContext
from watchkeeper.containment.in_flight import MOVES, set_timer
from watchkeeper.containment.record import ContextSnapshot
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, DeadlineLike
from watchkeeper.core.errors import ConfigurationError, LimitsError, RunStoppedError, Stop
from watchkeeper.accounting.limits import AccountLimit, Limits
from watchkeeper.asking.provider_work import names_spending
from watchkeeper.core.meters import METERS, SHARED
from watchkeeper.core.quantities import CountLike, MoneyLike, count
from watchkeeper.core.text import logger
from watchkeeper.core.workers import call_in_loop, run_in_worker, running_task
from watchkeeper.runtime.result import broken_off
from watchkeeper.runtime.user_code import block_until_booked, booked, closed
from watchkeeper.shield.circuit_breaker import CircuitBreaker, CircuitBreakers
from watchkeeper.shield.decision import Decision, SafetyEvent
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.disk.power import Durability
from watchkeeper.store.run_store import RunStore
from watchkeeper.disk.sqlite import DEFAULT

if TYPE_CHECKING:
    from watchkeeper.ledgers.sqlite_ledger import SqliteLedger

T = TypeVar("T")
P = ParamSpec("P")

OWN: Final = (
    *("limits", "pipeline", "circuit_breaker", "prices", "max_part_tokens", "uncounted", "ledger", "on_event", "clock"),
    *("parent", "store", "on_store_failure", "durability", "name"),
)
"""The arguments of `contained` beside single ceilings."""

USE_WITH: Final = "use `with contained(...)` inside it instead"

NO_CALL: Final = "no_call_seen"
NOTHING_SEEN: Final = (
    "No call was seen in the contained block, so nothing in it was counted or bounded. A client is seen if it was made"
    " with http_client=contained_http_client(), or contained_async_http_client(), and is called in the block's own"
    " thread or task, or in one that has a copy of its context variables."
)


class Ceilings(TypedDict, total=False):
    """Single ceilings of a block; one that is not named has the default of `Limits`, None lifts it.

    Attributes:
        max_cost_usd: Dollars.
        max_steps: Admitted calls, also those that fail.
        timeout: A length from the entry ("5m", timedelta), or a moment (datetime, Deadline).
        max_total_tokens: Input and output tokens.
        max_input_tokens: Input tokens.
        max_output_tokens: Output tokens.
        max_tool_calls: Requests that are neither model calls nor free.
        max_retries: Requests that an SDK repeats.
        account: An account that this chain shares with others, before and beside it.
        account_limit: What all of them together may use in a day or a month ("$20/day").
    """

    max_cost_usd: MoneyLike | None
    max_steps: CountLike | None
    timeout: DeadlineLike | None
    max_total_tokens: CountLike | None
    max_input_tokens: CountLike | None
    max_output_tokens: CountLike | None
    max_tool_calls: CountLike | None
    max_retries: CountLike | None
    account: str | None
    account_limit: AccountLimit | str | None


SINGLE: Final = ("timeout", "account", "account_limit", *(meter.field for meter in SHARED))
"""The single ceilings that `contained` takes; `Ceilings` has their types."""


def contained(
    *,
    limits: Limits | None = None,
    pipeline: ShieldPipeline | None = None,
    circuit_breaker: CircuitBreaker | CircuitBreakers | None = None,
    prices: Prices | None = None,
    max_part_tokens: CountLike | None = None,
    uncounted: Literal["refuse", "allow"] | None = None,
    ledger: Ledger | Path | str = "default",
    store: RunStore | StoreLike = DEFAULT,
    on_store_failure: OnStoreFailure = "stop",
    durability: Durability | None = None,
    name: str = "",
    on_event: Callable[[SafetyEvent], object] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    parent: Literal["around"] | None = "around",
    **ceilings: Unpack[Ceilings],
) -> Contained:
    """Return a decorator and context manager, sync and async, that contains the model calls made inside.

    Args:
        limits: All ceilings in one value; ``max_turns`` and what is kept for landing have no effect on a block.
        pipeline: Hooks that are asked about every call and every address.
        circuit_breaker: Keeps calls away from a provider that is down.
        prices: The caller's own prices by ``provider:model`` or model; they win over the price list.
        max_part_tokens: Upper bound of the input tokens of a part whose size in bytes does not bound them: an image, a
            file, a stored conversation, a tool that the provider runs. Without this value a request with such a part
            is refused under a ceiling on cost or tokens. A field that is not known counts as one if a ceiling is named.
        uncounted: What happens to a model request that cannot be counted (images, batches, an unknown interface).
            "refuse" is the default where a ceiling on cost or tokens is named, here or around. "allow" lets it pass as
            a step and a tool call of unknown cost. "allow" is also the default where only the default ceilings hold.
        ledger: The ledger, or its file, that keeps what is spent, so that other processes and later runs count it. By
            default a file in the user's data folder if an account is named, else this process's memory.
        store: Where a record of each block is written while it goes on, as for a run: the user's data folder by
            default, a path, or None. A block inside a run or another block is recorded where that is.
        on_store_failure: After 60 s without a write that works, "stop" ends the block; "go_on" goes on unrecorded.
        durability: What the record survives: "process" (the default) or "power", as for a run.
        name: What the record calls the block; by default the function's name, or the file and line of the block.
        on_event: Told of every stop.
        clock: The source of time.
        parent: None makes blocks independent of the block, run or context in which they are entered. By default they
            are part of it: the outer limits hold too, and their use is counted there.
        **ceilings: Single ceilings; see `Ceilings`.

    Raises:
        ConfigurationError: For limits beside single ceilings, and for invalid values.
        TypeError: For a ceiling that does not exist.
    """
    check_keywords(ceilings, SINGLE, OWN)
    check_arguments({"pipeline": pipeline, "circuit_breaker": circuit_breaker, "on_event": on_event, "prices": prices})
    check_arguments({"ledger": ledger, "clock": clock, "store": store, "name": name})
    check_arguments({"on_store_failure": on_store_failure, "durability": durability})
    _check_choices(uncounted, parent)
    limits = _limits(limits, ceilings)
    passes = uncounted or ("refuse" if limits.account is not None or names_spending(limits, ceilings) else None)
    part = None if max_part_tokens is None else count(max_part_tokens, "max_part_tokens")
    own, apart, record = prices or {}, parent is None, StoreTerms(store, on_store_failure, durability, name)
    return Contained(
        Terms(limits, pipeline, circuit_breaker, own, part, passes, ledger, on_event, clock, apart, record)
    )


def _check_choices(uncounted: object, parent: object) -> None:
    if uncounted not in (None, "refuse", "allow"):
        raise ConfigurationError(f'uncounted={uncounted!r} must be "refuse" or "allow"')
    if parent not in ("around", None):
        raise ConfigurationError(f"parent={parent!r} must be None, for an independent block; else leave it out")


def _limits(limits: Limits | None, ceilings: Ceilings) -> Limits:
    """Return what was given as one value; an error names a ceiling as the caller did."""
    if limits is not None:
        if ceilings:
            raise ConfigurationError(
                f"contained() was given limits=... and {sorted(ceilings)}; put all into Limits(...)"
            )
        check_arguments({"limits": limits})
        return replace(limits, landing=None)
    named: dict[str, Any] = {("deadline" if key == "timeout" else key): value for key, value in ceilings.items()}
    try:
        return Limits(**named, landing=None)
    except LimitsError as error:
        raise renamed(error, "deadline", "timeout") from None


class Contained:
    """A decorator and context manager, made by `contained`.

    As a decorator it may be used for any number of functions and calls, at once too; as a context manager it is open
    once at a time. Entered, it gives the `ExecutionContext` that its calls pass.
    """

    def __init__(self, terms: Terms, silence: Silence | None = None) -> None:
        """Keep the terms; nothing is opened yet."""
        self._terms = terms
        self._silence = silence
        self._block: Block | None = None

    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]:
        """Contain each call of a function, sync or async.

        Raises:
            ConfigurationError: For a generator function, whose body runs outside of its call; if a decorator hides it,
                when it is called.
        """
        inside = inspect.unwrap(fn)
        is_wrapped = inspect.isgeneratorfunction(inside) or inspect.isasyncgenfunction(inside)
        if is_wrapped and inside is fn:
            raise ConfigurationError(f"{fn!r} is a generator function: {USE_WITH}")
        silence, terms = Silence(), self._terms.named_by(fn)
        if is_async(fn):
            waiting = cast("Callable[P, Any]", fn)

            @functools.wraps(fn)
            async def contained_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with Contained(terms, silence):
                    return await waiting(*args, **kwargs)

            return cast("Callable[P, T]", contained_coroutine)

        @functools.wraps(fn)
        def contained_call(*args: P.args, **kwargs: P.kwargs) -> T:
            with Contained(terms, silence):
                value = fn(*args, **kwargs)
                if inspect.iscoroutine(value):
                    value.close()
                    raise ConfigurationError(f"{fn!r} returned a coroutine: decorate the `async def` itself")
                if is_wrapped and is_generator_of(value, inside):
                    raise ConfigurationError(f"{fn!r} returned a generator: {USE_WITH}")
                return value

        return contained_call

    def __enter__(self) -> ExecutionContext:
        """Open a block."""
        place = self._place()
        return self._opened(place, open_files(place.named(self._terms))).context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the block.

        Raises:
            RunStoppedError: If a stop ended it.
        """
        block, self._block = self._block, None
        if block is not None:
            block.leave(error)

    async def __aenter__(self) -> ExecutionContext:
        """Open a block that is interrupted at its deadline, and by an abort, wherever it waits."""
        task, place = own_task(), self._place()
        block = self._opened(place, await open_files_beside_loop(place.named(self._terms)))
        block.watch(task)
        return block.context

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the block; raises as `__exit__` does."""
        block, self._block = self._block, None
        if block is not None:
            await block.aleave(error)

    def _place(self) -> Place:
        """Return the place in which a block is opened."""
        self._check_unused()
        apart = self._terms.apart
        return Place(None if apart else in_force(), surrounding(apart=apart))

    def _opened(self, place: Place, files: Files) -> Block:
        try:
            self._check_unused()  # another task may have entered it while the files were opened
            self._block = Block(self._terms, place, files, self._silence or Silence())
        except BaseException:
            files.shut()
            raise
        return self._block

    def move(self, old: asyncio.Task[Any], new: asyncio.Task[Any]) -> None:
        """Let the deadline, and an abort, interrupt the task ``new`` instead of ``old``."""
        if self._block is not None:
            self._block.move(old, new)

    def _check_unused(self) -> None:
        if self._block is not None:
            raise ConfigurationError("this contained(...) is open already: make another one for another block")


MOVES[Contained] = Contained.move


def is_generator_of(value: Any, fn: Any) -> bool:
    """Return whether a value is a generator of a function, or the context manager that contextlib makes of one."""
    body = getattr(value, "gen", value)
    code = getattr(body, "gi_code", None) or getattr(body, "ag_code", None)
    return code is not None and code is getattr(fn, "__code__", None)


def own_task() -> asyncio.Task[Any]:
    """Return the task that runs now.

    Raises:
        ConfigurationError: If there is none.
    """
    task = running_task()
    if task is None:
        raise ConfigurationError("`async with contained(...)` works in asyncio's tasks only; elsewhere use `with`")
    return task


@dataclass(slots=True)
class Silence:
    """Whether to report that no call was seen: once per function, and never after a call was seen.

    Attributes:
        told: Whether it was reported, or need not be.
    """

    told: bool = False

    def tell(self, context: ExecutionContext, clock: Clock) -> None:
        """Report in the log, and to the listener of its events, that a block has contained no call."""
        if not self.told:
            self.told = True
            metadata = context.get_snapshot()
            facts = {"chain_id": metadata.chain_id}
            event = SafetyEvent(
                NO_CALL, Decision.ALLOW, NOTHING_SEEN, "contained", metadata.request_id, clock.now(), facts
            )
            context.record_event(event)
            logger().warning("contained.no_call_seen", **facts, hint=NOTHING_SEEN)


# --- one block --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """The arguments of `contained`, as they hold for each block."""

    limits: Limits
    pipeline: ShieldPipeline | None
    circuit_breaker: CircuitBreaker | CircuitBreakers | None
    prices: Prices
    max_part_tokens: int | None
    uncounted: Literal["refuse", "allow"] | None
    ledger: Ledger | Path | str
    on_event: Callable[[SafetyEvent], object] | None
    clock: Clock
    apart: bool
    record: StoreTerms

    def named_by(self, fn: Callable[..., Any]) -> Terms:
        """Return the same terms, with a record that is called like a function unless it has a name."""
        called = self.record.name or getattr(fn, "__qualname__", type(fn).__qualname__)
        return replace(self, record=replace(self.record, name=called))


class Place(NamedTuple):
    """What a block is opened in.

    Attributes:
        outer: The enclosing block; None if there is none, or if this block is independent of it.
        around: The context and the run there.
    """

    outer: Containment | None
    around: Surrounding

    def named(self, terms: Terms) -> NamedFiles:
        """Return the ledger and store files that a block opens here; an inner block uses those of the outer one."""
        store = None if terms.record.followed(self.around) is not None else terms.record.store
        ledger = None if self.outer is not None else terms.ledger
        return NamedFiles(ledger, store, terms.limits, terms.clock, durability=terms.record.durability)


class Block:
    """One entry: its context, and what was in force before it.

    Attributes:
        context: The gate of the calls made inside; a child of the block around it.
    """

    def __init__(self, terms: Terms, place: Place, files: Files, silence: Silence) -> None:
        """Open the context and put it in force."""
        outer, self._ledger = place.outer, files.ledger
        self.context = open_context(terms, outer, self._ledger)
        fallback = None if terms.pipeline is None else terms.pipeline.fallback_model
        price_of = lookup(terms.prices, terms.clock, None if outer is None else outer.price_of)
        bounded, part = is_bounded(terms.limits), terms.max_part_tokens
        passes: Uncounted = terms.uncounted or "count"
        block = Containment(self.context, price_of, bounded, part, passes, fallback, clock=terms.clock)
        if outer is not None:
            block = replace(
                outer,
                context=self.context,
                price_of=price_of,
                bounded=bounded or outer.bounded,
                max_part_tokens=max(filter(None, (part, outer.max_part_tokens)), default=None),
                uncounted=passes if outer.uncounted == "count" or passes == "refuse" else outer.uncounted,
                fallback_model=fallback or outer.fallback_model,
            )
        self._clock = block.clock
        self._traffic = block.traffic
        self._silence = silence
        self._earlier = block.traffic.requests
        try:
            self._record = open_record(terms.record, files.store, place.around, self.context, price_of)
        except BaseException:
            self.context.close()
            raise
        self._choice = terms.record.on_failure
        enclosing.enter(self.context, f"the contained block {self.context.metadata.chain_id}")
        BLOCKS[id(self.context)] = block
        self._guard: Guard | None = None

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Let the deadline, and an abort, interrupt a task."""
        self._guard = Guard(self.context, task, self._clock)

    def move(self, old: asyncio.Task[Any], new: asyncio.Task[Any]) -> None:
        """Let the deadline, and an abort, interrupt the task ``new`` instead of ``old``."""
        if self._guard is not None:
            self._guard.move(old, new)

    def leave(self, error: BaseException | None) -> None:
        """Restore what was in force before, close the context, and raise if a stop ended the block.

        Calls that are still in flight are ended and charged before that.

        Raises:
            RunStoppedError: If a stop ended it; ``result`` is the snapshot of what was spent.
            ConfigurationError: If a call inside could not be contained.
        """
        ending = self._ending(error)
        try:
            self._traffic.settle(self.context, self.context.close)
            self._book_left()
            block_until_booked(self.context)
        finally:
            self._book_left()
            if self._ledger is not None:
                self._ledger.shutdown()
            written = self._record_end(ending)
        if written is not None:
            try:
                ending = self._noted(ending, written.result())
            finally:
                written.cancel()
        ending.conclude(self.context)

    async def aleave(self, error: BaseException | None) -> None:
        """Do the same without blocking the running loop."""
        ending = self._ending(error)
        try:
            await self._traffic.asettle(self.context, self.context.close)
            await booked(self.context)
        finally:
            self._book_left()
            written = self._record_end(ending)
            if self._ledger is not None:
                await closed("the ledger", run_in_worker(self._ledger.shutdown, must_run=True))
        if written is not None:
            ending = self._noted(ending, await asyncio.wrap_future(written))
        ending.conclude(self.context)

    def _book_left(self) -> None:
        """Close the context, and book what waits on the running loop: it ends when that loop runs again.

        A plain block in a coroutine holds that loop, and a cancelled block may not wait.
        """
        if not self.context.is_closed:
            self.context.close()
        for context in {self.context, *(call.context for call in self._traffic.below(self.context))}:
            context.book_left()

    def _record_end(self, ending: Ending) -> Future[str] | None:
        return None if self._record is None else self._record.end(ending.on_record)

    def _noted(self, ending: Ending, not_stored: str) -> Ending:
        """Report what is not on record; return the end, which is a stop if nothing else ends the block."""
        if not not_stored:
            return ending
        metadata = self.context.get_snapshot()
        facts, now = {"chain_id": metadata.chain_id}, self._clock.now()
        decision = Decision.ALLOW if self._choice == "go_on" else Decision.HALT
        event = SafetyEvent("store_failed", decision, not_stored, "contained", metadata.request_id, now, facts)
        self.context.record_event(event)
        if self._choice == "go_on" or ending.on_record is not None:
            return ending
        return replace(ending, stop=store_failed(not_stored))

    def _ending(self, error: BaseException | None) -> Ending:
        """Restore what was in force before; return how the block ends."""
        if self._record is not None:
            self._record.leave()
        enclosing.leave(self.context)
        BLOCKS.pop(id(self.context), None)
        context = self.context
        if self._traffic.requests > self._earlier or context.usage.steps:
            self._silence.told = True
        elif error is None:
            self._silence.tell(context, self._clock)
        interrupted = self._guard is not None and self._guard.end(error)
        last = self._traffic.take_refusal(context)
        refused = refusal_behind(error)
        if refused is None and isinstance(last, CallStopped) and is_consequence(error):
            refused = last
        stop = context.stop if interrupted or isinstance(error, Exception) else None
        if refused is not None:
            stop = refused.stop
        elif isinstance(error, RunStoppedError) and self._is_ours(error.result):
            stop = error.stop
        elif stop is None and is_consequence(error):
            stop = context.reached_inside()
        return Ending(error, refused, stop)

    def _is_ours(self, result: object) -> bool:
        """Return whether a block inside this one has stopped; then this one ends by the same stop."""
        return isinstance(result, ContextSnapshot) and result.chain_id == self.context.get_snapshot().chain_id


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a block.

    Attributes:
        error: The exception that leaves the block, or None.
        refused: The refusal that it ends with, or None.
        stop: The stop that ended it, or None.
    """

    error: BaseException | None
    refused: CallStopped | None
    stop: Stop | None

    @property
    def on_record(self) -> Stop | None:
        """The stop that the record gives as the reason of an early end; None if the block ended by itself."""
        failed = self.error if self.refused is None else self.refused.error
        return self.stop or (None if failed is None else broken_off(failed))

    def conclude(self, context: ExecutionContext) -> None:
        """Raise the exception that replaces the block's error; return if the error itself is to be raised."""
        refused, stop = self.refused, self.stop
        if refused is not None and refused.error is not None:
            raise refused.error from (refused if refusal_behind(self.error) is refused else self.error)
        if stop is not None:
            raise RunStoppedError(stop.message, stop=stop, result=context.get_snapshot()) from self.error


class Guard:
    """Cancels the task of an async block when its deadline has passed or it is aborted."""

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

    def move(self, old: asyncio.Task[Any], new: asyncio.Task[Any]) -> None:
        """Watch over the task in which the block goes on, because the gate has left its work behind."""
        if self._task is old:
            self._task, self._others = new, new.cancelling()
            if self._struck:
                old.uncancel()

    def _aborted(self, reason: str) -> None:
        call_in_loop(self._loop, self._strike)

    def _strike(self) -> None:
        if not self._struck and self._forget is not None:
            self._struck = True
            self._task.cancel()

    def end(self, error: BaseException | None) -> bool:
        """Stop watching; return whether this watcher ended the block."""
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
        self._context.look_at_time()  # the loop may have been told earlier than the context
        return True


def is_bounded(limits: Limits) -> bool:
    """Return whether a ceiling on money or tokens holds."""
    own = (limits.ceiling(meter.ceiling) for meter in METERS if not meter.is_counted)
    return limits.account is not None or any(ceiling is not None for ceiling in own)


def open_context(terms: Terms, outer: Containment | None, ledger: SqliteLedger | None) -> ExecutionContext:
    """Open the context of a block: a child of the one around it, if there is one.

    Raises:
        ConfigurationError: For hooks or a ledger of its own inside another block.
    """
    if outer is not None and id(outer.context) in BLOCKS:
        if terms.pipeline is not None or terms.circuit_breaker is not None or terms.ledger != "default":
            raise ConfigurationError(
                "a contained block inside another one has the hooks, the circuit breaker and the ledger of the outer "
                "one; say pipeline=..., circuit_breaker=... and ledger=... there"
            )
        limits = enclosing.inherited(terms.limits, outer.context.account)
        return outer.context.child(limits, carve=False, on_event=terms.on_event)
    named = ledger if ledger is not None or isinstance(terms.ledger, str | Path) else terms.ledger
    place: Around = {"parent": None} if outer is None else {}
    return ExecutionContext(
        terms.limits,
        terms.pipeline,
        circuit_breaker=terms.circuit_breaker,
        ledger=named,
        clock=terms.clock,
        on_event=terms.on_event,
        **place,
    )


def is_consequence(error: BaseException | None) -> bool:
    """Return whether an error may follow from a refused call whose exception the code inside the block has swallowed.

    Other frameworks gather their calls with ``return_exceptions=True`` and then treat the refusal as an answer. A
    RunStoppedError does not count: an inner block has already reported it.
    """
    return isinstance(error, Exception) and not isinstance(error, RunStoppedError)


def refusal_behind(error: BaseException | None) -> CallStopped | None:
    """Return the refusal that an error comes from, or None; not one that an inner block has already reported."""
    seen: set[int] = set()  # user code may set causes, and they may form a cycle
    open_: list[BaseException | None] = [error]
    while open_:
        behind = open_.pop()
        if behind is None or id(behind) in seen:
            continue
        seen.add(id(behind))
        if isinstance(behind, CallStopped):
            return behind
        if isinstance(behind, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", behind)
            if group.subgroup((KeyboardInterrupt, SystemExit)) is None:
                open_.extend(reversed(group.exceptions))
        elif isinstance(behind, Exception) and not isinstance(behind, RunStoppedError):
            open_.append(behind.__cause__ or (None if behind.__suppress_context__ else behind.__context__))
    return None
