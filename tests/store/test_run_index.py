"""The index of a store follows from the files of the runs: damaged or gone it is made anew, and nobody notices."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.store.test_run_store import ended, log, started
from watchkeeper.store.run_index import BUSY_SECONDS
from watchkeeper.store.run_store import RunStore


@pytest.fixture
def indexed(tmp_path: Path) -> tuple[Path, list[str]]:
    """Return a store whose index was written, and the ids of its runs, newest first."""
    ids = [uuid4() for _ in range(40)]
    with RunStore(tmp_path / "store") as store:
        for number, run_id in enumerate(ids):
            store.append(log(run_id, started(later=number), ended(run_id)))
        assert len(store.runs()) == 40
    return store.path, [str(run_id) for run_id in reversed(ids)]


def listed(store: Path) -> list[str]:
    """Return the ids of the runs of a store, as a reader finds them."""
    with RunStore(store, read_only=True) as reader:
        found = [run.run_id for run in reader.runs()]
        assert all(reader.find(run_id).ended_at is not None for run_id in found[:2])
    return found


def is_sound(store: Path) -> bool:
    """Whether the file of the index can be read and has every run."""
    with closing(sqlite3.connect(store / "index.sqlite3")) as connection:
        whole = connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return whole and connection.execute("SELECT count(*) FROM runs").fetchone() == (40,)


def overwritten(index: Path) -> None:
    index.write_bytes(b"x" * 10_000)


def damaged_inside(index: Path) -> None:
    data = bytearray(index.read_bytes())
    assert len(data) > 3 * 4096
    data[2 * 4096 :] = b"\xff" * (len(data) - 2 * 4096)
    index.write_bytes(data)


def other_tables(index: Path) -> None:
    with closing(sqlite3.connect(index)) as connection:
        connection.execute("DROP TABLE runs")
        connection.commit()


def damaged_rows(index: Path) -> None:
    with closing(sqlite3.connect(index)) as connection:
        connection.execute("UPDATE runs SET row = '{\"run_id\": 3'")
        connection.commit()


def cut_off(index: Path) -> None:
    os.truncate(index, 5000)


HARMS = [overwritten, damaged_inside, other_tables, damaged_rows, cut_off, Path.unlink]


@pytest.mark.parametrize("harm", HARMS)
def test_a_reader_makes_a_damaged_index_anew(
    indexed: tuple[Path, list[str]], harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    store, ids = indexed
    harm(store / "index.sqlite3")
    assert listed(store) == ids
    assert is_sound(store)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert listed(store) == ids
    assert caplog.text == "", "the second reader finds nothing to mend"


@pytest.mark.parametrize("harm", [overwritten, damaged_inside, other_tables, damaged_rows])
def test_a_damaged_index_that_cannot_be_replaced_is_left_as_it_is(
    indexed: tuple[Path, list[str]], harm: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder that nobody may write, or while another process makes it anew."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    store, ids = indexed
    harm(store / "index.sqlite3")
    before = (store / "index.sqlite3").read_bytes()
    monkeypatch.setattr(Path, "unlink", refused)
    assert listed(store) == ids
    assert (store / "index.sqlite3").read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="there is no such lock")
def test_one_reader_makes_it_anew_and_others_do_without_meanwhile(indexed: tuple[Path, list[str]]) -> None:
    import fcntl

    store, ids = indexed
    overwritten(store / "index.sqlite3")
    other = os.open(store / "runs", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert listed(store) == ids
    assert (store / "index.sqlite3").read_bytes() == b"x" * 10_000
    os.close(other)
    assert listed(store) == ids
    assert is_sound(store)


def test_a_locked_index_is_no_damaged_one(indexed: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchkeeper.store.run_index.BUSY_SECONDS", BUSY_SECONDS / 50)
    store, ids = indexed
    at = os.stat(store / "index.sqlite3")
    with closing(sqlite3.connect(store / "index.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with RunStore(store) as owner:
            owner.append(log(run_id := uuid4(), started(later=100)))
        assert listed_now(store) == [str(run_id), *ids]
    assert os.path.samestat(os.stat(store / "index.sqlite3"), at)


def listed_now(store: Path) -> list[str]:
    """Return the ids of the runs, also of those that have not ended."""
    with RunStore(store, read_only=True) as reader:
        return [run.run_id for run in reader.runs() if UUID(run.run_id)]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_in_a_folder_that_cannot_be_written_a_reader_has_one_of_its_own(indexed: tuple[Path, list[str]]) -> None:
    store, ids = indexed
    overwritten(store / "index.sqlite3")
    store.chmod(0o500)
    try:
        assert listed(store) == ids
    finally:
        store.chmod(0o700)
