"""Whether the agent works where its task is: the paths of its newest calls against the paths of the task.

The task's paths are those that the prompt names, or those given here; without any, the paths of the first calls stand
for them. A path belongs to the task if it lies in one of the task's folders, or holds it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.evidence import check_count, check_share, cite
from watchkeeper.prompt.advice import Assessment, Observation, Severity
from watchkeeper.prompt.observer_context import ObserverContext
from watchkeeper.prompt.trajectory import CallDigest
from watchkeeper.session.session import Session
from watchkeeper.tools.invoked import ToolInvoked

MENTIONED: Final = re.compile(r"(?<![\w/:])(?:[\w.-]+/)+[\w.-]*|(?<![\w/])[\w-]+\.[A-Za-z]\w{0,4}\b")


@dataclass(frozen=True, slots=True)
class DriftDetector:
    """Tells the agent that it works elsewhere than its task says.

    Attributes:
        paths: The task's folders and files; empty takes them from the prompt, or else from the first calls.
        window: How many of the newest calls with paths are looked at.
        outside: The share of them outside the task's paths from which on it is drift.
        first: How many calls stand for the task where it names no path.
        name: Its name.
    """

    paths: Sequence[str] = ()
    window: int = 10
    outside: float = 0.6
    first: int = 5
    name: str = "Drift"

    def __post_init__(self) -> None:
        """Refuse thresholds that make no sense."""
        if isinstance(self.paths, str):
            raise ObserverError(f"DriftDetector(paths={self.paths!r}) must be a list of paths")
        check_count("DriftDetector", "window", self.window, 3)
        check_count("DriftDetector", "first", self.first)
        check_share("DriftDetector", "outside", self.outside)
        if not self.name.strip():
            raise ObserverError("DriftDetector(name='') must have a name")

    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether there are calls enough to judge."""
        return context.trajectory.count >= self.window

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Compare where the newest calls went with where the task is."""
        placed = [call for call in context.trajectory.recent(4 * self.window) if call.paths][-self.window :]
        if len(placed) < self.window:
            return None
        calls: Sequence[ToolInvoked] = session[ToolInvoked].all()
        home = self._home(context)
        if not home:
            return None
        strayed = [call for call in placed if not any(belongs(path, home) for path in call.paths)]
        if len(strayed) < self.outside * len(placed):
            return None
        severity: Severity = "warning" if len(strayed) == len(placed) else "caution"
        where = ", ".join(folder for folder, _ in Counter(folders_of(strayed)).most_common(3))
        said = f"{len(strayed)} of the last {len(placed)} calls worked outside it, mostly in {where}"
        return Assessment(
            self.name,
            f"Your task is about {', '.join(sorted(home)[:3])}; {said}.",
            (Observation("drift", f"{len(strayed)} calls outside the task's paths", cite(calls, _indices(strayed))),),
            ("Go back to the task, or say why this work is needed for it.",),
            severity,
        )

    def _home(self, context: ObserverContext) -> frozenset[str]:
        """Return the task's folders."""
        if self.paths:
            return frozenset(folder_of(path) for path in self.paths)
        named = frozenset(folder_of(path) for path in MENTIONED.findall(context.task))
        if named:
            return named
        early = [call for call in context.trajectory.recent(context.trajectory.count) if call.index <= self.first]
        return frozenset(folder_of(path) for call in early for path in call.paths)


def folder_of(path: str) -> str:
    """Return the folder that a path stands for: itself, or for a file the one that it lies in; ``.`` for the root."""
    pure = PurePosixPath(path.replace("\\", "/").strip("/"))
    return str(pure.parent if pure.suffix else pure)


def belongs(path: str, home: Iterable[str]) -> bool:
    """Return whether a path lies in one of the task's folders, or is one that holds it."""
    folder = folder_of(path)
    return any(own in (".", folder) or _within(folder, own) or _within(own, folder) for own in home)


def _within(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def folders_of(calls: Iterable[CallDigest]) -> Iterable[str]:
    """Yield the folders of the paths of calls."""
    for call in calls:
        for path in call.paths:
            yield folder_of(path)


def _indices(calls: Iterable[CallDigest]) -> list[int]:
    return [call.index for call in calls]
