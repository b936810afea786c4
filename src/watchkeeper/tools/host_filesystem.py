"""Files in one folder of this machine.

Nothing outside the folder is read or written: a path is refused if a part of it is a symbolic link, and so is anything
that is neither a file nor a folder (a pipe would hang its reader). A file is written beside its place and moved there,
so a process that dies leaves the old content or the new. What this cannot hold off is another process that puts a
link in the way between the look and the write; run hostile programs in a container.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.paths import ROOT, parents
from watchkeeper.tools.undo_journal import EntryKind


class HostFilesystem(Filesystem):
    """The files below a folder.

    Args:
        root: The folder; it must exist.

    Raises:
        FilesystemError: If there is no such folder.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Find the folder; links on the way to it are followed once, here."""
        super().__init__()
        self._root = Path(root).resolve()
        if not self._root.is_dir():
            raise FilesystemError(f"there is no folder {os.fspath(root)!r}; make it first, or name another")
        self._writes: dict[str, int] = {}
        self._rights: dict[str, int] = {}
        self._parts = 0

    @property
    def root(self) -> Path:
        """The folder, resolved."""
        return self._root

    @property
    def host_folder(self) -> Path:
        """The folder, resolved."""
        return self._root

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
            return os.lstat(self._place(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _read(self, path: str) -> bytes:
        with _named(path):
            return self._place(path).read_bytes()

    def _size(self, path: str) -> int:
        with _named(path):
            return os.lstat(self._place(path)).st_size

    def _version(self, path: str) -> object:
        with _named(path):
            found = os.lstat(self._place(path))
        if stat.S_ISDIR(found.st_mode):
            return "directory"
        # The clock of a disk is coarse, so writes through this port are counted as well.
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, self._writes.get(path, 0)

    def _names(self, path: str) -> Iterable[str]:
        with _named(path), os.scandir(self._place(path)) as entries:
            return [entry.name for entry in entries if _is_plain(entry)]

    def _write(self, path: str, data: bytes) -> None:
        place = self._place(path)
        with _named(path):
            before = self._look(path)
            beside, handle = self._new_file_in(place.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                rights = self._rights.get(path) if before is None else stat.S_IMODE(before.st_mode)
                if rights is not None:
                    os.chmod(beside, rights)
                os.replace(beside, place)
            except BaseException:
                with suppress(FileNotFoundError):
                    beside.unlink()
                raise
        self._count(path)

    def _new_file_in(self, folder: Path) -> tuple[Path, int]:
        """Make a file under a name that nobody has, with the rights that the process gives new files."""
        while True:
            self._parts += 1
            beside = folder / f".{os.getpid()}-{self._parts}.part"
            with suppress(FileExistsError):
                return beside, os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)

    def _make_dir(self, path: str) -> None:
        with _named(path):
            self._place(path).mkdir()
        self._count(path)

    def _remove(self, path: str) -> None:
        place = self._place(path)
        with _named(path):
            if place.is_dir():
                place.rmdir()
            else:
                # A file that is put back, or written anew, keeps the rights it had.
                self._rights[path] = stat.S_IMODE(os.lstat(place).st_mode)
                place.unlink()
        self._count(path)

    def _place(self, path: str) -> Path:
        return self._root / path if path != ROOT else self._root

    def _count(self, path: str) -> None:
        self._writes[path] = self._writes.get(path, 0) + 1


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
