"""Judges: nested evaluation, feedback and verdicts by a model, rubrics, comparisons, and completion checks."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.core.errors import NestedEvaluationError as NestedEvaluationError
    from watchkeeper.core.errors import NestingDepthError as NestingDepthError
    from watchkeeper.core.ids import derive_child_run_context as derive_child_run_context
    from watchkeeper.core.ids import generate_span_id as generate_span_id
    from watchkeeper.judging.command_checker import CommandChecker as CommandChecker
    from watchkeeper.judging.evaluator import NestedEvaluationResult as NestedEvaluationResult
    from watchkeeper.judging.evaluator import NestedEvaluator as NestedEvaluator
    from watchkeeper.judging.model_judges import Comparison as Comparison
    from watchkeeper.judging.model_judges import LLMCompletionVerifier as LLMCompletionVerifier
    from watchkeeper.judging.model_judges import LLMTrajectoryFeedback as LLMTrajectoryFeedback, compare as compare
    from watchkeeper.judging.templates import COMPARISON as COMPARISON, COMPLETION as COMPLETION
    from watchkeeper.judging.templates import ComparisonVerdict as ComparisonVerdict
    from watchkeeper.judging.templates import CompletionVerdict as CompletionVerdict, Criterion as Criterion
    from watchkeeper.judging.templates import Rubric as Rubric, RubricResult as RubricResult, TRAJECTORY as TRAJECTORY
    from watchkeeper.judging.templates import TrajectoryAssessment as TrajectoryAssessment
    from watchkeeper.prompt.completion import CompositeChecker as CompositeChecker
    from watchkeeper.prompt.completion import FileOutputChecker as FileOutputChecker
    from watchkeeper.prompt.completion import PredicateChecker as PredicateChecker
    from watchkeeper.prompt.completion import TaskCompletionChecker as TaskCompletionChecker
    from watchkeeper.prompt.completion import TaskCompletionContext as TaskCompletionContext
    from watchkeeper.prompt.completion import TaskCompletionResult as TaskCompletionResult
    from watchkeeper.prompt.evaluation import NestedExecutionConfig as NestedExecutionConfig
    from watchkeeper.prompt.evaluation import NestedExecutionContext as NestedExecutionContext
    from watchkeeper.prompt.evaluation import derive_nested_deadline as derive_nested_deadline
    from watchkeeper.session.session import iter_sessions_bottom_up as iter_sessions_bottom_up
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "core.errors": "NestedEvaluationError NestingDepthError",
            "core.ids": "derive_child_run_context generate_span_id",
            "judging.command_checker": "CommandChecker",
            "judging.evaluator": "NestedEvaluationResult NestedEvaluator",
            "judging.model_judges": "Comparison LLMCompletionVerifier LLMTrajectoryFeedback compare",
            "judging.templates": (
                "COMPARISON COMPLETION ComparisonVerdict CompletionVerdict Criterion Rubric RubricResult TRAJECTORY "
                "TrajectoryAssessment"
            ),
            "prompt.completion": (
                "CompositeChecker FileOutputChecker PredicateChecker TaskCompletionChecker TaskCompletionContext "
                "TaskCompletionResult"
            ),
            "prompt.evaluation": "NestedExecutionConfig NestedExecutionContext derive_nested_deadline",
            "session.session": "iter_sessions_bottom_up",
        },
    )
