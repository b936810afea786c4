"""What stood where before it was changed: the memory that makes a filesystem's snapshots O(1).

A snapshot is a position in the journal. Going back to it means to put back, the newest first, what was noted since;
that is noted too, so going forth again works the same way. Nothing is noted while nobody holds a snapshot.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from watchkeeper.core.errors import FilesystemError

EntryKind = Literal["file", "directory"]


@dataclass(frozen=True, slots=True)
class Before:
    """What stood at a path before it was changed; a folder has no bytes, nothing has no kind."""

    path: str
    kind: EntryKind | None
    data: bytes = b""


class FilesystemSnapshot:
    """A state of one filesystem, to be restored there; it costs nothing until something changes."""

    __slots__ = ("__weakref__", "journal", "position")

    def __init__(self, journal: UndoJournal, position: int) -> None:
        """Remember how far the journal had come."""
        self.journal = journal
        self.position = position


class UndoJournal:
    """What was changed since the oldest snapshot that may still be wanted."""

    __slots__ = ("_entries", "_snapshots")

    def __init__(self) -> None:
        """Start empty."""
        self._entries: list[Before] = []
        self._snapshots: weakref.WeakSet[FilesystemSnapshot] = weakref.WeakSet()

    def snapshot(self) -> FilesystemSnapshot:
        """Return the present position."""
        snapshot = FilesystemSnapshot(self, len(self._entries))
        self._snapshots.add(snapshot)
        return snapshot

    def note(self, look: Callable[[], Before]) -> None:
        """Note what ``look`` sees, if anybody may want it back."""
        if self._snapshots:
            self._entries.append(look())
        else:
            self._entries.clear()

    def since(self, snapshot: FilesystemSnapshot) -> list[Before]:
        """Return what was noted since a snapshot, the newest first.

        Raises:
            FilesystemError: If the snapshot was taken of another filesystem.
        """
        if snapshot.journal is not self:
            raise FilesystemError("this snapshot was taken of another filesystem; restore it there")
        return self._entries[snapshot.position :][::-1]
