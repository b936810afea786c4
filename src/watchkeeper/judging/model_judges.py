"""Judges that ask a model: feedback on how a run is going, verdicts on finished work, comparisons of two works.

Feedback is advice: if its evaluation fails, the run goes on, and the log says why. A verdict counts only if the
passages that it cites are in what the judge was shown. Without a valid verdict (an error, a limit, no adapter, a
contradiction, a wrong citation) the work is unverified; it never counts as complete. Models often prefer what they read
first, so a comparison is asked in both orders, and a work wins only if it wins in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Protocol, cast, get_type_hints
from uuid import UUID

from watchkeeper.accounting.budget import Budget, BudgetTracker
from watchkeeper.children.child import children_of
from watchkeeper.core.errors import (
    BudgetExceededError,
    ConfigurationError,
    DeadlineExceededError,
    NestedEvaluationError,
    ObserverError,
)
from watchkeeper.core.quantities import DurationLike, duration, is_listed, is_whole
from watchkeeper.core.usage import TokenUsage, Usage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.judging.evaluator import NestedEvaluator, check_adapter, check_prompt
from watchkeeper.judging.templates import (
    COMPARISON,
    COMPLETION,
    TASK_CHARS,
    TRAJECTORY,
    ComparisonVerdict,
    TrajectoryAssessment,
    cut,
    has_words,
    shown_answer,
    shown_calls,
    shown_files,
    unfounded,
    words_of,
)
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.advice import Feedback, Observation, Severity
from watchkeeper.prompt.completion import OnError, TaskCompletionContext, TaskCompletionResult, on_error_of
from watchkeeper.prompt.evaluation import NestedExecutionContext
from watchkeeper.prompt.observer import FeedbackContext
from watchkeeper.prompt.output import OutputT
from watchkeeper.prompt.template import Prompt, ProviderAdapter
from watchkeeper.runtime.events import ChildEnded, ChildStarted, RunResumed
from watchkeeper.tools.context import ToolInvoked

JUDGE_BUDGET: Final = Budget(max_total_tokens=8_000)
"""What one evaluation of a judge may spend, unless it shares the run's budget."""

ASSESS: Final = Prompt(TRAJECTORY)
"""The default prompt of `LLMTrajectoryFeedback`."""

SEVERITY: Final[Mapping[str, Severity]] = {"on_track": "info", "stuck": "caution", "off_track": "warning"}
"""By status of an assessment, the severity of the feedback."""


@dataclass(frozen=True, slots=True)
class LLMTrajectoryFeedback:
    """Has a model assess the latest tool calls of an agent, and tells the agent; a `FeedbackProvider`.

    With the trigger ``ObserverTrigger(on_suspicion=True, every_n_calls=21)`` it is asked when an observer suspects
    something, and on a clock.

    Attributes:
        adapter: Evaluates the prompt, for example an `Adapter` around a cheap model, or the name of a model, which is
            then made when the run begins; None for the run's own model.
        evaluation_prompt: What to ask; its answers are `TrajectoryAssessment`. Where it has these placeholders, they
            are filled: ``task_description``, ``recent_actions``, ``tool_call_count``, ``suspicion`` and
            ``current_plan``.
        budget: What one evaluation may spend, reserved from what the run has left; None for the default of the
            template's `NestedExecutionConfig`.
        max_duration: How long one evaluation may take, at most ``max_nested_duration`` of that configuration; None for
            that.
        min_calls: The number of tool calls before which it is not asked.
        recent_calls: The number of the latest tool calls that are shown.
        name: Its name among the sources of a template.
        plan: The type of the session slice in which the agent keeps its plan; its newest value is ``current_plan``.
        most: What all its evaluations in a session may spend together; once it is used up, it is not asked any more.
            By default only ``budget`` and the run's limits bound them.
    """

    adapter: ProviderAdapter | str | None = None
    evaluation_prompt: Prompt[TrajectoryAssessment] = ASSESS
    budget: Budget | None = JUDGE_BUDGET
    max_duration: DurationLike | None = None
    min_calls: int = 5
    recent_calls: int = 10
    name: str = "LLMTrajectoryFeedback"
    plan: type[Any] | None = None
    most: Budget | None = None

    def __post_init__(self) -> None:
        """Refuse settings with which no evaluation is possible.

        Raises:
            ObserverError: For numbers below one, a prompt whose answers are no assessments, or a placeholder that
                nothing fills.
            ConfigurationError: For an adapter, a budget or a prompt of another type.
            LimitsError: For a duration that is not one.
        """
        for name in ("min_calls", "recent_calls"):
            if not is_whole(getattr(self, name), 1):
                raise ObserverError(f"{name}={getattr(self, name)!r} must be a whole number of at least 1")
        check_judge(self.adapter, self.budget, self.max_duration)
        check_judge(None, self.most, None)
        check_prompt(self.evaluation_prompt, "evaluation_prompt")
        answers: Any = self.evaluation_prompt.output_type
        if not (isinstance(answers, type) and issubclass(answers, TrajectoryAssessment)):
            raise ObserverError(f"evaluation_prompt must ask for a TrajectoryAssessment, not for {answers!r}")
        if not isinstance(cast("object", self.plan), type | None):
            raise ObserverError(f"plan={self.plan!r} must be the type of a slice, for example the dataclass Plan")
        unfilled = unfilled_of(self.evaluation_prompt, ASSESSED if self.plan else ASSESSED - {"current_plan"})
        if unfilled:
            raise ObserverError(f"evaluation_prompt: {unfilled}; current_plan needs plan=, the type of its slice")

    @property
    def asked_models(self) -> tuple[Any, ...]:
        """What the run is to make ready and price when it begins."""
        return () if self.adapter is None else (self.adapter,)

    def should_run(self, *, context: FeedbackContext) -> bool:
        """Whether there is enough to look at, and something left to spend."""
        if context.tool_call_count < self.min_calls:
            return False
        try:
            _ = self.most is None or self._tracker(self.most, context).remaining()
        except BudgetExceededError:
            return False
        return True

    def _tracker(self, most: Budget, context: FeedbackContext) -> BudgetTracker:
        """Return what its evaluations in this session may spend and have spent, also those cut off by a crash."""
        asked, used = set[UUID](), dict[UUID, Usage]()
        for each in (envelope.event for envelope in context.session.log):
            match each:
                case ChildStarted(kind="evaluation") if each.prompt_name == self.evaluation_prompt.name:
                    asked.add(each.run_context.run_id)
                case RunResumed():
                    used.update(each.below)
                case ChildEnded():
                    used[each.run_id] = each.usage
                case _:
                    pass
        return BudgetTracker(most, sum((usage for run_id, usage in used.items() if run_id in asked), Usage()))

    async def provide(self, *, context: FeedbackContext) -> Feedback:
        """Evaluate the prompt and return the feedback for the agent.

        Raises:
            ConfigurationError: If there is no adapter.
            NestedEvaluationError: If the evaluation failed; the run goes on without it.
            PromptEvaluationError: If the time or the budget was used up.
        """
        adapter = self.adapter or context.adapter
        if adapter is None:
            raise ConfigurationError(f"{self.name} has no adapter: give adapter=, or use it in a run")
        values = {
            "task_description": cut(context.task, TASK_CHARS),
            "recent_actions": shown_calls(context.recent_tool_calls(self.recent_calls)),
            "tool_call_count": context.tool_call_count,
            "suspicion": "\n".join(each.summary for each in context.suspicions) or "(nothing in particular)",
            "current_plan": self._plan(context),
        }
        nested = context.create_nested_context(budget=self.budget, max_duration=self.max_duration)
        tracker = None if self.most is None else self._tracker(self.most, context)
        said, _ = await ask(adapter, filled(self.evaluation_prompt, values), nested, tracker)
        words, reason, suggestion = said.status.replace("_", " "), said.reason.strip(), said.suggestion.strip()
        return Feedback(
            self.name,
            f"The work is {words}{f': {reason}' if reason else '.'}",
            (Observation("trajectory", f"judged {words}"),),
            (suggestion,) if suggestion else (),
            SEVERITY[said.status],
        )

    def _plan(self, context: FeedbackContext) -> str:
        plan = None if self.plan is None else context.session[self.plan].latest()
        return "(there is no plan)" if plan is None else shown_answer(plan)


ASSESSED: Final = frozenset({"task_description", "recent_actions", "tool_call_count", "suspicion", "current_plan"})
"""Names of the values that `LLMTrajectoryFeedback` fills in."""

VERIFY: Final = Prompt(COMPLETION)
"""The default prompt of `LLMCompletionVerifier`."""

WORK: Final = ("tentative_output", "recent_actions", "files")
"""Names of the values that belong to the work; the others belong to the task."""

VERIFIED: Final = frozenset({"task_description", "stop_reason", *WORK})
"""Names of the values that `LLMCompletionVerifier` fills in."""

NOTHING: Final = frozenset(
    {"", "no", "none", "nothing", "n a", "na", "null", "nil", "nothing is missing", "nothing missing"}
    | {"nichts", "keine", "rien", "nada", "niente", "nenhum", "ninguno", "な し", "无", "無"}
)
"""What models write if nothing is missing, as `words_of` returns it."""

ENDS: Final = (".", "!", "?", ":", ";", "…")
"""Characters that end a sentence."""


class Verdict(Protocol):
    """The fields an answer must have; it may also have ``evidence`` and ``missing``, as `CompletionVerdict` has."""

    @property
    def complete(self) -> bool: ...
    @property
    def explanation(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LLMCompletionVerifier:
    """Has a model judge whether the work is done; a `TaskCompletionChecker`.

    Attributes:
        verification_prompt: What to ask; its answers have at least ``complete`` and ``explanation``. Where it has these
            placeholders, they are filled with ``task_description``, ``tentative_output``, ``stop_reason``,
            ``recent_actions`` and ``files``.
        share_budget: Whether the verdict is paid from what the run has left; if not, ``budget`` is reserved for it.
        on_error: What follows if there is no verdict: ``open`` ends the run as done but not verified, ``closed`` stops
            it.
        adapter: Evaluates the prompt: an adapter, or the name of a model, which is then made when the run begins; None
            for the run's own model.
        max_duration: How long it may take, at most ``max_nested_duration`` of the template's `NestedExecutionConfig`;
            None for that.
        budget: What it may spend with ``share_budget=False``.
        files: Paths of files whose content the judge is shown.
        recent_calls: The number of the latest tool calls that are shown; 0 for none.
        asks_model: Always True: a part of the run's budget and time is reserved for it.
    """

    verification_prompt: Prompt[Any] = VERIFY
    share_budget: bool = field(default=True, kw_only=True)
    on_error: OnError = field(default="open", kw_only=True)
    adapter: ProviderAdapter | str | None = field(default=None, kw_only=True)
    max_duration: DurationLike | None = field(default=None, kw_only=True)
    budget: Budget = field(default=JUDGE_BUDGET, kw_only=True)
    files: Sequence[str] = field(default=(), kw_only=True)
    recent_calls: int = field(default=10, kw_only=True)
    asks_model: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        """Refuse settings with which no evaluation is possible.

        Raises:
            ConfigurationError: For a prompt whose answers are no verdicts, a placeholder that nothing fills, or an
                invalid adapter, policy, budget or number.
        """
        on_error_of(self)
        check_judge(self.adapter, self.budget, self.max_duration)
        if not is_listed(self.files):
            raise ConfigurationError(f"files={self.files!r} must be a list of paths")
        object.__setattr__(self, "files", tuple(self.files))
        if not is_whole(self.recent_calls, 0):
            raise ConfigurationError(f"recent_calls={self.recent_calls!r} must be a whole number, 0 or more")
        _check_answers(self.verification_prompt)

    @property
    def asked_models(self) -> tuple[Any, ...]:
        """What the run is to make ready and price when it begins."""
        return () if self.adapter is None else (self.adapter,)

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Evaluate the prompt and return the verdict; unverified, with the reason, if there is none."""
        adapter = self.adapter or context.adapter
        if adapter is None:
            return TaskCompletionResult.unverified("there is no adapter that could verify it")
        values = await run_in_worker(self._values, context)
        nested = context.create_nested_context(
            budget=None if self.share_budget else self.budget, max_duration=self.max_duration
        )
        prompt = filled(self.verification_prompt, values)
        try:
            verdict, _ = await ask(adapter, prompt, nested)
        except (DeadlineExceededError, BudgetExceededError) as error:
            return TaskCompletionResult.unverified(f"the judge reached a limit: {error.message}")
        except NestedEvaluationError as error:
            return TaskCompletionResult.unverified(f"the judge failed ({error.kind}): {error.message}")
        shown = "\n".join(message.text for message in prompt.render().messages)
        work = "\n".join(prompt.variables.get(name, "") for name in WORK)
        return judged(verdict, shown, work)

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
    """Return a judge's verdict as a checker's; unverified if what was shown does not support it.

    A verdict that calls the work complete must cite the work, not only the task; all its citations must be in what the
    judge was shown, and it must not name anything that is missing. An objection stands by its reason: what it cites is
    not checked, because sending the agent back in vain costs less than accepting unfinished work.

    Args:
        verdict: The judge's answer.
        shown: Everything that the judge was shown.
        work: The part of it that is the work.
    """
    said = " ".join(verdict.explanation.split())
    evidence: Sequence[str] | None = getattr(verdict, "evidence", None)
    missing = " ".join(str(getattr(verdict, "missing", "")).split())
    lacking = words_of(missing) not in NOTHING
    if verdict.complete and lacking:
        return _unfounded(f"it calls the work complete, and says that this is missing: {missing}")
    if verdict.complete and evidence is not None:
        quotes = [quote for quote in evidence if has_words(quote)]
        wrong = unfounded(quotes, shown)
        if wrong:
            return _unfounded(f"it cites what it was not shown: {wrong[0]!r}")
        if len(unfounded(quotes, work)) == len(quotes):
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
    check_prompt(prompt, "verification_prompt")
    answers: Any = prompt.output_type
    try:
        hints = get_type_hints(answers)
    except (TypeError, NameError):
        hints = {}
    if hints.get("complete") is not bool or hints.get("explanation") is not str:
        raise ConfigurationError(
            f"verification_prompt must ask for a verdict with the fields complete: bool and explanation: str, not for"
            f" {getattr(answers, '__name__', answers)}; CompletionVerdict has them"
        )
    unfilled = unfilled_of(prompt, VERIFIED)
    if unfilled:
        raise ConfigurationError(f"verification_prompt: {unfilled}")


Better = Literal["first", "second", "tie"]

TURNED: Final[Mapping[Better, Better]] = {"first": "second", "second": "first", "tie": "tie"}

COMPARE: Final = Prompt(COMPARISON)
"""The default prompt of `compare`."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of asking in both orders.

    Attributes:
        winner: ``first``, ``second`` or ``tie`` if both answers agree; ``undecided`` if they do not.
        said: Which work each of the two answers preferred, in the order of the arguments.
        reasons: The reason that each answer gave.
        usage: Tokens of both evaluations.
    """

    winner: Literal["first", "second", "tie", "undecided"]
    said: tuple[Better, Better]
    reasons: tuple[str, str]
    usage: TokenUsage


async def compare(
    adapter: ProviderAdapter,
    *,
    task: str,
    first: Any,
    second: Any,
    context: NestedExecutionContext,
    prompt: Prompt[ComparisonVerdict] = COMPARE,
) -> Comparison:
    """Ask which of two works serves a task better, twice, in both orders.

    Args:
        adapter: Evaluates the prompt.
        task: What was asked for.
        first: One work; typed values are shown as JSON.
        second: The other.
        context: What each of the two evaluations may look at and spend.
        prompt: What to ask; filled with ``task_description``, ``first`` and ``second``.

    Raises:
        NestedEvaluationError: If one of the evaluations failed.
        PromptEvaluationError: If the time or the budget was used up.
        ConfigurationError: As `NestedEvaluator` raises it.
    """

    async def in_order(one: Any, other: Any) -> tuple[ComparisonVerdict, TokenUsage]:
        values = {
            "task_description": cut(task, TASK_CHARS),
            "first": shown_answer(one),
            "second": shown_answer(other),
        }
        return await ask(adapter, filled(prompt, values), context)

    straight, used = await in_order(first, second)
    turned, used_turned = await in_order(second, first)
    said = (straight.better, TURNED[turned.better])
    return Comparison(
        winner=said[0] if said[0] == said[1] else "undecided",
        said=said,
        reasons=(straight.reason, turned.reason),
        usage=used + used_turned,
    )


def check_judge(adapter: ProviderAdapter | str | None, budget: object, max_duration: DurationLike | None) -> None:
    """Refuse settings of a judge with which no evaluation is possible.

    Raises:
        ConfigurationError: For an adapter that cannot evaluate, or a budget of another type.
        LimitsError: For a duration that is not one.
    """
    if adapter is not None and not (isinstance(adapter, str) and adapter.strip()):
        check_adapter(adapter)
    if not isinstance(budget, Budget | None):
        raise ConfigurationError(f"budget={budget!r} must be a Budget, for example Budget(max_total_tokens=8_000)")
    if max_duration is not None:
        duration(max_duration, "max_duration")


def unfilled_of(prompt: Prompt[Any], known: frozenset[str]) -> str:
    """Return a sentence that names the first placeholder that neither the judge nor the caller fills; else ''."""
    bound = {item.name for type_ in prompt.params for item in fields(type_)}
    wrong = sorted(prompt.template.placeholders - known - bound - prompt.variables.keys())
    names = ", ".join(sorted(known))
    return f"nothing fills its placeholder ${{{wrong[0]}}}; the judge fills {names}" if wrong else ""


def filled(prompt: Prompt[Any], values: Mapping[str, Any]) -> Prompt[Any]:
    """Return a prompt with those of the values for which it has a placeholder."""
    wanted = prompt.template.placeholders
    return prompt.with_variables(**{name: value for name, value in values.items() if name in wanted})


async def ask(
    adapter: ProviderAdapter | str,
    prompt: Prompt[OutputT],
    context: NestedExecutionContext,
    tracker: BudgetTracker | None = None,
) -> tuple[OutputT, TokenUsage]:
    """Evaluate a prompt as a child of the run that is judged, and return the answer and its usage.

    What is left of the tracker's budget bounds it, too.

    Raises:
        ConfigurationError: If the adapter is the name of a model that the run has not made ready.
        NestedEvaluationError: If there is no answer.
        PromptEvaluationError: If the time or the budget was used up.
    """
    made = named_model(adapter, context) if isinstance(adapter, str) else adapter
    result = await NestedEvaluator(made, prompt=prompt, context=context).evaluate_async(budget_tracker=tracker)
    if result.output is None:
        raise result.error or NestedEvaluationError("the evaluation ended without an answer", kind="output")
    return result.output, result.usage or TokenUsage()


def named_model(name: str, context: NestedExecutionContext) -> Adapter:
    """Return an adapter around a model that the run made when it began.

    Raises:
        ConfigurationError: If it made none of that name, or if no run goes on.
    """
    children = children_of(context.parent_session)
    found = None if children is None else children.family.models.get(name)
    if found is None:
        raise ConfigurationError(
            f"adapter={name!r} names a model that was not made ready when the run began; put the judge into the"
            f" template of the run, or give Adapter(watchkeeper.models.model_from({name!r}))"
        )
    return Adapter(found.model, settings=found.settings, price=found.price)
