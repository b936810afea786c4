"""Whether the work is done: the protocol of those who say so, and two simple ones.

A checker sees what the agent left behind and answers complete, incomplete (with what is missing, worded for the
agent) or unverified (it cannot tell). It may read everything and change nothing. Sync checkers run on a worker thread,
async ones on the loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from watchkeeper.core.deadline import Deadline
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.run_context import RunContext
from watchkeeper.session.session import Session
from watchkeeper.tools.filesystem import Filesystem

CompletionStatus = Literal["complete", "incomplete", "unverified"]


@dataclass(frozen=True, slots=True)
class TaskCompletionResult:
    """A checker's verdict.

    Attributes:
        status: ``complete``, ``incomplete`` or ``unverified``.
        explanation: Why; for ``incomplete``, what the agent still has to do.
    """

    status: CompletionStatus
    explanation: str = ""

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
    """What a checker may look at (seed: nested-execution).

    Attributes:
        session: The run's session.
        tentative_output: The answer that the agent gave.
        stop_reason: Why the model stopped, as its last reply says: ``stop`` for an answer of its own accord.
        filesystem: A read-only view of the run's files, or None if it has none.
        deadline: When the run must be over, or None.
        run_context: The run's identifiers, or None.
    """

    session: Session
    tentative_output: Any
    stop_reason: str | None = None
    filesystem: Filesystem | None = None
    deadline: Deadline | None = None
    run_context: RunContext | None = None


@runtime_checkable
class TaskCompletionChecker(Protocol):
    """Says whether the work is done."""

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult | Awaitable[TaskCompletionResult]:
        """Look at what the agent left behind and give a verdict; may be a coroutine function."""
        ...


@dataclass(frozen=True, slots=True)
class FileOutputChecker:
    """The work is complete when these files are there and are not empty.

    Attributes:
        files: Paths in the run's filesystem.
    """

    files: Sequence[str]

    def __post_init__(self) -> None:
        """Refuse a checker that checks nothing."""
        if isinstance(self.files, str) or not self.files:
            raise ConfigurationError(f"FileOutputChecker needs a list of paths, not {self.files!r}")
        object.__setattr__(self, "files", tuple(self.files))

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
        return TaskCompletionResult.ok(f"all {len(self.files)} files are there")


Said = bool | TaskCompletionResult


@dataclass(frozen=True, slots=True)
class PredicateChecker:
    """The work is complete when a function of the context says so.

    Attributes:
        predicate: Returns true when the work is done, or a verdict of its own; may be a coroutine function.
        description: What must hold, worded for the agent: "every message has a record".
    """

    predicate: Callable[[TaskCompletionContext], Said | Awaitable[Said]]
    description: str

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
        if said:
            return TaskCompletionResult.ok(self.description)
        return TaskCompletionResult.incomplete(f"this does not hold yet: {self.description}")
