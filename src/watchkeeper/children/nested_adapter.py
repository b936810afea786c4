"""The run's own model as a `ProviderAdapter`, for checkers and observers that judge or advise the run.

Each evaluation is a child run: it passes the run's gate, counts in the run's usage, belongs to the run's trace, and
obeys the template's rules for nested evaluations. A separate adapter that is used inside a run without a
`judging.NestedEvaluator` would bypass all of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Unpack

from watchkeeper.children.child import Children, ChildTask
from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import (
    BudgetExceededError,
    ConfigurationError,
    DeadlineExceededError,
    OutputParseError,
    PromptEvaluationError,
)
from watchkeeper.accounting.limits import tighten
from watchkeeper.kernel.turn_machine import CEILING_STOPS
from watchkeeper.prompt.evaluation import (
    EvaluateOptions,
    PromptResponse,
    check_options,
    checked_deadline,
    nested_limits,
    refuse_tools,
)
from watchkeeper.prompt.template import Prompt
from watchkeeper.runtime.plan import PricedModel
from watchkeeper.runtime.result import RunResult
from watchkeeper.runtime.shared_budget import is_drawn_from

OutputT = TypeVar("OutputT")


@dataclass(frozen=True, slots=True, eq=False)
class RunAdapter:
    """Evaluates prompts below a run, with the model that the run uses at that moment.

    Attributes:
        children: Starts the evaluations.
        kind: What they are for; a ``verdict`` may use the budget that is reserved for the completion check.
    """

    children: Children
    kind: Literal["evaluation", "verdict"] = "evaluation"

    @property
    def name(self) -> str:
        """The provider's name, as events carry it."""
        return self.priced.model.provider

    @property
    def priced(self) -> PricedModel:
        """The model that the run uses now."""
        return self.children.family.model()

    def evaluate(
        self, prompt: Prompt[OutputT], *params: Any, **options: Unpack[EvaluateOptions]
    ) -> PromptResponse[OutputT]:
        """Evaluate a prompt on the run's loop and wait for the response; see `evaluate_async`.

        Raises:
            WatchkeeperError: On the thread of the run's loop, which must not wait for itself: await `evaluate_async`.
        """
        deadline = self._checked(options)  # here, because the loop may be late
        return self.children.wait_for(self._evaluate(prompt, params, options, deadline), "evaluate_async")

    async def evaluate_async(
        self, prompt: Prompt[OutputT], *params: Any, **options: Unpack[EvaluateOptions]
    ) -> PromptResponse[OutputT]:
        """Evaluate a prompt as a child of the run.

        Args:
            prompt: What to evaluate.
            *params: Dataclass values that fill its placeholders, beside those that are bound already.
            **options: As `EvaluateOptions`, but without ``session``, ``bus`` and ``run_context``, because a child has
                its own. The evaluation ends at the latest after the template's ``max_nested_duration``. A ``budget`` is
                reserved from what the run has left; without one the evaluation shares what the run has left.

        Raises:
            ConfigurationError: If one of these three options is given, if the prompt has tools that nested prompts may
                not have here, or if evaluations are nested too deep.
            PromptEvaluationError: As `Adapter.evaluate` raises it.
        """
        return await self._evaluate(prompt, params, options, self._checked(options))

    def _checked(self, options: EvaluateOptions) -> Deadline | None:
        """Refuse options that cannot work; return the deadline."""
        check_options(options)
        for name in ("session", "bus", "run_context"):
            if options.get(name) is not None:
                raise ConfigurationError(f"an evaluation inside a run has a {name} of its own; leave {name}= out")
        return checked_deadline(options.get("deadline"), self.children.family.scope.clock)

    async def _evaluate(
        self, prompt: Prompt[OutputT], params: tuple[Any, ...], options: EvaluateOptions, deadline: Deadline | None
    ) -> PromptResponse[OutputT]:
        budget, tracker = options.get("budget"), options.get("budget_tracker")
        family = self.children.family
        refuse_tools(prompt.name, prompt.template.tools, family.nested)
        clock = family.scope.clock
        limits = nested_limits(deadline, family.nested.longest, budget, clock)
        if tracker is not None and not is_drawn_from(tracker, family.scope.gate):
            limits = tighten(limits, tracker.remaining().as_limits(), clock)
        files = family.scope.filesystem
        run = await self.children.start(
            ChildTask(
                prompt.bind(*params) if params else prompt,
                self.kind,
                limits,
                carve=budget is not None,
                filesystem=None if files is None else files.read_only_view(),
                resources=family.scope.resources.afresh(),
                max_depth=family.nested.max_nesting_depth,
                parse_output=options.get("parse_output", True),
                tracker=tracker,
            )
        )
        return response_of(run.result, limits.start(clock))


def response_of(result: RunResult[OutputT], deadline: Deadline | None) -> PromptResponse[OutputT]:
    """Return the response of a run that was completed.

    Raises:
        PromptEvaluationError: If it was stopped.
    """
    if result.stop is not None:
        error = stop_error(result, deadline)
        raise error from cause_of(error, result)
    return PromptResponse(
        prompt_name=result.prompt_name,
        output=result.output,
        text=result.text,
        usage=result.usage.tokens,
        cost=result.cost,
        completion=result.completion,
        completion_note=result.completion_note,
    )


def cause_of(error: BaseException, result: RunResult[Any]) -> BaseException | None:
    """Return the cause for an error: the run's error, or, if the error is the run's error itself, the cause of that."""
    return error.__cause__ if error is result.error else result.error


def stop_error(result: RunResult[Any], deadline: Deadline | None) -> PromptEvaluationError:
    """Return a stopped run as the exception that `evaluate` raises, with its stop, and its deadline if it had one."""
    stop = result.stop
    if stop is None:
        raise RuntimeError("a completed run has no error to raise")
    payload = {"deadline": deadline.at.isoformat()} if deadline else {}
    said, name = result.sentence(), result.prompt_name
    error: PromptEvaluationError
    if stop.reason == "timeout":
        error = DeadlineExceededError(said, prompt_name=name, provider_payload=payload)
    elif stop.reason in CEILING_STOPS:
        error = BudgetExceededError(said, prompt_name=name, provider_payload=payload)
    elif stop.reason in ("output_invalid", "empty_answer"):
        error = OutputParseError(stop.message, raw=result.text, prompt_name=name)
    elif isinstance(result.error, PromptEvaluationError):
        error = result.error
    else:
        error = PromptEvaluationError(said, phase="request", prompt_name=name, provider_payload=payload)
    error.stop = stop
    return error
