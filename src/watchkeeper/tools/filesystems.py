"""The three filesystems: a folder of this machine, files in memory, and an overlay that buffers changes to another one.

Each has only its own primitives of `Filesystem`; common code is in `Filesystem`. None of them ever touches a file
outside its root.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

from watchkeeper.core.errors import FilesystemError
from watchkeeper.core.type_tags import own_value
from watchkeeper.tools.filesystem import (
    ANY_FOLDERS,
    ROOT,
    Entry,
    EntryKind,
    Filesystem,
    commit_lock,
    errors_named,
    is_nameable,
    join,
    normal_path,
    parents,
)

ChangeKind = Literal["created", "modified", "deleted"]


@own_value("file_change")
@dataclass(frozen=True, slots=True)
class FileChange:
    """One path that a commit would change."""

    path: str
    kind: ChangeKind


class OverlayFilesystem(Filesystem):
    """Copy-on-write on top of another filesystem; it makes a tool's file changes a transaction.

    Until `commit` the base is unchanged. `commit` applies all changes or none. It refuses if a path that was changed
    here was also changed in the base since this overlay first read it; `keep` applies a single file in the same way.
    After `commit` or `discard` every write is refused, so that an abandoned tool that is still running can do no harm.
    `discard` never blocks: it waits neither for a thread that reads or writes here nor for the base.
    """

    def __init__(self, base: Filesystem) -> None:
        """Start without changes; O(1), nothing is copied."""
        super().__init__()
        self._base = base
        self._upper: dict[str, Entry] = {}
        self._tails: dict[str, bytearray] = {}  # data appended to files, whose content is here or in the base
        self._seen: dict[str, object] = {}
        self._over = ""
        self._ending = threading.Lock()  # held briefly, never while the base or foreign code runs

    @property
    def is_changed(self) -> bool:
        """Whether there are changes that are neither committed nor discarded; never blocks."""
        return bool(self._upper or self._tails)

    def changes(self) -> tuple[FileChange, ...]:
        """Return what a commit would change, sorted by path."""
        with self._lock:
            found = [FileChange(path, "modified") for path in self._tails.keys() - self._upper.keys()]
            for path, upper in sorted(self._upper.items()):
                before = self._base.kind(path)
                if upper.kind is None and before is not None:
                    found.append(FileChange(path, "deleted"))
                elif upper.kind is not None and (upper.kind != before or upper.kind == "file"):
                    found.append(FileChange(path, "created" if before is None else "modified"))
            return tuple(sorted(found, key=lambda change: change.path))

    def commit(self) -> None:
        """Apply all changes to the base, or none.

        Raises:
            FilesystemError: If one of the paths was changed in the base meanwhile (the error names it), if the base
                cannot take a change, or if this overlay was already committed or discarded.
        """
        if self._end("committed", if_unchanged=True):
            return
        with self._lock, self._base.exclusive():
            self._refuse_if_over()
            changes = self._upper, self._tails, self._seen
            self.check()
            before = self._base.snapshot()
            self._end("committed")
            try:
                self._apply(*changes)
            except BaseException:
                self._over = ""
                self._upper, self._tails, self._seen = changes
                self._base.restore(before)
                raise

    def check(self) -> None:
        """Raise a FilesystemError if one of the paths that were changed here was also changed in the base meanwhile."""
        for path in sorted(self._upper.keys() | self._tails.keys()):
            self._refuse_if_changed(path, self._upper.get(path), self._seen)

    def added(self, path: str) -> bytes:
        """Return what was appended to a file of the base; nothing if the file is written anew."""
        return b"" if path in self._upper else bytes(self._tails.get(path, b""))

    def watch(self, path: str) -> None:
        """Read the version of a path in the base now; a later change there conflicts with a change made here."""
        with self._lock:
            self._look(normal_path(path))

    def keep(self, path: str) -> bool:
        """Apply one file to the base, and nothing else; return whether it was changed here at all.

        Raises:
            FilesystemError: If there is no such file, if it was changed in the base meanwhile, if the base cannot take
                it, or if this overlay was already committed or discarded.
        """
        place = normal_path(path)
        with self._lock, self._base.exclusive():
            self._refuse_if_over()
            self._expect(place, "file")
            upper, tail = self._upper.get(place), self._tails.get(place)
            if upper is None and tail is None:
                return False
            if self._base.version(place) != self._seen[place]:
                raise FilesystemError(f"{place!r} was changed by somebody else meanwhile; it was not kept")
            self._refuse_if_over()  # it may have been discarded while this thread waited for the base
            self._write_through(place, upper, tail)
            self._upper.pop(place, None)
            self._tails.pop(place, None)
            self._seen[place] = self._base.version(place)
            return True

    def discard(self) -> None:
        """Drop all changes without blocking; does nothing if the overlay was already committed or discarded."""
        with suppress(FilesystemError):
            self._end("discarded")

    def _write_through(self, path: str, upper: Entry | None, tail: bytearray | None) -> None:
        """Write a file to the base; if data was only appended, append it there."""
        if upper is not None:
            self._base.write_bytes(path, upper.data + tail if tail else upper.data)
        elif tail:
            self._base.append_text(path, tail.decode())

    def _refuse_if_changed(self, path: str, upper: Entry | None, seen: Mapping[str, object]) -> None:
        folder_twice = upper is not None and upper.kind == "directory" == self._base.kind(path)
        if not folder_twice and self._base.version(path) != seen[path]:
            raise FilesystemError(f"{path!r} was changed by somebody else meanwhile; no change was kept")

    def _apply(self, upper: Mapping[str, Entry], tails: Mapping[str, bytearray], seen: Mapping[str, object]) -> None:
        """Write the changes; each file is checked again just before it is changed, because writing may take long."""
        base = self._base
        replaced: set[str] = set()
        for path in sorted(upper, reverse=True):
            kind = base.kind(path)
            if kind is not None and kind != upper[path].kind:
                self._refuse_if_changed(path, upper[path], seen)
                base.delete(path)
                replaced.add(path)
        for path in sorted(upper.keys() | tails.keys()):
            entry = upper.get(path)
            if path not in replaced and (entry is None or entry.kind == "file"):
                self._refuse_if_changed(path, entry, seen)
            if entry is not None and entry.kind == "directory":
                base.make_dirs(path)
            elif entry is None or entry.kind == "file":
                self._write_through(path, entry, tails.get(path))

    def _end(self, how: str, *, if_unchanged: bool = False) -> bool:
        """End the overlay; with ``if_unchanged``, return False and do nothing if there are changes.

        Raises:
            FilesystemError: If it was already committed or discarded.
        """
        with self._ending:
            self._refuse_if_over()
            if if_unchanged and self.is_changed:
                return False
            self._over = how
            self._upper, self._tails, self._seen = {}, {}, {}  # another thread may still be reading the old ones
            return True

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
        upper, tail = self._upper.get(path), self._tails.get(path)
        if upper is None:
            self._look(path)
        data = self._base.read_bytes(path) if upper is None else upper.data
        return data + tail if tail else data

    def _size(self, path: str) -> int:
        upper = self._upper.get(path)
        return (len(upper.data) if upper is not None else self._base.stat(path).size) + len(self._tails.get(path, b""))

    def _version(self, path: str) -> object:
        return self._writes.get(path, 0), None if path in self._upper else self._base.version(path)

    def _append(self, path: str, data: bytes) -> None:
        if path not in self._upper:
            self._look(path)
        with self._ending:
            self._refuse_if_over()
            self._tails.setdefault(path, bytearray()).extend(data)

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

    def _files(self, folder: str) -> Iterable[str]:
        upper = self._upper
        hidden = {place for place, entry in upper.items() if entry.kind != "directory"}
        below = self._base.glob(join(folder, ANY_FOLDERS)) if self._base.kind(folder) == "directory" else ()
        for path in below:
            if path not in upper and (not hidden or hidden.isdisjoint(parents(path))):
                yield path
        for place, entry in list(upper.items()):
            if entry.kind == "file" and place.startswith(f"{folder}/" if folder else ""):
                yield place

    def _change(self, entry: Entry) -> None:
        self._refuse_if_over()
        super()._change(entry)

    def _put(self, entry: Entry) -> None:
        self._look(entry.path)
        with self._ending:
            self._refuse_if_over()
            self._upper[entry.path] = entry
            self._tails.pop(entry.path, None)

    def _look(self, path: str) -> None:
        """Remember the version of a path in the base when it is first used."""
        if path not in self._seen:
            self._seen[path] = self._base.version(path)


FOLLOWS_NOTHING: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
FOLDER_FLAGS: Final = FOLLOWS_NOTHING | getattr(os, "O_DIRECTORY", 0)
WAY_FLAGS: Final = FOLDER_FLAGS | getattr(os, "O_PATH", os.O_RDONLY)
"""With O_PATH of Linux, a parent folder can be opened without the right to read it."""

MAX_APPENDED_BYTES: Final = 1 << 20
"""Most bytes that are appended to a file in place; for more, the file is written anew."""

HAS_HANDLES: Final = {os.open, os.stat, os.mkdir, os.unlink, os.rmdir, os.rename} <= os.supports_dir_fd
"""Whether names can be looked up relative to an open folder; Windows cannot do that."""


class Place(NamedTuple):
    """Where a file or folder is: its name, and the descriptor of the open folder in which the name is looked up.

    If the system cannot look up names in an open folder, the name is the whole path and there is no folder.
    """

    name: str
    folder: int | None


class HostFilesystem(Filesystem):
    """The files below one folder of this machine.

    Nothing outside the folder is read or written. A path is refused if a part of it is a symbolic link, or if it is
    neither a file nor a folder (reading a pipe would hang). Each folder of a path is opened relative to its parent
    without following links, and the file relative to the last folder. So another process that puts a link there at that
    moment cannot redirect the access (on Windows it can). A file is written under a temporary name and then renamed, so
    a process that dies leaves the old or the new content; only `append_text` writes up to 1 MiB in place.

    Args:
        root: The folder; it must exist.

    Raises:
        FilesystemError: If there is no such folder.
    """

    survives_process = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Resolve the folder; symbolic links in its path are followed once, here."""
        super().__init__()
        try:
            self._root = Path(root).resolve()
            is_folder = self._root.is_dir()
        except (OSError, ValueError) as error:
            raise FilesystemError(f"{os.fspath(root)!r} cannot be a folder: {error}") from error
        if not is_folder:
            raise FilesystemError(f"there is no folder {os.fspath(root)!r}; make it first, or name another")
        self._rights: dict[str, os.stat_result] = {}
        self._parts = 0
        self._identity = _identity(os.stat(self._root))

    @property
    def host_folder(self) -> Path:
        """The folder, resolved."""
        return self._root

    root = host_folder

    @contextmanager
    def exclusive(self) -> Generator[None]:
        """Return a context in which no other thread uses this port, or commits through another port to this folder."""
        with commit_lock(self._root), self._lock:
            yield

    def _kind(self, path: str) -> EntryKind | None:
        with errors_named(path), self._place(path) as place:
            found = None if place is None else _look(place, path)
        return None if found is None else _kind_of(found, path)

    @contextmanager
    def _place(self, path: str) -> Generator[Place | None]:
        """Yield the place of a path; None if its parent folder does not exist.

        Raises:
            FilesystemError: If a parent is a link.
            OSError: If the root is gone, or a folder may not be entered.
        """
        if not HAS_HANDLES:
            yield self._path_of(path)
            return
        way, _, name = path.rpartition("/")
        folder = self._open_root()
        try:
            done = ""
            for part in way.split("/") if way else ():
                done = join(done, part)
                inner = _entered(Place(part, folder), done)
                if inner is None:
                    yield None
                    return
                os.close(folder)
                folder = inner
            yield Place(name or ".", folder)
        finally:
            os.close(folder)

    def _open_root(self) -> int:
        """Open the root; if another folder is there now, follow no link on the way to it."""
        root = os.open(self._root, WAY_FLAGS)
        if _identity(os.fstat(root)) == self._identity:
            return root
        os.close(root)
        folder = os.open(self._root.anchor, WAY_FLAGS)
        for part in self._root.parts[1:]:
            try:
                inner = os.open(part, WAY_FLAGS, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        self._identity = _identity(os.fstat(folder))
        return folder

    def _path_of(self, path: str) -> Place | None:
        for folder in parents(path):
            found = _look(Place(os.path.join(self._root, folder), None), folder)
            if found is None or not stat.S_ISDIR(found.st_mode):
                return None
        return Place(os.path.join(self._root, path), None)

    @contextmanager
    def _found(self, path: str) -> Generator[Place]:
        """Yield the place of a path that existed a moment ago.

        Raises:
            FilesystemError: If its folder is gone, or a parent is a link.
        """
        with errors_named(path), self._place(path) as place:
            if place is None:
                raise FilesystemError(f"there is no folder for {path!r} any more")
            yield place

    def _read(self, path: str) -> bytes:
        with self._found(path) as place, _opened(place, path) as file:
            return file.read()

    def _size(self, path: str) -> int:
        with self._found(path) as place:
            return _status(place).st_size

    def _version(self, path: str) -> object:
        with self._found(path) as place:
            found = _status(place)
        if stat.S_ISDIR(found.st_mode):
            return "directory"
        # Timestamps of a disk are coarse, so writes through this port are counted as well.
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, self._writes.get(path, 0)

    def _stamp(self, path: str) -> object:
        with errors_named(path), self._place(path) as place:
            found = None if place is None else _look(place, path)
        if found is None or stat.S_ISDIR(found.st_mode):
            return "nothing" if found is None else "directory"
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _names(self, path: str) -> Iterable[str]:
        with self._found(path) as place, _listed(place) as entries:
            return [entry.name for entry in entries if _is_plain(entry) and is_nameable(join(path, entry.name))]

    def _files(self, folder: str) -> Iterable[str]:
        """Walk every folder from its open parent; a folder that is gone or became a link counts as empty."""
        if not HAS_HANDLES:
            return super()._files(folder)
        found: list[str] = []
        with self._found(folder) as place:
            _collect(place, folder, found)
        return found

    def _put(self, entry: Entry) -> None:
        path = entry.path
        with self._found(path) as place:
            if entry.kind == "file":
                self._write(entry, place)
            elif entry.kind == "directory":
                os.mkdir(place.name, dir_fd=place.folder)
            elif stat.S_ISDIR((before := _status(place)).st_mode):
                os.rmdir(place.name, dir_fd=place.folder)
            else:
                # A file that is put back, or written anew, keeps the owner and the rights it had.
                self._rights[path] = before
                os.unlink(place.name, dir_fd=place.folder)

    def _append(self, path: str, data: bytes) -> None:
        with self._found(path) as place:
            if len(data) <= MAX_APPENDED_BYTES and _appended(place, data):
                return
        super()._append(path, data)

    def _truncate(self, path: str, size: int) -> None:
        with self._found(path) as place, _in_place(place) as file:
            if file is not None:
                os.ftruncate(file, size)
                return
        super()._truncate(path, size)

    def _write(self, entry: Entry, place: Place) -> None:
        before = _look(place, entry.path)
        beside, handle = self._new_file_beside(place)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(entry.data)
                earlier = self._rights.get(entry.path) if before is None else before
                if earlier is not None:
                    _pass_on(earlier, beside.name if beside.folder is None else handle)
            os.replace(beside.name, place.name, src_dir_fd=beside.folder, dst_dir_fd=place.folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(beside.name, dir_fd=beside.folder)
            raise

    def _new_file_beside(self, place: Place) -> tuple[Place, int]:
        """Make a file under an unused name, with the mode that the process gives new files."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | FOLLOWS_NOTHING | getattr(os, "O_BINARY", 0)
        while True:
            self._parts += 1
            name = os.path.join(os.path.dirname(place.name), f".{os.getpid()}-{self._parts}.part")
            with suppress(FileExistsError):
                return Place(name, place.folder), os.open(name, flags, 0o666, dir_fd=place.folder)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _status(place: Place) -> os.stat_result:
    return os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)


def _look(place: Place, path: str) -> os.stat_result | None:
    """Return the status of the entry at a place, or None if nothing is there.

    Raises:
        FilesystemError: If it is a link.
    """
    try:
        found = _status(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(found.st_mode):
        raise FilesystemError(f"{path!r} is a symbolic link; links are not followed")
    return found


def _entered(place: Place, path: str) -> int | None:
    """Open a folder and return its descriptor, or None if there is none.

    Raises:
        FilesystemError: If it is a link.
    """
    try:
        return os.open(place.name, WAY_FLAGS, dir_fd=place.folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK):  # the errors of the systems for a link
            raise
    _look(place, path)
    return None


@contextmanager
def _opened(place: Place, path: str) -> Generator[IO[bytes]]:
    """Yield a file opened for reading; anything else that replaced it a moment ago is not opened, or not read."""
    flags = os.O_RDONLY | FOLLOWS_NOTHING | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(place.name, flags, dir_fd=place.folder), "rb") as file:
        if _kind_of(os.fstat(file.fileno()), path) != "file":
            raise FilesystemError(f"{path!r} is a folder, not a file")
        yield file


@contextmanager
def _in_place(place: Place) -> Generator[int | None]:
    """Yield a descriptor through which a file can be changed in place, or None if it must be written anew.

    It must be written anew if it has another hard link, a set-user-ID, set-group-ID or sticky bit, or cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | FOLLOWS_NOTHING | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        file = os.open(place.name, flags, dir_fd=place.folder)
    except OSError:
        yield None  # writing the file anew then raises the error
        return
    try:
        found = os.fstat(file)
        plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and not stat.S_IMODE(found.st_mode) & ~0o777
        yield file if plain else None
    finally:
        os.close(file)


def _appended(place: Place, data: bytes) -> bool:
    """Append to a file in place; return False, with nothing changed, if the file must be written anew instead."""
    with _in_place(place) as file:
        if file is None:
            return False
        before = os.fstat(file)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
        except BaseException:
            os.ftruncate(file, before.st_size)
            raise
        return True


@contextmanager
def _listed(place: Place) -> Generator[Iterable[os.DirEntry[str]]]:
    """Yield the entries of a folder."""
    if place.folder is None:
        with os.scandir(place.name) as entries:
            yield entries
        return
    folder = os.open(place.name, os.O_RDONLY | FOLDER_FLAGS, dir_fd=place.folder)
    try:
        with os.scandir(folder) as entries:
            yield entries
    finally:
        os.close(folder)


def _collect(place: Place, path: str, found: list[str]) -> None:
    """Add the paths of all files below an open folder."""
    with _listed(place) as entries:
        plain = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if _is_plain(entry)]
    inner = [name for name, is_folder in plain if is_folder and is_nameable(join(path, name))]
    found += [below for name, is_folder in plain if not is_folder and is_nameable(below := join(path, name))]
    if not inner:
        return
    folder = os.open(place.name, WAY_FLAGS, dir_fd=place.folder)
    try:
        for name in inner:
            below = join(path, name)
            try:
                _collect(Place(name, folder), below, found)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise FilesystemError(f"{below!r}: {error.strerror}") from error
    finally:
        os.close(folder)


def _pass_on(earlier: os.stat_result, file: str | int) -> None:
    """Give a file the owner and group of the one it replaces, where that is permitted, and its mode.

    The set-user-ID and set-group-ID bits are dropped.
    """
    made = os.stat(file)
    if (made.st_uid, made.st_gid) != (earlier.st_uid, earlier.st_gid):
        for owner in (earlier.st_uid, -1):  # who may not change a file's owner may still set one of their own groups
            with suppress(OSError):
                os.chown(file, owner, earlier.st_gid)
                break
    os.chmod(file, earlier.st_mode & 0o777)


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


class MemoryFilesystem(Filesystem):
    """Files in memory: for tests, and for agents that need no disk.

    Args:
        files: Content by path; text is stored as UTF-8, missing parent folders are made.
    """

    def __init__(self, files: Mapping[str, str | bytes] | None = None) -> None:
        """Write the given files."""
        super().__init__()
        self._contents: dict[str, bytes | bytearray] = {}
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
        data = self._contents[path]
        if isinstance(data, bytearray):
            data = self._contents[path] = bytes(data)
        return data

    def _size(self, path: str) -> int:
        return len(self._contents[path])

    def _append(self, path: str, data: bytes) -> None:
        content = self._contents[path]
        if not isinstance(content, bytearray):
            content = self._contents[path] = bytearray(content)
        content += data

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
