"""Identifiers and randomness as a port.

Everything random comes from an `IdSource` or from a `random.Random` that was handed in, so that a test with a seed is
the same every time. Identifiers are unique, not secret. A forked process starts a sequence of its own, so that two
workers never give the same identifier.
"""

from __future__ import annotations

import os
import random
from typing import Final, Protocol
from uuid import UUID, SafeUUID

_RANDOM_BITS: Final = ~(0xF000 << 64 | 0xC000 << 48)
_VERSION_4: Final = 0x4000 << 64 | 0x8000 << 48
"""The bits of a UUID in which it says that it is random (RFC 9562, section 5.4)."""


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
        fresh = _new(UUID)  # what its constructor sets, without the checks that take three times as long as all else
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

if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=SYSTEM_IDS.random.seed)
