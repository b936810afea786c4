"""What a run had used before its limits were fresh: a part of all that it has used, which they do not count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from watchkeeper.core.type_tags import own_value
from watchkeeper.core.usage import Usage


@own_value("used_before")
class UsedBefore(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run had used before its limits were fresh: a part of all that it has used, which they do not count.

    Attributes:
        usage: Tokens, money and calls.
        turns: Model turns.
        seconds: How long it had worked.
    """

    usage: Usage = Usage()
    turns: int = 0
    seconds: float = 0.0

    def __add__(self, other: UsedBefore) -> UsedBefore:
        """Return the sum."""
        return UsedBefore(self.usage + other.usage, self.turns + other.turns, self.seconds + other.seconds)


NOTHING_BEFORE: Final = UsedBefore()


def with_all_used(end: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event of a run's end, as JSON, with all that the run has used; ``earlier`` is None if that is nothing.

    Raises:
        msgspec.ValidationError: If its figures are no such figures.
    """
    earlier = msgspec.convert(end.get("earlier") or {}, UsedBefore)
    if earlier == NOTHING_BEFORE:
        return {**end, "earlier": None}
    usage, turns = msgspec.convert(end["usage"], Usage) + earlier.usage, end.get("turns")
    return {
        **end,
        "usage": msgspec.to_builtins(usage),
        "turns": None if turns is None else turns + earlier.turns,
        "duration_ms": end["duration_ms"] + earlier.seconds * 1000,
    }
