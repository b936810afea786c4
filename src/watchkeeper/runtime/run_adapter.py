"""The run's own model as a `ProviderAdapter`, for those who judge or advise a run from within.

What is evaluated with it is a child run: it passes the run's gate, counts in the run's figures and stands in its trace.
An adapter of the caller's own that is used inside a run would escape all three.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from watchkeeper.core.budget import Budget, BudgetTracker
from watchkeeper.core.deadline import Deadline, checked_deadline
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.limits import tighten
from watchkeeper.core.run_context import RunContext
from watchkeeper.prompt.adapter import PromptResponse
from watchkeeper.prompt.nested import nested_limits
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.runtime.child import Children, ChildTask
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.runtime.stop_errors import stop_error
from watchkeeper.session.dispatcher import Dispatcher
from watchkeeper.session.session import Session

OutputT = TypeVar("OutputT")


class RunAdapter:
    """Evaluates prompts below a run, with the model that the run uses at that moment."""

    __slots__ = ("children",)

    def __init__(self, children: Children) -> None:
        """Evaluate below the run of ``children``."""
        self.children = children

    @property
    def name(self) -> str:
        """The provider's name, as events carry it."""
        return self.children.family.model().model.provider

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
        """Evaluate a prompt as a child of the run.

        Args:
            prompt: What to evaluate.
            params: Dataclass values that fill its placeholders, beside those that are bound already.
            session: Must be left out: a child has a session of its own.
            bus: Must be left out: its events go to its own session.
            deadline: When it must be over; at the latest after the template's ``max_nested_duration``.
            budget: What it may spend, set aside from what the run has left; None shares what the run has.
            budget_tracker: A budget whose rest bounds it too; what it uses is added to it.
            run_context: Must be left out: it follows from the run's.
            parse_output: Whether to read the final text as the prompt's output type.

        Raises:
            ConfigurationError: If something is given that a child has of its own.
            PromptEvaluationError: As `Adapter.evaluate` raises it.
        """
        for name, given in (("session", session), ("bus", bus), ("run_context", run_context)):
            if given is not None:
                raise ConfigurationError(f"an evaluation inside a run has a {name} of its own; leave {name}= out")
        family = self.children.family
        clock = family.home.clock
        limits = nested_limits(checked_deadline(deadline, clock), family.nested.longest, budget, clock)
        if budget_tracker is not None:
            limits = tighten(limits, budget_tracker.remaining().as_limits(), clock)
        run = await self.children.start(
            ChildTask(
                prompt.bind(*params) if params else prompt,
                "evaluation",
                limits,
                carve=budget is not None,
                max_depth=family.nested.max_nesting_depth,
                parse_output=parse_output,
            )
        )
        result = run.result
        if budget_tracker is not None:
            budget_tracker.add(result.usage)
        if result.stop is not None:
            raise stop_error(result, limits.start(clock)) from result.error
        return PromptResponse(
            prompt_name=result.prompt_name,
            output=result.output,
            text=result.text,
            usage=result.usage.tokens,
            cost=result.cost,
        )
