"""A ledger in a file: the rules for every ledger, with several processes, crashes, pauses and broken files."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.containment.gates import until_other_thread
from tests.kit import collect_garbage, left_of
from watchkeeper.accounting.account import COST, NOTHING, STEPS, TOTAL_TOKENS, Account, shared_account, usage_of
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import Admitted, CallRequest, Charge, Estimate, Waits, presumed_charge
from watchkeeper.accounting.ledger import Ledger, MemoryLedger, Refused, Waiter
from watchkeeper.accounting.limits import Landing, Limits
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, TestClock
from watchkeeper.core.errors import ConfigurationError, LimitsError, Stop, StoreError
from watchkeeper.core.ids import RandomIds
from watchkeeper.core.usage import NOTHING_PRESUMED, Presumed, TokenUsage, Usage
from watchkeeper.ledgers.ledger_file import SCHEMA, LedgerFile, settle_by_hand
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.shield.decision import ChainMetadata, Decision
from watchkeeper.store.run_store import RunStore
from watchkeeper.testing.ledger_checks import (
    CENT,
    CHECKS,
    SHARED_CHECKS,
    JoinLedger,
    admitted,
    asked,
    ceilings,
    check_ledger,
    check_shared_ledger,
    costing,
    opened,
    reason,
)

ROOT = Path(__file__).parents[2]
THREAD = "watchkeeper-ledger"
NOON = datetime(2026, 3, 31, 12, tzinfo=UTC)
DAY = 86_400.0


class Join(Protocol):
    """Opens another ledger on the file of a name."""

    def __call__(self, name: str = "ledger", clock: Clock = SYSTEM_CLOCK, **options: Any) -> SqliteLedger: ...


EARLIER: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads of ledgers that tests of other files have left to the collector."""


@pytest.fixture(autouse=True)
def earlier() -> None:
    """Note what threads there are before the test."""
    EARLIER.clear()
    EARLIER.update(threads())


@pytest.fixture
def join(tmp_path: Path) -> Generator[Join]:
    """Open ledgers on files by name, and shut all of them down in the end."""
    ledgers: list[SqliteLedger] = []

    def joined(name: str = "ledger", clock: Clock = SYSTEM_CLOCK, **options: Any) -> SqliteLedger:
        ledgers.append(SqliteLedger(tmp_path / f"{name}.sqlite3", clock=clock, **options))
        return ledgers[-1]

    yield joined
    for ledger in ledgers:
        ledger.shutdown()
    assert not threads()


def threads() -> list[threading.Thread]:
    """Return the threads that look after ledgers of this test."""
    return [thread for thread in threading.enumerate() if thread.name == THREAD and thread not in EARLIER]


def rows(ledger: SqliteLedger, query: str) -> list[Any]:
    """Look into the file with other eyes."""
    connection = sqlite3.connect(ledger.path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def under(ledger: Ledger, limit: str, name: str = "team-a") -> Account:
    """Open a context's account under an account across runs."""
    above = shared_account(ceilings(account=name, account_limit=limit))
    account = Account(ceilings(), above)
    ledger.open(account)
    return account


def settle(ledger: Ledger, demand: Demand, cents: int) -> None:
    ledger.settle(demand, Charge(cost_nanos=cents * CENT), False, 0.0)


def worked(*arguments: object) -> list[str]:
    """Return what the worker says in a process of its own."""
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.store.ledger_worker", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return told.stdout.split()


def spender(path: Path) -> subprocess.Popen[str]:
    """Start a process that makes as many calls of 10 cents under one ceiling of $1 as it is asked for, again and again.

    It says how many were admitted.
    """
    command = [sys.executable, "-W", "ignore", "-m", "tests.store.ledger_worker", "spend", str(path), "0"]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def asked_for(process: subprocess.Popen[str], count: int) -> int:
    """Ask a spender for calls, and return how many were admitted."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    return int(process.stdout.readline())


class Forgetful(MemoryLedger):
    """A ledger that takes every failure for a success."""

    def settle(self, demand: Demand, charge: Charge, failed: bool, now: float) -> None:
        super().settle(demand, charge, False, now)
        if demand.may_fail and demand.account.settled[STEPS] >= 10:
            demand.account.stop = demand.account.barred = Stop("step_limit_exceeded", "gate", "enough")


@pytest.fixture(scope="module")
def shared_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one file for many examples, each with an account of its own."""
    return tmp_path_factory.mktemp("shared") / "ledger.sqlite3"


class TestConformance:
    @pytest.mark.spec("FR-128")
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    @pytest.mark.parametrize("kind", ["memory", "sqlite"])
    def test_every_ledger_keeps_the_rules(self, kind: str, check: Callable[[Ledger], None], join: Join) -> None:
        check(MemoryLedger() if kind == "memory" else join())

    @pytest.mark.spec("FR-128")
    @pytest.mark.parametrize("check", SHARED_CHECKS, ids=lambda check: check.__name__)
    def test_ledgers_on_one_file_keep_the_rules_together(self, check: Callable[[JoinLedger], None], join: Join) -> None:
        check(join)

    def test_the_suites_as_a_whole_pass_what_is_right_and_name_what_is_wrong(self, join: Join) -> None:
        check_ledger(MemoryLedger)
        check_shared_ledger(join)
        with pytest.raises(AssertionError, match=r"retries booked: expected 10, found 0"):
            check_ledger(Forgetful)
        with pytest.raises(AssertionError, match=r"the other's third step: expected 'step_limit_exceeded', found 'Adm"):
            check_shared_ledger(lambda name: MemoryLedger())

    @pytest.mark.spec("FR-125")
    @settings(max_examples=60)
    @given(st.data())
    def test_several_ledgers_on_one_file_decide_as_one_in_memory(self, shared_file: Path, data: st.DataObject) -> None:
        """Whatever is admitted, settled, refunded and corrected, through whichever ledger."""
        limits = ceilings(max_cost_usd="$0.30", max_steps=12, max_retries=4, max_total_tokens=50)
        model, alone = MemoryLedger(), Account(limits)
        model.open(alone)
        ledgers, key = [SqliteLedger(shared_file) for _ in range(3)], f"job-{uuid4()}"
        accounts = [Account(limits, key=key) for _ in ledgers]
        for ledger, account in zip(ledgers, accounts, strict=True):
            ledger.open(account)
        under_way: list[tuple[int, Demand, Demand]] = []
        over: list[tuple[int, Demand, Demand, Charge]] = []
        for _ in range(data.draw(st.integers(1, 25))):
            alone.stop = alone.barred = None
            at = data.draw(st.integers(0, 2))
            accounts[at].stop = accounts[at].barred = None
            what = data.draw(st.sampled_from(["admit", "admit", "settle", "refund", "correct"]))
            charge = Charge(TokenUsage(data.draw(st.integers(0, 9))), data.draw(st.integers(0, 12)) * CENT)
            if what == "admit":
                request = costing(data.draw(st.integers(0, 20)) * CENT, spends_retry_on_error=data.draw(st.booleans()))
                (ours, said), (theirs, meant) = asked(ledgers[at], accounts[at], request), asked(model, alone, request)
                assert type(said) is type(meant)
                if isinstance(meant, Refused):
                    assert reason(said) == reason(meant)
                elif isinstance(meant, Admitted):
                    under_way.append((at, ours, theirs))
            elif what == "correct" and over:
                at, ours, theirs, booked = over.pop(data.draw(st.integers(0, len(over) - 1)))
                ledgers[at].correct(ours, booked, charge, 0.0)
                model.correct(theirs, booked, charge, 0.0)
            elif under_way:
                at, ours, theirs = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
                if what == "refund":
                    ledgers[at].refund(ours, 0.0)
                    model.refund(theirs, 0.0)
                else:
                    failed = data.draw(st.booleans())
                    ledgers[at].settle(ours, charge, failed, 0.0)
                    model.settle(theirs, charge, failed, 0.0)
                    over.append((at, ours, theirs, charge))
            else:
                continue
            assert (accounts[at].settled, accounts[at].reserved) == (alone.settled, alone.reserved)
        for ledger in ledgers:
            ledger.shutdown()


class TestLeases:
    @pytest.mark.spec("FR-126")
    def test_the_worst_is_presumed_for_the_calls_of_a_dead_process_once_its_lease_is_over(self, join: Join) -> None:
        stopped, clock = TestClock(NOON), TestClock(NOON)
        dead, alive = join(clock=stopped), join(clock=clock)
        theirs, ours = opened(dead, max_cost_usd=1), opened(alive, max_cost_usd=1)
        settle(dead, admitted(dead, theirs, costing(20 * CENT)), 20)
        admitted(dead, theirs, costing(50 * CENT))
        clock.advance(29.9)
        assert isinstance(asked(alive, ours, costing(80 * CENT))[1], Waits)
        clock.advance(0.2)
        assert reason(asked(alive, ours, costing(80 * CENT))[1]) == "budget_exceeded"
        assert usage_of(ours).presumed == Presumed(1, TokenUsage(), 50 * CENT)
        assert usage_of(ours).cost_nanos == 70 * CENT
        ours.stop = ours.barred = None
        settle(alive, admitted(alive, ours, costing(30 * CENT)), 30)
        assert (ours.settled[COST], tuple(ours.reserved)) == (100 * CENT, NOTHING)

    @pytest.mark.spec("FR-126")
    @pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES, errno.ENOENT])
    def test_a_process_is_not_dead_because_nobody_can_look_at_it(
        self, error: int, join: Join, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where too many files are open, or where a user may not see the processes of others."""
        clock = TestClock(NOON)
        theirs, ours = join(clock=clock), join(clock=clock)
        admitted(theirs, opened(theirs, max_cost_usd=1), costing(60 * CENT))
        account = opened(ours, max_cost_usd=1)

        def refused(*_: object, **__: object) -> None:
            raise OSError(error, os.strerror(error))

        with monkeypatch.context() as patch:
            patch.setattr("builtins.open", refused)
            for _ in range(2):
                clock.advance(2.0)
                admitted(ours, account, costing(0))
        assert {state for (state,) in rows(ours, "SELECT state FROM calls")} == {"running"}

    def test_what_a_dead_process_kept_for_its_children_and_its_landing_just_comes_back(self, join: Join) -> None:
        clock = TestClock(NOON)
        dead, alive = join(clock=TestClock(NOON)), join(clock=clock)
        theirs = opened(dead, max_cost_usd=1, max_steps=10, landing=Landing())
        child = Account(ceilings(max_cost_usd="$0.60"), theirs, carved_on_open=True)
        dead.open(child)
        admitted(dead, child, costing(50 * CENT))
        ours = opened(alive, max_cost_usd=1, max_steps=10)
        clock.advance(30.1)
        settle(alive, admitted(alive, ours, costing(50 * CENT)), 50)  # but for its call, all is back
        assert (ours.settled[COST], tuple(ours.reserved)) == (100 * CENT, NOTHING)

    @pytest.mark.spec("FR-126")
    def test_what_is_presumed_counts_on_the_day_on_which_the_call_was_admitted(self, join: Join) -> None:
        clock = TestClock(NOON)
        dead, alive = join(clock=TestClock(NOON)), join(clock=clock)
        theirs = under(dead, "$1/day")
        dead.admit(Demand(theirs, CallRequest("llm", "think", Estimate(1000, 200, 0, 100, 5))), 0.0)
        clock.advance(DAY)
        above = under(alive, "$1/day").chain[1]
        settle(alive, admitted(alive, above, costing(30 * CENT)), 30)
        assert above.settled[COST] == 30 * CENT
        columns = "day, cost_nanos, input_tokens, output_tokens, presumed_cost_nanos, presumed_calls"
        assert rows(alive, f"SELECT {columns} FROM settled ORDER BY day") == [
            ("2026-03-31", 1100, 1000, 200, 1100, 1),
            ("2026-04-01", 30 * CENT, 0, 0, 0, 0),
        ]
        assert rows(alive, "SELECT operation, state FROM calls") == [("think", "lost")]

    @pytest.mark.spec("FR-126")
    def test_a_process_that_was_paused_for_longer_than_its_lease_still_books_what_it_spent(self, join: Join) -> None:
        stopped, clock = TestClock(NOON), TestClock(NOON)
        paused, other = join(clock=stopped), join(clock=clock)
        mine, yours = opened(paused, max_cost_usd=1), opened(other, max_cost_usd=1)
        first, second = (admitted(paused, mine, costing(40 * CENT)) for _ in range(2))
        clock.advance(60)
        third = admitted(other, yours, costing(20 * CENT))
        assert usage_of(yours).presumed == Presumed(2, TokenUsage(), 80 * CENT)
        stopped.advance(60)
        settle(paused, first, 30)
        assert usage_of(mine).presumed == NOTHING_PRESUMED  # it goes on: nothing need be presumed
        assert mine.settled[COST] == 30 * CENT
        assert mine.reserved[COST] == (20 + 40) * CENT
        settle(other, third, 5)
        settle(paused, second, 40)
        assert (mine.settled[COST], tuple(mine.reserved)) == (75 * CENT, NOTHING)
        assert rows(paused, "SELECT * FROM calls") == []

    @pytest.mark.parametrize("end", ["settle", "refund", "shut down, then settle"])
    def test_the_truth_takes_the_place_of_what_was_presumed(self, end: str, join: Join) -> None:
        stopped, clock = TestClock(NOON), TestClock(NOON)
        paused, other = join(clock=stopped), join(clock=clock)
        mine, yours = opened(paused, max_cost_usd=1), opened(other, max_cost_usd=1)
        demand = admitted(paused, mine, costing(40 * CENT))
        clock.advance(60)
        settle(other, admitted(other, yours, costing(CENT)), 1)
        assert yours.settled[COST] == 41 * CENT
        if end == "refund":
            paused.refund(demand, 0.0)
        else:
            if end.startswith("shut down"):
                paused.shutdown()
            settle(paused, demand, 25)
        settle(other, admitted(other, yours, costing(CENT)), 1)
        assert yours.settled[COST] == (2 if end == "refund" else 27) * CENT
        assert usage_of(yours).presumed == NOTHING_PRESUMED
        assert rows(other, "SELECT * FROM calls") == []

    def test_a_call_whose_answer_never_came_stays_on_record_until_the_truth_comes(self, join: Join) -> None:
        ledger = join(clock=TestClock(NOON))
        account = opened(ledger, max_cost_usd=1)
        demand = admitted(ledger, account, costing(40 * CENT))
        booked = presumed_charge(TokenUsage(100, 50), 40 * CENT)
        ledger.settle(demand, booked, True, 0.0)
        (row,) = rows(ledger, "SELECT id, cost_nanos, input_tokens, output_tokens, state FROM calls")
        assert row == (str(UUID(int=demand.number)), 40 * CENT, 100, 50, "left")
        assert usage_of(account).presumed == booked.presumed
        ledger.correct(demand, booked, Charge(TokenUsage(100, 7), 9 * CENT), 0.0)
        assert rows(ledger, "SELECT * FROM calls") == []
        assert usage_of(account) == Usage(TokenUsage(100, 7), 9 * CENT, model_calls=1, steps=1)

    @pytest.mark.parametrize("lost", [False, True])
    def test_the_truth_also_replaces_what_was_said_by_hand(self, lost: bool, join: Join) -> None:
        stopped, clock = TestClock(NOON), TestClock(NOON)
        ledger, other = join(clock=stopped), join(clock=clock)
        account, theirs = opened(ledger, max_cost_usd=1), opened(other, max_cost_usd=1)
        demand = admitted(ledger, account, costing(40 * CENT))
        booked = presumed_charge(TokenUsage(), 40 * CENT)
        if lost:
            clock.advance(60)
        else:
            ledger.settle(demand, booked, True, 0.0)
        for cents in (30, 20):
            (before,) = settle_by_hand(ledger.path, str(UUID(int=demand.number)), cents * CENT, clock=clock)
            assert before.cost_nanos == (40 if cents == 30 else 30) * CENT
        settle(other, admitted(other, theirs, costing(CENT)), 1)
        assert usage_of(theirs).cost_nanos == 21 * CENT
        assert usage_of(theirs).presumed == NOTHING_PRESUMED
        if lost:
            settle(ledger, demand, 25)
        else:
            ledger.correct(demand, booked, Charge(cost_nanos=25 * CENT), 0.0)
        settle(other, admitted(other, theirs, costing(CENT)), 1)
        assert (account.settled[COST], theirs.settled[COST]) == (26 * CENT, 27 * CENT)
        assert rows(ledger, "SELECT * FROM calls") == []

    @pytest.mark.parametrize("fails", [False, True])
    def test_what_was_said_by_hand_stays_where_the_process_can_only_presume(self, fails: bool, join: Join) -> None:
        stopped, clock = TestClock(NOON), TestClock(NOON)
        paused, other = join(clock=stopped, busy_seconds=0.001), join(clock=clock)
        account, theirs = opened(paused, max_cost_usd=1), opened(other, max_cost_usd=1)
        demand = admitted(paused, account, costing(40 * CENT))
        clock.advance(60)
        call, booked = str(UUID(int=demand.number)), presumed_charge(TokenUsage(), 40 * CENT)
        settle_by_hand(paused.path, call, 30 * CENT, clock=clock)
        if fails:
            with held_by_another(paused.path):
                paused.settle(demand, booked, True, 0.0)
            settle(paused, admitted(paused, account, costing(CENT)), 0)
        else:
            paused.settle(demand, booked, True, 0.0)  # its connection was cut while it was paused
        settle(other, admitted(other, theirs, costing(CENT)), 0)
        assert usage_of(theirs).cost_nanos == account.settled[COST] == 30 * CENT
        assert usage_of(theirs).presumed == usage_of(account).presumed == NOTHING_PRESUMED
        assert rows(paused, "SELECT id, cost_nanos, state FROM calls") == [(call, 30 * CENT, "corrected")]
        paused.correct(demand, booked, Charge(cost_nanos=25 * CENT), 0.0)
        settle(other, admitted(other, theirs, costing(CENT)), 0)
        assert usage_of(theirs).cost_nanos == account.settled[COST] == 25 * CENT
        assert rows(paused, "SELECT * FROM calls") == []

    def test_the_truth_counts_once_where_what_was_presumed_before_it_was_never_written(self, join: Join) -> None:
        stopped, clock = TestClock(NOON), TestClock(NOON)
        paused, other = join(clock=stopped, busy_seconds=0.001), join(clock=clock)
        account, theirs = opened(paused, max_cost_usd=1), opened(other, max_cost_usd=1)
        demand = admitted(paused, account, costing(40 * CENT))
        clock.advance(60)
        settle_by_hand(paused.path, str(UUID(int=demand.number)), 30 * CENT, clock=clock)
        booked = presumed_charge(TokenUsage(), 40 * CENT)
        with held_by_another(paused.path):
            paused.settle(demand, booked, True, 0.0)
            paused.correct(demand, booked, Charge(cost_nanos=25 * CENT), 0.0)
        settle(paused, admitted(paused, account, costing(CENT)), 0)
        settle(other, admitted(other, theirs, costing(CENT)), 0)
        assert usage_of(theirs).cost_nanos == account.settled[COST] == 25 * CENT
        assert usage_of(theirs).presumed == NOTHING_PRESUMED
        assert rows(paused, "SELECT * FROM calls") == []

    @pytest.mark.parametrize("on_loop", [False, True])
    def test_what_a_call_spends_after_the_shutdown_is_written_once_others_release_the_file(
        self, on_loop: bool, join: Join
    ) -> None:
        ledger = join(clock=TestClock(NOON))
        account = opened(ledger, max_cost_usd=1)
        calls = [admitted(ledger, account, costing(cents * CENT)) for cents in (40, 0)]
        ledger.shutdown()

        async def settle_both() -> None:
            for demand in calls:
                settle(ledger, demand, 5)

        def work() -> None:
            if on_loop:
                asyncio.run(settle_both())
            else:
                settle(ledger, calls[0], 5)

        ending = threading.Thread(target=work)
        with held_by_another(ledger.path):
            ending.start()
            until_other_thread(lambda: vars(ledger)["_file"].locked_seconds > 0)
            if on_loop:
                ending.join()
                late = [each.daemon for each in threading.enumerate() if each.name == "watchkeeper-ledger-late"]
                assert late
                assert not any(late)  # the end of the process waits for it
        ending.join()
        total = (10 if on_loop else 5) * CENT
        until_other_thread(lambda: rows(ledger, "SELECT cost_nanos FROM settled") == [(total,)])
        assert rows(ledger, "SELECT * FROM calls") == []

    def test_what_is_presumed_is_written_later_where_the_file_cannot_be_used(self, join: Join) -> None:
        clock = TestClock(NOON)
        ledger = join(clock=clock, busy_seconds=0.001)
        account = opened(ledger, max_cost_usd=1)
        kept, other = (admitted(ledger, account, costing(40 * CENT)) for _ in range(2))
        with held_by_another(ledger.path):
            ledger.settle(kept, presumed_charge(TokenUsage(), 40 * CENT), True, 0.0)
        settle(ledger, other, 1)
        assert rows(ledger, "SELECT cost_nanos, state FROM calls") == [(40 * CENT, "left")]
        assert rows(ledger, "SELECT cost_nanos, presumed_cost_nanos FROM settled") == [(41 * CENT, 40 * CENT)]

    @pytest.mark.spec("FR-126")
    def test_a_lease_is_renewed_while_something_is_held(self, join: Join) -> None:
        clock = TestClock(NOON)
        holder, other = join(clock=clock), join(clock=clock)
        mine, yours = opened(holder, max_cost_usd=1), opened(other, max_cost_usd=1)
        demand = admitted(holder, mine, costing(60 * CENT))
        renewed = [0.0]

        def is_renewed() -> bool:
            clock.advance(1.0)  # at each look: the thread may begin its wait only after an earlier one
            ((renewed_at,),) = rows(holder, "SELECT renewed_at FROM holders")
            return bool(renewed_at > renewed[-1])

        for _ in range(6):
            until_other_thread(is_renewed)
            renewed += [renewed_at for (renewed_at,) in rows(holder, "SELECT renewed_at FROM holders")]
        assert renewed[-1] >= 50.0
        assert isinstance(asked(other, yours, costing(60 * CENT))[1], Waits)
        settle(holder, demand, 0)
        admitted(other, yours, costing(60 * CENT))

    def test_a_thread_is_there_only_while_something_is_held(self, join: Join) -> None:
        clock = TestClock(NOON)
        ledger = join(clock=clock)
        account = opened(ledger, max_cost_usd=1)
        assert threads() == []
        demand = admitted(ledger, account, costing(CENT))
        (thread,) = threads()
        settle(ledger, demand, 1)
        clock.advance(10.0)
        thread.join()
        settle(ledger, admitted(ledger, account, costing(CENT)), 1)
        assert len(threads()) == 1
        ledger.shutdown()
        assert threads() == []

    @pytest.mark.parametrize("jump", [timedelta(days=2), timedelta(seconds=60), timedelta(days=-2)])
    def test_a_wall_clock_that_jumps_neither_ends_nor_lengthens_a_lease(self, jump: timedelta, join: Join) -> None:
        jumped, clock = TestClock(NOON), TestClock(NOON + jump)
        dead, alive = join(clock=jumped), join(clock=clock)
        theirs, ours = opened(dead, max_cost_usd=1), opened(alive, max_cost_usd=1)
        admitted(dead, theirs, costing(90 * CENT))
        clock.advance(29.9)
        assert isinstance(asked(alive, ours, costing(60 * CENT))[1], Waits)
        clock.advance(0.2)
        assert reason(asked(alive, ours, costing(60 * CENT))[1]) == "budget_exceeded"
        assert ours.settled[COST] == 90 * CENT

    def test_a_lease_from_before_a_reboot_is_over(self, join: Join) -> None:
        before, after = TestClock(NOON), TestClock(NOON)
        before.advance(5000)
        dead = join(clock=before)
        admitted(dead, opened(dead, max_cost_usd=1), costing(60 * CENT))
        alive = join(clock=after)  # its monotonic clock counts from the boot
        ours = opened(alive, max_cost_usd=1)
        admitted(alive, ours, costing(40 * CENT))
        assert ours.settled[COST] == 60 * CENT


class TestWaiting:
    def test_who_waits_for_another_ledger_is_told_when_that_gives_back(self, join: Join) -> None:
        one, two = join(), join()
        mine, yours = opened(one, max_cost_usd=1), opened(two, max_cost_usd=1)
        held = admitted(one, mine, costing(60 * CENT))
        waiter, told = Waiter(Demand(yours, costing(60 * CENT)), ()), threading.Event()
        waiter.notify = told.set
        assert isinstance(two.admit(waiter.demand, 0.0, waiter), Waits)
        assert not waiter.last_chance
        settle(one, held, 0)
        assert told.wait(30)
        assert isinstance(two.admit(waiter.demand, 0.0, waiter), Admitted)

    def test_if_all_ledgers_are_stuck_one_call_gives_way_and_the_other_goes_on(self, join: Join) -> None:
        """Each holds what the other needs, inside a call of its own that cannot end before."""
        ledgers = [join(), join()]
        accounts = [opened(ledger, max_cost_usd=1) for ledger in ledgers]
        outer = [admitted(*pair, costing(40 * CENT)) for pair in zip(ledgers, accounts, strict=True)]
        waiters = [
            Waiter(Demand(account, costing(40 * CENT)), (around,))
            for account, around in zip(accounts, outer, strict=True)
        ]
        tolds = [threading.Event(), threading.Event()]
        for ledger, waiter, told in zip(ledgers, waiters, tolds, strict=True):
            waiter.notify = told.set
            assert isinstance(ledger.admit(waiter.demand, 0.0, waiter), Waits)
        until_other_thread(lambda: any(told.is_set() for told in tolds))
        loser = 0 if tolds[0].is_set() else 1
        winner = 1 - loser
        assert (waiters[loser].last_chance, waiters[winner].last_chance) == (True, False)
        ledgers[loser].withdraw(waiters[loser], 0.0)
        settle(ledgers[loser], outer[loser], 0)
        assert tolds[winner].wait(30)
        assert isinstance(ledgers[winner].admit(waiters[winner].demand, 0.0, waiters[winner]), Admitted)

    def test_a_release_in_this_process_is_told_at_once_to_other_chains_of_the_same_account(self, join: Join) -> None:
        ledger = join(clock=TestClock(NOON))
        one, two = under(ledger, "$1/day"), under(ledger, "$1/day")
        held = admitted(ledger, one, costing(60 * CENT))
        waiter = Waiter(Demand(two, costing(60 * CENT)), ())
        assert isinstance(ledger.admit(waiter.demand, 0.0, waiter), Waits)
        assert not waiter.notified
        settle(ledger, held, 0)
        assert waiter.notified
        ledger.withdraw(waiter, 0.0)

    def test_who_waits_is_told_when_the_file_fails_and_when_the_ledger_is_shut_down(self, join: Join) -> None:
        one, two = join(), join(busy_seconds=0.01)
        mine, yours = opened(one, max_cost_usd=1), opened(two, max_cost_usd=1)
        admitted(one, mine, costing(60 * CENT))
        waiter, told = Waiter(Demand(yours, costing(60 * CENT)), ()), threading.Event()
        waiter.notify = told.set
        assert isinstance(two.admit(waiter.demand, 0.0, waiter), Waits)
        with held_by_another(two.path):
            assert told.wait(30)
            with pytest.raises(StoreError, match="locked"):
                two.admit(waiter.demand, 0.0, waiter)
        told.clear()
        two.shutdown()
        assert told.is_set()


class TestPeriods:
    @pytest.mark.spec("FR-129")
    def test_an_account_begins_anew_with_every_day(self, join: Join) -> None:
        clock = TestClock(NOON)
        ledger = join(clock=clock)
        account = under(ledger, "$1/day")
        settle(ledger, admitted(ledger, account, costing(100 * CENT)), 100)
        refused = asked(ledger, account, costing(CENT))[1]
        assert isinstance(refused, Refused)
        assert (
            str(refused.stop)
            == "The account 'team-a' reached its ceiling of $1.00/day; the day ends at 2026-04-01 00:00 UTC."
        )
        assert (refused.stop.limit, refused.stop.value) == ("account_limit", "$1.00/day")
        clock.advance(DAY / 2)
        later = under(ledger, "$1/day")
        admitted(ledger, later, costing(100 * CENT))

    @pytest.mark.spec("FR-129")
    @pytest.mark.parametrize("end", ["settle", "refund"])
    def test_a_call_counts_for_the_day_on_which_it_was_admitted(self, end: str, join: Join) -> None:
        clock = TestClock(NOON)
        ledger = join(clock=clock)
        account = under(ledger, "$1/day")
        settle(ledger, admitted(ledger, account, costing(10 * CENT)), 10)
        over_midnight = admitted(ledger, account, costing(60 * CENT))
        clock.advance(DAY)
        today = admitted(ledger, account, costing(30 * CENT))
        assert isinstance(asked(ledger, account, costing(20 * CENT))[1], Waits)  # what is under way counts still
        if end == "settle":
            settle(ledger, over_midnight, 50)
            ledger.correct(over_midnight, Charge(cost_nanos=50 * CENT), Charge(cost_nanos=40 * CENT), 0.0)
        else:
            ledger.refund(over_midnight, 0.0)
        assert account.chain[1].settled[STEPS] == 1
        settle(ledger, today, 30)
        settle(ledger, admitted(ledger, account, costing(70 * CENT)), 70)
        booked = rows(ledger, "SELECT day, cost_nanos, steps FROM settled WHERE name = 'account:team-a' ORDER BY day")
        first = (50, 2) if end == "settle" else (10, 1)
        assert booked == [("2026-03-31", first[0] * CENT, first[1]), ("2026-04-01", 100 * CENT, 2)]

    def test_a_call_over_midnight_counts_in_its_month_still(self, join: Join) -> None:
        clock = TestClock(NOON - timedelta(days=3))
        ledger = join(clock=clock)
        account = under(ledger, "$1/month")
        over_midnight = admitted(ledger, account, costing(60 * CENT))
        clock.advance(DAY)
        settle(ledger, over_midnight, 60)
        assert account.chain[1].settled[COST] == 60 * CENT
        assert account.chain[1].renews_on is not None
        assert account.chain[1].renews_on.isoformat() == "2026-04-01"

    @pytest.mark.spec("FR-129")
    def test_limits_for_a_day_and_for_a_month_share_an_account(self, join: Join) -> None:
        clock = TestClock(NOON - timedelta(days=10))
        ledger, other = join(clock=clock), join(clock=clock)
        daily, monthly = under(ledger, "$1/day"), under(other, "$2.50/month")
        for _ in range(2):
            settle(ledger, admitted(ledger, daily, costing(100 * CENT)), 100)
            clock.advance(DAY)
        settle(other, admitted(other, monthly, costing(40 * CENT)), 40)
        assert reason(asked(other, monthly, costing(11 * CENT))[1]) == "budget_exceeded"
        assert isinstance(asked(ledger, daily, costing(61 * CENT))[1], Refused)
        assert monthly.chain[1].settled[COST] == 240 * CENT

    def test_tokens_are_counted_too(self, join: Join) -> None:
        ledger = join(clock=TestClock(NOON))
        account = under(ledger, "100 tokens/day")
        ledger.settle(admitted(ledger, account, costing(0)), Charge(TokenUsage(70, 30), None), False, 0.0)
        refused = asked(ledger, account, costing(0))[1]
        assert isinstance(refused, Refused)
        assert (refused.stop.reason, refused.stop.value) == ("token_limit_exceeded", "100 tokens/day")
        assert account.chain[1].unpriced
        assert account.chain[1].settled[TOTAL_TOKENS] == 100

    def test_figures_that_nobody_adds_to_for_400_days_are_forgotten(self, join: Join) -> None:
        clock = TestClock(NOON)
        ledger = join(clock=clock)
        settle(ledger, admitted(ledger, under(ledger, "$1/day"), costing(CENT)), 1)
        for _ in range(31):
            clock.advance(399 * DAY / 31)
            join(clock=clock)
        assert len(rows(ledger, "SELECT * FROM settled")) == 1
        clock.advance(2 * DAY)
        join(clock=clock)
        assert rows(ledger, "SELECT * FROM settled") == []

    @pytest.mark.parametrize("days", [361, 375, 400])
    def test_a_clock_that_is_wrong_once_makes_nobody_forget_a_chain_that_rested(self, days: int, join: Join) -> None:
        clock = TestClock(NOON)
        ledger = join(clock=clock)
        account = opened(ledger, max_cost_usd=1)
        settle(ledger, admitted(ledger, account, costing(90 * CENT)), 90)
        for _ in range(60):
            clock.advance(DAY)
            join(clock=clock)
        for _ in range(2):
            join(clock=TestClock(clock.now() + timedelta(days=days)))
        assert reason(asked(join(clock=clock), account, costing(20 * CENT))[1]) == "budget_exceeded"
        assert len(rows(ledger, "SELECT * FROM settled")) == 1

    @pytest.mark.parametrize("days", [401, 4000])
    def test_a_clock_that_is_wrong_once_makes_nobody_forget(self, days: int, join: Join) -> None:
        clock, wrong = TestClock(NOON), TestClock(NOON + timedelta(days=days))
        ledger = join(clock=clock)
        account = under(ledger, "$1/day")
        settle(ledger, admitted(ledger, account, costing(90 * CENT)), 90)
        for _ in range(3):
            mistaken = join(clock=wrong)
            settle(mistaken, admitted(mistaken, under(mistaken, "$1/day"), costing(30 * CENT)), 30)
        assert reason(asked(join(clock=clock), account, costing(20 * CENT))[1]) == "budget_exceeded"


class TestContexts:
    def test_contexts_with_one_chain_id_are_one_chain(self, join: Join) -> None:
        config = ExecutionConfig(max_cost_usd=1, max_steps=3, max_retries_total=1, timeout_ms=0)
        gates = [ExecutionContext(config, metadata=ChainMetadata("r", "job"), ledger=join()) for _ in range(2)]
        decisions = [gate.wrap_llm_call(lambda: 1) for gate in gates * 2]
        assert decisions == [Decision.ALLOW] * 3 + [Decision.HALT]
        assert gates[1].get_snapshot().step_count == 3
        for gate in gates:
            gate.close()

    def test_an_account_needs_a_ledger_that_remembers(self) -> None:
        limits = Limits(account="team-a", account_limit="$1/day")
        for ledger in (None, MemoryLedger()):
            with pytest.raises(ConfigurationError, match="account='team-a' needs a ledger that remembers other runs"):
                ExecutionContext(limits, ledger=ledger)

    def test_only_the_whole_run_names_an_account(self, join: Join) -> None:
        limits = Limits(account="team-a", account_limit="$1/day")
        with ExecutionContext(limits, ledger=join()) as gate:
            gate.child(limits).close()
            with pytest.raises(ConfigurationError, match="account='team-b' is named for a part of a run"):
                gate.child(Limits(account="team-b", account_limit="$1/day"))

    def test_a_chain_cannot_have_one_key_twice(self, join: Join) -> None:
        with pytest.raises(ConfigurationError, match="two accounts of one chain have the key 'job'"):
            join().open(Account(ceilings(), Account(ceilings(), key="job"), key="job"))

    def test_a_landing_step_is_kept_from_other_ledgers_and_comes_back_when_a_context_is_collected(
        self, join: Join
    ) -> None:
        limits, metadata = ceilings(max_steps=3, landing=Landing()), ChainMetadata("r", "job")
        other = join()
        gate = ExecutionContext(limits, metadata=metadata, ledger=join())
        account = opened(other, max_steps=3)
        assert admitted(other, account, costing(0))
        assert account.reserved[STEPS] == 1
        gone = weakref.ref(gate)
        del gate
        assert left_of([gone]) == 0
        assert admitted(other, account, costing(0))
        assert account.reserved[STEPS] == 0


class held_by_another:  # noqa: N801
    """Hold a file's write lock, as another process would."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class TestFailures:
    @pytest.mark.spec("FR-127")
    def test_a_file_that_is_locked_for_too_long_refuses_and_what_was_spent_is_written_later(self, join: Join) -> None:
        clock = TestClock(NOON)  # or the thread of the other one would be in the file at times
        ledger, other = join(clock=clock, busy_seconds=0.01), join(clock=clock)
        account, theirs = opened(ledger, max_cost_usd=1), opened(other, max_cost_usd=1)
        demand = admitted(ledger, account, costing(60 * CENT))
        with held_by_another(ledger.path):
            with pytest.raises(StoreError, match=r"ledger.sqlite3 cannot be used: database is locked; calls"):
                ledger.admit(Demand(account, costing(CENT)), 0.0)
            with pytest.raises(StoreError, match="locked"):
                opened(ledger)
            settle(ledger, demand, 50)
            assert (account.settled[COST], account.reserved[COST]) == (50 * CENT, 0)
        assert isinstance(asked(other, theirs, costing(60 * CENT))[1], Waits)
        settle(ledger, admitted(ledger, account, costing(10 * CENT)), 10)
        settle(other, admitted(other, theirs, costing(40 * CENT)), 40)
        assert theirs.settled[COST] == 100 * CENT
        assert theirs.settled[STEPS] == 3

    def test_what_could_not_be_written_is_written_by_the_ledgers_own_thread(self, join: Join) -> None:
        clock = TestClock(NOON)
        ledger = join(clock=clock, busy_seconds=0.01)
        demand = admitted(ledger, opened(ledger), costing(0))
        with held_by_another(ledger.path):
            settle(ledger, demand, 50)
        assert rows(ledger, "SELECT cost_nanos FROM settled") == [(0,)]
        clock.advance(10.0)
        until_other_thread(lambda: rows(ledger, "SELECT cost_nanos FROM settled") == [(50 * CENT,)])

    @pytest.mark.spec("FR-127")
    def test_an_admission_that_cannot_be_written_is_none(self, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
        ledger = join()
        account = opened(ledger, max_cost_usd=1, landing=Landing(), max_steps=9)
        before = (account.settled.copy(), account.reserved.copy())

        def fail(file: LedgerFile) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(LedgerFile, "commit", fail)
            with pytest.raises(StoreError, match="database or disk is full"):
                ledger.admit(Demand(account, costing(60 * CENT)), 0.0)
            with pytest.raises(StoreError, match="database or disk is full"):
                ledger.open(Account(ceilings(max_steps=5, landing=Landing()), account))
        assert (account.settled, account.reserved) == before
        admitted(ledger, account, costing(60 * CENT))
        assert [count for (count,) in rows(ledger, "SELECT steps FROM settled")] == [1]

    def test_a_file_that_breaks_under_way_refuses(self, join: Join) -> None:
        ledger = join()
        account = opened(ledger)
        demand = admitted(ledger, account, costing(0))
        connection = sqlite3.connect(ledger.path)
        connection.execute("DROP TABLE settled")
        connection.close()
        settle(ledger, demand, 5)
        with pytest.raises(StoreError, match="cannot be used: no such table"):
            ledger.admit(Demand(account, costing(0)), 0.0)
        assert account.settled[COST] == 5 * CENT

    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_file_that_is_deleted_or_replaced_while_it_is_in_use_refuses(self, replaced: bool, join: Join) -> None:
        ledger = join()
        account = opened(ledger, max_cost_usd=1)
        settle(ledger, admitted(ledger, account, costing(60 * CENT)), 60)
        under_way = admitted(ledger, account, costing(20 * CENT))
        for end in ("", "-wal", "-shm"):
            Path(f"{ledger.path}{end}").unlink()
        if replaced:
            admitted(*(other := join(), opened(other, max_cost_usd=1)), costing(CENT))
        for _ in range(2):  # it stays so
            with pytest.raises(StoreError, match=r"deleted or replaced while it was in use.*put the file back"):
                ledger.admit(Demand(account, costing(CENT)), 0.0)
        settle(ledger, under_way, 20)  # kept in memory
        assert account.settled[COST] == 80 * CENT
        assert ledger.path.exists() is replaced

    @pytest.mark.parametrize("end", ["-wal", "-shm"])
    def test_a_journal_that_is_deleted_refuses_one_call_and_loses_nothing(self, end: str, join: Join) -> None:
        ledger = join()
        account = opened(ledger, max_cost_usd=1)
        settle(ledger, admitted(ledger, account, costing(60 * CENT)), 60)
        Path(f"{ledger.path}{end}").unlink()
        with pytest.raises(StoreError, match=r"-wal or -shm file.*keep the ledger and put nothing back") as refused:
            ledger.admit(Demand(account, costing(60 * CENT)), 0.0)
        assert "stop all processes" not in str(refused.value)
        assert reason(asked(ledger, account, costing(60 * CENT))[1]) == "budget_exceeded"
        assert account.settled[COST] == 60 * CENT

    @pytest.mark.parametrize("gone", [["-wal"], ["-shm"], ["-wal", "-shm"]])
    def test_side_files_that_are_deleted_under_two_processes_lose_nothing(
        self, gone: list[str], tmp_path: Path
    ) -> None:
        """What was written into them is counted: $1 is spent once, not once more after a clean-up."""
        path = tmp_path / "ledger.sqlite3"
        processes = [spender(path), spender(path)]
        assert [asked_for(process, 4) for process in processes] == [4, 4]
        for end in gone:
            Path(f"{path}{end}").unlink()
        spent = [asked_for(process, 5) for process in (*processes, *processes)]
        assert sum(spent) == 2
        for process in processes:
            process.communicate(timeout=60)

    def test_side_files_of_a_linked_ledger_are_watched_where_they_are(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        target = tmp_path / "data" / "ledger.sqlite3"
        (tmp_path / "link").symlink_to(target)
        with SqliteLedger(tmp_path / "link") as ledger:
            account = opened(ledger, max_cost_usd=1)
            settle(ledger, admitted(ledger, account, costing(60 * CENT)), 60)
            for end in ("-wal", "-shm"):
                Path(f"{target}{end}").unlink()
            with pytest.raises(StoreError, match="-wal or -shm file"):
                ledger.admit(Demand(account, costing(60 * CENT)), 0.0)
            assert reason(asked(ledger, account, costing(60 * CENT))[1]) == "budget_exceeded"

    def test_a_file_with_two_names_is_refused_because_each_has_side_files_of_its_own(self, tmp_path: Path) -> None:
        with SqliteLedger(tmp_path / "ledger.sqlite3") as ledger:
            (tmp_path / "other.sqlite3").hardlink_to(ledger.path)
            with pytest.raises(StoreError, match=r"other\.sqlite3 has a second name"):
                SqliteLedger(tmp_path / "other.sqlite3")
        (tmp_path / "ledger.sqlite3").unlink()
        SqliteLedger(tmp_path / "other.sqlite3").shutdown()

    def test_what_ends_a_read_is_not_masked_by_its_rollback(self, tmp_path: Path) -> None:
        class Broken(sqlite3.Connection):
            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                if str(arguments[0]).startswith("PRAGMA application_id"):
                    super().execute("ROLLBACK")  # as SQLite does by itself when a file cannot be read
                    raise sqlite3.OperationalError("disk I/O error")
                return super().execute(*arguments)

        connection = sqlite3.connect(tmp_path / "broken.sqlite3", factory=Broken, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            SCHEMA.is_in(connection, tmp_path)
        connection.close()

    def test_figures_that_no_file_can_hold_refuse_rather_than_round(self, join: Join) -> None:
        ledger = join()
        account = opened(ledger)
        for nanos in (2**62, 2**62):
            ledger.settle(admitted(ledger, account, costing(0)), Charge(cost_nanos=nanos), False, 0.0)
        assert account.settled[COST] == 2**63
        with pytest.raises(StoreError, match="typeof"):
            ledger.admit(Demand(account, costing(0)), 0.0)

    @pytest.mark.parametrize("options", [{"lease_seconds": 0}, {"lease_seconds": -1.0}, {"busy_seconds": 0}])
    def test_seconds_that_make_no_sense_are_refused_by_name_and_value(
        self, options: dict[str, float], tmp_path: Path
    ) -> None:
        (name,) = options
        with pytest.raises(LimitsError, match=f"{name}="):
            SqliteLedger(tmp_path / "ledger.sqlite3", **options)  # type: ignore[arg-type]


VERSION_1 = (
    (
        "CREATE TABLE settled (name TEXT NOT NULL, day TEXT NOT NULL, cost_nanos INTEGER NOT NULL DEFAULT 0,"
        " total_tokens INTEGER NOT NULL DEFAULT 0, steps INTEGER NOT NULL DEFAULT 0, unpriced INTEGER NOT NULL,"
        " used_at REAL NOT NULL, PRIMARY KEY (name, day)) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE reserved (name TEXT NOT NULL, holder TEXT NOT NULL, cost_nanos INTEGER NOT NULL DEFAULT 0,"
        " moving INTEGER NOT NULL, PRIMARY KEY (name, holder)) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE holders (holder TEXT PRIMARY KEY, process INTEGER NOT NULL, renewed_at REAL NOT NULL,"
        " lease_seconds REAL NOT NULL) WITHOUT ROWID"
    ),
    "INSERT INTO settled VALUES ('team', '', 400000000, 50, 3, 0, 1774000000.0)",
    "INSERT INTO reserved VALUES ('team', 'h', 500000000, 1)",
    "INSERT INTO holders VALUES ('h', 1, 1774000000.0, 30.0)",
    "PRAGMA application_id=0x574B4C47",
    "PRAGMA user_version=1",
)


class TestVersions:
    def test_a_file_of_version_1_is_brought_to_this_one_and_keeps_what_was_settled(
        self, join: Join, tmp_path: Path
    ) -> None:
        connection = sqlite3.connect(tmp_path / "ledger.sqlite3")
        for statement in VERSION_1:
            connection.execute(statement)
        connection.commit()
        connection.close()
        ledger = join(clock=TestClock(NOON))
        account = opened(ledger, key="team", max_cost_usd=1)
        ledger.settle(
            admitted(ledger, account, costing(60 * CENT)), presumed_charge(TokenUsage(), 60 * CENT), True, 0.0
        )
        assert (account.settled[COST], account.settled[STEPS]) == (100 * CENT, 4)
        assert rows(ledger, "PRAGMA user_version") == [(2,)]
        assert opened(join(clock=TestClock(NOON)), key="team", max_cost_usd=1).settled[COST] == 100 * CENT

    def test_a_file_of_a_newer_version_is_refused_and_not_changed(self, join: Join) -> None:
        path = join().path
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version=3")
        connection.close()
        before = path.read_bytes()
        with pytest.raises(StoreError, match="schema version 3, this Watchkeeper writes version 2"):
            join()
        assert path.read_bytes() == before


class TestLife:
    def test_what_is_shut_down_admits_nothing_but_books_what_comes_late(self, join: Join) -> None:
        ledger = join()
        account = opened(ledger, max_cost_usd=1)
        demand = admitted(ledger, account, costing(60 * CENT))
        ledger.shutdown()
        ledger.shutdown()
        assert rows(ledger, "SELECT * FROM reserved") == rows(ledger, "SELECT * FROM holders") == []
        for use in (lambda: ledger.admit(Demand(account, costing(0)), 0.0), lambda: opened(ledger)):
            with pytest.raises(StoreError, match="was shut down"):
                use()
        settle(ledger, demand, 30)
        assert rows(ledger, "SELECT cost_nanos, steps FROM settled") == [(30 * CENT, 1)]

    def test_what_is_shut_down_makes_no_file_for_nothing(self, join: Join) -> None:
        ledger = join()
        account = opened(ledger)
        ledger.shutdown()
        ledger.path.unlink()
        ledger.close(account, 0.0)
        assert not ledger.path.exists()

    def test_a_ledger_that_nobody_has_any_more_leaves_nothing_behind(self, tmp_path: Path) -> None:
        ledger = SqliteLedger(tmp_path / "ledger.sqlite3", clock=TestClock(NOON))
        account = opened(ledger, max_cost_usd=1)
        admitted(ledger, account, costing(CENT))
        gone = weakref.ref(ledger)
        (thread,) = threads()
        del ledger, account
        collect_garbage()
        thread.join(30)
        assert gone() is None
        assert not thread.is_alive()

    def test_what_a_finaliser_wants_in_the_middle_of_something_else_comes_after_it(self, join: Join) -> None:
        """A waiter is told inside a critical section; what is called there is what the collector may call."""
        ledger = join()
        account = opened(ledger, max_cost_usd=1)
        child = opened(ledger, account)
        held, other = (admitted(ledger, child, costing(30 * CENT)) for _ in range(2))
        waiter = Waiter(Demand(account, costing(60 * CENT)), ())
        elsewhere = join(busy_seconds=60)  # a ledger that would wait for this very thread
        theirs = opened(elsewhere)
        held_there = admitted(elsewhere, theirs, costing(5 * CENT))
        errors: list[StoreError] = []

        def finalise() -> None:
            settle(ledger, other, 10)
            settle(elsewhere, held_there, 5)
            elsewhere.withdraw(Waiter(held_there, ()), 0.0)
            elsewhere.shutdown()
            ledger.latch(child, Stop("aborted", "caller", "collected"), False, 0.0)
            try:
                ledger.admit(Demand(account, costing(0)), 0.0)
            except StoreError as error:
                errors.append(error)

        waiter.notify = finalise
        assert isinstance(ledger.admit(waiter.demand, 0.0, waiter), Waits)
        settle(ledger, held, 0)
        assert theirs.settled[COST] == 15 * CENT
        ledger.withdraw(waiter, 0.0)
        settle(ledger, admitted(ledger, account, costing(0)), 0)
        assert (account.settled[COST], account.reserved[COST]) == (15 * CENT, 0)
        assert child.stop is not None
        assert "in the middle of a transaction" in str(errors[0])

    def test_an_abort_waits_for_no_file(self, join: Join) -> None:
        ledger = join(busy_seconds=60)
        account = opened(ledger, max_cost_usd=1)
        child = Account(ceilings(max_cost_usd="$0.60"), account, carved_on_open=True)
        ledger.open(child)
        assert rows(ledger, "SELECT cost_nanos FROM reserved") == [(60 * CENT,)]
        with held_by_another(ledger.path):
            blocked = threading.Thread(target=lambda: ledger.admit(Demand(account, costing(0)), 0.0))
            blocked.start()
            assert ledger.latch(child, Stop("aborted", "caller", "enough"), False, 0.0)
            assert ledger.latch(account, Stop("aborted", "caller", "enough"), True, 0.0)
            assert blocked.is_alive()
        blocked.join()
        until_other_thread(lambda: rows(ledger, "SELECT * FROM reserved") == [])  # what was carved is back

    def test_accounts_without_a_key_need_no_file(self, join: Join) -> None:
        ledger = join(busy_seconds=60)
        with held_by_another(ledger.path):
            account = opened(ledger, key=None, max_cost_usd=1)
            settle(ledger, admitted(ledger, account, costing(CENT)), 1)
            shares = [Account(ceilings(), account, carved_on_open=True) for _ in range(2)]
            assert ledger.open_shares(shares, [1, 1]) == [None, None]
            ledger.close(account, 0.0)
        assert rows(ledger, "SELECT * FROM settled") == []

    def test_shares_that_cannot_be_written_are_none(self, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
        ledger = join()
        account = opened(ledger, max_cost_usd=1)
        shares = [Account(ceilings(), account, carved_on_open=True) for _ in range(2)]

        def fail(file: LedgerFile) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as patch:
            patch.setattr(LedgerFile, "commit", fail)
            with pytest.raises(StoreError, match="disk I/O error"):
                ledger.open_shares(shares, [1, 1])
        assert tuple(account.reserved) == NOTHING
        admitted(ledger, account, costing(100 * CENT))

    def test_after_a_wait_in_vain_a_locked_file_is_tried_only_shortly(self, join: Join) -> None:
        ledger = join(busy_seconds=3.0)
        account = opened(ledger, max_cost_usd=1)
        under_way = admitted(ledger, account, costing(20 * CENT))
        with held_by_another(ledger.path):
            with pytest.raises(StoreError, match="locked"):
                ledger.admit(Demand(account, costing(CENT)), 0.0)
            began = time.monotonic()
            with pytest.raises(StoreError, match="locked"):
                ledger.admit(Demand(account, costing(CENT)), 0.0)
            settle(ledger, under_way, 10)
            assert time.monotonic() - began < 3.0
        admitted(ledger, account, costing(90 * CENT))
        assert rows(ledger, "SELECT cost_nanos FROM settled") == [(10 * CENT,)]

    def test_ctrl_c_at_the_end_of_a_transaction_leaves_the_ledger_usable(
        self, join: Join, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ledger = join()
        account = opened(ledger, max_cost_usd=1)

        def interrupted(file: LedgerFile) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(LedgerFile, "rollback", interrupted)
            with pytest.raises(KeyboardInterrupt):
                admitted(ledger, account, costing(10 * CENT))
        settle(ledger, admitted(ledger, account, costing(CENT)), 1)
        assert rows(ledger, "SELECT steps FROM settled") == [(2,)]

    def test_an_absurd_cost_of_one_call_does_not_make_the_file_useless_for_others(self, join: Join) -> None:
        ledger = join()
        config = ExecutionConfig(max_cost_usd=5, max_steps=9, max_retries_total=9, timeout_ms=0)
        hint = WrapOptions(cost_estimate_hint=0.1)
        with ExecutionContext(config, ledger=ledger) as context:
            outcome = context.call_llm(lambda: "done", hint, cost_of=lambda _: 9_500_000_000)
            assert "at most $1,000,000,000" in str(outcome.error)
            context.call_llm(lambda: "done", hint, cost_of=lambda _: 1_000_000_000)
        with ExecutionContext(config, ledger=ledger) as other:
            assert other.call_llm(lambda: "done", hint).decision is Decision.ALLOW

    def test_a_refusal_after_a_stop_needs_no_file(self, join: Join) -> None:
        ledger = join()
        account = opened(ledger, max_steps=1)
        admitted(ledger, account, costing(0))
        assert reason(asked(ledger, account, costing(0))[1]) == "step_limit_exceeded"
        with held_by_another(ledger.path):
            assert reason(asked(ledger, account, costing(0))[1]) == "step_limit_exceeded"

    def test_a_forked_process_goes_on_as_a_holder_of_its_own_and_with_contexts_of_its_own(self, tmp_path: Path) -> None:
        told = worked("fork", tmp_path / "ledger.sqlite3", "0")
        assert told == ["forked", "forked", "child:ALLOW", "parent:ALLOW", "parent:HALT"]

    def test_a_forked_process_shares_the_ceiling_also_when_its_parent_has_closed_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger.sqlite3"
        told = worked("outlived", path, "0")
        assert sorted(told) == ["ALLOW"] * 5 + ["HALT"] * 7
        with SqliteLedger(path) as ledger:
            assert rows(ledger, "SELECT steps FROM settled WHERE name = 'o'") == [(6,)]

    def test_a_forked_process_damages_no_store_that_its_parent_has_closed(self, tmp_path: Path) -> None:
        path = tmp_path / "store"
        assert worked("outlived_store", path, "0") == ["written"] * 12
        with RunStore(path, read_only=True) as store:
            stored = [list(store.events(file.stem)) for file in (path / "runs").iterdir()]
        assert [len(events) for events in stored] == [1] * 13
        assert all(event.body["message"] == "x" * 500 for (event,) in stored)

    def test_no_file_is_opened_during_a_fork(self, tmp_path: Path) -> None:
        """The new process would have SQLite's own locks as another thread held them, and nobody to release them."""
        assert worked("opened_in_fork", tmp_path / "store", "0") == ["waits", "opened"]

    @pytest.mark.parametrize("ledger", ["shared", "memory"])
    def test_a_context_is_refused_in_a_forked_process_and_booked_once(self, ledger: str, tmp_path: Path) -> None:
        path = tmp_path / "ledger.sqlite3"
        *copies, billed = worked("fork_in_call", path, ledger)
        assert copies == ["refused:done"] * 4
        assert billed == f"billed:{40 * CENT}"
        if ledger == "shared":
            connection = sqlite3.connect(path)
            (booked,) = connection.execute("SELECT cost_nanos FROM settled WHERE name = 'f'").fetchone()
            assert booked == 40 * CENT
            assert connection.execute("SELECT * FROM calls").fetchall() == []
            connection.close()

    def test_holders_are_told_apart_by_the_ids_they_are_given(self, join: Join) -> None:
        clock = TestClock(NOON)
        for seed in range(2):
            ledger = join(clock=clock, ids=RandomIds(random.Random(seed)))
            admitted(ledger, opened(ledger), costing(CENT))
        assert len(rows(join(clock=clock), "SELECT holder FROM reserved")) == 2
