"""Who has spent and reserved what: the port `Ledger`, and `MemoryLedger` for one process.

A ledger holds the accounts of one tree of contexts. Admission decides and reserves in one critical section over the
account and all above it; settlement releases the reservation and books the real cost, whether the call succeeded or
not. A call that must wait for others is remembered here and notified when asking again makes sense, so no release is
missed. A ledger must never block, call user code, or read a clock: it gets the instants that it needs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from watchkeeper.accounting.account import (
    CACHE_WRITE_TOKENS,
    CACHED_TOKENS,
    COST,
    INPUT_TOKENS,
    NOTHING,
    OUTPUT_TOKENS,
    PRESUMED_CALLS,
    PRESUMED_COST,
    PRESUMED_INPUT,
    PRESUMED_OUTPUT,
    REASONING_TOKENS,
    RETRIES,
    SPENDABLE,
    TOTAL_TOKENS,
    Account,
    Left,
    carve,
    kept_for_verdict,
    left_of,
    move_claims,
    one_call_of,
    put_stop,
    shares_of,
    tell_reached,
    usage_of,
    wishes_of,
)
from watchkeeper.accounting.admission import Demand, decide, held_again, latches, release_retry, reserve_retry
from watchkeeper.accounting.call_request import (
    Admitted,
    CLOSED_UNDER_WAY,
    Charge,
    Exhausted,
    Expired,
    Locked,
    NO_TOKENS,
    Stopped,
    Waits,
    exhausted,
    expired,
)
from watchkeeper.core.errors import Stop
from watchkeeper.core.forks import in_forked
from watchkeeper.accounting.stack import check_stack
from watchkeeper.core.usage import NOTHING_PRESUMED, Presumed, TokenUsage, Usage


class Refused(msgspec.Struct, frozen=True):
    """The call may not run.

    Attributes:
        stop: Why.
        latched: Whether this refusal latched the stop.
        concerns_call: Whether the stop concerns this call only.
        short: What it asked for of which limit, and what was left of it; None if no limit is the reason.
    """

    stop: Stop
    latched: bool
    concerns_call: bool = False
    short: Exhausted | None = None


Grant = Admitted | Waits | Locked | Refused


class Ledger(Protocol):
    """Where reservations and settlements of a tree of contexts are kept."""

    def open(self, account: Account) -> Stop | None:
        """Open an account: carve what it asks for from those above it, and keep a step for its landing turn.

        The account of a parent's verdict gets the amount that the parent has reserved for the verdict.

        Returns:
            The stop that was put on it because nothing is left of something that every call needs; None if it may work.
        """
        ...

    def open_shares(self, accounts: Sequence[Account], weights: Sequence[float]) -> list[Stop | None]:
        """Take in new accounts below one parent and carve for each its share of all that the parent has left."""
        ...

    def admit(self, demand: Demand, now: float, waiter: Waiter | None = None) -> Grant:
        """Decide about a call and, if it is admitted, reserve for it, in one critical section.

        Refusing it because time or budget is used up latches that stop on the caller's account, unless only a
        guess of its cost does not fit (`admission.latches`). If it has to wait and brings a waiter, the waiter is
        remembered in the same critical section. Where nothing can be decided now, the grant is Locked: the caller asks
        again with a waiter, which is notified when that is useful.
        """
        ...

    def withdraw(self, waiter: Waiter, now: float) -> None:
        """Remove a waiter; harmless if it was removed before."""
        ...

    def refund(self, demand: Demand, now: float) -> None:
        """Undo an admission: of a call that was refused after it and never ran."""
        ...

    def settle(self, demand: Demand, charge: Charge, failed: bool, now: float) -> None:
        """Give back what was reserved for a call and book what it cost."""
        ...

    def correct(self, demand: Demand, booked: Charge, charge: Charge, now: float) -> None:
        """Replace what was booked for a call by what its late result shows."""
        ...

    def latch(self, account: Account, stop: Stop, work_only: bool, now: float) -> bool:
        """Put a stop on an account unless there is one; return whether this one was put."""
        ...

    def close(self, account: Account, now: float) -> None:
        """Admit nothing more; give back what the account carved and what it still holds for a landing turn."""
        ...


# --- calls that wait --------------------------------------------------------------------------------------------------
# A call that fits only once others have given back what they hold is remembered, and notified whenever a release may
# have changed its verdict. If no call can release what any waiter needs, the newest waiter gets a last
# chance: it is admitted now or refused. All of it happens in the ledger's critical section.


def do_nothing() -> None:
    """Do nothing."""


class Waiter(msgspec.Struct, eq=False):
    """A call that waits for others to give back what they hold.

    Attributes:
        demand: The demand of the waiting call.
        around: The calls inside which it was made: they release nothing before it returns.
        notify: Makes the call ask again, or withdraws it; must not block or raise. The code that runs the call sets it.
        notified: Whether it was notified since it last asked.
        last_chance: Set when no release is expected, or the call may not wait: its next attempt admits or refuses it.
    """

    demand: Demand
    around: tuple[Demand, ...]
    notify: Callable[[], None] = do_nothing
    notified: bool = False
    last_chance: bool = False

    def wake(self) -> None:
        """Make the call ask again."""
        self.notified = True
        self.notify()


class Waiters(msgspec.Struct, eq=False):
    """The calls that wait, in the order in which they came.

    Attributes:
        elsewhere: Says whether something of a count that is reserved at an account is held by other ledgers.
        listed: The waiters.
        reserving: Calls under way for which something is reserved.
        landing: Accounts that keep something for a landing turn.
    """

    elsewhere: Callable[[Account, int], bool]
    listed: list[Waiter] = []
    reserving: set[Demand] = set()
    landing: set[Account] = set()

    def queue(self, waiter: Waiter, now: float, *, waits: bool) -> None:
        """Keep or forget a waiter after it asked."""
        waiter.notified = False
        listed = waiter in self.listed
        if waits:  # it has just asked, so nothing has changed for the others: a thousand may wait
            if not listed:
                self.listed.append(waiter)
            self._break_deadlock(now)
            return
        if listed:
            self.listed.remove(waiter)
        self.review(now)

    def review(self, now: float) -> None:
        """Notify every waiter who need not wait any longer; if all are stuck, give the youngest its last chance."""
        if not self.listed:
            return
        for waiter in tuple(self.listed):
            if not waiter.notified and not isinstance(decide(waiter.demand, now), Waits):
                waiter.wake()
        self._break_deadlock(now)

    def _break_deadlock(self, now: float) -> None:
        """Give the newest waiter its last chance if no call can release anything for any waiter."""
        if self.listed and not any(waiter.notified for waiter in self.listed) and not self._can_release(now):
            youngest = self.listed[-1]
            youngest.last_chance = True
            youngest.wake()

    def _can_release(self, now: float) -> bool:
        """Return whether a holder that is not itself waiting holds something that one of the waiters needs."""
        seen: set[tuple[int, Account]] = set()
        for waiter in self.listed:
            verdict = decide(waiter.demand, now)
            if not isinstance(verdict, Waits) or (verdict.limit, verdict.account) in seen:
                continue
            if self.is_releasable(verdict.account, verdict.limit) or self.elsewhere(verdict.account, verdict.limit):
                return True
            seen.add((verdict.limit, verdict.account))
        return False

    def is_releasable(self, level: Account, count: int) -> bool:
        """Return whether a holder that is not itself waiting has something of this count reserved at an account.

        What a child has carved does not count: it is released only when the child is closed, and the waiting
        caller may be the one that has to close it.
        """
        waiting = {account for waiter in self.listed for account in waiter.demand.account.chain}
        stuck = {demand for waiter in self.listed for demand in waiter.around}
        holders = [demand.account for demand in self.reserving - stuck if holds(demand, count)]
        holders += [account for account in self.landing - waiting if account.landing_hold[count]]
        # the figures of one account may be shared by several objects: compare the lists themselves
        return any(payer.reserved is level.reserved for account in holders for payer in account.paths[count])


def holds(demand: Demand, count: int) -> bool:
    """Return whether something of this count is reserved for a call under way."""
    return demand.may_fail if count == RETRIES else any(reserved == count for reserved, _ in demand.reserved)


@runtime_checkable
class KnowsCalls(Protocol):
    """A ledger that can say which calls are under way."""

    def under_way(self, account: Account) -> list[Demand]:
        """Return the calls of an account, and of those below it, for which something is reserved."""
        ...


def nowhere(account: Account, count: int) -> bool:
    """Return False: no other ledger holds anything."""
    return False


class MemoryLedger:
    """A ledger in this process's memory."""

    __slots__ = ("_lock", "_waiters")

    def __init__(
        self,
        elsewhere: Callable[[Account, int], bool] = nowhere,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Start with no accounts.

        Args:
            elsewhere: Says whether something of a count that is reserved at an account is held by other ledgers that
                may give it back; for a ledger that others share, so that waiting for them is not taken for being stuck.
            lock: A reentrant lock held for every access to the figures, for an owner that changes them too.
        """
        # Reentrant: a finaliser that the collector runs inside a critical section may come back in here.
        self._lock: AbstractContextManager[Any] = lock or threading.RLock()
        self._waiters = Waiters(elsewhere)

    def open(self, account: Account) -> Stop | None:
        """Carve what the account asks for, and keep one step for its landing turn."""
        with self._lock:
            above = account.chain[1:]
            if account.for_verdict:
                left = left_of(above[0])
                return self._open(account, kept_for_verdict(above[0], left), left)
            wishes = wishes_of(account) if account.carved_on_open and above else {}
            return self._open(account, wishes, left_of(above[0]) if wishes else {})

    def open_shares(self, accounts: Sequence[Account], weights: Sequence[float]) -> list[Stop | None]:
        """Carve all shares from one look at what the parent has left."""
        with self._lock:
            left = left_of(accounts[0].chain[1])
            shares = shares_of(left, weights)
            return [self._open(account, share, left) for account, share in zip(accounts, shares, strict=True)]

    def _open(self, account: Account, wishes: Mapping[int, int], left: Mapping[int, Left]) -> Stop | None:
        """Carve what the account requests; reserve one step for landing if that leaves steps for work.

        Below an account that was stopped finally, or closed, nothing is carved, because its own part was given back.
        """
        is_over = any(level.barred is not None for level in account.chain[1:])
        lacking = carve(account, wishes, left) if wishes and not is_over else None
        if lacking is not None:
            stop = exhausted(Waits(*lacking), account, landing=False)
            put_stop(account, stop, work_only=False)
            return stop
        move_claims(account)
        if account.has_landing:
            self._set_hold(account, one_call_of(account))
        return None

    def admit(self, demand: Demand, now: float, waiter: Waiter | None = None) -> Grant:
        """Decide and reserve in one critical section; latch a refusal; remember who has to wait."""
        with self._lock:
            verdict = decide(demand, now)
            grant: Grant
            if isinstance(verdict, Admitted):
                self._reserve(demand, verdict.output_tokens)
                if waiter is None:
                    return verdict
                grant = verdict
            elif isinstance(verdict, Waits):
                grant = verdict
            elif isinstance(verdict, Stopped):
                grant = Refused(verdict.stop, latched=False)
            else:
                account, landing, short = demand.account, demand.landing, None
                if isinstance(verdict, Expired):
                    stop = expired(account, landing=landing)
                else:
                    stop, short = exhausted(verdict, account, landing=landing), verdict
                    if not latches(demand, verdict):
                        return self._refuse_call(Refused(stop, False, True, verdict), waiter, now)
                    tell_reached(account, verdict.account, stop, demand.number)
                latched = put_stop(account, stop, work_only=account.stops_work_only(landing=landing))
                move_claims(account)
                grant = Refused(stop, latched, short=short)
                self._waiters.review(now)
            if waiter is not None:
                self._waiters.queue(waiter, now, waits=grant is verdict and not waiter.last_chance)
            return grant

    def _refuse_call(self, refused: Refused, waiter: Waiter | None, now: float) -> Refused:
        """Refuse one call, and leave everything as it is."""
        if waiter is not None:
            self._waiters.queue(waiter, now, waits=False)
        return refused

    def withdraw(self, waiter: Waiter, now: float) -> None:
        """Forget a waiter, and see whether the others may now go on."""
        with self._lock:
            self._waiters.queue(waiter, now, waits=False)

    def refund(self, demand: Demand, now: float) -> None:
        """Take back the reservation, what was counted, and the landing hold that it moved.

        A hold that another call has changed since then stays. A hold that would grow again grows only as far as other
        calls have left room for it.
        """
        with self._lock:
            account = demand.account
            moved = NOTHING if demand.landing else demand.next_hold
            self._unreserve(demand)
            for level in account.chain:
                for count in demand.counts:
                    level.settled[count] -= 1
            move_claims(account)
            if moved is not None and account.landing_hold is moved and account.barred is None:
                self._set_hold(account, held_again(demand))
            self._waiters.review(now)

    def settle(self, demand: Demand, charge: Charge, failed: bool, now: float) -> None:
        """Give back what was reserved for a call and book what it cost."""
        with self._lock:
            chain = demand.account.chain
            book(chain, charge, 1)  # before the release: a signal's exception in between must not lose the charge
            if failed and demand.may_fail:
                for level in chain:
                    level.settled[RETRIES] += 1
            self._unreserve(demand)
            if demand.account.claims:
                move_claims(demand.account)
            if self._waiters.listed:
                self._waiters.review(now)

    def correct(self, demand: Demand, booked: Charge, charge: Charge, now: float) -> None:
        """Replace what was booked for a call by what its late result shows."""
        with self._lock:
            book(demand.account.chain, booked, -1)
            book(demand.account.chain, charge, 1)
            move_claims(demand.account)
            self._waiters.review(now)

    def latch(self, account: Account, stop: Stop, work_only: bool, now: float) -> bool:
        """Put a stop on an account unless there is one; return whether this one was put."""
        with self._lock:
            put = put_stop(account, stop, work_only=work_only)
            move_claims(account)
            self._waiters.review(now)
            return put

    def close(self, account: Account, now: float) -> None:
        """Bar the account, and give back what is carved and held for it but not in use."""
        with self._lock:
            account.barred = account.barred or CLOSED_UNDER_WAY
            self._set_hold(account, NOTHING)
            move_claims(account)
            self._waiters.review(now)

    def _reserve(self, demand: Demand, output: int) -> None:
        """Count the call, reserve what it may cost, and move the landing hold to what it needs after the call."""
        account = demand.account
        check_stack()  # nothing is half reserved because the stack ends here
        demand.granted = output
        demand.held_before = account.landing_hold
        wants, per_output, paths = demand.wants, demand.per_output, account.paths
        reserved: list[tuple[int, int]] = []
        count, amount, level = 0, 0, account
        if demand.most or wants[COST] or wants[TOTAL_TOKENS]:
            try:
                for count in SPENDABLE:
                    amount = wants[count] + per_output[count] * output
                    if amount:
                        for level in paths[count]:
                            level.reserved[count] += amount
                        reserved.append((count, amount))
                demand.reserved = reserved
            except BaseException:  # a signal handler raised between two accounts
                last = (count, amount)
                begun = reserved if not amount or last in reserved else [*reserved, last]
                take_off(account, begun, count, level, 0)
                raise
        for level in account.chain:
            settled = level.settled
            for count in demand.counts:
                settled[count] += 1
        if demand.may_fail:
            reserve_retry(demand)
        if reserved or demand.may_fail:
            self._waiters.reserving.add(demand)
        if demand.landing:
            self._set_hold(account, NOTHING)
        elif demand.next_hold is not None:
            self._set_hold(account, demand.next_hold)
        if account.claims:
            move_claims(account)

    def _unreserve(self, demand: Demand) -> None:
        """Give back what is reserved for a call; nothing if that was done before."""
        if not demand.reserved and not demand.may_fail:
            return
        paths = demand.account.paths
        count, level = -1, demand.account
        try:
            for count, amount in demand.reserved:
                for level in paths[count]:
                    level.reserved[count] -= amount
        except BaseException:  # a signal handler raised between two accounts
            take_off(demand.account, demand.reserved, count, level, 1)
            raise
        finally:
            demand.reserved = ()
            if demand.may_fail and demand.has_retry:
                release_retry(demand)
            self._waiters.reserving.discard(demand)

    def _set_hold(self, account: Account, hold: tuple[int, ...]) -> None:
        """Keep this much, by count, for the landing turn of an account."""
        if hold == account.landing_hold:
            return
        for count, (new, old) in enumerate(zip(hold, account.landing_hold, strict=True)):
            if new != old:
                for level in account.paths[count]:
                    level.reserved[count] += new - old
        account.landing_hold = hold
        if any(hold):
            self._waiters.landing.add(account)
        else:
            self._waiters.landing.discard(account)

    def renew_lock(self) -> None:
        """Take a new lock: in a forked process, a thread that is not there may hold the old one for ever."""
        self._lock = threading.RLock()

    def under_way(self, account: Account) -> list[Demand]:
        """Return the calls of an account, and of those below it, for which something is reserved."""
        with self._lock:
            return [demand for demand in self._waiters.reserving if account in demand.account.chain]

    @property
    def is_idle(self) -> bool:
        """Whether no call waits, and nothing is reserved for a call or kept for a landing turn."""
        with self._lock:
            return not (self._waiters.listed or self._waiters.reserving or self._waiters.landing)

    # --- for ledgers that several processes share, built on this one --------------------------------------------------

    @property
    def waiting(self) -> tuple[Account, ...]:
        """The accounts of the calls that wait."""
        with self._lock:
            return tuple(waiter.demand.account for waiter in self._waiters.listed)

    def review(self, now: float) -> None:
        """Notify every waiter that need not wait any longer, after the figures were changed from outside."""
        with self._lock:
            self._waiters.review(now)

    def tell_all(self) -> None:
        """Notify every waiter to ask again, when a new decision is more useful to it than waiting."""
        with self._lock:
            for waiter in self._waiters.listed:
                waiter.wake()

    def moving(self, account: Account) -> tuple[bool, ...]:
        """Return, by count, whether what is held here at an account can be released before others release anything."""
        with self._lock:
            if not self._waiters.listed or any(waiter.notified for waiter in self._waiters.listed):
                return (True,) * len(NOTHING)
            return tuple(self._waiters.is_releasable(account, count) for count in range(len(NOTHING)))


Steps = list[tuple[Account, int, int]]


def steps_of(account: Account, amounts: Sequence[tuple[int, int]], count: int, level: Account) -> tuple[Steps, Steps]:
    """Return the changes of amounts at accounts that a loop has made, and those that it has not.

    Args:
        account: The account whose paths the loop follows.
        amounts: ``(count, amount)`` of each change.
        count: The count that the loop changed last.
        level: The account at which it did.
    """
    steps = [(each, known, amount) for known, amount in amounts for each in account.paths[known]]
    done = [known == count and each is level for each, known, _ in steps]
    last = done.index(True) + 1 if True in done else len(steps)
    return steps[:last], steps[last:]


def take_off(account: Account, amounts: Sequence[tuple[int, int]], count: int, level: Account, part: int) -> None:
    """Take off what a loop has added (part 0), or has yet to take off (part 1); see `steps_of`."""
    for each, known, amount in steps_of(account, amounts, count, level)[part]:
        each.reserved[known] -= amount


def book(chain: tuple[Account, ...], charge: Charge, sign: int) -> None:
    """Add a charge to (or take it off) every account in the chain."""
    cost, tokens = charge.cost_nanos, charge.tokens
    if cost == 0 and tokens is NO_TOKENS and charge.presumed is NOTHING_PRESUMED:
        return
    for level in chain:
        settled = level.settled
        if cost is None:
            level.unpriced = True
        else:
            settled[COST] += sign * cost
        if charge.presumed is not NOTHING_PRESUMED:
            add_presumed(settled, charge.presumed, sign)
        if tokens is NO_TOKENS:
            continue
        settled[TOTAL_TOKENS] += sign * (tokens.input_tokens + tokens.output_tokens)
        settled[INPUT_TOKENS] += sign * tokens.input_tokens
        settled[OUTPUT_TOKENS] += sign * tokens.output_tokens
        settled[CACHED_TOKENS] += sign * tokens.cached_tokens
        settled[CACHE_WRITE_TOKENS] += sign * tokens.cache_write_tokens
        settled[REASONING_TOKENS] += sign * tokens.reasoning_tokens


def add_presumed(settled: list[int], presumed: Presumed, sign: int) -> None:
    """Add what is presumed (or take it off), beside the totals that contain it."""
    settled[PRESUMED_CALLS] += sign * presumed.calls
    settled[PRESUMED_INPUT] += sign * presumed.tokens.input_tokens
    settled[PRESUMED_OUTPUT] += sign * presumed.tokens.output_tokens
    settled[PRESUMED_COST] += sign * (presumed.cost_nanos or 0)


# --- forks ------------------------------------------------------------------------------------------------------------
# A forked process has a copy of every context. Used in both processes, each copy would spend all that is left. So in
# the new process every inherited context is refused; contexts that are opened there are its own.

INHERITED: Final = Stop(
    "aborted",
    "gate",
    "This ExecutionContext was opened before the process was forked, and only the process that opened it may use it;"
    " open a new one after the fork.",
)

ROOTS: Final[weakref.WeakKeyDictionary[Account, Ledger]] = weakref.WeakKeyDictionary()
"""The accounts of the root contexts that were opened in this process, and their ledgers."""


def usage_if_lost(key: str) -> Usage | None:
    """Return what a chain of this process has used, with the worst case of its calls under way presumed.

    Args:
        key: The ``chain_id`` of its root context.

    Returns:
        None if no context with that id is open here, or its ledger does not know which calls are under way.
    """
    for account, ledger in list(ROOTS.items()):
        if account.key == key and isinstance(ledger, KnowsCalls):
            return usage_at_worst(account, ledger)
    return None


def usage_at_worst(account: Account, ledger: Ledger) -> Usage:
    """Return what an account has used, with the worst case of its calls under way if its ledger knows them."""
    demands = ledger.under_way(account) if isinstance(ledger, KnowsCalls) else []
    return sum(map(presumed_of, demands), usage_of(account))


def presumed_of(demand: Demand) -> Usage:
    """Return the worst case of a call under way; its step was counted when it was admitted."""
    amounts = dict(demand.reserved)
    tokens = TokenUsage(amounts.get(INPUT_TOKENS, 0), amounts.get(OUTPUT_TOKENS, 0))
    cost = max(amounts.get(COST, 0), demand.told_nanos) if demand.request.estimate.known_cost else None
    if cost == 0 and not tokens.total:
        return Usage()  # a call that can cost nothing is not presumed
    return Usage(tokens, cost, presumed=Presumed(1, tokens, cost))


def is_inherited(account: Account) -> bool:
    """Return whether an account belongs to a context that was opened before this process was forked."""
    return any(level.barred is INHERITED for level in account.chain)


def bar_inherited() -> None:
    """Refuse everything in the contexts of the process from which this one was forked."""
    for account, ledger in list(ROOTS.items()):
        account.barred = INHERITED
        account.stop = account.stop or INHERITED
        if isinstance(ledger, MemoryLedger):
            ledger.renew_lock()
    ROOTS.clear()


in_forked(bar_inherited)
