"""A nested evaluation: a prompt that is evaluated as a child of the run that is judged.

The child is admitted by the run's gate, has a session, a trace span and limits of its own, and cannot change anything
in the run. A failed evaluation is returned as a value (`NestedEvaluationResult`). The only errors that are raised are
an exceeded deadline or budget, because it may be the run's; a wrong argument; a store that fails; and a cancellation.

The caller may give an adapter of another library, with its own `evaluate_async` or `evaluate`. It runs as a child like
any other: admitted by the gate, recorded, and charged with the usage that it reports. The gate cannot see the calls
that it makes, so the ceilings are passed as its arguments, and it is called once. Its price is not known beforehand, so
it is refused if a cost ceiling applies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Generic, cast

import msgspec

from watchkeeper.accounting.call_request import Charge, EstimatedRequest, nanos
from watchkeeper.children.child import Children, ChildRun, ChildTask, Execute, Family, children_of
from watchkeeper.children.innermost import is_inside
from watchkeeper.children.nested_adapter import RunAdapter, cause_of, stop_error
from watchkeeper.containment.record import Outcome
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.accounting.budget import Budget, BudgetTracker
from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import (
    BudgetExceededError,
    ConfigurationError,
    DeadlineExceededError,
    NestedEvaluationError,
    OutputParseError,
    PromptEvaluationError,
    ProviderError,
    Stop,
    StoreError,
    ThrottleError,
)
from watchkeeper.core.ids import RunContext
from watchkeeper.accounting.limits import Limits, tighten
from watchkeeper.core.messages import AssistantMessage, Transcript
from watchkeeper.core.model import Model, ModelReply, ModelRequest
from watchkeeper.core.quantities import is_whole
from watchkeeper.core.text import error_text
from watchkeeper.core.usage import TokenUsage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.kernel.turn_machine import End
from watchkeeper.loop.run import Adapter, children_outside_runs
from watchkeeper.loop.resume import Recorded
from watchkeeper.loop.driver import Ending
from watchkeeper.loop.run import execute
from watchkeeper.prompt.evaluation import PromptResponse
from watchkeeper.prompt.evaluation import (
    NESTED,
    NestedExecutionConfig,
    NestedExecutionContext,
    nested_limits,
    refuse_tools,
)
from watchkeeper.prompt.output import OutputT
from watchkeeper.prompt.template import Prompt, ProviderAdapter
from watchkeeper.runtime.events import ModelReplied
from watchkeeper.runtime.plan import PricedModel, RunScope, RunPlan
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.runtime.result import RunResult
from watchkeeper.asking.retry import held_back, provider_stop
from watchkeeper.asking.models import charge_failure, estimate_call, likely_tokens, message_bytes
from watchkeeper.runtime.shared_budget import is_drawn_from
from watchkeeper.runtime.user_code import StrayCancellationError, is_cancelled
from watchkeeper.session.session import SessionView
from watchkeeper.shield.decision import Decision


@dataclass(frozen=True, slots=True)
class NestedEvaluationResult(Generic[OutputT]):
    """The answer of a nested evaluation, or what went wrong.

    Attributes:
        success: Whether it was completed.
        output: The typed answer of a completed evaluation, else None.
        error: What went wrong, or None; its ``kind`` tells a caller how to continue.
        usage: Tokens of this evaluation alone; the run's total includes them once.
        child_run_context: Its identifiers; None if it was not started.
    """

    success: bool
    output: OutputT | None = None
    error: NestedEvaluationError | None = None
    usage: TokenUsage | None = None
    child_run_context: RunContext | None = None


@dataclass(slots=True, eq=False)
class NestedEvaluator(Generic[OutputT]):
    """Evaluates one prompt as a child of the run whose session is given.

    Attributes:
        adapter: Evaluates the prompt: the run's own model (``context.adapter`` of a feedback provider or a checker), an
            `Adapter` around another one, or any object with `ProviderAdapter`'s methods.
        prompt: The prompt, with its values bound.
        context: What the evaluation may read and spend.
    """

    adapter: ProviderAdapter
    prompt: Prompt[OutputT] = field(kw_only=True)
    context: NestedExecutionContext = field(kw_only=True)

    def __post_init__(self) -> None:
        """Refuse an evaluation that could not be started.

        Raises:
            ConfigurationError: If a field has the wrong type, or if the prompt has tools and ``context.config`` does
                not allow them.
        """
        check_adapter(self.adapter)
        check_prompt(self.prompt, "prompt")
        refuse_tools(self.prompt.name, self.prompt.template.tools, self.context.config)

    def evaluate(self, *, budget_tracker: BudgetTracker | None = None) -> NestedEvaluationResult[OutputT]:
        """Evaluate and wait, on any thread but that of the run's loop; see `evaluate_async`.

        Raises:
            WatchkeeperError: On the thread of the loop: await `evaluate_async` there.
        """
        children = children_of(self.context.parent_session)
        work = self.evaluate_async(budget_tracker=budget_tracker)
        if children is None:
            return PORTAL.call(work, "evaluate_async")
        return children.wait_for(work, "evaluate_async")

    async def evaluate_async(self, *, budget_tracker: BudgetTracker | None = None) -> NestedEvaluationResult[OutputT]:
        """Evaluate.

        Args:
            budget_tracker: A budget that is shared with other evaluations: what is left of it limits this evaluation.
                The usage of this evaluation is added to it once, even if it is the run's own tracker.

        Returns:
            The answer, or the error if it concerns only this evaluation.

        Raises:
            DeadlineExceededError: If the deadline of the evaluation or of the run has passed.
            BudgetExceededError: If a ceiling of the evaluation or of the run is reached.
            NestingDepthError: If too many evaluations are nested in each other.
            ConfigurationError: If nothing limits the evaluation, or another argument cannot work.
            StoreError: If the run cannot be recorded any more.
        """
        context = self.context
        if not isinstance(cast("object", budget_tracker), BudgetTracker | None):
            raise ConfigurationError(f"budget_tracker={budget_tracker!r} must be BudgetTracker(Budget(...))")
        if context.deadline is None and context.budget is None and budget_tracker is None:
            raise ConfigurationError(
                "nothing limits this nested evaluation; give its NestedExecutionContext a deadline"
                " (deadline=derive_nested_deadline(context.deadline)) or a budget, or evaluate with budget_tracker="
            )
        with self._children(budget_tracker) as children:
            refuse_tools(self.prompt.name, self.prompt.template.tools, self._config(children))
            limits = self._limits(children, budget_tracker)
            try:
                run = await children.start(self._task(children, limits, budget_tracker))
            except (ConfigurationError, StoreError, BudgetExceededError):  # the last: the tracker is used up already
                raise
            except Exception as error:
                return NestedEvaluationResult(False, error=failure(error, "error"))
            return self._result(run, limits.start(context.parent_session.clock))

    @contextmanager
    def _children(self, tracker: BudgetTracker | None) -> Generator[Children]:
        """Yield what starts children of the run that is judged; without a run, children with a gate of their own.

        Raises:
            ConfigurationError: If the run that is judged is over: the usage of this evaluation would not be counted.
        """
        context, run = self.context, self.context.parent_run_context
        children = children_of(context.parent_session)
        if children is not None:
            yield children
            return
        if isinstance(self.adapter, RunAdapter) or (run is not None and is_inside(run.run_id)):
            raise ConfigurationError(
                "the run of which this evaluation was to be a child is over; evaluate while it goes on, or afterwards"
                " with an Adapter of your own"
            )
        with children_outside_runs(
            SessionView.shown_by(context.parent_session),
            model=self._model(None) or outside_model(self.adapter),
            run_context=run,
            nested=context.config,
            tracker=tracker,
        ) as children:
            yield children

    def _model(self, children: Children | None) -> PricedModel | None:
        """Return the model to ask; None for the one that the run uses at that moment."""
        match self.adapter:
            case RunAdapter(children=own):
                return None if own is children else self.adapter.priced
            case Adapter():
                priced = self.adapter.priced
                return priced if children is None else children.family.models.get(self.adapter, priced)
            case _:
                return outside_model(self.adapter)

    def _config(self, children: Children) -> NestedExecutionConfig:
        """Return the rules that hold: those of the run's template bind however the context was made."""
        own, of_run = self.context.config, children.family.nested
        if own is of_run or of_run is NESTED:
            return own
        if own is NESTED:
            return of_run
        return NestedExecutionConfig(
            max_nested_duration=min(own.longest, of_run.longest),
            default_nested_budget=own.default_nested_budget,
            allow_nested_tools=own.allow_nested_tools and of_run.allow_nested_tools,
            max_nesting_depth=min(own.max_nesting_depth, of_run.max_nesting_depth),
        )

    def _limits(self, children: Children, tracker: BudgetTracker | None) -> Limits:
        context, home = self.context, children.family.scope
        deadline = context.deadline if isinstance(context.deadline, Deadline | None) else Deadline(context.deadline)
        limits = nested_limits(deadline, self._config(children).longest, context.budget, home.clock)
        if tracker is None or is_drawn_from(tracker, home.gate):
            return limits
        return tighten(limits, tracker.remaining().as_limits(), home.clock)

    def _task(self, children: Children, limits: Limits, tracker: BudgetTracker | None) -> ChildTask[OutputT]:
        context, home = self.context, children.family.scope
        files = context.filesystem
        if files is None and home.filesystem is not None:
            files = home.filesystem.read_only_view()
        ours = isinstance(self.adapter, RunAdapter | Adapter)
        return ChildTask(
            self.prompt,
            context.purpose,
            limits,
            carve=context.budget is not None,
            model=self._model(children),
            filesystem=files,
            resources=home.resources.afresh(context.resource_overrides),
            max_depth=self._config(children).max_nesting_depth,
            tracker=tracker,
            execute=None if ours else evaluated_by(self.adapter, self.prompt),
        )

    def _result(self, run: ChildRun[OutputT], deadline: Deadline | None) -> NestedEvaluationResult[OutputT]:
        """Return the answer, or what went wrong; raise an exceeded deadline or budget, which may be the run's."""
        result = run.result
        usage = result.usage.tokens
        if result.stop is None:
            return NestedEvaluationResult(True, result.output, None, usage, run.run_context)
        error = stop_error(result, deadline)
        if isinstance(error, DeadlineExceededError | BudgetExceededError):
            raise error from cause_of(error, result)
        return NestedEvaluationResult(False, None, failure(error, _kind(error)), usage, run.run_context)


def _kind(error: PromptEvaluationError) -> str:
    if isinstance(error, ThrottleError) or (error.stop is not None and error.stop.reason == "provider_rate_limit"):
        return "throttled"
    return "output" if isinstance(error, OutputParseError) else "evaluation"


def failure(error: Exception, kind: str) -> NestedEvaluationError:
    """Return an error as a nested evaluation's, with the original as its cause."""
    phase: Any = getattr(error, "phase", None)
    said = str(error) if isinstance(error, PromptEvaluationError) else error_text(error)
    nested = NestedEvaluationError(said, kind=kind, phase=phase)
    nested.__cause__ = error
    return nested


METHODS: Final = ("evaluate_async", "evaluate")


def check_adapter(adapter: object) -> None:
    """Refuse an adapter that cannot evaluate; an error only at the check would leave paid work unverified.

    Raises:
        ConfigurationError: Naming it and what to give.
    """
    if any(callable(getattr(adapter, name, None)) for name in METHODS):
        return
    made = f"watchkeeper.models.model_from({adapter!r})" if isinstance(adapter, str) else "model"
    what = "is a model" if isinstance(adapter, Model) else "can evaluate nothing"
    raise ConfigurationError(f"adapter={adapter!r} {what}; give Adapter({made})")


def check_prompt(prompt: object, name: str) -> None:
    """Refuse a value that is not a prompt.

    Args:
        prompt: What was given.
        name: The name of the argument.

    Raises:
        ConfigurationError: Naming it and what to give.
    """
    if not isinstance(prompt, Prompt):
        raise ConfigurationError(f"{name} must be a Prompt, not {type(prompt).__name__}; give Prompt(template)")


OUTSIDE_TOKENS: Final = 8_192
"""Output tokens that the caller's own adapter may use, if there is no budget."""


@dataclass(frozen=True, slots=True)
class OutsideModel:
    """Represents the caller's own adapter on the log; the adapter evaluates whole prompts, never a single turn."""

    provider: str
    name: str
    native_output: bool = True
    context_window: int | None = None
    max_output_tokens: int | None = None
    free: bool = False

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Refuse.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"{self.provider} evaluates whole prompts; for single turns give a Model, as Adapter(model)"
        )

    async def close(self) -> None:
        """Do nothing."""


def outside_model(adapter: ProviderAdapter) -> PricedModel:
    """Return the model that represents the caller's own adapter."""
    kind = type(adapter).__name__
    name: object = getattr(adapter, "name", kind)
    return PricedModel(OutsideModel(name if isinstance(name, str) and name else kind, kind), None)


def evaluated_by(adapter: ProviderAdapter, prompt: Prompt[Any]) -> Execute:
    """Return the function that executes a child run by one call of the caller's own adapter."""

    async def drive(
        plan: RunPlan[Any], home: RunScope, transcript: Transcript, loop: Execute, recorded: Recorded | None
    ) -> Ending:
        children = Children(Family(home, lambda: plan.model), loop)
        with children.attached():
            return await _ask(adapter, prompt, plan, home)

    async def run(plan: RunPlan[Any], home: RunScope) -> RunResult[Any]:
        return await execute(plan, home, drive)

    return run


async def _ask(adapter: ProviderAdapter, prompt: Prompt[Any], plan: RunPlan[Any], home: RunScope) -> Ending:
    """Call the adapter through the gate, and return how that ended."""
    label = plan.model.provider
    bound = sum(message_bytes(message) for message in plan.prompt.messages)
    own = home.gate.limits.ceiling("max_total_tokens")
    least, expected = home.gate.limits.min_output_tokens, bound
    if own is not None and 2 * bound > own and home.gate.account.by_estimate:
        expected = likely_tokens(bound)
    wish = OUTSIDE_TOKENS if own is None else max(own - expected, 1)
    estimate = estimate_call(bound, wish, least, None)
    began = home.clock.monotonic()

    async def work(ticket: Ticket) -> PromptResponse[Any]:
        budget = Budget(max_total_tokens=expected + ticket.max_output_tokens)
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

    whom = plan.model.label
    request = EstimatedRequest(
        kind="llm",
        operation_name=label,
        estimate=estimate,
        model=whom,
        provider=label,
        likely=estimate_call(expected, wish, least, None),
    )
    outcome = await home.gate.acall(request, work, meter)
    if isinstance(outcome.error, ConfigurationError):
        raise outcome.error
    response = outcome.value
    if outcome.decision is not Decision.ALLOW or response is None:
        return Ending(End(stop=_stop(label, outcome)), 0, outcome.error, ())
    home.record(
        ModelReplied(
            turn=1,
            message=AssistantMessage(response.text),
            finish="stop",
            usage=response.usage,
            cost_nanos=_nanos(response),
            model=plan.model.model.name,
            node_id=outcome.node_id or "",
            duration_ms=(home.clock.monotonic() - began) * 1000,
            landing=False,
            created_at=home.clock.now(),
        )
    )
    return Ending(End(output=response.output, text=response.text), 1, None, (whom,))


async def _evaluated(
    adapter: ProviderAdapter, prompt: Prompt[Any], plan: RunPlan[Any], home: RunScope, budget: Budget
) -> object:
    """Call its async method, or its sync one on a worker thread."""
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
    # One NaN in the sums would make every comparison with a ceiling false.
    if not isinstance(usage, TokenUsage) or not all(is_whole(count, 0) for count in msgspec.structs.astuple(usage)):
        raise ValueError(f"{name} says that it used {usage!r}; that is no TokenUsage")
    if cost is not None and not (isinstance(cost, Decimal) and cost.is_finite() and cost >= 0):
        raise ValueError(f"{name} says that it cost {cost!r} dollars")
    return said


def _nanos(response: PromptResponse[Any]) -> int | None:
    return None if response.cost is None else nanos(response.cost, "cost")


def _stop(label: str, outcome: Outcome[PromptResponse[Any]]) -> Stop:
    """Return the reason for which an evaluation ended without an answer."""
    error = outcome.error
    if outcome.stop is not None:
        return outcome.stop
    if isinstance(error, ProviderError):
        return provider_stop(error)
    if error is not None:
        return Stop("error", "provider", f"{label} failed: {error_text(error)}")
    return Stop("policy_halt", "hook", f"{label} may not be asked: {held_back(outcome)}.")
