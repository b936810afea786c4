"""The upkeep of a store: it finds every damage, removes only what is left of crashes, and deletes only what is over."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from tests.store.test_run_store import START, Note, ended, file_of, log, started
from watchkeeper.core.errors import Stop, StoreError
from watchkeeper.store.run_file import is_whole
from watchkeeper.store.run_index import RunIndex
from watchkeeper.store.run_store import RunStore
from watchkeeper.store.upkeep import Pruned, compact, findings, prune

LATER = START + timedelta(days=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """Return a store of its own."""
    with RunStore(tmp_path / "store") as made:
        yield made


def over(store: RunStore, *notes: str) -> UUID:
    """Put a run on record that has ended."""
    run_id = uuid4()
    store.append(log(run_id, started(), *map(Note, notes), ended(run_id)))
    return run_id


def died(store: RunStore, *events: object) -> UUID:
    """Put a run on record whose process has died."""
    run_id = uuid4()
    with RunStore(store.path) as other:
        other.append(log(run_id, *events))
    return run_id


def found(store: RunStore) -> list[tuple[str, bool, str]]:
    """Return what is not as it should be: the run, whether it is damaged, and the words."""
    return [(each.name.removesuffix(".jsonl"), each.damaged, each.what) for each in findings(store.path)]


@pytest.mark.spec("FR-190")
def test_every_damaged_byte_of_a_line_is_found(store: RunStore) -> None:
    run_id = over(store, "one")
    file = file_of(store, run_id)
    whole = file.read_bytes()
    assert found(store) == []
    for place in range(0, len(whole) - 1, 17):
        changed = bytearray(whole)
        changed[place] ^= 0x01
        file.write_bytes(changed)
        ((name, damaged, _),) = found(store)
        assert (name, damaged) == (str(run_id), True), place


def test_lines_that_are_missing_are_found(store: RunStore) -> None:
    file = file_of(store, over(store, "one", "two"))
    lines = file.read_bytes().splitlines(keepends=True)
    for place in range(1, len(lines) - 1):
        file.write_bytes(b"".join(lines[:place] + lines[place + 1 :]))
        assert [damaged for _, damaged, _ in found(store)] == [True]


@pytest.mark.spec("FR-190")
def test_what_a_crash_leaves_behind_is_no_damage_and_is_removed(store: RunStore) -> None:
    run_id = died(store, started(), Note("one"))
    file = file_of(store, run_id)
    whole = file.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for cut in range(1, len(last)):
        file.write_bytes(whole + last[:cut])
        assert [(name, damaged) for name, damaged, _ in found(store)] == [(str(run_id), False)]
        assert [each.size for each in compact(store.path)] == [cut]
        assert file.read_bytes() == whole
    assert found(store) == []
    assert list(compact(store.path)) == []


def test_a_file_in_which_nothing_had_begun_is_removed_once_it_is_old(store: RunStore) -> None:
    file = file_of(store, died(store, Note("first")))
    assert [(damaged, what) for _, damaged, what in found(store)] == [
        (False, "its process died before the run had begun")
    ]
    assert list(compact(store.path)) == []  # a process may be about to take it
    os.utime(file, (0, 0))
    assert [each.name for each in compact(store.path)] == [file.name]
    assert not file.exists()


def test_nothing_is_removed_of_runs_that_go_on_or_are_damaged(store: RunStore) -> None:
    run_id = uuid4()
    store.append(log(run_id, started(), Note("one")))
    going_on, harmed = file_of(store, run_id), file_of(store, over(store))
    with going_on.open("ab") as file:
        file.write(b'{"seq":3,')
    harmed.write_bytes(harmed.read_bytes().replace(b"ns/key", b"ms/key", 1))
    before = going_on.read_bytes(), harmed.read_bytes()
    assert [damaged for _, damaged, _ in found(store)] == [True]
    assert list(compact(store.path)) == []
    assert (going_on.read_bytes(), harmed.read_bytes()) == before


def test_what_a_failed_write_left_half_is_cut_off_before_the_next(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that failed, and could not be cut off at once, spoils no later line."""
    run_id, write = uuid4(), os.write
    store.append(log(run_id, started()))

    def half(file: int, data: bytes) -> int:
        write(file, data[: len(data) // 2])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def are_whole() -> bool:
        return all(map(is_whole, file_of(store, run_id).read_bytes().splitlines(keepends=True)))

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", half)
        broken.setattr(os, "ftruncate", fails)
        with pytest.raises(StoreError, match=os.strerror(errno.EIO)):
            store.append(log(run_id, Note("one"), first=2))
    assert not are_whole()
    store.append(log(run_id, Note("one"), first=2))
    assert are_whole()
    assert [event.seq for event in store.events(str(run_id))] == [1, 2]


@pytest.mark.spec("FR-190")
def test_runs_that_ended_before_the_time_are_deleted_with_those_below_them(store: RunStore) -> None:
    old, child, grandchild = uuid4(), uuid4(), uuid4()
    store.append(log(old, started()))
    store.append(log(child, started("a", old), ended(child)))
    store.append(log(grandchild, started(None, child)))
    store.append(log(old, ended(old), first=2))
    new = uuid4()
    store.append(log(new, started(), replace(ended(new), ended_at=LATER)))
    dead = died(store, started())
    running = uuid4()
    store.append(log(running, started()))
    assert prune(store.path, LATER) == Pruned(0, 0, 0, kept=3)  # the run below it goes on
    store.append(log(grandchild, ended(grandchild), first=2))
    size = sum(file_of(store, each).stat().st_size for each in (old, child, grandchild))
    assert prune(store.path, START) == Pruned(0, 0, 0, kept=0)
    would = prune(store.path, LATER, dry_run=True)
    assert would == Pruned(1, 2, size, kept=3)
    assert len(list((store.path / "runs").iterdir())) == 6
    assert prune(store.path, LATER) == would
    assert {run.run_id for run in store.runs()} == set(map(str, (new, dead, running)))
    assert len(list((store.path / "runs").iterdir())) == 3
    assert prune(store.path, LATER) == Pruned(0, 0, 0, kept=3)


def test_a_run_that_waits_for_an_answer_is_not_deleted(store: RunStore) -> None:
    run_id = uuid4()
    store.append(log(run_id, started(), ended(run_id, Stop("parked", "caller", "It waits."))))
    assert prune(store.path, LATER) == Pruned(0, 0, 0, kept=1)
    assert file_of(store, run_id).exists()


@pytest.mark.parametrize(("whole", "changed"), [(b"ns/key", b"ms/key"), (b"in the middle", b"in the muddle")])
def test_a_damaged_run_is_not_deleted(store: RunStore, whole: bytes, changed: bytes) -> None:
    file = file_of(store, over(store, "in the middle"))
    assert whole in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(whole, changed, 1))
    assert prune(store.path, LATER) == Pruned(0, 0, 0, kept=1)
    assert file.exists()


@pytest.mark.parametrize("harm", ["lost", "no database", "cut", "of other rows"])
def test_the_index_is_made_anew(store: RunStore, harm: str) -> None:
    ids = {str(over(store)) for _ in range(3)}
    assert {run.run_id for run in store.runs()} == ids
    store.close()
    index = store.path / "index.sqlite3"
    match harm:
        case "lost":
            index.unlink()
        case "no database":
            index.write_bytes(b"x" * 10_000)
        case "cut":
            os.truncate(index, index.stat().st_size // 2)
        case _:
            import sqlite3

            with sqlite3.connect(index) as connection:
                connection.execute("UPDATE runs SET row = '{}'")
            connection.close()
    made = RunIndex(store.path)
    assert made.renew() == 3
    made.close()
    with RunStore(store.path, read_only=True) as reader:
        assert {run.run_id for run in reader.runs()} == ids
        assert all(run.damage is None for run in reader.runs())


def test_a_store_is_looked_after_where_there_are_no_locks(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchkeeper.store.run_file.fcntl", None)
    file = file_of(store, over(store))
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"seq":')
    assert [each.size for each in compact(store.path)] == [7]
    assert file.read_bytes() == whole
    assert prune(store.path, LATER) == Pruned(1, 0, len(whole), kept=0)
    assert not file.exists()


def test_one_file_that_cannot_be_deleted_keeps_no_other_run(store: RunStore) -> None:
    first, second = over(store), over(store)
    runs = store.path / "runs"
    (runs / f"{first}.log").mkdir()
    kept = [runs / f"{second}.jsonl.bak", runs / f"{second}-notes"]
    for path in kept:
        path.write_text("mine")
    with pytest.raises(OSError, match=str(first)):
        prune(store.path, LATER)
    assert not (runs / f"{second}.jsonl").exists()
    assert all(path.exists() for path in kept)


def test_every_file_of_a_store_is_private(store: RunStore) -> None:
    over(store)
    assert store.runs()
    modes = {path.name: path.stat().st_mode & 0o777 for path in store.path.rglob("*") if path.is_file()}
    assert set(modes.values()) == {0o600}, modes
