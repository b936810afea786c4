"""The three filesystems: a folder of this machine, files in memory, and changes kept aside on top of another.

Each has the primitives of `Filesystem` and nothing that is the same for all. None of them ever touches a file
that its root does not hold.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from watchkeeper.core.errors import FilesystemError
from watchkeeper.core.type_tags import own_value
from watchkeeper.tools.filesystem import ROOT, Entry, EntryKind, Filesystem, normal_path, parents

ChangeKind = Literal["created", "modified", "deleted"]


@own_value("file_change")
@dataclass(frozen=True, slots=True)
class FileChange:
    """One path that a commit would change."""

    path: str
    kind: ChangeKind


class OverlayFilesystem(Filesystem):
    """Copy-on-write on top of another filesystem: what makes a tool's file changes a transaction.

    Until `commit` the base sees nothing. `commit` applies all or nothing, and refuses if somebody else changed a path
    that was changed here since this overlay first looked at it; `keep` applies a single file in the same way. After
    `commit` or `discard` every write is refused, so that a tool that was given up on can do no harm when it wakes late.
    """

    def __init__(self, base: Filesystem) -> None:
        """Start without changes; O(1), nothing is copied."""
        super().__init__()
        self._base = base
        self._upper: dict[str, Entry] = {}
        self._seen: dict[str, object] = {}
        self._over = ""

    def changes(self) -> tuple[FileChange, ...]:
        """Return what a commit would change, sorted by path."""
        with self._lock:
            found: list[FileChange] = []
            for path, upper in sorted(self._upper.items()):
                before = self._base.kind(path)
                if upper.kind is None and before is not None:
                    found.append(FileChange(path, "deleted"))
                elif upper.kind is not None and (upper.kind != before or upper.kind == "file"):
                    found.append(FileChange(path, "created" if before is None else "modified"))
            return tuple(found)

    def commit(self) -> None:
        """Apply all changes to the base, or none.

        Raises:
            FilesystemError: If somebody else changed one of the paths meanwhile (it is named), if the base cannot
                take a change, or if this overlay is over.
        """
        with self._lock, self._base.exclusive():
            self._refuse_if_over()
            for path, upper in sorted(self._upper.items()):
                folder_twice = upper.kind == "directory" == self._base.kind(path)
                if not folder_twice and self._base.version(path) != self._seen[path]:
                    raise FilesystemError(f"{path!r} was changed by somebody else meanwhile; nothing of this was kept")
            before = self._base.snapshot()
            try:
                self._apply()
            except BaseException:
                self._base.restore(before)
                raise
            self._end("committed")

    def watch(self, path: str) -> None:
        """Look at a path of the base now: what others change there from here on stands against what is done here."""
        with self._lock:
            self._look(normal_path(path))

    def keep(self, path: str) -> bool:
        """Apply one file to the base, and nothing else; return whether it was changed here at all.

        Raises:
            FilesystemError: If no file stands there, if somebody else changed it meanwhile, if the base cannot take
                it, or if this overlay is over.
        """
        place = normal_path(path)
        with self._lock, self._base.exclusive():
            self._refuse_if_over()
            self._expect(place, "file")
            upper = self._upper.get(place)
            if upper is None:
                return False
            if self._base.version(place) != self._seen[place]:
                raise FilesystemError(f"{place!r} was changed by somebody else meanwhile; it was not kept")
            self._base.write_bytes(place, upper.data)
            del self._upper[place]
            self._seen[place] = self._base.version(place)
            return True

    def discard(self) -> None:
        """Drop all changes; harmless if the overlay is over already."""
        with self._lock:
            if not self._over:
                self._end("discarded")

    def _apply(self) -> None:
        base, upper = self._base, self._upper
        for path in sorted(upper, reverse=True):
            kind = base.kind(path)
            if kind is not None and kind != upper[path].kind:
                base.delete(path)
        for path in sorted(upper):
            if upper[path].kind == "directory":
                base.make_dirs(path)
            elif upper[path].kind == "file":
                base.write_bytes(path, upper[path].data)

    def _end(self, how: str) -> None:
        self._over = how
        self._upper.clear()
        self._seen.clear()

    def _refuse_if_over(self) -> None:
        if self._over:
            raise FilesystemError(f"these files can no longer be changed: the changes were {self._over}")

    def _kind(self, path: str) -> EntryKind | None:
        for folder in parents(path):
            upper = self._upper.get(folder)
            if upper is not None and upper.kind != "directory":
                return None
        upper = self._upper.get(path)
        return upper.kind if upper is not None else self._base.kind(path)

    def _read(self, path: str) -> bytes:
        upper = self._upper.get(path)
        if upper is not None:
            return upper.data
        self._look(path)
        return self._base.read_bytes(path)

    def _size(self, path: str) -> int:
        upper = self._upper.get(path)
        return len(upper.data) if upper is not None else self._base.stat(path).size

    def _version(self, path: str) -> object:
        return self._writes.get(path, 0), None if path in self._upper else self._base.version(path)

    def _names(self, path: str) -> Iterable[str]:
        names: set[str] = set()
        if self._base.kind(path) == "directory":
            names = {entry.rsplit("/", 1)[-1] for entry in self._base.list(path)}
        prefix = f"{path}/" if path else ""
        for place, upper in self._upper.items():
            name = place.removeprefix(prefix)
            if place.startswith(prefix) and name and "/" not in name:
                (names.discard if upper.kind is None else names.add)(name)
        return names

    def _change(self, entry: Entry) -> None:
        self._refuse_if_over()
        super()._change(entry)

    def _put(self, entry: Entry) -> None:
        self._look(entry.path)
        self._upper[entry.path] = entry

    def _look(self, path: str) -> None:
        """Remember what the base had when this path was first looked into."""
        if path not in self._seen:
            self._seen[path] = self._base.version(path)


class HostFilesystem(Filesystem):
    """The files below one folder of this machine.

    Nothing outside the folder is read or written: a path is refused if a part of it is a symbolic link, and so is what
    is neither a file nor a folder (a pipe would hang its reader). A file is written beside its place and moved there,
    so that a process that dies leaves the old content or the new. What this cannot hold off is another process that
    puts a link in the way between the look and the write; run hostile programs in a container.

    Args:
        root: The folder; it must exist.

    Raises:
        FilesystemError: If there is no such folder.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Find the folder; links on the way to it are followed once, here."""
        super().__init__()
        try:
            self._root = Path(root).resolve()
            is_folder = self._root.is_dir()
        except (OSError, ValueError) as error:
            raise FilesystemError(f"{os.fspath(root)!r} cannot be a folder: {error}") from error
        if not is_folder:
            raise FilesystemError(f"there is no folder {os.fspath(root)!r}; make it first, or name another")
        self._rights: dict[str, int] = {}
        self._parts = 0

    @property
    def host_folder(self) -> Path:
        """The folder, resolved."""
        return self._root

    root = host_folder

    def _kind(self, path: str) -> EntryKind | None:
        for folder in parents(path):
            found = self._unlinked(folder)
            if found is None or not stat.S_ISDIR(found.st_mode):
                return None
        found = self._unlinked(path)
        return None if found is None else _kind_of(found, path)

    def _unlinked(self, path: str) -> os.stat_result | None:
        with _named(path):
            found = self._look(path)
        if found is not None and stat.S_ISLNK(found.st_mode):
            raise FilesystemError(f"{path!r} is a symbolic link; links are not followed")
        return found

    def _look(self, path: str) -> os.stat_result | None:
        try:
            return os.lstat(os.path.join(self._root, path))  # half the time of a new Path
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _read(self, path: str) -> bytes:
        with _named(path):
            return (self._root / path).read_bytes()

    def _size(self, path: str) -> int:
        with _named(path):
            return os.lstat(self._root / path).st_size

    def _version(self, path: str) -> object:
        with _named(path):
            found = os.lstat(self._root / path)
        if stat.S_ISDIR(found.st_mode):
            return "directory"
        # The clock of a disk is coarse, so writes through this port are counted as well.
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, self._writes.get(path, 0)

    def _names(self, path: str) -> Iterable[str]:
        with _named(path), os.scandir(os.path.join(self._root, path)) as entries:
            return [entry.name for entry in entries if _is_plain(entry)]

    def _put(self, entry: Entry) -> None:
        path, place = entry.path, self._root / entry.path
        with _named(path):
            if entry.kind == "file":
                self._write(entry, place)
            elif entry.kind == "directory":
                place.mkdir()
            elif place.is_dir():
                place.rmdir()
            else:
                # A file that is put back, or written anew, keeps the rights it had.
                self._rights[path] = stat.S_IMODE(os.lstat(place).st_mode)
                place.unlink()

    def _write(self, entry: Entry, place: Path) -> None:
        before = self._look(entry.path)
        beside, handle = self._new_file_in(place.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(entry.data)
            rights = self._rights.get(entry.path) if before is None else stat.S_IMODE(before.st_mode)
            if rights is not None:
                os.chmod(beside, rights)
            os.replace(beside, place)
        except BaseException:
            with suppress(FileNotFoundError):
                beside.unlink()
            raise

    def _new_file_in(self, folder: Path) -> tuple[Path, int]:
        """Make a file under a name that nobody has, with the rights that the process gives new files."""
        while True:
            self._parts += 1
            beside = folder / f".{os.getpid()}-{self._parts}.part"
            with suppress(FileExistsError):
                return beside, os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)


def _kind_of(found: os.stat_result, path: str) -> EntryKind:
    if stat.S_ISDIR(found.st_mode):
        return "directory"
    if stat.S_ISREG(found.st_mode):
        return "file"
    raise FilesystemError(f"{path!r} is neither a file nor a folder")


def _is_plain(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry can be named and read through the port."""
    if "\\" in entry.name:
        return False
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)


@contextmanager
def _named(path: str) -> Generator[None]:
    """Turn what the system says into an error that names the path."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOTEMPTY:
            raise FilesystemError(f"the folder {path!r} is not empty") from error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FilesystemError(f"{path!r}: {reason}") from error


class MemoryFilesystem(Filesystem):
    """Files in memory: for tests, and for agents that need no disk.

    Args:
        files: Content by path; text is stored as UTF-8, folders on the way are made.
    """

    def __init__(self, files: Mapping[str, str | bytes] | None = None) -> None:
        """Write the given files."""
        super().__init__()
        self._contents: dict[str, bytes] = {}
        self._folders: dict[str, set[str]] = {ROOT: set()}
        for path, data in (files or {}).items():
            if isinstance(data, str):
                self.write_text(path, data)
            else:
                self.write_bytes(path, data)

    def _kind(self, path: str) -> EntryKind | None:
        if path in self._contents:
            return "file"
        return "directory" if path in self._folders else None

    def _read(self, path: str) -> bytes:
        return self._contents[path]

    def _names(self, path: str) -> Iterable[str]:
        return list(self._folders[path])

    def _put(self, entry: Entry) -> None:
        path = entry.path
        folder, _, name = path.rpartition("/")
        if entry.kind is None:
            self._folders[folder].discard(name)
            self._folders.pop(path, None)
            self._contents.pop(path, None)
            return
        self._folders[folder].add(name)
        if entry.kind == "file":
            self._contents[path] = entry.data
        else:
            self._folders[path] = set()
