"""A folder of this machine, and changes kept aside on top of another filesystem."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystem import Filesystem, FilesystemSnapshot
from watchkeeper.tools.filesystems import FileChange, HostFilesystem, MemoryFilesystem, OverlayFilesystem


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

    def full(*_: object, **__: object) -> None:
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


@pytest.fixture(params=["memory", "host"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Filesystem:
    made: Filesystem = MemoryFilesystem() if request.param == "memory" else HostFilesystem(tmp_path)
    made.write_text("a", "1")
    made.write_text("folder/b", "2")
    return made


def test_changes_are_listed(base: Filesystem) -> None:
    overlay = OverlayFilesystem(base)
    overlay.write_text("a", "changed")
    overlay.write_text("new/c", "3")
    overlay.delete("folder/b")
    overlay.write_text("passing", "")
    overlay.delete("passing")
    overlay.make_dirs("folder")
    assert overlay.changes() == (
        FileChange("a", "modified"),
        FileChange("folder/b", "deleted"),
        FileChange("new", "created"),
        FileChange("new/c", "created"),
    )


def test_a_commit_makes_the_changes_and_a_discard_does_not(base: Filesystem) -> None:
    discarded, committed = OverlayFilesystem(base), OverlayFilesystem(base)
    for overlay in (discarded, committed):
        overlay.append_text("a", "+")
    discarded.discard()
    assert base.read_text("a") == "1"
    committed.commit()
    assert base.read_text("a") == "1+"


@pytest.mark.parametrize("end", ["commit", "discard"])
def test_after_the_end_every_write_is_refused_and_reading_shows_the_base(base: Filesystem, end: str) -> None:
    overlay = OverlayFilesystem(base)
    overlay.write_text("a", "2")
    getattr(overlay, end)()
    acts: list[Callable[[], object]] = [
        lambda: overlay.write_text("a", "late"),
        lambda: overlay.append_text("a", "late"),
        lambda: overlay.make_dirs("late"),
        lambda: overlay.delete("a"),
        overlay.commit,
    ]
    for act in acts:
        with pytest.raises(FilesystemError, match=f"can no longer be changed: the changes were {end}"):
            act()
    overlay.discard()
    assert overlay.read_text("a") == base.read_text("a") == ("2" if end == "commit" else "1")
    assert overlay.changes() == ()


@pytest.mark.parametrize("look_first", [True, False])
def test_what_somebody_else_changed_since_the_first_look_is_a_conflict(base: Filesystem, look_first: bool) -> None:
    overlay = OverlayFilesystem(base)
    if look_first:
        assert overlay.read_text("a") == "1"
    else:
        overlay.write_text("a", "mine")
    base.write_text("a", "theirs")
    overlay.write_text("a", "mine")
    overlay.write_text("other", "x")
    with pytest.raises(FilesystemError, match="'a' was changed by somebody else meanwhile; no change was kept"):
        overlay.commit()
    assert (base.read_text("a"), base.exists("other")) == ("theirs", False)


def test_what_was_only_read_is_no_conflict(base: Filesystem) -> None:
    overlay = OverlayFilesystem(base)
    overlay.read_text("a")
    overlay.write_text("mine", "x")
    base.write_text("a", "theirs")
    overlay.commit()
    assert (base.read_text("a"), base.read_text("mine")) == ("theirs", "x")


def test_two_new_files_of_one_name_are_a_conflict_and_two_folders_are_not(base: Filesystem) -> None:
    first, second, third = OverlayFilesystem(base), OverlayFilesystem(base), OverlayFilesystem(base)
    first.write_text("out/one", "1")
    second.write_text("out/two", "2")
    third.write_text("out/one", "3")
    first.commit()
    second.commit()
    assert base.list("out") == ("out/one", "out/two")
    with pytest.raises(FilesystemError, match="'out/one' was changed"):
        third.commit()


def test_what_somebody_else_deleted_is_a_conflict(base: Filesystem) -> None:
    overlay = OverlayFilesystem(base)
    overlay.append_text("a", "+")
    base.delete("a")
    with pytest.raises(FilesystemError, match="'a' was changed"):
        overlay.commit()


def test_a_folder_that_somebody_else_filled_is_not_deleted_and_nothing_else_happens(base: Filesystem) -> None:
    overlay = OverlayFilesystem(base)
    overlay.delete("folder/b")
    overlay.delete("folder")
    overlay.write_text("a", "changed")
    base.write_text("folder/theirs", "x")
    assert not overlay.exists("folder/theirs")
    with pytest.raises(FilesystemError, match="folder 'folder' is not empty"):
        overlay.commit()
    assert (base.read_text("a"), base.read_text("folder/b"), base.read_text("folder/theirs")) == ("1", "2", "x")


def test_after_a_failed_commit_the_overlay_can_still_be_discarded(base: Filesystem) -> None:
    overlay = OverlayFilesystem(base)
    overlay.write_text("a", "mine")
    base.write_text("a", "theirs")
    with pytest.raises(FilesystemError):
        overlay.commit()
    overlay.discard()
    assert base.read_text("a") == "theirs"


def test_a_file_may_become_a_folder_and_back(base: Filesystem) -> None:
    overlay = OverlayFilesystem(base)
    overlay.delete("a")
    overlay.write_text("a/inside", "x")
    overlay.delete("folder/b")
    overlay.delete("folder")
    overlay.write_text("folder", "now a file")
    overlay.commit()
    assert (base.read_text("a/inside"), base.read_text("folder")) == ("x", "now a file")


def test_a_snapshot_of_an_overlay_restores_the_overlay_alone(base: Filesystem) -> None:
    overlay = OverlayFilesystem(base)
    overlay.write_text("a", "2")
    snapshot = overlay.snapshot()
    overlay.write_text("a", "3")
    overlay.delete("folder/b")
    overlay.restore(snapshot)
    assert (overlay.read_text("a"), overlay.read_text("folder/b"), base.read_text("a")) == ("2", "2", "1")
    overlay.commit()
    assert (base.read_text("a"), base.read_text("folder/b")) == ("2", "2")


class TestKeeping:
    """Single files that are applied while the rest is kept aside."""

    def test_one_file_goes_down_and_nothing_else(self, base: Filesystem) -> None:
        overlay = OverlayFilesystem(base)
        overlay.write_text("new/c", "3")
        overlay.write_text("a", "changed")
        assert overlay.keep("./new/c")
        assert base.read_text("new/c") == "3"
        assert base.read_text("a") == "1"
        assert overlay.changes() == (FileChange("a", "modified"),)
        assert overlay.read_text("new/c") == "3"
        overlay.write_text("new/c", "4")
        overlay.commit()
        assert (base.read_text("new/c"), base.read_text("a")) == ("4", "changed")

    def test_a_file_that_was_not_changed_here_is_left_alone(self, base: Filesystem) -> None:
        assert not OverlayFilesystem(base).keep("a")

    def test_what_somebody_else_changed_since_it_was_looked_at_is_refused(self, base: Filesystem) -> None:
        overlay = OverlayFilesystem(base)
        overlay.watch("a")
        overlay.watch("./new")
        base.write_text("a", "theirs")
        base.write_text("new", "theirs")
        overlay.write_text("a", "mine")
        overlay.write_text("new", "mine")
        for path in ("a", "new"):
            with pytest.raises(FilesystemError, match="changed by somebody else"):
                overlay.keep(path)
            assert base.read_text(path) == "theirs"

    def test_what_is_no_file_is_refused(self, base: Filesystem) -> None:
        overlay = OverlayFilesystem(base)
        overlay.delete("a")
        for path, words in (("a", "no file"), ("folder", "is a folder")):
            with pytest.raises(FilesystemError, match=words):
                overlay.keep(path)

    def test_after_the_end_nothing_is_kept(self, base: Filesystem) -> None:
        overlay = OverlayFilesystem(base)
        overlay.write_text("a", "mine")
        overlay.discard()
        with pytest.raises(FilesystemError, match="discarded"):
            overlay.keep("a")


@pytest.fixture(params=["memory", "host", "overlay on memory", "overlay on host"])
def grown(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Filesystem:
    """Files with a log of two megabytes, of which nothing may be read."""
    files: Filesystem = HostFilesystem(tmp_path) if "host" in request.param else MemoryFilesystem()
    files.write_bytes("log", b"x" * 2_000_000)

    def refuse(self: Filesystem, path: str) -> bytes:
        raise AssertionError(f"{path} was read")

    for each in (HostFilesystem, MemoryFilesystem):
        monkeypatch.setattr(each, "_read", refuse)
    return OverlayFilesystem(files) if "overlay" in request.param else files


@pytest.mark.parametrize("held", [False, True])
def test_adding_to_a_file_costs_what_is_added(grown: Filesystem, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = grown.snapshot() if held else None
    for number in range(1000):
        grown.append_text("log", f"line {number}\n")
    size = grown.stat("log").size
    if isinstance(grown, OverlayFilesystem):
        assert grown.changes() == (FileChange("log", "modified"),)
        grown.commit()
    monkeypatch.undo()
    assert size == grown.stat("log").size == 2_000_000 + sum(len(f"line {number}\n") for number in range(1000))
    assert grown.read_text("log")[1_999_999:].startswith("xline 0\nline 1\n")
    if before is not None and not isinstance(grown, OverlayFilesystem):
        grown.restore(before)
        assert grown.read_bytes("log") == b"x" * 2_000_000


def test_snapshots_between_additions_are_all_kept(base: Filesystem) -> None:
    for files in (base, OverlayFilesystem(base)):
        files.write_text("log", "")
        taken: list[tuple[FilesystemSnapshot, str]] = []
        for number in range(6):
            taken.append((files.snapshot(), files.read_text("log")))
            for _ in range(number % 3):
                files.append_text("log", f"{number} ")
        for snapshot, text in (*reversed(taken), *taken):
            files.restore(snapshot)
            assert files.read_text("log") == text


def test_an_addition_that_fails_leaves_what_was_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = HostFilesystem(root)
    files.write_text("log", "old ")
    real = os.write

    def full(file: int, data: memoryview) -> int:
        if len(data) < 3:
            raise OSError(28, "No space left on device")
        return real(file, data[:2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(FilesystemError, match="'log': No space left on device"):
        files.append_text("log", "new")
    monkeypatch.undo()
    assert files.read_text("log") == "old "


def test_an_addition_reaches_no_other_name_and_keeps_no_bit_to_run_as_the_owner(root: Path, outside: Path) -> None:
    files = HostFilesystem(root)
    os.link(outside / "secret", root / "hard")
    files.append_text("hard", " and more")
    assert files.read_text("hard") == "secret and more"
    assert (outside / "secret").read_text() == "secret"
    files.write_text("run", "old")
    (root / "run").chmod(0o4755)
    files.append_text("run", " new")
    assert stat.S_IMODE((root / "run").stat().st_mode) == 0o755
    (root / "run").chmod(0o444)
    files.append_text("run", "er")
    assert files.read_text("run") == "old newer"
    assert stat.S_IMODE((root / "run").stat().st_mode) == 0o444


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_a_file_that_is_written_anew_stays_with_its_owner(root: Path) -> None:
    files = HostFilesystem(root)
    files.write_text("theirs", "old")
    os.chown(root / "theirs", 12345, 23456)

    def owner() -> tuple[int, int]:
        found = (root / "theirs").stat()
        return found.st_uid, found.st_gid

    files.write_text("theirs", "new")
    assert owner() == (12345, 23456)
    overlay = OverlayFilesystem(files)
    overlay.write_text("theirs", "newer")
    overlay.commit()
    assert owner() == (12345, 23456)
    before = files.snapshot()
    files.delete("theirs")
    files.restore(before)
    assert (owner(), files.read_text("theirs")) == ((12345, 23456), "newer")


def test_a_file_is_written_anew_where_its_owner_cannot_be_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, int]] = []

    def refuse(file: int, owner: int, group: int) -> None:
        tried.append((owner, group))
        raise PermissionError(1, "Operation not permitted")

    real = os.stat

    def of_another(path: Any, **options: Any) -> os.stat_result:
        found = real(path, **options)
        return os.stat_result([*found[:4], 0, 77, *found[6:]]) if isinstance(path, int) else found

    files = HostFilesystem(root)
    files.write_text("theirs", "old")
    monkeypatch.setattr(os, "chown", refuse)
    monkeypatch.setattr(os, "stat", of_another)
    files.write_text("theirs", "new")
    monkeypatch.undo()
    group = (root / "theirs").stat().st_gid
    assert tried == [((root / "theirs").stat().st_uid, group), (-1, group)]
    assert files.read_text("theirs") == "new"


def test_what_was_added_is_kept_with_what_was_written_and_a_conflict_is_refused(base: Filesystem) -> None:
    overlay = OverlayFilesystem(base)
    overlay.append_text("a", "2")
    overlay.write_text("new", "x")
    overlay.append_text("new", "y")
    overlay.append_text("folder/b", "3")
    overlay.delete("folder/b")
    assert overlay.keep("a")
    assert base.read_text("a") == "12"
    overlay.append_text("a", "3")
    base.append_text("a", "!")
    with pytest.raises(FilesystemError, match="'a' was changed by somebody else"):
        overlay.commit()
    assert overlay.read_text("a") == "12!3"
    overlay.write_text("a", "mine")
    overlay.discard()
    assert (base.read_text("a"), base.exists("new"), base.exists("folder/b")) == ("12!", False, True)
