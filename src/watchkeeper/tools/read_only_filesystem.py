"""A filesystem that can be looked at and not changed: what checkers, judges and nested evaluations get."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystem import EntryKind, Filesystem, FilesystemSnapshot


class ReadOnlyFilesystem(Filesystem):
    """Another filesystem's files as they are at the moment of looking; every change is refused."""

    def __init__(self, base: Filesystem) -> None:
        """Show the files of ``base``."""
        super().__init__()
        self._base = base

    def restore(self, snapshot: FilesystemSnapshot) -> NoReturn:
        """Refuse: to restore is to change."""
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

    def _note(self, path: str) -> NoReturn:
        raise FilesystemError(f"{path!r} cannot be changed: these files are read-only here")

    def _write(self, path: str, data: bytes) -> NoReturn:
        self._note(path)

    def _make_dir(self, path: str) -> NoReturn:
        self._note(path)

    def _remove(self, path: str) -> NoReturn:
        self._note(path)
