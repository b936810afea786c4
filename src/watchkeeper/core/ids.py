"""Identifiers and randomness as a port, and the identifiers of a run.

Everything random comes from an `IdSource` or from a `random.Random` passed as an argument, so that a test with a seed
is reproducible. Identifiers are unique, not secret. A forked process reseeds its generator, so that two workers never
return the same identifier.
"""

from __future__ import annotations

import random
from typing import Final, Protocol
from uuid import UUID, SafeUUID

import msgspec

from watchkeeper.core.forks import in_forked
from watchkeeper.core.type_tags import own_value

_RANDOM_BITS: Final = ~(0xF000 << 64 | 0xC000 << 48)
_VERSION_4: Final = 0x4000 << 64 | 0x8000 << 48
"""The bits of a UUID that mark it as random (RFC 9562, section 5.4)."""


_new: Final = object.__new__
_put: Final = object.__setattr__


class IdSource(Protocol):
    """Where identifiers come from."""

    def uuid(self) -> UUID:
        """Return a fresh random (version 4) UUID."""
        ...

    def span_id(self) -> str:
        """Return 16 hex digits, as in W3C trace context."""
        ...

    def trace_id(self) -> str:
        """Return 32 hex digits, as in W3C trace context."""
        ...


class RandomIds:
    """Identifiers from a random generator; the system's own by default."""

    __slots__ = ("random",)

    def __init__(self, rng: random.Random | None = None) -> None:
        """Use ``rng``, or one seeded by the system."""
        self.random = rng or random.Random()

    def uuid(self) -> UUID:
        """Return a fresh random (version 4) UUID."""
        fresh = _new(UUID)  # as its constructor does, but without its checks, which take three times as long
        _put(fresh, "int", self.random.getrandbits(128) & _RANDOM_BITS | _VERSION_4)
        _put(fresh, "is_safe", SafeUUID.unknown)
        return fresh

    def span_id(self) -> str:
        """Return 16 hex digits, never all zero."""
        return f"{self.random.getrandbits(64) or 1:016x}"

    def trace_id(self) -> str:
        """Return 32 hex digits, never all zero."""
        return f"{self.random.getrandbits(128) or 1:032x}"


SYSTEM_IDS: Final = RandomIds()

in_forked(SYSTEM_IDS.random.seed)


@own_value("run_context")
class RunContext(msgspec.Struct, frozen=True, gc=False):
    """Identifiers of one run.

    Attributes:
        run_id: Unique to this run.
        request_id: Id of the caller's request; shared by all runs that serve it.
        session_id: The session the run writes to.
        attempt: 1 for the first try of a stored run.
        worker_id: Id of the worker that runs it.
        trace_id: 32 hex digits, shared by a run and its children.
        span_id: 16 hex digits, this run's own.
        parent_span_id: The parent's span, or None at the root.
    """

    run_id: UUID
    request_id: UUID
    session_id: UUID
    attempt: int = 1
    worker_id: str = "local"
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None


def root_run_context(session_id: UUID, ids: IdSource = SYSTEM_IDS) -> RunContext:
    """Return the context of a run that has no parent, with a trace of its own."""
    return RunContext(
        run_id=ids.uuid(), request_id=ids.uuid(), session_id=session_id, trace_id=ids.trace_id(), span_id=ids.span_id()
    )


def derive_child_run_context(
    parent: RunContext | None, child_session_id: UUID, ids: IdSource = SYSTEM_IDS
) -> RunContext:
    """Return the context of a child run: the parent's trace, a fresh run and span (docs/specification.md)."""
    return RunContext(
        run_id=ids.uuid(),
        request_id=parent.request_id if parent else ids.uuid(),
        session_id=child_session_id,
        worker_id=parent.worker_id if parent else "nested",
        trace_id=parent.trace_id if parent else None,
        span_id=generate_span_id(ids),
        parent_span_id=parent.span_id if parent else None,
    )


def generate_span_id(ids: IdSource = SYSTEM_IDS) -> str:
    """Return a fresh span id of 16 hex digits."""
    return ids.span_id()
