"""Digests of the newest tool calls of a run: what observers read instead of the whole history.

Each call is digested once, when it is new; the fold keeps the newest digests and a few counts. Adding a call costs the
same at call ten and at call ten thousand. The fold holds no state of its own: it is computed from the session's slice
of `ToolInvoked`, and computed again after a rollback or when a session is continued.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import msgspec

from watchkeeper.tools.context import ToolInvoked, error_message, is_success

F = TypeVar("F")

KEPT_CALLS: Final = 200
ERROR_CHARS: Final = 160
NUMBERS: Final = re.compile(r"0x[0-9a-f]+|\d+")
NAMES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\S*[/\\]\S+")

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
        at: The time at which the attempt ended.
        repeats_after: How many calls ago the same was done before; 0 if it was not among the kept calls.
    """

    index: int
    name: str
    action: int
    kind: int
    success: bool
    error: str
    at: datetime
    repeats_after: int = 0


def digest(invoked: ToolInvoked, index: int, made_at: Mapping[int, int] = NOTHING_BEFORE) -> CallDigest:
    """Return the digest of a call.

    Args:
        invoked: The call.
        index: Its number in the session, from 1.
        made_at: By fingerprint of an earlier action, the number of the newest call with that action.
    """
    success = is_success(invoked)
    action = hash((invoked.name, _written(invoked.params)))
    return CallDigest(
        index=index,
        name=invoked.name,
        action=action,
        kind=hash((action, invoked.rendered_output)),
        success=success,
        error="" if success else error_kind(error_message(invoked) or invoked.outcome),
        at=invoked.created_at,
        repeats_after=index - made_at.get(action, index),
    )


def error_kind(message: str) -> str:
    """Return a message without what differs between two failures of one kind: names, paths, numbers."""
    return " ".join(NUMBERS.sub("#", NAMES.sub("*", message[: 2 * ERROR_CHARS].lower())).split())[:ERROR_CHARS]


def _written(params: Any) -> bytes:
    try:
        return msgspec.json.encode(params, enc_hook=repr)
    except (TypeError, ValueError, RecursionError):  # msgspec cannot encode everything that a model may write
        return repr(params).encode("utf-8", "replace")


class Trajectory:
    """The newest calls of a session and its counts; observers read it, only the runtime adds to it."""

    __slots__ = ("_asked", "_calls", "_count", "_errors_in_a_row", "_folds", "_made_at")

    def __init__(self) -> None:
        """Start before the first call."""
        self.begin(())

    def begin(self, calls: Sequence[ToolInvoked]) -> int:
        """Start over with a session's slice; return how many calls were taken in, at most `KEPT_CALLS`."""
        self._calls: list[CallDigest] = []
        self._made_at: dict[int, int] = {}
        self._asked: dict[str, tuple[int, int]] = {}
        self._folds: dict[Hashable, Any] = {}
        self._errors_in_a_row = 0
        self._count = max(len(calls) - KEPT_CALLS, 0)
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

    def fold(self, key: Hashable, make: Callable[[], F]) -> F:
        """Return what an observer keeps about these calls; it is made when it is first asked for, and dropped when the
        trajectory begins anew.

        Args:
            key: Identifies it among all that observers keep.
            make: Returns it as it is before the first call; who asked for it brings it up to date.
        """
        kept = self._folds.get(key)
        if kept is None:
            kept = self._folds[key] = make()
        return cast("F", kept)

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
