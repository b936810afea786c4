"""The gate: every model call, tool call and child run passes an `ExecutionContext`.

It admits or stops a call before anything is spent, in one atomic decision; runs the work with its time-out and
cancellation; settles its real cost, also if it failed; and records it. A stop latches: after it nothing runs
but a landing turn. Contexts form a tree: a child has ceilings of its own and is bound by those above it. A context that
is closed leaves nothing behind. What decides is `accounting.admission.decide`; docs/containment.md describes the whole.
"""

from __future__ import annotations

import itertools
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, TypedDict, TypeVar, Unpack
from weakref import ref

from watchkeeper.accounting.account import (
    CEILINGS,
    Account,
    account_above,
    budget_status_of,
    keep_verdict_time,
    set_ends,
    stop_of,
    usage_of,
    work_stop_of,
)
from watchkeeper.accounting.admission import Demand, decide
from watchkeeper.accounting.call_request import CallRequest, Exhausted
from watchkeeper.accounting.account import carry_over, check_weights, left_of
from watchkeeper.accounting.ledger import ROOTS, Ledger, MemoryLedger, Waiter
from watchkeeper.containment.calls import ContextCalls, Tree, ask_hooks, block_for_hooks, block_for_turn, wait_for_turn
from watchkeeper.containment.config import (
    CostOf,
    ExecutionConfig,
    UnrunCoroutineError,
    WrapOptions,
    limits_of,
    meter_of,
    plain_work,
    refuse_coroutine,
    request_of,
    with_ticket,
)
from watchkeeper.containment import enclosing
from watchkeeper.containment.guards import GuardedCall, guards_of
from watchkeeper.containment.in_flight import (
    CURRENT_CALL,
    AbandonedError,
    InFlightCall,
    Meter,
    NeverBegunError,
    Ticket,
    Work,
    as_coroutine,
    run_blocking,
    run_steps,
)
from watchkeeper.containment.record import ContextSnapshot, Incidents, Listener, Outcome, Witness
from watchkeeper.containment.tracing import Tracer, leave
from watchkeeper.containment.settlement import abandon, book_left, book_stranded, finish, never_began, recover
from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, Deadline
from watchkeeper.core.errors import ConfigurationError, Stop
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.accounting.limits import UNLIMITED, Limits
from watchkeeper.core.meters import NO_CEILINGS
from watchkeeper.core.usage import Usage
from watchkeeper.shield.circuit_breaker import CircuitBreaker, CircuitBreakers
from watchkeeper.shield.decision import ChainMetadata, Decision, SafetyEvent
from watchkeeper.shield.pipeline import ShieldPipeline

T = TypeVar("T")

COUNTER_BITS: Final = 48
"""Low bits of a node's UUID that count the nodes of a tree; the others are random and the same for the tree."""

ONE_CALL: Final = replace(UNLIMITED, max_steps=1, landing=None)


class Around(TypedDict, total=False):
    """The place of a context in the tree.

    Attributes:
        parent: None makes the context independent of the contexts around it; its snapshot says so. Another context
            makes it a part of that one, for example in a thread that carries no context variables. The default is
            the innermost context that this code runs in.
        spent: What an earlier process has used of the same limits; it is not booked above again.
    """

    parent: ExecutionContext | None
    spent: Usage


def parent_of(around: Around) -> ExecutionContext | None:
    """Return the context above a new one, from the keywords that were given for it.

    Raises:
        TypeError: For a keyword that does not exist; else a misspelt one would change nothing.
        ConfigurationError: If the parent is no context, or the context around is over.
    """
    for name in around.keys() - {"parent", "spent"}:
        raise TypeError(f"ExecutionContext() got an unexpected keyword argument {name!r}; limits belong to its config")
    if "parent" not in around:
        current: ExecutionContext | None = enclosing.current()
        return current
    parent = around["parent"]
    if parent is not None and not isinstance(parent, ExecutionContext):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"parent={parent!r} is neither an ExecutionContext nor None")
    return parent


class ExecutionContext:
    """The gate of one run, chain or request.

    Use it as a context manager, or close it yourself.

    Attributes:
        limits: Its own ceilings.
        cancellation: Cancelled by an abort here or above, when all time is over (with the reason ``timeout``), and when
            it is closed.
        ledger: The ledger that keeps the figures of the context.
        account: Its figures, for reading only.
        tracer: What makes spans of its calls, or None.
    """

    def __init__(
        self,
        config: ExecutionConfig | Limits,
        pipeline: ShieldPipeline | None = None,
        metadata: ChainMetadata | None = None,
        *,
        circuit_breaker: CircuitBreaker | CircuitBreakers | None = None,
        ledger: Ledger | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
        on_event: Listener | None = None,
        **around: Unpack[Around],
    ) -> None:
        """Open a context; its deadline starts to run now.

        Inside another context it is a part of that one: the limits, deadline, cancellation and hooks of the outer
        context bind it, and it uses the ledger and clock of the outer one and counts there. It shares what is left
        there. Its own ceilings hold too, but a default ceiling gives way to a ceiling of the outer context.

        Args:
            config: What the chain may spend: an `ExecutionConfig` (hard stops) or `Limits` (with landing).
            pipeline: Hooks that are asked about every model call and tool call; limits only, if None.
            metadata: Names and ids of the chain and its owner; fresh ids if None.
            circuit_breaker: One for all calls of the chain, or one for each provider; may be shared between chains.
            ledger: Where reservations are kept; in this process's memory, for this chain alone, by default.
            clock: The source of time.
            ids: The source of identifiers.
            on_event: Told of every incident, on the thread that found it.
            around: ``parent=None`` for a context that is independent of those around it; see `Around`.

        Raises:
            ConfigurationError: If the context around it is over, or for a ledger, a clock or an account of its own.
        """
        limits = limits_of(config)
        parent = parent_of(around)
        if parent is None:
            metadata = metadata or ChainMetadata(str(ids.uuid()), str(ids.uuid()))
            numbers = itertools.count(ids.uuid().int >> COUNTER_BITS << COUNTER_BITS)
            tree = Tree(clock, ledger if ledger is not None else MemoryLedger(), numbers, None)
            above = account_above(limits, None, lasting=not isinstance(tree.ledger, MemoryLedger))
            account = Account(limits, above, key=metadata.chain_id)
            incidents = Incidents(metadata, clock, on_event)
        else:
            parent._calls.check_open()
            enclosing.refuse_own(parent.clock, clock, parent.ledger, ledger)
            ours, tree = parent._calls.incidents, parent._tree_here()
            metadata = metadata or replace(ours.metadata, chain_id=str(ids.uuid()))
            limits = enclosing.inherited(limits, parent.account)
            account = Account(limits, account_above(limits, parent.account))
            incidents = Incidents(metadata, tree.clock, on_event or ours.listener, ours)
        if pipeline is not None or circuit_breaker is not None:
            tree = tree._replace(guards=guards_of(pipeline, circuit_breaker, metadata, account, tree.guards))
        self._set_up(account, tree, incidents, parent)
        if "spent" in around:
            carry_over(account, around["spent"])
        self._calls.apart = parent is None and enclosing.innermost() is not None
        if parent is None:
            ROOTS[account] = tree.ledger
        self._opened(tree.ledger.open(account))

    @classmethod
    def for_one_call(
        cls, pipeline: ShieldPipeline, metadata: ChainMetadata | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> ExecutionContext:
        """Open a context for one call, for a caller who holds only a pipeline; use it as a context manager.

        No limit of a chain holds in it but one: a second call is refused.
        """
        return cls(ONE_CALL, pipeline, metadata, clock=clock)

    def _set_up(
        self,
        account: Account,
        tree: Tree,
        incidents: Incidents,
        parent: ExecutionContext | None,
    ) -> None:
        """Do what a root and a child have in common before the ledger opens their account.

        Args:
            account: The account with the figures of the context.
            tree: The values that all contexts of its tree share.
            incidents: The list of its safety events.
            parent: The context above, or None.
        """
        self.account: Account = account
        self.ledger: Ledger = tree.ledger
        self._tree = tree
        self.tracer: Tracer | None = tree.tracer
        self._parent = parent  # kept alive: a context that is collected is closed, and all below it are stopped
        self._clock = tree.clock
        set_ends(account, parent.account if parent else None, tree.clock)
        token, call = parent.cancellation if parent is not None else None, CURRENT_CALL.get()
        if parent is not None and call is not None and call.home() is parent:
            token = call.cancellation  # what overruns its time takes along what was opened in it
        self.cancellation: CancellationToken = CancellationToken(token)
        self._calls = ContextCalls(tree, account, self.cancellation, incidents, ref(self))

    def _tree_here(self) -> Tree:
        """Return the tree for a context below; what a hook opens is not asked about by that hook."""
        guards = self._tree.guards
        return self._tree if guards is None else self._tree._replace(guards=guards.left_to_ask())

    def _opened(self, stop: Stop | None) -> None:
        """Begin to listen for aborts, now that the account is open; report the stop with which it was opened."""
        self.limits: Limits = self.account.limits  # what was carved, where that is less than what was wished
        self._unlink = self.cancellation.on_cancel(self._calls.abort)
        self._calls.watch_time(self.account.work_until)
        if stop is not None:
            self._calls.report_stop(stop)

    def child(
        self,
        limits: Limits,
        name: str = "",
        *,
        carve: bool = True,
        on_event: Listener | None = None,
        by_estimate: bool = False,
        spent: Usage | None = None,
    ) -> ExecutionContext:
        """Open a context below this one.

        The amounts that the child's own ceilings allow are carved from what is left here, in one atomic step: no other
        context can take them. If less is left, the child gets less; its ``limits`` say how much. Ceilings at their
        defaults and counts without a ceiling here are not carved; the child shares them. What the child spends counts
        here too. Stops, aborts and the end of the work here reach it. Close it to release its unused part.

        Args:
            limits: Its own ceilings.
            name: A label, used in the sentences of its stops.
            carve: Whether its ceilings reserve what they allow; if not, it shares all that is left here.
            on_event: Told of every stop found for the child; by default, this context's own listener.
            by_estimate: Whether a model call that comes with an estimate of its input (`EstimatedRequest`) may pass the
                child's own ceilings by that; here and above, its worst case is reserved. For small isolated budgets.
            spent: What an earlier process has used of these ceilings; it is counted here and above already.

        Returns:
            The child. If nothing is left of the money, tokens or steps that it asks for, it is stopped from the start.

        Raises:
            ConfigurationError: If this context is closed.
        """
        child = self._below(limits, name, on_event, carved=carve)
        child.account.by_estimate = by_estimate
        if spent is not None:
            carry_over(child.account, spent)
        child._opened(self.ledger.open(child.account))
        return child

    def split(self, weights: Mapping[str, float]) -> dict[str, ExecutionContext]:
        """Divide all that is left here among new contexts, by weight and in one atomic step.

        Shares are rounded down; the remainder stays here, as do tool calls and retries that are too few to share. A new
        context whose share of money, tokens or steps is 0 is stopped from the start.

        Args:
            weights: By name, how much of the whole each is to get: ``{"research": 3, "writing": 1}``.

        Returns:
            The contexts by name, as `child` opens them; close each of them.

        Raises:
            LimitsError: If there are no weights, or one is not a finite number above zero.
            ConfigurationError: If this context is closed.
        """
        check_weights(weights)
        siblings = {
            name: self._below(replace(self.limits, deadline=None, **NO_CEILINGS), name, carved=True) for name in weights
        }
        stops = self.ledger.open_shares([one.account for one in siblings.values()], list(weights.values()))
        for sibling, stop in zip(siblings.values(), stops, strict=True):
            sibling._opened(stop)
        return siblings

    def keep_verdict(self) -> ExecutionContext | None:
        """Reserve what a verdict needs when everything else is used up, as ``limits.verdict`` says.

        To be called when this context has been opened, before anything is asked of it: the work then ends earlier. What
        is kept is carved for the context that is returned. Stops of work here or above do not concern it, nor those
        below it; aborts and closing do. Its time ends with that of this context, not with the work.

        Returns:
            The context for the verdict; close it, so that its unused part is released. Afterwards what is left may
            be kept for another verdict. None if nothing is to be kept.

        Raises:
            ConfigurationError: If this context is closed, was used before, or keeps a verdict already.
        """
        if self.limits.verdict is None:
            return None
        account = self.account
        if any(account.verdict_hold) or not (account.keeps_verdict or self._calls.nodes.newest is None):
            raise ConfigurationError(
                "a verdict can be kept only once, before the first call; close the earlier one first"
            )
        verdict = self._below(
            replace(self.limits, deadline=None, **NO_CEILINGS, landing=None, verdict=None), "verdict", for_verdict=True
        )
        verdict._opened(self.ledger.open(verdict.account))
        if not account.keeps_verdict:
            keep_verdict_time(account)
            account.keeps_verdict = True
            self._calls.watch_time(self.account.work_until)
        return verdict

    def _below(
        self,
        limits: Limits,
        name: str,
        on_event: Listener | None = None,
        *,
        carved: bool = False,
        for_verdict: bool = False,
    ) -> ExecutionContext:
        """Set up a context below this one, for the ledger to open."""
        self._calls.check_open()
        ours = self._calls.incidents
        child = object.__new__(ExecutionContext)
        incidents = Incidents(ours.metadata, self._clock, on_event or ours.listener, ours)
        limits = limits_of(limits)
        above = account_above(limits, self.account)
        account = Account(limits, above, name, carved_on_open=carved, for_verdict=for_verdict)
        child._set_up(account, self._tree_here(), incidents, self)
        return child

    # --- calls --------------------------------------------------------------------------------------------------------

    async def acall(self, request: CallRequest, work: Work[T], meter: Meter[T] | None = None) -> Outcome[T]:
        """Pass an async call through the gate.

        Args:
            request: The kind and name of the call, and the most that it may use.
            work: Awaited in the caller's task if the call is admitted; it is passed the call's ticket.
            meter: Returns what the call cost, given its value or its error; called exactly once for every admitted
                call, also a failed or cancelled one. Without it, all that was reserved is charged.

        Returns:
            The outcome; Exceptions of the work are in it, but BaseExceptions are raised once the call is settled.

        Raises:
            ConfigurationError: If the context is closed.
            UnpricedModelError: If the call's price is not known and a cost ceiling holds.
        """
        calls = self._calls
        admitted = calls.admit(request)
        value: T | None = None
        error: BaseException | None = None
        try:
            if not isinstance(admitted, InFlightCall):
                if isinstance(admitted, Waiter):
                    admitted = await wait_for_turn(calls, request, admitted)
                if isinstance(admitted, GuardedCall):
                    admitted = await ask_hooks(calls, admitted)
                if isinstance(admitted, Outcome):
                    return admitted
            call = admitted
            if call.interrupted is not None:
                return never_began(calls, call)
            outside, traced = CURRENT_CALL.set(call), call.tracer and call.tracer.enter(call)
            try:
                try:
                    waited = (running := as_coroutine(work(call))).send(None)
                except StopIteration as returned:
                    value = returned.value
                else:
                    value = await run_steps(call, running, waited, self._clock)
            except BaseException as raised:
                error = raised
            finally:
                leave(call.tracer, traced)
                try:  # noqa: SIM105  # on the path of every call
                    CURRENT_CALL.reset(outside)
                except ValueError:  # a coroutine closed by the collector: its context is not here to be restored
                    pass
            if call.abandoned_task is None:
                return finish(calls, call, value, error, meter)
            foreign = call.disarm() or call.outer_cancelled
            outcome, late = abandon(calls, call, meter)
            call.abandoned_task.add_done_callback(late.finished)
            if foreign or not isinstance(error, AbandonedError):
                raise error if error is not None and not foreign else CancelledError
            return outcome
        except BaseException:
            recover(calls, admitted)
            raise
        finally:
            error = None  # its traceback holds this frame, and would hold itself

    def call(self, request: CallRequest, fn: Callable[[Ticket], T], meter: Meter[T] | None = None) -> Outcome[T]:
        """Pass a plain call through the gate; it runs here, or on a worker thread if its time is bounded.

        Args, result and errors are those of `acall`.
        """
        calls = self._calls
        admitted = calls.admit(request)
        value: T | None = None
        error: BaseException | None = None
        try:
            if not isinstance(admitted, InFlightCall):
                if isinstance(admitted, Waiter):
                    admitted = block_for_turn(calls, request, admitted)
                if isinstance(admitted, GuardedCall):
                    admitted = block_for_hooks(calls, admitted)
                if isinstance(admitted, Outcome):
                    return admitted
            call = admitted
            outside, traced = CURRENT_CALL.set(call), call.tracer and call.tracer.enter(call)
            try:
                value = run_blocking(call, partial(fn, call), self._clock)
                refuse_coroutine(value, fn)
            except NeverBegunError:
                return never_began(calls, call)
            except BaseException as raised:
                error = raised
            finally:
                leave(call.tracer, traced)
                CURRENT_CALL.reset(outside)
            if call.abandoned_thread is None:
                outcome: Outcome[T] = finish(calls, call, value, error, meter)
                if isinstance(error, UnrunCoroutineError):
                    raise error
                return outcome
            call.disarm()
            outcome, late = abandon(calls, call, meter)
            call.abandoned_thread.when_late(late.arrive)
            if error is not None and not isinstance(error, AbandonedError):
                raise error
            return outcome
        except BaseException:
            recover(calls, admitted)
            raise
        finally:
            error = None  # its traceback holds this frame, and would hold itself

    # --- calls with options -------------------------------------------------------------------------------------------

    def wrap_llm_call(self, fn: Callable[..., Any], options: WrapOptions | None = None) -> Decision:
        """Make a model call under the chain's limits and return only the decision; `call_llm` returns the result too.

        Args:
            fn: Called once, if the call is admitted; given the ticket if it has a parameter that it needs.
            options: Label, cost hint, time-out and retry policy.
        """
        return self.call_llm(fn, options).decision

    def wrap_tool_call(self, fn: Callable[..., Any], options: WrapOptions | None = None) -> Decision:
        """Make a tool call under the chain's limits and return only the decision; `call_tool` returns its result."""
        return self.call_tool(fn, options).decision

    def call_llm(
        self, fn: Callable[..., T], options: WrapOptions | None = None, *, cost_of: CostOf[T] | None = None
    ) -> Outcome[T]:
        """Make a model call under the chain's limits.

        Args:
            fn: Called once, if the call is admitted; given the ticket if it has a parameter that it needs. It can say
                what it costs with ``ticket.charge(usd)`` and see on ``ticket.cancellation`` that it should stop.
            options: Label, cost hint, time-out and retry policy. The hint is reserved before the call, and charged
                unless the call reports its cost; what callables spend beyond their hints can exceed the ceiling.
            cost_of: Returns what the call cost, in dollars, given its result.

        Returns:
            The decision with the result or the error of this one call.

        Raises:
            TypeError: If ``fn`` is a coroutine function, or returns a coroutine.
            ConfigurationError: If the context is closed.
        """
        return self.call(request_of("llm", options), plain_work(fn), meter_of(cost_of, options))

    def call_tool(
        self, fn: Callable[..., T], options: WrapOptions | None = None, *, cost_of: CostOf[T] | None = None
    ) -> Outcome[T]:
        """Make a tool call under the chain's limits; arguments, result and errors are those of `call_llm`."""
        return self.call(request_of("tool", options), plain_work(fn), meter_of(cost_of, options))

    async def acall_llm(
        self, fn: Callable[..., Awaitable[T]], options: WrapOptions | None = None, *, cost_of: CostOf[T] | None = None
    ) -> Outcome[T]:
        """Make an async model call under the chain's limits; it is cancelled when its time is over. See `call_llm`."""
        return await self.acall(request_of("llm", options), with_ticket(fn), meter_of(cost_of, options))

    async def acall_tool(
        self, fn: Callable[..., Awaitable[T]], options: WrapOptions | None = None, *, cost_of: CostOf[T] | None = None
    ) -> Outcome[T]:
        """Make an async tool call under the chain's limits; it is cancelled when its time is over. See `call_llm`."""
        return await self.acall(request_of("tool", options), with_ticket(fn), meter_of(cost_of, options))

    # --- other questions ----------------------------------------------------------------------------------------------

    def check_egress(self, url: str, method: str = "GET") -> Decision:
        """Ask the pipeline's egress hooks about a request that is about to leave; ALLOW without any.

        Code that sends requests calls this before it sends one. Returns HALT once everything is stopped.

        Raises:
            ConfigurationError: If the context is closed.
        """
        return self._calls.check_egress(url, method)

    def egress_stop(self, url: str, method: str = "GET") -> Stop | None:
        """Ask as `check_egress` does, and return the stop of a request that may not leave; None if it may.

        Raises:
            ConfigurationError: If the context is closed.
        """
        return self._calls.egress_stop(url, method)

    def affords(self, request: CallRequest) -> bool:
        """Return whether the ceilings leave room for the least of a call and for the landing turn that it names.

        Nothing is reserved, and nothing is latched if they do not.
        """
        return not isinstance(decide(Demand(self.account, request), self._clock.monotonic()), Exhausted)

    # --- what there is to see; from any thread ------------------------------------------------------------------------

    @property
    def metadata(self) -> ChainMetadata:
        """Who the chain belongs to."""
        return self._calls.incidents.metadata

    @property
    def clock(self) -> Clock:
        """Where its time comes from."""
        return self._clock

    @property
    def is_closed(self) -> bool:
        """Whether it admits nothing any more."""
        return self._calls.closed

    @property
    def deadline(self) -> Deadline | None:
        """The moment at which everything is over, or None."""
        return self.account.deadline

    @property
    def work_deadline(self) -> Deadline | None:
        """The moment at which the work is over and a landing turn may begin, or None."""
        return self.account.work_deadline

    @property
    def stop(self) -> Stop | None:
        """What ended everything, found here or above; None while something may still run."""
        return stop_of(self.account)

    @property
    def work_stop(self) -> Stop | None:
        """What ended the work, found here or above; a landing turn may still pass unless `stop` is set too."""
        return work_stop_of(self.account)

    def reached_inside(self) -> Stop | None:
        """Return the stop of what was started inside at a ceiling here or above; None if a call began here since."""
        reached, newest = self.account.reached, self._calls.nodes.newest
        return None if reached is None or (newest is not None and newest.number > reached[1]) else reached[0]

    @property
    def usage(self) -> Usage:
        """What this context and those below it have used."""
        return usage_of(self.account)

    def left(self) -> dict[str, int]:
        """Return what is left of every ceiling that binds here, by its field in `Limits`; ``max_cost_nanos`` for money.

        Reservations of calls in flight and of other contexts are already subtracted.
        """
        return {CEILINGS[count]: left.amount for count, left in left_of(self.account).items()}

    @property
    def is_booked(self) -> bool:
        """Whether no call here or below has a reservation any more; the reservation for landing does not count."""
        account = self.account
        return all(reserved <= held for reserved, held in zip(account.reserved, account.landing_hold, strict=True))

    def stands_below(self, other: ExecutionContext) -> bool:
        """Return whether this context is ``other`` or below it; what is used here then counts there too."""
        return other.account in self.account.chain

    @property
    def in_flight(self) -> tuple[InFlightCall, ...]:
        """Its calls under way, and abandoned ones that are not over yet."""
        return tuple(self._calls.in_flight.values())

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since it was opened."""
        return self._clock.monotonic() - self.account.opened_at

    @property
    def snapshot_at_stop(self) -> ContextSnapshot | None:
        """The state at the moment of the first stop that was latched here; None while there is none."""
        return self._calls.snapshot_at_stop

    def budget_status(self, turns_used: int | None = None) -> BudgetStatus:
        """Return its own ceilings beside what was used, at this moment.

        Args:
            turns_used: Model turns taken, which only the loop counts; without it nothing is said of turns.
        """
        return budget_status_of(self.account, self._clock.monotonic(), turns_used)

    def get_snapshot(self) -> ContextSnapshot:
        """Return the state of the chain at this moment; from any thread, at any time, also after it was closed."""
        return self._calls.snapshot()

    # --- stopping -----------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Stop everything here and below, at once and for good; never raises.

        Calls under way are cancelled; later ones are refused, a landing turn too. Once all time is over there is
        nothing left to abort, and the reason stays ``timeout``.
        """
        self.cancellation.cancel(reason)

    def look_at_time(self) -> None:
        """Stop what has to end by now, if the context has not been told of the time yet; from any thread."""
        self._calls.look_at_time()

    def land(self, stop: Stop) -> None:
        """End the work because the caller asks for it: calls under way go on, and a landing turn may follow."""
        self._calls.land(stop)

    def close(self) -> None:
        """Release everything that the context holds; a second call does nothing.

        Calls still under way are cancelled and settled when they end; contexts below it are aborted.
        """
        self._unlink()
        self._calls.close()
        book_stranded(self._calls)

    def book_left(self) -> None:
        """Book the worst case of what a closed context has under way on the running loop, and correct it at its end."""
        book_left(self._calls)

    def __del__(self) -> None:
        """Close a context that was not closed, so that what it holds is released."""
        if hasattr(self, "_unlink") and not self._calls.closed:
            self.close()

    def __enter__(self) -> ExecutionContext:
        """Return the context; runs, blocks and contexts that are started inside are bound by it."""
        enclosing.enter(self, f"the context {self.metadata.chain_id}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        enclosing.leave(self)
        self.close()

    def tell(self, witness: Witness | None) -> Witness | None:
        """Tell a witness of every call and incident here and in contexts opened below; return who was told before."""
        incidents = self._calls.incidents
        before, incidents.witness = incidents.witness, witness
        return before

    def trace(self, tracer: Tracer) -> None:
        """Let a tracer make spans of the calls here and in contexts opened below from now on."""
        self.tracer = self._calls.tracer = tracer
        self._tree = self._tree._replace(tracer=tracer)

    def record_event(self, event: SafetyEvent) -> None:
        """Append an incident of the caller's own to the chain's record."""
        self._calls.incidents.record(event)
