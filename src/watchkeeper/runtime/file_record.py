"""What tools change in files, as a run's record has it: enough to finish an interrupted commit, and to rebuild files.

Before the changes of a call are committed, they are on disk in the run's record, with the call's result (`changed`). If
the process dies while it writes them, the one that goes on with the run finishes the commit (`finish`): a path that is
as it was before is written, one that is as it should be is left, and anything else was changed by somebody else: it
stays as it is, and the agent is told. Files that end with the process are made again from the record (`Rebuilt`).
Nothing but the paths on record is ever touched. What is stored of the contents is exact or not stored at all: neither
shortened nor, because of a credential in it, redacted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import msgspec

from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError, FilesystemError
from watchkeeper.core.secrets import HELD
from watchkeeper.core.text import error_text, is_storable, storable
from watchkeeper.core.type_tags import tag_of
from watchkeeper.session.event_json import is_foreign, read_event, read_own, write_event
from watchkeeper.session.log import event
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.filesystem import ROOT, EntryKind, Filesystem, ReadOnlyFilesystem
from watchkeeper.tools.filesystems import MemoryFilesystem, OverlayFilesystem

MOST_BYTES: Final = 16 << 20
"""Most bytes of content that are stored of one call's changes, or of files as they were at the start."""

EXACT: Final = ("utf-8", "surrogatepass")
"""How a path is encoded that is no UTF-8."""

NOTHING: Final = ""
FOLDER: Final = "directory"

TOO_LARGE: Final = f"more than {MOST_BYTES >> 20} MiB"
SECRET: Final = "they hold a credential"

OTHERS: Final = "somebody else has changed it since, and it stays as it is"


class PathChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One path before and after a change.

    Attributes:
        path: From the root.
        kind: What is there afterwards; None for nothing.
        before: What was there: the SHA-256 of a file's content, ``directory``, or empty for nothing. Empty too for a
            file to which data was appended.
        after: What is there afterwards, likewise; of a file to which data was appended, the SHA-256 of that data.
        data: The content of a file afterwards, or what was appended to it; None if it is not stored, or is no file.
        size: The size of the file before data was appended to it; None for any other change.
        added: How many bytes were appended.
        exact: The path as it is on disk, where it is no UTF-8, as names of files may be; there ``path`` shows it.
    """

    path: str
    kind: EntryKind | None = None
    before: str = NOTHING
    after: str = NOTHING
    data: bytes | None = None
    size: int | None = None
    added: int = 0
    exact: bytes | None = None


class FilesChanged(msgspec.Struct, frozen=True, omit_defaults=True):
    """The changes that a call's commit is about to make, or the files that a run begins with.

    It is a line of a run's file, and no event of the session's log. The commit is done once the `ToolInvoked` with
    ``event_id`` is on the log.

    Attributes:
        created_at: When it was recorded.
        paths: The changes, by path.
        left_out: Why the contents are not stored; empty if they are.
        filesystem: The type of the run's filesystem, where these are the files it begins with.
        event_id: The event that the call will have, where these are the changes of a call.
        invoked: That event, as JSON.
        events: What the tool wrote to the session, as tags and JSON.
    """

    created_at: datetime
    paths: tuple[PathChange, ...] = ()
    left_out: str = ""
    filesystem: str = ""
    event_id: UUID | None = None
    invoked: msgspec.Raw = msgspec.Raw(b"null")
    events: tuple[tuple[str, msgspec.Raw], ...] = ()


@event("files_not_on_record")
class FilesNotOnRecord(msgspec.Struct, frozen=True):
    """What a tool has changed in files that end with the process is not stored: the run can be resumed no more.

    Attributes:
        call_id: The provider's id of the call.
        name: The tool.
        why: Why the contents are not stored.
        created_at: The time of the event.
    """

    call_id: str
    name: str
    why: str
    created_at: datetime


_DECODER: Final = msgspec.json.Decoder(FilesChanged)


def storable_files(line: FilesChanged) -> FilesChanged:
    """Return a line for the record whose paths can be written, each with its exact bytes where they are no UTF-8."""
    return msgspec.structs.replace(line, paths=tuple(map(_encodable, line.paths)))


def files_of_json(data: msgspec.Raw) -> FilesChanged:
    """Return a line of the record.

    Raises:
        ValueError: If it is none.
    """
    line = _DECODER.decode(data)
    return msgspec.structs.replace(line, paths=tuple(map(_exact, line.paths)))


def _encodable(change: PathChange) -> PathChange:
    if is_storable(change.path):
        return change
    return msgspec.structs.replace(change, path=storable(change.path), exact=change.path.encode(*EXACT))


def _exact(change: PathChange) -> PathChange:
    return change if change.exact is None else msgspec.structs.replace(change, path=change.exact.decode(*EXACT))


# --- writing --------------------------------------------------------------------------------------------------------


def opened(files: Filesystem | None, now: datetime) -> tuple[FilesChanged | None, str]:
    """Return what the record of a run has of its files at the start, and why they could not be rebuilt; empty if so."""
    if files is None or isinstance(files, ReadOnlyFilesystem):
        return None, ""
    kind = type(files).__name__
    if files.survives_process:
        return FilesChanged(now, filesystem=kind), ""
    if not isinstance(files, MemoryFilesystem | OverlayFilesystem):
        return None, f"what its tools change in a {kind} is not on record, and ends with the process"
    paths = [change.path for change in files.changes()] if isinstance(files, OverlayFilesystem) else everything(files)
    if sum(files.stat(path).size for path in paths if files.is_file(path)) > MOST_BYTES:
        return None, f"its {kind} holds {TOO_LARGE} at the start"
    found = tuple(_as_it_is(files, path) for path in paths)
    if any(map(_shows_secret, found)):
        return None, f"what its {kind} holds at the start is not stored: {SECRET}"
    return FilesChanged(now, found, filesystem=kind), ""


def of_items(files: Filesystem | None) -> str:
    """Return why nobody could go on with the items of a run over many, which share the files; empty if somebody can."""
    if files is None or files.survives_process or isinstance(files, ReadOnlyFilesystem):
        return ""
    return f"its items share a {type(files).__name__}, which ends with the process"


def everything(files: Filesystem) -> list[str]:
    """Return the paths of all files and folders, sorted."""
    found: list[str] = []
    folders = [ROOT]
    while folders:
        below = files.list(folders.pop())
        found += below
        folders += [path for path in below if files.kind(path) == FOLDER]
    return sorted(found)


def changed(context: ToolContext, invoked: ToolInvoked, now: datetime) -> FilesChanged:
    """Return what the commit of a call is about to change; reads and hashes files, so it is for worker threads.

    Raises:
        FilesystemError: If one of the files was changed outside meanwhile: it cannot be committed.
    """
    overlay, base = context.changed_files, context.scope.filesystem
    paths: tuple[PathChange, ...] = ()
    if overlay is not None and base is not None:
        paths = tuple(_change(overlay, base, change.path) for change in overlay.changes())
        overlay.check()  # what was hashed is what the tool has seen
    left_out = ""
    if sum(len(change.data or b"") for change in paths) > MOST_BYTES:
        left_out = f"the call changed {TOO_LARGE}"
    elif any(map(_shows_secret, paths)):
        left_out = SECRET
    if left_out:
        paths = tuple(msgspec.structs.replace(change, data=None) for change in paths)
    events = tuple((_tag(each), _json(each)) for each in context.written_events)
    return FilesChanged(now, paths, left_out, event_id=invoked.event_id, invoked=_json(invoked), events=events)


def _change(overlay: OverlayFilesystem, base: Filesystem, path: str) -> PathChange:
    added = overlay.added(path)
    if added:
        size = base.stat(path).size
        return PathChange(path, "file", after=_digest(added), data=added, size=size, added=len(added))
    return msgspec.structs.replace(_as_it_is(overlay, path), before=_state(base, path))


def _as_it_is(files: Filesystem, path: str) -> PathChange:
    kind = files.kind(path)
    data = files.read_bytes(path) if kind == "file" else None
    return PathChange(path, kind, after=kind or NOTHING if data is None else _digest(data), data=data)


def _state(files: Filesystem, path: str) -> str:
    kind = files.kind(path)
    return _digest(files.read_bytes(path)) if kind == "file" else kind or NOTHING


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def _shows_secret(change: PathChange) -> bool:
    if not HELD.any:
        return False
    texts = (change.path, (change.data or b"").decode("utf-8", "surrogateescape"))
    return any(HELD.redacted(text) != text for text in texts)


def _tag(event: object) -> str:
    kind: type[Any] = type(event)
    return tag_of(kind)


def _json(event: object) -> msgspec.Raw:
    return msgspec.Raw(HELD.redacted_json(write_event(event).decode()).encode())


# --- going on -------------------------------------------------------------------------------------------------------


class Unfinished(msgspec.Struct, frozen=True):
    """A call whose tool has succeeded, and whose commit was interrupted.

    Attributes:
        changes: What it was about to change.
        invoked: The result that it has if the commit can be finished.
        events: What the tool wrote to the session.
    """

    changes: FilesChanged
    invoked: ToolInvoked
    events: tuple[Any, ...]


class FilesOnRecord:
    """What is on record of a run's files.

    Attributes:
        unfinished: The calls whose commit was interrupted, by their id.
    """

    def __init__(self, lines: Iterable[FilesChanged], log: Iterable[object], *, own: bool = False) -> None:
        """Read the lines of a run's file, given the events of its log.

        Args:
            lines: What the tools were about to change.
            log: The events.
            own: Whether to leave out of the results what is of types that are not ours.

        Raises:
            ConfigurationError: If the result of a call cannot be read here.
        """
        done = {event.event_id: event for event in log if isinstance(event, ToolInvoked)}
        self._opened: FilesChanged | None = None
        self._kept: list[tuple[ToolInvoked, FilesChanged]] = []
        self.unfinished: dict[str, Unfinished] = {}
        for line in lines:
            invoked = None if line.event_id is None else done.get(line.event_id)
            if line.event_id is None:
                self._opened = self._opened or line
            elif invoked is None:
                left = _unfinished(line, own=own)
                self.unfinished[left.invoked.call_id or ""] = left
            elif invoked.outcome == "ok":
                self._kept.append((invoked, line))

    def check(self, files: Filesystem | None) -> None:
        """Refuse a filesystem with which the run cannot go on.

        Raises:
            ConfigurationError: If it is of another type than the run's, or its files cannot be rebuilt.
        """
        kind = None if self._opened is None else self._opened.filesystem
        if kind is not None and type(files).__name__ != kind:
            raise ConfigurationError(f"its tools work on a {kind}: give it one (filesystem=..., --files)")
        if files is None or files.survives_process:
            return
        for invoked, line in self._kept:
            if line.left_out:
                raise ConfigurationError(
                    f"what {invoked.name} changed in its {type(files).__name__} is not stored: {line.left_out}"
                )

    def rebuild_below(self, files: Filesystem | None) -> None:
        """Make the files of a run below another as they were, in new ones that begin as the old ones did.

        Raises:
            ConfigurationError: If they cannot be made.
        """
        self.check(files)
        self.rebuild(files)

    def rebuild(self, files: Filesystem | None) -> None:
        """Make files that ended with the process as they were; others are left as they are.

        Raises:
            ConfigurationError: If they cannot be made.
        """
        if files is None or files.survives_process or isinstance(files, ReadOnlyFilesystem):
            return
        with files.exclusive():
            if self._opened is not None and isinstance(files, MemoryFilesystem):
                for path in reversed(everything(files)):
                    files.delete(path)
            for line in (*([] if self._opened is None else [self._opened]), *(line for _, line in self._kept)):
                problems = apply(files, line.paths)
                if problems:
                    raise ConfigurationError(f"its files cannot be rebuilt: {_listed(problems)}")


def _unfinished(line: FilesChanged, *, own: bool) -> Unfinished:
    read = read_own if own else read_event
    try:
        invoked: ToolInvoked = read(tag_of(ToolInvoked), json.loads(bytes(line.invoked)))
        wrote = [(tag, body) for tag, body in line.events if not (own and is_foreign(tag))]
        events = tuple(read(tag, json.loads(bytes(body))) for tag, body in wrote)
    except (CodecError, ValueError) as error:
        raise ConfigurationError(f"the result of an interrupted call cannot be read here: {error}") from error
    return Unfinished(line, invoked, events)


def finish(files: Filesystem, left: FilesChanged) -> str:
    """Finish an interrupted commit; return what could not be written and why, or an empty text."""
    problems: dict[str, str] = {}
    todo: list[PathChange] = []
    with files.exclusive():
        for change in left.paths:
            try:
                if _is_to_do(files, change):
                    todo.append(change)
            except Exception as error:  # files may be of any kind, and fail in any way
                problems[change.path] = _why(error)
        for change in todo:
            if change.kind == "file" and change.data is None:
                problems[change.path] = f"not written: its content is not on record ({left.left_out})"
        problems |= apply(files, [change for change in todo if change.path not in problems])
    if not problems:
        return ""
    written = [change.path for change in left.paths if change.path not in problems]
    said = (
        f"the process ended while its files were written, and not all could be written afterwards: {_listed(problems)}"
    )
    return f"{said}. As it should be: {', '.join(written) or 'no file'}"


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, FilesystemError) else error_text(error)


def _listed(problems: Mapping[str, str]) -> str:
    return "; ".join(f"{path}: {why}" for path, why in sorted(problems.items()))


def _is_to_do(files: Filesystem, change: PathChange) -> bool:
    """Return whether a change is still to be made.

    Raises:
        FilesystemError: If the path is neither as before nor as after.
    """
    if change.size is not None:
        extra = _added_so_far(files, change)
        if len(extra) == change.added and _digest(extra) == change.after:
            return False
        if extra and (change.data is None or not change.data.startswith(extra)):
            raise FilesystemError(OTHERS)
        return True
    now = _state(files, change.path)
    if now == change.after:
        return False
    was_removed = now == NOTHING != change.before and (change.before == FOLDER) != (change.kind == FOLDER)
    if now != change.before and not was_removed:  # a file that becomes a folder is removed first
        raise FilesystemError(OTHERS)
    return True


def _added_so_far(files: Filesystem, change: PathChange) -> bytes:
    data = files.read_bytes(change.path)
    if len(data) < (change.size or 0):
        raise FilesystemError(OTHERS)
    return data[change.size :]


def apply(files: Filesystem, changes: Sequence[PathChange]) -> dict[str, str]:
    """Make paths as they are to be; return by path what went wrong."""
    problems: dict[str, str] = {}
    for change in sorted(changes, key=lambda each: each.path, reverse=True):
        try:
            there = files.kind(change.path)
            if there is not None and there != change.kind:
                files.delete(change.path)
        except Exception as error:
            problems[change.path] = _why(error)
    for change in sorted(changes, key=lambda each: each.path):
        if change.path in problems:
            continue
        try:
            if change.kind == FOLDER:
                files.make_dirs(change.path)
            elif change.kind == "file":
                _write(files, change)
        except Exception as error:
            problems[change.path] = _why(error)
    return problems


def _write(files: Filesystem, change: PathChange) -> None:
    data = change.data or b""
    if change.size is None:
        files.write_bytes(change.path, data)
        return
    extra = _added_so_far(files, change)
    with suppress(UnicodeDecodeError):
        files.append_text(change.path, data[len(extra) :].decode())
        return
    files.write_bytes(change.path, files.read_bytes(change.path)[: change.size] + data)
