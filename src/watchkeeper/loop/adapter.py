"""`evaluate` as the seeds define it: a prompt in, a response out, a stop as an exception.

An `Adapter` is a `Model` with the loop around it. It is the same loop, gate and log that `run` uses, without landing
and without defaults: no limit is in force that the caller did not give.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from watchkeeper.children.child import Children, Family
from watchkeeper.children.nested_adapter import response_of
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.budget import Budget, BudgetTracker
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, Deadline, checked_deadline
from watchkeeper.core.errors import ConfigurationError, UnpricedModelError
from watchkeeper.core.ids import SYSTEM_IDS, IdSource, RunContext, root_run_context
from watchkeeper.core.limits import Limits, tighten
from watchkeeper.core.model import Model, ModelSettings
from watchkeeper.core.usage import FREE, ModelPrice
from watchkeeper.loop.run import execute
from watchkeeper.prompt.adapter import PromptResponse
from watchkeeper.prompt.nested import NESTED, NESTED_LIMITS, NestedExecutionConfig
from watchkeeper.prompt.template import Prompt
from watchkeeper.runtime.plan import PricedModel, RunHome, RunPlan
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.runtime.shared_budget import gate_of
from watchkeeper.session.log import Dispatcher
from watchkeeper.session.session import Session

OutputT = TypeVar("OutputT")


UNLIMITED = Limits(deadline=None, max_total_tokens=None, max_retries=None, max_turns=None, landing=None)


def _checked_model(model: object) -> Model:
    if isinstance(model, Model):
        return model
    way = f"; make one: watchkeeper.app.models.model_from({model!r})" if isinstance(model, str) else ""
    raise ConfigurationError(f"Adapter needs a Model, and {model!r} is none{way}")


class Adapter:
    """Evaluates prompts with one model (seeds: deadlines, nested-execution)."""

    __slots__ = ("_clock", "_ids", "_price", "_rng", "_settings", "model")

    def __init__(
        self,
        model: Model,
        *,
        settings: ModelSettings = ModelSettings(),
        price: ModelPrice | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
        rng: random.Random | None = None,
    ) -> None:
        """Wrap a model.

        Args:
            model: Who answers.
            settings: How it is asked.
            price: What it charges; needed under a cost ceiling unless the model is free.
            clock: Time.
            ids: Identifiers.
            rng: Randomness for backoff.

        Raises:
            ConfigurationError: If that is no model.
        """
        self.model = _checked_model(model)
        self._settings = settings
        self._price = price or (FREE if model.free else None)
        self._clock = clock
        self._ids = ids
        self._rng = rng or random.Random()

    @property
    def name(self) -> str:
        """The provider's name, as events carry it."""
        return self.model.provider

    @property
    def priced(self) -> PricedModel:
        """Its model with all that is known of it, for a run that is to use the same."""
        return PricedModel(self.model, self._price, self._settings)

    def evaluate(
        self,
        prompt: Prompt[OutputT],
        *params: Any,
        session: Session | None = None,
        bus: Dispatcher | None = None,
        deadline: Deadline | datetime | None = None,
        budget: Budget | None = None,
        budget_tracker: BudgetTracker | None = None,
        run_context: RunContext | None = None,
        parse_output: bool = True,
    ) -> PromptResponse[OutputT]:
        """Evaluate a prompt and wait for the response; see `evaluate_async`."""
        work = self.evaluate_async(
            prompt,
            *params,
            session=session,
            bus=bus,
            deadline=deadline,
            budget=budget,
            budget_tracker=budget_tracker,
            run_context=run_context,
            parse_output=parse_output,
        )
        return PORTAL.call(work, "evaluate_async")

    async def evaluate_async(
        self,
        prompt: Prompt[OutputT],
        *params: Any,
        session: Session | None = None,
        bus: Dispatcher | None = None,
        deadline: Deadline | datetime | None = None,
        budget: Budget | None = None,
        budget_tracker: BudgetTracker | None = None,
        run_context: RunContext | None = None,
        parse_output: bool = True,
    ) -> PromptResponse[OutputT]:
        """Evaluate a prompt.

        Args:
            prompt: What to evaluate.
            params: Dataclass values that fill its placeholders, beside those that are bound already.
            session: Where to record; a new session by default. A `Budget` seeded in it tightens the limits.
            bus: Where else to publish the events; the session's own dispatcher by default.
            deadline: The moment at which it must be over; aware, and at least in the next second.
            budget: Ceilings of this evaluation.
            budget_tracker: A budget shared with other evaluations; what this one uses is added to it.
            run_context: Identifiers, for correlation.
            parse_output: Whether to parse the final text into the output type.

        Raises:
            PromptEvaluationError: Phase ``preflight`` for a deadline that makes no sense, else what ended it:
                DeadlineExceededError, BudgetExceededError, ThrottleError, OutputParseError or another ProviderError.
            ConfigurationError: If the prompt, the tools or the budget cannot work.
        """
        checked = checked_deadline(deadline, self._clock)
        session = session or Session(clock=self._clock, ids=self._ids)
        gate = self._gate(session, checked, budget, budget_tracker)
        forward = session.dispatcher.subscribe_all(bus.publish) if bus and bus is not session.dispatcher else None
        try:
            plan = self._plan(prompt.bind(*params) if params else prompt, gate, parse_output)
            context = run_context or root_run_context(session.session_id, self._ids)
            result = await execute(plan, RunHome(session, gate, context, self._clock, self._ids, self._rng))
        finally:
            gate.close()
            if forward is not None:
                forward()
            if budget_tracker is not None:
                budget_tracker.add(gate.usage)
        return response_of(result, gate.deadline)

    def _gate(
        self, session: Session, deadline: Deadline | None, budget: Budget | None, tracker: BudgetTracker | None
    ) -> ExecutionContext:
        """Open the gate with the tightest of everything that limits this evaluation, below the tracker's if any."""
        limits = UNLIMITED
        seeded = session[Budget].latest()
        for ceilings in (Budget(deadline=deadline) if deadline else None, budget, seeded):
            if ceilings is not None:
                limits = tighten(limits, ceilings.as_limits(), self._clock)
        priced = limits.max_cost_nanos is not None or (tracker is not None and tracker.budget.max_cost_usd is not None)
        if priced and self._price is None:
            raise UnpricedModelError(
                f"a cost ceiling is set, but there is no price for {self.model.name!r}; "
                "give one: Adapter(model, price=ModelPrice.per_million(input_usd, output_usd))"
            )
        if tracker is not None:
            return gate_of(tracker, self._clock, self._ids).child(limits, carve=False, on_event=session.dispatch)
        return ExecutionContext(limits, clock=self._clock, ids=self._ids, on_event=session.dispatch)

    def _plan(self, prompt: Prompt[OutputT], gate: ExecutionContext, parse_output: bool) -> RunPlan[OutputT]:
        for source in prompt.template.sources:
            if source.escalate is not None and source.escalate.action == "switch_model":
                raise ConfigurationError(
                    f"an adapter has one model, so the advice of {source.name!r} cannot escalate to another;"
                    " use run() or arun(), or action='stop' or 'call'"
                )
        return RunPlan(
            prompt.render(deadline=gate.deadline, output_in_prompt=parse_output and not self.model.native_output),
            self.model,
            self._price,
            self._settings,
            checker=prompt.template.task_completion_checker,
            parse_output=parse_output,
            sources=prompt.template.sources,
            completion_rounds=prompt.template.completion_rounds,
            nested=prompt.template.nested_execution_config,
        )


# --- standalone -----------------------------------------------------------------------------------------------------
# Children outside of any run: an evaluation that nobody runs around has a gate of its own.
#
# The same way to start a child, with nothing above it but the caller's identifiers and, if there is one, a budget
# that is
# shared with others.


@contextmanager
def standalone(
    session: Session,
    *,
    model: PricedModel,
    run_context: RunContext | None = None,
    nested: NestedExecutionConfig = NESTED,
    tracker: BudgetTracker | None = None,
    ids: IdSource = SYSTEM_IDS,
) -> Generator[Children]:
    """Open a gate and yield what starts children below it; each child has limits of its own.

    Args:
        session: The children's parent; it also gets the events of their starts and ends.
        model: Who answers if a child does not say otherwise.
        run_context: Identifiers of whoever asks; fresh ones by default.
        nested: What nested evaluations may do.
        tracker: A budget that is shared with other evaluations, or None.
        ids: Where identifiers come from.

    Raises:
        BudgetExceededError: If the tracker's budget is used up.
    """
    clock = session.clock
    if tracker is None:
        gate = ExecutionContext(NESTED_LIMITS, clock=clock, ids=ids, on_event=session.dispatch)
    else:
        gate = gate_of(tracker, clock, ids).child(NESTED_LIMITS, carve=False, on_event=session.dispatch)
    context = run_context or root_run_context(session.session_id, ids)
    try:
        with gate:
            home = RunHome(session, gate, context, clock, ids)
            yield Children(Family(home, lambda: model, nested=nested), execute)
    finally:
        if tracker is not None:
            tracker.add(gate.usage)
