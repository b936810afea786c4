"""One trajectory of the corpus: what an agent did, call by call, and what it shows by the definitions of the docs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Label = Literal["stalled", "cascading", "drifting", "healthy"]


class TracedCall(msgspec.Struct, frozen=True, array_like=True):
    """One tool call: the tool, its arguments, what the model was shown, whether it succeeded, and when it began.

    Attributes:
        at: Seconds from the beginning of the run; calls of one parallel turn have the same.
    """

    tool: str
    arguments: Any
    result: str
    success: bool = True
    at: float = 0.0


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """One trajectory.

    Attributes:
        name: Says what happens in it; for people who read it, not for detectors.
        labels: What it shows by the definitions; ``healthy`` stands alone.
        task: What the agent was told.
        calls: What it did.
        since: For each label but ``healthy``: the number, from 1, of the first call that belongs to the trouble; a
            detector that speaks before raises a false alarm.
        origin: How it came about.
    """

    name: str
    labels: tuple[Label, ...]
    task: str
    calls: tuple[TracedCall, ...]
    since: dict[Label, int] = msgspec.field(default_factory=dict["Label", int])
    origin: str = "written"
