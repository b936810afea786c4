"""The files of children: separate, declared ones are copied back, changes of others are never overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.errors import FilesystemError
from watchkeeper.subagents.workspace import ChildFiles, HandedOver, Workspace
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.filesystems import HostFilesystem, MemoryFilesystem, OverlayFilesystem


@pytest.fixture(params=["memory", "host", "overlay"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Filesystem:
    made: dict[str, Filesystem] = {
        "memory": MemoryFilesystem(),
        "host": HostFilesystem(tmp_path),
        "overlay": OverlayFilesystem(MemoryFilesystem()),
    }
    files = made[request.param]
    files.write_text("old.txt", "old")
    return files


def test_only_what_is_declared_comes_back(base: Filesystem) -> None:
    child = Workspace(base).open(["out/report.md"])
    assert child.overlay is not None
    child.overlay.write_text("out/report.md", "done")
    child.overlay.write_text("scratch.txt", "notes")
    child.overlay.write_text("old.txt", "changed")
    assert not base.exists("out")
    assert child.hand_over(["out/report.md"]) == HandedOver(("out/report.md",), (), (), {})
    child.discard()
    assert base.read_text("out/report.md") == "done"
    assert base.read_text("old.txt") == "old"
    assert not base.exists("scratch.txt")
    with pytest.raises(FilesystemError, match="discarded"):
        child.overlay.write_text("late.txt", "x")


def test_what_stood_there_before_is_told_apart(base: Filesystem) -> None:
    child = Workspace(base).open(["old.txt", "none.txt", "../up", "a citation: see page 3"])
    assert child.hand_over(["old.txt", "none.txt", "../up", "a citation: see page 3"]) == HandedOver(
        (), ("old.txt",), ("none.txt", "../up", "a citation: see page 3"), {}
    )


@pytest.mark.spec("SD-014")
def test_a_file_that_somebody_else_changed_meanwhile_fails_alone(base: Filesystem) -> None:
    child = Workspace(base).open(["old.txt", "new.txt"])
    assert child.overlay is not None
    base.write_text("old.txt", "theirs")
    child.overlay.write_text("old.txt", "mine")
    child.overlay.write_text("new.txt", "mine")
    handed = child.hand_over(["old.txt", "new.txt"])
    assert handed.kept == ("new.txt",)
    assert "changed by somebody else" in handed.failed["old.txt"]
    assert base.read_text("old.txt") == "theirs"
    assert base.read_text("new.txt") == "mine"


def test_a_file_that_appeared_meanwhile_is_not_overwritten(base: Filesystem) -> None:
    child = Workspace(base).open(["new.txt"])
    base.write_text("new.txt", "theirs")
    assert child.overlay is not None
    child.overlay.write_text("new.txt", "mine")
    assert list(child.hand_over(["new.txt"]).failed) == ["new.txt"]
    assert base.read_text("new.txt") == "theirs"


def test_the_first_of_two_siblings_wins_also_with_files_that_nobody_declared(base: Filesystem) -> None:
    workspace = Workspace(base)
    first, second = workspace.open([]), workspace.open([])
    assert first.overlay is not None
    assert second.overlay is not None
    first.overlay.write_text("shared.txt", "first")
    assert first.hand_over(["shared.txt"]).kept == ("shared.txt",)
    second.overlay.write_text("shared.txt", "second")  # looked at only now, when the first has handed over
    assert second.hand_over(["shared.txt"]).failed == {"shared.txt": "another subagent changed it meanwhile"}
    assert base.read_text("shared.txt") == "first"


def test_a_sibling_that_begins_later_builds_on_what_came_before(base: Filesystem) -> None:
    workspace = Workspace(base)
    first = workspace.open(["shared.txt"])
    assert first.overlay is not None
    first.overlay.write_text("shared.txt", "first")
    first.hand_over(["shared.txt"])
    second = workspace.open(["shared.txt"])
    assert second.overlay is not None
    second.overlay.append_text("shared.txt", " and second")
    assert second.hand_over(["shared.txt"]).kept == ("shared.txt",)
    assert base.read_text("shared.txt") == "first and second"


def test_what_a_sibling_left_is_not_claimed_by_one_that_did_nothing(base: Filesystem) -> None:
    workspace = Workspace(base)
    first, second = workspace.open(["shared.txt"]), workspace.open(["shared.txt"])
    assert first.overlay is not None
    first.overlay.write_text("shared.txt", "first")
    first.hand_over(["shared.txt"])
    assert second.hand_over(["shared.txt"]).unchanged == ("shared.txt",)


def test_a_file_in_the_place_of_a_folder_fails_alone(base: Filesystem) -> None:
    child = Workspace(base).open(["out/a.txt"])
    assert child.overlay is not None
    child.overlay.write_text("out/a.txt", "mine")
    base.write_text("out", "a file now")
    assert list(child.hand_over(["out/a.txt"]).failed) == ["out/a.txt"]


def test_without_files_nothing_is_there() -> None:
    child = Workspace(None).open(["a"])
    assert child.overlay is None
    assert child.hand_over(["a"]) == HandedOver((), (), ("a",), {})
    child.discard()


PATHS: tuple[str, ...] = ("a.md", "out/b.md", "c.md")
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["open", "write", "hand over", "outside"]),
        st.integers(0, 3),
        st.sampled_from(PATHS),
    ),
    max_size=40,
)


@given(MOVES, st.sets(st.sampled_from(PATHS)))
def test_no_change_of_anybody_is_ever_lost(moves: list[tuple[str, int, str]], declared: set[str]) -> None:
    """Whatever stands in a file afterwards was written by one who had begun when the one before it was there."""
    base = MemoryFilesystem()
    workspace = Workspace(base)
    children: dict[int, ChildFiles] = {}
    began: dict[int, dict[str, int]] = {}
    touched: dict[int, set[str]] = {}
    version = dict.fromkeys(PATHS, 0)
    content: dict[str, str] = {}
    for step, (move, child, path) in enumerate(moves):
        if move == "outside" and path in declared:
            # What nobody declared is watched from the first look on; a program that writes there is not foreseen.
            base.write_text(path, f"outside {step}")
            content[path] = f"outside {step}"
            version[path] += 1
        elif move == "open" and child not in children:
            children[child], began[child], touched[child] = workspace.open(declared), dict(version), set()
        elif move == "write" and child in children:
            overlay = children[child].overlay
            assert overlay is not None
            overlay.write_text(path, f"{child} {step}")
            touched[child].add(path)
        elif move == "hand over" and child in children:
            overlay = children[child].overlay
            assert overlay is not None
            mine = {each: overlay.read_text(each) for each in touched[child]}
            handed = children[child].hand_over(PATHS)
            for each in PATHS:
                if each in touched[child]:
                    fresh = version[each] == began[child][each]
                    assert (each in handed.kept) == fresh
                    assert (each in handed.failed) != fresh
                    if fresh:
                        content[each] = mine[each]
                        version[each] += 1
            children.pop(child).discard()
        assert {each: base.read_text(each) for each in PATHS if base.is_file(each)} == content


def test_an_artifact_behind_a_link_is_none_and_harms_no_other(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    child = Workspace(HostFilesystem(folder)).open(["link/evil.txt", "good.txt"])
    assert child.overlay is not None
    with pytest.raises(FilesystemError, match="symbolic link"):
        child.overlay.write_text("link/evil.txt", "mine")
    child.overlay.write_text("good.txt", "mine")
    assert child.hand_over(["link/evil.txt", "good.txt"]) == HandedOver(("good.txt",), (), ("link/evil.txt",), {})
    assert list((tmp_path / "elsewhere").iterdir()) == []
