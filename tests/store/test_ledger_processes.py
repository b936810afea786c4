"""Ten real processes on one ledger keep one ceiling; one that is killed leaks nothing once its lease is over."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.containment.gates import until_other_thread
from tests.store.ledger_worker import CENT, context
from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
from watchkeeper.shield.decision import Decision
from watchkeeper.store.sqlite_ledger import SqliteLedger

ROOT = Path(__file__).parents[2]
PROCESSES = 10
LEASE_SECONDS = 1.0


@contextmanager
def worker(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """Start a process of the ledger's worker; it is gone in the end, whatever happens."""
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


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Let ten processes race on one file; return what each of them did."""
    path = str(tmp_path_factory.mktemp("race") / "ledger.sqlite3")
    with ExitStack() as stack:
        workers = [stack.enter_context(worker("race", path, str(seed))) for seed in range(PROCESSES)]
        assert [line_of(process) for process in workers] == ["ready"] * PROCESSES
        for process in workers:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [json.loads(line_of(process)) for process in workers]


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
    with ExitStack() as stack:
        workers = [stack.enter_context(worker("race", str(path), str(seed))) for seed in range(6)]
        assert [line_of(process) for process in workers] == ["ready"] * 6
        for process in workers:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        connection = sqlite3.connect(path, timeout=60)
        for doomed, steps in zip(workers[:3], (20, 150, 300), strict=True):
            until_other_thread(lambda steps=steps: used(connection, "steps") >= steps)  # type: ignore[misc]
            doomed.kill()
        survived = [json.loads(line_of(process)) for process in workers[3:]]
        assert used(connection, "steps") == 500
        assert 0 < total(survived, "ran", "steps") <= 500
        (spent,) = connection.execute("SELECT cost_nanos FROM settled WHERE name = 'cost'").fetchone()
        assert 470 * CENT < spent <= 500 * CENT
        assert spent >= total(survived, "spent", "cost")
        connection.close()
    with SqliteLedger(path) as ledger, context(ledger, "account"):
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT * FROM reserved").fetchall() == []
        connection.close()


def used(connection: sqlite3.Connection, name: str) -> int:
    """Return the steps that are booked under a name."""
    row = connection.execute("SELECT steps FROM settled WHERE name = ?", (name,)).fetchone()
    return 0 if row is None else int(row[0])


@pytest.mark.spec("FR-126")
def test_a_process_that_is_killed_leaks_nothing_once_its_lease_is_over(tmp_path: Path) -> None:
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
            assert (outcome.decision, outcome.value) == (Decision.ALLOW, "done")
            after = gate.call(CallRequest("llm", "cent", Estimate(input_nanos=CENT)), lambda _: None)
            assert after.stop is not None  # the dollar that it had spent stays spent
            assert after.stop.limit == "account_limit"


def free(value: Any, error: BaseException | None, ticket: Any) -> Charge:
    """A meter for a call that cost nothing after all."""
    return Charge()
