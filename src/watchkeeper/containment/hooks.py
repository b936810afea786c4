"""The vocabulary of shield hooks: what a `ShieldPipeline` may ask, and when (seed: execution-context).

Each method returns a `Decision`, or None to abstain. A hook is plain and quick, and safe under threads if its pipeline
is shared; one that raises, answers nonsense or takes too long is recorded and counts as HALT. A hook has the methods of
its slot, and may have besides:

- ``release(ctx)``: a call about which it was asked does not run after all; gives back what it counted for it
- ``stop_reason``: one of `core.stop.StopReason`, the reason of its HALT; ``policy_halt`` otherwise
- ``explain(ctx) -> str``: one sentence that says why it did not allow the call
- ``blocks_for``: seconds it may take; it is then asked on a worker thread, so that it can wait (for a person, a server)
- ``fallback_model``: name of the cheaper model to take when it says DEGRADE
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from watchkeeper.containment.decision import Decision
from watchkeeper.containment.tool_call_context import ToolCallContext


class PreDispatchHook(Protocol):
    """Asked before a model call; afterwards too, if it has ``after_llm_call(ctx, response)``."""

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        """Decide whether the model may be asked."""
        ...


class ResponseHook(PreDispatchHook, Protocol):
    """Asked before a model call, and about its answer."""

    def after_llm_call(self, ctx: ToolCallContext, response: Any) -> Decision | None:
        """Decide whether the answer may be used; it is paid for either way."""
        ...


class ToolDispatchHook(Protocol):
    """Asked before a tool call."""

    def before_tool_call(self, ctx: ToolCallContext) -> Decision | None:
        """Decide whether the tool may run."""
        ...


class EgressBoundaryHook(Protocol):
    """Asked before a request leaves for the outside."""

    def before_egress(self, ctx: ToolCallContext, url: str, method: str) -> Decision | None:
        """Decide whether the request may be sent."""
        ...


class RetryBoundaryHook(Protocol):
    """Asked about a call that failed."""

    def on_error(self, ctx: ToolCallContext, err: BaseException) -> Decision | None:
        """Decide what to do about the failure; abstaining means that it may be repeated."""
        ...


class BudgetBoundaryHook(Protocol):
    """Told what a call really cost, once that is known."""

    def before_charge(self, ctx: ToolCallContext, cost_usd: float) -> Decision | None:
        """Decide what the cost means for the calls that follow; it is charged either way."""
        ...


class ReleasingHook(Protocol):
    """Counts calls when it is asked about them, and forgets those that did not run."""

    def release(self, ctx: ToolCallContext) -> object:
        """Give back what was counted for a call that does not run; harmless if there is nothing."""
        ...


METHODS: Final = {
    "pre_dispatch": ("before_llm_call",),
    "tool_dispatch": ("before_tool_call",),
    "egress": ("before_egress",),
    "retry": ("on_error",),
    "budget": ("before_charge",),
}
"""For each slot of a pipeline the methods that a hook in it must have."""
