"""Whether the agent drifts from its task: compares the paths in its newest calls with those in the task.

The task's paths are those given to the detector; or those that the task's text names and the first calls confirm; or
else the folders around the first calls. A path belongs to the task if it is in one of the task's folders, contains one,
or has a word of the task's text in its name. A file at the top level counts neither way. A few calls elsewhere are not
drift: most paths of a window must be outside.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final, cast

from watchkeeper.core.errors import ObserverError
from watchkeeper.core.quantities import is_text
from watchkeeper.observers.evidence import check_settings, cite, shorten
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import ObserverContext, on_loop
from watchkeeper.prompt.trajectory import FIRST_CALLS, KEPT_CALLS, CallDigest
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked

URL: Final = re.compile(r"\b\w+://\S+")
MENTIONED: Final = re.compile(r"(?<![\w/.~:@+-])(?:[A-Za-z]:|~|\.{1,2})?/?(?:[\w.@+-]+/)+(?:[\w.@+*-]*\w)?")
EXTENSION: Final = re.compile(r"(?<=[^/\\.])\.[A-Za-z]\w{0,7}$")
WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_]+")
SAYS_NOTHING: Final = frozenset(
    WORD.findall(
        "add all and app are code config core data dev doc docs file files fix folder for from get has index info init"
        " input into item items its lib list local main make misc new not note notes old one out output package page"
        " path project read repo run script scripts set src source spec task temp test tests text that the this tmp"
        " tool tools use user users util utils var when which with work workspace write you your"
    )
)
"""Words that are frequent in paths and tasks and do not identify a task."""

SHORTEST_WORD: Final = 3

REMEMBERED: Final = 512
"""Size of the caches by path: more paths than the newest calls of a few runs have."""

MOST_FOLDERS: Final = 50
"""The number of folders of a task; if it names more, the folders above them are taken."""

DEEPEST: Final = 30
"""The number of parts of a folder's path that are compared."""

READ_CHARS: Final = 50_000
"""The length of the beginning of a task's text that is searched for paths; the rest is mostly data."""


@dataclass(frozen=True, slots=True)
class DriftDetector:
    """Tells the agent that it works outside of its task's folders.

    Attributes:
        paths: The task's folders and files; empty takes them from the prompt, or else from the first calls.
        window: The number of the newest calls with paths that are compared.
        outside: The share of them outside the task's paths that is drift.
        first: The number of the first calls with paths that define the task if it names no path.
        name: Its name.
    """

    paths: Sequence[str] = ()
    window: int = 10
    outside: float = 0.8
    first: int = 5
    name: str = "Drift"

    def __post_init__(self) -> None:
        """Refuse thresholds out of range, and copy the paths.

        Raises:
            ObserverError: Naming the field and its value.
        """
        if not isinstance(cast("object", self.paths), list | tuple | set | frozenset):
            raise ObserverError(f"DriftDetector(paths={self.paths!r}) must be a list of paths")
        for path in self.paths:
            if not is_text(path):
                raise ObserverError(f"DriftDetector(paths={self.paths!r}) must be a list of paths; {path!r} is no path")
        object.__setattr__(self, "paths", tuple(self.paths))
        if self.paths:
            self._check_paths()
        check_settings(self, "outside", window=(3, KEPT_CALLS), first=(1, FIRST_CALLS))

    def _check_paths(self) -> None:
        """Refuse paths that contain every other path, and more folders than can be compared."""
        folders = {folder for path in self.paths if (folder := folder_of(path))}
        nowhere = [path for path in self.paths if is_nowhere(path)]
        if nowhere or not folders:
            shown = shorten(repr(nowhere[0] if nowhere else self.paths[0]))
            raise ObserverError(
                f"DriftDetector(paths=...): {shown} names no folder, so nothing could lie outside of it; give folders"
                " or files in them, such as 'src/parser', or leave paths out to take them from the task"
            )
        if not at_most(MOST_FOLDERS, folders):
            raise ObserverError(
                f"DriftDetector(paths=...) names {len({folder[0] for folder in folders}):,} folders at the top; it can"
                f" tell at most {MOST_FOLDERS} from all others"
            )

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether the newest calls worked outside of the task's folders."""
        return context.trajectory.with_paths >= self.window and bool(self._look(context)[1])

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Report how many of the newest calls worked outside of the task's folders, and where."""
        home, strayed = self._look(context)
        if not strayed:
            return None
        severity: Severity = "warning" if len(strayed) == self.window else "caution"
        where = ", ".join(shorten(folder) for folder, _ in Counter(folders_of(strayed)).most_common(3))
        task = ", ".join(shorten("/".join(folder)) for folder in sorted(home.folders)[:3])
        said = f"{len(strayed)} of the last {self.window} calls with paths worked outside it, mostly in {where}"
        calls: Sequence[ToolInvoked] = session[ToolInvoked].all()
        evidence = cite(calls, [call.index for call in strayed])
        return Assessment(
            self.name,
            f"Your task is about {task}; {said}.",
            (Observation("drift", f"{len(strayed)} calls outside the task's paths", evidence),),
            ("Go back to the task, or say why this work is needed for it.",),
            severity,
        )

    def _look(self, context: ObserverContext) -> tuple[Home, Sequence[CallDigest]]:
        """Return the task's folders, and the newest calls outside of them if they are enough."""
        given = tuple(self.paths)
        early = () if given else early_paths(context.trajectory.first_paths, self.first)
        home = home_of(given, context.task, early)
        return home, self._strayed(context.trajectory.recent(4 * self.window), home) if home.folders else ()

    def _strayed(self, recent: Sequence[CallDigest], home: Home) -> Sequence[CallDigest]:
        """Return those of the newest calls with paths that are outside; none if they are too few."""
        strayed: list[CallDigest] = []
        inside, most_inside = 0, int(self.window * (1 - self.outside) + 1e-9)
        for call in reversed(recent):
            where = is_inside(call.paths, home) if call.paths else None
            if where is None:
                continue
            if where:
                inside += 1
                if inside > most_inside:
                    return ()
            else:
                strayed.append(call)
            if inside + len(strayed) == self.window:
                return strayed[::-1]
        return ()


@lru_cache(maxsize=64)
def early_paths(first_paths: Sequence[Sequence[str]], first: int) -> tuple[str, ...]:
    """Return the paths of the first calls that have any.

    Args:
        first_paths: The paths of each of the session's first calls.
        first: The most calls with paths that count.
    """
    placed = ([path for path in paths if is_placed(path)] for paths in first_paths)
    return tuple(path for paths in islice(filter(None, placed), first) for path in paths)


@dataclass(frozen=True, slots=True, eq=False)
class Home:
    """The folders and words of a task. Compared by identity: it is a cache key, and `home_of` keeps one per task.

    Attributes:
        folders: The folders, each as a tuple of its parts.
        begins: The beginnings of relative paths in them.
        within: All of them in one text, each between slashes and on a line of its own, to search for parts of them.
        each: The same folders, one text each.
        words: The words that identify the task in a path.
    """

    folders: frozenset[tuple[str, ...]]
    begins: tuple[str, ...]
    within: str
    each: tuple[str, ...]
    words: frozenset[str]


@lru_cache(maxsize=64)
def home_of(given: tuple[str, ...], task: str, early: tuple[str, ...]) -> Home:
    """Return the folders and words of a task.

    Args:
        given: Paths given to the detector; if there are any, no others count.
        task: The task's text. The paths in it count if the first calls confirm them; if not, they may be examples, or
            the place for a report, and the folders around the first calls count too.
        early: Paths of the first calls.
    """
    text = URL.sub(" ", task[:READ_CHARS]).replace("\\", "/")
    named = {folder_of(path) for path in given or MENTIONED.findall(text) if not is_nowhere(path)} - {()}
    folders = at_most(MOST_FOLDERS, named)
    begun = {folder_of(path) for path in early}
    if not given and not (named and not folders) and not any(_holds(one, other) for one in begun for other in folders):
        folders |= surroundings(begun)
    each = tuple(_between_strokes(folder) for folder in sorted(folders))
    words = frozenset(_stem(word.lower()) for word in WORD.findall(text)) - {""}
    return Home(frozenset(folders), tuple(folder[1:] for folder in each), "\n".join(each), each, words)


def at_most(most: int, folders: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return folders, or the deepest ones above them that are at most ``most``; none if the top has more than that.

    Args:
        most: The number of folders that may be returned.
        folders: Folders, each as a tuple of its parts.
    """
    deepest = min(max(map(len, folders), default=0), DEEPEST)
    for depth in range(deepest, 0, -1):
        above = {folder[:depth] for folder in folders}
        if len(above) <= most:
            return above
    return set()


@lru_cache(maxsize=REMEMBERED)
def folder_of(path: str) -> tuple[str, ...]:
    """Return the folder of a path as a tuple of its parts: the path itself, or for a file the folder that it is in.

    Args:
        path: A path with slashes or backslashes; the root is empty.
    """
    parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".", "~")]
    if parts and not path.endswith(("/", "\\")) and EXTENSION.search(parts[-1]):
        parts.pop()
    return tuple(parts)


def is_placed(path: str) -> bool:
    """Return whether a path has a folder; a file name at the top level has none."""
    return "/" in path.replace("\\", "/").strip("./~ ")


def is_nowhere(path: str) -> bool:
    """Return whether a path names only the root, or a folder above it."""
    return all(part in ("", ".", "..", "~") for part in path.strip().replace("\\", "/").split("/"))


@lru_cache(maxsize=REMEMBERED)
def words_of(path: str) -> frozenset[str]:
    """Return the words of a path that may identify a task."""
    return frozenset(_stem(word.lower()) for word in WORD.findall(EXTENSION.sub("", path))) - {""}


def _stem(word: str) -> str:
    """Return a word without its plural s; empty if it does not identify a task."""
    if len(word) < SHORTEST_WORD or word in SAYS_NOTHING:
        return ""
    return word[:-1] if len(word) > SHORTEST_WORD and word.endswith("s") and not word.endswith("ss") else word


@lru_cache(maxsize=REMEMBERED)
def is_inside(paths: tuple[str, ...], home: Home) -> bool | None:
    """Return whether a call worked in the task's folders; None if none of its paths has a folder.

    Args:
        paths: Paths among its arguments.
        home: The task's folders and words.
    """
    placed = [path for path in paths if is_placed(path)]
    if not placed:
        return None
    return any(path.startswith(home.begins) or belongs(path, home) for path in placed)


def belongs(path: str, home: Home) -> bool:
    """Return whether a path is in one of the task's folders, contains one, or has a word of the task in its name."""
    folder = folder_of(path)
    placed = _between_strokes(folder)
    if not folder or placed in home.within or any(own in placed for own in home.each):
        return True
    return not home.words.isdisjoint(words_of(path))


def _holds(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether a folder contains all parts of another in their order; one of the two may be absolute."""
    return _between_strokes(other) in _between_strokes(one)


def _between_strokes(folder: tuple[str, ...]) -> str:
    return "/".join(("", *folder, ""))


def surroundings(folders: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return the parent of the deepest folder that contains all of some folders; none if that is the root."""
    same = takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))
    common = tuple(first for first, *_ in same)
    return {common[:-1] or common} - {()}


def folders_of(calls: Iterable[CallDigest]) -> Iterable[str]:
    """Yield the folders of the paths of calls."""
    for call in calls:
        for path in call.paths:
            yield "/".join(folder_of(path)) or "."
