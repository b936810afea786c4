"""The guards of an admitted call, asked before it begins: the shield pipeline and the circuit breaker.

The ledger has admitted the call when they are asked, and whoever asks them gives everything back if one of them
refuses. `Guards` belongs to a whole tree of contexts; a `GuardedCall` is one call that is asked about. A call that
passed keeps it: what becomes of the call is told to the breaker and to the hooks that want to know.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from watchkeeper.accounting.account import spent_share
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import CallRequest, Charge, NO_TOKENS
from watchkeeper.core.errors import Stop, StopReason
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.shield.circuit_breaker import CircuitBreaker, CircuitBreakers, Permit
from watchkeeper.shield.decision import ChainMetadata, Decision, SafetyEvent, ToolCallContext, facts_of
from watchkeeper.shield.pipeline import ShieldPipeline

BEFORE: Final = {"llm": "before_llm_call", "tool": "before_tool_call"}
"""What a pipeline is asked before a call, by its kind; child runs are not asked about, the calls in them are."""

ASKING: Final[ContextVar[object]] = ContextVar("watchkeeper_asking", default=None)
"""The guards that are asking their hooks, in the code of a hook."""


class Guards:
    """The pipeline and the breaker of a tree of contexts.

    Attributes:
        pipeline: The hooks, if there are any.
        breaker: The breaker, or the one for each provider, if there is one.
        blocks_for: Seconds that asking may block, by kind of call; None if no hook says that it will.
        told_costs: Whether hooks want to know what a call cost.
        asked_about_answers: Whether hooks want to see what a model answered.
        asked_about_egress: Whether hooks are asked about requests to the outside.
    """

    __slots__ = (
        "_chain",
        "_facts",
        "asked_about_answers",
        "asked_about_egress",
        "blocks_for",
        "breaker",
        "pipeline",
        "told_costs",
    )

    def __init__(
        self, pipeline: ShieldPipeline | None, breaker: CircuitBreaker | CircuitBreakers | None, chain: ChainMetadata
    ) -> None:
        """Guard a chain; at least one of pipeline and breaker is given."""
        self.pipeline = pipeline
        self.breaker = breaker
        self._chain = chain
        self._facts = facts_of(chain)
        self.told_costs = pipeline is not None and pipeline.concerns("before_charge")
        self.asked_about_answers = pipeline is not None and pipeline.concerns("after_llm_call")
        self.asked_about_egress = pipeline is not None and pipeline.concerns("before_egress")
        self.blocks_for = {kind: pipeline.blocks_for(method) if pipeline else None for kind, method in BEFORE.items()}

    def ask(self, method: str, ctx: ToolCallContext, *facts: Any) -> SafetyEvent | None:
        """Ask the pipeline; `ASKING` tells the gate when one of its own hooks calls it."""
        if self.pipeline is None:
            return None
        mark = ASKING.set(self)
        try:
            return self.pipeline.ask(method, ctx, *facts)
        finally:
            ASKING.reset(mark)

    def guard(self, request: CallRequest, demand: Demand, outer: GuardedCall | None, number: int) -> GuardedCall:
        """Describe a call to the hooks; ``outer`` is the guarded call inside which it is made."""
        estimate, chain = request.estimate, self._chain
        worst = estimate.input_nanos + estimate.output_nanos_per_token * demand.granted
        ctx = ToolCallContext(
            chain.request_id,
            chain.user_id,
            None,
            request.operation_name or None,
            request.model or chain.model,
            request.provider or None,
            estimate.input_tokens or None,
            demand.granted or None,
            worst / NANOS_PER_USD if estimate.known_cost else None,
            self._facts,
            request.kind,
            request.degraded,
            number,
            spent_share(demand.account),
            request.arguments,
        )
        return GuardedCall(self, ctx, request, demand, outer)

    def egress(self, inside: GuardedCall | None, url: str, method: str) -> SafetyEvent | None:
        """Ask about a request to the outside, made inside a call or outside of any."""
        if inside is not None:
            ctx = replace(inside.ctx, kind="egress", endpoint=url)
        else:
            chain = self._chain
            ctx = ToolCallContext(
                chain.request_id, chain.user_id, None, None, chain.model, url, metadata=self._facts, kind="egress"
            )
        return self.ask("before_egress", ctx, url, method)


class GuardedCall(msgspec.Struct, eq=False):
    """One admitted call about which the guards are asked, before it runs and afterwards.

    Attributes:
        guards: Who is asked.
        ctx: What hooks see of it.
        request: What was asked for.
        demand: What it holds at the ledger.
        outer: The guarded call inside which it is made.
        answer_by: Monotonic instant up to which hooks that block are waited for.
        asks_egress: Asks the egress hooks about a request made inside it; None if there are none.
        permit: Its leave to pass the breaker.
        after: What hooks see of it after the call, if that differs.
    """

    guards: Guards
    ctx: ToolCallContext
    request: CallRequest
    demand: Demand
    outer: GuardedCall | None
    answer_by: float = 0.0
    asks_egress: Callable[[GuardedCall, str, str], SafetyEvent | None] | None = None
    permit: Permit | None = None
    after: ToolCallContext | None = None

    # --- before the call ----------------------------------------------------------------------------------------------

    def review(self) -> SafetyEvent | None:
        """Ask the pipeline; return what it said against the call."""
        return self.guards.ask(BEFORE[self.ctx.kind], self.ctx)

    def unanswered(self) -> SafetyEvent | None:
        """Record that a hook that blocks did not answer in time."""
        pipeline = self.guards.pipeline
        return None if pipeline is None else pipeline.overran(BEFORE[self.ctx.kind], self.ctx)

    def stop_by_breaker(self) -> Stop | None:
        """Take a permit; return why the breaker gives none.

        A call made inside the probe of a breaker is part of that probe.
        """
        breaker = self.guards.breaker
        if isinstance(breaker, CircuitBreakers):
            breaker = breaker.of(self.request.provider) if self.request.provider else None
        if breaker is None:
            return None
        self.permit = breaker.acquire()
        if self.permit is not None or self._inside_probe(breaker):
            return None
        return Stop("circuit_open", "gate", breaker.explain())

    def _inside_probe(self, breaker: CircuitBreaker) -> bool:
        around = self.outer
        while around is not None:
            if around.permit is not None and around.permit.breaker is breaker:
                return around.permit.holds_probe
            around = around.outer
        return False

    def release(self) -> None:
        """Give back what the hooks have counted for the call: it does not run."""
        if self.guards.pipeline is not None:
            self.guards.pipeline.release(self.ctx)

    def answered_late(self, value: object, error: BaseException | None) -> None:
        """Give back what a hook has counted for a call that did not wait for its answer."""
        self.release()

    # --- after the call -----------------------------------------------------------------------------------------------

    def settle(
        self, charge: Charge, error: BaseException | None, *, succeeded: bool, failed: bool
    ) -> SafetyEvent | None:
        """Tell breaker and hooks what became of the call; return what a hook said against going on.

        Args:
            charge: What it cost.
            error: What it raised.
            succeeded: Whether the breaker is told of a success.
            failed: Whether it is told of a failure.
        """
        permit, self.permit = self.permit, None
        if permit is not None:
            try:
                if succeeded:
                    permit.succeeded()
                elif failed and isinstance(error, Exception):
                    permit.failed(error)
            finally:
                permit.release()
        guards, cost = self.guards, (charge.cost_nanos or 0) / NANOS_PER_USD
        if guards.told_costs or guards.asked_about_answers or not succeeded:
            tokens = charge.tokens
            self.after = replace(
                self.ctx,
                tokens_in=None if tokens is NO_TOKENS else tokens.input_tokens,
                tokens_out=None if tokens is NO_TOKENS else tokens.output_tokens,
                cost_usd=None if charge.cost_nanos is None else cost,
            )
        if not guards.told_costs or not (succeeded or cost):
            return None
        return guards.ask("before_charge", self.after or self.ctx, cost)

    def answered(self, response: Any) -> SafetyEvent | None:
        """Show the hooks what a model answered; return what one of them said against it."""
        if not self.guards.asked_about_answers or self.ctx.kind != "llm":
            return None
        return self.guards.ask("after_llm_call", self.after or self.ctx, response)

    def failed(self, error: BaseException) -> SafetyEvent | None:
        """Ask the hooks what a failure means.

        Without any hook, the pipeline's policy for failures holds for calls that spend a retry when they fail
        (`wrap_*`, `call_*`); whoever repeats calls by a rule of his own, as a run does, needs none.
        """
        pipeline = self.guards.pipeline
        if pipeline is None or not (self.request.spends_retry_on_error or pipeline.concerns("on_error")):
            return None
        return self.guards.ask("on_error", self.after or self.ctx, error)


def stop_by_hook(event: SafetyEvent) -> Stop | None:
    """Return the stop behind what a hook said; only HALT and QUARANTINE stop anything."""
    if event.decision is not Decision.HALT and event.decision is not Decision.QUARANTINE:
        return None
    return Stop(cast("StopReason", event.event_type), "hook", event.reason)
