"""Another process that puts links in the way, again and again, reaches nothing outside; for longer by hand:
``python -m scripts.race_links SECONDS``."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from scripts.race_links import race
from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystem import EntryKind
from watchkeeper.tools.filesystems import HostFilesystem

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no folder can be held open there")


@pytest.mark.spec("FR-026")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges two names at once")
def test_no_read_and_no_write_escapes_while_links_are_swapped_in(tmp_path: Path) -> None:
    escaped = race(tmp_path, seconds=2.0, least=101)
    assert escaped.tries > 100
    assert (escaped.reads, escaped.writes, escaped.lists) == (0, 0, 0)


def test_a_folder_that_becomes_a_link_between_look_and_read_is_not_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    for folder in (outside, root / "folder"):
        folder.mkdir(parents=True)
        (folder / "file").write_text(folder.name)

    plain = HostFilesystem(root)

    class Swapped(HostFilesystem):
        def _kind(self, path: str) -> EntryKind | None:
            kind = plain.kind(path)
            if path == "folder/file" and not (root / "folder").is_symlink():
                (root / "folder").rename(root / "away")
                (root / "folder").symlink_to(outside)
            return kind

    files = Swapped(root)
    with pytest.raises(FilesystemError, match="'folder' is a symbolic link"):
        files.read_text("folder/file")
    (root / "folder").unlink()
    (root / "away").rename(root / "folder")
    with pytest.raises(FilesystemError, match="'folder' is a symbolic link"):
        files.write_text("folder/file", "changed")
    assert (outside / "file").read_text() == "outside"


@pytest.mark.parametrize("how", ["pipe", "folder", "link"])
def test_what_a_file_becomes_between_look_and_read_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (tmp_path / "file").write_text("x")
    files = HostFilesystem(tmp_path)

    def looked(self: HostFilesystem, path: str) -> str:
        return "file"

    monkeypatch.setattr(HostFilesystem, "_kind", looked)
    (tmp_path / "file").unlink()
    if how == "pipe":
        os.mkfifo(tmp_path / "file")
    elif how == "folder":
        (tmp_path / "file").mkdir()
    else:
        (tmp_path / "file").symlink_to("/etc/hostname")
    with pytest.raises(FilesystemError, match="'file'"):
        files.read_bytes("file")


@pytest.mark.parametrize("bit", [stat.S_ISUID, stat.S_ISGID, stat.S_ISVTX])
def test_a_file_that_is_written_anew_runs_as_nobody_else(tmp_path: Path, bit: int) -> None:
    files = HostFilesystem(tmp_path)
    script = tmp_path / "run"
    script.write_text("old")
    script.chmod(0o755 | bit)
    files.write_text("run", "new")
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    script.chmod(0o755 | bit)
    snapshot = files.snapshot()
    files.delete("run")
    files.restore(snapshot)
    assert stat.S_IMODE(script.stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_on_the_way_need_not_be_readable(tmp_path: Path) -> None:
    (tmp_path / "way").mkdir()
    (tmp_path / "way" / "file").write_text("x")
    (tmp_path / "way").chmod(0o100)
    try:
        assert HostFilesystem(tmp_path).read_text("way/file") == "x"
    finally:
        (tmp_path / "way").chmod(0o700)
