"""Whether the work is done: the protocol of those who say so, and three simple ones.

A checker sees what the agent left behind and answers complete, incomplete (with what is missing, worded for the
agent) or unverified (it cannot tell). It may read everything and change nothing. Sync checkers run on a worker thread,
async ones on the loop. A checker that fails, or answers nonsense, has not verified anything: `verdict_of` says so, and
``on_error`` of the checker says what follows.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, cast, runtime_checkable

from watchkeeper.core.budget import Budget
from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.ids import RunContext
from watchkeeper.core.model import STATES, CompletionState, CompletionStatus
from watchkeeper.core.quantities import DurationLike
from watchkeeper.core.text import bounded, error_text
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
"""What work means that nobody could verify: ``open`` lets the run end as done, ``closed`` stops it."""

EXPLANATION_CHARS: Final = 8000
"""Longer explanations of a checker are cut: they go to the agent, and are paid for."""

COMPLETION_ROUNDS: Final = 3
"""How often "incomplete" sends an agent back to work unless its template says otherwise."""


@dataclass(frozen=True, slots=True)
class TaskCompletionResult:
    """A checker's verdict.

    Attributes:
        status: ``complete``, ``incomplete`` or ``unverified``.
        explanation: Why; for ``incomplete``, what the agent still has to do. What exceeds `EXPLANATION_CHARS` is cut,
            with a note.
    """

    status: CompletionStatus
    explanation: str = ""

    def __post_init__(self) -> None:
        """Shorten what would flood the conversation, with a note."""
        if isinstance(self.explanation, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            shown = bounded(self.explanation, EXPLANATION_CHARS)
            if shown is not self.explanation:
                object.__setattr__(self, "explanation", shown)

    @property
    def verdict(self) -> CompletionState:
        """How the work stands on the record: ``verified``, ``rejected`` or ``unverified``."""
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
        """Nobody can tell; the run ends, and its result says so."""
        return cls("unverified", explanation)


@dataclass(frozen=True, slots=True)
class TaskCompletionContext:
    """What a checker may look at.

    Attributes:
        session: The run's session.
        tentative_output: The answer that the agent gave.
        stop_reason: Why the model stopped, as its last reply says: ``stop`` for an answer of its own accord.
        filesystem: A read-only view of the run's files, or None if it has none.
        deadline: When the run must be over, or None.
        run_context: The run's identifiers, or None.
        adapter: Evaluates prompts with the run's own model, or None outside of a run.
        task: What the agent was told at the start.
        nested: What nested evaluations may do.
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
        """Return what a nested evaluation for the verdict is given.

        Args:
            budget: What it may spend; None shares what the run has left.
            max_duration: How long it may take; as the template's `NestedExecutionConfig` says by default.
        """
        return nested_context(self, budget, max_duration, "verdict")


@runtime_checkable
class TaskCompletionChecker(Protocol):
    """Says whether the work is done.

    It may have two attributes. ``on_error`` says what follows if nobody can tell: ``open`` (as without it) ends the run
    as done but not verified, ``closed`` stops it. ``asks_model`` says that it asks a model: a part of the run's budget
    and time is then kept back for it.
    """

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult | Awaitable[TaskCompletionResult]:
        """Look at what the agent left behind and give a verdict; may be a coroutine function."""
        ...


def asks_model(checker: object) -> bool:
    """Return whether a checker says that it asks a model; a part of the budget is then kept back for its last word."""
    return bool(getattr(checker, "asks_model", False))


def on_error_of(checker: object) -> OnError:
    """Return what follows if a checker cannot tell: its attribute ``on_error``, ``open`` if it has none.

    Raises:
        ConfigurationError: If it is neither ``open`` nor ``closed``.
    """
    said: object = getattr(checker, "on_error", "open")
    if said == "open":
        return "open"
    if said == "closed":
        return "closed"
    raise ConfigurationError(f"{type(checker).__name__}: on_error={said!r} must be 'open' or 'closed'")


async def verdict_of(checker: TaskCompletionChecker, context: TaskCompletionContext) -> TaskCompletionResult:
    """Ask a checker, and return its verdict; one that fails, or gives none, leaves the work unverified.

    Raises:
        CancelledError: If this was cancelled.
    """
    task = asyncio.current_task()
    is_async = False
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
        on_error: What follows if nobody can tell: ``open`` ends the run as done but not verified, ``closed`` stops it.
    """

    files: Sequence[str]
    on_error: OnError = "open"

    def __post_init__(self) -> None:
        """Refuse a checker that checks nothing."""
        if isinstance(self.files, str) or not self.files:
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
        missing = [f"missing: {', '.join(absent)}"] * bool(absent) + [f"empty: {', '.join(empty)}"] * bool(empty)
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
        on_error: What follows if nobody can tell: ``open`` ends the run as done but not verified, ``closed`` stops it.
    """

    predicate: Callable[[TaskCompletionContext], Said | Awaitable[Said]]
    description: str
    on_error: OnError = "open"

    def __post_init__(self) -> None:
        """Refuse a policy that is none."""
        on_error_of(self)

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult | Awaitable[TaskCompletionResult]:
        """Ask the predicate."""
        answer = self.predicate(context)
        if inspect.isawaitable(answer):
            return self._verdict_of(answer)
        return self._verdict(answer)

    async def _verdict_of(self, answer: Awaitable[Said]) -> TaskCompletionResult:
        return self._verdict(await answer)

    def _verdict(self, said: Said) -> TaskCompletionResult:
        if isinstance(said, TaskCompletionResult):
            return said
        if not isinstance(cast("object", said), bool):  # a result that tells of a failure would count as true
            raise TypeError(f"the predicate must return True, False or a TaskCompletionResult, not {said!r}")
        if said:
            return TaskCompletionResult.ok(self.description)
        return TaskCompletionResult.incomplete(f"this does not hold yet: {self.description}")


Mode = Literal["all", "any"]

DECIDES: Final[dict[Mode, CompletionStatus]] = {"all": "incomplete", "any": "complete"}
"""By mode, the word of one part that decides for all of them."""

OTHERWISE: Final[dict[Mode, CompletionStatus]] = {"all": "complete", "any": "incomplete"}
"""By mode, what the whole is if every part has decided, and none for all."""


@dataclass(frozen=True, slots=True)
class CompositeChecker:
    """The work is complete when all of several checkers say so, or any of them.

    They are asked in order, and no longer than it takes: "all" ends with the first incomplete, "any" with the first
    complete. A part that fails or cannot tell decides nothing: "all" is then unverified unless a part is incomplete,
    and "any" unless a part is complete.

    Attributes:
        checkers: The parts, in the order in which they are asked: the cheapest first. They may be composites.
        mode: ``all`` or ``any``.
    """

    checkers: Sequence[TaskCompletionChecker]
    mode: Mode = "all"

    def __post_init__(self) -> None:
        """Refuse a composite of nothing, and parts that are no checkers.

        Raises:
            ConfigurationError: Naming them.
        """
        if self.mode not in ("all", "any"):
            raise ConfigurationError(f"CompositeChecker: mode={self.mode!r} must be 'all' or 'any'")
        parts = cast("object", self.checkers)
        if isinstance(parts, str | bytes) or not isinstance(parts, Iterable):
            raise ConfigurationError(f"CompositeChecker needs a list of checkers, not {parts!r}")
        checkers: tuple[object, ...] = tuple(cast("Iterable[object]", parts))
        if not checkers:
            raise ConfigurationError("CompositeChecker needs at least one checker; without any it would check nothing")
        for checker in checkers:
            if isinstance(checker, type) or not isinstance(checker, TaskCompletionChecker):
                raise ConfigurationError(f"CompositeChecker: {checker!r} is no checker; it needs a method check()")
            on_error_of(checker)
        object.__setattr__(self, "checkers", checkers)

    @property
    def on_error(self) -> OnError:
        """``closed`` if that holds for any of the parts."""
        return "closed" if any(on_error_of(checker) == "closed" for checker in self.checkers) else "open"

    @property
    def asks_model(self) -> bool:
        """Whether any of the parts asks a model."""
        return any(asks_model(checker) for checker in self.checkers)

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Ask one part after the other until the verdict stands."""
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
    """Return the explanations of several verdicts as one; of those that are the same, one."""
    texts = list(dict.fromkeys(result.explanation for result in results if result.explanation))
    several_lines = any("\n" in text for text in texts)
    return ("\n\n" if several_lines else "; ").join(texts)
