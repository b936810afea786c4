"""Digests of the newest tool calls of a run: what observers read instead of the whole history.

Each call is digested once, when it is new; the fold keeps the newest digests and a few counts. Adding a call costs the
same at call ten and at call ten thousand. The fold holds no state of its own: it is computed from the session's slice
of `ToolInvoked`, and computed again after a rollback or when a session is continued.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec

from watchkeeper.tools.context import ToolInvoked, error_message, is_success

KEPT_CALLS: Final = 200
FIRST_CALLS: Final = 20
ERROR_CHARS: Final = 160
NUMBERS: Final = re.compile(r"0x[0-9a-f]+|\d+")
NAMES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\S*[/\\]\S+")
PATH_NAMES: Final = re.compile(r"(?:^|_)(?:path|paths|file|files|filename|folder|dir|directory)$", re.IGNORECASE)
LONGEST_PATH: Final = 300
PATHS_OF_A_CALL: Final = 20
"""The number of paths of one call that are kept, the first ones."""

LISTED: Final = 200
"""The number of values of a list, and of arguments of a call, that are searched for paths."""

FIRST_PATHS: Final = 100
"""The number of paths of all first calls together that are kept."""

NOTHING_BEFORE: Final[Mapping[int, int]] = MappingProxyType({})


class CallDigest(msgspec.Struct, frozen=True, gc=False):
    """One attempt at a tool call.

    Attributes:
        index: Its number in the session, from 1.
        name: The tool.
        action: Fingerprint of what was done: the tool and its arguments.
        kind: Fingerprint of what was done and of its result.
        success: Whether it succeeded.
        error: What went wrong, without the names and numbers in which failures of one kind differ; empty if nothing
            went wrong.
        paths: The first paths among its arguments, `PATHS_OF_A_CALL` at most.
        at: The time at which the attempt ended.
        repeats_after: How many calls ago the same was done before; 0 if it was not among the kept calls.
    """

    index: int
    name: str
    action: int
    kind: int
    success: bool
    error: str
    paths: tuple[str, ...]
    at: datetime
    repeats_after: int = 0


def digest(invoked: ToolInvoked, index: int, made_at: Mapping[int, int] = NOTHING_BEFORE) -> CallDigest:
    """Return the digest of a call.

    Args:
        invoked: The call.
        index: Its number in the session, from 1.
        made_at: By fingerprint of an earlier action, the number of the newest call with that action.
    """
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
        paths=tuple(islice(paths_in(params), PATHS_OF_A_CALL)),
        at=invoked.created_at,
        repeats_after=index - made_at.get(action, index),
    )


def error_kind(message: str) -> str:
    """Return a message without what differs between two failures of one kind: names, paths, numbers."""
    return " ".join(NUMBERS.sub("#", NAMES.sub("*", message[: 2 * ERROR_CHARS].lower())).split())[:ERROR_CHARS]


def paths_in(params: Any) -> Iterable[str]:
    """Yield the paths among a call's arguments: by the name of the argument, or by their look.

    Args:
        params: The arguments; if there are very many, or very long lists, only the first ones are read.
    """
    for given, value in islice(_arguments(params), LISTED):
        name = str(given)  # a model's own names may be anything
        if isinstance(value, str):
            if _may_be_path(name, value):
                yield value
        elif isinstance(value, list | tuple):
            for text in islice(cast("Sequence[Any]", value), LISTED):
                if isinstance(text, str) and _may_be_path(name, text):
                    yield text


def _may_be_path(name: str, text: str) -> bool:
    if not 0 < len(text) <= LONGEST_PATH:
        return False
    if len(name) <= LONGEST_PATH and _names_path(name):
        return True
    return "/" in text and "//" not in text and not any(char.isspace() for char in text)


@lru_cache(maxsize=512)
def _names_path(name: str) -> bool:
    return PATH_NAMES.search(name) is not None


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
    except (TypeError, ValueError, RecursionError):  # msgspec cannot encode everything that a model may write
        return repr(params).encode("utf-8", "replace")


class Trajectory:
    """The newest calls of a session and its counts; observers read it, only the runtime adds to it."""

    __slots__ = ("_asked", "_calls", "_count", "_errors_in_a_row", "_first_paths", "_made_at", "_with_paths")

    def __init__(self) -> None:
        """Start before the first call."""
        self.begin(())

    def begin(self, calls: Sequence[ToolInvoked]) -> int:
        """Start over with a session's slice; return how many calls were taken in, at most `KEPT_CALLS`."""
        self._calls: list[CallDigest] = []
        self._made_at: dict[int, int] = {}
        self._asked: dict[str, tuple[int, int]] = {}
        self._errors_in_a_row = self._with_paths = 0
        self._count = max(len(calls) - KEPT_CALLS, 0)
        self._first_paths: tuple[tuple[str, ...], ...] = ()
        for call in calls[: min(self._count, FIRST_CALLS)]:
            self._keep_first(tuple(islice(paths_in(call.params), PATHS_OF_A_CALL)))
        taken = calls[self._count :]
        for invoked in taken:
            self.add(invoked)
        return len(taken)

    def add(self, invoked: ToolInvoked) -> None:
        """Take in one more call."""
        count = self._count = self._count + 1
        call = digest(invoked, count, self._made_at)
        self._calls.append(call)
        self._made_at[call.action] = count
        if len(self._calls) >= 2 * KEPT_CALLS:
            del self._calls[:KEPT_CALLS]
            self._made_at = {kept.action: kept.index for kept in self._calls}
        self._errors_in_a_row = 0 if call.success else self._errors_in_a_row + 1
        self._with_paths += bool(call.paths)
        if count <= FIRST_CALLS:
            self._keep_first(call.paths)

    def _keep_first(self, paths: tuple[str, ...]) -> None:
        left = FIRST_PATHS - sum(map(len, self._first_paths))
        self._first_paths = (*self._first_paths, paths[:left])

    def recent(self, count: int) -> Sequence[CallDigest]:
        """Return the newest calls, at most `KEPT_CALLS`, the oldest of them first."""
        return self._calls[-min(count, KEPT_CALLS) :] if count > 0 else ()

    def unseen_by(self, name: str) -> int:
        """Return how many of the newest calls an observer has not looked at yet, and note that it looks at them now.

        Observers are called after turns of several calls, or less often. A second question before the next call gets
        the same answer. After a rollback, or when a session is continued, every call counts as not looked at.

        Args:
            name: The observer's name, which is unique in its template.
        """
        since, asked_at = self._asked.get(name, (0, 0))
        if asked_at != self._count:
            since = asked_at
            self._asked[name] = (since, self._count)
        return self._count - since

    @property
    def latest(self) -> CallDigest | None:
        """The newest call."""
        return self._calls[-1] if self._calls else None

    @property
    def count(self) -> int:
        """Calls so far."""
        return self._count

    @property
    def errors_in_a_row(self) -> int:
        """Failures since the last success."""
        return self._errors_in_a_row

    @property
    def repeats_after(self) -> int:
        """How many calls ago the newest call was made before, with the same arguments; 0 if it was not."""
        return self._calls[-1].repeats_after if self._calls else 0

    @property
    def with_paths(self) -> int:
        """How many of the calls taken in have paths among their arguments."""
        return self._with_paths

    @property
    def first_paths(self) -> tuple[tuple[str, ...], ...]:
        """The paths of each of the session's first calls, `FIRST_CALLS` at most; if very many, the first ones."""
        return self._first_paths
