"""One model turn through the gate: reserve the worst case, ask, settle, record; try again where that may help.

Every attempt is admitted on its own and is one event on the log. What a call may cost is decided before it is sent,
and its output cap is what the gate granted. Where the model in use does not answer, another of the run's line takes
over, under the same ceilings and with the conversation as it stands.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final, Literal

from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
from watchkeeper.containment.in_flight import Outcome, Ticket
from watchkeeper.core.errors import ProviderError, Stop
from watchkeeper.core.messages import AssistantMessage, ToolCall, Transcript
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.workers import said_by
from watchkeeper.runtime.events import ModelFailed, ModelReplied, ModelSwitched, Recorder
from watchkeeper.runtime.plan import RunPlan, RunScope
from watchkeeper.runtime.retry import (
    DEGRADED,
    OWN_FAULTS,
    UNASKED,
    WAITING,
    Backoff,
    UnansweredError,
    WorkStoppedError,
    asked_again,
    held_back,
    may_pass_on,
    not_let_through,
    passed_on,
    provider_stop,
    refusal,
)
from watchkeeper.runtime.run_models import ModelInUse, ModelLine, charge_failure, charge_reply, counted, estimate_call
from watchkeeper.runtime.user_code import failure_of
from watchkeeper.shield.decision import Decision

Phase = Literal["work", "landing"]

LONGEST_WAIT_BEFORE_A_SWITCH: Final = 30.0
"""Seconds that a provider may ask to wait; after a longer one another model is asked instead, if there is one."""


class ModelCalls:
    """The model side of one run.

    Attributes:
        line: The models of the run.
    """

    def __init__(self, plan: RunPlan[Any], scope: RunScope, recorder: Recorder, transcript: Transcript) -> None:
        """Prepare what every turn repeats: tools, schema, caps, bounds."""
        self._plan = plan
        self._scope = scope
        self._recorder = recorder
        self._transcript = transcript
        self.line = ModelLine(plan, scope.gate.limits, transcript)
        self._call_ids = {
            call.call_id for said in transcript if isinstance(said, AssistantMessage) for call in said.tool_calls
        }
        self._node_id: str | None = None
        self._backoff = Backoff(scope.clock, scope.rng, scope.gate.cancellation, self._seconds_left)

    async def ask(self, turn: int, *, landing: bool) -> ModelReply:
        """Ask for one reply; where the model in use cannot give one, ask the next one of the line.

        Raises:
            WorkStoppedError: If the gate refuses, or no model of the line answers.
        """
        line = self.line
        line.begin_turn()
        failure: UnansweredError | None = None
        while True:
            try:
                reply = await self._ask_in_use(turn, landing)
            except UnansweredError as error:
                if failure is None or failure.reason in UNASKED:
                    failure = error  # what a provider said first tells more than what followed from it
                if not self._switched(turn, error, landing):
                    raise self._given_up(failure, landing) from failure.error
                continue
            line.answered()
            line.in_use.bound.learn(reply)
            return reply

    async def _ask_in_use(self, turn: int, landing: bool) -> ModelReply:
        """Ask the model in use, as often as that may help.

        Raises:
            UnansweredError: If it does not answer, and another model might.
            WorkStoppedError: If the work is over, whoever would be asked.
        """
        in_use = self.line.in_use
        input_tokens = in_use.bound.tokens(self._transcript)
        self._check_context(in_use, landing)
        estimate = self._estimate(in_use, input_tokens, landing)
        after = None if landing else self._landing_estimate(turn, in_use, estimate)
        try:
            return await self._attempt(turn, 1, estimate, after, landing)
        except ProviderError as error:
            return await self._ask_again(error, turn, estimate, after, landing)

    async def _ask_again(
        self, first: ProviderError, turn: int, estimate: Estimate, after: Estimate | None, landing: bool
    ) -> ModelReply:
        """Try the model in use again after a failure, where that may help; errors are those of `_ask_in_use`."""

        async def attempt(number: int) -> ModelReply:
            return await self._attempt(turn, number, estimate, after, landing)

        def failed(error: ProviderError, number: int, retry_in: float | None) -> None:
            self._record_failure(turn, number, error.fault, error.message, retry_in)

        def worth(wait: float) -> bool:
            return self._worth_another(estimate, landing, wait)

        try:
            return await self._backoff.again(first, attempt, failed, worth)
        except ProviderError as error:
            if error.fault in OWN_FAULTS and not self.line.replacing:
                raise WorkStoppedError(provider_stop(error), error) from error
            raise UnansweredError(error.fault, provider_stop(error), error) from error

    def _estimate(self, model: ModelInUse, input_tokens: int, landing: bool) -> Estimate:
        cap = self._landing_cap(model) if landing else model.cap
        return estimate_call(input_tokens, cap, self._scope.gate.limits.min_output_tokens, model.price)

    def _worth_another(self, estimate: Estimate, landing: bool, wait: float) -> bool:
        """Whether the model in use is tried again: not where another one answers sooner, or spends no retry."""
        if not self._another(landing):
            return True
        phase: Phase = "landing" if landing else "work"
        again = CallRequest(kind="llm", estimate=estimate, retry=True, phase=phase)
        return wait <= LONGEST_WAIT_BEFORE_A_SWITCH and self._scope.gate.affords(again)

    def _another(self, landing: bool, *, cheaper: bool = False) -> ModelInUse | None:
        """Return who would take over now: the ceilings must pay for the least of a call to it."""
        if len(self.line.models) == 1:
            return None

        def fits(model: ModelInUse) -> bool:
            estimate = self._estimate(model, model.bound.tokens(self._transcript), landing)
            phase: Phase = "landing" if landing else "work"
            return self._scope.gate.affords(CallRequest(kind="llm", estimate=estimate, phase=phase))

        return self.line.find(fits, cheaper=cheaper)

    def _switched(self, turn: int, failure: UnansweredError, landing: bool) -> bool:
        """Let another model take over, and record it; False if there is none, or the work is over."""
        if self._over(landing) is not None:
            return False
        candidate = self._another(landing, cheaper=failure.reason == DEGRADED)
        if candidate is None:
            return False
        left = self.line.in_use.label
        self.line.take_over(candidate)
        now = self._scope.clock.now()
        self._recorder.record(ModelSwitched(turn, left, candidate.label, failure.reason, failure.stop.message, now))
        return True

    def _over(self, landing: bool) -> Stop | None:
        return self._scope.gate.stop if landing else self._scope.gate.work_stop

    def switch_to(self, source: str, turn: int) -> str | None:
        """Go on with the model of a source's escalation; return its label, or None if it cannot take over."""
        wanted = self._plan.escalations.get(source)
        candidate = None if wanted is None else self.line.named(wanted.model)
        if candidate is None:
            return None
        left, now = self.line.in_use.label, self._scope.clock.now()
        self.line.take_over(candidate)
        said = f"The advice of {source} was not heeded."
        self._recorder.record(ModelSwitched(turn, left, candidate.label, "escalated", said, now))
        return candidate.label

    def _given_up(self, failure: UnansweredError, landing: bool) -> WorkStoppedError:
        """Return what ends the work when nobody is left to ask, or nobody may be asked any more."""
        over = self._over(landing)
        if over is not None and len(self.line.models) > 1:
            return WorkStoppedError(over, failure.error)
        stop = failure.stop
        if len(self.line.models) > 1 and failure.reason != DEGRADED:
            stop = replace(stop, message=f"{stop.message.rstrip('.')}; no other model of the run could take over.")
        return WorkStoppedError(stop, failure.error)

    async def _attempt(
        self, turn: int, number: int, estimate: Estimate, after: Estimate | None, landing: bool
    ) -> ModelReply:
        """Make one admitted attempt and record its reply."""
        clock, in_use = self._scope.clock, self.line.in_use
        model, price = in_use.model, in_use.price
        began = clock.monotonic()
        spent = Charge()
        task = asyncio.current_task()

        async def work(ticket: Ticket) -> ModelReply:
            try:
                return _checked(await model.turn(request_for(in_use, ticket, landing)))
            except BaseException as error:
                failure = failure_of(error, task)
                if failure is error:
                    raise
                raise failure from error

        def meter(reply: ModelReply | None, error: BaseException | None, ticket: Ticket) -> Charge:
            nonlocal spent
            if reply is not None:
                spent = charge_reply(counted(reply, estimate), price)
                return spent
            return charge_failure(error, estimate, ticket.max_output_tokens, price)

        request = call_request(in_use, estimate, after, retry=number > 1, landing=landing)
        outcome = await self._scope.gate.acall(request, work, meter)
        if not outcome.admitted and outcome.decision in WAITING:
            outcome = await asked_again(self._scope, request, work, meter, outcome)
        self._node_id = outcome.node_id
        reply = outcome.value
        if outcome.decision is not Decision.ALLOW or outcome.error is not None or reply is None:
            raise self._failure(outcome, turn, number)
        if reply.finish == "refusal" and self._another(landing) is not None:
            raise refusal(reply, model.provider)
        reply = self._with_own_call_ids(reply)
        self._recorder.record(
            ModelReplied(
                turn=turn,
                message=reply.message,
                finish=reply.finish,
                usage=spent.tokens,
                cost_nanos=spent.cost_nanos,
                model=reply.model or model.name,
                node_id=self._node_id or "",
                duration_ms=(clock.monotonic() - began) * 1000,
                landing=landing,
                created_at=clock.now(),
            )
        )
        return reply

    def _failure(self, outcome: Outcome[ModelReply], turn: int, number: int) -> BaseException:
        """Return what is raised for a call that brought no reply; of an admitted one the failure is recorded."""
        stop, error = outcome.stop, outcome.error
        if not outcome.admitted:
            return not_let_through(outcome)
        if stop is not None:
            self._record_failure(turn, number, stop.reason, stop.message, None)
            if stop.source == "hook" and outcome.decision is Decision.HALT and may_pass_on(error):
                return UnansweredError(error.fault, stop, error)
            return WorkStoppedError(stop, error)
        if outcome.decision is Decision.DEGRADE:
            said = f"A hook asked for the cheaper model: {held_back(outcome)}."
            self._record_failure(turn, number, DEGRADED, said, None)
            return UnansweredError(DEGRADED, Stop("policy_halt", "hook", said), error)
        if error is None:
            return self._unwanted(outcome)
        if not isinstance(error, ProviderError):
            self._record_failure(turn, number, "error", said_by(error), None)
        return passed_on(error, turn == 1 and not self.line.switched)

    def _unwanted(self, outcome: Outcome[ModelReply]) -> BaseException:
        """Return the error for a reply that a hook would not have, where it may be asked for again."""
        if outcome.decision not in WAITING:
            return RuntimeError(f"the gate admitted a model call and returned nothing: {outcome!r}")
        said = f"the answer is not used: {held_back(outcome)}"
        return ProviderError(said, fault="server", provider=self.line.in_use.model.provider, billed=True)

    def _record_failure(self, turn: int, number: int, fault: str, said: str, retry_in: float | None) -> None:
        """Record an admitted attempt that brought no reply."""
        now = self._scope.clock.now()
        asked = self.line.in_use.label
        self._recorder.record(ModelFailed(turn, number, fault, said, retry_in, self._node_id, now, asked))

    def _with_own_call_ids(self, reply: ModelReply) -> ModelReply:
        """Return the reply with call ids that are unique in the conversation.

        Some servers count anew in every reply, or give no id at all; results, and the idempotency keys of tools, would
        then be mistaken for those of other calls.
        """
        calls: list[ToolCall] = []
        renamed = False
        for call in reply.message.tool_calls:
            stem = own = call.call_id or "call"
            number = 1
            while own in self._call_ids:
                number += 1
                own = f"{stem}-{number}"
            self._call_ids.add(own)
            if own == call.call_id:
                calls.append(call)
            else:
                calls.append(replace(call, call_id=own))
                renamed = True
        if not renamed:
            return reply
        return replace(reply, message=replace(reply.message, tool_calls=tuple(calls)))

    def _landing_cap(self, model: ModelInUse) -> int:
        landing = self._scope.gate.limits.landing
        return min(landing.max_output_tokens, model.cap) if landing else model.cap

    def _landing_estimate(self, turn: int, model: ModelInUse, call: Estimate) -> Estimate | None:
        """Return what the last turn would need after this call, or None if there is to be none.

        A budget that cannot pay for both is spent on the first turn of work: handing over nothing is worth nothing.
        """
        gate = self._scope.gate
        least = gate.limits.min_output_tokens
        if gate.limits.landing is None:
            return None
        after = estimate_call(call.input_tokens + least, self._landing_cap(model), least, model.price)
        wanted = CallRequest(kind="llm", estimate=call, landing=after)
        return after if turn > 1 or gate.affords(wanted) else None

    def room(self, in_use: ModelInUse) -> int | None:
        """Return how many tokens a conversation may have, so that an answer fits and landing too; None if unknown."""
        window = in_use.model.context_window
        if window is None:
            return None
        limits = self._scope.gate.limits
        return window - min(in_use.cap, limits.min_output_tokens) - (self._landing_cap(in_use) if limits.landing else 0)

    def _check_context(self, in_use: ModelInUse, landing: bool) -> None:
        """Stop before a model's context overflows; a landing turn may use the rest of it."""
        room, tokens, window = self.room(in_use), in_use.bound.likely(), in_use.model.context_window
        if room is None or tokens is None or landing:
            return
        if tokens > room:
            said = f"The conversation has grown to about {tokens:,} tokens; the model holds {window:,}."
            raise WorkStoppedError(Stop("context_full", "loop", said, "context_window", f"{window:,} tokens"))

    def _seconds_left(self) -> float | None:
        if self._scope.gate.work_stop is not None:
            return 0.0
        deadline = self._scope.gate.work_deadline
        return None if deadline is None else deadline.remaining(self._scope.clock).total_seconds()


def call_request(
    in_use: ModelInUse, estimate: Estimate, after: Estimate | None, *, retry: bool, landing: bool
) -> CallRequest:
    """Return what the gate is asked for one attempt; ``after`` is what the landing turn will need after it."""
    return CallRequest(
        kind="llm",
        operation_name=in_use.model.name,
        estimate=estimate,
        retry=retry,
        phase="landing" if landing else "work",
        landing=after,
        model=in_use.label,
        provider=in_use.service,
        degraded=in_use.degraded,
    )


def _checked(reply: object) -> ModelReply:
    if not isinstance(reply, ModelReply):
        raise TypeError(f"turn() must return a ModelReply, not {reply!r}")
    return reply


def request_for(in_use: ModelInUse, ticket: Ticket, landing: bool) -> ModelRequest:
    """Return the turn's request: what every turn with this model repeats, and what the gate granted this one."""
    whole = in_use.request
    return ModelRequest(
        transcript=whole.transcript,
        tools=whole.tools,
        tool_choice="none" if landing else "auto",
        output=whole.output,
        max_output_tokens=ticket.max_output_tokens,
        settings=whole.settings,
        timeout=ticket.timeout,
        on_delta=whole.on_delta,
    )
