"""What every ledger must do: a conformance suite for implementations of `Ledger`, independent of any test runner.

`check_ledger(make)` holds a ledger to the rules of one process. `check_shared_ledger(join)` opens several ledgers on
the same store, as several processes would, and holds them to one ceiling for all. Each check begins with a fresh ledger
or store and raises an AssertionError that says what was expected. They use threads, but they themselves use no real
time, files or network.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from watchkeeper.accounting.account import COST, NOTHING, RETRIES, STEPS, TOTAL_TOKENS, Account
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import Admitted, CallRequest, Charge, Estimate, Waits
from watchkeeper.accounting.ledger import Grant, Ledger, Refused, Waiter
from watchkeeper.core.errors import Stop
from watchkeeper.accounting.limits import UNLIMITED, Landing, Limits, Verdict
from watchkeeper.core.usage import NANOS_PER_USD, TokenUsage

MakeLedger = Callable[[], Ledger]
"""Returns a fresh ledger that knows nothing."""

THREADS: Final = 8
CENT: Final = NANOS_PER_USD // 100


def check_ledger(make: MakeLedger) -> None:
    """Check that a ledger follows the rules for every ledger.

    Args:
        make: Returns a fresh ledger; called once for every check.

    Raises:
        AssertionError: If it breaks one of them.
    """
    for check in CHECKS:
        check(make())


# --- what the checks are written with ---------------------------------------------------------------------------------


def expect(what: str, found: object, wanted: object) -> None:
    """Raise an AssertionError unless the value is the expected one."""
    if found != wanted:
        raise AssertionError(f"{what}: expected {wanted!r}, found {found!r}")


def ceilings(**given: Any) -> Limits:
    """Return limits with these ceilings and none other, and a hard stop at each."""
    return replace(UNLIMITED, **{"landing": None, **given})


def opened(ledger: Ledger, parent: Account | None = None, *, key: str | None = "job", **given: Any) -> Account:
    """Open an account with these ceilings; one at the root has a key, as that of a context has."""
    account = Account(ceilings(**given), parent, key=None if parent else key)
    ledger.open(account)
    return account


def costing(nanos: int, **fields: Any) -> CallRequest:
    """Return a request with a worst case of exactly this number of nano-dollars."""
    return CallRequest(fields.pop("kind", "llm"), estimate=Estimate(input_nanos=nanos), **fields)


def asked(ledger: Ledger, account: Account, request: CallRequest) -> tuple[Demand, Grant]:
    """Ask for admission."""
    demand = Demand(account, request)
    return demand, ledger.admit(demand, 0.0)


def admitted(ledger: Ledger, account: Account, request: CallRequest) -> Demand:
    """Ask for admission that must be granted."""
    demand, grant = asked(ledger, account, request)
    expect("a call that fits", type(grant), Admitted)
    return demand


def reason(grant: Grant) -> str:
    """Return why a call is refused."""
    return grant.stop.reason if isinstance(grant, Refused) else f"{type(grant).__name__}"


def race(work: Callable[[int], object], threads: int = THREADS) -> None:
    """Run something on several threads that start together; raise what any of them raised."""
    barrier = threading.Barrier(threads)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for error in errors:
        raise error


class Executions:
    """Counts executions and adds up costs, under threads."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.count = 0
        self.cost = 0
        self._lock = threading.Lock()

    def add(self, cost: int = 0) -> None:
        """Count one."""
        with self._lock:
            self.count += 1
            self.cost += cost


def until_refused(
    ledger: Ledger,
    account: Account,
    request: CallRequest,
    executions: Executions,
    *,
    cost: int = 0,
    fails: bool = False,
) -> str:
    """Make one call after another until one is refused, and return why; a call that must wait asks again when told."""
    while True:
        demand = Demand(account, request)
        grant = ledger.admit(demand, 0.0)
        if isinstance(grant, Waits):
            told = threading.Event()
            waiter = Waiter(demand, ())
            waiter.notify = told.set
            while isinstance(grant, Waits):
                grant = ledger.admit(demand, 0.0, waiter)
                if isinstance(grant, Waits):
                    if waiter.last_chance:
                        return "waited in vain"
                    told.wait()
                    told.clear()
            ledger.withdraw(waiter, 0.0)
        if isinstance(grant, Refused):
            return grant.stop.reason
        executions.add(cost)
        ledger.settle(demand, Charge(cost_nanos=cost), fails, 0.0)


# --- one ledger -------------------------------------------------------------------------------------------------------


def check_exact_steps(ledger: Ledger) -> None:
    """Threads race for the steps: exactly one call runs per step, and the first refusal latches its stop."""
    executions = Executions()
    account = opened(ledger, max_steps=100)
    race(lambda _: until_refused(ledger, account, CallRequest("llm"), executions))
    expect("calls under max_steps=100", executions.count, 100)
    expect("the latched stop", account.stop and account.stop.reason, "step_limit_exceeded")


def check_one_step(ledger: Ledger) -> None:
    """Of many calls that race for one step, one runs."""
    executions = Executions()
    account = opened(ledger, max_steps=1)
    race(lambda _: until_refused(ledger, account, CallRequest("llm"), executions))
    expect("calls under max_steps=1", executions.count, 1)


def check_failures(ledger: Ledger) -> None:
    """Failures never exceed the retries, even if all calls fail at once."""
    executions = Executions()
    account = opened(ledger, max_retries=10)
    request = CallRequest("llm", spends_retry_on_error=True)
    race(lambda _: until_refused(ledger, account, request, executions, fails=True))
    expect("failures under max_retries=10", executions.count, 10)
    expect("retries booked", account.settled[RETRIES], 10)


def check_cost(ledger: Ledger) -> None:
    """What is spent under known worst cases never exceeds the ceiling, and what is not spent comes back."""
    executions = Executions()
    account = opened(ledger, max_cost_usd=1)
    race(
        lambda number: until_refused(
            ledger, account, costing(30 * CENT), executions, cost=(number % 4) * 10 * CENT + CENT
        )
    )
    expect("the ceiling of $1 is kept", executions.cost <= 100 * CENT, True)
    expect("the ceiling of $1 is used", executions.cost > 70 * CENT, True)
    expect("what is booked is what was spent", account.settled[COST], executions.cost)
    expect("what is still reserved", tuple(account.reserved), NOTHING)


def check_reservation(ledger: Ledger) -> None:
    """An admitted call's worst case is reserved until the call is settled; then only the settled amount counts."""
    account = opened(ledger, max_cost_usd=1)
    demand = admitted(ledger, account, costing(60 * CENT))
    expect("reserved while it runs", account.reserved[COST], 60 * CENT)
    expect("a second one", type(asked(ledger, account, costing(60 * CENT))[1]), Waits)
    ledger.settle(demand, Charge(TokenUsage(10, 5), 20 * CENT), False, 0.0)
    expect("reserved afterwards", tuple(account.reserved), NOTHING)
    expect("settled afterwards", (account.settled[COST], account.settled[TOTAL_TOKENS]), (20 * CENT, 15))
    ledger.settle(admitted(ledger, account, costing(80 * CENT)), Charge(cost_nanos=80 * CENT), False, 0.0)
    expect("a spent ceiling", reason(asked(ledger, account, costing(0))[1]), "budget_exceeded")


def check_refund(ledger: Ledger) -> None:
    """A refund undoes all of an admission: the reservation, and the step."""
    account = opened(ledger, max_cost_usd=1, max_steps=1)
    before = (account.settled.copy(), account.reserved.copy())
    ledger.refund(admitted(ledger, account, costing(60 * CENT, spends_retry_on_error=True)), 0.0)
    expect("figures after a refund", (account.settled, account.reserved), before)
    admitted(ledger, account, costing(60 * CENT))


def check_correction(ledger: Ledger) -> None:
    """A late result replaces what was booked for it."""
    account = opened(ledger)
    demand = admitted(ledger, account, costing(60 * CENT))
    booked = Charge(TokenUsage(100, 0), 60 * CENT)
    ledger.settle(demand, booked, True, 0.0)
    ledger.correct(demand, booked, Charge(TokenUsage(3, 4), 5 * CENT), 0.0)
    expect("settled after a correction", (account.settled[COST], account.settled[TOTAL_TOKENS]), (5 * CENT, 7))


def check_unknown_price(ledger: Ledger) -> None:
    """An unknown cost is recorded as unknown, never as 0."""
    account = opened(ledger)
    ledger.settle(admitted(ledger, account, costing(0)), Charge(cost_nanos=None), False, 0.0)
    expect("unpriced", account.unpriced, True)


def check_refusal_costs_nothing(ledger: Ledger) -> None:
    """A refused call leaves no trace in the figures, and its stop stays."""
    account = opened(ledger, max_cost_usd=1)
    first = asked(ledger, account, costing(200 * CENT))[1]
    expect("too dear a call", reason(first), "budget_exceeded")
    expect("that very refusal latched", isinstance(first, Refused) and first.latched, True)
    again = asked(ledger, account, costing(1))[1]
    expect("after it", (reason(again), isinstance(again, Refused) and again.latched), ("budget_exceeded", False))
    expect("figures", (sum(account.settled), tuple(account.reserved)), (0, NOTHING))


def check_latch(ledger: Ledger) -> None:
    """The first stop of its kind stays; a stop of work lets a landing turn pass, a stop of everything nothing."""
    account = opened(ledger)
    stop, other = Stop("aborted", "caller", "one"), Stop("aborted", "caller", "other")
    expect("the first stop of work", ledger.latch(account, stop, True, 0.0), True)
    expect("the second", ledger.latch(account, other, True, 0.0), False)
    expect("work", reason(asked(ledger, account, costing(0))[1]), "aborted")
    ledger.settle(admitted(ledger, account, costing(0, phase="landing")), Charge(), False, 0.0)
    expect("a stop of everything", ledger.latch(account, stop, False, 0.0), True)
    expect("landing", reason(asked(ledger, account, costing(0, phase="landing"))[1]), "aborted")


def check_deadline(ledger: Ledger) -> None:
    """A call after the deadline is refused; one before it is not."""
    account = opened(ledger)
    account.deadline_at = account.work_until = 5.0
    late = Demand(account, costing(0))
    admitted(ledger, account, costing(0))
    expect("at the deadline", reason(ledger.admit(late, 5.0)), "timeout")


def check_tree(ledger: Ledger) -> None:
    """What a child uses counts above it, and a parent's ceiling bounds all its children together."""
    parent = opened(ledger, max_steps=3)
    one, two = opened(ledger, parent), opened(ledger, parent, max_steps=2)
    for child in (one, two, two):
        ledger.settle(admitted(ledger, child, costing(CENT)), Charge(cost_nanos=CENT), False, 0.0)
    expect("steps", [account.settled[STEPS] for account in (parent, one, two)], [3, 1, 2])
    expect("cost", [account.settled[COST] for account in (parent, one, two)], [3 * CENT, CENT, 2 * CENT])
    expect("a fourth", reason(asked(ledger, one, costing(0))[1]), "step_limit_exceeded")
    expect("stops stay with those who asked", (parent.stop, two.stop), (None, None))


def check_landing(ledger: Ledger) -> None:
    """A step is reserved for the landing turn, admits no other call, and is released when the account is closed."""
    parent = opened(ledger, max_steps=3)
    child = opened(ledger, parent, landing=Landing())
    expect("kept for landing", parent.reserved[STEPS], 1)
    for _ in range(2):
        ledger.settle(admitted(ledger, child, costing(0)), Charge(), False, 0.0)
    expect("work past what is kept", reason(asked(ledger, child, costing(0))[1]), "step_limit_exceeded")
    ledger.close(child, 0.0)
    expect("kept after it was closed", tuple(parent.reserved), NOTHING)
    ledger.close(child, 0.0)
    admitted(ledger, parent, costing(0))


def check_verdict(ledger: Ledger) -> None:
    """What is kept for a verdict passes no work, counts for it as spent, and is used when the work has ended."""
    parent = opened(ledger, max_cost_usd=1, verdict=Verdict(share=0.4))
    judge = Account(ceilings(), parent, for_verdict=True)
    expect("room for it", ledger.open(judge), None)
    parent.keeps_verdict = True
    expect("kept", (judge.tops[COST], parent.verdict_hold[COST], parent.reserved[COST]), (40 * CENT,) * 3)
    expect("work past what is kept", reason(asked(ledger, parent, costing(61 * CENT))[1]), "budget_exceeded")
    expect("stops of all and of the work", (parent.stop, parent.work_stop is not None), (None, True))
    ledger.settle(admitted(ledger, judge, costing(40 * CENT)), Charge(cost_nanos=10 * CENT), False, 0.0)
    expect("spent and still kept", (parent.settled[COST], parent.verdict_hold[COST]), (10 * CENT, 30 * CENT))
    ledger.close(judge, 0.0)
    expect("kept after it was closed", (parent.verdict_hold, tuple(parent.reserved)), (NOTHING, NOTHING))


def check_carving(ledger: Ledger) -> None:
    """What a child carves is reserved for it until it is closed or stopped for good; its spending is counted once."""
    parent = opened(ledger, max_cost_usd=1)
    child = Account(ceilings(max_cost_usd="$0.60"), parent, carved_on_open=True)
    expect("room for it", ledger.open(child), None)
    expect("carved", parent.reserved[COST], 60 * CENT)
    expect("the rest", type(asked(ledger, parent, costing(50 * CENT))[1]), Waits)
    ledger.settle(admitted(ledger, child, costing(60 * CENT)), Charge(cost_nanos=20 * CENT), False, 0.0)
    expect("spent and still carved", (parent.settled[COST], parent.reserved[COST]), (20 * CENT, 40 * CENT))
    last = admitted(ledger, child, costing(30 * CENT))
    ledger.latch(child, Stop("aborted", "caller", "enough"), False, 0.0)
    expect("held by the last call of a stopped child", parent.reserved[COST], 30 * CENT)
    ledger.settle(last, Charge(cost_nanos=30 * CENT), False, 0.0)
    ledger.close(child, 0.0)
    expect("in the end", (parent.settled[COST], tuple(parent.reserved)), (50 * CENT, NOTHING))
    shares = [Account(ceilings(), parent, carved_on_open=True) for _ in range(2)]
    expect("shares", ledger.open_shares(shares, [3, 2]), [None, None])
    expect("by weight", [share.tops[COST] for share in shares], [30 * CENT, 20 * CENT])
    late = Account(ceilings(max_cost_usd=1), parent, carved_on_open=True)
    stop = ledger.open(late)
    expect("a child for which nothing is left", stop and stop.reason, "budget_exceeded")
    for share in shares:
        ledger.close(share, 0.0)
    expect("when all are closed", tuple(parent.reserved), NOTHING)


def check_waiting(ledger: Ledger) -> None:
    """A waiter is notified when others release, unless withdrawn; with nothing to wait for, it gets a last chance."""
    account = opened(ledger, max_cost_usd=1)
    first = admitted(ledger, account, costing(60 * CENT))
    waiters = [Waiter(Demand(account, costing(60 * CENT)), ()) for _ in range(2)]
    for waiter in waiters:
        expect("one too many", type(ledger.admit(waiter.demand, 0.0, waiter)), Waits)
    ledger.withdraw(waiters[0], 0.0)
    ledger.withdraw(waiters[0], 0.0)
    expect("told too early", [waiter.notified for waiter in waiters], [False, False])
    ledger.settle(first, Charge(cost_nanos=10 * CENT), False, 0.0)
    expect("told", [waiter.notified for waiter in waiters], [False, True])
    expect("asked again", type(ledger.admit(waiters[1].demand, 0.0, waiters[1])), Admitted)
    inner = Waiter(Demand(account, costing(60 * CENT)), (waiters[1].demand,))
    ledger.admit(inner.demand, 0.0, inner)
    expect("nobody else can give way", (inner.notified, inner.last_chance), (True, True))
    ledger.withdraw(inner, 0.0)
    ledger.settle(waiters[1].demand, Charge(), False, 0.0)
    expect("all is given back", tuple(account.reserved), NOTHING)


def check_figures_add_up(ledger: Ledger) -> None:
    """After calls of all kinds that end in all ways, raced by threads, nothing stays reserved anywhere."""
    parent = opened(ledger, max_cost_usd=1000, max_steps=100_000)
    children = [opened(ledger, parent, max_cost_usd=500, max_retries=1000) for _ in range(2)]

    def work(number: int) -> None:
        for turn in range(20):
            request = costing(CENT, spends_retry_on_error=bool(turn % 2), kind="tool" if turn % 3 else "llm")
            demand = admitted(ledger, children[number % 2], request)
            if turn % 5 == 0:
                ledger.refund(demand, 0.0)
            else:
                ledger.settle(demand, Charge(cost_nanos=turn), turn % 4 == 0, 0.0)

    race(work)
    for account in (parent, *children):
        expect("reserved in the end", tuple(account.reserved), NOTHING)
    spent = THREADS * sum(turn for turn in range(20) if turn % 5)
    expect("spent", (parent.settled[COST], sum(child.settled[COST] for child in children)), (spent, spent))


CHECKS: Final[Sequence[Callable[[Ledger], None]]] = (
    check_exact_steps,
    check_one_step,
    check_failures,
    check_cost,
    check_reservation,
    check_refund,
    check_correction,
    check_unknown_price,
    check_refusal_costs_nothing,
    check_latch,
    check_deadline,
    check_tree,
    check_landing,
    check_verdict,
    check_carving,
    check_waiting,
    check_figures_add_up,
)


# --- several ledgers on one store -----------------------------------------------------------------------------------

JoinLedger = Callable[[str], Ledger]
"""Returns a ledger on the store of this name, together with all others that were made for the same name."""


def check_shared_ledger(join: JoinLedger) -> None:
    """Check that several ledgers on one store follow the rules together.

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
    """If one ledger has reserved the rest, the other must wait until that is settled."""
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
    """Each ledger applies its own ceiling to the use of all, so the tighter of two ceilings holds for both together."""
    one, two = join("ceilings"), join("ceilings")
    tight, loose = opened(one, max_steps=2), opened(two, max_steps=4)
    for _ in range(3):
        two.settle(admitted(two, loose, costing(0)), Charge(), False, 0.0)
    expect("under the tighter one", reason(asked(one, tight, costing(0))[1]), "step_limit_exceeded")
    admitted(two, loose, costing(0))


def check_shared_landing(join: JoinLedger) -> None:
    """What one ledger reserves for its landing turn is reserved in the others too, until it is closed."""
    one, two = join("landing"), join("landing")
    mine = opened(one, max_steps=2, landing=Landing())
    yours = opened(two, max_steps=2)
    two.settle(admitted(two, yours, costing(0)), Charge(), False, 0.0)
    expect("the step that is kept", type(asked(two, yours, costing(0))[1]), Waits)
    one.close(mine, 0.0)
    admitted(two, yours, costing(0))


def check_shared_carving(join: JoinLedger) -> None:
    """What a child in one ledger carves is reserved in the others too, until it is closed or stopped for good."""
    one, two = join("carving"), join("carving")
    mine, yours = opened(one, max_cost_usd=1), opened(two, max_cost_usd=1)
    for end in ("close", "latch"):
        child = Account(ceilings(max_cost_usd="$0.60"), mine, carved_on_open=True)
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
