"""One model turn through the gate: reserve the worst case, ask, settle, record; try again where that may help.

Every attempt is admitted on its own and is one event on the log. What a call may cost is decided before it is sent,
and its output cap is what the gate granted.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from watchkeeper.containment.call import CallRequest, Ticket
from watchkeeper.containment.estimate import Charge, Estimate
from watchkeeper.core.errors import ConfigurationError, ProviderError
from watchkeeper.core.messages import AssistantMessage, ToolCall
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.stop import Stop, StopReason
from watchkeeper.core.transcript import Transcript
from watchkeeper.runtime.backoff import Backoff
from watchkeeper.runtime.bounded import StrayCancellationError, is_cancelled
from watchkeeper.runtime.events import ModelFailed, ModelReplied
from watchkeeper.runtime.plan import RunHome, RunPlan
from watchkeeper.runtime.pricing import InputBound, charge_failure, charge_reply, counted, estimate_call
from watchkeeper.runtime.recorder import Recorder

DEFAULT_OUTPUT_CAP: Final = 16_384
"""Output cap of a reply where neither the caller nor the model names a smaller one."""


class WorkStoppedError(Exception):
    """The gate, or a provider for good, ended the work; carries the stop to the driver."""

    def __init__(self, stop: Stop, error: BaseException | None = None) -> None:
        """Keep the stop and the error behind it."""
        super().__init__(stop.message)
        self.stop = stop
        self.error = error


class ModelCalls:
    """The model side of one run."""

    def __init__(self, plan: RunPlan[Any], home: RunHome, recorder: Recorder, transcript: Transcript) -> None:
        """Prepare what every turn repeats: tools, schema, caps, bounds."""
        self._plan = plan
        self._home = home
        self._recorder = recorder
        prompt, model, settings = plan.prompt, plan.model, plan.settings
        self._cap = settings.max_output_tokens or min(model.max_output_tokens or DEFAULT_OUTPUT_CAP, DEFAULT_OUTPUT_CAP)
        self._request = ModelRequest(
            transcript=transcript,
            tools=tuple(tool.spec for tool in prompt.tools),
            output=prompt.output if model.native_output and plan.parse_output else None,
            max_output_tokens=self._cap,
            settings=settings,
            on_delta=plan.on_delta,
        )
        self._bound = InputBound(self._request, home.gate.limits)
        self._call_ids = {
            call.call_id for said in transcript if isinstance(said, AssistantMessage) for call in said.tool_calls
        }
        self._node_id: str | None = None
        self._backoff = Backoff(home.clock, home.rng, home.gate.cancellation, self._seconds_left)

    async def ask(self, turn: int, *, landing: bool) -> ModelReply:
        """Ask for one reply.

        Raises:
            WorkStoppedError: If the gate refuses, or the provider fails for good.
        """
        input_tokens = self._bound.tokens(self._request.transcript)
        self._check_context(landing)
        cap = self._landing_cap if landing else self._cap
        estimate = estimate_call(input_tokens, cap, self._home.gate.limits.min_output_tokens, self._plan.price)
        after = None if landing else self._landing_estimate(turn, estimate)

        async def attempt(number: int) -> ModelReply:
            return await self._attempt(turn, number, estimate, after, landing)

        def failed(error: ProviderError, number: int, retry_in: float | None) -> None:
            self._record_failure(turn, number, error.fault, error.message, retry_in)

        try:
            reply = await self._backoff.run(attempt, failed)
        except ProviderError as error:
            raise WorkStoppedError(provider_stop(error), error) from error
        self._bound.learn(reply)
        return reply

    async def _attempt(
        self, turn: int, number: int, estimate: Estimate, after: Estimate | None, landing: bool
    ) -> ModelReply:
        """Make one admitted attempt and record its reply."""
        clock, price = self._home.clock, self._plan.price
        began = clock.monotonic()

        async def work(ticket: Ticket) -> ModelReply:
            try:
                return _checked(await self._plan.model.turn(self._request_for(ticket, landing)))
            except asyncio.CancelledError as error:
                if is_cancelled():
                    raise
                raise StrayCancellationError from error

        def meter(reply: ModelReply | None, error: BaseException | None, ticket: Ticket) -> Charge:
            if reply is not None:
                return charge_reply(counted(reply, estimate), price)
            return charge_failure(error, estimate, ticket.max_output_tokens, price)

        request = CallRequest(
            kind="llm",
            operation_name=self._plan.model.name,
            estimate=estimate,
            retry=number > 1,
            phase="landing" if landing else "work",
            landing=after,
        )
        outcome = await self._home.gate.acall(request, work, meter)
        self._node_id = outcome.node_id
        if outcome.stop is not None:
            if outcome.admitted:
                self._record_failure(turn, number, outcome.stop.reason, outcome.stop.message, None)
            raise WorkStoppedError(outcome.stop, outcome.error)
        if outcome.error is not None:
            if not isinstance(outcome.error, ProviderError):
                said = f"{type(outcome.error).__name__}: {outcome.error}"
                self._record_failure(turn, number, "error", said, None)
            raise _passed_on(outcome.error, turn)
        reply = outcome.value
        if reply is None:
            raise RuntimeError(f"the gate admitted a model call and returned nothing: {outcome!r}")
        reply = self._with_own_call_ids(reply)
        usage = counted(reply, estimate)
        self._recorder.record(
            ModelReplied(
                turn=turn,
                message=reply.message,
                finish=reply.finish,
                usage=usage,
                cost_nanos=charge_reply(usage, price).cost_nanos,
                model=reply.model or self._plan.model.name,
                node_id=outcome.node_id or "",
                duration_ms=(clock.monotonic() - began) * 1000,
                landing=landing,
                created_at=clock.now(),
            )
        )
        return reply

    def _record_failure(self, turn: int, number: int, fault: str, said: str, retry_in: float | None) -> None:
        """Record an admitted attempt that brought no reply."""
        now = self._home.clock.now()
        self._recorder.record(ModelFailed(turn, number, fault, said, retry_in, self._node_id, now))

    def _request_for(self, ticket: Ticket, landing: bool) -> ModelRequest:
        """Return the turn's request: what every turn repeats, and what the gate granted this one."""
        whole = self._request
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

    def _with_own_call_ids(self, reply: ModelReply) -> ModelReply:
        """Return the reply with call ids that are unique in the conversation.

        Some servers count anew in every reply, or give no id at all; results, and the idempotency keys of tools, would
        then be mistaken for those of other calls.
        """
        calls: list[ToolCall] = []
        for call in reply.message.tool_calls:
            stem = own = call.call_id or "call"
            number = 1
            while own in self._call_ids:
                number += 1
                own = f"{stem}-{number}"
            self._call_ids.add(own)
            calls.append(call if own == call.call_id else replace(call, call_id=own))
        if all(call is given for call, given in zip(calls, reply.message.tool_calls, strict=True)):
            return reply
        return replace(reply, message=replace(reply.message, tool_calls=tuple(calls)))

    @property
    def _landing_cap(self) -> int:
        landing = self._home.gate.limits.landing
        return min(landing.max_output_tokens, self._cap) if landing else self._cap

    def _landing_estimate(self, turn: int, call: Estimate) -> Estimate | None:
        """Return what the last turn would need after this call, or None if there is to be none.

        A budget that cannot pay for both is spent on the first turn of work: handing over nothing is worth nothing.
        """
        gate = self._home.gate
        least = gate.limits.min_output_tokens
        if gate.limits.landing is None:
            return None
        after = estimate_call(call.input_tokens + least, self._landing_cap, least, self._plan.price)
        wanted = CallRequest(kind="llm", estimate=call, landing=after)
        return after if turn > 1 or gate.affords(wanted) else None

    def _check_context(self, landing: bool) -> None:
        """Stop before a model's context overflows; a landing turn may use the rest of it."""
        window, tokens = self._plan.model.context_window, self._bound.likely()
        if window is None or tokens is None or landing:
            return
        spare = min(self._cap, self._home.gate.limits.min_output_tokens)
        if tokens + spare + (self._landing_cap if self._home.gate.limits.landing else 0) > window:
            said = f"The conversation has grown to about {tokens:,} tokens; the model holds {window:,}."
            raise WorkStoppedError(Stop("context_full", "loop", said, "context_window", f"{window:,} tokens"))

    def _seconds_left(self) -> float | None:
        if self._home.gate.work_stop is not None:
            return 0.0
        deadline = self._home.gate.work_deadline
        return None if deadline is None else deadline.remaining(self._home.clock).total_seconds()


def _checked(reply: object) -> ModelReply:
    if not isinstance(reply, ModelReply):
        raise TypeError(f"turn() must return a ModelReply, not {reply!r}")
    return reply


def _passed_on(error: BaseException, turn: int) -> BaseException:
    """Return what is raised for a failed attempt: a bug in an adapter ends the work, it never loses what was done.

    What is wrong with the configuration shows in the first turn, where there is nothing to lose yet.
    """
    if isinstance(error, ProviderError) or (turn == 1 and isinstance(error, ConfigurationError)):
        return error
    said = f"The model failed unexpectedly: {type(error).__name__}: {error}"
    return WorkStoppedError(Stop("error", "provider", said), error)


def provider_stop(error: ProviderError) -> Stop:
    """Translate a provider's failure, after all retries, into a stop."""
    reasons: dict[str, StopReason] = {
        "rate_limit": "provider_rate_limit",
        "context_full": "context_full",
        "refused": "refused",
    }
    waited = f" (asked to wait {format_duration(error.retry_after)})" if error.retry_after else ""
    return Stop(reasons.get(error.fault, "provider_error"), "provider", f"The provider failed: {error}{waited}")
