"""The seed's faces of the gate: `wrap_*` returns a decision, `call_*` the result too, `acall_*` is for async work.

They translate the seed's options and hand the call to the gate's own `call` and `acall`; they know nothing else of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from watchkeeper.containment.call import CallRequest, Meter, Outcome, Ticket, Work
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.decision import Decision
from watchkeeper.containment.wrapping import CostOf, metered, plain, with_ticket, wrapped

T = TypeVar("T")


class SeedFaces(ABC):
    """What the seed execution-context calls a context's methods, on top of `call` and `acall`."""

    @abstractmethod
    async def acall(self, request: CallRequest, work: Work[T], meter: Meter[T] | None = None) -> Outcome[T]:
        """Pass an async call through the gate."""

    @abstractmethod
    def call(self, request: CallRequest, fn: Callable[[Ticket], T], meter: Meter[T] | None = None) -> Outcome[T]:
        """Pass a plain call through the gate."""

    def wrap_llm_call(self, fn: Callable[..., Any], options: WrapOptions | None = None) -> Decision:
        """Make a model call under the chain's limits and return only the decision; `call_llm` returns the result too.

        Args:
            fn: Called once, if the call is admitted; given the ticket if it has a parameter that it needs.
            options: Label, cost hint, time-out and retry policy.
        """
        return self.call_llm(fn, options).decision

    def wrap_tool_call(self, fn: Callable[..., Any], options: WrapOptions | None = None) -> Decision:
        """Make a tool call under the chain's limits and return only the decision; `call_tool` returns its result."""
        return self.call_tool(fn, options).decision

    def call_llm(
        self, fn: Callable[..., T], options: WrapOptions | None = None, *, cost_of: CostOf[T] | None = None
    ) -> Outcome[T]:
        """Make a model call under the chain's limits.

        Args:
            fn: Called once, if the call is admitted; given the ticket if it has a parameter that it needs. It can say
                what it costs with ``ticket.charge(usd)`` and see on ``ticket.cancellation`` that it should stop.
            options: Label, cost hint, time-out and retry policy. The hint is reserved before the call, and charged
                unless the call says better; what callables spend beyond their hints can exceed the ceiling.
            cost_of: Says what the call cost, in dollars, from its result.

        Returns:
            The decision with the result or the error; nothing is ever run a second time to get at them.

        Raises:
            TypeError: If ``fn`` is a coroutine function, or returns a coroutine.
            ConfigurationError: If the context is closed.
        """
        return self.call(wrapped("llm", options), plain(fn), metered(cost_of, options))

    def call_tool(
        self, fn: Callable[..., T], options: WrapOptions | None = None, *, cost_of: CostOf[T] | None = None
    ) -> Outcome[T]:
        """Make a tool call under the chain's limits; all else as in `call_llm`."""
        return self.call(wrapped("tool", options), plain(fn), metered(cost_of, options))

    async def acall_llm(
        self, fn: Callable[..., Awaitable[T]], options: WrapOptions | None = None, *, cost_of: CostOf[T] | None = None
    ) -> Outcome[T]:
        """Make an async model call under the chain's limits; it is cancelled when its time is over. See `call_llm`."""
        return await self.acall(wrapped("llm", options), with_ticket(fn), metered(cost_of, options))

    async def acall_tool(
        self, fn: Callable[..., Awaitable[T]], options: WrapOptions | None = None, *, cost_of: CostOf[T] | None = None
    ) -> Outcome[T]:
        """Make an async tool call under the chain's limits; it is cancelled when its time is over. See `call_llm`."""
        return await self.acall(wrapped("tool", options), with_ticket(fn), metered(cost_of, options))
