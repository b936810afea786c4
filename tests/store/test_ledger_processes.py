"""Ten real processes on one ledger keep one ceiling; the reservations of a killed one are released after its lease."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.containment.gates import until_other_thread
from tests.store.ledger_worker import CENT, context
from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
from watchkeeper.core.usage import Presumed, TokenUsage
from watchkeeper.ledgers.ledger_file import account_reports, settle_by_hand
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.shield.decision import Decision

ROOT = Path(__file__).parents[2]
PROCESSES = 10
LEASE_SECONDS = 1.0


@contextmanager
def worker(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """Start the worker in a process of its own; it is gone in the end, whatever happens."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.store.ledger_worker", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """Wait for the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def race(path: Path, count: int) -> Generator[tuple[subprocess.Popen[str], list[int]]]:
    """Let processes race on one file; yield what they say from then on, and their ids."""
    with worker("race", str(path), str(count)) as racing:
        pids = [json.loads(line_of(racing))["ready"] for _ in range(count)]
        assert len({*pids, racing.pid}) == count + 1
        assert racing.stdin is not None
        racing.stdin.write("go\n")
        racing.stdin.flush()
        try:
            yield racing, pids
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Let ten processes race on one file; return what each of them did."""
    with race(tmp_path_factory.mktemp("race") / "ledger.sqlite3", PROCESSES) as (racing, pids):
        told = [json.loads(line_of(racing)) for _ in pids]
        assert {each["pid"] for each in told} == set(pids)
        return told


def total(raced: list[dict[str, Any]], what: str, name: str) -> int:
    return sum(told[what][name] for told in raced)


@pytest.mark.spec("FR-125")
@pytest.mark.parametrize(("name", "calls"), [("steps", 500), ("one", 1), ("retries", 10)])
def test_ten_processes_execute_exactly_as_many_calls_as_one_ceiling_allows(
    raced: list[dict[str, Any]], name: str, calls: int
) -> None:
    assert total(raced, "ran", name) == calls


@pytest.mark.spec("FR-125")
@pytest.mark.parametrize("name", ["cost", "account"])
def test_ten_processes_never_spend_a_cent_more_than_one_ceiling(raced: list[dict[str, Any]], name: str) -> None:
    spent = total(raced, "spent", name)
    assert spent <= 500 * CENT
    assert spent > 470 * CENT  # and come as near to it as their calls allow


def test_processes_that_are_killed_at_any_moment_leave_a_sound_ledger_to_the_others(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with race(path, 6) as (racing, pids):
        connection = sqlite3.connect(path, timeout=60)
        for doomed, name, steps in zip(pids[:3], ("steps", "cost", "cost"), (150, 5, 15), strict=True):
            until_other_thread(lambda name=name, steps=steps: used(connection, name) >= steps)  # type: ignore[misc]
            os.kill(doomed, signal.SIGKILL)
        survived = [json.loads(line_of(racing)) for _ in pids[3:]]
        assert {each["pid"] for each in survived} == set(pids[3:])
        assert used(connection, "steps") == 500
        assert 0 < total(survived, "ran", "steps") <= 500
        connection.close()
    with SqliteLedger(path) as ledger, context(ledger, "account"):  # books what the killed ones still held
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT * FROM reserved").fetchall() == []
        (spent,) = connection.execute("SELECT cost_nanos FROM settled WHERE name = 'cost'").fetchone()
        connection.close()
        assert 470 * CENT < spent <= 500 * CENT
        assert spent >= billed(path, "cost") >= total(survived, "spent", "cost")


def billed(path: Path, name: str) -> int:
    """Return what the provider billed under a name, to all processes, the killed ones too."""
    lines = map(json.loads, path.with_suffix(".bill").read_text("ascii").splitlines())
    return sum(nanos for to, nanos in lines if to == name)


def used(connection: sqlite3.Connection, name: str) -> int:
    """Return the steps that are booked under a name."""
    row = connection.execute("SELECT steps FROM settled WHERE name = ?", (name,)).fetchone()
    return 0 if row is None else int(row[0])


@pytest.mark.spec("FR-126")
def test_what_a_killed_process_may_have_spent_is_presumed_until_somebody_knows_better(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    dear = CallRequest("llm", "dear", Estimate(input_nanos=400 * CENT))
    with worker("hold", str(path), str(LEASE_SECONDS)) as process, SqliteLedger(path) as ledger:
        assert line_of(process) == "held"
        with context(ledger, "account") as gate:
            small = gate.call(CallRequest("llm", "small", Estimate(input_nanos=100 * CENT)), lambda _: None, free)
            assert small.decision is Decision.ALLOW
            process.kill()
            process.wait()
            # It waits for the three dollars that the dead process holds, no longer than to the end of their lease.
            outcome = gate.call(dear, lambda _: "done")
            assert outcome.stop is not None  # one dollar was spent, and nobody knows what became of the three
            assert outcome.stop.limit == "account_limit"
        (report,) = account_reports(path)
        assert report.month.cost_nanos == 400 * CENT
        assert report.month.presumed == Presumed(1, TokenUsage(), 300 * CENT)
        ((call, operation, cost),) = [(each.id, each.operation, each.cost_nanos) for each in report.presumed]
        assert (operation, cost) == ("held", 300 * CENT)
        settle_by_hand(path, call, 0)
        with context(ledger, "account") as gate:
            assert gate.call(dear, lambda _: "done").value == "done"
            after = gate.call(CallRequest("llm", "cent", Estimate(input_nanos=CENT)), lambda _: None)
            assert after.stop is not None  # the dollar that it had spent stays spent


def free(value: Any, error: BaseException | None, ticket: Any) -> Charge:
    """A meter for a call that cost nothing after all."""
    return Charge()
