"""The share reserved for a verdict: the work cannot use it, and all together stay under the ceilings."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.containment.gates import (
    TOOL,
    Held,
    answer,
    charged,
    costing,
    dollars,
    gate_with,
    race,
    settle,
    started,
    unlimited,
)
from watchkeeper.accounting.account import (
    COST,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    STEPS,
    TOTAL_TOKENS,
    Account,
    kept_for_verdict,
)
from watchkeeper.accounting.admission import Demand, decide
from watchkeeper.accounting.call_request import Admitted, CallRequest, Charge, Estimate, Waits
from watchkeeper.accounting.limits import Landing, Verdict
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.errors import ConfigurationError, Stop
from watchkeeper.core.usage import NANOS_PER_USD, TokenUsage
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline

CENT: Final = dollars(0.01)
ENOUGH: Final = Stop("turn_limit_exceeded", "caller", "Enough.")
LANDING: Final = CallRequest("llm", phase="landing")
MODEL: Final = CallRequest("llm")


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


def account_of(gate: ExecutionContext) -> Account:
    return gate.account


def keep(gate: ExecutionContext) -> ExecutionContext:
    verdict = gate.keep_verdict()
    assert verdict is not None
    return verdict


def whole(verdict: ExecutionContext) -> CallRequest:
    """A model call that takes everything that is kept, and is content with nothing less."""
    account = account_of(verdict)
    left = {count: None if top is None else top - account.settled[count] for count, top in enumerate(account.tops)}
    total, read, written = left[TOTAL_TOKENS], left[INPUT_TOKENS], left[OUTPUT_TOKENS]
    if total is None:
        tokens_in, tokens_out = read or 0, written or 0
    else:
        tokens_in = total // 2 if read is None else min(read, total // 2)
        tokens_out = total - tokens_in if written is None else min(written, total - tokens_in)
    return CallRequest("llm", estimate=Estimate(tokens_in, tokens_out, max(tokens_out, 1), left[COST] or 0))


def spend_all(gate: ExecutionContext, request: CallRequest) -> Stop:
    """Make calls until the gate refuses one."""
    while True:
        outcome = gate.call(request, lambda _: None)
        if not outcome.admitted:
            assert outcome.stop is not None
            return outcome.stop


# --- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-160")
@pytest.mark.parametrize(
    ("ceilings", "kept"),
    [
        ({}, {}),
        ({"max_cost_usd": 2}, {"max_cost_nanos": dollars(0.2)}),
        ({"max_total_tokens": 2_000_000}, {"max_total_tokens": 200_000}),
        ({"max_total_tokens": 30_000}, {"max_total_tokens": 4096}),
        ({"max_total_tokens": 1000}, {"max_total_tokens": 250}),
        (
            {"max_input_tokens": 12_000, "max_output_tokens": 4000},
            {"max_input_tokens": 3000, "max_output_tokens": 1000},
        ),
        (
            {"max_input_tokens": "1M", "max_output_tokens": "100k"},
            {"max_input_tokens": 100_000, "max_output_tokens": 10_000},
        ),
        ({"max_steps": 50}, {"max_steps": 5}),
        ({"max_steps": 3}, {"max_steps": 2}),
        ({"max_steps": 2}, {}),
        ({"max_steps": 3, "landing": Landing()}, {}),
        ({"max_steps": 4, "landing": Landing()}, {"max_steps": 2}),
        ({"max_tool_calls": 100, "max_retries": 20, "max_turns": 100}, {}),
        ({"max_cost_usd": 1, "verdict": Verdict(share=0.3)}, {"max_cost_nanos": dollars(0.3)}),
    ],
    ids=lambda given: "-".join(given) or "none",
)
def test_a_share_of_every_ceiling_is_kept_and_enough_of_it_to_be_of_use(
    clock: TestClock, ceilings: dict[str, Any], kept: dict[str, int]
) -> None:
    root = gate_with(clock, **ceilings)
    verdict = keep(root)
    names = (
        "max_cost_nanos",
        "max_total_tokens",
        "max_input_tokens",
        "max_output_tokens",
        "max_steps",
        "max_tool_calls",
    )
    assert {name: top for name in names if (top := verdict.limits.ceiling(name)) is not None} == kept
    assert (verdict.limits.landing, verdict.limits.verdict, verdict.limits.max_retries) == (None, None, None)
    assert verdict.stop is None
    verdict.close()
    root.close()
    assert account_of(root).reserved == [0] * 7


@pytest.mark.spec("FR-160")
def test_nothing_is_kept_unless_a_run_asks_for_it(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1, max_steps=100, deadline="1h")
    spend_all(root, costing(0.25))
    assert root.usage.cost_nanos == dollars(1)
    assert gate_with(clock, max_cost_usd=1, verdict=None).keep_verdict() is None
    assert kept_for_verdict(Account(unlimited(max_cost_usd=1, verdict=None)), {}) == {}


def test_a_verdict_is_kept_first_of_all_and_one_at_a_time(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1, deadline="10m")
    verdict = keep(root)
    with pytest.raises(ConfigurationError, match="can be kept only once"):
        root.keep_verdict()
    used = gate_with(clock, max_cost_usd=1)
    used.call(TOOL, lambda _: None)
    with pytest.raises(ConfigurationError, match="before the first call"):
        used.keep_verdict()
    root.call(costing(0.2), lambda _: None)
    assert verdict.call(costing(0.06), lambda _: None).admitted
    verdict.close()
    ends = root.work_deadline
    again = keep(root)
    assert again.limits.max_cost_nanos == int(dollars(0.74) * 0.1)
    assert root.work_deadline == ends
    root.close()
    with pytest.raises(ConfigurationError, match="closed"):
        root.keep_verdict()


def test_below_a_shared_budget_a_share_of_what_is_left_there_is_kept(clock: TestClock) -> None:
    tracker = gate_with(clock, max_cost_usd=1, max_total_tokens=100_000)
    tracker.call(costing(0.5), lambda _: None)
    run = tracker.child(unlimited(max_cost_usd=5), carve=False)
    verdict = keep(run)
    assert (verdict.limits.max_cost_nanos, verdict.limits.max_total_tokens) == (dollars(0.05), 10_000)
    beside = tracker.child(unlimited(), carve=False)
    stop = spend_all(beside, costing(0.05))
    assert stop.message.endswith("others hold the rest.")
    assert tracker.usage.cost_nanos == dollars(0.95)
    assert verdict.call(whole(verdict), lambda _: None).admitted
    assert tracker.usage.cost_nanos == dollars(1)


def test_of_what_only_an_account_bounds_that_runs_share_nothing_is_kept(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "ledger.sqlite3") as ledger:
        limits = unlimited(account="team-a", account_limit="$20/day", max_steps=50)
        with ExecutionContext(limits, ledger=ledger) as root, keep(root) as verdict:
            assert (verdict.limits.max_cost_nanos, verdict.limits.max_steps) == (None, 5)
            assert verdict.call(costing(0.5), lambda _: None).admitted


# --- the work may not have it -----------------------------------------------------------------------------------------


@pytest.mark.spec("FR-162")
@pytest.mark.parametrize("landing", [None, Landing()], ids=["hard", "landing"])
def test_work_stops_at_the_ceiling_less_what_is_kept_and_that_latches_work_only(
    clock: TestClock, landing: Landing | None
) -> None:
    root = gate_with(clock, max_cost_usd=1, landing=landing)
    verdict = keep(root)
    stop = spend_all(root, costing(0.2))
    assert stop.reason == "budget_exceeded"
    assert (
        stop.message == "The run has $0.10 left of its cost ceiling of $1.00 after $0.80 in 4 model calls; "
        "$0.10 kept for its verdict; the next call could need up to $0.20."
    )
    assert (root.work_stop, root.stop) == (stop, None)
    assert root.get_snapshot().stop == stop
    assert (verdict.work_stop, verdict.stop, verdict.get_snapshot().stop) == (None, None, None)
    assert verdict.call(whole(verdict), lambda _: "it is good").value == "it is good"
    assert root.usage.cost_nanos == dollars(0.9)
    assert [event.event_type for event in root.get_snapshot().events] == ["budget_exceeded"]


@pytest.mark.spec("FR-162")
def test_a_landing_turn_comes_before_the_verdict_and_may_not_have_it_either(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1, landing=Landing())
    verdict = keep(root)
    after = Estimate(input_nanos=dollars(0.1))
    stop = spend_all(root, costing(0.2, landing=after))
    assert stop.message.endswith("in 4 model calls; $0.10 kept for its last turn; $0.10 kept for its verdict.")
    refused = root.call(costing(0.2, phase="landing"), lambda _: None)
    assert refused.stop is not None
    assert "after $0.80 in 4 model calls; $0.10 kept for its verdict; the next" in refused.stop.message
    assert root.call(costing(0.1, phase="landing"), lambda _: None).admitted
    assert verdict.call(whole(verdict), lambda _: None).admitted
    assert root.usage.cost_nanos == dollars(1)


def test_the_last_steps_are_the_verdicts(clock: TestClock) -> None:
    root = gate_with(clock, max_steps=10, landing=Landing())
    verdict = keep(root)
    assert spend_all(root, TOOL).reason == "step_limit_exceeded"
    assert root.call(LANDING, lambda _: None).admitted
    assert root.usage.steps == 8
    with verdict.child(unlimited(max_steps=5), "judge") as judge:
        assert [judge.call(MODEL, lambda _: None).admitted for _ in range(3)] == [True, True, False]
    assert root.usage.steps == 10


def test_children_of_the_work_and_those_of_the_verdict_are_on_their_own_sides(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1, max_tool_calls=5)
    verdict = keep(root)
    worker = root.child(unlimited(max_cost_usd=5), "worker")
    assert worker.limits.max_cost_nanos == dollars(0.9)
    root.land(ENOUGH)
    with verdict.child(unlimited(), "judge", carve=False) as judge, judge.child(unlimited(), "tool") as below:
        for gate, runs in ((worker, False), (root, False), (verdict, True), (judge, True), (below, True)):
            assert gate.call(MODEL, lambda _: None).admitted is runs
            assert gate.work_stop == (None if runs else ENOUGH)


def test_a_run_below_another_keeps_a_verdict_of_its_own_inside_its_share(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    ours = keep(root)
    worker = root.child(unlimited(max_cost_usd=0.5), "worker")
    theirs = keep(worker)
    assert theirs.limits.max_cost_nanos == dollars(0.05)
    assert spend_all(worker, costing(0.05)).message.endswith(
        "after $0.45 in 9 model calls; $0.05 kept for its verdict."
    )
    spend_all(root, costing(0.05))
    assert theirs.call(whole(theirs), lambda _: None).admitted
    judge = ours.child(unlimited(), "judge", carve=False)
    last = keep(judge)
    assert last.limits.max_cost_nanos == dollars(0.01)
    assert spend_all(judge, costing(0.03)).message.startswith("The run 'verdict' reached its cost ceiling of $0.10")
    assert last.call(whole(last), lambda _: None).admitted
    assert root.usage.cost_nanos == dollars(1)


def test_what_a_worker_spends_beyond_its_hints_is_not_taken_from_the_verdict_as_long_as_the_ceiling_holds(
    clock: TestClock,
) -> None:
    root = gate_with(clock, max_cost_usd=1)
    verdict = keep(root)
    wild = root.child(unlimited(max_cost_usd=0.2))
    tame = root.child(unlimited(max_cost_usd=0.4))
    wild.call(costing(0.1), lambda _: None, charged(0.7))
    assert not tame.call(costing(0.3), lambda _: None).admitted
    assert verdict.call(whole(verdict), lambda _: None).admitted
    wild.call(costing(0.1), lambda _: None)
    root.call(costing(0.0), lambda _: None, charged(0.9))
    late = keep(gate_with(clock, max_cost_usd=1))
    assert late.call(whole(late), lambda _: None).admitted


def test_the_verdict_of_a_run_may_not_have_what_is_kept_for_the_one_above(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    ours = keep(root)
    worker = root.child(unlimited(), "worker")
    theirs = keep(worker)
    assert theirs.limits.max_cost_nanos == dollars(0.09)
    worker.call(costing(0.8), lambda _: None, charged(0.85))
    refused = theirs.call(whole(theirs), lambda _: None).stop
    assert refused is not None
    assert refused.message.startswith(
        "The whole run has $0.05 left of its cost ceiling of $1.00 after $0.85 in 1 model call"
    )
    assert refused.message.endswith("; $0.10 kept for its verdict; the next call could need up to $0.09.")
    assert ours.call(whole(ours), lambda _: None).admitted


@pytest.mark.spec("FR-162")
def test_the_whole_ceiling_bars_the_verdict_too(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    verdict = keep(root)
    root.call(costing(0.1), lambda _: None, charged(1.0))
    refused = verdict.call(costing(0.05), lambda _: None)
    assert refused.stop is not None
    assert refused.stop.message == "The whole run reached its cost ceiling of $1.00 in 1 model call."


def test_the_calls_of_a_verdict_wait_for_each_other_like_any(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    verdict = keep(root)
    ledger = root.ledger
    first, second = (Demand(account_of(verdict), costing(0.06)) for _ in range(2))
    assert isinstance(ledger.admit(first, 0.0), Admitted)
    assert isinstance(ledger.admit(second, 0.0), Waits)
    ledger.settle(first, Charge(), False, 0.0)
    assert isinstance(ledger.admit(second, 0.0), Admitted)


async def test_a_hook_that_ends_the_work_leaves_the_verdict(clock: TestClock) -> None:
    class Once:
        def before_charge(self, ctx: ToolCallContext, cost_usd: float) -> Decision | None:
            return Decision.HALT if cost_usd > 0.1 else None

    root = ExecutionContext(unlimited(max_cost_usd=1), ShieldPipeline(budget=Once()), clock=clock)
    verdict = keep(root)
    assert (await root.acall(costing(0.2), answer)).admitted
    assert root.work_stop is not None
    assert (root.work_stop.source, root.stop) == ("hook", None)
    assert not (await root.acall(costing(0.1), answer)).admitted
    assert (await verdict.acall(costing(0.1), answer)).decision is Decision.ALLOW


# --- what bars it, and what comes back --------------------------------------------------------------------------------


@pytest.mark.spec("FR-162")
def test_what_it_has_not_used_comes_back_when_it_is_closed(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1, max_steps=20)
    with keep(root) as verdict:
        verdict.call(costing(0.05), lambda _: None, charged(0.02))
        assert account_of(root).verdict_hold[COST] == dollars(0.08)
        assert account_of(root).verdict_hold[STEPS] == 1
    assert account_of(root).verdict_hold == (0,) * 7
    assert account_of(root).reserved == [0] * 7
    assert root.call(costing(0.98), lambda _: None).admitted


def test_a_verdict_that_nobody_closes_gives_back_when_it_is_gone(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    keep(root)
    assert account_of(root).reserved == [0] * 7


@pytest.mark.spec("FR-162")
async def test_an_abort_bars_it_and_cancels_what_it_does(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    verdict = keep(root)
    task = await started(verdict.acall(costing(0.05), Held()))
    root.abort("enough")
    assert (await task).stop_reason == "aborted"
    refused = await verdict.acall(MODEL, answer)
    assert (refused.admitted, refused.stop_reason) == (False, "aborted")
    assert verdict.stop == verdict.work_stop == refused.stop


async def test_closing_the_run_bars_it(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    verdict = keep(root)
    root.close()
    assert (await verdict.acall(MODEL, answer)).stop_reason == "aborted"
    assert account_of(root).reserved == [0] * 7


def test_a_hard_stop_above_bars_it_and_a_stop_of_work_above_does_not(clock: TestClock) -> None:
    above = gate_with(clock, max_steps=3)
    run = above.child(unlimited(), carve=False)
    verdict = keep(run)
    above.land(ENOUGH)
    assert run.work_stop == ENOUGH
    assert verdict.call(MODEL, lambda _: None).admitted
    hard = gate_with(clock, max_tool_calls=1)
    verdict = keep(hard.child(unlimited(), carve=False))
    assert spend_all(hard, TOOL) == hard.stop
    assert verdict.stop == hard.stop
    assert verdict.call(MODEL, lambda _: None).stop == hard.stop


def test_what_stops_the_verdict_leaves_the_work_alone(clock: TestClock) -> None:
    root = gate_with(clock, max_cost_usd=1)
    verdict = keep(root)
    stop = spend_all(verdict, costing(0.06))
    said = (
        "The run 'verdict' has $0.04 left of its cost ceiling of $0.10 after $0.06 in 1 model call; the next call could"
    )
    assert stop.message == f"{said} need up to $0.06."
    assert (verdict.stop, root.stop, root.work_stop) == (stop, None, None)
    assert root.call(costing(0.9), lambda _: None).admitted


# --- its time ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-160")
@pytest.mark.parametrize(
    ("seconds", "landing", "work", "lands"),
    [
        (3600, Landing(), 3480, 3540),
        (600, Landing(), 540, 570),
        (600, None, 570, 570),
        (10, Landing(), 8, 9),
        (2, Landing(), 1, 1.5),
        (1, None, 0.5, 0.5),
    ],
    ids=str,
)
def test_work_and_landing_end_earlier_by_what_is_kept_of_the_time(
    clock: TestClock, seconds: float, landing: Landing | None, work: float, lands: float
) -> None:
    root = gate_with(clock, deadline=timedelta(seconds=seconds), landing=landing)
    verdict = keep(root)
    account, opened = account_of(root), clock.monotonic()
    assert root.deadline is not None
    assert root.work_deadline is not None
    assert (root.deadline.at - clock.now()).total_seconds() == seconds
    assert (root.work_deadline.at - clock.now()).total_seconds() == pytest.approx(work)
    assert account.work_until == pytest.approx(opened + work)
    assert (verdict.deadline, verdict.work_deadline) == (root.deadline, root.deadline)
    clock.advance(work)
    assert not root.call(MODEL, lambda _: None).admitted
    assert root.call(LANDING, lambda _: None).admitted is (work < lands)
    clock.advance(lands - work)
    assert not root.call(LANDING, lambda _: None).admitted
    clock.advance(opened + seconds - 0.01 - clock.monotonic())
    assert root.call(LANDING, lambda _: None).stop_reason == "timeout"
    assert verdict.call(MODEL, lambda _: None).admitted
    clock.advance(0.01)
    refused = verdict.call(MODEL, lambda _: None)
    assert refused.stop_reason == "timeout"
    assert refused.stop == verdict.stop


@pytest.mark.parametrize(
    ("landing", "said"),
    [
        (Landing(), "; the last 1m are kept for its last turn and its verdict."),
        (None, "; the last 30s are kept for its verdict."),
    ],
    ids=["landing", "hard"],
)
def test_the_end_of_the_work_says_for_what_time_is_kept(clock: TestClock, landing: Landing | None, said: str) -> None:
    root = gate_with(clock, deadline="10m", landing=landing)
    verdict = keep(root)
    clock.advance(590)
    stop = root.call(MODEL, lambda _: None).stop
    assert stop is not None
    assert stop.message == "The run reached its deadline of 10m" + said
    assert (root.work_stop, root.stop) == (stop, None)
    late = root.call(LANDING, lambda _: None).stop
    assert late is not None
    assert late.message == "The run reached its deadline of 10m; the last 30s are kept for its verdict."
    assert verdict.call(MODEL, lambda _: None).admitted


async def test_what_is_under_way_is_cancelled_in_time_for_what_comes_after_it(
    clock: TestClock,
) -> None:
    root = gate_with(clock, deadline="10m", landing=Landing())
    verdict = keep(root)
    work = await started(root.acall(MODEL, Held()))
    clock.advance(540)
    assert (await work).stop_reason == "timeout"
    landing = await started(root.acall(LANDING, Held()))
    clock.advance(30)
    assert (await landing).stop_reason == "timeout"
    judging = await started(verdict.child(unlimited(deadline="1h")).acall(MODEL, Held()))
    clock.advance(29)
    await settle()
    assert not judging.done()
    clock.advance(1)
    assert (await judging).stop_reason == "timeout"


def test_without_a_deadline_no_time_is_kept_and_after_it_none_is_left(clock: TestClock) -> None:
    free = gate_with(clock)
    assert keep(free).deadline is None
    assert free.work_deadline is None
    late = gate_with(clock, deadline=clock.now() - timedelta(seconds=5))
    verdict = keep(late)
    assert verdict.call(MODEL, lambda _: None).stop_reason == "timeout"


# --- a ledger that processes share ------------------------------------------------------------------------------------


@pytest.mark.spec("FR-161")
def test_in_a_file_it_is_kept_from_other_processes_too_and_passes_the_end_of_the_work(tmp_path: Path) -> None:
    from watchkeeper.shield.decision import ChainMetadata

    chain = ChainMetadata("request", "chain")
    with SqliteLedger(tmp_path / "ledger.sqlite3") as one, SqliteLedger(tmp_path / "ledger.sqlite3") as two:
        limits = unlimited(max_cost_usd=1, landing=Landing())
        with ExecutionContext(limits, metadata=chain, ledger=one) as root, keep(root) as verdict:
            with ExecutionContext(limits, metadata=chain, ledger=two, parent=None) as other:
                assert all(other.call(costing(0.1), lambda _: None).admitted for _ in range(9))
                assert isinstance(two.admit(Demand(account_of(other), costing(0.1)), 0.0), Waits)
            assert spend_all(root, costing(0.1)).message.endswith("$0.10 kept for its verdict.")
            assert verdict.call(whole(verdict), lambda _: None).admitted
            assert root.usage.cost_nanos == dollars(1)
            steps = root.usage.steps
        with ExecutionContext(unlimited(max_cost_usd=2), metadata=chain, ledger=two) as later:
            assert later.usage.steps == steps == 10
            assert account_of(later).reserved == [0] * 7


# --- whatever the work does -------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-161")
@pytest.mark.parametrize("seed", range(4))
def test_sixty_four_threads_of_work_leave_the_verdict_exactly_what_is_kept(seed: int) -> None:
    root = gate_with(SYSTEM_CLOCK, max_cost_usd=1, max_total_tokens=100_000, max_steps=400, landing=Landing())
    verdict = keep(root)
    lock, spent = threading.Lock(), [0, 0]

    def call(gate: ExecutionContext, rng: random.Random) -> None:
        worst, tokens = rng.choice([0.001, 0.01, 0.03]), rng.choice([0, 500, 2000])
        real = rng.choice([0.0, worst / 2, worst])
        estimate = Estimate(tokens, input_nanos=dollars(worst))
        last = Estimate(100, 100, input_nanos=dollars(0.01))
        request = CallRequest("llm", estimate=estimate, landing=last if gate is root else None)
        if gate.call(request, lambda _: None, charged(real, tokens)).admitted:
            with lock:
                spent[0] += dollars(real)
                spent[1] += tokens

    def agent(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        limits = unlimited(max_cost_usd=rng.choice([0.01, 0.05, 0.9]), max_steps=rng.choice([None, 3, 50]))
        with root.child(limits, carve=rng.random() < 0.5) as child:
            for _ in range(6):
                call(rng.choice([child, root]), rng)
        if number % 16 == 0:
            assert verdict.call(CallRequest("llm", estimate=Estimate(1, input_nanos=1)), lambda _: None).admitted

    race(agent)
    root.land(ENOUGH)
    rest = whole(verdict).estimate
    worst = charged(rest.input_nanos / NANOS_PER_USD, rest.input_tokens, rest.max_output_tokens)
    assert verdict.call(CallRequest("llm", estimate=rest), lambda _: None, worst).admitted
    assert root.usage.cost_nanos == spent[0] + dollars(0.1) <= dollars(1)
    assert root.usage.tokens.total == spent[1] + 10_000 <= 100_000
    assert root.usage.steps <= 400
    verdict.close()
    root.close()
    assert account_of(root).reserved == [0] * 7


class Work(RuleBasedStateMachine):
    """Work of every kind beside a verdict that is kept from the start."""

    @initialize(
        cents=st.none() | st.integers(1, 200),
        tokens=st.none() | st.integers(1, 50_000),
        read=st.none() | st.integers(1, 50_000),
        written=st.none() | st.integers(1, 50_000),
        steps=st.none() | st.integers(1, 30),
        landing=st.booleans(),
        shared=st.booleans(),
        share=st.floats(0.01, 0.49),
    )
    def begin(self, landing: bool, shared: bool, share: float, **tops: int | None) -> None:
        names = {"tokens": "max_total_tokens", "read": "max_input_tokens", "written": "max_output_tokens"}
        ceilings: dict[str, Any] = {names[name]: tops[name] for name in names}
        ceilings["max_steps"] = tops["steps"]
        ceilings["max_cost_usd"] = None if tops["cents"] is None else f"{tops['cents'] / 100:.2f}"
        self.clock = TestClock()
        options: Mapping[str, Any] = {"landing": Landing() if landing else None, "verdict": Verdict(share)}
        self.root = gate_with(self.clock, **ceilings, **({} if shared else options))
        self.run = self.root.child(unlimited(deadline="1h", **options), carve=False) if shared else self.root
        self.verdict = keep(self.run)
        self.gates = [self.run, self.root.child(unlimited(), carve=False)] if shared else [self.run]
        self.over: list[ExecutionContext] = []
        self.under_way: list[Demand] = []

    @property
    def ledger(self) -> Any:
        return self.root.ledger

    @rule(
        pick=st.integers(0, 5),
        nanos=st.integers(0, 40),
        tokens=st.integers(0, 5000),
        most=st.integers(0, 5000),
        landing=st.sampled_from(["work", "landing", "then landing"]),
        fails=st.booleans(),
    )
    def admit(self, pick: int, nanos: int, tokens: int, most: int, landing: str, fails: bool) -> None:
        """Try a call somewhere; it stays under way."""
        estimate = Estimate(tokens, most, 1, nanos * CENT, 100)
        request = CallRequest(
            "llm",
            estimate=estimate,
            phase="landing" if landing == "landing" else "work",
            landing=Estimate(10, 100, 1, CENT, 100) if landing == "then landing" else None,
            spends_retry_on_error=fails,
        )
        demand = Demand(account_of(self.gates[pick % len(self.gates)]), request)
        if isinstance(self.ledger.admit(demand, self.clock.monotonic()), Admitted):
            self.under_way.append(demand)

    @rule(pick=st.integers(0, 20), part=st.floats(0, 1), back=st.booleans(), failed=st.booleans())
    def end(self, pick: int, part: float, back: bool, failed: bool) -> None:
        """End a call: it never ran, or it cost at most what was set aside for it."""
        if not self.under_way:
            return
        demand = self.under_way.pop(pick % len(self.under_way))
        if back:
            self.ledger.refund(demand, self.clock.monotonic())
            return
        held = dict(demand.reserved)
        tokens = TokenUsage(int(held.get(INPUT_TOKENS, 0) * part), int(held.get(OUTPUT_TOKENS, 0) * part))
        charge = Charge(tokens, int(held.get(COST, 0) * part))
        self.ledger.settle(demand, charge, failed, self.clock.monotonic())

    @rule(pick=st.integers(0, 5), cents=st.none() | st.integers(1, 300), steps=st.none() | st.integers(1, 40))
    def delegate(self, pick: int, cents: int | None, steps: int | None) -> None:
        """Open a child of the work."""
        limits = unlimited(max_cost_usd=None if cents is None else f"{cents / 100:.2f}", max_steps=steps)
        self.gates.append(self.gates[pick % len(self.gates)].child(limits, carve=(cents or 0) % 3 > 0))

    @rule(pick=st.integers(0, 5))
    def come_home(self, pick: int) -> None:
        """Close a child of the work, or stop it."""
        gate = self.gates[pick % len(self.gates)]
        if gate is not self.run:
            gate.abort("enough") if pick % 2 else gate.close()
            self.gates.remove(gate)
            self.over.append(gate)

    @rule(above=st.booleans())
    def stop(self, above: bool) -> None:
        """End the work here or above."""
        (self.root if above else self.run).land(ENOUGH)

    @rule(seconds=st.integers(1, 1750))
    def wait(self, seconds: int) -> None:
        """Let time go by, but never beyond the deadline."""
        if self.run.deadline is None or self.run.deadline.remaining(self.clock) > timedelta(seconds=seconds):
            self.clock.advance(seconds)

    @rule(part=st.sampled_from([0.1, 0.5]))
    def judge(self, part: float) -> None:
        """Let the judge say something already."""
        request = whole(self.verdict)
        estimate = request.estimate
        small = Estimate(int(estimate.input_tokens * part), 0, 1, int(estimate.input_nanos * part))
        steps = account_of(self.verdict).tops[STEPS]
        if self.is_protected and (steps is None or steps - account_of(self.verdict).settled[STEPS] > 1):
            self.verdict.call(CallRequest("llm", estimate=small), lambda _: None)

    @invariant()
    def the_judge_can_still_speak(self) -> None:
        if self.is_protected:
            ruling = decide(Demand(account_of(self.verdict), whole(self.verdict)), self.clock.monotonic())
            assert isinstance(ruling, Admitted), ruling

    @property
    def is_protected(self) -> bool:
        """Whether there was enough of everything to keep some of it."""
        account = account_of(self.verdict)
        return all(account.tops[count] is not None or not account.has_ceiling(count) for count in range(STEPS + 1))

    @invariant()
    def ceilings_hold(self) -> None:
        for gate in (self.root, self.run, self.verdict):
            account = account_of(gate)
            for count, top in enumerate(account.tops):
                assert top is None or account.settled[count] + account.reserved[count] <= top

    def teardown(self) -> None:
        if not hasattr(self, "verdict"):
            return
        assert not self.is_protected or self.verdict.call(whole(self.verdict), lambda _: None).admitted
        self.ceilings_hold()
        self.verdict.close()
        assert not any(account_of(self.run).verdict_hold)
        for demand in self.under_way:
            self.ledger.settle(demand, Charge(), False, self.clock.monotonic())
        for gate in (*self.over, *self.gates[::-1], self.root):
            gate.close()
        assert account_of(self.root).reserved == [0] * 7


Work.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestWhateverTheWorkDoes = pytest.mark.no_cover(pytest.mark.spec("FR-161")(Work.TestCase))
