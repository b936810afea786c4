"""One model turn through the gate: reserve the worst case, ask, settle, record; try again where that may help.

Every attempt is admitted on its own and is one event on the log. What a call may cost is decided before it is sent,
and its output cap is what the gate granted. If the model in use does not answer, another model of the run's line takes
over, under the same ceilings and with the same conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from operator import is_
from typing import Any, Final

import msgspec

from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate, EstimatedRequest
from watchkeeper.containment.record import Outcome
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError, EgressRefusedError, ProviderError, SessionError, Stop
from watchkeeper.core.messages import AssistantMessage, ToolCall, Transcript
from watchkeeper.core.model import ModelReply
from watchkeeper.core.text import error_text, storable
from watchkeeper.core.usage import TokenUsage
from watchkeeper.kernel.turn_machine import as_said
from watchkeeper.asking.models import ModelInUse, ModelLine, charge_failure, charge_reply, counted_usage
from watchkeeper.asking.retry import (
    DEGRADED,
    CIRCUIT_OPEN,
    OWN_FAULTS,
    UNASKED,
    WAITING,
    Backoff,
    Phase,
    UnansweredError,
    WorkStoppedError,
    call_through,
    held_back,
    may_pass_on,
    provider_stop,
    seconds_left,
)
from watchkeeper.runtime.events import CallBegun, ModelFailed, ModelReplied, ModelSwitched
from watchkeeper.runtime.plan import NotOnRecordError, RunPlan, RunScope
from watchkeeper.runtime.user_code import raise_failure
from watchkeeper.shield.decision import Decision

LONGEST_LOOK: Final = 10.0
"""The longest interval, in seconds, at which a call that waits for an open breaker asks whether it may pass."""

MOST_CALLS: Final = 1_000
"""Tool calls that one reply may make. Calls of unknown tools and with wrong arguments follow without a pause."""

LONGEST_WAIT_BEFORE_A_SWITCH: Final = 30.0
"""If a provider asks to wait more seconds than this, another model is asked instead, if there is one."""


NOTHING: Final = Charge()


class Turn(msgspec.Struct, frozen=True):
    """One turn of one model.

    Attributes:
        number: 1 for the first of the run.
        phase: ``landing`` for the last turn, after a limit.
        worst: The most that the turn may cost.
        landing: Worst case of the landing turn after this one; None without a landing turn.
    """

    number: int
    phase: Phase
    worst: Estimate
    landing: Estimate | None


class ModelCalls:
    """The model side of one run.

    Attributes:
        line: The models of the run.
        failed: How the next call failed before, if it is to repeat one of an earlier process.
    """

    def __init__(self, plan: RunPlan[Any], scope: RunScope, transcript: Transcript) -> None:
        """Prepare what every turn repeats: tools, schema, caps, bounds."""
        self._plan = plan
        self._scope = scope
        self._gate = scope.gate
        self._transcript = transcript
        self.line = ModelLine(plan, scope.gate, transcript)
        self.failed: ModelFailed | None = None
        self._call_ids = {
            call.call_id for said in transcript if isinstance(said, AssistantMessage) for call in said.tool_calls
        }
        self._id_numbers: dict[str, int] = {}
        self._node_id: str | None = None
        self._charged = NOTHING
        self._backoff = Backoff(scope.clock, scope.rng, self._gate.cancellation, lambda: seconds_left(scope))

    def recall(self, reply: ModelReply, switched_to: str | None) -> None:
        """Take in a reply that is on record from an earlier process; ``switched_to``: which model took over for it."""
        line = self.line
        line.begin_turn()
        if switched_to is not None:
            line.recall_switch(switched_to)
        line.in_use.bound.tokens(self._transcript)
        line.answered()
        density = line.in_use.bound.learn(reply, reply.usage)
        if density is not None:
            self._scope.densities[line.in_use.label] = density
        self._call_ids.update(call.call_id for call in reply.message.tool_calls)

    async def ask(self, number: int, *, landing: bool) -> ModelReply:
        """Ask for one reply; if the model in use cannot give one, ask the next model of the line.

        Args:
            number: 1 for the first turn of the run.
            landing: Whether it is the last turn, after a limit.

        Raises:
            WorkStoppedError: If the gate refuses, or no model of the line answers.
        """
        line = self.line
        phase: Phase = "landing" if landing else "work"
        line.begin_turn()
        failure: UnansweredError | None = None
        while True:
            try:
                reply = await self._ask_in_use(number, phase)
            except UnansweredError as error:
                if failure is None or failure.reason in UNASKED:
                    failure = error  # a provider's first failure tells more than the failures that follow from it
                if not self._switched(number, phase, error):
                    raise self._given_up(failure, phase) from failure.error
                continue
            line.answered()
            density = line.in_use.bound.learn(reply, self._charged.tokens)
            if density is not None:
                self._scope.densities[line.in_use.label] = density
            if self._charged.tokens is not reply.usage and not reply.usage.is_possible:
                return replace(reply, usage=self._charged.tokens)  # the report may not even be storable
            return reply

    async def _ask_in_use(self, number: int, phase: Phase) -> ModelReply:
        """Ask the model in use, with retries while a retry may help.

        Raises:
            UnansweredError: If it does not answer, and another model might.
            WorkStoppedError: If the work is over; no other model is asked then.
        """
        in_use, landing = self.line.in_use, None
        tokens = in_use.bound.tokens(self._transcript)
        worst = in_use.worst(tokens, landing=phase == "landing")
        if phase == "work":
            self._check_context()
            landing = self._landing(number, worst)
        turn, attempt = Turn(number, phase, worst, landing), 1
        failed, self.failed = self.failed, None
        if failed is not None and failed.model == in_use.label:
            attempt += failed.attempt
        failures: dict[str, int] = {}
        looks = 0
        while True:
            try:
                return await self._attempt(turn, attempt)
            except UnansweredError as error:
                if error.reason != CIRCUIT_OPEN or not self._waits_out(phase):
                    raise
                looks += 1
                await self._backoff.pause(min(self._backoff.growing(looks), LONGEST_LOOK))
                continue
            except ProviderError as error:
                failures[error.fault] = failures.get(error.fault, 0) + 1
                wait = self._backoff.wait_after(error, attempt, failures[error.fault])
                if wait is not None and not self._worth(wait, turn):
                    wait = None
                self._record_failure(turn, attempt, error.fault, error.message, wait)
                if wait is None:
                    stop = provider_stop(error)
                    if error.fault in OWN_FAULTS and not self.line.replacing:
                        raise WorkStoppedError(stop, error) from error
                    raise UnansweredError(error.fault, stop, error) from error
            await self._backoff.pause(wait)
            attempt += 1

    def _waits_out(self, phase: Phase) -> bool:
        """Whether a call waits until its provider's breaker lets it pass: for work that no other model can take."""
        waits = self._scope.waits_out and phase == "work"
        return waits and self._over(phase) is None and self._successor(phase) is None

    def _worth(self, wait: float, turn: Turn) -> bool:
        """Whether to retry with the same model: not if another can take over and the wait or a ceiling forbids it."""
        if self._successor(turn.phase) is None:
            return True
        once_more = CallRequest(kind="llm", estimate=turn.worst, retry=True, phase=turn.phase)
        again = self._estimated(once_more, self.line.in_use)
        return wait <= LONGEST_WAIT_BEFORE_A_SWITCH and self._gate.affords(again)

    def _estimated(self, request: CallRequest, model: ModelInUse) -> CallRequest:
        """Return a request with an estimate of its input beside its worst case, if an isolated nested budget pays."""
        if not self._gate.account.by_estimate:
            return request
        tokens = model.bound.guess(self._scope.densities.get(model.label))
        likely = model.worst(min(tokens, request.estimate.input_tokens), landing=request.phase == "landing")
        return EstimatedRequest(**msgspec.structs.asdict(request), likely=likely)

    def _begun(self, turn: Turn, number: int, ticket: Ticket) -> CallBegun:
        """Return the event that an admitted attempt begins, with the most that it can use."""
        model, output, worst = self.line.in_use, ticket.max_output_tokens, turn.worst
        nanos = None if model.price is None else worst.nanos(output)
        tokens = TokenUsage(input_tokens=worst.input_tokens, output_tokens=output)
        now = self._scope.clock.now()
        return CallBegun("llm", model.label, turn.number, number, ticket.node_id, "", tokens, nanos, now)

    async def _attempt(self, turn: Turn, number: int) -> ModelReply:
        """Make one admitted attempt and record its reply."""
        clock, in_use = self._scope.clock, self.line.in_use
        model, price = in_use.model, in_use.price
        began, spent, task = clock.monotonic(), NOTHING, asyncio.current_task()
        heard: list[str] = []

        async def work(ticket: Ticket) -> ModelReply:
            if self._scope.durable is not None:
                await self._scope.begin_call(self._begun(turn, number, ticket), last=turn.phase == "landing")
            try:
                asked = in_use.asking(ticket, heard, landing=turn.phase == "landing")
                return _checked(await model.turn(asked), model.provider)
            except BaseException as error:
                raise_failure(error, task)

        def meter(reply: ModelReply | None, error: BaseException | None, ticket: Ticket) -> Charge:
            nonlocal spent
            if reply is None:
                spent = charge_failure(error, turn.worst, ticket.max_output_tokens, price)
            else:
                spent = charge_reply(counted_usage(reply, turn.worst, ticket.max_output_tokens), price, reply.usage)
            return spent

        request = CallRequest(
            kind="llm",
            operation_name=model.name,
            estimate=turn.worst,
            retry=number > 1,
            phase=turn.phase,
            landing=turn.landing,
            model=in_use.label,
            provider=in_use.service,
            degraded=in_use.degraded,
            recorder=self._scope.durable,
            on_log=True,
        )
        outcome = await call_through(self._scope, self._estimated(request, in_use), work, meter)
        self._node_id, self._charged = outcome.node_id, spent
        reply = outcome.value
        if outcome.decision is not Decision.ALLOW or outcome.error is not None or reply is None:
            raise self._failure(outcome, turn, number, heard)
        if reply.finish == "refusal" and self._successor(turn.phase) is not None:
            said = as_said(reply.refusal or reply.message.text or "no reason given")
            raise ProviderError(f"the model refused: {said}", fault="refused", provider=model.provider, billed=True)
        reply = self._with_own_call_ids(reply)
        self._record_reply(self._replied(reply, turn, spent, (clock.monotonic() - began) * 1000), model.provider)
        return reply

    def _replied(self, reply: ModelReply, turn: Turn, spent: Charge, duration_ms: float) -> ModelReplied:
        """Return the event of a reply."""
        return ModelReplied(
            turn=turn.number,
            message=reply.message,
            finish=reply.finish,
            usage=spent.tokens,
            cost_nanos=spent.cost_nanos,
            model=reply.model or self.line.in_use.model.name,
            node_id=self._node_id or "",
            duration_ms=duration_ms,
            landing=turn.phase == "landing",
            created_at=self._scope.clock.now(),
            refusal=reply.refusal or "",
            run_context=self._scope.run_context,
            response_id=reply.response_id,
        )

    def _failure(self, outcome: Outcome[ModelReply], turn: Turn, number: int, heard: Sequence[str]) -> BaseException:
        """Return the exception for a call without a reply; if the call was admitted, record its failure.

        Args:
            outcome: What the gate returned.
            turn: The turn that it was made for.
            number: The number of the attempt.
            heard: The text that was streamed before the call was stopped.
        """
        stop, error = outcome.stop, outcome.error
        if not outcome.admitted:
            refused = stop or Stop("policy_halt", "hook", f"The model may not be asked: {held_back(outcome)}.")
            if refused.reason == CIRCUIT_OPEN:
                return UnansweredError(CIRCUIT_OPEN, refused)
            if stop is None and outcome.decision is Decision.DEGRADE:
                return UnansweredError(DEGRADED, refused)
            return WorkStoppedError(refused, error)
        if stop is not None:
            said = "".join(heard) or (outcome.value.message.text if outcome.value is not None else "")
            text = said if said.strip() and stop.source != "hook" else ""
            self._record_failure(turn, number, stop.reason, stop.message, None, text)
            if stop.source == "hook" and outcome.decision is Decision.HALT and may_pass_on(error):
                return UnansweredError(error.fault, stop, error)
            return WorkStoppedError(stop, error, text)
        if outcome.decision is Decision.DEGRADE:
            said = f"A hook asked for the cheaper model: {held_back(outcome)}."
            self._record_failure(turn, number, DEGRADED, said, None)
            return UnansweredError(DEGRADED, Stop("policy_halt", "hook", said), error)
        if error is None and outcome.decision in WAITING:  # a hook rejected the reply; the model may be asked again
            said = f"the answer is not used: {held_back(outcome)}"
            return ProviderError(said, fault="server", provider=self.line.in_use.model.provider, billed=True)
        if error is None:
            return RuntimeError(f"the gate admitted a model call and returned nothing: {outcome!r}")
        if isinstance(error, ProviderError):
            return error
        if isinstance(error, NotOnRecordError):
            return WorkStoppedError(
                Stop("store_failed", "store", f"The run's events cannot be stored: {error}."), error
            )
        if isinstance(error, EgressRefusedError):
            self._record_failure(turn, number, error.stop.reason, str(error), None)
            return WorkStoppedError(error.stop, error)
        self._record_failure(turn, number, "error", error_text(error), None)
        if isinstance(error, ConfigurationError) and turn.number == 1 and not self.line.switched:
            return error  # a configuration error is raised as long as no work can be lost
        # A bug in an adapter ends the work; it never loses what was done.
        return WorkStoppedError(Stop("error", "provider", f"The model failed unexpectedly: {error_text(error)}"), error)

    def _record_reply(self, replied: ModelReplied, provider: str) -> None:
        """Record a reply.

        Raises:
            ProviderError: If the log could not keep it, for example because it is nested too deeply.
        """
        try:
            self._scope.record(replied)
        except SessionError as error:
            if not isinstance(error.__cause__, CodecError):
                raise
            said = f"the reply cannot be recorded: {error.__cause__}"
            raise ProviderError(said, fault="malformed_reply", provider=provider, billed=True) from error

    def _record_failure(
        self, turn: Turn, number: int, fault: str, said: str, retry_in: float | None, text: str = ""
    ) -> None:
        """Record an admitted attempt that brought no reply, or only a part of one."""
        now, asked = self._scope.clock.now(), self.line.in_use.label
        node_id, paid = self._node_id, self._charged
        charged = (paid.tokens, paid.cost_nanos, paid.presumed)
        self._scope.record(ModelFailed(turn.number, number, fault, said, retry_in, node_id, now, asked, text, *charged))

    def _given_up(self, failure: UnansweredError, phase: Phase) -> WorkStoppedError:
        """Return the error that ends the work when no model is left to ask, or no model may be asked any more."""
        stop, over = failure.stop, self._over(phase)
        if len(self.line.models) > 1:
            if over is not None:
                stop = over
            elif failure.reason != DEGRADED:
                stop = replace(stop, message=f"{stop.message.rstrip('.')}; no other model of the run could take over.")
        return WorkStoppedError(stop, failure.error)

    def _over(self, phase: Phase) -> Stop | None:
        return self._gate.stop if phase == "landing" else self._gate.work_stop

    def _successor(self, phase: Phase, *, cheaper: bool = False) -> ModelInUse | None:
        """Return the model that would take over now; the ceilings must leave enough for a minimal call to it."""
        if len(self.line.models) == 1:
            return None

        def fits(model: ModelInUse) -> bool:
            worst = model.worst(model.bound.tokens(self._transcript), landing=phase == "landing")
            return self._gate.affords(self._estimated(CallRequest(kind="llm", estimate=worst, phase=phase), model))

        return self.line.find(fits, cheaper=cheaper)

    def _switched(self, number: int, phase: Phase, failure: UnansweredError) -> bool:
        """Let another model take over, and record it; False if there is none, or the work is over."""
        if self._over(phase) is not None:
            return False
        candidate = self._successor(phase, cheaper=failure.reason == DEGRADED)
        if candidate is None:
            return False
        self._take_over(number, candidate, failure.reason, failure.stop.message)
        return True

    def switch_to(self, source: str, number: int) -> str | None:
        """Switch to the model of a source's escalation; return its label, or None if it cannot take over."""
        wanted = self._plan.escalations.get(source)
        candidate = None if wanted is None else self.line.named(wanted.model)
        if candidate is None:
            return None
        self._take_over(number, candidate, "escalated", f"The advice of {source} was not heeded.")
        return candidate.label

    def _take_over(self, number: int, candidate: ModelInUse, reason: str, why: str) -> None:
        left, now = self.line.in_use.label, self._scope.clock.now()
        self.line.take_over(candidate)
        self._scope.record(ModelSwitched(number, left, candidate.label, reason, why, now))

    def _check_context(self) -> None:
        """Stop before the context of the model in use overflows; a landing turn may use the rest of it."""
        in_use = self.line.in_use
        room = in_use.room
        if room is None:
            return
        tokens, window = in_use.bound.likely(), in_use.model.context_window
        if tokens is not None and tokens > room:
            said = f"The conversation has grown to about {tokens:,} tokens; the model holds {window:,}."
            raise WorkStoppedError(Stop("context_full", "loop", said, "context_window", f"{window:,} tokens"))

    def _landing(self, number: int, call: Estimate) -> Estimate | None:
        """Return what the landing turn would need after this call; None if there is to be no landing turn.

        A budget that cannot pay for both is spent on the first turn of work, because a landing turn without work is
        useless.
        """
        limits = self._gate.limits
        if limits.landing is None:
            return None
        after = self.line.in_use.worst(call.input_tokens + limits.min_output_tokens, landing=True)
        if number > 1 or self._gate.affords(CallRequest(kind="llm", estimate=call, landing=after)):
            return after
        return None

    def _with_own_call_ids(self, reply: ModelReply) -> ModelReply:
        """Return the reply with call ids that are unique in the conversation, and can be put on record.

        Some servers restart their numbering in every reply, or give no id at all. Results and idempotency keys of tools
        would then be confused with those of other calls.
        """
        given, calls = reply.message.tool_calls, list[ToolCall]()
        for call in given:
            stem = own = storable(call.call_id) or "call"
            while own in self._call_ids:
                number = self._id_numbers[stem] = self._id_numbers.get(stem, 1) + 1
                own = f"{stem}-{number}"
            self._call_ids.add(own)
            calls.append(call if own == call.call_id else replace(call, call_id=own))
        if all(map(is_, calls, given)):
            return reply
        return replace(reply, message=replace(reply.message, tool_calls=tuple(calls)))


def _checked(reply: object, provider: str) -> ModelReply:
    if not isinstance(reply, ModelReply):
        raise TypeError(f"turn() must return a ModelReply, not {reply!r}")
    if (made := len(reply.message.tool_calls)) > MOST_CALLS:
        said = f"{provider} answered with {made:,} tool calls; one reply may make {MOST_CALLS:,}"
        raise ProviderError(said, fault="oversized_reply", provider=provider, billed=True)
    return reply
