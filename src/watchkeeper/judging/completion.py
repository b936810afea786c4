"""A model's verdict on whether work is done (seed: nested-execution, "Task Completion with LLM Verification").

A verdict counts only if what it cites stands in what the judge was shown. Whatever keeps the judge from a verdict (an
error, a limit, nobody to ask, nonsense, a citation that is nowhere) leaves the work unverified; it is never a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, get_type_hints, runtime_checkable

from watchkeeper.core.budget import Budget
from watchkeeper.core.errors import (
    BudgetExceededError,
    ConfigurationError,
    DeadlineExceededError,
    NestedEvaluationError,
)
from watchkeeper.core.quantities import DurationLike, duration
from watchkeeper.core.workers import run_in_worker
from watchkeeper.judging.arguments import check_adapter, check_budget, check_prompt
from watchkeeper.judging.evaluator import NestedEvaluator
from watchkeeper.judging.showing import TASK_CHARS, cut, has_words, shown_answer, shown_calls, shown_files, unfounded
from watchkeeper.judging.templates import COMPLETION
from watchkeeper.judging.trajectory import JUDGE_BUDGET, filled
from watchkeeper.prompt.adapter import ProviderAdapter
from watchkeeper.prompt.completion import OnError, TaskCompletionContext, TaskCompletionResult, on_error_of
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.tools.invoked import ToolInvoked

VERIFY: Final = Prompt(COMPLETION)
"""What is asked by default."""

WORK: Final = ("tentative_output", "recent_actions", "files")
"""Which of the values that a judge is shown are the work, and not the task."""

NOTHING: Final = frozenset({"", "none", "nothing", "n/a", "nothing is missing", "nothing missing"})
"""What judges write where nothing is missing."""

ENDS: Final = (".", "!", "?", ":", ";", "…")
"""What a sentence ends with."""


@runtime_checkable
class Verdict(Protocol):
    """What a judge must answer with; it may also have ``evidence`` and ``missing``, as `CompletionVerdict` has."""

    @property
    def complete(self) -> bool:
        """Whether the work is done."""
        ...

    @property
    def explanation(self) -> str:
        """Why."""
        ...


@dataclass(frozen=True, slots=True)
class LLMCompletionVerifier:
    """Has a model judge whether the work is done; a `TaskCompletionChecker` (seed: nested-execution).

    Attributes:
        verification_prompt: What to ask; its answers have at least ``complete`` and ``explanation``. Where it has these
            placeholders, they are filled with ``task_description``, ``tentative_output``, ``stop_reason``,
            ``recent_actions`` and ``files``.
        share_budget: Whether the verdict is paid from what the run has left; if not, ``budget`` is set aside for it.
        on_error: What follows if there is no verdict: ``open`` ends the run as done but not verified, ``closed`` stops
            it.
        adapter: Whom to ask; None for the run's own model.
        max_duration: How long it may take; as the template's `NestedExecutionConfig` says by default.
        budget: What it may spend where it does not share.
        files: Paths of files whose content the judge is shown.
        recent_calls: So many of the latest tool calls are shown; 0 for none.
        asks_model: It asks a model, so that a part of the run's budget and time is kept back for it.
    """

    verification_prompt: Prompt[Any] = VERIFY
    share_budget: bool = field(default=True, kw_only=True)
    on_error: OnError = field(default="open", kw_only=True)
    adapter: ProviderAdapter | None = field(default=None, kw_only=True)
    max_duration: DurationLike | None = field(default=None, kw_only=True)
    budget: Budget = field(default=JUDGE_BUDGET, kw_only=True)
    files: Sequence[str] = field(default=(), kw_only=True)
    recent_calls: int = field(default=10, kw_only=True)
    asks_model: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        """Refuse what could not be asked.

        Raises:
            ConfigurationError: For a prompt whose answers are no verdicts, somebody who cannot be asked, or a policy,
                budget or number that is none.
        """
        on_error_of(self)
        if self.adapter is not None:
            check_adapter(self.adapter)
        check_budget(self.budget)
        if isinstance(self.files, str):
            raise ConfigurationError(f"files={self.files!r} must be a list of paths")
        object.__setattr__(self, "files", tuple(self.files))
        if self.recent_calls < 0:
            raise ConfigurationError(f"recent_calls={self.recent_calls!r} must be 0 or more")
        if self.max_duration is not None:
            duration(self.max_duration, "max_duration")
        _check_answers(self.verification_prompt)

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Ask the judge and return its verdict; unverified, with the reason, if there is none."""
        adapter = self.adapter or context.adapter
        if adapter is None:
            return TaskCompletionResult.unverified("there is no adapter that could verify it")
        values = await run_in_worker(self._values, context)
        nested = context.create_nested_context(
            budget=None if self.share_budget else self.budget, max_duration=self.max_duration
        )
        prompt = filled(self.verification_prompt, values)
        evaluator = NestedEvaluator(adapter, prompt=prompt, context=nested)
        try:
            result = await evaluator.evaluate_async()
        except (DeadlineExceededError, BudgetExceededError) as error:
            return TaskCompletionResult.unverified(f"the judge reached a limit: {error.message}")
        if not isinstance(result.output, Verdict):
            failed = result.error or NestedEvaluationError("it ended without a verdict", kind="output")
            return TaskCompletionResult.unverified(f"the judge failed ({failed.kind}): {failed.message}")
        shown = "\n".join(message.text for message in prompt.render().messages)
        work = "\n".join(prompt.variables.get(name, "") for name in WORK)
        return judged(result.output, shown, work)

    def _values(self, context: TaskCompletionContext) -> Mapping[str, Any]:
        """Return what the judge is shown; on a worker thread, because files are read."""
        calls = context.session[ToolInvoked].all()
        return {
            "task_description": cut(context.task, TASK_CHARS),
            "tentative_output": shown_answer(context.tentative_output),
            "stop_reason": context.stop_reason or "unknown",
            "recent_actions": shown_calls(calls[max(len(calls) - self.recent_calls, 0) :]),
            "files": shown_files(context.filesystem, self.files),
        }


def judged(verdict: Verdict, shown: str, work: str) -> TaskCompletionResult:
    """Return a verdict as a checker's, if it stands on what was shown.

    Every citation must stand in what the judge was shown, and one that calls the work complete must cite the work: the
    task says only what was asked for. A verdict that calls work complete and names what is missing contradicts itself.

    Args:
        verdict: What the judge said.
        shown: All that it was shown.
        work: The part of it that is the work.
    """
    said = " ".join(verdict.explanation.split())
    evidence: Sequence[str] | None = getattr(verdict, "evidence", None)
    missing = " ".join(str(getattr(verdict, "missing", "")).split())
    lacking = missing.casefold().rstrip(".") not in NOTHING
    if verdict.complete and lacking:
        return _unfounded(f"it calls the work complete, and says that this is missing: {missing}")
    if evidence is not None:
        quotes = [quote for quote in evidence if has_words(quote)]
        wrong = unfounded(quotes, shown)
        if wrong:
            return _unfounded(f"it cites what it was not shown: {wrong[0]!r}")
        if verdict.complete and len(unfounded(quotes, work)) == len(quotes):
            return _unfounded("it calls the work complete and cites nothing of it")
    if verdict.complete:
        return TaskCompletionResult.ok(said)
    if lacking and missing.casefold() not in said.casefold():
        end = "" if not said or said.endswith(ENDS) else "."
        said = f"{said}{end} Missing: {missing}".lstrip()
    return TaskCompletionResult.incomplete(said or "something is missing")


def _unfounded(why: str) -> TaskCompletionResult:
    return TaskCompletionResult.unverified(f"the judge's verdict is unfounded: {why}")


def _check_answers(prompt: Prompt[Any]) -> None:
    """Refuse a prompt whose answers are no verdicts."""
    check_prompt(prompt, "verification_prompt")
    answers: Any = prompt.output_type
    try:
        fields = get_type_hints(answers)
    except (TypeError, NameError):
        fields = {}
    if fields.get("complete") is not bool or fields.get("explanation") is not str:
        raise ConfigurationError(
            f"verification_prompt must ask for a verdict with the fields complete: bool and explanation: str, not for"
            f" {getattr(answers, '__name__', answers)}; CompletionVerdict has them"
        )
