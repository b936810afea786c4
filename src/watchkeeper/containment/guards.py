"""The guards of an admitted call, asked before it begins: the shield pipeline and the circuit breaker.

The ledger has admitted the call when they are asked; if one of them refuses, the code that asked releases the
reservation. `Guards` belongs to a whole tree of contexts; a `GuardedCall` is one call that is asked about. A call that
passed keeps it, to tell the breaker, and the hooks that want to know, how the call ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from watchkeeper.accounting.account import COST, STEPS, Account, spent_share
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import CallRequest, Charge, NO_TOKENS
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import Stop, StopReason
from watchkeeper.core.text import logger, shown
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.shield.circuit_breaker import (
    AskedBreaker,
    AskedPermit,
    CircuitBreaker,
    CircuitBreakers,
    Permit,
    PolicyContext,
    has_own_methods,
)
from watchkeeper.shield.decision import ChainMetadata, Decision, SafetyEvent, ToolCallContext, facts_of
from watchkeeper.shield.pipeline import ShieldPipeline

BEFORE: Final = {"llm": "before_llm_call", "tool": "before_tool_call"}
"""What a pipeline is asked before a call, by its kind; child runs are not asked about, the calls in them are."""


class Asking(msgspec.Struct, eq=False):
    """A question to hooks.

    Attributes:
        guards: The guards that ask the question.
        demand: The demand with the call's reservation until the answer; None if there is no call.
        is_answered: Whether it is over; tasks and threads that a hook started may go on.
    """

    guards: Guards
    demand: Demand | None
    is_answered: bool = False


ASKING: Final[ContextVar[tuple[Asking, ...]]] = ContextVar("watchkeeper_asking", default=())
"""In the code of a hook, and in what it started, the questions that it was answering."""


def open_questions() -> Sequence[Asking]:
    """Return the questions that hooks are answering by the code that runs here."""
    asked = ASKING.get()
    return [each for each in asked if not each.is_answered] if asked else asked


class Guards:
    """The pipeline and the breaker of a tree of contexts.

    Attributes:
        account: That of the context that they were given to; a hook that objects to a cost stops all of it.
        above: The guards of the context around it, which are asked first.
        pipeline: The hooks, if there are any.
        breaker: The breaker, or the one for each provider, if there is one.
        blocks_for: Seconds that asking may block, by kind of call; None if no hook says that it will.
        told_costs: Whether hooks want to know what a call cost.
        asked_about_answers: Whether hooks want to see what a model answered.
        asked_about_egress: Whether hooks are asked about requests to the outside.
    """

    __slots__ = (
        "_asked",
        "_chain",
        "_facts",
        "_permitting",
        "above",
        "account",
        "asked_about_answers",
        "asked_about_egress",
        "blocks_for",
        "breaker",
        "pipeline",
        "told_costs",
    )

    def __init__(
        self,
        pipeline: ShieldPipeline | None,
        breaker: CircuitBreaker | CircuitBreakers | None,
        chain: ChainMetadata,
        account: Account,
        above: Guards | None = None,
    ) -> None:
        """Guard a chain; at least one of pipeline and breaker is given."""
        self.account = account
        self.above = above
        self.pipeline = pipeline
        self.breaker = breaker
        self._asked: dict[int, AskedBreaker] = {}
        self._permitting: object = None  # the breaker that was looked at last and gives out permits
        if breaker is not None and not isinstance(breaker, CircuitBreakers):
            self.asked_breaker(breaker)
        self._chain = chain
        self._facts = facts_of(chain)
        self.told_costs = pipeline is not None and pipeline.concerns("before_charge")
        self.asked_about_answers = pipeline is not None and pipeline.concerns("after_llm_call")
        self.asked_about_egress: bool = (pipeline is not None and pipeline.concerns("before_egress")) or (
            above is not None and above.asked_about_egress
        )
        self.blocks_for = {kind: self._blocks_for(kind) for kind in BEFORE}

    def _blocks_for(self, kind: str) -> float | None:
        own = self.pipeline.blocks_for(BEFORE[kind]) if self.pipeline else None
        above = self.above.blocks_for[kind] if self.above is not None else None
        return above if own is None else own + (above or 0.0)

    def left_to_ask(self) -> Guards | None:
        """Return the guards without those whose hook is running this code: it would ask itself without end."""
        if not (questions := open_questions()):
            return self
        above = None if self.above is None else self.above.left_to_ask()
        if any(each.guards is self for each in questions):
            return above
        return self if above is self.above else Guards(self.pipeline, self.breaker, self._chain, self.account, above)

    def asked_breaker(self, breaker: object) -> AskedBreaker | None:
        """Return who asks a breaker that has public methods of its own; None for one that gives out permits.

        Raises:
            ConfigurationError: If it lacks a method.
        """
        asked = self._asked.get(id(breaker)) if self._asked else None
        if asked is not None or breaker is self._permitting:
            return asked
        if isinstance(breaker, CircuitBreaker) and not has_own_methods(breaker):
            self._permitting = breaker
            return None
        asked = self._asked[id(breaker)] = AskedBreaker(breaker)  # keeps it alive, and its id taken
        return asked

    def policy_context(self, request: CallRequest, account: Account, now: datetime) -> PolicyContext:
        """Describe a call to a breaker."""
        settled, chain = account.settled, self._chain
        spent = settled[COST] / NANOS_PER_USD
        return PolicyContext(spent, settled[STEPS], request.provider, chain.chain_id, now, self._facts)

    def ask(self, method: str, ctx: ToolCallContext, *facts: Any, demand: Demand | None = None) -> SafetyEvent | None:
        """Ask the pipeline; `ASKING` tells the gate when one of its own hooks calls it."""
        if self.pipeline is None:
            return None
        asking = Asking(self, demand)
        mark = ASKING.set((*ASKING.get(), asking))
        try:
            return self.pipeline.ask(method, ctx, *facts)
        finally:
            asking.is_answered = True
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
            request.approved_by,
        )
        above = self.above.guard(request, demand, outer, number) if self.above is not None else None
        return GuardedCall(self, ctx, request, demand, outer, above)

    def egress(self, inside: GuardedCall | None, url: str, method: str) -> SafetyEvent | None:
        """Ask about a request to the outside, made inside a call or outside of any."""
        refused = self.above.egress(inside, url, method) if self.above is not None else None
        if refused is not None:
            return refused
        if inside is not None:
            ctx = replace(inside.ctx, kind="egress", endpoint=url)
        else:
            chain = self._chain
            ctx = ToolCallContext(
                chain.request_id, chain.user_id, None, None, chain.model, url, metadata=self._facts, kind="egress"
            )
        return self.ask("before_egress", ctx, url, method)


def guards_of(
    pipeline: ShieldPipeline | None,
    breaker: CircuitBreaker | CircuitBreakers | None,
    chain: ChainMetadata,
    account: Account,
    above: Guards | None,
) -> Guards | None:
    """Return the guards of a chain; None if there are none. What is among those above already is not asked twice."""
    layer = above
    while layer is not None:
        pipeline = None if pipeline is layer.pipeline else pipeline
        breaker = None if breaker is layer.breaker else breaker
        layer = layer.above
    return above if pipeline is None and breaker is None else Guards(pipeline, breaker, chain, account, above)


class GuardedCall(msgspec.Struct, eq=False):
    """One admitted call about which the guards are asked, before it runs and afterwards.

    Attributes:
        guards: The guards that are asked.
        ctx: The description of the call that hooks get.
        request: The request that was admitted.
        demand: What is reserved for the call at the ledger.
        outer: The guarded call inside which it is made.
        above: The same call for the guards of the context around it, which are asked first.
        asked: Whether the pipeline was asked.
        answer_by: Monotonic instant up to which hooks that block are waited for.
        asks_egress: Asks the egress hooks about a request made inside it; None if there are none.
        permit: Its permit from the breaker, if it has one.
        after: What hooks see of it after the call, if that differs.
    """

    guards: Guards
    ctx: ToolCallContext
    request: CallRequest
    demand: Demand
    outer: GuardedCall | None
    above: GuardedCall | None = None
    asked: bool = False
    answer_by: float = 0.0
    asks_egress: Callable[[GuardedCall, str, str], SafetyEvent | None] | None = None
    permit: Permit | AskedPermit | None = None
    after: ToolCallContext | None = None

    # --- before the call ----------------------------------------------------------------------------------------------

    def review(self) -> SafetyEvent | None:
        """Ask the pipelines; return the refusal of one of them, or None."""
        refused = self.above.review() if self.above is not None else None
        if refused is not None:
            return refused
        self.asked = True
        return self.guards.ask(BEFORE[self.ctx.kind], self.ctx, demand=self.demand)

    def unanswered(self) -> SafetyEvent | None:
        """Record that a hook that blocks did not answer in time."""
        pipeline = self.guards.pipeline
        if self.above is not None and (pipeline is None or not self.asked):
            return self.above.unanswered()
        return None if pipeline is None else pipeline.overran(BEFORE[self.ctx.kind], self.ctx)

    def stop_by_breaker(self, clock: Clock) -> Stop | None:
        """Take a permit; return why the breaker gives none. If the breaker raises, the call is refused.

        A call made inside the probe of a breaker is part of that probe.
        """
        refused = self.above.stop_by_breaker(clock) if self.above is not None else None
        if refused is not None:
            return refused
        guards, request = self.guards, self.request
        breaker = guards.breaker
        try:
            if isinstance(breaker, CircuitBreakers):
                breaker = breaker.of(request.provider) if request.provider else None
            if breaker is None:
                return None
            asked = guards.asked_breaker(breaker)
            if asked is None:
                self.permit = breaker.acquire()
                if self.permit is not None or self._inside_probe(breaker):
                    return None
                return Stop("circuit_open", "gate", breaker.explain())
            said = asked.ask(guards.policy_context(request, self.demand.account, clock.now()))
        except Exception as error:
            logger().error("circuit_breaker.failed", breaker=shown(breaker), error=shown(error))
            what = f"The circuit breaker {type(breaker).__name__} raised {shown(error)}"
            return Stop("hook_failed", "gate", f"{what}, when it was asked; what is not allowed is refused.")
        if isinstance(said, AskedPermit):
            self.permit = said
            return None
        return None if self._inside_probe(breaker) else Stop("circuit_open", "gate", said)

    def _inside_probe(self, breaker: object) -> bool:
        around = self.outer
        while around is not None:
            layer: GuardedCall | None = around
            while layer is not None:
                if layer.permit is not None and layer.permit.breaker is breaker:
                    return layer.permit.holds_probe
                layer = layer.above
            around = around.outer
        return False

    def release(self) -> None:
        """Give back what hooks and breakers have counted for a call that is not run after all."""
        permit, self.permit = self.permit, None
        if permit is not None:
            permit.release()
        if self.above is not None:
            self.above.release()
        if self.guards.pipeline is not None and (self.asked or self.above is None):
            self.guards.pipeline.release(self.ctx)

    def answered_late(self, value: object, error: BaseException | None) -> None:
        """Undo what a hook has counted for a call that no longer waits for the hook's answer."""
        self.release()

    # --- after the call -----------------------------------------------------------------------------------------------

    def settle(
        self, charge: Charge, error: BaseException | None, *, succeeded: bool, failed: bool
    ) -> tuple[SafetyEvent, Account] | None:
        """Tell breaker and hooks how the call ended; return a hook's stop of the calls that follow, and its account.

        Args:
            charge: The cost of the call.
            error: The exception that the call raised, if it did.
            succeeded: Whether the breaker is told of a success.
            failed: Whether it is told of a failure.
        """
        said: tuple[SafetyEvent, Account] | None = None
        try:
            if self.above is not None:
                said = self.above.settle(charge, error, succeeded=succeeded, failed=failed)
        finally:
            own = self._settle_own(charge, error, succeeded=succeeded, failed=failed)
        return said or own

    def _settle_own(
        self, charge: Charge, error: BaseException | None, *, succeeded: bool, failed: bool
    ) -> tuple[SafetyEvent, Account] | None:
        permit, self.permit = self.permit, None
        if permit is not None:
            try:
                if succeeded:
                    permit.succeeded()
                elif failed and isinstance(error, Exception):
                    permit.failed(error)
            except Exception as raised:  # the call has ended and is settled; its result must not be lost
                logger().error("circuit_breaker.failed", breaker=shown(permit.breaker), error=shown(raised))
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
        event = guards.ask("before_charge", self.after or self.ctx, cost)
        return None if event is None else (event, guards.account)

    def answered(self, response: Any) -> SafetyEvent | None:
        """Show the hooks a model's answer; return the refusal of one of them, or None."""
        refused = self.above.answered(response) if self.above is not None else None
        if not self.guards.asked_about_answers or self.ctx.kind != "llm":
            return refused
        own = self.guards.ask("after_llm_call", self.after or self.ctx, response)
        return refused or own

    def failed(self, error: BaseException) -> SafetyEvent | None:
        """Ask the hooks what a failure means.

        Without any hook, the pipeline's policy for failures holds for calls that spend a retry when they fail
        (`wrap_*`, `call_*`). A caller with its own retry rule, such as a run, does not need that policy.
        """
        refused = self.above.failed(error) if self.above is not None else None
        if refused is not None:
            return refused
        pipeline = self.guards.pipeline
        if pipeline is None or not (self.request.spends_retry_on_error or pipeline.concerns("on_error")):
            return None
        return self.guards.ask("on_error", self.after or self.ctx, error)


def stop_by_hook(event: SafetyEvent) -> Stop | None:
    """Return the stop behind what a hook said; only HALT and QUARANTINE stop anything."""
    if event.decision is not Decision.HALT and event.decision is not Decision.QUARANTINE:
        return None
    return Stop(cast("StopReason", event.event_type), "hook", event.reason)
