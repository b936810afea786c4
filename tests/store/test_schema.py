"""The store's file: where it is, whose it is, and that what cannot be used is refused and left as it is."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from watchkeeper.core.errors import StoreError
from watchkeeper.store.run_store import APPLICATION_ID, SCHEMA_VERSION, connect, connect_to_read, store_path

OPENERS = pytest.mark.parametrize("opener", [connect, connect_to_read])


@pytest.mark.spec("FR-075")
def test_the_users_own_store_lies_in_the_data_folder(user_folders: Path) -> None:
    assert store_path("default", {}) == user_folders / "data" / "watchkeeper" / "runs.sqlite3"


def test_the_environment_moves_the_users_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_path("default", {"WATCHKEEPER_STORE": str(tmp_path / "x")}) == tmp_path / "x"
    assert store_path("default", {"WATCHKEEPER_STORE": "none"}) is None
    assert store_path("other.db", {"WATCHKEEPER_STORE": str(tmp_path / "x")}) == Path("other.db")
    monkeypatch.setenv("WATCHKEEPER_STORE", "here.db")
    assert store_path("default") == Path("here.db")


@pytest.mark.parametrize("where", [None, "none", "off", " None "])
def test_none_means_no_store(where: str | None) -> None:
    assert store_path(where) is None


def test_a_tilde_is_the_home_folder(user_folders: Path) -> None:
    assert store_path("~/x.db") == user_folders / "x.db"
    assert store_path(Path("none")) == Path("none")


def test_a_new_file_is_made_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "runs.db"
    with closing(connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    with closing(connect(path)) as connection, closing(connect_to_read(path)) as reader:
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        for each in (connection, reader):
            assert each.execute(tables).fetchall() == [("events",), ("runs",)]


def test_an_empty_file_is_taken_for_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    with pytest.raises(StoreError, match="is an empty file"):
        connect_to_read(path)
    connect(path).close()
    connect_to_read(path).close()


def places(tmp_path: Path) -> dict[str, Path]:
    """Return places that are no store, whoever asks: nothing here depends on permissions, which root has."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "text").write_text("hello " * 1000, encoding="utf-8")
    return {
        "a folder": tmp_path,
        "under a file": tmp_path / "file" / "runs.db",
        "not SQLite": tmp_path / "text",
    }


@pytest.mark.parametrize("place", ["a folder", "under a file", "not SQLite"])
def test_a_place_that_cannot_hold_a_store_is_refused_with_the_ways_out(place: str, tmp_path: Path) -> None:
    path = places(tmp_path)[place]
    with pytest.raises(StoreError) as caught:
        connect(path)
    for part in (str(path), "cannot be used", "--store", "WATCHKEEPER_STORE", "--store none"):
        assert part in str(caught.value)


@pytest.mark.parametrize("device", ["/dev/full", "/proc/store/runs.db"])
@pytest.mark.skipif(sys.platform != "linux", reason="places of Linux")
def test_a_place_that_nobody_can_write_is_refused(device: str) -> None:
    with pytest.raises(StoreError, match="cannot be used"):
        connect(Path(device))


@pytest.mark.parametrize("place", ["a folder", "under a file", "missing"])
def test_reading_where_no_file_is_says_so_and_makes_none(place: str, tmp_path: Path) -> None:
    path = {**places(tmp_path), "missing": tmp_path / "missing.db"}[place]
    with pytest.raises(StoreError, match=r"there is no store .* 'watchkeeper run' makes it"):
        connect_to_read(path)
    assert not (tmp_path / "missing.db").exists()


def test_reading_a_file_that_is_not_sqlite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read: file is not a database"):
        connect_to_read(places(tmp_path)["not SQLite"])


@OPENERS
def test_a_file_of_another_program_is_refused_and_left_as_it_is(opener: object, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
        other.commit()
    before = path.read_bytes()
    assert callable(opener)
    with pytest.raises(StoreError, match="of another program"):
        opener(path)
    assert path.read_bytes() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["other.db"]


@OPENERS
@pytest.mark.parametrize("version", [0, 2, 99])
def test_a_store_of_another_schema_version_is_refused_with_both(opener: object, version: int, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    assert callable(opener)
    with pytest.raises(StoreError, match=rf"schema version {version}, this Watchkeeper writes version 1"):
        opener(path)


def test_reading_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    connect(path).close()
    before = path.read_bytes()
    with closing(connect_to_read(path)) as reader, pytest.raises(sqlite3.OperationalError):
        reader.execute("DELETE FROM runs")
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_shared_is_read_as_one_that_nobody_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that cannot be written SQLite cannot make the file through which readers share a WAL."""
    path = tmp_path / "runs.db"
    connect(path).close()
    plain, asked = sqlite3.connect, list[str]()

    def connect_where_nothing_can_be_made(address: str, **options: object) -> sqlite3.Connection:
        asked.append(address)
        if "immutable" not in address:
            raise sqlite3.OperationalError("unable to open database file")
        return plain(address, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", connect_where_nothing_can_be_made)
    with closing(connect_to_read(path)) as reader:
        assert reader.execute("SELECT count(*) FROM runs").fetchone() == (0,)
    assert len(asked) == 2


@pytest.mark.spec("FR-113")
@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_store_is_refused_for_writing_and_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    connect(path).close()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(StoreError, match="cannot be used"):
            connect(path)
        connect_to_read(path).close()
    finally:
        tmp_path.chmod(0o755)


def test_many_processes_may_make_the_same_file_at_once(tmp_path: Path) -> None:
    """They start together, at a sign on their input."""
    path = tmp_path / "runs.db"
    code = (
        "import sys; from pathlib import Path; from watchkeeper.store.run_store import connect;"
        "print('ready', flush=True); sys.stdin.readline(); connect(Path(sys.argv[1])).close()"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[1] for process in started]
    assert said == [""] * len(said)
    connect_to_read(path).close()
