"""A run that is over as the seeds' response or exception, for those who evaluate and want an answer or an error."""

from __future__ import annotations

from typing import Any, Final

from watchkeeper.core.deadline import Deadline
from watchkeeper.core.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    OutputParseError,
    PromptEvaluationError,
)
from watchkeeper.prompt.adapter import PromptResponse
from watchkeeper.prompt.output import OutputT
from watchkeeper.runtime.result import RunResult

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
