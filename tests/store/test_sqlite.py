"""The file of a ledger and the folder of a store: their places and modes, and that what is unusable is not changed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock
from uuid import UUID

import pytest

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import StoreError
from watchkeeper.disk.sqlite import Schema
from watchkeeper.ledgers import ledger_file
from watchkeeper.ledgers.ledger_file import ledger_path
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.session.log import Envelope, SessionReset
from watchkeeper.store.items import Item
from watchkeeper.store.run_store import RunStore, store_path

Opener = Callable[[Path], object]


def read(path: Path) -> None:
    """Open a run store for reading, and close it."""
    RunStore(path, read_only=True).close()


def write(path: Path) -> None:
    """Open a run store for writing, and close it."""
    RunStore(path).close()


def write_ledger(path: Path) -> None:
    """Open a ledger, and close it."""
    SqliteLedger(path).shutdown()


OPENERS = pytest.mark.parametrize("opener", [write_ledger])
KINDS = pytest.mark.parametrize(
    ("make", "schema", "tables"),
    [
        (write_ledger, ledger_file.SCHEMA, ["calls", "holders", "openings", "reserved", "settled"]),
    ],
    ids=["ledger"],
)


def found_in(path: Path, query: str) -> list[object]:
    """Look into a file with other eyes."""
    with closing(sqlite3.connect(path)) as connection:
        return [value for (value,) in connection.execute(query).fetchall()]


@pytest.mark.spec("FR-075")
def test_the_users_own_files_lie_in_the_data_folder(user_folders: Path) -> None:
    assert store_path("default", {}) == user_folders / "data" / "watchkeeper" / "runs.store"
    assert ledger_path("default", {}) == user_folders / "data" / "watchkeeper" / "ledger.sqlite3"


def test_a_ledger_without_a_place_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a path or 'default', not None"):
        ledger_path(cast("Any", None))


@pytest.mark.parametrize(
    ("path_of", "variable"), [(store_path, "WATCHKEEPER_STORE"), (ledger_path, "WATCHKEEPER_LEDGER")]
)
def test_the_environment_moves_the_users_own_file(
    path_of: Callable[..., Path | None], variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert path_of("default", {variable: str(tmp_path / "x")}) == tmp_path / "x"
    assert path_of("default", {variable: "~/x.db"}) == Path.home() / "x.db"
    assert path_of("other.db", {variable: str(tmp_path / "x")}) == Path("other.db")
    assert path_of(tmp_path, {variable: "x.db"}) == tmp_path
    monkeypatch.setenv(variable, "here.db")
    assert path_of("default") == Path("here.db")


@pytest.mark.parametrize("where", [None, "none", "off", " None "])
def test_none_means_no_store(where: str | None) -> None:
    assert store_path(where) is None
    assert store_path("default", {"WATCHKEEPER_STORE": "none"}) is None


def test_a_tilde_is_the_home_folder(user_folders: Path) -> None:
    assert store_path("~/x.db") == user_folders / "x.db"
    assert store_path(Path("none")) == Path("none")


@KINDS
def test_a_new_file_is_made_with_its_folders(make: Opener, schema: Schema, tables: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.db"
    make(path)
    assert found_in(path, "PRAGMA journal_mode") == ["wal"]
    assert found_in(path, "PRAGMA application_id") == [schema.application_id]
    assert found_in(path, "PRAGMA user_version") == [schema.version]
    make(path)
    assert found_in(path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name") == tables


@KINDS
def test_an_empty_file_is_taken_for_a_new_one(make: Opener, schema: Schema, tables: list[str], tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    make(path)
    assert set(tables) <= set(found_in(path, "SELECT name FROM sqlite_master"))


def places(tmp_path: Path) -> dict[str, Path]:
    """Return places that can hold no file, whoever asks: nothing here depends on permissions, which root has."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "text").write_text("hello " * 1000, encoding="utf-8")
    return {
        "a folder": tmp_path,
        "under a file": tmp_path / "file" / "runs.db",
        "a text": tmp_path / "text",
    }


@pytest.mark.parametrize("place", ["a folder", "under a file", "a text"])
@pytest.mark.parametrize(
    ("make", "ways_out"),
    [(write, ("--store", "WATCHKEEPER_STORE", "--store none")), (write_ledger, ("calls that it counts are refused",))],
    ids=["store", "ledger"],
)
def test_a_place_that_cannot_hold_a_file_is_refused_with_the_ways_out(
    place: str, make: Opener, ways_out: tuple[str, ...], tmp_path: Path
) -> None:
    path = places(tmp_path)[place]
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError) as caught:
        make(path)
    for part in (str(path), *ways_out):
        assert part in str(caught.value)
    assert any(
        said in str(caught.value) for said in ("cannot be used", "is not a store", "is a file and not the folder")
    )
    if before is not None:
        assert path.read_bytes() == before


@pytest.mark.parametrize("device", ["/dev/full", "/proc/store/runs.db"])
@pytest.mark.parametrize("make", [write, write_ledger])
@pytest.mark.skipif(sys.platform != "linux", reason="places of Linux")
def test_a_place_that_nobody_can_write_is_refused(device: str, make: Opener) -> None:
    with pytest.raises(StoreError, match="cannot be used"):
        make(Path(device))


@pytest.mark.parametrize("place", ["under a file", "missing"])
def test_reading_where_no_store_is_says_so_and_makes_none(place: str, tmp_path: Path) -> None:
    path = {**places(tmp_path), "missing": tmp_path / "missing.db"}[place]
    with pytest.raises(StoreError, match=r"there is no store .* a run makes it \('watchkeeper run'\)"):
        read(path)
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize("place", ["a folder", "a text"])
@pytest.mark.parametrize("opener", [read, write])
def test_what_is_no_store_is_refused_and_left_as_it_is(place: str, opener: Opener, tmp_path: Path) -> None:
    path = places(tmp_path)[place]
    before = sorted(each.name for each in tmp_path.iterdir())
    with pytest.raises(StoreError, match=r"not (the folder of )?a store|cannot be used"):
        opener(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == before


@pytest.mark.parametrize("opener", [read, write])
def test_a_store_of_another_layout_is_refused_with_both(opener: Opener, tmp_path: Path) -> None:
    write(tmp_path / "store")
    (tmp_path / "store" / "watchkeeper-store").write_text("9\n")
    with pytest.raises(StoreError, match="has the layout '9', this Watchkeeper writes 1"):
        opener(tmp_path / "store")


def test_the_file_of_an_older_store_means_the_folder_beside_it(tmp_path: Path) -> None:
    older = tmp_path / "runs.sqlite3"
    with closing(sqlite3.connect(older)) as connection:
        connection.execute("CREATE TABLE runs (run_id TEXT)")
    before = older.read_bytes()
    assert store_path(older) == tmp_path / "runs.store"
    with RunStore(older) as store:
        assert store.path == tmp_path / "runs.store"
        assert store.runs() == ()
    assert older.read_bytes() == before


@pytest.mark.spec("FR-127")
@OPENERS
@pytest.mark.parametrize("version", [0, 1])
def test_a_file_of_another_program_is_refused_and_left_as_it_is(opener: Opener, version: int, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
        other.execute(f"PRAGMA user_version={version}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is not the file of a ledger but of another program; name another file"):
        opener(path)
    assert path.read_bytes() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["other.db"]


@OPENERS
@pytest.mark.parametrize("version", [0, 3, 99])
def test_another_schema_version_is_refused_with_both(opener: Opener, version: int, tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    write_ledger(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    before = path.read_bytes()
    writes = ledger_file.SCHEMA.version
    with pytest.raises(StoreError, match=rf"schema version {version}, this Watchkeeper writes version {writes}"):
        opener(path)
    assert path.read_bytes() == before


def test_reading_changes_no_run(tmp_path: Path) -> None:
    write(tmp_path / "store")
    with RunStore(tmp_path / "store", read_only=True) as reader:
        assert reader.runs() == ()
    assert list((tmp_path / "store" / "runs").iterdir()) == []


@pytest.mark.spec("FR-113")
@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_store_is_refused_for_writing_and_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write(path)
    for folder in (path / "runs", path):
        folder.chmod(0o555)
    try:
        with pytest.raises(StoreError, match="cannot be used"):
            write(path)
        read(path)
    finally:
        for folder in (path, path / "runs"):
            folder.chmod(0o755)


def test_many_processes_may_make_the_same_file_at_once(tmp_path: Path) -> None:
    """They start together, at a sign on their input; only the module that opens files is imported."""
    path = tmp_path / "shared.db"
    code = (
        "import sys; from pathlib import Path; from watchkeeper.disk.sqlite import Schema, connect;"
        "schema = Schema('store', 7, 1, ('CREATE TABLE runs (run_id TEXT)',), '');"
        "print('ready', flush=True); sys.stdin.readline(); connect(Path(sys.argv[1]), schema, 30.0).close()"
    )
    start = partial(
        subprocess.Popen[str],
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started = [start() for _ in range(6)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[1] for process in started]
    assert said == [""] * len(said)
    assert found_in(path, "SELECT name FROM sqlite_master") == ["runs"]


def modes(folder: Path) -> dict[str, str]:
    """Return the mode of everything in a folder, by name."""
    return {file.name: f"{file.stat().st_mode & 0o777:o}" for file in folder.iterdir()}


def open_ledger(path: Path) -> Callable[[], object]:
    """Open a ledger; return what closes it."""
    return SqliteLedger(path).shutdown


FILES = [pytest.param(open_ledger, id="ledger")]


@pytest.fixture
def everybody_may_read() -> Iterator[None]:
    """Set the process's mask to what most systems have."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="there are no devices")
@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
@pytest.mark.parametrize("opened", FILES)
def test_the_mode_of_a_device_stays(
    monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], Callable[[], object]], device: str
) -> None:
    """It is everybody's; root could change it."""
    changed = Mock()
    monkeypatch.setattr(os, "chmod", changed)
    with suppress(StoreError, OSError, sqlite3.Error):
        opened(Path(device))()
    changed.assert_not_called()


@pytest.mark.skipif(os.name == "nt", reason="there are no modes")
@pytest.mark.usefixtures("everybody_may_read")
@pytest.mark.parametrize("opened", FILES)
def test_files_and_the_folders_made_for_them_are_the_users_alone(
    tmp_path: Path, opened: Callable[[Path], Callable[[], object]]
) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "a" / "b" / "file.db"
    close = opened(path)
    assert modes(tmp_path) == {"a": "700"}
    assert modes(tmp_path / "a") == {"b": "700"}
    assert modes(path.parent) == {"file.db": "600", "file.db-wal": "600", "file.db-shm": "600"}
    close()
    assert f"{tmp_path.stat().st_mode & 0o777:o}" == "755"


@pytest.mark.skipif(os.name == "nt", reason="there are no modes")
@pytest.mark.parametrize("opened", FILES)
@pytest.mark.parametrize(("before", "after"), [(0o644, "600"), (0o664, "600"), (0o660, "660"), (0o600, "600")])
def test_an_older_file_that_everybody_may_read_becomes_the_users_alone(
    tmp_path: Path, opened: Callable[[Path], Callable[[], object]], before: int, after: str
) -> None:
    path = tmp_path / "file.db"
    opened(path)()
    path.chmod(before)
    close = opened(path)
    assert set(modes(tmp_path).values()) == {after}
    close()


@pytest.mark.skipif(os.name == "nt", reason="there are no modes")
@pytest.mark.parametrize("opened", FILES)
def test_an_older_file_that_a_symbolic_link_names_becomes_the_users_alone_with_its_side_files(
    tmp_path: Path, opened: Callable[[Path], Callable[[], object]]
) -> None:
    (tmp_path / "data").mkdir()
    target = tmp_path / "data" / "file.db"
    opened(target)()
    target.chmod(0o644)
    (tmp_path / "link").symlink_to(target)
    close = opened(tmp_path / "link")
    assert modes(target.parent) == {"file.db": "600", "file.db-wal": "600", "file.db-shm": "600"}
    close()


@pytest.mark.skipif(os.name == "nt", reason="there are no modes")
def test_the_file_of_another_program_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
    path.chmod(0o644)
    with pytest.raises(StoreError, match="another program"):
        write_ledger(path)
    assert modes(tmp_path) == {"other.db": "644"}


@pytest.mark.skipif(os.name == "nt", reason="there are no modes")
@pytest.mark.usefixtures("everybody_may_read")
def test_a_store_and_the_folders_made_for_it_are_the_users_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "a" / "store"
    with RunStore(path) as store:
        store.append([Item(UUID(int=7), Envelope(1, SYSTEM_CLOCK.now(), SessionReset()))])
        store.runs()
        assert modes(tmp_path) == {"a": "700"}
        assert modes(tmp_path / "a") == {"store": "700"}
        assert modes(path)["runs"] == "700"
        assert set(modes(path / "runs").values()) == {"600"}
        assert {mode for name, mode in modes(path).items() if name.startswith("index")} == {"600"}
