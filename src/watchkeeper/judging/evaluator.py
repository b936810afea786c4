"""A nested evaluation: a prompt judged as a child of the run that is judged (seed: nested-execution).

It passes the run's gate, has a session, a trace span and limits of its own, and can change nothing of the run.
Whether it had an answer is a value. Three things are raised: that time or budget is over, because they may be the
run's; what the caller wrote wrong; a cancellation.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic

from watchkeeper.core.budget import BudgetTracker
from watchkeeper.core.deadline import Deadline
from watchkeeper.core.errors import (
    BudgetExceededError,
    ConfigurationError,
    DeadlineExceededError,
    NestedEvaluationError,
    OutputParseError,
    PromptEvaluationError,
    StoreError,
    ThrottleError,
)
from watchkeeper.core.limits import Limits, tighten
from watchkeeper.core.run_context import RunContext
from watchkeeper.core.usage import TokenUsage
from watchkeeper.judging.arguments import check_adapter, check_prompt, check_tracker
from watchkeeper.judging.outside import evaluated_by, outside_model
from watchkeeper.prompt.adapter import ProviderAdapter
from watchkeeper.prompt.nested import NestedExecutionContext, nested_limits, refuse_tools
from watchkeeper.prompt.output import OutputT
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.runtime.adapter import Adapter
from watchkeeper.runtime.child import Children, ChildRun, ChildTask, children_of
from watchkeeper.runtime.hosting import is_inside
from watchkeeper.runtime.plan import PricedModel
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.runtime.run_adapter import RunAdapter
from watchkeeper.runtime.shared_budget import is_drawn_from
from watchkeeper.runtime.standalone import standalone
from watchkeeper.runtime.stop_errors import stop_error


@dataclass(frozen=True, slots=True)
class NestedEvaluationResult(Generic[OutputT]):
    """What a nested evaluation came to (seed: nested-execution).

    Attributes:
        success: Whether it was completed.
        output: The typed answer, if it was.
        error: What went wrong, if it was not; its ``kind`` says how to go on.
        usage: Tokens of this evaluation alone; counted in the run's total, too, once.
        child_run_context: Its identifiers; None if it was never started.
    """

    success: bool
    output: OutputT | None = None
    error: NestedEvaluationError | None = None
    usage: TokenUsage | None = None
    child_run_context: RunContext | None = None


class NestedEvaluator(Generic[OutputT]):
    """Evaluates one prompt below the run that writes to a session (seed: nested-execution)."""

    __slots__ = ("adapter", "context", "prompt")

    def __init__(self, adapter: ProviderAdapter, *, prompt: Prompt[OutputT], context: NestedExecutionContext) -> None:
        """Prepare an evaluation; nothing is started yet.

        Args:
            adapter: Who answers: the run's own model (``context.adapter`` of a feedback provider or a checker), an
                `Adapter` around another one, or any object with `ProviderAdapter`'s methods.
            prompt: What is asked, with its values bound.
            context: What it may look at and spend.

        Raises:
            ConfigurationError: If one of them is of another kind, or if the prompt has tools and ``context.config``
                does not allow them.
        """
        check_adapter(adapter)
        check_prompt(prompt, "prompt")
        refuse_tools(prompt.name, prompt.template.tools, context.config)
        self.adapter = adapter
        self.prompt = prompt
        self.context = context

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
            budget_tracker: A budget that is shared with others: its rest bounds this evaluation, and what it uses is
                added to it once, also where it is the run's own.

        Returns:
            The answer; or what went wrong, where that concerns nobody but this evaluation.

        Raises:
            DeadlineExceededError: If the time is over, the evaluation's own or the run's.
            BudgetExceededError: If a ceiling is reached, the evaluation's own or the run's.
            NestingDepthError: If too many evaluations stand inside each other.
            ConfigurationError: If nothing limits it, or something else that the caller wrote cannot work.
            StoreError: If the run cannot be recorded any more.
        """
        context = self.context
        check_tracker(budget_tracker)
        if context.deadline is None and context.budget is None and budget_tracker is None:
            raise ConfigurationError(
                "nothing limits this nested evaluation; give its NestedExecutionContext a deadline"
                " (deadline=derive_nested_deadline(context.deadline)) or a budget, or evaluate with budget_tracker="
            )
        with self._children(budget_tracker) as children:
            limits = self._limits(children, budget_tracker)
            try:
                run = await children.start(self._task(children, limits, budget_tracker))
            except (ConfigurationError, StoreError, BudgetExceededError):  # the last: others have used up the tracker
                raise
            except Exception as error:
                return NestedEvaluationResult(False, error=failure(error, "error"))
            return self._result(run, limits.start(context.parent_session.clock))

    @contextmanager
    def _children(self, tracker: BudgetTracker | None) -> Generator[Children]:
        """Yield what starts children of the run that is judged; outside of any run, of a gate of its own."""
        context = self.context
        children = children_of(context.parent_session)
        if children is not None:
            yield children
            return
        self._refuse_if_over()
        with standalone(
            context.parent_session,
            model=self._model(None) or outside_model(self.adapter),
            run_context=context.parent_run_context,
            nested=context.config,
            tracker=tracker,
        ) as children:
            yield children

    def _refuse_if_over(self) -> None:
        """Refuse code that a run has left behind: nobody would count what it spends now.

        Raises:
            ConfigurationError: If it was started by the run that is judged, or asks that run's model.
        """
        run = self.context.parent_run_context
        if isinstance(self.adapter, RunAdapter) or (run is not None and is_inside(run.run_id)):
            raise ConfigurationError(
                "the run that this evaluation was to stand below is over; evaluate while it goes on, or afterwards with"
                " an Adapter of your own"
            )

    def _model(self, children: Children | None) -> PricedModel | None:
        """Return whom to ask; None for the model that the run uses at that moment."""
        match self.adapter:
            case RunAdapter(children=own):
                return None if own is children else self.adapter.priced
            case Adapter():
                return self.adapter.priced
            case _:
                return outside_model(self.adapter)

    def _limits(self, children: Children, tracker: BudgetTracker | None) -> Limits:
        context, home = self.context, children.family.home
        deadline = context.deadline if isinstance(context.deadline, Deadline | None) else Deadline(context.deadline)
        limits = nested_limits(deadline, context.config.longest, context.budget, home.clock)
        if tracker is None or is_drawn_from(tracker, home.gate):
            return limits
        return tighten(limits, tracker.remaining().as_limits(), home.clock)

    def _task(self, children: Children, limits: Limits, tracker: BudgetTracker | None) -> ChildTask[OutputT]:
        context, home = self.context, children.family.home
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
            max_depth=context.config.max_nesting_depth,
            tracker=tracker,
            execute=None if ours else evaluated_by(self.adapter, self.prompt),
        )

    def _result(self, run: ChildRun[OutputT], deadline: Deadline | None) -> NestedEvaluationResult[OutputT]:
        """Return the answer, or what went wrong; raise what may be the run's end (seed: "Error Handling")."""
        result = run.result
        usage = result.usage.tokens
        if result.stop is None:
            return NestedEvaluationResult(True, result.output, None, usage, run.run_context)
        error = stop_error(result, deadline)
        if isinstance(error, DeadlineExceededError | BudgetExceededError):
            raise error from (result.error if result.error is not error else None)
        return NestedEvaluationResult(False, None, failure(error, _kind(error)), usage, run.run_context)


def _kind(error: PromptEvaluationError) -> str:
    if isinstance(error, ThrottleError) or (error.stop is not None and error.stop.reason == "provider_rate_limit"):
        return "throttled"
    return "output" if isinstance(error, OutputParseError) else "evaluation"


def failure(error: Exception, kind: str) -> NestedEvaluationError:
    """Return an error as a nested evaluation's, with the original as its cause."""
    phase: Any = getattr(error, "phase", None)
    said = str(error) if isinstance(error, PromptEvaluationError) else f"{type(error).__name__}: {error}"
    nested = NestedEvaluationError(said, kind=kind, phase=phase)
    nested.__cause__ = error
    return nested
