"""What stands between admission and the beginning of a call: the shield pipeline and the circuit breaker.

The ledger has admitted the call when they are asked, and whoever asks them gives everything back if one of them
refuses. `Guards` belongs to a whole tree of contexts; an `Entry` is one call on its way past them. A call that passed
keeps its entry: what becomes of the call is told to the breaker and to the hooks that want to know.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, cast

from msgspec.structs import replace

from watchkeeper.accounting.account import (
    spent_share,
)
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import NO_TOKENS, CallRequest, Charge
from watchkeeper.core.errors import ConfigurationError, Stop, StopReason
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.shield.circuit_breaker import CircuitBreaker, CircuitBreakers, Permit
from watchkeeper.shield.decision import ChainMetadata, Decision, SafetyEvent, ToolCallContext, facts_of
from watchkeeper.shield.pipeline import ShieldPipeline


def said_by_hook(event: SafetyEvent) -> Stop | None:
    """Return the stop behind what a hook said; only HALT and QUARANTINE stop anything."""
    if event.decision is not Decision.HALT and event.decision is not Decision.QUARANTINE:
        return None
    return Stop(cast("StopReason", event.event_type), "hook", event.reason)


def circuit_open(breaker: CircuitBreaker) -> Stop:
    """Say that a breaker lets nothing through."""
    return Stop("circuit_open", "gate", breaker.explain())


BEFORE: Final = {"llm": "before_llm_call", "tool": "before_tool_call"}
"""What a pipeline is asked before a call, by its kind; child runs are not asked about, the calls in them are."""

ASKING: Final[ContextVar[object]] = ContextVar("watchkeeper_asking", default=None)
"""The guards that are asking their hooks, in the code of a hook."""


class Guards:
    """The pipeline and the breaker of a tree of contexts."""

    __slots__ = ("_blocks", "_breaker", "_chain", "_facts", "asks_about_answers", "pipeline", "tells_costs")

    def __init__(
        self, pipeline: ShieldPipeline | None, breaker: CircuitBreaker | CircuitBreakers | None, chain: ChainMetadata
    ) -> None:
        """Guard a chain; at least one of pipeline and breaker is given."""
        self.pipeline = pipeline
        self._breaker = breaker
        self._chain = chain
        self._facts = facts_of(chain)
        self.tells_costs = pipeline is not None and pipeline.concerns("before_charge")
        self.asks_about_answers = pipeline is not None and pipeline.concerns("after_llm_call")
        self._blocks = {kind: pipeline.blocks_for(method) if pipeline else None for kind, method in BEFORE.items()}

    def ask(self, method: str, ctx: ToolCallContext, *facts: Any) -> SafetyEvent | None:
        """Ask the pipeline; a hook that comes back to the very gate that asks it is refused (`check_caller`)."""
        if self.pipeline is None:
            return None
        mark = ASKING.set(self)
        try:
            return self.pipeline.ask(method, ctx, *facts)
        finally:
            ASKING.reset(mark)

    def check_caller(self) -> None:
        """Raise a ConfigurationError if one of the own hooks calls: asked about itself, it would never end."""
        if ASKING.get() is self:
            raise ConfigurationError("a hook called the ExecutionContext that asks it; give it a context of its own")

    def entry(self, request: CallRequest, demand: Demand, outer: Entry | None, number: int) -> Entry:
        """Begin to let a call past; ``outer`` is the call inside which it is made."""
        estimate, chain = request.estimate, self._chain
        ctx = ToolCallContext(
            chain.request_id,
            chain.user_id,
            None,
            request.operation_name or None,
            request.model or chain.model,
            request.provider or None,
            estimate.input_tokens or None,
            demand.granted or None,
            estimate.nanos(demand.granted) / NANOS_PER_USD if estimate.known_cost else None,
            self._facts,
            request.kind,
            request.degraded,
            number,
            spent_share(demand.account),
            request.arguments,
        )
        return Entry(self, ctx, request, demand, outer)

    def blocks_for(self, request: CallRequest) -> float | None:
        """Return the seconds that asking about a call may block, or None if nobody says that it will."""
        return self._blocks[request.kind]

    def breaker_for(self, request: CallRequest) -> CircuitBreaker | None:
        """Return the breaker that a call has to pass, if there is one."""
        breaker = self._breaker
        if isinstance(breaker, CircuitBreakers):
            return breaker.of(request.provider) if request.provider else None
        return breaker

    def egress(self, inside: Entry | None, url: str, method: str) -> SafetyEvent | None:
        """Ask about a request to the outside, made inside a call or outside of any."""
        if self.pipeline is None:
            return None
        if inside is not None:
            ctx = replace(inside.ctx, kind="egress", endpoint=url)
        else:
            chain = self._chain
            ctx = ToolCallContext(
                chain.request_id, chain.user_id, None, None, chain.model, url, metadata=self._facts, kind="egress"
            )
        return self.ask("before_egress", ctx, url, method)


class Entry:
    """One admitted call on its way past the guards, and afterwards.

    Attributes:
        ctx: What hooks see of it.
        request: What was asked for.
        demand: What it holds at the ledger.
        outer: The call inside which it is made.
        answer_by: Monotonic instant up to which hooks that block are waited for.
        permit: Its leave to pass the breaker, if there is one.
    """

    __slots__ = ("_after", "_guards", "answer_by", "ctx", "demand", "outer", "permit", "request")

    def __init__(
        self, guards: Guards, ctx: ToolCallContext, request: CallRequest, demand: Demand, outer: Entry | None
    ) -> None:
        """Hold no permit yet."""
        self._guards = guards
        self._after: ToolCallContext | None = None
        self.ctx = ctx
        self.request = request
        self.demand = demand
        self.outer = outer
        self.answer_by = 0.0
        self.permit: Permit | None = None

    # --- before the call ----------------------------------------------------------------------------------------------

    def review(self) -> SafetyEvent | None:
        """Ask the pipeline; return what it said against the call."""
        return self._guards.ask(BEFORE[self.ctx.kind], self.ctx)

    def unanswered(self) -> SafetyEvent | None:
        """Record that a hook that blocks did not answer in time."""
        pipeline = self._guards.pipeline
        return None if pipeline is None else pipeline.overran(BEFORE[self.ctx.kind], self.ctx)

    def pass_breaker(self) -> CircuitBreaker | None:
        """Take a permit; return the breaker that gives none, if it is so.

        A call made inside the probe of a breaker is part of that probe.
        """
        breaker = self._guards.breaker_for(self.request)
        if breaker is None:
            return None
        self.permit = breaker.acquire()
        return None if self.permit is not None or self._inside_probe(breaker) else breaker

    def _inside_probe(self, breaker: CircuitBreaker) -> bool:
        entry = self.outer
        while entry is not None:
            if entry.permit is not None and entry.permit.breaker is breaker:
                return entry.permit.holds_probe
            entry = entry.outer
        return False

    def turn_back(self) -> None:
        """Give back what the hooks have counted for the call: it does not run."""
        if self._guards.pipeline is not None:
            self._guards.pipeline.release(self.ctx)

    def came_late(self, value: object, error: BaseException | None) -> None:
        """Give back what a hook has counted for a call that did not wait for its answer."""
        self.turn_back()

    # --- after the call -----------------------------------------------------------------------------------------------

    def settle(self, error: BaseException | None, *, succeeded: bool, failed: bool) -> None:
        """Tell the breaker what became of the call, and give back the permit whatever it was."""
        permit, self.permit = self.permit, None
        if permit is None:
            return
        try:
            if succeeded:
                permit.succeeded()
            elif failed and error is not None:
                permit.failed(error)
        finally:
            permit.release()

    def charged(self, charge: Charge, *, succeeded: bool) -> SafetyEvent | None:
        """Tell the hooks what the call cost; return what one of them said against going on."""
        guards, cost = self._guards, (charge.cost_nanos or 0) / NANOS_PER_USD
        if guards.tells_costs or guards.asks_about_answers or not succeeded:
            tokens = charge.tokens
            self._after = replace(
                self.ctx,
                tokens_in=None if tokens is NO_TOKENS else tokens.input_tokens,
                tokens_out=None if tokens is NO_TOKENS else tokens.output_tokens,
                cost_usd=None if charge.cost_nanos is None else cost,
            )
        if not guards.tells_costs or not (succeeded or cost):
            return None
        return guards.ask("before_charge", self._after or self.ctx, cost)

    def answered(self, response: Any) -> SafetyEvent | None:
        """Show the hooks what a model answered; return what one of them said against it."""
        if not self._guards.asks_about_answers or self.ctx.kind != "llm":
            return None
        return self._guards.ask("after_llm_call", self._after or self.ctx, response)

    def failed(self, error: BaseException) -> SafetyEvent | None:
        """Ask the hooks what a failure means.

        The policy for failures without any hook holds for calls that spend a retry when they fail (`wrap_*`, `call_*`);
        who repeats calls by a rule of his own, as a run does, needs none.
        """
        pipeline = self._guards.pipeline
        if pipeline is None or not (self.request.spends_retry_on_error or pipeline.concerns("on_error")):
            return None
        return self._guards.ask("on_error", self._after or self.ctx, error)
