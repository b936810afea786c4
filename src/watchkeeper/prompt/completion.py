"""Completion checkers: the protocol, their verdicts, and three checkers that ask no model.

A checker reads the answer and the files of an agent and returns complete, incomplete (with what is missing, worded for
the agent) or unverified (it cannot tell). It may read everything and change nothing. Sync checkers run on a worker
thread, async ones on the event loop. If a checker raises, or returns something else, the work is unverified, never
complete; the checker's ``on_error`` says whether the run then ends as done or is stopped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeGuard, cast, get_args, runtime_checkable

from watchkeeper.accounting.budget import Budget
from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.ids import RunContext
from watchkeeper.core.model import STATES, CompletionState, CompletionStatus
from watchkeeper.core.quantities import DurationLike, is_listed
from watchkeeper.core.text import bounded, error_text, one_name
from watchkeeper.core.workers import is_crash, run_in_worker
from watchkeeper.prompt.evaluation import (
    NESTED,
    NestedAdapter,
    NestedExecutionConfig,
    NestedExecutionContext,
    nested_context,
)
from watchkeeper.session.session import Session
from watchkeeper.tools.filesystem import Filesystem

OnError = Literal["open", "closed"]
"""What happens if work could not be verified: ``open`` lets the run end as done, ``closed`` stops it."""

EXPLANATION_CHARS: Final = 8000
"""Longer explanations of a checker are cut, because they are sent to the model."""

COMPLETION_ROUNDS: Final = 3
"""How often "incomplete" sends an agent back to work by default."""


@dataclass(frozen=True, slots=True)
class TaskCompletionResult:
    """A checker's verdict.

    Attributes:
        status: ``complete``, ``incomplete`` or ``unverified``.
        explanation: Why; for ``incomplete``, what the agent still has to do. A text longer than `EXPLANATION_CHARS`
            is cut, with a note.
    """

    status: CompletionStatus
    explanation: str = ""

    def __post_init__(self) -> None:
        """Cut a long explanation."""
        if isinstance(self.explanation, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            object.__setattr__(self, "explanation", bounded(self.explanation, EXPLANATION_CHARS))

    @property
    def verdict(self) -> CompletionState:
        """The state that is recorded for this status: ``verified``, ``rejected`` or ``unverified``."""
        return STATES[self.status]

    @classmethod
    def ok(cls, explanation: str = "") -> TaskCompletionResult:
        """The work is complete."""
        return cls("complete", explanation)

    @classmethod
    def incomplete(cls, explanation: str) -> TaskCompletionResult:
        """Something is missing; the explanation goes to the agent."""
        return cls("incomplete", explanation)

    @classmethod
    def unverified(cls, explanation: str) -> TaskCompletionResult:
        """The checker cannot tell; the run ends, and its result says so."""
        return cls("unverified", explanation)


@dataclass(frozen=True, slots=True)
class TaskCompletionContext:
    """What a checker may look at.

    Attributes:
        session: The run's session.
        tentative_output: The answer that the agent gave.
        stop_reason: The finish reason of the model's last reply: ``stop`` if it ended its answer by itself.
        filesystem: A read-only view of the run's files, or None if it has none.
        deadline: When the run must be over, or None.
        run_context: The run's identifiers, or None.
        adapter: Evaluates prompts with the run's own model, or None outside of a run.
        task: The text of the first messages that the agent was sent.
        nested: The rules of nested evaluations.
    """

    session: Session
    tentative_output: Any
    stop_reason: str | None = None
    filesystem: Filesystem | None = None
    deadline: Deadline | None = None
    run_context: RunContext | None = None
    adapter: NestedAdapter | None = None
    task: str = ""
    nested: NestedExecutionConfig = NESTED

    def create_nested_context(
        self, *, budget: Budget | None = None, max_duration: DurationLike | None = None
    ) -> NestedExecutionContext:
        """Return the context of a nested evaluation for the verdict.

        Args:
            budget: The most that it may spend; None shares what the run has left.
            max_duration: The longest that it may take; by default that of the template's `NestedExecutionConfig`.
        """
        return nested_context(self, budget, max_duration, "verdict")


@runtime_checkable
class TaskCompletionChecker(Protocol):
    """Checks whether the work is done.

    A checker may have two attributes. ``on_error`` says what follows if it cannot tell: ``open`` (the default) ends the
    run as done but not verified, ``closed`` stops it. ``asks_model=True`` says that it asks a model: a part of the
    run's budget and time is then reserved for it.
    """

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult | Awaitable[TaskCompletionResult]:
        """Look at the work and return a verdict; may be a coroutine function."""
        ...


def is_checker(value: object) -> TypeGuard[TaskCompletionChecker]:
    """Return whether a value is a checker; only instances are checkers, not classes."""
    return isinstance(value, TaskCompletionChecker) and not isinstance(value, type)


def asks_model(checker: object) -> bool:
    """Return whether a checker says that it asks a model, so that a part of the budget is reserved for it."""
    return bool(getattr(checker, "asks_model", False))


def asked_models(asking: object) -> tuple[Any, ...]:
    """Return what a checker, an observer or a feedback provider asks beside the run's own model.

    Its attribute ``asked_models`` has model strings and adapters, so that a run makes and prices them when it begins.
    """
    return tuple(getattr(asking, "asked_models", ()))


def on_error_of(checker: object) -> OnError:
    """Return the policy of a checker that cannot tell: its attribute ``on_error``, ``open`` if it has none.

    Raises:
        ConfigurationError: If it is neither ``open`` nor ``closed``.
    """
    policy: object = getattr(checker, "on_error", "open")
    if policy not in get_args(OnError):
        raise ConfigurationError(f"{type(checker).__name__}: on_error={policy!r} must be 'open' or 'closed'")
    return cast("OnError", policy)


async def verdict_of(checker: TaskCompletionChecker, context: TaskCompletionContext) -> TaskCompletionResult:
    """Ask a checker and return its verdict: unverified if it fails or returns something else.

    Raises:
        CancelledError: If this was cancelled.
    """
    task = asyncio.current_task()
    try:
        is_async = inspect.iscoroutinefunction(checker.check)
        answer: object = checker.check(context) if is_async else await run_in_worker(checker.check, context)
        return _checked(await answer if inspect.isawaitable(answer) else answer)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) or not is_crash(error, task):
            raise
        return TaskCompletionResult.unverified(f"the checker failed: {error_text(error)}")


def _checked(said: object) -> TaskCompletionResult:
    if isinstance(said, TaskCompletionResult) and said.status in STATES:
        return said
    raise TypeError(f"check() must return a TaskCompletionResult, not {said!r}")


@dataclass(frozen=True, slots=True)
class FileOutputChecker:
    """The work is complete when these files are there and are not empty.

    Attributes:
        files: Paths in the run's filesystem.
        on_error: What follows if it cannot tell: ``open`` ends the run as done but not verified, ``closed`` stops it.
    """

    files: Sequence[str]
    on_error: OnError = "open"

    def __post_init__(self) -> None:
        """Refuse a checker that checks nothing.

        Raises:
            ConfigurationError: If the paths are not a list, the list is empty, or the policy does not exist.
        """
        if not is_listed(self.files) or not self.files:
            raise ConfigurationError(f"FileOutputChecker needs a list of paths, not {self.files!r}")
        object.__setattr__(self, "files", tuple(self.files))
        on_error_of(self)

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Name the files that are missing or empty."""
        files = context.filesystem
        if files is None:
            return TaskCompletionResult.unverified("the run has no filesystem in which files could be looked for")
        absent = [path for path in self.files if not files.is_file(path)]
        empty = [path for path in self.files if path not in absent and files.stat(path).size == 0]
        found = (("missing", absent), ("empty", empty))
        missing = [f"{what}: {', '.join(map(one_name, paths))}" for what, paths in found if paths]
        if missing:
            return TaskCompletionResult.incomplete("these files are expected: " + "; ".join(missing))
        count = len(self.files)
        return TaskCompletionResult.ok("the file is there" if count == 1 else f"all {count} files are there")


Said = bool | TaskCompletionResult


@dataclass(frozen=True, slots=True)
class PredicateChecker:
    """The work is complete when a function of the context says so.

    Attributes:
        predicate: Returns True when the work is done, False if not, or a verdict of its own; may be a coroutine
            function. Anything else leaves the work unverified.
        description: What must hold, worded for the agent: "every message has a record".
        on_error: What follows if it cannot tell: ``open`` ends the run as done but not verified, ``closed`` stops it.
    """

    predicate: Callable[[TaskCompletionContext], Said | Awaitable[Said]]
    description: str
    on_error: OnError = "open"

    def __post_init__(self) -> None:
        """Refuse a policy that does not exist.

        Raises:
            ConfigurationError: Naming it.
        """
        on_error_of(self)

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult | Awaitable[TaskCompletionResult]:
        """Ask the predicate."""
        answer = self.predicate(context)
        return self._awaited(answer) if inspect.isawaitable(answer) else self._verdict(answer)

    async def _awaited(self, answer: Awaitable[Said]) -> TaskCompletionResult:
        return self._verdict(await answer)

    def _verdict(self, said: Said) -> TaskCompletionResult:
        if isinstance(said, TaskCompletionResult):
            return said
        if type(said) is not bool:  # any other object counts as true, also one that represents a failure
            raise TypeError(f"the predicate must return True, False or a TaskCompletionResult, not {said!r}")
        if said:
            return TaskCompletionResult.ok(self.description)
        return TaskCompletionResult.incomplete(f"this does not hold yet: {self.description}")


Mode = Literal["all", "any"]

DECIDES: Final[dict[Mode, CompletionStatus]] = {"all": "incomplete", "any": "complete"}
"""By mode, the verdict that decides the whole as soon as one part gives it."""

OTHERWISE: Final[dict[Mode, CompletionStatus]] = {"all": "complete", "any": "incomplete"}
"""By mode, the verdict of the whole if every part has the other verdict."""


@dataclass(frozen=True, slots=True)
class CompositeChecker:
    """The work is complete when all of several checkers say so, or any of them.

    They are asked in order until the verdict is known: "all" ends with the first incomplete, "any" with the first
    complete. If a part fails or cannot tell, "all" is unverified unless a part is incomplete, and "any" is unverified
    unless a part is complete.

    Attributes:
        checkers: The parts, in the order in which they are asked: put the cheapest first. They may be composites.
        mode: ``all`` or ``any``.
    """

    checkers: Sequence[TaskCompletionChecker]
    mode: Mode = "all"

    def __post_init__(self) -> None:
        """Refuse an empty composite, and parts that are not checkers.

        Raises:
            ConfigurationError: Naming them.
        """
        if self.mode not in get_args(Mode):
            raise ConfigurationError(f"CompositeChecker: mode={self.mode!r} must be 'all' or 'any'")
        if not is_listed(self.checkers):
            raise ConfigurationError(f"CompositeChecker needs a list of checkers, not {self.checkers!r}")
        checkers = tuple(self.checkers)
        if not checkers:
            raise ConfigurationError("CompositeChecker needs at least one checker; without any it would check nothing")
        for checker in checkers:
            if not is_checker(checker):
                raise ConfigurationError(f"CompositeChecker: {checker!r} is no checker; it needs a method check()")
            on_error_of(checker)
        object.__setattr__(self, "checkers", checkers)

    @property
    def on_error(self) -> OnError:
        """``closed`` if it is the policy of any of the parts, else ``open``."""
        return "closed" if any(on_error_of(checker) == "closed" for checker in self.checkers) else "open"

    @property
    def asks_model(self) -> bool:
        """Whether any of the parts asks a model."""
        return any(asks_model(checker) for checker in self.checkers)

    @property
    def asked_models(self) -> tuple[Any, ...]:
        """The models that its parts ask beside the run's own."""
        return tuple(model for checker in self.checkers for model in asked_models(checker))

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Ask one part after the other until the verdict is known."""
        said: list[TaskCompletionResult] = []
        for checker in self.checkers:
            result = await verdict_of(checker, context)
            if result.status == DECIDES[self.mode]:
                return result
            said.append(result)
        undecided = [result for result in said if result.status == "unverified"]
        if undecided:
            return TaskCompletionResult.unverified(joined(undecided))
        return TaskCompletionResult(OTHERWISE[self.mode], joined(said))


def joined(results: Sequence[TaskCompletionResult]) -> str:
    """Return the explanations of several verdicts as one text, without duplicates."""
    texts = list(dict.fromkeys(result.explanation for result in results if result.explanation))
    several_lines = any("\n" in text for text in texts)
    return ("\n\n" if several_lines else "; ").join(texts)
