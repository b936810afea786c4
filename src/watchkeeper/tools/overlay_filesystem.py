"""A filesystem on top of another: changes are kept aside until they are committed, or dropped.

This is what makes a tool's file changes a transaction. Until `commit` the base sees nothing; `commit` applies all or
nothing, and refuses if somebody else changed a path that was changed here since this overlay first looked at it. `keep`
applies a single file in the same way. After `commit` or `discard` every write is refused, so a tool that was given up
on can do no harm when it wakes up late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.paths import normal_path, parents
from watchkeeper.tools.undo_journal import EntryKind

ChangeKind = Literal["created", "modified", "deleted"]


@dataclass(frozen=True, slots=True)
class FileChange:
    """One path that a commit would change."""

    path: str
    kind: ChangeKind


@dataclass(frozen=True, slots=True)
class _Upper:
    """What stands at a path here, whatever the base has; no kind hides what the base has."""

    kind: EntryKind | None
    data: bytes = b""


_GONE: Final = _Upper(None)
_FOLDER: Final = _Upper("directory")


class OverlayFilesystem(Filesystem):
    """Copy-on-write on top of another filesystem."""

    def __init__(self, base: Filesystem) -> None:
        """Start without changes; O(1), nothing is copied."""
        super().__init__()
        self._base = base
        self._upper: dict[str, _Upper] = {}
        self._seen: dict[str, object] = {}
        self._writes: dict[str, int] = {}
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
            self._expect_file(place)
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
        for path in sorted(upper, key=_depth, reverse=True):
            kind = base.kind(path)
            if kind is not None and kind != upper[path].kind:
                base.delete(path)
        for path in sorted(upper, key=_depth):
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

    def _note(self, path: str) -> None:
        self._refuse_if_over()
        super()._note(path)

    def _write(self, path: str, data: bytes) -> None:
        self._put(path, _Upper("file", data))

    def _make_dir(self, path: str) -> None:
        self._put(path, _FOLDER)

    def _remove(self, path: str) -> None:
        self._put(path, _GONE)

    def _put(self, path: str, upper: _Upper) -> None:
        self._look(path)
        self._upper[path] = upper
        self._writes[path] = self._writes.get(path, 0) + 1

    def _look(self, path: str) -> None:
        """Remember what the base had when this path was first looked into."""
        if path not in self._seen:
            self._seen[path] = self._base.version(path)


def _depth(path: str) -> int:
    return path.count("/")
