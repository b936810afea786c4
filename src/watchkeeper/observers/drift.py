"""Whether the agent works where its task is: the paths of its newest calls against the paths of the task.

The task's paths are those given here, or those that its text names and the first calls confirm, or else the
surroundings of the first calls. A path belongs to the task if it lies in one of the task's folders, holds one, or bears
a word of the task's text in its name; files at the very top say nothing. A short excursion is no drift: most of a
window must lie outside.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, cast

from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.evidence import check_count, check_name, check_share, cite, shorten
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer import on_loop
from watchkeeper.prompt.observer_context import ObserverContext
from watchkeeper.prompt.trajectory import FIRST_CALLS, KEPT_CALLS, CallDigest
from watchkeeper.session.session import Session
from watchkeeper.tools.invoked import ToolInvoked

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
"""Words that stand in the name of half of all paths, or in half of all tasks."""

SHORTEST_WORD: Final = 3

REMEMBERED: Final = 512
"""Of so many paths it is remembered where they are: more than the newest calls of a few runs have."""

READ_CHARS: Final = 50_000
"""So much of a task is read for where it is; what follows is mostly what it works on."""


@dataclass(frozen=True, slots=True)
class DriftDetector:
    """Tells the agent that it works elsewhere than its task says.

    Attributes:
        paths: The task's folders and files; empty takes them from the prompt, or else from the first calls.
        window: How many of the newest calls with paths are looked at.
        outside: The share of them outside the task's paths from which on it is drift.
        first: How many calls with paths stand for the task where it names no path.
        name: Its name.
    """

    paths: Sequence[str] = ()
    window: int = 10
    outside: float = 0.8
    first: int = 5
    name: str = "Drift"

    def __post_init__(self) -> None:
        """Refuse thresholds that make no sense, and keep the paths as they are now."""
        given: object = self.paths
        if not isinstance(given, list | tuple | set | frozenset):
            raise ObserverError(f"DriftDetector(paths={given!r}) must be a list of paths")
        for path in cast("Sequence[object]", given):
            if not isinstance(path, str) or not path.strip():
                raise ObserverError(f"DriftDetector(paths={given!r}) must hold paths; {path!r} is none")
        object.__setattr__(self, "paths", tuple(self.paths))
        check_count("DriftDetector", "window", self.window, 3, KEPT_CALLS)
        check_count("DriftDetector", "first", self.first, 1, FIRST_CALLS)
        check_share("DriftDetector", "outside", self.outside)
        check_name("DriftDetector", self.name)

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether the newest calls went elsewhere."""
        return context.trajectory.with_paths >= self.window and bool(self._look(context)[1])

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Compare where the newest calls went with where the task is."""
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
        """Return where the task is, and the newest calls that went elsewhere, if they are enough."""
        given = tuple(self.paths)
        home = home_of(given, context.task[:READ_CHARS], () if given else self._early(context.trajectory.first_paths))
        return home, self._strayed(context.trajectory.recent(4 * self.window), home) if home.folders else ()

    def _strayed(self, recent: Sequence[CallDigest], home: Home) -> Sequence[CallDigest]:
        """Return those of the newest calls with paths that lie outside; nothing if they are too few."""
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

    def _early(self, first: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return the paths of the first calls that have any."""
        found: list[str] = []
        having = 0
        for paths in first:
            placed = [path for path in paths if is_placed(path)]
            found += placed
            having += bool(placed)
            if having == self.first:
                break
        return tuple(found)


class Home(NamedTuple):
    """Where a task is: its folders, part by part and as paths begin with them, and the words that show it in a path."""

    folders: frozenset[tuple[str, ...]]
    begins: tuple[str, ...]
    words: frozenset[str]


@lru_cache(maxsize=64)
def home_of(given: tuple[str, ...], task: str, early: tuple[str, ...]) -> Home:
    """Return where a task is.

    Args:
        given: Given paths; they alone count if there are any.
        task: What the agent was told. The paths that it names count if the agent began there; if not, they may be
            examples, or where a report is to go, and the surroundings of the first calls count too.
        early: Paths of the first calls.
    """
    text = URL.sub(" ", task).replace("\\", "/")
    folders = {folder for path in given or MENTIONED.findall(text) if (folder := folder_of(path))}
    begun = {folder_of(path) for path in early}
    if not given and not any(_holds(folder, named) for folder in begun for named in folders):
        folders |= surroundings(begun)
    begins = tuple("/".join((*folder, "")) for folder in folders)
    return Home(frozenset(folders), begins, frozenset(_stem(word.lower()) for word in WORD.findall(text)) - {""})


@lru_cache(maxsize=REMEMBERED)
def folder_of(path: str) -> tuple[str, ...]:
    """Return the folder that a path stands for, part by part: itself, or for a file the one that it lies in.

    Args:
        path: A path with strokes of either kind; the folder above everything is empty.
    """
    parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".", "~")]
    if parts and not path.endswith(("/", "\\")) and EXTENSION.search(parts[-1]):
        parts.pop()
    return tuple(parts)


def is_placed(path: str) -> bool:
    """Return whether a path says where it is: a bare name at the very top does not."""
    return "/" in path.replace("\\", "/").strip("./~ ")


@lru_cache(maxsize=REMEMBERED)
def words_of(path: str) -> frozenset[str]:
    """Return the words in a path's names that say something."""
    return frozenset(_stem(word.lower()) for word in WORD.findall(EXTENSION.sub("", path))) - {""}


def _stem(word: str) -> str:
    """Return a word without the s of its plural; nothing if it says nothing."""
    if len(word) < SHORTEST_WORD or word in SAYS_NOTHING:
        return ""
    return word[:-1] if len(word) > SHORTEST_WORD and word.endswith("s") and not word.endswith("ss") else word


@lru_cache(maxsize=REMEMBERED)
def is_inside(paths: tuple[str, ...], home: Home) -> bool | None:
    """Return whether a call worked where the task is; None if its paths say nothing about it.

    Args:
        paths: Paths among its arguments.
        home: Where the task is.
    """
    placed = [path for path in paths if is_placed(path)]
    if not placed:
        return None
    return any(path.startswith(home.begins) or belongs(path, home) for path in placed)


def belongs(path: str, home: Home) -> bool:
    """Return whether a path lies in one of the task's folders, holds one, or bears a word of the task."""
    folder = folder_of(path)
    near = any(_holds(folder, own) or _holds(own, folder) for own in home.folders)
    return near or not home.words.isdisjoint(words_of(path))


def _holds(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether all parts of a folder stand in another, in their order: one of the two may be absolute."""
    return any(one[start : start + len(other)] == other for start in range(len(one) - len(other) + 1))


def surroundings(folders: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return the folder around all of some folders, with what lies beside it; nothing if that would be everything."""
    common: tuple[str, ...] | None = None
    for folder in folders:
        common = folder if common is None else _common(common, folder)
    if not common:
        return set()
    return {common[:-1] if len(common) > 1 else common}


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    same = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        same += 1
    return one[:same]


def folders_of(calls: Iterable[CallDigest]) -> Iterable[str]:
    """Yield the folders of the paths of calls."""
    for call in calls:
        for path in call.paths:
            yield "/".join(folder_of(path)) or "."
