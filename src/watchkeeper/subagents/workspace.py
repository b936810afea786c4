"""What a child gets to work with: files of its own, and the task in its prompt.

Files: each child of a tool call works on an overlay and changes nothing below it. When it has completed its work, its
artifacts are applied one by one to the files of the tool call, which are committed with the call. If another writer,
for example another child of the same call, changed that file since the child began, only this artifact fails. All other
changes are dropped.

Task: its instructions, metadata and the state that the child starts with reach the prompt by name: as placeholders, as
values for predicates, and as fields of a dataclass that the template declares. Values that the template may not mention
follow the prompt as one message, so that the child always gets its instructions.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from watchkeeper.core.codec import display
from watchkeeper.core.errors import FilesystemError
from watchkeeper.core.messages import Message, UserMessage
from watchkeeper.core.text import clipped, one_line, one_name
from watchkeeper.core.workers import run_in_worker
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt
from watchkeeper.session.slices import Snapshot
from watchkeeper.subagents.payloads import DispatchSubagent
from watchkeeper.tools.filesystem import Filesystem, normal_path
from watchkeeper.tools.filesystems import OverlayFilesystem

OutputT = TypeVar("OutputT")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The artifacts of one child, after they were applied to the parent's files.

    Attributes:
        kept: Files that it changed and that are the parent's now.
        unchanged: Files that are as they were before.
        absent: Paths without a file: it was not written, or the artifact is no file.
        failed: By path, why a file could not be kept.
    """

    kept: tuple[str, ...]
    unchanged: tuple[str, ...]
    absent: tuple[str, ...]
    failed: dict[str, str]


class Workspace:
    """The files of one tool call, and which of them its children have changed so far."""

    __slots__ = ("_lock", "base", "came")

    def __init__(self, base: Filesystem | None) -> None:
        """Take the files of the call, if it has any."""
        self.base = base
        self.came: list[str] = []
        self._lock = threading.Lock()

    async def handled(self, work: Callable[..., T], *args: Any) -> T:
        """Return what ``work`` makes of the files, of one child at a time.

        It runs on a worker thread if there are files: they may be slow, or held by a call that is late.
        """
        return work(*args) if self.base is None else await run_in_worker(self._alone, work, *args)

    def _alone(self, work: Callable[..., T], *args: Any) -> T:
        with self._lock:
            return work(*args)

    def open(self, expected: Iterable[str]) -> ChildFiles:
        """Return the files for a child run that begins now."""
        return ChildFiles(self, expected)


class ChildFiles:
    """The files of one child; to be discarded when it is over.

    Attributes:
        overlay: What it may read and write; None if the parent has no files.
    """

    __slots__ = ("_began", "_workspace", "overlay")

    def __init__(self, workspace: Workspace, expected: Iterable[str]) -> None:
        """Start with the parent's files, and remember the state of those that the child is expected to leave."""
        self._workspace = workspace
        self._began = len(workspace.came)
        self.overlay = None if workspace.base is None else OverlayFilesystem(workspace.base)
        if self.overlay is not None:
            for place in map(_place, expected):
                if place is not None:
                    with suppress(FilesystemError):  # writing fails there too; the hand-over reports it
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

    def dropped(self, kept: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the files that the child changed and that are not the parent's, in the order of their paths.

        Args:
            kept: Artifacts that are the parent's now, or that are reported in another way.
        """
        if self.overlay is None:
            return ()
        told = {_place(path) for path in kept}
        return tuple(change.path for change in self.overlay.changes() if change.path not in told)

    def discard(self) -> None:
        """Drop all changes that were not handed over; later writes are refused."""
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
    """Return an artifact's reference as a normal path; None if it is not a path."""
    try:
        return normal_path(path)
    except FilesystemError:
        return None


RESULTS: Final = ("watchkeeper.subagents.", "watchkeeper.judging.", "watchkeeper.app.", "watchkeeper.store.")
"""Where the types are defined that may be results of the work."""

MOST_SLICES: Final = 12
ITEM_CHARS: Final = 120
NOTHING: Final = "none"


def told(
    prompt: Prompt[OutputT], task: DispatchSubagent, snapshot: Snapshot, *, has_files: bool = False
) -> tuple[Prompt[OutputT], list[Message]]:
    """Return a prompt with a task's values, and the message that says what the prompt itself does not.

    Args:
        prompt: The subagent's.
        task: The task of the child.
        snapshot: The state that it starts with.
        has_files: Whether it can write files, so that it has to know which of them are kept.

    Raises:
        PromptDefinitionError: If the prompt cannot take the values that it asks for.
    """
    values = values_of(task, snapshot)
    template = prompt.template
    fields = {name: getattr(task, name, values[name]) for name in values}
    for type_ in template.params or ():
        if type_ not in prompt.params:
            given = _arguments(type_, fields)
            prompt = prompt if given is None else prompt.bind(type_(**given))
    if template.params is None:
        fitting = values
    else:
        known = {item.name for type_ in template.params for item in dataclasses.fields(type_)}
        fitting = {name: value for name, value in values.items() if name in known}
    prompt = prompt.with_variables(**{**fitting, **prompt.variables})
    mentioned = {name for section in template.sections for name in _sure_placeholders(section)} & fitting.keys()
    rest = {name: value for name, value in values.items() if name not in mentioned}
    return prompt, _messages(rest, has_files=has_files)


def values_of(task: DispatchSubagent, snapshot: Snapshot) -> dict[str, str]:
    """Return what a child's prompt may name, as text."""
    return {
        "instructions": task.instructions,
        "mode": task.mode,
        "plan_step_id": one_line(task.plan_step_id) if task.plan_step_id else NOTHING,
        "expected_artifacts": ", ".join(map(one_name, task.expected_artifacts)) or NOTHING,
        "snapshot_summary": "\n".join(summary_lines(snapshot)) or "- empty",
        "snapshot_version": str(snapshot.version),
    }


def summary_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield what a snapshot holds: for each slice its name, its size, and its newest item, shortened.

    Slices that only say how the run went (tool calls, turns, incidents) are left out.
    """
    slices = [(type_, view) for type_, view in snapshot.slices.items() if not says_how_a_run_went(type_)]
    for type_, view in slices[:MOST_SLICES]:
        short = clipped(" ".join(display(view[-1]).split()), ITEM_CHARS + 1)
        yield f"- {type_.__qualname__}: {len(view):,} item{'s' if len(view) != 1 else ''}, the newest: {short}"
    if len(slices) > MOST_SLICES:
        yield f"- and {len(slices) - MOST_SLICES} more"
    for child in snapshot.children:
        for line in summary_lines(child):
            yield f"- in the session below, {child.session_id}: {line.removeprefix('- ')}"


def says_how_a_run_went(type_: type[Any]) -> bool:
    """Return whether a slice's type is an event of Watchkeeper, and not a result of the work."""
    module = type_.__module__
    return module.startswith("watchkeeper.") and not module.startswith(RESULTS)


def _arguments(type_: type[Any], fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values of a task that a declared dataclass takes; None if it needs others, or takes none of them."""
    items = [item for item in dataclasses.fields(type_) if item.init]
    given = {item.name: fields[item.name] for item in items if item.name in fields}
    absent = dataclasses.MISSING
    needs = {item.name for item in items if item.default is absent and item.default_factory is absent}
    return given if given and needs <= given.keys() else None


def _sure_placeholders(section: MarkdownSection) -> Iterable[str]:
    """Yield the placeholders of a section and those in it, but of none that a predicate may leave out."""
    if section.enabled is None:
        yield from section.placeholders
        for child in section.children:
            yield from _sure_placeholders(child)


def _messages(values: Mapping[str, str], *, has_files: bool) -> list[Message]:
    """Return one message with the parts of the task that the prompt does not show; none if there are none."""
    if not values:
        return []
    lines: list[str] = []
    if "instructions" in values:
        lines += ["# Your task", "", values["instructions"], ""]
    mode = {"plan_step": "This is a step of a plan", "ad_hoc": "This is a task by itself"}
    if "mode" in values:
        lines.append(f"{mode[values['mode']]}.")
    if values.get("plan_step_id", NOTHING) != NOTHING:
        lines.append(f"Step of the plan: {values['plan_step_id']}")
    if values.get("expected_artifacts", NOTHING) != NOTHING:
        lines.append(f"Leave these files; no others are kept: {values['expected_artifacts']}")
    elif has_files and "expected_artifacts" in values:
        lines.append("No file that you write is kept: put everything that is asked for into your answer.")
    if "snapshot_summary" in values:
        version = f" (snapshot version {values['snapshot_version']})" if "snapshot_version" in values else ""
        lines += [f"State that you begin with{version}:", values["snapshot_summary"]]
    return [UserMessage.of("\n".join(lines).strip())] if any(lines) else []
