"""Files on this machine: nothing outside the folder, nothing half."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystems import HostFilesystem


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    return folder


@pytest.mark.spec("FR-112")
def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FilesystemError, match=r"there is no folder '.*none'; make it first"):
        HostFilesystem(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(FilesystemError, match="there is no folder"):
        HostFilesystem(str(tmp_path / "file"))


def test_a_link_to_the_root_itself_is_followed_once(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    files = HostFilesystem(tmp_path / "link")
    assert files.root == root.resolve()
    files.write_text("a", "1")
    assert (root / "a").read_text() == "1"


ESCAPES: list[Callable[[HostFilesystem, str], object]] = [
    lambda files, path: files.read_text(path),
    lambda files, path: files.write_text(path, "x"),
    lambda files, path: files.append_text(path, "x"),
    lambda files, path: files.delete(path),
    lambda files, path: files.make_dirs(path),
    lambda files, path: files.stat(path),
    lambda files, path: files.list(path),
    lambda files, path: files.exists(path),
    lambda files, path: files.version(path),
]


@pytest.mark.spec("FR-026")
@pytest.mark.parametrize("operation", ESCAPES)
@pytest.mark.parametrize("path", ["file_link", "folder_link", "folder_link/secret", "folder_link/new", "inner_link"])
def test_links_are_never_followed(
    root: Path, outside: Path, operation: Callable[[HostFilesystem, str], object], path: str
) -> None:
    (root / "file_link").symlink_to(outside / "secret")
    (root / "folder_link").symlink_to(outside)
    (root / "plain").write_text("plain")
    (root / "inner_link").symlink_to(root / "plain")
    with pytest.raises(FilesystemError, match="is a symbolic link; links are not followed"):
        operation(HostFilesystem(root), path)
    assert {entry.name: entry.read_text() for entry in outside.iterdir()} == {"secret": "secret"}
    assert (root / "plain").read_text() == "plain"


def test_links_and_pipes_are_not_listed_and_pipes_are_refused(root: Path, outside: Path) -> None:
    (root / "link").symlink_to(outside)
    os.mkfifo(root / "pipe")
    (root / "with\\backslash").write_text("")
    (root / "file").write_text("x")
    files = HostFilesystem(root)
    assert files.list() == ("file",)
    assert files.glob("**") == ("file",)
    with pytest.raises(FilesystemError, match="'pipe' is neither a file nor a folder"):
        files.read_text("pipe")


def test_a_write_keeps_the_rights_of_the_file_and_leaves_nothing_beside_it(root: Path) -> None:
    script = root / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    files = HostFilesystem(root)
    files.write_text("run.sh", "new")
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    files.write_text("fresh", "x")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((root / "fresh").stat().st_mode) == 0o666 & ~mask
    assert sorted(os.listdir(root)) == ["fresh", "run.sh"]


def test_a_write_does_not_reach_another_name_of_the_same_file(root: Path, outside: Path) -> None:
    os.link(outside / "secret", root / "hard")
    HostFilesystem(root).write_text("hard", "changed")
    assert (outside / "secret").read_text() == "secret"


def test_a_failed_write_leaves_the_old_content_and_nothing_beside_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = HostFilesystem(root)
    files.write_text("a", "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FilesystemError, match="'a': No space left on device"):
        files.write_text("a", "new")
    assert files.read_text("a") == "old"
    assert os.listdir(root) == ["a"]


def test_a_name_that_is_taken_beside_is_passed_over(root: Path) -> None:
    (root / f".{os.getpid()}-1.part").write_text("left by a process that died")
    files = HostFilesystem(root)
    files.write_text("a", "1")
    assert files.read_text("a") == "1"
    assert (root / f".{os.getpid()}-1.part").read_text() == "left by a process that died"


def test_what_the_system_refuses_is_named(root: Path) -> None:
    files = HostFilesystem(root)
    with pytest.raises(FilesystemError, match="File name too long"):
        files.write_text("x" * 300, "")
    with pytest.raises(FilesystemError):
        files.exists("half\ud800")


def test_what_was_changed_past_the_port_is_seen(root: Path) -> None:
    files = HostFilesystem(root)
    files.write_text("a", "1")
    before = files.version("a")
    (root / "a").write_text("changed")
    assert files.version("a") != before
    assert files.read_text("a") == "changed"
    files.make_dirs("folder")
    assert files.version("folder") == files.version("folder") == "directory"


def test_restoring_leaves_what_others_put_into_a_new_folder_and_says_so(root: Path) -> None:
    files = HostFilesystem(root)
    files.write_text("kept", "old")
    snapshot = files.snapshot()
    files.make_dirs("new")
    files.write_text("kept", "new")
    (root / "new" / "foreign").write_text("not ours")
    with pytest.raises(FilesystemError, match="not everything could be put back: the folder 'new' is not empty"):
        files.restore(snapshot)
    assert files.read_text("kept") == "old"
    assert files.read_text("new/foreign") == "not ours"


def test_a_file_that_is_put_back_keeps_its_rights(root: Path) -> None:
    files = HostFilesystem(root)
    files.write_text("run.sh", "x")
    (root / "run.sh").chmod(0o700)
    snapshot = files.snapshot()
    files.delete("run.sh")
    files.restore(snapshot)
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o700


def test_a_restored_state_reaches_the_disk(root: Path) -> None:
    files = HostFilesystem(root)
    files.write_text("a", "1")
    snapshot = files.snapshot()
    files.delete("a")
    files.write_text("b/c", "2")
    files.restore(snapshot)
    assert sorted(entry.name for entry in root.iterdir()) == ["a"]
    assert (root / "a").read_text() == "1"
