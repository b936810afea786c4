"""What a session records about itself, so that its log alone explains its state.

These events are made by the session's own methods; dispatching one does what the method does. No reducer listens to
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID

from watchkeeper.session.registry import event
from watchkeeper.session.snapshot import Snapshot


@event("slice_edited")
@dataclass(frozen=True, slots=True)
class SliceEdited:
    """Somebody edited a slice directly.

    Attributes:
        slice_type: Which slice.
        edit: ``seed`` put the items in the place of all others, ``append`` added them, ``clear`` removed everything.
        items: The items, none for ``clear``.
    """

    slice_type: type
    edit: Literal["seed", "append", "clear"]
    items: tuple[Any, ...] = ()


@event("rolled_back")
@dataclass(frozen=True, slots=True)
class RolledBack:
    """The slices became what they were in a snapshot.

    Attributes:
        session_id: Whose snapshot it was.
        seq: The position of that session's log.
        snapshot: The state itself, if this log does not tell it: it is another session's, a branch's, or was read from
            JSON. Without its children, whose own logs tell theirs.
    """

    session_id: UUID
    seq: int
    snapshot: Snapshot | None = None


@event("state_inherited")
@dataclass(frozen=True, slots=True)
class StateInherited:
    """A child session began with the state of another session; that session's log tells how it came to be.

    Attributes:
        session_id: Whose snapshot it was.
        seq: The position of that session's log.
    """

    session_id: UUID
    seq: int


@event("session_reset")
@dataclass(frozen=True, slots=True)
class SessionReset:
    """Every slice became empty."""


BUILT_IN: Final[frozenset[type]] = frozenset({SliceEdited, RolledBack, StateInherited, SessionReset})
