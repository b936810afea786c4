"""The gate: every model call, tool call and child run passes an `ExecutionContext` (seed: execution-context).

It admits or stops before anything is spent, in one atomic decision; runs the work with its time-out and cancellation;
settles what it really cost, whatever became of it; and records it. A stop latches: after it nothing runs but a landing
turn. Contexts form a tree: a child has ceilings of its own and is bound by those above it. A context that is closed
leaves nothing behind. What decides is `admission.decide`; the `wrap_*` and `call_*` of the seed stand in `faces`.
"""

from __future__ import annotations

import itertools
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar

from watchkeeper.accounting.account import (
    CEILINGS,
    Account,
    Phases,
    budget_status_of,
    keep_time,
    start_time,
    stop_of,
    usage_of,
    work_stop_of,
)
from watchkeeper.accounting.admission import Demand, check_weights, decide, left_of
from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.accounting.ledger import Ledger, MemoryLedger, Waiter
from watchkeeper.accounting.refusals import Exhausted
from watchkeeper.containment.call_end import finish, leave_behind
from watchkeeper.containment.call_start import Passage, Tree, ask_aside, block_for_answer, block_for_turn, wait_turn
from watchkeeper.containment.guards import Entry, Guards
from watchkeeper.containment.in_flight import (
    CURRENT,
    Flight,
    LeftBehindError,
    Meter,
    Outcome,
    Ticket,
    UnrunCoroutineError,
    Work,
    as_coroutine,
    fly,
    refuse_coroutine,
    run_blocking,
    step_out,
)
from watchkeeper.containment.record import ContextSnapshot, Incidents, Listener
from watchkeeper.containment.seed_calls import ExecutionConfig, SeedFaces, limits_of
from watchkeeper.core.budget import BudgetStatus
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, Deadline
from watchkeeper.core.errors import ConfigurationError, Stop
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.core.limits import AccountLimit, Limits
from watchkeeper.core.meters import NO_CEILINGS
from watchkeeper.core.usage import Usage
from watchkeeper.shield.circuit_breaker import CircuitBreaker, CircuitBreakers
from watchkeeper.shield.decision import ChainMetadata, Decision, SafetyEvent
from watchkeeper.shield.pipeline import ShieldPipeline

T = TypeVar("T")


# --- views ----------------------------------------------------------------------------------------------------------
# What there is to see of a context: its stops, what it has used, its state. Reading only, from any thread.


class Views:
    """The readable side of a context, which sets what it reads.

    Attributes:
        deadline: The moment at which everything is over, or None.
        work_deadline: The moment at which the work is over and a landing turn may begin, or None.
    """

    deadline: Deadline | None
    work_deadline: Deadline | None
    _account: Account
    _clock: Clock
    _passage: Passage

    @property
    def stop(self) -> Stop | None:
        """What ended everything, found here or above; None while something may still run."""
        return stop_of(self._account)

    @property
    def work_stop(self) -> Stop | None:
        """What ended the work, found here or above; a landing turn may still pass unless `stop` is set too."""
        return work_stop_of(self._account)

    @property
    def usage(self) -> Usage:
        """What this context and those below it have used."""
        return usage_of(self._account)

    def left(self) -> dict[str, int]:
        """Return what is left of every ceiling that binds here, by its field in `Limits`; ``max_cost_nanos`` for money.

        What calls under way may still use, and what is set aside for others, is not left.
        """
        return {CEILINGS[count]: left.amount for count, left in left_of(self._account).items()}

    @property
    def is_booked(self) -> bool:
        """Whether nothing is set aside any more for a call here or below; what is held for a landing is no call."""
        account = self._account
        return all(reserved <= held for reserved, held in zip(account.reserved, account.hold, strict=True))

    def stands_below(self, other: Views) -> bool:
        """Return whether it is a context, or stands below it: what passes here counts there."""
        return other._account in self._account.chain

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since it was opened."""
        return self._clock.monotonic() - self._account.opened_at

    @property
    def snapshot_at_stop(self) -> ContextSnapshot | None:
        """The state at the moment of the first stop that was latched here; None while there is none."""
        return self._passage.snapshot_at_stop

    def budget_status(self, turns_used: int | None = None) -> BudgetStatus:
        """Return its own ceilings beside what was used, at this moment.

        Args:
            turns_used: Model turns taken, which only the loop counts; without it nothing is said of turns.
        """
        return budget_status_of(self._account, self.deadline, self._clock.monotonic(), turns_used)

    def get_snapshot(self) -> ContextSnapshot:
        """Return the state of the chain at this moment; from any thread, at any time, also after it was closed."""
        return self._passage.snapshot()


# --- shared account -------------------------------------------------------------------------------------------------
# The account that several runs share: `Limits(account="team-a", account_limit="$20/day")` puts it above the root.
#
# It has the ceiling of the account and none other, and a key by which a ledger on disk knows it in every process. It
# takes no part in deadlines, landing or stops: what it refuses ends the run that asked, not the account.

PREFIX: Final = "account:"
"""Begins the keys of such accounts, so that no chain is taken for one by chance."""


def shared_key(name: str) -> str:
    """Return the key by which a ledger knows the account of this name."""
    return PREFIX + name


def account_above(limits: Limits, parent: Account | None, ledger: Ledger) -> Account | None:
    """Return what stands above a new context: its parent, or the account that its limits name.

    Args:
        limits: The context's own ceilings.
        parent: The account of the context that it is a child of, or None for a root.
        ledger: Where the figures are kept.

    Raises:
        ConfigurationError: If the ledger forgets when the process ends, or a child names another account than its root.
    """
    if limits.account is None:
        return parent
    if parent is not None:
        if any(level.period is not None and level.name == limits.account for level in parent.chain):
            return parent
        raise ConfigurationError(
            f"account={limits.account!r} is named for a part of a run; name it in the limits of the whole run"
        )
    if isinstance(ledger, MemoryLedger):
        raise ConfigurationError(
            f"account={limits.account!r} needs a ledger that remembers other runs, for example"
            " ledger=SqliteLedger('ledger.sqlite3')"
        )
    return shared_account(limits)


def shared_account(limits: Limits) -> Account | None:
    """Return the account that limits name, or None if they name none."""
    limit = limits.account_limit
    if limits.account is None or not isinstance(limit, AccountLimit):
        return None
    ceilings = Limits(
        deadline=None,
        max_cost_usd=limit.dollars,
        max_total_tokens=limit.tokens,
        max_retries=None,
        max_turns=None,
        min_output_tokens=limits.min_output_tokens,
        landing=None,
        account=limits.account,
        account_limit=limit,
    )
    return Account(ceilings, None, limits.account, key=shared_key(limits.account), period=limit.period)


COUNTER_BITS: Final = 48
"""Low bits of a node's UUID that count the nodes of a tree; the others are random and the same for the tree."""


ONE_CALL: Final = Limits(
    deadline=None, max_total_tokens=None, max_steps=1, max_retries=None, max_turns=None, landing=None
)
NONE: Final[Mapping[str, Any]] = {"deadline": None, **NO_CEILINGS}
"""No ceiling of its own, as fields of `Limits`."""


class ExecutionContext(SeedFaces, Views):
    """The gate of one run, chain or request.

    Use it as a context manager, or close it yourself.

    Attributes:
        limits: Its own ceilings.
        deadline: The moment at which everything is over, or None.
        work_deadline: The moment at which the work is over and a landing turn may begin, or None.
        cancellation: Cancelled by an abort here or above, and when it is closed.
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
    ) -> None:
        """Open a context; its deadline starts to run now.

        Args:
            config: What the chain may spend: the seed's configuration (hard stops) or `Limits` (with landing).
            pipeline: Hooks that are asked about every model call and tool call; limits only, if None.
            metadata: Who the chain belongs to; fresh ids if None.
            circuit_breaker: One for all calls of the chain, or one for each provider; may be shared between chains.
            ledger: Where reservations are kept; in this process's memory, for this chain alone, by default.
            clock: Where time comes from.
            ids: Where ids come from.
            on_event: Told of every incident, on the thread that found it.
        """
        limits = limits_of(config)
        metadata = metadata or ChainMetadata(str(ids.uuid()), str(ids.uuid()))
        numbers = itertools.count(ids.uuid().int >> COUNTER_BITS << COUNTER_BITS)
        guards = None
        if pipeline is not None or circuit_breaker is not None:
            guards = Guards(pipeline, circuit_breaker, metadata)
        tree = Tree(clock, ledger if ledger is not None else MemoryLedger(), numbers, guards)
        self._set_up(limits, tree, Incidents(metadata, clock, on_event), None, "")
        self._opened(tree.ledger.open(self._account))

    @classmethod
    def for_one_call(
        cls, pipeline: ShieldPipeline, metadata: ChainMetadata | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> ExecutionContext:
        """Open a context for one call, for a caller who holds only a pipeline; use it as a context manager.

        No limit of a chain holds in it but one: a second call is refused (seed: execution-context, section 8).
        """
        return cls(ONE_CALL, pipeline, metadata, clock=clock)

    def _set_up(
        self,
        limits: Limits,
        tree: Tree,
        incidents: Incidents,
        parent: ExecutionContext | None,
        name: str,
        *,
        carves: bool = False,
        speaks: bool = False,
    ) -> None:
        """Do what a root and a child have in common before the ledger opens their account."""
        self.limits: Limits = limits
        self._tree = tree
        self._parent = parent  # kept alive: a context that is collected is closed, and all below it are stopped
        self._clock = tree.clock
        key = None if parent else incidents.metadata.chain_id
        above = account_above(limits, parent._account if parent else None, tree.ledger)
        account: Account = Account(limits, above, name, key=key, carves=carves, speaks=speaks)
        self._account = account
        around = None if parent is None else (parent._account, Phases(parent.deadline, parent.work_deadline))
        self.deadline, self.work_deadline = start_time(account, around, tree.clock)
        self.cancellation: CancellationToken = CancellationToken(parent.cancellation if parent else None)
        self._passage = Passage(tree, account, self.cancellation, incidents)

    def _opened(self, stop: Stop | None) -> None:
        """Begin to listen for aborts, now that the account is open; report the stop with which it was opened."""
        self.limits = self._account.limits
        self._unlink = self.cancellation.on_cancel(self._passage.abort)
        if stop is not None:
            self._passage.stopped(stop)

    def child(
        self, limits: Limits, name: str = "", *, carve: bool = True, on_event: Listener | None = None
    ) -> ExecutionContext:
        """Open a context below this one.

        What its own ceilings allow is carved from what is left here, at most what is left, in one atomic step: nobody
        beside it can take it. ``limits`` of the child says what it got. Ceilings at their defaults carve nothing, nor
        do counts that nothing here limits; whatever is not carved is shared. What the child spends counts here too.
        Stops, aborts and the end of the work here reach it. Close it, so that what it has not used comes back.

        Args:
            limits: Its own ceilings.
            name: A label, used in the sentences of its stops.
            carve: Whether its ceilings set aside what they allow; if not, it shares all that is left here.
            on_event: Told of every stop found on its behalf; whoever listens to this context by default.

        Returns:
            The child. If nothing is left of the money, tokens or steps that it asks for, it is stopped from the start.

        Raises:
            ConfigurationError: If this context is closed.
        """
        child = self._below(limits, name, on_event, carves=carve)
        child._opened(self._tree.ledger.open(child._account))
        return child

    def split(self, weights: Mapping[str, float]) -> dict[str, ExecutionContext]:
        """Divide all that is left here among new contexts, by weight and in one atomic step.

        Shares are rounded down; what rounds off stays here, as do tool calls and retries that are too few to share. One
        whose share of money, tokens or steps is nothing is stopped from the start.

        Args:
            weights: By name, how much of the whole each is to get: ``{"research": 3, "writing": 1}``.

        Returns:
            The contexts by name, as `child` opens them; close each of them.

        Raises:
            LimitsError: If there are no weights, or one is not a finite number above zero.
            ConfigurationError: If this context is closed.
        """
        check_weights(weights)
        siblings = {name: self._below(replace(self.limits, **NONE), name, carves=True) for name in weights}
        stops = self._tree.ledger.open_shares([one._account for one in siblings.values()], list(weights.values()))
        for sibling, stop in zip(siblings.values(), stops, strict=True):
            sibling._opened(stop)
        return siblings

    def keep_verdict(self) -> ExecutionContext | None:
        """Keep back what a judge needs to speak when everything else is used up, as ``limits.verdict`` says.

        To be called when this context has been opened, before anything is asked of it: the work then ends earlier. What
        is kept is carved for the context that is returned. Stops of work here or above do not concern it, nor those
        below it; aborts and closing do. Its time ends with that of this context, not with the work.

        Returns:
            The context for the verdict; close it, so that what it has not used comes back. Afterwards what is left may
            be kept for another verdict. None if nothing is to be kept.

        Raises:
            ConfigurationError: If this context is closed, was used before, or keeps a verdict already.
        """
        if self.limits.verdict is None:
            return None
        account = self._account
        if any(account.kept) or not (account.keeps or self._passage.store.newest is None):
            raise ConfigurationError("keep a verdict once, before the first call, or when the one before is closed")
        verdict = self._below(replace(self.limits, **NONE, landing=None, verdict=None), "verdict", speaks=True)
        verdict._opened(self._tree.ledger.open(verdict._account))
        if not account.keeps:
            self.work_deadline = keep_time(account, self.deadline)
            account.keeps = True
        return verdict

    def _below(
        self, limits: Limits, name: str, on_event: Listener | None = None, *, carves: bool = False, speaks: bool = False
    ) -> ExecutionContext:
        """Set up a context below this one, for the ledger to open."""
        self._passage.check_open()
        ours = self._passage.incidents
        child = object.__new__(ExecutionContext)
        incidents = Incidents(ours.metadata, self._clock, on_event or ours.listener, ours)
        child._set_up(limits_of(limits), self._tree, incidents, self, name, carves=carves, speaks=speaks)
        return child

    # --- calls --------------------------------------------------------------------------------------------------------

    async def acall(self, request: CallRequest, work: Work[T], meter: Meter[T] | None = None) -> Outcome[T]:
        """Pass an async call through the gate.

        Args:
            request: What is asked.
            work: Run in this very task if the call is admitted; given its ticket.
            meter: Says what the call cost, from its value or its error; called exactly once for every admitted call,
                also a failed or cancelled one. Without one, all that was reserved is charged.

        Returns:
            What came of it. Exceptions of the work are in it; BaseExceptions (a cancelled task) are raised once the
            call is settled.

        Raises:
            ConfigurationError: If the context is closed.
            UnpricedModelError: If the call's price is not known and a cost ceiling holds.
        """
        passage = self._passage
        entered = passage.enter(request)
        if not isinstance(entered, Flight):
            if isinstance(entered, Waiter):
                entered = await wait_turn(passage, request, entered, self._clock)
            if isinstance(entered, Entry):
                entered = await ask_aside(passage, entered, self._clock)
            if isinstance(entered, Outcome):
                return entered
        flight = entered
        value: T | None = None
        error: BaseException | None = None
        mark = CURRENT.set(flight)
        try:
            running = as_coroutine(work(flight))
            try:
                waited = running.send(None)
            except StopIteration as returned:
                value = returned.value
            else:
                value = await fly(flight, running, waited, self._clock)
        except BaseException as raised:
            error = raised
        finally:
            step_out(mark)
        try:
            if flight.left is None:
                return finish(passage, flight, value, error, meter)
            foreign = flight.disarm() or flight.told
            outcome, late = leave_behind(passage, flight, meter)
            flight.left.add_done_callback(late.finished)
            if foreign or not isinstance(error, LeftBehindError):
                raise error if error is not None and not foreign else CancelledError
            return outcome
        finally:
            error = None  # its traceback holds this frame, and would hold itself

    def call(self, request: CallRequest, fn: Callable[[Ticket], T], meter: Meter[T] | None = None) -> Outcome[T]:
        """Pass a plain call through the gate; it runs here, or on a worker thread if its time is bounded.

        Args, result and errors are those of `acall`.
        """
        passage = self._passage
        entered = passage.enter(request)
        if not isinstance(entered, Flight):
            if isinstance(entered, Waiter):
                entered = block_for_turn(passage, request, entered, self._clock)
            if isinstance(entered, Entry):
                entered = block_for_answer(passage, entered, self._clock)
            if isinstance(entered, Outcome):
                return entered
        flight = entered
        value: T | None = None
        error: BaseException | None = None
        mark = CURRENT.set(flight)
        try:
            value = run_blocking(flight, partial(fn, flight), self._clock)
            refuse_coroutine(value, fn)
        except BaseException as raised:
            error = raised
        finally:
            step_out(mark)
        try:
            if flight.thread is None:
                outcome: Outcome[T] = finish(passage, flight, value, error, meter)
                if isinstance(error, UnrunCoroutineError):
                    raise error
                return outcome
            flight.disarm()
            outcome, late = leave_behind(passage, flight, meter)
            flight.thread.when_late(late.arrive)
            if error is not None and not isinstance(error, LeftBehindError):
                raise error
            return outcome
        finally:
            error = None  # its traceback holds this frame, and would hold itself

    def check_egress(self, url: str, method: str = "GET") -> Decision:
        """Ask the pipeline's egress hooks about a request that is about to leave; ALLOW without any.

        Whoever sends requests calls it first. HALT once everything is stopped.

        Raises:
            ConfigurationError: If the context is closed.
        """
        return self._passage.check_egress(url, method)

    def affords(self, request: CallRequest) -> bool:
        """Return whether the ceilings leave room for the least of a call and for the landing turn that it names.

        Nothing is reserved, and nothing is latched if they do not.
        """
        return not isinstance(decide(Demand(self._account, request), self._clock.monotonic()), Exhausted)

    # --- stopping -----------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Stop everything here and below, at once and for good; never raises.

        Calls under way are cancelled; later ones are refused, a landing turn too.
        """
        self.cancellation.cancel(reason)

    def land(self, stop: Stop) -> None:
        """End the work by the caller's wish: what is under way goes on, and a landing turn may follow."""
        self._passage.land(stop)

    def close(self) -> None:
        """Give back whatever the context holds; calling it twice is harmless.

        Calls still under way are cancelled and settled when they end; contexts below it are aborted.
        """
        self._unlink()
        self._passage.close()

    def __del__(self) -> None:
        """Close a context that nobody closed, so that what it holds comes back."""
        if hasattr(self, "_unlink") and not self._passage.closed:
            self.close()

    def __enter__(self) -> ExecutionContext:
        """Return the context."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def record_event(self, event: SafetyEvent) -> None:
        """Append an incident of the caller's own to the chain's record."""
        self._passage.incidents.record(event)
