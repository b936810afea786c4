"""Files that exist only in memory: for tests, and for agents that need a desk and no disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.paths import ROOT, parents
from watchkeeper.tools.undo_journal import EntryKind

_FOLDER: Final = None


class MemoryFilesystem(Filesystem):
    """Files in memory.

    Args:
        files: Content by path; text is stored as UTF-8, folders on the way are made.
    """

    def __init__(self, files: Mapping[str, str | bytes] | None = None) -> None:
        """Write the given files."""
        super().__init__()
        self._content: dict[str, bytes | None] = {ROOT: _FOLDER}
        self._entries: dict[str, set[str]] = {ROOT: set()}
        self._versions: dict[str, int] = {}
        self._changes = 0
        for path, data in (files or {}).items():
            if isinstance(data, str):
                self.write_text(path, data)
            else:
                self.write_bytes(path, data)

    def _kind(self, path: str) -> EntryKind | None:
        if path not in self._content:
            return None
        return "directory" if self._content[path] is _FOLDER else "file"

    def _read(self, path: str) -> bytes:
        return self._content[path] or b""

    def _size(self, path: str) -> int:
        return len(self._read(path))

    def _version(self, path: str) -> object:
        return self._versions.get(path, 0)

    def _names(self, path: str) -> Iterable[str]:
        return list(self._entries[path])

    def _write(self, path: str, data: bytes) -> None:
        self._set(path, data)

    def _make_dir(self, path: str) -> None:
        self._set(path, _FOLDER)
        self._entries[path] = set()

    def _remove(self, path: str) -> None:
        del self._content[path]
        self._entries.pop(path, None)
        self._versions.pop(path, None)
        folder, name = _split(path)
        self._entries[folder].discard(name)

    def _set(self, path: str, data: bytes | None) -> None:
        self._content[path] = data
        self._changes += 1
        self._versions[path] = self._changes
        folder, name = _split(path)
        self._entries[folder].add(name)


def _split(path: str) -> tuple[str, str]:
    return (parents(path) or [ROOT])[-1], path.rsplit("/", 1)[-1]
