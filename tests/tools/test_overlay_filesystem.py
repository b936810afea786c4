"""Changes that are kept aside: seen here, not below; all or nothing; never over somebody else's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.filesystems import FileChange, HostFilesystem, MemoryFilesystem, OverlayFilesystem


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
    with pytest.raises(FilesystemError, match="'a' was changed by somebody else meanwhile; nothing of this was kept"):
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
