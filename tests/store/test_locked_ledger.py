"""A ledger's file that another process holds locked: no event loop is held up, and nothing is lost or spent twice."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.containment.gates import until_other_thread
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, TestClock
from watchkeeper.core.errors import StoreError
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.shield.decision import ChainMetadata, Decision

PATIENT = 60.0
NOON = datetime(2026, 3, 31, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a ledger is that was opened before."""
    SqliteLedger(tmp_path / "ledger.sqlite3").shutdown()
    return tmp_path / "ledger.sqlite3"


@contextmanager
def held(path: Path) -> Generator[None]:
    """Hold the file locked, as another process would."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
    finally:
        other.close()


def gate(ledger: SqliteLedger, timeout_ms: int = 0, clock: Clock = SYSTEM_CLOCK) -> ExecutionContext:
    """Open a gate whose steps are counted in the file."""
    config = ExecutionConfig(max_cost_usd=5, max_steps=2, max_retries_total=10, timeout_ms=timeout_ms)
    return ExecutionContext(config, metadata=ChainMetadata("r", "job"), ledger=ledger, clock=clock, parent=None)


async def row() -> str:
    return "row"


async def turns() -> None:
    """Let others run on this loop."""
    for _ in range(5):
        await asyncio.sleep(0)


def read(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as reader:
        return reader.execute(query).fetchall()


def steps(path: Path) -> object:
    return read(path, "SELECT coalesce(sum(steps), 0) FROM settled")[0][0]


class TestOnALoop:
    async def test_a_call_waits_without_holding_up_the_loop(self, path: Path) -> None:
        with SqliteLedger(path, busy_seconds=PATIENT) as ledger, gate(ledger) as context:
            began = time.monotonic()
            with held(path):
                calls = [asyncio.create_task(context.acall_tool(row)) for _ in range(3)]
                await turns()
                assert not any(call.done() for call in calls)
                assert time.monotonic() - began < PATIENT / 2
            outcomes = await asyncio.gather(*calls)
            assert sorted(str(outcome.decision) for outcome in outcomes) == ["ALLOW", "ALLOW", "HALT"]
        assert steps(path) == 2

    async def test_a_call_waits_no_longer_than_its_deadline(self, path: Path) -> None:
        clock = TestClock(NOON)
        with SqliteLedger(path, busy_seconds=PATIENT, clock=clock) as ledger, gate(ledger, 1000, clock) as context:
            with held(path):
                call = asyncio.create_task(context.acall_tool(row))
                await turns()
                clock.advance(2.0)
                outcome = await call
            assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "timeout")
        assert steps(path) == 0

    async def test_an_abort_ends_the_wait(self, path: Path) -> None:
        with SqliteLedger(path, busy_seconds=PATIENT) as ledger, gate(ledger) as context:
            with held(path):
                call = asyncio.create_task(context.acall_tool(row))
                await turns()
                context.abort("enough")
                outcome = await call
            assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "aborted")

    async def test_a_cancelled_call_leaves_nothing(self, path: Path) -> None:
        with SqliteLedger(path, busy_seconds=PATIENT) as ledger, gate(ledger) as context:
            with held(path):
                call = asyncio.create_task(context.acall_tool(row))
                await turns()
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            assert not ledger.waits_for_file
        assert steps(path) == 0

    async def test_a_file_that_is_locked_for_too_long_refuses(self, path: Path) -> None:
        with SqliteLedger(path, busy_seconds=0.2) as ledger, gate(ledger) as context:
            with held(path), pytest.raises(StoreError, match="locked"):
                await context.acall_tool(row)
            assert (await context.acall_tool(row)).decision is Decision.ALLOW

    async def test_those_who_wait_are_told_of_a_shutdown(self, path: Path) -> None:
        ledger = SqliteLedger(path, busy_seconds=0.2)
        context = gate(ledger)
        with held(path):
            call = asyncio.create_task(context.acall_tool(row))
            await turns()
            ledger.shutdown()
            with pytest.raises(StoreError, match="shut down"):
                await call
        context.close()

    async def test_a_call_ends_while_the_file_is_locked_and_is_booked_afterwards(self, path: Path) -> None:
        async def locked() -> None:
            holding.__enter__()

        holding = held(path)
        with SqliteLedger(path, busy_seconds=PATIENT) as ledger, gate(ledger) as context:
            began = time.monotonic()
            assert (await context.acall_tool(locked)).decision is Decision.ALLOW
            assert time.monotonic() - began < PATIENT / 2
            holding.__exit__(None, None, None)
            assert (await context.acall_tool(row)).decision is Decision.ALLOW
            assert (await context.acall_tool(row)).decision is Decision.HALT

    async def test_a_ledger_and_a_context_are_opened_while_the_file_is_locked(self, path: Path) -> None:
        began = time.monotonic()
        holding = held(path)
        holding.__enter__()
        with SqliteLedger(path, busy_seconds=PATIENT) as ledger, gate(ledger) as context:
            call = asyncio.create_task(context.acall_tool(row))
            await turns()
            assert time.monotonic() - began < PATIENT / 2
            holding.__exit__(None, None, None)
            assert (await call).decision is Decision.ALLOW
            with SqliteLedger(path) as other, gate(other) as theirs:
                assert [(await theirs.acall_tool(row)).decision for _ in range(2)] == [Decision.ALLOW, Decision.HALT]


def test_a_plain_call_waits_no_longer_than_its_deadline(path: Path) -> None:
    with SqliteLedger(path, busy_seconds=PATIENT) as ledger, gate(ledger, timeout_ms=100) as context:
        with held(path):
            outcome = context.call_tool(lambda: "row")
        assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "timeout")


def test_what_a_brief_lock_kept_in_memory_is_written_soon_after(path: Path) -> None:
    with SqliteLedger(path, busy_seconds=PATIENT, lease_seconds=3600) as ledger, gate(ledger) as context:
        holding = held(path)
        context.call_llm(holding.__enter__, WrapOptions(cost_estimate_hint=0.5))
        assert read(path, "SELECT cost_nanos FROM reserved") == [(500_000_000,)]
        holding.__exit__(None, None, None)
        until_other_thread(lambda: read(path, "SELECT cost_nanos FROM settled") == [(500_000_000,)])
        assert read(path, "SELECT * FROM reserved") == []
