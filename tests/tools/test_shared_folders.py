"""A folder that others change too: commits at the same time, roll-backs on a full disk, odd names, moved folders."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystem import Entry, Filesystem
from watchkeeper.tools.filesystems import HostFilesystem, MemoryFilesystem, OverlayFilesystem

POSIX = pytest.mark.skipif(os.name != "posix", reason="these names and folders exist on POSIX systems only")


@pytest.mark.spec("FR-112")
def test_of_two_commits_to_one_folder_through_two_ports_one_is_refused(tmp_path: Path) -> None:
    kept: list[int] = []
    start = threading.Barrier(2)

    def commit(number: int) -> None:
        files = OverlayFilesystem(HostFilesystem(tmp_path))
        for index in range(20):
            files.write_text(f"{number}/{index}", "new")
        files.write_text("shared", str(number))
        start.wait()
        try:
            files.commit()
        except FilesystemError:
            return
        kept.append(number)

    for _ in range(5):
        (tmp_path / "shared").write_text("before")
        kept.clear()
        threads = [threading.Thread(target=commit, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [str(number) for number in kept] == [(tmp_path / "shared").read_text()]


class Meddled(HostFilesystem):
    """Another program writes to the second file when the first one has been written."""

    def write_bytes(self, path: str, data: bytes) -> None:
        super().write_bytes(path, data)
        if path == "a" and data == b"mine":
            (self.root / "b").write_text("theirs")


def test_a_change_by_others_during_a_commit_is_a_conflict(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").write_text("old")
    files = OverlayFilesystem(Meddled(tmp_path))
    files.write_text("a", "mine")
    files.write_text("b", "mine")
    with pytest.raises(FilesystemError, match="'b' was changed by somebody else"):
        files.commit()
    assert (tmp_path / "a").read_text() == "old"
    assert (tmp_path / "b").read_text() == "theirs"


class Full(HostFilesystem):
    """A disk on which nothing further has room; a few bytes can still be appended."""

    def _put(self, entry: Entry) -> None:
        raise FilesystemError(f"{entry.path!r}: {os.strerror(errno.ENOSPC)}")


def test_what_was_appended_is_taken_back_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").write_text("old")
    files = OverlayFilesystem(Full(tmp_path))
    files.append_text("a", ", new")
    files.write_text("b", "new")
    with pytest.raises(FilesystemError, match=f"^'b': {os.strerror(errno.ENOSPC)}$"):
        files.commit()
    assert [(tmp_path / name).read_text() for name in "ab"] == ["old", "old"]


class Busy(HostFilesystem):
    """Another program appends to each file of a commit, until the disk is full at the last one."""

    def write_bytes(self, path: str, data: bytes) -> None:
        if path == "z":
            for name in ("log", "made"):
                with (self.root / name).open("a") as file:
                    file.write("theirs\n")
            raise FilesystemError(f"{path!r}: {os.strerror(errno.ENOSPC)}")
        super().write_bytes(path, data)


def test_what_others_wrote_during_a_commit_is_not_undone_with_it(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("old\n")
    (tmp_path / "whole").write_text("old\n")
    files = OverlayFilesystem(Busy(tmp_path))
    files.append_text("log", "mine\n")
    for name in ("made", "whole", "z"):
        files.write_text(name, "mine\n")
    with pytest.raises(FilesystemError) as caught:
        files.commit()
    for name in ("log", "made"):
        assert f"'{name}' was changed by somebody else meanwhile and stays as it is" in str(caught.value)
        assert (tmp_path / name).read_text().endswith("theirs\n")
    assert (tmp_path / "whole").read_text() == "old\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX systems can fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # this process has threads, which is the point
def test_a_forked_process_waits_for_no_thread_that_it_does_not_have(tmp_path: Path) -> None:
    files = HostFilesystem(tmp_path)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with files.exclusive():
            entered.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # instead of waiting for ever
        for port in (files, HostFilesystem(tmp_path)):
            overlay = OverlayFilesystem(port)
            overlay.append_text("a", "1")
            overlay.commit()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    leave.set()
    holder.join()
    assert (status, (tmp_path / "a").read_text()) == (0, "11")


@dataclass
class Labelled(MemoryFilesystem):
    """Files of a user's own, which compare equal and have no hash."""

    label: str

    def __post_init__(self) -> None:
        super().__init__({"a": "1"})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX systems can fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # this process has threads, which is the point
@pytest.mark.parametrize(
    "make",
    [
        lambda: MemoryFilesystem({"a": "1"}).read_only_view(),
        lambda: OverlayFilesystem(MemoryFilesystem({"a": "1"})),
        lambda: Labelled("x"),
    ],
    ids=["view", "overlay", "own"],
)
def test_a_forked_process_can_use_files_of_every_kind(make: Callable[[], Filesystem]) -> None:
    ports = [make(), make()]
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with ports[0].exclusive(), ports[1].exclusive():
            entered.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # instead of waiting for ever
        os._exit([port.read_text("a") for port in ports] != ["1", "1"])
    status = os.waitpid(child, 0)[1]
    leave.set()
    holder.join()
    assert status == 0


@POSIX
def test_a_link_put_in_the_way_to_the_root_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "job" / "files").mkdir(parents=True)
    (tmp_path / "other" / "files").mkdir(parents=True)
    (tmp_path / "other" / "files" / "secret").write_text("secret")
    files = HostFilesystem(tmp_path / "job" / "files")
    (tmp_path / "job").rename(tmp_path / "moved")
    (tmp_path / "job").symlink_to(tmp_path / "other")
    with pytest.raises(FilesystemError):
        files.read_text("secret")
    with pytest.raises(FilesystemError):
        files.write_text("secret", "x")
    (tmp_path / "job").unlink()
    (tmp_path / "job" / "files").mkdir(parents=True)
    files.write_text("a", "1")  # a folder that was made anew in the same place is the root
    assert (tmp_path / "job" / "files" / "a").read_text() == "1"


@POSIX
def test_what_cannot_be_named_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "a:b").write_text("x")
    (tmp_path / "c:d").mkdir()
    (tmp_path / "c:d" / "e").write_text("x")
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a:b").write_text("x")
    files = HostFilesystem(tmp_path)
    assert files.list() == ("f",)
    assert files.glob("**") == ("f/a:b",)
    assert files.read_text("f/a:b") == "x"


@POSIX
def test_a_file_that_does_not_fit_into_memory_is_a_failure_of_the_port(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        try:
            file.truncate(1 << 43)
        except OSError:
            pytest.skip("this disk takes no sparse file of that size")
    with pytest.raises(FilesystemError, match="'huge' does not fit into memory"):
        HostFilesystem(tmp_path).read_bytes("huge")


@POSIX
def test_a_folder_that_may_not_be_read_is_named_by_a_glob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open" / "closed").mkdir(parents=True)
    listed = os.scandir
    closed = os.stat(tmp_path / "open" / "closed").st_ino

    def refusing(folder: int) -> object:
        if os.fstat(folder).st_ino == closed:
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(FilesystemError, match="'open/closed': Permission denied"):
        HostFilesystem(tmp_path).glob("**")
