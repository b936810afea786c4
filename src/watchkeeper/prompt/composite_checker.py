"""Several checkers as one: all of them must agree, or any of them is enough.

They are asked in order, and no longer than it takes: "all" ends with the first incomplete, "any" with the first
complete. A part that fails or cannot tell decides nothing, so it never makes the whole complete that the others do not
make complete: "all" is then unverified unless a part is incomplete, and "any" unless a part is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from watchkeeper.core.completion import CompletionStatus
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.prompt.completion import (
    OnError,
    TaskCompletionChecker,
    TaskCompletionContext,
    TaskCompletionResult,
    asks_model,
    on_error_of,
    verdict_of,
)

Mode = Literal["all", "any"]

DECIDES: Final[dict[Mode, CompletionStatus]] = {"all": "incomplete", "any": "complete"}
"""By mode, the word of one part that decides for all of them."""

OTHERWISE: Final[dict[Mode, CompletionStatus]] = {"all": "complete", "any": "incomplete"}
"""By mode, what the whole is if every part has decided, and none for all."""


@dataclass(frozen=True, slots=True)
class CompositeChecker:
    """The work is complete when all of several checkers say so, or any of them.

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
