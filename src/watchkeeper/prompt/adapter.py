"""Who evaluates a prompt, and what comes back (seeds: deadlines, nested-execution).

`evaluate` raises the seeds' exceptions; ``run`` in the layers above turns the same ending into a result. Everything
but the prompt and its params is given by keyword.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, Protocol, TypeVar

from watchkeeper.core.budget import Budget, BudgetTracker
from watchkeeper.core.clock import Deadline
from watchkeeper.core.ids import RunContext
from watchkeeper.core.model import CompletionState
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.output import OutputT
from watchkeeper.prompt.template import Prompt
from watchkeeper.session.log import Dispatcher
from watchkeeper.session.session import Session

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class PromptResponse(Generic[OutputT]):
    """What an evaluation came to.

    Attributes:
        prompt_name: Which prompt.
        output: The typed answer; None if it was not to be parsed.
        text: The model's final text.
        usage: Tokens of the whole evaluation.
        cost: Money in US dollars, exact; None if unknown.
        completion: How the work stands: ``verified``, or ``unverified`` if its checker could not tell; ``unchecked``
            without a checker.
        completion_note: What the checker said, or why there is no verdict.
    """

    prompt_name: str
    output: OutputT | None
    text: str
    usage: TokenUsage
    cost: Decimal | None
    completion: CompletionState = "unchecked"
    completion_note: str = ""


class ProviderAdapter(Protocol):
    """Evaluates prompts with one model."""

    def evaluate(
        self,
        prompt: Prompt[AnswerT],
        *params: Any,
        session: Session | None = None,
        bus: Dispatcher | None = None,
        deadline: Deadline | datetime | None = None,
        budget: Budget | None = None,
        budget_tracker: BudgetTracker | None = None,
        run_context: RunContext | None = None,
        parse_output: bool = True,
    ) -> PromptResponse[AnswerT]:
        """Evaluate a prompt and return the answer.

        Args:
            prompt: What to evaluate.
            *params: Dataclass values to bind to it.
            session: Where to record; a fresh session if left out.
            bus: Where events are published; the session's own dispatcher if left out.
            deadline: When it must be over: aware, and not before the next second.
            budget: What it may spend.
            budget_tracker: A budget that is shared with other evaluations; what is used is added to it.
            run_context: Identifiers to run under; fresh ones if left out.
            parse_output: Whether to read the final text as the prompt's output type.

        Raises:
            PromptEvaluationError: With phase ``preflight`` for a deadline that cannot be, and for failures.
            DeadlineExceededError: The deadline passed.
            BudgetExceededError: A ceiling was reached.
            OutputParseError: The final answer does not fit.
        """
        ...

    async def evaluate_async(
        self,
        prompt: Prompt[AnswerT],
        *params: Any,
        session: Session | None = None,
        bus: Dispatcher | None = None,
        deadline: Deadline | datetime | None = None,
        budget: Budget | None = None,
        budget_tracker: BudgetTracker | None = None,
        run_context: RunContext | None = None,
        parse_output: bool = True,
    ) -> PromptResponse[AnswerT]:
        """Evaluate a prompt; as `evaluate`, on the caller's loop."""
        ...
