"""Paths, and what every filesystem does alike."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystem import (
    EntryKind,
    FileStat,
    Filesystem,
    FilesystemSnapshot,
    ReadOnlyFilesystem,
    fits,
    join,
    normal_path,
    parents,
)
from watchkeeper.tools.filesystems import HostFilesystem, MemoryFilesystem, OverlayFilesystem

PATHS = st.lists(st.sampled_from(["a", "b", "ü"]), min_size=1, max_size=3).map("/".join)
TEXTS = st.text(max_size=5)
State = dict[str, bytes | None]
"""The model: content by path, None for a folder; the root is not in it."""


def state_of(filesystem: Filesystem) -> State:
    """Read a whole filesystem through its public face."""
    state: State = {}

    def walk(folder: str) -> None:
        for path in filesystem.list(folder):
            if filesystem.is_file(path):
                state[path] = filesystem.read_bytes(path)
            else:
                state[path] = None
                walk(path)

    walk("")
    return state


class Model:
    """What a filesystem should do, in few lines."""

    def __init__(self, state: State) -> None:
        self.state = state

    def parents(self, path: str) -> list[str]:
        parts = path.split("/")
        return ["/".join(parts[:end]) for end in range(1, len(parts))]

    def blocked(self, path: str) -> bool:
        return any(isinstance(self.state.get(parent, None), bytes) for parent in self.parents(path))

    def put(self, path: str, data: bytes | None) -> None:
        self.state.update(dict.fromkeys(self.parents(path)))
        self.state[path] = data

    def is_folder(self, path: str) -> bool:
        return path in self.state and self.state[path] is None

    def children(self, path: str) -> list[str]:
        return [other for other in self.state if other.startswith(f"{path}/")]


class FilesystemMachine(RuleBasedStateMachine):
    """Any sequence of operations leaves what the model says, and fails exactly where the model says."""

    snapshots: Bundle[tuple[FilesystemSnapshot, State]] = Bundle("snapshots")
    start: ClassVar[State] = {}

    def make(self) -> Filesystem:
        return MemoryFilesystem()

    @initialize()
    def begin(self) -> None:
        self.filesystem = self.make()
        self.model = Model(dict(self.start))

    def check(self, allowed: bool, act: Callable[[], object]) -> bool:
        if allowed:
            act()
        else:
            with pytest.raises(FilesystemError):
                act()
        return allowed

    @rule(path=PATHS, text=TEXTS)
    def write(self, path: str, text: str) -> None:
        allowed = not self.model.blocked(path) and not self.model.is_folder(path)
        if self.check(allowed, lambda: self.filesystem.write_text(path, text)):
            self.model.put(path, text.encode())

    @rule(path=PATHS, text=TEXTS)
    def append(self, path: str, text: str) -> None:
        allowed = not self.model.blocked(path) and not self.model.is_folder(path)
        if self.check(allowed, lambda: self.filesystem.append_text(path, text)):
            self.model.put(path, (self.model.state.get(path) or b"") + text.encode())

    @rule(path=PATHS)
    def make_dirs(self, path: str) -> None:
        allowed = not self.model.blocked(path) and not isinstance(self.model.state.get(path), bytes)
        if self.check(allowed, lambda: self.filesystem.make_dirs(path)):
            self.model.put(path, None)

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        allowed = path in self.model.state and not self.model.children(path)
        if self.check(allowed, lambda: self.filesystem.delete(path)):
            del self.model.state[path]

    @rule(path=PATHS)
    def look(self, path: str) -> None:
        content = self.model.state.get(path)
        assert self.filesystem.exists(path) == (path in self.model.state)
        assert self.filesystem.is_file(path) == isinstance(content, bytes)
        assert (self.filesystem.version(path) is None) == (path not in self.model.state)
        if self.check(isinstance(content, bytes), lambda: self.filesystem.read_bytes(path)):
            assert self.filesystem.stat(path) == FileStat(path, "file", len(content or b""))
        if self.check(self.model.is_folder(path), lambda: self.filesystem.list(path)):
            assert self.filesystem.stat(path) == FileStat(path, "directory", 0)

    @rule(target=snapshots)
    def snapshot(self) -> tuple[FilesystemSnapshot, State]:
        return self.filesystem.snapshot(), dict(self.model.state)

    @rule(taken=snapshots)
    def restore(self, taken: tuple[FilesystemSnapshot, State]) -> None:
        self.filesystem.restore(taken[0])
        self.model.state = dict(taken[1])

    @rule(taken=consumes(snapshots))
    def forget(self, taken: tuple[FilesystemSnapshot, State]) -> None:
        del taken

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert state_of(self.filesystem) == self.model.state
        files = sorted(path for path, data in self.model.state.items() if data is not None)
        assert list(self.filesystem.glob("**")) == files
        assert list(self.filesystem.glob("*/*")) == [path for path in files if path.count("/") == 1]
        assert state_of(self.filesystem.read_only_view()) == self.model.state


class HostMachine(FilesystemMachine):
    def make(self) -> Filesystem:
        self.folder = Path(tempfile.mkdtemp())
        return HostFilesystem(self.folder)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


BASE: State = {"a": None, "a/a": b"old", "a/b": None, "b": b"base", "ü": None}


def base_filesystem() -> MemoryFilesystem:
    base = MemoryFilesystem({"a/a": "old", "b": "base"})
    base.make_dirs("a/b")
    base.make_dirs("ü")
    return base


class OverlayMachine(FilesystemMachine):
    """An overlay shows its changes, its base does not; a commit makes them equal, a discard changes nothing."""

    start: ClassVar[State] = BASE

    def make(self) -> Filesystem:
        self.base = base_filesystem()
        self.untouched = self.base.snapshot()
        return OverlayFilesystem(self.base)

    @invariant()
    def base_is_untouched(self) -> None:
        if hasattr(self, "base"):
            assert state_of(self.base) == BASE

    def teardown(self) -> None:
        overlay = getattr(self, "filesystem", None)
        if not isinstance(overlay, OverlayFilesystem):
            return
        changed = {change.path for change in overlay.changes()}
        expected = self.model.state
        really = {
            path
            for path in {*BASE, *expected}
            if (path in BASE, BASE.get(path)) != (path in expected, expected.get(path))
        }
        assert really <= changed
        overlay.commit()
        assert state_of(self.base) == expected
        self.base.restore(self.untouched)
        assert state_of(self.base) == BASE


class NestedOverlayMachine(FilesystemMachine):
    """An overlay on an overlay on a disk."""

    def make(self) -> Filesystem:
        self.folder = Path(tempfile.mkdtemp())
        self.middle = OverlayFilesystem(HostFilesystem(self.folder))
        return OverlayFilesystem(self.middle)

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        overlay = self.filesystem
        assert isinstance(overlay, OverlayFilesystem)
        overlay.commit()
        assert state_of(self.middle) == self.model.state
        assert list(self.folder.iterdir()) == []
        self.middle.commit()
        assert state_of(HostFilesystem(self.folder)) == self.model.state
        shutil.rmtree(self.folder)


STEPS = settings(max_examples=40, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow])
TestMemory = pytest.mark.no_cover(pytest.mark.spec("FR-026")(FilesystemMachine.TestCase))
TestMemory.settings = STEPS
TestHost = pytest.mark.no_cover(pytest.mark.spec("FR-026")(HostMachine.TestCase))
TestHost.settings = STEPS
TestOverlay = pytest.mark.no_cover(OverlayMachine.TestCase)
TestOverlay.settings = STEPS
TestNestedOverlay = pytest.mark.no_cover(NestedOverlayMachine.TestCase)
TestNestedOverlay.settings = STEPS


@pytest.fixture(params=["memory", "host", "overlay"])
def filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> Filesystem:
    kinds: dict[str, Callable[[], Filesystem]] = {
        "memory": MemoryFilesystem,
        "host": lambda: HostFilesystem(tmp_path),
        "overlay": lambda: OverlayFilesystem(MemoryFilesystem()),
    }
    return kinds[request.param]()


OPERATIONS: list[Callable[[Filesystem, str], object]] = [
    lambda files, path: files.read_bytes(path),
    lambda files, path: files.read_text(path),
    lambda files, path: files.write_bytes(path, b""),
    lambda files, path: files.write_text(path, ""),
    lambda files, path: files.append_text(path, ""),
    lambda files, path: files.exists(path),
    lambda files, path: files.is_file(path),
    lambda files, path: files.kind(path),
    lambda files, path: files.list(path),
    lambda files, path: files.glob(path),
    lambda files, path: files.delete(path),
    lambda files, path: files.make_dirs(path),
    lambda files, path: files.stat(path),
    lambda files, path: files.version(path),
]


@pytest.mark.spec("FR-026")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "x\0", "a\\..\\b", "C:/x"])
def test_no_operation_leaves_the_root(filesystem: Filesystem, operation: Any, path: str) -> None:
    with pytest.raises(FilesystemError):
        operation(filesystem, path)


@pytest.mark.parametrize("path", [Path("a/b"), b"a/b", 5, None])
def test_a_path_that_is_no_text_is_refused(filesystem: Filesystem, path: Any) -> None:
    with pytest.raises(FilesystemError, match=f"a path must be text, not {type(path).__name__}"):
        filesystem.read_text(path)


def test_a_number_is_no_content(filesystem: Filesystem) -> None:
    """`bytes` makes as many zeros of it."""
    number, content = cast("tuple[Any, Any]", (10**12, bytearray(b"abc")))
    with pytest.raises(TypeError):
        filesystem.write_bytes("a", number)
    filesystem.write_bytes("a", content)
    assert filesystem.read_text("a") == "abc"


def test_messages_name_the_path_and_what_stands_there(filesystem: Filesystem) -> None:
    filesystem.write_text("folder/file", "x")
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: filesystem.read_text("none"), "there is no file 'none'"),
        (lambda: filesystem.read_text("folder"), "'folder' is a folder, not a file"),
        (lambda: filesystem.write_text("folder", ""), "'folder' is a folder, not a file"),
        (
            lambda: filesystem.write_text("folder/file/x", ""),
            "'folder/file' is a file, so 'folder/file/x' cannot be in",
        ),
        (lambda: filesystem.list("none"), "there is no folder 'none'"),
        (lambda: filesystem.list("folder/file"), "'folder/file' is a file, not a folder"),
        (lambda: filesystem.make_dirs("folder/file"), "'folder/file' is a file, not a folder"),
        (lambda: filesystem.stat("none"), "there is no 'none'"),
        (lambda: filesystem.delete("none"), "there is no 'none' to delete"),
        (lambda: filesystem.delete(""), "the root cannot be deleted"),
        (lambda: filesystem.delete("folder"), "the folder 'folder' is not empty"),
        (lambda: filesystem.write_text("", "x"), "'' is a folder"),
    ]
    for act, message in cases:
        with pytest.raises(FilesystemError, match=message):
            act()


def test_text_that_is_not_utf8_is_refused(filesystem: Filesystem) -> None:
    filesystem.write_bytes("binary", b"ab\xff")
    with pytest.raises(FilesystemError, match=r"'binary' is not UTF-8 text \(invalid start byte at byte 2\)"):
        filesystem.read_text("binary")
    with pytest.raises(FilesystemError, match="the text for 'half' has half a character at 1"):
        filesystem.write_text("half", "a\ud800")
    with pytest.raises(FilesystemError, match="half a character"):
        filesystem.append_text("half", "\ud800")
    assert not filesystem.exists("half")


def test_the_root_is_a_folder(filesystem: Filesystem) -> None:
    filesystem.make_dirs(".")
    assert filesystem.kind("") == "directory"
    assert filesystem.list() == ()
    assert filesystem.glob("") == ()


def test_a_version_changes_with_every_write_and_only_then(filesystem: Filesystem) -> None:
    assert filesystem.version("file") is None
    filesystem.write_text("file", "same")
    first = filesystem.version("file")
    assert first == filesystem.version("file")
    filesystem.write_text("file", "same")
    assert filesystem.version("file") != first


def test_a_snapshot_of_another_filesystem_is_refused(filesystem: Filesystem) -> None:
    with pytest.raises(FilesystemError, match="taken of another filesystem"):
        filesystem.restore(MemoryFilesystem().snapshot())


@pytest.mark.spec("NE-008")
def test_a_read_only_view_shows_everything_and_changes_nothing(filesystem: Filesystem) -> None:
    filesystem.write_text("folder/file", "x")
    view = filesystem.read_only_view()
    assert isinstance(view, ReadOnlyFilesystem)
    assert (view.read_text("folder/file"), view.list("folder"), view.glob("**")) == (
        "x",
        ("folder/file",),
        ("folder/file",),
    )
    assert view.version("folder/file") == filesystem.version("folder/file")
    assert view.stat("folder/file").size == 1
    acts: list[Callable[[], object]] = [
        lambda: view.write_text("new", "x"),
        lambda: view.write_text("folder/file", "y"),
        lambda: view.append_text("folder/file", "y"),
        lambda: view.make_dirs("new"),
        lambda: view.delete("folder/file"),
        lambda: view.restore(view.snapshot()),
    ]
    for act in acts:
        with pytest.raises(FilesystemError, match="read-only"):
            act()
    assert state_of(filesystem) == {"folder": None, "folder/file": b"x"}
    filesystem.write_text("folder/file", "later")
    assert view.read_text("folder/file") == "later"


def test_an_overlay_on_a_read_only_view_cannot_be_committed(filesystem: Filesystem) -> None:
    overlay = OverlayFilesystem(filesystem.read_only_view())
    overlay.write_text("new", "x")
    assert overlay.read_text("new") == "x"
    with pytest.raises(FilesystemError, match="read-only"):
        overlay.commit()
    assert not filesystem.exists("new")


def test_appending_is_exact_under_threads(filesystem: Filesystem) -> None:
    def append() -> None:
        for _ in range(25):
            filesystem.append_text("log", "x")

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert filesystem.read_text("log") == "x" * 100


def test_nothing_is_remembered_while_nobody_holds_a_snapshot() -> None:
    filesystem = MemoryFilesystem()
    snapshot = filesystem.snapshot()
    filesystem.write_text("a", "1")
    assert len(filesystem.journal.since(snapshot)) == 1
    del snapshot
    filesystem.write_text("a", "2")
    assert filesystem.journal.since(filesystem.snapshot()) == []


def test_memory_starts_with_the_given_files() -> None:
    filesystem = MemoryFilesystem({"a/b.txt": "text", "c.bin": b"\x00"})
    assert state_of(filesystem) == {"a": None, "a/b.txt": b"text", "c.bin": b"\x00"}
    with pytest.raises(FilesystemError, match="leads upwards"):
        MemoryFilesystem({"../x": ""})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/etc/passwd", "is absolute"),
        ("//x", "is absolute"),
        ("C:/x", "is absolute"),
        ("c:x", "is absolute"),
        ("..", "leads upwards"),
        ("a/../b", "leads upwards"),
        ("a/..", "leads upwards"),
        ("a\0b", "null byte"),
        ("a\\b", "backslash"),
        ("..\\x", "backslash"),
    ],
)
def test_what_could_leave_the_root_is_refused(path: str, message: str) -> None:
    with pytest.raises(FilesystemError, match=message):
        normal_path(path)


@pytest.mark.parametrize(
    ("path", "normal"),
    [("", ""), (".", ""), ("./", ""), ("a//b/", "a/b"), ("./a/./b", "a/b"), ("a b/ü", "a b/ü"), ("...", "...")],
)
def test_a_path_has_one_normal_form(path: str, normal: str) -> None:
    assert normal_path(path) == normal
    assert normal_path(normal) == normal


@given(st.text(alphabet="ab./\\:\0C"))
def test_a_normal_path_never_leaves_the_root(path: str) -> None:
    try:
        normal = normal_path(path)
    except FilesystemError:
        return
    parts = PurePosixPath(normal).parts
    assert not PurePosixPath(normal).is_absolute()
    assert ".." not in parts
    assert "/".join(parts) == normal


def test_parents_and_join() -> None:
    assert parents("") == []
    assert parents("a") == []
    assert parents("a/b/c") == ["a", "a/b"]
    assert (join("", "a"), join("a", "b")) == ("a", "a/b")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.txt", ["a.txt", ".txt"], ["a/b.txt", "a.txtx"]),
        ("**/*.txt", ["a.txt", "a/b.txt", "a/b/c.txt"], ["a/b.md"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "ab/c"]),
        ("**", ["a", "a/b"], []),
        ("a/*/c", ["a/b/c"], ["a/c", "a/b/b/c"]),
        ("a/**/c", ["a/c", "a/b/c", "a/b/b/c"], ["c", "a/c/d"]),
        ("**/a/**/b", ["a/b", "x/a/y/b", "a/a/b/b"], ["b/a"]),
        ("?[ab]", ["xa", "xb"], ["a", "xc", "x/a"]),
        ("A", ["A"], ["a"]),
        ("a.b", ["a.b"], ["axb"]),
        ("", [], ["a"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [path for path in yes + no if fits(path, pattern)] == yes


@given(
    st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=6),
    st.lists(st.sampled_from("ab"), min_size=1),
)
def test_a_pattern_of_many_stars_ends_soon_and_agrees_with_plain_recursion(pattern: list[str], path: list[str]) -> None:
    def plain(names: list[str], parts: list[str]) -> bool:
        if not parts:
            return not names
        if parts[0] == "**":
            return plain(names, parts[1:]) or (bool(names) and plain(names[1:], parts))
        return bool(names) and parts[0] in ("*", names[0]) and plain(names[1:], parts[1:])

    last = [*pattern, "*"] if pattern[-1] == "**" else pattern
    assert fits("/".join(path), "/".join(pattern)) == plain(path, last)


@pytest.mark.parametrize("path", ["/".join(["d"] * 129), "d" * 4097, "\N{GRINNING FACE}" * 1025, "/" * 4097])
def test_a_path_that_is_too_long_or_too_deep_is_refused_in_few_words(filesystem: Filesystem, path: str) -> None:
    acts: tuple[Callable[[str], object], ...] = (
        filesystem.exists,
        filesystem.glob,
        filesystem.make_dirs,
        lambda path: filesystem.write_text(path, "x"),
    )
    for act in acts:
        with pytest.raises(
            FilesystemError, match=r"is longer than 4,096 bytes|has 129 parts; 128 are allowed"
        ) as caught:
            act(path)
        assert len(str(caught.value)) < 400


def test_the_deepest_path_works(filesystem: Filesystem) -> None:
    path = "/".join(["d"] * 128)
    filesystem.write_text(path, "x")
    assert filesystem.read_text(path) == "x"
    assert filesystem.glob("**") == (path,)


class CountingFilesystem(MemoryFilesystem):
    """Counts how often a filesystem above it asks what stands at a path."""

    looks = 0

    def kind(self, path: str) -> EntryKind | None:
        self.looks += 1
        return super().kind(path)


@pytest.mark.parametrize("there", [0, 1, 64, 126])
@pytest.mark.parametrize("file", [False, True])
def test_few_of_the_folders_on_the_way_are_looked_at(there: int, file: bool) -> None:
    files = CountingFilesystem()
    names = ["d"] * 128
    if there:
        files.make_dirs("/".join(names[:there]))
    if file:
        files.write_text("/".join(names[: there + 1]), "x")
    files.looks = 0
    above = OverlayFilesystem(files)
    if file:
        with pytest.raises(FilesystemError, match=r"is a file, so '.*' cannot be in it"):
            above.write_text("/".join(names), "y")
    else:
        above.write_text("/".join(names), "y")
    assert files.looks < 12
