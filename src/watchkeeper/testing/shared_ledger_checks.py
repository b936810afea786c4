"""What ledgers on one store must do together: a conformance suite for ledgers that several processes share.

`check_shared_ledger(join)` opens several ledgers on the same store, as several processes would, and holds them to one
ceiling for all. Each check begins with a store of its own and raises an AssertionError that says what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from watchkeeper.containment.account import COST, NOTHING, TOTAL_TOKENS, Account
from watchkeeper.containment.admission import Waits
from watchkeeper.containment.call import CallRequest
from watchkeeper.containment.estimate import Charge
from watchkeeper.containment.ledger import Ledger
from watchkeeper.core.limits import Landing
from watchkeeper.core.stop import Stop
from watchkeeper.core.usage import TokenUsage
from watchkeeper.testing.ledger_checks import (
    CENT,
    Executions,
    admitted,
    asked,
    ceilings,
    costing,
    expect,
    opened,
    race,
    reason,
    until_refused,
)

JoinLedger = Callable[[str], Ledger]
"""Returns a ledger on the store of this name, together with all others that were made for the same name."""


def check_shared_ledger(join: JoinLedger) -> None:
    """Hold ledgers on one store to the rules that they keep together.

    Args:
        join: Returns another ledger on the store of the given name, as another process would open it.

    Raises:
        AssertionError: If they break one of them.
    """
    for check in SHARED_CHECKS:
        check(join)


def check_shared_figures(join: JoinLedger) -> None:
    """What is settled through one ledger counts in all, by key; accounts without a key, or with another, stay apart."""
    one, two = join("figures"), join("figures")
    mine, yours = opened(one, max_steps=2), opened(two, max_steps=2)
    for _ in range(2):
        one.settle(admitted(one, mine, costing(CENT)), Charge(TokenUsage(1, 2), CENT), False, 0.0)
    expect("the other's third step", reason(asked(two, yours, costing(0))[1]), "step_limit_exceeded")
    expect("seen there", (yours.settled[COST], yours.settled[TOTAL_TOKENS]), (2 * CENT, 6))
    expect("the first is not stopped by that", mine.stop, None)
    for account in (opened(two, key=None, max_steps=2), opened(two, key="other", max_steps=2)):
        admitted(two, account, costing(0))


def check_shared_reservations(join: JoinLedger) -> None:
    """What one reserves the other must wait for, until it is settled."""
    one, two = join("reservations"), join("reservations")
    mine, yours = opened(one, max_cost_usd=1), opened(two, max_cost_usd=1)
    demand = admitted(one, mine, costing(60 * CENT))
    expect("while it is reserved", type(asked(two, yours, costing(60 * CENT))[1]), Waits)
    one.settle(demand, Charge(cost_nanos=0), False, 0.0)
    other = admitted(two, yours, costing(60 * CENT))
    expect("the other way round", type(asked(one, mine, costing(60 * CENT))[1]), Waits)
    two.refund(other, 0.0)
    one.settle(admitted(one, mine, costing(CENT)), Charge(), False, 0.0)
    expect("nothing stays reserved", tuple(mine.reserved), NOTHING)


def check_shared_ceilings(join: JoinLedger) -> None:
    """Each holds to its own ceiling over what all have used, so the tighter of two holds for both together."""
    one, two = join("ceilings"), join("ceilings")
    tight, loose = opened(one, max_steps=2), opened(two, max_steps=4)
    for _ in range(3):
        two.settle(admitted(two, loose, costing(0)), Charge(), False, 0.0)
    expect("under the tighter one", reason(asked(one, tight, costing(0))[1]), "step_limit_exceeded")
    admitted(two, loose, costing(0))


def check_shared_landing(join: JoinLedger) -> None:
    """What one keeps for its landing turn is kept from the others too, until it is closed."""
    one, two = join("landing"), join("landing")
    mine = opened(one, max_steps=2, landing=Landing())
    yours = opened(two, max_steps=2)
    two.settle(admitted(two, yours, costing(0)), Charge(), False, 0.0)
    expect("the step that is kept", type(asked(two, yours, costing(0))[1]), Waits)
    one.close(mine, 0.0)
    admitted(two, yours, costing(0))


def check_shared_carving(join: JoinLedger) -> None:
    """What a child of one carves is kept from the others too, until it is closed or stopped for good."""
    one, two = join("carving"), join("carving")
    mine, yours = opened(one, max_cost_usd=1), opened(two, max_cost_usd=1)
    for end in ("close", "latch"):
        child = Account(ceilings(max_cost_usd="$0.60"), mine, carves=True)
        expect("room for it", one.open(child), None)
        expect("while it is carved", type(asked(two, yours, costing(50 * CENT))[1]), Waits)
        if end == "latch":
            one.latch(child, Stop("aborted", "caller", "enough"), False, 0.0)
        one.close(child, 0.0)
        two.refund(admitted(two, yours, costing(50 * CENT)), 0.0)
    expect("nothing stays reserved", tuple(yours.reserved), NOTHING)


def check_shared_races(join: JoinLedger) -> None:
    """Threads of several ledgers race for one ceiling; exactly as many calls run, and not a cent more is spent."""
    ledgers = [join("races") for _ in range(4)]
    steps = [opened(ledger, key="steps", max_steps=40) for ledger in ledgers]
    money = [opened(ledger, key="money", max_cost_usd=1) for ledger in ledgers]
    counted, spent = Executions(), Executions()

    def work(number: int) -> None:
        place = number % 4
        until_refused(ledgers[place], steps[place], CallRequest("llm"), counted)
        until_refused(ledgers[place], money[place], costing(9 * CENT), spent, cost=7 * CENT)

    race(work)
    expect("calls under one max_steps=40", counted.count, 40)
    expect("calls of 7 cents under one dollar, 9 at worst", (spent.count, spent.cost), (14, 98 * CENT))


SHARED_CHECKS: Final[Sequence[Callable[[JoinLedger], None]]] = (
    check_shared_figures,
    check_shared_reservations,
    check_shared_ceilings,
    check_shared_landing,
    check_shared_carving,
    check_shared_races,
)
