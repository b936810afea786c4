"""The files of the children of one tool call: each works on an overlay of its own, declared files come back.

A child changes nothing below its overlay. When it has done its work, its artifacts are applied one by one to the files
of the tool call, which are committed with the call. A file that somebody else changed since the child began, another
child of the same call included, fails that artifact and nothing else. Whatever was not declared is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.overlay_filesystem import OverlayFilesystem
from watchkeeper.tools.paths import normal_path


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What became of the artifacts of one child.

    Attributes:
        kept: Files that it changed and that are the parent's now.
        unchanged: Files that stand there as they did before.
        absent: What is no file: it was not left, or is another kind of deliverable.
        failed: By path, why a file could not be kept.
    """

    kept: tuple[str, ...]
    unchanged: tuple[str, ...]
    absent: tuple[str, ...]
    failed: dict[str, str]


class Workspace:
    """The files of one call, on which its children build."""

    __slots__ = ("base", "came")

    def __init__(self, base: Filesystem | None) -> None:
        """Build on the files of the call, if it has any."""
        self.base = base
        self.came: list[str] = []

    def open(self, expected: Iterable[str]) -> ChildFiles:
        """Return the files of a child that begins now."""
        return ChildFiles(self, expected)


class ChildFiles:
    """The files of one child; to be discarded when it is over.

    Attributes:
        overlay: What it may read and write; None if the parent has no files.
    """

    __slots__ = ("_began", "_workspace", "overlay")

    def __init__(self, workspace: Workspace, expected: Iterable[str]) -> None:
        """Begin with the parent's files, and remember how those stand that the child is to leave."""
        self._workspace = workspace
        self._began = len(workspace.came)
        self.overlay = None if workspace.base is None else OverlayFilesystem(workspace.base)
        if self.overlay is not None:
            for path in expected:
                place = _place(path)
                if place is not None:
                    with suppress(
                        FilesystemError
                    ):  # nobody can write there either; what comes of it is said at the end
                        self.overlay.watch(place)

    def hand_over(self, artifacts: Iterable[str]) -> HandedOver:
        """Apply those of the artifacts that are files to the parent's files."""
        kept: list[str] = []
        unchanged: list[str] = []
        absent: list[str] = []
        failed: dict[str, str] = {}
        for path in artifacts:
            place = _place(path)
            if self.overlay is None or place is None or not _is_file(self.overlay, place):
                absent.append(path)
            elif place in self._workspace.came[self._began :] and self._changed(place):
                failed[path] = "another subagent changed it meanwhile"
            else:
                try:
                    changed = self.overlay.keep(place)
                except FilesystemError as error:
                    failed[path] = str(error)
                    continue
                (kept if changed else unchanged).append(path)
                if changed:
                    self._workspace.came.append(place)
        return HandedOver(tuple(kept), tuple(unchanged), tuple(absent), failed)

    def discard(self) -> None:
        """Drop whatever was not handed over; later writes are refused."""
        if self.overlay is not None:
            self.overlay.discard()

    def _changed(self, place: str) -> bool:
        return self.overlay is not None and any(change.path == place for change in self.overlay.changes())


def _is_file(files: Filesystem, place: str) -> bool:
    """Return whether there is a file that can be looked at; behind a link, for example, there is none."""
    try:
        return files.is_file(place)
    except FilesystemError:
        return False


def _place(path: str) -> str | None:
    """Return an artifact as a path; None if it is none."""
    try:
        return normal_path(path)
    except FilesystemError:
        return None
