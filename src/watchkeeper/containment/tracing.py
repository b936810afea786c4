"""The tracer of a gate: is told of each call when its work begins and ends, and makes its span the current one.

One tracer serves a whole tree of contexts. It sees all calls that are admitted, those of the user's own code too; what
a run's log says of a call comes to the tracer by itself, which follows the log. Without a tracer a call costs two tests
for None more. A tracer must never raise, wait, or change what a call does.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from watchkeeper.accounting.call_request import CallRequest, Charge
from watchkeeper.containment.record import Node


class TracedCall(Protocol):
    """What a tracer may read of a call under way."""

    @property
    def request(self) -> CallRequest: ...
    @property
    def node(self) -> Node: ...
    @property
    def max_output_tokens(self) -> int: ...
    @property
    def is_settled(self) -> bool: ...


class Tracer(Protocol):
    """Makes spans of runs and calls."""

    def enter(self, call: TracedCall) -> Any:
        """Begin the span of a call and make it current for its work; None if it has none."""
        ...

    def leave(self, entered: Any) -> None:
        """Make current again what was current before a call; its span may still be open."""
        ...

    def ended(self, call: TracedCall, charge: Charge) -> None:
        """Take note of how a call ended, which its node tells, and what it was charged."""
        ...

    def following(self, run: Any, plan: Any) -> AbstractContextManager[None]:
        """Follow the log of a run while the block runs, and make its span the current one.

        Args:
            run: Its `RunScope`.
            plan: Its `RunPlan`; None for a run over many items.
        """
        ...


def leave(tracer: Tracer | None, entered: Any) -> None:
    """Make current again what was current before a call, if a tracer made the call's span current."""
    if tracer is not None and entered is not None:
        tracer.leave(entered)
