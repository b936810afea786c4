"""The tool calls of a run in a few words each: what observers look at instead of the history.

A call is digested once, when it is new; the fold keeps the newest ones and a handful of counts. Adding a call costs
the same at call ten and at call ten thousand. It is no state of its own: it can be made from the session's slice of
`ToolInvoked` at any time, and is, after a rollback or when a session goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from watchkeeper.tools.invoked import ToolInvoked, error_message, is_success

KEPT_CALLS: Final = 200
FIRST_CALLS: Final = 20
ERROR_CHARS: Final = 160
NUMBERS: Final = re.compile(r"0x[0-9a-f]+|\d+")
NAMES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\S*[/\\]\S+")
PATH_NAMES: Final = re.compile(r"(?:^|_)(?:path|paths|file|files|filename|folder|dir|directory)$", re.IGNORECASE)
LONGEST_PATH: Final = 300


class CallDigest(msgspec.Struct, frozen=True, gc=False):
    """One attempt at a tool call.

    Attributes:
        index: Its number in the session, from 1.
        name: The tool.
        action: Fingerprint of what was done: the tool and its arguments.
        kind: Fingerprint of what was done and what came of it.
        success: Whether it succeeded.
        error: What went wrong, without the names and numbers that tell two failures of one kind apart; empty if
            nothing did.
        paths: Paths among its arguments.
        at: When it ended.
    """

    index: int
    name: str
    action: int
    kind: int
    success: bool
    error: str
    paths: tuple[str, ...]
    at: datetime


def digest(invoked: ToolInvoked, index: int) -> CallDigest:
    """Return a call in a few words; ``index`` is its number in the session, from 1."""
    params = invoked.params
    success = is_success(invoked)
    action = hash((invoked.name, _written(params)))
    return CallDigest(
        index=index,
        name=invoked.name,
        action=action,
        kind=hash((action, invoked.rendered_output)),
        success=success,
        error="" if success else error_kind(error_message(invoked) or invoked.outcome),
        paths=tuple(paths_in(params)),
        at=invoked.created_at,
    )


def error_kind(message: str) -> str:
    """Return a message without what differs between two failures of one kind: names, paths, numbers."""
    return " ".join(NUMBERS.sub("#", NAMES.sub("*", message[: 2 * ERROR_CHARS].lower())).split())[:ERROR_CHARS]


def paths_in(params: Any) -> Iterable[str]:
    """Yield the paths among a call's arguments: by the name of the argument, or by their look."""
    for given, value in _arguments(params):
        name = str(given)  # a model's own names may be anything
        if isinstance(value, str):
            if _may_be_path(name, value):
                yield value
        elif isinstance(value, list | tuple):
            for text in cast("Sequence[Any]", value):
                if isinstance(text, str) and _may_be_path(name, text):
                    yield text


def _may_be_path(name: str, text: str) -> bool:
    if not 0 < len(text) <= LONGEST_PATH:
        return False
    return (len(name) <= LONGEST_PATH and _names_path(name)) or _is_path(text)


@lru_cache(maxsize=512)
def _names_path(name: str) -> bool:
    return PATH_NAMES.search(name) is not None


def _is_path(text: str) -> bool:
    return "/" in text and "//" not in text and not any(char.isspace() for char in text)


def _arguments(params: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(params, dict):
        return cast("dict[str, Any]", params).items()
    if isinstance(params, msgspec.Struct):
        return ((name, getattr(params, name)) for name in params.__struct_fields__)
    if is_dataclass(params):
        return ((item.name, getattr(params, item.name)) for item in fields(params))
    return ()


def _written(params: Any) -> bytes:
    try:
        return msgspec.json.encode(params, enc_hook=repr)
    except (TypeError, ValueError, RecursionError):  # whatever a model may have written, it has a text
        return repr(params).encode("utf-8", "replace")


class Trajectory:
    """The newest calls of a session and its counts.

    Attributes:
        count: Calls so far.
        errors_in_a_row: Failures since the last success.
        repeats_after: How many calls ago the newest call was made before, with the same arguments; 0 if it was not,
            as far as the kept calls tell.
        with_paths: How many of the calls taken in have paths among their arguments.
        first_paths: The paths of each of the session's first calls, `FIRST_CALLS` at most.
    """

    __slots__ = ("_calls", "_made_at", "count", "errors_in_a_row", "first_paths", "repeats_after", "with_paths")

    def __init__(self) -> None:
        """Start before the first call."""
        self._calls: list[CallDigest] = []
        self._made_at: dict[int, int] = {}
        self.count = 0
        self.errors_in_a_row = 0
        self.repeats_after = 0
        self.with_paths = 0
        self.first_paths: list[tuple[str, ...]] = []

    def begin(self, calls: Sequence[ToolInvoked]) -> int:
        """Start over with a session's slice; return how many calls were taken in, at most `KEPT_CALLS`."""
        self._calls.clear()
        self._made_at.clear()
        self.errors_in_a_row = self.repeats_after = self.with_paths = 0
        self.count = max(len(calls) - KEPT_CALLS, 0)
        self.first_paths = [tuple(paths_in(call.params)) for call in calls[: min(self.count, FIRST_CALLS)]]
        taken = calls[self.count :]
        for invoked in taken:
            self.add(invoked)
        return len(taken)

    def add(self, invoked: ToolInvoked) -> None:
        """Take in one more call."""
        self.count += 1
        call = digest(invoked, self.count)
        self._calls.append(call)
        before = self._made_at.get(call.action)
        self._made_at[call.action] = self.count
        if len(self._calls) >= 2 * KEPT_CALLS:
            del self._calls[:KEPT_CALLS]
            self._made_at = {kept.action: kept.index for kept in self._calls}
        self.repeats_after = 0 if before is None else self.count - before
        self.errors_in_a_row = 0 if call.success else self.errors_in_a_row + 1
        self.with_paths += bool(call.paths)
        if self.count <= FIRST_CALLS:
            self.first_paths.append(call.paths)

    def recent(self, count: int) -> Sequence[CallDigest]:
        """Return the newest calls, at most `KEPT_CALLS`, the oldest of them first."""
        return self._calls[-min(count, KEPT_CALLS) :] if count > 0 else ()

    @property
    def latest(self) -> CallDigest | None:
        """The newest call."""
        return self._calls[-1] if self._calls else None
