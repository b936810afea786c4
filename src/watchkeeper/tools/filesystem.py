"""The files that tools may touch, as a port.

Paths are text, relative to a root, with forward slashes; a path that could leave the root is refused before anything
is opened. Every failure is a `FilesystemError` that names the path. While a snapshot exists, every change is written to
a journal; so taking a snapshot is O(1), and snapshots can be restored in any order. Implementations provide four
primitives; this module has everything else, including locks, the journal and the read-only view.
"""

from __future__ import annotations

import errno
import re
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, NoReturn

import msgspec

from watchkeeper.core.errors import FilesystemError
from watchkeeper.core.forks import ModuleLock, in_forked
from watchkeeper.core.type_tags import own_value

EntryKind = Literal["file", "directory"]

_NOUNS: Final[Mapping[EntryKind, str]] = {"file": "file", "directory": "folder"}


class Entry(msgspec.Struct, frozen=True):
    """The file or folder at a path; a folder has no data; ``kind`` is None if nothing is there.

    In a journal, ``size`` replaces the content of a file that was appended to: the old content is its first ``size``
    bytes.
    """

    path: str
    kind: EntryKind | None = None
    data: bytes = b""
    size: int | None = None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FilesystemSnapshot:
    """A state of one filesystem, which can be restored there; it costs nothing until something changes.

    Attributes:
        journal: The journal of that filesystem.
        position: The length of the journal when the snapshot was taken.
    """

    journal: UndoJournal
    position: int


class UndoJournal:
    """Old states of changed paths, recorded while any snapshot exists; a snapshot is a position in the journal.

    Restoring a snapshot puts back the entries recorded since then, the newest first. These changes are recorded too, so
    that a later snapshot can be restored in the same way.
    """

    __slots__ = ("_entries", "_snapshots")

    def __init__(self) -> None:
        """Start empty."""
        self._entries: list[Entry] = []
        self._snapshots: weakref.WeakSet[FilesystemSnapshot] = weakref.WeakSet()

    @property
    def is_kept(self) -> bool:
        """Whether any snapshot exists."""
        return bool(self._snapshots)

    def snapshot(self) -> FilesystemSnapshot:
        """Return a snapshot at the present position."""
        snapshot = FilesystemSnapshot(self, len(self._entries))
        self._snapshots.add(snapshot)
        return snapshot

    def note(self, look: Callable[[], Entry]) -> None:
        """Record the entry that ``look`` returns, if a snapshot exists."""
        if self._snapshots:
            self._entries.append(look())
        else:
            self._entries.clear()

    def note_growth(self, path: str, look: Callable[[], int]) -> None:
        """Record the size that ``look`` returns, before an append to a file; appends in a row are recorded once."""
        last = self._entries[-1] if self._entries else None
        grows = last is not None and last.path == path and last.size is not None
        if not grows or any(snapshot.position == len(self._entries) for snapshot in self._snapshots):
            self.note(lambda: Entry(path, "file", size=look()))

    def since(self, snapshot: FilesystemSnapshot) -> list[Entry]:
        """Return the entries recorded since a snapshot, the newest first.

        Raises:
            FilesystemError: If the snapshot was taken of another filesystem.
        """
        if snapshot.journal is not self:
            raise FilesystemError("this snapshot was taken of another filesystem; restore it there")
        return self._entries[snapshot.position :][::-1]


ROOT: Final = ""
ANY_FOLDERS: Final = "**"

MAX_PATH_BYTES: Final = 4096
"""Largest length of a path, in bytes of UTF-8: the limit of Linux."""

MAX_PATH_PARTS: Final = 128
"""Largest number of parts of a path: models write paths, and every folder on the way is checked."""

_DRIVE: Final = re.compile("[A-Za-z]:")

SHOWN_CHARS: Final = 80
"""How many characters of a path that is too long are shown."""


def normal_path(path: str) -> str:
    """Return a path in its one normal form: no empty or ``.`` parts; the root is empty.

    Raises:
        FilesystemError: If it is absolute, leads upwards, is too long or too deep, or contains a character that is not
            allowed in a path.
    """
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise FilesystemError(f"a path must be text, not {type(path).__name__}: write {str(path)!r}")
    if not _is_short(path):
        raise FilesystemError(f"{path[:SHOWN_CHARS]!r}... is longer than {MAX_PATH_BYTES:,} bytes")
    if "\0" in path:
        raise FilesystemError(f"{path!r} holds a null byte")
    if "\\" in path:
        raise FilesystemError(f"{path!r} holds a backslash; separate folders with '/'")
    if path.startswith("/") or _DRIVE.match(path):
        raise FilesystemError(f"{path!r} is absolute; give a path from the root, such as 'folder/file.txt'")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise FilesystemError(f"{path!r} leads upwards ('..'); give a path from the root")
    if len(parts) > MAX_PATH_PARTS:
        raise FilesystemError(f"{path[:SHOWN_CHARS]!r}... has {len(parts)} parts; {MAX_PATH_PARTS} are allowed")
    return "/".join(parts)


def _is_short(path: str) -> bool:
    if len(path) * 4 <= MAX_PATH_BYTES:  # no character has more bytes
        return True
    return len(path) <= MAX_PATH_BYTES and len(path.encode("utf-8", "surrogatepass")) <= MAX_PATH_BYTES


def is_nameable(path: str) -> bool:
    """Return whether `normal_path` accepts a path that was found on the disk; the path is in normal form."""
    is_plain = "\\" not in path and not _DRIVE.match(path)
    return is_plain and _is_short(path) and path.count("/") < MAX_PATH_PARTS


def parents(path: str) -> list[str]:
    """Return the folders on the way to a normal path, the outermost first, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def join(folder: str, name: str) -> str:
    """Return the path of a name in a folder."""
    return f"{folder}/{name}" if folder else name


def fits(path: str, pattern: str) -> bool:
    """Return whether a normal path matches a normal pattern; ``**`` at the end means any file below."""
    parts = pattern.split("/")
    if parts[-1] == ANY_FOLDERS:
        parts.append("*")
    places = _past_any_folders({0}, parts)  # indices in the pattern that can match the part of the path read so far
    for name in path.split("/"):
        stay = {place for place in places if place < len(parts) and parts[place] == ANY_FOLDERS}
        step = {place + 1 for place in places - stay if place < len(parts) and fnmatchcase(name, parts[place])}
        places = _past_any_folders(stay | step, parts)
    return len(parts) in places


def _past_any_folders(places: set[int], pattern: list[str]) -> set[int]:
    reached = set(places)
    for place, part in enumerate(pattern):
        if place in reached and part == ANY_FOLDERS:
            reached.add(place + 1)
    return reached


@own_value("file_stat")
@dataclass(frozen=True, slots=True)
class FileStat:
    """Metadata of a file or folder.

    Attributes:
        path: From the root.
        kind: ``file`` or ``directory``.
        size: Bytes; 0 for a folder.
    """

    path: str
    kind: EntryKind
    size: int


_making_locks: Final = ModuleLock()
_commit_locks: Final[weakref.WeakValueDictionary[Path, threading.RLock]] = weakref.WeakValueDictionary()
_ports: Final[weakref.WeakValueDictionary[int, Filesystem]] = weakref.WeakValueDictionary()
"""All ports by id: those of users may compare equal, or have no hash."""


def commit_lock(folder: Path) -> threading.RLock:
    """Return the lock of commits to a folder, for all filesystems of this process that have it."""
    with _making_locks:
        return _commit_locks.setdefault(folder, threading.RLock())


def _renew_locks() -> None:
    """Replace the locks in a forked process: threads that held them are not there to release them."""
    _commit_locks.clear()
    for port in list(_ports.values()):
        port._lock = threading.RLock()  # pyright: ignore[reportPrivateUsage]


in_forked(_renew_locks)


class Filesystem(ABC):
    """Files below one root; safe under threads."""

    survives_process: bool = False
    """Whether what was written is still there in another process, for the same arguments, after this one died."""

    def __init__(self) -> None:
        """Start with an empty journal."""
        self._lock = threading.RLock()
        self._writes: dict[str, int] = {}
        self._left: dict[str, object] = {}  # by path: its stamp after it was last changed here
        self.journal = UndoJournal()
        _ports[id(self)] = self

    @property
    def host_folder(self) -> Path | None:
        """The folder of this machine that contains exactly these files; None if there is none."""
        return None

    # reading

    def read_bytes(self, path: str) -> bytes:
        """Return a file's content.

        Raises:
            FilesystemError: If there is no such file.
        """
        place = normal_path(path)
        with self._lock:
            self._expect(place, "file")
            return self._read(place)

    def read_text(self, path: str) -> str:
        """Return a file's content as text.

        Raises:
            FilesystemError: If there is no such file, or it is not UTF-8.
        """
        data = self.read_bytes(path)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise FilesystemError(f"{path!r} is not UTF-8 text ({error.reason} at byte {error.start})") from error

    def kind(self, path: str) -> EntryKind | None:
        """Return whether a path is a file or a directory; None if nothing is there."""
        with self._lock:
            return self._kind(normal_path(path))

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder."""
        return self.kind(path) is not None

    def is_file(self, path: str) -> bool:
        """Return whether there is a file."""
        return self.kind(path) == "file"

    def list(self, path: str = ROOT) -> tuple[str, ...]:
        """Return the files and folders directly in a folder, sorted, as paths from the root.

        Raises:
            FilesystemError: If there is no such folder.
        """
        place = normal_path(path)
        with self._lock:
            self._expect(place, "directory")
            return tuple(sorted(join(place, name) for name in self._names(place)))

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Return the files whose path matches a pattern, sorted.

        Args:
            pattern: ``*``, ``?`` and ``[abc]`` match within one name; ``**`` matches any number of folders, also none.
        """
        normal = normal_path(pattern)
        with self._lock:
            return tuple(sorted(path for path in self._files(ROOT) if fits(path, normal)))

    def stat(self, path: str) -> FileStat:
        """Return kind and size.

        Raises:
            FilesystemError: If nothing is there.
        """
        place = normal_path(path)
        with self._lock:
            kind = self._kind(place)
            if kind is None:
                raise FilesystemError(f"there is no {place!r}")
            return FileStat(place, kind, self._size(place) if kind == "file" else 0)

    def version(self, path: str) -> object:
        """Return a token that compares equal while the file or folder is unchanged; None if nothing is there."""
        place = normal_path(path)
        with self._lock:
            return None if self._kind(place) is None else self._version(place)

    # writing

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a whole file or nothing; missing parent folders are made.

        Raises:
            FilesystemError: If the path is a folder, or one of its parents is a file.
        """
        place = normal_path(path)
        content = b"".join((data,))  # unlike bytes(data), it makes no zeros of a number
        with self._lock:
            if self._kind(place) == "directory":
                raise FilesystemError(f"{place!r} is a folder, not a file")
            self._make_parents(place)
            self._change(Entry(place, "file", content))

    def write_text(self, path: str, text: str) -> None:
        """Write a file of UTF-8 text; missing parent folders are made.

        Raises:
            FilesystemError: As `write_bytes`, and if the text contains lone surrogates.
        """
        self.write_bytes(path, _encoded(path, text))

    def append_text(self, path: str, text: str) -> None:
        """Append text to a file, or make the file; the existing content is neither read nor written.

        Raises:
            FilesystemError: In the same cases as `write_text`.
        """
        place, data = normal_path(path), _encoded(path, text)
        with self._lock:
            if self._kind(place) != "file":
                self.write_bytes(place, data)
                return
            self.journal.note_growth(place, lambda: self._size(place))
            self._left.pop(place, None)
            self._append(place, data)
            self._count_write(place)

    def make_dirs(self, path: str) -> None:
        """Make a folder and its missing parents; does nothing if it exists.

        Raises:
            FilesystemError: If the path or one of its parents is a file.
        """
        place = normal_path(path)
        with self._lock:
            kind = self._kind(place)
            if kind == "file":
                raise FilesystemError(f"{place!r} is a file, not a folder")
            if kind is None:
                self._make_parents(place)
                self._change(Entry(place, "directory"))

    def delete(self, path: str) -> None:
        """Delete a file or an empty folder.

        Raises:
            FilesystemError: If nothing is there, or the folder is not empty.
        """
        place = normal_path(path)
        with self._lock:
            kind = self._kind(place)
            if place == ROOT or kind is None:
                raise FilesystemError(f"there is no {place!r} to delete" if place else "the root cannot be deleted")
            if kind == "directory" and any(True for _ in self._names(place)):
                raise FilesystemError(f"the folder {place!r} is not empty; delete what is in it first")
            self._change(Entry(place))

    # states

    def snapshot(self) -> FilesystemSnapshot:
        """Return the present state; `restore` goes back to it."""
        with self._lock:
            return self.journal.snapshot()

    def restore(self, snapshot: FilesystemSnapshot) -> None:
        """Restore an earlier (or later) state; changes that were not made through this port stay.

        Raises:
            FilesystemError: If the snapshot belongs to another filesystem, or something can no longer be restored, for
                example a file that others changed after this port.
        """
        with self._lock:
            problems: list[str] = []
            for before in self.journal.since(snapshot):
                try:
                    self._put_back(before)
                except FilesystemError as error:
                    problems.append(str(error))
            if problems:
                raise FilesystemError(f"not everything could be put back: {'; '.join(problems)}")

    def exclusive(self) -> AbstractContextManager[object]:
        """Return a context in which no other thread reads or writes through this port."""
        return self._lock

    def read_only_view(self) -> ReadOnlyFilesystem:
        """Return a view of the same files that refuses changes."""
        return ReadOnlyFilesystem(self)

    # primitives: paths are normal, the lock is held, kinds were checked

    @abstractmethod
    def _kind(self, path: str) -> EntryKind | None:
        """Return the kind of the entry at a path; None if nothing is there."""

    @abstractmethod
    def _read(self, path: str) -> bytes:
        """Return the content of a file that exists."""

    @abstractmethod
    def _names(self, path: str) -> Iterable[str]:
        """Return the names in a folder that exists."""

    @abstractmethod
    def _put(self, entry: Entry) -> None:
        """Write a file or make a folder whose parent exists; without a kind, remove the file or empty folder."""

    def _append(self, path: str, data: bytes) -> None:
        """Append to a file that exists."""
        self._put(Entry(path, "file", self._read(path) + data))

    def _truncate(self, path: str, size: int) -> None:
        """Cut a file that exists to its first ``size`` bytes."""
        self._put(Entry(path, "file", self._read(path)[:size]))

    def _size(self, path: str) -> int:
        """Return the size in bytes of a file that exists."""
        return len(self._read(path))

    def _version(self, path: str) -> object:
        """Return a token that changes when the file or folder at a path changes."""
        return self._writes.get(path, 0)

    def _stamp(self, path: str) -> object:
        """Return what tells whether others have changed a path; always None where there are no others."""
        return None

    # shared

    def _expect(self, path: str, wanted: EntryKind) -> None:
        kind = self._kind(path)
        if kind is None:
            raise FilesystemError(f"there is no {_NOUNS[wanted]} {path!r}")
        if kind != wanted:
            raise FilesystemError(f"{path!r} is a {_NOUNS[kind]}, not a {_NOUNS[wanted]}")

    def _make_parents(self, path: str) -> None:
        folders = parents(path)
        standing, end = 0, len(folders)  # the first `standing` are folders; those from `end` on are not
        while standing < end:
            middle = (standing + end) // 2
            if self._kind(folders[middle]) == "directory":
                standing = middle + 1
            else:
                end = middle
        for parent in folders[standing : standing + 1]:
            if self._kind(parent) == "file":
                raise FilesystemError(f"{parent!r} is a file, so {path!r} cannot be in it")
        for parent in folders[standing:]:
            self._change(Entry(parent, "directory"))

    def _files(self, folder: str) -> Iterable[str]:
        for name in self._names(folder):
            path = join(folder, name)
            if not is_nameable(path):
                continue
            if self._kind(path) == "directory":
                yield from self._files(path)
            else:
                yield path

    def _change(self, entry: Entry) -> None:
        """Write an entry to its path; first record the old entry in the journal, if a snapshot exists."""
        self.journal.note(lambda: self._stands_at(entry.path))
        self._left.pop(entry.path, None)
        self._put(entry)
        self._count_write(entry.path)

    def _count_write(self, path: str) -> None:
        self._writes[path] = self._writes.get(path, 0) + 1
        if self.journal.is_kept:
            self._left[path] = self._stamp(path)

    def _stands_at(self, path: str) -> Entry:
        kind = self._kind(path)
        return Entry(path, kind, self._read(path) if kind == "file" else b"")

    def _put_back(self, before: Entry) -> None:
        left = self._left.get(before.path)
        if left is not None and left != self._stamp(before.path):
            raise FilesystemError(f"{before.path!r} was changed by somebody else meanwhile and stays as it is")
        kind = self._kind(before.path)
        if before.size is not None:
            if kind != "file":
                raise FilesystemError(f"there is no file {before.path!r} any more")
            if self._size(before.path) > before.size:
                self.journal.note(lambda: self._stands_at(before.path))
                self._truncate(before.path, before.size)
                self._count_write(before.path)
            return
        if kind == "file" == before.kind and self._read(before.path) == before.data:
            return
        if kind is not None and kind != before.kind:
            self._change(Entry(before.path))
        if before.kind == "file" or before.kind not in (None, kind):
            self._change(before)


class ReadOnlyFilesystem(Filesystem):
    """A live, read-only view of another filesystem, for checkers and judges."""

    def __init__(self, base: Filesystem) -> None:
        """Show the files of ``base``."""
        super().__init__()
        self._base = base
        self.survives_process = base.survives_process

    @property
    def host_folder(self) -> Path | None:
        """The folder of the base; it is not protected, so programs that run there can change it."""
        return self._base.host_folder

    def restore(self, snapshot: FilesystemSnapshot) -> NoReturn:
        """Refuse, because restoring changes files."""
        raise FilesystemError("a read-only view cannot be restored; restore the filesystem itself")

    def _kind(self, path: str) -> EntryKind | None:
        return self._base.kind(path)

    def _read(self, path: str) -> bytes:
        return self._base.read_bytes(path)

    def _size(self, path: str) -> int:
        return self._base.stat(path).size

    def _version(self, path: str) -> object:
        return self._base.version(path)

    def _names(self, path: str) -> Iterable[str]:
        return [entry.rsplit("/", 1)[-1] for entry in self._base.list(path)]

    def _put(self, entry: Entry) -> NoReturn:
        raise FilesystemError(f"{entry.path!r} cannot be changed: these files are read-only here")


def _encoded(path: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise FilesystemError(f"the text for {path!r} has half a character at {error.start}") from error


@contextmanager
def errors_named(path: str) -> Generator[None]:
    """Turn an OSError into a FilesystemError that names the path."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOTEMPTY:
            raise FilesystemError(f"the folder {path!r} is not empty") from error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FilesystemError(f"{path!r}: {reason}") from error
    except MemoryError as error:
        raise FilesystemError(f"{path!r} does not fit into memory") from error
