"""Paths as tools write them: text, relative to a root, with forward slashes.

Every path is brought into one normal form first, and what could leave the root is refused there, before anybody looks
at a disk. Patterns are matched name by name, so no star runs over a folder's end.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Final

from watchkeeper.core.errors import FilesystemError

ROOT: Final = ""
ANY_FOLDERS: Final = "**"


def normal_path(path: str) -> str:
    """Return a path in its one normal form: no empty or ``.`` parts; the root is empty.

    Raises:
        FilesystemError: If it is absolute, leads upwards, or holds a character that no path may hold.
    """
    if "\0" in path:
        raise FilesystemError(f"{path!r} holds a null byte")
    if "\\" in path:
        raise FilesystemError(f"{path!r} holds a backslash; separate folders with '/'")
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        raise FilesystemError(f"{path!r} is absolute; give a path from the root, such as 'folder/file.txt'")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise FilesystemError(f"{path!r} leads upwards ('..'); give a path from the root")
    return "/".join(parts)


def parents(path: str) -> list[str]:
    """Return the folders on the way to a normal path, the outermost first, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def join(folder: str, name: str) -> str:
    """Return the path of a name in a folder."""
    return f"{folder}/{name}" if folder else name


def fits(path: str, pattern: str) -> bool:
    """Return whether a normal path fits a normal pattern; ``**`` at the end means any file below."""
    parts = pattern.split("/")
    return _fits(path.split("/"), [*parts, "*"] if parts[-1] == ANY_FOLDERS else parts)


def _fits(path: list[str], pattern: list[str]) -> bool:
    # The places in the pattern that the path so far may have come to.
    places = _past_any_folders({0}, pattern)
    for name in path:
        stay = {place for place in places if place < len(pattern) and pattern[place] == ANY_FOLDERS}
        step = {place + 1 for place in places - stay if place < len(pattern) and fnmatchcase(name, pattern[place])}
        places = _past_any_folders(stay | step, pattern)
    return len(pattern) in places


def _past_any_folders(places: set[int], pattern: list[str]) -> set[int]:
    reached = set(places)
    for place, part in enumerate(pattern):
        if place in reached and part == ANY_FOLDERS:
            reached.add(place + 1)
    return reached
