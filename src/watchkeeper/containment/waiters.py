"""Who waits, and who could give something back: nobody is forgotten, and nobody waits for ever.

A call that fits only once others have given back what they hold is remembered here, and told whenever a release may
have changed its verdict. If nobody is left who could release what any of them waits for, the youngest gets a last
chance: it fits now or is refused. The ledger calls this inside its critical section; nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from watchkeeper.containment.account import RETRIES, Account
from watchkeeper.containment.admission import Waits, decide
from watchkeeper.containment.demand import Demand


def do_nothing() -> None:
    """Do nothing."""


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


class Waiters:
    """The calls that wait, in the order in which they came.

    Attributes:
        listed: They themselves.
        reserving: Calls under way for which something is set aside.
        landing: Accounts that keep something for a landing turn.
    """

    __slots__ = ("_elsewhere", "landing", "listed", "reserving")

    def __init__(self, elsewhere: Callable[[Account, int], bool]) -> None:
        """Start with nobody.

        Args:
            elsewhere: Says whether something of a count that is reserved at an account is held by other ledgers.
        """
        self.listed: list[Waiter] = []
        self.reserving: set[Demand] = set()
        self.landing: set[Account] = set()
        self._elsewhere = elsewhere

    def queue(self, waiter: Waiter, now: float, *, waits: bool) -> None:
        """Keep or forget a waiter after it asked."""
        waiter.told = False
        listed = waiter in self.listed
        if waits:  # it has just asked, so nothing has changed for the others: a thousand may wait
            if not listed:
                self.listed.append(waiter)
            self._unstick(now)
            return
        if listed:
            self.listed.remove(waiter)
        self.review(now)

    def review(self, now: float) -> None:
        """Tell every waiter who need not wait any longer; if all are stuck, give the youngest its last chance."""
        if not self.listed:
            return
        for waiter in tuple(self.listed):
            if not waiter.told and not isinstance(decide(waiter.demand, now), Waits):
                waiter.tell()
        self._unstick(now)

    def _unstick(self, now: float) -> None:
        """Give the youngest of those who wait its last chance if nobody can release anything for any of them."""
        if not any(waiter.told for waiter in self.listed) and not self._can_release(now):
            youngest = self.listed[-1]
            youngest.last_chance = True
            youngest.tell()

    def _can_release(self, now: float) -> bool:
        """Return whether anybody who does not wait himself holds something that one of the waiters waits for."""
        seen: set[tuple[int, Account]] = set()
        for waiter in self.listed:
            verdict = decide(waiter.demand, now)
            if not isinstance(verdict, Waits) or (verdict.limit, verdict.account) in seen:
                continue
            if self.moves(verdict.account, verdict.limit) or self._elsewhere(verdict.account, verdict.limit):
                return True
            seen.add((verdict.limit, verdict.account))
        return False

    def moves(self, level: Account, count: int) -> bool:
        """Return whether something of a count that is held here at an account is held by somebody who does not wait.

        What a child has carved is given away until it is closed, and nobody waits for that: whoever has to close it may
        be the very one who asks.
        """
        stuck = {demand for waiter in self.listed for demand in waiter.around}
        waiting = {account for waiter in self.listed for account in waiter.demand.account.chain}
        return any(
            holds(demand, count) and is_in(level, paying(demand, count)) for demand in self.reserving - stuck
        ) or any(account.hold[count] and is_in(level, account.paths[count]) for account in self.landing - waiting)


def nowhere(account: Account, count: int) -> bool:
    """Return that nobody but this ledger holds anything."""
    return False


def is_in(level: Account, accounts: Sequence[Account]) -> bool:
    """Return whether the figures of ``level`` are those of one of these accounts."""
    return any(account.reserved is level.reserved for account in accounts)


def paying(demand: Demand, count: int) -> Sequence[Account]:
    """Return the accounts at which a call's reservation of a count is kept: inside what is carved it stops there."""
    return demand.account.paths[count]


def holds(demand: Demand, count: int) -> bool:
    """Return whether something of this count is set aside for a call under way."""
    return demand.may_fail if count == RETRIES else any(reserved == count for reserved, _ in demand.reserved)
