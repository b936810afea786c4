"""Who has spent and reserved what: the port `Ledger`, and `MemoryLedger` for one process.

A ledger holds the accounts of one tree of contexts. Admission decides and reserves in one critical section over the
account and all above it; settlement gives the reservation back and books what the call really cost, whatever became
of the call. A call that must wait for others is remembered here and told when it is worth asking again, so a
release can never be missed. Nothing here blocks, calls user code, or knows about time beyond the instants it is given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import msgspec

from watchkeeper.containment.account import (
    CACHE_WRITE_TOKENS,
    CACHED_TOKENS,
    COST,
    INPUT_TOKENS,
    NOTHING,
    OUTPUT_TOKENS,
    REASONING_TOKENS,
    RETRIES,
    STEPS,
    TOTAL_TOKENS,
    Account,
)
from watchkeeper.containment.admission import Admitted, Stopped, Waits, decide
from watchkeeper.containment.covering import give_retry_back, set_retry_aside
from watchkeeper.containment.demand import SPENDABLE, Demand
from watchkeeper.containment.estimate import NO_TOKENS, Charge
from watchkeeper.containment.stops import refusal
from watchkeeper.core.stop import Stop

ONE_STEP: Final = tuple(int(count == STEPS) for count in range(len(NOTHING)))


class Refused(msgspec.Struct, frozen=True):
    """The call may not run: why, and whether this very refusal latched the stop."""

    stop: Stop
    latched: bool


Grant = Admitted | Waits | Refused


def do_nothing() -> None:
    """Do nothing."""


def nowhere(account: Account, count: int) -> bool:
    """Return that nobody but this ledger holds anything."""
    return False


class Waiter:
    """A call that waits for others to give back what they hold.

    Attributes:
        demand: What it wants.
        around: The calls inside which it was made: what they hold they cannot give back before it returns.
        notify: Tells the call to ask again; must not block or raise.
        told: Whether it was told since it last asked.
        last_chance: Set when nobody is left who could give anything back: now it fits or is refused.
    """

    __slots__ = ("around", "demand", "last_chance", "notify", "told")

    def __init__(self, demand: Demand, around: tuple[Demand, ...]) -> None:
        """Remember who waits; whoever runs the call says how to tell him before it asks again."""
        self.demand = demand
        self.around = around
        self.notify: Callable[[], None] = do_nothing
        self.told = False
        self.last_chance = False

    def tell(self) -> None:
        """Tell the call to ask again."""
        self.told = True
        self.notify()


class Ledger(Protocol):
    """Where reservations and settlements of a tree of contexts are kept."""

    def open(self, account: Account) -> None:
        """Take in a new account and keep a step for its landing turn, if it is to have one and there is one."""
        ...

    def admit(self, demand: Demand, now: float, waiter: Waiter | None = None) -> Grant:
        """Decide about a call and, if it is admitted, reserve for it, in one critical section.

        Refusing it for want of time or means latches that stop on the caller's account. If it has to wait and brings a
        waiter, the waiter is remembered in the same critical section.
        """
        ...

    def withdraw(self, waiter: Waiter, now: float) -> None:
        """Forget a waiter; harmless if it is forgotten already."""
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
        """Give back what the account still holds for a landing turn."""
        ...


class MemoryLedger:
    """A ledger in this process's memory."""

    __slots__ = ("_elsewhere", "_holding", "_lock", "_reserving", "_waiters")

    def __init__(
        self,
        elsewhere: Callable[[Account, int], bool] = nowhere,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Start with no accounts.

        Args:
            elsewhere: Says whether something of a count that is reserved at an account is held by other ledgers that
                may give it back; for a ledger that others share, so that waiting for them is not taken for being stuck.
            lock: A reentrant lock around every look at the figures, for somebody who changes them too.
        """
        self._elsewhere = elsewhere
        # Reentrant: a finaliser that the collector runs inside a critical section may come back in here.
        self._lock: AbstractContextManager[Any] = lock or threading.RLock()
        self._waiters: list[Waiter] = []
        self._holding: set[Account] = set()
        self._reserving: set[Demand] = set()

    def open(self, account: Account) -> None:
        """Keep one step for the landing turn, where the ceilings on steps leave room for work beside it."""
        with self._lock:
            rooms = [
                top - at.settled[STEPS] - at.reserved[STEPS] for count, top, at in account.ceilings if count == STEPS
            ]
            if account.lands and rooms and min(rooms) >= 2:
                self._set_hold(account, ONE_STEP)

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
                account = demand.account
                stop = refusal(verdict, account, landing=demand.landing)
                grant = Refused(stop, put_stop(account, stop, work_only=account.lands and not demand.landing))
                self._review(now)
            if waiter is not None:
                self._queue(waiter, now, waits=grant is verdict and not waiter.last_chance)
            return grant

    def withdraw(self, waiter: Waiter, now: float) -> None:
        """Forget a waiter, and see whether the others may now go on."""
        with self._lock:
            self._queue(waiter, now, waits=False)

    def refund(self, demand: Demand, now: float) -> None:
        """Take back the reservation, what was counted, and the landing hold that it moved.

        A hold that another call has moved since stays. One that would grow again does so only as far as nobody else has
        taken the room meanwhile.
        """
        with self._lock:
            account = demand.account
            moved = NOTHING if demand.landing else demand.hold
            self._unreserve(demand)
            for level in account.chain:
                for count in demand.counts:
                    level.settled[count] -= 1
            if moved is not None and account.hold is moved:
                self._set_hold(account, held_again(demand))
            self._review(now)

    def settle(self, demand: Demand, charge: Charge, failed: bool, now: float) -> None:
        """Give back what was reserved for a call and book what it cost."""
        with self._lock:
            chain = demand.account.chain
            self._unreserve(demand)
            if failed and demand.may_fail:
                for level in chain:
                    level.settled[RETRIES] += 1
            book(chain, charge, 1)
            if self._waiters:
                self._review(now)

    def correct(self, demand: Demand, booked: Charge, charge: Charge, now: float) -> None:
        """Replace what was booked for a call by what its late result shows."""
        with self._lock:
            book(demand.account.chain, booked, -1)
            book(demand.account.chain, charge, 1)
            self._review(now)

    def latch(self, account: Account, stop: Stop, work_only: bool, now: float) -> bool:
        """Put a stop on an account unless there is one; return whether this one was put."""
        with self._lock:
            put = put_stop(account, stop, work_only=work_only)
            self._review(now)
            return put

    def close(self, account: Account, now: float) -> None:
        """Give back what the account still holds for a landing turn."""
        with self._lock:
            self._set_hold(account, NOTHING)
            self._review(now)

    def _reserve(self, demand: Demand, output: int) -> None:
        """Count the call, set aside what it may cost, and move the landing hold to what it needs after the call."""
        demand.granted = output
        demand.held = demand.account.hold
        wants, per_output = demand.wants, demand.per_output
        reserved: list[tuple[int, int]] = []
        for count in SPENDABLE:
            amount = wants[count] + per_output[count] * output
            if amount:
                reserved.append((count, amount))
        demand.reserved = tuple(reserved)
        for level in demand.account.chain:
            for count in demand.counts:
                level.settled[count] += 1
            for count, amount in reserved:
                level.reserved[count] += amount
        if demand.may_fail:
            set_retry_aside(demand)
        if reserved or demand.may_fail:
            self._reserving.add(demand)
        if demand.landing:
            self._set_hold(demand.account, NOTHING)
        elif demand.hold is not None:
            self._set_hold(demand.account, demand.hold)

    def _unreserve(self, demand: Demand) -> None:
        """Give back what is set aside for a call."""
        if not demand.reserved and not demand.may_fail:
            return
        for level in demand.account.chain:
            for count, amount in demand.reserved:
                level.reserved[count] -= amount
        if demand.may_fail:
            give_retry_back(demand)
        demand.reserved = ()
        self._reserving.discard(demand)

    def _set_hold(self, account: Account, hold: tuple[int, ...]) -> None:
        if hold == account.hold:
            return
        changes = [
            (count, new - old) for count, (new, old) in enumerate(zip(hold, account.hold, strict=True)) if new != old
        ]
        for level in account.chain:
            for count, change in changes:
                level.reserved[count] += change
        account.hold = hold
        if any(hold):
            self._holding.add(account)
        else:
            self._holding.discard(account)

    def _queue(self, waiter: Waiter, now: float, *, waits: bool) -> None:
        """Keep or forget a waiter after it asked."""
        waiter.told = False
        listed = waiter in self._waiters
        if waits:  # it has just asked, so nothing has changed for the others: a thousand may wait
            if not listed:
                self._waiters.append(waiter)
            self._unstick(now)
            return
        if listed:
            self._waiters.remove(waiter)
        self._review(now)

    def _review(self, now: float) -> None:
        """Tell every waiter who need not wait any longer; if all are stuck, give the youngest its last chance."""
        if not self._waiters:
            return
        for waiter in tuple(self._waiters):
            if not waiter.told and not isinstance(decide(waiter.demand, now), Waits):
                waiter.tell()
        self._unstick(now)

    def _unstick(self, now: float) -> None:
        """Give the youngest of those who wait its last chance if nobody can release anything for any of them."""
        if not any(waiter.told for waiter in self._waiters) and not self._can_release(now):
            youngest = self._waiters[-1]
            youngest.last_chance = True
            youngest.tell()

    def _can_release(self, now: float) -> bool:
        """Return whether anybody who does not wait himself holds something that one of the waiters waits for."""
        seen: set[tuple[int, Account]] = set()
        for waiter in self._waiters:
            verdict = decide(waiter.demand, now)
            if not isinstance(verdict, Waits) or (verdict.limit, verdict.account) in seen:
                continue
            if self._moves(verdict.account, verdict.limit) or self._elsewhere(verdict.account, verdict.limit):
                return True
            seen.add((verdict.limit, verdict.account))
        return False

    def _moves(self, level: Account, count: int) -> bool:
        """Return whether something of a count that is held here at an account is held by somebody who does not wait."""
        stuck = {demand for waiter in self._waiters for demand in waiter.around}
        waiting = {account for waiter in self._waiters for account in waiter.demand.account.chain}
        return any(
            holds(demand, count) and counts_at(level, demand.account) for demand in self._reserving - stuck
        ) or any(account.hold[count] and counts_at(level, account) for account in self._holding - waiting)

    # --- for ledgers that several processes share, built on this one ----------------------------------------------

    @property
    def waiting(self) -> tuple[Account, ...]:
        """The accounts of the calls that wait."""
        with self._lock:
            return tuple(waiter.demand.account for waiter in self._waiters)

    def review(self, now: float) -> None:
        """Tell those who wait and need not any longer, because somebody else has changed the figures."""
        with self._lock:
            self._review(now)

    def tell_all(self) -> None:
        """Tell all who wait to ask again, because what they would hear now is worth more than waiting."""
        with self._lock:
            for waiter in self._waiters:
                waiter.tell()

    def moving(self, account: Account) -> tuple[bool, ...]:
        """Return, by count, whether what is held here at an account can come back without others giving way first."""
        with self._lock:
            if not self._waiters or any(waiter.told for waiter in self._waiters):
                return (True,) * len(NOTHING)
            return tuple(self._moves(account, count) for count in range(len(NOTHING)))


def counts_at(level: Account, account: Account) -> bool:
    """Return whether what an account reserves is counted in the figures of ``level``."""
    return any(above.reserved is level.reserved for above in account.chain)


def holds(demand: Demand, count: int) -> bool:
    """Return whether something of this count is set aside for a call under way."""
    return demand.may_fail if count == RETRIES else any(reserved == count for reserved, _ in demand.reserved)


def held_again(demand: Demand) -> tuple[int, ...]:
    """Return the landing hold as it was before a call was admitted, as far as there still is room for it."""
    account = demand.account
    hold = list(demand.held)
    for count, ceiling, level in account.ceilings:
        room = ceiling - level.settled[count] - level.reserved[count] + account.hold[count]
        hold[count] = max(min(hold[count], room), 0)
    return tuple(hold)


def put_stop(account: Account, stop: Stop, *, work_only: bool) -> bool:
    """Put a stop on an account; the first one of its kind stays. Return whether this one was put."""
    if account.stop is not None or (work_only and account.work_stop is not None):
        return False
    if work_only:
        account.work_stop = stop
    else:
        account.stop = stop
    return True


def book(chain: tuple[Account, ...], charge: Charge, sign: int) -> None:
    """Add a charge to (or take it off) every account in the chain."""
    cost, tokens = charge.cost_nanos, charge.tokens
    if cost == 0 and tokens is NO_TOKENS:
        return
    for level in chain:
        settled = level.settled
        if cost is None:
            level.unpriced = True
        else:
            settled[COST] += sign * cost
        if tokens is NO_TOKENS:
            continue
        settled[TOTAL_TOKENS] += sign * (tokens.input_tokens + tokens.output_tokens)
        settled[INPUT_TOKENS] += sign * tokens.input_tokens
        settled[OUTPUT_TOKENS] += sign * tokens.output_tokens
        settled[CACHED_TOKENS] += sign * tokens.cached_tokens
        settled[CACHE_WRITE_TOKENS] += sign * tokens.cache_write_tokens
        settled[REASONING_TOKENS] += sign * tokens.reasoning_tokens
