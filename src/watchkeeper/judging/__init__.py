"""Judges: nested evaluation, feedback and verdicts by a model, rubrics and comparisons (seed: nested-execution).

The names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watchkeeper.core.lazy_names import imported_when_used

if TYPE_CHECKING:
    from watchkeeper.core.errors import NestedEvaluationError, NestingDepthError
    from watchkeeper.core.ids import derive_child_run_context, generate_span_id
    from watchkeeper.judging.command_checker import CommandChecker
    from watchkeeper.judging.evaluator import NestedEvaluationResult, NestedEvaluator
    from watchkeeper.judging.model_judges import Comparison, LLMCompletionVerifier, LLMTrajectoryFeedback, compare
    from watchkeeper.judging.templates import (
        COMPARISON,
        COMPLETION,
        TRAJECTORY,
        ComparisonVerdict,
        CompletionVerdict,
        Criterion,
        Rubric,
        RubricResult,
        TrajectoryAssessment,
    )
    from watchkeeper.prompt.completion import (
        CompositeChecker,
        FileOutputChecker,
        PredicateChecker,
        TaskCompletionChecker,
        TaskCompletionContext,
        TaskCompletionResult,
    )
    from watchkeeper.prompt.nested import NestedExecutionConfig, NestedExecutionContext, derive_nested_deadline
    from watchkeeper.session.session import iter_sessions_bottom_up

_HOMES: Final = {
    "COMPARISON": "watchkeeper.judging.templates",
    "COMPLETION": "watchkeeper.judging.templates",
    "CommandChecker": "watchkeeper.judging.command_checker",
    "Comparison": "watchkeeper.judging.model_judges",
    "ComparisonVerdict": "watchkeeper.judging.templates",
    "CompletionVerdict": "watchkeeper.judging.templates",
    "CompositeChecker": "watchkeeper.prompt.completion",
    "Criterion": "watchkeeper.judging.templates",
    "FileOutputChecker": "watchkeeper.prompt.completion",
    "LLMCompletionVerifier": "watchkeeper.judging.model_judges",
    "LLMTrajectoryFeedback": "watchkeeper.judging.model_judges",
    "NestedEvaluationError": "watchkeeper.core.errors",
    "NestedEvaluationResult": "watchkeeper.judging.evaluator",
    "NestedEvaluator": "watchkeeper.judging.evaluator",
    "NestedExecutionConfig": "watchkeeper.prompt.nested",
    "NestedExecutionContext": "watchkeeper.prompt.nested",
    "NestingDepthError": "watchkeeper.core.errors",
    "PredicateChecker": "watchkeeper.prompt.completion",
    "Rubric": "watchkeeper.judging.templates",
    "RubricResult": "watchkeeper.judging.templates",
    "TRAJECTORY": "watchkeeper.judging.templates",
    "TaskCompletionChecker": "watchkeeper.prompt.completion",
    "TaskCompletionContext": "watchkeeper.prompt.completion",
    "TaskCompletionResult": "watchkeeper.prompt.completion",
    "TrajectoryAssessment": "watchkeeper.judging.templates",
    "compare": "watchkeeper.judging.model_judges",
    "derive_child_run_context": "watchkeeper.core.ids",
    "derive_nested_deadline": "watchkeeper.prompt.nested",
    "generate_span_id": "watchkeeper.core.ids",
    "iter_sessions_bottom_up": "watchkeeper.session.session",
}

__all__ = [
    "COMPARISON",
    "COMPLETION",
    "CommandChecker",
    "Comparison",
    "ComparisonVerdict",
    "CompletionVerdict",
    "CompositeChecker",
    "Criterion",
    "FileOutputChecker",
    "LLMCompletionVerifier",
    "LLMTrajectoryFeedback",
    "NestedEvaluationError",
    "NestedEvaluationResult",
    "NestedEvaluator",
    "NestedExecutionConfig",
    "NestedExecutionContext",
    "NestingDepthError",
    "PredicateChecker",
    "Rubric",
    "RubricResult",
    "TRAJECTORY",
    "TaskCompletionChecker",
    "TaskCompletionContext",
    "TaskCompletionResult",
    "TrajectoryAssessment",
    "compare",
    "derive_child_run_context",
    "derive_nested_deadline",
    "generate_span_id",
    "iter_sessions_bottom_up",
]

__getattr__ = imported_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
