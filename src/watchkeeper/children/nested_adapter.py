"""The run's own model as a `ProviderAdapter`, for those who judge or advise a run from within.

What is evaluated with it is a child run: it passes the run's gate, counts in the run's figures and stands in its trace,
under the rules for nested evaluations of the run's template. An adapter of the caller's own that is used inside a run
without a `judging.NestedEvaluator` would escape all of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, TypeVar

from watchkeeper.children.child import Children, ChildTask
from watchkeeper.core.budget import Budget, BudgetTracker
from watchkeeper.core.clock import Deadline, checked_deadline
from watchkeeper.core.errors import (
    BudgetExceededError,
    ConfigurationError,
    DeadlineExceededError,
    OutputParseError,
    PromptEvaluationError,
)
from watchkeeper.core.ids import RunContext
from watchkeeper.core.limits import tighten
from watchkeeper.prompt.adapter import PromptResponse
from watchkeeper.prompt.nested import nested_limits, refuse_tools
from watchkeeper.prompt.template import Prompt
from watchkeeper.runtime.plan import PricedModel
from watchkeeper.runtime.result import RunResult
from watchkeeper.runtime.shared_budget import is_drawn_from
from watchkeeper.session.log import Dispatcher
from watchkeeper.session.session import Session

OutputT = TypeVar("OutputT")


# --- stop errors ----------------------------------------------------------------------------------------------------
# A run that is over as the seeds' response or exception, for those who evaluate and want an answer or an error.

BUDGET_STOPS: Final = frozenset(
    {
        "budget_exceeded",
        "token_limit_exceeded",
        "step_limit_exceeded",
        "tool_call_limit_exceeded",
        "retry_budget_exceeded",
        "turn_limit_exceeded",
    }
)


def response_of(result: RunResult[OutputT], deadline: Deadline | None) -> PromptResponse[OutputT]:
    """Return the response of a run that was completed.

    Raises:
        PromptEvaluationError: If it was stopped.
    """
    if result.stop is not None:
        raise stop_error(result, deadline) from result.error
    return PromptResponse(
        prompt_name=result.prompt_name,
        output=result.output,
        text=result.text,
        usage=result.usage.tokens,
        cost=result.cost,
        completion=result.completion,
        completion_note=result.completion_note,
    )


def stop_error(result: RunResult[Any], deadline: Deadline | None) -> PromptEvaluationError:
    """Translate a stopped run into the seeds' exceptions; the stop, and the cutoff if there was one, are attached."""
    stop = result.stop
    if stop is None:
        raise RuntimeError("a completed run has no error to raise")
    payload = {"deadline": deadline.at.isoformat()} if deadline else {}
    said, name = result.sentence(), result.prompt_name
    error: PromptEvaluationError
    if stop.reason == "timeout":
        error = DeadlineExceededError(said, prompt_name=name, provider_payload=payload)
    elif stop.reason in BUDGET_STOPS:
        error = BudgetExceededError(said, prompt_name=name, provider_payload=payload)
    elif stop.reason in ("output_invalid", "empty_answer"):
        error = OutputParseError(stop.message, raw=result.text, prompt_name=name)
    elif isinstance(result.error, PromptEvaluationError):
        error = result.error
    else:
        error = PromptEvaluationError(said, phase="request", prompt_name=name, provider_payload=payload)
    error.stop = stop
    return error


class RunAdapter:
    """Evaluates prompts below a run, with the model that the run uses at that moment."""

    __slots__ = ("children", "kind")

    def __init__(self, children: Children, kind: Literal["evaluation", "verdict"] = "evaluation") -> None:
        """Evaluate below the run of ``children``; a ``verdict`` may use what was kept back for the last word on it."""
        self.children = children
        self.kind: Literal["evaluation", "verdict"] = kind

    @property
    def name(self) -> str:
        """The provider's name, as events carry it."""
        return self.priced.model.provider

    @property
    def priced(self) -> PricedModel:
        """The model that the run uses now."""
        return self.children.family.model()

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
        """Evaluate a prompt on the run's loop and wait for the response; see `evaluate_async`.

        Raises:
            WatchkeeperError: On the thread of the run's loop, which must not wait for itself: await `evaluate_async`.
        """
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
        return self.children.wait_for(work, "evaluate_async")

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
        """Evaluate a prompt as a child of the run.

        Args:
            prompt: What to evaluate.
            params: Dataclass values that fill its placeholders, beside those that are bound already.
            session: Must be left out: a child has a session of its own.
            bus: Must be left out: its events go to its own session.
            deadline: When it must be over; at the latest after the template's ``max_nested_duration``.
            budget: What it may spend, set aside from what the run has left; None shares what the run has.
            budget_tracker: A budget whose rest bounds it too; what it uses is added to it, once.
            run_context: Must be left out: it follows from the run's.
            parse_output: Whether to read the final text as the prompt's output type.

        Raises:
            ConfigurationError: If something is given that a child has of its own, if the prompt has tools that nested
                prompts may not have here, or if too many evaluations stand inside each other.
            PromptEvaluationError: As `Adapter.evaluate` raises it.
        """
        for name, given in (("session", session), ("bus", bus), ("run_context", run_context)):
            if given is not None:
                raise ConfigurationError(f"an evaluation inside a run has a {name} of its own; leave {name}= out")
        family = self.children.family
        refuse_tools(prompt.name, prompt.template.tools, family.nested)
        clock = family.home.clock
        limits = nested_limits(checked_deadline(deadline, clock), family.nested.longest, budget, clock)
        if budget_tracker is not None and not is_drawn_from(budget_tracker, family.home.gate):
            limits = tighten(limits, budget_tracker.remaining().as_limits(), clock)
        files = family.home.filesystem
        run = await self.children.start(
            ChildTask(
                prompt.bind(*params) if params else prompt,
                self.kind,
                limits,
                carve=budget is not None,
                filesystem=None if files is None else files.read_only_view(),
                resources=family.home.resources.afresh(),
                max_depth=family.nested.max_nesting_depth,
                parse_output=parse_output,
                tracker=budget_tracker,
            )
        )
        return response_of(run.result, limits.start(clock))
