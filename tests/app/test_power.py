"""``durability="power"``: what waits for the record waits for the disk, beside the loop, and many wait together."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.kit import Call, ScriptedModel, agent
from tests.store.test_run_store import START, ended, file_of, log, started
from watchkeeper.accounting.call_request import CallRequest, Estimate
from watchkeeper.accounting.limits import Limits
from watchkeeper.app import recording
from watchkeeper.app.agent import Agent
from watchkeeper.app.run import run
from watchkeeper.blocks.contained import contained
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, StoreError
from watchkeeper.runtime.events import NoticeAppended
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.tool import tool

pytestmark = pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="this system has another call")

ANSWER = '{"total": 1, "note": "done"}'


class Disk:
    """Takes the place of the disk; it knows what it has, and can be slow and fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.has: dict[int, bytes] = {}
        self.calls: Counter[int] = Counter()
        self.folders = 0
        self.failures: float = 0
        self.asked = threading.Event()
        self.works = threading.Event()
        self.works.set()
        self._lock = threading.Lock()
        patch.setattr(os, "fdatasync", self._sync)
        patch.setattr(os, "fsync", self._sync_folder)

    def _sync(self, file: int) -> None:
        at = os.fstat(file)
        content = os.pread(file, at.st_size, 0)
        self.asked.set()
        assert self.works.wait(30)
        with self._lock:
            self.calls[at.st_ino] += 1
            if self.failures > 0:
                self.failures -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.has[at.st_ino] = content

    def _sync_folder(self, _: int) -> None:
        self.folders += 1

    def has_all_of(self, store: Path) -> bool:
        """Whether the files of all runs are on the disk as they are."""
        files = list((store / "runs").iterdir())
        return bool(files) and all(self.has.get(file.stat().st_ino) == file.read_bytes() for file in files)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Return a disk in the place of the real one."""
    return Disk(monkeypatch)


def test_a_write_returns_when_the_disk_has_it_and_the_name_of_its_file(disk: Disk, tmp_path: Path) -> None:
    run_id = uuid4()
    with RunStore(tmp_path / "new" / "runs", durability="power") as store:
        assert disk.folders >= 3, "the folders above the store are on the disk, too"
        before = disk.folders
        store.append(log(run_id, started()))
        assert disk.has_all_of(store.path)
        assert disk.folders == before + 1
        store.append(log(run_id, ended(run_id), first=2))
        assert disk.has_all_of(store.path)
        assert disk.folders == before + 1
        (stored,) = store.runs()
    assert (stored.ended_at is not None, stored.running) == (True, False)


def test_without_it_no_write_waits_for_the_disk(disk: Disk, tmp_path: Path) -> None:
    result = run(agent(), model=ScriptedModel([ANSWER]), store=tmp_path / "runs")
    assert result.ok
    assert (disk.calls, disk.folders) == ({}, 0)


def test_what_did_not_reach_the_disk_is_written_again_and_never_taken_for_written(disk: Disk, tmp_path: Path) -> None:
    """A second call of fdatasync after a failed one would say that all is well: the pages count as clean by then."""
    run_id = uuid4()
    with RunStore(tmp_path / "runs", durability="power") as store:
        store.append(log(run_id, started()))
        file = file_of(store, run_id)
        kept = file.read_bytes()
        disk.failures = 1
        with pytest.raises(StoreError, match="Input/output error"):
            store.append(log(run_id, ended(run_id), first=2))
        assert file.read_bytes() == kept, "nothing of it can be read as if it were on record"
        store.append(log(run_id, ended(run_id), first=2))
        assert disk.has_all_of(store.path)
        assert [event.tag for event in store.events(str(run_id))] == ["run_started", "run_ended"]


def test_a_run_whose_end_did_not_reach_the_disk_stays_that_of_its_process(disk: Disk, tmp_path: Path) -> None:
    """Until its end is written again: else another process could go on with it meanwhile."""
    run_id = uuid4()
    with RunStore(tmp_path / "runs", durability="power") as store:
        store.append(log(run_id, started()))
        disk.failures = 1
        with pytest.raises(StoreError, match="Input/output error"):
            store.append(log(run_id, ended(run_id), first=2))
        assert store.is_owned(str(run_id))
        store.append(log(run_id, ended(run_id), first=2))
        assert not store.is_owned(str(run_id))


def test_what_is_said_about_a_run_that_nobody_works_on_is_numbered_by_what_the_disk_has(
    disk: Disk, tmp_path: Path
) -> None:
    run_id = uuid4()
    with RunStore(tmp_path / "runs") as store:
        store.append(log(run_id, started(), ended(run_id)))
    with RunStore(tmp_path / "runs", durability="power") as store:
        with store.visited(str(run_id)) as add:
            add(NoticeAppended("one", START))
            disk.failures = 1
            with pytest.raises(StoreError, match="Input/output error"):
                add(NoticeAppended("lost", START))
            add(NoticeAppended("two", START))
        assert [event.body.get("text") for event in store.events(str(run_id), 2)] == ["one", "two"]


def test_a_failure_that_the_system_tells_another_thread_counts_for_both(disk: Disk, tmp_path: Path) -> None:
    """The system reports a failure once; whoever wrote to the same file meanwhile may hear that all is well."""
    run_id = uuid4()
    disk.works.clear()
    disk.failures = 1
    failed: list[StoreError] = []
    with RunStore(tmp_path / "runs", durability="process") as store:
        store.durability = "power"  # the store itself was made before the disk got slow

        def write(*batch: Any) -> None:
            try:
                store.append(batch)
            except StoreError as error:
                failed.append(error)

        threads = [threading.Thread(target=write, args=log(run_id, started()))]
        threads[0].start()
        assert disk.asked.wait(30)
        disk.asked.clear()
        threads.append(threading.Thread(target=write, args=log(run_id, ended(run_id), first=2)))
        threads[1].start()
        assert disk.asked.wait(30)
        disk.works.set()
        for thread in threads:
            thread.join(30)
        assert len(failed) == 2
        assert file_of(store, run_id).read_bytes() == b""
        store.append(log(run_id, started(), ended(run_id)))
        assert disk.has_all_of(store.path)
        assert len(list(store.events(str(run_id)))) == 2


def test_the_loop_goes_on_while_the_disk_is_slow_and_those_who_wait_share_its_work(disk: Disk, tmp_path: Path) -> None:
    """Nothing begins that is not on the disk; what 20 runs wait for is one sync of the file of each."""
    asked: list[str] = []

    def answer(request: Any) -> str:
        asked.append(request.transcript[1].text)
        return "done"

    async def carry_out() -> tuple[int, int]:
        tasks = [f"task {number}" for number in range(20)]
        path = tmp_path / "runs"
        agent = Agent(ScriptedModel(answer), "Work.", str)
        with RunStore(path, durability="power") as store:
            disk.works.clear()
            disk.asked.clear()
            disk.calls.clear()
            many = asyncio.ensure_future(agent.arun_many(tasks, store=store, concurrency=20))
            assert await asyncio.to_thread(disk.asked.wait, 30)
            before = len(disk.calls)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not asked, "no model was asked before that was on the disk"
            disk.works.set()
            done = await many
            assert disk.has_all_of(path)
            return before, sum(each.ok for each in done)

    assert asyncio.run(carry_out()) == (0, 20)
    assert len(asked) == 20
    assert len(disk.calls) >= 21
    assert max(disk.calls.values()) <= 5, "no run has waited for each of the others"


def test_a_disk_that_fails_for_a_minute_ends_the_run(disk: Disk, tmp_path: Path) -> None:
    def fill() -> str:
        """Let the disk fail from here on."""
        disk.failures = float("inf")
        return "done"

    clock, called = TestClock(), list[str]()
    works = tool(name="works", description="Works.")(lambda: called.append("works"))
    script: list[Any] = [Call("fill"), Call("works"), ANSWER]
    options: Any = {"store": tmp_path / "runs", "durability": "power", "clock": clock}
    result = run(agent(tool(fill), works), model=ScriptedModel(script), limits=Limits(deadline="10h"), **options)
    assert result.stop is not None
    assert result.stop.reason == "store_failed"
    assert "Input/output error" in result.not_stored
    assert not called
    assert clock.monotonic() >= 60


@pytest.mark.parametrize("returns", [False, True])
def test_a_disk_that_hangs_for_a_minute_ends_the_run_too(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, returns: bool
) -> None:
    """The minute is real time, because no clock of the run moves while its record is waited for."""
    called = list[str]()

    def hang() -> str:
        """Let the disk hang from here on."""
        disk.works.clear()
        monkeypatch.setattr(recording, "DISK_SECONDS", 0.05)
        monkeypatch.setattr(recording, "END_SECONDS", 0.05 if not returns else 30.0)
        monkeypatch.setattr(recording, "HURRIED_SECONDS", 0.05)
        return "done"

    def script(request: Any) -> Any:
        if request.tool_choice != "none":
            return next(calls)
        if returns:
            disk.works.set()
        return ANSWER

    calls = iter([Call("hang"), Call("works")])
    works = tool(name="works", description="Works.")(lambda: called.append("works"))
    options: Any = {"store": tmp_path / "runs", "durability": "power", "clock": TestClock()}
    result = run(agent(tool(hang), works), model=ScriptedModel(script), limits=Limits(deadline="10h"), **options)
    disk.works.set()
    assert result.stop is not None
    assert (result.stop.reason, called) == ("store_failed", [])
    assert "the disk hangs" in result.stop.message
    assert ("the disk hangs" in result.not_stored) is not returns


@pytest.mark.parametrize("choice", ["stop", "go_on"])
def test_a_call_of_the_runs_own_code_does_not_wait_for_ever_for_a_disk_that_hangs(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    """The second one is not waited for at all: the store is given up by then."""
    made, refused = list[str](), list[str]()

    async def ask() -> str:
        """Ask models through a gate of one's own while the disk hangs."""
        disk.works.clear()
        monkeypatch.setattr(recording, "DISK_SECONDS", 0.05)
        try:
            with ExecutionContext(Limits()) as gate:
                for name in ("one", "two"):
                    asked = CallRequest(kind="llm", operation_name=name, model="m", estimate=Estimate(10, 10))
                    try:
                        await asyncio.to_thread(gate.call, asked, lambda _, name=name: made.append(name))
                    except StoreError as error:
                        refused.append(str(error))
                    monkeypatch.setattr(recording, "DISK_SECONDS", 30.0)
                    await asyncio.sleep(0)
        finally:
            disk.works.set()
        return "done"

    options: Any = {"store": tmp_path / "runs", "durability": "power", "on_store_failure": choice}
    result = run(agent(tool(ask)), model=ScriptedModel([Call("ask"), ANSWER]), clock=TestClock(), **options)
    if choice == "go_on":
        assert (result.ok, made, refused, result.not_stored) == (True, ["one", "two"], [], "")
        assert disk.has_all_of(tmp_path / "runs")
        with RunStore(tmp_path / "runs", read_only=True) as store:
            begun = [
                event.body["name"] for event in store.events(str(result.run_id), calls=True) if "worst" in event.body
            ]
        assert begun.count("m") == 2
    else:
        assert result.stop is not None
        assert (result.stop.reason, made, len(refused)) == ("store_failed", [], 1), (
            "the run lands, and no other call begins"
        )
        assert "the disk hangs" in refused[0]


def test_a_run_that_cannot_wait_for_a_disk_that_hangs_says_what_is_not_stored(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(_: Any) -> str:
        disk.works.clear()
        monkeypatch.setattr(recording, "END_SECONDS", 0.05)
        monkeypatch.setattr(recording, "HURRIED_SECONDS", 0.05)
        return ANSWER

    result = run(agent(), model=ScriptedModel(script), store=tmp_path / "runs", durability="power")
    disk.works.set()
    assert "the disk hangs" in result.not_stored


def test_a_run_whose_disk_fails_for_a_moment_is_on_it_as_a_whole(disk: Disk, tmp_path: Path) -> None:
    def fill() -> str:
        """Let the disk fail twice."""
        disk.failures = 2
        return "done"

    options: Any = {"store": tmp_path / "runs", "durability": "power", "clock": TestClock()}
    result = run(agent(tool(fill)), model=ScriptedModel([Call("fill"), ANSWER]), **options)
    assert (result.ok, result.not_stored, disk.failures) == (True, "", 0)
    assert disk.has_all_of(tmp_path / "runs")
    with RunStore(tmp_path / "runs", read_only=True) as store:
        assert [event.tag for event in store.events(str(result.run_id))][-1] == "run_ended"


def test_a_block_is_recorded_on_the_disk_too(disk: Disk, tmp_path: Path) -> None:
    with contained(store=tmp_path / "runs", durability="power"):
        pass
    assert disk.has_all_of(tmp_path / "runs")


def test_a_resumed_run_is_on_the_disk_with_what_was_written_before(disk: Disk, tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(["late"]), "Work.", str, limits=Limits(max_turns=1))
    first = Agent(ScriptedModel([ValueError("down")]), "Work.", str).run("go", store=tmp_path / "runs")
    assert not first.ok
    assert not disk.calls
    options: Any = {"store": tmp_path / "runs", "durability": "power", "fresh_limits": True, "accept_changes": True}
    assert agent.resume(str(first.run_id), **options).output == "late"
    assert disk.has_all_of(tmp_path / "runs")


def test_a_durability_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    wrong: Any = "disk"
    with pytest.raises(ConfigurationError, match="durability='disk' must be 'process' or 'power'"):
        RunStore(tmp_path / "runs", durability=wrong)
    with pytest.raises(ConfigurationError, match="durability='disk' must be 'process' or 'power'"):
        run(agent(), model=ScriptedModel([ANSWER]), store=tmp_path / "runs", durability=wrong)
    with pytest.raises(ConfigurationError, match="durability='disk' must be 'process' or 'power'"):
        contained(durability=wrong)
    assert not (tmp_path / "runs").exists()
    with RunStore(tmp_path / "runs") as store, pytest.raises(ConfigurationError, match="too late for an open store"):
        run(agent(), model=ScriptedModel([ANSWER]), store=store, durability="power")
