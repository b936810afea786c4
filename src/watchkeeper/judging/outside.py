"""Evaluations by an adapter that is not ours: the caller's own object with `evaluate` and `evaluate_async`.

It runs as a child like any other: admitted by the gate, recorded, charged with what it says it used. What goes on
inside it the gate cannot see, so it gets the ceilings as its arguments, and it is called once: whether to try again is
the parent's decision. Nobody knows its price beforehand, so it is refused wherever a cost ceiling holds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, cast

import msgspec

from watchkeeper.containment.call import CallRequest, Outcome, Ticket
from watchkeeper.containment.decision import Decision
from watchkeeper.containment.dollars import nanos
from watchkeeper.containment.estimate import Charge
from watchkeeper.core.budget import Budget
from watchkeeper.core.errors import ConfigurationError, ProviderError
from watchkeeper.core.messages import AssistantMessage
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.stop import Stop
from watchkeeper.core.transcript import Transcript
from watchkeeper.core.usage import TokenUsage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.kernel.commands import End
from watchkeeper.prompt.adapter import PromptResponse, ProviderAdapter
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.runtime.bounded import StrayCancellationError, is_cancelled
from watchkeeper.runtime.child import Children, Execute, Family
from watchkeeper.runtime.driver import Ending
from watchkeeper.runtime.events import ModelReplied
from watchkeeper.runtime.failures import provider_stop
from watchkeeper.runtime.hosting import hosting
from watchkeeper.runtime.patience import held_back
from watchkeeper.runtime.plan import PricedModel, RunHome, RunPlan
from watchkeeper.runtime.pricing import charge_failure, estimate_call, message_bytes
from watchkeeper.runtime.recorder import Recorder
from watchkeeper.runtime.result import RunResult
from watchkeeper.runtime.run import execute

OUTSIDE_TOKENS: Final = 8_192
"""What an adapter of the caller's own may use beside its input where no budget of its own says so."""


@dataclass(frozen=True, slots=True)
class OutsideModel:
    """What the log says of an adapter that is not ours; it is asked for whole evaluations, never for a turn."""

    provider: str
    name: str
    native_output: bool = True
    context_window: int | None = None
    max_output_tokens: int | None = None
    free: bool = False

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Refuse: its turns are its own.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"{self.provider} evaluates whole prompts; for single turns give a Model, as Adapter(model)"
        )

    async def close(self) -> None:
        """Nothing of it is open here."""


def outside_model(adapter: ProviderAdapter) -> PricedModel:
    """Return how an adapter of the caller's own stands on the record."""
    kind = type(adapter).__name__
    name: object = getattr(adapter, "name", kind)
    return PricedModel(OutsideModel(name if isinstance(name, str) and name else kind, kind), None)


def evaluated_by(adapter: ProviderAdapter, prompt: Prompt[Any]) -> Execute:
    """Return what executes a child run by having an adapter evaluate its prompt."""

    async def drive(plan: RunPlan[Any], home: RunHome, transcript: Transcript, loop: Execute) -> Ending:
        children = Children(Family(home, lambda: PricedModel(plan.model, None)), loop)
        with hosting(home.session, home.run_context.run_id, children):
            return await _ask(adapter, prompt, plan, home)

    async def run(plan: RunPlan[Any], home: RunHome) -> RunResult[Any]:
        return await execute(plan, home, drive)

    return run


async def _ask(adapter: ProviderAdapter, prompt: Prompt[Any], plan: RunPlan[Any], home: RunHome) -> Ending:
    """Have the adapter evaluate the prompt within the gate, and return how that ended."""
    label = plan.model.provider
    bound = sum(message_bytes(message) for message in plan.prompt.messages)
    own = home.gate.limits.ceiling("max_total_tokens")
    wish = OUTSIDE_TOKENS if own is None else max(own - bound, 1)
    estimate = estimate_call(bound, wish, home.gate.limits.min_output_tokens, None)
    began = home.clock.monotonic()

    async def work(ticket: Ticket) -> PromptResponse[Any]:
        budget = Budget(max_total_tokens=bound + ticket.max_output_tokens)
        try:
            return _checked(adapter, await _evaluated(adapter, prompt, plan, home, budget))
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise StrayCancellationError from error

    def meter(response: PromptResponse[Any] | None, error: BaseException | None, ticket: Ticket) -> Charge:
        if response is None:
            return charge_failure(error, estimate, ticket.max_output_tokens, None)
        return Charge(response.usage, _nanos(response))

    whom = f"{label}:{plan.model.name}"
    request = CallRequest(kind="llm", operation_name=label, estimate=estimate, model=whom, provider=label)
    outcome = await home.gate.acall(request, work, meter)
    if isinstance(outcome.error, ConfigurationError):
        raise outcome.error
    response = outcome.value
    if outcome.decision is not Decision.ALLOW or response is None:
        return Ending(End(stop=_stop(label, outcome)), 0, outcome.error, ())
    Recorder(home.session, home.clock).record(
        ModelReplied(
            turn=1,
            message=AssistantMessage(response.text),
            finish="stop",
            usage=response.usage,
            cost_nanos=_nanos(response),
            model=plan.model.name,
            node_id=outcome.node_id or "",
            duration_ms=(home.clock.monotonic() - began) * 1000,
            landing=False,
            created_at=home.clock.now(),
        )
    )
    return Ending(End(output=response.output, text=response.text), 1, None, (whom,))


async def _evaluated(
    adapter: ProviderAdapter, prompt: Prompt[Any], plan: RunPlan[Any], home: RunHome, budget: Budget
) -> object:
    """Call it: its async method, or on a worker thread its sync one."""
    arguments: dict[str, Any] = {
        "session": home.session,
        "deadline": home.gate.work_deadline,
        "budget": budget,
        "run_context": home.run_context,
        "parse_output": plan.parse_output,
    }
    method: Any = getattr(adapter, "evaluate_async", None)
    if method is not None:
        return await method(prompt, **arguments)
    return await run_in_worker(lambda: adapter.evaluate(prompt, **arguments))


def _checked(adapter: ProviderAdapter, response: object) -> PromptResponse[Any]:
    name, said = type(adapter).__name__, cast("PromptResponse[Any]", response)
    if not isinstance(response, PromptResponse):
        raise TypeError(f"{name} must return a PromptResponse, not {response!r}")
    usage, cost = cast("object", said.usage), cast("object", said.cost)
    if not isinstance(usage, TokenUsage) or not all(map(_is_count, msgspec.structs.astuple(usage))):
        raise ValueError(f"{name} says that it used {usage!r}; that is no TokenUsage")
    if cost is not None and not (isinstance(cost, Decimal) and cost.is_finite() and cost >= 0):
        raise ValueError(f"{name} says that it cost {cost!r} dollars")
    return said


def _is_count(given: object) -> bool:
    """Return whether this can be added to what is counted: with one NaN, no ceiling would hold any more."""
    return isinstance(given, int) and not isinstance(given, bool) and given >= 0


def _nanos(response: PromptResponse[Any]) -> int | None:
    return None if response.cost is None else nanos(response.cost, "cost")


def _stop(label: str, outcome: Outcome[PromptResponse[Any]]) -> Stop:
    """Return what ended an evaluation that brought no answer."""
    error = outcome.error
    if outcome.stop is not None:
        return outcome.stop
    if isinstance(error, ProviderError):
        return provider_stop(error)
    if error is not None:
        return Stop("error", "provider", f"{label} failed: {type(error).__name__}: {error}")
    return Stop("policy_halt", "hook", f"{label} may not be asked: {held_back(outcome)}.")
